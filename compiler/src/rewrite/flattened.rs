//! Moves views that only merge, drop or repeat axes behind products.
//!
//! `view(x)·w → view(x·w)`, where the view merges axes that w does not have, or drops one of extent 1: frameworks flatten batch and
//! sequence before a matrix product, which hides a norm before the view. An operand that is constant along a batch axis is read without
//! it: a weight that was expanded to a batch is one weight.
//!
//! `map(view(y), c) → view(map(y, c))` for these views, where c does not vary along the merged axes: so biases and activations follow the
//! product, and the view meets the one that splits the axes again.

use super::canonical::topo;
use super::views::ViewMap;
use wgfc_ir::build::reshape_index;
use wgfc_ir::{Contract, Dim, Graph, NodeId, Op, Poly, ScalarNode, Value};

/// Rewrites the operands of products. Returns how many were rewritten.
pub fn unflatten(graph: &mut Graph) -> Result<usize, String> {
    let mut found = 0;
    for n in topo(graph)? {
        let (mut n, mut views) = (n, vec![]);
        for which in 0..2 {
            if let Some(apart) = Apart::of(graph, n, which) {
                let view;
                (n, view) = apart.replace(graph, n, which)?;
                views.extend(view);
                found += 1;
            }
        }
        while let Some(view) = views.pop() {
            for (reader, _) in graph.uses(view.into()).to_vec() {
                views.extend(sink(graph, view, reader)?);
            }
        }
    }
    graph.remove_dead();
    Ok(found)
}

/// Makes `reader`, a map, read the operand of `view`. Returns the view of the new map that replaces it.
fn sink(graph: &mut Graph, view: NodeId, reader: NodeId) -> Result<Option<NodeId>, String> {
    let node = graph.node(reader).clone();
    let (Op::Map { body, shape }, Some(map)) = (&node.op, ViewMap::of(&graph.node(view).op)) else {
        return Ok(None);
    };
    let indexed = body.nodes.iter().any(|n| matches!(n, ScalarNode::Index(_)));
    let of = graph.ty(graph.node(view).inputs[0]).shape.clone();
    // Trailing axes that the view passes through.
    let last = |i: usize| of[of.len() - i] == map.shape[map.shape.len() - i];
    let passed = |i: usize| map.index[of.len() - i].as_var() == Some(map.shape.len() - i);
    let same = (1..=of.len().min(map.shape.len())).take_while(|i| last(*i) && passed(*i)).count();
    if indexed || map.fill.is_some() || *shape != map.shape {
        return Ok(None);
    }
    let mut inputs = vec![];
    for x in &node.inputs {
        let made = graph.node(x.node);
        if ViewMap::of(&made.op).as_ref() == Some(&map) && graph.ty(made.inputs[0]).shape == of {
            inputs.push(made.inputs[0]);
        } else if graph.ty(*x).rank() <= same {
            inputs.push(*x);
        } else {
            return Ok(None);
        }
    }
    let op = Op::Map { body: body.clone(), shape: of };
    let made = graph.push(op, &inputs, &node.origin)?;
    let result = graph.push(map.op(), &[made.into()], &node.origin)?;
    graph.node_mut(result).names.clone_from(&node.names);
    graph.replace_uses(reader.into(), result.into());
    Ok(Some(result))
}

/// An operand with split axes.
struct Apart {
    x: Value,
    /// The view of `x` that is read; `None` if `x` is read directly.
    view: Option<ViewMap>,
    labels: Vec<u8>,
    /// For each label of the result, the labels that replace it, with their extents.
    split: Vec<(u8, Vec<(u8, Dim)>)>,
    /// Labels of extent 1, each with the label before which it is inserted.
    units: Vec<(u8, u8)>,
}

