//! Each element, or slice along an axis, once.
//!
//! What is equal stands together once sorted. Where it begins, a group begins; a running sum of the
//! beginnings numbers the groups.

use super::chosen::{Chosen, chosen, placed};
use super::{Lowering, Result};
use wgfc_ir::build::Built;
use wgfc_ir::{BinaryOp, Body, DType, Dim, GatherAxis, Op, Poly, ReduceOp, Scalar, UnaryOp, Value};

/// An order of things that may be equal.
struct Sorted {
    /// Which thing stands at each place, `i32 [count]`; of equal ones the first is first.
    order: Value,
    /// Whether it differs from the one before it, `bool [count]`.
    differs: Value,
}

/// What is left once each stands there once.
#[derive(Clone, Copy, Debug)]
pub struct Unique {
    /// The elements, or slices.
    pub values: Value,
    /// Where each stands first (i64).
    pub first: Value,
    /// Which of them each of `x` is (i64).
    pub inverse: Value,
    /// How often each stands there (i64).
    pub counts: Value,
}

/// Of the elements, or of the slices along an axis: in ascending order, or in that in which they come.
pub fn unique(cx: &mut Lowering, x: Value, axis: Option<usize>, sorted_order: bool) -> Result<Unique> {
    cx.require_open_sizes(x)?;
    let (x, axis) = sliced(cx, x, axis)?;
    let count = cx.shape(x)[axis].clone();
    let keys = keys(cx, x)?;
    let sorted = if cx.rank(x) == 1 { sort(cx, keys)? } else { sort_slices(cx, keys, axis)? };
    let [mut first, mut inverse, mut counts] = groups(cx, sorted, &count)?;
    if !sorted_order {
        // In the order of the first of each group, whose place is that among all firsts.
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

/// Of neighbours that are equal, or of such slices along an axis, the first. What is no number is like no other.
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

/// The axis along which there are slices; without one all elements in order.
fn sliced(cx: &mut Lowering, x: Value, axis: Option<usize>) -> Built<(Value, usize)> {
    match axis {
        Some(axis) => Ok((x, axis)),
        None => {
            let n: Dim = cx.shape(x).iter().product();
            Ok((cx.reshape(x, vec![n])?, 0))
        }
    }
}

/// Where each group stands first, which of them each thing is in, how many are in each (all i32).
fn groups(cx: &mut Lowering, sorted: Sorted, count: &Dim) -> Built<[Value; 3]> {
    let Chosen { places: begins, running } = chosen(cx, sorted.differs, count.clone())?;
    let groups = cx.shape(begins)[0].clone();
    let one = cx.int(DType::I32, 1);
    let group = cx.binary(BinaryOp::Sub, running, one)?;
    let inverse = placed(cx, group, sorted.order, count.clone())?;
    let first = cx.take(sorted.order, begins, 0)?;
    // To where the next group begins, or to the end.
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

/// Integers that compare as the elements do. Floats are sorted by their bits, the negative ones flipped;
/// both zeros are one, and all that are no numbers are equal and the greatest.
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
            let zero = f.f32(0.0);
            let is_zero = f.binary(BinaryOp::Eq, x0, zero);
            let x0 = f.select(is_zero, zero, x0);
            let bits = f.bitcast(DType::U32, x0);
            let (none, sign, top) = (f.u32(0), f.u32(1 << 31), f.u32(i64::from(u32::MAX)));
            let masked = f.binary(BinaryOp::And, bits, sign);
            let positive = f.binary(BinaryOp::Eq, masked, none);
            let (up, down) = (f.flipped(bits, 1 << 31), f.flipped(bits, u32::MAX));
            let order = f.select(positive, up, down);
            let nan = f.unary(UnaryOp::IsNan, x0);
            f.select(nan, top, order);
        }
    }
    cx.map(f.0, &[x])
}

