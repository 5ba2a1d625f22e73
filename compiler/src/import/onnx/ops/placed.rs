//! Elements moved to positions that a formula or a small tensor gives.

use crate::import::onnx::prelude::*;
use crate::lower::placed;
use wgfc_ir::Dim;

fn one_hot(cx: &mut Cx) -> Lowered {
    let (indices, values) = (cx.input(0)?, cx.input_of_rank(2, 1)?);
    let depth = cx.input(1)?;
    cx.gives(1, "depth");
    let given = if cx.dtype(depth).is_float() {
        cx.const_numbers(1)?.into_iter().map(|d| Dim::from(d as i64)).collect()
    } else {
        cx.const_dims(1)?
    };
    let [depth] = given.as_slice() else {
        return Err(cx.at_input(1, OpError::model(format!("needs one number, got {}", given.len()))));
    };
    let axis = cx.int("axis", -1)?;
    let axis = cx.axis(axis, cx.rank(indices) + 1).map_err(|e| e.attribute("axis"))?;
    Ok(vec![placed::one_hot(cx, indices, depth, values, axis)?])
}

fn eye_like(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 2)?;
    let (dtype, k) = (cx.dtype_opt("dtype")?.unwrap_or(cx.dtype(x)), cx.int("k", 0)?);
    let shape = cx.shape(x);
    Ok(vec![placed::eye(cx, &shape, k, dtype)?])
}

fn reverse_sequence(cx: &mut Cx) -> Lowered {
    let (x, lengths) = (cx.input(0)?, cx.input_of_rank(1, 1)?);
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
    Ok(vec![placed::reverse_sequence(cx, x, lengths, time, batch)?])
}

fn center_crop_pad(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (rank, want) = (cx.rank(x), cx.const_dims(1)?);
    cx.gives(1, "shape");
    let axes: Vec<usize> = match cx.ints("axes")? {
        None => (0..rank).collect(),
        Some(given) => {
            cx.axes(&given, rank).map_err(|e| e.attribute("axes"))?;
            given.iter().map(|a| cx.axis(*a, rank)).collect::<Result<_>>()?
        }
    };
    if want.len() != axes.len() {
        return Err(cx.at_input(1, OpError::model(format!("{} extents for {} axes", want.len(), axes.len()))));
    }
    let wanted: Vec<(usize, Dim)> = axes.into_iter().zip(want).collect();
    Ok(vec![placed::center_crop_pad(cx, x, &wanted)?])
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
