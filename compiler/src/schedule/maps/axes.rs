//! The axes of a map: what its flat variable is a position along.

use crate::kernel::{Family, Kernel, Map};
use wgfc_ir::{Atom, Dim, Poly};

/// The value of a size where strides are put in order.
const ORDER: i64 = 1009;
/// More axes than this are not told apart: an index expression that takes a position apart so often is none of a view.
const MOST: usize = 6;

/// The extents of the axes that a map's index expressions tell apart, outermost first: `%0` is the number of a position in
/// them. A single one where they tell none apart.
pub fn axes(kernel: &Kernel) -> Vec<Dim> {
    let Family::Map(Map { elements }) = &kernel.family else { return vec![] };
    let body = &kernel.body;
    let read = body.reachable(&kernel.roots());
    let mut all: Vec<&Poly> = read.into_iter().filter_map(|id| body.expr(id).index()).collect();
    all.extend(kernel.all_stores().map(|s| &s.offset));
    let mut found = vec![];
    all.iter().for_each(|p| strides(p, &mut found));
    let size = |p: &Poly| p.eval_syms(&|_| Some(ORDER));
    let mut found: Vec<(i64, Poly)> = found.into_iter().filter_map(|p| Some((size(&p)?, p))).collect();
    found.sort();
    found.dedup();
    // The smaller of two strides that do not divide each other counts.
    let mut chain = vec![Poly::ONE];
    for (_, s) in found {
        let divides = |a: &Poly, b: &Poly| a != b && b.modulo(a, &[]).is(0);
        if chain.len() < MOST && chain.last().is_some_and(|l| divides(l, &s)) && divides(&s, elements) {
            chain.push(s);
        }
    }
    let ends = chain.iter().skip(1).chain([elements]);
    let mut out: Vec<Dim> = chain.iter().zip(ends).map(|(s, end)| end.div(s, &[])).collect();
    out.reverse();
    joined(out, &all)
}

/// The axes of a map of groups of `by` neighbours: the last one has whole groups. `None` where there are none.
pub fn grouped(kernel: &Kernel, by: &Poly) -> Option<Vec<Dim>> {
    let mut axes = axes(kernel);
    // Axes inside of a group count as one with the axis around them.
    while let [.., _, inner] = &axes[..]
        && !inner.modulo(by, &[]).is(0)
    {
        let inner = axes.pop()?;
        let around = axes.pop()?;
        axes.push(&around * &inner);
    }
    axes.last()?.modulo(by, &[]).is(0).then_some(axes)
}

/// The axes where neighbouring ones that all index expressions go through as if they were one are one.
fn joined(mut axes: Vec<Dim>, all: &[&Poly]) -> Vec<Dim> {
    if axes.len() < 2 {
        return axes;
    }
    let flat: Poly = strides_of(&axes).iter().enumerate().map(|(k, s)| &Poly::var(k) * s).sum();
    let mut over: Vec<Poly> = all.iter().map(|p| p.subst_vars(std::slice::from_ref(&flat), &axes)).collect();
    let mut k = 0;
    while k + 1 < axes.len() {
        let through = |i: usize| match i {
            _ if i == k => Poly::ZERO,
            _ if i == k + 1 => &(&Poly::var(k) * &axes[k + 1]) + &Poly::var(k + 1),
            _ => Poly::var(i),
        };
        let vars: Vec<Poly> = (0..axes.len()).map(through).collect();
        if over.iter().any(|p| p.subst_vars(&vars, &[]) != *p) {
            k += 1;
            continue;
        }
        // The one variable of both is that of the inner axis.
        let moved = |i: usize| if i <= k { Poly::ZERO } else { Poly::var(i - 1) };
        let vars: Vec<Poly> = (0..axes.len()).map(|i| if i < k { Poly::var(i) } else { moved(i) }).collect();
        let inner = axes.remove(k + 1);
        axes[k] = &axes[k] * &inner;
        over = over.iter().map(|p| p.subst_vars(&vars, &[])).collect();
    }
    axes
}

/// The strides of the axes in the flat variable, outermost first.
pub fn strides_of(axes: &[Dim]) -> Vec<Poly> {
    let mut out: Vec<Poly> = axes
        .iter()
        .rev()
        .scan(Poly::ONE, |s, d| {
            let own = s.clone();
            *s = &*s * d;
            Some(own)
        })
        .collect();
    out.reverse();
    out
}

/// The distances in the flat variable at which an index expression takes it apart.
fn strides(p: &Poly, out: &mut Vec<Poly>) {
    for a in p.terms().iter().flat_map(|(m, _)| m) {
        let (Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y)) = a else { continue };
        if let (Atom::Div(..) | Atom::Mod(..), Some(s)) = (a, stride(x)) {
            let s = &s * y;
            if !s.is_too_large() && !out.contains(&s) {
                out.push(s);
            }
        }
        strides(x, out);
        strides(y, out);
    }
}

/// The distance at which a quotient or remainder of the flat variable changes.
fn stride(p: &Poly) -> Option<Poly> {
    match p.as_atom()? {
        Atom::Var(0) => Some(Poly::ONE),
        Atom::Div(x, d) => Some(&stride(x)? * d),
        Atom::Mod(x, _) => stride(x),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Body, Expr, Store};
    use wgfc_ir::DType;

    #[test]
    fn axes_are_those_that_index_expressions_tell_apart() {
        for (elements, at, want) in [
            ("12*n", "%0", "12*n"),
            ("24*n", "3*(%0%8) + %0/8", "3*n, 8"),
            ("60*n", "%0/(20*n) + 3*(%0%n) + (%0/n)%20", "3, 20, n"),
            ("2*a*b", "(%0/b)%a + a*(%0%b) + a*b*(%0/(a*b))", "2, a, b"),
            ("24", "%0%6 + %0/4", "6, 4"),
            ("24", "(%0 + 1)%6", "24"),
            ("120", "6*(%0%5) + 3*((%0/15)%2) + 30*(%0/30) + (%0/5)%3", "4, 6, 5"),
        ] {
            let mut body = Body::default();
            let offset = Poly::parse(at).unwrap();
            let value = body.push(Expr::Load { tensor: 0, offset, guard: None }, DType::F32);
            let stores = vec![Store { tensor: 1, offset: Poly::var(0), value, guard: None, combine: None }];
            let family = Family::Map(Map { elements: Poly::parse(elements).unwrap() });
            let found = axes(&Kernel { family, body, stores, nodes: vec![] });
            let found: Vec<String> = found.iter().map(Poly::to_string).collect();
            assert_eq!(found.join(", "), want, "{at} of {elements}");
        }
    }
}
