//! Fourier transforms as products with matrices of cosines and sines.
//!
//! A matrix is read from a table of the roots of unity at `k·n mod length`; the last axis of a tensor holds the real
//! and the imaginary part. A long transform whose length has small factors is split into as many products, each of
//! which sums over one factor (Cooley and Tukey). A remaining length without small factors is transformed as a
//! convolution with a chirp, through transforms whose length is a power of two (Bluestein).

use super::{Lowering, OpError, Result};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{
    BinaryOp as B, Body, Contract, DType, Dim, Op, Poly, Scalar, ScalarFn, ScalarNode, Tensor, UnaryOp as U,
    Value,
};

/// Transforms up to this length are one product.
const WHOLE: i64 = 512;
/// The largest factor that is split off a longer transform.
const FACTOR: i64 = 64;

/// Transforms without small factors are one product up to this length.
const PRIME: i64 = 1024;

/// A transform of `[…, n, c]` along the second-to-last axis.
struct Transform {
    /// The length of the whole transform.
    length: Dim,
    inverse: bool,
    /// Whether an inverse transform is divided by the length.
    divided: bool,
    /// The number of components of each input and of each output element: 1 (real) or 2 (complex).
    from: i64,
    to: i64,
}

/// A table of `e^(∓2πi·n/length)` for every `n`, each as the matrix `[from, to]` that multiplies a number by it.
fn turn(cx: &mut Lowering, t: &Transform) -> Result {
    let sign = if t.inverse { 1.0 } else { -1.0 };
    // The parts of the complex product as sums over the parts of the factor.
    let entry = |c: i64, o: i64, (sin, cos): (f64, f64)| match (c, o) {
        (0, 0) | (1, 1) => cos,
        (0, _) => sign * sin,
        _ => -sign * sin,
    };
    let (from, to) = (t.from, t.to);
    if let Some(n) = t.length.as_const().and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= 1 << 20) {
        let mut v = Vec::with_capacity(n * 4);
        for i in 0..n {
            let angle = std::f64::consts::TAU * i as f64 / n as f64;
            for c in 0..from {
                v.extend((0..to).map(|o| entry(c, o, angle.sin_cos()) as f32));
            }
        }
        return Ok(cx.constant(Tensor::from_f32(vec![n, from as usize, to as usize], &v)));
    }
    let list = [t.length.clone()];
    let at = cx.iota(&list, Poly::var(0), DType::F32)?;
    let n = cx.dim_scalar(&t.length, DType::F32)?;
    let at = cx.binary(B::Div, at, n)?;
    let angle = cx.binary_scalar(B::Mul, at, std::f64::consts::TAU)?;
    let (cos, sin) = (cx.unary(U::Cos, angle)?, cx.unary(U::Sin, angle)?);
    let mut parts = vec![];
    for c in 0..from {
        for o in 0..to {
            let v = if c == o { cos } else { sin };
            let v = cx.binary_scalar(B::Mul, v, entry(c, o, (1.0, 1.0)))?;
            parts.push(cx.unsqueeze(v, &[1])?);
        }
    }
    let all = cx.concat(&parts, 1)?;
    Ok(cx.reshape(all, vec![t.length.clone(), from.into(), to.into()])?)
}

impl Transform {
    /// Transforms `x [lead…, n, from]` to `[lead…, bins, to]`, in f32. If `x` is shorter than the length, it is padded
    /// with zeros.
    fn apply(&self, cx: &mut Lowering, x: Value, bins: &Dim) -> Result {
        let y = match self.length.as_const().filter(|n| *n > WHOLE) {
            Some(n) => {
                let x = fitted(cx, x, &self.length)?;
                self.in_factors(cx, x, n, bins)?
            }
            None => self.product(cx, x, bins)?,
        };
        if !self.inverse || !self.divided {
            return Ok(y);
        }
        let length = cx.dim_scalar(&self.length, DType::F32)?;
        Ok(cx.binary(B::Div, y, length)?)
    }

