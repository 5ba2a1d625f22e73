//! The memory traffic of the unfused model, in which every node is a kernel of its own.

use super::messages::NodeProto;
use wgfc_ir::{Dim, Graph, Op, TensorType, Value};

/// Nodes that take no time on the device in any runtime, such as changes of shape.
const FREE: &[&str] =
    &["Constant", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"];

/// The bytes that a node reads and writes, with every operand and result counted once. Nodes with results that are known at compile time
/// move nothing; a table lookup reads only the selected rows.
pub(super) fn bytes(g: &Graph, n: &NodeProto, inputs: &[Value], outputs: &[Value]) -> Dim {
    let known = |v: &Value| {
        let node = g.node(v.node);
        matches!(node.op, Op::Const(_)) || (matches!(node.op, Op::Map { .. }) && node.inputs.is_empty())
    };
    if FREE.contains(&n.op_type.as_str()) || outputs.iter().all(known) {
        return Dim::ZERO;
    }
    let written: Dim = outputs.iter().map(|v| size(g.ty(*v))).sum();
    let lookup = n.op_type.starts_with("Gather");
    let read = inputs
        .iter()
        .enumerate()
        .map(|(i, v)| if lookup && i == 0 { written.clone() } else { size(g.ty(*v)) });
    let read: Dim = read.sum();
    &read + &written
}

fn size(ty: &TensorType) -> Dim {
    crate::assemble::packed(ty.dtype, &ty.numel())
}
