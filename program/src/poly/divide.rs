//! Floor division and its remainder, simplified by facts that follow from the domain's extents.

use super::{Atom, Domain, Monomial, Poly, Repr};
use std::cmp::Ordering;

impl Poly {
    /// The greatest common divisor `n` of all coefficients except the constant term, and the constant's remainder in
    /// `0..n`; `(0, 0)` for a constant.
    pub fn divisor_and_remainder(&self) -> (i64, i64) {
        let terms = self.terms();
        let constant = terms.iter().find(|(m, _)| m.is_empty()).map_or(0, |(_, c)| *c);
        let n = terms.iter().filter(|(m, _)| !m.is_empty()).fold(0, |n, (_, c)| gcd(n, *c));
        (n, if n == 0 { 0 } else { constant.rem_euclid(n) })
    }

    /// Multivariate division: `self = q·d + r` where no term of `r` is divisible by `d`'s leading term.
    pub(super) fn div_rem(&self, d: &Poly) -> (Poly, Poly) {
        let d_terms = d.terms();
        let Some((lead, lead_c)) = d_terms.iter().max_by(|a, b| mono_order(&a.0, &b.0)) else {
            return (Poly::ZERO, self.clone());
        };
        let mut q = Poly::ZERO;
        let mut r = self.clone();
        // Each step removes the largest divisible term and only adds smaller ones.
        for _ in 0..64 {
            let mut terms = r.terms();
            terms.sort_by(|a, b| mono_order(&b.0, &a.0));
            let step = terms.iter().find_map(|(m, c)| {
                let rest = mono_div(m, lead)?;
                // Floor division, so that the remainder is not negative.
                let k = c.div_euclid(*lead_c);
                (k != 0 && (c.rem_euclid(*lead_c) == 0 || (lead.is_empty() && m.is_empty())))
                    .then_some((rest, k))
            });
            let Some((rest, k)) = step else { break };
            let t = Poly::from_terms([(rest, k)].into_iter().collect());
            r = &r - &(&t * d);
            q = &q + &t;
        }
        (q, r)
    }

    /// Floor division by a positive `d`, simplified by facts that follow from the domain's extents.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// let domain = [Poly::sym("rows"), Poly::constant(8)];
    /// let index = Poly::var(0) * 8 + Poly::var(1);
    /// assert_eq!(index.div(&Poly::constant(8), &domain), Poly::var(0));
    /// assert_eq!(index.modulo(&Poly::constant(8), &domain), Poly::var(1));
    /// ```
    pub fn div(&self, d: &Poly, domain: &Domain) -> Poly {
        if d.is(1) {
            return self.clone();
        }
        if self.is_too_large() || d.is_too_large() {
            return Poly::too_large();
        }
        if let (Some(a), Some(b)) = (self.as_const(), d.as_const())
            && b > 0
        {
            return Poly::constant(a.div_euclid(b));
        }
        let (q, r) = self.div_rem(d);
        if r.is(0) || r.in_range(d, domain) {
            return q;
        }
        // (g·a)/(g·b) = a/b
        let content = d.content();
        let g = r.terms().iter().fold(content, |g, (_, k)| gcd(g, *k));
        if g > 1 {
            return &q + &r.scale_down(g).div(&d.scale_down(g), domain);
        }
        // If all other terms lie in 0..g, and g divides d, the terms that are multiples of g determine the quotient.
        for (_, k) in r.terms() {
            let g = gcd(content, k);
            if g > 1 {
                let (mult, rest) = r.multiples_and_rest(g);
                let carried = match rest.as_const() {
                    Some(c) => Some(c.div_euclid(g)),
                    None => rest.in_range(&Poly::constant(g), domain).then_some(0),
                };
                if let Some(carried) = carried {
                    let whole = &mult.scale_down(g) + carried;
                    return &q + &whole.div(&d.scale_down(g), domain);
                }
            }
        }
        // The common factor g may be a symbol.
        for g in d.common_symbols() {
            let (of, rest) = r.divided_by_factor(&g);
            if !of.is(0) && (rest.is(0) || rest.in_range(&Poly::atom(g.clone()), domain)) {
                return &q + &of.div(&d.divided_by_factor(&g).0, domain);
            }
        }
        // (x/a + k)/b = (x + k·a)/(a·b)
        let k = r.terms().iter().find_map(|(m, c)| m.is_empty().then_some(*c)).unwrap_or(0);
        if let Some(Atom::Div(x, a)) = (&r - k).as_atom() {
            return &q + &(x + &(a * k)).div(&(a * d), domain);
        }
        &q + &Poly::atom(Atom::Div(r, d.clone()))
    }

