//! Random matrix products, convolutions and attention, for random devices and with random schedules, on every
//! adapter, compared with the evaluator.

use crate::draw::Draw;
use crate::schedules::{Case, run, seeds, slow};
use std::collections::BTreeMap;
use wgfc_compiler::device::Speeds;
use wgfc_compiler::lower::attention::{Attention, Operands, attention};
use wgfc_compiler::lower::blocks::{Blocks, Weights, matmul as blocks};
use wgfc_compiler::lower::conv::{Conv, conv};
use wgfc_compiler::lower::matmul::matmul;
use wgfc_compiler::lower::transposed::{ConvTranspose, conv_transpose};
use wgfc_compiler::lower::window::{Padding, Window};
use wgfc_compiler::lower::{Lowering, OpError};
use wgfc_compiler::pipeline::fuse_graph;
use wgfc_compiler::rewrite::winograd;
use wgfc_compiler::schedule::Schedule;
use wgfc_compiler::{DeviceProfile, Options};
use wgfc_ir::program::Stats;
use wgfc_ir::{BinaryOp, Border, DType, Dim, Graph, Scalar, Tensor, TensorType, UnaryOp, Value, eval, text};
use wgfc_runtime::testing::gpus;

const EXTENTS: [i64; 20] = [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100];
const DEPTHS: [i64; 16] = [1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 40, 64, 72, 100, 160];

type Built<T = Value> = Result<T, OpError>;

/// A graph under construction, and the values of its inputs.
struct Drawn<'d> {
    d: &'d mut Draw,
    given: BTreeMap<String, Tensor>,
    /// The number of named extents.
    names: usize,
}

type Make = fn(&mut Draw, DType) -> Scalar;

/// Multiples of an eighth, whose products have exact sums.
fn eighths(d: &mut Draw, dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::bool(d.below(3) > 0),
        t if t.is_float() => Scalar::from_f64(t, d.below(17) as f64 / 8.0 - 1.0),
        t => Scalar::from_i64(t, d.below(256) as i64),
    }
}

fn powers(d: &mut Draw, dtype: DType) -> Scalar {
    Scalar::from_f64(dtype, d.one(&[-0.5, 0.125, 0.25, 0.5]))
}

fn elements(d: &mut Draw, dtype: DType, shape: &[i64], make: Make) -> Tensor {
    let shape: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
    let values: Vec<Scalar> = (0..shape.iter().product()).map(|_| make(d, dtype)).collect();
    Tensor::from_scalars(dtype, shape, &values)
}

