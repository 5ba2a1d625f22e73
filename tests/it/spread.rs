//! Loops in which several workgroups share each lane: recurrent layers and others, both when the workgroups
//! run concurrently and when they do not.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use wgfc_compiler::assemble::assemble;
use wgfc_compiler::lower::Lowering;
use wgfc_compiler::lower::gates::Activation;
use wgfc_compiler::lower::recurrent::{Cell, Operands, Recurrent, recurrent};
use wgfc_compiler::pipeline::{fuse_graph, schedule};
use wgfc_compiler::schedule::loops::Spread;
use wgfc_compiler::schedule::{Context, Schedule, ScheduledGraph, candidates};
use wgfc_compiler::{Options, States};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::program::Stats;
use wgfc_ir::{
    BinaryOp, Border, Builder, DType, Dim, Graph, Op, Poly, Program, ReduceOp, Tensor, TensorType, UnaryOp,
    Value,
};
use wgfc_runtime::Gpu;

/// The number of times that a workgroup polls for a value of another workgroup.
#[derive(Clone, Copy)]
enum Looks {
    /// Until the value arrives, unless the machine is very busy. If the driver ends long loops, fewer polls
    /// are made, depending on the number of steps.
    Many(u32),
    /// So few that workgroups give up.
    Few,
}
use Looks::{Few, Many};

impl Looks {
    fn on(self, gpu: &Gpu) -> u32 {
        match (self, gpu.profile().loop_iterations) {
            (Many(steps), Some(most)) => most * 2 / 3 / steps.max(1),
            (Many(_), None) => 1 << 16,
            (Few, _) => 3,
        }
    }
}

fn f32s(shape: &[Dim]) -> TensorType {
    TensorType::new(DType::F32, shape.to_vec())
}

/// Values between −scale and scale, different for each input.
fn tensor(shape: &[usize], seed: usize, scale: f32) -> Tensor {
    let n = shape.iter().product::<usize>();
    let wave = |i: usize| ((i * 7919 + seed * 104_729 + i * i % 97) % 2003) as f32 / 1001.5 - 1.0;
    Tensor::from_f32(shape.to_vec(), &(0..n).map(|i| scale * wave(i)).collect::<Vec<f32>>())
}

/// A recurrent layer.
#[derive(Clone, Copy)]
pub struct Layer {
    pub cell: Cell,
    pub backwards: &'static [bool],
    pub hidden: usize,
    pub batch: usize,
    /// The number of positions; symbolic if `None`.
    pub steps: Option<usize>,
    /// Whether initial states are inputs.
    pub initial: bool,
    pub before_reset: bool,
}

const INPUT: usize = 5;

impl Layer {
    pub fn new(cell: Cell, hidden: usize, batch: usize, steps: Option<usize>) -> Layer {
        Layer { cell, backwards: &[false], hidden, batch, steps, initial: false, before_reset: true }
    }

    fn states(&self) -> usize {
        if self.cell == Cell::Lstm { 2 } else { 1 }
    }

    pub fn graph(&self) -> Graph {
        let mut g = Graph::new();
        let [ways, all, h] =
            [self.backwards.len(), self.cell.gates() as usize * self.hidden, self.hidden].map(Dim::from);
        let (b, i) = (Dim::from(self.batch), Dim::from(INPUT));
        let steps = self.steps.map_or_else(|| Dim::sym("steps"), Dim::from);
        let x = g.add_input("x", f32s(&[steps, b.clone(), i.clone()]));
        let w = g.add_input("w", f32s(&[ways.clone(), all.clone(), i]));
        let r = g.add_input("r", f32s(&[ways.clone(), all, h.clone()]));
        let mut before = vec![];
        for n in 0..if self.initial { self.states() } else { 0 } {
            before.push(g.add_input(&format!("s{n}"), f32s(&[ways.clone(), b.clone(), h.clone()])));
        }
        let names = self.cell.activations().iter().cycle();
        let names = names.take(self.cell.activations().len() * self.backwards.len());
        let p = Recurrent {
            cell: self.cell,
            activations: names.map(|n| Activation::named(n).unwrap()).collect(),
            clip: None,
            backwards: self.backwards.to_vec(),
            batch_first: false,
            linear_before_reset: self.before_reset,
            input_forget: false,
            rounded: false,
        };
        let (output, cell) = (before.first().copied(), before.get(1).copied());
        let o = Operands { x, w, r, bias: None, lengths: None, output, cell, peepholes: None };
        let made = recurrent(&mut Lowering::new(&mut g), &o, &p).unwrap();
        for (i, value) in made.into_iter().enumerate() {
            g.outputs.push(Border { name: format!("y{i}").into(), value });
        }
        g
    }

