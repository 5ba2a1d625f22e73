//! Scalar operators and conversions of every element type, executed on every adapter and compared
//! with the reference evaluator.

use crate::gpu::*;
use std::collections::BTreeMap;
use wgfc_compiler::kernel::*;
use wgfc_ir::eval::evaluate;
use wgfc_ir::testing::Rng;
use wgfc_ir::{
    BinaryOp, Border, Builder, Class, DType, Graph, Poly, Scalar, ScalarFn, ScalarNode, Tensor, UnaryOp,
    storage,
};

/// The number of elements; odd, so that the last word of a packed type is partly filled.
const N: usize = 203;

/// The evaluator's results of a function.
fn expected(f: &ScalarFn, args: &[Tensor]) -> Vec<Scalar> {
    let mut graph = Graph::default();
    let out = {
        let mut b = Builder::new(&mut graph, "test");
        let args: Vec<_> = args.iter().map(|t| b.constant(t.clone())).collect();
        b.map(f.clone(), &args).unwrap()
    };
    graph.outputs.push(Border { name: "y".into(), value: out });
    evaluate(&graph, &BTreeMap::new()).unwrap()[0].scalars().unwrap()
}

/// Adds a function of loaded operands to a body.
fn inline(body: &mut Body, f: &ScalarFn, args: &[ExprId]) -> ExprId {
    let types = f.types(&args.iter().map(|a| body.dtype(*a)).collect::<Vec<_>>()).unwrap();
    let mut ids: Vec<ExprId> = vec![];
    for (n, t) in f.nodes.iter().zip(types) {
        let at = |i: &u32| ids[*i as usize];
        let e = match n {
            ScalarNode::Arg(i) => {
                ids.push(args[*i as usize]);
                continue;
            }
            ScalarNode::Const(s) => Expr::Const(*s),
            ScalarNode::Index(p) => Expr::Index(p.clone()),
            ScalarNode::Unary(op, a) => Expr::Unary(*op, at(a)),
            ScalarNode::Binary(op, a, b) => Expr::Binary(*op, at(a), at(b)),
            ScalarNode::Select(a, b, c) => Expr::Select(at(a), at(b), at(c)),
            ScalarNode::Cast(d, a) => Expr::Cast(*d, at(a)),
            ScalarNode::Bitcast(d, a) => Expr::Bitcast(*d, at(a)),
        };
        ids.push(body.push(e, t));
    }
    *ids.last().unwrap()
}

/// A tensor of these scalars, whose bits may be NaN codes or infinities.
fn tensor(dtype: DType, values: &[Scalar]) -> Tensor {
    Tensor::from_scalars(dtype, vec![values.len()], values)
}

/// The relative and absolute error allowed for results of a type.
fn tolerance(d: DType) -> (f64, f64) {
    match d {
        DType::F32 | DType::F64 => (1e-5, 2e-6),
        DType::F16 => (1e-3, 1e-6),
        DType::BF16 => (8e-3, 1e-6),
        DType::F8E4M3 | DType::F8E4M3Uz => (0.13, 2e-3),
        DType::F8E5M2 | DType::F8E5M2Uz => (0.26, 2e-5),
        DType::F8E8M0 => (1.01, 1e-30),
        DType::F4E2M1 => (0.51, 0.51),
        _ => (0.0, 0.0),
    }
}

fn agrees(d: DType, got: Scalar, want: Scalar, exact: bool) -> bool {
    if !d.is_float() {
        return got.bits == want.bits;
    }
    let (g, w) = (got.as_f64(), want.as_f64());
    let (rel, abs) = if exact && d != DType::F64 { (0.0, 0.0) } else { tolerance(d) };
    w.is_nan() || g == w || (g - w).abs() <= abs + rel * w.abs() || (!exact && !w.is_finite())
}

/// Whether two results agree, where NaN and the infinities must agree too.
fn agrees_beyond_numbers(d: DType, got: Scalar, want: Scalar) -> bool {
    let (g, w) = (got.as_f64(), want.as_f64());
    if !w.is_finite() {
        g == w || (g.is_nan() && w.is_nan())
    } else {
        g.is_finite() && agrees(d, got, want, false)
    }
}

