//! Random numbers: a hash of an element's place and of the seed, so that they need no state and no order.
//!
//! A node without attribute `seed` takes its name for one: a program draws the same numbers whenever it runs.
//! Where they must differ from run to run, the model takes them as an input. In the body of a loop the number
//! of the iteration goes into the hash.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp, Body, DType, Dim, Op, Poly, ReduceOp, UnaryOp, Value};

/// The node's seed: 64 bits. A given one depends on nothing else.
fn seed(cx: &Cx) -> Result<[u32; 2], OpError> {
    Ok(cx.float_opt("seed")?.map_or_else(|| from_name(cx), |s| [s.to_bits(), 0]))
}

/// The seed of a node without one: FNV-1a of its name and its outputs'.
fn from_name(cx: &Cx) -> [u32; 2] {
    let outputs = cx.node.output.iter().flat_map(|o| o.bytes());
    let bytes = cx.node.name.bytes().chain([0]).chain(outputs);
    let h = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    [h as u32, (h >> 32) as u32]
}

/// Two words of random bits for each element of `shape`. In the body of a loop `step`, an argument of the
/// function, is the number of the iteration.
fn bits(f: &mut Body, shape: &[Dim], seed: [u32; 2], step: Option<u32>) -> [u32; 2] {
    let place = shape.iter().enumerate().fold(Poly::ZERO, |at, (i, d)| &(&at * d) + &Poly::var(i));
    let place = f.index(place);
    let place = f.cast(DType::U32, place);
    let [low, mut high] = seed.map(|s| f.u32(s.into()));
    if let Some(arg) = step {
        let step = f.arg(arg);
        let step = f.cast(DType::U32, step);
        high = f.binary(BinaryOp::Add, high, step);
    }
    let [a, b, _] = f.pcg3d([place, low, high]);
    [a, b]
}

/// The map of a function that draws, over `args` and, in the body of a loop, the iteration behind them.
fn drawn(cx: &mut Cx, f: Body, args: &[Value], shape: Vec<Dim>) -> Result<Value, OpError> {
    let args: Vec<Value> = args.iter().copied().chain(cx.iteration).collect();
    Ok(cx.map_to(f.0, &args, shape)?)
}

/// Random bits as an f32 in `[0, 1)` that a type of `precision` bits represents.
fn uniform_unit(f: &mut Body, bits: u32, precision: i64) -> u32 {
    let by = f.u32(32 - precision);
    let bits = f.binary(BinaryOp::Shr, bits, by);
    let bits = f.cast(DType::F32, bits);
    let unit = f.f32(0.5f64.powi(precision as i32));
    f.binary(BinaryOp::Mul, bits, unit)
}

