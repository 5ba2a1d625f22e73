//! Constants of the e-graph.
//!
//! Rules combine constants: `(x · c) · k` is `x · (c · k)`. With rounded constants this is not an equality, and
//! saturation with false equalities derives anything: if `c · k` rounds to 1 without being 1, x equals x times any
//! power of it. A float constant of the e-graph is therefore the exact *rational number* that it represents, rules
//! compute with rationals, and a constant is rounded only once, when a term is chosen. `1 / 3` is exactly a third, and
//! a third times 3 is 1.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};
use std::fmt;
use wgfc_ir::{BinaryOp, DType, Scalar, UnaryOp};

/// The maximum number of bits of the numerator and the denominator of a [`Number`] together. Any two `f64` can be
/// added.
const MAX_BITS: u64 = 8192;

/// A constant; floats are exact.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Number {
    /// A float's value.
    Real(DType, BigRational),
    /// An integer or a bool; or a float with which no rule computes: −0, infinity, NaN, or a value that its type
    /// cannot represent.
    Bits(Scalar),
}

impl Number {
    /// A rational of a float type; `None` for other types, or if it has too many bits.
    pub fn real(dtype: DType, value: BigRational) -> Option<Number> {
        let bits = value.numer().bits() + value.denom().bits();
        (normal(dtype).is_some() && bits <= MAX_BITS).then_some(Number::Real(dtype, value))
    }

    /// `1/n`.
    pub fn one_over(dtype: DType, n: i64) -> Option<Number> {
        (n != 0).then(|| Number::real(dtype, BigRational::new(BigInt::one(), n.into())))?
    }

    /// `n`.
    pub fn integer(dtype: DType, n: i64) -> Option<Number> {
        match normal(dtype) {
            Some(_) => Number::real(dtype, BigRational::from_integer(n.into())),
            None => Some(Number::Bits(Scalar::from_i64(dtype, n))),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Number::Real(dtype, _) => *dtype,
            Number::Bits(s) => s.dtype,
        }
    }

    /// The value, if it is a rational.
    pub fn rational(&self) -> Option<&BigRational> {
        match self {
            Number::Real(_, value) => Some(value),
            Number::Bits(_) => None,
        }
    }

    /// Whether it equals `x`, which every float type must be able to represent.
    pub fn is(&self, x: f64) -> bool {
        match self {
            Number::Real(_, value) => BigRational::from_float(x).is_some_and(|x| *value == x),
            Number::Bits(s) => s.as_f64() == x,
        }
    }

    /// The nearest element of the type; `None` if it is out of range, or inexact below the smallest normal number.
    pub fn rounded(&self) -> Option<Scalar> {
        let (dtype, value) = match self {
            Number::Real(dtype, value) => (*dtype, value),
            Number::Bits(s) => return Some(*s),
        };
        let near = Scalar::from_f64(dtype, value.to_f64()?);
        let v = near.as_f64();
        let (least, most) = normal(dtype)?;
        let exact = || BigRational::from_float(v).as_ref() == Some(value);
        (v.abs() <= most && (v.abs() >= least || exact())).then_some(near)
    }

    /// The element of the type that is exactly equal; `None` if there is none.
    pub fn exact(&self) -> Option<Scalar> {
        let s = self.rounded()?;
        (Number::from(s) == *self).then_some(s)
    }

    /// Bounds of its magnitude as powers of two; `None` for 0 and for values that are not rational.
    pub fn exponents(&self) -> Option<Exponents> {
        let value = self.rational().filter(|v| !v.is_zero())?;
        let about = value.numer().bits() as i64 - value.denom().bits() as i64;
        Some(Exponents { least: about - 1, most: about + 1, zero: false })
    }

    /// A unary operator applied to it; `None` if the result is not rational.
    pub fn unary(op: UnaryOp, x: &Number) -> Option<Number> {
        let v = x.rational()?;
        let value = match op {
            // The sign of 0 is not represented.
            UnaryOp::Neg if !v.is_zero() => -v,
            UnaryOp::Abs => v.abs(),
            UnaryOp::Recip if !v.is_zero() => v.recip(),
            _ => return None,
        };
        Number::real(x.dtype(), value)
    }

