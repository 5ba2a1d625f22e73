//! Neighbours along an axis that are combined in groups.

use super::search::place;
use super::{Lowering, OpError, Result};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, Value};

/// How a group is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combined {
    /// Sum, product, maximum or minimum.
    By(ReduceOp),
    /// The mean.
    Mean,
}

/// The first `n` places along the last axis in groups that end where `ends [lead…, groups]` says: the number of the group of
/// each place (i32, `[lead…, n]`). Behind the last end it is the number of groups.
pub fn numbers(cx: &mut Lowering, ends: Value, n: &Dim) -> Result {
    let mut shape = cx.shape(ends);
    let Some(last) = shape.last_mut() else { return Err(OpError::model("needs an axis").operand(ends)) };
    *last = n.clone();
    let axis = shape.len() - 1;
    let at = cx.iota(&shape, Poly::var(axis), DType::I32)?;
    let ends = cx.nearest_i32(ends)?;
    place(cx, ends, at, true)
}

/// The elements along an axis combined with those of their group, and with `initial`. `group` has the axes up to that one; a
/// number that is not below `count` is no group.
pub fn combine(
    cx: &mut Lowering,
    x: Value,
    group: Value,
    axis: usize,
    count: &Dim,
    (op, initial): (ReduceOp, Option<Scalar>),
) -> Result {
    let dtype = cx.dtype(x);
    let mut shape = cx.shape(x);
    shape[axis] = count.clone();
    let first = initial.unwrap_or(op.identity(dtype));
    let none = cx.full(&shape, first)?;
    let mut index: Vec<GatherAxis> = (0..shape.len()).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
    index[axis] = GatherAxis::Data { input: 2, at: (0..=axis).map(Poly::var).collect() };
    if cx.rank(group) == 1 {
        index[axis] = GatherAxis::Data { input: 2, at: vec![Poly::var(axis)] };
    }
    Ok(cx.push(Op::Scatter { reduce: Some(op), index }, &[none, x, group])?)
}

/// Groups of neighbours along an axis, of which `begins` and `ends` have the axes up to that one. Of an empty group it is
/// `initial`, or what combining nothing gives; the mean of nothing is no number.
pub fn reduce(
    cx: &mut Lowering,
    x: Value,
    axis: usize,
    [begins, ends]: [Value; 2],
    (how, initial): (Combined, Option<f64>),
) -> Result {
    let (shape, dtype) = (cx.shape(x), cx.dtype(x));
    let count = cx.shape(ends)[axis].clone();
    let group = numbers(cx, ends, &shape[axis])?;
    let op = match how {
        Combined::By(op) => op,
        Combined::Mean => ReduceOp::Sum,
    };
    let start = initial.map(|v| Scalar::from_f64(dtype, v));
    let y = combine(cx, x, group, axis, &count, (op, start))?;
    if how != Combined::Mean {
        return Ok(y);
    }
    let len = cx.binary(B::Sub, ends, begins)?;
    let mut of_group = cx.shape(len);
    of_group.resize(shape.len(), Dim::ONE);
    let len = cx.reshape(len, of_group)?;
    let mut f = Body::default();
    let (sum, len0) = (f.arg(0), f.arg(1));
    let (n, one) = (f.cast(dtype, len0), f.number(dtype, 1.0));
    let n = if initial.is_some() { f.binary(B::Max, n, one) } else { n };
    f.binary(B::Div, sum, n);
    Ok(cx.map(f.0, &[y, len])?)
}
