//! Multi-head attention: masks, caches and the product itself.

use super::shape::with_extents;
use super::{Lowering, OpError, Result};
use crate::schedule::attention::MAX_WIDTH;
use wgfc_ir::lower::{finite_is_seen, unseen};
use wgfc_ir::{
    BinaryOp as B, Body, Contract, DType, Dim, Op, Poly, ReduceOp, Scalar, ScalarFn, ScalarNode as N,
    UnaryOp as U, Value,
};

/// Splits `[batch, s, heads · d]` to `[batch, heads, s, d]`.
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

/// Joins `[batch, heads, s, d]` to `[batch, s, heads · d]`.
pub fn join(cx: &mut Lowering, x: Value) -> Result {
    let s = cx.shape(x);
    let beside = cx.transpose(x, &[0, 2, 1, 3])?;
    Ok(cx.reshape(beside, vec![s[0].clone(), s[2].clone(), &s[1] * &s[3]])?)
}

/// `x` with its extents, aligned at the last axis, required to be 1 or equal to those of `shape`, and given the same
/// expressions.
pub fn broadcasting(cx: &mut Lowering, x: Value, shape: &[Dim]) -> Result {
    let have = cx.shape(x);
    let Some(skip) = shape.len().checked_sub(have.len()) else { return Ok(x) };
    let want = have.iter().zip(&shape[skip..]).map(|(h, w)| if h.is(1) { Dim::ONE } else { w.clone() });
    let want: Vec<Dim> = want.collect();
    with_extents(cx, x, &want)
}

/// Concatenates `past` and `new`, `[batch, heads, positions, d]`, along the positions.
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

/// Repeats each head of `x` so that there are `heads`; copies of one head are adjacent.
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
    /// One number for all sequences.
    Is(Dim),
    /// One number for each sequence: i32, `[batch, 1, 1, 1]`.
    Of(Value),
}

/// The visible keys of each query, and the biases of the scores.
#[derive(Clone, Debug, Default)]
pub struct Mask {
    /// Bools that broadcast to `[batch, heads, s, t]`; a key is visible if all are true.
    pub allowed: Vec<Value>,
    /// Floats that broadcast to `[batch, heads, s, t]` and are added to the scores.
    pub bias: Vec<Value>,
    /// Whether the output for a query that sees no key is 0 rather than the mean of the values.
    pub empty_is_zero: bool,
}

