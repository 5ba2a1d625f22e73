//! Elementwise special functions: those of `wgfc_ir::special`, and functions composed of a few operators.
//!
//! Operands are floats; two operands have the same type and broadcast. Types narrower than f32 are computed in f32.

#[cfg(test)]
mod tests;

use super::{Lowering, OpError, Result};
use std::f64::consts::{FRAC_1_SQRT_2, LOG2_E, PI};
use wgfc_ir::{BinaryOp as B, Body, Class, DType, Scalar, Special, Special2, UnaryOp as U, Value};

fn floats(cx: &Lowering, xs: &[Value]) -> Result<DType> {
    let dtype = cx.dtype(xs[0]);
    for x in xs {
        if !cx.dtype(*x).is_float() {
            return Err(OpError::model(format!("needs floats, got {}", cx.ty(*x))).operand(*x));
        }
        if cx.dtype(*x) != dtype {
            let e = format!("operands of different element types: {dtype} and {}", cx.dtype(*x));
            return Err(OpError::model(e).operand(*x));
        }
    }
    Ok(dtype)
}

/// A special function of one operand.
pub fn function(cx: &mut Lowering, f: Special, x: Value) -> Result {
    floats(cx, &[x])?;
    Ok(cx.unary(U::Special(f), x)?)
}

/// A special function of two operands, in the order of [`Special2`]: `Zeta(s, q)`, `GammaP(a, x)`, `Atan2(y, x)`,
/// polynomials of an argument and a degree.
pub fn function2(cx: &mut Lowering, f: Special2, a: Value, b: Value) -> Result {
    floats(cx, &[a, b])?;
    Ok(cx.binary(B::Special(f), a, b)?)
}

/// The n-th derivative of digamma: (−1)ⁿ⁺¹·n!·ζ(n + 1, x).
pub fn polygamma(cx: &mut Lowering, n: i64, x: Value) -> Result {
    let dtype = floats(cx, &[x])?;
    if n < 0 {
        return Err(OpError::model(format!("the derivative of digamma of order {n}")));
    }
    if n == 0 {
        return function(cx, Special::Digamma, x);
    }
    let mut f = Body::default();
    let x0 = f.arg(0);
    let x1 = if dtype.bits() < 32 { f.cast(DType::F32, x0) } else { x0 };
    let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let order = f.number(wide, n as f64 + 1.0);
    let zeta = f.binary(B::Special(Special2::Zeta), order, x1);
    // A factorial above 170! is infinite in every type.
    let factorial: f64 = (1..=n.min(200)).map(|k| k as f64).product();
    let factor = f.number(wide, if n % 2 == 0 { -factorial } else { factorial });
    let y = f.binary(B::Mul, zeta, factor);
    if wide != dtype {
        f.cast(dtype, y);
    }
    Ok(cx.map(f.0, &[x])?)
}

/// A shifted Chebyshev polynomial, evaluated at 2x − 1: `f` is [`Special2::ChebyshevT`] to [`Special2::ChebyshevW`].
pub fn shifted(cx: &mut Lowering, f: Special2, x: Value, degree: Value) -> Result {
    let x = cx.binary_scalar(B::Mul, x, 2.0)?;
    let x = cx.binary_scalar(B::Sub, x, 1.0)?;
    function2(cx, f, x, degree)
}

/// sin(πx)/(πx).
pub fn sinc(cx: &mut Lowering, x: Value) -> Result {
    let scaled = cx.binary_scalar(B::Mul, x, PI)?;
    function(cx, Special::SphericalJ0, scaled)
}

/// The cumulative distribution function of the normal distribution.
pub fn ndtr(cx: &mut Lowering, x: Value) -> Result {
    let t = cx.binary_scalar(B::Mul, x, -FRAC_1_SQRT_2)?;
    let y = function(cx, Special::Erfc, t)?;
    Ok(cx.binary_scalar(B::Mul, y, 0.5)?)
}

/// −x·ln x; 0 at 0, and −∞ for negative x.
pub fn entropy(cx: &mut Lowering, x: Value) -> Result {
    let dtype = floats(cx, &[x])?;
    let mut f = Body::default();
    let (x0, zero, infinity) = (f.arg(0), f.number(dtype, 0.0), f.number(dtype, f64::NEG_INFINITY));
    let log = f.unary(U::Log, x0);
    let product = f.binary(B::Mul, x0, log);
    let entropy = f.unary(U::Neg, product);
    let none = f.binary(B::Eq, x0, zero);
    let y = f.select(none, zero, entropy);
    let below = f.binary(B::Lt, x0, zero);
    f.select(below, infinity, y);
    Ok(cx.map(f.0, &[x])?)
}

/// The logarithm in [`x_log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logarithm {
    /// ln y.
    Of,
    /// ln(1 + y).
    OfOnePlus,
}

