//! What is known at one place, and what follows from it.

use super::Facts;
use super::range::Ends;
use crate::kernel::places::Place;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wgfc_ir::poly::STANDS_FOR;
use wgfc_ir::{Atom, Dim, Poly};

/// So many expressions are looked at before something counts as not proven.
const STEPS: usize = 4000;
/// So many facts and parts of variables are made.
const WAYS: usize = 24;
/// How deep bounds of bounds are looked for.
const DEPTH: usize = 40;

/// What is known at one place.
#[derive(Clone, Debug)]
pub struct World {
    /// Extents of the variables, those of new ones behind them; those without a value have extent 0.
    extents: Vec<Dim>,
    /// Whether that something is at least 1 is kept in `positive`, and other bounds of sizes are not used: what then follows
    /// does so in few steps.
    light: bool,
    /// Atoms that are at least 1.
    positive: FxHashSet<Atom>,
    /// Replacements, in the order in which they are made.
    replaced: Vec<(Atom, Poly)>,
    /// Bounds of atoms that are no replacements.
    low: FxHashMap<Atom, Ends>,
    high: FxHashMap<Atom, Ends>,
    /// New symbols so far.
    fresh: usize,
    /// Steps left to all proofs of the kernel together.
    left: Rc<Cell<usize>>,
}

/// The search for one proof.
struct Search {
    steps: usize,
    failed: FxHashSet<Poly>,
}

impl Search {
    fn new() -> Search {
        Search { steps: STEPS, failed: FxHashSet::default() }
    }
}

/// An atom that stands alone in a sum with coefficient 1 or -1: with that, and the rest.
fn lone(p: &Poly) -> Vec<(Atom, i64, Poly)> {
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
fn mentions(p: &Poly, a: &Atom) -> bool {
    p.terms().iter().any(|(m, _)| m.iter().any(|b| b == a || inside(b).iter().any(|p| mentions(p, a))))
}

fn inside(a: &Atom) -> Vec<&Poly> {
    match a {
        Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y) => vec![x, y],
        _ => vec![],
    }
}

/// The terms of a sum with variables or data, the first of them positive.
fn open(p: &Poly) -> Poly {
    let mut out = Poly::ZERO;
    for (m, c) in p.terms() {
        let term = m.into_iter().fold(Poly::constant(c), |p, a| &p * &Poly::atom(a));
        if !term.vars().is_empty() || !term.data().is_empty() {
            out = &out + &term;
        }
    }
    if out.terms().first().is_some_and(|(_, c)| *c < 0) { -&out } else { out }
}

