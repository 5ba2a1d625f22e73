//! Proposals from the text itself.

use super::Proposer;
use crate::Error;

/// The longest match that is counted. Longer ones are equal.
const LONGEST: usize = 16;

/// Prompt look-up: the last tokens are searched for in all earlier ones, and the tokens that followed there are proposed. The
/// longest match counts, of equally long ones the latest. It needs no second model, and finds what answers repeat: names,
/// quotations, code that is edited, lists. (Saxena, *Prompt Lookup Decoding*, 2023.)
///
/// ```
/// use wgfc::generate::{Lookup, Proposer};
/// let mut lookup = Lookup::default();
/// assert_eq!(lookup.propose(&[1, 2, 3, 4, 5, 1, 2, 3], 4)?, [4, 5, 1, 2]);
/// // Two equal tokens are too few.
/// assert!(lookup.propose(&[1, 2, 3, 0, 2, 3], 4)?.is_empty());
/// # Ok::<(), wgfc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The least number of equal tokens, at least 1.
    pub least: usize,
}

impl Default for Lookup {
    /// Three equal tokens: two occur together again by chance too often.
    fn default() -> Lookup {
        Lookup { least: 3 }
    }
}

impl Lookup {
    /// The end of the best match of at least `least` of the last tokens: the position of the token that followed there.
    fn matching(tokens: &[i64], least: usize) -> Option<usize> {
        let last = *tokens.last().filter(|t| **t >= 0)?;
        let mut best = (least.max(1) - 1, None);
        for end in (1..tokens.len()).rev() {
            if tokens[end - 1] != last {
                continue;
            }
            let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
            let length = pairs.take(LONGEST).take_while(|(a, b)| a == b && **a >= 0).count();
            if length > best.0 {
                best = (length, Some(end));
                if length == LONGEST {
                    break;
                }
            }
        }
        best.1
    }
}

impl Proposer for Lookup {
    fn propose(&mut self, tokens: &[i64], most: usize) -> Result<Vec<i64>, Error> {
        let Some(from) = Lookup::matching(tokens, self.least) else { return Ok(vec![]) };
        // A match that overlaps the end goes on periodically.
        let period = tokens.len() - from;
        let follows = |i: usize| tokens[from + i % period];
        Ok((0..most).map(follows).take_while(|t| *t >= 0).collect())
    }

    fn expects(&self, tokens: &[i64]) -> bool {
        self.least <= 1 || Lookup::matching(tokens, self.least - 1).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_latest_match_is_continued() {
        let propose = |tokens: &[i64], most| Lookup::default().propose(tokens, most).unwrap();
        // The later of two matches of three tokens, and an earlier one of four.
        assert_eq!(propose(&[1, 2, 3, 7, 1, 2, 3, 8, 0, 1, 2, 3], 1), [8]);
        assert_eq!(propose(&[9, 1, 2, 3, 7, 1, 2, 3, 8, 9, 1, 2, 3], 1), [7]);
        // Periods.
        assert_eq!(propose(&[5, 5, 5, 5], 6), [5; 6]);
        assert_eq!(propose(&[0, 1, 2, 0, 1, 2], 5), [0, 1, 2, 0, 1]);
        // Unknown tokens match nothing and are not proposed.
        assert!(propose(&[-1, -1, -1, -1], 3).is_empty());
        assert_eq!(propose(&[1, 2, 3, 4, -1, 1, 2, 3], 3), [4]);
        assert!(propose(&[1, 2, 3], 3).is_empty() && propose(&[], 3).is_empty());
    }

    #[test]
    fn a_proposal_is_expected_where_one_token_may_complete_a_match() {
        let lookup = Lookup::default();
        for tokens in [&[1, 2, 3, 9, 1, 2][..], &[1, 2, 7, 9, 1, 2]] {
            assert!(lookup.expects(tokens));
        }
        assert!(!lookup.expects(&[1, 2, 3, 9, 2, 1]));
        assert!(!lookup.expects(&[]));
    }
}
