//! The variables in which a row's positions are combined.
//!
//! The largest of numbers and NaN is NaN, and so is the smallest. WGSL's own functions may leave NaN out, so that a lane
//! combines what it reads with these and keeps beside it the bits of what would be NaN, two cheap operations a position;
//! before lanes combine, NaN takes the place of the rest ([`Accumulator::settle`]).

use super::handle::Handle;
use super::ops::{INFINITY, nan};
use super::wgsl::{Module, Scope, reg_type};
use crate::Diagnostic;
use crate::kernel::dependence::{Dependence, acc_bit};
use crate::kernel::{Body, Expr, ExprId, Kernel, ReduceKind, Reduction, Row, Store};
use crate::schedule::rows::group;
use wgfc_ir::{BinaryOp, Class, DType, ReduceOp, Reg, Scalar, UnaryOp};

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
    /// This reduction at the neighbouring positions that a step takes in.
    others: &'a [Reduction],
    /// The variable of the position.
    position: String,
    not_numbers: NotNumbers,
}

/// How the largest or the smallest of floats comes to be NaN where one of them is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NotNumbers {
    /// A lane looks for NaN beside its numbers.
    Beside,
    /// At once, as the combination is read after each position.
    AtOnce,
    /// It need not: whoever reads the result comes to NaN without.
    Left,
}

/// Whether result `i` of a row kernel, the largest of its values, is needed for exponentials that are summed, and whatever
/// else reads it reads their sum as well: it is NaN then if a value is.
pub(super) fn sum_shows_nan(kernel: &Kernel, row: &Row, deps: &Dependence, i: usize, width: usize) -> bool {
    let body = &kernel.body;
    let is_exponential = |r: &Reduction, value: ExprId| {
        let Expr::Unary(UnaryOp::Exp, shifted) = body.expr(r.value) else { return false };
        let Expr::Binary(BinaryOp::Sub, x, most) = body.expr(*shifted) else { return false };
        *x == value && matches!(body.expr(*most), Expr::Acc(a) if *a as usize == i)
    };
    let all = &row.reductions;
    let sum = (0..all.len() / width).find(|s| {
        group(all, *s, width)
            .iter()
            .zip(group(all, i, width))
            .all(|(r, of)| r.kind == ReduceKind::Sum && is_exponential(r, of.value))
    });
    let Some(sum) = sum else { return false };
    let stored = kernel.stores.iter().chain(&row.row_stores).flat_map(Store::reads);
    let others = all.iter().enumerate().filter(|(at, _)| at / width != sum);
    let mut readers = stored.chain(others.flat_map(|(_, r)| r.roots()));
    readers.all(|e| deps.expr(e) & acc_bit(i as u32) == 0 || deps.expr(e) & acc_bit(sum as u32) != 0)
}

/// The bits of an f32 without its sign, which are above those of ∞ where it is NaN.
fn magnitude(x: &str) -> String {
    format!("bitcast<u32>({x}) & 0x7fffffffu")
}

