//! Products computed as sums of integers, which do not depend on the order.
//!
//! An integer of w bits is ±5^k·2^v, where powers of 5 repeat after 2^(w − 2): a product adds k, v and the number of negative factors. A
//! float is ±2^(e + l), where l, in 0..1, is a multiple of a small power of two: a product adds e, l and the number of negative factors.
//! Logarithms and powers are computed in 64-bit integers, so that each device gets the same bits. The logarithm of a float has an error
//! of about 2^-50; a product has the sum of its factors' errors and is rounded once.

use super::{FRACTION, SPECIAL, places};
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, ScalarFn};

/// The decomposition of a product into sums.
pub struct Parts {
    /// For each sum, the function from a factor to its term.
    pub of: Vec<ScalarFn>,
    /// The product as a function of the sums.
    pub product: ScalarFn,
}

impl Parts {
    /// The parts of integers of type `t`, `u32` or `u64`.
    pub fn of_integers(t: DType) -> Parts {
        Parts {
            of: vec![
                of_integer(t, |f, i| f.cast(t, i.power)),
                of_integer(t, |f, i| f.cast(DType::U32, i.negative)),
                of_integer(t, |f, i| f.cast(DType::I64, i.twos)),
            ],
            product: integer(t),
        }
    }

    /// The parts of `f32`, where at most `most` factors go to one element.
    pub fn of_floats(most: &Dim) -> Parts {
        Parts { of: vec![exponent(), sign(), special(), fraction(most)], product: float(most) }
    }
}

/// The parts of an integer, as nodes.
struct Integer {
    /// The k of 5^k, of the integer's type.
    power: u32,
    /// Whether the sign is negative, 0 or 1 of the integer's type.
    negative: u32,
    /// The v of 2^v, of the integer's type; the number of bits for 0.
    twos: u32,
}

/// 5^(2^`n`) modulo 2^64.
fn five(n: i64) -> u64 {
    (0..n).fold(5, |x: u64, _| x.wrapping_mul(x))
}

/// The multiplicative inverse of an odd number modulo 2^64.
fn inverse(x: u64) -> u64 {
    // Each Newton step doubles the number of correct bits, which is 3 initially.
    (0..5).fold(x, |y, _| y.wrapping_mul(2u64.wrapping_sub(x.wrapping_mul(y))))
}

/// 5^(2^(half − 2)) is 1 + 2^half·g; its powers are 1 + 2^half·(n·g), so that products add n. Returns g.
fn linear(half: i64) -> u64 {
    five(half - 2) >> half
}

/// The low bits of `x`, as many as the type has.
fn constant(f: &mut Body, t: DType, x: u64) -> u32 {
    f.int(t, if t == DType::U32 { i64::from(x as u32) } else { x as i64 })
}

fn of_integer(t: DType, part: impl Fn(&mut Body, Integer) -> u32) -> ScalarFn {
    let (bits, half) = (t.bits() as i64, t.bits() as i64 / 2);
    let mut f = Body::default();
    let (x, zero, one) = (f.arg(0), f.int(t, 0), f.int(t, 1));
    let (mut odd, mut twos) = (x, zero);
    let mut step = half;
    while step > 0 {
        let (mask, by) = (f.int(t, (1 << step) - 1), f.int(t, step));
        let low = f.binary(B::And, odd, mask);
        let even = f.binary(B::Eq, low, zero);
        let (shifted, more) = (f.binary(B::Shr, odd, by), f.binary(B::Add, twos, by));
        odd = f.select(even, shifted, odd);
        twos = f.select(even, more, twos);
        step /= 2;
    }
    let is_zero = f.binary(B::Eq, x, zero);
    let all = f.int(t, bits);
    odd = f.select(is_zero, one, odd);
    twos = f.select(is_zero, all, twos);
    let two = f.int(t, 2);
    let second = f.binary(B::And, odd, two);
    let negative = f.binary(B::Ne, second, zero);
    let negated = f.binary(B::Sub, zero, odd);
    odd = f.select(negative, negated, odd);
    let negative = f.select(negative, one, zero);
    // 5^(2^(i − 2)) is 1 + 2^i plus higher bits: dividing by it clears bit i.
    let mut power = zero;
    for i in 2..half {
        let mask = f.int(t, 1 << i);
        let bit = f.binary(B::And, odd, mask);
        let has = f.binary(B::Ne, bit, zero);
        let (by, k) = (constant(&mut f, t, inverse(five(i - 2))), f.int(t, 1 << (i - 2)));
        let (less, more) = (f.binary(B::Mul, odd, by), f.binary(B::Add, power, k));
        odd = f.select(has, less, odd);
        power = f.select(has, more, power);
    }
    let (by, g) = (f.int(t, half), constant(&mut f, t, inverse(linear(half))));
    let rest = f.binary(B::Shr, odd, by);
    let rest = f.binary(B::Mul, rest, g);
    let by = f.int(t, half - 2);
    let rest = f.binary(B::Shl, rest, by);
    let power = f.binary(B::Add, power, rest);
    part(&mut f, Integer { power, negative, twos });
    f.0
}

