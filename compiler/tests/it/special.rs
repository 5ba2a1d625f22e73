//! Special functions on every adapter, compared with the evaluator over the ranges for which an error bound
//! is stated.

use crate::gpu::*;
use half::f16;
use std::collections::BTreeMap;
use wgfc_compiler::kernel::*;
use wgfc_ir::special::{Error, Range, within};
use wgfc_ir::testing::Rng;
use wgfc_ir::{BinaryOp, DType, Poly, Special, Special2, UnaryOp};

/// The number of operands for each function.
const N: usize = 6000;

/// A random number in a range.
fn drawn(rng: &mut Rng, range: Range) -> f32 {
    within(range, (rng.bits() >> 11) as f64 / (1u64 << 53) as f64) as f32
}

/// The results of a function of these columns on an adapter.
fn computed(gpu: &Gpu, columns: &[Vec<f32>], apply: impl Fn(&mut Body, &[ExprId]) -> ExprId) -> Vec<f32> {
    let n = columns[0].len();
    let total = Poly::constant(n as i64);
    let mut case = Case::new(&[]);
    let mut body = Body::default();
    let mut data = BTreeMap::new();
    let mut loads = vec![];
    for (i, column) in columns.iter().enumerate() {
        let id = case.typed(DType::F32, std::slice::from_ref(&total), TensorKind::Input(i));
        data.insert(id, column.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        loads.push(body.push(Expr::Load { tensor: id, offset: v(0), guard: None }, DType::F32));
    }
    let value = apply(&mut body, &loads);
    let out = case.typed(DType::F32, std::slice::from_ref(&total), TensorKind::Output(0));
    let stores = vec![Store { tensor: out, offset: v(0), value, guard: None, combine: None }];
    let kernel = Kernel { family: Family::Map(Map { elements: total }), body, stores, nodes: vec![] };
    let emitted = case.with_context(|cx| emit(&kernel, cx)).unwrap_or_else(|e| panic!("{e}"));
    let bytes = execute(gpu, &prepare_bytes(gpu, &case, &emitted, &data), out);
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).take(n).collect()
}

/// The largest difference in units of the stated error bound, and where it occurs.
#[derive(Default)]
struct Worst(f64, String);

impl Worst {
    fn see(&mut self, what: &str, operands: &[f32], got: f32, want: f64, error: Error) {
        // A device may flush subnormal numbers to 0, and results that round to infinity must be infinite.
        let tiny = f64::from(f32::MIN_POSITIVE);
        let want = if want.abs() < tiny { 0.0 } else { f64::from(want as f32) };
        let off = if error.admits(got.into(), want) {
            let bound = error.absolute + error.relative * want.abs();
            if want.is_finite() && bound > 0.0 { (f64::from(got) - want).abs() / bound } else { 0.0 }
        } else if want == 0.0 && f64::from(got.abs()) <= tiny {
            0.0
        } else if want.is_finite() && got.is_finite() {
            (f64::from(got) - want).abs() / (error.absolute + error.relative * want.abs())
        } else {
            f64::INFINITY
        };
        if off > self.0 || self.1.is_empty() {
            *self = Worst(off, format!("{what}{operands:?} = {got}, not {want}: {off:.2} of the error"));
        }
    }
}

