//! Operators of linearly quantised tensors that ONNX Runtime adds to ONNX's: `(q − zero) · scale` of each
//! operand, computed with in f32, and rounded again as the result's scale and zero point say.

use crate::import::onnx::prelude::*;
use crate::lower::dequantize::{Zero, dequantized};
use crate::lower::quantize::{
    self, Quantized, along, centred, matrix_axes, requantized, saturated, scaled,
};
use crate::lower::{self, activation, softmax};
use wgfc_ir::{BinaryOp as B, DType, Dim, UnaryOp as U, Value};

/// Input `i`, one number.
fn number(cx: &mut Cx, i: usize) -> Result<Value> {
    let v = cx.input(i)?;
    let count: Dim = cx.shape(v).iter().product();
    if !count.is(1) {
        let e = OpError::model(format!("needs one number, got {}", cx.ty(v)));
        return Err(cx.at_input(i, e));
    }
    Ok(cx.reshape(v, vec![])?)
}

/// The real numbers that input `i`, quantised to 8 bits, stands for; its scale and zero point are the inputs behind it.
fn real(cx: &mut Cx, i: usize) -> Result<Value> {
    let x = cx.input(i)?;
    quantize::require_bytes(cx, x)?;
    let scale = number(cx, i + 1)?;
    let zero = match cx.opt(i + 2) {
        None => Zero::Is(0),
        Some(z) => {
            quantize::require_zero(cx, x, z)?;
            Zero::Of(number(cx, i + 2)?)
        }
    };
    let y = dequantized(cx, x, scale, &zero, DType::F32)?;
    cx.made_of(i, y);
    Ok(y)
}

/// `y` quantised to `dtype`, with the scale and zero point that are inputs `i` and `i + 1`.
fn rounded(cx: &mut Cx, y: Value, i: usize, dtype: DType) -> Result<Value> {
    let (y, zero) = divided(cx, y, i, dtype)?;
    saturated(cx, y, zero, dtype)
}

/// `y` divided by the scale that is input `i`, and the zero point of type `dtype` that is input `i + 1`.
fn divided(cx: &mut Cx, y: Value, i: usize, dtype: DType) -> Result<(Value, Option<Value>)> {
    let scale = number(cx, i)?;
    let zero = match cx.opt(i + 1) {
        Some(z) if cx.dtype(z) != dtype => {
            let e = OpError::model(format!("a zero point of type {} for {dtype}", cx.ty(z)));
            return Err(cx.at_input(i + 1, e));
        }
        Some(_) => Some(number(cx, i + 1)?),
        None => None,
    };
    Ok((cx.binary(B::Div, y, scale)?, zero))
}

fn input_type(cx: &Cx, i: usize) -> Result<DType> {
    Ok(cx.dtype(cx.input(i)?))
}

fn binary(cx: &mut Cx, op: B) -> Lowered {
    let (a, b) = (real(cx, 0)?, real(cx, 3)?);
    let y = cx.binary(op, a, b)?;
    let dtype = input_type(cx, 0)?;
    Ok(vec![rounded(cx, y, 6, dtype)?])
}

/// A function of one operand.
fn unary(cx: &mut Cx, f: impl FnOnce(&mut Cx, Value) -> Result<Value>) -> Lowered {
    let x = real(cx, 0)?;
    let y = f(cx, x)?;
    let dtype = input_type(cx, 0)?;
    Ok(vec![rounded(cx, y, 3, dtype)?])
}

fn leaky_relu(cx: &mut Cx) -> Lowered {
    let alpha = cx.float("alpha", 0.01)?;
    unary(cx, |cx, x| activation::leaky_relu(cx, x, alpha.into()))
}

