//! Elementwise operators made of several scalar operators, and checks of the operands of others.

use super::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp, Body, Class, DType, Dim, Scalar, UnaryOp, Value};

/// A scalar operator applied to two operands of the same type.
pub fn binary(cx: &mut Lowering, op: BinaryOp, a: Value, b: Value) -> Result {
    same_type(cx, a, b)?;
    Ok(cx.binary(op, a, b)?)
}

fn same_type(cx: &Lowering, a: Value, b: Value) -> Result<()> {
    if cx.dtype(a) == cx.dtype(b) {
        return Ok(());
    }
    Err(OpError::model(format!("operands of different element types: {} and {}", cx.ty(a), cx.ty(b)))
        .help("insert a Cast"))
}

/// Combines one or more operands from the left.
pub fn fold(cx: &mut Lowering, op: BinaryOp, xs: &[Value]) -> Result {
    let (first, rest) = xs.split_first().ok_or("needs at least one input")?;
    let mut acc = *first;
    for x in rest {
        acc = binary(cx, op, acc, *x)?;
    }
    Ok(acc)
}

/// The mean of one or more operands.
pub fn mean(cx: &mut Lowering, xs: &[Value]) -> Result {
    let (first, rest) = xs.split_first().ok_or("needs at least one input")?;
    if rest.is_empty() {
        return Ok(*first);
    }
    let dtype = cx.dtype(*first);
    let mut wide = vec![];
    for x in xs {
        same_type(cx, *first, *x)?;
        wide.push(cx.widened(*x)?);
    }
    let sum = fold(cx, BinaryOp::Add, &wide)?;
    let mean = cx.binary_scalar(BinaryOp::Div, sum, xs.len() as f64)?;
    Ok(cx.cast(mean, dtype)?)
}

/// The quotient rounded down, of operands of the same type. Integers are divided exactly. For floats the dividend
/// minus the exact remainder is divided, so that the result is consistent with the remainder: `1.0` divided by `0.1`
/// is 9. An integer divided by 0 is 0.
pub fn floor_div(cx: &mut Lowering, a: Value, b: Value) -> Result {
    same_type(cx, a, b)?;
    let dtype = cx.dtype(a);
    let (a, b) = (cx.widened(a)?, cx.widened(b)?);
    let mut f = Body::default();
    let (x, y) = (f.arg(0), f.arg(1));
    floored(&mut f, x, y, cx.dtype(a));
    let q = cx.map(f.0, &[a, b])?;
    Ok(cx.cast(q, dtype)?)
}

/// [`floor_div`] of two scalars of this type.
pub fn floored(f: &mut Body, x: u32, y: u32, dtype: DType) -> u32 {
    if !dtype.is_float() {
        let q = f.binary(BinaryOp::Div, x, y);
        if dtype.class() != Class::Int {
            return q;
        }
        let rest = f.binary(BinaryOp::Rem, x, y);
        let zero = f.int(dtype, 0);
        let signs = f.binary(BinaryOp::Xor, x, y);
        let (some, differ) = (f.binary(BinaryOp::Ne, rest, zero), f.binary(BinaryOp::Lt, signs, zero));
        let below = f.binary(BinaryOp::And, some, differ);
        let below = f.cast(dtype, below);
        return f.binary(BinaryOp::Sub, q, below);
    }
    let (zero, half, one) = (f.number(dtype, 0.0), f.number(dtype, 0.5), f.number(dtype, 1.0));
    let plain = f.binary(BinaryOp::Div, x, y);
    let rest = f.binary(BinaryOp::Rem, x, y);
    let whole = f.binary(BinaryOp::Sub, x, rest);
    let q = f.binary(BinaryOp::Div, whole, y);
    let (rest_below, y_below) = (f.binary(BinaryOp::Lt, rest, zero), f.binary(BinaryOp::Lt, y, zero));
    let differ = f.binary(BinaryOp::Xor, rest_below, y_below);
    let some = f.binary(BinaryOp::Ne, rest, zero);
    let below = f.binary(BinaryOp::And, some, differ);
    let less = f.binary(BinaryOp::Sub, q, one);
    let q = f.select(below, less, q);
    // The quotient is an integer up to its rounding error, so it is rounded to the nearest.
    let down = f.unary(UnaryOp::Floor, q);
    let over = f.binary(BinaryOp::Sub, q, down);
    let over = f.binary(BinaryOp::Gt, over, half);
    let up = f.binary(BinaryOp::Add, down, one);
    let q = f.select(over, up, down);
    let by_zero = f.binary(BinaryOp::Eq, y, zero);
    f.select(by_zero, plain, q)
}

