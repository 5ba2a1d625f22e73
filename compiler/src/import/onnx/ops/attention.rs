//! Attention with heads, masks and caches, in the forms of ONNX and of ONNX Runtime.

use crate::import::onnx::prelude::*;
use crate::lower::cache::{self, Cache};
use crate::lower::heads::{self, Attend, Mask, Offset, Stage, append, join, split};
use crate::lower::rotary;
use crate::lower::shape::with_extents;
use wgfc_ir::{BinaryOp as B, DType, Dim, NormKind, Op, Poly, Scalar, Value};

/// An attribute that counts heads.
pub(super) fn count(cx: &Cx, name: &str) -> Result<i64> {
    match cx.int_req(name)? {
        n if (1..=1 << 20).contains(&n) => Ok(n),
        n => Err(OpError::model(format!("{n} heads")).attribute(name)),
    }
}

/// The attribute `scale`, or `1/√d`.
pub(super) fn scale(cx: &Cx, d: &Dim) -> Result<f64> {
    match cx.float_opt("scale")? {
        Some(s) if s != 0.0 => Ok(s.into()),
        _ => heads::default_scale(d),
    }
}

/// Masks the keys that `m` says are padding.
pub(super) fn padding(cx: &mut Cx, m: Value, batch: &Dim, t: &Dim, mask: &mut Mask) -> Result<()> {
    let filter = cx.float("mask_filter_value", -10_000.0)?;
    heads::padding(cx, m, batch, t, filter.into(), mask)
}

/// A window's bound: −1 is none.
fn bound(cx: &Cx, name: &str) -> Result<Option<i64>> {
    match cx.int(name, -1)? {
        -1 => Ok(None),
        n if (0..=i64::from(i32::MAX)).contains(&n) => Ok(Some(n)),
        n => Err(OpError::model(format!("a window of {n}")).attribute(name)),
    }
}

/// `Attention` of ONNX.
fn onnx(cx: &mut Cx) -> Lowered {
    let (q, k, v) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let flat = cx.rank(q) == 3;
    let (q, k, v) = if flat {
        let (n, m) = (count(cx, "q_num_heads")?, count(cx, "kv_num_heads")?);
        (split(cx, q, n)?, split(cx, k, m)?, split(cx, v, m)?)
    } else {
        (q, k, v)
    };
    if [q, k, v].iter().any(|x| cx.rank(*x) != 4) {
        let e = format!("needs q, k and v of rank 3 or 4, got {}, {} and {}", cx.ty(q), cx.ty(k), cx.ty(v));
        return Err(OpError::model(e));
    }
    let (mut present, mut offset) = ((k, v), Offset::Is(Dim::ZERO));
    match (cx.opt(4), cx.opt(5)) {
        (Some(pk), Some(pv)) => {
            offset = Offset::Is(cx.shape(pk).get(2).cloned().unwrap_or_default());
            present = (append(cx, pk, k)?, append(cx, pv, v)?);
        }
        (None, None) => {}
        _ => return Err(OpError::model("needs both past_key and past_value, or neither")),
    }
    let (s, t) = (cx.shape(q)[2].clone(), cx.shape(present.0)[2].clone());
    let batch = cx.shape(q)[0].clone();
    let mut mask = Mask::default();
    if let Some(lengths) = cx.opt(6) {
        let lengths = heads::per_sequence(cx, lengths, &batch)?;
        mask.below(cx, &t, lengths)?;
        mask.empty_is_zero = true;
        offset = Offset::Of(heads::plus(cx, lengths, &-&s)?);
    }
    if let Some(m) = cx.opt(3) {
        mask.empty_is_zero = true;
        let m = heads::padded(cx, m, &t)?;
        if cx.dtype(m) == DType::Bool { mask.allowed.push(m) } else { mask.bias.push(m) }
    }
    let causal = cx.flag("is_causal", false)?;
    let (left, mut right) = (bound(cx, "left_window_size")?, bound(cx, "right_window_size")?);
    if causal {
        right = Some(0);
    }
    mask.window(cx, (&s, &t), &offset, left, right)?;
    let show = match (cx.wants(3), cx.int("qk_matmul_output_mode", 0)?) {
        (false, _) => None,
        (true, 0) => Some(Stage::Product),
        (true, 1) => Some(Stage::Capped),
        (true, 2) => Some(Stage::Masked),
        (true, 3) => Some(Stage::Softmax),
        (true, m) => return Err(OpError::model(format!("mode {m}")).attribute("qk_matmul_output_mode")),
    };
    let a = Attend {
        q,
        k: present.0,
        v: present.1,
        scale: scale(cx, &cx.shape(q)[3].clone())?,
        cap: cx.float("softcap", 0.0)?.into(),
        mask,
        sink: None,
        show,
    };
    let (y, shown) = a.build(cx)?;
    let y = if flat { join(cx, y)? } else { y };
    let mut out = vec![y, present.0, present.1];
    out.extend(shown);
    Ok(out)
}

