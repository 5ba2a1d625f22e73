//! Linear quantisation: `q = round(x / scale) + zero`, saturated, and `x = (q − zero) · scale`.
//!
//! Scale and zero point are one number, one for each position along an axis, or one for each block of
//! elements along it. Products of quantised operands are exact sums in i32.

use super::quantized::{Zero, dequantized, per_element};
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use crate::lower::cast::{Round, convert};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp as B, Class, DType, Dim, ReduceOp, UnaryOp as U, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

const MICROSOFT: &str = "com.microsoft";

/// Input `i`, a scale or zero point, so that it broadcasts to `shape`: one number, one for each
/// position along `axis`, or one for each block along it.
fn parameter(cx: &mut Cx, i: usize, shape: &[Dim]) -> Result {
    let v = cx.input(i)?;
    let have = cx.shape(v);
    let block = if cx.since >= 21 { cx.int("block_size", 0)? } else { 0 };
    if block < 0 {
        return Err(OpError::model(format!("a block of {block} elements")).attribute("block_size"));
    }
    let one: Dim = have.iter().product();
    if block == 0 && have.len() < 2 && one.is(1) {
        return Ok(cx.reshape(v, vec![])?);
    }
    let axis = if cx.since >= 13 || cx.node.domain == MICROSOFT { cx.int("axis", 1)? } else { 1 };
    let axis = cx.axis(axis, shape.len()).map_err(|e| e.attribute("axis"))?;
    let wrong = |cx: &Cx, want: &str| {
        let e = format!("needs {want} for a tensor of shape {}, got {}", show(shape), cx.ty(v));
        cx.at_input(i, OpError::model(e))
    };
    if block > 0 {
        let mut want = shape.to_vec();
        want[axis] = shape[axis].ceil_div(block);
        if have != want {
            let text = format!("shape {} (blocks of {block} along axis {axis})", show(&want));
            return Err(wrong(cx, &text));
        }
        return per_element(cx, v, axis, block, shape);
    }
    if have.len() != 1 {
        let text = "one number or one for each position along an axis";
        return Err(wrong(cx, text));
    }
    if have[0].as_const().is_some() && shape[axis].as_const().is_some() && have[0] != shape[axis] {
        return Err(wrong(cx, &format!("{} numbers along axis {axis}", shape[axis])));
    }
    cx.require_equal(&have[0], &shape[axis]);
    let mut aligned = vec![Dim::ONE; shape.len()];
    aligned[axis] = shape[axis].clone();
    Ok(cx.reshape(v, aligned)?)
}

/// The element type that an attribute names; 0 names none.
fn named_type(cx: &Cx, name: &str, since: i64) -> Result<Option<DType>> {
    if cx.since < since || cx.int(name, 0)? == 0 { Ok(None) } else { cx.dtype_opt(name) }
}

/// Rounded to the nearest integer (ties to even), moved by `zero`, saturated to `dtype`.
pub(super) fn saturated(cx: &mut Cx, x: Value, zero: Option<Value>, dtype: DType) -> Result {
    let x = cx.cast(x, DType::F32)?;
    let mut y = cx.unary(U::Round, x)?;
    if let Some(z) = zero {
        let z = cx.cast(z, DType::F32)?;
        y = cx.binary(B::Add, y, z)?;
    }
    let span = (1i64 << dtype.bits()) - 1;
    let least = if dtype.class() == Class::Int { -(1i64 << (dtype.bits() - 1)) } else { 0 };
    y = cx.binary_scalar(B::Max, y, least as f64)?;
    y = cx.binary_scalar(B::Min, y, (least + span) as f64)?;
    // To a register first: a negative number does not convert to an unsigned type.
    Ok(cx.cast(y, dtype)?)
}

fn quantize(cx: &mut Cx) -> Lowered {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let shape = cx.shape(x);
    let given = named_type(cx, "output_dtype", 21)?;
    let zero = cx.opt(2);
    let dtype = match (zero.map(|z| cx.dtype(z)), given) {
        (Some(z), Some(d)) if z != d => {
            let e = format!("{d}, and the zero point is {z}");
            return Err(OpError::model(e).attribute("output_dtype"));
        }
        (z, d) => z.or(d).unwrap_or(DType::U8),
    };
    if dtype.bits() > 16 || dtype == DType::Bool || (dtype.is_float() && dtype.bits() > 8) {
        return Err(OpError::model(format!("{dtype} is no type to quantise to")).attribute("output_dtype"));
    }
    let precision = named_type(cx, "precision", 23)?.unwrap_or(cx.dtype(scale));
    let scale = parameter(cx, 1, &shape)?;
    let zero = zero.map(|_| parameter(cx, 2, &shape)).transpose()?;
    let (x, scale) = (cx.cast(x, precision)?, cx.cast(scale, precision)?);
    let mut y = cx.binary(B::Div, x, scale)?;
    if dtype.is_int() {
        return Ok(vec![saturated(cx, y, zero, dtype)?]);
    }
    if let Some(z) = zero.filter(|_| dtype == DType::F4E2M1) {
        let z = cx.cast(z, precision)?;
        y = cx.binary(B::Add, y, z)?;
    }
    let saturate = cx.flag("saturate", true)?;
    Ok(vec![convert(cx, y, dtype, saturate, Round::Nearest)?])
}

