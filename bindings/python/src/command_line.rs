//! The command line, for `python -m wgfc`.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command line `wgfc` and ends the process. The first argument is the program's name.
#[pyfunction]
pub fn command_line(py: Python<'_>, arguments: Vec<OsString>) {
    py.detach(|| wgfc::cli::main(arguments))
}