/// x·ln y or x·ln(1 + y); 0 where x is 0 and y is not NaN.
pub fn x_log(cx: &mut Lowering, x: Value, y: Value, which: Logarithm) -> Result {
    let dtype = floats(cx, &[x, y])?;
    let mut f = Body::default();
    let (a, b, zero) = (f.arg(0), f.arg(1), f.number(dtype, 0.0));
    let log = f.unary(if which == Logarithm::Of { U::Log } else { U::Special(Special::Log1p) }, b);
    let product = f.binary(B::Mul, a, log);
    let nothing = f.binary(B::Eq, a, zero);
    let number = f.select(nothing, zero, product);
    let nan = f.unary(U::IsNan, b);
    f.select(nan, b, number);
    Ok(cx.map(f.0, &[x, y])?)
}

/// The base of [`log_add_exp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// e.
    E,
    /// 2.
    Two,
}

/// log(baseᵃ + baseᵇ).
pub fn log_add_exp(cx: &mut Lowering, a: Value, b: Value, base: Base) -> Result {
    let dtype = floats(cx, &[a, b])?;
    let mut f = Body::default();
    let (x, y) = (f.arg(0), f.arg(1));
    let largest = f.binary(B::Max, x, y);
    let difference = f.binary(B::Sub, x, y);
    let difference = f.unary(U::Abs, difference);
    let difference = f.unary(U::Neg, difference);
    let part = f.unary(if base == Base::E { U::Exp } else { U::Special(Special::Exp2) }, difference);
    let mut rest = f.unary(U::Special(Special::Log1p), part);
    if base == Base::Two {
        let scale = f.number(dtype, LOG2_E);
        rest = f.binary(B::Mul, rest, scale);
    }
    let sum = f.binary(B::Add, largest, rest);
    // The difference of two equal infinities is NaN, so the result is the infinity itself.
    let same = f.binary(B::Eq, x, y);
    let infinite = f.unary(U::IsInf, x);
    let whole = f.binary(B::And, same, infinite);
    f.select(whole, x, sum);
    Ok(cx.map(f.0, &[a, b])?)
}

/// Whether the sign bit is set, also for −0 and NaN: bool.
pub fn sign_bit(cx: &mut Lowering, x: Value) -> Result {
    let dtype = cx.dtype(x);
    let mut f = Body::default();
    let x0 = f.arg(0);
    match dtype.class() {
        Class::Float => negative(&mut f, x0),
        Class::Int => {
            let zero = f.int(dtype, 0);
            f.binary(B::Lt, x0, zero)
        }
        Class::Uint | Class::Bool => {
            let shape = cx.shape(x);
            return Ok(cx.full(&shape, Scalar::bool(false))?);
        }
    };
    Ok(cx.map(f.0, &[x])?)
}

/// Whether the sign bit of a float is set.
fn negative(f: &mut Body, x: u32) -> u32 {
    let x = f.cast(DType::F32, x);
    let bits = f.bitcast(DType::I32, x);
    let zero = f.i32(0);
    f.binary(B::Lt, bits, zero)
}

/// The magnitude of `a` with the sign of `b`, also if `b` is −0 or NaN.
pub fn copy_sign(cx: &mut Lowering, a: Value, b: Value) -> Result {
    floats(cx, &[a, b])?;
    let mut f = Body::default();
    let (x, y) = (f.arg(0), f.arg(1));
    let magnitude = f.unary(U::Abs, x);
    let other = f.unary(U::Neg, magnitude);
    let sign = negative(&mut f, y);
    f.select(sign, other, magnitude);
    Ok(cx.map(f.0, &[a, b])?)
}

/// The integer type that holds the bits of f32, f16 and bf16.
fn bits_type(cx: &Lowering, x: Value, what: &str) -> Result<DType> {
    match cx.dtype(x) {
        DType::F32 => Ok(DType::U32),
        DType::F16 | DType::BF16 => Ok(DType::U16),
        _ => {
            let e = format!("{what} of {}, which kernels have no numbers for", cx.ty(x));
            Err(OpError::unsupported(e, "convert it to f32 before").operand(x))
        }
    }
}

