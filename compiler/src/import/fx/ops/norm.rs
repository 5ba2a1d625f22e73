//! Normalisations.

use super::super::prelude::*;
use super::reduce::moments;
use crate::lower::norm;
use wgfc_ir::{NormKind, Op, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._batch_norm_with_update.default", |cx| {
        let mut out = batch_with_reserve(cx)?;
        let running = out.split_off(4);
        cx.write("running_mean", running[0])?;
        cx.write("running_var", running[1])?;
        Ok(out)
    }),
    OpDef::new("aten._batch_norm_with_update_functional.default", batch_with_reserve),
    OpDef::new("aten._fused_rms_norm.default", rms),
    OpDef::new("aten._native_batch_norm_legit.default", batch_written).writes_if("training"),
    OpDef::new("aten._native_batch_norm_legit.no_stats", |cx| batch(cx, true)),
    OpDef::new("aten._native_batch_norm_legit_functional.default", batch_functional),
    OpDef::new("aten._native_batch_norm_legit_no_training.default", |cx| batch(cx, false)),
    OpDef::new("aten._weight_norm.default", weight_norm),
    OpDef::new("aten._weight_norm_interface.default", weight_norm_with_norms).in_f32(),
    OpDef::new("aten._weight_norm_interface_backward.default", weight_norm_backward).in_f32(),
    OpDef::new("aten.batch_norm.default", batch_in_place).writes(&["running_mean", "running_var"]).writes_if("training"),
    OpDef::new("aten.group_norm.default", group),
    OpDef::new("aten.instance_norm.default", instance).writes(&["running_mean", "running_var"]).writes_if("use_input_stats"),
    OpDef::new("aten.layer_norm.default", layer),
    OpDef::new("aten.native_batch_norm.default", batch_written).writes(&["running_mean", "running_var"]).writes_if("training"),
    OpDef::new("aten.native_group_norm.default", group),
    OpDef::new("aten.native_layer_norm.default", layer),
    OpDef::new("aten.rms_norm.default", rms),
];

/// Normalisation along the last axes with scale and bias; also returns the mean and `1 / √(variance + ε)` if they are results.
fn layer(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("input")?;
    let n = cx.sizes("normalized_shape")?.len();
    let epsilon = cx.float("eps")?;
    let axes: Vec<usize> = (cx.rank(x).saturating_sub(n)..cx.rank(x)).collect();
    let (scale, bias) = (cx.opt_tensor("weight")?, cx.opt_tensor("bias")?);
    let mut y = norm::layer(cx, x, &axes, epsilon)?;
    y = scaled(cx, y, scale, bias)?;
    statistics(cx, x, y, &axes, epsilon)
}

fn scaled(cx: &mut Cx, mut y: Value, scale: Option<Value>, bias: Option<Value>) -> Result {
    let dtype = cx.dtype(y);
    if let Some(s) = scale {
        let s = cx.converted(s, dtype)?;
        y = cx.binary(BinaryOp::Mul, y, s)?;
    }
    if let Some(b) = bias {
        let b = cx.converted(b, dtype)?;
        y = cx.binary(BinaryOp::Add, y, b)?;
    }
    Ok(y)
}

/// The result, followed by the mean and the inverse deviation if the node has these results.
fn statistics(cx: &mut Cx, x: Value, y: Value, axes: &[usize], epsilon: f64) -> Lowered {
    if cx.result_count() < 3 {
        return Ok(vec![y]);
    }
    let [mean, inverse] = norm::moments(cx, x, axes, epsilon)?;
    let dtype = cx.result_dtype(1)?;
    Ok(vec![y, cx.converted(mean, dtype)?, cx.converted(inverse, dtype)?])
}

fn rms(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("input")?;
    let n = cx.sizes("normalized_shape")?.len();
    let dtype = cx.dtype(x);
    // The default is the epsilon of the type of the computation.
    let smallest = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let epsilon = cx.opt_float("eps")?.unwrap_or(smallest);
    let axes: Vec<usize> = (cx.rank(x).saturating_sub(n)..cx.rank(x)).collect();
    let op = Op::Norm { kind: NormKind::Rms, axes: axes.clone(), epsilon: (epsilon as f32).to_bits() };
    let y = cx.push(op, &[x])?;
    let scale = cx.opt_tensor("weight")?;
    let y = scaled(cx, y, scale, None)?;
    if cx.result_count() < 2 {
        return Ok(vec![y]);
    }
    let inverse = norm::inverse_rms(cx, x, &axes, epsilon)?;
    let dtype = cx.result_dtype(1)?;
    Ok(vec![y, cx.converted(inverse, dtype)?])
}

/// A value per channel, along axis 1.
fn along_channels(cx: &mut Cx, v: Option<Value>, rank: usize) -> Result<Option<Value>> {
    v.map(|v| norm::per_channel(cx, v, rank)).transpose()
}