impl Mask {
    /// Restricts a query to keys at most `left` positions before and `right` positions after its own.
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
        // The distance of a key from the query without the offset, and the offset.
        let (distance, offset) = match offset {
            Offset::Is(d) => (&(Poly::var(1) - Poly::var(0)) - d, None),
            Offset::Of(v) => {
                args.push(*v);
                shape = vec![cx.shape(*v)[0].clone(), Dim::ONE, s.clone(), t.clone()];
                (Poly::var(3) - Poly::var(2), Some(f.push(N::Arg(0))))
            }
        };
        let mut all = None;
        for (bound, op) in bounds {
            if let Some(b) = bound {
                let inside = match offset {
                    Some(start) => {
                        let d = f.push(N::Index(&distance - b));
                        f.push(N::Binary(op, d, start))
                    }
                    None => {
                        let d = f.push(N::Index(distance.clone()));
                        let c = f.push(N::Const(Scalar::from_i64(DType::I32, b)));
                        f.push(N::Binary(op, d, c))
                    }
                };
                all = Some(match all {
                    Some(a) => f.push(N::Binary(B::And, a, inside)),
                    None => inside,
                });
            }
        }
        self.allowed.push(cx.map_to(f, &args, shape)?);
        Ok(())
    }

    /// Restricts each sequence to the keys below its length: i32, `[batch, 1, 1, 1]`.
    pub fn below(&mut self, cx: &mut Lowering, t: &Dim, length: Value) -> Result<()> {
        let mut f = ScalarFn::default();
        let at = f.push(N::Index(Poly::var(3)));
        let n = f.push(N::Arg(0));
        f.push(N::Binary(B::Lt, at, n));
        let shape = vec![cx.shape(length)[0].clone(), Dim::ONE, Dim::ONE, t.clone()];
        self.allowed.push(cx.map_to(f, &[length], shape)?);
        Ok(())
    }

    /// The whole mask as one number to add to each score, of type `dtype`; `unseen` where a key is not visible. With
    /// `infinite`, biases have the form that an attention with `empty_is_zero` expects: a bias of −∞ hides a key.
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

    /// The conjunction of `allowed` and the sum of `bias`, as nodes of `f` whose arguments are `allowed`, then `bias`.
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

    /// Whether each query sees any key: bool, `[…, s, 1]`; `None` if the caller does not need it.
    fn any(&self, cx: &mut Lowering) -> Result<Option<Value>> {
        if !self.empty_is_zero {
            return Ok(None);
        }
        let args: Vec<Value> = self.allowed.iter().chain(&self.bias).copied().collect();
        let mut f = ScalarFn::default();
        let (seen, sum) = self.combined(cx, &mut f, DType::F32);
        // A sum of finite numbers and −∞ is infinite only if it is −∞, which hides the key.
        if !self.bias.is_empty() {
            let infinite = f.push(N::Unary(U::IsInf, sum));
            let finite = f.push(N::Unary(U::Not, infinite));
            if let Some(seen) = seen {
                f.push(N::Binary(B::And, seen, finite));
            }
        } else if let Some(seen) = seen {
            // Removes the unused sum, so that the last node is the result.
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

/// The default scale of scores, `1/√d`.
pub fn default_scale(d: &Dim) -> Result<f64> {
    match d.as_const() {
        Some(d) if d > 0 => Ok(1.0 / (d as f64).sqrt()),
        _ => Err(OpError::symbolic(format!("heads of width {d}"))),
    }
}

/// One i32 number per sequence, as `[batch, 1, 1, 1]`.
pub fn per_sequence(cx: &mut Lowering, v: Value, batch: &Dim) -> Result {
    let v = cx.nearest_i32(v)?;
    Ok(cx.reshape(v, vec![batch.clone(), Dim::ONE, Dim::ONE, Dim::ONE])?)
}

/// `v + n`, where `n` is a dimension.
pub fn plus(cx: &mut Lowering, v: Value, n: &Dim) -> Result {
    let dtype = cx.dtype(v);
    let n = cx.dim_scalar(n, dtype)?;
    Ok(cx.binary(B::Add, v, n)?)
}

/// Extends a mask whose last axis is shorter than the keys; the missing keys are not visible.
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

/// Adds the padding mask `m` to `mask`: the score of each padding key gets `filter` added. `m` holds a length for each
/// sequence; or all ends, then all starts; or for each key, or each query and key, a number that is 0 at padding.
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

/// The stages at which the scores may be returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// After scaling.
    Product,
    /// After the soft cap.
    Capped,
    /// After masking.
    Masked,
    /// After the softmax: the probabilities.
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
    /// The scale of the scores.
    pub scale: f64,
    /// Soft cap of the scores, `cap · tanh(score / cap)`; 0 means none.
    pub cap: f64,
    /// The mask.
    pub mask: Mask,
    /// Attention sinks, `[heads]` or one element: for each head a score that takes part in the softmax but has no
    /// value.
    pub sink: Option<Value>,
    /// The stage at which the scores are returned as a second output.
    pub show: Option<Stage>,
}

impl Attend {
    /// The output `[batch, heads, s, e]`, and the scores at the requested stage.
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
        // The softmax of a row of −∞ would divide 0 by 0.
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

/// The least finite number of a float type.
fn least(dtype: DType) -> f64 {
    if dtype == DType::F16 { -65504.0 } else { f64::from(f32::MIN) }
}

/// `x` where the condition holds, else 0; `x` unchanged without a condition.
fn or_zero(cx: &mut Lowering, condition: Option<Value>, x: Value) -> Result {
    let Some(c) = condition else { return Ok(x) };
    let dtype = cx.dtype(x);
    let zero = cx.scalar(dtype, 0.0);
    let shape = cx.shape(x);
    Ok(cx.map_to(ScalarFn::select(), &[c, x, zero], shape)?)
}
