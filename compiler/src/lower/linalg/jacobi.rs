//! Eigenvalues of symmetric matrices and singular values by Jacobi rotations.
//!
//! In each round the columns are paired, and all pairs are rotated at once. A sweep is a sequence of rounds in which
//! each column is paired with each other one. The off-diagonal elements shrink quadratically: [`SWEEPS`] sweeps are
//! enough for matrices of some hundred columns in f32. Singular values are the norms of the columns after rotations
//! from the right have made them orthogonal (one-sided Jacobi, Hestenes), so that small ones are as accurate as large
//! ones.
//!
//! Vectors are unique only for distinct values, and only up to their signs, which may differ from those of LAPACK.

use super::steps::{Steps, identity, matrix, square, transposed, wide};
use super::{qr, rows};
use crate::lower::{Lowering, Result};
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, UnaryOp as U, Value};

/// The number of sweeps: cyclic orders converge in 6 to 10 sweeps for f32.
const SWEEPS: i64 = 12;

/// The number of rounds in a sweep over `n` columns. If `n` is odd, one column is unpaired in each round.
fn rounds(n: &Dim) -> Dim {
    &(&n.ceil_div(2) * 2) - 1
}

/// The partner of column `i` in the round of step `step`, or `i` itself: pairs satisfy i + j = 2·round (mod rounds),
/// and the column left over is paired with the last one.
fn partner(f: &mut Body, i: u32, step: u32, n: &Dim) -> u32 {
    let (all, end) = (f.index(rounds(n)), f.index(n.clone()));
    let round = f.binary(B::Rem, step, all);
    let twice = f.binary(B::Add, round, round);
    let sum = f.binary(B::Add, twice, all);
    let j = f.binary(B::Sub, sum, i);
    let j = f.binary(B::Rem, j, all);
    let alone = f.binary(B::Eq, j, i);
    let j = f.select(alone, all, j);
    let is_last = f.binary(B::Eq, i, all);
    let j = f.select(is_last, round, j);
    let there = f.binary(B::Lt, j, end);
    f.select(there, j, i)
}

/// For each row of square matrices (or of rows `[…, 1, n]`, which are broadcast) the element in the column with the
/// row's number, or in the column of its partner if a step is given: `[…, n, 1]`.
fn of_rows(cx: &mut Lowering, x: Value, n: &Dim, step: Option<Value>) -> Result {
    let (row, column) = (cx.rank(x) - 2, cx.rank(x) - 1);
    let mut f = Body::default();
    let (v, i, j) = (f.arg(0), f.index(Poly::var(row)), f.index(Poly::var(column)));
    let wanted = match step {
        None => i,
        Some(_) => {
            let step = f.arg(1);
            partner(&mut f, i, step, n)
        }
    };
    let (zero, here) = (f.number(cx.dtype(x), 0.0), f.binary(B::Eq, j, wanted));
    f.select(here, v, zero);
    let mut shape = cx.shape(x);
    shape[row] = n.clone();
    let args: Vec<Value> = [x].into_iter().chain(step).collect();
    let one = cx.map_to(f.0, &args, shape)?;
    Ok(cx.reduce(ReduceOp::Sum, one, &[column], true)?)
}

/// Symmetric matrices built from one triangle, the upper or the lower.
fn mirrored(cx: &mut Lowering, a: Value, upper: bool) -> Result {
    let row = cx.rank(a) - 2;
    let flipped = transposed(cx, a)?;
    let mut f = Body::default();
    let (x, y, i, j) = (f.arg(0), f.arg(1), f.index(Poly::var(row)), f.index(Poly::var(row + 1)));
    let own = f.binary(if upper { B::Le } else { B::Ge }, i, j);
    f.select(own, x, y);
    Ok(cx.map(f.0, &[a, flipped])?)
}