/// `xʸ` in the type of `x`; the exponent may have another type than the base.
pub fn pow(cx: &mut Lowering, x: Value, y: Value) -> Result {
    let (tx, ty) = (cx.dtype(x), cx.dtype(y));
    if tx.is_float() || ty == tx {
        let y = cx.cast(y, tx)?;
        return Ok(cx.binary(BinaryOp::Pow, x, y)?);
    }
    let wide = if ty.is_float() { ty } else { tx };
    let (a, b) = (cx.cast(x, wide)?, cx.cast(y, wide)?);
    let r = cx.binary(BinaryOp::Pow, a, b)?;
    Ok(cx.cast(r, tx)?)
}

/// Whether an element is an infinity of one of the requested signs.
pub fn is_inf(cx: &mut Lowering, x: Value, negative: bool, positive: bool) -> Result {
    let any = cx.unary(UnaryOp::IsInf, x)?;
    let op = match (negative, positive) {
        (true, true) => return Ok(any),
        (false, false) => {
            let shape = cx.shape(x);
            return Ok(cx.full(&shape, Scalar::bool(false))?);
        }
        (true, false) => BinaryOp::Lt,
        (false, true) => BinaryOp::Gt,
    };
    let side = cx.binary_scalar(op, x, 0.0)?;
    Ok(cx.binary(BinaryOp::And, any, side)?)
}

/// The direction of a bit shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// Towards the most significant bit.
    Left,
    /// Towards the least significant bit; the sign is extended.
    Right,
}

/// Shifts by at least the bit width, or by a negative number, give 0, or all copies of the sign for an arithmetic
/// right shift.
pub fn shift(cx: &mut Lowering, x: Value, by: Value, direction: Shift) -> Result {
    let dtype = cx.dtype(x);
    if !dtype.is_int() || cx.dtype(by) != dtype {
        return Err(OpError::model(format!("a shift of {} by {}", cx.ty(x), cx.ty(by))));
    }
    match direction {
        Shift::Left => Ok(cx.binary(BinaryOp::Shl, x, by)?),
        Shift::Right if dtype.class() == Class::Int => {
            let mut f = Body::default();
            let (a, b) = (f.arg(0), f.arg(1));
            let (zero, last) = (f.int(dtype, 0), f.int(dtype, dtype.bits() as i64 - 1));
            let negative = f.binary(BinaryOp::Lt, b, zero);
            let most = f.binary(BinaryOp::Min, b, last);
            let b = f.select(negative, last, most);
            f.binary(BinaryOp::Shr, a, b);
            Ok(cx.map(f.0, &[x, by])?)
        }
        Shift::Right => Ok(cx.binary(BinaryOp::Shr, x, by)?),
    }
}

/// Reinterprets the bits of `x` as another type of the same width.
pub fn bit_cast(cx: &mut Lowering, x: Value, to: DType) -> Result {
    let from = cx.dtype(x);
    if from.bits() != to.bits() {
        let e = format!("{from} has {} bits, {to} has {}", from.bits(), to.bits());
        return Err(OpError::model(e).param("to"));
    }
    if from == to {
        return Ok(x);
    }
    let mut f = Body::default();
    let mut v = f.arg(0);
    // A bool is a byte that is 0 or 1.
    if from == DType::Bool {
        v = f.cast(DType::U8, v);
    }
    let through = if to == DType::Bool { DType::U8 } else { to };
    if from != through && !(from == DType::Bool && through == DType::U8) {
        v = f.bitcast(through, v);
    }
    if to == DType::Bool {
        f.cast(DType::Bool, v);
    }
    Ok(cx.map(f.0, &[x])?)
}

