//! Triangular linear systems.

use super::steps::{Steps, matrix, pick, square, together, transposed, wide};
use crate::lower::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp as B, Body, Poly, Value};

/// The triangle of a matrix that is used, and the side of the unknowns on which the matrix stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triangular {
    /// Whether the upper triangle is used rather than the lower one.
    pub upper: bool,
    /// Whether the triangle is transposed.
    pub transposed: bool,
    /// Whether the diagonal counts as ones and is not read.
    pub unit: bool,
    /// Whether the system is X·A = B rather than A·X = B.
    pub right: bool,
}

/// Solves A·X = B by substitution; batch axes broadcast. Only the selected triangle of A is read.
pub fn solve_triangular(cx: &mut Lowering, a: Value, b: Value, p: Triangular) -> Result {
    if p.right {
        // Aᵀ·Xᵀ = Bᵀ.
        let b = transposed(cx, b)?;
        let left = Triangular { transposed: !p.transposed, right: false, ..p };
        let x = solve_triangular(cx, a, b, left)?;
        return transposed(cx, x);
    }
    let (_, n) = square(cx, a)?;
    let (_, m, _) = matrix(cx, b)?;
    let dtype = cx.dtype(a);
    if cx.dtype(b) != dtype {
        return Err(OpError::model(format!("operands of types {} and {}", cx.ty(a), cx.ty(b))).operand(b));
    }
    if let (Some(n), Some(m)) = (n.as_const(), m.as_const())
        && n != m
    {
        let e = format!("right sides of {m} rows for matrices of {n} columns");
        return Err(OpError::model(e).operand(b));
    }
    cx.require_equal(&n, &m);
    let (a, b) = together(cx, a, b)?;
    let (a, b) = (wide(cx, a)?, wide(cx, b)?);
    let row = cx.rank(a) - 2;
    let upper = p.upper != p.transposed;
    let columns = if p.transposed { row } else { row + 1 };
    let loops = Steps { count: n, reversed: upper, carried: &[b], sliced: &[(a, columns)] };
    let done = loops.lower(cx, |cx, s| {
        let (x, j) = (s.carried[0], s.number);
        let t = cx.dtype(x);
        // Column j of A as an `[…, n, 1]` column.
        let axis = cx.rank(s.slices[0]);
        let column = cx.unsqueeze(s.slices[0], &[axis])?;
        let mut mine = pick(cx, x, row, j)?;
        if !p.unit {
            let diagonal = pick(cx, column, row, j)?;
            mine = cx.binary(B::Div, mine, diagonal)?;
        }
        let mut f = Body::default();
        let (old, c, m, j_, i) = (f.arg(0), f.arg(1), f.arg(2), f.arg(3), f.index(Poly::var(row)));
        let product = f.binary(B::Mul, c, m);
        let less = f.binary(B::Sub, old, product);
        let after = f.binary(if upper { B::Lt } else { B::Gt }, i, j_);
        let here = f.binary(B::Eq, i, j_);
        let others = f.select(after, less, old);
        f.select(here, m, others);
        debug_assert_eq!(t, cx.dtype(mine));
        let shape = cx.shape(x);
        Ok((vec![cx.map_to(f.0, &[x, column, mine, j], shape)?], vec![]))
    })?;
    Ok(cx.cast(done[0], dtype)?)
}
