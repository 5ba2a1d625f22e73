//! Language models on devices: generation, chat.

use crate::decoder::{Decoder, Files, conversation};
use crate::device::{Adapter, adapter, choice, keep_pipelines, not_forked, open, save_pipelines};
use crate::error::Raise;
use crate::images::{Encoder, Picture};
use crate::input;
use crate::program::{activation_bits, cache_type as type_of_cache, weight_bits, word};
use crate::progress::Progress;
use crate::request::Asked;
use crate::session::watched;
use crate::tokens::Tokens;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wgfc::compiler::{Precision, WeightBits};
use wgfc::generate::ImageFeatures;
use wgfc::runtime::Gpu;
use wgfc::runtime::session::DeviceMemory;
use wgfc::{Cache, Error, GeneratorOptions, speeds};

/// A language model on a device, with the cache of one sequence.
///
/// `Generator(model, adapter=None, *, capacity=2048, prompt_chunk=None, precision="f32", weights=None, activations=None, cache_type=None, keep_f32=(), context=None,
/// cache=True, progress=None)`
///
/// `model` is a `Decoder`, or the path of one. `adapter` is as for `Session`. The cache may grow to `capacity` positions; a run
/// takes at most `prompt_chunk` tokens of a prompt, without a number 512, or up to 4,096 where the device's memory and speed allow it.
/// `precision`, `weights`, `activations`, `cache_type` and `keep_f32` are as for `wgfc.compile`.
/// `context` is a dict with the values of further inputs of the model, which are the same in all runs, such as what an encoder made. Compiled
/// kernels are kept in the user's cache folder unless `cache` is false, and `progress` is called with `("kernels", compiled, all)`.
///
/// Tokens stay in the cache, so that the next prompt continues the sequence; `len` is their number. Threads may share a generator;
/// runs are executed one after another.
#[pyclass(frozen, module = "wgfc")]
pub struct Generator {
    files: Arc<Files>,
    generator: Mutex<wgfc::Generator>,
    encoder: Mutex<Encoder>,
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

/// The place of a prompt: behind the tokens in the cache, or instead of them.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// It follows them.
    Behind,
    /// It is the whole sequence.
    Instead,
}

