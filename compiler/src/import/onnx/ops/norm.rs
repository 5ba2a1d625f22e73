//! Normalisations.

use crate::import::onnx::prelude::*;
use crate::lower::norm::{self, Batch, LocalResponse, per_channel};
use wgfc_ir::{BinaryOp, Tensor, Value};

/// Attribute `epsilon`, or its default.
fn epsilon(cx: &Cx, default: f32) -> Result<f64> {
    Ok(cx.float("epsilon", default)?.into())
}

/// Normalisation over the axes from `axis` on; scale and bias have their shape.
fn layer(cx: &mut Cx) -> Lowered {
    let (x, scale, bias) = (cx.input(0)?, cx.input(1)?, cx.opt(2));
    let axes: Vec<usize> = (cx.axis_attr(x, -1)?..cx.rank(x)).collect();
    let epsilon = epsilon(cx, 1e-5)?;
    let mut out = vec![norm::scaled_layer(cx, x, &axes, epsilon, scale, bias)?];
    if cx.wants(1) || cx.wants(2) {
        out.extend(norm::moments(cx, x, &axes, epsilon)?);
    }
    Ok(out)
}

fn rms(cx: &mut Cx) -> Lowered {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let axes: Vec<usize> = (cx.axis_attr(x, -1)?..cx.rank(x)).collect();
    let epsilon = epsilon(cx, 1e-5)?;
    let mut out = vec![norm::scaled_rms(cx, x, scale, &axes, epsilon)?];
    if cx.wants(1) {
        out.push(norm::inverse_rms(cx, x, &axes, epsilon)?);
    }
    Ok(out)
}

/// `input + skip + bias`, and the axis of the normalisation.
fn skipped(cx: &mut Cx, bias: usize) -> Result<(Value, Vec<usize>)> {
    let (x, skip) = (cx.input(0)?, cx.input(1)?);
    let Some(last) = cx.rank(x).checked_sub(1) else {
        return Err(cx.at_input(0, OpError::model(format!("needs an axis, got {}", cx.ty(x)))));
    };
    let mut sum = cx.binary(BinaryOp::Add, x, skip)?;
    if let Some(b) = cx.opt(bias) {
        sum = cx.binary(BinaryOp::Add, sum, b)?;
    }
    Ok((sum, vec![last]))
}

/// Returns the normalised sum, its mean and inverse deviation, and the sum.
fn skip_layer(cx: &mut Cx) -> Lowered {
    let (sum, axes) = skipped(cx, 4)?;
    let (epsilon, scale, bias) = (epsilon(cx, 1e-12)?, cx.input(2)?, cx.opt(3));
    let y = norm::scaled_layer(cx, sum, &axes, epsilon, scale, bias)?;
    if !cx.wants(1) && !cx.wants(2) {
        return Ok(vec![y, sum, sum, sum]);
    }
    let [mean, inverse] = norm::moments(cx, sum, &axes, epsilon)?;
    Ok(vec![y, mean, inverse, sum])
}

/// The skip normalisation by the root mean square; it has no mean.
fn skip_rms(cx: &mut Cx) -> Lowered {
    let (sum, axes) = skipped(cx, 3)?;
    let (epsilon, scale) = (epsilon(cx, 1e-12)?, cx.input(2)?);
    let y = norm::scaled_rms(cx, sum, scale, &axes, epsilon)?;
    if cx.wants(1) {
        return Err(OpError::unsupported("the mean as an output", "remove this output from the node"));
    }
    let inverse = if cx.wants(2) { norm::inverse_rms(cx, sum, &axes, epsilon)? } else { sum };
    Ok(vec![y, sum, inverse, sum])
}

/// Batch normalisation. Statistics are per channel, or before opset 9 optionally per position too.
fn batch(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let per_position = cx.since < 9 && !cx.flag("spatial", true)?;
    let training = cx.since >= 14 && cx.flag("training_mode", false)?;
    let epsilon = epsilon(cx, 1e-5)?;
    let momentum = if training { Some(cx.float("momentum", 0.9)?.into()) } else { None };
    let parameters = [cx.input(1)?, cx.input(2)?, cx.input(3)?, cx.input(4)?];
    norm::batch(cx, x, parameters, &Batch { epsilon, momentum, per_position })
}

