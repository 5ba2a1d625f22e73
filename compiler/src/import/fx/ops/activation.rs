//! Activations.

use super::super::prelude::*;
use crate::lower::{activation, elementwise, softmax};
use wgfc_ir::{Poly, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._log_softmax.default", |cx| along(cx, true)),
    OpDef::new("aten._safe_softmax.default", safe_softmax),
    OpDef::new("aten._softmax.default", |cx| along(cx, false)),
    OpDef::new("aten.celu.default", |cx| with(cx, &["alpha"], |cx, x, p| activation::celu(cx, x, p[0]))).in_f32(),
    OpDef::new("aten.clamp.Tensor|default", clamp),
    OpDef::new("aten.clamp_max.default|Tensor", clamp),
    OpDef::new("aten.clamp_min.Tensor|default", clamp),
    OpDef::new("aten.clip.Tensor|default", clamp),
    OpDef::new("aten.elu.default", elu).in_f32(),
    OpDef::new("aten.gelu.default", gelu).in_f32(),
    OpDef::new("aten.glu.default", glu),
    OpDef::new("aten.hardshrink.default", |cx| with(cx, &["lambd"], |cx, x, p| shrunk(cx, x, 0.0, p[0]))),
    OpDef::new("aten.hardsigmoid.default", |cx| {
        with(cx, &[], |cx, x, _| activation::hard_sigmoid(cx, x, 1.0 / 6.0, 0.5))
    }).in_f32(),
    OpDef::new("aten.hardswish.default", |cx| {
        with(cx, &[], |cx, x, _| activation::hard_swish(cx, x, 1.0 / 6.0, 0.5))
    }).in_f32(),
    OpDef::new("aten.hardtanh.default", hardtanh),
    OpDef::new("aten.leaky_relu.default", |cx| {
        with(cx, &["negative_slope"], |cx, x, p| activation::leaky_relu(cx, x, p[0]))
    }).in_f32(),
    OpDef::new("aten.log_sigmoid.default", log_sigmoid).in_f32(),
    OpDef::new("aten.log_softmax.int", |cx| along(cx, true)),
    OpDef::new("aten.mish.default", |cx| with(cx, &[], |cx, x, _| activation::mish(cx, x))).in_f32(),
    OpDef::new("aten.prelu.default", prelu),
    OpDef::new("aten.relu.default", relu),
    OpDef::new("aten.relu6.default", relu6),
    OpDef::new("aten.selu.default", |cx| {
        with(cx, &[], |cx, x, _| activation::selu(cx, x, 1.673_263_242_354_377_2, 1.050_700_987_355_480_5))
    }).in_f32(),
    OpDef::new("aten.silu.default", |cx| with(cx, &[], |cx, x, _| activation::swish(cx, x, 1.0))).in_f32(),
    OpDef::new("aten.softmax.int", |cx| along(cx, false)),
    OpDef::new("aten.softplus.default", softplus).in_f32(),
    OpDef::new("aten.softshrink.default", |cx| {
        with(cx, &["lambd"], |cx, x, p| shrunk(cx, x, p[0], p[0]))
    }).in_f32(),
    OpDef::new("aten.special_softmax.default", |cx| along(cx, false)),
    OpDef::new("aten.threshold.default", threshold),
];

/// A function of the operand and of the constants in the arguments `names`.
fn with(cx: &mut Cx, names: &[&str], f: fn(&mut Lowering, Value, &[f64]) -> Result) -> Lowered {
    let x = cx.tensor("self")?;
    let mut numbers = vec![];
    for n in names {
        numbers.push(cx.float(n)?);
    }
    let x = if cx.result_dtype(0)?.is_float() { cx.as_float(x)? } else { x };
    Ok(vec![f(cx, x, &numbers)?])
}

/// [`activation::shrink`], except that NaN stays NaN.
fn shrunk(cx: &mut Lowering, x: Value, bias: f64, limit: f64) -> Result {
    let (y, none) = (activation::shrink(cx, x, bias, limit)?, cx.unary(UnaryOp::IsNan, x)?);
    Ok(cx.select(none, x, y)?)
}

fn along(cx: &mut Cx, log: bool) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.result_dtype(0)?;
    let x = cx.converted(x, dtype)?;
    if cx.rank(x) == 0 {
        let one = cx.reshape(x, vec![Dim::ONE])?;
        let y = softmax::along(cx, one, 0, log)?;
        return Ok(vec![cx.reshape(y, vec![])?]);
    }
    let axis = cx.axis("dim", cx.rank(x))?;
    Ok(vec![softmax::along(cx, x, axis, log)?])
}

