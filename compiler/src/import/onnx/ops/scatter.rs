//! Writes at indices.

use crate::import::onnx::prelude::*;
use crate::lower::scatter;
use wgfc_ir::ReduceOp;

fn reduction(cx: &Cx) -> Result<Option<ReduceOp>> {
    match cx.string("reduction", "none")?.as_str() {
        "none" => Ok(None),
        "add" => Ok(Some(ReduceOp::Sum)),
        "mul" => Ok(Some(ReduceOp::Prod)),
        "max" => Ok(Some(ReduceOp::Max)),
        "min" => Ok(Some(ReduceOp::Min)),
        other => Err(OpError::model(format!("unknown value `{other}`")).attribute("reduction")),
    }
}

fn scatter_elements(cx: &mut Cx) -> Lowered {
    let operands = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    let (axis, reduce) = (cx.axis_attr(operands[0], 0)?, reduction(cx)?);
    Ok(vec![scatter::elements(cx, operands, axis, reduce)?])
}

fn scatter_nd(cx: &mut Cx) -> Lowered {
    let operands = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    let reduce = reduction(cx)?;
    Ok(vec![scatter::places(cx, operands, reduce)?])
}

fn tensor_scatter(cx: &mut Cx) -> Lowered {
    let (data, updates, start) = (cx.input(0)?, cx.input(1)?, cx.opt(2));
    let axis = cx.axis_attr(data, -2)?;
    let circular = match cx.string("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => return Err(OpError::model(format!("unknown value `{other}`")).attribute("mode")),
    };
    Ok(vec![scatter::rows(cx, data, updates, start, axis, circular)?])
}

/// `Scatter` and its successor `ScatterElements`, `ScatterND`, `TensorScatter`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Scatter", &[9], scatter_elements).cases(&["test_scatter_with"]),
    OpDef::new("ScatterElements", &[11, 13, 16, 18], scatter_elements).cases(&["test_scatter_elements_"]),
    OpDef::new("ScatterND", &[11, 13, 16, 18], scatter_nd).cases(&["test_scatternd"]),
    OpDef::new("TensorScatter", &[24], tensor_scatter).cases(&["test_tensorscatter"]),
];
