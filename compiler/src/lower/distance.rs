//! Vector norms, distances and the cross product.

use super::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, ReduceOp, UnaryOp as U, Value};

/// The p-norm `(Σ |x|ᵖ)^(1/p)` along axes, which are kept with extent 1. For `p = 0` it is the number of non-zero
/// elements, for ∞ and −∞ the largest and the smallest magnitude.
pub fn norm(cx: &mut Lowering, x: Value, p: f64, axes: &[usize]) -> Result {
    let dtype = cx.dtype(x);
    if !dtype.is_float() {
        return Err(OpError::model(format!("a norm of {}", cx.ty(x))).operand(x));
    }
    let x = cx.cast(x, DType::F32)?;
    let a = cx.unary(U::Abs, x)?;
    let y = if p == 0.0 {
        let some = cx.binary_scalar(B::Ne, a, 0.0)?;
        let some = cx.cast(some, DType::F32)?;
        cx.reduce(ReduceOp::Sum, some, axes, true)?
    } else if p == 1.0 {
        cx.reduce(ReduceOp::Sum, a, axes, true)?
    } else if p == 2.0 {
        let square = cx.binary(B::Mul, x, x)?;
        let sum = cx.reduce(ReduceOp::Sum, square, axes, true)?;
        cx.unary(U::Sqrt, sum)?
    } else if p.is_infinite() {
        let op = if p > 0.0 { ReduceOp::Max } else { ReduceOp::Min };
        cx.reduce(op, a, axes, true)?
    } else {
        let powers = cx.binary_scalar(B::Pow, a, p)?;
        let sum = cx.reduce(ReduceOp::Sum, powers, axes, true)?;
        cx.binary_scalar(B::Pow, sum, 1.0 / p)?
    };
    Ok(cx.cast(y, dtype)?)
}

/// Pairwise distances: the p-norm of the difference of each row of `a [batch…, n, d]` and each row of
/// `b [batch…, m, d]`, `[batch…, n, m]`.
pub fn between(cx: &mut Lowering, a: Value, b: Value, p: f64) -> Result {
    let (rank, rank_b) = (cx.rank(a), cx.rank(b));
    if rank < 2 || rank_b < 2 || cx.dtype(a) != cx.dtype(b) {
        return Err(OpError::model(format!("rows of {} and {}", cx.ty(a), cx.ty(b))));
    }
    let (a, b) = (cx.unsqueeze(a, &[rank - 1])?, cx.unsqueeze(b, &[rank_b - 2])?);
    let d = cx.binary(B::Sub, a, b)?;
    let last = cx.rank(d) - 1;
    let y = norm(cx, d, p, &[last])?;
    Ok(cx.squeeze(y, &[last])?)
}

/// The cross product along an axis of extent 3.
pub fn cross(cx: &mut Lowering, a: Value, b: Value, axis: usize) -> Result {
    let shape = cx.broadcast_shape(&[a, b])?;
    if !shape[axis].is(3) {
        return Err(OpError::model(format!("axis {axis} has {} elements, not 3", shape[axis])));
    }
    let turned = |cx: &mut Lowering, v: Value, by: i64| -> Result {
        let v = cx.expand(v, &shape)?;
        let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
        index[axis] = (&index[axis] + by).modulo(&Dim::from(3i64), &shape);
        Ok(cx.view(v, shape.clone(), index)?)
    };
    let (a1, b2, a2, b1) = (turned(cx, a, 1)?, turned(cx, b, 2)?, turned(cx, a, 2)?, turned(cx, b, 1)?);
    let (first, second) = (cx.binary(B::Mul, a1, b2)?, cx.binary(B::Mul, a2, b1)?);
    Ok(cx.binary(B::Sub, first, second)?)
}

/// Scales each slice along an axis down to the p-norm `most` if its p-norm is larger.
pub fn renorm(cx: &mut Lowering, x: Value, p: f64, axis: usize, most: f64) -> Result {
    let dtype = cx.dtype(x);
    let axes: Vec<usize> = (0..cx.rank(x)).filter(|d| *d != axis).collect();
    let wide = cx.cast(x, DType::F32)?;
    let n = norm(cx, wide, p, &axes)?;
    let above = cx.binary_scalar(B::Gt, n, most)?;
    let n = cx.binary_scalar(B::Add, n, 1e-7)?;
    let limit = cx.scalar(DType::F32, most);
    let less = cx.binary(B::Div, limit, n)?;
    let one = cx.scalar(DType::F32, 1.0);
    let factor = cx.select(above, less, one)?;
    let factor = cx.cast(factor, dtype)?;
    Ok(cx.binary(B::Mul, x, factor)?)
}