/// [`check_by`] with [`agrees`].
#[must_use]
fn check(gpus: &[Gpu], functions: &[(String, ScalarFn)], args: &[Tensor], exact: bool) -> Vec<String> {
    check_by(gpus, functions, args, |d, got, want| agrees(d, got, want, exact))
}

/// Checks functions with one result type, all in one kernel over `functions · N` elements.
#[must_use]
fn check_by(
    gpus: &[Gpu],
    functions: &[(String, ScalarFn)],
    args: &[Tensor],
    agrees: impl Fn(DType, Scalar, Scalar) -> bool,
) -> Vec<String> {
    let Some((_, first)) = functions.first() else { return vec![] };
    let types: Vec<DType> = args.iter().map(|t| t.dtype).collect();
    let out_type = *first.types(&types).unwrap().last().unwrap();
    let total = Poly::constant((functions.len() * N) as i64);
    let domain = [total.clone()];
    let mut case = Case::new(&[]);
    let mut body = Body::default();
    let mut data = BTreeMap::new();
    let mut loads = vec![];
    for (i, t) in args.iter().enumerate() {
        let id = case.typed(t.dtype, &[c(N as i64)], TensorKind::Input(i));
        data.insert(id, t.bytes().unwrap().to_vec());
        let offset = v(0).modulo(&c(N as i64), &domain);
        loads.push(body.push(Expr::Load { tensor: id, offset, guard: None }, t.dtype));
    }
    let which = body.push(Expr::Index(v(0).div(&c(N as i64), &domain)), DType::I32);
    let mut value = None;
    for (i, (_, f)) in functions.iter().enumerate() {
        let this = inline(&mut body, f, &loads);
        value = Some(match value {
            None => this,
            Some(others) => {
                let i = body.push(Expr::Const(Scalar::from_i64(DType::I32, i as i64)), DType::I32);
                let mine = body.push(Expr::Binary(BinaryOp::Eq, which, i), DType::Bool);
                body.push(Expr::Select(mine, this, others), out_type)
            }
        });
    }
    let out = case.typed(out_type, std::slice::from_ref(&total), TensorKind::Output(0));
    let stores = vec![Store { tensor: out, offset: v(0), value: value.unwrap(), guard: None, combine: None }];
    let kernel = Kernel { family: Family::Map(Map { elements: total }), body, stores, nodes: vec![] };
    let emitted = case.with_context(|cx| emit(&kernel, cx)).unwrap_or_else(|e| panic!("{e}"));
    let mut wrong = vec![];
    for gpu in gpus {
        let bytes = execute(gpu, &prepare_bytes(gpu, &case, &emitted, &data), out);
        let got = storage::decode(out_type, &bytes, functions.len() * N);
        for (i, (name, f)) in functions.iter().enumerate() {
            let want = expected(f, args);
            let bad = (0..N).find(|j| !agrees(out_type, got[i * N + j], want[*j]));
            if let Some(j) = bad {
                let operands: Vec<Scalar> = args.iter().map(|a| a.scalars().unwrap()[j]).collect();
                let (g, w) = (got[i * N + j], want[j]);
                wrong.push(format!("{name} of {operands:?} is {g}, not {w}, on {}", gpu.name));
            }
        }
    }
    wrong
}

fn none_wrong(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Operands of a type: edge cases first, then random ones of moderate size.
fn operands(d: DType, seed: u64, edges: &[f64], range: f64) -> Tensor {
    let mut rng = Rng::new(seed);
    let mut unit = || (rng.bits() >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0;
    // F8E8M0 has only powers of two, the smallest of which are subnormal in f32.
    let least = if d == DType::F8E8M0 { 1e-3 } else { f64::NEG_INFINITY };
    let values: Vec<Scalar> = (0..N)
        .map(|i| match edges.get(i) {
            Some(e) => Scalar::from_f64(d, f64::from(*e as f32).max(least)),
            None if d.is_float() => Scalar::from_f64(d, f64::from((unit() * range) as f32).max(least)),
            None => Scalar::from_i64(d, (unit() * range) as i64),
        })
        .collect();
    tensor(d, &values)
}

/// Integers of all sizes. The first 144 are edge cases, each repeated `period` times in a row, so that tensors with
/// the periods 1 and 12 contain all pairs of them.
fn integers(d: DType, seed: u64, period: usize) -> Tensor {
    let bits = d.bits() as u32;
    let top = 1u64 << (bits - 1);
    let edges = [0, 1, u64::MAX, 2, top, top - 1, top + 1, 3, 7, u64::MAX - 1, 1 << (bits / 2), 31];
    let mut rng = Rng::new(seed);
    let values: Vec<Scalar> = (0..N)
        .map(|i| {
            let raw = if i < edges.len() * edges.len() {
                edges[i / period % edges.len()]
            } else {
                let wide = rng.bits();
                wide >> (rng.bits() % 64)
            };
            storage::from_raw(d, raw & (u64::MAX >> (64 - bits)))
        })
        .collect();
    tensor(d, &values)
}

fn floats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|d| d.is_float())
}

