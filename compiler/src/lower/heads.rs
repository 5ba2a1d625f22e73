//! Attention with heads: masks, caches, the product itself.

use super::shape::with_extents;
use super::{Lowering, OpError, Result};
use crate::schedule::attention::MAX_WIDTH;
use wgfc_ir::lower::{finite_is_seen, unseen};
use wgfc_ir::{
    BinaryOp as B, Body, Contract, DType, Dim, Op, Poly, ReduceOp, Scalar, ScalarFn, ScalarNode as N,
    UnaryOp as U, Value,
};

/// `[batch, s, heads · d]` as `[batch, heads, s, d]`.
pub fn split(cx: &mut Lowering, x: Value, heads: i64) -> Result {
    let s = cx.shape(x);
    let [batch, len, hidden] = s.as_slice() else {
        return Err(OpError::model(format!("needs a tensor of rank 3, got {}", cx.ty(x))));
    };
    let width = match hidden.as_const() {
        Some(h) if h % heads == 0 => Dim::from(h / heads),
        Some(h) => return Err(OpError::model(format!("{h} elements do not divide among {heads} heads"))),
        None => return Err(OpError::symbolic(format!("heads of unknown width: {hidden} elements"))),
    };
    let apart = cx.reshape(x, vec![batch.clone(), len.clone(), heads.into(), width])?;
    Ok(cx.transpose(apart, &[0, 2, 1, 3])?)
}

/// `[batch, heads, s, d]` as `[batch, s, heads · d]`.
pub fn join(cx: &mut Lowering, x: Value) -> Result {
    let s = cx.shape(x);
    let beside = cx.transpose(x, &[0, 2, 1, 3])?;
    Ok(cx.reshape(beside, vec![s[0].clone(), s[2].clone(), &s[1] * &s[3]])?)
}

/// `x` with extents other than 1 that must equal those of `shape`, aligned at the last, called the same.
pub fn broadcasting(cx: &mut Lowering, x: Value, shape: &[Dim]) -> Result {
    let have = cx.shape(x);
    let Some(skip) = shape.len().checked_sub(have.len()) else { return Ok(x) };
    let want = have.iter().zip(&shape[skip..]).map(|(h, w)| if h.is(1) { Dim::ONE } else { w.clone() });
    let want: Vec<Dim> = want.collect();
    with_extents(cx, x, &want)
}

/// `past` and `new`, `[batch, heads, positions, d]`, joined along the positions.
pub fn append(cx: &mut Lowering, past: Value, new: Value) -> Result {
    let mut shape = cx.shape(new);
    if cx.rank(past) != 4 {
        return Err(OpError::model(format!("needs a past of rank 4, got {}", cx.ty(past))));
    }
    shape[2] = cx.shape(past)[2].clone();
    if shape[2].is(0) {
        return Ok(new);
    }
    let past = with_extents(cx, past, &shape)?;
    Ok(cx.concat(&[past, new], 2)?)
}

/// Each head of `x` as often as `heads` asks for: the one next to itself.
pub fn repeat(cx: &mut Lowering, x: Value, heads: &Dim) -> Result {
    let mut shape = cx.shape(x);
    if shape[1] == *heads {
        return Ok(x);
    }
    let (Some(n), Some(k)) = (heads.as_const(), shape[1].as_const()) else {
        return Err(OpError::symbolic(format!("an unknown number of heads: {heads} and {}", shape[1])));
    };
    if k < 1 || n % k != 0 {
        return Err(OpError::model(format!("{n} heads of queries do not divide among {k} of keys")));
    }
    shape[1] = heads.clone();
    let mut index: Vec<Poly> = (0..4).map(Poly::var).collect();
    index[1] = index[1].div(&(n / k).into(), &shape);
    Ok(cx.view(x, shape, index)?)
}

/// The position of the first query among the keys.
#[derive(Clone, Debug)]
pub enum Offset {
    /// A number for every sequence.
    Is(Dim),
    /// One for each sequence: i32, `[batch, 1, 1, 1]`.
    Of(Value),
}