fn dequantize(cx: &mut Cx) -> Lowered {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let shape = cx.shape(x);
    let dtype = named_type(cx, "output_dtype", 23)?.unwrap_or(cx.dtype(scale));
    if !dtype.is_float() {
        return Err(OpError::model(format!("{dtype} is no float")).attribute("output_dtype"));
    }
    let scale = parameter(cx, 1, &shape)?;
    let zero = match cx.opt(2) {
        None => Zero::Is(0),
        Some(z) if cx.dtype(z) != cx.dtype(x) => {
            let e = OpError::model(format!("a zero point of type {} for {}", cx.ty(z), cx.ty(x)));
            return Err(cx.at_input(2, e));
        }
        Some(_) => Zero::Of(parameter(cx, 2, &shape)?),
    };
    Ok(vec![dequantized(cx, x, scale, &zero, dtype)?])
}

/// Scale, zero point and the quantised tensor of one range over all elements.
fn dynamic(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(dynamic_of(cx, x)?.to_vec())
}

/// `x` quantised to u8, its scale and its zero point.
pub(super) fn dynamic_of(cx: &mut Cx, x: Value) -> Result<[Value; 3]> {
    let axes: Vec<usize> = (0..cx.rank(x)).collect();
    let high = cx.reduce(ReduceOp::Max, x, &axes, false)?;
    let high = cx.binary_scalar(B::Max, high, 0.0)?;
    let low = cx.reduce(ReduceOp::Min, x, &axes, false)?;
    let low = cx.binary_scalar(B::Min, low, 0.0)?;
    let span = cx.binary(B::Sub, high, low)?;
    let empty = cx.binary_scalar(B::Eq, span, 0.0)?;
    let dtype = cx.dtype(x);
    let one = cx.scalar(dtype, 1.0);
    let span = cx.select(empty, one, span)?;
    let scale = cx.binary_scalar(B::Div, span, 255.0)?;
    let zero = cx.binary(B::Div, low, scale)?;
    let zero = cx.unary(U::Neg, zero)?;
    let zero = saturated(cx, zero, None, DType::U8)?;
    let y = cx.binary(B::Div, x, scale)?;
    let y = saturated(cx, y, Some(zero), DType::U8)?;
    Ok([y, scale, zero])
}

/// Input `i` as i32 less its zero point, input `zero`: one number, or one for each position along
/// `axis`, or of a shape that broadcasts.
pub(super) fn centred(cx: &mut Cx, i: usize, zero: usize, axis: usize) -> Result {
    let x = cx.input(i)?;
    if !matches!(cx.dtype(x), DType::I8 | DType::U8) {
        let e = OpError::model(format!("needs i8 or u8, got {}", cx.ty(x)));
        return Err(cx.at_input(i, e));
    }
    let x32 = cx.cast(x, DType::I32)?;
    let Some(z) = cx.opt(zero) else { return Ok(x32) };
    if cx.dtype(z) != cx.dtype(x) {
        let e = OpError::model(format!("a zero point of type {} for {}", cx.ty(z), cx.ty(x)));
        return Err(cx.at_input(zero, e));
    }
    let z = along(cx, z, axis, cx.rank(x))?;
    let z = cx.cast(z, DType::I32)?;
    let y = cx.binary(B::Sub, x32, z)?;
    if cx.shape(y) != cx.shape(x) {
        let e = OpError::model(format!("a zero point of type {} for {}", cx.ty(z), cx.ty(x)));
        return Err(cx.at_input(zero, e));
    }
    Ok(y)
}

/// A list as values along `axis` of `rank`; one number as it is.
pub(super) fn along(cx: &mut Cx, v: Value, axis: usize, rank: usize) -> Result {
    let s = cx.shape(v);
    if s.iter().all(|d| d.is(1)) {
        return Ok(cx.reshape(v, vec![])?);
    }
    if s.len() != 1 {
        return Ok(v);
    }
    let mut aligned = vec![Dim::ONE; rank];
    aligned[axis] = s[0].clone();
    Ok(cx.reshape(v, aligned)?)
}

