//! Rotary position embeddings.

use crate::import::onnx::prelude::*;
use crate::lower::{heads, rotary};
use wgfc_ir::{Dim, Value};

/// Splits `x` into heads, by their number or their `width`; a tensor of rank 4 already has a head axis.
fn heads_of(cx: &mut Cx, x: Value, heads: i64, width: Option<i64>) -> Result<Value> {
    if cx.rank(x) == 4 {
        return Ok(x);
    }
    let heads = match (heads, cx.shape(x).last().and_then(Dim::as_const), width) {
        (0, Some(hidden), Some(w)) if w > 0 && hidden % w == 0 => hidden / w,
        (n, ..) if n > 0 => n,
        _ => {
            let e = format!("needs the number of heads for {}", cx.ty(x));
            return Err(OpError::model(e).attribute("num_heads"));
        }
    };
    heads::split(cx, x, heads)
}

/// A table of sines or cosines; its width must be half of `rotated` unless that is 0.
fn table(cx: &mut Cx, i: usize, rotated: i64) -> Result<Value> {
    let t = cx.input(i)?;
    let rank = cx.rank(t);
    let wrong = |cx: &Cx| {
        let e =
            format!("its width must be {}, half of `rotary_embedding_dim`; got {}", rotated / 2, cx.ty(t));
        cx.at_input(i, OpError::model(e))
    };
    if !(2..=3).contains(&rank) || (rotated != 0 && !cx.shape(t)[rank - 1].is(rotated / 2)) {
        return Err(wrong(cx));
    }
    Ok(t)
}

/// ONNX's operator, whose tables may already be indexed by position.
fn onnx(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let rotated = cx.int("rotary_embedding_dim", 0)?;
    let h = cx.int("num_heads", 0)?;
    let h = heads_of(cx, x, h, None)?;
    let (mut cos, mut sin) = (table(cx, 1, rotated)?, table(cx, 2, rotated)?);
    for t in [&mut cos, &mut sin] {
        *t = match cx.opt(3) {
            Some(at) => rotary::rows(cx, *t, at)?,
            None if cx.rank(*t) == 3 => cx.unsqueeze(*t, &[1])?,
            None => return Err(OpError::model("needs position_ids, or tables of rank 3")),
        };
    }
    let interleaved = cx.flag("interleaved", false)?;
    let y = rotary::rotate(cx, h, cos, sin, rotary::Pairs::of(interleaved))?;
    Ok(vec![if rank == 3 { heads::join(cx, y)? } else { y }])
}

/// ONNX Runtime's operator; positions are given individually, or the first one is.
fn microsoft(cx: &mut Cx) -> Lowered {
    let (x, at) = (cx.input(0)?, cx.input(1)?);
    let rank = cx.rank(x);
    if cx.float("scale", 1.0)? != 1.0 {
        return Err(OpError::unsupported("a scale other than 1", "export it with a scale of 1, and scale the caches of cosines and sines").attribute("scale"));
    }
    if cx.flag("is_packed_batching", false)? {
        return Err(OpError::unsupported("packed batches", "export it with batches that are padded").attribute("is_packed_batching"));
    }
    let rotated = cx.int("rotary_embedding_dim", 0)?;
    let (cos, sin) = (table(cx, 2, rotated)?, table(cx, 3, rotated)?);
    let width = cx.shape(cos).last().and_then(Dim::as_const).map(|r| 2 * r);
    let h = cx.int("num_heads", 0)?;
    let h = heads_of(cx, x, h, width)?;
    let at = if cx.rank(at) <= 1 {
        let s = cx.shape(h);
        rotary::consecutive(cx, at, &s[0], &s[2])?
    } else {
        at
    };
    let (cos, sin) = (rotary::rows(cx, cos, at)?, rotary::rows(cx, sin, at)?);
    let interleaved = cx.flag("interleaved", false)?;
    let y = rotary::rotate(cx, h, cos, sin, rotary::Pairs::of(interleaved))?;
    Ok(vec![if rank == 3 { heads::join(cx, y)? } else { y }])
}

/// `RotaryEmbedding` of ONNX and of ONNX Runtime.
pub const OPS: &[OpDef] = &[
    OpDef::new("RotaryEmbedding", &[23], onnx).cases(&["test_rotary_embedding"]),
    OpDef::new("RotaryEmbedding", &[1], microsoft)
        .domain(MICROSOFT)
        .notes("not `scale`, not `is_packed_batching`")
        .cases(&["rotary_embedding_"]),
];
