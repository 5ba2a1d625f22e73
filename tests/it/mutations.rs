//! States as training programs use them: with initial contents, updated to arbitrary values, and read before
//! and after the update.

use crate::examples::engine;
use crate::states::fused;
use std::collections::BTreeMap;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{Fusion, Options, States};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::program::{Access, BufferKind, Stats};
use wgfc_ir::testing::Rng;
use wgfc_ir::{DType, Graph, Program, Tensor};
use wgfc_runtime::session::{DeviceMemory, SessionOptions};
use wgfc_runtime::testing::gpus;
use wgfc_runtime::{Gpu, Session};

/// A description and a graph each.
const CASES: &[(&str, &str)] = &[
    (
        "two states change places",
        "graph (x: %2) -> (y: %3) {
  state a: %0 -> %1 initial [1, 2, 3, 4, 5, 6]
  state b: %1 -> %0
  %0 = input : f32[2, 3]
  %1 = input : f32[2, 3]
  %2 = input : f32[2, 3]
  %3 = map [2, 3] { add(add(a0, mul(a1, 10:f32)), a2) } (%0, %1, %2) : f32[2, 3]
}",
    ),
    (
        "three states go around, one of them changed",
        "graph (x: %3) -> (y: %5) {
  state a: %0 -> %1 initial [1, 2, 3, 4, 5, 6]
  state b: %1 -> %2 initial [7, 8, 9, 10, 11, 12]
  state c: %2 -> %4
  %0 = input : f32[2, 3]
  %1 = input : f32[2, 3]
  %2 = input : f32[2, 3]
  %3 = input : f32[2, 3]
  %4 = map [2, 3] { add(a0, a1) } (%0, %3) : f32[2, 3]
  %5 = reduce sum axes [1] (%2) : f32[2, 1]
}",
    ),
    (
        "two states change places and turn",
        "graph (x: %2) -> (y: %5) {
  state a: %0 -> %3 initial [1, 2, 3, 4, 5, 6]
  state b: %1 -> %4
  %0 = input : f32[2, 3]
  %1 = input : f32[3, 2]
  %2 = input : f32[3, 2]
  %3 = view [2, 3] reads [%1, %0] (%1) : f32[2, 3]
  %4 = view [3, 2] reads [%1, %0] (%0) : f32[3, 2]
  %5 = map [3, 2] { sub(a0, a1) } (%1, %2) : f32[3, 2]
}",
    ),
    (
        "a state becomes itself, turned",
        "graph (x: %2) -> (y: %3) {
  state a: %0 -> %1 initial [1, 2, 3, 4, 5, 6, 7, 8, 9]
  %0 = input : f32[3, 3]
  %1 = view [3, 3] reads [%1, 2 - %0] (%0) : f32[3, 3]
  %2 = input : f32[3, 3]
  %3 = map [3, 3] { mul(a0, a1) } (%1, %2) : f32[3, 3]
}",
    ),
    (
        "a sum, also put out",
        "graph (x: %1) -> (new: %2, again: %2, old: %0) {
  state s: %0 -> %2 initial [0.5, -1, 2, 4, -0.25]
  %0 = input : f32[5]
  %1 = input : f32[5]
  %2 = map [5] { add(a0, a1) } (%0, %1) : f32[5]
}",
    ),
    (
        "a sum of which nothing is put out, and what it was",
        "graph (x: %1) -> (old: %3) {
  state s: %0 -> %2 initial [0.5, -1, 2, 4, -0.25]
  %0 = input : f32[5]
  %1 = input : f32[5]
  %2 = map [5] { add(a0, a1) } (%0, %1) : f32[5]
  %3 = view [5] reads [4 - %0] (%0) : f32[5]
}",
    ),
    (
        "constants",
        "graph (x: %1) -> (old: %0) {
  state s: %0 -> %2 initial [0.5, -1, 2, 4, -0.25]
  state t: %3 -> %2
  %0 = input : f32[5]
  %1 = input : f32[5]
  %2 = const [1, 2, 3, 4, 5] : f32[5]
  %3 = input : f32[5]
}",
    ),
    (
        "an input, and what is never read or never changes",
        "graph (x: %1) -> (y: %4) {
  state s: %0 -> %1
  state p: %2 -> %2 initial [0.5, -1, 2, 4, -0.25]
  state unread: %3 -> %1 initial [9, 9, 9, 9, 9]
  %0 = input : f32[5]
  %1 = input : f32[5]
  %2 = input : f32[5]
  %3 = input : f32[5]
  %4 = map [5] { add(add(a0, a1), a2) } (%0, %1, %2) : f32[5]
}",
    ),
    (
        "two states and an output with one new value",
        "graph (x: %2) -> (y: %3, z: %4) {
  state a: %0 -> %3 initial [1, 2, 3, 4, 5]
  state b: %1 -> %3
  %0 = input : f32[5]
  %1 = input : f32[5]
  %2 = input : f32[5]
  %3 = map [5] { add(mul(a0, 0.5:f32), a1) } (%0, %2) : f32[5]
  %4 = map [5] { sub(a0, a1) } (%0, %1) : f32[5]
}",
    ),
    (
        "two states with one new value that is put nowhere else",
        "graph (x: %2) -> (z: %5) {
  state a: %0 -> %4 initial [1, 2, 3, 4, 5]
  state b: %1 -> %4
  %0 = input : f32[5]
  %1 = input : f32[5]
  %2 = input : f32[5]
  %3 = map [5] { add(a0, a1) } (%1, %2) : f32[5]
  %4 = map [5] { mul(a0, a1) } (%3, %2) : f32[5]
  %5 = reduce max axes [0] (%4) : f32[1]
}",
    ),
    (
        "rows are written, and all of it put out and kept twice",
        "graph (x: %2, at: %3) -> (y: %4) {
  state a: %0 -> %4 initial [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  state b: %1 -> %4
  %0 = input : f32[5, 2]
  %1 = input : f32[5, 2]
  %2 = input : f32[2, 2]
  %3 = input : i64[2]
  %4 = scatter set writes [$2[%0], %1] (%0, %2, %3) : f32[5, 2]
}",
    ),
    (
        "rows of another state are written, which becomes what this one was",
        "graph (at: %2) -> (y: %5) {
  state a: %0 -> %4 initial [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  state b: %1 -> %0 initial [-1, -2, -3, -4, -5, -6, -7, -8, -9, -10]
  %0 = input : f32[5, 2]
  %1 = input : f32[5, 2]
  %2 = input : i64[2]
  %3 = view [2, 2] reads [%0 + 3, %1] (%1) : f32[2, 2]
  %4 = scatter set writes [$2[%0], %1] (%0, %3, %2) : f32[5, 2]
  %5 = reduce sum axes [0] (%4) : f32[1, 2]
}",
    ),
    (
        "rows are added, to a state and to what it becomes",
        "graph (x: %1, at: %2) -> (y: %5, z: %3) {
  state a: %0 -> %3 initial [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  state b: %4 -> %6
  %0 = input : f32[5, 2]
  %1 = input : f32[2, 2]
  %2 = input : i64[2]
  %3 = scatter sum writes [$2[%0], %1] (%0, %1, %2) : f32[5, 2]
  %4 = input : f32[5, 2]
  %6 = map [5, 2] { add(a0, mul(a1, 2:f32)) } (%4, %0) : f32[5, 2]
  %5 = scatter sum writes [$2[%0], %1] (%6, %1, %2) : f32[5, 2]
}",
    ),
    (
        "a copy of what another was, which others read with it",
        "graph (x: %2) -> (y: %5, z: %6) {
  state a: %0 -> %3 initial [1, 2, 3, 4, 5]
  state b: %1 -> %0 initial [5, 4, 3, 2, 1]
  %0 = input : f32[5]
  %1 = input : f32[5]
  %2 = input : f32[5]
  %3 = map [5] { add(a0, a1) } (%0, %2) : f32[5]
  %4 = map [5] { exp(mul(a0, -0.25:f32)) } (%0) : f32[5]
  %5 = contract [a, b -> ab] (%4, %1) : f32[5, 5]
  %6 = map [5] { mul(a0, 3:f32) } (%0) : f32[5]
}",
    ),
    (
        "Adam",
        "graph (x: %0, t: %1) -> (loss: %9) {
  state w: %2 -> %18 initial [0.5, -0.5, 0.25, 1, 0.125, -1, 0.75, 0, 0.5, -0.25, 1, 0.5]
  state m: %3 -> %14
  state v: %4 -> %15
  state steps: %5 -> %6 initial [3]
  %0 = input : f32[7, 4]
  %1 = input : f32[7, 3]
  %2 = input : f32[4, 3]
  %3 = input : f32[4, 3]
  %4 = input : f32[4, 3]
  %5 = input : i64[]
  %6 = map [] { add(a0, 1:i64) } (%5) : i64[]
  %7 = contract [ab, bc -> ac] (%0, %2) : f32[7, 3]
  %8 = map [7, 3] { sub(a0, a1) } (%7, %1) : f32[7, 3]
  %10 = map [7, 3] { mul(a0, a0) } (%8) : f32[7, 3]
  %9 = reduce sum axes [0, 1] (%10) : f32[1, 1]
  %11 = contract [ab, ac -> bc] (%0, %8) : f32[4, 3]
  %12 = map [4, 3] { mul(a0, 2:f32) } (%11) : f32[4, 3]
  %14 = map [4, 3] { add(mul(a0, 0.9:f32), mul(a1, 0.1:f32)) } (%3, %12) : f32[4, 3]
  %15 = map [4, 3] { add(mul(a0, 0.99:f32), mul(mul(a1, a1), 0.01:f32)) } (%4, %12) : f32[4, 3]
  %16 = map [4, 3] { div(a0, add(sqrt(a1), 0.001:f32)) } (%14, %15) : f32[4, 3]
  %17 = map [] { div(0.1:f32, cast(f32, a0)) } (%6) : f32[]
  %18 = map [4, 3] { sub(a0, mul(a1, a2)) } (%2, %16, %17) : f32[4, 3]
}",
    ),
    (
        "types whose elements fill no whole words",
        "graph (x: %0) -> (y: %5) {
  state h: %1 -> %6 initial [1, 2, 3, -4, 5]
  state k: %2 -> %7 initial [true, false, true, false, true]
  state n: %3 -> %8 initial [1, -2, 3, 4, -5]
  state u: %4 -> %4 initial [1, 2, 3, 200, 5]
  %0 = input : f32[5]
  %1 = input : f16[5]
  %2 = input : bool[5]
  %3 = input : i64[5]
  %4 = input : u8[5]
  %5 = map [5] { select(a2, add(cast(f32, a1), a0), add(cast(f32, a3), cast(f32, a4))) } (%0, %1, %2, %3, %4) : f32[5]
  %6 = map [5] { neg(a0) } (%1) : f16[5]
  %7 = map [5] { not(a0) } (%2) : bool[5]
  %8 = view [5] reads [4 - %0] (%3) : i64[5]
}",
    ),
    (
        "what a loop leaves",
        "graph (x: %1) -> (y: %4) {
  state h: %0 -> %3 initial [1, 2, 3]
  state p: %2 -> %0
  %0 = input : f32[3]
  %1 = input : f32[5, 3]
  %2 = input : f32[3]
  %3 = scan carried 1 scanned 1 reverse [false] [] graph (h: %0, x: %1) -> (h: %3) {
    %0 = input : f32[3]
    %1 = input : f32[3]
    %2 = reduce sum axes [0] (%0) : f32[1]
    %3 = map [3] { add(mul(a0, 0.25:f32), add(a1, mul(a2, 0.125:f32))) } (%0, %1, %2) : f32[3]
  } (%0, %1) : f32[3]
  %4 = map [3] { sub(a0, a1) } (%3, %2) : f32[3]
}",
    ),
    (
        "nothing",
        "graph (x: %1) -> (y: %2) {
  state s: %0 -> %0 initial []
  %0 = input : f32[0, 3]
  %1 = input : f32[5]
  %2 = map [5] { neg(a0) } (%1) : f32[5]
}",
    ),
];

