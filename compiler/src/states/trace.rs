//! Traces outputs back to inputs that they carry on.

use super::{How, Pair};
use std::collections::BTreeSet;
use wgfc_ir::{Atom, Border, Dim, GatherAxis, Graph, Growth, NodeId, Op, Poly, ScalarNode, Value};

/// The input that `output` carries on, and how.
pub(super) fn trace(graph: &Graph, border: &Border) -> Option<Pair> {
    let output = border.value;
    let found = appended(graph, output).or_else(|| inserted(graph, output));
    let found = found.or_else(|| written(graph, output)).or_else(|| slid(graph, output));
    let found = found.or_else(|| Some((replaced(graph, output)?, How::Replace)));
    let (input, how) = found?;
    Some(Pair { input, output: border.name.clone(), how })
}

/// A concatenation of an input and new values, possibly with permuted axes, undone afterwards.
fn appended(graph: &Graph, output: Value) -> Option<(Value, How)> {
    let (v, to_output) = moved(graph, output);
    let node = graph.node(v.node);
    let (Op::Concat { axis }, [past, new]) = (&node.op, node.inputs.as_slice()) else { return None };
    // `m[d]` is the axis of the view's result that is axis `d` of its operand.
    let (input, axes) = moved(graph, *past);
    let back: Vec<usize> = axes.iter().map(|a| to_output[*a]).collect();
    let along = axes.iter().position(|a| a == axis)?;
    let Some(Atom::Sym(length)) = graph.ty(input).shape[along].as_atom() else { return None };
    let by = graph.ty(*new).shape[*axis].clone();
    let fits = is_input(graph, input)
        && back.iter().enumerate().all(|(d, b)| d == *b)
        && !by.symbols().contains(length)
        && graph.ty(input).shape.iter().filter(|d| d.symbols().contains(length)).count() == 1;
    let growth = Growth { axis: along, length: length.clone(), by };
    fits.then_some((input, How::Append { node: v.node, axes, growth }))
}

/// Scatters into an input, possibly with permuted axes, undone afterwards.
fn written(graph: &Graph, output: Value) -> Option<(Value, How)> {
    let (mut v, to_output) = moved(graph, output);
    let mut nodes = vec![];
    while let Op::Scatter { reduce: None, .. } = graph.node(v.node).op {
        nodes.push(v.node);
        v = graph.node(v.node).inputs[0];
    }
    let (input, axes) = moved(graph, v);
    let back = axes.iter().map(|a| to_output[*a]).eq(0..axes.len());
    let fits = !nodes.is_empty() && back && is_input(graph, input) && graph.ty(input) == graph.ty(output);
    let pool = if fits { pool(graph, input, &nodes, &axes) } else { None };
    fits.then_some((input, How::Write { nodes, axes, pool }))
}

/// The axis of an input along which all elements are written and read at positions that are data, if its extent is a symbol that
/// nothing else depends on: the input is a pool, of which a session decides the size.
fn pool(graph: &Graph, input: Value, nodes: &[NodeId], axes: &[usize]) -> Option<Growth> {
    let shape = &graph.ty(input).shape;
    let mut open = shape.iter().enumerate().filter(|(_, d)| d.as_const().is_none());
    let (axis, Some(Atom::Sym(length)), None) = open.next().map(|(i, d)| (i, d.as_atom(), open.next()))?
    else {
        return None;
    };
    let by_data = |at: &[GatherAxis]| matches!(at.get(axes[axis]), Some(GatherAxis::Data { .. }));
    let written = nodes.iter().all(|n| match &graph.node(*n).op {
        Op::Scatter { index, .. } => by_data(index),
        _ => false,
    });
    let moves = |n: NodeId| matches!(graph.node(n).op, Op::Scatter { .. } | Op::Gather { .. });
    let alone = graph.node_ids().all(|n| {
        let node = graph.node(n);
        let depends = node.outputs.iter().any(|t| t.shape.iter().any(|d| d.symbols().contains(length)));
        let stored = matches!(node.op, Op::Input | Op::Scatter { .. });
        let readers = || graph.uses(n.into());
        !depends || stored && node.outputs.len() == 1 && readers().iter().all(|(r, i)| *i == 0 && moves(*r))
    });
    let growth = Growth { axis, length: length.clone(), by: Dim::ZERO };
    (written && alone).then_some(growth)
}

/// An output of an input's type that keeps some of its elements: selected by a condition, or shifted and joined with new values.
fn replaced(graph: &Graph, output: Value) -> Option<Value> {
    let node = graph.node(output.node);
    let kept = |v: Value| is_input(graph, v) && graph.ty(v) == graph.ty(output);
    match &node.op {
        Op::Map { body, .. } => {
            let Some(ScalarNode::Select(_, a, b)) = body.nodes.last() else { return None };
            let arm = |i: u32| match body.nodes.get(i as usize) {
                Some(ScalarNode::Arg(a)) => node.inputs.get(*a as usize).copied(),
                _ => None,
            };
            let (a, b) = (arm(*a)?, arm(*b)?);
            let new = |v: Value| !matches!(graph.node(v.node).op, Op::Const(_)) && !is_input(graph, v);
            [(a, b), (b, a)].into_iter().find(|(old, other)| kept(*old) && new(*other)).map(|p| p.0)
        }
        Op::View { index, fill: None, .. } => {
            let joined = graph.node(node.inputs[0].node);
            let Op::Concat { axis } = joined.op else { return None };
            (along(index, axis).is_some() && kept(joined.inputs[0])).then_some(joined.inputs[0])
        }
        Op::Concat { axis } => {
            let front = graph.node(node.inputs[0].node);
            let Op::View { index, fill: None, .. } = &front.op else { return None };
            (along(index, *axis).is_some() && kept(front.inputs[0])).then_some(front.inputs[0])
        }
        _ => None,
    }
}

