//! Adapters, open devices, and tensors on devices.

use crate::dtype;
use crate::error::{Raise, raised};
use crate::host::{HostArray, Library, array};
use crate::input;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Mutex, OnceLock, PoisonError};
use wgfc::cache::Pipelines;
use wgfc::model::device_error;
use wgfc::runtime::{AdapterChoice, AdapterSummary, DeviceTensor, Gpu};
use wgfc::{Cache, DType, Error, Problem};

/// An adapter: a GPU, or a driver that computes on the CPU. See `wgfc.adapters`.
#[pyclass(frozen, module = "wgfc")]
pub struct Adapter {
    index: usize,
    summary: AdapterSummary,
}

#[pymethods]
impl Adapter {
    /// Its position in `wgfc.adapters()`.
    #[getter]
    fn index(&self) -> usize {
        self.index
    }
    /// The device's name.
    #[getter]
    fn name(&self) -> &str {
        &self.summary.name
    }
    /// `"vulkan"`, `"metal"`, `"dx12"` or `"gl"`.
    #[getter]
    fn backend(&self) -> &str {
        &self.summary.backend
    }
    /// The driver and its version.
    #[getter]
    fn driver(&self) -> &str {
        &self.summary.driver
    }
    /// `"discrete"`, `"integrated"`, `"virtual"`, `"software"` or `"other"`.
    #[getter]
    fn kind(&self) -> &str {
        &self.summary.kind
    }
    /// Destroys the device that this process has opened on the adapter, if there is one, which frees its memory at once. Its
    /// tensors and sessions can no longer be used, which raises `wgfc.DeviceError`. The next use of the adapter opens another
    /// device.
    fn destroy_device(&self, py: Python<'_>) {
        py.detach(|| {
            let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
            devices.retain(|d| {
                if d.index == self.index {
                    d.gpu.report_lost("the program destroyed it");
                    d.gpu.device().destroy();
                }
                d.index != self.index
            });
        });
    }
    /// Whether it computes on the CPU.
    #[getter]
    fn is_software(&self) -> bool {
        self.summary.is_software
    }
    /// The device's limits and features by name: sizes in bytes, counts, and bools for features.
    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let l = &self.summary.limits;
        let d = PyDict::new(py);
        d.set_item("storage_buffers", l.storage_buffers)?;
        d.set_item("binding_bytes", l.binding_bytes)?;
        d.set_item("buffer_bytes", l.buffer_bytes)?;
        d.set_item("workgroup_bytes", l.workgroup_bytes)?;
        d.set_item("invocations", l.invocations)?;
        d.set_item("workgroup_size", (l.workgroup_size[0], l.workgroup_size[1], l.workgroup_size[2]))?;
        d.set_item("workgroups", l.workgroups)?;
        d.set_item("f16", l.f16)?;
        d.set_item("subgroup", l.subgroup)?;
        d.set_item("cooperative_matrix", l.cooperative_matrix)?;
        d.set_item("timestamps", l.timestamps)?;
        Ok(d)
    }
    fn __repr__(&self) -> String {
        let s = &self.summary;
        format!("<wgfc.Adapter {}: {} ({}, {})>", self.index, s.name, s.kind, s.backend)
    }
}

/// The adapters of this machine, in the order of their numbers.
#[pyfunction]
pub fn adapters(py: Python<'_>) -> PyResult<Vec<Adapter>> {
    let all = py.detach(|| not_forked().map(|()| Gpu::adapters_blocking())).or_raise(py)?;
    Ok(all.into_iter().enumerate().map(|(index, summary)| Adapter { index, summary }).collect())
}

/// Waits for the work of all devices that this process has opened. Without it, drivers that compute on the CPU would work on while
/// the process unloads them at its exit.
#[pyfunction]
pub fn wait_for_devices(py: Python<'_>) {
    py.detach(|| {
        if not_forked().is_err() {
            return;
        }
        let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        for d in devices.iter().filter(|d| !d.gpu.is_lost()) {
            // The process ends, so nobody can be told of an error.
            let _ = d.gpu.wait_blocking();
        }
    });
}

