//! QR factorisation by Householder reflections.

use super::steps::{Steps, identity, matrix, pick, together, transposed, wide};
use crate::lower::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp as B, Body, Dim, Poly, ReduceOp, UnaryOp as U, Value};

/// Reflections I − τ·v·vᵀ, one for each of the first min(m, n) columns of m × n matrices.
#[derive(Clone, Copy, Debug)]
pub struct Reflections {
    /// R on and above the diagonal, and the vectors v below it; the element of v on the diagonal is 1.
    pub vectors: Value,
    /// The factors τ.
    pub tau: Value,
}

/// The factorisation A = Q·R, with Q as a product of reflections.
pub fn reflections(cx: &mut Lowering, a: Value) -> Result<Reflections> {
    let (batch, m, n) = matrix(cx, a)?;
    let dtype = cx.dtype(a);
    let a = wide(cx, a)?;
    let (row, column) = (batch, batch + 1);
    let count = if m == n { m.clone() } else { m.min_of(&n, &[]) };
    let loops = Steps { count, reversed: false, carried: &[a], sliced: &[] };
    let done = loops.lower(cx, |cx, s| {
        let (a, j) = (s.carried[0], s.number);
        let t = cx.dtype(a);
        let below = pick(cx, a, column, j)?;
        let alpha = pick(cx, below, row, j)?;
        let mut f = Body::default();
        let (x, j_, i, zero) = (f.arg(0), f.arg(1), f.index(Poly::var(row)), f.number(t, 0.0));
        let square = f.binary(B::Mul, x, x);
        let under = f.binary(B::Gt, i, j_);
        f.select(under, square, zero);
        let shape = cx.shape(below);
        let squares = cx.map_to(f.0, &[below, j], shape)?;
        let tail = cx.reduce(ReduceOp::Sum, squares, &[row], true)?;
        // If all elements below the diagonal are 0, there is no reflection.
        let mut f = Body::default();
        let (al, ta, zero) = (f.arg(0), f.arg(1), f.number(t, 0.0));
        let square = f.binary(B::Mul, al, al);
        let sum = f.binary(B::Add, square, ta);
        let norm = f.unary(U::Sqrt, sum);
        let other = f.unary(U::Neg, norm);
        let negative = f.binary(B::Lt, al, zero);
        let signed = f.select(negative, norm, other);
        let nothing = f.binary(B::Eq, ta, zero);
        f.select(nothing, al, signed);
        let beta = cx.map(f.0, &[alpha, tail])?;
        let mut f = Body::default();
        let (al, be, zero) = (f.arg(0), f.arg(1), f.number(t, 0.0));
        let difference = f.binary(B::Sub, be, al);
        let part = f.binary(B::Div, difference, be);
        let nothing = f.binary(B::Eq, difference, zero);
        f.select(nothing, zero, part);
        let tau = cx.map(f.0, &[alpha, beta])?;
        let mut f = Body::default();
        let (x, al, be, j_) = (f.arg(0), f.arg(1), f.arg(2), f.arg(3));
        let (i, zero, one) = (f.index(Poly::var(row)), f.number(t, 0.0), f.number(t, 1.0));
        let difference = f.binary(B::Sub, al, be);
        let part = f.binary(B::Div, x, difference);
        let some = f.binary(B::Ne, difference, zero);
        let under = f.binary(B::Gt, i, j_);
        let both = f.binary(B::And, under, some);
        let v = f.select(both, part, zero);
        let here = f.binary(B::Eq, i, j_);
        f.select(here, one, v);
        let shape = cx.shape(below);
        let v = cx.map_to(f.0, &[below, alpha, beta, j], shape)?;
        let vx = cx.binary(B::Mul, v, a)?;
        let w = cx.reduce(ReduceOp::Sum, vx, &[row], true)?;
        let w = cx.binary(B::Mul, w, tau)?;
        let mut f = Body::default();
        let [x, v_, w_, be, j_] = std::array::from_fn(|i| f.arg(i as u32));
        let (i, k) = (f.index(Poly::var(row)), f.index(Poly::var(column)));
        let product = f.binary(B::Mul, v_, w_);
        let less = f.binary(B::Sub, x, product);
        let (under, on) = (f.binary(B::Gt, i, j_), f.binary(B::Eq, i, j_));
        let mine = f.select(under, v_, x);
        let mine = f.select(on, be, mine);
        let (right, here) = (f.binary(B::Gt, k, j_), f.binary(B::Eq, k, j_));
        let kept = f.select(here, mine, x);
        f.select(right, less, kept);
        let shape = cx.shape(a);
        let next = cx.map_to(f.0, &[a, v, w, beta, j], shape)?;
        let tau = cx.squeeze(tau, &[row, column])?;
        Ok((vec![next], vec![tau]))
    })?;
    let order: Vec<usize> = (1..=batch).chain([0]).collect();
    let tau = cx.transpose(done[1], &order)?;
    Ok(Reflections { vectors: cx.cast(done[0], dtype)?, tau: cx.cast(tau, dtype)? })
}

