//! Dynamic scaling of the loss of a training step ([`Options::loss_scale`](crate::Options::loss_scale)).
//!
//! f16 holds no number below 6e-8, and gradients are often smaller. So the seed of the backward pass, the derivative of the loss by itself, becomes a
//! scale in place of 1, by which all gradients are multiplied; the optimizer reads them divided by it again.
//!
//! ```text
//! seed = 1                     →  seed = loss_scale
//! … = f(gradient, …)           →  … = f(gradient · loss_scale.inverse, …)   where f is not linear in the gradients
//! state = after                →  state = select(finite, after, before)     finite: whether all gradients are
//! ```
//!
//! `degree` says which values are linear in the seed. An operator that takes linear operands to a result that is not linear reads
//! them unscaled. A value from which such an operand is made element by element is unscaled in its place, so that each gradient is
//! unscaled once, where its last sum or product made it.
//!
//! The scale is a power of two and its inverse a state of its own, so that both are exact on every device. A step with a gradient that is infinite
//! or NaN changes no other state and halves the scale; after [`LossScale::interval`] steps in a row without one it doubles. Everything is made of
//! ordinary operators and states: a runtime knows nothing of it.

mod degree;

use crate::error::{Diagnostic, Errors};
use crate::options::LossScale;
use degree::Degree;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use wgfc_ir::build::Built;
use wgfc_ir::{
    BinaryOp as B, Body, Builder, DType, Dim, Graph, NodeId, Op, Poly, ReduceOp, Scalar, ScalarFn, State,
    Tensor, TensorType, UnaryOp as U, Value,
};

/// The name of the state that is the scale.
pub const SCALE: &str = "loss_scale";
/// The name of the state that is the inverse of the scale.
pub const INVERSE: &str = "loss_scale.inverse";
/// The name of the state that counts the steps since the scale has changed.
pub const STEPS: &str = "loss_scale.steps";

/// Whether a state is one of scaling.
fn is_own(state: &str) -> bool {
    [SCALE, INVERSE, STEPS].contains(&state)
}

/// The greatest scale.
pub const MOST: u32 = 1 << 24;

/// The number of sums of rows that one workgroup adds up.
const ROW: i64 = 1024;

/// The label of the nodes that are added.
const LABEL: &str = "loss_scale";

/// A tensor of ones, and the scalar after whose type and shape it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ones {
    /// The ones.
    pub ones: Value,
    /// The scalar.
    pub like: Value,
}

/// Replaces the seed of the backward pass by a new state, the scale, and adds the other states that scaling needs. Their new contents are their
/// old ones until [`apply`] computes them. The seed is the one among `ones` that is made like an output of the graph, or the only one.
///
/// # Errors
/// If there is no seed, or more than one.
pub fn mark(graph: &mut Graph, ones: &[Ones], scale: &LossScale) -> Result<(), Errors> {
    if !scale.initial.is_power_of_two() || scale.initial > MOST {
        let message = format!(
            "the scale of the loss begins with {}, which is no power of two up to 2^24",
            scale.initial
        );
        return Err(Diagnostic::model(message).help("give a power of two, such as 65536").into());
    }
    if scale.interval == 0 || i32::try_from(scale.interval).is_err() {
        let message = format!("the scale of the loss cannot double after {} steps", scale.interval);
        return Err(Diagnostic::model(message).help("give a number of steps, such as 2000").into());
    }
    let seed = seed(graph, ones)?;
    let taken = graph.states.iter().map(|s| &s.name).chain(graph.inputs.iter().map(|b| &b.name));
    if let Some(name) = taken.into_iter().find(|n| is_own(n)) {
        let message = format!(
            "the model has an input or a state of the name \"{name}\", which the scale of the loss needs"
        );
        return Err(Diagnostic::model(message).help("give it another name").into());
    }
    let initial = f64::from(scale.initial);
    let number = |v: f64| Tensor::scalar(Scalar::from_f64(DType::F32, v));
    let before = add_state(graph, SCALE, number(initial));
    add_state(graph, INVERSE, number(1.0 / initial));
    add_state(graph, STEPS, Tensor::scalar(Scalar::from_i64(DType::I32, 0)));
    let shape = graph.ty(seed).shape.clone();
    let scaled = Builder::new(graph, LABEL).expand(before, &shape).map_err(Diagnostic::internal)?;
    graph.replace_uses(seed, scaled);
    graph.remove_dead();
    Ok(())
}

