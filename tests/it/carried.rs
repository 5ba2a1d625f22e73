//! Random loops over small states, whose steps scan along rows, swap states, select between them or pass them
//! on unchanged. They test which states are updated in place and which are copied.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{Fusion, Options, Technique};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::testing::{Rng, random_tensor};
use wgfc_ir::{
    BinaryOp, Border, Builder, DType, Dim, Graph, Op, Poly, ReduceOp, Tensor, TensorType, UnaryOp, Value,
};

/// A value of the states' shape, computed from two others.
fn operation(b: &mut Builder<'_>, rng: &mut Rng, x: Value, y: Value) -> Value {
    let shape = b.shape(x);
    match rng.below(8) {
        0 | 1 => {
            let (exclusive, reverse) = (!rng.one_in(3), rng.one_in(2));
            let op = Op::PrefixScan { op: ReduceOp::Sum, axis: rng.below(2), exclusive, reverse };
            let sum = b.push(op, &[x]).unwrap();
            b.binary_scalar(BinaryOp::Mul, sum, 0.25).unwrap()
        }
        2 => {
            let axis = rng.below(2);
            let op = *rng.pick(&[ReduceOp::Sum, ReduceOp::Max]).unwrap();
            let all = b.reduce(op, x, &[axis], true).unwrap();
            let all = b.expand(all, &shape).unwrap();
            b.binary(BinaryOp::Sub, y, all).unwrap()
        }
        3 => {
            let last = &shape[1] - &Poly::ONE;
            b.view(x, shape, vec![Poly::var(0), &last - &Poly::var(1)]).unwrap()
        }
        4 => b.unary(UnaryOp::Tanh, x).unwrap(),
        5 => {
            let sum = b.binary(BinaryOp::Add, x, y).unwrap();
            b.binary_scalar(BinaryOp::Mul, sum, 0.5).unwrap()
        }
        6 => y,
        _ => x,
    }
}

/// Appends a few random operations on some of the values.
fn operations(g: &mut Graph, rng: &mut Rng, values: &mut Vec<Value>) {
    for _ in 0..1 + rng.below(4) {
        let (x, y) = (*rng.pick(values).unwrap(), *rng.pick(values).unwrap());
        values.push(operation(&mut Builder::new(g, "an operation"), rng, x, y));
    }
}

/// The body of a loop step or of a branch, with `count` values.
fn body(rng: &mut Rng, ty: &TensorType, count: usize, depth: usize, step: bool) -> Graph {
    let mut g = Graph::new();
    let mut values: Vec<Value> = (0..count).map(|i| g.add_input(&format!("x{i}"), ty.clone())).collect();
    let number = step.then(|| g.add_input("step", TensorType::new(DType::I64, vec![])));
    operations(&mut g, rng, &mut values);
    if depth > 0 && rng.one_in(2) {
        let given: Vec<Value> = (0..count).map(|_| *rng.pick(&values).unwrap()).collect();
        let made = if rng.one_in(2) {
            let mut b = Builder::new(&mut g, "a condition");
            let condition = match number {
                Some(n) => {
                    let one = b.int(DType::I64, 1);
                    b.binary(BinaryOp::Eq, n, one).unwrap()
                }
                None => {
                    let all = b.reduce(ReduceOp::Sum, given[0], &[0, 1], false).unwrap();
                    let zero = b.scalar(DType::F32, 0.0);
                    b.binary(BinaryOp::Lt, zero, all).unwrap()
                }
            };
            let mut side = || Box::new(body(rng, ty, count, depth - 1, false));
            let op = Op::If { then_branch: side(), else_branch: side() };
            g.push(op, &[&[condition], &given[..]].concat(), &["a branch".into()]).unwrap()
        } else {
            looped(&mut g, rng, ty, &given, depth - 1)
        };
        values.extend((0..count as u32).map(|port| Value { node: made, port }));
        operations(&mut g, rng, &mut values);
    }
    let recent = values.len().saturating_sub(count + 2);
    for i in 0..count {
        let value = if rng.one_in(5) { values[i] } else { *rng.pick(&values[recent..]).unwrap() };
        g.outputs.push(Border { name: format!("y{i}").into(), value });
    }
    g
}

