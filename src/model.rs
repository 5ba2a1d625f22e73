//! Loads and runs a model, on a GPU if there is one, otherwise on the CPU.

use crate::generate::Setup;
use crate::source::ModelFile;
use crate::value_info::{ValueInfo, check_inputs, graph_values, program_values};
use crate::{Bundle, Error, Options, Problem, Program, Tensor, artefact, memory};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use wgfc_ir::eval::{Limits, Progress, StateValues, evaluate_watched};
use wgfc_ir::{Dim, Graph};
use wgfc_runtime::error::BadInput;
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::{SessionOptions, Value};
use wgfc_runtime::{AdapterChoice, Gpu, Plans, RunError, Session};

/// Where a model runs.
///
/// ```
/// use wgfc::Place;
/// use wgfc::runtime::AdapterChoice;
/// // The best GPU, and an error if there is none.
/// let place = Place::Device(AdapterChoice::Best);
/// assert_ne!(place, Place::Cpu);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// On the adapter of this choice. [`AdapterChoice::Best`] selects the CPU if the machine has no adapter or only software
    /// ones, which compute on the same cores and have to compile kernels first.
    Any(AdapterChoice),
    /// On the adapter of this choice; an error if there is none.
    Device(AdapterChoice),
    /// On the CPU, with the reference evaluator.
    Cpu,
}

impl Default for Place {
    /// The place that `WGFC_ADAPTER` names, else the best GPU, else the CPU.
    fn default() -> Place {
        Place::Any(AdapterChoice::from_env())
    }
}

impl Place {
    /// Opens the adapter, or determines that the model runs on the CPU.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// use wgfc::Place;
    /// use wgfc::model::{Opened, WhyCpu};
    /// match Place::default().open()? {
    ///     Opened::Gpu(gpu) => println!("on {}", gpu.summary().name),
    ///     Opened::Cpu(WhyCpu::NoAdapter) => println!("on the CPU, as there is no adapter"),
    ///     Opened::Cpu(why) => println!("on the CPU: {why:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn open(&self) -> Result<Opened, Error> {
        Ok(match self {
            Place::Cpu => Opened::Cpu(WhyCpu::Asked),
            Place::Any(AdapterChoice::Best) => match Gpu::request_blocking(&AdapterChoice::Best) {
                Err(RunError::NoAdapter { .. }) => Opened::Cpu(WhyCpu::NoAdapter),
                Ok(gpu) if gpu.summary().is_software => {
                    Opened::Cpu(WhyCpu::Software { adapter: gpu.summary().name.clone() })
                }
                other => Opened::Gpu(other.map_err(device_error)?),
            },
            Place::Any(choice) | Place::Device(choice) => {
                Opened::Gpu(Gpu::request_blocking(choice).map_err(device_error)?)
            }
        })
    }

    /// Opens the adapter for the compiled program at `path`, which cannot run on the CPU.
    pub fn open_for_program(&self, path: &Path) -> Result<Gpu, Error> {
        let choice = match self {
            Place::Any(c) | Place::Device(c) => c,
            Place::Cpu => return Err(cpu_needs_graph(path)),
        };
        Gpu::request_blocking(choice).map_err(|e| {
            let none = matches!(e, RunError::NoAdapter { .. });
            match (device_error(e), none) {
                (Error::Device(p), true) => Error::Device(Problem {
                    help: Some("without one, give the model instead of the compiled folder: the CPU's reference evaluator runs it".into()),
                    ..p
                }),
                (e, _) => e,
            }
        })
    }
}

/// The opened place where a model will run.
#[derive(Clone, Debug)]
pub enum Opened {
    /// It will run on this device.
    Gpu(Gpu),
    /// It will run in the reference evaluator on the CPU.
    Cpu(WhyCpu),
}

/// The reason why the CPU's evaluator runs a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyCpu {
    /// The caller requested the CPU.
    Asked,
    /// There is no adapter.
    NoAdapter,
    /// The best adapter is a software one and was not requested by name.
    Software {
        /// The adapter's name.
        adapter: String,
    },
}

