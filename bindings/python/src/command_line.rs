//! The command line, for `python -m wgfc`.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command line `wgfc` with these arguments, of which the first is the program's name, and ends the process.
#[pyfunction]
pub fn command_line(py: Python<'_>, arguments: Vec<OsString>) {
    py.detach(|| wgfc::cli::main(arguments))
}
