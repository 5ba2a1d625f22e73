//! Pooling.

use super::window::{kernel, window};
use crate::import::onnx::prelude::*;
use crate::lower::pool::{self, Order};
use crate::lower::window::Windows;
use wgfc_ir::{ReduceOp, Value};

/// The windows over `x` that the attributes describe.
pub(super) fn windows(cx: &Cx, x: Value) -> Result<Windows> {
    // The rank is checked first, as the length of the attributes' lists depends on it.
    let n = pool::spatial_axes(cx, x)?.len();
    let kernel = kernel(cx)?
        .ok_or_else(|| OpError::model("attribute `kernel_shape` is required").attribute("kernel_shape"))?;
    pool::over(cx, x, &kernel, &window(cx, n)?)
}

fn max_pool(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let windows = windows(cx, x)?;
    let order = if cx.flag("storage_order", false)? { Order::ColumnMajor } else { Order::RowMajor };
    let wanted = cx.wants(1).then_some(order);
    let (y, places) = pool::max(cx, x, &windows, wanted)?;
    Ok([y].into_iter().chain(places).collect())
}

fn average_pool(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![average(cx, x)?])
}

/// The mean of each window over `x`.
pub(super) fn average(cx: &mut Cx, x: Value) -> Result<Value> {
    let windows = windows(cx, x)?;
    let with_padding = cx.flag("count_include_pad", false)?;
    pool::average(cx, x, &windows, with_padding)
}

fn global_average(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axes = pool::spatial_axes(cx, x)?;
    Ok(vec![cx.mean(x, &axes)?])
}

fn global_max(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axes = pool::spatial_axes(cx, x)?;
    Ok(vec![cx.reduce(ReduceOp::Max, x, &axes, true)?])
}

/// Pools.
pub const OPS: &[OpDef] = &[
    OpDef::new("AveragePool", &[1, 7, 10, 11, 19, 22], average_pool).cases(&["test_averagepool_"]),
    OpDef::new("GlobalAveragePool", &[1, 22], global_average).cases(&["test_globalaveragepool"]),
    OpDef::new("GlobalMaxPool", &[1, 22], global_max).cases(&["test_globalmaxpool"]),
    OpDef::new("MaxPool", &[1, 8, 10, 11, 12, 22], max_pool).cases(&["test_maxpool_"]),
];
