//! Log-likelihoods of a text's tokens, and the perplexity of the text.
//!
//! The program for prompts returns the logits of all its positions, in the type in which the model computes them. The host takes
//! the logarithm of the softmax in f64. So the numbers are those of the kernels and the cache that also generate.

use super::programs::Compilations;
use super::tokens::{Ids, given};
use super::{Decoder, GeneratorOptions, choose, head, no_output, problems_of, programs, roles};
use crate::model::device_error;
use crate::value_info::program_values;
use crate::{Error, Program};
use std::ops::Range;
use wgfc_compiler::Errors;
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::{DeviceMemory, SessionOptions, Value};
use wgfc_runtime::{Gpu, Session};

/// A decoder on a device that computes how likely given tokens are.
///
/// ```
/// use wgfc::generate::{Scorer, Windows};
/// use wgfc::{Decoder, GeneratorOptions};
/// # fn main() -> Result<(), wgfc::Error> {
/// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
/// let decoder = Decoder::open(&path)?;
/// let mut scorer = Scorer::new(&decoder, &GeneratorOptions { capacity: 32, ..Default::default() })?;
/// // The logarithms of the probabilities of 1 behind 3, and of 36 behind 3, 1.
/// let each = scorer.log_likelihoods(&[3, 1, 36], 1)?;
/// let all = scorer.perplexity(&[3, 1, 36], Windows { length: 32, stride: 16 }, &mut |_| {})?;
/// assert_eq!((each.len(), all.tokens), (2, 2));
/// assert!((all.mean_nll + (each[0] + each[1]) / 2.0).abs() < 1e-12);
/// # Ok(()) }
/// ```
pub struct Scorer {
    session: Session,
    inputs: Vec<roles::Input>,
    vocabulary: usize,
    capacity: usize,
    /// The most tokens of a run.
    chunk: usize,
    warnings: Vec<String>,
}

/// How a text is cut into windows. Each begins `stride` tokens behind the one before it, with an empty cache. Of a window, the
/// tokens count that are in no earlier one and have a token before them in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The number of tokens of a window, at least 2.
    pub length: usize,
    /// The distance between windows, between 1 and `length`. A token has at least `length - stride` tokens before it, except in
    /// the first window.
    pub stride: usize,
}

/// How well a model predicts a text. See the example of [`Scorer`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Perplexity {
    /// The mean of the negative natural logarithms of the probabilities of the tokens that count, in nats. Infinite if one of the
    /// tokens has probability 0.
    pub mean_nll: f64,
    /// The number of tokens that count.
    pub tokens: usize,
    /// The number of windows.
    pub windows: usize,
}

impl Perplexity {
    /// The exponential of the mean negative log-likelihood: a model that draws from this many tokens with equal probability is as
    /// uncertain.
    pub fn perplexity(&self) -> f64 {
        self.mean_nll.exp()
    }
}

impl Windows {
    /// The tokens of each window of a text, with the first that counts.
    fn of(self, tokens: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut begin = Some(0usize);
        std::iter::from_fn(move || {
            let from = begin?;
            let to = from.saturating_add(self.length).min(tokens);
            begin = (to < tokens).then(|| from.saturating_add(self.stride));
            // Windows before this one end here.
            let seen = if from == 0 { 0 } else { from - self.stride + self.length };
            Some((from..to, seen.max(from + 1)))
        })
    }
}

impl Scorer {
    /// Compiles the decoder for a device and uploads it. A cache for `options.capacity` positions is allocated.
    ///
    /// # Errors
    /// As for [`Generator::new`](super::Generator::new).
    pub fn new(decoder: &Decoder, options: &GeneratorOptions) -> Result<Scorer, Error> {
        let gpu = Gpu::request_blocking(&options.adapter).map_err(device_error)?;
        Scorer::on_device(gpu, decoder, options)
    }

