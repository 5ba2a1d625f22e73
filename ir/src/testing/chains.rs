//! Random chains of operators with constants, some followed by their inverses.

use super::{Bounded, Config, Made, Maker, Rng, bounded, random_tensor};
use crate::build::Builder;
use crate::dtype::DType;
use crate::eval::Env;
use crate::graph::{Border, Graph, TensorType, Value};
use crate::op::{Contract, NormKind, Op, ReduceOp};
use crate::poly::Dim;
use crate::scalar::{BinaryOp, Scalar, ScalarNode, UnaryOp};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// Constants that occur in models, and some of extreme magnitude.
const CONSTANTS: &[f64] = &[
    2.0, 3.0, 255.0, 100.0, 0.5, 0.1, 1e-3, 7.0, 127.5, 1e4, 0.485, 0.229, 1e-5, 6.0, 1.702, 1e9, 1e-9, 1e15,
    1e-15,
];
const INTEGERS: &[f64] = &[2.0, 3.0, 5.0, 7.0, 1.0, 100.0, 4.0];
/// The maximum permitted error relative to the largest element; results beyond it are dominated by rounding.
const MOST_OFF: f64 = 0.25;
/// The maximum permitted error of the operand of an exponential.
const MOST_BEFORE_EXP: f64 = 0.25;
const TYPES: &[DType] = &[
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F16,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U32,
];

/// A chain of operators, most of them with a constant, and inputs for it, all determined by the seed. Floats stay
/// within the range of their types, so that [`bounded`] can evaluate it; integers wrap.
pub fn random_chain(seed: u64) -> (Graph, BTreeMap<String, Tensor>) {
    let mut graph = Graph::new();
    let mut rng = Rng::new(seed ^ 0x6368_6169_6e73);
    let mut env = Env::default();
    env.set("n", 1 + rng.below(6) as i64);
    env.set("m", 1 + rng.below(9) as i64);
    let config = Config { max_elements: 512, symbolic: rng.one_in(3), ..Config::default() };
    let b = Builder::new(&mut graph, "chain");
    let mut made = Maker { b, rng, env, config: &config, values: vec![], sized: vec![] };
    let mut inputs = BTreeMap::new();
    let rank = 1 + made.rng.below(3);
    let mut shape: Vec<Dim> = (0..rank).map(|_| made.dim()).collect();
    if config.symbolic {
        shape.extend([Dim::sym("n"), Dim::sym("m")]);
    }
    if made.numel(&shape) > config.max_elements {
        shape = if config.symbolic { vec![Dim::sym("n"), Dim::sym("m")] } else { vec![Dim::from(7i64)] };
    }
    let dtype = made.rng.pick(TYPES).copied().unwrap_or(DType::F32);
    let extents: Vec<usize> = shape.iter().map(|d| made.extent(d)).collect();
    let given = random_tensor(&mut made.rng, dtype, extents);
    inputs.insert("x".to_owned(), if dtype.is_float() { in_steps(&given) } else { given });
    let x = made.b.graph.add_input("x", TensorType::new(dtype, shape));
    made.values.push(x);
    let palette: Vec<f64> = (0..2).filter_map(|_| made.rng.pick(CONSTANTS).copied()).collect();
    let length = 2 + made.rng.below(7);
    let (mut last, mut error) = (x, 0.0);
    let mut tries = 0;
    while made.values.len() <= length && tries < 10 * length {
        tries += 1;
        let Ok(next) = made.step(last, &palette) else { continue };
        if saturates(&made.b.graph.node(next.node).op) && error > MOST_BEFORE_EXP {
            continue;
        }
        let small = made.numel(&made.b.shape(next)) <= config.max_elements && made.b.rank(next) <= 6;
        if next == last || !small {
            continue;
        }
        let mut so_far = made.b.graph.clone();
        so_far.outputs.push(Border { name: "y".into(), value: next });
        let Some((off, size)) = bounded(&so_far, &inputs).ok().as_deref().and_then(largest) else { continue };
        if off <= MOST_OFF * size {
            made.values.push(next);
            (last, error) = (next, off);
        }
    }
    graph.outputs.push(Border { name: "y".into(), value: last });
    graph.remove_dead();
    (graph, inputs)
}

/// The largest error and the largest element of the only output.
fn largest(of: &[Bounded]) -> Option<(f64, f64)> {
    let b = of.first()?;
    let size = b.want.scalars()?.iter().map(|s| s.as_f64().abs()).fold(0.0, f64::max);
    Some((b.error.iter().copied().fold(0.0, f64::max), size))
}

/// Whether the operator contains an exponential, which turns an absolute error of its operand into a relative one.
fn saturates(op: &Op) -> bool {
    let exp = |n: &ScalarNode| matches!(n, ScalarNode::Unary(UnaryOp::Tanh | UnaryOp::Sigmoid, _));
    matches!(op, Op::Softmax { .. }) || matches!(op, Op::Map { body, .. } if body.nodes.iter().any(exp))
}

