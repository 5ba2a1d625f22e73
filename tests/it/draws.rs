//! Random numbers on devices equal the evaluator's and are determined by the seed and the offset.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use wgfc_compiler::Options;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::lower::Lowering;
use wgfc_compiler::lower::random::{self, Distribution, named_seed};
use wgfc_compiler::pipeline::compile_graph;
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{Border, DType, Dim, Graph, Scalar, Tensor, TensorType};
use wgfc_selftest::{Tolerance, equal};

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, vec![Dim::sym("n"), 33i64.into()]));
    let mut cx = Lowering::new(&mut g);
    let shape = cx.shape(x);
    let mut number = 0u8;
    let mut seed = || {
        number += 1;
        named_seed([number].into_iter())
    };
    let ratio = cx.constant(Tensor::scalar(Scalar::from_f64(DType::F32, 0.25)));
    let (dropped, kept) = random::drop(&mut cx, x, ratio, seed()).unwrap();
    let even = random::uniform(&mut cx, shape.clone(), DType::F16, (-1.0, 1.0), seed()).unwrap();
    let normal = random::normal(&mut cx, shape.clone(), DType::F32, (1.0, 2.0), seed()).unwrap();
    let integers = random::integers(&mut cx, shape.clone(), DType::I64, (-5, 1 << 40), seed()).unwrap();
    let tries = random::of(&mut cx, shape, DType::F32, Distribution::Exponential(2.0), seed()).unwrap();
    let order = random::permutation(&mut cx, 1000i64.into(), DType::I64, seed()).unwrap();
    for (i, value) in [kept, even, integers, order, dropped, normal, tries].into_iter().enumerate() {
        g.outputs.push(Border { name: format!("y{i}").into(), value });
    }
    g
}

#[test]
fn devices_draw_what_the_evaluator_draws() {
    let g = graph();
    let x: Vec<f32> = (0..67 * 33).map(|i| i as f32 / 8.0).collect();
    let mut seen: Vec<Vec<Tensor>> = vec![];
    let program = compile_graph(g.clone(), Stats::default(), &Options::default(), &mut |_, _| {}).unwrap();
    let mut sessions: Vec<_> =
        Backend::adapters().iter().map(|gpu| session(gpu, &program).unwrap()).collect();
    for (seed, offset) in
        [(None, None), (Some(0), Some(0)), (Some(7), None), (None, Some(7)), (Some(7), Some(1 << 35))]
    {
        let mut given = BTreeMap::from([("x".to_owned(), Tensor::from_f32(vec![67, 33], &x))]);
        for (name, v) in [("seed", seed), ("offset", offset)] {
            // The offset may be a scalar or have one axis.
            let shape = if offset.is_some() { vec![1] } else { vec![] };
            given.extend(v.map(|v: i64| (name.to_owned(), Tensor::from_i64(shape, &[v]))));
        }
        let want = evaluate(&g, &given).unwrap();
        for s in &mut sessions {
            for (i, (got, want)) in run_session(s, &given).unwrap().iter().zip(&want).enumerate() {
                // Results with quotients, logarithms and cosines agree only approximately.
                let near = if i < 4 { 0.0 } else { 1e-4 };
                let tolerance = Tolerance { rtol: near, atol: near };
                equal(got, want, tolerance).unwrap_or_else(|e| panic!("{i} of {seed:?}, {offset:?}: {e}"));
            }
        }
        seen.push(want);
    }
    // An omitted input counts as 0; all other combinations give different numbers.
    for (i, a) in seen.iter().enumerate() {
        for (j, b) in seen.iter().enumerate() {
            assert_eq!(a == b, i == j || i + j == 1, "{i} {j}");
        }
    }
}

/// Dropout and `rand` in a while_loop, a scan and a cond of torch: `fixtures/repro/draws-in-loops.pt2` returns `h, c, ys[4, 5], branch[4, 5]`.
#[test]
fn each_step_of_a_program_draws_its_own() {
    let bytes = include_bytes!("../../fixtures/repro/draws-in-loops.pt2");
    let options = Options::default();
    let g = import(bytes, &NoExternalData, &options).unwrap().graph;
    let x = Tensor::from_f32(vec![4, 5], &[1.0; 20]);
    let run = |seed: i64| -> BTreeMap<String, Tensor> {
        [("x".to_owned(), x.clone()), ("seed".to_owned(), Tensor::from_i64(vec![], &[seed]))].into()
    };
    let drawn = |seed| evaluate(&g, &run(seed)).unwrap();
    let ys = drawn(3)[2].to_f32s().unwrap();
    let mut rows: Vec<&[f32]> = ys.chunks(5).collect();
    rows.dedup();
    assert_eq!(rows.len(), 4, "{ys:?}");
    for (i, (a, b)) in drawn(3).iter().zip(&drawn(4)).enumerate() {
        assert_ne!(a, b, "output {i}");
    }
    let program = compile_graph(g.clone(), Stats::default(), &options, &mut |_, _| {}).unwrap();
    for gpu in Backend::adapters() {
        let mut s = session(&gpu, &program).unwrap();
        for (got, want) in run_session(&mut s, &run(3)).unwrap().iter().zip(&drawn(3)) {
            equal(got, want, Tolerance { rtol: 1e-5, atol: 1e-5 }).unwrap();
        }
    }
}