const EDGES: [f64; 24] = [
    0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 0.25, 2.0, -2.0, 3.0, 1e-3, -1e-3, 0.99, -0.99, 10.0,
    -10.0, 30.0, 88.0, -88.0, 1e-6, 4.0,
];

#[test]
fn unary_operators_of_floats() {
    let (gpus, mut wrong) = (gpus(), vec![]);
    for d in floats() {
        let named = |op: &UnaryOp| (format!("{} {d}", op.name()), ScalarFn::unary(*op));
        let (exact, smooth): (Vec<UnaryOp>, Vec<UnaryOp>) =
            UnaryOp::ALL.iter().filter(|o| **o != UnaryOp::Not).partition(|o| {
                use UnaryOp::*;
                matches!(o, Neg | Abs | Sign | Floor | Ceil | Round | Trunc)
            });
        let (bools, smooth): (Vec<UnaryOp>, Vec<UnaryOp>) =
            smooth.into_iter().partition(|o| matches!(o, UnaryOp::IsNan | UnaryOp::IsInf));
        let x = operands(d, 1, &EDGES, 6.0);
        // A type without NaN has no defined result outside an operator's domain.
        let smooth = if d == DType::F4E2M1 { vec![] } else { smooth };
        let small = operands(d, 2, &EDGES[..18], 1.0);
        let list = |ops: &[UnaryOp]| ops.iter().map(named).collect::<Vec<_>>();
        wrong.extend(check(&gpus, &list(&exact), std::slice::from_ref(&x), true));
        wrong.extend(check(&gpus, &list(&smooth), &[small], false));
        // Smooth functions are compared near 0 and over a wider range.
        wrong.extend(check(&gpus, &list(&smooth), &[x], false));
        let odd = operands(d, 3, &[f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0], 3.0);
        wrong.extend(check(&gpus, &list(&bools), &[odd], true));
    }
    none_wrong(wrong);
}

#[test]
fn long_integers_by_constants() {
    let (gpus, mut wrong) = (gpus(), vec![]);
    for d in [DType::I64, DType::U64] {
        let mut functions = vec![];
        for op in [BinaryOp::Div, BinaryOp::Rem, BinaryOp::Mod] {
            for by in [1, 3, 7, 256, 1000, 65535, 65536, 65537, 1_000_003, 1 << 24, (1 << 24) + 1] {
                let by = Scalar::from_i64(d, by);
                let nodes = vec![ScalarNode::Arg(0), ScalarNode::Const(by), ScalarNode::Binary(op, 0, 1)];
                functions.push((format!("{} {d} by {by}", op.name()), ScalarFn { nodes }));
            }
        }
        for seed in 0..4 {
            wrong.extend(check(&gpus, &functions, &[integers(d, seed, 1)], true));
        }
    }
    none_wrong(wrong);
}

#[test]
fn large_angles_and_extremes() {
    let (gpus, mut wrong) = (gpus(), vec![]);
    let f = |op: UnaryOp| (op.name().to_string(), ScalarFn::unary(op));
    let angles = operands(
        DType::F32,
        4,
        &[1000.0, -1000.0, std::f64::consts::PI, std::f64::consts::FRAC_PI_2, std::f64::consts::TAU],
        4000.0,
    );
    wrong.extend(check(&gpus, &[f(UnaryOp::Sin), f(UnaryOp::Cos)], &[angles], false));
    let far = operands(DType::F32, 5, &[1e6, -1e6, 300.0, -300.0, 1e30, -1e30], 1e4);
    let bounded = [UnaryOp::Tanh, UnaryOp::Sigmoid, UnaryOp::Erf, UnaryOp::Atan, UnaryOp::Asinh].map(f);
    wrong.extend(check(&gpus, &bounded, &[far], false));
    none_wrong(wrong);
}

