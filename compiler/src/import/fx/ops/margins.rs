//! Distance and margin losses.

use super::super::prelude::*;
use super::loss::reduced;
use super::reduce::norm_along;
use crate::lower::{elementwise, scan, special};
use wgfc_ir::{Poly, ReduceOp, Special};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.cosine_embedding_loss.default", cosine_embedding).in_f32(),
    OpDef::new("aten.cosine_similarity.default", cosine).in_f32(),
    OpDef::new("aten.hinge_embedding_loss.default", hinge_embedding).in_f32(),
    OpDef::new("aten.margin_ranking_loss.default", ranking).in_f32(),
    OpDef::new("aten.multi_margin_loss.default", one_class).in_f32(),
    OpDef::new("aten.multilabel_margin_loss.default", several_classes).in_f32(),
    OpDef::new("aten.pairwise_distance.default", |cx| {
        let (keep, [a, b]) = (cx.flag("keepdim")?, cx.promoted(["x1", "x2"])?);
        Ok(vec![distance(cx, a, b, keep)?])
    }).in_f32(),
    OpDef::new("aten.poisson_nll_loss.default", poisson).in_f32(),
    OpDef::new("aten.soft_margin_loss.default", soft).in_f32(),
    OpDef::new("aten.triplet_margin_loss.default", triplet).in_f32(),
];

/// The maximum with 0.
fn positive(cx: &mut Lowering, v: Value) -> Result {
    Ok(cx.binary_scalar(BinaryOp::Max, v, 0.0)?)
}

/// The elements of `v` where `target` equals `n`, else 0.
fn where_is(cx: &mut Cx, target: Value, n: f64, v: Value) -> Result {
    let target = if cx.dtype(target) == DType::Bool { cx.converted(target, DType::I32)? } else { target };
    let (is, zero) = (cx.binary_scalar(BinaryOp::Eq, target, n)?, cx.scalar(cx.dtype(v), 0.0));
    Ok(cx.select(is, v, zero)?)
}

/// The norm of the difference along the last axis.
fn distance(cx: &mut Cx, a: Value, b: Value, keep: bool) -> Result {
    let (p, eps) = (cx.float("p")?, cx.float("eps")?);
    let (a, b) = (cx.as_float(a)?, cx.as_float(b)?);
    let d = cx.binary(BinaryOp::Sub, a, b)?;
    let d = cx.binary_scalar(BinaryOp::Add, d, eps)?;
    let axes: Vec<usize> = cx.rank(d).checked_sub(1).into_iter().collect();
    norm_along(cx, d, p, &axes, keep)
}

fn triplet(cx: &mut Cx) -> Lowered {
    let (margin, swap) = (cx.float("margin")?, cx.flag("swap")?);
    let [anchor, near, far] = cx.promoted(["anchor", "positive", "negative"])?;
    let good = distance(cx, anchor, near, false)?;
    let mut bad = distance(cx, anchor, far, false)?;
    if swap {
        let other = distance(cx, near, far, false)?;
        bad = cx.binary(BinaryOp::Min, bad, other)?;
    }
    let d = cx.binary(BinaryOp::Sub, good, bad)?;
    let d = cx.binary_scalar(BinaryOp::Add, d, margin)?;
    let d = positive(cx, d)?;
    reduced(cx, d)
}

/// `max(0, margin - target (x1 - x2))`.
fn ranking(cx: &mut Cx) -> Lowered {
    let margin = cx.float("margin")?;
    let [a, b, t] = cx.promoted(["input1", "input2", "target"])?;
    let d = cx.binary(BinaryOp::Sub, b, a)?;
    let d = cx.binary(BinaryOp::Mul, t, d)?;
    let to = cx.result_dtype(0)?;
    let d = cx.converted(d, to)?;
    let d = cx.binary_scalar(BinaryOp::Add, d, margin)?;
    let d = positive(cx, d)?;
    reduced(cx, d)
}

/// `x` for the target 1, `max(0, margin - x)` for -1, and their sum for other targets.
fn hinge_embedding(cx: &mut Cx) -> Lowered {
    let (x, t, margin) = (cx.tensor("self")?, cx.tensor("target")?, cx.float("margin")?);
    let x = cx.as_float(x)?;
    let margin = cx.scalar(cx.dtype(x), margin);
    let rest = cx.binary(BinaryOp::Sub, margin, x)?;
    let rest = positive(cx, rest)?;
    let (far, near) = (cx.binary_scalar(BinaryOp::Ne, t, 1.0)?, cx.binary_scalar(BinaryOp::Ne, t, -1.0)?);
    let zero = cx.scalar(cx.dtype(x), 0.0);
    let (far, near) = (cx.select(far, rest, zero)?, cx.select(near, x, zero)?);
    let y = cx.binary(BinaryOp::Add, far, near)?;
    reduced(cx, y)
}

