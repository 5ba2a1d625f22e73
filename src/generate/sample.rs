//! How the next token is drawn from its logits.

use crate::random::Rng;
use crate::{Error, Problem};

/// How tokens are drawn: the logits are divided by the temperature, the `top_k` largest of them stay, of
/// their probabilities (softmax) the largest that add up to `top_p`, and one is drawn. The same seed gives
/// the same tokens for the same logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Above 0; 1 leaves the probabilities as the model has them, less makes them steeper.
    pub temperature: f32,
    /// How many tokens to draw from; all without it.
    pub top_k: Option<usize>,
    /// Their share of the probability, above 0 and at most 1.
    pub top_p: Option<f32>,
    /// Where the random numbers begin.
    pub seed: u64,
}

impl Default for Sampling {
    /// Temperature 1, all tokens, seed 0.
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: None, top_p: None, seed: 0 }
    }
}

impl Sampling {
    /// What makes no sense about it.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = vec![];
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            problems.push(Problem::with_help(
                format!("the temperature is {}, which is not above 0", self.temperature),
                "0 on the command line stands for greedy decoding; in the library that is no sampling",
            ));
        }
        if self.top_k == Some(0) {
            problems.push(Problem::new("top-k is 0: there would be no token to draw"));
        }
        if self.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
            let p = self.top_p.unwrap_or_default();
            problems.push(Problem::new(format!("top-p is {p}: it is a share, above 0 and at most 1")));
        }
        problems
    }
}

/// A sampling and its random numbers.
pub(super) struct Sampler {
    how: Sampling,
    rng: Rng,
}

impl Sampler {
    pub fn new(how: Sampling) -> Sampler {
        Sampler { rng: Rng::new(how.seed, "tokens"), how }
    }

    /// Draws a token. `-inf` is a token that cannot be.
    ///
    /// # Errors
    /// Logits that are NaN, and none or an infinite one to draw from.
    pub fn choose(&mut self, logits: &[f32]) -> Result<usize, Error> {
        let wrong = |m: String| {
            Error::usage(
                m,
                "the model overflows or its weights are damaged: `wgfc run` shows its outputs; nothing of this step was kept",
            )
        };
        let nan = logits.iter().filter(|l| l.is_nan()).count();
        if nan > 0 {
            return Err(wrong(format!(
                "{nan} of {} logits are not numbers (NaN): nothing can be drawn",
                logits.len()
            )));
        }
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !max.is_finite() {
            return Err(wrong(format!("the largest logit is {max}: nothing can be drawn")));
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let larger = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        if let Some(k) = self.how.top_k.filter(|k| *k < order.len() && *k > 0) {
            order.select_nth_unstable_by(k - 1, larger);
            order.truncate(k);
        }
        if self.how.top_k.is_some() || self.how.top_p.is_some() {
            order.sort_unstable_by(larger);
        }
        let weight = |i: &usize| f64::from((logits[*i] - max) / self.how.temperature).exp();
        let mut weights: Vec<f64> = order.iter().map(weight).collect();
        if let Some(p) = self.how.top_p.filter(|p| *p < 1.0) {
            let enough = f64::from(p) * weights.iter().sum::<f64>();
            let mut sum = 0.0;
            let before = weights.iter().take_while(|w| {
                sum += **w;
                sum < enough
            });
            let keep = before.count() + 1;
            weights.truncate(keep);
        }
        let total: f64 = weights.iter().sum();
        let mut left = total * (self.rng.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let drawn = weights.iter().position(|w| {
            left -= w;
            left < 0.0
        });
        // Rounding may leave a little at the end.
        let drawn = drawn.or_else(|| weights.iter().rposition(|w| *w > 0.0)).unwrap_or(0);
        Ok(order.get(drawn).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(how: Sampling, logits: &[f32]) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        let mut s = Sampler::new(how);
        for _ in 0..20_000 {
            counts[s.choose(logits).unwrap()] += 1.0 / 20_000.0;
        }
        counts
    }

    #[track_caller]
    fn close(got: &[f64], want: &[f64]) {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.015), "{got:?} for {want:?}");
        assert!(got.iter().zip(want).all(|(g, w)| (*w == 0.0) == (*g == 0.0)), "{got:?} for {want:?}");
    }

    #[test]
    fn tokens_come_as_often_as_their_probabilities_say() {
        let p = [0.1f32, 0.4, 0.0, 0.2, 0.3];
        let logits = p.map(|p| 3.0 + p.ln());
        let all = Sampling { seed: 5, ..Sampling::default() };
        close(&shares(all.clone(), &logits), &[0.1, 0.4, 0.0, 0.2, 0.3]);
        let k = Sampling { top_k: Some(2), ..all.clone() };
        close(&shares(k, &logits), &[0.0, 4.0 / 7.0, 0.0, 0.0, 3.0 / 7.0]);
        let top = Sampling { top_p: Some(0.75), ..all.clone() };
        close(&shares(top, &logits), &[0.0, 4.0 / 9.0, 0.0, 2.0 / 9.0, 3.0 / 9.0]);
        let both = Sampling { top_p: Some(0.5), top_k: Some(3), ..all.clone() };
        close(&shares(both, &logits), &[0.0, 4.0 / 7.0, 0.0, 0.0, 3.0 / 7.0]);
        // At half the temperature probabilities are squared.
        let cold = Sampling { temperature: 0.5, ..all };
        close(&shares(cold, &logits), &[1.0 / 30.0, 16.0 / 30.0, 0.0, 4.0 / 30.0, 9.0 / 30.0]);
    }

    #[test]
    fn a_seed_gives_the_same_tokens_and_extremes_are_safe() {
        let logits: Vec<f32> = (0..50).map(|i| (i * 7 % 13) as f32 * 0.3).collect();
        let draw = |seed| {
            let mut s = Sampler::new(Sampling { seed, ..Sampling::default() });
            (0..20).map(|_| s.choose(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
        let tiny = Sampling { temperature: 1e-30, top_p: Some(1e-6), ..Sampling::default() };
        assert_eq!(Sampler::new(tiny).choose(&[1.0, 2.0, -3e38]).unwrap(), 1);
        let one = Sampling { top_k: Some(1), ..Sampling::default() };
        assert_eq!(Sampler::new(one).choose(&[5.0, 5.0]).unwrap(), 0);
        let plain = || Sampler::new(Sampling::default());
        for bad in [&[1.0, f32::NAN][..], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY; 3], &[]] {
            assert!(plain().choose(bad).is_err(), "{bad:?}");
        }
        assert_eq!(plain().choose(&[f32::NEG_INFINITY, 0.0]).unwrap(), 1);
    }

    #[test]
    fn parameters_without_sense_are_listed() {
        let bad = Sampling { temperature: f32::NAN, top_k: Some(0), top_p: Some(1.5), seed: 0 };
        assert_eq!(bad.problems().len(), 3);
        assert!(Sampling::default().problems().is_empty());
    }
}