fn parsed(text: &str) -> Graph {
    let g = wgfc_ir::text::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    wgfc_ir::verify::verify(&g).unwrap_or_else(|e| panic!("{}\n{text}", e.join("\n")));
    g
}

/// Inputs of a run: numbers for floats, indices below five for integers.
fn given(graph: &Graph, step: usize) -> BTreeMap<String, Tensor> {
    let one = |name: &str, dtype: DType, shape: Vec<usize>| {
        let n: usize = shape.iter().product();
        let t = match dtype {
            DType::I64 => {
                Tensor::from_i64(shape, &(0..n).map(|i| ((2 * i + step) % 5) as i64).collect::<Vec<_>>())
            }
            _ => {
                let v: Vec<f32> = (0..n).map(|i| ((i * 7 + step * 5) % 13) as f32 * 0.25 - 1.0).collect();
                Tensor::from_f32(shape, &v)
            }
        };
        (name.to_owned(), t)
    };
    let inputs = graph.inputs.iter().map(|b| (b, graph.ty(b.value)));
    inputs.map(|(b, ty)| one(&b.name, ty.dtype, ty.static_shape().unwrap())).collect()
}

fn named(given: &BTreeMap<String, Tensor>) -> Vec<(&str, Tensor)> {
    given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect()
}

