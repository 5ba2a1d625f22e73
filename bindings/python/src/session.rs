//! Programs on devices.

use crate::device::{Adapter, Tensor, adapter, choice, keep_pipelines, not_forked, open, save_pipelines};
use crate::error::{Raise, raised};
use crate::host::{Library, array};
use crate::input;
use crate::program::{Port, Program, State, dict, ports, states};
use crate::progress::Progress;
use crate::stream::Stream;
use pyo3::exceptions::{PyRuntimeWarning, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wgfc::Error;
use wgfc::compiler::lower::inside::{add_input, replace_input, where_input};
use wgfc::model::device_error;
use wgfc::overflow::overflow;
use wgfc::runtime::kernel::Checks;
use wgfc::runtime::session::{DeviceMemory, SessionOptions, Value};
use wgfc::runtime::{Gpu, RunError};
use wgfc::value_info::{ValueInfo, check_types, no_such_input, program_values};

/// A program on a device: its kernels are compiled, its weights uploaded, and its states have their initial contents.
///
/// `Session(program, adapter=None, *, capacity=None, trust=False, cache=True, progress=None)`
///
/// `adapter` is part of an adapter's name, its number, or one of `wgfc.adapters()`. The default is the adapter that the
/// environment variable `WGFC_ADAPTER` names, or else the best one. `capacity` is the initial capacity of states in positions, if
/// the program leaves it open. Kernels of a loaded program check that they stay inside their buffers, unless `trust` states that
/// nobody can have changed the program. Compiled kernels are kept in the user's cache folder (`WGFC_CACHE_DIR`) unless `cache` is
/// false. `progress` is called with `("kernels", compiled, all)`.
///
/// Sessions and tensors on one adapter share its device. Threads may share a session; their runs are executed one after another.
#[pyclass(frozen, module = "wgfc")]
pub struct Session {
    session: Mutex<wgfc::runtime::Session>,
    inputs: Vec<ValueInfo>,
    index: usize,
    gpu: Gpu,
    folder: Option<PathBuf>,
}

/// Arrays that a run adds to, or puts in the place of, tensors of the model.
pub(crate) struct Change<'py> {
    /// The given arrays, by the names of the model's tensors.
    given: Option<BTreeMap<String, Bound<'py, PyAny>>>,
    /// The name of the program's input for a tensor of the model.
    input: fn(&str) -> String,
    /// The option of `wgfc.compile` that makes such inputs.
    option: &'static str,
}

/// The destination of an output.
#[derive(Clone, Copy)]
enum To {
    Host(Library),
    Device,
}

impl Session {
    fn lock(&self) -> MutexGuard<'_, wgfc::runtime::Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the session, detached from the interpreter.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut wgfc::runtime::Session) -> Result<T, RunError> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            not_forked()?;
            f(&mut self.lock()).map_err(|e| wgfc::model::folder_error(self.folder.as_deref(), e))
        })
        .or_raise(py)
    }

    /// The inputs of a run, converted and checked.
    pub(crate) fn values(
        &self,
        inputs: &Bound<'_, PyAny>,
        changes: &[Change<'_>],
    ) -> PyResult<Vec<(String, Value)>> {
        let py = inputs.py();
        let Ok(inputs) = inputs.cast::<PyMapping>() else {
            return Err(PyTypeError::new_err("inputs: give a dict of names and arrays"));
        };
        let mut all: Vec<(String, Bound<'_, PyAny>)> = vec![];
        for item in inputs.items()?.iter() {
            all.push(item.extract()?);
        }
        for change in changes {
            for (name, given) in change.given.iter().flatten() {
                let input = (change.input)(name);
                if !self.inputs.iter().any(|p| p.name == input) {
                    let message = match change.option {
                        "added" => format!("nothing can be added to `{name}` in runs of this program"),
                        _ => format!("`{name}` cannot be replaced in runs of this program"),
                    };
                    let help =
                        format!("say so when compiling: wgfc.compile(…, {}=[\"{name}\"])", change.option);
                    return Err(raised(py, &Error::usage(message, help)));
                }
                all.push((input, given.clone()));
            }
        }
        let mut values: Vec<(String, Value)> = vec![];
        for (name, given) in all {
            let port = self.inputs.iter().find(|p| p.name == name);
            let Some(port) = port else {
                return Err(raised(py, &Error::Usage(vec![no_such_input(&name, &self.inputs)])));
            };
            let value = input::value(&input::called("input", &name), &given, Some(port.dtype))?;
            values.push((name, value));
        }
        let types = values.iter().map(|(n, v)| (n.as_str(), (v.dtype(), v.shape()))).collect();
        check_types(&self.inputs, &types).or_raise(py)?;
        Ok(values)
    }

    /// A dict of tensors as arrays.
    pub(crate) fn arrays<'py>(
        py: Python<'py>,
        tensors: impl IntoIterator<Item = (String, wgfc::Tensor)>,
        library: Library,
    ) -> PyResult<Bound<'py, PyDict>> {
        let made = tensors.into_iter().map(|(n, t)| Ok((n, array(py, t, library)?)));
        dict(py, made.collect::<PyResult<Vec<_>>>()?)
    }
}

