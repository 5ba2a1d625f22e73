//! The C library of wgfc: opens models that `wgfc compile` has written, and runs them.
//!
//! `include/wgfc.h` documents each function, ownership and threads. A test compares the
//! header with the functions here. The library is `libwgfc_c`, shared or static.
//!
//! No panic leaves the library: functions that could panic run in a guard, which turns a panic into an error with the code
//! [`error::INTERNAL`], or into NULL or 0 where a function returns no error.

#[cfg(feature = "compile")]
mod compile;
pub mod error;
pub mod model;
pub mod tensor;

/// The version of the binary interface. Changes that break programs built against an earlier version increase it.
pub const ABI: u32 = 1;

/// See `wgfc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn wgfc_abi() -> u32 {
    ABI
}

/// See `wgfc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn wgfc_version() -> *const std::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
