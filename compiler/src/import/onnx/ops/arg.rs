//! Positions of extrema, cumulative reductions, the largest elements.

use crate::import::onnx::prelude::*;
use crate::lower::{Size, arg};
use wgfc_ir::{DType, Dim, Op, ReduceOp};

fn extreme(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.input(0)?;
    let axis = cx.axis_attr(x, 0)?;
    let (last, keepdims) = (cx.flag("select_last_index", false)?, cx.flag("keepdims", true)?);
    Ok(vec![arg::extreme(cx, op, x, axis, last, keepdims)?])
}

fn prefix_scan(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.input(0)?;
    let along = cx.const_int(1)?;
    let axis = cx.axis(along, cx.rank(x))?;
    let (exclusive, reverse) = (cx.flag("exclusive", false)?, cx.flag("reverse", false)?);
    Ok(vec![cx.push(Op::PrefixScan { op, axis, exclusive, reverse }, &[x])?])
}

/// `k` is an attribute before opset 10, and an input from then on. The results are sorted even for `sorted = 0`.
fn top_k(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axis = cx.axis_attr(x, -1)?;
    let k = if cx.since < 10 {
        Size::Known(cx.int_req("k")?.into())
    } else {
        let k = cx.input(1)?;
        match cx.dims(k) {
            Some(known) => Size::Known(known.into_iter().next().ok_or_else(|| OpError::model("k is empty"))?),
            None if cx.dtype(k) == DType::I64 => Size::Computed(k),
            None => return Err(cx.at_input(1, OpError::model(format!("k is {}", cx.ty(k))))),
        }
    };
    let largest = cx.flag("largest", true)?;
    Ok(arg::top_k(cx, x, axis, &k, largest)?.to_vec())
}

/// Before opset 13, all axes from `axis` on are flattened.
fn hardmax(cx: &mut Cx) -> Lowered {
    let mut x = cx.input(0)?;
    let dims = cx.shape(x);
    let axis = if cx.since >= 13 {
        cx.axis_attr(x, -1)?
    } else {
        let at = cx.first_axis(x, 1)?;
        let (rows, row): (Dim, Dim) = (dims[..at].iter().product(), dims[at..].iter().product());
        x = cx.reshape(x, vec![rows, row])?;
        1
    };
    let y = arg::hardmax(cx, x, axis)?;
    Ok(vec![cx.reshape(y, dims)?])
}

/// Positions of extrema, cumulative reductions, the largest elements.
pub const OPS: &[OpDef] = &[
    OpDef::new("ArgMax", &[1, 11, 12, 13], |cx| extreme(cx, ReduceOp::Max)).cases(&["test_argmax"]),
    OpDef::new("ArgMin", &[1, 11, 12, 13], |cx| extreme(cx, ReduceOp::Min)).cases(&["test_argmin"]),
    OpDef::new("CumProd", &[26], |cx| prefix_scan(cx, ReduceOp::Prod)).cases(&["test_cumprod"]),
    OpDef::new("CumSum", &[11, 14], |cx| prefix_scan(cx, ReduceOp::Sum)).cases(&["test_cumsum"]),
    OpDef::new("Hardmax", &[1, 11, 13], hardmax).cases(&["test_hardmax"]),
    OpDef::new("TopK", &[1, 10, 11, 24], top_k).cases(&["test_top_k"]),
];
