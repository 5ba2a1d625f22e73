//! Convolution.

use super::window::{kernel_of_weights, window};
use crate::import::onnx::prelude::*;
use crate::lower::conv::{self, Conv};
use wgfc_ir::Value;

/// The attributes of a convolution of `x` with weights `w`.
pub(super) fn attributes(cx: &Cx, x: Value, w: Value) -> Result<Conv> {
    kernel_of_weights(cx, x, w)?;
    let spatial = cx.rank(x).saturating_sub(2);
    Ok(Conv { window: window(cx, spatial)?, groups: cx.int("group", 1)? })
}

/// `Conv`.
pub(super) fn conv(cx: &mut Cx) -> Result<Value> {
    let (x, w, bias) = (cx.input(0)?, cx.input(1)?, cx.opt(2));
    let p = attributes(cx, x, w)?;
    conv::conv(cx, x, w, bias, &p)
}

/// `Conv`.
pub const OPS: &[OpDef] =
    &[OpDef::new("Conv", &[1, 11, 22], |cx| Ok(vec![conv(cx)?])).cases(&["test_basic_conv_", "test_conv_with_"])];
