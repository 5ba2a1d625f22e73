//! The scalar computation of the choice for one logit.

use wgfc_ir::{BinaryOp, Body, DType, Poly};

/// Whether a logit is not finite: indices of bool nodes in the body.
pub struct Class {
    /// Whether the logit is NaN or +∞.
    pub wrong: u32,
    /// Whether the logit is −∞, so that the token is never chosen.
    pub never: u32,
}

/// Classifies a logit by its bits, as shader arithmetic may assume that NaN and infinity do not occur.
pub fn class(f: &mut Body, x: u32) -> Class {
    let bits = f.bitcast(DType::U32, x);
    let rest = f.u32(i64::from(i32::MAX));
    let size = f.binary(BinaryOp::And, bits, rest);
    let (infinite, below) = (f.u32(0x7f80_0000), f.u32(0xff80_0000));
    let nan = f.binary(BinaryOp::Gt, size, infinite);
    let above = f.binary(BinaryOp::Eq, bits, infinite);
    let wrong = f.binary(BinaryOp::Or, nan, above);
    Class { wrong, never: f.binary(BinaryOp::Eq, bits, below) }
}

/// A Gumbel variate for position `at` and the random bits in arguments `low` and `high`.
pub fn gumbel(f: &mut Body, at: Poly, low: u32, high: u32) -> u32 {
    let at = f.index(at);
    let at = f.cast(DType::U32, at);
    let v = [at, f.arg(low), f.arg(high)];
    let [bits, ..] = f.pcg3d(v);
    // `u` has the finest resolution near 0, which gives the largest variates.
    let u = f.unit(bits);
    f.gumbel(u)
}
