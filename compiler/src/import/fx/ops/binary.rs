//! Functions of two tensors or numbers, element by element, in the type that both have in common.

use super::super::prelude::*;
use super::super::promote;
use super::complex;
use crate::lower::elementwise;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.add.Scalar", |cx| scaled(cx, BinaryOp::Add)).complex(),
    OpDef::new("aten.add.Tensor", |cx| scaled(cx, BinaryOp::Add)).complex(),
    OpDef::new("aten.bitwise_and.Scalar", |cx| plain(cx, BinaryOp::And)),
    OpDef::new("aten.bitwise_and.Tensor", |cx| plain(cx, BinaryOp::And)),
    OpDef::new("aten.bitwise_or.Scalar", |cx| plain(cx, BinaryOp::Or)),
    OpDef::new("aten.bitwise_or.Tensor", |cx| plain(cx, BinaryOp::Or)),
    OpDef::new("aten.bitwise_xor.Scalar", |cx| plain(cx, BinaryOp::Xor)),
    OpDef::new("aten.bitwise_xor.Tensor", |cx| plain(cx, BinaryOp::Xor)),
    OpDef::new("aten.div.Scalar", divided).complex(),
    OpDef::new("aten.div.Scalar_mode", rounded),
    OpDef::new("aten.div.Tensor", divided).complex(),
    OpDef::new("aten.div.Tensor_mode", rounded),
    OpDef::new("aten.eq.Scalar", |cx| plain(cx, BinaryOp::Eq)),
    OpDef::new("aten.eq.Tensor", |cx| plain(cx, BinaryOp::Eq)),
    OpDef::new("aten.ge.Scalar", |cx| plain(cx, BinaryOp::Ge)),
    OpDef::new("aten.ge.Tensor", |cx| plain(cx, BinaryOp::Ge)),
    OpDef::new("aten.gt.Scalar", |cx| plain(cx, BinaryOp::Gt)),
    OpDef::new("aten.gt.Tensor", |cx| plain(cx, BinaryOp::Gt)),
    OpDef::new("aten.le.Scalar", |cx| plain(cx, BinaryOp::Le)),
    OpDef::new("aten.le.Tensor", |cx| plain(cx, BinaryOp::Le)),
    OpDef::new("aten.logical_and.default", |cx| logical(cx, BinaryOp::And)),
    OpDef::new("aten.logical_or.default", |cx| logical(cx, BinaryOp::Or)),
    OpDef::new("aten.logical_xor.default", |cx| logical(cx, BinaryOp::Xor)),
    OpDef::new("aten.lt.Scalar", |cx| plain(cx, BinaryOp::Lt)),
    OpDef::new("aten.lt.Tensor", |cx| plain(cx, BinaryOp::Lt)),
    OpDef::new("aten.maximum.default", |cx| plain(cx, BinaryOp::Max)),
    OpDef::new("aten.minimum.default", |cx| plain(cx, BinaryOp::Min)),
    OpDef::new("aten.mul.Scalar", |cx| plain(cx, BinaryOp::Mul)).complex(),
    OpDef::new("aten.mul.Tensor", |cx| plain(cx, BinaryOp::Mul)).complex(),
    OpDef::new("aten.ne.Scalar", |cx| plain(cx, BinaryOp::Ne)),
    OpDef::new("aten.ne.Tensor", |cx| plain(cx, BinaryOp::Ne)),
    OpDef::new("aten.pow.Scalar", |cx| power(cx, ["self", "exponent"])),
    OpDef::new("aten.pow.Tensor_Scalar", |cx| power(cx, ["self", "exponent"])),
    OpDef::new("aten.pow.Tensor_Tensor", |cx| power(cx, ["self", "exponent"])),
    OpDef::new("aten.rsub.Scalar", reversed),
    OpDef::new("aten.rsub.Tensor", reversed),
    OpDef::new("aten.sub.Scalar", |cx| scaled(cx, BinaryOp::Sub)).complex(),
    OpDef::new("aten.sub.Tensor", |cx| scaled(cx, BinaryOp::Sub)).complex(),
    OpDef::new("aten.where.self", choose),
    OpDef::new("aten.where.ScalarSelf", choose),
    OpDef::new("aten.where.ScalarOther", choose),
    OpDef::new("aten.where.Scalar", choose),
];

fn plain(cx: &mut Cx, op: BinaryOp) -> Lowered {
    if let Some(y) = complex::combined(cx, op)? {
        return Ok(vec![y]);
    }
    let [a, b] = cx.promoted(["self", "other"])?;
    Ok(vec![elementwise::binary(cx, op, a, b)?])
}

