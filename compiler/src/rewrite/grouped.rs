//! Products with slabs of weights that are looked up, as in mixtures of experts, computed for the rows of each slab together.
//!
//! ```text
//! y[p, n] = sum over k of x[p, k] · w[i[p], n, k]   →   g[b, r, n] = sum over k of x[rows[b, r], k] · w[slab[b], n, k]
//!                                                       y[p, n] = g[block[p], row[p], n]
//! ```
//!
//! The rows `p` are sorted by slab into blocks of equally many rows, so that a block reads one slab, once. The last block of a slab
//! is filled up with copies of row 0, whose results are not read. At most one block a slab is partly empty, and as many blocks may be
//! wholly empty, since the number of blocks must not depend on the indices: their results are zero by a condition on the block alone, so
//! that a kernel need not compute their sums. Elementwise functions of grouped results are computed in blocks where only another grouped
//! product reads them.

use super::canonical::topo;
use crate::cost::Expected;
use rustc_hash::FxHashMap;
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::{
    BinaryOp as B, Body, Contract, DType, Dim, GatherAxis, Graph, NodeId, Op, Poly, ReduceOp, Scalar,
    ScalarNode, Value,
};

/// The mean number of rows of a slab from which on products are grouped.
const LEAST: f64 = 4.0;
/// The maximum number of rows of a block.
const MOST: i64 = 128;
/// The number of own rows of an operand from which on a slab is read by enough rows without grouping.
const ROWS: f64 = 16.0;

/// Groups products; returns their number.
pub fn group(graph: &mut Graph, expect: &Expected) -> Result<usize, String> {
    let mut state = State::default();
    let mut count = 0;
    for n in topo(graph)? {
        let Some(product) = Looked::of(graph, n, expect) else { continue };
        let node = graph.node(n).clone();
        let mut b = Builder { graph: &mut *graph, origin: node.origin.clone() };
        let (new, in_blocks) = state.product(&mut b, &product)?;
        graph.node_mut(new.node).names = node.names.clone();
        graph.replace_uses(n.into(), new);
        state.results.insert((new, product.grouping), in_blocks);
        count += 1;
    }
    graph.remove_dead();
    Ok(count)
}

/// The rows of an index operand, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grouping {
    /// The index operand.
    index: Value,
    /// The number of slabs.
    slabs: i64,
    /// The number of rows of a block.
    length: i64,
}

/// A product of which one operand is a lookup of slabs.
struct Looked {
    contract: Contract,
    grouping: Grouping,
    /// The operand that is not looked up, and its labels.
    x: Value,
    x_labels: Vec<u8>,
    /// The tensor of all slabs; the index of a lookup by block in it, of which the first variable is the block.
    slabs: Value,
    reads: Vec<GatherAxis>,
    /// The shape of a slab, and the labels of its axes.
    slab: Vec<Dim>,
    slab_labels: Vec<u8>,
    /// The label of each axis of the index operand.
    rows: Vec<u8>,
    /// Whether the lookup is the first operand.
    first: bool,
}

