//! LU factorisation with partial pivoting, linear systems, inverses and determinants.

use super::steps::{Steps, first_failure, identity, matrix, pick, square, together, transposed, wide};
use super::triangular::{Triangular, solve_triangular};
use crate::lower::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, UnaryOp as U, Value};

/// The factorisation P·A = L·U of m × n matrices, with L and U in one matrix.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// U on and above the diagonal, L below it; the diagonal of L is all ones.
    pub lu: Value,
    /// i32: for each of the first min(m, n) rows in turn, the row with which it was exchanged, counted from 1.
    pub pivots: Value,
    /// i32 for each matrix: 0, or the index of the first zero pivot, counted from 1.
    pub info: Value,
}

/// The number of pivots, min(m, n).
fn smaller(m: &Dim, n: &Dim) -> Dim {
    if m == n { m.clone() } else { m.min_of(n, &[]) }
}

/// The LU factors of matrices. Without `pivoting` rows are not exchanged, and each pivot is its own row number.
pub fn lu_factor(cx: &mut Lowering, a: Value, pivoting: bool) -> Result<Factors> {
    let (batch, m, n) = matrix(cx, a)?;
    let dtype = cx.dtype(a);
    let a = wide(cx, a)?;
    let (row, column) = (batch, batch + 1);
    let mut one = cx.shape(a);
    (one[row], one[column]) = (Dim::ONE, Dim::ONE);
    let none = cx.full(&one, Scalar::from_i64(DType::I32, 0))?;
    let count = smaller(&m, &n);
    let loops = Steps { count, reversed: false, carried: &[a, none], sliced: &[] };
    let done = loops.lower(cx, |cx, s| {
        let (a, j) = (s.carried[0], s.number);
        let t = cx.dtype(a);
        let below = pick(cx, a, column, j)?;
        let p = if pivoting {
            let mut f = Body::default();
            let (x, j_, i, least) = (f.arg(0), f.arg(1), f.index(Poly::var(row)), f.number(t, -1.0));
            let size = f.unary(U::Abs, x);
            let open = f.binary(B::Ge, i, j_);
            f.select(open, size, least);
            let shape = cx.shape(below);
            let size = cx.map_to(f.0, &[below, j], shape)?;
            let at = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: row, last: false }, &[size])?;
            cx.cast(at, DType::I32)?
        } else {
            let shape = cx.shape(s.carried[1]);
            cx.expand(j, &shape)?
        };
        let (mine, other) = (pick(cx, a, row, p)?, pick(cx, a, row, j)?);
        let (pivot, first) = (pick(cx, mine, column, j)?, pick(cx, other, column, j)?);
        // The multiples of the pivot row that are subtracted from the rows below.
        let mut f = Body::default();
        let (x, pivot_, first_) = (f.arg(0), f.arg(1), f.arg(2));
        let (p_, j_, i, zero) = (f.arg(3), f.arg(4), f.index(Poly::var(row)), f.number(t, 0.0));
        let exchanged = f.binary(B::Eq, i, p_);
        let x = f.select(exchanged, first_, x);
        let part = f.binary(B::Div, x, pivot_);
        let under = f.binary(B::Gt, i, j_);
        let some = f.binary(B::Ne, pivot_, zero);
        let both = f.binary(B::And, under, some);
        f.select(both, part, zero);
        let shape = cx.shape(below);
        let factors = cx.map_to(f.0, &[below, pivot, first, p, j], shape)?;
        let mut f = Body::default();
        let [x, mine_, other_, factor, p_, j_] = std::array::from_fn(|i| f.arg(i as u32));
        let (i, k) = (f.index(Poly::var(row)), f.index(Poly::var(column)));
        let (is_p, is_j) = (f.binary(B::Eq, i, p_), f.binary(B::Eq, i, j_));
        let x = f.select(is_p, other_, x);
        let x = f.select(is_j, mine_, x);
        let product = f.binary(B::Mul, factor, mine_);
        let less = f.binary(B::Sub, x, product);
        let (right, here) = (f.binary(B::Gt, k, j_), f.binary(B::Eq, k, j_));
        let kept = f.select(here, factor, x);
        let new = f.select(right, less, kept);
        let under = f.binary(B::Gt, i, j_);
        f.select(under, new, x);
        let shape = cx.shape(a);
        let next = cx.map_to(f.0, &[a, mine, other, factors, p, j], shape)?;
        let failed = cx.binary_scalar(B::Eq, pivot, 0.0)?;
        let info = first_failure(cx, s.carried[1], failed, j)?;
        let place = cx.binary_scalar(B::Add, p, 1.0)?;
        let place = cx.squeeze(place, &[row, column])?;
        Ok((vec![next, info], vec![place]))
    })?;
    // Moves the pivot axis behind the batch axes.
    let order: Vec<usize> = (1..=batch).chain([0]).collect();
    Ok(Factors {
        lu: cx.cast(done[0], dtype)?,
        pivots: cx.transpose(done[2], &order)?,
        info: cx.squeeze(done[1], &[row, column])?,
    })
}