/// Adds a scalar state that keeps its initial value.
fn add_state(graph: &mut Graph, name: &str, initial: Tensor) -> Value {
    let v = graph.add_input(name, TensorType::new(initial.dtype, Vec::<Dim>::new()));
    graph.inputs.retain(|b| b.value != v);
    graph.states.push(State {
        name: name.into(),
        before: v,
        after: v,
        growth: None,
        initial: Some(Arc::new(initial)),
    });
    v
}

fn seed(graph: &Graph, ones: &[Ones]) -> Result<Value, Errors> {
    let missing = |message: &str| {
        Diagnostic::unsupported(message).help(
            "train in f32, or export the step with its backward pass traced from one loss, as fixtures/torch/train_step.py does",
        )
    };
    let mut all: Vec<Ones> = ones.iter().copied().filter(|o| !graph.uses(o.ones).is_empty()).collect();
    let is_loss = |o: &Ones| graph.outputs.iter().any(|b| b.value == o.like);
    if all.iter().any(is_loss) {
        all.retain(is_loss);
    }
    let Some(first) = all.first() else {
        let message = "the step has no seed of a backward pass, `ones_like` of its loss, so its gradients cannot be scaled for f16";
        return Err(missing(message).into());
    };
    if all.iter().any(|o| o.ones != first.ones) {
        let message = format!(
            "{} values could be the seed of the step's backward pass, `ones_like` of its loss, so its gradients cannot be scaled for f16",
            all.len()
        );
        return Err(missing(&message).into());
    }
    match graph.ty(first.ones).dtype {
        DType::F32 => Ok(first.ones),
        dtype => {
            Err(missing(&format!("the loss is {dtype}, which does not hold its scale: it must be f32"))
                .into())
        }
    }
}

/// Scales the gradients of a graph that [`mark`] has marked, and undoes it where they are used.
///
/// # Errors
/// If nothing is computed from gradients, there is no state beside those of scaling, or one grows.
pub fn apply(graph: &mut Graph, scale: &LossScale) -> Result<(), Errors> {
    let find = |name: &str| {
        let state = graph.states.iter().find(|s| *s.name == *name).map(|s| s.before);
        state.ok_or_else(|| Diagnostic::internal(format!("the state {name} is missing")))
    };
    let (seed, inverse) = (find(SCALE)?, find(INVERSE)?);
    if let Some(s) = graph.states.iter().find(|s| s.growth.is_some()) {
        let message = format!(
            "the state \"{}\" grows, so a step whose gradients overflow cannot leave it as it was",
            s.name
        );
        return Err(Diagnostic::unsupported(message).help("train in f32").into());
    }
    if graph.states.iter().all(|s| is_own(&s.name)) {
        let message = "the step has no state that could keep its value when gradients overflow";
        return Err(Diagnostic::model(message)
            .help("name the inputs that it continues, with --state INPUT=OUTPUT")
            .into());
    }
    let uses = unscaled_uses(graph, seed).map_err(Diagnostic::internal)?;
    if uses.is_empty() {
        let message = "the step updates nothing by the gradients of its loss";
        return Err(Diagnostic::model(message)
            .help("return or write the parameters after the update")
            .into());
    }
    let gradients: Vec<Value> = uses.iter().map(|(v, _)| *v).collect();
    let finite = finite(graph, &gradients, inverse).map_err(Diagnostic::internal)?;
    unscale(graph, (inverse, finite), uses).map_err(Diagnostic::internal)?;
    update(graph, finite, scale).map_err(Diagnostic::internal)?;
    Ok(())
}

/// A reader of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Use {
    /// An operand of a node.
    Operand(NodeId, usize),
    /// A result of the graph, by its position in [`Graph::results`].
    Result(usize),
}

