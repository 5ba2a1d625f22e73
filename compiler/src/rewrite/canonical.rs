//! Clean-ups without a search, which give equal computations the same form.
//!
//! - tensors without elements become fills without operands ([`super::empty`]);
//! - equal nodes are merged;
//! - views of views are composed, and identity views are removed;
//! - operands of maps that are only broadcast are read directly, because maps broadcast their operands;
//! - rank-0 constants move into the bodies that read them;
//! - expressions of constants are computed ([`super::fold`]);
//! - nodes on which no output depends are removed.

use super::empty;
use super::fold;
use super::views::ViewMap;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};
use wgfc_ir::tensor::{Data, Tensor};
use wgfc_ir::{Graph, Node, NodeId, Op, Scalar, ScalarFn, ScalarNode, Value};

/// The maximum size in bytes of constants that are compared by their bytes, which bounds the compile time.
const SMALL: usize = 256;

/// Cleans until nothing changes. The types of all remaining values are kept.
pub fn clean(graph: &mut Graph) -> Result<(), String> {
    loop {
        let mut changed = empty::remove(graph)?;
        changed |= views(graph);
        changed |= inline_scalars(graph);
        changed |= fold::constants(graph)?;
        changed |= common(graph)?;
        changed |= graph.remove_dead() > 0;
        if !changed {
            return Ok(());
        }
    }
}

pub(super) fn topo(graph: &Graph) -> Result<Vec<NodeId>, String> {
    graph.topo().map_err(|n| format!("the graph has a cycle through `{}`", graph.node(n).label()))
}

/// A hash of a node's operator and operands; `None` for nodes that are never merged.
fn hash(node: &Node) -> Option<u64> {
    let mut state = FxHasher::default();
    node.inputs.hash(&mut state);
    node.op.hash(&mut state);
    match &node.op {
        Op::Input | Op::If { .. } | Op::While { .. } | Op::Scan { .. } => return None,
        Op::Const(t) => match &t.data {
            Data::Absent => return None,
            _ if is_small(t) => t.bytes()?.hash(&mut state),
            _ => t.hash_place(&mut state),
        },
        _ => {}
    }
    Some(state.finish())
}

fn is_small(t: &Tensor) -> bool {
    t.byte_len().is_some_and(|l| l <= SMALL)
}

/// Whether two nodes with the same hash compute the same values.
fn same(a: &Node, b: &Node) -> bool {
    let ops = match (&a.op, &b.op) {
        (Op::Const(a), Op::Const(b)) if !is_small(a) => {
            a.dtype == b.dtype && a.shape == b.shape && a.shares_bytes(b)
        }
        (a, b) => a == b,
    };
    ops && a.inputs == b.inputs
}

/// Merges nodes with the same operator and operands (common subexpression elimination).
fn common(graph: &mut Graph) -> Result<bool, String> {
    let mut seen: FxHashMap<u64, Vec<NodeId>> = FxHashMap::default();
    let mut changed = false;
    for n in topo(graph)? {
        let node = graph.node(n);
        let Some(hash) = hash(node) else { continue };
        let before = seen.entry(hash).or_default();
        let Some(first) = before.iter().copied().find(|m| same(graph.node(*m), node)) else {
            before.push(n);
            continue;
        };
        let ports = node.outputs.len() as u32;
        // Merging with a node that is already dead is not a change.
        for port in 0..ports {
            let (old, new) = (Value { node: n, port }, Value { node: first, port });
            let used = graph.is_output(old) || !graph.uses(old).is_empty();
            changed |= used;
            graph.replace_uses(old, new);
        }
        for i in 0..ports as usize {
            let name = graph.node(n).names.get(i).cloned().flatten();
            let names = &mut graph.node_mut(first).names;
            if let Some(slot) = names.get_mut(i)
                && slot.is_none()
            {
                *slot = name;
            }
        }
    }
    Ok(changed)
}

