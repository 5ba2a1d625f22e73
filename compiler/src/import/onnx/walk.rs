//! Walks a graph: determines the order of nodes, lowers them, and collects their errors.

use super::cx::Cx;
use super::messages::{GraphProto, ModelProto, NodeProto};
use super::names::{Functions, Opsets, RENAME, Scope, Slot, domain_key, label, node_needs, operator, poison};
use super::op::{Lowered, OpError, diagnostic};
use super::ops;
use super::schema;
use super::types::Known;
use super::weights::Weights;
use crate::lower::{Lowering, Place, check_dims};
use crate::{Diagnostic, Location};
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use wgfc_ir::order::{cycle, topological_by_id};
use wgfc_ir::{DType, Dim, Node, Op, TensorType, Value};

/// Inlined functions, branches and loops may add this many nodes to an import, plus this many for each node of the model.
const MAX_ADDED: usize = 20_000;
const ADDED_EACH: usize = 8;

/// The maximum nesting depth of functions, branches and loop bodies.
pub(super) const MAX_DEPTH: usize = 64;

/// The maximum number of inputs, and of outputs, of a node or a model.
pub(super) const MAX_OPERANDS: usize = 4096;

/// The state of an import.
pub struct Importer<'m> {
    pub(super) weights: Weights<'m>,
    pub(super) functions: Functions<'m>,
    pub(super) opsets: Opsets,
    pub(super) errors: Vec<Diagnostic>,
    /// The functions that are being inlined, innermost last.
    pub(super) calls: Vec<(String, String)>,
    /// The bytes moved by the nodes so far, each as a kernel of its own.
    pub(super) bytes_unfused: Dim,
    pub(super) expanded: usize,
    /// The maximum number of nodes, [`most_expanded`].
    pub(super) most_expanded: usize,
    /// The number of enclosing branches and loop bodies that are separate graphs.
    pub(super) bodies: usize,
    /// The number of enclosing graphs and functions.
    pub(super) depth: usize,
    /// Whether [`Importer::stop`] was called.
    pub(super) stopped: bool,
    /// The operator of each node so far, by the node's name.
    pub(super) operators: BTreeMap<String, String>,
    /// The known types of tensors by name, if the caller requests them.
    pub(super) known: Option<BTreeMap<String, Known>>,
}

