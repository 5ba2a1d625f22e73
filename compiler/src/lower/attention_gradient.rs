//! Gradients of attention, and the logarithms of the softmax denominators from which they are computed.

use super::heads::{Mask, broadcasting, repeat};
use super::{Lowering, OpError, Result};
use wgfc_ir::lower::unseen;
use wgfc_ir::{BinaryOp as B, Body, Contract, DType, Dim, Op, ReduceOp, ScalarFn, UnaryOp as U, Value};

/// An attention whose probabilities are recomputed for the gradient.
#[derive(Clone, Debug)]
pub struct Scored {
    /// `[batch, heads, s, d]`.
    pub q: Value,
    /// `[batch, kv heads, t, d]`.
    pub k: Value,
    /// `[batch, kv heads, t, e]`.
    pub v: Value,
    /// The scale of the scores.
    pub scale: f64,
    /// The mask. A query that sees no key has gradient 0.
    pub mask: Mask,
}

/// Gradients of a [`Scored`].
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    /// The gradients of queries, keys and values.
    pub qkv: [Value; 3],
    /// The gradient of the scores, `[batch, heads, s, t]`.
    pub scores: Value,
}

/// A contraction whose axis labels number the axes of `[batch, heads, s, d, t, e]`.
fn contract(cx: &mut Lowering, (x, a): (Value, [u8; 4]), (y, b): (Value, [u8; 4]), out: [u8; 4]) -> Result {
    Ok(cx.push(Op::Contract(Contract { a: a.into(), b: b.into(), out: out.into() }), &[x, y])?)
}

const Q: [u8; 4] = [0, 1, 2, 3];
const K: [u8; 4] = [0, 1, 4, 3];
const V: [u8; 4] = [0, 1, 4, 5];
const OUT: [u8; 4] = [0, 1, 2, 5];
const SCORES: [u8; 4] = [0, 1, 2, 4];

