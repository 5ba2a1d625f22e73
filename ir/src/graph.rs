//! The graph: nodes of a few core operators, and the values between them.
//!
//! It is petgraph's [`StableDiGraph`](petgraph::stable_graph::StableDiGraph); [`dag`](crate::dag) describes how its
//! edges are stored.

use crate::dag::{Dag, Operands, View};
use crate::dtype::DType;
use crate::op::Op;
use crate::order;
use crate::poly::{Atom, Dim, Poly};
use crate::tensor::Tensor;
use petgraph::graph::NodeIndex;
use petgraph::visit::{Dfs, IntoNeighborsDirected, IntoNodeIdentifiers, NodeIndexable, VisitMap, Visitable};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
pub use wgfc_program::types::TensorType;

/// A node of a [`Graph`].
pub type NodeId = NodeIndex<u32>;

/// Output `port` of a node. See the example of [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node that computes it.
    pub node: NodeId,
    /// The index of the output.
    pub port: u32,
}

/// One operation: an operator, its operands and the types of its results. See the example of [`Graph::push`].
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator with its attributes.
    pub op: Op,
    /// The operands, in order.
    pub inputs: Vec<Value>,
    /// The types of the results.
    pub outputs: Vec<TensorType>,
    /// The model's nodes from which it was made, for messages and profiles.
    pub origin: Vec<Arc<str>>,
    /// The model's names of its outputs, if they have names; taps and patches refer to them.
    pub names: Vec<Option<Arc<str>>>,
}

/// A named input or output of a graph.
#[derive(Clone, Debug)]
pub struct Border {
    /// Its name in the model.
    pub name: Arc<str>,
    /// The value of the input or output.
    pub value: Value,
}

/// Two dimensions that must be equal, which only a run can check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The left side.
    pub a: Dim,
    /// The right side.
    pub b: Dim,
    /// The node of the model that requires it.
    pub origin: Arc<str>,
}

impl Constraint {
    /// The sizes that must not be negative for this constraint to hold: the distances of a size above those of which
    /// it must be the maximum, and below those of which it must be the minimum.
    pub fn nonneg(&self) -> Vec<Dim> {
        let sides = [(&self.a, &self.b), (&self.b, &self.a)];
        let most = |(larger, most): (&Dim, &Dim)| match larger.as_atom() {
            Some(Atom::Max(x, y)) => vec![most - x, most - y],
            Some(Atom::Min(x, y)) => vec![x - most, y - most],
            _ => vec![],
        };
        sides.into_iter().flat_map(most).filter(|d| !d.is(0)).collect()
    }
}

/// A tensor that keeps its contents from run to run on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Its name: that of the model's input that it replaces.
    pub name: Arc<str>,
    /// Its contents before a run: an [`Op::Input`] that is not among [`Graph::inputs`].
    pub before: Value,
    /// Its contents after the run, of the same type.
    pub after: Value,
    /// The part of it that is in use; `None` if all of it always is.
    pub growth: Option<Growth>,
    /// Its contents before the first run, of the same type; `None` for zeros. A growing state has none.
    pub initial: Option<Arc<Tensor>>,
}

/// The growth of a state that is filled along one axis. The extent of that axis is the capacity: a number, or a symbol
/// that need not occur in an input's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The axis along which the state grows.
    pub axis: usize,
    /// The symbol for the number of positions in use before a run. States may share it.
    pub length: Arc<str>,
    /// The number of positions that a run adds. If it depends on the length, the state is a window: the positions that
    /// it keeps move to the front, and the capacity is never exceeded.
    pub by: Dim,
}

/// A symbol whose value is computed at run time. Shapes and index expressions may use it like any other; a node that
/// uses it comes after the value in every [order](Graph::topo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computed {
    /// The symbol that stands for the size.
    pub symbol: Arc<str>,
    /// Its value: a non-negative integer tensor of one element.
    pub value: Value,
    /// The upper bound of the value, in terms of symbols known before the run and computed symbols listed before it.
    pub bound: Dim,
}