#[track_caller]
fn close(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!((got.dtype, &got.shape), (want.dtype, &want.shape), "{what}");
    let values = |t: &Tensor| -> Vec<f64> { t.scalars().unwrap().into_iter().map(|s| s.as_f64()).collect() };
    let (g, w) = (values(got), values(want));
    let near = g.iter().zip(&w).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()));
    assert!(near, "{what}: {g:?} for {w:?}");
}

/// The programs from all ways to compile a graph, each with a label.
fn programs(graph: &Graph) -> Vec<(String, Program)> {
    let mut all = vec![];
    for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
        let options = Options { fusion, ..Options::default() };
        all.push((format!("{fusion:?}"), fused(graph, &options)));
        let whole = compile_graph(graph.clone(), Stats::default(), &options, &mut |_, _| {});
        let whole = whole.unwrap_or_else(|e| panic!("{e}, of {graph}"));
        all.push((format!("{fusion:?}, rewritten"), whole));
    }
    all
}

/// Runs a program several times, and compares outputs and states with the evaluator's.
fn runs_agree(case: &str, graph: &Graph, program: &Program, gpu: &Gpu, canaries: bool) {
    assert_eq!(wgfc_runtime::check::check(program), Vec::<String>::new(), "{case}");
    let options = SessionOptions { canaries, ..SessionOptions::default() };
    let mut session = Session::with_options_blocking(gpu, program, options).unwrap();
    let mut states = StateValues::default();
    for step in 0..3 {
        let at = format!("{case}, run {step}");
        let given = given(graph, step);
        let want = evaluate_from(graph, &given, &mut states).unwrap();
        let got = session.run_blocking(&named(&given)).unwrap_or_else(|e| panic!("{at}: {e}"));
        for ((name, got), want) in got.iter().zip(&want) {
            close(&format!("{at}: output {name}"), got, want);
        }
        for (name, got) in session.states_blocking().unwrap() {
            close(&format!("{at}: state {name}"), &got, &states.tensors[&name]);
        }
    }
}

