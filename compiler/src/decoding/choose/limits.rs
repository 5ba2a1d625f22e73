//! The search for the tokens that top-k and top-p keep.

use super::body::class;
use super::{Built, Limits, PART, length, word};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Body, Builder, DType, Dim, Op, Poly, ReduceOp, Scalar, UnaryOp, graph::Value};

/// The number of parts of a row whose maximum, and whose sums below a threshold, are computed in parallel.
const MAX_PARTS: i64 = 16;
const SUM_PARTS: i64 = 8;
/// Distances are less than 2^24 and consist of four digits of 6 bits.
const FAR: i64 = (1 << 24) - 1;
const STEPS: f64 = (1u64 << 18) as f64;
const BITS: i64 = 6;
const DIGITS: i64 = 1 << BITS;

/// The distance of each token from the largest logit, u32 `[rows, vocabulary]`, and the largest distance at which a token
/// may be drawn, u32 `[rows, 1]`.
pub fn kept(b: &mut Builder<'_>, logits: Value, words: &[Value], limits: Limits) -> Built<(Value, Value)> {
    let distance = distances(b, logits, words[word::SCALE])?;
    let mut most = None;
    if limits.top_k {
        most = Some(search(b, distance, Target::Count(words[word::TOP_K]))?);
    }
    if limits.top_p {
        let p = words[word::TOP_P];
        let share = search(b, distance, Target::Share { p, among: most })?;
        most = Some(match most {
            Some(all) if limits.each => within_share(b, p, all, share)?,
            _ => share,
        });
    }
    if limits.min_p {
        let least = words[word::MIN_P];
        most = Some(match most {
            Some(most) => b.binary(BinaryOp::Min, most, least)?,
            None => {
                let rows = b.shape(distance)[0].clone();
                b.expand(least, &[rows, Dim::ONE])?
            }
        });
    }
    Ok((distance, most.ok_or("no limits")?))
}

/// The distance of a token whose probability is the share `p` of the largest one.
pub fn distance_of(p: f32) -> u32 {
    if p > 0.0 { (-f64::from(p).ln() * STEPS).clamp(0.0, FAR as f64) as u32 } else { FAR as u32 }
}

fn distances(b: &mut Builder<'_>, logits: Value, scale: Value) -> Built {
    let (rows, len) = (b.shape(logits)[0].clone(), length(b, logits)?);
    let parts = if len > PART { MAX_PARTS } else { 1 };
    let part = (len + parts - 1) / parts;
    let cut = vec![rows.clone(), parts.into(), part.into()];
    let position = &(&Poly::var(1) * part) + &Poly::var(2);
    let fill = Some(Scalar::from_i64(b.dtype(logits), 0));
    let index = vec![Poly::var(0), position.clone()];
    let x = b.push(Op::View { shape: cut.clone(), index, fill }, &[logits])?;
    let mut f = Body::default();
    let x0 = f.arg(0);
    let x0 = f.cast(DType::F32, x0);
    let (at, end) = (f.index(position), f.index(Poly::constant(len)));
    let inside = f.binary(BinaryOp::Lt, at, end);
    let least = f.f32(f64::from(f32::MIN));
    f.select(inside, x0, least);
    let x = b.map_to(f.0, &[x], cut)?;
    let tops = b.reduce(ReduceOp::Max, x, &[2], false)?;
    let top = joined(b, tops, 1, parts, BinaryOp::Max)?;

    let mut f = Body::default();
    let x = f.arg(0);
    let x = f.cast(DType::F32, x);
    let class = class(&mut f, x);
    let (top_, scale_) = (f.arg(1), f.arg(2));
    let scale_ = f.bitcast(DType::F32, scale_);
    let d = f.binary(BinaryOp::Sub, top_, x);
    let d = f.binary(BinaryOp::Mul, d, scale_);
    let steps = f.f32(STEPS);
    let d = f.binary(BinaryOp::Mul, d, steps);
    let (zero, far) = (f.f32(0.0), f.f32(FAR as f64));
    let d = f.binary(BinaryOp::Max, d, zero);
    let d = f.binary(BinaryOp::Min, d, far);
    let d = f.select(class.never, far, d);
    f.cast(DType::U32, d);
    b.map(f.0, &[logits, top, scale])
}