/// A model ready to run.
///
/// ```
/// use wgfc::{Model, Options, Place, Tensor};
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// // A classifier from f32[batch, 13] to the probabilities of five classes.
/// let mut model = Model::load(&path, &Options::default(), Place::default())?;
/// let x = Tensor::from_f32(vec![2, 13], &[0.5; 26]);
/// let outputs = model.run(&[("x".to_owned(), x)].into())?;
/// assert_eq!(outputs["probabilities"].shape, [2, 5]);
/// # Ok(()) }
/// ```
pub struct Model {
    inputs: Vec<ValueInfo>,
    outputs: Vec<ValueInfo>,
    warnings: Vec<String>,
    engine: Engine,
    setup: Setup,
    /// The compiled folder or file it was read from.
    folder: Option<PathBuf>,
}

/// The execution engine of a model: plans on a device, of which the one with index `current` was selected last, or the
/// evaluator.
enum Engine {
    Device { plans: Box<Plans>, current: usize },
    Cpu { graph: Box<Graph>, states: StateValues, iterations: u64, progress: Arc<Progress> },
}

/// The most iterations of a loop that the evaluator runs unless the options set another limit.
pub(crate) const CPU_ITERATIONS: u64 = 1 << 24;

impl Model {
    /// Loads a model, or a program that [`save`](artefact::save) wrote, which needs an adapter.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// use wgfc::{Model, Options, Place};
    /// let model = Model::load(&path, &Options::default(), Place::Cpu)?;
    /// let inputs: Vec<String> = model.inputs().iter().map(|i| format!("{} {}", i.name, i.type_text())).collect();
    /// assert_eq!(inputs, ["x f32[batch, 13]"]);
    /// # Ok(()) }
    /// ```
    pub fn load(path: &Path, options: &Options, place: Place) -> Result<Model, Error> {
        if !artefact::is_program(path) {
            return Model::compile(&ModelFile::open(path)?, options, place);
        }
        let read = artefact::ReadOptions { memory_limit: options.memory_limit, ..Default::default() };
        let bundle = artefact::load_bundle_with(path, &read)?;
        Model::of_bundle(place.open_for_program(path)?, &bundle, path, Checks::default())
    }

    /// Puts the plans that were [loaded](artefact::load_bundle) from `path` on a device, leaving out those that it cannot
    /// run. Each run uses the first plan that its inputs fit. `checks` guards kernels as in [`Model::of_folder_with`].
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let out = folder.path().join("mlp.wgfc");
    /// # wgfc::save(&wgfc::compile_file(&path, &Default::default())?, &out, &Default::default())?;
    /// use wgfc::Model;
    /// use wgfc::runtime::kernel::Checks;
    /// let bundle = wgfc::load_bundle(&out)?;
    /// let model = Model::of_bundle(gpu, &bundle, &out, Checks::All)?;
    /// assert_eq!(model.outputs()[0].name, "probabilities");
    /// # Ok(()) }
    /// ```
    pub fn of_bundle(gpu: Gpu, bundle: &Bundle, path: &Path, checks: Checks) -> Result<Model, Error> {
        let start = Instant::now();
        let options = SessionOptions { checks, ..SessionOptions::default() };
        let plans = Plans::new_blocking(&gpu, bundle, options);
        let plans = plans.map_err(|e| edited(path, device_error(e)))?;
        let model = Model::of_plans(plans, start)?;
        Ok(Model { folder: Some(path.to_owned()), ..model })
    }

    /// Puts the program that was [loaded](artefact::load) from the folder `path` on a device. An internal error about the
    /// program is reported as a fault of the folder.
    pub fn of_folder(gpu: Gpu, program: Program, path: &Path) -> Result<Model, Error> {
        Model::of_folder_with(gpu, program, path, Checks::default())
    }

    /// [`Model::of_folder`] with a choice of how kernels are guarded. Nothing is proven about a program that was read: a
    /// caller that passes [`Checks::Trusted`] vouches for the folder.
    pub fn of_folder_with(gpu: Gpu, program: Program, path: &Path, checks: Checks) -> Result<Model, Error> {
        let model = Model::on_device_with(gpu, program, checks).map_err(|e| edited(path, e))?;
        Ok(Model { folder: Some(path.to_owned()), ..model })
    }