#[test]
fn states_become_what_the_evaluator_says() {
    for (case, text) in CASES {
        let graph = parsed(text);
        for (how, program) in programs(&graph) {
            for gpu in gpus() {
                runs_agree(&format!("{case}, {how}"), &graph, &program, gpu, true);
            }
        }
    }
}

/// A graph of a few operators on matrices of one size; each state is updated to a randomly chosen value.
fn random_graph(seed: u64) -> String {
    let mut r = Rng::new(seed);
    let count = 1 + r.below(4);
    let places = count + 1;
    let mut nodes: String = (0..=count).map(|v| format!("  %{v} = input : f32[3, 4]\n")).collect();
    nodes += &format!("  %{places} = const [2, 0] : i64[2]\n");
    let mut values: Vec<usize> = (0..=count).collect();
    for i in 0..1 + r.below(6) {
        let (a, b) = (values[r.below(values.len())], values[r.below(values.len())]);
        let v = places + 1 + 3 * i;
        let (t, u) = (v + 1, v + 2);
        let (first, last) = match r.below(8) {
            0 => (
                String::new(),
                format!("map [3, 4] {{ add(mul(a0, 0.5:f32), mul(a1, 0.25:f32)) }} (%{a}, %{b})"),
            ),
            1 => (String::new(), format!("view [3, 4] reads [2 - %0, %1] (%{a})")),
            2 => (String::new(), format!("view [3, 4] reads [%0, (%1 + 1)%4] (%{a})")),
            3 => {
                let top = format!("  %{t} = reduce max axes [1] (%{a}) : f32[3, 1]\n");
                (top, format!("map [3, 4] {{ sub(a0, a1) }} (%{b}, %{t})"))
            }
            4 => {
                let shares = format!("  %{t} = softmax axis 1 (%{a}) : f32[3, 4]\n");
                let product = format!("  %{u} = contract [ab, cb -> ac] (%{t}, %{b}) : f32[3, 3]\n");
                (shares + &product, format!("view [3, 4] reads [%0, %1%3] (%{u})"))
            }
            5 => {
                let rows = format!("  %{t} = view [2, 4] reads [%0 + 1, %1] (%{b}) : f32[2, 4]\n");
                (rows, format!("scatter set writes [$2[%0], %1] (%{a}, %{t}, %{places})"))
            }
            6 => {
                let rows = format!("  %{t} = view [2, 4] reads [%0, 3 - %1] (%{b}) : f32[2, 4]\n");
                (rows, format!("scatter sum writes [$2[%0], %1] (%{a}, %{t}, %{places})"))
            }
            _ => (String::new(), format!("map [3, 4] {{ sin(a0) }} (%{a})")),
        };
        nodes += &format!("{first}  %{v} = {last} : f32[3, 4]\n");
        values.push(v);
    }
    let mut any = || values[r.below(values.len())];
    let states = (0..count).map(|s| {
        let numbers: Vec<String> = (0..12).map(|i| ((i * 5 + s * 7) % 11).to_string()).collect();
        format!("  state s{s}: %{s} -> %{} initial [{}]\n", any(), numbers.join(", "))
    });
    let states: String = states.collect();
    format!("graph (x: %{count}) -> (y: %{}, z: %{}) {{\n{states}{nodes}}}", any(), any())
}

