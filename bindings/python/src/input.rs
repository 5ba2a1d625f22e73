//! Conversion of Python's arrays to tensors. The bytes of dense NumPy and DLPack arrays are shared, not copied.

use crate::device::Tensor as OnDevice;
use crate::dlpack;
use crate::dtype;
use crate::error::raised;
use crate::host::pack;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use wgfc::ir::Scalar;
use wgfc::ir::dtype::Class;
use wgfc::runtime::session::Value;
use wgfc::{DType, Error, Tensor};

/// Bytes that a Python object keeps alive. If another thread writes to the array during a run, the run sees old or new bytes;
/// each byte is read once.
struct Borrowed {
    data: *const u8,
    len: usize,
    _owner: Py<PyAny>,
}

// SAFETY: the memory is plain bytes that the owner keeps alive; pyo3 allows the owner to be released on any thread.
unsafe impl Send for Borrowed {}
// SAFETY: as above; the bytes are never written here.
unsafe impl Sync for Borrowed {}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        match self.len {
            0 => &[],
            // SAFETY: the owner, which is alive, has declared this many bytes.
            len => unsafe { std::slice::from_raw_parts(self.data, len) },
        }
    }
}

/// An array in host memory as its owner describes it.
struct Strided {
    data: *const u8,
    dtype: DType,
    shape: Vec<usize>,
    /// Strides in bytes; `None` if elements are dense.
    strides: Option<Vec<isize>>,
    owner: Py<PyAny>,
}

impl Strided {
    /// The tensor, which shares the bytes if they are dense. `Err` has the reason if the array is invalid or too large.
    fn tensor(self) -> Result<Tensor, String> {
        let n = wgfc::ir::tensor::checked_numel(&self.shape)
            .ok_or_else(|| format!("shape {:?} is too large", self.shape))?;
        let size = self.dtype.bits() / 8;
        if n > 0 && self.data.is_null() {
            return Err("it has no memory".into());
        }
        let Some(strides) = self.strides.filter(|s| n > 0 && !is_dense(&self.shape, s, size)) else {
            let len = n * size;
            let owner = Borrowed { data: self.data, len, _owner: self.owner };
            return Tensor::shared(self.dtype, self.shape, Arc::new(owner), 0, len);
        };
        wgfc::memory::afford((n * size) as u64).map_err(|m| format!("a dense copy of it {m}"))?;
        let mut bytes = Vec::with_capacity(n * size);
        let mut at = vec![0usize; self.shape.len()];
        let mut offset = 0isize;
        for _ in 0..n {
            // SAFETY: this is the offset of an element within the owner's shape and strides.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(self.data.offset(offset), size) });
            for d in (0..at.len()).rev() {
                at[d] += 1;
                offset += strides[d];
                if at[d] < self.shape[d] {
                    break;
                }
                offset -= strides[d] * self.shape[d] as isize;
                at[d] = 0;
            }
        }
        Tensor::new(self.dtype, self.shape, bytes)
    }
}

/// Whether strides are those of a dense array with the last axis contiguous.
fn is_dense(shape: &[usize], strides: &[isize], size: usize) -> bool {
    let mut expected = size as isize;
    for (n, s) in shape.iter().zip(strides).rev() {
        if *n != 1 && *s != expected {
            return false;
        }
        expected = expected.saturating_mul(*n as isize);
    }
    true
}

/// The name of an argument in errors: `input \`x\``.
pub fn called(what: &str, name: &str) -> String {
    format!("{what} `{name}`")
}

fn unfit(py: Python<'_>, what: &str, why: &str, help: &str) -> PyErr {
    raised(py, &Error::usage(format!("{what}: {why}"), help))
}

/// A value for a run: an array on the device without a copy, or a tensor on the host for anything else.
pub fn value(what: &str, given: &Bound<'_, PyAny>, want: Option<DType>) -> PyResult<Value> {
    match given.cast::<OnDevice>() {
        Ok(t) => Ok(Value::Device(t.get().tensor().clone())),
        Err(_) => Ok(Value::Host(tensor(what, given, want)?)),
    }
}

