//! Comparisons between the rows of two records.

use super::record::{Better, Record, Row};

/// The difference between the measurements of one quantity in two records. See the example of [`compare`].
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The row's name.
    pub id: String,
    /// How many times as good the second record is, by the medians: 2 if it needs half the time.
    pub factor: f64,
    /// The probability of samples that differ as much if both had one distribution ([`mann_whitney`]), corrected for the number of
    /// rows that are compared ([`adjusted`]).
    pub p: f64,
    /// Whether the intervals of the medians overlap.
    pub overlap: bool,
    /// Whether one of the records says that the row is not stable, or has few samples ([`Measured::is_scarce`](super::Measured::is_scarce)).
    pub unstable: bool,
}

/// Compares the rows that both records have measured in the same unit, in the order of the first.
///
/// ```
/// use wgfc::suite::{Better, Device, Host, Reading, Record, Unit, compare};
/// let record = |samples: &[f64]| {
///     let mut r = Record::new(Device::default(), Host::default(), true);
///     r.add("t", 0, 1.0, vec![Reading::new("t/a", Unit::Seconds, Better::Less, samples.to_vec())]);
///     r
/// };
/// let (a, b) = (record(&[2.0, 2.1, 2.2, 2.3, 2.4]), record(&[1.0, 1.05, 1.1, 1.15, 1.2]));
/// let both = compare(&a, &b);
/// assert_eq!((both[0].factor, both[0].overlap), (2.0, false));
/// assert!(both[0].p < 0.05);
/// ```
pub fn compare(a: &Record, b: &Record) -> Vec<Comparison> {
    let pairs: Vec<(&Row, &Row)> =
        a.rows.iter().filter_map(|r| Some((r, b.row(&r.id).filter(|o| o.unit == r.unit)?))).collect();
    let mut out = vec![];
    for (row, other) in pairs {
        let (Some(x), Some(y)) = (row.measured(), other.measured()) else { continue };
        let factor = match row.better {
            Better::Less => x.median / y.median,
            Better::More => y.median / x.median,
        };
        let samples = |m: &super::Measured| m.samples().collect::<Vec<_>>();
        out.push(Comparison {
            id: row.id.clone(),
            factor,
            p: mann_whitney(&samples(x), &samples(y)),
            overlap: x.low <= y.high && y.low <= x.high,
            unstable: [x, y].iter().any(|m| m.unstable || m.is_scarce()),
        });
    }
    let p = adjusted(&out.iter().map(|c| c.p).collect::<Vec<_>>());
    out.iter_mut().zip(p).for_each(|(c, p)| c.p = p);
    out
}

/// The two-sided p-value of the Mann–Whitney U test of two samples, by the normal approximation with the correction for ties and for
/// continuity (Conover, Practical Nonparametric Statistics, 5.1); 1 if one of them is empty or all values are equal.
///
/// ```
/// let p = wgfc::suite::mann_whitney(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]);
/// assert!((p - 0.0122).abs() < 1e-3);
/// ```
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let (n, m) = (a.len() as f64, b.len() as f64);
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|v| (*v, true)).chain(b.iter().map(|v| (*v, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut ranks, mut ties, mut first) = (0.0, 0.0, 0);
    while let Some((value, _)) = all.get(first) {
        let equal = all[first..].iter().take_while(|v| v.0 == *value).count().max(1);
        // Equal values have the mean of their ranks.
        let rank = first as f64 + (equal as f64 + 1.0) / 2.0;
        ranks += rank * all[first..first + equal].iter().filter(|v| v.1).count() as f64;
        ties += (equal as f64).powi(3) - equal as f64;
        first += equal;
    }
    let total = n + m;
    let u = ranks - n * (n + 1.0) / 2.0;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance.is_nan() || variance <= 0.0 {
        return 1.0;
    }
    let z = ((u - n * m / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    // Twice the upper tail of the normal distribution.
    libm::erfc(z / std::f64::consts::SQRT_2).min(1.0)
}

/// p-values corrected for their number by Holm's method (Scandinavian Journal of Statistics 6, 1979).
///
/// ```
/// assert_eq!(wgfc::suite::adjusted(&[0.01, 0.5, 0.02]), [0.03, 0.5, 0.04]);
/// ```
pub fn adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut out = vec![1.0; p.len()];
    let mut least: f64 = 0.0;
    for (i, at) in order.into_iter().enumerate() {
        least = least.max((p[at] * (p.len() - i) as f64).min(1.0));
        out[at] = least;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of SciPy 1.17's `mannwhitneyu(a, b, method="asymptotic")`.
    #[test]
    fn p_values_are_those_of_scipy() {
        for (a, b, p) in [
            (&[1.0, 2.0, 3.0][..], &[1.0, 2.0, 3.0][..], 1.0),
            (&[1.1, 2.3, 2.9, 4.2], &[3.3, 5.1, 6.0, 7.5, 8.8], 0.037_336_415_920_662_88),
            (&[1.0, 1.0, 2.0, 3.0], &[2.0, 2.0, 3.0, 4.0], 0.230_804_379_939_273_94),
            (&[1.0, 1.0], &[1.0, 1.0, 1.0], 1.0),
            (&[], &[1.0], 1.0),
        ] {
            assert!((mann_whitney(a, b) - p).abs() < 1e-9, "{a:?} {b:?}: {}", mann_whitney(a, b));
        }
    }
}