impl Scored {
    /// The type in which the gradients are computed: f64 for f64 operands, else f32.
    fn wide(&self, cx: &Lowering) -> DType {
        if cx.dtype(self.q) == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// `x` in that type, its heads repeated to the number of query heads.
    fn operand(&self, cx: &mut Lowering, x: Value) -> Result {
        for v in [self.q, x] {
            cx.require_rank(v, 4)?;
        }
        let wide = self.wide(cx);
        let heads = cx.shape(self.q)[1].clone();
        let x = repeat(cx, x, &heads)?;
        Ok(cx.cast(x, wide)?)
    }

    fn is_masked(&self) -> bool {
        !(self.mask.allowed.is_empty() && self.mask.bias.is_empty())
    }

    fn least(&self, cx: &Lowering) -> f64 {
        unseen(self.wide(cx)).as_f64()
    }

    /// Scaled and masked scores, `[batch, heads, s, t]`; [`unseen`] or less where a key is not seen.
    fn scores(&self, cx: &mut Lowering) -> Result {
        let (q, k) = (self.operand(cx, self.q)?, self.operand(cx, self.k)?);
        let x = contract(cx, (q, Q), (k, K), SCORES)?;
        let x = cx.binary_scalar(B::Mul, x, self.scale)?;
        let wide = self.wide(cx);
        let Some(m) = self.mask.additive(cx, wide, unseen(wide), true)? else { return Ok(x) };
        let shape = cx.shape(x);
        let m = broadcasting(cx, m, &shape)?;
        Ok(cx.map_to(ScalarFn::binary(B::Add), &[x, m], shape)?)
    }

    /// `ln Σ eˢ` over each query's scores `s`, `[batch, heads, s]`; 0 for a query that sees no key.
    pub fn log_sums(&self, cx: &mut Lowering) -> Result {
        let x = self.scores(cx)?;
        let most = cx.reduce(ReduceOp::Max, x, &[3], true)?;
        let d = cx.binary(B::Sub, x, most)?;
        let e = cx.unary(U::Exp, d)?;
        let sum = cx.reduce(ReduceOp::Sum, e, &[3], true)?;
        let log = cx.unary(U::Log, sum)?;
        let mut y = cx.binary(B::Add, most, log)?;
        if self.is_masked() {
            let (least, wide) = (self.least(cx), self.wide(cx));
            let any = cx.binary_scalar(B::Gt, most, least)?;
            let zero = cx.scalar(wide, 0.0);
            y = cx.select(any, y, zero)?;
        }
        Ok(cx.squeeze(y, &[3])?)
    }

    /// The probabilities, `[batch, heads, s, t]`, computed from the [`log_sums`](Scored::log_sums).
    pub fn probabilities(&self, cx: &mut Lowering, log_sums: Value) -> Result {
        let wide = self.wide(cx);
        let x = self.scores(cx)?;
        let log_sums = cx.cast(log_sums, wide)?;
        let log_sums = cx.unsqueeze(log_sums, &[3])?;
        let mut f = Body::default();
        let (score, log) = (f.arg(0), f.arg(1));
        let d = f.binary(B::Sub, score, log);
        let e = f.unary(U::Exp, d);
        if self.is_masked() {
            let (least, zero) = (f.number(wide, self.least(cx)), f.number(wide, 0.0));
            let seen = f.binary(B::Gt, score, least);
            f.select(seen, e, zero);
        }
        Ok(cx.map(f.0, &[x, log_sums])?)
    }

    /// The gradients, computed from the gradient of the output `g`, the output `result`, and the
    /// [`probabilities`](Scored::probabilities).
    pub fn gradients(&self, cx: &mut Lowering, g: Value, result: Value, p: Value) -> Result<Gradients> {
        let wide = self.wide(cx);
        let [g, result, p] = [g, result, p].map(|x| cx.cast(x, wide));
        let (g, result, p) = (g?, result?, p?);
        let (q, k, v) = (self.operand(cx, self.q)?, self.operand(cx, self.k)?, self.operand(cx, self.v)?);
        let of_v = contract(cx, (p, SCORES), (g, OUT), V)?;
        let of_p = contract(cx, (g, OUT), (v, V), SCORES)?;
        let along = cx.binary(B::Mul, g, result)?;
        let along = cx.reduce(ReduceOp::Sum, along, &[3], true)?;
        let d = cx.binary(B::Sub, of_p, along)?;
        let of_scores = cx.binary(B::Mul, p, d)?;
        let of_q = contract(cx, (of_scores, SCORES), (k, K), Q)?;
        let of_q = cx.binary_scalar(B::Mul, of_q, self.scale)?;
        let of_k = contract(cx, (of_scores, SCORES), (q, Q), K)?;
        let of_k = cx.binary_scalar(B::Mul, of_k, self.scale)?;
        let qkv = [(of_q, self.q), (of_k, self.k), (of_v, self.v)].map(|(of, x)| shared(cx, of, x));
        let [of_q, of_k, of_v] = qkv;
        Ok(Gradients { qkv: [of_q?, of_k?, of_v?], scores: of_scores })
    }
}

/// Sums the gradient of repeated heads over each group that shares a head of `x`, and casts it to the type of `x`.
fn shared(cx: &mut Lowering, of: Value, x: Value) -> Result {
    let (have, want) = (cx.shape(of), cx.shape(x));
    let dtype = cx.dtype(x);
    if have[1] == want[1] {
        return Ok(cx.cast(of, dtype)?);
    }
    let each = have[1].div(&want[1], &[]);
    let split = vec![have[0].clone(), want[1].clone(), each, have[2].clone(), have[3].clone()];
    let apart = cx.reshape(of, split)?;
    let sum = cx.reduce(ReduceOp::Sum, apart, &[2], false)?;
    Ok(cx.cast(sum, dtype)?)
}

/// The gradient of a bias of shape `shape` that was added to the scores: that of the scores, summed over the broadcast
/// axes.
pub fn of_bias(cx: &mut Lowering, scores: Value, shape: &[Dim], dtype: DType) -> Result {
    let have = cx.shape(scores);
    let Some(skip) = have.len().checked_sub(shape.len()) else {
        return Err(OpError::model(format!("a bias of {} axes for scores {}", shape.len(), cx.ty(scores))));
    };
    let all = (0..have.len()).filter(|d| *d < skip || shape[d - skip].is(1) && !have[*d].is(1));
    let all: Vec<usize> = all.collect();
    let sum = if all.is_empty() { scores } else { cx.reduce(ReduceOp::Sum, scores, &all, true)? };
    let sum = cx.reshape(sum, shape.to_vec())?;
    Ok(cx.cast(sum, dtype)?)
}
