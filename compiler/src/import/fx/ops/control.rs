//! Graphs inside of nodes.

use super::super::prelude::*;
use super::super::walk::tensors;

pub const OPS: &[OpDef] = &[
    OpDef::new("higher_order.wrap_with_autocast", wrapped),
    OpDef::new("higher_order.wrap_with_set_grad_enabled", wrapped),
];

/// A graph that is computed as it stands, whatever its arguments say of gradients and precision: types of results stand in it.
fn wrapped(cx: &mut Cx) -> Lowered {
    let graph = cx.positional().find_map(|a| cx.inner(a).ok());
    let graph = graph.ok_or_else(|| OpError::model("it has no graph"))?;
    let given: Vec<&str> = cx.positional().flat_map(tensors).collect();
    cx.inline(graph, &given)
}
