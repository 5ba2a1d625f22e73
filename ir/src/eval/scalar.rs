//! Scalar operators over columns of elements.

use super::array::{Buf, Elem, each, narrow, wrap_ints};
use crate::dtype::{Class, DType};
use crate::scalar::{BinaryOp, Scalar, ScalarFn, UnaryOp};
use crate::storage;

/// `op(a)` as [`evaluate`](super::evaluate) computes it; `None` if the operator is not defined for the operand's type.
///
/// ```
/// use wgfc_ir::eval::{cast_scalar, unary_scalar};
/// use wgfc_ir::{DType, Scalar, UnaryOp};
/// let x = Scalar::from_f64(DType::F32, -1.5);
/// assert_eq!(unary_scalar(UnaryOp::Abs, x), Some(Scalar::from_f64(DType::F32, 1.5)));
/// assert_eq!(cast_scalar(DType::I32, x), Some(Scalar::from_i64(DType::I32, -1)));
/// ```
pub fn unary_scalar(op: UnaryOp, a: Scalar) -> Option<Scalar> {
    let dtype = *ScalarFn::unary(op).types(&[a.dtype]).ok()?.last()?;
    let mut out = Buf::zeros(dtype, 1);
    unary(op, dtype, &Buf::full(a, 1), &mut out);
    only(dtype, &out)
}

/// `op(a, b)` as [`evaluate`](super::evaluate) computes it; `None` if the types differ or the operator is not defined
/// for them.
pub fn binary_scalar(op: BinaryOp, a: Scalar, b: Scalar) -> Option<Scalar> {
    if a.dtype == DType::F32 && b.dtype == DType::F32 {
        // The most frequent ones, without memory.
        let (x, y) = (a.as_f64() as f32, b.as_f64() as f32);
        let number = |v: f32| Some(Scalar { dtype: DType::F32, bits: f64::from(v).to_bits() });
        match op {
            BinaryOp::Add => return number(x + y),
            BinaryOp::Sub => return number(x - y),
            BinaryOp::Mul => return number(x * y),
            BinaryOp::Div => return number(x / y),
            BinaryOp::Max => return number(x.larger(y)),
            BinaryOp::Min => return number(x.smaller(y)),
            _ => {}
        }
    }
    if a.dtype == b.dtype && !a.dtype.is_float() {
        let order = if a.dtype.class() == Class::Int {
            (a.bits as i64).cmp(&(b.bits as i64))
        } else {
            a.bits.cmp(&b.bits)
        };
        let truth = a.dtype == DType::Bool;
        match op {
            BinaryOp::Eq => return Some(Scalar::bool(order.is_eq())),
            BinaryOp::Ne => return Some(Scalar::bool(order.is_ne())),
            BinaryOp::Lt => return Some(Scalar::bool(order.is_lt())),
            BinaryOp::Le => return Some(Scalar::bool(order.is_le())),
            BinaryOp::Gt => return Some(Scalar::bool(order.is_gt())),
            BinaryOp::Ge => return Some(Scalar::bool(order.is_ge())),
            BinaryOp::And if truth => return Some(Scalar::bool(a.bits & b.bits != 0)),
            BinaryOp::Or if truth => return Some(Scalar::bool(a.bits | b.bits != 0)),
            BinaryOp::Add if a.dtype == DType::I32 => {
                let sum = (a.bits as i32).wrapping_add(b.bits as i32);
                return Some(Scalar::from_i64(DType::I32, sum.into()));
            }
            _ => {}
        }
    }
    let dtype = *ScalarFn::binary(op).types(&[a.dtype, b.dtype]).ok()?.last()?;
    let mut out = Buf::zeros(dtype, 1);
    binary(op, a.dtype, &Buf::full(a, 1), &Buf::full(b, 1), &mut out);
    only(dtype, &out)
}

/// `a` converted to another type, as [`evaluate`](super::evaluate) does it.
pub fn cast_scalar(to: DType, a: Scalar) -> Option<Scalar> {
    if a.dtype == DType::Bool && !to.is_float() {
        return Some(Scalar::from_i64(to, i64::from(a.bits != 0)));
    }
    let mut out = Buf::zeros(to, 1);
    cast(to, &Buf::full(a, 1), &mut out);
    only(to, &out)
}

