//! Packed storage: conversion between scalars and the bytes of every [`DType`].

use crate::dtype::{Class, DType};
use crate::scalar::Scalar;
use half::{bf16, f16};

/// Decodes `n` packed little-endian elements. Missing bytes read as zero.
///
/// ```
/// use wgfc_program::{DType, storage::decode};
/// // Two numbers of 4 bits share a byte, the first in its low half.
/// let values: Vec<i64> = decode(DType::I4, &[0xf3], 2).iter().map(|s| s.as_i64()).collect();
/// assert_eq!(values, [3, -1]);
/// ```
pub fn decode(dtype: DType, bytes: &[u8], n: usize) -> Vec<Scalar> {
    let bits = dtype.bits();
    (0..n)
        .map(|i| {
            let raw = if bits >= 8 {
                let w = bits / 8;
                let mut b = [0u8; 8];
                if let Some(s) = bytes.get(i * w..(i + 1) * w) {
                    b[..w].copy_from_slice(s);
                }
                u64::from_le_bytes(b)
            } else {
                let per = 8 / bits;
                let byte = bytes.get(i / per).copied().unwrap_or(0);
                u64::from(byte >> ((i % per) * bits)) & ((1 << bits) - 1)
            };
            from_raw(dtype, raw)
        })
        .collect()
}

/// Encodes scalars (converted to `dtype`: floats round to nearest even, integers wrap) as packed bytes.
///
/// ```
/// use wgfc_program::{DType, Scalar, storage::encode};
/// let values = [1.0, -2.0].map(|v| Scalar::from_f64(DType::F32, v));
/// assert_eq!(encode(DType::F16, values.into_iter()), [0x00, 0x3c, 0x00, 0xc0]);
/// ```
pub fn encode(dtype: DType, v: impl Iterator<Item = Scalar>) -> Vec<u8> {
    let bits = dtype.bits();
    let mut out = Vec::new();
    if bits >= 8 {
        for s in v {
            out.extend_from_slice(&to_raw(dtype, s).to_le_bytes()[..bits / 8]);
        }
    } else {
        let per = 8 / bits;
        for (i, s) in v.enumerate() {
            if i % per == 0 {
                out.push(0);
            }
            if let Some(b) = out.last_mut() {
                *b |= (to_raw(dtype, s) as u8) << ((i % per) * bits);
            }
        }
    }
    out
}

/// The scalar that raw stored bits represent.
///
/// ```
/// use wgfc_program::{DType, storage::{from_raw, to_raw}};
/// let one = from_raw(DType::BF16, 0x3f80);
/// assert_eq!(one.as_f64(), 1.0);
/// assert_eq!(to_raw(DType::F16, one), 0x3c00);
/// ```
pub fn from_raw(dtype: DType, raw: u64) -> Scalar {
    let sext = |b: u32| (((raw << (64 - b)) as i64) >> (64 - b)) as u64;
    let bits = match dtype {
        DType::F64 => raw,
        DType::F32 => f64::from(f32::from_bits(raw as u32)).to_bits(),
        DType::F16 => f16::from_bits(raw as u16).to_f64().to_bits(),
        DType::BF16 => bf16::from_bits(raw as u16).to_f64().to_bits(),
        d if d.is_float() => minifloat(d).decode(raw as u8).to_bits(),
        DType::Bool => u64::from(raw & 0xff != 0),
        d if d.class() == Class::Int => sext(d.bits() as u32),
        _ => raw,
    };
    Scalar { dtype, bits }
}

/// The stored bits of a scalar converted to `dtype`.
pub fn to_raw(dtype: DType, s: Scalar) -> u64 {
    let f = || s.as_f64();
    match dtype {
        DType::F64 => f().to_bits(),
        DType::F32 => u64::from((f() as f32).to_bits()),
        DType::F16 => u64::from(f16::from_f64(f()).to_bits()),
        DType::BF16 => u64::from(bf16::from_f64(f()).to_bits()),
        d if d.is_float() => u64::from(minifloat(d).encode(f())),
        DType::Bool => u64::from(if s.dtype.is_float() { f() != 0.0 } else { s.bits != 0 }),
        d => {
            let v = if s.dtype.is_float() { f() as i64 as u64 } else { s.bits };
            if d.bits() == 64 { v } else { v & ((1 << d.bits()) - 1) }
        }
    }
}

/// A float of at most 8 bits (OCP MX and the ONNX float-8 proposals).
struct MiniFloat {
    exp: u32,
    man: u32,
    bias: i32,
    signed: bool,
    /// The meaning of the largest codes.
    special: Special,
}

enum Special {
    /// Infinity and NaN as in IEEE 754.
    Ieee,
    /// One NaN: all exponent and mantissa bits set.
    NanAllOnes,
    /// One NaN: negative zero's code.
    NanNegZero,
    /// Every code is a finite number.
    None,
}

