//! Walking a model's graph: order, names, functions, subgraphs, and the errors of all nodes.

use super::cx::Cx;
use super::onnx::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use super::op::{Lowered, OpError};
use super::ops;
use super::schema;
use super::weights::Weights;
use crate::shape_eval::ShapeEval;
use crate::{Diagnostic, Location};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use wgfc_ir::graph::Constraint;
use wgfc_ir::tensor::checked_numel;
use wgfc_ir::{Builder, DType, Dim, Graph, Node, Op, TensorType, Value};

/// A name's value, or that its producer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// There.
    Made(Value),
    /// Its producer failed, and has been reported.
    Poisoned,
}

/// The name of a loop's iteration number, which no value of a model has.
const ITERATION: &str = "\0iteration";

/// The names in force.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub(super) values: HashMap<String, Slot>,
}

/// Operator sets in force: domain (empty is `ai.onnx`) to version.
pub(super) type Opsets = BTreeMap<String, i64>;

/// The domain as the table writes it.
pub(super) fn domain_key(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

pub(super) fn opsets(imports: &[OperatorSetIdProto]) -> Opsets {
    imports.iter().map(|o| (domain_key(&o.domain).to_owned(), o.version)).collect()
}

/// Functions by domain, name and overload.
pub(super) type Functions<'m> = HashMap<(&'m str, &'m str, &'m str), &'m FunctionProto>;

/// How many nodes functions, branches and loops that are written out may add, and how many for each that
/// the model has.
const MAX_ADDED: usize = 20_000;
const ADDED_EACH: usize = 8;

/// Functions, branches and bodies of loops that may be inside of one another.
pub(super) const MAX_DEPTH: usize = 64;

/// Branches and bodies of loops that may be inside of one another; programs repeat dispatches no deeper.
const MAX_BODIES: usize = 8;

/// Axes a tensor may have.
const MAX_RANK: usize = 32;

/// State of one import.
pub struct Importer<'m> {
    pub(super) weights: Weights<'m>,
    pub(super) eval: ShapeEval,
    pub(super) functions: Functions<'m>,
    pub(super) opsets: Opsets,
    pub(super) warnings: Vec<String>,
    pub(super) errors: Vec<Diagnostic>,
    /// Functions being inlined, innermost last.
    pub(super) calls: Vec<(String, String)>,
    /// Bytes moved by the nodes so far, each a kernel of its own.
    pub(super) bytes_unfused: Dim,
    pub(super) expanded: usize,
    /// How many nodes there may be.
    pub(super) most_expanded: usize,
    /// Bodies of loops and branches around what is imported, each a graph of its own.
    pub(super) bodies: usize,
    /// Graphs and functions around what is imported.
    pub(super) depth: usize,
    /// A limit has been met and reported: nothing more is imported, nor tried in another way.
    pub(super) stopped: bool,
    /// Inputs of the model whose data shapes depend on.
    pub(super) shape_inputs: BTreeSet<String>,
    /// The operator of each node that was met.
    pub(super) operators: BTreeMap<String, String>,
}

/// How many nodes the import of a model may come to: what is written out counts as often as it is.
pub(super) fn most_expanded(model: &ModelProto) -> usize {
    fn nodes(list: &[NodeProto]) -> usize {
        let inner = list.iter().flat_map(|n| &n.attribute).filter_map(|a| a.g.as_ref());
        list.len() + inner.map(|g| nodes(&g.node)).sum::<usize>()
    }
    let own = model.graph.iter().map(|g| nodes(&g.node));
    let written: usize = own.chain(model.functions.iter().map(|f| nodes(&f.node))).sum();
    written * (1 + ADDED_EACH) + MAX_ADDED
}

impl<'m> Importer<'m> {
    /// Whether more nodes came up than a model may expand to, which is an error.
    pub(super) fn is_overgrown(&self) -> bool {
        self.expanded > self.most_expanded
    }

    pub(super) fn warn(&mut self, w: String) {
        if !self.warnings.contains(&w) {
            self.warnings.push(w);
        }
    }