/// The destinations of a run's outputs: one for all, or one for each named output, while others stay on the device.
enum Destinations {
    One(To),
    Each(BTreeMap<String, To>),
}

impl Destinations {
    fn of(to: &Bound<'_, PyAny>) -> PyResult<Destinations> {
        if let Ok(one) = to.extract::<&str>() {
            return Ok(Destinations::One(destination(one)?));
        }
        let Ok(each) = to.extract::<BTreeMap<String, String>>() else {
            return Err(PyTypeError::new_err("to: give a word, or a dict of outputs and words"));
        };
        let each = each.into_iter().map(|(n, to)| Ok((n, destination(&to)?)));
        Ok(Destinations::Each(each.collect::<PyResult<_>>()?))
    }
    fn of_output(&self, name: &str) -> To {
        match self {
            Destinations::One(to) => *to,
            Destinations::Each(each) => each.get(name).copied().unwrap_or(To::Device),
        }
    }
}

/// Issues a `RuntimeWarning` about a run's outputs, if there is a message.
pub(crate) fn warn(py: Python<'_>, said: Option<String>) -> PyResult<()> {
    let Some(said) = said.and_then(|s| CString::new(s).ok()) else { return Ok(()) };
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &said, 1)
}

/// The destination of this name.
fn destination(to: &str) -> PyResult<To> {
    match to {
        "numpy" => Ok(To::Host(Library::Numpy)),
        "torch" => Ok(To::Host(Library::Torch)),
        "device" => Ok(To::Device),
        _ => Err(PyValueError::new_err(format!(
            "to: unknown value \"{to}\"; known are \"numpy\", \"torch\", \"device\""
        ))),
    }
}

