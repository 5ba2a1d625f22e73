//! `ai.onnx.ml`: operators on feature matrices. Rows are records, and the last axis is that of the features.

use crate::import::onnx::prelude::*;
use crate::lower::special;
use wgfc_ir::{BinaryOp as B, DType, Dim, Op, ReduceOp, Special, Tensor, UnaryOp, Value};

/// The first input, a feature vector or a matrix of records by features, and the number of features.
pub(super) fn records(cx: &mut Cx) -> Result<(Value, Dim)> {
    let x = cx.input(0)?;
    let shape = cx.shape(x);
    match shape.last() {
        Some(features) if shape.len() <= 2 => Ok((x, features.clone())),
        _ => {
            let what = format!("features of {}, which is neither a vector nor a matrix", cx.ty(x));
            let e = OpError::unsupported(what, "put a Reshape to [records, features] in front");
            Err(cx.at_input(0, e))
        }
    }
}

/// A value per feature, or a single one for all.
fn per_feature(cx: &mut Cx, name: &str, values: Tensor, features: &Dim) -> Result<Value> {
    let n = values.numel();
    if n != 1 {
        cx.require_equal(&Dim::from(n), features);
        if features.as_const().is_some_and(|f| f != n as i64) {
            let e = OpError::model(format!("{n} numbers for {features} features"));
            return Err(e.attribute(name));
        }
    }
    Ok(cx.constant(values))
}

fn floats(v: &[f32]) -> Tensor {
    Tensor::from_f32(vec![v.len()], v)
}

/// `(x − offset) · scale`, in f32.
fn scaler(cx: &mut Cx) -> Lowered {
    let (x, features) = records(cx)?;
    let mut y = cx.cast(x, DType::F32)?;
    for (name, op) in [("offset", B::Sub), ("scale", B::Mul)] {
        if let Some(v) = cx.floats(name)?.filter(|v| !v.is_empty()) {
            let v = per_feature(cx, name, floats(&v), &features)?;
            y = cx.binary(op, y, v)?;
        }
    }
    Ok(vec![y])
}

/// Divides each record by its norm unless that is 0. The norm `MAX` is the largest element, not the largest magnitude.
fn normalizer(cx: &mut Cx) -> Lowered {
    let (x, _) = records(cx)?;
    let x = cx.cast(x, DType::F32)?;
    let axes = [cx.rank(x) - 1];
    let norm = match cx.string("norm", "MAX")?.as_str() {
        "MAX" => cx.reduce(ReduceOp::Max, x, &axes, true)?,
        "L1" => {
            let x = cx.unary(UnaryOp::Abs, x)?;
            cx.reduce(ReduceOp::Sum, x, &axes, true)?
        }
        "L2" => {
            let x = cx.binary(B::Mul, x, x)?;
            let sum = cx.reduce(ReduceOp::Sum, x, &axes, true)?;
            cx.unary(UnaryOp::Sqrt, sum)?
        }
        other => {
            return Err(OpError::model(format!("`{other}` is not MAX, L1 or L2")).attribute("norm"));
        }
    };
    let none = cx.binary_scalar(B::Eq, norm, 0.0)?;
    let y = cx.binary(B::Div, x, norm)?;
    Ok(vec![cx.select(none, x, y)?])
}

/// 1 above the threshold, else 0.
fn binarizer(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let dtype = cx.dtype(x);
    let threshold = cx.float("threshold", 0.0)?;
    // An integer is above the threshold exactly if it is above its floor.
    let threshold = if dtype.is_int() { threshold.floor() } else { threshold };
    let above = cx.binary_scalar(B::Gt, x, threshold.into())?;
    Ok(vec![cx.cast(above, dtype)?])
}

/// Selected features of every record.
fn array_feature_extractor(cx: &mut Cx) -> Lowered {
    let (x, at) = (cx.input(0)?, cx.input(1)?);
    let count = cx.ty(at).numel();
    let at = cx.reshape(at, vec![count])?;
    let x = if cx.rank(x) == 1 { cx.unsqueeze(x, &[0])? } else { x };
    let Some(last) = cx.rank(x).checked_sub(1) else {
        return Err(cx.at_input(0, OpError::model(format!("features of {}", cx.ty(x)))));
    };
    Ok(vec![cx.take(x, at, last)?])
}

