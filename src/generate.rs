//! Text and token ids from decoder models.
//!
//! A [`Decoder`] is the set of files: the model, and beside it a tokenizer and the settings that its publisher recommends. A
//! [`Generator`] is the decoder on a device. It has one program for prompts of any length and one for a single token, which
//! share weights and cache. [`Generator::generate`] returns an iterator of tokens. The generated tokens stay in the cache,
//! so that the next prompt continues the sequence. A [`BatchGenerator`] generates several sequences at once, and a
//! [`ContinuousGenerator`] several that begin and end at any time. With [`GeneratorOptions::speculate`] tokens are guessed by a
//! [`Proposer`] and several verified in one run. A [`Scorer`] computes how likely given tokens are, an [`Embedder`] one vector for each text. [`Generator::chat`] answers
//! [`Message`]s, of which a model's
//! [`ChatTemplate`] makes the prompt. An [`ImageEncoder`] makes features of pictures, for which tokens of a vision-language model's prompt stand.
//!
//! ```
//! use wgfc::{Decoder, Generator, GeneratorOptions, Request};
//! # fn main() -> Result<(), wgfc::Error> {
//! # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
//! # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
//! let decoder = Decoder::open(&path)?;
//! let mut generator = Generator::new(&decoder, &GeneratorOptions { capacity: 32, ..Default::default() })?;
//! let request = Request { max_new_tokens: 5, ..Default::default() };
//! let tokens: Vec<i64> = generator.generate(&[3, 1, 36], &request)?.collect::<Result<_, _>>()?;
//! assert_eq!((tokens.len(), generator.len()), (5, 8));
//! # Ok(()) }
//! ```

#[cfg(any(feature = "chat", feature = "tokenizers"))]
mod apart;
mod batch;
mod build;
mod chat;
mod choose;
mod chooser;
mod chunks;
mod constraint;
mod continuous;
mod embed;
mod fits;
mod fixed;
mod logprobs;
mod options;
mod penalties;
mod perplexity;
mod programs;
pub mod recompute;
mod roles;
mod sample;
mod saved;
mod speculate;
mod stepwise;
mod text;
mod tokens;
mod vision;

pub use batch::{BatchGenerator, BatchTokens};
pub use chat::{ChatOptions, ChatTemplate, Content, Json, Message};
pub use constraint::{Constraint, Form, Forms};
pub use continuous::{Bounds, ContinuousGenerator, End, Generated, SequenceId};
pub use embed::{Accepts, Embedder, Pooling, normalised};
pub use logprobs::{LogProbs, MOST_LOGPROBS};
pub use options::{GeneratorOptions, Request};
pub use perplexity::{Perplexity, Scorer, Windows};
pub use programs::{compile_decoder, fused};
pub use sample::Sampling;
pub use saved::cached_tokens;
pub use speculate::{Draft, Lookup, Proposer, Speculated};
pub use text::{
    ADDED_TEMPLATE, CONFIG, Choices, Decoder, Defaults, POOLING, TOKENIZER, TOKENIZER_CONFIG, TextStream,
};
pub use tokens::{Continuation, Tokens};
pub use vision::{ImageEncoder, ImageFeatures};

use crate::model::device_error;
use crate::value_info::ValueInfo;
use crate::{Error, Problem, Tensor};
use choose::Choice;
use chooser::Chooser;
use chunks::Chunks;
use roles::Input;
use speculate::Speculation;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vision::Pictures;
use wgfc_compiler::decoding::head;
use wgfc_runtime::session::DeviceMemory;
use wgfc_runtime::{Gpu, Profile, Session};

/// The place of a token that is not known in a history.
const UNKNOWN: i64 = -1;
/// A decoder on a device.
///
/// ```no_run
/// use wgfc::{Decoder, Generator, GeneratorOptions, Request};
/// # fn main() -> Result<(), wgfc::Error> {
/// let decoder = Decoder::open("model.onnx".as_ref())?;
/// let mut generator = Generator::new(&decoder, &GeneratorOptions::default())?;
/// let request = Request { max_new_tokens: 3, ..Request::default() };
/// for token in generator.generate(&[3, 1, 36], &request)? {
///     println!("{}", token?);
/// }
/// // What was generated stays in the cache, so that the next prompt continues.
/// assert_eq!(generator.len(), 6);
/// generator.reset()?;
/// # Ok(()) }
/// ```
pub struct Generator {
    /// The session that takes any number of tokens; `None` if the model takes one at a time.
    prefill: Option<Session>,
    /// The session that takes one token.
    decode: Session,
    /// The choice of tokens from the logits.
    chooser: Chooser,
    /// The part that verifies proposals, if there is speculation.
    speculation: Option<Speculation>,
    inputs: Vec<Input>,
    vocabulary: usize,
    capacity: usize,
    chunks: Chunks,
    /// The features for which tokens of the prompt stand.
    pictures: Pictures,
    /// The number of positions of the cache that are valid. A run that was started ahead of need may have written beyond
    /// them.
    kept: usize,
    /// The number of positions that have been written, if the cache is one of fixed size, which does not count them itself.
    written: Option<usize>,
    /// The token that was generated last. It is not in the cache yet.
    pending: Option<i64>,
    /// The tokens so far: those of the valid positions, and the one that was generated last. [`UNKNOWN`] stands for
    /// one that is not known.
    history: Vec<i64>,
    /// The number of the last use, which no other use of any generator has.
    number: u64,
    warnings: Vec<String>,
    /// The fingerprint of the model's file, which saved caches name.
    model: String,
    setup: Setup,
}