/// An error in a process that was forked after its parent used a driver: the driver would wait for threads that do not exist in
/// the child.
pub fn not_forked() -> Result<(), Error> {
    static FIRST: OnceLock<u32> = OnceLock::new();
    let process = std::process::id();
    if *FIRST.get_or_init(|| process) == process {
        return Ok(());
    }
    Err(Error::Device(Problem::with_help(
        "this process forked off from one that has used an adapter, and drivers do not work in such a process",
        "start it with the method \"spawn\" (multiprocessing.get_context), or fork before wgfc is used",
    )))
}

/// The choice of an adapter by a Python argument. `None` means the one that `WGFC_ADAPTER` names, or else the best.
pub fn choice(given: Option<&Bound<'_, PyAny>>) -> PyResult<AdapterChoice> {
    let Some(given) = given else { return Ok(AdapterChoice::from_env()) };
    if let Ok(a) = given.cast::<Adapter>() {
        return Ok(AdapterChoice::Index(a.get().index));
    }
    if let Ok(i) = given.extract::<i64>() {
        let bad = |_| PyValueError::new_err("adapter: the number must not be negative");
        return Ok(AdapterChoice::Index(usize::try_from(i).map_err(bad)?));
    }
    match given.extract::<String>() {
        Ok(name) => Ok(name.parse().unwrap_or_default()),
        Err(_) => Err(PyTypeError::new_err(
            "adapter: give part of its name, its number, \"best\", \"software\", or one of wgfc.adapters()",
        )),
    }
}

/// A device that this process has opened.
struct Open {
    /// The choices that resolved to this adapter.
    choices: Vec<AdapterChoice>,
    index: usize,
    gpu: Gpu,
    pipelines: Option<Pipelines>,
}

/// The open devices. All sessions and tensors on an adapter use the same device, so that they can share memory.
static DEVICES: Mutex<Vec<Open>> = Mutex::new(vec![]);

/// The number of the chosen adapter and its device, which is opened only once.
pub fn open(choice: &AdapterChoice) -> Result<(usize, Gpu), Error> {
    not_forked()?;
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.retain(|d| !d.gpu.is_lost());
    // Enumerating the adapters again would take time.
    if let Some(d) = devices.iter().find(|d| d.choices.contains(choice)) {
        return Ok((d.index, d.gpu.clone()));
    }
    let Some(index) = choice.pick(&Gpu::adapters_blocking()) else {
        return Gpu::request_blocking(choice).map(|gpu| (0, gpu)).map_err(device_error);
    };
    if let Some(d) = devices.iter_mut().find(|d| d.index == index) {
        d.choices.push(choice.clone());
        return Ok((index, d.gpu.clone()));
    }
    let gpu = Gpu::request_blocking(&AdapterChoice::Index(index)).map_err(device_error)?;
    devices.push(Open { choices: vec![choice.clone()], index, gpu: gpu.clone(), pipelines: None });
    Ok((index, gpu))
}

/// Makes the device use the compiled pipelines in the user's cache folder. `Err` has the reason if the file there cannot be used.
pub fn keep_pipelines(gpu: &Gpu) -> Result<(), Error> {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(d) = devices.iter_mut().find(|d| d.gpu.is(gpu) && d.pipelines.is_none()) else { return Ok(()) };
    let kept = Cache::of_user().map(|c| c.pipelines(gpu));
    let problem = kept.as_ref().and_then(|p| p.problem().cloned());
    d.pipelines = kept;
    problem.map_or(Ok(()), Err)
}

/// Writes the pipelines compiled so far to the user's cache folder, if [`keep_pipelines`] was called for the device.
pub fn save_pipelines(gpu: &Gpu) -> Result<(), Error> {
    let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = devices.iter().find(|d| d.gpu.is(gpu)).and_then(|d| d.pipelines.as_ref());
    kept.map_or(Ok(()), Pipelines::save)
}

