//! Recognises loops whose condition only counts: `i < n`, where `i` is a carried integer to which each iteration adds
//! a constant, and `n` is known from shapes. Exporters emit such loops for `while` and for recurrent layers.

use super::Lowering;
use crate::shape_eval::ShapeEval;
use wgfc_ir::{BinaryOp as B, Dim, Graph, Op, Poly, ScalarFn, ScalarNode, Value};

/// The maximum number of operators that are followed from a condition to the values that it compares.
const MAX_DEPTH: usize = 32;
/// Integers up to this bound are exact in f32, to which exporters convert them for the comparison.
const EXACT: i64 = 1 << 24;

/// An integer expression: optionally an input of the body, plus a size.
#[derive(Clone, Debug, PartialEq)]
struct Sum {
    of: Option<usize>,
    add: Poly,
}

/// `a < b`.
#[derive(Clone, Debug)]
struct Less(Sum, Sum);

/// The recognised form of an expression.
#[derive(Clone, Debug)]
enum Found {
    Sum(Sum),
    Less(Less),
    /// A condition that always holds.
    Always,
}

struct Reader<'a> {
    graph: &'a Graph,
    /// The known elements of a value of this graph.
    known: &'a mut dyn FnMut(Value) -> Option<Vec<Dim>>,
}

impl Reader<'_> {
    fn value(&mut self, v: Value, depth: usize) -> Option<Found> {
        let ty = self.graph.ty(v);
        if depth > MAX_DEPTH || !ty.numel().is(1) {
            return None;
        }
        let is_bool = ty.dtype == wgfc_ir::DType::Bool;
        if let Some([d]) = (self.known)(v).as_deref() {
            return match is_bool {
                true => d.is(1).then_some(Found::Always),
                false => Some(Found::Sum(Sum { of: None, add: d.clone() })),
            };
        }
        if let Some(of) = self.graph.inputs.iter().position(|i| i.value == v) {
            return (!is_bool).then_some(Found::Sum(Sum { of: Some(of), add: Poly::ZERO }));
        }
        let node = self.graph.node(v.node);
        match &node.op {
            Op::View { fill: None, .. } => self.value(*node.inputs.first()?, depth + 1),
            Op::Map { body, .. } => {
                self.scalar(body, body.nodes.len().checked_sub(1)?, &node.inputs, depth + 1)
            }
            _ => None,
        }
    }

    fn scalar(&mut self, f: &ScalarFn, at: usize, args: &[Value], depth: usize) -> Option<Found> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut get = |i: u32| self.scalar(f, i as usize, args, depth + 1);
        match f.nodes.get(at)? {
            ScalarNode::Arg(i) => self.value(*args.get(*i as usize)?, depth + 1),
            ScalarNode::Const(s) if s.dtype.is_int() => {
                Some(Found::Sum(Sum { of: None, add: Poly::from(s.as_i64()) }))
            }
            // Lengths and counters are integers in the range of each of these types, so the cast does not change them.
            ScalarNode::Cast(to, x) => {
                let found = get(*x)?;
                let wide =
                    matches!(to, wgfc_ir::DType::F32 | wgfc_ir::DType::F64) || to.is_int() && to.bits() >= 32;
                match &found {
                    Found::Sum(s) if wide && s.add.as_const().is_none_or(|c| c.abs() < EXACT) => Some(found),
                    Found::Less(_) | Found::Always if *to == wgfc_ir::DType::Bool => Some(found),
                    _ => None,
                }
            }
            ScalarNode::Binary(B::And, a, b) => match (get(*a)?, get(*b)?) {
                (Found::Always, x) | (x, Found::Always) => Some(x),
                _ => None,
            },
            ScalarNode::Binary(op, a, b) => {
                let (Found::Sum(a), Found::Sum(b)) = (get(*a)?, get(*b)?) else { return None };
                match op {
                    B::Add if b.of.is_none() => Some(Found::Sum(Sum { add: &a.add + &b.add, ..a })),
                    B::Add if a.of.is_none() => Some(Found::Sum(Sum { add: &a.add + &b.add, ..b })),
                    B::Sub if b.of.is_none() => Some(Found::Sum(Sum { add: &a.add - &b.add, ..a })),
                    B::Lt => Some(Found::Less(Less(a, b))),
                    B::Gt => Some(Found::Less(Less(b, a))),
                    B::Le => Some(Found::Less(Less(a, Sum { add: &b.add + &Poly::ONE, ..b }))),
                    B::Ge => Some(Found::Less(Less(b, Sum { add: &a.add + &Poly::ONE, ..a }))),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The number of iterations of a loop, or `None` if its condition does more than count. The inputs of `body` are the
/// iteration number, the condition, the carried and the captured values; its outputs are the condition and the carried
/// values. `start` is the condition before the loop, `initial` the initial carried values, and `captured` the captured
/// ones.
pub(super) fn iterations(
    cx: &mut Lowering,
    (body, eval): (&Graph, &mut ShapeEval),
    start: Value,
    initial: &[Value],
    captured: &[Value],
) -> Option<Dim> {
    let condition = body.outputs.first()?.value;
    let mut known_inside = |v| eval.dims(body, v);
    let mut inside = Reader { graph: body, known: &mut known_inside };
    let Found::Less(Less(counter, bound)) = inside.value(condition, 0)? else { return None };
    let after = |i: usize| body.outputs.get(1 + i).map(|o| o.value);
    let (first, step) = match counter.of? {
        // The counter is the iteration number itself.
        0 => (Poly::ZERO, 1),
        at => {
            let at = at.checked_sub(2).filter(|i| *i < initial.len())?;
            let Found::Sum(next) = inside.value(after(at)?, 0)? else { return None };
            let step = next.add.as_const().filter(|s| *s > 0 && next.of == counter.of)?;
            (known(cx, *initial.get(at)?)?, step)
        }
    };
    // The bound must be loop-invariant.
    let bound = match bound.of {
        None => bound.add,
        Some(i) => {
            let i = i.checked_sub(2)?;
            let outer = match initial.get(i) {
                Some(v) if after(i)? == body.inputs.get(2 + i)?.value => *v,
                Some(_) => return None,
                None => *captured.get(i - initial.len())?,
            };
            &bound.add + &known(cx, outer)?
        }
    };
    if bound.as_const().is_some_and(|b| b >= EXACT) {
        return None;
    }
    // The counter that the condition at the end of the first iteration compares.
    let asked = &first + &counter.add;
    let left = |from: &Poly| (&bound - from).max_of(&Dim::ZERO, &[]).ceil_div(step);
    match outside(cx, start)? {
        Found::Always => Some(&left(&asked) + &Dim::ONE),
        // The initial condition must be the same comparison, one step earlier.
        Found::Less(Less(a, b)) if a.of.is_none() && b.of.is_none() => {
            let before = &asked - &Poly::from(step);
            (&b.add - &a.add == &bound - &before).then(|| left(&before))
        }
        _ => None,
    }
}

fn known(cx: &mut Lowering, v: Value) -> Option<Poly> {
    match cx.dims(v).as_deref() {
        Some([d]) => Some(d.clone()),
        _ => None,
    }
}

/// The recognised form of a value of the graph around the loop.
fn outside(cx: &mut Lowering, v: Value) -> Option<Found> {
    let (graph, eval) = cx.known();
    Reader { graph, known: &mut |v| eval.dims(graph, v) }.value(v, 0)
}
