//! Weights that are larger than the bindings of a kernel together.
//!
//! ```text
//! contract (a, w)        →  concat (contract (a, w[0..n]), contract (a, w[n..]))
//! gather (w, indices)    →  select (indices < n, gather (w[0..n], indices), gather (w[n..], indices - n))
//! ```
//!
//! A kernel reads a constant that is larger than a binding through several bindings. Where these would be too many, products are
//! computed for some rows of the weight at a time, and lookups of rows are selected from those of all parts. Constants are cut without
//! a copy; the expressions by which they are dequantised or transposed are repeated for each part.

use crate::device::DeviceProfile;
use crate::error::Errors;
use crate::fuse::internal;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::{BinaryOp, Builder, Dim, GatherAxis, Graph, NodeId, Op, Poly, ScalarNode, Value};

/// Cuts weights that need more than half of a kernel's bindings. Returns the number of products and lookups that were cut.
pub(super) fn cut(graph: &mut Graph, profile: &DeviceProfile) -> Result<usize, Errors> {
    let most =
        u64::from(profile.max_storage_buffers / 2).max(1).saturating_mul(profile.max_binding_bytes.max(1));
    let sizes = sizes(graph);
    if sizes.values().all(|bytes| *bytes <= most) {
        return Ok(0);
    }
    let mut done = 0;
    for n in graph.node_ids().collect::<Vec<NodeId>>() {
        let new = match graph.node(n).op {
            Op::Contract(_) => product(graph, &sizes, n, most),
            Op::Gather { .. } => lookup(graph, &sizes, n, most),
            _ => continue,
        };
        if let Some(new) = new.map_err(|e| internal(graph, n, &e))? {
            graph.node_mut(new.node).names = graph.node(n).names.clone();
            graph.replace_uses(n.into(), new);
            done += 1;
        }
    }
    graph.remove_dead();
    Ok(done)
}

/// The bytes of the largest constant from which each node is computed by maps and views; other nodes have none.
type Sizes = FxHashMap<NodeId, u64>;

fn sizes(graph: &Graph) -> Sizes {
    let mut sizes = Sizes::default();
    for n in graph.topo().unwrap_or_default() {
        let node = graph.node(n);
        let bytes = match &node.op {
            Op::Const(t) => Some(t.dtype.bytes_of(t.numel() as u64)),
            Op::Map { .. } | Op::View { .. } => {
                node.inputs.iter().filter_map(|v| sizes.get(&v.node)).max().copied()
            }
            _ => None,
        };
        sizes.extend(bytes.map(|bytes| (n, bytes)));
    }
    sizes
}

/// The lengths of the parts into which an axis of a weight is cut; `None` if the weight is small or its rows cannot be cut.
fn lengths(graph: &Graph, sizes: &Sizes, v: Value, axis: usize, most: u64) -> Option<Vec<usize>> {
    let parts = usize::try_from(sizes.get(&v.node)?.div_ceil(most)).ok().filter(|n| *n > 1)?;
    let rows = usize::try_from(graph.ty(v).shape[axis].as_const()?).ok()?;
    // Elements of less than a byte are cut at bytes.
    let per = rows.div_ceil(parts).next_multiple_of(8);
    let lengths: Vec<usize> = (0..rows).step_by(per).map(|at| per.min(rows - at)).collect();
    (lengths.len() > 1).then_some(lengths)
}

fn builder(graph: &mut Graph, n: NodeId) -> Builder<'_> {
    let origin = graph.node(n).origin.clone();
    let mut b = Builder::new(graph, "");
    b.origin = origin;
    b
}

/// The parts of a product with a large weight, joined.
fn product(graph: &mut Graph, sizes: &Sizes, n: NodeId, most: u64) -> Result<Option<Value>, String> {
    let Op::Contract(c) = graph.node(n).op.clone() else { return Ok(None) };
    let inputs = graph.node(n).inputs.clone();
    for (i, (own, other)) in [(&c.a, &c.b), (&c.b, &c.a)].into_iter().enumerate() {
        for (axis, label) in own.iter().enumerate() {
            let at = c.out.iter().position(|l| l == label).filter(|_| !other.contains(label));
            let (Some(at), Some(lengths)) = (at, lengths(graph, sizes, inputs[i], axis, most)) else {
                continue;
            };
            let mut b = builder(graph, n);
            let (mut parts, mut from) = (vec![], 0);
            for len in lengths {
                let mut slice = Slice { sizes, from, len, most, done: FxHashMap::default() };
                let Some(part) = slice.of(&mut b, inputs[i], axis)? else { break };
                let mut operands = inputs.clone();
                operands[i] = part;
                parts.push(b.push(Op::Contract(c.clone()), &operands)?);
                from += len;
            }
            if b.graph.ty(inputs[i]).shape[axis].is(from as i64) {
                return b.concat(&parts, at).map(Some);
            }
        }
    }
    Ok(None)
}

