//! The files of a decoder: its model, its tokenizer, and what its publisher recommends.

#[cfg(feature = "tokenizers")]
mod bounds;
mod chat;
#[cfg(feature = "tokenizers")]
mod gguf;
#[cfg_attr(not(feature = "tokenizers"), path = "text/without.rs")]
mod guarded;
#[cfg(feature = "constraints")]
mod pieces;

use super::chat::{ChatOptions, ChatTemplate, Message};
use super::{Pooling, Sampling};
use crate::artefact::{PLAN, ReadOptions, is_program};
use crate::{Bundle, Error, ModelFile};
use chat::Chat;
use guarded::{Guarded, Stream};
#[cfg(feature = "constraints")]
pub(super) use pieces::SPECIAL;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wgfc_compiler::budget::Budget;
#[cfg(feature = "tokenizers")]
use wgfc_compiler::import::Format;

/// A decoder's files.
///
/// ```no_run
/// use wgfc::{Decoder, Generator, GeneratorOptions, Request};
/// # fn main() -> Result<(), wgfc::Error> {
/// // A folder with model.onnx, tokenizer.json and generation_config.json.
/// let decoder = Decoder::open("qwen".as_ref())?;
/// let mut generator = Generator::new(&decoder, &GeneratorOptions::default())?;
/// let stop = decoder.defaults().stop.clone();
/// let request = Request { max_new_tokens: 200, stop, ..Request::default() };
/// let mut text = decoder.stream()?;
/// for token in generator.generate(&decoder.encode("Once upon a time")?, &request)? {
///     print!("{}", text.push(token?)?);
/// }
/// # Ok(()) }
/// ```
pub struct Decoder {
    model: ModelFile,
    /// The compiled plans, if a compiled folder or file was opened.
    compiled: Option<Box<Bundle>>,
    /// A tokenizer that cannot be used keeps its error until text is needed.
    tokenizer: Option<Result<Arc<Guarded>, Error>>,
    defaults: Defaults,
    chat: Chat,
    pooling: Option<Pooling>,
    path: PathBuf,
    /// The folder with the files that belong to the model.
    folder: Option<PathBuf>,
    memory_limit: Option<u64>,
}

/// Sampling parameters that `generation_config.json` recommends.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
/// // A model's file alone has no recommendations.
/// assert_eq!(wgfc::Decoder::open(&path)?.defaults(), &wgfc::generate::Defaults::default());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Tokens that end a text.
    pub stop: Vec<i64>,
    /// Whether tokens are to be sampled instead of chosen greedily.
    pub sample: bool,
    /// See [`Sampling`](super::Sampling).
    pub temperature: Option<f32>,
    /// See [`Sampling`](super::Sampling); none when 0.
    pub top_k: Option<usize>,
    /// See [`Sampling`](super::Sampling).
    pub top_p: Option<f32>,
    /// See [`Sampling`](super::Sampling); none when 0.
    pub min_p: Option<f32>,
    /// See [`Sampling`](super::Sampling); none when 1.
    pub repetition_penalty: Option<f32>,
}

/// How a user wants tokens to be chosen; see [`Defaults::sampling`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// See [`Sampling`]; 0 is greedy.
    pub temperature: Option<f32>,
    /// See [`Sampling`].
    pub top_k: Option<usize>,
    /// See [`Sampling`].
    pub top_p: Option<f32>,
    /// See [`Sampling`].
    pub min_p: Option<f32>,
    /// See [`Sampling`].
    pub repetition_penalty: Option<f32>,
    /// See [`Sampling`].
    pub presence_penalty: f32,
    /// See [`Sampling`].
    pub frequency_penalty: f32,
    /// See [`Sampling`].
    pub logit_bias: Vec<(i64, f32)>,
    /// See [`Sampling`].
    pub seed: u64,
}

