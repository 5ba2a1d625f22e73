//! Operators of linearly quantised tensors that ONNX Runtime adds to ONNX's: `(q − zero) · scale` of each
//! operand, computed with in f32, and rounded again as the result's scale and zero point say.

use super::linear::{along, centred, dynamic_of, matrix_axes, requantized, saturated};
use super::pool;
use super::quantized::{Zero, dequantized};
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp as B, DType, Dim, Op, UnaryOp as U, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

const MICROSOFT: &str = "com.microsoft";

/// Input `i`, one number.
fn number(cx: &mut Cx, i: usize) -> Result {
    let v = cx.input(i)?;
    let count: Dim = cx.shape(v).iter().product();
    if !count.is(1) {
        let e = OpError::model(format!("needs one number, got {}", cx.ty(v)));
        return Err(cx.at_input(i, e));
    }
    Ok(cx.reshape(v, vec![])?)
}

/// What input `i`, quantised to 8 bits, stands for; its scale and zero point are the inputs behind it.
fn real(cx: &mut Cx, i: usize) -> Result {
    let x = cx.input(i)?;
    if !matches!(cx.dtype(x), DType::I8 | DType::U8) {
        let e = OpError::model(format!("needs i8 or u8, got {}", cx.ty(x)));
        return Err(cx.at_input(i, e));
    }
    let scale = number(cx, i + 1)?;
    let zero = match cx.opt(i + 2) {
        None => Zero::Is(0),
        Some(z) if cx.dtype(z) == cx.dtype(x) => Zero::Of(number(cx, i + 2)?),
        Some(z) => {
            let e = OpError::model(format!("a zero point of type {} for {}", cx.ty(z), cx.ty(x)));
            return Err(cx.at_input(i + 2, e));
        }
    };
    dequantized(cx, x, scale, &zero, DType::F32)
}

/// `y` quantised to `dtype`, with the scale and zero point that are inputs `i` and `i + 1`.
fn rounded(cx: &mut Cx, y: Value, i: usize, dtype: DType) -> Result {
    let scale = number(cx, i)?;
    let zero = match cx.opt(i + 1) {
        Some(z) if cx.dtype(z) != dtype => {
            let e = OpError::model(format!("a zero point of type {} for {dtype}", cx.ty(z)));
            return Err(cx.at_input(i + 1, e));
        }
        Some(_) => Some(number(cx, i + 1)?),
        None => None,
    };
    let y = cx.binary(B::Div, y, scale)?;
    saturated(cx, y, zero, dtype)
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
fn unary(cx: &mut Cx, f: impl FnOnce(&mut Cx, Value) -> Result) -> Lowered {
    let x = real(cx, 0)?;
    let y = f(cx, x)?;
    let dtype = input_type(cx, 0)?;
    Ok(vec![rounded(cx, y, 3, dtype)?])
}

fn leaky_relu(cx: &mut Cx) -> Lowered {
    let alpha = cx.float("alpha", 0.01)?;
    unary(cx, |cx, x| {
        let low = cx.binary_scalar(B::Mul, x, alpha.into())?;
        let negative = cx.binary_scalar(B::Lt, x, 0.0)?;
        Ok(cx.select(negative, low, x)?)
    })
}

/// Along one axis, or, as before opset 13, over all from it on.
fn softmax(cx: &mut Cx) -> Lowered {
    let (axis, opset) = (cx.int("axis", -1)?, cx.int_req("opset")?);
    unary(cx, |cx, x| {
        let dims = cx.shape(x);
        let axis = cx.axis(axis, dims.len()).map_err(|e| e.attribute("axis"))?;
        if opset >= 13 {
            return Ok(cx.push(Op::Softmax { axis, log: false }, &[x])?);
        }
        let mut flat = dims[..axis].to_vec();
        flat.push(dims[axis..].iter().product());
        let x = cx.reshape(x, flat)?;
        let y = cx.push(Op::Softmax { axis, log: false }, &[x])?;
        Ok(cx.reshape(y, dims)?)
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
fn with_channels_first(cx: &mut Cx, x: Value, f: impl FnOnce(&mut Cx, Value) -> Result) -> Result {
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
            let axes = pool::spatial_axes(cx, x)?;
            Ok(cx.mean(x, &axes)?)
        })
    })
}

