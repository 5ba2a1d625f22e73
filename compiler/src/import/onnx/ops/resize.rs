//! `Resize` and `Upsample`: interpolation along one axis after another.

use super::interpolate::{Axis, Coordinates, Mode, Nearest, Resize, dynamic, fixed};
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::show;
use wgfc_ir::{DType, Dim, UnaryOp as U, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

/// Neighbours that may be listed for one axis while compiling; a run finds those of longer ones.
const MAX_TABLE: f64 = (1 << 20) as f64;

fn apply(cx: &mut Cx, r: &Resize, axes: &[Axis]) -> Lowered {
    let x = cx.input(0)?;
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
                return Err(cx.at_input(0, OpError::model(format!("axis {} is empty", a.axis))));
            }
            _ => dynamic(cx, r, y, a)?,
        };
    }
    if dtype.is_float() || dtype == wide {
        return Ok(vec![cx.cast(y, dtype)?]);
    }
    if dtype.bits() <= 16 {
        return Ok(vec![super::linear::saturated(cx, y, None, dtype)?]);
    }
    let y = cx.unary(U::Round, y)?;
    Ok(vec![cx.cast(y, dtype)?])
}

/// `extent · scale`, rounded down.
fn scaled(extent: &Dim, scale: f64) -> Result<Dim> {
    if let Some(e) = extent.as_const() {
        return Ok(Dim::from((e as f64 * scale).floor() as i64));
    }
    let found = (1..=1024i64).find(|q| ((scale * *q as f64).round() - scale * *q as f64).abs() < 1e-6);
    match found {
        Some(q) => Ok((extent * (scale * q as f64).round() as i64).div(&q.into(), &[])),
        None => Err(OpError::unsupported(format!("dimension {extent} times {scale}"))
            .help("fix the dimension with --dim NAME=VALUE")),
    }
}

/// The scales of input or attribute `what`: one for each of `n` axes, positive.
fn checked(scales: Vec<f64>, n: usize) -> Result<Vec<f64>> {
    if scales.len() != n {
        return Err(OpError::model(format!("{} scales for {n} axes", scales.len())));
    }
    match scales.iter().find(|s| !(**s > 0.0 && **s < 1e6)) {
        Some(s) => Err(OpError::model(format!("scale {s}"))),
        None => Ok(scales),
    }
}

/// Whether input `i` is there and has elements.
fn given(cx: &Cx, i: usize) -> bool {
    cx.opt(i).is_some_and(|v| !cx.shape(v).iter().any(|d| d.is(0)))
}

fn by_scales(cx: &Cx, x: Value, axes: &[usize], scales: &[f64]) -> Result<Vec<Axis>> {
    let shape = cx.shape(x);
    axes.iter()
        .zip(scales)
        .map(|(axis, s)| {
            let from = shape[*axis].clone();
            Ok(Axis { axis: *axis, to: scaled(&from, *s)?, from, scale: Some(*s), roi: [0.0, 1.0] })
        })
        .collect()
}

fn upsample(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axes: Vec<usize> = (0..cx.rank(x)).collect();
    let scales = if cx.since < 9 {
        let s = cx.floats("scales")?;
        let s = s.ok_or_else(|| OpError::model("attribute `scales` is required").attribute("scales"))?;
        s.iter().map(|s| f64::from(*s)).collect()
    } else {
        cx.const_numbers(1)?
    };
    let scales = checked(scales, axes.len())?;
    let mode = match cx.string("mode", "nearest")?.as_str() {
        "nearest" => Mode::Nearest(Nearest::Floor),
        "linear" | "bilinear" => Mode::Linear,
        other => return Err(OpError::model(format!("`{other}`")).attribute("mode")),
    };
    let r = Resize {
        mode,
        coordinates: Coordinates::Asymmetric,
        antialias: false,
        exclude_outside: false,
        extrapolation: 0.0,
    };
    let axes = by_scales(cx, x, &axes, &scales)?;
    apply(cx, &r, &axes)
}

