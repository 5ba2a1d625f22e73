//! The files beside a model that contain its external tensors.

use super::messages::*;
use std::collections::BTreeMap;

/// The locations of external tensors, and the number of tensors at each; subgraphs and functions are included.
pub fn locations(model: &ModelProto) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    model.graph.iter().for_each(|g| of_graph(g, &mut found));
    model.functions.iter().for_each(|f| of_nodes(&f.node, &mut found));
    found
}

fn of_graph(g: &GraphProto, found: &mut BTreeMap<String, usize>) {
    g.initializer.iter().for_each(|t| of_tensor(t, found));
    for s in &g.sparse_initializer {
        s.values.iter().chain(&s.indices).for_each(|t| of_tensor(t, found));
    }
    of_nodes(&g.node, found);
}

/// The recursion is bounded, as the decoder nests messages at most 100 deep.
fn of_nodes(nodes: &[NodeProto], found: &mut BTreeMap<String, usize>) {
    for a in nodes.iter().flat_map(|n| &n.attribute) {
        a.t.iter().for_each(|t| of_tensor(t, found));
        a.g.iter().for_each(|g| of_graph(g, found));
    }
}

fn of_tensor(t: &TensorProto, found: &mut BTreeMap<String, usize>) {
    let location = t.external_data.iter().find(|e| e.key == "location");
    if let Some(location) = location {
        *found.entry(location.value.clone()).or_default() += 1;
    }
}
