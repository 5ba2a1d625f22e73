//! The facts known at one place, and their consequences.

use super::Facts;
use super::range::Ends;
use super::search::Search;
use super::terms::{by_signs, inside, least_of, lone, mentions, open, reduced};
use crate::poly::STANDS_FOR;
use crate::{Atom, Dim, Poly};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The most facts derived, and the most times variables are split.
const WAYS: usize = 24;

/// The facts known at one place.
#[derive(Clone, Debug)]
pub struct World {
    /// Extents of the variables, followed by those of new ones; variables without a value have extent 0.
    pub(super) extents: Vec<Dim>,
    /// In light mode, facts of the form `x >= 1` are kept in `positive` and other bounds of sizes are ignored: the search then takes few
    /// steps.
    pub(super) light: bool,
    /// Atoms that are at least 1.
    pub(super) positive: FxHashSet<Atom>,
    /// Substitutions, in the order in which they are applied.
    pub(super) replaced: Vec<(Atom, Poly)>,
    /// Bounds of atoms that are not substituted.
    pub(super) low: FxHashMap<Atom, Ends>,
    pub(super) high: FxHashMap<Atom, Ends>,
    /// The number of new symbols.
    fresh: usize,
    /// The steps left for all proofs of the kernel.
    pub(super) left: Rc<Cell<usize>>,
}

impl World {
    pub fn new(extents: Vec<Dim>, light: bool, left: &Rc<Cell<usize>>) -> World {
        let (low, high) = Default::default();
        let positive = FxHashSet::default();
        World { extents, light, positive, replaced: vec![], low, high, fresh: 0, left: left.clone() }
    }

    /// Replaces atoms over symbols by new symbols plus the atoms' lower bounds; all other knowledge of them is dropped.
    pub fn hide(&mut self, atoms: &[Atom]) {
        for a in atoms {
            if let Some(least) = least_of(a) {
                let symbol = self.symbol();
                self.replace(a.clone(), &symbol + least);
            }
        }
    }

    /// Adds the facts about symbols, that the variables `vars` have values, and that `shapes` are extents of tensors.
    pub fn assume_all(&mut self, facts: &Facts, vars: &BTreeSet<usize>, shapes: &[&Dim]) {
        for (a, b) in &facts.equal {
            self.equal(a, b);
        }
        let extents: Vec<Dim> = vars.iter().filter_map(|v| self.extents.get(*v).cloned()).collect();
        for d in shapes.iter().copied().chain(&facts.nonneg) {
            self.at_least(d, 0);
        }
        for e in &extents {
            let e = self.now(e);
            // The factors are proven non-negative, as two negative factors have a positive product, too.
            if let [(m, c)] = &e.terms()[..]
                && *c > 0
                && m.iter().all(|a| self.nonneg(&Poly::atom(a.clone())))
            {
                for a in m {
                    self.at_least(&Poly::atom(a.clone()), 1);
                }
            }
        }
        for d in shapes {
            let d = self.now(d);
            let divides = |e: &Dim| {
                let e = self.now(e);
                !e.is(0) && d.as_const().is_none() && &e.div(&d, &[]) * &d == e
            };
            if extents.iter().any(divides) {
                self.at_least(&d, 1);
            }
        }
        for e in &extents {
            self.at_least(e, 1);
        }
        let extents = std::mem::take(&mut self.extents);
        self.extents = extents.iter().map(|e| self.now(e)).collect();
    }

    /// An expression after all substitutions.
    pub(super) fn now(&self, p: &Poly) -> Poly {
        let mut p = p.clone();
        for (a, to) in &self.replaced {
            if mentions(&p, a) {
                p = p.subst(&|b| (b == a).then(|| to.clone()), &self.extents);
            }
        }
        p
    }

    fn replace(&mut self, a: Atom, to: Poly) {
        self.replaced.push((a, to));
        let now = self.replaced.len() - 1;
        let (a, to) = self.replaced[now].clone();
        let extents = std::mem::take(&mut self.extents);
        let renew = |p: &Poly| p.subst(&|b| (*b == a).then(|| to.clone()), &extents);
        let renewed: Vec<Dim> = extents.iter().map(renew).collect();
        for ends in self.low.values_mut().chain(self.high.values_mut()).flatten() {
            *ends = renew(ends);
        }
        self.extents = renewed;
    }

    fn symbol(&mut self) -> Poly {
        self.fresh += 1;
        Poly::sym(&format!("{STANDS_FOR}{}", self.fresh))
    }

    fn equal(&mut self, a: &Poly, b: &Poly) {
        let d = &self.now(a) - &self.now(b);
        if d.is(0) || d.is_too_large() {
            return;
        }
        let mut alone = lone(&d);
        // If no symbol is alone, the first quotient or extreme that is.
        alone.sort_by_key(|(a, ..)| !matches!(a, Atom::Sym(_)));
        let known = |a: &Atom| if let Atom::Sym(_) = a { Some(0) } else { least_of(a) };
        if let Some((a, c, rest)) = alone.into_iter().find(|(a, ..)| known(a).is_some()) {
            // c·a + rest = 0
            let to = &rest * -c;
            let least = known(&a).unwrap_or(0);
            // The lower bound of the atom also holds for its replacement.
            self.replace(a, to.clone());
            self.at_least(&to, least);
        }
    }

