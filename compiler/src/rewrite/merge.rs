//! Parallel products of one operand as one product: Q, K and V; gate and up.
//!
//! `x @ w₁ + b₁`, `x @ w₂ + b₂` → `y = x @ [w₁ w₂] + [b₁ b₂]`, and views that slice `y`. Products without a bias have one that changes nothing where others have one.
//!
//! It pays where nothing is copied that stays needed: each weight is a constant that only its
//! product reads, or made from such constants alike (dequantised, transposed). Then the products read `x` once, in one dispatch, and the slices become part of the
//! loads of their readers. The merged weight must fit one binding.

use super::canonical::topo;
use super::views::ViewMap;
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Arc;
use wgfc_ir::tensor::Tensor;
use wgfc_ir::{BinaryOp, Contract, Dim, Graph, NodeId, Op, Poly, Scalar, ScalarFn, ScalarNode, Value};

/// A product that can be merged with others of one [`Key`].
struct Product {
    node: NodeId,
    weight: Value,
    /// The axis of the weight that is the result's own.
    axis: usize,
    /// The bytes of the constants that the weight is made from.
    bytes: usize,
    bias: Option<Bias>,
}

/// The sum of a product and a constant along its own axis.
struct Bias {
    node: NodeId,
    tensor: Arc<Tensor>,
}

/// The properties that products that can be merged have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    x: Value,
    /// The contraction with labels numbered in the order of the shared operand.
    contract: Contract,
    /// Which operand is shared.
    first: bool,
    /// [`describe`]d along its own axis.
    weight: String,
}

/// Merges products; returns how many each group had. No merged weight exceeds `max_bytes`.
pub fn merge(graph: &mut Graph, max_bytes: u64) -> Result<Vec<usize>, String> {
    let mut keys: Vec<Key> = vec![];
    let mut groups: FxHashMap<Key, Vec<Product>> = FxHashMap::default();
    for n in topo(graph)? {
        let Some((key, product)) = product(graph, n) else { continue };
        let group = groups.entry(key.clone()).or_default();
        if group.is_empty() {
            keys.push(key);
        }
        group.push(product);
    }
    let mut merged = vec![];
    for key in keys {
        let Some(group) = groups.remove(&key) else { continue };
        let bytes: usize = group.iter().map(|p| p.bytes).sum();
        if group.len() < 2 || bytes as u64 > max_bytes {
            continue;
        }
        join(graph, &key, &group)?;
        merged.push(group.len());
    }
    graph.remove_dead();
    Ok(merged)
}

fn product(graph: &Graph, n: NodeId) -> Option<(Key, Product)> {
    let node = graph.node(n);
    let Op::Contract(c) = &node.op else { return None };
    // The shared operand is the one that is no weight.
    let described = |first: bool| {
        let (lx, lw) = if first { (&c.a, &c.b) } else { (&c.b, &c.a) };
        let own: Vec<u8> = lw.iter().copied().filter(|l| !lx.contains(l)).collect();
        let [own] = own[..] else { return None };
        // A label of all three would make the weights' extents depend on the batch.
        if lw.iter().any(|l| lx.contains(l) && c.out.contains(l)) {
            return None;
        }
        let axis = lw.iter().position(|l| *l == own)?;
        let (mut text, mut bytes) = (String::new(), 0);
        describe(graph, node.inputs[usize::from(first)], axis, &mut text, &mut bytes)?;
        Some((first, own, axis, text, bytes))
    };
    let (first, own, axis, weight, bytes) = match (described(true), described(false)) {
        (Some(w), None) | (None, Some(w)) => w,
        _ => return None,
    };
    let lx = if first { &c.a } else { &c.b };
    let number = |l: &u8| lx.iter().position(|x| x == l).unwrap_or(lx.len()) as u8;
    let renamed = |v: &[u8]| v.iter().map(number).collect::<Vec<u8>>();
    let contract = Contract { a: renamed(&c.a), b: renamed(&c.b), out: renamed(&c.out) };
    let x = node.inputs[usize::from(!first)];
    let key = Key { x, contract, first, weight };
    let bias = bias(graph, n, c.out.iter().position(|l| *l == own)?);
    Some((key, Product { node: n, weight: node.inputs[usize::from(first)], axis, bytes, bias }))
}

