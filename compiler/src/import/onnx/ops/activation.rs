//! Activations: a formula of one operand.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, UnaryOp as U, Value};

const MICROSOFT: &str = "com.microsoft";

type Result<T = Value> = std::result::Result<T, OpError>;

/// `x` where it is positive or NaN, else `otherwise`.
fn positive_or(cx: &mut Cx, x: Value, otherwise: Value) -> Result {
    let other = cx.binary_scalar(B::Le, x, 0.0)?;
    Ok(cx.select(other, otherwise, x)?)
}

/// `a·(eˣ − 1)`, of the negative part only, so that nothing overflows.
fn exp_minus_one(cx: &mut Cx, x: Value, a: f32) -> Result {
    let x = cx.binary_scalar(B::Min, x, 0.0)?;
    let e = cx.unary(U::Exp, x)?;
    let e = cx.binary_scalar(B::Sub, e, 1.0)?;
    Ok(cx.binary_scalar(B::Mul, e, a.into())?)
}

fn elu(cx: &mut Cx) -> Lowered {
    let (x, a) = (cx.input(0)?, cx.float("alpha", 1.0)?);
    let e = exp_minus_one(cx, x, a)?;
    Ok(vec![positive_or(cx, x, e)?])
}

fn celu(cx: &mut Cx) -> Lowered {
    let (x, a) = (cx.input(0)?, cx.float("alpha", 1.0)?);
    let scaled = cx.binary_scalar(B::Div, x, a.into())?;
    let e = exp_minus_one(cx, scaled, a)?;
    Ok(vec![positive_or(cx, x, e)?])
}

fn selu(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (a, g) = (cx.float("alpha", 1.673_263_2)?, cx.float("gamma", 1.050_701)?);
    let e = exp_minus_one(cx, x, a)?;
    let y = positive_or(cx, x, e)?;
    Ok(vec![cx.binary_scalar(B::Mul, y, g.into())?])
}

fn leaky_relu(cx: &mut Cx) -> Lowered {
    let (x, a) = (cx.input(0)?, cx.float("alpha", 0.01)?);
    let low = cx.binary_scalar(B::Mul, x, a.into())?;
    let negative = cx.binary_scalar(B::Lt, x, 0.0)?;
    Ok(vec![cx.select(negative, low, x)?])
}

/// The slope broadcasts. A list is one for each channel before opset 7, and where it fits only so.
fn prelu(cx: &mut Cx) -> Lowered {
    let (x, mut slope) = (cx.input(0)?, cx.input(1)?);
    if let ([_, channels, .., last], [n]) = (cx.shape(x).as_slice(), cx.shape(slope).as_slice())
        && !n.is(1)
        && (cx.since < 7 || (n == channels && n != last && last.as_const().is_some()))
    {
        slope = super::norm::per_channel(cx, slope, cx.rank(x))?;
    }
    let low = cx.binary(B::Mul, x, slope)?;
    let negative = cx.binary_scalar(B::Lt, x, 0.0)?;
    Ok(vec![cx.select(negative, low, x)?])
}

fn thresholded_relu(cx: &mut Cx) -> Lowered {
    let (x, a) = (cx.input(0)?, cx.float("alpha", 1.0)?);
    let above = cx.binary_scalar(B::Gt, x, a.into())?;
    let dtype = cx.dtype(x);
    let zero = cx.scalar(dtype, 0.0);
    Ok(vec![cx.select(above, x, zero)?])
}

/// `clamp(a·x + b, 0, 1)`.
fn hard(cx: &mut Cx, x: Value, a: f32, b: f32) -> Result {
    let y = cx.binary_scalar(B::Mul, x, a.into())?;
    let y = cx.binary_scalar(B::Add, y, b.into())?;
    let y = cx.binary_scalar(B::Max, y, 0.0)?;
    Ok(cx.binary_scalar(B::Min, y, 1.0)?)
}

fn hard_sigmoid(cx: &mut Cx) -> Lowered {
    let (x, a, b) = (cx.input(0)?, cx.float("alpha", 0.2)?, cx.float("beta", 0.5)?);
    Ok(vec![hard(cx, x, a, b)?])
}

fn hard_swish(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let y = hard(cx, x, 1.0 / 6.0, 0.5)?;
    Ok(vec![cx.binary(B::Mul, x, y)?])
}

