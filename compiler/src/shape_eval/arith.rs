//! Scalar operators on partially known elements.

use super::Elem;
use wgfc_ir::eval::{binary_scalar, cast_scalar, unary_scalar};
use wgfc_ir::{BinaryOp, Class, DType, Poly, Scalar, UnaryOp};

/// Coefficients stay below this limit, so that no sum or product of them has saturated.
const LARGEST: u128 = 1 << 62;

pub(super) fn from_scalar(s: Scalar) -> Elem {
    match s.dtype.class() {
        Class::Float => Elem::Float(s.as_f64()),
        Class::Uint if s.bits > i64::MAX as u64 => Elem::Unknown,
        _ => Elem::Int(Poly::constant(s.as_i64())),
    }
}

/// A constant element of type `dtype`.
fn scalar(e: &Elem, dtype: DType) -> Option<Scalar> {
    match e {
        Elem::Int(p) if !dtype.is_float() => Some(Scalar::from_i64(dtype, p.as_const()?)),
        Elem::Float(f) if dtype.is_float() => Some(Scalar { dtype, bits: f.to_bits() }),
        _ => None,
    }
}

fn truth(v: bool) -> Elem {
    Elem::Int(Poly::constant(i64::from(v)))
}

fn known(s: Option<Scalar>) -> Elem {
    s.map_or(Elem::Unknown, from_scalar)
}

/// The sum of the coefficients' absolute values.
fn weight(p: &Poly) -> u128 {
    p.terms().iter().map(|(_, c)| u128::from(c.unsigned_abs())).sum()
}

fn add(x: &Poly, y: &Poly) -> Option<Poly> {
    (weight(x) + weight(y) < LARGEST).then(|| x + y)
}

fn sub(x: &Poly, y: &Poly) -> Option<Poly> {
    (weight(x) + weight(y) < LARGEST).then(|| x - y)
}

fn mul(x: &Poly, y: &Poly) -> Option<Poly> {
    weight(x).checked_mul(weight(y)).is_some_and(|w| w < LARGEST).then(|| x * y)
}

fn power(x: &Poly, k: i64) -> Option<Poly> {
    (0..k).try_fold(Poly::ONE, |p, _| mul(&p, x))
}

