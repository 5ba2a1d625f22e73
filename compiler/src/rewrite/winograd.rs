//! Convolutions with 3 × 3 windows with fewer multiplications (Winograd's F(2 × 2, 3 × 3)).
//!
//! ```text
//! sum over c, i, j of x[c, h + i, w + j] · g[o, c, i, j]   →   Aᵀ (sum over c of (Bᵀ d[c] B) ⊙ (G g[o, c] Gᵀ)) A
//! ```
//!
//! for each tile of 2 × 2 results, where `d` are the 4 × 4 elements that it reads: 16 products instead of 36. The
//! products of all tiles at one of the 16 positions form a matrix product. Both transforms go through memory, so that
//! only convolutions with many channels gain. The weights' transform is computed while compiling.

use super::canonical::topo;
use super::long_sums::{self, Sizes};
use crate::cost::{Expected, Work};
use crate::device::{DeviceProfile, Speeds};
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::tensor::{Data, Tensor};
use wgfc_ir::{
    Atom, BinaryOp, Contract, DType, Dim, Graph, NodeId, Op, Poly, Scalar, ScalarFn, ScalarNode, Value,
};

/// The extent of a tile's window along an axis, and the number of its results.
const WINDOW: i64 = 4;
const RESULTS: i64 = 2;
/// The rows of `G`. The third row has the opposite of its usual sign, as has that of `Bᵀ`; the signs cancel.
const G: [[f64; 3]; 4] = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [-0.5, 0.5, -0.5], [0.0, 0.0, 1.0]];
/// The maximum number of bytes of a convolution's weights: the compiler holds them and their transform in memory.
const MOST_BYTES: usize = 64 << 20;
/// The minimum share of the estimated time that must be saved, because estimates are not more accurate.
const LEAST_GAIN: f64 = 0.15;
/// The number of operations for an element of either transform, besides its loads and its store.
const OPERATIONS: f64 = 24.0;

/// A convolution in the form of the graph.
struct Conv {
    contract: Contract,
    /// The convolved tensor and the weights.
    inputs: [Value; 2],
    weights: Arc<Tensor>,
    /// The shape of the convolved tensor.
    from: Vec<Dim>,
    /// The shape of the unfolding view, and the index along each axis of the tensor that it unfolds.
    shape: Vec<Dim>,
    index: Vec<Poly>,
    /// The axes of the view for result positions, and those for elements of windows.
    places: [usize; 2],
    within: [usize; 2],
    /// The axes of the unfolded tensor along which both run.
    spatial: [usize; 2],
}

/// Replaces convolutions if that is estimated to be faster; returns their number.
pub fn transform(graph: &mut Graph, device: &DeviceProfile, expect: &Expected) -> Result<usize, String> {
    replace(graph, &|c| c.pays(device, expect))
}

/// Replaces all convolutions that can be computed in this way; returns their number.
pub fn transform_all(graph: &mut Graph) -> Result<usize, String> {
    replace(graph, &|_| true)
}

fn replace(graph: &mut Graph, pays: &dyn Fn(&Conv) -> bool) -> Result<usize, String> {
    let mut count = 0;
    let mut weights: FxHashMap<(usize, Contract), Value> = FxHashMap::default();
    for n in topo(graph)? {
        let Some(conv) = Conv::of(graph, n) else { continue };
        if !pays(&conv) {
            continue;
        }
        let node = graph.node(n).clone();
        let mut b = Builder { graph: &mut *graph, origin: node.origin.clone() };
        let new = conv.build(&mut b, &mut weights)?;
        graph.node_mut(new.node).names = node.names.clone();
        graph.replace_uses(n.into(), new);
        count += 1;
    }
    graph.remove_dead();
    Ok(count)
}

