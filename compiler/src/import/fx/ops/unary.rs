//! Elementwise functions of one tensor.

use super::super::prelude::*;
use crate::lower::complex;
use crate::lower::elementwise;
use wgfc_ir::Body;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.abs.default", absolute).complex(),
    OpDef::new("aten.absolute.default", absolute).complex(),
    OpDef::new("aten.acos.default", |cx| float(cx, UnaryOp::Acos)),
    OpDef::new("aten.acosh.default", |cx| float(cx, UnaryOp::Acosh)),
    OpDef::new("aten.arccos.default", |cx| float(cx, UnaryOp::Acos)),
    OpDef::new("aten.arccosh.default", |cx| float(cx, UnaryOp::Acosh)),
    OpDef::new("aten.arcsin.default", |cx| float(cx, UnaryOp::Asin)),
    OpDef::new("aten.arcsinh.default", |cx| float(cx, UnaryOp::Asinh)),
    OpDef::new("aten.arctan.default", |cx| float(cx, UnaryOp::Atan)),
    OpDef::new("aten.arctanh.default", |cx| float(cx, UnaryOp::Atanh)),
    OpDef::new("aten.asin.default", |cx| float(cx, UnaryOp::Asin)),
    OpDef::new("aten.asinh.default", |cx| float(cx, UnaryOp::Asinh)),
    OpDef::new("aten.atan.default", |cx| float(cx, UnaryOp::Atan)),
    OpDef::new("aten.atanh.default", |cx| float(cx, UnaryOp::Atanh)),
    OpDef::new("aten.bitwise_not.default", |cx| plain(cx, UnaryOp::Not)),
    OpDef::new("aten.ceil.default", |cx| of_floats(cx, UnaryOp::Ceil)),
    OpDef::new("aten.cos.default", |cx| float(cx, UnaryOp::Cos)),
    OpDef::new("aten.cosh.default", |cx| float(cx, UnaryOp::Cosh)),
    OpDef::new("aten.erf.default", |cx| float(cx, UnaryOp::Erf)),
    OpDef::new("aten.exp.default", exp).complex(),
    OpDef::new("aten.fix.default", |cx| of_floats(cx, UnaryOp::Trunc)),
    OpDef::new("aten.floor.default", |cx| of_floats(cx, UnaryOp::Floor)),
    OpDef::new("aten.deg2rad.default", |cx| times(cx, std::f64::consts::PI / 180.0)).in_f32(),
    OpDef::new("aten.frac.default", fraction),
    OpDef::new("aten.isfinite.default", is_finite),
    OpDef::new("aten.isinf.default", |cx| test(cx, UnaryOp::IsInf)),
    OpDef::new("aten.isnan.default", |cx| test(cx, UnaryOp::IsNan)),
    OpDef::new("aten.isneginf.default", |cx| infinite(cx, true)),
    OpDef::new("aten.isposinf.default", |cx| infinite(cx, false)),
    OpDef::new("aten.isreal.default", |cx| {
        let x = cx.tensor("self")?;
        let shape = cx.shape(x);
        Ok(vec![cx.full(&shape, wgfc_ir::Scalar::bool(true))?])
    }),
    OpDef::new("aten.log.default", |cx| float(cx, UnaryOp::Log)),
    OpDef::new("aten.logical_not.default", logical_not),
    OpDef::new("aten.neg.default", |cx| plain(cx, UnaryOp::Neg)).by_parts(),
    OpDef::new("aten.logit.default", logit).in_f32(),
    OpDef::new("aten.nan_to_num.default", without_nan),
    OpDef::new("aten.negative.default", |cx| plain(cx, UnaryOp::Neg)).by_parts(),
    OpDef::new("aten.positive.default", |cx| Ok(vec![cx.tensor("self")?])),
    OpDef::new("aten.rad2deg.default", |cx| times(cx, 180.0 / std::f64::consts::PI)).in_f32(),
    OpDef::new("aten.reciprocal.default", |cx| float(cx, UnaryOp::Recip)),
    OpDef::new("aten.round.default", |cx| of_floats(cx, UnaryOp::Round)),
    OpDef::new("aten.round.decimals", rounded).in_f32(),
    OpDef::new("aten.rsqrt.default", |cx| float(cx, UnaryOp::Rsqrt)),
    OpDef::new("aten.sgn.default", sign),
    OpDef::new("aten.sigmoid.default", |cx| float(cx, UnaryOp::Sigmoid)),
    OpDef::new("aten.sign.default", sign),
    OpDef::new("aten.sin.default", |cx| float(cx, UnaryOp::Sin)),
    OpDef::new("aten.sinh.default", |cx| float(cx, UnaryOp::Sinh)),
    OpDef::new("aten.special_erf.default", |cx| float(cx, UnaryOp::Erf)),
    OpDef::new("aten.special_round.default", rounded).in_f32(),
    OpDef::new("aten.sqrt.default", |cx| float(cx, UnaryOp::Sqrt)),
    OpDef::new("aten.special_expit.default", |cx| float(cx, UnaryOp::Sigmoid)),
    OpDef::new("aten.special_logit.default", logit).in_f32(),
    OpDef::new("aten.square.default", square),
    OpDef::new("aten.tan.default", |cx| float(cx, UnaryOp::Tan)),
    OpDef::new("aten.tanh.default", |cx| float(cx, UnaryOp::Tanh)),
    OpDef::new("aten.trunc.default", |cx| of_floats(cx, UnaryOp::Trunc)),
];

fn absolute(cx: &mut Cx) -> Lowered {
    match cx.is_complex("self") {
        true => {
            let x = cx.tensor("self")?;
            Ok(vec![complex::absolute(cx, x)?])
        }
        false => plain(cx, UnaryOp::Abs),
    }
}