/// Softmax with a result of 0 for rows that contain only -∞.
fn safe_softmax(cx: &mut Cx) -> Lowered {
    let y = along(cx, false)?[0];
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let largest = cx.reduce(wgfc_ir::ReduceOp::Max, x, &[axis], true)?;
    let none = cx.binary_scalar(BinaryOp::Eq, largest, f64::NEG_INFINITY)?;
    let zero = cx.scalar(cx.dtype(y), 0.0);
    Ok(vec![cx.select(none, zero, y)?])
}

fn clamp(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.result_dtype(0)?;
    let mut x = cx.converted(x, dtype)?;
    for (name, op) in [("min", BinaryOp::Max), ("max", BinaryOp::Min)] {
        if cx.declares(name) && cx.has(name) {
            let bound = cx.operand(name)?;
            let bound = cx.in_type(&bound, dtype)?;
            x = elementwise::binary(cx, op, x, bound)?;
        }
    }
    Ok(vec![x])
}

fn hardtanh(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.dtype(x);
    let (low, high) = (cx.number("min_val")?, cx.number("max_val")?);
    let (low, high) = (cx.number_in(&low, dtype)?, cx.number_in(&high, dtype)?);
    let x = elementwise::binary(cx, BinaryOp::Max, x, low)?;
    Ok(vec![elementwise::binary(cx, BinaryOp::Min, x, high)?])
}

fn relu(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    let zero = cx.constant(wgfc_ir::Tensor::scalar(zero));
    Ok(vec![elementwise::binary(cx, BinaryOp::Max, x, zero)?])
}

fn relu6(cx: &mut Cx) -> Lowered {
    let x = relu(cx)?[0];
    let dtype = cx.dtype(x);
    let six = if dtype.is_float() { cx.scalar(dtype, 6.0) } else { cx.int_const(dtype, 6) };
    Ok(vec![elementwise::binary(cx, BinaryOp::Min, x, six)?])
}

fn gelu(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![match cx.text("approximate")?.as_deref() {
        Some("tanh") => activation::gelu_tanh(cx, x)?,
        _ => activation::gelu(cx, x)?,
    }])
}

/// `alpha · (e^(x · input_scale) − 1)` for x up to 0, else x; the result is multiplied by `scale`.
fn elu(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (alpha, scale, inner) = (cx.float("alpha")?, cx.float("scale")?, cx.float("input_scale")?);
    let x = cx.as_float(x)?;
    let low = cx.binary_scalar(BinaryOp::Mul, x, inner)?;
    let low = activation::elu(cx, low, alpha)?;
    let negative = cx.binary_scalar(BinaryOp::Le, x, 0.0)?;
    let y = cx.select(negative, low, x)?;
    Ok(vec![cx.binary_scalar(BinaryOp::Mul, y, scale)?])
}

/// The first half of the operand along an axis, times the sigmoid of the second half.
fn glu(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let half = cx.shape(x)[axis].div(&2i64.into(), &[]);
    let a = cx.slice(x, axis, &Poly::ZERO, 1, &half)?;
    let b = cx.slice(x, axis, &half, 1, &half)?;
    let b = cx.unary(UnaryOp::Sigmoid, b)?;
    Ok(vec![cx.binary(BinaryOp::Mul, a, b)?])
}

fn log_sigmoid(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.unary(UnaryOp::Neg, x)?;
    let y = activation::softplus(cx, x)?;
    Ok(vec![cx.unary(UnaryOp::Neg, y)?])
}

fn prelu(cx: &mut Cx) -> Lowered {
    let (x, slope) = (cx.tensor("self")?, cx.tensor("weight")?);
    let rank = cx.rank(x);
    let slope = match cx.shape(slope).first() {
        Some(n) if !n.is(1) && rank > 1 => crate::lower::norm::per_channel(cx, slope, rank)?,
        _ => cx.reshape(slope, vec![])?,
    };
    Ok(vec![activation::prelu(cx, x, slope)?])
}

/// Softplus; above the threshold the result is the operand, which avoids overflow.
fn softplus(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (beta, threshold) = (cx.float("beta")?, cx.float("threshold")?);
    let scaled = cx.binary_scalar(BinaryOp::Mul, x, beta)?;
    let y = activation::softplus(cx, scaled)?;
    let y = cx.binary_scalar(BinaryOp::Div, y, beta)?;
    let above = cx.binary_scalar(BinaryOp::Gt, scaled, threshold)?;
    Ok(vec![cx.select(above, x, y)?])
}

fn threshold(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.dtype(x);
    let (at, other) = (cx.number("threshold")?, cx.number("value")?);
    let (at, other) = (cx.number_in(&at, dtype)?, cx.number_in(&other, dtype)?);
    let below = cx.binary(BinaryOp::Le, x, at)?;
    Ok(vec![cx.select(below, other, x)?])
}