impl Looked {
    fn of(graph: &Graph, n: NodeId, expect: &Expected) -> Option<Looked> {
        let Op::Contract(c) = &graph.node(n).op else { return None };
        let inputs = &graph.node(n).inputs;
        [true, false].into_iter().find_map(|first| {
            let (w, x) = if first { (inputs[0], inputs[1]) } else { (inputs[1], inputs[0]) };
            let (w_labels, x_labels) = if first { (&c.a, &c.b) } else { (&c.b, &c.a) };
            let Op::Gather { shape, index } = &graph.node(w.node).op else { return None };
            let operands = &graph.node(w.node).inputs;
            let mut by_data = index.iter().enumerate().filter_map(|(axis, i)| match i {
                GatherAxis::Data { input, at } => Some((axis, *input, at)),
                GatherAxis::Affine(_) => None,
            });
            let (Some((axis, input, at)), None) = (by_data.next(), by_data.next()) else { return None };
            // The axes of the lookup that choose the slab; the others are those of a slab.
            let choosing: Vec<usize> = at.iter().map(Poly::as_var).collect::<Option<_>>()?;
            let own: Vec<usize> = (0..shape.len()).filter(|a| !choosing.contains(a)).collect();
            let distinct = choosing.len() + own.len() == shape.len();
            let rows: Vec<u8> = choosing.iter().map(|a| w_labels[*a]).collect();
            if !distinct
                || rows.iter().any(|l| !c.out.contains(l))
                || !rows.iter().any(|l| x_labels.contains(l))
            {
                return None;
            }
            let reads = index.iter().map(|i| match i {
                GatherAxis::Data { .. } => Some(GatherAxis::Data { input: 1, at: vec![Poly::var(0)] }),
                GatherAxis::Affine(p) => {
                    let at = own.iter().position(|a| p.as_var() == Some(*a))?;
                    Some(GatherAxis::Affine(Poly::var(at + 1)))
                }
            });
            let index = operands[input];
            let slabs = graph.ty(operands[0]).shape[axis].as_const()?;
            let pairs = graph.ty(index).shape.iter().map(|d| expect.extent(d)).product::<f64>();
            let shape_x = &graph.ty(x).shape;
            let alone = x_labels.iter().zip(shape_x).filter(|(l, _)| c.out.contains(l) && !rows.contains(l));
            let enough = alone.map(|(_, d)| expect.extent(d)).product::<f64>() >= ROWS;
            let mean = pairs / slabs as f64;
            // The counting sort has an element for each row and slab, which must be no more than the results of the product.
            let own_results = own.iter().filter(|a| c.out.contains(&w_labels[**a]));
            let few = slabs as f64 <= own_results.map(|a| expect.extent(&shape[*a])).product::<f64>();
            if enough || !few || mean < LEAST || slabs < 2 || graph.ty(index).dtype.bits() < 32 {
                return None;
            }
            // Twice the mean: most slabs are one block then, whose weights are read and unpacked once. All blocks together have about
            // three times as many rows as there are, of which those of unused blocks are not computed.
            let length = (2_i64 << (mean as i64).ilog2()).min(MOST);
            Some(Looked {
                contract: c.clone(),
                grouping: Grouping { index, slabs, length },
                x,
                x_labels: x_labels.clone(),
                slabs: operands[0],
                reads: reads.collect::<Option<_>>()?,
                slab: own.iter().map(|a| shape[*a].clone()).collect(),
                slab_labels: own.iter().map(|a| w_labels[*a]).collect(),
                rows,
                first,
            })
        })
    }
}

/// The blocks of a grouping: indices from rows to blocks and back.
#[derive(Clone)]
struct Blocks {
    /// The number of blocks.
    count: Dim,
    /// The slab of each block.
    slab: Value,
    /// Whether a block has rows, `[count]`.
    used: Value,
    /// The block of each element of the index operand, and the row in it.
    block: Value,
    row: Value,
    /// The position of each row of the blocks along each axis of the index operand, `[count, length]`; none for axes of one element.
    of: Vec<Option<Value>>,
}

/// A value in blocks, `[blocks, rows, …]`: behind these the axes of the value that the index operand lacks.
#[derive(Clone)]
struct InBlocks {
    value: Value,
    /// The axis of the value for each axis of the index operand.
    axes: Vec<Option<usize>>,
}

#[derive(Default)]
struct State {
    blocks: FxHashMap<Grouping, Blocks>,
    /// Values whose elements are those of a value in blocks.
    results: FxHashMap<(Value, Grouping), InBlocks>,
}