    /// Compiles an opened model for the place where it will run.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// use wgfc::{Model, ModelFile, Options, Place};
    /// let file = ModelFile::open(&path)?;
    /// let model = Model::compile(&file, &Options::default(), Place::Cpu)?;
    /// assert_eq!(model.outputs()[0].type_text(), "f32[batch, 5]");
    /// # Ok(()) }
    /// ```
    pub fn compile(file: &ModelFile, options: &Options, place: Place) -> Result<Model, Error> {
        match place.open()? {
            Opened::Gpu(gpu) => Model::compile_for(gpu, file, options),
            Opened::Cpu(_) => Model::on_cpu(file, options),
        }
    }

    /// Compiles an opened model for the limits of a device, and uploads it.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// use wgfc::{Model, ModelFile, Options, Tensor};
    /// let mut model = Model::compile_for(gpu, &ModelFile::open(&path)?, &Options::default())?;
    /// println!("compiled in {:?}", model.setup().compiling);
    /// // Runs whose outputs stay on the device.
    /// let session = model.session_mut().expect("it is on a device");
    /// let x = Tensor::from_f32(vec![1, 13], &[0.5; 13]);
    /// let y = session.run_on_device_blocking(&[("x", x.into())]).map_err(wgfc::model::device_error)?;
    /// assert_eq!(y[0].1.shape(), [1, 5]);
    /// # Ok(()) }
    /// ```
    pub fn compile_for(gpu: Gpu, file: &ModelFile, options: &Options) -> Result<Model, Error> {
        let options = Options { profile: options.profile.with_limits(gpu.profile()), ..options.clone() };
        let start = Instant::now();
        let program = file.compile(&options)?;
        let compiling = start.elapsed();
        let mut model = Model::on_device(gpu, program)?;
        model.setup.compiling = compiling;
        Ok(model)
    }

    /// An opened model that runs in the reference evaluator.
    pub fn on_cpu(file: &ModelFile, options: &Options) -> Result<Model, Error> {
        let start = Instant::now();
        let imported = file.import(options)?;
        Ok(Model {
            setup: Setup { compiling: start.elapsed(), ..Setup::default() },
            inputs: graph_values(&imported.graph, &imported.graph.inputs),
            outputs: graph_values(&imported.graph, &imported.graph.outputs),
            warnings: imported.warnings,
            engine: Engine::Cpu {
                graph: Box::new(imported.graph),
                states: StateValues::default(),
                iterations: options.iteration_limit.unwrap_or(CPU_ITERATIONS),
                progress: Arc::default(),
            },
            folder: None,
        })
    }

    /// Uploads a program to a device.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// use wgfc::{Model, Options};
    /// let program = wgfc::compile_file(&path, &Options::default())?;
    /// let model = Model::on_device(gpu, program)?;
    /// assert!(model.warnings().is_empty());
    /// # Ok(()) }
    /// ```
    pub fn on_device(gpu: Gpu, program: Program) -> Result<Model, Error> {
        Model::on_device_with(gpu, program, Checks::default())
    }

    fn on_device_with(gpu: Gpu, program: Program, checks: Checks) -> Result<Model, Error> {
        let start = Instant::now();
        let options = SessionOptions { checks, ..SessionOptions::default() };
        let session = Session::with_options_blocking(&gpu, &program, options).map_err(device_error)?;
        Model::of_plans(Plans::of(session), start)
    }

    fn of_plans(plans: Plans, start: Instant) -> Result<Model, Error> {
        let programs: Vec<&Program> = plans.sessions().map(Session::program).collect();
        // The model's ports are those of the most general plan: the one with the most symbolic extents.
        let open =
            |p: &&&Program| p.inputs.iter().flat_map(|i| &i.shape).filter(|d| d.as_const().is_none()).count();
        let widest = programs.iter().rev().max_by_key(open);
        let widest = *widest.ok_or_else(|| Error::Internal("a model without a plan".into()))?;
        let mut warnings: Vec<String> = vec![];
        for w in programs.iter().flat_map(|p| &p.stats.warnings) {
            if !warnings.contains(w) {
                warnings.push(w.clone());
            }
        }
        Ok(Model {
            setup: Setup { uploading: start.elapsed(), ..Setup::default() },
            inputs: program_values(&widest.inputs),
            outputs: program_values(&widest.outputs),
            warnings,
            engine: Engine::Device { plans: Box::new(plans), current: 0 },
            folder: None,
        })
    }

