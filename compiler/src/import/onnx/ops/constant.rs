//! Values without operands: constants and ranges.

use crate::import::onnx::prelude::*;
use crate::lower::range;
use wgfc_ir::{DType, Dim, Scalar, Tensor};

fn constant(cx: &mut Cx) -> Lowered {
    if let Some(t) = cx.tensor("value")? {
        return Ok(vec![cx.constant(t)]);
    }
    let scalars = |dtype, v: &[f64]| v.iter().map(|v| Scalar::from_f64(dtype, *v)).collect::<Vec<_>>();
    let t = if let Some(v) = cx.float_opt("value_float")? {
        Tensor::scalar(Scalar::from_f64(DType::F32, v.into()))
    } else if let Some(v) = cx.floats("value_floats")? {
        let v: Vec<f64> = v.into_iter().map(f64::from).collect();
        Tensor::from_scalars(DType::F32, vec![v.len()], &scalars(DType::F32, &v))
    } else if let Some(v) = cx.int_opt("value_int")? {
        Tensor::from_i64(vec![], &[v])
    } else if let Some(v) = cx.ints("value_ints")? {
        Tensor::from_i64(vec![v.len()], &v)
    } else {
        let names: Vec<&str> = cx.node.attribute.iter().map(|a| a.name.as_str()).collect();
        return Err(match names.as_slice() {
            [] => OpError::model("no value is given"),
            [one, ..] => {
                let help = "give it by `value`, a dense tensor of numbers or bools";
                OpError::unsupported(format!("a constant given by `{one}`"), help).attribute(one)
            },
        });
    };
    Ok(vec![cx.constant(t)])
}

fn constant_of_shape(cx: &mut Cx) -> Lowered {
    let shape = cx.const_dims(0)?;
    if let Some(d) = shape.iter().find(|d| d.as_const().is_some_and(|c| c < 0)) {
        return Err(cx.at_input(0, OpError::model(format!("dimension {d} is negative"))));
    }
    let s = match cx.tensor("value")? {
        None => Scalar::from_f64(DType::F32, 0.0),
        Some(t) => match t.scalars().as_deref() {
            Some([one]) => *one,
            _ => {
                return Err(OpError::model(format!("its value has shape {:?}, not one element", t.shape))
                    .attribute("value"));
            }
        },
    };
    Ok(vec![cx.full(&shape, s)?])
}

/// The length of a range of floats, whose bounds are constants or fractions of dimensions.
fn float_length(cx: &mut Cx, dtype: DType) -> Result<Dim> {
    let inputs = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    if let [Some(start), Some(limit), Some(step)] = inputs.map(|v| cx.numbers(v)?.first().copied()) {
        return range::float_length(dtype, start, limit, step);
    }
    let mut fraction = |i: usize| {
        let all = cx.const_fractions(i)?;
        all.into_iter().next().ok_or_else(|| OpError::model("needs one element"))
    };
    range::fraction_length(&fraction(0)?, &fraction(1)?, &fraction(2)?)
}

/// `start + i·delta` up to but not including `limit`; the length may depend on dimensions.
fn range(cx: &mut Cx) -> Lowered {
    let (start, limit, delta) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    cx.gives(2, "step");
    let dtype = cx.dtype(start);
    if cx.dtype(limit) != dtype || cx.dtype(delta) != dtype {
        return Err("start, limit and delta are of different element types".into());
    }
    if dtype.is_float() {
        let len = float_length(cx, dtype)?;
        return Ok(vec![range::spaced(cx, len, start, delta)?]);
    }
    let one = |v: Vec<Dim>| v.into_iter().next().ok_or_else(|| OpError::model("needs one element"));
    let (first, last, step) = (one(cx.const_dims(0)?)?, one(cx.const_dims(1)?)?, cx.const_int(2)?);
    if step == 0 {
        return Err(cx.at_input(2, OpError::model("the step is 0")));
    }
    if let Some(y) = range::counted(cx, dtype, &first, &last, step)? {
        return Ok(vec![y]);
    }
    let len = range::length(&first, &last, step);
    Ok(vec![range::spaced(cx, len, start, delta)?])
}

/// `Constant`, `ConstantOfShape`, `Range`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Constant", &[1, 9, 11, 12, 13, 19, 21, 23, 24, 25], constant)
        .cases(&["test_constant"])
        .notes("no sparse tensors, no strings"),
    OpDef::new("ConstantOfShape", &[9, 20, 21, 23, 24, 25], constant_of_shape)
        .cases(&["test_constantofshape_"]),
    OpDef::new("Range", &[11, 27], range).cases(&["test_range_"]).notes("bounds must not depend on data"),
];
