//! Activations: a formula of one operand.

use super::{Lowering, OpError, Result};
use wgfc_ir::special::Special;
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, UnaryOp as U, Value};

/// `x` where it is positive or NaN, else `otherwise`.
fn positive_or(cx: &mut Lowering, x: Value, otherwise: Value) -> Result {
    let other = cx.binary_scalar(B::Le, x, 0.0)?;
    Ok(cx.select(other, otherwise, x)?)
}

/// `a·(eˣ − 1)` of `min(x, 0)`, so that a large positive `x` does not overflow.
fn exp_minus_one(cx: &mut Lowering, x: Value, a: f64) -> Result {
    let x = cx.binary_scalar(B::Min, x, 0.0)?;
    let e = cx.unary(U::Exp, x)?;
    let e = cx.binary_scalar(B::Sub, e, 1.0)?;
    Ok(cx.binary_scalar(B::Mul, e, a)?)
}

/// `x` where it is positive, else `a·(eˣ − 1)`.
pub fn elu(cx: &mut Lowering, x: Value, a: f64) -> Result {
    let e = exp_minus_one(cx, x, a)?;
    positive_or(cx, x, e)
}

/// `x` where it is positive, else `a·(e^(x/a) − 1)`.
pub fn celu(cx: &mut Lowering, x: Value, a: f64) -> Result {
    let scaled = cx.binary_scalar(B::Div, x, a)?;
    let e = exp_minus_one(cx, scaled, a)?;
    positive_or(cx, x, e)
}

/// `g` times [`elu`].
pub fn selu(cx: &mut Lowering, x: Value, a: f64, g: f64) -> Result {
    let y = elu(cx, x, a)?;
    Ok(cx.binary_scalar(B::Mul, y, g)?)
}

/// `x` where it is not negative, else `a·x`.
pub fn leaky_relu(cx: &mut Lowering, x: Value, a: f64) -> Result {
    let low = cx.binary_scalar(B::Mul, x, a)?;
    let negative = cx.binary_scalar(B::Lt, x, 0.0)?;
    Ok(cx.select(negative, low, x)?)
}

/// `x` where it is not negative, else `slope·x`; the slope broadcasts.
pub fn prelu(cx: &mut Lowering, x: Value, slope: Value) -> Result {
    let low = cx.binary(B::Mul, x, slope)?;
    let negative = cx.binary_scalar(B::Lt, x, 0.0)?;
    Ok(cx.select(negative, low, x)?)
}

/// `x` where it is above `a`, else 0.
pub fn thresholded_relu(cx: &mut Lowering, x: Value, a: f64) -> Result {
    let above = cx.binary_scalar(B::Gt, x, a)?;
    let dtype = cx.dtype(x);
    let zero = cx.scalar(dtype, 0.0);
    Ok(cx.select(above, x, zero)?)
}

/// `clamp(a·x + b, 0, 1)`.
pub fn hard_sigmoid(cx: &mut Lowering, x: Value, a: f64, b: f64) -> Result {
    let y = cx.binary_scalar(B::Mul, x, a)?;
    let y = cx.binary_scalar(B::Add, y, b)?;
    let y = cx.binary_scalar(B::Max, y, 0.0)?;
    Ok(cx.binary_scalar(B::Min, y, 1.0)?)
}

/// `x·clamp(a·x + b, 0, 1)`.
pub fn hard_swish(cx: &mut Lowering, x: Value, a: f64, b: f64) -> Result {
    let y = hard_sigmoid(cx, x, a, b)?;
    Ok(cx.binary(B::Mul, x, y)?)
}

/// `ln(1 + eˣ)` as `max(x, 0) + ln(1 + e^−|x|)`.
pub fn softplus(cx: &mut Lowering, x: Value) -> Result {
    let a = cx.unary(U::Abs, x)?;
    let a = cx.unary(U::Neg, a)?;
    let e = cx.unary(U::Exp, a)?;
    // `ln(1 + e)` would lose `e` where it is small beside 1.
    let l = cx.unary(U::Special(Special::Log1p), e)?;
    let m = cx.binary_scalar(B::Max, x, 0.0)?;
    Ok(cx.binary(B::Add, m, l)?)
}

/// `x·tanh(softplus(x))`.
pub fn mish(cx: &mut Lowering, x: Value) -> Result {
    let s = softplus(cx, x)?;
    let t = cx.unary(U::Tanh, s)?;
    Ok(cx.binary(B::Mul, x, t)?)
}

/// `x / (1 + |x|)`.
pub fn softsign(cx: &mut Lowering, x: Value) -> Result {
    let a = cx.unary(U::Abs, x)?;
    let d = cx.binary_scalar(B::Add, a, 1.0)?;
    Ok(cx.binary(B::Div, x, d)?)
}

