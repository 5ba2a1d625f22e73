//! Weights in fields of few bits.

use wgfc_ir::{Graph, Op, Value};

/// Whether a value is computed of a constant in fields of at most 8 bits.
pub fn is_quantised(graph: &Graph, v: Value) -> bool {
    /// Operators between a constant and the product that reads its weights.
    const MOST_OPERATORS: usize = 32;
    let (mut stack, mut seen) = (vec![v], 0);
    while let Some(v) = stack.pop() {
        let node = graph.node(v.node);
        let t = graph.ty(v).dtype;
        if matches!(node.op, Op::Const(_)) && t.bits() <= 8 && !t.is_float() {
            return true;
        }
        seen += 1;
        if seen < MOST_OPERATORS && !matches!(node.op, Op::Contract(_)) {
            stack.extend(&node.inputs);
        }
    }
    false
}
