//! Norms `(Σ |x|ᵖ)^(1/p)`: over windows, over all positions, and what is divided by them.

use super::pool;
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp, ReduceOp, Scalar, UnaryOp, Value};

/// Attribute `p`, at least 1.
fn order(cx: &Cx) -> Result<i64, OpError> {
    match cx.int("p", 2)? {
        p @ 1.. => Ok(p),
        p => Err(OpError::model(format!("a norm of order {p}")).attribute("p")),
    }
}

/// `|x|ᵖ`.
fn power(cx: &mut Cx, x: Value, p: i64) -> Result<Value, OpError> {
    if p == 2 {
        return Ok(cx.binary(BinaryOp::Mul, x, x)?);
    }
    let x = cx.unary(UnaryOp::Abs, x)?;
    Ok(if p == 1 { x } else { cx.binary_scalar(BinaryOp::Pow, x, p as f64)? })
}

/// `x^(1/p)`.
fn root(cx: &mut Cx, x: Value, p: i64) -> Result<Value, OpError> {
    Ok(match p {
        1 => x,
        2 => cx.unary(UnaryOp::Sqrt, x)?,
        _ => cx.binary_scalar(BinaryOp::Pow, x, 1.0 / p as f64)?,
    })
}

fn norm(cx: &mut Cx, x: Value, p: i64, axes: &[usize]) -> Result<Value, OpError> {
    let x = power(cx, x, p)?;
    let sum = cx.reduce(ReduceOp::Sum, x, axes, true)?;
    root(cx, sum, p)
}

fn lp_pool(cx: &mut Cx) -> Lowered {
    let p = order(cx)?;
    let (x, spatial, w) = pool::read(cx)?;
    let n = spatial.len();
    let x = power(cx, x, p)?;
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    let windows = cx.unfold(x, &w.axes(), zero)?;
    let sum = cx.reduce(ReduceOp::Sum, windows, &(2 + n..2 + 2 * n).collect::<Vec<_>>(), false)?;
    Ok(vec![root(cx, sum, p)?])
}

fn global(cx: &mut Cx) -> Lowered {
    let p = order(cx)?;
    let x = cx.input(0)?;
    let axes = pool::spatial_axes(cx, x)?;
    Ok(vec![norm(cx, x, p, &axes)?])
}

/// Divided by the norm along an axis; 0 where that is 0.
fn normalization(cx: &mut Cx) -> Lowered {
    let p = order(cx)?;
    if p > 2 {
        return Err(OpError::model(format!("a norm of order {p}, not 1 or 2")).attribute("p"));
    }
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", -1)?, cx.rank(x))?;
    let norm = norm(cx, x, p, &[axis])?;
    let none = cx.binary_scalar(BinaryOp::Eq, norm, 0.0)?;
    let y = cx.binary(BinaryOp::Div, x, norm)?;
    let dtype = cx.dtype(x);
    let zero = cx.scalar(dtype, 0.0);
    Ok(vec![cx.select(none, zero, y)?])
}

/// `GlobalLpPool`, `LpNormalization`, `LpPool`.
pub const OPS: &[OpDef] = &[
    OpDef::new("GlobalLpPool", &[1, 2, 22], global),
    OpDef::new("LpNormalization", &[1, 22], normalization).cases(&[
        "test_lpnormalization_",
        "test_l1normalization_",
        "test_l2normalization_",
    ]),
    OpDef::new("LpPool", &[1, 2, 11, 18, 22], lp_pool).cases(&["test_lppool_"]),
];
