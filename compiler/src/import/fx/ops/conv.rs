//! Convolutions.

use super::super::prelude::*;
use crate::lower::conv::{self, Conv};
use crate::lower::transposed::{self, ConvTranspose};
use crate::lower::window::{Padding, Window};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.conv1d.default|padding", |cx| convolved(cx, false)),
    OpDef::new("aten.conv2d.default|padding", |cx| convolved(cx, false)),
    OpDef::new("aten.conv3d.default|padding", |cx| convolved(cx, false)),
    OpDef::new("aten.conv_transpose1d.default", |cx| convolved(cx, true)),
    OpDef::new("aten.conv_transpose2d.input", |cx| convolved(cx, true)),
    OpDef::new("aten.conv_transpose3d.input", |cx| convolved(cx, true)),
    OpDef::new("aten.convolution.default", general),
];

fn general(cx: &mut Cx) -> Lowered {
    let transposed = cx.flag("transposed")?;
    convolved(cx, transposed)
}

fn convolved(cx: &mut Cx, transposed: bool) -> Lowered {
    let (x, w, bias) = (cx.tensor("input")?, cx.tensor("weight")?, cx.opt_tensor("bias")?);
    let n = cx.rank(w).saturating_sub(2);
    // An input without a batch axis is a batch of one.
    let alone = cx.rank(x) == n + 1;
    let x = if alone { cx.unsqueeze(x, &[0])? } else { x };
    let (strides, dilations, groups) = (cx.ints_of("stride", n)?, cx.ints_of("dilation", n)?, cx.int("groups")?);
    let padding = match cx.argument("padding")?.kind() {
        "a text" => match cx.text("padding")?.as_deref() {
            // For an odd total, the larger half of the padding is at the end.
            Some("same") => Padding::SameUpper,
            _ => Padding::Valid,
        },
        _ => {
            let around = cx.ints_of("padding", n)?;
            Padding::Explicit([around.clone(), around].concat())
        }
    };
    let y = if transposed {
        let output_padding = cx.ints_of("output_padding", n)?;
        let p = ConvTranspose { strides, dilations, padding, output_padding, output_shape: None, groups };
        transposed::conv_transpose(cx, x, w, bias, &p)?
    } else {
        let window = Window { strides, dilations, padding, ceil: false };
        conv::conv(cx, x, w, bias, &Conv { window, groups })?
    };
    Ok(vec![if alone { cx.squeeze(y, &[0])? } else { y }])
}
