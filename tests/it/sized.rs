//! Sizes that are computed during a run.

use std::collections::BTreeMap;
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{DType, Graph, Program, Scalar, Tensor};
use wgfc_runtime::session::Value;
use wgfc_runtime::testing::gpus;
use wgfc_runtime::{RunError, Session};

/// The elements above a half, those of them above one, and a sum and a product with sizes that depend on both
/// counts.
const CHOSEN: &str = r#"
graph (x: %0) -> (found: %9, few: %17, sums: %20, size: %21) {
  compute n = %5 up to 5*rows
  compute k = %13 up to n
  %0 = input : f32[rows, 5] as "x"
  %1 = view [5*rows] reads [%0/5, %0%5] (%0) : f32[5*rows]
  %2 = map [5*rows] { gt(a0, 0.5:f32) } (%1) : bool[5*rows] @ "large"
  %3 = map [5*rows] { cast(i32, a0) } (%2) : i32[5*rows]
  %4 = prefix_scan sum axis 0 (%3) : i32[5*rows] @ "running"
  %5 = view [] reads [5*rows - 1] else 0:i32 (%4) : i32[] @ "count"
  %6 = map [5*rows] { select(a0, sub(a1, 1:i32), 2147483647:i32) } (%2, %4) : i32[5*rows]
  %7 = map [5*rows] { index(%0) } () : i32[5*rows]
  %8 = place [n] writes [$1[%0]] (%7, %6) : i32[n] @ "places"
  %9 = gather [n] reads [$1[%0]] (%1, %8) : f32[n] @ "found"
  %10 = map [n] { gt(a0, 1.0:f32) } (%9) : bool[n]
  %11 = map [n] { cast(i32, a0) } (%10) : i32[n]
  %12 = prefix_scan sum axis 0 (%11) : i32[n] @ "running again"
  %13 = view [] reads [n - 1] else 0:i32 (%12) : i32[] @ "count again"
  %14 = map [n] { select(a0, sub(a1, 1:i32), 2147483647:i32) } (%10, %12) : i32[n]
  %15 = place [k] writes [$1[%0]] (%9, %14) : f32[k] @ "few"
  %16 = view [k, 3] reads [%0] (%15) : f32[k, 3]
  %17 = map [k, 3] { add(a0, cast(f32, index(%1))) } (%16) : f32[k, 3] @ "wide"
  %18 = view [n, k] reads [%0] (%9) : f32[n, k]
  %19 = map [n, k] { mul(a0, a1) } (%18, %15) : f32[n, k] @ "outer"
  %20 = reduce sum axes [1] (%19) : f32[n, 1] @ "sums"
  %21 = map [2] { index(n*k + 7*%0) } () : i32[2] @ "size"
}
"#;

/// A computed size that must equal the size of an input.
const EQUAL: &str = r#"
graph (x: %0, y: %1) -> (z: %9) {
  require n == m @ "pair"
  compute n = %4 up to rows
  %0 = input : f32[rows] as "x"
  %1 = input : f32[m] as "y"
  %2 = map [rows] { cast(i32, gt(a0, 0.5:f32)) } (%0) : i32[rows]
  %3 = prefix_scan sum axis 0 (%2) : i32[rows] @ "running"
  %4 = view [] reads [rows - 1] else 0:i32 (%3) : i32[] @ "count"
  %5 = map [rows] { select(cast(bool, a0), sub(a1, 1:i32), 2147483647:i32) } (%2, %3) : i32[rows]
  %6 = place [n] writes [$1[%0]] (%0, %5) : f32[n] @ "places"
  %7 = view [m] reads [%0] (%6) : f32[m]
  %9 = map [m] { add(a0, a1) } (%7, %1) : f32[m] @ "pair"
}
"#;