/// `self ± alpha * other`.
fn scaled(cx: &mut Cx, op: BinaryOp) -> Lowered {
    if let Some(y) = complex::combined(cx, op)? {
        return Ok(vec![y]);
    }
    let [a, b] = cx.promoted(["self", "other"])?;
    let b = times_alpha(cx, b)?;
    Ok(vec![combined(cx, op, a, b)?])
}

fn reversed(cx: &mut Cx) -> Lowered {
    let [a, b] = cx.promoted(["self", "other"])?;
    let a = times_alpha(cx, a)?;
    Ok(vec![combined(cx, BinaryOp::Sub, b, a)?])
}

/// Of bools, a sum is either.
fn combined(cx: &mut Cx, op: BinaryOp, a: Value, b: Value) -> Result {
    let op = if cx.dtype(a) == DType::Bool { BinaryOp::Or } else { op };
    elementwise::binary(cx, op, a, b)
}

fn times_alpha(cx: &mut Cx, v: Value) -> Result {
    let alpha = cx.number("alpha")?;
    if alpha.is(1.0) {
        return Ok(v);
    }
    let alpha = cx.number_in(&alpha, cx.dtype(v))?;
    let op = if cx.dtype(v) == DType::Bool { BinaryOp::And } else { BinaryOp::Mul };
    elementwise::binary(cx, op, v, alpha)
}

/// The quotient of floats.
fn divided(cx: &mut Cx) -> Lowered {
    if let Some(y) = complex::combined(cx, BinaryOp::Div)? {
        return Ok(vec![y]);
    }
    let [a, b] = cx.promoted(["self", "other"])?;
    let (a, b) = (cx.as_float(a)?, cx.as_float(b)?);
    Ok(vec![elementwise::binary(cx, BinaryOp::Div, a, b)?])
}

fn rounded(cx: &mut Cx) -> Lowered {
    let mode = cx.text("rounding_mode")?;
    let [a, b] = cx.promoted(["self", "other"])?;
    let float = cx.dtype(a).is_float();
    match mode.as_deref() {
        None => {
            let (a, b) = (cx.as_float(a)?, cx.as_float(b)?);
            Ok(vec![elementwise::binary(cx, BinaryOp::Div, a, b)?])
        }
        Some("trunc") => {
            let q = elementwise::binary(cx, BinaryOp::Div, a, b)?;
            Ok(vec![if float { cx.unary(UnaryOp::Trunc, q)? } else { q }])
        }
        Some("floor") => Ok(vec![floored(cx, a, b)?]),
        Some(m) => Err(OpError::model(format!("there is no mode `{m}`")).param("rounding_mode")),
    }
}

/// The largest integer that is at most the quotient.
pub fn floored(cx: &mut Lowering, a: Value, b: Value) -> Result {
    if cx.dtype(a).is_float() {
        let q = elementwise::binary(cx, BinaryOp::Div, a, b)?;
        return Ok(cx.unary(UnaryOp::Floor, q)?);
    }
    // What is left over with the sign of the divisor; the rest divides.
    let rest = elementwise::binary(cx, BinaryOp::Mod, a, b)?;
    let whole = elementwise::binary(cx, BinaryOp::Sub, a, rest)?;
    elementwise::binary(cx, BinaryOp::Div, whole, b)
}

fn logical(cx: &mut Cx, op: BinaryOp) -> Lowered {
    let (a, b) = (cx.tensor("self")?, cx.tensor("other")?);
    let (a, b) = (truth(cx, a)?, truth(cx, b)?);
    Ok(vec![elementwise::binary(cx, op, a, b)?])
}

/// Whether elements are not 0.
pub fn truth(cx: &mut Lowering, v: Value) -> Result {
    if cx.dtype(v) == DType::Bool {
        return Ok(v);
    }
    Ok(cx.binary_scalar(BinaryOp::Ne, v, 0.0)?)
}

fn power(cx: &mut Cx, names: [&str; 2]) -> Lowered {
    let [a, b] = cx.promoted(names)?;
    Ok(vec![elementwise::pow(cx, a, b)?])
}

fn choose(cx: &mut Cx) -> Lowered {
    let c = cx.tensor("condition")?;
    let c = truth(cx, c)?;
    let (a, b) = (cx.operand("self")?, cx.operand("other")?);
    let dtype = promote::common(&[cx.kind(&a), cx.kind(&b)]);
    let (a, b) = (cx.in_type(&a, dtype)?, cx.in_type(&b, dtype)?);
    Ok(vec![elementwise::choose(cx, c, a, b)?])
}
