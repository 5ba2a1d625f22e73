//! Fourier transforms along several axes.

use super::super::prelude::*;
use crate::lower::fourier::{self, Dft, Stft};
use crate::lower::split::{self, Padding};
use crate::lower::transposed::{self, Layout};
use crate::lower::{complex, special, spectral};
use wgfc_ir::{Poly, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._fft_c2c.default", |cx| core(cx, Kind::Complex)).complex(),
    OpDef::new("aten._fft_c2r.default", |cx| core(cx, Kind::ToReal)).complex(),
    OpDef::new("aten._fft_r2c.default", |cx| core(cx, Kind::OfReal)).complex(),
    OpDef::new("aten.bartlett_window.periodic|default", bartlett),
    OpDef::new("aten.blackman_window.default|periodic", |cx| window(cx, [0.42, 0.5, 0.08])),
    OpDef::new("aten.fft_fft.default", |cx| named(cx, Kind::Complex, false)).complex(),
    OpDef::new("aten.fft_fft2.default", |cx| named(cx, Kind::Complex, false)).complex(),
    OpDef::new("aten.fft_fftn.default", |cx| named(cx, Kind::Complex, false)).complex(),
    OpDef::new("aten.fft_fftfreq.default", |cx| frequencies(cx, false)),
    OpDef::new("aten.fft_fftshift.default", |cx| shifted(cx, false)).by_parts(),
    OpDef::new("aten.fft_hfft.default", |cx| named(cx, Kind::ToReal, false)).complex(),
    OpDef::new("aten.fft_hfft2.default", |cx| named(cx, Kind::ToReal, false)).complex(),
    OpDef::new("aten.fft_hfftn.default", |cx| named(cx, Kind::ToReal, false)).complex(),
    OpDef::new("aten.fft_ifft.default", |cx| named(cx, Kind::Complex, true)).complex(),
    OpDef::new("aten.fft_ifft2.default", |cx| named(cx, Kind::Complex, true)).complex(),
    OpDef::new("aten.fft_ifftn.default", |cx| named(cx, Kind::Complex, true)).complex(),
    OpDef::new("aten.fft_ifftshift.default", |cx| shifted(cx, true)).by_parts(),
    OpDef::new("aten.fft_ihfft.default", |cx| named(cx, Kind::OfReal, true)).complex(),
    OpDef::new("aten.fft_ihfft2.default", |cx| named(cx, Kind::OfReal, true)).complex(),
    OpDef::new("aten.fft_ihfftn.default", |cx| named(cx, Kind::OfReal, true)).complex(),
    OpDef::new("aten.fft_irfft.default", |cx| named(cx, Kind::ToReal, true)).complex(),
    OpDef::new("aten.fft_irfft2.default", |cx| named(cx, Kind::ToReal, true)).complex(),
    OpDef::new("aten.fft_irfftn.default", |cx| named(cx, Kind::ToReal, true)).complex(),
    OpDef::new("aten.fft_rfft.default", |cx| named(cx, Kind::OfReal, false)).complex(),
    OpDef::new("aten.fft_rfft2.default", |cx| named(cx, Kind::OfReal, false)).complex(),
    OpDef::new("aten.fft_rfftn.default", |cx| named(cx, Kind::OfReal, false)).complex(),
    OpDef::new("aten.fft_rfftfreq.default", |cx| frequencies(cx, true)),
    OpDef::new("aten.hamming_window.default|periodic", |cx| window(cx, [0.54, 0.46, 0.0])),
    OpDef::new("aten.hann_window.default|periodic", |cx| window(cx, [0.5, 0.5, 0.0])),
    OpDef::new("aten.istft.default", signal).complex(),
    OpDef::new("aten.kaiser_window.beta|default|periodic", kaiser),
    OpDef::new("aten.stft.center|default", frames).complex(),
];

/// The types of numbers that a transform takes and returns.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// From complex numbers to complex numbers.
    Complex,
    /// From real numbers to complex numbers; half of the bins determine all.
    OfReal,
    /// From the half of the bins to real numbers.
    ToReal,
}

