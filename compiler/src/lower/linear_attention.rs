//! Linear attention, a recurrence over a state matrix per head, and the causal convolution before it.

use super::conv::{channel_bias, share};
use super::{Lowering, OpError, Result};
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::op::show;
use wgfc_ir::{
    BinaryOp as B, Border, Contract, DType, Dim, Graph, Op, Poly, Scalar, TensorType, UnaryOp as U, Value,
};

/// `[B, T, H·D]` as `[T, B, H, D]`, in f32.
fn split(cx: &mut Lowering, x: Value, heads: i64) -> Result {
    let s = cx.shape(x);
    let d = s[2].div(&heads.into(), &[]);
    let index = vec![Poly::var(1), Poly::var(0), &(&Poly::var(2) * &d) + &Poly::var(3)];
    let x = cx.view(x, vec![s[1].clone(), s[0].clone(), heads.into(), d], index)?;
    Ok(cx.cast(x, DType::F32)?)
}

/// Checks that `v` has the shape `[B, T, n]`, with `n` one of `sizes`.
fn require_gate(cx: &mut Lowering, v: Value, sizes: &[Dim], lead: &[Dim]) -> Result<()> {
    let s = cx.shape(v);
    if s.len() != 3 || !sizes.contains(&s[2]) {
        let e = format!("needs {} along the last axis, got {}", show(sizes), cx.ty(v));
        return Err(OpError::model(e).operand(v));
    }
    cx.require_equal(&s[0], &lead[0]);
    cx.require_equal(&s[1], &lead[1]);
    Ok(())
}

/// The operands of [`linear_attention`] other than q, k and v.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recurrence {
    /// The initial state, `[B, H, dk, dv]`; by default 0.
    pub state: Option<Value>,
    /// The logarithmic decay `g`: `[B, T, H]` or `[B, T, H·dk]`.
    pub decay: Option<Value>,
    /// The factor `β` of the delta rule: `[B, T, H]` or `[B, T, 1]`.
    pub beta: Option<Value>,
}

/// Parameters of [`linear_attention`].
#[derive(Clone, Copy, Debug)]
pub struct LinearAttention {
    /// The number of heads of q.
    pub q_heads: i64,
    /// The number of heads of k and v; must divide `q_heads`.
    pub kv_heads: i64,
    /// The scale of the output; by default `1/√dk`.
    pub scale: Option<f64>,
}

