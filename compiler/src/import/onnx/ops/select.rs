//! Elementwise selection and clamping.

use crate::import::onnx::prelude::*;
use crate::lower::elementwise::{self, Limit};
use wgfc_ir::BinaryOp;

fn where_(cx: &mut Cx) -> Lowered {
    let (c, a, b) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    Ok(vec![elementwise::choose(cx, c, a, b)?])
}

/// Clamps to limits, which are attributes before opset 11 and optional inputs from then on.
fn clip(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let mut limits = [None; 2];
    for (i, (name, limit)) in ["min", "max"].into_iter().zip(&mut limits).enumerate() {
        *limit = match cx.since {
            ..11 => cx.float_opt(name)?.map(|v| Limit::Is(v.into())),
            _ => cx.opt(1 + i).map(Limit::Of),
        };
    }
    let [low, high] = limits;
    Ok(vec![elementwise::clamp(cx, x, low, high)?])
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
