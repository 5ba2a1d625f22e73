//! Values that come from nowhere: constants, ranges.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar, Tensor, Value};

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
            [one, ..] => OpError::unsupported(format!("a constant given by `{one}`")).attribute(one),
        });
    };
    Ok(vec![cx.constant(t)])
}

fn constant_of_shape(cx: &mut Cx) -> Lowered {
    let shape = cx.const_dims(0)?;
    if let Some(d) = shape.iter().find(|d| d.as_const().is_some_and(|c| c < 0)) {
        return Err(cx.at_input(0, OpError::model(format!("dimension {d}"))));
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

/// `start + i·delta` for so many `i`.
fn spaced(cx: &mut Cx, len: Dim, start: Value, delta: Value) -> Result<Value, OpError> {
    let dtype = cx.dtype(start);
    let (start, delta) = (cx.reshape(start, vec![])?, cx.reshape(delta, vec![])?);
    let i = cx.iota(&[len], Poly::var(0), dtype)?;
    let i = cx.binary(BinaryOp::Mul, i, delta)?;
    Ok(cx.binary(BinaryOp::Add, i, start)?)
}

/// How many numbers a range of floats has: bounds are numbers, or fractions of dimensions.
fn float_range(cx: &mut Cx, dtype: DType) -> Result<Dim, OpError> {
    let inputs = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    if let [Some(start), Some(limit), Some(delta)] = inputs.map(|v| cx.numbers(v)?.first().copied()) {
        // The difference is a number of the type; what follows is in f64, as in ONNX Runtime.
        let span = Scalar::from_f64(dtype, limit - start).as_f64();
        let n = (span / delta).ceil();
        if !n.is_finite() || n > 1e9 {
            return Err(OpError::model(format!("range from {start} to {limit} by {delta}")));
        }
        return Ok(Dim::from(n.max(0.0) as i64));
    }
    let mut v = vec![];
    for i in 0..3 {
        v.push(cx.const_fractions(i)?.first().cloned().ok_or_else(|| OpError::model("needs one element"))?);
    }
    let [(start, a), (limit, b), (delta, c)] = &v[..] else { return Err("needs three operands".into()) };
    let Some(step) = delta.as_const() else {
        let e = OpError::unsupported(format!("a step of {delta}, which depends on dimensions"));
        return Err(cx.at_input(2, e.help("fix the dimension with --dim NAME=VALUE")));
    };
    if step == 0 {
        return Err(cx.at_input(2, OpError::model("a step of 0")));
    }
    // (limit / b − start / a) / (step / c)
    let span = &(limit * *a) - &(start * *b);
    let span = &span * (c * step.signum());
    let by = step.checked_abs().and_then(|s| s.checked_mul(*a)?.checked_mul(*b));
    let by = by.ok_or_else(|| OpError::unsupported(format!("a range from {start} to {limit} by {step}")))?;
    let len = span.ceil_div(by);
    Ok(if len.proves_nonneg(&[]) { len } else { len.max_of(&Dim::ZERO, &[]) })
}

/// `start + i·delta` while below (or above) `limit`; the length may depend on dimensions.
fn range(cx: &mut Cx) -> Lowered {
    let (start, limit, delta) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let dtype = cx.dtype(start);
    if cx.dtype(limit) != dtype || cx.dtype(delta) != dtype {
        return Err("start, limit and delta are of different element types".into());
    }
    if dtype.is_float() {
        let len = float_range(cx, dtype)?;
        return Ok(vec![spaced(cx, len, start, delta)?]);
    }
    let (first, step) = (start, delta);
    let one = |v: Vec<Dim>| v.into_iter().next().ok_or_else(|| OpError::model("needs one element"));
    let (start, limit, delta) = (one(cx.const_dims(0)?)?, one(cx.const_dims(1)?)?, cx.const_int(2)?);
    if delta == 0 {
        return Err(cx.at_input(2, OpError::model("a step of 0")));
    }
    let span = if delta > 0 { &limit - &start } else { &start - &limit };
    let len = span.ceil_div(delta.checked_abs().unwrap_or(i64::MAX));
    let len = if len.proves_nonneg(&[]) { len } else { len.max_of(&Dim::ZERO, &[]) };
    let small = |p: &Poly| p.as_const().is_none_or(|c| i32::try_from(c).is_ok());
    if small(&start) && small(&limit) && i32::try_from(delta).is_ok() && dtype.bits() >= 32 {
        return Ok(vec![cx.iota(&[len], &start + &(Poly::var(0) * delta), dtype)?]);
    }
    // Beyond 32 bits an index expression does not reach.
    Ok(vec![spaced(cx, len, first, step)?])
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
