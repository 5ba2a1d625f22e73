//! Attention layers: splitting into heads, biases, key-value caches and masks around [`Attend`].

use super::cache::{self, Cache};
use super::heads::{
    Attend, Mask, Offset, Stage, append, default_scale, join, padded, padding, per_sequence, plus, split,
};
use super::shape::with_extents;
use super::{Lowering, OpError, Result, rotary};
use wgfc_ir::{BinaryOp as B, DType, Dim, NormKind, Op, Poly, Scalar, Value};

/// The results of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct Attended {
    /// The output of the layer.
    pub y: Value,
    /// Keys and values including those of the past, `[batch, heads, positions, d]`.
    pub present: (Value, Value),
    /// The scores at the requested [`Stage`].
    pub shown: Option<Value>,
}

/// The scale of the scores: the given one, or `1/√d`.
pub fn scale(given: Option<f64>, d: &Dim) -> Result<f64> {
    given.map_or_else(|| default_scale(d), Ok)
}

/// Operands of [`attention`].
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Queries, keys and values: `[batch, heads, positions, d]`, or `[batch, positions, heads · d]` where the
    /// numbers of heads are given.
    pub qkv: [Value; 3],
    /// Keys and values of earlier runs.
    pub past: Option<(Value, Value)>,
    /// The number of valid keys of each sequence.
    pub lengths: Option<Value>,
    /// A bool mask, true where a key is visible, or numbers to add to the scores.
    pub mask: Option<Value>,
}

/// Parameters of [`attention`].
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// The numbers of query heads and of key-value heads.
    pub heads: Option<(i64, i64)>,
    /// The number of positions before its own that a query sees.
    pub left: Option<i64>,
    /// The number of positions after its own that a query sees.
    pub right: Option<i64>,
    /// The scale of the scores; by default `1/√d`.
    pub scale: Option<f64>,
    /// Soft cap of the scores, `cap · tanh(score / cap)`; 0 means none.
    pub cap: f64,
    /// The stage whose scores are returned.
    pub show: Option<Stage>,
}

/// Attention of separate queries, keys and values.
pub fn attention(cx: &mut Lowering, o: &Operands, p: &Attention) -> Result<Attended> {
    let [q, k, v] = o.qkv;
    let (q, k, v) = match p.heads {
        Some((n, m)) => (split(cx, q, n)?, split(cx, k, m)?, split(cx, v, m)?),
        None => (q, k, v),
    };
    if [q, k, v].iter().any(|x| cx.rank(*x) != 4) {
        let e = format!("needs q, k and v of rank 3 or 4, got {}, {} and {}", cx.ty(q), cx.ty(k), cx.ty(v));
        return Err(OpError::model(e));
    }
    let (mut present, mut offset) = ((k, v), Offset::Is(Dim::ZERO));
    if let Some((pk, pv)) = o.past {
        offset = Offset::Is(cx.shape(pk).get(2).cloned().unwrap_or_default());
        present = (append(cx, pk, k)?, append(cx, pv, v)?);
    }
    let (s, t) = (cx.shape(q)[2].clone(), cx.shape(present.0)[2].clone());
    let batch = cx.shape(q)[0].clone();
    let mut mask = Mask::default();
    if let Some(lengths) = o.lengths {
        let lengths = per_sequence(cx, lengths, &batch)?;
        mask.below(cx, &t, lengths)?;
        mask.empty_is_zero = true;
        offset = Offset::Of(plus(cx, lengths, &-&s)?);
    }
    if let Some(m) = o.mask {
        mask.empty_is_zero = true;
        let m = padded(cx, m, &t)?;
        if cx.dtype(m) == DType::Bool { mask.allowed.push(m) } else { mask.bias.push(m) }
    }
    mask.window(cx, (&s, &t), &offset, p.left, p.right)?;
    let a = Attend {
        q,
        k: present.0,
        v: present.1,
        scale: scale(p.scale, &cx.shape(q)[3])?,
        cap: p.cap,
        mask,
        sink: None,
        show: p.show,
    };
    let (y, shown) = a.build(cx)?;
    let y = if p.heads.is_some() { join(cx, y)? } else { y };
    Ok(Attended { y, present, shown })
}

/// Operands of [`multi_head`].
#[derive(Clone, Copy, Debug)]
pub struct MultiHeadOperands {
    /// Queries, `[batch, s, heads · d]`, or packed queries, keys and values, `[batch, s, heads, 3, d]`.
    pub query: Value,
    /// Keys, `[batch, t, heads · d]` or `[batch, heads, t, d]`, or packed keys and values, `[batch, t, heads, 2, d]`.
    pub key: Option<Value>,
    /// Values.
    pub value: Option<Value>,
    /// The biases of queries, keys and values, concatenated in one vector.
    pub bias: Option<Value>,
    /// The padding mask of the keys, see [`padding`].
    pub padding: Option<Value>,
    /// Numbers to add to the scores.
    pub scores: Option<Value>,
    /// Keys and values of earlier runs.
    pub past: Option<(Value, Value)>,
}