/// Rows and columns of the operands: the axes along which lists of parameters lie.
pub(super) fn matrix_axes(cx: &Cx, a: usize, b: usize) -> Result<(usize, usize)> {
    let (ra, rb) = (cx.rank(cx.input(a)?), cx.rank(cx.input(b)?));
    if ra == 0 || rb == 0 {
        return Err(OpError::model("a product of a scalar"));
    }
    Ok((ra.saturating_sub(2), rb - 1))
}

fn matmul_integer(cx: &mut Cx) -> Lowered {
    let (rows, columns) = matrix_axes(cx, 0, 1)?;
    let (a, b) = (centred(cx, 0, 2, rows)?, centred(cx, 1, 3, columns)?);
    Ok(vec![cx.matmul(a, b)?])
}

fn conv_integer(cx: &mut Cx) -> Lowered {
    let (x, w) = (centred(cx, 0, 2, 0)?, centred(cx, 1, 3, 0)?);
    Ok(vec![super::conv::product(cx, x, w)?])
}

/// `sum · (a scale · b scale / y scale)`, rounded, moved and saturated to the type of the zero point
/// `y + 1`. `place` aligns the scales of the operands.
pub(super) fn requantized(cx: &mut Cx, sum: Value, scales: [Value; 2], y: usize) -> Result {
    let of = cx.input(y)?;
    let ratio = cx.binary(B::Mul, scales[0], scales[1])?;
    let ratio = cx.binary(B::Div, ratio, of)?;
    let ratio = cx.cast(ratio, DType::F32)?;
    let sum = cx.cast(sum, DType::F32)?;
    let scaled = cx.binary(B::Mul, sum, ratio)?;
    let zero = cx.input(y + 1)?;
    let dtype = cx.dtype(zero);
    if !matches!(dtype, DType::I8 | DType::U8) {
        let e = OpError::model(format!("needs i8 or u8, got {}", cx.ty(zero)));
        return Err(cx.at_input(y + 1, e));
    }
    saturated(cx, scaled, Some(zero), dtype)
}

fn q_matmul(cx: &mut Cx) -> Lowered {
    let (rows, columns) = matrix_axes(cx, 0, 3)?;
    let (a, b) = (centred(cx, 0, 2, rows)?, centred(cx, 3, 5, columns)?);
    let (sa, sb) = (cx.input(1)?, cx.input(4)?);
    let sa = along(cx, sa, rows, cx.rank(a))?;
    let sb = along(cx, sb, columns, cx.rank(b))?;
    let sum = cx.matmul(a, b)?;
    Ok(vec![requantized(cx, sum, [sa, sb], 6)?])
}

fn q_conv(cx: &mut Cx) -> Lowered {
    let (x, w) = (centred(cx, 0, 2, 0)?, centred(cx, 3, 5, 0)?);
    let mut sum = super::conv::product(cx, x, w)?;
    let rank = cx.rank(sum);
    if let Some(bias) = cx.opt(8) {
        if cx.dtype(bias) != DType::I32 {
            let e = OpError::model(format!("needs i32, got {}", cx.ty(bias)));
            return Err(cx.at_input(8, e));
        }
        let bias = crate::lower::norm::per_channel(cx, bias, rank)?;
        sum = cx.binary(B::Add, sum, bias)?;
    }
    let (sx, sw) = (cx.input(1)?, cx.input(4)?);
    let sx = along(cx, sx, 1, rank)?;
    let sw = along(cx, sw, 1, rank)?;
    Ok(vec![requantized(cx, sum, [sx, sw], 6)?])
}

/// Quantisation, and products of quantised operands.
pub const OPS: &[OpDef] = &[
    OpDef::new("ConvInteger", &[10], conv_integer).cases(&["test_convinteger_"]),
    OpDef::new("DequantizeLinear", &[10, 13, 19, 21, 23, 24, 25, 28], dequantize)
        .cases(&["test_dequantizelinear"]),
    OpDef::new("DequantizeLinear", &[1], dequantize).domain(MICROSOFT).cases(&["dequantize_linear"]),
    OpDef::new("DynamicQuantizeLinear", &[11], dynamic).cases(&["test_dynamicquantizelinear"]),
    OpDef::new("MatMulInteger", &[10], matmul_integer).cases(&["test_matmulinteger"]),
    OpDef::new("QLinearConv", &[10], q_conv).cases(&["test_qlinearconv"]),
    OpDef::new("QLinearMatMul", &[10, 21], q_matmul).cases(&["test_qlinearmatmul_"]),
    OpDef::new("QuantizeLinear", &[1], quantize).domain(MICROSOFT).cases(&["quantize_linear"]),
    OpDef::new("QuantizeLinear", &[10, 13, 19, 21, 23, 24, 25, 28], quantize).cases(&["test_quantizelinear"]),
];
