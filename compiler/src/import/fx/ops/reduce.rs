//! Reductions along axes.

use super::super::prelude::*;
use super::binary::truth;
use crate::lower::{arg, reduce};
use wgfc_ir::ReduceOp;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._is_all_true.default", |cx| of_truth(cx, ReduceOp::Min)),
    OpDef::new("aten._is_any_true.default", |cx| of_truth(cx, ReduceOp::Max)),
    OpDef::new("aten.all.default|dim|dims", |cx| of_truth(cx, ReduceOp::Min)),
    OpDef::new("aten.amax.default", |cx| plain(cx, ReduceOp::Max)),
    OpDef::new("aten.amin.default", |cx| plain(cx, ReduceOp::Min)),
    OpDef::new("aten.aminmax.default", both_ends),
    OpDef::new("aten.any.default|dim|dims", |cx| of_truth(cx, ReduceOp::Max)),
    OpDef::new("aten.argmax.default", |cx| position(cx, ReduceOp::Max)),
    OpDef::new("aten.argmin.default", |cx| position(cx, ReduceOp::Min)),
    OpDef::new("aten.count_nonzero.default|dim_IntList", count),
    OpDef::new("aten.frobenius_norm.dim", norm).in_f32(),
    OpDef::new("aten.linalg_vector_norm.default", norm).in_f32(),
    OpDef::new("aten.logsumexp.default", log_sum_exp).in_f32(),
    OpDef::new("aten.max.default", |cx| plain(cx, ReduceOp::Max)),
    OpDef::new("aten.max.dim", |cx| with_position(cx, ReduceOp::Max)),
    OpDef::new("aten.max.other", |cx| pairwise(cx, BinaryOp::Max)),
    OpDef::new("aten.mean.default|dim", mean),
    OpDef::new("aten.min.default", |cx| plain(cx, ReduceOp::Min)),
    OpDef::new("aten.min.dim", |cx| with_position(cx, ReduceOp::Min)),
    OpDef::new("aten.min.other", |cx| pairwise(cx, BinaryOp::Min)),
    OpDef::new("aten.nanmean.default", mean_of_numbers).in_f32(),
    OpDef::new("aten.nansum.default", sum_of_numbers),
    OpDef::new("aten.norm.Scalar|ScalarOpt_dim|ScalarOpt_dim_dtype|ScalarOpt_dtype", norm).in_f32(),
    OpDef::new("aten.prod.default|dim_int", |cx| total(cx, ReduceOp::Prod)),
    OpDef::new("aten.special_logsumexp.default", log_sum_exp).in_f32(),
    OpDef::new("aten.std.correction|default|dim", deviation).in_f32(),
    OpDef::new("aten.std_mean.correction|default|dim", |cx| with_mean(cx, true)).in_f32(),
    OpDef::new("aten.sum.default|dim_IntList", |cx| total(cx, ReduceOp::Sum)),
    OpDef::new("aten.var.correction|default|dim", variance).in_f32(),
    OpDef::new("aten.var_mean.correction|default|dim", |cx| with_mean(cx, false)).in_f32(),
];

/// The axes of a reduction; all axes if the operator has no such argument.
fn axes(cx: &Cx, x: Value) -> Result<Vec<usize>> {
    let rank = cx.rank(x);
    if cx.declares("dim") { cx.axes("dim", rank) } else { Ok((0..rank).collect()) }
}

fn keeps(cx: &Cx) -> Result<bool> {
    if cx.declares("keepdim") { cx.flag("keepdim") } else { Ok(false) }
}

/// A reduction in the operand's own type.
fn plain(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.tensor("self")?;
    let (axes, keep) = (axes(cx, x)?, keeps(cx)?);
    Ok(vec![cx.reduce(op, x, &axes, keep)?])
}

fn both_ends(cx: &mut Cx) -> Lowered {
    let mut out = plain(cx, ReduceOp::Min)?;
    out.extend(plain(cx, ReduceOp::Max)?);
    Ok(out)
}

/// A reduction in the result's type.
fn total(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.tensor("self")?;
    let (axes, keep, dtype) = (axes(cx, x)?, keeps(cx)?, cx.result_dtype(0)?);
    let x = cx.converted(x, dtype)?;
    // The sum of bools is a logical or, the product a logical and.
    let op = match (dtype, op) {
        (DType::Bool, ReduceOp::Sum) => ReduceOp::Max,
        (DType::Bool, _) => ReduceOp::Min,
        _ => op,
    };
    Ok(vec![cx.reduce(op, x, &axes, keep)?])
}

