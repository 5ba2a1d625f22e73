//! The choice of the next token, as nodes of a graph.
//!
//! **Sampling** is the Gumbel-max trick (Maddison, Tarlow and Minka, *A\* sampling*, 2014): with `uᵢ` uniform and
//! independent, `argmaxᵢ (xᵢ/T − ln(−ln(1 − uᵢ)))` is `i` with the probability that the softmax of `x/T` gives. `uᵢ` is a
//! hash of the token's position and 64 random bits of the step: pcg3d of Jarzynski and Olano, *Hash Functions for GPU
//! Rendering*, JCGT 9(3), 2020. Sampling costs as much as the argmax of the logits.
//!
//! **Top-k and top-p** keep the tokens up to a distance `t` from the largest logit `m`. Distances `(m − x)/T` are counted in
//! steps of 2⁻¹⁸ up to 2²⁴ steps. Tokens whose probabilities differ by less than four in a million therefore count as equal,
//! and equal tokens are all kept or all dropped. `t` is found six bits a round: a round tests 63 candidates for the next
//! digit at once, each by the count (top-k) or the sum of probabilities (top-p) of the tokens below it. Four rounds find
//! `t`; top-p after top-k takes four more. **Min-p** is a distance that the host computes.
//!
//! **Penalties and biases** change the logits of the tokens in a short list, and a **mask** of one bit a token excludes others: both
//! come before all else (`adjust`).

mod adjust;
mod body;
mod limits;

pub use adjust::{adjusted, mask_words, masked};
pub use limits::distance_of;
use limits::kept;
use wgfc_ir::{BinaryOp, Body, Builder, DType, Dim, Op, Poly, ReduceOp, Scalar, ScalarFn, graph::Value};

/// The result if no token can be chosen: a logit is NaN or +∞, or all are −∞.
pub const NONE: i64 = -1;

/// Indices into the words that control the choice, all u32.
pub mod word {
    /// 1/temperature as the bits of an f32; 0 selects the largest logit, the first one among equals.
    pub const SCALE: usize = 0;
    /// Random bits of this step: this word and the following one.
    pub const RANDOM: usize = 1;
    /// The number k of top-k.
    pub const TOP_K: usize = 3;
    /// Top-p, the bits of an f32.
    pub const TOP_P: usize = 4;
    /// The number of words of a model's own program, which has no limits.
    pub const COUNT: usize = 5;
    /// The largest distance that min-p keeps.
    pub const MIN_P: usize = 5;
    /// The number of words of a program that chooses from given logits.
    pub const ALL: usize = 6;
}

/// The limits that restrict which tokens may be drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Whether only the k most likely tokens can be chosen.
    pub top_k: bool,
    /// Whether only the most probable tokens, among those that top-k keeps, up to a share of the probability can be chosen.
    pub top_p: bool,
    /// Whether only tokens of at least a share of the largest probability can be chosen.
    pub min_p: bool,
    /// Whether the logits of the tokens in a list are changed.
    pub list: bool,
    /// Whether a mask excludes tokens.
    pub mask: bool,
    /// Whether each row has its own words. A row then draws the same tokens wherever it is in the batch.
    pub each: bool,
}

impl Limits {
    /// Whether only some of the tokens are drawn from.
    pub fn are_some(self) -> bool {
        self.top_k || self.top_p || self.min_p
    }

    /// The number of words that control a choice.
    pub fn words(self) -> usize {
        if self == Limits::default() { word::COUNT } else { word::ALL }
    }

    /// No limits, for rows with words of their own.
    pub fn rows() -> Limits {
        Limits { each: true, ..Limits::default() }
    }

    /// The limits of a program for rows of which some need these limits and some others.
    pub fn with(self, other: Limits) -> Limits {
        // Three limits are one program, so that there are few.
        let limited = self.are_some() || other.are_some();
        Limits {
            top_k: limited,
            top_p: limited,
            min_p: limited,
            list: self.list || other.list,
            mask: self.mask || other.mask,
            each: true,
        }
    }
}

/// The length of the part of a row whose best token one workgroup finds.
const PART: i64 = 1024;

type Built<T = Value> = Result<T, String>;

