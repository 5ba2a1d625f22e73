//! Loops with more iterations than some drivers allow, in every family of kernels.

use std::collections::BTreeMap;
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{
    BinaryOp, Border, Builder, DType, Dim, GatherAxis, Graph, NormKind, Op, Poly, ReduceOp, Tensor,
    TensorType, Value,
};
use wgfc_runtime::testing::gpus;
use wgfc_runtime::{RunError, Session};

/// More iterations than such a driver finishes in one loop.
const LONG: i64 = 70_001;
/// The length for axes whose positions each take a 64-bit division, which is itself a loop.
const SHORTER: i64 = 2_003;

/// Operators that iterate along an axis, over `n` and `m` positions.
fn graph(n: &Dim, m: &Dim) -> Result<Graph, String> {
    let mut g = Graph::new();
    let mut input = |name: &str, dtype, shape: Vec<Dim>| g.add_input(name, TensorType::new(dtype, shape));
    let (two, three, four) = (Dim::from(2i64), Dim::from(3i64), Dim::from(4i64));
    // Columns, rows, keys, and integers.
    let x = input("x", DType::F32, vec![n.clone(), three.clone()]);
    let y = input("y", DType::F32, vec![two.clone(), n.clone()]);
    let k = input("k", DType::F32, vec![n.clone(), four.clone()]);
    let i = input("i", DType::I64, vec![m.clone(), two.clone()]);
    let at = input("at", DType::I64, vec![n.clone()]);
    let q = input("q", DType::F32, vec![two.clone(), four]);
    let base = input("base", DType::F32, vec![three.clone()]);
    let mut b = Builder::new(&mut g, "long");
    let mut outputs: Vec<(&str, Value)> = vec![];
    for (name, op) in [("sum", ReduceOp::Sum), ("max", ReduceOp::Max), ("min", ReduceOp::Min)] {
        outputs.push((name, b.reduce(op, x, &[0], false)?));
        outputs.push((name, b.reduce(op, y, &[1], false)?));
    }
    outputs.push(("all", b.reduce(ReduceOp::Sum, x, &[0, 1], false)?));
    outputs.push(("mean", b.mean(y, &[1])?));
    let large = b.binary_scalar(BinaryOp::Gt, x, 5.5)?;
    outputs.push(("any", b.reduce(ReduceOp::Max, large, &[0], false)?));
    for (name, last) in [("first", false), ("last", true)] {
        for (v, axis) in [(x, 0), (y, 1)] {
            outputs.push((name, b.push(Op::ArgReduce { op: ReduceOp::Max, axis, last }, &[v])?));
        }
    }
    for (v, axis) in [(x, 0), (y, 1)] {
        let op = Op::PrefixScan { op: ReduceOp::Sum, axis, exclusive: false, reverse: false };
        outputs.push(("running", b.push(op, &[v])?));
        outputs.push(("softmax", b.push(Op::Softmax { axis, log: false }, &[v])?));
    }
    let norm = Op::Norm { kind: NormKind::Layer, axes: vec![1], epsilon: 1e-5f32.to_bits() };
    outputs.push(("norm", b.push(norm, &[y])?));
    outputs.push(("product", b.matmul(y, x)?));
    let scores = Op::Attention { scale: 0.5f32.to_bits(), empty_is_zero: false };
    outputs.push(("attention", b.push(scores, &[q, k, k])?));
    let axis = GatherAxis::Data { input: 2, at: vec![Poly::var(0)] };
    let updates = b.view(y, vec![n.clone()], vec![Poly::ZERO, Poly::var(0)])?;
    let scatter = Op::Scatter { reduce: Some(ReduceOp::Sum), index: vec![axis] };
    outputs.push(("scattered", b.push(scatter, &[base, updates, at])?));
    let seven = b.int(DType::I64, 7);
    let part = b.binary(BinaryOp::Div, i, seven)?;
    outputs.push(("whole", b.reduce(ReduceOp::Sum, part, &[0], false)?));
    for (j, (name, v)) in outputs.into_iter().enumerate() {
        g.outputs.push(Border { name: format!("{name} {j}").into(), value: v });
    }
    Ok(g)
}

