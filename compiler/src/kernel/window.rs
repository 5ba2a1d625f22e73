//! The window of keys that an attention mask leaves visible, as far as the mask compares positions.
//!
//! A mask hides a key with the least finite number of f32, which absorbs any score added to it, or with that of f16, which is below all
//! scores of a query that sees a key.

use super::bounds::compared;
use super::{Attention, Body, Expr, ExprId, Family, Kernel, TensorId};
use wgfc_ir::{Atom, BinaryOp, DType, Poly, UnaryOp};

/// The keys visible to query `%1` of problem `%0`: none before `from` or after `to`. Each bound is linear in `%1`, and data in it depend on
/// `%0` alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Lower bounds of the visible keys, all of which hold.
    pub from: Vec<Poly>,
    /// Upper bounds of the visible keys, all of which hold.
    pub to: Vec<Poly>,
    /// Whether the mask is 0 for all keys within the bounds.
    pub exact: bool,
    /// Whether keys may be hidden by the least finite number of f16: the scores of a query that sees no key then still differ.
    pub half: bool,
}

/// The least finite number of f16.
const LEAST_HALF: f64 = -65504.0;

impl Window {
    /// The window of an attention kernel. Elements of tensors that are `usable` may be data in the bounds.
    pub fn of(kernel: &Kernel, usable: &dyn Fn(TensorId) -> bool) -> Window {
        let Family::Attention(Attention { mask: Some(mask), .. }) = &kernel.family else {
            return Window::default();
        };
        let mut window = Window::default();
        let (conditions, zero) = seen(&kernel.body, *mask, 0, &mut window.half);
        window.exact = zero;
        let usable = |e: ExprId| depends_on_problem(&kernel.body, e, usable);
        for (e, truth) in conditions {
            window.exact &= holds_only_if(&kernel.body, e, truth, &mut window, &usable);
        }
        let Window { from, to, .. } = &mut window;
        for all in [from, to] {
            all.sort();
            all.dedup();
        }
        window
    }

    /// Whether it excludes any keys.
    pub fn is_bounded(&self) -> bool {
        !self.from.is_empty() || !self.to.is_empty()
    }

    /// Whether queries that see no key within the bounds must be computed again over all keys.
    pub fn again(&self, empty_is_zero: bool) -> bool {
        self.is_bounded() && (self.half || !empty_is_zero)
    }
}

/// The greatest depth of mask expressions that is examined.
const DEPTH: usize = 16;

/// The conditions that are true (or false) wherever the mask hides nothing, and whether the mask is 0 there. Sets `half` if it hides keys
/// with the least number of f16.
fn seen(body: &Body, mask: ExprId, depth: usize, half: &mut bool) -> (Vec<(ExprId, bool)>, bool) {
    let low = |e: ExprId, half: &mut bool| match constant(body, e) {
        Some(c) if c == LEAST_HALF => {
            *half = true;
            true
        }
        c => c.is_some_and(|c| c <= f64::from(f32::MIN)),
    };
    if depth == DEPTH {
        return (vec![], false);
    }
    match body.expr(mask) {
        Expr::Const(_) => (vec![], constant(body, mask) == Some(0.0)),
        Expr::Cast(to, a) if to.is_float() && body.dtype(*a).is_float() => seen(body, *a, depth + 1, half),
        Expr::Select(c, a, b) if low(*b, half) => {
            let (mut all, zero) = seen(body, *a, depth + 1, half);
            all.push((*c, true));
            (all, zero)
        }
        Expr::Select(c, a, b) if low(*a, half) => {
            let (mut all, zero) = seen(body, *b, depth + 1, half);
            all.push((*c, false));
            (all, zero)
        }
        Expr::Binary(BinaryOp::Add, a, b) => {
            let ((mut all, zero), (more, also)) =
                (seen(body, *a, depth + 1, half), seen(body, *b, depth + 1, half));
            all.extend(more);
            (all, zero && also)
        }
        _ => (vec![], false),
    }
}

/// The constant value of an expression, through conversions of floats.
fn constant(body: &Body, e: ExprId) -> Option<f64> {
    match body.expr(e) {
        Expr::Const(s) => Some(s.as_f64()),
        Expr::Cast(to, a) if to.is_float() && body.dtype(*a).is_float() => constant(body, *a),
        _ => None,
    }
}

/// Adds the bounds that hold where `e` is `truth`. Returns whether the bounds also imply that.
fn holds_only_if(
    body: &Body,
    e: ExprId,
    truth: bool,
    window: &mut Window,
    usable: &dyn Fn(ExprId) -> bool,
) -> bool {
    let mut both = |a: ExprId, b: ExprId| {
        let first = holds_only_if(body, a, truth, window, usable);
        holds_only_if(body, b, truth, window, usable) && first
    };
    match body.expr(e) {
        Expr::Const(s) => (s.bits != 0) == truth,
        Expr::Unary(UnaryOp::Not, a) => holds_only_if(body, *a, !truth, window, usable),
        Expr::Binary(BinaryOp::And, a, b) if truth && body.dtype(e) == DType::Bool => both(*a, *b),
        Expr::Binary(BinaryOp::Or, a, b) if !truth && body.dtype(e) == DType::Bool => both(*a, *b),
        _ => {
            let known = compared(body, e, truth);
            let whole = known.iter().all(|(small, large)| window.add(&(large - small), usable));
            whole && !known.is_empty()
        }
    }
}

