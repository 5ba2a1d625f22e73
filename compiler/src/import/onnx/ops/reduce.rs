//! Reductions along axes.

use crate::import::onnx::prelude::*;
use crate::lower::reduce::{Reduction as R, reduce};
use wgfc_ir::ReduceOp;

/// A reduction. Axes are an attribute in older opsets and an input later (ReduceSum from 13 on, the others from 18 on). Without axes it
/// is over all axes, unless `noop_with_empty_axes` is set.
fn reduced(cx: &mut Cx, reduction: R) -> Lowered {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let given = cx.axes_input_or_attr(1, rank)?.filter(|a| !a.is_empty());
    let noop = given.is_none() && cx.flag("noop_with_empty_axes", false)?;
    let axes = if noop { None } else { Some(given.unwrap_or_else(|| (0..rank).collect())) };
    let keepdims = cx.flag("keepdims", true)?;
    Ok(vec![reduce(cx, reduction, x, axes.as_deref(), keepdims)?])
}

/// Reductions.
pub const OPS: &[OpDef] = &[
    OpDef::new("ReduceL1", &[1, 11, 13, 18], |cx| reduced(cx, R::L1)).cases(&["test_reduce_l1_"]),
    OpDef::new("ReduceL2", &[1, 11, 13, 18], |cx| reduced(cx, R::L2)).cases(&["test_reduce_l2_"]),
    OpDef::new("ReduceLogSum", &[1, 11, 13, 18, 28], |cx| reduced(cx, R::LogSum)).cases(&[
        "test_reduce_log_sum_asc_",
        "test_reduce_log_sum_d",
        "test_reduce_log_sum_empty",
        "test_reduce_log_sum_neg",
    ]),
    OpDef::new("ReduceLogSumExp", &[1, 11, 13, 18, 28], |cx| reduced(cx, R::LogSumExp))
        .cases(&["test_reduce_log_sum_exp_"]),
    OpDef::new("ReduceMax", &[1, 11, 12, 13, 18, 20], |cx| reduced(cx, R::Plain(ReduceOp::Max)))
        .cases(&["test_reduce_max_"]),
    OpDef::new("ReduceMean", &[1, 11, 13, 18], |cx| reduced(cx, R::Mean)).cases(&["test_reduce_mean_"]),
    OpDef::new("ReduceMin", &[1, 11, 12, 13, 18, 20], |cx| reduced(cx, R::Plain(ReduceOp::Min)))
        .cases(&["test_reduce_min_"]),
    OpDef::new("ReduceProd", &[1, 11, 13, 18], |cx| reduced(cx, R::Plain(ReduceOp::Prod)))
        .cases(&["test_reduce_prod_"]),
    OpDef::new("ReduceSum", &[1, 11, 13], |cx| reduced(cx, R::Plain(ReduceOp::Sum))).cases(&[
        "test_reduce_sum_default",
        "test_reduce_sum_do",
        "test_reduce_sum_empty",
        "test_reduce_sum_keep",
        "test_reduce_sum_negative",
    ]),
    OpDef::new("ReduceSumSquare", &[1, 11, 13, 18], |cx| reduced(cx, R::SumSquare))
        .cases(&["test_reduce_sum_square_"]),
];