impl Decoder {
    /// Opens a folder with `model.onnx` (or a single `.onnx` file of another name) and, if they exist, `tokenizer.json`,
    /// `generation_config.json`, `tokenizer_config.json` and `chat_template.jinja`. A model's file alone also works; it takes
    /// token ids only. Instead of a model, `path` may be what [`compile_decoder`](super::compile_decoder) made of it: a
    /// folder, which may hold these files too, or one file, beside which they may lie.
    ///
    /// # Errors
    /// No model or several in the folder; files that cannot be read or whose content is invalid.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
    /// // A folder with a tokenizer, or a model alone, which takes token ids.
    /// let decoder = wgfc::Decoder::open(&path)?;
    /// assert!(!decoder.has_tokenizer() && decoder.encode("text").is_err());
    /// # Ok(()) }
    /// ```
    pub fn open(path: &Path) -> Result<Decoder, Error> {
        Decoder::open_within(path, None)
    }

    /// [`Decoder::open`] with a limit on the bytes of memory that reading its files, and then its model, may take beyond the
    /// files themselves. `None` allows an amount that grows with their size.
    ///
    /// # Errors
    /// As for [`Decoder::open`].
    pub fn open_within(path: &Path, memory_limit: Option<u64>) -> Result<Decoder, Error> {
        // A folder without a plan is that of a model.
        let is_plan = is_program(path) && (!path.is_dir() || path.join(PLAN).is_file());
        let (model, compiled, folder) = match is_plan {
            true => {
                let beside = if path.is_dir() { Some(path) } else { path.parent() };
                let read = ReadOptions { memory_limit, ..ReadOptions::default() };
                let compiled = crate::artefact::load_bundle_with(path, &read)?;
                let none = ModelFile::of_bytes(Arc::new(vec![]));
                (none, Some(Box::new(compiled)), beside.map(Path::to_owned))
            }
            false => {
                let model = ModelFile::open(path)?;
                let folder = companions(path, model.path());
                (model, None, folder)
            }
        };
        let files = Files { folder, budget: Budget::of_data(memory_limit) };
        let (tokenizer, defaults, chat) = (files.tokenizer()?, files.defaults()?, files.chat()?);
        let pooling = files.pooling()?;
        let decoder = Decoder {
            pooling,
            model,
            compiled,
            tokenizer: tokenizer.map(|t| Ok(Arc::new(t))),
            defaults: defaults.unwrap_or_default(),
            chat,
            path: path.to_owned(),
            folder: files.folder.clone(),
            memory_limit,
        };
        #[cfg(feature = "tokenizers")]
        if decoder.model.format() == Format::Gguf {
            return decoder.completed_from_gguf(&files);
        }
        Ok(decoder)
    }

    /// Takes from the metadata of a GGUF file what no file beside it says. A tokenizer that cannot be used keeps its error until text
    /// is needed.
    #[cfg(feature = "tokenizers")]
    fn completed_from_gguf(mut self, files: &Files) -> Result<Decoder, Error> {
        let header = wgfc_compiler::import::gguf::open(self.model.bytes()).map_err(Error::from)?;
        if self.tokenizer.is_none() {
            let path = &self.path;
            let wrong = |e: String| {
                Error::file_help(
                    path,
                    e,
                    "give token ids with --tokens, or put a tokenizer.json beside the file",
                )
            };
            self.tokenizer = match gguf::tokenizer(&header) {
                Ok(None) => None,
                Ok(Some(json)) => {
                    files.within(path, &json, 2)?;
                    Some(
                        Guarded::read(json)
                            .map(Arc::new)
                            .map_err(|e| wrong(format!("has a tokenizer that cannot be used: {e}"))),
                    )
                }
                Err(e) => Some(Err(wrong(format!("has a tokenizer that cannot be used: {e}")))),
            };
        }
        if self.defaults == Defaults::default() {
            self.defaults = gguf::defaults(&header);
        }
        self.pooling = self.pooling.or_else(|| gguf::pooling(&header));
        if cfg!(feature = "chat") && !self.chat.is_there() {
            self.chat = Chat::of_gguf(&header, &self.path);
        }
        Ok(self)
    }

    /// Generates all external weights at random; see [`ModelFile::with_random_weights`].
    pub fn with_random_weights(self) -> Result<Decoder, Error> {
        self.source()?;
        Ok(Decoder { model: self.model.with_random_weights()?, ..self })
    }