    /// Adds the fact `p >= least`.
    pub fn at_least(&mut self, p: &Poly, least: i64) {
        let p = &self.now(p) - &Poly::constant(least);
        if p.is_too_large() || self.nonneg(&p) {
            return;
        }
        if self.light {
            // A product that is at least 1 has no factor 0.
            if let [(m, 1..), ([], -1)] | [([], -1), (m, 1..)] =
                p.terms().iter().map(|(m, c)| (m.as_slice(), *c)).collect::<Vec<_>>()[..]
            {
                self.positive.extend(m.iter().filter(|a| matches!(a, Atom::Sym(_))).cloned());
            }
            return;
        }
        for (a, c, rest) in lone(&p) {
            // a = slack - rest, if that is non-negative by its signs.
            if c == 1 && by_signs(&-&rest) && !matches!(a, Atom::Max(..) | Atom::Min(..)) {
                let slack = self.symbol();
                let to = &slack - &rest;
                let ends = (self.low.remove(&a), self.high.remove(&a));
                if let (_, Some(high)) = &ends {
                    // The upper bound of the atom gives one of the slack.
                    if let Some(s) = slack.as_atom() {
                        self.high.insert(s.clone(), high.iter().map(|h| h + &rest).collect());
                    }
                }
                return self.replace(a, to);
            }
        }
        for (a, c, rest) in lone(&p) {
            if c == 1 {
                self.low.entry(a).or_default().push(-&rest);
            } else {
                self.high.entry(a).or_default().push(rest);
            }
        }
    }

    /// Adds the range of data.
    pub fn data(&mut self, e: u32, low: Ends, high: Ends) {
        let low = low.iter().map(|p| self.now(p)).collect();
        let high = high.iter().map(|p| self.now(p)).collect();
        self.low.insert(Atom::Data(e), low);
        self.high.insert(Atom::Data(e), high);
    }

    /// Whether all divisors are proven positive.
    pub fn divisors_are_positive(&self, p: &Poly) -> bool {
        p.terms().iter().flat_map(|(m, _)| m).all(|a| {
            let positive = match a {
                Atom::Div(_, d) | Atom::Mod(_, d) => self.nonneg(&(&self.now(d) - &Poly::ONE)),
                _ => true,
            };
            positive && inside(a).into_iter().all(|p| self.divisors_are_positive(p))
        })
    }

    /// Whether `at` is proven to be in `0..elements` where all `guards` are non-negative.
    pub fn proves_inside(&self, at: &Poly, elements: &Poly, guards: &[Poly], ways: &mut usize) -> bool {
        if *ways == 0 {
            return false;
        }
        *ways -= 1;
        let (here, all) = (self.now(at), self.now(elements));
        let last = &(&all - &here) - &Poly::ONE;
        if self.nonneg(&here) && self.nonneg(&last) {
            return true;
        }
        // Introduces a new variable for the next expression that guards bound.
        let facts = self.bounds(guards);
        let mut tried: Vec<Poly> = vec![];
        for f in &facts {
            let p = open(f);
            if p.as_const().is_some() || tried.contains(&p) {
                continue;
            }
            tried.push(p.clone());
            if self.with_variable(&p, &facts, at, elements, guards, ways) {
                return true;
            }
        }
        // Conditions between symbols, or on single atoms.
        let mut world = self.clone();
        let known = |w: &World| w.replaced.len() + w.low.len() + w.high.len();
        for f in &facts {
            world.at_least(f, 0);
        }
        known(&world) > known(self) && {
            let (here, all) = (world.now(at), world.now(elements));
            world.nonneg(&here) && world.nonneg(&(&(&all - &here) - &Poly::ONE))
        }
    }

    /// The bounds implied by the guards that are not known without them. Bounds of quotients and remainders also give bounds of their
    /// dividends.
    fn bounds(&self, guards: &[Poly]) -> Vec<Poly> {
        let mut out: Vec<Poly> = guards.iter().map(|g| reduced(&self.now(g))).collect();
        let mut next = 0;
        while let Some(f) = out.get(next).cloned() {
            next += 1;
            for (a, c, rest) in lone(&f) {
                match (a, c) {
                    // x/d >= -rest
                    (Atom::Div(x, d), 1) => out.push(&x + &(&d * &rest)),
                    // x/d <= rest
                    (Atom::Div(x, d), _) => out.push(&(&(&(&d * &rest) + &d) - &Poly::ONE) - &x),
                    (Atom::Mod(x, _), 1) if self.nonneg(&x) => out.push(&x + &rest),
                    _ => {}
                }
            }
            if out.len() > WAYS {
                break;
            }
        }
        out.retain(|f| !self.nonneg(f));
        out
    }