#[test]
fn binary_operators_of_floats() {
    let (gpus, mut wrong) = (gpus(), vec![]);
    for d in floats() {
        let named = |op: &BinaryOp| (format!("{} {d}", op.name()), ScalarFn::binary(*op));
        use BinaryOp::*;
        let few: Vec<f64> = (0..144).map(|i| EDGES[i / 12]).collect();
        let many: Vec<f64> = (0..144).map(|i| EDGES[i % 12]).collect();
        let args = [operands(d, 6, &few, 5.0), operands(d, 7, &many, 5.0)];
        wrong.extend(check(&gpus, &[Add, Sub, Mul, Div, Pow].map(|o| named(&o)), &args, false));
        wrong.extend(check(&gpus, &[Min, Max].map(|o| named(&o)), &args, true));
        wrong.extend(check(&gpus, &[Eq, Ne, Lt, Le, Gt, Ge].map(|o| named(&o)), &args, true));
        if d == DType::F4E2M1 {
            continue;
        }
        wrong.extend(check(&gpus, &[Rem, Mod].map(|o| named(&o)), &args, d.bits() < 32));
    }
    none_wrong(wrong);
}

/// All pairs of numbers, infinities and NaN. The exponential of NaN and functions based on it depend on the
/// driver, so they are not compared.
#[test]
fn not_a_number_and_infinities() {
    const NUMBERS: [f64; 12] =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0, -1.0, 1.5, -2.0, 3.0, 20.0, -20.0];
    let (gpus, mut wrong) = (gpus(), vec![]);
    for d in [DType::F32, DType::F16, DType::BF16, DType::F8E5M2, DType::F64] {
        let operand = |of: &[f64], period: usize| {
            let v: Vec<Scalar> = (0..N).map(|i| Scalar::from_f64(d, of[i / period % of.len()])).collect();
            tensor(d, &v)
        };
        let pairs = [operand(&NUMBERS, 12), operand(&NUMBERS, 1)];
        let (all, no_nan) = (&pairs[1..], [operand(&NUMBERS[1..], 1)]);
        use UnaryOp::*;
        let unary = |f: fn(&UnaryOp) -> bool| -> Vec<_> {
            let ops = UnaryOp::ALL.iter().filter(|o| f(o));
            ops.map(|o| (format!("{} {d}", o.name()), ScalarFn::unary(*o))).collect()
        };
        let tests = unary(|o| matches!(o, IsNan | IsInf));
        let exponential = unary(|o| matches!(o, Exp | Sinh | Cosh));
        let others = unary(|o| !matches!(o, Not | IsNan | IsInf | Exp | Sinh | Cosh));
        for (functions, args) in [(tests, all), (exponential, &no_nan), (others, all)] {
            wrong.extend(check_by(&gpus, &functions, args, agrees_beyond_numbers));
        }
        use BinaryOp::*;
        for ops in [&[Add, Sub, Mul, Div, Rem, Mod, Pow, Min, Max][..], &[Eq, Ne, Lt, Le, Gt, Ge]] {
            let named = |o: &BinaryOp| (format!("{} {d}", o.name()), ScalarFn::binary(*o));
            let functions: Vec<_> = ops.iter().map(named).collect();
            wrong.extend(check_by(&gpus, &functions, &pairs, agrees_beyond_numbers));
        }
        for to in floats().filter(|t| t.bits() >= 16) {
            let function = [(format!("cast {d} to {to}"), ScalarFn::cast(to))];
            wrong.extend(check_by(&gpus, &function, all, agrees_beyond_numbers));
        }
    }
    none_wrong(wrong);
}

