//! The table of functions, which behave as ONNX Runtime's C API documents them. Functions that are not implemented return
//! `ORT_NOT_IMPLEMENTED`.
//!
//! Safety of all functions: `ort` calls them as that API demands. Pointers to objects come from this table and have not been released,
//! strings end with NUL, arrays have the given lengths, and out-pointers can be written.

#![expect(non_snake_case, reason = "the names are those of the C API")]

mod memory;
mod session;
mod value;

use crate::session::{Session, SessionOptions};
use crate::tensor::{Type, Value};
use memory::*;
use ort_sys::stub::Error;
use ort_sys::*;
use session::*;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use value::*;

/// An error for the caller; NULs in the message are removed.
fn status(code: OrtErrorCode, message: &str) -> OrtStatusPtr {
    Error::new_sys(code, message.replace('\0', " "))
}

/// Runs `f`; a panic becomes an error.
fn guarded(f: impl FnOnce() -> Result<(), String>) -> OrtStatusPtr {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => OrtStatusPtr::default(),
        Ok(Err(message)) => status(OrtErrorCode::ORT_FAIL, &message),
        Err(_) => status(OrtErrorCode::ORT_RUNTIME_EXCEPTION, "a panic in wgfc; this is a bug in wgfc"),
    }
}

/// Allocates an object and writes its address.
unsafe fn put<T, H>(out: *mut *mut H, value: T) {
    // SAFETY: see the module.
    unsafe { *out = Box::into_raw(Box::new(value)).cast() };
}

/// Allocates what `make` returns and writes its address.
unsafe fn create<T, H>(out: *mut *mut H, make: impl FnOnce() -> Result<T, String>) -> OrtStatusPtr {
    guarded(|| {
        let value = make()?;
        // SAFETY: see the module.
        unsafe { put(out, value) };
        Ok(())
    })
}

/// Frees an object `T`, which the interface calls `H`.
unsafe extern "system" fn release<T, H>(p: *mut H) {
    if !p.is_null() {
        // SAFETY: `put` has made it.
        drop(unsafe { Box::from_raw(p.cast::<T>()) });
    }
}

/// Writes a result.
unsafe fn set<T>(out: *mut T, value: T) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = value };
    OrtStatusPtr::default()
}

/// Writes results, at most `len`.
unsafe fn set_all<T>(out: *mut T, len: usize, values: impl IntoIterator<Item = T>) -> OrtStatusPtr {
    for (i, value) in values.into_iter().take(len).enumerate() {
        // SAFETY: see the module.
        unsafe { *out.add(i) = value };
    }
    OrtStatusPtr::default()
}

unsafe fn string(s: *const c_char) -> String {
    // SAFETY: see the module.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// An array; the pointer may be null if the array is empty.
unsafe fn array<'a, T>(p: *const T, len: usize) -> &'a [T] {
    // SAFETY: see the module.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(p, len) } }
}

unsafe fn path(p: *const os_char) -> PathBuf {
    #[cfg(windows)]
    {
        use std::os::windows::ffi::OsStringExt;
        // SAFETY: see the module.
        let len = (0..).take_while(|i| unsafe { *p.add(*i) } != 0).count();
        // SAFETY: the loop above has read that many elements.
        std::ffi::OsString::from_wide(unsafe { array(p, len) }).into()
    }
    #[cfg(not(windows))]
    {
        // SAFETY: see the module.
        let bytes = unsafe { CStr::from_ptr(p.cast()) }.to_bytes().to_vec();
        // SAFETY: `ort` has made the bytes from an `OsStr`.
        unsafe { std::ffi::OsString::from_encoded_bytes_unchecked(bytes) }.into()
    }
}

/// Writes the address of an object without content, which the interface demands.
unsafe fn nothing<H>(out: *mut *mut H) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, ptr::dangling_mut()) }
}

/// Writes 0, as a number of an object `H`.
unsafe extern "system" fn zero<H, N: Default>(_: *const H, out: *mut N) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, N::default()) }
}

unsafe extern "system" fn GetBuildInfoString() -> *const c_char {
    concat!("ORT Build Info: backend=wgfc, version=", env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The functions of the backend, for `ort::set_api`.
pub fn api() -> OrtApi {
    OrtApi {
        CreateEnv,
        CreateEnvWithCustomLogger,
        CreateSessionOptions,
        CloneSessionOptions,
        ReleaseSessionOptions: release::<SessionOptions, _>,
        SetSessionGraphOptimizationLevel,
        AddFreeDimensionOverrideByName,
        AddSessionConfigEntry,
        CreateSession,
        CreateSessionFromArray,
        ReleaseSession: release::<Session, _>,
        Run,
        SessionGetInputCount: port_count::<INPUT>,
        SessionGetOutputCount: port_count::<OUTPUT>,
        SessionGetOverridableInitializerCount: zero,
        SessionGetInputTypeInfo: port_type::<INPUT>,
        SessionGetOutputTypeInfo: port_type::<OUTPUT>,
        SessionGetInputName: port_name::<INPUT>,
        SessionGetOutputName: port_name::<OUTPUT>,
        SessionGetMemoryInfoForInputs: memory_of_ports,
        SessionGetMemoryInfoForOutputs: memory_of_ports,
        CreateTensorAsOrtValue,
        CreateTensorWithDataAsOrtValue,
        ReleaseValue: release::<Value, _>,
        IsTensor,
        GetTensorMutableData,
        GetTensorSizeInBytes,
        GetTensorElementTypeAndShapeDataReference,
        GetTensorTypeAndShape: value_type,
        GetTypeInfo: value_type,
        GetValueType: always_a_tensor,
        GetOnnxTypeFromTypeInfo: always_a_tensor,
        CastTypeInfoToTensorInfo,
        CreateTensorTypeAndShapeInfo,
        SetTensorElementType,
        SetDimensions,
        GetTensorElementType,
        GetDimensionsCount,
        GetDimensions,
        GetSymbolicDimensions,
        GetTensorShapeElementCount,
        ReleaseTypeInfo: release::<Type, _>,
        ReleaseTensorTypeAndShapeInfo: release::<Type, _>,
        CreateMemoryInfo,
        CreateCpuMemoryInfo,
        CompareMemoryInfo,
        MemoryInfoGetName,
        MemoryInfoGetId: zero,
        MemoryInfoGetMemType,
        MemoryInfoGetType,
        GetTensorMemoryInfo: memory_info,
        GetAllocatorWithDefaultOptions,
        CreateAllocator,
        AllocatorAlloc,
        AllocatorFree,
        AllocatorGetInfo: memory_info,
        GetBuildInfoString,
        ..ort_sys::stub::api()
    }
}
