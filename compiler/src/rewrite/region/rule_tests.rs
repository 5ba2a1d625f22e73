//! For each rule: an expression where it fires, one where it must not, and an evaluation of every term that it
//! equates.

use super::*;
use crate::rewrite::extract::whole;
use crate::rewrite::rules::{approx, exact, raise, share};
use wgfc_ir::tensor::Tensor;
use wgfc_ir::{Builder, DType, Dim, Poly, Scalar, UnaryOp};

/// The rule, an expression where it fires, and one where it must not.
///
/// Inputs: `x y p` f32[3, 7] (`p` positive), `v` f32[7], `r` f32[3, 1], `z` f32[7, 5], `h` f16[3, 7], `s` f32[],
/// `i j` i32[3, 7], `b` bool[3, 7]. Constants: `w u` f32[7, 5], `c d` f32[7], `n` f32[5], `q` f32[3, 7], `m` f32[3, 1],
/// `m3` f32[3], `e` 0.01 as f16; numbers are f32[]. A view is `[shape|index|fill]`.
pub(super) const CASES: &[(&str, &str, &str)] = &[
    ("orient-add", "(add c x)", "(add x c)"),
    ("orient-mul", "(mul r x)", "(mul x y)"),
    ("add-zero", "(add x 0)", "(add v (sub q q))"),
    ("sub-zero", "(sub x 0)", "(sub 0 x)"),
    ("mul-one", "(mul x 1)", "(mul x 1.5)"),
    ("div-one", "(div x 1)", "(div 1 x)"),
    ("mul-minus-one", "(mul x -1)", "(mul x 1)"),
    ("neg-neg", "(neg (neg x))", "(neg (abs x))"),
    ("add-neg", "(add x (neg y))", "(add (neg x) y)"),
    ("sub-neg", "(sub x (neg v))", "(sub (neg x) v)"),
    ("abs-neg", "(abs (neg x))", "(neg (abs x))"),
    ("sum-of-neg", "(reduce.sum 1 (neg x))", "(reduce.max 1 (neg x))"),
    ("not-not", "(not (not b))", "(not b)"),
    ("max-max", "(max (max x 0) 0)", "(max (max x 0) 1)"),
    ("min-min", "(min (min x v) v)", "(min (min x v) y)"),
    ("pow-one", "(pow p 1)", "(pow p 2)"),
    ("div-power-of-2", "(div x 8)", "(div x 7)"),
    ("one-div", "(div 1 p)", "(div 2 p)"),
    ("select-same", "(select b x x)", "(select b x y)"),
    ("cast-same", "(cast f32 x)", "(cast f16 x)"),
    ("cast-widened", "(cast i32 (cast f32 h))", "(cast f32 (cast f16 x))"),
    (
        "view-view",
        "(view [3,7|%1,%0] (view [7,3|%1,%0] x))",
        "(view [3,7|%0-1,%1|0] (view [3,7|%0-1,%1|1] x))",
    ),
    ("view-identity", "(view [3,7|%0,%1] x)", "(view [3,7|%0,6-%1] x)"),
    ("mul-after-view", "(view [7,3|%1,%0] (mul x 0.37))", "(view [7,3|%1,%0|2] (mul x 0.37))"),
    (
        "mul-before-view",
        "(mul (view [5,3|%1,%0] (contract mk,kn->mn x w)) 3)",
        "(mul (view [7,3|%1,%0] x) 3)",
    ),
    (
        "mul-before-view",
        "(mul (view [5,3|%1,%0] (contract mk,kn->mn x w)) m3)",
        "(mul (view [7,3|%1,%0] x) m3)",
    ),
    ("rms-cast", "(cast f16 (norm.rms 1 0.01 (cast f32 h)))", "(cast f16 (norm.rms 1 0.01 x))"),
    (
        "layer-cast",
        "(cast f16 (norm.layer 1 0.01 (cast f32 h)))",
        "(cast i32 (norm.layer 1 0.01 (cast f32 h)))",
    ),
    ("softmax-cast", "(cast f16 (softmax 1 (cast f32 h)))", "(cast f16 (softmax 1 x))"),
    (
        "shared-operand",
        "(mul (contract mk,kn->mn x w) (contract mk,kn->mn x u))",
        "(mul (contract mk,kn->mn x w) (contract mk,kn->mn x z))",
    ),
    (
        "shared-operand",
        "(mul (add (contract mk,kn->mn x w) n) (contract mk,kn->mn x u))",
        "(mul (contract mk,kn->mn x w) (contract mk,kn->mn y w))",
    ),
    (
        "shared-operand",
        "(mul (contract nk,mk->nm (view [5,7|%1,%0] w) x) (contract nk,mk->nm (view [5,7|%1,%0] u) x))",
        "(mul (contract kn,mk->nm w x) (contract kn,mk->nm u y))",
    ),
    ("pow-two", "(pow x 2)", "(pow p 3)"),
    ("div-const", "(div x c)", "(div x p)"),
    ("recip-sqrt", "(recip (sqrt p))", "(sqrt (recip p))"),
    ("div-sqrt", "(div x (sqrt p))", "(div (sqrt p) x)"),
    ("mul-recip", "(mul x (recip p))", "(mul x (rsqrt p))"),
    ("pow-half", "(pow p 0.5)", "(pow p 0.25)"),
    ("pow-minus-half", "(pow p -0.5)", "(pow p 0.5)"),
    ("pow-minus-one", "(pow p -1)", "(pow p 1)"),
    ("mul-mul", "(mul (mul x c) 3)", "(mul (mul x y) 3)"),
    ("add-add", "(add (add (contract mk,kn->mn x z) n) n)", "(add (add x c) d)"),
    ("add-add", "(add (add x 2) 0.5)", "(add (add x 2) -1)"),
    ("sub-add", "(add (sub (contract mk,kn->mn x z) n) n)", "(add (sub x c) d)"),
    ("sub-add", "(add (sub x 2) -0.5)", "(add (sub x 2) 1)"),
    ("mul-of-add", "(mul (add (contract mk,kn->mn x z) n) n)", "(mul (add x c) d)"),
    ("mul-of-sub", "(mul (sub (contract mk,kn->mn x z) n) n)", "(mul (sub x c) d)"),
    ("sum-of-mul", "(reduce.sum 1 (mul x 3))", "(reduce.sum 1 (mul x c))"),
    ("sum-of-product", "(reduce.sum 0 (contract mk,kn->mn x z))", "(reduce.max 0 (contract mk,kn->mn x z))"),
    (
        "sum-of-product",
        "(reduce.sum 1 (contract mk,kn->mn x z))",
        "(reduce.sum 1 (mul (contract mk,kn->mn x z) n))",
    ),
    (
        "sum-of-product",
        "(reduce.sum 1 (contract bm,bn->mbn x y))",
        "(reduce.sum 1 (abs (contract bm,bn->mbn x y)))",
    ),
    ("scale-left", "(contract mk,kn->mn (mul x 3) z)", "(contract mk,kn->mn (mul x c) z)"),
    ("scale-right", "(contract mk,kn->nm x (mul z 3))", "(contract mk,kn->nm x (add z 3))"),
    ("scale-into-b", "(mul (contract mk,kn->mn x w) n)", "(mul (contract mk,kn->mn x z) n)"),
    ("scale-into-a", "(mul (contract kn,mk->mn w x) n)", "(mul (contract kn,mk->mn w x) m)"),
    ("scale-to-a", "(mul (contract mk,kn->mn x z) 3)", "(mul (contract mk,kn->mn x z) n)"),
    ("scale-to-b", "(mul (contract mk,kn->mn x z) 3)", "(mul (contract mk,kn->mn x z) n)"),
    ("mean", "(mul (reduce.sum 1 x) 0.14285714285714285)", "(mul (reduce.sum 1 x) 0.15)"),
    (
        "softmax",
        "(div (exp (sub x (reduce.max 1 x))) (reduce.sum 1 (exp (sub x (reduce.max 1 x)))))",
        "(div (exp (sub x (reduce.max 1 x))) (reduce.sum 0 (exp (sub x (reduce.max 1 x)))))",
    ),
    ("softmax-bare", "(div (exp x) (reduce.sum 0 (exp x)))", "(div (exp x) (reduce.sum 0,1 (exp x)))"),
    (
        "log-softmax",
        "(sub (sub x (reduce.max 1 x)) (log (reduce.sum 1 (exp (sub x (reduce.max 1 x))))))",
        "(sub (sub x (reduce.max 0 x)) (log (reduce.sum 1 (exp (sub x (reduce.max 0 x))))))",
    ),
    ("log-of-softmax", "(log (softmax 1 x))", "(exp (softmax 1 x))"),
    (
        "rms-norm",
        "(mul x (rsqrt (add (div (reduce.sum 1 (mul x x)) 7) 0.001)))",
        "(mul x (rsqrt (add (div (reduce.sum 1 (mul x x)) 6) 0.001)))",
    ),
    (
        "layer-norm",
        "(mul (sub x (div (reduce.sum 1 x) 7)) (rsqrt (add (div (reduce.sum 1 (mul (sub x (div (reduce.sum 1 x) 7)) (sub x (div (reduce.sum 1 x) 7)))) 7) 0.001)))",
        "(mul (sub x (div (reduce.sum 1 x) 7)) (rsqrt (add (div (reduce.sum 0 (mul (sub x (div (reduce.sum 1 x) 7)) (sub x (div (reduce.sum 1 x) 7)))) 3) 0.001)))",
    ),
    (
        "rms-norm-narrow",
        "(mul h (rsqrt (add (cast f16 (div (reduce.sum 1 (cast f32 (mul h h))) 7)) e)))",
        "(mul h (rsqrt (add (cast f16 (div (reduce.sum 1 (cast f32 (mul h h))) 6)) e)))",
    ),
    (
        "layer-norm-narrow",
        "(mul (sub h (cast f16 (div (reduce.sum 1 (cast f32 h)) 7))) (rsqrt (add (cast f16 (div (reduce.sum 1 (cast f32 (mul (sub h (cast f16 (div (reduce.sum 1 (cast f32 h)) 7))) (sub h (cast f16 (div (reduce.sum 1 (cast f32 h)) 7)))))) 7)) e)))",
        "(mul (sub h (cast f16 (div (reduce.sum 1 (cast f32 h)) 7))) (rsqrt (add (cast f16 (div (reduce.sum 1 (cast f32 (mul (sub h (cast f16 (div (reduce.sum 1 (cast f32 h)) 7))) (sub h (cast f16 (div (reduce.sum 1 (cast f32 h)) 7)))))) 6)) e)))",
    ),
];