/// The product of integers, from the sums of their parts.
fn integer(t: DType) -> ScalarFn {
    let half = t.bits() as i64 / 2;
    let mut f = Body::default();
    let (power, negative, twos) = (f.arg(0), f.arg(1), f.arg(2));
    let (zero, one) = (f.int(t, 0), f.int(t, 1));
    let mut odd = one;
    for i in 0..half - 2 {
        let mask = f.int(t, 1 << i);
        let bit = f.binary(B::And, power, mask);
        let has = f.binary(B::Ne, bit, zero);
        let by = constant(&mut f, t, five(i));
        let more = f.binary(B::Mul, odd, by);
        odd = f.select(has, more, odd);
    }
    let (by, g) = (f.int(t, half - 2), constant(&mut f, t, linear(half)));
    let rest = f.binary(B::Shr, power, by);
    let rest = f.binary(B::Mul, rest, g);
    let by = f.int(t, half);
    let rest = f.binary(B::Shl, rest, by);
    let rest = f.binary(B::Add, rest, one);
    let odd = f.binary(B::Mul, odd, rest);
    let (first, none) = (f.u32(1), f.u32(0));
    let is_odd = f.binary(B::And, negative, first);
    let positive = f.binary(B::Eq, is_odd, none);
    let negated = f.binary(B::Sub, zero, odd);
    let odd = f.select(positive, odd, negated);
    let all = f.int(DType::I64, t.bits() as i64);
    let twos = f.binary(B::Min, twos, all);
    let twos = f.cast(t, twos);
    f.binary(B::Shl, odd, twos);
    f.0
}

/// Fraction bits of a logarithm while it is computed.
const POINT: i64 = 60;
/// log2(1 + 2^-i) for i from 1, with [`POINT`] fraction bits.
const LOGS: [i64; 30] = [
    674_415_846_470_019_194,
    371_157_823_532_753_600,
    195_910_188_333_191_412,
    100_837_790_531_531_112,
    51_182_934_886_444_090,
    25_788_332_651_530_406,
    12_944_144_215_183_523,
    6_484_663_719_341_175,
    3_245_492_029_176_498,
    1_623_537_598_135_573,
    811_966_888_094_456,
    406_032_990_477_309,
    203_028_884_869_787,
    101_517_540_220_749,
    50_759_544_604_105,
    25_379_965_931_394,
    12_690_031_373_771,
    6_345_027_788_996,
    3_172_516_920_037,
    1_586_259_216_405,
    793_129_797_299,
    396_564_945_924,
    198_282_484_780,
    99_141_245_345,
    49_570_623_411,
    24_785_311_890,
    12_392_655_991,
    6_196_328_007,
    3_098_164_006,
    1_549_082_004,
];
/// 1 / ln 2 and ln 2, with 32 fraction bits.
const LOG2_E: i64 = 6_196_328_019;
const LN_2: i64 = 2_977_044_472;
/// The exponents of 2 beyond which there is no float.
const LEAST: i64 = -200;
const MOST: i64 = 150;

/// The biased exponent (`i32`) of operand 0, and its significand of 24 bits with the first one set (`u32`).
fn split(f: &mut Body) -> (u32, u32) {
    let x = f.arg(0);
    let bits = f.bitcast(DType::U32, x);
    let (by, mask, ones) = (f.u32(FRACTION), f.u32((1 << FRACTION) - 1), f.u32(SPECIAL));
    let biased = f.binary(B::Shr, bits, by);
    let biased = f.binary(B::And, biased, ones);
    let rest = f.binary(B::And, bits, mask);
    let (zero, hidden) = (f.u32(0), f.u32(1 << FRACTION));
    let subnormal = f.binary(B::Eq, biased, zero);
    let own = f.binary(B::Or, rest, hidden);
    let mut significand = f.select(subnormal, rest, own);
    let one = f.u32(1);
    let biased = f.binary(B::Max, biased, one);
    let mut exponent = f.cast(DType::I32, biased);
    for step in [16, 8, 4, 2, 1] {
        let (least, by, less) = (f.u32(1 << (FRACTION + 1 - step)), f.u32(step), f.i32(step));
        let small = f.binary(B::Lt, significand, least);
        let (shifted, lower) = (f.binary(B::Shl, significand, by), f.binary(B::Sub, exponent, less));
        significand = f.select(small, shifted, significand);
        exponent = f.select(small, lower, exponent);
    }
    (exponent, significand)
}