/// `max(x, 0) + ln(1 + e^−|x|)`.
fn softplus_of(cx: &mut Cx, x: Value) -> Result {
    let a = cx.unary(U::Abs, x)?;
    let a = cx.unary(U::Neg, a)?;
    let e = cx.unary(U::Exp, a)?;
    let e = cx.binary_scalar(B::Add, e, 1.0)?;
    let l = cx.unary(U::Log, e)?;
    let m = cx.binary_scalar(B::Max, x, 0.0)?;
    Ok(cx.binary(B::Add, m, l)?)
}

fn softplus(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![softplus_of(cx, x)?])
}

fn mish(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let s = softplus_of(cx, x)?;
    let t = cx.unary(U::Tanh, s)?;
    Ok(vec![cx.binary(B::Mul, x, t)?])
}

fn softsign(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let a = cx.unary(U::Abs, x)?;
    let d = cx.binary_scalar(B::Add, a, 1.0)?;
    Ok(vec![cx.binary(B::Div, x, d)?])
}

/// `x·sigmoid(a·x)`.
fn sigmoid_unit(cx: &mut Cx, a: f32) -> Result {
    let x = cx.input(0)?;
    let s = cx.binary_scalar(B::Mul, x, a.into())?;
    let s = cx.unary(U::Sigmoid, s)?;
    Ok(cx.binary(B::Mul, x, s)?)
}

fn swish(cx: &mut Cx) -> Lowered {
    let a = cx.float("alpha", 1.0)?;
    Ok(vec![sigmoid_unit(cx, a)?])
}

/// `x·Φ(x)`, Φ by the error function.
fn gelu_of(cx: &mut Cx, x: Value) -> Result {
    let s = cx.binary_scalar(B::Mul, x, std::f64::consts::FRAC_1_SQRT_2)?;
    let e = cx.unary(U::Erf, s)?;
    half_of(cx, x, e)
}

/// The same with the usual approximation of Φ by a hyperbolic tangent.
fn fast_gelu_of(cx: &mut Cx, x: Value) -> Result {
    let square = cx.binary(B::Mul, x, x)?;
    let cubic = cx.binary_scalar(B::Mul, square, 0.044_715)?;
    let one = cx.binary_scalar(B::Add, cubic, 1.0)?;
    let poly = cx.binary(B::Mul, x, one)?;
    let s = cx.binary_scalar(B::Mul, poly, (2.0 / std::f64::consts::PI).sqrt())?;
    let t = cx.unary(U::Tanh, s)?;
    half_of(cx, x, t)
}

/// `x/2 · (1 + y)`.
fn half_of(cx: &mut Cx, x: Value, y: Value) -> Result {
    let one = cx.binary_scalar(B::Add, y, 1.0)?;
    let half = cx.binary_scalar(B::Mul, x, 0.5)?;
    Ok(cx.binary(B::Mul, half, one)?)
}

fn gelu(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    match cx.string("approximate", "none")?.as_str() {
        "none" => Ok(vec![gelu_of(cx, x)?]),
        "tanh" => Ok(vec![fast_gelu_of(cx, x)?]),
        other => {
            Err(OpError::model(format!("`{other}` is neither `none` nor `tanh`")).attribute("approximate"))
        }
    }
}

/// Input 0, plus input 1 where there is one.
fn biased(cx: &mut Cx) -> Result {
    let x = cx.input(0)?;
    match cx.opt(1) {
        Some(b) => Ok(cx.binary(B::Add, x, b)?),
        None => Ok(x),
    }
}

fn bias_gelu(cx: &mut Cx) -> Lowered {
    let x = biased(cx)?;
    Ok(vec![gelu_of(cx, x)?])
}

/// Of `x + bias` the first half times the Gelu of the second, along the last axis; in f32, as a Gelu that is nearly 0 is
/// none where the other half is infinite.
fn bias_split_gelu(cx: &mut Cx) -> Lowered {
    let (x, bias) = (cx.input(0)?, cx.input(1)?);
    let x = cx.binary(B::Add, x, bias)?;
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
    let right = gelu_of(cx, right)?;
    let (y, dtype) = (cx.binary(B::Mul, left, right)?, cx.dtype(x));
    Ok(vec![cx.cast(y, dtype)?])
}