fn numbers(seed: u64, n: usize) -> Vec<f64> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s = s.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (s >> 40) as f64 / (1u64 << 24) as f64 * 4.0 - 2.0
    };
    (0..n).map(|_| next()).collect()
}

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> Tensor {
    let seed = name.bytes().fold(7, |h, b| h * 31 + u64::from(b));
    let values: Vec<Scalar> = numbers(seed, shape.iter().product())
        .into_iter()
        .map(|v| match (name, dtype) {
            ("p", _) => Scalar::from_f64(dtype, v.abs() + 0.5),
            (_, DType::Bool) => Scalar::bool(v > 0.0),
            (_, d) if d.is_int() => Scalar::from_i64(d, (v * 50.0) as i64),
            _ => Scalar::from_f64(dtype, v),
        })
        .collect();
    Tensor::from_scalars(dtype, shape.to_vec(), &values)
}

fn dtype(s: &str) -> DType {
    s.parse().unwrap()
}

/// Builds the expressions of [`CASES`].
pub(super) struct Expr<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    graph: Graph,
    named: BTreeMap<String, Value>,
    inputs: BTreeMap<String, Tensor>,
}

impl<'a> Expr<'a> {
    fn graph(text: &'a str) -> (Graph, BTreeMap<String, Tensor>) {
        let e = Expr::parsed(text);
        (e.graph, e.inputs)
    }

