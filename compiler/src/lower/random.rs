//! Random numbers: a hash of the element's position, of the drawing operator, and of the run, which needs neither
//! state nor order.
//!
//! A program that draws random numbers has two optional inputs: the `seed`, and the `offset`, such as a step number.
//! Once per run, Philox4x32-10 ([`Body::philox`]) makes the 64-bit [`run_key`] from them. Each operator flips the bits
//! of that key that are selected by its name, and pcg3d ([`Body::pcg3d`]) hashes the result together with the position
//! of each element. In a loop body the iteration number ([`Lowering::iteration`]) enters the hash.
//!
//! An operator with a seed in the model draws the same numbers in every run.

use super::{Lowering, OpError, Result, search};
use wgfc_ir::{BinaryOp, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, UnaryOp, Value};

/// The seed of a drawing operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// These bits alone.
    Given([u32; 2]),
    /// The key of the run, combined with these bits of the operator.
    Run([u32; 2]),
}

/// The seed of an operator that is identified by its name alone: FNV-1a of the name.
pub fn named_seed(name: impl Iterator<Item = u8>) -> Seed {
    let h = name.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    Seed::Run([h as u32, (h >> 32) as u32])
}

/// The optional inputs of a program that draws; an input that is left out counts as 0.
const INPUTS: [&str; 2] = ["seed", "offset"];
/// The prefix of these names, repeated as often as needed, if the model itself has such inputs.
const PREFIX: &str = "random.";

/// The purpose, `seed` or `offset`, of an optional input for random numbers.
pub fn purpose(input: &str) -> Option<&'static str> {
    INPUTS.into_iter().find(|n| *n == input.trim_start_matches(PREFIX))
}

/// The key from which the random numbers of a run are made: two `u32`. The first call in the model's own graph adds
/// the inputs; a body captures the value of the outer graph.
pub fn run_key(cx: &mut Lowering) -> Result {
    if let Some(key) = cx.run_key {
        return Ok(key);
    }
    if cx.is_inner() {
        return Err(OpError::unsupported(
            "it draws random numbers in a branch or a loop that does not see the inputs of the program",
            "give it a seed, or draw the numbers outside",
        ));
    }
    let is_taken = |name: &str| cx.graph.inputs.iter().any(|b| &*b.name == name);
    let mut prefix = String::new();
    while INPUTS.iter().any(|n| is_taken(&format!("{prefix}{n}"))) {
        prefix.insert_str(0, PREFIX);
    }
    let [seed, offset] = INPUTS.map(|name| {
        let input = cx.graph.add_optional_input(&format!("{prefix}{name}"), DType::I64, &[Dim::ONE]);
        let fill = Some(Scalar::from_i64(DType::I64, 0));
        cx.push(Op::View { shape: vec![], index: vec![Poly::ZERO], fill }, &[input])
    });
    let key = key_of(cx, seed?, offset?)?;
    cx.run_key = Some(key);
    Ok(key)
}

/// Makes the key of the draws that follow from a seed of the model, an i64 of rank 0. These draws differ by their number since
/// then, not by their names.
pub fn reseed(cx: &mut Lowering, seed: Value) -> Result<()> {
    let offset = cx.full(&[], Scalar::from_i64(DType::I64, 0))?;
    let key = key_of(cx, seed, offset)?;
    cx.run_key = Some(key);
    cx.drawn = Some(0);
    Ok(())
}

/// The seed of the next draw: its number since the model gave the key, or else a hash of its name.
pub fn next_seed(cx: &mut Lowering, name: impl Iterator<Item = u8>) -> Seed {
    match &mut cx.drawn {
        Some(n) => {
            *n = n.wrapping_add(1);
            Seed::Run([*n, 0])
        }
        None => named_seed(name),
    }
}

