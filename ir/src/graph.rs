//! The graph: nodes of a few core operators, values between them.

use crate::dtype::DType;
use crate::op::Op;
use crate::poly::{Atom, Dim, Poly};
use crate::tensor::Tensor;
use petgraph::graph::NodeIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
pub use wgfc_program::types::TensorType;

/// A node of a [`Graph`].
pub type NodeId = NodeIndex<u32>;

/// Output `port` of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node that computes it.
    pub node: NodeId,
    /// Which of its outputs.
    pub port: u32,
}

/// One operation: an operator, its operands and the types of its results.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator with its attributes.
    pub op: Op,
    /// The operands, in order.
    pub inputs: Vec<Value>,
    /// The types of the results.
    pub outputs: Vec<TensorType>,
    /// The model's nodes it came from, for messages and profiles.
    pub origin: Vec<Arc<str>>,
    /// The model's names of its outputs, where they have one (taps and patches refer to them).
    pub names: Vec<Option<Arc<str>>>,
}

/// A named value at the border of a graph.
#[derive(Clone, Debug)]
pub struct Border {
    /// Its name in the model.
    pub name: Arc<str>,
    /// The value that is the output.
    pub value: Value,
}

/// Two dimensions that the model needs to be equal and that only a run can compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The left side.
    pub a: Dim,
    /// The right side.
    pub b: Dim,
    /// Which node of the model needs it.
    pub origin: Arc<str>,
}

impl Constraint {
    /// The sizes that must not be negative for this to hold: how far a size is above those it must be the larger of, and below those it must
    /// be the smaller of.
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

/// A tensor that keeps its contents from run to run, on the device that runs the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Its name: that of the model's input it stands for.
    pub name: Arc<str>,
    /// Its contents when a run begins: an [`Op::Input`] that is not among [`Graph::inputs`].
    pub before: Value,
    /// Its contents when the run is over, of the same type.
    pub after: Value,
    /// How much of it is in use; `None` when all of it always is.
    pub growth: Option<Growth>,
    /// Its contents when the first run begins, of the same type; `None` for zeros. A state that grows has none.
    pub initial: Option<Arc<Tensor>>,
}

/// A state that is filled along one axis, whose extent in the state's shape is the capacity: a number, or a
/// symbol of which no input's shape need know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The axis along which the state grows.
    pub axis: usize,
    /// The symbol that is the number of positions in use when a run begins. States may share it.
    pub length: Arc<str>,
    /// How many positions a run adds. Where that depends on the length, the state is a window: what it keeps of
    /// the positions it has moves to the front, and the capacity is never exceeded.
    pub by: Dim,
}

/// A symbol whose value a run computes. Shapes and index expressions may use it as any other; what does so
/// comes after the value in every [order](Graph::topo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computed {
    /// The symbol that stands for the size.
    pub symbol: Arc<str>,
    /// Its value: an integer tensor of one element, not negative.
    pub value: Value,
    /// The upper bound of the value, over other symbols: those known before the run and those listed before it.
    pub bound: Dim,
}

/// A directed acyclic graph of core operators. Node order in the arena carries no meaning.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Option<Node>>,
    /// For each node which of its outputs are read, by which node, and as which of that one's inputs. Many may read one:
    /// to find, to add and to remove a reader takes no longer for that.
    readers: Vec<BTreeSet<(u32, NodeId, u32)>>,
    /// Places in `nodes` that are empty; the last is taken first.
    free: Vec<NodeId>,
    /// The inputs of a run; each value is an [`Op::Input`].
    pub inputs: Vec<Border>,
    /// The outputs of a run.
    pub outputs: Vec<Border>,
    /// Tensors that keep their contents from run to run.
    pub states: Vec<State>,
    /// Dimensions that a run must find equal.
    pub constraints: Vec<Constraint>,
    /// Symbols that no input determines.
    pub computed: Vec<Computed>,
    /// The shapes that inputs that a run may leave out, by name, are broadcast to: see
    /// [`optional`](wgfc_program::optional).
    pub optional: BTreeMap<Arc<str>, Vec<Dim>>,
}

