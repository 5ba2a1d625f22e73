//! Parameters of `staged_loop.wgsl`.

use crate::looped::Steps;
use crate::{Local, Template};
use serde::Serialize;

/// A kernel each of whose workgroups runs a whole loop.
#[derive(Clone, Debug, Serialize)]
pub struct StagedLoop {
    /// Why a lane takes a workgroup, in one line.
    pub why: String,
    /// How invocations are numbered.
    pub local: Local,
    /// Declarations of the arrays in workgroup memory.
    pub arrays: String,
    /// The loop.
    #[serde(flatten)]
    pub steps: Steps,
}

impl Template for StagedLoop {
    const NAME: &'static str = "staged_loop.wgsl";
}
