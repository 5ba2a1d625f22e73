//! Normalisations.

use super::{Lowered, Lowering, OpError, Result};
use wgfc_ir::{BinaryOp, DType, Dim, NormKind, Op, ReduceOp, UnaryOp, Value};

/// Layer normalisation without a scale: `(x − mean) / √(variance + ε)` over axes.
pub fn layer(cx: &mut Lowering, x: Value, axes: &[usize], epsilon: f64) -> Result {
    let epsilon = (epsilon as f32).to_bits();
    Ok(cx.push(Op::Norm { kind: NormKind::Layer, axes: axes.to_vec(), epsilon }, &[x])?)
}

/// [`layer`] times a scale, plus a bias; both broadcast.
pub fn scaled_layer(
    cx: &mut Lowering,
    x: Value,
    axes: &[usize],
    epsilon: f64,
    scale: Value,
    bias: Option<Value>,
) -> Result {
    let n = layer(cx, x, axes, epsilon)?;
    let y = cx.binary(BinaryOp::Mul, n, scale)?;
    match bias {
        Some(b) => Ok(cx.binary(BinaryOp::Add, y, b)?),
        None => Ok(y),
    }
}

/// The mean along axes, which are kept with extent 1, and `1 / √(variance + ε)`, in f32.
pub fn moments(cx: &mut Lowering, x: Value, axes: &[usize], epsilon: f64) -> Result<[Value; 2]> {
    let wide = cx.cast(x, DType::F32)?;
    let mean = cx.mean(wide, axes)?;
    let v = variance(cx, wide, mean, axes)?;
    let v = cx.binary_scalar(BinaryOp::Add, v, epsilon)?;
    Ok([mean, cx.unary(UnaryOp::Rsqrt, v)?])
}

/// RMS normalisation `x / √(mean(x²) + ε) · scale` over axes, computed in the wider of the two types and returned in
/// the type of `scale`.
pub fn scaled_rms(cx: &mut Lowering, x: Value, scale: Value, axes: &[usize], epsilon: f64) -> Result {
    let (from, to) = (cx.dtype(x), cx.dtype(scale));
    let wide = if from.bits() >= to.bits() { from } else { to };
    let (x, scale) = (cx.cast(x, wide)?, cx.cast(scale, wide)?);
    let op = Op::Norm { kind: NormKind::Rms, axes: axes.to_vec(), epsilon: (epsilon as f32).to_bits() };
    let n = cx.push(op, &[x])?;
    let y = cx.binary(BinaryOp::Mul, n, scale)?;
    Ok(cx.cast(y, to)?)
}

/// `1 / √(mean(x²) + ε)` in f32.
pub fn inverse_rms(cx: &mut Lowering, x: Value, axes: &[usize], epsilon: f64) -> Result {
    let wide = cx.cast(x, DType::F32)?;
    let square = cx.binary(BinaryOp::Mul, wide, wide)?;
    let v = cx.mean(square, axes)?;
    let v = cx.binary_scalar(BinaryOp::Add, v, epsilon)?;
    Ok(cx.unary(UnaryOp::Rsqrt, v)?)
}

fn variance(cx: &mut Lowering, x: Value, mean: Value, axes: &[usize]) -> Result {
    let d = cx.binary(BinaryOp::Sub, x, mean)?;
    let d = cx.binary(BinaryOp::Mul, d, d)?;
    Ok(cx.mean(d, axes)?)
}

/// A vector per channel as `[C, 1, …]`, to broadcast against `[N, C, …]`.
pub fn per_channel(cx: &mut Lowering, v: Value, rank: usize) -> Result {
    let mut shape: Vec<Dim> = cx.shape(v);
    if shape.len() != 1 {
        return Err(OpError::model(format!("needs one value per channel, got {}", cx.ty(v))));
    }
    shape.extend(std::iter::repeat_n(Dim::ONE, rank.saturating_sub(2)));
    Ok(cx.reshape(v, shape)?)
}

/// Parameters of [`batch`].
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The ε that is added to the variance.
    pub epsilon: f64,
    /// If set, mean and variance are those of the batch, and the running mean and variance keep this share of their
    /// old values.
    pub momentum: Option<f64>,
    /// Whether scale, bias, mean and variance have one value per position rather than per channel.
    pub per_position: bool,
}