/// Which keys a query sees, and what is added to their scores.
#[derive(Clone, Debug, Default)]
pub struct Mask {
    /// Bools that broadcast to `[batch, heads, s, t]`; all must be true.
    pub allowed: Vec<Value>,
    /// Floats that broadcast to it, added.
    pub bias: Vec<Value>,
    /// A query that sees no key at all gives 0, and not the mean of the values.
    pub empty_is_zero: bool,
}

impl Mask {
    /// Keys at most `left` before and `right` behind the query.
    pub fn window(
        &mut self,
        cx: &mut Lowering,
        (s, t): (&Dim, &Dim),
        offset: &Offset,
        left: Option<i64>,
        right: Option<i64>,
    ) -> Result<()> {
        let bounds = [(left.map(|l| -l), B::Ge), (right, B::Le)];
        if bounds.iter().all(|b| b.0.is_none()) {
            return Ok(());
        }
        let mut f = ScalarFn::default();
        let (mut args, mut shape) = (vec![], vec![s.clone(), t.clone()]);
        let distance = match offset {
            Offset::Is(d) => f.push(N::Index(&(Poly::var(1) - Poly::var(0)) - d)),
            Offset::Of(v) => {
                args.push(*v);
                shape = vec![cx.shape(*v)[0].clone(), Dim::ONE, s.clone(), t.clone()];
                let start = f.push(N::Arg(0));
                let d = f.push(N::Index(Poly::var(3) - Poly::var(2)));
                f.push(N::Binary(B::Sub, d, start))
            }
        };
        let mut all = None;
        for (bound, op) in bounds {
            if let Some(b) = bound {
                let c = f.push(N::Const(Scalar::from_i64(DType::I32, b)));
                let inside = f.push(N::Binary(op, distance, c));
                all = Some(match all {
                    Some(a) => f.push(N::Binary(B::And, a, inside)),
                    None => inside,
                });
            }
        }
        self.allowed.push(cx.map_to(f, &args, shape)?);
        Ok(())
    }

    /// Keys below a length for each sequence: i32, `[batch, 1, 1, 1]`.
    pub fn below(&mut self, cx: &mut Lowering, t: &Dim, length: Value) -> Result<()> {
        let mut f = ScalarFn::default();
        let at = f.push(N::Index(Poly::var(3)));
        let n = f.push(N::Arg(0));
        f.push(N::Binary(B::Lt, at, n));
        let shape = vec![cx.shape(length)[0].clone(), Dim::ONE, Dim::ONE, t.clone()];
        self.allowed.push(cx.map_to(f, &[length], shape)?);
        Ok(())
    }

    /// Everything as one number to add, of type `dtype`; `unseen` where a key is not seen. With `infinite`, biases
    /// are as an attention whose `empty_is_zero` is set has them.
    pub fn additive(
        &self,
        cx: &mut Lowering,
        dtype: DType,
        unseen: Scalar,
        infinite: bool,
    ) -> Result<Option<Value>> {
        let args: Vec<Value> = self.allowed.iter().chain(&self.bias).copied().collect();
        match (self.allowed.len(), self.bias.as_slice()) {
            (0, []) => return Ok(None),
            (0, [one]) if !infinite => return Ok(Some(cx.cast(*one, dtype)?)),
            _ => {}
        }
        let mut f = ScalarFn::default();
        let (seen, mut sum) = self.combined(cx, &mut f, dtype);
        if infinite && !self.bias.is_empty() {
            sum = finite_is_seen(&mut f, sum, dtype);
        }
        if let Some(seen) = seen {
            let unseen = f.push(N::Const(unseen));
            f.push(N::Select(seen, sum, unseen));
        }
        Ok(Some(cx.map(f, &args)?))
    }

