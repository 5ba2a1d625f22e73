//! The Cholesky factorisation of symmetric positive definite matrices.

use super::steps::{Steps, first_failure, identity, pick, square, transposed, wide};
use super::triangular::{Triangular, solve_triangular};
use crate::lower::{Lowering, Result};
use wgfc_ir::{BinaryOp as B, Body, Dim, Poly, Scalar, UnaryOp as U, Value};

/// The factors, and for each matrix whether the factorisation succeeded.
pub struct Cholesky {
    /// L with A = L·Lᵀ, or U with A = Uᵀ·U.
    pub factor: Value,
    /// For each matrix (i32) 0, or the order of the first leading minor that is not positive.
    pub info: Value,
}

/// The Cholesky factor of A, of which only the selected triangle is read. If a leading minor is not positive, the
/// factor is invalid.
pub fn cholesky(cx: &mut Lowering, a: Value, upper: bool) -> Result<Cholesky> {
    let (batch, n) = square(cx, a)?;
    let dtype = cx.dtype(a);
    let a = if upper { transposed(cx, a)? } else { a };
    let a = wide(cx, a)?;
    let (row, column) = (batch, batch + 1);
    let mut one = cx.shape(a);
    (one[row], one[column]) = (Dim::ONE, Dim::ONE);
    let none = cx.full(&one, Scalar::from_i64(wgfc_ir::DType::I32, 0))?;
    let loops = Steps { count: n, reversed: false, carried: &[a, none], sliced: &[] };
    let done = loops.lower(cx, |cx, s| {
        let (a, j) = (s.carried[0], s.number);
        let t = cx.dtype(a);
        let below = pick(cx, a, column, j)?;
        let square = pick(cx, below, row, j)?;
        let root = cx.unary(U::Sqrt, square)?;
        // Column j of L; elements above the diagonal are 0.
        let mut f = Body::default();
        let (x, d, j_, i) = (f.arg(0), f.arg(1), f.arg(2), f.index(Poly::var(row)));
        let zero = f.number(t, 0.0);
        let part = f.binary(B::Div, x, d);
        let under = f.binary(B::Gt, i, j_);
        let here = f.binary(B::Eq, i, j_);
        let rest = f.select(under, part, zero);
        f.select(here, d, rest);
        let shape = cx.shape(below);
        let l = cx.map_to(f.0, &[below, root, j], shape)?;
        let across = transposed(cx, l)?;
        let mut f = Body::default();
        let (x, li, lk, j_) = (f.arg(0), f.arg(1), f.arg(2), f.arg(3));
        let k = f.index(Poly::var(column));
        let product = f.binary(B::Mul, li, lk);
        let less = f.binary(B::Sub, x, product);
        let later = f.binary(B::Gt, k, j_);
        let here = f.binary(B::Eq, k, j_);
        let others = f.select(later, less, x);
        f.select(here, li, others);
        let shape = cx.shape(a);
        let next = cx.map_to(f.0, &[a, l, across, j], shape)?;
        let positive = cx.binary_scalar(B::Gt, square, 0.0)?;
        let failed = cx.unary(U::Not, positive)?;
        Ok((vec![next, first_failure(cx, s.carried[1], failed, j)?], vec![]))
    })?;
    let mut f = Body::default();
    let (x, i, k) = (f.arg(0), f.index(Poly::var(row)), f.index(Poly::var(column)));
    let zero = f.number(cx.dtype(a), 0.0);
    let lower = f.binary(B::Ge, i, k);
    f.select(lower, x, zero);
    let l = cx.map(f.0, &[done[0]])?;
    let l = cx.cast(l, dtype)?;
    let factor = if upper { transposed(cx, l)? } else { l };
    Ok(Cholesky { factor, info: cx.squeeze(done[1], &[row, column])? })
}

/// Solves A·X = B, given the Cholesky factor of A.
pub fn cholesky_solve(cx: &mut Lowering, b: Value, factor: Value, upper: bool) -> Result {
    let plain = Triangular { upper, ..Triangular::default() };
    let flipped = Triangular { transposed: true, ..plain };
    let (first, second) = if upper { (flipped, plain) } else { (plain, flipped) };
    let y = solve_triangular(cx, factor, b, first)?;
    solve_triangular(cx, factor, y, second)
}

/// The inverse of A, given the Cholesky factor of A.
pub fn cholesky_inverse(cx: &mut Lowering, factor: Value, upper: bool) -> Result {
    square(cx, factor)?;
    let shape = cx.shape(factor);
    let dtype = cx.dtype(factor);
    let one = identity(cx, &shape, dtype)?;
    cholesky_solve(cx, one, factor, upper)
}
