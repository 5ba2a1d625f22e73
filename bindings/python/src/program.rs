//! Compilation, and compiled programs.

use crate::device::{choice, open};
use crate::dtype;
use crate::error::{Raise, raised};
use crate::input;
use crate::progress::Progress;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use wgfc::compiler::options::States;
use wgfc::compiler::schedule::cost::Expected;
use wgfc::compiler::{Activations, CacheType, DeviceProfile, Precision, WeightBits};
use wgfc::inspect::{Report, Roof, Summary};
use wgfc::ir::Dim;
use wgfc::{Cache, Error, ModelFile, Options, SaveOptions, speeds};

/// An input or output of a program: its name, element type and extents.
#[pyclass(frozen, eq, module = "wgfc")]
#[derive(PartialEq)]
pub struct Port {
    name: String,
    dtype: &'static str,
    shape: Vec<Dim>,
    optional: bool,
}

impl Port {
    /// A port with a name, a type and extents.
    pub fn new(name: &str, dtype: wgfc::DType, shape: &[Dim]) -> Port {
        Port { name: name.to_owned(), dtype: dtype::name(dtype), shape: shape.to_vec(), optional: false }
    }
    fn text(&self) -> String {
        let dims: Vec<String> = self.shape.iter().map(ToString::to_string).collect();
        format!("{}: {}[{}]", self.name, self.dtype, dims.join(", "))
    }
}

/// Extents as a tuple: constants as `int`, expressions over symbols as `str`.
fn extents<'py>(py: Python<'py>, shape: &[Dim]) -> PyResult<Bound<'py, PyTuple>> {
    let one = |d: &Dim| match d.as_const() {
        Some(n) => Ok(n.into_pyobject(py)?.into_any()),
        None => Ok(d.to_string().into_pyobject(py)?.into_any()),
    };
    PyTuple::new(py, shape.iter().map(one).collect::<PyResult<Vec<_>>>()?)
}

#[pymethods]
impl Port {
    /// Its name in the model.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }
    /// The element type's name, as NumPy, ml_dtypes and torch have it: `"float32"`, `"bfloat16"`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype
    }
    /// Extents: an `int`, or an expression over the program's symbols: `("batch", 3, "past + seq")`.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        extents(py, &self.shape)
    }
    /// Whether a run may omit it. A given array is broadcast to `shape`.
    #[getter]
    fn optional(&self) -> bool {
        self.optional
    }
    fn __repr__(&self) -> String {
        format!("<wgfc.Port {}>", self.text())
    }
}

/// A tensor that stays on the device from run to run: its name, element type and extents.
#[pyclass(frozen, eq, module = "wgfc")]
#[derive(PartialEq)]
pub struct State {
    port: Port,
    axis: Option<usize>,
}

#[pymethods]
impl State {
    /// The name of the input that it replaces.
    #[getter]
    fn name(&self) -> &str {
        &self.port.name
    }
    /// The element type's name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.port.dtype
    }
    /// Extents. The extent of the axis along which it is filled is the capacity in positions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        extents(py, &self.port.shape)
    }
    /// The axis along which runs append to it; `None` if all of it is always in use.
    #[getter]
    fn axis(&self) -> Option<usize> {
        self.axis
    }
    fn __repr__(&self) -> String {
        let grows = self.axis.map_or(String::new(), |a| format!(", filled along axis {a}"));
        format!("<wgfc.State {}{grows}>", self.port.text())
    }
}

/// The ports for inputs or outputs of a program.
pub fn ports(all: &[wgfc::ir::program::Port]) -> Vec<Port> {
    let one = |p: &wgfc::ir::program::Port| Port {
        optional: p.broadcast.is_some(),
        ..Port::new(&p.name, p.dtype, p.broadcast.as_ref().unwrap_or(&p.shape))
    };
    all.iter().map(one).collect()
}

/// The states of a program.
pub fn states(program: &wgfc::Program) -> Vec<State> {
    let one = |s: &wgfc::ir::program::State| State {
        port: Port::new(&s.name, s.dtype, &s.shape),
        axis: s.growth.as_ref().map(|g| g.axis),
    };
    program.states.iter().map(one).collect()
}

