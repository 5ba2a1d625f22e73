//! Support vector machines: weighted sums of kernels between records and support vectors.

use super::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp as B, DType, Dim, Op, Poly, ReduceOp, Tensor, UnaryOp as U, Value};

/// A kernel function of two vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// `x·s`.
    Linear,
    /// `(γ·x·s + c)^d`.
    Poly {
        /// γ.
        gamma: f64,
        /// c.
        coef0: f64,
        /// d.
        degree: f64,
    },
    /// `exp(−γ·|x − s|²)`.
    Rbf {
        /// γ.
        gamma: f64,
    },
    /// `tanh(γ·x·s + c)`.
    Sigmoid {
        /// γ.
        gamma: f64,
        /// c.
        coef0: f64,
    },
}

/// The weighted sums of the kernels of each record `x [N, F]` with all support vectors `[V, F]`: `[N, P]` for
/// `weights [V, P]`.
///
/// For a linear kernel these are products of the records with weighted sums of the vectors, which are computed in f64:
/// weights may be large and cancel, and a sum over kernels rounded to f32 would leave few correct digits.
///
/// # Errors
/// If the records have another number of features than the vectors.
pub fn sums(
    cx: &mut Lowering,
    x: Value,
    vectors: &[f32],
    weights: &[f32],
    count: usize,
    k: Kernel,
) -> Result {
    let (features, wide) = (vectors.len() / count.max(1), weights.len() / count.max(1));
    if k == Kernel::Linear {
        let mut folded = vec![0f64; features * wide];
        for (v, w) in vectors.chunks_exact(features.max(1)).zip(weights.chunks_exact(wide.max(1))) {
            for (p, w) in w.iter().enumerate().filter(|(_, w)| **w != 0.0) {
                for (f, v) in v.iter().enumerate() {
                    folded[f * wide + p] += f64::from(*v) * f64::from(*w);
                }
            }
        }
        let folded: Vec<f32> = folded.into_iter().map(|v| v as f32).collect();
        let folded = cx.constant(Tensor::from_f32(vec![features, wide], &folded));
        return Ok(cx.matmul(x, folded)?);
    }
    let vectors = cx.constant(Tensor::from_f32(vec![count, features], vectors));
    let weights = cx.constant(Tensor::from_f32(vec![count, wide], weights));
    let products = kernel(cx, x, vectors, k)?;
    Ok(cx.matmul(products, weights)?)
}

/// The kernel of each record `x [N, F]` with each of `vectors [V, F]`: `[N, V]`.
fn kernel(cx: &mut Lowering, x: Value, vectors: Value, k: Kernel) -> Result {
    if let Kernel::Rbf { gamma } = k {
        let (a, b) = (cx.unsqueeze(x, &[1])?, cx.unsqueeze(vectors, &[0])?);
        let apart = cx.binary(B::Sub, a, b)?;
        let square = cx.binary(B::Mul, apart, apart)?;
        let sum = cx.reduce(ReduceOp::Sum, square, &[2], false)?;
        let sum = cx.binary_scalar(B::Mul, sum, -gamma)?;
        return Ok(cx.unary(U::Exp, sum)?);
    }
    let turned = cx.transpose(vectors, &[1, 0])?;
    let dot = cx.matmul(x, turned)?;
    let affine = |cx: &mut Lowering, gamma: f64, coef0: f64| {
        let y = cx.binary_scalar(B::Mul, dot, gamma)?;
        cx.binary_scalar(B::Add, y, coef0)
    };
    Ok(match k {
        Kernel::Linear | Kernel::Rbf { .. } => dot,
        Kernel::Poly { gamma, coef0, degree } => {
            let y = affine(cx, gamma, coef0)?;
            cx.binary_scalar(B::Pow, y, degree)?
        }
        Kernel::Sigmoid { gamma, coef0 } => {
            let y = affine(cx, gamma, coef0)?;
            cx.unary(U::Tanh, y)?
        }
    })
}

