//! Rewrites of the graph.
//!
//! [`passes`](crate::passes) lists them in the order in which they run. [`branches`] and [`unroll`] flatten control flow, [`canonical`] cleans up,
//! [`recognise`] finds the raised operators that a pattern cannot describe, and [`region`] saturates the graph with the [`rules`].
//!
//! Rules are bounded by rounds and terms, never by time, and all passes visit nodes in an order determined by the
//! graph: the same graph always gives the same result.

pub mod branches;
pub mod canonical;
pub mod empty;
pub mod extract;
pub mod flattened;
pub mod fold;
pub mod grouped;
pub mod guards;
pub mod long_rows;
pub mod long_sums;
pub mod maps;
pub mod number;
pub mod parts;
pub mod products;
pub mod quantised;
pub mod recognise;
pub mod region;
pub mod rules;
pub mod sorts;
pub mod term;
pub mod unroll;
pub mod views;
pub mod winograd;

/// Figures about the rewrites of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteReport {
    /// The number of nodes before, including inputs and constants.
    pub nodes_before: usize,
    /// The number of nodes after the rewrites.
    pub nodes_after: usize,
    /// The number of conditions (`If`) replaced by both branches and a selection.
    pub branches: usize,
    /// The number of unrolled scans.
    pub unrolled: usize,
    /// Figures about saturation with the rules.
    pub rules: region::Outcome,
    /// The number of removed guards against NaN.
    pub nan_guards: usize,
    /// The number of recognised attentions.
    pub attentions: usize,
    /// The number of products in each merged group.
    pub merged: Vec<usize>,
    /// The number of reductions whose rows were cut into parts.
    pub rows_cut: usize,
    /// The number of convolutions computed with fewer multiplications.
    pub transformed: usize,
    /// The number of products whose sums were cut into slices.
    pub sums_cut: usize,
    /// The number of TopKs computed by sorting.
    pub sorted: usize,
}