/// The key of random numbers, two `u32`, from a seed and an offset, i64 of rank 0, by Philox4x32-10.
fn key_of(cx: &mut Lowering, seed: Value, offset: Value) -> Result {
    let mut f = Body::default();
    let mut words = |arg| {
        let (x, by) = (f.arg(arg), f.u64(32));
        let bits = f.cast(DType::U64, x);
        let high = f.binary(BinaryOp::Shr, bits, by);
        [f.cast(DType::U32, bits), f.cast(DType::U32, high)]
    };
    let (key, [low, high]) = (words(0), words(1));
    let (none, which) = (f.u32(0), f.index(Poly::var(0)));
    let [first, second, ..] = f.philox([low, high, none, none], key);
    let zero = f.i32(0);
    let is_first = f.binary(BinaryOp::Eq, which, zero);
    f.select(is_first, first, second);
    Ok(cx.map_to(f.0, &[seed, offset], vec![2i64.into()])?)
}

/// A function that draws a number for each element of a shape, and its operands.
struct Draw {
    f: Body,
    args: Vec<Value>,
    shape: Vec<Dim>,
    /// The nodes of two words of random bits.
    bits: [u32; 2],
}

impl Draw {
    /// A draw whose function has `operands` as its first arguments.
    fn new(cx: &mut Lowering, shape: Vec<Dim>, seed: Seed, operands: &[Value]) -> Result<Draw> {
        let (mut f, mut args) = (Body::default(), operands.to_vec());
        let mut arg = |f: &mut Body, v| {
            args.push(v);
            f.arg(args.len() as u32 - 1)
        };
        let place = shape.iter().enumerate().fold(Poly::ZERO, |at, (i, d)| &(&at * d) + &Poly::var(i));
        let place = f.index(place);
        let place = f.cast(DType::U32, place);
        let [low, mut high] = match seed {
            Seed::Given(words) => words.map(|w| f.u32(w.into())),
            Seed::Run(own) => {
                let key = run_key(cx)?;
                let mut word = |i: usize| -> Result<u32> {
                    let word = cx.view(key, vec![], vec![Poly::from(i)])?;
                    let (word, own) = (arg(&mut f, word), f.u32(own[i].into()));
                    Ok(f.binary(BinaryOp::Xor, word, own))
                };
                [word(0)?, word(1)?]
            }
        };
        if let Some(step) = cx.iteration {
            let step = arg(&mut f, step);
            let step = f.cast(DType::U32, step);
            high = f.binary(BinaryOp::Add, high, step);
        }
        let [a, b, _] = f.pcg3d([place, low, high]);
        Ok(Draw { f, args, shape, bits: [a, b] })
    }

    /// Adds the map, whose result is the function's last node.
    fn finish(self, cx: &mut Lowering) -> Result {
        Ok(cx.map_to(self.f.0, &self.args, self.shape)?)
    }
}

/// Random bits as an f32 in `[0, 1)` that is exact in a type with `precision` significand bits.
fn uniform_unit(f: &mut Body, bits: u32, precision: i64) -> u32 {
    let by = f.u32(32 - precision);
    let bits = f.binary(BinaryOp::Shr, bits, by);
    let bits = f.cast(DType::F32, bits);
    let unit = f.f32(0.5f64.powi(precision as i32));
    f.binary(BinaryOp::Mul, bits, unit)
}

