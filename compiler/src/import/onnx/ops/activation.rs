//! Activations: functions of one operand.

use crate::import::onnx::prelude::*;
use crate::lower::{activation, norm};
use wgfc_ir::{BinaryOp as B, Value};

fn plain(cx: &mut Cx, f: fn(&mut Lowering, Value) -> Result) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![f(cx, x)?])
}

/// A function with the parameter `alpha`.
fn scaled(cx: &mut Cx, default: f32, f: fn(&mut Lowering, Value, f64) -> Result) -> Lowered {
    let (x, alpha) = (cx.input(0)?, cx.float("alpha", default)?);
    Ok(vec![f(cx, x, alpha.into())?])
}

fn selu(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (a, g) = (cx.float("alpha", 1.673_263_2)?, cx.float("gamma", 1.050_701)?);
    Ok(vec![activation::selu(cx, x, a.into(), g.into())?])
}

/// A one-dimensional slope is per channel before opset 7, and later if it cannot be broadcast otherwise.
fn prelu(cx: &mut Cx) -> Lowered {
    let (x, mut slope) = (cx.input(0)?, cx.input(1)?);
    if let ([_, channels, .., last], [n]) = (cx.shape(x).as_slice(), cx.shape(slope).as_slice())
        && !n.is(1)
        && (cx.since < 7 || (n == channels && n != last && last.as_const().is_some()))
    {
        let rank = cx.rank(x);
        slope = norm::per_channel(cx, slope, rank)?;
    }
    Ok(vec![activation::prelu(cx, x, slope)?])
}

fn hard_sigmoid(cx: &mut Cx) -> Lowered {
    let (x, a, b) = (cx.input(0)?, cx.float("alpha", 0.2)?, cx.float("beta", 0.5)?);
    Ok(vec![activation::hard_sigmoid(cx, x, a.into(), b.into())?])
}

fn gelu(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    match cx.string("approximate", "none")?.as_str() {
        "none" => Ok(vec![activation::gelu(cx, x)?]),
        "tanh" => Ok(vec![activation::gelu_tanh(cx, x)?]),
        other => {
            Err(OpError::model(format!("`{other}` is neither `none` nor `tanh`")).attribute("approximate"))
        }
    }
}

/// A function of input 0, with the optional bias in input 1 added first.
fn biased(cx: &mut Cx, f: fn(&mut Lowering, Value) -> Result) -> Lowered {
    let mut x = cx.input(0)?;
    if let Some(b) = cx.opt(1) {
        x = cx.binary(B::Add, x, b)?;
    }
    Ok(vec![f(cx, x)?])
}

fn bias_split_gelu(cx: &mut Cx) -> Lowered {
    cx.input(1)?;
    biased(cx, activation::split_gelu)
}

fn swiglu(cx: &mut Cx) -> Lowered {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let alpha = cx.float("alpha", 1.0)?;
    Ok(vec![activation::swiglu(cx, a, b, alpha.into())?])
}

fn shrink(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (bias, limit) = (cx.float("bias", 0.0)?, cx.float("lambd", 0.5)?);
    Ok(vec![activation::shrink(cx, x, bias.into(), limit.into())?])
}

/// Activations.
pub const OPS: &[OpDef] = &[
    OpDef::new("BiasGelu", &[1], |cx| biased(cx, activation::gelu)).domain(MICROSOFT).cases(&["bias_gelu"]),
    OpDef::new("BiasSplitGelu", &[1], bias_split_gelu).domain(MICROSOFT).cases(&["bias_split_gelu"]),
    OpDef::new("FastGelu", &[1], |cx| biased(cx, activation::gelu_tanh))
        .domain(MICROSOFT)
        .cases(&["fast_gelu"]),
    OpDef::new("Gelu", &[1], |cx| biased(cx, activation::gelu)).domain(MICROSOFT).cases(&["gelu"]),
    OpDef::new("QuickGelu", &[1], |cx| scaled(cx, 1.702, activation::swish))
        .domain(MICROSOFT)
        .cases(&["quick_gelu"]),
    OpDef::new("Celu", &[12], |cx| scaled(cx, 1.0, activation::celu)).cases(&["test_celu"]),
    OpDef::new("Elu", &[1, 6, 22], |cx| scaled(cx, 1.0, activation::elu)).cases(&["test_elu"]),
    OpDef::new("Gelu", &[20], gelu).cases(&["test_gelu"]),
    OpDef::new("HardSigmoid", &[1, 6, 22], hard_sigmoid).cases(&["test_hardsigmoid"]),
    OpDef::new("HardSwish", &[14, 22], |cx| plain(cx, |cx, x| activation::hard_swish(cx, x, 1.0 / 6.0, 0.5)))
        .cases(&["test_hardswish"]),
    OpDef::new("LeakyRelu", &[1, 6, 16], |cx| scaled(cx, 0.01, activation::leaky_relu))
        .cases(&["test_leakyrelu"]),
    OpDef::new("Mish", &[18, 22], |cx| plain(cx, activation::mish)).cases(&["test_mish"]),
    OpDef::new("PRelu", &[1, 6, 7, 9, 16], prelu).cases(&["test_prelu"]),
    OpDef::new("Selu", &[1, 6, 22], selu).cases(&["test_selu"]),
    OpDef::new("Shrink", &[9], shrink).cases(&["test_shrink_"]),
    OpDef::new("Softplus", &[1, 22], |cx| plain(cx, activation::softplus)).cases(&["test_softplus"]),
    OpDef::new("Softsign", &[1, 22], |cx| plain(cx, activation::softsign)).cases(&["test_softsign"]),
    OpDef::new("SwiGLU", &[28], swiglu).cases(&["test_swiglu"]),
    OpDef::new("Swish", &[24], |cx| scaled(cx, 1.0, activation::swish)).cases(&["test_swish"]),
    OpDef::new("ThresholdedRelu", &[10, 22], |cx| scaled(cx, 1.0, activation::thresholded_relu))
        .cases(&["test_thresholdedrelu"]),
];
