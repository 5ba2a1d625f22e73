//! Elements chosen by a condition.

use crate::import::onnx::prelude::*;
use crate::lower::chosen;

fn compress(cx: &mut Cx) -> Lowered {
    let (x, condition) = (cx.input(0)?, cx.input_of_rank(1, 1)?);
    let axis = match cx.int_opt("axis")? {
        Some(axis) => Some(cx.axis(axis, cx.rank(x)).map_err(|e| e.attribute("axis"))?),
        None => None,
    };
    Ok(vec![chosen::compress(cx, x, condition, axis)?])
}

fn non_zero(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![chosen::non_zero(cx, x)?])
}

/// `Compress` and `NonZero`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Compress", &[9, 11, 28], compress).cases(&["test_compress_"]),
    OpDef::new("NonZero", &[9, 13], non_zero).cases(&["test_nonzero_"]),
];
