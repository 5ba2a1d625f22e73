//! Correctly rounded quotients, on every adapter and also with simulated inexact divisions.

use crate::gpu::*;
use std::collections::BTreeMap;
use wgfc_compiler::kernel::*;
use wgfc_ir::testing::Rng;
use wgfc_ir::{BinaryOp, DType};

/// Errors to add to a division of mantissas, in units in the last place.
const OFF: [i32; 5] = [0, 1, -1, 3, -3];

/// Pairs of normal numbers with a normal quotient: of all sizes, close to each other, and with integer or
/// nearly integer quotients.
fn pairs() -> Vec<(f32, f32)> {
    let mut rng = Rng::new(5);
    let mut out =
        vec![(1.0, 3.0), (3.0, 1.0), (41.0, 41.0), (-7.0, 49.0), (f32::MAX, 1.5), (f32::MIN_POSITIVE, 0.75)];
    let mut bits = || f32::from_bits(rng.bits() as u32);
    while out.len() < 60_000 {
        let (a, b) = (bits(), bits());
        let near = f32::from_bits(b.to_bits() ^ (a.to_bits() & 3));
        let whole = (a.to_bits() % 4096) as f32 * b;
        for (a, b) in [(a, b), (near, b), (whole, b), (b, whole)] {
            let whole = |v: f32| v.is_normal();
            if whole(a) && whole(b) && whole(a / b) {
                out.push((a, b));
            }
        }
    }
    out
}

#[test]
fn quotients_are_those_of_ieee_754() {
    let pairs = pairs();
    let n = c(pairs.len() as i64);
    let mut case = Case::new(&[]);
    let [a, b] = [0, 1].map(|i| case.tensor(std::slice::from_ref(&n), TensorKind::Input(i)));
    let out = case.tensor(std::slice::from_ref(&n), TensorKind::Output(0));
    let mut body = Body::default();
    let [x, y] = [a, b].map(|t| body.push(Expr::Load { tensor: t, offset: v(0), guard: None }, DType::F32));
    let q = body.push(Expr::Binary(BinaryOp::Quot, x, y), DType::F32);
    let stores = vec![Store { tensor: out, offset: v(0), value: q, guard: None, combine: None }];
    let kernel = Kernel { family: Family::Map(Map { elements: n }), body, stores, nodes: vec![] };
    let emitted = case.with_context(|cx| emit(&kernel, cx)).unwrap_or_else(|e| panic!("{e}"));
    let data = BTreeMap::from([
        (a, pairs.iter().map(|p| p.0).collect::<Vec<f32>>()),
        (b, pairs.iter().map(|p| p.1).collect()),
    ]);
    for gpu in gpus() {
        for off in OFF {
            let mut k = emitted.clone();
            let line = k
                .wgsl
                .lines()
                .find(|l| l.contains("let near = "))
                .expect("the division of mantissas")
                .to_owned();
            let division = line.trim().trim_start_matches("let near = ").trim_end_matches(';');
            let sloppy = format!("let near = bitcast<f32>(bitcast<i32>({division}) + {off});");
            k.wgsl = k.wgsl.replace(&line, &sloppy);
            let got = run(&gpu, &case, &k, &data, out);
            for ((a, b), q) in pairs.iter().zip(got) {
                assert_eq!(q, a / b, "{a:e} / {b:e} with a division off by {off} on {}", gpu.name);
            }
        }
    }
}
