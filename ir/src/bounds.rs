//! Proofs that index expressions stay in a range, for all values of variables and all sizes.
//!
//! An [`Access`] is at a position that must be in `0..elements`. These facts are used:
//!
//! - A variable is at least 0 and below its extent. So the extents of variables that have a value are at least 1; so are the extents of
//!   tensors that divide these.
//! - Conditions: conjunctions of comparisons of index expressions.
//! - Data (`@`): the range of the [expression](Values) for all possible inputs, from clamps, remainders, masks, narrow types and
//!   positions.
//! - [`Facts`] about symbols, which are never negative, and that no extent of a tensor is negative.
//!
//! Method: a fact or a condition becomes a substitution (`total = past + seq`, `w = 3 + s`, `2*%1 + %3 - 1 = v` with a new variable `v`).
//! Then the atoms of the expression that must be non-negative are replaced one after another by the bounds that minimise it, until only
//! non-negative terms are left (`World`).

mod range;
mod search;
mod terms;
mod world;

pub use range::{Compared, Ends, Known, Node, Values, conditions, expanded, range};

use crate::{Atom, Dim, Poly};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use world::World;

/// The most ways of using the conditions that are tried.
const WAYS: usize = 64;

/// The most steps of the proofs of a kernel. A step examines one short expression, in about 10 µs. All proofs of resnet50 take 740 steps,
/// those of a cubic Resize of 64 taps 31,122. Failing searches must not take longer than the rest of the compilation.
pub const STEPS: usize = 40_000;

/// The facts known of symbols.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Expressions that are non-negative.
    pub nonneg: Vec<Poly>,
    /// Pairs of equal expressions.
    pub equal: Vec<(Poly, Poly)>,
}

/// A position at one place of a kernel.
pub struct Access<'a> {
    /// The expressions that index expressions and conditions read.
    pub values: &'a dyn Values,
    /// The ranges of expressions found at this place.
    pub ranges: &'a Known,
    /// The extents of its variables; 0 for those without a value.
    pub extents: &'a [Dim],
    /// Variables that have a value wherever the access is made.
    pub vars: BTreeSet<usize>,
    /// The extents of the kernel's tensors.
    pub shapes: &'a [&'a Dim],
    /// The position.
    pub at: &'a Poly,
    /// Conditions that are true, or false, wherever the access is made.
    pub conditions: &'a [(u32, bool)],
    /// Index expressions that are not negative wherever the access is made.
    pub nonneg: &'a [Poly],
    /// The number of elements that it must be below.
    pub elements: &'a Dim,
}

/// The facts at one place, for each set of variables that have a value, in three degrees of detail.
#[derive(Default)]
pub struct Worlds([FxHashMap<BTreeSet<usize>, World>; 3]);

/// The proofs of a kernel.
pub struct Prover<'f> {
    facts: &'f Facts,
    /// Steps that are left.
    left: Rc<Cell<usize>>,
    known: FxHashMap<Question, bool>,
}

/// The expressions that decide whether an access is inside. Accesses that differ only in what they read, not in its range, have equal
/// ones.
#[derive(PartialEq, Eq, Hash)]
struct Question {
    place: usize,
    elements: Dim,
    at: Poly,
    conditions: Vec<(u32, bool)>,
    nonneg: Vec<Poly>,
    data: Vec<(Ends, Ends)>,
    vars: BTreeSet<usize>,
}

/// The first renamed number of data in a [`Question`].
const RENAMED: u32 = 1 << 30;

/// Quotients, remainders and extremes of symbols only, outer ones before those inside them: most proofs need only a lower bound of them.
pub fn hidden<'p>(all: impl IntoIterator<Item = &'p Poly>) -> Vec<Atom> {
    let mut found: BTreeMap<usize, Vec<Atom>> = BTreeMap::new();
    for p in all {
        terms::of_symbols(p, &mut found);
    }
    found.into_values().rev().flatten().collect()
}

