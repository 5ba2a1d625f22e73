//! Sums and their terms, without further facts.

use crate::{Atom, Dim, Poly};
use std::collections::BTreeMap;

/// The atoms that occur alone in a term with coefficient 1 or -1, each with the coefficient and the rest of the sum.
pub(super) fn lone(p: &Poly) -> Vec<(Atom, i64, Poly)> {
    let mut out = vec![];
    for (m, c) in p.terms() {
        if let [a] = m.as_slice()
            && (c == 1 || c == -1)
        {
            let rest = p - &(&Poly::atom(a.clone()) * c);
            if !mentions(&rest, a) {
                out.push((a.clone(), c, rest));
            }
        }
    }
    out
}

/// Whether an atom occurs anywhere in an expression.
pub(super) fn mentions(p: &Poly, a: &Atom) -> bool {
    p.terms().iter().any(|(m, _)| m.iter().any(|b| b == a || inside(b).iter().any(|p| mentions(p, a))))
}

pub(super) fn inside(a: &Atom) -> Vec<&Poly> {
    match a {
        Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y) => vec![x, y],
        _ => vec![],
    }
}

/// The terms of a sum that contain variables or data, with the sign that makes the first one positive.
pub(super) fn open(p: &Poly) -> Poly {
    let mut out = Poly::ZERO;
    for (m, c) in p.terms() {
        let term = m.into_iter().fold(Poly::constant(c), |p, a| &p * &Poly::atom(a));
        if !term.vars().is_empty() || !term.data().is_empty() {
            out = &out + &term;
        }
    }
    if out.terms().first().is_some_and(|(_, c)| *c < 0) { -&out } else { out }
}

/// The polynomial without a common factor that is non-negative where `p` is: `x - 1 >= 0` for `2x - 1 >= 0`.
pub(super) fn reduced(p: &Poly) -> Poly {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let terms = p.terms();
    let factor = terms.iter().filter(|(m, _)| !m.is_empty()).fold(0, |g, (_, c)| gcd(g, c.unsigned_abs()));
    let Some(factor) = i64::try_from(factor).ok().filter(|f| *f > 1) else { return p.clone() };
    let each = terms.into_iter().map(|(m, c)| {
        let c = c.div_euclid(factor);
        m.into_iter().fold(Poly::constant(c), |p, a| &p * &Poly::atom(a))
    });
    each.sum()
}

/// The constant of a sum if it is a lower bound of the sum.
pub(super) fn least(p: &Poly) -> Option<i64> {
    let nonneg = |a: &Atom| matches!(a, Atom::Sym(_)) || least_of(a).is_some_and(|l| l >= 0);
    let mut constant = 0;
    for (m, c) in p.terms() {
        match m.as_slice() {
            [] => constant = c,
            atoms if c > 0 && atoms.iter().all(nonneg) => {}
            _ => return None,
        }
    }
    Some(constant)
}

/// A constant lower bound of a quotient, remainder or extreme, for a positive divisor.
pub(super) fn least_of(a: &Atom) -> Option<i64> {
    match a {
        Atom::Div(x, d) => match (least(x)?, d.as_const()) {
            (0.., _) => Some(0),
            (l, Some(d)) if d > 0 => Some(l.div_euclid(d)),
            _ => None,
        },
        Atom::Mod(..) => Some(0),
        Atom::Max(x, y) => least(x).into_iter().chain(least(y)).max(),
        Atom::Min(x, y) => Some(least(x)?.min(least(y)?)),
        _ => None,
    }
}

/// Collects the quotients, remainders and extremes of symbols only in an expression, by nesting depth.
pub fn of_symbols(p: &Poly, out: &mut BTreeMap<usize, Vec<Atom>>) -> usize {
    let mut deepest = 0;
    for a in p.terms().into_iter().flat_map(|(m, _)| m) {
        let parts = inside(&a);
        if parts.is_empty() {
            continue;
        }
        let depth = 1 + parts.iter().map(|p| of_symbols(p, out)).max().unwrap_or(0);
        deepest = deepest.max(depth);
        if parts.iter().all(|p| p.vars().is_empty() && p.data().is_empty()) {
            let same = out.entry(depth).or_default();
            if !same.contains(&a) {
                same.push(a);
            }
        }
    }
    deepest
}

/// Whether an offset is at most the last element when all variables are at their maximum, where it increases with every variable. This
/// works for extents of any length as expressions.
pub fn ends_inside(at: &Poly, elements: &Poly, extents: &[Dim]) -> bool {
    let last: Vec<Poly> = extents.iter().map(|e| e - &Poly::ONE).collect();
    let known = |v: &usize| *v < last.len();
    grows(at)
        && at.vars().iter().all(known)
        && (&(elements - &at.subst_vars(&last, &[])) - &Poly::ONE).as_const().is_some_and(|left| left >= 0)
}

/// Whether no term is negative or decreases with a variable.
pub(super) fn grows(p: &Poly) -> bool {
    p.terms().iter().all(|(m, c)| {
        let holds = |a: &Atom| match a {
            Atom::Var(_) | Atom::Sym(_) => true,
            Atom::Div(x, d) => grows(x) && d.as_const().is_some_and(|d| d > 0),
            Atom::Max(..) | Atom::Min(..) => {
                let parts = inside(a);
                parts.iter().all(|p| p.vars().is_empty() && p.data().is_empty()) && least_of(a) >= Some(0)
            }
            _ => false,
        };
        *c >= 0 && m.iter().all(holds)
    })
}

/// Whether all divisors are positive constants.
pub fn divides_by_numbers(p: &Poly) -> bool {
    p.terms().iter().flat_map(|(m, _)| m).all(|a| {
        let number = match a {
            Atom::Div(_, d) | Atom::Mod(_, d) => d.as_const().is_some_and(|d| d > 0),
            _ => true,
        };
        number && inside(a).into_iter().all(divides_by_numbers)
    })
}

/// `rest` and `factor` such that the sum is `rest + factor·a`; `None` if `a` occurs in a higher power or inside another atom.
pub(super) fn by(p: &Poly, a: &Atom) -> Option<(Poly, Poly)> {
    let (mut rest, mut factor) = (Poly::ZERO, Poly::ZERO);
    for (mut m, c) in p.terms() {
        let times = m.iter().filter(|b| *b == a).count();
        if times > 1 {
            return None;
        }
        let target = if times == 1 { &mut factor } else { &mut rest };
        m.retain(|b| b != a);
        let term = m.into_iter().fold(Poly::constant(c), |p, b| &p * &Poly::atom(b));
        *target = &*target + &term;
    }
    Some((rest, factor))
}

/// Whether no term is negative for any non-negative symbols.
pub(super) fn by_signs(p: &Poly) -> bool {
    p.terms().iter().all(|(m, c)| *c >= 0 && m.iter().all(|a| matches!(a, Atom::Sym(_))))
}