/// An expression as an integer of type `dtype`; unknown for types narrower than 32 bits, unless it is constant.
fn integer(p: Option<Poly>, dtype: DType) -> Elem {
    let Some(p) = p else { return Elem::Unknown };
    if let Some(c) = p.as_const() {
        return known(cast_scalar(dtype, Scalar::from_i64(DType::I64, c)));
    }
    match dtype {
        DType::I64 | DType::I32 => Elem::Int(p),
        DType::U64 | DType::U32 if p.proves_nonneg(&[]) => Elem::Int(p),
        _ => Elem::Unknown,
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `p / den` as a float of type `dtype`; `den` is positive.
fn ratio(p: Option<Poly>, den: i64, dtype: DType) -> Elem {
    let Some(p) = p.filter(|_| den > 0) else { return Elem::Unknown };
    if let Some(c) = p.as_const() {
        return Elem::Float(Scalar::from_f64(dtype, c as f64 / den as f64).as_f64());
    }
    if is_narrow(dtype) {
        return Elem::Unknown;
    }
    let common = p.terms().iter().fold(den.unsigned_abs(), |g, (_, c)| gcd(g, c.unsigned_abs()));
    match i64::try_from(common) {
        Ok(g) if g > 1 => {
            let divided = p
                .terms()
                .into_iter()
                .map(|(m, c)| m.into_iter().fold(Poly::constant(c / g), |t, a| &t * &Poly::atom(a)));
            Elem::Ratio(divided.sum(), den / g)
        }
        _ => Elem::Ratio(p, den),
    }
}

/// Whether floats of the type round sizes that are common, where expressions are exact.
fn is_narrow(dtype: DType) -> bool {
    dtype.bits() < 32
}

fn is_power_of_two(den: i64) -> bool {
    den > 0 && den & (den - 1) == 0
}

/// An element as an expression over a power of two, if it is exactly one.
pub(super) fn exact(e: &Elem) -> Option<(Poly, i64)> {
    match e {
        Elem::Int(p) => Some((p.clone(), 1)),
        Elem::Ratio(p, d) => is_power_of_two(*d).then(|| (p.clone(), *d)),
        Elem::Float(f) => (0..=16).find_map(|k| {
            let scaled = f * f64::from(1u32 << k);
            (scaled.fract() == 0.0 && scaled.abs() < 2f64.powi(31))
                .then(|| (Poly::constant(scaled as i64), 1i64 << k))
        }),
        Elem::Unknown => None,
    }
}

pub(super) fn cast(e: &Elem, from: DType, to: DType) -> Elem {
    match (e, to.class()) {
        (Elem::Float(f), Class::Int | Class::Uint) if !f.is_finite() => Elem::Unknown,
        _ if scalar(e, from).is_some() => known(scalar(e, from).and_then(|s| cast_scalar(to, s))),
        (Elem::Int(p), Class::Float) => ratio(Some(p.clone()), 1, to),
        (Elem::Int(p) | Elem::Ratio(p, 1), Class::Bool) => match (p - 1).proves_nonneg(&[]) {
            true => truth(true),
            false => Elem::Unknown,
        },
        (Elem::Int(p) | Elem::Ratio(p, 1), Class::Int | Class::Uint) => integer(Some(p.clone()), to),
        (Elem::Ratio(..), Class::Float) if !is_narrow(to) => e.clone(),
        (Elem::Ratio(p, den), Class::Int | Class::Uint) if p.proves_nonneg(&[]) => {
            integer(Some(p.div(&Poly::constant(*den), &[])), to)
        }
        _ => Elem::Unknown,
    }
}

/// An operand of type `ty`.
pub(super) fn unary(op: UnaryOp, a: &Elem, ty: DType) -> Elem {
    use UnaryOp::*;
    if let Some(s) = scalar(a, ty) {
        return known(unary_scalar(op, s));
    }
    match (op, a) {
        (Neg, Elem::Int(p)) => integer(sub(&Poly::ZERO, p), ty),
        (Neg, Elem::Ratio(p, d)) => Elem::Ratio(-p, *d),
        (Abs, Elem::Int(p) | Elem::Ratio(p, _)) if p.proves_nonneg(&[]) => a.clone(),
        (Abs, Elem::Int(p)) if (-p).proves_nonneg(&[]) => integer(sub(&Poly::ZERO, p), ty),
        (Abs, Elem::Ratio(p, d)) if (-p).proves_nonneg(&[]) => Elem::Ratio(-p, *d),
        (Sign, Elem::Int(p)) if (p - 1).proves_nonneg(&[]) => Elem::Int(Poly::ONE),
        (Floor | Ceil | Round | Trunc, Elem::Int(_) | Elem::Ratio(_, 1)) => a.clone(),
        (Floor, Elem::Ratio(p, d)) => ratio(Some(p.div(&Poly::constant(*d), &[])), 1, ty),
        (Trunc, Elem::Ratio(p, d)) if p.proves_nonneg(&[]) => {
            ratio(Some(p.div(&Poly::constant(*d), &[])), 1, ty)
        }
        (Ceil, Elem::Ratio(p, d)) => ratio(Some(p.ceil_div(*d)), 1, ty),
        (Sqrt, Elem::Ratio(p, d)) => root(p, *d, ty),
        _ => Elem::Unknown,
    }
}

/// The square root of an expression that is a perfect square.
fn root(p: &Poly, den: i64, ty: DType) -> Elem {
    let whole = |v: i64| {
        let r = v.isqrt();
        (r * r == v).then_some(r)
    };
    let terms = p.terms();
    let [(atoms, c)] = terms.as_slice() else { return Elem::Unknown };
    let (Some(c), Some(den)) = ((*c > 0).then(|| whole(*c)).flatten(), whole(den)) else {
        return Elem::Unknown;
    };
    // Atoms are sorted: those of a square come in pairs.
    let (pairs, rest) = atoms.as_chunks::<2>();
    if !rest.is_empty() || pairs.iter().any(|[a, b]| a != b) {
        return Elem::Unknown;
    }
    let r = pairs.iter().fold(Poly::constant(c), |r, [a, _]| &r * &Poly::atom(a.clone()));
    if r.proves_nonneg(&[]) { ratio(Some(r), den, ty) } else { Elem::Unknown }
}

/// Two operands of type `ty`.
pub(super) fn binary(op: BinaryOp, a: &Elem, b: &Elem, ty: DType) -> Elem {
    use BinaryOp::*;
    let op = if op == Quot { Div } else { op };
    if let (Some(x), Some(y)) = (scalar(a, ty), scalar(b, ty)) {
        return known(binary_scalar(op, x, y));
    }
    match (a, b) {
        (Elem::Int(x), Elem::Int(y)) => int_binary(op, x, y, ty),
        // Zero times anything is zero, and `and` and `or` may be decided by one side.
        (Elem::Unknown, Elem::Int(k)) | (Elem::Int(k), Elem::Unknown) => match op {
            Mul if k.is(0) => Elem::Int(Poly::ZERO),
            And if k.is(0) && ty == DType::Bool => truth(false),
            Or if k.is(1) && ty == DType::Bool => truth(true),
            _ => Elem::Unknown,
        },
        (Elem::Unknown, _) | (_, Elem::Unknown) => Elem::Unknown,
        _ => match (exact(a), exact(b)) {
            (Some(x), Some(y)) => fractions(op, x, y, ty),
            _ => rounded(op, a, b, ty),
        },
    }
}

/// A binary operator of two exact fractions `p / m` and `q / n`.
fn fractions(op: BinaryOp, (p, m): (Poly, i64), (q, n): (Poly, i64), ty: DType) -> Elem {
    use BinaryOp::*;
    let Some(common) = m.checked_mul(n) else { return Elem::Unknown };
    let (Some(x), Some(y)) = (mul(&p, &Poly::constant(n)), mul(&q, &Poly::constant(m))) else {
        return Elem::Unknown;
    };
    match op {
        Add => ratio(add(&x, &y), common, ty),
        Sub => ratio(sub(&x, &y), common, ty),
        Mul => ratio(mul(&p, &q), common, ty),
        Div => divided(&x, &y, ty),
        Min => ratio(Some(x.min_of(&y, &[])), common, ty),
        Max => ratio(Some(x.max_of(&y, &[])), common, ty),
        Pow => match (q.as_const(), n) {
            (Some(k @ 0..=4), 1) => {
                ratio(power(&p, k), (0..k).try_fold(1i64, |d, _| d.checked_mul(m)).unwrap_or(0), ty)
            }
            (Some(1), 2) => root(&p, m, ty),
            _ => Elem::Unknown,
        },
        Mod | Rem if common == 1 => match int_binary(op, &p, &q, DType::I64) {
            Elem::Int(r) => ratio(Some(r), 1, ty),
            _ => Elem::Unknown,
        },
        Eq | Ne | Lt | Le | Gt | Ge => int_binary(op, &x, &y, DType::I64),
        _ => Elem::Unknown,
    }
}

/// `x / y` for a constant divisor, or if one is a constant multiple of the other.
fn divided(x: &Poly, y: &Poly, ty: DType) -> Elem {
    if let Some(c) = y.as_const() {
        return match c.checked_abs() {
            Some(den) if den > 0 => ratio(if c < 0 { sub(&Poly::ZERO, x) } else { Some(x.clone()) }, den, ty),
            _ => Elem::Unknown,
        };
    }
    let (Some((_, a)), Some((_, b))) = (x.terms().first().cloned(), y.terms().first().cloned()) else {
        return Elem::Unknown;
    };
    let multiple = mul(x, &Poly::constant(b)).is_some_and(|l| mul(y, &Poly::constant(a)) == Some(l));
    // A quotient 0 / 0 does not occur for any shape with elements.
    if multiple { Elem::Float(Scalar::from_f64(ty, a as f64 / b as f64).as_f64()) } else { Elem::Unknown }
}

/// Operators on a rounded quotient whose result is still rounded only once.
fn rounded(op: BinaryOp, a: &Elem, b: &Elem, ty: DType) -> Elem {
    use BinaryOp::*;
    match (op, a, b) {
        (Min, Elem::Ratio(p, m), Elem::Ratio(q, n)) if m == n => ratio(Some(p.min_of(q, &[])), *m, ty),
        (Max, Elem::Ratio(p, m), Elem::Ratio(q, n)) if m == n => ratio(Some(p.max_of(q, &[])), *m, ty),
        (Mul, Elem::Ratio(p, d), Elem::Float(f)) | (Mul, Elem::Float(f), Elem::Ratio(p, d)) => {
            scaled(p, *d, *f, ty)
        }
        (Div, Elem::Ratio(p, d), Elem::Float(f)) => scaled(p, *d, 1.0 / f, ty),
        // Rounding does not make a quotient an integer that it is not.
        (Eq | Ne | Lt | Le | Gt | Ge, _, _) => {
            let of = |e: &Elem| match e {
                Elem::Ratio(p, d) => Some((p.clone(), *d)),
                e => exact(e),
            };
            let (Some((p, m)), Some((q, n))) = (of(a), of(b)) else { return Elem::Unknown };
            if m != 1 && n != 1 {
                return Elem::Unknown;
            }
            match (mul(&p, &Poly::constant(n)), mul(&q, &Poly::constant(m))) {
                (Some(x), Some(y)) => int_binary(op, &x, &y, DType::I64),
                _ => Elem::Unknown,
            }
        }
        _ => Elem::Unknown,
    }
}

/// A rounded quotient times a power of two.
fn scaled(p: &Poly, den: i64, by: f64, ty: DType) -> Elem {
    let Some((up, down)) = exact(&Elem::Float(by)) else { return Elem::Unknown };
    match (up.as_const(), den.checked_mul(down)) {
        (Some(u), Some(den)) if is_power_of_two(u) => ratio(mul(p, &up), den, ty),
        _ => Elem::Unknown,
    }
}

/// Two integers that are not both constant.
fn int_binary(op: BinaryOp, x: &Poly, y: &Poly, ty: DType) -> Elem {
    use BinaryOp::*;
    let nonneg = |p: &Poly| p.proves_nonneg(&[]);
    // Whether the comparison is decided for every value of the dimensions.
    let less = |a: &Poly, b: &Poly| {
        let d = sub(b, a)?;
        if nonneg(&(&d - 1)) {
            Some(true)
        } else if nonneg(&-&d) {
            Some(false)
        } else {
            None
        }
    };
    let decided = |v: Option<bool>| v.map_or(Elem::Unknown, truth);
    let equal = || {
        if x == y {
            Some(true)
        } else if less(x, y) == Some(true) || less(y, x) == Some(true) {
            Some(false)
        } else {
            None
        }
    };
    match op {
        Add => integer(add(x, y), ty),
        Sub => integer(sub(x, y), ty),
        Mul => integer(mul(x, y), ty),
        Min => integer(Some(x.min_of(y, &[])), ty),
        Max => integer(Some(x.max_of(y, &[])), ty),
        Eq => decided(equal()),
        Ne => decided(equal().map(|v| !v)),
        Lt => decided(less(x, y)),
        Gt => decided(less(y, x)),
        Le => decided(less(y, x).map(|v| !v)),
        Ge => decided(less(x, y).map(|v| !v)),
        // Floor and truncation agree where nothing is negative.
        Div if y.is(0) || !nonneg(y) => Elem::Unknown,
        Div if nonneg(x) => integer(Some(x.div(y, &[])), ty),
        Div if nonneg(&-x) => integer(Some(-&(-x).div(y, &[])), ty),
        Mod | Rem if y.is(0) || !nonneg(y) => Elem::Unknown,
        Mod => integer(Some(x.modulo(y, &[])), ty),
        Rem if nonneg(x) => integer(Some(x.modulo(y, &[])), ty),
        Pow => match y.as_const() {
            Some(k @ 0..=4) => integer(power(x, k), ty),
            _ => Elem::Unknown,
        },
        _ => Elem::Unknown,
    }
}
