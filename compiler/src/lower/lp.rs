//! Norms `(Σ |x|ᵖ)^(1/p)` along axes and over windows, and normalisation by them.

use super::window::Windows;
use super::{Lowering, Result};
use wgfc_ir::{BinaryOp, ReduceOp, Scalar, UnaryOp, Value};

/// `|x|ᵖ`.
fn power(cx: &mut Lowering, x: Value, p: i64) -> Result {
    if p == 2 {
        return Ok(cx.binary(BinaryOp::Mul, x, x)?);
    }
    let x = cx.unary(UnaryOp::Abs, x)?;
    Ok(if p == 1 { x } else { cx.binary_scalar(BinaryOp::Pow, x, p as f64)? })
}

/// `x^(1/p)`.
fn root(cx: &mut Lowering, x: Value, p: i64) -> Result {
    Ok(match p {
        1 => x,
        2 => cx.unary(UnaryOp::Sqrt, x)?,
        _ => cx.binary_scalar(BinaryOp::Pow, x, 1.0 / p as f64)?,
    })
}

/// The norm of order `p` (at least 1) along axes, which are kept with extent 1.
pub fn norm(cx: &mut Lowering, x: Value, p: i64, axes: &[usize]) -> Result {
    let (dtype, x) = (cx.dtype(x), cx.widened(x)?);
    let x = power(cx, x, p)?;
    let sum = cx.reduce(ReduceOp::Sum, x, axes, true)?;
    let y = root(cx, sum, p)?;
    Ok(cx.cast(y, dtype)?)
}

/// The norm of each window.
pub fn pool(cx: &mut Lowering, x: Value, p: i64, w: &Windows) -> Result {
    let n = w.kernel.len();
    let (dtype, x) = (cx.dtype(x), cx.widened(x)?);
    let x = power(cx, x, p)?;
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    let (windows, _) = cx.unfold_inside(x, &w.axes(), zero)?;
    let sum = cx.reduce(ReduceOp::Sum, windows, &(2 + n..2 + 2 * n).collect::<Vec<_>>(), false)?;
    let y = root(cx, sum, p)?;
    Ok(cx.cast(y, dtype)?)
}

/// `x` divided by its norm along an axis; 0 where the norm is 0.
pub fn normalised(cx: &mut Lowering, x: Value, p: i64, axis: usize) -> Result {
    let (dtype, x) = (cx.dtype(x), cx.widened(x)?);
    let norm = norm(cx, x, p, &[axis])?;
    let none = cx.binary_scalar(BinaryOp::Eq, norm, 0.0)?;
    let y = cx.binary(BinaryOp::Div, x, norm)?;
    let wide = cx.dtype(x);
    let zero = cx.scalar(wide, 0.0);
    let y = cx.select(none, zero, y)?;
    Ok(cx.cast(y, dtype)?)
}
