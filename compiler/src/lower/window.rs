//! Sliding windows: what convolutions and pools have in common.

use super::{Lowering, OpError, Result};
use wgfc_ir::build::WindowAxis;
use wgfc_ir::{Dim, Op, Poly, Scalar, Value};

/// Windows of `size` along one axis, `before` elements back, zero outside: a new last axis of extent `size`.
pub fn along(cx: &mut Lowering, x: Value, axis: usize, size: i64, before: i64) -> Result {
    let mut shape = cx.shape(x);
    let rank = shape.len();
    let mut index: Vec<Poly> = (0..rank).map(Poly::var).collect();
    index[axis] = &(&Poly::var(axis) + &Poly::var(rank)) - before;
    shape.push(Poly::constant(size));
    let fill = Some(Scalar::from_f64(cx.dtype(x), 0.0));
    Ok(cx.push(Op::View { shape, index, fill }, &[x])?)
}