/// The token that follows each row of `logits` (floats `[rows, vocabulary]`), chosen as the words `how` (u32
/// `[words]`, or `[rows, words]` with `limits.each`) specify. The result is `[rows, 1]` of type `ids`, with [`NONE`] where no token can be chosen.
/// The logits already have the changes of `limits.list` and `limits.mask`.
pub fn token(b: &mut Builder<'_>, logits: Value, how: Value, limits: Limits, ids: DType) -> Built {
    let axis = usize::from(limits.each);
    let count = b.shape(how)[axis].as_const().unwrap_or(0);
    let words = (0..count)
        .map(|i| b.slice(how, axis, &Poly::constant(i), 1, &Dim::ONE))
        .collect::<Built<Vec<Value>>>()?;
    let (rows, len) = (b.shape(logits)[0].clone(), length(b, logits)?);
    let kept = if limits.are_some() { Some(kept(b, logits, &words, limits)?) } else { None };
    let part = PART.min(len);
    let parts = (len + part - 1) / part;
    let cut = vec![rows.clone(), parts.into(), part.into()];
    let position = &(&Poly::var(1) * part) + &Poly::var(2);
    let index = vec![Poly::var(0), position.clone()];
    let fill = |t| Some(Scalar::from_i64(t, 0));
    let of = |b: &mut Builder<'_>, v: Value| {
        let fill = fill(b.dtype(v));
        b.push(Op::View { shape: cut.clone(), index: index.clone(), fill }, &[v])
    };
    let mut args = vec![of(b, logits)?];
    for i in [word::SCALE, word::RANDOM, word::RANDOM + 1] {
        let shape = vec![rows.clone(), Dim::ONE, Dim::ONE];
        args.push(if limits.each { b.reshape(words[i], shape)? } else { words[i] });
    }
    if let Some((distance, most)) = kept {
        args.push(of(b, distance)?);
        args.push(b.reshape(most, vec![rows, Dim::ONE, Dim::ONE])?);
    }
    let place = if limits.each { position.clone() } else { &(&Poly::var(0) * len) + &position };
    let body = key(&position, len, &place, kept.is_some());
    let keys = b.map_to(body, &args, cut)?;
    let mut best = b.reduce(ReduceOp::Max, keys, &[2], false)?;
    if parts > 1 {
        best = b.reduce(ReduceOp::Max, best, &[1], true)?;
    }
    let mut f = Body::default();
    let key = f.arg(0);
    let high = f.u64(32);
    let high = f.binary(BinaryOp::Shr, key, high);
    let high = f.cast(DType::U32, high);
    let low = f.cast(DType::U32, key);
    let low = f.flipped(low, u32::MAX);
    let token = f.cast(ids, low);
    let (least, most) = (f.u32(0), f.u32(i64::from(u32::MAX)));
    let (least, most) = (f.binary(BinaryOp::Eq, high, least), f.binary(BinaryOp::Eq, high, most));
    let wrong = f.binary(BinaryOp::Or, least, most);
    let none = f.constant(Scalar::from_i64(ids, NONE));
    f.select(wrong, none, token);
    b.map(f.0, &[best])
}

/// The sort key of a token; the largest key wins. It is `value · 2³² + (2³² − 1 − position)`, where value is 0 for a token
/// that cannot be chosen and 2³² − 1 for one whose logit is NaN or +∞. The noise is that of `place`.
fn key(position: &Poly, len: i64, place: &Poly, limited: bool) -> ScalarFn {
    let mut f = Body::default();
    let x = f.arg(0);
    let x = f.cast(DType::F32, x);
    let class = body::class(&mut f, x);
    let zero = f.f32(0.0);
    let is_zero = f.binary(BinaryOp::Eq, x, zero);
    let x = f.select(is_zero, zero, x);

    let scale = f.arg(1);
    let scale = f.bitcast(DType::F32, scale);
    let noise = body::gumbel(&mut f, place.clone(), 2, 3);
    let y = f.binary(BinaryOp::Mul, x, scale);
    let y = f.binary(BinaryOp::Add, y, noise);
    let (low, high) = (f.f32(f64::from(f32::MIN)), f.f32(f64::from(f32::MAX)));
    let y = f.binary(BinaryOp::Max, y, low);
    let y = f.binary(BinaryOp::Min, y, high);
    let greedy = f.binary(BinaryOp::Eq, scale, zero);
    let y = f.select(greedy, x, y);

    // Maps floats to unsigned integers of the same order.
    let bits = f.bitcast(DType::U32, y);
    let sign = f.u32(1 << 31);
    let positive = f.binary(BinaryOp::Lt, bits, sign);
    let (up, down) = (f.flipped(bits, 1 << 31), f.flipped(bits, u32::MAX));
    let order = f.select(positive, up, down);
    let least = f.u32(0);
    let at = f.index(position.clone());
    let end = f.index(Poly::constant(len));
    let outside = f.binary(BinaryOp::Ge, at, end);
    let mut never = class.never;
    if limited {
        let (distance, most) = (f.arg(4), f.arg(5));
        let far = f.binary(BinaryOp::Gt, distance, most);
        never = f.binary(BinaryOp::Or, never, far);
    }
    let order = f.select(never, least, order);
    let top = f.u32(i64::from(u32::MAX));
    let order = f.select(class.wrong, top, order);
    let order = f.select(outside, least, order);
    let high = f.cast(DType::U64, order);
    let by = f.u64(32);
    let high = f.binary(BinaryOp::Shl, high, by);
    let low = f.cast(DType::U32, at);
    let low = f.flipped(low, u32::MAX);
    let low = f.cast(DType::U64, low);
    f.binary(BinaryOp::Or, high, low);
    f.0
}

fn length(b: &Builder<'_>, rows: Value) -> Built<i64> {
    let shape = b.shape(rows);
    let len = shape.get(1).filter(|_| shape.len() == 2).and_then(Dim::as_const);
    len.filter(|n| (1..=i64::from(i32::MAX)).contains(n)).ok_or_else(|| "rows of unknown length".to_owned())
}
