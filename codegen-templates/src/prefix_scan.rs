//! Parameters of `prefix_scan.wgsl` and `prefix_scan_shared.wgsl`.

use crate::Template;
use serde::Serialize;

/// A kernel that combines a row's positions one after another and stores every intermediate result.
#[derive(Clone, Debug, Serialize)]
pub struct PrefixScan {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Number of rows, an `i32` expression.
    pub rows: String,
    /// Positions of a row, an `i32` expression.
    pub len: String,
    /// Whether the row runs from its end.
    pub reverse: bool,
    /// Statements over the row `v0`, the accumulator's declaration included, indented by 4.
    pub setup: String,
    /// Statements for position `v1`, indented by 8.
    pub body: String,
}

impl Template for PrefixScan {
    const NAME: &'static str = "prefix_scan.wgsl";
}

/// [`PrefixScan`] with a workgroup for each row.
#[derive(Clone, Debug, Serialize)]
pub struct PrefixScanShared {
    /// The parameters that both templates take.
    #[serde(flatten)]
    pub scan: PrefixScan,
    /// Type of the accumulator.
    pub ty: String,
    /// The identity of the combination: the accumulator before the first position.
    pub first: String,
    /// An expression that combines `acc0` with `next`, which comes after it.
    pub combine: String,
    /// Statements that combine position `v1` only, indented by 8.
    pub total: String,
}

impl Template for PrefixScanShared {
    const NAME: &'static str = "prefix_scan_shared.wgsl";
}
