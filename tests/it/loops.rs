//! Loops at their limits: none, many, and unknown numbers of iterations.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{Errors, Options, Technique};
use wgfc_ir::program::Stats;
use wgfc_ir::{BinaryOp, Border, Builder, DType, Dim, Graph, Op, Program, Scalar, Tensor, TensorType, Value};
use wgfc_runtime::Gpu;

/// `count` of f32[n] and i64 steps, while `start` and fewer than `until` were made, at most `trips`.
fn counting(trips: i64, start: bool, until: i64) -> Graph {
    counting_to(Some(trips), start, until)
}

/// [`counting`] at most as often as the input `trips` says, where that is not known.
fn counting_to(trips: Option<i64>, start: bool, until: i64) -> Graph {
    let number = TensorType::new(DType::I64, vec![]);
    let row = TensorType::new(DType::F32, vec![Dim::sym("n")]);
    let mut body = Graph::new();
    let names = [("i", number.clone()), ("go", TensorType::new(DType::Bool, vec![]))];
    let [i, _] = names.map(|(name, ty)| body.add_input(name, ty));
    let (made, x) = (body.add_input("made", number.clone()), body.add_input("x", row.clone()));
    let mut b = Builder::new(&mut body, "step");
    let one = b.int(DType::I64, 1);
    let next = b.binary(BinaryOp::Add, made, one).unwrap();
    let half = b.binary_scalar(BinaryOp::Mul, x, 0.5).unwrap();
    let moved = b.binary_scalar(BinaryOp::Add, half, 1.0).unwrap();
    let ahead = b.binary(BinaryOp::Add, i, one).unwrap();
    let end = b.int(DType::I64, until);
    let go = b.binary(BinaryOp::Lt, ahead, end).unwrap();
    for value in [go, next, moved] {
        body.outputs.push(Border { name: "o".into(), value });
    }
    let mut g = Graph::new();
    let first = [g.add_input("made", number), g.add_input("x", row)];
    let trips = match trips {
        Some(trips) => Builder::new(&mut g, "the loop").int(DType::I64, trips),
        None => g.add_input("trips", TensorType::new(DType::I64, vec![])),
    };
    let mut b = Builder::new(&mut g, "the loop");
    let start = b.constant(Tensor::scalar(Scalar::bool(start)));
    let op = Op::Loop { body: Box::new(body), carried: 2 };
    let node = g.push(op, &[&[trips, start], &first[..]].concat(), &["the loop".into()]).unwrap();
    for port in 0..2 {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    g
}

fn compiled(graph: Graph, split: bool, most: Option<u32>) -> Result<Program, Errors> {
    let without = if split { [Technique::Loops].into() } else { Default::default() };
    let mut options = Options { without, ..Options::default() };
    options.profile.loop_iterations = most;
    compile_graph(graph, Stats::default(), &options, &mut |_, _| {})
}

fn adapters() -> Vec<Gpu> {
    let adapter = |b| match b {
        Backend::Adapter(gpu) => Some(gpu),
        Backend::Evaluator => None,
    };
    Backend::all().into_iter().filter_map(adapter).collect()
}

#[test]
fn iterations_are_counted() {
    let inputs: BTreeMap<String, Tensor> = [
        ("made".to_owned(), Tensor::from_i64(vec![], &[7])),
        ("x".to_owned(), Tensor::from_f32(vec![5], &[0.0, 2.0, -3.5, 1e6, 8.0])),
    ]
    .into();
    // Trips, the condition at the start, where it ends, and how many iterations that makes.
    let cases = [
        (0, true, 9, 0),
        (-4, true, 9, 0),
        (6, false, 9, 0),
        (6, true, 9, 6),
        (6, true, 4, 4),
        (6, true, -1, 1),
        (300, true, 257, 257),
        (1 << 30, true, 70, 70),
    ];
    for gpu in adapters() {
        for (trips, start, until, made) in cases {
            for split in [false, true] {
                // A condition that ends a split loop early does not shorten it.
                if split && trips > 1000 {
                    continue;
                }
                let program = compiled(counting(trips, start, until), split, None).unwrap();
                let got = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap();
                assert_eq!(got[0].to_i64s().unwrap(), [7 + made], "{trips} {start} {until} {split}");
                let mut x = inputs["x"].to_f32s().unwrap();
                for _ in 0..made {
                    x.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0);
                }
                assert_eq!(got[1].to_f32s().unwrap(), x, "{trips} {start} {until} {split}");
            }
        }
    }
}

/// One program for any number of iterations.
#[test]
fn how_many_iterations_may_be_data() {
    let program = compiled(counting_to(None, true, 50), false, None).unwrap();
    assert_eq!(program.repeats, []);
    for gpu in adapters() {
        let mut session = session(&gpu, &program).unwrap();
        for (trips, made) in [(3, 3), (0, 0), (-7, 0), (70, 50), (i64::MAX, 50), (1, 1)] {
            let inputs: BTreeMap<String, Tensor> = [
                ("made".to_owned(), Tensor::from_i64(vec![], &[2])),
                ("x".to_owned(), Tensor::from_f32(vec![2], &[0.0, 2.0])),
                ("trips".to_owned(), Tensor::from_i64(vec![], &[trips])),
            ]
            .into();
            let got = run_session(&mut session, &inputs).unwrap();
            assert_eq!(got[0].to_i64s().unwrap(), [2 + made], "{trips}");
        }
    }
}

/// Longer than a dispatch should take: the next one goes on with what is carried.
#[test]
fn a_long_loop_continues_in_another_dispatch() {
    let inputs: BTreeMap<String, Tensor> = [
        ("made".to_owned(), Tensor::from_i64(vec![], &[0])),
        ("x".to_owned(), Tensor::from_f32(vec![3], &[100.0, -7.0, 2.0])),
    ]
    .into();
    for (steps, until, most) in [(200_000, 190_001, 65_535), (17, 40, 5), (20, 20, 5), (3, 3, 1)] {
        let program = compiled(counting(steps, true, until), false, Some(most)).unwrap();
        let [repeat] = &program.repeats[..] else { panic!("{:?}", program.repeats) };
        assert_eq!(repeat.times.as_const(), Some((steps + i64::from(most) - 1) / i64::from(most)));
        for gpu in adapters() {
            let got = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap();
            assert_eq!(got[0].to_i64s().unwrap(), [steps.min(until)]);
            let mut x = inputs["x"].to_f32s().unwrap();
            for _ in 0..steps.min(until) {
                x.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0);
            }
            assert_eq!(got[1].to_f32s().unwrap(), x, "{steps} {until} {most}");
        }
    }
}

/// Neither the text nor the time to make it grows with the number of iterations.
#[test]
fn kernels_do_not_grow_with_the_iterations() {
    let text = |steps: i64| {
        let p = compiled(counting(steps, true, 1 << 20), false, None).unwrap();
        assert_eq!((p.kernels.len(), p.dispatches.len(), p.repeats.len()), (1, 1, 0));
        p.kernels[0].wgsl.replace(&steps.to_string(), "STEPS")
    };
    assert_eq!(text(500), text(1500));
    assert_eq!(text(500), text(5000));
}

#[test]
fn loops_without_an_end_are_refused() {
    let e = compiled(counting(i64::MAX, true, 9), false, None).unwrap_err().to_string();
    assert!(e.contains("at most 1073741824 are numbered") && e.contains("the loop"), "{e}");
}