/// The normalisation of a result.
#[derive(Clone, Copy)]
enum Divided {
    Not,
    ByRoot,
    ByCount,
}

/// A transform along axes in the given order. For real numbers the last axis is the one with half of the bins.
struct Transform {
    kind: Kind,
    axes: Vec<usize>,
    inverse: bool,
    /// Whether only half of the bins of real numbers are returned.
    onesided: bool,
    /// The extent of the last axis of a real result.
    last: Option<Dim>,
    divided: Divided,
}

impl Transform {
    /// Applies the transform; complex `x` has a last axis for its parts, real `x` does not.
    fn apply(&self, cx: &mut Lowering, x: Value) -> Result {
        let dims = cx.shape(x);
        let mut count: Dim = self.axes.iter().map(|a| dims[*a].clone()).product();
        let step = |axis: usize, length: Option<Dim>, onesided: bool| Dft {
            axis,
            length,
            inverse: self.inverse,
            divided: false,
            onesided,
        };
        let (real, others) = match (self.kind, self.axes.split_last()) {
            (Kind::Complex, _) => (None, &self.axes[..]),
            (_, Some((real, others))) => (Some(*real), others),
            (Kind::OfReal, None) => return complex::from_real(cx, x),
            (Kind::ToReal, None) => return complex::part(cx, x, 0),
        };
        let mut y = x;
        if self.kind == Kind::OfReal {
            y = cx.unsqueeze(y, &[dims.len()])?;
            if let Some(axis) = real {
                y = fourier::dft(cx, y, &Dft { inverse: false, ..step(axis, None, self.onesided) })?;
            }
        }
        for axis in others {
            y = fourier::dft(cx, y, &Dft { inverse: self.inverse && self.kind != Kind::OfReal, ..step(*axis, None, false) })?;
        }
        if let (Kind::ToReal, Some(axis), Some(last)) = (self.kind, real, &self.last) {
            count = others.iter().map(|a| dims[*a].clone()).chain([last.clone()]).product();
            let p = Dft { inverse: true, ..step(axis, Some(last.clone()), true) };
            y = fourier::dft(cx, y, &p)?;
            y = cx.squeeze(y, &[dims.len() - 1])?;
        }
        let dtype = cx.dtype(y);
        let n = cx.dim_scalar(&count, DType::F32)?;
        let n = match self.divided {
            Divided::Not => return Ok(y),
            Divided::ByRoot => cx.unary(UnaryOp::Sqrt, n)?,
            Divided::ByCount => n,
        };
        let wide = cx.cast(y, DType::F32)?;
        let y = cx.binary(BinaryOp::Div, wide, n)?;
        Ok(cx.cast(y, dtype)?)
    }
}

fn core(cx: &mut Cx, kind: Kind) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x) - usize::from(cx.is_complex("self"));
    let axes = cx.ints("dim")?.iter().map(|d| crate::lower::axis(*d, rank)).collect::<Result<_>>()?;
    let divided = match cx.int("normalization")? {
        0 => Divided::Not,
        1 => Divided::ByRoot,
        2 => Divided::ByCount,
        m => return Err(OpError::model(format!("unknown mode {m}")).param("normalization")),
    };
    let (inverse, onesided, last) = match kind {
        Kind::Complex => (!cx.flag("forward")?, false, None),
        Kind::OfReal => (false, cx.flag("onesided")?, None),
        Kind::ToReal => (true, false, Some(cx.size("last_dim_size")?)),
    };
    Ok(vec![Transform { kind, axes, inverse, onesided, last, divided }.apply(cx, x)?])
}

