//! Complex numbers: the last axis, of extent 2, holds the real and the imaginary part.

use super::{Lowering, Result};
use wgfc_ir::{BinaryOp as B, Body, Dim, Poly, Scalar, UnaryOp as U, Value};

/// The real parts (`part` 0) or the imaginary parts (`part` 1).
pub fn part(cx: &mut Lowering, x: Value, part: usize) -> Result {
    let mut shape = cx.shape(x);
    shape.pop();
    let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
    index.push(Poly::from(part));
    Ok(cx.view(x, shape, index)?)
}

/// Joins real and imaginary parts to a complex tensor.
pub fn of(cx: &mut Lowering, real: Value, imaginary: Value) -> Result {
    let rank = cx.rank(real);
    let parts = [cx.unsqueeze(real, &[rank])?, cx.unsqueeze(imaginary, &[rank])?];
    Ok(cx.concat(&parts, rank)?)
}

/// A complex tensor with imaginary parts 0.
pub fn from_real(cx: &mut Lowering, x: Value) -> Result {
    let mut after = vec![Dim::ZERO; cx.rank(x) + 1];
    if let Some(last) = after.last_mut() {
        *last = Dim::ONE;
    }
    let before = vec![Dim::ZERO; after.len()];
    let x = cx.unsqueeze(x, &[before.len() - 1])?;
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    Ok(cx.pad(x, &before, &after, zero)?)
}

/// The real and the imaginary parts.
pub fn parts(cx: &mut Lowering, x: Value) -> Result<[Value; 2]> {
    Ok([part(cx, x, 0)?, part(cx, x, 1)?])
}

/// The complex conjugate.
pub fn conjugate(cx: &mut Lowering, x: Value) -> Result {
    let mut f = Body::default();
    let (x0, which, zero) = (f.arg(0), f.index(Poly::var(cx.rank(x) - 1)), f.i32(0));
    let negative = f.unary(U::Neg, x0);
    let is_real = f.binary(B::Eq, which, zero);
    f.select(is_real, x0, negative);
    Ok(cx.map(f.0, &[x])?)
}

/// The complex product.
pub fn product(cx: &mut Lowering, a: Value, b: Value) -> Result {
    let ([ar, ai], [br, bi]) = (parts(cx, a)?, parts(cx, b)?);
    let (rr, ii) = (cx.binary(B::Mul, ar, br)?, cx.binary(B::Mul, ai, bi)?);
    let (ri, ir) = (cx.binary(B::Mul, ar, bi)?, cx.binary(B::Mul, ai, br)?);
    let (real, imaginary) = (cx.binary(B::Sub, rr, ii)?, cx.binary(B::Add, ri, ir)?);
    of(cx, real, imaginary)
}

/// The complex quotient.
pub fn quotient(cx: &mut Lowering, a: Value, b: Value) -> Result {
    let ([ar, ai], [br, bi]) = (parts(cx, a)?, parts(cx, b)?);
    let args = [ar, ai, br, bi];
    let one = |cx: &mut Lowering, imaginary: bool| {
        let mut f = Body::default();
        let [ar, ai, br, bi] = [0, 1, 2, 3].map(|i| f.arg(i));
        let (x, y, op) = if imaginary { (ai, ar, B::Sub) } else { (ar, ai, B::Add) };
        let (x, y) = (f.binary(B::Mul, x, br), f.binary(B::Mul, y, bi));
        let top = f.binary(op, x, y);
        let (r, i) = (f.binary(B::Mul, br, br), f.binary(B::Mul, bi, bi));
        let square = f.binary(B::Add, r, i);
        f.binary(B::Div, top, square);
        cx.map(f.0, &args)
    };
    let (real, imaginary) = (one(cx, false)?, one(cx, true)?);
    of(cx, real, imaginary)
}

/// The modulus.
pub fn absolute(cx: &mut Lowering, x: Value) -> Result {
    let [r, i] = parts(cx, x)?;
    let mut f = Body::default();
    let (r0, i0) = (f.arg(0), f.arg(1));
    let (rr, ii) = (f.binary(B::Mul, r0, r0), f.binary(B::Mul, i0, i0));
    let sum = f.binary(B::Add, rr, ii);
    f.unary(U::Sqrt, sum);
    Ok(cx.map(f.0, &[r, i])?)
}

/// The complex number with modulus `far` and argument `angle`.
pub fn polar(cx: &mut Lowering, far: Value, angle: Value) -> Result {
    let (cos, sin) = (cx.unary(U::Cos, angle)?, cx.unary(U::Sin, angle)?);
    let (real, imaginary) = (cx.binary(B::Mul, far, cos)?, cx.binary(B::Mul, far, sin)?);
    of(cx, real, imaginary)
}

/// The complex exponential eˣ.
pub fn exp(cx: &mut Lowering, x: Value) -> Result {
    let [r, i] = parts(cx, x)?;
    let far = cx.unary(U::Exp, r)?;
    polar(cx, far, i)
}