/// The maximum number of nodes that an import may lower; inlined nodes count each time.
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
    /// Reports that the model exceeds a limit. Nothing more is imported afterwards, in any way.
    pub(super) fn stop(&mut self, limit: Diagnostic) {
        self.stopped = true;
        self.errors.push(limit);
    }

    /// Adds the constants of a graph.
    pub(super) fn initializers(&mut self, to: &mut Lowering, scope: &mut Scope, graph: &GraphProto) {
        for t in &graph.initializer {
            let slot = match self.weights.tensor(t) {
                Ok(tensor) => {
                    let ty = TensorType::new(
                        tensor.dtype,
                        tensor.shape.iter().map(|d| (*d).into()).collect::<Vec<_>>(),
                    );
                    let node = to.graph.add_node(Node {
                        op: Op::Const(Arc::new(tensor)),
                        inputs: vec![],
                        outputs: vec![ty],
                        origin: vec![],
                        names: vec![Some(t.name.as_str().into())],
                    });
                    // Only the constants of the model's own graph, which has depth 0, can be tapped.
                    let own = self.depth == 0;
                    Slot::Made(if own { to.named(&t.name, node.into()) } else { node.into() })
                }
                Err(e) => {
                    let e = e.at(format!("initializer \"{}\"", t.name));
                    self.errors.push(diagnostic(e, Location::default()));
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

    /// Lowers nodes in topological order. Errors are collected; the outputs of a failed node are poisoned, and nodes that read them are
    /// skipped.
    pub(super) fn nodes(&mut self, to: &mut Lowering, scope: &mut Scope, nodes: &[NodeProto], prefix: &str) {
        if self.stopped {
            return nodes.iter().for_each(|n| poison(scope, n));
        }
        if self.depth >= MAX_DEPTH {
            let what = "functions, branches and bodies of loops are nested more than";
            let d = Diagnostic::model(format!("{what} {MAX_DEPTH} deep"))
                .help("export the model with its functions inlined, or with fewer levels of them");
            let node = Some(prefix.trim_end_matches('/').into());
            self.stop(d.at(Location { node, ..Location::default() }));
            return nodes.iter().for_each(|n| poison(scope, n));
        }
        self.depth += 1;
        let place = to.at(Place::default());
        self.nested(to, scope, nodes, prefix);
        to.at(place);
        self.depth -= 1;
    }

    fn nested(&mut self, to: &mut Lowering, scope: &mut Scope, nodes: &[NodeProto], prefix: &str) {
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
        let mut reads: DiGraph<(), ()> = DiGraph::with_capacity(nodes.len(), nodes.len());
        for _ in nodes {
            reads.add_node(());
        }
        for (i, names) in needs.iter().enumerate() {
            for p in names.iter().filter_map(|n| producer.get(n)) {
                reads.add_edge(NodeIndex::new(*p), NodeIndex::new(i), ());
            }
        }
        let mut stuck: BTreeSet<usize> = (0..nodes.len()).collect();
        for i in topological_by_id(&reads).into_iter().map(NodeIndex::index) {
            stuck.remove(&i);
            self.node(to, scope, &nodes[i], i, prefix, &needs[i]);
        }
        if let Some(on) = cycle(&reads).filter(|_| !stuck.is_empty()) {
            let name = |i: &NodeIndex| format!("\"{}\"", label(&nodes[i.index()], i.index(), prefix));
            let labels: Vec<String> = on.iter().take(4).map(name).collect();
            let d = Diagnostic::model(format!(
                "the graph has a cycle; it goes through {}{}",
                labels.join(", "),
                if on.len() > 4 { ", …" } else { "" }
            ));
            self.errors.push(d.help(
                "carry values from step to step in a Loop or a Scan, or through an input and an output",
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
            source: None,
        }
    }

    fn node(
        &mut self,
        to: &mut Lowering,
        scope: &mut Scope,
        n: &NodeProto,
        index: usize,
        prefix: &str,
        needs: &BTreeSet<&str>,
    ) {
        if self.stopped {
            return poison(scope, n);
        }
        let at = self.location(n, index, prefix);
        self.operators.entry(label(n, index, prefix)).or_insert_with(|| operator(n));
        self.expanded += 1;
        if self.expanded > self.most_expanded {
            let most = self.most_expanded;
            let what = format!("functions, branches and loops written out come to more than {most} nodes");
            let help = "export the model with fewer iterations of the loops whose shapes change";
            self.stop(Diagnostic::unsupported(what).help(help).at(at));
            return poison(scope, n);
        }
        for (what, count) in [("inputs", n.input.len()), ("outputs", n.output.len())] {
            if count > MAX_OPERANDS {
                let what = format!("it has {count} {what}; at most {MAX_OPERANDS} are supported");
                let help = "export the model with several nodes in its place, each of which takes a part";
                self.errors.push(Diagnostic::unsupported(what).help(help).at(at));
                return poison(scope, n);
            }
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
        let known = to.graph.constraints.len();
        let lowered = self.lower(to, scope, n, &at).and_then(|values| {
            to.check_constraints(known)?;
            Ok(values)
        });
        match lowered {
            Ok(values) => self.bind(to, scope, n, values, at),
            Err(e) => {
                if !e.reported {
                    self.errors.push(diagnostic(e, at));
                }
                poison(scope, n);
            }
        }
    }

    fn lower(&mut self, to: &mut Lowering, scope: &Scope, n: &NodeProto, at: &Location) -> Lowered {
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
                let types: Vec<Option<DType>> = inputs.iter().map(|v| v.map(|v| to.dtype(v))).collect();
                let widened = schema::check(domain, n, &types)?;
                let first = n.output.iter().find(|o| !o.is_empty()).map_or("", String::as_str);
                to.at(Place::new(&origin, first));
                for i in widened {
                    to.warn(format!(
                        "input {i} of {} is i32, and ONNX has i64: it is converted",
                        n.op_type
                    ));
                    inputs[i] = inputs[i].map(|v| to.cast(v, DType::I64)).transpose()?;
                }
                let since = def.version(opset).unwrap_or(1);
                let mut cx = Cx::new(to, self, scope, n, (opset, since), inputs);
                (def.lower)(&mut cx).map_err(|e| cx.placed(e))
            }
            (_, _, Some(f)) => self.call(to, f, n, &inputs, &origin),
            (_, None, None) => Err(OpError::model(format!(
                "the model imports no operator set of domain \"{}\"",
                if domain.is_empty() { "ai.onnx" } else { domain }
            ))
            .help("add the operator set's domain and version to the model's opset_import, or correct the node's domain")),
            // The survey has already reported all operators that are not supported.
            _ => Err(OpError::reported()),
        }
    }

    /// Names the results of a node, evaluates small integer results, and checks the dimensions.
    fn bind(
        &mut self,
        to: &mut Lowering,
        scope: &mut Scope,
        n: &NodeProto,
        values: Vec<Value>,
        at: Location,
    ) {
        let mut made = vec![];
        for (i, name) in n.output.iter().enumerate().filter(|(_, o)| !o.is_empty()) {
            let Some(v) = values.get(i).copied() else {
                let d = Diagnostic::unsupported(format!("output {i} (\"{name}\") is not supported"));
                self.errors
                    .push(d.at(at.clone()).help("export the model without the nodes that read this output"));
                scope.values.insert(name.clone(), Slot::Poisoned);
                continue;
            };
            if let Err(e) = check_dims(to.ty(v)) {
                let d = Diagnostic::model(format!("its output {i} has type {}: {e}", to.ty(v)));
                self.errors.push(
                    d.at(at.clone())
                        .help("give smaller dimensions with --dim, or correct what sets the node's shape"),
                );
                scope.values.insert(name.clone(), Slot::Poisoned);
                continue;
            }
            let v = to.evaluated(v);
            made.push(v);
            // Tensors within functions are left out, as their names may clash with others.
            if let Some(known) = self.known.as_mut().filter(|_| self.calls.is_empty()) {
                known.insert(name.clone(), Known::of(to.graph, v));
            }
            if let Some(slot @ None) = to.graph.node_mut(v.node).names.get_mut(v.port as usize) {
                *slot = Some(name.as_str().into());
            }
            let v = if self.depth == 1 { to.named(name, v) } else { v };
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
            let bytes = &self.bytes_unfused + &super::traffic::bytes(to.graph, n, &read, &made);
            if bytes.is_too_large() {
                to.warn("the traffic without fusion leaves out nodes: too many different sizes".into());
            } else {
                self.bytes_unfused = bytes;
            }
        }
    }
}