impl Window {
    /// Adds the bound that `p`, over the query and the key, is non-negative. False if it cannot be expressed as one.
    fn add(&mut self, p: &Poly, usable: &dyn Fn(ExprId) -> bool) -> bool {
        let (mut rest, mut factor) = (Poly::ZERO, 0);
        for (m, c) in p.terms() {
            match m.as_slice() {
                [Atom::Var(2)] => factor = c,
                atoms => {
                    rest = &rest + &atoms.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()))
                }
            }
        }
        if !rest.data().iter().all(|e| usable(*e)) || rest.vars().iter().any(|v| *v > 1) || !linear(&rest) {
            return false;
        }
        // Numbers of keys are far smaller, and sums with these do not wrap.
        let within = |a: &Atom| match a {
            Atom::Data(_) => {
                let p = Poly::atom(a.clone()).max_of(&Poly::constant(-MOST), &[]);
                Some(p.min_of(&Poly::constant(MOST), &[]))
            }
            _ => None,
        };
        let rest = rest.subst(&within, &[]);
        match factor {
            1 => self.from.push(-&rest),
            -1 => self.to.push(rest),
            _ => return false,
        }
        true
    }
}

/// The greatest magnitude of data in a bound.
const MOST: i64 = 1 << 30;

/// Whether an expression depends on the problem `%0` alone, and reads usable tensors only.
fn depends_on_problem(body: &Body, e: ExprId, usable: &dyn Fn(TensorId) -> bool) -> bool {
    body.reachable(&[e]).into_iter().all(|e| {
        let known = match body.expr(e) {
            Expr::Load { tensor, .. } => usable(*tensor),
            Expr::Acc(_) | Expr::Shared { .. } => false,
            _ => true,
        };
        known && body.expr(e).index().into_iter().all(|p| p.vars().iter().all(|v| *v == 0))
    })
}

/// Whether `%1` occurs only in the first power and not inside quotients or extremes.
fn linear(p: &Poly) -> bool {
    p.terms().iter().all(|(m, _)| {
        let inside = |a: &Atom| !matches!(a, Atom::Var(1)) && Poly::atom(a.clone()).vars().contains(&1);
        m.iter().filter(|a| **a == Atom::Var(1)).count() <= 1 && !m.iter().any(inside)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse;

    /// The window of a mask: lines of expressions from `e5` on, the last of which is the mask.
    fn window(lines: &[&str]) -> String {
        let mut text = "t0: f32[4, s, 8] input 0\nt1: f32[4, t, 8] input 1\nt2: f32[t] input 2\nt3: f32[4, s, 8] output 0\n\n\
             kernel 0 attention [4, s, t, 8, 8] parts 1\n  \
             e0: f32 = t0[8*s*%0 + 8*%1 + %3]\n  e1: f32 = t1[8*t*%0 + 8*%2 + %3]\n  e2: f32 = t1[8*t*%0 + 8*%2 + %4]\n  \
             e3: f32 = 0.0:f32\n  e4: f32 = -3.4028235e38:f32\n"
            .to_owned();
        for line in lines {
            text += &format!("  {line}\n");
        }
        let (mask, result) = (4 + lines.len(), 5 + lines.len());
        text += &format!(
            "  e{result}: f32 = acc0\n  acc0 = attention(q e0, k e1, v e2, mask e{mask}, scale 0.25)\n  \
             t3[8*s*%0 + 8*%1 + %4] = e{result}\n"
        );
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let w = Window::of(&graph.kernels[0], &|_| true);
        let list = |all: &[Poly]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (exact, half) = (if w.exact { " exact" } else { "" }, if w.half { " half" } else { "" });
        format!("from [{}] to [{}]{exact}{half}", list(&w.from), list(&w.to))
    }

    const CAUSAL: [&str; 3] = ["e5: i32 = index(%2)", "e6: i32 = index(past + %1)", "e7: bool = le(e5, e6)"];

    #[test]
    fn comparisons_of_positions_are_bounds() {
        let causal = |rest: &[&'static str]| window(&[&CAUSAL[..], rest].concat());
        let found = causal(&["e8: f32 = select(e7, e3, e4)"]);
        assert_eq!(found, "from [] to [past + %1] exact");
        // A negated mask that also excludes keys far before the query, and a bias.
        let found = causal(&[
            "e8: i32 = index(past + %1 - 15)",
            "e9: bool = lt(e5, e8)",
            "e10: bool = not(e7)",
            "e11: bool = or(e9, e10)",
            "e12: f32 = t2[%2]",
            "e13: f32 = select(e11, e4, e3)",
            "e14: f32 = add(e13, e12)",
        ]);
        assert_eq!(found, "from [past + %1 - 15] to [past + %1]");
        // A mask that is read gives no bounds, but the condition beside it does.
        let found = causal(&[
            "e8: f32 = t2[%2]",
            "e9: bool = gt(e8, e3)",
            "e10: bool = and(e7, e9)",
            "e11: f32 = select(e10, e3, e4)",
        ]);
        assert_eq!(found, "from [] to [past + %1]");
        // A mask that is not low enough hides nothing.
        let found = causal(&["e8: f32 = -10000.0:f32", "e9: f32 = select(e7, e3, e8)"]);
        assert_eq!(found, "from [] to []");
        let found = window(&[
            "e5: i32 = index(%2)",
            "e6: i64 = cast(i64, e5)",
            "e7: i32 = index(%1)",
            "e8: i64 = cast(i64, e7)",
            "e9: i32 = index(past)",
            "e10: i64 = cast(i64, e9)",
            "e11: i64 = add(e8, e10)",
            "e12: bool = lt(e11, e6)",
            "e13: f32 = select(e12, e4, e3)",
        ]);
        assert_eq!(found, "from [] to [past + %1] exact");
        // A mask of 16 bits.
        let found = causal(&[
            "e8: f16 = -65504.0:f16",
            "e9: f16 = 0.0:f16",
            "e10: f16 = select(e7, e9, e8)",
            "e11: f32 = cast(f32, e10)",
        ]);
        assert_eq!(found, "from [] to [past + %1] exact half");
    }
}
