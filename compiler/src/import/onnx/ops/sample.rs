//! `GridSample`, and `AffineGrid`, which makes grids for it.

use crate::import::onnx::prelude::*;
use crate::lower::sample::{self, GridSample, Mode, Padding};
use wgfc_ir::op::show;

fn grid_sample(cx: &mut Cx) -> Lowered {
    let (x, grid) = (cx.input(0)?, cx.input(1)?);
    let wrong = |name: &str, v: &str| Err(OpError::model(format!("unknown value `{v}`")).attribute(name));
    let old = cx.since < 20;
    if old && cx.rank(x) != 4 {
        let e = format!("a grid {} for an input {}", show(&cx.shape(grid)), show(&cx.shape(x)));
        return Err(OpError::model(e));
    }
    let mode = match cx.string("mode", if old { "bilinear" } else { "linear" })?.as_str() {
        "nearest" => Mode::Nearest,
        "bilinear" if old => Mode::Linear,
        "linear" if !old => Mode::Linear,
        "bicubic" if old => Mode::Cubic,
        "cubic" if !old => Mode::Cubic,
        other => return wrong("mode", other),
    };
    let padding = match cx.string("padding_mode", "zeros")?.as_str() {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        other => return wrong("padding_mode", other),
    };
    let align_corners = cx.flag("align_corners", false)?;
    Ok(vec![sample::grid_sample(cx, x, grid, &GridSample { mode, padding, align_corners })?])
}

fn affine_grid(cx: &mut Cx) -> Lowered {
    let theta = cx.input_of_rank(0, 3)?;
    let size = cx.const_dims(1)?;
    cx.gives(1, "size");
    let align = cx.flag("align_corners", false)?;
    Ok(vec![sample::affine_grid(cx, theta, &size, align)?])
}

/// `AffineGrid` and `GridSample`.
pub const OPS: &[OpDef] = &[
    OpDef::new("AffineGrid", &[20], affine_grid).cases(&["test_affine_grid_"]),
    OpDef::new("GridSample", &[16, 20, 22], grid_sample).cases(&["test_gridsample"]),
];
