//! Special functions: scalar operators that are computed by algorithms.
//!
//! A function consists of a line of a table below, its evaluation in double precision in one of the modules here, and
//! a WGSL function with its name and `_f32` in a file of `codegen-templates/templates/lib/special`. The line states
//! how far kernels may deviate from the evaluator, and over which ranges: the test that compares them
//! (`compiler/tests/it/special.rs`) and the self-test draw operands from these ranges. Narrower types are computed in
//! f32; NaN gives NaN unless stated otherwise.
//!
//! Sources: Abramowitz and Stegun, *Handbook of Mathematical Functions*; the Digital Library of Mathematical Functions
//! (DLMF). Poles and values outside of the domain follow PyTorch.

mod bessel;
mod elementary;
mod error;
mod gamma;
mod polynomials;
#[cfg(test)]
mod tests;

/// A range from which operands are drawn: uniformly, or logarithmically if it spans several orders of magnitude.
pub type Range = (f64, f64);

/// Maps a number from 0 to 1 to a number of the range.
pub fn within((low, high): Range, unit: f64) -> f64 {
    if low > 0.0 && high / low > 1e3 {
        low * (unit * (high / low).ln()).exp()
    } else {
        low + unit * (high - low)
    }
}

/// The permitted deviation of kernels from the evaluator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Error {
    /// The error relative to the result.
    pub relative: f64,
    /// The absolute error, which is added: near zeros the relative error is unbounded.
    pub absolute: f64,
}

impl Error {
    /// Whether a result is accurate enough; results that are not finite must be equal.
    pub fn admits(self, got: f64, want: f64) -> bool {
        if !want.is_finite() {
            // A result beyond the range of f32 may be its largest number.
            return got == want || got.is_nan() && want.is_nan();
        }
        (got - want).abs() <= self.absolute + self.relative * want.abs()
    }
}