/// The number of a use of a generator.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The time that it took to create a [`Generator`].
/// See the example of [`Model::compile_for`](crate::Model::compile_for).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setup {
    /// Compiling the model. It reads weights only as far as it changes them.
    pub compiling: Duration,
    /// Creating the pipelines and copying the weights from their files to the device.
    pub uploading: Duration,
    /// The part of it that copied weights, some of which are quantised or rounded meanwhile.
    pub copying: Duration,
    /// The bytes that were copied, as they are on the device.
    pub copied: u64,
}

impl Generator {
    /// Compiles the decoder for a device and uploads it.
    ///
    /// # Errors
    /// A model that is no decoder, with its inputs that have no known role; a model that does not fit the device, with the forms in
    /// which it would; otherwise as [`Model::compile`](crate::Model::compile).
    ///
    /// ```no_run
    /// use wgfc::{Decoder, Generator, GeneratorOptions};
    /// # fn main() -> Result<(), wgfc::Error> {
    /// let decoder = Decoder::open("qwen".as_ref())?;
    /// let generator = Generator::new(&decoder, &GeneratorOptions { capacity: 4096, ..Default::default() })?;
    /// println!("{:?}, {} bytes", generator.setup(), generator.device_memory().total());
    /// # Ok(()) }
    /// ```
    pub fn new(decoder: &Decoder, options: &GeneratorOptions) -> Result<Generator, Error> {
        let gpu = Gpu::request_blocking(&options.adapter).map_err(device_error)?;
        Generator::on_device(gpu, decoder, options)
    }

    /// [`Generator::new`] on a device that is already open; `options.adapter` is ignored.
    pub fn on_device(gpu: Gpu, decoder: &Decoder, options: &GeneratorOptions) -> Result<Generator, Error> {
        Ok(Generator::build(gpu, decoder, options, 1)?.0)
    }

    /// The number of tokens in the vocabulary. Token ids are less than it.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
    /// The most positions that the cache may grow to.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
    /// The number of tokens so far, prompts and generated ones.
    pub fn len(&self) -> usize {
        self.kept + usize::from(self.pending.is_some())
    }
    /// Whether there are no tokens yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The compiler's warnings.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
    /// The time that it took to create the generator.
    pub fn setup(&self) -> Setup {
        self.setup
    }
    /// The memory that the generator holds on the device.
    pub fn device_memory(&self) -> DeviceMemory {
        let choosing = self.chooser.sessions().chain(self.speculation_sessions());
        DeviceMemory::of([&self.decode].into_iter().chain(&self.prefill).chain(choosing))
    }
    /// The session that runs a single token.
    pub fn session(&self) -> &Session {
        &self.decode
    }
    /// The session that runs prompts; `None` where the model takes one token at a time.
    pub fn prompt_session(&self) -> Option<&Session> {
        self.prefill.as_ref()
    }

    /// The estimated cost of generating one more token after `past` others: the number of dispatches, and the bytes that
    /// they read and write.
    pub fn cost(&self, past: usize) -> (usize, u64) {
        let program = self.decode.program();
        let growths = || program.states.iter().filter_map(|s| s.growth.as_ref());
        // A symbol that is neither fixed nor the length of a state is the extent of the attention mask: all positions.
        let value = |s: &str| Some(past as i64 + i64::from(!growths().any(|g| g.length == s)));
        let bytes = program.dispatches.iter().filter_map(|d| u64::try_from(d.bytes.eval_syms(&value)?).ok());
        (program.dispatches.len(), bytes.fold(0, u64::saturating_add))
    }

