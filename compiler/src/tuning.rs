//! The kernels of a model that can be tuned, and programs of a single kernel for measuring them.
//!
//! [`tunable`] lists the kernels that have several schedules; a [`Single`] is a program of one kernel with one of
//! them. The best measured schedules are stored in a [table](crate::schedule::table).

use crate::assemble::{self, program_kernel, symbols};
use crate::emit::{EmitContext, EmittedKernel, Target, emit};
use crate::kernel::{Kernel, KernelGraph, TensorId, TensorKind};
use crate::options::Options;
use crate::pipeline::Fused;
use crate::schedule::cost::{ASSUMED, Expected};
use crate::schedule::products::cost::cycles;
use crate::schedule::products::problem::{Problem, problem};
use crate::schedule::table::{Tuning, key, title};
use crate::schedule::{Context, Schedule, ScheduledGraph, candidates, choose, rows, spread};
use crate::{Diagnostic, Errors};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::graph::State;
use wgfc_ir::program::{Buffer, BufferKind, Dispatch, Port, Program, Stats};
use wgfc_ir::{Dim, Poly};

/// The values of symbols while measuring; a missing one is [`ASSUMED`].
pub type Values = BTreeMap<String, i64>;

/// The capacity in positions, in addition to the measured ones, of states without a fixed capacity.
const ROOM: i64 = 2048;

/// The values of all symbols of a model: those `given`, else those `expected`; capacities are large enough for the
/// measured positions.
///
/// # Errors
/// `Model` if a state has no room for the measured positions.
pub fn complete(fused: &Fused, given: &Values, expect: &Expected) -> Result<Values, Errors> {
    let graph = &fused.graph;
    let growths = || graph.states.iter().filter_map(|s| Some((s, s.growth.as_ref()?)));
    let extent = |s: &State, axis: usize| graph.ty(s.before).shape.get(axis).cloned().unwrap_or_default();
    let mut values = given.clone();
    for (s, g) in growths() {
        if let Some(c) = extent(s, g.axis).as_const() {
            values.entry(g.length.to_string()).or_insert(expect.symbol(&g.length).min(c / 2));
        }
    }
    let open: Vec<Arc<str>> = growths().flat_map(|(s, g)| extent(s, g.axis).symbols()).collect();
    for s in symbols(graph, &crate::kernel::KernelGraph::default()).iter().filter(|s| !open.contains(s)) {
        values.entry(s.to_string()).or_insert(expect.symbol(s));
    }
    let most = values.values().fold(0, |a: i64, b| a.saturating_add(*b));
    for s in open {
        let room = expect.0.get(&*s).copied().unwrap_or(ROOM.saturating_add(most));
        values.entry(s.to_string()).or_insert(room);
    }
    let mut errors = vec![];
    for (s, g) in growths() {
        let value = |d: &Dim| d.eval_syms(&|n| values.get(n).copied()).unwrap_or(i64::MAX);
        let length = values.get(&*g.length).copied().unwrap_or(0);
        let (more, room) = (value(&g.by), value(&extent(s, g.axis)));
        if length.saturating_add(more) > room {
            let message =
                format!("state `{}` has room for {room} positions, not for {length} and {more} more", s.name);
            errors.push(
                Diagnostic::model(message)
                    .help(format!("measure at other values of {} and {}", g.length, g.by)),
            );
        }
    }
    if errors.is_empty() { Ok(values) } else { Err(Errors(errors)) }
}

/// A schedule of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The schedule.
    pub choice: Schedule,
    /// Its estimated time in cycles, if its family has a cost model.
    pub cycles: Option<f64>,
}

/// A kernel with several possible schedules.
#[derive(Clone, Debug)]
pub struct Tunable {
    /// The key in a tuning table.
    pub key: String,
    /// A description of the computation, for display.
    pub title: String,
    /// The index of the first such kernel.
    pub kernel: usize,
    /// The number of dispatches of such kernels.
    pub dispatches: usize,
    /// The minimum number of bytes that one of them reads and writes.
    pub bytes: u64,
    /// The number of floating-point operations of one of them.
    pub flops: u64,
    /// The schedules to be tried: first the one that is chosen without a table, then the others by estimated time.
    pub candidates: Vec<Candidate>,
}

/// The number of schedules of each form (`product tiled`, `product block`, …) that are tried in any case, unless they are
/// estimated to take [`FAR`] times as long as the best: an estimate may be wrong about all schedules of a form alike.
const EACH_FORM: usize = 2;
const FAR: f64 = 4.0;

