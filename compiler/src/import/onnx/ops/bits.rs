//! Operators on the bits of elements.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp, Body, Class, DType};

/// By the width or more, or by less than 0, nothing is left but the sign.
fn shift(cx: &mut Cx) -> Lowered {
    let (x, by) = (cx.input(0)?, cx.input(1)?);
    let dtype = cx.dtype(x);
    if !dtype.is_int() || cx.dtype(by) != dtype {
        return Err(OpError::model(format!("a shift of {} by {}", cx.ty(x), cx.ty(by))));
    }
    let direction = cx.string_opt("direction")?;
    match direction.as_deref() {
        Some("LEFT") => Ok(vec![cx.binary(BinaryOp::Shl, x, by)?]),
        Some("RIGHT") if dtype.class() == Class::Int => {
            let mut f = Body::default();
            let (a, b) = (f.arg(0), f.arg(1));
            let (zero, last) = (f.int(dtype, 0), f.int(dtype, dtype.bits() as i64 - 1));
            let negative = f.binary(BinaryOp::Lt, b, zero);
            let most = f.binary(BinaryOp::Min, b, last);
            let b = f.select(negative, last, most);
            f.binary(BinaryOp::Shr, a, b);
            Ok(vec![cx.map(f.0, &[x, by])?])
        }
        Some("RIGHT") => Ok(vec![cx.binary(BinaryOp::Shr, x, by)?]),
        Some(other) => {
            Err(OpError::model(format!("`{other}` is neither `LEFT` nor `RIGHT`")).attribute("direction"))
        }
        None => Err(OpError::model("attribute `direction` is required and missing").attribute("direction")),
    }
}

/// The same bits as another type of the same width.
fn bit_cast(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (from, to) = (cx.dtype(x), cx.dtype_opt("to")?);
    let to = to.ok_or_else(|| OpError::model("attribute `to` is required and missing").attribute("to"))?;
    if from.bits() != to.bits() {
        let e = format!("{from} has {} bits, {to} has {}", from.bits(), to.bits());
        return Err(OpError::model(e).attribute("to"));
    }
    if from == to {
        return Ok(vec![x]);
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
    Ok(vec![cx.map(f.0, &[x])?])
}

/// `BitCast` and `BitShift`.
pub const OPS: &[OpDef] = &[
    OpDef::new("BitCast", &[26], bit_cast).cases(&["test_bitcast_"]),
    OpDef::new("BitShift", &[11, 28], shift).cases(&["test_bitshift_"]),
];
