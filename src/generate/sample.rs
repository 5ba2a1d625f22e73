//! How the next token is sampled from its logits.

use super::{MOST_LOGPROBS, Request};
use crate::Problem;

/// Sampling parameters. In this order: the logits of tokens that occur already are changed by the repetition penalty
/// (division of positive ones, multiplication of others) and then by the presence and frequency penalties (subtraction),
/// and `logit_bias` is added; the logits are divided by the temperature; the `top_k` largest of them are kept, of their
/// probabilities (softmax) the largest ones that add up to `top_p`, and those of at least `min_p` times the largest one; and
/// one token is drawn. Equal logits are all kept or all dropped; a `top_k` of 1 is greedy. The same seed gives the same
/// tokens for the same logits.
///
/// ```
/// use wgfc::{Request, Sampling};
/// let sampling = Sampling { temperature: 0.8, top_k: Some(40), top_p: Some(0.95), seed: 7, ..Sampling::default() };
/// let request = Request { max_new_tokens: 5, sampling: Some(sampling), ..Request::default() };
/// assert_eq!(Sampling::default().temperature, 1.0);
/// # drop(request);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Greater than 0. With 1 the probabilities are the model's own; a lower temperature makes them steeper.
    pub temperature: f32,
    /// The number of tokens to draw from; `None` for all.
    pub top_k: Option<usize>,
    /// The share of the probability to draw from, greater than 0 and at most 1; `None` for all.
    pub top_p: Option<f32>,
    /// The least probability of a token to draw as a share of the largest probability, at least 0 and at most 1; `None` for
    /// all tokens. The probabilities are those at the temperature.
    pub min_p: Option<f32>,
    /// The repetition penalty, greater than 0, for tokens that occur in the prompt or have been generated: a positive logit is divided by
    /// it, and another one multiplied by it. 1 changes nothing, and more makes repetitions less likely.
    pub repetition_penalty: f32,
    /// The number that is subtracted from the logit of each token that has been generated for this request.
    pub presence_penalty: f32,
    /// The number that is subtracted from the logit of a token as many times as it has been generated for this request.
    pub frequency_penalty: f32,
    /// Numbers that are added to the logits of tokens. Those of a token that is named several times are all added.
    pub logit_bias: Vec<(i64, f32)>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    /// Temperature 1, all tokens, no penalties, seed 0.
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: vec![],
            seed: 0,
        }
    }
}

impl Request {
    /// The faults of the sampling parameters and of the number of log-probabilities.
    pub(super) fn problems(&self, vocabulary: usize) -> Vec<Problem> {
        let mut problems: Vec<Problem> = self.sampling.iter().flat_map(|s| s.problems(vocabulary)).collect();
        if let Some(n) = self.logprobs.filter(|n| *n > MOST_LOGPROBS) {
            problems.push(Problem::with_help(
                format!("log-probabilities of {n} tokens are asked for"),
                format!("{MOST_LOGPROBS} are the most"),
            ));
        }
        problems
    }
}

impl Sampling {
    /// Greedy decoding with these penalties and biases: the token with the largest logit is chosen after they have been applied. `None` if
    /// there are none, which a [`Request`](super::Request) takes for greedy decoding.
    ///
    /// ```
    /// use wgfc::Sampling;
    /// let penalised = Sampling { repetition_penalty: 1.1, ..Sampling::default() };
    /// assert_eq!(penalised.without_chance().and_then(|s| s.top_k), Some(1));
    /// assert_eq!(Sampling::default().without_chance(), None);
    /// ```
    pub fn without_chance(self) -> Option<Sampling> {
        let how = Sampling { temperature: 1.0, top_k: Some(1), top_p: None, min_p: None, ..self };
        how.adjusts().then_some(how)
    }

    /// Whether logits of single tokens are changed.
    pub(super) fn adjusts(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }

    /// The parameters that are invalid for a vocabulary of this size.
    pub(super) fn problems(&self, vocabulary: usize) -> Vec<Problem> {
        let mut problems = vec![];
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            problems.push(Problem::with_help(
                format!("the temperature is {}, which is not above 0", self.temperature),
                "0 on the command line stands for greedy decoding; in the library that is no sampling",
            ));
        }
        if self.top_k == Some(0) {
            problems.push(Problem::with_help(
                "top-k is 0: there would be no token to draw",
                "give 1 or more, or leave it out",
            ));
        }
        if self.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
            let p = self.top_p.unwrap_or_default();
            problems.push(Problem::with_help(
                format!("top-p is {p}: it is a share, above 0 and at most 1"),
                "0.9 is usual; leave it out to draw from all tokens",
            ));
        }
        if self.min_p.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
            let p = self.min_p.unwrap_or_default();
            problems.push(Problem::with_help(
                format!("min-p is {p}: it is a share of the largest probability, at least 0 and at most 1"),
                "0.05 is usual; leave it out to draw from all tokens",
            ));
        }
        let r = self.repetition_penalty;
        if !(r > 0.0 && r.is_finite()) {
            problems.push(Problem::with_help(
                format!("the repetition penalty is {r}, which is not above 0"),
                "1.1 is usual; 1 changes nothing",
            ));
        }
        for (name, penalty) in [("presence", self.presence_penalty), ("frequency", self.frequency_penalty)] {
            if !penalty.is_finite() {
                problems.push(Problem::with_help(
                    format!("the {name} penalty is {penalty}"),
                    "numbers between -2 and 2 are usual; 0 changes nothing",
                ));
            }
        }
        let known = 0..vocabulary as i64;
        let wrong = self.logit_bias.iter().find(|(token, bias)| !known.contains(token) || !bias.is_finite());
        if let Some((token, bias)) = wrong {
            problems.push(Problem::with_help(
                format!("the logit bias of token {token} is {bias}"),
                format!("give finite numbers for tokens 0 to {}", vocabulary.saturating_sub(1)),
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_without_sense_are_listed() {
        let bad = Sampling {
            temperature: f32::NAN,
            top_k: Some(0),
            top_p: Some(1.5),
            min_p: Some(-0.1),
            repetition_penalty: 0.0,
            presence_penalty: f32::NAN,
            frequency_penalty: f32::INFINITY,
            logit_bias: vec![(3, 1.0), (4, 1.0)],
            seed: 0,
        };
        assert_eq!(bad.problems(4).len(), 8);
        assert_eq!(bad.problems(5).len(), 7);
        assert!(Sampling::default().problems(1).is_empty());
    }
}
