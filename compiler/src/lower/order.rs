//! Sorting, and order statistics.

use super::scan::running;
use super::{Lowering, Result, gather};
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, UnaryOp as U, Value};

/// The first `k` elements along an axis in sorted order, and their positions (i64). Equal elements keep their order;
/// NaN counts as greater than any number.
pub fn sort(cx: &mut Lowering, x: Value, axis: usize, k: &Dim, descending: bool) -> Result<[Value; 2]> {
    let dtype = cx.dtype(x);
    let keys = if dtype == DType::Bool { cx.cast(x, DType::I32)? } else { x };
    let node = cx.push(Op::TopK { axis, k: k.clone(), largest: descending }, &[keys])?.node;
    let values = cx.cast(Value { node, port: 0 }, dtype)?;
    Ok([values, Value { node, port: 1 }])
}

/// The element at position `at` of the ascending order along an axis, which is kept with extent 1, and its own
/// position (i64).
pub fn kth(cx: &mut Lowering, x: Value, axis: usize, at: &Dim) -> Result<[Value; 2]> {
    let sorted = sort(cx, x, axis, &(at + 1), false)?;
    let mut out = sorted;
    for (o, v) in out.iter_mut().zip(sorted) {
        *o = cx.slice(v, axis, at, 1, &Dim::ONE)?;
    }
    Ok(out)
}

/// The median along an axis, which is kept with extent 1, and its position (i64); for an even number of elements the
/// lower of the two middle ones. If any element is NaN, the result is NaN, or with `skip_nan` NaNs are ignored.
pub fn median(cx: &mut Lowering, x: Value, axis: usize, skip_nan: bool) -> Result<[Value; 2]> {
    let n = cx.shape(x)[axis].clone();
    if !cx.dtype(x).is_float() {
        return kth(cx, x, axis, &(&n - 1).div(&Poly::constant(2), &[]));
    }
    let nan = cx.unary(U::IsNan, x)?;
    let nan = cx.cast(nan, DType::I32)?;
    let nans = cx.reduce(ReduceOp::Sum, nan, &[axis], true)?;
    let mut f = Body::default();
    let (nans_0, n_0, zero, one, two) = (f.arg(0), f.index(n.clone()), f.i32(0), f.i32(1), f.i32(2));
    let numbers = f.binary(B::Sub, n_0, nans_0);
    let last = f.binary(B::Sub, numbers, one);
    let last = f.binary(B::Max, last, zero);
    let middle = f.binary(B::Div, last, two);
    if !skip_nan {
        let none = f.binary(B::Eq, nans_0, zero);
        f.select(none, middle, numbers);
    }
    let at = cx.map(f.0, &[nans])?;
    let sorted = sort(cx, x, axis, &n, false)?;
    picked(cx, sorted, at, axis)
}

/// The most frequent element along an axis, which is kept with extent 1, and its last position (i64); of several such
/// elements the smallest.
pub fn mode(cx: &mut Lowering, x: Value, axis: usize) -> Result<[Value; 2]> {
    let shape = cx.shape(x);
    let n = shape[axis].clone();
    let [values, places] = sort(cx, x, axis, &n, false)?;
    let keys = if cx.dtype(values) == DType::Bool { cx.cast(values, DType::I32)? } else { values };
    let neighbour = |cx: &mut Lowering, by: i64| -> Result {
        let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
        index[axis] = &index[axis] + by;
        let fill = Some(Scalar::from_i64(cx.dtype(keys), 0));
        Ok(cx.push(Op::View { shape: shape.clone(), index, fill }, &[keys])?)
    };
    let (before, behind) = (neighbour(cx, -1)?, neighbour(cx, 1)?);
    let mut f = Body::default();
    let (k, b, here, first) = (f.arg(0), f.arg(1), f.index(Poly::var(axis)), f.i32(0));
    let differs = f.binary(B::Ne, k, b);
    f.select(differs, here, first);
    let begins = cx.map(f.0, &[keys, before])?;
    let begins = running(cx, begins, axis, ReduceOp::Max)?;
    let mut f = Body::default();
    let (k, b, begin, here) = (f.arg(0), f.arg(1), f.arg(2), f.index(Poly::var(axis)));
    let (last, one, none) = (f.index(&n - 1), f.i32(1), f.i32(0));
    let (differs, at_end) = (f.binary(B::Ne, k, b), f.binary(B::Eq, here, last));
    let ends = f.binary(B::Or, differs, at_end);
    let often = f.binary(B::Sub, here, begin);
    let often = f.binary(B::Add, often, one);
    f.select(ends, often, none);
    let often = cx.map(f.0, &[keys, behind, begins])?;
    let at = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis, last: false }, &[often])?;
    picked(cx, [values, places], at, axis)
}