/// Parameters of [`multi_head`].
#[derive(Clone, Copy, Debug)]
pub struct MultiHead {
    /// The number of heads.
    pub heads: i64,
    /// The number that is added to the scores of padding.
    pub padding: f64,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// The scale of the scores; by default `1/√d`.
    pub scale: Option<f64>,
}

/// Attention of queries, keys and values that may be packed in one tensor, with optional biases.
pub fn multi_head(cx: &mut Lowering, o: &MultiHeadOperands, p: &MultiHead) -> Result<Attended> {
    let n = p.heads;
    let query = o.query;
    let (mut k, mut v) = (o.key, o.value);
    let mut q;
    let part = |cx: &mut Lowering, x: Value, i: i64| -> Result {
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
                _ => return Err(OpError::model(format!("a key of type {}", cx.ty(key))).operand(key)),
            }
        }
        _ => return Err(OpError::model(format!("a query of type {}", cx.ty(query))).operand(query)),
    }
    let (Some(mut k), Some(mut v)) = (k, v) else { return Err(OpError::model("needs key and value")) };
    if [q, k, v].iter().any(|x| cx.rank(*x) != 4 || !cx.shape(*x)[1].is(n)) {
        return Err(OpError::model(format!("its operands do not have {n} heads")).param("num_heads"));
    }
    if let Some(bias) = o.bias {
        cx.require_rank(bias, 1)?;
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
    if let Some((pk, pv)) = o.past {
        offset = cx.shape(pk).get(2).cloned().unwrap_or_default();
        (k, v) = (append(cx, pk, k)?, append(cx, pv, v)?);
    }
    let (batch, s, t) = (cx.shape(q)[0].clone(), cx.shape(q)[2].clone(), cx.shape(k)[2].clone());
    let mut mask = Mask::default();
    if let Some(m) = o.padding {
        padding(cx, m, &batch, &t, p.padding, &mut mask)?;
    }
    mask.bias.extend(o.scores);
    if p.causal {
        mask.window(cx, (&s, &t), &Offset::Is(offset), None, Some(0))?;
    }
    let scale = scale(p.scale, &cx.shape(q)[3])?;
    let a = Attend { q, k, v, scale, cap: 0.0, mask, sink: None, show: None };
    let (y, _) = a.build(cx)?;
    Ok(Attended { y: join(cx, y)?, present: (k, v), shown: None })
}

/// Operands of [`group_query`].
#[derive(Clone, Copy, Debug)]
pub struct GroupQueryOperands {
    /// Queries, `[batch, s, heads · d]`; if `key_value` is `None`, followed by keys and values along the last axis.
    pub query: Value,
    /// Keys and values, `[batch, s, heads · d]`.
    pub key_value: Option<(Value, Value)>,
    /// The keys and values of earlier runs, `[batch, heads, positions, d]`.
    pub past: Option<(Value, Value)>,
    /// The position of each sequence's last token.
    pub last: Value,
    /// The total number of positions, new tokens included.
    pub total: Option<Value>,
    /// Tables of cosines and sines, `[positions, r]`, for a rotary embedding.
    pub angles: Option<(Value, Value)>,
    /// The position of each token; by default they follow the past.
    pub positions: Option<Value>,
    /// Numbers to add to the scores.
    pub scores: Option<Value>,
    /// Attention sinks: for each head a score that takes part in the softmax but has no value.
    pub sink: Option<Value>,
    /// Weights of an RMS norm of each query and of each key.
    pub norms: Option<(Value, Value)>,
}

/// Parameters of [`group_query`].
#[derive(Clone, Copy, Debug)]
pub struct GroupQuery {
    /// The numbers of query heads and of key-value heads.
    pub heads: (i64, i64),
    /// The ε that the norms add to the mean square.
    pub norm_epsilon: f64,
    /// Whether the two elements that rotate together are adjacent.
    pub interleaved: bool,
    /// The number of positions before its own that a query sees.
    pub window: Option<i64>,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// Without sinks, every head gets a sink of score 0.
    pub smooth: bool,
    /// The scale of the scores; by default `1/√d`.
    pub scale: Option<f64>,
    /// Soft cap of the scores, `cap · tanh(score / cap)`; 0 means none.
    pub cap: f64,
}

