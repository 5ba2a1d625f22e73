//! The files of language models, and the prompts of conversations.

use crate::error::Raise;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use wgfc::Error;
use wgfc::generate::{ChatOptions, Constraint, Form, Forms, Json, Message};

/// The files of a language model: weights, tokenizer, chat template, and what its publisher recommends.
///
/// `Decoder(path, *, memory_limit=None)`
///
/// `path` is a GGUF file; a folder with `config.json` and safetensors; a folder with `model.onnx`, or that file; a `.pt2` file; or
/// what `wgfc compile --generate` wrote. `memory_limit` is the number of bytes that reading the files may take beyond their own.
///
/// Raises `ModelError` for files that cannot be read, and `UnsupportedError` for models that wgfc does not know.
#[pyclass(frozen, module = "wgfc")]
pub struct Decoder {
    files: Arc<Files>,
}

/// The files of a model, and what is made of them when it is first needed.
pub struct Files {
    pub decoder: wgfc::Decoder,
    forms: OnceLock<Forms>,
    /// The constraint that was made last, which the next request often asks for again.
    last: Mutex<Option<(Form, Constraint)>>,
}

impl Files {
    /// The constraint that holds an answer to a form.
    pub fn constraint(&self, form: Form) -> Result<Constraint, Error> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, constraint)) = last.as_ref().filter(|(f, _)| *f == form) {
            return Ok(constraint.clone());
        }
        let forms = match self.forms.get() {
            Some(forms) => forms,
            None => {
                let made = self.decoder.forms()?;
                self.forms.get_or_init(|| made)
            }
        };
        let constraint = form.constraint(forms)?;
        *last = Some((form, constraint.clone()));
        Ok(constraint)
    }
}

impl Decoder {
    /// The files that a path names.
    pub fn open(py: Python<'_>, path: &Path, memory_limit: Option<u64>) -> PyResult<Decoder> {
        let decoder = py.detach(|| wgfc::Decoder::open_within(path, memory_limit)).or_raise(py)?;
        Ok(Decoder::of(Arc::new(Files { decoder, forms: OnceLock::new(), last: Mutex::new(None) })))
    }

    pub fn of(files: Arc<Files>) -> Decoder {
        Decoder { files }
    }

    pub fn files(&self) -> Arc<Files> {
        self.files.clone()
    }
}

/// The JSON text of a Python value.
pub fn json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let options = PyDict::new(value.py());
    options.set_item("allow_nan", false)?;
    value.py().import("json")?.call_method("dumps", (value,), Some(&options))?.extract()
}

/// Reads what a Python value is as JSON; `what` names it in the error.
fn read<T: serde::de::DeserializeOwned>(what: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    serde_json::from_str(&json(value)?).map_err(|e| PyValueError::new_err(format!("{what}: {e}")))
}

/// The messages, tools and variables of a conversation.
pub fn conversation(
    messages: &Bound<'_, PyAny>,
    tools: Option<&Bound<'_, PyAny>>,
    add_generation_prompt: bool,
    variables: Option<&Bound<'_, PyDict>>,
) -> PyResult<(Vec<Message>, ChatOptions)> {
    if messages.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "messages: give a list of dicts, such as [{\"role\": \"user\", \"content\": \"Hello!\"}]",
        ));
    }
    let extra = match variables.map(|v| read("variables", v)).transpose()? {
        Some(Json::Object(pairs)) => pairs,
        _ => vec![],
    };
    let tools = tools.map(|t| read("tools", t)).transpose()?;
    let options = ChatOptions { tools, add_generation_prompt, extra, ..ChatOptions::default() };
    Ok((read("messages", messages)?, options))
}

#[pymethods]
impl Decoder {
    #[new]
    #[pyo3(signature = (path, *, memory_limit=None))]
    fn create(py: Python<'_>, path: PathBuf, memory_limit: Option<u64>) -> PyResult<Decoder> {
        Decoder::open(py, &path, memory_limit)
    }

    /// Whether there is a tokenizer. Without one, prompts are token ids.
    #[getter]
    fn has_tokenizer(&self) -> bool {
        self.files.decoder.has_tokenizer()
    }
    /// Whether there is a chat template.
    #[getter]
    fn has_chat_template(&self) -> bool {
        self.files.decoder.has_chat_template()
    }
    /// The ids of tokens that end an answer.
    #[getter]
    fn stop_tokens(&self) -> Vec<i64> {
        self.files.decoder.stop_tokens()
    }

    /// The token ids of a text, including the special ones that the tokenizer adds.
    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<i64>> {
        py.detach(|| self.files.decoder.encode(text)).or_raise(py)
    }
    /// The text of token ids, without special ones.
    fn decode(&self, py: Python<'_>, tokens: Vec<i64>) -> PyResult<String> {
        py.detach(|| self.files.decoder.decode(&tokens)).or_raise(py)
    }

    /// The prompt that the model's chat template makes of messages, as token ids, or as text if `tokenize` is false.
    ///
    /// `messages` is a list of dicts in the form of OpenAI's chat completions: `role`, `content` (a text or a list of parts),
    /// `tool_calls`, and further fields. `tools` is a list of functions that the model may call, as JSON schemas. With
    /// `add_generation_prompt` the prompt ends with the beginning of the assistant's message. `variables` are further variables of
    /// the template, such as `enable_thinking`. The text is the one that `transformers` makes.
    ///
    /// Raises `ModelError` if there is no template, or if it refuses the messages.
    #[pyo3(signature = (messages, tools=None, *, add_generation_prompt=true, tokenize=true, **variables))]
    fn apply_chat_template<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyAny>,
        tools: Option<&Bound<'py, PyAny>>,
        add_generation_prompt: bool,
        tokenize: bool,
        variables: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (messages, options) = conversation(messages, tools, add_generation_prompt, variables)?;
        if tokenize {
            let ids = py.detach(|| self.files.decoder.chat_prompt(&messages, &options)).or_raise(py)?;
            return ids.into_pyobject(py);
        }
        let text = py.detach(|| self.files.decoder.chat_text(&messages, &options)).or_raise(py)?;
        Ok(text.into_pyobject(py)?.into_any())
    }
}
