//! Scaled dot-product attention.

use super::super::prelude::*;
use crate::lower::attention_gradient::{self, Scored};
use crate::lower::heads::{Attend, Mask, Offset, Stage};
use crate::lower::{attention, shape};
use wgfc_ir::{Op, Poly, Scalar};

const NOTES: &str = "without dropout";

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._scaled_dot_product_attention_math.default", shown).notes(NOTES),
    OpDef::new("aten._scaled_dot_product_cudnn_attention.default", |cx| forward(cx, "attn_bias")).notes(NOTES),
    OpDef::new("aten._scaled_dot_product_cudnn_attention_backward.default", |cx| backward(cx, "attn_bias")).notes(NOTES),
    OpDef::new("aten._scaled_dot_product_efficient_attention.default", |cx| forward(cx, "attn_bias")).notes(NOTES),
    OpDef::new("aten._scaled_dot_product_efficient_attention_backward.default", |cx| backward(cx, "attn_bias")).notes(NOTES),
    OpDef::new("aten._scaled_dot_product_flash_attention.default", |cx| forward(cx, "")).notes(NOTES),
    OpDef::new("aten._scaled_dot_product_flash_attention_backward.default", |cx| backward(cx, "")).notes(NOTES),
    OpDef::new("aten._scaled_dot_product_flash_attention_for_cpu.default", |cx| forward(cx, "attn_mask")).notes(NOTES),
    OpDef::new("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", |cx| backward(cx, "attn_mask")).notes(NOTES),
    OpDef::new("aten.scaled_dot_product_attention.default", attended).notes(NOTES),
];

fn require_no_dropout(cx: &mut Cx) -> Result<()> {
    if cx.float("dropout_p")? != 0.0 {
        return Err(OpError::unsupported(
            "it drops out probabilities",
            "export the module after eval(), or call run_decompositions()",
        )
        .param("dropout_p"));
    }
    Ok(())
}

/// Attention over `[…, heads, positions, d]`; the axes before the heads are flattened to one batch axis.
fn attended(cx: &mut Cx) -> Lowered {
    Ok(vec![of_any_rank(cx, false)?.0])
}

/// Attention that also returns the probabilities.
fn shown(cx: &mut Cx) -> Lowered {
    if cx.opt_tensor("dropout_mask")?.is_some() {
        return Err(OpError::unsupported("it drops out probabilities", "export the module after eval()").param("dropout_mask"));
    }
    let (y, p) = of_any_rank(cx, true)?;
    let mut out = vec![y];
    out.extend(p);
    Ok(out)
}

/// Attention of any rank; returns the probabilities if `shown`.
fn of_any_rank(cx: &mut Cx, shown: bool) -> Result<(Value, Option<Value>)> {
    require_no_dropout(cx)?;
    let given = cx.opt_tensor("attn_mask")?;
    let (q, k, v) = (cx.tensor("query")?, cx.tensor("key")?, cx.tensor("value")?);
    let want = cx.result(0)?.shape;
    let grouped = cx.declares("enable_gqa") && cx.flag("enable_gqa")?;
    let rank = cx.rank(q);
    if rank < 2 || cx.rank(k) != rank || cx.rank(v) != rank {
        let e = format!("queries of type {}, keys of type {}, values of type {}", cx.ty(q), cx.ty(k), cx.ty(v));
        return Err(OpError::model(e));
    }
    // Unless query heads are grouped, the leading axes of all three are broadcast.
    let mut lead: Vec<Dim> = cx.shape(q)[..rank - 2].to_vec();
    if !grouped {
        for x in [k, v] {
            for (l, d) in lead.iter_mut().zip(&cx.shape(x)[..rank - 2]) {
                if l.is(1) {
                    *l = d.clone();
                }
            }
        }
    }
    let batch: Dim = lead[..lead.len().saturating_sub(1)].iter().product();
    let four = |cx: &mut Cx, x: Value| -> Result {
        let mut dims = cx.shape(x);
        if !grouped {
            dims[..rank - 2].clone_from_slice(&lead);
        }
        let x = shape::expand(cx, x, &dims)?;
        let heads = dims.get(rank.wrapping_sub(3)).cloned().unwrap_or(Dim::ONE);
        Ok(cx.reshape(x, vec![batch.clone(), heads, dims[rank - 2].clone(), dims[rank - 1].clone()])?)
    };
    let (q, k, v) = (four(cx, q)?, four(cx, k)?, four(cx, v)?);
    let (s, t, heads) = (cx.shape(q)[2].clone(), cx.shape(k)[2].clone(), cx.shape(q)[1].clone());
    let mut mask = Mask::default();
    if let Some(m) = given {
        // A mask with its own leading axes is expanded to those of the query and flattened like them.
        let m = match cx.rank(m) {
            r if r > 4 || r > 2 && rank != 4 => {
                let mut full = lead.clone();
                full.extend([s.clone(), t.clone()]);
                let m = shape::expand(cx, m, &full)?;
                cx.reshape(m, vec![batch.clone(), heads.clone(), s.clone(), t.clone()])?
            }
            _ => m,
        };
        match cx.dtype(m) {
            DType::Bool => {
                mask.allowed.push(m);
            }
            _ => mask.bias.push(m),
        }
        // A query whose keys are all masked gives 0.
        mask.empty_is_zero = true;
    }
    if cx.flag("is_causal")? {
        mask.window(cx, (&s, &t), &Offset::Is(Dim::ZERO), None, Some(0))?;
    }
    let given = cx.opt_float("scale")?;
    let scale = attention::scale(given, &cx.shape(q)[3])?;
    let a = Attend { q, k, v, scale, cap: 0.0, mask, sink: None, show: None };
    let mut p = None;
    if shown && cx.result_count() > 1 {
        let want = cx.result(1)?.shape;
        let all = Attend { show: Some(Stage::Softmax), ..a.clone() };
        p = all.build(cx)?.1.map(|p| cx.reshape(p, want)).transpose()?;
    }
    let (y, _) = a.build(cx)?;
    Ok((cx.reshape(y, want)?, p))
}