fn average_pool(cx: &mut Cx) -> Lowered {
    unary(cx, |cx, x| with_channels_first(cx, x, pool::average))
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

/// An exact sum of products times the scales of both operands.
fn scaled(cx: &mut Cx, sum: Value, scales: [Value; 2]) -> Result {
    let sum = cx.cast(sum, DType::F32)?;
    let scale = cx.binary(B::Mul, scales[0], scales[1])?;
    Ok(cx.binary(B::Mul, sum, scale)?)
}

/// `A·B` of quantised operands in floats, and a bias. Inputs: A, B, their scales, their zero points, bias.
fn to_float(cx: &mut Cx) -> Lowered {
    let (rows, columns) = matrix_axes(cx, 0, 1)?;
    let (a, b) = (centred(cx, 0, 4, rows)?, centred(cx, 1, 5, columns)?);
    let (sa, sb) = (cx.input(2)?, cx.input(3)?);
    let (sa, sb) = (along(cx, sa, rows, cx.rank(a))?, along(cx, sb, columns, cx.rank(b))?);
    let sum = cx.matmul(a, b)?;
    let y = scaled(cx, sum, [sa, sb])?;
    Ok(vec![biased(cx, y, 6)?])
}

/// `A·B` of a float A, which is quantised first. Inputs: A, B, its scale and zero point, bias.
fn dynamic_matmul(cx: &mut Cx) -> Lowered {
    let a = cx.input(0)?;
    let (_, columns) = matrix_axes(cx, 0, 1)?;
    let [q, sa, za] = dynamic_of(cx, a)?;
    let (q, za) = (cx.cast(q, DType::I32)?, cx.cast(za, DType::I32)?);
    let (a, b) = (cx.binary(B::Sub, q, za)?, centred(cx, 1, 3, columns)?);
    let sb = cx.input(2)?;
    let sb = along(cx, sb, columns, cx.rank(b))?;
    let sum = cx.matmul(a, b)?;
    let y = scaled(cx, sum, [sa, sb])?;
    Ok(vec![biased(cx, y, 4)?])
}

fn biased(cx: &mut Cx, y: Value, bias: usize) -> Result {
    match cx.opt(bias) {
        Some(b) => Ok(cx.binary(B::Add, y, b)?),
        None => Ok(y),
    }
}

/// `alpha·A·B + C`, C with the scale of the product; in floats where the result has no scale.
fn gemm(cx: &mut Cx) -> Lowered {
    cx.input_of_rank(0, 2)?;
    cx.input_of_rank(3, 2)?;
    let (ta, tb) = (cx.flag("transA", false)?, cx.flag("transB", false)?);
    let columns = if tb { 0 } else { 1 };
    let (mut a, mut b) = (centred(cx, 0, 2, 0)?, centred(cx, 3, 5, columns)?);
    if ta {
        a = cx.transpose(a, &[1, 0])?;
    }
    if tb {
        b = cx.transpose(b, &[1, 0])?;
    }
    let mut sum = cx.matmul(a, b)?;
    if let Some(c) = cx.opt(6) {
        if cx.dtype(c) != DType::I32 {
            let e = OpError::model(format!("needs i32, got {}", cx.ty(c)));
            return Err(cx.at_input(6, e));
        }
        sum = cx.binary(B::Add, sum, c)?;
    }
    let (sa, sb) = (number(cx, 1)?, cx.input(4)?);
    let sb = along(cx, sb, 1, 2)?;
    let alpha = cx.float("alpha", 1.0)?;
    let sa = cx.binary_scalar(B::Mul, sa, alpha.into())?;
    Ok(vec![if cx.opt(7).is_some() {
        requantized(cx, sum, [sa, sb], 7)?
    } else {
        scaled(cx, sum, [sa, sb])?
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
