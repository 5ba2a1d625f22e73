//! Positions of extremes, running combinations, the largest few.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{Lowered, OpDef, OpError};
use wgfc_ir::{DType, Dim, Op, ReduceOp};

fn arg(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", 0)?, cx.rank(x))?;
    let last = cx.flag("select_last_index", false)?;
    let shape = cx.shape(x);
    if shape[axis].is(0)
        && shape.iter().enumerate().all(|(i, d)| i == axis || d.as_const().is_some_and(|d| d > 0))
    {
        return Err(OpError::model(format!("axis {axis} of {} has no elements to choose from", cx.ty(x))));
    }
    let y = cx.push(Op::ArgReduce { op, axis, last }, &[x])?;
    Ok(vec![if cx.flag("keepdims", true)? { y } else { cx.squeeze(y, &[axis])? }])
}

fn cumulate(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let x = cx.input(0)?;
    let along = cx.const_int(1)?;
    let axis = cx.axis(along, cx.rank(x))?;
    let (exclusive, reverse) = (cx.flag("exclusive", false)?, cx.flag("reverse", false)?);
    Ok(vec![cx.push(Op::Cumulate { op, axis, exclusive, reverse }, &[x])?])
}

/// `k` is an attribute at first, an input from 10 on. Sorted results also answer `sorted = 0`.
fn top_k(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", -1)?, cx.rank(x))?;
    let extent = cx.shape(x)[axis].clone();
    let k = if cx.since < 10 {
        cx.int_req("k")?.into()
    } else {
        let k = cx.input(1)?;
        match cx.dims(k) {
            Some(known) => known.into_iter().next().ok_or_else(|| OpError::model("k is empty"))?,
            None if cx.dtype(k) == DType::I64 => {
                cx.require_open_sizes_of(1)?;
                let k = cx.reshape(k, vec![])?;
                let k = cx.binary_scalar(wgfc_ir::BinaryOp::Max, k, 0.0)?;
                let n = cx.dim_scalar(&extent, DType::I64)?;
                let k = cx.binary(wgfc_ir::BinaryOp::Min, k, n)?;
                cx.computed_size(k, extent.clone())
            }
            None => return Err(cx.at_input(1, OpError::model(format!("k is {}", cx.ty(k))))),
        }
    };
    if let (Some(k), Some(n)) = (k.as_const(), extent.as_const())
        && !(0..=n).contains(&k)
    {
        return Err(OpError::model(format!("k is {k}, the axis has {n} elements")));
    }
    let largest = cx.flag("largest", true)?;
    let origin = cx.origin.clone();
    let node = cx.graph.push(Op::TopK { axis, k, largest }, &[x], &origin)?;
    Ok((0..2).map(|port| wgfc_ir::Value { node, port }).collect())
}

/// One at the first largest element along an axis, zero elsewhere. Before opset 13 over all axes from `axis` on.
fn hardmax(cx: &mut Cx) -> Lowered {
    let mut x = cx.input(0)?;
    let dims = cx.shape(x);
    let mut axis = cx.int("axis", if cx.since >= 13 { -1 } else { 1 })?;
    if cx.since < 13 {
        let at = if axis == dims.len() as i64 { dims.len() } else { cx.axis(axis, dims.len())? };
        let (rows, row): (Dim, Dim) = (dims[..at].iter().product(), dims[at..].iter().product());
        x = cx.reshape(x, vec![rows, row])?;
        axis = 1;
    }
    let axis = cx.axis(axis, cx.rank(x))?;
    let at = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis, last: false }, &[x])?;
    let shape = cx.shape(x);
    let here = cx.iota(&shape, wgfc_ir::Poly::var(axis), DType::I64)?;
    let same = cx.binary(wgfc_ir::BinaryOp::Eq, at, here)?;
    let dtype = cx.dtype(x);
    let y = cx.cast(same, dtype)?;
    Ok(vec![cx.reshape(y, dims)?])
}

/// Positions, running combinations, orders.
pub const OPS: &[OpDef] = &[
    OpDef::new("ArgMax", &[1, 11, 12, 13], |cx| arg(cx, ReduceOp::Max)).cases(&["test_argmax"]),
    OpDef::new("ArgMin", &[1, 11, 12, 13], |cx| arg(cx, ReduceOp::Min)).cases(&["test_argmin"]),
    OpDef::new("CumProd", &[26], |cx| cumulate(cx, ReduceOp::Prod)).cases(&["test_cumprod"]),
    OpDef::new("CumSum", &[11, 14], |cx| cumulate(cx, ReduceOp::Sum)).cases(&["test_cumsum"]),
    OpDef::new("Hardmax", &[1, 11, 13], hardmax).cases(&["test_hardmax"]),
    OpDef::new("TopK", &[1, 10, 11, 24], top_k).cases(&["test_top_k"]),
];
