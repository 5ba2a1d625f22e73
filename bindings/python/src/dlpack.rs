//! Exchange of tensors with other libraries by DLPack: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};
use wgfc::{DType, Tensor};

/// `kDLCPU`.
pub const CPU: i32 = 1;
/// `kDLCUDAHost` and `kDLROCMHost`: host memory that a GPU can read.
pub const PINNED: [i32; 2] = [3, 11];

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// DLPack's type codes and bits of each type.
const TYPES: [(DType, u8, u8); 18] = [
    (DType::I8, 0, 8),
    (DType::I16, 0, 16),
    (DType::I32, 0, 32),
    (DType::I64, 0, 64),
    (DType::U8, 1, 8),
    (DType::U16, 1, 16),
    (DType::U32, 1, 32),
    (DType::U64, 1, 64),
    (DType::F16, 2, 16),
    (DType::F32, 2, 32),
    (DType::F64, 2, 64),
    (DType::BF16, 4, 16),
    (DType::Bool, 6, 8),
    (DType::F8E4M3, 10, 8),
    (DType::F8E4M3Uz, 11, 8),
    (DType::F8E5M2, 12, 8),
    (DType::F8E5M2Uz, 13, 8),
    (DType::F8E8M0, 14, 8),
];

/// A capsule's description of a tensor in host memory. The capsule owns the memory.
pub struct Described {
    /// The first element.
    pub data: *const u8,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// The stride of each axis in bytes; `None` if elements are dense.
    pub strides: Option<Vec<isize>>,
}

/// The description in a capsule. The inner `Err` has the reason if the tensor cannot be read.
pub fn described(capsule: &Bound<'_, PyAny>) -> PyResult<Result<Described, String>> {
    let object = capsule.as_ptr();
    // SAFETY: the pointer is to a live object, and both functions accept any object.
    let (plain, versioned) = unsafe {
        (ffi::PyCapsule_IsValid(object, PLAIN.as_ptr()), ffi::PyCapsule_IsValid(object, VERSIONED.as_ptr()))
    };
    let tensor: *const DlTensor = if plain != 0 {
        // SAFETY: a capsule of this name holds a pointer to a `DLManagedTensor`.
        unsafe { &raw const (*ffi::PyCapsule_GetPointer(object, PLAIN.as_ptr()).cast::<Managed>()).tensor }
    } else if versioned != 0 {
        // SAFETY: a capsule of this name holds a pointer to a `DLManagedTensorVersioned`, whose version is checked before any
        // field that depends on it is read.
        unsafe {
            let managed = ffi::PyCapsule_GetPointer(object, VERSIONED.as_ptr()).cast::<ManagedVersioned>();
            if (*managed).major != 1 {
                return Ok(Err(format!("it is exchanged by DLPack {}, not 1", (*managed).major)));
            }
            &raw const (*managed).tensor
        }
    } else {
        return Ok(Err("its __dlpack__ gives no DLPack capsule".into()));
    };
    // SAFETY: the capsule keeps the tensor alive, and nobody writes to it.
    let t = unsafe { &*tensor };
    let (code, bits, lanes) = (t.dtype.code, t.dtype.bits, t.dtype.lanes);
    let found = TYPES.iter().find(|(_, c, b)| (*c, *b, 1) == (code, bits, lanes));
    let Some((dtype, ..)) = found else {
        return Ok(Err(format!("its DLPack type (code {code}, {bits} bits, {lanes} lanes) is not known")));
    };
    let rank = usize::try_from(t.ndim).unwrap_or(0);
    let list = |p: *const i64| -> Vec<i64> {
        match rank {
            0 => vec![],
            // SAFETY: a shape, and strides that are not null, have an entry for each axis.
            n => unsafe { std::slice::from_raw_parts(p, n) }.to_vec(),
        }
    };
    if rank > 0 && t.shape.is_null() {
        return Ok(Err("it has no shape".into()));
    }
    let shape: Option<Vec<usize>> = list(t.shape).into_iter().map(|n| usize::try_from(n).ok()).collect();
    let Some(shape) = shape else { return Ok(Err("its shape is negative".into())) };
    let size = (bits / 8) as isize;
    let strides = (rank > 0 && !t.strides.is_null())
        .then(|| list(t.strides).into_iter().map(|s| (s as isize).saturating_mul(size)).collect());
    let data = t.data.cast::<u8>().wrapping_add(t.byte_offset as usize);
    Ok(Ok(Described { data, dtype: *dtype, shape, strides }))
}

/// The memory of an exported tensor, which lives until the consumer calls the deleter.
struct Exported {
    _tensor: Tensor,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
}

/// A capsule that shares the bytes of a tensor on the host.
pub fn capsule<'py>(py: Python<'py>, tensor: &Tensor, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
    let Some((_, code, bits)) = TYPES.iter().find(|(d, ..)| *d == tensor.dtype) else {
        let name = crate::dtype::name(tensor.dtype);
        return Err(PyBufferError::new_err(format!("{name} cannot be exchanged by DLPack")));
    };
    let data = tensor.bytes().map_or(std::ptr::null(), <[u8]>::as_ptr);
    let mut shape: Vec<i64> = tensor.shape.iter().map(|n| *n as i64).collect();
    let mut strides = vec![1i64; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(shape[d].max(1));
    }
    let described = DlTensor {
        data: data.cast_mut().cast(),
        device: DlDevice { kind: CPU, id: 0 },
        ndim: shape.len() as i32,
        dtype: DlType { code: *code, bits: *bits, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let exported = Exported { _tensor: tensor.clone(), _shape: shape, _strides: strides };
    let context = Box::into_raw(Box::new(exported)).cast::<c_void>();
    let (pointer, name): (*mut c_void, &CStr) = if versioned {
        let managed = ManagedVersioned {
            major: 1,
            minor: 0,
            context,
            deleter: Some(delete_versioned),
            flags: 0,
            tensor: described,
        };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED)
    } else {
        let managed = Managed { tensor: described, context, deleter: Some(delete) };
        (Box::into_raw(Box::new(managed)).cast(), PLAIN)
    };
    // SAFETY: the pointer is not null, and the name is static.
    let made = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(unused)) };
    // SAFETY: `made` is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}

/// The deleter of the tensors in capsules that [`capsule`] makes.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the consumer calls this once, with the pointer from the box that `capsule` made.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

/// [`delete`] for versioned capsules.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

/// The destructor of a capsule: frees the tensor if no consumer has taken it. A consumer renames the capsule.
unsafe extern "C" fn unused(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this, attached to the interpreter, with a capsule that `capsule` made. Its name tells the type of its
    // pointer.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