    /// The model's file; empty if the decoder was opened in compiled form.
    pub fn model(&self) -> &ModelFile {
        &self.model
    }
    /// How the model's publisher makes embeddings of hidden states, if the file [`POOLING`] or the metadata of a GGUF file says it.
    pub fn pooling(&self) -> Option<Pooling> {
        self.pooling
    }
    /// The compiled plans, if the decoder was opened in compiled form.
    pub fn compiled(&self) -> Option<&Bundle> {
        self.compiled.as_deref()
    }
    /// The model's file, for compilation.
    ///
    /// # Errors
    /// The decoder was opened in compiled form.
    pub fn source(&self) -> Result<&ModelFile, Error> {
        match self.compiled {
            None => Ok(&self.model),
            Some(_) => Err(Error::file_help(
                &self.path,
                "is a compiled program; a model is needed here",
                "give the model, or the folder that holds model.onnx",
            )),
        }
    }
    /// The bytes of memory that reading the model may take beyond its files.
    pub(super) fn memory_limit(&self) -> Option<u64> {
        self.memory_limit
    }
    /// The path that was opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
    /// The publisher's recommendations.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }
    /// Whether there is a tokenizer.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// The value of a JSON file beside the model, and its path, if it is there.
    pub(super) fn json_beside(&self, name: &str) -> Result<Option<(PathBuf, serde_json::Value)>, Error> {
        let files = Files { folder: self.folder.clone(), budget: Budget::of_data(self.memory_limit) };
        let Some((path, bytes)) = files.read(name, 1)? else { return Ok(None) };
        let read = serde_json::from_slice(&bytes).map_err(|e| {
            let message = format!("is not JSON: {}", wgfc_compiler::json_in_words(&e));
            Error::file_help(&path, message, "fetch the file again")
        });
        read.map(|value| Some((path, value)))
    }

    pub(super) fn tokenizer(&self) -> Result<&Arc<Guarded>, Error> {
        let given = self.tokenizer.as_ref().map(|t| t.as_ref().map_err(Clone::clone));
        given.unwrap_or_else(|| Err(self.no_tokenizer()))
    }

    fn no_tokenizer(&self) -> Error {
        if !cfg!(feature = "tokenizers") {
            let message = "text needs a tokenizer, and wgfc was built without the feature `tokenizers`";
            return Error::usage(message, "give token ids, or build wgfc with the feature");
        }
        Error::file_help(
            &self.path,
            if self.path.is_dir() {
                "has no tokenizer.json, which text needs"
            } else {
                "comes without a tokenizer, which text needs"
            },
            "give token ids (--tokens 1,2,3), or a folder with model.onnx and tokenizer.json",
        )
    }