/// Expressions that are 0 for finite numbers but not for NaN and infinities, which a driver must not simplify
/// to 0.
#[test]
fn zeros_that_are_none_beyond_numbers() {
    const NUMBERS: [f64; 9] =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0, -2.5, 1e30, -1e-30];
    let (gpus, mut wrong) = (gpus(), vec![]);
    for d in [DType::F32, DType::F16, DType::BF16] {
        let v: Vec<Scalar> = (0..N).map(|i| Scalar::from_f64(d, NUMBERS[i % NUMBERS.len()])).collect();
        let mut functions = vec![];
        for op in [BinaryOp::Mul, BinaryOp::Div, BinaryOp::Add, BinaryOp::Sub] {
            let mut add = |name: String, nodes: Vec<ScalarNode>| functions.push((name, ScalarFn { nodes }));
            let name = op.name();
            for c in [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                let nodes = vec![ScalarNode::Arg(0), ScalarNode::Const(Scalar::from_f64(d, c))];
                for (a, b) in [(0, 1), (1, 0)] {
                    let mut nodes = nodes.clone();
                    nodes.push(ScalarNode::Binary(op, a, b));
                    add(format!("{name} x {c} ({a}, {b}) {d}"), nodes);
                }
            }
            add(format!("{name} x x {d}"), vec![ScalarNode::Arg(0), ScalarNode::Binary(op, 0, 0)]);
            let negated = ScalarNode::Unary(UnaryOp::Neg, 0);
            for (a, b) in [(0, 1), (1, 0)] {
                let nodes = vec![ScalarNode::Arg(0), negated.clone(), ScalarNode::Binary(op, a, b)];
                add(format!("{name} x −x ({a}, {b}) {d}"), nodes);
            }
            let reciprocal = ScalarNode::Unary(UnaryOp::Recip, 0);
            add(
                format!("{name} x 1/x {d}"),
                vec![ScalarNode::Arg(0), reciprocal, ScalarNode::Binary(op, 0, 1)],
            );
        }
        wrong.extend(check_by(&gpus, &functions, &[tensor(d, &v)], agrees_beyond_numbers));
    }
    none_wrong(wrong);
}

#[test]
fn operators_of_integers_and_bools() {
    let (gpus, mut wrong) = (gpus(), vec![]);
    for d in DType::ALL.iter().copied().filter(|d| !d.is_float()) {
        let (a, b) = if d == DType::Bool {
            let t = |p: usize| {
                let v: Vec<Scalar> = (0..N).map(|i| Scalar::bool((i / p).is_multiple_of(2))).collect();
                tensor(d, &v)
            };
            (t(1), t(2))
        } else {
            (integers(d, 8, 12), integers(d, 9, 1))
        };
        let unary: Vec<(String, ScalarFn)> = UnaryOp::ALL
            .iter()
            .map(|o| (format!("{} {d}", o.name()), ScalarFn::unary(*o)))
            .filter(|(_, f)| f.types(&[d]).is_ok_and(|t| t.last() == Some(&d)))
            .collect();
        wrong.extend(check(&gpus, &unary, std::slice::from_ref(&a), true));
        let (compare, binary): (Vec<_>, Vec<_>) = BinaryOp::ALL
            .iter()
            .map(|o| (format!("{} {d}", o.name()), ScalarFn::binary(*o)))
            .filter(|(_, f)| f.types(&[d, d]).is_ok())
            .partition(|(_, f)| d != DType::Bool && f.types(&[d, d]).unwrap().last() == Some(&DType::Bool));
        wrong.extend(check(&gpus, &compare, &[a.clone(), b.clone()], true));
        wrong.extend(check(&gpus, &binary, &[a, b], true));
    }
    none_wrong(wrong);
}

