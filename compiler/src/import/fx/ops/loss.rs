//! Losses.

use super::super::prelude::*;
use crate::lower::loss::{self, Loss, Total};
use crate::lower::{activation, softmax};
use wgfc_ir::{Poly, ReduceOp};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.binary_cross_entropy.default", binary_cross_entropy).in_f32(),
    OpDef::new("aten.binary_cross_entropy_with_logits.default", with_logits).in_f32(),
    OpDef::new("aten.cross_entropy_loss.default", cross_entropy),
    OpDef::new("aten.huber_loss.default", huber).in_f32(),
    OpDef::new("aten.kl_div.default", divergence).in_f32(),
    OpDef::new("aten.l1_loss.default", |cx| distance(cx, false)).in_f32(),
    OpDef::new("aten.mse_loss.default", |cx| distance(cx, true)).in_f32(),
    OpDef::new("aten.nll_loss.default", likelihood),
    OpDef::new("aten.nll_loss2d.default", likelihood),
    OpDef::new("aten.nll_loss2d_backward.default", likelihood_gradient),
    OpDef::new("aten.nll_loss2d_forward.default", likelihood_with_weight),
    OpDef::new("aten.nll_loss_backward.default", likelihood_gradient),
    OpDef::new("aten.nll_loss_forward.default", likelihood_with_weight),
    OpDef::new("aten.nll_loss_nd.default", likelihood),
    OpDef::new("aten.smooth_l1_loss.default", smooth).in_f32(),
];

/// The reduction that the arguments request.
fn total(cx: &Cx) -> Result<Total> {
    match cx.int("reduction")? {
        0 => Ok(Total::Each),
        1 => Ok(Total::Mean),
        2 => Ok(Total::Sum),
        n => Err(OpError::model(format!("unknown reduction {n}")).param("reduction")),
    }
}

/// Reduces losses: all of them, their mean or their sum.
pub fn reduced(cx: &mut Cx, v: Value) -> Lowered {
    let axes: Vec<usize> = (0..cx.rank(v)).collect();
    Ok(vec![match total(cx)? {
        Total::Each => v,
        Total::Sum => cx.reduce(ReduceOp::Sum, v, &axes, false)?,
        Total::Mean => {
            let m = cx.mean(v, &axes)?;
            cx.squeeze(m, &axes)?
        }
    }])
}

fn difference(cx: &mut Cx) -> Result {
    let [a, b] = cx.promoted(["self", "target"])?;
    Ok(cx.binary(BinaryOp::Sub, a, b)?)
}

fn distance(cx: &mut Cx, squared: bool) -> Lowered {
    let d = difference(cx)?;
    let d = if squared { cx.binary(BinaryOp::Mul, d, d)? } else { cx.unary(UnaryOp::Abs, d)? };
    reduced(cx, d)
}

/// `d² / 2` for |d| up to `delta`, continued linearly with slope `delta`.
fn huber(cx: &mut Cx) -> Lowered {
    let delta = cx.float("delta")?;
    let d = difference(cx)?;
    let d = cx.unary(UnaryOp::Abs, d)?;
    let square = cx.binary(BinaryOp::Mul, d, d)?;
    let square = cx.binary_scalar(BinaryOp::Mul, square, 0.5)?;
    let line = cx.binary_scalar(BinaryOp::Sub, d, delta / 2.0)?;
    let line = cx.binary_scalar(BinaryOp::Mul, line, delta)?;
    let near = cx.binary_scalar(BinaryOp::Lt, d, delta)?;
    let y = cx.select(near, square, line)?;
    reduced(cx, y)
}

/// `d² / 2β` for |d| up to `β`, continued linearly with slope 1.
fn smooth(cx: &mut Cx) -> Lowered {
    let beta = cx.float("beta")?;
    let d = difference(cx)?;
    let d = cx.unary(UnaryOp::Abs, d)?;
    if beta == 0.0 {
        return reduced(cx, d);
    }
    let square = cx.binary(BinaryOp::Mul, d, d)?;
    let square = cx.binary_scalar(BinaryOp::Mul, square, 0.5 / beta)?;
    let line = cx.binary_scalar(BinaryOp::Sub, d, beta / 2.0)?;
    let near = cx.binary_scalar(BinaryOp::Lt, d, beta)?;
    let y = cx.select(near, square, line)?;
    reduced(cx, y)
}

