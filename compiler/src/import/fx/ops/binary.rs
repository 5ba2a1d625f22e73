//! Elementwise functions of two tensors or numbers, computed in their promoted type.

use super::super::prelude::*;
use super::super::promote;
use super::complex;
use crate::lower::elementwise::{self, Shift};
use wgfc_ir::Body;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.__and__.Scalar|Tensor", |cx| plain(cx, BinaryOp::And)),
    OpDef::new("aten.__lshift__.Scalar|Tensor", |cx| shifted(cx, Shift::Left)),
    OpDef::new("aten.__or__.Scalar|Tensor", |cx| plain(cx, BinaryOp::Or)),
    OpDef::new("aten.__rshift__.Scalar|Tensor", |cx| shifted(cx, Shift::Right)),
    OpDef::new("aten.__xor__.Scalar|Tensor", |cx| plain(cx, BinaryOp::Xor)),
    OpDef::new("aten.add.Scalar|Tensor", |cx| scaled(cx, BinaryOp::Add)).complex(),
    OpDef::new("aten.addcdiv.default", |cx| with_product(cx, BinaryOp::Div)).in_f32(),
    OpDef::new("aten.addcmul.default", |cx| with_product(cx, BinaryOp::Mul)).in_f32(),
    OpDef::new("aten.bitwise_and.Scalar|Tensor", |cx| plain(cx, BinaryOp::And)),
    OpDef::new("aten.bitwise_left_shift.Scalar_Tensor|Tensor|Tensor_Scalar", |cx| shifted(cx, Shift::Left)),
    OpDef::new("aten.bitwise_or.Scalar|Tensor", |cx| plain(cx, BinaryOp::Or)),
    OpDef::new("aten.bitwise_right_shift.Scalar_Tensor|Tensor|Tensor_Scalar", |cx| shifted(cx, Shift::Right)),
    OpDef::new("aten.bitwise_xor.Scalar|Tensor", |cx| plain(cx, BinaryOp::Xor)),
    OpDef::new("aten.div.Scalar|Tensor", divided).complex(),
    OpDef::new("aten.div.Scalar_mode|Tensor_mode", rounded),
    OpDef::new("aten.divide.Scalar|Tensor", divided).complex(),
    OpDef::new("aten.divide.Scalar_mode|Tensor_mode", rounded),
    OpDef::new("aten.eq.Scalar|Tensor", |cx| plain(cx, BinaryOp::Eq)),
    OpDef::new("aten.float_power.Scalar|Tensor_Scalar|Tensor_Tensor", float_power),
    OpDef::new("aten.floor_divide.Scalar|default", floor_divided),
    OpDef::new("aten.fmax.default", |cx| of_numbers(cx, BinaryOp::Max)),
    OpDef::new("aten.fmin.default", |cx| of_numbers(cx, BinaryOp::Min)),
    OpDef::new("aten.fmod.Scalar|Tensor", |cx| plain(cx, BinaryOp::Rem)),
    OpDef::new("aten.ge.Scalar|Tensor", |cx| plain(cx, BinaryOp::Ge)),
    OpDef::new("aten.greater.Scalar|Tensor", |cx| plain(cx, BinaryOp::Gt)),
    OpDef::new("aten.greater_equal.Scalar|Tensor", |cx| plain(cx, BinaryOp::Ge)),
    OpDef::new("aten.gt.Scalar|Tensor", |cx| plain(cx, BinaryOp::Gt)),
    OpDef::new("aten.heaviside.default", heaviside),
    OpDef::new("aten.isclose.default", close),
    OpDef::new("aten.ldexp.Tensor", scaled_by_power),
    OpDef::new("aten.le.Scalar|Tensor", |cx| plain(cx, BinaryOp::Le)),
    OpDef::new("aten.lerp.Scalar|Tensor", between).in_f32(),
    OpDef::new("aten.less.Scalar|Tensor", |cx| plain(cx, BinaryOp::Lt)),
    OpDef::new("aten.less_equal.Scalar|Tensor", |cx| plain(cx, BinaryOp::Le)),
    OpDef::new("aten.logical_and.default", |cx| logical(cx, BinaryOp::And)),
    OpDef::new("aten.logical_or.default", |cx| logical(cx, BinaryOp::Or)),
    OpDef::new("aten.logical_xor.default", |cx| logical(cx, BinaryOp::Xor)),
    OpDef::new("aten.lt.Scalar|Tensor", |cx| plain(cx, BinaryOp::Lt)),
    OpDef::new("aten.maximum.default", |cx| plain(cx, BinaryOp::Max)),
    OpDef::new("aten.minimum.default", |cx| plain(cx, BinaryOp::Min)),
    OpDef::new("aten.mul.Scalar|Tensor", |cx| plain(cx, BinaryOp::Mul)).complex(),
    OpDef::new("aten.multiply.Scalar|Tensor", |cx| plain(cx, BinaryOp::Mul)).complex(),
    OpDef::new("aten.ne.Scalar|Tensor", |cx| plain(cx, BinaryOp::Ne)),
    OpDef::new("aten.not_equal.Scalar|Tensor", |cx| plain(cx, BinaryOp::Ne)),
    OpDef::new("aten.pow.Scalar|Tensor_Scalar|Tensor_Tensor", |cx| power(cx, ["self", "exponent"])),
    OpDef::new("aten.remainder.Scalar|Scalar_Tensor|Tensor", |cx| plain(cx, BinaryOp::Mod)),
    OpDef::new("aten.rsub.Scalar|Tensor", reversed),
    OpDef::new("aten.sub.Scalar|Tensor", |cx| scaled(cx, BinaryOp::Sub)).complex(),
    OpDef::new("aten.subtract.Scalar|Tensor", |cx| scaled(cx, BinaryOp::Sub)).complex(),
    OpDef::new("aten.true_divide.Scalar|Tensor", divided),
    OpDef::new("aten.where.Scalar|ScalarOther|ScalarSelf|self", choose).complex(),
];