/// Whether operand 0 is zero, and whether it is an infinity or NaN.
fn kinds(f: &mut Body) -> (u32, u32) {
    let x = f.arg(0);
    let bits = f.bitcast(DType::U32, x);
    let (mask, zero, infinite) = (f.u32(i64::from(i32::MAX)), f.u32(0), f.u32(SPECIAL << FRACTION));
    let size = f.binary(B::And, bits, mask);
    (f.binary(B::Eq, size, zero), f.binary(B::Ge, size, infinite))
}

/// The exponent of a float; 0 for zero, infinities and NaN.
fn exponent() -> ScalarFn {
    let mut f = Body::default();
    let (zero, infinite) = kinds(&mut f);
    let (exponent, _) = split(&mut f);
    let (bias, none) = (f.i32(127), f.i32(0));
    let exponent = f.binary(B::Sub, exponent, bias);
    let exponent = f.select(zero, none, exponent);
    let exponent = f.select(infinite, none, exponent);
    f.cast(DType::I64, exponent);
    f.0
}

/// Whether a float is negative: 0 or 1.
fn sign() -> ScalarFn {
    let mut f = Body::default();
    let x = f.arg(0);
    let (bits, by) = (f.bitcast(DType::U32, x), f.u32(31));
    f.binary(B::Shr, bits, by);
    f.0
}

/// 1 for zero, 2^32 for an infinity, the sum of both for NaN.
fn special() -> ScalarFn {
    let mut f = Body::default();
    let (zero, infinite) = kinds(&mut f);
    let x = f.arg(0);
    let (bits, mask, none) = (f.bitcast(DType::U32, x), f.u32((1 << FRACTION) - 1), f.u32(0));
    let rest = f.binary(B::And, bits, mask);
    let exact = f.binary(B::Eq, rest, none);
    let t = DType::I64;
    let (nothing, first, second, both) =
        (f.int(t, 0), f.int(t, 1), f.int(t, 1 << 32), f.int(t, (1 << 32) + 1));
    let beyond = f.select(exact, second, both);
    let number = f.select(zero, first, nothing);
    f.select(infinite, beyond, number);
    f.0
}

/// The logarithm of a float's significand, in 0..1, with as many fraction bits as a sum of `most` terms has room for.
fn fraction(most: &Dim) -> ScalarFn {
    let t = DType::U64;
    let mut f = Body::default();
    let (_, significand) = split(&mut f);
    // A value from 1/2 to 1, raised to 1 by factors of 1 + 2^-i.
    let (limit, up) = (f.u64(1 << 62), f.u64(62 - 1 - FRACTION));
    let wide = f.cast(t, significand);
    let mut x = f.binary(B::Shl, wide, up);
    let mut log = f.u64(1 << POINT);
    for (i, c) in (1..).zip(LOGS) {
        let (by, c) = (f.u64(i), f.u64(c));
        let part = f.binary(B::Shr, x, by);
        let more = f.binary(B::Add, x, part);
        let fits = f.binary(B::Le, more, limit);
        let less = f.binary(B::Sub, log, c);
        x = f.select(fits, more, x);
        log = f.select(fits, less, log);
    }
    // The rest is so small that its logarithm is linear.
    let rest = f.binary(B::Sub, limit, x);
    let (factor, by) = (f.u64(LOG2_E >> 2), f.u64(32));
    let rest = f.binary(B::Mul, rest, factor);
    let rest = f.binary(B::Shr, rest, by);
    let log = f.binary(B::Sub, log, rest);
    // The logarithm of a power of two is exactly 0.
    let (first, zero) = (f.u32(1 << FRACTION), f.u64(0));
    let power = f.binary(B::Eq, significand, first);
    let log = f.select(power, zero, log);
    let (places, all, half) = (places(&mut f, most), f.i32(POINT), f.u64(1));
    let down = f.binary(B::Sub, all, places);
    let down = f.cast(t, down);
    let half = f.binary(B::Shl, half, down);
    let one = f.u64(1);
    let half = f.binary(B::Shr, half, one);
    let log = f.binary(B::Add, log, half);
    let log = f.binary(B::Shr, log, down);
    f.cast(DType::I64, log);
    f.0
}