fn weighted(cx: &mut Cx, v: Value) -> Result {
    match cx.opt_tensor("weight")? {
        Some(w) => Ok(cx.binary(BinaryOp::Mul, v, w)?),
        None => Ok(v),
    }
}

/// `-(t ln x + (1 - t) ln(1 - x))`, with logarithms clamped to at least -100.
fn binary_cross_entropy(cx: &mut Cx) -> Lowered {
    let (x, t) = (cx.tensor("self")?, cx.tensor("target")?);
    let one = cx.scalar(cx.dtype(x), 1.0);
    let rest = cx.binary(BinaryOp::Sub, one, x)?;
    let log = |cx: &mut Cx, v: Value| -> Result {
        let v = cx.unary(UnaryOp::Log, v)?;
        Ok(cx.binary_scalar(BinaryOp::Max, v, -100.0)?)
    };
    let (on, off) = (log(cx, x)?, log(cx, rest)?);
    let other = cx.binary(BinaryOp::Sub, t, one)?;
    let off = cx.binary(BinaryOp::Mul, other, off)?;
    let on = cx.binary(BinaryOp::Mul, t, on)?;
    let y = cx.binary(BinaryOp::Sub, off, on)?;
    let y = weighted(cx, y)?;
    reduced(cx, y)
}

/// `(1 - t) x + (1 + (p - 1) t) ln(1 + e^-x)`.
fn with_logits(cx: &mut Cx) -> Lowered {
    let (x, t) = (cx.tensor("self")?, cx.tensor("target")?);
    let one = cx.scalar(cx.dtype(x), 1.0);
    let negative = cx.unary(UnaryOp::Neg, x)?;
    let mut soft = activation::softplus(cx, negative)?;
    if let Some(p) = cx.opt_tensor("pos_weight")? {
        let more = cx.binary(BinaryOp::Sub, p, one)?;
        let more = cx.binary(BinaryOp::Mul, more, t)?;
        let more = cx.binary(BinaryOp::Add, more, one)?;
        soft = cx.binary(BinaryOp::Mul, soft, more)?;
    }
    let rest = cx.binary(BinaryOp::Sub, one, t)?;
    let line = cx.binary(BinaryOp::Mul, rest, x)?;
    let y = cx.binary(BinaryOp::Add, line, soft)?;
    let y = weighted(cx, y)?;
    reduced(cx, y)
}

/// `t (ln t - x)`; with `log_target`, `e^t (t - x)`.
fn divergence(cx: &mut Cx) -> Lowered {
    let (x, t) = (cx.tensor("self")?, cx.tensor("target")?);
    let y = if cx.flag("log_target")? {
        let (d, e) = (cx.binary(BinaryOp::Sub, t, x)?, cx.unary(UnaryOp::Exp, t)?);
        cx.binary(BinaryOp::Mul, e, d)?
    } else {
        let log = cx.unary(UnaryOp::Log, t)?;
        let with_log = cx.binary(BinaryOp::Mul, t, log)?;
        let none = cx.binary_scalar(BinaryOp::Eq, t, 0.0)?;
        let zero = cx.scalar(cx.dtype(t), 0.0);
        let with_log = cx.select(none, zero, with_log)?;
        let product = cx.binary(BinaryOp::Mul, t, x)?;
        cx.binary(BinaryOp::Sub, with_log, product)?
    };
    reduced(cx, y)
}

/// The negative log-likelihood; classes are along axis 1, and an input without a batch axis is a batch of one.
fn likelihood(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    picked(cx, x, 0.0)
}

/// The negative log-likelihood with the share `smoothing` of each target spread over all classes.
fn picked(cx: &mut Cx, x: Value, smoothing: f64) -> Lowered {
    let (target, weight) = (cx.tensor("target")?, cx.opt_tensor("weight")?);
    let alone = cx.rank(x) == 1;
    let (x, target) = if alone { (cx.unsqueeze(x, &[0])?, cx.unsqueeze(target, &[0])?) } else { (x, target) };
    let p = Loss { ignored: Some(cx.int("ignore_index")?), total: total(cx)?, smoothing };
    let y = loss::likelihood(cx, x, target, weight, &p)?;
    Ok(vec![if alone && p.total == Total::Each { cx.squeeze(y, &[0])? } else { y }])
}

