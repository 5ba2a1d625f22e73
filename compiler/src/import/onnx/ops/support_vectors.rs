//! `ai.onnx.ml`: support vector machines.

use super::features::{Transform, op, records};
use crate::import::onnx::prelude::*;
use crate::lower::support_vectors::{Kernel, coupled, elected, pairs, sums};
use wgfc_ir::{BinaryOp as B, DType, Tensor, UnaryOp as U, Value};

/// The records as a matrix of f32.
fn matrix(cx: &mut Cx) -> Result<Value> {
    let (x, _) = records(cx)?;
    let x = cx.cast(x, DType::F32)?;
    Ok(if cx.rank(x) == 1 { cx.unsqueeze(x, &[0])? } else { x })
}

fn kernel_of(cx: &Cx) -> Result<Kernel> {
    let params = cx.floats("kernel_params")?.unwrap_or_default();
    let param = |i: usize| params.get(i).copied().map_or(0.0, f64::from);
    let [gamma, coef0, degree] = [0, 1, 2].map(param);
    Ok(match cx.string("kernel_type", "LINEAR")?.as_str() {
        "LINEAR" => Kernel::Linear,
        "POLY" => Kernel::Poly { gamma, coef0, degree },
        "RBF" => Kernel::Rbf { gamma },
        "SIGMOID" => Kernel::Sigmoid { gamma, coef0 },
        other => {
            let e = OpError::model(format!("unknown kernel `{other}`"));
            return Err(e.attribute("kernel_type"));
        }
    })
}

/// The attribute's `count` support vectors, one after another.
fn vectors(cx: &mut Cx, x: Value, count: usize) -> Result<Vec<f32>> {
    let all = cx.floats("support_vectors")?.unwrap_or_default();
    let features = all.len().checked_div(count).filter(|n| n * count == all.len() && *n > 0);
    let Some(features) = features else {
        let e = OpError::model(format!("{} numbers for {count} vectors", all.len()));
        return Err(e.attribute("support_vectors"));
    };
    if cx.shape(x)[1].as_const().is_some_and(|n| n != features as i64) {
        let e = format!("vectors of {features} features for records of {}", cx.ty(x));
        return Err(OpError::model(e).attribute("support_vectors"));
    }
    Ok(all)
}

fn count(name: &str, v: i64) -> Result<usize> {
    usize::try_from(v).map_err(|_| OpError::model(format!("{v} is negative")).attribute(name))
}

/// An error for transforms that ONNX Runtime ignores and ONNX applies.
fn refuse(transform: Transform) -> OpError {
    let what = format!("post_transform {} of it, which ONNX Runtime leaves out", transform.name());
    OpError::unsupported(what, "export the model with `NONE`, and transform the scores afterwards")
        .attribute("post_transform")
}

fn regressor(cx: &mut Cx) -> Lowered {
    let x = matrix(cx)?;
    let transform = Transform::of(cx)?;
    if transform != Transform::None {
        return Err(refuse(transform));
    }
    let coefficients = cx.floats("coefficients")?.unwrap_or_default();
    let supports = count("n_supports", cx.int("n_supports", 0)?)?;
    let need = if supports > 0 { Some(supports as i64) } else { cx.shape(x)[1].as_const() };
    if need.is_some_and(|n| n != coefficients.len() as i64) || coefficients.is_empty() {
        let of = if supports > 0 { format!("{supports} vectors") } else { cx.ty(x).to_string() };
        let e = format!("{} coefficients for {of}", coefficients.len());
        return Err(OpError::model(e).attribute("coefficients"));
    }
    let y = if supports > 0 {
        let vectors = vectors(cx, x, supports)?;
        let k = kernel_of(cx)?;
        sums(cx, x, &vectors, &coefficients, supports, k)?
    } else {
        let w = cx.constant(Tensor::from_f32(vec![coefficients.len(), 1], &coefficients));
        cx.matmul(x, w)?
    };
    let rho = cx.floats("rho")?.unwrap_or_default();
    let [rho] = rho[..] else {
        return Err(OpError::model(format!("{} numbers, not 1", rho.len())).attribute("rho"));
    };
    let y = cx.binary_scalar(B::Add, y, rho.into())?;
    if !cx.flag("one_class", false)? {
        return Ok(vec![y]);
    }
    let above = cx.binary_scalar(B::Gt, y, 0.0)?;
    let (inside, outside) = (cx.scalar(DType::F32, 1.0), cx.scalar(DType::F32, -1.0));
    Ok(vec![cx.select(above, inside, outside)?])
}

