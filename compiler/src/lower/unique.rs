//! Unique elements, or unique slices along an axis.
//!
//! After sorting, equal elements are adjacent. A group begins at each element that differs from the one before it, and
//! a running sum of these beginnings numbers the groups.

use super::chosen::{Chosen, chosen, placed};
use super::{Lowering, Result};
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::{
    BinaryOp, Body, Border, DType, Dim, GatherAxis, Graph, Op, Poly, ReduceOp, Scalar, TensorType, UnaryOp,
    Value,
};

/// The sorted order of items that may be equal.
struct Sorted {
    /// The item at each position, `i32 [count]`; equal items keep their order.
    order: Value,
    /// Whether each item differs from the one before it, `bool [count]`.
    differs: Value,
}

/// The results of [`unique`] and [`consecutive`].
#[derive(Clone, Copy, Debug)]
pub struct Unique {
    /// The unique elements or slices.
    pub values: Value,
    /// The first position of each (i64).
    pub first: Value,
    /// The index in `values` of each element or slice of `x` (i64).
    pub inverse: Value,
    /// The number of occurrences of each (i64).
    pub counts: Value,
}

/// The unique elements, or slices along an axis: in ascending order if `sorted_order`, else in the order of their
/// first occurrence.
pub fn unique(cx: &mut Lowering, x: Value, axis: Option<usize>, sorted_order: bool) -> Result<Unique> {
    cx.require_open_sizes(x)?;
    let (x, axis) = sliced(cx, x, axis)?;
    let count = cx.shape(x)[axis].clone();
    let keys = keys(cx, x)?;
    let sorted = if cx.rank(x) == 1 { sort(cx, keys)? } else { sort_slices(cx, keys, axis)? };
    let [mut first, mut inverse, mut counts] = groups(cx, sorted, &count)?;
    if !sorted_order {
        // Orders the groups by their first items, whose rank among all first items becomes the group's number.
        let of_mine = cx.take(first, inverse, 0)?;
        let here = cx.iota(std::slice::from_ref(&count), Poly::var(0), DType::I32)?;
        let is_first = cx.binary(BinaryOp::Eq, of_mine, here)?;
        let Chosen { places, running } = chosen(cx, is_first, count)?;
        let sorted_group = cx.take(inverse, places, 0)?;
        counts = cx.take(counts, sorted_group, 0)?;
        let number = cx.take(running, of_mine, 0)?;
        let one = cx.int(DType::I32, 1);
        inverse = cx.binary(BinaryOp::Sub, number, one)?;
        first = places;
    }
    found(cx, x, axis, [first, inverse, counts])
}

/// The first of each run of equal adjacent elements, or of such slices along an axis. NaN differs from everything.
pub fn consecutive(cx: &mut Lowering, x: Value, axis: Option<usize>) -> Result<Unique> {
    cx.require_open_sizes(x)?;
    let (x, axis) = sliced(cx, x, axis)?;
    let (shape, dtype) = (cx.shape(x), cx.dtype(x));
    let count = shape[axis].clone();
    let elements = if dtype == DType::Bool { cx.cast(x, DType::I32)? } else { x };
    let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
    index[axis] = &index[axis] - 1;
    let fill = Some(Scalar::from_i64(cx.dtype(elements), 0));
    let before = cx.push(Op::View { shape: shape.clone(), index, fill }, &[elements])?;
    let mut f = Body::default();
    let (mine, before_me, i, zero) = (f.arg(0), f.arg(1), f.index(Poly::var(axis)), f.i32(0));
    let is_first = f.binary(BinaryOp::Eq, i, zero);
    let mut other = f.binary(BinaryOp::Ne, mine, before_me);
    if dtype.is_float() {
        let nan = f.unary(UnaryOp::IsNan, mine);
        other = f.binary(BinaryOp::Or, other, nan);
    }
    let differs = f.binary(BinaryOp::Or, is_first, other);
    f.cast(DType::I32, differs);
    let differs = cx.map(f.0, &[elements, before])?;
    let others: Vec<usize> = (0..shape.len()).filter(|d| *d != axis).collect();
    let differs = cx.reduce(ReduceOp::Max, differs, &others, false)?;
    let mut f = Body::default();
    let (most, zero) = (f.arg(0), f.i32(0));
    f.binary(BinaryOp::Gt, most, zero);
    let differs = cx.map(f.0, &[differs])?;
    let order = cx.iota(std::slice::from_ref(&count), Poly::var(0), DType::I32)?;
    let of_groups = groups(cx, Sorted { order, differs }, &count)?;
    found(cx, x, axis, of_groups)
}

