//! Tensors on the host that Python libraries can share without a copy.

use crate::dlpack;
use crate::dtype;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use wgfc::ir::dtype::Class;
use wgfc::ir::storage;
use wgfc::{DType, Tensor};

/// A dense array on the host that NumPy (`__array_interface__`) and libraries with DLPack can share. Elements of less than a byte
/// take one byte each.
#[pyclass(frozen, module = "wgfc._wgfc")]
pub struct HostArray {
    /// The shared tensor, of a type of whole bytes.
    tensor: Tensor,
    /// The element type that the array represents.
    dtype: DType,
}

impl HostArray {
    /// An array of a tensor's elements. Nothing else may refer to the tensor, because consumers can write to it.
    pub fn new(tensor: Tensor) -> HostArray {
        let dtype = tensor.dtype;
        HostArray { tensor: if dtype::is_packed(dtype) { unpack(&tensor) } else { tensor }, dtype }
    }
}

/// A tensor with one byte per element: the value of an integer, or the bits of a float.
fn unpack(t: &Tensor) -> Tensor {
    let to = dtype::unpacked(t.dtype);
    let elements = storage::decode(whole(t.dtype), t.bytes().unwrap_or_default(), t.numel());
    Tensor::from_scalars(to, t.shape.clone(), &elements)
}

/// Packs elements of less than a byte, given as one byte of type `given` each. `Err` has the first value that does not fit.
pub fn pack(dtype: DType, shape: Vec<usize>, given: DType, bytes: &[u8]) -> Result<Tensor, i64> {
    let elements = storage::decode(given, bytes, bytes.len());
    let (to, bits) = (whole(dtype), dtype.bits() as u32);
    let range = match to.class() {
        Class::Int => -(1i64 << (bits - 1))..1i64 << (bits - 1),
        _ => 0..1i64 << bits,
    };
    match elements.iter().map(|e| e.as_i64()).find(|v| !range.contains(v)) {
        Some(v) => Err(v),
        None => Ok(Tensor { dtype, ..Tensor::from_scalars(to, shape, &elements) }),
    }
}

/// The integer type for the bits of a type of less than a byte; it is unsigned for floats.
fn whole(dtype: DType) -> DType {
    if dtype.is_float() { DType::U4 } else { dtype }
}

#[pymethods]
impl HostArray {
    /// The name of the element type that the array represents.
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype::name(self.dtype)
    }
    /// The name of the NumPy type that stores the elements: unsigned integers for the bits of floats that NumPy lacks, and
    /// integers of 8 bits for elements of less than a byte.
    #[getter]
    fn raw_dtype(&self) -> &'static str {
        let held = self.tensor.dtype;
        dtype::name(dtype::raw(held).unwrap_or(held))
    }
    /// The extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tensor.shape)
    }

    /// Version 3 of NumPy's array interface.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let held = dtype::raw(self.tensor.dtype).unwrap_or(self.tensor.dtype);
        let kind = match held.class() {
            Class::Float => 'f',
            Class::Int => 'i',
            Class::Uint => 'u',
            Class::Bool => 'b',
        };
        let order = if held.bits() == 8 { '|' } else { '<' };
        // The array is writable: the bytes were allocated for it alone, and nothing here reads them again.
        let data = self.tensor.bytes().map_or(std::ptr::null(), <[u8]>::as_ptr) as usize;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", format!("{order}{kind}{}", held.bits() / 8))?;
        interface.set_item("shape", PyTuple::new(py, &self.tensor.shape)?)?;
        interface.set_item("data", (data, false))?;
        Ok(interface)
    }

    /// DLPack's device of the array: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    /// A DLPack capsule that shares the array.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    pub fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if dl_device.is_some_and(|(kind, _)| kind != dlpack::CPU) {
            return Err(PyBufferError::new_err("the array is on the CPU and can be exchanged there only"));
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        match (copy, self.tensor.bytes()) {
            (Some(true), Some(bytes)) => {
                let copied = Tensor::new(self.tensor.dtype, self.tensor.shape.clone(), bytes.to_vec());
                dlpack::capsule(py, &copied.map_err(PyBufferError::new_err)?, versioned)
            }
            _ => dlpack::capsule(py, &self.tensor, versioned),
        }
    }
}

/// A library whose arrays a caller requests for results on the host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// `numpy.ndarray`.
    Numpy,
    /// `torch.Tensor`.
    Torch,
}

/// A tensor as an array of a library, which shares the bytes if the library has the type.
pub fn array<'py>(py: Python<'py>, tensor: Tensor, library: Library) -> PyResult<Bound<'py, PyAny>> {
    let host = Bound::new(py, HostArray::new(tensor))?;
    let function = match library {
        Library::Numpy => "to_numpy",
        Library::Torch => "to_torch",
    };
    py.import("wgfc._arrays")?.getattr(function)?.call1((host,))
}