/// Along one axis, or, as before opset 13, over all from it on.
fn softmax(cx: &mut Cx) -> Lowered {
    let (axis, opset) = (cx.int("axis", -1)?, cx.int_req("opset")?);
    unary(cx, |cx, x| {
        let axis = cx.axis(axis, cx.rank(x)).map_err(|e| e.attribute("axis"))?;
        if opset >= 13 { softmax::along(cx, x, axis, false) } else { softmax::from_axis(cx, x, axis, false) }
    })
}

/// The order of axes that brings channels from the end to axis 1, and the one that brings them back.
fn channels_first(rank: usize) -> (Vec<usize>, Vec<usize>) {
    let mut there: Vec<usize> = (0..rank).collect();
    there[1..].rotate_right(1);
    let mut back: Vec<usize> = (0..rank).collect();
    back[1..].rotate_left(1);
    (there, back)
}

/// `f` of a tensor whose channels lie along axis 1, which `channels_last` says they do not yet.
fn with_channels_first(cx: &mut Cx, x: Value, f: impl FnOnce(&mut Cx, Value) -> Result<Value>) -> Result<Value> {
    if !cx.flag("channels_last", false)? || cx.rank(x) < 3 {
        return f(cx, x);
    }
    let (there, back) = channels_first(cx.rank(x));
    let x = cx.transpose(x, &there)?;
    let y = f(cx, x)?;
    Ok(cx.transpose(y, &back)?)
}

fn global_average_pool(cx: &mut Cx) -> Lowered {
    unary(cx, |cx, x| {
        with_channels_first(cx, x, |cx, x| {
            let axes = lower::pool::spatial_axes(cx, x)?;
            Ok(cx.mean(x, &axes)?)
        })
    })
}

/// The zero point is added before rounding, so that a tie goes to the even result, as in ONNX Runtime, whose other operators
/// round first.
fn average_pool(cx: &mut Cx) -> Lowered {
    let x = real(cx, 0)?;
    let y = with_channels_first(cx, x, super::pool::average)?;
    let dtype = input_type(cx, 0)?;
    let (mut y, zero) = divided(cx, y, 3, dtype)?;
    if let Some(zero) = zero {
        let zero = cx.cast(zero, DType::F32)?;
        y = cx.binary(B::Add, y, zero)?;
    }
    Ok(vec![saturated(cx, y, None, dtype)?])
}

/// Inputs: the result's scale and zero point, then each operand with its own.
fn concat(cx: &mut Cx) -> Lowered {
    let count = cx.input_count();
    if count < 5 || !(count - 2).is_multiple_of(3) {
        return Err(OpError::model(format!("{count} inputs; needs two, and three for each operand")));
    }
    let parts = (2..count).step_by(3).map(|i| real(cx, i)).collect::<Result<Vec<_>>>()?;
    let y = super::shape::joined(cx, &parts)?;
    let dtype = input_type(cx, 2)?;
    Ok(vec![rounded(cx, y, 0, dtype)?])
}

fn select(cx: &mut Cx) -> Lowered {
    let (c, x, y) = (cx.input(0)?, real(cx, 1)?, real(cx, 4)?);
    if cx.dtype(c) != DType::Bool {
        return Err(cx.at_input(0, OpError::model(format!("needs bools, got {}", cx.ty(c)))));
    }
    let z = cx.select(c, x, y)?;
    let dtype = input_type(cx, 1)?;
    Ok(vec![rounded(cx, z, 7, dtype)?])
}

/// `A·B` of quantised operands in floats, and a bias. Inputs: A, B, their scales, their zero points, bias.
fn to_float(cx: &mut Cx) -> Lowered {
    let a = Quantized { q: cx.input(0)?, scale: cx.input(2)?, zero: cx.opt(4) };
    let b = Quantized { q: cx.input(1)?, scale: cx.input(3)?, zero: cx.opt(5) };
    let (sum, scales) = quantize::product(cx, a, b)?;
    let y = scaled(cx, sum, scales)?;
    Ok(vec![biased(cx, y, 6)?])
}

