//! The module's exports. Pages write into memory from [`allocate`] and call [`compile`]. The pointer that it returns points to
//! four numbers of 32 bits: the address and the length of the answer's JSON, and the address and the length of its data.
//! [`release`] frees the answer.

use crate::files::Page;
pub use crate::memory::allocate;
use crate::memory::taken;
use wgfc_compiler::requests::{self, Answer};
use wgfc_ir::derived::Derivation;

/// Frees memory from [`allocate`].
///
/// # Safety
/// `at` came from [`allocate`] with this `len`, and nothing uses it any more.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn free(at: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    drop(unsafe { taken(at, len) });
}

/// An answer in the module's memory. Pages read its first field.
#[repr(C)]
pub struct Given {
    places: [usize; 4],
    answer: Answer,
}

/// Compiles a model according to a request. Both are bytes in memory from [`allocate`], which this frees.
///
/// # Safety
/// As for [`free`], for both.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn compile(
    model: *mut u8,
    model_len: usize,
    request: *mut u8,
    request_len: usize,
) -> *mut Given {
    // SAFETY: as the caller promises.
    let (model, request) = unsafe { (taken(model, model_len), taken(request, request_len)) };
    let answer = requests::compile(&model, &String::from_utf8_lossy(&request), Box::new(Page));
    let places =
        [answer.json.as_ptr() as usize, answer.json.len(), answer.data.as_ptr() as usize, answer.data.len()];
    Box::into_raw(Box::new(Given { places, answer }))
}

/// Writes the bytes that a derivation makes of whole blocks, which a plan's recipes name. All are bytes in memory from [`allocate`]; this frees the
/// name and the blocks. Returns 1 on success: the derivation is known, and makes `made_len` bytes of them.
///
/// # Safety
/// As for [`free`], for the name and the blocks; `made` has `made_len` bytes, which nothing else uses meanwhile.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn derive(
    name: *mut u8,
    name_len: usize,
    blocks: *mut u8,
    blocks_len: usize,
    made: *mut u8,
    made_len: usize,
) -> u32 {
    // SAFETY: as the caller promises.
    let (name, blocks) = unsafe { (taken(name, name_len), taken(blocks, blocks_len)) };
    // SAFETY: as the caller promises.
    let made = unsafe { std::slice::from_raw_parts_mut(made, made_len) };
    let Some(how) = std::str::from_utf8(&name).ok().and_then(Derivation::named) else { return 0 };
    if !blocks.len().is_multiple_of(how.block) || blocks.len() / how.block * how.makes != made.len() {
        return 0;
    }
    (how.make)(&blocks, made);
    1
}

/// Frees an answer.
///
/// # Safety
/// `given` came from [`compile`], and nothing uses it any more.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn release(given: *mut Given) {
    // SAFETY: as the caller promises.
    let given = unsafe { Box::from_raw(given) };
    drop(given.answer);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(bytes: &[u8]) -> (*mut u8, usize) {
        let at = allocate(bytes.len());
        // SAFETY: the memory has this many bytes and does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        (at, bytes.len())
    }

    /// Run with Miri: all memory is freed exactly once, and answers can be read until they are released.
    #[test]
    fn memory_is_taken_back() {
        for len in [0, 1, 1000] {
            // SAFETY: the memory was allocated with this length and is not used any more.
            unsafe { free(allocate(len), len) };
        }
        let ((model, m), (request, r)) = (given(b"no model"), given(b"{}"));
        // SAFETY: both come from `allocate` with these lengths.
        let answer = unsafe { compile(model, m, request, r) };
        // SAFETY: the answer has not been released, and `places` refers to bytes that it owns.
        let json = unsafe {
            let [at, len, ..] = (*answer).places;
            String::from_utf8_lossy(std::slice::from_raw_parts(at as *const u8, len)).into_owned()
        };
        assert!(json.contains("\"kind\""), "{json}");
        // SAFETY: it comes from `compile`, and nothing refers to it.
        unsafe { release(answer) };
    }

    #[test]
    fn blocks_are_made_into_planes() {
        let blocks: Vec<u8> = (0..68).collect();
        for (name, len, done) in [("q8_0_scales", 4, 1), ("q8_0_scales", 5, 0), ("no such", 4, 0)] {
            let ((n, n_len), (b, b_len)) = (given(name.as_bytes()), given(&blocks));
            let mut made = vec![0; len];
            // SAFETY: name and blocks come from `allocate` with these lengths, and `made` has `len` bytes.
            assert_eq!(unsafe { derive(n, n_len, b, b_len, made.as_mut_ptr(), len) }, done);
            assert!(done == 0 || made == [0, 1, 34, 35]);
        }
    }
}
