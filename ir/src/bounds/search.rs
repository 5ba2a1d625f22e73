//! The search for a proof that an expression is non-negative.

use super::range::Ends;
use super::terms::{by, mentions};
use super::world::World;
use crate::{Atom, Poly};
use rustc_hash::FxHashSet;

/// The most expressions examined before an expression counts as unproven.
const STEPS: usize = 4000;
/// The greatest depth of nested bounds.
const DEPTH: usize = 40;

/// The search for one proof.
pub(super) struct Search {
    steps: usize,
    failed: FxHashSet<Poly>,
}

impl Search {
    pub(super) fn new() -> Search {
        Search { steps: STEPS, failed: FxHashSet::default() }
    }
}

impl World {
    /// Whether an expression is proven to be non-negative.
    pub(super) fn nonneg(&self, p: &Poly) -> bool {
        self.search(p, &mut Search::new(), 0)
    }

    /// Spends steps on an expression if there are any left; long expressions take several.
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
        // Both cases of each `max` and `min`.
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
        // A variable that nothing else depends on is replaced by the end of its range that minimises the sum: no other order need be
        // tried.
        for a in &atoms {
            let (Atom::Var(_), Some((rest, factor))) = (a, by(p, a)) else { continue };
            let ends = |d: &Atom| self.low.get(d).into_iter().chain(self.high.get(d)).flatten();
            let extent = |d: &Atom| match d {
                Atom::Var(v) => self.extents.get(*v as usize),
                _ => None,
            };
            let depends = |d: &Atom| ends(d).chain(extent(d)).any(|e| mentions(e, a));
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
        // Composite atoms are replaced before the atoms inside them, and variables before symbols, since extents may be symbolic.
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

    /// The upper (`upper`) or lower bounds of an atom.
    pub(super) fn ends(&self, a: &Atom, upper: bool, s: &mut Search, depth: usize) -> Ends {
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
            // Both cases have been tried at this point.
            Atom::Max(x, y) if !upper => out.extend([x.clone(), y.clone()]),
            Atom::Min(x, y) if upper => out.extend([x.clone(), y.clone()]),
            _ => {}
        }
        out
    }

    /// An upper or lower bound of an expression without variables and data.
    pub(super) fn extreme(&self, p: &Poly, upper: bool, s: &mut Search, depth: usize) -> Option<Poly> {
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
