//! States on devices: the same numbers as the evaluator's, run after run.

use std::collections::BTreeMap;
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::program::Stats;
use wgfc_ir::{Graph, Tensor};
use wgfc_runtime::Session;
use wgfc_runtime::testing::gpus;

const CACHES: &str = r#"
graph (x: %2, at: %3) -> (y: %9, z: %14) {
  state k: %0 -> %5 axis 1 from past by seq
  state v: %1 -> %8
  state h: %10 -> %12
  %0 = input : f32[2, 17, 3] as "k"
  %1 = input : f16[2, 7, 3] as "v"
  %2 = input : f32[2, seq, 3] as "x"
  %3 = input : i64[seq] as "at"
  %4 = map [2, seq, 3] { mul(a0, a0) } (%2) : f32[2, seq, 3] @ "square"
  %5 = scatter set writes [%0, past + %1, %2] (%0, %4) : f32[2, 17, 3] @ "append"
  %6 = view [2, past + seq, 3] reads [%0, %1, %2] (%5) : f32[2, past + seq, 3] @ "present"
  %7 = map [2, seq, 3] { cast(f16, a0) } (%2) : f16[2, seq, 3] @ "half"
  %8 = scatter set writes [%0, $2[%1], %2] (%1, %7, %3) : f16[2, 7, 3] @ "replace"
  %9 = reduce sum axes [1] (%6) : f32[2, 1, 3] as "y" @ "total"
  %10 = input : f32[2, 1, 3] as "h"
  %11 = reduce sum axes [1] (%2) : f32[2, 1, 3] @ "now"
  %12 = map [2, 1, 3] { add(mul(a0, 0.5:f32), a1) } (%10, %11) : f32[2, 1, 3] @ "decay"
  %13 = map [2, 7, 3] { cast(f32, a0) } (%8) : f32[2, 7, 3] @ "wide"
  %14 = map [2, 7, 3] { add(a0, add(a1, a2)) } (%13, %12, %10) : f32[2, 7, 3] as "z" @ "sum"
}
"#;

fn graph() -> Graph {
    let g = wgfc_ir::text::parse(CACHES).unwrap();
    wgfc_ir::verify::verify(&g).unwrap();
    g
}

fn inputs(step: usize, seq: usize) -> BTreeMap<String, Tensor> {
    let x: Vec<f32> = (0..2 * seq * 3).map(|i| ((i * 7 + step * 5) % 13) as f32 * 0.25 - 1.0).collect();
    // All different; 7 is outside, the even ones count from the end.
    let at = (0..seq).map(|i| ((i * 3 + step) % 8) as i64);
    let at: Vec<i64> = at.map(|i| if i % 2 == 0 { i - 7 } else { i }).collect();
    [("x", Tensor::from_f32(vec![2, seq, 3], &x)), ("at", Tensor::from_i64(vec![seq], &at))]
        .map(|(n, t)| (n.to_owned(), t))
        .into()
}

#[test]
fn several_runs_agree_with_the_evaluator() {
    for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
        let options = Options { fusion, ..Options::default() };
        let graph = graph();
        let kernels = wgfc_compiler::fuse::fuse(&graph, &options).unwrap();
        let program =
            wgfc_compiler::assemble::assemble(&graph, &kernels, &options, Stats::default()).unwrap();
        assert_eq!(program.states.len(), 3);
        for gpu in gpus() {
            let mut session = Session::new_blocking(gpu, &program).unwrap();
            let mut states = StateValues::default();
            let mut past = 0;
            for (step, seq) in [5, 1, 1, 7, 3].into_iter().enumerate() {
                let given = inputs(step, seq);
                let want = evaluate_from(&graph, &given, &mut states).unwrap();
                session.set_symbol("past", past).unwrap();
                past += seq as i64;
                let named: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
                let got = session.run_blocking(&named).unwrap();
                for ((name, got), want) in got.iter().zip(&want) {
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4;
                    let (g, w) = (got.to_f32s().unwrap(), want.to_f32s().unwrap());
                    assert!(g.iter().zip(&w).all(close), "{fusion:?} step {step} {name}: {g:?} for {w:?}");
                }
            }
        }
    }
}