impl Apart {
    fn of(graph: &Graph, n: NodeId, which: usize) -> Option<Apart> {
        let node = graph.node(n);
        let Op::Contract(c) = &node.op else { return None };
        let (own, other) = if which == 0 { (&c.a, &c.b) } else { (&c.b, &c.a) };
        let operand = graph.node(node.inputs[which].node);
        let map = ViewMap::of(&operand.op).filter(|m| m.fill.is_none())?;
        let x = operand.inputs[0];
        let of = &graph.ty(x).shape;
        let mut fresh = [&c.a, &c.b, &c.out].into_iter().flatten().max().map_or(0, |m| m + 1);
        let mut new = |labels: &mut Vec<u8>| {
            labels.push(fresh);
            fresh = fresh.checked_add(1)?;
            Some(fresh - 1)
        };
        let (mut labels, mut shape, mut split) = (vec![], vec![], vec![]);
        // The replacements of each variable of the view, and of the axes of x that are parts of one.
        let mut vars = vec![Poly::ZERO; own.len()];
        let mut index: Vec<Option<Poly>> = vec![None; of.len()];
        let mut dropped = false;
        for (j, label) in own.iter().enumerate() {
            let uses: Vec<usize> = (0..of.len()).filter(|e| map.index[*e].vars().contains(&j)).collect();
            let batch = other.contains(label) && c.out.contains(label);
            if batch && uses.is_empty() && (!map.shape[j].is(1) || constant(graph, x, DEPTH)) {
                dropped = true;
                continue;
            }
            let free = c.out.contains(label) && !other.contains(label);
            if free && uses.len() > 1 && merges(&map, of, j, &uses) {
                let mut parts = vec![];
                for e in uses {
                    index[e] = Some(Poly::var(shape.len()));
                    shape.push(of[e].clone());
                    parts.push((new(&mut labels)?, of[e].clone()));
                }
                split.push((*label, parts));
                continue;
            }
            vars[j] = Poly::var(shape.len());
            shape.push(map.shape[j].clone());
            labels.push(*label);
        }
        let read =
            |(e, i): (usize, Option<Poly>)| i.unwrap_or_else(|| map.index[e].subst_vars(&vars, &shape));
        let index: Vec<Poly> = index.into_iter().enumerate().map(read).collect();

        // Leading axes of extent 1 that the view drops; all other axes must be read directly.
        let front = (0..of.len()).take_while(|e| of[*e].is(1) && index[*e].is(0)).count();
        let rest = (front..of.len()).all(|e| index[e].as_var() == Some(e - front));
        let as_it_is = rest && shape.len() + front == of.len() && shape[..] == of[front..];
        let mut units = vec![];
        let before = *labels.first()?;
        let free = c.out.contains(own.first()?) && !other.contains(own.first()?);
        if as_it_is && front > 0 && free && !constant(graph, x, DEPTH) {
            let mut all = vec![];
            for _ in 0..front {
                units.push((new(&mut all)?, before));
            }
            all.append(&mut labels);
            labels = all;
        }
        if !dropped && split.is_empty() && units.is_empty() {
            return None;
        }
        let whole = as_it_is && units.len() == front;
        let view = (!whole).then_some(ViewMap { shape, index, fill: None });
        Some(Apart { x, view, labels, split, units })
    }

    /// The new product, and the view that merges its axes again.
    fn replace(self, graph: &mut Graph, n: NodeId, which: usize) -> Result<(NodeId, Option<NodeId>), String> {
        let node = graph.node(n).clone();
        let Op::Contract(c) = &node.op else { return Ok((n, None)) };
        let x = match self.view {
            Some(view) => graph.push(view.op(), &[self.x], &node.origin)?.into(),
            None => self.x,
        };
        let shape = graph.ty(n.into()).shape.clone();
        let (mut out, mut index) = (vec![], vec![]);
        for (p, label) in c.out.iter().enumerate() {
            let parts = match self.split.iter().find(|(l, _)| l == label) {
                Some((_, parts)) => parts.clone(),
                None => vec![(*label, shape[p].clone())],
            };
            let extents: Vec<Dim> = parts.iter().map(|(_, d)| d.clone()).collect();
            let at = match extents.len() {
                1 => vec![Poly::var(p)],
                _ => reshape_index(&extents, &shape[p..=p])
                    .iter()
                    .map(|i| i.subst_vars(&[Poly::var(p)], &shape))
                    .collect(),
            };
            for ((l, _), i) in parts.into_iter().zip(at) {
                for (u, _) in self.units.iter().filter(|(_, before)| *before == l) {
                    out.push(*u);
                    index.push(Poly::ZERO);
                }
                out.push(l);
                index.push(i);
            }
        }
        let (mut a, mut b) = (c.a.clone(), c.b.clone());
        *(if which == 0 { &mut a } else { &mut b }) = self.labels;
        let mut inputs = node.inputs.clone();
        inputs[which] = x;
        let changed = out != c.out;
        let made = graph.push(Op::Contract(Contract { a, b, out }), &inputs, &node.origin)?;
        let mut result = made;
        if changed {
            result = graph.push(Op::View { shape, index, fill: None }, &[made.into()], &node.origin)?;
        }
        graph.node_mut(result).names.clone_from(&node.names);
        graph.replace_uses(n.into(), result.into());
        Ok((made, changed.then_some(result)))
    }
}

/// Whether the axes `parts` of an operand of shape `of` are exactly axis `j` of the view in row-major order.
fn merges(map: &ViewMap, of: &[Dim], j: usize, parts: &[usize]) -> bool {
    let (mut stride, mut read) = (Poly::ONE, Poly::ZERO);
    for e in parts.iter().rev() {
        if map.index[*e].vars().len() != 1 {
            return false;
        }
        read = &read + &(&map.index[*e] * &stride);
        stride = &stride * &of[*e];
    }
    stride == map.shape[j] && read.subst(&|_| None, &map.shape) == Poly::var(j)
}

/// The most nodes between a value and the constants that it depends on.
const DEPTH: usize = 4;

/// Whether `v` depends on constants only, through at most `depth` views and maps.
fn constant(graph: &Graph, v: Value, depth: usize) -> bool {
    let node = graph.node(v.node);
    match &node.op {
        Op::Const(_) => true,
        Op::View { .. } | Op::Map { .. } => {
            depth > 0 && node.inputs.iter().all(|x| constant(graph, *x, depth - 1))
        }
        _ => false,
    }
}