    /// A binary operator applied to both; `None` if the result is not rational.
    pub fn binary(op: BinaryOp, x: &Number, y: &Number) -> Option<Number> {
        let (a, b) = (x.rational()?, y.rational()?);
        let value = match op {
            BinaryOp::Add => a + b,
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a * b,
            BinaryOp::Div if !b.is_zero() => a / b,
            _ => return None,
        };
        (x.dtype() == y.dtype()).then(|| Number::real(x.dtype(), value))?
    }

    /// The constant in another type, if that type represents it exactly.
    pub fn cast(&self, to: DType) -> Option<Number> {
        let s = self.exact()?;
        let cast = Number::from(Scalar::from_f64(to, s.as_f64()));
        (s.dtype.is_float() && cast.exact()?.as_f64() == s.as_f64()).then_some(cast)
    }
}

impl From<Scalar> for Number {
    fn from(s: Scalar) -> Number {
        let v = s.as_f64();
        let within = normal(s.dtype).is_some_and(|(_, most)| v.abs() <= most);
        if !within || (v == 0.0 && v.is_sign_negative()) {
            return Number::Bits(s);
        }
        let value = BigRational::from_float(v);
        value.and_then(|v| Number::real(s.dtype, v)).unwrap_or(Number::Bits(s))
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Real(dtype, v) => write!(f, "{v}:{dtype}"),
            Number::Bits(s) => write!(f, "{s}"),
        }
    }
}

/// The smallest normal and the largest number of a float type; `None` for types with which rules do not compute. 64-bit floats are
/// computed in 32 bits.
fn normal(dtype: DType) -> Option<(f64, f64)> {
    match dtype {
        DType::F32 | DType::BF16 | DType::F64 => Some((f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX))),
        DType::F16 => Some((2f64.powi(-14), 65504.0)),
        _ => None,
    }
}

/// Bounds of the magnitudes of a constant's non-zero elements: at least 2 to the `least`, less than 2 to the `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exponents {
    /// No non-zero element is below 2 to this exponent.
    pub least: i64,
    /// Every element is below 2 to this exponent.
    pub most: i64,
    /// Whether elements may be 0.
    pub zero: bool,
}

impl Exponents {
    /// The bounds assumed for weights whose values are not available.
    pub const ASSUMED: Exponents = Exponents { least: -24, most: 8, zero: false };

    /// Bounds of the products of one element of each.
    pub fn times(self, o: Exponents) -> Exponents {
        Exponents { least: self.least + o.least, most: self.most + o.most, zero: self.zero || o.zero }
    }
    /// Bounds of the sums or differences of one element of each, which may cancel.
    pub fn plus(self, o: Exponents) -> Exponents {
        Exponents { least: self.least.min(o.least), most: self.most.max(o.most) + 1, zero: true }
    }
    /// Bounds of the reciprocals; `None` if an element may be 0.
    pub fn recip(self) -> Option<Exponents> {
        (!self.zero).then(|| Exponents { least: -self.most, most: 1 - self.least, zero: false })
    }
    /// Bounds of the square roots.
    pub fn sqrt(self) -> Exponents {
        Exponents { least: self.least.div_euclid(2), most: (self.most + 1).div_euclid(2), zero: self.zero }
    }
    /// Whether the type can represent such magnitudes.
    pub fn fit(self, dtype: DType) -> bool {
        normal(dtype).is_none_or(|(_, most)| self.most <= most.log2().ceil() as i64)
    }
    /// Whether the products of the largest such numbers and the smallest of `o` are normal numbers of the type, with a
    /// bit to spare.
    pub fn stay_normal(self, o: Exponents, dtype: DType) -> bool {
        normal(dtype).is_none_or(|(least, _)| self.most + o.least > least.log2() as i64 + 2)
    }
    /// Whether none of such numbers is below the normal numbers of the type.
    pub fn are_normal(self, dtype: DType) -> bool {
        normal(dtype).is_none_or(|(least, _)| self.least >= least.log2() as i64)
    }

