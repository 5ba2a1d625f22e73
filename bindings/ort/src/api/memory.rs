//! Host memory and allocators. For the safety of all functions see [`super`].

use super::{nothing, set, status, string};
use crate::memory::{ALLOCATOR, release, zeros};
use ort_sys::*;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

pub(super) unsafe extern "system" fn CreateMemoryInfo(
    name: *const c_char,
    _: OrtAllocatorType,
    _: c_int,
    _: OrtMemType,
    out: *mut *mut OrtMemoryInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        match string(name).as_str() {
            "Cpu" => nothing(out),
            other => status(
                OrtErrorCode::ORT_NOT_IMPLEMENTED,
                &format!("values are in the host's memory, not in that of \"{other}\""),
            ),
        }
    }
}

pub(super) unsafe extern "system" fn CreateCpuMemoryInfo(
    _: OrtAllocatorType,
    _: OrtMemType,
    out: *mut *mut OrtMemoryInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { nothing(out) }
}

pub(super) unsafe extern "system" fn CompareMemoryInfo(
    _: *const OrtMemoryInfo,
    _: *const OrtMemoryInfo,
    out: *mut c_int,
) -> OrtStatusPtr {
    // SAFETY: see the module. All memory infos are equal.
    unsafe { set(out, 0) }
}

pub(super) unsafe extern "system" fn MemoryInfoGetName(
    _: *const OrtMemoryInfo,
    out: *mut *const c_char,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, c"Cpu".as_ptr()) }
}

pub(super) unsafe extern "system" fn MemoryInfoGetMemType(
    _: *const OrtMemoryInfo,
    out: *mut OrtMemType,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, OrtMemType::OrtMemTypeDefault) }
}

pub(super) unsafe extern "system" fn MemoryInfoGetType(
    _: *const OrtMemoryInfo,
    out: *mut OrtAllocatorType,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, OrtAllocatorType::OrtDeviceAllocator) }
}

/// The memory info of a value or of an allocator. It is never read, as all memory is the host's.
pub(super) unsafe extern "system" fn memory_info<H>(
    _: *const H,
    out: *mut *const OrtMemoryInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, ptr::dangling()) }
}

pub(super) unsafe extern "system" fn GetAllocatorWithDefaultOptions(
    out: *mut *mut OrtAllocator,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, (&raw const ALLOCATOR.0).cast_mut()) }
}

pub(super) unsafe extern "system" fn CreateAllocator(
    _: *const OrtSession,
    _: *const OrtMemoryInfo,
    out: *mut *mut OrtAllocator,
) -> OrtStatusPtr {
    // SAFETY: see the module. It has no state and is never freed.
    unsafe { GetAllocatorWithDefaultOptions(out) }
}

pub(super) unsafe extern "system" fn AllocatorAlloc(
    _: *mut OrtAllocator,
    size: usize,
    out: *mut *mut c_void,
) -> OrtStatusPtr {
    let p = zeros(size);
    // SAFETY: see the module.
    unsafe { *out = p };
    match p.is_null() {
        true => status(OrtErrorCode::ORT_FAIL, &format!("there is no memory for {size} bytes")),
        false => OrtStatusPtr::default(),
    }
}

pub(super) unsafe extern "system" fn AllocatorFree(_: *mut OrtAllocator, p: *mut c_void) -> OrtStatusPtr {
    // SAFETY: the caller got the memory from this allocator.
    unsafe { release(p) };
    OrtStatusPtr::default()
}
