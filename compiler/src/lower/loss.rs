//! Classification losses.

use super::{Lowering, OpError, Result};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Body, DType, Op, Poly, ReduceOp, UnaryOp, Value};

/// The reduction of the losses of all elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// No reduction.
    Each,
    /// The sum.
    Sum,
    /// The sum, divided by the sum of the weights.
    Mean,
}

/// Parameters of [`likelihood`].
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// A target class whose elements are ignored.
    pub ignored: Option<i64>,
    /// The reduction.
    pub total: Total,
    /// Label smoothing, from 0 to 1: the share of the target that is spread evenly over all classes.
    pub smoothing: f64,
}

/// The negative log-likelihood `−log_prob[n, target, …] · weight[target]`, 0 where the target is ignored. `log_prob`
/// is `[N, C, …]`, the target `[N, …]`, weights `[C]`. With smoothing `s` it is `1 - s` times that plus `s` times the
/// mean over all classes.
pub fn likelihood(
    cx: &mut Lowering,
    log_prob: Value,
    target: Value,
    weights: Option<Value>,
    p: &Loss,
) -> Result {
    let target = cx.require_indices(target)?;
    let (classes, places) = (cx.shape(log_prob), cx.shape(target));
    if classes.len() < 2 || places.len() + 1 != classes.len() {
        let e = OpError::model(format!("targets {} for scores {}", cx.ty(target), cx.ty(log_prob)));
        return Err(e.operand(target));
    }
    for (a, b) in places.iter().zip(classes.iter().take(1).chain(&classes[2..])) {
        if a.as_const().is_some() && b.as_const().is_some() && a != b {
            let e = OpError::model(format!("targets {} for scores {}", cx.ty(target), cx.ty(log_prob)));
            return Err(e.operand(target));
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

    let mut weight = match weights {
        None => None,
        Some(w) => {
            cx.require_rank(w, 1)?;
            if cx.dtype(w) != dtype {
                let e = OpError::model(format!("weights {} for scores {}", cx.ty(w), cx.ty(log_prob)));
                return Err(e.operand(w));
            }
            Some(cx.take(w, target, 0)?)
        }
    };
    if let Some(w) = weight {
        loss = cx.binary(BinaryOp::Mul, loss, w)?;
    }
    if p.smoothing != 0.0 {
        let all = match weights {
            Some(w) => {
                let trailing: Vec<usize> = (1..classes.len() - 1).collect();
                let w = cx.unsqueeze(w, &trailing)?;
                cx.binary(BinaryOp::Mul, log_prob, w)?
            }
            None => log_prob,
        };
        let all = cx.mean(all, &[1])?;
        let all = cx.squeeze(all, &[1])?;
        let all = cx.binary_scalar(BinaryOp::Mul, all, p.smoothing)?;
        loss = cx.binary_scalar(BinaryOp::Mul, loss, 1.0 - p.smoothing)?;
        loss = cx.binary(BinaryOp::Sub, loss, all)?;
    }
    if let Some(ignore) = p.ignored {
        let to = cx.dtype(target);
        let ignore = cx.int(to, ignore);
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
    match p.total {
        Total::Each => Ok(loss),
        Total::Sum => Ok(cx.reduce(ReduceOp::Sum, loss, &all, false)?),
        Total::Mean => match weight {
            None => {
                let mean = cx.mean(loss, &all)?;
                Ok(cx.squeeze(mean, &all)?)
            }
            Some(w) => {
                // The sums of the losses and of the weights in one reduction.
                let (loss, w) = (cx.widened(loss)?, cx.widened(w)?);
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
                let mean = cx.binary(BinaryOp::Div, loss, w)?;
                Ok(cx.cast(mean, dtype)?)
            }
        },
    }
}

/// The log-softmax over the classes along axis 1; its [`likelihood`] is the cross entropy.
pub fn log_softmax(cx: &mut Lowering, scores: Value) -> Result {
    if cx.rank(scores) < 2 {
        let e = format!("needs classes along axis 1, got {}", cx.ty(scores));
        return Err(OpError::model(e).operand(scores));
    }
    Ok(cx.push(Op::Softmax { axis: 1, log: true }, &[scores])?)
}