    /// Cooley and Tukey's step: with `length = factor·rest`, bin `k + rest·l` is the sum over `m` of
    /// `e^(∓2πi·m·(k + rest·l)/length)` times bin `k` of the transform of the elements
    /// `m, m + factor, m + 2·factor, …`.
    fn in_factors(&self, cx: &mut Lowering, x: Value, length: i64, bins: &Dim) -> Result {
        let Transform { inverse, from, to, .. } = *self;
        let own = |length: i64, from: i64, to: i64| Transform {
            length: length.into(),
            inverse,
            divided: false,
            from,
            to,
        };
        let factor = (2..=FACTOR).rev().find(|d| length > FACTOR && length % d == 0);
        let Some(factor) = factor else {
            let own = own(length, from, to);
            return if length > PRIME { own.chirped(cx, x, length, bins) } else { own.product(cx, x, bins) };
        };
        let (rest, lead) = (length / factor, cx.rank(x) - 2);
        let mut shape = cx.shape(x);
        shape.splice(lead..=lead, [rest.into(), factor.into()]);
        let x = cx.reshape(x, shape)?;
        let mut perm: Vec<usize> = (0..lead + 3).collect();
        perm.swap(lead, lead + 1);
        let x = cx.transpose(x, &perm)?;
        let inner = own(rest, from, 2).in_factors(cx, x, rest, &rest.into())?;
        let grid = [rest.into(), bins.ceil_div(rest), factor.into()];
        let bin = &Poly::var(0) + &(&Poly::var(1) * rest);
        let phase = (&Poly::var(2) * &bin).modulo(&length.into(), &grid);
        let matrix = own(length, 2, to).matrix(cx, &grid, phase)?;
        let labels: Vec<u8> = (0..lead as u8).collect();
        let [k, l, m, c, o] = std::array::from_fn(|i| (lead + i) as u8);
        let contract = Contract {
            a: [&labels[..], &[m, k, c]].concat(),
            b: vec![k, l, m, c, o],
            out: [&labels[..], &[l, k, o]].concat(),
        };
        let y = cx.push(Op::Contract(contract), &[inner, matrix])?;
        let mut shape = cx.shape(y);
        shape.splice(lead..lead + 2, [&grid[1] * rest]);
        let y = cx.reshape(y, shape)?;
        Ok(cx.slice(y, lead, &Poly::ZERO, 1, bins)?)
    }

    /// Bluestein's algorithm: with `w(k) = e^(∓πi·k²/length)`, bin `k` is `w(k)` times the sum over `n` of
    /// `x(n)·w(n)/w(k − n)`. This convolution is computed as a product of transforms of a greater length.
    fn chirped(&self, cx: &mut Lowering, x: Value, length: i64, bins: &Dim) -> Result {
        let n = usize::try_from(length).map_err(|e| e.to_string())?;
        let around = (2 * n - 1).next_power_of_two();
        let sign = if self.inverse { 1.0 } else { -1.0 };
        let turn = |k: usize| {
            // The angle is periodic with twice the length.
            let part = (k as u64 * k as u64 % (2 * n as u64)) as f64;
            let (sin, cos) = (sign * std::f64::consts::PI * part / n as f64).sin_cos();
            [cos, sin]
        };
        let chirp: Vec<[f64; 2]> = (0..n).map(turn).collect();
        let mut other = vec![[0.0; 2]; around];
        for (k, [re, im]) in chirp.iter().enumerate() {
            let divided = [re / around as f64, -im / around as f64];
            (other[k], other[(around - k) % around]) = (divided, divided);
        }
        spectrum(&mut other);
        let of = |inverse| Transform { length: around.into(), inverse, divided: false, from: 2, to: 2 };
        let x = times(cx, x, &chirp, 2)?;
        let x = fitted(cx, x, &around.into())?;
        let y = of(false).in_factors(cx, x, around as i64, &around.into())?;
        let y = times(cx, y, &other, 2)?;
        let y = of(true).in_factors(cx, y, around as i64, &length.into())?;
        let y = times(cx, y, &chirp, self.to)?;
        let axis = cx.rank(y) - 2;
        Ok(cx.slice(y, axis, &Poly::ZERO, 1, bins)?)
    }