/// The axis of the slices; without one, all elements are flattened to a vector.
fn sliced(cx: &mut Lowering, x: Value, axis: Option<usize>) -> Built<(Value, usize)> {
    match axis {
        Some(axis) => Ok((x, axis)),
        None => {
            let n: Dim = cx.shape(x).iter().product();
            Ok((cx.reshape(x, vec![n])?, 0))
        }
    }
}

/// The first item of each group, the group of each item, and the size of each group (all i32).
fn groups(cx: &mut Lowering, sorted: Sorted, count: &Dim) -> Built<[Value; 3]> {
    let Chosen { places: begins, running } = chosen(cx, sorted.differs, count.clone())?;
    let groups = cx.shape(begins)[0].clone();
    let one = cx.int(DType::I32, 1);
    let group = cx.binary(BinaryOp::Sub, running, one)?;
    let inverse = placed(cx, group, sorted.order, count.clone())?;
    let first = cx.take(sorted.order, begins, 0)?;
    // A group ends where the next one begins, or at the end.
    let (next, fill) = (&Poly::var(0) + 1, Some(Scalar::from_i64(DType::I32, 0)));
    let next = cx.push(Op::View { shape: vec![groups.clone()], index: vec![next], fill }, &[begins])?;
    let mut f = Body::default();
    let (begin, next_begin) = (f.arg(0), f.arg(1));
    let (i, end, last) = (f.index(Poly::var(0)), f.index(count.clone()), f.index(&groups - 1));
    let is_last = f.binary(BinaryOp::Eq, i, last);
    let end = f.select(is_last, end, next_begin);
    f.binary(BinaryOp::Sub, end, begin);
    let counts = cx.map(f.0, &[begins, next])?;
    Ok([first, inverse, counts])
}

fn found(cx: &mut Lowering, x: Value, axis: usize, of: [Value; 3]) -> Result<Unique> {
    let values = cx.take(x, of[0], axis)?;
    let [first, inverse, counts] = of.map(|v| cx.cast(v, DType::I64));
    Ok(Unique { values, first: first?, inverse: inverse?, counts: counts? })
}

/// Integers whose order is that of the elements.
fn keys(cx: &mut Lowering, x: Value) -> Built {
    let t = cx.dtype(x);
    let mut f = Body::default();
    let x0 = f.arg(0);
    match t {
        DType::I64 | DType::U64 | DType::I32 | DType::U32 => return Ok(x),
        t if !t.is_float() => {
            f.cast(DType::I32, x0);
        }
        _ => {
            let x0 = if t == DType::F32 { x0 } else { f.cast(DType::F32, x0) };
            f.float_order(x0);
        }
    }
    cx.map(f.0, &[x])
}

fn sort(cx: &mut Lowering, keys: Value) -> Built<Sorted> {
    let n = cx.shape(keys)[0].clone();
    let node = cx.push(Op::TopK { axis: 0, k: n, largest: false }, &[keys])?.node;
    let sorted = Value { node, port: 0 };
    let order = cx.cast(Value { node, port: 1 }, DType::I32)?;
    Ok(Sorted { order, differs: differs(cx, sorted)? })
}

/// Sorts slices lexicographically.
fn sort_slices(cx: &mut Lowering, keys: Value, axis: usize) -> Built<Sorted> {
    let shape = cx.shape(keys);
    let n = shape[axis].clone();
    let mut perm: Vec<usize> = (0..shape.len()).filter(|d| *d != axis).collect();
    let len: Dim = perm.iter().map(|d| shape[*d].clone()).product();
    let Some(columns) = len.as_const() else { return slices_by_elements(cx, keys, axis) };
    perm.push(axis);
    let columns_of = cx.transpose(keys, &perm)?;
    let keys = cx.reshape(columns_of, vec![columns.into(), n.clone()])?;
    let key = joined_columns(cx, keys, columns)?;
    sort(cx, key)
}