fn plain(cx: &mut Cx, op: BinaryOp) -> Lowered {
    if let Some(y) = complex::combined(cx, op)? {
        return Ok(vec![y]);
    }
    if op == BinaryOp::Mul {
        cx.keep_numbers(&["self", "other"])?;
    }
    let [a, b] = cx.promoted(["self", "other"])?;
    Ok(vec![elementwise::binary(cx, op, a, b)?])
}

/// `self ± alpha * other`.
fn scaled(cx: &mut Cx, op: BinaryOp) -> Lowered {
    if let Some(y) = complex::combined(cx, op)? {
        return Ok(vec![y]);
    }
    cx.keep_numbers(&["self", "other", "alpha"])?;
    let [a, b] = cx.promoted(["self", "other"])?;
    let b = times_alpha(cx, b)?;
    Ok(vec![combined(cx, op, a, b)?])
}

fn reversed(cx: &mut Cx) -> Lowered {
    cx.keep_numbers(&["self", "other", "alpha"])?;
    let [a, b] = cx.promoted(["self", "other"])?;
    let a = times_alpha(cx, a)?;
    Ok(vec![combined(cx, BinaryOp::Sub, b, a)?])
}

/// A sum or difference; the sum of bools is a logical or.
fn combined(cx: &mut Cx, op: BinaryOp, a: Value, b: Value) -> Result {
    let op = if cx.dtype(a) == DType::Bool { BinaryOp::Or } else { op };
    elementwise::binary(cx, op, a, b)
}

fn times_alpha(cx: &mut Cx, v: Value) -> Result {
    let alpha = cx.number("alpha")?;
    if alpha.is(1.0) {
        return Ok(v);
    }
    let alpha = cx.number_in(&alpha, cx.dtype(v))?;
    let op = if cx.dtype(v) == DType::Bool { BinaryOp::And } else { BinaryOp::Mul };
    elementwise::binary(cx, op, v, alpha)
}

/// True division; integers are converted to floats.
fn divided(cx: &mut Cx) -> Lowered {
    if let Some(y) = complex::combined(cx, BinaryOp::Div)? {
        return Ok(vec![y]);
    }
    cx.keep_numbers(&["self", "other"])?;
    let [a, b] = cx.promoted(["self", "other"])?;
    let (a, b) = (cx.as_float(a)?, cx.as_float(b)?);
    Ok(vec![elementwise::binary(cx, BinaryOp::Div, a, b)?])
}

