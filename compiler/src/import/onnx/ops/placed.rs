//! Elements moved to places that a formula or a few numbers give.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Body, DType, Dim, Op, Poly, Scalar};

/// `values[1]` where the position along a new axis is the index, else `values[0]`. An index outside is nowhere.
fn one_hot(cx: &mut Cx) -> Lowered {
    let (indices, values) = (cx.input(0)?, cx.input_of_rank(2, 1)?);
    let depth = cx.input(1)?;
    let given = if cx.dtype(depth).is_float() {
        cx.const_numbers(1)?.into_iter().map(|d| Dim::from(d as i64)).collect()
    } else {
        cx.const_dims(1)?
    };
    let [depth] = given.as_slice() else {
        return Err(cx.at_input(1, OpError::model(format!("needs one number, got {}", given.len()))));
    };
    if depth.as_const().is_some_and(|d| d < 1) {
        return Err(cx.at_input(1, OpError::model(format!("a depth of {depth}"))));
    }
    if cx.shape(values)[0].as_const().is_some_and(|n| n != 2) {
        return Err(cx.at_input(2, OpError::model(format!("needs two values, got {}", cx.ty(values)))));
    }
    let axis = cx.int("axis", -1)?;
    let axis = cx.axis(axis, cx.rank(indices) + 1).map_err(|e| e.attribute("axis"))?;
    let mut shape = cx.shape(indices);
    shape.insert(axis, depth.clone());

    let mut f = Body::default();
    let (index, off, on) = (f.arg(0), f.arg(1), f.arg(2));
    // What an i64 does not hold is outside, whatever the conversion makes of it.
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
    Ok(vec![cx.map_to(f.0, &[indices, off, on], shape)?])
}

/// Ones on diagonal `k` of a matrix.
fn eye_like(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 2)?;
    let dtype = cx.dtype_opt("dtype")?.unwrap_or(cx.dtype(x));
    let mut f = Body::default();
    let off = f.index(&Poly::var(1) - &Poly::var(0));
    let k = f.int(DType::I32, cx.int("k", 0)?.clamp(i64::from(i32::MIN), i64::from(i32::MAX)));
    let on = f.binary(BinaryOp::Eq, off, k);
    if dtype != DType::Bool {
        f.cast(dtype, on);
    }
    let shape = cx.shape(x);
    Ok(vec![cx.map_to(f.0, &[], shape)?])
}

/// The first elements along the time axis backwards, as many as each sequence has.
fn reverse_sequence(cx: &mut Cx) -> Lowered {
    let (x, lengths) = (cx.input(0)?, cx.input_of_rank(1, 1)?);
    if cx.rank(x) < 2 {
        return Err(cx.at_input(0, OpError::model(format!("needs two axes, got {}", cx.ty(x)))));
    }
    if !cx.dtype(lengths).is_int() {
        return Err(cx.at_input(1, OpError::model(format!("lengths of type {}", cx.ty(lengths)))));
    }
    let mut axes = [0; 2];
    for (axis, (name, default)) in axes.iter_mut().zip([("time_axis", 0), ("batch_axis", 1)]) {
        *axis = match cx.int(name, default)? {
            0 => 0,
            1 => 1,
            other => return Err(OpError::model(format!("axis {other}, not 0 or 1")).attribute(name)),
        };
    }
    let [time, batch] = axes;
    if time == batch {
        return Err(OpError::model(format!("axis {time} is both time and batch")).attribute("batch_axis"));
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
    Ok(vec![cx.push(Op::Gather { shape, index }, &[x, places])?])
}

/// The middle of each axis, or the axis in the middle of zeros.
fn center_crop_pad(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let from = cx.shape(x);
    let want = cx.const_dims(1)?;
    let axes: Vec<usize> = match cx.ints("axes")? {
        None => (0..from.len()).collect(),
        Some(given) => {
            cx.axes(&given, from.len()).map_err(|e| e.attribute("axes"))?;
            given.iter().map(|a| cx.axis(*a, from.len())).collect::<Result<_, _>>()?
        }
    };
    if want.len() != axes.len() {
        return Err(cx.at_input(1, OpError::model(format!("{} extents for {} axes", want.len(), axes.len()))));
    }
    let mut shape = from.clone();
    let mut index: Vec<Poly> = (0..from.len()).map(Poly::var).collect();
    let two = Poly::constant(2);
    for (axis, to) in axes.into_iter().zip(want) {
        if to.as_const().is_some_and(|c| c < 0) {
            return Err(cx.at_input(1, OpError::model(format!("extent {to}"))));
        }
        let more = &to - &from[axis];
        let (cropped, padded) = ((-&more).max_of(&Dim::ZERO, &[]), more.max_of(&Dim::ZERO, &[]));
        index[axis] = &(&index[axis] + &cropped.div(&two, &[])) - &padded.div(&two, &[]);
        shape[axis] = to;
    }
    let inside = index.iter().zip(&from).all(|(p, d)| p.in_range(d, &shape));
    let fill = if inside { None } else { Some(Scalar::from_i64(cx.dtype(x), 0)) };
    Ok(vec![cx.push(Op::View { shape, index, fill }, &[x])?])
}

/// `CenterCropPad`, `EyeLike`, `OneHot`, `ReverseSequence`.
pub const OPS: &[OpDef] = &[
    OpDef::new("CenterCropPad", &[18], center_crop_pad)
        .cases(&["test_center_crop_pad_crop", "test_center_crop_pad_pad"])
        .notes("the shape must not depend on data"),
    OpDef::new("EyeLike", &[9, 22], eye_like).cases(&["test_eyelike_"]),
    OpDef::new("OneHot", &[9, 11, 28], one_hot)
        .cases(&["test_onehot_"])
        .notes("the depth must not depend on data"),
    OpDef::new("ReverseSequence", &[10, 28], reverse_sequence).cases(&["test_reversesequence_"]),
];