fn group(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("input")?;
    let groups = if cx.declares("group") { cx.int("group")? } else { cx.int("num_groups")? };
    let epsilon = cx.float("eps")?;
    let (rank, shape) = (cx.rank(x), cx.shape(x));
    let n = norm::grouped(cx, x, groups, epsilon)?;
    let y = cx.reshape(n, shape.clone())?;
    let (scale, bias) = (cx.opt_tensor("weight")?, cx.opt_tensor("bias")?);
    let (scale, bias) = (along_channels(cx, scale, rank)?, along_channels(cx, bias, rank)?);
    let y = scaled(cx, y, scale, bias)?;
    if cx.result_count() < 3 {
        return Ok(vec![y]);
    }
    let rest: Dim = shape[1..].iter().product();
    let flat = cx.reshape(x, vec![shape[0].clone(), groups.into(), rest.div(&groups.into(), &[])])?;
    let [mean, inverse] = norm::moments(cx, flat, &[2], epsilon)?;
    let dtype = cx.result_dtype(1)?;
    let (mean, inverse) = (cx.squeeze(mean, &[2])?, cx.squeeze(inverse, &[2])?);
    Ok(vec![y, cx.converted(mean, dtype)?, cx.converted(inverse, dtype)?])
}

fn instance(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("input")?;
    if !cx.flag("use_input_stats")? {
        return batch(cx, false);
    }
    let (rank, epsilon) = (cx.rank(x), cx.float("eps")?);
    let n = norm::instance(cx, x, epsilon)?;
    let (scale, bias) = (cx.opt_tensor("weight")?, cx.opt_tensor("bias")?);
    let (scale, bias) = (along_channels(cx, scale, rank)?, along_channels(cx, bias, rank)?);
    if cx.has("running_mean") {
        let [m, v] = updated(cx, true)?;
        cx.write("running_mean", m)?;
        cx.write("running_var", v)?;
    }
    Ok(vec![scaled(cx, n, scale, bias)?])
}

/// Batch normalisation with the statistics of the batch if `training`, else with the running ones.
fn batch(cx: &mut Cx, training: bool) -> Lowered {
    let (y, mean, inverse) = normalised(cx, training)?;
    if cx.result_count() < 2 {
        return Ok(vec![y]);
    }
    let dtype = cx.result_dtype(1)?;
    if training {
        return Ok(vec![y, cx.converted(mean, dtype)?, cx.converted(inverse, dtype)?]);
    }
    // Without training no statistics are computed.
    let nothing = cx.full(&[Dim::ZERO], Scalar::from_f64(dtype, 0.0))?;
    Ok(vec![y, nothing, nothing])
}

/// The result, and per channel the statistics: in training the batch's mean and `1 / √(variance + ε)`, else the running mean and
/// variance.
fn normalised(cx: &mut Cx, training: bool) -> Result<(Value, Value, Value)> {
    let x = cx.tensor("input")?;
    let (rank, epsilon) = (cx.rank(x), cx.float("eps")?);
    let (scale, bias) = (cx.opt_tensor("weight")?, cx.opt_tensor("bias")?);
    let others: Vec<usize> = (0..rank).filter(|a| *a != 1).collect();
    if training {
        let (s, b) = (along_channels(cx, scale, rank)?, along_channels(cx, bias, rank)?);
        let n = norm::layer(cx, x, &others, epsilon)?;
        let y = scaled(cx, n, s, b)?;
        let [mean, inverse] = norm::moments(cx, x, &others, epsilon)?;
        return Ok((y, cx.squeeze(mean, &others)?, cx.squeeze(inverse, &others)?));
    }
    let (mean, var) = (cx.tensor("running_mean")?, cx.tensor("running_var")?);
    let one = |cx: &mut Cx, v: f64| -> Result {
        let (dtype, want) = (cx.dtype(mean), cx.shape(mean));
        Ok(cx.full(&want, Scalar::from_f64(dtype, v))?)
    };
    let scale = match scale {
        Some(s) => s,
        None => one(cx, 1.0)?,
    };
    let bias = match bias {
        Some(b) => b,
        None => one(cx, 0.0)?,
    };
    let p = norm::Batch { epsilon, momentum: None, per_position: false };
    let y = norm::batch(cx, x, [scale, bias, mean, var], &p)?[0];
    Ok((y, mean, var))
}

/// The updated running statistics, with the unbiased variance. Statistics of instances are averaged.
fn updated(cx: &mut Cx, instances: bool) -> Result<[Value; 2]> {
    let x = cx.tensor("input")?;
    let (running_mean, running_var, momentum) =
        (cx.tensor("running_mean")?, cx.tensor("running_var")?, cx.float("momentum")?);
    let others: Vec<usize> = (usize::from(instances)..cx.rank(x)).filter(|a| *a != 1).collect();
    let wide = cx.widened(x)?;
    let [var, mean] = moments(cx, wide, &others, 1.0)?;
    let mut out = [running_mean, running_var];
    for (slot, new) in out.iter_mut().zip([mean, var]) {
        let mut new = cx.squeeze(new, &others)?;
        if instances {
            new = cx.mean(new, &[0])?;
            new = cx.squeeze(new, &[0])?;
        }
        let (dtype, old) = (cx.dtype(*slot), cx.widened(*slot)?);
        let new = cx.converted(new, cx.dtype(old))?;
        let old = cx.binary_scalar(BinaryOp::Mul, old, 1.0 - momentum)?;
        let new = cx.binary_scalar(BinaryOp::Mul, new, momentum)?;
        let next = cx.binary(BinaryOp::Add, old, new)?;
        *slot = cx.converted(next, dtype)?;
    }
    Ok(out)
}

