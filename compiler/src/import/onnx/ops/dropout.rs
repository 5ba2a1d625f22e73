//! `Dropout`.

use super::random::from_name;
use crate::import::onnx::prelude::*;
use crate::lower::random::{self, Seed};
use wgfc_ir::{DType, Scalar};

/// The identity, or from opset 12 on random dropout in training mode; the mask marks the elements that are kept.
fn dropout(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let training = cx.since >= 12 && cx.opt(2).is_some() && cx.const_int(2)? != 0;
    if training {
        let ratio = match cx.opt(1) {
            None => cx.scalar(DType::F32, 0.5),
            Some(r) => {
                if !cx.dtype(r).is_float() || !matches!(cx.ty(r).numel().as_const(), Some(1) | None) {
                    return Err(cx.at_input(1, OpError::model(format!("the ratio has type {}, not one float", cx.ty(r)))));
                }
                if let Some([bad]) = cx.numbers(r).as_deref()
                    && !(0.0..=1.0).contains(bad)
                {
                    return Err(cx.at_input(1, OpError::model(format!("the ratio {bad} is not between 0 and 1"))));
                }
                cx.reshape(r, vec![])?
            }
        };
        // The seed of dropout is an integer; the seeds of all other operators are floats.
        let seed = cx.int_opt("seed")?;
        let seed = seed.map_or_else(|| from_name(cx), |s| Seed::Given([s as u32, (s >> 32) as u32]));
        let (y, kept) = random::drop(cx, x, ratio, seed)?;
        return Ok(vec![y, kept]);
    }
    let mut out = vec![x];
    if cx.wants(1) {
        let shape = cx.shape(x);
        let mask = if cx.since >= 10 { Scalar::bool(true) } else { Scalar::from_f64(cx.dtype(x), 1.0) };
        out.push(cx.full(&shape, mask)?);
    }
    Ok(out)
}

/// `Dropout`.
pub const OPS: &[OpDef] = &[OpDef::new("Dropout", &[6, 7, 10, 12, 13, 22], dropout)
    .cases(&["test_dropout_", "test_training_dropout"])
    .notes("in training, without attribute `seed`, those elements that the inputs `seed` and `offset` decide")];
