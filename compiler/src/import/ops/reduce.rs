//! Reductions along axes.

use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::{ReduceOp, Value};

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

/// Reductions.
pub const OPS: &[OpDef] = &[
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
];