/// The rotations J of a round for which the elements of Jᵀ·S·J at each pair are zero, for symmetric matrices S.
fn rotations(cx: &mut Lowering, s: Value, step: Value) -> Result {
    let (batch, n) = square(cx, s)?;
    let t = cx.dtype(s);
    let (row, column) = (batch, batch + 1);
    let own = of_rows(cx, s, &n, None)?;
    // Both columns of a pair must use the same off-diagonal element, or they would rotate by different angles.
    let even = mirrored(cx, s, true)?;
    let both = of_rows(cx, even, &n, Some(step))?;
    let flat = transposed(cx, own)?;
    let other = of_rows(cx, flat, &n, Some(step))?;
    let mut f = Body::default();
    let [own_, other_, both_, step_] = std::array::from_fn(|i| f.arg(i as u32));
    let (i, zero, one, two) = (f.index(Poly::var(row)), f.number(t, 0.0), f.number(t, 1.0), f.number(t, 2.0));
    let p = partner(&mut f, i, step_, &n);
    let is_first = f.binary(B::Lt, i, p);
    let difference = f.binary(B::Sub, other_, own_);
    let opposite = f.unary(U::Neg, difference);
    let difference = f.select(is_first, difference, opposite);
    let twice = f.binary(B::Mul, both_, two);
    let zeta = f.binary(B::Div, difference, twice);
    let size = f.unary(U::Abs, zeta);
    let square = f.binary(B::Mul, zeta, zeta);
    let square = f.binary(B::Add, square, one);
    let root = f.unary(U::Sqrt, square);
    let sum = f.binary(B::Add, size, root);
    let tangent = f.binary(B::Div, one, sum);
    let negative = f.binary(B::Lt, zeta, zero);
    let opposite = f.unary(U::Neg, tangent);
    let tangent = f.select(negative, opposite, tangent);
    let (alone, done) = (f.binary(B::Eq, p, i), f.binary(B::Eq, both_, zero));
    let nothing = f.binary(B::Or, alone, done);
    f.select(nothing, zero, tangent);
    let shape = cx.shape(own);
    let tangent = cx.map_to(f.0, &[own, other, both, step], shape)?;
    let mut f = Body::default();
    let (x, one) = (f.arg(0), f.number(t, 1.0));
    let square = f.binary(B::Mul, x, x);
    let square = f.binary(B::Add, square, one);
    let root = f.unary(U::Sqrt, square);
    f.binary(B::Div, one, root);
    let cosine = cx.map(f.0, &[tangent])?;
    let sine = cx.binary(B::Mul, tangent, cosine)?;
    let mut f = Body::default();
    let (c, s_, step_) = (f.arg(0), f.arg(1), f.arg(2));
    let (i, j, zero) = (f.index(Poly::var(row)), f.index(Poly::var(column)), f.number(t, 0.0));
    let p = partner(&mut f, i, step_, &n);
    let is_first = f.binary(B::Lt, i, p);
    let opposite = f.unary(U::Neg, s_);
    let signed = f.select(is_first, s_, opposite);
    let (on, met) = (f.binary(B::Eq, i, j), f.binary(B::Eq, j, p));
    let rest = f.select(met, signed, zero);
    f.select(on, c, rest);
    let shape = cx.shape(s);
    Ok(cx.map_to(f.0, &[cosine, sine, step], shape)?)
}

/// Sorts the values `[…, n]`, and the columns of the matrices in the same order.
fn sorted(
    cx: &mut Lowering,
    values: Value,
    largest: bool,
    matrices: &[Value],
) -> Result<(Value, Vec<Value>)> {
    let axis = cx.rank(values) - 1;
    let n = cx.shape(values)[axis].clone();
    let node = cx.push(Op::TopK { axis, k: n, largest }, &[values])?.node;
    let [values, order] = [0, 1].map(|port| Value { node, port });
    let mut out = vec![];
    for m in matrices {
        // Columns are gathered as rows of the transpose, because a gather reads whole rows.
        let flat = transposed(cx, *m)?;
        let at = cx.unsqueeze(order, &[axis + 1])?;
        let picked = rows(cx, flat, at)?;
        out.push(transposed(cx, picked)?);
    }
    Ok((values, out))
}

/// The eigenvalues `[…, n]` of symmetric matrices in ascending order, and their eigenvectors as columns. Only the
/// selected triangle is read.
pub fn eigen(cx: &mut Lowering, a: Value, upper: bool) -> Result<(Value, Value)> {
    let (batch, n) = square(cx, a)?;
    let dtype = cx.dtype(a);
    if n.is(0) {
        let shape = cx.shape(a);
        return Ok((cx.full(&shape[..batch + 1], Scalar::from_f64(dtype, 0.0))?, a));
    }
    let a = wide(cx, a)?;
    let a = mirrored(cx, a, upper)?;
    let shape = cx.shape(a);
    let t = cx.dtype(a);
    let v = identity(cx, &shape, t)?;
    let loops = Steps { count: &rounds(&n) * SWEEPS, reversed: false, carried: &[a, v], sliced: &[] };
    let done = loops.lower(cx, |cx, s| {
        let (a, v) = (s.carried[0], s.carried[1]);
        let j = rotations(cx, a, s.number)?;
        let turned = transposed(cx, j)?;
        let right = cx.matmul(a, j)?;
        Ok((vec![cx.matmul(turned, right)?, cx.matmul(v, j)?], vec![]))
    })?;
    let values = of_rows(cx, done[0], &n, None)?;
    let values = cx.squeeze(values, &[batch + 1])?;
    let (values, vectors) = sorted(cx, values, false, &[done[1]])?;
    Ok((cx.cast(values, dtype)?, cx.cast(vectors[0], dtype)?))
}

