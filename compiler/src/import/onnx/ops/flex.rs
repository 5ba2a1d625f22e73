//! `FlexAttention`: attention with subgraphs that change the scores and the probabilities.

use crate::import::onnx::prelude::*;
use crate::lower::flex::{self, Flex};
use wgfc_ir::Value;

/// Applies the subgraph of an attribute to `x`, whose type it must keep; `x` itself if the attribute is absent.
fn modified(cx: &mut Cx, name: &str, x: Value) -> Result<Value> {
    if cx.attribute(name).is_none() {
        return Ok(x);
    }
    let graph = cx.graph_attr(name)?;
    if graph.input.len() != 1 || graph.output.len() != 1 {
        let e = format!("a subgraph of {} inputs and {} outputs", graph.input.len(), graph.output.len());
        return Err(OpError::model(e).attribute(name));
    }
    let ty = cx.ty(x).clone();
    let y = cx.inline_graph(graph, &[x])?;
    let y = *y.first().ok_or("a subgraph without output")?;
    if cx.dtype(y) != ty.dtype || cx.rank(y) != ty.rank() {
        let e = format!("its subgraph returns {} for {ty}", cx.ty(y));
        return Err(OpError::model(e).attribute(name));
    }
    Ok(cx.expand(y, &ty.shape)?)
}

fn flex_attention(cx: &mut Cx) -> Lowered {
    let operands = [cx.input_of_rank(0, 4)?, cx.input_of_rank(1, 4)?, cx.input_of_rank(2, 4)?];
    let dtype = cx.dtype(operands[0]);
    let precision = match cx.dtype_opt("softmax_precision")? {
        Some(d) if !d.is_float() || d.bits() < 16 => {
            return Err(OpError::model(format!("{d} is not a float type of at least 16 bits")).attribute("softmax_precision"));
        }
        precision => precision,
    };
    let p = Flex { scale: cx.float_opt("scale")?.map(f64::from), precision };
    let (scores, values) = flex::scores(cx, operands, &p)?;
    let scores = modified(cx, "score_mod", scores)?;
    let probs = flex::probabilities(cx, scores)?;
    let probs = modified(cx, "prob_mod", probs)?;
    Ok(vec![flex::weighted(cx, probs, values, dtype)?])
}

/// `FlexAttention`.
pub const OPS: &[OpDef] = &[OpDef::new("FlexAttention", &[1], flex_attention)
    .domain("ai.onnx.preview")
    .cases(&["test_flexattention"])];
