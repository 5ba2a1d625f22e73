//! Fourier transforms.

use crate::import::onnx::prelude::*;
use crate::lower::fourier::{self, Dft, Stft};
use wgfc_ir::Dim;

/// Input `i` as a length, if it is present.
fn length(cx: &mut Cx, i: usize) -> Result<Option<Dim>> {
    if cx.opt(i).is_none() {
        return Ok(None);
    }
    match cx.const_dims(i)?.as_slice() {
        [n] => Ok(Some(n.clone())),
        _ => Err(cx.at_input(i, OpError::model("needs one number"))),
    }
}

fn dft(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (inverse, onesided) = (cx.flag("inverse", false)?, cx.flag("onesided", false)?);
    let axis = match cx.since {
        ..20 => cx.int("axis", 1)?,
        _ if cx.opt(2).is_some() => cx.const_int(2)?,
        _ => -2,
    };
    let axis = cx.axis(axis, cx.rank(x))?;
    let length = length(cx, 1)?;
    Ok(vec![fourier::dft(cx, x, &Dft { axis, length, inverse, divided: true, onesided })?])
}

fn stft(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 3)?;
    let step = cx.const_int(1)?;
    cx.gives(1, "step");
    let (window, length) = (cx.opt(2), length(cx, 3)?);
    let onesided = cx.flag("onesided", true)?;
    Ok(vec![fourier::stft(cx, x, window, &Stft { step, length, onesided })?])
}

/// `DFT` and `STFT`.
pub const OPS: &[OpDef] = &[
    OpDef::new("DFT", &[17, 20], dft).cases(&["test_dft"]).notes("a length of at most 46340"),
    OpDef::new("STFT", &[17], stft).cases(&["test_stft"]).notes("frames of at most 46340 elements"),
];