    /// The tokens of a text, including the special ones that the tokenizer adds.
    ///
    /// # Errors
    /// There is no tokenizer, or it refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, Error> {
        self.tokens_of(text, true)
    }

    /// Tokens that end an answer: those that the publisher recommends, and `eos_token` of `tokenizer_config.json`.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
    /// // A model's file alone names none.
    /// assert!(wgfc::Decoder::open(&path)?.stop_tokens().is_empty());
    /// # Ok(()) }
    /// ```
    pub fn stop_tokens(&self) -> Vec<i64> {
        let mut stop = self.defaults.stop.clone();
        let end = self.chat.special("eos_token").and_then(|t| self.tokenizer.as_ref()?.as_ref().ok()?.id(t));
        stop.extend(end.map(i64::from).filter(|t| !self.defaults.stop.contains(t)));
        stop
    }

    /// Whether there is a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.chat.is_there()
    }

    /// The decoder with another chat template, such as one that the model's file has.
    pub fn with_chat_template(mut self, template: ChatTemplate) -> Decoder {
        self.chat.set(template);
        self
    }

    /// The prompt for messages as text, by the model's chat template: `tool_use` if it has one of this name and there are
    /// tools, otherwise `default`.
    ///
    /// # Errors
    /// There is no template; otherwise as for [`ChatTemplate::render`].
    pub fn chat_text(&self, messages: &[Message], options: &ChatOptions) -> Result<String, Error> {
        if !cfg!(feature = "chat") {
            ChatTemplate::parse("", [("", ""); 0])?;
        }
        self.chat.template(options, &self.path)?.render(messages, options)
    }

    /// The tokens of [`Decoder::chat_text`], in which no pictures stand. The template writes all special tokens, so the tokenizer adds none.
    ///
    /// # Errors
    /// There is no template or no tokenizer; otherwise as for [`ChatTemplate::render`].
    ///
    /// ```no_run
    /// use wgfc::generate::{ChatOptions, Decoder, Message};
    /// # fn main() -> Result<(), wgfc::Error> {
    /// let decoder = Decoder::open("qwen".as_ref())?;
    /// let messages = [Message::system("Be brief."), Message::user("Why is the sky blue?")];
    /// let prompt: Vec<i64> = decoder.chat_prompt(&messages, &ChatOptions::default())?;
    /// # Ok(()) }
    /// ```
    pub fn chat_prompt(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<i64>, Error> {
        self.chat_prompt_with_images(messages, options, &[])
    }

    pub(super) fn tokens_of(&self, text: &str, special: bool) -> Result<Vec<i64>, Error> {
        let encoded = self.tokenizer()?.encode(text, special);
        let encoded = encoded.map_err(|e| {
            let help = "give another text, or token ids (--tokens 1,2,3)";
            Error::usage(format!("the tokenizer refuses the text: {e}"), help)
        })?;
        Ok(encoded.into_iter().map(i64::from).collect())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// There is no tokenizer, or it does not know a token.
    pub fn decode(&self, tokens: &[i64]) -> Result<String, Error> {
        let ids: Vec<u32> = tokens.iter().map(|t| id(*t)).collect::<Result<_, _>>()?;
        self.tokenizer()?.decode(&ids).map_err(|e| undecodable(&e))
    }

    /// The bytes of each token.
    pub(super) fn pieces(&self) -> Result<Vec<Vec<u8>>, Error> {
        let pieces = self.tokenizer()?.pieces();
        pieces.map_err(|e| {
            let help = "constraints need a byte-level or SentencePiece tokenizer";
            Error::usage(format!("the tokenizer cannot be used for constraints: {e}"), help)
        })
    }

    /// A decoder of tokens that arrive one by one.
    ///
    /// # Errors
    /// There is no tokenizer.
    pub fn stream(&self) -> Result<TextStream, Error> {
        Ok(TextStream { tokenizer: self.tokenizer()?.clone(), stream: Stream::default() })
    }
}

fn id(token: i64) -> Result<u32, Error> {
    u32::try_from(token).map_err(|_| undecodable(&format!("there is no token {token}")))
}

fn undecodable(why: &str) -> Error {
    Error::usage(
        format!("the tokenizer cannot make text of these tokens: {why}"),
        "the tokenizer may be of another model; --tokens gives and takes token ids",
    )
}

/// Text that is built from tokens as they arrive. A character may take several tokens.
///
/// ```no_run
/// # fn main() -> Result<(), wgfc::Error> {
/// # let decoder = wgfc::Decoder::open("qwen".as_ref())?;
/// let mut stream = decoder.stream()?;
/// let mut text = String::new();
/// for token in decoder.encode("naïve 🦀")? {
///     // Empty while a character is incomplete.
///     text += &stream.push(token)?;
/// }
/// # Ok(()) }
/// ```
pub struct TextStream {
    tokenizer: Arc<Guarded>,
    stream: Stream,
}

impl TextStream {
    /// The text that this token adds; empty while a character is incomplete.
    pub fn push(&mut self, token: i64) -> Result<String, Error> {
        let text = self.tokenizer.push(&mut self.stream, id(token)?);
        Ok(text.map_err(|e| undecodable(&e))?.unwrap_or_default())
    }
}

impl Defaults {
    /// How tokens are drawn where `given` says so, and otherwise as the publisher recommends; `None` for the most likely token of logits as
    /// they are: if neither wants tokens drawn, or the temperature is 0, and nothing changes logits.
    ///
    /// ```
    /// use wgfc::generate::{Choices, Defaults};
    /// let publisher = Defaults { sample: true, temperature: Some(0.7), top_p: Some(0.8), ..Defaults::default() };
    /// let drawn = publisher.sampling(&Choices { top_k: Some(40), ..Choices::default() }).unwrap();
    /// assert_eq!((drawn.temperature, drawn.top_k, drawn.top_p), (0.7, Some(40), Some(0.8)));
    /// assert_eq!(publisher.sampling(&Choices { temperature: Some(0.0), ..Choices::default() }), None);
    /// assert_eq!(Defaults::default().sampling(&Choices::default()), None);
    /// ```
    pub fn sampling(&self, given: &Choices) -> Option<Sampling> {
        let drawn = match given.temperature {
            Some(t) => t != 0.0,
            None => self.sample || given.top_k.is_some() || given.top_p.is_some() || given.min_p.is_some(),
        };
        let repetition_penalty = given.repetition_penalty.or(self.repetition_penalty).unwrap_or(1.0);
        // If the recommendation is not to sample, its sampling parameters are ignored.
        let own = if self.sample { self.clone() } else { Defaults::default() };
        let sampling = Sampling {
            temperature: given.temperature.or(own.temperature).unwrap_or(1.0),
            top_k: given.top_k.or(own.top_k),
            top_p: given.top_p.or(own.top_p),
            min_p: given.min_p.or(own.min_p),
            repetition_penalty,
            presence_penalty: given.presence_penalty,
            frequency_penalty: given.frequency_penalty,
            logit_bias: given.logit_bias.clone(),
            seed: given.seed,
        };
        if drawn { Some(sampling) } else { sampling.without_chance() }
    }

    fn parse(json: &[u8]) -> Result<Defaults, String> {
        let v: serde_json::Value = serde_json::from_slice(json).map_err(|e| format!("is not JSON: {e}"))?;
        let v = v.as_object().ok_or("is no JSON object")?;
        let wrong = |key: &str, want: &str| {
            format!("`{key}` is {}, not {want}", v.get(key).unwrap_or(&serde_json::Value::Null))
        };
        let given = |key: &str| v.get(key).filter(|x| !x.is_null());
        let number = |key: &str| {
            given(key).map(|x| x.as_f64().map(|f| f as f32).ok_or_else(|| wrong(key, "a number"))).transpose()
        };
        let stop = match given("eos_token_id") {
            None => vec![],
            Some(serde_json::Value::Array(ids)) => ids
                .iter()
                .map(serde_json::Value::as_i64)
                .collect::<Option<_>>()
                .ok_or_else(|| wrong("eos_token_id", "token ids"))?,
            Some(one) => vec![one.as_i64().ok_or_else(|| wrong("eos_token_id", "a token id"))?],
        };
        let top_k =
            given("top_k").map(|x| x.as_u64().ok_or_else(|| wrong("top_k", "a count"))).transpose()?;
        Ok(Defaults {
            stop,
            sample: given("do_sample")
                .map(|x| x.as_bool().ok_or_else(|| wrong("do_sample", "true or false")))
                .transpose()?
                .unwrap_or(false),
            temperature: number("temperature")?,
            top_k: top_k.and_then(|k| usize::try_from(k).ok()).filter(|k| *k > 0),
            top_p: number("top_p")?,
            min_p: number("min_p")?.filter(|p| *p != 0.0),
            repetition_penalty: number("repetition_penalty")?.filter(|p| *p != 1.0),
        })
    }
}

/// The name of the tokenizer's file beside a model.
pub const TOKENIZER: &str = "tokenizer.json";
/// The name of the file with the publisher's recommendations beside a model.
pub const CONFIG: &str = "generation_config.json";
/// The name of the file with the tokenizer's special tokens and the chat template beside a model.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The file in which sentence-transformers keeps how hidden states become embeddings.
pub const POOLING: &str = "1_Pooling/config.json";
/// The name of the chat template's own file beside a model.
pub const ADDED_TEMPLATE: &str = "chat_template.jinja";

/// The name of the file with the chat template that older processors of vision-language models wrote.
const PROCESSOR_TEMPLATE: &str = "chat_template.json";

const NOT_TEXT: &str = "fetch the model's tokenizer.json again, or give token ids with --tokens";
const NOT_CONFIG: &str = "correct or remove the file: its settings can also be given as options";

/// The bytes of a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => crate::files::read(path).map(Some).map_err(|m| crate::files::unreadable(path, m)),
    }
}

