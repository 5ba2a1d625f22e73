//! Unrolls scans of a single iteration and, in the body of another loop, scans with a known, small number of
//! iterations: a lane repeats them inside a step.

use super::canonical::topo;
use std::collections::HashMap;
use wgfc_ir::build::Builder;
use wgfc_ir::{Graph, Node, NodeId, Op, Poly, Value};

/// The maximum number of iterations in the body of another loop, and the maximum number of nodes created by unrolling,
/// because nested loops multiply. They bound the compile time for any device.
pub const ITERATIONS: i64 = 64;
const NODES: usize = 4096;

/// Unrolls scans with at most `iterations` iterations; returns their number.
pub fn unroll(graph: &mut Graph, iterations: i64) -> Result<usize, String> {
    let mut count = 0;
    let mut room = NODES;
    // A scan in the body of another one becomes a scan of the graph once that is unrolled.
    while let Some((n, length, made)) = next(graph, iterations, room)? {
        room -= made;
        let new = write_out(graph, n, length)?;
        let names = graph.node(n).names.clone();
        for (i, v) in new.into_iter().enumerate() {
            let name = names.get(i).cloned().flatten();
            let slot = graph.node_mut(v.node).names.get_mut(v.port as usize);
            if let (Some(slot), Some(name)) = (slot, name) {
                slot.get_or_insert(name);
            }
            graph.replace_uses(Value { node: n, port: i as u32 }, v);
        }
        graph.remove_dead();
        count += 1;
    }
    Ok(count)
}

/// The next scan to unroll, its length, and the number of nodes that count against the limit.
fn next(graph: &Graph, iterations: i64, room: usize) -> Result<Option<(NodeId, i64, usize)>, String> {
    for n in topo(graph)? {
        let Op::Scan { body, carried, .. } = &graph.node(n).op else { continue };
        let first = graph.node(n).inputs.get(*carried).ok_or("a scan of nothing")?;
        let length = graph.ty(*first).shape.first().and_then(|d| d.as_const());
        // The bodies of unrolled scans cannot compute symbols, which have only one value.
        let Some(l) = length.filter(|l| (1..=iterations).contains(l) && body.computed.is_empty()) else {
            continue;
        };
        // A single iteration is unrolled whatever its size.
        let made = if l == 1 { 0 } else { times(l, nodes(body)) };
        let all = if l == 1 { 0 } else { times(l, written_out(body, iterations)) };
        if all <= room {
            return Ok(Some((n, l, made)));
        }
    }
    Ok(None)
}

fn times(count: i64, nodes: usize) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(nodes)
}

/// The number of nodes that unrolling a body takes, including the unrolling of short scans inside it in each copy:
/// otherwise each copy would contain scans that are unrolled later.
fn written_out(body: &Graph, iterations: i64) -> usize {
    let inside = |n: NodeId| match &body.node(n).op {
        Op::If { then_branch, else_branch } => nodes(then_branch) + nodes(else_branch),
        Op::While { body, .. } => nodes(body),
        Op::Scan { body: inner, carried, .. } => {
            let first = body.node(n).inputs.get(*carried);
            let length = first.and_then(|v| body.ty(*v).shape.first()?.as_const());
            match length.filter(|l| (1..=iterations).contains(l)) {
                Some(l) => nodes(inner).saturating_add(times(l, written_out(inner, iterations))),
                None => nodes(inner),
            }
        }
        _ => 0,
    };
    body.node_ids().fold(0usize, |sum, n| sum.saturating_add(inside(n)).saturating_add(1))
}

/// The number of nodes of a graph, including its subgraphs.
fn nodes(g: &Graph) -> usize {
    let inside = |n: NodeId| match &g.node(n).op {
        Op::If { then_branch, else_branch } => nodes(then_branch) + nodes(else_branch),
        Op::While { body, .. } | Op::Scan { body, .. } => nodes(body),
        _ => 0,
    };
    g.node_ids().map(|n| 1 + inside(n)).sum()
}

