//! ONNX Runtime's operators on linearly quantised tensors. Each operand is dequantised, `(q − zero) · scale`, the operator is computed in
//! f32, and the result is quantised with the result's scale and zero point.

use crate::import::onnx::prelude::*;
use crate::lower::dequantize::{Zero, dequantized};
use crate::lower::quantize::{
    self, Quantized, along, centred, matrix_axes, requantized, saturated, scaled,
};
use crate::lower::{self, activation, softmax};
use wgfc_ir::{BinaryOp as B, DType, Dim, UnaryOp as U, Value};

/// Input `i`, which must have one element, as a tensor of rank 0.
fn number(cx: &mut Cx, i: usize) -> Result<Value> {
    let v = cx.input(i)?;
    let count: Dim = cx.shape(v).iter().product();
    if !count.is(1) {
        let e = OpError::model(format!("needs one number, got {}", cx.ty(v)));
        return Err(cx.at_input(i, e));
    }
    Ok(cx.reshape(v, vec![])?)
}

/// Dequantises the 8-bit input `i`; its scale and zero point are the next two inputs.
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

/// Quantises `y` to `dtype`; inputs `i` and `i + 1` are the scale and zero point.
fn rounded(cx: &mut Cx, y: Value, i: usize, dtype: DType) -> Result<Value> {
    let (y, zero) = divided(cx, y, i, dtype)?;
    saturated(cx, y, zero, dtype)
}

/// `y` divided by the scale in input `i`, and the zero point in input `i + 1`, which must have the type `dtype`.
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

/// A quantised function of one operand.
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

/// Softmax along one axis, or for opsets before 13 over all axes from it on.
fn softmax(cx: &mut Cx) -> Lowered {
    let (axis, opset) = (cx.int("axis", -1)?, cx.int_req("opset")?);
    unary(cx, |cx, x| {
        let axis = cx.axis(axis, cx.rank(x)).map_err(|e| e.attribute("axis"))?;
        if opset >= 13 { softmax::along(cx, x, axis, false) } else { softmax::from_axis(cx, x, axis, false) }
    })
}

/// The permutation of axes that moves channels from the last axis to axis 1, and its inverse.
fn channels_first(rank: usize) -> (Vec<usize>, Vec<usize>) {
    let mut there: Vec<usize> = (0..rank).collect();
    there[1..].rotate_right(1);
    let mut back: Vec<usize> = (0..rank).collect();
    back[1..].rotate_left(1);
    (there, back)
}

/// Applies `f`, which expects channels along axis 1, to a tensor that may have them last.
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

/// Average pooling. The zero point is added before rounding to the nearest even integer, as in ONNX Runtime; its other operators round
/// first.
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

/// Concatenation. The inputs are the result's scale and zero point, then each operand with its own.
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

/// `A·B` of quantised operands as floats, plus a bias. The inputs are A, B, their scales, their zero points, bias.
fn to_float(cx: &mut Cx) -> Lowered {
    let a = Quantized { q: cx.input(0)?, scale: cx.input(2)?, zero: cx.opt(4) };
    let b = Quantized { q: cx.input(1)?, scale: cx.input(3)?, zero: cx.opt(5) };
    let (sum, scales) = quantize::product(cx, a, b)?;
    let y = scaled(cx, sum, scales)?;
    Ok(vec![biased(cx, y, 6)?])
}

/// `A·B` of a float A, which is quantised first. The inputs are A, B, the scale and zero point of B, bias.
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

/// `alpha·A·B + C`, where C has the scale of the product; the result is a float if no scale is given for it.
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
