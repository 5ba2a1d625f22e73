//! Products of factors equal the factored matrix, and solutions satisfy their equations, for batches, in the
//! evaluator.

use super::*;
use std::collections::BTreeMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::testing::Rng;
use wgfc_ir::{Border, Graph, Tensor};

/// Matrices of random numbers between −1 and 1.
fn random(cx: &mut Lowering, seed: u64, shape: &[usize]) -> Value {
    let mut rng = Rng::new(seed);
    let v: Vec<f32> = (0..shape.iter().product()).map(|_| rng.unit()).collect();
    cx.constant(Tensor::from_f32(shape.to_vec(), &v))
}

/// Symmetric matrices with positive eigenvalues: A·Aᵀ + I.
fn positive(cx: &mut Lowering, seed: u64, shape: &[usize]) -> Value {
    let a = random(cx, seed, shape);
    let t = steps::transposed(cx, a).unwrap();
    let product = cx.matmul(a, t).unwrap();
    let shape = cx.shape(a);
    let one = steps::identity(cx, &shape, DType::F32).unwrap();
    cx.binary(BinaryOp::Add, product, one).unwrap()
}

/// The values that `f` computes.
fn values(f: impl FnOnce(&mut Lowering) -> Result<Vec<Value>>) -> Vec<Tensor> {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    for (i, value) in f(&mut cx).unwrap().into_iter().enumerate() {
        cx.graph.outputs.push(Border { name: format!("y{i}").into(), value });
    }
    wgfc_ir::verify::verify(&g).unwrap();
    evaluate(&g, &BTreeMap::new()).unwrap()
}

/// Asserts that the two values of each pair that `f` computes are equal within 2e-4.
fn pairs(f: impl FnOnce(&mut Lowering) -> Result<Vec<(Value, Value)>>) {
    let all = values(|cx| Ok(f(cx)?.into_iter().flat_map(|(a, b)| [a, b]).collect()));
    for (i, pair) in all.chunks(2).enumerate() {
        assert_eq!(pair[0].shape, pair[1].shape, "pair {i}");
        let (a, b) = (pair[0].to_f32s().unwrap(), pair[1].to_f32s().unwrap());
        assert!(
            !a.is_empty() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 2e-4),
            "pair {i}: {a:?} {b:?}"
        );
    }
}

fn all(t: &Tensor) -> Vec<i64> {
    t.to_i64s().unwrap()
}

#[test]
fn factors_of_cholesky() {
    for upper in [false, true] {
        pairs(|cx| {
            let a = positive(cx, 1, &[2, 3, 5, 5]);
            let b = random(cx, 2, &[3, 5, 2]);
            let Cholesky { factor, .. } = cholesky(cx, a, upper)?;
            let other = steps::transposed(cx, factor)?;
            let (l, u) = if upper { (other, factor) } else { (factor, other) };
            let product = cx.matmul(l, u)?;
            let x = cholesky_solve(cx, b, factor, upper)?;
            let again = cx.matmul(a, x)?;
            let shape = cx.shape(again);
            let b = cx.expand(b, &shape)?;
            let inverse = cholesky_inverse(cx, factor, upper)?;
            let (shape, one) = (cx.shape(a), cx.matmul(a, inverse)?);
            let identity = steps::identity(cx, &shape, DType::F32)?;
            Ok(vec![(product, a), (again, b), (one, identity)])
        });
    }
    // The second leading minor is not positive; the NaN is in the triangle that is not read.
    let got = values(|cx| {
        let a = cx.constant(Tensor::from_f32(vec![2, 2, 2], &[1.0, f32::NAN, 2.0, 1.0, 4.0, 9.0, 2.0, 5.0]));
        let c = cholesky(cx, a, false)?;
        Ok(vec![c.info, c.factor])
    });
    assert_eq!(all(&got[0]), [2, 0]);
    assert_eq!(got[1].to_f32s().unwrap()[4..], [2.0, 0.0, 1.0, 2.0]);
}

