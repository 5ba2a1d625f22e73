//! Operators that ONNX Runtime's optimiser fuses from several ONNX operators.

use super::{conv, matmul};
use crate::import::onnx::prelude::*;
use crate::lower::elementwise::{self, Limit};
use crate::lower::gates::Activation;
use crate::lower::{activation, norm};
use wgfc_ir::{BinaryOp as B, DType, Poly, ReduceOp, Scalar, Value};

/// Applies the activation in attribute `activation`, with these parameters, to `x`.
fn activated(cx: &mut Cx, x: Value, parameters: &[f32]) -> Result<Value> {
    let name = cx.string("activation", "")?;
    let alone = |i: usize, default: f32| f64::from(parameters.get(i).copied().unwrap_or(default));
    match name.as_str() {
        "" => return Ok(x),
        "Clip" => {
            let limits = [(0, f32::MIN), (1, f32::MAX)].map(|(i, d)| Some(Limit::Is(alone(i, d))));
            return elementwise::clamp(cx, x, limits[0], limits[1]);
        }
        "HardSwish" => return activation::hard_swish(cx, x, alone(0, 1.0 / 6.0), alone(1, 0.5)),
        _ => {}
    }
    let Some(mut a) = Activation::named(&name) else {
        let help = "export the model without fused operators: ONNX Runtime's optimizations off, or at the basic level";
        return Err(OpError::unsupported(format!("activation `{name}`"), help).attribute("activation"));
    };
    if a.has_alpha() && !parameters.is_empty() {
        a.alpha = parameters[0].into();
    }
    if a.has_beta() && parameters.len() > 1 {
        a.beta = parameters[1].into();
    }
    Ok(a.of(cx, x)?)
}

/// `activation(conv + Z)`.
fn fused_conv(cx: &mut Cx) -> Lowered {
    let mut y = conv::conv(cx)?;
    if let Some(z) = cx.opt(3) {
        if cx.rank(z) != cx.rank(y) {
            let e = OpError::model(format!("{} is added to {}", cx.ty(z), cx.ty(y)));
            return Err(cx.at_input(3, e));
        }
        y = cx.binary(B::Add, y, z)?;
    }
    let parameters = cx.floats("activation_params")?.unwrap_or_default();
    Ok(vec![activated(cx, y, &parameters)?])
}

/// `activation(alpha·A·B + beta·C)`.
fn fused_gemm(cx: &mut Cx) -> Lowered {
    let y = matmul::gemm(cx)?;
    let mut parameters = vec![];
    for name in ["activation_alpha", "activation_beta", "activation_gamma"] {
        match cx.float_opt(name)? {
            Some(p) => parameters.push(p),
            None => break,
        }
    }
    Ok(vec![activated(cx, y, &parameters)?])
}

/// The normalised sum of word, position and segment embeddings, the number of positions that the mask marks in each sequence, and the
/// sum.
fn embed(cx: &mut Cx) -> Lowered {
    let ids = cx.input_of_rank(0, 2)?;
    let shape = cx.shape(ids);
    let words = cx.input_of_rank(2, 2)?;
    let mut sum = cx.take(words, ids, 0)?;
    let table = cx.input_of_rank(3, 2)?;
    let positions = match cx.opt(8) {
        Some(at) => cx.take(table, at, 0)?,
        None => {
            let at = cx.iota(&shape[1..], Poly::var(0), DType::I32)?;
            cx.take(table, at, 0)?
        }
    };
    sum = cx.binary(B::Add, sum, positions)?;
    if let (Some(segments), Some(_)) = (cx.opt(1), cx.opt(4)) {
        let table = cx.input_of_rank(4, 2)?;
        let segments = cx.take(table, segments, 0)?;
        sum = cx.binary(B::Add, sum, segments)?;
    }
    let last = cx.rank(sum) - 1;
    let (epsilon, gamma, beta) = (cx.float("epsilon", 1e-12)?, cx.input(5)?, cx.input(6)?);
    let y = norm::scaled_layer(cx, sum, &[last], epsilon.into(), gamma, Some(beta))?;
    let counts = match cx.opt(7) {
        Some(mask) if cx.int("mask_index_type", 1)? != 0 => {
            let marked = cx.binary_scalar(B::Eq, mask, 1.0)?;
            let marked = cx.cast(marked, DType::I32)?;
            cx.reduce(ReduceOp::Sum, marked, &[1], false)?
        }
        _ => cx.full(&shape[..1], Scalar::from_i64(DType::I32, 0))?,
    };
    Ok(vec![y, counts, sum])
}

/// `x + bias + skip`.
fn bias_add(cx: &mut Cx) -> Lowered {
    let (x, bias, skip) = (cx.input(0)?, cx.input_of_rank(1, 1)?, cx.input(2)?);
    if cx.rank(skip) != cx.rank(x) {
        let e = OpError::model(format!("{} is added to {}", cx.ty(skip), cx.ty(x)));
        return Err(cx.at_input(2, e));
    }
    let y = cx.binary(B::Add, x, bias)?;
    Ok(vec![cx.binary(B::Add, y, skip)?])
}

const fn op(name: &'static str, lower: fn(&mut Cx) -> Lowered, cases: &'static [&'static str]) -> OpDef {
    OpDef::new(name, &[1], lower).domain(MICROSOFT).cases(cases)
}

/// Fused operators.
pub const OPS: &[OpDef] = &[
    op("BiasAdd", bias_add, &["bias_add"]),
    op("EmbedLayerNormalization", embed, &["embed_layer_norm"]),
    op("FusedConv", fused_conv, &["fused_conv"]),
    op("FusedGemm", fused_gemm, &["fused_gemm"]),
];