    /// The graph, and the names of its inputs and constants.
    pub(super) fn named(text: &'a str) -> (Graph, BTreeMap<Value, String>) {
        let e = Expr::parsed(text);
        (e.graph, e.named.into_iter().map(|(name, v)| (v, name)).collect())
    }

    fn parsed(text: &'a str) -> Expr<'a> {
        let mut tokens = vec![];
        let mut rest = text.trim_start();
        while let Some(c) = rest.chars().next() {
            let end = match c {
                '(' | ')' => 1,
                '[' => rest.find(']').unwrap() + 1,
                _ => rest.find([' ', '(', ')']).unwrap_or(rest.len()),
            };
            tokens.push(&rest[..end]);
            rest = rest[end..].trim_start();
        }
        let mut e =
            Expr { tokens, at: 0, graph: Graph::new(), named: BTreeMap::new(), inputs: BTreeMap::new() };
        let v = e.value();
        assert_eq!(e.at, e.tokens.len(), "{text}");
        e.graph.outputs.push(wgfc_ir::Border { name: "out".into(), value: v });
        e.graph.remove_dead();
        e
    }

    fn next(&mut self) -> &'a str {
        self.at += 1;
        self.tokens[self.at - 1]
    }

    fn operand(&mut self, name: &str) -> Value {
        if let Some(v) = self.named.get(name) {
            return *v;
        }
        let (dtype, shape): (DType, &[usize]) = match name {
            "x" | "y" | "p" | "q" => (DType::F32, &[3, 7]),
            "v" | "c" | "d" => (DType::F32, &[7]),
            "r" | "m" => (DType::F32, &[3, 1]),
            "m3" => (DType::F32, &[3]),
            "z" | "w" | "u" => (DType::F32, &[7, 5]),
            "n" => (DType::F32, &[5]),
            "s" => (DType::F32, &[]),
            "h" => (DType::F16, &[3, 7]),
            "i" | "j" => (DType::I32, &[3, 7]),
            "b" => (DType::Bool, &[3, 7]),
            "e" => return Builder::new(&mut self.graph, "test").scalar(DType::F16, 0.01),
            number => {
                let v = number.parse().unwrap_or_else(|_| panic!("operand `{number}`"));
                return Builder::new(&mut self.graph, "test").scalar(DType::F32, v);
            }
        };
        let t = tensor(name, dtype, shape);
        let v = if ["w", "u", "c", "d", "n", "q", "m", "m3"].contains(&name) {
            Builder::new(&mut self.graph, "test").constant(t)
        } else {
            let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
            self.inputs.insert(name.to_owned(), t);
            self.graph.add_input(name, wgfc_ir::TensorType::new(dtype, dims))
        };
        self.named.insert(name.to_owned(), v);
        v
    }