/// What is not negative where `p` is not, without a common factor: `2x - 1 >= 0` where `x - 1 >= 0`.
fn reduced(p: &Poly) -> Poly {
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

/// What a sum is at least, if that is its constant.
fn least(p: &Poly) -> Option<i64> {
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

/// A number that a quotient, remainder or extreme is at least where its divisor is positive.
fn least_of(a: &Atom) -> Option<i64> {
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

/// The quotients, remainders and extremes of symbols alone in an expression, by how deep others are inside of them.
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

/// Whether an offset that grows with each variable, and with nothing else but what is not negative, is the last element at most
/// where all variables are: however long the extents are as expressions.
pub fn ends_inside(at: &Poly, elements: &Poly, extents: &[Dim]) -> bool {
    let last: Vec<Poly> = extents.iter().map(|e| e - &Poly::ONE).collect();
    let known = |v: &usize| *v < last.len();
    grows(at)
        && at.vars().iter().all(known)
        && (&(elements - &at.subst_vars(&last, &[])) - &Poly::ONE).as_const().is_some_and(|left| left >= 0)
}

/// Whether no term is negative, nor falls where a variable grows.
fn grows(p: &Poly) -> bool {
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

/// Whether all divisors are positive numbers.
pub fn divides_by_numbers(p: &Poly) -> bool {
    p.terms().iter().flat_map(|(m, _)| m).all(|a| {
        let number = match a {
            Atom::Div(_, d) | Atom::Mod(_, d) => d.as_const().is_some_and(|d| d > 0),
            _ => true,
        };
        number && inside(a).into_iter().all(divides_by_numbers)
    })
}

/// The sum `rest + factor·a`, where `a` occurs in no higher power and in no other atom's place in `factor`.
fn by(p: &Poly, a: &Atom) -> Option<(Poly, Poly)> {
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

impl World {
    pub fn new(place: &Place<'_>, light: bool, left: &Rc<Cell<usize>>) -> World {
        let extents = place.domain();
        let (low, high) = Default::default();
        let positive = FxHashSet::default();
        World { extents, light, positive, replaced: vec![], low, high, fresh: 0, left: left.clone() }
    }

    /// Puts symbols for atoms of symbols alone, as far as they are at least a number: nothing else stays known of them.
    pub fn hide(&mut self, atoms: &[Atom]) {
        for a in atoms {
            if let Some(least) = least_of(a) {
                let symbol = self.symbol();
                self.replace(a.clone(), &symbol + least);
            }
        }
    }

    /// Uses what holds of symbols, that the variables `vars` have values, and that `shapes` are extents of tensors.
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
            // Two negative factors have a positive product, too.
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

    /// An expression after all replacements.
    fn now(&self, p: &Poly) -> Poly {
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
        // Where no symbol is alone, the first quotient or extreme that is.
        alone.sort_by_key(|(a, ..)| !matches!(a, Atom::Sym(_)));
        let known = |a: &Atom| if let Atom::Sym(_) = a { Some(0) } else { least_of(a) };
        if let Some((a, c, rest)) = alone.into_iter().find(|(a, ..)| known(a).is_some()) {
            // c·a + rest = 0
            let to = &rest * -c;
            let least = known(&a).unwrap_or(0);
            // What it is at least stays known of what stands for it.
            self.replace(a, to.clone());
            self.at_least(&to, least);
        }
    }

    /// Uses `p >= least`.
    pub fn at_least(&mut self, p: &Poly, least: i64) {
        let p = &self.now(p) - &Poly::constant(least);
        if p.is_too_large() || self.nonneg(&p) {
            return;
        }
        if self.light {
            // A product that is at least 1 has no factor that is 0.
            if let [(m, 1..), ([], -1)] | [([], -1), (m, 1..)] =
                p.terms().iter().map(|(m, c)| (m.as_slice(), *c)).collect::<Vec<_>>()[..]
            {
                self.positive.extend(m.iter().filter(|a| matches!(a, Atom::Sym(_))).cloned());
            }
            return;
        }
        for (a, c, rest) in lone(&p) {
            // a = slack - rest, which must not be negative by its text.
            if c == 1 && by_signs(&-&rest) && !matches!(a, Atom::Max(..) | Atom::Min(..)) {
                let slack = self.symbol();
                let to = &slack - &rest;
                let ends = (self.low.remove(&a), self.high.remove(&a));
                if let (_, Some(high)) = &ends {
                    // What was an upper bound of the atom is one of the slack.
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

    /// The range of data.
    pub fn data(&mut self, e: u32, low: Ends, high: Ends) {
        let low = low.iter().map(|p| self.now(p)).collect();
        let high = high.iter().map(|p| self.now(p)).collect();
        self.low.insert(Atom::Data(e), low);
        self.high.insert(Atom::Data(e), high);
    }

    /// Whether all that is divided by is positive.
    pub fn divisors_are_positive(&self, p: &Poly) -> bool {
        p.terms().iter().flat_map(|(m, _)| m).all(|a| {
            let positive = match a {
                Atom::Div(_, d) | Atom::Mod(_, d) => self.nonneg(&(&self.now(d) - &Poly::ONE)),
                _ => true,
            };
            positive && inside(a).into_iter().all(|p| self.divisors_are_positive(p))
        })
    }

    /// Whether `at` is in `0..elements` where none of the `guards` is negative.
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
        // The next expression that guards bound, as a variable of its own.
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
        // Conditions between symbols, or of single atoms.
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

    /// What guards say here that is not known without them, quotients and remainders also of what is divided.
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

    /// [`World::proves_inside`] with a new variable for `p`, which guards bound.
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
            // Of two that cannot be compared, the guard's.
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
        }
        false
    }

    /// Takes variables apart that are divided by what divides their extents: `%0 = 7·%8 + %9`. Whether there are any.
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

    /// Variables with what they are divided by and the quotient of their extents.
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

    /// Whether an expression is certain not to be negative.
    fn nonneg(&self, p: &Poly) -> bool {
        self.search(p, &mut Search::new(), 0)
    }

    /// Looks at an expression, if there are steps left: long ones take several.
    fn step(&self, p: &Poly, s: &mut Search) -> bool {
        let all = 1 + p.size() as usize / 4;
        let (Some(steps), Some(left)) = (s.steps.checked_sub(1), self.left.get().checked_sub(all)) else {
            return false;
        };
        s.steps = steps;
        self.left.set(left);
        true
    }

    fn search(&self, p: &Poly, s: &mut Search, depth: usize) -> bool {
        if let Some(c) = p.as_const() {
            return c >= 0;
        }
        if p.is_too_large() || depth > DEPTH || s.failed.contains(p) || !self.step(p, s) {
            return false;
        }
        if self.signs(p, s, depth) {
            return true;
        }
        let mut atoms: Vec<Atom> = vec![];
        for a in p.terms().into_iter().flat_map(|(m, _)| m) {
            if !atoms.contains(&a) {
                atoms.push(a);
            }
        }
        // Each case of the larger and of the smaller of two.
        for a in &atoms {
            if let (Atom::Max(x, y) | Atom::Min(x, y), Some((rest, factor))) = (a, by(p, a)) {
                let up = matches!(a, Atom::Max(..));
                let case = |to: &Poly| &rest + &(&factor * to);
                let [first, second] = [case(x), case(y)];
                let holds = [self.search(&first, s, depth + 1), self.search(&second, s, depth + 1)];
                if holds == [true, true] {
                    return true;
                }
                let more = self.search(&factor, s, depth + 1);
                let less = !more && self.search(&-&factor, s, depth + 1);
                if (more && up || less && !up) && holds.contains(&true) {
                    return true;
                }
                let known = if more { self.low.get(a) } else { self.high.get(a).filter(|_| less) };
                for end in known.into_iter().flatten() {
                    if self.search(&(&rest + &(&factor * end)), s, depth + 1) {
                        return true;
                    }
                }
                s.failed.insert(p.clone());
                return false;
            }
        }
        // A variable that nothing else depends on is where it makes the sum smallest: no other order need be tried.
        for a in &atoms {
            let (Atom::Var(_), Some((rest, factor))) = (a, by(p, a)) else { continue };
            let ends = |d: &Atom| self.low.get(d).into_iter().chain(self.high.get(d)).flatten();
            let depends = |d: &Atom| ends(d).any(|e| mentions(e, a));
            if mentions(&rest, a) || mentions(&factor, a) || atoms.iter().any(depends) {
                continue;
            }
            let more = self.search(&factor, s, depth + 1);
            if !more && !self.search(&-&factor, s, depth + 1) {
                continue;
            }
            if let [end] = &self.ends(a, !more, s, depth + 1)[..] {
                let holds = self.search(&(&rest + &(&factor * end)), s, depth + 1);
                if !holds {
                    s.failed.insert(p.clone());
                }
                return holds;
            }
        }
        // Whatever holds others goes before they do, variables whose extents are no numbers before symbols.
        atoms.sort_by_key(|a| match a {
            Atom::Div(..) | Atom::Mod(..) | Atom::Max(..) | Atom::Min(..) => 0,
            Atom::Data(_) => 1,
            Atom::Var(_) => 2,
            Atom::Sym(_) | Atom::TooLarge => 3,
        });
        for a in &atoms {
            let Some((rest, factor)) = by(p, a) else { continue };
            let more = self.search(&factor, s, depth + 1);
            if !more && !self.search(&-&factor, s, depth + 1) {
                continue;
            }
            for end in self.ends(a, !more, s, depth + 1) {
                let next = &rest + &(&factor * &end);
                if self.search(&next, s, depth + 1) {
                    return true;
                }
            }
        }
        s.failed.insert(p.clone());
        false
    }

    /// Whether no term of a sum is negative.
    fn signs(&self, p: &Poly, s: &mut Search, depth: usize) -> bool {
        let mut constant = 0i64;
        let all = p.terms().iter().all(|(m, c)| {
            if m.iter().all(|a| self.positive.contains(a)) {
                constant = constant.saturating_add(*c);
                return m.is_empty() || *c >= 0;
            }
            *c >= 0
                && m.iter().all(|a| match a {
                    Atom::Sym(_) | Atom::Var(_) | Atom::Mod(..) => true,
                    Atom::Div(x, _) => self.search(x, s, depth + 1),
                    Atom::Max(x, y) => self.search(x, s, depth + 1) || self.search(y, s, depth + 1),
                    Atom::Min(x, y) => self.search(x, s, depth + 1) && self.search(y, s, depth + 1),
                    Atom::Data(_) => {
                        self.low.get(a).is_some_and(|l| l.iter().any(|l| self.search(l, s, depth + 1)))
                    }
                    Atom::TooLarge => false,
                })
        });
        all && constant >= 0
    }

    /// What an atom is at most (`upper`) or at least.
    fn ends(&self, a: &Atom, upper: bool, s: &mut Search, depth: usize) -> Ends {
        let mut out = if upper { self.high.get(a) } else { self.low.get(a) }.cloned().unwrap_or_default();
        match a {
            Atom::Var(i) => match self.extents.get(*i as usize) {
                Some(e) if upper => out.push(e - &Poly::ONE),
                Some(_) => out.push(Poly::ZERO),
                None => {}
            },
            Atom::Sym(_) if !upper => out.push(Poly::ZERO),
            Atom::Mod(x, d) if upper => {
                out.push(d - &Poly::ONE);
                if self.search(x, s, depth) {
                    out.push(x.clone());
                }
            }
            Atom::Mod(..) => out.push(Poly::ZERO),
            Atom::Div(x, d) => {
                if upper && (x.as_const().is_some_and(|c| c < 0) || self.search(&(-x - 1), s, depth)) {
                    out.push(Poly::constant(-1));
                }
                if upper && self.search(&(&(d - x) - &Poly::ONE), s, depth) {
                    out.push(Poly::ZERO);
                }
                if let Some(end) = self.extreme(x, upper, s, depth) {
                    let q = end.div(d, &self.extents);
                    if q.as_atom() != Some(a) {
                        out.push(q);
                    }
                }
                if !upper && self.search(x, s, depth) {
                    out.push(Poly::ZERO);
                }
            }
            // Both cases have been tried.
            Atom::Max(x, y) if !upper => out.extend([x.clone(), y.clone()]),
            Atom::Min(x, y) if upper => out.extend([x.clone(), y.clone()]),
            _ => {}
        }
        out
    }

    /// A bound of an expression without variables and data.
    fn extreme(&self, p: &Poly, upper: bool, s: &mut Search, depth: usize) -> Option<Poly> {
        let mut p = p.clone();
        for _ in 0..DEPTH {
            if depth > DEPTH || p.is_too_large() || !self.step(&p, s) {
                return None;
            }
            let terms = p.terms();
            let open = |a: &&Atom| {
                let p = Poly::atom((*a).clone());
                !p.vars().is_empty() || !p.data().is_empty()
            };
            let mut atoms: Vec<&Atom> = terms.iter().flat_map(|(m, _)| m).filter(open).collect();
            atoms.sort_by_key(|a| matches!(a, Atom::Var(_) | Atom::Data(_)));
            if atoms.is_empty() {
                return Some(p);
            }
            let next = atoms.into_iter().find_map(|a| {
                let (rest, factor) = by(&p, a)?;
                let more = self.search(&factor, s, depth + 1);
                if !more && !self.search(&-&factor, s, depth + 1) {
                    return None;
                }
                let end = match a {
                    Atom::Max(x, y) | Atom::Min(x, y) => {
                        let (x, y) = (
                            self.extreme(x, upper == more, s, depth + 1),
                            self.extreme(y, upper == more, s, depth + 1),
                        );
                        match (a, x, y) {
                            (Atom::Max(..), Some(x), Some(y)) => x.max_of(&y, &[]),
                            (_, Some(x), Some(y)) => x.min_of(&y, &[]),
                            _ => return None,
                        }
                    }
                    _ => self.ends(a, upper == more, s, depth + 1).into_iter().next()?,
                };
                Some(&rest + &(&factor * &end))
            });
            p = next?;
        }
        None
    }
}

/// Whether no term is negative, whatever symbols are.
fn by_signs(p: &Poly) -> bool {
    p.terms().iter().all(|(m, c)| *c >= 0 && m.iter().all(|a| matches!(a, Atom::Sym(_))))
}
