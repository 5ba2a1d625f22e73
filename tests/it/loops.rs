//! Loops with extreme numbers of iterations: none, many, and numbers not known at compile time.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use std::path::Path;
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{DeviceProfile, Errors, Options, Technique, compile};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{
    BinaryOp, Border, Builder, DType, Dim, Graph, Op, Poly, Program, ReduceOp, Scalar, Tensor, TensorType,
    UnaryOp, Value,
};
use wgfc_selftest::{Tolerance, equal};

/// A loop that counts its steps in an i64 state and updates an f32[n] state. It runs at most `trips` times,
/// ends after `until` steps, and does not run at all if `start` is false.
fn counting(trips: i64, start: bool, until: i64) -> Graph {
    counting_to(Some(trips), start, until)
}

/// [`counting`], where the input `trips` limits the iterations if the argument is `None`.
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
    let op = Op::While { body: Box::new(body), carried: 2 };
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

#[test]
fn iterations_are_counted() {
    let inputs: BTreeMap<String, Tensor> = [
        ("made".to_owned(), Tensor::from_i64(vec![], &[7])),
        ("x".to_owned(), Tensor::from_f32(vec![5], &[0.0, 2.0, -3.5, 1e6, 8.0])),
    ]
    .into();
    // The trip limit, the initial condition, the count at which the loop ends, and the resulting number of
    // iterations.
    let cases = [
        (0, true, 9, 0),
        (-4, true, 9, 0),
        (6, false, 9, 0),
        (6, true, 9, 6),
        (6, true, 4, 4),
        (6, true, -1, 1),
        (300, true, 257, 257),
        (1 << 30, true, 70, 70),
        (5000, true, 129, 129),
        (1400, true, 9000, 1400),
        (i64::MAX, true, 257, 257),
        (i64::MAX, true, -1, 1),
        (i64::MAX, false, 9, 0),
        (i64::MIN, true, 9, 0),
    ];
    for gpu in Backend::adapters() {
        for (trips, start, until, made) in cases {
            for split in [false, true] {
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

/// Without a target device, loops that only a condition ends run longer than some drivers allow in a single
/// loop, in kernels with parallel lanes.
#[test]
fn a_long_loop_that_is_left_early_is_finished_on_every_device() {
    let given = |trips: i64| -> BTreeMap<String, Tensor> {
        [
            ("made".to_owned(), Tensor::from_i64(vec![], &[0])),
            ("x".to_owned(), Tensor::from_f32(vec![3], &[100.0, -7.0, 2.0])),
            ("trips".to_owned(), Tensor::from_i64(vec![], &[trips])),
        ]
        .into()
    };
    for until in [70_000, 200_000] {
        for trips in [None, Some(i64::MAX), Some(1_000_000)] {
            let program = compiled(counting_to(trips, true, until), false, None).unwrap();
            let mut inputs = given(1 << 40);
            inputs.retain(|name, _| trips.is_none() || name != "trips");
            for gpu in Backend::adapters() {
                let got = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap();
                assert_eq!(got[0].to_i64s().unwrap(), [until], "{trips:?}");
                assert_eq!(got[1].to_f32s().unwrap(), [2.0; 3], "{trips:?}");
            }
        }
    }
}

/// One program for any number of iterations: as one kernel, in parts of a few steps, and split.
#[test]
fn how_many_iterations_may_be_data() {
    for (split, most) in [(false, None), (false, Some(3)), (true, None)] {
        let program = compiled(counting_to(None, true, 200), split, most).unwrap();
        assert!(program.repeats[0].until.is_some(), "{:?}", program.repeats);
        for gpu in Backend::adapters() {
            let mut session = session(&gpu, &program).unwrap();
            for (trips, made) in [(3, 3), (0, 0), (-7, 0), (129, 129), (i64::MAX, 200), (i64::MIN, 0), (1, 1)]
            {
                let inputs: BTreeMap<String, Tensor> = [
                    ("made".to_owned(), Tensor::from_i64(vec![], &[2])),
                    ("x".to_owned(), Tensor::from_f32(vec![2], &[0.0, 2.0])),
                    ("trips".to_owned(), Tensor::from_i64(vec![], &[trips])),
                ]
                .into();
                let got = run_session(&mut session, &inputs).unwrap();
                assert_eq!(got[0].to_i64s().unwrap(), [2 + made], "{trips} {split} {most:?}");
            }
        }
    }
}

/// A loop longer than a dispatch should take continues from its carried states in the next dispatch.
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
        for gpu in Backend::adapters() {
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

/// The time limit of a dispatch is respected, both for the work of one lane and for the work of all lanes.
#[test]
fn what_a_dispatch_may_take_is_stated() {
    let parts = |seconds: f64, expect: i64| {
        let mut options = Options::default();
        options.profile.longest_dispatch = seconds;
        options.expect.0.insert("n".to_owned(), expect);
        let x = TensorType::new(DType::F32, vec![Dim::sym("n")]);
        let mut body = Graph::new();
        let before = body.add_input("x", x.clone());
        body.add_input("each", TensorType::new(DType::F32, vec![]));
        let mut b = Builder::new(&mut body, "step");
        let half = b.binary_scalar(BinaryOp::Mul, before, 0.5).unwrap();
        let next = b.binary_scalar(BinaryOp::Add, half, 1.0).unwrap();
        body.outputs.push(Border { name: "y".into(), value: next });
        let mut g = Graph::new();
        let (x, trips) = (g.add_input("x", x), TensorType::new(DType::F32, vec![Dim::from(1000i64)]));
        let each = g.add_input("each", trips);
        let reverse = vec![false];
        let op = Op::Scan {
            body: Box::new(body),
            carried: 1,
            scanned: 1,
            reverse_inputs: reverse,
            reverse_outputs: vec![],
        };
        let node = g.push(op, &[x, each], &["the loop".into()]).unwrap();
        g.outputs.push(Border { name: "y".into(), value: node.into() });
        compile_graph(g, Stats::default(), &options, &mut |_, _| {}).unwrap()
    };
    let times = |p: &Program| p.repeats.first().map_or(1, |r| r.times.as_const().unwrap());
    assert_eq!(times(&parts(2.0, 64)), 1);
    let (few, many) = (parts(1e-6, 64), parts(1e-6, 1 << 24));
    assert!(1 < times(&few) && times(&few) < times(&many), "{} {}", times(&few), times(&many));
    let inputs = BTreeMap::from([
        ("x".to_owned(), Tensor::from_f32(vec![3], &[100.0, -7.0, 2.0])),
        ("each".to_owned(), Tensor::from_f32(vec![1000], &[0.0; 1000])),
    ]);
    for gpu in Backend::adapters() {
        let run = |p: &Program| run_session(&mut session(&gpu, p).unwrap(), &inputs).unwrap();
        let whole = run(&parts(2.0, 64));
        for p in [&few, &many] {
            assert_eq!(run(p)[0].to_f32s(), whole[0].to_f32s());
        }
    }
}

/// A simulation over a symbolic number of days is one dispatch if the expected number fits into the time
/// limit, even if more would fit into memory. It is split if the driver ends long loops.
#[test]
fn what_could_be_longer_is_cut_only_where_the_device_needs_it() {
    let model = std::fs::read(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/simulations/portfolio/model.onnx"),
    )
    .unwrap();
    let parts = |most: Option<u32>| {
        let mut options = Options::default();
        options.expect.0.insert("population".into(), 10_000);
        options.expect.0.insert("steps".into(), 1500);
        options.profile.loop_iterations = most;
        let program = wgfc_compiler::compile(&model, &NoExternalData, &options).unwrap();
        (program.dispatches.len(), program.repeats.len())
    };
    assert_eq!(parts(None), (1, 0));
    let (dispatches, repeats) = parts(Some(65_535));
    assert!(dispatches > 1 && repeats == 1, "{dispatches} {repeats}");
}

/// Neither the text of a kernel nor the time to write it grows with the number of iterations.
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

/// Halves every lane of f32[n] until it is below 1, counts the halvings, and continues while any lane was
/// halved.
fn halving(trips: Option<i64>) -> Graph {
    let lanes = |dtype| TensorType::new(dtype, vec![Dim::sym("n")]);
    let mut body = Graph::new();
    body.add_input("i", TensorType::new(DType::I64, vec![]));
    body.add_input("go", TensorType::new(DType::Bool, vec![]));
    let (x, made) = (body.add_input("x", lanes(DType::F32)), body.add_input("made", lanes(DType::I32)));
    let alive = body.add_input("alive", lanes(DType::Bool));
    let mut b = Builder::new(&mut body, "step");
    let half = b.binary_scalar(BinaryOp::Mul, x, 0.5).unwrap();
    let x2 = b.select(alive, half, x).unwrap();
    let more = b.binary_scalar(BinaryOp::Add, made, 1.0).unwrap();
    let made2 = b.select(alive, more, made).unwrap();
    let one = b.scalar(DType::F32, 1.0);
    let large = b.binary(BinaryOp::Ge, x2, one).unwrap();
    let alive2 = b.binary(BinaryOp::And, alive, large).unwrap();
    let ints = b.cast(alive2, DType::I32).unwrap();
    let any = b.reduce(ReduceOp::Max, ints, &[0], false).unwrap();
    let go = b.cast(any, DType::Bool).unwrap();
    for value in [go, x2, made2, alive2] {
        body.outputs.push(Border { name: "o".into(), value });
    }
    let mut g = Graph::new();
    let x = g.add_input("x", lanes(DType::F32));
    let trips = match trips {
        Some(trips) => Builder::new(&mut g, "the loop").int(DType::I64, trips),
        None => g.add_input("trips", TensorType::new(DType::I64, vec![])),
    };
    let mut b = Builder::new(&mut g, "the loop");
    let start = b.constant(Tensor::scalar(Scalar::bool(true)));
    let zero = b.int(DType::I32, 0);
    let made = b.expand(zero, &[Dim::sym("n")]).unwrap();
    let one = b.scalar(DType::F32, 1.0);
    let alive = b.binary(BinaryOp::Ge, x, one).unwrap();
    let op = Op::While { body: Box::new(body), carried: 3 };
    let node = g.push(op, &[trips, start, x, made, alive], &["the loop".into()]).unwrap();
    for port in 0..2 {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    g
}

#[test]
fn each_lane_ends_by_itself() {
    let x = [3.0e30f32, 0.5, 1.0, 7.0, 1e10];
    let halvings = |x: f32, most: i64| {
        let (mut x, mut n) = (x, 0);
        while x >= 1.0 && n < most {
            (x, n) = (x * 0.5, n + 1);
        }
        (x, n)
    };
    for (trips, given) in
        [(Some(i64::MAX), vec![0]), (Some(7), vec![0]), (None, vec![0, 1, 90, 300, i64::MAX])]
    {
        for (split, most) in [(false, None), (false, Some(2)), (true, None)] {
            let program = compiled(halving(trips), split, most).unwrap();
            for gpu in Backend::adapters() {
                let mut session = session(&gpu, &program).unwrap();
                for given in &given {
                    let mut inputs = BTreeMap::from([("x".to_owned(), Tensor::from_f32(vec![5], &x))]);
                    if trips.is_none() {
                        inputs.insert("trips".to_owned(), Tensor::from_i64(vec![], &[*given]));
                    }
                    let got = run_session(&mut session, &inputs).unwrap();
                    let (want, made): (Vec<f32>, Vec<i64>) =
                        x.iter().map(|x| halvings(*x, trips.unwrap_or(*given))).unzip();
                    let what = format!("{trips:?} {given} {split} {most:?}");
                    assert_eq!(got[0].to_f32s().unwrap(), want, "{what}");
                    assert_eq!(got[1].to_i64s().unwrap(), made, "{what}");
                }
            }
        }
    }
}

/// A loop of `outer` steps with an inner loop that doubles `x` until it exceeds the step's number.
#[test]
fn a_loop_without_a_count_inside_of_another() {
    let number = || TensorType::new(DType::I64, vec![]);
    let mut inner = Graph::new();
    inner.add_input("i", number());
    inner.add_input("go", TensorType::new(DType::Bool, vec![]));
    let (x, bound) = (inner.add_input("x", number()), inner.add_input("bound", number()));
    let mut b = Builder::new(&mut inner, "inside");
    let more = b.binary(BinaryOp::Add, x, x).unwrap();
    let go = b.binary(BinaryOp::Le, more, bound).unwrap();
    for value in [go, more] {
        inner.outputs.push(Border { name: "o".into(), value });
    }
    let mut body = Graph::new();
    let i = body.add_input("i", number());
    body.add_input("go", TensorType::new(DType::Bool, vec![]));
    let x = body.add_input("x", number());
    let limit = body.add_input("limit", number());
    let mut b = Builder::new(&mut body, "outside");
    let bound = b.binary_scalar(BinaryOp::Mul, i, 1000.0).unwrap();
    let start = b.binary(BinaryOp::Le, x, bound).unwrap();
    let trips = b.int(DType::I64, i64::MAX);
    let op = Op::While { body: Box::new(inner), carried: 1 };
    let inside = body.push(op, &[trips, start, x, bound], &["inside".into()]).unwrap();
    let go = Builder::new(&mut body, "outside").binary(BinaryOp::Lt, inside.into(), limit).unwrap();
    for value in [go, inside.into()] {
        body.outputs.push(Border { name: "o".into(), value });
    }
    let mut g = Graph::new();
    let (x, limit) = (g.add_input("x", number()), g.add_input("limit", number()));
    let mut b = Builder::new(&mut g, "outside");
    let trips = b.int(DType::I64, i64::MAX);
    let start = b.constant(Tensor::scalar(Scalar::bool(true)));
    let op = Op::While { body: Box::new(body), carried: 1 };
    let node = g.push(op, &[trips, start, x, limit], &["outside".into()]).unwrap();
    g.outputs.push(Border { name: "y".into(), value: node.into() });
    let program = compiled(g, false, None).unwrap();
    for gpu in Backend::adapters() {
        let mut session = session(&gpu, &program).unwrap();
        for (x, limit) in [(1, 0), (1, 100_000), (7, 500_000), (3, 3)] {
            let mut want = x;
            for i in 0.. {
                while want <= i * 1000 {
                    want += want;
                }
                if want >= limit {
                    break;
                }
            }
            let inputs =
                [("x", x), ("limit", limit)].map(|(n, v)| (n.to_owned(), Tensor::from_i64(vec![], &[v])));
            let got = run_session(&mut session, &inputs.into()).unwrap();
            assert_eq!(got[0].to_i64s().unwrap(), [want], "{x} {limit}");
        }
    }
}

/// A loop that does not end returns an error after its maximum number of rounds, and no result.
#[test]
fn a_loop_that_does_not_end_is_an_error() {
    let inputs: BTreeMap<String, Tensor> = [
        ("made".to_owned(), Tensor::from_i64(vec![], &[0])),
        ("x".to_owned(), Tensor::from_f32(vec![1], &[1.0])),
    ]
    .into();
    for (split, most) in [(false, Some(5)), (true, None)] {
        let mut program = compiled(counting(i64::MAX, true, i64::MAX), split, most).unwrap();
        let until = program.repeats[0].until.as_mut().unwrap();
        assert!(until.rounds >= (1 << 30) / 128, "{until:?}");
        until.rounds = 3;
        for gpu in Backend::adapters() {
            let e = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap_err();
            let e = e.message();
            assert!(e.contains("has not ended after 3 rounds") && e.contains("the loop"), "{e}");
        }
    }
}

#[test]
fn loops_without_an_end_are_refused() {
    let mut g = counting(i64::MAX, true, 9);
    let ids: Vec<_> = g.node_ids().collect();
    for n in ids {
        if let Op::While { body, .. } = &mut g.node_mut(n).op {
            let yes = Builder::new(body, "step").constant(Tensor::scalar(Scalar::bool(true)));
            body.outputs[0].value = yes;
        }
    }
    let e = compiled(g, false, None).unwrap_err().to_string();
    assert!(e.contains("neither a trip count nor a condition") && e.contains("the loop"), "{e}");
}

/// A scan that reads the elements larger than a half backwards and their numbers forwards, and returns a
/// running sum and the numbers.
fn scan_of_chosen() -> Graph {
    let mut g = wgfc_ir::text::parse(
        r#"
graph (x: %0) -> (found: %6) {
  compute n = %4 up to rows
  %0 = input : f32[rows] as "x"
  %1 = map [rows] { cast(i32, gt(a0, 0.5:f32)) } (%0) : i32[rows]
  %3 = prefix_scan sum axis 0 (%1) : i32[rows]
  %4 = view [] reads [rows - 1] else 0:i32 (%3) : i32[]
  %5 = map [rows] { select(cast(bool, a0), sub(a1, 1:i32), 2147483647:i32) } (%1, %3) : i32[rows]
  %6 = place [n] writes [$1[%0]] (%0, %5) : f32[n]
}
"#,
    )
    .unwrap();
    let found = g.outputs.pop().unwrap().value;
    let ty = |dtype, n: i64| TensorType::new(dtype, vec![Dim::from(n); (n > 0) as usize]);
    let mut body = Graph::new();
    let sums = body.add_input("sums", ty(DType::F32, 3));
    let x = body.add_input("x", ty(DType::F32, 0));
    let i = body.add_input("i", ty(DType::I64, 0));
    let mut b = Builder::new(&mut body, "step");
    let all = b.reduce(ReduceOp::Sum, sums, &[0], false).unwrap();
    let few = b.binary_scalar(BinaryOp::Mul, all, 0.25).unwrap();
    let next = b.binary(BinaryOp::Add, few, x).unwrap();
    let place = b.cast(i, DType::F32).unwrap();
    let row = b.iota(&[Dim::from(3i64)], wgfc_ir::Poly::var(0), DType::F32).unwrap();
    let after = b.binary(BinaryOp::Add, next, row).unwrap();
    for value in [after, next, place] {
        body.outputs.push(Border { name: "o".into(), value });
    }
    let mut b = Builder::new(&mut g, "the scan");
    let length = b.shape(found);
    let numbers = b.iota(&length, wgfc_ir::Poly::var(0), DType::I64).unwrap();
    let first = b.constant(Tensor::from_f32(vec![3], &[1.0, 2.0, 3.0]));
    let op = Op::Scan {
        body: Box::new(body),
        carried: 1,
        scanned: 2,
        reverse_inputs: vec![true, false],
        reverse_outputs: vec![false, true],
    };
    let node = g.push(op, &[first, found, numbers], &["the scan".into()]).unwrap();
    for port in 0..3 {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    g
}

#[test]
fn how_long_a_scan_is_may_be_data() {
    let graph = scan_of_chosen();
    for (split, most) in [(false, None), (false, Some(3)), (true, None)] {
        let program = compiled(graph.clone(), split, most).unwrap();
        for gpu in Backend::adapters() {
            let mut session = session(&gpu, &program).unwrap();
            for (rows, every) in [(1, 1), (1, 2), (9, 1), (200, 2), (200, 1), (77, 100), (130, 3)] {
                let x: Vec<f32> = (0..rows)
                    .map(|i| if i % every == every - 1 { 1.0 + i as f32 / 64.0 } else { 0.25 })
                    .collect();
                let inputs = BTreeMap::from([("x".to_owned(), Tensor::from_f32(vec![rows], &x))]);
                let want = wgfc_ir::eval::evaluate(&graph, &inputs).unwrap();
                let got = run_session(&mut session, &inputs).unwrap();
                for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                    let what = format!("{i} of {rows} {every} {split} {most:?}");
                    assert_eq!(g.shape, w.shape, "{what}");
                    let near = |(g, w): (&f32, &f32)| (g - w).abs() <= 1e-5 * w.abs();
                    let (g, w) = (g.to_f32s().unwrap(), w.to_f32s().unwrap());
                    assert!(g.iter().zip(&w).all(near), "{what}: {g:?} {w:?}");
                }
            }
        }
    }
}

/// A scan whose length is symbolic is split into parts if its longest possible length exceeds the time of a
/// dispatch.
#[test]
fn long_scans_have_parts() {
    let scan = |width: i64, operations: usize| {
        let row = TensorType::new(DType::F32, vec![Dim::from(width)]);
        let mut body = Graph::new();
        let (sum, x) = (body.add_input("sum", row.clone()), body.add_input("x", row.clone()));
        let mut b = Builder::new(&mut body, "step");
        let mut next = b.binary(BinaryOp::Add, sum, x).unwrap();
        for _ in 0..operations {
            next = b.unary(wgfc_ir::UnaryOp::Tanh, next).unwrap();
        }
        body.outputs.push(Border { name: "o".into(), value: next });
        let mut g = Graph::new();
        let sum = g.add_input("sum", row);
        let x = g.add_input("x", TensorType::new(DType::F32, vec![Dim::sym("n"), Dim::from(width)]));
        let op = Op::Scan {
            body: Box::new(body),
            carried: 1,
            scanned: 1,
            reverse_inputs: vec![false],
            reverse_outputs: vec![],
        };
        let node = g.push(op, &[sum, x], &["the scan".into()]).unwrap();
        g.outputs.push(Border { name: "y".into(), value: node.into() });
        compiled(g, false, None).unwrap()
    };
    // 128 MiB hold 2^25 / width rows, and a dispatch takes at most 2^30 operations.
    assert_eq!(scan(64, 60).repeats, []);
    let long = scan(1, 60);
    let [repeat] = &long.repeats[..] else { panic!("{:?}", long.repeats) };
    let times = |n: i64| repeat.times.eval_syms(&|_| Some(n)).unwrap();
    assert!(repeat.until.is_none() && times(1 << 10) == 1 && times(1 << 25) > 1, "{}", repeat.times);
    for gpu in Backend::adapters() {
        let inputs = BTreeMap::from([
            ("sum".to_owned(), Tensor::from_f32(vec![1], &[0.5])),
            ("x".to_owned(), Tensor::from_f32(vec![3, 1], &[0.25, -1.0, 2.0])),
        ]);
        let got = run_session(&mut session(&gpu, &long).unwrap(), &inputs).unwrap();
        let mut want = 0.5f32;
        for x in [0.25, -1.0, 2.0] {
            want += x;
            (0..60).for_each(|_| want = want.tanh());
        }
        let got = got[0].to_f32s().unwrap()[0];
        assert!((got - want).abs() < 1e-5, "{got} {want}");
    }
}

/// A loop in which `x` [300] and `y` [5] of a lane depend on each other: a softmax, a product, an argmax, a
/// neighbouring element, and a flag after which nothing changes.
fn coupled(steps: usize, stacked: bool) -> Graph {
    let f32s = |shape: &[Dim]| TensorType::new(DType::F32, shape.to_vec());
    let (batch, n) = (Dim::sym("batch"), Dim::from(300usize));
    let flags = TensorType::new(DType::Bool, vec![batch.clone()]);
    let mut body = Graph::new();
    let x = body.add_input("x", f32s(&[batch.clone(), n.clone()]));
    let y = body.add_input("y", f32s(&[batch.clone(), Dim::from(5usize)]));
    let alive = body.add_input("alive", flags);
    let t = body.add_input("t", f32s(std::slice::from_ref(&batch)));
    let w = body.add_input("w", f32s(&[n.clone(), Dim::from(5usize)]));
    let mut b = Builder::new(&mut body, "step");
    let made = {
        let most = b.reduce(ReduceOp::Max, x, &[1], true).unwrap();
        let below = b.binary(BinaryOp::Sub, x, most).unwrap();
        let e = b.unary(UnaryOp::Exp, below).unwrap();
        let sum = b.reduce(ReduceOp::Sum, e, &[1], true).unwrap();
        let p = b.binary(BinaryOp::Div, e, sum).unwrap();
        let z = b.matmul(p, w).unwrap();
        let op = Op::ArgReduce { op: ReduceOp::Max, axis: 1, last: false };
        let at = b.push(op, &[z]).unwrap();
        let at = b.cast(at, DType::F32).unwrap();
        let at = b.binary_scalar(BinaryOp::Mul, at, 0.01).unwrap();
        let back = b.transpose(w, &[1, 0]).unwrap();
        let seen = b.matmul(y, back).unwrap();
        let seen = b.unary(UnaryOp::Tanh, seen).unwrap();
        let turned = [(&Poly::var(1) + &Poly::ONE).modulo(&n, &[batch.clone(), n.clone()])];
        let index = [Poly::var(0)].into_iter().chain(turned).collect();
        let turned = b.view(x, vec![batch.clone(), n.clone()], index).unwrap();
        let turned = b.binary_scalar(BinaryOp::Mul, turned, 0.5).unwrap();
        let x = b.binary(BinaryOp::Add, turned, seen).unwrap();
        let y = b.binary(BinaryOp::Add, z, at).unwrap();
        let t = b.unsqueeze(t, &[1]).unwrap();
        [x, b.binary(BinaryOp::Add, y, t).unwrap()]
    };
    let highest = b.reduce(ReduceOp::Max, made[1], &[1], false).unwrap();
    let limit = b.scalar(DType::F32, 1.0);
    let low = b.binary(BinaryOp::Lt, highest, limit).unwrap();
    let next = b.binary(BinaryOp::And, alive, low).unwrap();
    let mut after = vec![];
    let here = b.unsqueeze(alive, &[1]).unwrap();
    for (new, old) in made.into_iter().zip([x, y]) {
        after.push(b.select(here, new, old).unwrap());
    }
    after.push(next);
    if stacked {
        after.push(after[1]);
    }
    for value in &after {
        body.outputs.push(Border { name: "o".into(), value: *value });
    }
    let mut g = Graph::new();
    let x = g.add_input("x", f32s(&[batch.clone(), n.clone()]));
    let y = g.add_input("y", f32s(&[batch.clone(), Dim::from(5usize)]));
    let t = g.add_input("t", f32s(&[Dim::from(steps), batch.clone()]));
    let w = g.add_input("w", f32s(&[n, Dim::from(5usize)]));
    let mut b = Builder::new(&mut g, "the first step");
    let first = b.view(y, vec![batch], vec![Poly::var(0), Poly::ZERO]).unwrap();
    let limit = b.scalar(DType::F32, 0.5);
    let alive = b.binary(BinaryOp::Lt, first, limit).unwrap();
    let all = [x, y, alive, t, w];
    let op = Op::Scan {
        body: Box::new(body),
        carried: 3,
        scanned: 1,
        reverse_inputs: vec![true],
        reverse_outputs: vec![false; usize::from(stacked)],
    };
    let node = g.push(op, &all, &["the loop".into()]).unwrap();
    // The final values of each lane are not returned because a device may bind only eight buffers.
    for port in (0..after.len() as u32).filter(|p| *p != 2) {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    g
}

/// The states exceed the registers of an invocation and are kept in workgroup memory; a loop in parts also
/// stores what the next dispatch resumes from.
#[test]
fn workgroups_share_a_lane() {
    let inputs = |lanes: usize| -> BTreeMap<String, Tensor> {
        let wave = |n: usize, k: f32| (0..n).map(|i| (i as f32 * k).sin()).collect::<Vec<f32>>();
        let tensor =
            |shape: &[usize], k: f32| Tensor::from_f32(shape.to_vec(), &wave(shape.iter().product(), k));
        [
            ("x".to_owned(), tensor(&[lanes, 300], 0.37)),
            ("y".to_owned(), tensor(&[lanes, 5], 0.21)),
            ("t".to_owned(), tensor(&[9, lanes], 1.7)),
            ("w".to_owned(), tensor(&[300, 5], 0.11)),
        ]
        .into()
    };
    for stacked in [false, true] {
        let graph = coupled(9, stacked);
        for most in [None, Some(20)] {
            let program = compiled(graph.clone(), false, most).unwrap();
            let loops: Vec<_> = program.kernels.iter().filter(|k| k.family == "staged_loop").collect();
            let [kernel] = &loops[..] else { panic!("{:?}", program.repeats) };
            assert_eq!(kernel.wgsl.contains("break;"), !stacked, "{}", kernel.wgsl);
            assert_eq!(program.repeats.len(), usize::from(most.is_some()));
            for gpu in Backend::adapters() {
                let mut session = session(&gpu, &program).unwrap();
                for lanes in [1, 7] {
                    let inputs = inputs(lanes);
                    let want = evaluate(&graph, &inputs).unwrap();
                    let got = run_session(&mut session, &inputs).unwrap();
                    for (got, want) in got.iter().zip(&want) {
                        let (got, want) = (got.scalars().unwrap(), want.scalars().unwrap());
                        for (g, w) in got.iter().zip(want) {
                            let (g, w) = (g.as_f64(), w.as_f64());
                            assert!((g - w).abs() < 1e-5, "{lanes} {stacked} {most:?}: {g} {w}");
                        }
                    }
                }
            }
        }
    }
}

/// A state that is a slice of a larger tensor of the step is copied after each step.
const PART: &str = r#"graph (s: %0, x: %1) -> (y: %2, z: %3) {
  %0 = input : f32[300] as "s"
  %1 = input : f32[5, 600, 64] as "x"
  %2, %3 = scan carried 1 scanned 1 reverse [false] [false] graph (s: %0, x: %1) -> (next: %6, all: %5) {
    %0 = input : f32[300] as "s"
    %1 = input : f32[600, 64] as "x"
    %2 = reduce max axes [0] (%0) : f32[1]
    %3 = map [600, 64] { add(a0, mul(a1, 0.125:f32)) } (%1, %2) : f32[600, 64]
    %4 = reduce sum axes [1] (%3) : f32[600, 1]
    %5 = view [600] reads [599 - %0, 0] (%4) : f32[600]
    %6 = view [300] reads [%0, 0] (%4) : f32[300]
  } (%0, %1) : f32[300], f32[5, 600]
}
"#;

/// Four-bit elements read by all steps.
const NIBBLES: &str = r#"graph (s: %0, x: %1) -> (y: %2) {
  %0 = input : f32[5] as "s"
  %1 = input : f32[3, 5] as "x"
  %2 = scan carried 1 scanned 1 reverse [false] [] graph (s: %0, x: %1) -> (next: %5) {
    %0 = input : f32[5] as "s"
    %1 = input : f32[5] as "x"
    %2 = const [7, 8, 9, 10, 3] : u4[5]
    %3 = view [5] reads [4 - %0] (%0) : f32[5]
    %4 = reduce max axes [0] (%3) : f32[1]
    %5 = map [5] { add(mul(a0, 0.5:f32), add(a1, mul(cast(f32, a2), a3))) } (%3, %1, %2, %4) : f32[5]
  } (%0, %1) : f32[5]
}
"#;

#[test]
fn parts_and_narrow_constants_are_carried() {
    for text in [PART, NIBBLES] {
        let graph = wgfc_ir::text::parse(text).unwrap();
        let inputs = graph.inputs.iter().map(|i| {
            let shape: Vec<usize> =
                graph.ty(i.value).shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
            let values: Vec<f32> =
                (0..shape.iter().product()).map(|k| ((k * 7 + 3) % 11) as f32 * 0.25).collect();
            (i.name.to_string(), Tensor::from_f32(shape, &values))
        });
        let inputs: BTreeMap<String, Tensor> = inputs.collect();
        let wanted = evaluate(&graph, &inputs).unwrap();
        for split in [false, true] {
            let program = compiled(graph.clone(), split, None).unwrap();
            for gpu in Backend::adapters() {
                let got = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap();
                for (got, wanted) in got.iter().zip(&wanted) {
                    assert_eq!(got.to_f32s(), wanted.to_f32s(), "split: {split}\n{text}");
                }
            }
        }
    }
}

/// A scan that carries rows of length `n` and sorts them in each step.
fn ordering(n: i64, k: i64, largest: bool) -> Graph {
    let ty =
        |shape: &[i64]| TensorType::new(DType::F32, shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>());
    let mut body = Graph::new();
    let (x, row) = (body.add_input("x", ty(&[3, n])), body.add_input("row", ty(&[3, n])));
    let mut b = Builder::new(&mut body, "step");
    let half = b.binary_scalar(BinaryOp::Mul, x, 0.5).unwrap();
    let moved = b.binary(BinaryOp::Add, half, row).unwrap();
    let order = Op::TopK { axis: 1, k: k.into(), largest };
    let node = b.graph.push(order, &[moved], &["order".into()]).unwrap();
    let [values, positions] = [0, 1].map(|port| Value { node, port });
    let first = b.slice(values, 1, &Poly::ZERO, 1, &Dim::ONE).unwrap();
    let next = b.binary_scalar(BinaryOp::Mul, first, 0.25).unwrap();
    let next = b.binary(BinaryOp::Add, next, moved).unwrap();
    for value in [next, values, positions] {
        body.outputs.push(Border { name: "o".into(), value });
    }
    let mut g = Graph::new();
    let inputs = [g.add_input("x", ty(&[3, n])), g.add_input("rows", ty(&[4, 3, n]))];
    let op = Op::Scan {
        body: Box::new(body),
        carried: 1,
        scanned: 1,
        reverse_inputs: vec![false],
        reverse_outputs: vec![false, false],
    };
    let node = g.push(op, &inputs, &["the loop".into()]).unwrap();
    for port in 0..3 {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    g
}

/// The rows contain equal elements, both zeros and NaN, as in tests of sorts outside loops.
#[test]
fn rows_are_put_in_order_in_the_steps_of_one_kernel() {
    for (n, k, largest) in [(5, 5, true), (7, 3, false), (70, 70, false), (97, 2, true)] {
        let graph = ordering(n, k, largest);
        let count = 3 * n as usize;
        let pattern = |i: usize| [1.0, -0.0, 2.5, f32::NAN, 0.0, 1.0, -7.25, f32::INFINITY][i * i % 23 % 8];
        let rows: Vec<f32> = (0..4 * count).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
        let inputs: BTreeMap<String, Tensor> = [
            (
                "x".to_owned(),
                Tensor::from_f32(vec![3, n as usize], &(0..count).map(pattern).collect::<Vec<_>>()),
            ),
            ("rows".to_owned(), Tensor::from_f32(vec![4, 3, n as usize], &rows)),
        ]
        .into();
        let want = evaluate(&graph, &inputs).unwrap();
        let program = compiled(graph, false, None).unwrap();
        assert!(program.repeats.is_empty(), "{n}: {:?}", program.repeats);
        assert_eq!(program.dispatches.len(), 1, "{n}");
        for gpu in Backend::adapters() {
            let got = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap();
            assert_eq!(
                got[2].to_i64s().unwrap(),
                want[2].to_i64s().unwrap(),
                "{n} on {}",
                gpu.summary().name
            );
            for i in 0..2 {
                let bits = |t: &Tensor| -> Vec<u32> {
                    let number = |x: f32| if x.is_nan() { f32::NAN } else { x };
                    t.to_f32s().unwrap().into_iter().map(|x| number(x).to_bits()).collect()
                };
                assert_eq!(bits(&got[i]), bits(&want[i]), "{n} on {}", gpu.summary().name);
            }
        }
    }
}

/// A scan with more small operands and results than a device can bind, some with an axis of lanes and some
/// without; if `integers` is set, some are integers.
fn wide(steps: i64, integers: bool) -> Graph {
    let ty = |dtype: DType, shape: &[i64]| {
        TensorType::new(dtype, shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>())
    };
    let (f, i, t) = (DType::F32, DType::I64, DType::Bool);
    let mut states = vec![ty(f, &[3, 2]), ty(f, &[3]), ty(f, &[]), ty(t, &[3]), ty(t, &[3, 2]), ty(t, &[])];
    let mut captured = vec![ty(f, &[2]), ty(f, &[3, 1]), ty(f, &[1, 2]), ty(f, &[5])];
    if integers {
        states.extend([ty(i, &[3]), ty(i, &[2])]);
        captured.extend([ty(i, &[3]), ty(i, &[2])]);
    }
    let mut body = Graph::new();
    let inputs = |g: &mut Graph, kind: &str, all: &[TensorType]| -> Vec<Value> {
        all.iter().enumerate().map(|(n, t)| g.add_input(&format!("{kind}{n}"), t.clone())).collect()
    };
    let all = inputs(&mut body, "s", &states);
    let row = body.add_input("row", ty(f, &[3]));
    let outer = inputs(&mut body, "c", &captured);
    let mut b = Builder::new(&mut body, "step");
    let sum = b.binary(BinaryOp::Add, all[0], outer[0]).unwrap();
    let sum = b.binary(BinaryOp::Add, sum, outer[1]).unwrap();
    let third = b.slice(outer[3], 0, &Poly::constant(2), 1, &Dim::ONE).unwrap();
    let third = b.reshape(third, vec![]).unwrap();
    let more = b.binary(BinaryOp::Gt, all[1], row).unwrap();
    let column = b.unsqueeze(all[3], &[1]).unwrap();
    let mut next = vec![
        b.binary(BinaryOp::Mul, sum, outer[2]).unwrap(),
        b.binary(BinaryOp::Sub, all[1], row).unwrap(),
        b.binary(BinaryOp::Add, all[2], third).unwrap(),
        b.binary(BinaryOp::Xor, all[3], more).unwrap(),
        b.binary(BinaryOp::Xor, all[4], column).unwrap(),
        b.unary(UnaryOp::Not, all[5]).unwrap(),
    ];
    for n in 6..all.len() {
        next.push(b.binary(BinaryOp::Add, all[n], outer[n - 2]).unwrap());
    }
    let stacked = [next[0], next[4], next[next.len() - 1]];
    for value in next.into_iter().chain(stacked) {
        body.outputs.push(Border { name: "o".into(), value });
    }
    let mut g = Graph::new();
    let mut operands = inputs(&mut g, "s", &states);
    operands.push(g.add_input("rows", ty(f, &[steps, 3])));
    operands.extend(inputs(&mut g, "c", &captured));
    let op = Op::Scan {
        body: Box::new(body),
        carried: states.len(),
        scanned: 1,
        reverse_inputs: vec![false],
        reverse_outputs: vec![false; 3],
    };
    let node = g.push(op, &operands, &["the loop".into()]).unwrap();
    for port in 0..states.len() as u32 + 3 {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    g
}

#[test]
fn small_operands_and_results_of_a_loop_share_bindings() {
    let value = |dtype: DType, shape: &[usize], seed: usize| {
        let n: usize = shape.iter().product();
        let numbers = (0..n).map(|i| ((i + seed) * 5 % 7) as i64 - 3);
        match dtype {
            DType::F32 => {
                Tensor::from_f32(shape.to_vec(), &numbers.map(|v| v as f32 * 0.5).collect::<Vec<_>>())
            }
            DType::I64 => Tensor::from_i64(shape.to_vec(), &numbers.map(|v| v << 33 | 5).collect::<Vec<_>>()),
            _ => Tensor::new(
                DType::Bool,
                shape.to_vec(),
                numbers.map(|v| u8::from(v > 0)).collect::<Vec<u8>>(),
            )
            .unwrap(),
        }
    };
    for (steps, most) in [(5i64, None), (50, Some(7))] {
        let graph = wide(steps, most.is_none());
        let inputs: BTreeMap<String, Tensor> = graph
            .inputs
            .iter()
            .enumerate()
            .map(|(i, b)| {
                let ty = graph.ty(b.value);
                let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
                (b.name.to_string(), value(ty.dtype, &shape, i))
            })
            .collect();
        let want = evaluate(&graph, &inputs).unwrap();
        let program = compiled(graph, false, most).unwrap();
        let why: Vec<&str> = program.repeats.iter().map(|r| &*r.why).collect();
        match most {
            None => assert!(why.is_empty(), "{why:?}"),
            Some(_) => assert_eq!(why, ["a dispatch takes 7 steps at most"]),
        }
        for gpu in Backend::adapters() {
            let got = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap();
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                let near = Tolerance { rtol: 1e-5, atol: 1e-5 };
                equal(g, w, near)
                    .unwrap_or_else(|e| panic!("result {i}, {steps} steps on {}: {e}", gpu.summary().name));
            }
        }
    }
}

#[test]
fn a_simulation_of_independent_individuals_is_one_dispatch() {
    let all = [
        "acrobot",
        "acrobot-rk4",
        "cartpole",
        "cartpole-until",
        "montecarlo",
        "mountaincar",
        "mountaincar-51",
        "portfolio",
        "rastrigin",
    ];
    for name in all {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/simulations").join(name);
        let model = std::fs::read(folder.join("model.onnx")).unwrap();
        for profile in ["portable", "discrete"] {
            let profile = DeviceProfile::named(profile).unwrap();
            let options = Options { profile, ..Options::default() };
            let program = compile(&model, &NoExternalData, &options).unwrap();
            assert_eq!((program.dispatches.len(), program.repeats.len()), (1, 0), "{name}");
        }
    }
}
