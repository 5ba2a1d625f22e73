//! Conditions and short loops.

use super::{Context, Scope};
use crate::rewrite::{branches, unroll};
use wgfc_ir::Graph;

/// Flattens conditions and unrolls short loops. An unrolled loop may hold branches, and a flattened branch may hold loops, so
/// both repeat until nothing changes.
pub(super) fn flatten(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), String> {
    let iterations = if cx.scope == Scope::Body { unroll::ITERATIONS } else { 1 };
    loop {
        let (branches, unrolled) = (branches::flatten(graph)?, unroll::unroll(graph, iterations)?);
        cx.report.branches += branches;
        cx.report.unrolled += unrolled;
        if unrolled == 0 {
            return Ok(());
        }
    }
}