#[test]
fn casts_between_all_types() {
    let (gpus, mut wrong) = (gpus(), vec![]);
    let fractions: Vec<f64> =
        [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, 1e-8, 6e-5, 65504.0, 65519.0, 448.0, 464.0]
            .into_iter()
            .chain([465.0, 57344.0, 61440.0, 3e9, 0.0009765625, 2.0f64.powi(-9), 2.0f64.powi(-17), 5.0, 7.0])
            .collect();
    // Values beyond the ranges of 32-bit and 64-bit integers.
    let large = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -2147483648.0,
        4294967296.0,
        -3e9,
        1e10,
        1e19,
        1e20,
        -1e20,
    ];
    let large: Vec<f64> = fractions.iter().copied().chain(large).collect();
    for (from, whole) in DType::ALL.iter().flat_map(|d| [(*d, false), (*d, true)]) {
        let x = match from.class() {
            Class::Float if whole => operands(from, 10, &large, 300.0),
            Class::Float => operands(from, 10, &fractions, 300.0),
            Class::Bool => tensor(from, &(0..N).map(|i| Scalar::bool(i % 3 == 0)).collect::<Vec<_>>()),
            _ => integers(from, 11, 1),
        };
        for to in DType::ALL.iter().copied().filter(|to| to.is_float() != whole) {
            // Casts to integers and bools are also compared for NaN, infinities and numbers that do not fit.
            wrong.extend(check(
                &gpus,
                &[(format!("cast {from} to {to}"), ScalarFn::cast(to))],
                std::slice::from_ref(&x),
                true,
            ));
        }
    }
    none_wrong(wrong);
}

#[test]
fn bits_as_other_types() {
    let (gpus, mut wrong) = (gpus(), vec![]);
    for from in DType::ALL.iter().copied().filter(|d| d.bits() >= 8 && *d != DType::Bool && *d != DType::F64)
    {
        let x = if from.is_float() { operands(from, 12, &EDGES, 9.0) } else { integers(from, 13, 1) };
        for to in DType::ALL.iter().copied() {
            if to.bits() == from.bits() && to != DType::Bool && to != DType::F64 {
                let f = ScalarFn { nodes: vec![ScalarNode::Arg(0), ScalarNode::Bitcast(to, 0)] };
                wrong.extend(check(&gpus, &[(format!("{from} as {to}"), f)], std::slice::from_ref(&x), true));
            }
        }
    }
    none_wrong(wrong);
}

/// A guarded, strided, packed load and a packed store over a symbolic number of elements.
#[test]
fn packed_neighbours_of_a_symbolic_length() {
    let d = DType::I8;
    let n = 29;
    let mut case = Case::new(&[("n", n)]);
    let len = Poly::sym("n");
    let x = case.typed(d, std::slice::from_ref(&len), TensorKind::Input(0));
    let y = case.typed(d, std::slice::from_ref(&len), TensorKind::Output(0));
    // y[i] = i ≥ 3 ? x[i - 3] + x[n - 1 - i] : 7
    let mut body = Body::default();
    let i = body.push(Expr::Index(v(0)), DType::I32);
    let three = body.push(Expr::Const(Scalar::from_i64(DType::I32, 3)), DType::I32);
    let guard = body.push(Expr::Binary(BinaryOp::Ge, i, three), DType::Bool);
    let a = body.push(Expr::Load { tensor: x, offset: v(0) - 3, guard: Some(guard) }, d);
    let b = body.push(Expr::Load { tensor: x, offset: &(&len - 1) - &v(0), guard: None }, d);
    let sum = body.push(Expr::Binary(BinaryOp::Add, a, b), d);
    let seven = body.push(Expr::Const(Scalar::from_i64(d, 7)), d);
    let value = body.push(Expr::Select(guard, sum, seven), d);
    let stores = vec![Store { tensor: y, offset: v(0), value, guard: None, combine: None }];
    let kernel = Kernel { family: Family::Map(Map { elements: len }), body, stores, nodes: vec![] };
    let e = case.with_context(|cx| emit(&kernel, cx)).unwrap_or_else(|e| panic!("{e}"));
    let given: Vec<i8> = (0..n as i8).map(|i| i.wrapping_mul(37)).collect();
    let data = [(x, given.iter().map(|v| *v as u8).collect::<Vec<u8>>())].into();
    for g in gpus() {
        let got = execute(&g, &prepare_bytes(&g, &case, &e, &data), y);
        for i in 0..n as usize {
            let want = if i >= 3 { given[i - 3].wrapping_add(given[n as usize - 1 - i]) } else { 7 };
            assert_eq!(got[i] as i8, want, "element {i} on {}", g.name);
        }
    }
}

