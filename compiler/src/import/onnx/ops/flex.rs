//! `FlexAttention`: attention whose scores and probabilities subgraphs may change.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp as B, DType, Op, Poly, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

/// Each head as often as `heads` asks: `[B, Hkv, S, D]` to `[B, Hq, S, D]`.
fn per_query_head(cx: &mut Cx, x: Value, heads: i64, kept: i64) -> Result {
    let mut shape = cx.shape(x);
    shape[1] = heads.into();
    let mut index: Vec<Poly> = (0..4).map(Poly::var).collect();
    index[1] = index[1].div(&(heads / kept).into(), &shape);
    Ok(cx.view(x, shape, index)?)
}

/// What the subgraph of that attribute makes of `x`, which must keep its type.
fn modified(cx: &mut Cx, name: &str, x: Value) -> Result {
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
        let e = format!("its subgraph makes {} of {ty}", cx.ty(y));
        return Err(OpError::model(e).attribute(name));
    }
    Ok(cx.expand(y, &ty.shape)?)
}

fn flex_attention(cx: &mut Cx) -> Lowered {
    let (q, k, v) = (cx.input_of_rank(0, 4)?, cx.input_of_rank(1, 4)?, cx.input_of_rank(2, 4)?);
    let (sq, sk) = (cx.shape(q), cx.shape(k));
    let dtype = cx.dtype(q);
    if !dtype.is_float() || cx.dtype(k) != dtype || cx.dtype(v) != dtype {
        return Err(OpError::model(format!("q {}, k {} and v {}", cx.ty(q), cx.ty(k), cx.ty(v))));
    }
    let (heads, kept) = match (sq[1].as_const(), sk[1].as_const()) {
        (Some(q), Some(k)) if k > 0 && q % k == 0 => (q, k),
        _ => {
            let e = format!("the heads of q {} are no multiple of those of k {}", show(&sq), show(&sk));
            return Err(OpError::model(e));
        }
    };
    let sv = cx.shape(v);
    if sv[1] != sk[1] {
        let e = format!("k {} and v {} have other numbers of heads", show(&sk), show(&sv));
        return Err(OpError::model(e));
    }
    let scale = match (cx.float_opt("scale")?, sq[3].as_const()) {
        (Some(s), _) => f64::from(s),
        (None, Some(d)) if d > 0 => 1.0 / (d as f64).sqrt(),
        _ => return Err(OpError::unsupported(format!("heads of size {}", sq[3])).attribute("scale")),
    };
    let wide = match cx.dtype_opt("softmax_precision")? {
        Some(d) if d.is_float() && d.bits() >= 16 => d,
        Some(d) => {
            return Err(OpError::model(format!("{d} is no precision")).attribute("softmax_precision"));
        }
        None if dtype == DType::F64 => DType::F64,
        None => DType::F32,
    };
    if scale < 0.0 {
        return Err(OpError::model(format!("{scale}")).attribute("scale"));
    }
    let (k, v) = (per_query_head(cx, k, heads, kept)?, per_query_head(cx, v, heads, kept)?);
    let root = scale.sqrt();
    let q = cx.binary_scalar(B::Mul, q, root)?;
    let k = cx.transpose(k, &[0, 1, 3, 2])?;
    let k = cx.binary_scalar(B::Mul, k, root)?;
    let scores = cx.matmul(q, k)?;
    let scores = cx.cast(scores, wide)?;
    let scores = modified(cx, "score_mod", scores)?;
    let probs = cx.push(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let probs = modified(cx, "prob_mod", probs)?;
    let v = cx.cast(v, wide)?;
    let y = cx.matmul(probs, v)?;
    Ok(vec![cx.cast(y, dtype)?])
}

/// `FlexAttention`.
pub const OPS: &[OpDef] = &[OpDef::new("FlexAttention", &[1], flex_attention)
    .domain("ai.onnx.preview")
    .cases(&["test_flexattention"])];
