//! Writing at indexed positions.

use super::{Lowering, OpError, Result};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{BinaryOp, DType, Dim, Op, Poly, ReduceOp, ScalarFn, ScalarNode, Value};

/// ScatterElements: each index selects the position along an axis to which the update is written; the other
/// coordinates are those of the update. Updates replace the elements of `data`, or are combined with them.
pub fn elements(
    cx: &mut Lowering,
    [data, idx, updates]: [Value; 3],
    axis: usize,
    reduce: Option<ReduceOp>,
) -> Result {
    let idx = cx.require_indices(idx)?;
    let rank = cx.rank(data);
    // Without updates the ranks need not match.
    if cx.rank(idx) == cx.rank(updates) && cx.shape(idx).iter().any(|d| d.is(0)) {
        return Ok(data);
    }
    if cx.rank(idx) != rank || cx.rank(updates) != rank {
        let e = OpError::model(format!(
            "indices of type {} and updates of type {} for data of type {}",
            cx.ty(idx),
            cx.ty(updates),
            cx.ty(data)
        ));
        return Err(e.operand(idx));
    }
    for (a, b) in cx.shape(idx).iter().zip(&cx.shape(updates)) {
        cx.require_equal(a, b);
    }
    let vars: Vec<Poly> = (0..rank).map(Poly::var).collect();
    let mut index: Vec<GatherAxis> = vars.iter().cloned().map(GatherAxis::Affine).collect();
    index[axis] = GatherAxis::Data { input: 2, at: vars };
    Ok(cx.push(Op::Scatter { reduce, index }, &[data, updates, idx])?)
}

/// ScatterND: the last axis of the indices holds coordinates along the first axes of the data.
pub fn places(cx: &mut Lowering, [data, idx, updates]: [Value; 3], reduce: Option<ReduceOp>) -> Result {
    let idx = cx.require_indices(idx)?;
    let (sd, si, su) = (cx.shape(data), cx.shape(idx), cx.shape(updates));
    let Some(k) = si.last().and_then(|d| d.as_const()).and_then(|k| usize::try_from(k).ok()) else {
        let e = OpError::symbolic(format!("indices of shape {}: the last extent must be known", show(&si)));
        return Err(e.operand(idx));
    };
    let q = si.len() - 1;
    if k > sd.len() || k == 0 || su.len() != q + sd.len() - k {
        return Err(OpError::model(format!(
            "indices of shape {} and updates of shape {} for data of shape {}",
            show(&si),
            show(&su),
            show(&sd)
        )));
    }
    for (a, b) in su.iter().zip(si[..q].iter().chain(&sd[k..])) {
        cx.require_equal(a, b);
    }
    let index = (0..sd.len())
        .map(|d| match d.checked_sub(k) {
            None => {
                let at = (0..q).map(Poly::var).chain([Poly::from(d)]).collect();
                GatherAxis::Data { input: 2, at }
            }
            Some(rest) => GatherAxis::Affine(Poly::var(q + rest)),
        })
        .collect();
    Ok(cx.push(Op::Scatter { reduce, index }, &[data, updates, idx])?)
}

/// Writes updates at consecutive positions along an axis, starting at one position per batch element, or at 0.
/// Positions beyond the end wrap around to the front, or are not written.
pub fn rows(
    cx: &mut Lowering,
    data: Value,
    updates: Value,
    start: Option<Value>,
    axis: usize,
    circular: bool,
) -> Result {
    let (sd, su) = (cx.shape(data), cx.shape(updates));
    if su.len() != sd.len() {
        let e =
            OpError::model(format!("updates of type {} for data of type {}", cx.ty(updates), cx.ty(data)));
        return Err(e.operand(updates));
    }
    if axis == 0 {
        return Err(OpError::model("0 is the batch").param("axis"));
    }
    for (_, (a, b)) in su.iter().zip(&sd).enumerate().filter(|(d, _)| *d != axis) {
        cx.require_equal(a, b);
    }
    let start = match start {
        Some(at) => {
            let at = cx.require_indices(at)?;
            let at = cx.cast(at, DType::I64)?;
            cx.reshape(at, vec![sd[0].clone(), Dim::ONE])?
        }
        None => {
            let zero = cx.int(DType::I64, 0);
            cx.unsqueeze(zero, &[0, 1])?
        }
    };
    let mut f = ScalarFn::default();
    let i = f.push(ScalarNode::Index(Poly::var(1)));
    let (i, from) = (f.push(ScalarNode::Cast(DType::I64, i)), f.push(ScalarNode::Arg(0)));
    let at = f.push(ScalarNode::Binary(BinaryOp::Add, i, from));
    if circular {
        let size = f.push(ScalarNode::Index(sd[axis].clone()));
        let size = f.push(ScalarNode::Cast(DType::I64, size));
        f.push(ScalarNode::Binary(BinaryOp::Mod, at, size));
    }
    let places = cx.map_to(f, &[start], vec![sd[0].clone(), su[axis].clone()])?;
    let mut index: Vec<GatherAxis> = (0..sd.len()).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
    index[axis] = GatherAxis::Data { input: 2, at: vec![Poly::var(0), Poly::var(axis)] };
    Ok(cx.push(Op::Scatter { reduce: None, index }, &[data, updates, places])?)
}