/// Composes views, removes identities, and lets maps broadcast their operands.
fn views(graph: &mut Graph) -> bool {
    let mut changed = false;
    let Ok(order) = topo(graph) else { return false };
    for n in order {
        if let Op::Map { .. } = graph.node(n).op {
            for (i, v) in graph.node(n).inputs.clone().into_iter().enumerate() {
                let view = graph.node(v.node);
                let Some(map) = ViewMap::of(&view.op) else { continue };
                let x = view.inputs[0];
                if map.fill.is_none() && map.is_broadcast(&graph.ty(x).shape) {
                    graph.set_input(n, i, x);
                    changed = true;
                }
            }
            continue;
        }
        let Some(outer) = ViewMap::of(&graph.node(n).op) else { continue };
        let x = graph.node(n).inputs[0];
        let of = graph.ty(x).shape.clone();
        if outer.is_identity(&of) {
            let v = Value::from(n);
            if graph.is_output(v) || !graph.uses(v).is_empty() {
                name_after(graph, x, n);
                graph.replace_uses(v, x);
                changed = true;
            }
            continue;
        }
        let tight = outer.clone().tightened(&of);
        if tight != outer {
            graph.node_mut(n).op = tight.clone().op();
            changed = true;
        }
        let inner = graph.node(x.node);
        let Some(map) = ViewMap::of(&inner.op) else { continue };
        let from = inner.inputs[0];
        let of = graph.ty(from).shape.clone();
        if let Some(both) = map.then(&tight, &of) {
            graph.node_mut(n).op = both.op();
            graph.set_input(n, 0, from);
            changed = true;
        }
    }
    changed
}

/// Gives `x` the model's name of the value of `n`, which `x` replaces.
fn name_after(graph: &mut Graph, x: Value, n: NodeId) {
    let name = graph.node(n).names.first().cloned().flatten();
    if let Some(slot) = graph.node_mut(x.node).names.get_mut(x.port as usize)
        && slot.is_none()
    {
        *slot = name;
    }
}

/// Inlines constants of one element into the bodies that read them, if their rank does not matter.
fn inline_scalars(graph: &mut Graph) -> bool {
    let mut changed = false;
    for n in graph.node_ids().collect::<Vec<_>>() {
        let node = graph.node(n);
        let Op::Map { body, shape } = &node.op else { continue };
        let values: Vec<Option<Scalar>> = node.inputs.iter().map(|v| one_element(graph, *v)).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let mut inputs = vec![];
        let mut to: Vec<ScalarNode> = vec![];
        for (v, c) in node.inputs.iter().zip(&values) {
            to.push(match c {
                Some(c) => ScalarNode::Const(*c),
                None => {
                    inputs.push(*v);
                    ScalarNode::Arg(inputs.len() as u32 - 1)
                }
            });
        }
        let op = Op::Map { body: with_args(body, &to), shape: shape.clone() };
        let origin = node.origin.clone();
        let names = node.names.clone();
        let Ok(m) = graph.push(op, &inputs, &origin) else { continue };
        graph.node_mut(m).names = names;
        graph.replace_uses(n.into(), m.into());
        changed = true;
    }
    graph.remove_dead();
    changed
}

/// The element of a constant with a single element.
pub(super) fn one_element(graph: &Graph, v: Value) -> Option<Scalar> {
    match &graph.node(v.node).op {
        Op::Const(t) => single(t),
        _ => None,
    }
}

fn single(t: &Tensor) -> Option<Scalar> {
    (t.numel() == 1).then(|| t.scalars()?.first().copied()).flatten()
}

/// `body` with argument `i` replaced by node `to[i]`; equal nodes are merged.
fn with_args(body: &ScalarFn, to: &[ScalarNode]) -> ScalarFn {
    let mut out = ScalarFn::default();
    let mut at: Vec<u32> = vec![];
    let last = body.nodes.len().saturating_sub(1);
    for (i, n) in body.nodes.iter().enumerate() {
        let r = |j: &u32| at.get(*j as usize).copied().unwrap_or(*j);
        let n = match n {
            ScalarNode::Arg(a) => to.get(*a as usize).cloned().unwrap_or_else(|| n.clone()),
            ScalarNode::Const(_) | ScalarNode::Index(_) => n.clone(),
            ScalarNode::Unary(op, a) => ScalarNode::Unary(*op, r(a)),
            ScalarNode::Binary(op, a, b) => ScalarNode::Binary(*op, r(a), r(b)),
            ScalarNode::Select(c, a, b) => ScalarNode::Select(r(c), r(a), r(b)),
            ScalarNode::Cast(t, a) => ScalarNode::Cast(*t, r(a)),
            ScalarNode::Bitcast(t, a) => ScalarNode::Bitcast(*t, r(a)),
        };
        // The result must be the last node, even if it equals an earlier one.
        at.push(if i == last && out.nodes.contains(&n) && out.nodes.last() != Some(&n) {
            out.nodes.push(n);
            out.nodes.len() as u32 - 1
        } else {
            out.push(n)
        });
    }
    out
}
