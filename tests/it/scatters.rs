//! Scatters of many updates, in which each update goes directly to its target element, without a search over
//! the others.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use wgfc_compiler::device::{DeviceProfile, Speeds};
use wgfc_compiler::kernel::{Family, Kernel};
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{Border, Class, DType, Dim, GatherAxis, Graph, Op, Poly, ReduceOp, Scalar, Tensor, TensorType};
use wgfc_runtime::Gpu;
use wgfc_selftest::{Tolerance, equal};

const COMBINED: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod];
const TYPES: [DType; 14] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
    DType::F8E4M3,
];
const EXACT: Tolerance = Tolerance { rtol: 0.0, atol: 0.0 };

/// `updates[n, columns]` combine with the rows of `data[rows, columns]` that `index[n]` names.
fn rows(t: DType, how: ReduceOp, [rows, n, columns]: [Dim; 3]) -> Graph {
    let mut g = Graph::new();
    let data = g.add_input("data", TensorType::new(t, vec![rows, columns.clone()]));
    let updates = g.add_input("updates", TensorType::new(t, vec![n.clone(), columns]));
    let places = g.add_input("index", TensorType::new(DType::I64, vec![n]));
    let index = vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }, GatherAxis::Affine(Poly::var(1))];
    let y = g.push(Op::Scatter { reduce: Some(how), index }, &[data, updates, places], &[]).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y.into() });
    g
}

/// `updates[n]` combine with the elements of `data[size]` that `index[n]` names.
fn elements(t: DType, how: ReduceOp, size: usize, n: usize) -> Graph {
    let mut g = Graph::new();
    let data = g.add_input("data", TensorType::new(t, vec![size.into()]));
    let updates = g.add_input("updates", TensorType::new(t, vec![n.into()]));
    let places = g.add_input("index", TensorType::new(DType::I64, vec![n.into()]));
    let index = vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }];
    let y = g.push(Op::Scatter { reduce: Some(how), index }, &[data, updates, places], &[]).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y.into() });
    g
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// Numbers whose sums are exact: floats are small multiples of a quarter, integers use all bits.
    fn tensor(&mut self, t: DType, shape: &[usize]) -> Tensor {
        let number = |r: u64| match t.class() {
            Class::Float if t.bits() == 8 => Scalar::from_f64(t, f64::from(r.is_multiple_of(3))),
            Class::Float => Scalar::from_f64(t, (r % 17) as f64 / 4.0 - 2.0),
            Class::Bool => Scalar::bool(r.is_multiple_of(2)),
            _ => {
                let bits = t.bits() as u32;
                let top = (r << (64 - bits)) as i64;
                let v = if t.class() == Class::Int {
                    top >> (64 - bits)
                } else {
                    (top as u64 >> (64 - bits)) as i64
                };
                Scalar::from_i64(t, v)
            }
        };
        let v: Vec<Scalar> = (0..shape.iter().product()).map(|_| number(self.next() >> 3)).collect();
        Tensor::from_scalars(t, shape.to_vec(), &v)
    }
    /// Indices: half of them name a few elements, some count from the end, some are out of bounds.
    fn places(&mut self, n: usize, size: usize) -> Tensor {
        let size = size as i64;
        let place = |r: u64| match r % 16 {
            0..8 => (r >> 8) as i64 % size.min(3),
            8 => size + (r >> 8) as i64 % 3,
            9 => -size - 1 - (r >> 8) as i64 % 3,
            10 => -1 - (r >> 8) as i64 % size,
            _ => (r >> 8) as i64 % size,
        };
        let v: Vec<i64> = (0..n).map(|_| place(self.next() >> 3)).collect();
        Tensor::from_i64(vec![n], &v)
    }
}

fn adapters() -> Vec<Gpu> {
    let adapter = |b| match b {
        Backend::Adapter(gpu) => Some(gpu),
        Backend::Evaluator => None,
    };
    Backend::all().into_iter().filter_map(adapter).collect()
}

fn run(gpu: &Gpu, g: &Graph, inputs: &BTreeMap<String, Tensor>, fusion: Fusion) -> Tensor {
    let options = Options { fusion, ..Options::default() };
    let program = compile_graph(g.clone(), Stats::default(), &options, &mut |_, _| {}).unwrap();
    run_session(&mut session(gpu, &program).unwrap(), inputs).unwrap().remove(0)
}

fn inputs(data: Tensor, updates: Tensor, index: Tensor) -> BTreeMap<String, Tensor> {
    [("data".to_owned(), data), ("updates".to_owned(), updates), ("index".to_owned(), index)].into()
}

