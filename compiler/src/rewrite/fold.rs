//! Constant folding, by the reference evaluator.
//!
//! Folding must not make a program larger: a result may take as many bytes as those of its operands that nothing else reads, and a little
//! more. So the expansion of a scalar stays an expression, and a view of a weight stays a view, which is folded into a load.

use super::canonical::topo;
use super::extract::MAX_FOLDED;
use std::sync::Arc;
use wgfc_ir::tensor::{Tensor, checked_numel};
use wgfc_ir::{Dim, Graph, Node, Op, Poly, Scalar, ScalarNode, TensorType, Value};

/// The largest result in bytes that is always computed, even if it is larger than its operands.
const SMALL: usize = 4096;

/// The value of a rank-0 map of constants.
pub fn scalar(op: &Op) -> Option<Scalar> {
    let Op::Map { body, shape } = op else { return None };
    let operands = body.nodes.iter().any(|n| matches!(n, ScalarNode::Arg(_)));
    if !shape.is_empty() || !closed(op) || body.nodes.is_empty() || operands {
        return None;
    }
    evaluate(op, &[])?.scalars()?.first().copied()
}

/// Whether the operator depends on its operands alone, and not on symbols.
fn closed(op: &Op) -> bool {
    let plain = |p: &Poly| p.symbols().is_empty();
    match op {
        Op::Map { body, shape } => {
            shape.iter().all(plain)
                && body.nodes.iter().all(|n| match n {
                    ScalarNode::Index(p) => plain(p),
                    _ => true,
                })
        }
        Op::View { shape, index, .. } => shape.iter().chain(index).all(plain),
        Op::Reduce { .. } | Op::PrefixScan { .. } | Op::Concat { .. } | Op::Contract(_) => true,
        Op::ArgReduce { .. } | Op::Softmax { .. } | Op::Norm { .. } => true,
        _ => false,
    }
}

/// Evaluates `op` on constants.
fn evaluate(op: &Op, operands: &[Arc<Tensor>]) -> Option<Tensor> {
    let mut g = Graph::new();
    let inputs: Vec<Value> = operands.iter().map(|t| add(&mut g, t.clone(), &[]).into()).collect();
    let n = g.push(op.clone(), &inputs, &[]).ok()?;
    g.outputs.push(wgfc_ir::Border { name: "folded".into(), value: n.into() });
    wgfc_ir::eval::evaluate_in_order(&g).ok()?.pop()
}

/// The concatenation of constants and of views of constants; `None` for other operands. Constants are joined without a copy if the parts
/// are whole bytes.
pub(super) fn joined(graph: &Graph, op: &Op, operands: &[Value]) -> Option<Arc<Tensor>> {
    let Op::Concat { axis } = op else { return None };
    let part = |v: &Value| {
        let node = graph.node(v.node);
        if let Op::Const(t) = &node.op {
            return Some(t.clone());
        }
        let Op::Const(of) = &graph.node(node.inputs.first()?.node).op else { return None };
        let ty = graph.ty(*v);
        let shape = ty.static_shape()?;
        let view = matches!(node.op, Op::View { .. }) && closed(&node.op);
        match checked_numel(&shape)? as f64 <= MAX_FOLDED && view {
            true if of.is_present() => evaluate(&node.op, std::slice::from_ref(of)).map(Arc::new),
            true => Some(Arc::new(Tensor::absent(ty.dtype, shape))),
            false => None,
        }
    };
    let parts = operands.iter().map(part).collect::<Option<Vec<_>>>()?;
    Tensor::joined(&parts.iter().map(Arc::as_ref).collect::<Vec<_>>(), *axis).ok().map(Arc::new)
}

/// Adds a constant.
pub(super) fn add(graph: &mut Graph, t: Arc<Tensor>, origin: &[Arc<str>]) -> wgfc_ir::NodeId {
    let ty = TensorType::new(t.dtype, t.shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>());
    let node = Node {
        op: Op::Const(t),
        inputs: vec![],
        outputs: vec![ty],
        origin: origin.to_vec(),
        names: vec![None],
    };
    graph.add_node(node)
}

/// Computes values that depend on constants only. Absent constants give absent results.
pub fn constants(graph: &mut Graph) -> Result<bool, String> {
    let mut changed = false;
    for n in topo(graph)? {
        let node = graph.node(n);
        let v = Value::from(n);
        if !closed(&node.op) || node.outputs.len() != 1 || (graph.uses(v).is_empty() && !graph.is_output(v)) {
            continue;
        }
        let constant = |v: &Value| match &graph.node(v.node).op {
            Op::Const(t) => Some(t.clone()),
            _ => None,
        };
        let Some(operands) = node.inputs.iter().map(constant).collect::<Option<Vec<_>>>() else { continue };
        let ty = graph.ty(v).clone();
        let Some(shape) = ty.static_shape() else { continue };
        let Some(numel) = checked_numel(&shape) else { continue };
        let bytes = ty.dtype.bytes_for(numel);
        let moved = matches!(node.op, Op::View { .. });
        // The memory of operands that only this node reads is freed.
        let freed: usize = node
            .inputs
            .iter()
            .zip(&operands)
            .filter(|(v, _)| graph.uses(**v).len() == 1 && !graph.is_output(**v))
            .map(|(_, t)| t.dtype.bytes_for(t.numel()))
            .sum();
        let pays = bytes <= SMALL || (!moved && numel as f64 <= MAX_FOLDED && bytes <= freed + SMALL);
        if !pays || work(&node.op, &operands, numel) > MAX_FOLDED {
            continue;
        }
        let result = if operands.iter().all(|t| t.is_present()) {
            let Some(t) = evaluate(&node.op, &operands) else { continue };
            t
        } else {
            Tensor::absent(ty.dtype, shape)
        };
        let (origin, names) = (node.origin.clone(), node.names.clone());
        let c = add(graph, Arc::new(result), &origin);
        if graph.ty(c.into()) != &ty {
            return Err(format!("`{}` of type {ty} folds to {}", graph.node(n).label(), graph.ty(c.into())));
        }
        graph.node_mut(c).names = names;
        graph.replace_uses(v, c.into());
        changed = true;
    }
    Ok(changed)
}

/// Elements read or written; for a product, the products summed.
fn work(op: &Op, operands: &[Arc<Tensor>], out: usize) -> f64 {
    let read: f64 = operands.iter().map(|t| t.numel() as f64).sum();
    match (op, operands) {
        // At most every element of one operand with every element of the other.
        (Op::Contract(_), [a, b]) => a.numel() as f64 * b.numel() as f64,
        _ => read.max(out as f64),
    }
}
