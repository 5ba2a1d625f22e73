//! The variables in which a row's positions are combined.

use super::handle::Handle;
use super::wgsl::{Module, Scope, reg_type};
use crate::Diagnostic;
use crate::kernel::{Body, Expr, ExprId, ReduceKind, Reduction};
use wgfc_ir::{BinaryOp, Class, DType, Reg, Scalar};

/// The value that a reduction starts from.
pub(super) fn identity(m: &mut Module, kind: ReduceKind, t: DType) -> Result<String, Diagnostic> {
    let float = |v: f64| Scalar::from_f64(t, v);
    let int = |v: i64| Scalar::from_i64(t, v);
    let bits = t.bits() as u32;
    let c = match (kind, t.class()) {
        (ReduceKind::Sum, _) => int(0),
        (ReduceKind::Prod, _) => int(1),
        (ReduceKind::Max, Class::Float) => float(f64::NEG_INFINITY),
        (ReduceKind::Max, Class::Int) => int(i64::MIN >> (64 - bits)),
        (ReduceKind::Max, _) => int(0),
        (ReduceKind::Min, Class::Float) => float(f64::INFINITY),
        (ReduceKind::Min, Class::Int) => int(i64::MAX >> (64 - bits)),
        (ReduceKind::Min, Class::Uint) => Scalar { dtype: t, bits: u64::MAX >> (64 - bits) },
        (ReduceKind::Min, Class::Bool) => int(1),
        _ => int(0),
    };
    m.literal(c)
}

/// The variables of one reduction.
pub(super) struct Accumulator<'a> {
    /// Which result.
    pub(super) index: usize,
    reduction: &'a Reduction,
    /// The same reduction at the neighbouring positions that a step takes in.
    others: &'a [Reduction],
    /// The variable of the position.
    position: String,
}

