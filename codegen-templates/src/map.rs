//! Parameters of `map.wgsl` and `map_unrolled.wgsl`.

use crate::Template;
use serde::Serialize;

/// A kernel in which every invocation computes one element, a group of neighbours at once, or neighbours one after another.
#[derive(Clone, Debug, Serialize)]
pub struct Map {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Neighbours that an invocation computes one after another.
    pub per_thread: u32,
    /// Neighbours that it computes at once; one of the two is 1.
    pub group: u32,
    /// Number of elements, or of groups where `group > 1`, an `i32` expression.
    pub count: String,
    /// Statements before any element, indented by 4.
    pub setup: String,
    /// Statements for element or group `v0`, indented by 4, or by 8 where `per_thread > 1`.
    pub body: String,
}

impl Template for Map {
    const NAME: &'static str = "map.wgsl";
}

/// A kernel in which every invocation computes several elements, or groups of neighbours, a workgroup's width apart.
#[derive(Clone, Debug, Serialize)]
pub struct Unrolled {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Names of the positions that an invocation computes.
    pub positions: Vec<String>,
    /// Neighbours of a group.
    pub group: u32,
    /// Number of groups, an `i32` expression.
    pub count: String,
    /// Statements before any position, indented by 4.
    pub setup: String,
    /// Statements for all positions, indented by 4.
    pub body: String,
}

impl Template for Unrolled {
    const NAME: &'static str = "map_unrolled.wgsl";
}
