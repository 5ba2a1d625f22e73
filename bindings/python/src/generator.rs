//! Language models: their files, generation, chat.

use crate::device::{Adapter, adapter, choice, keep_pipelines, not_forked, open, save_pipelines};
use crate::error::{Raise, raised};
use crate::input;
use crate::program::{weight_bits, word};
use crate::progress::Progress;
use crate::session::watched;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wgfc::compiler::{Precision, WeightBits};
use wgfc::generate::{ChatOptions, Choices, Continuation, Json, Message, TextStream};
use wgfc::runtime::Gpu;
use wgfc::runtime::session::DeviceMemory;
use wgfc::{Cache, Error, GeneratorOptions, Request, speeds};

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
    decoder: Arc<wgfc::Decoder>,
}

/// The JSON text of a Python value.
fn json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let options = PyDict::new(value.py());
    options.set_item("allow_nan", false)?;
    value.py().import("json")?.call_method("dumps", (value,), Some(&options))?.extract()
}

/// Reads what a Python value is as JSON; `what` names it in the error.
fn read<T: serde::de::DeserializeOwned>(what: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    serde_json::from_str(&json(value)?).map_err(|e| PyValueError::new_err(format!("{what}: {e}")))
}

/// The messages, tools and variables of a conversation.
fn conversation(
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
        let decoder = py.detach(|| wgfc::Decoder::open_within(&path, memory_limit)).or_raise(py)?;
        Ok(Decoder { decoder: Arc::new(decoder) })
    }

    /// Whether there is a tokenizer. Without one, prompts are token ids.
    #[getter]
    fn has_tokenizer(&self) -> bool {
        self.decoder.has_tokenizer()
    }
    /// Whether there is a chat template.
    #[getter]
    fn has_chat_template(&self) -> bool {
        self.decoder.has_chat_template()
    }
    /// The ids of tokens that end an answer.
    #[getter]
    fn stop_tokens(&self) -> Vec<i64> {
        self.decoder.stop_tokens()
    }

    /// The token ids of a text, including the special ones that the tokenizer adds.
    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<i64>> {
        py.detach(|| self.decoder.encode(text)).or_raise(py)
    }
    /// The text of token ids, without special ones.
    fn decode(&self, py: Python<'_>, tokens: Vec<i64>) -> PyResult<String> {
        py.detach(|| self.decoder.decode(&tokens)).or_raise(py)
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
            let ids = py.detach(|| self.decoder.chat_prompt(&messages, &options)).or_raise(py)?;
            return ids.into_pyobject(py);
        }
        let text = py.detach(|| self.decoder.chat_text(&messages, &options)).or_raise(py)?;
        Ok(text.into_pyobject(py)?.into_any())
    }
}

/// A language model on a device, with the cache of one sequence.
///
/// `Generator(model, adapter=None, *, capacity=2048, prompt_chunk=512, precision="f32", weights=None, keep_f32=(), context=None,
/// cache=True, progress=None)`
///
/// `model` is a `Decoder`, or the path of one. `adapter` is as for `Session`. The cache may grow to `capacity` positions; a run
/// takes at most `prompt_chunk` tokens of a prompt. `precision`, `weights` and `keep_f32` are as for `wgfc.compile`.
/// `context` is a dict with the values of further inputs of the model, which are the same in all runs, such as what an encoder made. Compiled
/// kernels are kept in the user's cache folder unless `cache` is false, and `progress` is called with `("kernels", compiled, all)`.
///
/// Tokens stay in the cache, so that the next prompt continues the sequence; `len` is their number. Threads may share a generator;
/// runs are executed one after another.
#[pyclass(frozen, module = "wgfc")]
pub struct Generator {
    decoder: Arc<wgfc::Decoder>,
    generator: Mutex<wgfc::Generator>,
    index: usize,
    gpu: Gpu,
}