/// The significand bits of a float type; f64 is drawn in f32.
fn precision(dtype: DType) -> i64 {
    match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

/// Fails unless numbers can be drawn in this type.
pub fn require_float(dtype: DType) -> Result<()> {
    if dtype.is_float() && dtype.bits() >= 16 {
        return Ok(());
    }
    Err(OpError::model(format!("numbers of type {dtype}")).param("dtype"))
}

fn store(f: &mut Body, v: u32, dtype: DType) {
    if dtype != DType::F32 {
        f.cast(dtype, v);
    }
}

/// Uniformly distributed numbers from `low` to `high`, of a float type.
pub fn uniform(
    cx: &mut Lowering,
    shape: Vec<Dim>,
    dtype: DType,
    (low, high): (f64, f64),
    seed: Seed,
) -> Result {
    made_of_bits(cx, shape, dtype, seed, |f, bits| {
        let u = uniform_unit(f, bits, precision(dtype));
        let (span, low) = (f.f32(high - low), f.f32(low));
        let y = f.binary(BinaryOp::Mul, u, span);
        f.binary(BinaryOp::Add, y, low)
    })
}

/// A number computed from each element's random bits, stored as `dtype`.
fn made_of_bits(
    cx: &mut Lowering,
    shape: Vec<Dim>,
    dtype: DType,
    seed: Seed,
    number: impl FnOnce(&mut Body, u32) -> u32,
) -> Result {
    let mut d = Draw::new(cx, shape, seed, &[])?;
    let y = number(&mut d.f, d.bits[0]);
    store(&mut d.f, y, dtype);
    d.finish(cx)
}

/// Normally distributed numbers by Box and Muller: `mean + scale·√(−2 ln u)·cos(2πv)`, of a float type.
pub fn normal(
    cx: &mut Lowering,
    shape: Vec<Dim>,
    dtype: DType,
    (mean, scale): (f64, f64),
    seed: Seed,
) -> Result {
    let mut d = Draw::new(cx, shape, seed, &[])?;
    let (f, [a, b]) = (&mut d.f, d.bits);
    let u = f.unit(a);
    let log = f.unary(UnaryOp::Log, u);
    let factor = f.f32(-2.0);
    let square = f.binary(BinaryOp::Mul, log, factor);
    let radius = f.unary(UnaryOp::Sqrt, square);
    let v = uniform_unit(f, b, 24);
    let circle = f.f32(std::f64::consts::TAU);
    let angle = f.binary(BinaryOp::Mul, v, circle);
    let cos = f.unary(UnaryOp::Cos, angle);
    let (mean, scale) = (f.f32(mean), f.f32(scale));
    let y = f.binary(BinaryOp::Mul, radius, cos);
    let y = f.binary(BinaryOp::Mul, y, scale);
    let y = f.binary(BinaryOp::Add, y, mean);
    store(f, y, dtype);
    d.finish(cx)
}

/// 1 with the probability that the operand gives for each element, else 0.
pub fn bernoulli(cx: &mut Lowering, x: Value, dtype: DType, seed: Seed) -> Result {
    if !cx.dtype(x).is_float() {
        return Err(OpError::model(format!("probabilities of type {}", cx.ty(x))).operand(x));
    }
    let mut d = Draw::new(cx, cx.shape(x), seed, &[x])?;
    let f = &mut d.f;
    let u = uniform_unit(f, d.bits[0], 24);
    let p = f.arg(0);
    let p = f.cast(DType::F32, p);
    let one = f.binary(BinaryOp::Lt, u, p);
    if dtype != DType::Bool {
        f.cast(dtype, one);
    }
    d.finish(cx)
}

/// Samples classes with the probabilities `softmax(x)`: by the maximum of logits plus Gumbel noise or, for many
/// samples of many classes, by a search in the running sums of the probabilities.
///
/// `x` is `[rows, classes]`; the result, of an integer type, `[rows, samples]`.
pub fn multinomial(cx: &mut Lowering, x: Value, samples: i64, dtype: DType, seed: Seed) -> Result {
    cx.require_rank(x, 2)?;
    let mut shape = cx.shape(x);
    if samples > FEW_SAMPLES && shape[1].as_const().is_none_or(|n| n > FEW_CLASSES) {
        return searched(cx, x, samples, dtype, seed);
    }
    shape.insert(1, samples.into());
    let rows = cx.unsqueeze(x, &[1])?;
    let keys = perturbed(cx, rows, shape, seed)?;
    let at = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: 2, last: false }, &[keys])?;
    let at = cx.squeeze(at, &[2])?;
    Ok(cx.cast(at, dtype)?)
}