fn report(all: Vec<Worst>) {
    all.iter().for_each(|w| println!("{}", w.1));
    let wrong: Vec<&str> = all.iter().filter(|w| w.0 > 1.0).map(|w| w.1.as_str()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Poles, ends of domains, infinities and NaN.
const EDGES: [f32; 18] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -2.0,
    0.5,
    -0.5,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e-20,
    -1e-20,
    100.0,
    -100.0,
    1e30,
    -1e30,
    8.0,
];

#[test]
fn functions_of_one_operand() {
    let mut all = vec![];
    for f in Special::ALL {
        let mut rng = Rng::new(7);
        let mut x = EDGES.to_vec();
        while x.len() < N {
            f.over().iter().for_each(|r| x.push(drawn(&mut rng, *r)));
        }
        for gpu in gpus() {
            let got = computed(&gpu, std::slice::from_ref(&x), |b, a| {
                b.push(Expr::Unary(UnaryOp::Special(*f), a[0]), DType::F32)
            });
            let mut worst = Worst::default();
            for (x, got) in x.iter().zip(got) {
                worst.see(&format!("{} {} ", gpu.name, f.name()), &[*x], got, f.at((*x).into()), f.error());
            }
            all.push(worst);
        }
    }
    report(all);
}

/// The ranges of polynomials give integer second operands, which are degrees.
#[test]
fn functions_of_two_operands() {
    let mut all = vec![];
    for f in Special2::ALL {
        let mut rng = Rng::new(9);
        let few = [0.0, 1.0, 2.0, -1.0, 0.5, f32::INFINITY, 30.0];
        let edges = || few.iter().flat_map(|x| few.iter().map(move |y| (*x, *y)));
        let polynomial = Special2::ALL.iter().position(|g| g == f)
            >= Special2::ALL.iter().position(|g| *g == Special2::ChebyshevT);
        let (mut x, mut y): (Vec<f32>, Vec<f32>) =
            edges().filter(|(x, y)| !polynomial || (x.abs() <= 1.0 && *y < 9.0)).unzip();
        while x.len() < N {
            for (a, b) in f.over() {
                x.push(drawn(&mut rng, *a));
                y.push(drawn(&mut rng, *b));
            }
        }
        let columns = [x, y];
        for gpu in gpus() {
            let got = computed(&gpu, &columns, |b, a| {
                b.push(Expr::Binary(BinaryOp::Special(*f), a[0], a[1]), DType::F32)
            });
            let mut worst = Worst::default();
            for ((x, y), got) in columns[0].iter().zip(&columns[1]).zip(got) {
                let want = f.at((*x).into(), (*y).into());
                worst.see(&format!("{} {} ", gpu.name, f.name()), &[*x, *y], got, want, f.error());
            }
            all.push(worst);
        }
    }
    report(all);
}

/// Every finite f16 value, midpoints between neighbours and numbers next to them, and values that are not
/// finite.
#[test]
fn rounding_to_f16() {
    let finite: Vec<f32> = (0..=0x7bff_u16).map(|bits| f16::from_bits(bits).to_f32()).collect();
    let halfway = |w: &[f32]| f32::midpoint(w[0], w[1]);
    let mut x: Vec<f32> =
        finite.windows(2).map(halfway).flat_map(|m| [m.next_down(), m, m.next_up()]).collect();
    x.extend(finite);
    x.extend([65519.99, 65520.0, 1e30, f32::INFINITY, f32::NAN, 1e-40]);
    let negative: Vec<f32> = x.iter().map(|x| -x).collect();
    x.extend(negative);
    for gpu in gpus() {
        let got = computed(&gpu, std::slice::from_ref(&x), |b, a| {
            let half = b.push(Expr::Cast(DType::F16, a[0]), DType::F16);
            b.push(Expr::Cast(DType::F32, half), DType::F32)
        });
        for (x, got) in x.iter().zip(got) {
            let want = f16::from_f32(*x).to_f32();
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{x:e} on {}: {got:e}, not {want:e}", gpu.name);
        }
    }
}

/// Angles of all sizes, including those next to multiples of π/2, where sine, cosine or tangent is near 0.
#[test]
fn sines_of_any_angle() {
    let mut rng = Rng::new(77);
    let mut angles =
        vec![0.0, -0.0, f32::MAX, f32::MIN, 1.5e5, 1e9, 12000.0, 12000.001, 16367173.0 * 2f32.powi(72)];
    for range in [(0.0, 12.0), (0.0, 12000.0), (1.0, 3.4e38), (1e-30, 1.0)] {
        angles.extend((0..N).map(|i| drawn(&mut rng, range) * if i % 2 == 0 { 1.0 } else { -1.0 }));
    }
    angles.extend((0..20000).map(|k| (f64::from(k) * std::f64::consts::FRAC_PI_2) as f32));
    angles.extend((0..20000).map(|k| (f64::from(k) * 977.0 * std::f64::consts::FRAC_PI_2) as f32));
    let beyond = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    type Function = (UnaryOp, fn(f64) -> f64, f64);
    let of: [Function; 3] =
        [(UnaryOp::Sin, f64::sin, 2.4e-7), (UnaryOp::Cos, f64::cos, 2.4e-7), (UnaryOp::Tan, f64::tan, 6e-7)];
    let mut all = vec![];
    for gpu in gpus() {
        for (op, want, relative) in of {
            // The function alone, and together with both sine and cosine of the angle, which are then
            // computed jointly.
            for both in [false, true] {
                let apply = |body: &mut Body, x: &[ExprId]| {
                    let y = body.push(Expr::Unary(op, x[0]), DType::F32);
                    if both {
                        body.push(Expr::Unary(UnaryOp::Sin, x[0]), DType::F32);
                        body.push(Expr::Unary(UnaryOp::Cos, x[0]), DType::F32);
                    }
                    y
                };
                let mut worst = Worst::default();
                let got = computed(&gpu, std::slice::from_ref(&angles), apply);
                for (x, y) in angles.iter().zip(got) {
                    let error = Error { relative, absolute: 0.0 };
                    worst.see(
                        &format!("{} on {}: ", op.name(), gpu.name),
                        &[*x],
                        y,
                        want(f64::from(*x)),
                        error,
                    );
                }
                all.push(worst);
                let got = computed(&gpu, &[beyond.to_vec()], apply);
                assert!(
                    got.iter().all(|y| y.is_nan()),
                    "{} of what is no number: {got:?} on {}",
                    op.name(),
                    gpu.name
                );
            }
        }
        let one =
            computed(&gpu, &[vec![0.0]], |body, x| body.push(Expr::Unary(UnaryOp::Cos, x[0]), DType::F32));
        assert_eq!(one, [1.0], "cos 0 on {}", gpu.name);
    }
    report(all);
}