/// A transform by its name in `torch.fft`. The forward transform to real numbers and the inverse transform of real numbers are computed
/// with conjugated numbers.
fn named(cx: &mut Cx, kind: Kind, inverse: bool) -> Lowered {
    let given_complex = cx.is_complex("self");
    let mut x = cx.tensor("self")?;
    if !given_complex {
        x = cx.as_float(x)?;
    }
    let rank = cx.rank(x) - usize::from(given_complex);
    let single = cx.declares("n");
    let sizes = match single {
        true => cx.opt_size("n")?.map(|n| vec![n]),
        false => cx.opt_sizes("s")?,
    };
    let axes: Vec<usize> = match cx.opt_ints("dim")? {
        Some(v) => v.iter().map(|d| crate::lower::axis(*d, rank)).collect::<Result<_>>()?,
        None => (rank - sizes.as_ref().map_or(rank, |s| s.len().min(rank))..rank).collect(),
    };
    if kind != Kind::OfReal && !given_complex {
        x = complex::from_real(cx, x)?;
    }
    let divided = match (cx.text("norm")?.as_deref(), inverse) {
        (None | Some("backward"), false) | (Some("forward"), true) => Divided::Not,
        (None | Some("backward"), true) | (Some("forward"), false) => Divided::ByCount,
        (Some("ortho"), _) => Divided::ByRoot,
        (Some(m), _) => return Err(OpError::model(format!("unknown normalization `{m}`")).param("norm")),
    };
    // Each axis is cut or padded with zeros to the requested length.
    let mut last = None;
    let dims = cx.shape(x);
    let mut after = vec![Dim::ZERO; dims.len()];
    for (i, axis) in axes.iter().enumerate() {
        let wanted = sizes.as_ref().and_then(|s| s.get(i)).filter(|n| !n.is(-1)).cloned();
        if kind == Kind::ToReal && i + 1 == axes.len() {
            last = Some(wanted.unwrap_or_else(|| (&dims[*axis] - &Dim::ONE) * 2));
        } else if let Some(n) = wanted {
            after[*axis] = &n - &dims[*axis];
        }
    }
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    x = cx.pad(x, &vec![Dim::ZERO; dims.len()], &after, zero)?;
    if kind == Kind::ToReal && !inverse {
        x = complex::conjugate(cx, x)?;
    }
    let back = kind == Kind::ToReal || inverse && kind == Kind::Complex;
    let y = Transform { kind, axes, inverse: back, onesided: true, last, divided }.apply(cx, x)?;
    Ok(vec![if kind == Kind::OfReal && inverse { complex::conjugate(cx, y)? } else { y }])
}

/// The short-time Fourier transform: transforms of windows of a signal.
fn frames(cx: &mut Cx) -> Lowered {
    let given_complex = cx.is_complex("self");
    let (mut x, n) = (cx.tensor("self")?, cx.int("n_fft")?);
    let hop = cx.opt_int("hop_length")?.unwrap_or(n / 4);
    let length = cx.opt_int("win_length")?.unwrap_or(n);
    let single = cx.rank(x) == 1 + usize::from(given_complex);
    if single {
        x = cx.unsqueeze(x, &[0])?;
    }
    if !given_complex {
        let rank = cx.rank(x);
        x = cx.unsqueeze(x, &[rank])?;
    }
    cx.require_rank(x, 3)?;
    if cx.declares("center") && cx.flag("center")? {
        let around = [Dim::ZERO, (n / 2).into(), Dim::ZERO];
        let padding = match cx.text("pad_mode")?.as_deref() {
            Some("constant") => Padding::Constant(Scalar::from_f64(cx.dtype(x), 0.0)),
            Some("replicate") => Padding::Edge,
            Some("circular") => Padding::Wrap,
            _ => Padding::Reflect,
        };
        x = split::pad(cx, x, &around, &around, padding)?;
    }
    let dtype = cx.dtype(x);
    let window = centred_window(cx, n, length, dtype)?;
    let onesided = if cx.has("onesided") { cx.flag("onesided")? } else { !given_complex };
    let p = Stft { step: hop, length: Some(n.into()), onesided };
    let mut y = fourier::stft(cx, x, Some(window), &p)?;
    if cx.flag("normalized")? {
        y = cx.binary_scalar(BinaryOp::Mul, y, 1.0 / (n as f64).sqrt())?;
    }
    y = cx.transpose(y, &[0, 2, 1, 3])?;
    Ok(vec![if single { cx.squeeze(y, &[0])? } else { y }])
}