/// Up to this many samples or classes, each sample compares all classes.
const FEW_SAMPLES: i64 = 16;
const FEW_CLASSES: i64 = 512;

/// [`multinomial`] for many samples: the first class whose running sum of probabilities reaches a uniformly
/// distributed number.
fn searched(cx: &mut Lowering, x: Value, samples: i64, dtype: DType, seed: Seed) -> Result {
    let shape = cx.shape(x);
    let x = cx.cast(x, DType::F32)?;
    let likely = cx.push(Op::Softmax { axis: 1, log: false }, &[x])?;
    let sum = Op::PrefixScan { op: ReduceOp::Sum, axis: 1, exclusive: false, reverse: false };
    let up_to = cx.push(sum, &[likely])?;
    let all = cx.slice(up_to, 1, &(&shape[1] - 1), 1, &Dim::ONE)?;
    let mut d = Draw::new(cx, vec![shape[0].clone(), samples.into()], seed, &[all])?;
    let f = &mut d.f;
    let u = f.unit(d.bits[0]);
    let all = f.arg(0);
    f.binary(BinaryOp::Mul, u, all);
    let values = d.finish(cx)?;
    // The drawn number is above 0, so a class of probability 0 is never the first to reach it.
    let at = search::place(cx, up_to, values, false)?;
    let mut f = Body::default();
    let (at_0, last) = (f.arg(0), f.index(&shape[1] - 1));
    let at_0 = f.binary(BinaryOp::Min, at_0, last);
    f.cast(dtype, at_0);
    Ok(cx.map(f.0, &[at])?)
}

/// Logits plus Gumbel noise.
fn perturbed(cx: &mut Lowering, x: Value, shape: Vec<Dim>, seed: Seed) -> Result {
    let mut d = Draw::new(cx, shape, seed, &[x])?;
    let f = &mut d.f;
    let u = f.unit(d.bits[0]);
    let noise = f.gumbel(u);
    let logit = f.arg(0);
    let logit = f.cast(DType::F32, logit);
    f.binary(BinaryOp::Add, logit, noise);
    d.finish(cx)
}

/// Dropout: `x` with a share `ratio` (rank 0) of its elements set to 0 and the others scaled up, and the mask of the
/// kept elements.
pub fn drop(cx: &mut Lowering, x: Value, ratio: Value, seed: Seed) -> Result<(Value, Value)> {
    let (shape, dtype) = (cx.shape(x), cx.dtype(x));
    let ratio_of = |f: &mut Body, i| {
        let r = f.arg(i);
        f.cast(DType::F32, r)
    };
    let mut d = Draw::new(cx, shape, seed, &[ratio])?;
    let u = uniform_unit(&mut d.f, d.bits[0], 24);
    let r = ratio_of(&mut d.f, 0);
    d.f.binary(BinaryOp::Ge, u, r);
    let kept = d.finish(cx)?;
    let mut f = Body::default();
    let (x_in, kept_in, one, zero) = (f.arg(0), f.arg(1), f.f32(1.0), f.number(dtype, 0.0));
    let r = ratio_of(&mut f, 2);
    let rest = f.binary(BinaryOp::Sub, one, r);
    let wide = f.cast(DType::F32, x_in);
    let grown = f.binary(BinaryOp::Div, wide, rest);
    let grown = f.cast(dtype, grown);
    f.select(kept_in, grown, zero);
    Ok((cx.map(f.0, &[x, kept, ratio])?, kept))
}

/// A distribution of one variable, as a transform of uniformly distributed numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// `−ln u / rate`.
    Exponential(f64),
    /// `median + scale·tan(π(u − ½))`.
    Cauchy(f64, f64),
    /// The number of trials until an event of this probability happens.
    Geometric(f64),
}

