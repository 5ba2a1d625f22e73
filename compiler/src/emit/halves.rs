//! Operands of matrix units that are in memory as the units take them: neighbours of f16 that nothing computes with.

use super::wgsl::{Module, Scope};
use crate::Diagnostic;
use crate::kernel::bindings::{Encoding, component, neighbours};
use crate::kernel::{Expr, ExprId, TensorId};
use wgfc_ir::{DType, Poly};

/// Eight neighbours of a tensor, or zeros where a condition does not hold.
pub(super) struct Eight {
    tensor: TensorId,
    /// Which eight of the tensor.
    at: Poly,
    conditions: Vec<ExprId>,
}

impl Module<'_> {
    /// The vector that eight expressions read, if that is all they do and it is one vector.
    pub(super) fn plain_eight(&self, ids: &[ExprId]) -> Option<Eight> {
        let all: Vec<(ExprId, Vec<ExprId>)> = ids.iter().map(|id| self.plain(*id)).collect::<Option<_>>()?;
        let (first, conditions) = all.first()?.clone();
        let Expr::Load { tensor: own, .. } = *self.kernel.body.expr(first) else { return None };
        let (_, binding) = self.binding(own).ok()?;
        let mut offsets = vec![];
        for (id, under) in &all {
            match self.kernel.body.expr(*id) {
                Expr::Load { tensor, offset, .. } if *tensor == own && *under == conditions => {
                    offsets.push(offset)
                }
                _ => return None,
            }
        }
        let whole =
            all.len() == 8 && binding.encoding == Encoding::Vector(4) && neighbours(offsets.iter().copied());
        let (at, _) = component(offsets.first().filter(|_| whole)?, 8)?;
        Some(Eight { tensor: own, at, conditions })
    }

    /// The load of f16 whose value an expression has where the conditions hold, and zero elsewhere.
    fn plain(&self, mut id: ExprId) -> Option<(ExprId, Vec<ExprId>)> {
        let body = &self.kernel.body;
        let mut conditions = vec![];
        loop {
            match body.expr(id) {
                // No number of f16 changes on the way.
                Expr::Cast(DType::F32 | DType::F16, a)
                    if matches!(body.dtype(*a), DType::F32 | DType::F16) =>
                {
                    id = *a;
                }
                Expr::Select(c, a, zero) if matches!(body.expr(*zero), Expr::Const(z) if z.bits == 0) => {
                    conditions.push(*c);
                    id = *a;
                }
                Expr::Load { guard, .. } if body.dtype(id) == DType::F16 => {
                    conditions.extend(guard);
                    conditions.sort_unstable();
                    conditions.dedup();
                    return Some((id, conditions));
                }
                _ => return None,
            }
        }
    }

    /// Writes the end of a function that returns the words of eight neighbours. Nothing is computed with them, so that nobody waits
    /// for them here.
    pub(super) fn return_words(&mut self, s: &mut Scope, eight: &Eight) -> Result<(), Diagnostic> {
        let (i, _) = self.binding(eight.tensor)?;
        let at = self.index(s, &eight.at)?;
        let conditions =
            eight.conditions.iter().map(|c| self.value(s, *c)).collect::<Result<Vec<_>, Diagnostic>>()?;
        let name = &self.names[i];
        if conditions.is_empty() {
            s.line(&format!("return {name}[{at}];"));
            return Ok(());
        }
        let all: Vec<&str> = conditions.iter().map(|c| &**c).collect();
        s.line("var words = vec4<u32>();");
        s.line(&format!("if ({}) {{", all.join(" & ")));
        s.line(&format!("    words = {name}[{at}];"));
        s.line("}");
        s.line("return words;");
        Ok(())
    }
}
