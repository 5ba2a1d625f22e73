//! What compiles and runs a model, and how that can fail.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use wgfc_compiler::import::{ExternalData, import, shape_inputs};
use wgfc_compiler::{Errors, Fusion, Kind, Options};
use wgfc_ir::eval::evaluate;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Graph, Program, Tensor};
use wgfc_runtime::{Gpu, Session};

/// How a case did not pass.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The model needs something that is not supported. The operator, if it is one, and why.
    Unsupported(Option<String>, String),
    /// Compiling or running it failed. The operator, if it is one, and why.
    Error(Option<String>, String),
    /// The numbers differ.
    Wrong(String),
    /// A panic, with its message and place.
    Panic(String),
}

impl Failure {
    /// The word for reports.
    pub fn status(&self) -> &'static str {
        match self {
            Failure::Unsupported(..) => "unsupported",
            Failure::Error(..) => "error",
            Failure::Wrong(_) => "wrong",
            Failure::Panic(_) => "panic",
        }
    }
    /// What went wrong, in full.
    pub fn message(&self) -> &str {
        let (Failure::Unsupported(_, m) | Failure::Error(_, m) | Failure::Wrong(m) | Failure::Panic(m)) =
            self;
        m
    }
    /// What went wrong, in one line.
    pub fn first_line(&self) -> &str {
        self.message().lines().next().unwrap_or("")
    }
    /// The operator that the compiler blames.
    pub fn operator(&self) -> Option<&str> {
        match self {
            Failure::Unsupported(o, _) | Failure::Error(o, _) => o.as_deref(),
            _ => None,
        }
    }
    /// Of one part of the harness, not of the compiler.
    pub fn error(message: impl Into<String>) -> Failure {
        Failure::Error(None, message.into())
    }
}

impl From<Errors> for Failure {
    fn from(errors: Errors) -> Failure {
        let operator = errors.0.iter().find_map(|d| d.location.operator.as_ref()).map(|o| o.to_string());
        if errors.0.iter().all(|d| d.kind == Kind::Unsupported) {
            Failure::Unsupported(operator, errors.to_string())
        } else {
            Failure::Error(operator, errors.to_string())
        }
    }
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    static CATCHING: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs `f`; a panic in it becomes [`Failure::Panic`] and prints nothing.
pub fn caught<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.with(|c| *c.borrow()) {
                LAST_PANIC.with(|p| *p.borrow_mut() = info.to_string().replace('\n', " "));
            } else {
                default(info);
            }
        }));
    });
    let before = CATCHING.with(|c| c.replace(true));
    let result = catch_unwind(AssertUnwindSafe(f));
    CATCHING.with(|c| c.replace(before));
    result.unwrap_or_else(|_| Err(Failure::Panic(LAST_PANIC.with(|p| p.take()))))
}

/// The files beside a model.
struct Beside<'a>(&'a Path);

impl ExternalData for Beside<'_> {
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
        let folder = self.0.parent().ok_or("the model has no folder")?;
        Ok(Arc::new(std::fs::read(folder.join(location)).map_err(|e| e.to_string())?))
    }
}

/// What runs compiled models.
pub enum Backend {
    /// The reference evaluator, on the imported graph as it is.
    Evaluator,
    /// A GPU, or a driver that poses as one.
    Adapter(Gpu),
}

/// A model ready to run.
pub struct Compiled {
    engine: Engine,
    /// The model's inputs, in order.
    inputs: Vec<String>,
    /// Those whose values were fixed when compiling, because shapes depend on them.
    pub fixed: Vec<String>,
    /// How long the compiler took, weights' reading included, and how long the driver did to load the program.
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
    /// The reference evaluator under `WGFC_BACKEND=eval`, else every adapter there is or that
    /// `WGFC_ADAPTER` names; none without one.
    pub fn all() -> Vec<Backend> {
        match std::env::var("WGFC_BACKEND").as_deref() {
            Ok("eval") => vec![Backend::Evaluator],
            _ => wgfc_runtime::testing::gpus().iter().cloned().map(Backend::Adapter).collect(),
        }
    }
    /// A name for files.
    pub fn short(&self) -> &'static str {
        match self {
            Backend::Evaluator => "eval",
            Backend::Adapter(_) => "adapter",
        }
    }
    /// Whether kernels run.
    pub fn is_adapter(&self) -> bool {
        !matches!(self, Backend::Evaluator)
    }

    /// Compiles the model in a file; external data is looked for beside it. `example` holds inputs
    /// from which those that decide shapes take the value to be compiled for.
    pub fn compile(&self, model: &Path, fusion: Fusion, example: &[Tensor]) -> Result<Compiled, Failure> {
        let bytes = std::fs::read(model).map_err(|e| Failure::error(format!("{}: {e}", model.display())))?;
        let beside = Beside(model);
        let inputs = input_names(&bytes)?;
        let mut options = Options { fusion, ..Options::default() };
        // A value that becomes known may bring another to light, but not for ever.
        for _ in 0..4 {
            let before = options.values.len();
            for name in shape_inputs(&bytes, &beside, &options) {
                if let Some((n, t)) = inputs.iter().zip(example).find(|(n, _)| **n == name) {
                    options.values.insert(n.clone(), t.clone());
                }
            }
            if options.values.len() == before {
                break;
            }
        }
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

/// A session for a program.
pub fn session(gpu: &Gpu, program: &Program) -> Result<Session, Failure> {
    Session::new_blocking(gpu, program).map_err(|e| Failure::error(e.to_string()))
}

/// The names of a model's inputs, in order.
fn input_names(model: &[u8]) -> Result<Vec<String>, Failure> {
    let model = wgfc_compiler::import::decode(model)?;
    let graph = model.graph.unwrap_or_default();
    let constant = |name: &str| graph.initializer.iter().any(|t| t.name == name);
    Ok(graph.input.iter().map(|i| i.name.clone()).filter(|n| !constant(n)).collect())
}

impl Compiled {
    /// Runs it on inputs in the model's order; what was fixed is left out.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        if inputs.len() != self.inputs.len() {
            return Err(Failure::error(format!("{} inputs instead of {}", inputs.len(), self.inputs.len())));
        }
        let given = self.inputs.iter().zip(inputs).filter(|(n, _)| !self.fixed.contains(n));
        let given: BTreeMap<String, Tensor> = given.map(|(n, t)| (n.clone(), t.clone())).collect();
        match &mut self.engine {
            Engine::Graph(graph) => evaluate(graph, &given).map_err(|e| Failure::error(e.to_string())),
            Engine::Session(session) => run_session(session, &given),
        }
    }

    /// How many dispatches one run takes.
    pub fn dispatches(&self) -> Option<usize> {
        Some(self.program()?.dispatches.len())
    }
    /// How many kernels it has.
    pub fn kernels(&self) -> Option<usize> {
        Some(self.program()?.kernels.len())
    }
    fn program(&self) -> Option<&Program> {
        match &self.engine {
            Engine::Graph(_) => None,
            Engine::Session(s) => Some(s.program()),
        }
    }
}

/// Runs a session on named inputs; the outputs are in order.
pub fn run_session(session: &mut Session, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Tensor>, Failure> {
    let inputs: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let outputs = session.run_blocking(&inputs).map_err(|e| Failure::error(e.to_string()))?;
    Ok(outputs.into_iter().map(|(_, t)| t).collect())
}