    pub fn inputs(&self, steps: usize) -> BTreeMap<String, Tensor> {
        let (ways, all) = (self.backwards.len(), self.cell.gates() as usize * self.hidden);
        let mut out: BTreeMap<String, Tensor> = [
            ("x".to_owned(), tensor(&[steps, self.batch, INPUT], 1, 1.0)),
            ("w".to_owned(), tensor(&[ways, all, INPUT], 2, 0.7)),
            ("r".to_owned(), tensor(&[ways, all, self.hidden], 3, 1.5 / (self.hidden as f32).sqrt())),
        ]
        .into();
        for n in 0..if self.initial { self.states() } else { 0 } {
            out.insert(format!("s{n}"), tensor(&[ways, self.batch, self.hidden], 4 + n, 0.8));
        }
        out
    }
}

/// Options for a device that runs many workgroups concurrently.
fn options() -> Options {
    let mut options = Options::default();
    options.profile.speeds.resident_workgroups = 64.0;
    options
}

/// The program in which `groups` workgroups share every loop for which there is such a schedule, in the first
/// one that `fits`, with `polls` polls; and the number of these loops.
fn program(
    graph: &Graph,
    options: &Options,
    (groups, polls): (u32, u32),
    fits: &dyn Fn(&Spread) -> bool,
) -> (Program, usize) {
    let fused = fuse_graph(graph.clone(), Stats::default(), options, &mut |_, _| {}).unwrap();
    let ScheduledGraph { graph: kernels, mut schedules, .. } = schedule(fused.kernels, options).unwrap();
    let cx = Context { graph: &kernels, device: &options.profile, expect: &options.expect };
    let mut shared = 0;
    for (k, s) in kernels.kernels.iter().zip(&mut schedules) {
        let found = candidates(k, &cx).unwrap().into_iter().find_map(|s| match s {
            Schedule::SpreadLoop(s) if s.groups == groups && fits(&s) => Some(s),
            _ => None,
        });
        if let Some(found) = found {
            *s = Schedule::SpreadLoop(Spread { polls, ..found });
            shared += 1;
        }
    }
    let all = ScheduledGraph { graph: kernels, schedules, sequences: vec![] };
    (assemble(&fused.graph, &all, options, fused.stats).unwrap(), shared)
}

/// Compares successive runs in one session of the program, in which `shared` loops must be shared by
/// workgroups.
fn check(
    graph: &Graph,
    options: &Options,
    (groups, looks, shared): (u32, Looks, usize),
    fits: &dyn Fn(&Spread) -> bool,
    runs: &[BTreeMap<String, Tensor>],
    what: &str,
) {
    for gpu in Backend::adapters() {
        let (program, found) = program(graph, options, (groups, looks.on(&gpu)), fits);
        assert_eq!(found, shared, "{what}");
        let mut session = session(&gpu, &program).unwrap();
        let mut states = StateValues::default();
        for (i, inputs) in runs.iter().enumerate() {
            let want = evaluate_from(graph, inputs, &mut states).unwrap();
            let got = run_session(&mut session, inputs).unwrap();
            for (o, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got.shape, want.shape);
                close(got, want, &format!("{what}, run {i}, output {o}, {}", gpu.summary().name));
            }
        }
    }
}

