//! Memory that `ort` allocates and frees through the interface.

use ort_sys::{ORT_API_VERSION, OrtAllocator, OrtMemoryInfo};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// Bytes before each allocation, of which the first hold its size. Also the alignment.
const HEADER: usize = 16;

/// The allocator that the interface gives out.
pub(crate) static ALLOCATOR: Allocator = Allocator(OrtAllocator {
    version: ORT_API_VERSION,
    Alloc: Some(allocate),
    Free: Some(free),
    Info: Some(info),
    Reserve: Some(reserve),
    // SAFETY: the fields of newer interfaces are functions that may be absent.
    ..unsafe { std::mem::zeroed() }
});

/// An [`OrtAllocator`] without any state.
pub(crate) struct Allocator(pub(crate) OrtAllocator);

// SAFETY: it has no state, and its functions can be called on any thread.
unsafe impl Sync for Allocator {}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, HEADER).ok()
}

/// `size` bytes of zeros, to be given to [`release`]; null where there are none.
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

/// Frees what [`zeros`] has given.
///
/// # Safety
/// It is null or has been given by [`zeros`], and is not used any more.
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

/// A copy of a text that `ort` frees.
pub(crate) fn text(s: &CStr) -> *mut c_char {
    let bytes = s.to_bytes_with_nul();
    let to = zeros(bytes.len()).cast::<u8>();
    if !to.is_null() {
        // SAFETY: there is room for them.
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
    // SAFETY: the caller has it from this allocator.
    unsafe { release(p) };
}

unsafe extern "system" fn info(_: *const OrtAllocator) -> *const OrtMemoryInfo {
    ptr::dangling()
}