impl Conv {
    fn of(graph: &Graph, n: NodeId) -> Option<Conv> {
        let node = graph.node(n);
        let Op::Contract(c) = &node.op else { return None };
        let [unfolded, w] = [*node.inputs.first()?, *node.inputs.get(1)?];
        let Op::View { shape, index, fill } = &graph.node(unfolded.node).op else { return None };
        let Op::Const(weights) = &graph.node(w.node).op else { return None };
        if weights.numel().saturating_mul(4) > MOST_BYTES {
            return None;
        }
        let f32s = [unfolded, w, n.into()].iter().all(|v| graph.ty(*v).dtype == DType::F32);
        if !f32s || fill.is_some_and(|f| f.as_f64() != 0.0) || !c.batch().is_empty() {
            return None;
        }
        let from = graph.node(unfolded.node).inputs[0];
        let at = |labels: &[u8], l: u8| labels.iter().position(|x| *x == l);
        // The windows have extent 3; the remaining axes are channels.
        let (mut spatial, mut places, mut within) = (vec![], vec![], vec![]);
        for (axis, p) in index.iter().enumerate() {
            let inside = p
                .vars()
                .iter()
                .copied()
                .find(|v| c.k().iter().any(|l| at(&c.a, *l) == Some(*v)) && shape[*v].is(3));
            let Some(k) = inside else { continue };
            let rest = p - &Poly::var(k);
            let place = rest.vars().into_iter().find(|v| c.m().iter().any(|l| at(&c.a, *l) == Some(*v)));
            let Some(o) = place else { continue };
            (&rest - &Poly::var(o)).as_const()?;
            spatial.push(axis);
            places.push(o);
            within.push(k);
        }
        let conv = Conv {
            contract: c.clone(),
            inputs: [from, w],
            weights: weights.clone(),
            from: graph.ty(from).shape.clone(),
            shape: shape.clone(),
            index: index.clone(),
            places: places.try_into().ok()?,
            within: within.try_into().ok()?,
            spatial: spatial.try_into().ok()?,
        };
        // No other axis is read along these variables.
        let own = |v: &usize| conv.places.contains(v) || conv.within.contains(v);
        let others = (0..index.len()).filter(|a| !conv.spatial.contains(a));
        let apart = others.into_iter().all(|a| !index[a].vars().iter().any(own));
        let rows = [&conv.places, &conv.within].iter().all(|p| p[0] != p[1]);
        (apart && rows && c.k().len() == 3 && c.n().len() == 1 && c.b.len() == 4).then_some(conv)
    }

    /// The number of tiles along an axis of results.
    fn tiles(&self, i: usize) -> Dim {
        self.shape[self.places[i]].ceil_div(RESULTS)
    }

    /// Whether the transformed convolution is estimated to be faster.
    fn pays(&self, device: &DeviceProfile, expect: &Expected) -> bool {
        let c = &self.contract;
        let extent = |labels: &[u8], but: &[usize]| -> Dim {
            let of = |(v, l): (usize, &u8)| {
                (labels.contains(l) && !but.contains(&v)).then(|| self.shape[v].clone())
            };
            c.a.iter().enumerate().filter_map(of).product()
        };
        let outputs = Dim::from(self.weights.shape[c.b.iter().position(|l| c.n().contains(l)).unwrap_or(0)]);
        let channels = extent(&c.k(), &self.within);
        let (results, images) = (extent(&c.m(), &[]), extent(&c.m(), &self.places));
        let tiles = [0, 1].map(|i| self.tiles(i)).iter().product::<Dim>() * &images;
        let time = |batch: i64, cols: &Dim, depth: Dim| {
            let sizes = Sizes { batch: batch.into(), rows: outputs.clone(), cols: cols.clone(), depth };
            long_sums::least(sizes, device, expect)
        };
        let direct = time(1, &results, &channels * 9);
        let positions = WINDOW * WINDOW;
        let product = time(positions, &tiles, channels.clone());
        let [outputs, channels, results, tiles, read] =
            [&outputs, &channels, &results, &tiles, &images].map(|d| expect.extent(d));
        let read =
            read * channels * self.spatial.map(|a| expect.extent(&self.from[a])).iter().product::<f64>();
        let (before, after) = (tiles * channels * positions as f64, tiles * outputs * positions as f64);
        let speeds = &device.speeds;
        let load = speeds.element_cycles().unwrap_or(Speeds::LOAD_CYCLES);
        let pass = |bytes: f64, elements: f64, loads: f64| {
            let each = (loads + 1.0) * load + OPERATIONS;
            let core = elements / 128.0 * each;
            Work { memory: bytes, core, waits: 1.0, dispatches: 1.0, ..Work::default() }.cycles(speeds)
        };
        let passes = pass(4.0 * (read + before), before, 4.0)
            + pass(4.0 * (after + results * outputs), results * outputs, 9.0);
        product + passes < direct * (1.0 - LEAST_GAIN)
    }