    /// Remainder of floor division by a positive `d`, in `0..d`.
    pub fn modulo(&self, d: &Poly, domain: &Domain) -> Poly {
        if d.is(1) {
            return Poly::ZERO;
        }
        if self.is_too_large() || d.is_too_large() {
            return Poly::too_large();
        }
        if let (Some(a), Some(b)) = (self.as_const(), d.as_const())
            && b > 0
        {
            return Poly::constant(a.rem_euclid(b));
        }
        let (_, r) = self.div_rem(d);
        if r.is(0) || r.in_range(d, domain) {
            return r;
        }
        // (x % (a·d)) % d = x % d
        if let Some(Atom::Mod(x, m)) = r.as_atom()
            && m.div_rem(d).1.is(0)
        {
            return x.modulo(d, domain);
        }
        if let Some(parts) = r.parted_modulo(d, domain) {
            return parts;
        }
        let q = r.div(d, domain);
        if q.term_count() == 1 || q.is(0) {
            // A simplified quotient gives the remainder as x - q·d.
            if !matches!(q.as_atom(), Some(Atom::Div(x, y)) if x == &r && y == d) && !q.has_div() {
                return &r - &(&q * d);
            }
        }
        Poly::atom(Atom::Mod(r, d.clone()))
    }

    /// `(g·x + r) % (g·d) = g·(x % d) + r` for `0 <= r < g`.
    fn parted_modulo(&self, d: &Poly, domain: &Domain) -> Option<Poly> {
        let content = d.content();
        for (_, k) in self.terms() {
            let g = gcd(content, k);
            if g <= 1 {
                continue;
            }
            let (mult, rest) = self.multiples_and_rest(g);
            if rest.is(0) || rest.in_range(&Poly::constant(g), domain) {
                return Some(&(&mult.scale_down(g).modulo(&d.scale_down(g), domain) * g) + &rest);
            }
        }
        d.common_symbols().into_iter().find_map(|g| {
            let (of, rest) = self.divided_by_factor(&g);
            let whole = Poly::atom(g.clone());
            let parts = !of.is(0) && (rest.is(0) || rest.in_range(&whole, domain));
            parts.then(|| &(&of.modulo(&d.divided_by_factor(&g).0, domain) * &whole) + &rest)
        })
    }

    /// The symbols that are factors of every term; symbols are not negative.
    fn common_symbols(&self) -> Vec<Atom> {
        let terms = self.terms();
        let Some(((first, _), rest)) = terms.split_first() else { return vec![] };
        let mut atoms: Vec<Atom> = first.iter().filter(|a| matches!(a, Atom::Sym(_))).cloned().collect();
        atoms.dedup();
        atoms.retain(|a| rest.iter().all(|(m, _)| m.contains(a)) && Poly::atom(a.clone()).proves_nonneg(&[]));
        atoms
    }

    /// The sum of the terms with the factor `g`, divided by it, and the sum of the others.
    fn divided_by_factor(&self, g: &Atom) -> (Poly, Poly) {
        let (mut of, mut rest) = (vec![], vec![]);
        for (m, c) in self.terms() {
            match mono_div(&m, std::slice::from_ref(g)) {
                Some(without) => of.push((without, c)),
                None => rest.push((m, c)),
            }
        }
        (Poly::from_terms(of.into_iter().collect()), Poly::from_terms(rest.into_iter().collect()))
    }

