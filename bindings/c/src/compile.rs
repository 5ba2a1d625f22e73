//! Compiling models, by the feature `compile`.

use crate::error::{WgfcError, given, guarded};
use std::ffi::c_char;
use std::path::Path;
use wgfc::{Options, SaveOptions};

/// See `wgfc.h`.
///
/// # Safety
/// `model` and `output` are NULL or texts that end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_compile(model: *const c_char, output: *const c_char) -> *mut WgfcError {
    guarded(|| {
        // SAFETY: it is a text unless it is null.
        let model = unsafe { given(model, "the model's path") }?;
        // SAFETY: it is a text unless it is null.
        let output = unsafe { given(output, "the output's path") }?;
        let program = wgfc::compile_file(Path::new(model), &Options::default())?;
        wgfc::save(&program, Path::new(output), &SaveOptions::default())
    })
}