/// One key per slice, from its elements `keys [columns, n]`: pairs of columns are combined to one column with the keys
/// of the pairs until one column is left.
fn joined_columns(cx: &mut Lowering, mut keys: Value, mut columns: i64) -> Built {
    let n = cx.shape(keys)[1].clone();
    if columns == 0 {
        return cx.iota(&[n], Poly::ZERO, DType::I32);
    }
    while columns > 1 {
        let halves = if cx.dtype(keys).bits() == 64 { numbered(cx, keys)? } else { keys };
        let signed = cx.dtype(halves) == DType::I32;
        columns = (columns as u64).div_ceil(2) as i64;
        let shape = vec![columns.into(), n.clone()];
        let mut column = |which: i64| {
            let index = vec![&(&Poly::var(0) * 2) + which, Poly::var(1)];
            let fill = Some(Scalar::from_i64(cx.dtype(halves), 0));
            cx.push(Op::View { shape: shape.clone(), index, fill }, &[halves])
        };
        let pair = [column(0)?, column(1)?];
        let mut f = Body::default();
        let words = [0, 1].map(|i| {
            let x = f.arg(i);
            let x = if signed { f.bitcast(DType::U32, x) } else { x };
            let x = if signed { f.flipped(x, 1 << 31) } else { x };
            f.cast(DType::U64, x)
        });
        let by = f.u64(32);
        let high = f.binary(BinaryOp::Shl, words[0], by);
        f.binary(BinaryOp::Or, high, words[1]);
        keys = cx.map(f.0, &pair)?;
    }
    cx.reshape(keys, vec![n])
}

/// Replaces each key of a row by the number (i32) of distinct keys up to it in sorted order.
fn numbered(cx: &mut Lowering, keys: Value) -> Built {
    let shape = cx.shape(keys);
    let node = cx.push(Op::TopK { axis: 1, k: shape[1].clone(), largest: false }, &[keys])?.node;
    let sorted = Value { node, port: 0 };
    let order = cx.cast(Value { node, port: 1 }, DType::I32)?;
    let differs = differs(cx, sorted)?;
    let ones = cx.cast(differs, DType::I32)?;
    let number =
        cx.push(Op::PrefixScan { op: ReduceOp::Sum, axis: 1, exclusive: false, reverse: false }, &[ones])?;
    let at = vec![Poly::var(0), Poly::var(1)];
    let index = vec![GatherAxis::Affine(Poly::var(0)), GatherAxis::Data { input: 1, at }];
    cx.push(Op::Place { shape, index }, &[number, order])
}

/// Whether each element differs from the one before it along the last axis; true for the first one.
fn differs(cx: &mut Lowering, sorted: Value) -> Built {
    let shape = cx.shape(sorted);
    let last = shape.len() - 1;
    let mut index: Vec<Poly> = (0..=last).map(Poly::var).collect();
    index[last] = &index[last] - 1;
    let fill = Some(Scalar::from_i64(cx.dtype(sorted), 0));
    let before = cx.push(Op::View { shape, index, fill }, &[sorted])?;
    let mut f = Body::default();
    let (mine, before_me, i, zero) = (f.arg(0), f.arg(1), f.index(Poly::var(last)), f.i32(0));
    let is_first = f.binary(BinaryOp::Eq, i, zero);
    let other = f.binary(BinaryOp::Ne, mine, before_me);
    f.binary(BinaryOp::Or, is_first, other);
    cx.map(f.0, &[sorted, before])
}