    /// All of `allowed`, and the sum of `bias`, over the operands in this order.
    fn combined(&self, cx: &Lowering, f: &mut ScalarFn, dtype: DType) -> (Option<u32>, u32) {
        let mut seen = None;
        for i in 0..self.allowed.len() {
            let a = f.push(N::Arg(i as u32));
            seen = Some(match seen {
                Some(s) => f.push(N::Binary(B::And, s, a)),
                None => a,
            });
        }
        let mut sum = None;
        for (i, v) in self.bias.iter().enumerate() {
            let mut b = f.push(N::Arg((self.allowed.len() + i) as u32));
            if cx.dtype(*v) != dtype {
                b = f.push(N::Cast(dtype, b));
            }
            sum = Some(match sum {
                Some(s) => f.push(N::Binary(B::Add, s, b)),
                None => b,
            });
        }
        let sum = sum.unwrap_or_else(|| f.push(N::Const(Scalar::from_f64(dtype, 0.0))));
        (seen, sum)
    }

    /// Whether a query sees any key: bool, `[…, s, 1]`; `None` where it need not be known.
    fn any(&self, cx: &mut Lowering) -> Result<Option<Value>> {
        if !self.empty_is_zero {
            return Ok(None);
        }
        let args: Vec<Value> = self.allowed.iter().chain(&self.bias).copied().collect();
        let mut f = ScalarFn::default();
        let (seen, sum) = self.combined(cx, &mut f, DType::F32);
        // A sum of finite numbers and −∞ is infinite only if it is −∞.
        if !self.bias.is_empty() {
            let infinite = f.push(N::Unary(U::IsInf, sum));
            let finite = f.push(N::Unary(U::Not, infinite));
            if let Some(seen) = seen {
                f.push(N::Binary(B::And, seen, finite));
            }
        } else if let Some(seen) = seen {
            // The unused sum is not the result.
            f.nodes.truncate(seen as usize + 1);
        } else {
            return Ok(None);
        }
        let seen = if f.nodes.len() == 1 { args[0] } else { cx.map(f, &args)? };
        match cx.rank(seen).checked_sub(1) {
            Some(last) => Ok(Some(cx.reduce(ReduceOp::Max, seen, &[last], true)?)),
            None => Ok(Some(seen)),
        }
    }
}

/// `1/√d`, what scores are multiplied with unless something else is said.
pub fn default_scale(d: &Dim) -> Result<f64> {
    match d.as_const() {
        Some(d) if d > 0 => Ok(1.0 / (d as f64).sqrt()),
        _ => Err(OpError::symbolic(format!("heads of width {d}"))),
    }
}

/// i32 numbers, one a sequence, as `[batch, 1, 1, 1]`.
pub fn per_sequence(cx: &mut Lowering, v: Value, batch: &Dim) -> Result {
    let v = cx.nearest_i32(v)?;
    Ok(cx.reshape(v, vec![batch.clone(), Dim::ONE, Dim::ONE, Dim::ONE])?)
}

/// `v + n`, where n is a dimension.
pub fn plus(cx: &mut Lowering, v: Value, n: &Dim) -> Result {
    let dtype = cx.dtype(v);
    let n = cx.dim_scalar(n, dtype)?;
    Ok(cx.binary(B::Add, v, n)?)
}

/// A mask whose last axis may be shorter than the keys: what it lacks is not seen.
pub fn padded(cx: &mut Lowering, m: Value, t: &Dim) -> Result {
    let mut shape = cx.shape(m);
    let Some(last) = shape.last_mut() else { return Ok(m) };
    match (last.as_const(), t.as_const()) {
        (Some(have), Some(want)) if have != 1 && have < want => {}
        _ => return Ok(m),
    }
    *last = t.clone();
    let index = (0..shape.len()).map(Poly::var).collect();
    let unseen = match cx.dtype(m) {
        DType::Bool => Scalar::bool(false),
        d => Scalar::from_f64(d, f64::NEG_INFINITY),
    };
    Ok(cx.push(Op::View { shape, index, fill: Some(unseen) }, &[m])?)
}

