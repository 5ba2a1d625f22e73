//! The time of one repetition from the times of few, half as many and many repetitions.

/// The time of one repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slope {
    /// The increase of the time per repetition.
    pub(crate) each: f64,
    /// Whether the time increases at one rate. If it does not, something else than the repetitions took time, and `each` may be
    /// wrong by any factor.
    pub(crate) straight: bool,
}

/// The largest ratio of the rates between few and half of the repetitions and between half and all of them.
const STRAIGHT: f64 = 1.1;

/// The slope through the least times of each number of repetitions, as other work only increases times. `rounds` holds the times
/// of `counts` repetitions, measured in turn: a disturbance that lasts for some milliseconds then meets all numbers of repetitions
/// in some of the rounds instead of one number in all of them. `None` if there are no rounds.
pub(crate) fn slope(counts: [f64; 3], rounds: &[[f64; 3]]) -> Option<Slope> {
    let least = |i: usize| rounds.iter().filter_map(|r| r.get(i)).copied().min_by(f64::total_cmp);
    let [few, half, many] = [least(0)?, least(1)?, least(2)?];
    let (lower, upper) = ((half - few) / (counts[1] - counts[0]), (many - half) / (counts[2] - counts[1]));
    let each = (many - few) / (counts[2] - counts[0]);
    if each > 0.0 {
        let straight = lower > 0.0 && upper > 0.0 && lower.max(upper) <= STRAIGHT * lower.min(upper);
        return Some(Slope { each, straight });
    }
    Some(Slope { each: many.max(1.0) / counts[2], straight: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: [f64; 3] = [8192.0, 16384.0, 32768.0];

    /// Times of repetitions of 35 ns behind an overhead of 60 µs, as one workgroup's arithmetic takes on an H100.
    fn rounds(extra: impl Fn(usize, usize) -> f64) -> Vec<[f64; 3]> {
        (0..6).map(|round| std::array::from_fn(|i| 60e3 + 35.0 * COUNTS[i] + extra(round, i))).collect()
    }

    fn close(s: Slope, straight: bool) {
        assert_eq!(s.straight, straight, "{s:?}");
        assert!((s.each / 35.0 - 1.0).abs() < 0.02, "{s:?}");
    }

    #[test]
    fn noise_a_slow_start_and_an_outlier_do_not_change_the_slope() {
        close(slope(COUNTS, &rounds(|_, _| 0.0)).unwrap(), true);
        // Up to 9 µs of noise.
        close(slope(COUNTS, &rounds(|r, i| ((r * 7 + i * 5) % 10) as f64 * 1e3)).unwrap(), true);
        // The clock rises during the first two rounds.
        close(slope(COUNTS, &rounds(|r, i| if r < 2 { 35.0 * COUNTS[i] } else { 0.0 })).unwrap(), true);
        close(slope(COUNTS, &rounds(|r, i| if (r, i) == (3, 0) { 5e6 } else { 0.0 })).unwrap(), true);
        // A disturbance of four rounds.
        close(slope(COUNTS, &rounds(|r, _| if r < 4 { 450e3 } else { 0.0 })).unwrap(), true);
    }

    #[test]
    fn times_on_no_straight_line_are_found() {
        // All of the few repetitions were disturbed, so that the many seem to take half of the time.
        let disturbed = slope(COUNTS, &rounds(|_, i| if i == 0 { 450e3 } else { 0.0 })).unwrap();
        assert!(!disturbed.straight && disturbed.each < 20.0, "{disturbed:?}");
        let backwards = slope(COUNTS, &rounds(|_, i| if i == 0 { 9e6 } else { 0.0 })).unwrap();
        assert!(!backwards.straight && backwards.each > 0.0, "{backwards:?}");
        assert_eq!(slope(COUNTS, &[]), None);
    }
}
