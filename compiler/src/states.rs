//! Inputs and outputs that only carry a tensor from run to run become states of the graph, in addition to existing
//! ones.
//!
//! ```text
//! present = concat(past, new)  →  after = scatter(cache, new) at past;  present = after[.., past + seq, ..]
//! present = scatter(padded past, new) at starts  →  after = scatter(cache, new) at starts;  present as above
//! updated = scatter(cache, …)  →  after = scatter(cache, …)
//! updated = scatter(pool, …)  →  after = scatter(pool, …), whose open extent is the capacity
//! updated = select(…, new, cache)  →  after = updated
//! updated = concat(cache, new)[seq..]  →  after = updated
//! present = concat(past, new)[max(0, past + seq - window)..]  →  after = present, as long as the window
//! ```
//!
//! The first form is that of exported decoders whose cache grows; the state has the capacity as its extent where
//! `past` had the number of previous positions, which remains a symbol of the graph. In the second form sequences have
//! individual lengths, and `past` is that of the longest. The third and the fifth form have a cache of fixed size. In the
//! fourth an extent is open that only positions from data index: a run adds nothing to it.
//! The last two keep a window of the latest positions; each run writes the whole state anew in the order of positions,
//! so that masks by position stay valid. Transpositions between the input and the concat are recognised if they are
//! undone before the output. Readers of the past and the present read views of the state. The capacity is a constant,
//! or a symbol whose value the session sets.

mod narrow;
mod trace;

pub use narrow::{GROUP, narrow};

use crate::options::States;
use crate::rewrite::canonical;
use crate::{Diagnostic, Errors};
use std::collections::BTreeSet;
use std::sync::Arc;
use trace::trace;
use wgfc_ir::{
    BinaryOp, Builder, DType, Dim, GatherAxis, Graph, Growth, NodeId, Op, Poly, Scalar, ScalarFn, ScalarNode,
    State, Value,
};

/// The relation between an output and the input that it continues.
#[derive(Clone, Debug)]
enum How {
    /// `node` concatenates the input, with its axes permuted, and new elements.
    Append {
        node: NodeId,
        /// Axis `d` of the input is axis `axes[d]` of the concat.
        axes: Vec<usize>,
        growth: Growth,
    },
    /// `node` writes new elements into the input, which has been padded along an axis.
    Insert { node: NodeId, growth: Growth },
    /// `nodes`, the last one first, write into the input; axis `d` of the input is axis `axes[d]` of theirs.
    Write {
        nodes: Vec<NodeId>,
        axes: Vec<usize>,
        /// The axis of open extent of a pool.
        pool: Option<Growth>,
    },
    /// The output is the end of the concatenation of the input and new elements, at most `size` positions.
    Window { growth: Growth, size: i64 },
    /// The output has the type of the input.
    Replace,
}

impl How {
    /// The axis along which the state is a pool, where it is one.
    fn pool(&mut self) -> Option<&mut Option<Growth>> {
        match self {
            How::Write { pool, .. } if pool.is_some() => Some(pool),
            _ => None,
        }
    }