/// A graph is equal to itself alone.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Hash for Graph {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nodes.len().hash(state);
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds a node whose output types are already known. Prefer [`Graph::push`].
    pub fn add_node(&mut self, node: Node) -> NodeId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.readers.push(BTreeSet::new());
            NodeId::new(self.nodes.len() - 1)
        });
        for (i, v) in node.inputs.iter().enumerate() {
            self.readers[v.node.index()].insert((v.port, id, i as u32));
        }
        self.nodes[id.index()] = Some(node);
        id
    }

    /// Adds a node, inferring its output types.
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

    /// Adds an input that a run may leave out, and that is broadcast to `shape`, which has an axis at least. Its extents are
    /// symbols of its own.
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

    /// Puts inputs that a run may leave out behind the others.
    pub fn order_inputs(&mut self) {
        let optional = &self.optional;
        self.inputs.sort_by_key(|b| optional.contains_key(&b.name));
    }

    /// The node. Panics on an id of another graph or of a removed node.
    pub fn node(&self, id: NodeId) -> &Node {
        self.get(id).expect("a node of this graph")
    }
    /// The node, to change what does not affect who reads what (op attributes, origin, names). Panics as
    /// [`Graph::node`].
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(id.index()).and_then(Option::as_mut).expect("a node of this graph")
    }
    fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index())?.as_ref()
    }
    /// Whether the node is still there.
    pub fn contains(&self, id: NodeId) -> bool {
        self.get(id).is_some()
    }
    /// A value's type.
    pub fn ty(&self, v: Value) -> &TensorType {
        &self.node(v.node).outputs[v.port as usize]
    }
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All node ids, in arena order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().enumerate().filter(|(_, n)| n.is_some()).map(|(i, _)| NodeId::new(i))
    }

    /// The nodes that read `v`, and at which input, ordered by node and input.
    pub fn uses(&self, v: Value) -> Vec<(NodeId, usize)> {
        let of = (v.port, NodeId::new(0), 0)..=(v.port, NodeId::end(), u32::MAX);
        self.readers[v.node.index()].range(of).map(|(_, n, i)| (*n, *i as usize)).collect()
    }
    /// Whether the index of readers agrees with the nodes' operand lists.
    pub(crate) fn readers_agree(&self) -> Result<(), NodeId> {
        let mut listed = 0;
        for id in self.node_ids() {
            let inputs = &self.node(id).inputs;
            let known = |(i, v): (usize, &Value)| {
                let readers = self.readers.get(v.node.index());
                readers.is_some_and(|r| r.contains(&(v.port, id, i as u32)))
            };
            if !inputs.iter().enumerate().all(known) {
                return Err(id);
            }
            listed += inputs.len();
        }
        let stale = || {
            let lists = |n: NodeId, i: u32, v: Value| {
                self.get(n).is_some_and(|n| n.inputs.get(i as usize) == Some(&v))
            };
            self.readers.iter().enumerate().find_map(|(from, readers)| {
                let node = NodeId::new(from);
                let wrong = readers.iter().find(|(port, n, i)| !lists(*n, *i, Value { node, port: *port }));
                wrong.map(|(_, n, _)| *n)
            })
        };
        match self.readers.iter().map(BTreeSet::len).sum::<usize>() == listed {
            true => Ok(()),
            false => Err(stale().unwrap_or_default()),
        }
    }
    /// The values that a run must compute: the outputs, then the states' new contents, then the values of computed symbols.
    pub fn results(&self) -> impl Iterator<Item = Value> + '_ {
        let outputs = self.outputs.iter().map(|o| o.value);
        outputs.chain(self.states.iter().map(|s| s.after)).chain(self.computed.iter().map(|c| c.value))
    }
    /// Whether `v` is a result: a graph output, what a state becomes, or the value of a computed symbol.
    pub fn is_output(&self, v: Value) -> bool {
        self.results().any(|r| r == v)
    }
    /// The state whose only reader is `n`, a [`Op::Scatter`] that replaces places of it and makes what
    /// it becomes: such a scatter needs to write its updates only.
    pub fn written_in_place(&self, n: NodeId) -> Option<&State> {
        let node = self.get(n)?;
        let Op::Scatter { reduce: None, .. } = node.op else { return None };
        let from = node.inputs.first()?;
        let s = self.states.iter().find(|s| s.before == *from && s.after == n.into())?;
        (self.uses(s.before).len() == 1).then_some(s)
    }

    /// Makes every reader of `old`, [results](Graph::results) included, read `new`.
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
        let old = std::mem::replace(&mut self.node_mut(n).inputs[i], v);
        self.readers[old.node.index()].remove(&(old.port, n, i as u32));
        self.readers[v.node.index()].insert((v.port, n, i as u32));
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
    /// Whether a constraint can be checked only when symbols have been computed.
    pub fn is_late(&self, c: &Constraint) -> bool {
        let uses = |s: &Arc<str>| self.computed.iter().any(|k| k.symbol == *s);
        !self.computed.is_empty() && [&c.a, &c.b].iter().any(|d| d.symbols().iter().any(uses))
    }
    /// The nodes that must come before a node: its operands, and what computes the symbols it uses.
    pub fn needs(&self, n: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let symbols = self.computed_in(n).into_iter().map(|c| c.value.node);
        self.node(n).inputs.iter().map(|v| v.node).chain(symbols)
    }

    /// Producers before consumers; the same graph always gives the same order. `Err` holds a node on a cycle.
    pub fn topo(&self) -> Result<Vec<NodeId>, NodeId> {
        let mut missing = vec![0usize; self.nodes.len()];
        let mut users: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for n in self.node_ids() {
            missing[n.index()] = self.node(n).inputs.len();
            for c in self.computed_in(n) {
                missing[n.index()] += 1;
                users.entry(c.value.node).or_default().push(n);
            }
        }
        let mut ready: BTreeSet<NodeId> = self.node_ids().filter(|n| missing[n.index()] == 0).collect();
        let mut order = Vec::with_capacity(self.len());
        while let Some(n) = ready.pop_first() {
            order.push(n);
            let readers = self.readers[n.index()].iter().map(|r| r.1);
            for m in readers.chain(users.get(&n).into_iter().flatten().copied()) {
                missing[m.index()] -= 1;
                if missing[m.index()] == 0 {
                    ready.insert(m);
                }
            }
        }
        if order.len() == self.len() {
            return Ok(order);
        }
        Err(self.node_ids().find(|n| missing[n.index()] > 0).unwrap_or_default())
    }

    /// Removes nodes that no result depends on, and computed symbols that nothing uses; inputs and states
    /// stay. Returns how many nodes went.
    pub fn remove_dead(&mut self) -> usize {
        let mut live = std::collections::HashSet::new();
        let given = self.inputs.iter().map(|b| b.value).chain(self.states.iter().map(|s| s.before));
        let wanted = self.outputs.iter().map(|o| o.value).chain(self.states.iter().map(|s| s.after));
        let mut stack: Vec<NodeId> = wanted.chain(given).map(|v| v.node).collect();
        let mut used: BTreeSet<Arc<str>> = BTreeSet::new();
        if !self.computed.is_empty() {
            used.extend(self.constraints.iter().flat_map(|c| [&c.a, &c.b]).flat_map(Poly::symbols));
        }
        loop {
            while let Some(n) = stack.pop() {
                if live.insert(n) {
                    used.extend(self.computed_in(n).into_iter().map(|c| c.symbol.clone()));
                    stack.extend(self.node(n).inputs.iter().map(|v| v.node));
                }
            }
            // A symbol's bound, and what computes it, may use others.
            for c in self.computed.iter().filter(|c| used.contains(&c.symbol)) {
                stack.extend(Some(c.value.node).filter(|n| !live.contains(n)));
            }
            if stack.is_empty() {
                break;
            }
        }
        self.computed.retain(|c| used.contains(&c.symbol));
        let before = self.len();
        let dead: Vec<NodeId> = self.node_ids().filter(|n| !live.contains(n)).collect();
        for n in dead {
            let gone = self.nodes[n.index()].take();
            for (i, v) in gone.iter().flat_map(|n| &n.inputs).enumerate() {
                self.readers[v.node.index()].remove(&(v.port, n, i as u32));
            }
            // Nodes that are gone too.
            self.readers[n.index()].clear();
            self.free.push(n);
        }
        before - self.len()
    }
}

impl Node {
    /// Adds the symbols of its types and attributes, those in its subgraphs included.
    fn add_symbols(&self, to: &mut BTreeSet<Arc<str>>) {
        let polys = self.outputs.iter().flat_map(|t| &t.shape).chain(self.op.polys());
        to.extend(polys.flat_map(Poly::symbols));
        let bodies: Vec<&Graph> = match &self.op {
            Op::If { then_branch, else_branch } => vec![then_branch, else_branch],
            Op::While { body, .. } | Op::Scan { body, .. } => vec![body],
            _ => vec![],
        };
        for n in bodies.iter().flat_map(|b| b.nodes.iter().flatten()) {
            n.add_symbols(to);
        }
    }
    /// The model's node name to show for it.
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