fn rounded(cx: &mut Cx) -> Lowered {
    cx.keep_numbers(&["self", "other"])?;
    let mode = cx.text("rounding_mode")?;
    let [a, b] = cx.promoted(["self", "other"])?;
    let float = cx.dtype(a).is_float();
    match mode.as_deref() {
        None => {
            let (a, b) = (cx.as_float(a)?, cx.as_float(b)?);
            Ok(vec![elementwise::binary(cx, BinaryOp::Div, a, b)?])
        }
        Some("trunc") => {
            let q = elementwise::binary(cx, BinaryOp::Div, a, b)?;
            Ok(vec![if float { cx.unary(UnaryOp::Trunc, q)? } else { q }])
        }
        Some("floor") => Ok(vec![elementwise::floor_div(cx, a, b)?]),
        Some(m) => Err(OpError::model(format!("unknown mode `{m}`")).param("rounding_mode")),
    }
}

fn logical(cx: &mut Cx, op: BinaryOp) -> Lowered {
    let (a, b) = (cx.tensor("self")?, cx.tensor("other")?);
    let (a, b) = (truth(cx, a)?, truth(cx, b)?);
    Ok(vec![elementwise::binary(cx, op, a, b)?])
}

/// Whether elements differ from 0.
pub fn truth(cx: &mut Lowering, v: Value) -> Result {
    if cx.dtype(v) == DType::Bool {
        return Ok(v);
    }
    Ok(cx.binary_scalar(BinaryOp::Ne, v, 0.0)?)
}

fn power(cx: &mut Cx, names: [&str; 2]) -> Lowered {
    let [a, b] = cx.promoted(names)?;
    Ok(vec![elementwise::pow(cx, a, b)?])
}

fn choose(cx: &mut Cx) -> Lowered {
    let c = cx.tensor("condition")?;
    let c = truth(cx, c)?;
    let (a, b) = (cx.operand("self")?, cx.operand("other")?);
    if cx.makes_complex(0) {
        let mut pairs = vec![];
        for (name, of) in [("self", &a), ("other", &b)] {
            let v = cx.in_type(of, cx.result_dtype(0)?)?;
            pairs.push(if cx.is_complex(name) { v } else { crate::lower::complex::from_real(cx, v)? });
        }
        let axis = cx.rank(c);
        let c = cx.unsqueeze(c, &[axis])?;
        return Ok(vec![elementwise::choose(cx, c, pairs[0], pairs[1])?]);
    }
    let dtype = promote::common(&[cx.kind(&a), cx.kind(&b)]);
    let (a, b) = (cx.in_type(&a, dtype)?, cx.in_type(&b, dtype)?);
    Ok(vec![elementwise::choose(cx, c, a, b)?])
}

fn shifted(cx: &mut Cx, direction: Shift) -> Lowered {
    let [a, b] = cx.promoted(["self", "other"])?;
    Ok(vec![elementwise::shift(cx, a, b, direction)?])
}

fn floor_divided(cx: &mut Cx) -> Lowered {
    let [a, b] = cx.promoted(["self", "other"])?;
    Ok(vec![elementwise::floor_div(cx, a, b)?])
}

/// The maximum or minimum that ignores a NaN operand.
fn of_numbers(cx: &mut Cx, op: BinaryOp) -> Lowered {
    let [a, b] = cx.promoted(["self", "other"])?;
    if !cx.dtype(a).is_float() {
        return Ok(vec![elementwise::binary(cx, op, a, b)?]);
    }
    let mut f = Body::default();
    let (x, y) = (f.arg(0), f.arg(1));
    let (x_none, y_none) = (f.unary(UnaryOp::IsNan, x), f.unary(UnaryOp::IsNan, y));
    let both = f.binary(op, x, y);
    let other = f.select(y_none, x, both);
    f.select(x_none, y, other);
    Ok(vec![cx.map(f.0, &[a, b])?])
}

/// `self + value * tensor1 * tensor2`, or with a quotient in place of the product.
fn with_product(cx: &mut Cx, op: BinaryOp) -> Lowered {
    let dtype = cx.result_dtype(0)?;
    let [x, a, b] = cx.all_in(["self", "tensor1", "tensor2"], dtype)?;
    let value = cx.number("value")?;
    let mut y = elementwise::binary(cx, op, a, b)?;
    if !value.is(1.0) {
        let value = cx.number_in(&value, dtype)?;
        y = elementwise::binary(cx, BinaryOp::Mul, y, value)?;
    }
    Ok(vec![elementwise::binary(cx, BinaryOp::Add, x, y)?])
}