/// Bits of the significand of a float type; f64 is drawn in f32.
fn precision(dtype: DType) -> i64 {
    match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

/// The result's element type: attribute `dtype`, or what is given.
fn float_type(cx: &Cx, default: DType) -> Result<DType, OpError> {
    let dtype = cx.dtype_opt("dtype")?.unwrap_or(default);
    if dtype.is_float() && dtype.bits() >= 16 {
        return Ok(dtype);
    }
    Err(OpError::model(format!("numbers of type {dtype}")).attribute("dtype"))
}

/// Attribute `shape`.
fn given_shape(cx: &Cx) -> Result<Vec<Dim>, OpError> {
    let shape = cx.ints_req("shape")?;
    match shape.iter().find(|d| **d < 0) {
        Some(d) => Err(OpError::model(format!("extent {d}")).attribute("shape")),
        None => Ok(shape.into_iter().map(Dim::from).collect()),
    }
}

fn store(f: &mut Body, v: u32, dtype: DType) {
    if dtype != DType::F32 {
        f.cast(dtype, v);
    }
}

/// Evenly between `low` and `high`.
fn uniform(cx: &mut Cx, shape: Vec<Dim>, dtype: DType) -> Lowered {
    let (low, high) = (f64::from(cx.float("low", 0.0)?), f64::from(cx.float("high", 1.0)?));
    let mut f = Body::default();
    let [bits, _] = bits(&mut f, &shape, seed(cx)?, cx.iteration.map(|_| 0));
    let u = uniform_unit(&mut f, bits, precision(dtype));
    let (span, low) = (f.f32(high - low), f.f32(low));
    let y = f.binary(BinaryOp::Mul, u, span);
    let y = f.binary(BinaryOp::Add, y, low);
    store(&mut f, y, dtype);
    Ok(vec![drawn(cx, f, &[], shape)?])
}

/// `mean + scale·√(−2 ln u)·cos(2πv)`: Box and Muller's.
fn normal(cx: &mut Cx, shape: Vec<Dim>, dtype: DType) -> Lowered {
    let (mean, scale) = (f64::from(cx.float("mean", 0.0)?), f64::from(cx.float("scale", 1.0)?));
    let mut f = Body::default();
    let [a, b] = bits(&mut f, &shape, seed(cx)?, cx.iteration.map(|_| 0));
    let u = f.unit(a);
    let log = f.unary(UnaryOp::Log, u);
    let factor = f.f32(-2.0);
    let square = f.binary(BinaryOp::Mul, log, factor);
    let radius = f.unary(UnaryOp::Sqrt, square);
    let v = uniform_unit(&mut f, b, 24);
    let circle = f.f32(std::f64::consts::TAU);
    let angle = f.binary(BinaryOp::Mul, v, circle);
    let cos = f.unary(UnaryOp::Cos, angle);
    let (mean, scale) = (f.f32(mean), f.f32(scale));
    let y = f.binary(BinaryOp::Mul, radius, cos);
    let y = f.binary(BinaryOp::Mul, y, scale);
    let y = f.binary(BinaryOp::Add, y, mean);
    store(&mut f, y, dtype);
    Ok(vec![drawn(cx, f, &[], shape)?])
}

/// The shape and type of input 0.
fn like(cx: &mut Cx) -> Result<(Vec<Dim>, DType), OpError> {
    let x = cx.input(0)?;
    Ok((cx.shape(x), float_type(cx, cx.dtype(x))?))
}

/// 1 as often as the operand says, else 0.
fn bernoulli(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    if !cx.dtype(x).is_float() {
        return Err(cx.at_input(0, OpError::model(format!("probabilities of type {}", cx.ty(x)))));
    }
    let (shape, dtype) = (cx.shape(x), cx.dtype_opt("dtype")?.unwrap_or(cx.dtype(x)));
    let mut f = Body::default();
    let [bits, _] = bits(&mut f, &shape, seed(cx)?, cx.iteration.map(|_| 1));
    let u = uniform_unit(&mut f, bits, 24);
    let p = f.arg(0);
    let p = f.cast(DType::F32, p);
    let one = f.binary(BinaryOp::Lt, u, p);
    if dtype != DType::Bool {
        f.cast(dtype, one);
    }
    Ok(vec![drawn(cx, f, &[x], shape)?])
}

/// Classes, each as often as `softmax` of its row says: the largest of the logarithms and Gumbel variates.
fn multinomial(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 2)?;
    let samples = cx.int("sample_size", 1)?;
    if !(0..=i64::from(i32::MAX)).contains(&samples) {
        return Err(OpError::model(format!("{samples} samples")).attribute("sample_size"));
    }
    let to = match cx.dtype_opt("dtype")? {
        None => DType::I32,
        Some(t @ (DType::I32 | DType::I64)) => t,
        Some(t) => {
            return Err(OpError::model(format!("samples of type {t}, not i32 or i64")).attribute("dtype"));
        }
    };
    let mut shape = cx.shape(x);
    shape.insert(1, samples.into());
    let mut f = Body::default();
    let [bits, _] = bits(&mut f, &shape, seed(cx)?, cx.iteration.map(|_| 1));
    let u = f.unit(bits);
    let noise = f.gumbel(u);
    let logit = f.arg(0);
    let logit = f.cast(DType::F32, logit);
    f.binary(BinaryOp::Add, logit, noise);
    let rows = cx.unsqueeze(x, &[1])?;
    let keys = drawn(cx, f, &[rows], shape)?;
    let at = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: 2, last: false }, &[keys])?;
    let at = cx.squeeze(at, &[2])?;
    Ok(vec![cx.cast(at, to)?])
}

/// `x` and which of its elements stay, where a share `ratio` (rank 0) is dropped and the others grow.
pub(super) fn drop(cx: &mut Cx, x: Value, ratio: Value) -> Result<(Value, Value), OpError> {
    let (shape, dtype) = (cx.shape(x), cx.dtype(x));
    let mut f = Body::default();
    // Its seed is an integer, all others' are floats.
    let seed = cx.int_opt("seed")?.map_or_else(|| from_name(cx), |s| [s as u32, (s >> 32) as u32]);
    let [bits, _] = bits(&mut f, &shape, seed, cx.iteration.map(|_| 1));
    let u = uniform_unit(&mut f, bits, 24);
    let ratio_of = |f: &mut Body, i| {
        let r = f.arg(i);
        f.cast(DType::F32, r)
    };
    let r = ratio_of(&mut f, 0);
    f.binary(BinaryOp::Ge, u, r);
    let kept = drawn(cx, f, &[ratio], shape)?;
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

const NOTES: &str = "the same numbers at every run, others in each iteration of a loop";

/// Generators.
pub const OPS: &[OpDef] = &[
    OpDef::new("Bernoulli", &[15, 22], bernoulli).cases(&["test_bernoulli"]).notes(NOTES),
    OpDef::new("Multinomial", &[7, 22], multinomial).notes(NOTES),
    OpDef::new("RandomNormal", &[1, 22], |cx| {
        let (shape, dtype) = (given_shape(cx)?, float_type(cx, DType::F32)?);
        normal(cx, shape, dtype)
    })
    .notes(NOTES),
    OpDef::new("RandomNormalLike", &[1, 22], |cx| {
        let (shape, dtype) = like(cx)?;
        normal(cx, shape, dtype)
    })
    .notes(NOTES),
    OpDef::new("RandomUniform", &[1, 22], |cx| {
        let (shape, dtype) = (given_shape(cx)?, float_type(cx, DType::F32)?);
        uniform(cx, shape, dtype)
    })
    .notes(NOTES),
    OpDef::new("RandomUniformLike", &[1, 22], |cx| {
        let (shape, dtype) = like(cx)?;
        uniform(cx, shape, dtype)
    })
    .notes(NOTES),
];

#[cfg(test)]
mod tests;