/// A directed acyclic graph of core operators. The order of ids carries no meaning.
///
/// ```
/// use wgfc_ir::{Border, Builder, DType, Dim, Graph, TensorType, verify};
/// // y = x·w, where x is f32[batch, 13] and w f32[13, 5].
/// let mut graph = Graph::new();
/// let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::sym("batch"), Dim::constant(13)]));
/// let w = graph.add_input("w", TensorType::new(DType::F32, [Dim::constant(13), Dim::constant(5)]));
/// let y = Builder::new(&mut graph, "product").matmul(x, w)?;
/// graph.outputs.push(Border { name: "y".into(), value: y });
/// assert_eq!(graph.ty(y).to_string(), "f32[batch, 5]");
/// assert_eq!(verify::verify(&graph), Ok(()));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Graph {
    dag: Dag,
    /// The inputs of a run; each value is an [`Op::Input`].
    pub inputs: Vec<Border>,
    /// The outputs of a run.
    pub outputs: Vec<Border>,
    /// Tensors that keep their contents from run to run.
    pub states: Vec<State>,
    /// Dimensions that must be equal at run time.
    pub constraints: Vec<Constraint>,
    /// Symbols whose values are computed at run time.
    pub computed: Vec<Computed>,
    /// The shapes to which optional inputs are broadcast, by name: see [`optional`](wgfc_program::optional).
    pub optional: BTreeMap<Arc<str>, Vec<Dim>>,
}