pub fn close(got: &Tensor, want: &Tensor, what: &str) {
    let (got, want) = (got.scalars().unwrap(), want.scalars().unwrap());
    for (at, (g, w)) in got.iter().zip(&want).enumerate() {
        let (g, w) = (g.as_f64(), w.as_f64());
        assert!((g - w).abs() <= 2e-4 * (1.0 + w.abs()), "{what}, element {at}: {g}, expected {w}");
    }
}

/// Layers of all kinds, for one sequence and for several, whose workgroups either run concurrently or give
/// up.
#[test]
fn recurrent_layers() {
    use Cell::{Gru, Lstm, Rnn};
    let both = &[false, true][..];
    let cases = [
        (Layer { initial: true, ..Layer::new(Lstm, 96, 1, Some(7)) }, 2, Many(7)),
        (Layer { backwards: &[true], ..Layer::new(Lstm, 128, 1, Some(3)) }, 16, Few),
        (Layer { backwards: both, initial: true, ..Layer::new(Lstm, 20, 2, Some(4)) }, 2, Many(4)),
        (Layer { before_reset: false, initial: true, ..Layer::new(Gru, 112, 1, Some(5)) }, 2, Many(5)),
        (Layer { backwards: both, ..Layer::new(Gru, 30, 3, Some(2)) }, 8, Few),
        (Layer { initial: true, ..Layer::new(Rnn, 250, 1, Some(6)) }, 8, Few),
        (Layer { backwards: &[true], ..Layer::new(Rnn, 250, 2, Some(2)) }, 2, Many(2)),
    ];
    for (layer, groups, looks) in cases {
        let what = format!("{:?} of {} × {} by {groups}", layer.cell, layer.batch, layer.hidden);
        let graph = layer.graph();
        let inputs = layer.inputs(layer.steps.unwrap_or(1));
        let how = (groups, looks, layer.backwards.len());
        check(&graph, &options(), how, &|_| true, &[inputs.clone(), inputs], &what);
    }
}

/// Every form that a stage of a workgroup may have.
#[test]
fn schedules() {
    let layer = Layer { initial: true, ..Layer::new(Cell::Gru, 96, 1, Some(3)) };
    let graph = layer.graph();
    for (lanes, kept) in [(1, true), (1, false), (2, true), (2, false)] {
        let fits = |s: &Spread| s.lanes == lanes && s.kept == kept;
        let what = format!("{lanes} lanes, kept {kept}");
        check(&graph, &options(), (4, Many(3), 1), &fits, &[layer.inputs(3)], &what);
    }
    // More elements than invocations.
    let mut few = options();
    few.profile.max_invocations = 64;
    check(&graph, &few, (2, Many(3), 1), &|s| s.threads == 64, &[layer.inputs(3)], "64 invocations");
}

/// A symbolic number of steps, which may take several dispatches, in a session that continues.
#[test]
fn lengths() {
    let layer = Layer { initial: true, ..Layer::new(Cell::Gru, 50, 1, None) };
    let graph = layer.graph();
    for (most, looks) in [(None, Many(64)), (Some(0.0), Few)] {
        let mut options = options();
        if let Some(seconds) = most {
            options.profile.longest_dispatch = seconds;
        }
        let runs = [1, 2, 37, 0, 5].map(|n| layer.inputs(n));
        check(&graph, &options, (2, looks, 1), &|_| true, &runs, &format!("{most:?}"));
    }
}