/// The recurrence `S ← exp(g)·S + k ⊗ β(v − (exp(g)·S)ᵀk)`, `o = scale · Sᵀq`, position by position.
///
/// q, k and v are `[B, T, H·D]`. Without a decay `exp(g)` is 1; without a beta the update is `k ⊗ v`. Returns the
/// output and the state after the last position.
pub fn linear_attention(
    cx: &mut Lowering,
    [q, k, v]: [Value; 3],
    r: &Recurrence,
    p: &LinearAttention,
) -> Result<[Value; 2]> {
    for x in [q, k, v] {
        cx.require_rank(x, 3)?;
    }
    let dtype = cx.dtype(q);
    let (hq, h) = (p.q_heads, p.kv_heads);
    if hq % h != 0 {
        let e = format!("{hq} heads of the queries are no multiple of {h} heads of the keys");
        return Err(OpError::model(e).param("q_num_heads"));
    }
    let (sq, sk, sv) = (cx.shape(q), cx.shape(k), cx.shape(v));
    let dk = share(&sq[2], &hq.into(), "elements")?;
    let dv = share(&sv[2], &h.into(), "elements")?;
    if sk[2] != &dk * &h.into() {
        let e = OpError::model(format!("keys {} for queries {}", show(&sk), show(&sq)));
        return Err(e.operand(k));
    }
    for s in [&sk, &sv] {
        cx.require_equal(&s[0], &sq[0]);
        cx.require_equal(&s[1], &sq[1]);
    }
    let Recurrence { decay, beta, .. } = *r;
    if let Some(g) = decay {
        require_gate(cx, g, &[h.into(), sk[2].clone()], &sq)?;
    }
    if let Some(b) = beta {
        require_gate(cx, b, &[h.into(), Dim::ONE], &sq)?;
    }
    let scale = match (p.scale, dk.as_const()) {
        (Some(s), _) => s,
        (None, Some(d)) if d > 0 => 1.0 / (d as f64).sqrt(),
        (None, _) => return Err(OpError::symbolic(format!("heads of size {dk}")).param("scale")),
    };
    let of_state = vec![sq[0].clone(), Dim::from(h), dk.clone(), dv.clone()];
    let (state, state_type) = match r.state {
        None => (cx.full(&of_state, Scalar::from_f64(DType::F32, 0.0))?, cx.dtype(q)),
        Some(p) => {
            if cx.shape(p)[..] != of_state[..] {
                let e = OpError::model(format!("needs shape {}, got {}", show(&of_state), cx.ty(p)));
                return Err(e.operand(p));
            }
            (cx.cast(p, DType::F32)?, cx.dtype(p))
        }
    };
    let mut inputs = vec![state, split(cx, q, hq)?, split(cx, k, h)?, split(cx, v, h)?];
    if let Some(g) = decay {
        inputs.push(split(cx, g, h)?);
    }
    if let Some(b) = beta {
        let each = if cx.shape(b)[2].is(1) { 1 } else { h };
        inputs.push(split(cx, b, each)?);
    }
    let mut body = Graph::new();
    let formal: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(i, v)| {
            let shape = cx.shape(*v)[usize::from(i > 0)..].to_vec();
            body.add_input(&format!("x{i}"), TensorType::new(DType::F32, shape))
        })
        .collect();
    let mut b = Builder { graph: &mut body, origin: cx.origin.clone() };
    let gates = (decay.map(|_| formal[4]), beta.and(formal.last().copied()));
    let (next, o) = step(&mut b, [formal[0], formal[1], formal[2], formal[3]], gates)?;
    let o = b.binary_scalar(B::Mul, o, scale)?;
    let o = b.cast(o, dtype)?;
    for (name, value) in [("state", next), ("output", o)] {
        body.outputs.push(Border { name: name.into(), value });
    }
    let op = Op::Scan {
        body: Box::new(body),
        carried: 1,
        scanned: inputs.len() - 1,
        reverse_inputs: vec![false; inputs.len() - 1],
        reverse_outputs: vec![false],
    };
    let node = cx.push(op, &inputs)?.node;
    let (state, all) = (Value { node, port: 0 }, Value { node, port: 1 });
    // `[T, B, H, D]` to `[B, T, H·D]`.
    let y = cx.transpose(all, &[1, 0, 2, 3])?;
    let y = cx.reshape(y, vec![sq[0].clone(), sq[1].clone(), &dv * &hq.into()])?;
    Ok([y, cx.cast(state, state_type)?])
}