fn sort(cx: &mut Lowering, keys: Value) -> Built<Sorted> {
    let n = cx.shape(keys)[0].clone();
    let node = cx.push(Op::TopK { axis: 0, k: n.clone(), largest: false }, &[keys])?.node;
    let sorted = Value { node, port: 0 };
    let order = cx.cast(Value { node, port: 1 }, DType::I32)?;
    let (index, fill) = (vec![&Poly::var(0) - 1], Some(Scalar::from_i64(cx.dtype(keys), 0)));
    let before = cx.push(Op::View { shape: vec![n], index, fill }, &[sorted])?;
    let mut f = Body::default();
    let (mine, before_me, i) = (f.arg(0), f.arg(1), f.index(Poly::var(0)));
    let zero = f.i32(0);
    let is_first = f.binary(BinaryOp::Eq, i, zero);
    let other = f.binary(BinaryOp::Ne, mine, before_me);
    f.binary(BinaryOp::Or, is_first, other);
    Ok(Sorted { order, differs: cx.map(f.0, &[sorted, before])? })
}

/// Slices compare as their elements do where they first differ. Each is compared with each.
fn sort_slices(cx: &mut Lowering, keys: Value, axis: usize) -> Built<Sorted> {
    let shape = cx.shape(keys);
    let n = shape[axis].clone();
    let mut perm: Vec<usize> = (0..shape.len()).filter(|d| *d != axis).collect();
    perm.insert(0, axis);
    let slices = cx.transpose(keys, &perm)?;
    let len: Dim = perm[1..].iter().map(|d| shape[*d].clone()).product();
    let slices = cx.reshape(slices, vec![n.clone(), len.clone()])?;
    let (mine, other) = (cx.unsqueeze(slices, &[1])?, cx.unsqueeze(slices, &[0])?);
    // Of a pair (i, j): 2l where element l is the first that differs, odd where that of j is less; 2·len for none.
    let mut f = Body::default();
    let (a, b, l) = (f.arg(0), f.arg(1), f.index(&Poly::var(2) * 2));
    let (differs, less) = (f.binary(BinaryOp::Ne, a, b), f.binary(BinaryOp::Lt, b, a));
    let less = f.cast(DType::I32, less);
    let (code, none) = (f.binary(BinaryOp::Add, l, less), f.index(&len * 2));
    f.select(differs, code, none);
    let pairs = cx.map_to(f.0, &[mine, other], vec![n.clone(), n.clone(), len.clone()])?;
    let code = cx.reduce(ReduceOp::Min, pairs, &[2], false)?;
    let mut f = Body::default();
    let (code_0, none, one) = (f.arg(0), f.index(&len * 2), f.i32(1));
    let equal = f.binary(BinaryOp::Ge, code_0, none);
    let (i, j) = (f.index(Poly::var(0)), f.index(Poly::var(1)));
    let earlier = f.binary(BinaryOp::Lt, j, i);
    let (earlier, less) = (f.cast(DType::I32, earlier), f.binary(BinaryOp::And, code_0, one));
    f.select(equal, earlier, less);
    let before = cx.map(f.0, &[code])?;
    let rank = cx.reduce(ReduceOp::Sum, before, &[1], false)?;
    let all = cx.iota(std::slice::from_ref(&n), Poly::var(0), DType::I32)?;
    let order = placed(cx, all, rank, n.clone())?;
    let (index, fill) = (vec![&Poly::var(0) - 1], Some(Scalar::from_i64(DType::I32, 0)));
    let before = cx.push(Op::View { shape: vec![n.clone()], index, fill }, &[order])?;
    let at = |input| GatherAxis::Data { input, at: vec![Poly::var(0)] };
    let op = Op::Gather { shape: vec![n], index: vec![at(1), at(2)] };
    let code = cx.push(op, &[code, order, before])?;
    let mut f = Body::default();
    let (pair, none, i, zero) = (f.arg(0), f.index(&len * 2), f.index(Poly::var(0)), f.i32(0));
    let (is_first, other) = (f.binary(BinaryOp::Eq, i, zero), f.binary(BinaryOp::Lt, pair, none));
    f.binary(BinaryOp::Or, is_first, other);
    Ok(Sorted { order, differs: cx.map(f.0, &[code])? })
}
