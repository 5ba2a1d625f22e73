//! Parallel products of one operand as one product: Q, K and V; gate and up.
//!
//! `x @ w₁ + b₁`, `x @ w₂ + b₂` → `y = x @ [w₁ w₂] + [b₁ b₂]`, and views that slice `y`.
//!
//! It pays where nothing is copied that stays needed: each weight is a constant that only its
//! product reads. Then the products read `x` once, in one dispatch, and the slices vanish into the
//! loads of whoever reads them. The merged weight must fit one binding.

use super::canonical::topo;
use super::views::ViewMap;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::tensor::Tensor;
use wgfc_ir::{BinaryOp, Contract, DType, Dim, Graph, NodeId, Op, Poly, ScalarFn, Value};

/// A product that can be merged with others of one [`Key`].
struct Product {
    node: NodeId,
    weight: Arc<Tensor>,
    /// The axis of the weight that is the result's own.
    axis: usize,
    /// How the product views the weight.
    view: Option<ViewMap>,
    bias: Option<Bias>,
}

/// The sum of a product and a constant along its own axis.
struct Bias {
    node: NodeId,
    tensor: Arc<Tensor>,
}

/// What products that can be merged have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    x: Value,
    /// The contraction with labels numbered in the order of the shared operand.
    contract: Contract,
    /// Which operand is shared.
    first: bool,
    dtype: DType,
    /// The weight's shape with its own axis as 0.
    weight: Vec<usize>,
    /// The order in which the product views the weight's axes.
    order: Vec<usize>,
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
        let bytes: usize = group.iter().map(|p| p.weight.dtype.bytes_for(p.weight.numel())).sum();
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
    let (first, (tensor, view)) = match (weight(graph, node.inputs[1]), weight(graph, node.inputs[0])) {
        (Some(w), None) => (true, w),
        (None, Some(w)) => (false, w),
        _ => return None,
    };
    let (lx, lw) = if first { (&c.a, &c.b) } else { (&c.b, &c.a) };
    let own: Vec<u8> = lw.iter().copied().filter(|l| !lx.contains(l)).collect();
    let [own] = own[..] else { return None };
    // A label of all three would make the weights' extents depend on the batch.
    if lw.iter().any(|l| lx.contains(l) && c.out.contains(l)) || tensor.dtype.bits() < 8 {
        return None;
    }
    let number = |l: &u8| lx.iter().position(|x| x == l).unwrap_or(lx.len()) as u8;
    let renamed = |v: &[u8]| v.iter().map(number).collect::<Vec<u8>>();
    let contract = Contract { a: renamed(&c.a), b: renamed(&c.b), out: renamed(&c.out) };
    let viewed = lw.iter().position(|l| *l == own)?;
    let order = match &view {
        None => (0..lw.len()).collect(),
        Some(v) => v.index.iter().map(Poly::as_var).collect::<Option<Vec<_>>>()?,
    };
    let axis = order.iter().position(|o| *o == viewed)?;
    let mut shape = tensor.shape.clone();
    shape[axis] = 0;
    let x = node.inputs[usize::from(!first)];
    let key = Key { x, contract, first, dtype: tensor.dtype, weight: shape, order };
    let bias = bias(graph, n, c.out.iter().position(|l| *l == own)?);
    Some((key, Product { node: n, weight: tensor, axis, view, bias }))
}

/// A constant that nothing else reads, and the permutation through which it is read.
fn weight(graph: &Graph, v: Value) -> Option<(Arc<Tensor>, Option<ViewMap>)> {
    let private = |v: Value| !graph.is_output(v) && graph.uses(v).len() == 1;
    let node = graph.node(v.node);
    if !private(v) {
        return None;
    }
    match &node.op {
        Op::Const(t) => Some((t.clone(), None)),
        op => {
            let map = ViewMap::of(op)?;
            let x = node.inputs[0];
            let Op::Const(t) = &graph.node(x.node).op else { return None };
            let of = &graph.ty(x).shape;
            let mut axes = map.index.iter().map(Poly::as_var).collect::<Option<Vec<_>>>()?;
            let whole = axes.iter().zip(of).all(|(a, d)| map.shape.get(*a) == Some(d));
            axes.sort_unstable();
            let permutes = axes.iter().copied().eq(0..map.shape.len());
            (private(x) && whole && permutes).then(|| (t.clone(), Some(map)))
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
    let axis = group[0].axis;
    let weights: Vec<&Tensor> = group.iter().map(|p| p.weight.as_ref()).collect();
    let mut w = constant(graph, concat(&weights, axis)?, &origin);
    if let Some(view) = &group[0].view {
        let of = graph.ty(w).shape.clone();
        let mut shape = view.shape.clone();
        shape[key.order[axis]] = of[axis].clone();
        let map = ViewMap { shape, index: view.index.clone(), fill: None };
        w = graph.push(map.op(), &[w], &origin)?.into();
    }
    let inputs = if key.first { [key.x, w] } else { [w, key.x] };
    let mut y: Value = graph.push(Op::Contract(key.contract.clone()), &inputs, &origin)?.into();

    let shared = if key.first { &key.contract.a } else { &key.contract.b }.len() as u8;
    let own = key.contract.out.iter().position(|l| *l == shared).ok_or("a product without its own axis")?;
    let biases: Option<Vec<&Bias>> = group.iter().map(|p| p.bias.as_ref()).collect();
    if let Some(biases) = &biases {
        let rank = graph.ty(y).rank();
        let rows: Vec<Tensor> = biases
            .iter()
            .map(|b| {
                let mut shape = vec![1; rank - own];
                shape[0] = b.tensor.numel();
                b.tensor.reshaped(shape)
            })
            .collect();
        let b = constant(graph, concat(&rows.iter().collect::<Vec<_>>(), 0)?, &origin);
        let shape = graph.ty(y).shape.clone();
        y = graph.push(Op::Map { body: ScalarFn::binary(BinaryOp::Add), shape }, &[y, b], &origin)?.into();
    }
    let mut start = 0usize;
    for p in group {
        let old: Value = match (&biases, &p.bias) {
            (Some(_), Some(b)) => b.node.into(),
            _ => p.node.into(),
        };
        let mut map = ViewMap::identity(&graph.ty(old).shape.clone());
        map.index[own] = &map.index[own] + &Poly::from(start);
        start += p.weight.shape[axis];
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

/// Tensors of one type, of a whole number of bytes an element, joined along an axis; absent when one of them is.
fn concat(parts: &[&Tensor], axis: usize) -> Result<Tensor, String> {
    let first = parts.first().ok_or("nothing to join")?;
    let mut shape = first.shape.clone();
    shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
    let Some(bytes) = parts.iter().map(|p| p.bytes()).collect::<Option<Vec<_>>>() else {
        return Ok(Tensor::absent(first.dtype, shape));
    };
    let outer: usize = shape[..axis].iter().product();
    let mut out = Vec::with_capacity(bytes.iter().map(|b| b.len()).sum());
    for i in 0..outer {
        for b in &bytes {
            let row = b.len() / outer;
            out.extend_from_slice(&b[i * row..(i + 1) * row]);
        }
    }
    Tensor::new(first.dtype, shape, out)
}
