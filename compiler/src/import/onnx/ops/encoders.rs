//! `ai.onnx.ml`: encoders of numeric categories.

use crate::import::onnx::prelude::*;
use crate::lower::search;
use std::cmp::Ordering;
use wgfc_ir::{BinaryOp as B, DType, Dim, Scalar, Tensor, UnaryOp as U, Value};

const HELP: &str = "encode text as numbers before the model, and convert the rest of the pipeline";

/// An error for strings in an attribute.
fn refuse(what: &str, attribute: &str) -> OpError {
    OpError::unsupported(format!("{what} that are text"), HELP).attribute(attribute)
}

/// The numbers in one of three attributes (integers, floats, or a tensor), and the name of that attribute.
fn numbers(cx: &mut Cx, what: &str, names: [&'static str; 4]) -> Result<(DType, Vec<Scalar>, &'static str)> {
    let [ints, floats, tensor, text] = names;
    if let Some(v) = cx.ints(ints)?.filter(|v| !v.is_empty()) {
        return Ok((DType::I64, v.into_iter().map(|v| Scalar::from_i64(DType::I64, v)).collect(), ints));
    }
    if let Some(v) = cx.floats(floats)?.filter(|v| !v.is_empty()) {
        let v = v.into_iter().map(|v| Scalar::from_f64(DType::F32, v.into())).collect();
        return Ok((DType::F32, v, floats));
    }
    if cx.strings(text)?.is_some_and(|v| !v.is_empty()) {
        return Err(refuse(what, text));
    }
    match cx.tensor(tensor)? {
        Some(t) => {
            let v = t.scalars().ok_or_else(|| OpError::model("has no values").attribute(tensor))?;
            Ok((t.dtype, v, tensor))
        }
        None => Err(OpError::model(format!("needs {what}")).attribute(ints)),
    }
}

/// Maps each element that equals a key to its value, and others to the default. The first of equal keys counts; from version 4 on NaN can
/// be a key.
fn label_encoder(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (of, keys, keys_name) =
        numbers(cx, "keys", ["keys_int64s", "keys_floats", "keys_tensor", "keys_strings"])?;
    let (to, values, values_name) =
        numbers(cx, "values", ["values_int64s", "values_floats", "values_tensor", "values_strings"])?;
    if of != cx.dtype(x) {
        let e = format!("keys of {of} for elements of {}", cx.dtype(x));
        return Err(OpError::model(e).attribute(keys_name));
    }
    if keys.len() != values.len() {
        let e = format!("{} values for {} keys", values.len(), keys.len());
        return Err(OpError::model(e).attribute(values_name));
    }
    let default = match (cx.tensor("default_tensor")?, to.is_float()) {
        (Some(t), _) => {
            let one = t.scalars().filter(|v| t.dtype == to && v.len() == 1);
            let one = one.and_then(|v| v.first().copied());
            one.ok_or_else(|| OpError::model(format!("needs one {to}")).attribute("default_tensor"))?
        }
        (None, true) => Scalar::from_f64(to, cx.float("default_float", -0.0)?.into()),
        (None, false) => Scalar::from_i64(to, cx.int("default_int64", -1)?),
    };
    let is_nan = |k: &Scalar| of.is_float() && k.as_f64().is_nan();
    let order = |a: &Scalar, b: &Scalar| match of.is_float() {
        true => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
        false => a.as_i64().cmp(&b.as_i64()),
    };
    let mut pairs: Vec<(Scalar, Scalar)> = keys.into_iter().zip(values).collect();
    let of_nan = pairs.iter().find(|(k, _)| cx.since >= 4 && is_nan(k)).map(|(_, v)| *v);
    pairs.retain(|(k, _)| !is_nan(k));
    pairs.sort_by(|a, b| order(&a.0, &b.0));
    pairs.dedup_by(|later, first| order(&later.0, &first.0) == Ordering::Equal);
    let (keys, values): (Vec<Scalar>, Vec<Scalar>) = pairs.into_iter().unzip();
    let shape = cx.shape(x);
    let mut y = cx.full(&shape, default)?;
    if !keys.is_empty() {
        let last = keys.len() as f64 - 1.0;
        let keys = cx.constant(Tensor::from_scalars(of, vec![keys.len()], &keys));
        let values = cx.constant(Tensor::from_scalars(to, vec![values.len()], &values));
        let at = search::place(cx, keys, x, false)?;
        let at = cx.binary_scalar(B::Min, at, last)?;
        let key = cx.take(keys, at, 0)?;
        let found = cx.binary(B::Eq, key, x)?;
        let value = cx.take(values, at, 0)?;
        y = cx.select(found, value, y)?;
    }
    if let Some(v) = of_nan {
        let nan = cx.unary(U::IsNan, x)?;
        let v = cx.full(&shape, v)?;
        y = cx.select(nan, v, y)?;
    }
    Ok(vec![y])
}

/// One-hot encoding along a new last axis: 1 for the category of the element, else 0.
fn one_hot_encoder(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    if cx.strings("cats_strings")?.is_some_and(|v| !v.is_empty()) {
        return Err(refuse("categories", "cats_strings"));
    }
    let categories = cx.ints_req("cats_int64s")?;
    if !cx.flag("zeros", true)? {
        let help = "set `zeros` to 1: elements of no category then have zeros";
        return Err(OpError::unsupported("a run that fails for an unknown category", help).attribute("zeros"));
    }
    let mut sorted = categories.clone();
    sorted.sort_unstable();
    if let Some(w) = sorted.windows(2).find(|w| w[0] == w[1]) {
        return Err(OpError::model(format!("{} is listed twice", w[0])).attribute("cats_int64s"));
    }
    let x = cx.cast(x, DType::I64)?;
    let rank = cx.rank(x);
    let x = cx.unsqueeze(x, &[rank])?;
    let categories = cx.constant(Tensor::from_i64(vec![categories.len()], &categories));
    let is = cx.binary(B::Eq, x, categories)?;
    Ok(vec![cx.cast(is, DType::F32)?])
}

/// Concatenates the features of several tensors, as f32.
fn feature_vectorizer(cx: &mut Cx) -> Lowered {
    let sizes = cx.ints("inputdimensions")?.unwrap_or_default();
    if sizes.len() != cx.input_count() {
        let e = format!("{} sizes for {} inputs", sizes.len(), cx.input_count());
        return Err(OpError::model(e).attribute("inputdimensions"));
    }
    let mut parts: Vec<Value> = vec![];
    for (i, size) in sizes.iter().enumerate() {
        let x = cx.inputs()?[i];
        let x = match cx.rank(x) {
            1 => cx.unsqueeze(x, &[0])?,
            _ => x,
        };
        let shape = cx.shape(x);
        let [_, features] = &shape[..] else {
            let what = format!("features of {}, which is neither a vector nor a matrix", cx.ty(x));
            let e = OpError::unsupported(what, "put a Reshape to [records, features] in front");
            return Err(cx.at_input(i, e));
        };
        cx.require_equal(features, &Dim::from(*size));
        if features.as_const().is_some_and(|f| f != *size) {
            let e = format!("{size} for {features} features of input {i}");
            return Err(OpError::model(e).attribute("inputdimensions"));
        }
        parts.push(cx.cast(x, DType::F32)?);
    }
    Ok(vec![cx.concat(&parts, 1)?])
}

const fn op(name: &'static str, since: &'static [i64], lower: fn(&mut Cx) -> Lowered) -> OpDef {
    OpDef::new(name, since, lower).domain("ai.onnx.ml")
}

/// Encoders of numbers.
pub const OPS: &[OpDef] = &[
    op("FeatureVectorizer", &[1], feature_vectorizer).notes("sizes that are not those of the inputs"),
    op("LabelEncoder", &[2, 4], label_encoder).notes("text"),
    op("OneHotEncoder", &[1], one_hot_encoder).notes("text; runs that fail for unknown categories"),
];