/// Writes down how a weight that only one node reads is made from constants: what is alike for two
/// weights can be [joined](join_weights) along `axis`. The extent of that axis is left out. Adds the
/// constants' bytes; `None` for anything that cannot be joined.
fn describe(graph: &Graph, v: Value, axis: usize, out: &mut String, bytes: &mut usize) -> Option<()> {
    if graph.is_output(v) || graph.uses(v).len() != 1 {
        return None;
    }
    let ty = graph.ty(v);
    let shape: Vec<String> = ty
        .shape
        .iter()
        .enumerate()
        .map(|(i, d)| if i == axis { "_".into() } else { d.to_string() })
        .collect();
    let _ = write!(out, "{} {shape:?} ", ty.dtype);
    let node = graph.node(v.node);
    match &node.op {
        Op::Const(t) => {
            let inner: usize = t.shape[axis + 1..].iter().product();
            // Packed elements are joined by whole bytes.
            if t.dtype.bits() < 8 && (axis > 0 || !(inner * t.dtype.bits()).is_multiple_of(8)) {
                return None;
            }
            *bytes += t.dtype.bytes_for(t.numel());
            let _ = write!(out, "const {axis}; ");
            Some(())
        }
        Op::Map { body, shape } => {
            if body.nodes.iter().any(|n| matches!(n, ScalarNode::Index(_))) {
                return None;
            }
            let _ = write!(out, "{body:?} (");
            for x in &node.inputs {
                match own_axis(&graph.ty(*x).shape, shape.len(), axis) {
                    Some(axis) => describe(graph, *x, axis, out, bytes)?,
                    // Operands that are the same for all.
                    None => write!(out, "{x:?} ").ok()?,
                }
            }
            out.push_str("); ");
            Some(())
        }
        op => {
            let map = ViewMap::of(op)?;
            let from = view_axis(&map, &graph.ty(node.inputs[0]).shape, axis)?;
            let _ = write!(out, "{:?} ", map.index);
            describe(graph, node.inputs[0], from, out, bytes)
        }
    }
}

/// Which axis of a Map's operand pairs with axis `axis` of a result of rank `rank`, if it has extent there.
fn own_axis(operand: &[Dim], rank: usize, axis: usize) -> Option<usize> {
    let i = (operand.len() + axis).checked_sub(rank)?;
    (!operand[i].is(1)).then_some(i)
}

/// Which axis of its operand a view reads along its own axis `axis`, whole and in order.
fn view_axis(map: &ViewMap, from: &[Dim], axis: usize) -> Option<usize> {
    let mut along = (0..from.len()).filter(|i| map.index[*i].vars().contains(&axis));
    let (i, None) = (along.next()?, along.next()) else { return None };
    (map.fill.is_none() && map.index[i].as_var() == Some(axis) && from[i] == map.shape[axis]).then_some(i)
}

/// Weights of one [description](describe) joined along an axis.
fn join_weights(
    graph: &mut Graph,
    parts: &[Value],
    axis: usize,
    origin: &[Arc<str>],
) -> Result<Value, String> {
    let first = parts.first().ok_or("nothing to join")?;
    let extent: Dim = parts.iter().map(|p| graph.ty(*p).shape[axis].clone()).sum();
    let node = graph.node(first.node).clone();
    let operand = |graph: &Graph, i: usize| -> Vec<Value> {
        parts.iter().map(|p| graph.node(p.node).inputs[i]).collect()
    };
    match &node.op {
        Op::Const(_) => {
            let data: Vec<Arc<Tensor>> = parts
                .iter()
                .filter_map(|p| match &graph.node(p.node).op {
                    Op::Const(t) => Some(t.clone()),
                    _ => None,
                })
                .collect();
            let joined = Tensor::joined(&data.iter().map(Arc::as_ref).collect::<Vec<_>>(), axis)?;
            Ok(constant(graph, joined, origin))
        }
        Op::Map { body, shape } => {
            let mut inputs = vec![];
            for (i, x) in node.inputs.iter().enumerate() {
                inputs.push(match own_axis(&graph.ty(*x).shape, shape.len(), axis) {
                    Some(axis) => {
                        let parts = operand(graph, i);
                        join_weights(graph, &parts, axis, origin)?
                    }
                    None => *x,
                });
            }
            let mut shape = shape.clone();
            shape[axis] = extent;
            Ok(graph.push(Op::Map { body: body.clone(), shape }, &inputs, origin)?.into())
        }
        op => {
            let mut map = ViewMap::of(op).ok_or("weights of different kinds")?;
            let from = view_axis(&map, &graph.ty(node.inputs[0]).shape, axis).ok_or("a view across parts")?;
            let parts = operand(graph, 0);
            let x = join_weights(graph, &parts, from, origin)?;
            map.shape[axis] = extent;
            Ok(graph.push(map.op(), &[x], origin)?.into())
        }
    }
}

