//! Tensors of a training step whose loss is scaled ([`loss_scale`](crate::loss_scale)).
//!
//! A value that is computed from the scale is a scaled gradient, until the inverse of the scale, an integer or a condition comes into
//! it: then it belongs to the optimizer, and so does everything that is computed from it.

use crate::kernel::{Expr, ExprId, Family, Kernel, KernelGraph, Store, TensorId, TensorKind};
use crate::loss_scale::{INVERSE, SCALE};

/// The part of a training step to which a value belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The forward pass, or a factor of the backward pass.
    #[default]
    Other,
    /// Gradients, multiplied by the scale of the loss.
    Scaled,
    /// The optimizer.
    Optimizer,
}

/// The part of each tensor; all are [`Part::Other`] if no loss is scaled.
#[derive(Clone, Debug)]
pub struct Parts {
    of: Vec<Part>,
    /// Tensors that nothing but the optimizer reads.
    behind: Vec<bool>,
    /// Scaled gradients that the optimizer reads, and sums of them.
    last: Vec<bool>,
}

impl Parts {
    /// The parts of a graph's tensors.
    pub fn new(graph: &KernelGraph) -> Parts {
        let given = |t: &crate::kernel::KernelTensor| match (&t.kind, t.name.as_deref()) {
            (TensorKind::State { .. }, Some(SCALE)) => Part::Scaled,
            (TensorKind::State { .. }, Some(INVERSE)) => Part::Optimizer,
            _ => Part::Other,
        };
        let of: Vec<Part> = graph.tensors.iter().map(given).collect();
        let mut parts = Parts { behind: vec![false; of.len()], last: vec![false; of.len()], of };
        if parts.of.iter().all(|p| *p == Part::Other) {
            return parts;
        }
        // Kernels that repeat read what later ones write.
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for k in &graph.kernels {
                let all = parts.kernel(k);
                for s in k.all_stores() {
                    let part = all.get(s.value as usize).copied().unwrap_or_default();
                    let state = matches!(graph.tensors[s.tensor].kind, TensorKind::State { .. });
                    if !state && part > parts.of[s.tensor] {
                        parts.of[s.tensor] = part;
                        changed = true;
                    }
                }
            }
        }
        let mut needed = vec![false; parts.of.len()];
        for k in &graph.kernels {
            let all = parts.kernel(k);
            let of_family: Vec<ExprId> = k.family.parts().0.into_iter().copied().collect();
            let updates = |s: &Store| {
                let state = matches!(graph.tensors[s.tensor].kind, TensorKind::State { .. });
                state || all.get(s.value as usize) == Some(&Part::Optimizer)
            };
            for s in k.all_stores().filter(|s| !updates(s)) {
                let roots: Vec<ExprId> = s.reads().chain(of_family.iter().copied()).collect();
                for e in k.body.reachable(&roots) {
                    if let Expr::Load { tensor, .. } = k.body.expr(e) {
                        needed[*tensor] = true;
                    }
                }
            }
        }
        for k in &graph.kernels {
            parts.mark_last(k);
        }
        let other = |t: TensorId| parts.of[t] == Part::Other;
        parts.behind = needed.iter().enumerate().map(|(t, needed)| other(t) && !needed).collect();
        parts
    }

    /// The part of a tensor.
    pub fn of(&self, t: TensorId) -> Part {
        self.of.get(t).copied().unwrap_or_default()
    }

    /// Whether only the optimizer computes or reads a tensor, unscaled.
    pub fn is_of_optimizer(&self, t: TensorId) -> bool {
        self.of(t) == Part::Optimizer || self.behind.get(t) == Some(&true)
    }

    /// Whether a tensor is a scaled gradient that stays f32: the optimizer reads it, or it is a sum of rows or columns. A sum may be
    /// beyond the range of f16 though no term is, and takes little memory.
    pub fn is_last(&self, t: TensorId) -> bool {
        self.last.get(t) == Some(&true)
    }

    fn mark_last(&mut self, k: &Kernel) {
        let all = self.kernel(k);
        let at = |e: ExprId| all.get(e as usize).copied().unwrap_or_default();
        for (_, e, _) in k.body.iter() {
            let (Expr::Binary(_, a, b) | Expr::Select(_, a, b)) = e else { continue };
            for (x, other) in [(*a, *b), (*b, *a)] {
                if let (Part::Scaled, Part::Optimizer, Expr::Load { tensor, .. }) =
                    (at(x), at(other), k.body.expr(x))
                {
                    self.last[*tensor] = true;
                }
            }
        }
        let sums: Vec<TensorId> = match &k.family {
            Family::Row(r) => r.row_stores.iter().map(|s| s.tensor).collect(),
            Family::Matmul(m) if m.m.is(1) || m.n.is(1) => k.writes(),
            _ => vec![],
        };
        for t in sums.into_iter().filter(|t| self.of(*t) == Part::Scaled).collect::<Vec<_>>() {
            self.last[t] = true;
        }
    }

    /// The part of each expression of a kernel.
    pub fn kernel(&self, k: &Kernel) -> Vec<Part> {
        let mut all = vec![Part::Other; k.body.iter().count()];
        // An expression may read the result of a reduction whose operand stands behind it.
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for (id, e, dtype) in k.body.iter() {
                let part = self.expr(k, e, &all);
                let whole = part == Part::Scaled && !dtype.is_float();
                let part = if whole { Part::Optimizer } else { part };
                if let Some(old) = all.get_mut(id as usize).filter(|old| **old < part) {
                    *old = part;
                    changed = true;
                }
            }
        }
        all
    }

    fn expr(&self, k: &Kernel, e: &Expr, all: &[Part]) -> Part {
        let at = |e: &ExprId| all.get(*e as usize).copied().unwrap_or_default();
        match e {
            Expr::Const(_) | Expr::Index(_) => Part::Other,
            Expr::Load { tensor, .. } => self.of(*tensor),
            Expr::Acc(i) => {
                let i = *i as usize;
                let own: Vec<&ExprId> = match &k.family {
                    Family::Row(r) => r.reductions.get(i).map(|r| &r.value).into_iter().collect(),
                    Family::Matmul(m) => [&m.a].into_iter().chain(m.b.get(i)).collect(),
                    f => f.parts().0,
                };
                own.into_iter().map(at).max().unwrap_or_default()
            }
            Expr::Shared { .. } => k.family.parts().0.into_iter().map(at).max().unwrap_or_default(),
            Expr::Unary(_, a) | Expr::Cast(_, a) | Expr::Bitcast(_, a) => at(a),
            Expr::Binary(_, a, b) => at(a).max(at(b)),
            Expr::Select(c, a, b) => at(c).max(at(a)).max(at(b)),
        }
    }
}
