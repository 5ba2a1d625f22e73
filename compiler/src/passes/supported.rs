//! Bodies that no kernels can be made of.

use crate::error::Errors;
use crate::fuse::loops::prepare::Refused;
use crate::fuse::refused;
use wgfc_ir::{Graph, NodeId, Op};

/// Refuses bodies that compute a size.
pub(super) fn check(graph: &Graph) -> Result<(), Errors> {
    let computes = |n: &NodeId| match &graph.node(*n).op {
        Op::If { then_branch, else_branch } => {
            !then_branch.computed.is_empty() || !else_branch.computed.is_empty()
        }
        Op::While { body, .. } | Op::Scan { body, .. } => !body.computed.is_empty(),
        _ => false,
    };
    match graph.node_ids().find(computes) {
        Some(node) => Err(refused(graph, &Refused { node, why: "its body computes a size".into() }).into()),
        None => Ok(()),
    }
}
