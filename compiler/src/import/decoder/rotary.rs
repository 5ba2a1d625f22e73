//! Rotary embeddings by position.

use crate::lower::{Lowering, Result};
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, ScalarFn, ScalarNode as N, Tensor, UnaryOp as U, Value};

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// The base of the frequencies: pair `i` of `n` has the frequency `base^(−i/n)`.
    pub base: f64,
    /// The number of pairs of each head that rotate.
    pub pairs: usize,
    /// Whether the two elements of a pair are adjacent; else they are `pairs` apart.
    pub interleaved: bool,
    /// The divisors of frequencies.
    pub stretch: Stretch,
    /// The factor of cosines and sines.
    pub magnitude: f64,
}

/// Divisors of frequencies, by which a model reaches positions beyond those that it was trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum Stretch {
    /// None.
    None,
    /// One for all pairs.
    All(f64),
    /// One for each pair.
    Each(Vec<f64>),
    /// One for each pair: `short` as long as there are at most `original` positions, else `long`.
    ByLength {
        /// The number of positions.
        original: i64,
        /// The divisors up to it.
        short: Vec<f64>,
        /// The divisors beyond it.
        long: Vec<f64>,
    },
}

impl Stretch {
    /// Divisors by wavelength, as Llama 3.1 has them: none for short wavelengths, `factor` for those longer than
    /// `original / low`, and between `original / high` and that a mixture.
    pub fn by_wavelength(
        base: f64,
        pairs: usize,
        factor: f64,
        original: f64,
        [low, high]: [f64; 2],
    ) -> Stretch {
        let each = (0..pairs).map(|i| {
            let wavelength = std::f64::consts::TAU * base.powf(i as f64 / pairs as f64);
            let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / ((1.0 - smooth) / factor + smooth)
        });
        Stretch::Each(each.collect())
    }
}

impl Rotary {
    /// The frequencies with these divisors.
    fn frequencies(&self, cx: &mut Lowering, divisor: impl Fn(usize) -> f64) -> Value {
        let of = |i: usize| self.base.powf(-(i as f64) / self.pairs as f64) / divisor(i);
        let all: Vec<f32> = (0..self.pairs).map(|i| of(i) as f32).collect();
        cx.constant(Tensor::from_f32(vec![self.pairs], &all))
    }

    /// The cosines and sines, `[batch, 1, seq, pairs]`, of positions `[batch, seq]` in f32. `total` is the number of positions so far.
    pub fn angles(&self, cx: &mut Lowering, positions: Value, total: &Dim) -> Result<[Value; 2]> {
        let one = |divisors: &[f64], i: usize| divisors.get(i).copied().unwrap_or(1.0);
        let frequencies = match &self.stretch {
            Stretch::None => self.frequencies(cx, |_| 1.0),
            Stretch::All(d) => self.frequencies(cx, |_| *d),
            Stretch::Each(d) => self.frequencies(cx, |i| one(d, i)),
            Stretch::ByLength { original, short, long } => {
                let short = self.frequencies(cx, |i| one(short, i));
                let long = self.frequencies(cx, |i| one(long, i));
                let mut f = ScalarFn::default();
                let beyond = f.push(N::Index(total - *original));
                let zero = f.push(N::Index(Poly::ZERO));
                let beyond = f.push(N::Binary(B::Gt, beyond, zero));
                let (a, b) = (f.push(N::Arg(0)), f.push(N::Arg(1)));
                f.push(N::Select(beyond, a, b));
                cx.map_to(f, &[long, short], vec![self.pairs.into()])?
            }
        };
        let at = cx.unsqueeze(positions, &[1, 3])?;
        let angles = cx.binary(B::Mul, at, frequencies)?;
        let mut both = [U::Cos, U::Sin].map(|u| cx.unary(u, angles));
        if self.magnitude != 1.0 {
            both = both.map(|v| cx.binary_scalar(B::Mul, v?, self.magnitude));
        }
        let [cos, sin] = both;
        debug_assert_eq!(cx.dtype(angles), DType::F32);
        Ok([cos?, sin?])
    }
}