/// The cosine similarity along an axis.
fn cosine(cx: &mut Cx) -> Lowered {
    let eps = cx.float("eps")?;
    let [a, b] = cx.promoted(["x1", "x2"])?;
    let (a, b) = (cx.as_float(a)?, cx.as_float(b)?);
    let want = cx.broadcast_shape(&[a, b])?;
    let axis = cx.axis("dim", want.len())?;
    let axes: &[usize] = if want.is_empty() { &[] } else { &[axis] };
    let unit = |cx: &mut Cx, v: Value| -> Result {
        let v = cx.expand(v, &want)?;
        let length = norm_along(cx, v, 2.0, axes, true)?;
        let length = cx.binary_scalar(BinaryOp::Max, length, eps)?;
        Ok(cx.binary(BinaryOp::Div, v, length)?)
    };
    let (a, b) = (unit(cx, a)?, unit(cx, b)?);
    let y = cx.binary(BinaryOp::Mul, a, b)?;
    Ok(vec![cx.reduce(ReduceOp::Sum, y, axes, false)?])
}

/// `1 - cos` for the target 1, `max(0, cos - margin)` for -1.
fn cosine_embedding(cx: &mut Cx) -> Lowered {
    let (t, margin, dtype) = (cx.tensor("target")?, cx.float("margin")?, cx.result_dtype(0)?);
    let [a, b] = cx.all_in(["input1", "input2"], dtype)?;
    let axis = cx.rank(t);
    if cx.rank(a).max(cx.rank(b)) <= axis {
        return Err(OpError::model(format!("vectors of type {}, targets {}", cx.ty(a), cx.ty(t))));
    }
    let along = |cx: &mut Cx, a: Value, b: Value| -> Result {
        let p = cx.binary(BinaryOp::Mul, a, b)?;
        Ok(cx.reduce(ReduceOp::Sum, p, &[axis], false)?)
    };
    let product = along(cx, a, b)?;
    let (of_a, of_b) = (along(cx, a, a)?, along(cx, b, b)?);
    let (of_a, of_b) = (cx.binary_scalar(BinaryOp::Add, of_a, 1e-12)?, cx.binary_scalar(BinaryOp::Add, of_b, 1e-12)?);
    let lengths = cx.binary(BinaryOp::Mul, of_a, of_b)?;
    let lengths = cx.unary(UnaryOp::Sqrt, lengths)?;
    let cos = cx.binary(BinaryOp::Div, product, lengths)?;
    let one = cx.scalar(dtype, 1.0);
    let near = cx.binary(BinaryOp::Sub, one, cos)?;
    let far = cx.binary_scalar(BinaryOp::Sub, cos, margin)?;
    let far = positive(cx, far)?;
    let (near, far) = (where_is(cx, t, 1.0, near)?, where_is(cx, t, -1.0, far)?);
    let y = cx.binary(BinaryOp::Add, near, far)?;
    reduced(cx, y)
}

/// `ln(1 + e^(-target x))`.
fn soft(cx: &mut Cx) -> Lowered {
    let [x, t] = cx.promoted(["self", "target"])?;
    let y = cx.binary(BinaryOp::Mul, x, t)?;
    let y = cx.unary(UnaryOp::Neg, y)?;
    let y = cx.unary(UnaryOp::Exp, y)?;
    let y = special::function(cx, Special::Log1p, y)?;
    reduced(cx, y)
}

/// `x - t ln(x + eps)`, or `e^x - t x` with `log_input`; `full` adds Stirling's approximation for targets above 1.
fn poisson(cx: &mut Cx) -> Lowered {
    let (of_logs, full, eps) = (cx.flag("log_input")?, cx.flag("full")?, cx.float("eps")?);
    let [x, t] = cx.promoted(["input", "target"])?;
    let (x, t) = (cx.as_float(x)?, cx.as_float(t)?);
    let (rate, log) = match of_logs {
        true => (cx.unary(UnaryOp::Exp, x)?, x),
        false => {
            let more = cx.binary_scalar(BinaryOp::Add, x, eps)?;
            (x, cx.unary(UnaryOp::Log, more)?)
        }
    };
    let product = cx.binary(BinaryOp::Mul, t, log)?;
    let mut y = cx.binary(BinaryOp::Sub, rate, product)?;
    if full {
        let log = cx.unary(UnaryOp::Log, t)?;
        let product = cx.binary(BinaryOp::Mul, t, log)?;
        let around = cx.binary_scalar(BinaryOp::Mul, t, std::f64::consts::TAU)?;
        let around = cx.unary(UnaryOp::Log, around)?;
        let around = cx.binary_scalar(BinaryOp::Mul, around, 0.5)?;
        let sum = cx.binary(BinaryOp::Sub, product, t)?;
        let sum = cx.binary(BinaryOp::Add, sum, around)?;
        let (few, zero) = (cx.binary_scalar(BinaryOp::Le, t, 1.0)?, cx.scalar(cx.dtype(t), 0.0));
        let sum = cx.select(few, zero, sum)?;
        y = cx.binary(BinaryOp::Add, y, sum)?;
    }
    reduced(cx, y)
}