/// Grouped-query attention: groups of query heads share a key-value head. With an optional rotary embedding and a
/// cache.
pub fn group_query(cx: &mut Lowering, o: &GroupQueryOperands, p: &GroupQuery) -> Result<Attended> {
    let (mut q, mut k, v) = unpacked(cx, o, p)?;
    let shape = cx.shape(q);
    let (batch, s, d) = (shape[0].clone(), shape[2].clone(), shape[3].clone());
    let last = per_sequence(cx, o.last, &batch)?;
    let held = held(cx, o, &batch, &s)?;
    // The position of the first new token.
    let start = plus(cx, last, &(&Dim::ONE - &s))?;
    let start = cx.binary_scalar(B::Max, start, 0.0)?;
    let offset = match &held {
        Cache::None => Offset::Is(Dim::ZERO),
        Cache::Grows(p) => Offset::Is(p.clone()),
        Cache::Ragged(_) | Cache::Fixed(_) => Offset::Of(start),
    };
    if let Some((qw, kw)) = o.norms {
        let epsilon = (p.norm_epsilon as f32).to_bits();
        for (x, w) in [(&mut q, qw), (&mut k, kw)] {
            *x = cx.push(Op::Norm { kind: NormKind::Rms, axes: vec![3], epsilon }, &[*x])?;
            *x = cx.binary(B::Mul, *x, w)?;
        }
    }
    if let Some((mut cos, mut sin)) = o.angles {
        cx.require_rank(cos, 2)?;
        cx.require_rank(sin, 2)?;
        for t in [&mut cos, &mut sin] {
            *t = match o.positions {
                Some(at) => rotary::rows(cx, *t, at)?,
                None => cache::angles(cx, *t, &offset, &batch, &s)?,
            };
        }
        q = rotary::rotate(cx, q, cos, sin, rotary::Pairs::of(p.interleaved))?;
        k = rotary::rotate(cx, k, cos, sin, rotary::Pairs::of(p.interleaved))?;
    }
    let (k, v) = match (&held, o.past) {
        (Cache::Grows(_), Some((pk, pv))) => (append(cx, pk, k)?, append(cx, pv, v)?),
        (Cache::Ragged(len), Some((pk, pv))) => {
            (cache::inserted(cx, pk, k, start, len)?, cache::inserted(cx, pv, v, start, len)?)
        }
        (Cache::Fixed(c), Some((pk, pv))) => {
            (cache::written(cx, pk, k, start, c)?, cache::written(cx, pv, v, start, c)?)
        }
        _ => (k, v),
    };
    let t = cx.shape(k)[2].clone();
    let mut mask = Mask::default();
    if p.causal {
        mask.window(cx, (&s, &t), &offset, p.window, Some(0))?;
    } else {
        let lengths = plus(cx, last, &Dim::ONE)?;
        mask.below(cx, &t, lengths)?;
    }
    if let Some(bias) = o.scores {
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
            _ => return Err(OpError::model(format!("needs rank 4, got {}", cx.ty(bias))).operand(bias)),
        };
        mask.bias.push(bias);
    }
    let sink = match o.sink {
        Some(s) => Some(s),
        None if p.smooth => {
            let zero = cx.scalar(DType::F32, 0.0);
            Some(cx.unsqueeze(zero, &[0])?)
        }
        None => None,
    };
    let a = Attend { q, k, v, scale: scale(p.scale, &d)?, cap: p.cap, mask, sink, show: None };
    let (y, _) = a.build(cx)?;
    let (k, v) = match held {
        Cache::Ragged(_) => (cache::ended(cx, k, start, &s)?, cache::ended(cx, v, start, &s)?),
        _ => (k, v),
    };
    Ok(Attended { y: join(cx, y)?, present: (k, v), shown: None })
}

/// Splits query, key and value into heads; the query may hold all three.
fn unpacked(cx: &mut Lowering, o: &GroupQueryOperands, p: &GroupQuery) -> Result<(Value, Value, Value)> {
    let ((n, m), query) = (p.heads, cx.require_rank(o.query, 3)?);
    let Some((key, value)) = o.key_value else {
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

/// The kind of cache, decided from the dimensions. A past that is as long as the total length, or has a constant
/// length, is a fixed buffer; a past with a symbolic length of its own grows by the new tokens. The total length and
/// the positions are checked against the past at run time.
fn held(cx: &mut Lowering, o: &GroupQueryOperands, batch: &Dim, s: &Dim) -> Result<Cache> {
    let Some((k, _)) = o.past else { return Ok(Cache::None) };
    let Some(past) = cx.shape(k).get(2).cloned() else {
        return Err(OpError::model(format!("needs rank 4, got {}", cx.ty(k))).operand(k));
    };
    if past.is(0) {
        return Ok(Cache::None);
    }
    let total = o.total.ok_or_else(|| {
        OpError::model("needs the total length of the sequences beside a past").param("total")
    })?;
    let after = &past + s;
    let known = cx.dims(total).and_then(|d| d.first().cloned());
    let fixed = |cx: &mut Lowering, total: &Dim| {
        cx.require_at_most(total, &past);
        Ok(Cache::Fixed(past.clone()))
    };
    match known {
        Some(t) if t == after => {}
        Some(t) if t == past || past.as_const().is_some() => return fixed(cx, &t),
        Some(t) => cx.require_equal(&t, &after),
        None => {
            let buffer = past.as_const().is_some();
            if let Some(t) = cx.checked_number("total_sequence_length", total, &after)? {
                if let Some(last) = cx.checked_largest("seqlens_k", o.last, &after)? {
                    cx.require_at_most(&(last + Dim::ONE), &t);
                }
                if buffer {
                    return fixed(cx, &t);
                }
                cx.require_equal(&t, &after);
            } else if buffer {
                return Ok(Cache::Fixed(past));
            }
        }
    }
    Ok(if batch.is(1) { Cache::Grows(past) } else { Cache::Ragged(past) })
}
