//! Arg-max and arg-min, top-k and hardmax.

use super::{Lowering, OpError, Result, Size};
use wgfc_ir::{BinaryOp, DType, Op, Poly, ReduceOp, Value};

/// The position (i64) of the largest or smallest element along an axis; among equal elements the first one, or the
/// last one if `last`.
pub fn extreme(cx: &mut Lowering, op: ReduceOp, x: Value, axis: usize, last: bool, keepdims: bool) -> Result {
    let shape = cx.shape(x);
    if shape[axis].is(0)
        && shape.iter().enumerate().all(|(i, d)| i == axis || d.as_const().is_some_and(|d| d > 0))
    {
        return Err(OpError::model(format!("axis {axis} of {} has no elements to choose from", cx.ty(x))));
    }
    let y = cx.push(Op::ArgReduce { op, axis, last }, &[x])?;
    Ok(if keepdims { y } else { cx.squeeze(y, &[axis])? })
}

/// The `k` largest or smallest elements along an axis in sorted order, and their positions (i64).
pub fn top_k(cx: &mut Lowering, x: Value, axis: usize, size: &Size, largest: bool) -> Result<[Value; 2]> {
    let extent = cx.shape(x)[axis].clone();
    let k = match size {
        Size::Known(k) => k.clone(),
        Size::Computed(count) => {
            cx.require_open_sizes(*count)?;
            if let Some(asked) = cx.checked_number("k", *count, &extent)? {
                cx.require_at_most(&asked, &extent);
            }
            let k = cx.reshape(*count, vec![])?;
            let k = cx.binary_scalar(BinaryOp::Max, k, 0.0)?;
            let n = cx.dim_scalar(&extent, DType::I64)?;
            let k = cx.binary(BinaryOp::Min, k, n)?;
            cx.computed_size(k, extent.clone())
        }
    };
    if let (Some(k), Some(n)) = (k.as_const(), extent.as_const())
        && !(0..=n).contains(&k)
    {
        return Err(OpError::model(format!("k is {k}, the axis has {n} elements")));
    }
    if matches!(size, Size::Known(_)) {
        cx.require_at_most(&k, &extent);
    }
    let node = cx.push(Op::TopK { axis, k, largest }, &[x])?.node;
    Ok([0, 1].map(|port| Value { node, port }))
}

/// One at the first largest element along an axis, zero elsewhere.
pub fn hardmax(cx: &mut Lowering, x: Value, axis: usize) -> Result {
    let at = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis, last: false }, &[x])?;
    let shape = cx.shape(x);
    let here = cx.iota(&shape, Poly::var(axis), DType::I64)?;
    let same = cx.binary(BinaryOp::Eq, at, here)?;
    let dtype = cx.dtype(x);
    Ok(cx.cast(same, dtype)?)
}