    /// [`World::proves_inside`] with a new variable for `p`, which the guards bound.
    fn with_variable(
        &self,
        p: &Poly,
        facts: &[Poly],
        at: &Poly,
        elements: &Poly,
        guards: &[Poly],
        ways: &mut usize,
    ) -> bool {
        let mut low = self.extreme(p, false, &mut Search::new(), 0);
        let mut high = self.extreme(p, true, &mut Search::new(), 0);
        for f in facts {
            let outer = |x: &Poly| x.vars().is_empty() && x.data().is_empty();
            // p + d >= 0
            let d = f - p;
            // If two bounds cannot be compared, the guard's is used.
            if outer(&d) && !low.as_ref().is_some_and(|old| self.nonneg(&(old + &d))) {
                low = Some(-&d);
            }
            // e - p >= 0
            let e = f + p;
            if outer(&e) && !high.as_ref().is_some_and(|old| self.nonneg(&(&e - old))) {
                high = Some(e);
            }
        }
        let (Some(low), Some(high)) = (low, high) else { return false };
        let extent = &(&high - &low) + &Poly::ONE;
        for (a, c, rest) in lone(p) {
            let mut world = self.clone();
            let v = Poly::var(world.extents.len());
            world.extents.push(extent.clone());
            // c·a + rest = low + v
            let to = &(&(&low + &v) - &rest) * c;
            world.replace(a, to);
            if world.proves_inside(at, elements, guards, ways) {
                return true;
            }
            // The new variable may be divided by a divisor of its extent.
            let all: Vec<Poly> = [at, elements].into_iter().chain(guards).cloned().collect();
            if world.take_apart(&all) && world.proves_inside(at, elements, guards, ways) {
                return true;
            }
        }
        false
    }

    /// Introduces variables for minima with sizes: `min(x, n - 1)` is one below `n` where neither is negative. Returns whether there are
    /// any.
    pub fn clamp(&mut self, all: &[Poly]) -> bool {
        for i in 0..WAYS {
            let found = all.iter().find_map(|p| self.minimum(&self.now(p)));
            let Some((a, last)) = found else { return i > 0 };
            let v = Poly::var(self.extents.len());
            self.extents.push(&last + &Poly::ONE);
            self.replace(a, v);
        }
        true
    }

    /// An innermost minimum with a size, and the size, where neither operand is negative.
    fn minimum(&self, p: &Poly) -> Option<(Atom, Poly)> {
        let outer = |x: &Poly| x.vars().is_empty() && x.data().is_empty();
        p.terms().into_iter().flat_map(|(m, _)| m).find_map(|a| {
            if let Some(found) = inside(&a).into_iter().find_map(|p| self.minimum(p)) {
                return Some(found);
            }
            let Atom::Min(x, y) = &a else { return None };
            let last = [(x, y), (y, x)].into_iter().find(|(x, y)| !outer(x) && outer(y))?.1;
            let last = Poly::clone(last);
            (self.nonneg(x) && self.nonneg(y)).then_some((a, last))
        })
    }

    /// Splits variables that are divided by a divisor of their extent: `%0 = 7·%8 + %9`. Returns whether there are any.
    pub fn take_apart(&mut self, all: &[Poly]) -> bool {
        for i in 0..WAYS {
            let mut found: Vec<(usize, Poly, Dim)> = vec![];
            for p in all {
                self.divided(&self.now(p), &mut found);
            }
            let size = |d: &Poly| (d.symbols().len(), d.terms().iter().map(|t| t.1.unsigned_abs()).max());
            let Some((v, d, q)) = found.into_iter().max_by_key(|(_, d, _)| size(d)) else { return i > 0 };
            let (outer, inner) = (self.extents.len(), self.extents.len() + 1);
            self.extents.extend([q, d.clone()]);
            self.replace(Atom::Var(v as u32), &(&Poly::var(outer) * &d) + &Poly::var(inner));
        }
        true
    }

    /// Variables with the divisor, and the quotient of their extent by it.
    fn divided(&self, p: &Poly, out: &mut Vec<(usize, Poly, Dim)>) {
        for a in p.terms().into_iter().flat_map(|(m, _)| m) {
            if let Atom::Div(x, d) | Atom::Mod(x, d) = &a
                && let Some(v) = x.as_var()
                && let Some(e) = self.extents.get(v)
                && d.vars().is_empty()
                && !out.iter().any(|(w, f, _)| *w == v && f == d)
            {
                let q = e.div(d, &[]);
                if &q * d == *e && !q.is(1) && self.nonneg(&(d - &Poly::ONE)) {
                    out.push((v, d.clone(), q));
                }
            }
            inside(&a).into_iter().for_each(|p| self.divided(p, out));
        }
    }
}