/// The singular value decomposition A = U·diag(S)·Vᵀ.
#[derive(Clone, Copy, Debug)]
pub struct Singular {
    /// U: `[…, m, k]` with k = min(m, n), or `[…, m, m]` if full.
    pub u: Value,
    /// The singular values in descending order, `[…, k]`.
    pub s: Value,
    /// Vᵀ: `[…, k, n]`, or `[…, n, n]` if full.
    pub vt: Value,
}

/// The singular value decomposition; if `full`, with complete orthogonal bases U and V.
pub fn singular(cx: &mut Lowering, a: Value, full: bool) -> Result<Singular> {
    let (batch, m, n) = matrix(cx, a)?;
    let (dtype, shape) = (cx.dtype(a), cx.shape(a));
    if m.is(0) || n.is(0) {
        let mut part = |rows: &Dim, columns: &Dim| -> Result {
            let shape = [&shape[..batch], &[rows.clone(), columns.clone()]].concat();
            identity(cx, &shape, dtype)
        };
        let (u, vt) =
            (part(&m, if full { &m } else { &Dim::ZERO })?, part(if full { &n } else { &Dim::ZERO }, &n)?);
        let none = [&shape[..batch], &[Dim::ZERO]].concat();
        return Ok(Singular { u, s: cx.full(&none, Scalar::from_f64(dtype, 0.0))?, vt });
    }
    // Rotations act on the shorter side, so matrices with fewer rows than columns are transposed.
    let is_low = m != n && m.min_of(&n, &[]) == m;
    if is_low {
        let flipped = transposed(cx, a)?;
        let t = singular(cx, flipped, full)?;
        return Ok(Singular { u: transposed(cx, t.vt)?, s: t.s, vt: transposed(cx, t.u)? });
    }
    let a = wide(cx, a)?;
    let t = cx.dtype(a);
    // Scales the elements so that their squares neither overflow nor underflow.
    let size = cx.unary(U::Abs, a)?;
    let most = cx.reduce(ReduceOp::Max, size, &[batch, batch + 1], true)?;
    let mut f = Body::default();
    let (x, zero, one) = (f.arg(0), f.number(t, 0.0), f.number(t, 1.0));
    let none = f.binary(B::Eq, x, zero);
    f.select(none, one, x);
    let scale = cx.map(f.0, &[most])?;
    let a = cx.binary(B::Div, a, scale)?;
    let square_shape = [&shape[..batch], &[n.clone(), n.clone()]].concat();
    let v = identity(cx, &square_shape, t)?;
    let loops = Steps { count: &rounds(&n) * SWEEPS, reversed: false, carried: &[a, v], sliced: &[] };
    let done = loops.lower(cx, |cx, s| {
        let (w, v) = (s.carried[0], s.carried[1]);
        let turned = transposed(cx, w)?;
        let gram = cx.matmul(turned, w)?;
        let j = rotations(cx, gram, s.number)?;
        Ok((vec![cx.matmul(w, j)?, cx.matmul(v, j)?], vec![]))
    })?;
    let squares = cx.binary(B::Mul, done[0], done[0])?;
    let lengths = cx.reduce(ReduceOp::Sum, squares, &[batch], false)?;
    let lengths = cx.unary(U::Sqrt, lengths)?;
    let (s, parts) = sorted(cx, lengths, true, &done[..2])?;
    let (w, v) = (parts[0], parts[1]);
    let u = left(cx, w, s, full)?;
    let scale = cx.squeeze(scale, &[batch + 1])?;
    let s = cx.binary(B::Mul, s, scale)?;
    let vt = transposed(cx, v)?;
    Ok(Singular { u: cx.cast(u, dtype)?, s: cx.cast(s, dtype)?, vt: cx.cast(vt, dtype)? })
}