fn batch_functional(cx: &mut Cx) -> Lowered {
    let training = cx.flag("training")?;
    let mut out = batch(cx, training)?;
    let running = if training { updated(cx, false)? } else { [cx.tensor("running_mean")?, cx.tensor("running_var")?] };
    for v in running {
        // Torch declares f32 for the new statistics of 16-bit floats.
        let dtype = cx.result_dtype(out.len())?;
        out.push(cx.converted(v, dtype)?);
    }
    Ok(out)
}

fn batch_with_reserve(cx: &mut Cx) -> Lowered {
    let (y, mean, inverse) = normalised(cx, true)?;
    let dtype = cx.result_dtype(1)?;
    let (mean, inverse) = (cx.converted(mean, dtype)?, cx.converted(inverse, dtype)?);
    let reserve = cx.full(&[Dim::ZERO], Scalar::from_i64(DType::U8, 0))?;
    let mut out = vec![y, mean, inverse, reserve];
    for (i, running) in updated(cx, false)?.into_iter().enumerate() {
        // Torch's functional form returns them in a wider type.
        let dtype = if cx.result_count() > 4 { cx.result_dtype(4 + i)? } else { cx.dtype(running) };
        out.push(cx.converted(running, dtype)?);
    }
    Ok(out)
}

/// Batch normalisation that writes the running statistics in training.
fn batch_in_place(cx: &mut Cx) -> Lowered {
    let mut out = batch_written(cx)?;
    out.truncate(1);
    Ok(out)
}

/// [`batch_in_place`] that also returns the statistics.
fn batch_written(cx: &mut Cx) -> Lowered {
    let training = cx.flag("training")?;
    let out = batch(cx, training)?;
    if training && cx.has("running_mean") {
        let [m, v] = updated(cx, false)?;
        cx.write("running_mean", m)?;
        cx.write("running_var", v)?;
    }
    Ok(out)
}

/// `g · v / |v|`, with the norm along all axes but `dim`.
fn weight_norm(cx: &mut Cx) -> Lowered {
    let (v, g, dim) = (cx.tensor("v")?, cx.tensor("g")?, cx.int("dim")?);
    let rank = cx.rank(v);
    let kept = if dim == -1 { None } else { Some(crate::lower::axis(dim, rank)?) };
    let axes: Vec<usize> = (0..rank).filter(|d| Some(*d) != kept).collect();
    let n = crate::lower::distance::norm(cx, v, 2.0, &axes)?;
    let scale = cx.binary(BinaryOp::Div, g, n)?;
    Ok(vec![cx.binary(BinaryOp::Mul, v, scale)?])
}

/// The axes of the norm of `v`: all but `dim`, which is the first or the last.
fn all_but(cx: &Cx, v: Value) -> Result<Vec<usize>> {
    let rank = cx.rank(v);
    let kept = crate::lower::axis(cx.int("dim")?, rank)?;
    Ok((0..rank).filter(|d| *d != kept).collect())
}

/// `g · v / |v|`, and the norms.
fn weight_norm_with_norms(cx: &mut Cx) -> Lowered {
    let (v, g) = (cx.tensor("v")?, cx.tensor("g")?);
    let axes = all_but(cx, v)?;
    let n = crate::lower::distance::norm(cx, v, 2.0, &axes)?;
    let scale = cx.binary(BinaryOp::Div, g, n)?;
    Ok(vec![cx.binary(BinaryOp::Mul, v, scale)?, n])
}

/// With `r = Σ (grad · v)`: the gradient of `v` is `g / n · (grad − v · r / n²)`, that of `g` is `r / n`.
fn weight_norm_backward(cx: &mut Cx) -> Lowered {
    let (grad, v) = (cx.tensor("grad_w")?, cx.tensor("saved_v")?);
    let (g, n) = (cx.tensor("saved_g")?, cx.tensor("saved_norms")?);
    let axes = all_but(cx, v)?;
    let product = cx.binary(BinaryOp::Mul, grad, v)?;
    let r = cx.reduce(wgfc_ir::ReduceOp::Sum, product, &axes, true)?;
    let of_g = cx.binary(BinaryOp::Div, r, n)?;
    let share = cx.binary(BinaryOp::Div, of_g, n)?;
    let along = cx.binary(BinaryOp::Mul, v, share)?;
    let rest = cx.binary(BinaryOp::Sub, grad, along)?;
    let scale = cx.binary(BinaryOp::Div, g, n)?;
    Ok(vec![cx.binary(BinaryOp::Mul, rest, scale)?, of_g])
}
