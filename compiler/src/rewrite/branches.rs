//! Data-dependent conditions become a selection between the results of both branches: operators have no side effects, and loads stay
//! inside their buffers also in the branch that is not taken.

use super::canonical::topo;
use super::unroll::copy;
use std::collections::HashMap;
use wgfc_ir::build::Builder;
use wgfc_ir::{Graph, NodeId, Op, Value};

/// Replaces every `if` by both branches and a selection; returns how many.
pub fn flatten(graph: &mut Graph) -> Result<usize, String> {
    let mut count = 0;
    let next = |g: &Graph| g.node_ids().find(|n| matches!(g.node(*n).op, Op::If { .. }));
    while let Some(n) = next(graph) {
        both(graph, n)?;
        graph.remove_dead();
        count += 1;
    }
    Ok(count)
}

fn both(graph: &mut Graph, n: NodeId) -> Result<(), String> {
    let node = graph.node(n).clone();
    let Op::If { then_branch, else_branch } = &node.op else { return Err("not a branch".into()) };
    let (condition, given) = node.inputs.split_first().ok_or("a branch without a condition")?;
    let mut sides = vec![];
    for branch in [then_branch, else_branch] {
        sides.push(copy(graph, branch, &topo(branch)?, given, &mut HashMap::new())?);
        for c in &branch.constraints {
            if !graph.constraints.contains(c) {
                graph.constraints.push(c.clone());
            }
        }
    }
    let [then_values, else_values] = &sides[..] else { return Err("a branch has two sides".into()) };
    for (port, (a, b)) in then_values.iter().zip(else_values).enumerate() {
        let v = Builder { graph: &mut *graph, origin: node.origin.clone() }.select(*condition, *a, *b)?;
        if let (Some(slot), Some(name)) =
            (graph.node_mut(v.node).names.first_mut(), node.names.get(port).cloned().flatten())
        {
            slot.get_or_insert(name);
        }
        graph.replace_uses(Value { node: n, port: port as u32 }, v);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::{BinaryOp, Border, DType, Scalar, Tensor, TensorType, eval};

    fn branch(op: BinaryOp) -> Graph {
        let mut g = Graph::new();
        let ty = TensorType::new(DType::F32, vec![3i64.into(), 2i64.into()]);
        let (x, y) = (g.add_input("x", ty.clone()), g.add_input("y", ty));
        let v = Builder::new(&mut g, "side").binary(op, x, y).unwrap();
        g.outputs.push(Border { name: "o".into(), value: v });
        g
    }

    #[test]
    fn either_side_comes_out() {
        let mut g = Graph::new();
        let ty = TensorType::new(DType::F32, vec![3i64.into(), 2i64.into()]);
        let inputs = [
            g.add_input("c", TensorType::new(DType::Bool, vec![])),
            g.add_input("x", ty.clone()),
            g.add_input("y", ty),
        ];
        let op = Op::If {
            then_branch: Box::new(branch(BinaryOp::Add)),
            else_branch: Box::new(branch(BinaryOp::Div)),
        };
        let n = g.push(op, &inputs, &[]).unwrap();
        g.outputs.push(Border { name: "o".into(), value: n.into() });
        let mut flat = g.clone();
        assert_eq!(flatten(&mut flat).unwrap(), 1);
        wgfc_ir::verify::verify(&flat).unwrap();
        for c in [false, true] {
            let values = [
                ("c".to_owned(), Tensor::scalar(Scalar::bool(c))),
                ("x".to_owned(), Tensor::from_f32(vec![3, 2], &[1.0, -2.0, 3.0, 0.0, 5.0, 6.0])),
                ("y".to_owned(), Tensor::from_f32(vec![3, 2], &[2.0, 0.5, 0.25, 0.0, 3.0, -1.0])),
            ]
            .into();
            // 0 / 0 is computed, but not selected.
            let (want, got) = (eval::evaluate(&g, &values).unwrap(), eval::evaluate(&flat, &values).unwrap());
            assert_eq!(want[0].to_f32s().map(bits), got[0].to_f32s().map(bits));
        }
    }

    fn bits(v: Vec<f32>) -> Vec<u32> {
        v.into_iter().map(f32::to_bits).collect()
    }
}