/// `A·B` of a float A, which is quantised first. Inputs: A, B, its scale and zero point, bias.
fn dynamic_matmul(cx: &mut Cx) -> Lowered {
    let (a, b, sb, zb) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.opt(3));
    let (_, columns) = matrix_axes(cx, a, b)?;
    let [q, sa, za] = quantize::dynamic(cx, a)?;
    let (q, za) = (cx.cast(q, DType::I32)?, cx.cast(za, DType::I32)?);
    let (a, b) = (cx.binary(B::Sub, q, za)?, centred(cx, b, zb, columns)?);
    let rank = cx.rank(b);
    let sb = along(cx, sb, columns, rank)?;
    let sum = cx.matmul(a, b)?;
    let y = scaled(cx, sum, [sa, sb])?;
    Ok(vec![biased(cx, y, 4)?])
}

fn biased(cx: &mut Cx, y: Value, bias: usize) -> Result<Value> {
    match cx.opt(bias) {
        Some(b) => Ok(cx.binary(B::Add, y, b)?),
        None => Ok(y),
    }
}

/// `alpha·A·B + C`, C with the scale of the product; in floats where the result has no scale.
fn gemm(cx: &mut Cx) -> Lowered {
    let (a, b, za, zb) = (cx.input_of_rank(0, 2)?, cx.input_of_rank(3, 2)?, cx.opt(2), cx.opt(5));
    let (ta, tb) = (cx.flag("transA", false)?, cx.flag("transB", false)?);
    let columns = if tb { 0 } else { 1 };
    let (mut a, mut b) = (centred(cx, a, za, 0)?, centred(cx, b, zb, columns)?);
    if ta {
        a = cx.transpose(a, &[1, 0])?;
    }
    if tb {
        b = cx.transpose(b, &[1, 0])?;
    }
    let mut sum = cx.matmul(a, b)?;
    if let Some(c) = cx.opt(6) {
        quantize::require_bias(cx, c)?;
        sum = cx.binary(B::Add, sum, c)?;
    }
    let (sa, sb) = (number(cx, 1)?, cx.input(4)?);
    let sb = along(cx, sb, 1, 2)?;
    let alpha = cx.float("alpha", 1.0)?;
    let sa = cx.binary_scalar(B::Mul, sa, alpha.into())?;
    Ok(vec![match cx.opt(7) {
        Some(scale) => {
            let zero = cx.input(8)?;
            requantized(cx, sum, [sa, sb], scale, zero)?
        }
        None => scaled(cx, sum, [sa, sb])?,
    }])
}

const fn op(name: &'static str, lower: fn(&mut Cx) -> Lowered, cases: &'static [&'static str]) -> OpDef {
    OpDef::new(name, &[1], lower).domain(MICROSOFT).cases(cases)
}

/// Quantised arithmetic of ONNX Runtime.
pub const OPS: &[OpDef] = &[
    op("DynamicQuantizeMatMul", dynamic_matmul, &["dynamic_quantize_matmul"]),
    op("MatMulIntegerToFloat", to_float, &["matmul_integer_to_float"]),
    op("QGemm", gemm, &["qgemm"]),
    op("QLinearAdd", |cx| binary(cx, B::Add), &["qlinear_add"]),
    op("QLinearAveragePool", average_pool, &["qlinear_average_pool"]),
    op("QLinearConcat", concat, &["qlinear_concat"]),
    op("QLinearGlobalAveragePool", global_average_pool, &["qlinear_global_average_pool"]),
    op("QLinearLeakyRelu", leaky_relu, &["qlinear_leaky_relu"]),
    op("QLinearMul", |cx| binary(cx, B::Mul), &["qlinear_mul"]),
    op("QLinearSigmoid", |cx| unary(cx, |cx, x| Ok(cx.unary(U::Sigmoid, x)?)), &["qlinear_sigmoid"]),
    op("QLinearSoftmax", softmax, &["qlinear_softmax"]),
    op("QLinearWhere", select, &["qlinear_where"]),
];