impl Drawn<'_> {
    /// An extent, sometimes a symbol.
    fn dim(&mut self, n: i64) -> Dim {
        if self.d.below(6) > 0 {
            return n.into();
        }
        self.names += 1;
        Dim::sym(&format!("n{}", self.names))
    }
    /// An input whose extents may be symbols.
    fn input(&mut self, cx: &mut Lowering, dtype: DType, shape: &[(i64, Dim)]) -> Value {
        let name = format!("x{}", self.given.len());
        let (extents, dims): (Vec<i64>, Vec<Dim>) = shape.iter().cloned().unzip();
        self.given.insert(name.clone(), elements(self.d, dtype, &extents, eighths));
        cx.graph.add_input(&name, TensorType::new(dtype, dims))
    }
    /// An input or a constant of a shape.
    fn value(&mut self, cx: &mut Lowering, dtype: DType, shape: &[i64]) -> Value {
        self.made(cx, dtype, shape, eighths)
    }
    fn made(&mut self, cx: &mut Lowering, dtype: DType, shape: &[i64], make: Make) -> Value {
        let t = elements(self.d, dtype, shape, make);
        if self.d.below(2) == 0 {
            return cx.constant(t);
        }
        let name = format!("x{}", self.given.len());
        self.given.insert(name.clone(), t);
        let dims: Vec<Dim> = shape.iter().map(|n| Dim::from(*n)).collect();
        cx.graph.add_input(&name, TensorType::new(dtype, dims))
    }
    /// An operand: stored directly, transposed, a slice of a larger tensor, or computed where it is read.
    fn operand(&mut self, cx: &mut Lowering, dtype: DType, shape: &[(i64, Dim)]) -> Built {
        let rank = shape.len();
        let mut from = shape.to_vec();
        match self.d.below(6) {
            0 => {
                from.swap(rank - 2, rank - 1);
                let x = self.input(cx, dtype, &from);
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(rank - 2, rank - 1);
                Ok(cx.transpose(x, &order)?)
            }
            1 => {
                let axis = self.d.below(rank);
                let (first, more) = (self.d.one(&[0, 1, 3, 4]), self.d.one(&[0, 1, 4]));
                from[axis].0 += first + more;
                from[axis].1 = from[axis].1.clone() + Dim::from(first + more);
                let x = self.input(cx, dtype, &from);
                Ok(cx.slice(x, axis, &first.into(), 1, &shape[axis].1)?)
            }
            2 => {
                let x = self.input(cx, dtype, &from);
                Ok(cx.unary(UnaryOp::Neg, x)?)
            }
            3 if dtype == DType::F32 => {
                let x = self.input(cx, DType::F16, &from);
                Ok(cx.cast(x, dtype)?)
            }
            _ => Ok(self.input(cx, dtype, &from)),
        }
    }
    /// Applies operations to a result.
    fn behind(&mut self, cx: &mut Lowering, y: Value) -> Built {
        let (shape, dtype) = (cx.shape(y), cx.dtype(y));
        let rank = shape.len();
        Ok(match self.d.below(7) {
            0 => cx.unary(UnaryOp::Neg, y)?,
            1 => {
                let zero = cx.scalar(dtype, 0.0);
                cx.binary(BinaryOp::Max, y, zero)?
            }
            2 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(rank - 2, rank - 1);
                cx.transpose(y, &order)?
            }
            3 if shape[rank - 1].as_const().is_some() => {
                let cols = shape[rank - 1].as_const().unwrap_or(1);
                let bias = self.value(cx, dtype, &[cols]);
                cx.binary(BinaryOp::Add, y, bias)?
            }
            4 if dtype == DType::F32 => cx.cast(y, DType::F16)?,
            5 if shape[rank - 1].as_const().is_some_and(|n| n > 1) => {
                let cols = shape[rank - 1].as_const().unwrap_or(2);
                let cut = 1 + self.d.below(cols as usize - 1) as i64;
                let a = cx.slice(y, rank - 1, &Dim::ZERO, 1, &cut.into())?;
                let b = cx.slice(y, rank - 1, &cut.into(), 1, &(cols - cut).into())?;
                cx.concat(&[b, a], rank - 1)?
            }
            _ => y,
        })
    }

    fn product(&mut self, cx: &mut Lowering, dtype: DType) -> Built {
        let [mut m, n] = [0; 2].map(|_| self.d.one(&EXTENTS));
        let k = self.d.one(&DEPTHS);
        if self.d.below(3) == 0 {
            m = 1 + self.d.below(8) as i64;
        }
        let batch = self.d.one(&[1, 1, 2, 3]);
        let [dm, dn, dk] = [m, n, k].map(|n| self.dim(n));
        let (mut a, mut b) = (vec![(m, dm), (k, dk.clone())], vec![(k, dk), (n, dn)]);
        if batch > 1 {
            let db = self.dim(batch);
            a.insert(0, (batch, db.clone()));
            if self.d.below(2) == 0 {
                b.insert(0, (batch, db));
            }
        }
        let a = self.operand(cx, dtype, &a)?;
        let all = b.iter().map(|(n, _)| *n).collect::<Vec<_>>();
        let fixed = b.iter().all(|(_, d)| d.as_const().is_some());
        let b = if fixed && self.d.below(2) == 0 {
            let t = elements(self.d, dtype, &all, eighths);
            cx.constant(t)
        } else {
            self.operand(cx, dtype, &b)?
        };
        matmul(cx, a, b)
    }
    fn quantised(&mut self, cx: &mut Lowering, dtype: DType) -> Built {
        let p = Blocks {
            n: self.d.one(&EXTENTS),
            k: self.d.one(&[16, 32, 64, 72, 96, 160]),
            bits: self.d.one(&[4, 4, 8, 2]),
            block: self.d.one(&[16, 32]),
        };
        let m = self.d.one(&[1, 1, 2, 3, 5, 8, 13, 17, 40]);
        let dm = self.dim(m);
        let a = self.operand(cx, dtype, &[(m, dm), (p.k, p.k.into())])?;
        let count = (p.k + p.block - 1) / p.block;
        let packed = self.value(cx, DType::U8, &[p.n, count, p.block * p.bits / 8]);
        // Powers of two, so that dequantised weights are exact in f16.
        let scale = self.made(cx, dtype, &[p.n, count], powers);
        let zero = match self.d.below(2) {
            0 => Some(self.value(cx, DType::U8, &[p.n, (count * p.bits + 7) / 8])),
            _ => None,
        };
        blocks(cx, a, &Weights { packed, scale, zero, groups: None }, None, &p)
    }
    fn convolution(&mut self, cx: &mut Lowering, dtype: DType) -> Built {
        let axes = self.d.one(&[1, 2, 2, 2]);
        let groups = self.d.one(&[1, 1, 1, 2, 4]);
        let depthwise = self.d.below(5) == 0;
        let (groups, c) = if depthwise {
            (self.d.one(&[3, 8, 16]), 1)
        } else {
            (groups, self.d.one(&[1, 2, 3, 4, 8, 13, 16, 24, 32]))
        };
        let o = if depthwise { 1 } else { self.d.one(&[1, 2, 4, 5, 8, 16, 33]) };
        let kernel: Vec<i64> = match self.d.below(2) {
            0 => vec![3; axes],
            _ => (0..axes).map(|_| self.d.one(&[1, 1, 2, 3, 5])).collect(),
        };
        let batch = self.d.one(&[1, 1, 2]);
        let db = self.dim(batch);
        let mut x = vec![(batch, db), (groups * c, (groups * c).into())];
        for k in &kernel {
            let n = k + self.d.below(14) as i64;
            x.push((n, n.into()));
        }
        let x = self.operand(cx, dtype, &x)?;
        let window = Window {
            strides: (0..axes).map(|_| self.d.one(&[1, 1, 1, 2, 3])).collect(),
            dilations: (0..axes).map(|_| self.d.one(&[1, 1, 1, 1, 2])).collect(),
            padding: Padding::around(axes, self.d.one(&[2, 4, 5])),
            ceil: false,
        };
        if self.d.below(6) == 0 && !depthwise {
            let shape = [&[groups * c, o][..], &kernel].concat();
            let w = self.value(cx, dtype, &shape);
            let p = ConvTranspose {
                strides: window.strides,
                dilations: window.dilations,
                padding: Padding::around(axes, 0),
                output_padding: vec![0; axes],
                output_shape: None,
                groups,
            };
            return conv_transpose(cx, x, w, None, &p);
        }
        let shape = [&[groups * o, c][..], &kernel].concat();
        let w = self.value(cx, dtype, &shape);
        let bias = (self.d.below(2) == 0).then(|| self.value(cx, dtype, &[groups * o]));
        conv(cx, x, w, bias, &Conv { window, groups })
    }
    fn attention(&mut self, cx: &mut Lowering, dtype: DType) -> Built {
        let [batch, heads, shared] = [self.d.one(&[1, 2]), self.d.one(&[1, 2, 3]), self.d.one(&[1, 1, 2, 4])];
        let (s, t) = (self.d.one(&[1, 1, 2, 7, 17, 33, 64]), self.d.one(&[1, 5, 8, 32, 33, 64, 100, 130]));
        let width = |d: &mut Draw| d.one(&[4, 8, 16, 24, 32, 33, 64, 80]);
        let (e, f) = (width(self.d), width(self.d));
        let [ds, dt] = [s, t].map(|n| self.dim(n));
        let head = |n: i64, (len, dim): (i64, Dim), wide: i64| {
            [(batch, batch.into()), (n, n.into()), (len, dim), (wide, wide.into())]
        };
        let q = self.operand(cx, dtype, &head(heads * shared, (s, ds.clone()), e))?;
        let k = self.operand(cx, dtype, &head(heads, (t, dt.clone()), e))?;
        let v = self.operand(cx, dtype, &head(heads, (t, dt.clone()), f))?;
        let kind = self.d.one(&[DType::Bool, dtype]);
        let mask = (self.d.below(3) == 0).then(|| self.input(cx, kind, &[(s, ds), (t, dt)]));
        let limit = |d: &mut Draw| (d.below(3) == 0).then(|| d.one(&[0, 3, 20]));
        let p = Attention {
            heads: None,
            left: limit(self.d),
            right: limit(self.d),
            scale: None,
            cap: if self.d.below(6) == 0 { 2.0 } else { 0.0 },
            show: None,
        };
        let o = Operands { qkv: [q, k, v], past: None, lengths: None, mask };
        Ok(attention(cx, &o, &p)?.y)
    }
}