/// A compiled model: WGSL kernels, the plan that runs them, and weights.
///
/// `wgfc.compile` makes one, `Program.load` reads one, and `wgfc.Session` runs it.
#[pyclass(frozen, module = "wgfc")]
pub struct Program {
    program: wgfc::Program,
    /// The name of the program in reports.
    name: String,
    /// The folder it was read from.
    folder: Option<PathBuf>,
    /// The device profile that it was compiled for.
    profile: Option<String>,
}

impl Program {
    /// The program.
    pub fn program(&self) -> &wgfc::Program {
        &self.program
    }
    /// The folder it was read from.
    pub fn folder(&self) -> Option<&PathBuf> {
        self.folder.as_ref()
    }
}

#[pymethods]
impl Program {
    /// Reads a program from a folder or a file `NAME.wgfc` that `save`, or the command `wgfc compile`, has written; of several plans
    /// the first. Its weights stay in the file until they are used.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Program> {
        let program = py.detach(|| wgfc::load(&path)).or_raise(py)?;
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        Ok(Program { program, name, folder: Some(path), profile: None })
    }

    /// Writes the program as a folder with `plan.json`, `kernels/*.wgsl` and `weights.safetensors`, or as one file if `path` ends
    /// in `.wgfc`.
    ///
    /// An earlier program in `path` is replaced in one step; anything else there is an error unless `force`. `progress` is called
    /// with `("weights", bytes written, bytes in all)`.
    #[pyo3(signature = (path, *, force=false, progress=None))]
    fn save(&self, py: Python<'_>, path: PathBuf, force: bool, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let progress = Mutex::new(Progress::new(progress));
        let lock = || progress.lock().unwrap_or_else(PoisonError::into_inner);
        let tell = |done, all| lock().tell("weights", done, all);
        let saved = py.detach(|| {
            let options = SaveOptions { force, progress: Some(&tell), ..SaveOptions::default() };
            wgfc::save(&self.program, &path, &options)
        });
        saved.or_raise(py)?;
        progress.into_inner().unwrap_or_else(PoisonError::into_inner).end()
    }

    /// The inputs, in the model's order.
    #[getter]
    fn inputs(&self) -> Vec<Port> {
        ports(&self.program.inputs)
    }
    /// The outputs, in the model's order; taps come last.
    #[getter]
    fn outputs(&self) -> Vec<Port> {
        ports(&self.program.outputs)
    }
    /// The states: tensors that stay on the device from run to run.
    #[getter]
    fn states(&self) -> Vec<State> {
        states(&self.program)
    }
    /// The names of sizes that are not known before a run.
    #[getter]
    fn symbols(&self) -> Vec<String> {
        self.program.symbols.clone()
    }
    /// The number of dispatches of a run; those of loops count once.
    #[getter]
    fn dispatches(&self) -> usize {
        self.program.dispatches.len()
    }
    /// The WGSL text of each kernel, by name.
    #[getter]
    fn kernels(&self) -> BTreeMap<String, String> {
        self.program.kernels.iter().map(|k| (k.name.clone(), k.wgsl.clone())).collect()
    }
    /// Bytes of the weights.
    #[getter]
    fn weight_bytes(&self) -> usize {
        self.program.weights.values().filter_map(wgfc::Tensor::byte_len).sum()
    }
    /// The compiler's warnings.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.program.stats.warnings.clone()
    }

    /// The contents of the program, as `wgfc inspect` prints them: kernels, traffic, bounds of its time, memory.
    ///
    /// With `json` this is a `dict` of numbers instead of text. `dims` has values of symbols (1 by default), `profile` is the
    /// name or the file of the device profile for the bounds, and with `dispatches` the text lists each dispatch.
    #[pyo3(signature = (*, json=false, dims=BTreeMap::new(), profile="portable", dispatches=false))]
    fn inspect<'py>(
        &self,
        py: Python<'py>,
        json: bool,
        dims: BTreeMap<String, i64>,
        profile: &str,
        dispatches: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let symbols = &self.program.symbols;
        if let Some(n) = dims.keys().find(|n| !symbols.contains(n)) {
            let all = if symbols.is_empty() { "none".into() } else { symbols.join(", ") };
            let e = Error::usage(
                format!("the program has no dimension `{n}`"),
                format!("its symbolic dimensions: {all}"),
            );
            return Err(raised(py, &e));
        }
        let given: Vec<(String, i64)> = dims.into_iter().collect();
        let roof = wgfc::cache::read_profile(profile).map(|p| Roof::of(&p.speeds, None, None));
        let roof = roof.or_raise(py)?;
        let summary = Summary::new(&self.program, &given, roof).or_raise(py)?;
        let report = Report {
            chosen: self.profile.as_deref() == Some(profile),
            dispatches,
            ..Report::new(&self.name, &self.program, &summary, roof, profile)
        };
        match json {
            true => py.import("json")?.getattr("loads")?.call1((report.json().to_string(),)),
            false => Ok(report.text().into_pyobject(py)?.into_any()),
        }
    }

    fn __repr__(&self) -> String {
        let list = |ports: Vec<Port>| -> String {
            let all: Vec<String> = ports.iter().map(Port::text).collect();
            all.join(", ")
        };
        let n = self.program.dispatches.len();
        let of = if self.name.is_empty() { String::new() } else { format!(" of {}", self.name) };
        let (inputs, outputs) = (list(self.inputs()), list(self.outputs()));
        format!("<wgfc.Program{of}: {inputs} → {outputs}; {n} dispatch{}>", if n == 1 { "" } else { "es" })
    }
}

