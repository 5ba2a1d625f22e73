//! Parameters of `staged_loop.wgsl`, and those that it shares with `spread_loop.wgsl`.

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

/// A loop of steps for each of a number of lanes.
#[derive(Clone, Debug, Serialize)]
pub struct Steps {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Number of lanes, an `i32` expression.
    pub lanes: String,
    /// Number of steps, an `i32` expression.
    pub steps: String,
    /// The name of the step's number.
    pub step_var: String,
    /// The number of the first step, an `i32` expression.
    pub first_step: String,
    /// The number behind that of the last step, an `i32` expression over `steps`.
    pub end: String,
    /// Statements over `lane`: the lane's position, what no step changes, what is carried at first; indented by 4.
    pub setup: String,
    /// Statements of a step, indented by 8.
    pub body: String,
    /// Statements after the last step, indented by 4.
    pub last: String,
}
