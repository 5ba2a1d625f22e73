//! Quantisation of the weights of products to 8 or 4 bits ([`Options::weights`]).
//!
//! ```text
//! contract (a, w[K, N])  →  contract (a, transpose(map { (q - zero) · scale } (q[N, K], scale[N, K/32])))
//! ```
//!
//! Along the summed axis, each block of [`BLOCK`] elements shares a scale in f16; each element is rounded to the
//! nearest multiple of it. For 8 bits the scale is the greatest magnitude over 127; for 4 bits it is the value of
//! greatest magnitude over -8. The quantised weight is an expression that products evaluate where they read it: only
//! integers and scales are in memory. A table that is also used for lookups, such as an embedding that shares its
//! weights with the last product, is quantised for both.
//!
//! Where blocks are runs of a row in memory, integers and scales are [derived](wgfc_ir::derived) from the weight when they are copied to
//! the device, so that they take no memory here; the pass itself only measures the error.

use crate::lower::Lowering;
use crate::lower::dequantize::{Zero, dequantized, per_element};
use crate::options::{Options, WeightBits};
use crate::precision::unknown;
use crate::{Diagnostic, Errors};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
pub use wgfc_ir::derived::quantise::BLOCK;
use wgfc_ir::derived::quantise::{self, derivations};
use wgfc_ir::program::Quantised;
use wgfc_ir::{Builder, DType, Graph, NodeId, Op, Poly, ScalarNode, Tensor, Value};

/// The minimum number of rows and of columns of a quantised weight.
const LEAST: usize = 64;
/// The number of bytes whose error is measured at a time.
const PIECE: usize = 1 << 20;
/// The maximum norm of a weight's error relative to its own norm. It is exceeded if scales are too small for f16; a
/// third of it is usual for 4 bits.
const MOST_LOST: f64 = 0.25;

/// Quantises the weights of a graph that has not been rewritten. `operators` are the model's nodes.
///
/// # Errors
/// If a node whose weights are to be kept does not exist.
pub fn quantise(
    graph: &mut Graph,
    options: &Options,
    operators: &BTreeMap<String, String>,
) -> Result<Quantised, Errors> {
    let origins = graph.node_ids().flat_map(|n| &graph.node(n).origin).map(|o| &**o);
    let known: BTreeSet<&str> = origins.chain(operators.keys().map(String::as_str)).collect();
    let missing = options.keep_f32.iter().filter(|n| !known.contains(n.as_str()));
    let missing: Vec<Diagnostic> = missing.map(|n| unknown(n, known.iter().copied())).collect();
    if !missing.is_empty() {
        return Err(Errors(missing));
    }
    let mut out = Quantised { bits: options.weights.bits(), ..Quantised::default() };
    let (mut error, mut norm) = (0.0, 0.0);
    for n in graph.node_ids().collect::<Vec<_>>() {
        let Some((t, k)) = weight(graph, n, options) else { continue };
        let Some(q) = Blocks::of(&t, k, options.weights) else { continue };
        let relative = q.relative();
        out.weights += 1;
        out.bytes_before += t.dtype.bytes_of(t.numel() as u64);
        out.bytes += q.bytes();
        out.worst = out.worst.max(relative);
        error += q.error;
        norm += q.norm;
        replace(graph, n, q, t.dtype, k).map_err(Diagnostic::internal)?;
    }
    out.relative_error = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    graph.remove_dead();
    Ok(out)
}

/// The names of the weights that [`quantise()`] leaves unchanged: float constants with at least two axes.
pub fn left(graph: &Graph, options: &Options) -> Vec<String> {
    let mut names = vec![];
    for n in graph.node_ids() {
        let node = graph.node(n);
        let Op::Const(t) = &node.op else { continue };
        if t.shape.len() < 2 || t.numel() < 2 || !t.dtype.is_float() {
            continue;
        }
        let quantised =
            weight(graph, n, options).is_some_and(|(t, k)| Blocks::of(&t, k, options.weights).is_some());
        if !quantised {
            let name = node.names.iter().flatten().next().map(ToString::to_string);
            names.push(name.unwrap_or_else(|| node.label().to_string()));
        }
    }
    names
}

/// The constant of a node, and the axis over which all products that read it sum.
fn weight(graph: &Graph, n: NodeId, options: &Options) -> Option<(Arc<Tensor>, usize)> {
    let Op::Const(t) = &graph.node(n).op else { return None };
    let large = matches!(t.shape[..], [a, b] if a >= LEAST && b >= LEAST);
    let value = Value { node: n, port: 0 };
    if !large || !matches!(t.dtype, DType::F32 | DType::F16 | DType::BF16) || graph.is_output(value) {
        return None;
    }
    let mut axis = None;
    summed(graph, value, false, options, &mut axis)?;
    Some((t.clone(), axis?))
}

