//! Changes of logits before a token is chosen: those of a list of tokens, and those that a mask excludes.

use super::body::class;
use super::{Built, length};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Body, Builder, DType, Dim, Op, Poly, graph::Value};

/// The number of tokens of a word of a mask.
const BITS: i64 = 32;

/// The number of words of a mask for this many tokens.
pub fn mask_words(vocabulary: i64) -> i64 {
    (vocabulary + BITS - 1) / BITS
}

/// The logits `[rows, vocabulary]` as f32, those of the tokens in `list` (i32 `[rows, n, 3]`: a token, and the bits of a factor and an
/// amount) changed: to `x · factor + amount` if the logit `x` is negative, otherwise to `x / factor + amount`. Tokens outside the vocabulary are ignored, and a token of a row occurs once. Logits that are
/// not finite stay as they are, and others become at most the largest f32.
pub fn adjusted(b: &mut Builder<'_>, logits: Value, list: Value) -> Built {
    let logits = b.cast(logits, DType::F32)?;
    let shape = b.shape(list)[..2].to_vec();
    let mut column = |i: i64| {
        let one = b.slice(list, 2, &Poly::constant(i), 1, &Dim::ONE)?;
        b.reshape(one, shape.clone())
    };
    let (tokens, factor, amount) = (column(0)?, column(1)?, column(2)?);
    let at = |input| GatherAxis::Data { input, at: vec![Poly::var(0), Poly::var(1)] };
    let index = vec![GatherAxis::Affine(Poly::var(0)), at(1)];
    let own = b.push(Op::Gather { shape: shape.clone(), index }, &[logits, tokens])?;

    let mut f = Body::default();
    let x = f.arg(0);
    let class = class(&mut f, x);
    let (factor0, amount0) = (f.arg(1), f.arg(2));
    let (factor0, amount0) = (f.bitcast(DType::F32, factor0), f.bitcast(DType::F32, amount0));
    let zero = f.f32(0.0);
    let negative = f.binary(BinaryOp::Lt, x, zero);
    let (times, by) = (f.binary(BinaryOp::Mul, x, factor0), f.binary(BinaryOp::Div, x, factor0));
    let y = f.select(negative, times, by);
    let y = f.binary(BinaryOp::Add, y, amount0);
    let (low, high) = (f.f32(f64::from(f32::MIN)), f.f32(f64::from(f32::MAX)));
    let y = f.binary(BinaryOp::Max, y, low);
    let y = f.binary(BinaryOp::Min, y, high);
    let infinite = f.binary(BinaryOp::Or, class.never, class.wrong);
    f.select(infinite, x, y);
    let changed = b.map_to(f.0, &[own, factor, amount], shape)?;
    let index = vec![GatherAxis::Affine(Poly::var(0)), at(2)];
    b.push(Op::Scatter { reduce: None, index }, &[logits, changed, tokens])
}

/// The logits `[rows, vocabulary]` as f32, with −∞ for each token whose bit in `mask` (i32 `[rows, words]`; the lowest bit of a word first) is 0.
pub fn masked(b: &mut Builder<'_>, logits: Value, mask: Value) -> Built {
    let (rows, len) = (b.shape(logits)[0].clone(), length(b, logits)?);
    let words = mask_words(len);
    let wide = vec![rows.clone(), words.into(), BITS.into()];
    let mask = b.reshape(mask, vec![rows.clone(), words.into(), Dim::ONE])?;
    let mut f = Body::default();
    let word = f.arg(0);
    let word = f.bitcast(DType::U32, word);
    let bit = f.index(Poly::var(2));
    let bit = f.cast(DType::U32, bit);
    let word = f.binary(BinaryOp::Shr, word, bit);
    let one = f.u32(1);
    f.binary(BinaryOp::And, word, one);
    let bits = b.map_to(f.0, &[mask], wide)?;
    let bits = b.reshape(bits, vec![rows, (words * BITS).into()])?;
    let bits = b.slice(bits, 1, &Poly::ZERO, 1, &len.into())?;
    let logits = b.cast(logits, DType::F32)?;
    let mut f = Body::default();
    // Infinity is written as bits, as shaders have no constant for it.
    let (x, bit) = (f.arg(0), f.arg(1));
    let x = f.bitcast(DType::U32, x);
    let none = f.u32(0);
    let excluded = f.binary(BinaryOp::Eq, bit, none);
    let below = f.u32(0xff80_0000);
    let x = f.select(excluded, below, x);
    f.bitcast(DType::F32, x);
    b.map(f.0, &[logits, bits])
}
