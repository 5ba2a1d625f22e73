//! Classification losses.

use crate::import::onnx::prelude::*;
use crate::lower::loss::{self, Loss, Total};
use wgfc_ir::Value;

/// The negative log-likelihood for log-probabilities; inputs 1 and 2 are targets and weights.
fn likelihood(cx: &mut Cx, log_prob: Value) -> Result<Value> {
    let (target, weights) = (cx.input(1)?, cx.opt(2));
    let total = match cx.string("reduction", "mean")?.as_str() {
        "none" => Total::Each,
        "sum" => Total::Sum,
        "mean" => Total::Mean,
        other => {
            let e = format!("`{other}` is none of `none`, `sum`, `mean`");
            return Err(OpError::model(e).attribute("reduction"));
        }
    };
    let p = Loss { ignored: cx.int_opt("ignore_index")?, total, smoothing: 0.0 };
    loss::likelihood(cx, log_prob, target, weights, &p)
}

fn negative_log_likelihood(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![likelihood(cx, x)?])
}

/// The loss, and as the second output the log-probabilities.
fn softmax_cross_entropy(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let log_prob = loss::log_softmax(cx, x)?;
    Ok(vec![likelihood(cx, log_prob)?, log_prob])
}

/// Losses.
pub const OPS: &[OpDef] = &[
    OpDef::new("NegativeLogLikelihoodLoss", &[12, 13, 22], negative_log_likelihood).cases(&["test_nllloss_"]),
    OpDef::new("SoftmaxCrossEntropyLoss", &[12, 13], softmax_cross_entropy).cases(&["test_sce_"]),
];
