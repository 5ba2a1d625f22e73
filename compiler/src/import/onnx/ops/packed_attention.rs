//! Attention with built-in projections to queries, keys and values: `Attention` and `QAttention` of ONNX Runtime.

use super::attention::{count, padding, scale};
use crate::import::onnx::prelude::*;
use crate::lower::attention;
use crate::lower::heads::{self, Attend, Mask, Offset, append, join, split};
use crate::lower::quantize::{along, centred};
use crate::lower::shape::with_extents;
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, Value};

/// Attention over `input · weights + bias`, which are inputs 0 to 2.
fn packed(cx: &mut Cx) -> Lowered {
    if cx.opt(6).is_some() {
        let help = "export the model with caches that are inputs and outputs; wgfc keeps those on the device itself";
        let e = OpError::unsupported("past_sequence_length: caches that grow in place", help);
        return Err(cx.at_input(6, e));
    }
    let (x, w) = (cx.input_of_rank(0, 3)?, cx.input_of_rank(1, 2)?);
    let mut y = cx.matmul(x, w)?;
    if cx.opt(2).is_some() {
        let bias = cx.input_of_rank(2, 1)?;
        y = cx.binary(B::Add, y, bias)?;
    }
    attend(cx, y, 3, 4, Some(5))
}

/// Attention with an input and weights of 8 bits. The inputs are input, weights, bias, the scales of input and weights, mask, the zero
/// points of input and weights, past.
fn quantized(cx: &mut Cx) -> Lowered {
    let (x, w, zx, zw) = (cx.input_of_rank(0, 3)?, cx.input_of_rank(1, 2)?, cx.opt(6), cx.opt(7));
    let (x, w) = (centred(cx, x, zx, 1)?, centred(cx, w, zw, 1)?);
    let (sx, sw) = (cx.input(3)?, cx.input(4)?);
    let (sx, sw) = (along(cx, sx, 1, 3)?, along(cx, sw, 2, 3)?);
    let sum = cx.matmul(x, w)?;
    let sum = cx.cast(sum, DType::F32)?;
    let scale = cx.binary(B::Mul, sx, sw)?;
    let y = cx.binary(B::Mul, sum, scale)?;
    let bias = cx.input_of_rank(2, 1)?;
    let y = cx.binary(B::Add, y, bias)?;
    attend(cx, y, 5, 8, None)
}

/// Attention of `projected [batch, s, queries ‖ keys ‖ values]`; `mask_at`, `past_at` and `scores` are the numbers of the inputs with the
/// mask, the past and the score bias.
fn attend(cx: &mut Cx, projected: Value, mask_at: usize, past_at: usize, scores: Option<usize>) -> Lowered {
    let n = count(cx, "num_heads")?;
    for name in ["do_rotary", "past_present_share_buffer"] {
        if cx.int(name, 0)? != 0 {
            let help = "export the model without it (0)";
            return Err(OpError::unsupported("not supported", help).attribute(name));
        }
    }
    let total = cx.shape(projected)[2].clone();
    let widths: Vec<Dim> = match cx.ints("qkv_hidden_sizes")? {
        Some(given) => {
            let sum: Option<i64> = given.iter().try_fold(0i64, |a, b| a.checked_add(*b));
            if given.len() != 3 || given.iter().any(|w| *w < 1) || !sum.is_some_and(|s| total.is(s)) {
                let e = OpError::model(format!("{given:?} do not divide {total} columns"));
                return Err(e.attribute("qkv_hidden_sizes"));
            }
            given.into_iter().map(Dim::from).collect()
        }
        None => match total.as_const() {
            Some(c) if c % 3 == 0 => vec![Dim::from(c / 3); 3],
            _ => return Err(OpError::model(format!("{total} columns are not queries, keys and values"))),
        },
    };
    let mut start = Poly::ZERO;
    let mut parts = vec![];
    for width in &widths {
        let part = cx.slice(projected, 2, &start, 1, width)?;
        parts.push(split(cx, part, n).map_err(|e| e.attribute("num_heads"))?);
        start = &start + width;
    }
    let (q, mut k, mut v) = (parts[0], parts[1], parts[2]);

    let mut offset = Dim::ZERO;
    if cx.opt(past_at).is_some() {
        let past = cx.input_of_rank(past_at, 5)?;
        let mut shape = cx.shape(past);
        shape[0] = 2i64.into();
        let past = with_extents(cx, past, &shape)?;
        offset = shape[3].clone();
        for (i, x) in [&mut k, &mut v].into_iter().enumerate() {
            let half = cx.slice(past, 0, &Poly::constant(i as i64), 1, &Dim::ONE)?;
            let half = cx.squeeze(half, &[0])?;
            *x = append(cx, half, *x).map_err(|e| cx.at_input(past_at, e))?;
        }
    }
    let (batch, s, t) = (cx.shape(q)[0].clone(), cx.shape(q)[2].clone(), cx.shape(k)[2].clone());
    let mut mask = Mask::default();
    if let Some(m) = cx.opt(mask_at) {
        let filter = padding(cx)?;
        heads::padding(cx, m, &batch, &t, filter, &mut mask)?;
    }
    mask.bias.extend(scores.and_then(|i| cx.opt(i)));
    if cx.flag("unidirectional", false)? {
        mask.window(cx, (&s, &t), &Offset::Is(offset), None, Some(0))?;
    }
    let scale = attention::scale(scale(cx)?, &cx.shape(q)[3])?;
    let (y, _) = Attend { q, k, v, scale, cap: 0.0, mask, sink: None, show: None }.build(cx)?;
    let mut out = vec![join(cx, y)?];
    if cx.wants(1) {
        let halves = [cx.unsqueeze(k, &[0])?, cx.unsqueeze(v, &[0])?];
        out.push(cx.concat(&halves, 0)?);
    }
    Ok(out)
}

/// `Attention` and `QAttention` of ONNX Runtime.
pub const OPS: &[OpDef] = &[
    OpDef::new("Attention", &[1], packed)
        .domain(MICROSOFT)
        .notes("not `do_rotary`, `past_present_share_buffer`, `past_sequence_length`; masks of lengths, ends and starts, or of rank 2 or 3")
        .cases(&["attention_"]),
    OpDef::new("QAttention", &[1], quantized)
        .domain(MICROSOFT)
        .notes("as `Attention`")
        .cases(&["qattention_"]),
];