#[test]
fn many_updates_of_one_place_combine() {
    let mut rng = Rng(0x5eed);
    for gpu in adapters() {
        for t in TYPES {
            for how in COMBINED {
                if t == DType::Bool && how == ReduceOp::Sum {
                    continue;
                }
                let (size, n) = (701, 743);
                let g = elements(t, how, size, n);
                let x = inputs(rng.tensor(t, &[size]), rng.tensor(t, &[n]), rng.places(n, size));
                let want = evaluate(&g, &x).unwrap().remove(0);
                let got = run(&gpu, &g, &x, Fusion::Full);
                // The evaluator rounds sums of narrow floats once as well, but not their products.
                let narrow = how == ReduceOp::Prod && t.class() == Class::Float && t.bits() <= 16;
                let tolerance = if narrow { Tolerance { rtol: 0.02, atol: 0.0 } } else { EXACT };
                equal(&got, &want, tolerance).unwrap_or_else(|e| panic!("{t} {how:?}: {e}"));
            }
        }
    }
}

#[test]
fn rows_combine_at_every_level_of_fusion() {
    let mut rng = Rng(7);
    let (size, n, columns) = (331usize, 409usize, 7usize);
    for gpu in adapters() {
        for how in COMBINED {
            for (i, fusion) in [Fusion::None, Fusion::Elementwise, Fusion::Full].into_iter().enumerate() {
                let names = [size, n, columns].map(Dim::from);
                let symbols = ["rows", "n", "columns"].map(Dim::sym);
                let g = rows(DType::F32, how, if i == 2 { symbols } else { names });
                let t = DType::F32;
                let (data, updates) = (rng.tensor(t, &[size, columns]), rng.tensor(t, &[n, columns]));
                let x = inputs(data, updates, rng.places(n, size));
                let want = evaluate(&g, &x).unwrap().remove(0);
                let got = run(&gpu, &g, &x, fusion);
                // The evaluator rounds a product after each update.
                let rtol = if how == ReduceOp::Prod { 1e-5 } else { 0.0 };
                equal(&got, &want, Tolerance { rtol, ..EXACT })
                    .unwrap_or_else(|e| panic!("{how:?} {fusion:?}: {e}"));
            }
        }
    }
}

/// Updates of wide rows are combined in the order of their indices; half of the updates go to three rows.
#[test]
fn wide_rows_combine_in_order() {
    let mut rng = Rng(11);
    let (size, n) = (290usize, 700usize);
    let speeds = [Speeds::PORTABLE, Speeds::SWIFTSHADER];
    for gpu in adapters() {
        // One loop if the lanes of a row keep the device busy, otherwise a second loop for chunks of updates.
        for (t, columns, speeds, expected) in [
            (DType::F32, 256, speeds[0], 2),
            (DType::F32, 240, speeds[1], 2),
            (DType::F16, 264, speeds[1], 1),
            (DType::I64, 129, speeds[0], 2),
        ] {
            for (named, how) in COMBINED.into_iter().enumerate() {
                let sizes = [size, n, columns].map(Dim::from);
                let g = rows(t, how, if named == 2 { ["r", "n", "c"].map(Dim::sym) } else { sizes });
                let (mut data, updates) = (rng.tensor(t, &[size, columns]), rng.tensor(t, &[n, columns]));
                if t == DType::F32 && how != ReduceOp::Prod {
                    let mut v = data.to_f32s().unwrap();
                    v[..3].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
                    data = Tensor::from_f32(vec![size, columns], &v);
                }
                let x = inputs(data, updates, rng.places(n, size));
                let options = Options {
                    profile: DeviceProfile { speeds, ..DeviceProfile::default() },
                    ..Options::default()
                };
                let program = compile_graph(g.clone(), Stats::default(), &options, &mut |_, _| {}).unwrap();
                let loops = program.kernels.iter().filter(|k| k.family == "loop").count();
                let dear = how == ReduceOp::Prod || how == ReduceOp::Sum && t.is_float();
                assert!(!dear || loops == expected, "{t} {how:?} of {columns}: {loops}");
                let got = run_session(&mut session(&gpu, &program).unwrap(), &x).unwrap().remove(0);
                let want = evaluate(&g, &x).unwrap().remove(0);
                // Products of floats are rounded in another order, and the evaluator rounds to f16 after each
                // update.
                let rtol = match (how, t) {
                    (ReduceOp::Prod, DType::F16) => 0.02,
                    (ReduceOp::Prod, DType::F32) => 1e-5,
                    _ => 0.0,
                };
                let tolerance = Tolerance { rtol, ..EXACT };
                equal(&got, &want, tolerance).unwrap_or_else(|e| panic!("{t} {how:?} of {columns}: {e}"));
            }
        }
    }
}