/// The inverse short-time Fourier transform: overlap-add of the inverse transforms, divided by the overlap-add of the squared window.
fn signal(cx: &mut Cx) -> Lowered {
    let (mut x, n) = (cx.tensor("self")?, cx.int("n_fft")?);
    let hop = cx.opt_int("hop_length")?.unwrap_or(n / 4);
    let length = cx.opt_int("win_length")?.unwrap_or(n);
    if cx.flag("return_complex")? || cx.has("onesided") && !cx.flag("onesided")? {
        return Err(OpError::unsupported("a signal of complex numbers", "transform its real and imaginary parts separately"));
    }
    let single = cx.rank(x) == 3;
    if single {
        x = cx.unsqueeze(x, &[0])?;
    }
    let dims = cx.shape(cx.require_rank(x, 4)?);
    let (batch, frames) = (dims[0].clone(), dims[2].clone());
    let window = centred_window(cx, n, length, DType::F32)?;
    x = cx.transpose(x, &[0, 2, 1, 3])?;
    let p = Dft { axis: 2, length: Some(n.into()), inverse: true, divided: true, onesided: true };
    let y = fourier::dft(cx, x, &p)?;
    let mut y = cx.squeeze(y, &[3])?;
    if cx.flag("normalized")? {
        y = cx.binary_scalar(BinaryOp::Mul, y, (n as f64).sqrt())?;
    }
    let y = cx.binary(BinaryOp::Mul, y, window)?;
    let square = cx.binary(BinaryOp::Mul, window, window)?;
    let squares = cx.expand(square, &[Dim::ONE, frames.clone(), n.into()])?;
    let whole = &((&frames - 1) * hop) + n;
    let p = Layout { strides: vec![hop], dilations: vec![1], pads: vec![0, 0] };
    let mut sums = vec![];
    for v in [y, squares] {
        let v = cx.transpose(v, &[0, 2, 1])?;
        sums.push(transposed::col2im(cx, v, std::slice::from_ref(&whole), &[n.into()], &p)?);
    }
    let before = if cx.flag("center")? { n / 2 } else { 0 };
    let len = cx.opt_size("length")?.unwrap_or_else(|| &whole - 2 * before);
    for v in &mut sums {
        let after = &(&len + before) - &whole;
        let zero = Scalar::from_f64(DType::F32, 0.0);
        let none = [Dim::ZERO, Dim::ZERO, (-before).into()];
        *v = cx.pad(*v, &none, &[Dim::ZERO, Dim::ZERO, after], zero)?;
    }
    // Where no window reaches, the divisor is 1 instead of 0.
    let some = cx.binary_scalar(BinaryOp::Gt, sums[1], 1e-11)?;
    let one = cx.scalar(DType::F32, 1.0);
    let scale = cx.select(some, sums[1], one)?;
    let y = cx.binary(BinaryOp::Div, sums[0], scale)?;
    let y = cx.reshape(y, if single { vec![len] } else { vec![batch, len] })?;
    let to = cx.result_dtype(0)?;
    Ok(vec![cx.converted(y, to)?])
}

/// The window of `length` elements, by default all ones, centred in `n` elements.
fn centred_window(cx: &mut Cx, n: i64, length: i64, dtype: DType) -> Result {
    let window = match cx.opt_tensor("window")? {
        Some(w) => cx.converted(w, dtype)?,
        None => cx.full(&[length.into()], Scalar::from_f64(dtype, 1.0))?,
    };
    let before = (n - length) / 2;
    let zero = Scalar::from_f64(dtype, 0.0);
    Ok(cx.pad(window, &[before.into()], &[(n - length - before).into()], zero)?)
}

/// Moves the zero frequency to the middle, or `back` to the front, by a cyclic shift.
fn shifted(cx: &mut Cx, back: bool) -> Lowered {
    let x = cx.tensor("self")?;
    let dims = cx.shape(x);
    let mut index: Vec<Poly> = (0..dims.len()).map(Poly::var).collect();
    for axis in cx.axes("dim", dims.len())? {
        let half = dims[axis].div(&Poly::constant(2), &[]);
        let by = if back { &dims[axis] - &half } else { half };
        index[axis] = (&index[axis] - &by).modulo(&dims[axis], &dims);
    }
    Ok(vec![cx.view(x, dims, index)?])
}

