//! The native module of the Python package `wgfc`: programs, sessions, tensors on devices.
//!
//! The doc comments of Python's classes and functions are their docstrings; `python/wgfc/_wgfc.pyi` has their types. Arrays are
//! imported by NumPy's array interface or DLPack ([`input`]) and exported by both ([`host`]), sharing the bytes. Other Python
//! threads can run while a model is compiled and while a device works.

mod command_line;
mod decoder;
mod device;
mod dlpack;
mod dtype;
mod error;
mod fingerprint;
mod generator;
mod host;
mod images;
mod input;
mod program;
mod progress;
mod request;
mod session;
mod stream;
mod tokens;

use pyo3::prelude::*;

/// The native part of wgfc.
#[pymodule]
mod _wgfc {
    #[pymodule_export]
    use super::command_line::command_line;
    #[pymodule_export]
    use super::decoder::Decoder;
    #[pymodule_export]
    use super::device::{Adapter, Tensor, adapters, wait_for_devices};
    #[pymodule_export]
    use super::fingerprint::fingerprint;
    #[pymodule_export]
    use super::generator::Generator;
    #[pymodule_export]
    use super::host::HostArray;
    #[pymodule_export]
    use super::program::{Port, Program, State, compile};
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::stream::Stream;
    #[pymodule_export]
    use super::tokens::{LogProbs, Pieces, Tokens};

    /// The version of wgfc.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
