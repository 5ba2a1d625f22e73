//! Files that a page reads for a module.

use wgfc_ir::remote::Files;

#[cfg(target_arch = "wasm32")]
#[link(wasm_import_module = "wgfc")]
unsafe extern "C" {
    /// Reads `len` bytes of a file from `offset` into memory at `into`; returns 1 on success.
    fn read(file: u32, offset: u64, into: *mut u8, len: u32) -> u32;
}

/// The page's files.
pub(crate) struct Page;

impl Files for Page {
    #[cfg(target_arch = "wasm32")]
    fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> bool {
        // SAFETY: the page writes `len` bytes at the given address in this module's memory.
        unsafe { read(file as u32, offset, into.as_mut_ptr(), into.len() as u32) == 1 }
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn read(&self, _: usize, _: u64, _: &mut [u8]) -> bool {
        false
    }
}