/// The product of floats, from the sums of their parts.
fn float(most: &Dim) -> ScalarFn {
    let t = DType::U64;
    let mut f = Body::default();
    let (exponent, signs, special, logs) = (f.arg(0), f.arg(1), f.arg(2), f.arg(3));
    let (places, all) = (places(&mut f, most), f.i32(POINT));
    let up = f.binary(B::Sub, all, places);
    let (up, down) = (f.cast(t, up), f.cast(t, places));
    let logs = f.cast(t, logs);
    let whole = f.binary(B::Shr, logs, down);
    let below = f.binary(B::Shl, whole, down);
    let rest = f.binary(B::Sub, logs, below);
    let mut log = f.binary(B::Shl, rest, up);
    // 2 to the power of the fraction, from 1 to 2.
    let mut y = f.u64(1 << POINT);
    for (i, c) in (1..).zip(LOGS) {
        let (by, c) = (f.u64(i), f.u64(c));
        let has = f.binary(B::Ge, log, c);
        let (less, part) = (f.binary(B::Sub, log, c), f.binary(B::Shr, y, by));
        let more = f.binary(B::Add, y, part);
        y = f.select(has, more, y);
        log = f.select(has, less, log);
    }
    let (half, ln) = (f.u64(POINT / 2), f.u64(LN_2));
    let high = f.binary(B::Shr, y, half);
    let part = f.binary(B::Mul, high, log);
    let part = f.binary(B::Shr, part, half);
    let part = f.binary(B::Mul, part, ln);
    let by = f.u64(32);
    let part = f.binary(B::Shr, part, by);
    let y = f.binary(B::Add, y, part);
    let (round, by) = (f.u64(1 << (POINT - FRACTION - 1)), f.u64(POINT - FRACTION));
    let y = f.binary(B::Add, y, round);
    let y = f.binary(B::Shr, y, by);
    let y = f.cast(DType::U32, y);
    let mut number = f.cast(DType::F32, y);
    let whole = f.cast(DType::I64, whole);
    let scale = f.binary(B::Add, exponent, whole);
    let (fraction, least, greatest) =
        (f.int(DType::I64, FRACTION), f.int(DType::I64, LEAST), f.int(DType::I64, MOST));
    let scale = f.binary(B::Sub, scale, fraction);
    let scale = f.binary(B::Max, scale, least);
    let scale = f.binary(B::Min, scale, greatest);
    let scale = f.cast(DType::I32, scale);
    // The power of two may be outside the range of floats; it is applied as two factors within the range.
    let (one, by, bias) = (f.i32(1), f.i32(FRACTION), f.i32(127));
    let first = f.binary(B::Shr, scale, one);
    let second = f.binary(B::Sub, scale, first);
    for e in [first, second] {
        let e = f.binary(B::Add, e, bias);
        let bits = f.binary(B::Shl, e, by);
        let power = f.bitcast(DType::F32, bits);
        number = f.binary(B::Mul, number, power);
    }
    let special = f.cast(t, special);
    let (wide, none) = (f.u64(32), f.u32(0));
    let infinite = f.binary(B::Shr, special, wide);
    let infinite = f.cast(DType::U32, infinite);
    let zero = f.cast(DType::U32, special);
    let (finite, nowhere_zero) = (f.binary(B::Eq, infinite, none), f.binary(B::Eq, zero, none));
    let bits = f.bitcast(DType::U32, number);
    let (inf, nan) = (f.u32(SPECIAL << FRACTION), f.u32(i64::from(f32::NAN.to_bits())));
    let beyond = f.select(nowhere_zero, inf, nan);
    let number = f.select(nowhere_zero, bits, none);
    let bits = f.select(finite, number, beyond);
    let by = f.u32(31);
    let sign = f.binary(B::Shl, signs, by);
    let bits = f.binary(B::Or, bits, sign);
    f.bitcast(DType::F32, bits);
    f.0
}

#[cfg(test)]
mod tests;