impl State {
    /// The value of a product, and the product in blocks from whose elements it is made.
    fn product(&mut self, b: &mut Builder<'_>, p: &Looked) -> Built<(Value, InBlocks)> {
        let blocks = self.blocks(b, p.grouping)?;
        let axis_in = |labels: &[u8]| -> Vec<Option<usize>> {
            p.rows.iter().map(|l| labels.iter().position(|x| x == l)).collect()
        };
        let x = self.in_blocks(b, p.x, &axis_in(&p.x_labels), p.grouping)?;
        let mut shape = vec![blocks.count.clone()];
        shape.extend(p.slab.iter().cloned());
        let w = b.push(Op::Gather { shape, index: p.reads.clone() }, &[p.slabs, blocks.slab])?;

        let used = p.contract.a.iter().chain(&p.contract.b).max().copied().unwrap_or(0);
        let lead = [used + 1, used + 2];
        let rest =
            |labels: &[u8]| labels.iter().copied().filter(|l| !p.rows.contains(l)).collect::<Vec<u8>>();
        let labels = |lead: &[u8], rest: Vec<u8>| [lead, &rest].concat();
        let (of_x, of_w) = (labels(&lead, rest(&p.x_labels)), labels(&lead[..1], p.slab_labels.clone()));
        let out = labels(&lead, rest(&p.contract.out));
        let (contract, operands) = match p.first {
            true => (Contract { a: of_w, b: of_x, out }, [w, x]),
            false => (Contract { a: of_x, b: of_w, out }, [x, w]),
        };
        let product = b.push(Op::Contract(contract), &operands)?;
        let value = used_or_zero(b, blocks.used, product)?;
        let axes = axis_in(&p.contract.out);
        let shape_of = |l: &u8| -> Result<Dim, String> {
            let of_x = p.x_labels.iter().position(|x| x == l).map(|a| b.shape(p.x)[a].clone());
            let of_slab = || p.slab_labels.iter().position(|x| x == l).map(|a| p.slab[a].clone());
            let of_rows = || p.rows.iter().position(|x| x == l).map(|a| b.shape(p.grouping.index)[a].clone());
            of_rows().or(of_x).or_else(of_slab).ok_or_else(|| "an output label without an axis".to_owned())
        };
        let shape = p.contract.out.iter().map(shape_of).collect::<Result<Vec<Dim>, String>>()?;
        let at: Vec<Poly> = axes.iter().flatten().map(|a| Poly::var(*a)).collect();
        let mut index: Vec<GatherAxis> =
            [1, 2].map(|input| GatherAxis::Data { input, at: at.clone() }).to_vec();
        let own = (0..shape.len()).filter(|a| !axes.contains(&Some(*a)));
        index.extend(own.map(|a| GatherAxis::Affine(Poly::var(a))));
        let y = b.push(Op::Gather { shape, index }, &[value, blocks.block, blocks.row])?;
        Ok((y, InBlocks { value, axes }))
    }

    /// `v` in blocks, of which `axes` are the axes along those of the index operand.
    fn in_blocks(&mut self, b: &mut Builder<'_>, v: Value, axes: &[Option<usize>], g: Grouping) -> Built {
        if let Some(done) = self.results.get(&(v, g)).filter(|d| d.axes == axes) {
            return Ok(done.value);
        }
        let value = match self.map_in_blocks(b, v, axes, g)? {
            Some(value) => value,
            None => self.gathered(b, v, axes, g)?,
        };
        self.results.insert((v, g), InBlocks { value, axes: axes.to_vec() });
        Ok(value)
    }

