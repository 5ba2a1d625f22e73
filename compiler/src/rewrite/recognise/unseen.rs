//! Guards of softmaxes against rows without a visible key.
//!
//! `if all(scores = −∞) { 0 } else { softmax(scores) }` is what PyTorch's attention decomposes to;
//! `if is_nan(softmax(scores)) { 0 } else { softmax(scores) }` is what exporters write for it.

use super::simple::{Simple, simple};
use wgfc_ir::{BinaryOp, Graph, NodeId, Op, ReduceOp, UnaryOp, Value};

/// A guard that sets rows without a finite score to 0.
pub struct Guard {
    /// The guarded value: a softmax, perhaps behind casts and views.
    pub softmax: Value,
    /// The scores whose rows are tested; `None` if the softmax is tested for NaN.
    pub scores: Option<Value>,
    /// The nodes that compute the condition.
    pub nodes: Vec<NodeId>,
}

/// The guard that `v` computes.
pub fn guard(graph: &Graph, v: Value) -> Option<Guard> {
    let Simple::Choose { condition, x, constant, swapped } = simple(graph, v)? else { return None };
    if constant.as_f64() != 0.0 {
        return None;
    }
    let mut nodes = vec![v.node];
    if let Some(Simple::Unary(UnaryOp::IsNan, tested)) = simple(graph, condition) {
        nodes.push(condition.node);
        return (swapped && tested == x).then_some(Guard { softmax: x, scores: None, nodes });
    }
    let scores = empty_rows(graph, condition, swapped, &mut nodes)?;
    Some(Guard { softmax: x, scores: Some(scores), nodes })
}

/// The scores for which `v` tells whether all of a row are −∞ (or not all, unless `holds`).
fn empty_rows(graph: &Graph, v: Value, mut holds: bool, nodes: &mut Vec<NodeId>) -> Option<Value> {
    let mut v = v;
    while let Some(Simple::Unary(UnaryOp::Not, x)) = simple(graph, v) {
        nodes.push(v.node);
        (v, holds) = (x, !holds);
    }
    let node = graph.node(v.node);
    let Op::Reduce { op, axes } = &node.op else { return None };
    let all = match op {
        ReduceOp::Min => true,
        ReduceOp::Max => false,
        _ => return None,
    };
    let x = *node.inputs.first()?;
    // All are −∞, or none is another value.
    (all == holds && axes[..] == [graph.ty(x).rank().checked_sub(1)?]).then_some(())?;
    nodes.push(v.node);
    infinite(graph, x, holds, nodes)
}

/// The scores for which `v` tells whether each is −∞ (or is not, unless `holds`).
fn infinite(graph: &Graph, v: Value, mut holds: bool, nodes: &mut Vec<NodeId>) -> Option<Value> {
    let mut v = v;
    while let Some(Simple::Unary(UnaryOp::Not, x)) = simple(graph, v) {
        nodes.push(v.node);
        (v, holds) = (x, !holds);
    }
    nodes.push(v.node);
    match simple(graph, v)? {
        Simple::Scalar(BinaryOp::Eq, x, f64::NEG_INFINITY) if holds => Some(x),
        Simple::Scalar(BinaryOp::Ne | BinaryOp::Gt, x, f64::NEG_INFINITY) if !holds => Some(x),
        Simple::Unary(UnaryOp::IsInf, x) if holds => Some(x),
        _ => None,
    }
}
