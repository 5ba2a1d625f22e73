//! Elements in order, and those at places of it.

use super::scan::running;
use super::{Lowering, Result, gather};
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, UnaryOp as U, Value};

/// The first `k` elements along an axis in order, and their positions (i64). Of equal ones the first is first; what is no
/// number is the greatest.
pub fn sort(cx: &mut Lowering, x: Value, axis: usize, k: &Dim, descending: bool) -> Result<[Value; 2]> {
    let dtype = cx.dtype(x);
    let keys = if dtype == DType::Bool { cx.cast(x, DType::I32)? } else { x };
    let node = cx.push(Op::TopK { axis, k: k.clone(), largest: descending }, &[keys])?.node;
    let values = cx.cast(Value { node, port: 0 }, dtype)?;
    Ok([values, Value { node, port: 1 }])
}

/// The element at place `at` of the order along an axis, which stays with extent 1, and its position (i64).
pub fn kth(cx: &mut Lowering, x: Value, axis: usize, at: &Dim) -> Result<[Value; 2]> {
    let sorted = sort(cx, x, axis, &(at + 1), false)?;
    let mut out = sorted;
    for (o, v) in out.iter_mut().zip(sorted) {
        *o = cx.slice(v, axis, at, 1, &Dim::ONE)?;
    }
    Ok(out)
}

/// The element in the middle, of two the lower, along an axis, which stays with extent 1, and its position (i64). Where there
/// is one that is no number it is that, or these are left out.
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

/// What stands most often along an axis, which stays with extent 1, of several the smallest, and its last position (i64).
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

fn picked(cx: &mut Lowering, from: [Value; 2], at: Value, axis: usize) -> Result<[Value; 2]> {
    Ok([gather::elements(cx, from[0], at, axis)?, gather::elements(cx, from[1], at, axis)?])
}

#[cfg(test)]
mod tests;
