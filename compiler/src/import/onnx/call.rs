//! Calls of the model's own functions, whose bodies are lowered in place.

use super::messages::{AttributeProto, FunctionProto, NodeProto};
use super::names::{Scope, Slot, operator, opsets, result};
use super::op::{Lowered, OpError};
use super::walk::Importer;
use crate::lower::Lowering;
use std::collections::HashMap;
use wgfc_ir::Value;

impl<'m> Importer<'m> {
    /// Inlines a model-local function.
    pub(super) fn call(
        &mut self,
        to: &mut Lowering,
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
            // Required attributes may still be left out; nodes that refer to them then lack the attribute.
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
                // A parameter that the caller left out becomes a missing input of the body's nodes.
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
        self.nodes(to, &mut scope, &body, &format!("{origin}/"));
        self.calls.pop();
        self.opsets = outer;
        f.output.iter().map(|o| result(&scope, o)).collect()
    }
}

/// Replaces references to the function's attributes by their values; an attribute without a value is removed.
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
