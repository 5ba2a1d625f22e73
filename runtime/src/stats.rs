//! Estimates from repeated measurements.

/// The median of samples with its 95% confidence interval.
///
/// ```
/// use wgfc_runtime::Estimate;
/// let e = Estimate::of(vec![3.0, 1.0, 2.0]).unwrap();
/// assert_eq!((e.low, e.median, e.high), (1.0, 2.0, 3.0));
/// assert_eq!(e.scaled(1e-3).median, 2e-3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// The estimate from `samples`, in any order; `None` for no samples.
    ///
    /// The interval's ends are order statistics, which need no assumption about the distribution: the ranks n/2 ∓ 1.96·√n/2,
    /// rounded up, from the normal approximation of the binomial distribution (Conover, Practical Nonparametric Statistics, 3.2).
    /// For fewer than six samples the interval spans all of them, and its confidence is below 95%.
    pub fn of(mut samples: Vec<f64>) -> Option<Estimate> {
        samples.sort_by(f64::total_cmp);
        let n = samples.len();
        let half = n as f64 / 2.0;
        let spread = 1.96 * (n as f64).sqrt() / 2.0;
        let rank = |r: f64| samples.get((r.ceil().max(1.0) as usize).min(n).checked_sub(1)?).copied();
        let (below, above) = (rank(half)?, rank((n + 1) as f64 / 2.0)?);
        Some(Estimate {
            median: (below + above) / 2.0,
            low: rank(half - spread)?,
            high: rank(half + spread)?,
        })
    }

    /// The estimate of values `factor` times as large.
    pub fn scaled(self, factor: f64) -> Estimate {
        Estimate { median: self.median * factor, low: self.low * factor, high: self.high * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
