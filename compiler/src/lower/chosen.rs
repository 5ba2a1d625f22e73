//! Selection by a condition: the number of selected elements is computed when the program runs.

use super::{Lowering, OpError, Result};
use wgfc_ir::build::Built;
use wgfc_ir::{BinaryOp, Body, DType, Dim, GatherAxis, Op, Poly, ReduceOp, Tensor, Value};

/// The positions where a condition holds.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// The positions, ascending, `i32 [n]`.
    pub places: Value,
    /// The inclusive running count of true elements at each position, `i32` of the condition's shape.
    pub running: Value,
}

/// The destinations of the selected elements.
struct Order {
    /// The destination of each element among the selected ones, or `i32::MAX` if it is not selected.
    to: Value,
    /// The inclusive running count of selected elements at each position.
    running: Value,
    /// The number of selected elements.
    count: Dim,
}

/// The destinations of the elements for which a rank-1 condition holds; at most `bound` are selected.
fn order(cx: &mut Lowering, condition: Value, bound: Dim) -> Built<Order> {
    let ones = cx.cast(condition, DType::I32)?;
    let running =
        cx.push(Op::PrefixScan { op: ReduceOp::Sum, axis: 0, exclusive: false, reverse: false }, &[ones])?;
    // A sum of its own rather than the last element of `running`: then `running` need not be stored where only `to`
    // uses it.
    let count = cx.reduce(ReduceOp::Sum, ones, &[0], false)?;
    // The clamp never changes the count; it makes its range visible in the kernel that computes it.
    let mut f = Body::default();
    let (all, most, none) = (f.arg(0), f.index(bound.clone()), f.i32(0));
    let at_most = f.binary(BinaryOp::Min, all, most);
    f.binary(BinaryOp::Max, at_most, none);
    let count = cx.map(f.0, &[count])?;
    let count = cx.computed_size(count, bound);
    let mut to = Body::default();
    let (holds, up_to) = (to.arg(0), to.arg(1));
    let (one, nowhere) = (to.i32(1), to.i32(i64::from(i32::MAX)));
    let place = to.binary(BinaryOp::Sub, up_to, one);
    to.select(holds, place, nowhere);
    let to = cx.map(to.0, &[condition, running])?;
    Ok(Order { to, running, count })
}

/// The positions where a rank-1 condition holds; at most `bound` of them.
pub fn chosen(cx: &mut Lowering, condition: Value, bound: Dim) -> Built<Chosen> {
    let n = cx.shape(condition)[0].clone();
    let Order { to, running, count } = order(cx, condition, bound)?;
    let all = cx.iota(&[n], Poly::var(0), DType::I32)?;
    Ok(Chosen { places: placed(cx, all, to, count)?, running })
}

/// `out[to[i]] = x[i]` for rank-1 tensors; every element of the result must be written exactly once.
pub fn placed(cx: &mut Lowering, x: Value, to: Value, extent: Dim) -> Built {
    let index = vec![GatherAxis::Data { input: 1, at: vec![Poly::var(0)] }];
    cx.push(Op::Place { shape: vec![extent], index }, &[x, to])
}

/// The slices along an axis, or without an axis the elements of the flattened tensor, where the condition is true. The
/// condition may be shorter than the axis.
pub fn compress(cx: &mut Lowering, mut x: Value, mut condition: Value, axis: Option<usize>) -> Result {
    let given = condition;
    if cx.dtype(cx.require_rank(condition, 1)?) != DType::Bool {
        let e = format!("the condition is {}, not bool", cx.ty(condition));
        return Err(OpError::model(e).operand(condition));
    }
    let axis = match axis {
        Some(axis) => axis,
        None => {
            let n: Dim = cx.shape(x).iter().product();
            x = cx.reshape(x, vec![n])?;
            0
        }
    };
    let (len, slices) = (cx.shape(condition)[0].clone(), cx.shape(x)[axis].clone());
    if let (Some(c), Some(n)) = (len.as_const(), slices.as_const())
        && c > n
    {
        return Err(OpError::model(format!("{c} conditions for {n} slices")).operand(given));
    }
    let places = match cx.numbers(condition) {
        Some(known) => {
            let places: Vec<i64> = (0..).zip(&known).filter(|(_, c)| **c != 0.0).map(|(i, _)| i).collect();
            cx.constant(Tensor::from_i64(vec![places.len()], &places))
        }
        None => {
            cx.require_open_sizes(given)?;
            let bound = len.min_of(&slices, &[]);
            condition = cx.slice(condition, 0, &Poly::ZERO, 1, &bound)?;
            chosen(cx, condition, bound)?.places
        }
    };
    Ok(cx.take(x, places, axis)?)
}

/// The positions of elements that are not 0, `[rank, count]`, in row-major order.
pub fn non_zero(cx: &mut Lowering, x: Value) -> Result {
    let shape = cx.shape(x);
    let all: Dim = shape.iter().product();
    let places = match (cx.numbers(x), all.as_const()) {
        (Some(known), Some(_)) => {
            let places: Vec<i64> = (0..).zip(&known).filter(|(_, e)| **e != 0.0).map(|(i, _)| i).collect();
            cx.constant(Tensor::from_i64(vec![places.len()], &places))
        }
        _ => {
            cx.require_open_sizes(x)?;
            let flat = cx.reshape(x, vec![all.clone()])?;
            let condition = match cx.dtype(flat) {
                DType::Bool => flat,
                _ => cx.binary_scalar(BinaryOp::Ne, flat, 0.0)?,
            };
            if let [_] = shape[..] {
                // Each selected element writes its own position to its destination.
                let Order { to, count, .. } = order(cx, condition, all.clone())?;
                let positions = cx.iota(&[Dim::ONE, all], Poly::var(1), DType::I64)?;
                let index = vec![
                    GatherAxis::Affine(Poly::var(0)),
                    GatherAxis::Data { input: 1, at: vec![Poly::var(1)] },
                ];
                return Ok(cx.push(Op::Place { shape: vec![Dim::ONE, count], index }, &[positions, to])?);
            }
            chosen(cx, condition, all)?.places
        }
    };
    let places = cx.cast(places, DType::I32)?;
    let rows = cx.shape(places)[0].clone();
    let mut f = Body::default();
    let (place, axis) = (f.arg(0), f.index(Poly::var(0)));
    let (mut inner, mut position) = (Dim::ONE, f.i32(0));
    for (d, extent) in shape.iter().enumerate().rev() {
        let (step, of, this) = (f.index(inner.clone()), f.index(extent.clone()), f.i32(d as i64));
        let at = f.binary(BinaryOp::Div, place, step);
        let at = if d > 0 { f.binary(BinaryOp::Mod, at, of) } else { at };
        let here = f.binary(BinaryOp::Eq, axis, this);
        position = f.select(here, at, position);
        inner = &inner * extent;
    }
    f.cast(DType::I64, position);
    Ok(cx.map_to(f.0, &[places], vec![shape.len().into(), rows])?)
}
