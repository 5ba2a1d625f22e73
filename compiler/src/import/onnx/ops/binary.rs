//! Elementwise operators of two or more operands that apply one scalar operator.

use crate::import::onnx::prelude::*;
use crate::lower::elementwise;
use wgfc_ir::{BinaryOp, Dim, Value};

fn two(cx: &mut Cx, op: BinaryOp) -> Lowered {
    let (a, b) = (cx.input(0)?, aligned(cx)?);
    Ok(vec![elementwise::binary(cx, op, a, b)?])
}

/// The second operand. Before opset 7, attribute `axis` is the axis of the first operand to which the second operand's first axis is
/// aligned.
fn aligned(cx: &mut Cx) -> Result<Value> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let Some(axis) = cx.int_opt("axis")?.filter(|_| cx.opset < 7) else { return Ok(b) };
    let (ra, rb) = (cx.rank(a), cx.rank(b));
    let axis = cx.axis(axis, ra.max(1))?;
    let Some(behind) = ra.checked_sub(axis + rb) else {
        return Err(OpError::model(format!("{} does not fit into {}", cx.ty(b), cx.ty(a))).attribute("axis"));
    };
    let mut shape = cx.shape(b);
    shape.extend(std::iter::repeat_n(Dim::ONE, behind));
    Ok(cx.reshape(b, shape)?)
}

fn fold(cx: &mut Cx, op: BinaryOp) -> Lowered {
    let xs = cx.inputs()?;
    Ok(vec![elementwise::fold(cx, op, &xs)?])
}

fn pow(cx: &mut Cx) -> Lowered {
    let (x, y) = (cx.input(0)?, aligned(cx)?);
    Ok(vec![elementwise::pow(cx, x, y)?])
}

/// The remainder; with `fmod` it has the sign of the dividend, else that of the divisor.
fn modulo(cx: &mut Cx) -> Lowered {
    let op = if cx.flag("fmod", false)? { BinaryOp::Rem } else { BinaryOp::Mod };
    two(cx, op)
}

fn mean(cx: &mut Cx) -> Lowered {
    let xs = cx.inputs()?;
    Ok(vec![elementwise::mean(cx, &xs)?])
}

/// Binary operators.
pub const OPS: &[OpDef] = &[
    OpDef::new("Add", &[6, 7, 13, 14], |cx| two(cx, BinaryOp::Add)).cases(&["test_add"]),
    OpDef::new("And", &[1, 7], |cx| two(cx, BinaryOp::And)).cases(&["test_and"]),
    OpDef::new("BitwiseAnd", &[18], |cx| two(cx, BinaryOp::And)).cases(&["test_bitwise_and"]),
    OpDef::new("BitwiseOr", &[18], |cx| two(cx, BinaryOp::Or)).cases(&["test_bitwise_or"]),
    OpDef::new("BitwiseXor", &[18], |cx| two(cx, BinaryOp::Xor)).cases(&["test_bitwise_xor"]),
    OpDef::new("Div", &[6, 7, 13, 14], |cx| two(cx, BinaryOp::Div)).cases(&["test_div"]),
    OpDef::new("Equal", &[1, 7, 11, 13, 19], |cx| two(cx, BinaryOp::Eq)).cases(&["test_equal"]),
    OpDef::new("Greater", &[1, 7, 9, 13], |cx| two(cx, BinaryOp::Gt)).cases(&["test_greater"]),
    OpDef::new("GreaterOrEqual", &[12, 16], |cx| two(cx, BinaryOp::Ge)).cases(&["test_greater_equal"]),
    OpDef::new("Less", &[1, 7, 9, 13], |cx| two(cx, BinaryOp::Lt)).cases(&["test_less"]),
    OpDef::new("LessOrEqual", &[12, 16], |cx| two(cx, BinaryOp::Le)).cases(&["test_less_equal"]),
    OpDef::new("Max", &[6, 8, 12, 13], |cx| fold(cx, BinaryOp::Max)).cases(&["test_max"]),
    OpDef::new("Mean", &[6, 8, 13], mean).cases(&["test_mean"]),
    OpDef::new("Min", &[6, 8, 12, 13], |cx| fold(cx, BinaryOp::Min)).cases(&["test_min"]),
    OpDef::new("Mod", &[10, 13, 28], modulo).cases(&["test_mod"]),
    OpDef::new("Mul", &[6, 7, 13, 14], |cx| two(cx, BinaryOp::Mul)).cases(&["test_mul"]),
    OpDef::new("Or", &[1, 7], |cx| two(cx, BinaryOp::Or)).cases(&["test_or"]),
    OpDef::new("Pow", &[1, 7, 12, 13, 15], pow).cases(&["test_pow"]),
    OpDef::new("Sub", &[6, 7, 13, 14], |cx| two(cx, BinaryOp::Sub)).cases(&["test_sub"]),
    OpDef::new("Sum", &[6, 8, 13], |cx| fold(cx, BinaryOp::Add)).cases(&["test_sum"]),
    OpDef::new("Xor", &[1, 7], |cx| two(cx, BinaryOp::Xor)).cases(&["test_xor"]),
];
