//! `Slice`.

use crate::import::onnx::prelude::*;
use crate::lower::{Size, slice};
use wgfc_ir::{DType, Poly};

/// The starts or ends in an input.
fn bounds(cx: &mut Cx, input: usize) -> Result<Vec<Size>> {
    let v = cx.input(input)?;
    if let Some(all) = cx.dims(v) {
        return Ok(all.into_iter().map(Size::Known).collect());
    }
    let shape = cx.shape(v);
    let count = match &shape[..] {
        [n] if cx.may_compute_sizes() && matches!(cx.dtype(v), DType::I32 | DType::I64) => n.as_const(),
        _ => None,
    };
    let Some(count) = count else { return cx.const_dims(input).map(|_| vec![]) };
    let mut out = vec![];
    for i in 0..count {
        let element = cx.view(v, vec![], vec![i.into()])?;
        out.push(match cx.dims(element).and_then(|d| d.into_iter().next()) {
            Some(known) => Size::Known(known),
            None => Size::Computed(cx.cast(element, DType::I64)?),
        });
    }
    Ok(out)
}

fn slice(cx: &mut Cx) -> Lowered {
    let mut x = cx.input(0)?;
    let rank = cx.rank(x);
    let (starts, ends, axes, steps) = if cx.since < 10 {
        let known = |v: Vec<i64>| v.into_iter().map(|c| Size::Known(Poly::constant(c))).collect::<Vec<_>>();
        (known(cx.ints_req("starts")?), known(cx.ints_req("ends")?), cx.ints("axes")?, None)
    } else {
        let axes = if cx.opt(3).is_some() { Some(cx.const_ints(3)?) } else { None };
        let steps = if cx.opt(4).is_some() { Some(cx.const_ints(4)?) } else { None };
        (bounds(cx, 1)?, bounds(cx, 2)?, axes, steps)
    };
    let n = starts.len();
    let axes = axes.unwrap_or_else(|| (0..n as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; n]);
    if ends.len() != n || axes.len() != n || steps.len() != n {
        return Err(OpError::model(format!(
            "there are {n} starts, {} ends, {} axes and {} steps, not equally many",
            ends.len(),
            axes.len(),
            steps.len()
        )));
    }
    // Rejects repeated axes.
    cx.axes(&axes, rank)?;
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = cx.axis(*axis, rank)?;
        x = slice::slice(cx, x, axis, start, end, *step)?;
    }
    Ok(vec![x])
}

/// `Slice`.
pub const OPS: &[OpDef] = &[OpDef::new("Slice", &[1, 10, 11, 13], slice)
    .cases(&["test_slice"])
    .notes("axes and steps must be known when compiling")];
