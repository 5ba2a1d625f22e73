//! Constant folding of units: kernels whose results are the same in every run become constants.
//!
//! Values that depend on constants only and are inlined cost nothing, and the constant that they read may be smaller than they are, so
//! that the [rewrites](crate::rewrite::fold) leave most of them. At this stage it is known which of them would be written to memory:
//! weights that a loop needs in another order, tables. The size of programs grows little ([`GROWTH`]), and the work is bounded
//! ([`MOST_WORK`]).
//!
//! A float whose rounding depends on the device is computed either at compile time or by the device, never both: of the coordinate `x`, a
//! fraction `x - floor(x)` from the compiler and a `floor(x)` from the device could belong to neighbouring integers.

use crate::fuse::unit::Grouping;
use petgraph::visit::{Dfs, Walker};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use wgfc_ir::{
    BinaryOp, Border, Graph, Node, NodeId, Op, Poly, ScalarNode, Tensor, TensorType, UnaryOp, Value,
};

/// The most elements read and written by all folded nodes together: a bound on compile time.
const MOST_WORK: f64 = (64 << 20) as f64;
/// The allowed growth of the constants: one part in the first number, plus the second number in bytes.
const GROWTH: (usize, usize) = (16, 64 << 10);

/// Replaces units' results that depend on constants alone. Returns whether there were any.
pub(crate) fn fold(graph: &mut Graph, order: &[NodeId], grouping: &Grouping) -> Result<bool, String> {
    let fixed = fixed(graph, order);
    let results = grouping.units.iter().filter(|u| u.parts.most <= 1).flat_map(|u| u.outputs.iter().copied());
    let mut chosen: Vec<Value> = vec![];
    let mut work = 0.0;
    for v in results {
        if !fixed.contains_key(&v.node) || graph.ty(v).static_shape().is_none() || graph.is_output(v) {
            continue;
        }
        let own: f64 = ancestors(graph, v.node).iter().filter_map(|n| fixed.get(n)).sum();
        if work + own <= MOST_WORK {
            work += own;
            chosen.push(v);
        }
    }
    let all: usize = graph.node_ids().map(|n| bytes_of(graph, n)).sum();
    let allowed = (all / GROWTH.0 + GROWTH.1) as f64;
    if growth(graph, &chosen) > allowed {
        // Single values may still fit the limit.
        let mut left = allowed;
        chosen.retain(|v| {
            let own = growth(graph, std::slice::from_ref(v));
            let fits = own <= left;
            left -= if fits { own.max(0.0) } else { 0.0 };
            fits
        });
    }
    keep_whole(graph, &mut chosen);
    let place: FxHashMap<NodeId, usize> = order.iter().enumerate().map(|(i, n)| (*n, i + 1)).collect();
    for v in &chosen {
        let Some(t) = value(graph, *v, &place) else { continue };
        let node = graph.node(v.node);
        let (ty, origin) = (graph.ty(*v).clone(), node.origin.clone());
        let names = vec![node.names.get(v.port as usize).cloned().flatten()];
        let c = graph.add_node(Node {
            op: Op::Const(Arc::new(t)),
            inputs: vec![],
            outputs: vec![ty],
            origin,
            names,
        });
        graph.replace_uses(*v, c.into());
    }
    graph.remove_dead();
    Ok(!chosen.is_empty())
}

/// Drops values for which a device-rounded float would be computed both at compile time and by the device.
fn keep_whole(graph: &Graph, chosen: &mut Vec<Value>) {
    let rounded = |v: &Value| ancestors(graph, v.node).into_iter().filter(|n| rounds(graph, *n)).collect();
    let needs: Vec<Vec<NodeId>> = chosen.iter().map(rounded).collect();
    let mut readers: FxHashMap<NodeId, Vec<usize>> = FxHashMap::default();
    for (i, all) in needs.iter().enumerate() {
        all.iter().for_each(|n| readers.entry(*n).or_default().push(i));
    }
    let index: FxHashMap<Value, usize> = chosen.iter().enumerate().map(|(i, v)| (*v, i)).collect();
    let mut gone = gone(graph, chosen);
    let mut open: Vec<usize> =
        (0..needs.len()).filter(|i| needs[*i].iter().any(|n| !gone.contains(n))).collect();
    let mut kept = vec![true; chosen.len()];
    open.iter().for_each(|i| kept[*i] = false);
    while let Some(i) = open.pop() {
        // The nodes it is computed from must stay with it.
        let mut stay = vec![chosen[i].node];
        while let Some(n) = stay.pop() {
            if !gone.remove(&n) {
                continue;
            }
            let constant = |v: &&Value| index.get(*v).is_some_and(|i| kept[*i]);
            stay.extend(graph.node(n).inputs.iter().filter(|v| !constant(v)).map(|v| v.node));
            for other in readers.get(&n).into_iter().flatten() {
                if std::mem::replace(&mut kept[*other], false) {
                    open.push(*other);
                }
            }
        }
    }
    let mut kept = kept.into_iter();
    chosen.retain(|_| kept.next().unwrap_or(false));
}

