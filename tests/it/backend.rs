//! The backends that compile and run a model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wgfc_compiler::import::{ExternalData, fx, import, shape_inputs};
use wgfc_compiler::pipeline::{Fused, fuse_amended};
use wgfc_compiler::{DeviceProfile, Fusion, Options};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Graph, Program, Tensor};
use wgfc_runtime::{Gpu, Session};
pub use wgfc_selftest::{Failure, caught, run_session, session};

/// The files beside a model.
struct Beside<'a>(&'a Path);

impl ExternalData for Beside<'_> {
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
        let folder = self.0.parent().ok_or("the model has no folder")?;
        Ok(Arc::new(std::fs::read(folder.join(location)).map_err(|e| e.to_string())?))
    }
}

/// The backend that runs compiled models.
pub enum Backend {
    /// The reference evaluator, on the imported graph as it is.
    Evaluator,
    /// A GPU, or a software driver that acts as one.
    Adapter(Gpu),
}

/// A model ready to run.
pub struct Compiled {
    engine: Engine,
    /// The model's inputs, in order.
    inputs: Vec<String>,
    /// The inputs whose values were fixed at compile time because shapes depend on them.
    pub fixed: Vec<String>,
    /// The time that compiling took, including reading the weights, and the time that the driver took to load
    /// the program.
    pub took: [Duration; 2],
}

enum Engine {
    Graph(Box<Graph>),
    Session(Box<Session>),
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Evaluator => f.write_str("the reference evaluator"),
            Backend::Adapter(gpu) => f.write_str(&gpu.summary().name),
        }
    }
}

impl Backend {
    /// The reference evaluator under `WGFC_BACKEND=eval`, otherwise the adapter that `WGFC_ADAPTER` names or
    /// all available ones. Empty if there is no adapter.
    pub fn all() -> Vec<Backend> {
        match std::env::var("WGFC_BACKEND").as_deref() {
            Ok("eval") => vec![Backend::Evaluator],
            _ => wgfc_runtime::testing::gpus().iter().cloned().map(Backend::Adapter).collect(),
        }
    }
    /// The adapters without the evaluator.
    pub fn adapters() -> Vec<Gpu> {
        let adapter = |b| match b {
            Backend::Adapter(gpu) => Some(gpu),
            Backend::Evaluator => None,
        };
        Backend::all().into_iter().filter_map(adapter).collect()
    }
    /// A short name for file names.
    pub fn short(&self) -> &'static str {
        match self {
            Backend::Evaluator => "eval",
            Backend::Adapter(_) => "adapter",
        }
    }
    /// Whether kernels run on an adapter.
    pub fn is_adapter(&self) -> bool {
        !matches!(self, Backend::Evaluator)
    }

    /// Compiles the model in a file; external data is looked for beside it. Inputs that decide shapes are
    /// fixed to their values in `example`.
    pub fn compile(&self, model: &Path, fusion: Fusion, example: &[Tensor]) -> Result<Compiled, Failure> {
        let (bytes, inputs, options) = prepared(model, fusion, example)?;
        let beside = Beside(model);
        let start = Instant::now();
        let mut compiled = None;
        let engine = match self {
            Backend::Evaluator => Engine::Graph(Box::new(import(&bytes, &beside, &options)?.graph)),
            Backend::Adapter(gpu) => {
                let program = wgfc_compiler::compile(&bytes, &beside, &options)?;
                compiled = Some(start.elapsed());
                Engine::Session(Box::new(session(gpu, &program)?))
            }
        };
        let compiled = compiled.unwrap_or_else(|| start.elapsed());
        let took = [compiled, start.elapsed() - compiled];
        Ok(Compiled { engine, inputs, fixed: options.values.into_keys().collect(), took })
    }
}