    /// Each bin as a sum over all elements.
    fn product(&self, cx: &mut Lowering, x: Value, bins: &Dim) -> Result {
        let lead = cx.rank(x) - 2;
        let n = cx.shape(x)[lead].clone();
        let grid = [bins.clone(), n];
        let phase = (&Poly::var(0) * &Poly::var(1)).modulo(&self.length, &grid);
        let matrix = self.matrix(cx, &grid, phase)?;
        let labels: Vec<u8> = (0..lead as u8).collect();
        let [k, n, c, o] = std::array::from_fn(|i| (lead + i) as u8);
        let contract = Contract {
            a: [&labels[..], &[n, c]].concat(),
            b: vec![k, n, c, o],
            out: [&labels[..], &[k, o]].concat(),
        };
        Ok(cx.push(Op::Contract(contract), &[x, matrix])?)
    }

    /// The matrices `[grid…, from, to]` that multiply by the roots of unity with the exponents `phase`.
    fn matrix(&self, cx: &mut Lowering, grid: &[Dim], phase: Poly) -> Result {
        let table = turn(cx, self)?;
        let phase = cx.iota(grid, phase, DType::I32)?;
        let shape = grid.iter().cloned().chain([self.from.into(), self.to.into()]).collect();
        let index = vec![
            GatherAxis::Data { input: 1, at: (0..grid.len()).map(Poly::var).collect() },
            GatherAxis::Affine(Poly::var(grid.len())),
            GatherAxis::Affine(Poly::var(grid.len() + 1)),
        ];
        Ok(cx.push(Op::Gather { shape, index }, &[table, phase])?)
    }
}

/// `x [lead…, n, 1 or 2]` times the complex constants `by [n]`; the result has both parts, or only the real one.
fn times(cx: &mut Lowering, x: Value, by: &[[f64; 2]], to: i64) -> Result {
    let mut shape = cx.shape(x);
    let last = shape.len() - 1;
    let from = shape[last].as_const();
    let mut args = vec![cx.slice(x, last, &Poly::ZERO, 1, &Dim::ONE)?];
    if from == Some(2) {
        args.push(cx.slice(x, last, &Poly::ONE, 1, &Dim::ONE)?);
    }
    for part in 0..2 {
        let v: Vec<f32> = by.iter().map(|w| w[part] as f32).collect();
        args.push(cx.constant(Tensor::from_f32(vec![v.len(), 1], &v)));
    }
    let mut f = Body::default();
    let at = args.len() as u32;
    let (x_re, w_re, w_im) = (f.arg(0), f.arg(at - 2), f.arg(at - 1));
    let x_im = (from == Some(2)).then(|| f.arg(1));
    let mut sum = |a: u32, op: B, b: u32| {
        let first = f.binary(B::Mul, x_re, a);
        let Some(x_im) = x_im else { return first };
        let second = f.binary(B::Mul, x_im, b);
        f.binary(op, first, second)
    };
    if to == 2 {
        let im = sum(w_im, B::Add, w_re);
        let re = sum(w_re, B::Sub, w_im);
        let (part, zero) = (f.index(Poly::var(last)), f.i32(0));
        let first = f.binary(B::Eq, part, zero);
        f.select(first, re, im);
    } else {
        sum(w_re, B::Sub, w_im);
    }
    shape[last] = to.into();
    Ok(cx.map_to(f.0, &args, shape)?)
}