/// The nodes that depend on constants only, and not on symbols, with the work of each.
fn fixed(graph: &Graph, order: &[NodeId]) -> FxHashMap<NodeId, f64> {
    let mut out: FxHashMap<NodeId, f64> = FxHashMap::default();
    for n in order {
        let node = graph.node(*n);
        let known = match &node.op {
            Op::Const(_) => true,
            Op::Input | Op::If { .. } | Op::While { .. } | Op::Scan { .. } | Op::Attention { .. } => false,
            op => {
                node.inputs.iter().all(|v| out.contains_key(&v.node))
                    && op.polys().iter().all(|p: &&Poly| p.symbols().is_empty())
            }
        };
        let size = |ty: &TensorType| ty.numel().as_const().map(|n| n as f64);
        let sizes = |types: &mut dyn Iterator<Item = &TensorType>| types.map(size).sum::<Option<f64>>();
        let made = sizes(&mut node.outputs.iter());
        let read = sizes(&mut node.inputs.iter().map(|v| graph.ty(*v)));
        let (true, Some(made), Some(read)) = (known, made, read) else { continue };
        let work = match (&node.op, &node.inputs[..]) {
            (Op::Const(_), _) => 0.0,
            // At most every element of one operand with every element of the other.
            (Op::Contract(_) | Op::TopK { .. }, inputs) => {
                inputs.iter().filter_map(|v| size(graph.ty(*v))).product::<f64>().max(read * read)
            }
            _ => made + read,
        };
        out.insert(*n, work);
    }
    out
}

/// A node and all that it depends on.
fn ancestors(graph: &Graph, n: NodeId) -> Vec<NodeId> {
    Dfs::new(graph.operands(), n).iter(graph.operands()).collect()
}

fn bytes_of(graph: &Graph, n: NodeId) -> usize {
    match &graph.node(n).op {
        Op::Const(t) => t.dtype.bytes_for(t.numel()),
        _ => 0,
    }
}

/// Whether a node computes floats whose last bits may differ on a device.
fn rounds(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    if !node.outputs.iter().any(|ty| ty.dtype.is_float()) {
        return false;
    }
    let Op::Map { body, .. } = &node.op else {
        return !matches!(node.op, Op::Const(_) | Op::View { .. } | Op::Concat { .. } | Op::Gather { .. });
    };
    body.nodes.iter().any(|n| match n {
        ScalarNode::Unary(op, _) => {
            use UnaryOp::*;
            !matches!(op, Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Not | IsNan | IsInf)
        }
        ScalarNode::Binary(op, ..) => {
            !op.is_comparison() && !matches!(op, BinaryOp::Min | BinaryOp::Max | BinaryOp::And | BinaryOp::Or)
        }
        _ => false,
    })
}

/// The growth of the constants in bytes if these values become constants.
fn growth(graph: &Graph, values: &[Value]) -> f64 {
    let made: f64 = (values.iter().map(|v| graph.ty(*v)))
        .map(|ty| {
            ty.numel().as_const().map_or(f64::INFINITY, |n| ty.dtype.bytes_for(n.max(0) as usize) as f64)
        })
        .sum();
    made - gone(graph, values).iter().map(|n| bytes_of(graph, *n) as f64).sum::<f64>()
}

/// The nodes that become dead if these values become constants.
fn gone(graph: &Graph, values: &[Value]) -> FxHashSet<NodeId> {
    let chosen: FxHashSet<Value> = values.iter().copied().collect();
    let mut gone: FxHashSet<NodeId> = FxHashSet::default();
    let mut stack: Vec<NodeId> = values.iter().map(|v| v.node).collect();
    while let Some(n) = stack.pop() {
        let ports = 0..graph.node(n).outputs.len() as u32;
        let needed = ports.map(|port| Value { node: n, port }).any(|v| {
            !chosen.contains(&v)
                && (graph.is_output(v) || graph.uses(v).iter().any(|(u, _)| !gone.contains(u)))
        });
        if !needed && gone.insert(n) {
            stack.extend(graph.node(n).inputs.iter().map(|v| v.node));
        }
    }
    gone
}

/// The tensor of `v`; `None` if it depends on absent weights. `place` gives the topological order of the nodes, except for constants
/// added later.
fn value(graph: &Graph, v: Value, place: &FxHashMap<NodeId, usize>) -> Option<Tensor> {
    let mut needed = ancestors(graph, v.node);
    needed.sort_by_key(|n| (place.get(n), *n));
    let ty = graph.ty(v);
    let absent = |n: &NodeId| matches!(&graph.node(*n).op, Op::Const(t) if !t.is_present());
    if needed.iter().any(absent) {
        return Some(Tensor::absent(ty.dtype, ty.static_shape()?));
    }
    let (mut alone, mut of) = (Graph::new(), FxHashMap::<NodeId, NodeId>::default());
    for n in needed {
        let mut node = graph.node(n).clone();
        for v in &mut node.inputs {
            v.node = *of.get(&v.node)?;
        }
        of.insert(n, alone.add_node(node));
    }
    let result = Value { node: *of.get(&v.node)?, port: v.port };
    alone.outputs.push(Border { name: "folded".into(), value: result });
    wgfc_ir::eval::evaluate_in_order(&alone).ok()?.pop()
}