/// For each row the distance `share`, or `all` where the share `p` leaves no token out.
fn within_share(b: &mut Builder<'_>, p: Value, all: Value, share: Value) -> Built {
    let mut f = Body::default();
    let (p0, all0, share0) = (f.arg(0), f.arg(1), f.arg(2));
    let p0 = f.bitcast(DType::F32, p0);
    let whole = f.f32(1.0);
    let whole = f.binary(BinaryOp::Ge, p0, whole);
    f.select(whole, all0, share0);
    b.map(f.0, &[p, all, share])
}

/// The target of the search: the largest distance such that the tokens below it amount to less than this.
#[derive(Clone, Copy)]
enum Target {
    /// This number of tokens.
    Count(Value),
    /// This share of the probability of all tokens, or of the tokens up to the distance `among`.
    Share { p: Value, among: Option<Value> },
}

/// The distance that the target defines, `[rows, 1]`.
///
/// A round computes sums `[rows, parts, 66]`. Sum `i` for `i` in 1..64 covers the tokens at distances less than
/// `base + i · 2^shift`; the next base follows from these. Sum 0 would be known from the round before, so it covers all
/// tokens that the share refers to. The last two entries pass on the round's base and `among`, so that the next round reads
/// nothing but the sums.
fn search(b: &mut Builder<'_>, distance: Value, target: Target) -> Built {
    let (rows, len) = (b.shape(distance)[0].clone(), length(b, distance)?);
    let parts = if len > PART { SUM_PARTS } else { 1 };
    let part = (len + parts - 1) / parts;
    let share = matches!(target, Target::Share { .. });
    let ty = if share { DType::F32 } else { DType::U32 };
    let width = DIGITS + 2;
    let cut = vec![rows.clone(), parts.into(), width.into(), part.into()];
    let index = vec![Poly::var(0), &(&Poly::var(1) * part) + &Poly::var(3)];
    let fill = Some(Scalar::from_i64(DType::U32, FAR));
    let d = b.push(Op::View { shape: cut.clone(), index, fill }, &[distance])?;
    let column = [rows.clone(), Dim::ONE];
    let mut base = b.full(&column, Scalar::from_i64(DType::U32, 0))?;
    let mut among = match target {
        Target::Share { among: Some(v), .. } => v,
        _ => b.full(&column, Scalar::from_i64(DType::U32, FAR))?,
    };
    for shift in [3 * BITS, 2 * BITS, BITS, 0] {
        let mut f = Body::default();
        let (d0, base0, among0) = (f.arg(0), f.arg(1), f.arg(2));
        let i = f.index(Poly::var(2));
        let i = f.cast(DType::U32, i);
        let by = f.u32(shift);
        let step = f.binary(BinaryOp::Shl, i, by);
        let limit = f.binary(BinaryOp::Add, base0, step);
        let (one, zero) = (f.u32(1), f.u32(0));
        let all = f.binary(BinaryOp::Add, among0, one);
        let first = f.binary(BinaryOp::Eq, i, zero);
        let limit = f.select(first, all, limit);
        let below = f.binary(BinaryOp::Lt, d0, limit);
        let amount = if share {
            let x = f.cast(DType::F32, d0);
            let c = f.f32(-1.0 / STEPS);
            let x = f.binary(BinaryOp::Mul, x, c);
            f.unary(UnaryOp::Exp, x)
        } else {
            one
        };
        let nothing = f.constant(Scalar::from_i64(ty, 0));
        let counted = f.select(below, amount, nothing);
        // The last two entries are added once, by the first element of the row.
        let place = f.index(&(&Poly::var(1) * part) + &Poly::var(3));
        let start = f.index(Poly::ZERO);
        let once = f.binary(BinaryOp::Eq, place, start);
        let last = f.u32(DIGITS + 1);
        let last = f.binary(BinaryOp::Eq, i, last);
        let handed = f.select(last, among0, base0);
        let handed = f.cast(ty, handed);
        let handed = f.select(once, handed, nothing);
        let digits = f.u32(DIGITS);
        let is_digit = f.binary(BinaryOp::Lt, i, digits);
        f.select(is_digit, counted, handed);
        let wide = |b: &mut Builder<'_>, v| b.reshape(v, vec![rows.clone(), Dim::ONE, Dim::ONE, Dim::ONE]);
        let args = [d, wide(b, base)?, wide(b, among)?];
        let each = b.map_to(f.0, &args, cut.clone())?;
        let sums = b.reduce(ReduceOp::Sum, each, &[3], false)?;
        let sums = joined(b, sums, 1, parts, BinaryOp::Add)?;
        let sums = b.reshape(sums, vec![rows.clone(), width.into()])?;
        (base, among) = next(b, sums, target, shift)?;
    }
    Ok(base)
}

