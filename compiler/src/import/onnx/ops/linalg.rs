//! Linear algebra other than products.

use crate::import::onnx::prelude::*;
use crate::lower::linalg;

fn det(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![linalg::det(cx, x)?])
}

/// `Det`.
pub const OPS: &[OpDef] = &[OpDef::new("Det", &[11, 22], det)
    .cases(&["test_det_"])
    .notes("up to 64 rows, a number known when compiling")];