    /// The graph inputs whose data a value depends on, where they are few; remembers them.
    pub(super) fn data_inputs(&mut self, g: &Graph, v: Value) -> Vec<String> {
        let mut found = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut stack = vec![v.node];
        while let Some(id) = stack.pop() {
            if !seen.insert(id) {
                continue;
            }
            let node = g.node(id);
            if let (Op::Input, Some(Some(name))) = (&node.op, node.names.first()) {
                found.insert(name.to_string());
            }
            stack.extend(node.inputs.iter().map(|i| i.node));
            if seen.len() > 1000 || found.len() > 4 {
                return vec![];
            }
        }
        self.shape_inputs.extend(found.iter().cloned());
        found.into_iter().collect()
    }

    /// Adds the constants of a graph.
    pub(super) fn initializers(&mut self, g: &mut Graph, scope: &mut Scope, graph: &GraphProto) {
        for t in &graph.initializer {
            let slot = match self.weights.tensor(t) {
                Ok(tensor) => {
                    let ty = TensorType::new(
                        tensor.dtype,
                        tensor.shape.iter().map(|d| (*d).into()).collect::<Vec<_>>(),
                    );
                    let node = g.add_node(Node {
                        op: Op::Const(Arc::new(tensor)),
                        inputs: vec![],
                        outputs: vec![ty],
                        origin: vec![],
                        names: vec![Some(t.name.as_str().into())],
                    });
                    Slot::Made(node.into())
                }
                Err(mut e) => {
                    e.part = Some(format!("initializer \"{}\"", t.name));
                    self.errors.push(e.diagnostic(Location::default()));
                    Slot::Poisoned
                }
            };
            if scope.values.insert(t.name.clone(), slot).is_some() {
                let d = Diagnostic::model(format!("two values are named \"{}\"", t.name));
                self.errors.push(d.help(RENAME));
            }
        }
        for t in &graph.sparse_initializer {
            let name = t.values.as_ref().map(|v| v.name.clone()).unwrap_or_default();
            self.errors.push(
                Diagnostic::unsupported(format!("sparse initializer \"{name}\""))
                    .help("store it as a dense initializer"),
            );
            scope.values.insert(name, Slot::Poisoned);
        }
    }

    /// Lowers nodes into `g`, in an order that has producers first. Errors are collected; the outputs
    /// of a node that fails are poisoned, and what reads them is skipped.
    pub(super) fn nodes(&mut self, g: &mut Graph, scope: &mut Scope, nodes: &[NodeProto], prefix: &str) {
        if self.stopped {
            return nodes.iter().for_each(|n| poison(scope, n));
        }
        if self.depth >= MAX_DEPTH {
            self.stopped = true;
            let what = "functions, branches and bodies of loops are nested more than";
            let d = Diagnostic::model(format!("{what} {MAX_DEPTH} deep"));
            let node = Some(prefix.trim_end_matches('/').into());
            self.errors.push(d.at(Location { node, ..Location::default() }));
            return nodes.iter().for_each(|n| poison(scope, n));
        }
        self.depth += 1;
        self.nested(g, scope, nodes, prefix);
        self.depth -= 1;
    }

