//! `if is_nan(s) { z } else { s }` → `s`, where `s` is a softmax that cannot be NaN.
//!
//! Exporters write the guard because a row of scores that are all −∞ gives 0/0. Whether a row can be −∞ is decided by the origin of
//! infinities: constants, and graph inputs that pass through elementwise and moving operators and sums. Products and norms of the model's
//! data are assumed to be finite, as implementations of WGSL may assume of all arithmetic.

use crate::rewrite::canonical::topo;
use rustc_hash::FxHashMap;
use wgfc_ir::{BinaryOp, Graph, NodeId, Op, ReduceOp, ScalarNode, UnaryOp, Value};

/// A constant of more elements than this is not searched for infinities.
const MAX_SEARCHED: usize = 1 << 24;
/// Data is assumed to be smaller than this.
const ORDINARY: f64 = 1e30;

/// A bound on the elements of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Size {
    /// As large as ordinary data: sums and products of it are finite.
    Ordinary,
    /// Finite, but up to the largest number: a sum with ordinary data is finite, a sum of two may not be.
    Finite,
    /// Possibly infinite or NaN.
    Unknown,
}

/// Removes guards. Returns how many were removed.
pub fn remove(graph: &mut Graph) -> Result<usize, String> {
    let mut sizes = FxHashMap::default();
    let mut removed = 0;
    for n in topo(graph)? {
        let Some(softmax) = guarded(graph, n) else { continue };
        let scores = graph.node(softmax.node).inputs[0];
        if size(graph, scores, &mut sizes) < Size::Unknown {
            graph.replace_uses(n.into(), softmax);
            removed += 1;
        }
    }
    graph.remove_dead();
    Ok(removed)
}