    /// The label of an axis of the unfolded operand.
    fn label(&self, axis: usize) -> u8 {
        self.contract.a[axis]
    }

    fn build(&self, b: &mut Builder, known: &mut FxHashMap<(usize, Contract), Value>) -> Built {
        let c = &self.contract;
        let next = c.a.iter().chain(&c.b).max().map_or(0, |l| l + 1);
        let ours = [next, next + 1];
        // The two positions in a tile, the summed axes, then the axes of the results.
        let summed: Vec<usize> = (0..self.shape.len())
            .filter(|v| !self.within.contains(v) && c.k().contains(&self.label(*v)))
            .collect();
        let along: Vec<usize> = (0..self.shape.len()).filter(|v| c.m().contains(&self.label(*v))).collect();
        let axes: Vec<usize> = summed.iter().chain(&along).copied().collect();
        let mut shape: Vec<Dim> = vec![WINDOW.into(), WINDOW.into()];
        shape.extend(axes.iter().map(|v| match self.places.iter().position(|p| p == v) {
            Some(i) => self.tiles(i),
            None => self.shape[*v].clone(),
        }));
        let to = |v: usize| axes.iter().position(|a| *a == v).map(|p| p + 2);
        let read = |b: &mut Builder, second: [bool; 2]| {
            let index = (0..self.from.len())
                .map(|axis| {
                    let Some(i) = self.spatial.iter().position(|s| *s == axis) else {
                        return self.index[axis].subst(&|a| own(a, &to), &shape);
                    };
                    let shift = self.index[axis].subst(&|a| zero(a), &[]);
                    let tile = Poly::var(to(self.places[i]).unwrap_or(0)) * RESULTS;
                    let p = Poly::var(i);
                    let inside = if second[i] {
                        p.div(&3i64.into(), &shape) + 2i64
                    } else {
                        (p + 2i64).div(&3i64.into(), &shape)
                    };
                    tile + inside + shift
                })
                .collect();
            let fill = Some(Scalar::from_f64(DType::F32, 0.0));
            b.push(Op::View { shape: shape.clone(), index, fill }, &[self.inputs[0]])
        };
        let mut parts = vec![];
        for second in [[false, false], [false, true], [true, false], [true, true]] {
            parts.push(read(b, second)?);
        }
        // Bᵀ d B; each element has two terms along an axis.
        let mut f = ScalarFn::default();
        let [p, q, r, s] = [0, 1, 2, 3].map(|i| f.push(ScalarNode::Arg(i)));
        let one = f.push(ScalarNode::Const(Scalar::from_i64(DType::I32, 1)));
        let plus = [0, 1].map(|i| {
            let at = f.push(ScalarNode::Index(Poly::var(i)));
            f.push(ScalarNode::Binary(BinaryOp::Eq, at, one))
        });
        let mut join = |a, b, plus| {
            let sum = f.push(ScalarNode::Binary(BinaryOp::Add, a, b));
            let difference = f.push(ScalarNode::Binary(BinaryOp::Sub, a, b));
            f.push(ScalarNode::Select(plus, sum, difference))
        };
        let (first, second) = (join(p, q, plus[1]), join(r, s, plus[1]));
        join(first, second, plus[0]);
        let d = b.push(Op::Map { body: f, shape: shape.clone() }, &parts)?;

        // Convolutions may share weights.
        let key = (Arc::as_ptr(&self.weights) as usize, c.clone());
        let u = match known.get(&key) {
            Some(u) => *u,
            None => b.constant(self.transformed(&summed)?),
        };
        known.insert(key, u);
        let labels = |v: &usize| self.label(*v);
        let a: Vec<u8> = ours.into_iter().chain(axes.iter().map(labels)).collect();
        let n = c.n();
        let weights: Vec<u8> = ours.into_iter().chain(n.clone()).chain(summed.iter().map(labels)).collect();
        let m_axes: Vec<u8> = n.iter().copied().chain(along.iter().map(labels)).collect();
        let out: Vec<u8> = ours.into_iter().chain(m_axes.clone()).collect();
        let m = b.push(Op::Contract(Contract { a, b: weights, out }), &[d, u])?;

        // Aᵀ m A; each element has three terms along an axis.
        let result: Vec<Dim> = c
            .out
            .iter()
            .map(|l| match c.a.iter().position(|x| x == l) {
                Some(v) => self.shape[v].clone(),
                None => b.shape(u)[2].clone(),
            })
            .collect();
        let place = |l: u8| c.out.iter().position(|x| *x == l).unwrap_or(0);
        let spatial = self.places.map(|v| place(self.label(v)));
        let mut parts = vec![];
        for i in 0..3i64 {
            for j in 0..3i64 {
                let offset = [i, j];
                let mut index: Vec<Poly> = (0..2)
                    .map(|k| Poly::var(spatial[k]).modulo(&RESULTS.into(), &result) + offset[k])
                    .collect();
                index.extend(m_axes.iter().map(|l| {
                    let at = place(*l);
                    match spatial.contains(&at) {
                        true => Poly::var(at).div(&RESULTS.into(), &result),
                        false => Poly::var(at),
                    }
                }));
                parts.push(b.view(m, result.clone(), index)?);
            }
        }
        let mut f = ScalarFn::default();
        let args: Vec<u32> = (0..9).map(|i| f.push(ScalarNode::Arg(i))).collect();
        let zero = f.push(ScalarNode::Const(Scalar::from_i64(DType::I32, 0)));
        let plus = spatial.map(|v| {
            let at = f.push(ScalarNode::Index(Poly::var(v).modulo(&RESULTS.into(), &result)));
            f.push(ScalarNode::Binary(BinaryOp::Eq, at, zero))
        });
        let mut join = |t: [u32; 3], plus| {
            let more = f.push(ScalarNode::Binary(BinaryOp::Add, t[1], t[2]));
            let sum = f.push(ScalarNode::Binary(BinaryOp::Add, t[0], more));
            let difference = f.push(ScalarNode::Binary(BinaryOp::Sub, t[0], more));
            f.push(ScalarNode::Select(plus, sum, difference))
        };
        let rows = [0, 1, 2].map(|i| join([args[3 * i], args[3 * i + 1], args[3 * i + 2]], plus[1]));
        join(rows, plus[0]);
        b.push(Op::Map { body: f, shape: result }, &parts)
    }