    /// Bounds of the elements of a tensor; `None` if one is not finite, or rules do not compute with the type. Absent,
    /// remote and derived elements are not read.
    pub fn of(t: &wgfc_ir::Tensor) -> Option<Exponents> {
        normal(t.dtype)?;
        if !t.is_present() || t.is_remote() || t.is_derived() {
            return Some(Exponents::ASSUMED);
        }
        let (special, bias) = match t.dtype {
            DType::F16 => (0x1f, 15),
            DType::F64 => (0x7ff, 1023),
            _ => (0xff, 127),
        };
        let found = t.exponents()?;
        if found.most == special {
            return None;
        }
        // The biased exponent 0 is that of zeros and of subnormal numbers, which count as 0 here.
        let (first, last) = (i64::from(found.least.unwrap_or(1)), i64::from(found.most.max(1)));
        Some(Exponents { least: first - bias, most: last + 1 - bias, zero: found.zero })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32(v: f64) -> Number {
        Scalar::from_f64(DType::F32, v).into()
    }

    #[test]
    fn factors_that_cancel_make_one_and_no_others_do() {
        for n in [3.0, 255.0, 100.0, 0.1, 1e-30] {
            let r = Number::unary(UnaryOp::Recip, &f32(n)).unwrap();
            assert!(Number::binary(BinaryOp::Mul, &f32(n), &r).unwrap().is(1.0));
            assert_eq!(
                r.rounded(),
                Some(Scalar::from_f64(DType::F32, 1.0 / f32(n).rounded().unwrap().as_f64()))
            );
        }
        // 10 times the rounded 0.1 rounds to 1 but is not 1.
        let near = Number::binary(BinaryOp::Mul, &f32(0.1), &f32(10.0)).unwrap();
        assert!(!near.is(1.0));
        assert_eq!(near.rounded(), f32(1.0).rounded());
    }

    #[test]
    fn a_type_has_what_is_normal_or_exact() {
        let square = |v: Number| Number::binary(BinaryOp::Mul, &v, &v).unwrap().rounded();
        assert_eq!(square(f32(1e30)), None);
        assert_eq!(square(f32(1e-30)), None);
        assert!(square(f32(1e-15)).is_some());
        for v in [1e-45, f64::from(f32::MAX), -0.0, 0.0, f64::INFINITY, f64::NAN] {
            let s = Scalar::from_f64(DType::F32, v);
            assert_eq!(Number::from(s).rounded(), Some(s), "{s}");
            assert_eq!(Number::from(s).exact(), Some(s), "{s}");
        }
        let half = |v: f64| Number::from(Scalar::from_f64(DType::F16, v));
        assert_eq!(square(half(300.0)), None);
        assert_eq!(square(half(0.001)), None);
        assert!(square(half(200.0)).is_some());
    }

    #[test]
    fn casts_keep_the_value() {
        assert_eq!(f32(0.5).cast(DType::F16), Some(Scalar::from_f64(DType::F16, 0.5).into()));
        assert_eq!(f32(2.0).cast(DType::I32), Some(Number::Bits(Scalar::from_i64(DType::I32, 2))));
        assert_eq!(f32(2.5).cast(DType::I32), None);
        let third = Number::one_over(DType::F32, 3).unwrap();
        assert_eq!(third.cast(DType::F64), None);
    }

    #[test]
    fn exponents_bound_the_elements() {
        let t = wgfc_ir::Tensor::from_f32(vec![4], &[0.0, 3.0, -0.2, 1.0]);
        assert_eq!(Exponents::of(&t), Some(Exponents { least: -3, most: 2, zero: true }));
        let big = wgfc_ir::Tensor::from_f32(vec![2], &[1.0, f32::INFINITY]);
        assert_eq!(Exponents::of(&big), None);
        let zero = wgfc_ir::Tensor::from_f32(vec![2], &[0.0, 0.0]);
        assert!(Exponents::of(&zero).unwrap().times(Exponents::of(&t).unwrap()).fit(DType::F16));
        let e = f32(1e30).exponents().unwrap();
        assert!(!e.times(e).fit(DType::F32) && e.fit(DType::F32) && !e.fit(DType::F16));
        let r = e.recip().unwrap();
        assert!(!r.times(r).are_normal(DType::F32) && r.are_normal(DType::F32));
        assert_eq!(Exponents::of(&t).unwrap().recip(), None);
    }
}
