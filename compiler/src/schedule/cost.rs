//! Sizes and times that choices are compared by.

use wgfc_ir::Dim;

/// What a symbol counts as where nothing better is known.
pub const ASSUMED: i64 = 64;

/// A size as a plain number, symbols at [`ASSUMED`].
pub fn estimate(d: &Dim) -> i64 {
    d.eval_syms(&|_| Some(ASSUMED)).unwrap_or(i64::MAX / 4).clamp(0, i64::MAX / 4)
}