impl<'a> Accumulator<'a> {
    pub(super) fn new(index: usize, reduction: &'a Reduction, others: &'a [Reduction]) -> Accumulator<'a> {
        Accumulator { index, reduction, others, position: "v1".into(), not_numbers: NotNumbers::Beside }
    }
    /// This accumulator, read after every position.
    pub(super) fn running(self) -> Self {
        Accumulator { not_numbers: NotNumbers::AtOnce, ..self }
    }
    /// This accumulator, which may leave NaN out.
    pub(super) fn without_nan(self) -> Self {
        Accumulator { not_numbers: NotNumbers::Left, ..self }
    }
    /// This accumulator over the positions that variable `%i` numbers.
    pub(super) fn over(self, i: usize) -> Accumulator<'a> {
        Accumulator { position: format!("v{i}"), ..self }
    }
    /// This accumulator over positions of this name.
    pub(super) fn named(self, position: String) -> Accumulator<'a> {
        Accumulator { position, ..self }
    }
    fn parts(&self) -> impl Iterator<Item = &'a Reduction> + use<'a> {
        std::iter::once(self.reduction).chain(self.others)
    }
    fn operator(&self) -> Option<BinaryOp> {
        self.reduction.kind.operation().map(ReduceOp::operator)
    }
    /// WGSL's function, where this is the largest or the smallest of floats.
    fn extreme(&self) -> Option<&'static str> {
        let op = self.operator()?;
        let extreme = self.reduction.dtype.is_float() && matches!(op, BinaryOp::Max | BinaryOp::Min);
        extreme.then(|| op.name())
    }
    /// Whether a lane looks for NaN beside its numbers.
    fn looks(&self) -> bool {
        self.not_numbers == NotNumbers::Beside && self.extreme().is_some()
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
            if self.looks() {
                s.line(&format!("var nan{i} = 0u;"));
            }
        } else {
            let t = reg_type(m.kernel.body.dtype(self.reduction.value).reg());
            s.line(&format!("var best{i}: {t};"));
            s.line(&format!("var at{i} = -1;"));
        }
        Ok(())
    }
    /// The combination of two results.
    pub(super) fn combine(&self, m: &mut Module, a: &str, b: &str) -> Result<String, Diagnostic> {
        if let (Some(name), NotNumbers::Left) = (self.extreme(), self.not_numbers) {
            return Ok(format!("{name}({a}, {b})"));
        }
        let op = self.operator().unwrap_or(BinaryOp::Add);
        Ok(m.binary(op, self.reduction.dtype, (a, b), (&Expr::Acc(0), &Expr::Acc(0)))?.into_string())
    }
    /// That of positions within a lane, which finds NaN beside it.
    fn combine_here(&self, m: &mut Module, a: &str, b: &str) -> Result<String, Diagnostic> {
        match self.extreme() {
            Some(name) if self.looks() => Ok(format!("{name}({a}, {b})")),
            _ => self.combine(m, a, b),
        }
    }
    /// Whether value `a` comes before `b` by value alone, and whether they are equal. NaN comes before all numbers.
    fn order(&self, m: &mut Module, a: &str, b: &str) -> Result<(String, String), Diagnostic> {
        let t = m.kernel.body.dtype(self.reduction.value);
        let largest = matches!(self.reduction.kind, ReduceKind::Arg { largest: true, .. });
        let op = if largest { BinaryOp::Gt } else { BinaryOp::Lt };
        let acc = (&Expr::Acc(0), &Expr::Acc(0));
        let better = m.binary(op, t, (a, b), acc)?.into_string();
        let equal = m.binary(BinaryOp::Eq, t, (a, b), acc)?.into_string();
        if t.reg() != Reg::F32 {
            return Ok((better, equal));
        }
        let (a_none, b_none) = (nan(a), nan(b));
        Ok((format!("(({better}) | {a_none}) & !{b_none}"), format!("({equal}) | ({a_none} & {b_none})")))
    }
    /// Takes in the position, or the neighbours that it makes as the number of a step.
    pub(super) fn update(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let (i, position) = (self.index, &self.position);
        if self.operator().is_some() {
            let (e, none) = self.joined(m, s)?;
            let next = self.combine_here(m, &format!("acc{i}"), &e)?;
            s.line(&format!("acc{i} = {next};"));
            if let Some(none) = none {
                s.line(&format!("nan{i} = max(nan{i}, {none});"));
            }
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
    /// Neighbours combined in pairs, so that a lane does not wait for one after another; and the greatest of their
    /// magnitudes, where NaN is looked for.
    fn joined(&self, m: &mut Module, s: &mut Scope) -> Result<(String, Option<String>), Diagnostic> {
        let looks = self.looks();
        let mut values = vec![];
        for part in self.parts() {
            values.push(m.operand(s, part.value, looks || !self.others.is_empty())?);
        }
        let none = looks.then(|| values.iter().map(|v| magnitude(v)).collect());
        let none = none.map(|all: Vec<String>| {
            let (last, rest) = all.split_last().map_or(("0u", &[][..]), |(l, r)| (l.as_str(), r));
            rest.iter().rev().fold(last.to_owned(), |so_far, e| format!("max({e}, {so_far})"))
        });
        while values.len() > 1 {
            let mut pairs = vec![];
            for pair in values.chunks(2) {
                pairs.push(match pair {
                    [a, b] => {
                        let text = self.combine_here(m, a, b)?;
                        s.let_value(&text)
                    }
                    [one, ..] => one.clone(),
                    [] => continue,
                });
            }
            values = pairs;
        }
        Ok((values.concat(), none))
    }
    /// Settles a lane's value once its positions are taken in, before lanes combine.
    pub(super) fn settle(&self, s: &mut Scope) {
        let i = self.index;
        if self.looks() {
            s.line(&format!("acc{i} = select(acc{i}, bitcast<f32>(nan{i}), nan{i} > {INFINITY});"));
        }
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