/// `MultiHeadAttention`: projections are done; packed, biased, masked, with a cache.
fn multi_head(cx: &mut Cx) -> Lowered {
    let n = count(cx, "num_heads")?;
    for (i, what) in [(8, "past_sequence_length"), (9, "cache_indirection")] {
        if cx.opt(i).is_some() {
            return Err(cx.at_input(i, OpError::unsupported(format!("{what}: caches that grow in place"))));
        }
    }
    if cx.wants(3) {
        return Err(OpError::unsupported("the scores as an output"));
    }
    let query = cx.input(0)?;
    let (mut k, mut v) = (cx.opt(1), cx.opt(2));
    let mut q;
    let part = |cx: &mut Cx, x: Value, i: i64| -> Result<Value> {
        let x = cx.slice(x, 3, &i.into(), 1, &Dim::ONE)?;
        let x = cx.squeeze(x, &[3])?;
        Ok(cx.transpose(x, &[0, 2, 1, 3])?)
    };
    match (cx.rank(query), k) {
        (5, None) => {
            q = part(cx, query, 0)?;
            (k, v) = (Some(part(cx, query, 1)?), Some(part(cx, query, 2)?));
        }
        (3, Some(key)) => {
            q = split(cx, query, n)?;
            match (cx.rank(key), v) {
                (5, None) => (k, v) = (Some(part(cx, key, 0)?), Some(part(cx, key, 1)?)),
                (3, Some(value)) => (k, v) = (Some(split(cx, key, n)?), Some(split(cx, value, n)?)),
                (4, Some(_)) => {}
                _ => return Err(cx.at_input(1, OpError::model(format!("a key of type {}", cx.ty(key))))),
            }
        }
        _ => return Err(cx.at_input(0, OpError::model(format!("a query of type {}", cx.ty(query))))),
    }
    let (Some(mut k), Some(mut v)) = (k, v) else { return Err(OpError::model("needs key and value")) };
    if [q, k, v].iter().any(|x| cx.rank(*x) != 4 || !cx.shape(*x)[1].is(n)) {
        return Err(OpError::model(format!("its operands do not have {n} heads")).attribute("num_heads"));
    }
    if cx.opt(3).is_some() {
        let bias = cx.input_of_rank(3, 1)?;
        let all = [q, k, v].iter().fold(Dim::ZERO, |sum, x| sum + &cx.shape(*x)[3] * n);
        let bias = with_extents(cx, bias, &[all])?;
        let mut start = Dim::ZERO;
        for x in [&mut q, &mut k, &mut v] {
            let d = cx.shape(*x)[3].clone();
            let hidden = &d * n;
            let b = cx.slice(bias, 0, &start, 1, &hidden)?;
            let b = cx.reshape(b, vec![n.into(), Dim::ONE, d])?;
            *x = cx.binary(B::Add, *x, b)?;
            start = start + hidden;
        }
    }
    let mut offset = Dim::ZERO;
    if let (Some(pk), Some(pv)) = (cx.opt(6), cx.opt(7)) {
        offset = cx.shape(pk).get(2).cloned().unwrap_or_default();
        (k, v) = (append(cx, pk, k)?, append(cx, pv, v)?);
    }
    let (batch, s, t) = (cx.shape(q)[0].clone(), cx.shape(q)[2].clone(), cx.shape(k)[2].clone());
    let mut mask = Mask::default();
    if let Some(m) = cx.opt(4) {
        padding(cx, m, &batch, &t, &mut mask)?;
    }
    mask.bias.extend(cx.opt(5));
    if cx.flag("unidirectional", false)? {
        mask.window(cx, (&s, &t), &Offset::Is(offset), None, Some(0))?;
    }
    let scale = scale(cx, &cx.shape(q)[3].clone())?;
    let a = Attend { q, k, v, scale, cap: 0.0, mask, sink: None, show: None };
    let (y, _) = a.build(cx)?;
    Ok(vec![join(cx, y)?, k, v])
}