fn write_out(graph: &mut Graph, n: NodeId, length: i64) -> Result<Vec<Value>, String> {
    let Node { op, inputs, origin, .. } = graph.node(n).clone();
    let Op::Scan { body, carried, scanned, reverse_inputs, reverse_outputs } = op else {
        return Err("not a scan".into());
    };
    let order = topo(&body)?;
    let captured = inputs.get(carried + scanned..).ok_or("a scan with too few operands")?;
    let mut state = inputs[..carried].to_vec();
    let mut stacks: Vec<Vec<Value>> = vec![vec![]; body.outputs.len().saturating_sub(carried)];
    let mut constants = HashMap::new();
    for i in 0..length {
        let mut given = state;
        for (j, x) in inputs[carried..carried + scanned].iter().enumerate() {
            let at = if reverse_inputs.get(j) == Some(&true) { length - 1 - i } else { i };
            let mut b = Builder { graph: &mut *graph, origin: origin.clone() };
            let shape = b.shape(*x)[1..].to_vec();
            let index = std::iter::once(Poly::constant(at)).chain((0..shape.len()).map(Poly::var)).collect();
            given.push(b.view(*x, shape, index)?);
        }
        given.extend(captured);
        let out = copy(graph, &body, &order, &given, &mut constants)?;
        for (s, v) in stacks.iter_mut().zip(&out[carried..]) {
            let mut b = Builder { graph: &mut *graph, origin: origin.clone() };
            s.push(b.unsqueeze(*v, &[0])?);
        }
        state = out[..carried].to_vec();
    }
    for (j, mut s) in stacks.into_iter().enumerate() {
        if reverse_outputs.get(j) == Some(&true) {
            s.reverse();
        }
        let mut b = Builder { graph: &mut *graph, origin: origin.clone() };
        state.push(b.concat(&s, 0)?);
    }
    for c in &body.constraints {
        if !graph.constraints.contains(c) {
            graph.constraints.push(c.clone());
        }
    }
    Ok(state)
}

/// Copies the body's nodes once, with `given` in place of its inputs. Returns its outputs.
pub(super) fn copy(
    graph: &mut Graph,
    body: &Graph,
    order: &[NodeId],
    given: &[Value],
    constants: &mut HashMap<NodeId, NodeId>,
) -> Result<Vec<Value>, String> {
    let missing = || "a value of a scan's body that is not made".to_owned();
    let mut made: HashMap<Value, Value> =
        body.inputs.iter().map(|b| b.value).zip(given.iter().copied()).collect();
    for n in order {
        let node = body.node(*n);
        let id = match (&node.op, constants.get(n)) {
            (Op::Input, _) => continue,
            (Op::Const(_), Some(c)) => *c,
            _ => {
                let inputs = node.inputs.iter().map(|v| made.get(v).copied()).collect::<Option<Vec<_>>>();
                let names = vec![None; node.names.len()];
                graph.add_node(Node { inputs: inputs.ok_or_else(missing)?, names, ..node.clone() })
            }
        };
        if matches!(node.op, Op::Const(_)) {
            constants.insert(*n, id);
        }
        for port in 0..node.outputs.len() as u32 {
            made.insert(Value { node: *n, port }, Value { node: id, port });
        }
    }
    body.outputs.iter().map(|o| made.get(&o.value).copied().ok_or_else(missing)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::{BinaryOp, Border, DType, Dim, Tensor, TensorType, eval};

    /// A running sum of `x` from `s`, times `w`, forwards and backwards.
    #[test]
    fn results_stay() {
        let ty = |shape: &[i64]| {
            TensorType::new(DType::F32, shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>())
        };
        for reverse in [false, true] {
            let mut body = Graph::new();
            let (s, x) = (body.add_input("s", ty(&[3])), body.add_input("x", ty(&[3])));
            let w = body.add_input("w", ty(&[1]));
            let mut b = Builder::new(&mut body, "step");
            let sum = b.binary(BinaryOp::Add, s, x).unwrap();
            let half = b.scalar(DType::F32, 0.5);
            let next = b.binary(BinaryOp::Mul, sum, half).unwrap();
            let out = b.binary(BinaryOp::Mul, next, w).unwrap();
            for v in [next, out] {
                body.outputs.push(Border { name: "o".into(), value: v });
            }
            let mut g = Graph::new();
            let inputs =
                [g.add_input("s", ty(&[3])), g.add_input("x", ty(&[17, 3])), g.add_input("w", ty(&[1]))];
            let op = Op::Scan {
                body: Box::new(body),
                carried: 1,
                scanned: 1,
                reverse_inputs: vec![reverse],
                reverse_outputs: vec![!reverse],
            };
            let n = g.push(op, &inputs, &[]).unwrap();
            for port in 0..2 {
                g.outputs.push(Border { name: format!("o{port}").into(), value: Value { node: n, port } });
            }
            let numbers = |n: usize| (0..n).map(|i| ((i * 7919) % 101) as f32 - 50.0).collect::<Vec<_>>();
            let values = [
                ("s".to_owned(), Tensor::from_f32(vec![3], &numbers(3))),
                ("x".to_owned(), Tensor::from_f32(vec![17, 3], &numbers(51))),
                ("w".to_owned(), Tensor::from_f32(vec![1], &[3.0])),
            ]
            .into();
            let want = eval::evaluate(&g, &values).unwrap();
            assert_eq!(unroll(&mut g, 17).unwrap(), 1);
            wgfc_ir::verify::verify(&g).unwrap();
            assert_eq!(eval::evaluate(&g, &values).unwrap(), want, "{reverse}");
        }
    }
}
