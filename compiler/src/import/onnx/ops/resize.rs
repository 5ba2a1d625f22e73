//! `Resize` and `Upsample`.

use crate::import::onnx::prelude::*;
use crate::lower::interpolate::{Axis, Coordinates, Mode, Nearest, Resize};
use crate::lower::resize::{self, Aspect, by_scales};
use wgfc_ir::Value;

/// Checks that there is one positive scale for each of `n` axes.
fn checked(scales: Vec<f64>, n: usize) -> Result<Vec<f64>> {
    if scales.len() != n {
        return Err(OpError::model(format!("{} scales for {n} axes", scales.len())));
    }
    match scales.iter().find(|s| !(**s > 0.0 && **s < 1e6)) {
        Some(s) => Err(OpError::model(format!("scale {s} is not between 0 and 10^6"))),
        None => Ok(scales),
    }
}

/// Whether input `i` is present and not empty.
fn given(cx: &Cx, i: usize) -> bool {
    cx.opt(i).is_some_and(|v| !cx.shape(v).iter().any(|d| d.is(0)))
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
        other => return Err(OpError::model(format!("unknown value `{other}`")).attribute("mode")),
    };
    let r = Resize {
        mode,
        coordinates: Coordinates::Asymmetric,
        antialias: false,
        exclude_outside: false,
        extrapolation: 0.0,
    };
    let axes = by_scales(cx, x, &axes, &scales)?;
    Ok(vec![resize::resize(cx, x, &r, &axes)?])
}

fn resize(cx: &mut Cx) -> Lowered {
    if cx.since < 11 {
        return upsample(cx);
    }
    let x = cx.input(0)?;
    let r = attributes(cx)?;
    let rank = cx.rank(x);
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
        by_sizes(cx, x, &axes)?
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
    Ok(vec![resize::resize(cx, x, &r, &list)?])
}

fn attributes(cx: &Cx) -> Result<Resize> {
    let wrong = |name: &str, v: &str| Err(OpError::model(format!("unknown value `{v}`")).attribute(name));
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

fn by_sizes(cx: &mut Cx, x: Value, axes: &[usize]) -> Result<Vec<Axis>> {
    let sizes = cx.const_dims(3)?;
    cx.gives(3, "sizes");
    if sizes.len() != axes.len() {
        let e = OpError::model(format!("{} sizes for {} axes", sizes.len(), axes.len()));
        return Err(cx.at_input(3, e));
    }
    let policy = cx.string("keep_aspect_ratio_policy", "stretch")?;
    let aspect = match policy.as_str() {
        "not_larger" if cx.since >= 18 => Aspect::NotLarger,
        "not_smaller" if cx.since >= 18 => Aspect::NotSmaller,
        "stretch" => Aspect::Stretch,
        other => {
            return Err(OpError::model(format!("unknown value `{other}`")).attribute("keep_aspect_ratio_policy"));
        }
    };
    resize::by_sizes(cx, x, axes, &sizes, aspect)
}

/// `Resize` and `Upsample`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Resize", &[10, 11, 13, 18, 19], resize)
        .cases(&["test_resize_"])
        .notes("`antialias` and `keep_aspect_ratio_policy` need known extents"),
    OpDef::new("Upsample", &[7, 9, 10], upsample).cases(&["test_upsample_"]),
];