/// The only reader of product `n`, if that adds a constant that varies along axis `own` only.
fn bias(graph: &Graph, n: NodeId, own: usize) -> Option<Bias> {
    let v = Value::from(n);
    let [(add, _)] = graph.uses(v)[..] else { return None };
    let node = graph.node(add);
    let [a, b] = node.inputs[..] else { return None };
    let other = if a == v { b } else { a };
    let Op::Map { body, .. } = &node.op else { return None };
    let Op::Const(t) = &graph.node(other.node).op else { return None };
    let ty = graph.ty(v);
    let along = (ty.rank() - own).checked_sub(1)?;
    let fits = t.shape.iter().rev().enumerate().all(|(i, d)| *d == 1 || i == along)
        && t.shape.len() > along
        && ty.shape[own].is(t.numel() as i64);
    (*body == ScalarFn::binary(BinaryOp::Add) && !graph.is_output(v) && graph.ty(add.into()) == ty && fits)
        .then(|| Bias { node: add, tensor: t.clone() })
}

fn join(graph: &mut Graph, key: &Key, group: &[Product]) -> Result<(), String> {
    let mut origin: Vec<Arc<str>> = vec![];
    for p in group {
        for n in std::iter::once(p.node).chain(p.bias.as_ref().map(|b| b.node)) {
            for o in &graph.node(n).origin {
                if !origin.contains(o) {
                    origin.push(o.clone());
                }
            }
        }
    }
    let weights: Vec<Value> = group.iter().map(|p| p.weight).collect();
    let w = join_weights(graph, &weights, group[0].axis, &origin)?;
    let inputs = if key.first { [key.x, w] } else { [w, key.x] };
    let mut y: Value = graph.push(Op::Contract(key.contract.clone()), &inputs, &origin)?.into();

    let shared = if key.first { &key.contract.a } else { &key.contract.b }.len() as u8;
    let own = key.contract.out.iter().position(|l| *l == shared).ok_or("a product without its own axis")?;
    if let Some(dtype) = group.iter().find_map(|p| Some(p.bias.as_ref()?.tensor.dtype)) {
        let rank = graph.ty(y).rank();
        let mut rows: Vec<Tensor> = vec![];
        for p in group {
            let extent = graph.ty(p.weight).shape[p.axis].as_const().ok_or("a weight of unknown extent")?;
            let mut shape = vec![1; rank - own];
            shape[0] = extent as usize;
            // The identity of the addition: 0 would make -0 a 0.
            let none = Scalar::from_f64(dtype, -0.0);
            rows.push(match &p.bias {
                Some(b) => b.tensor.reshaped(shape),
                None => Tensor::generate(dtype, shape, |_| none),
            });
        }
        let b = constant(graph, Tensor::joined(&rows.iter().collect::<Vec<_>>(), 0)?, &origin);
        let shape = graph.ty(y).shape.clone();
        y = graph.push(Op::Map { body: ScalarFn::binary(BinaryOp::Add), shape }, &[y, b], &origin)?.into();
    }
    let mut start = Poly::ZERO;
    for p in group {
        let old: Value = p.bias.as_ref().map_or(p.node, |b| b.node).into();
        let mut map = ViewMap::identity(&graph.ty(old).shape.clone());
        map.index[own] = &map.index[own] + &start;
        start = &start + &graph.ty(p.weight).shape[p.axis];
        let node = graph.node(old.node);
        let (names, from) = (node.names.clone(), node.origin.clone());
        let slice = graph.push(map.op(), &[y], &from)?;
        graph.node_mut(slice).names = names;
        graph.replace_uses(old, slice.into());
    }
    Ok(())
}

fn constant(graph: &mut Graph, t: Tensor, origin: &[Arc<str>]) -> Value {
    let ty = wgfc_ir::TensorType::new(t.dtype, t.shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>());
    let node = wgfc_ir::Node {
        op: Op::Const(Arc::new(t)),
        inputs: vec![],
        outputs: vec![ty],
        origin: origin.to_vec(),
        names: vec![None],
    };
    graph.add_node(node).into()
}