/// The uses of linear values that must be unscaled, by value, in the order of the computation.
fn unscaled_uses(graph: &Graph, seed: Value) -> Result<Vec<(Value, Vec<Use>)>, String> {
    let order = graph.topo().map_err(|_| "the graph has a cycle".to_owned())?;
    let mut degrees: FxHashMap<NodeId, Degree> = FxHashMap::default();
    let mut unscaled: FxHashSet<Use> = FxHashSet::default();
    for n in &order {
        let node = graph.node(*n);
        if *n == seed.node {
            degrees.insert(*n, Degree::Linear);
            continue;
        }
        let operands: Vec<Degree> = node.inputs.iter().map(|v| degrees[&v.node]).collect();
        let degree = degree::of(&node.op, &operands).unwrap_or_else(|| {
            let linear = operands.iter().enumerate().filter(|(_, d)| **d == Degree::Linear);
            unscaled.extend(linear.map(|(i, _)| Use::Operand(*n, i)));
            Degree::Constant
        });
        degrees.insert(*n, degree);
    }
    let results: Vec<Value> = graph.results().collect();
    let keeps = |v: &Value| graph.states.iter().any(|s| s.before == *v && is_own(&s.name));
    for (i, v) in results.iter().enumerate() {
        if degrees[&v.node] == Degree::Linear && !keeps(v) {
            unscaled.insert(Use::Result(i));
        }
    }
    let uses_of = |v: Value| {
        let operands = graph.uses(v).into_iter().map(|(n, i)| Use::Operand(n, i));
        let results = results.iter().enumerate().filter(|(_, r)| **r == v && !keeps(r));
        operands.chain(results.map(|(i, _)| Use::Result(i))).collect::<Vec<_>>()
    };
    // A value that is only read unscaled is made of an operand that is unscaled, if it is made element by element.
    for n in order.iter().rev().filter(|n| degrees[n] == Degree::Linear && **n != seed.node) {
        let own = uses_of((*n).into());
        let Some(i) = elementwise(graph, *n, &degrees) else { continue };
        if !own.is_empty() && own.iter().all(|u| unscaled.contains(u)) {
            own.iter().for_each(|u| _ = unscaled.remove(u));
            unscaled.insert(Use::Operand(*n, i));
        }
    }
    let of = |n: &NodeId| {
        let outputs = 0..graph.node(*n).outputs.len() as u32;
        let values = outputs.map(|port| Value { node: *n, port });
        let with_uses =
            values.map(|v| (v, uses_of(v).into_iter().filter(|u| unscaled.contains(u)).collect::<Vec<_>>()));
        with_uses.filter(|(_, uses)| !uses.is_empty()).collect::<Vec<_>>()
    };
    Ok(order.iter().flat_map(of).collect())
}

/// The only linear operand of a node whose result has as many elements, each made of one of the operand's.
fn elementwise(graph: &Graph, n: NodeId, degrees: &FxHashMap<NodeId, Degree>) -> Option<usize> {
    let node = graph.node(n);
    let mut linear = node.inputs.iter().enumerate().filter(|(_, v)| degrees[&v.node] == Degree::Linear);
    let (i, v) = linear.next().filter(|_| linear.next().is_none())?;
    let (from, to) = (graph.ty(*v), &node.outputs[0]);
    let same = match &node.op {
        Op::Map { .. } => from.shape == to.shape,
        Op::View { fill: None, .. } => from.numel() == to.numel(),
        _ => false,
    };
    same.then_some(i)
}

/// Lets uses of linear values read them multiplied by the inverse of the scale, and as 0 after a step that is not finite. So all that is computed
/// of them waits for the check, and is computed together with the states that it updates. Elements that are not finite are read as 0 in any case:
/// a product that rounds its operands for itself can overflow where the check sees no overflow, and no state may become NaN by that.
fn unscale(graph: &mut Graph, (inverse, finite): (Value, Value), all: Vec<(Value, Vec<Use>)>) -> Built<()> {
    let mut b = Builder::new(graph, LABEL);
    let none = b.scalar(DType::F32, 0.0);
    let factor = b.select(finite, inverse, none)?;
    let mut f = Body::default();
    let (x, factor_of, zero) = (f.arg(0), f.arg(1), f.f32(0.0));
    let lost = lost(&mut f, x);
    let product = f.binary(B::Mul, x, factor_of);
    f.select(lost, zero, product);
    for (v, uses) in all {
        let label = graph.node(v.node).origin.first().cloned().unwrap_or_else(|| LABEL.into());
        let mut b = Builder::new(graph, &label);
        let dtype = b.dtype(v);
        let wide = b.cast(v, DType::F32)?;
        let unscaled = b.map(f.0.clone(), &[wide, factor])?;
        let unscaled = b.cast(unscaled, dtype)?;
        for u in uses {
            match u {
                Use::Operand(n, i) => graph.set_input(n, i, unscaled),
                Use::Result(i) => set_result(graph, i, unscaled),
            }
        }
    }
    Ok(())
}

/// Makes `v` the result at this position of [`Graph::results`].
fn set_result(graph: &mut Graph, i: usize, v: Value) {
    let outputs = graph.outputs.iter_mut().map(|o| &mut o.value);
    let computed = graph.computed.iter_mut().map(|c| &mut c.value);
    let mut all = outputs.chain(graph.states.iter_mut().map(|s| &mut s.after)).chain(computed);
    if let Some(slot) = all.nth(i) {
        *slot = v;
    }
}

/// Whether a float is infinite or NaN.
fn lost(f: &mut Body, x: u32) -> u32 {
    let (nan, infinite) = (f.unary(U::IsNan, x), f.unary(U::IsInf, x));
    f.binary(B::Or, nan, infinite)
}