    /// [`Scorer::new`] on a device that is already open; `options.adapter` is ignored.
    ///
    /// # Errors
    /// As for [`Scorer::new`].
    pub fn on_device(gpu: Gpu, decoder: &Decoder, options: &GeneratorOptions) -> Result<Scorer, Error> {
        if let Some(bundle) = decoder.compiled() {
            // Its plan for prompts returns the logits of the last position only.
            let (_, single) = programs::compiled(&gpu, decoder, bundle, options)?;
            let made = Scorer::of(&gpu, &single, options, (1, options.capacity), Checks::default());
            return made.map_err(|e| crate::model::edited(decoder.path(), e));
        }
        let Compilations { long, single, .. } = programs::compilations(&gpu, decoder, options, 1)?;
        let several = long.is_some();
        let (program, fixed) =
            programs::compile_scoring(decoder.model(), &long.unwrap_or(single), &options.context)?;
        let chunk = if several { programs::chunk(&program, options.chunk()) } else { 1 };
        let capacity = options.capacity.min(fixed.unwrap_or(usize::MAX));
        Scorer::of(&gpu, &program, options, (chunk, capacity), Checks::Trusted)
    }

    fn of(
        gpu: &Gpu,
        program: &Program,
        options: &GeneratorOptions,
        (chunk, capacity): (usize, usize),
        checks: Checks,
    ) -> Result<Scorer, Error> {
        let vocabulary = programs::vocabulary(program)?;
        let how = SessionOptions { checks, capacity: options.capacity, ..SessionOptions::default() };
        let mut ports = program_values(&program.inputs);
        ports.retain(|p| p.name != head::CHOICE);
        let inputs = roles::inputs(&ports, None, &options.context);
        let mut inputs = inputs.map_err(|problems| Error::from(Errors(problems)))?;
        inputs.iter_mut().try_for_each(|i| i.upload(gpu)).map_err(device_error)?;
        // The logits of a run are one buffer.
        let bytes = vocabulary.saturating_mul(size_of::<f32>()).max(1);
        let most = usize::try_from(gpu.profile().binding_bytes).unwrap_or(usize::MAX) / bytes;
        Ok(Scorer {
            inputs,
            session: Session::with_options_blocking(gpu, program, how).map_err(device_error)?,
            vocabulary,
            capacity,
            chunk: chunk.min(most).max(1),
            warnings: program.stats.warnings.clone(),
        })
    }

    /// The number of tokens in the vocabulary. Token ids are less than it.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
    /// The compiler's warnings.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
    /// The session that runs the decoder.
    pub fn session(&self) -> &Session {
        &self.session
    }
    /// The memory that the scorer holds on the device.
    pub fn device_memory(&self) -> DeviceMemory {
        DeviceMemory::of([&self.session])
    }

    /// The natural logarithms of the probabilities of `tokens[first..]`, each behind all tokens before it. The first token of a
    /// sequence has no probability, so `first` is at least 1.
    ///
    /// # Errors
    /// No token before `first`, ids outside the vocabulary, or more tokens than the cache has room for; nothing has been run then.
    /// Errors of the device, and logits that are NaN or +∞.
    pub fn log_likelihoods(&mut self, tokens: &[i64], first: usize) -> Result<Vec<f64>, Error> {
        if first == 0 {
            return Err(Error::usage("the first token has no token before it", "let `first` be at least 1"));
        }
        let problems = problems_of(self.vocabulary, tokens, false, "");
        if !problems.is_empty() {
            return Err(Error::Usage(problems));
        }
        // The last token is not fed, as nothing is asked of the logits behind it.
        let fed = &tokens[..tokens.len() - 1];
        if fed.len() > self.capacity {
            return Err(Error::usage(
                format!("{} positions are needed, and the cache has room for {}", fed.len(), self.capacity),
                "give fewer tokens, or the cache a larger capacity",
            ));
        }
        self.session.reset_blocking().map_err(device_error)?;
        let mut found = vec![];
        for (i, ids) in fed.chunks(self.chunk).enumerate() {
            let past = i * self.chunk;
            let logits = self.logits(ids, past, past + ids.len() >= first)?;
            let targets = &tokens[past + 1..];
            for (at, (row, target)) in logits.chunks(self.vocabulary).zip(targets).enumerate() {
                if past + at + 1 >= first {
                    found.push(log_likelihood(row, *target)?);
                }
            }
        }
        Ok(found)
    }

