//! Rotary position embeddings.

use super::heads;
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, ScalarFn, ScalarNode as N, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

/// `a·c + s·b·d` with `s` = ±1, rounded once.
fn turned(cx: &mut Cx, sign: B, [a, c, b, d]: [Value; 4]) -> Result {
    let dtype = cx.dtype(a);
    let mut f = ScalarFn::default();
    let arg = |f: &mut ScalarFn, i: u32, v: Value, cx: &Cx| {
        let x = f.push(N::Arg(i));
        if cx.dtype(v) == DType::F32 { x } else { f.push(N::Cast(DType::F32, x)) }
    };
    let (x, y) = (arg(&mut f, 0, a, cx), arg(&mut f, 1, c, cx));
    let left = f.push(N::Binary(B::Mul, x, y));
    let (x, y) = (arg(&mut f, 2, b, cx), arg(&mut f, 3, d, cx));
    let right = f.push(N::Binary(B::Mul, x, y));
    let sum = f.push(N::Binary(sign, left, right));
    if dtype != DType::F32 {
        f.push(N::Cast(dtype, sum));
    }
    let shape = cx.shape(a);
    Ok(cx.map_to(f, &[a, c, b, d], shape)?)
}

/// Rotates the first `2 · r` elements of each head of `x`, `[batch, heads, s, d]`, by angles whose
/// cosine and sine broadcast to `[batch, heads, s, r]`. The pairs are `(i, i + r)`, or `(2i, 2i + 1)`
/// when interleaved.
pub(super) fn rotate(cx: &mut Cx, x: Value, cos: Value, sin: Value, interleaved: bool) -> Result {
    let shape = cx.shape(x);
    let (r, d) = (cx.shape(cos)[3].clone(), shape[3].clone());
    match (r.as_const(), d.as_const()) {
        (Some(r), Some(d)) if 2 * r <= d => {}
        _ => {
            let e = format!("rotates {} elements of heads of {d}", &r * 2);
            return Err(OpError::model(e));
        }
    }
    let (first, second, step) =
        if interleaved { (Poly::ZERO, Poly::ONE, 2) } else { (Poly::ZERO, r.clone(), 1) };
    let a = cx.slice(x, 3, &first, step, &r)?;
    let b = cx.slice(x, 3, &second, step, &r)?;
    let real = turned(cx, B::Sub, [a, cos, b, sin])?;
    let imaginary = turned(cx, B::Add, [b, cos, a, sin])?;
    let turned = if interleaved {
        let pair = [cx.unsqueeze(real, &[4])?, cx.unsqueeze(imaginary, &[4])?];
        let both = cx.concat(&pair, 4)?;
        let mut flat = shape.clone();
        flat[3] = &r * 2;
        vec![cx.reshape(both, flat)?]
    } else {
        vec![real, imaginary]
    };
    let mut parts = turned;
    let rest = &d - &(&r * 2);
    if !rest.is(0) {
        parts.push(cx.slice(x, 3, &(&r * 2), 1, &rest)?);
    }
    Ok(cx.concat(&parts, 3)?)
}

/// Rows of a table `[positions, r]` at `[batch, s]`, as `[batch, 1, s, r]`.
pub(super) fn rows(cx: &mut Cx, table: Value, at: Value) -> Result {
    if cx.rank(table) != 2 || cx.rank(at) != 2 {
        let e = format!("needs a table and positions of rank 2, got {} and {}", cx.ty(table), cx.ty(at));
        return Err(OpError::model(e));
    }
    let rows = cx.take(table, at, 0)?;
    Ok(cx.unsqueeze(rows, &[1])?)
}

/// `x` as heads: it is that already when of rank 4, else `width` or `heads` says how it divides.
fn heads_of(cx: &mut Cx, x: Value, heads: i64, width: Option<i64>) -> Result {
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

/// A table of the first `r` columns where the operator says how many rotate.
fn table(cx: &mut Cx, i: usize, rotated: i64) -> Result {
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

/// ONNX's: tables may be given for each position already.
fn onnx(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let rotated = cx.int("rotary_embedding_dim", 0)?;
    let h = cx.int("num_heads", 0)?;
    let h = heads_of(cx, x, h, None)?;
    let (mut cos, mut sin) = (table(cx, 1, rotated)?, table(cx, 2, rotated)?);
    for t in [&mut cos, &mut sin] {
        *t = match cx.opt(3) {
            Some(at) => rows(cx, *t, at)?,
            None if cx.rank(*t) == 3 => cx.unsqueeze(*t, &[1])?,
            None => return Err(OpError::model("needs position_ids, or tables of rank 3")),
        };
    }
    let interleaved = cx.flag("interleaved", false)?;
    let y = rotate(cx, h, cos, sin, interleaved)?;
    Ok(vec![if rank == 3 { heads::join(cx, y)? } else { y }])
}

/// ONNX Runtime's: positions are given one by one, or as the first of them.
fn microsoft(cx: &mut Cx) -> Lowered {
    let (x, at) = (cx.input(0)?, cx.input(1)?);
    let rank = cx.rank(x);
    if cx.float("scale", 1.0)? != 1.0 {
        return Err(OpError::unsupported("scaled").attribute("scale"));
    }
    if cx.flag("is_packed_batching", false)? {
        return Err(OpError::unsupported("packed batches").attribute("is_packed_batching"));
    }
    let rotated = cx.int("rotary_embedding_dim", 0)?;
    let (cos, sin) = (table(cx, 2, rotated)?, table(cx, 3, rotated)?);
    let width = cx.shape(cos).last().and_then(Dim::as_const).map(|r| 2 * r);
    let h = cx.int("num_heads", 0)?;
    let h = heads_of(cx, x, h, width)?;
    let at = if cx.rank(at) <= 1 {
        if let [n] = &cx.shape(at)[..] {
            if n.as_const().is_some_and(|n| n != 1) {
                let e =
                    OpError::model(format!("needs one position, or one for each element, got {}", cx.ty(at)));
                return Err(cx.at_input(1, e));
            }
            cx.require_equal(n, &Dim::ONE);
        }
        let first = vec![Poly::ZERO; cx.rank(at)];
        let at = cx.view(at, vec![Dim::ONE], first)?;
        let s = cx.shape(h);
        let dtype = cx.dtype(at);
        let steps = cx.iota(&[s[0].clone(), s[2].clone()], Poly::var(1), dtype)?;
        cx.binary(B::Add, at, steps)?
    } else {
        at
    };
    let (cos, sin) = (rows(cx, cos, at)?, rows(cx, sin, at)?);
    let interleaved = cx.flag("interleaved", false)?;
    let y = rotate(cx, h, cos, sin, interleaved)?;
    Ok(vec![if rank == 3 { heads::join(cx, y)? } else { y }])
}

/// `RotaryEmbedding` of ONNX and of ONNX Runtime.
pub const OPS: &[OpDef] = &[
    OpDef::new("RotaryEmbedding", &[23], onnx).cases(&["test_rotary_embedding"]),
    OpDef::new("RotaryEmbedding", &[1], microsoft)
        .domain("com.microsoft")
        .notes("not `scale`, not `is_packed_batching`")
        .cases(&["rotary_embedding_"]),
];
