//! Losses of classifiers.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Body, DType, Op, Poly, ReduceOp, UnaryOp, Value};

/// `−log_prob[n, target, …] · weight[target]`, 0 where the target is `ignore_index`; as it is, summed, or
/// divided by the sum of the weights. `log_prob` is `[N, C, …]`, the target (input 1) `[N, …]`.
fn likelihood(cx: &mut Cx, log_prob: Value) -> Result<Value, OpError> {
    let target = super::gather::indices(cx, 1)?;
    let (classes, places) = (cx.shape(log_prob), cx.shape(target));
    if classes.len() < 2 || places.len() + 1 != classes.len() {
        let e = OpError::model(format!("targets {} for scores {}", cx.ty(target), cx.ty(log_prob)));
        return Err(cx.at_input(1, e));
    }
    for (a, b) in places.iter().zip(classes.iter().take(1).chain(&classes[2..])) {
        if a.as_const().is_some() && b.as_const().is_some() && a != b {
            let e = OpError::model(format!("targets {} for scores {}", cx.ty(target), cx.ty(log_prob)));
            return Err(cx.at_input(1, e));
        }
        cx.require_equal(a, b);
    }
    let index = (0..classes.len())
        .map(|d| match d {
            0 => GatherAxis::Affine(Poly::var(0)),
            1 => GatherAxis::Data { input: 1, at: (0..places.len()).map(Poly::var).collect() },
            _ => GatherAxis::Affine(Poly::var(d - 1)),
        })
        .collect();
    let picked = cx.push(Op::Gather { shape: places.clone(), index }, &[log_prob, target])?;
    let mut loss = cx.unary(UnaryOp::Neg, picked)?;
    let dtype = cx.dtype(loss);

    let mut weight = match cx.opt(2) {
        None => None,
        Some(w) => {
            let w = cx.input_of_rank(2, 1).map(|_| w)?;
            if cx.dtype(w) != dtype {
                let e = OpError::model(format!("weights {} for scores {}", cx.ty(w), cx.ty(log_prob)));
                return Err(cx.at_input(2, e));
            }
            Some(cx.take(w, target, 0)?)
        }
    };
    if let Some(w) = weight {
        loss = cx.binary(BinaryOp::Mul, loss, w)?;
    }
    if let Some(ignore) = cx.int_opt("ignore_index")? {
        let to = cx.dtype(target);
        let ignore = cx.int_const(to, ignore);
        let ignored = cx.binary(BinaryOp::Eq, target, ignore)?;
        let zero = cx.scalar(dtype, 0.0);
        let of = match weight {
            Some(w) => w,
            None => cx.scalar(dtype, 1.0),
        };
        weight = Some(cx.select(ignored, zero, of)?);
        loss = cx.select(ignored, zero, loss)?;
    }
    let all: Vec<usize> = (0..places.len()).collect();
    match cx.string("reduction", "mean")?.as_str() {
        "none" => Ok(loss),
        "sum" => Ok(cx.reduce(ReduceOp::Sum, loss, &all, false)?),
        "mean" => match weight {
            None => {
                let mean = cx.mean(loss, &all)?;
                Ok(cx.squeeze(mean, &all)?)
            }
            Some(w) => {
                // Both sums at once.
                let mut f = Body::default();
                let (loss_in, w_in, row, first) =
                    (f.arg(0), f.arg(1), f.index(Poly::var(0)), f.int(DType::I32, 0));
                let first = f.binary(BinaryOp::Eq, row, first);
                f.select(first, loss_in, w_in);
                let mut pair = cx.shape(loss);
                pair.insert(0, Poly::constant(2));
                let pair = cx.map_to(f.0, &[loss, w], pair)?;
                let axes: Vec<usize> = (1..=places.len()).collect();
                let sums = cx.reduce(ReduceOp::Sum, pair, &axes, false)?;
                let loss = cx.view(sums, vec![], vec![Poly::ZERO])?;
                let w = cx.view(sums, vec![], vec![Poly::ONE])?;
                Ok(cx.binary(BinaryOp::Div, loss, w)?)
            }
        },
        other => {
            Err(OpError::model(format!("`{other}` is none of `none`, `sum`, `mean`")).attribute("reduction"))
        }
    }
}

fn negative_log_likelihood(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![likelihood(cx, x)?])
}

/// The same of `log(softmax(scores))`, which is the second output.
fn softmax_cross_entropy(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    if cx.rank(x) < 2 {
        return Err(cx.at_input(0, OpError::model(format!("needs classes along axis 1, got {}", cx.ty(x)))));
    }
    let log_prob = cx.push(Op::Softmax { axis: 1, log: true }, &[x])?;
    Ok(vec![likelihood(cx, log_prob)?, log_prob])
}

/// Losses.
pub const OPS: &[OpDef] = &[
    OpDef::new("NegativeLogLikelihoodLoss", &[12, 13, 22], negative_log_likelihood).cases(&["test_nllloss_"]),
    OpDef::new("SoftmaxCrossEntropyLoss", &[12, 13], softmax_cross_entropy).cases(&["test_sce_"]),
];