    fn nested(&mut self, g: &mut Graph, scope: &mut Scope, nodes: &[NodeProto], prefix: &str) {
        let mut producer: HashMap<&str, usize> = HashMap::new();
        for (i, n) in nodes.iter().enumerate() {
            for o in n.output.iter().filter(|o| !o.is_empty()) {
                if producer.insert(o, i).is_some() || scope.values.contains_key(o) {
                    let at = self.location(n, i, prefix);
                    let d = Diagnostic::model(format!("two values are named \"{o}\"")).at(at);
                    self.errors.push(d.help(RENAME));
                }
            }
        }
        let needs: Vec<BTreeSet<&str>> = nodes.iter().map(node_needs).collect();
        let mut readers: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
        let mut waiting = vec![0usize; nodes.len()];
        for (i, names) in needs.iter().enumerate() {
            for p in names.iter().filter_map(|n| producer.get(n)) {
                readers[*p].push(i);
                waiting[i] += 1;
            }
        }
        let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|i| waiting[*i] == 0).collect();
        let mut done = 0;
        while let Some(i) = ready.pop_first() {
            done += 1;
            self.node(g, scope, &nodes[i], i, prefix, &needs[i]);
            for r in std::mem::take(&mut readers[i]) {
                waiting[r] -= 1;
                if waiting[r] == 0 {
                    ready.insert(r);
                }
            }
        }
        if done < nodes.len() {
            let stuck: Vec<usize> = (0..nodes.len()).filter(|i| waiting[*i] > 0).collect();
            let labels: Vec<String> =
                stuck.iter().take(4).map(|i| format!("\"{}\"", label(&nodes[*i], *i, prefix))).collect();
            let d = Diagnostic::model(format!(
                "the graph has a cycle; it goes through {}{}",
                labels.join(", "),
                if stuck.len() > 4 { ", …" } else { "" }
            ));
            self.errors.push(d.help(
                "let what is carried from step to step be a Loop's or a Scan's, or an input and an output",
            ));
            for i in stuck {
                poison(scope, &nodes[i]);
            }
        }
    }

    fn location(&self, n: &NodeProto, index: usize, prefix: &str) -> Location {
        Location {
            node: Some(label(n, index, prefix).into()),
            operator: Some(operator(n).into()),
            opset: self.opsets.get(domain_key(&n.domain)).copied(),
            part: None,
        }
    }

    fn node(
        &mut self,
        g: &mut Graph,
        scope: &mut Scope,
        n: &NodeProto,
        index: usize,
        prefix: &str,
        needs: &BTreeSet<&str>,
    ) {
        let at = self.location(n, index, prefix);
        self.operators.entry(label(n, index, prefix)).or_insert_with(|| operator(n));
        self.expanded += 1;
        if self.is_overgrown() {
            if self.expanded == self.most_expanded + 1 {
                let most = self.most_expanded;
                let what =
                    format!("functions, branches and loops written out come to more than {most} nodes");
                let help = "export the model with fewer iterations of the loops whose shapes change";
                self.errors.push(Diagnostic::unsupported(what).help(help).at(at));
                self.stopped = true;
            }
            return poison(scope, n);
        }
        let mut poisoned = false;
        for name in needs {
            match scope.values.get(*name) {
                Some(Slot::Made(_)) => {}
                Some(Slot::Poisoned) => poisoned = true,
                None => {
                    poisoned = true;
                    let d = Diagnostic::model(format!("nothing makes \"{name}\", which it reads"));
                    let help = "add the node, the initializer or the input of that name; a tool that cuts graphs may have left it out";
                    self.errors.push(d.at(at.clone()).help(help));
                }
            }
        }
        if poisoned {
            return poison(scope, n);
        }
        let known = g.constraints.len();
        let lowered = self.lower(g, scope, n, &at).and_then(|values| {
            // What a run would check, where it is known already.
            let fails = |c: &&Constraint| (&c.a - &c.b).as_const().is_some_and(|d| d != 0);
            match g.constraints.iter().skip(known).find(fails) {
                Some(c) => Err(OpError::model(format!("needs equal extents, and has {} and {}", c.a, c.b))),
                None => Ok(values),
            }
        });
        match lowered {
            Ok(values) => self.bind(g, scope, n, values, at),
            Err(e) => {
                if !e.reported {
                    self.errors.push(e.diagnostic(at));
                }
                poison(scope, n);
            }
        }
    }

    fn lower(&mut self, g: &mut Graph, scope: &Scope, n: &NodeProto, at: &Location) -> Lowered {
        let domain = domain_key(&n.domain);
        let function = self.functions.get(&(domain, n.op_type.as_str(), n.overload.as_str())).copied();
        let opset = self.opsets.get(domain).copied();
        let def = ops::find(domain, &n.op_type);
        let mut inputs: Vec<Option<Value>> = n
            .input
            .iter()
            .map(|i| match scope.values.get(i) {
                Some(Slot::Made(v)) if !i.is_empty() => Some(*v),
                _ => None,
            })
            .collect();
        let origin = at.node.clone().unwrap_or_default();
        match (def, opset, function) {
            (Some(def), Some(opset), _) if def.version(opset).is_some() => {
                let types: Vec<Option<DType>> = inputs.iter().map(|v| v.map(|v| g.ty(v).dtype)).collect();
                let widened = schema::check(domain, n, &types)?;
                let mut builder = Builder::new(g, &origin);
                builder.origin = vec![origin];
                for i in widened {
                    self.warn(format!(
                        "input {i} of {} is i32, and ONNX has i64: it is converted",
                        n.op_type
                    ));
                    inputs[i] = inputs[i].map(|v| builder.cast(v, DType::I64)).transpose()?;
                }
                let since = def.version(opset).unwrap_or(1);
                let mut cx = Cx { builder, importer: self, scope, node: n, opset, since, inputs };
                (def.lower)(&mut cx)
            }
            (_, _, Some(f)) => self.call(g, f, n, &inputs, &origin),
            (_, None, None) => Err(OpError::model(format!(
                "the model imports no operator set of domain \"{}\"",
                if domain.is_empty() { "ai.onnx" } else { domain }
            ))
            .help("add the operator set's domain and version to the model's opset_import, or correct the node's domain")),
            // Unsupported operators have been reported by the survey, all of them at once.
            _ => Err(OpError::reported()),
        }
    }

    /// Inlines a model-local function.
    fn call(
        &mut self,
        g: &mut Graph,
        f: &'m FunctionProto,
        n: &NodeProto,
        inputs: &[Option<Value>],
        origin: &str,
    ) -> Lowered {
        let key = (f.domain.clone(), f.name.clone());
        if self.calls.contains(&key) {
            return Err(OpError::model(format!("function {} calls itself", operator(n)))
                .help("write the repetition as a Loop"));
        }
        let mut attributes: HashMap<&str, &AttributeProto> =
            f.attribute_proto.iter().map(|a| (a.name.as_str(), a)).collect();
        attributes.extend(n.attribute.iter().map(|a| (a.name.as_str(), a)));
        if let Some(missing) = f.attribute.iter().find(|a| !attributes.contains_key(a.as_str())) {
            // Attributes without default may still be left out; the nodes that refer to them lack them then.
            tracing::debug!("function {}: attribute {missing} is not given", f.name);
        }
        let mut scope = Scope::default();
        for (i, name) in f.input.iter().enumerate() {
            if let Some(v) = inputs.get(i).copied().flatten() {
                scope.values.insert(name.clone(), Slot::Made(v));
            }
        }
        let body: Vec<NodeProto> = f
            .node
            .iter()
            .map(|m| {
                let mut m = m.clone();
                bind_attributes(&mut m, &attributes);
                // A parameter that the caller left out is a left-out input of the body's nodes.
                for i in &mut m.input {
                    if f.input.contains(i) && !scope.values.contains_key(i) {
                        i.clear();
                    }
                }
                m
            })
            .collect();
        let outer = std::mem::replace(&mut self.opsets, opsets(&f.opset_import));
        self.calls.push(key);
        self.nodes(g, &mut scope, &body, &format!("{origin}/"));
        self.calls.pop();
        self.opsets = outer;
        f.output.iter().map(|o| result(&scope, o)).collect()
    }

    /// Names the results of a node, evaluates the small integer ones, checks their dimensions.
    fn bind(&mut self, g: &mut Graph, scope: &mut Scope, n: &NodeProto, values: Vec<Value>, at: Location) {
        let mut made = vec![];
        for (i, name) in n.output.iter().enumerate().filter(|(_, o)| !o.is_empty()) {
            let Some(v) = values.get(i).copied() else {
                let d = Diagnostic::unsupported(format!("output {i} (\"{name}\") is not supported"));
                self.errors.push(d.at(at.clone()).help("export the model without what reads this output"));
                scope.values.insert(name.clone(), Slot::Poisoned);
                continue;
            };
            if let Err(e) = check_dims(g.ty(v)) {
                let d = Diagnostic::model(format!("its output {i} has type {}: {e}", g.ty(v)));
                self.errors.push(
                    d.at(at.clone())
                        .help("give smaller dimensions with --dim, or mend what sets the node's shape"),
                );
                scope.values.insert(name.clone(), Slot::Poisoned);
                continue;
            }
            let v = self.evaluated(g, v);
            made.push(v);
            if let Some(slot @ None) = g.node_mut(v.node).names.get_mut(v.port as usize) {
                *slot = Some(name.as_str().into());
            }
            scope.values.insert(name.clone(), Slot::Made(v));
        }
        if self.calls.is_empty() {
            let read: Vec<Value> = n
                .input
                .iter()
                .filter_map(|i| match scope.values.get(i) {
                    Some(Slot::Made(v)) => Some(*v),
                    _ => None,
                })
                .collect();
            let bytes = &self.bytes_unfused + &super::traffic::bytes(g, n, &read, &made);
            if bytes.is_too_large() {
                self.warn("the traffic without fusion leaves out nodes: too many different sizes".into());
            } else {
                self.bytes_unfused = bytes;
            }
        }
    }

    /// A small integer tensor that does not depend on data becomes a constant, or a map without
    /// operands; what computed it is left to be swept away.
    fn evaluated(&mut self, g: &mut Graph, v: Value) -> Value {
        let ty = g.ty(v).clone();
        let node = g.node(v.node);
        if ty.dtype.is_float() || node.inputs.is_empty() {
            return v;
        }
        let origin = node.origin.clone();
        let (Some(dims), Some(shape)) = (self.eval.dims(g, v), ty.static_shape()) else { return v };
        if !dims.iter().all(super::is_short) && dims.iter().any(|d| d.as_const().is_none()) {
            return v;
        }
        let mut b = Builder { graph: g, origin };
        match super::shape_value(&mut b, &dims, &shape, ty.dtype) {
            Ok(w) => {
                self.eval.set(w, &dims);
                w
            }
            // Too large an expression: it stays as it was computed.
            Err(_) => v,
        }
    }
}

