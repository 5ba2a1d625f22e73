//! Elementwise operators of one operand that apply one scalar operator.

use crate::import::onnx::prelude::*;
use crate::lower::elementwise;
use wgfc_ir::UnaryOp;

fn one(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![cx.unary(op, x)?])
}

fn is_inf(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (negative, positive) = (cx.flag("detect_negative", true)?, cx.flag("detect_positive", true)?);
    Ok(vec![elementwise::is_inf(cx, x, negative, positive)?])
}

/// Unary operators.
pub const OPS: &[OpDef] = &[
    OpDef::new("Abs", &[1, 6, 13], |cx| one(cx, UnaryOp::Abs)).cases(&["test_abs"]),
    OpDef::new("Acos", &[7, 22], |cx| one(cx, UnaryOp::Acos)).cases(&["test_acos"]),
    OpDef::new("Acosh", &[9, 22], |cx| one(cx, UnaryOp::Acosh)).cases(&["test_acosh"]),
    OpDef::new("Asin", &[7, 22], |cx| one(cx, UnaryOp::Asin)).cases(&["test_asin"]),
    OpDef::new("Asinh", &[9, 22], |cx| one(cx, UnaryOp::Asinh)).cases(&["test_asinh"]),
    OpDef::new("Atan", &[7, 22], |cx| one(cx, UnaryOp::Atan)).cases(&["test_atan"]),
    OpDef::new("Atanh", &[9, 22], |cx| one(cx, UnaryOp::Atanh)).cases(&["test_atanh"]),
    OpDef::new("BitwiseNot", &[18], |cx| one(cx, UnaryOp::Not)).cases(&["test_bitwise_not"]),
    OpDef::new("Ceil", &[1, 6, 13], |cx| one(cx, UnaryOp::Ceil)).cases(&["test_ceil"]),
    OpDef::new("Cos", &[7, 22], |cx| one(cx, UnaryOp::Cos)).cases(&["test_cos"]),
    OpDef::new("Cosh", &[9, 22], |cx| one(cx, UnaryOp::Cosh)).cases(&["test_cosh"]),
    OpDef::new("Erf", &[9, 13], |cx| one(cx, UnaryOp::Erf)).cases(&["test_erf"]),
    OpDef::new("Exp", &[1, 6, 13], |cx| one(cx, UnaryOp::Exp)).cases(&["test_exp"]),
    OpDef::new("Floor", &[1, 6, 13], |cx| one(cx, UnaryOp::Floor)).cases(&["test_floor"]),
    OpDef::new("IsInf", &[10, 20], is_inf).cases(&["test_isinf"]),
    OpDef::new("IsNaN", &[9, 13, 20], |cx| one(cx, UnaryOp::IsNan)).cases(&["test_isnan"]),
    OpDef::new("Log", &[1, 6, 13], |cx| one(cx, UnaryOp::Log)).cases(&["test_log"]),
    OpDef::new("Neg", &[1, 6, 13], |cx| one(cx, UnaryOp::Neg)).cases(&["test_neg"]),
    OpDef::new("Not", &[1], |cx| one(cx, UnaryOp::Not)).cases(&["test_not"]),
    OpDef::new("Reciprocal", &[1, 6, 13], |cx| one(cx, UnaryOp::Recip)).cases(&["test_reciprocal"]),
    OpDef::new("Round", &[11, 22], |cx| one(cx, UnaryOp::Round)).cases(&["test_round"]),
    OpDef::new("Sigmoid", &[1, 6, 13], |cx| one(cx, UnaryOp::Sigmoid)).cases(&["test_sigmoid"]),
    OpDef::new("Sign", &[9, 13], |cx| one(cx, UnaryOp::Sign)).cases(&["test_sign"]),
    OpDef::new("Sin", &[7, 22], |cx| one(cx, UnaryOp::Sin)).cases(&["test_sin"]),
    OpDef::new("Sinh", &[9, 22], |cx| one(cx, UnaryOp::Sinh)).cases(&["test_sinh"]),
    OpDef::new("Sqrt", &[1, 6, 13], |cx| one(cx, UnaryOp::Sqrt)).cases(&["test_sqrt"]),
    OpDef::new("Tan", &[7, 22], |cx| one(cx, UnaryOp::Tan)).cases(&["test_tan"]),
    OpDef::new("Tanh", &[1, 6, 13], |cx| one(cx, UnaryOp::Tanh)).cases(&["test_tanh"]),
];