/// The bits of `a` as another type of as many bits, as [`evaluate`](super::evaluate) has them; `None` if it has another number of
/// them.
pub fn bitcast_scalar(to: DType, a: Scalar) -> Option<Scalar> {
    if to.bits() != a.dtype.bits() {
        return None;
    }
    let mut out = Buf::zeros(to, 1);
    bitcast(a.dtype, to, &Buf::full(a, 1), &mut out);
    only(to, &out)
}

fn only(dtype: DType, b: &Buf) -> Option<Scalar> {
    each!(b, v => v.first().map(|x| x.to_scalar(dtype)))
}

fn map1<A: Copy, B>(a: &[A], out: &mut [B], f: impl Fn(A) -> B) {
    for (o, a) in out.iter_mut().zip(a) {
        *o = f(*a);
    }
}
fn map2<A: Copy, B>(a: &[A], b: &[A], out: &mut [B], f: impl Fn(A, A) -> B) {
    for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
        *o = f(*a, *b);
    }
}

macro_rules! float_unary {
    ($op:expr, $a:expr, $out:expr, $t:ident, $erf:path) => {{
        let (a, out): (&[$t], &mut Buf) = ($a, $out);
        use UnaryOp::*;
        if let (IsNan | IsInf, Buf::Bool(o)) = ($op, &mut *out) {
            match $op {
                IsNan => map1(a, o, |x| x.is_nan()),
                _ => map1(a, o, |x| x.is_infinite()),
            }
        } else if let Some(o) = <$t as Elem>::slice_mut(out) {
            match $op {
                Neg => map1(a, o, |x| -x),
                Abs => map1(a, o, |x| x.abs()),
                Sign => map1(a, o, |x| {
                    if x > 0.0 {
                        1.0
                    } else if x < 0.0 {
                        -1.0
                    } else {
                        x
                    }
                }),
                Floor => map1(a, o, |x| x.floor()),
                Ceil => map1(a, o, |x| x.ceil()),
                Round => map1(a, o, |x| x.round_ties_even()),
                Trunc => map1(a, o, |x| x.trunc()),
                Sqrt => map1(a, o, |x| x.sqrt()),
                Rsqrt => map1(a, o, |x| 1.0 / x.sqrt()),
                Recip => map1(a, o, |x| 1.0 / x),
                Exp => map1(a, o, |x| x.exp()),
                Log => map1(a, o, |x| x.ln()),
                Sin => map1(a, o, |x| x.sin()),
                Cos => map1(a, o, |x| x.cos()),
                Tan => map1(a, o, |x| x.tan()),
                Asin => map1(a, o, |x| x.asin()),
                Acos => map1(a, o, |x| x.acos()),
                Atan => map1(a, o, |x| x.atan()),
                Sinh => map1(a, o, |x| x.sinh()),
                Cosh => map1(a, o, |x| x.cosh()),
                Tanh => map1(a, o, |x| x.tanh()),
                Asinh => map1(a, o, |x| x.asinh()),
                Acosh => map1(a, o, |x| x.acosh()),
                Atanh => map1(a, o, |x| x.atanh()),
                Erf => map1(a, o, |x| $erf(x)),
                Sigmoid => map1(a, o, |x| {
                    let e = (-x.abs()).exp();
                    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
                }),
                Special(f) => map1(a, o, |x| f.at(x.into()) as $t),
                Not | IsNan | IsInf => o.copy_from_slice(a),
            }
        }
    }};
}

macro_rules! int_unary {
    ($op:expr, $a:expr, $out:expr, $t:ident, $abs:expr, $sign:expr) => {{
        let (a, out): (&[$t], &mut Buf) = ($a, $out);
        if let Buf::Bool(o) = out {
            o.fill(false);
        } else if let Some(o) = <$t as Elem>::slice_mut(out) {
            match $op {
                UnaryOp::Neg => map1(a, o, |x| x.wrapping_neg()),
                UnaryOp::Abs => map1(a, o, $abs),
                UnaryOp::Sign => map1(a, o, $sign),
                UnaryOp::Not => map1(a, o, |x| !x),
                _ => o.copy_from_slice(a),
            }
        }
    }};
}

