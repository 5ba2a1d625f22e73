//! Reductions along axes.

use super::{Lowering, Result};
use wgfc_ir::{BinaryOp, Body, Class, DType, ReduceOp, UnaryOp, Value};

/// The combination of the reduced elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum, product, maximum or minimum.
    Plain(ReduceOp),
    /// The mean.
    Mean,
    /// `Σ |x|`.
    L1,
    /// `√Σ x²`.
    L2,
    /// `Σ x²`.
    SumSquare,
    /// `ln Σ x`.
    LogSum,
    /// `ln Σ eˣ`.
    LogSumExp,
}

/// Reduces along axes, which are kept with extent 1 if `keepdims`. If `axes` is `None`, every element is reduced on
/// its own.
pub fn reduce(
    cx: &mut Lowering,
    reduction: Reduction,
    x: Value,
    axes: Option<&[usize]>,
    keepdims: bool,
) -> Result {
    let dtype = cx.dtype(x);
    let sum = |cx: &mut Lowering, x: Value| -> Result {
        Ok(match axes {
            Some(axes) => cx.reduce(ReduceOp::Sum, x, axes, keepdims)?,
            None => x,
        })
    };
    match (reduction, axes) {
        (Reduction::Plain(_) | Reduction::Mean | Reduction::LogSumExp, None) => Ok(x),
        (Reduction::Plain(op), Some(axes)) => Ok(cx.reduce(op, x, axes, keepdims)?),
        (Reduction::Mean, Some(axes)) => {
            let m = cx.mean(x, axes)?;
            Ok(if keepdims { m } else { cx.squeeze(m, axes)? })
        }
        (Reduction::LogSumExp, Some(axes)) => log_sum_exp(cx, x, axes, keepdims),
        (Reduction::L1, _) => {
            let signed = cx.dtype(x).is_float() || cx.dtype(x).class() == Class::Int;
            let x = if signed { cx.unary(UnaryOp::Abs, x)? } else { x };
            sum(cx, x)
        }
        (Reduction::L2 | Reduction::SumSquare, _) => {
            let x = cx.widened(x)?;
            let x = cx.binary(BinaryOp::Mul, x, x)?;
            let y = sum(cx, x)?;
            let y = if reduction == Reduction::L2 { of_floats(cx, y, UnaryOp::Sqrt)? } else { y };
            Ok(cx.cast(y, dtype)?)
        }
        (Reduction::LogSum, _) => {
            let x = cx.widened(x)?;
            let y = sum(cx, x)?;
            let y = of_floats(cx, y, UnaryOp::Log)?;
            Ok(cx.cast(y, dtype)?)
        }
    }
}

/// Applies a function of floats; integers are converted to f32, and the result is truncated.
fn of_floats(cx: &mut Lowering, x: Value, op: UnaryOp) -> Result {
    let dtype = cx.dtype(x);
    let x = if dtype.is_float() { x } else { cx.cast(x, DType::F32)? };
    let y = cx.unary(op, x)?;
    Ok(cx.cast(y, dtype)?)
}

/// `m + ln Σ exp(x − m)`, where `m` is the largest element, or 0 if that is infinite.
fn log_sum_exp(cx: &mut Lowering, x: Value, axes: &[usize], keepdims: bool) -> Result {
    let dtype = cx.dtype(x);
    let x = if dtype.is_float() { cx.widened(x)? } else { cx.cast(x, DType::F32)? };
    let largest = cx.reduce(ReduceOp::Max, x, axes, true)?;
    let mut f = Body::default();
    let m = f.arg(0);
    let (infinite, zero) = (f.unary(UnaryOp::IsInf, m), f.number(cx.dtype(x), 0.0));
    f.select(infinite, zero, m);
    let m = cx.map(f.0, &[largest])?;
    let d = cx.binary(BinaryOp::Sub, x, m)?;
    let e = cx.unary(UnaryOp::Exp, d)?;
    let sum = cx.reduce(ReduceOp::Sum, e, axes, true)?;
    let log = cx.unary(UnaryOp::Log, sum)?;
    let y = cx.binary(BinaryOp::Add, log, m)?;
    let y = if keepdims { y } else { cx.squeeze(y, axes)? };
    Ok(cx.cast(y, dtype)?)
}

#[cfg(test)]
mod tests;