fn minifloat(d: DType) -> MiniFloat {
    let f = |exp, man, bias, special| MiniFloat { exp, man, bias, signed: true, special };
    match d {
        DType::F8E4M3 => f(4, 3, 7, Special::NanAllOnes),
        DType::F8E4M3Uz => f(4, 3, 8, Special::NanNegZero),
        DType::F8E5M2 => f(5, 2, 15, Special::Ieee),
        DType::F8E5M2Uz => f(5, 2, 16, Special::NanNegZero),
        DType::F4E2M1 => f(2, 1, 1, Special::None),
        _ => MiniFloat { exp: 8, man: 0, bias: 127, signed: false, special: Special::NanAllOnes },
    }
}

impl MiniFloat {
    fn decode(&self, raw: u8) -> f64 {
        let raw = u32::from(raw);
        let man = raw & ((1 << self.man) - 1);
        let exp = (raw >> self.man) & ((1 << self.exp) - 1);
        let neg = self.signed && raw >> (self.man + self.exp) & 1 == 1;
        let top = (1 << self.exp) - 1;
        let all_man = (1 << self.man) - 1;
        match self.special {
            Special::Ieee if exp == top => {
                let v = if man == 0 { f64::INFINITY } else { f64::NAN };
                return if neg { -v } else { v };
            }
            Special::NanAllOnes if exp == top && man == all_man => return f64::NAN,
            Special::NanNegZero if neg && exp == 0 && man == 0 => return f64::NAN,
            _ => {}
        }
        let scale = 2f64.powi(-(self.man as i32));
        let v = if !self.signed {
            2f64.powi(exp as i32 - self.bias)
        } else if exp == 0 {
            f64::from(man) * scale * 2f64.powi(1 - self.bias)
        } else {
            (1.0 + f64::from(man) * scale) * 2f64.powi(exp as i32 - self.bias)
        };
        if neg { -v } else { v }
    }

    /// Rounds to the nearest value, ties to the even code. Values out of range give infinity if there is one, else
    /// NaN, else the largest number.
    fn encode(&self, v: f64) -> u8 {
        let width = self.exp + self.man;
        let sign = if self.signed && v.is_sign_negative() { 1u32 << width } else { 0 };
        let codes = 1u32 << width;
        let nan = match self.special {
            Special::Ieee => ((((1u32 << self.exp) - 1) << self.man) | 1) | sign,
            Special::NanAllOnes => (codes - 1) | sign,
            Special::NanNegZero => 1 << width,
            Special::None => codes - 1,
        };
        if v.is_nan() {
            return nan as u8;
        }
        let max_code = match self.special {
            Special::Ieee => (((1u32 << self.exp) - 1) << self.man) - 1,
            Special::NanAllOnes => codes - 2,
            Special::NanNegZero | Special::None => codes - 1,
        };
        let a = v.abs();
        let at = |c: u32| self.decode(c as u8);
        let (mut lo, mut hi) = (0u32, max_code);
        while lo < hi {
            let mid = (lo + hi).div_ceil(2);
            if at(mid) <= a { lo = mid } else { hi = mid - 1 }
        }
        if lo == max_code {
            // A value half a step above the largest number rounds beyond it if the largest code is odd.
            let step = at(max_code) - at(max_code - 1);
            let over = a > at(max_code) + step / 2.0 || (a == at(max_code) + step / 2.0 && max_code & 1 == 1);
            if over {
                return match self.special {
                    Special::Ieee => ((max_code + 1) | sign) as u8,
                    Special::None => (max_code | sign) as u8,
                    _ => nan as u8,
                };
            }
        } else {
            let (below, above) = (at(lo), at(lo + 1));
            let mid = (below + above) / 2.0;
            if a > mid || (a == mid && lo & 1 == 1) {
                lo += 1;
            }
        }
        if lo == 0 && matches!(self.special, Special::NanNegZero) {
            return 0;
        }
        (lo | sign) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for d in DType::ALL.iter().copied().filter(|d| d.bits() <= 16 && *d != DType::Bool) {
            for raw in 0..1u64 << d.bits() {
                let s = from_raw(d, raw);
                if d.is_float() && s.as_f64().is_nan() {
                    continue;
                }
                assert_eq!(to_raw(d, s), raw, "{d} {raw:#x} {s}");
            }
        }
    }

    #[test]
    fn packed_elements_share_bytes() {
        let v: Vec<Scalar> = [1i64, -2, 7].iter().map(|v| Scalar::from_i64(DType::I4, *v)).collect();
        let bytes = encode(DType::I4, v.iter().copied());
        assert_eq!(bytes, [0xe1, 0x07]);
        assert_eq!(decode(DType::I4, &bytes, 3), v);
    }
}