/// All pairs of classes, in the order of their decisions.
pub fn pairs(classes: usize) -> Vec<(usize, usize)> {
    (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j))).collect()
}

/// The class of each record (i64) with the most votes, the first one in a tie. Each of the decisions `[N, pairs]`
/// votes for the first class of its pair if it is positive, else for the second.
pub fn elected(cx: &mut Lowering, decisions: Value, classes: usize) -> Result {
    let pairs = pairs(classes);
    let table = |f: &dyn Fn(usize, (usize, usize)) -> bool| {
        let all: Vec<f32> = pairs.iter().flat_map(|p| (0..classes).map(|c| f32::from(f(c, *p)))).collect();
        Tensor::from_f32(vec![pairs.len(), classes], &all)
    };
    let (first, second) = (table(&|c, p| c == p.0), table(&|c, p| c == p.1));
    let (first, second) = (cx.constant(first), cx.constant(second));
    let above = cx.binary_scalar(B::Gt, decisions, 0.0)?;
    let above = cx.unsqueeze(above, &[2])?;
    let votes = cx.select(above, first, second)?;
    let votes = cx.reduce(ReduceOp::Sum, votes, &[1], false)?;
    let best = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: 1, last: false }, &[votes])?;
    Ok(cx.squeeze(best, &[1])?)
}

/// The maximum number of classes whose probabilities are coupled: the steps of an iteration are unrolled.
const MOST_COUPLED: usize = 32;

/// The probabilities of the classes `[N, K]` from the pairwise probabilities `[N, pairs]` of the first class of each
/// pair: the second method of Wu, Lin and Weng, *Probability Estimates for Multi-class Classification by Pairwise
/// Coupling*, JMLR 5, 2004, with the stopping criterion of LIBSVM.
pub fn coupled(cx: &mut Lowering, first: Value, classes: usize) -> Result {
    if classes > MOST_COUPLED {
        let e = format!(
            "probabilities of {classes} classes from those of pairs, which are for at most {MOST_COUPLED}"
        );
        return Err(OpError::unsupported(e, "train without probabilities and use the decisions"));
    }
    let pairs = pairs(classes);
    let records = cx.shape(first)[0].clone();
    // The pairwise probability of t against j, for all t and j.
    let second = {
        let one = cx.scalar(DType::F32, 1.0);
        cx.binary(B::Sub, one, first)?
    };
    let both = cx.concat(&[first, second], 1)?;
    let place = |t: usize, j: usize| {
        let at = pairs.iter().position(|p| *p == (t.min(j), t.max(j))).unwrap_or(0);
        if t <= j { at } else { at + pairs.len() }
    };
    let gather = |cx: &mut Lowering, of: &dyn Fn(usize, usize) -> usize| -> Result {
        let all: Vec<i64> = (0..classes)
            .flat_map(|t| (0..classes).map(move |j| (t, j)))
            .map(|(t, j)| of(t, j) as i64)
            .collect();
        let at = cx.constant(Tensor::from_i64(vec![classes, classes], &all));
        Ok(cx.take(both, at, 1)?)
    };
    let (r, turned) = (gather(cx, &place)?, gather(cx, &|t, j| place(j, t))?);
    let same: Vec<f32> = (0..classes * classes).map(|i| f32::from(i / classes == i % classes)).collect();
    let same = cx.constant(Tensor::from_f32(vec![classes, classes], &same));
    let diagonal = cx.binary_scalar(B::Gt, same, 0.5)?;
    let square = cx.binary(B::Mul, turned, turned)?;
    let zero = cx.scalar(DType::F32, 0.0);
    let square = cx.select(diagonal, zero, square)?;
    let sums = cx.reduce(ReduceOp::Sum, square, &[2], true)?;
    let product = cx.binary(B::Mul, r, turned)?;
    let minus = cx.unary(U::Neg, product)?;
    let q = cx.select(diagonal, sums, minus)?;
    let of_p = vec![records, Dim::from(classes)];
    let p = cx.full(&of_p, wgfc_ir::Scalar::from_f64(DType::F32, 1.0 / classes as f64))?;
    cx.repeated(classes.max(100), p, q, |cx, p, q| couple(cx, p, q, classes))
}