/// The library for results on the host. `wrong` is the message of the error if `to` is the device.
pub(crate) fn host(to: &str, wrong: &'static str) -> PyResult<Library> {
    match destination(to)? {
        To::Host(library) => Ok(library),
        To::Device => Err(PyValueError::new_err(wrong)),
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (program, adapter=None, *, capacity=None, trust=false, cache=true, progress=None))]
    fn create(
        py: Python<'_>,
        program: &Bound<'_, Program>,
        adapter: Option<&Bound<'_, PyAny>>,
        capacity: Option<usize>,
        trust: bool,
        cache: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Session> {
        let choice = choice(adapter)?;
        let program = program.get();
        let folder = program.folder().cloned();
        let mut options = SessionOptions::default();
        options.capacity = capacity.unwrap_or(options.capacity);
        if trust {
            options.checks = Checks::Trusted;
        }
        let mut progress = Progress::new(progress);
        let made = py.detach(|| -> Result<Session, Error> {
            let (index, gpu) = open(&choice)?;
            if cache {
                // Errors are ignored: without cached pipelines, kernels are compiled again.
                let _ = keep_pipelines(&gpu);
            }
            let session = watched(&gpu, &mut progress, || {
                wgfc::runtime::Session::with_options_blocking(&gpu, program.program(), options)
            });
            let session = session.map_err(|e| wgfc::model::folder_error(folder.as_deref(), e))?;
            if cache {
                let _ = save_pipelines(&gpu);
            }
            let inputs = program_values(&program.program().inputs);
            Ok(Session { session: Mutex::new(session), inputs, index, gpu, folder })
        });
        let made = made.or_raise(py)?;
        progress.end()?;
        Ok(made)
    }

    /// Runs the program once.
    ///
    /// `inputs` has an array for each of the program's inputs, of its element type and of a shape that fits: a `numpy.ndarray`, a
    /// `torch.Tensor`, any object with `__dlpack__` on the host, numbers or lists of them, or a `wgfc.Tensor`, which is bound
    /// without a copy. Their shapes determine the symbols' values. Arrays of uint16 may hold bfloat16, arrays of uint8 may hold
    /// floats of 8 bits, and arrays of int8 and uint8 may hold types of less than a byte, one element per byte.
    ///
    /// Returns a dict of the outputs named in `outputs`, or of all by default, in that order: with `to="numpy"` as
    /// `numpy.ndarray`, with `"torch"` as `torch.Tensor`, with `"device"` as `wgfc.Tensor`, in which case nothing is copied and
    /// the run is not waited for. `to` may also be a dict from output names to these words; outputs that it does not name stay on
    /// the device. Outputs on the host that are not all finite, of a program compiled with `precision="f16"`, give a
    /// `RuntimeWarning`. Types that NumPy lacks, such as bfloat16, are ml_dtypes' types if that is installed, otherwise unsigned
    /// integers of the same bits.
    ///
    /// `add` and `replace` have arrays for tensors of the model that were named in `added` and `replaced` of `wgfc.compile`; each
    /// is broadcast to its tensor's shape. `where` has arrays of bools that select the elements to replace; by default all are
    /// replaced.
    #[pyo3(signature = (inputs, *, outputs=None, to=None, add=None, replace=None, r#where=None))]
    #[pyo3(
        text_signature = "($self, inputs, *, outputs=None, to=\"numpy\", add=None, replace=None, where=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "Python gives each by its name")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        outputs: Option<Vec<String>>,
        to: Option<&Bound<'py, PyAny>>,
        add: Option<BTreeMap<String, Bound<'py, PyAny>>>,
        replace: Option<BTreeMap<String, Bound<'py, PyAny>>>,
        r#where: Option<BTreeMap<String, Bound<'py, PyAny>>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let changes = [
            Change { given: add, input: add_input, option: "added" },
            Change { given: replace, input: replace_input, option: "replaced" },
            Change { given: r#where, input: where_input, option: "replaced" },
        ];
        let to = to.map_or(Ok(Destinations::One(To::Host(Library::Numpy))), Destinations::of)?;
        let values = self.values(inputs, &changes)?;
        let values: Vec<(&str, Value)> = values.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
        let names: Option<Vec<&str>> = outputs.as_ref().map(|all| all.iter().map(String::as_str).collect());
        if let Destinations::One(To::Host(library)) = to {
            let (read, said) = self.with(py, |s| {
                let read = s.run_values_blocking(&values, names.as_deref())?;
                let said = overflow(s.program(), read.iter().map(|(n, t)| (n.as_str(), t)));
                Ok((read, said))
            })?;
            warn(py, said)?;
            return Session::arrays(py, read, library);
        }
        let (on_device, read, said) = self.with(py, |s| {
            if let Destinations::Each(each) = &to {
                s.outputs_named(Some(&each.keys().map(String::as_str).collect::<Vec<_>>()))?;
            }
            let wanted = s.outputs_named(names.as_deref())?;
            let all = s.run_on_device_blocking(&values)?;
            let on_device: Vec<_> = wanted.into_iter().filter_map(|i| all.get(i).cloned()).collect();
            let leaving = on_device.iter().filter(|(n, _)| matches!(to.of_output(n), To::Host(_)));
            let (names, leaving): (Vec<&str>, Vec<_>) = leaving.map(|(n, t)| (n.as_str(), t.clone())).unzip();
            let read = if leaving.is_empty() { vec![] } else { s.gpu().read_blocking(&leaving)? };
            let said = overflow(s.program(), names.into_iter().zip(&read));
            Ok((on_device, read, said))
        })?;
        warn(py, said)?;
        let mut read = read.into_iter();
        let made = on_device.into_iter().map(|(n, t)| {
            let made = match (to.of_output(&n), &mut read) {
                (To::Host(library), read) => match read.next() {
                    Some(t) => array(py, t, library)?,
                    None => py.None().into_bound(py),
                },
                (To::Device, _) => Bound::new(py, Tensor::new(t, self.index, self.gpu.clone()))?.into_any(),
            };
            Ok((n, made))
        });
        dict(py, made.collect::<PyResult<Vec<_>>>()?)
    }

    /// Runs the program once with inputs in its order, and returns all outputs in its order as `wgfc.Tensor`, without waiting for
    /// the run.
    ///
    /// `inputs` has what `run` takes for each of the program's inputs, and `None` for an optional one that is left out. This is
    /// `run(..., to="device")` without names, for callers that run many small programs. Types and shapes are checked as there:
    /// `wgfc.ModelError` names the inputs that do not fit.
    fn call(&self, py: Python<'_>, inputs: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Tensor>> {
        let given = inputs.iter().enumerate().map(|(i, given)| {
            if given.is_none() {
                return Ok(None);
            }
            if let Ok(t) = given.cast_exact::<Tensor>() {
                return Ok(Some(Value::Device(t.get().tensor().clone())));
            }
            let port = self.inputs.get(i);
            let what = port.map_or_else(|| format!("input {i}"), |p| input::called("input", &p.name));
            input::value(&what, given, port.map(|p| p.dtype)).map(Some)
        });
        let values = given.collect::<PyResult<Vec<_>>>()?;
        let outputs = self.with(py, |s| s.call_blocking(&values))?;
        Ok(outputs.into_iter().map(|t| Tensor::new(t, self.index, self.gpu.clone())).collect())
    }

    /// Runs the program once for each of `batches`, which are inputs as `run` takes them, and returns an iterator of the outputs, in order.
    ///
    /// Up to `in_flight` runs are in flight at a time: while the device executes one, the next batch is made and uploaded, and
    /// outputs are read as their runs finish. This is useful for programs with states, such as training steps, and for data sets.
    /// Batches are taken from `batches` on demand, so a generator may be infinite. Other runs of the session may be made in
    /// between.
    ///
    /// `outputs` and `to`, which is `"numpy"` or `"torch"`, are as in `run`. An error names the number of its run, counted from
    /// 0, and is raised after the outputs of all earlier runs have been returned.
    #[pyo3(signature = (batches, *, outputs=None, to="numpy", in_flight=2))]
    fn stream(
        slf: &Bound<'_, Self>,
        batches: &Bound<'_, PyAny>,
        outputs: Option<Vec<String>>,
        to: &str,
        in_flight: i64,
    ) -> PyResult<Stream> {
        Stream::new(slf, batches, outputs, to, in_flight)
    }

    /// The inputs, in the model's order.
    #[getter]
    fn inputs(&self, py: Python<'_>) -> Vec<Port> {
        py.detach(|| ports(&self.lock().program().inputs))
    }
    /// The outputs, in the model's order.
    #[getter]
    fn outputs(&self, py: Python<'_>) -> Vec<Port> {
        py.detach(|| ports(&self.lock().program().outputs))
    }
    /// The states: what stays on the device from run to run.
    #[getter]
    fn states(&self, py: Python<'_>) -> Vec<State> {
        py.detach(|| states(self.lock().program()))
    }
    /// The adapter that it runs on.
    #[getter]
    fn adapter(&self) -> Adapter {
        adapter(self.index, &self.gpu)
    }

    /// Whether its device is lost. Such a session can no longer run.
    #[getter]
    fn is_lost(&self) -> bool {
        self.gpu.is_lost()
    }

    /// The contents of the named states, or of all by default, as a dict of arrays. States that are filled along an axis have
    /// only the positions in use. `to` is `"numpy"` or `"torch"`.
    #[pyo3(signature = (names=None, *, to="numpy"))]
    fn read_states<'py>(
        &self,
        py: Python<'py>,
        names: Option<Vec<String>>,
        to: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let library = host(to, "to: states are read to \"numpy\" or \"torch\"")?;
        let read = self.with(py, |s| match &names {
            None => s.states_blocking(),
            Some(names) => s.states_named_blocking(&names.iter().map(String::as_str).collect::<Vec<_>>()),
        })?;
        Session::arrays(py, read, library)
    }

    /// Replaces the contents of the states named in `values` by arrays of the states' shapes; other states are unchanged. States
    /// that are filled along an axis may get any number of positions, the same for all that grow together, and are enlarged if
    /// necessary.
    fn write_states(&self, py: Python<'_>, values: BTreeMap<String, Bound<'_, PyAny>>) -> PyResult<()> {
        let mut given = BTreeMap::new();
        let known = py.detach(|| self.lock().program().states.clone());
        for (name, v) in &values {
            let dtype = known.iter().find(|s| s.name == *name).map(|s| s.dtype);
            given.insert(name.clone(), input::tensor(&input::called("state", name), v, dtype)?);
        }
        self.with(py, |s| s.update_states_blocking(&given))
    }

    /// Gives the named states, or all by default, their initial contents, which are zeros unless the model says otherwise. If all
    /// states are reset, those that are filled along an axis become empty; if only named ones are, the number of positions in use
    /// is kept.
    #[pyo3(signature = (names=None))]
    fn reset(&self, py: Python<'_>, names: Option<Vec<String>>) -> PyResult<()> {
        self.with(py, |s| match &names {
            None => s.reset_blocking(),
            Some(names) => names.iter().try_for_each(|n| s.reset_state_blocking(n)),
        })
    }
    /// Truncates the states that are filled along an axis to their first `length` positions.
    fn rewind(&self, py: Python<'_>, length: usize) -> PyResult<()> {
        self.with(py, |s| s.rewind(length))
    }
    /// Gives the states that are filled along an axis room for at least `capacity` positions.
    fn grow(&self, py: Python<'_>, capacity: usize) -> PyResult<()> {
        self.with(py, |s| s.grow_blocking(capacity))
    }
    /// The number of positions in use of the states that are filled along an axis.
    #[getter]
    fn state_length(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().state_len())
    }
    /// The capacity of the states in positions; `None` if none is filled along an axis.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> Option<usize> {
        py.detach(|| self.lock().capacity())
    }

    /// An independent session with the same current states: kernels and weights are shared, states are copied on the device.
    fn fork(&self, py: Python<'_>) -> PyResult<Session> {
        let session = self.with(py, |s| s.fork_blocking())?;
        Ok(Session {
            session: Mutex::new(session),
            inputs: self.inputs.clone(),
            index: self.index,
            gpu: self.gpu.clone(),
            folder: self.folder.clone(),
        })
    }

    /// Sets the value of a symbol that no input's shape determines, for all later runs.
    fn set_symbol(&self, py: Python<'_>, name: &str, value: i64) -> PyResult<()> {
        self.with(py, |s| s.set_symbol(name, value))
    }

    /// Waits until all runs so far are done.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| not_forked().and_then(|()| self.gpu.wait_blocking().map_err(device_error))).or_raise(py)
    }
    /// Frees all memory that is kept between runs, except weights and states.
    fn trim(&self, py: Python<'_>) {
        py.detach(|| self.lock().trim());
    }

    /// Bytes on the device: `{"weights": …, "states": …, "activations": …}`.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let m = py.detach(|| DeviceMemory::of([&*self.lock()]));
        let d = PyDict::new(py);
        d.set_item("weights", m.weights)?;
        d.set_item("states", m.states)?;
        d.set_item("activations", m.activations)?;
        Ok(d)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let n = py.detach(|| self.lock().program().dispatches.len());
        format!("<wgfc.Session of {n} dispatches on {}>", self.gpu.summary().name)
    }
}

/// Calls `f`, and meanwhile reports to `progress` the number of kernels that have been compiled.
pub(crate) fn watched<T: Send, E: Send>(
    gpu: &Gpu,
    progress: &mut Progress,
    f: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    if !progress.is_heard() {
        return f();
    }
    let (done_before, all_before) = gpu.compiled();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut told = (0, 0);
            loop {
                let last = ended.load(Ordering::Acquire);
                let (done, all) = gpu.compiled();
                let now = (done.saturating_sub(done_before), all.saturating_sub(all_before));
                if now.1 > 0 && now != told {
                    progress.tell("kernels", now.0 as u64, now.1 as u64);
                    told = now;
                }
                if last {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let made = f();
        ended.store(true, Ordering::Release);
        made
    })
}
