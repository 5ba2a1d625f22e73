//! `Softmax` and `LogSoftmax`.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{Lowered, OpDef};
use wgfc_ir::{Dim, Op};

/// From opset 13 on along one axis; before, over all axes from `axis` on at once.
fn softmax(cx: &mut Cx, log: bool) -> Lowered {
    let x = cx.input(0)?;
    let dims = cx.shape(x);
    let along = cx.int("axis", if cx.since >= 13 { -1 } else { 1 })?;
    if cx.since < 13 && along == dims.len() as i64 {
        // Nothing is left to sum over: every element is its own row.
        let x = cx.unsqueeze(x, &[dims.len()])?;
        let y = cx.push(Op::Softmax { axis: dims.len(), log }, &[x])?;
        return Ok(vec![cx.squeeze(y, &[dims.len()])?]);
    }
    let axis = cx.axis(along, dims.len())?;
    if cx.since >= 13 || axis + 1 == dims.len() {
        return Ok(vec![cx.push(Op::Softmax { axis, log }, &[x])?]);
    }
    let mut flat = dims[..axis].to_vec();
    flat.push(dims[axis..].iter().product::<Dim>());
    let x = cx.reshape(x, flat)?;
    let y = cx.push(Op::Softmax { axis, log }, &[x])?;
    Ok(vec![cx.reshape(y, dims)?])
}

/// `Softmax` and `LogSoftmax`.
pub const OPS: &[OpDef] = &[
    OpDef::new("LogSoftmax", &[1, 11, 13], |cx| softmax(cx, true)).cases(&["test_logsoftmax_"]),
    OpDef::new("Softmax", &[1, 11, 13], |cx| softmax(cx, false)).cases(&["test_softmax_"]),
];
