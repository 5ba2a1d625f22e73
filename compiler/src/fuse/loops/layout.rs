//! The layout of product operands that a workgroup's invocations read.
//!
//! Where each invocation computes one element of a product and reads its terms one after another, neighbouring invocations should read
//! neighbouring elements. Weights often have the transposed layout; operands that no step changes are transposed before the loop.

use crate::device::DeviceProfile;
use crate::fuse::loops::prepare::replace;
use crate::fuse::loops::stages::{in_blocks, is_written_out, reads_much};
use crate::fuse::pulling::flat_offset;
use wgfc_ir::build::Builder;
use wgfc_ir::{Contract, Dim, Graph, NodeId, Op, Poly, Value};

/// Transposes the operands of the products of a `scan` where that helps. Returns the new loop and the values that must be in memory for
/// it; `None` if nothing changes.
pub(crate) fn lay_out(
    graph: &mut Graph,
    n: NodeId,
    device: &DeviceProfile,
) -> Result<Option<(NodeId, Vec<Value>)>, String> {
    let node = graph.node(n).clone();
    let Op::Scan { body, carried, scanned, .. } = &node.op else { return Ok(None) };
    let mut body = body.as_ref().clone();
    let mut inputs = node.inputs.clone();
    let mut moved = vec![];
    let shared = device.speeds.resident_workgroups >= 2.0 && reads_much(&body, device);
    // Operands kept in blocks are read once, before the steps.
    if in_blocks(&body, carried + scanned, device) {
        return Ok(None);
    }
    let products: Vec<NodeId> =
        body.node_ids().filter(|n| matches!(body.node(*n).op, Op::Contract(_))).collect();
    for product in products {
        let Op::Contract(c) = body.node(product).op.clone() else { continue };
        if !shared && is_written_out(&body, product, device) {
            continue;
        }
        for side in 0..2 {
            let operand = body.node(product).inputs[side];
            let labels = if side == 0 { &c.a } else { &c.b };
            // The views between the operand and the captured input.
            let (mut views, mut from) = (vec![], operand);
            while let Op::View { fill: None, .. } = &body.node(from.node).op {
                views.push(body.node(from.node).op.clone());
                from = body.node(from.node).inputs[0];
            }
            let captured = body.inputs.iter().position(|b| b.value == from);
            let Some(captured) = captured.filter(|i| *i >= carried + scanned) else { continue };
            if !terms_are_neighbours(&body, &views, from, operand, &c, labels) {
                continue;
            }
            let mut b = Builder { graph: &mut *graph, origin: node.origin.clone() };
            let mut outer = inputs[captured];
            for view in views.into_iter().rev() {
                outer = b.push(view, &[outer])?;
            }
            let order = order(&c, labels);
            outer = b.transpose(outer, &order)?;
            inputs.push(outer);
            moved.push(outer);
            let ty = graph.ty(outer).clone();
            let inner = body.add_input(&format!("laid out {}", inputs.len()), ty);
            // A view restores the old order, at no cost to its reader.
            let mut back = vec![0; order.len()];
            order.iter().enumerate().for_each(|(i, a)| back[*a] = i);
            let origin = body.node(product).origin.clone();
            let inner = Builder { graph: &mut body, origin }.transpose(inner, &back)?;
            body.set_input(product, side, inner);
        }
    }
    if moved.is_empty() {
        return Ok(None);
    }
    body.remove_dead();
    let mut op = node.op.clone();
    if let Op::Scan { body: b, .. } = &mut op {
        **b = body;
    }
    let new = graph.push(op, &inputs, &node.origin)?;
    let outputs: Vec<Value> = (0..node.outputs.len() as u32).map(|port| Value { node: new, port }).collect();
    replace(graph, n, &outputs);
    graph.remove_dead();
    Ok(Some((new, moved)))
}

/// The order of an operand's axes: the summed axes first, then the result's axes in its order.
fn order(c: &Contract, labels: &[u8]) -> Vec<usize> {
    let place = |l: &u8| labels.iter().position(|x| x == l);
    let summed = labels.iter().filter(|l| !c.out.contains(l)).filter_map(place);
    summed.chain(c.out.iter().filter_map(place)).collect()
}

/// Whether neighbours in memory are terms of the same result element rather than of neighbouring elements.
fn terms_are_neighbours(
    body: &Graph,
    views: &[Op],
    from: Value,
    operand: Value,
    c: &Contract,
    labels: &[u8],
) -> bool {
    let shape = &body.ty(operand).shape;
    let mut at: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
    for view in views {
        let Op::View { index, .. } = view else { return false };
        at = index.iter().map(|p| p.subst_vars(&at, shape)).collect();
    }
    let offset = flat_offset(&body.ty(from).shape, &at, shape);
    let step = |l: Option<&u8>| {
        let axis = labels.iter().position(|x| Some(x) == l)?;
        let mut moved: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
        moved[axis] = &moved[axis] + &Poly::ONE;
        Some(&offset.subst_vars(&moved, shape) - &offset)
    };
    let summed = labels.iter().rev().find(|l| !c.out.contains(l));
    let last = c.out.iter().rev().find(|l| labels.contains(l));
    let one = |d: Option<Dim>| d.is_some_and(|d| d.is(1));
    last.is_some() && one(step(summed)) && !one(step(last))
}