#[test]
fn triangular_equations() {
    for bits in 0..16 {
        let p = Triangular {
            upper: bits & 1 > 0,
            transposed: bits & 2 > 0,
            unit: bits & 4 > 0,
            right: bits & 8 > 0,
        };
        pairs(|cx| {
            let a = random(cx, 3, &[2, 1, 4, 4]);
            // A large diagonal, which is not read if the diagonal counts as ones.
            let mut f = Body::default();
            let (x, i, j) = (f.arg(0), f.index(Poly::var(2)), f.index(Poly::var(3)));
            let (zero, four) = (f.f32(0.0), f.f32(4.0));
            let out = f.binary(if p.upper { BinaryOp::Gt } else { BinaryOp::Lt }, i, j);
            let on = f.binary(BinaryOp::Eq, i, j);
            let inside = f.select(out, zero, x);
            let large = f.binary(BinaryOp::Add, inside, four);
            let one = f.f32(1.0);
            let diagonal = f.select(on, if p.unit { one } else { large }, inside);
            f.select(out, zero, diagonal);
            let triangle = cx.map(f.0, &[a])?;
            let mut f = Body::default();
            let (x, t, i, j) = (f.arg(0), f.arg(1), f.index(Poly::var(2)), f.index(Poly::var(3)));
            let out = f.binary(if p.upper { BinaryOp::Gt } else { BinaryOp::Lt }, i, j);
            let on = f.binary(BinaryOp::Eq, i, j);
            let keep = f.select(on, if p.unit { x } else { t }, t);
            f.select(out, x, keep);
            let given = cx.map(f.0, &[a, triangle])?;
            let b = random(cx, 4, if p.right { &[3, 2, 4] } else { &[3, 4, 2] });
            let x = solve_triangular(cx, given, b, p)?;
            let m = if p.transposed { steps::transposed(cx, triangle)? } else { triangle };
            let again = if p.right { cx.matmul(x, m)? } else { cx.matmul(m, x)? };
            let shape = cx.shape(again);
            Ok(vec![(again, cx.expand(b, &shape)?)])
        });
    }
}

#[test]
fn factors_of_elimination() {
    for (m, n) in [(4, 4), (3, 5), (5, 3), (1, 1)] {
        pairs(|cx| {
            let a = random(cx, 5, &[2, m, n]);
            let f = lu_factor(cx, a, true)?;
            let (l, u) = lu_parts(cx, f.lu)?;
            let p = permutation(cx, f.pivots, &Dim::from(m), DType::F32)?;
            let product = cx.matmul(l, u)?;
            let product = cx.matmul(p, product)?;
            let size = cx.unary(UnaryOp::Abs, l)?;
            let small = cx.binary_scalar(BinaryOp::Max, size, 1.0)?;
            let shape = cx.shape(small);
            let one = cx.full(&shape, Scalar::from_f64(DType::F32, 1.0))?;
            // With partial pivoting no element of L is larger than 1 in magnitude.
            Ok(vec![(product, a), (small, one)])
        });
    }
    for bits in 0..4 {
        let p = Equation { transposed: bits & 1 > 0, right: bits & 2 > 0 };
        pairs(|cx| {
            let a = random(cx, 6, &[2, 4, 4]);
            let b = random(cx, 7, if p.right { &[3, 1, 2, 4] } else { &[3, 1, 4, 2] });
            let f = lu_factor(cx, a, true)?;
            let x = lu_solve(cx, f.lu, f.pivots, b, p)?;
            let m = if p.transposed { steps::transposed(cx, a)? } else { a };
            let again = if p.right { cx.matmul(x, m)? } else { cx.matmul(m, x)? };
            let shape = cx.shape(again);
            Ok(vec![(again, cx.expand(b, &shape)?)])
        });
    }
    pairs(|cx| {
        let a = random(cx, 8, &[3, 4, 4]);
        let (x, _) = inverse(cx, a)?;
        let (shape, one) = (cx.shape(a), cx.matmul(a, x)?);
        let identity = steps::identity(cx, &shape, DType::F32)?;
        let f = lu_factor(cx, a, true)?;
        let (d, known) = (determinant(cx, &f)?, det(cx, a)?);
        let (sign, log) = log_determinant(cx, &f)?;
        let size = cx.unary(UnaryOp::Exp, log)?;
        let product = cx.binary(BinaryOp::Mul, sign, size)?;
        Ok(vec![(one, identity), (d, known), (product, known)])
    });
    // A column of zeros, and a matrix that needs a row exchange.
    let got = values(|cx| {
        let a = cx.constant(Tensor::from_f32(vec![2, 2, 2], &[0.0, 1.0, 0.0, 2.0, 1.0, 2.0, -4.0, 2.0]));
        let f = lu_factor(cx, a, true)?;
        let (d, (sign, log)) = (determinant(cx, &f)?, log_determinant(cx, &f)?);
        Ok(vec![f.info, f.pivots, f.lu, d, sign, log])
    });
    assert_eq!((all(&got[0]), all(&got[1])), (vec![1, 0], vec![1, 2, 2, 2]));
    assert_eq!(got[2].to_f32s().unwrap(), [0.0, 1.0, 0.0, 2.0, -4.0, 2.0, -0.25, 2.5]);
    assert_eq!(got[3].to_f32s().unwrap(), [0.0, 10.0]);
    assert_eq!(got[4].to_f32s().unwrap(), [0.0, 1.0]);
    assert_eq!(got[5].to_f32s().unwrap()[0], f32::NEG_INFINITY);
}