/// Random numbers of a distribution.
pub fn of(cx: &mut Lowering, shape: Vec<Dim>, dtype: DType, d: Distribution, seed: Seed) -> Result {
    made_of_bits(cx, shape, dtype, seed, |f, bits| {
        let u = f.unit(bits);
        match d {
            Distribution::Exponential(rate) => {
                let (log, by) = (f.unary(UnaryOp::Log, u), f.f32(-1.0 / rate));
                f.binary(BinaryOp::Mul, log, by)
            }
            Distribution::Cauchy(median, scale) => {
                let (half, circle) = (f.f32(0.5), f.f32(std::f64::consts::PI));
                let centred = f.binary(BinaryOp::Sub, u, half);
                let angle = f.binary(BinaryOp::Mul, centred, circle);
                let tan = f.unary(UnaryOp::Tan, angle);
                let (median, scale) = (f.f32(median), f.f32(scale));
                let far = f.binary(BinaryOp::Mul, tan, scale);
                f.binary(BinaryOp::Add, far, median)
            }
            Distribution::Geometric(p) => {
                let (log, by, one) = (f.unary(UnaryOp::Log, u), f.f32(1.0 / (-p).ln_1p()), f.f32(1.0));
                let tries = f.binary(BinaryOp::Mul, log, by);
                let tries = f.unary(UnaryOp::Ceil, tries);
                f.binary(BinaryOp::Max, tries, one)
            }
        }
    })
}

/// Random integers from `low` to below `high`, of any type.
pub fn integers(
    cx: &mut Lowering,
    shape: Vec<Dim>,
    dtype: DType,
    (low, high): (i64, i64),
    seed: Seed,
) -> Result {
    let count = high.wrapping_sub(low) as u64;
    if high <= low {
        return Err(OpError::model(format!("there is no integer from {low} to below {high}")));
    }
    let mut d = Draw::new(cx, shape, seed, &[])?;
    let (f, [a, b]) = (&mut d.f, d.bits);
    let (wide, by) = (f.cast(DType::U64, a), f.u64(32));
    let span = f.u64(count as i64);
    let within = if count <= 1 << 32 {
        let product = f.binary(BinaryOp::Mul, wide, span);
        f.binary(BinaryOp::Shr, product, by)
    } else {
        let high = f.binary(BinaryOp::Shl, wide, by);
        let low = f.cast(DType::U64, b);
        let all = f.binary(BinaryOp::Or, high, low);
        f.binary(BinaryOp::Mod, all, span)
    };
    let (within, low) = (f.cast(DType::I64, within), f.int(DType::I64, low));
    let y = f.binary(BinaryOp::Add, within, low);
    if dtype != DType::I64 {
        f.cast(dtype, y);
    }
    d.finish(cx)
}

/// Classes sampled as by [`multinomial`] but without replacement: those with the largest logits plus Gumbel noise.
pub fn distinct(cx: &mut Lowering, x: Value, samples: &Dim, dtype: DType, seed: Seed) -> Result {
    cx.require_rank(x, 2)?;
    let keys = perturbed(cx, x, cx.shape(x), seed)?;
    let node = cx.push(Op::TopK { axis: 1, k: samples.clone(), largest: true }, &[keys])?.node;
    Ok(cx.cast(Value { node, port: 1 }, dtype)?)
}

/// A random permutation of the integers below `n`.
pub fn permutation(cx: &mut Lowering, n: Dim, dtype: DType, seed: Seed) -> Result {
    let mut d = Draw::new(cx, vec![n.clone()], seed, &[])?;
    let none = d.f.u32(0);
    d.f.binary(BinaryOp::Add, d.bits[0], none);
    let keys = d.finish(cx)?;
    let node = cx.push(Op::TopK { axis: 0, k: n, largest: true }, &[keys])?.node;
    Ok(cx.cast(Value { node, port: 1 }, dtype)?)
}

#[cfg(test)]
mod tests;
