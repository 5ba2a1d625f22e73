//! `Softmax` and `LogSoftmax`.

use crate::import::onnx::prelude::*;
use crate::lower::softmax;

/// Softmax along one axis from opset 13 on; before, over all axes from `axis` on together.
fn softmax(cx: &mut Cx, log: bool) -> Lowered {
    let x = cx.input(0)?;
    let axis = if cx.since >= 13 { cx.axis_attr(x, -1)? } else { cx.first_axis(x, 1)? };
    let lower = if cx.since >= 13 { softmax::along } else { softmax::from_axis };
    Ok(vec![lower(cx, x, axis, log)?])
}

/// `Softmax` and `LogSoftmax`.
pub const OPS: &[OpDef] = &[
    OpDef::new("LogSoftmax", &[1, 11, 13], |cx| softmax(cx, true)).cases(&["test_logsoftmax_"]),
    OpDef::new("Softmax", &[1, 11, 13], |cx| softmax(cx, false)).cases(&["test_softmax_"]),
];