/// Applies the row exchanges of the pivots, or reverts them if `back`.
fn exchanged(cx: &mut Lowering, b: Value, pivots: Value, back: bool) -> Result {
    let (row, ..) = matrix(cx, b)?;
    let shape = cx.shape(pivots);
    let Some(count) =
        shape.last().cloned().filter(|_| cx.dtype(pivots).is_int() && cx.dtype(pivots) != DType::Bool)
    else {
        return Err(OpError::model(format!("pivots of type {}", cx.ty(pivots))).operand(pivots));
    };
    let pivots = cx.cast(pivots, DType::I32)?;
    let axis = shape.len() - 1;
    let loops = Steps { count, reversed: back, carried: &[b], sliced: &[(pivots, axis)] };
    let done = loops.lower(cx, |cx, s| {
        let (b, j) = (s.carried[0], s.number);
        let p = cx.binary_scalar(B::Sub, s.slices[0], 1.0)?;
        let rank = cx.rank(p);
        let p = cx.unsqueeze(p, &[rank, rank + 1])?;
        let (mine, other) = (pick(cx, b, row, p)?, pick(cx, b, row, j)?);
        let mut f = Body::default();
        let [x, mine_, other_, p_, j_] = std::array::from_fn(|i| f.arg(i as u32));
        let i = f.index(Poly::var(row));
        let (is_p, is_j) = (f.binary(B::Eq, i, p_), f.binary(B::Eq, i, j_));
        let x = f.select(is_p, other_, x);
        f.select(is_j, mine_, x);
        let shape = cx.shape(b);
        Ok((vec![cx.map_to(f.0, &[b, mine, other, p, j], shape)?], vec![]))
    })?;
    Ok(done[0])
}

/// The permutation matrix P (of type `dtype`) with A = P·L·U, from the pivots of m × n matrices.
pub fn permutation(cx: &mut Lowering, pivots: Value, m: &Dim, dtype: DType) -> Result {
    let mut shape = cx.shape(pivots);
    shape.pop();
    shape.extend([m.clone(), m.clone()]);
    let one = identity(cx, &shape, DType::F32)?;
    let rows = exchanged(cx, one, pivots, false)?;
    let p = transposed(cx, rows)?;
    Ok(cx.cast(p, dtype)?)
}

/// Splits combined factors into L (m × k) and U (k × n), where k = min(m, n).
pub fn lu_parts(cx: &mut Lowering, lu: Value) -> Result<(Value, Value)> {
    let (batch, m, n) = matrix(cx, lu)?;
    let (row, column) = (batch, batch + 1);
    let k = smaller(&m, &n);
    let part = |cx: &mut Lowering, axis: usize, lower: bool| -> Result {
        let x = cx.slice(lu, axis, &Poly::ZERO, 1, &k)?;
        let mut f = Body::default();
        let (v, i, j) = (f.arg(0), f.index(Poly::var(row)), f.index(Poly::var(column)));
        let (zero, one) = (f.number(cx.dtype(x), 0.0), f.number(cx.dtype(x), 1.0));
        if lower {
            let under = f.binary(B::Gt, i, j);
            let same = f.binary(B::Eq, i, j);
            let rest = f.select(under, v, zero);
            f.select(same, one, rest);
        } else {
            let over = f.binary(B::Le, i, j);
            f.select(over, v, zero);
        }
        Ok(cx.map(f.0, &[x])?)
    };
    Ok((part(cx, column, true)?, part(cx, row, false)?))
}

/// The form of the linear system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Equation {
    /// Whether A is replaced by its transpose.
    pub transposed: bool,
    /// Whether the system is X·A = B rather than A·X = B.
    pub right: bool,
}