/// The carried states of the layer stay on the device between runs, in the memory that the loop reads first.
#[test]
fn states() {
    let layer = Layer { initial: true, ..Layer::new(Cell::Lstm, 40, 1, Some(2)) };
    for looks in [Many(2), Few] {
        let mut graph = layer.graph();
        let pairs = [("s0", "y1"), ("s1", "y2")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let states = States::Named { pairs: pairs.into(), capacity: None };
        wgfc_compiler::states::introduce(&mut graph, &states).unwrap();
        let mut inputs = layer.inputs(2);
        inputs.retain(|name, _| !name.starts_with('s'));
        assert_eq!(graph.states.len(), 2);
        check(&graph, &options(), (2, looks, 1), &|_| true, &vec![inputs; 4], "states");
    }
}

/// A scan whose steps pass on values of several types, a value that all elements read, and elements computed
/// by other workgroups.
fn mixed(n: usize, steps: usize) -> Graph {
    let width = Dim::from(n);
    let ints = TensorType::new(DType::I32, vec![width.clone()]);
    let mut body = Graph::new();
    let h = body.add_input("h", f32s(&[Dim::ONE, width.clone()]));
    let count = body.add_input("count", ints.clone());
    let x = body.add_input("x", f32s(std::slice::from_ref(&width)));
    let w = body.add_input("w", f32s(&[width.clone(), width.clone()]));
    let mut b = Builder::new(&mut body, "step");
    let y = b.matmul(h, w).unwrap();
    let y = b.binary(BinaryOp::Add, y, x).unwrap();
    let y = b.unary(UnaryOp::Tanh, y).unwrap();
    let size = b.unary(UnaryOp::Abs, y).unwrap();
    let most = b.reduce(ReduceOp::Max, size, &[1], true).unwrap();
    let most = b.binary_scalar(BinaryOp::Add, most, 0.5).unwrap();
    let y = b.binary(BinaryOp::Div, y, most).unwrap();
    // The count is rotated by one position and incremented where the row is above 0.
    let turned = vec![Poly::var(0).modulo(&Poly::ONE, &[]), Poly::var(0)];
    let row = b.view(y, vec![width.clone()], turned).unwrap();
    let zero = b.scalar(DType::F32, 0.0);
    let above = b.binary(BinaryOp::Gt, row, zero).unwrap();
    let above = b.cast(above, DType::I32).unwrap();
    let next = (&Poly::var(0) + &Poly::ONE).modulo(&Poly::from(n), std::slice::from_ref(&width));
    let moved = b.view(count, vec![width.clone()], vec![next]).unwrap();
    let count = b.binary(BinaryOp::Add, moved, above).unwrap();
    for value in [y, count, row] {
        body.outputs.push(Border { name: "o".into(), value });
    }
    let mut g = Graph::new();
    let h = g.add_input("h", f32s(&[Dim::ONE, width.clone()]));
    let count = g.add_input("count", ints);
    let x = g.add_input("x", f32s(&[Dim::from(steps), width.clone()]));
    let w = g.add_input("w", f32s(&[width.clone(), width]));
    let op = Op::Scan {
        body: Box::new(body),
        carried: 2,
        scanned: 1,
        reverse_inputs: vec![false],
        reverse_outputs: vec![true],
    };
    let node = g.push(op, &[h, count, x, w], &["the loop".into()]).unwrap();
    for port in 0..3 {
        g.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    g
}

#[test]
fn a_scan_of_several_types() {
    let (n, steps) = (170, 5);
    let graph = mixed(n, steps);
    let counts = (0..n as i32).flat_map(|i| (i * 3 - 7).to_le_bytes()).collect();
    let inputs: BTreeMap<String, Tensor> = [
        ("h".to_owned(), tensor(&[1, n], 1, 1.0)),
        ("count".to_owned(), Tensor::new(DType::I32, vec![n], counts).unwrap()),
        ("x".to_owned(), tensor(&[steps, n], 2, 0.7)),
        ("w".to_owned(), tensor(&[n, n], 3, 0.15)),
    ]
    .into();
    for (groups, looks) in [(2, Many(5)), (8, Few)] {
        let runs = [inputs.clone(), inputs.clone()];
        check(&graph, &options(), (groups, looks, 1), &|_| true, &runs, &format!("{groups} workgroups"));
    }
}
