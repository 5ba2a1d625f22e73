//! The stages of a compilation, in order. [`crate::passes`] lists the steps inside of them.

use crate::error::{Diagnostic, Errors};
use crate::fuse::Fusion;
use crate::import::{ExternalData, Imported};
use crate::kernel::{Family, Kernel, KernelGraph, TensorId};
use crate::layout::Arranged;
use crate::loss_scale;
use crate::options::{Options, Precision, Technique};
use crate::passes::{self, Context, Scope, Section, Watch, verify, verify_kernels};
use crate::schedule::{ScheduledGraph, sequences};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_ir::program::Stats;
use wgfc_ir::{Dim, Graph, Program, Value};

/// Compiles a model.
///
/// ```no_run
/// use wgfc_compiler::import::NoExternalData;
/// use wgfc_compiler::{Options, compile};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = std::fs::read("model.onnx")?;
/// // All weights are in the model's file.
/// match compile(&model, &NoExternalData, &Options::default()) {
///     Ok(program) => println!("{} kernels", program.kernels.len()),
///     Err(errors) => eprintln!("{errors}"),
/// }
/// # Ok(()) }
/// ```
pub fn compile(model: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Program, Errors> {
    compile_observed(model, external, options, &mut |_, _| {})
}

/// A change that a caller makes to the imported graph.
pub type Amend<'a> = &'a mut dyn FnMut(&mut Graph) -> Result<(), Errors>;

/// Compiles a model and passes `observe` the name and the text of each stage's result.
///
/// The text is only generated if `observe` calls the function that it is given.
pub fn compile_observed(
    model: &[u8],
    external: &dyn ExternalData,
    options: &Options,
    observe: Observe<'_>,
) -> Result<Program, Errors> {
    compile_amended(model, external, options, &mut |_| Ok(()), observe)
}

/// A callback that gets the name and the text of each stage's result.
pub type Observe<'a> = &'a mut dyn FnMut(&str, &dyn Fn() -> String);

/// [`compile_observed`] with a change that `amend` makes to the graph after its states have been introduced.
pub fn compile_amended(
    model: &[u8],
    external: &dyn ExternalData,
    options: &Options,
    amend: Amend<'_>,
    observe: Observe<'_>,
) -> Result<Program, Errors> {
    let fused = fuse_amended(model, external, options, amend, observe)?;
    assemble(fused, options, observe)
}

/// A model with fused kernels, before these are scheduled and emitted.
#[derive(Clone, Debug)]
pub struct Fused {
    /// The graph from which the kernels were fused.
    pub graph: Graph,
    /// The kernels.
    pub kernels: KernelGraph,
    /// The graph that the kernels compute, after the passes between the rewrites and fusion.
    pub lowered: Graph,
    /// The values of that graph that tensors hold.
    pub values: BTreeMap<TensorId, Value>,
    /// The tensors whose axes are in another order in memory than those of their values.
    pub arranged: Arranged,
    /// Figures for reports, from import to fusion.
    pub stats: Stats,
}

/// [`compile_amended`] up to the kernels.
pub fn fuse_amended(
    model: &[u8],
    external: &dyn ExternalData,
    options: &Options,
    amend: Amend<'_>,
    observe: Observe<'_>,
) -> Result<Fused, Errors> {
    let (graph, stats) = imported(model, external, options, amend, observe)?;
    fuse_graph(graph, stats, options, observe)
}

/// The first stage of [`compile_amended`]: the imported graph with its states, and figures about it.
pub fn imported(
    model: &[u8],
    external: &dyn ExternalData,
    options: &Options,
    amend: Amend<'_>,
    observe: Observe<'_>,
) -> Result<(Graph, Stats), Errors> {
    imported_by(&|| crate::import::import(model, external, options), options, amend, observe)
}

/// [`imported`] for a model that `import` imports.
pub fn imported_by(
    import: &dyn Fn() -> Result<Imported, Errors>,
    options: &Options,
    amend: Amend<'_>,
    observe: Observe<'_>,
) -> Result<(Graph, Stats), Errors> {
    let stage = Stage::new("import");
    let imported = import()?;
    let mut graph = imported.graph;
    stage.done(imported.model_nodes, &graph);
    verify(&graph, "import")?;
    observe("1-import", &|| wgfc_ir::text::print(&graph));

    let mut symbols = free_symbols(&graph);
    if let Some(scale) = &options.loss_scale {
        loss_scale::mark(&mut graph, &imported.ones, scale)?;
    }
    crate::states::introduce(&mut graph, &options.states)?;
    if let Some(scale) = &options.loss_scale {
        loss_scale::apply(&mut graph, scale)?;
    }
    amend(&mut graph)?;
    let mut warnings = imported.warnings;
    warnings.extend(crate::states::narrow(&mut graph, options.cache).map_err(Diagnostic::internal)?);
    verify(&graph, "states")?;
    symbols.extend(free_symbols(&graph));
    check_expected(options, &symbols)?;

    let stats = Stats {
        model_nodes: imported.model_nodes,
        bytes_unfused: imported.bytes_unfused,
        warnings,
        operators: imported.operators,
        ..Stats::default()
    };
    Ok((graph, stats))
}

/// The symbols of a graph's types, including computed ones.
fn free_symbols(graph: &Graph) -> BTreeSet<Arc<str>> {
    let computed = graph.computed.iter().map(|c| c.symbol.clone());
    crate::assemble::symbols(graph, &KernelGraph::default()).into_iter().chain(computed).collect()
}

/// Checks that expected values are only given for symbols that exist or have been fixed.
fn check_expected(options: &Options, symbols: &BTreeSet<Arc<str>>) -> Result<(), Errors> {
    let known = |name: &String| symbols.contains(name.as_str()) || options.dims.contains_key(name);
    let unknown = options.expect.0.iter().filter(|(name, _)| !known(name));
    let errors: Vec<Diagnostic> = unknown
        .map(|(name, v)| {
            let message =
                format!("{name} is expected to be {v}, but the model has no symbolic dimension `{name}`");
            let all: Vec<&str> = symbols.iter().map(|s| &**s).collect();
            Diagnostic::model(message).help(match all.is_empty() {
                true => "all of its dimensions are constants".into(),
                false => format!("it has: {}", all.join(", ")),
            })
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
}

/// Compiles a graph whose states have been introduced; `stats` holds figures about its import.
pub fn compile_graph(
    graph: Graph,
    stats: Stats,
    options: &Options,
    observe: Observe<'_>,
) -> Result<Program, Errors> {
    let fused = fuse_graph(graph, stats, options, observe)?;
    assemble(fused, options, observe)
}

/// [`compile_graph`] up to the kernels.
pub fn fuse_graph(
    graph: Graph,
    stats: Stats,
    options: &Options,
    observe: Observe<'_>,
) -> Result<Fused, Errors> {
    fuse_watched(graph, stats, options, observe, &mut |_| {})
}

/// [`fuse_graph`] that calls `watch` after each pass.
pub fn fuse_watched(
    graph: Graph,
    stats: Stats,
    options: &Options,
    observe: Observe<'_>,
    watch: Watch<'_>,
) -> Result<Fused, Errors> {
    let may = [Technique::KeyParts, Technique::Sequences].into_iter().all(|t| options.fuses(t));
    if !may || !sequences::suits_device(&options.profile) {
        return fuse_once(graph, stats, options, observe, watch);
    }
    let fused = fuse_once(graph.clone(), stats.clone(), options, observe, watch)?;
    let has_parts = |k: &Kernel| matches!(&k.family, Family::Attention(a) if !a.part_stores.is_empty());
    if !fused.kernels.kernels.iter().any(has_parts) || !sequences::suits(&fused.kernels, &options.profile) {
        return Ok(fused);
    }
    // Several workgroups share out the keys of an attention. Where one workgroup runs all kernels, parts are only more work for it.
    let mut whole = options.clone();
    whole.without.insert(Technique::KeyParts);
    let seconds = |f: &Fused| -> Result<f64, Errors> {
        let ScheduledGraph { graph, schedules, .. } = schedule(f.kernels.clone(), options)?;
        let cx =
            crate::schedule::Context { graph: &graph, device: &options.profile, expect: &options.expect };
        Ok(sequences::find(&schedules, &cx).seconds)
    };
    let other = fuse_once(graph.clone(), stats.clone(), &whole, &mut |_, _| {}, &mut |_| {})?;
    if seconds(&other)? >= seconds(&fused)? {
        return Ok(fused);
    }
    fuse_once(graph, stats, &whole, observe, watch)
}

fn fuse_once(
    mut graph: Graph,
    stats: Stats,
    options: &Options,
    observe: Observe<'_>,
    watch: Watch<'_>,
) -> Result<Fused, Errors> {
    let options = &*expecting(options, &graph);
    passes::check(options)?;
    let mut cx = Context::new(options, Scope::Model, stats);
    // The taps come after the model's own outputs.
    let shown = graph.outputs.iter().rev().take_while(|o| options.taps.iter().any(|t| **t == *o.name));
    cx.outputs = graph.outputs.len() - shown.count();
    passes::run(Section::Import, &mut graph, &mut cx, watch)?;

    let stage = Stage::new("rewrite");
    let before = graph.node_ids().count();
    passes::run(Section::Rewrite, &mut graph, &mut cx, watch)?;
    cx.stats.merged = std::mem::take(&mut cx.report.merged);
    stage.done(before, &graph);
    verify(&graph, "rewrite")?;
    observe("2-rewrite", &|| wgfc_ir::text::print(&graph));

    let stage = Stage::new("fuse");
    let Fusion { mut kernels, graph: lowered, values } = passes::fused(&graph, &mut cx, watch)?;
    tracing::debug!(
        stage = stage.name,
        nodes = graph.node_ids().count(),
        kernels = kernels.kernels.len(),
        loops = kernels.repeats.len(),
        ms = stage.ms(),
        "done"
    );
    observe("3-fuse", &|| kernels.to_string());
    verify_kernels(&kernels, "fuse")?;

    passes::run_on_kernels(&mut kernels, &mut cx, watch, &mut |pass, kernels, cx| {
        let halved = pass.name == "precision" && cx.options.precision == Precision::F16;
        if halved || pass.name == "layout" && !cx.arranged.moved.is_empty() {
            observe(&format!("3-{}", pass.name), &|| kernels.to_string());
        }
    })?;
    Ok(Fused { graph, kernels, lowered, values, arranged: cx.arranged, stats: cx.stats })
}

/// The options with the expectation that optional inputs have one element.
fn expecting<'o>(options: &'o Options, graph: &Graph) -> Cow<'o, Options> {
    let mut options = Cow::Borrowed(options);
    for b in graph.inputs.iter().filter(|b| graph.optional.contains_key(&b.name)) {
        let own = graph.ty(b.value).shape.iter().flat_map(Dim::symbols);
        let expect = &mut options.to_mut().expect.0;
        expect.extend(own.map(|s| (s.to_string(), 1)));
    }
    options
}

/// Schedules and emits all kernels, and places the tensors that they access.
pub fn assemble(fused: Fused, options: &Options, observe: Observe<'_>) -> Result<Program, Errors> {
    let options = &*expecting(options, &fused.graph);
    let stage = Stage::new("schedule");
    let scheduled = schedule(fused.kernels, options)?;
    tracing::debug!(stage = stage.name, kernels = scheduled.schedules.len(), ms = stage.ms(), "done");
    observe("4-schedule", &|| scheduled.to_string());

    let stage = Stage::new("assemble");
    let program = crate::assemble::assemble(&fused.graph, &scheduled, options, fused.stats)?;
    tracing::debug!(
        stage = stage.name,
        dispatches = program.dispatches.len(),
        kernels = program.kernels.len(),
        buffers = program.buffers.len(),
        weights = program.weights.len(),
        ms = stage.ms(),
        "done"
    );
    Ok(program)
}

/// Schedules kernels as the options specify.
///
/// # Errors
/// Like [`schedule`](crate::schedule::schedule).
pub fn schedule(kernels: KernelGraph, options: &Options) -> Result<ScheduledGraph, Errors> {
    let device = &options.profile;
    let mut all =
        crate::schedule::schedule(kernels, device, &options.expect, &options.tuning, &options.schedules)?;
    if options.fuses(Technique::Sequences) {
        sequences::choose(&mut all, device, &options.expect);
    }
    Ok(all)
}

/// A stage, for logging.
struct Stage {
    name: &'static str,
    #[cfg(not(target_arch = "wasm32"))]
    started: std::time::Instant,
}

impl Stage {
    fn new(name: &'static str) -> Stage {
        tracing::trace!(stage = name, "begins");
        Stage {
            name,
            #[cfg(not(target_arch = "wasm32"))]
            started: std::time::Instant::now(),
        }
    }
    /// The elapsed milliseconds; 0 in browsers, which have no clock that std supports.
    fn ms(&self) -> u64 {
        #[cfg(not(target_arch = "wasm32"))]
        return self.started.elapsed().as_millis() as u64;
        #[cfg(target_arch = "wasm32")]
        0
    }
    /// Logs the end of the stage, with the number of nodes before and after it.
    fn done(&self, from: usize, to: &Graph) {
        let (ms, nodes) = (self.ms(), to.node_ids().count());
        tracing::debug!(stage = self.name, from, nodes, ms, "done");
    }
}
