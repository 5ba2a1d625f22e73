//! The attributes of sliding windows, which convolutions and pools share.

use crate::import::onnx::prelude::*;
use crate::lower::window::{Padding, Window};
use wgfc_ir::op::show;
use wgfc_ir::{Dim, Poly, Value};

/// `strides`, `dilations`, `pads`, `auto_pad` and `ceil_mode`, over `n` spatial axes.
pub(super) fn window(cx: &Cx, n: usize) -> Result<Window> {
    let plain = Window::plain(n);
    Ok(Window {
        strides: cx.ints("strides")?.unwrap_or(plain.strides),
        dilations: cx.ints("dilations")?.unwrap_or(plain.dilations),
        padding: padding(cx, n)?,
        ceil: cx.flag("ceil_mode", false)?,
    })
}

/// `pads` and `auto_pad`.
pub(super) fn padding(cx: &Cx, n: usize) -> Result<Padding> {
    match cx.string("auto_pad", "NOTSET")?.as_str() {
        "NOTSET" | "" => Ok(match cx.ints("pads")? {
            Some(pads) => Padding::Explicit(pads),
            None => Padding::around(n, 0),
        }),
        "VALID" => Ok(Padding::Valid),
        "SAME_UPPER" => Ok(Padding::SameUpper),
        "SAME_LOWER" => Ok(Padding::SameLower),
        other => Err(OpError::model(format!("unknown auto_pad `{other}`")).attribute("auto_pad")),
    }
}

/// `kernel_shape`, if it is present.
pub(super) fn kernel(cx: &Cx) -> Result<Option<Vec<Dim>>> {
    let Some(k) = cx.ints("kernel_shape")? else { return Ok(None) };
    if let Some(bad) = k.iter().find(|k| **k < 1 || **k > 1 << 31) {
        return Err(
            OpError::model(format!("kernel extent {bad} is not in 1..=2^31")).attribute("kernel_shape")
        );
    }
    Ok(Some(k.into_iter().map(Poly::constant).collect()))
}

/// An error if `kernel_shape` differs from the kernel extents of the weights of a convolution of `x`.
pub(super) fn kernel_of_weights(cx: &Cx, x: Value, w: Value) -> Result<()> {
    let weights = cx.shape(w);
    if let (Some(k), Some(own)) = (kernel(cx)?, weights.get(2..))
        && weights.len() == cx.rank(x)
        && k != own
    {
        let e = OpError::model(format!("{} differs from the weights {}", show(&k), show(&weights)));
        return Err(e.attribute("kernel_shape"));
    }
    Ok(())
}