/// Solves A·X = B, given the LU factors of A.
pub fn lu_solve(cx: &mut Lowering, lu: Value, pivots: Value, b: Value, p: Equation) -> Result {
    if p.right {
        let b = transposed(cx, b)?;
        let x = lu_solve(cx, lu, pivots, b, Equation { transposed: !p.transposed, right: false })?;
        return transposed(cx, x);
    }
    square(cx, lu)?;
    let dtype = cx.dtype(b);
    let (lu, b) = together(cx, lu, b)?;
    let (lu, b) = (wide(cx, lu)?, wide(cx, b)?);
    // The pivots broadcast over missing batch axes.
    let lower = Triangular { unit: true, transposed: p.transposed, ..Triangular::default() };
    let upper = Triangular { upper: true, transposed: p.transposed, ..Triangular::default() };
    let x = if p.transposed {
        let y = solve_triangular(cx, lu, b, upper)?;
        let z = solve_triangular(cx, lu, y, lower)?;
        exchanged(cx, z, pivots, true)?
    } else {
        let b = exchanged(cx, b, pivots, false)?;
        let y = solve_triangular(cx, lu, b, lower)?;
        solve_triangular(cx, lu, y, upper)?
    };
    Ok(cx.cast(x, dtype)?)
}

/// Solves A·X = B; also returns the LU factors of A.
pub fn solve(cx: &mut Lowering, a: Value, b: Value, right: bool) -> Result<(Value, Factors)> {
    square(cx, a)?;
    let f = lu_factor(cx, a, true)?;
    let x = lu_solve(cx, f.lu, f.pivots, b, Equation { transposed: false, right })?;
    Ok((x, f))
}

/// The inverse, and for each matrix (i32) 0 or the index of the first zero pivot, counted from 1.
pub fn inverse(cx: &mut Lowering, a: Value) -> Result<(Value, Value)> {
    square(cx, a)?;
    let (shape, dtype) = (cx.shape(a), cx.dtype(a));
    let one = identity(cx, &shape, dtype)?;
    let (x, f) = solve(cx, a, one, false)?;
    Ok((x, f.info))
}

/// The signs and the elements of the diagonal, from which the determinant is computed.
struct Diagonal {
    sign: Value,
    elements: Value,
}

fn diagonal(cx: &mut Lowering, f: &Factors) -> Result<Diagonal> {
    let (batch, n) = square(cx, f.lu)?;
    let lu = wide(cx, f.lu)?;
    let t = cx.dtype(lu);
    let mut shape = cx.shape(lu);
    shape.truncate(batch);
    shape.push(n);
    let index = (0..=batch).chain([batch]).map(Poly::var).collect();
    let elements = cx.view(lu, shape, index)?;
    // Each exchange of two rows flips the sign.
    let mut g = Body::default();
    let (p, x, i, one) = (g.arg(0), g.arg(1), g.index(Poly::var(batch)), g.i32(1));
    let here = g.binary(B::Add, i, one);
    let moved = g.binary(B::Ne, p, here);
    let sign = g.unary(U::Sign, x);
    let other = g.unary(U::Neg, sign);
    g.select(moved, other, sign);
    let signs = cx.map(g.0, &[f.pivots, elements])?;
    let sign = cx.reduce(ReduceOp::Prod, signs, &[batch], false)?;
    debug_assert_eq!(cx.dtype(sign), t);
    Ok(Diagonal { sign, elements })
}

/// The determinant, given the LU factors.
pub fn determinant(cx: &mut Lowering, f: &Factors) -> Result {
    let dtype = cx.dtype(f.lu);
    let d = diagonal(cx, f)?;
    let size = cx.unary(U::Abs, d.elements)?;
    let last = cx.rank(size) - 1;
    let size = cx.reduce(ReduceOp::Prod, size, &[last], false)?;
    let y = cx.binary(B::Mul, d.sign, size)?;
    Ok(cx.cast(y, dtype)?)
}

/// The sign of the determinant and the logarithm of its magnitude, given the LU factors.
pub fn log_determinant(cx: &mut Lowering, f: &Factors) -> Result<(Value, Value)> {
    let dtype = cx.dtype(f.lu);
    let d = diagonal(cx, f)?;
    let size = cx.unary(U::Abs, d.elements)?;
    let log = cx.unary(U::Log, size)?;
    let last = cx.rank(log) - 1;
    let sum = cx.reduce(ReduceOp::Sum, log, &[last], false)?;
    Ok((cx.cast(d.sign, dtype)?, cx.cast(sum, dtype)?))
}