/// The bytes of a model, the names of its inputs, and options that fix the inputs which decide shapes to
/// their values in `example`.
fn prepared(
    model: &Path,
    fusion: Fusion,
    example: &[Tensor],
) -> Result<(Vec<u8>, Vec<String>, Options), Failure> {
    let bytes = std::fs::read(model).map_err(|e| Failure::error(format!("{}: {e}", model.display())))?;
    let mut options = Options { fusion, ..Options::default() };
    if fx::is_archive(&bytes) {
        let graph = import(&bytes, &Beside(model), &options)?.graph;
        // Inputs that the program writes are states.
        let required = graph.inputs.iter().filter(|i| !graph.optional.contains_key(&i.name));
        let inputs = required.map(|i| (i.value.node, &i.name));
        let mut given: Vec<_> = inputs.chain(graph.states.iter().map(|s| (s.before.node, &s.name))).collect();
        given.sort_unstable();
        let names = given.into_iter().map(|(_, name)| name.to_string()).collect();
        return Ok((bytes, names, options));
    }
    let inputs = input_names(&bytes)?;
    // Fixing one value may reveal another input that decides shapes, so this is repeated a few times.
    for _ in 0..4 {
        let before = options.values.len();
        for name in shape_inputs(&bytes, &Beside(model), &options) {
            if let Some((n, t)) = inputs.iter().zip(example).find(|(n, _)| **n == name) {
                options.values.insert(n.clone(), t.clone());
            }
        }
        if options.values.len() == before {
            break;
        }
    }
    Ok((bytes, inputs, options))
}

/// The program of the model in a file, compiled as by [`Backend::compile`] for this device; the names of the model's inputs, in
/// order, and which of them were fixed.
pub fn program(
    model: &Path,
    example: &[Tensor],
    device: &DeviceProfile,
) -> Result<(Program, Vec<String>, BTreeSet<String>), Failure> {
    let (bytes, inputs, mut options) = prepared(model, Fusion::Full, example)?;
    options.profile = device.clone();
    let program = wgfc_compiler::compile(&bytes, &Beside(model), &options)?;
    Ok((program, inputs, options.values.into_keys().collect()))
}

/// The graph of the model in a file, as [`Backend::compile`] imports it, and the names of the model's inputs, in order.
pub fn graph(model: &Path, example: &[Tensor]) -> Result<(Graph, Vec<String>), Failure> {
    let (bytes, inputs, options) = prepared(model, Fusion::Full, example)?;
    Ok((import(&bytes, &Beside(model), &options)?.graph, inputs))
}

/// The kernels of the model in a file, compiled as by [`Backend::compile`].
pub fn fused(model: &Path, fusion: Fusion, example: &[Tensor]) -> Result<Fused, Failure> {
    let (bytes, _, options) = prepared(model, fusion, example)?;
    Ok(fuse_amended(&bytes, &Beside(model), &options, &mut |_| Ok(()), &mut |_, _| {})?)
}

/// The names of a model's inputs, in order.
fn input_names(model: &[u8]) -> Result<Vec<String>, Failure> {
    let model = wgfc_compiler::import::decode(model)?;
    let graph = model.graph.unwrap_or_default();
    let constant = |name: &str| graph.initializer.iter().any(|t| t.name == name);
    Ok(graph.input.iter().map(|i| i.name.clone()).filter(|n| !constant(n)).collect())
}

impl Compiled {
    /// Runs the model on inputs in the model's order; the values of fixed inputs are ignored.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        if inputs.len() != self.inputs.len() {
            return Err(Failure::error(format!("{} inputs instead of {}", inputs.len(), self.inputs.len())));
        }
        let given = self.inputs.iter().zip(inputs).filter(|(n, _)| !self.fixed.contains(n));
        let all: BTreeMap<String, Tensor> = given.map(|(n, t)| (n.clone(), t.clone())).collect();
        let states: BTreeSet<String> = match &self.engine {
            Engine::Graph(graph) => graph.states.iter().map(|s| s.name.to_string()).collect(),
            Engine::Session(session) => session.program().states.iter().map(|s| s.name.to_string()).collect(),
        };
        let (written, given) = all.into_iter().partition(|(name, _)| states.contains(name));
        match &mut self.engine {
            Engine::Graph(graph) => {
                let mut states = StateValues { tensors: written, ..StateValues::default() };
                evaluate_from(graph, &given, &mut states).map_err(|e| Failure::error(e.to_string()))
            }
            Engine::Session(session) => {
                if !written.is_empty() {
                    session.set_states_blocking(&written).map_err(|e| Failure::error(e.to_string()))?;
                }
                run_session(session, &given)
            }
        }
    }

    /// The number of dispatches of one run; `None` for the evaluator.
    pub fn dispatches(&self) -> Option<usize> {
        Some(self.program()?.dispatches.len())
    }
    /// The number of kernels; `None` for the evaluator.
    pub fn kernels(&self) -> Option<usize> {
        Some(self.program()?.kernels.len())
    }
    /// The compiled program; `None` for the evaluator.
    pub fn program(&self) -> Option<&Program> {
        match &self.engine {
            Engine::Graph(_) => None,
            Engine::Session(s) => Some(s.program()),
        }
    }
}