/// A graph is equal only to itself.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Hash for Graph {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds a node whose output types are already known. Prefer [`Graph::push`]. Panics if an operand does not exist.
    pub fn add_node(&mut self, node: Node) -> NodeId {
        self.dag.add(node)
    }

    /// Adds a node, inferring its output types.
    ///
    /// ```
    /// use wgfc_ir::{DType, Dim, Graph, Op, ScalarFn, TensorType, UnaryOp};
    /// let mut graph = Graph::new();
    /// let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::sym("n")]));
    /// let shape = vec![Dim::sym("n")];
    /// let exp = graph.push(Op::Map { shape, body: ScalarFn::unary(UnaryOp::Exp) }, &[x], &["exp".into()])?;
    /// assert_eq!(graph.ty(exp.into()).to_string(), "f32[n]");
    /// # Ok::<(), String>(())
    /// ```
    pub fn push(&mut self, op: Op, inputs: &[Value], origin: &[Arc<str>]) -> Result<NodeId, String> {
        let types: Vec<&TensorType> = inputs.iter().map(|v| self.ty(*v)).collect();
        let outputs = op.infer(&types)?;
        outputs.iter().try_for_each(TensorType::exists)?;
        op.reads_elements(&types)?;
        if outputs.iter().flat_map(|t| &t.shape).chain(op.polys()).any(Poly::is_too_large) {
            return Err(
                "its shape is an expression with too many terms; fix dimensions to make it simpler".into()
            );
        }
        let names = vec![None; outputs.len()];
        Ok(self.add_node(Node { op, inputs: inputs.to_vec(), outputs, origin: origin.to_vec(), names }))
    }

    /// Adds a graph input.
    pub fn add_input(&mut self, name: &str, ty: TensorType) -> Value {
        let name: Arc<str> = name.into();
        let node = self.add_node(Node {
            op: Op::Input,
            inputs: vec![],
            outputs: vec![ty],
            origin: vec![],
            names: vec![Some(name.clone())],
        });
        let value = Value { node, port: 0 };
        self.inputs.push(Border { name, value });
        value
    }

    /// Adds an optional input that is broadcast to `shape`, which must have at least one axis. The extents of the
    /// input are new symbols.
    ///
    /// ```
    /// use wgfc_ir::{DType, Dim, Graph};
    /// let mut graph = Graph::new();
    /// // A mask that a run may leave out, or give in any shape that broadcasts.
    /// graph.add_optional_input("mask", DType::Bool, &[Dim::sym("rows"), Dim::sym("columns")]);
    /// assert!(graph.optional.contains_key("mask"));
    /// ```
    pub fn add_optional_input(&mut self, name: &str, dtype: DType, shape: &[Dim]) -> Value {
        let of_inputs = self.inputs.iter().flat_map(|b| &self.ty(b.value).shape).flat_map(Dim::symbols);
        let taken: BTreeSet<Arc<str>> = of_inputs.collect();
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
        let mut stem: String = name.chars().take(64).map(plain).collect();
        if !stem.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            stem.insert(0, '_');
        }
        while (0..shape.len()).any(|axis| taken.contains(format!("{stem}.{axis}").as_str())) {
            stem.push('_');
        }
        let own = (0..shape.len()).map(|axis| Dim::sym(&format!("{stem}.{axis}")));
        let value = self.add_input(name, TensorType::new(dtype, own.collect::<Vec<_>>()));
        self.optional.insert(name.into(), shape.to_vec());
        value
    }

    /// Moves optional inputs behind the others.
    pub fn order_inputs(&mut self) {
        let optional = &self.optional;
        self.inputs.sort_by_key(|b| optional.contains_key(&b.name));
    }

    /// The node. Panics on an id of another graph or of a removed node.
    pub fn node(&self, id: NodeId) -> &Node {
        self.dag.get(id).expect("a node of this graph")
    }
    /// The node, for changes that do not affect edges (operator attributes, origin, names). Panics like
    /// [`Graph::node`].
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.dag.get_mut(id).expect("a node of this graph")
    }
    /// Whether the node is still there.
    pub fn contains(&self, id: NodeId) -> bool {
        self.dag.get(id).is_some()
    }
    /// A value's type.
    pub fn ty(&self, v: Value) -> &TensorType {
        &self.node(v.node).outputs[v.port as usize]
    }
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.dag.len()
    }
    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All node ids, in order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.dag.ids()
    }

    /// The graph as petgraph's algorithms see it: one edge per operand, from the producer to the reader.
    pub fn view(&self) -> View<'_> {
        self.dag.view()
    }
    /// The graph for searches from a node to its operands.
    pub fn operands(&self) -> Operands<'_> {
        Operands(&self.dag)
    }
    /// The readers of `v` and their inputs, ordered by node and input.
    pub fn uses(&self, v: Value) -> Vec<(NodeId, usize)> {
        self.dag.readers(v)
    }
    #[cfg(test)]
    pub(crate) fn dag(&self) -> &Dag {
        &self.dag
    }
    /// Checks that edges and operand lists agree; the error is a node where they do not.
    pub(crate) fn edges_agree(&self) -> Result<(), NodeId> {
        self.dag.agrees()
    }
    /// The values that a run must compute: the outputs, the new contents of states, and the values of computed
    /// symbols.
    pub fn results(&self) -> impl Iterator<Item = Value> + '_ {
        let outputs = self.outputs.iter().map(|o| o.value);
        outputs.chain(self.states.iter().map(|s| s.after)).chain(self.computed.iter().map(|c| c.value))
    }
    /// Whether `v` is a result: a graph output, the new contents of a state, or the value of a computed symbol.
    pub fn is_output(&self, v: Value) -> bool {
        self.results().any(|r| r == v)
    }
    /// The state whose only reader is `n`, an [`Op::Scatter`] that replaces elements of it and produces its new
    /// contents: such a scatter need only write its updates.
    pub fn written_in_place(&self, n: NodeId) -> Option<&State> {
        let node = self.dag.get(n)?;
        let Op::Scatter { reduce: None, .. } = node.op else { return None };
        let from = node.inputs.first()?;
        let s = self.states.iter().find(|s| s.before == *from && s.after == n.into())?;
        (self.uses(s.before).len() == 1).then_some(s)
    }

    /// Makes every reader of `old`, [results](Graph::results) included, read `new`.
    ///
    /// ```
    /// use wgfc_ir::{Border, Builder, DType, Graph, TensorType, UnaryOp};
    /// let mut graph = Graph::new();
    /// let x = graph.add_input("x", TensorType::new(DType::F32, []));
    /// let y = Builder::new(&mut graph, "neg").unary(UnaryOp::Neg, x)?;
    /// graph.outputs.push(Border { name: "y".into(), value: y });
    /// let z = Builder::new(&mut graph, "abs").unary(UnaryOp::Abs, x)?;
    /// graph.replace_uses(y, z);
    /// // Nothing reads the negation any more.
    /// graph.remove_dead();
    /// assert!(graph.outputs[0].value == z && !graph.contains(y.node));
    /// # Ok::<(), String>(())
    /// ```
    pub fn replace_uses(&mut self, old: Value, new: Value) {
        for (n, i) in self.uses(old) {
            self.set_input(n, i, new);
        }
        let outputs = self.outputs.iter_mut().map(|o| &mut o.value);
        let computed = self.computed.iter_mut().map(|c| &mut c.value);
        for v in outputs.chain(self.states.iter_mut().map(|s| &mut s.after)).chain(computed) {
            if *v == old {
                *v = new;
            }
        }
    }

    /// Makes input `i` of `n` read `v`.
    pub fn set_input(&mut self, n: NodeId, i: usize, v: Value) {
        self.dag.set_input(n, i, v);
    }

    /// The computed symbols that a node's types and attributes use.
    pub fn computed_in(&self, n: NodeId) -> Vec<&Computed> {
        if self.computed.is_empty() {
            return vec![];
        }
        let mut symbols = BTreeSet::new();
        self.node(n).add_symbols(&mut symbols);
        self.computed.iter().filter(|c| symbols.contains(&c.symbol)).collect()
    }
    /// Whether a constraint can only be checked after symbols have been computed.
    pub fn is_late(&self, c: &Constraint) -> bool {
        let uses = |s: &Arc<str>| self.computed.iter().any(|k| k.symbol == *s);
        !self.computed.is_empty() && [&c.a, &c.b].iter().any(|d| d.symbols().iter().any(uses))
    }
    /// The nodes that must come before a node: its operands, and the nodes that compute the symbols it uses.
    pub fn needs(&self, n: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let symbols = self.computed_in(n).into_iter().map(|c| c.value.node);
        self.node(n).inputs.iter().map(|v| v.node).chain(symbols)
    }

    /// The nodes in topological order, which is deterministic. The error is a node on a cycle.
    pub fn topo(&self) -> Result<Vec<NodeId>, NodeId> {
        if self.computed.is_empty() {
            return self.ordered(&self.view());
        }
        let symbols = |n: NodeId| self.computed_in(n).into_iter().map(move |c| (c.value.node, n));
        self.ordered(&self.dag.with_edges(self.node_ids().flat_map(symbols)))
    }

    fn ordered<G>(&self, of: G) -> Result<Vec<NodeId>, NodeId>
    where
        G: IntoNeighborsDirected<NodeId = NodeId> + IntoNodeIdentifiers + NodeIndexable + Visitable,
    {
        let order = order::topological_by_id(of);
        if order.len() == self.len() {
            return Ok(order);
        }
        Err(order::cycle(of).and_then(|c| c.first().copied()).unwrap_or_default())
    }

    /// Removes nodes on which no result depends, and computed symbols that are not used; inputs and states are kept.
    /// Returns the number of removed nodes.
    pub fn remove_dead(&mut self) -> usize {
        let mut live: Dfs<NodeId, _> = Dfs::empty(self.operands());
        let given = self.inputs.iter().map(|b| b.value).chain(self.states.iter().map(|s| s.before));
        let wanted = self.outputs.iter().map(|o| o.value).chain(self.states.iter().map(|s| s.after));
        live.stack.extend(wanted.chain(given).map(|v| v.node));
        let mut used: BTreeSet<Arc<str>> = BTreeSet::new();
        if !self.computed.is_empty() {
            used.extend(self.constraints.iter().flat_map(|c| [&c.a, &c.b]).flat_map(Poly::symbols));
        }
        while !live.stack.is_empty() {
            while let Some(n) = live.next(self.operands()) {
                used.extend(self.computed_in(n).into_iter().map(|c| c.symbol.clone()));
            }
            // The bound of a symbol, and the nodes that compute it, may use other symbols.
            for c in self.computed.iter().filter(|c| used.contains(&c.symbol)) {
                live.stack.extend(Some(c.value.node).filter(|n| !live.discovered.is_visited(n)));
            }
        }
        self.computed.retain(|c| used.contains(&c.symbol));
        let before = self.len();
        self.dag.retain(|n| live.discovered.is_visited(&n));
        before - self.len()
    }
}

impl Node {
    /// Adds the symbols in its types and attributes, including those in its subgraphs.
    fn add_symbols(&self, to: &mut BTreeSet<Arc<str>>) {
        let polys = self.outputs.iter().flat_map(|t| &t.shape).chain(self.op.polys());
        to.extend(polys.flat_map(Poly::symbols));
        let bodies: Vec<&Graph> = match &self.op {
            Op::If { then_branch, else_branch } => vec![then_branch, else_branch],
            Op::While { body, .. } | Op::Scan { body, .. } => vec![body],
            _ => vec![],
        };
        for n in bodies.iter().flat_map(|b| b.node_ids().map(|n| b.node(n))) {
            n.add_symbols(to);
        }
    }
    /// The name of the model's node, or nodes, for display.
    pub fn label(&self) -> String {
        match self.origin.as_slice() {
            [] => self.op.name().to_owned(),
            [one] => one.to_string(),
            [first, rest @ ..] => format!("{first} (+{})", rest.len()),
        }
    }
}

impl From<NodeId> for Value {
    fn from(node: NodeId) -> Value {
        Value { node, port: 0 }
    }
}
