//! Real and imaginary parts of complex numbers, and complex numbers made of parts.

use super::super::cx::Operand;
use super::super::messages::Argument;
use super::super::prelude::*;
use crate::lower::complex;
use wgfc_ir::{Body, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._conj.default", conjugate).complex(),
    OpDef::new("aten._conj_physical.default", conjugate).complex(),
    OpDef::new("aten.angle.default", angle).complex(),
    OpDef::new("aten.complex.default", |cx| {
        let (r, i) = (cx.tensor("real")?, cx.tensor("imag")?);
        let dims = cx.broadcast_shape(&[r, i])?;
        let (r, i) = (cx.expand(r, &dims)?, cx.expand(i, &dims)?);
        Ok(vec![complex::of(cx, r, i)?])
    })
    .complex(),
    OpDef::new("aten.conj.default", conjugate).complex(),
    OpDef::new("aten.conj_physical.default", conjugate).complex().views("self"),
    OpDef::new("aten.imag.default", |cx| part(cx, 1)).complex(),
    OpDef::new("aten.is_complex.default", |_| Ok(vec![])).complex(),
    OpDef::new("aten.polar.default", |cx| {
        let (far, angle) = (cx.tensor("abs")?, cx.tensor("angle")?);
        Ok(vec![complex::polar(cx, far, angle)?])
    })
    .complex(),
    OpDef::new("aten.real.default", |cx| part(cx, 0)).complex(),
    OpDef::new("aten.resolve_conj.default", same).complex(),
    OpDef::new("aten.resolve_neg.default", same).complex(),
    OpDef::new("aten.view_as_complex.default", same).complex(),
    OpDef::new("aten.view_as_real.default", same).complex(),
];

/// The operand itself, as complex numbers are stored as pairs along a last axis.
fn same(cx: &mut Cx) -> Lowered {
    Ok(vec![cx.tensor("self")?])
}

fn part(cx: &mut Cx, part: usize) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![if cx.is_complex("self") { complex::part(cx, x, part)? } else { x }])
}

fn conjugate(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![if cx.is_complex("self") { complex::conjugate(cx, x)? } else { x }])
}

/// The phase; for real numbers it is π if negative, else 0.
fn angle(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    if cx.is_complex("self") {
        let [r, i] = complex::parts(cx, x)?;
        return Ok(vec![cx.binary(BinaryOp::Special(wgfc_ir::Special2::Atan2), i, r)?]);
    }
    let x = cx.as_float(x)?;
    let dtype = cx.dtype(x);
    let mut f = Body::default();
    let (x0, zero, pi) = (f.arg(0), f.number(dtype, 0.0), f.number(dtype, std::f64::consts::PI));
    let negative = f.binary(BinaryOp::Lt, x0, zero);
    let nan = f.unary(UnaryOp::IsNan, x0);
    let y = f.select(negative, pi, zero);
    f.select(nan, x0, y);
    Ok(vec![cx.map(f.0, &[x])?])
}

/// The real and imaginary parts of an argument that is a complex constant.
fn number(cx: &Cx, name: &str) -> Result<Option<[f64; 2]>> {
    Ok(match *cx.argument(name)? {
        Argument::Complex(parts) => Some(parts),
        _ => None,
    })
}

/// A binary operator with at least one complex operand; `None` if both are real.
pub fn combined(cx: &mut Cx, op: BinaryOp) -> Result<Option<Value>> {
    let [a, b] = [number(cx, "self")?, number(cx, "other")?];
    let complex = [a.is_some() || cx.is_complex("self"), b.is_some() || cx.is_complex("other")];
    if complex == [false, false] {
        return Ok(None);
    }
    let dtype = cx.result_dtype(0)?;
    let mut operands = vec![];
    for ((name, parts), is_complex) in [("self", a), ("other", b)].into_iter().zip(complex) {
        let v = match parts {
            Some(parts) => {
                let parts = parts.map(|x| Scalar::from_f64(dtype, x));
                cx.constant(wgfc_ir::Tensor::from_scalars(dtype, vec![2], &parts))
            }
            None => {
                let given: Operand = cx.operand(name)?;
                cx.in_type(&given, dtype)?
            }
        };
        operands.push(if is_complex { v } else { complex::from_real(cx, v)? });
    }
    let (a, mut b) = (operands[0], operands[1]);
    if cx.declares("alpha") {
        let alpha = cx.number("alpha")?;
        if !alpha.is(1.0) {
            let alpha = cx.number_in(&alpha, dtype)?;
            b = cx.binary(BinaryOp::Mul, b, alpha)?;
        }
    }
    Ok(Some(match op {
        BinaryOp::Add | BinaryOp::Sub => cx.binary(op, a, b)?,
        BinaryOp::Mul => complex::product(cx, a, b)?,
        BinaryOp::Div => complex::quotient(cx, a, b)?,
        _ => {
            return Err(OpError::unsupported(
                format!("`{}` of complex numbers", op.name()),
                "compute with torch.view_as_real of them",
            ));
        }
    }))
}
