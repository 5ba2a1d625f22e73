//! The order in which the nodes of a graph are computed.

use petgraph::Direction;
use petgraph::algo::kosaraju_scc;
use petgraph::visit::{IntoNeighborsDirected, IntoNodeIdentifiers, NodeIndexable, Visitable};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The nodes in topological order; of several nodes that may come next, the one with the least id comes first. Nodes
/// on or after a [`cycle`] are left out.
///
/// petgraph's `toposort` depends on the order in which edges were added. This order, and with it the text of a graph
/// and its kernels, depends on ids alone.
pub fn topological_by_id<G>(graph: G) -> Vec<G::NodeId>
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

/// The nodes of a cycle, in the order of their ids; of several cycles, the one with the least id.
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

#[cfg(test)]
mod tests {
    use super::*;
    use petgraph::graph::{DiGraph, NodeIndex};

    fn ids(all: Vec<NodeIndex>) -> Vec<usize> {
        all.into_iter().map(NodeIndex::index).collect()
    }

    #[test]
    fn the_least_comes_first_in_whichever_order_edges_were_added() {
        let mut edges: Vec<(u32, u32)> = vec![(5, 1), (0, 2), (0, 5), (1, 4), (2, 4), (3, 4), (0, 5)];
        for _ in 0..edges.len() {
            edges.rotate_left(1);
            let graph = DiGraph::<(), ()>::from_edges(&edges);
            assert_eq!(ids(topological_by_id(&graph)), [0, 2, 3, 5, 1, 4]);
            assert_eq!(cycle(&graph), None);
        }
    }

    #[test]
    fn a_cycle_is_its_nodes_alone() {
        // 0 and 1 come before the cycle, 6 and 7 after it; 8 and 9 are another cycle.
        let edges: [(u32, u32); 10] =
            [(0, 1), (1, 2), (2, 4), (4, 3), (3, 2), (4, 6), (6, 7), (8, 9), (9, 8), (5, 5)];
        let graph = DiGraph::<(), ()>::from_edges(edges);
        assert_eq!(ids(topological_by_id(&graph)), [0, 1]);
        assert_eq!(cycle(&graph).map(ids), Some(vec![2, 3, 4]));
        let graph = DiGraph::<(), ()>::from_edges([(0u32, 1), (1, 1), (1, 2)]);
        assert_eq!(cycle(&graph).map(ids), Some(vec![1]));
    }
}