    /// [`State::in_blocks`] of an elementwise function of values in blocks.
    fn map_in_blocks(
        &mut self,
        b: &mut Builder<'_>,
        v: Value,
        axes: &[Option<usize>],
        g: Grouping,
    ) -> Built<Option<Value>> {
        let node = b.graph.node(v.node).clone();
        let Op::Map { body, shape } = &node.op else { return Ok(None) };
        let placed = body.nodes.iter().any(|n| matches!(n, ScalarNode::Index(_)));
        if placed || !self.reads_blocks(b.graph, v, axes, g) {
            return Ok(None);
        }
        let rank = shape.len();
        let rest: Vec<usize> = (0..rank).filter(|a| !axes.contains(&Some(*a))).collect();
        let mut operands = vec![];
        for x in &node.inputs {
            let own = b.shape(*x);
            let missing = rank - own.len();
            let axis = |a: usize| a.checked_sub(missing);
            let of: Vec<Option<usize>> = axes.iter().map(|a| axis((*a)?)).collect();
            operands.push(if of.iter().flatten().all(|a| own[*a].is(1)) {
                // The operand is the same for all rows.
                let (mut shape, mut index) = (vec![Dim::ONE, Dim::ONE], vec![Poly::default(); own.len()]);
                for a in &rest {
                    let from = axis(*a).filter(|a| !own[*a].is(1));
                    shape.push(from.map_or(Dim::ONE, |a| own[a].clone()));
                    if let Some(from) = from {
                        index[from] = Poly::var(shape.len() - 1);
                    }
                }
                b.view(*x, shape, index)?
            } else if missing == 0 {
                self.in_blocks(b, *x, &of, g)?
            } else {
                return Ok(None);
            });
        }
        let blocks = self.blocks(b, g)?;
        let mut in_blocks = vec![blocks.count, Dim::constant(g.length)];
        in_blocks.extend(rest.iter().map(|a| shape[*a].clone()));
        b.map_to(body.clone(), &operands, in_blocks).map(Some)
    }

    /// Whether maps compute `v` from a value that is there in blocks.
    fn reads_blocks(&self, graph: &Graph, v: Value, axes: &[Option<usize>], g: Grouping) -> bool {
        if self.results.get(&(v, g)).is_some_and(|d| d.axes == axes) {
            return true;
        }
        let node = graph.node(v.node);
        let same = |x: &Value| graph.ty(*x).shape == graph.ty(v).shape;
        matches!(node.op, Op::Map { .. })
            && node.inputs.iter().any(|x| same(x) && self.reads_blocks(graph, *x, axes, g))
    }

    /// The rows of `v` that the blocks have, looked up.
    fn gathered(&mut self, b: &mut Builder<'_>, v: Value, axes: &[Option<usize>], g: Grouping) -> Built {
        let blocks = self.blocks(b, g)?;
        let own = b.shape(v);
        let mut shape = vec![blocks.count, Dim::constant(g.length)];
        let (mut index, mut operands) = (vec![], vec![v]);
        for (a, extent) in own.iter().enumerate() {
            index.push(match axes.iter().position(|x| *x == Some(a)) {
                Some(j) => match blocks.of[j].filter(|_| !extent.is(1)) {
                    Some(at) => {
                        operands.push(at);
                        let at = vec![Poly::var(0), Poly::var(1)];
                        GatherAxis::Data { input: operands.len() - 1, at }
                    }
                    None => GatherAxis::Affine(Poly::default()),
                },
                None => {
                    shape.push(extent.clone());
                    GatherAxis::Affine(Poly::var(shape.len() - 1))
                }
            });
        }
        b.push(Op::Gather { shape, index }, &operands)
    }

    fn blocks(&mut self, b: &mut Builder<'_>, g: Grouping) -> Built<Blocks> {
        if let Some(done) = self.blocks.get(&g) {
            return Ok(done.clone());
        }
        let made = blocks(b, g)?;
        self.blocks.insert(g, made.clone());
        Ok(made)
    }
}

