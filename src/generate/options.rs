//! How a generator is set up, and what is asked of it.

use super::chunks::USUAL;
use super::{Constraint, ImageFeatures, Sampling};
use crate::{Fusion, Tensor, Tuning};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_compiler::device::Speeds;
use wgfc_compiler::schedule::cost::Expected;
use wgfc_compiler::{Activations, CacheType, Precision, Technique, WeightBits};
use wgfc_runtime::AdapterChoice;

/// How a [`Generator`](super::Generator) is set up.
///
/// ```
/// use wgfc::GeneratorOptions;
/// use wgfc::compiler::{Precision, WeightBits};
/// let options = GeneratorOptions {
///     capacity: 8192,
///     precision: Precision::F16,
///     weights: WeightBits::Q4,
///     ..GeneratorOptions::default()
/// };
/// # drop(options);
/// ```
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
/// use wgfc::{Decoder, Generator, GeneratorOptions, Request};
/// let decoder = Decoder::open(&path)?;
/// let mut generator = Generator::new(&decoder, &GeneratorOptions::default())?;
/// let request = Request { max_new_tokens: 3, ..Request::default() };
/// for token in generator.generate(&[3, 1, 36], &request)? {
///     println!("{}", token?);
/// }
/// // What was generated stays in the cache, so that the next prompt continues.
/// assert_eq!(generator.len(), 6);
/// generator.reset()?;
/// assert!(generator.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct GeneratorOptions {
    /// The most positions that the cache may grow to, prompts and generated tokens together. The cache takes the memory of
    /// the positions in use, or up to twice as much.
    pub capacity: usize,
    /// The most tokens of a prompt that one run of the model takes, at least 1. Larger chunks need more memory, smaller ones
    /// more time. With 1 there is no program for prompts. Without a number a run takes 512, or up to 4,096 where the device's memory
    /// and speed allow it.
    pub prompt_chunk: Option<usize>,
    /// How much is fused.
    pub fusion: Fusion,
    /// Techniques of full fusion that are not applied.
    pub without: BTreeSet<Technique>,
    /// The adapter to run on.
    pub adapter: AdapterChoice,
    /// Schedules measured on that adapter.
    pub tuning: Tuning,
    /// The speeds of that adapter, from which schedules are chosen.
    pub speeds: Speeds,
    /// Expected values of symbolic dimensions, such as the positions in the cache; see [`Options::expect`](crate::Options).
    pub expect: Expected,
    /// The type in which f32 values are kept in memory, the cache among them.
    pub precision: Precision,
    /// Nodes of the model whose values stay f32 in memory.
    pub keep_f32: Vec<String>,
    /// The number of bits in which weights of matrix products are kept.
    pub weights: WeightBits,
    /// The precision of what products multiply with quantised weights.
    pub activations: Activations,
    /// The type of the cache.
    pub cache: CacheType,
    /// The most bytes of device memory that weights and cache may take; `None` for those that the device has, if they are known
    /// ([`Gpu::memory`](wgfc_runtime::Gpu::memory)). A decoder that needs more is refused before its weights are read.
    pub device_memory: Option<u64>,
    /// The most tokens that are proposed for a run of a [`Generator`](super::Generator), which verifies them together; 0 for no speculation. See
    /// [`Proposer`](super::Proposer). 7 are a good number. A third program is compiled for such runs. Generators of several sequences, and those with
    /// caches of fixed size, ignore it.
    pub speculate: usize,
    /// Values of further inputs of the model, by name, which are the same in all runs: such as `encoder_hidden_states` of the decoder of
    /// an encoder-decoder, which its encoder made.
    pub context: BTreeMap<String, Tensor>,
    /// Tensors of the model to which all runs add what `context` has as `TENSOR.add`: see [`Options::added`](crate::Options::added).
    pub added: Vec<String>,
    /// Tensors of the model that `context` replaces: see [`Options::replaced`](crate::Options::replaced).
    pub replaced: Vec<String>,
}

impl GeneratorOptions {
    /// The tokens of a prompt that its program is compiled for.
    pub(super) fn chunk(&self) -> usize {
        self.prompt_chunk.unwrap_or(USUAL).max(1)
    }
}

impl Default for GeneratorOptions {
    /// A capacity of 2048 positions and chunks that the device decides, on the adapter that `WGFC_ADAPTER` names or else the best one.
    fn default() -> GeneratorOptions {
        GeneratorOptions {
            capacity: 2048,
            prompt_chunk: None,
            fusion: Fusion::default(),
            without: BTreeSet::new(),
            adapter: AdapterChoice::from_env(),
            tuning: Tuning::default(),
            speeds: Speeds::PORTABLE,
            expect: Expected::default(),
            precision: Precision::F32,
            keep_f32: vec![],
            weights: WeightBits::Own,
            activations: Activations::Own,
            cache: CacheType::Own,
            device_memory: None,
            speculate: 0,
            context: BTreeMap::new(),
            added: vec![],
            replaced: vec![],
        }
    }
}

/// The number of tokens to generate, and how they are chosen.
///
/// ```
/// use wgfc::{Request, Sampling};
/// let request = Request {
///     max_new_tokens: 100,
///     sampling: Some(Sampling { temperature: 0.7, top_p: Some(0.9), ..Sampling::default() }),
///     stop: vec![2],
///     ..Request::default()
/// };
/// assert_eq!(Request::default().sampling, None, "greedy");
/// # drop(request);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// How the next token is chosen. `None` is greedy: the most likely token, the first one among equals.
    pub sampling: Option<Sampling>,
    /// Generation ends after any of these tokens.
    pub stop: Vec<i64>,
    /// The number of most likely tokens, at most [`MOST_LOGPROBS`](super::MOST_LOGPROBS), whose log-probabilities are reported with that of each chosen
    /// token; `None` for no log-probabilities. A [`BatchGenerator`](super::BatchGenerator) reports none.
    pub logprobs: Option<usize>,
    /// The form to which the output is held. Generation ends when no token can follow, or at a token of `stop` where the form allows
    /// an end. A [`BatchGenerator`](super::BatchGenerator) takes none.
    pub constraint: Option<Constraint>,
    /// The pictures for whose features tokens of the prompt stand, as [`Decoder::encode_with_images`](super::Decoder::encode_with_images) and
    /// [`Decoder::chat_prompt_with_images`](super::Decoder::chat_prompt_with_images) make it.
    pub images: Vec<ImageFeatures>,
}
