//! Operators that invert unfolding: `ConvTranspose`, `Col2Im`, `MaxUnpool`.

use super::window::{kernel, kernel_of_weights};
use crate::import::onnx::prelude::*;
use crate::lower::transposed::{self, ConvTranspose, Layout};
use crate::lower::window::Padding;

/// The list in an attribute, or `len` times the default.
fn list(cx: &Cx, name: &str, len: usize, default: i64) -> Result<Vec<i64>> {
    Ok(cx.ints(name)?.unwrap_or_else(|| vec![default; len]))
}

fn conv_transpose(cx: &mut Cx) -> Lowered {
    let (x, w, bias) = (cx.input(0)?, cx.input(1)?, cx.opt(2));
    kernel_of_weights(cx, x, w)?;
    let n = cx.rank(x).saturating_sub(2);
    let output_shape = match cx.ints("output_shape")? {
        Some(v) => Some(match v.len().checked_sub(n) {
            // The batch and channel extents may precede the spatial ones.
            Some(0 | 2) if v.iter().all(|d| (0..=1 << 31).contains(d)) => v[v.len() - n..].to_vec(),
            _ => {
                let e = format!("{v:?} for {n} spatial axes");
                return Err(OpError::model(e).attribute("output_shape"));
            }
        }),
        None => None,
    };
    let pads = list(cx, "pads", 2 * n, 0)?;
    let padding = match cx.string("auto_pad", "NOTSET")?.as_str() {
        "" | "NOTSET" => Padding::Explicit(pads),
        "VALID" => Padding::Valid,
        "SAME_UPPER" => Padding::SameUpper,
        "SAME_LOWER" => Padding::SameLower,
        other => return Err(OpError::model(format!("unknown value `{other}`")).attribute("auto_pad")),
    };
    let p = ConvTranspose {
        strides: list(cx, "strides", n, 1)?,
        dilations: list(cx, "dilations", n, 1)?,
        padding,
        output_padding: list(cx, "output_padding", n, 0)?,
        output_shape,
        groups: cx.int("group", 1)?,
    };
    Ok(vec![transposed::conv_transpose(cx, x, w, bias, &p)?])
}

/// `strides`, `dilations` and `pads` over `n` axes.
fn layout(cx: &Cx, n: usize) -> Result<Layout> {
    let (strides, dilations) = (list(cx, "strides", n, 1)?, list(cx, "dilations", n, 1)?);
    Ok(Layout { strides, dilations, pads: list(cx, "pads", 2 * n, 0)? })
}

fn col2im(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 3)?;
    let (image, block) = (cx.const_dims(1)?, cx.const_dims(2)?);
    cx.gives(2, "block");
    let p = layout(cx, image.len())?;
    Ok(vec![transposed::col2im(cx, x, &image, &block, &p)?])
}

fn max_unpool(cx: &mut Cx) -> Lowered {
    let (x, places) = (cx.input(0)?, cx.input(1)?);
    cx.gives(2, "output_shape");
    let n = cx.rank(x).saturating_sub(2);
    let (kernel, p) = (kernel(cx)?.unwrap_or_default(), layout(cx, n)?);
    let wanted = if cx.opt(2).is_some() { Some(cx.const_dims(2)?) } else { None };
    Ok(vec![transposed::max_unpool(cx, x, places, wanted.as_deref(), &kernel, &p)?])
}

/// `Col2Im`, `ConvTranspose`, `MaxUnpool`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Col2Im", &[18], col2im).cases(&["test_col2im"]),
    OpDef::new("ConvTranspose", &[1, 11, 22], conv_transpose).cases(&["test_convtranspose"]),
    OpDef::new("MaxUnpool", &[9, 11, 22], max_unpool).cases(&["test_maxunpool_"]),
];