fn inputs(n: i64, m: i64) -> BTreeMap<String, Tensor> {
    let (n, m) = (n as usize, m as usize);
    let floats = |shape: Vec<usize>, of: &dyn Fn(usize) -> f32| {
        let v: Vec<f32> = (0..shape.iter().product()).map(of).collect();
        Tensor::from_f32(shape, &v)
    };
    let ints = |shape: Vec<usize>, of: &dyn Fn(usize) -> i64| {
        let v: Vec<i64> = (0..shape.iter().product()).map(of).collect();
        Tensor::from_i64(shape, &v)
    };
    // The largest element comes last.
    BTreeMap::from([
        ("x".to_owned(), floats(vec![n, 3], &|i| if i + 3 > 3 * n { 6.0 } else { (i % 5) as f32 })),
        ("y".to_owned(), floats(vec![2, n], &|i| if (i + 1) % n == 0 { 3.0 } else { (i % 3) as f32 })),
        ("k".to_owned(), floats(vec![n, 4], &|i| (i / 4) as f32 / n as f32)),
        ("i".to_owned(), ints(vec![m, 2], &|i| (1 << 40) + i as i64)),
        ("at".to_owned(), ints(vec![n], &|i| i as i64 % 3)),
        ("q".to_owned(), floats(vec![2, 4], &|i| i as f32)),
        ("base".to_owned(), floats(vec![3], &|i| i as f32)),
    ])
}

fn close(got: &Tensor, want: &Tensor) -> bool {
    if want.dtype != DType::F32 {
        return got.bytes() == want.bytes();
    }
    let (g, w) = (got.to_f32s().unwrap(), want.to_f32s().unwrap());
    g.len() == w.len() && g.iter().zip(&w).all(|(g, w)| (g - w).abs() <= 1e-3 * w.abs().max(1e-3))
}

#[test]
fn long_loops_are_finished() {
    let sized = [(Dim::from(LONG), Dim::from(SHORTER)), (Dim::sym("n"), Dim::sym("m"))];
    let given = inputs(LONG, SHORTER);
    let want = evaluate(&graph(&sized[0].0, &sized[0].1).unwrap(), &given).unwrap();
    for ((n, m), fusion) in sized.iter().flat_map(|s| [(s, Fusion::None), (s, Fusion::Full)]) {
        let graph = graph(n, m).unwrap();
        wgfc_ir::verify::verify(&graph).unwrap();
        let options = Options { fusion, ..Options::default() };
        let program =
            wgfc_compiler::pipeline::compile_graph(graph, Stats::default(), &options, &mut |_, _| {})
                .unwrap();
        // Other adapters are compared with the evaluator in their own tests.
        for gpu in gpus().iter().filter(|g| g.profile().loop_iterations.is_some()) {
            let mut session = Session::new_blocking(gpu, &program).unwrap();
            let given: Vec<(&str, Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
            let got = session.run_blocking(&given).unwrap();
            for ((name, g), w) in got.iter().zip(&want) {
                assert!(close(g, w), "{name} of {n}, {m} positions at {fusion:?}: {g:?}, not {w:?}");
            }
        }
    }
}

/// A sum over more elements than nested loops of a reasonable size can cover is refused, not truncated.
#[test]
fn loops_too_long_for_the_driver_are_refused() {
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, vec![Dim::from(2i64), Dim::sym("n")]));
    let mut b = Builder::new(&mut g, "too long");
    // Each position reads all positions.
    let part =
        b.view(x, vec![Dim::sym("n"), Dim::sym("n"), Dim::sym("n")], vec![Poly::ZERO, Poly::var(1)]).unwrap();
    let sum = b.reduce(ReduceOp::Sum, part, &[1, 2], false).unwrap();
    g.outputs.push(Border { name: "y".into(), value: sum });
    // With more invocations each would have few enough iterations, and the sum would take hours.
    let mut options = Options::default();
    options.profile.max_invocations = 64;
    let program =
        wgfc_compiler::pipeline::compile_graph(g, Stats::default(), &options, &mut |_, _| {}).unwrap();
    for gpu in gpus().iter().filter(|g| g.profile().loop_iterations.is_some()) {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let ones = |n: usize| Tensor::from_f32(vec![2, n], &vec![1.0; 2 * n]);
        let few = session.run_blocking(&[("x", ones(30))]).unwrap();
        assert_eq!(few[0].1.to_f32s().unwrap(), [900.0; 30]);
        let e = session.run_blocking(&[("x", ones(40_000))]).unwrap_err();
        assert!(matches!(e, RunError::Loops { .. }), "{e}");
    }
}