/// The folder with the files that belong to a model: that of the model, or the one above a folder `onnx`.
fn companions(given: &Path, model: &Path) -> Option<PathBuf> {
    if given.is_dir() {
        return Some(given.to_owned());
    }
    let folder = model.parent()?;
    let above = folder.parent().filter(|_| folder.ends_with("onnx"));
    let has = |f: &&Path| f.join(TOKENIZER).is_file() || f.join(CONFIG).is_file();
    Some([Some(folder), above].into_iter().flatten().find(has).unwrap_or(folder).to_owned())
}

/// The files beside a model.
struct Files {
    folder: Option<PathBuf>,
    budget: Budget,
}

impl Files {
    /// Takes the memory of a file that is parsed into so many copies.
    fn within(&self, file: &Path, bytes: &[u8], copies: u32) -> Result<(), Error> {
        self.budget.add_file(bytes.len() as u64);
        let taken: Result<(), _> = (0..copies).try_for_each(|_| self.budget.take_json(bytes));
        taken.map_err(|d| Error::File { path: file.to_owned(), problems: vec![d.message], help: d.help })
    }

    /// A file by its name, with its path.
    fn read(&self, name: &str, copies: u32) -> Result<Option<(PathBuf, Vec<u8>)>, Error> {
        let Some(beside) = self.folder.as_ref().map(|f| f.join(name)) else { return Ok(None) };
        let Some(bytes) = read(&beside)? else { return Ok(None) };
        self.within(&beside, &bytes, copies)?;
        Ok(Some((beside, bytes)))
    }

