//! Generation of sequences that begin and end at any time.
//!
//! The caches of a decoder that wgfc builds itself, from a GGUF file or a checkpoint, are pools of pages ([`paged`]). Other decoders
//! keep a row of the cache for each sequence ([`rows`]).

mod paged;
mod rows;
mod sequence;
#[cfg(test)]
mod tests;

use super::choose::{Choice, Limits};
use super::{Decoder, GeneratorOptions, LogProbs, Request, problems_of, vision};
use crate::model::device_error;
use crate::{Error, Problem};
use paged::Paged;
use rows::Rows;
use wgfc_runtime::session::DeviceMemory;
use wgfc_runtime::{Gpu, Session};

/// The name of a sequence in a [`ContinuousGenerator`], which no other sequence of it has.
/// See the example of [`ContinuousGenerator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// Why a sequence ended. See the example of [`ContinuousGenerator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The last token is one of `stop` in its [`Request`].
    Stop,
    /// It has `max_new_tokens` new tokens.
    Length,
    /// Its constraint allows no further token.
    Complete,
}

/// A token of one sequence, which [`ContinuousGenerator::step`] returns. See the example of [`ContinuousGenerator`].
#[derive(Debug)]
pub struct Generated {
    /// The sequence that the token continues.
    pub sequence: SequenceId,
    /// The token, or the reason why there is none: the logits are not finite. The sequence has ended then.
    pub token: Result<i64, Error>,
    /// The token's log-probabilities, if the request asks for them.
    pub logprobs: Option<LogProbs>,
    /// Whether this is the sequence's last token, and why.
    pub end: Option<End>,
}

/// The prompts that a [`ContinuousGenerator`] accepts.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder-batch/model.onnx");
/// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
/// use wgfc::generate::ContinuousGenerator;
/// use wgfc::{Decoder, GeneratorOptions, Request};
/// let options = GeneratorOptions { capacity: 16, ..Default::default() };
/// let bounds = ContinuousGenerator::new(&Decoder::open(&path)?, 2, &options)?.bounds();
/// let request = Request { max_new_tokens: 10, ..Default::default() };
/// assert!(bounds.check(&[3, 1, 36], &request).is_ok());
/// assert!(bounds.check(&[0; 10], &request).is_err(), "20 positions");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The number of tokens in the vocabulary. Token ids are less than it.
    pub vocabulary: usize,
    /// The most tokens of a sequence, prompt and generated ones together.
    pub capacity: usize,
    /// The number of elements of a row of the features of pictures ([`ImageFeatures`](super::ImageFeatures)); `None` if prompts can have no
    /// pictures.
    pub features: Option<usize>,
}

impl Bounds {
    /// Checks that a sequence can be generated.
    ///
    /// # Errors
    /// An empty prompt, ids outside the vocabulary, no new tokens, more tokens than the cache has room for, or invalid
    /// sampling parameters.
    pub fn check(&self, prompt: &[i64], request: &Request) -> Result<(), Error> {
        let mut problems = problems_of(self.vocabulary, prompt, false, "");
        problems.extend(vision::problems(self.features, prompt, &request.images));
        let total = prompt.len().saturating_add(request.max_new_tokens);
        if total > self.capacity {
            problems.push(Problem::with_help(
                format!(
                    "{} tokens of the prompt and {} new ones are {total}, and the cache may grow to {}",
                    prompt.len(),
                    request.max_new_tokens,
                    self.capacity
                ),
                format!("ask for fewer, or give the cache a capacity of {total} (--capacity)"),
            ));
        }
        if request.max_new_tokens == 0 {
            problems.push(Problem::with_help("there are no tokens to generate", "ask for at least one"));
        }
        problems.extend(request.problems(self.vocabulary));
        if problems.is_empty() { Ok(()) } else { Err(Error::Usage(problems)) }
    }
}

/// The limits of a run that makes these choices; `None` if all are greedy.
fn limits_of<'c>(choices: impl IntoIterator<Item = &'c Choice>) -> Option<Limits> {
    let sampled = choices.into_iter().filter(|c| !c.is_greedy()).map(Choice::limits);
    sampled.fold(None, |all, one| Some(all.unwrap_or_else(Limits::rows).with(one)))
}

/// A decoder on a device whose sequences begin and end at any time.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder-batch/model.onnx");
/// use wgfc::generate::ContinuousGenerator;
/// use wgfc::{Decoder, GeneratorOptions, Request};
/// let mut generator = ContinuousGenerator::new(&Decoder::open(&path)?, 2, &GeneratorOptions::default())?;
/// let request = Request { max_new_tokens: 5, ..Default::default() };
/// let first = generator.join(&[3, 1, 36], &request)?;
/// generator.step()?;
/// // Another sequence begins while the first one is generated.
/// let second = generator.join(&[7], &request)?;
/// let mut tokens = vec![];
/// while generator.running() > 0 {
///     tokens.extend(generator.step()?.into_iter().map(|g| g.sequence));
/// }
/// assert_eq!(tokens.iter().filter(|s| **s == first).count(), 5);
/// assert_eq!(tokens.iter().filter(|s| **s == second).count(), 5);
/// # Ok(()) }
/// ```
pub struct ContinuousGenerator(Sequences);

