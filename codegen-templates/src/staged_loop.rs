//! Parameters of `staged_loop.wgsl`.

use crate::Template;
use crate::looped::Steps;
use serde::Serialize;

/// A kernel each of whose workgroups runs a whole loop.
#[derive(Clone, Debug, Serialize)]
pub struct StagedLoop {
    /// Why a lane takes a workgroup, in one line.
    pub why: String,
    /// Declarations of the arrays in workgroup memory.
    pub arrays: String,
    /// The loop.
    #[serde(flatten)]
    pub steps: Steps,
}

impl Template for StagedLoop {
    const NAME: &'static str = "staged_loop.wgsl";
}