    fn value(&mut self) -> Value {
        let t = self.next();
        if t != "(" {
            return self.operand(t);
        }
        let head = self.next();
        let axes = |s: &str| s.split(',').map(|a| a.parse().unwrap()).collect::<Vec<usize>>();
        let op = match head {
            "view" => Some(view(self.next())),
            "contract" => {
                let spec = self.next();
                let (from, out) = spec.split_once("->").unwrap();
                let (a, b) = from.split_once(',').unwrap();
                Some(Op::Contract(wgfc_ir::Contract { a: a.into(), b: b.into(), out: out.into() }))
            }
            "softmax" => Some(Op::Softmax { axis: axes(self.next())[0], log: false }),
            "norm.rms" | "norm.layer" => {
                let kind = if head == "norm.rms" { wgfc_ir::NormKind::Rms } else { wgfc_ir::NormKind::Layer };
                let axes = axes(self.next());
                let e: f32 = self.next().parse().unwrap();
                Some(Op::Norm { kind, axes, epsilon: e.to_bits() })
            }
            _ => head.strip_prefix("reduce.").map(|name| {
                let op = wgfc_ir::ReduceOp::ALL.into_iter().find(|r| r.name() == name).unwrap();
                Op::Reduce { op, axes: axes(self.next()) }
            }),
        };
        let to = (head == "cast").then(|| dtype(self.next()));
        let mut args = vec![];
        while self.tokens[self.at] != ")" {
            args.push(self.value());
        }
        self.at += 1;
        let mut b = Builder::new(&mut self.graph, "test");
        match (op, to) {
            (Some(op), _) => b.push(op, &args),
            (None, Some(t)) => b.map(wgfc_ir::ScalarFn::cast(t), &args),
            (None, None) if head == "select" => b.map(wgfc_ir::ScalarFn::select(), &args),
            _ => match (UnaryOp::from_name(head), wgfc_ir::BinaryOp::from_name(head)) {
                (Some(op), _) => b.unary(op, args[0]),
                (_, Some(op)) => b.binary(op, args[0], args[1]),
                _ => panic!("head `{head}`"),
            },
        }
        .unwrap_or_else(|e| panic!("{head}: {e}"))
    }
}

fn view(spec: &str) -> Op {
    let parts: Vec<&str> = spec.trim_matches(['[', ']']).split('|').collect();
    let polys = |s: &str| s.split(',').map(|p| Poly::parse(p).unwrap()).collect::<Vec<_>>();
    let fill = parts.get(2).map(|f| Scalar::from_f64(DType::F32, f.parse().unwrap()));
    Op::View { shape: polys(parts[0]), index: polys(parts[1]), fill }
}

