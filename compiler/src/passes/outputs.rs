//! Outputs that are reshapes.

use crate::fuse::is_reshape;
use wgfc_ir::{Graph, Op, Value};

/// Replaces an output that is a reshape of another value by that value: its elements are in the same order.
pub(super) fn look_through(graph: &mut Graph) {
    let taken = |graph: &Graph, v: Value| {
        graph.is_output(v)
            || graph.states.iter().any(|s| s.before == v || s.after == v)
            || matches!(graph.node(v.node).op, Op::Input | Op::Const(_))
    };
    for i in 0..graph.outputs.len() {
        let mut v = graph.outputs[i].value;
        while is_reshape(graph, v.node) {
            v = graph.node(v.node).inputs[0];
        }
        if v != graph.outputs[i].value && !taken(graph, v) {
            graph.outputs[i].value = v;
        }
    }
    graph.remove_dead();
}