/// An iteration of [`coupled`], which leaves `p` unchanged once it has converged.
fn couple(cx: &mut Lowering, p: Value, q: Value, classes: usize) -> Result {
    let near = 0.005 / classes as f64;
    let before = p;
    let wide = cx.unsqueeze(p, &[1])?;
    let all = cx.binary(B::Mul, q, wide)?;
    let mut qp = cx.reduce(ReduceOp::Sum, all, &[2], false)?;
    let each = cx.binary(B::Mul, p, qp)?;
    let mut pqp = cx.reduce(ReduceOp::Sum, each, &[1], true)?;
    let off = cx.binary(B::Sub, qp, pqp)?;
    let off = cx.unary(U::Abs, off)?;
    let off = cx.reduce(ReduceOp::Max, off, &[1], true)?;
    let done = cx.binary_scalar(B::Lt, off, near)?;
    let mut p = p;
    for t in 0..classes {
        let row = cx.slice(q, 1, &Poly::from(t), 1, &Dim::ONE)?;
        let row = cx.squeeze(row, &[1])?;
        let at = cx.slice(row, 1, &Poly::from(t), 1, &Dim::ONE)?;
        let own = cx.slice(qp, 1, &Poly::from(t), 1, &Dim::ONE)?;
        let gap = cx.binary(B::Sub, pqp, own)?;
        let diff = cx.binary(B::Div, gap, at)?;
        let grown = cx.binary_scalar(B::Add, diff, 1.0)?;
        // Updates pᵀQp, Qp and p after p_t has grown by `diff` and all have been divided by the new sum.
        let a = cx.binary(B::Mul, diff, at)?;
        let twice = cx.binary_scalar(B::Mul, own, 2.0)?;
        let a = cx.binary(B::Add, a, twice)?;
        let a = cx.binary(B::Mul, diff, a)?;
        let a = cx.binary(B::Add, pqp, a)?;
        let a = cx.binary(B::Div, a, grown)?;
        pqp = cx.binary(B::Div, a, grown)?;
        let moved = cx.binary(B::Mul, diff, row)?;
        let moved = cx.binary(B::Add, qp, moved)?;
        qp = cx.binary(B::Div, moved, grown)?;
        let one: Vec<f32> = (0..classes).map(|j| f32::from(j == t)).collect();
        let one = cx.constant(Tensor::from_f32(vec![1, classes], &one));
        let added = cx.binary(B::Mul, diff, one)?;
        let added = cx.binary(B::Add, p, added)?;
        p = cx.binary(B::Div, added, grown)?;
    }
    Ok(cx.select(done, before, p)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::testing::{tensor, values};

    /// Two nearly equal vectors with cancelling weights: the error of a kernel rounded to f32 exceeds the sum.
    #[test]
    fn sums_of_linear_kernels_keep_their_digits() {
        let (x, near) = ([1000.1f32, 2000.3], [[300.1f32, 400.7], [300.1003, 400.7004]]);
        let weight = 37726.0f32;
        let at = |v: [f32; 2]| (0..2).map(|i| f64::from(x[i]) * f64::from(v[i])).sum::<f64>();
        let want = f64::from(weight) * (at(near[1]) - at(near[0]));
        let got = values(|cx| {
            let x = cx.constant(tensor(DType::F32, &[1, 2], &x.map(f64::from)));
            Ok(vec![sums(cx, x, near.as_flattened(), &[-weight, weight], 2, Kernel::Linear)?])
        });
        assert!((got[0][0] - want).abs() < 1e-5 * want.abs(), "{got:?} {want}");
    }
}
