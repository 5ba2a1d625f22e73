//! How the next token is sampled from its logits.

use crate::Problem;

/// Sampling parameters. The logits are divided by the temperature, the `top_k` largest of them are kept, of their
/// probabilities (softmax) the largest ones that add up to `top_p` are kept, and one token is drawn. Equal logits are all
/// kept or all dropped; a `top_k` of 1 is greedy. The same seed gives the same tokens for the same logits.
///
/// ```
/// use wgfc::{Request, Sampling};
/// let sampling = Sampling { temperature: 0.8, top_k: Some(40), top_p: Some(0.95), seed: 7 };
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
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    /// Temperature 1, all tokens, seed 0.
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: None, top_p: None, seed: 0 }
    }
}

impl Sampling {
    /// The parameters that are invalid.
    pub(super) fn problems(&self) -> Vec<Problem> {
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
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_without_sense_are_listed() {
        let bad = Sampling { temperature: f32::NAN, top_k: Some(0), top_p: Some(1.5), seed: 0 };
        assert_eq!(bad.problems().len(), 3);
        assert!(Sampling::default().problems().is_empty());
    }
}