/// Selections from the rows of the parts of a large weight.
fn lookup(graph: &mut Graph, sizes: &Sizes, n: NodeId, most: u64) -> Result<Option<Value>, String> {
    let Op::Gather { shape, index } = graph.node(n).op.clone() else { return Ok(None) };
    let inputs = graph.node(n).inputs.clone();
    let mut by_data = index.iter().enumerate().filter_map(|(axis, i)| match i {
        GatherAxis::Data { input, at } => Some((axis, *input, at.clone())),
        GatherAxis::Affine(_) => None,
    });
    let (Some((axis, input, at)), None) = (by_data.next(), by_data.next()) else { return Ok(None) };
    let Some(lengths) = lengths(graph, sizes, inputs[0], axis, most) else { return Ok(None) };
    let rows: usize = lengths.iter().sum();
    let mut b = builder(graph, n);
    // The row as a number between 0 and the last.
    let given = inputs[input];
    let zero = b.int(b.dtype(given), 0);
    let (from_end, negative) =
        (b.binary_scalar(BinaryOp::Add, given, rows as f64)?, b.binary(BinaryOp::Lt, given, zero)?);
    let row = b.select(negative, from_end, given)?;
    let row = b.binary(BinaryOp::Max, row, zero)?;
    let row = b.binary_scalar(BinaryOp::Min, row, (rows - 1) as f64)?;
    // Its value for each element of the result.
    let row_of = b.view(row, shape.clone(), at)?;
    let (mut out, mut from): (Option<Value>, usize) = (None, 0);
    for len in lengths {
        let mut slice = Slice { sizes, from, len, most, done: FxHashMap::default() };
        let Some(part) = slice.of(&mut b, inputs[0], axis)? else { return Ok(None) };
        let local = b.binary_scalar(BinaryOp::Sub, row, from as f64)?;
        let local = b.binary(BinaryOp::Max, local, zero)?;
        let mut operands = inputs.clone();
        (operands[0], operands[input]) = (part, local);
        let found = b.push(Op::Gather { shape: shape.clone(), index: index.clone() }, &operands)?;
        out = Some(match out {
            None => found,
            Some(before) => {
                let first = b.int(b.dtype(row), from as i64);
                let earlier = b.binary(BinaryOp::Lt, row_of, first)?;
                b.select(earlier, before, found)?
            }
        });
        from += len;
    }
    Ok(out)
}

/// The positions `from..from + len` along an axis of values.
struct Slice<'s> {
    sizes: &'s Sizes,
    from: usize,
    len: usize,
    /// The bytes of constants that are not cut.
    most: u64,
    /// The slices of values along axes so far: values may be read many times.
    done: FxHashMap<(Value, usize), Option<Value>>,
}

