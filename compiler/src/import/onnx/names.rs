//! Names of values, nodes and operators.

use super::messages::{FunctionProto, GraphProto, NodeProto, OperatorSetIdProto};
use super::op::OpError;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use wgfc_ir::Value;

/// The state of a name: it has a value, or its producer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The name has a value.
    Made(Value),
    /// The producer failed, and the error has been reported.
    Poisoned,
}

/// The visible names.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub(super) values: HashMap<String, Slot>,
}

/// The versions of the operator sets in force, by domain (empty for `ai.onnx`).
pub(super) type Opsets = BTreeMap<String, i64>;

/// The domain as it is written in the table of operators.
pub(super) fn domain_key(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

pub(super) fn opsets(imports: &[OperatorSetIdProto]) -> Opsets {
    imports.iter().map(|o| (domain_key(&o.domain).to_owned(), o.version)).collect()
}

/// Functions by domain, name and overload.
pub(super) type Functions<'m> = HashMap<(&'m str, &'m str, &'m str), &'m FunctionProto>;

/// The value of an output of a body.
pub(super) fn result(scope: &Scope, name: &str) -> Result<Value, OpError> {
    match scope.values.get(name) {
        Some(Slot::Made(v)) => Ok(*v),
        Some(Slot::Poisoned) => Err(OpError::reported()),
        None => Err(OpError::model(format!("nothing in its body makes output \"{name}\""))),
    }
}

/// Marks the outputs of a node as failed.
pub(super) fn poison(scope: &mut Scope, n: &NodeProto) {
    for o in n.output.iter().filter(|o| !o.is_empty()) {
        scope.values.insert(o.clone(), Slot::Poisoned);
    }
}

/// Advice for two values with the same name.
pub(super) const RENAME: &str =
    "give each value of the graph a name of its own; exporting the model again does";

/// The name of a node.
pub(super) fn label(n: &NodeProto, index: usize, prefix: &str) -> String {
    if n.name.is_empty() {
        format!("{prefix}#{index} ({})", n.op_type)
    } else {
        format!("{prefix}{}", n.name)
    }
}

/// The name of an operator, prefixed with its domain unless that is `ai.onnx`.
pub(super) fn operator(n: &NodeProto) -> String {
    match domain_key(&n.domain) {
        "" => n.op_type.clone(),
        d => format!("{d}.{}", n.op_type),
    }
}

/// The values that a node reads, including those that its subgraphs capture.
pub(super) fn node_needs(n: &NodeProto) -> BTreeSet<&str> {
    let mut needs: BTreeSet<&str> = n.input.iter().filter(|i| !i.is_empty()).map(String::as_str).collect();
    for g in n.attribute.iter().filter_map(|a| a.g.as_ref()) {
        needs.extend(free_names(g));
    }
    needs
}

/// The names that a subgraph captures from its surroundings.
pub(super) fn free_names(g: &GraphProto) -> BTreeSet<&str> {
    let mut made: BTreeSet<&str> = g.input.iter().map(|i| i.name.as_str()).collect();
    made.extend(g.initializer.iter().map(|t| t.name.as_str()));
    made.extend(g.node.iter().flat_map(|n| &n.output).map(String::as_str));
    let mut free: BTreeSet<&str> = g.node.iter().flat_map(node_needs).collect();
    free.extend(g.output.iter().map(|o| o.name.as_str()));
    free.retain(|n| !made.contains(n) && !n.is_empty());
    free
}