fn compiled(text: &str, fusion: Fusion) -> (Graph, Program) {
    let graph = wgfc_ir::text::parse(text).unwrap();
    wgfc_ir::verify::verify(&graph).unwrap();
    let options = Options { fusion, ..Options::default() };
    let stats = Stats::default();
    let program =
        wgfc_compiler::pipeline::compile_graph(graph.clone(), stats, &options, &mut |_, _| {}).unwrap();
    let problems = wgfc_runtime::check::check(&program);
    assert!(problems.is_empty(), "{problems:?}");
    // A serialised program can be read again.
    let json = serde_json::to_string(&program).unwrap();
    let again: Program = serde_json::from_str(&json).unwrap();
    assert_eq!(again.computed, program.computed);
    (graph, program)
}

fn numbers(rows: usize, base: f32) -> Tensor {
    let v: Vec<f32> = (0..rows * 5).map(|i| base + ((i * 37 + rows) % 23) as f32 / 11.0).collect();
    Tensor::from_f32(vec![rows, 5], &v)
}

#[test]
fn sizes_are_computed_on_the_device() {
    for fusion in [Fusion::None, Fusion::Full] {
        let (graph, program) = compiled(CHOSEN, fusion);
        assert_eq!(program.symbols, ["rows", "n", "k"]);
        let bounds: Vec<String> = program.computed.iter().map(|c| c.bound.to_string()).collect();
        assert_eq!(bounds, ["5*rows", "5*rows"]);
        for gpu in gpus() {
            let mut session = Session::new_blocking(gpu, &program).unwrap();
            for (rows, base) in [(3, 0.0), (13, -9.0), (1, 9.0), (0, 0.0), (41, -0.75), (2, -0.5), (3, 0.0)] {
                let x = numbers(rows, base);
                let want = evaluate(&graph, &BTreeMap::from([("x".to_owned(), x.clone())])).unwrap();
                let got = session.run_blocking(&[("x", x.clone())]).unwrap();
                for ((name, g), w) in got.iter().zip(&want) {
                    assert_eq!((g.dtype, &g.shape), (w.dtype, &w.shape), "{name} of {rows} rows");
                    if w.dtype == DType::F32 {
                        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
                        let (g, w) = (g.to_f32s().unwrap(), w.to_f32s().unwrap());
                        assert!(g.iter().zip(&w).all(close), "{name} of {rows} rows: {g:?}, not {w:?}");
                    } else {
                        assert_eq!(g.bytes(), w.bytes(), "{name} of {rows} rows");
                    }
                }
                // Only some of the outputs are read, and some stay on the device.
                let given = [("x", Value::from(x))];
                let few = session.run_values_blocking(&given, Some(&["few"])).unwrap();
                assert_eq!(few[0].1, got[1].1);
                let started = session.start_blocking(&given, Some(&["sums", "found"])).unwrap();
                assert_eq!(started.output("found").unwrap().shape(), want[0].shape);
                let read = started.read_blocking().unwrap();
                assert_eq!((&read[0].1, &read[1].1), (&got[2].1, &got[0].1));
                let kept = session.run_on_device_blocking(&given).unwrap();
                assert_eq!(kept[1].1.shape(), want[1].shape);
                assert_eq!(kept[1].1.read_blocking().unwrap(), got[1].1);
            }
        }
    }
}

#[test]
fn a_computed_size_must_be_the_one_that_is_needed() {
    let (graph, program) = compiled(EQUAL, Fusion::Full);
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let x = Tensor::from_f32(vec![5], &[0.0, 0.75, 2.0, 0.5, 9.0]);
        for m in [3usize, 4, 2, 3] {
            let y = Tensor::from_f32(vec![m], &[0.25, 1.0, -1.0, 7.0][..m]);
            let given = BTreeMap::from([("x".to_owned(), x.clone()), ("y".to_owned(), y.clone())]);
            let got = session.run_blocking(&[("x", x.clone()), ("y", y.clone())]);
            if m == 3 {
                assert_eq!(got.unwrap()[0].1, evaluate(&graph, &given).unwrap()[0]);
                continue;
            }
            assert!(
                matches!(&got, Err(RunError::Constraint { a_value: 3, b_value, .. }) if *b_value == m as i64)
            );
            let said = format!("node \"pair\" needs n (here 3) and m (here {m}) to be equal");
            assert_eq!(got.unwrap_err().to_string(), said);
            let inputs = [("x", Value::from(x.clone())), ("y", Value::from(y))];
            assert!(session.run_on_device_blocking(&inputs).is_err());
        }
    }
}

