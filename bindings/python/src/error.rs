//! Conversion of errors to Python exceptions with diagnostics as objects.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use wgfc::{Error, ErrorClass, Finding};

/// The exception for an error: `wgfc.ModelError`, `UnsupportedError`, `DeviceError` or `InternalError`.
pub fn raised(py: Python<'_>, e: &Error) -> PyErr {
    exception(py, e).unwrap_or_else(|cannot| {
        let plain = PyRuntimeError::new_err(e.to_string());
        plain.set_cause(py, Some(cannot));
        plain
    })
}

fn exception(py: Python<'_>, e: &Error) -> PyResult<PyErr> {
    let module = py.import("wgfc._errors")?;
    let class = match e.class() {
        ErrorClass::Model => "ModelError",
        ErrorClass::Unsupported => "UnsupportedError",
        ErrorClass::Device => "DeviceError",
        ErrorClass::Internal => "InternalError",
    };
    let diagnostics = PyList::empty(py);
    for f in e.findings() {
        diagnostics.append(diagnostic(&module, &f)?)?;
    }
    Ok(PyErr::from_value(module.getattr(class)?.call1((diagnostics,))?))
}

fn diagnostic<'py>(module: &Bound<'py, PyModule>, f: &Finding) -> PyResult<Bound<'py, PyAny>> {
    let (d, l) = (&f.diagnostic, &f.diagnostic.location);
    let location = PyDict::new(module.py());
    location.set_item("file", f.path.as_ref().map(|p| p.display().to_string()))?;
    location.set_item("node", l.node.as_deref())?;
    location.set_item("operator", l.operator.as_deref())?;
    location.set_item("opset", l.opset)?;
    location.set_item("part", l.part.as_deref())?;
    location.set_item("source", l.source.as_deref())?;
    let location = module.getattr("Location")?.call((), Some(&location))?;
    let fields = PyDict::new(module.py());
    fields.set_item("message", &d.message)?;
    fields.set_item("kind", f.class.name())?;
    fields.set_item("location", location)?;
    fields.set_item("help", d.help.as_deref())?;
    module.getattr("Diagnostic")?.call((), Some(&fields))
}

/// Conversion of the library's results to Python's.
pub trait Raise<T> {
    /// The value, or the exception for the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> Raise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| raised(py, &e))
    }
}
