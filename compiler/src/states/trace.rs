//! Traces outputs back to inputs that they carry on.

use super::{How, Pair};
use std::collections::BTreeSet;
use std::sync::Arc;
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

/// The axis of an input along which all elements are written at positions that are data, if its extent is a symbol and the only open one:
/// the input may be a pool, of which a session decides the size. That nothing else may depend on the symbol is for [`sizes`] to tell.
fn pool(graph: &Graph, input: Value, nodes: &[NodeId], axes: &[usize]) -> Option<Growth> {
    let shape = &graph.ty(input).shape;
    let mut open = shape.iter().enumerate().filter(|(_, d)| d.as_const().is_none());
    let (Some((axis, d)), None) = (open.next(), open.next()) else { return None };
    let Some(Atom::Sym(length)) = d.as_atom() else { return None };
    let written = nodes.iter().all(|n| match &graph.node(*n).op {
        Op::Scatter { index, .. } => matches!(index.get(axes[axis]), Some(GatherAxis::Data { .. })),
        _ => false,
    });
    written.then(|| Growth { axis, length: length.clone(), by: Dim::ZERO })
}

/// The symbols on which anything depends but the extents of tensors that are only written into and looked up.
pub(super) fn sizes(graph: &Graph) -> BTreeSet<Arc<str>> {
    let mut all = BTreeSet::new();
    for n in graph.node_ids() {
        let node = graph.node(n);
        all.extend(node.op.polys().into_iter().flat_map(Poly::symbols));
        let moved = |(reader, operand): (NodeId, usize)| {
            operand == 0 && matches!(graph.node(reader).op, Op::Scatter { .. } | Op::Gather { .. })
        };
        let stored = matches!(node.op, Op::Input | Op::Scatter { .. });
        if !stored || !graph.uses(n.into()).into_iter().all(moved) {
            all.extend(node.outputs.iter().flat_map(|t| t.shape.iter().flat_map(Dim::symbols)));
        }
    }
    all
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

#[cfg(test)]
mod tests {
    use crate::options::States;

    /// A graph in which rows of a pool are written and looked up; `mask` is its last result.
    fn pool(mask: &str) -> String {
        format!(
            "graph (pool: %0, x: %1, at: %2) -> (after: %3, y: %4, mask: %5) {{
              %0 = input : f32[pages, 4] as \"pool\"
              %1 = input : f32[n, 4] as \"x\"
              %2 = input : i32[n] as \"at\"
              %3 = scatter set writes [$2[%0], %1] (%0, %1, %2) : f32[pages, 4] as \"after\"
              %4 = gather [n, 4] reads [$1[%0], %1] (%3, %2) : f32[n, 4] as \"y\"
              %5 = {mask} as \"mask\"
            }}"
        )
    }

    #[test]
    fn a_session_decides_the_size_of_a_pool_alone() {
        let auto = States::Auto { capacity: None };
        let mut graph = wgfc_ir::text::parse(&pool("map [n, 4] { exp(a0) } (%1) : f32[n, 4]")).unwrap();
        crate::states::introduce(&mut graph, &auto).unwrap();
        let text = graph.to_string();
        assert!(text.contains("state pool: %0 -> %3 axis 0 from pages by 0"), "{text}");
        assert!(text.contains("%0 = input : f32[capacity, 4] as \"pool\""), "{text}");
        // A size on which other values depend is the model's.
        for mask in ["map [pages] { index(%0) } () : i32[pages]", "map [n] { index(pages) } () : i32[n]"] {
            let mut graph = wgfc_ir::text::parse(&pool(mask)).unwrap();
            let e = crate::states::introduce(&mut graph, &auto).unwrap_err().to_string();
            assert!(e.contains("the states' sizes depend on `pages`"), "{mask}: {e}");
        }
    }
}