/// A loop over the given values, of one step or several.
fn looped(g: &mut Graph, rng: &mut Rng, ty: &TensorType, given: &[Value], depth: usize) -> wgfc_ir::NodeId {
    let steps = *rng.pick(&[1i64, 2, 3, 5, 70]).unwrap();
    let body = Box::new(body(rng, ty, given.len(), depth, true));
    let numbers = Builder::new(g, "numbers").iota(&[Dim::from(steps)], Poly::var(0), DType::I64).unwrap();
    let op = Op::Scan {
        body,
        carried: given.len(),
        scanned: 1,
        reverse_inputs: vec![false],
        reverse_outputs: vec![],
    };
    g.push(op, &[given, &[numbers]].concat(), &["a loop".into()]).unwrap()
}

fn random(seed: u64) -> (Graph, BTreeMap<String, Tensor>) {
    let mut rng = Rng::new(seed);
    let rows = *rng.pick(&[1usize, 3, 5]).unwrap();
    let len = *rng.pick(&[1usize, 7, 33, 300]).unwrap();
    let ty = TensorType::new(DType::F32, [rows, len].map(|n| Dim::from(n as i64)).to_vec());
    let count = 1 + rng.below(3);
    let mut g = Graph::new();
    let given: Vec<Value> = (0..count).map(|i| g.add_input(&format!("x{i}"), ty.clone())).collect();
    let made = looped(&mut g, &mut rng, &ty, &given, 2);
    for port in 0..count as u32 {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node: made, port } });
    }
    let tensor = |rng: &mut Rng| random_tensor(rng, DType::F32, vec![rows, len]);
    let inputs = (0..count).map(|i| (format!("x{i}"), tensor(&mut rng))).collect();
    (g, inputs)
}

/// `WGFC_CARRIED_SEEDS=1..2000` selects the seeds; graphs with results that are not finite are skipped.
#[test]
fn what_steps_carry_is_read_before_it_is_written() {
    let test = "what_steps_carry_is_read_before_it_is_written";
    let gpus = Backend::adapters();
    if gpus.is_empty() {
        return crate::skip(test, "there is no adapter");
    }
    let range = std::env::var("WGFC_CARRIED_SEEDS").unwrap_or("1..40".into());
    let (from, to) = range.split_once("..").expect("FROM..TO");
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    let full = Options::default;
    let without = |t: Technique| Options { without: [t].into(), ..full() };
    let level = |fusion| Options { fusion, ..full() };
    let mut failures = vec![];
    let mut done = 0;
    for seed in from..to {
        let (graph, inputs) = random(seed);
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let finite = |t: &Tensor| t.to_f32s().unwrap().iter().all(|v| v.abs() < 1e4);
        if !want.iter().all(finite) {
            continue;
        }
        done += 1;
        for (what, options) in [
            ("full", full()),
            ("elementwise", level(Fusion::Elementwise)),
            ("none", level(Fusion::None)),
            ("split", without(Technique::Loops)),
            ("in workgroups", without(Technique::LoopsInInvocations)),
        ] {
            let program = match compile_graph(graph.clone(), Stats::default(), &options, &mut |_, _| {}) {
                Ok(p) => p,
                Err(e) => {
                    failures.push(format!("seed {seed}, {what}: {e}"));
                    continue;
                }
            };
            for gpu in &gpus {
                let name = gpu.summary().name.clone();
                let got = session(gpu, &program).and_then(|mut s| run_session(&mut s, &inputs));
                let got = match got {
                    Ok(got) => got,
                    Err(e) => {
                        failures.push(format!("seed {seed}, {what} on {name}: {e:?}"));
                        continue;
                    }
                };
                let off = got.iter().zip(&want).any(|(g, w)| {
                    let (g, w) = (g.to_f32s().unwrap(), w.to_f32s().unwrap());
                    g.len() != w.len()
                        || g.iter()
                            .zip(&w)
                            .any(|(g, w)| (g - w).abs().is_nan() || (g - w).abs() > 1e-3 * w.abs().max(1.0))
                });
                if off {
                    failures.push(format!("seed {seed}, {what} on {name}: other numbers"));
                }
            }
        }
    }
    assert!(done * 2 > to - from, "{done} of {} seeds", to - from);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
