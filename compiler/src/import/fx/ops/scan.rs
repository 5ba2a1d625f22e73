//! Cumulative reductions along an axis.

use super::super::prelude::*;
use crate::lower::scan;
use wgfc_ir::ReduceOp;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._logcumsumexp.default", log_sum_exp),
    OpDef::new("aten.cummax.default", |cx| extreme(cx, ReduceOp::Max)),
    OpDef::new("aten.cummin.default", |cx| extreme(cx, ReduceOp::Min)),
    OpDef::new("aten.cumprod.default", |cx| running(cx, ReduceOp::Prod)),
    OpDef::new("aten.cumsum.default", |cx| running(cx, ReduceOp::Sum)),
    OpDef::new("aten.linalg_vander.default", powers),
    OpDef::new("aten.logcumsumexp.default", log_sum_exp).notes("Along an axis whose extent is known."),
];

/// The operand with at least one axis, the axis of the scan, and the original shape.
fn along(cx: &mut Cx) -> Result<(Value, usize, Vec<Dim>)> {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let shape = cx.shape(x);
    let x = if shape.is_empty() { cx.unsqueeze(x, &[0])? } else { x };
    Ok((x, axis, shape))
}

/// A cumulative reduction in the result's type.
fn running(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let to = cx.result_dtype(0)?;
    let (x, axis, shape) = along(cx)?;
    let x = cx.converted(x, to)?;
    let y = scan::running(cx, x, axis, op)?;
    Ok(vec![cx.reshape(y, shape)?])
}

fn extreme(cx: &mut Cx, op: ReduceOp) -> Lowered {
    let (x, axis, shape) = along(cx)?;
    let [values, places] = scan::extreme(cx, x, axis, op)?;
    let places = cx.cast(places, DType::I64)?;
    Ok(vec![cx.reshape(values, shape.clone())?, cx.reshape(places, shape)?])
}

fn log_sum_exp(cx: &mut Cx) -> Lowered {
    let (x, axis, shape) = along(cx)?;
    let y = scan::log_sum_exp(cx, x, axis)?;
    Ok(vec![cx.reshape(y, shape)?])
}

/// The powers 0, 1, … of each element, along a new last axis.
fn powers(cx: &mut Cx) -> Lowered {
    let (x, ty) = (cx.tensor("x")?, cx.result(0)?);
    let x = cx.converted(x, ty.dtype)?;
    let Some(last) = ty.shape.len().checked_sub(1) else {
        return Err(OpError::model("its result is declared without axes"));
    };
    let mut one = ty.shape.clone();
    one[last] = Dim::ONE;
    let x = crate::lower::shape::reshape(cx, x, &one)?;
    let ones = cx.full(&one, wgfc_ir::Scalar::from_i64(ty.dtype, 1))?;
    if ty.shape[last].is(1) {
        return Ok(vec![ones]);
    }
    let mut rest = ty.shape;
    rest[last] = &rest[last] - 1;
    let x = cx.expand(x, &rest)?;
    let x = scan::running(cx, x, last, wgfc_ir::ReduceOp::Prod)?;
    Ok(vec![cx.concat(&[ones, x], last)?])
}
