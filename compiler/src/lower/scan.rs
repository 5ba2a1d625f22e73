//! Running combinations along an axis (prefix scans).

use super::{Lowering, OpError, Result, special};
use wgfc_ir::{BinaryOp as B, Body, DType, Op, Poly, ReduceOp, Scalar, UnaryOp as U, Value};

/// The combination of all elements up to each one, itself included.
pub fn running(cx: &mut Lowering, x: Value, axis: usize, op: ReduceOp) -> Result {
    Ok(cx.push(Op::PrefixScan { op, axis, exclusive: false, reverse: false }, &[x])?)
}

/// The running maximum or minimum, and the last position of it (i32).
pub fn extreme(cx: &mut Lowering, x: Value, axis: usize, op: ReduceOp) -> Result<[Value; 2]> {
    let dtype = cx.dtype(x);
    let wide = if dtype == DType::Bool { cx.cast(x, DType::I32)? } else { x };
    let best = running(cx, wide, axis, op)?;
    let mut f = Body::default();
    let (x0, best0, here, first) = (f.arg(0), f.arg(1), f.index(Poly::var(axis)), f.i32(0));
    let mut stands = f.binary(B::Eq, x0, best0);
    if dtype.is_float() {
        // The running extreme after a NaN is NaN as well.
        let nan = f.unary(U::IsNan, x0);
        stands = f.binary(B::Or, stands, nan);
    }
    f.select(stands, here, first);
    let places = cx.map(f.0, &[wide, best])?;
    let places = running(cx, places, axis, ReduceOp::Max)?;
    Ok([cx.cast(best, dtype)?, places])
}

/// The running `ln Σ eˣ`, by doubling: each round adds the sums of neighbours, which then span twice as many elements.
pub fn log_sum_exp(cx: &mut Lowering, x: Value, axis: usize) -> Result {
    let (shape, dtype) = (cx.shape(x), cx.dtype(x));
    let Some(n) = shape[axis].as_const() else {
        let e = format!("axis {axis} has {} elements, which must be known", shape[axis]);
        return Err(OpError::symbolic(e).operand(x));
    };
    let mut y = cx.cast(x, DType::F32)?;
    let mut step = 1;
    while step < n {
        let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
        index[axis] = &index[axis] - step;
        let fill = Some(Scalar::from_f64(DType::F32, f64::NEG_INFINITY));
        let before = cx.push(Op::View { shape: shape.clone(), index, fill }, &[y])?;
        y = special::log_add_exp(cx, y, before, special::Base::E)?;
        step *= 2;
    }
    Ok(cx.cast(y, dtype)?)
}