/// Results of 8, 16, 32 and 64 bits in one kernel, over few elements and over lengths that are not multiples of
/// the widest vector.
#[test]
fn results_of_several_widths_in_one_kernel() {
    use DType::*;
    let types = [Bool, I8, BF16, F16, I32, F32, I64, F64];
    let gpus = gpus();
    for n in [1, 6, 7, 10] {
        for (i, a) in types.iter().enumerate() {
            for b in &types[i..] {
                let (mut case, mut body) = (Case::new(&[]), Body::default());
                let extent = [c(n)];
                let x = case.typed(I64, &extent, TensorKind::Input(0));
                let load = body.push(Expr::Load { tensor: x, offset: v(0), guard: None }, I64);
                let mut stores = vec![];
                for (k, d) in [*a, *b, Bool].into_iter().enumerate() {
                    let tensor = case.typed(d, &extent, TensorKind::Output(k));
                    let value = if d == I64 { load } else { body.push(Expr::Cast(d, load), d) };
                    stores.push(Store { tensor, offset: v(0), value, guard: None, combine: None });
                }
                let outputs: Vec<_> = stores.iter().map(|s| s.tensor).collect();
                let family = Family::Map(Map { elements: c(n) });
                let kernel = Kernel { family, body, stores, nodes: vec![] };
                let given: Vec<i64> = (0..n).map(|i| i * 7 % 5 - 2).collect();
                let data = [(x, given.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())].into();
                let emitted = case
                    .with_context(|cx| emit(&kernel, cx))
                    .unwrap_or_else(|e| panic!("{a} and {b} of {n} elements: {e}"));
                for g in &gpus {
                    let prepared = prepare_bytes(g, &case, &emitted, &data);
                    for (tensor, d) in outputs.iter().zip([*a, *b, Bool]) {
                        let bytes = execute(g, &prepared, *tensor);
                        let got = storage::decode(d, &bytes, n as usize);
                        for (y, x) in got.iter().zip(&given) {
                            let want = if d == Bool { f64::from(u8::from(*x != 0)) } else { *x as f64 };
                            assert_eq!(y.as_f64(), want, "{d} of {a} and {b} of {n} elements on {}", g.name);
                        }
                    }
                }
            }
        }
    }
}

/// A product in a narrow type is compared with the same product read from memory.
#[test]
fn narrow_values_are_rounded_before_they_are_compared() {
    let gpus = gpus();
    for d in [DType::F16, DType::BF16] {
        let (mut case, mut body) = (Case::new(&[]), Body::default());
        let n = 61;
        let [x, s] = [0, 1].map(|i| case.typed(d, &[c(n)], TensorKind::Input(i)));
        let out = case.typed(DType::Bool, &[c(n)], TensorKind::Output(0));
        let load = |body: &mut Body, tensor| body.push(Expr::Load { tensor, offset: v(0), guard: None }, d);
        let (a, b) = (load(&mut body, x), load(&mut body, s));
        // Numbers that the type can represent.
        let rounded = |v: &[f64]| {
            let v: Vec<Scalar> = v.iter().map(|x| Scalar::from_f64(d, *x)).collect();
            tensor(d, &v).scalars().unwrap()
        };
        let factor = rounded(&[1.05])[0];
        let by = body.push(Expr::Const(factor), d);
        let product = body.push(Expr::Binary(BinaryOp::Mul, a, by), d);
        let value = body.push(Expr::Binary(BinaryOp::Eq, product, b), DType::Bool);
        let stores = vec![Store { tensor: out, offset: v(0), value, guard: None, combine: None }];
        let kernel = Kernel { family: Family::Map(Map { elements: c(n) }), body, stores, nodes: vec![] };
        let emitted = case.with_context(|cx| emit(&kernel, cx)).unwrap_or_else(|e| panic!("{e}"));
        let given = rounded(&(0..n).map(|i| 0.37 * i as f64 - 3.0).collect::<Vec<_>>());
        let products: Vec<f64> = given.iter().map(|g| g.as_f64() * factor.as_f64()).collect();
        let stored = rounded(&products);
        let bytes = |v: &[Scalar]| tensor(d, v).bytes().unwrap().to_vec();
        let data = [(x, bytes(&given)), (s, bytes(&stored))].into();
        for g in &gpus {
            let bytes = execute(g, &prepare_bytes(g, &case, &emitted, &data), out);
            let got = storage::decode(DType::Bool, &bytes, n as usize);
            assert!(got.iter().all(|y| y.bits == 1), "{d}: {got:?} on {}", g.name);
        }
    }
}