/// Issues a `wgfc.CompileWarning` for each of the compiler's warnings.
fn warn(py: Python<'_>, warnings: &[String]) -> PyResult<()> {
    let category = py.import("wgfc._compile")?.getattr("CompileWarning")?;
    for text in warnings.iter().filter_map(|w| CString::new(w.as_str()).ok()) {
        PyErr::warn(py, &category, &text, 1)?;
    }
    Ok(())
}

/// How tokens are chosen, and when they end.
struct Wanted {
    max_new_tokens: Option<usize>,
    choices: Choices,
    stop: Option<Vec<i64>>,
}

/// The place of a prompt: behind the tokens in the cache, or instead of them.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// It follows them.
    Behind,
    /// It is the whole sequence.
    Instead,
}

impl Generator {
    fn lock(&self) -> MutexGuard<'_, wgfc::Generator> {
        self.generator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the generator, detached from the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut wgfc::Generator) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            not_forked()?;
            f(&mut self.lock())
        })
        .or_raise(py)
    }

    /// The tokens of a prompt, which may be a text.
    fn ids(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        if let Ok(text) = prompt.extract::<String>() {
            return py.detach(|| self.decoder.encode(&text)).or_raise(py);
        }
        prompt.extract().map_err(|_| PyTypeError::new_err("prompt: give a text, or a list of token ids"))
    }

    /// Begins the tokens behind a prompt.
    fn begin(slf: &Bound<'_, Self>, prompt: &[i64], place: Place, wanted: Wanted) -> PyResult<Tokens> {
        let this = slf.get();
        let request = Request {
            max_new_tokens: wanted.max_new_tokens.unwrap_or(0),
            sampling: this.decoder.defaults().sampling(&wanted.choices),
            stop: wanted.stop.unwrap_or_else(|| this.decoder.stop_tokens()),
            ..Request::default()
        };
        let stop = request.stop.clone();
        let continuation = this.with(slf.py(), move |g| {
            let before = if place == Place::Instead { 0 } else { g.len() };
            let rest = if place == Place::Instead { g.keep_common(prompt)? } else { prompt };
            let mut request = request;
            if wanted.max_new_tokens.is_none() {
                // A prompt that leaves no room is refused for the one token.
                request.max_new_tokens = g.capacity().saturating_sub(before + prompt.len()).max(1);
            }
            g.begin(rest, &request)
        })?;
        Ok(Tokens { generator: slf.clone().unbind(), stop, continuation: Mutex::new(continuation) })
    }
}

/// The arguments by which tokens are chosen.
fn wanted(
    max_new_tokens: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    seed: u64,
    stop: Option<Vec<i64>>,
) -> Wanted {
    let choices = Choices { temperature, top_k, top_p, seed, ..Choices::default() };
    Wanted { max_new_tokens, choices, stop }
}

