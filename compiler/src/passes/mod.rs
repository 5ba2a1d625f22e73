//! The passes of a compilation, in one list: what each does, on which graphs it runs, and whether it can be left out.
//!
//! A pass is a function on a graph ([`Run::Graph`]) or on kernels ([`Run::Kernels`]), with a name and one line that says what it
//! does. [`PASSES`] holds them in the order in which they run. What a pass finds out for later ones is in the [`Context`].
//!
//! - [`Section::Import`] runs once, on the imported graph.
//! - [`Section::Rewrite`] runs on the model, then on each body of its branches and loops.
//! - [`Section::Lower`] runs on a copy of the rewritten graph, and on the graph of each step of a loop that is split.
//! - Then [fusion](crate::fuse) makes kernels of the graph, and [`Section::Kernels`] runs on these.
//!
//! A new pass is a function in a file of its own, and an entry in [`PASSES`]. `docs/passes.md` is generated from the list.
//! In debug builds the graph is verified after each pass, in others after each section. A [`Watch`] is called after each pass,
//! with the graph of the whole model.

mod control_flow;
#[cfg(test)]
mod docs;
mod forms;
mod large_weights;
mod list;
mod loops;
mod outputs;
mod supported;
#[cfg(test)]
mod tests;
mod wide_concats;

pub use list::PASSES;

use crate::error::{Diagnostic, Errors};
use crate::fuse::{Findings, Fusion as Fused, Lowered};
use crate::kernel::KernelGraph;
use crate::options::{Fusion, Options, Technique};
use crate::rewrite::RewriteReport;
use std::collections::BTreeSet;
use std::time::Duration;
use wgfc_ir::program::Stats;
use wgfc_ir::{Graph, NodeId, Op};

/// The part of the compilation that a pass belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The imported graph.
    Import,
    /// Rewrites of the graph.
    Rewrite,
    /// From the rewritten graph to one of which kernels can be made.
    Lower,
    /// The kernels that fusion made.
    Kernels,
}

impl Section {
    /// All sections, in their order.
    pub const ALL: [Section; 4] = [Section::Import, Section::Rewrite, Section::Lower, Section::Kernels];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Section::Import => "import",
            Section::Rewrite => "rewrite",
            Section::Lower => "lower",
            Section::Kernels => "kernels",
        }
    }
}

/// The kind of the graph that a pass runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The model.
    Model,
    /// The body of a branch or of a loop, while it is rewritten.
    Body,
    /// One step of a loop that is split, as a graph of its own.
    Step,
}

