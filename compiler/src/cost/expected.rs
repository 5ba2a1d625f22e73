//! The sizes by which choices are compared.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wgfc_ir::Dim;

/// The value of a symbol where nobody says which to expect.
pub const ASSUMED: i64 = 64;

/// Expected values of symbols; the others count as [`ASSUMED`]. Programs are right for all values all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Expected(pub BTreeMap<String, i64>);

impl Expected {
    /// The value that a symbol counts as.
    pub fn symbol(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(ASSUMED)
    }

    /// A size that is a number, or is one by what somebody expects of each of its symbols.
    pub fn known(&self, d: &Dim) -> Option<i64> {
        d.eval_syms(&|s| self.0.get(s).copied())
    }

    /// A size as a plain number.
    pub fn estimate(&self, d: &Dim) -> i64 {
        d.eval_syms(&|s| Some(self.symbol(s))).unwrap_or(i64::MAX / 4).clamp(0, i64::MAX / 4)
    }

    /// An extent for estimates of time; at least 1.
    pub fn extent(&self, d: &Dim) -> f64 {
        d.eval_syms(&|s| Some(self.symbol(s))).unwrap_or(i64::MAX).max(1) as f64
    }

    /// An extent for estimates of time, which counts as `least` or more where it is not known.
    pub fn extent_or(&self, d: &Dim, least: f64) -> f64 {
        self.known(d).map_or(self.extent(d).max(least), |n| n.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_is_known() {
        let expect = Expected([("seq".to_owned(), 512)].into());
        let dim = |text: &str| Dim::parse(text).unwrap();
        for (text, known, estimate) in [
            ("7", Some(7), 7),
            ("2*seq + 1", Some(1025), 1025),
            ("seq*batch", None, 512 * ASSUMED),
            ("batch", None, ASSUMED),
        ] {
            let d = dim(text);
            assert_eq!((expect.known(&d), expect.estimate(&d)), (known, estimate), "{text}");
            assert_eq!(expect.extent(&d), estimate as f64);
            assert_eq!(expect.extent_or(&d, 1e6), known.map_or(1e6, |n| n as f64));
        }
        assert_eq!(Expected::default().known(&dim("seq")), None);
    }
}