impl Cx<'_, '_> {
    /// Lowers the nodes of a subgraph in place, as if they stood where this node does. `inputs` are its
    /// parameters' values. Returns its outputs.
    pub fn inline_graph(&mut self, graph: &GraphProto, inputs: &[Value]) -> Lowered {
        let mut scope = self.scope.clone();
        for (formal, v) in graph.input.iter().zip(inputs) {
            scope.values.insert(formal.name.clone(), Slot::Made(*v));
        }
        let prefix = format!("{}/", self.builder.origin.first().cloned().unwrap_or_default());
        self.importer.initializers(self.builder.graph, &mut scope, graph);
        self.importer.nodes(self.builder.graph, &mut scope, &graph.node, &prefix);
        graph.output.iter().map(|o| result(&scope, &o.name)).collect()
    }

    /// Imports a subgraph as a graph of its own, whose inputs are its parameters and then what it
    /// captures; `captures` grows by what is new to it, by name and value. Constants are copied, not
    /// captured.
    pub fn subgraph(
        &mut self,
        graph: &GraphProto,
        params: &[Param],
        captures: &mut Vec<(String, Value)>,
    ) -> Result<Subgraph, OpError> {
        if self.importer.bodies >= MAX_BODIES {
            self.importer.stopped = true;
            let what = "branches and bodies of loops are nested more than";
            return Err(OpError::unsupported(format!("{what} {MAX_BODIES} deep"))
                .help("compute inner loops of a fixed number of steps without a loop"));
        }
        // Behind the body's own inputs there may be the iteration.
        let own = params.iter().take_while(|p| !p.hidden).count();
        if graph.input.len() != own {
            return Err(OpError::model(format!(
                "its subgraph \"{}\" has {} inputs, and is given {}",
                graph.name,
                graph.input.len(),
                own
            )));
        }
        let mut g = Graph::new();
        let mut scope = Scope::default();
        let mut eval = ShapeEval::default();
        let formals = graph.input.iter().map(|i| i.name.as_str()).chain(std::iter::repeat("iteration"));
        let mut iteration = None;
        for (formal, param) in formals.zip(params) {
            let v = g.add_input(formal, param.ty.clone());
            if param.iteration {
                iteration = Some(v);
            }
            if let Some(d) = &param.known {
                eval.set(v, d);
            }
            if !param.hidden {
                scope.values.insert(formal.to_owned(), Slot::Made(v));
            }
        }
        let mut names: Vec<String> = captures.iter().map(|c| c.0.clone()).collect();
        let known = names.len();
        for name in free_names(graph) {
            if !names.iter().any(|n| n == name) {
                names.push(name.to_owned());
            }
        }
        if self.scope.values.contains_key(ITERATION) && draws(graph) && !names.iter().any(|n| n == ITERATION)
        {
            names.push(ITERATION.to_owned());
        }
        for (i, name) in names.into_iter().enumerate() {
            let Some(Slot::Made(v)) = self.scope.values.get(&name).copied() else {
                return Err(OpError::model(format!("nothing makes \"{name}\", which its subgraph reads")));
            };
            let outer = self.builder.graph.node(v.node);
            let pure = outer.inputs.is_empty() && !matches!(outer.op, Op::Input);
            let inner = if pure && i >= known {
                Value { node: g.add_node(outer.clone()), port: v.port }
            } else {
                if i >= known {
                    captures.push((name.clone(), v));
                }
                g.add_input(&name, self.builder.graph.ty(v).clone())
            };
            if let Some(d) = self.importer.eval.dims(self.builder.graph, v) {
                eval.set(inner, &d);
            }
            scope.values.insert(name, Slot::Made(inner));
        }
        if let Some(mut own) = iteration {
            // Of a loop in a loop each iteration has a number of its own.
            if let Some(Slot::Made(outer)) = scope.values.get(ITERATION) {
                let mut b = Builder { graph: &mut g, origin: self.builder.origin.clone() };
                let far = b.binary_scalar(wgfc_ir::BinaryOp::Mul, *outer, 1_000_003.0)?;
                own = b.binary(wgfc_ir::BinaryOp::Add, far, own)?;
            }
            scope.values.insert(ITERATION.to_owned(), Slot::Made(own));
        }
        let prefix = format!("{}/", self.builder.origin.first().cloned().unwrap_or_default());
        let outer_eval = std::mem::replace(&mut self.importer.eval, eval);
        self.importer.bodies += 1;
        self.importer.initializers(&mut g, &mut scope, graph);
        self.importer.nodes(&mut g, &mut scope, &graph.node, &prefix);
        self.importer.bodies -= 1;
        let eval = std::mem::replace(&mut self.importer.eval, outer_eval);
        for o in &graph.output {
            let value = result(&scope, &o.name)?;
            g.outputs.push(wgfc_ir::Border { name: o.name.as_str().into(), value });
        }
        Ok(Subgraph { graph: g, eval })
    }
}