/// `out = op(a)`, where `dtype` is the type of `out`.
pub(super) fn unary(op: UnaryOp, dtype: DType, a: &Buf, out: &mut Buf) {
    match a {
        Buf::F32(a) => float_unary!(op, a, &mut *out, f32, libm::erff),
        Buf::F64(a) => float_unary!(op, a, &mut *out, f64, libm::erf),
        Buf::I64(a) => int_unary!(op, a, &mut *out, i64, i64::wrapping_abs, i64::signum),
        Buf::I32(a) => int_unary!(op, a, &mut *out, i32, i32::wrapping_abs, i32::signum),
        Buf::U64(a) => int_unary!(op, a, &mut *out, u64, |x| x, |x| u64::from(x != 0)),
        Buf::U32(a) => int_unary!(op, a, &mut *out, u32, |x| x, |x| u32::from(x != 0)),
        Buf::Bool(a) => {
            if let Buf::Bool(o) = &mut *out {
                match op {
                    UnaryOp::Not => map1(a, o, |x| !x),
                    UnaryOp::IsNan | UnaryOp::IsInf => o.fill(false),
                    _ => o.copy_from_slice(a),
                }
            }
        }
    }
    wrap_ints(dtype, out);
}

macro_rules! float_binary {
    ($op:expr, $a:expr, $b:expr, $out:expr, $t:ident) => {{
        use BinaryOp::*;
        if let Some(o) = <$t as Elem>::slice_mut($out) {
            let (a, b): (&[$t], &[$t]) = ($a, $b);
            match $op {
                Add => map2(a, b, o, |x, y| x + y),
                Sub => map2(a, b, o, |x, y| x - y),
                Mul => map2(a, b, o, |x, y| x * y),
                Div | Quot => map2(a, b, o, |x, y| x / y),
                Rem => map2(a, b, o, |x, y| x % y),
                Mod => map2(a, b, o, |x, y| {
                    let r = x % y;
                    if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
                }),
                Pow => map2(a, b, o, |x, y| x.powf(y)),
                Min => map2(a, b, o, Elem::smaller),
                Max => map2(a, b, o, Elem::larger),
                Special(f) => map2(a, b, o, |x, y| f.at(x.into(), y.into()) as $t),
                _ => o.fill(0.0),
            }
        }
    }};
}

