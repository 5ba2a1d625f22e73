//! Random small graphs with inputs, for comparing two ways of computing the same graph.
//!
//! The seed determines everything, on every platform. Values have moderate magnitudes, and all operators are
//! continuous (no rounding, no comparison of computed floats), so that two correct ways of computing differ only by
//! rounding.

mod bounded;
mod chains;
mod loops;
mod packed;
mod widened;

pub use bounded::{Bounded, bounded};
pub use chains::random_chain;
pub use loops::random_loop;
pub use packed::random_packed;
pub use widened::{Wide, towards};

use crate::build::Builder;
use crate::dtype::DType;
use crate::eval::Env;
use crate::graph::{Border, Graph, TensorType, Value};
use crate::op::{Contract, GatherAxis, NormKind, Op, ReduceOp};
use crate::poly::{Dim, Poly};
use crate::scalar::{BinaryOp, Scalar, ScalarFn, ScalarNode, UnaryOp};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// The operators that [`random_graph`] may use.
#[derive(Clone, Debug)]
pub struct Config {
    /// The approximate number of operators.
    pub operators: usize,
    /// The maximum number of elements of a tensor.
    pub max_elements: usize,
    /// Whether to use symbolic dimensions `n` and `m`.
    pub symbolic: bool,
    /// Whether to use i64, i32 and bool beside f32.
    pub integers: bool,
    /// Whether to use Softmax and Norm.
    pub raised: bool,
    /// Whether to use sizes that are computed at run time.
    pub sized: bool,
    /// The maximum number of outputs; up to two more may have computed sizes.
    pub outputs: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            operators: 12,
            max_elements: 4096,
            symbolic: true,
            integers: true,
            raised: true,
            sized: true,
            outputs: 3,
        }
    }
}

/// A random number generator: the `i`-th number is a hash of the seed and `i`.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator with a stream of its own for each seed.
    pub fn new(seed: u64) -> Rng {
        let mut r = Rng { state: seed ^ 0x5851_f42d_4c95_7f2d };
        r.bits();
        r
    }
    /// 64 random bits (splitmix64).
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }
    /// True with probability `1/n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    /// A uniform number in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    /// A random element of a slice; `None` if it is empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}

/// Uniform numbers in -2..2 for floats, small integers, or random bools.
pub fn random_tensor(rng: &mut Rng, dtype: DType, shape: Vec<usize>) -> Tensor {
    let n = shape.iter().product();
    let v: Vec<Scalar> = (0..n)
        .map(|_| match dtype {
            DType::Bool => Scalar::bool(rng.one_in(2)),
            d if d.is_float() => Scalar::from_f64(d, f64::from(rng.unit() * 2.0)),
            d if d.class() == crate::dtype::Class::Uint => Scalar::from_i64(d, rng.below(4) as i64),
            d => Scalar::from_i64(d, rng.below(4) as i64 - 2),
        })
        .collect();
    Tensor::from_scalars(dtype, shape, &v)
}

/// A random graph and inputs for it, both determined by the seed.
pub fn random_graph(seed: u64, config: &Config) -> (Graph, BTreeMap<String, Tensor>) {
    let mut graph = Graph::new();
    let mut rng = Rng::new(seed);
    let mut env = Env::default();
    env.set("n", 1 + rng.below(6) as i64);
    env.set("m", 1 + rng.below(9) as i64);
    let b = Builder::new(&mut graph, "random");
    let mut made = Maker { b, rng, env, config, values: vec![], sized: vec![] };
    let inputs = made.inputs();
    let mut tries = 0;
    let mut operators = 0;
    while operators < config.operators && tries < config.operators * 8 {
        tries += 1;
        made.b.origin = vec![format!("op{operators}").into()];
        // An operator that does not fit is discarded.
        if let Ok(v) = made.operator()
            && made.accept(v)
        {
            operators += 1;
        }
    }
    let (mut rng, values, sized) = (made.rng, made.values, made.sized);
    let mut outputs = vec![];
    outputs.extend(values.last().copied());
    for _ in 1..config.outputs {
        if let Some(v) = rng.pick(&values).copied()
            && rng.one_in(2)
            && !outputs.contains(&v)
        {
            outputs.push(v);
        }
    }
    outputs.extend(sized);
    for (i, value) in outputs.into_iter().enumerate() {
        graph.outputs.push(Border { name: format!("y{i}").into(), value });
    }
    graph.remove_dead();
    (graph, inputs)
}