/// Finds the axis of `v` (or of its transpose) over which products sum. `None` if anything but products and row
/// lookups reads it, or the products sum over different axes.
fn summed(
    graph: &Graph,
    v: Value,
    transposed: bool,
    options: &Options,
    axis: &mut Option<usize>,
) -> Option<()> {
    for (user, i) in graph.uses(v) {
        let node = graph.node(user);
        if options.keep_f32.iter().any(|n| node.origin.iter().any(|o| **o == **n)) {
            return None;
        }
        match &node.op {
            Op::Contract(c) if node.inputs[0] != node.inputs[1] => {
                let own = if i == 0 { &c.a } else { &c.b };
                let k = c.k();
                let at = own.iter().position(|l| k.contains(l)).filter(|_| k.len() == 1)?;
                let at = if transposed { 1 - at } else { at };
                if axis.is_some_and(|a| a != at) {
                    return None;
                }
                *axis = Some(at);
            }
            Op::Gather { .. } if i == 0 && !transposed => {}
            Op::Map { .. } if !transposed && is_float_cast(graph, user) => {
                let to = Value { node: user, port: 0 };
                if graph.is_output(to) {
                    return None;
                }
                summed(graph, to, transposed, options, axis)?;
            }
            Op::View { index, fill: None, .. } if *index == [Poly::var(1), Poly::var(0)] => {
                let to = Value { node: user, port: 0 };
                if graph.is_output(to) {
                    return None;
                }
                summed(graph, to, !transposed, options, axis)?;
            }
            _ => return None,
        }
    }
    Some(())
}

/// Whether a node only converts its operand to another float type.
fn is_float_cast(graph: &Graph, n: NodeId) -> bool {
    let Op::Map { body, .. } = &graph.node(n).op else { return false };
    matches!(body.nodes[..], [ScalarNode::Arg(0), ScalarNode::Cast(to, 0)] if to.is_float())
}

/// A quantised weight: rows of the other axis, each divided into blocks along the summed one.
struct Blocks {
    rows: usize,
    len: usize,
    bits: WeightBits,
    /// The packed integers and the scales; `None` if the weight is absent.
    made: Option<[Tensor; 2]>,
    /// The sum of squares of the errors, and that of the values.
    error: f64,
    norm: f64,
}

impl Blocks {
    /// `None` if a value or a scale is not finite, or the error is too large.
    fn of(t: &Tensor, k: usize, bits: WeightBits) -> Option<Blocks> {
        let (rows, len) = (t.shape[1 - k], t.shape[k]);
        let mut out = Blocks { rows, len, bits, made: None, error: 0.0, norm: 0.0 };
        if !t.is_present() {
            return Some(out);
        }
        let derivations =
            derivations(t.dtype, bits == WeightBits::Q4).filter(|_| k == 1 && len.is_multiple_of(BLOCK));
        match derivations {
            Some([elements, scales]) => {
                out.measure(t)?;
                let elements = t.derived(elements, out.dtype(), vec![rows, len]).ok()?;
                let scales = t.derived(scales, DType::F16, vec![rows, len / BLOCK]).ok()?;
                out.made = Some([elements, scales]);
            }
            None if k == 0 && len.is_multiple_of(BLOCK) => out.quantise_columns(t)?,
            None => out.quantise(t, k)?,
        }
        (out.relative() <= MOST_LOST).then_some(out)
    }

    /// Quantises a weight whose blocks are parts of columns.
    fn quantise_columns(&mut self, t: &Tensor) -> Option<()> {
        let (rows, len, q4) = (self.rows, self.len, self.bits == WeightBits::Q4);
        let (blocks, width) = (len / BLOCK, self.dtype().bytes_for(BLOCK));
        let all = t.scan(BLOCK * rows * t.dtype.bits() / 8, |bytes| {
            let columns = quantise::columns(t.dtype, q4, bytes);
            let error = columns.iter().fold(quantise::Error::default(), |sum, c| sum.and(c.error));
            let packed: Vec<u8> = match q4 {
                true => {
                    let pairs = columns.iter().flat_map(|c| c.integers.as_chunks().0);
                    pairs.map(|[a, b]| a | b << 4).collect()
                }
                false => columns.iter().flat_map(|c| c.integers).collect(),
            };
            let scales: Vec<[u8; 2]> = columns.iter().map(|c| c.scale.to_le_bytes()).collect();
            (packed, scales, error)
        })?;
        let mut packed = vec![0u8; rows * blocks * width];
        let mut scales = vec![[0; 2]; rows * blocks];
        for (b, (some, their, error)) in all.into_iter().enumerate() {
            self.add(error)?;
            for (r, (integers, scale)) in some.chunks_exact(width).zip(their).enumerate() {
                let at = r * blocks + b;
                packed[at * width..(at + 1) * width].copy_from_slice(integers);
                scales[at] = scale;
            }
        }
        let packed = Tensor::new(self.dtype(), vec![rows, len], packed).ok()?;
        let scales = Tensor::new(DType::F16, vec![rows, blocks], scales.into_flattened()).ok()?;
        self.made = Some([packed, scales]);
        Some(())
    }

