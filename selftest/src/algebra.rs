//! Matrix factorisations and linear equations of random sizes and batches; some extents are symbolic.

use super::draw::hash;
use super::subject::{Rule, Source, Subject};
use std::collections::BTreeMap;
use wgfc_compiler::lower::linalg::*;
use wgfc_compiler::lower::{Lowered, Lowering};
use wgfc_ir::testing::Rng;
use wgfc_ir::{Border, DType, Dim, Graph, Poly, Scalar, Tensor, TensorType, Value};

/// The prefix of the names of these cases.
const PREFIX: &str = "matrices ";

/// The kind of matrices that an algorithm takes.
#[derive(Clone, Copy, PartialEq)]
enum Given {
    /// Symmetric and positive definite.
    Positive,
    /// Square, with a large diagonal.
    Square,
    /// Any shape.
    Any,
    /// Square matrices, and right-hand sides with the same number of rows.
    Equations,
}
use Given::*;

type Algorithm = (&'static str, Given, fn(&mut Lowering, &[Value], usize) -> Lowered);

/// The algorithms. The last argument of each is drawn at random and selects its variant.
const ALGORITHMS: &[Algorithm] = &[
    ("cholesky", Positive, |cx, v, way| {
        let c = cholesky(cx, v[0], way & 1 > 0)?;
        Ok(vec![c.factor, c.info])
    }),
    ("cholesky_inverse", Positive, |cx, v, way| {
        let c = cholesky(cx, v[0], way & 1 > 0)?;
        Ok(vec![cholesky_inverse(cx, c.factor, way & 1 > 0)?])
    }),
    ("solve_triangular", Equations, |cx, v, way| {
        let p = Triangular { upper: way & 1 > 0, transposed: way & 2 > 0, unit: false, right: false };
        Ok(vec![solve_triangular(cx, v[0], v[1], p)?])
    }),
    ("lu", Any, |cx, v, _| {
        let f = lu_factor(cx, v[0], true)?;
        Ok(vec![f.lu, f.pivots, f.info])
    }),
    ("solve", Equations, |cx, v, way| {
        let f = lu_factor(cx, v[0], true)?;
        Ok(vec![lu_solve(cx, f.lu, f.pivots, v[1], Equation { transposed: way & 1 > 0, right: false })?])
    }),
    ("inverse", Square, |cx, v, _| Ok(vec![inverse(cx, v[0])?.0])),
    ("determinant", Square, |cx, v, _| {
        let f = lu_factor(cx, v[0], true)?;
        let (sign, log) = log_determinant(cx, &f)?;
        Ok(vec![sign, log])
    }),
    ("qr", Square, |cx, v, way| {
        let (q, r) = qr(cx, v[0], way & 1 > 0)?;
        Ok(vec![q, r])
    }),
    // Only values are compared, as the signs of eigenvectors and singular vectors are arbitrary.
    ("eigenvalues", Positive, |cx, v, way| Ok(vec![eigen(cx, v[0], way & 1 > 0)?.0])),
    ("singular_values", Any, |cx, v, _| Ok(vec![singular(cx, v[0], false)?.s])),
    ("root", Positive, |cx, v, _| Ok(vec![symmetric_root(cx, v[0])?])),
    ("exponential", Any, |cx, v, _| {
        let t = wgfc_compiler::lower::matmul::matmul;
        let rank = cx.rank(v[0]);
        let order: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        let flipped = cx.transpose(v[0], &order)?;
        let square = t(cx, v[0], flipped)?;
        Ok(vec![exponential(cx, square)?])
    }),
];

/// The names of cases, without their seeds.
pub(crate) fn names() -> impl Iterator<Item = String> {
    ALGORITHMS.iter().map(|a| format!("{PREFIX}{}", a.0))
}

/// Whether a name is that of a case in this module.
pub(crate) fn is(name: &str) -> bool {
    name.starts_with(PREFIX)
}

pub(crate) fn drawn(name: &str, seed: u64) -> Option<Subject> {
    let mut rng = Rng::new(hash(name) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let of = name.strip_prefix(PREFIX)?;
    let (_, given, algorithm) = ALGORITHMS.iter().find(|a| a.0 == of)?;
    let batch: Vec<usize> = (0..rng.below(3)).map(|_| 1 + rng.below(5)).collect();
    let n = 1 + rng.below(7);
    let m = if *given == Any { 1 + rng.below(7) } else { n };
    let named = rng.one_in(3);
    let mut graph = Graph::new();
    let mut inputs = BTreeMap::new();
    let mut give = |graph: &mut Graph, name: &str, (m, n): (usize, usize), v: Vec<f64>| {
        let shape: Vec<usize> = batch.iter().copied().chain([m, n]).collect();
        // The first axis of a batch may be symbolic.
        let symbol = |i: usize, d: usize| {
            if named && i == 0 && !batch.is_empty() { Poly::sym("batch") } else { Dim::from(d) }
        };
        let dims: Vec<Dim> = shape.iter().enumerate().map(|(i, d)| symbol(i, *d)).collect();
        let v: Vec<Scalar> =
            v.into_iter().map(|x| Scalar::from_f64(DType::F32, f64::from(x as f32))).collect();
        inputs.insert(name.to_owned(), Tensor::from_scalars(DType::F32, shape, &v));
        graph.add_input(name, TensorType::new(DType::F32, dims))
    };
    let count: usize = batch.iter().product();
    let mut a = vec![];
    for _ in 0..count {
        let x: Vec<f64> = (0..m * n).map(|_| f64::from(rng.unit())).collect();
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let own = f64::from(u8::from(i == j));
            a.push(match given {
                Positive => own + (0..n).map(|k| x[i * n + k] * x[j * n + k]).sum::<f64>(),
                Square | Equations => own * 3.0 + x[i * n + j],
                Any => x[i * n + j],
            });
        }
    }
    let mut operands = vec![give(&mut graph, "a", (m, n), a)];
    if *given == Equations {
        let columns = 1 + rng.below(3);
        let b = (0..count * n * columns).map(|_| f64::from(rng.unit())).collect();
        operands.push(give(&mut graph, "b", (n, columns), b));
    }
    let mut cx = Lowering::new(&mut graph);
    let outputs = algorithm(&mut cx, &operands, rng.below(4)).ok()?;
    for (i, value) in outputs.into_iter().enumerate() {
        graph.outputs.push(Border { name: format!("y{i}").into(), value });
    }
    Some(Subject { source: Source::Graph(Box::new(graph)), inputs, rule: Rule::default() })
}
