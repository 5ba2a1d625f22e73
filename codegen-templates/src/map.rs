//! Parameters of `map.wgsl`.

use crate::Template;
use serde::Serialize;

/// A kernel in which every invocation computes `per_thread` neighbouring elements.
#[derive(Clone, Debug, Serialize)]
pub struct Map {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Elements of one invocation.
    pub per_thread: u32,
    /// Number of elements, an `i32` expression.
    pub count: String,
    /// Statements before any element, indented by 4.
    pub setup: String,
    /// Statements for element `v0`, indented by 4, or by 8 where `per_thread > 1`.
    pub body: String,
}

impl Template for Map {
    const NAME: &'static str = "map.wgsl";
}
