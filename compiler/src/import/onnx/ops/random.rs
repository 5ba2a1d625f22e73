//! Random numbers.
//!
//! A node with attribute `seed` draws the same numbers in every run. The numbers of other nodes depend on the node's name and on the
//! run's seed and offset.

use crate::import::onnx::prelude::*;
use crate::lower::random::{self, Seed};
use wgfc_ir::{DType, Dim};

/// The seed of a node: attribute `seed`, or one derived from its name.
fn seed(cx: &Cx) -> Result<Seed> {
    Ok(cx.float_opt("seed")?.map_or_else(|| from_name(cx), |s| Seed::Given([s.to_bits(), 0])))
}

/// The seed of a node without attribute `seed`, derived from its name and the names of its outputs.
pub(super) fn from_name(cx: &Cx) -> Seed {
    let outputs = cx.node.output.iter().flat_map(|o| o.bytes());
    random::named_seed(cx.node.name.bytes().chain([0]).chain(outputs))
}

/// The result's element type: attribute `dtype`, or the default.
fn float_type(cx: &Cx, default: DType) -> Result<DType> {
    let dtype = cx.dtype_opt("dtype")?.unwrap_or(default);
    random::require_float(dtype)?;
    Ok(dtype)
}

/// Attributes `shape` and `dtype`.
fn given(cx: &Cx) -> Result<(Vec<Dim>, DType)> {
    let shape = cx.ints_req("shape")?;
    if let Some(d) = shape.iter().find(|d| **d < 0) {
        return Err(OpError::model(format!("extent {d} is negative")).attribute("shape"));
    }
    Ok((shape.into_iter().map(Dim::from).collect(), float_type(cx, DType::F32)?))
}

/// The shape and type of input 0.
fn like(cx: &mut Cx) -> Result<(Vec<Dim>, DType)> {
    let x = cx.input(0)?;
    Ok((cx.shape(x), float_type(cx, cx.dtype(x))?))
}

fn uniform(cx: &mut Cx, shape: Vec<Dim>, dtype: DType) -> Lowered {
    let bounds = (cx.float("low", 0.0)?.into(), cx.float("high", 1.0)?.into());
    let seed = seed(cx)?;
    Ok(vec![random::uniform(cx, shape, dtype, bounds, seed)?])
}

fn normal(cx: &mut Cx, shape: Vec<Dim>, dtype: DType) -> Lowered {
    let moments = (cx.float("mean", 0.0)?.into(), cx.float("scale", 1.0)?.into());
    let seed = seed(cx)?;
    Ok(vec![random::normal(cx, shape, dtype, moments, seed)?])
}

fn bernoulli(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (dtype, seed) = (cx.dtype_opt("dtype")?.unwrap_or(cx.dtype(x)), seed(cx)?);
    Ok(vec![random::bernoulli(cx, x, dtype, seed)?])
}

fn multinomial(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 2)?;
    let samples = cx.int("sample_size", 1)?;
    if !(0..=i64::from(i32::MAX)).contains(&samples) {
        return Err(OpError::model(format!("{samples} samples; 0 to 2^31 - 1 are supported")).attribute("sample_size"));
    }
    let to = match cx.dtype_opt("dtype")? {
        None => DType::I32,
        Some(t @ (DType::I32 | DType::I64)) => t,
        Some(t) => {
            return Err(OpError::model(format!("samples of type {t}, not i32 or i64")).attribute("dtype"));
        }
    };
    let seed = seed(cx)?;
    Ok(vec![random::multinomial(cx, x, samples, to, seed)?])
}

const NOTES: &str = "without attribute `seed`, of the inputs `seed` and `offset`; others in each iteration of a loop";

/// Random number generators.
pub const OPS: &[OpDef] = &[
    OpDef::new("Bernoulli", &[15, 22], bernoulli).cases(&["test_bernoulli"]).notes(NOTES),
    OpDef::new("Multinomial", &[7, 22], multinomial).notes(NOTES),
    OpDef::new("RandomNormal", &[1, 22], |cx| {
        let (shape, dtype) = given(cx)?;
        normal(cx, shape, dtype)
    })
    .notes(NOTES),
    OpDef::new("RandomNormalLike", &[1, 22], |cx| {
        let (shape, dtype) = like(cx)?;
        normal(cx, shape, dtype)
    })
    .notes(NOTES),
    OpDef::new("RandomUniform", &[1, 22], |cx| {
        let (shape, dtype) = given(cx)?;
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