/// One of the words that serde knows for a type.
pub(crate) fn word<T: serde::de::DeserializeOwned>(option: &str, text: &str, known: &str) -> PyResult<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| PyValueError::new_err(format!("{option}: unknown value \"{text}\"; known are {known}")))
}

/// The bits of activations that the option `activations` asks for.
pub(crate) fn activation_bits(activations: Option<&str>) -> PyResult<Activations> {
    match activations {
        None => Ok(Activations::Own),
        Some("q8") => Ok(Activations::Q8),
        Some(a) => Err(PyValueError::new_err(format!("activations: unknown value \"{a}\"; known is \"q8\""))),
    }
}

/// The type of caches that the option `cache_type` asks for.
pub(crate) fn cache_type(cache_type: Option<&str>) -> PyResult<CacheType> {
    cache_type.map_or(Ok(CacheType::Own), |t| word("cache_type", t, "\"f32\", \"f16\", \"q8\""))
}

/// The bits of weights that the option `weights` asks for.
pub(crate) fn weight_bits(weights: Option<&str>) -> PyResult<WeightBits> {
    match weights {
        None => Ok(WeightBits::Own),
        Some("q8") => Ok(WeightBits::Q8),
        Some("q4") => Ok(WeightBits::Q4),
        Some(w) => {
            Err(PyValueError::new_err(format!("weights: unknown value \"{w}\"; known are \"q8\", \"q4\"")))
        }
    }
}

/// The states that `states` and `state_capacity` ask for.
fn wanted_states(given: Option<&Bound<'_, PyAny>>, capacity: Option<usize>) -> PyResult<States> {
    let Some(given) = given else {
        return Ok(match capacity {
            Some(_) => States::Auto { capacity },
            None => States::None,
        });
    };
    if given.extract::<&str>().is_ok_and(|s| s == "auto") {
        return Ok(States::Auto { capacity });
    }
    match given.extract::<BTreeMap<String, String>>() {
        Ok(pairs) => Ok(States::Named { pairs: pairs.into_iter().collect(), capacity }),
        Err(_) => Err(PyTypeError::new_err(
            "states: give \"auto\", or a dict of inputs and the outputs that continue them",
        )),
    }
}

/// Where a model comes from.
fn source(py: Python<'_>, model: &Bound<'_, PyAny>) -> PyResult<(ModelFile, String)> {
    if model.is_instance_of::<PyBytes>() {
        let bytes: PyBackedBytes = model.extract()?;
        if bytes.is_empty() {
            let e = Error::usage("the model is empty: there are no bytes", "export the model again");
            return Err(raised(py, &e));
        }
        return Ok((ModelFile::of_bytes(Arc::new(bytes)), "model".into()));
    }
    let path: PathBuf = model.extract()?;
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    Ok((ModelFile::open(&path).or_raise(py)?, name))
}