#[test]
fn plans_that_contradict_themselves_about_sizes_are_refused() {
    type Edit = fn(&mut Program);
    let edits: &[(Edit, &str)] = &[
        (|p| p.computed[0].buffer = 99, "symbol `n`: there is no buffer 99"),
        (|p| p.computed[0].after = 99, "out of order"),
        (|p| p.computed[0].symbol = "q".into(), "`q`, which is not among the symbols"),
        (|p| p.computed[0].bound = wgfc_ir::Dim::sym("k"), "`k` uses `k`, which is known only during a run"),
        (|p| p.computed[0].buffer = p.inputs[0].buffer, "does not hold an integer"),
        (|p| p.dispatches[0].workgroups[0] = wgfc_ir::Dim::sym("n"), "known only during a run"),
        (|p| p.computed[0].after = 0, "lives only from"),
    ];
    let (_, program) = compiled(CHOSEN, Fusion::Full);
    for (edit, want) in edits {
        let mut p = program.clone();
        edit(&mut p);
        let problems = wgfc_runtime::check::check(&p).join("\n");
        assert!(problems.contains(want), "{want} in {problems:?}");
    }
}

/// Rows scattered over a reversed copy, and a further reader of the result.
const SCATTERED: &str = r#"
graph (x: %0, u: %1, i: %2) -> (y: %4, z: %5) {
  %0 = input : T[n, 7] as "x"
  %1 = input : T[m, 7] as "u"
  %2 = input : i64[m] as "i"
  %3 = view [n, 7] reads [n - 1 - %0, %1] (%0) : T[n, 7] @ "reversed"
  %4 = scatter set writes [$2[%0], %1] (%3, %1, %2) : T[n, 7] @ "written"
  %5 = view [7, n] reads [%1, %0] (%4) : T[7, n] @ "turned"
}
"#;

#[test]
fn scatters_write_over_a_copy() {
    for dtype in [DType::F32, DType::F16, DType::U8, DType::I64, DType::Bool] {
        for fusion in [Fusion::None, Fusion::Full] {
            let (graph, program) = compiled(&SCATTERED.replace("T[", &format!("{dtype}[")), fusion);
            let scalars = |rows: usize, by: i64| {
                let v = (0..7 * rows as i64).map(|i| Scalar::from_i64(dtype, (i * by) % 61));
                let v: Vec<Scalar> = match dtype {
                    DType::Bool => v.map(|s| Scalar::bool(s.as_i64() % 3 == 0)).collect(),
                    t if t.is_float() => v.map(|s| Scalar::from_f64(t, s.as_f64() / 8.0)).collect(),
                    _ => v.collect(),
                };
                Tensor::from_scalars(dtype, vec![rows, 7], &v)
            };
            for gpu in gpus() {
                let mut session = Session::new_blocking(gpu, &program).unwrap();
                for (n, at) in
                    [(5, vec![3i64, -5, 1]), (3, vec![]), (41, vec![40, 7, 3, 99, -2]), (1, vec![0])]
                {
                    let i = Tensor::from_i64(vec![at.len()], &at);
                    let given = [("x", scalars(n, 5)), ("u", scalars(at.len(), 17)), ("i", i)];
                    let named = given.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
                    let want = evaluate(&graph, &named).unwrap();
                    let got = session.run_blocking(&given).unwrap();
                    for ((name, g), w) in got.iter().zip(&want) {
                        assert_eq!((&g.shape, g.bytes()), (&w.shape, w.bytes()), "{name} of {n} {dtype}");
                    }
                }
            }
        }
    }
}
