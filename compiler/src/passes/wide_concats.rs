//! Concatenations of more operands than a kernel can bind.

use crate::error::Errors;
use crate::fuse::internal;
use wgfc_ir::{Graph, NodeId, Op};

/// Makes each concatenation of too many operands a tree of concatenations.
pub(super) fn split(graph: &mut Graph, max_buffers: usize) -> Result<(), Errors> {
    let limit = max_buffers.saturating_sub(2).max(2);
    for n in graph.node_ids().collect::<Vec<NodeId>>() {
        let Op::Concat { axis } = graph.node(n).op else { continue };
        let mut parts = graph.node(n).inputs.clone();
        if parts.len() <= limit {
            continue;
        }
        let origin = graph.node(n).origin.clone();
        while parts.len() > 1 {
            let mut next = vec![];
            for c in parts.chunks(limit) {
                next.push(match c {
                    [one] => *one,
                    many => match graph.push(Op::Concat { axis }, many, &origin) {
                        Ok(new) => new.into(),
                        Err(e) => return Err(internal(graph, n, &e).into()),
                    },
                });
            }
            parts = next;
        }
        let names = graph.node(n).names.clone();
        graph.node_mut(parts[0].node).names = names;
        graph.replace_uses(n.into(), parts[0]);
    }
    graph.remove_dead();
    Ok(())
}
