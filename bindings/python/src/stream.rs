//! Streams: runs of a session one after another.

use crate::error::Raise;
use crate::host::Library;
use crate::session::{Session, host, warn};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};
use std::collections::VecDeque;
use std::sync::{Mutex, TryLockError};
use wgfc::overflow::overflow;
use wgfc::runtime::RunError;
use wgfc::runtime::session::{Started, Value};

/// An iterator of the outputs of consecutive runs, as dicts. `Session.stream` makes it.
#[pyclass(frozen, module = "wgfc")]
pub struct Stream {
    session: Py<Session>,
    outputs: Option<Vec<String>>,
    library: Library,
    in_flight: usize,
    under_way: Mutex<UnderWay>,
}

struct UnderWay {
    /// The iterator of inputs; `None` once it is exhausted.
    batches: Option<Py<PyIterator>>,
    runs: VecDeque<(u64, Started)>,
    /// The error of starting the next run, which is raised after the outputs of all earlier runs have been returned.
    failed: Option<PyErr>,
    /// The number of the next run.
    next: u64,
}

impl Stream {
    /// A stream of runs of `session` with inputs from `batches`.
    pub fn new(
        session: &Bound<'_, Session>,
        batches: &Bound<'_, PyAny>,
        outputs: Option<Vec<String>>,
        to: &str,
        in_flight: i64,
    ) -> PyResult<Stream> {
        let batches = batches
            .try_iter()
            .map_err(|_| PyTypeError::new_err("batches: give an iterable of dicts of names and arrays"))?;
        let Some(in_flight) = usize::try_from(in_flight).ok().filter(|n| *n > 0) else {
            let message = format!("in_flight: at least one run is under way at a time, not {in_flight}");
            return Err(PyValueError::new_err(message));
        };
        let py = session.py();
        let names: Option<Vec<&str>> = outputs.as_ref().map(|o| o.iter().map(String::as_str).collect());
        session.get().with(py, |s| s.outputs_named(names.as_deref()).map(drop))?;
        let library = host(to, "to: outputs of a stream go to \"numpy\" or \"torch\"")?;
        let under_way = Mutex::new(UnderWay {
            batches: Some(batches.unbind()),
            runs: VecDeque::new(),
            failed: None,
            next: 0,
        });
        Ok(Stream { session: session.clone().unbind(), outputs, library, in_flight, under_way })
    }

    /// Starts the next run; `false` if there are no more inputs.
    fn start(&self, py: Python<'_>, to: &mut UnderWay) -> PyResult<bool> {
        let Some(batches) = &to.batches else { return Ok(false) };
        let Some(inputs) = batches.bind(py).clone().next().transpose()? else {
            to.batches = None;
            return Ok(false);
        };
        let (session, step) = (self.session.get(), to.next);
        let values = session.values(&inputs, &[]).inspect_err(|e| {
            // `add_note` exists from Python 3.11 on.
            let _ = e.value(py).call_method1("add_note", (format!("in step {step} of the stream"),));
        })?;
        let values: Vec<(&str, Value)> = values.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
        let names: Option<Vec<&str>> = self.outputs.as_ref().map(|o| o.iter().map(String::as_str).collect());
        let started = session.with(py, |s| {
            s.start_blocking(&values, names.as_deref())
                .map_err(|e| RunError::Step { step, error: Box::new(e) })
        })?;
        to.runs.push_back((step, started));
        to.next += 1;
        Ok(true)
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut to = match self.under_way.try_lock() {
            Ok(to) => to,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyValueError::new_err("the stream is being iterated over already"));
            }
        };
        while to.failed.is_none() && to.runs.len() < self.in_flight {
            match self.start(py, &mut to) {
                Ok(true) => {}
                Ok(false) => break,
                // Exceptions such as `KeyboardInterrupt` are raised at once.
                Err(e) if to.runs.is_empty() || !e.is_instance_of::<PyException>(py) => return Err(e),
                Err(e) => to.failed = Some(e),
            }
        }
        let Some((step, started)) = to.runs.pop_front() else {
            return to.failed.take().map_or(Ok(None), Err);
        };
        let read =
            || started.read_blocking().map_err(|error| RunError::Step { step, error: Box::new(error) });
        let read = py.detach(read).map_err(wgfc::model::device_error).or_raise(py)?;
        let said = self
            .session
            .get()
            .with(py, |s| Ok(overflow(s.program(), read.iter().map(|(n, t)| (n.as_str(), t)))))?;
        warn(py, said)?;
        Session::arrays(py, read, self.library).map(Some)
    }
}
