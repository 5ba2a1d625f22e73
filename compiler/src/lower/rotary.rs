//! Rotary position embeddings.

use super::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, ScalarFn, ScalarNode as N, Value};

/// `a·c + s·b·d` with `s` = ±1, rounded once.
fn turned(cx: &mut Lowering, sign: B, [a, c, b, d]: [Value; 4]) -> Result {
    let dtype = cx.dtype(a);
    let mut f = ScalarFn::default();
    let arg = |f: &mut ScalarFn, i: u32, v: Value, cx: &Lowering| {
        let x = f.push(N::Arg(i));
        if cx.dtype(v) == DType::F32 { x } else { f.push(N::Cast(DType::F32, x)) }
    };
    let (x, y) = (arg(&mut f, 0, a, cx), arg(&mut f, 1, c, cx));
    let left = f.push(N::Binary(B::Mul, x, y));
    let (x, y) = (arg(&mut f, 2, b, cx), arg(&mut f, 3, d, cx));
    let right = f.push(N::Binary(B::Mul, x, y));
    let sum = f.push(N::Binary(sign, left, right));
    if dtype != DType::F32 {
        f.push(N::Cast(dtype, sum));
    }
    let shape = cx.shape(a);
    Ok(cx.map_to(f, &[a, c, b, d], shape)?)
}

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `(i, i + r)`.
    Halves,
    /// `(2i, 2i + 1)`.
    Neighbours,
    /// `(2i, 2i + 1)`, which become elements `(i, i + r)` of the result: enough where queries and keys are reordered alike, as their
    /// dot products stay the same.
    NeighboursToHalves,
}

impl Pairs {
    /// Neighbours if `interleaved`, else halves.
    pub fn of(interleaved: bool) -> Pairs {
        if interleaved { Pairs::Neighbours } else { Pairs::Halves }
    }
}

/// Rotates the first `2 · r` elements of each head of `x`, `[batch, heads, s, d]`, by angles whose
/// cosine and sine broadcast to `[batch, heads, s, r]`.
pub fn rotate(cx: &mut Lowering, x: Value, cos: Value, sin: Value, pairs: Pairs) -> Result {
    let shape = cx.shape(x);
    let (r, d) = (cx.shape(cos)[3].clone(), shape[3].clone());
    match (r.as_const(), d.as_const()) {
        (Some(r), Some(d)) if 2 * r <= d => {}
        _ => {
            let e = format!("rotates {} elements of heads of {d}", &r * 2);
            return Err(OpError::model(e));
        }
    }
    let (first, second, step) =
        if pairs == Pairs::Halves { (Poly::ZERO, r.clone(), 1) } else { (Poly::ZERO, Poly::ONE, 2) };
    let a = cx.slice(x, 3, &first, step, &r)?;
    let b = cx.slice(x, 3, &second, step, &r)?;
    let real = turned(cx, B::Sub, [a, cos, b, sin])?;
    let imaginary = turned(cx, B::Add, [b, cos, a, sin])?;
    let turned = if pairs == Pairs::Neighbours {
        let pair = [cx.unsqueeze(real, &[4])?, cx.unsqueeze(imaginary, &[4])?];
        let both = cx.concat(&pair, 4)?;
        let mut flat = shape.clone();
        flat[3] = &r * 2;
        vec![cx.reshape(both, flat)?]
    } else {
        vec![real, imaginary]
    };
    let mut parts = turned;
    let rest = &d - &(&r * 2);
    if !rest.is(0) {
        parts.push(cx.slice(x, 3, &(&r * 2), 1, &rest)?);
    }
    Ok(cx.concat(&parts, 3)?)
}

/// The rows of a table `[positions, r]` at the positions `[batch, s]`, as `[batch, 1, s, r]`.
pub fn rows(cx: &mut Lowering, table: Value, at: Value) -> Result {
    if cx.rank(table) != 2 || cx.rank(at) != 2 {
        let e = format!("needs a table and positions of rank 2, got {} and {}", cx.ty(table), cx.ty(at));
        return Err(OpError::model(e));
    }
    let rows = cx.take(table, at, 0)?;
    Ok(cx.unsqueeze(rows, &[1])?)
}

/// The positions `first + i`, `[batch, s]`; `first` has one element.
pub fn consecutive(cx: &mut Lowering, first: Value, batch: &Dim, s: &Dim) -> Result {
    if let [n] = &cx.shape(first)[..] {
        if n.as_const().is_some_and(|n| n != 1) {
            let e = format!("needs one position, or one for each element, got {}", cx.ty(first));
            return Err(OpError::model(e).operand(first));
        }
        cx.require_equal(n, &Dim::ONE);
    }
    let place = vec![Poly::ZERO; cx.rank(first)];
    let at = cx.view(first, vec![Dim::ONE], place)?;
    let dtype = cx.dtype(at);
    let steps = cx.iota(&[batch.clone(), s.clone()], Poly::var(1), dtype)?;
    Ok(cx.binary(B::Add, at, steps)?)
}