/// Replaces missing elements by a number, which may differ per feature.
fn imputer(cx: &mut Cx) -> Lowered {
    let (x, features) = records(cx)?;
    let dtype = cx.dtype(x);
    let (missing, name, values) = if dtype.is_int() {
        let (name, which) = ("imputed_value_int64s", cx.int("replaced_value_int64", 0)?);
        let which = cx.int_const(dtype, which);
        let values = cx.ints_req(name)?;
        (cx.binary(B::Eq, x, which)?, name, Tensor::from_i64(vec![values.len()], &values))
    } else {
        let (name, which) = ("imputed_value_floats", cx.float("replaced_value_float", 0.0)?);
        let missing = match which.is_nan() {
            true => cx.unary(UnaryOp::IsNan, x)?,
            false => cx.binary_scalar(B::Eq, x, which.into())?,
        };
        let values = cx.floats(name)?.unwrap_or_default();
        (missing, name, floats(&values))
    };
    if values.numel() == 0 {
        return Err(OpError::model(format!("attribute `{name}` is required and missing")).attribute(name));
    }
    let with = per_feature(cx, name, values, &features)?;
    let with = cx.cast(with, dtype)?;
    Ok(vec![cx.select(missing, with, x)?])
}

/// `X·coefficientsᵀ + intercepts`, `[records, targets]`.
fn linear(cx: &mut Cx, targets: usize) -> Result<Value> {
    let (x, features) = records(cx)?;
    let x = cx.cast(x, DType::F32)?;
    let x = if cx.rank(x) == 1 { cx.unsqueeze(x, &[0])? } else { x };
    let coefficients = cx.floats("coefficients")?.unwrap_or_default();
    let each =
        coefficients.len().checked_div(targets).filter(|n| n * targets == coefficients.len() && *n > 0);
    let Some(each) = each else {
        let e = format!("{} coefficients for {targets} targets", coefficients.len());
        return Err(OpError::model(e).attribute("coefficients"));
    };
    if features.as_const().is_some_and(|f| f != each as i64) {
        let e = format!("{each} coefficients of each target for {features} features");
        return Err(OpError::model(e).attribute("coefficients"));
    }
    let w = cx.constant(Tensor::from_f32(vec![targets, each], &coefficients));
    let w = cx.transpose(w, &[1, 0])?;
    let y = cx.matmul(x, w)?;
    match cx.floats("intercepts")?.filter(|v| !v.is_empty()) {
        Some(v) if v.len() == 1 || v.len() == targets => {
            let v = cx.constant(floats(&v));
            Ok(cx.binary(B::Add, y, v)?)
        }
        Some(v) => {
            let e = format!("{} intercepts for {targets} targets", v.len());
            Err(OpError::model(e).attribute("intercepts"))
        }
        None => Ok(y),
    }
}

/// A transform of the scores of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Logistic,
    Softmax,
    /// A softmax of the scores that are not 0.
    SoftmaxZero,
    /// The inverse of the normal cumulative distribution function.
    Probit,
}

impl Transform {
    /// The transform in attribute `post_transform`.
    pub(super) fn of(cx: &Cx) -> Result<Transform> {
        let name = cx.string("post_transform", "NONE")?;
        Transform::ALL.into_iter().find(|t| t.name() == name).ok_or_else(|| {
            OpError::model(format!("unknown transform `{name}`")).attribute("post_transform")
        })
    }

    /// All transforms, ordered by their numbers in `TreeEnsemble` of version 5.
    pub(super) const ALL: [Transform; 5] = [
        Transform::None,
        Transform::Softmax,
        Transform::Logistic,
        Transform::SoftmaxZero,
        Transform::Probit,
    ];

    /// Its name in ONNX.
    pub(super) fn name(self) -> &'static str {
        match self {
            Transform::None => "NONE",
            Transform::Logistic => "LOGISTIC",
            Transform::Softmax => "SOFTMAX",
            Transform::SoftmaxZero => "SOFTMAX_ZERO",
            Transform::Probit => "PROBIT",
        }
    }

    /// Transforms scores `[N, K]`, each record independently.
    pub(super) fn apply(self, cx: &mut Cx, scores: Value) -> Result<Value> {
        let axis = cx.rank(scores) - 1;
        Ok(match self {
            Transform::None => scores,
            Transform::Logistic => cx.unary(UnaryOp::Sigmoid, scores)?,
            Transform::Softmax => cx.push(Op::Softmax { axis, log: false }, &[scores])?,
            Transform::SoftmaxZero => {
                let most = cx.reduce(ReduceOp::Max, scores, &[axis], true)?;
                let size = cx.unary(UnaryOp::Abs, scores)?;
                let some = cx.binary_scalar(B::Gt, size, 1e-7)?;
                let above = cx.binary(B::Sub, scores, most)?;
                let raised = cx.unary(UnaryOp::Exp, above)?;
                let dtype = cx.dtype(scores);
                let zero = cx.scalar(dtype, 0.0);
                let raised = cx.select(some, raised, zero)?;
                let sum = cx.reduce(ReduceOp::Sum, raised, &[axis], true)?;
                cx.binary(B::Div, raised, sum)?
            }
            Transform::Probit => {
                let twice = cx.binary_scalar(B::Mul, scores, 2.0)?;
                let around = cx.binary_scalar(B::Sub, twice, 1.0)?;
                let y = special::function(cx, Special::Erfinv, around)?;
                cx.binary_scalar(B::Mul, y, std::f64::consts::SQRT_2)?
            }
        })
    }
}

