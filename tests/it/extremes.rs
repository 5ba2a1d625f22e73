//! Max, min, argmax and argmin over elements some of which are NaN, in every family of kernels.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{Fusion, Options, Technique};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{
    BinaryOp, Border, Builder, DType, Dim, GatherAxis, Graph, Op, Poly, ReduceOp, Scalar, Tensor, TensorType,
    UnaryOp, Value,
};
use wgfc_selftest::{Tolerance, equal};

const ROWS: usize = 19;
const EXTREMES: [ReduceOp; 2] = [ReduceOp::Max, ReduceOp::Min];
const EXACT: Tolerance = Tolerance { rtol: 0.0, atol: 0.0 };

/// Rows of numbers, most of which contain NaN of either sign: at an end, in another lane or workgroup, in
/// several places, everywhere, or beside infinities.
fn rows(t: DType, len: usize) -> Tensor {
    let mut v: Vec<f64> = (0..ROWS * len).map(|i| ((i * 7919) % 1009) as f64 / 8.0 - 63.0).collect();
    for (i, row) in v.chunks_mut(len).enumerate() {
        let nan = if i / 9 % 2 == 0 { f64::NAN } else { -f64::NAN };
        match i % 9 {
            1 => row[0] = nan,
            2 => row[len - 1] = nan,
            3 => row[33 % len] = nan,
            4 => row[5 * len / 7] = nan,
            5 => (row[len / 3], row[len / 2]) = (nan, -nan),
            6 => row.fill(nan),
            7 => {
                (row[0], row[len - 1]) = (f64::INFINITY, f64::NEG_INFINITY);
                row[len / 2] = nan;
            }
            8 => {
                row.fill(if i < 9 { f64::NEG_INFINITY } else { f64::INFINITY });
                row[2 * len / 3] = nan;
            }
            _ => {}
        }
    }
    let v: Vec<Scalar> = v.into_iter().map(|x| Scalar::from_f64(t, x)).collect();
    Tensor::from_scalars(t, vec![ROWS, len], &v)
}

/// Compares every adapter with the evaluator.
fn compare(what: &str, g: &Graph, inputs: &BTreeMap<String, Tensor>, options: &Options) {
    wgfc_ir::verify::verify(g).unwrap();
    let want = evaluate(g, inputs).unwrap();
    for gpu in Backend::adapters() {
        let program = compile_graph(g.clone(), Stats::default(), options, &mut |_, _| {}).unwrap();
        let got = run_session(&mut session(&gpu, &program).unwrap(), inputs).unwrap();
        for ((got, want), output) in got.iter().zip(&want).zip(&g.outputs) {
            let on = &gpu.summary().name;
            equal(got, want, EXACT).unwrap_or_else(|e| panic!("{} {what} on {on}: {e}", output.name));
        }
    }
}

/// Every kind of operation that finds the largest or smallest element of `x[rows, len]`.
fn graph(t: DType, rows: Dim, len: Dim) -> Result<Graph, String> {
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(t, vec![rows.clone(), len.clone()]));
    let at = g.add_input("at", TensorType::new(DType::I64, vec![rows.clone()]));
    let mut outputs: Vec<(String, Value)> = vec![];
    let mut b = Builder::new(&mut g, "extremes");
    for op in EXTREMES {
        for axis in [0, 1] {
            outputs.push((format!("{op:?} along {axis}"), b.reduce(op, x, &[axis], false)?));
            for last in [false, true] {
                let y = b.push(Op::ArgReduce { op, axis, last }, &[x])?;
                outputs.push((format!("place of the {op:?} along {axis}, last: {last}"), y));
            }
            for (exclusive, reverse) in [(false, false), (true, true)] {
                let y = b.push(Op::PrefixScan { op, axis, exclusive, reverse }, &[x])?;
                outputs.push((format!("running {op:?} along {axis}, {exclusive}, {reverse}"), y));
            }
        }
        outputs.push((format!("{op:?} of all"), b.reduce(op, x, &[0, 1], false)?));
        let windows = vec![rows.clone(), &len - &Poly::from(4i64), 5i64.into()];
        let windows = b.view(x, windows, vec![Poly::var(0), &Poly::var(1) + &Poly::var(2)])?;
        outputs.push((format!("{op:?} of windows"), b.reduce(op, windows, &[2], false)?));
        // Several rows are scattered onto the first three.
        let few = b.view(x, vec![3i64.into(), len.clone()], vec![Poly::var(0), Poly::var(1)])?;
        let index =
            vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }, GatherAxis::Affine(Poly::var(1))];
        let y = b.push(Op::Scatter { reduce: Some(op), index }, &[few, x, at])?;
        outputs.push((format!("{op:?} at places"), y));
        // The extreme is read by something other than an exponential.
        let most = b.reduce(op, x, &[1], true)?;
        let from = b.binary(BinaryOp::Sub, x, most)?;
        outputs.push((format!("distance from the {op:?}"), from));
    }
    g.outputs = outputs.into_iter().map(|(n, value)| Border { name: n.into(), value }).collect();
    Ok(g)
}