/// A parameter of a subgraph.
pub struct Param {
    /// Its type.
    pub ty: TensorType,
    /// Its elements, where every run of the subgraph has the same.
    pub known: Option<Vec<Dim>>,
    /// Whether it numbers the runs of the subgraph.
    pub iteration: bool,
    /// Whether the subgraph has no input for it.
    pub hidden: bool,
}

/// An imported subgraph.
pub struct Subgraph {
    /// The graph.
    pub graph: Graph,
    /// What is known of its values.
    pub eval: ShapeEval,
}

fn result(scope: &Scope, name: &str) -> Result<Value, OpError> {
    match scope.values.get(name) {
        Some(Slot::Made(v)) => Ok(*v),
        Some(Slot::Poisoned) => Err(OpError::reported()),
        None => Err(OpError::model(format!("nothing in its body makes output \"{name}\""))),
    }
}

fn poison(scope: &mut Scope, n: &NodeProto) {
    for o in n.output.iter().filter(|o| !o.is_empty()) {
        scope.values.insert(o.clone(), Slot::Poisoned);
    }
}

/// Names what a node refers to its function's attributes by.
fn bind_attributes(n: &mut NodeProto, given: &HashMap<&str, &AttributeProto>) {
    n.attribute.retain_mut(|a| {
        if let Some(g) = &mut a.g {
            for m in &mut g.node {
                bind_attributes(m, given);
            }
        }
        if a.ref_attr_name.is_empty() {
            return true;
        }
        match given.get(a.ref_attr_name.as_str()) {
            Some(v) => {
                let name = std::mem::take(&mut a.name);
                *a = AttributeProto { name, ..(*v).clone() };
                true
            }
            None => false,
        }
    });
}