/// The softmax that the node guards.
fn guarded(graph: &Graph, n: NodeId) -> Option<Value> {
    let node = graph.node(n);
    let Op::Map { body, .. } = &node.op else { return None };
    let ScalarNode::Select(c, _, s) = body.root()? else { return None };
    let ScalarNode::Arg(s) = body.nodes.get(*s as usize)? else { return None };
    let softmax = *node.inputs.get(*s as usize)?;
    if !matches!(graph.node(softmax.node).op, Op::Softmax { log: false, .. })
        || graph.ty(softmax) != graph.ty(n.into())
    {
        return None;
    }
    // The condition is is_nan of the same value, in this node or a separate one.
    let asks = match body.nodes.get(*c as usize)? {
        ScalarNode::Unary(UnaryOp::IsNan, a) => match body.nodes.get(*a as usize)? {
            ScalarNode::Arg(a) => *node.inputs.get(*a as usize)?,
            _ => return None,
        },
        ScalarNode::Arg(a) => {
            let test = graph.node(node.inputs.get(*a as usize)?.node);
            match (&test.op, test.inputs.as_slice()) {
                (Op::Map { body, .. }, [x])
                    if body.nodes == [ScalarNode::Arg(0), ScalarNode::Unary(UnaryOp::IsNan, 0)] =>
                {
                    *x
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    (asks == softmax).then_some(softmax)
}

/// A bound on the elements of `v`. Not recursive, as graphs may be deep.
fn size(graph: &Graph, v: Value, known: &mut FxHashMap<Value, Size>) -> Size {
    let mut open = vec![v];
    while let Some(v) = open.pop() {
        if known.contains_key(&v) {
            continue;
        }
        let node = graph.node(v.node);
        let missing: Vec<Value> = match &node.op {
            Op::View { .. } | Op::Gather { .. } | Op::Reduce { .. } | Op::PrefixScan { .. } => {
                node.inputs[..1].to_vec()
            }
            Op::Concat { .. } | Op::Map { .. } => node.inputs.clone(),
            _ => vec![],
        };
        let missing: Vec<Value> = missing.into_iter().filter(|i| !known.contains_key(i)).collect();
        if missing.is_empty() || !graph.ty(v).dtype.is_float() {
            let s = of_node(graph, v, known);
            known.insert(v, s);
        } else {
            open.push(v);
            open.extend(missing);
        }
    }
    known.get(&v).copied().unwrap_or(Size::Unknown)
}

/// The bound of a node's value, given those of its inputs.
fn of_node(graph: &Graph, v: Value, known: &FxHashMap<Value, Size>) -> Size {
    if !graph.ty(v).dtype.is_float() {
        return Size::Ordinary;
    }
    let node = graph.node(v.node);
    let of = |i: &Value| known.get(i).copied().unwrap_or(Size::Unknown);
    let first = || node.inputs.first().map_or(Size::Unknown, of);
    match &node.op {
        Op::Contract(_) | Op::Softmax { log: false, .. } | Op::Norm { .. } | Op::Attention { .. } => {
            Size::Ordinary
        }
        Op::Reduce { op: ReduceOp::Max | ReduceOp::Min, .. } => first(),
        // A sum of infinities is infinite, and one of large numbers may be.
        Op::Reduce { .. } | Op::PrefixScan { .. } => {
            if first() == Size::Ordinary {
                Size::Ordinary
            } else {
                Size::Unknown
            }
        }
        Op::Const(t) if !t.is_present() => Size::Ordinary,
        Op::Const(t) if t.numel() <= MAX_SEARCHED => {
            let worst = t.to_f32s().map(|v| v.iter().fold(0f64, |m, x| worse(m, f64::from(*x))));
            of_number(worst.unwrap_or(f64::INFINITY))
        }
        Op::View { fill, .. } => {
            fill.map_or(Size::Ordinary, |f| of_number(worse(0.0, f.as_f64()))).max(first())
        }
        Op::Gather { .. } => first(),
        Op::Concat { .. } => node.inputs.iter().map(of).max().unwrap_or(Size::Ordinary),
        Op::Map { body, .. } => {
            let args: Vec<Size> = node.inputs.iter().map(of).collect();
            of_body(&body.nodes, &args)
        }
        _ => Size::Unknown,
    }
}

/// The larger magnitude; infinite for NaN.
fn worse(m: f64, x: f64) -> f64 {
    if x.is_nan() { f64::INFINITY } else { m.max(x.abs()) }
}

fn of_number(m: f64) -> Size {
    match m {
        m if m < ORDINARY => Size::Ordinary,
        m if m <= f64::from(f32::MAX) => Size::Finite,
        _ => Size::Unknown,
    }
}

fn of_body(nodes: &[ScalarNode], args: &[Size]) -> Size {
    use Size::*;
    let mut sizes: Vec<Size> = vec![];
    for n in nodes {
        let at = |i: &u32| sizes.get(*i as usize).copied().unwrap_or(Unknown);
        let s = match n {
            ScalarNode::Arg(a) => args.get(*a as usize).copied().unwrap_or(Unknown),
            ScalarNode::Const(c) => of_number(worse(0.0, c.as_f64())),
            ScalarNode::Index(_) => Ordinary,
            ScalarNode::Unary(op, a) => match op {
                UnaryOp::Neg | UnaryOp::Abs => at(a),
                UnaryOp::IsNan | UnaryOp::IsInf => Ordinary,
                // These have results of bounded size for every finite operand.
                UnaryOp::Sigmoid
                | UnaryOp::Tanh
                | UnaryOp::Erf
                | UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Sign
                    if at(a) < Unknown =>
                {
                    Ordinary
                }
                UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => at(a),
                // Logarithm of 0, reciprocal of 0 and the like make infinities of ordinary constants.
                _ => Unknown,
            },
            ScalarNode::Binary(op, a, b) => {
                let (a, b) = (at(a), at(b));
                match op {
                    BinaryOp::Add | BinaryOp::Sub if a.min(b) == Ordinary => a.max(b),
                    BinaryOp::Mul if a.max(b) == Ordinary => Ordinary,
                    BinaryOp::Min | BinaryOp::Max => a.max(b),
                    op if op.is_comparison() => Ordinary,
                    BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => Ordinary,
                    _ => Unknown,
                }
            }
            ScalarNode::Select(_, a, b) => at(a).max(at(b)),
            // A narrower type has a smaller largest number.
            ScalarNode::Cast(t, a) => match at(a) {
                Finite if t.is_float() && t.bits() < 32 => Unknown,
                s => s,
            },
            ScalarNode::Bitcast(..) => Unknown,
        };
        sizes.push(s);
    }
    sizes.last().copied().unwrap_or(Unknown)
}