/// Lists the kernels of a model that have several schedules, each with the `most` schedules with the best estimates,
/// up to four times as many within `factor` of the best estimate, and the best two of each form. Kernels that move or compute
/// most come first.
///
/// # Errors
/// Like [`emit`].
pub fn tunable(
    fused: &Fused,
    options: &Options,
    values: &Values,
    most: usize,
    factor: f64,
) -> Result<Vec<Tunable>, Errors> {
    let cx = Context { graph: &fused.kernels, device: &options.profile, expect: &options.expect };
    let mut out: Vec<Tunable> = vec![];
    let mut known: BTreeMap<String, Option<usize>> = BTreeMap::new();
    for (i, k) in fused.kernels.kernels.iter().enumerate() {
        if k.reads().iter().any(|t| k.writes().contains(t)) {
            continue;
        }
        let key = key(&fused.kernels, k);
        if let Some(there) = known.get(&key) {
            if let Some(t) = there.and_then(|t| out.get_mut(t)) {
                t.dispatches += 1;
            }
            continue;
        }
        let found = shortlist(k, &cx, values, most, factor)?;
        known.insert(key.clone(), (found.len() > 1).then_some(out.len()));
        if found.len() > 1 {
            out.push(Tunable {
                key,
                title: title(k),
                kernel: i,
                dispatches: 1,
                bytes: count(&assemble::bytes(&fused.kernels, k, &options.expect), values),
                flops: count(&assemble::flops(k), values),
                candidates: found,
            });
        }
    }
    // Sorted by a lower bound of their time.
    let speeds = &options.profile.speeds;
    let least = |t: &Tunable| (t.bytes as f64 / speeds.bandwidth).max(t.flops as f64 / speeds.flops_f32);
    let weight = |t: &Tunable| t.dispatches as f64 * least(t);
    out.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    Ok(out)
}

fn shortlist(
    k: &Kernel,
    cx: &Context,
    values: &Values,
    most: usize,
    factor: f64,
) -> Result<Vec<Candidate>, Diagnostic> {
    let all = candidates(k, cx)?;
    let first = choose(k, cx, &Tuning::default())?;
    let cycles = estimates(k, *cx, values);
    let mut all: Vec<Candidate> =
        all.into_iter().map(|choice| Candidate { cycles: cycles(&choice), choice }).collect();
    // A stable sort, so that schedules without an estimate keep their order.
    all.sort_by(|a, b| a.cycles.unwrap_or(0.0).total_cmp(&b.cycles.unwrap_or(0.0)));
    let best = all.first().and_then(|c| c.cycles).unwrap_or(0.0);
    let mut out = vec![Candidate { cycles: cycles(&first), choice: first.clone() }];
    // The number of candidates of each form that come before.
    let mut forms: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, c) in all.into_iter().filter(|c| c.choice != first).enumerate() {
        let of_form = forms.entry(c.choice.fields().0).or_default();
        let within = |factor: f64| c.cycles.is_some_and(|c| c <= best * factor);
        let few = *of_form < EACH_FORM && (c.cycles.is_none() || within(FAR));
        *of_form += 1;
        if i + 1 < most || (i + 1 < 4 * most && within(factor)) || few {
            out.push(c);
        }
    }
    Ok(out)
}

/// The estimated time in cycles of each schedule of a kernel with these values of symbols; `None` for schedules of families
/// without a cost model.
pub fn estimates<'a>(k: &Kernel, cx: Context<'a>, values: &Values) -> impl Fn(&Schedule) -> Option<f64> + 'a {
    let measured = problem(k).map(|p| at(&p, values));
    let expect = Expected(values.clone());
    let row = rows::cycles(k, &Context { expect: &expect, ..cx }).ok();
    move |c| match (c, &measured, &row) {
        (Schedule::Product(g), Some(p), _) => Some(cycles(g, p, cx.device, cx.expect)),
        (Schedule::Row(s), _, Some(row)) => Some(row(s, cx.device)),
        _ => None,
    }
}

/// A problem with constants in place of its symbols.
fn at(p: &Problem, values: &Values) -> Problem {
    let fixed = |d: &Dim| Poly::constant(count(d, values).min(i64::MAX as u64) as i64);
    let [batch, rows, cols, depth] = [&p.batch, &p.rows, &p.cols, &p.depth].map(fixed);
    Problem { batch, rows, cols, depth, ..p.clone() }
}

