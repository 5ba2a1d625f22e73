//! Combining the parts of attention with split keys.

use super::{Puller, Resolver, flat_offset};
use crate::kernel::{Expr, ExprId, TensorId};
use wgfc_ir::{BinaryOp, DType, Dim, Poly, TensorType, UnaryOp};

/// The partial results of attention with split keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The maximum number of parts, for which there is memory.
    pub count: u32,
    /// The number of parts.
    pub len: Dim,
    /// `Σₜ exp(score − highest)·v`, shape `[…, s, parts, e]`.
    pub sums: TensorId,
    /// The highest score and `Σₜ exp(score − highest)`, shape `[…, s, parts, 2]`.
    pub scales: TensorId,
}

impl<R: Resolver> Puller<'_, R> {
    /// `Σ wᵢ·sumᵢ / Σ wᵢ·totalᵢ` with `wᵢ = exp(highestᵢ − the highest of all)`.
    pub(super) fn join_parts(
        &mut self,
        parts: &Parts,
        ty: &TensorType,
        index: &[Poly],
        guard: Option<ExprId>,
    ) -> ExprId {
        let count = i64::from(parts.count);
        let all: Vec<[ExprId; 3]> =
            (0..count).map(|i| self.part(parts, ty, index, &Poly::constant(i), guard)).collect();
        let mut top = all[0][1];
        for part in &all[1..] {
            top = self.binary(BinaryOp::Max, top, part[1]);
        }
        let (mut sum, mut total) = (self.f32(0.0), self.f32(0.0));
        for [s, highest, t] in all {
            let [s, t] = self.weighted(highest, top, [s, t]);
            sum = self.binary(BinaryOp::Add, sum, s);
            total = self.binary(BinaryOp::Add, total, t);
        }
        self.over_total(sum, total, ty.dtype)
    }

    /// The sum, the highest score and the total of part `part`.
    pub fn part(
        &mut self,
        parts: &Parts,
        ty: &TensorType,
        index: &[Poly],
        part: &Poly,
        guard: Option<ExprId>,
    ) -> [ExprId; 3] {
        let count = i64::from(parts.count);
        let outer = index.len().saturating_sub(1);
        let row = &(&flat_offset(&ty.shape[..outer], &index[..outer], &self.domain) * count) + part;
        let element = match (ty.shape.last(), index.last()) {
            (Some(e), Some(i)) => &(&row * e) + i,
            _ => row.clone(),
        };
        let row = &row * 2;
        let mut load = |tensor, offset| self.push(Expr::Load { tensor, offset, guard }, DType::F32);
        let sum = load(parts.sums, element);
        let highest = load(parts.scales, row.clone());
        [sum, highest, load(parts.scales, &row + &Poly::constant(1))]
    }

    /// A part's values scaled to the overall highest score `top`: times `exp(highest − top)`.
    pub fn weighted(&mut self, highest: ExprId, top: ExprId, values: [ExprId; 2]) -> [ExprId; 2] {
        let least = self.f32(-200.0);
        let below = self.binary(BinaryOp::Sub, highest, top);
        let below = self.binary(BinaryOp::Max, below, least);
        let weight = self.unary(UnaryOp::Exp, below);
        values.map(|v| self.binary(BinaryOp::Mul, weight, v))
    }

    /// The final result from the sums over all parts.
    pub fn over_total(&mut self, sum: ExprId, total: ExprId, to: DType) -> ExprId {
        let tiny = self.f32(1e-30);
        let total = self.binary(BinaryOp::Max, total, tiny);
        let r = self.binary(BinaryOp::Div, sum, total);
        self.cast(r, to)
    }
}