/// The Python object of an adapter.
pub fn adapter(index: usize, gpu: &Gpu) -> Adapter {
    Adapter { index, summary: gpu.summary().clone() }
}

/// The element type with this name. `ValueError` if there is none.
fn element_type(name: &str) -> PyResult<DType> {
    dtype::named(name).ok_or_else(|| {
        PyValueError::new_err(match name {
            "complex64" | "complex32" | "complex128" => {
                let part = if name == "complex32" { "float16" } else { "float32" };
                format!("dtype: the device has no {name}; store it as {part} with a last axis of 2, as torch.view_as_real does")
            }
            _ => {
                let known: Vec<&str> = DType::ALL.iter().map(|d| dtype::name(*d)).collect();
                format!("dtype: the device has no {name}; it has {}", known.join(", "))
            }
        })
    })
}

/// A dense array in the memory of a device.
///
/// `Tensor(array, adapter=None)` copies an array (NumPy, torch, any with `__dlpack__`) there; `Session.run(..., to="device")`
/// leaves its outputs there. Either can be an input of any session on the same adapter, which copies nothing. `numpy()`,
/// `torch()`, `numpy.asarray(t)` and `torch.from_dlpack(t)` copy it to the host.
#[pyclass(frozen, module = "wgfc")]
pub struct Tensor {
    tensor: DeviceTensor,
    index: usize,
    gpu: Gpu,
}

impl Tensor {
    /// A tensor in a device's memory.
    pub fn new(tensor: DeviceTensor, index: usize, gpu: Gpu) -> Tensor {
        Tensor { tensor, index, gpu }
    }
    /// The tensor on the device.
    pub fn tensor(&self) -> &DeviceTensor {
        &self.tensor
    }
    /// A copy on the host.
    pub fn read(&self, py: Python<'_>) -> PyResult<wgfc::Tensor> {
        py.detach(|| not_forked().and_then(|()| self.tensor.read_blocking().map_err(device_error)))
            .or_raise(py)
    }
}

