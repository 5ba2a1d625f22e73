//! The passes over a row that compute its reductions and stores.

use super::dependence::{Dependence, Deps, acc_bit};
use super::{ExprId, ReduceKind, Reduction, Store};

/// One pass over the row: the numbers of its reductions and stores, in groups of `width` neighbours.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Reductions whose results are known after the pass.
    pub reductions: Vec<usize>,
    /// Stores.
    pub stores: Vec<usize>,
}

impl Pass {
    /// The expressions that it evaluates at each position.
    pub fn roots(&self, reductions: &[Reduction], stores: &[Store], width: usize) -> Vec<ExprId> {
        let combined =
            self.reductions.iter().flat_map(|i| group(reductions, *i, width)).flat_map(each_position);
        let stored = self.stores.iter().flat_map(|i| group(stores, *i, width)).flat_map(Store::reads);
        combined.chain(stored).collect()
    }
}

/// The expression that a reduction evaluates at each position.
fn each_position(r: &Reduction) -> Vec<ExprId> {
    match r.kind {
        ReduceKind::Last { when, .. } => vec![when, r.value],
        _ => vec![r.value],
    }
}

/// Group `i` of `width` neighbours.
pub fn group<T>(all: &[T], i: usize, width: usize) -> &[T] {
    all.get(i * width..(i + 1) * width).unwrap_or_default()
}

/// The passes of a row, with each reduction and store in the earliest possible one. Both come in groups of `width` neighbours.
pub fn passes(deps: &Dependence, reductions: &[Reduction], stores: &[Store], width: usize) -> Vec<Pass> {
    let mut passes = vec![Pass::default()];
    // For each result, the pass after which it is known.
    let mut known_after: Vec<usize> = vec![];
    let first_pass = |needs: Deps, known_after: &[usize]| {
        let needed = known_after.iter().enumerate().filter(|(i, _)| needs & acc_bit(*i as u32) != 0);
        needed.map(|(_, p)| p + 1).max().unwrap_or(0)
    };
    for (i, r) in reductions.chunks(width).enumerate() {
        let roots = r.iter().flat_map(Reduction::roots);
        let at = first_pass(roots.fold(0, |d, e| d | deps.expr(e)), &known_after);
        known_after.push(at);
        passes.resize_with(passes.len().max(at + 1), Pass::default);
        passes[at].reductions.push(i);
    }
    for (i, s) in stores.chunks(width).enumerate() {
        let offsets = s.iter().fold(0, |d, s| d | deps.poly(&s.offset));
        let at =
            first_pass(s.iter().flat_map(Store::reads).fold(offsets, |d, e| d | deps.expr(e)), &known_after);
        passes.resize_with(passes.len().max(at + 1), Pass::default);
        passes[at].stores.push(i);
    }
    passes
}
