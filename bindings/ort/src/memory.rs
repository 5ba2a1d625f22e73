//! Memory that `ort` allocates and frees through the interface.

use ort_sys::{ORT_API_VERSION, OrtAllocator, OrtMemoryInfo};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// The size in bytes of the header before each allocation, which begins with the allocation's size. Also the alignment.
const HEADER: usize = 16;

/// The only allocator of the interface.
pub(crate) static ALLOCATOR: Allocator = Allocator(OrtAllocator {
    version: ORT_API_VERSION,
    Alloc: Some(allocate),
    Free: Some(free),
    Info: Some(info),
    Reserve: Some(reserve),
    // SAFETY: the fields of later interface versions are optional functions, for which zeros mean none.
    ..unsafe { std::mem::zeroed() }
});

/// An [`OrtAllocator`] without any state.
pub(crate) struct Allocator(pub(crate) OrtAllocator);

// SAFETY: it has no state, and its functions can be called on any thread.
unsafe impl Sync for Allocator {}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, HEADER).ok()
}

/// Allocates `size` bytes of zeros, which [`release`] frees; null if the allocation fails.
pub(crate) fn zeros(size: usize) -> *mut c_void {
    let Some(layout) = layout(size) else { return ptr::null_mut() };
    // SAFETY: the layout has a size, and room for the header.
    unsafe {
        let at = alloc_zeroed(layout);
        if at.is_null() {
            return ptr::null_mut();
        }
        at.cast::<usize>().write(size);
        at.add(HEADER).cast()
    }
}

/// Frees memory from [`zeros`].
///
/// # Safety
/// `p` is null or comes from [`zeros`], and is not used any more.
pub(crate) unsafe fn release(p: *mut c_void) {
    if p.is_null() {
        return;
    }
    // SAFETY: its header lies before it.
    unsafe {
        let at = p.cast::<u8>().sub(HEADER);
        if let Some(layout) = layout(at.cast::<usize>().read()) {
            dealloc(at, layout);
        }
    }
}

/// A copy of a string, which `ort` frees.
pub(crate) fn text(s: &CStr) -> *mut c_char {
    let bytes = s.to_bytes_with_nul();
    let to = zeros(bytes.len()).cast::<u8>();
    if !to.is_null() {
        // SAFETY: the allocation has room for the string and its NUL.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
    to.cast()
}

unsafe extern "system" fn allocate(_: *mut OrtAllocator, size: usize) -> *mut c_void {
    zeros(size)
}

unsafe extern "system" fn reserve(_: *const OrtAllocator, size: usize) -> *mut c_void {
    zeros(size)
}

unsafe extern "system" fn free(_: *mut OrtAllocator, p: *mut c_void) {
    // SAFETY: the caller got the memory from this allocator.
    unsafe { release(p) };
}

unsafe extern "system" fn info(_: *const OrtAllocator) -> *const OrtMemoryInfo {
    ptr::dangling()
}