    /// `G g Gᵀ` of all weights, `[4, 4, outputs, summed…]`, computed when its bytes are requested.
    fn transformed(&self, summed: &[usize]) -> Built<Tensor> {
        let c = &self.contract;
        let at = |l: u8| c.b.iter().position(|x| *x == l).ok_or("a label of the weights");
        let shape = &self.weights.shape;
        let mut strides = vec![1usize; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i];
        }
        let mut outer = vec![at(c.n()[0])?];
        for v in summed {
            outer.push(at(self.label(*v))?);
        }
        let [row, col] = self.within.map(|v| at(self.label(v)));
        let counts: Vec<usize> = outer.iter().map(|a| shape[*a]).collect();
        let shape = [&[WINDOW as usize; 2][..], &counts].concat();
        let data = match self.weights.is_present() {
            false => Data::Absent,
            true => {
                let len = shape.iter().product::<usize>() * 4;
                let from = outer.iter().map(|a| strides[*a]).collect();
                let within = [strides[row?], strides[col?]];
                let owner =
                    Transformed { of: self.weights.clone(), counts, from, within, bytes: OnceLock::new() };
                Data::Bytes { owner: Arc::new(owner), offset: 0, len }
            }
        };
        Ok(Tensor { dtype: DType::F32, shape, data })
    }
}

/// Transformed weights.
struct Transformed {
    of: Arc<Tensor>,
    /// The number of elements along each axis except those of a window, and their strides.
    counts: Vec<usize>,
    from: Vec<usize>,
    /// The strides of the axes of a window.
    within: [usize; 2],
    bytes: OnceLock<Vec<u8>>,
}

