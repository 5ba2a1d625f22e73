//! Memory that a page writes into before it calls a module.

/// Allocates `len` bytes, which the call that they are passed to frees. The address is 0 where there is no memory for them.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub extern "C" fn allocate(len: usize) -> *mut u8 {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(len).is_err() {
        return std::ptr::null_mut();
    }
    bytes.resize(len, 0u8);
    Box::into_raw(bytes.into_boxed_slice()).cast()
}

/// Takes ownership of memory from [`allocate`].
///
/// # Safety
/// `at` came from [`allocate`] with this `len`, and nothing uses it any more.
pub(crate) unsafe fn taken(at: *mut u8, len: usize) -> Box<[u8]> {
    // SAFETY: as the caller promises.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(at, len)) }
}