/// Applies attribute `post_transform` to scores. For a single score it is refused, because ONNX Runtime ignores it and ONNX applies it.
fn transformed(cx: &mut Cx, scores: Value, several: bool) -> Result<Value> {
    let transform = Transform::of(cx)?;
    if several || transform == Transform::None {
        return transform.apply(cx, scores);
    }
    let help = "export the model with `NONE`, and transform the scores afterwards";
    let what = format!("post_transform {} of a single score", transform.name());
    Err(OpError::unsupported(what, help).attribute("post_transform"))
}

fn linear_regressor(cx: &mut Cx) -> Lowered {
    let targets = cx.int("targets", 1)?;
    let targets = usize::try_from(targets)
        .ok()
        .filter(|t| *t > 0)
        .ok_or_else(|| OpError::model(format!("{targets} is not positive")).attribute("targets"))?;
    let y = linear(cx, targets)?;
    Ok(vec![transformed(cx, y, targets > 1)?])
}

/// The class of each record, and the scores of all classes. A single row of coefficients scores the second of two classes.
fn linear_classifier(cx: &mut Cx) -> Lowered {
    let Some(labels) = cx.ints("classlabels_ints")?.filter(|l| !l.is_empty()) else {
        let help = "number the classes before training; their names are of no use to a device";
        let e = OpError::unsupported("classes that are not integers", help);
        return Err(e.attribute("classlabels_ints"));
    };
    let rows = match cx.floats("intercepts")? {
        Some(v) if !v.is_empty() => v.len(),
        _ => labels.len(),
    };
    let one = rows == 1 && labels.len() == 2;
    if !one && rows != labels.len() {
        let e = OpError::model(format!("{rows} rows of coefficients for {} classes", labels.len()));
        return Err(e.attribute("classlabels_ints"));
    }
    let scores = linear(cx, rows)?;
    let labels = cx.constant(Tensor::from_i64(vec![labels.len()], &labels));
    let (best, scores) = if one {
        let above = cx.binary_scalar(B::Gt, scores, 0.0)?;
        let above = cx.squeeze(above, &[1])?;
        let best = cx.cast(above, DType::I64)?;
        let second = match cx.string("post_transform", "NONE")?.as_str() {
            "LOGISTIC" => cx.unary(UnaryOp::Sigmoid, scores)?,
            _ => transformed(cx, scores, false)?,
        };
        let unity = cx.scalar(DType::F32, 1.0);
        let first = cx.binary(B::Sub, unity, second)?;
        (best, cx.concat(&[first, second], 1)?)
    } else {
        let best = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: 1, last: false }, &[scores])?;
        (cx.squeeze(best, &[1])?, transformed(cx, scores, true)?)
    };
    Ok(vec![cx.take(labels, best, 0)?, scores])
}

pub(super) const fn op(name: &'static str, lower: fn(&mut Cx) -> Lowered, cases: &'static [&'static str]) -> OpDef {
    OpDef::new(name, &[1], lower).domain("ai.onnx.ml").cases(cases)
}

/// Operators on feature matrices.
pub const OPS: &[OpDef] = &[
    op("ArrayFeatureExtractor", array_feature_extractor, &["test_ai_onnx_ml_array_feature_extractor"]),
    op("Binarizer", binarizer, &["test_ai_onnx_ml_binarizer"]),
    op("Imputer", imputer, &[]),
    op("LinearClassifier", linear_classifier, &[])
        .notes("classes as text; SOFTMAX, SOFTMAX_ZERO and PROBIT of a single score"),
    op("LinearRegressor", linear_regressor, &[]).notes("transforms of a single target"),
    op("Normalizer", normalizer, &[]),
    op("Scaler", scaler, &[]),
];