    fn tokenizer(&self) -> Result<Option<Guarded>, Error> {
        // Without the feature `tokenizers` the decoder still takes token ids.
        if !cfg!(feature = "tokenizers") {
            return Ok(None);
        }
        // The library keeps its tables in addition to the text that it reads.
        let Some((path, bytes)) = self.read(TOKENIZER, 2)? else { return Ok(None) };
        let read = Guarded::read(bytes);
        let wrong =
            |e| Error::file_help(&path, format!("is not a tokenizer that can be used: {e}"), NOT_TEXT);
        read.map(Some).map_err(wrong)
    }

    fn defaults(&self) -> Result<Option<Defaults>, Error> {
        let Some((path, bytes)) = self.read(CONFIG, 1)? else { return Ok(None) };
        Defaults::parse(&bytes).map(Some).map_err(|e| Error::file_help(&path, e, NOT_CONFIG))
    }

    fn pooling(&self) -> Result<Option<Pooling>, Error> {
        let Some((path, bytes)) = self.read(POOLING, 1)? else { return Ok(None) };
        let help = "give the file as sentence-transformers writes it, or remove it";
        Pooling::parse(&bytes).map_err(|e| Error::file_help(&path, e, help))
    }

    fn chat(&self) -> Result<Chat, Error> {
        // Without the feature `chat` there are no templates.
        let Some(folder) = self.folder.as_ref().filter(|_| cfg!(feature = "chat")) else {
            return Ok(Chat::default());
        };
        let (config, template) = (self.read(TOKENIZER_CONFIG, 1)?, self.read(ADDED_TEMPLATE, 0)?);
        let [config, template] = [config, template].map(|f| f.map(|(_, bytes)| bytes));
        let template = template.map_or_else(|| self.template_of_processor(), |t| Ok(Some(t)))?;
        Chat::read(folder, config.as_deref(), template.as_deref())
    }

    /// The template in the file that processors of transformers wrote before [`ADDED_TEMPLATE`].
    fn template_of_processor(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some((_, bytes)) = self.read(PROCESSOR_TEMPLATE, 1)? else { return Ok(None) };
        let value: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
        Ok(value.and_then(|v| Some(v.get("chat_template")?.as_str()?.as_bytes().to_vec())))
    }
}
