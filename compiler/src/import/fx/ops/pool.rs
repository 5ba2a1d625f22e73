//! Pooling.

use super::super::prelude::*;
use crate::lower::pool::{self, Adaptive};
use crate::lower::window::{Padding, Window, Windows};
use wgfc_ir::{ReduceOp, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._adaptive_avg_pool2d.default", |cx| adaptive_average(cx, 2)),
    OpDef::new("aten._adaptive_avg_pool3d.default", |cx| adaptive_average(cx, 3)),
    OpDef::new("aten.adaptive_avg_pool1d.default", |cx| adaptive_average(cx, 1)),
    OpDef::new("aten.adaptive_avg_pool2d.default", |cx| adaptive_average(cx, 2)),
    OpDef::new("aten.adaptive_avg_pool3d.default", |cx| adaptive_average(cx, 3)),
    OpDef::new("aten.adaptive_max_pool1d.default", |cx| adaptive_max(cx, 1)),
    OpDef::new("aten.adaptive_max_pool2d.default", |cx| adaptive_max(cx, 2)),
    OpDef::new("aten.adaptive_max_pool3d.default", |cx| adaptive_max(cx, 3)),
    OpDef::new("aten.avg_pool1d.default", |cx| average(cx, 1)),
    OpDef::new("aten.avg_pool2d.default", |cx| average(cx, 2)),
    OpDef::new("aten.avg_pool3d.default", |cx| average(cx, 3)),
    OpDef::new("aten.max_pool1d.default", |cx| max(cx, 1)),
    OpDef::new("aten.max_pool1d_with_indices.default", |cx| max(cx, 1)),
    OpDef::new("aten.max_pool2d.default", |cx| max(cx, 2)),
    OpDef::new("aten.max_pool2d_with_indices.default", |cx| max(cx, 2)),
    OpDef::new("aten.max_pool3d.default", |cx| max(cx, 3)),
    OpDef::new("aten.max_pool3d_with_indices.default", |cx| max(cx, 3)),
];

/// The operand with a batch axis, and whether one was added.
fn batched(cx: &mut Cx, n: usize) -> Result<(Value, bool)> {
    let x = cx.tensor("self")?;
    let alone = cx.rank(x) == n + 1;
    Ok((if alone { cx.unsqueeze(x, &[0])? } else { x }, alone))
}

fn unbatched(cx: &mut Cx, v: Value, alone: bool) -> Result {
    if alone { Ok(cx.squeeze(v, &[0])?) } else { Ok(v) }
}

fn windows(cx: &mut Cx, x: Value, n: usize) -> Result<Windows> {
    let kernel = cx.ints_of("kernel_size", n)?;
    let strides = if cx.ints("stride")?.is_empty() { kernel.clone() } else { cx.ints_of("stride", n)? };
    let dilations = if cx.declares("dilation") { cx.ints_of("dilation", n)? } else { vec![1; n] };
    let around = cx.ints_of("padding", n)?;
    let padding = Padding::Explicit([around.clone(), around].concat());
    let kernel: Vec<Dim> = kernel.into_iter().map(Dim::from).collect();
    pool::over(cx, x, &kernel, &Window { strides, dilations, padding, ceil: cx.flag("ceil_mode")? })
}

fn average(cx: &mut Cx, n: usize) -> Lowered {
    let (x, alone) = batched(cx, n)?;
    let w = windows(cx, x, n)?;
    let divisor = if cx.declares("divisor_override") { cx.opt_int("divisor_override")? } else { None };
    let y = match divisor {
        None => {
            let with_padding = cx.flag("count_include_pad")?;
            pool::average(cx, x, &w, with_padding)?
        }
        Some(d) => {
            let (dtype, x) = (cx.dtype(x), cx.widened(x)?);
            let zero = Scalar::from_f64(cx.dtype(x), 0.0);
            let (windows, _) = cx.unfold_inside(x, &w.axes(), zero)?;
            let axes: Vec<usize> = (2 + n..2 + 2 * n).collect();
            let sum = cx.reduce(ReduceOp::Sum, windows, &axes, false)?;
            let y = cx.binary_scalar(BinaryOp::Div, sum, d as f64)?;
            cx.cast(y, dtype)?
        }
    };
    Ok(vec![unbatched(cx, y, alone)?])
}

/// The maxima, and their flat positions in the plane if they are a result.
fn max(cx: &mut Cx, n: usize) -> Lowered {
    let (x, alone) = batched(cx, n)?;
    let w = windows(cx, x, n)?;
    if cx.result_count() < 2 {
        let (y, _) = pool::max(cx, x, &w, None)?;
        return Ok(vec![unbatched(cx, y, alone)?]);
    }
    let (y, places) = pool::max(cx, x, &w, Some(pool::Order::RowMajor))?;
    let places = places.ok_or_else(|| OpError::internal("a pool without places"))?;
    let plane: Dim = cx.shape(x)[2..].iter().product();
    let plane = cx.dim_scalar(&plane, DType::I64)?;
    let places = cx.binary(BinaryOp::Mod, places, plane)?;
    Ok(vec![unbatched(cx, y, alone)?, unbatched(cx, places, alone)?])
}

fn adaptive_average(cx: &mut Cx, n: usize) -> Lowered {
    let (x, alone) = batched(cx, n)?;
    let out = extents(cx, x, n)?;
    let y = pool::adaptive(cx, x, &out, Adaptive::Average)?.0;
    Ok(vec![unbatched(cx, y, alone)?])
}

fn adaptive_max(cx: &mut Cx, n: usize) -> Lowered {
    let (x, alone) = batched(cx, n)?;
    let out = extents(cx, x, n)?;
    let (y, places) = pool::adaptive(cx, x, &out, Adaptive::Max)?;
    let mut results = vec![unbatched(cx, y, alone)?];
    if let Some(p) = places {
        results.push(unbatched(cx, p, alone)?);
    }
    Ok(results)
}

/// The spatial extents of the result, by default those of the operand.
fn extents(cx: &Cx, x: Value, n: usize) -> Result<Vec<Dim>> {
    let mut out = cx.sizes("output_size")?;
    if out.len() == 1 && n > 1 {
        out = vec![out[0].clone(); n];
    }
    let spatial = &cx.shape(x)[2..];
    for (o, d) in out.iter_mut().zip(spatial) {
        if o.is(-1) {
            *o = d.clone();
        }
    }
    Ok(out)
}