#[test]
fn factors_of_reflections() {
    for (m, n) in [(4usize, 4usize), (3, 5), (5, 3), (1, 2)] {
        for complete in [false, true] {
            pairs(|cx| {
                let a = random(cx, 9, &[2, m, n]);
                let (q, r) = qr(cx, a, complete)?;
                let product = cx.matmul(q, r)?;
                let t = steps::transposed(cx, q)?;
                let one = cx.matmul(t, q)?;
                let shape = cx.shape(one);
                let identity = steps::identity(cx, &shape, DType::F32)?;
                Ok(vec![(product, a), (one, identity)])
            });
        }
    }
    for bits in 0..4 {
        let p = Applied { transposed: bits & 1 > 0, right: bits & 2 > 0 };
        pairs(|cx| {
            let a = random(cx, 10, &[2, 4, 3]);
            let c = random(cx, 11, if p.right { &[2, 2, 4] } else { &[2, 4, 2] });
            let h = reflections(cx, a)?;
            let q = columns_of(cx, &h, &Dim::from(4usize))?;
            let q = if p.transposed { steps::transposed(cx, q)? } else { q };
            let want = if p.right { cx.matmul(c, q)? } else { cx.matmul(q, c)? };
            Ok(vec![(apply(cx, &h, c, p)?, want)])
        });
    }
}

#[test]
fn what_is_no_matrix_is_refused() {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let (v, a, s) = (random(&mut cx, 1, &[3]), random(&mut cx, 1, &[3, 4]), random(&mut cx, 1, &[3, 3]));
    assert!(cholesky(&mut cx, v, false).is_err());
    assert!(cholesky(&mut cx, a, false).is_err());
    assert!(inverse(&mut cx, a).is_err());
    assert!(qr(&mut cx, v, false).is_err());
    let b = random(&mut cx, 1, &[4, 2]);
    assert!(solve_triangular(&mut cx, s, b, Triangular::default()).is_err());
    assert!(solve(&mut cx, s, v, false).is_err());
}

/// The Gram matrix of the columns, which is the identity if they are orthonormal.
fn gram(cx: &mut Lowering, q: Value) -> (Value, Value) {
    let t = steps::transposed(cx, q).unwrap();
    let product = cx.matmul(t, q).unwrap();
    let shape = cx.shape(product);
    (product, steps::identity(cx, &shape, DType::F32).unwrap())
}

#[test]
fn eigenvectors_diagonalise() {
    for n in [1, 2, 5, 8, 13, 64] {
        for upper in [false, true] {
            pairs(|cx| {
                // Both triangles are equal, so the results are the same whichever is read.
                let a = positive(cx, n as u64, &[2, n, n]);
                let four = cx.scalar(DType::F32, if n == 64 { 100.0 } else { 4.0 });
                let a = cx.binary(BinaryOp::Div, a, four)?;
                let (values, vectors) = eigen(cx, a, upper)?;
                let flipped = steps::transposed(cx, vectors)?;
                let again = jacobi::composed(cx, vectors, values, flipped)?;
                Ok(vec![(again, a), gram(cx, vectors)])
            });
        }
    }
    let all = values(|cx| {
        let a = random(cx, 3, &[9, 9]);
        let (values, _) = eigen(cx, a, true)?;
        Ok(vec![values])
    });
    let v = all[0].to_f32s().unwrap();
    assert!(v.windows(2).all(|w| w[0] <= w[1]), "{v:?}");
}