fn lrn(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let p = LocalResponse {
        size: cx.int_req("size")?,
        alpha: cx.float("alpha", 1e-4)?.into(),
        beta: cx.float("beta", 0.75)?.into(),
        bias: cx.float("bias", 1.0)?.into(),
    };
    Ok(vec![norm::local_response(cx, x, &p)?])
}

fn instance(cx: &mut Cx) -> Lowered {
    let (x, epsilon) = (cx.input(0)?, epsilon(cx, 1e-5)?);
    let n = norm::instance(cx, x, epsilon)?;
    let (scale, bias) = (cx.input(1)?, cx.input(2)?);
    Ok(vec![norm::scaled_channels(cx, n, scale, bias)?])
}

/// Group normalisation; scale and bias are per group before opset 21, and per channel from then on.
fn group(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let shape = cx.shape(x);
    let (groups, epsilon) = (cx.int_req("num_groups")?, epsilon(cx, 1e-5)?);
    let y = norm::grouped(cx, x, groups, epsilon)?;
    let (scale, bias) = (cx.input(1)?, cx.input(2)?);
    if cx.since < 21 {
        let y = norm::scaled_channels(cx, y, scale, bias)?;
        return Ok(vec![cx.reshape(y, shape)?]);
    }
    let y = cx.reshape(y, shape)?;
    Ok(vec![norm::scaled_channels(cx, y, scale, bias)?])
}

/// Normalisation over given axes; the result is 0 where all elements are equal.
fn mean_variance(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axes = cx.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = cx.axes(&axes, cx.rank(x)).map_err(|e| e.attribute("axes"))?;
    // ONNX adds 1e-9 to the deviation, which is about 1e-18 added to the variance.
    Ok(vec![norm::layer(cx, x, &axes, 1e-18)?])
}

/// `scale·x` plus a bias per channel, an experimental operator that ONNX has withdrawn.
fn image_scaler(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 4)?;
    let (dtype, channels) = (cx.dtype(x), cx.shape(x)[1].clone());
    let bias = cx.floats("bias")?.unwrap_or_default();
    if channels.as_const().is_some_and(|c| c != bias.len() as i64) || !dtype.is_float() {
        let e = format!("{} numbers for the channels of {}", bias.len(), cx.ty(x));
        return Err(OpError::model(e).attribute("bias"));
    }
    cx.require_equal(&channels, &bias.len().into());
    let bias = cx.constant(Tensor::from_f32(vec![bias.len()], &bias));
    let bias = cx.cast(bias, dtype)?;
    let bias = per_channel(cx, bias, 4)?;
    let scale = cx.float("scale", 1.0)?;
    let y = cx.binary_scalar(BinaryOp::Mul, x, scale.into())?;
    Ok(vec![cx.binary(BinaryOp::Add, y, bias)?])
}

/// Normalisations.
pub const OPS: &[OpDef] = &[
    OpDef::new("BatchNormalization", &[6, 7, 9, 14, 15], batch).cases(&["test_batchnorm_", "batch_norm_"]),
    OpDef::new("GroupNormalization", &[18, 21], group).cases(&["test_group_normalization_"]),
    OpDef::new("ImageScaler", &[1], image_scaler).cases(&["image_scaler"]),
    OpDef::new("InstanceNormalization", &[1, 6, 22], instance).cases(&["test_instancenorm_"]),
    OpDef::new("LRN", &[1, 13], lrn).cases(&["test_lrn"]),
    OpDef::new("LayerNormalization", &[17], layer).cases(&["test_layer_normalization_"]),
    OpDef::new("MeanVarianceNormalization", &[9, 13], mean_variance).cases(&["test_mvn"]),
    OpDef::new("RMSNormalization", &[23], rms).cases(&["test_rms_normalization_"]),
    // An operator of ONNX Runtime in the domain of ONNX.
    OpDef::new("SimplifiedLayerNormalization", &[1], rms).cases(&["simplified_layer_norm_"]),
    OpDef::new("SimplifiedLayerNormalization", &[1], rms).domain(MICROSOFT),
    OpDef::new("SkipLayerNormalization", &[1], skip_layer).domain(MICROSOFT).cases(&["skip_layer_norm_"]),
    OpDef::new("SkipSimplifiedLayerNormalization", &[1], skip_rms)
        .domain(MICROSOFT)
        .cases(&["skip_simplified_layer_norm_"]),
];
