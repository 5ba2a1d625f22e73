//! Rewrites of the graph by equality saturation.

use wgfc_ir::Graph;

/// Rewrites `graph` in place.
pub fn rewrite(graph: &mut Graph) -> Result<(), crate::Errors> {
    let _ = graph;
    Ok(())
}