    /// Makes the generator behave as if it held this many tokens; the cache contents are undefined. This serves to time one
    /// more token.
    ///
    /// # Errors
    /// More tokens than the cache has room for.
    pub fn pretend(&mut self, tokens: usize) -> Result<(), Error> {
        let growths = self.decode.program().states.iter().filter_map(|s| s.growth.as_ref());
        let lengths: BTreeSet<String> = growths.map(|g| g.length.clone()).collect();
        let to = i64::try_from(tokens).unwrap_or(i64::MAX);
        self.reserve(tokens.min(self.capacity))?;
        for length in lengths {
            self.decode.set_symbol(&length, to).map_err(device_error)?;
        }
        self.written = self.written.map(|_| tokens);
        (self.kept, self.pending, self.number) = (tokens, None, next_number());
        self.history = vec![UNKNOWN; tokens.min(self.capacity)];
        Ok(())
    }

    /// Times runs that take one more token. They do not change the sequence. The token is chosen greedily.
    ///
    /// ```no_run
    /// # fn profile(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// // One more token after 1000 others.
    /// generator.pretend(1000)?;
    /// let profile = generator.profile(20)?;
    /// let (dispatches, bytes) = generator.cost(1000);
    /// println!("{dispatches} dispatches, {bytes} bytes, {:?} ns", profile.back_to_back_ns);
    /// # Ok(()) }
    /// ```
    pub fn profile(&mut self, runs: usize) -> Result<Profile, Error> {
        self.settle()?;
        self.reserve(self.kept + 1)?;
        let own = self.inputs.iter().map(|i| (i.name.as_str(), i.tensor(&[0], self.kept)));
        let given: Vec<(&str, Tensor)> = own.chain([(head::CHOICE, choose::greedy())]).collect();
        self.decode.profile_blocking(&given, runs).map_err(device_error)
    }

    /// Appends `tokens` to the sequence. Returns the logits of the next token, `[…, vocabulary]`, and the most likely token,
    /// which is not appended.
    ///
    /// # Errors
    /// As for [`Generator::generate`] and its iterator.
    ///
    /// ```no_run
    /// # fn logits(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// let (logits, best) = generator.logits(&[3, 1, 36])?;
    /// let most = logits.to_f32s().unwrap_or_default().into_iter().max_by(f32::total_cmp);
    /// println!("{best} has the logit {most:?}");
    /// # Ok(()) }
    /// ```
    pub fn logits(&mut self, tokens: &[i64]) -> Result<(Tensor, i64), Error> {
        let feed = self.begin(tokens, &Request::default())?.into_feed();
        let done = self.start(&feed, &mut Choice::new(None, 0), &[head::LOGITS, head::TOKEN]);
        let done = done.and_then(|run| Ok((run.after, run.started.read_blocking().map_err(device_error)?)));
        let read = done.and_then(|(after, read)| Ok((after, self.token(&read)?, read)));
        let (after, token, read) = match read {
            Ok(read) => read,
            Err(e) => {
                self.settle()?;
                return Err(e);
            }
        };
        self.history.truncate(self.kept);
        self.history.extend(&feed);
        (self.kept, self.pending) = (after, None);
        let logits = read.into_iter().find(|(n, _)| n == head::LOGITS).ok_or_else(no_output)?;
        Ok((logits.1, token))
    }

