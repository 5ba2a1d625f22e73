//! Resizing as interpolation along one axis after another.

use super::interpolate::{Axis, Coordinates, Mode, Resize, dynamic, fixed};
use super::{Lowering, OpError, Result};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp as B, DType, Dim, UnaryOp as U, Value};

/// The maximum size of an axis' table of neighbours that is made while compiling; larger ones are computed at run
/// time.
const MAX_TABLE: f64 = (1 << 20) as f64;

/// `x` with some axes resized, one after another.
pub fn resize(cx: &mut Lowering, x: Value, r: &Resize, axes: &[Axis]) -> Result {
    let dtype = cx.dtype(x);
    let copies = matches!(r.mode, Mode::Nearest(_)) && r.coordinates != Coordinates::TfCropAndResize;
    let wide = if copies || dtype == DType::F64 { dtype } else { DType::F32 };
    let mut y = cx.cast(x, wide)?;
    for a in axes {
        let whole = a.roi == [0.0, 1.0] || r.coordinates != Coordinates::TfCropAndResize;
        if a.from == a.to && a.scale.is_none_or(|s| (s - 1.0).abs() < 1e-9) && whole {
            continue;
        }
        y = match (a.from.as_const(), a.to.as_const()) {
            (Some(from), Some(to)) if from > 0 && to > 0 && r.table_size(a, from, to) <= MAX_TABLE => {
                let t = r.table(a, from, to);
                fixed(cx, r, y, a, &t)?
            }
            (Some(from), Some(_)) if from <= 0 => {
                return Err(OpError::model(format!("axis {} is empty", a.axis)).operand(x));
            }
            _ => dynamic(cx, r, y, a)?,
        };
    }
    if dtype.is_float() || dtype == wide {
        return Ok(cx.cast(y, dtype)?);
    }
    if dtype.bits() <= 16 {
        return super::quantize::saturated(cx, y, None, dtype);
    }
    let y = cx.unary(U::Round, y)?;
    Ok(cx.cast(y, dtype)?)
}

/// Resizes bytes as torch does: axis by axis from the last, with 16-bit fixed-point weights, rounding to bytes after
/// each axis.
pub fn resize_bytes(cx: &mut Lowering, x: Value, r: &Resize, axes: &[Axis]) -> Result {
    let mut y = x;
    for a in axes.iter().rev() {
        let table = match (a.from.as_const(), a.to.as_const()) {
            (Some(from), Some(to)) if from > 0 && to > 0 && r.table_size(a, from, to) <= MAX_TABLE => {
                r.table(a, from, to)
            }
            _ => {
                let e = format!(
                    "of bytes needs known, moderate extents, and axis {} has {} and becomes {}",
                    a.axis, a.from, a.to
                );
                return Err(OpError::symbolic(e));
            }
        };
        let (table, bits) = table.in_words();
        let wide = cx.cast(y, DType::I32)?;
        let sum = fixed(cx, r, wide, a, &table)?;
        let rounded = cx.binary_scalar(B::Add, sum, f64::from((1 << bits) >> 1))?;
        let above = cx.binary_scalar(B::Max, rounded, 0.0)?;
        let bits = cx.int(DType::I32, i64::from(bits));
        let shifted = cx.binary(B::Shr, above, bits)?;
        let byte = cx.binary_scalar(B::Min, shifted, 255.0)?;
        y = cx.cast(byte, DType::U8)?;
    }
    Ok(y)
}

/// `extent · scale`, rounded down.
pub fn scaled(extent: &Dim, scale: f64) -> Result<Dim> {
    if let Some(e) = extent.as_const() {
        return Ok(Dim::from((e as f64 * scale).floor() as i64));
    }
    let found = (1..=1024i64).find(|q| ((scale * *q as f64).round() - scale * *q as f64).abs() < 1e-6);
    match found {
        Some(q) => Ok((extent * (scale * q as f64).round() as i64).div(&q.into(), &[])),
        None => Err(OpError::symbolic(format!("dimension {extent} times {scale}"))),
    }
}

/// Axes resized by these scale factors.
pub fn by_scales(cx: &Lowering, x: Value, axes: &[usize], scales: &[f64]) -> Result<Vec<Axis>> {
    let shape = cx.shape(x);
    axes.iter()
        .zip(scales)
        .map(|(axis, s)| {
            let from = shape[*axis].clone();
            Ok(Axis { axis: *axis, to: scaled(&from, *s)?, from, scale: Some(*s), roi: [0.0, 1.0] })
        })
        .collect()
}

/// The treatment of the aspect ratio if sizes are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// Each axis is scaled by its own factor.
    Stretch,
    /// All axes are scaled by the smallest factor, so that none exceeds its size.
    NotLarger,
    /// All axes are scaled by the largest factor, so that none is below its size.
    NotSmaller,
}

/// Axes resized to these extents.
pub fn by_sizes(cx: &Lowering, x: Value, axes: &[usize], sizes: &[Dim], aspect: Aspect) -> Result<Vec<Axis>> {
    let shape = cx.shape(x);
    if let Some(bad) = sizes.iter().find(|s| s.as_const().is_some_and(|s| s < 0)) {
        return Err(OpError::model(format!("extent {bad}")).param("sizes"));
    }
    let common = match aspect {
        Aspect::Stretch => None,
        _ => {
            let mut all = vec![];
            for (a, s) in axes.iter().zip(sizes) {
                match (shape[*a].as_const(), s.as_const()) {
                    (Some(n), Some(s)) if n > 0 => all.push(s as f64 / n as f64),
                    _ => {
                        let e = format!("needs known extents, and the input has {}", show(&shape));
                        return Err(OpError::symbolic(e).param("keep_aspect_ratio_policy"));
                    }
                }
            }
            let pick = if aspect == Aspect::NotLarger { f64::min } else { f64::max };
            all.into_iter().reduce(pick)
        }
    };
    Ok(axes
        .iter()
        .zip(sizes)
        .map(|(axis, to)| {
            let from = shape[*axis].clone();
            let to = match (common, from.as_const()) {
                (Some(s), Some(n)) => Dim::from((s * n as f64 + 0.5).floor() as i64),
                _ => to.clone(),
            };
            Axis { axis: *axis, from, to, scale: common, roi: [0.0, 1.0] }
        })
        .collect())
}