/// The transform in place of a sequence whose length is a power of two.
fn spectrum(x: &mut [[f64; 2]]) {
    let n = x.len();
    let unused = usize::BITS - n.trailing_zeros();
    for i in 0..n {
        let j = i.reverse_bits().checked_shr(unused).unwrap_or(0);
        if i < j {
            x.swap(i, j);
        }
    }
    let mut half = 1;
    while half < n {
        for block in x.chunks_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (k, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let (sin, cos) = (-std::f64::consts::PI * k as f64 / half as f64).sin_cos();
                let [re, im] = [b[0] * cos - b[1] * sin, b[0] * sin + b[1] * cos];
                (*a, *b) = ([a[0] + re, a[1] + im], [a[0] - re, a[1] - im]);
            }
        }
        half *= 2;
    }
}

/// The number of bins of the one-sided transform of a real signal of that length.
fn half(length: &Dim) -> Dim {
    &length.div(&Poly::constant(2), &[]) + 1
}

/// The number of components of each element: the extent of the last axis, 1 or 2.
fn parts(cx: &Lowering, x: Value) -> Result<i64> {
    match cx.shape(x).last().and_then(|d| d.as_const()) {
        Some(c) if (1..=2).contains(&c) && cx.rank(x) >= 2 && cx.dtype(x).is_float() => Ok(c),
        _ => {
            let e = format!("needs floats with a last axis of 1 (real) or 2 (complex), got {}", cx.ty(x));
            Err(OpError::model(e).operand(x))
        }
    }
}

/// Doubles the bins of a one-sided spectrum that stand for two bins of the full one: all but the first and, for an
/// even length, the last.
fn twice(cx: &mut Lowering, x: Value, length: &Dim) -> Result {
    let rank = cx.rank(x);
    let mut f = ScalarFn::default();
    let x0 = f.push(ScalarNode::Arg(0));
    let bin = f.push(ScalarNode::Index(Poly::var(rank - 2)));
    let zero = f.push(ScalarNode::Const(Scalar::from_i64(DType::I32, 0)));
    let two = f.push(ScalarNode::Const(Scalar::from_i64(DType::I32, 2)));
    let first = f.push(ScalarNode::Binary(B::Eq, bin, zero));
    let doubled = f.push(ScalarNode::Binary(B::Mul, bin, two));
    let n = f.push(ScalarNode::Index(length.clone()));
    let last = f.push(ScalarNode::Binary(B::Eq, doubled, n));
    let once = f.push(ScalarNode::Binary(B::Or, first, last));
    let sum = f.push(ScalarNode::Binary(B::Add, x0, x0));
    f.push(ScalarNode::Select(once, x0, sum));
    Ok(cx.map(f, &[x])?)
}

/// `x` cut or zero-padded to the extent `n` along the second-to-last axis.
fn fitted(cx: &mut Lowering, x: Value, n: &Dim) -> Result {
    let rank = cx.rank(x);
    let after = n - &cx.shape(x)[rank - 2];
    let mut end = vec![Dim::ZERO; rank];
    end[rank - 2] = after;
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    Ok(cx.pad(x, &vec![Dim::ZERO; rank], &end, zero)?)
}

/// Parameters of [`dft`].
#[derive(Clone, Debug)]
pub struct Dft {
    /// The axis, which must not be the last one.
    pub axis: usize,
    /// The length of the transform; a shorter axis is padded with zeros. By default the extent of the axis.
    pub length: Option<Dim>,
    /// Whether it is the inverse transform.
    pub inverse: bool,
    /// Whether an inverse transform is divided by its length.
    pub divided: bool,
    /// Whether only the first half of the bins is used, as for a real signal.
    pub onesided: bool,
}