    /// The inputs, in the model's order.
    pub fn inputs(&self) -> &[ValueInfo] {
        &self.inputs
    }
    /// The outputs, in the model's order.
    pub fn outputs(&self) -> &[ValueInfo] {
        &self.outputs
    }
    /// The compiler's warnings.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
    /// How long compiling and uploading took.
    pub fn setup(&self) -> Setup {
        self.setup
    }
    /// The session on the device, with its GPU and program; `None` on the CPU. With several plans it is the session of the
    /// plan that was selected last, initially of the first.
    pub fn session(&self) -> Option<&Session> {
        match &self.engine {
            Engine::Device { plans, current } => plans.session(*current),
            Engine::Cpu { .. } => None,
        }
    }
    /// The session on the device, for runs without copies to the host; `None` on the CPU. With several plans it is chosen as
    /// in [`Model::session`].
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.engine {
            Engine::Device { plans, current } => plans.session_mut(*current),
            Engine::Cpu { .. } => None,
        }
    }
    /// The progress of a run that another thread has started; `None` on a device.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// use wgfc::{Model, Options, Place};
    /// let model = Model::load(&path, &Options::default(), Place::Cpu)?;
    /// // For a thread that shows how far a long run on the CPU is.
    /// let progress = model.progress().expect("it is on the CPU");
    /// println!("{} of {} nodes", progress.done(), progress.nodes());
    /// # Ok(()) }
    /// ```
    pub fn progress(&self) -> Option<Arc<Progress>> {
        match &self.engine {
            Engine::Device { .. } => None,
            Engine::Cpu { progress, .. } => Some(progress.clone()),
        }
    }
    /// The plans on the device; `None` on the CPU.
    pub fn plans(&self) -> Option<&Plans> {
        match &self.engine {
            Engine::Device { plans, .. } => Some(plans),
            Engine::Cpu { .. } => None,
        }
    }
    /// The session of the plan that runs these inputs; `None` on the CPU.
    ///
    /// # Errors
    /// No plan takes these inputs.
    pub fn session_for(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Option<&mut Session>, Error> {
        if let Engine::Device { plans, current } = &mut self.engine {
            *current = select(plans, inputs)?;
        }
        Ok(self.session_mut())
    }

    /// Runs the model. Shapes of the inputs bind the model's symbols. All outputs are returned, by name. States have the
    /// values that the previous run has left.
    ///
    /// # Errors
    /// All inputs that are missing, unknown, or of the wrong type or shape; errors of the device.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// use wgfc::{Model, Options, Place, Tensor};
    /// let mut model = Model::load(&path, &Options::default(), Place::Cpu)?;
    /// let x = Tensor::from_f32(vec![3, 13], &[0.5; 39]);
    /// let outputs = model.run(&[("x".to_owned(), x)].into())?;
    /// assert_eq!(outputs["probabilities"].shape, [3, 5]);
    /// // An error names every input that is missing or does not fit.
    /// let e = model.run(&Default::default()).unwrap_err();
    /// assert!(e.to_string().contains("`x`"));
    /// # Ok(()) }
    /// ```
    pub fn run(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, Error> {
        let several = matches!(&self.engine, Engine::Device { plans, .. } if plans.names().count() > 1);
        if !several {
            check_inputs(&self.inputs, inputs)?;
        }
        match &mut self.engine {
            Engine::Device { plans, current } => {
                if several {
                    *current = select(plans, inputs)?;
                }
                let no_plan = || Error::Internal("a model without a plan".into());
                let session = plans.session_mut(*current).ok_or_else(no_plan)?;
                let named: Vec<(&str, Tensor)> =
                    inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
                let outputs = session.run_blocking(&named);
                let outputs = outputs.map_err(|e| folder_error(self.folder.as_deref(), e))?;
                Ok(outputs.into_iter().collect())
            }
            Engine::Cpu { graph, states, iterations, progress } => {
                let limits =
                    Limits { bytes: memory::available(), iterations: *iterations, ..Limits::default() };
                let values = evaluate_watched(graph, inputs, states, limits, progress).map_err(|e| {
                    let help = fitting(graph, inputs).unwrap_or_else(|| {
                        "try other inputs, an adapter (--adapter; `wgfc device` lists them), or for loops that are long \
                         --iteration-limit N (`Options::iteration_limit`)"
                            .to_owned()
                    });
                    Error::usage(format!("the model cannot be evaluated: {e}"), help)
                })?;
                Ok(self.outputs.iter().map(|p| p.name.clone()).zip(values).collect())
            }
        }
    }
}

/// The index of the plan that takes these inputs.
fn select(plans: &Plans, inputs: &BTreeMap<String, Tensor>) -> Result<usize, Error> {
    let values: Vec<(&str, Value)> =
        inputs.iter().map(|(n, t)| (n.as_str(), Value::Host(t.clone()))).collect();
    plans.select(&values).map_err(device_error)
}

/// Suggests extents that would satisfy the constraints of a graph, if those of the inputs violate them.
fn fitting(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Option<String> {
    let mut values: BTreeMap<Arc<str>, i64> = BTreeMap::new();
    for b in graph.inputs.iter().filter(|b| !graph.optional.contains_key(&b.name)) {
        let given = inputs.get(&*b.name)?;
        for (d, extent) in graph.ty(b.value).shape.iter().zip(&given.shape) {
            if let Some(s) = d.symbols().pop_first().filter(|s| *d == Dim::sym(s)) {
                values.insert(s, i64::try_from(*extent).ok()?);
            }
        }
    }
    let values: Vec<(Arc<str>, i64)> = values.into_iter().collect();
    let pairs: Vec<_> = graph.constraints.iter().map(|c| (&c.a, &c.b)).collect();
    let inputs = || graph.inputs.iter().map(|b| (&*b.name, &graph.ty(b.value).shape[..]));
    wgfc_ir::suggest::suggest(&values, &pairs, &|s| wgfc_ir::suggest::axis_of(inputs(), s))
}

fn cpu_needs_graph(path: &Path) -> Error {
    Error::file_help(
        path,
        "is a compiled program, which runs on a device only",
        "the CPU's reference evaluator runs the model itself: give that",
    )
}

/// The runtime's error about a program as an error of this crate. An internal error is a bug of wgfc if the program has just
/// been compiled, and a fault of the folder if it was read from one.
///
/// ```
/// use wgfc::ErrorClass;
/// use wgfc::model::folder_error;
/// use wgfc::runtime::RunError;
/// let wrong = || RunError::Gpu { what: "a kernel".to_owned(), message: "is invalid".to_owned() };
/// // A folder may have been edited; a program that was compiled here was not.
/// assert_eq!(folder_error(Some("out".as_ref()), wrong()).class(), ErrorClass::Model);
/// assert_eq!(folder_error(None, wrong()).class(), ErrorClass::Internal);
/// ```
pub fn folder_error(folder: Option<&Path>, e: RunError) -> Error {
    match (folder, device_error(e)) {
        (Some(path), e) => edited(path, e),
        (None, e) => e,
    }
}

/// Turns an internal error, which would be a bug of wgfc in a program that it has just compiled, into a fault of the folder
/// that was read.
pub(crate) fn edited(folder: &Path, e: Error) -> Error {
    match e {
        Error::Internal(message) => Error::file_help(
            folder,
            message,
            "unless it was edited or damaged after it was written this is a bug in wgfc; compile the model again",
        ),
        e => e,
    }
}

/// The runtime's error as an error of this crate, with its class and advice.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
/// use wgfc::model::device_error;
/// use wgfc::{ErrorClass, Tensor};
/// // Functions that return the errors of this crate call the runtime.
/// let x = gpu.upload_blocking(&Tensor::from_f32(vec![1], &[1.0])).map_err(device_error)?;
/// # drop(x);
/// let lost = device_error(wgfc::runtime::RunError::DeviceLost("reset".to_owned()));
/// assert_eq!(lost.class(), ErrorClass::Device);
/// # Ok(()) }
/// ```
pub fn device_error(e: RunError) -> Error {
    let message = e.to_string();
    match e {
        RunError::Step { step, error } => at_step(step, device_error(*error)),
        RunError::Inputs(bad) => {
            let one = |b: &BadInput| {
                Problem::with_help(b.to_string(), "`wgfc inspect` lists the types and sizes of the inputs")
            };
            Error::Usage(bad.iter().map(one).collect())
        }
        RunError::Constraint { help, .. } => {
            let help = help.unwrap_or_else(|| "give inputs whose shapes agree".into());
            Error::usage(message, help)
        }
        RunError::NoFit(_) => {
            Error::usage(message, "`wgfc inspect` lists the types and sizes of each plan's inputs")
        }
        RunError::StateFull { .. } => Error::usage(
            message,
            "start anew, give a shorter input, let the states grow (Session::grow), or compile with room for more positions (--state-capacity; --capacity of generate)",
        ),
        RunError::State { .. } => Error::usage(message, "give states as the program has them, or start anew"),
        RunError::Unknown { .. } => Error::usage(message, "use one of these names"),
        RunError::Buffer { .. } | RunError::Output { .. } => {
            Error::usage(message, "give a buffer or tensor as the program needs it")
        }
        RunError::Encode { .. } => Error::usage(message, "run the program with submissions of its own"),
        RunError::Endless { .. } => Error::usage(message, "give inputs for which the loop ends"),
        RunError::WeightAbsent { .. } => Error::usage(
            message,
            "put the model's external data beside it and compile again, or use random weights (--random-weights)",
        ),
        RunError::Plan(_) => Error::usage(message, "compile the model again"),
        RunError::NoAdapter { .. } => {
            Error::Device(Problem::with_help(message, "`wgfc device` lists the adapters"))
        }
        RunError::OutOfMemory { .. } => Error::Device(Problem::with_help(
            message,
            "try a smaller batch or shorter sequence, or another adapter",
        )),
        RunError::DoesNotFit { .. } => Error::Device(Problem::with_help(
            message,
            "keep weights in fewer bits (--weights q8 or q4, --precision f16), take a smaller model, or another adapter",
        )),
        RunError::NoPlan(_) | RunError::Limits { .. } | RunError::Feature { .. } | RunError::Lacking(_) => {
            Error::Device(Problem::with_help(
                message,
                "compile for this device (`wgfc compile --for-device`, or run the model's file), or choose another adapter",
            ))
        }
        RunError::Loops { .. } => Error::Device(Problem::with_help(
            message,
            "compile for this device (--for-device; `wgfc run MODEL` does), give the sizes when compiling (`--dim`), which shares the work out more widely, or choose another adapter or --cpu",
        )),
        RunError::Shader { .. } | RunError::Gpu { .. } => Error::Internal(message),
        RunError::NoDevice { .. } => Error::Device(Problem::with_help(
            message,
            "update the adapter's driver, or choose another one with --adapter (`wgfc device` lists them)",
        )),
        RunError::DeviceLost(_) => Error::Device(Problem::with_help(
            message,
            "drivers end what takes too long: try smaller inputs or another adapter, or run with --cpu",
        )),
        _ => Error::Device(Problem::with_help(message, "try another adapter, or run with --cpu")),
    }
}

/// Adds the number of the run to the error of one of many runs.
fn at_step(step: u64, e: Error) -> Error {
    let said = |message: String| format!("step {step}: {message}");
    let problem = |p: Problem| Problem { message: said(p.message), ..p };
    match e {
        Error::Usage(all) => Error::Usage(all.into_iter().map(problem).collect()),
        Error::Device(p) => Error::Device(problem(p)),
        Error::Internal(message) => Error::Internal(said(message)),
        e => e,
    }
}
