//! Softmax and log-softmax.

use super::{Lowering, Result};
use wgfc_ir::{Dim, Op, Value};

/// The softmax along one axis.
pub fn along(cx: &mut Lowering, x: Value, axis: usize, log: bool) -> Result {
    Ok(cx.push(Op::Softmax { axis, log }, &[x])?)
}

/// The softmax over all axes from `axis` on together; `axis` may be the rank.
pub fn from_axis(cx: &mut Lowering, x: Value, axis: usize, log: bool) -> Result {
    let dims = cx.shape(x);
    if axis == dims.len() {
        // Nothing is left to sum over: every element is its own row.
        let x = cx.unsqueeze(x, &[axis])?;
        let y = along(cx, x, axis, log)?;
        return Ok(cx.squeeze(y, &[axis])?);
    }
    if axis + 1 == dims.len() {
        return along(cx, x, axis, log);
    }
    let mut flat = dims[..axis].to_vec();
    flat.push(dims[axis..].iter().product::<Dim>());
    let x = cx.reshape(x, flat)?;
    let y = along(cx, x, axis, log)?;
    Ok(cx.reshape(y, dims)?)
}