    /// Quantises a weight whose blocks are not runs of memory.
    fn quantise(&mut self, t: &Tensor, k: usize) -> Option<()> {
        let (rows, len) = (self.rows, self.len);
        let values = t.to_f32s()?;
        let mut packed = vec![0u8; self.dtype().bytes_for(rows * len)];
        let mut scales = vec![];
        let mut row = vec![0.0f32; len];
        for r in 0..rows {
            for (i, v) in row.iter_mut().enumerate() {
                *v = if k == 1 { values[r * len + i] } else { values[i * rows + r] };
            }
            for (b, block) in row.chunks(BLOCK).enumerate() {
                let q = quantise::block(self.bits == WeightBits::Q4, block);
                self.add(q.error)?;
                scales.extend(q.scale.to_le_bytes());
                let first = r * len + b * BLOCK;
                for (at, code) in (first..first + block.len()).zip(q.integers) {
                    match self.bits {
                        WeightBits::Q4 => packed[at / 2] |= code << (4 * (at % 2)),
                        _ => packed[at] = code,
                    }
                }
            }
        }
        let packed = Tensor::new(self.dtype(), vec![rows, len], packed).ok()?;
        let scales = Tensor::new(DType::F16, vec![rows, len.div_ceil(BLOCK)], scales).ok()?;
        self.made = Some([packed, scales]);
        Some(())
    }

    /// Adds the errors of a weight whose blocks are runs of memory.
    fn measure(&mut self, t: &Tensor) -> Option<()> {
        let (dtype, q4) = (t.dtype, self.bits == WeightBits::Q4);
        let errors = t.scan(PIECE, |piece| quantise::error(dtype, q4, piece))?;
        errors.into_iter().try_for_each(|e| self.add(e))
    }

    /// Adds errors; `None` if a value or a scale is not finite.
    fn add(&mut self, e: quantise::Error) -> Option<()> {
        self.error += e.error;
        self.norm += e.norm;
        (!e.infinite).then_some(())
    }

    /// The norm of the error, relative to the norm of the values.
    fn relative(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { (self.error / self.norm).sqrt() }
    }

    fn dtype(&self) -> DType {
        if self.bits == WeightBits::Q4 { DType::U4 } else { DType::I8 }
    }

    fn bytes(&self) -> u64 {
        let scales = self.rows * self.len.div_ceil(BLOCK);
        self.dtype().bytes_of((self.rows * self.len) as u64) + 2 * scales as u64
    }
}