/// Batch normalisation `x·s + b` with `s = scale/√(var + ε)` and `b = bias − mean·s`. With a momentum the new running
/// mean and variance are further results.
pub fn batch(cx: &mut Lowering, x: Value, [scale, bias, mean, var]: [Value; 4], p: &Batch) -> Lowered {
    let (rank, dtype) = (cx.rank(x), cx.dtype(x));
    if rank < 2 {
        return Err(OpError::model(format!("needs channels along axis 1, got {}", cx.ty(x))).operand(x));
    }
    let stat = cx.dtype(mean);
    let (mut m, mut v) = (mean, var);
    if p.momentum.is_some() {
        let axes: Vec<usize> = (0..rank).filter(|a| *a != 1).collect();
        let wide = cx.cast(x, stat)?;
        let wide = cx.widened(wide)?;
        let full = cx.mean(wide, &axes)?;
        let squares = variance(cx, wide, full, &axes)?;
        let (full, squares) = (cx.cast(full, stat)?, cx.cast(squares, stat)?);
        v = cx.squeeze(squares, &axes)?;
        m = cx.squeeze(full, &axes)?;
    }
    let wide = if dtype.bits() >= stat.bits() { dtype } else { stat };
    let [scale, bias, wm, wv] = [scale, bias, m, v].map(|p| cx.cast(p, wide));
    let shifted = cx.binary_scalar(BinaryOp::Add, wv?, p.epsilon)?;
    let inverse = cx.unary(UnaryOp::Rsqrt, shifted)?;
    let s = cx.binary(BinaryOp::Mul, scale?, inverse)?;
    let ms = cx.binary(BinaryOp::Mul, wm?, s)?;
    let b = cx.binary(BinaryOp::Sub, bias?, ms)?;
    let (s, b) = match p.per_position {
        true if cx.rank(s) == rank - 1 && cx.rank(b) == rank - 1 => (s, b),
        true => {
            let e =
                format!("needs one value per position of {}, got {} and {}", cx.ty(x), cx.ty(s), cx.ty(b));
            return Err(OpError::model(e).param("spatial"));
        }
        false => (per_channel(cx, s, rank)?, per_channel(cx, b, rank)?),
    };
    let wide_x = cx.cast(x, wide)?;
    let y = cx.binary(BinaryOp::Mul, wide_x, s)?;
    let y = cx.binary(BinaryOp::Add, y, b)?;
    let mut out = vec![cx.cast(y, dtype)?];
    if let Some(momentum) = p.momentum {
        for (running, current) in [(mean, m), (var, v)] {
            let a = cx.binary_scalar(BinaryOp::Mul, running, momentum)?;
            let b = cx.binary_scalar(BinaryOp::Mul, current, 1.0 - momentum)?;
            out.push(cx.binary(BinaryOp::Add, a, b)?);
        }
    }
    Ok(out)
}

/// Parameters of [`local_response`].
#[derive(Clone, Copy, Debug)]
pub struct LocalResponse {
    /// The number of channels in the window.
    pub size: i64,
    /// The factor of the mean square.
    pub alpha: f64,
    /// The exponent.
    pub beta: f64,
    /// The number that is added to the scaled mean square.
    pub bias: f64,
}

/// `x / (bias + alpha/size · Σ x²)^beta` over a window of channels.
pub fn local_response(cx: &mut Lowering, x: Value, p: &LocalResponse) -> Result {
    if cx.rank(x) < 2 || p.size < 1 {
        return Err(OpError::model(format!("a window of {} channels of {}", p.size, cx.ty(x))));
    }
    let (dtype, x) = (cx.dtype(x), cx.widened(x)?);
    let square = cx.binary(BinaryOp::Mul, x, x)?;
    let windows = super::window::along(cx, square, 1, p.size, (p.size - 1) / 2)?;
    let rank = cx.rank(x);
    let sum = cx.reduce(ReduceOp::Sum, windows, &[rank], false)?;
    let d = cx.binary_scalar(BinaryOp::Mul, sum, p.alpha / p.size as f64)?;
    let d = cx.binary_scalar(BinaryOp::Add, d, p.bias)?;
    let d = cx.binary_scalar(BinaryOp::Pow, d, p.beta)?;
    let y = cx.binary(BinaryOp::Div, x, d)?;
    Ok(cx.cast(y, dtype)?)
}

/// `n` times a scale plus a bias, each with one value per element of axis 1.
pub fn scaled_channels(cx: &mut Lowering, n: Value, scale: Value, bias: Value) -> Result {
    let rank = cx.rank(n);
    let scale = per_channel(cx, scale, rank).map_err(|e| e.operand(scale));
    let bias = per_channel(cx, bias, rank).map_err(|e| e.operand(bias));
    let y = cx.binary(BinaryOp::Mul, n, scale?)?;
    Ok(cx.binary(BinaryOp::Add, y, bias?)?)
}

/// [`layer`] over the spatial positions of each channel.
pub fn instance(cx: &mut Lowering, x: Value, epsilon: f64) -> Result {
    let rank = cx.rank(x);
    if rank < 3 {
        return Err(OpError::model(format!("needs spatial axes, got {}", cx.ty(x))).operand(x));
    }
    let axes: Vec<usize> = (2..rank).collect();
    layer(cx, x, &axes, epsilon)
}

/// [`layer`] over each group of channels and its positions. `[N, C, …]` becomes `[N, groups, C / groups, …]`.
pub fn grouped(cx: &mut Lowering, x: Value, groups: i64, epsilon: f64) -> Result {
    let shape = cx.shape(x);
    if shape.len() < 2 {
        return Err(OpError::model(format!("needs channels along axis 1, got {}", cx.ty(x))).operand(x));
    }
    if groups < 1 || shape[1].as_const().is_some_and(|c| c % groups != 0) {
        let e = format!("{groups} groups of {} channels", shape[1]);
        return Err(OpError::model(e).param("num_groups"));
    }
    let mut split = shape.clone();
    split.splice(1..2, [groups.into(), shape[1].div(&groups.into(), &[])]);
    let x = cx.reshape(x, split)?;
    let axes: Vec<usize> = (2..=shape.len()).collect();
    layer(cx, x, &axes, epsilon)
}