/// The sequences of a generator, by how the cache is laid out.
enum Sequences {
    Rows(Box<Rows>),
    Paged(Box<Paged>),
}

/// Evaluates an expression for sequences of either layout.
macro_rules! each {
    ($of:expr, $s:ident => $e:expr) => {
        match $of {
            Sequences::Rows($s) => $e,
            Sequences::Paged($s) => $e,
        }
    };
}

impl ContinuousGenerator {
    /// Compiles the decoder for `batch` sequences at a time and uploads it.
    ///
    /// # Errors
    /// As for [`BatchGenerator::new`](super::BatchGenerator::new); also, with a `batch` of more than 1, a model whose sequences cannot differ in length.
    pub fn new(
        decoder: &Decoder,
        batch: usize,
        options: &GeneratorOptions,
    ) -> Result<ContinuousGenerator, Error> {
        let gpu = Gpu::request_blocking(&options.adapter).map_err(device_error)?;
        ContinuousGenerator::on_device(gpu, decoder, batch, options)
    }

    /// [`ContinuousGenerator::new`] on a device that is already open; `options.adapter` is ignored.
    ///
    /// # Errors
    /// As for [`ContinuousGenerator::new`].
    pub fn on_device(
        gpu: Gpu,
        decoder: &Decoder,
        batch: usize,
        options: &GeneratorOptions,
    ) -> Result<ContinuousGenerator, Error> {
        let paged = batch > 1 && decoder.model().format().is_built();
        Ok(ContinuousGenerator(match paged {
            true => Sequences::Paged(Box::new(Paged::on_device(gpu, decoder, batch, options)?)),
            false => Sequences::Rows(Box::new(Rows::on_device(gpu, decoder, batch, options)?)),
        }))
    }

    /// The prompts that are accepted.
    pub fn bounds(&self) -> Bounds {
        each!(&self.0, s => s.bounds())
    }
    /// The most sequences at a time.
    pub fn batch(&self) -> usize {
        each!(&self.0, s => s.batch())
    }
    /// The number of sequences that have not ended.
    pub fn running(&self) -> usize {
        each!(&self.0, s => s.running())
    }
    /// The number of positions of the cache in use, which padding and ended sequences take too.
    pub fn positions(&self) -> usize {
        each!(&self.0, s => s.positions())
    }
    /// How often the running sequences were processed again, because the cache was full or a long prompt joined.
    pub fn recomputed(&self) -> u64 {
        each!(&self.0, s => s.recomputed())
    }
    /// The compiler's warnings.
    pub fn warnings(&self) -> &[String] {
        each!(&self.0, s => s.warnings())
    }
    /// The session that runs a single token of each sequence.
    pub fn session(&self) -> &Session {
        each!(&self.0, s => s.session())
    }
    /// The memory that the generator holds on the device.
    pub fn device_memory(&self) -> DeviceMemory {
        each!(&self.0, s => s.device_memory())
    }

    /// Begins a sequence. Nothing runs before the next [`ContinuousGenerator::step`]. The tokens of a sequence are those that
    /// it has alone in a [`Generator`](super::Generator), as far as rounding allows, whatever the other sequences are. Tokens at the
    /// beginning of the prompt that a row of the cache holds, of a sequence that runs or has ended, are not processed again.
    ///
    /// # Errors
    /// As many sequences as [`ContinuousGenerator::batch`] are running; otherwise as for [`Bounds::check`].
    pub fn join(&mut self, prompt: &[i64], request: &Request) -> Result<SequenceId, Error> {
        each!(&mut self.0, s => s.join(prompt, request))
    }

    /// Ends a sequence, of which [`ContinuousGenerator::step`] then returns no more tokens. A sequence that has ended already is
    /// ignored.
    pub fn leave(&mut self, sequence: SequenceId) {
        each!(&mut self.0, s => s.leave(sequence))
    }

    /// Ends all sequences and empties the cache.
    ///
    /// # Errors
    /// An error of the device.
    pub fn reset(&mut self) -> Result<(), Error> {
        each!(&mut self.0, s => s.reset())
    }

    /// Starts the next run, and returns the tokens that the one before it chose: one for each sequence whose prompt has been
    /// processed, in any order, or none.
    ///
    /// # Errors
    /// An error of the device. All sequences have ended then.
    pub fn step(&mut self) -> Result<Vec<Generated>, Error> {
        each!(&mut self.0, s => s.step())
    }

    /// The number of tokens of prompts that were not processed, because the cache held them.
    pub fn reused(&self) -> u64 {
        each!(&self.0, s => s.reused())
    }
}