/// A graph and its inputs.
fn problem(d: &mut Draw) -> Built<(Graph, BTreeMap<String, Tensor>)> {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let kind = d.below(8);
    let dtype = d.one(&[DType::F32, DType::F32, DType::F32, DType::F16, DType::F16, DType::BF16]);
    let dtype = if kind == 3 && dtype == DType::BF16 { DType::F16 } else { dtype };
    let mut drawn = Drawn { d, given: BTreeMap::new(), names: 0 };
    let y = match kind {
        0..3 => drawn.product(&mut cx, dtype)?,
        3 => drawn.quantised(&mut cx, dtype)?,
        4..6 => drawn.convolution(&mut cx, dtype)?,
        _ => drawn.attention(&mut cx, dtype)?,
    };
    let value = drawn.behind(&mut cx, y)?;
    let (given, transformed) = (drawn.given, d.below(2) == 0);
    g.outputs.push(Border { name: "y".into(), value });
    if transformed {
        winograd::transform_all(&mut g).map_err(OpError::internal)?;
    }
    Ok((g, given))
}

fn device(d: &mut Draw) -> DeviceProfile {
    let speeds = d.one(&[Speeds::PORTABLE, Speeds::DISCRETE, Speeds::SOFTWARE, Speeds::SWIFTSHADER]);
    let own = gpus().first().map(|g| g.profile().clone());
    let own = own.filter(|_| d.below(2) == 0);
    let Some(own) = own else {
        return DeviceProfile {
            speeds,
            max_invocations: d.one(&[64, 128, 256]),
            f16: d.below(2) == 0,
            ..DeviceProfile::default()
        };
    };
    DeviceProfile {
        speeds,
        max_workgroup_bytes: own.workgroup_bytes,
        max_invocations: own.invocations,
        f16: own.f16,
        subgroup: own.subgroup.filter(|(least, most)| least == most).map(|s| s.0),
        cooperative_matrix: own.cooperative_matrix,
        ..DeviceProfile::default()
    }
}