/// `x·sigmoid(a·x)`.
pub fn swish(cx: &mut Lowering, x: Value, a: f64) -> Result {
    let s = cx.binary_scalar(B::Mul, x, a)?;
    let s = cx.unary(U::Sigmoid, s)?;
    Ok(cx.binary(B::Mul, x, s)?)
}

/// `x·Φ(x)`, where Φ, the normal distribution function, is computed from the error function.
pub fn gelu(cx: &mut Lowering, x: Value) -> Result {
    let s = cx.binary_scalar(B::Mul, x, std::f64::consts::FRAC_1_SQRT_2)?;
    let e = cx.unary(U::Erf, s)?;
    half_of(cx, x, e)
}

/// [`gelu`] with the usual approximation of Φ by a hyperbolic tangent.
pub fn gelu_tanh(cx: &mut Lowering, x: Value) -> Result {
    let square = cx.binary(B::Mul, x, x)?;
    let cubic = cx.binary_scalar(B::Mul, square, 0.044_715)?;
    let one = cx.binary_scalar(B::Add, cubic, 1.0)?;
    let poly = cx.binary(B::Mul, x, one)?;
    let s = cx.binary_scalar(B::Mul, poly, (2.0 / std::f64::consts::PI).sqrt())?;
    let t = cx.unary(U::Tanh, s)?;
    half_of(cx, x, t)
}

/// `x/2 · (1 + y)`.
fn half_of(cx: &mut Lowering, x: Value, y: Value) -> Result {
    let one = cx.binary_scalar(B::Add, y, 1.0)?;
    let half = cx.binary_scalar(B::Mul, x, 0.5)?;
    Ok(cx.binary(B::Mul, half, one)?)
}

/// The first half of `x` along the last axis times the [`gelu`] of the second half. The product is computed in f32: in
/// a narrower type, a Gelu that rounds to 0 times an infinite element would be NaN.
pub fn split_gelu(cx: &mut Lowering, x: Value) -> Result {
    let last = cx.rank(x).checked_sub(1).ok_or("needs an axis to halve")?;
    let width = cx.shape(x)[last].clone();
    if width.as_const().is_some_and(|w| w % 2 != 0) {
        return Err(OpError::model(format!("an axis of {width} elements has no halves")));
    }
    let half = width.div(&Dim::from(2i64), &[]);
    cx.require_equal(&(&half * 2), &width);
    let left = cx.slice(x, last, &Poly::ZERO, 1, &half)?;
    let right = cx.slice(x, last, &half, 1, &half)?;
    let (left, right) = (cx.cast(left, DType::F32)?, cx.cast(right, DType::F32)?);
    let right = gelu(cx, right)?;
    let (y, dtype) = (cx.binary(B::Mul, left, right)?, cx.dtype(x));
    Ok(cx.cast(y, dtype)?)
}

/// `a·sigmoid(alpha·a)·b` of operands of one type.
pub fn swiglu(cx: &mut Lowering, a: Value, b: Value, alpha: f64) -> Result {
    let (sa, sb) = (cx.shape(a), cx.shape(b));
    let differ = |(a, b): (&Dim, &Dim)| a != b && a.as_const().is_some() && b.as_const().is_some();
    if cx.dtype(a) != cx.dtype(b) || sa.len() != sb.len() || sa.iter().zip(&sb).any(differ) {
        return Err(OpError::model(format!("operands of different types: {} and {}", cx.ty(a), cx.ty(b))));
    }
    for (a, b) in sa.iter().zip(&sb) {
        cx.require_equal(a, b);
    }
    let gate = swish(cx, a, alpha)?;
    Ok(cx.binary(B::Mul, gate, b)?)
}

/// Soft shrinkage: elements whose magnitude is above `limit` move towards 0 by `bias`, all others become 0. Integers
/// are computed in f32.
pub fn shrink(cx: &mut Lowering, x: Value, bias: f64, limit: f64) -> Result {
    let dtype = cx.dtype(x);
    let x = if dtype.is_float() { x } else { cx.cast(x, DType::F32)? };
    let (low, high) = (cx.binary_scalar(B::Lt, x, -limit)?, cx.binary_scalar(B::Gt, x, limit)?);
    let (up, down) = (cx.binary_scalar(B::Add, x, bias)?, cx.binary_scalar(B::Sub, x, bias)?);
    let wide = cx.dtype(x);
    let zero = cx.scalar(wide, 0.0);
    let y = cx.select(high, down, zero)?;
    let y = cx.select(low, up, y)?;
    Ok(cx.cast(y, dtype)?)
}
