//! Positions in sorted sequences.

use super::{Lowering, OpError, Result};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp as B, Body, DType, Op, Poly, ReduceOp, Scalar, UnaryOp, Value};

/// Sequences with at most this many elements are searched by comparing all of them.
const SHORT: i64 = 64;

/// The number of elements of a sorted sequence before each value (i32): those less than it or, with `right`, those
/// less than or equal to it.
///
/// The sequence lies along the last axis. Its other axes, if there are any, must be those of the values.
pub fn place(cx: &mut Lowering, sequence: Value, values: Value, right: bool) -> Result {
    let (ss, sv) = (cx.shape(sequence), cx.shape(values));
    let rank = ss.len();
    if rank == 0 || rank > 1 && rank != sv.len() || cx.dtype(sequence) != cx.dtype(values) {
        let e = format!("a sequence {} for values {}", cx.ty(sequence), cx.ty(values));
        return Err(OpError::model(e).operand(sequence));
    }
    for (a, b) in ss[..rank - 1].iter().zip(&sv) {
        cx.require_equal(a, b);
    }
    let n = ss[rank - 1].clone();
    if n.is(0) {
        return Ok(cx.full(&sv, Scalar::from_i64(DType::I32, 0))?);
    }
    // NaN is greater than all elements.
    let behind = if right { B::Gt } else { B::Ge };
    if n.as_const().is_some_and(|n| n <= SHORT) {
        let mut all = sv.clone();
        all.push(n);
        let v = cx.unsqueeze(values, &[sv.len()])?;
        let s = if rank > 1 { cx.unsqueeze(sequence, &[rank - 1])? } else { sequence };
        let mut f = Body::default();
        let (s0, v0) = (f.arg(0), f.arg(1));
        let is_behind = f.binary(behind, s0, v0);
        let before = f.unary(UnaryOp::Not, is_behind);
        f.cast(DType::I32, before);
        let before = cx.map_to(f.0, &[s, v], all)?;
        return Ok(cx.reduce(ReduceOp::Sum, before, &[sv.len()], false)?);
    }
    let most = n.as_const().unwrap_or(i32::MAX.into());
    let mut at = cx.full(&sv, Scalar::from_i64(DType::I32, 0))?;
    for bit in (0..=most.ilog2()).rev() {
        let step = 1i64 << bit;
        let mut f = Body::default();
        let (at0, less, last) = (f.arg(0), f.i32(step - 1), f.index(&n - 1));
        let probe = f.binary(B::Add, at0, less);
        f.binary(B::Min, probe, last);
        let probe = cx.map(f.0, &[at])?;
        let mut index: Vec<GatherAxis> = (0..rank - 1).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
        index.push(GatherAxis::Data { input: 1, at: (0..sv.len()).map(Poly::var).collect() });
        let element = cx.push(Op::Gather { shape: sv.clone(), index }, &[sequence, probe])?;
        let mut f = Body::default();
        let (at0, e0, v0) = (f.arg(0), f.arg(1), f.arg(2));
        let (by, end) = (f.i32(step), f.index(&n - step));
        let inside = f.binary(B::Le, at0, end);
        let is_behind = f.binary(behind, e0, v0);
        let before = f.unary(UnaryOp::Not, is_behind);
        let goes = f.binary(B::And, inside, before);
        let further = f.binary(B::Add, at0, by);
        f.select(goes, further, at0);
        at = cx.map(f.0, &[at, element, values])?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests;
