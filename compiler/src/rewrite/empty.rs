//! Tensors without elements, whatever the symbols are, and their readers.
//!
//! If an extent is the constant 0, there is nothing to compute. Such a value becomes a fill without operands, for
//! which no kernel is generated ([`crate::fuse`]), and a reduction of it becomes the identity of the reduction: no
//! template has to handle an extent of 0.

use super::canonical::topo;
use wgfc_ir::build::Builder;
use wgfc_ir::{Dim, Graph, NodeId, Op, Scalar, ScalarFn, ScalarNode, TensorType, Value};

/// Whether a type has no elements for all values of the symbols.
pub fn is_empty(ty: &TensorType) -> bool {
    ty.shape.iter().any(|d| d.is(0))
}

/// Replaces empty values, and values that are known because an operand is empty; returns whether there were any.
pub fn remove(graph: &mut Graph) -> Result<bool, String> {
    if !graph.node_ids().any(|n| graph.node(n).outputs.iter().any(is_empty)) {
        return Ok(false);
    }
    let mut changed = false;
    for n in topo(graph)? {
        if is_fill(&graph.node(n).op, graph.node(n).inputs.len()) {
            continue;
        }
        for port in 0..graph.node(n).outputs.len() as u32 {
            let v = Value { node: n, port };
            if graph.uses(v).is_empty() && !graph.is_output(v) {
                continue;
            }
            let Some(new) = known(graph, n, v)? else { continue };
            let name = graph.node(n).names.get(port as usize).cloned().flatten();
            if let (Some(slot), Some(name)) =
                (graph.node_mut(new.node).names.get_mut(new.port as usize), name)
            {
                slot.get_or_insert(name);
            }
            graph.replace_uses(v, new);
            changed = true;
        }
    }
    Ok(changed)
}

/// Whether the operator is an input, a constant, or a replacement made by [`known`].
fn is_fill(op: &Op, operands: usize) -> bool {
    match op {
        Op::Input | Op::Const(_) => true,
        Op::Map { body, .. } => operands == 0 && matches!(body.nodes.as_slice(), [ScalarNode::Const(_)]),
        _ => false,
    }
}

/// The replacement of a value of node `n`, if it is empty or follows from an empty operand.
fn known(graph: &mut Graph, n: NodeId, v: Value) -> Result<Option<Value>, String> {
    let ty = graph.ty(v).clone();
    if is_empty(&ty) {
        return fill(graph, n, &ty, Scalar::from_i64(ty.dtype, 0)).map(Some);
    }
    let node = graph.node(n);
    let empty: Vec<bool> = node.inputs.iter().map(|i| is_empty(graph.ty(*i))).collect();
    if !empty.contains(&true) {
        return Ok(None);
    }
    let first = node.inputs.first().copied();
    let scalar = match &node.op {
        Op::Reduce { op, .. } => op.identity(ty.dtype),
        Op::Contract(_) => Scalar::from_i64(ty.dtype, 0),
        Op::View { fill: Some(f), .. } => *f,
        // If the operand has no elements, no element can be read in a run.
        Op::View { .. } | Op::Gather { .. } if empty[0] => Scalar::from_i64(ty.dtype, 0),
        Op::ArgReduce { .. } => Scalar::from_i64(ty.dtype, 0),
        Op::Attention { .. } if empty[2] => Scalar::from_i64(ty.dtype, 0),
        Op::Attention { .. } => return flat_scores(graph, n).map(Some),
        Op::Concat { axis } => {
            let axis = *axis;
            let rest: Vec<Value> =
                node.inputs.iter().zip(&empty).filter(|(_, e)| !**e).map(|(v, _)| *v).collect();
            let mut b = Builder { graph, origin: vec![] };
            b.origin = b.graph.node(n).origin.clone();
            return b.concat(&rest, axis).map(Some);
        }
        // Nothing is written. Indices without elements imply updates without elements.
        Op::Scatter { .. } if !empty[0] => return Ok(first),
        // Without iterations, the carried values are unchanged.
        Op::Scan { carried, scanned, .. }
            if empty.iter().skip(*carried).take(*scanned).any(|e| *e) && (v.port as usize) < *carried =>
        {
            let steps = node.inputs.get(*carried).and_then(|s| graph.ty(*s).shape.first());
            match (steps, node.inputs.get(v.port as usize)) {
                (Some(d), Some(start)) if d.is(0) => return Ok(Some(*start)),
                _ => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    fill(graph, n, &ty, scalar).map(Some)
}

/// Attention whose queries and keys have width 0: all scores are 0 except for the mask.
fn flat_scores(graph: &mut Graph, n: NodeId) -> Result<Value, String> {
    let node = graph.node(n).clone();
    let mut inputs = node.inputs;
    for i in &mut inputs[..2] {
        let mut ty = graph.ty(*i).clone();
        if let Some(d) = ty.shape.last_mut() {
            *d = Dim::ONE;
        }
        *i = fill(graph, n, &ty, Scalar::from_i64(ty.dtype, 0))?;
    }
    Ok(graph.push(node.op, &inputs, &node.origin)?.into())
}

fn fill(graph: &mut Graph, n: NodeId, ty: &TensorType, value: Scalar) -> Result<Value, String> {
    let origin = graph.node(n).origin.clone();
    let mut body = ScalarFn::default();
    body.push(ScalarNode::Const(value));
    Builder { graph, origin }.push(Op::Map { body, shape: ty.shape.clone() }, &[])
}
