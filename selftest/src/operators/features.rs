//! Operators of `ai.onnx.ml` on feature vectors, or on matrices with a record in each row.

use super::Line;
use crate::draw::Draw;
use wgfc_ir::DType::{self, *};
use wgfc_ir::Tensor;

const TYPES: &[DType] = &[F32, I32, I64];

/// Adds features in a range. Returns the number of features in a record.
fn records(d: &mut Draw, types: &[DType], low: f64, high: f64) -> usize {
    let (t, s) = (d.pick(types), d.full(1..=2));
    d.within(t, &s, low, high);
    s.last().copied().unwrap_or(1)
}
pub(super) fn floats(d: &mut Draw, n: usize) -> Vec<f32> {
    (0..n).map(|_| d.below(40) as f32 / 10.0 - 2.0).collect()
}
/// Sets an attribute to one number for each feature, or to a single number.
fn each(d: &mut Draw, name: &str, n: usize) {
    let n = if d.one_in(3) { 1 } else { n };
    let v = floats(d, n);
    d.set_floats(name, &v);
}

fn scaler(d: &mut Draw) {
    let n = records(d, TYPES, -2.0, 2.0);
    for name in ["offset", "scale"] {
        if !d.one_in(4) {
            each(d, name, n);
        }
    }
}
fn normalizer(d: &mut Draw) {
    records(d, &[F32], 0.5, 4.0);
    let norm = d.pick(&["MAX", "L1", "L2"]);
    d.set_text("norm", norm);
}
fn binarizer(d: &mut Draw) {
    records(d, TYPES, -2.0, 2.0);
    let v = floats(d, 1);
    d.set_float("threshold", v[0]);
}
fn imputer(d: &mut Draw) {
    let n = records(d, &[F32], -2.0, 2.0);
    each(d, "imputed_value_floats", n);
    let missing = d.pick(&[0.0, 1.0, f32::NAN]);
    d.set_float("replaced_value_float", missing);
}
fn extracted(d: &mut Draw) {
    let n = records(d, TYPES, -2.0, 2.0);
    let at: Vec<i64> = (0..d.from(1..=4)).map(|_| d.below(n.max(1)) as i64).collect();
    d.known(Tensor::from_i64(vec![at.len()], &at));
}
fn linear(d: &mut Draw, targets: usize) {
    let n = records(d, &[F32], -2.0, 2.0);
    let (coefficients, intercepts) = (floats(d, targets * n), floats(d, targets));
    d.set_floats("coefficients", &coefficients);
    d.set_floats("intercepts", &intercepts);
}
fn regressor(d: &mut Draw) {
    let targets = d.from(1..=4);
    linear(d, targets);
    d.set("targets", targets as i64);
}
fn classifier(d: &mut Draw) {
    let classes = d.from(2..=4);
    linear(d, classes);
    let labels: Vec<i64> = (0..classes as i64).map(|i| i * 3 - 2).collect();
    d.set_ints("classlabels_ints", &labels);
    d.outputs(2);
}

/// A few distinct small integers.
fn keys(d: &mut Draw) -> Vec<i64> {
    let first = d.below(3) as i64 - 4;
    (0..d.from(1..=6) as i64).map(|i| first + i * 2 - i % 2).collect()
}
fn label_encoder(d: &mut Draw) {
    let keys = keys(d);
    let (of, to) = (d.pick(&[F32, I64]), d.pick(&[F32, I64]));
    let s = d.full(0..=3);
    let elements: Vec<i64> = (0..s.iter().product()).map(|_| d.below(12) as i64 - 5).collect();
    if of == F32 {
        d.give(Tensor::from_f32(s, &elements.iter().map(|v| *v as f32).collect::<Vec<_>>()));
        d.set_floats("keys_floats", &keys.iter().map(|k| *k as f32).collect::<Vec<_>>());
    } else {
        d.give(Tensor::from_i64(s, &elements));
        d.set_ints("keys_int64s", &keys);
    }
    let values = floats(d, keys.len());
    if to == F32 {
        d.set_floats("values_floats", &values);
        d.set_float("default_float", 0.5);
    } else {
        d.set_ints("values_int64s", &values.iter().map(|v| (*v * 10.0) as i64).collect::<Vec<_>>());
        d.set("default_int64", 7);
    }
}
fn one_hot_encoder(d: &mut Draw) {
    let categories = keys(d);
    d.set_ints("cats_int64s", &categories);
    let (t, s) = (d.pick(&[F32, I64]), d.full(0..=3));
    let elements: Vec<i64> = (0..s.iter().product()).map(|_| d.below(12) as i64 - 5).collect();
    d.give(match t {
        F32 => Tensor::from_f32(s, &elements.iter().map(|v| *v as f32).collect::<Vec<_>>()),
        _ => Tensor::from_i64(s, &elements),
    });
}
fn feature_vectorizer(d: &mut Draw) {
    let records = d.from(1..=5);
    let sizes: Vec<i64> = (0..d.from(1..=4)).map(|_| d.from(1..=5) as i64).collect();
    let t = d.pick(TYPES);
    for n in &sizes {
        d.within(t, &[records, *n as usize], -2.0, 2.0);
    }
    d.set_ints("inputdimensions", &sizes);
}

pub(super) const LINES: &[Line] = &[
    Line("ai.onnx.ml.ArrayFeatureExtractor", extracted),
    Line("ai.onnx.ml.Binarizer", binarizer),
    Line("ai.onnx.ml.FeatureVectorizer", feature_vectorizer),
    Line("ai.onnx.ml.Imputer", imputer),
    Line("ai.onnx.ml.LabelEncoder", label_encoder),
    Line("ai.onnx.ml.LinearClassifier", classifier),
    Line("ai.onnx.ml.LinearRegressor", regressor),
    Line("ai.onnx.ml.Normalizer", normalizer),
    Line("ai.onnx.ml.OneHotEncoder", one_hot_encoder),
    Line("ai.onnx.ml.Scaler", scaler),
];