/// The rules that fire when `rules` run to saturation, and a graph for every term of every class that the result
/// needs.
pub(super) fn variants(graph: &Graph, rules: &[Rule]) -> (BTreeMap<String, usize>, Vec<Graph>) {
    let members = depth_first(graph);
    let form = Form::new(graph, members, true);
    let Loaded { mut g, terms, ids } = load(graph, &form, &Default::default()).unwrap();
    let mut fired = BTreeMap::new();
    assert!(!run(&mut g, rules, form.nodes.len(), &mut fired).unwrap(), "does not saturate");
    let roots: Vec<Id> = form.roots.iter().map(|r| ids[*r]).collect();
    let base = extract(&g, &roots);
    let (_, needed) = whole(&g, &roots, &base).unwrap();
    let mut out = vec![];
    for id in needed {
        for node in &g[id].nodes {
            let mut chosen = base.clone();
            chosen.insert(id, node.clone().map_children(|c| g.find(c)));
            if whole(&g, &roots, &chosen).is_none() {
                continue;
            }
            let solution = assemble(&g, &form, &chosen, &terms, &ids).unwrap();
            let mut variant = graph.clone();
            replay(&mut variant, &form, &solution).unwrap();
            variant.remove_dead();
            wgfc_ir::verify::verify(&variant).unwrap();
            out.push(variant);
        }
    }
    (fired, out)
}

fn check(rule: &Rule, text: &str, same_bits: bool) -> bool {
    let (graph, inputs) = Expr::graph(text);
    let want = wgfc_ir::eval::evaluate(&graph, &inputs).unwrap();
    let (fired, variants) = variants(&graph, std::slice::from_ref(rule));
    for v in variants {
        let got = wgfc_ir::eval::evaluate(&v, &inputs).unwrap();
        let (a, b) = (got[0].scalars().unwrap(), want[0].scalars().unwrap());
        // Two units in the last place of f16.
        let near = if want[0].dtype == DType::F16 { 2e-3 } else { 2e-5 };
        for (a, b) in a.iter().zip(&b) {
            let (x, y) = (a.as_f64(), b.as_f64());
            let close = x == y || (!same_bits && (x - y).abs() <= near * (1.0 + y.abs()));
            assert!(close, "{}: {text}: {x} for {y}\n{v}", rule.name);
        }
    }
    !fired.is_empty()
}

#[test]
fn rules_fire_where_they_should_and_keep_the_values() {
    let all = [(exact(), true), (share(1 << 20), true), (approx(), false), (raise(), false)];
    let mut known = std::collections::BTreeSet::new();
    for (rules, same_bits) in all {
        for rule in rules {
            let name = rule.name.to_string();
            let cases: Vec<_> = CASES.iter().filter(|c| c.0 == name).collect();
            assert!(!cases.is_empty(), "no case for `{name}`");
            known.insert(name.clone());
            for (_, fires, not) in cases {
                assert!(check(&rule, fires, same_bits), "`{name}` does not fire on {fires}");
                assert!(!check(&rule, not, same_bits), "`{name}` fires on {not}");
            }
        }
    }
    let unknown: Vec<&str> = CASES.iter().map(|c| c.0).filter(|name| !known.contains(*name)).collect();
    assert!(unknown.is_empty(), "cases of rules that are none: {unknown:?}");
}

#[test]
fn all_rules_together_saturate_and_keep_the_values() {
    let rules: Vec<Rule> = [exact(), share(1 << 20), approx(), raise()].into_iter().flatten().collect();
    for (_, fires, not) in CASES {
        for text in [fires, not] {
            let (graph, inputs) = Expr::graph(text);
            let want = wgfc_ir::eval::evaluate(&graph, &inputs).unwrap();
            for v in variants(&graph, &rules).1 {
                let got = wgfc_ir::eval::evaluate(&v, &inputs).unwrap();
                let (a, b) = (got[0].to_f32s().unwrap(), want[0].to_f32s().unwrap());
                let close = a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 2e-3 * (1.0 + b.abs()));
                assert!(close, "{text}: {a:?} for {b:?}\n{v}");
            }
        }
    }
}