/// `GroupQueryAttention`: heads of queries share keys; rotary embedding, cache, causal mask.
fn group_query(cx: &mut Cx) -> Lowered {
    let (n, m) = (count(cx, "num_heads")?, count(cx, "kv_num_heads")?);
    for (i, what) in [(12, "quantised keys"), (13, "quantised values")] {
        if cx.opt(i).is_some() {
            return Err(cx.at_input(i, OpError::unsupported(what)));
        }
    }
    for name in ["sliding_window_cache", "qk_output"] {
        if cx.int(name, 0)? != 0 {
            return Err(OpError::unsupported("not supported").attribute(name));
        }
    }
    let (mut q, mut k, v) = unpacked(cx, n, m)?;
    let shape = cx.shape(q);
    let (batch, s, d) = (shape[0].clone(), shape[2].clone(), shape[3].clone());
    let lengths = cx.input(5)?;
    let last = heads::per_sequence(cx, lengths, &batch)?;
    let held = held(cx, &batch, &s)?;
    // The position of the first new token.
    let start = heads::plus(cx, last, &(&Dim::ONE - &s))?;
    let start = cx.binary_scalar(B::Max, start, 0.0)?;
    let offset = match &held {
        Cache::None => Offset::Is(Dim::ZERO),
        Cache::Grows(p) => Offset::Is(p.clone()),
        Cache::Ragged(_) | Cache::Fixed(_) => Offset::Of(start),
    };
    if let (Some(qw), Some(kw)) = (cx.opt(14), cx.opt(15)) {
        let epsilon = cx.float("qk_norm_epsilon", 1e-6)?.to_bits();
        for (x, w) in [(&mut q, qw), (&mut k, kw)] {
            *x = cx.push(Op::Norm { kind: NormKind::Rms, axes: vec![3], epsilon }, &[*x])?;
            *x = cx.binary(B::Mul, *x, w)?;
        }
    }
    if cx.flag("do_rotary", false)? {
        let interleaved = cx.flag("rotary_interleaved", false)?;
        let (mut cos, mut sin) = (cx.input_of_rank(7, 2)?, cx.input_of_rank(8, 2)?);
        for t in [&mut cos, &mut sin] {
            *t = match cx.opt(9) {
                Some(at) => rotary::rows(cx, *t, at)?,
                None => cache::angles(cx, *t, &offset, &batch, &s)?,
            };
        }
        q = rotary::rotate(cx, q, cos, sin, interleaved)?;
        k = rotary::rotate(cx, k, cos, sin, interleaved)?;
    }
    let (k, v) = match (&held, cx.opt(3), cx.opt(4)) {
        (Cache::Grows(_), Some(pk), Some(pv)) => (append(cx, pk, k)?, append(cx, pv, v)?),
        (Cache::Ragged(p), Some(pk), Some(pv)) => {
            (cache::inserted(cx, pk, k, start, p)?, cache::inserted(cx, pv, v, start, p)?)
        }
        (Cache::Fixed(c), Some(pk), Some(pv)) => {
            (cache::written(cx, pk, k, start, c)?, cache::written(cx, pv, v, start, c)?)
        }
        _ => (k, v),
    };
    let t = cx.shape(k)[2].clone();
    let mut mask = Mask::default();
    // The window counts the query's own position.
    let window = match bound(cx, "local_window_size")? {
        None => None,
        Some(0) => return Err(OpError::model("a window of 0").attribute("local_window_size")),
        Some(n) => Some(n - 1),
    };
    if cx.flag("causal", true)? {
        mask.window(cx, (&s, &t), &offset, window, Some(0))?;
    } else {
        let lengths = heads::plus(cx, last, &Dim::ONE)?;
        mask.below(cx, &t, lengths)?;
    }
    if let Some(bias) = cx.opt(10) {
        let mut shape = cx.shape(bias);
        let fits = shape.len() == 4;
        if let (true, Some(l)) = (fits, shape.last_mut()) {
            *l = t.clone();
        }
        let index = (0..shape.len()).map(Poly::var).collect();
        let fill = Some(Scalar::from_f64(cx.dtype(bias), 0.0));
        let bias = match held {
            Cache::Fixed(_) if fits => cx.push(Op::View { shape, index, fill }, &[bias])?,
            _ if fits => with_extents(cx, bias, &shape)?,
            _ => return Err(cx.at_input(10, OpError::model(format!("needs rank 4, got {}", cx.ty(bias))))),
        };
        mask.bias.push(bias);
    }
    let sink = match cx.opt(11) {
        Some(s) => Some(s),
        None if cx.int("smooth_softmax", -1)? > 0 => {
            let zero = cx.scalar(DType::F32, 0.0);
            Some(cx.unsqueeze(zero, &[0])?)
        }
        None => None,
    };
    let cap = cx.float("softcap", 0.0)?.into();
    let a = Attend { q, k, v, scale: scale(cx, &d)?, cap, mask, sink, show: None };
    let (y, _) = a.build(cx)?;
    let (k, v) = match held {
        Cache::Ragged(_) => (cache::ended(cx, k, start, &s)?, cache::ended(cx, v, start, &s)?),
        _ => (k, v),
    };
    Ok(vec![join(cx, y)?, k, v])
}

