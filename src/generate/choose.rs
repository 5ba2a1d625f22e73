//! The choice of the next token: what the host gives to the kernels of [`wgfc_compiler::decoding::choose`].

#[cfg(test)]
mod tests;

use super::constraint::Matching;
use super::penalties::Penalties;
use super::{Request, Sampling};
use crate::random::Rng;
use crate::{Error, Tensor};
use wgfc_compiler::decoding::choose::distance_of;
pub use wgfc_compiler::decoding::choose::{Limits, NONE, mask_words, word};
use wgfc_ir::{DType, Scalar};

/// The words that control the choice of one token.
pub type Words = [u32; word::ALL];

/// A token whose logit is changed: to `x · factor + amount` if the logit `x` is negative, otherwise to `x / factor + amount`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    pub token: i64,
    pub factor: f32,
    pub amount: f32,
}

/// The choice of each token of a request, in order.
pub struct Choice {
    how: Option<Sampling>,
    penalties: Option<Penalties>,
    constraint: Option<Box<Matching>>,
    /// Whether the host takes part in the choice in another way.
    stepwise: bool,
    rng: Rng,
}

impl Choice {
    /// The choice is greedy without sampling parameters or with a `top_k` of 1. Limits that would keep all tokens are
    /// dropped.
    pub fn new(how: Option<&Sampling>, vocabulary: usize) -> Choice {
        let seed = how.map_or(0, |s| s.seed);
        let penalties = how.and_then(Penalties::new);
        let how = how.filter(|s| s.top_k != Some(1)).map(|s| Sampling {
            top_k: s.top_k.filter(|k| *k < vocabulary),
            top_p: s.top_p.filter(|p| *p < 1.0),
            min_p: s.min_p.filter(|p| *p > 0.0),
            ..s.clone()
        });
        Choice { how, penalties, constraint: None, stepwise: false, rng: Rng::new(seed, "tokens") }
    }

    /// The choice of the tokens of a request.
    pub fn of(request: &Request, vocabulary: usize) -> Result<Choice, Error> {
        let mut choice = Choice::new(request.sampling.as_ref(), vocabulary);
        if let Some(constraint) = &request.constraint {
            choice.constraint = Some(Box::new(constraint.begin(&request.stop, vocabulary)?));
        }
        choice.stepwise = request.logprobs.is_some();
        Ok(choice)
    }

    /// A choice that draws with the same random numbers from here on, without what depends on the tokens before.
    pub fn ahead(&self) -> Choice {
        let (how, rng) = (self.how.clone(), self.rng.clone());
        Choice { how, penalties: None, constraint: None, stepwise: false, rng }
    }

    /// Makes [`Choice::needs_tokens`] true.
    pub fn make_stepwise(&mut self) {
        self.stepwise = true;
    }

    /// The limits that apply.
    pub fn limits(&self) -> Limits {
        let how = self.how.as_ref();
        let (top_k, top_p) = (how.and_then(|s| s.top_k), how.and_then(|s| s.top_p));
        let min_p = how.and_then(|s| s.min_p).is_some();
        let list = self.penalties.is_some();
        Limits {
            top_k: top_k.is_some(),
            top_p: top_p.is_some(),
            min_p,
            list,
            mask: self.constraint.is_some(),
            each: self.needs_tokens(),
        }
    }

    /// Whether the choice is greedy, from logits as they are.
    pub fn is_greedy(&self) -> bool {
        self.how.is_none() && !self.needs_tokens()
    }

    /// Whether the choice of a token depends on the tokens before it, so that these must be known on the host.
    pub fn needs_tokens(&self) -> bool {
        self.penalties.is_some() || self.constraint.is_some() || self.stepwise
    }

    /// Finds out what the choice of the next token depends on.
    ///
    /// # Errors
    /// No token may follow.
    pub fn prepare(&mut self) -> Result<(), Error> {
        self.constraint.as_mut().map_or(Ok(()), |c| c.prepare())
    }

    /// The tokens that may follow, after [`Choice::prepare`]: a bit for each. `None` for all.
    pub fn mask(&self) -> Option<&[u32]> {
        self.constraint.as_ref().map(|c| c.mask())
    }

    /// Takes into account that these tokens precede those of the request. Negative ones are not known.
    pub fn follow(&mut self, tokens: &[i64]) {
        self.penalties.iter_mut().for_each(|p| p.follow(tokens));
    }

    /// Takes into account that this token has been generated. Returns whether the output is complete, so that none can follow.
    ///
    /// # Errors
    /// The work of a constraint exceeds a limit.
    pub fn add(&mut self, token: i64) -> Result<bool, Error> {
        self.penalties.iter_mut().for_each(|p| p.add(token));
        self.constraint.as_mut().map_or(Ok(false), |c| c.add(token))
    }

    /// The tokens whose logits are changed.
    pub fn list(&self) -> &[Entry] {
        self.penalties.as_ref().map_or(&[], Penalties::entries)
    }

    /// The words that control the choice of the next token by a model's own program, which has no limits, or if there are limits by one that
    /// chooses from given logits.
    pub fn words(&mut self) -> Tensor {
        let count = self.limits().words();
        tensor(&self.row()[..count])
    }

    /// [`Choice::words`] of one row.
    pub fn row(&mut self) -> Words {
        let mut words = [0; word::ALL];
        let Some(how) = &self.how else { return words };
        let random = self.rng.bits();
        // The clamp is beyond every useful temperature on both sides, and excludes 0 and infinity.
        words[word::SCALE] = (1.0 / how.temperature).clamp(1e-30, 1e30).to_bits();
        words[word::RANDOM] = random as u32;
        words[word::RANDOM + 1] = (random >> 32) as u32;
        words[word::TOP_K] = how.top_k.and_then(|k| u32::try_from(k).ok()).unwrap_or(u32::MAX);
        words[word::TOP_P] = how.top_p.unwrap_or(1.0).to_bits();
        words[word::MIN_P] = distance_of(how.min_p.unwrap_or(0.0));
        words
    }
}

/// The words that select the largest logit.
pub fn greedy() -> Tensor {
    tensor(&[0; word::COUNT])
}

fn tensor(words: &[u32]) -> Tensor {
    Tensor::from_scalars(DType::U32, vec![words.len()], &scalars(words))
}

/// The words of each row, u32 `[rows, word::ALL]`.
pub fn rows(words: &[Words]) -> Tensor {
    Tensor::from_scalars(DType::U32, vec![words.len(), word::ALL], &scalars(words.as_flattened()))
}

fn scalars(words: &[u32]) -> Vec<Scalar> {
    words.iter().map(|w| Scalar::from_i64(DType::U32, i64::from(*w))).collect()
}

/// The error to report for [`NONE`].
pub fn nothing_to_choose() -> Error {
    Error::usage(
        "the logits are not numbers (NaN), or the largest of them is infinite: there is no next token",
        "the model overflows or its weights are damaged: `wgfc run` shows its outputs. What is kept in f16 (--precision f16) overflows beyond \
         65504: --keep-f32 NODE keeps a node in f32. Nothing of this step was kept",
    )
}