fn count(d: &Dim, values: &Values) -> u64 {
    let value = |s: &str| Some(values.get(s).copied().unwrap_or(ASSUMED));
    d.eval_syms(&value).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

/// A program of one kernel. Its inputs are the tensors that the kernel reads, its outputs those that it writes; their
/// extents are constants.
#[derive(Clone, Debug)]
pub struct Single {
    /// The program. The caller must give its symbols their `values`.
    pub program: Program,
    /// For each input, whether it is typically not in a cache when the kernel reads it, like weights and states.
    pub cold: Vec<bool>,
    /// The values of the program's symbols.
    pub values: Values,
}

impl Single {
    /// A kernel of a model with one of its candidate schedules.
    ///
    /// # Errors
    /// Like [`emit`].
    pub fn new(
        fused: &Fused,
        options: &Options,
        kernel: usize,
        choice: Schedule,
        values: &Values,
    ) -> Result<Single, Errors> {
        let symbols = symbols(&fused.graph, &fused.kernels);
        let missing = || Diagnostic::internal("there is no such kernel");
        let k = fused.kernels.kernels.get(kernel).ok_or_else(missing)?;
        let KernelGraph { tensors, bounds, .. } = fused.kernels.clone();
        let own = tensors.len();
        let graph = KernelGraph { tensors, kernels: vec![k.clone()], bounds, ..KernelGraph::default() };
        let all = ScheduledGraph { graph, schedules: vec![choice], sequences: vec![] };
        let all = spread::expand(&all)?;
        let graph = &all.graph;
        let cx = EmitContext::new(graph, &symbols, Target::from(&options.profile));
        let pairs = graph.kernels.iter().zip(&all.schedules);
        let emitted = pairs.map(|(k, s)| emit(k, s, &cx)).collect::<Result<Vec<_>, _>>()?;
        // The tensors in an order that does not depend on the schedule.
        let (reads, writes) = (k.reads(), k.writes());
        let mut buffers = vec![];
        let mut port = |t: TensorId, name: String, kind: BufferKind| {
            let ty = &graph.tensors[t].ty;
            let elements = Dim::from(count(&ty.numel(), values) as usize);
            let shape = vec![elements.clone()];
            let port = Port { name, dtype: ty.dtype, shape, buffer: buffers.len(), broadcast: None };
            buffers.push(Buffer { kind, dtype: ty.dtype, elements });
            port
        };
        let inputs = (reads.iter().enumerate())
            .map(|(index, t)| port(*t, format!("in{index}"), BufferKind::Input { index }))
            .collect();
        let outputs = (writes.iter().enumerate())
            .map(|(index, t)| port(*t, format!("out{index}"), BufferKind::Output { index }))
            .collect();
        // Tensors through which the workgroups of the kernel exchange data.
        let inside: Vec<TensorId> = (own..graph.tensors.len()).collect();
        let fixed = |d: &Dim| Poly::constant(count(d, values) as i64);
        for t in &inside {
            let ty = &graph.tensors[*t].ty;
            let kind = BufferKind::Arena { arena: 0, first: 0, last: graph.kernels.len() - 1 };
            buffers.push(Buffer { kind, dtype: ty.dtype, elements: fixed(&ty.numel()) });
        }
        let tensors: Vec<TensorId> = reads.iter().chain(&writes).chain(&inside).copied().collect();
        let place = |t: &TensorId| tensors.iter().position(|x| x == t);
        let is_cold =
            |t: &TensorId| matches!(graph.tensors[*t].kind, TensorKind::Const(_) | TensorKind::State { .. });
        let cold = reads.iter().map(is_cold).collect();
        let dispatch = |(kernel, (k, e)): (usize, (&Kernel, &EmittedKernel))| Dispatch {
            writes: vec![],
            kernel,
            bindings: e.bindings.iter().filter_map(|(t, _)| place(t)).collect(),
            workgroups: e.workgroups.each_ref().map(fixed),
            nodes: k.nodes.iter().map(|n| n.to_string()).collect(),
            bytes: fixed(&assemble::bytes(graph, k, &options.expect)),
            flops: fixed(&assemble::flops(k)),
        };
        let pairs = || graph.kernels.iter().zip(&emitted).enumerate();
        let value = |s: &str| values.get(s).copied().unwrap_or(ASSUMED);
        let program = Program {
            inputs,
            outputs,
            states: vec![],
            symbols: symbols.iter().map(|s| s.to_string()).collect(),
            computed: vec![],
            constraints: vec![],
            buffers,
            kernels: pairs().map(|(i, (k, e))| program_kernel(i, k, e)).collect(),
            dispatches: pairs().map(dispatch).collect(),
            repeats: vec![],
            stats: Stats::default(),
            weights: BTreeMap::new(),
            proof: Default::default(),
        };
        let values = symbols.iter().map(|s| (s.to_string(), value(s))).collect();
        Ok(Single { program, cold, values })
    }
}

impl Tunable {
    /// The family of its schedules: `product`, `attention`, `row`, ….
    pub fn family(&self) -> &'static str {
        self.candidates.first().map_or("map", |c| c.choice.family())
    }
}