fn exp(cx: &mut Cx) -> Lowered {
    match cx.is_complex("self") {
        true => {
            let x = cx.tensor("self")?;
            Ok(vec![complex::exp(cx, x)?])
        }
        false => float(cx, UnaryOp::Exp),
    }
}

/// A function in the operand's own type.
fn plain(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![cx.unary(op, x)?])
}

/// A function of floats; integers are converted.
fn float(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.as_float(x)?;
    Ok(vec![cx.unary(op, x)?])
}

/// A function that leaves integers unchanged.
fn of_floats(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![if cx.dtype(x).is_float() { cx.unary(op, x)? } else { x }])
}

/// A test for special floats, which is false for integers.
fn test(cx: &mut Cx, op: UnaryOp) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.as_float(x)?;
    Ok(vec![cx.unary(op, x)?])
}

/// The sign; that of NaN is 0, and that of a bool is the bool itself.
fn sign(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.dtype(x);
    if dtype == DType::Bool {
        return Ok(vec![x]);
    }
    let y = cx.unary(UnaryOp::Sign, x)?;
    if !dtype.is_float() {
        return Ok(vec![y]);
    }
    let (none, zero) = (cx.unary(UnaryOp::IsNan, x)?, cx.scalar(dtype, 0.0));
    Ok(vec![cx.select(none, zero, y)?])
}

fn logical_not(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.dtype(x);
    let mut f = Body::default();
    let (x0, zero) = (f.arg(0), f.number(dtype, 0.0));
    if dtype == DType::Bool {
        f.unary(UnaryOp::Not, x0);
    } else {
        f.binary(BinaryOp::Eq, x0, zero);
    }
    Ok(vec![cx.map(f.0, &[x])?])
}

fn times(cx: &mut Cx, factor: f64) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.as_float(x)?;
    Ok(vec![cx.binary_scalar(BinaryOp::Mul, x, factor)?])
}

fn square(cx: &mut Cx) -> Lowered {
    let (x, to) = (cx.tensor("self")?, cx.result_dtype(0)?);
    let x = cx.converted(x, to)?;
    Ok(vec![elementwise::binary(cx, BinaryOp::Mul, x, x)?])
}

fn fraction(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let whole = cx.unary(UnaryOp::Trunc, x)?;
    Ok(vec![cx.binary(BinaryOp::Sub, x, whole)?])
}

fn is_finite(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.as_float(x)?;
    let (infinite, none) = (cx.unary(UnaryOp::IsInf, x)?, cx.unary(UnaryOp::IsNan, x)?);
    let either = cx.binary(BinaryOp::Or, infinite, none)?;
    Ok(vec![cx.unary(UnaryOp::Not, either)?])
}

/// `ln(x / (1 - x))`, with x clamped to [`eps`, 1 - `eps`].
fn logit(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let mut x = cx.as_float(x)?;
    if let Some(eps) = cx.opt_float("eps")? {
        // The lower bound wins if the bounds cross.
        let below = cx.binary_scalar(BinaryOp::Lt, x, eps)?;
        let low = cx.scalar(cx.dtype(x), eps);
        let most = cx.binary_scalar(BinaryOp::Min, x, 1.0 - eps)?;
        x = cx.select(below, low, most)?;
    }
    let one = cx.scalar(cx.dtype(x), 1.0);
    let rest = cx.binary(BinaryOp::Sub, one, x)?;
    let odds = cx.binary(BinaryOp::Div, x, rest)?;
    Ok(vec![cx.unary(UnaryOp::Log, odds)?])
}

/// Rounds to a number of decimal places; a negative number rounds to powers of ten.
fn rounded(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let n = cx.int("decimals")?;
    if !cx.dtype(x).is_float() {
        return Ok(vec![x]);
    }
    let factor = 10f64.powi(i32::try_from(n.abs()).unwrap_or(i32::MAX));
    let (there, back) = if n >= 0 { (BinaryOp::Mul, BinaryOp::Div) } else { (BinaryOp::Div, BinaryOp::Mul) };
    let y = cx.binary_scalar(there, x, factor)?;
    let y = cx.unary(UnaryOp::Round, y)?;
    Ok(vec![cx.binary_scalar(back, y, factor)?])
}

/// Replaces NaN, by default with 0, and infinities, by default with the extreme finite values.
fn without_nan(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.dtype(x);
    if !dtype.is_float() {
        return Ok(vec![x]);
    }
    let least = crate::lower::pool::least(dtype).as_f64();
    let nan = cx.opt_float("nan")?.unwrap_or(0.0);
    let (high, low) = (cx.opt_float("posinf")?.unwrap_or(-least), cx.opt_float("neginf")?.unwrap_or(least));
    let mut f = Body::default();
    let (v, zero) = (f.arg(0), f.number(dtype, 0.0));
    let (nan, high, low) = (f.number(dtype, nan), f.number(dtype, high), f.number(dtype, low));
    let (none, infinite, negative) =
        (f.unary(UnaryOp::IsNan, v), f.unary(UnaryOp::IsInf, v), f.binary(BinaryOp::Lt, v, zero));
    let end = f.select(negative, low, high);
    let finite = f.select(infinite, end, v);
    f.select(none, nan, finite);
    Ok(vec![cx.map(f.0, &[x])?])
}

/// Whether elements are infinities of one sign; false for types other than floats.
fn infinite(cx: &mut Cx, negative: bool) -> Lowered {
    let x = cx.tensor("self")?;
    if cx.dtype(x).is_float() {
        return Ok(vec![elementwise::is_inf(cx, x, negative, !negative)?]);
    }
    let shape = cx.shape(x);
    Ok(vec![cx.full(&shape, wgfc_ir::Scalar::bool(false))?])
}
