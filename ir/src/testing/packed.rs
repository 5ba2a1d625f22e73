//! Random graphs that move and overwrite tensors of 8 and 16 bits, several elements of which share a word of memory.

use super::{Config, Made, Maker, Rng, random_tensor};
use crate::build::Builder;
use crate::dtype::{Class, DType};
use crate::eval::Env;
use crate::graph::{Border, Graph, TensorType, Value};
use crate::op::{GatherAxis, Op, ReduceOp};
use crate::poly::{Dim, Poly};
use crate::scalar::{BinaryOp, Scalar, UnaryOp};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

const SYMBOLS: [&str; 3] = ["n", "m", "k"];
const TYPES: [DType; 7] =
    [DType::F16, DType::BF16, DType::I8, DType::U8, DType::Bool, DType::I16, DType::U16];
/// The bound of floats, which keeps all of them exact multiples of a quarter.
const MOST: f64 = 8.0;

/// A graph of slices, concatenations, padding, scatters and selections, most of them with symbolic extents from 1 to
/// 9, and inputs for it, all determined by the seed. All values are exact, so that any two correct evaluations give
/// the same bits.
pub fn random_packed(seed: u64) -> (Graph, BTreeMap<String, Tensor>) {
    let mut graph = Graph::new();
    let mut rng = Rng::new(seed ^ 0x7061_636b);
    let mut env = Env::default();
    for s in SYMBOLS {
        env.set(s, 1 + rng.below(9) as i64);
    }
    let config = Config { max_elements: 2048, ..Config::default() };
    let b = Builder::new(&mut graph, "packed");
    let mut made = Maker { b, rng, env, config: &config, values: vec![], sized: vec![] };
    let mut inputs = BTreeMap::new();
    let dtype = made.rng.pick(&TYPES).copied().unwrap_or(DType::F16);
    for i in 0..2 + made.rng.below(3) {
        // The first two bind the symbols.
        let shape = match i {
            0 => vec![Dim::sym("n"), Dim::sym("m")],
            1 => vec![Dim::sym("k")],
            _ => (0..1 + made.rng.below(3)).map(|_| made.length()).collect(),
        };
        let dtype = if made.rng.one_in(3) { made.rng.pick(&TYPES).copied().unwrap_or(dtype) } else { dtype };
        let extents: Vec<usize> = shape.iter().map(|d| made.extent(d)).collect();
        let name = format!("x{i}");
        made.values.push(made.b.graph.add_input(&name, TensorType::new(dtype, shape)));
        inputs.insert(name, exact(&random_tensor(&mut made.rng, dtype, extents)));
    }
    let wanted = 2 + made.rng.below(9);
    let (mut operators, mut tries) = (0, 0);
    while operators < wanted && tries < 12 * wanted {
        tries += 1;
        if let Ok(v) = made.packed()
            && made.accept(v)
        {
            operators += 1;
        }
    }
    let (mut rng, values) = (made.rng, made.values);
    let mut outputs: Vec<Value> = values.last().copied().into_iter().collect();
    for _ in 0..3 {
        if let Some(v) = rng.pick(&values).copied()
            && !outputs.contains(&v)
        {
            outputs.push(v);
        }
    }
    for (i, value) in outputs.into_iter().enumerate() {
        graph.outputs.push(Border { name: format!("y{i}").into(), value });
    }
    graph.remove_dead();
    (graph, inputs)
}

/// Rounds to multiples of a quarter.
fn exact(t: &Tensor) -> Tensor {
    if !t.dtype.is_float() {
        return t.clone();
    }
    let v: Vec<Scalar> = (t.scalars().unwrap_or_default().iter())
        .map(|s| Scalar::from_f64(t.dtype, (s.as_f64() * 4.0).round() / 4.0))
        .collect();
    Tensor::from_scalars(t.dtype, t.shape.clone(), &v)
}

