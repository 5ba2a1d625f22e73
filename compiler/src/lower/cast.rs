//! Conversion of element types.

use super::{Lowering, Result};
use wgfc_ir::{BinaryOp, DType, Scalar, ScalarFn, ScalarNode, UnaryOp, Value};

/// How a number is rounded to a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To the next larger one.
    Up,
    /// To the next smaller one.
    Down,
    /// To the nearest one.
    Nearest,
}

/// Converts the element type: to the 8-bit and narrower floats with or without saturation, to `f8e8m0` with a rounding
/// mode.
pub fn convert(cx: &mut Lowering, x: Value, to: DType, saturate: bool, round: Round) -> Result {
    let from = cx.dtype(x);
    let small = to.is_float() && to.bits() <= 8;
    if from == to || !small {
        return Ok(cx.cast(x, to)?);
    }
    let x = if from.is_float() && from.bits() > 8 { x } else { cx.cast(x, DType::F32)? };
    if to == DType::F8E8M0 {
        let x = cx.cast(x, DType::F32)?;
        return Ok(cx.map(power_of_two(round), &[x])?);
    }
    if saturate || to == DType::F4E2M1 {
        let x = cx.cast(x, DType::F32)?;
        return Ok(cx.map(saturating(to), &[x])?);
    }
    Ok(cx.cast(x, to)?)
}

/// The largest finite value of a small float.
fn largest(to: DType) -> f64 {
    match to {
        DType::F8E4M3 => 448.0,
        DType::F8E4M3Uz => 240.0,
        DType::F4E2M1 => 6.0,
        _ => 57344.0,
    }
}

/// Clamps numbers to the largest finite value; the 4-bit type has no NaN and gets -0 instead.
fn saturating(to: DType) -> ScalarFn {
    let mut f = ScalarFn::default();
    let number = |f: &mut ScalarFn, v| f.push(ScalarNode::Const(Scalar::from_f64(DType::F32, v)));
    let mut x = f.push(ScalarNode::Arg(0));
    for (op, bound) in [(BinaryOp::Gt, largest(to)), (BinaryOp::Lt, -largest(to))] {
        let b = number(&mut f, bound);
        let over = f.push(ScalarNode::Binary(op, x, b));
        x = f.push(ScalarNode::Select(over, b, x));
    }
    if to == DType::F4E2M1 {
        let nan = f.push(ScalarNode::Unary(UnaryOp::IsNan, x));
        let zero = number(&mut f, -0.0);
        x = f.push(ScalarNode::Select(nan, zero, x));
    }
    f.push(ScalarNode::Cast(to, x));
    f
}

/// Rounds an f32 to a power of two on its bits: the exponent, incremented where the mantissa demands it.
fn power_of_two(round: Round) -> ScalarFn {
    let mut f = ScalarFn::default();
    let word = |f: &mut ScalarFn, v: i64| f.push(ScalarNode::Const(Scalar::from_i64(DType::U32, v)));
    let x = f.push(ScalarNode::Arg(0));
    let bits = f.push(ScalarNode::Bitcast(DType::U32, x));
    let (low, high, shift) = (word(&mut f, 0x7f_ffff), word(&mut f, 0xff), word(&mut f, 23));
    let mantissa = f.push(ScalarNode::Binary(BinaryOp::And, bits, low));
    let shifted = f.push(ScalarNode::Binary(BinaryOp::Shr, bits, shift));
    let mut exponent = f.push(ScalarNode::Binary(BinaryOp::And, shifted, high));
    let above = match round {
        Round::Up => Some(word(&mut f, 0)),
        Round::Nearest => Some(word(&mut f, 0x3f_ffff)),
        Round::Down => None,
    };
    if let Some(limit) = above {
        let more = f.push(ScalarNode::Binary(BinaryOp::Gt, mantissa, limit));
        let one = f.push(ScalarNode::Cast(DType::U32, more));
        exponent = f.push(ScalarNode::Binary(BinaryOp::Add, exponent, one));
    }
    // An exponent of 255 would be infinity; exponent 0 stands for 2^-127, whose bits are half of those of the least
    // normal number.
    let most = word(&mut f, 254);
    exponent = f.push(ScalarNode::Binary(BinaryOp::Min, exponent, most));
    let raised = f.push(ScalarNode::Binary(BinaryOp::Shl, exponent, shift));
    let (zero, least) = (word(&mut f, 0), word(&mut f, 0x40_0000));
    let tiny = f.push(ScalarNode::Binary(BinaryOp::Eq, exponent, zero));
    let raised = f.push(ScalarNode::Select(tiny, least, raised));
    let value = f.push(ScalarNode::Bitcast(DType::F32, raised));
    let nan = f.push(ScalarNode::Unary(UnaryOp::IsNan, x));
    let value = f.push(ScalarNode::Select(nan, x, value));
    f.push(ScalarNode::Cast(DType::F8E8M0, value));
    f
}
