//! Normalisations.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp, DType, Dim, NormKind, Op, Tensor, UnaryOp, Value};

const MICROSOFT: &str = "com.microsoft";

/// Over the axes from `axis` on; scale and bias have their shape.
fn layer(cx: &mut Cx) -> Lowered {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let rank = cx.rank(x);
    let axis = cx.int("axis", -1)?;
    let axes: Vec<usize> = (cx.axis(axis, rank)?..rank).collect();
    let epsilon = cx.float("epsilon", 1e-5)?;
    let n =
        cx.push(Op::Norm { kind: NormKind::Layer, axes: axes.clone(), epsilon: epsilon.to_bits() }, &[x])?;
    let mut y = cx.binary(BinaryOp::Mul, n, scale)?;
    if let Some(b) = cx.opt(2) {
        y = cx.binary(BinaryOp::Add, y, b)?;
    }
    let mut out = vec![y];
    if cx.wants(1) || cx.wants(2) {
        let wide = cx.cast(x, DType::F32)?;
        let mean = cx.mean(wide, &axes)?;
        let inverse = inverse_deviation(cx, wide, mean, &axes, epsilon)?;
        out.extend([mean, inverse]);
    }
    Ok(out)
}

/// `norm(x) · scale` over the axes from `axis` on, in the wider of their types, as the type of `scale`.
fn scaled_rms(cx: &mut Cx, x: Value, scale: Value, axes: &[usize], epsilon: f32) -> Result<Value, OpError> {
    let (from, to) = (cx.dtype(x), cx.dtype(scale));
    let wide = if from.bits() >= to.bits() { from } else { to };
    let (x, scale) = (cx.cast(x, wide)?, cx.cast(scale, wide)?);
    let op = Op::Norm { kind: NormKind::Rms, axes: axes.to_vec(), epsilon: epsilon.to_bits() };
    let n = cx.push(op, &[x])?;
    let y = cx.binary(BinaryOp::Mul, n, scale)?;
    Ok(cx.cast(y, to)?)
}

/// `1 / √(mean(x²) + ε)` in f32.
fn inverse_rms(cx: &mut Cx, x: Value, axes: &[usize], epsilon: f32) -> Result<Value, OpError> {
    let wide = cx.cast(x, DType::F32)?;
    let square = cx.binary(BinaryOp::Mul, wide, wide)?;
    let v = cx.mean(square, axes)?;
    let v = cx.binary_scalar(BinaryOp::Add, v, epsilon.into())?;
    Ok(cx.unary(UnaryOp::Rsqrt, v)?)
}

fn rms(cx: &mut Cx) -> Lowered {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let rank = cx.rank(x);
    let axis = cx.int("axis", -1)?;
    let axes: Vec<usize> = (cx.axis(axis, rank)?..rank).collect();
    let epsilon = cx.float("epsilon", 1e-5)?;
    let mut out = vec![scaled_rms(cx, x, scale, &axes, epsilon)?];
    if cx.wants(1) {
        out.push(inverse_rms(cx, x, &axes, epsilon)?);
    }
    Ok(out)
}

