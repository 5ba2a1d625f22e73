//! A few long rows, which a device with many cores computes in parts, compared with the evaluator.

use std::collections::BTreeMap;
use wgfc_compiler::Options;
use wgfc_compiler::device::DeviceProfile;
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{Border, DType, Dim, Graph, Op, ReduceOp, Scalar, Tensor, TensorType};
use wgfc_runtime::Session;
use wgfc_runtime::testing::gpus;

fn check(dtype: DType, shape: &[usize], op: Op) {
    let what = format!("{op:?} of {dtype} {shape:?}");
    let mut g = Graph::new();
    let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
    let x = g.add_input("x", TensorType::new(dtype, dims));
    let y = g.push(op, &[x], &["op".into()]).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y.into() });
    let of = |i: usize| match dtype.is_int() {
        true => Scalar::from_i64(dtype, (i % 1013) as i64 - 500),
        false => Scalar::from_f64(dtype, (i % 251) as f64 / 256.0),
    };
    let all: Vec<Scalar> = (0..shape.iter().product()).map(of).collect();
    let x = Tensor::from_scalars(dtype, shape.to_vec(), &all);
    let given: BTreeMap<String, Tensor> = [("x".to_owned(), x.clone())].into();
    let want = &evaluate(&g, &given).unwrap()[0];
    let options =
        Options { profile: DeviceProfile::named("discrete").unwrap_or_default(), ..Options::default() };
    let program =
        wgfc_compiler::pipeline::compile_graph(g, Stats::default(), &options, &mut |_, _| {}).unwrap();
    assert!(program.dispatches.len() > 1, "{what} is not in parts");
    for gpu in gpus() {
        let got = Session::new_blocking(gpu, &program).unwrap().run_blocking(&[("x", x.clone())]).unwrap();
        let got = &got[0].1;
        assert_eq!(got.shape, want.shape, "{what}");
        for (i, (a, b)) in got.scalars().unwrap().iter().zip(want.scalars().unwrap()).enumerate() {
            let (a, b) = (a.as_f64(), b.as_f64());
            let apart = if dtype.is_int() { 0.0 } else { 1e-3 * b.abs().max(1e-6) };
            assert!((a - b).abs() <= apart, "{what} at {i}: {a}, not {b}, on {}", gpu.summary().name);
        }
    }
}

#[test]
fn combinations() {
    let reduce = |op, axes: &[usize]| Op::Reduce { op, axes: axes.to_vec() };
    check(DType::F32, &[300_007], reduce(ReduceOp::Sum, &[0]));
    check(DType::F16, &[60_000, 8], reduce(ReduceOp::Max, &[0]));
    check(DType::F16, &[300_000], reduce(ReduceOp::Min, &[0]));
    check(DType::I64, &[2, 100_003], reduce(ReduceOp::Sum, &[1]));
    check(DType::F32, &[70_000, 16], reduce(ReduceOp::Max, &[0]));
    check(DType::F32, &[32, 3, 100, 70], reduce(ReduceOp::Sum, &[0, 2, 3]));
}

#[test]
fn running_combinations() {
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        let scan = |axis| Op::PrefixScan { op: ReduceOp::Sum, axis, exclusive, reverse };
        check(DType::F32, &[2, 131_072], scan(1));
        check(DType::I64, &[3, 100_003], scan(1));
        check(DType::F32, &[50_000, 8], scan(0));
        check(DType::I32, &[2, 60_000, 3], scan(1));
    }
    check(
        DType::F16,
        &[100_000],
        Op::PrefixScan { op: ReduceOp::Max, axis: 0, exclusive: false, reverse: false },
    );
}

#[test]
fn exponentials() {
    for log in [false, true] {
        check(DType::F32, &[3, 200_003], Op::Softmax { axis: 1, log });
        check(DType::F16, &[100_000, 8], Op::Softmax { axis: 0, log });
    }
}