#[pymethods]
impl Tensor {
    #[new]
    #[pyo3(signature = (array, adapter=None))]
    fn create(
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        adapter: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Tensor> {
        let choice = choice(adapter)?;
        let host = input::tensor("array", array, None)?;
        py.detach(|| {
            let (index, gpu) = open(&choice)?;
            let tensor = gpu.upload_blocking(&host).map_err(device_error)?;
            Ok(Tensor { tensor, index, gpu })
        })
        .map_err(|e| raised(py, &e))
    }

    /// The extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }
    /// The element type's name, as NumPy, ml_dtypes and torch have it: `"float32"`, `"bfloat16"`.
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype::name(self.tensor.dtype())
    }
    /// The number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.tensor.shape().len()
    }
    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.tensor.shape().iter().product()
    }
    /// The size in bytes on the device.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.tensor.bytes()
    }
    /// The adapter that it is on.
    #[getter]
    fn adapter(&self) -> Adapter {
        adapter(self.index, &self.gpu)
    }

    /// Whether its device is lost, and with it the elements.
    #[getter]
    fn is_lost(&self) -> bool {
        self.gpu.is_lost()
    }

    /// A tensor in the same memory with another shape, which must have as many elements.
    fn reshape(&self, shape: Vec<usize>) -> PyResult<Tensor> {
        let n: usize = self.tensor.shape().iter().product();
        let bad = || PyValueError::new_err(format!("{n} elements cannot have the shape {shape:?}"));
        let tensor = self.tensor.reshaped(shape.clone()).ok_or_else(bad)?;
        Ok(Tensor { tensor, index: self.index, gpu: self.gpu.clone() })
    }

    /// A tensor in the same memory whose elements are its bytes as the type named `dtype`, in `shape`, which must have as many
    /// bytes: `torch.Tensor.view(dtype)` of a dense tensor.
    ///
    /// Every type lies in the device's memory as torch has it on a little-endian host, so any type can be viewed as any other:
    ///
    /// | type | bytes of an element |
    /// |---|---|
    /// | `float64`, `int64`, `uint64` | 8, the low word first; kernels compute `float64` in 32 bits and store it as 64 |
    /// | `float32`, `int32`, `uint32` | 4 |
    /// | `float16`, `bfloat16`, `int16`, `uint16` | 2, two in a word, the first in its low half |
    /// | `int8`, `uint8`, `bool`, floats of 8 bits | 1, four in a word, the first in its low byte; `bool` is 0 or 1 |
    /// | `int4`, `uint4`, `float4_e2m1fn` | half of one, the first in the low half |
    /// | `int2`, `uint2` | a quarter of one, the first in the low bits |
    ///
    /// Memory ends with a whole word; the bytes behind the last element are not part of the tensor. Complex numbers are pairs of
    /// floats along a last axis of 2. A view as `bool` of bytes other than 0 and 1 holds values that no bool has.
    ///
    /// Raises `ValueError` for a type that does not exist on the device, and for a shape of another number of bytes.
    fn view(&self, dtype: &str, shape: Vec<usize>) -> PyResult<Tensor> {
        let kind = element_type(dtype)?;
        let t = &self.tensor;
        let bad = || {
            let have = t.dtype().bytes_for(t.shape().iter().product());
            PyValueError::new_err(format!(
                "view: {}{:?} has {have} bytes, and {dtype}{shape:?} has another number; give a shape of as many bytes",
                dtype::name(t.dtype()),
                t.shape(),
            ))
        };
        let tensor = t.viewed(kind, shape.clone()).ok_or_else(bad)?;
        Ok(Tensor { tensor, index: self.index, gpu: self.gpu.clone() })
    }

    /// A new tensor of the type named `dtype` and of `shape`, all of whose bytes are 0. Nothing is uploaded.
    ///
    /// Raises `ValueError` for a type that does not exist on the device, and `wgfc.DeviceError` for a size that exceeds the
    /// device's memory or its largest buffer.
    #[staticmethod]
    #[pyo3(signature = (dtype, shape, adapter=None))]
    fn empty(
        py: Python<'_>,
        dtype: &str,
        shape: Vec<usize>,
        adapter: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Tensor> {
        let kind = element_type(dtype)?;
        let choice = choice(adapter)?;
        py.detach(|| {
            let (index, gpu) = open(&choice)?;
            let tensor = gpu.zeros_blocking(kind, shape).map_err(device_error)?;
            Ok(Tensor { tensor, index, gpu })
        })
        .or_raise(py)
    }

    /// A copy on the host as a `numpy.ndarray` of the same shape.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, self.read(py)?, Library::Numpy)
    }
    /// A copy on the host as a `torch.Tensor` of the same shape.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, self.read(py)?, Library::Torch)
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(PyValueError::new_err("an array on a device cannot be shared without a copy"));
        }
        let made = self.numpy(py)?;
        match dtype {
            Some(d) => made.call_method1("astype", (d,)),
            None => Ok(made),
        }
    }

    /// DLPack's device of the array that `__dlpack__` returns: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (crate::dlpack::CPU, 0)
    }

    /// A DLPack capsule of a copy on the host.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(PyValueError::new_err("an array on a device cannot be shared without a copy"));
        }
        HostArray::new(self.read(py)?).__dlpack__(py, stream, max_version, dl_device, None)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.tensor.shape().first().copied();
        first.ok_or_else(|| PyTypeError::new_err("an array without axes has no length"))
    }
    fn __repr__(&self) -> String {
        format!("<wgfc.Tensor {}{:?} on {}>", self.dtype(), self.tensor.shape(), self.gpu.summary().name)
    }
}