#[pymethods]
impl Generator {
    #[new]
    #[pyo3(signature = (model, adapter=None, *, capacity=2048, prompt_chunk=512, precision="f32", weights=None, keep_f32=vec![], context=None, cache=true, progress=None))]
    #[pyo3(
        text_signature = "(model, adapter=None, *, capacity=2048, prompt_chunk=512, precision=\"f32\", weights=None, keep_f32=(), context=None, cache=True, progress=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "Python gives each by its name")]
    fn create(
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        adapter: Option<&Bound<'_, PyAny>>,
        capacity: usize,
        prompt_chunk: usize,
        precision: &str,
        weights: Option<&str>,
        keep_f32: Vec<String>,
        context: Option<BTreeMap<String, Bound<'_, PyAny>>>,
        cache: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Generator> {
        let choice = choice(adapter)?;
        let decoder = match model.cast::<Decoder>() {
            Ok(d) => d.get().decoder.clone(),
            Err(_) => Decoder::create(py, model.extract()?, None)?.decoder,
        };
        let precision = word("precision", precision, "\"f32\", \"f16\"")?;
        let weights = weight_bits(weights)?;
        if !keep_f32.is_empty() && precision == Precision::F32 && weights == WeightBits::Own {
            return Err(PyValueError::new_err(
                "keep_f32 has no effect where everything is f32: give it with precision=\"f16\" or weights",
            ));
        }
        let context = context.into_iter().flatten();
        let context =
            context.map(|(n, v)| input::tensor(&input::called("context", &n), &v, None).map(|t| (n, t)));
        let context = context.collect::<PyResult<_>>()?;
        let mut progress = Progress::new(progress);
        let made = py.detach(|| -> Result<_, Error> {
            let (index, gpu) = open(&choice)?;
            let user = Cache::of_user();
            if cache {
                // Errors are ignored: without cached pipelines, kernels are compiled again.
                let _ = keep_pipelines(&gpu);
            }
            let (_, speeds) =
                speeds::known(user.as_ref(), gpu.summary()).unwrap_or_else(|_| speeds::named(gpu.summary()));
            let options = GeneratorOptions {
                capacity,
                prompt_chunk,
                precision,
                weights,
                keep_f32,
                context,
                speeds,
                tuning: user.and_then(|c| c.tuning(gpu.summary()).ok()).unwrap_or_default(),
                ..GeneratorOptions::default()
            };
            let generator =
                watched(&gpu, &mut progress, || wgfc::Generator::on_device(gpu.clone(), &decoder, &options))?;
            if cache {
                let _ = save_pipelines(&gpu);
            }
            Ok((generator, index, gpu))
        });
        let (generator, index, gpu) = made.or_raise(py)?;
        progress.end()?;
        warn(py, generator.warnings())?;
        Ok(Generator { decoder, generator: Mutex::new(generator), index, gpu })
    }

    /// The tokens that follow `prompt`, a text or token ids, which is appended to the sequence.
    ///
    /// Returns an iterator, `Tokens`. Nothing runs before the first token is asked for; the next one is computed while the program
    /// handles the current one. At most `max_new_tokens` follow, by default as many as the cache has room for. They end behind a
    /// token of `stop`, by default those of the model (`Decoder.stop_tokens`), which is the last one returned.
    ///
    /// Without `temperature`, `top_k` and `top_p` tokens are drawn as the model's publisher recommends, otherwise greedily;
    /// `temperature=0` is greedy. The same `seed` draws the same tokens.
    ///
    /// Raises `ModelError` for a prompt without tokens, tokens that the model does not have, more tokens than the cache has room
    /// for, and limits that are not possible.
    #[pyo3(signature = (prompt, *, max_new_tokens=None, temperature=None, top_k=None, top_p=None, seed=0, stop=None))]
    #[expect(clippy::too_many_arguments, reason = "Python gives each by its name")]
    fn generate(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        max_new_tokens: Option<usize>,
        temperature: Option<f32>,
        top_k: Option<usize>,
        top_p: Option<f32>,
        seed: u64,
        stop: Option<Vec<i64>>,
    ) -> PyResult<Tokens> {
        let ids = slf.get().ids(slf.py(), prompt)?;
        let wanted = wanted(max_new_tokens, temperature, top_k, top_p, seed, stop);
        Generator::begin(slf, &ids, Place::Behind, wanted)
    }

    /// `generate` for a prompt that is the whole sequence: it takes the place of the tokens so far. The longest beginning that both
    /// have in common stays in the cache, and only the tokens behind it are processed.
    #[pyo3(signature = (prompt, *, max_new_tokens=None, temperature=None, top_k=None, top_p=None, seed=0, stop=None))]
    #[expect(clippy::too_many_arguments, reason = "Python gives each by its name")]
    fn complete(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        max_new_tokens: Option<usize>,
        temperature: Option<f32>,
        top_k: Option<usize>,
        top_p: Option<f32>,
        seed: u64,
        stop: Option<Vec<i64>>,
    ) -> PyResult<Tokens> {
        let ids = slf.get().ids(slf.py(), prompt)?;
        let wanted = wanted(max_new_tokens, temperature, top_k, top_p, seed, stop);
        Generator::begin(slf, &ids, Place::Instead, wanted)
    }

    /// The tokens of the assistant's next message: `complete` with the prompt of `Decoder.apply_chat_template`.
    ///
    /// Only messages that are new are processed; the others are in the cache. The answer ends at the model's stop
    /// tokens or a token of `stop`. Other arguments are as for `generate` and `Decoder.apply_chat_template`.
    #[pyo3(signature = (messages, tools=None, *, max_new_tokens=None, temperature=None, top_k=None, top_p=None, seed=0, stop=None, **variables))]
    #[expect(clippy::too_many_arguments, reason = "Python gives each by its name")]
    fn chat(
        slf: &Bound<'_, Self>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        max_new_tokens: Option<usize>,
        temperature: Option<f32>,
        top_k: Option<usize>,
        top_p: Option<f32>,
        seed: u64,
        stop: Option<Vec<i64>>,
        variables: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Tokens> {
        let (messages, options) = conversation(messages, tools, true, variables)?;
        let decoder = &slf.get().decoder;
        let ids = slf.py().detach(|| decoder.chat_prompt(&messages, &options)).or_raise(slf.py())?;
        let stop = stop.into_iter().flatten().chain(decoder.stop_tokens()).collect();
        let wanted = wanted(max_new_tokens, temperature, top_k, top_p, seed, Some(stop));
        Generator::begin(slf, &ids, Place::Instead, wanted)
    }

    /// Removes all tokens.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, wgfc::Generator::reset)
    }
    /// Removes the tokens behind the first `tokens`.
    fn rewind(&self, py: Python<'_>, tokens: usize) -> PyResult<()> {
        self.with(py, |g| g.rewind(tokens))
    }

    /// The files of the model.
    #[getter]
    fn decoder(&self) -> Decoder {
        Decoder { decoder: self.decoder.clone() }
    }
    /// The most positions that the cache may grow to.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().capacity())
    }
    /// The number of tokens in the vocabulary. Token ids are less than it.
    #[getter]
    fn vocabulary(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().vocabulary())
    }
    /// The adapter that it runs on.
    #[getter]
    fn adapter(&self) -> Adapter {
        adapter(self.index, &self.gpu)
    }
    /// The bytes of memory that it holds on the device: `"weights"`, `"states"` (the cache), `"activations"` and `"total"`.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let memory: DeviceMemory = py.detach(|| self.lock().device_memory());
        let d = PyDict::new(py);
        d.set_item("weights", memory.weights)?;
        d.set_item("states", memory.states)?;
        d.set_item("activations", memory.activations)?;
        d.set_item("total", memory.total())?;
        Ok(d)
    }
    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().len())
    }
}

/// An iterator of the ids of generated tokens. `Generator.generate`, `complete` and `chat` make it.
///
/// Another prompt for the same generator, `reset` and `rewind` end it: the next token then raises `ModelError`.
#[pyclass(frozen, module = "wgfc")]
pub struct Tokens {
    generator: Py<Generator>,
    stop: Vec<i64>,
    continuation: Mutex<Continuation>,
}

impl Tokens {
    fn advance(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        let generator = self.generator.get();
        let token = py.detach(|| {
            not_forked()?;
            let mut continuation = self.continuation.lock().unwrap_or_else(PoisonError::into_inner);
            continuation.next(&mut generator.lock()).transpose()
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

    /// An iterator of the text that each of the remaining tokens adds, which `print` can show as it arrives. It may be empty: a
    /// character can take several tokens, and a stop token has no text.
    fn pieces(slf: &Bound<'_, Self>) -> PyResult<Pieces> {
        let stream = slf.get().generator.get().decoder.stream().or_raise(slf.py())?;
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
        self.generator.get().decoder.decode(&all).or_raise(py)
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
