//! `Dropout` at inference.

use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::Scalar;

/// The identity; its mask is all true.
fn dropout(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let training = cx.since >= 12 && cx.opt(2).is_some() && cx.const_int(2)? != 0;
    if training {
        let ratio =
            if cx.opt(1).is_some() { cx.const_numbers(1)?.first().copied().unwrap_or(0.5) } else { 0.5 };
        if ratio != 0.0 {
            return Err(OpError::unsupported("dropout in training mode")
                .help("export the model for inference (model.eval())"));
        }
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
    .cases(&["test_dropout_", "test_training_dropout_zero"])
    .notes("inference only")];
