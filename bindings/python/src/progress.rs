//! Callbacks that are told how far something is.

use pyo3::prelude::*;

/// A function `(what, done, all)` of Python's, which is called while its caller waits detached, and the first exception
/// there, which ends the calls.
pub struct Progress {
    function: Option<Py<PyAny>>,
    failed: Option<PyErr>,
}

impl Progress {
    /// The progress that is reported to a function, if there is one.
    pub fn new(function: Option<Py<PyAny>>) -> Progress {
        Progress { function, failed: None }
    }
    /// Whether anybody listens.
    pub fn is_heard(&self) -> bool {
        self.function.is_some()
    }
    /// Calls the function, attached; signals such as that of Ctrl-C are handled first.
    pub fn tell(&mut self, what: &str, done: u64, all: u64) {
        if self.failed.is_some() {
            return;
        }
        let told = Python::attach(|py| {
            py.check_signals()?;
            match &self.function {
                Some(f) => f.call1(py, (what, done, all)).map(drop),
                None => Ok(()),
            }
        });
        self.failed = told.err();
    }
    /// The exception, if there was one.
    pub fn end(self) -> PyResult<()> {
        self.failed.map_or(Ok(()), Err)
    }
}