/// Scores `[batch, classes]`, targets as i64 `[batch, …]`, and whether there was no batch axis.
fn batched(cx: &mut Cx, targets: usize) -> Result<(Value, Value, bool)> {
    let (x, t) = (cx.tensor("self")?, cx.tensor("target")?);
    let n = cx.shape(x);
    let alone = n.len() < 2;
    let classes = n.last().cloned().unwrap_or(Dim::ONE);
    let batch = if alone { Dim::ONE } else { n[0].clone() };
    let x = cx.reshape(x, vec![batch.clone(), classes.clone()])?;
    let t = cx.reshape(t, if targets == 1 { vec![batch] } else { vec![batch, classes] })?;
    Ok((x, cx.converted(t, DType::I64)?, alone))
}

/// Whether each class is the target, along a new last axis.
fn chosen(cx: &mut Cx, t: Value, classes: &Dim) -> Result {
    let (i, rank) = (cx.iota(std::slice::from_ref(classes), Poly::var(0), DType::I64)?, cx.rank(t));
    let t = cx.unsqueeze(t, &[rank])?;
    Ok(cx.binary(BinaryOp::Eq, t, i)?)
}

/// The sum along axes of the elements for which a condition holds.
fn sum_where(cx: &mut Lowering, is: Value, v: Value, axes: &[usize], keep: bool) -> Result {
    let dtype = cx.dtype(v);
    let zero = cx.scalar(dtype, 0.0);
    let v = cx.select(is, v, zero)?;
    Ok(cx.reduce(ReduceOp::Sum, v, axes, keep)?)
}

fn over_classes(cx: &mut Cx, sum: Value, classes: &Dim, alone: bool) -> Lowered {
    let dtype = cx.dtype(sum);
    let n = cx.dim_scalar(classes, dtype)?;
    let y = cx.binary(BinaryOp::Div, sum, n)?;
    let y = reduced(cx, y)?[0];
    if !alone {
        return Ok(vec![y]);
    }
    // The rank of the result without a batch depends on that of the target.
    let want = cx.result(0)?.shape;
    Ok(vec![cx.reshape(y, want)?])
}

/// `Σ max(0, margin - x[target] + x[i])^p` over the other classes i, divided by the number of classes.
fn one_class(cx: &mut Cx) -> Lowered {
    let (p, margin) = (cx.float("p")?, cx.float("margin")?);
    let (x, t, alone) = batched(cx, 1)?;
    let classes = cx.shape(x)[1].clone();
    let is = chosen(cx, t, &classes)?;
    let own = sum_where(cx, is, x, &[1], true)?;
    let z = cx.binary(BinaryOp::Sub, x, own)?;
    let mut z = cx.binary_scalar(BinaryOp::Add, z, margin)?;
    let above = cx.binary_scalar(BinaryOp::Gt, z, 0.0)?;
    if p == 2.0 {
        z = cx.binary(BinaryOp::Mul, z, z)?;
    }
    if let Some(w) = cx.opt_tensor("weight")? {
        let want = cx.shape(x);
        let w = cx.expand(w, &want)?;
        let own = sum_where(cx, is, w, &[1], true)?;
        z = cx.binary(BinaryOp::Mul, z, own)?;
    }
    let other = cx.unary(UnaryOp::Not, is)?;
    let counts = elementwise::binary(cx, BinaryOp::And, above, other)?;
    let sum = sum_where(cx, counts, z, &[1], false)?;
    over_classes(cx, sum, &classes, alone)
}

/// `Σ max(0, 1 - x[j] + x[i])` over targets j and non-targets i, divided by the number of classes. The list of targets ends at the first
/// negative one.
fn several_classes(cx: &mut Cx) -> Lowered {
    let (x, t, alone) = batched(cx, 2)?;
    let classes = cx.shape(x)[1].clone();
    let end = cx.binary_scalar(BinaryOp::Lt, t, 0.0)?;
    let end = cx.converted(end, DType::I32)?;
    let ends = scan::running(cx, end, 1, ReduceOp::Sum)?;
    let valid = cx.binary_scalar(BinaryOp::Eq, ends, 0.0)?;
    let valid = cx.unsqueeze(valid, &[2])?;
    // [batch, target, class]
    let is = chosen(cx, t, &classes)?;
    let scores = cx.unsqueeze(x, &[1])?;
    let own = sum_where(cx, is, scores, &[2], true)?;
    let is = cx.binary(BinaryOp::And, is, valid)?;
    let target = cx.reduce(ReduceOp::Max, is, &[1], true)?;
    let z = cx.binary(BinaryOp::Sub, scores, own)?;
    let z = cx.binary_scalar(BinaryOp::Add, z, 1.0)?;
    let above = cx.binary_scalar(BinaryOp::Gt, z, 0.0)?;
    let other = cx.unary(UnaryOp::Not, target)?;
    let counts = cx.binary(BinaryOp::And, above, other)?;
    let counts = cx.binary(BinaryOp::And, counts, valid)?;
    let sum = sum_where(cx, counts, z, &[1, 2], false)?;
    over_classes(cx, sum, &classes, alone)
}