/// The keys that `m` says are padding: a length for each sequence, or an end and then a start for
/// each, or a number that is 0 at padding for each key, or query and key. What is padding has
/// `mask_filter_value` added to its score.
pub fn padding(
    cx: &mut Lowering,
    m: Value,
    batch: &Dim,
    t: &Dim,
    filter: f64,
    mask: &mut Mask,
) -> Result<()> {
    let shape = cx.shape(m);
    let mut f = Body::default();
    let (seen, args, to) = match shape.as_slice() {
        [n] => {
            let at = f.index(Poly::var(3));
            let end = f.arg(0);
            let mut seen = f.binary(B::Lt, at, end);
            let mut args = vec![];
            if n == batch || *n != batch * 2 {
                args.push(with_extents(cx, m, std::slice::from_ref(batch)).map_err(|e| e.operand(m))?);
            } else {
                args.push(cx.slice(m, 0, &Poly::ZERO, 1, batch)?);
                args.push(cx.slice(m, 0, batch, 1, batch)?);
                let start = f.arg(1);
                let behind = f.binary(B::Ge, at, start);
                seen = f.binary(B::And, seen, behind);
            }
            let args = args.into_iter().map(|v| per_sequence(cx, v, batch)).collect::<Result<Vec<_>>>()?;
            (seen, args, vec![batch.clone(), Dim::ONE, Dim::ONE, t.clone()])
        }
        [_, _] | [_, _, _] => {
            let one = match shape.as_slice() {
                [b, l] => cx.reshape(m, vec![b.clone(), Dim::ONE, Dim::ONE, l.clone()])?,
                _ => cx.unsqueeze(m, &[1])?,
            };
            let mut want = cx.shape(one);
            want[0] = batch.clone();
            want[3] = t.clone();
            let one = with_extents(cx, one, &want)?;
            let x = f.arg(0);
            (f.cast(DType::Bool, x), vec![one], want)
        }
        _ => {
            let e = OpError::unsupported(
                format!("a mask of type {}", cx.ty(m)),
                "give a mask of shape [batch], [2·batch], [batch, keys] or [batch, queries, keys], or add one to the scores",
            );
            return Err(e.operand(m));
        }
    };
    let (zero, low) = (f.f32(0.0), f.f32(filter));
    f.select(seen, zero, low);
    mask.bias.push(cx.map_to(f.0, &args, to)?);
    Ok(())
}

/// Scores at one of the stages at which an operator may show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The scaled product.
    Product,
    /// Behind the cap.
    Capped,
    /// With the mask.
    Masked,
    /// The probabilities.
    Softmax,
}

/// `softmax(cap(q · kᵀ · scale) + mask) · v`.
#[derive(Clone, Debug)]
pub struct Attend {
    /// `[batch, heads, s, d]`.
    pub q: Value,
    /// `[batch, kv heads, t, d]`.
    pub k: Value,
    /// `[batch, kv heads, t, e]`.
    pub v: Value,
    /// The factor of scores.
    pub scale: f64,
    /// `cap · tanh(score / cap)`, unless 0.
    pub cap: f64,
    /// Which keys are seen.
    pub mask: Mask,
    /// For each head (`[heads]`, or of one element) a score that takes part in the softmax and has no value.
    pub sink: Option<Value>,
    /// Which scores are an output of their own.
    pub show: Option<Stage>,
}