/// Sorts the elements of the index operand by slab (a counting sort).
fn blocks(b: &mut Builder<'_>, g: Grouping) -> Built<Blocks> {
    let shape = b.shape(g.index);
    let pairs: Dim = shape.iter().product();
    let (slabs, length) = (Dim::constant(g.slabs), Dim::constant(g.length));
    let flat = b.reshape(g.index, vec![pairs.clone()])?;
    // Negative indices count from the end; others that are out of range are clamped.
    let mut f = Body::default();
    let (i, zero, last, all) = (f.arg(0), f.i32(0), f.i32(g.slabs - 1), f.i32(g.slabs));
    let i = f.cast(DType::I32, i);
    let (negative, from_end) = (f.binary(B::Lt, i, zero), f.binary(B::Add, i, all));
    let i = f.select(negative, from_end, i);
    let i = f.binary(B::Max, i, zero);
    f.binary(B::Min, i, last);
    let slab_of = b.map(f.0, &[flat])?;

    // The number of each slab's elements before each element, and of all.
    let mut f = Body::default();
    let (slab, own, one, zero) = (f.arg(0), f.index(Poly::var(0)), f.i32(1), f.i32(0));
    let same = f.binary(B::Eq, slab, own);
    f.select(same, one, zero);
    let same = b.map_to(f.0, &[slab_of], vec![slabs.clone(), pairs.clone()])?;
    let scan = |axis| Op::PrefixScan { op: ReduceOp::Sum, axis, exclusive: true, reverse: false };
    let before = b.push(scan(1), &[same])?;
    let counts = b.reduce(ReduceOp::Sum, same, &[1], false)?;

    let mut f = Body::default();
    let (count, more, per) = (f.arg(0), f.i32(g.length - 1), f.i32(g.length));
    let filled = f.binary(B::Add, count, more);
    f.binary(B::Div, filled, per);
    let blocks_of = b.map(f.0, &[counts])?;
    let starts = b.push(scan(0), &[blocks_of])?;
    let ends = b.binary(B::Add, starts, blocks_of)?;

    // The slab of a block is the number of slabs whose blocks end before it or at it.
    let count = match pairs.as_const() {
        Some(n) => Dim::constant(n.min(n / g.length + g.slabs)),
        None => &pairs.div(&length, &[]) + g.slabs,
    };
    let mut f = Body::default();
    let (end, own, one, zero) = (f.arg(0), f.index(Poly::var(0)), f.i32(1), f.i32(0));
    let passed = f.binary(B::Le, end, own);
    f.select(passed, one, zero);
    let passed = b.map_to(f.0, &[ends], vec![count.clone(), slabs])?;
    let passed = b.reduce(ReduceOp::Sum, passed, &[1], false)?;
    let last = b.int(DType::I32, g.slabs - 1);
    let slab = b.binary(B::Min, passed, last)?;
    let used = b.binary(B::Le, passed, last)?;

    let at = |input| GatherAxis::Data { input, at: vec![Poly::var(0)] };
    let rank =
        Op::Gather { shape: vec![pairs.clone()], index: vec![at(1), GatherAxis::Affine(Poly::var(0))] };
    let rank = b.push(rank, &[before, slab_of])?;
    let start = b.take(starts, slab_of, 0)?;
    let per = b.int(DType::I32, g.length);
    let (nth, row) = (b.binary(B::Div, rank, per)?, b.binary(B::Rem, rank, per)?);
    let block = b.binary(B::Add, start, nth)?;

    let none = b.full(&[count.clone(), length], Scalar::from_i64(DType::I32, 0))?;
    let each = b.iota(&[pairs], Poly::var(0), DType::I32)?;
    let place = Op::Scatter { reduce: None, index: vec![at(2), at(3)] };
    let pair = b.push(place, &[none, each, block, row])?;
    let mut of = vec![];
    for (axis, extent) in shape.iter().enumerate() {
        let inner: Dim = shape[axis + 1..].iter().product();
        if extent.is(1) {
            of.push(None);
            continue;
        }
        // The quotient by the elements behind the axis, modulo its extent unless the axis is the first.
        let mut f = Body::default();
        let (at, inner, extent) = (f.arg(0), f.index(inner), f.index(extent.clone()));
        let outer = f.binary(B::Div, at, inner);
        if !shape[..axis].iter().all(|d| d.is(1)) {
            f.binary(B::Rem, outer, extent);
        }
        of.push(Some(b.map(f.0, &[pair])?));
    }
    let (block, row) = (b.reshape(block, shape.clone())?, b.reshape(row, shape)?);
    Ok(Blocks { count, slab, used, block, row, of })
}

/// `product` where the block of its first axis is used, else zero.
fn used_or_zero(b: &mut Builder<'_>, used: Value, product: Value) -> Built {
    let shape = b.shape(product);
    let mut along = vec![Dim::ONE; shape.len()];
    along[0] = shape[0].clone();
    let used = b.view(used, along, vec![Poly::var(0)])?;
    let zero = b.scalar(b.dtype(product), 0.0);
    b.select(used, product, zero)
}