/// Replaces a weight by its quantised form.
fn replace(graph: &mut Graph, n: NodeId, q: Blocks, dtype: DType, k: usize) -> Result<(), String> {
    let old = Value { node: n, port: 0 };
    let (name, readers) = (graph.node(n).names.clone(), graph.uses(old));
    let casts: BTreeMap<NodeId, (DType, Vec<(NodeId, usize)>)> = readers
        .iter()
        .filter(|(user, _)| is_float_cast(graph, *user))
        .map(|(user, _)| {
            let to = Value { node: *user, port: 0 };
            (*user, (graph.ty(to).dtype, graph.uses(to)))
        })
        .collect();
    let (packed_type, zero) = (q.dtype(), if q.bits == WeightBits::Q4 { Zero::Is(8) } else { Zero::Is(0) });
    let (rows, len) = (q.rows, q.len);
    let blocks = len.div_ceil(BLOCK);
    let [packed, scales] = q.made.unwrap_or_else(|| {
        [Tensor::absent(packed_type, vec![rows, len]), Tensor::absent(DType::F16, vec![rows, blocks])]
    });
    let origin = graph.node(n).origin.clone();
    let mut cx = Lowering::new(graph);
    cx.origin = origin;
    let packed = cx.constant(packed);
    cx.graph.node_mut(packed.node).names = name;
    let scales = cx.constant(scales);
    let shape = [rows, len].map(Into::into);
    let words = |e: crate::lower::OpError| e.message;
    let scale = per_element(&mut cx, scales, 1, BLOCK as i64, &shape).map_err(words)?;
    let mut made = |dtype: DType| {
        let new = dequantized(&mut cx, packed, scale, &zero, dtype).map_err(words)?;
        if k == 0 { Builder::transpose(&mut cx, new, &[1, 0]) } else { Ok(new) }
    };
    let mut changes = vec![];
    for (user, i) in readers {
        match casts.get(&user) {
            // A weight that is converted is computed in the other type at once, without the rounding to its own.
            Some((to, users)) => {
                let new = made(*to)?;
                changes.extend(users.iter().map(|(user, i)| (*user, *i, new)));
            }
            None => {
                let new = made(dtype)?;
                changes.push((user, i, new));
            }
        }
    }
    for (user, i, new) in changes {
        graph.set_input(user, i, new);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_near() {
        let values: Vec<f32> = (0..64 * 70).map(|i| ((i * 7919) % 1001) as f32 / 500.0 - 1.0).collect();
        let t = Tensor::from_f32(vec![64, 70], &values);
        for (bits, most) in [(WeightBits::Q8, 5e-3), (WeightBits::Q4, 9e-2)] {
            for k in [0, 1] {
                let q = Blocks::of(&t, k, bits).unwrap();
                let relative = q.relative();
                assert!(relative > 1e-4 && relative < most, "{relative}");
                assert_eq!((q.rows, q.len), if k == 1 { (64, 70) } else { (70, 64) });
                let bytes: usize = q.made.iter().flatten().filter_map(Tensor::byte_len).sum();
                assert_eq!(bytes as u64, q.bytes());
            }
        }
        // Blocks that are runs of memory are derived, and equal to those of the transpose, which are not.
        let long =
            Tensor::from_f32(vec![64, 96], &(0..64 * 96).map(|i| values[i % 4480]).collect::<Vec<f32>>());
        let flat = long.to_f32s().unwrap();
        let other: Vec<f32> = (0..96 * 64).map(|i| flat[i % 64 * 96 + i / 64]).collect();
        let other = Tensor::from_f32(vec![96, 64], &other);
        for bits in [WeightBits::Q8, WeightBits::Q4] {
            let [a, b] = [(&long, 1), (&other, 0)].map(|(t, k)| Blocks::of(t, k, bits).unwrap());
            assert!((a.error - b.error).abs() <= 1e-12 * a.norm && (a.norm - b.norm).abs() <= 1e-12 * a.norm);
            let [a, b] = [a, b].map(|q| q.made.unwrap());
            assert!(a[0].is_derived() && !b[0].is_derived());
            assert!((0..2).all(|i| a[i].bytes() == b[i].bytes() && a[i].shape == b[i].shape));
            // A weight in f16 is quantised as its values in f32 are.
            let half = long.in_half();
            let wide = Tensor::from_f32(vec![64, 96], &half.to_f32s().unwrap());
            let [a, b] = [&half, &wide].map(|t| Blocks::of(t, 1, bits).unwrap().made.unwrap());
            assert!((0..2).all(|i| a[i].is_derived() && a[i].bytes() == b[i].bytes()));
        }
        let of = |t: &Tensor| Blocks::of(t, 1, WeightBits::Q4);
        let zeros = of(&Tensor::zeros(DType::F32, vec![64, 64])).unwrap();
        assert!(zeros.error == 0.0 && zeros.made.unwrap()[0].bytes().unwrap().iter().all(|b| *b == 0x88));
        assert!(of(&Tensor::absent(DType::F32, vec![64, 64])).unwrap().made.is_none());
    }

    #[test]
    fn weights_that_scales_do_not_hold_stay() {
        for bits in [WeightBits::Q8, WeightBits::Q4] {
            let with = |scale: f32, value: f32| {
                let mut all: Vec<f32> =
                    (0..64 * 64).map(|i| scale * (((i * 7919) % 1001) as f32 - 500.0)).collect();
                all[77] = value;
                Blocks::of(&Tensor::from_f32(vec![64, 64], &all), 1, bits)
            };
            assert!(with(1.0, 3.0).is_some());
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9] {
                assert!(with(1.0, value).is_none(), "{value}");
            }
            // The values are below the smallest scale.
            assert!(with(1e-12, 0.0).is_none());
        }
    }
}