struct Maker<'a> {
    b: Builder<'a>,
    rng: Rng,
    env: Env,
    config: &'a Config,
    /// The values that operators may read.
    values: Vec<Value>,
    /// Outputs whose size is computed at run time.
    sized: Vec<Value>,
}

type Made = Result<Value, String>;

impl Maker<'_> {
    fn extent(&self, d: &Dim) -> usize {
        self.env.dim(d).unwrap_or(usize::MAX)
    }
    fn numel(&self, shape: &[Dim]) -> usize {
        shape.iter().fold(1usize, |n, d| n.saturating_mul(self.extent(d)))
    }
    fn accept(&mut self, v: Value) -> bool {
        let fits = self.numel(&self.b.shape(v)) <= self.config.max_elements && self.b.rank(v) <= 6;
        if fits && !self.values.contains(&v) {
            self.values.push(v);
        }
        fits
    }

    fn dim(&mut self) -> Dim {
        let fixed = [1i64, 2, 3, 4, 5, 7, 8, 13];
        match self.rng.below(12) {
            0 if self.config.symbolic => Dim::sym("n"),
            1 if self.config.symbolic => Dim::sym("m"),
            i => Dim::from(fixed[i % fixed.len()]),
        }
    }

    fn inputs(&mut self) -> BTreeMap<String, Tensor> {
        let mut given = BTreeMap::new();
        let mut add = |made: &mut Self, dtype: DType, shape: Vec<Dim>| {
            let name = format!("x{}", given.len());
            let extents: Vec<usize> = shape.iter().map(|d| made.extent(d)).collect();
            let v = made.b.graph.add_input(&name, TensorType::new(dtype, shape));
            given.insert(name, random_tensor(&mut made.rng, dtype, extents));
            made.values.push(v);
        };
        if self.config.symbolic {
            // The shape of this input binds both symbols.
            add(self, DType::F32, vec![Dim::sym("n"), Dim::sym("m")]);
        }
        for _ in 0..1 + self.rng.below(3) {
            let rank = 1 + self.rng.below(4);
            let shape: Vec<Dim> = (0..rank).map(|_| self.dim()).collect();
            let shape =
                if self.numel(&shape) > self.config.max_elements { vec![Dim::from(7i64)] } else { shape };
            let dtype = match self.rng.below(8) {
                0 if self.config.integers => DType::I64,
                1 if self.config.integers => DType::I32,
                2 if self.config.integers => DType::Bool,
                _ => DType::F32,
            };
            add(self, dtype, shape);
        }
        given
    }

    fn operator(&mut self) -> Made {
        // Recent values are picked more often, so that graphs are deep.
        let n = self.values.len();
        let i = if self.rng.one_in(2) {
            n.saturating_sub(1 + self.rng.below(3.min(n)))
        } else {
            self.rng.below(n)
        };
        let x = *self.values.get(i).ok_or("nothing to read")?;
        let dtype = self.b.dtype(x);
        if dtype != DType::F32 && self.rng.one_in(2) {
            return self.integer(x, dtype);
        }
        match self.rng.below(16) {
            0..3 if dtype == DType::F32 => self.unary(x),
            0..6 => self.binary(x, dtype),
            6 if dtype == DType::F32 => self.body(x),
            6..10 => self.view(x, dtype),
            10..12 => self.reduce(x, dtype),
            12 if dtype == DType::F32 => self.contract(x),
            13 if dtype == DType::F32 && self.config.raised => self.raised(x),
            14 => self.gather(x),
            15 if self.config.sized && self.rng.one_in(2) => self.chosen(x),
            _ => self.concat(x, dtype),
        }
    }

    fn axis(&mut self, x: Value) -> Result<usize, String> {
        match self.b.rank(x) {
            0 => Err("a scalar".into()),
            r => Ok(self.rng.below(r)),
        }
    }

    fn unary(&mut self, x: Value) -> Made {
        use UnaryOp::*;
        let ops = [Neg, Abs, Tanh, Sigmoid, Sin, Cos, Erf, Atan];
        self.b.unary(ops[self.rng.below(ops.len())], x)
    }

    fn binary(&mut self, x: Value, dtype: DType) -> Made {
        use BinaryOp::*;
        let ops: &[BinaryOp] = match dtype {
            DType::Bool => &[And, Or, Xor],
            _ => &[Add, Sub, Mul, Max, Min],
        };
        let op = ops[self.rng.below(ops.len())];
        let partners: Vec<Value> = self
            .values
            .iter()
            .copied()
            .filter(|v| {
                let (a, b) = (self.b.shape(x), self.b.shape(*v));
                let pairs = a.iter().rev().zip(b.iter().rev());
                self.b.dtype(*v) == dtype && pairs.into_iter().all(|(a, b)| a == b || a.is(1) || b.is(1))
            })
            .collect();
        let y = match self.rng.pick(&partners) {
            Some(y) if !self.rng.clone().one_in(4) => *y,
            _ => {
                let s = random_tensor(&mut self.rng, dtype, vec![]);
                self.b.constant(s)
            }
        };
        let r = if self.rng.one_in(2) { self.b.binary(op, x, y)? } else { self.b.binary(op, y, x)? };
        // Products of products grow, so they are bounded by tanh.
        if dtype == DType::F32 && op == Mul { self.b.unary(UnaryOp::Tanh, r) } else { Ok(r) }
    }

    /// A body of several nodes: a leaky clamp that also uses the position.
    fn body(&mut self, x: Value) -> Made {
        let shape = self.b.shape(x);
        let mut f = ScalarFn::default();
        let a = f.push(ScalarNode::Arg(0));
        let zero = f.push(ScalarNode::Const(Scalar::from_f64(DType::F32, 0.0)));
        let slope = f.push(ScalarNode::Const(Scalar::from_f64(DType::F32, f64::from(self.rng.unit()))));
        let c = f.push(ScalarNode::Binary(BinaryOp::Lt, a, zero));
        let small = f.push(ScalarNode::Binary(BinaryOp::Mul, a, slope));
        let mut r = f.push(ScalarNode::Select(c, small, a));
        if !shape.is_empty() && self.rng.one_in(2) {
            let i = Poly::var(self.rng.below(shape.len())).modulo(&Poly::constant(3), &shape);
            let i = f.push(ScalarNode::Index(i));
            let i = f.push(ScalarNode::Cast(DType::F32, i));
            r = f.push(ScalarNode::Binary(BinaryOp::Sub, r, i));
        }
        if f.nodes.len() as u32 != r + 1 {
            return Err("not the last node".into());
        }
        self.b.map(f, &[x])
    }

    fn view(&mut self, x: Value, dtype: DType) -> Made {
        let s = self.b.shape(x);
        let axis = self.axis(x)?;
        let extent = s[axis].clone();
        match self.rng.below(8) {
            0 | 1 => {
                let mut perm: Vec<usize> = (0..s.len()).collect();
                for i in (1..perm.len()).rev() {
                    perm.swap(i, self.rng.below(i + 1));
                }
                self.b.transpose(x, &perm)
            }
            2 if axis + 1 < s.len() => {
                let mut to = s.clone();
                let inner = to.remove(axis + 1);
                to[axis] = &to[axis] * &inner;
                self.b.reshape(x, to)
            }
            3 => {
                let c = extent.as_const().unwrap_or(1);
                let f = [2, 3, 5].into_iter().find(|f| c % f == 0 && c > *f).ok_or("prime")?;
                let mut to = s.clone();
                to[axis] = Dim::from(c / f);
                to.insert(axis + 1, Dim::from(f));
                self.b.reshape(x, to)
            }
            4 => {
                // A reversed axis.
                self.b.slice(x, axis, &(&extent - &Poly::ONE), -1, &extent)
            }
            5 => {
                let c = extent.as_const().filter(|c| *c > 2).ok_or("too short to slice")?;
                let start = self.rng.below(c as usize - 1) as i64;
                let step = 1 + self.rng.below(2) as i64;
                self.b.slice(x, axis, &Poly::constant(start), step, &Dim::from((c - start + step - 1) / step))
            }
            6 => {
                let pads =
                    |r: &mut Rng| (0..s.len()).map(|_| Dim::from(r.below(3) as i64)).collect::<Vec<_>>();
                let (before, after) = (pads(&mut self.rng), pads(&mut self.rng));
                let fill = Scalar::from_i64(dtype, self.rng.below(2) as i64);
                self.b.pad(x, &before, &after, fill)
            }
            _ => {
                let to = [vec![Dim::from(2 + self.rng.below(2))], s].concat();
                self.b.expand(x, &to)
            }
        }
    }

    fn reduce(&mut self, x: Value, dtype: DType) -> Made {
        let axis = self.axis(x)?;
        let mut axes = vec![axis];
        if self.rng.one_in(3) {
            axes.push(self.axis(x)?);
        }
        let keep = self.rng.one_in(2);
        match (self.rng.below(4), dtype) {
            (0, DType::F32) => self.b.reduce(ReduceOp::Max, x, &axes, keep),
            (1, DType::I64 | DType::I32) => {
                let op = if self.rng.one_in(2) { ReduceOp::Max } else { ReduceOp::Min };
                self.b.push(Op::ArgReduce { op, axis, last: self.rng.one_in(2) }, &[x])
            }
            (2, DType::F32 | DType::I64) => {
                let (exclusive, reverse) = (self.rng.one_in(2), self.rng.one_in(2));
                let c = self.b.push(Op::PrefixScan { op: ReduceOp::Sum, axis, exclusive, reverse }, &[x])?;
                if dtype == DType::F32 { self.b.unary(UnaryOp::Tanh, c) } else { Ok(c) }
            }
            (_, DType::F32) => {
                axes.dedup();
                self.b.mean(x, &axes)
            }
            (_, DType::Bool) => self.b.reduce(ReduceOp::Min, x, &axes, keep),
            _ => self.b.reduce(ReduceOp::Sum, x, &axes, keep),
        }
    }

    /// The sum of the elements where an input is positive, of floats divided by how many there may be. The selection may
    /// itself be an output. It is made by an input rather than by a computed value, because inputs are exact and rounding
    /// cannot change the selection.
    fn chosen(&mut self, x: Value) -> Made {
        let borders: Vec<Value> = self.b.graph.inputs.iter().map(|b| b.value).collect();
        let by = *self.rng.pick(&borders).ok_or("no inputs")?;
        let all: Dim = self.b.shape(by).iter().product();
        let by = self.b.reshape(by, vec![all.clone()])?;
        let holds = match self.b.dtype(by) {
            DType::Bool => by,
            _ => self.b.binary_scalar(BinaryOp::Gt, by, 0.0)?,
        };
        let ones = self.b.cast(holds, DType::I32)?;
        let op = Op::PrefixScan { op: ReduceOp::Sum, axis: 0, exclusive: false, reverse: false };
        let running = self.b.push(op, &[ones])?;
        let (last, fill) = (vec![&all - 1], Some(Scalar::from_i64(DType::I32, 0)));
        let count = self.b.push(Op::View { shape: vec![], index: last, fill }, &[running])?;
        let n = self.b.computed("chosen", count, all.clone());
        let place = self.b.binary_scalar(BinaryOp::Sub, running, 1.0)?;
        let nowhere = self.b.int(DType::I32, i64::from(i32::MAX));
        let to = self.b.select(holds, place, nowhere)?;
        let places = self.b.iota(std::slice::from_ref(&all), Poly::var(0), DType::I32)?;
        let index = vec![GatherAxis::Data { input: 1, at: vec![Poly::var(0)] }];
        let places = self.b.push(Op::Place { shape: vec![n], index }, &[places, to])?;
        let flat = self.b.shape(x).iter().product();
        let flat = self.b.reshape(x, vec![flat])?;
        let found = self.b.take(flat, places, 0)?;
        if self.rng.one_in(3) && self.sized.len() < 2 {
            self.sized.push(found);
        }
        let dtype = self.b.dtype(x);
        let op = if dtype == DType::Bool { ReduceOp::Max } else { ReduceOp::Sum };
        let sum = self.b.reduce(op, found, &[0], self.rng.one_in(2))?;
        if dtype != DType::F32 {
            return Ok(sum);
        }
        // A long sum is off by more than what follows it, such as a sine, may be.
        let most = self.b.dim_scalar(&(&all + 1), DType::F32)?;
        self.b.binary(BinaryOp::Div, sum, most)
    }

    fn contract(&mut self, x: Value) -> Made {
        let rank = self.b.rank(x);
        let s = self.b.shape(x);
        let k = s.last().cloned().ok_or("a scalar")?;
        let r = match k.as_const() {
            Some(c) if self.rng.one_in(2) => {
                // With a constant matrix.
                let n = 1 + self.rng.below(9);
                let w = random_tensor(&mut self.rng, DType::F32, vec![c as usize, n]);
                let w = self.b.constant(w);
                self.b.matmul(x, w)?
            }
            _ if rank >= 2 => {
                // With itself, batched over the leading axes.
                let batch: Vec<u8> = (0..rank as u8 - 2).collect();
                let l = |p: u8| [batch.clone(), vec![20 + p, 25]].concat();
                let out =
                    [batch.clone(), if self.rng.one_in(2) { vec![20, 21] } else { vec![21, 20] }].concat();
                self.b.push(Op::Contract(Contract { a: l(0), b: l(1), out }), &[x, x])?
            }
            _ => return Err("nothing to multiply with".into()),
        };
        self.b.unary(UnaryOp::Tanh, r)
    }

    fn raised(&mut self, x: Value) -> Made {
        let axis = self.axis(x)?;
        if self.rng.one_in(2) {
            return self.b.push(Op::Softmax { axis, log: self.rng.one_in(3) }, &[x]);
        }
        let kind = if self.rng.one_in(2) { NormKind::Layer } else { NormKind::Rms };
        let mut axes = vec![axis];
        if self.rng.one_in(3) {
            axes.push(self.axis(x)?);
            axes.sort_unstable();
            axes.dedup();
        }
        self.b.push(Op::Norm { kind, axes, epsilon: 0.1f32.to_bits() }, &[x])
    }

    fn gather(&mut self, x: Value) -> Made {
        let axis = self.axis(x)?;
        // Some indices are out of range, which clamps them.
        let n = 1 + self.rng.below(6);
        let v: Vec<i64> = (0..n).map(|_| self.rng.below(12) as i64 - 5).collect();
        let indices = self.b.constant(Tensor::from_i64(vec![n], &v));
        self.b.take(x, indices, axis)
    }

    fn concat(&mut self, x: Value, dtype: DType) -> Made {
        let axis = self.axis(x)?;
        let s = self.b.shape(x);
        let partners: Vec<Value> = self
            .values
            .iter()
            .copied()
            .filter(|v| {
                let t = self.b.ty(*v);
                t.dtype == dtype
                    && t.rank() == s.len()
                    && (0..s.len()).all(|d| d == axis || t.shape[d] == s[d])
            })
            .collect();
        let y = *self.rng.pick(&partners).ok_or("no partner")?;
        self.b.concat(&[x, y], axis)
    }

    fn integer(&mut self, x: Value, dtype: DType) -> Made {
        match (dtype, self.rng.below(3)) {
            (_, 0) => self.b.cast(x, DType::F32),
            (DType::Bool, _) => {
                let cast = self.b.cast(x, DType::I32)?;
                self.b.binary_scalar(BinaryOp::Add, cast, 3.0)
            }
            (_, 1) => self.b.binary_scalar(BinaryOp::Mod, x, 3.0),
            _ => self.b.binary_scalar(BinaryOp::Lt, x, 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::evaluate;
    use crate::lower::lower_raised;
    use crate::verify::verify;

    #[test]
    fn random_graphs_are_valid_print_and_evaluate() {
        let mut names = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let (g, inputs) = random_graph(seed, &Config::default());
            verify(&g).unwrap_or_else(|e| panic!("seed {seed}: {}\n{g}", e.join("\n")));
            names.extend(g.node_ids().map(|n| g.node(n).op.name()));
            let want = evaluate(&g, &inputs).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
            for t in &want {
                assert!(
                    t.to_f32s().unwrap().iter().all(|v| v.is_finite() && v.abs() < 1e6),
                    "seed {seed}\n{g}"
                );
            }
            let text = g.to_string();
            let back = crate::text::parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            assert_eq!(back.to_string(), text, "seed {seed}");
            if !text.contains("const hash") {
                let again = evaluate(&back, &inputs).unwrap();
                let bytes =
                    |ts: &[Tensor]| ts.iter().map(|t| t.bytes().unwrap().to_vec()).collect::<Vec<_>>();
                assert_eq!(bytes(&again), bytes(&want), "seed {seed}");
            }
            let mut lowered = g.clone();
            lower_raised(&mut lowered);
            verify(&lowered).unwrap_or_else(|e| panic!("seed {seed}: {}\n{lowered}", e.join("\n")));
            for (a, b) in evaluate(&lowered, &inputs).unwrap().iter().zip(&want) {
                for (x, y) in a.to_f32s().unwrap().iter().zip(b.to_f32s().unwrap()) {
                    assert!((x - y).abs() <= 1e-3 * y.abs().max(1.0), "seed {seed}: {x} for {y}\n{g}");
                }
            }
        }
        for op in ["map", "view", "reduce", "contract", "softmax", "norm", "concat", "gather", "prefix_scan"]
        {
            assert!(names.contains(op), "no seed makes `{op}`");
        }
    }

    /// Text with a few changed bytes is rejected or parsed; nothing panics.
    #[test]
    fn mutated_text_never_panics() {
        let config = Config { operators: 8, max_elements: 256, ..Config::default() };
        let (mut parsed, mut valid, mut evaluated) = (0, 0, 0);
        for seed in 0..60 {
            let (g, inputs) = random_graph(seed, &config);
            let text = g.to_string();
            let mut rng = Rng::new(seed);
            for _ in 0..40 {
                let mut bytes = text.clone().into_bytes();
                for _ in 0..1 + rng.below(2) {
                    let (to, from) = (rng.below(bytes.len()), rng.below(bytes.len()));
                    bytes[to] = bytes[from];
                }
                let Ok(g) = crate::text::parse(&String::from_utf8(bytes).unwrap()) else { continue };
                parsed += 1;
                if verify(&g).is_err() {
                    continue;
                }
                valid += 1;
                let small = |t: &TensorType| t.numel().as_const().is_none_or(|n| n < 1 << 16);
                if g.node_ids().all(|n| g.node(n).outputs.iter().all(small)) {
                    evaluated += usize::from(evaluate(&g, &inputs).is_ok());
                }
            }
        }
        assert!(parsed > 200 && valid > 50 && evaluated > 20, "{parsed} {valid} {evaluated}");
    }
}