impl AsRef<[u8]> for Transformed {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get_or_init(|| {
            let own = self.of.to_f32s().unwrap_or_default();
            let each: usize = self.counts.iter().product();
            let mut out = vec![0u8; 16 * each * 4];
            for n in 0..each {
                let (mut rest, mut base) = (n, 0);
                for (count, stride) in self.counts.iter().zip(&self.from).rev() {
                    base += rest % count * stride;
                    rest /= count;
                }
                let at = |k: usize, l: usize| own.get(base + k * self.within[0] + l * self.within[1]);
                let window = [0, 1, 2].map(|k| [0, 1, 2].map(|l| at(k, l).map_or(0.0, |x| f64::from(*x))));
                for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
                    let row = |k: usize| (0..3).map(|l| window[k][l] * G[j][l]).sum::<f64>();
                    let value = (0..3).map(|k| G[i][k] * row(k)).sum::<f64>() as f32;
                    let place = ((i * 4 + j) * each + n) * 4;
                    out[place..place + 4].copy_from_slice(&value.to_le_bytes());
                }
            }
            out
        })
    }
}

/// Maps a variable of the view to one of the transformed elements.
fn own(a: &Atom, to: &dyn Fn(usize) -> Option<usize>) -> Option<Poly> {
    match a {
        Atom::Var(v) => Some(Poly::var(to(*v as usize)?)),
        _ => None,
    }
}