fn fast_gelu(cx: &mut Cx) -> Lowered {
    let x = biased(cx)?;
    Ok(vec![fast_gelu_of(cx, x)?])
}

fn quick_gelu(cx: &mut Cx) -> Lowered {
    let a = cx.float("alpha", 1.702)?;
    Ok(vec![sigmoid_unit(cx, a)?])
}

/// `a·sigmoid(alpha·a)·b` of operands of one type.
fn swiglu(cx: &mut Cx) -> Lowered {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let (sa, sb) = (cx.shape(a), cx.shape(b));
    let differ = |(a, b): (&Dim, &Dim)| a != b && a.as_const().is_some() && b.as_const().is_some();
    if cx.dtype(a) != cx.dtype(b) || sa.len() != sb.len() || sa.iter().zip(&sb).any(differ) {
        return Err(OpError::model(format!("operands of different types: {} and {}", cx.ty(a), cx.ty(b))));
    }
    for (a, b) in sa.iter().zip(&sb) {
        cx.require_equal(a, b);
    }
    let alpha = cx.float("alpha", 1.0)?;
    let gate = sigmoid_unit(cx, alpha)?;
    Ok(vec![cx.binary(B::Mul, gate, b)?])
}

/// Moved towards 0 by `bias` where it is further than `lambd`, else 0. Integers through f32.
fn shrink(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (bias, limit) = (cx.float("bias", 0.0)?, cx.float("lambd", 0.5)?);
    let dtype = cx.dtype(x);
    let x = if dtype.is_float() { x } else { cx.cast(x, DType::F32)? };
    let (low, high) =
        (cx.binary_scalar(B::Lt, x, -f64::from(limit))?, cx.binary_scalar(B::Gt, x, limit.into())?);
    let (up, down) = (cx.binary_scalar(B::Add, x, bias.into())?, cx.binary_scalar(B::Sub, x, bias.into())?);
    let wide = cx.dtype(x);
    let zero = cx.scalar(wide, 0.0);
    let y = cx.select(high, down, zero)?;
    let y = cx.select(low, up, y)?;
    Ok(vec![cx.cast(y, dtype)?])
}

/// Activations.
pub const OPS: &[OpDef] = &[
    OpDef::new("BiasGelu", &[1], bias_gelu).domain(MICROSOFT).cases(&["bias_gelu"]),
    OpDef::new("BiasSplitGelu", &[1], bias_split_gelu).domain(MICROSOFT).cases(&["bias_split_gelu"]),
    OpDef::new("FastGelu", &[1], fast_gelu).domain(MICROSOFT).cases(&["fast_gelu"]),
    OpDef::new("Gelu", &[1], bias_gelu).domain(MICROSOFT).cases(&["gelu"]),
    OpDef::new("QuickGelu", &[1], quick_gelu).domain(MICROSOFT).cases(&["quick_gelu"]),
    OpDef::new("Celu", &[12], celu).cases(&["test_celu"]),
    OpDef::new("Elu", &[1, 6, 22], elu).cases(&["test_elu"]),
    OpDef::new("Gelu", &[20], gelu).cases(&["test_gelu"]),
    OpDef::new("HardSigmoid", &[1, 6, 22], hard_sigmoid).cases(&["test_hardsigmoid"]),
    OpDef::new("HardSwish", &[14, 22], hard_swish).cases(&["test_hardswish"]),
    OpDef::new("LeakyRelu", &[1, 6, 16], leaky_relu).cases(&["test_leakyrelu"]),
    OpDef::new("Mish", &[18, 22], mish).cases(&["test_mish"]),
    OpDef::new("PRelu", &[1, 6, 7, 9, 16], prelu).cases(&["test_prelu"]),
    OpDef::new("Selu", &[1, 6, 22], selu).cases(&["test_selu"]),
    OpDef::new("Shrink", &[9], shrink).cases(&["test_shrink_"]),
    OpDef::new("Softplus", &[1, 22], softplus).cases(&["test_softplus"]),
    OpDef::new("Softsign", &[1, 22], softsign).cases(&["test_softsign"]),
    OpDef::new("SwiGLU", &[28], swiglu).cases(&["test_swiglu"]),
    OpDef::new("Swish", &[24], swish).cases(&["test_swish"]),
    OpDef::new("ThresholdedRelu", &[10, 22], thresholded_relu).cases(&["test_thresholdedrelu"]),
];