/// [`sort_slices`] for slices of unknown length: a stable sort by one element after another, from the last to the
/// first.
fn slices_by_elements(cx: &mut Lowering, keys: Value, axis: usize) -> Built<Sorted> {
    let shape = cx.shape(keys);
    let n = shape[axis].clone();
    let mut perm: Vec<usize> = (0..shape.len()).filter(|d| *d != axis).collect();
    let len: Dim = perm.iter().map(|d| shape[*d].clone()).product();
    perm.push(axis);
    let columns = cx.transpose(keys, &perm)?;
    let columns = cx.reshape(columns, vec![len, n.clone()])?;
    let all = cx.iota(std::slice::from_ref(&n), Poly::var(0), DType::I32)?;

    let mut body = Graph::new();
    let of = |dtype| TensorType::new(dtype, vec![n.clone()]);
    let before = body.add_input("order", of(DType::I32));
    let column = body.add_input("column", of(cx.dtype(keys)));
    let mut b = Builder { graph: &mut body, origin: cx.origin.clone() };
    let column = b.take(column, before, 0)?;
    let node = b.push(Op::TopK { axis: 0, k: n.clone(), largest: false }, &[column])?.node;
    let after = b.take(before, Value { node, port: 1 }, 0)?;
    body.outputs.push(Border { name: "order".into(), value: after });
    let op = Op::Scan {
        body: Box::new(body),
        carried: 1,
        scanned: 1,
        reverse_inputs: vec![true],
        reverse_outputs: vec![],
    };
    let order = cx.push(op, &[all, columns])?;

    let fill = Some(Scalar::from_i64(DType::I32, 0));
    let before = cx.push(Op::View { shape: vec![n], index: vec![&Poly::var(0) - 1], fill }, &[order])?;
    let (mine, before) = (cx.take(columns, order, 1)?, cx.take(columns, before, 1)?);
    let differs = cx.binary(BinaryOp::Ne, mine, before)?;
    let differs = cx.cast(differs, DType::I32)?;
    let differs = cx.reduce(ReduceOp::Max, differs, &[0], false)?;
    let mut f = Body::default();
    let (most, i, zero) = (f.arg(0), f.index(Poly::var(0)), f.i32(0));
    let (is_first, other) = (f.binary(BinaryOp::Eq, i, zero), f.binary(BinaryOp::Gt, most, zero));
    f.binary(BinaryOp::Or, is_first, other);
    Ok(Sorted { order, differs: cx.map(f.0, &[differs])? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;
    use std::collections::BTreeMap;
    use wgfc_ir::{Tensor, eval};

    /// The distinct slices of an axis in order, with the first position of each, the index of each slice among them,
    /// and the number of occurrences.
    fn distinct(x: &Tensor, n: usize, slice: impl Fn(usize) -> Vec<usize>) -> [Vec<i64>; 3] {
        let all = x.scalars().unwrap();
        let one = |a: &Scalar, b: &Scalar| match a.dtype {
            DType::U64 => a.bits.cmp(&b.bits),
            t if t.is_float() => {
                let (a, b) = (a.as_f64(), b.as_f64());
                a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
            _ => a.as_i64().cmp(&b.as_i64()),
        };
        let compare = |i: &usize, j: &usize| {
            let pairs = slice(*i).into_iter().zip(slice(*j));
            pairs.map(|(a, b)| one(&all[a], &all[b])).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
        };
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(compare);
        let (mut first, mut inverse, mut counts) = (vec![], vec![0; n], vec![]);
        for (at, i) in order.iter().enumerate() {
            if at == 0 || compare(&order[at - 1], i).is_ne() {
                first.push(*i as i64);
                counts.push(0);
            }
            inverse[*i] = first.len() as i64 - 1;
            counts[first.len() - 1] += 1;
        }
        [first, inverse, counts]
    }

    #[test]
    fn slices_stand_there_once() {
        let (n, mut seed) = (90usize, 1u64);
        for dtype in [DType::F32, DType::I64, DType::U64, DType::I8, DType::Bool] {
            for columns in [0usize, 1, 2, 3, 7, 8] {
                for named in 0..3 {
                    let mut g = Graph::new();
                    let dims = [(n, "n"), (columns, "c")].into_iter().enumerate();
                    let dims = dims.map(|(i, (n, s))| if i < named { Dim::sym(s) } else { n.into() });
                    let shape: Vec<Dim> = std::iter::once(Dim::from(2usize)).chain(dims).collect();
                    let x = g.add_input("x", TensorType::new(dtype, shape));
                    let mut cx = Lowering::new(&mut g);
                    let y = unique(&mut cx, x, Some(1), true).unwrap();
                    cx.finish();
                    for (name, value) in [("first", y.first), ("inverse", y.inverse), ("counts", y.counts)] {
                        g.outputs.push(Border { name: name.into(), value });
                    }
                    let values: Vec<Scalar> = (0..2 * n * columns)
                        .map(|_| {
                            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            // Columns in which most slices agree, so that later columns decide.
                            let v = ((seed >> 33) % 7) as i64;
                            match v {
                                _ if dtype.is_float() => Scalar::from_f64(
                                    dtype,
                                    [0.0, -0.0, 0.0, 1.0, -1.0, f64::NAN, 0.0][v as usize],
                                ),
                                5 if dtype.bits() == 64 => Scalar::from_i64(dtype, 1 << 40),
                                6 if dtype.bits() == 64 => Scalar::from_i64(dtype, -1),
                                v => Scalar::from_i64(dtype, (v / 4).min(1)),
                            }
                        })
                        .collect();
                    let x = Tensor::from_scalars(dtype, vec![2, n, columns], &values);
                    let slice = |i: usize| {
                        (0..2 * columns).map(|e| (e / columns * n + i) * columns + e % columns).collect()
                    };
                    let want = distinct(&x, n, slice);
                    let got = eval::evaluate(&g, &BTreeMap::from([("x".to_owned(), x)])).unwrap();
                    for (want, got) in want.iter().zip(&got) {
                        let got: Vec<i64> = got.scalars().unwrap().iter().map(|s| s.as_i64()).collect();
                        assert_eq!(&got, want, "{dtype}, {columns} columns, {named} axes named");
                    }
                }
            }
        }
    }
}
