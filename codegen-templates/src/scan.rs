//! Parameters of `scan.wgsl` and `scan_shared.wgsl`.

use crate::Template;
use serde::Serialize;

/// A kernel that combines a row's positions one after another and stores every intermediate result.
#[derive(Clone, Debug, Serialize)]
pub struct Scan {
    /// Bindings and functions.
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

impl Template for Scan {
    const NAME: &'static str = "scan.wgsl";
}

/// The same, a workgroup for each row.
#[derive(Clone, Debug, Serialize)]
pub struct ScanShared {
    /// What both have.
    #[serde(flatten)]
    pub scan: Scan,
    /// Type of the accumulator.
    pub ty: String,
    /// The accumulator of no positions.
    pub first: String,
    /// `acc0` and then `next`.
    pub combine: String,
    /// Statements that combine position `v1` only, indented by 8.
    pub total: String,
}

impl Template for ScanShared {
    const NAME: &'static str = "scan_shared.wgsl";
}