/// The class of each record by majority vote of all pairs of classes, and scores: probabilities, or the decision values of the pairs.
fn classifier(cx: &mut Cx) -> Lowered {
    let x = matrix(cx)?;
    let Some(labels) = cx.ints("classlabels_ints")?.filter(|l| !l.is_empty()) else {
        let help = "number the classes before training; their names are of no use to a device";
        let e = OpError::unsupported("classes that are not integers", help);
        return Err(e.attribute("classlabels_ints"));
    };
    let classes = labels.len();
    let Some(per_class) = cx.ints("vectors_per_class")?.filter(|v| !v.is_empty()) else {
        let e = OpError::unsupported("a classifier without support vectors", "export it as a LinearClassifier");
        return Err(e.attribute("vectors_per_class"));
    };
    let per_class = per_class.iter().map(|n| count("vectors_per_class", *n)).collect::<Result<Vec<usize>>>()?;
    if per_class.len() != classes || classes < 2 {
        let e = OpError::model(format!("{} numbers for {classes} classes", per_class.len()));
        return Err(e.attribute("vectors_per_class"));
    }
    let total = per_class.iter().fold(0usize, |n, v| n.saturating_add(*v));
    let vectors = vectors(cx, x, total)?;
    let k = kernel_of(cx)?;
    let pairs = pairs(classes);
    let coefficients = cx.floats("coefficients")?.unwrap_or_default();
    let rho = cx.floats("rho")?.unwrap_or_default();
    for (name, have, need) in
        [("coefficients", coefficients.len(), total * (classes - 1)), ("rho", rho.len(), pairs.len())]
    {
        if have != need {
            let e = format!("{have} numbers, and not {need}, for {classes} classes with {total} vectors");
            return Err(OpError::model(e).attribute(name));
        }
    }
    // A support vector has one coefficient for each class other than its own.
    let class_of: Vec<usize> = per_class.iter().enumerate().flat_map(|(c, n)| vec![c; *n]).collect();
    let weight = |v: usize, (i, j): (usize, usize)| match class_of[v] {
        c if c == i => coefficients[(j - 1) * total + v],
        c if c == j => coefficients[i * total + v],
        _ => 0.0,
    };
    let w: Vec<f32> = (0..total).flat_map(|v| pairs.iter().map(move |p| (v, *p))).map(|(v, p)| weight(v, p)).collect();
    let sums = sums(cx, x, &vectors, &w, total, k)?;
    let rho = cx.constant(Tensor::from_f32(vec![pairs.len()], &rho));
    let decisions = cx.binary(B::Add, sums, rho)?;
    let best = elected(cx, decisions, classes)?;
    let labels = cx.constant(Tensor::from_i64(vec![classes], &labels));
    let label = cx.take(labels, best, 0)?;
    let transform = Transform::of(cx)?;
    let (a, b) = (cx.floats("prob_a")?.unwrap_or_default(), cx.floats("prob_b")?.unwrap_or_default());
    let scores = if !a.is_empty() {
        for (name, have) in [("prob_a", a.len()), ("prob_b", b.len())] {
            if have != pairs.len() {
                let e = OpError::model(format!("{have} numbers for {} pairs of classes", pairs.len()));
                return Err(e.attribute(name));
            }
        }
        let (a, b) = (Tensor::from_f32(vec![a.len()], &a), Tensor::from_f32(vec![b.len()], &b));
        let (a, b) = (cx.constant(a), cx.constant(b));
        let y = cx.binary(B::Mul, decisions, a)?;
        let y = cx.binary(B::Add, y, b)?;
        let y = cx.unary(U::Neg, y)?;
        let first = cx.unary(U::Sigmoid, y)?;
        let first = cx.binary_scalar(B::Max, first, 1e-7)?;
        let first = cx.binary_scalar(B::Min, first, 1.0 - 1e-7)?;
        let p = coupled(cx, first, classes)?;
        transform.apply(cx, p)?
    } else if classes == 2 {
        if !matches!(transform, Transform::None | Transform::Logistic) {
            return Err(refuse(transform));
        }
        let minus = cx.unary(U::Neg, decisions)?;
        let both = cx.concat(&[minus, decisions], 1)?;
        transform.apply(cx, both)?
    } else {
        transform.apply(cx, decisions)?
    };
    Ok(vec![label, scores])
}

/// Support vector machines.
pub const OPS: &[OpDef] = &[
    op("SVMClassifier", classifier, &[])
        .notes("classes as text; no support vectors; transforms of two classes without probabilities beside LOGISTIC"),
    op("SVMRegressor", regressor, &[]).notes("transforms"),
];