/// Floats of all magnitudes: the sum is the exact sum rounded once, and so independent of the order.
#[test]
fn sums_of_floats_are_rounded_once() {
    let mut rng = Rng(99);
    let (size, n) = (401, 5000);
    let mut floats = |n: usize, spread: i64| -> Vec<f32> {
        let float = |r: u64| {
            let m = (r >> 20 & 0xff_ffff) as f64 - 8_388_608.0;
            (m * 2f64.powi(((r >> 50) as i64 % spread - spread / 2) as i32)) as f32
        };
        (0..n).map(|_| float(rng.next())).collect()
    };
    for spread in [1, 9, 200] {
        let (mut data, updates) = (floats(size, spread), floats(n, spread));
        // Elements without updates do not change.
        data[size - 3..].copy_from_slice(&[1.0e38, -3.0e-39, f32::MIN_POSITIVE]);
        let place = |i: usize| (i * i + 7 * i) % (size - 3);
        let index: Vec<i64> = (0..n).map(|i| place(i) as i64).collect();
        let g = elements(DType::F32, ReduceOp::Sum, size, n);
        let x = inputs(
            Tensor::from_f32(vec![size], &data),
            Tensor::from_f32(vec![n], &updates),
            Tensor::from_i64(vec![n], &index),
        );
        let mut exact: Vec<f64> = data.iter().map(|x| f64::from(*x)).collect();
        let mut largest: Vec<f64> = exact.iter().map(|x| x.abs()).collect();
        for (i, u) in updates.iter().enumerate() {
            exact[place(i)] += f64::from(*u);
            largest[place(i)] = largest[place(i)].max(f64::from(*u).abs());
        }
        for gpu in adapters() {
            let got = run(&gpu, &g, &x, Fusion::Full);
            assert_eq!(run(&gpu, &g, &x, Fusion::Full), got, "another run");
            for (i, y) in got.to_f32s().unwrap().into_iter().enumerate() {
                let bound = exact[i].abs() * 1.3e-7 + largest[i] * 1e-9 + f64::from(f32::MIN_POSITIVE);
                let error = (f64::from(y) - exact[i]).abs();
                assert!(error <= bound, "{spread}: element {i} is {y} for {}", exact[i]);
            }
        }
    }
}

/// 20,000 updates of as many elements: the product of the updates is rounded once, then multiplied by the
/// element, and is independent of the order.
#[test]
fn products_of_many_updates() {
    let mut rng = Rng(5);
    let n = 20_000;
    let place = |i: usize| (i * i + 7 * i) % (n - 3);
    let index = Tensor::from_i64(vec![n], &(0..n).map(|i| place(i) as i64).collect::<Vec<_>>());
    let mut floats = || -> Vec<f32> {
        let float = |r: u64| (1.0 + (r >> 40) as f32 / 2e7) * [0.5, -0.5, 0.7, -0.9][r as usize % 4];
        (0..n).map(|_| float(rng.next() >> 2)).collect()
    };
    let (mut data, updates) = (floats(), floats());
    data[n - 3..].copy_from_slice(&[f32::NAN, f32::MAX, f32::MIN_POSITIVE]);
    let mut exact: Vec<f64> = data.iter().map(|x| f64::from(*x)).collect();
    for (i, u) in updates.iter().enumerate() {
        exact[place(i)] *= f64::from(*u);
    }
    let g = elements(DType::F32, ReduceOp::Prod, n, n);
    let x = inputs(Tensor::from_f32(vec![n], &data), Tensor::from_f32(vec![n], &updates), index.clone());
    for gpu in adapters() {
        let got = run(&gpu, &g, &x, Fusion::Full);
        assert_eq!(run(&gpu, &g, &x, Fusion::Full).bytes(), got.bytes(), "another run");
        for (i, y) in got.to_f32s().unwrap().into_iter().enumerate() {
            let error = (f64::from(y) - exact[i]).abs();
            let fine = error <= exact[i].abs() * 1.3e-7 + 1e-38 || exact[i].is_nan() && y.is_nan();
            assert!(fine, "element {i} is {y} for {}", exact[i]);
        }
        for t in [DType::I32, DType::U64] {
            let g = elements(t, ReduceOp::Prod, n, n);
            let x = inputs(rng.tensor(t, &[n]), rng.tensor(t, &[n]), index.clone());
            let want = evaluate(&g, &x).unwrap().remove(0);
            equal(&run(&gpu, &g, &x, Fusion::Full), &want, EXACT).unwrap();
        }
    }
}