#[test]
fn nan_among_numbers_is_found() {
    for (t, len, fusion) in [
        (DType::F32, 7, Fusion::Full),
        (DType::F32, 257, Fusion::None),
        (DType::F32, 257, Fusion::Full),
        (DType::F32, 4100, Fusion::Full),
        (DType::F16, 129, Fusion::Full),
        (DType::BF16, 130, Fusion::Full),
    ] {
        let places = (0..ROWS as i64).map(|i| i % 3).collect::<Vec<_>>();
        let inputs = BTreeMap::from([
            ("x".to_owned(), rows(t, len)),
            ("at".to_owned(), Tensor::from_i64(vec![ROWS], &places)),
        ]);
        let named = len == 257;
        let extents = if named { [Dim::sym("n"), Dim::sym("m")] } else { [ROWS.into(), len.into()] };
        let [n, m] = extents;
        let options = Options { fusion, ..Options::default() };
        compare(&format!("{t} {len} {fusion:?}"), &graph(t, n, m).unwrap(), &inputs, &options);
    }
}

/// Extremes of `x` and `y`, both `[8, 7]`, and of their negations.
fn of_opposites(t: DType) -> Result<Graph, String> {
    let mut g = Graph::new();
    let ty = TensorType::new(t, vec![8i64.into(), 7i64.into()]);
    let (x, y) = (g.add_input("x", ty.clone()), g.add_input("y", ty));
    let mut outputs: Vec<(String, Value)> = vec![];
    let mut b = Builder::new(&mut g, "opposites");
    let [minus_x, minus_y] = [b.unary(UnaryOp::Neg, x)?, b.unary(UnaryOp::Neg, y)?];
    let size = b.unary(UnaryOp::Abs, x)?;
    let minus_size = b.unary(UnaryOp::Neg, size)?;
    for (op, binary) in [(ReduceOp::Max, BinaryOp::Max), (ReduceOp::Min, BinaryOp::Min)] {
        for (what, v) in [("−x", minus_x), ("−|x|", minus_size)] {
            for axis in [0, 1] {
                outputs.push((format!("{op:?} of {what} along {axis}"), b.reduce(op, v, &[axis], false)?));
            }
        }
        let two = b.binary(binary, x, minus_y)?;
        let three = b.binary(binary, minus_x, two)?;
        let four = b.binary(binary, three, y)?;
        let beyond_constant = b.binary_scalar(binary, four, 5.0)?;
        for (what, v) in [("two", two), ("three", three), ("four", four), ("four and 5", beyond_constant)] {
            outputs.push((format!("{op:?} of {what}"), v));
            outputs.push((format!("sum of {op:?} of {what}"), b.reduce(ReduceOp::Sum, v, &[0], false)?));
        }
    }
    g.outputs = outputs.into_iter().map(|(n, value)| Border { name: n.into(), value }).collect();
    Ok(g)
}

#[test]
fn signs_of_operands_are_kept() {
    for t in [DType::I32, DType::I8, DType::I64, DType::F32] {
        let values = |by: usize| -> Vec<Scalar> {
            (0..56).map(|i| Scalar::from_i64(t, ((i * by) % 101) as i64 - 50)).collect()
        };
        let of = |by| Tensor::from_scalars(t, vec![8, 7], &values(by));
        let inputs = BTreeMap::from([("x".to_owned(), of(7919)), ("y".to_owned(), of(6007))]);
        for fusion in [Fusion::Full, Fusion::None] {
            let options = Options { fusion, ..Options::default() };
            compare(&format!("{t} {fusion:?}"), &of_opposites(t).unwrap(), &inputs, &options);
        }
    }
}

/// A scan over `x[rows, steps · part]`: the running extremes of each row, and the argmax or argmin of each
/// step's part.
fn steps(part: usize, steps: usize) -> Graph {
    let row = TensorType::new(DType::F32, vec![ROWS.into()]);
    let mut body = Graph::new();
    let best = body.add_input("best", row.clone());
    let slice = body.add_input("slice", TensorType::new(DType::F32, vec![ROWS.into(), part.into()]));
    let mut b = Builder::new(&mut body, "step");
    let here = b.reduce(ReduceOp::Max, slice, &[1], false).unwrap();
    let next = b.binary(BinaryOp::Max, best, here).unwrap();
    let first = b.push(Op::ArgReduce { op: ReduceOp::Max, axis: 1, last: false }, &[slice]).unwrap();
    let last = b.push(Op::ArgReduce { op: ReduceOp::Min, axis: 1, last: true }, &[slice]).unwrap();
    for value in [next, here, first, last] {
        body.outputs.push(Border { name: "o".into(), value });
    }
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, vec![ROWS.into(), (part * steps).into()]));
    let best = g.add_input("best", row);
    let mut b = Builder::new(&mut g, "loop");
    let at = &(&Poly::var(0) * part as i64) + &Poly::var(2);
    let cut = b.view(x, vec![steps.into(), ROWS.into(), part.into()], vec![Poly::var(1), at]).unwrap();
    let op = Op::Scan {
        body: Box::new(body),
        carried: 1,
        scanned: 1,
        reverse_inputs: vec![false],
        reverse_outputs: vec![false; 3],
    };
    let node = g.push(op, &[best, cut], &["loop".into()]).unwrap();
    for port in 0..4 {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    g
}

#[test]
fn nan_among_numbers_is_found_in_loops() {
    // Parts reduced by one invocation, parts reduced by a workgroup, and split loops with kernels for each step.
    for (part, split) in [(5, false), (96, false), (5, true)] {
        let inputs = BTreeMap::from([
            ("x".to_owned(), rows(DType::F32, part * 6)),
            ("best".to_owned(), Tensor::from_f32(vec![ROWS], &[f32::NEG_INFINITY; ROWS])),
        ]);
        let without = if split { [Technique::Loops].into() } else { Default::default() };
        let options = Options { without, ..Options::default() };
        compare(&format!("in steps of {part}, split: {split}"), &steps(part, 6), &inputs, &options);
    }
}