/// Whether all elements of all gradients are finite: a bool of rank 0. A sum that is finite has no term that is not. Being linear, the sum of
/// a product becomes a product of a sum, which needs no pass over the gradient. Sums are taken unscaled, so that they stay f32.
fn finite(graph: &mut Graph, gradients: &[Value], inverse: Value) -> Built {
    let mut b = Builder::new(graph, LABEL);
    let mut parts = vec![];
    for g in gradients {
        let axes: Vec<usize> = (1..b.rank(*g)).collect();
        let g = b.cast(*g, DType::F32)?;
        let rows = b.reduce(ReduceOp::Sum, g, &axes, false)?;
        let rows = b.binary(B::Mul, rows, inverse)?;
        let n = b.ty(rows).numel();
        parts.push(b.reshape(rows, vec![n])?);
    }
    let all = if parts.len() == 1 { parts[0] } else { b.concat(&parts, 0)? };
    let mut all = b.unsqueeze(all, &[0])?;
    let n = b.shape(all)[1].clone();
    if n.as_const().is_none_or(|n| n > ROW) {
        let (rows, at) = (n.ceil_div(ROW), &(&Poly::var(0) * ROW) + &Poly::var(1));
        let zero = Some(Scalar::from_f64(DType::F32, 0.0));
        let shape = vec![rows, Dim::constant(ROW)];
        all = b.push(Op::View { shape, index: vec![Poly::ZERO, at], fill: zero }, &[all])?;
    }
    let rows = b.reduce(ReduceOp::Sum, all, &[1], false)?;
    let sum = b.reduce(ReduceOp::Sum, rows, &[0], false)?;
    let mut f = Body::default();
    let x = f.arg(0);
    let lost = lost(&mut f, x);
    f.unary(U::Not, lost);
    b.map(f.0, &[sum])
}

/// Lets states keep their contents after a step that is not finite, and computes the next scale. The optimizer reads the contents that are kept,
/// too, so that one kernel computes all states of a parameter.
fn update(graph: &mut Graph, finite: Value, scale: &LossScale) -> Built<()> {
    let steps =
        graph.states.iter().find(|s| *s.name == *STEPS).ok_or("the count of steps is missing")?.before;
    let checked = behind(graph, finite)?;
    for i in 0..graph.states.len() {
        let State { name, before, after, .. } = graph.states[i].clone();
        let readers = graph.uses(after).into_iter().filter(|(n, _)| checked.contains(n)).collect::<Vec<_>>();
        let mut b = Builder::new(graph, LABEL);
        let new = match next(&name, scale) {
            Some(f) => b.map(f, &[finite, before, steps])?,
            None if before == after => continue,
            None => b.select(finite, after, before)?,
        };
        graph.states[i].after = new;
        if before != after && checked.contains(&after.node) {
            readers.into_iter().for_each(|(n, i)| graph.set_input(n, i, new));
        }
    }
    Ok(())
}

/// The nodes that depend on a value.
fn behind(graph: &Graph, v: Value) -> Built<FxHashSet<NodeId>> {
    let order = graph.topo().map_err(|_| "the graph has a cycle".to_owned())?;
    let mut all = FxHashSet::from_iter([v.node]);
    for n in order {
        if graph.needs(n).any(|m| all.contains(&m)) {
            all.insert(n);
        }
    }
    Ok(all)
}

/// The next value of one of the states of scaling, of whether the step was finite, of the present value and of the count of steps.
fn next(state: &str, scale: &LossScale) -> Option<ScalarFn> {
    let mut f = Body::default();
    let (finite, v, steps) = (f.arg(0), f.arg(1), f.arg(2));
    let (one, interval) = (f.i32(1), f.i32(scale.interval.into()));
    let counted = f.binary(B::Add, steps, one);
    let full = f.binary(B::Ge, counted, interval);
    let mut times = |factor: f64, bound: B, most: f64| {
        let (factor, most) = (f.f32(factor), f.f32(most));
        let v = f.binary(B::Mul, v, factor);
        f.binary(bound, v, most)
    };
    let (after_many, after, otherwise) = match state {
        SCALE => (times(2.0, B::Min, MOST.into()), v, times(0.5, B::Max, 1.0)),
        INVERSE => (times(0.5, B::Max, 1.0 / f64::from(MOST)), v, times(2.0, B::Min, 1.0)),
        STEPS => {
            let none = f.i32(0);
            (none, counted, none)
        }
        _ => return None,
    };
    let good = f.select(full, after_many, after);
    f.select(finite, good, otherwise);
    Some(f.0)
}
