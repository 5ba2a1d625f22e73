//! What compiles and runs a model, and how that can fail.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once};
use wgfc_compiler::import::{ExternalData, import};
use wgfc_compiler::{Errors, Fusion, Kind, Options};
use wgfc_ir::eval::evaluate;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Graph, Tensor};

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
}

/// A model ready to run.
pub enum Compiled<'a> {
    /// For [`Backend::Evaluator`].
    Graph(Graph, std::marker::PhantomData<&'a ()>),
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Evaluator => f.write_str("the reference evaluator"),
        }
    }
}

impl Backend {
    /// What `WGFC_BACKEND` names: an adapter unless it is `eval`.
    pub fn from_env() -> Result<Backend, String> {
        match std::env::var("WGFC_BACKEND").as_deref() {
            Ok("eval") => Ok(Backend::Evaluator),
            _ => Err("no adapter".into()),
        }
    }
    /// A name for files.
    pub fn short(&self) -> &'static str {
        match self {
            Backend::Evaluator => "eval",
        }
    }
    /// Whether kernels run.
    pub fn is_adapter(&self) -> bool {
        !matches!(self, Backend::Evaluator)
    }

    /// Compiles the model in a file; external data is looked for beside it.
    pub fn compile(&self, model: &Path, fusion: Fusion) -> Result<Compiled<'_>, Failure> {
        let bytes = std::fs::read(model).map_err(|e| Failure::error(format!("{}: {e}", model.display())))?;
        let options = Options { fusion, ..Options::default() };
        match self {
            Backend::Evaluator => {
                let imported = import(&bytes, &Beside(model), &options)?;
                Ok(Compiled::Graph(imported.graph, std::marker::PhantomData))
            }
        }
    }
}

impl Compiled<'_> {
    /// Runs it on inputs in the model's order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        match self {
            Compiled::Graph(graph, _) => {
                if inputs.len() != graph.inputs.len() {
                    return Err(Failure::error(format!(
                        "{} inputs instead of {}",
                        graph.inputs.len(),
                        inputs.len()
                    )));
                }
                let named = graph.inputs.iter().zip(inputs).map(|(b, t)| (b.name.to_string(), t.clone()));
                evaluate(graph, &named.collect()).map_err(|e| Failure::error(e.to_string()))
            }
        }
    }

    /// How many dispatches one run takes.
    pub fn dispatches(&self) -> Option<usize> {
        match self {
            Compiled::Graph(..) => None,
        }
    }
}
