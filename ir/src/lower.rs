//! Lowering of raised operators to primitives.
//!
//! The definitions of [`Op::Softmax`], [`Op::Norm`] and [`Op::Attention`] in terms of Map, Reduce and
//! Contract. Narrow floats are widened to f32 first, so that only the result is rounded.

use crate::build::{Builder, Built};
use crate::dtype::DType;
use crate::graph::{Graph, NodeId, Value};
use crate::op::{Contract, NormKind, Op, ReduceOp};
use crate::poly::Dim;
use crate::scalar::{BinaryOp, Scalar, ScalarFn, ScalarNode, UnaryOp};

/// Replaces every raised operator of the graph and its subgraphs by primitives. A node with invalid operands, which
/// the verifier reports, is left unchanged.
pub fn lower_raised(graph: &mut Graph) {
    let ids: Vec<NodeId> = graph.node_ids().collect();
    let mut changed = false;
    for id in ids {
        match &mut graph.node_mut(id).op {
            Op::If { then_branch, else_branch } => {
                lower_raised(then_branch);
                lower_raised(else_branch);
            }
            Op::While { body, .. } | Op::Scan { body, .. } => lower_raised(body),
            _ => changed |= lower_node(graph, id).is_some(),
        }
    }
    if changed {
        graph.remove_dead();
    }
}

/// Builds the primitives of one raised node and redirects its readers to them; `None` if the node is not raised.
fn lower_node(graph: &mut Graph, id: NodeId) -> Option<()> {
    let node = graph.node(id);
    let (op, inputs, names) = (node.op.clone(), node.inputs.clone(), node.names.clone());
    let mut b = Builder { origin: node.origin.clone(), graph };
    let x = *inputs.first()?;
    let built = match op {
        Op::Softmax { axis, log } => softmax(&mut b, x, axis, log),
        Op::Norm { kind, axes, epsilon } => norm(&mut b, x, kind, &axes, f32::from_bits(epsilon)),
        Op::Attention { scale, empty_is_zero } => {
            attention(&mut b, &inputs, f32::from_bits(scale), empty_is_zero)
        }
        _ => return None,
    };
    let new = built.ok()?;
    graph.replace_uses(id.into(), new);
    let to = graph.node_mut(new.node);
    if let (Some(slot), Some(name)) = (to.names.get_mut(new.port as usize), names.into_iter().next()) {
        *slot = name;
    }
    Some(())
}

fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

/// `exp(x − max) / Σ exp(x − max)` along `axis`, or its logarithm, in the type of `x`.
pub fn softmax(b: &mut Builder<'_>, x: Value, axis: usize, log: bool) -> Built {
    let dtype = b.dtype(x);
    let x = b.cast(x, wide(dtype))?;
    let max = b.reduce(ReduceOp::Max, x, &[axis], true)?;
    let shifted = b.binary(BinaryOp::Sub, x, max)?;
    let e = b.unary(UnaryOp::Exp, shifted)?;
    let sum = b.reduce(ReduceOp::Sum, e, &[axis], true)?;
    let y = if log {
        let ln = b.unary(UnaryOp::Log, sum)?;
        b.binary(BinaryOp::Sub, shifted, ln)?
    } else {
        b.binary(BinaryOp::Div, e, sum)?
    };
    b.cast(y, dtype)
}

/// `(x − μ) / √(σ² + ε)` over `axes`, or `x / √(mean(x²) + ε)`, in the type of `x`.
pub fn norm(b: &mut Builder<'_>, x: Value, kind: NormKind, axes: &[usize], epsilon: f32) -> Built {
    let dtype = b.dtype(x);
    let x = b.cast(x, wide(dtype))?;
    let centred = match kind {
        NormKind::Layer => {
            let mean = b.mean(x, axes)?;
            b.binary(BinaryOp::Sub, x, mean)?
        }
        NormKind::Rms => x,
    };
    let square = b.binary(BinaryOp::Mul, centred, centred)?;
    let variance = b.mean(square, axes)?;
    let shifted = b.binary_scalar(BinaryOp::Add, variance, f64::from(epsilon))?;
    let scale = b.unary(UnaryOp::Rsqrt, shifted)?;
    let y = b.binary(BinaryOp::Mul, centred, scale)?;
    b.cast(y, dtype)
}

/// The mask value of hidden keys in an attention with `empty_is_zero`.
pub fn unseen(dtype: DType) -> Scalar {
    let least =
        if matches!(dtype, DType::F32 | DType::F64) { f64::from(f32::MIN) } else { f64::NEG_INFINITY };
    Scalar::from_f64(dtype, least)
}

/// Converts `bias` of type `dtype` for an attention with `empty_is_zero`: −∞ becomes [`unseen`], and finite numbers
/// leave a key visible.
pub fn finite_is_seen(f: &mut ScalarFn, bias: u32, dtype: DType) -> u32 {
    if !matches!(dtype, DType::F32 | DType::F64) {
        return bias;
    }
    let above = f.push(ScalarNode::Const(Scalar::from_f64(dtype, f64::from(f32::MIN.next_up()))));
    let finite = f.push(ScalarNode::Binary(BinaryOp::Max, bias, above));
    // Infinity is detected with `IsInf` rather than by comparison, because WGSL implementations may assume that
    // numbers are finite.
    let zero = f.push(ScalarNode::Const(Scalar::from_f64(dtype, 0.0)));
    let negative = f.push(ScalarNode::Binary(BinaryOp::Min, bias, zero));
    let hidden = f.push(ScalarNode::Unary(UnaryOp::IsInf, negative));
    let unseen = f.push(ScalarNode::Const(unseen(dtype)));
    f.push(ScalarNode::Select(hidden, unseen, finite))
}

