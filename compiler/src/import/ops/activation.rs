//! Activations: a formula of one operand.

use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp as B, UnaryOp as U, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

/// `x` where it is positive, else `otherwise`.
fn positive_or(cx: &mut Cx, x: Value, otherwise: Value) -> Result {
    let positive = cx.binary_scalar(B::Gt, x, 0.0)?;
    Ok(cx.select(positive, x, otherwise)?)
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

fn prelu(cx: &mut Cx) -> Lowered {
    let (x, slope) = (cx.input(0)?, cx.input(1)?);
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

fn swish(cx: &mut Cx) -> Lowered {
    let (x, a) = (cx.input(0)?, cx.float("alpha", 1.0)?);
    let s = cx.binary_scalar(B::Mul, x, a.into())?;
    let s = cx.unary(U::Sigmoid, s)?;
    Ok(vec![cx.binary(B::Mul, x, s)?])
}

/// `x·Φ(x)`, Φ by the error function or (`tanh`) by its usual approximation.
fn gelu(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let inner = match cx.string("approximate", "none")?.as_str() {
        "none" => {
            let s = cx.binary_scalar(B::Mul, x, std::f64::consts::FRAC_1_SQRT_2)?;
            cx.unary(U::Erf, s)?
        }
        "tanh" => {
            let square = cx.binary(B::Mul, x, x)?;
            let cubic = cx.binary_scalar(B::Mul, square, 0.044_715)?;
            let one = cx.binary_scalar(B::Add, cubic, 1.0)?;
            let poly = cx.binary(B::Mul, x, one)?;
            let s = cx.binary_scalar(B::Mul, poly, (2.0 / std::f64::consts::PI).sqrt())?;
            cx.unary(U::Tanh, s)?
        }
        other => {
            return Err(
                OpError::model(format!("`{other}` is neither `none` nor `tanh`")).attribute("approximate")
            );
        }
    };
    let one = cx.binary_scalar(B::Add, inner, 1.0)?;
    let half = cx.binary_scalar(B::Mul, x, 0.5)?;
    Ok(vec![cx.binary(B::Mul, half, one)?])
}

/// Activations.
pub const OPS: &[OpDef] = &[
    OpDef::new("Celu", &[12], celu).cases(&["test_celu"]),
    OpDef::new("Elu", &[1, 6, 22], elu).cases(&["test_elu"]),
    OpDef::new("Gelu", &[20], gelu).cases(&["test_gelu"]),
    OpDef::new("HardSigmoid", &[1, 6, 22], hard_sigmoid).cases(&["test_hardsigmoid"]),
    OpDef::new("HardSwish", &[14, 22], hard_swish).cases(&["test_hardswish"]),
    OpDef::new("LeakyRelu", &[1, 6, 16], leaky_relu).cases(&["test_leakyrelu"]),
    OpDef::new("Mish", &[18, 22], mish).cases(&["test_mish"]),
    OpDef::new("PRelu", &[7, 9, 16], prelu).cases(&["test_prelu"]),
    OpDef::new("Selu", &[1, 6, 22], selu).cases(&["test_selu"]),
    OpDef::new("Softplus", &[1, 22], softplus).cases(&["test_softplus"]),
    OpDef::new("Softsign", &[1, 22], softsign).cases(&["test_softsign"]),
    OpDef::new("Swish", &[24], swish).cases(&["test_swish"]),
    OpDef::new("ThresholdedRelu", &[10, 22], thresholded_relu).cases(&["test_thresholdedrelu"]),
];