fn of_truth(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.tensor("self")?;
    let (axes, keep, dtype) = (axes(cx, x)?, keeps(cx)?, cx.result_dtype(0)?);
    let x = truth(cx, x)?;
    let y = cx.reduce(op, x, &axes, keep)?;
    // The result for u8 operands is u8.
    Ok(vec![cx.converted(y, dtype)?])
}

fn count(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axes = axes(cx, x)?;
    let x = truth(cx, x)?;
    let x = cx.converted(x, DType::I64)?;
    Ok(vec![cx.reduce(ReduceOp::Sum, x, &axes, false)?])
}

fn mean(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (axes, keep, dtype) = (axes(cx, x)?, keeps(cx)?, cx.result_dtype(0)?);
    let x = cx.converted(x, dtype)?;
    let m = cx.mean(x, &axes)?;
    Ok(vec![if keep { m } else { cx.squeeze(m, &axes)? }])
}

/// The position of an extremum along one axis, or in the flattened tensor.
fn position(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.tensor("self")?;
    let (keep, rank) = (keeps(cx)?, cx.rank(x));
    match cx.opt_int("dim")? {
        Some(_) if rank == 0 => Ok(vec![cx.int_const(DType::I64, 0)]),
        Some(_) => {
            let axis = cx.axis("dim", rank)?;
            Ok(vec![arg::extreme(cx, op, x, axis, false, keep)?])
        }
        None => {
            let shape = cx.shape(x);
            let flat = cx.reshape(x, vec![shape.iter().product()])?;
            let y = arg::extreme(cx, op, flat, 0, false, keep)?;
            Ok(vec![if keep { cx.reshape(y, vec![Dim::ONE; rank])? } else { y }])
        }
    }
}

fn with_position(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.tensor("self")?;
    let keep = keeps(cx)?;
    if cx.rank(x) == 0 {
        return Ok(vec![x, cx.int_const(DType::I64, 0)]);
    }
    let axis = cx.axis("dim", cx.rank(x))?;
    let y = cx.reduce(op, x, &[axis], keep)?;
    Ok(vec![y, arg::extreme(cx, op, x, axis, false, keep)?])
}

fn pairwise(cx: &mut Cx, op: BinaryOp) -> Lowered {
    let [a, b] = cx.promoted(["self", "other"])?;
    Ok(vec![cx.binary(op, a, b)?])
}

fn log_sum_exp(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.as_float(x)?;
    let (axes, keep) = (axes(cx, x)?, keeps(cx)?);
    Ok(vec![reduce::reduce(cx, reduce::Reduction::LogSumExp, x, Some(&axes), keep)?])
}

/// `(Σ |x|^p)^(1/p)`, and its limits for p of 0 and ±∞.
fn norm(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let p = match (cx.declares("ord"), cx.declares("p")) {
        (true, _) => cx.float("ord")?,
        (_, true) => cx.opt_float("p")?.unwrap_or(2.0),
        _ => 2.0,
    };
    let (axes, keep, dtype) = (axes(cx, x)?, keeps(cx)?, cx.result_dtype(0)?);
    let x = cx.converted(x, dtype)?;
    Ok(vec![norm_along(cx, x, p, &axes, keep)?])
}

/// The norm of a float tensor along axes.
pub fn norm_along(cx: &mut Lowering, x: Value, p: f64, axes: &[usize], keep: bool) -> Result {
    let dtype = cx.dtype(x);
    let x = cx.unary(UnaryOp::Abs, x)?;
    Ok(if p.is_infinite() {
        let op = if p > 0.0 { ReduceOp::Max } else { ReduceOp::Min };
        cx.reduce(op, x, axes, keep)?
    } else if p == 0.0 {
        let x = truth(cx, x)?;
        let x = cx.cast(x, dtype)?;
        cx.reduce(ReduceOp::Sum, x, axes, keep)?
    } else if p == 1.0 {
        cx.reduce(ReduceOp::Sum, x, axes, keep)?
    } else if p == 2.0 {
        let x = cx.binary(BinaryOp::Mul, x, x)?;
        let y = cx.reduce(ReduceOp::Sum, x, axes, keep)?;
        cx.unary(UnaryOp::Sqrt, y)?
    } else {
        let x = cx.binary_scalar(BinaryOp::Pow, x, p)?;
        let y = cx.reduce(ReduceOp::Sum, x, axes, keep)?;
        cx.binary_scalar(BinaryOp::Pow, y, 1.0 / p)?
    })
}