/// Chains of operators with constants, many of which cancel, keep their meaning in real numbers, up to the rounding of
/// each step.
#[test]
fn chains_with_constants_keep_their_meaning() {
    let rules: Vec<Rule> = [exact(), approx(), raise()].into_iter().flatten().collect();
    let constants = [2.0, 3.0, 255.0, 100.0, 0.5, 0.1, 1e-3, 7.0, -1.0, 1e4, 1e10, 1e-10, 1e30, 1e-30, 0.0];
    let eps = f64::from(f32::EPSILON);
    for seed in 0..1000u64 {
        let draws = numbers(seed, 16);
        let pick = |i: usize, n: usize| (((draws[i] + 2.0) / 4.0 * n as f64) as usize).min(n - 1);
        let mut text = "x".to_owned();
        let mut steps = vec![];
        for i in 0..2 + pick(0, 4) {
            let op = pick(2 * i + 1, 5);
            // Constants are repeated, so that they meet their inverses.
            let c = constants[(pick(2 * i + 2, 4) + pick(15, constants.len())) % constants.len()];
            if op == 1 && c == 0.0 {
                continue;
            }
            let name = ["mul", "div", "add", "sub", "neg"][op];
            text = if op == 4 { format!("(neg {text})") } else { format!("({name} {text} {c:?})") };
            steps.push((op, f64::from(c as f32)));
        }
        if steps.is_empty() {
            continue;
        }
        let (mut graph, inputs) = Expr::graph(&text);
        saturate(&mut graph, &rules, &Default::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let got = wgfc_ir::eval::evaluate(&graph, &inputs).unwrap()[0].to_f32s().unwrap();
        for (x, got) in inputs["x"].to_f32s().unwrap().into_iter().zip(got) {
            let (mut v, mut error, mut wide) = (f64::from(x), 0.0f64, false);
            for (op, c) in &steps {
                (v, error) = match op {
                    0 => (v * c, error * c.abs()),
                    1 => (v / c, error / c.abs()),
                    2 => (v + c, error),
                    3 => (v - c, error),
                    _ => (-v, error),
                };
                wide |= v.abs() > f64::from(f32::MAX);
                error += 2.0 * eps * v.abs() + f64::from(f32::MIN_POSITIVE);
            }
            let overflow = wide && !got.is_finite();
            assert!(overflow || (f64::from(got) - v).abs() <= error, "{text} of {x}: {got} for {v}\n{graph}");
        }
    }
}

/// Factors that cancel before, in and after products, and zeros of either sign, to which multiples can be added
/// without end.
#[test]
fn regions_with_factors_that_cancel_saturate() {
    let rules: Vec<Rule> = [exact(), approx(), raise()].into_iter().flatten().collect();
    for text in [
        "(sub (mul (div (add (contract mk,kn->mn x z) -0.0) 0.1) 0.1) 10)",
        "(sub (mul (div (add (contract mk,kn->mn x z) 0.0) 0.1) 0.1) 10)",
        "(mul (div (contract mk,kn->mn (mul x 7) (div z 7)) 7) 3)",
        "(mul (div (mul (contract mk,kn->mn (mul x 3) w) 7) 3) 0.1)",
        "(div (mul (reduce.sum 1 (mul (div x 3) 255)) 3) 255)",
        "(div (mul (contract mk,kn->mn (div (mul x 255) 0.1) z) 0.1) 255)",
    ] {
        let (mut graph, inputs) = Expr::graph(text);
        let want = wgfc_ir::eval::evaluate(&graph, &inputs).unwrap()[0].to_f32s().unwrap();
        let outcome = saturate(&mut graph, &rules, &Default::default()).unwrap();
        assert_eq!(outcome.limited, 0, "{text}: {:?}", outcome.fired);
        let got = wgfc_ir::eval::evaluate(&graph, &inputs).unwrap()[0].to_f32s().unwrap();
        assert!(want.iter().zip(&got).all(|(a, b)| (a - b).abs() < 1e-5), "{want:?} {got:?}");
    }
}

/// A wrong rule that makes two constants equal is detected.
#[test]
fn unequal_constants_in_one_class_are_an_error() {
    let wrong: Rule = egg::rewrite!("wrong"; "(mul ?x ?c)" => "?c");
    let rules: Vec<Rule> = exact().into_iter().chain(approx()).chain([wrong]).collect();
    let (mut graph, _) = Expr::graph("(mul (mul s 3) 5)");
    let e = saturate(&mut graph, &rules, &Default::default()).unwrap_err();
    assert!(e.contains("5:f32") && e.contains("15:f32") && e.contains("wrong"), "{e}");
}