/// The discrete Fourier transform. The last axis, of extent 1 (real) or 2 (complex), holds the parts of a number.
pub fn dft(cx: &mut Lowering, x: Value, p: &Dft) -> Result {
    let (dtype, rank, from) = (cx.dtype(x), cx.rank(x), parts(cx, x)?);
    let Dft { axis, inverse, divided, onesided, .. } = *p;
    if axis + 1 == rank {
        return Err(OpError::model("the last axis holds the parts of a number").param("axis"));
    }
    if onesided && !inverse && from == 2 {
        return Err(OpError::model("half of the bins say all of a real signal only").param("onesided"));
    }
    let extent = cx.shape(x)[axis].clone();
    let length = match &p.length {
        Some(n) => n.clone(),
        None if inverse && onesided => (&extent - &Dim::ONE) * 2,
        None => extent,
    };
    if length.as_const().is_some_and(|n| !(1..=46340).contains(&n)) {
        return Err(OpError::unsupported(
            format!("a transform of length {length}; 1 to 46340 are supported"),
            "transform windows of a signal, or compute this node outside of the model and make its result an input",
        ));
    }
    // Moves the axis to the second-to-last place.
    let mut perm: Vec<usize> = (0..rank).filter(|d| *d != axis).collect();
    perm.insert(rank - 2, axis);
    let mut back = vec![0; rank];
    for (i, p) in perm.iter().enumerate() {
        back[*p] = i;
    }
    let x = cx.transpose(x, &perm)?;
    let x = cx.cast(x, DType::F32)?;
    let (x, bins, to) = if inverse && onesided {
        let x = fitted(cx, x, &half(&length))?;
        (twice(cx, x, &length)?, length.clone(), 1)
    } else {
        let x = fitted(cx, x, &length)?;
        (x, if onesided { half(&length) } else { length.clone() }, 2)
    };
    let y = Transform { length, inverse, divided, from, to }.apply(cx, x, &bins)?;
    let y = cx.transpose(y, &back)?;
    Ok(cx.cast(y, dtype)?)
}

/// Parameters of [`stft`].
#[derive(Clone, Debug)]
pub struct Stft {
    /// The hop: the number of elements from one frame to the next.
    pub step: i64,
    /// The number of elements of a frame; by default that of the window, else that of the signal.
    pub length: Option<Dim>,
    /// Whether only the first half of the bins is returned, as for a real signal.
    pub onesided: bool,
}