/// Reads the operands of the fused attention kernels, each of rank 4.
fn scored(cx: &mut Cx, bias: &str) -> Result<Scored> {
    require_no_dropout(cx)?;
    let (q, k, v) = (cx.tensor("query")?, cx.tensor("key")?, cx.tensor("value")?);
    for x in [q, k, v] {
        cx.require_rank(x, 4)?;
    }
    let mut mask = Mask::default();
    let given = if bias.is_empty() { None } else { cx.opt_tensor(bias)? };
    if let Some(m) = given {
        if cx.dtype(m) == DType::Bool { mask.allowed.push(m) } else { mask.bias.push(m) }
        mask.empty_is_zero = true;
    }
    if cx.flag("is_causal")? {
        let (s, t) = (cx.shape(q)[2].clone(), cx.shape(k)[2].clone());
        mask.window(cx, (&s, &t), &Offset::Is(Dim::ZERO), None, Some(0))?;
    }
    let given = cx.opt_float("scale")?;
    let scale = attention::scale(given, &cx.shape(q)[3])?;
    Ok(Scored { q, k, v, scale, mask })
}

/// The result, the log-sum-exp of the scores for the gradient, and zeros for the results that only dropout or other kernels read.
fn forward(cx: &mut Cx, bias: &str) -> Lowered {
    let x = scored(cx, bias)?;
    let Scored { q, k, v, scale, mask } = x.clone();
    let a = Attend { q, k, v, scale, cap: 0.0, mask, sink: None, show: None };
    let mut out = vec![a.build(cx)?.0];
    for i in 1..cx.result_count() {
        let want = cx.result(i)?;
        out.push(if i == 1 && want.shape.len() >= 3 {
            let logs = x.log_sums(cx)?;
            let logs = cx.converted(logs, want.dtype)?;
            // Some kernels declare a last axis of extent 1, or more rows than there are queries.
            let index = (0..3).map(Poly::var).collect();
            let fill = Some(Scalar::from_f64(want.dtype, 0.0));
            cx.push(Op::View { shape: want.shape, index, fill }, &[logs])?
        } else {
            cx.full(&want.shape, Scalar::from_f64(want.dtype, 0.0))?
        });
    }
    Ok(out)
}

fn backward(cx: &mut Cx, bias: &str) -> Lowered {
    let x = scored(cx, bias)?;
    let name = if cx.declares("grad_out_") { "grad_out_" } else { "grad_out" };
    let (g, out, logs) = (cx.tensor(name)?, cx.tensor("out")?, cx.tensor("logsumexp")?);
    let p = if cx.rank(logs) == 4 && bias == "attn_mask" {
        // torch's own decomposition of the CPU kernel returns probabilities in place of the log-sum-exp.
        let mut want = cx.shape(x.q);
        want[3] = cx.shape(x.k)[2].clone();
        shape::with_extents(cx, logs, &want)?
    } else {
        let rows = cx.shape(x.q)[..3].to_vec();
        let mut index: Vec<Poly> = (0..3).map(Poly::var).collect();
        index.resize(cx.rank(logs).max(3), Poly::ZERO);
        let logs = cx.view(logs, rows, index)?;
        x.probabilities(cx, logs)?
    };
    let g = x.gradients(cx, g, out, p)?;
    let mut all = g.qkv.to_vec();
    if cx.declares("grad_input_mask") {
        if let Some(b) = x.mask.bias.first().copied() {
            let (shape, dtype) = (cx.shape(b), cx.dtype(b));
            all.push(attention_gradient::of_bias(cx, g.scores, &shape, dtype)?);
        }
        // Gradients that are not requested have no result name.
        let asked = cx.flags("grad_input_mask")?;
        all = all.into_iter().enumerate().filter(|(i, _)| asked.get(*i).copied().unwrap_or(true)).map(|(_, v)| v).collect();
    }
    Ok(all)
}