/// On all adapters, f32 elements and updates combine to exactly the evaluator's results.
fn combine_exactly(how: ReduceOp, data: &[f32], updates: &[f32], index: &[i64]) {
    let x = inputs(
        Tensor::from_f32(vec![data.len()], data),
        Tensor::from_f32(vec![updates.len()], updates),
        Tensor::from_i64(vec![index.len()], index),
    );
    let g = elements(DType::F32, how, data.len(), updates.len());
    let want = evaluate(&g, &x).unwrap().remove(0);
    for gpu in adapters() {
        equal(&run(&gpu, &g, &x, Fusion::Full), &want, EXACT).unwrap();
    }
}

#[test]
fn infinities_nan_and_zeros_multiply() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let n = 600;
    let (mut data, mut updates) = (vec![1.0; n], vec![0.5; n]);
    let mut index: Vec<i64> = (0..n as i64).collect();
    data[..6].copy_from_slice(&[1.0, 2.0, inf, -inf, nan, 0.0]);
    let special = [
        (inf, 0),
        (-inf, 0),
        (-inf, 1),
        (-inf, 2),
        (0.0, 3),
        (1.0, 4),
        (inf, 5),
        (0.0, 7),
        (nan, 7),
        (-1.0, 8),
    ];
    for (i, (u, to)) in special.into_iter().enumerate() {
        (updates[i], index[i]) = (u, to);
    }
    combine_exactly(ReduceOp::Prod, &data, &updates, &index);
}

#[test]
fn infinities_and_nan_add_up() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let (size, n) = (600, 600);
    let (mut data, mut updates) = (vec![1.0; size], vec![0.5; n]);
    let mut index: Vec<i64> = (0..n as i64).collect();
    data[..6].copy_from_slice(&[1.0, 2.0, inf, -inf, nan, inf]);
    for (i, (u, to)) in
        [(inf, 0), (inf, 0), (-inf, 1), (-inf, 2), (3.0, 3), (1.0, 4), (inf, 5)].into_iter().enumerate()
    {
        (updates[i], index[i]) = (u, to);
    }
    combine_exactly(ReduceOp::Sum, &data, &updates, &index);
}

/// The number of steps of each kernel is at most proportional to the numbers of elements and updates.
#[test]
fn time_grows_with_the_updates() {
    let (size, n, columns) = (5000usize, 10_000usize, 64usize);
    for t in TYPES {
        for how in COMBINED {
            let g = rows(t, how, [size, n, columns].map(Dim::from));
            for fusion in [Fusion::None, Fusion::Full] {
                let options = Options { fusion, ..Options::default() };
                let kernels = wgfc_compiler::passes::fuse(&g, &options).unwrap().kernels;
                // A lane stops after the updates of its row, many of which are combined beforehand.
                let steps = |k: &Kernel| match &k.family {
                    Family::Loop(l) => {
                        assert!(
                            l.alive.is_some() && l.steps.as_const().is_some_and(|s| s < 400),
                            "{t} {how:?}"
                        );
                        l.lanes.iter().product::<Dim>().as_const()
                    }
                    _ => k.domain().iter().product::<Dim>().as_const(),
                };
                let most = ((size + n) * columns) as i64;
                let few = |k: &Kernel| {
                    matches!(k.family, Family::Sort(_)) || steps(k).is_some_and(|steps| steps <= most)
                };
                assert!(kernels.iter().all(few), "{t} {how:?} {fusion:?}");
                assert!(kernels.len() <= if fusion == Fusion::Full { 12 } else { 30 }, "{t} {how:?}");
            }
        }
    }
    // With few updates, each element searches the updates of its own column.
    let g = rows(DType::F32, ReduceOp::Prod, [41usize, 90, 64].map(Dim::from));
    let kernels = wgfc_compiler::passes::fuse(&g, &Options::default()).unwrap().kernels;
    let [kernel] = &kernels[..] else { panic!("{} kernels", kernels.len()) };
    assert_eq!(kernel.domain(), [Dim::from(41 * 64usize), Dim::from(90usize)]);
}