/// The tensor of a NumPy array, of an object that supports DLPack, or of Python numbers and lists of them. If `want` is given,
/// Python numbers are converted to that type, and integer arrays may hold the bits of a type that NumPy lacks.
pub fn tensor(what: &str, given: &Bound<'_, PyAny>, want: Option<DType>) -> PyResult<Tensor> {
    let py = given.py();
    if let Ok(t) = given.cast::<OnDevice>() {
        return t.get().read(py);
    }
    if is_ndarray(given)? {
        return ndarray(what, given, want);
    }
    if given.hasattr("__dlpack__")? && given.hasattr("__dlpack_device__")? {
        let found = exchanged(what, given)?;
        let tensor = found.tensor().map_err(|m| unfit(py, what, &m, "give a dense array on the host"))?;
        return fitted(py, what, tensor, want);
    }
    let plain = is_plain(given);
    let array = py.import("wgfc._arrays")?.getattr("asarray")?.call1((given,))?;
    let t = ndarray(what, &array, if plain { None } else { want })?;
    match want {
        Some(want) if plain => numbers(py, what, &t, want),
        // Python's floats have 64 bits, but f32 is the type that callers mean.
        None if plain && t.dtype == DType::F64 => numbers(py, what, &t, DType::F32),
        _ => Ok(t),
    }
}

/// Whether it is a NumPy array. NumPy is not imported for this.
fn is_ndarray(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    let modules = given.py().import("sys")?.getattr("modules")?;
    match modules.cast::<PyDict>()?.get_item("numpy")? {
        Some(numpy) => given.is_instance(&numpy.getattr("ndarray")?),
        None => Ok(false),
    }
}

/// Whether it is a number, or lists or tuples of numbers, which have no element type chosen by the caller.
fn is_plain(given: &Bound<'_, PyAny>) -> bool {
    use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyTuple};
    given.is_exact_instance_of::<PyBool>()
        || given.is_exact_instance_of::<PyInt>()
        || given.is_exact_instance_of::<PyFloat>()
        || match (given.cast::<PyList>(), given.cast::<PyTuple>()) {
            (Ok(list), _) => list.iter().all(|x| is_plain(&x)),
            (_, Ok(tuple)) => tuple.iter().all(|x| is_plain(&x)),
            _ => false,
        }
}

/// The tensor of a NumPy array.
fn ndarray(what: &str, array: &Bound<'_, PyAny>, want: Option<DType>) -> PyResult<Tensor> {
    let py = array.py();
    let kind = array.getattr("dtype")?;
    let name: String = kind.getattr("name")?.extract()?;
    let Some(dtype) = dtype::named(&name) else {
        return Err(PyTypeError::new_err(format!("{what}: arrays of {name} cannot be given")));
    };
    let interface = array.getattr("__array_interface__")?;
    let typestr: String = interface.get_item("typestr")?.extract()?;
    let foreign = if cfg!(target_endian = "little") { '>' } else { '<' };
    if typestr.starts_with(foreign) {
        let help = "convert it: x.astype(x.dtype.newbyteorder(\"=\"))";
        return Err(unfit(py, what, "its bytes are in the order of another kind of machine", help));
    }
    let (data, _): (usize, bool) = interface.get_item("data")?.extract()?;
    let strides: Option<Vec<isize>> = interface.get_item("strides")?.extract()?;
    // ml_dtypes stores each element of less than a byte in its own byte.
    let held = dtype::unpacked(dtype);
    let strided = Strided {
        data: data as *const u8,
        dtype: held,
        shape: interface.get_item("shape")?.extract()?,
        strides,
        owner: array.clone().unbind(),
    };
    let t = strided.tensor().map_err(|m| unfit(py, what, &m, "give a dense array"))?;
    if dtype::is_packed(dtype) {
        // The unused bits of each byte are unspecified, so they are replaced by sign or zero extension.
        let bytes = t.bytes().unwrap_or_default();
        let spare = 8 - dtype.bits() as u32;
        let low = |b: &u8| match held {
            DType::I8 => ((b << spare) as i8 >> spare) as u8,
            _ => (b << spare) >> spare,
        };
        let low: Vec<u8> = bytes.iter().map(low).collect();
        let packed = pack(dtype, t.shape.clone(), held, &low);
        return packed.map_err(|v| unfit(py, what, &format!("{v} is no {name}"), "give numbers that it has"));
    }
    fitted(py, what, t, want)
}

