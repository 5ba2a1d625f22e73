//! Values of neighbours that are one vector.

use super::listing::{Element, Item};
use crate::Diagnostic;
use crate::emit::handle::Handle;
use crate::emit::ops::inverses;
use crate::emit::wgsl::{Module, Scope};
use crate::kernel::{Body, Expr, ExprId};
use wgfc_ir::{BinaryOp, Reg};
use wgfc_loops::{Kernel, Space};

/// The elements of a vector.
pub(super) const WIDTH: usize = 4;

/// The components of a vector.
pub(super) const COMPONENTS: [&str; WIDTH] = ["x", "y", "z", "w"];

/// Values of neighbours, of type f32.
enum Lanes {
    /// All the same.
    Same(Handle),
    /// A vector.
    Vector(String, Form),
}

/// The outermost operator of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Name,
    Product,
    Sum,
}

/// Whether the variables of each register are vectors of four: all statements set whole vectors, and some sets them to sums or products of
/// vectors or stores them as one to workgroup memory.
pub(super) fn vector_registers(
    kernel: &Kernel,
    items: &[Item],
    body: &Body,
    variables: &[Element],
    widths: &[u32],
) -> Vec<bool> {
    let mut out: Vec<bool> = kernel
        .tensors
        .iter()
        .map(|t| {
            let whole = t.elements().as_const().is_some_and(|n| n % WIDTH as i64 == 0);
            t.space == Space::Register && whole && t.dtype.reg() == Reg::F32
        })
        .collect();
    let mut gains = vec![false; kernel.tensors.len()];
    let sum = |v: &[ExprId]| {
        let operator = |id: &ExprId| match body.expr(*id) {
            Expr::Binary(op @ (BinaryOp::Add | BinaryOp::Mul), ..) => Some(*op),
            _ => None,
        };
        operator(&v[0]).is_some() && v.iter().all(|id| operator(id) == operator(&v[0]))
    };
    items.iter().for_each(|i| {
        i.visit(&mut |i| match i {
            Item::Set(e, values) => {
                let whole = e.element % WIDTH as i64 == 0 && values.len().is_multiple_of(WIDTH);
                out[e.tensor] &= whole;
                gains[e.tensor] |= whole && values.chunks(WIDTH).any(sum);
            }
            Item::Write { tensor, values, .. } if widths[*tensor] as usize == WIDTH => {
                for id in values {
                    let id = if let Expr::Select(_, a, _) = body.expr(*id) { a } else { id };
                    if let Expr::Acc(a) = body.expr(*id)
                        && let Some(e) = variables.get(*a as usize)
                    {
                        gains[e.tensor] = true;
                    }
                }
            }
            _ => {}
        });
    });
    out.iter().zip(gains).map(|(whole, gains)| *whole && gains).collect()
}