impl Slice<'_> {
    /// The positions of a weight, with large constants cut; `None` if one cannot be.
    fn of(&mut self, b: &mut Builder<'_>, v: Value, axis: usize) -> Result<Option<Value>, String> {
        if let Some(done) = self.done.get(&(v, axis)) {
            return Ok(*done);
        }
        let made = self.made(b, v, axis)?;
        self.done.insert((v, axis), made);
        Ok(made)
    }

    fn made(&mut self, b: &mut Builder<'_>, v: Value, axis: usize) -> Result<Option<Value>, String> {
        let (from, len) = (self.from, self.len);
        if self.sizes.get(&v.node).is_none_or(|bytes| *bytes <= self.most) {
            return b.slice(v, axis, &Poly::constant(from as i64), 1, &Dim::from(len)).map(Some);
        }
        let node = b.graph.node(v.node).clone();
        match &node.op {
            Op::Const(t) => {
                if axis != 0 {
                    return Ok(None);
                }
                let row: usize = t.shape[1..].iter().product();
                let mut shape = t.shape.clone();
                shape[0] = len;
                let part = t.flat_slice(from * row, len * row).reshaped(shape);
                let new = b.shared_constant(Arc::new(part));
                b.graph.node_mut(new.node).names = node.names;
                Ok(Some(new))
            }
            Op::View { shape, index, fill: None } => {
                let whole = Poly::var(axis);
                let uses = |p: &Poly| p.vars().contains(&axis);
                let mut of = index.iter().enumerate().filter(|(_, p)| uses(p));
                let (Some((inner, p)), None) = (of.next(), of.next()) else { return Ok(None) };
                if *p != whole {
                    return Ok(None);
                }
                let Some(part) = self.of(b, node.inputs[0], inner)? else { return Ok(None) };
                let mut shape = shape.clone();
                shape[axis] = Dim::from(len);
                b.view(part, shape, index.clone()).map(Some)
            }
            Op::Map { body, shape } => {
                let at_axis = |n: &ScalarNode| matches!(n, ScalarNode::Index(p) if p.vars().contains(&axis));
                if body.nodes.iter().any(at_axis) {
                    return Ok(None);
                }
                let mut operands = vec![];
                for v in &node.inputs {
                    let own = b.shape(*v);
                    let at = (axis + own.len()).checked_sub(shape.len()).filter(|at| !own[*at].is(1));
                    operands.push(match at {
                        None => *v,
                        Some(at) => match self.of(b, *v, at)? {
                            Some(part) => part,
                            None => return Ok(None),
                        },
                    });
                }
                let mut shape = shape.clone();
                shape[axis] = Dim::from(len);
                b.push(Op::Map { body: body.clone(), shape }, &operands).map(Some)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use wgfc_ir::{Border, DType, Tensor, TensorType};

    /// A table in halves of bytes, dequantised with a scale for each 4 elements, looked up and multiplied with.
    fn graph() -> Graph {
        let mut g = Graph::new();
        let ids = g.add_input("ids", TensorType::new(DType::I64, [2usize, 5].map(Dim::from).to_vec()));
        let x = g.add_input("x", TensorType::new(DType::F32, [3usize, 8].map(Dim::from).to_vec()));
        let mut b = Builder::new(&mut g, "table");
        let codes: Vec<u8> = (0..37 * 4).map(|i| (i * 77 + 5) as u8).collect();
        let codes = b.constant(Tensor::new(DType::U4, vec![37, 8], codes).unwrap());
        let scales: Vec<f32> = (0..74).map(|i| i as f32 / 8.0 - 3.0).collect();
        let scales = b.constant(Tensor::from_f32(vec![37, 2], &scales));
        let shape = vec![Dim::from(37usize), Dim::from(8usize)];
        let group = Poly::var(1).div(&Dim::from(4usize), &shape);
        let scales = b.view(scales, shape, vec![Poly::var(0), group]).unwrap();
        let codes = b.cast(codes, DType::F32).unwrap();
        let table = b.binary(BinaryOp::Mul, codes, scales).unwrap();
        let found = b.take(table, ids, 0).unwrap();
        let flipped = b.transpose(table, &[1, 0]).unwrap();
        let product = b.matmul(x, flipped).unwrap();
        for (name, value) in [("found", found), ("product", product)] {
            g.outputs.push(Border { name: name.into(), value });
        }
        g
    }

    #[test]
    fn a_weight_that_is_read_twice_by_each_of_many_maps_is_cut_once() {
        let mut g = Graph::new();
        let x = g.add_input("x", TensorType::new(DType::F32, [1usize, 4].map(Dim::from).to_vec()));
        let mut b = Builder::new(&mut g, "sums");
        let mut w = b.constant(Tensor::from_f32(vec![64, 4], &[0.0; 256]));
        for _ in 0..60 {
            w = b.binary(BinaryOp::Add, w, w).unwrap();
        }
        let w = b.transpose(w, &[1, 0]).unwrap();
        let value = b.matmul(x, w).unwrap();
        g.outputs.push(Border { name: "product".into(), value });
        let profile =
            DeviceProfile { max_storage_buffers: 4, max_binding_bytes: 256, ..DeviceProfile::default() };
        let before = g.node_ids().count();
        assert_eq!(cut(&mut g, &profile).unwrap(), 1);
        assert!(g.node_ids().count() < 6 * before);
    }

    #[test]
    fn parts_compute_what_the_whole_does() {
        let ids = Tensor::from_i64(vec![2, 5], &[0, 36, 7, 8, -1, -37, 15, 16, 40, 23]);
        let x: Vec<f32> = (0..24).map(|i| i as f32 / 4.0 - 2.0).collect();
        let x = Tensor::from_f32(vec![3, 8], &x);
        let given = BTreeMap::from([("ids".to_owned(), ids), ("x".to_owned(), x)]);
        let values = |g: &Graph| {
            let all = wgfc_ir::eval::evaluate(g, &given).unwrap();
            all.iter().map(|t| t.to_f32s().unwrap()).collect::<Vec<_>>()
        };
        let whole = graph();
        for (max_binding_bytes, parts) in [(1 << 20, 0), (150, 0), (74, 2), (30, 5)] {
            let mut g = graph();
            let profile =
                DeviceProfile { max_storage_buffers: 4, max_binding_bytes, ..DeviceProfile::default() };
            let done = cut(&mut g, &profile).unwrap();
            wgfc_ir::verify::verify(&g).unwrap();
            let products = g.node_ids().filter(|n| matches!(g.node(*n).op, Op::Contract(_))).count();
            assert_eq!(
                (done, products),
                (if parts > 0 { 2 } else { 0 }, parts.max(1)),
                "{max_binding_bytes}"
            );
            assert_eq!(values(&g), values(&whole));
        }
    }
}
