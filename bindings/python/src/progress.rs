//! Reports of progress to a callback in Python.

use pyo3::prelude::*;

/// A Python function `(what, done, all)` and the first exception that it raised, after which it is not called again. Each call
/// attaches to the interpreter, as the reporting work runs detached.
pub struct Progress {
    function: Option<Py<PyAny>>,
    failed: Option<PyErr>,
}

impl Progress {
    /// Progress that is reported to `function`, if there is one.
    pub fn new(function: Option<Py<PyAny>>) -> Progress {
        Progress { function, failed: None }
    }
    /// Whether there is a function to call.
    pub fn is_heard(&self) -> bool {
        self.function.is_some()
    }
    /// Calls the function after handling pending signals such as Ctrl-C's.
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
    /// Returns the exception, if there was one.
    pub fn end(self) -> PyResult<()> {
        self.failed.map_or(Ok(()), Err)
    }
}