impl Maker<'_> {
    fn step(&mut self, x: Value, palette: &[f64]) -> Made {
        let dtype = self.b.dtype(x);
        let float = dtype.is_float();
        match self.rng.below(20) {
            0..10 => self.with_constant(x, dtype, palette),
            10 | 11 => self.view(x, dtype),
            12 if float => {
                let op = [UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Tanh, UnaryOp::Sigmoid, UnaryOp::Recip]
                    [self.rng.below(5)];
                self.b.unary(op, x)
            }
            13 => self.b.unary(UnaryOp::Neg, x),
            14 => {
                let to = if float {
                    [DType::F32, DType::F16, DType::BF16]
                } else {
                    [DType::F32, DType::I32, DType::I64]
                };
                let to = to[self.rng.below(3)];
                self.b.cast(x, to)
            }
            15 if float => self.with_weight(x, dtype),
            16 if float => {
                let axis = self.axis(x)?;
                match self.rng.below(3) {
                    0 => self.b.reduce(ReduceOp::Sum, x, &[axis], true),
                    _ => self.b.mean(x, &[axis]),
                }
            }
            17 if float => {
                let axis = self.axis(x)?;
                match self.rng.below(4) {
                    0 => self.b.push(Op::Softmax { axis, log: false }, &[x]),
                    n => {
                        let kind = if n == 1 { NormKind::Layer } else { NormKind::Rms };
                        self.b.push(Op::Norm { kind, axes: vec![axis], epsilon: 1e-3f32.to_bits() }, &[x])
                    }
                }
            }
            18 => {
                // Combines it with an earlier value of the chain.
                let shape = self.b.shape(x);
                let same = |v: &&Value| self.b.dtype(**v) == dtype && self.b.shape(**v) == shape;
                let others: Vec<Value> = self.values.iter().filter(same).copied().collect();
                let y = *self.rng.pick(&others).ok_or("no partner")?;
                let op = [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Max][self.rng.below(4)];
                self.b.binary(op, x, y)
            }
            _ => self.with_constant(x, dtype, palette),
        }
    }

    /// `x · c`, `x / c`, `x + c`, `x − c`, `c − x` or `c / x`, where `c` is one value or a vector along the last axis.
    fn with_constant(&mut self, x: Value, dtype: DType, palette: &[f64]) -> Made {
        let from = if dtype.is_float() { palette } else { INTEGERS };
        let mut c = *self.rng.pick(from).ok_or("no constant")?;
        if dtype.is_float() {
            c = match self.rng.below(6) {
                0 => 1.0 / c,
                1 => -c,
                2 => 1.0,
                _ => c,
            };
        }
        let extent = self.b.shape(x).last().and_then(Dim::as_const);
        let c = match extent {
            Some(n) if n > 1 && dtype.is_float() && self.rng.one_in(4) => {
                let v: Vec<Scalar> =
                    (0..n).map(|i| number(dtype, c * (1.0 + 0.25 * (i % 5) as f64))).collect();
                self.b.constant(Tensor::from_scalars(dtype, vec![n as usize], &v))
            }
            _ => self.b.constant(Tensor::from_scalars(dtype, vec![], &[number(dtype, c)])),
        };
        match self.rng.below(10) {
            0..3 => self.b.binary(BinaryOp::Mul, x, c),
            3..6 => self.b.binary(BinaryOp::Div, x, c),
            6 | 7 => self.b.binary(BinaryOp::Add, x, c),
            8 => self.b.binary(BinaryOp::Sub, x, c),
            _ if self.rng.one_in(2) => self.b.binary(BinaryOp::Sub, c, x),
            _ => self.b.binary(BinaryOp::Div, c, x),
        }
    }

    /// A product of the last axis with a constant matrix, which is the left or the right operand.
    fn with_weight(&mut self, x: Value, dtype: DType) -> Made {
        let k = self.b.shape(x).last().and_then(Dim::as_const).ok_or("a free extent")? as usize;
        let n = 1 + self.rng.below(9);
        let w = random_tensor(&mut self.rng, dtype, vec![k, n]);
        let w = self.b.constant(w);
        if self.b.rank(x) == 2 && self.rng.one_in(3) {
            let labels = Contract { a: vec![2, 1], b: vec![0, 2], out: vec![0, 1] };
            return self.b.push(Op::Contract(labels), &[w, x]);
        }
        self.b.matmul(x, w)
    }
}

/// Rounds to multiples of 1/64, which are 0 or normal in every type.
fn in_steps(t: &Tensor) -> Tensor {
    let v: Vec<Scalar> = (t.scalars().unwrap_or_default().iter())
        .map(|s| Scalar::from_f64(t.dtype, (s.as_f64() * 64.0).round() / 64.0))
        .collect();
    Tensor::from_scalars(t.dtype, t.shape.clone(), &v)
}

/// The nearest number of the type.
fn number(dtype: DType, v: f64) -> Scalar {
    let t = Tensor::from_scalars(dtype, vec![1], &[Scalar::from_f64(dtype, f64::from(v as f32))]);
    t.scalars().and_then(|s| s.first().copied()).unwrap_or(Scalar::from_f64(dtype, v))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::evaluate;

    #[test]
    fn chains_are_valid_and_the_evaluator_keeps_their_bounds() {
        let mut names = std::collections::BTreeSet::new();
        let mut long = 0;
        for seed in 0..300 {
            let (g, inputs) = random_chain(seed);
            crate::verify::verify(&g).unwrap_or_else(|e| panic!("seed {seed}: {}\n{g}", e.join("\n")));
            names.extend(g.node_ids().map(|n| g.node(n).op.name()));
            long += usize::from(g.node_ids().filter(|n| !matches!(g.node(*n).op, Op::Const(_))).count() > 4);
            let want = bounded(&g, &inputs).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
            let got = evaluate(&g, &inputs).unwrap();
            for (w, t) in want.iter().zip(&got) {
                w.check(t).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
            }
        }
        assert!(long > 150, "{long}");
        for op in ["map", "view", "reduce", "contract", "softmax", "norm"] {
            assert!(names.contains(op), "no seed makes `{op}`");
        }
    }
}