/// Picks a schedule, with equal probability for each kind.
fn pick(d: &mut Draw, all: &[Schedule]) -> Schedule {
    let mut kinds: Vec<&str> = all.iter().map(|s| s.fields().0).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kind = d.one(&kinds);
    let some: Vec<Schedule> = all.iter().filter(|s| s.fields().0 == kind).cloned().collect();
    d.one(&some)
}

#[test]
fn products_in_any_schedule() {
    let mut kinds = BTreeMap::<String, usize>::new();
    for seed in seeds() {
        let mut d = Draw(seed * 7919);
        let (graph, given) = problem(&mut d).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        let source = text::print(&graph);
        let fail = |what: String| -> ! { panic!("seed {seed}: {what}\n{source}") };
        let want = eval::evaluate(&graph, &given).unwrap_or_else(|e| fail(e.to_string()));
        let options = Options { profile: device(&mut d), ..Options::default() };
        let fused = fuse_graph(graph, Stats::default(), &options, &mut |_, _| {});
        let fused = fused.unwrap_or_else(|e| fail(format!("{e:?}")));
        let case = Case { graph: &fused.graph, options: &options, given, want, on: slow(seed) };
        run(&case, fused.kernels, 2, |_, list| pick(&mut d, list), &mut kinds).unwrap_or_else(|e| fail(e));
    }
    assert!(kinds.len() > 5, "{kinds:?}");
    eprintln!("seeds {:?}: {kinds:?}", seeds());
}