macro_rules! int_binary {
    ($op:expr, $bits:expr, $a:expr, $b:expr, $out:expr, $t:ident) => {{
        use BinaryOp::*;
        if let Some(o) = <$t as Elem>::slice_mut($out) {
            let (a, b, bits, zero): (&[$t], &[$t], u64, $t) = ($a, $b, $bits as u64, Default::default());
            match $op {
                Add => map2(a, b, o, |x, y| x.wrapping_add(y)),
                Sub => map2(a, b, o, |x, y| x.wrapping_sub(y)),
                Mul => map2(a, b, o, |x, y| x.wrapping_mul(y)),
                Div | Quot => map2(a, b, o, |x, y| if y == 0 { 0 } else { x.wrapping_div(y) }),
                Rem => map2(a, b, o, |x, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
                Mod => map2(a, b, o, |x, y| {
                    if y == 0 {
                        return 0;
                    }
                    let r = x.wrapping_rem(y);
                    if r != 0 && (r < zero) != (y < zero) { r.wrapping_add(y) } else { r }
                }),
                Pow => map2(a, b, o, |x, y| {
                    if y < zero {
                        return match x {
                            1 => 1,
                            _ if x == !0 => {
                                if y & 1 == 0 {
                                    1
                                } else {
                                    x
                                }
                            }
                            _ => 0,
                        };
                    }
                    let (mut base, mut e, mut r): ($t, u64, $t) = (x, y as u64, 1);
                    while e > 0 {
                        if e & 1 == 1 {
                            r = r.wrapping_mul(base);
                        }
                        base = base.wrapping_mul(base);
                        e >>= 1;
                    }
                    r
                }),
                Min => map2(a, b, o, |x, y| x.min(y)),
                Max => map2(a, b, o, |x, y| x.max(y)),
                And => map2(a, b, o, |x, y| x & y),
                Or => map2(a, b, o, |x, y| x | y),
                Xor => map2(a, b, o, |x, y| x ^ y),
                Shl => map2(a, b, o, |x, y| if (y as u64) < bits { x << y } else { 0 }),
                Shr => map2(a, b, o, |x, y| if (y as u64) < bits { x >> y } else { 0 }),
                Gcd => map2(a, b, o, |x, y| {
                    let magnitude = |v: $t| if v < zero { (v as i64).unsigned_abs() } else { v as u64 };
                    let (mut x, mut y) = (magnitude(x), magnitude(y));
                    while y != 0 {
                        (x, y) = (y, x % y);
                    }
                    x as $t
                }),
                Special(_) | Eq | Ne | Lt | Le | Gt | Ge => {}
            }
        }
    }};
}

fn compare<T: Elem>(op: BinaryOp, a: &[T], b: &[T], out: &mut [bool]) {
    use BinaryOp::*;
    match op {
        Eq => map2(a, b, out, |x, y| x == y),
        Ne => map2(a, b, out, |x, y| x != y),
        Lt => map2(a, b, out, |x, y| x < y),
        Le => map2(a, b, out, |x, y| x <= y),
        Gt => map2(a, b, out, |x, y| x > y),
        _ => map2(a, b, out, |x, y| x >= y),
    }
}

/// `out = op(a, b)`, where `dtype` is the type of the operands.
pub(super) fn binary(op: BinaryOp, dtype: DType, a: &Buf, b: &Buf, out: &mut Buf) {
    if op.is_comparison() {
        if let Buf::Bool(o) = out {
            each!(a, a => if let Some(b) = Elem::slice(b) { compare(op, a, b, o) });
        }
        return;
    }
    let bits = dtype.bits();
    match (a, b) {
        (Buf::F32(a), Buf::F32(b)) => float_binary!(op, a, b, out, f32),
        (Buf::F64(a), Buf::F64(b)) => float_binary!(op, a, b, out, f64),
        (Buf::I64(a), Buf::I64(b)) => int_binary!(op, bits, a, b, out, i64),
        (Buf::U64(a), Buf::U64(b)) => int_binary!(op, bits, a, b, out, u64),
        (Buf::I32(a), Buf::I32(b)) => int_binary!(op, bits, a, b, out, i32),
        (Buf::U32(a), Buf::U32(b)) => int_binary!(op, bits, a, b, out, u32),
        (Buf::Bool(a), Buf::Bool(b)) => {
            use BinaryOp::*;
            if let Buf::Bool(o) = out {
                match op {
                    Add | Or | Max => map2(a, b, o, |x, y| x | y),
                    Mul | And | Min => map2(a, b, o, |x, y| x & y),
                    Sub | Xor => map2(a, b, o, |x, y| x ^ y),
                    Pow => map2(a, b, o, |x, y| x | !y),
                    Div | Quot => map2(a, b, o, |x, y| x & y),
                    _ => o.fill(false),
                }
            }
        }
        _ => {}
    }
    wrap_ints(dtype, out);
}

/// `out = c ? a : b`.
pub(super) fn select(c: &Buf, a: &Buf, b: &Buf, out: &mut Buf) {
    let Buf::Bool(c) = c else { return };
    each!(out, o => {
        if let (Some(a), Some(b)) = (Elem::slice(a), Elem::slice(b)) {
            for (((o, c), a), b) in o.iter_mut().zip(c).zip(a).zip(b) {
                *o = if *c { *a } else { *b };
            }
        }
    });
}

/// `out = a` converted to `to`, the type of `out`.
pub(super) fn cast(to: DType, a: &Buf, out: &mut Buf) {
    match out {
        Buf::F32(o) => each!(a, a => map1(a, o, Elem::to_f32)),
        Buf::F64(o) => each!(a, a => map1(a, o, Elem::to_f64)),
        Buf::I64(o) => each!(a, a => map1(a, o, Elem::to_int)),
        Buf::U64(o) => each!(a, a => map1(a, o, Elem::to_bits)),
        Buf::I32(o) => each!(a, a => map1(a, o, |x| Elem::to_word(x) as i32)),
        Buf::U32(o) => each!(a, a => map1(a, o, Elem::to_word)),
        Buf::Bool(o) => each!(a, a => map1(a, o, |x| x != Default::default())),
    }
    narrow(to, out);
}

/// `out` = the stored bits of `a` reinterpreted as another type.
pub(super) fn bitcast(from: DType, to: DType, a: &Buf, out: &mut Buf) {
    match (a, out) {
        (Buf::F32(a), Buf::U32(o)) if from == DType::F32 => map1(a, o, f32::to_bits),
        (Buf::U32(a), Buf::F32(o)) if to == DType::F32 => map1(a, o, f32::from_bits),
        (a, out) => {
            let raw: Vec<u64> =
                each!(a, a => a.iter().map(|x| storage::to_raw(from, x.to_scalar(from))).collect());
            each!(out, o => map1(&raw, o, |r| Elem::from_scalar(storage::from_raw(to, r))));
        }
    }
}
