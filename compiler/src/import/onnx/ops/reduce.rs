//! Reductions along axes.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp, Body, Class, DType, ReduceOp, UnaryOp, Value};

/// What every reduction is told.
pub(super) struct Reduction {
    /// What is reduced.
    pub x: Value,
    /// Along which axes (sorted); all when none are given.
    pub axes: Vec<usize>,
    /// Whether they stay with extent 1.
    pub keepdims: bool,
    /// Nothing is to be reduced (`noop_with_empty_axes`).
    pub noop: bool,
}

/// Axes are an attribute at first, later an input (ReduceSum from 13 on, the others from 18 on).
pub(super) fn reduction(cx: &mut Cx) -> Result<Reduction, OpError> {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let given = cx.axes_input_or_attr(1, rank)?.filter(|a| !a.is_empty());
    let noop = given.is_none() && cx.flag("noop_with_empty_axes", false)?;
    let axes = given.unwrap_or_else(|| (0..rank).collect());
    Ok(Reduction { x, axes, keepdims: cx.flag("keepdims", true)?, noop })
}

fn plain(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let r = reduction(cx)?;
    if r.noop {
        return Ok(vec![r.x]);
    }
    Ok(vec![cx.reduce(op, r.x, &r.axes, r.keepdims)?])
}

fn mean(cx: &mut Cx) -> Lowered {
    let r = reduction(cx)?;
    if r.noop {
        return Ok(vec![r.x]);
    }
    let m = cx.mean(r.x, &r.axes)?;
    Ok(vec![if r.keepdims { m } else { cx.squeeze(m, &r.axes)? }])
}

/// `after(Σ before(x))`; where `noop_with_empty_axes` says so, of every element alone.
fn composed(
    cx: &mut Cx,
    before: impl Fn(&mut Cx, Value) -> Result<Value, OpError>,
    after: impl Fn(&mut Cx, Value) -> Result<Value, OpError>,
) -> Lowered {
    let r = reduction(cx)?;
    let x = before(cx, r.x)?;
    let sum = if r.noop { x } else { cx.reduce(ReduceOp::Sum, x, &r.axes, r.keepdims)? };
    Ok(vec![after(cx, sum)?])
}

fn same(_: &mut Cx, x: Value) -> Result<Value, OpError> {
    Ok(x)
}

fn magnitude(cx: &mut Cx, x: Value) -> Result<Value, OpError> {
    Ok(if cx.dtype(x).is_float() || cx.dtype(x).class() == Class::Int {
        cx.unary(UnaryOp::Abs, x)?
    } else {
        x
    })
}

fn square(cx: &mut Cx, x: Value) -> Result<Value, OpError> {
    Ok(cx.binary(BinaryOp::Mul, x, x)?)
}

/// A function of floats; integers are converted, and the result truncated.
fn of_floats(cx: &mut Cx, x: Value, op: UnaryOp) -> Result<Value, OpError> {
    let dtype = cx.dtype(x);
    let x = if dtype.is_float() { x } else { cx.cast(x, DType::F32)? };
    let y = cx.unary(op, x)?;
    Ok(cx.cast(y, dtype)?)
}

/// `m + ln Σ exp(x − m)` with the largest `m`, or 0 where that is infinite.
fn log_sum_exp(cx: &mut Cx) -> Lowered {
    let r = reduction(cx)?;
    if r.noop {
        return Ok(vec![r.x]);
    }
    let dtype = cx.dtype(r.x);
    let x = if dtype.is_float() { r.x } else { cx.cast(r.x, DType::F32)? };
    let largest = cx.reduce(ReduceOp::Max, x, &r.axes, true)?;
    let mut f = Body::default();
    let m = f.arg(0);
    let (infinite, zero) = (f.unary(UnaryOp::IsInf, m), f.number(cx.dtype(x), 0.0));
    f.select(infinite, zero, m);
    let m = cx.map(f.0, &[largest])?;
    let d = cx.binary(BinaryOp::Sub, x, m)?;
    let e = cx.unary(UnaryOp::Exp, d)?;
    let sum = cx.reduce(ReduceOp::Sum, e, &r.axes, true)?;
    let log = cx.unary(UnaryOp::Log, sum)?;
    let y = cx.binary(BinaryOp::Add, log, m)?;
    let y = if r.keepdims { y } else { cx.squeeze(y, &r.axes)? };
    Ok(vec![cx.cast(y, dtype)?])
}

/// Reductions.
pub const OPS: &[OpDef] = &[
    OpDef::new("ReduceL1", &[1, 11, 13, 18], |cx| composed(cx, magnitude, same)).cases(&["test_reduce_l1_"]),
    OpDef::new("ReduceL2", &[1, 11, 13, 18], |cx| {
        composed(cx, square, |cx, x| of_floats(cx, x, UnaryOp::Sqrt))
    })
    .cases(&["test_reduce_l2_"]),
    OpDef::new("ReduceLogSum", &[1, 11, 13, 18, 28], |cx| {
        composed(cx, same, |cx, x| of_floats(cx, x, UnaryOp::Log))
    })
    .cases(&[
        "test_reduce_log_sum_asc_",
        "test_reduce_log_sum_d",
        "test_reduce_log_sum_empty",
        "test_reduce_log_sum_neg",
    ]),
    OpDef::new("ReduceLogSumExp", &[1, 11, 13, 18, 28], log_sum_exp).cases(&["test_reduce_log_sum_exp_"]),
    OpDef::new("ReduceMax", &[1, 11, 12, 13, 18, 20], |cx| plain(cx, ReduceOp::Max))
        .cases(&["test_reduce_max_"]),
    OpDef::new("ReduceMean", &[1, 11, 13, 18], mean).cases(&["test_reduce_mean_"]),
    OpDef::new("ReduceMin", &[1, 11, 12, 13, 18, 20], |cx| plain(cx, ReduceOp::Min))
        .cases(&["test_reduce_min_"]),
    OpDef::new("ReduceProd", &[1, 11, 13, 18], |cx| plain(cx, ReduceOp::Prod)).cases(&["test_reduce_prod_"]),
    OpDef::new("ReduceSum", &[1, 11, 13], |cx| plain(cx, ReduceOp::Sum)).cases(&[
        "test_reduce_sum_default",
        "test_reduce_sum_do",
        "test_reduce_sum_empty",
        "test_reduce_sum_keep",
        "test_reduce_sum_negative",
    ]),
    OpDef::new("ReduceSumSquare", &[1, 11, 13, 18], |cx| composed(cx, square, same))
        .cases(&["test_reduce_sum_square_"]),
];
