//! Elements chosen by a condition: how many there are, a run computes.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::build::Built;
use wgfc_ir::{BinaryOp, Body, DType, Dim, GatherAxis, Op, Poly, ReduceOp, Scalar, Tensor, Value};

/// Where a condition holds.
pub(super) struct Chosen {
    /// The positions where it does, ascending, `i32 [n]`.
    pub places: Value,
    /// How many there are up to each position, itself included, `i32` of the condition's shape.
    pub running: Value,
}

/// The positions where a condition of one axis holds. There are at most `bound`.
pub(super) fn chosen(cx: &mut Cx, condition: Value, bound: Dim) -> Built<Chosen> {
    let n = cx.shape(condition)[0].clone();
    let ones = cx.cast(condition, DType::I32)?;
    let running =
        cx.push(Op::Cumulate { op: ReduceOp::Sum, axis: 0, exclusive: false, reverse: false }, &[ones])?;
    // Of an empty axis there is no last element.
    let (last, fill) = (vec![&n - 1], Some(Scalar::from_i64(DType::I32, 0)));
    let count = cx.push(Op::View { shape: vec![], index: last, fill }, &[running])?;
    let count = cx.computed_size(count, bound);
    let mut to = Body::default();
    let (holds, up_to) = (to.arg(0), to.arg(1));
    let (one, nowhere) = (to.i32(1), to.i32(i64::from(i32::MAX)));
    let place = to.binary(BinaryOp::Sub, up_to, one);
    to.select(holds, place, nowhere);
    let to = cx.map(to.0, &[condition, running])?;
    let all = cx.iota(&[n], Poly::var(0), DType::I32)?;
    Ok(Chosen { places: placed(cx, all, to, count)?, running })
}

/// `out[to[i]] = x[i]` along one axis, every element of the result being written once.
pub(super) fn placed(cx: &mut Cx, x: Value, to: Value, extent: Dim) -> Built {
    let index = vec![GatherAxis::Data { input: 1, at: vec![Poly::var(0)] }];
    cx.push(Op::Place { shape: vec![extent], index }, &[x, to])
}

/// The slices along an axis, or the elements, where the condition is true. It may be shorter than the axis.
fn compress(cx: &mut Cx) -> Lowered {
    let mut x = cx.input(0)?;
    let mut condition = cx.input_of_rank(1, 1)?;
    if cx.dtype(condition) != DType::Bool {
        return Err(
            cx.at_input(1, OpError::model(format!("the condition is {}, not bool", cx.ty(condition))))
        );
    }
    let axis = match cx.int_opt("axis")? {
        Some(axis) => cx.axis(axis, cx.rank(x)).map_err(|e| e.attribute("axis"))?,
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
        return Err(cx.at_input(1, OpError::model(format!("{c} conditions for {n} slices"))));
    }
    let places = match cx.numbers(condition) {
        Some(known) => {
            let places: Vec<i64> = (0..).zip(&known).filter(|(_, c)| **c != 0.0).map(|(i, _)| i).collect();
            cx.constant(Tensor::from_i64(vec![places.len()], &places))
        }
        None => {
            cx.require_open_sizes_of(1)?;
            let bound = len.min_of(&slices, &[]);
            condition = cx.slice(condition, 0, &Poly::ZERO, 1, &bound)?;
            chosen(cx, condition, bound)?.places
        }
    };
    Ok(vec![cx.take(x, places, axis)?])
}

/// The positions of elements that are not 0, `[rank, count]`, in row-major order.
fn non_zero(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let shape = cx.shape(x);
    let all: Dim = shape.iter().product();
    let places = match (cx.numbers(x), all.as_const()) {
        (Some(known), Some(_)) => {
            let places: Vec<i64> = (0..).zip(&known).filter(|(_, e)| **e != 0.0).map(|(i, _)| i).collect();
            cx.constant(Tensor::from_i64(vec![places.len()], &places))
        }
        _ => {
            cx.require_open_sizes_of(0)?;
            let flat = cx.reshape(x, vec![all.clone()])?;
            let condition = match cx.dtype(flat) {
                DType::Bool => flat,
                _ => cx.binary_scalar(BinaryOp::Ne, flat, 0.0)?,
            };
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
    Ok(vec![cx.map_to(f.0, &[places], vec![shape.len().into(), rows])?])
}

/// `Compress` and `NonZero`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Compress", &[9, 11, 28], compress).cases(&["test_compress_"]),
    OpDef::new("NonZero", &[9, 13], non_zero).cases(&["test_nonzero_"]),
];
