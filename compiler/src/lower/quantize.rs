//! Linear quantisation: `q = round(x / scale) + zero`, saturated, and `x = (q − zero) · scale`.
//!
//! Scale and zero point are one number, one per position along an axis, or one per block of elements along it.
//! Products of quantised operands are exact sums in i32.

use super::cast::{Round, convert};
use super::dequantize::{Zero, dequantized, per_element};
use super::{Lowering, OpError, Result};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp as B, Class, DType, Dim, ReduceOp, UnaryOp as U, Value};

/// The granularity of a scale or a zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// One number for all, or one per position along this axis; negative axes count from the end.
    Axis(i64),
    /// One number per block of elements: the axis, and the number of elements in a block.
    Block(i64, i64),
}

/// Reshapes `v`, a scale or a zero point, so that it broadcasts to `shape`.
fn parameter(cx: &mut Lowering, v: Value, shape: &[Dim], grain: Grain) -> Result {
    let have = cx.shape(v);
    let one: Dim = have.iter().product();
    let (axis, block) = match grain {
        Grain::Axis(_) if have.len() < 2 && one.is(1) => return Ok(cx.reshape(v, vec![])?),
        Grain::Axis(axis) => (axis, None),
        Grain::Block(axis, block) => (axis, Some(block)),
    };
    let axis = super::axis(axis, shape.len()).map_err(|e| e.param("axis"))?;
    let wrong = |cx: &Lowering, want: &str| {
        let e = format!("needs {want} for a tensor of shape {}, got {}", show(shape), cx.ty(v));
        OpError::model(e).operand(v)
    };
    if let Some(block) = block {
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

/// `x` rounded to the nearest integer (ties to even), plus `zero`, saturated to `dtype`.
pub fn saturated(cx: &mut Lowering, x: Value, zero: Option<Value>, dtype: DType) -> Result {
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

/// Parameters of [`quantize`].
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    /// The type of the result.
    pub dtype: DType,
    /// The granularity of scale and zero point.
    pub grain: Grain,
    /// The type of the division; by default that of the scale.
    pub precision: Option<DType>,
    /// Whether values beyond the range of a small float become its largest value.
    pub saturate: bool,
}

/// `round(x / scale) + zero`, saturated.
pub fn quantize(cx: &mut Lowering, x: Value, scale: Value, zero: Option<Value>, p: &Quantize) -> Result {
    let (shape, dtype) = (cx.shape(x), p.dtype);
    if dtype.bits() > 16 || dtype == DType::Bool || (dtype.is_float() && dtype.bits() > 8) {
        return Err(OpError::model(format!("{dtype} is no type to quantise to")).param("output_dtype"));
    }
    let precision = p.precision.unwrap_or(cx.dtype(scale));
    let scale = parameter(cx, scale, &shape, p.grain)?;
    let zero = zero.map(|z| parameter(cx, z, &shape, p.grain)).transpose()?;
    let (x, scale) = (cx.cast(x, precision)?, cx.cast(scale, precision)?);
    let mut y = cx.binary(B::Div, x, scale)?;
    if dtype.is_int() {
        return saturated(cx, y, zero, dtype);
    }
    if let Some(z) = zero.filter(|_| dtype == DType::F4E2M1) {
        let z = cx.cast(z, precision)?;
        y = cx.binary(B::Add, y, z)?;
    }
    convert(cx, y, dtype, p.saturate, Round::Nearest)
}

/// `(x − zero) · scale` as a float type.
pub fn dequantize(
    cx: &mut Lowering,
    x: Value,
    scale: Value,
    zero: Option<Value>,
    grain: Grain,
    dtype: DType,
) -> Result {
    let shape = cx.shape(x);
    if !dtype.is_float() {
        return Err(OpError::model(format!("{dtype} is no float")).param("output_dtype"));
    }
    let scale = parameter(cx, scale, &shape, grain)?;
    let zero = match zero {
        None => Zero::Is(0),
        Some(z) => {
            require_zero(cx, x, z)?;
            Zero::Of(parameter(cx, z, &shape, grain)?)
        }
    };
    dequantized(cx, x, scale, &zero, dtype)
}

/// Checks that a zero point has the type of the tensor from which it is subtracted.
pub fn require_zero(cx: &Lowering, x: Value, zero: Value) -> Result<()> {
    if cx.dtype(zero) == cx.dtype(x) {
        return Ok(());
    }
    let e = format!("a zero point of type {} for {}", cx.ty(zero), cx.ty(x));
    Err(OpError::model(e).operand(zero))
}

/// Checks that an operand is quantised to 8 bits.
pub fn require_bytes(cx: &Lowering, x: Value) -> Result<()> {
    if matches!(cx.dtype(x), DType::I8 | DType::U8) {
        return Ok(());
    }
    Err(OpError::model(format!("needs i8 or u8, got {}", cx.ty(x))).operand(x))
}

/// Dynamic quantisation: `x` quantised to u8, its scale and its zero point.
pub fn dynamic(cx: &mut Lowering, x: Value) -> Result<[Value; 3]> {
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

/// The 8-bit tensor `x` as i32 minus its zero point, which is one number, one per position along `axis`, or a tensor
/// that broadcasts.
pub fn centred(cx: &mut Lowering, x: Value, zero: Option<Value>, axis: usize) -> Result {
    require_bytes(cx, x)?;
    let x32 = cx.cast(x, DType::I32)?;
    let Some(given) = zero else { return Ok(x32) };
    require_zero(cx, x, given)?;
    let z = along(cx, given, axis, cx.rank(x))?;
    let z = cx.cast(z, DType::I32)?;
    let y = cx.binary(B::Sub, x32, z)?;
    if cx.shape(y) != cx.shape(x) {
        let e = OpError::model(format!("a zero point of type {} for {}", cx.ty(z), cx.ty(x)));
        return Err(e.operand(given));
    }
    Ok(y)
}

/// A vector as values along `axis` of a tensor of rank `rank`; a single number becomes a scalar.
pub fn along(cx: &mut Lowering, v: Value, axis: usize, rank: usize) -> Result {
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

/// The axes of the rows of `a` and of the columns of `b`, along which vectors of parameters lie.
pub fn matrix_axes(cx: &Lowering, a: Value, b: Value) -> Result<(usize, usize)> {
    let (ra, rb) = (cx.rank(a), cx.rank(b));
    if ra == 0 || rb == 0 {
        return Err(OpError::model("a product of a scalar"));
    }
    Ok((ra.saturating_sub(2), rb - 1))
}

/// `sum · (a scale · b scale / scale)`, rounded, plus the zero point, saturated to the type of the zero point.
pub fn requantized(cx: &mut Lowering, sum: Value, scales: [Value; 2], scale: Value, zero: Value) -> Result {
    let ratio = cx.binary(B::Mul, scales[0], scales[1])?;
    let ratio = cx.binary(B::Div, ratio, scale)?;
    let ratio = cx.cast(ratio, DType::F32)?;
    let sum = cx.cast(sum, DType::F32)?;
    let scaled = cx.binary(B::Mul, sum, ratio)?;
    require_bytes(cx, zero)?;
    let dtype = cx.dtype(zero);
    saturated(cx, scaled, Some(zero), dtype)
}

/// A tensor of 8 bits with its scale and zero point.
#[derive(Clone, Copy, Debug)]
pub struct Quantized {
    /// The integers.
    pub q: Value,
    /// The scale.
    pub scale: Value,
    /// The zero point.
    pub zero: Option<Value>,
}

/// The product `A·B` of quantised operands as `(exact i32 sum, both scales aligned to it)`.
pub fn product(cx: &mut Lowering, a: Quantized, b: Quantized) -> Result<(Value, [Value; 2])> {
    let (rows, columns) = matrix_axes(cx, a.q, b.q)?;
    let (qa, qb) = (centred(cx, a.q, a.zero, rows)?, centred(cx, b.q, b.zero, columns)?);
    let sa = along(cx, a.scale, rows, cx.rank(qa))?;
    let sb = along(cx, b.scale, columns, cx.rank(qb))?;
    Ok((cx.matmul(qa, qb)?, [sa, sb]))
}

/// Checks that the bias of an exact sum is i32.
pub fn require_bias(cx: &Lowering, bias: Value) -> Result<()> {
    if cx.dtype(bias) == DType::I32 {
        return Ok(());
    }
    Err(OpError::model(format!("needs i32, got {}", cx.ty(bias))).operand(bias))
}

/// An exact sum of products times both operands' scales.
pub fn scaled(cx: &mut Lowering, sum: Value, scales: [Value; 2]) -> Result {
    let sum = cx.cast(sum, DType::F32)?;
    let scale = cx.binary(B::Mul, scales[0], scales[1])?;
    Ok(cx.binary(B::Mul, sum, scale)?)
}
