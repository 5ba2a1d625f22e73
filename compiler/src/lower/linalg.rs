//! Linear algebra beyond products: matrix factorisations and linear systems.
//!
//! Matrices are the last two axes, and all axes before them are batch axes. Their extents may be symbolic. Types
//! narrower than f32 are computed in f32.

mod cholesky;
mod jacobi;
mod lu;
mod qr;
mod steps;
#[cfg(test)]
mod tests;
mod triangular;

pub use cholesky::{Cholesky, cholesky, cholesky_inverse, cholesky_solve};
pub use jacobi::{Limits, Singular, eigen, exponential, polar, pseudo_inverse, singular, symmetric_root};
pub use lu::{
    Equation, Factors, determinant, inverse, log_determinant, lu_factor, lu_parts, lu_solve, permutation,
    solve,
};
pub use qr::{Applied, Reflections, apply, columns_of, qr, reflections, triangle_of};
pub use triangular::{Triangular, solve_triangular};

use super::{Lowering, OpError, Result};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, UnaryOp, Value};

/// The maximum number of rows of a matrix whose elimination is unrolled; every row becomes a few nodes.
const LARGEST: i64 = 64;

/// Gathers the rows `at` (i64 `[…, n, 1]`) of matrices `[…, m, k]`.
fn rows(cx: &mut Lowering, x: Value, at: Value) -> Result {
    let (row, mut shape) = (cx.rank(x) - 2, cx.shape(x));
    shape[row] = cx.shape(at)[row].clone();
    let index = (0..row + 2)
        .map(|d| {
            if d == row {
                let at = (0..=row).map(Poly::var).chain([Poly::ZERO]).collect();
                GatherAxis::Data { input: 1, at }
            } else {
                GatherAxis::Affine(Poly::var(d))
            }
        })
        .collect();
    Ok(cx.push(Op::Gather { shape, index }, &[x, at])?)
}

/// `len` columns from `start` on.
fn columns(cx: &mut Lowering, x: Value, start: i64, len: i64) -> Result {
    let axis = cx.rank(x) - 1;
    Ok(cx.slice(x, axis, &Poly::constant(start), 1, &Poly::constant(len))?)
}

/// `a·b`, or `b` if there is no `a`.
fn times(cx: &mut Lowering, a: Option<Value>, b: Value) -> Result {
    match a {
        Some(a) => Ok(cx.binary(BinaryOp::Mul, a, b)?),
        None => Ok(b),
    }
}

/// The determinant by elimination with partial pivoting: the row with the largest element in the first column is moved
/// to the front, which flips the sign once for every row it passes, and elimination leaves a matrix that is one row
/// smaller.
///
/// Matrices must have at most 64 rows, and the number must be known while compiling.
pub fn det(cx: &mut Lowering, x: Value) -> Result {
    let (shape, dtype) = (cx.shape(x), cx.dtype(x));
    let Some(batch) = shape.len().checked_sub(2).filter(|_| dtype.is_float()) else {
        return Err(OpError::model(format!("needs matrices, got {}", cx.ty(x))).operand(x));
    };
    let size = match (shape[batch].as_const(), shape[batch + 1].as_const()) {
        (Some(m), Some(n)) if m != n => {
            return Err(OpError::model(format!("needs square matrices, got {}", cx.ty(x))).operand(x));
        }
        (Some(n @ 0..=LARGEST), _) | (None, Some(n @ 0..=LARGEST)) => n,
        (Some(n), _) | (None, Some(n)) => {
            let e = OpError::unsupported(
                format!("matrices of {n} rows: the most are {LARGEST}"),
                "compute this node outside of the model and make its result an input",
            );
            return Err(e.operand(x));
        }
        (None, None) => {
            let e = OpError::symbolic(format!("the size of matrices {} must be known", cx.ty(x)));
            return Err(e.operand(x));
        }
    };
    cx.require_equal(&shape[batch], &shape[batch + 1]);
    if size == 0 {
        return Ok(cx.full(&shape[..batch], Scalar::from_f64(dtype, 1.0))?);
    }
    let mut square = shape[..batch].to_vec();
    square.extend([Dim::from(size), Dim::from(size)]);
    let mut a = cx.view(x, square, (0..batch + 2).map(Poly::var).collect())?;
    if dtype.bits() < 32 {
        a = cx.cast(a, DType::F32)?;
    }
    let wide = cx.dtype(a);
    let mut product = None;
    for m in (3..=size).rev() {
        let first = columns(cx, a, 0, 1)?;
        let magnitude = cx.unary(UnaryOp::Abs, first)?;
        let at = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: batch, last: false }, &[magnitude])?;
        let mut others = shape[..batch].to_vec();
        others.extend([Dim::from(m - 1), Dim::ONE]);
        let mut f = Body::default();
        let (p, i, one) = (f.arg(0), f.index(Poly::var(batch)), f.int(DType::I64, 1));
        let i = f.cast(DType::I64, i);
        let (next, above) = (f.binary(BinaryOp::Add, i, one), f.binary(BinaryOp::Lt, i, p));
        f.select(above, i, next);
        let others = cx.map_to(f.0, &[at], others)?;
        let (row, rest) = (rows(cx, a, at)?, rows(cx, a, others)?);
        let (pivot, below) = (columns(cx, row, 0, 1)?, columns(cx, rest, 0, 1)?);

        let mut f = Body::default();
        let (p, passed, one) = (f.arg(0), f.arg(1), f.int(DType::I64, 1));
        let odd = f.binary(BinaryOp::And, passed, one);
        let odd = f.binary(BinaryOp::Eq, odd, one);
        let negative = f.unary(UnaryOp::Neg, p);
        f.select(odd, negative, p);
        let signed = cx.map(f.0, &[pivot, at])?;
        product = Some(times(cx, product, signed)?);

        // If the column is 0, the determinant is 0.
        let mut f = Body::default();
        let (x, r, b, p, zero) = (f.arg(0), f.arg(1), f.arg(2), f.arg(3), f.number(wide, 0.0));
        let part = f.binary(BinaryOp::Div, b, p);
        let part = f.binary(BinaryOp::Mul, part, r);
        let reduced = f.binary(BinaryOp::Sub, x, part);
        let none = f.binary(BinaryOp::Eq, p, zero);
        f.select(none, zero, reduced);
        let (row, rest) = (columns(cx, row, 1, m - 1)?, columns(cx, rest, 1, m - 1)?);
        a = cx.map(f.0, &[rest, row, below, pivot])?;
    }
    if size > 1 {
        let top = cx.slice(a, batch, &Poly::ZERO, 1, &Dim::ONE)?;
        let bottom = cx.slice(a, batch, &Poly::ONE, 1, &Dim::ONE)?;
        let [p, q, r, s] = [(top, 0), (top, 1), (bottom, 0), (bottom, 1)].map(|(v, i)| columns(cx, v, i, 1));
        let (ps, qr) = (cx.binary(BinaryOp::Mul, p?, s?)?, cx.binary(BinaryOp::Mul, q?, r?)?);
        a = cx.binary(BinaryOp::Sub, ps, qr)?;
    }
    let y = times(cx, product, a)?;
    let y = cx.cast(y, dtype)?;
    Ok(cx.squeeze(y, &[batch, batch + 1])?)
}