/// Normalises orthogonal columns `w` (m × n) of lengths `s`. Columns that are nearly 0 relative to the first one, and
/// the additional columns of a `full` basis, are replaced by columns of the orthogonal matrix of Householder
/// reflections, which are orthogonal to all others.
fn left(cx: &mut Lowering, w: Value, s: Value, full: bool) -> Result {
    let (batch, m, n) = matrix(cx, w)?;
    let t = cx.dtype(w);
    let s = cx.unsqueeze(s, &[batch])?;
    let first = cx.reduce(ReduceOp::Max, s, &[batch + 1], true)?;
    let mut f = Body::default();
    let (x, s_, most) = (f.arg(0), f.arg(1), f.arg(2));
    let (rows, little, zero) = (f.index(m.clone()), f.number(t, f64::from(f32::EPSILON)), f.number(t, 0.0));
    let rows = f.cast(t, rows);
    let least = f.binary(B::Mul, most, little);
    let least = f.binary(B::Mul, least, rows);
    let long = f.binary(B::Gt, s_, least);
    let unit = f.binary(B::Div, x, s_);
    f.select(long, unit, zero);
    let unit = cx.map(f.0, &[w, s, first])?;
    let (q, _) = qr(cx, unit, full)?;
    let columns = if full { m } else { n.clone() };
    let mut shape = cx.shape(w);
    shape[batch + 1] = columns;
    let index = (0..batch + 2).map(Poly::var).collect();
    let fill = Some(Scalar::from_f64(t, 0.0));
    let unit = cx.push(Op::View { shape, index, fill }, &[unit])?;
    // A column of zeros has no direction, so it is replaced.
    let squares = cx.binary(B::Mul, unit, unit)?;
    let length = cx.reduce(ReduceOp::Sum, squares, &[batch], true)?;
    let some = cx.binary_scalar(B::Gt, length, 0.5)?;
    Ok(cx.select(some, unit, q)?)
}

/// V·diag(values)·Vᵀ or U·diag(values)·Vᵀ: the first factor by columns, the values `[…, k]`, and the last factor by
/// rows.
pub fn composed(cx: &mut Lowering, u: Value, values: Value, vt: Value) -> Result {
    let rank = cx.rank(u);
    let row = cx.unsqueeze(values, &[rank - 2])?;
    let scaled = cx.binary(B::Mul, u, row)?;
    Ok(cx.matmul(scaled, vt)?)
}

/// The inverses of the values `[…, k]` whose `sizes` exceed the limits, 0 for the others.
fn inverted(cx: &mut Lowering, values: Value, sizes: Value, limits: Limits) -> Result {
    let t = cx.dtype(values);
    let axis = cx.rank(values) - 1;
    let most = cx.reduce(ReduceOp::Max, sizes, &[axis], true)?;
    let mut of_batch = |v: Value| -> Result {
        let rank = cx.rank(v);
        let v = cx.unsqueeze(v, &[rank])?;
        Ok(cx.cast(v, t)?)
    };
    let (absolute, relative) = (of_batch(limits.absolute)?, of_batch(limits.relative)?);
    let mut f = Body::default();
    let [x, size, most_, absolute_, relative_] = std::array::from_fn(|i| f.arg(i as u32));
    let (zero, one) = (f.number(t, 0.0), f.number(t, 1.0));
    let part = f.binary(B::Mul, most_, relative_);
    let least = f.binary(B::Max, part, absolute_);
    let large = f.binary(B::Gt, size, least);
    let inverse = f.binary(B::Div, one, x);
    f.select(large, inverse, zero);
    Ok(cx.map(f.0, &[values, sizes, most, absolute, relative])?)
}

/// Limits below which singular values count as 0: at most `absolute`, or at most `relative` times the largest one.
/// Their shapes must broadcast to the batch.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// An absolute limit, a float.
    pub absolute: Value,
    /// A limit relative to the largest singular value, a float.
    pub relative: Value,
}

/// The Moore-Penrose pseudoinverse.
pub fn pseudo_inverse(cx: &mut Lowering, a: Value, limits: Limits, symmetric: bool) -> Result {
    let (_, m, n) = matrix(cx, a)?;
    if m.is(0) || n.is(0) {
        return transposed(cx, a);
    }
    let dtype = cx.dtype(a);
    let a = wide(cx, a)?;
    let y = if symmetric {
        let (values, vectors) = eigen(cx, a, false)?;
        let sizes = cx.unary(U::Abs, values)?;
        let inverse = inverted(cx, values, sizes, limits)?;
        let flipped = transposed(cx, vectors)?;
        composed(cx, vectors, inverse, flipped)?
    } else {
        let d = singular(cx, a, false)?;
        let inverse = inverted(cx, d.s, d.s, limits)?;
        let (v, ut) = (transposed(cx, d.vt)?, transposed(cx, d.u)?);
        composed(cx, v, inverse, ut)?
    };
    Ok(cx.cast(y, dtype)?)
}