/// The function of a pass.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// Changes a graph.
    Graph(fn(&mut Graph, &mut Context<'_>) -> Result<(), Errors>),
    /// Changes kernels.
    Kernels(fn(&mut KernelGraph, &mut Context<'_>) -> Result<(), Errors>),
}

/// A pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Its name, as `--without-pass` takes it.
    pub name: &'static str,
    /// A sentence that says what the pass does.
    pub about: &'static str,
    /// The part of the compilation that it belongs to.
    pub section: Section,
    /// The graphs that it runs on.
    pub on: &'static [Scope],
    /// The least extent of fusion with which it runs.
    pub fusion: Fusion,
    /// The technique that it is a part of.
    pub technique: Option<Technique>,
    /// Why a compilation cannot do without it; `None` if it can.
    pub needed: Option<&'static str>,
    /// Its function.
    pub run: Run,
}

impl Pass {
    /// Whether it runs with these options on a graph of this kind.
    pub fn runs(&self, options: &Options, scope: Scope) -> bool {
        self.on.contains(&scope)
            && options.fusion >= self.fusion
            && self.technique.is_none_or(|t| options.fuses(t))
            && (self.needed.is_some() || !options.without_passes.contains(self.name))
    }
}

/// Information that passes share.
#[derive(Debug)]
pub struct Context<'o> {
    /// The options of the compilation.
    pub options: &'o Options,
    /// The kind of the graph that is being changed.
    pub scope: Scope,
    /// Figures about the rewrites of the model.
    pub report: RewriteReport,
    /// Figures about the compilation.
    pub stats: Stats,
    /// Results for fusion: values that must be in memory, the loops that are one kernel and those that are split.
    pub findings: Findings,
    /// The number of outputs of the model, before its taps.
    pub outputs: usize,
    /// The kernels whose operands may be rounded to f16.
    pub rounds: Vec<bool>,
    /// The tensors whose axes are in another order in memory, and the kernels before all others that copy inputs.
    pub arranged: crate::layout::Arranged,
}

impl<'o> Context<'o> {
    /// The context of a compilation that has not begun.
    pub fn new(options: &'o Options, scope: Scope, stats: Stats) -> Context<'o> {
        Context {
            options,
            scope,
            report: RewriteReport::default(),
            stats,
            findings: Findings::default(),
            outputs: usize::MAX,
            rounds: vec![],
            arranged: crate::layout::Arranged::default(),
        }
    }
}

/// The graph or the kernels after a pass.
#[derive(Debug)]
pub enum State<'a> {
    /// The graph of the model.
    Graph(&'a mut Graph),
    /// The kernels.
    Kernels(&'a mut KernelGraph),
}

/// A pass that has run.
#[derive(Debug)]
pub struct After<'a> {
    /// The pass.
    pub pass: &'static Pass,
    /// The body that it ran on, as in `loop/body`; empty for the model.
    pub body: &'a str,
    /// The number of nodes before; for passes on kernels, the number of these.
    pub before: usize,
    /// The number of nodes, or kernels, after it.
    pub after: usize,
    /// The time that it took; zero in browsers, which have no clock that std supports.
    pub time: Duration,
    /// The whole model after it. A watch may change it, as tests do to plant a fault.
    pub state: State<'a>,
}

/// A function that is called after each pass.
pub type Watch<'w> = &'w mut dyn FnMut(After<'_>);

/// A clock, which browsers lack.
pub(crate) struct Clock {
    #[cfg(not(target_arch = "wasm32"))]
    started: std::time::Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock {
            #[cfg(not(target_arch = "wasm32"))]
            started: std::time::Instant::now(),
        }
    }
    /// The time since the start; zero in browsers.
    pub(crate) fn elapsed(&self) -> Duration {
        #[cfg(not(target_arch = "wasm32"))]
        return self.started.elapsed();
        #[cfg(target_arch = "wasm32")]
        Duration::ZERO
    }
}

/// Checks that the passes that are left out exist and can be left out.
pub fn check(options: &Options) -> Result<(), Errors> {
    let mut errors = vec![];
    for name in &options.without_passes {
        let found: Vec<&Pass> = PASSES.iter().filter(|p| p.name == name).collect();
        let error = match found.first().map(|p| p.needed) {
            Some(None) => continue,
            Some(Some(why)) => Diagnostic::model(format!("the pass `{name}` cannot be left out: {why}"))
                .help("leave out another; `wgfc inspect --passes` lists them"),
            None => Diagnostic::model(format!("there is no pass `{name}`"))
                .help(format!("there are: {}", names())),
        };
        errors.push(error);
    }
    if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
}

/// The names of the passes that can be left out.
fn names() -> String {
    let mut seen = BTreeSet::new();
    let all = PASSES.iter().filter(|p| p.needed.is_none() && seen.insert(p.name)).map(|p| p.name);
    all.collect::<Vec<_>>().join(", ")
}

/// Runs the passes of a section on the graph of the model, and those of [`Section::Rewrite`] on its bodies.
pub fn run(
    section: Section,
    graph: &mut Graph,
    cx: &mut Context<'_>,
    watch: Watch<'_>,
) -> Result<(), Errors> {
    for pass in PASSES.iter().filter(|p| p.section == section) {
        on_graph(pass, graph, &[], cx, watch)?;
    }
    if section == Section::Rewrite {
        let (scope, report) = (cx.scope, std::mem::take(&mut cx.report));
        cx.scope = Scope::Body;
        let done = bodies(graph, &mut vec![], cx, watch);
        (cx.scope, cx.report) = (scope, report);
        done?;
    }
    Ok(())
}

/// The way to a body: nodes with bodies, from the outermost on, and the number of the body in each.
type Path = [(NodeId, usize)];

/// Runs the rewrites on all bodies in the graph at `path`, an outer body before those inside of it.
fn bodies(
    graph: &mut Graph,
    path: &mut Vec<(NodeId, usize)>,
    cx: &mut Context<'_>,
    watch: Watch<'_>,
) -> Result<(), Errors> {
    let nodes: Vec<NodeId> = at(graph, path).into_iter().flat_map(|g| g.node_ids()).collect();
    for n in nodes {
        let count = at(graph, path).map_or(0, |g| subgraphs(g, n).len());
        for i in 0..count {
            path.push((n, i));
            for pass in PASSES.iter().filter(|p| p.section == Section::Rewrite) {
                on_graph(pass, graph, path, cx, watch)?;
            }
            bodies(graph, path, cx, watch)?;
            path.pop();
        }
    }
    Ok(())
}

/// Runs a pass on the graph at `path`, unless the options leave it out.
fn on_graph(
    pass: &'static Pass,
    graph: &mut Graph,
    path: &Path,
    cx: &mut Context<'_>,
    watch: Watch<'_>,
) -> Result<(), Errors> {
    let Run::Graph(run) = pass.run else { return Ok(()) };
    if !pass.runs(cx.options, cx.scope) {
        return Ok(());
    }
    let clock = Clock::start();
    let lost = || Diagnostic::internal("a body is not where it was");
    let own = at(graph, path).ok_or_else(lost)?;
    let before = own.len();
    run(own, cx)?;
    let (after, time) = (own.len(), clock.elapsed());
    // The states of a step may have symbolic sizes, which those of a model may not.
    if cfg!(debug_assertions) && cx.scope != Scope::Step {
        verify(graph, pass.name)?;
    }
    let body = labels(graph, path);
    tracing::trace!(pass = pass.name, body, before, after, us = time.as_micros() as u64, "ran");
    watch(After { pass, body: &body, before, after, time, state: State::Graph(graph) });
    Ok(())
}

/// Runs the passes on kernels. `done` is called after each, with the pass.
pub fn run_on_kernels(
    kernels: &mut KernelGraph,
    cx: &mut Context<'_>,
    watch: Watch<'_>,
    done: &mut dyn FnMut(&Pass, &KernelGraph, &Context<'_>),
) -> Result<(), Errors> {
    for pass in PASSES {
        let Run::Kernels(run) = pass.run else { continue };
        if !pass.runs(cx.options, cx.scope) {
            continue;
        }
        let (clock, before) = (Clock::start(), kernels.kernels.len());
        run(kernels, cx)?;
        let (after, time) = (kernels.kernels.len(), clock.elapsed());
        if cfg!(debug_assertions) {
            verify_kernels(kernels, pass.name)?;
        }
        tracing::trace!(pass = pass.name, before, after, us = time.as_micros() as u64, "ran");
        done(pass, kernels, cx);
        watch(After { pass, body: "", before, after, time, state: State::Kernels(kernels) });
    }
    Ok(())
}

/// Rewrites `graph` in place; its inputs and outputs keep their names, order and types.
///
/// With [`Fusion::None`] only the clean-ups run, with [`Fusion::Elementwise`] also the exact rules, with [`Fusion::Full`]
/// everything that the options do not exclude. Fails only if the graph is malformed or a rule is wrong.
pub fn rewrite(graph: &mut Graph, options: &Options) -> Result<RewriteReport, Errors> {
    let mut cx = Context::new(options, Scope::Model, Stats::default());
    cx.report.nodes_before = graph.len();
    run(Section::Rewrite, graph, &mut cx, &mut |_| {})?;
    cx.report.nodes_after = graph.len();
    Ok(cx.report)
}

/// Runs the passes between the rewrites and fusion on a copy of a graph.
pub fn lower(graph: &Graph, cx: &mut Context<'_>, watch: Watch<'_>) -> Result<Lowered, Errors> {
    let mut graph = graph.clone();
    let outputs = graph.outputs.iter().map(|o| graph.ty(o.value).clone()).collect();
    run(Section::Lower, &mut graph, cx, watch)?;
    Ok(Lowered { graph, outputs, findings: std::mem::take(&mut cx.findings) })
}

/// [`lower`] of the graph of a loop's step.
fn lower_step(graph: &Graph, options: &Options) -> Result<Lowered, Errors> {
    lower(graph, &mut Context::new(options, Scope::Step, Stats::default()), &mut |_| {})
}

/// Makes kernels of a graph that has been rewritten: [`lower`], then [`fuse`](crate::fuse::fuse).
pub fn fused(graph: &Graph, cx: &mut Context<'_>, watch: Watch<'_>) -> Result<Fused, Errors> {
    let options = cx.options;
    crate::fuse::fuse(lower(graph, cx, watch)?, options, lower_step)
}

/// Fuses a graph that has been rewritten into kernels.
pub fn fuse(graph: &Graph, options: &Options) -> Result<KernelGraph, Errors> {
    let mut cx = Context::new(options, Scope::Model, Stats::default());
    Ok(fused(graph, &mut cx, &mut |_| {})?.kernels)
}

/// The bodies of a node.
fn subgraphs(graph: &mut Graph, n: NodeId) -> Vec<&mut Graph> {
    match &mut graph.node_mut(n).op {
        Op::If { then_branch, else_branch } => vec![then_branch, else_branch],
        Op::While { body, .. } | Op::Scan { body, .. } => vec![body],
        _ => vec![],
    }
}

/// The graph at `path`.
fn at<'g>(graph: &'g mut Graph, path: &Path) -> Option<&'g mut Graph> {
    path.iter().try_fold(graph, |g, (n, i)| subgraphs(g, *n).into_iter().nth(*i))
}

/// The names of the nodes on a path.
fn labels(graph: &mut Graph, path: &Path) -> String {
    let mut all = vec![];
    for (i, (n, _)) in path.iter().enumerate() {
        let label = at(graph, &path[..i]).map(|g| g.node(*n).label().to_string());
        all.extend(label);
    }
    all.join("/")
}

/// Verifies a graph after a pass or a stage.
pub fn verify(graph: &Graph, after: &str) -> Result<(), Errors> {
    wgfc_ir::verify::verify(graph).map_err(|problems| broken(problems, after))
}

/// Verifies kernels after a pass or a stage.
pub fn verify_kernels(kernels: &KernelGraph, after: &str) -> Result<(), Errors> {
    crate::kernel::verify(kernels).map_err(|problems| broken(problems, after))
}

fn broken(problems: Vec<String>, after: &str) -> Errors {
    Errors(problems.into_iter().map(|p| Diagnostic::internal(format!("after {after}: {p}"))).collect())
}