fn resize(cx: &mut Cx) -> Lowered {
    if cx.since < 11 {
        return upsample(cx);
    }
    let x = cx.input(0)?;
    let r = attributes(cx)?;
    let (shape, rank) = (cx.shape(x), cx.rank(x));
    let axes: Vec<usize> = match cx.ints("axes")?.filter(|_| cx.since >= 18) {
        Some(v) => {
            cx.axes(&v, rank).map_err(|e| e.attribute("axes"))?;
            v.iter().map(|a| cx.axis(*a, rank)).collect::<Result<_>>()?
        }
        None => (0..rank).collect(),
    };
    let mut list = if given(cx, 3) {
        if given(cx, 2) {
            return Err(OpError::model("both scales and sizes are given"));
        }
        by_sizes(cx, &shape, &axes)?
    } else if given(cx, 2) {
        let scales = cx.const_numbers(2)?;
        let scales = checked(scales, axes.len()).map_err(|e| cx.at_input(2, e))?;
        by_scales(cx, x, &axes, &scales)?
    } else {
        return Err(OpError::model("neither scales nor sizes are given"));
    };
    if r.coordinates == Coordinates::TfCropAndResize {
        let roi = cx.const_numbers(1)?;
        if roi.len() != 2 * axes.len() {
            let e = OpError::model(format!("{} bounds for {} axes", roi.len(), axes.len()));
            return Err(cx.at_input(1, e));
        }
        for (i, a) in list.iter_mut().enumerate() {
            a.roi = [roi[i], roi[axes.len() + i]];
        }
    }
    apply(cx, &r, &list)
}

fn attributes(cx: &Cx) -> Result<Resize> {
    let wrong = |name: &str, v: &str| Err(OpError::model(format!("`{v}`")).attribute(name));
    let nearest = match cx.string("nearest_mode", "round_prefer_floor")?.as_str() {
        "round_prefer_floor" => Nearest::RoundPreferFloor,
        "round_prefer_ceil" => Nearest::RoundPreferCeil,
        "floor" => Nearest::Floor,
        "ceil" => Nearest::Ceil,
        other => return wrong("nearest_mode", other),
    };
    let mode = match cx.string("mode", "nearest")?.as_str() {
        "nearest" => Mode::Nearest(nearest),
        "linear" => Mode::Linear,
        "cubic" => Mode::Cubic(cx.float("cubic_coeff_a", -0.75)?.into()),
        other => return wrong("mode", other),
    };
    let coordinates = match cx.string("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" if cx.since >= 19 => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        "tf_crop_and_resize" => Coordinates::TfCropAndResize,
        "tf_half_pixel_for_nn" if cx.since < 13 => Coordinates::TfHalfPixelForNn,
        other => return wrong("coordinate_transformation_mode", other),
    };
    let antialias = cx.since >= 18 && cx.flag("antialias", false)?;
    if antialias && matches!(mode, Mode::Nearest(_)) {
        return Err(OpError::model("has no meaning for mode `nearest`").attribute("antialias"));
    }
    Ok(Resize {
        mode,
        coordinates,
        antialias,
        exclude_outside: cx.flag("exclude_outside", false)?,
        extrapolation: cx.float("extrapolation_value", 0.0)?.into(),
    })
}

fn by_sizes(cx: &mut Cx, shape: &[Dim], axes: &[usize]) -> Result<Vec<Axis>> {
    let sizes = cx.const_dims(3)?;
    if sizes.len() != axes.len() {
        let e = OpError::model(format!("{} sizes for {} axes", sizes.len(), axes.len()));
        return Err(cx.at_input(3, e));
    }
    if let Some(bad) = sizes.iter().find(|s| s.as_const().is_some_and(|s| s < 0)) {
        return Err(cx.at_input(3, OpError::model(format!("extent {bad}"))));
    }
    let policy = cx.string("keep_aspect_ratio_policy", "stretch")?;
    let smallest = match policy.as_str() {
        "not_larger" if cx.since >= 18 => Some(true),
        "not_smaller" if cx.since >= 18 => Some(false),
        "stretch" => None,
        other => {
            return Err(OpError::model(format!("`{other}`")).attribute("keep_aspect_ratio_policy"));
        }
    };
    let common = match smallest {
        None => None,
        Some(smallest) => {
            let mut all = vec![];
            for (a, s) in axes.iter().zip(&sizes) {
                match (shape[*a].as_const(), s.as_const()) {
                    (Some(n), Some(s)) if n > 0 => all.push(s as f64 / n as f64),
                    _ => {
                        let e = format!("needs known extents, and the input has {}", show(shape));
                        return Err(OpError::unsupported(e)
                            .attribute("keep_aspect_ratio_policy")
                            .help("fix the dimension with --dim NAME=VALUE"));
                    }
                }
            }
            let pick = if smallest { f64::min } else { f64::max };
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
                _ => to,
            };
            Axis { axis: *axis, from, to, scale: common, roi: [0.0, 1.0] }
        })
        .collect())
}

/// `Resize` and `Upsample`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Resize", &[10, 11, 13, 18, 19], resize)
        .cases(&["test_resize_"])
        .notes("`antialias` and `keep_aspect_ratio_policy` need known extents"),
    OpDef::new("Upsample", &[7, 9, 10], upsample).cases(&["test_upsample_"]),
];