/// The variance, with the divisor `n - correction`, and the mean; both keep their axes.
pub fn moments(cx: &mut Cx, x: Value, axes: &[usize], correction: f64) -> Result<[Value; 2]> {
    let dtype = cx.dtype(x);
    let mean = cx.mean(x, axes)?;
    let d = cx.binary(BinaryOp::Sub, x, mean)?;
    let d = cx.binary(BinaryOp::Mul, d, d)?;
    let sum = cx.reduce(ReduceOp::Sum, d, axes, true)?;
    let n: Dim = axes.iter().map(|a| cx.shape(x)[*a].clone()).product();
    let n = cx.dim_scalar(&n, dtype)?;
    let n = cx.binary_scalar(BinaryOp::Sub, n, correction)?;
    let n = cx.binary_scalar(BinaryOp::Max, n, 0.0)?;
    Ok([cx.binary(BinaryOp::Div, sum, n)?, mean])
}

fn spread(cx: &mut Cx) -> Result<(Vec<usize>, bool, [Value; 2])> {
    let x = cx.tensor("self")?;
    let (axes, keep) = (axes(cx, x)?, keeps(cx)?);
    let correction = match cx.declares("unbiased") {
        true => f64::from(u8::from(cx.flag("unbiased")?)),
        false => cx.opt_float("correction")?.unwrap_or(1.0),
    };
    let both = moments(cx, x, &axes, correction)?;
    Ok((axes, keep, both))
}

fn variance(cx: &mut Cx) -> Lowered {
    let (axes, keep, [v, _]) = spread(cx)?;
    Ok(vec![if keep { v } else { cx.squeeze(v, &axes)? }])
}

fn deviation(cx: &mut Cx) -> Lowered {
    let v = variance(cx)?[0];
    Ok(vec![cx.unary(UnaryOp::Sqrt, v)?])
}

fn with_mean(cx: &mut Cx, root: bool) -> Lowered {
    let (axes, keep, [mut v, mut m]) = spread(cx)?;
    if root {
        v = cx.unary(UnaryOp::Sqrt, v)?;
    }
    if !keep {
        (v, m) = (cx.squeeze(v, &axes)?, cx.squeeze(m, &axes)?);
    }
    Ok(vec![v, m])
}

/// The elements in the result's type, and a copy of them with NaN replaced by 0.
fn numbers(cx: &mut Cx) -> Result<(Value, Value)> {
    let (x, dtype) = (cx.tensor("self")?, cx.result_dtype(0)?);
    let x = cx.converted(x, dtype)?;
    if !dtype.is_float() {
        return Ok((x, x));
    }
    let (none, zero) = (cx.unary(UnaryOp::IsNan, x)?, cx.scalar(dtype, 0.0));
    Ok((x, cx.select(none, zero, x)?))
}

fn sum_of_numbers(cx: &mut Cx) -> Lowered {
    let (x, some) = numbers(cx)?;
    let (axes, keep) = (axes(cx, x)?, keeps(cx)?);
    Ok(vec![cx.reduce(ReduceOp::Sum, some, &axes, keep)?])
}

/// The mean of the elements that are not NaN.
fn mean_of_numbers(cx: &mut Cx) -> Lowered {
    let (x, some) = numbers(cx)?;
    let (axes, keep, dtype) = (axes(cx, x)?, keeps(cx)?, cx.dtype(x));
    let sum = cx.reduce(ReduceOp::Sum, some, &axes, keep)?;
    let is = cx.binary(BinaryOp::Eq, x, x)?;
    let is = cx.converted(is, DType::I32)?;
    let n = cx.reduce(ReduceOp::Sum, is, &axes, keep)?;
    let n = cx.converted(n, dtype)?;
    Ok(vec![cx.binary(BinaryOp::Div, sum, n)?])
}
