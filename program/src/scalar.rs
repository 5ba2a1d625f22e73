//! A single element.

use crate::dtype::{Class, DType};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A constant element, stored as bits so that NaN and infinity are kept and comparison is exact.
///
/// ```
/// use wgfc_program::{DType, Scalar};
/// let x = Scalar::from_f64(DType::F32, 0.1);
/// assert_eq!(x.as_f64(), f64::from(0.1_f32));
/// assert_eq!(Scalar::from_i64(DType::I64, -3).as_i64(), -3);
/// // Bits are compared: NaN equals itself.
/// assert_eq!(Scalar::from_f64(DType::F32, f64::NAN), Scalar::from_f64(DType::F32, f64::NAN));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scalar {
    /// Its element type.
    pub dtype: DType,
    /// Floats: the bits of the `f64` value. Integers: the value, sign-extended. Bool: 0 or 1.
    pub bits: u64,
}

impl Scalar {
    /// A number converted to `dtype` (floats are rounded to the precision of its register).
    pub fn from_f64(dtype: DType, v: f64) -> Scalar {
        let bits = match dtype.class() {
            Class::Float if dtype == DType::F64 => v.to_bits(),
            Class::Float => f64::from(v as f32).to_bits(),
            Class::Int => (v as i64) as u64,
            Class::Uint => v as u64,
            Class::Bool => u64::from(v != 0.0),
        };
        Scalar { dtype, bits }
    }
    /// An integer converted to `dtype`.
    pub fn from_i64(dtype: DType, v: i64) -> Scalar {
        match dtype.class() {
            Class::Float => Scalar::from_f64(dtype, v as f64),
            Class::Bool => Scalar { dtype, bits: u64::from(v != 0) },
            _ => Scalar { dtype, bits: v as u64 },
        }
    }
    /// True or false.
    pub fn bool(v: bool) -> Scalar {
        Scalar { dtype: DType::Bool, bits: u64::from(v) }
    }
    /// The value as a float.
    pub fn as_f64(self) -> f64 {
        match self.dtype.class() {
            Class::Float => f64::from_bits(self.bits),
            Class::Int => self.bits as i64 as f64,
            _ => self.bits as f64,
        }
    }
    /// The value as an integer (floats truncate).
    pub fn as_i64(self) -> i64 {
        match self.dtype.class() {
            Class::Float => f64::from_bits(self.bits) as i64,
            _ => self.bits as i64,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype.class() {
            Class::Float => {
                let v = f64::from_bits(self.bits);
                if v.is_nan() { write!(f, "nan:{}", self.dtype) } else { write!(f, "{v:?}:{}", self.dtype) }
            }
            Class::Int => write!(f, "{}:{}", self.bits as i64, self.dtype),
            Class::Uint => write!(f, "{}:{}", self.bits, self.dtype),
            Class::Bool => write!(f, "{}", self.bits != 0),
        }
    }
}
impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
