//! The order in which the nodes of a graph are computed.

use petgraph::Direction;
use petgraph::algo::kosaraju_scc;
use petgraph::visit::{IntoNeighborsDirected, IntoNodeIdentifiers, NodeIndexable, Visitable};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The nodes, each behind those from which edges lead to it; of those that may come next, the one with the least id comes first.
/// Nodes on a [`cycle`], and behind one, are left out.
///
/// petgraph's `toposort` takes the order in which edges were added into account. The text of a graph, and the kernels made of it,
/// depend on ids alone.
pub fn first_come<G>(graph: G) -> Vec<G::NodeId>
where
    G: IntoNeighborsDirected + IntoNodeIdentifiers + NodeIndexable,
    G::NodeId: Ord,
{
    let mut missing = vec![0usize; graph.node_bound()];
    let mut ready = BinaryHeap::new();
    for n in graph.node_identifiers() {
        let before = graph.neighbors_directed(n, Direction::Incoming).count();
        missing[graph.to_index(n)] = before;
        if before == 0 {
            ready.push(Reverse(n));
        }
    }
    let mut order = vec![];
    while let Some(Reverse(n)) = ready.pop() {
        order.push(n);
        for m in graph.neighbors(n) {
            let before = &mut missing[graph.to_index(m)];
            *before -= 1;
            if *before == 0 {
                ready.push(Reverse(m));
            }
        }
    }
    order
}

/// The nodes of a cycle, in the order of their ids: of several cycles, that with the least.
pub fn cycle<G>(graph: G) -> Option<Vec<G::NodeId>>
where
    G: IntoNeighborsDirected + IntoNodeIdentifiers + Visitable,
    G::NodeId: Ord,
{
    let mut strong = kosaraju_scc(graph);
    strong.retain(|c| c.len() > 1 || graph.neighbors(c[0]).any(|n| n == c[0]));
    strong.iter_mut().for_each(|c| c.sort_unstable());
    strong.into_iter().min()
}