/// The way in which Q is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Whether Qᵀ is applied instead of Q.
    pub transposed: bool,
    /// Whether the product is C·Q rather than Q·C.
    pub right: bool,
}

/// The product of C and the matrix Q (m × m) that the reflections represent.
pub fn apply(cx: &mut Lowering, q: &Reflections, c: Value, p: Applied) -> Result {
    if p.right {
        let c = transposed(cx, c)?;
        let y = apply(cx, q, c, Applied { transposed: !p.transposed, right: false })?;
        return transposed(cx, y);
    }
    let dtype = cx.dtype(c);
    let (_, m, _) = matrix(cx, q.vectors)?;
    let (_, rows, _) = matrix(cx, c)?;
    if let (Some(m), Some(n)) = (m.as_const(), rows.as_const())
        && m != n
    {
        return Err(OpError::model(format!("reflections of {m} rows for matrices of {n}")).operand(c));
    }
    cx.require_equal(&m, &rows);
    let Some(axis) = cx.rank(q.tau).checked_sub(1) else {
        return Err(OpError::model(format!("factors of reflections {}", cx.ty(q.tau))).operand(q.tau));
    };
    let count = cx.shape(q.tau)[axis].clone();
    // Only the vectors that have a τ are used.
    let last = cx.rank(q.vectors) - 1;
    let vectors = cx.slice(q.vectors, last, &Poly::ZERO, 1, &count)?;
    let (vectors, c) = together(cx, vectors, c)?;
    let (vectors, c, tau) = (wide(cx, vectors)?, wide(cx, c)?, wide(cx, q.tau)?);
    let row = cx.rank(c) - 2;
    let loops =
        Steps { count, reversed: !p.transposed, carried: &[c], sliced: &[(vectors, row + 1), (tau, axis)] };
    let done = loops.lower(cx, |cx, s| {
        let (c, j) = (s.carried[0], s.number);
        let t = cx.dtype(c);
        let v = cx.unsqueeze(s.slices[0], &[row + 1])?;
        let rank = cx.rank(s.slices[1]);
        let tau = cx.unsqueeze(s.slices[1], &[rank, rank + 1])?;
        let mut f = Body::default();
        let (x, j_, i) = (f.arg(0), f.arg(1), f.index(Poly::var(row)));
        let (zero, one) = (f.number(t, 0.0), f.number(t, 1.0));
        let under = f.binary(B::Gt, i, j_);
        let here = f.binary(B::Eq, i, j_);
        let rest = f.select(under, x, zero);
        f.select(here, one, rest);
        let shape = cx.shape(v);
        let v = cx.map_to(f.0, &[v, j], shape)?;
        let products = cx.binary(B::Mul, v, c)?;
        let w = cx.reduce(ReduceOp::Sum, products, &[row], true)?;
        let w = cx.binary(B::Mul, w, tau)?;
        let product = cx.binary(B::Mul, v, w)?;
        Ok((vec![cx.binary(B::Sub, c, product)?], vec![]))
    })?;
    Ok(cx.cast(done[0], dtype)?)
}

/// The first `columns` columns of Q.
pub fn columns_of(cx: &mut Lowering, q: &Reflections, columns: &Dim) -> Result {
    let (batch, m, _) = matrix(cx, q.vectors)?;
    let mut shape = cx.shape(q.vectors);
    (shape[batch], shape[batch + 1]) = (m, columns.clone());
    let dtype = cx.dtype(q.vectors);
    let one = identity(cx, &shape, dtype)?;
    apply(cx, q, one, Applied::default())
}

/// The first `rows` rows of R.
pub fn triangle_of(cx: &mut Lowering, q: &Reflections, rows: &Dim) -> Result {
    let (batch, ..) = matrix(cx, q.vectors)?;
    let x = cx.slice(q.vectors, batch, &Poly::ZERO, 1, rows)?;
    let mut f = Body::default();
    let (v, i, j) = (f.arg(0), f.index(Poly::var(batch)), f.index(Poly::var(batch + 1)));
    let zero = f.number(cx.dtype(x), 0.0);
    let over = f.binary(B::Le, i, j);
    f.select(over, v, zero);
    Ok(cx.map(f.0, &[x])?)
}

/// Q (m × k) and R (k × n) of m × n matrices, where k is min(m, n), or m if `complete`.
pub fn qr(cx: &mut Lowering, a: Value, complete: bool) -> Result<(Value, Value)> {
    let (_, m, n) = matrix(cx, a)?;
    let k = if complete || m == n { m } else { m.min_of(&n, &[]) };
    let q = reflections(cx, a)?;
    Ok((columns_of(cx, &q, &k)?, triangle_of(cx, &q, &k)?))
}