    /// Removes all tokens.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.decode.reset_blocking().map_err(device_error)?;
        self.written = self.written.map(|_| 0);
        (self.kept, self.pending, self.number) = (0, None, next_number());
        self.history.clear();
        Ok(())
    }

    /// Removes the tokens after the first `tokens`.
    ///
    /// # Errors
    /// More tokens than there are; states whose earlier values were overwritten, such as full windows. Nothing changes then.
    ///
    /// ```no_run
    /// # fn rewind(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// let request = wgfc::Request { max_new_tokens: 20, ..Default::default() };
    /// let first: Vec<i64> = generator.generate(&[3, 1, 36], &request)?.collect::<Result<_, _>>()?;
    /// // Another continuation of the same prompt.
    /// generator.rewind(2)?;
    /// let second: Vec<i64> = generator.generate(&[36], &request)?.collect::<Result<_, _>>()?;
    /// # Ok(()) }
    /// ```
    pub fn rewind(&mut self, tokens: usize) -> Result<(), Error> {
        if tokens > self.len() {
            let message = format!("{tokens} tokens are to stay, and there are {}", self.len());
            return Err(Error::usage(message, "give a number that is not larger"));
        }
        self.number = next_number();
        if tokens < self.len() {
            self.undo(tokens)?;
            (self.kept, self.pending) = (tokens, None);
            self.history.truncate(tokens);
        }
        self.settle()
    }

    /// [`Generator::generate`] for a prompt that is the whole sequence: it takes the place of the tokens so far. The longest
    /// beginning that both have in common stays in the cache, and only the tokens after it are processed. All are if the
    /// model has states whose earlier values were overwritten.
    ///
    /// # Errors
    /// As for [`Generator::generate`].
    ///
    /// ```no_run
    /// # fn complete(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// let request = wgfc::Request { max_new_tokens: 20, ..Default::default() };
    /// generator.complete(&[3, 1, 36], &request)?.for_each(drop);
    /// // Of these, only the last one is processed.
    /// generator.complete(&[3, 1, 7], &request)?.for_each(drop);
    /// # Ok(()) }
    /// ```
    pub fn complete(&mut self, prompt: &[i64], request: &Request) -> Result<Tokens<'_>, Error> {
        let rest = self.keep_common(prompt)?;
        self.generate(rest, request)
    }

    /// Removes all tokens but the longest beginning that they have in common with `prompt`, or all if the model has states whose
    /// earlier values were overwritten. Returns the tokens of the prompt that are to be processed: at least the last one.
    ///
    /// # Errors
    /// An error of the device.
    pub fn keep_common<'p>(&mut self, prompt: &'p [i64]) -> Result<&'p [i64], Error> {
        let mut common = self.in_common(prompt);
        if self.rewind(common).is_err() {
            self.reset()?;
            common = 0;
        }
        Ok(prompt.get(common..).unwrap_or_default())
    }

    /// The number of tokens of `prompt` that [`Generator::complete`] does not have to process again.
    pub fn in_common(&self, prompt: &[i64]) -> usize {
        // One token at least is processed, as the next one depends on its logits.
        let most = prompt.len().saturating_sub(1);
        self.history.iter().zip(&prompt[..most]).take_while(|(a, b)| a == b).count()
    }

    /// The tokens of the assistant's next message. The prompt is that of [`Decoder::chat_prompt`]; of the messages, those that
    /// are new are processed, the others are in the cache ([`Generator::complete`]). Parts `{"type": "image"}` stand for the pictures of the
    /// request in their order. The answer ends at a token of
    /// `request.stop` or [`Decoder::stop_tokens`].
    ///
    /// # Errors
    /// As for [`Decoder::chat_prompt`] and [`Generator::generate`].
    ///
    /// ```no_run
    /// use wgfc::generate::{ChatOptions, Message};
    /// use wgfc::{Decoder, Generator, GeneratorOptions, Request};
    /// # fn main() -> Result<(), wgfc::Error> {
    /// let decoder = Decoder::open("qwen".as_ref())?;
    /// let mut generator = Generator::new(&decoder, &GeneratorOptions::default())?;
    /// let mut messages = vec![Message::system("Be brief.")];
    /// for question in ["Why is the sky blue?", "And at night?"] {
    ///     messages.push(Message::user(question));
    ///     let request = Request { max_new_tokens: 200, ..Request::default() };
    ///     let tokens = generator.chat(&decoder, &messages, &ChatOptions::default(), &request)?;
    ///     let answer = decoder.decode(&tokens.collect::<Result<Vec<i64>, _>>()?)?;
    ///     println!("{answer}");
    ///     messages.push(Message::assistant(answer));
    /// }
    /// # Ok(()) }
    /// ```
    pub fn chat(
        &mut self,
        decoder: &Decoder,
        messages: &[Message],
        options: &ChatOptions,
        request: &Request,
    ) -> Result<Tokens<'_>, Error> {
        let prompt = decoder.chat_prompt_with_images(messages, options, &request.images)?;
        let mut request = request.clone();
        request.stop.extend(decoder.stop_tokens());
        self.complete(&prompt, &request)
    }

    /// The tokens that follow `prompt`, which is appended to the sequence. Nothing runs before the first token is requested.
    /// After that, the run for the next token starts before the current token is returned, and is undone if the next token
    /// is not requested. A token in `request.stop` is the last one returned. After an error the cache is as it was before
    /// the token that failed.
    ///
    /// # Errors
    /// An empty prompt, ids outside the vocabulary, more tokens than the cache has room for, or invalid sampling parameters;
    /// nothing has been run then. The iterator returns errors of the device, and an error if logits are not finite.
    ///
    /// ```no_run
    /// # fn generate(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// let request = wgfc::Request { max_new_tokens: 20, stop: vec![2], ..Default::default() };
    /// let tokens: Vec<i64> = generator.generate(&[3, 1, 36], &request)?.collect::<Result<_, _>>()?;
    /// // The conversation goes on.
    /// let answer: Vec<i64> = generator.generate(&[7, 9], &request)?.collect::<Result<_, _>>()?;
    /// # Ok(()) }
    /// ```
    pub fn generate(&mut self, prompt: &[i64], request: &Request) -> Result<Tokens<'_>, Error> {
        let continuation = self.begin(prompt, request)?;
        Ok(Tokens { continuation, hook: None, generator: self })
    }

    /// [`Generator::generate`] for callers that cannot keep a borrow of the generator. A run that was started ahead of need is undone
    /// at the next use of the generator, which ends the continuation.
    ///
    /// # Errors
    /// As for [`Generator::generate`].
    pub fn begin(&mut self, prompt: &[i64], request: &Request) -> Result<Continuation, Error> {
        self.settle()?;
        let mut problems = problems_of(self.vocabulary, prompt, self.pending.is_some(), "");
        problems.extend(vision::problems(self.pictures.width(), prompt, &request.images));
        let total = self.len().saturating_add(prompt.len()).saturating_add(request.max_new_tokens);
        if total > self.capacity {
            let before =
                if self.is_empty() { String::new() } else { format!("{} tokens so far, ", self.len()) };
            problems.push(Problem::with_help(
                format!(
                    "{before}{} of the prompt and {} new ones are {total} positions, and the cache may grow to {}",
                    prompt.len(),
                    request.max_new_tokens,
                    self.capacity
                ),
                self.more_room(total),
            ));
        }
        problems.extend(request.problems(self.vocabulary));
        if !problems.is_empty() {
            return Err(Error::Usage(problems));
        }
        let feed = self.pending.iter().chain(prompt).copied().collect();
        let mut choice = Choice::of(request, self.vocabulary)?;
        choice.follow(&self.history);
        choice.follow(prompt);
        self.chooser.prepare(choice.limits())?;
        self.prepare_verification(choice.limits())?;
        self.pictures.take(self.decode.gpu(), prompt, &request.images)?;
        self.number = next_number();
        Ok(Continuation::new(self.number, feed, request, choice))
    }

    /// Undoes runs beyond the valid positions.
    fn settle(&mut self) -> Result<(), Error> {
        self.undo(self.kept)
    }

    /// Makes the cache large enough for this many positions. It at least doubles if the device has the memory.
    fn reserve(&mut self, positions: usize) -> Result<(), Error> {
        let have = self.decode.capacity().unwrap_or(usize::MAX);
        if have >= positions {
            return Ok(());
        }
        let more = have.saturating_mul(2).min(self.capacity).max(positions);
        let grown = self.decode.grow_blocking(more);
        grown.or_else(|_| self.decode.grow_blocking(positions)).map_err(device_error)
    }
}