macro_rules! functions {
    ($(#[$meta:meta])* $enum:ident ($evaluator:ty), over $range:ty {
        $($(#[$doc:meta])* $variant:ident $name:literal $path:path, $relative:literal $absolute:literal, $over:expr;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $enum { $($(#[$doc])* $variant,)* }
        impl $enum {
            /// All of them.
            pub const ALL: &'static [$enum] = &[$($enum::$variant,)*];
            /// The name in the text format, and with `_f32` in kernels.
            pub fn name(self) -> &'static str {
                match self { $($enum::$variant => $name,)* }
            }
            /// The function of that name.
            pub fn from_name(s: &str) -> Option<$enum> {
                match s { $($name => Some($enum::$variant),)* _ => None }
            }
            fn evaluator(self) -> $evaluator {
                match self { $($enum::$variant => $path,)* }
            }
            /// The permitted deviation of kernels over these [ranges](Self::over).
            pub fn error(self) -> Error {
                match self { $($enum::$variant => Error { relative: $relative, absolute: $absolute },)* }
            }
            /// The ranges over which the deviation is bounded.
            pub fn over(self) -> &'static [$range] {
                match self { $($enum::$variant => &$over,)* }
            }
        }
    };
}

functions! {
    /// Special functions of one float.
    Special(fn(f64) -> f64), over Range {
        /// ln(1 + x).
        Log1p "log1p" elementary::log1p, 5e-7 0.0, [(-0.99, 2.0), (1e-20, 1e20)];
        /// eˣ − 1.
        Expm1 "expm1" elementary::expm1, 5e-7 0.0, [(-10.0, 2.0), (1e-20, 88.0)];
        /// 2ˣ.
        Exp2 "exp2" elementary::exp2, 3e-7 0.0, [(-120.0, 127.0)];
        /// The logarithm to base 2.
        Log2 "log2" elementary::log2, 3e-7 1e-7, [(1e-30, 1e30), (0.5, 2.0)];
        /// The logarithm to base 10.
        Log10 "log10" elementary::log10, 3e-7 1e-7, [(1e-30, 1e30), (0.5, 2.0)];
        /// ln |Γ(x)|; ∞ at 0 and the negative integers.
        LogGamma "log_gamma" gamma::log_gamma, 1e-6 3e-6, [(1e-30, 1e30), (0.1, 9.0), (-20.0, 0.0)];
        /// The derivative of ln Γ(x); NaN at negative integers, −∞ at 0 and ∞ at −0.
        Digamma "digamma" gamma::digamma, 3e-6 3e-6, [(1e-30, 1e30), (0.1, 9.0), (-10.0, 0.0)];
        /// 1 − erf(x).
        Erfc "erfc" error::erfc, 1e-6 1e-38, [(-4.0, 9.2)];
        /// e^x² · erfc(x).
        Erfcx "erfcx" error::erfcx, 1e-6 0.0, [(-9.0, 9.0), (1.0, 1e20)];
        /// The inverse of erf: ±∞ at ±1, NaN beyond.
        Erfinv "erfinv" error::erfinv, 1e-6 0.0, [(-1.0, 1.0), (1e-20, 1.0)];
        /// The inverse of the normal distribution function: −∞ at 0, ∞ at 1, NaN outside.
        Ndtri "ndtri" error::ndtri, 2e-6 1e-6, [(0.0, 1.0), (1e-30, 1.0)];
        /// The logarithm of the normal distribution function.
        LogNdtr "log_ndtr" error::log_ndtr, 2e-6 1e-38, [(-20.0, 9.0), (-1e4, -1.0)];
        /// The modified Bessel function I₀.
        BesselI0 "bessel_i0" bessel::i0, 1e-6 0.0, [(-88.0, 88.0), (-9.0, 9.0)];
        /// I₀(x) · e^−|x|.
        ScaledI0 "scaled_bessel_i0" bessel::i0e, 1e-6 0.0, [(-20.0, 20.0), (1.0, 1e10)];
        /// The modified Bessel function I₁.
        BesselI1 "bessel_i1" bessel::i1, 1e-6 0.0, [(-88.0, 88.0), (-9.0, 9.0)];
        /// I₁(x) · e^−|x|.
        ScaledI1 "scaled_bessel_i1" bessel::i1e, 1e-6 0.0, [(-20.0, 20.0), (1.0, 1e10)];
        /// The modified Bessel function K₀: ∞ at 0, NaN below.
        BesselK0 "bessel_k0" bessel::k0, 2e-6 1e-37, [(1e-20, 80.0), (0.0, 5.0)];
        /// K₀(x) · eˣ.
        ScaledK0 "scaled_bessel_k0" bessel::k0e, 2e-6 0.0, [(1e-20, 1e10), (0.0, 5.0)];
        /// The modified Bessel function K₁: ∞ at 0, NaN below.
        BesselK1 "bessel_k1" bessel::k1, 2e-6 1e-37, [(1e-20, 80.0), (0.0, 5.0)];
        /// K₁(x) · eˣ.
        ScaledK1 "scaled_bessel_k1" bessel::k1e, 2e-6 0.0, [(1e-20, 1e10), (0.0, 5.0)];
        /// The Bessel function J₀.
        BesselJ0 "bessel_j0" bessel::j0, 2e-6 2e-6, [(-20.0, 20.0), (1.0, 100.0)];
        /// The Bessel function J₁.
        BesselJ1 "bessel_j1" bessel::j1, 2e-6 2e-6, [(-20.0, 20.0), (1.0, 100.0)];
        /// The Bessel function Y₀: −∞ at 0, NaN below.
        BesselY0 "bessel_y0" bessel::y0, 2e-6 2e-6, [(1e-20, 100.0), (0.0, 20.0)];
        /// The Bessel function Y₁: −∞ at 0, NaN below.
        BesselY1 "bessel_y1" bessel::y1, 2e-6 2e-6, [(1e-20, 100.0), (0.0, 20.0)];
        /// sin(x) / x.
        SphericalJ0 "spherical_bessel_j0" bessel::spherical_j0, 1e-6 1e-6, [(-20.0, 20.0), (1e-20, 100.0)];
        /// Airy's function Ai.
        AiryAi "airy_ai" bessel::airy_ai, 1e-5 4e-6, [(-20.0, 5.0), (1.0, 20.0)];
    }
}

functions! {
    /// Special functions of two floats.
    Special2(fn(f64, f64) -> f64), over (Range, Range) {
        /// √(x² + y²), without intermediate overflow.
        Hypot "hypot" elementary::hypot, 6e-7 0.0, [((-3.0, 3.0), (-3.0, 3.0)), ((1e-20, 1e30), (1e-20, 1e30)), ((1e37, 2e38), (1e37, 2e38))];
        /// The angle of the point with ordinate `y` (first operand) and abscissa `x` (second operand).
        Atan2 "atan2" elementary::atan2, 6e-7 0.0, [((-3.0, 3.0), (-3.0, 3.0)), ((-1.0, 1.0), (1e-10, 1e10)), ((1e37, 3e38), (1e37, 3e38))];
        /// The Hurwitz zeta function, Σ (y + k)^−x from k = 0: ∞ if x is 1 or y is 0 or a negative integer; NaN if x
        /// is below 1, or y is below 0 and x is not an integer.
        Zeta "zeta" gamma::zeta, 3e-6 3e-6, [((1.1, 10.0), (0.5, 20.0)), ((2.0, 30.0), (1.0, 100.0)), ((2.0, 2.0), (-6.0, 0.0)), ((3.0, 3.0), (-6.0, 0.0))];
        /// The regularised lower incomplete gamma function P(x, y).
        GammaP "gamma_p" gamma::gamma_p, 1e-5 2e-7, [((0.01, 10.0), (0.01, 20.0)), ((10.0, 300.0), (10.0, 300.0))];
        /// The regularised upper incomplete gamma function Q(x, y).
        GammaQ "gamma_q" gamma::gamma_q, 1e-5 2e-7, [((0.01, 10.0), (0.01, 20.0)), ((10.0, 300.0), (10.0, 300.0))];
        /// The Chebyshev polynomial of the first kind Tᵧ(x). The degree y of this and all following polynomials is
        /// truncated to an integer; for degrees below 0 the value is 0, above 4,096 it is NaN.
        ChebyshevT "chebyshev_t" polynomials::chebyshev_t, 1e-5 1e-5, [((-1.5, 1.5), (0.0, 12.0))];
        /// The Chebyshev polynomial of the second kind.
        ChebyshevU "chebyshev_u" polynomials::chebyshev_u, 1e-5 2e-5, [((-1.5, 1.5), (0.0, 12.0))];
        /// The Chebyshev polynomial of the third kind.
        ChebyshevV "chebyshev_v" polynomials::chebyshev_v, 1e-5 2e-5, [((-1.5, 1.5), (0.0, 12.0))];
        /// The Chebyshev polynomial of the fourth kind.
        ChebyshevW "chebyshev_w" polynomials::chebyshev_w, 1e-5 2e-5, [((-1.5, 1.5), (0.0, 12.0))];
        /// The physicists' Hermite polynomial Hᵧ(x); NaN for degrees above 128.
        HermiteH "hermite_h" polynomials::hermite_h, 1e-5 1e-5, [((3.0, 6.0), (0.0, 8.0)), ((-1.0, 1.0), (0.0, 4.0))];
        /// The probabilists' Hermite polynomial Heᵧ(x); NaN for degrees above 128.
        HermiteHe "hermite_he" polynomials::hermite_he, 1e-5 1e-5, [((4.0, 9.0), (0.0, 8.0)), ((-1.0, 1.0), (0.0, 4.0))];
        /// The Laguerre polynomial Lᵧ(x).
        LaguerreL "laguerre_l" polynomials::laguerre_l, 1e-5 2e-5, [((-3.0, 3.0), (0.0, 12.0))];
        /// The Legendre polynomial Pᵧ(x).
        LegendreP "legendre_p" polynomials::legendre_p, 1e-5 1e-5, [((-1.0, 1.0), (0.0, 20.0)), ((1.0, 2.0), (0.0, 12.0))];
    }
}

impl Special {
    /// The value.
    pub fn at(self, x: f64) -> f64 {
        if x.is_nan() { x } else { self.evaluator()(x) }
    }
}

impl Special2 {
    /// The value.
    pub fn at(self, x: f64, y: f64) -> f64 {
        self.evaluator()(x, y)
    }
}

/// Evaluates a polynomial at `x`; the coefficient of the highest power comes first.
fn horner(x: f64, c: &[f64]) -> f64 {
    c.iter().fold(0.0, |y, c| y * x + c)
}
