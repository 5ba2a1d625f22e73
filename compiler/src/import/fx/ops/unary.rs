//! Functions of one tensor, element by element.

use super::super::prelude::*;
use crate::lower::complex;
use wgfc_ir::Body;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.abs.default", absolute).complex(),
    OpDef::new("aten.acos.default", |cx| float(cx, UnaryOp::Acos)),
    OpDef::new("aten.acosh.default", |cx| float(cx, UnaryOp::Acosh)),
    OpDef::new("aten.asin.default", |cx| float(cx, UnaryOp::Asin)),
    OpDef::new("aten.asinh.default", |cx| float(cx, UnaryOp::Asinh)),
    OpDef::new("aten.atan.default", |cx| float(cx, UnaryOp::Atan)),
    OpDef::new("aten.atanh.default", |cx| float(cx, UnaryOp::Atanh)),
    OpDef::new("aten.bitwise_not.default", |cx| plain(cx, UnaryOp::Not)),
    OpDef::new("aten.ceil.default", |cx| of_floats(cx, UnaryOp::Ceil)),
    OpDef::new("aten.cos.default", |cx| float(cx, UnaryOp::Cos)),
    OpDef::new("aten.cosh.default", |cx| float(cx, UnaryOp::Cosh)),
    OpDef::new("aten.erf.default", |cx| float(cx, UnaryOp::Erf)),
    OpDef::new("aten.exp.default", exp).complex(),
    OpDef::new("aten.floor.default", |cx| of_floats(cx, UnaryOp::Floor)),
    OpDef::new("aten.isinf.default", |cx| test(cx, UnaryOp::IsInf)),
    OpDef::new("aten.isnan.default", |cx| test(cx, UnaryOp::IsNan)),
    OpDef::new("aten.log.default", |cx| float(cx, UnaryOp::Log)),
    OpDef::new("aten.logical_not.default", logical_not),
    OpDef::new("aten.neg.default", |cx| plain(cx, UnaryOp::Neg)).by_parts(),
    OpDef::new("aten.reciprocal.default", |cx| float(cx, UnaryOp::Recip)),
    OpDef::new("aten.round.default", |cx| of_floats(cx, UnaryOp::Round)),
    OpDef::new("aten.rsqrt.default", |cx| float(cx, UnaryOp::Rsqrt)),
    OpDef::new("aten.sgn.default", |cx| plain(cx, UnaryOp::Sign)),
    OpDef::new("aten.sigmoid.default", |cx| float(cx, UnaryOp::Sigmoid)),
    OpDef::new("aten.sign.default", sign),
    OpDef::new("aten.sin.default", |cx| float(cx, UnaryOp::Sin)),
    OpDef::new("aten.sinh.default", |cx| float(cx, UnaryOp::Sinh)),
    OpDef::new("aten.sqrt.default", |cx| float(cx, UnaryOp::Sqrt)),
    OpDef::new("aten.tan.default", |cx| float(cx, UnaryOp::Tan)),
    OpDef::new("aten.tanh.default", |cx| float(cx, UnaryOp::Tanh)),
    OpDef::new("aten.trunc.default", |cx| of_floats(cx, UnaryOp::Trunc)),
];

fn absolute(cx: &mut Cx) -> Lowered {
    match cx.is_complex("self") {
        true => {
            let x = cx.tensor("self")?;
            Ok(vec![complex::absolute(cx, x)?])
        }
        false => plain(cx, UnaryOp::Abs),
    }
}

fn exp(cx: &mut Cx) -> Lowered {
    match cx.is_complex("self") {
        true => {
            let x = cx.tensor("self")?;
            Ok(vec![complex::exp(cx, x)?])
        }
        false => float(cx, UnaryOp::Exp),
    }
}

/// A result of the operand's own type.
fn plain(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![cx.unary(op, x)?])
}

/// Integers are converted first.
fn float(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.as_float(x)?;
    Ok(vec![cx.unary(op, x)?])
}

/// Integers are what they are.
fn of_floats(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![if cx.dtype(x).is_float() { cx.unary(op, x)? } else { x }])
}

/// No integer is that.
fn test(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.as_float(x)?;
    Ok(vec![cx.unary(op, x)?])
}

fn sign(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![if cx.dtype(x) == DType::Bool { x } else { cx.unary(UnaryOp::Sign, x)? }])
}

fn logical_not(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.dtype(x);
    let mut f = Body::default();
    let (x0, zero) = (f.arg(0), f.number(dtype, 0.0));
    if dtype == DType::Bool {
        f.unary(UnaryOp::Not, x0);
    } else {
        f.binary(BinaryOp::Eq, x0, zero);
    }
    Ok(vec![cx.map(f.0, &[x])?])
}