#[test]
fn states_of_random_graphs_become_what_the_evaluator_says() {
    for seed in 0..45 {
        let text = random_graph(seed);
        let graph = parsed(&text);
        let fusion = [Fusion::Full, Fusion::Elementwise, Fusion::None][seed as usize % 3];
        let options = Options { fusion, ..Options::default() };
        for (how, program) in [("fused", fused(&graph, &options)), ("rewritten", compiled(&graph))] {
            for gpu in gpus().iter().take(1) {
                runs_agree(&format!("{seed}, {how}\n{text}\n"), &graph, &program, gpu, false);
            }
        }
    }
}

fn adam() -> Graph {
    parsed(CASES.iter().find(|c| c.0 == "Adam").unwrap().1)
}

fn compiled(graph: &Graph) -> Program {
    compile_graph(graph.clone(), Stats::default(), &Options::default(), &mut |_, _| {}).unwrap()
}

/// A training step updates its states in place.
#[test]
fn a_training_step_copies_no_state() {
    let program = compiled(&adam());
    let kernels: Vec<&str> = program.kernels.iter().map(|k| k.name.as_str()).collect();
    assert!(program.dispatches.len() <= 5, "{kernels:?}");
    let mut written = vec![];
    for d in &program.dispatches {
        for (b, access) in d.bindings.iter().zip(&program.kernels[d.kernel].bindings) {
            if let (BufferKind::State { name }, Access::ReadWrite) = (&program.buffers[*b].kind, access) {
                written.push(name.as_str());
            }
        }
    }
    written.sort_unstable();
    assert_eq!(written, ["m", "steps", "v", "w"]);
}

#[test]
fn the_evaluator_gives_outputs_and_states() {
    let graph = parsed(CASES[0].1);
    let mut states = StateValues::default();
    let x = BTreeMap::from([("x".to_owned(), Tensor::from_f32(vec![2, 3], &[0.0; 6]))]);
    let first = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let out = evaluate_from(&graph, &x, &mut states).unwrap();
    assert_eq!(out[0].to_f32s().unwrap(), first);
    assert_eq!(states.tensors["a"].to_f32s().unwrap(), [0.0; 6]);
    assert_eq!(states.tensors["b"].to_f32s().unwrap(), first);
    // A single evaluation without given states starts from the initial contents.
    assert_eq!(wgfc_ir::eval::evaluate(&graph, &x).unwrap()[0], out[0]);
    let absent = wgfc_ir::text::parse(&CASES[0].1.replace("[1, 2, 3, 4, 5, 6]", "absent")).unwrap();
    let e = wgfc_ir::eval::evaluate(&absent, &x).unwrap_err().to_string();
    assert!(e.contains("state \"a\" are not known"), "{e}");
}

