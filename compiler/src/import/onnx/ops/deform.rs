//! `DeformConv`.

use super::conv::attributes;
use crate::import::onnx::prelude::*;
use crate::lower::deform;

fn deform_conv(cx: &mut Cx) -> Lowered {
    let (x, w, offset) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (bias, mask, groups) = (cx.opt(3), cx.opt(4), cx.int("offset_group", 1)?);
    let p = attributes(cx, x, w)?;
    Ok(vec![deform::deform_conv(cx, [x, w, offset], bias, mask, groups, &p)?])
}

/// `DeformConv`.
pub const OPS: &[OpDef] =
    &[OpDef::new("DeformConv", &[19, 22], deform_conv)
        .cases(&["test_basic_deform_conv_", "test_deform_conv_"])];