#[test]
fn singular_vectors_make_the_matrix() {
    for (m, n) in [(1, 1), (5, 5), (7, 3), (3, 7), (2, 9), (33, 17)] {
        for full in [false, true] {
            pairs(|cx| {
                let a = random(cx, (m * 100 + n) as u64, &[3, m, n]);
                let d = singular(cx, a, full)?;
                let k = m.min(n) as i64;
                let u = cx.slice(d.u, 2, &Poly::ZERO, 1, &k.into())?;
                let vt = cx.slice(d.vt, 1, &Poly::ZERO, 1, &k.into())?;
                let again = jacobi::composed(cx, u, d.s, vt)?;
                let v = steps::transposed(cx, d.vt)?;
                Ok(vec![(again, a), gram(cx, d.u), gram(cx, v)])
            });
        }
    }
}

/// The singular vectors of a matrix of rank 2, and of a zero matrix, are still orthogonal.
#[test]
fn singular_vectors_of_matrices_that_lack_rank() {
    for scale in [1.0, 0.0, 1e-30] {
        pairs(|cx| {
            let (a, b) = (random(cx, 1, &[6, 2]), random(cx, 2, &[2, 5]));
            let a = cx.matmul(a, b)?;
            let a = cx.binary_scalar(BinaryOp::Mul, a, scale)?;
            let d = singular(cx, a, true)?;
            let v = steps::transposed(cx, d.vt)?;
            let u = cx.slice(d.u, 1, &Poly::ZERO, 1, &5i64.into())?;
            let again = jacobi::composed(cx, u, d.s, d.vt)?;
            Ok(vec![(again, a), gram(cx, d.u), gram(cx, v)])
        });
    }
}

#[test]
fn pseudo_inverses_polar_factors_and_roots() {
    pairs(|cx| {
        let (a, b) = (random(cx, 1, &[2, 6, 2]), random(cx, 2, &[2, 2, 4]));
        let a = cx.matmul(a, b)?;
        let limits = Limits { absolute: cx.scalar(DType::F32, 0.0), relative: cx.scalar(DType::F32, 1e-5) };
        let p = pseudo_inverse(cx, a, limits, false)?;
        let ap = cx.matmul(a, p)?;
        let apa = cx.matmul(ap, a)?;
        let flipped = steps::transposed(cx, ap)?;
        let s = positive(cx, 3, &[5, 5]);
        let i = pseudo_inverse(cx, s, limits, true)?;
        let one = cx.matmul(s, i)?;
        let shape = cx.shape(one);
        let identity = steps::identity(cx, &shape, DType::F32)?;
        let (u, h) = polar(cx, a)?;
        let uh = cx.matmul(u, h)?;
        let root = symmetric_root(cx, s)?;
        let square = cx.matmul(root, root)?;
        Ok(vec![(apa, a), (ap, flipped), (one, identity), (uh, a), gram(cx, u), (square, s)])
    });
}

#[test]
fn exponentials_of_matrices() {
    // Exponentials of an antisymmetric matrix, which is a rotation, and of a nilpotent matrix.
    for angle in [0.0f32, 1e-3, 0.7, 3.0, 40.0] {
        pairs(|cx| {
            let a = cx.constant(Tensor::from_f32(vec![2, 2], &[0.0, -angle, angle, 0.0]));
            let y = exponential(cx, a)?;
            let (s, c) = angle.sin_cos();
            Ok(vec![(y, cx.constant(Tensor::from_f32(vec![2, 2], &[c, -s, s, c])))])
        });
    }
    pairs(|cx| {
        let a = cx.constant(Tensor::from_f32(vec![3, 3], &[0.0, 2.0, 1.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0]));
        let y = exponential(cx, a)?;
        let wanted = [1.0, 2.0, 4.0, 0.0, 1.0, 3.0, 0.0, 0.0, 1.0];
        Ok(vec![(y, cx.constant(Tensor::from_f32(vec![3, 3], &wanted)))])
    });
}
