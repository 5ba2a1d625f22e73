//! Replacement of a kernel's variables.

use super::{Body, Expr, ExprId, Kernel, renumbered};
use wgfc_ir::{Atom, BinaryOp, DType, Poly};

/// The number of a product's summed variable.
pub const K: usize = 3;

/// The kernel with its stores moved to `body`, to which their expressions are added.
pub fn moved_stores(kernel: &Kernel, mut body: Body) -> Kernel {
    let mut new = kernel.clone();
    let domain = kernel.domain();
    let vars: Vec<Poly> = (0..domain.len()).map(Poly::var).collect();
    for s in &mut new.stores {
        let roots: Vec<ExprId> = s.offset.data().into_iter().chain(s.guard).chain([s.value]).collect();
        let ids = substitute(&kernel.body, &mut body, &roots, &vars, &domain);
        let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
        s.guard = s.guard.map(of);
        s.value = of(s.value);
        s.offset = moved(&s.offset, &ids, &vars, &domain);
    }
    new.body = body;
    new
}

/// Copies the roots and all that they depend on into another arena, with variable `%i` replaced by `vars[i]`. Returns the new number of
/// each copied expression.
pub fn substitute(
    from: &Body,
    to: &mut Body,
    roots: &[ExprId],
    vars: &[Poly],
    domain: &[Poly],
) -> Vec<Option<ExprId>> {
    substitute_results(from, to, roots, vars, domain, &|i| i)
}

/// [`substitute`] with result `i` replaced by result `acc(i)`.
pub fn substitute_results(
    from: &Body,
    to: &mut Body,
    roots: &[ExprId],
    vars: &[Poly],
    domain: &[Poly],
    acc: &dyn Fn(u32) -> u32,
) -> Vec<Option<ExprId>> {
    let mut ids = vec![None; from.len()];
    for id in from.reachable(roots) {
        let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
        let new = match from.expr(id) {
            Expr::Acc(i) => Expr::Acc(acc(*i)),
            e => e.mapped(of, |p| moved(p, &ids, vars, domain)),
        };
        let new = without_remainder(new, to);
        ids[id as usize] = Some(to.push(new, from.dtype(id)));
    }
    ids
}

/// Rewrites a comparison `n·p + r < c` or `n·p + r ≥ c` of an index with a constant as one of `n·p`, so that elements of a vector for which
/// it has the same value share one expression.
fn without_remainder(e: Expr, to: &mut Body) -> Expr {
    let Expr::Binary(op @ (BinaryOp::Lt | BinaryOp::Ge), a, b) = e else { return e };
    let (Expr::Index(p), Some(c)) = (to.expr(a), number(to.expr(b))) else { return e };
    let (n, r) = p.divisor_and_remainder();
    if r == 0 {
        return e;
    }
    let least = -(r - c).div_euclid(n) * n;
    let p = p - &Poly::constant(r);
    let a = to.push(Expr::Index(p), DType::I32);
    let b = if least == c { b } else { to.push(Expr::Index(Poly::constant(least)), DType::I32) };
    Expr::Binary(op, a, b)
}

fn number(e: &Expr) -> Option<i64> {
    match e {
        Expr::Index(p) => p.as_const(),
        Expr::Const(c) if c.dtype == DType::I32 => Some(c.as_i64()),
        _ => None,
    }
}

/// An index expression with its variables replaced and its data renumbered.
pub fn moved(p: &Poly, ids: &[Option<ExprId>], vars: &[Poly], domain: &[Poly]) -> Poly {
    let new = |a: &Atom| match a {
        Atom::Var(i) => vars.get(*i as usize).cloned(),
        Atom::Data(d) => Some(Poly::atom(Atom::Data(ids.get(*d as usize).copied().flatten()?))),
        _ => None,
    };
    p.subst(&new, domain)
}

/// Splits sums of index terms into the terms with and those without variable `step`, each an expression of its own, so that the latter
/// can be hoisted out of a loop.
pub fn hoistable(kernel: &Kernel, step: usize) -> Kernel {
    let domain = kernel.domain();
    let mut body = Body::default();
    let mut ids: Vec<ExprId> = vec![];
    let mut on_step: Vec<bool> = vec![];
    for (id, e, dtype) in kernel.body.iter() {
        let of = |id: ExprId| ids.get(id as usize).copied().unwrap_or(0);
        let renamed = |p: &Poly| renumbered(p, of, &domain);
        let steps = |p: &Poly| {
            p.vars().contains(&step) || p.data().iter().any(|d| on_step.get(*d as usize) == Some(&true))
        };
        let parted = |p: &Poly, body: &mut Body| {
            let (mut with, mut without) = (Poly::ZERO, Poly::ZERO);
            for (m, c) in p.terms() {
                let t = m.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()));
                if steps(&t) { with = &with + &t } else { without = &without + &t }
            }
            if with.is(0) || without.as_const().is_some() {
                return renamed(p);
            }
            // Terms with `step` that also depend on other variables or data are not split off.
            let (mut pure, mut mixed) = (Poly::ZERO, Poly::ZERO);
            for (m, c) in with.terms() {
                let t = m.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()));
                if t.data().is_empty() && t.vars().iter().all(|v| *v == step) {
                    pure = &pure + &t;
                } else {
                    mixed = &mixed + &t;
                }
            }
            let mut sum = renamed(&mixed);
            for part in [without, pure] {
                if !part.is(0) {
                    let id = body.push(Expr::Index(renamed(&part)), DType::I32);
                    sum = &sum + &Poly::atom(Atom::Data(id));
                }
            }
            sum
        };
        let new = e.mapped(of, |p| parted(p, &mut body));
        let s = match e {
            Expr::Index(p) | Expr::Load { offset: p, .. } => p.vars().contains(&step),
            _ => false,
        };
        let s = s || kernel.body.operands(id).iter().any(|o| on_step[*o as usize]);
        on_step.push(s);
        ids.push(body.push(new, dtype));
    }
    let of = |id: ExprId| ids.get(id as usize).copied().unwrap_or(0);
    kernel.over(body, &of, &mut |p| renumbered(p, of, &domain))
}