impl<'f> Prover<'f> {
    /// A prover that takes at most `steps` steps.
    pub fn new(facts: &'f Facts, steps: usize) -> Prover<'f> {
        Prover { facts, left: Rc::new(Cell::new(steps)), known: FxHashMap::default() }
    }

    /// The steps that are left.
    pub fn left(&self) -> usize {
        self.left.get()
    }

    /// Whether an access is proven to be inside. `place` is the number of the place, `worlds` the facts that are known there, and
    /// `hidden` the [quotients and the like](hidden) of symbols that the kernel has.
    pub fn proves(
        &mut self,
        access: &Access,
        place: usize,
        worlds: &mut Worlds,
        hidden: &dyn Fn() -> Vec<Atom>,
    ) -> bool {
        if access.is_plainly_inside() {
            return true;
        }
        let (facts, left) = (self.facts, &self.left);
        *self.known.entry(access.question(place)).or_insert_with(|| {
            let hidden = &hidden()[..];
            let mut tries = worlds.0.iter_mut().enumerate().filter(|(n, _)| *n != 1 || !hidden.is_empty());
            tries.any(|(n, worlds)| {
                let how: (&[Atom], bool) = if n < 2 { (hidden, n == 0) } else { (&[], false) };
                access.is_inside(facts, worlds, how, left)
            })
        })
    }
}

impl Access<'_> {
    /// The comparisons that the conditions imply.
    fn compared(&self) -> Vec<Compared> {
        let stated = self.conditions.iter().flat_map(|(e, truth)| conditions(self.values, *e, *truth));
        let known = self.nonneg.iter().map(|p| Compared { small: Poly::ZERO, large: p.clone() });
        stated.chain(known).collect()
    }

    fn question(&self, place: usize) -> Question {
        let at = expanded(self.values, self.at);
        let compared = self.compared();
        let ends = compared.iter().flat_map(|c| [&c.small, &c.large]);
        let guarded: BTreeSet<u32> = ends.flat_map(|p| expanded(self.values, p).data()).collect();
        let free: Vec<u32> = at.data().into_iter().filter(|e| !guarded.contains(e)).collect();
        let renamed = |a: &Atom| match a {
            Atom::Data(e) => {
                let i = free.iter().position(|f| f == e)?;
                Some(Poly::atom(Atom::Data(RENAMED + i as u32)))
            }
            _ => None,
        };
        Question {
            place,
            elements: self.elements.clone(),
            at: at.subst(&renamed, &[]),
            conditions: self.conditions.to_vec(),
            nonneg: self.nonneg.to_vec(),
            data: free.iter().map(|e| range(self.values, *e, self.ranges)).collect(),
            vars: self.vars.clone(),
        }
    }

    /// Whether the variables' extents or one comparison suffice for the proof, if no divisor could be 0.
    fn is_plainly_inside(&self) -> bool {
        let extents = self.extents;
        if !terms::divides_by_numbers(self.at) {
            return false;
        }
        if terms::ends_inside(self.at, self.elements, extents) || self.at.in_range(self.elements, extents) {
            return true;
        }
        let guards: Vec<Poly> = self.compared().iter().map(|c| &c.large - &c.small).collect();
        let known = |p: &Poly| {
            let above = |g: &Poly| terms::divides_by_numbers(g) && (p - g).proves_nonneg(extents);
            p.proves_nonneg(extents) || guards.iter().any(above)
        };
        known(self.at) && known(&(&(self.elements - self.at) - &Poly::ONE))
    }