fn cross_entropy(cx: &mut Cx) -> Lowered {
    let (x, target) = (cx.tensor("self")?, cx.tensor("target")?);
    let axis = if cx.rank(x) == 1 { 0 } else { 1 };
    let logs = softmax::along(cx, x, axis, true)?;
    let smoothing = cx.float("label_smoothing")?;
    if cx.dtype(target).is_float() {
        // The targets are class probabilities.
        let classes = cx.shape(x)[axis].clone();
        let mut t = target;
        if smoothing != 0.0 {
            let dtype = cx.dtype(t);
            let n = cx.dim_scalar(&classes, dtype)?;
            let share = cx.scalar(dtype, smoothing);
            let share = cx.binary(BinaryOp::Div, share, n)?;
            t = cx.binary_scalar(BinaryOp::Mul, t, 1.0 - smoothing)?;
            t = cx.binary(BinaryOp::Add, t, share)?;
        }
        let mut y = cx.binary(BinaryOp::Mul, logs, t)?;
        if let Some(w) = cx.opt_tensor("weight")? {
            let rank = cx.rank(x).max(2);
            let w = crate::lower::norm::per_channel(cx, w, rank)?;
            y = cx.binary(BinaryOp::Mul, y, w)?;
        }
        let y = cx.reduce(ReduceOp::Sum, y, &[axis], false)?;
        let y = cx.unary(UnaryOp::Neg, y)?;
        return reduced(cx, y);
    }
    picked(cx, logs, smoothing)
}

/// A tensor of the scores' shape that holds the class weight at each target, and 0 elsewhere and for ignored targets.
fn target_weights(cx: &mut Cx, x: Value, axis: usize) -> Result {
    let (target, weight, ignored) = (cx.tensor("target")?, cx.opt_tensor("weight")?, cx.int("ignore_index")?);
    let (dtype, dims) = (cx.dtype(x), cx.shape(x));
    let ignored = cx.int_const(cx.dtype(target), ignored);
    let counts = cx.binary(BinaryOp::Ne, target, ignored)?;
    let (target, counts) = (cx.unsqueeze(target, &[axis])?, cx.unsqueeze(counts, &[axis])?);
    let kind = cx.dtype(target);
    let class = cx.iota(&dims, Poly::var(axis), kind)?;
    let same = cx.binary(BinaryOp::Eq, class, target)?;
    let same = cx.binary(BinaryOp::And, same, counts)?;
    let picked = cx.converted(same, dtype)?;
    Ok(match weight {
        Some(w) => {
            let trailing: Vec<usize> = (1..dims.len() - axis).collect();
            let w = cx.unsqueeze(w, &trailing)?;
            cx.binary(BinaryOp::Mul, picked, w)?
        }
        None => picked,
    })
}

/// The loss, and the sum of weights for the gradient.
fn likelihood_with_weight(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let y = picked(cx, x, 0.0)?[0];
    let axis = usize::from(cx.rank(x) > 1);
    let weights = match total(cx)? {
        Total::Each => cx.scalar(cx.dtype(x), 0.0),
        _ => {
            let w = target_weights(cx, x, axis)?;
            let axes: Vec<usize> = (0..cx.rank(w)).collect();
            cx.reduce(ReduceOp::Sum, w, &axes, false)?
        }
    };
    Ok(vec![y, weights])
}

fn likelihood_gradient(cx: &mut Cx) -> Lowered {
    let (g, x) = (cx.tensor("grad_output")?, cx.tensor("self")?);
    let axis = usize::from(cx.rank(x) > 1);
    let w = target_weights(cx, x, axis)?;
    let g = match total(cx)? {
        Total::Each => cx.unsqueeze(g, &[axis])?,
        Total::Sum => g,
        Total::Mean => {
            let n = cx.tensor("total_weight")?;
            cx.binary(BinaryOp::Div, g, n)?
        }
    };
    let g = cx.unary(UnaryOp::Neg, g)?;
    let y = cx.binary(BinaryOp::Mul, w, g)?;
    // The gradient is 0 wherever the weight is, even if the incoming gradient is not finite.
    let none = cx.binary_scalar(BinaryOp::Eq, w, 0.0)?;
    let zero = cx.scalar(cx.dtype(y), 0.0);
    Ok(vec![cx.select(none, zero, y)?])
}
