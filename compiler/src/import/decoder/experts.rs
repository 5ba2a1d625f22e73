//! Mixtures of experts.

use super::{Activation, LayerPart};
use crate::lower::{Lowering, Result, order, softmax};
use wgfc_ir::{BinaryOp as B, Contract, Dim, Op, ReduceOp, Value};

/// A mixture of experts: each token is computed by those of the highest scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The number of experts.
    pub count: usize,
    /// The number of experts of a token.
    pub used: usize,
    /// The number of hidden elements of an expert.
    pub hidden: usize,
    /// Whether the weights of a token's experts sum to 1.
    pub normalised: bool,
}

impl Experts {
    /// The experts' sum for `x`, `[batch, seq, width]`; `load` gives a weight of the layer.
    pub fn build(
        &self,
        cx: &mut Lowering,
        x: Value,
        activation: Activation,
        load: &mut dyn FnMut(&mut Lowering, LayerPart) -> Result<Value>,
    ) -> Result<Value> {
        let router = load(cx, LayerPart::Router)?;
        let scores = super::build::linear(cx, x, router)?;
        let used = Dim::from(self.used);
        let (weights, chosen) = match self.normalised {
            // The softmax of the highest scores is that of all scores, divided by the sum over the highest.
            true => {
                let [best, chosen] = order::sort(cx, scores, 2, &used, true)?;
                (softmax::along(cx, best, 2, false)?, chosen)
            }
            false => {
                let all = softmax::along(cx, scores, 2, false)?;
                let [best, chosen] = order::sort(cx, all, 2, &used, true)?;
                (best, chosen)
            }
        };
        // Labels: 0 batch, 1 seq, 2 the token's experts, 3 results, 4 operands.
        let product = |cx: &mut Lowering, x: Value, of: &[u8], w: Value| {
            let w = cx.take(w, chosen, 0)?;
            let c = Contract { a: of.to_vec(), b: vec![0, 1, 2, 3, 4], out: vec![0, 1, 2, 3] };
            cx.push(Op::Contract(c), &[x, w])
        };
        let gates = load(cx, LayerPart::ExpertGates)?;
        let ups = load(cx, LayerPart::ExpertUps)?;
        let gate = product(cx, x, &[0, 1, 4], gates)?;
        let up = product(cx, x, &[0, 1, 4], ups)?;
        let gate = activation.of(cx, gate)?;
        let hidden = cx.binary(B::Mul, gate, up)?;
        let downs = load(cx, LayerPart::ExpertDowns)?;
        let each = product(cx, hidden, &[0, 1, 2, 4], downs)?;
        let weights = cx.unsqueeze(weights, &[3])?;
        let weighted = cx.binary(B::Mul, each, weights)?;
        Ok(cx.reduce(ReduceOp::Sum, weighted, &[2], false)?)
    }
}