/// Query, key and value as heads; the query may hold all three.
fn unpacked(cx: &mut Cx, n: i64, m: i64) -> Result<(Value, Value, Value)> {
    let query = cx.input_of_rank(0, 3)?;
    let (Some(key), Some(value)) = (cx.opt(1), cx.opt(2)) else {
        let all = split(cx, query, n + 2 * m)?;
        let mut part = |start: i64, len: i64| cx.slice(all, 1, &start.into(), 1, &len.into());
        return Ok((part(0, n)?, part(n, m)?, part(n + m, m)?));
    };
    let q = split(cx, query, n)?;
    let (k, v) = (split(cx, key, m)?, split(cx, value, m)?);
    let s = cx.shape(q);
    let want = [s[0].clone(), m.into(), s[2].clone(), s[3].clone()];
    Ok((q, with_extents(cx, k, &want)?, with_extents(cx, v, &want)?))
}

/// Decides by the dimensions. A past that is as long as the sequence with the new tokens, or of a
/// fixed length, is a buffer to write into; one with a length of its own grows.
fn held(cx: &mut Cx, batch: &Dim, s: &Dim) -> Result<Cache> {
    let past = match (cx.opt(3), cx.opt(4)) {
        (None, None) => return Ok(Cache::None),
        (Some(k), Some(_)) => match cx.shape(k).get(2) {
            Some(p) => p.clone(),
            None => return Err(cx.at_input(3, OpError::model(format!("needs rank 4, got {}", cx.ty(k))))),
        },
        _ => return Err(OpError::model("needs both past_key and past_value, or neither")),
    };
    if past.is(0) {
        return Ok(Cache::None);
    }
    let total = cx.input(6)?;
    let total = cx.dims(total).and_then(|d| d.first().cloned());
    let after = &past + s;
    match total {
        Some(t) if t == after => {}
        Some(t) if t == past || past.as_const().is_some() => return Ok(Cache::Fixed(past)),
        Some(t) => cx.require_equal(&t, &after),
        None if past.as_const().is_some() => return Ok(Cache::Fixed(past)),
        None => {}
    }
    Ok(if batch.is(1) { Cache::Grows(past) } else { Cache::Ragged(past) })
}

/// Attention operators.
pub const OPS: &[OpDef] = &[
    OpDef::new("Attention", &[23, 24, 25], onnx).cases(&["test_attention"]),
    OpDef::new("GroupQueryAttention", &[1], group_query)
        .domain(MICROSOFT)
        .notes("not quantised caches, `sliding_window_cache`, `qk_output`")
        .cases(&["group_query_attention_"]),
    OpDef::new("MultiHeadAttention", &[1], multi_head)
        .domain(MICROSOFT)
        .notes("not `past_sequence_length`, `cache_indirection`, the scores as an output")
        .cases(&["multi_head_attention_"]),
];