impl<'a> Accumulator<'a> {
    pub(super) fn new(index: usize, reduction: &'a Reduction, others: &'a [Reduction]) -> Accumulator<'a> {
        Accumulator { index, reduction, others, position: "v1".into() }
    }
    /// The same over the positions that variable `%i` numbers.
    pub(super) fn over(self, i: usize) -> Accumulator<'a> {
        Accumulator { position: format!("v{i}"), ..self }
    }
    fn parts(&self) -> impl Iterator<Item = &'a Reduction> + use<'a> {
        std::iter::once(self.reduction).chain(self.others)
    }
    fn operator(&self) -> Option<BinaryOp> {
        match self.reduction.kind {
            ReduceKind::Sum => Some(BinaryOp::Add),
            ReduceKind::Prod => Some(BinaryOp::Mul),
            ReduceKind::Max => Some(BinaryOp::Max),
            ReduceKind::Min => Some(BinaryOp::Min),
            _ => None,
        }
    }
    /// Names and types of the variables that lanes combine.
    pub(super) fn variables(&self, body: &Body) -> Vec<(String, Reg)> {
        let i = self.index;
        if self.operator().is_some() {
            return vec![(format!("acc{i}"), self.reduction.dtype.reg())];
        }
        vec![(format!("best{i}"), body.dtype(self.reduction.value).reg()), (format!("at{i}"), Reg::I32)]
    }
    /// Declares the variables.
    pub(super) fn declare(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let i = self.index;
        if self.operator().is_some() {
            let first = identity(m, self.reduction.kind, self.reduction.dtype)?;
            s.line(&format!("var acc{i} = {first};"));
        } else {
            let t = reg_type(m.kernel.body.dtype(self.reduction.value).reg());
            s.line(&format!("var best{i}: {t};"));
            s.line(&format!("var at{i} = -1;"));
        }
        Ok(())
    }
    /// Of floats the larger or the smaller as WGSL has it, which may leave a NaN out: this is done for every element.
    pub(super) fn combine(&self, m: &mut Module, a: &str, b: &str) -> Result<String, Diagnostic> {
        let op = self.operator().unwrap_or(BinaryOp::Add);
        if self.reduction.dtype.is_float() && matches!(op, BinaryOp::Max | BinaryOp::Min) {
            return Ok(format!("{}({a}, {b})", op.name()));
        }
        Ok(m.binary(op, self.reduction.dtype, (a, b), (&Expr::Acc(0), &Expr::Acc(0)))?.into_string())
    }
    /// Whether value `a` comes before `b` by value alone, and whether they are equal.
    fn order(&self, m: &mut Module, a: &str, b: &str) -> Result<(String, String), Diagnostic> {
        let t = m.kernel.body.dtype(self.reduction.value);
        let largest = matches!(self.reduction.kind, ReduceKind::Arg { largest: true, .. });
        let op = if largest { BinaryOp::Gt } else { BinaryOp::Lt };
        let acc = (&Expr::Acc(0), &Expr::Acc(0));
        let better = m.binary(op, t, (a, b), acc)?.into_string();
        let equal = m.binary(BinaryOp::Eq, t, (a, b), acc)?.into_string();
        Ok((better, equal))
    }
    /// Takes in the position, or the neighbours that it makes as the number of a step.
    pub(super) fn update(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let (i, position) = (self.index, &self.position);
        if self.operator().is_some() {
            let e = self.joined(m, s)?;
            let next = self.combine(m, &format!("acc{i}"), &e)?;
            s.line(&format!("acc{i} = {next};"));
            return Ok(());
        }
        for (n, part) in self.parts().enumerate() {
            let take = match part.kind {
                ReduceKind::Last { when, .. } => m.value(s, when)?.to_string(),
                kind => {
                    let e = m.value(s, part.value)?;
                    let (better, equal) = self.order(m, &e, &format!("best{i}"))?;
                    let last = matches!(kind, ReduceKind::Arg { last: true, .. });
                    // `||` is a branch, of which neighbours would make many.
                    let or = if self.others.is_empty() { "||" } else { "|" };
                    let equal = if last { format!(" {or} ({equal})") } else { String::new() };
                    format!("(at{i} < 0) {or} ({better}){equal}")
                }
            };
            let e = m.value(s, part.value)?;
            match self.others.len() {
                0 => {
                    s.line(&format!("if ({take}) {{"));
                    s.line(&format!("    best{i} = {e};"));
                    s.line(&format!("    at{i} = {position};"));
                    s.line("}");
                }
                others => {
                    let take = s.let_value(&take);
                    s.line(&format!("best{i} = select(best{i}, {e}, {take});"));
                    s.line(&format!("at{i} = select(at{i}, {position} * {} + {n}, {take});", others + 1));
                }
            }
        }
        Ok(())
    }
    /// Neighbours combined in pairs, so that a lane does not wait for one after another.
    fn joined(&self, m: &mut Module, s: &mut Scope) -> Result<String, Diagnostic> {
        let mut values = vec![];
        for part in self.parts() {
            values.push(m.operand(s, part.value, !self.others.is_empty())?);
        }
        while values.len() > 1 {
            let mut pairs = vec![];
            for pair in values.chunks(2) {
                pairs.push(match pair {
                    [a, b] => {
                        let text = self.combine(m, a, b)?;
                        s.let_value(&text)
                    }
                    [one, ..] => one.clone(),
                    [] => continue,
                });
            }
            values = pairs;
        }
        Ok(values.concat())
    }
    /// Combines the variables of two lanes, `a_…` and `b_…`, into the `a_…`.
    pub(super) fn merge(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let i = self.index;
        let take = match self.reduction.kind {
            ReduceKind::Arg { last, .. } => {
                let (better, equal) = self.order(m, &format!("b_best{i}"), &format!("a_best{i}"))?;
                let side = if last { ">" } else { "<" };
                format!(
                    "b_at{i} >= 0 && (a_at{i} < 0 || ({better}) || (({equal}) && b_at{i} {side} a_at{i}))"
                )
            }
            ReduceKind::Last { .. } => format!("b_at{i} > a_at{i}"),
            _ => {
                let v = self.combine(m, &format!("a_acc{i}"), &format!("b_acc{i}"))?;
                s.line(&format!("a_acc{i} = {v};"));
                return Ok(());
            }
        };
        s.line(&format!("if ({take}) {{"));
        s.line(&format!("    a_best{i} = b_best{i};"));
        s.line(&format!("    a_at{i} = b_at{i};"));
        s.line("}");
        Ok(())
    }
    /// Declares the result where it is not a variable already.
    pub(super) fn finish(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let i = self.index;
        match self.reduction.kind {
            ReduceKind::Arg { .. } => {
                let at = m
                    .cast(DType::I32, self.reduction.dtype, &Handle::inline(format!("max(at{i}, 0)")))?
                    .into_string();
                s.line(&format!("let acc{i} = {at};"));
            }
            ReduceKind::Last { init, .. } => {
                let init = m.value(s, init)?;
                s.line(&format!("let acc{i} = select({init}, best{i}, at{i} >= 0);"));
            }
            _ => {}
        }
        Ok(())
    }
    /// The expressions it evaluates at every step.
    pub(super) fn roots(&self) -> Vec<ExprId> {
        let of = |r: &Reduction| match r.kind {
            ReduceKind::Last { when, .. } => vec![when, r.value],
            _ => vec![r.value],
        };
        self.parts().flat_map(of).collect()
    }
}
