//! Parameters of `prefix_scan_shared.wgsl`.

use crate::Template;
use serde::Serialize;

/// A prefix scan by invocations that share a row.
#[derive(Clone, Debug, Serialize)]
pub struct PrefixScanShared {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Invocations that share a row, a power of two.
    pub lanes: u32,
    /// Powers of two below `lanes`.
    pub doublings: Vec<u32>,
    /// Rows of a workgroup.
    pub beside: u32,
    /// Neighbouring positions of an invocation.
    pub each: u32,
    /// Positions of a row that are in workgroup memory together.
    pub span: u32,
    /// Bits of a value's place that are mixed with those of its number.
    pub spread: u32,
    /// Number of rows, an `i32` expression.
    pub rows: String,
    /// Positions of a row, an `i32` expression.
    pub len: String,
    /// Whether the row runs from its end.
    pub reverse: bool,
    /// Whether the position itself is left out.
    pub exclusive: bool,
    /// Type of the accumulator.
    pub ty: String,
    /// The identity of the combination.
    pub first: String,
    /// An expression that combines `acc0` with `next`, which comes after it.
    pub combine: String,
    /// Statements that make the value of position `v1` of row `v0` and put it into `next`, indented by 16.
    pub value: String,
    /// Statements that store what `acc0` is there, indented by 16.
    pub body: String,
}

impl Template for PrefixScanShared {
    const NAME: &'static str = "prefix_scan_shared.wgsl";
}