    /// The logits behind each of `ids`, which follow `past` others; nothing unless they are read.
    fn logits(&mut self, ids: &[i64], past: usize, read: bool) -> Result<Vec<f32>, Error> {
        let mut given: Vec<(&str, Value)> = given(&self.inputs, &Ids::Host(ids), past, choose::greedy());
        if !self.session.program().inputs.iter().any(|i| i.name == head::CHOICE) {
            given.retain(|(name, _)| *name != head::CHOICE);
        }
        if !read {
            self.session.run_on_device_blocking(&given).map_err(device_error)?;
            return Ok(vec![]);
        }
        let made = self.session.run_values_blocking(&given, Some(&[head::LOGITS])).map_err(device_error)?;
        let logits = made.into_iter().find(|(n, _)| n == head::LOGITS).and_then(|(_, t)| t.to_f32s());
        logits.filter(|l| l.len() == ids.len().saturating_mul(self.vocabulary)).ok_or_else(no_output)
    }

    /// The perplexity of a text of these tokens. `done` is told how many tokens have been processed.
    ///
    /// # Errors
    /// Fewer than two tokens, or windows that are not possible; otherwise as for [`Scorer::log_likelihoods`].
    pub fn perplexity(
        &mut self,
        tokens: &[i64],
        windows: Windows,
        done: &mut dyn FnMut(usize),
    ) -> Result<Perplexity, Error> {
        if windows.length < 2 || windows.stride == 0 || windows.stride > windows.length {
            return Err(Error::usage(
                format!("windows of {} tokens cannot be {} apart", windows.length, windows.stride),
                "a window has at least 2 tokens, and the stride is between 1 and that",
            ));
        }
        if tokens.len() < 2 {
            let message = format!("a text of {} tokens has no perplexity", tokens.len());
            return Err(Error::usage(message, "give a longer text: the first token is not predicted"));
        }
        let (mut sum, mut count, mut number) = (0.0, 0, 0);
        for (window, first) in windows.of(tokens.len()) {
            let (end, first) = (window.end, first - window.start);
            let each = self.log_likelihoods(&tokens[window], first)?;
            sum -= each.iter().sum::<f64>();
            count += each.len();
            number += 1;
            done(end);
        }
        Ok(Perplexity { mean_nll: sum / count as f64, tokens: count, windows: number })
    }
}

/// The logarithm of the probability of a token by its row of logits.
fn log_likelihood(logits: &[f32], token: i64) -> Result<f64, Error> {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - most).exp()).sum();
    let own = usize::try_from(token).ok().and_then(|t| logits.get(t));
    let own = own.ok_or_else(|| Error::Internal("a token outside of the logits".into()))?;
    // A NaN is left out of the maximum, but not of the sum.
    if sum.is_finite() { Ok(f64::from(*own) - most - sum.ln()) } else { Err(choose::nothing_to_choose()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_count_each_token_once() {
        let of = |tokens, length, stride| Windows { length, stride }.of(tokens).collect::<Vec<_>>();
        assert_eq!(of(7, 4, 2), [(0..4, 1), (2..6, 4), (4..7, 6)]);
        assert_eq!(of(4, 4, 2), [(0..4, 1)]);
        // Without an overlap the first token of a window has none before it.
        assert_eq!(of(6, 4, 4), [(0..4, 1), (4..6, 5)]);
        assert_eq!(of(5, 4, 1), [(0..4, 1), (1..5, 4)]);
        assert_eq!(of(2, usize::MAX, usize::MAX), [(0..2, 1)]);
    }

    #[test]
    fn log_likelihoods_are_of_the_softmax() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, -2.0];
        let sum: f64 = [1.0f64, 3.0, -2.0].iter().map(|x| x.exp()).sum();
        assert!((log_likelihood(&logits, 3).unwrap() - (-2.0 - sum.ln())).abs() < 1e-12);
        assert_eq!(log_likelihood(&logits, 2).unwrap(), f64::NEG_INFINITY);
        for bad in [[0.0, f32::NAN], [0.0, f32::INFINITY], [f32::NEG_INFINITY; 2]] {
            assert!(log_likelihood(&bad, 0).is_err(), "{bad:?}");
        }
        assert!(log_likelihood(&logits, 4).is_err());
    }
}
