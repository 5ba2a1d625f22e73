//! Elementwise choice and limits.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp, DType};

fn where_(cx: &mut Cx) -> Lowered {
    let (c, a, b) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    if cx.dtype(c) != DType::Bool {
        return Err(cx.at_input(0, OpError::model(format!("the condition is {}, not bool", cx.ty(c)))));
    }
    if cx.dtype(a) != cx.dtype(b) {
        return Err(OpError::model(format!("choices of different types: {} and {}", cx.ty(a), cx.ty(b))));
    }
    Ok(vec![cx.select(c, a, b)?])
}

/// Limits are attributes before opset 11, then optional inputs.
fn clip(cx: &mut Cx) -> Lowered {
    let mut x = cx.input(0)?;
    for (i, name, op) in [(1, "min", BinaryOp::Max), (2, "max", BinaryOp::Min)] {
        if cx.since < 11 {
            if let Some(v) = cx.float_opt(name)? {
                x = cx.binary_scalar(op, x, v.into())?;
            }
        } else if let Some(v) = cx.opt(i) {
            if cx.dtype(v) != cx.dtype(x) || !matches!(cx.ty(v).numel().as_const(), Some(1) | None) {
                let e = OpError::model(format!("limit of type {} for {}", cx.ty(v), cx.ty(x)));
                return Err(cx.at_input(i, e));
            }
            let v = cx.reshape(v, vec![])?;
            x = cx.binary(op, x, v)?;
        }
    }
    Ok(vec![x])
}

fn relu(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![cx.binary_scalar(BinaryOp::Max, x, 0.0)?])
}

/// `Clip`, `Relu`, `Where`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Clip", &[6, 11, 12, 13], clip).cases(&["test_clip_"]),
    OpDef::new("Relu", &[6, 13, 14], relu).cases(&["test_relu"]),
    OpDef::new("Where", &[9, 16], where_).cases(&["test_where_"]),
];