/// `input + skip + bias`, and the axis normalised over.
fn skipped(cx: &mut Cx, bias: usize) -> Result<(Value, Vec<usize>), OpError> {
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

/// `SkipLayerNormalization`: outputs the normalised sum, its mean and inverse deviation, the sum.
fn skip_layer(cx: &mut Cx) -> Lowered {
    let (sum, axes) = skipped(cx, 4)?;
    let epsilon = cx.float("epsilon", 1e-12)?;
    let op = Op::Norm { kind: NormKind::Layer, axes: axes.clone(), epsilon: epsilon.to_bits() };
    let n = cx.push(op, &[sum])?;
    let scale = cx.input(2)?;
    let mut y = cx.binary(BinaryOp::Mul, n, scale)?;
    if let Some(b) = cx.opt(3) {
        y = cx.binary(BinaryOp::Add, y, b)?;
    }
    if !cx.wants(1) && !cx.wants(2) {
        return Ok(vec![y, sum, sum, sum]);
    }
    let wide = cx.cast(sum, DType::F32)?;
    let mean = cx.mean(wide, &axes)?;
    let inverse = inverse_deviation(cx, wide, mean, &axes, epsilon)?;
    Ok(vec![y, mean, inverse, sum])
}

/// `SkipSimplifiedLayerNormalization`: the same with the root mean square, which has no mean.
fn skip_rms(cx: &mut Cx) -> Lowered {
    let (sum, axes) = skipped(cx, 3)?;
    let epsilon = cx.float("epsilon", 1e-12)?;
    let scale = cx.input(2)?;
    let y = scaled_rms(cx, sum, scale, &axes, epsilon)?;
    if cx.wants(1) {
        return Err(OpError::unsupported("a mean, which is not computed"));
    }
    let inverse = if cx.wants(2) { inverse_rms(cx, sum, &axes, epsilon)? } else { sum };
    Ok(vec![y, sum, inverse, sum])
}

fn variance(cx: &mut Cx, x: Value, mean: Value, axes: &[usize]) -> Result<Value, OpError> {
    let d = cx.binary(BinaryOp::Sub, x, mean)?;
    let d = cx.binary(BinaryOp::Mul, d, d)?;
    Ok(cx.mean(d, axes)?)
}

fn inverse_deviation(
    cx: &mut Cx,
    x: Value,
    mean: Value,
    axes: &[usize],
    epsilon: f32,
) -> Result<Value, OpError> {
    let v = variance(cx, x, mean, axes)?;
    let v = cx.binary_scalar(BinaryOp::Add, v, epsilon.into())?;
    Ok(cx.unary(UnaryOp::Rsqrt, v)?)
}

/// A vector per channel as `[C, 1, …]`, to broadcast against `[N, C, …]`.
pub(super) fn per_channel(cx: &mut Cx, v: Value, rank: usize) -> Result<Value, OpError> {
    let mut shape: Vec<Dim> = cx.shape(v);
    if shape.len() != 1 {
        return Err(OpError::model(format!("needs one value per channel, got {}", cx.ty(v))));
    }
    shape.extend(std::iter::repeat_n(Dim::ONE, rank.saturating_sub(2)));
    Ok(cx.reshape(v, shape)?)
}

/// `x·s + b` with `s = scale/√(var + ε)` and `b = bias − mean·s`, per channel, or before opset 9 also per position.
fn batch(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (rank, dtype) = (cx.rank(x), cx.dtype(x));
    if rank < 2 {
        return Err(cx.at_input(0, OpError::model(format!("needs channels along axis 1, got {}", cx.ty(x)))));
    }
    let per_position = cx.since < 9 && !cx.flag("spatial", true)?;
    let training = cx.since >= 14 && cx.flag("training_mode", false)?;
    let epsilon = cx.float("epsilon", 1e-5)?;
    let (scale, bias, mean, var) = (cx.input(1)?, cx.input(2)?, cx.input(3)?, cx.input(4)?);
    let stat = cx.dtype(mean);
    let (mut m, mut v) = (mean, var);
    if training {
        let axes: Vec<usize> = (0..rank).filter(|a| *a != 1).collect();
        let wide = cx.cast(x, stat)?;
        let full = cx.mean(wide, &axes)?;
        v = variance(cx, wide, full, &axes)?;
        v = cx.squeeze(v, &axes)?;
        m = cx.squeeze(full, &axes)?;
    }
    let wide = if dtype.bits() >= stat.bits() { dtype } else { stat };
    let [scale, bias, wm, wv] = [scale, bias, m, v].map(|p| cx.cast(p, wide));
    let shifted = cx.binary_scalar(BinaryOp::Add, wv?, epsilon.into())?;
    let inverse = cx.unary(UnaryOp::Rsqrt, shifted)?;
    let s = cx.binary(BinaryOp::Mul, scale?, inverse)?;
    let ms = cx.binary(BinaryOp::Mul, wm?, s)?;
    let b = cx.binary(BinaryOp::Sub, bias?, ms)?;
    let (s, b) = match per_position {
        true if cx.rank(s) == rank - 1 && cx.rank(b) == rank - 1 => (s, b),
        true => {
            let e =
                format!("needs one value per position of {}, got {} and {}", cx.ty(x), cx.ty(s), cx.ty(b));
            return Err(OpError::model(e).attribute("spatial"));
        }
        false => (per_channel(cx, s, rank)?, per_channel(cx, b, rank)?),
    };
    let wide_x = cx.cast(x, wide)?;
    let y = cx.binary(BinaryOp::Mul, wide_x, s)?;
    let y = cx.binary(BinaryOp::Add, y, b)?;
    let mut out = vec![cx.cast(y, dtype)?];
    if training {
        let momentum = f64::from(cx.float("momentum", 0.9)?);
        for (running, current) in [(mean, m), (var, v)] {
            let a = cx.binary_scalar(BinaryOp::Mul, running, momentum)?;
            let b = cx.binary_scalar(BinaryOp::Mul, current, 1.0 - momentum)?;
            out.push(cx.binary(BinaryOp::Add, a, b)?);
        }
    }
    Ok(out)
}

/// `x / (bias + alpha/size · Σ x²)^beta` over a window of channels.
fn lrn(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let size = cx.int_req("size")?;
    if cx.rank(x) < 2 || size < 1 {
        return Err(OpError::model(format!("a window of {size} channels of {}", cx.ty(x))));
    }
    let (alpha, beta, bias) = (cx.float("alpha", 1e-4)?, cx.float("beta", 0.75)?, cx.float("bias", 1.0)?);
    let square = cx.binary(BinaryOp::Mul, x, x)?;
    let windows = super::window::along(cx, square, 1, size, (size - 1) / 2)?;
    let rank = cx.rank(x);
    let sum = cx.reduce(wgfc_ir::ReduceOp::Sum, windows, &[rank], false)?;
    let d = cx.binary_scalar(BinaryOp::Mul, sum, f64::from(alpha) / size as f64)?;
    let d = cx.binary_scalar(BinaryOp::Add, d, bias.into())?;
    let d = cx.binary_scalar(BinaryOp::Pow, d, beta.into())?;
    Ok(vec![cx.binary(BinaryOp::Div, x, d)?])
}

/// `x` normalised over `axes`.
fn normalised(cx: &mut Cx, x: Value, axes: Vec<usize>, epsilon: f32) -> Result<Value, OpError> {
    Ok(cx.push(Op::Norm { kind: NormKind::Layer, axes, epsilon: epsilon.to_bits() }, &[x])?)
}

/// Inputs 1 and 2, one value each per element of axis 1, applied.
fn scaled_channels(cx: &mut Cx, n: Value) -> Result<Value, OpError> {
    let rank = cx.rank(n);
    let [scale, bias] = [1, 2].map(|i| {
        let v = cx.input(i)?;
        per_channel(cx, v, rank).map_err(|e| cx.at_input(i, e))
    });
    let y = cx.binary(BinaryOp::Mul, n, scale?)?;
    Ok(cx.binary(BinaryOp::Add, y, bias?)?)
}

/// Over the positions of each channel.
fn instance(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    if rank < 3 {
        return Err(cx.at_input(0, OpError::model(format!("needs spatial axes, got {}", cx.ty(x)))));
    }
    let epsilon = cx.float("epsilon", 1e-5)?;
    let n = normalised(cx, x, (2..rank).collect(), epsilon)?;
    Ok(vec![scaled_channels(cx, n)?])
}

/// Over the positions of each group of channels. Scale and bias are per group before opset 21.
fn group(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let shape = cx.shape(x);
    if shape.len() < 2 {
        return Err(cx.at_input(0, OpError::model(format!("needs channels along axis 1, got {}", cx.ty(x)))));
    }
    let groups = cx.int_req("num_groups")?;
    if groups < 1 || shape[1].as_const().is_some_and(|c| c % groups != 0) {
        let e = format!("{groups} groups of {} channels", shape[1]);
        return Err(OpError::model(e).attribute("num_groups"));
    }
    let epsilon = cx.float("epsilon", 1e-5)?;
    let mut split = shape.clone();
    split.splice(1..2, [groups.into(), shape[1].div(&groups.into(), &[])]);
    let x = cx.reshape(x, split)?;
    let mut y = normalised(cx, x, (2..=shape.len()).collect(), epsilon)?;
    if cx.since < 21 {
        y = scaled_channels(cx, y)?;
        return Ok(vec![cx.reshape(y, shape)?]);
    }
    y = cx.reshape(y, shape)?;
    Ok(vec![scaled_channels(cx, y)?])
}

/// Over given axes; 0 where all is equal.
fn mean_variance(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axes = cx.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = cx.axes(&axes, cx.rank(x)).map_err(|e| e.attribute("axes"))?;
    // The formula adds 1e-9 to the deviation.
    Ok(vec![normalised(cx, x, axes, 1e-18)?])
}

/// `scale·x`, and a bias per channel: an experiment that ONNX gave up.
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
    // ONNX Runtime's, in the domain of ONNX.
    OpDef::new("SimplifiedLayerNormalization", &[1], rms).cases(&["simplified_layer_norm_"]),
    OpDef::new("SimplifiedLayerNormalization", &[1], rms).domain(MICROSOFT),
    OpDef::new("SkipLayerNormalization", &[1], skip_layer).domain(MICROSOFT).cases(&["skip_layer_norm_"]),
    OpDef::new("SkipSimplifiedLayerNormalization", &[1], skip_rms)
        .domain(MICROSOFT)
        .cases(&["skip_simplified_layer_norm_"]),
];