fn zero(a: &Atom) -> Option<Poly> {
    matches!(a, Atom::Var(_)).then_some(Poly::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use wgfc_ir::testing::Rng;
    use wgfc_ir::{eval, text, verify};

    /// A convolution of `x [n, c, h, w]` with named weights, padded by one before and by `behind` after.
    fn graph(c: usize, o: usize, h: i64, w: i64, behind: i64, weights: &Tensor) -> Graph {
        let (oh, ow) = (h - 1 + behind, w - 1 + behind);
        let text = format!(
            "graph (x: %0, w: %1) -> (y: %3) {{
  %0 = input : f32[n, {c}, {h}, {w}] as \"x\"
  %1 = input : f32[{o}, {c}, 3, 3] as \"w\"
  %2 = view [n, {c}, {oh}, {ow}, 3, 3] reads [%0, %1, %2 + %4 - 1, %3 + %5 - 1] else 0.0:f32 (%0) : f32[n, {c}, {oh}, {ow}, 3, 3]
  %3 = contract [acdefg, bcfg -> abde] (%2, %1) : f32[n, {o}, {oh}, {ow}]
}}
"
        );
        let mut g = text::parse(&text).unwrap();
        let input = g.inputs.remove(1).value;
        let w = Builder::new(&mut g, "w").constant(weights.clone());
        g.replace_uses(input, w);
        g.remove_dead();
        g
    }

    fn tensor(shape: &[usize], mut each: impl FnMut() -> f32) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| each()).collect();
        Tensor::from_f32(shape.to_vec(), &values)
    }

    #[test]
    fn eighths_give_the_same_bits() {
        let mut rng = Rng::new(1);
        let mut eighth = || rng.below(17) as f32 / 8.0 - 1.0;
        for (n, c, o, h, w, behind) in
            [(2, 3, 5, 7, 10, 1), (1, 1, 1, 1, 1, 1), (3, 2, 4, 5, 4, 0), (1, 4, 3, 2, 13, 3)]
        {
            let weights = tensor(&[o, c, 3, 3], &mut eighth);
            let given = [("x".to_owned(), tensor(&[n, c, h as usize, w as usize], &mut eighth))];
            let mut g = graph(c, o, h, w, behind, &weights);
            let want = eval::evaluate(&g, &given.clone().into()).unwrap();
            assert_eq!(transform_all(&mut g).unwrap(), 1);
            verify::verify(&g).unwrap();
            assert_eq!(eval::evaluate(&g, &BTreeMap::from(given)).unwrap(), want, "{c} {o} {h} {w}");
        }
    }

    /// The error is at most twice that of the direct sum in f32.
    #[test]
    fn errors_stay_near_those_of_sums_in_f32() {
        let mut rng = Rng::new(2);
        let mut normal = || (0..12).map(|_| rng.below(1 << 20) as f32 / (1 << 20) as f32).sum::<f32>() - 6.0;
        let (c, o, n) = (128, 8, 12);
        let weights = tensor(&[o, c, 3, 3], &mut normal);
        let x = tensor(&[1, c, n, n], &mut normal);
        let (xs, ws) = (x.to_f32s().unwrap(), weights.to_f32s().unwrap());
        let (mut exact, mut direct) = (vec![], vec![]);
        for (m, i, j) in (0..o).flat_map(|m| (0..n * n).map(move |p| (m, p / n, p % n))) {
            let (mut sum, mut short) = (0f64, 0f32);
            for (k, a, b) in (0..c).flat_map(|k| (0..9).map(move |p| (k, p / 3, p % 3))) {
                let (row, col) = (i + a, j + b);
                if (1..=n).contains(&row) && (1..=n).contains(&col) {
                    let (p, q) = (xs[(k * n + row - 1) * n + col - 1], ws[((m * c + k) * 3 + a) * 3 + b]);
                    sum += f64::from(p) * f64::from(q);
                    short += p * q;
                }
            }
            exact.push(sum);
            direct.push(short);
        }
        let mut g = graph(c, o, n as i64, n as i64, 1, &weights);
        transform_all(&mut g).unwrap();
        let got = eval::evaluate(&g, &BTreeMap::from([("x".to_owned(), x)])).unwrap()[0].to_f32s().unwrap();
        let norm =
            |v: &[f32]| v.iter().zip(&exact).map(|(a, e)| (f64::from(*a) - e).powi(2)).sum::<f64>().sqrt();
        let all = exact.iter().map(|e| e * e).sum::<f64>().sqrt();
        let (ours, usual) = (norm(&got) / all, norm(&direct) / all);
        assert!(ours < 2e-6 && ours < 2.0 * usual, "{ours:e}, the direct sum {usual:e}");
    }

    #[test]
    fn many_channels_pay() {
        let weights = |n: usize| Tensor { dtype: DType::F32, shape: vec![n, n, 3, 3], data: Data::Absent };
        let count = |n: usize, device: &str| {
            let mut g = graph(n, n, 14, 14, 1, &weights(n));
            let expect = Expected([("n".to_owned(), 32)].into());
            transform(&mut g, &DeviceProfile::named(device).unwrap(), &expect).unwrap()
        };
        assert_eq!([count(256, "discrete"), count(16, "discrete")], [1, 0]);
    }

    /// The epilogue of a convolution in a residual block is computed where its results are combined, and the results are computed once.
    #[test]
    fn a_convolution_is_three_kernels() {
        let source = "graph (x: %0, w: %1, v: %2, r: %3) -> (y: %9) {
  %0 = input : f32[8, 256, 14, 14] as \"x\"
  %1 = input : f32[256, 256, 3, 3] as \"w\"
  %2 = input : f32[1024, 256] as \"v\"
  %3 = input : f32[8, 1024, 14, 14] as \"r\"
  %4 = map [8, 256, 14, 14] { max(a0, 0.0:f32) } (%0) : f32[8, 256, 14, 14]
  %5 = view [8, 256, 14, 14, 3, 3] reads [%0, %1, %2 + %4 - 1, %3 + %5 - 1] else 0.0:f32 (%4) : f32[8, 256, 14, 14, 3, 3]
  %6 = contract [acdefg, bcfg -> abde] (%5, %1) : f32[8, 256, 14, 14]
  %7 = map [8, 256, 14, 14] { max(add(a0, 0.5:f32), 0.0:f32) } (%6) : f32[8, 256, 14, 14]
  %8 = contract [acde, bc -> abde] (%7, %2) : f32[8, 1024, 14, 14]
  %9 = map [8, 1024, 14, 14] { max(add(a0, a1), 0.0:f32) } (%8, %3) : f32[8, 1024, 14, 14]
}
";
        let mut g = text::parse(source).unwrap();
        for (input, shape) in [(2, vec![1024, 256]), (1, vec![256, 256, 3, 3])] {
            let input = g.inputs.remove(input).value;
            let absent = Tensor { dtype: DType::F32, shape, data: Data::Absent };
            let w = Builder::new(&mut g, "w").constant(absent);
            g.replace_uses(input, w);
        }
        g.remove_dead();
        let profile = DeviceProfile::named("discrete").unwrap();
        let options = crate::Options { profile, ..crate::Options::default() };
        let fused = crate::pipeline::fuse_graph(g, Default::default(), &options, &mut |_, _| {}).unwrap();
        let families: Vec<String> = fused.kernels.kernels.iter().map(|k| k.family.to_string()).collect();
        let products = ["matmul [16, 392, 256, 256]", "matmul [1, 1568, 1024, 256]"];
        assert_eq!(families, ["map [1605632]", products[0], "map [401408]", products[1]]);
    }
}