/// The faults of a prompt, apart from those of its pictures ([`vision::problems`]); each message begins with `at`, which names the prompt.
fn problems_of(vocabulary: usize, prompt: &[i64], continues: bool, at: &str) -> Vec<Problem> {
    let mut problems = vec![];
    let known = 0..vocabulary as i64;
    if prompt.is_empty() && !continues {
        problems.push(Problem::with_help(
            format!("{at}the prompt has no tokens"),
            "give at least one token to begin with",
        ));
    }
    let known = |t: &i64| known.contains(t) || vision::stands_for_feature(*t);
    let strange: Vec<&i64> = prompt.iter().filter(|t| !known(t)).collect();
    if let Some(first) = strange.first() {
        let more =
            if strange.len() > 1 { format!(" (and {} more)", strange.len() - 1) } else { String::new() };
        problems.push(Problem::with_help(
            format!(
                "{at}token {first}{more} is outside the model's vocabulary, which is 0 to {}",
                vocabulary.saturating_sub(1)
            ),
            "give ids of this model's tokenizer",
        ));
    }
    problems
}

/// The token in the outputs of a run. Ids are less than `vocabulary`.
fn token(outputs: &[(String, Tensor)], vocabulary: usize) -> Result<i64, Error> {
    let token = outputs.iter().find(|(n, _)| n == head::TOKEN);
    let token = token.and_then(|(_, t)| Some(t.scalars()?.first()?.as_i64())).ok_or_else(no_output)?;
    match token {
        choose::NONE => Err(choose::nothing_to_choose()),
        t if (0..vocabulary as i64).contains(&t) => Ok(t),
        t => Err(Error::Internal(format!("the device chose token {t}"))),
    }
}

fn no_output() -> Error {
    Error::Internal("a run without its output".into())
}

/// The text by which messages name an input of the model.
fn described(p: &ValueInfo) -> String {
    format!("input `{}` {}", p.name, p.type_text())
}