/// The shift of an index map along one axis, if it does nothing else.
fn along(index: &[Poly], axis: usize) -> Option<Poly> {
    let others = index.iter().enumerate().all(|(d, p)| d == axis || p.as_var() == Some(d));
    let offset = index.get(axis)? - &Poly::var(axis);
    (others && offset.vars().is_empty()).then_some(offset)
}

/// An input that is extended by new values up to the length of a window, and then drops its front.
fn slid(graph: &Graph, output: Value) -> Option<(Value, How)> {
    let node = graph.node(output.node);
    let Op::View { shape, index, fill: None } = &node.op else { return None };
    let joined = graph.node(node.inputs[0].node);
    let (Op::Concat { axis }, [input, _]) = (&joined.op, joined.inputs.as_slice()) else { return None };
    let total = graph.ty(node.inputs[0]).shape[*axis].clone();
    let start = along(index, *axis)?;
    let Some(Atom::Max(a, b)) = start.as_atom() else { return None };
    let beyond = if a.is(0) { b } else { a };
    let size = (&total - beyond).as_const().filter(|n| *n > 0 && i32::try_from(*n).is_ok())?;
    let before = &graph.ty(*input).shape;
    let Some(Atom::Sym(length)) = before[*axis].as_atom() else { return None };
    let rest = &total - &start;
    let fits = (a.is(0) || b.is(0))
        && is_input(graph, *input)
        && (shape[*axis] == rest || shape[*axis] == rest.max_of(&Dim::ZERO, &[]))
        && before.iter().enumerate().all(|(d, e)| d == *axis || shape.get(d) == Some(e))
        && before.iter().filter(|d| d.symbols().contains(length)).count() == 1;
    let by = &shape[*axis] - &before[*axis];
    let growth = Growth { axis: *axis, length: length.clone(), by };
    fits.then_some((*input, How::Window { growth, size }))
}

/// A scatter into a padded input; the padding may have been cleared afterwards.
fn inserted(graph: &Graph, output: Value) -> Option<(Value, How)> {
    let mut v = output;
    if let Op::Map { body, shape } = &graph.node(v.node).op
        && let Some(ScalarNode::Select(_, then, _)) = body.nodes.last()
        && let Some(ScalarNode::Arg(a)) = body.nodes.get(*then as usize)
        && let Some(kept) = graph.node(v.node).inputs.get(*a as usize)
        && graph.ty(*kept).shape == *shape
    {
        v = *kept;
    }
    let node = graph.node(v.node);
    let Op::Scatter { reduce: None, index: places } = &node.op else { return None };
    let room = graph.node(node.inputs[0].node);
    let Op::View { shape, index, fill: Some(_) } = &room.op else { return None };
    let input = room.inputs[0];
    let before = &graph.ty(input).shape;
    let same = is_input(graph, input) && index.iter().enumerate().all(|(d, p)| p.as_var() == Some(d));
    let mut longer = (0..before.len()).filter(|d| shape.get(*d) != Some(&before[*d]));
    let (Some(axis), None, true) = (longer.next(), longer.next(), same) else { return None };
    let Some(Atom::Sym(length)) = before[axis].as_atom() else { return None };
    let by = &shape[axis] - &before[axis];
    let fits = !by.symbols().contains(length)
        && places.iter().enumerate().all(|(d, p)| matches!(p, GatherAxis::Data { .. }) == (d == axis))
        && before.iter().filter(|d| d.symbols().contains(length)).count() == 1
        && graph.uses(input).len() == 1;
    let growth = Growth { axis, length: length.clone(), by };
    fits.then_some((input, How::Insert { node: v.node, growth }))
}

fn is_input(graph: &Graph, v: Value) -> bool {
    graph.inputs.iter().any(|b| b.value == v)
}

/// The operand of a view `v` that only permutes axes, and for each of its axes the axis of `v`.
fn moved(graph: &Graph, v: Value) -> (Value, Vec<usize>) {
    let node = graph.node(v.node);
    if let Op::View { shape, index, fill: None } = &node.op {
        let from = &graph.ty(node.inputs[0]).shape;
        if let Some(axes) = permutation(from, shape, index) {
            return (node.inputs[0], axes);
        }
    }
    (v, (0..graph.ty(v).rank()).collect())
}

/// For each axis of the operand the axis of the result, if the view only permutes axes.
fn permutation(from: &[Dim], to: &[Dim], index: &[Poly]) -> Option<Vec<usize>> {
    if from.len() != to.len() {
        return None;
    }
    let mut axes: Vec<Option<usize>> = index.iter().map(Poly::as_var).collect();
    let mut free = (0..to.len()).filter(|i| to[*i].is(1) && !axes.contains(&Some(*i))).collect::<Vec<_>>();
    free.reverse();
    for (a, (p, d)) in axes.iter_mut().zip(index.iter().zip(from)) {
        if p.is(0) && d.is(1) {
            *a = free.pop();
        }
    }
    let axes: Vec<usize> = axes.into_iter().collect::<Option<_>>()?;
    let distinct: BTreeSet<usize> = axes.iter().copied().collect();
    (distinct.len() == axes.len() && axes.iter().zip(from).all(|(a, d)| to.get(*a) == Some(d)))
        .then_some(axes)
}
