//! Estimates from repeated measurements.

use std::sync::Arc;

/// The median of samples with its 95% confidence interval.
///
/// ```
/// use wgfc_runtime::Estimate;
/// let e = Estimate::of(vec![3.0, 1.0, 2.0]).unwrap();
/// assert_eq!((e.low, e.median, e.high), (1.0, 2.0, 3.0));
/// assert_eq!(e.scaled(1e-3).median, 2e-3);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// All measurements, in the order in which they were taken.
    pub samples: Arc<[f64]>,
}

impl Estimate {
    /// The estimate from `samples`, in the order in which they were taken; `None` for no samples.
    ///
    /// The interval's ends are order statistics, which need no assumption about the distribution: the ranks n/2 ∓ 1.96·√n/2,
    /// rounded up, from the normal approximation of the binomial distribution (Conover, Practical Nonparametric Statistics, 3.2).
    /// For fewer than six samples the interval spans all of them, and its confidence is below 95%.
    pub fn of(samples: Vec<f64>) -> Option<Estimate> {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let half = n as f64 / 2.0;
        let spread = 1.96 * (n as f64).sqrt() / 2.0;
        let rank = |r: f64| sorted.get((r.ceil().max(1.0) as usize).min(n).checked_sub(1)?).copied();
        let (below, above) = (rank(half)?, rank((n + 1) as f64 / 2.0)?);
        Some(Estimate {
            median: (below + above) / 2.0,
            low: rank(half - spread)?,
            high: rank(half + spread)?,
            samples: samples.into(),
        })
    }

    /// The estimate of values `factor` times as large.
    pub fn scaled(self, factor: f64) -> Estimate {
        Estimate {
            median: self.median * factor,
            low: self.low * factor,
            high: self.high * factor,
            samples: self.samples.iter().map(|s| s * factor).collect(),
        }
    }

    /// The standard deviation of the measurements over their mean; 0 for a single one.
    ///
    /// ```
    /// use wgfc_runtime::Estimate;
    /// let e = Estimate::of(vec![1.0, 2.0, 3.0]).unwrap();
    /// assert_eq!(e.variation(), 0.5);
    /// ```
    pub fn variation(&self) -> f64 {
        let n = self.samples.len() as f64;
        let mean = self.samples.iter().sum::<f64>() / n;
        let squares: f64 = self.samples.iter().map(|s| (s - mean).powi(2)).sum();
        if n < 2.0 || mean == 0.0 { 0.0 } else { (squares / (n - 1.0)).sqrt() / mean.abs() }
    }

    /// The number of measurements that lie more than 1.5 interquartile ranges outside of the quartiles (Tukey, Exploratory Data
    /// Analysis, 2C). Quartiles are the medians of the halves.
    ///
    /// ```
    /// use wgfc_runtime::Estimate;
    /// let e = Estimate::of(vec![5.0, 1.0, 1.1, 0.9, 1.0, 1.2]).unwrap();
    /// assert_eq!(e.outliers(), 1);
    /// ```
    pub fn outliers(&self) -> usize {
        let mut sorted = self.samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = |of: &[f64]| match of.len() {
            0 => self.median,
            n => (of[(n - 1) / 2] + of[n / 2]) / 2.0,
        };
        let (low, high) = (median(&sorted[..n / 2]), median(&sorted[n.div_ceil(2)..]));
        let reach = 1.5 * (high - low);
        sorted.iter().filter(|s| **s < low - reach || **s > high + reach).count()
    }
}

/// The value on which most of several measurements of one quantity agree.
///
/// ```
/// use wgfc_runtime::stats::Majority;
/// let m = Majority::of(&[129.0, 59.0, 131.0]).unwrap();
/// assert_eq!((m.value, m.agree), (130.0, true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Majority {
    /// The median of those measurements, more than half of all, that lie closest together.
    pub value: f64,
    /// Whether there are at least two of them and the largest is at most [`Majority::APART`] times the smallest.
    pub agree: bool,
}

impl Majority {
    /// The ratio up to which measurements agree. Noise that cannot be avoided (clock rates, caches) is a few percent, and choices
    /// of kernels change little within this ratio.
    pub const APART: f64 = 1.15;

    /// The majority of positive `samples`, in any order; `None` for no samples.
    pub fn of(samples: &[f64]) -> Option<Majority> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let most = sorted.len() / 2 + 1;
        let ratio = |w: &[f64]| match w {
            [first, .., last] => last / first,
            _ => f64::INFINITY,
        };
        let closest = sorted.windows(most).min_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
        let value = Estimate::of(closest.to_vec())?.median;
        Some(Majority { value, agree: ratio(closest) <= Majority::APART })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_ignores_the_minority() {
        let of = |samples: &[f64]| Majority::of(samples).map(|m| (m.value, m.agree));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[5.0]), Some((5.0, false)));
        assert_eq!(of(&[100.0, 102.0]), Some((101.0, true)));
        // Numbers of cores measured on an H100.
        assert_eq!(of(&[128.6, 59.15]), Some((93.875, false)));
        assert_eq!(of(&[59.15, 128.6, 129.0]), Some((128.8, true)));
        // One half is no majority.
        assert!(!of(&[59.0, 59.5, 128.6, 129.0]).unwrap().1);
        assert_eq!(of(&[59.0, 128.6, 300.0, 129.0, 128.8]), Some((128.8, true)));
        assert!(!of(&[50.0, 70.0, 90.0, 120.0, 150.0]).unwrap().1);
    }

    #[test]
    fn the_interval_is_of_order_statistics() {
        assert_eq!(Estimate::of(vec![]), None);
        let of = |n: usize| {
            let e = Estimate::of((1..=n).rev().map(|v| v as f64).collect()).unwrap();
            (e.low, e.median, e.high)
        };
        assert_eq!(of(1), (1.0, 1.0, 1.0));
        assert_eq!(of(2), (1.0, 1.5, 2.0));
        assert_eq!(of(5), (1.0, 3.0, 5.0));
        assert_eq!(of(30), (10.0, 15.5, 21.0));
        assert_eq!(of(101), (41.0, 51.0, 61.0));
    }
}
