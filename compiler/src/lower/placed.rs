//! Operators that move elements to positions given by a formula or by a few numbers.

use super::{Lowering, OpError, Result, elementwise};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Body, DType, Dim, Op, Poly, Scalar, Value};

/// `values[1]` where the position along a new axis of extent `depth` equals the index, else `values[0]`. An index out
/// of range selects no position.
pub fn one_hot(cx: &mut Lowering, indices: Value, depth: &Dim, values: Value, axis: usize) -> Result {
    if depth.as_const().is_some_and(|d| d < 1) {
        return Err(OpError::model(format!("a depth of {depth}")).param("depth"));
    }
    if cx.shape(cx.require_rank(values, 1)?)[0].as_const().is_some_and(|n| n != 2) {
        return Err(OpError::model(format!("needs two values, got {}", cx.ty(values))).operand(values));
    }
    let mut shape = cx.shape(indices);
    shape.insert(axis, depth.clone());

    let mut f = Body::default();
    let (index, off, on) = (f.arg(0), f.arg(1), f.arg(2));
    // A number outside the range of i64 is out of range, whatever the conversion would make of it.
    let given = cx.dtype(indices);
    let index = match given {
        DType::U64 => {
            let most = f.int(given, i64::MAX);
            f.binary(BinaryOp::Min, index, most)
        }
        _ if given.is_float() && given.bits() >= 32 => {
            let far = [-1.0, 1.0].map(|s| f.number(given, s * 2f64.powi(62)));
            let index = f.binary(BinaryOp::Max, index, far[0]);
            f.binary(BinaryOp::Min, index, far[1])
        }
        _ => index,
    };
    let (index, depth) = (f.cast(DType::I64, index), f.index(depth.clone()));
    let (depth, zero) = (f.cast(DType::I64, depth), f.int(DType::I64, 0));
    let negative = f.binary(BinaryOp::Lt, index, zero);
    let from_end = f.binary(BinaryOp::Add, index, depth);
    let index = f.select(negative, from_end, index);
    let here = f.index(Poly::var(axis));
    let here = f.cast(DType::I64, here);
    let hot = f.binary(BinaryOp::Eq, index, here);
    f.select(hot, on, off);

    let indices = cx.unsqueeze(indices, &[axis])?;
    let off = cx.view(values, vec![], vec![Poly::ZERO])?;
    let on = cx.view(values, vec![], vec![Poly::ONE])?;
    Ok(cx.map_to(f.0, &[indices, off, on], shape)?)
}

/// A matrix with ones on diagonal `k`, else zeros.
pub fn eye(cx: &mut Lowering, shape: &[Dim], k: i64, dtype: DType) -> Result {
    let mut f = Body::default();
    let off = f.index(&Poly::var(1) - &Poly::var(0));
    let k = f.int(DType::I32, k.clamp(i64::from(i32::MIN), i64::from(i32::MAX)));
    let on = f.binary(BinaryOp::Eq, off, k);
    if dtype != DType::Bool {
        f.cast(dtype, on);
    }
    Ok(cx.map_to(f.0, &[], shape.to_vec())?)
}

/// Reverses the first `lengths[b]` elements along the time axis for each element `b` of the batch axis. The axes must
/// be 0 and 1, in any order.
pub fn reverse_sequence(cx: &mut Lowering, x: Value, lengths: Value, time: usize, batch: usize) -> Result {
    if cx.rank(x) < 2 {
        return Err(OpError::model(format!("needs two axes, got {}", cx.ty(x))).operand(x));
    }
    if !cx.dtype(cx.require_rank(lengths, 1)?).is_int() {
        return Err(OpError::model(format!("lengths of type {}", cx.ty(lengths))).operand(lengths));
    }
    let shape = cx.shape(x);
    let lengths = cx.cast(lengths, DType::I64)?;

    let mut f = Body::default();
    let (n, at, one) = (f.arg(0), f.index(Poly::var(0)), f.int(DType::I64, 1));
    let at = f.cast(DType::I64, at);
    let inside = f.binary(BinaryOp::Lt, at, n);
    let last = f.binary(BinaryOp::Sub, n, one);
    let back = f.binary(BinaryOp::Sub, last, at);
    f.select(inside, back, at);
    let places = cx.map_to(f.0, &[lengths], vec![shape[time].clone(), shape[batch].clone()])?;
    let index = (0..shape.len())
        .map(|d| {
            if d == time {
                GatherAxis::Data { input: 1, at: vec![Poly::var(time), Poly::var(batch)] }
            } else {
                GatherAxis::Affine(Poly::var(d))
            }
        })
        .collect();
    Ok(cx.push(Op::Gather { shape, index }, &[x, places])?)
}

/// Crops each of some axes around its centre, or pads it with zeros on both sides, to the wanted extent.
pub fn center_crop_pad(cx: &mut Lowering, x: Value, wanted: &[(usize, Dim)]) -> Result {
    let from = cx.shape(x);
    let mut shape = from.clone();
    let mut index: Vec<Poly> = (0..from.len()).map(Poly::var).collect();
    let two = Poly::constant(2);
    for (axis, to) in wanted {
        if to.as_const().is_some_and(|c| c < 0) {
            return Err(OpError::model(format!("extent {to}")).param("shape"));
        }
        let axis = *axis;
        let more = to - &from[axis];
        let (cropped, padded) = ((-&more).max_of(&Dim::ZERO, &[]), more.max_of(&Dim::ZERO, &[]));
        index[axis] = &(&index[axis] + &cropped.div(&two, &[])) - &padded.div(&two, &[]);
        shape[axis] = to.clone();
    }
    let inside = index.iter().zip(&from).all(|(p, d)| p.in_range(d, &shape));
    let fill = if inside { None } else { Some(Scalar::from_i64(cx.dtype(x), 0)) };
    Ok(cx.push(Op::View { shape, index, fill }, &[x])?)
}

/// `x`, replaced by the element of `part` at `index` where `index` lies inside of `part`.
pub fn over(cx: &mut Lowering, x: Value, part: Value, index: Vec<Poly>) -> Result {
    let (shape, dims) = (cx.shape(x), cx.shape(part));
    let whole = cx.full(&dims, Scalar::bool(true))?;
    let op = Op::View { shape: shape.clone(), index: index.clone(), fill: Some(Scalar::bool(false)) };
    let inside = cx.push(op, &[whole])?;
    let fill = Some(Scalar::from_i64(cx.dtype(part), 0));
    let part = cx.push(Op::View { shape, index, fill }, &[part])?;
    elementwise::choose(cx, inside, part, x)
}