/// The unsigned integer type of this many bits.
fn word(bits: usize) -> Result<DType> {
    Ok(match bits {
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        64 => DType::U64,
        _ => {
            return Err(OpError::unsupported(
                format!("elements of {bits} bits as others"),
                "convert them first",
            ));
        }
    })
}

/// Splits the bits of each element of `x` into elements of a narrower type, lowest bits first. Returns one tensor for
/// each part, with a last axis of extent 1.
pub fn split_bits(cx: &mut Lowering, x: Value, to: DType) -> Result<Vec<Value>> {
    let (wide, narrow) = (word(cx.dtype(x).bits())?, word(to.bits())?);
    let x = bit_cast(cx, x, wide)?;
    let rank = cx.rank(x);
    let x = cx.unsqueeze(x, &[rank])?;
    let mask = cx.int(wide, (1 << narrow.bits()) - 1);
    let mut parts = vec![];
    for i in 0..wide.bits() / narrow.bits() {
        let by = cx.int(wide, (i * narrow.bits()) as i64);
        let part = cx.binary(BinaryOp::Shr, x, by)?;
        let part = cx.binary(BinaryOp::And, part, mask)?;
        let part = cx.cast(part, narrow)?;
        parts.push(bit_cast(cx, part, to)?);
    }
    Ok(parts)
}

/// Joins the bits along the last axis of `x` into one element of a wider type, lowest bits first.
pub fn joined_bits(cx: &mut Lowering, x: Value, to: DType) -> Result {
    let (narrow, wide) = (word(cx.dtype(x).bits())?, word(to.bits())?);
    let x = bit_cast(cx, x, narrow)?;
    let last = cx.rank(x) - 1;
    let mut whole = cx.int(wide, 0);
    for i in 0..wide.bits() / narrow.bits() {
        let part = cx.slice(x, last, &(i as i64).into(), 1, &Dim::ONE)?;
        let part = cx.squeeze(part, &[last])?;
        let part = cx.cast(part, wide)?;
        let by = cx.int(wide, (i * narrow.bits()) as i64);
        let part = cx.binary(BinaryOp::Shl, part, by)?;
        whole = cx.binary(BinaryOp::Or, whole, part)?;
    }
    bit_cast(cx, whole, to)
}

/// `a` where the condition holds, else `b`.
pub fn choose(cx: &mut Lowering, c: Value, a: Value, b: Value) -> Result {
    if cx.dtype(c) != DType::Bool {
        return Err(OpError::model(format!("the condition is {}, not bool", cx.ty(c))).operand(c));
    }
    if cx.dtype(a) != cx.dtype(b) {
        return Err(OpError::model(format!("choices of different types: {} and {}", cx.ty(a), cx.ty(b))));
    }
    Ok(cx.select(c, a, b)?)
}

/// A bound for [`clamp`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// A number.
    Is(f64),
    /// A tensor of one element.
    Of(Value),
}

/// Clamps to at least `low` and at most `high`.
pub fn clamp(cx: &mut Lowering, mut x: Value, low: Option<Limit>, high: Option<Limit>) -> Result {
    for (limit, op) in [(low, BinaryOp::Max), (high, BinaryOp::Min)] {
        match limit {
            None => {}
            Some(Limit::Is(v)) => x = cx.binary_scalar(op, x, v)?,
            Some(Limit::Of(v)) => {
                if cx.dtype(v) != cx.dtype(x) || !matches!(cx.ty(v).numel().as_const(), Some(1) | None) {
                    let e = OpError::model(format!("limit of type {} for {}", cx.ty(v), cx.ty(x)));
                    return Err(e.operand(v));
                }
                let v = cx.reshape(v, vec![])?;
                x = cx.binary(op, x, v)?;
            }
        }
    }
    Ok(x)
}
