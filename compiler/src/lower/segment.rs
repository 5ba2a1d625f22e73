//! Reductions of segments along an axis, and scatters with a reduction.

use super::search::place;
use super::{Lowering, OpError, Result};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, Value};

/// The reduction of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combined {
    /// Sum, product, maximum or minimum.
    By(ReduceOp),
    /// The mean.
    Mean,
}

/// The segment number of each of the first `n` positions along the last axis (i32, `[lead…, n]`), where the segments
/// end at `ends [lead…, groups]`. Positions after the last end get the number of segments.
pub fn numbers(cx: &mut Lowering, ends: Value, n: &Dim) -> Result {
    let mut shape = cx.shape(ends);
    let Some(last) = shape.last_mut() else { return Err(OpError::model("needs an axis").operand(ends)) };
    *last = n.clone();
    let axis = shape.len() - 1;
    let at = cx.iota(&shape, Poly::var(axis), DType::I32)?;
    let ends = cx.nearest_i32(ends)?;
    place(cx, ends, at, true)
}

/// Reduces the elements along an axis by segment, together with `initial`. `group` has the axes up to and including
/// that one; elements with a number of at least `count` belong to no segment.
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

/// Reduces segments of adjacent elements along an axis; `begins` and `ends` have the axes up to and including that
/// one. An empty segment gives `initial`, or the identity of the reduction; its mean is NaN.
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

/// Scatters elements of `source` into `x` with a reduction: the index replaces the coordinate along an axis. Indices
/// of rank 1 select whole slices. Old elements take part in the reduction if `with_old`, else they are replaced where
/// anything is written.
pub fn scatter(
    cx: &mut Lowering,
    [x, index, source]: [Value; 3],
    axis: usize,
    how: Combined,
    with_old: bool,
) -> Result {
    let (dims, dtype) = (cx.shape(x), cx.dtype(x));
    let index = cx.require_indices(index)?;
    let mut from = cx.shape(source);
    let mut at: Vec<Poly> = (0..dims.len()).map(Poly::var).collect();
    if from.len() != dims.len() {
        return Err(OpError::model(format!("{} into {}", cx.ty(source), cx.ty(x))).operand(source));
    }
    if cx.rank(index) == dims.len() {
        from = cx.shape(index);
    } else {
        from[axis] = cx.shape(cx.require_rank(index, 1)?)[0].clone();
        at = vec![Poly::var(axis)];
    }
    // The leading part of a source that is longer than the index.
    let source = cx.view(source, from.clone(), (0..dims.len()).map(Poly::var).collect())?;
    let mut to: Vec<GatherAxis> = (0..dims.len()).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
    to[axis] = GatherAxis::Data { input: 2, at };
    let push = |cx: &mut Lowering, op: ReduceOp, base: Value, v: Value| -> Result {
        Ok(cx.push(Op::Scatter { reduce: Some(op), index: to.clone() }, &[base, v, index])?)
    };
    let op = match how {
        Combined::By(op) => op,
        Combined::Mean => ReduceOp::Sum,
    };
    let count = |cx: &mut Lowering, first: i64| -> Result {
        let base = cx.full(&dims, Scalar::from_i64(DType::I32, first))?;
        let ones = cx.full(&from, Scalar::from_i64(DType::I32, 1))?;
        push(cx, ReduceOp::Sum, base, ones)
    };
    let mut base = x;
    let mut counts = None;
    if !with_old {
        let hits = count(cx, 0)?;
        let mut f = Body::default();
        let (hits0, x0, none, first) = (f.arg(0), f.arg(1), f.i32(0), f.constant(op.identity(dtype)));
        let hit = f.binary(B::Gt, hits0, none);
        f.select(hit, first, x0);
        base = cx.map(f.0, &[hits, x])?;
        counts = Some(hits);
    }
    let y = push(cx, op, base, source)?;
    if how != Combined::Mean {
        return Ok(y);
    }
    let counts = match counts {
        Some(c) => c,
        None => count(cx, 1)?,
    };
    let mut f = Body::default();
    let (y0, c0, one) = (f.arg(0), f.arg(1), f.i32(1));
    let n = f.binary(B::Max, c0, one);
    let n = f.cast(dtype, n);
    if dtype.is_float() {
        f.binary(B::Div, y0, n);
    } else {
        super::elementwise::floored(&mut f, y0, n, dtype);
    }
    Ok(cx.map(f.0, &[y, counts])?)
}