/// The next base, and `among`. The digit is the last one whose sum is less than the target; it is found in three steps of
/// base 4.
fn next(b: &mut Builder<'_>, sums: Value, target: Target, shift: i64) -> Built<(Value, Value)> {
    let rows = b.shape(sums)[0].clone();
    let column = vec![rows, Dim::ONE];
    let at = |b: &mut Builder<'_>, i: i64| b.slice(sums, 1, &Poly::constant(i), 1, &Dim::ONE);
    let goal = match target {
        Target::Count(k) => k,
        Target::Share { p, .. } => {
            let mut f = Body::default();
            let (p0, all) = (f.arg(0), f.arg(1));
            let p0 = f.bitcast(DType::F32, p0);
            f.binary(BinaryOp::Mul, p0, all);
            let all = at(b, 0)?;
            b.map(f.0, &[p, all])?
        }
    };
    let mut digit = b.full(&column, Scalar::from_i64(DType::I32, 0))?;
    for stride in [16, 4, 1] {
        let mut f = Body::default();
        let (mut digit0, goal0) = (f.arg(0), f.arg(1));
        let (none, step) = (f.i32(0), f.i32(stride));
        let mut args = vec![digit, goal];
        for c in 1..4 {
            let mut g = Body::default();
            let (d, by) = (g.arg(0), g.i32(c * stride));
            g.binary(BinaryOp::Add, d, by);
            let place = b.map(g.0, &[digit])?;
            let index = vec![
                GatherAxis::Affine(Poly::var(0)),
                GatherAxis::Data { input: 1, at: vec![Poly::var(0), Poly::var(1)] },
            ];
            args.push(b.push(Op::Gather { shape: column.clone(), index }, &[sums, place])?);
            let sum = f.arg(args.len() as u32 - 1);
            let below = f.binary(BinaryOp::Lt, sum, goal0);
            let add = f.select(below, step, none);
            digit0 = f.binary(BinaryOp::Add, digit0, add);
        }
        digit = b.map_to(f.0, &args, column.clone())?;
    }
    let (base, among) = (at(b, DIGITS)?, at(b, DIGITS + 1)?);
    let (base, among) = (b.cast(base, DType::U32)?, b.cast(among, DType::U32)?);
    let mut f = Body::default();
    let (base0, digit0, by) = (f.arg(0), f.arg(1), f.u32(shift));
    let digit0 = f.cast(DType::U32, digit0);
    let step = f.binary(BinaryOp::Shl, digit0, by);
    f.binary(BinaryOp::Add, base0, step);
    Ok((b.map(f.0, &[base, digit])?, among))
}

/// The combination of `parts` slices of an axis, in order.
fn joined(b: &mut Builder<'_>, x: Value, axis: usize, parts: i64, op: BinaryOp) -> Built {
    let mut f = Body::default();
    let mut args = vec![];
    let mut all = f.arg(0);
    for i in 0..parts {
        args.push(b.slice(x, axis, &Poly::constant(i), 1, &Dim::ONE)?);
        if i > 0 {
            let next = f.arg(i as u32);
            all = f.binary(op, all, next);
        }
    }
    if parts == 1 { Ok(args[0]) } else { b.map(f.0, &args) }
}