    fn growth(&self) -> Option<&Growth> {
        match self {
            How::Append { growth, .. } | How::Insert { growth, .. } | How::Window { growth, .. } => {
                Some(growth)
            }
            How::Write { pool, .. } => pool.as_ref(),
            How::Replace => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Pair {
    input: Value,
    /// The name of the output that becomes the new contents of the state.
    output: Arc<str>,
    how: How,
}

/// Makes states of the pairs that `states` requests; their inputs and outputs are removed.
///
/// # Errors
/// If nothing is found, a name does not exist, a pair cannot be a state, or a size is not fixed.
pub fn introduce(graph: &mut Graph, states: &States) -> Result<(), Errors> {
    let (capacity, named) = match states {
        States::None => return Ok(()),
        States::Auto { capacity } => (*capacity, None),
        States::Named { pairs, capacity } => (*capacity, Some(pairs)),
    };
    let capacity = match capacity {
        None => Dim::sym(&unused(graph, "capacity")),
        Some(n) => Dim::from(
            i64::try_from(n).ok().filter(|c| (1..=i64::from(i32::MAX)).contains(c)).ok_or_else(|| {
                Diagnostic::model("the capacity of the states must be between 1 and 2147483647")
                    .help("give another --state-capacity")
            })?,
        ),
    };
    canonical::clean(graph).map_err(Diagnostic::internal)?;
    let mut pairs: Vec<Pair> = match named {
        None => found(graph)?,
        Some(names) => names.iter().map(|(i, o)| by_name(graph, i, o)).collect::<Result<_, _>>()?,
    };
    let mut pools: Vec<&mut Option<Growth>> = pairs.iter_mut().filter_map(|p| p.how.pool()).collect();
    if !pools.is_empty() {
        let sizes = trace::sizes(graph);
        pools.iter_mut().for_each(|pool| **pool = pool.take().filter(|g| !sizes.contains(&g.length)));
    }
    check(graph, &pairs)?;
    for p in &pairs {
        apply(graph, p, &capacity).map_err(Diagnostic::internal)?;
    }
    graph.remove_dead();
    Ok(())
}

/// A symbol that does not occur in the shape of an input or a state: `name`, with a number appended if it is taken.
fn unused(graph: &Graph, name: &str) -> Arc<str> {
    let given = graph.inputs.iter().map(|b| b.value).chain(graph.states.iter().map(|s| s.before));
    let taken: BTreeSet<Arc<str>> = given.flat_map(|v| &graph.ty(v).shape).flat_map(Dim::symbols).collect();
    let names = (1..).map(|i| Arc::from(format!("{name}.{i}")));
    let mut names = std::iter::once(Arc::from(name)).chain(names);
    names.find(|n| !taken.contains(n)).unwrap_or_else(|| name.into())
}

/// All pairs that are recognised. Of pairs whose lengths are the same symbol, only those that grow alike are included.
fn found(graph: &Graph) -> Result<Vec<Pair>, Diagnostic> {
    let mut pairs: Vec<Pair> = vec![];
    for o in &graph.outputs {
        let Some(p) = trace(graph, o) else { continue };
        let clashes = pairs.iter().any(|q| q.input == p.input || !alike(q, &p));
        if !clashes {
            pairs.push(p);
        }
    }
    if pairs.is_empty() && graph.states.is_empty() {
        return Err(Diagnostic::model(
            "no state was found: no output of the model is an input with something appended along a symbolic axis, or with elements replaced",
        )
        .help("name the pairs with --state INPUT=OUTPUT"));
    }
    Ok(pairs)
}

fn alike(a: &Pair, b: &Pair) -> bool {
    match (a.how.growth(), b.how.growth()) {
        (Some(a), Some(b)) => a.length != b.length || a.by == b.by,
        _ => true,
    }
}

fn by_name(graph: &Graph, input: &str, output: &str) -> Result<Pair, Diagnostic> {
    let find = |what: &str, list: &[wgfc_ir::Border], name: &str| {
        list.iter().find(|b| *b.name == *name).cloned().ok_or_else(|| {
            let names: Vec<String> = list.iter().map(|b| format!("\"{}\"", b.name)).collect();
            Diagnostic::model(format!("the model has no {what} \"{name}\" to make a state of"))
                .help(format!("its {what}s are {}", names.join(", ")))
        })
    };
    let from = find("input", &graph.inputs, input)?.value;
    let border = find("output", &graph.outputs, output)?;
    if let Some(p) = trace(graph, &border).filter(|p| p.input == from) {
        return Ok(p);
    }
    let to = border.value;
    if graph.ty(from) == graph.ty(to) {
        return Ok(Pair { input: from, output: border.name, how: How::Replace });
    }
    Err(Diagnostic::model(format!(
        "input \"{input}\" and output \"{output}\" do not form a state: the output, {}, is not the input, {}, with something appended along a symbolic axis, and not of its type",
        graph.ty(to),
        graph.ty(from)
    ))
    .help("name an output that continues this input; without --state pairs are found by structure"))
}

/// Checks that all pairs together can be states.
fn check(graph: &Graph, pairs: &[Pair]) -> Result<(), Errors> {
    let mut errors = vec![];
    let mut open: BTreeSet<Arc<str>> = BTreeSet::new();
    for (i, p) in pairs.iter().enumerate() {
        let name = name(graph, p.input);
        if pairs[..i].iter().any(|q| q.input == p.input || q.output == p.output) {
            let d = Diagnostic::model(format!("state \"{name}\" is named twice"));
            errors.push(d.help("give one --state for each input"));
        }
        if graph.states.iter().any(|s| s.name == name) {
            let d = Diagnostic::model(format!("the model has a state \"{name}\" and an input of that name"));
            errors.push(d.help("give the input another name, or leave it an input"));
        }
        if let Some(q) = pairs[..i].iter().find(|q| !alike(q, p)) {
            let other = self::name(graph, q.input);
            let d = Diagnostic::model(format!(
                "states \"{other}\" and \"{name}\" have the same length and grow differently"
            ));
            errors.push(d.help("make a state of one of them only, with --state"));
        }
        let along = p.how.growth().map(|g| g.axis);
        let shape = graph.ty(p.input).shape.iter().enumerate();
        open.extend(shape.filter(|(d, _)| Some(*d) != along).flat_map(|(_, d)| d.symbols()));
    }
    if !open.is_empty() {
        let flags: Vec<String> = open.iter().map(|s| format!("--dim {s}=1")).collect();
        errors.push(
            Diagnostic::model(format!(
                "the states' sizes depend on {}, and a state's size must be fixed",
                open.iter().map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ")
            ))
            .help(format!("fix it, as with {}", flags.join(" "))),
        );
    }
    if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
}

fn name(graph: &Graph, input: Value) -> Arc<str> {
    graph.inputs.iter().find(|b| b.value == input).map_or_else(|| "?".into(), |b| b.name.clone())
}

fn apply(graph: &mut Graph, p: &Pair, capacity: &Dim) -> Result<(), String> {
    let name = name(graph, p.input);
    let at = graph.outputs.iter().position(|b| b.name == p.output).ok_or("an output is gone")?;
    let output = graph.outputs.remove(at);
    graph.inputs.retain(|b| b.value != p.input);
    let (after, growth) = match &p.how {
        How::Replace => (output.value, None),
        How::Write { nodes, axes, pool } => {
            if let Some(g) = pool {
                let along = axes[g.axis];
                graph.node_mut(p.input.node).outputs[0].shape[g.axis] = capacity.clone();
                nodes.iter().for_each(|n| graph.node_mut(*n).outputs[0].shape[along] = capacity.clone());
            }
            (write(graph, p.input, output.value, nodes, axes)?, pool.clone())
        }
        How::Window { growth, size } => {
            (window(graph, p.input, output.value, growth, *size)?, Some(growth.clone()))
        }
        How::Append { node, axes, growth } => {
            (append(graph, p.input, *node, axes, growth, capacity)?, Some(growth.clone()))
        }
        How::Insert { node, growth } => {
            (insert(graph, p.input, *node, growth, capacity)?, Some(growth.clone()))
        }
    };
    graph.states.push(State { name, before: p.input, after, growth, initial: None });
    Ok(())
}

/// Gives `past` the extent of the capacity, writes the elements that `concat` appends into it, and makes views of the
/// old and the new contents. Returns the state's new contents.
fn append(
    graph: &mut Graph,
    past: Value,
    concat: NodeId,
    axes: &[usize],
    growth: &Growth,
    capacity: &Dim,
) -> Result<Value, String> {
    let length = Dim::sym(&growth.length);
    let before = graph.ty(past).shape.clone();
    let mut present = before.clone();
    present[growth.axis] = &length + &growth.by;
    let mut new_shape = before.clone();
    new_shape[growth.axis] = growth.by.clone();
    let readers = graph.uses(past);
    graph.node_mut(past.node).outputs[0].shape[growth.axis] = capacity.clone();

    let node = graph.node(concat);
    let (new, origin) = (node.inputs[1], node.origin.clone());
    let label = origin.first().cloned().unwrap_or_else(|| "state".into());
    let other: Vec<_> = readers.into_iter().filter(|(n, _)| *n != concat).collect();
    let mut b = Builder::new(graph, &label);
    b.origin = origin;
    let identity: Vec<Poly> = (0..before.len()).map(Poly::var).collect();
    // Maps the axes of the concat to those of the state, and back.
    let mut to_state: Vec<Poly> = vec![Poly::ZERO; axes.len()];
    let mut joined: Vec<Dim> = present.clone();
    for (d, a) in axes.iter().enumerate() {
        to_state[*a] = Poly::var(d);
        joined[*a] = present[d].clone();
    }
    let to_concat: Vec<Poly> = axes.iter().map(|a| Poly::var(*a)).collect();
    let new = b.view(new, new_shape, to_state)?;
    let mut index: Vec<GatherAxis> = identity.iter().cloned().map(GatherAxis::Affine).collect();
    index[growth.axis] = GatherAxis::Affine(&identity[growth.axis] + &length);
    let after = b.push(Op::Scatter { reduce: None, index }, &[past, new])?;
    let view = b.view(after, joined, to_concat)?;
    if !other.is_empty() {
        let old = b.view(past, before, identity)?;
        for (n, i) in other {
            graph.set_input(n, i, old);
        }
    }
    graph.replace_uses(concat.into(), view);
    Ok(after)
}

/// Gives `past` the extent of the capacity, lets `scatter` write into it, and makes a view of the new contents.
/// Returns the state's new contents.
fn insert(
    graph: &mut Graph,
    past: Value,
    scatter: NodeId,
    growth: &Growth,
    capacity: &Dim,
) -> Result<Value, String> {
    let present = graph.ty(scatter.into()).shape.clone();
    graph.node_mut(past.node).outputs[0].shape[growth.axis] = capacity.clone();
    let node = graph.node(scatter);
    let (op, origin) = (node.op.clone(), node.origin.clone());
    let mut operands = node.inputs.clone();
    operands[0] = past;
    let label = origin.first().cloned().unwrap_or_else(|| "state".into());
    let mut b = Builder::new(graph, &label);
    b.origin = origin;
    for at in &mut operands[2..] {
        *at = inside(&mut b, *at, &present[growth.axis])?;
    }
    let after = b.push(op, &operands)?;
    let identity = (0..present.len()).map(Poly::var).collect();
    let view = b.view(after, present, identity)?;
    graph.replace_uses(scatter.into(), view);
    Ok(after)
}

/// Converts positions in an axis of extent `n` to positions in a longer axis: negative ones are counted from the
/// front, and those out of range stay out of range.
fn inside(b: &mut Builder<'_>, at: Value, n: &Dim) -> Result<Value, String> {
    let dtype = b.dtype(at);
    let mut f = ScalarFn::default();
    let x = f.push(ScalarNode::Arg(0));
    let n = f.push(ScalarNode::Index(n.clone()));
    let n = if dtype == DType::I32 { n } else { f.push(ScalarNode::Cast(dtype, n)) };
    let zero = f.push(ScalarNode::Const(Scalar::from_i64(dtype, 0)));
    let outside = f.push(ScalarNode::Const(Scalar::from_i64(dtype, i32::MIN.into())));
    let negative = f.push(ScalarNode::Binary(BinaryOp::Lt, x, zero));
    let from_end = f.push(ScalarNode::Binary(BinaryOp::Add, x, n));
    let place = f.push(ScalarNode::Select(negative, from_end, x));
    let low = f.push(ScalarNode::Binary(BinaryOp::Ge, place, zero));
    let high = f.push(ScalarNode::Binary(BinaryOp::Lt, place, n));
    let both = f.push(ScalarNode::Binary(BinaryOp::And, low, high));
    f.push(ScalarNode::Select(both, place, outside));
    b.map(f, &[at])
}

/// Lets the scatters write into the state in its own axis order. Returns its new contents.
fn write(
    graph: &mut Graph,
    input: Value,
    output: Value,
    nodes: &[NodeId],
    axes: &[usize],
) -> Result<Value, String> {
    if axes.iter().copied().eq(0..axes.len()) {
        return Ok(output);
    }
    let shape = graph.ty(nodes[0].into()).shape.clone();
    let mut after = input;
    for n in nodes.iter().rev() {
        let node = graph.node(*n);
        let Op::Scatter { reduce, index } = &node.op else { continue };
        let index = axes.iter().map(|a| index[*a].clone()).collect();
        let (op, origin) = (Op::Scatter { reduce: *reduce, index }, node.origin.clone());
        let mut operands = node.inputs.clone();
        operands[0] = after;
        let label = origin.first().cloned().unwrap_or_else(|| "state".into());
        let mut b = Builder::new(graph, &label);
        b.origin = origin;
        after = b.push(op, &operands)?;
        if n == &nodes[0] {
            let view = b.view(after, shape.clone(), axes.iter().map(|a| Poly::var(*a)).collect())?;
            graph.replace_uses(nodes[0].into(), view);
        }
    }
    Ok(after)
}

/// Gives `past` the extent of the window. Returns the state's new contents: the present positions followed by unused
/// ones.
fn window(
    graph: &mut Graph,
    past: Value,
    present: Value,
    growth: &Growth,
    size: i64,
) -> Result<Value, String> {
    let before = graph.ty(past).shape.clone();
    let mut room = before.clone();
    room[growth.axis] = size.into();
    let readers = graph.uses(past);
    graph.node_mut(past.node).outputs[0].shape[growth.axis] = size.into();
    let origin = graph.node(present.node).origin.clone();
    let zero = Scalar::from_i64(graph.ty(past).dtype, 0);
    let label = origin.first().cloned().unwrap_or_else(|| "state".into());
    let mut b = Builder::new(graph, &label);
    b.origin = origin;
    let identity: Vec<Poly> = (0..before.len()).map(Poly::var).collect();
    let old = b.view(past, before, identity.clone())?;
    let after = b.push(Op::View { shape: room, index: identity, fill: Some(zero) }, &[present])?;
    for (n, i) in readers {
        graph.set_input(n, i, old);
    }
    Ok(after)
}