/// The next representable number after `a` towards `b`.
pub fn next_after(cx: &mut Lowering, a: Value, b: Value) -> Result {
    let dtype = floats(cx, &[a, b])?;
    let bits = bits_type(cx, a, "the next number")?;
    let mut f = Body::default();
    let operands = [f.arg(0), f.arg(1)];
    let sign = f.u32(1 << (bits.bits() - 1));
    let magnitude = f.u32((1 << (bits.bits() - 1)) - 1);
    let (zero, one, minus) = (f.i32(0), f.i32(1), f.i32(-1));
    // Integers whose order is that of the floats.
    let [x, y] = operands.map(|x| {
        let raw = f.bitcast(bits, x);
        let raw = f.cast(DType::U32, raw);
        let size = f.binary(B::And, raw, magnitude);
        let size = f.cast(DType::I32, size);
        let other = f.unary(U::Neg, size);
        let low = f.binary(B::And, raw, sign);
        let below = f.binary(B::Eq, low, sign);
        f.select(below, other, size)
    });
    let (up, down) = (f.binary(B::Lt, x, y), f.binary(B::Gt, x, y));
    let step = f.select(down, minus, zero);
    let step = f.select(up, one, step);
    let next = f.binary(B::Add, x, step);
    let size = f.unary(U::Abs, next);
    let size = f.cast(DType::U32, size);
    let negated = f.binary(B::Or, size, sign);
    let below = f.binary(B::Lt, next, zero);
    let raw = f.select(below, negated, size);
    let raw = f.cast(bits, raw);
    let number = f.bitcast(dtype, raw);
    // Equal operands give the second one, which may be a zero of the other sign.
    let same = f.binary(B::Eq, x, y);
    let number = f.select(same, operands[1], number);
    let [nan_a, nan_b] = operands.map(|x| f.unary(U::IsNan, x));
    let nan = f.binary(B::Or, nan_a, nan_b);
    let none = f.number(dtype, f64::NAN);
    f.select(nan, none, number);
    Ok(cx.map(f.0, &[a, b])?)
}

/// Decomposes a float into mantissa · 2^exponent: the mantissa is 0 or from ½ to 1, the exponent is an i32. Infinities
/// and NaN are their own mantissas, with exponent 0.
pub fn mantissa_and_exponent(cx: &mut Lowering, x: Value) -> Result<(Value, Value)> {
    let dtype = floats(cx, &[x])?;
    bits_type(cx, x, "the mantissa")?;
    // Subnormal numbers are scaled up first.
    let parts = |f: &mut Body| {
        let x = f.arg(0);
        let x = f.cast(DType::F32, x);
        let (size, least, up) =
            (f.unary(U::Abs, x), f.f32(f64::from(f32::MIN_POSITIVE)), f.f32(33_554_432.0));
        let small = f.binary(B::Lt, size, least);
        let larger = f.binary(B::Mul, x, up);
        let scaled = f.select(small, larger, x);
        let bits = f.bitcast(DType::U32, scaled);
        let (infinite, nan, zero) = (f.unary(U::IsInf, x), f.unary(U::IsNan, x), f.f32(0.0));
        let zero = f.binary(B::Eq, x, zero);
        let whole = f.binary(B::Or, infinite, nan);
        let whole = f.binary(B::Or, whole, zero);
        (x, bits, small, whole)
    };
    let mut f = Body::default();
    let (own, bits, _, whole) = parts(&mut f);
    let (mask, half) = (f.u32(0x807f_ffff), f.u32(0x3f00_0000));
    let bits = f.binary(B::And, bits, mask);
    let bits = f.binary(B::Or, bits, half);
    let mantissa = f.bitcast(DType::F32, bits);
    let mantissa = f.select(whole, own, mantissa);
    if dtype != DType::F32 {
        f.cast(dtype, mantissa);
    }
    let mantissa = cx.map(f.0, &[x])?;

    let mut f = Body::default();
    let (_, bits, small, whole) = parts(&mut f);
    let (by, mask, bias, less, zero) = (f.u32(23), f.u32(255), f.i32(126), f.i32(151), f.i32(0));
    let e = f.binary(B::Shr, bits, by);
    let e = f.binary(B::And, e, mask);
    let e = f.cast(DType::I32, e);
    let bias = f.select(small, less, bias);
    let e = f.binary(B::Sub, e, bias);
    f.select(whole, zero, e);
    let exponent = cx.map(f.0, &[x])?;
    Ok((mantissa, exponent))
}

fn integers(cx: &Lowering, a: Value, b: Value) -> Result<DType> {
    let dtype = cx.dtype(a);
    match [a, b].into_iter().find(|x| !cx.dtype(*x).is_int() || cx.dtype(*x) != dtype) {
        Some(x) => Err(OpError::model(format!("needs integers of one type, got {}", cx.ty(x))).operand(x)),
        None => Ok(dtype),
    }
}

/// The greatest common divisor.
pub fn gcd(cx: &mut Lowering, a: Value, b: Value) -> Result {
    integers(cx, a, b)?;
    Ok(cx.binary(B::Gcd, a, b)?)
}

/// The least common multiple; 0 if either operand is 0.
pub fn lcm(cx: &mut Lowering, a: Value, b: Value) -> Result {
    let dtype = integers(cx, a, b)?;
    let mut f = Body::default();
    let (x, y) = (f.arg(0), f.arg(1));
    let divisor = f.binary(B::Gcd, x, y);
    let part = f.binary(B::Div, x, divisor);
    let product = f.binary(B::Mul, part, y);
    if dtype.class() == Class::Int {
        f.unary(U::Abs, product);
    }
    Ok(cx.map(f.0, &[a, b])?)
}
