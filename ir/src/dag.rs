//! Nodes and edges: petgraph's [`StableDiGraph`], and additional indices that make removing an edge cheap.
//!
//! petgraph adds an edge in constant time. To remove one it walks the edge lists of both endpoints, which takes longer
//! the more readers a value has; and it lists the readers of all outputs of a node together. Three measures make both
//! cheap for nodes of any degree:
//!
//! - **Each operand knows its edge.** A node holds the index of the edge of each of its operands, so that no search is
//!   needed.
//! - **Edges are parked.** An edge that is no longer used stays in petgraph's lists without a [`Port`], and [`View`], through which
//!   petgraph's algorithms see the graph, leaves it out. Once there are more parked edges than nodes and other edges, all edges are
//!   cleared and the others are added again. Each addition is constant time, so the removal of an edge is too, on average.
//! - **Readers of crowded nodes are indexed.** A node from which more than 16 edges lead, parked ones included, has its readers in an
//!   ordered set. For the others petgraph's list is short enough to be looked through.

use crate::graph::{Node, NodeId, Value};
use petgraph::Direction;
use petgraph::stable_graph::{EdgeIndex, EdgeReference, StableDiGraph};
use petgraph::visit::{
    EdgeFiltered, EdgeRef, GraphBase, GraphRef, IntoEdgeReferences, IntoNeighbors, NodeIndexable, Visitable,
};
use std::collections::{BTreeMap, BTreeSet};

/// A node with more edges than this, outgoing and parked ones included, has an index of its readers.
const FEW: usize = 16;

/// The output of the source node and the input of the target node that an edge connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port {
    /// The output that is read.
    pub output: u32,
    /// The input that reads it.
    pub input: u32,
}

/// A node with the edges of its operands.
#[derive(Clone, Debug)]
pub struct NodeWithEdges {
    node: Node,
    /// The edge of each operand.
    edges: Vec<EdgeIndex>,
}

impl NodeWithEdges {
    /// The operation.
    pub fn node(&self) -> &Node {
        &self.node
    }
}

/// The graph in petgraph's representation. An edge without a port is parked.
pub type Edges = StableDiGraph<NodeWithEdges, Option<Port>>;

/// The graph as petgraph's algorithms see it: each node, and one edge per operand, from the producer to the reader.
pub type View<'g> = EdgeFiltered<&'g Edges, fn(EdgeReference<'g, Option<Port>>) -> bool>;

/// The graph with reversed edges: from each node to its operands. petgraph's searches visit the last neighbour first,
/// which is the first operand.
#[derive(Clone, Copy)]
pub struct Operands<'g>(pub(crate) &'g Dag);

impl GraphBase for Operands<'_> {
    type NodeId = NodeId;
    type EdgeId = EdgeIndex;
}

impl GraphRef for Operands<'_> {}

impl<'g> IntoNeighbors for Operands<'g> {
    type Neighbors = std::iter::Rev<std::iter::Map<std::slice::Iter<'g, Value>, fn(&Value) -> NodeId>>;
    fn neighbors(self, n: NodeId) -> Self::Neighbors {
        let inputs: &[Value] = self.0.get(n).map_or(&[], |n| &n.inputs);
        inputs.iter().map((|v| v.node) as fn(&Value) -> NodeId).rev()
    }
}

impl Visitable for Operands<'_> {
    type Map = <Edges as Visitable>::Map;
    fn visit_map(&self) -> Self::Map {
        self.0.graph.visit_map()
    }
    fn reset_map(&self, map: &mut Self::Map) {
        self.0.graph.reset_map(map);
    }
}

/// The nodes of a graph and their edges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dag {
    graph: Edges,
    /// The number of parked edges.
    parked: usize,
    /// The readers of crowded nodes: the output that is read, the reading node, and its input.
    crowded: BTreeMap<NodeId, BTreeSet<(u32, NodeId, u32)>>,
}

impl Dag {
    /// Adds a node. Panics if an operand is a value of another graph.
    pub fn add(&mut self, node: Node) -> NodeId {
        let count = node.inputs.len();
        let n = self.graph.add_node(NodeWithEdges { node, edges: Vec::with_capacity(count) });
        self.connect(n);
        n
    }

    /// The node, if it exists.
    pub fn get(&self, n: NodeId) -> Option<&Node> {
        self.graph.node_weight(n).map(NodeWithEdges::node)
    }