/// The interpolation between two elements if a quantile lies between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Linear interpolation.
    Linear,
    /// The lower.
    Lower,
    /// The higher.
    Higher,
    /// The mean of both.
    Middle,
    /// The nearer one; from the middle the one at an even position.
    Nearest,
}

/// The quantiles `q [m]`, from 0 to 1, along the last axis of `x [rows, n]`: `[rows, m]`. NaN is treated as by
/// [`median`].
pub fn quantile(cx: &mut Lowering, x: Value, q: Value, between: Between, skip_nan: bool) -> Result {
    let (dims, m) = (cx.shape(cx.require_rank(x, 2)?), cx.shape(cx.require_rank(q, 1)?)[0].clone());
    let n = dims[1].clone();
    let nan = cx.unary(U::IsNan, x)?;
    let nan = cx.cast(nan, DType::I32)?;
    let nans = cx.reduce(ReduceOp::Sum, nan, &[1], true)?;
    let q = cx.unsqueeze(q, &[0])?;
    let q = cx.cast(q, DType::F32)?;
    let mut f = Body::default();
    let (nans_0, q_0, n_0, zero, one) = (f.arg(0), f.arg(1), f.index(n.clone()), f.i32(0), f.i32(1));
    let last = f.binary(B::Sub, n_0, one);
    let numbers = f.binary(B::Sub, last, nans_0);
    let numbers = f.binary(B::Max, numbers, zero);
    let far = f.cast(DType::F32, if skip_nan { numbers } else { last });
    let mut at = f.binary(B::Mul, q_0, far);
    if !skip_nan {
        let any = f.binary(B::Gt, nans_0, zero);
        at = f.select(any, far, at);
    }
    match between {
        Between::Lower => f.unary(U::Floor, at),
        Between::Higher => f.unary(U::Ceil, at),
        Between::Nearest => f.unary(U::Round, at),
        Between::Linear | Between::Middle => {
            let none = f.f32(0.0);
            f.binary(B::Add, at, none)
        }
    };
    let at = cx.map_to(f.0, &[nans, q], vec![dims[0].clone(), m])?;
    let [values, _] = sort(cx, x, 1, &n, false)?;
    let (low, high) = (cx.unary(U::Floor, at)?, cx.unary(U::Ceil, at)?);
    let (low_at, high_at) = (cx.cast(low, DType::I32)?, cx.cast(high, DType::I32)?);
    let a = gather::elements(cx, values, low_at, 1)?;
    if !matches!(between, Between::Linear | Between::Middle) {
        return Ok(a);
    }
    let b = gather::elements(cx, values, high_at, 1)?;
    let dtype = cx.dtype(x);
    let mut f = Body::default();
    let (a0, b0, at0, low0, half) = (f.arg(0), f.arg(1), f.arg(2), f.arg(3), f.f32(0.5));
    let (a0, b0) = (f.cast(DType::F32, a0), f.cast(DType::F32, b0));
    let share = if between == Between::Middle { half } else { f.binary(B::Sub, at0, low0) };
    let apart = f.binary(B::Sub, b0, a0);
    let part = f.binary(B::Mul, apart, share);
    let y = f.binary(B::Add, a0, part);
    let same = f.binary(B::Eq, a0, b0);
    let y = f.select(same, a0, y);
    if dtype != DType::F32 {
        f.cast(dtype, y);
    }
    Ok(cx.map(f.0, &[a, b, at, low])?)
}

fn picked(cx: &mut Lowering, from: [Value; 2], at: Value, axis: usize) -> Result<[Value; 2]> {
    Ok([gather::elements(cx, from[0], at, axis)?, gather::elements(cx, from[1], at, axis)?])
}

#[cfg(test)]
mod tests;
