//! Numbers of dispatches that factorizations of a batch of matrices take.

use std::collections::BTreeMap;
use wgfc_compiler::Options;
use wgfc_compiler::lower::linalg::*;
use wgfc_compiler::lower::{Lowered, Lowering};
use wgfc_compiler::pipeline::compile_graph;
use wgfc_ir::program::Stats;
use wgfc_ir::{Border, DType, Graph, Poly, TensorType, Value};

/// The number of dispatches of an algorithm on n × n matrices with right-hand sides of n × 3.
fn dispatches(n: i64, batch: &str, f: impl FnOnce(&mut Lowering, Value, Value) -> Lowered) -> usize {
    let mut g = Graph::new();
    let shape = |k: i64| vec![Poly::parse(batch).unwrap(), Poly::constant(n), Poly::constant(k)];
    let a = g.add_input("a", TensorType::new(DType::F32, shape(n)));
    let b = g.add_input("b", TensorType::new(DType::F32, shape(3)));
    let mut cx = Lowering::new(&mut g);
    let outputs = f(&mut cx, a, b).unwrap();
    for value in outputs {
        g.outputs.push(Border { name: "y".into(), value });
    }
    let program = compile_graph(g, Stats::default(), &Options::default(), &mut |_, _| {}).unwrap();
    program.dispatches.len()
}

#[test]
fn a_batch_of_matrices_is_one_dispatch() {
    let mut found = BTreeMap::new();
    for batch in ["64", "batch"] {
        for n in [4, 16] {
            let mut see = |name: &str, count: usize| found.insert(format!("{name} {n} {batch}"), count);
            see("cholesky", dispatches(n, batch, |cx, a, _| Ok(vec![cholesky(cx, a, false)?.factor])));
            let p = Triangular::default();
            see("triangular", dispatches(n, batch, |cx, a, b| Ok(vec![solve_triangular(cx, a, b, p)?])));
            see(
                "lu",
                dispatches(n, batch, |cx, a, _| {
                    let f = lu_factor(cx, a, true)?;
                    Ok(vec![f.lu, f.pivots])
                }),
            );
            see("solve", dispatches(n, batch, |cx, a, b| Ok(vec![solve(cx, a, b, false)?.0])));
            see("inverse", dispatches(n, batch, |cx, a, _| Ok(vec![inverse(cx, a)?.0])));
            see("reflections", dispatches(n, batch, |cx, a, _| Ok(vec![reflections(cx, a)?.vectors])));
            see(
                "qr",
                dispatches(n, batch, |cx, a, _| {
                    let (q, r) = qr(cx, a, false)?;
                    Ok(vec![q, r])
                }),
            );
        }
    }
    // Each algorithm is one loop, and one more dispatch for each triangle that is cut out of a factor too large
    // for one invocation. A solution consists of a factorization, the row exchanges and two triangular solves.
    let most = |name: &str| match name.split(' ').next() {
        Some("solve" | "inverse") => 4,
        Some("qr") => 3,
        Some("cholesky" | "lu") => 2,
        _ => 1,
    };
    assert!(found.iter().all(|(name, n)| *n <= most(name)), "{found:#?}");
}