/// One position of the recurrence, on the state `[B, H, dk, dv]`, q `[B, Hq, dk]`, k and v `[B, H, d]`, decay and beta
/// `[B, H, …]`. Returns the next state and the output `[B, Hq, dv]`.
fn step(
    b: &mut Builder,
    [state, q, k, v]: [Value; 4],
    (decay, beta): (Option<Value>, Option<Value>),
) -> Built<(Value, Value)> {
    let product = |b: &mut Builder, x: Value, lx: &[u8], y: Value, ly: &[u8], out: &[u8]| {
        b.push(Op::Contract(Contract { a: lx.to_vec(), b: ly.to_vec(), out: out.to_vec() }), &[x, y])
    };
    let (mut state, mut v) = (state, v);
    if let Some(g) = decay {
        let g = b.unary(U::Exp, g)?;
        let g = b.unsqueeze(g, &[3])?;
        state = b.binary(B::Mul, state, g)?;
    }
    if let Some(beta) = beta {
        let kept = product(b, k, &[0, 1, 2], state, &[0, 1, 2, 3], &[0, 1, 3])?;
        let d = b.binary(B::Sub, v, kept)?;
        v = b.binary(B::Mul, d, beta)?;
    }
    let (column, row) = (b.unsqueeze(k, &[3])?, b.unsqueeze(v, &[2])?);
    let outer = b.binary(B::Mul, column, row)?;
    state = b.binary(B::Add, state, outer)?;
    let (all, heads) = (b.shape(q), b.shape(k));
    let grouped = vec![all[0].clone(), heads[1].clone(), all[1].div(&heads[1], &[]), all[2].clone()];
    let q = b.reshape(q, grouped)?;
    let o = product(b, q, &[0, 1, 4, 2], state, &[0, 1, 2, 3], &[0, 1, 4, 3])?;
    let out = vec![all[0].clone(), all[1].clone(), b.shape(v)[2].clone()];
    Ok((state, b.reshape(o, out)?))
}

/// A causal depthwise convolution of `x [B, C, T]` with `w [C, 1, k]`, preceded by `past [B, C, k − 1]` or zeros.
/// Returns the output and the last `k − 1` positions. With `silu` the output is `y·sigmoid(y)`.
pub fn causal_conv(
    cx: &mut Lowering,
    [x, w]: [Value; 2],
    bias: Option<Value>,
    past: Option<Value>,
    silu: bool,
) -> Result<[Value; 2]> {
    cx.require_rank(x, 3)?;
    cx.require_rank(w, 3)?;
    let (sx, sw) = (cx.shape(x), cx.shape(w));
    let dtype = cx.dtype(x);
    let size = sw[2].as_const().filter(|k| *k >= 1);
    let (Some(k), true) = (size, sw[0] == sx[1] && sw[1].is(1) && cx.dtype(w) == dtype) else {
        let e = OpError::model(format!("weights {} for an input {}", cx.ty(w), cx.ty(x)));
        return Err(e.operand(w));
    };
    let kept = Dim::from(k - 1);
    let padded = match past {
        Some(past) => {
            let want = [sx[0].clone(), sx[1].clone(), kept.clone()];
            if cx.rank(past) != 3 || cx.dtype(past) != dtype || cx.shape(past)[1..] != want[1..] {
                let e = OpError::model(format!("needs {dtype}{}, got {}", show(&want), cx.ty(past)));
                return Err(e.operand(past));
            }
            let batch = cx.shape(past)[0].clone();
            cx.require_equal(&batch, &sx[0]);
            let past = cx.expand(past, &want)?;
            if k == 1 { x } else { cx.concat(&[past, x], 2)? }
        }
        None => {
            let before = [Dim::ZERO, Dim::ZERO, kept.clone()];
            let after = [Dim::ZERO, Dim::ZERO, Dim::ZERO];
            cx.pad(x, &before, &after, Scalar::from_f64(dtype, 0.0))?
        }
    };
    let mut shape = sx.clone();
    shape.push(k.into());
    let index = vec![Poly::var(0), Poly::var(1), &Poly::var(2) + &Poly::var(3)];
    let windows = cx.view(padded, shape, index)?;
    let w = cx.reshape(w, vec![sx[1].clone(), k.into()])?;
    let c = Contract { a: vec![0, 1, 2, 3], b: vec![1, 3], out: vec![0, 1, 2] };
    let mut y = cx.push(Op::Contract(c), &[windows, w])?;
    if let Some(b) = bias {
        y = channel_bias(cx, y, b)?;
    }
    if silu {
        let s = cx.unary(U::Sigmoid, y)?;
        y = cx.binary(B::Mul, y, s)?;
    }
    let present = cx.slice(padded, 2, &sx[2], 1, &kept)?;
    Ok([y, present])
}