    fn is_inside(
        &self,
        facts: &Facts,
        worlds: &mut FxHashMap<BTreeSet<usize>, World>,
        (hidden, light): (&[Atom], bool),
        left: &Rc<Cell<usize>>,
    ) -> bool {
        let known = worlds.entry(self.vars.clone()).or_insert_with(|| {
            let mut world = World::new(self.extents.to_vec(), light, left);
            world.hide(hidden);
            world.assume_all(facts, &self.vars, self.shapes);
            world
        });
        let mut world = known.clone();
        let mut terms = vec![self.at.clone(), self.elements.clone()];
        let compared = self.compared();
        terms.extend(compared.iter().flat_map(|c| [c.small.clone(), c.large.clone()]));
        let roots: Vec<Poly> = terms.iter().map(|p| expanded(self.values, p)).collect();
        for e in roots.iter().flat_map(Poly::data).chain(self.counts(&roots)) {
            let (mut low, mut high) = range(self.values, e, self.ranges);
            for ends in [&mut low, &mut high] {
                ends.retain(|p| world.divisors_are_positive(p));
            }
            world.data(e, low, high);
        }
        let (at, elements) = (roots[0].clone(), roots[1].clone());
        let guards = roots[2..].chunks(2).filter(|c| c.iter().all(|p| world.divisors_are_positive(p)));
        let guards: Vec<(&Poly, Poly)> = guards.map(|c| (&c[0], &c[1] - &c[0])).collect();
        let followed: Vec<Poly> = guards.iter().flat_map(|(small, g)| self.followed(&at, small, g)).collect();
        let guards: Vec<Poly> = guards.into_iter().map(|g| g.1).collect();
        // A condition over sizes only holds wherever the access is made.
        let (sizes, guards): (Vec<Poly>, Vec<Poly>) =
            guards.into_iter().partition(|g| g.vars().is_empty() && g.data().is_empty());
        sizes.iter().for_each(|g| world.at_least(g, 0));
        if !world.divisors_are_positive(&at) || !world.divisors_are_positive(&elements) {
            return false;
        }
        let all: Vec<Poly> = [&at, &elements].into_iter().chain(&guards).cloned().collect();
        let mut apart = world.clone();
        let first = if apart.take_apart(&all) { &apart } else { &world };
        let mut clamped = world.clone();
        if clamped.clamp(&all[..1]) {
            clamped.take_apart(&all);
            if clamped.proves_inside(&at, &elements, &guards, &mut (WAYS / 8)) {
                return true;
            }
        }
        if !followed.is_empty() {
            let all = [&followed[..], &guards].concat();
            if first.proves_inside(&at, &elements, &all, &mut (WAYS / 4)) {
                return true;
            }
        }
        let (mut ways, mut few) = (if light { WAYS / 4 } else { WAYS }, WAYS / 8);
        first.proves_inside(&at, &elements, &guards, &mut ways)
            || !std::ptr::eq(first, &world) && world.proves_inside(&at, &elements, &guards, &mut few)
    }

    /// Conditions on a position that follow from `g >= 0`, whose lesser side is `small`: `4*%0 + %1 < n` follows from `4*%0 + 3 < n`,
    /// where `%1` is at most 3.
    fn followed(&self, at: &Poly, small: &Poly, g: &Poly) -> Vec<Poly> {
        let (vars, own) = (at.vars(), g.vars());
        let added = small.terms().into_iter().find(|(m, _)| m.is_empty()).map_or(0, |(_, c)| c);
        let points = |v: &usize| self.extents.get(*v).and_then(Poly::as_const);
        vars.difference(&own)
            .filter(|_| !own.is_empty() && own.is_subset(&vars))
            .filter_map(|v| Some((v, points(v).filter(|n| (2..=added).contains(n))?)))
            .map(|(v, n)| &(g + (n - 1)) - &Poly::var(*v))
            .collect()
    }

    /// The data in the extents of variables that index expressions read.
    fn counts(&self, all: &[Poly]) -> BTreeSet<u32> {
        let (mut data, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut open: Vec<usize> = all.iter().flat_map(Poly::vars).collect();
        while let Some(v) = open.pop() {
            if let Some(e) = self.extents.get(v).filter(|_| seen.insert(v)) {
                data.extend(e.data());
                open.extend(e.vars());
            }
        }
        data
    }
}
