//! Parameters of `sort_block.wgsl`, `sort_select.wgsl`, `sort_path.wgsl` and `sort_merge.wgsl`.

use crate::Template;
use serde::Serialize;

/// The parameters that all of the templates take.
#[derive(Clone, Debug, Serialize)]
pub struct Keys {
    /// Text before the entry point: declarations of the bindings, and functions; among them `key(row, position)` and
    /// `lt_u64`.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Number of rows, an `i32` expression.
    pub rows: String,
    /// Positions of a row, an `i32` expression.
    pub len: String,
    /// Places of a row, an `i32` expression.
    pub places: String,
    /// Parts of a row, an `i32` expression.
    pub parts: String,
    /// Positions of a part.
    pub part: i32,
    /// Keys of a part that are kept.
    pub keep: i32,
    /// How far apart the first places of two parts are.
    pub apart: i32,
    /// Statements that store key `acc0` at place `v2` of row `v0`, indented by 12, in `sort_merge` by 4.
    pub body: String,
}

/// A kernel whose workgroups sort parts in their memory.
#[derive(Clone, Debug, Serialize)]
pub struct SortBlock {
    /// The parameters that all of the templates take.
    #[serde(flatten)]
    pub keys: Keys,
    /// Keys of an invocation, a power of two.
    pub each: u32,
    /// Keys of a workgroup.
    pub count: u32,
    /// A part is made of `2^span_bits` neighbouring keys.
    pub span_bits: u32,
    /// `each` is `2^bits`.
    pub bits: u32,
    /// Pairs of an invocation's keys that put them in order.
    pub first: Vec<[u32; 2]>,
}

impl Template for SortBlock {
    const NAME: &'static str = "sort_block.wgsl";
}

/// A kernel whose workgroups go through parts and keep the least keys.
#[derive(Clone, Debug, Serialize)]
pub struct SortSelect {
    /// The parameters that all of the templates take.
    #[serde(flatten)]
    pub keys: Keys,
    /// Keys of an invocation, a power of two from 2 on.
    pub each: u32,
    /// Keys of a workgroup, at least twice those that are kept.
    pub count: u32,
    /// `each` is `2^bits`.
    pub bits: u32,
    /// `count` is `2^count_bits`.
    pub count_bits: u32,
    /// Pairs of an invocation's keys that put them in order.
    pub first: Vec<[u32; 2]>,
}

impl Template for SortSelect {
    const NAME: &'static str = "sort_select.wgsl";
}

/// A kernel whose workgroups merge pairs of runs.
#[derive(Clone, Debug, Serialize)]
pub struct SortPath {
    /// The parameters that all of the templates take.
    #[serde(flatten)]
    pub keys: Keys,
    /// Keys of a run; `count` divides it.
    pub sorted: i32,
    /// Keys of an invocation.
    pub each: u32,
    /// Keys of a workgroup.
    pub count: u32,
    /// Rounds of the search for a workgroup's keys.
    pub rounds: u32,
    /// Steps of the search for an invocation's keys.
    pub steps: u32,
}

impl Template for SortPath {
    const NAME: &'static str = "sort_path.wgsl";
}

/// A kernel that merges runs, an invocation for each key.
#[derive(Clone, Debug, Serialize)]
pub struct SortMerge {
    /// The parameters that all of the templates take.
    #[serde(flatten)]
    pub keys: Keys,
    /// Keys of a run.
    pub sorted: i32,
    /// Steps of a search in a run.
    pub steps: u32,
}

impl Template for SortMerge {
    const NAME: &'static str = "sort_merge.wgsl";
}