/// Compiles a model from a path or from `bytes`. See `wgfc.compile`.
#[pyfunction]
#[pyo3(signature = (model, *, dims, expect, values, taps, added, replaced, states, state_capacity, precision, keep_f32, weights, activations, cache_type, fusion, without, adapter, profile, tuning, schedules, graph_only, progress))]
#[expect(clippy::too_many_arguments, reason = "Python gives each by its name")]
pub fn compile(
    py: Python<'_>,
    model: &Bound<'_, PyAny>,
    dims: BTreeMap<String, i64>,
    expect: BTreeMap<String, i64>,
    values: BTreeMap<String, Bound<'_, PyAny>>,
    taps: Vec<String>,
    added: Vec<String>,
    replaced: Vec<String>,
    states: Option<&Bound<'_, PyAny>>,
    state_capacity: Option<usize>,
    precision: &str,
    keep_f32: Vec<String>,
    weights: Option<&str>,
    activations: Option<&str>,
    cache_type: Option<&str>,
    fusion: &str,
    without: Vec<String>,
    adapter: Option<&Bound<'_, PyAny>>,
    profile: Option<String>,
    tuning: Option<PathBuf>,
    schedules: Option<PathBuf>,
    graph_only: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Program> {
    let levels = "\"none\", \"elementwise\", \"full\"";
    let parts = "\"approximate\", \"merge\", \"epilogues\", \"waiting-scales\", \"key-parts\", \"loops\", \"loops-in-invocations\", \"loops-in-workgroups\", \"layouts\", \"winograd\", \"sequences\"";
    let (weights, activations) = (weight_bits(weights)?, activation_bits(activations)?);
    let precision = word("precision", precision, "\"f32\", \"f16\"")?;
    if !keep_f32.is_empty() && precision == Precision::F32 && weights == WeightBits::Own {
        return Err(PyValueError::new_err(
            "keep_f32 has no effect where everything is f32: give it with precision=\"f16\" or weights",
        ));
    }
    let mut options = Options {
        fusion: word("fusion", fusion, levels)?,
        precision,
        keep_f32,
        weights,
        activations,
        cache: self::cache_type(cache_type)?,
        dims,
        states: wanted_states(states, state_capacity)?,
        without: without.iter().map(|w| word("without", w, parts)).collect::<PyResult<_>>()?,
        expect: Expected(expect),
        taps,
        added,
        replaced,
        graph_only,
        ..Options::default()
    };
    for (name, v) in &values {
        let t = input::tensor(&input::called("value", name), v, None)?;
        // It is part of the program from now on, and the caller may change the array.
        let bytes = t.bytes().unwrap_or_default().to_vec();
        let copied = wgfc::Tensor::new(t.dtype, t.shape.clone(), bytes).map_err(PyValueError::new_err)?;
        options.values.insert(name.clone(), copied);
    }
    let choice = adapter.map(|a| choice(Some(a))).transpose()?;
    if choice.is_some() && profile.is_some() {
        return Err(PyValueError::new_err("give an adapter or a profile to compile for, not both"));
    }
    let (file, name) = source(py, model)?;
    let mut progress = Progress::new(progress);
    let made = py.detach(|| -> Result<_, Error> {
        let mut of = profile.clone().unwrap_or_else(|| "portable".into());
        if let Some(choice) = &choice {
            let (_, gpu) = open(choice)?;
            let cache = Cache::of_user();
            let (source, speeds) =
                speeds::known(cache.as_ref(), gpu.summary()).unwrap_or_else(|_| speeds::named(gpu.summary()));
            let limits = options.profile.with_limits(gpu.profile());
            options.profile = DeviceProfile { speeds, ..limits };
            options.tuning = cache.and_then(|c| c.tuning(gpu.summary()).ok()).unwrap_or_default();
            of = source.to_string();
        } else if let Some(profile) = &profile {
            options.profile = wgfc::cache::read_profile(profile)?;
        }
        if let Some(path) = &tuning {
            options.tuning = wgfc::cache::read_tuning(path)?;
        }
        if let Some(path) = &schedules {
            options.schedules = wgfc::cache::read_schedules(path)?;
        }
        let stages = 5;
        let program = file.compile_observed(&options, &mut |stage, _| {
            let (number, name) = stage.split_once('-').unwrap_or(("0", stage));
            progress.tell(name, number.parse().unwrap_or(0), stages);
        })?;
        progress.tell("assemble", stages, stages);
        Ok((program, of))
    });
    let (program, of) = made.or_raise(py)?;
    progress.end()?;
    Ok(Program { program, name, folder: None, profile: Some(of) })
}

/// A dict in the order of its pairs.
pub fn dict<'py>(py: Python<'py>, pairs: Vec<(String, Bound<'py, PyAny>)>) -> PyResult<Bound<'py, PyDict>> {
    let d = PyDict::new(py);
    for (name, v) in pairs {
        d.set_item(name, v)?;
    }
    Ok(d)
}