#[test]
fn what_cannot_be_initial_contents_is_refused() {
    for (from, to, says) in [
        ("[1, 2, 3, 4, 5, 6]", "[1, 2, 3, 4, 5, 6]", ""),
        ("%0 = input : f32[2, 3]", "%0 = input : f32[n, 3]", "a constant needs a constant shape"),
    ] {
        let g = wgfc_ir::text::parse(&CASES[0].1.replace(from, to));
        assert_eq!(g.err().map(|e| e.message).unwrap_or_default(), says);
    }
    let mut g = parsed(CASES[0].1);
    for (t, says) in [
        (Tensor::from_f32(vec![3, 2], &[0.0; 6]), "is f32[2, 3] and begins as f32[3, 2]"),
        (Tensor::from_i64(vec![2, 3], &[0; 6]), "begins as i64[2, 3]"),
    ] {
        g.states[0].initial = Some(t.into());
        let e = wgfc_ir::verify::verify(&g).unwrap_err().join("; ");
        assert!(e.contains(says), "{e}");
    }
}

#[test]
fn sessions_begin_anew_with_the_initial_contents() {
    let graph = adam();
    let program = compiled(&graph);
    let inputs = given(&graph, 0);
    let inputs = named(&inputs);
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let first = session.states_blocking().unwrap();
        assert_eq!(first["steps"].to_i64s().unwrap(), [3]);
        assert_eq!(first["w"].to_f32s().unwrap()[..3], [0.5, -0.5, 0.25]);
        assert_eq!(first["m"].to_f32s().unwrap(), [0.0; 12]);
        // Tensors that only hold initial contents take no memory besides the states.
        let memory = DeviceMemory::of([&session]);
        assert_eq!((memory.weights, memory.states), (0, 3 * 48 + 16));

        let loss = session.run_blocking(&inputs).unwrap();
        let mut fork = session.fork_blocking().unwrap();
        let second = session.run_blocking(&inputs).unwrap();
        assert_ne!(loss, second);
        assert_eq!(fork.run_blocking(&inputs).unwrap(), second);
        session.reset_blocking().unwrap();
        assert_eq!(session.states_blocking().unwrap(), first);
        assert_eq!(session.run_blocking(&inputs).unwrap(), loss);
        fork.reset_blocking().unwrap();
        assert_eq!(fork.states_blocking().unwrap(), first);

        // A checkpoint is loaded into another session, one state at a time.
        let mut other = Session::new_blocking(gpu, &program).unwrap();
        for name in first.keys() {
            other.update_states_blocking(&session.states_named_blocking(&[name]).unwrap()).unwrap();
        }
        assert_eq!(other.run_blocking(&inputs).unwrap(), second);

        pollster::block_on(other.reset_state("w")).unwrap();
        let held = other.states_blocking().unwrap();
        assert_eq!(held["w"], first["w"]);
        assert_eq!(held["steps"].to_i64s().unwrap(), [5]);

        // A program that evaluates the model continues with the same parameters.
        let score = parsed(
            "graph (x: %0) -> (y: %2) {
  state w: %1 -> %1 initial [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
  %0 = input : f32[1, 4]
  %1 = input : f32[4, 3]
  %2 = contract [ab, bc -> ac] (%0, %1) : f32[1, 3]
}",
        );
        let mut sibling = session.sibling_blocking(&compiled(&score)).unwrap();
        let x = Tensor::from_f32(vec![1, 4], &[1.0, 0.0, 0.0, 0.0]);
        let y = sibling.run_blocking(&[("x", x)]).unwrap();
        let w = session.states_blocking().unwrap().remove("w").unwrap();
        close("the first row", &y[0].1, &Tensor::from_f32(vec![1, 3], &w.to_f32s().unwrap()[..3]));
        sibling.reset_blocking().unwrap();
        assert_eq!(session.states_blocking().unwrap(), first);
    }
}