/// 1 for positive elements, `values` for those that equal 0, else 0.
fn heaviside(cx: &mut Cx) -> Lowered {
    let [x, at] = cx.promoted(["self", "values"])?;
    let (zero, one) = (cx.scalar(cx.dtype(x), 0.0), cx.scalar(cx.dtype(x), 1.0));
    let above = cx.binary(BinaryOp::Gt, x, zero)?;
    let there = cx.binary(BinaryOp::Eq, x, zero)?;
    let step = cx.select(above, one, zero)?;
    Ok(vec![cx.select(there, at, step)?])
}

/// `self * 2^other`.
fn scaled_by_power(cx: &mut Cx) -> Lowered {
    let [x, n] = cx.promoted(["self", "other"])?;
    let (x, n) = (cx.as_float(x)?, cx.as_float(n)?);
    let power = cx.unary(UnaryOp::Special(wgfc_ir::Special::Exp2), n)?;
    Ok(vec![cx.binary(BinaryOp::Mul, x, power)?])
}

/// `self + weight * (end - self)`, computed from the nearer end, so that a weight of 1 gives exactly `end`.
fn between(cx: &mut Cx) -> Lowered {
    let dtype = cx.result_dtype(0)?;
    let [a, b, w] = cx.all_in(["self", "end", "weight"], dtype)?;
    let mut f = Body::default();
    let (x, y, share) = (f.arg(0), f.arg(1), f.arg(2));
    let (half, one) = (f.number(dtype, 0.5), f.number(dtype, 1.0));
    let d = f.binary(BinaryOp::Sub, y, x);
    let far = f.binary(BinaryOp::Mul, share, d);
    let from_start = f.binary(BinaryOp::Add, x, far);
    let rest = f.binary(BinaryOp::Sub, one, share);
    let far = f.binary(BinaryOp::Mul, d, rest);
    let from_end = f.binary(BinaryOp::Sub, y, far);
    let size = f.unary(UnaryOp::Abs, share);
    let near = f.binary(BinaryOp::Lt, size, half);
    f.select(near, from_start, from_end);
    Ok(vec![cx.map(f.0, &[a, b, w])?])
}

/// Whether finite elements differ by at most `atol + rtol * |other|`; equal elements are always close.
fn close(cx: &mut Cx) -> Lowered {
    let (relative, absolute) = (cx.float("rtol")?, cx.float("atol")?);
    let [a, b] = cx.promoted(["self", "other"])?;
    let mut near = elementwise::binary(cx, BinaryOp::Eq, a, b)?;
    if cx.flag("equal_nan")? && cx.dtype(a).is_float() {
        let (x, y) = (cx.unary(UnaryOp::IsNan, a)?, cx.unary(UnaryOp::IsNan, b)?);
        let both = cx.binary(BinaryOp::And, x, y)?;
        near = cx.binary(BinaryOp::Or, near, both)?;
    }
    if relative == 0.0 && absolute == 0.0 {
        return Ok(vec![near]);
    }
    let (a, b) = (cx.as_float(a)?, cx.as_float(b)?);
    let allowed = cx.unary(UnaryOp::Abs, b)?;
    let allowed = cx.binary_scalar(BinaryOp::Mul, allowed, relative)?;
    let allowed = cx.binary_scalar(BinaryOp::Add, allowed, absolute)?;
    let d = cx.binary(BinaryOp::Sub, a, b)?;
    let d = cx.unary(UnaryOp::Abs, d)?;
    let within = cx.binary(BinaryOp::Le, d, allowed)?;
    let finite = cx.binary_scalar(BinaryOp::Lt, d, f64::INFINITY)?;
    let within = cx.binary(BinaryOp::And, within, finite)?;
    Ok(vec![cx.binary(BinaryOp::Or, near, within)?])
}

/// The power in the result's type, the widest float.
fn float_power(cx: &mut Cx) -> Lowered {
    let dtype = cx.result_dtype(0)?;
    let [a, b] = cx.all_in(["self", "exponent"], dtype)?;
    Ok(vec![elementwise::pow(cx, a, b)?])
}
