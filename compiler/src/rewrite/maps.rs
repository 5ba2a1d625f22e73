//! Composition of maps for the CPU's evaluator, where each map is a pass over memory. Fusion composes expressions by itself.

use super::canonical::topo;
use wgfc_ir::{Graph, NodeId, Op, ScalarFn, ScalarNode, Value};

/// The maximum number of scalar operators of a composed map.
const LARGEST: usize = 64;

/// `map(… map(x) …)` → `map(… x …)`, where the inner map has the shape of the outer one, which alone reads it.
pub fn compose(graph: &mut Graph) -> Result<(), String> {
    for mut n in topo(graph)? {
        while let Some(inner) = composable(graph, n) {
            let Some((op, inputs)) = composed(graph, n, inner) else { break };
            let mut origin = graph.node(inner.node).origin.clone();
            origin.extend(
                graph.node(n).origin.iter().filter(|o| !graph.node(inner.node).origin.contains(o)).cloned(),
            );
            let made = graph.push(op, &inputs, &origin)?;
            graph.node_mut(made).names = graph.node(n).names.clone();
            graph.replace_uses(n.into(), made.into());
            n = made;
        }
    }
    graph.remove_dead();
    Ok(())
}

/// An operand of a map that can be composed with it.
fn composable(graph: &Graph, n: NodeId) -> Option<Value> {
    let Op::Map { shape, body } = &graph.node(n).op else { return None };
    let fits = |v: &Value| match &graph.node(v.node).op {
        Op::Map { shape: inner, body: f } => {
            inner == shape
                && body.nodes.len() + f.nodes.len() <= LARGEST
                && !graph.is_output(*v)
                && graph.uses(*v).iter().all(|(reader, _)| *reader == n)
        }
        _ => false,
    };
    graph.node(n).inputs.iter().copied().find(fits)
}

/// The composition of a map with the map that makes one of its operands; `None` if the outer map only passes its operand on.
fn composed(graph: &Graph, n: NodeId, inner: Value) -> Option<(Op, Vec<Value>)> {
    let (outer, first) = (graph.node(n), graph.node(inner.node));
    let (Op::Map { shape, body }, Op::Map { body: f, .. }) = (&outer.op, &first.op) else { return None };
    let mut inputs: Vec<Value> = vec![];
    let mut nodes: Vec<ScalarNode> = vec![];
    let mut argument = |v: Value| {
        let place = inputs.iter().position(|i| *i == v).unwrap_or_else(|| {
            inputs.push(v);
            inputs.len() - 1
        });
        ScalarNode::Arg(place as u32)
    };
    for node in &f.nodes {
        nodes.push(match node {
            ScalarNode::Arg(i) => argument(*first.inputs.get(*i as usize)?),
            other => other.clone(),
        });
    }
    let root = nodes.len().checked_sub(1)? as u32;
    let mut place: Vec<u32> = vec![];
    for node in &body.nodes {
        let at = |i: &u32| place[*i as usize];
        let node = match node {
            ScalarNode::Arg(i) => match *outer.inputs.get(*i as usize)? {
                v if v == inner => {
                    place.push(root);
                    continue;
                }
                v => argument(v),
            },
            ScalarNode::Unary(op, a) => ScalarNode::Unary(*op, at(a)),
            ScalarNode::Binary(op, a, b) => ScalarNode::Binary(*op, at(a), at(b)),
            ScalarNode::Select(c, a, b) => ScalarNode::Select(at(c), at(a), at(b)),
            ScalarNode::Cast(to, a) => ScalarNode::Cast(*to, at(a)),
            ScalarNode::Bitcast(to, a) => ScalarNode::Bitcast(*to, at(a)),
            other => other.clone(),
        };
        place.push(nodes.len() as u32);
        nodes.push(node);
    }
    let ends = *place.last()? as usize == nodes.len() - 1 && nodes.len() - 1 > root as usize;
    ends.then(|| (Op::Map { shape: shape.clone(), body: ScalarFn { nodes } }, inputs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use wgfc_ir::eval::evaluate;
    use wgfc_ir::{BinaryOp, Border, Builder, DType, Dim, Tensor, TensorType, UnaryOp};

    #[test]
    fn a_chain_of_maps_becomes_one() {
        let mut graph = Graph::new();
        let shape = [Dim::sym("n"), Dim::constant(3)];
        let x = graph.add_input("x", TensorType::new(DType::F32, shape));
        let mut b = Builder::new(&mut graph, "chain");
        let negative = b.unary(UnaryOp::Neg, x).unwrap();
        let square = b.binary(BinaryOp::Mul, negative, negative).unwrap();
        let seen = b.unary(UnaryOp::Abs, square).unwrap();
        let value = b.binary(BinaryOp::Sub, seen, x).unwrap();
        graph.outputs.push(Border { name: "seen".into(), value: seen });
        graph.outputs.push(Border { name: "y".into(), value });
        let inputs: BTreeMap<String, Tensor> =
            [("x".to_owned(), Tensor::from_f32(vec![1, 3], &[1.0, -2.0, 5.0]))].into();
        let before = evaluate(&graph, &inputs).unwrap();
        compose(&mut graph).unwrap();
        wgfc_ir::verify::verify(&graph).unwrap();
        // The input, the map that makes the first output, and the one that reads it.
        assert_eq!(graph.len(), 3);
        assert_eq!(evaluate(&graph, &inputs).unwrap(), before);
    }
}