impl Generator {
    pub fn lock(&self) -> MutexGuard<'_, wgfc::Generator> {
        self.generator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn decoder(&self) -> &wgfc::Decoder {
        &self.files.decoder
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

    /// The tokens of a prompt with pictures, which may be a text.
    fn ids(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>, images: &[ImageFeatures]) -> PyResult<Vec<i64>> {
        if let Ok(text) = prompt.extract::<String>() {
            return py.detach(|| self.decoder().encode_with_images(&text, images)).or_raise(py);
        }
        let ids: Vec<i64> = prompt
            .extract()
            .map_err(|_| PyTypeError::new_err("prompt: give a text, or a list of token ids"))?;
        py.detach(|| self.decoder().place_images(&ids, images)).or_raise(py)
    }

    /// The features of pictures.
    fn features(&self, py: Python<'_>, pictures: &[Picture]) -> PyResult<Vec<ImageFeatures>> {
        py.detach(|| {
            not_forked()?;
            let mut encoder = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
            encoder.features(&self.gpu, self.decoder(), pictures)
        })
        .or_raise(py)
    }

    /// Begins the tokens behind a prompt.
    fn begin(
        slf: &Bound<'_, Self>,
        prompt: &[i64],
        place: Place,
        asked: Asked,
        images: Vec<ImageFeatures>,
    ) -> PyResult<Tokens> {
        let (py, this) = (slf.py(), slf.get());
        let (fills, mut request) = (asked.max_new_tokens.is_none(), asked.request(py, &this.files, images)?);
        let stop = request.stop.clone();
        let continuation = this.with(py, move |g| {
            let before = if place == Place::Instead { 0 } else { g.len() };
            let rest = if place == Place::Instead { g.keep_common(prompt)? } else { prompt };
            if fills {
                // A prompt that leaves no room is refused for the one token.
                request.max_new_tokens = g.capacity().saturating_sub(before + prompt.len()).max(1);
            }
            g.begin(rest, &request)
        })?;
        Ok(Tokens::new(slf.clone().unbind(), stop, continuation))
    }
}

#[pymethods]
impl Generator {
    #[new]
    #[pyo3(signature = (model, adapter=None, *, capacity=2048, prompt_chunk=None, precision="f32", weights=None, activations=None, cache_type=None, keep_f32=vec![], context=None, cache=true, progress=None))]
    #[pyo3(
        text_signature = "(model, adapter=None, *, capacity=2048, prompt_chunk=None, precision=\"f32\", weights=None, activations=None, cache_type=None, keep_f32=(), context=None, cache=True, progress=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "Python gives each by its name")]
    fn create(
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        adapter: Option<&Bound<'_, PyAny>>,
        capacity: usize,
        prompt_chunk: Option<usize>,
        precision: &str,
        weights: Option<&str>,
        activations: Option<&str>,
        cache_type: Option<&str>,
        keep_f32: Vec<String>,
        context: Option<BTreeMap<String, Bound<'_, PyAny>>>,
        cache: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Generator> {
        let choice = choice(adapter)?;
        let files = match model.cast::<Decoder>() {
            Ok(d) => d.get().files(),
            Err(_) => Decoder::open(py, &model.extract::<PathBuf>()?, None)?.files(),
        };
        let precision = word("precision", precision, "\"f32\", \"f16\"")?;
        let (weights, activations) = (weight_bits(weights)?, activation_bits(activations)?);
        let of_cache = type_of_cache(cache_type)?;
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
                activations,
                cache: of_cache,
                keep_f32,
                context,
                speeds,
                tuning: user.and_then(|c| c.tuning(gpu.summary()).ok()).unwrap_or_default(),
                ..GeneratorOptions::default()
            };
            let generator = watched(&gpu, &mut progress, || {
                wgfc::Generator::on_device(gpu.clone(), &files.decoder, &options)
            })?;
            if cache {
                let _ = save_pipelines(&gpu);
            }
            Ok((generator, options, index, gpu))
        });
        let (generator, options, index, gpu) = made.or_raise(py)?;
        progress.end()?;
        warn(py, generator.warnings())?;
        let (generator, encoder) = (Mutex::new(generator), Mutex::new(Encoder::new(options)));
        Ok(Generator { files, generator, encoder, index, gpu })
    }

    /// The tokens that follow `prompt`, a text or token ids, which is appended to the sequence.
    ///
    /// Returns an iterator, `Tokens`. Nothing runs before the first token is asked for; the next one is computed while the program
    /// handles the current one. At most `max_new_tokens` follow, by default as many as the cache has room for. They end behind a
    /// token of `stop`, by default those of the model (`Decoder.stop_tokens`), which is the last one returned.
    ///
    /// Without `temperature`, `top_k`, `top_p` and `min_p` tokens are drawn as the model's publisher recommends, otherwise greedily;
    /// `temperature=0` is greedy. The same `seed` draws the same tokens. `top_k` keeps that many of the most likely tokens, `top_p`
    /// the most likely ones up to that share of the probability, and `min_p` those of at least that share of the largest
    /// probability.
    ///
    /// `repetition_penalty` divides positive logits of tokens that occur already, in the prompt too, and multiplies others;
    /// `presence_penalty` and `frequency_penalty` are subtracted from the logits of tokens that have been generated, once or as often
    /// as they have been. `logit_bias` is a dict of numbers that are added to the logits of token ids.
    ///
    /// With `logprobs=n`, at most 20, `Tokens.logprobs` has the log-probability of each token and of the `n` most likely ones.
    ///
    /// One of `json_schema` (a dict, or its text), `regex` and `grammar` (llguidance's dialect of Lark) holds the output to a form. It then
    /// ends when no token can follow, or at a token of `stop` where the form allows an end.
    ///
    /// `images` is a list of pictures for a vision-language model: paths or the bytes of PNG or JPEG files, or the pixel values that a
    /// processor made, floats `[3, height, width]`. `<image>` stands for each in a text, or they come first; in token ids the model's token
    /// for a part of a picture stands for each row of features.
    ///
    /// Raises `ModelError` for a prompt without tokens, tokens that the model does not have, more tokens than the cache has room
    /// for, limits that are not possible, and forms that are not supported.
    #[pyo3(signature = (prompt, **options))]
    #[pyo3(
        text_signature = "($self, prompt, *, max_new_tokens=None, temperature=None, top_k=None, top_p=None, min_p=None, repetition_penalty=None, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, seed=0, stop=None, logprobs=None, json_schema=None, regex=None, grammar=None, images=())"
    )]
    fn generate(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Tokens> {
        let asked = Asked::read_all(slf.py(), "generate", options)?;
        let images = slf.get().features(slf.py(), &asked.images)?;
        let ids = slf.get().ids(slf.py(), prompt, &images)?;
        Generator::begin(slf, &ids, Place::Behind, asked, images)
    }

    /// `generate` for a prompt that is the whole sequence: it takes the place of the tokens so far. The longest beginning that both
    /// have in common stays in the cache, and only the tokens behind it are processed.
    #[pyo3(signature = (prompt, **options))]
    #[pyo3(
        text_signature = "($self, prompt, *, max_new_tokens=None, temperature=None, top_k=None, top_p=None, min_p=None, repetition_penalty=None, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, seed=0, stop=None, logprobs=None, json_schema=None, regex=None, grammar=None, images=())"
    )]
    fn complete(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Tokens> {
        let asked = Asked::read_all(slf.py(), "complete", options)?;
        let images = slf.get().features(slf.py(), &asked.images)?;
        let ids = slf.get().ids(slf.py(), prompt, &images)?;
        Generator::begin(slf, &ids, Place::Instead, asked, images)
    }

    /// The tokens of the assistant's next message: `complete` with the prompt of `Decoder.apply_chat_template`.
    ///
    /// Only messages that are new are processed; the others are in the cache. The answer ends at the model's stop
    /// tokens or a token of `stop`. A part `{"type": "image"}` of a message stands for each picture of `images`. Other arguments are as for `generate` and `Decoder.apply_chat_template`.
    #[pyo3(signature = (messages, tools=None, **options))]
    #[pyo3(
        text_signature = "($self, messages, tools=None, *, max_new_tokens=None, temperature=None, top_k=None, top_p=None, min_p=None, repetition_penalty=None, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, seed=0, stop=None, logprobs=None, json_schema=None, regex=None, grammar=None, images=(), **variables)"
    )]
    fn chat(
        slf: &Bound<'_, Self>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Tokens> {
        let (mut asked, variables) = Asked::read(slf.py(), options)?;
        let (messages, options) = conversation(messages, tools, true, Some(&variables))?;
        let decoder = slf.get().decoder();
        let images = slf.get().features(slf.py(), &asked.images)?;
        let ids = slf.py().detach(|| decoder.chat_prompt_with_images(&messages, &options, &images));
        let ids = ids.or_raise(slf.py())?;
        let stop = asked.stop.into_iter().flatten().chain(decoder.stop_tokens()).collect();
        asked.stop = Some(stop);
        Generator::begin(slf, &ids, Place::Instead, asked, images)
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
    #[pyo3(name = "decoder")]
    fn files(&self) -> Decoder {
        Decoder::of(self.files.clone())
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