#[test]
fn folders_hold_the_initial_contents() {
    let graph = parsed(
        "graph (x: %1) -> (y: %3) {
  state s: %0 -> %3 initial [0.5, -1, 2, 4, -0.25]
  %0 = input : f32[5]
  %1 = input : f32[5]
  %2 = const [1, 2, 3, 4, 5] : f32[5]
  %3 = map [5] { add(a0, mul(a1, a2)) } (%0, %1, %2) : f32[5]
}",
    );
    let program = compiled(&graph);
    assert_eq!(program.states[0].initial.as_deref(), Some("s"));
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("out");
    wgfc::save(&program, &folder, &wgfc::SaveOptions::default()).unwrap();
    let read = wgfc::load(&folder).unwrap();
    assert_eq!(read.weights["s"].to_f32s().unwrap(), [0.5, -1.0, 2.0, 4.0, -0.25]);
    let want = evaluate_from(&graph, &given(&graph, 1), &mut StateValues::default()).unwrap();
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &read).unwrap();
        let got = session.run_blocking(&named(&given(&graph, 1))).unwrap();
        close("loaded", &got[0].1, &want[0]);
    }
    if !gpus().is_empty() {
        let bytes = given(&graph, 1).into_iter().map(|(n, t)| (n, t.bytes().unwrap_or_default().to_vec()));
        let got = engine::run(&folder, &BTreeMap::new(), &bytes.collect()).unwrap();
        let got = Tensor::new(DType::F32, vec![5], got["y"].clone()).unwrap();
        close("another engine", &got, &want[0]);
    }

    // A program compiled without weights can be loaded but not run.
    let mut absent = program;
    absent.stats.weights_absent = true;
    absent.weights.clear();
    let bare = folder.with_file_name("bare");
    wgfc::save(&absent, &bare, &wgfc::SaveOptions::default()).unwrap();
    let read = wgfc::load(&bare).unwrap();
    for gpu in gpus().iter().take(1) {
        let e = Session::new_blocking(gpu, &read).unwrap_err().to_string();
        assert!(e.contains("is absent"), "{e}");
    }
    absent.stats.weights_absent = false;
    let broken = folder.with_file_name("broken");
    wgfc::save(&absent, &broken, &wgfc::SaveOptions::default()).unwrap();
    let e = wgfc::load(&broken).unwrap_err().to_string();
    assert!(e.contains("the weight \"s\" of its initial contents is missing"), "{e}");
}

/// Pairs of inputs and outputs become states in addition to those that the graph already has.
#[test]
fn states_are_found_beside_others() {
    let text = "graph (cache: %0, x: %1) -> (y: %5, present: %4) {
  state gain: %2 -> %3 initial [2]
  %0 = input : f32[1, past, 3]
  %1 = input : f32[1, seq, 3]
  %2 = input : f32[]
  %3 = map [] { mul(a0, 0.5:f32) } (%2) : f32[]
  %6 = map [1, seq, 3] { mul(a0, a1) } (%1, %2) : f32[1, seq, 3]
  %4 = concat axis 1 (%0, %6) : f32[1, past + seq, 3]
  %5 = reduce sum axes [1] (%4) : f32[1, 1, 3]
}";
    let states = States::Auto { capacity: Some(9) };
    let mut graph = parsed(text);
    wgfc_compiler::states::introduce(&mut graph, &states).unwrap();
    wgfc_ir::verify::verify(&graph).unwrap();
    let names: Vec<&str> = graph.states.iter().map(|s| &*s.name).collect();
    assert_eq!(names, ["gain", "cache"]);
    assert_eq!((graph.inputs.len(), graph.outputs.len()), (1, 1));
    // If no pair is found, the graph keeps the states it has.
    let mut alone = parsed(CASES[0].1);
    wgfc_compiler::states::introduce(&mut alone, &states).unwrap();
    assert_eq!(alone.states.len(), 2);
    let mut twice = parsed(&text.replace("state gain", "state cache"));
    let e = wgfc_compiler::states::introduce(&mut twice, &states).unwrap_err().to_string();
    assert!(e.contains("a state \"cache\" and an input of that name"), "{e}");

    let program = compiled(&graph);
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let mut values = StateValues::default();
        for (step, seq) in [2, 1, 4].into_iter().enumerate() {
            let x = Tensor::from_f32(vec![1, seq, 3], &vec![step as f32 + 1.0; 3 * seq]);
            let given = BTreeMap::from([("x".to_owned(), x)]);
            let want = evaluate_from(&graph, &given, &mut values).unwrap();
            let got = session.run_blocking(&named(&given)).unwrap();
            close(&format!("run {step}"), &got[0].1, &want[0]);
        }
        session.reset_blocking().unwrap();
        assert_eq!(session.states_blocking().unwrap()["gain"].to_f32s().unwrap(), [2.0]);
        assert_eq!(session.state_len(), 0);
    }
}