/// The polar decomposition A = U·H: U has orthogonal columns, H is symmetric positive semidefinite.
pub fn polar(cx: &mut Lowering, a: Value) -> Result<(Value, Value)> {
    let d = singular(cx, a, false)?;
    let u = cx.matmul(d.u, d.vt)?;
    let v = transposed(cx, d.vt)?;
    Ok((u, composed(cx, v, d.s, d.vt)?))
}

/// The symmetric square root of symmetric positive semidefinite matrices.
pub fn symmetric_root(cx: &mut Lowering, a: Value) -> Result {
    let (values, vectors) = eigen(cx, a, false)?;
    let t = cx.dtype(values);
    let mut f = Body::default();
    let (x, zero) = (f.arg(0), f.number(t, 0.0));
    let x = f.binary(B::Max, x, zero);
    f.unary(U::Sqrt, x);
    let roots = cx.map(f.0, &[values])?;
    let flipped = transposed(cx, vectors)?;
    composed(cx, vectors, roots, flipped)
}

/// The maximum number of times a matrix is halved before its exponential series is summed: enough for norms up to 2³⁰.
const HALVINGS: i64 = 30;
/// The number of terms of the series for a matrix with a norm below 2; the remainder is below the precision of f32.
const TERMS: i64 = 16;

/// The matrix exponential Σ Aⁱ/i! by scaling and squaring: the series of A/2ᵏ, squared k times, where k brings the
/// norm below 2.
pub fn exponential(cx: &mut Lowering, a: Value) -> Result {
    let (batch, n) = square(cx, a)?;
    if n.is(0) {
        return Ok(a);
    }
    let dtype = cx.dtype(a);
    let a = wide(cx, a)?;
    let t = cx.dtype(a);
    let size = cx.unary(U::Abs, a)?;
    let sums = cx.reduce(ReduceOp::Sum, size, &[batch], true)?;
    let norm = cx.reduce(ReduceOp::Max, sums, &[batch + 1], true)?;
    // The exponent of the norm, read from its bits.
    let mut f = Body::default();
    let x = f.arg(0);
    let bits = f.bitcast(DType::I32, x);
    let (by, bias, zero, most) = (f.i32(23), f.i32(127), f.i32(0), f.i32(HALVINGS));
    let e = f.binary(B::Shr, bits, by);
    let e = f.binary(B::Sub, e, bias);
    let e = f.binary(B::Max, e, zero);
    f.binary(B::Min, e, most);
    let halvings = cx.map(f.0, &[norm])?;
    let mut f = Body::default();
    let (x, k, one, by) = (f.arg(0), f.arg(1), f.i32(127), f.i32(23));
    let e = f.binary(B::Sub, one, k);
    let bits = f.binary(B::Shl, e, by);
    let factor = f.bitcast(DType::F32, bits);
    let factor = f.cast(t, factor);
    f.binary(B::Mul, x, factor);
    let small = cx.map(f.0, &[a, halvings])?;
    // Horner's scheme: 1 + A(1 + A/2(1 + A/3(…))).
    let shape = cx.shape(a);
    let one = identity(cx, &shape, t)?;
    let sum = Steps { count: TERMS.into(), reversed: true, carried: &[one, small], sliced: &[] };
    let sum = sum.lower(cx, |cx, s| {
        let (y, small) = (s.carried[0], s.carried[1]);
        let product = cx.matmul(small, y)?;
        let mut f = Body::default();
        let (x, number, next) = (f.arg(0), f.arg(1), f.i32(1));
        let (i, j) = (f.index(Poly::var(batch)), f.index(Poly::var(batch + 1)));
        let (one, zero) = (f.number(t, 1.0), f.number(t, 0.0));
        let number = f.binary(B::Add, number, next);
        let number = f.cast(t, number);
        let part = f.binary(B::Div, x, number);
        let on = f.binary(B::Eq, i, j);
        let own = f.select(on, one, zero);
        f.binary(B::Add, part, own);
        Ok((vec![cx.map(f.0, &[product, s.number])?, small], vec![]))
    })?;
    let y = sum[0];
    let loops = Steps { count: HALVINGS.into(), reversed: false, carried: &[y, halvings], sliced: &[] };
    let done = loops.lower(cx, |cx, s| {
        let (y, k) = (s.carried[0], s.carried[1]);
        let twice = cx.matmul(y, y)?;
        let again = cx.binary(B::Lt, s.number, k)?;
        Ok((vec![cx.select(again, twice, y)?, k], vec![]))
    })?;
    Ok(cx.cast(done[0], dtype)?)
}
