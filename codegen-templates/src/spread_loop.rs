//! Parameters of `spread_loop.wgsl`.

use crate::Template;
use crate::staged_loop::Steps;
use serde::Serialize;

/// A loop of which several workgroups share each lane.
#[derive(Clone, Debug, Serialize)]
pub struct SpreadLoop {
    /// Why a lane takes a workgroup, in one line.
    pub why: String,
    /// Declarations of the arrays in workgroup memory.
    pub arrays: String,
    /// The array of atomic words in which the workgroups meet.
    pub words: String,
    /// Workgroups of a lane.
    pub groups: u32,
    /// How often an invocation looks for a value.
    pub polls: u32,
    /// The loop.
    #[serde(flatten)]
    pub steps: Steps,
}

impl Template for SpreadLoop {
    const NAME: &'static str = "spread_loop.wgsl";
}