/// The frequency of each bin.
fn frequencies(cx: &mut Cx, half: bool) -> Lowered {
    let (n, d, ty) = (cx.int("n")?, cx.float("d")?, cx.result(0)?);
    let middle = (n + 1) / 2;
    let at = Poly::var(0);
    let from_middle = (&at + (n - middle)).modulo(&n.into(), &ty.shape);
    let at = if half { at } else { &from_middle - (n - middle) };
    let v = cx.iota(&ty.shape, at, DType::F32)?;
    let v = cx.binary_scalar(BinaryOp::Mul, v, 1.0 / (n as f64 * d))?;
    Ok(vec![cx.converted(v, ty.dtype)?])
}

fn is_periodic(cx: &Cx) -> Result<bool> {
    if cx.declares("periodic") { cx.flag("periodic") } else { Ok(true) }
}

fn window(cx: &mut Cx, a: [f64; 3]) -> Lowered {
    let (ty, periodic) = (cx.result(0)?, is_periodic(cx)?);
    if ty.shape[0].is(1) {
        return Ok(vec![cx.full(&ty.shape, Scalar::from_f64(ty.dtype, 1.0))?]);
    }
    Ok(vec![spectral::window(cx, a, &ty.shape[0], periodic, ty.dtype)?])
}

/// The Kaiser window: I₀(β·√(1 − t²)) / I₀(β) for `t` from −1 to 1.
fn kaiser(cx: &mut Cx) -> Lowered {
    let (ty, periodic) = (cx.result(0)?, is_periodic(cx)?);
    let beta = if cx.declares("beta") { cx.float("beta")? } else { 12.0 };
    let n = cx.int("window_length")?;
    if n < 2 {
        return Ok(vec![cx.full(&ty.shape, Scalar::from_f64(ty.dtype, 1.0))?]);
    }
    let span = if periodic { n } else { n - 1 };
    let at = cx.iota(&ty.shape, &(Poly::var(0) * 2) - span, DType::F32)?;
    let t = cx.binary_scalar(BinaryOp::Mul, at, 1.0 / span as f64)?;
    let square = cx.binary(BinaryOp::Mul, t, t)?;
    let rest = cx.binary_scalar(BinaryOp::Mul, square, -1.0)?;
    let rest = cx.binary_scalar(BinaryOp::Add, rest, 1.0)?;
    let root = cx.unary(UnaryOp::Sqrt, rest)?;
    let far = cx.binary_scalar(BinaryOp::Mul, root, beta)?;
    let y = special::function(cx, wgfc_ir::Special::BesselI0, far)?;
    let most = cx.scalar(DType::F32, beta);
    let most = special::function(cx, wgfc_ir::Special::BesselI0, most)?;
    let y = cx.binary(BinaryOp::Div, y, most)?;
    Ok(vec![cx.converted(y, ty.dtype)?])
}

/// The triangular Bartlett window.
fn bartlett(cx: &mut Cx) -> Lowered {
    let (ty, periodic) = (cx.result(0)?, is_periodic(cx)?);
    let n = cx.int("window_length")?;
    if n < 2 {
        return Ok(vec![cx.full(&ty.shape, Scalar::from_f64(ty.dtype, 1.0))?]);
    }
    let span = if periodic { n } else { n - 1 };
    let at = cx.iota(&ty.shape, &(Poly::var(0) * 2) - span, DType::F32)?;
    let far = cx.unary(UnaryOp::Abs, at)?;
    let far = cx.binary_scalar(BinaryOp::Mul, far, -1.0 / span as f64)?;
    let y = cx.binary_scalar(BinaryOp::Add, far, 1.0)?;
    Ok(vec![cx.converted(y, ty.dtype)?])
}
