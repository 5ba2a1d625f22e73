//! Parameters of `staged_loop.wgsl`.

use crate::Template;
use serde::Serialize;

/// A kernel each of whose workgroups runs a whole loop.
#[derive(Clone, Debug, Serialize)]
pub struct StagedLoop {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Why a lane takes a workgroup, in one line.
    pub why: String,
    /// Declarations of the arrays in workgroup memory.
    pub arrays: String,
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
    /// Statements over `lane`: the lane's position, what no step changes, the arrays' first elements; indented
    /// by 4.
    pub setup: String,
    /// Statements of a step, indented by 8.
    pub body: String,
    /// Statements after the last step, indented by 4.
    pub last: String,
}

impl Template for StagedLoop {
    const NAME: &'static str = "staged_loop.wgsl";
}
