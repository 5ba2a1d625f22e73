//! Scaled products of queries and keys.

use super::super::prelude::*;
use crate::lower::heads::{Attend, Mask, Offset};
use crate::lower::{attention, shape};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.scaled_dot_product_attention.default", attended),
];

/// `[…, heads, positions, d]`; the axes before the heads are one batch.
fn attended(cx: &mut Cx) -> Lowered {
    if cx.float("dropout_p")? != 0.0 {
        return Err(OpError::unsupported(
            "it drops out probabilities",
            "export the module after eval(), or call run_decompositions()",
        )
        .param("dropout_p"));
    }
    let given = cx.opt_tensor("attn_mask")?;
    let (q, k, v) = (cx.tensor("query")?, cx.tensor("key")?, cx.tensor("value")?);
    let want = cx.result(0)?.shape;
    let grouped = cx.declares("enable_gqa") && cx.flag("enable_gqa")?;
    let rank = cx.rank(q);
    if rank < 2 || cx.rank(k) != rank || cx.rank(v) != rank {
        let e = format!("queries of type {}, keys of type {}, values of type {}", cx.ty(q), cx.ty(k), cx.ty(v));
        return Err(OpError::model(e));
    }
    // Without groups all three have the same axes in front, or one where they are the same for all.
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
        // Axes in front that are not the batch's alone are made one.
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
        // A query that sees nothing gives 0.
        mask.empty_is_zero = true;
    }
    if cx.flag("is_causal")? {
        mask.window(cx, (&s, &t), &Offset::Is(Dim::ZERO), None, Some(0))?;
    }
    let given = cx.opt_float("scale")?;
    let scale = attention::scale(given, &cx.shape(q)[3])?;
    let a = Attend { q, k, v, scale, cap: 0.0, mask, sink: None, show: None };
    let (y, _) = a.build(cx)?;
    Ok(vec![cx.reshape(y, want)?])
}