    /// The greatest common divisor of all coefficients, including the constant term.
    fn content(&self) -> i64 {
        self.terms().iter().fold(0, |g, (_, k)| gcd(g, *k))
    }

    /// The terms whose coefficients are multiples of `g`, and the others.
    fn multiples_and_rest(&self, g: i64) -> (Poly, Poly) {
        let (mult, rest): (Vec<_>, Vec<_>) = self.terms().into_iter().partition(|(_, k)| k % g == 0);
        (Poly::from_terms(mult.into_iter().collect()), Poly::from_terms(rest.into_iter().collect()))
    }

    fn has_div(&self) -> bool {
        let mut found = false;
        self.visit_atoms(&mut |a| found |= matches!(a, Atom::Div(..) | Atom::Mod(..)));
        found
    }

    /// `⌈self / d⌉` for a positive `d`.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// let groups = Poly::sym("n").ceil_div(64);
    /// assert_eq!(groups.eval_syms(&|_| Some(65)), Some(2));
    /// ```
    pub fn ceil_div(&self, d: i64) -> Poly {
        (self + &Poly::constant(d - 1)).div(&Poly::constant(d), &[])
    }

    fn scale_down(&self, g: i64) -> Poly {
        Poly::from_terms(self.terms().into_iter().map(|(m, c)| (m, c / g)).collect())
    }

    /// `d·(x/d) + x%d = x` and `d·((x/d) % e) + x%d = x % (d·e)`, wherever both parts are present.
    pub(super) fn recombine(self) -> Poly {
        let Repr::Sum(t) = &self.0 else { return self };
        for (m, c) in t.iter() {
            for (i, a) in m.iter().enumerate() {
                let Atom::Mod(x, d) = a else { continue };
                let mut rest = m.clone();
                rest.remove(i);
                let scale = Poly::from_terms([(rest, *c)].into_iter().collect());
                if let Some(joined) = self.joined_modulo(&scale, x, d) {
                    return joined.recombine();
                }
                let whole = &(&scale * d) * &x.div(d, &[]);
                let without = &self - &whole;
                if without.term_count() < self.term_count() {
                    let r = Poly::from_terms([(m.clone(), *c)].into_iter().collect());
                    return (&(&without - &r) + &(&scale * x)).recombine();
                }
            }
        }
        self
    }

    /// The sum with `scale · (x % d)` and `scale · d · ((x/d) % e)` merged to one remainder.
    fn joined_modulo(&self, scale: &Poly, x: &Poly, d: &Poly) -> Option<Poly> {
        let c = d.as_const()?;
        let quotient = x.div(d, &[]);
        let of = scale * c;
        let [(rest, k)] = &of.terms()[..] else { return None };
        for (m, l) in self.terms() {
            for a in &m {
                let Atom::Mod(y, e) = a else { continue };
                if *y != quotient || l != *k || e.as_const().is_none() || m.len() != rest.len() + 1 {
                    continue;
                }
                let high = &of * &Poly::atom(a.clone());
                let low = scale * &Poly::atom(Atom::Mod(x.clone(), d.clone()));
                if high.terms() == [(m.clone(), l)] {
                    let whole = scale * &x.modulo(&(d * e), &[]);
                    return Some(&(&(self - &high) - &low) + &whole);
                }
            }
        }
        None
    }
}

/// Graded lexicographic order of monomials.
fn mono_order(a: &Monomial, b: &Monomial) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

fn mono_div(m: &Monomial, d: &[Atom]) -> Option<Monomial> {
    let mut out = m.clone();
    for a in d {
        let i = out.iter().position(|x| x == a)?;
        out.remove(i);
    }
    Some(out)
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}