/// What to do about a name that two values have.
pub(super) const RENAME: &str =
    "give each value of the graph a name of its own; exporting the model again does";

/// What to call a node.
pub(super) fn label(n: &NodeProto, index: usize, prefix: &str) -> String {
    if n.name.is_empty() {
        format!("{prefix}#{index} ({})", n.op_type)
    } else {
        format!("{prefix}{}", n.name)
    }
}

/// An operator with its domain unless that is `ai.onnx`.
pub(super) fn operator(n: &NodeProto) -> String {
    match domain_key(&n.domain) {
        "" => n.op_type.clone(),
        d => format!("{d}.{}", n.op_type),
    }
}

/// The values a node reads, those its subgraphs capture included.
pub(super) fn node_needs(n: &NodeProto) -> BTreeSet<&str> {
    let mut needs: BTreeSet<&str> = n.input.iter().filter(|i| !i.is_empty()).map(String::as_str).collect();
    for g in n.attribute.iter().filter_map(|a| a.g.as_ref()) {
        needs.extend(free_names(g));
    }
    needs
}

/// The names a subgraph reads from around it.
pub(super) fn free_names(g: &GraphProto) -> BTreeSet<&str> {
    let mut made: BTreeSet<&str> = g.input.iter().map(|i| i.name.as_str()).collect();
    made.extend(g.initializer.iter().map(|t| t.name.as_str()));
    made.extend(g.node.iter().flat_map(|n| &n.output).map(String::as_str));
    let mut free: BTreeSet<&str> = g.node.iter().flat_map(node_needs).collect();
    free.extend(g.output.iter().map(|o| o.name.as_str()));
    free.retain(|n| !made.contains(n) && !n.is_empty());
    free
}

