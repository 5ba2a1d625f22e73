//! The C library of wgfc: opens models that `wgfc compile` has written, and runs them.
//!
//! `include/wgfc.h` is its documentation: what each function does, who owns what, which threads may call. A test compares the
//! header with the functions here. The library is `libwgfc_c`, shared or static.
//!
//! No panic crosses the border: every function that could panic runs inside of a guard, which makes a panic an error of the code
//! [`error::INTERNAL`], or the value that stands for nothing.

#[cfg(feature = "compile")]
mod compile;
pub mod error;
pub mod model;
pub mod tensor;

/// The version of this interface. It grows when a program that was built before would no longer run.
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
