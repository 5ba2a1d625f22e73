//! Numbers that kernels compute in 32 bits.
//!
//! Sums and products that overflow 32 bits in between still give the right final result; quotients, remainders, extremes and comparisons
//! of overflowed values do not. So their operands, and all loop limits, must fit 32 bits, and a run checks that they do.

use super::bounds::{self, Known};
use super::range::At;
use crate::kernel::places::Place;
use crate::kernel::{Body, Expr, Kernel, KernelGraph};
use std::collections::BTreeSet;
use wgfc_ir::program::Proof;
use wgfc_ir::{Atom, Dim, Poly};

/// The expressions over symbols that must fit: extents, numbers of elements, and the bounds of operands that are divided, compared, or an
/// operand of `min` or `max`. Computed sizes are replaced by their upper bounds. `None` if such a bound is not known.
pub(super) fn counted(graph: &KernelGraph, kernel: &Kernel) -> Option<BTreeSet<Dim>> {
    let mut out: BTreeSet<Dim> = kernel.domain().into_iter().collect();
    out.extend(kernel.tensors().into_iter().map(|t| super::numel(graph, t)));
    for place in kernel.places() {
        let known = Known::default();
        let mut operands: BTreeSet<Poly> = BTreeSet::new();
        let mut todo: Vec<Poly> = place.stores.iter().map(|s| s.offset.clone()).collect();
        for e in kernel.body.reachable(&place.roots()) {
            let expr = kernel.body.expr(e);
            // An index expression may be the operand of a comparison.
            if let Expr::Index(p) = expr {
                operands.insert(p.clone());
            }
            todo.extend(expr.index().cloned());
        }
        while let Some(p) = todo.pop() {
            for a in p.terms().into_iter().flat_map(|(m, _)| m) {
                if let Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y) = a {
                    todo.extend([x.clone(), y.clone()]);
                    operands.extend([x, y]);
                }
            }
        }
        for p in operands {
            let (least, most) = ends(&kernel.body, &place, &p, &known)?;
            out.extend([-&least, most]);
        }
    }
    let mut out = out.into_iter().map(|d| most(graph, d)).collect::<Option<BTreeSet<Dim>>>()?;
    out.retain(|d| d.as_const().is_none_or(|c| c > Proof::MOST));
    Some(out)
}

/// The upper bound of a size, over symbols that are known before a run.
fn most(graph: &KernelGraph, d: Dim) -> Option<Dim> {
    if !graph.bounds.concern(&d) {
        return Some(d);
    }
    // The upper bound of a product is known only if its factors are non-negative.
    let symbols = |m: &[Atom]| m.len() < 2 || m.iter().all(|a| matches!(a, Atom::Sym(_)));
    d.terms().iter().all(|(m, _)| symbols(m)).then(|| graph.bounds.most(&d))
}

/// The bounds of an expression, over symbols.
fn ends(body: &Body, place: &Place<'_>, p: &Poly, known: &Known) -> Option<(Dim, Dim)> {
    let mut extents = place.domain();
    let p = bounds::expanded(body, p);
    let mut of_data = vec![];
    for e in p.data() {
        let (low, high) = bounds::range(&At { body, place }, e, known);
        let low = low.iter().find_map(|l| l.lower_bound(&extents))?;
        let high = high.iter().find_map(|h| h.upper_bound(&extents))?;
        of_data.push((e, &low + &Poly::var(extents.len())));
        extents.push(&(&high - &low) + &Poly::ONE);
    }
    let of = |a: &Atom| match a {
        Atom::Data(e) => of_data.iter().find(|(d, _)| d == e).map(|(_, p)| p.clone()),
        _ => None,
    };
    let p = if of_data.is_empty() { p } else { p.subst(&of, &extents) };
    Some((p.lower_bound(&extents)?, p.upper_bound(&extents)?))
}