    /// Like [`Dag::get`], but mutable; the operands must not be changed.
    pub fn get_mut(&mut self, n: NodeId) -> Option<&mut Node> {
        self.graph.node_weight_mut(n).map(|p| &mut p.node)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.graph.node_count()
    }

    /// The nodes, in the order of their ids.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.graph.node_indices()
    }

    /// The graph for petgraph's algorithms.
    pub fn view(&self) -> View<'_> {
        EdgeFiltered(&self.graph, |e| e.weight().is_some())
    }

    /// The edges in use and additional ones, without node and edge weights.
    pub fn with_edges(&self, more: impl Iterator<Item = (NodeId, NodeId)>) -> StableDiGraph<(), ()> {
        let mut graph = self.graph.filter_map(|_, _| Some(()), |_, port| port.map(|_| ()));
        more.for_each(|(from, to)| {
            graph.add_edge(from, to, ());
        });
        graph
    }

    /// The readers of a value and their inputs, ordered by node and input.
    pub fn readers(&self, v: Value) -> Vec<(NodeId, usize)> {
        if let Some(all) = self.crowded.get(&v.node) {
            let of = (v.port, NodeId::new(0), 0)..=(v.port, NodeId::end(), u32::MAX);
            return all.range(of).map(|(_, n, i)| (*n, *i as usize)).collect();
        }
        let reader = |e: EdgeReference<'_, Option<Port>>| {
            let port = e.weight().filter(|p| p.output == v.port)?;
            Some((e.target(), port.input as usize))
        };
        let mut all: Vec<_> = self.graph.edges(v.node).filter_map(reader).collect();
        all.sort_unstable();
        all
    }

    /// Makes input `i` of `n` read `v`.
    pub fn set_input(&mut self, n: NodeId, i: usize, v: Value) {
        let placed = &mut self.graph[n];
        let (old, edge) = (std::mem::replace(&mut placed.node.inputs[i], v), placed.edges[i]);
        self.graph[edge] = None;
        self.parked += 1;
        if let Some(all) = self.crowded.get_mut(&old.node) {
            all.remove(&(old.port, n, i as u32));
        }
        let new = self.link(v, n, i);
        self.graph[n].edges[i] = new;
        if self.parked > self.graph.node_count() + self.graph.edge_count() - self.parked {
            self.clear_edges();
            self.connect_all();
        }
    }

    /// Removes the nodes for which `stays` is false; no remaining node may read them.
    pub fn retain(&mut self, stays: impl Fn(NodeId) -> bool) {
        let gone: Vec<NodeId> = self.graph.node_indices().filter(|n| !stays(*n)).collect();
        if gone.is_empty() {
            return;
        }
        // A node without edges is removed in constant time.
        self.clear_edges();
        for n in gone {
            self.graph.remove_node(n);
        }
        self.connect_all();
    }

    fn clear_edges(&mut self) {
        self.graph.clear_edges();
        self.crowded.clear();
        self.parked = 0;
    }

    /// Adds the edges of all operands to a graph without edges.
    fn connect_all(&mut self) {
        for i in 0..self.graph.node_bound() {
            let n = NodeId::new(i);
            if let Some(placed) = self.graph.node_weight_mut(n) {
                placed.edges.clear();
                self.connect(n);
            }
        }
    }

    /// Adds the edges of the operands of a node without edges.
    fn connect(&mut self, n: NodeId) {
        for i in 0..self.graph[n].node.inputs.len() {
            let edge = self.link(self.graph[n].node.inputs[i], n, i);
            self.graph[n].edges.push(edge);
        }
    }

    fn link(&mut self, v: Value, n: NodeId, i: usize) -> EdgeIndex {
        let port = Port { output: v.port, input: i as u32 };
        let edge = self.graph.add_edge(v.node, n, Some(port));
        if let Some(all) = self.crowded.get_mut(&v.node) {
            all.insert((v.port, n, i as u32));
        } else if self.graph.edges(v.node).nth(FEW).is_some() {
            let all = self.listed(v.node);
            self.crowded.insert(v.node, all);
        }
        edge
    }

    /// The readers of all outputs of a node, from petgraph's edge list.
    fn listed(&self, n: NodeId) -> BTreeSet<(u32, NodeId, u32)> {
        let edges = self.graph.edges(n);
        edges.filter_map(|e| e.weight().map(|p| (p.output, e.target(), p.input))).collect()
    }

    /// Checks that petgraph's edges and the index of readers agree with the operand lists; the error is a node where
    /// they do not.
    pub fn agrees(&self) -> Result<(), NodeId> {
        let mut used = 0;
        for n in self.graph.node_indices() {
            let placed = &self.graph[n];
            let inputs = &placed.node.inputs;
            let is_edge = |(i, (v, e)): (usize, (&Value, &EdgeIndex))| {
                let port = Port { output: v.port, input: i as u32 };
                self.graph.edge_endpoints(*e) == Some((v.node, n)) && self.graph[*e] == Some(port)
            };
            let same = inputs.len() == placed.edges.len();
            if !same || !inputs.iter().zip(&placed.edges).enumerate().all(is_edge) {
                return Err(n);
            }
            used += inputs.len();
            let indexed = match self.crowded.get(&n) {
                Some(all) => *all == self.listed(n),
                None => self.graph.edges(n).nth(FEW).is_none(),
            };
            if !indexed {
                return Err(n);
            }
        }
        let parked = self.graph.edge_references().filter(|e| e.weight().is_none()).count();
        if parked == self.parked && used + parked == self.graph.edge_count() {
            return Ok(());
        }
        let more = |n: &NodeId| {
            let into = self.graph.edges_directed(*n, Direction::Incoming);
            into.filter(|e| e.weight().is_some()).count() != self.graph[*n].node.inputs.len()
        };
        Err(self.graph.node_indices().find(more).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::{Border, Graph, TensorType};
    use crate::op::Op;
    use crate::testing::Rng;
    use petgraph::visit::DfsPostOrder;

    fn node(inputs: Vec<Value>, outputs: usize) -> Node {
        let ty = TensorType::new(DType::F32, vec![]);
        Node { op: Op::Input, inputs, outputs: vec![ty; outputs], origin: vec![], names: vec![None; outputs] }
    }

    /// A graph, its nodes in a topological order, and the number of nodes that may be read.
    struct Edited {
        graph: Graph,
        made: Vec<NodeId>,
        read: usize,
        rng: Rng,
    }

    impl Edited {
        fn value(&mut self, before: usize) -> Value {
            let node = self.made[self.rng.below(before.min(self.read))];
            Value { node, port: self.rng.below(self.graph.node(node).outputs.len()) as u32 }
        }

        fn edit(&mut self) {
            let last = self.made.len();
            match self.rng.below(8) {
                0..4 => {
                    let inputs = (0..self.rng.below(5)).map(|_| self.value(last)).collect();
                    let outputs = 1 + self.rng.below(3);
                    self.made.push(self.graph.add_node(node(inputs, outputs)));
                }
                4..6 => {
                    let at = 1 + self.rng.below(last - 1);
                    let (n, v) = (self.made[at], self.value(at));
                    let count = self.graph.node(n).inputs.len();
                    if count > 0 {
                        self.graph.set_input(n, self.rng.below(count), v);
                    }
                }
                6 => {
                    let (old, new) = (self.value(last), self.value(last));
                    let place = |v: Value| self.made.iter().position(|n| *n == v.node);
                    if place(new) < place(old) {
                        self.graph.replace_uses(old, new);
                    }
                }
                _ if self.rng.one_in(8) => {
                    self.graph.outputs.clear();
                    for n in self.made.iter().filter(|n| n.index() == 0 || !self.rng.one_in(5)) {
                        self.graph.outputs.push(Border { name: "y".into(), value: (*n).into() });
                    }
                    self.graph.remove_dead();
                    self.made.retain(|n| self.graph.contains(*n));
                }
                _ => {}
            }
        }
    }

    /// The readers of a value according to the operand lists.
    fn readers(g: &Graph, v: Value) -> Vec<(NodeId, usize)> {
        let all =
            g.node_ids().flat_map(|n| g.node(n).inputs.iter().enumerate().map(move |(i, x)| (n, i, *x)));
        all.filter(|(_, _, x)| *x == v).map(|(n, i, _)| (n, i)).collect()
    }

    /// The order of [`Graph::topo`], by repeatedly searching for the first node whose operands are all in the order.
    fn order(g: &Graph) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = vec![];
        let ready = |order: &[NodeId], n: &NodeId| {
            !order.contains(n) && g.node(*n).inputs.iter().all(|v| order.contains(&v.node))
        };
        while let Some(n) = g.node_ids().find(|n| ready(&order, n)) {
            order.push(n);
        }
        order
    }

    #[test]
    fn edges_and_index_agree_with_operands_after_random_edits() {
        let mut crowded = 0;
        for seed in 0..30 {
            let mut rng = Rng::new(seed);
            // If few nodes are read, their values have many readers.
            let read = [1, 3, 20, usize::MAX][rng.below(4)];
            let mut e = Edited { graph: Graph::new(), made: vec![], read, rng };
            e.made = (0..2).map(|_| e.graph.add_node(node(vec![], 3))).collect();
            for step in 0..300 {
                e.edit();
                assert_eq!(e.graph.edges_agree(), Ok(()), "seed {seed}, step {step}");
                let v = e.value(e.made.len());
                assert_eq!(e.graph.uses(v), readers(&e.graph, v), "seed {seed}, step {step}");
            }
            crowded += e.graph.dag().crowded.len();
            assert_eq!(e.graph.topo(), Ok(order(&e.graph)), "seed {seed}");
            let edges = |e: EdgeReference<'_, Option<Port>>| (e.source(), e.target(), e.weight().unwrap());
            let view = e.graph.view();
            let mut seen: Vec<_> = view.edge_references().map(edges).collect();
            seen.sort_unstable();
            let of = |n: NodeId| {
                let inputs = e.graph.node(n).inputs.iter().enumerate();
                inputs.map(move |(i, v)| (v.node, n, Port { output: v.port, input: i as u32 }))
            };
            let mut listed: Vec<_> = e.graph.node_ids().flat_map(of).collect();
            listed.sort_unstable();
            assert_eq!(seen, listed, "seed {seed}");
        }
        assert!(crowded > 20, "{crowded} crowded nodes");
    }

    /// The number of edges added while all operands of all nodes are set, one at a time, to the node with this index.
    fn added(g: &mut Graph, to: usize) -> usize {
        let to: Value = NodeId::new(to).into();
        let mut added = 0;
        for n in g.node_ids().collect::<Vec<_>>() {
            for i in 0..g.node(n).inputs.len() {
                let before = g.dag().parked;
                g.set_input(n, i, to);
                let (edges, parked) = (g.dag().graph.edge_count(), g.dag().parked);
                // All edges are added again when none remains parked.
                added += if parked > before { 1 } else { edges };
                assert!(parked <= g.len() + edges - parked, "{parked} parked, {edges} edges");
            }
        }
        assert_eq!(g.edges_agree(), Ok(()));
        added
    }

    #[test]
    fn setting_an_operand_takes_constant_time_on_average() {
        const MANY: usize = 100_000;
        // A value with many readers.
        let mut star = Graph::new();
        let ends: Vec<NodeId> = (0..2).map(|_| star.add_node(node(vec![], 1))).collect();
        for _ in 0..MANY {
            star.add_node(node(vec![ends[0].into()], 1));
        }
        // A chain.
        let mut chain = Graph::new();
        let first = chain.add_node(node(vec![], 1));
        (0..MANY).fold(first, |before, _| chain.add_node(node(vec![before.into()], 1)));
        // A node with many operands.
        let mut wide = Graph::new();
        let ends: Vec<NodeId> = (0..2).map(|_| wide.add_node(node(vec![], 1))).collect();
        wide.add_node(node(vec![ends[0].into(); MANY], 1));
        for (g, what) in [(&mut star, "star"), (&mut chain, "chain"), (&mut wide, "wide")] {
            for to in [1, 0, 1, 0] {
                let to = if what == "chain" { 0 } else { to };
                let added = added(g, to);
                assert!(added <= 3 * MANY, "{what}: {added} edges were added");
            }
        }
    }

    #[test]
    fn searches_look_at_operands_in_order() {
        let mut g = Graph::new();
        let [a, b, c] = [(); 3].map(|()| Value::from(g.add_node(node(vec![], 1))));
        let d = g.add_node(node(vec![c, a, b], 1));
        g.set_input(d, 0, b);
        g.set_input(d, 2, c);
        let search = DfsPostOrder::new(g.operands(), d);
        let found: Vec<NodeId> = petgraph::visit::Walker::iter(search, g.operands()).collect();
        assert_eq!(found, [b.node, a.node, c.node, d]);
    }
}