/// The short-time Fourier transform: frames of the signal `[B, n, c]` times a window, transformed to
/// `[B, frames, bins, 2]`.
pub fn stft(cx: &mut Lowering, x: Value, window: Option<Value>, p: &Stft) -> Result {
    cx.require_rank(x, 3)?;
    let (dtype, from, sx) = (cx.dtype(x), parts(cx, x)?, cx.shape(x));
    let Stft { step, onesided, .. } = *p;
    if !(1..=1 << 30).contains(&step) {
        return Err(OpError::model(format!("a step of {step}")).param("step"));
    }
    if let Some(w) = window {
        cx.require_rank(w, 1)?;
    }
    let length = match (&p.length, window) {
        (Some(n), _) => n.clone(),
        (None, Some(w)) => cx.shape(w)[0].clone(),
        (None, None) => sx[1].clone(),
    };
    let fits = length.as_const().is_none_or(|n| (1..=46340).contains(&n));
    let room = &sx[1] - &length;
    if !fits || room.as_const().is_some_and(|r| r < 0) {
        return Err(OpError::model(format!("frames of {length} elements of a signal {}", show(&sx))));
    }
    if onesided && from == 2 {
        return Err(OpError::model("half of the bins say all of a real signal only").param("onesided"));
    }
    let frames = &room.div(&step.into(), &[]) + 1;
    let shape = vec![sx[0].clone(), frames, length.clone(), from.into()];
    let index = vec![Poly::var(0), &(Poly::var(1) * step) + &Poly::var(2), Poly::var(3)];
    let mut x = cx.view(x, shape, index)?;
    if let Some(w) = window {
        let have = cx.shape(w)[0].clone();
        if have.as_const().is_some() && length.as_const().is_some() && have != length {
            let e = OpError::model(format!("a window of {have} elements for frames of {length}"));
            return Err(e.operand(w));
        }
        cx.require_equal(&have, &length);
        let w = cx.reshape(w, vec![length.clone(), Dim::ONE])?;
        let w = cx.cast(w, dtype)?;
        x = cx.binary(B::Mul, x, w)?;
    }
    let x = cx.cast(x, DType::F32)?;
    let bins = if onesided { half(&length) } else { length.clone() };
    let y = Transform { length, inverse: false, divided: false, from, to: 2 }.apply(cx, x, &bins)?;
    Ok(cx.cast(y, dtype)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use wgfc_ir::{Border, Graph, TensorType, eval};

    /// The transform computed by its definition.
    fn transformed(x: &[[f64; 2]], bins: usize, sign: f64) -> Vec<[f64; 2]> {
        let n = x.len();
        let bin = |k: usize| {
            let term = |(i, [re, im]): (usize, &[f64; 2])| {
                let (sin, cos) = (sign * std::f64::consts::TAU * ((i * k) % n) as f64 / n as f64).sin_cos();
                [re * cos - im * sin, re * sin + im * cos]
            };
            x.iter().enumerate().map(term).fold([0.0; 2], |a, b| [a[0] + b[0], a[1] + b[1]])
        };
        (0..bins).map(bin).collect()
    }

    fn check(n: usize, parts: usize, inverse: bool, onesided: bool) {
        let half = n / 2 + 1;
        let have = if inverse && onesided { half } else { n };
        let values: Vec<f32> =
            (0..2 * have * parts).map(|i| ((i * 7919) % 101) as f32 / 50.0 - 1.0).collect();
        let mut g = Graph::new();
        let shape = vec![2, have, parts];
        let x = g.add_input(
            "x",
            TensorType::new(DType::F32, shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>()),
        );
        let mut cx = Lowering::new(&mut g);
        let p = Dft { axis: 1, length: Some(n.into()), inverse, divided: true, onesided };
        let value = dft(&mut cx, x, &p).unwrap();
        cx.finish();
        g.outputs.push(Border { name: "y".into(), value });
        let given = BTreeMap::from([("x".to_owned(), Tensor::from_f32(shape, &values))]);
        let got: Vec<f64> =
            eval::evaluate(&g, &given).unwrap()[0].scalars().unwrap().iter().map(|s| s.as_f64()).collect();
        let mut want = vec![];
        for row in values.chunks(have * parts) {
            let mut x: Vec<[f64; 2]> =
                row.chunks(parts).map(|v| [v[0].into(), v.get(1).map_or(0.0, |v| f64::from(*v))]).collect();
            if inverse && onesided {
                // The first bin of a real signal is real, and for an even length also the last.
                x[0][1] = 0.0;
                if n.is_multiple_of(2) {
                    x[half - 1][1] = 0.0;
                }
                x.extend((half..n).map(|k| [x[n - k][0], -x[n - k][1]]).collect::<Vec<_>>());
            }
            let bins = if onesided && !inverse { half } else { n };
            let scale = if inverse { 1.0 / n as f64 } else { 1.0 };
            for y in transformed(&x, bins, if inverse { 1.0 } else { -1.0 }) {
                let parts = if inverse && onesided { 1 } else { 2 };
                want.extend(y[..parts].iter().map(|v| v * scale));
            }
        }
        assert_eq!(got.len(), want.len());
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
        let off = norm(&mut got.iter().zip(&want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied());
        assert!(off < 1e-6, "length {n}, {parts}, {inverse}, {onesided}: off by {off:.1e} of all");
        let scale = if inverse { 1.0 } else { n as f64 };
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!(
                (g - w).abs() < 1e-6 * scale,
                "length {n}, {parts}, {inverse}, {onesided}: {i} is {g}, not {w}"
            );
        }
    }

    #[test]
    fn factors_make_the_whole() {
        // In order: one product; small factors; a prime; a large prime factor; odd factors; chirps for the whole
        // length and for a factor.
        for n in [60, 1024, 521, 2 * 521, 729, 4095, 1033, 2 * 1031] {
            check(n, 2, false, false);
            check(n, 2, true, false);
            check(n, 1, false, true);
            check(n, 2, true, true);
        }
    }
}