impl Maker<'_> {
    fn length(&mut self) -> Dim {
        match self.rng.below(6) {
            i @ 0..3 => Dim::sym(SYMBOLS[i]),
            3 => Dim::from(1 + self.rng.below(3)),
            _ => Dim::from([1i64, 2, 3, 4, 5, 7][self.rng.below(6)]),
        }
    }

    /// An extent when all symbols are 1.
    fn least(d: &Dim) -> i64 {
        d.eval_syms(&|_| Some(1)).unwrap_or(1)
    }

    /// Whether an extent is at least 1 for all sizes, checked at the corners of their range.
    fn positive(d: &Dim) -> bool {
        (0..1 << SYMBOLS.len()).all(|set: usize| {
            let large = |s: &str| SYMBOLS.iter().position(|t| *t == s).is_some_and(|i| set >> i & 1 == 1);
            d.eval_syms(&|s| Some(if large(s) { 9 } else { 1 })).is_some_and(|n| n >= 1)
        })
    }

    /// The start and the length of a window along an axis.
    fn window(&mut self, extent: &Dim) -> (Poly, Dim) {
        // An extent that is a sum results from concatenation or padding; the window is one of its terms.
        if self.rng.one_in(2) {
            for s in SYMBOLS {
                let rest = extent - &Dim::sym(s);
                if extent.symbols().iter().any(|t| **t == *s) && Self::positive(&rest) {
                    let one = Dim::sym(s);
                    return match self.rng.below(4) {
                        0 => (Poly::ZERO, one),
                        1 => (rest, one),
                        2 => (Poly::ZERO, rest),
                        _ => (one, rest),
                    };
                }
            }
        }
        let start = self.rng.below(Self::least(extent).max(1) as usize) as i64;
        let most = Self::least(extent) - start;
        let end = if most > 1 && self.rng.one_in(2) { self.rng.below(most as usize) as i64 } else { 0 };
        match self.rng.below(3) {
            // A window of constant length in a symbolic extent.
            0 => (Poly::constant(start), Dim::from(most.max(1))),
            _ => (Poly::constant(start), &(extent - start) - end),
        }
    }

    fn packed(&mut self) -> Made {
        let n = self.values.len();
        let i = if self.rng.one_in(2) {
            n.saturating_sub(1 + self.rng.below(2.min(n)))
        } else {
            self.rng.below(n)
        };
        let x = *self.values.get(i).ok_or("nothing to read")?;
        let dtype = self.b.dtype(x);
        match self.rng.below(20) {
            0..3 => {
                let axis = self.axis(x)?;
                let extent = self.b.shape(x)[axis].clone();
                let (start, len) = self.window(&extent);
                self.b.slice(x, axis, &start, 1, &len)
            }
            3 | 4 => {
                let axis = self.axis(x)?;
                let none = vec![Dim::ZERO; self.b.rank(x)];
                let (mut before, mut after) = (none.clone(), none);
                if self.rng.one_in(2) {
                    before[axis] = self.length();
                }
                if self.rng.one_in(2) {
                    after[axis] = self.length();
                }
                self.b.pad(x, &before, &after, Scalar::from_i64(dtype, self.rng.below(2) as i64))
            }
            5..8 => self.concat(x, dtype),
            8..11 => self.overwritten(x, dtype),
            11 => self.scattered(x, dtype),
            12 => {
                let mask = self.mask(x)?;
                let other = self.like(x, dtype)?;
                self.b.select(mask, x, other)
            }
            13 => self.cast(x, dtype),
            14 | 15 => self.combined(x, dtype),
            16 => {
                let axis = self.axis(x)?;
                let op = if self.rng.one_in(2) { ReduceOp::Max } else { ReduceOp::Min };
                self.b.reduce(op, x, &[axis], self.rng.one_in(2))
            }
            17 if dtype.is_float() => self.product(x, dtype),
            18 => {
                let axis = self.axis(x)?;
                let extent = self.b.shape(x)[axis].clone();
                self.b.slice(x, axis, &(&extent - &Poly::ONE), -1, &extent)
            }
            _ => self.view(x, dtype),
        }
    }

    /// Another value of the same shape, or a constant for all elements.
    fn like(&mut self, x: Value, dtype: DType) -> Made {
        let shape = self.b.shape(x);
        let same = |v: &&Value| self.b.dtype(**v) == dtype && self.b.shape(**v) == shape && **v != x;
        let others: Vec<Value> = self.values.iter().filter(same).copied().collect();
        match self.rng.pick(&others) {
            Some(v) => Ok(*v),
            None => self.b.full(&shape, Scalar::from_i64(dtype, 1)),
        }
    }

    fn mask(&mut self, x: Value) -> Made {
        let zero = self.b.binary_scalar(BinaryOp::Gt, x, 0.0);
        let shape = self.b.shape(x);
        let same = |v: &&Value| self.b.dtype(**v) == DType::Bool && self.b.shape(**v) == shape;
        let masks: Vec<Value> = self.values.iter().filter(same).copied().collect();
        match self.rng.pick(&masks) {
            Some(v) => Ok(*v),
            None if self.b.dtype(x) == DType::Bool => Ok(x),
            None => zero,
        }
    }

    /// `x` with other values in a window: by concatenating the parts, or by writing over it.
    fn overwritten(&mut self, x: Value, dtype: DType) -> Made {
        let axis = self.axis(x)?;
        let shape = self.b.shape(x);
        let (start, len) = self.window(&shape[axis]);
        let mut want = shape.clone();
        want[axis] = len.clone();
        let same = |v: &&Value| self.b.dtype(**v) == dtype && self.b.shape(**v) == want;
        let fits: Vec<Value> = self.values.iter().filter(same).copied().collect();
        let new = match self.rng.pick(&fits) {
            Some(v) => *v,
            None if self.rng.one_in(2) => {
                let part = self.b.slice(x, axis, &start, 1, &len)?;
                self.combined(part, dtype)?
            }
            None => self.b.full(&want, Scalar::from_i64(dtype, 1))?,
        };
        let new = if self.b.shape(new) == want { new } else { self.b.expand(new, &want)? };
        if self.rng.one_in(2) {
            let mut index: Vec<GatherAxis> =
                (0..shape.len()).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
            index[axis] = GatherAxis::Affine(&start + &Poly::var(axis));
            return self.b.push(Op::Scatter { reduce: None, index }, &[x, new]);
        }
        let end = &start + &len;
        let rest = &shape[axis] - &end;
        let mut parts = vec![];
        if !start.is(0) {
            parts.push(self.b.slice(x, axis, &Poly::ZERO, 1, &start)?);
        }
        parts.push(new);
        if !rest.is(0) {
            parts.push(self.b.slice(x, axis, &end, 1, &rest)?);
        }
        self.b.concat(&parts, axis)
    }

    /// Updates at positions that come from data.
    fn scattered(&mut self, x: Value, dtype: DType) -> Made {
        let axis = self.axis(x)?;
        let shape = self.b.shape(x);
        let combine = [None, Some(ReduceOp::Max), Some(ReduceOp::Min)][self.rng.below(3)];
        // Each position occurs at most once; some are out of range.
        let count = 1 + self.rng.below(5);
        let mut places: Vec<i64> = (-3..8).collect();
        for i in (1..places.len()).rev() {
            places.swap(i, self.rng.below(i + 1));
        }
        // Negative positions may coincide with positive ones, so only the latter are kept.
        places.retain(|p| *p >= 0);
        places.truncate(count);
        let mut want = shape.clone();
        want[axis] = Dim::from(places.len());
        let at = self.b.constant(Tensor::from_i64(vec![places.len()], &places));
        let updates = self.b.full(&want, Scalar::from_i64(dtype, self.rng.below(2) as i64))?;
        let mut index: Vec<GatherAxis> = (0..shape.len()).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
        index[axis] = GatherAxis::Data { input: 2, at: vec![Poly::var(axis)] };
        self.b.push(Op::Scatter { reduce: combine, index }, &[x, updates, at])
    }

    fn cast(&mut self, x: Value, dtype: DType) -> Made {
        let to = match dtype.class() {
            // Negative numbers do not convert to unsigned integers.
            Class::Float => [DType::F16, DType::BF16, DType::F32, DType::I8, DType::I16][self.rng.below(5)],
            _ => [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::Bool][self.rng.below(6)],
        };
        if to == DType::Bool && dtype != DType::Bool {
            return self.b.binary_scalar(BinaryOp::Ne, x, 0.0);
        }
        self.b.cast(x, to)
    }

    fn combined(&mut self, x: Value, dtype: DType) -> Made {
        use BinaryOp::*;
        let ops: &[BinaryOp] = if dtype == DType::Bool { &[And, Or, Xor] } else { &[Add, Sub, Max, Min] };
        let op = ops[self.rng.below(ops.len())];
        let y = self.like(x, dtype)?;
        let y = self.b.binary(op, x, y)?;
        self.bounded(y, dtype)
    }

    fn bounded(&mut self, x: Value, dtype: DType) -> Made {
        if !dtype.is_float() {
            return Ok(x);
        }
        let x = self.b.binary_scalar(BinaryOp::Min, x, MOST)?;
        self.b.binary_scalar(BinaryOp::Max, x, -MOST)
    }

    /// A product with small integers.
    fn product(&mut self, x: Value, dtype: DType) -> Made {
        let k = self.b.shape(x).last().and_then(Dim::as_const).ok_or("a free extent")? as usize;
        let n = 1 + self.rng.below(9);
        let w: Vec<Scalar> =
            (0..k * n).map(|_| Scalar::from_i64(DType::F32, self.rng.below(4) as i64 - 1)).collect();
        let w = self.b.constant(Tensor::from_scalars(DType::F32, vec![k, n], &w));
        let x = self.b.cast(x, DType::F32)?;
        let y = self.b.matmul(x, w)?;
        let y = self.bounded(y, DType::F32)?;
        let y = if self.rng.one_in(3) { self.b.unary(UnaryOp::Neg, y)? } else { y };
        self.b.cast(y, dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::evaluate;

    #[test]
    fn graphs_are_valid_and_their_values_exact() {
        let (mut names, mut types) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
        for seed in 0..300 {
            let (g, inputs) = random_packed(seed);
            crate::verify::verify(&g).unwrap_or_else(|e| panic!("seed {seed}: {}\n{g}", e.join("\n")));
            names.extend(g.node_ids().map(|n| g.node(n).op.name()));
            for t in evaluate(&g, &inputs).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}")) {
                types.insert(t.dtype.name());
                let whole = |s: &Scalar| (s.as_f64() * 4.0).fract() == 0.0;
                assert!(!t.dtype.is_float() || t.scalars().unwrap().iter().all(whole), "seed {seed}\n{g}");
            }
        }
        for op in ["map", "view", "reduce", "contract", "concat", "scatter"] {
            assert!(names.contains(op), "no seed makes `{op}`");
        }
        assert!(TYPES.iter().all(|t| types.contains(t.name())), "{types:?}");
    }
}