impl Attend {
    /// The result `[batch, heads, s, e]`, and the scores asked for.
    pub fn build(self, cx: &mut Lowering) -> Result<(Value, Option<Value>)> {
        let qs = cx.shape(self.q);
        let (batch, heads) = (qs[0].clone(), qs[1].clone());
        let mut fit = |x: Value| {
            let x = repeat(cx, x, &heads)?;
            let mut s = cx.shape(x);
            s[0] = batch.clone();
            with_extents(cx, x, &s)
        };
        let (k, v) = (fit(self.k)?, fit(self.v)?);
        let mut ks = cx.shape(k);
        let vs = cx.shape(v);
        ks[3] = qs[3].clone();
        let k = with_extents(cx, k, &ks)?;
        let v = with_extents(cx, v, &[vs[0].clone(), vs[1].clone(), ks[2].clone(), vs[3].clone()])?;
        let dtype = cx.dtype(self.q);
        let fits = vs[3].as_const().is_some_and(|e| e <= MAX_WIDTH);
        if fits && self.cap == 0.0 && self.sink.is_none() && self.show.is_none() {
            let mut inputs = vec![self.q, k, v];
            let empty_is_zero = self.mask.empty_is_zero;
            let unseen = if empty_is_zero { unseen(dtype) } else { Scalar::from_f64(dtype, least(dtype)) };
            if let Some(m) = self.mask.additive(cx, dtype, unseen, empty_is_zero)? {
                let scores = [&qs[..3], &ks[2..3]].concat();
                inputs.push(broadcasting(cx, m, &scores)?);
            }
            let scale = (self.scale as f32).to_bits();
            let y = cx.push(Op::Attention { scale, empty_is_zero }, &inputs)?;
            return Ok((y, None));
        }
        let any = self.mask.any(cx)?;

        let f = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let (q, k, v) = (cx.cast(self.q, f)?, cx.cast(k, f)?, cx.cast(v, f)?);
        let qk = Contract { a: vec![0, 1, 2, 3], b: vec![0, 1, 4, 3], out: vec![0, 1, 2, 4] };
        let mut x = cx.push(Op::Contract(qk), &[q, k])?;
        x = cx.binary_scalar(B::Mul, x, self.scale)?;
        let mut shown = (self.show == Some(Stage::Product)).then_some(x);
        if self.cap != 0.0 {
            x = cx.binary_scalar(B::Mul, x, 1.0 / self.cap)?;
            x = cx.unary(U::Tanh, x)?;
            x = cx.binary_scalar(B::Mul, x, self.cap)?;
        }
        if self.show == Some(Stage::Capped) {
            shown = Some(x);
        }
        let unseen = if self.show == Some(Stage::Masked) { f64::NEG_INFINITY } else { least(f) };
        if let Some(m) = self.mask.additive(cx, f, Scalar::from_f64(f, unseen), false)? {
            let shape = cx.shape(x);
            x = cx.map_to(ScalarFn::binary(B::Add), &[x, m], shape)?;
        }
        if self.show == Some(Stage::Masked) {
            shown = Some(x);
        }
        // A row of −∞ only would otherwise divide 0 by 0.
        x = cx.binary_scalar(B::Max, x, f64::from(f32::MIN))?;
        let t = cx.shape(x)[3].clone();
        if let Some(sink) = self.sink {
            let sink = cx.cast(sink, f)?;
            let per_head = cx.unsqueeze(sink, &[1, 2])?;
            let mut column = cx.shape(x);
            column[3] = Dim::ONE;
            let column = cx.expand(per_head, &column)?;
            x = cx.concat(&[x, column], 3)?;
        }
        x = cx.push(Op::Softmax { axis: 3, log: false }, &[x])?;
        x = cx.slice(x, 3, &Poly::ZERO, 1, &t)?;
        x = or_zero(cx, any, x)?;
        if self.show == Some(Stage::Softmax) {
            shown = Some(x);
        }
        let pv = Contract { a: vec![0, 1, 2, 4], b: vec![0, 1, 4, 5], out: vec![0, 1, 2, 5] };
        let y = cx.push(Op::Contract(pv), &[x, v])?;
        let shown = shown.map(|s| cx.cast(s, dtype)).transpose()?;
        Ok((cx.cast(y, dtype)?, shown))
    }
}

/// The least finite number.
fn least(dtype: DType) -> f64 {
    if dtype == DType::F16 { -65504.0 } else { f64::from(f32::MIN) }
}

/// `x` where the condition holds, or there is none; else 0.
fn or_zero(cx: &mut Lowering, condition: Option<Value>, x: Value) -> Result {
    let Some(c) = condition else { return Ok(x) };
    let dtype = cx.dtype(x);
    let zero = cx.scalar(dtype, 0.0);
    let shape = cx.shape(x);
    Ok(cx.map_to(ScalarFn::select(), &[c, x, zero], shape)?)
}