/// Whether a subgraph draws random numbers.
pub(super) fn draws(g: &GraphProto) -> bool {
    const GENERATORS: [&str; 7] = [
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ];
    let inner = |n: &NodeProto| n.attribute.iter().filter_map(|a| a.g.as_ref()).any(draws);
    g.node.iter().any(|n| GENERATORS.contains(&n.op_type.as_str()) || inner(n))
}

/// The number of the iteration, in the body of a loop.
pub(super) fn iteration(scope: &Scope) -> Option<Value> {
    match scope.values.get(ITERATION) {
        Some(Slot::Made(v)) => Some(*v),
        _ => None,
    }
}

/// Refuses dimensions that cannot be.
pub(super) fn check_dims(ty: &TensorType) -> Result<(), String> {
    if ty.rank() > MAX_RANK {
        return Err(format!("{} dimensions; at most {MAX_RANK} are possible", ty.rank()));
    }
    for d in &ty.shape {
        if d.is_too_large() {
            return Err(
                "a dimension is an expression with too many terms; fix dimensions to make it simpler".into(),
            );
        }
        if d.as_const().is_some_and(|c| c < 0) || (!d.is(0) && (&-d - 1).proves_nonneg(&[])) {
            return Err(format!("dimension {d} is negative"));
        }
    }
    // The product of the constant extents alone must fit, whatever the symbols are.
    let fixed: Vec<usize> = ty
        .shape
        .iter()
        .filter_map(|d| d.as_const().and_then(|c| usize::try_from(c).ok()))
        .map(|d| d.max(1))
        .collect();
    if checked_numel(&fixed).is_none_or(|n| n as i64 > wgfc_ir::verify::MAX_ELEMENTS) {
        return Err("it is too large to exist".into());
    }
    Ok(())
}

/// Whether a type is computed in less precision than the model asks for.
pub(super) fn narrowed(ty: &TensorType) -> bool {
    ty.dtype == DType::F64
}
