//! The tokens of an answer as they arrive, their text, and how likely they were.

use crate::device::not_forked;
use crate::error::{Raise, raised};
use crate::generator::Generator;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wgfc::generate::{Continuation, TextStream};

/// An iterator of the ids of generated tokens. `Generator.generate`, `complete` and `chat` make it.
///
/// Another prompt for the same generator, `reset` and `rewind` end it: the next token then raises `ModelError`.
#[pyclass(frozen, module = "wgfc")]
pub struct Tokens {
    generator: Py<Generator>,
    stop: Vec<i64>,
    continuation: Mutex<Continuation>,
}

/// The log-probabilities of a token: logarithms of the softmax of the model's own logits, before temperature, penalties and all else that
/// restricts the choice. `Tokens.logprobs` gives it.
#[pyclass(frozen, module = "wgfc")]
pub struct LogProbs {
    logprobs: wgfc::generate::LogProbs,
}

#[pymethods]
impl LogProbs {
    /// The log-probability of the token.
    #[getter]
    fn chosen(&self) -> f32 {
        self.logprobs.chosen
    }
    /// The most likely tokens and their log-probabilities, in pairs, as many as were asked for; the most likely one is the first.
    #[getter]
    fn top(&self) -> Vec<(i64, f32)> {
        self.logprobs.top.clone()
    }
    fn __repr__(&self) -> String {
        format!("LogProbs(chosen={:?}, top={:?})", self.logprobs.chosen, self.logprobs.top)
    }
}

impl Tokens {
    /// The tokens of a continuation of this generator, which end at any of `stop`.
    pub fn new(generator: Py<Generator>, stop: Vec<i64>, continuation: Continuation) -> Tokens {
        Tokens { generator, stop, continuation: Mutex::new(continuation) }
    }

    fn lock(&self) -> MutexGuard<'_, Continuation> {
        self.continuation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        let generator = self.generator.get();
        let token = py.detach(|| {
            not_forked()?;
            self.lock().next(&mut generator.lock()).transpose()
        });
        token.or_raise(py)
    }

    /// The text that the next token adds: empty for a stop token, and while a character is incomplete.
    fn piece(&self, py: Python<'_>, stream: &mut TextStream) -> PyResult<Option<String>> {
        match self.advance(py)? {
            None => Ok(None),
            Some(token) if self.stop.contains(&token) => Ok(Some(String::new())),
            Some(token) => stream.push(token).map(Some).map_err(|e| raised(py, &e)),
        }
    }
}

#[pymethods]
impl Tokens {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        self.advance(py)
    }

    /// The log-probabilities of the token that was returned last, as `LogProbs`; `None` before the first token, and if `logprobs` was not given.
    #[getter]
    fn logprobs(&self, py: Python<'_>) -> Option<LogProbs> {
        let logprobs = py.detach(|| self.lock().logprobs().cloned())?;
        Some(LogProbs { logprobs })
    }

    /// An iterator of the text that each of the remaining tokens adds, which `print` can show as it arrives. It may be empty: a
    /// character can take several tokens, and a stop token has no text.
    fn pieces(slf: &Bound<'_, Self>) -> PyResult<Pieces> {
        let stream = slf.get().generator.get().decoder().stream().or_raise(slf.py())?;
        Ok(Pieces { tokens: slf.clone().unbind(), stream: Mutex::new(stream) })
    }

    /// The text of all remaining tokens.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut all = vec![];
        while let Some(token) = self.advance(py)? {
            py.check_signals()?;
            if !self.stop.contains(&token) {
                all.push(token);
            }
        }
        self.generator.get().decoder().decode(&all).or_raise(py)
    }
}

/// An iterator of pieces of text. `Tokens.pieces` makes it.
#[pyclass(frozen, module = "wgfc")]
pub struct Pieces {
    tokens: Py<Tokens>,
    stream: Mutex<TextStream>,
}

#[pymethods]
impl Pieces {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let Ok(mut stream) = self.stream.try_lock() else {
            return Err(PyValueError::new_err("the pieces are being iterated over already"));
        };
        self.tokens.get().piece(py, &mut stream)
    }
}