/// `softmax(q·kᵀ·scale + mask)·v`, with the operands of [`Op::Attention`].
pub fn attention(b: &mut Builder<'_>, inputs: &[Value], scale: f32, empty_is_zero: bool) -> Built {
    let [q, k, v, mask @ ..] = inputs else { return Err("needs q, k and v".into()) };
    let dtype = b.dtype(*q);
    let rank = b.rank(*q);
    let batch: Vec<u8> = (0..rank.saturating_sub(2) as u8).collect();
    let (s, d, t, e) = (rank as u8, rank as u8 + 1, rank as u8 + 2, rank as u8 + 3);
    let with = |x: u8, y: u8| [batch.clone(), vec![x, y]].concat();
    let (q, k, v) = (b.cast(*q, wide(dtype))?, b.cast(*k, wide(dtype))?, b.cast(*v, wide(dtype))?);
    let qk = Contract { a: with(s, d), b: with(t, d), out: with(s, t) };
    let scores = b.push(Op::Contract(qk), &[q, k])?;
    let mut scores = b.binary_scalar(BinaryOp::Mul, scores, f64::from(scale))?;
    if let Some(m) = mask.first() {
        let m = b.cast(*m, wide(dtype))?;
        let shape: Vec<Dim> = b.shape(scores);
        scores = b.map_to(ScalarFn::binary(BinaryOp::Add), &[scores, m], shape)?;
    }
    // The softmax of a row of −∞ would divide 0 by 0.
    let scores = b.binary_scalar(BinaryOp::Max, scores, f64::from(f32::MIN))?;
    let mut p = softmax(b, scores, rank - 1, false)?;
    if empty_is_zero {
        let least = b.scalar(b.dtype(scores), f64::from(f32::MIN));
        let seen = b.binary(BinaryOp::Gt, scores, least)?;
        let any = b.reduce(ReduceOp::Max, seen, &[rank - 1], true)?;
        let zero = b.scalar(b.dtype(p), 0.0);
        let shape = b.shape(p);
        p = b.map_to(ScalarFn::select(), &[any, p, zero], shape)?;
    }
    let pv = Contract { a: with(s, t), b: with(t, e), out: with(s, e) };
    let y = b.push(Op::Contract(pv), &[p, v])?;
    b.cast(y, dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::evaluate;
    use crate::graph::{Border, TensorType};
    use crate::scalar::Scalar;
    use crate::tensor::Tensor;
    use crate::verify::verify;
    use std::collections::BTreeMap;

    fn check(dtype: DType, shapes: &[&[usize]], op: Op, tolerance: f32) {
        let mut g = Graph::default();
        let (mut args, mut inputs) = (vec![], BTreeMap::new());
        for (i, s) in shapes.iter().enumerate() {
            let name = format!("x{i}");
            let dims: Vec<Dim> = s.iter().map(|d| Dim::from(*d)).collect();
            args.push(g.add_input(&name, TensorType::new(dtype, dims)));
            let n: usize = s.iter().product();
            let v: Vec<Scalar> =
                (0..n).map(|j| Scalar::from_f64(dtype, ((j * 29 + i * 7) % 53) as f64 / 9.0 - 2.9)).collect();
            inputs.insert(name, Tensor::from_scalars(dtype, s.to_vec(), &v));
        }
        let y = g.push(op, &args, &["raised".into()]).unwrap();
        g.outputs.push(Border { name: "y".into(), value: y.into() });
        let want = evaluate(&g, &inputs).unwrap()[0].to_f32s().unwrap();
        lower_raised(&mut g);
        verify(&g).unwrap();
        assert!(!g.contains(y), "still raised");
        let got = evaluate(&g, &inputs).unwrap()[0].to_f32s().unwrap();
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() <= tolerance * w.abs().max(1.0), "{g} for {w}");
        }
    }

    #[test]
    fn softmax_agrees() {
        for axis in 0..3 {
            for log in [false, true] {
                check(DType::F32, &[&[3, 7, 13]], Op::Softmax { axis, log }, 1e-6);
            }
        }
        check(DType::F16, &[&[7, 13]], Op::Softmax { axis: 1, log: false }, 1e-3);
        check(DType::F64, &[&[7, 13]], Op::Softmax { axis: 0, log: false }, 1e-7);
    }

    #[test]
    fn norm_agrees() {
        for kind in [NormKind::Layer, NormKind::Rms] {
            for axes in [vec![1], vec![0, 2], vec![1, 2]] {
                let op = Op::Norm { kind, axes, epsilon: 1e-5f32.to_bits() };
                check(DType::F32, &[&[3, 7, 13]], op.clone(), 1e-5);
                check(DType::BF16, &[&[3, 7, 13]], op, 1e-2);
            }
        }
    }

    #[test]
    fn attention_agrees() {
        let op = Op::Attention { scale: 0.37f32.to_bits(), empty_is_zero: false };
        check(DType::F32, &[&[2, 3, 7, 5], &[2, 3, 13, 5], &[2, 3, 13, 11]], op.clone(), 1e-5);
        check(DType::F32, &[&[7, 5], &[13, 5], &[13, 3], &[1, 13]], op.clone(), 1e-5);
        check(DType::F16, &[&[3, 7, 5], &[3, 13, 5], &[3, 13, 4], &[3, 7, 13]], op, 2e-3);
        let op = Op::Attention { scale: 0.37f32.to_bits(), empty_is_zero: true };
        check(DType::F32, &[&[3, 7, 5], &[3, 13, 5], &[3, 13, 4], &[7, 13]], op, 1e-5);
    }
}