impl Module<'_> {
    /// The text of a vector of these values.
    pub(super) fn vector_text(
        &mut self,
        s: &mut Scope,
        ids: &[ExprId],
        ty: &str,
    ) -> Result<String, Diagnostic> {
        let lanes = if ids.len() == WIDTH { self.lanes(s, ids)? } else { None };
        Ok(match lanes {
            Some(Lanes::Vector(text, _)) => text,
            Some(Lanes::Same(v)) => format!("vec{WIDTH}<{ty}>({v})"),
            None => {
                let mut all = vec![];
                for id in ids {
                    all.push(self.inline(s, *id)?);
                }
                format!("vec{}<{ty}>({})", ids.len(), all.join(", "))
            }
        })
    }

    /// The name of the vector that these variables are, if they are one.
    pub(super) fn variable_of(
        &mut self,
        s: &mut Scope,
        ids: &[ExprId],
    ) -> Result<Option<String>, Diagnostic> {
        let body = &self.kernel.body;
        if ids.len() != WIDTH || !ids.iter().all(|id| matches!(body.expr(*id), Expr::Acc(_))) {
            return Ok(None);
        }
        Ok(match self.lanes(s, ids)? {
            Some(Lanes::Vector(text, _)) => Some(text),
            _ => None,
        })
    }

    /// The terms that are added to the vector `name`, if these values are the sums of its elements and one term each.
    pub(super) fn added_to(
        &mut self,
        s: &mut Scope,
        name: &str,
        ids: &[ExprId],
    ) -> Result<Option<Vec<ExprId>>, Diagnostic> {
        let parts = ids.iter().map(|id| match self.kernel.body.expr(*id) {
            Expr::Binary(BinaryOp::Add, a, b) => Some((*a, *b)),
            _ => None,
        });
        let Some((variables, added)) = parts.collect::<Option<(Vec<ExprId>, Vec<ExprId>)>>() else {
            return Ok(None);
        };
        Ok(self.variable_of(s, &variables)?.filter(|v| v == name).map(|_| added))
    }

    /// The values of neighbours as one, where that is a variable, a vector in memory, or a sum or product of these.
    fn lanes(&mut self, s: &mut Scope, ids: &[ExprId]) -> Result<Option<Lanes>, Diagnostic> {
        let Some((first, others)) = ids.split_first() else { return Ok(None) };
        if others.iter().all(|id| id == first) {
            return Ok(Some(Lanes::Same(self.value(s, *first)?)));
        }
        let body = &self.kernel.body;
        let of = |id: &ExprId| match body.expr(*id) {
            Expr::Binary(op @ (BinaryOp::Add | BinaryOp::Mul), a, b)
                if body.dtype(*id).reg() == Reg::F32 && inverses(body, *op, *a, *b) == (*op, *a, *b) =>
            {
                Some((*op, *a, *b))
            }
            _ => None,
        };
        if let Some((op, ..)) = of(first) {
            let parts: Option<Vec<_>> = ids.iter().map(of).collect();
            let Some(parts) = parts.filter(|p| p.iter().all(|p| p.0 == op)) else { return Ok(None) };
            let (a, b): (Vec<_>, Vec<_>) = parts.into_iter().map(|p| (p.1, p.2)).unzip();
            let (Some(a), Some(b)) = (self.lanes(s, &a)?, self.lanes(s, &b)?) else { return Ok(None) };
            let (sign, form) = if op == BinaryOp::Add { ('+', Form::Sum) } else { ('*', Form::Product) };
            // Terms are added in the order of the expression.
            let text = |v: Lanes, right: bool| match v {
                Lanes::Same(h) => h.to_string(),
                Lanes::Vector(t, Form::Sum) if right || form == Form::Product => format!("({t})"),
                Lanes::Vector(t, Form::Product) if right && form == Form::Product => format!("({t})"),
                Lanes::Vector(t, _) => t,
            };
            let text = format!("{} {sign} {}", text(a, false), text(b, true));
            return Ok(Some(Lanes::Vector(text, form)));
        }
        if let Expr::Select(c, ..) = body.expr(*first) {
            // A selection by a comparison of floats has a text of its own, which detects NaN by its bits.
            let parts: Option<(Vec<_>, Vec<_>)> = ids
                .iter()
                .map(|id| match body.expr(*id) {
                    Expr::Select(own, a, b) if own == c && body.dtype(*id).reg() == Reg::F32 => {
                        Some((*a, *b))
                    }
                    _ => None,
                })
                .collect();
            let of_floats = body.operands(*c).iter().any(|x| body.dtype(*x).is_float());
            let Some((a, b)) = parts.filter(|_| !of_floats) else { return Ok(None) };
            let (Some(a), Some(b)) = (self.lanes(s, &a)?, self.lanes(s, &b)?) else { return Ok(None) };
            let text = |v: Lanes| match v {
                Lanes::Same(h) => format!("vec{WIDTH}<f32>({h})"),
                Lanes::Vector(t, _) => t,
            };
            let c = self.value(s, *c)?;
            return Ok(Some(Lanes::Vector(format!("select({}, {}, {c})", text(b), text(a)), Form::Name)));
        }
        if !ids
            .iter()
            .all(|id| matches!(body.expr(*id), Expr::Acc(_) | Expr::Shared { .. } | Expr::Load { .. }))
        {
            return Ok(None);
        }
        let mut vector: Option<String> = None;
        for (id, component) in ids.iter().zip(COMPONENTS) {
            let v = self.value(s, *id)?;
            let whole = v.strip_suffix(component).and_then(|v| v.strip_suffix('.'));
            let Some(whole) = whole.filter(|w| vector.as_deref().is_none_or(|v| v == *w)) else {
                return Ok(None);
            };
            vector = Some(whole.to_owned());
        }
        Ok(vector.map(|v| Lanes::Vector(v, Form::Name)))
    }
}