/// The array that an object exports by DLPack.
fn exchanged(what: &str, given: &Bound<'_, PyAny>) -> PyResult<Strided> {
    let py = given.py();
    let (kind, _): (i32, i32) = given.call_method0("__dlpack_device__")?.extract()?;
    if kind != dlpack::CPU && !dlpack::PINNED.contains(&kind) {
        let why = "it is in the memory of a device";
        return Err(unfit(py, what, why, "copy it to the host first, as x.cpu() does"));
    }
    // torch exports only detached tensors.
    let grad = given.getattr_opt("requires_grad")?.is_some_and(|g| g.is_truthy().unwrap_or(false));
    let given = if grad { given.call_method0("detach")? } else { given.clone() };
    let newest = PyDict::new(py);
    newest.set_item("max_version", (1, 0))?;
    let capsule = match given.call_method("__dlpack__", (), Some(&newest)) {
        Err(e) if e.is_instance_of::<PyTypeError>(py) => given.call_method0("__dlpack__")?,
        other => other?,
    };
    let d = dlpack::described(&capsule)?;
    let d = d.map_err(|m| unfit(py, what, &m, "give a dense array of numbers"))?;
    Ok(Strided { data: d.data, dtype: d.dtype, shape: d.shape, strides: d.strides, owner: capsule.unbind() })
}

/// Converts integer arrays that stand for a type that NumPy lacks: the bits of small floats, or one byte per element for types of
/// less than a byte.
fn fitted(py: Python<'_>, what: &str, t: Tensor, want: Option<DType>) -> PyResult<Tensor> {
    match want {
        Some(want) if dtype::raw(want) == Some(t.dtype) && !dtype::is_packed(want) => {
            Ok(Tensor { dtype: want, ..t })
        }
        Some(want) if dtype::is_packed(want) && [DType::I8, DType::U8].contains(&t.dtype) => {
            let packed = pack(want, t.shape.clone(), t.dtype, t.bytes().unwrap_or_default());
            let name = dtype::name(want);
            packed.map_err(|v| unfit(py, what, &format!("{v} is no {name}"), "give numbers that it has"))
        }
        _ => Ok(t),
    }
}

/// Converts Python numbers to type `want`. Rounding of floats is allowed; any other change of a value is an error.
fn numbers(py: Python<'_>, what: &str, t: &Tensor, want: DType) -> PyResult<Tensor> {
    let (from, to) = (t.dtype.class(), want.class());
    let name = dtype::name(want);
    let refuse = |v: String| {
        let help = format!("give numbers that {name} has");
        Err(unfit(py, what, &format!("{v} is no {name}"), &help))
    };
    let elements = t.scalars().unwrap_or_default();
    if let Some(first) = elements.first()
        && ((from == Class::Float && to != Class::Float) || (to == Class::Bool && from != Class::Bool))
    {
        return refuse(first.to_string());
    }
    let converted = Tensor::from_scalars(want, t.shape.clone(), &elements);
    if matches!(to, Class::Int | Class::Uint) {
        let back = converted.scalars().unwrap_or_default();
        // A negative number and a large unsigned number may have the same bits.
        let lost = |(a, b): &(&Scalar, &Scalar)| a.bits != b.bits || (from != to && b.as_i64() < 0);
        if let Some((first, _)) = elements.iter().zip(&back).find(lost) {
            return refuse(first.to_string());
        }
    }
    Ok(converted)
}
