//! Proofs that kernels stay inside their tensors.
//!
//! [`prove`] checks every load, store and array element at every place where a kernel evaluates it: wherever its guard holds, its offset
//! must be in `0..elements`, for all values of the variables and all sizes that the program admits. It uses these facts:
//!
//! - A variable is at least 0 and below its extent. So the extents of variables that the access depends on, or without which the kernel
//!   does not run, are at least 1; so are the extents of tensors that divide these.
//! - Guards: conjunctions of comparisons of index expressions.
//! - Data (`@`): the range of the expression for all possible inputs, from clamps, remainders, masks, narrow types and positions.
//! - [`Facts`] about symbols: constraints of the model, capacities of states, and that no extent of a tensor is negative. A run checks
//!   them before it starts; [`Facts::checked`] are those that it would not check otherwise.
//!
//! Sizes computed during a run cannot be checked beforehand. A kernel that uses one is proven only if the kernel that computes it always
//! keeps it between 0 and its bound ([`Facts::computed`]).
//!
//! Method: a fact or a guard becomes a substitution (`total = past + seq`, `w = 3 + s`, `2*%1 + %3 - 1 = v` with a new variable `v`).
//! Then the atoms of the expression that must be non-negative are replaced one after another by the bounds that minimise it, until only
//! non-negative terms are left (`world`).

mod computed;
mod counted;
mod range;
mod search;
mod terms;
#[cfg(test)]
mod tests;
mod world;

use super::places::Place;
use super::{Body, Capacity, Expr, ExprId, Family, Kernel, KernelGraph, TensorId};
use rustc_hash::FxHashMap;
use std::cell::{Cell, LazyCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use wgfc_ir::{Atom, Dim, Graph, Poly};
use world::World;

/// Whether a kernel stays inside its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It does, for all inputs.
    InBounds,
    /// These accesses are not proven, each with its place and the reason.
    Unproven(Vec<String>),
}

impl Proof {
    /// Whether all accesses are proven.
    pub fn is_in_bounds(&self) -> bool {
        *self == Proof::InBounds
    }
}

/// The facts known of a program's symbols.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Expressions that are non-negative.
    pub nonneg: Vec<Poly>,
    /// Pairs of equal expressions.
    pub equal: Vec<(Poly, Poly)>,
    /// Computed symbols that are between 0 and their bounds.
    pub computed: BTreeSet<Arc<str>>,
}

impl Facts {
    /// The facts that hold in every run of kernels that were fused from `graph`.
    pub fn of(graph: &Graph, kernels: &KernelGraph) -> Facts {
        let mut f = Facts::default();
        let known = |d: &Poly| !kernels.bounds.concern(d);
        let early = graph.constraints.iter().filter(|c| known(&c.a) && known(&c.b));
        for c in early {
            f.equal.push((c.a.clone(), c.b.clone()));
            f.nonneg.extend(c.nonneg());
        }
        for s in &graph.states {
            let Some(g) = &s.growth else { continue };
            let Some(room) = graph.ty(s.before).shape.get(g.axis) else { continue };
            let length = Dim::sym(&g.length);
            f.nonneg.push(room - &length);
            f.nonneg.push(&(room - &length) - &g.by);
            f.nonneg.push(g.by.clone());
        }
        f.nonneg.retain(known);
        f.nonneg.extend(Facts::checked(kernels));
        f.computed =
            kernels.computed.iter().filter(|c| computed::is_kept(kernels, c)).map(|c| c.0.clone()).collect();
        // Sizes that occur in no tensor's shape would only lengthen the search.
        let used: BTreeSet<Arc<str>> =
            kernels.tensors.iter().flat_map(|t| &t.ty.shape).flat_map(Poly::symbols).collect();
        for s in f.computed.iter().filter(|s| used.contains(*s)) {
            let (size, bound) = (Dim::sym(s), kernels.bounds.get(s).cloned().unwrap_or_default());
            f.nonneg.extend([&bound - &size, size]);
        }
        f
    }

    /// Extents of tensors that a run must check to be non-negative, since it does not follow from the expression itself.
    pub fn checked(kernels: &KernelGraph) -> Vec<Dim> {
        let all: BTreeSet<&Dim> = kernels.tensors.iter().flat_map(|t| &t.ty.shape).collect();
        let open = |d: &&Dim| !d.is_too_large() && !d.proves_nonneg(&[]) && !kernels.bounds.concern(d);
        all.into_iter().filter(open).cloned().collect()
    }
}

/// The number of accesses, and of those that are proven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All accesses.
    pub all: usize,
    /// Proven accesses.
    pub proven: usize,
    /// Expressions examined.
    pub steps: usize,
}

/// The proofs of all kernels, the expressions that must be at most [`MOST`](wgfc_ir::program::Proof::MOST) for the kernels in bounds, and
/// the total counts. Equal kernels are proven once.
pub fn prove_all(graph: &Graph, kernels: &KernelGraph) -> (Vec<Proof>, BTreeSet<Dim>, Count) {
    let facts = Facts::of(graph, kernels);
    let mut known: FxHashMap<u128, Proof> = FxHashMap::default();
    let mut sum = Count::default();
    let mut left = STEPS + STEPS_A_KERNEL * kernels.kernels.len();
    let mut counted = BTreeSet::new();
    let each = kernels.kernels.iter().map(|k| {
        let hash = k.structural_hash(&kernels.tensors, Capacity::Counts);
        let proof = known.entry(hash).or_insert_with(|| {
            let (proof, count) = prove(kernels, k, &facts, left);
            left = left.saturating_sub(count.steps);
            sum.all += count.all;
            sum.proven += count.proven;
            sum.steps += count.steps;
            if proof.is_in_bounds() {
                counted.extend(counted::counted(kernels, k).into_iter().flatten());
            }
            proof
        });
        proof.clone()
    });
    (each.collect(), counted, sum)
}

/// Whether a verified kernel stays inside its tensors, and how many of its accesses are proven, using at most `steps` steps.
pub fn prove(graph: &KernelGraph, kernel: &Kernel, facts: &Facts, steps: usize) -> (Proof, Count) {
    let (mut unproven, mut count) = (vec![], Count::default());
    let mut known: FxHashMap<Question, bool> = FxHashMap::default();
    // Most kernels need none of these.
    let hidden = LazyCell::new(|| hidden(graph, kernel));
    unproven.extend(computed::unknown(graph, kernel, facts));
    if counted::counted(graph, kernel).is_none_or(|all| all.iter().any(|d| d.as_const().is_some())) {
        unproven.push("its indices are not known to fit 32 bits".to_owned());
    }
    let steps = steps.min(STEPS);
    let left = Rc::new(Cell::new(steps));
    for (i, place) in kernel.places().iter().enumerate() {
        let mut worlds = <[FxHashMap<_, _>; 3]>::default();
        let (extents, ranges) = (place.domain(), range::Known::default());
        let loads = kernel.body.reachable(&place.roots()).into_iter().filter_map(|e| {
            let (what, elements, at, guard) = match kernel.body.expr(e) {
                Expr::Load { tensor, offset, guard } => {
                    (format!("e{e} loads t{tensor}[{offset}]"), numel(graph, *tensor), offset, guard)
                }
                Expr::Shared { array, at, guard } => {
                    (format!("e{e} reads s{array}[{at}]"), array_len(kernel, *array), at, guard)
                }
                _ => return None,
            };
            Some((what, elements, at.clone(), *guard))
        });
        let stores = place.stores.iter().map(|s| {
            let what = format!("a store to t{}[{}]", s.tensor, s.offset);
            (what, numel(graph, s.tensor), s.offset.clone(), s.guard)
        });
        for (what, elements, at, guard) in loads.chain(stores) {
            count.all += 1;
            let access = Access {
                graph,
                kernel,
                place,
                extents: &extents,
                ranges: &ranges,
                at: &at,
                guard,
                elements: &elements,
            };
            let proven = access.is_plainly_inside()
                || *known.entry(access.question(i)).or_insert_with(|| {
                    let [light, opaque, open] = &mut worlds;
                    let mut tries = [light, opaque, open]
                        .into_iter()
                        .enumerate()
                        .filter(|(n, _)| *n != 1 || !hidden.is_empty());
                    tries.any(|(n, worlds)| {
                        let before = left.get();
                        let how: (&[Atom], bool) = if n < 2 { (&hidden, n == 0) } else { (&[], false) };
                        let holds = access.is_inside(facts, worlds, how, &left);
                        tracing::trace!(access = what, n, steps = before - left.get(), holds);
                        holds
                    })
                });
            count.proven += usize::from(proven);
            if !proven {
                let when = guard.map_or(String::new(), |g| format!(" if e{g}"));
                unproven.push(format!("{what}{when} of {elements} elements, at {}", place.name));
            }
        }
    }
    count.steps = steps - left.get();
    // The relation of two computed sizes is not known.
    if !unproven.is_empty()
        && let Some(s) = computed::symbol(graph, kernel).filter(|s| facts.computed.contains(s))
    {
        unproven.push(format!("its sizes depend on `{s}`, which a run computes"));
    }
    let proof = if unproven.is_empty() { Proof::InBounds } else { Proof::Unproven(unproven) };
    (proof, count)
}

/// The comparisons of index expressions, as pairs of the smaller and the larger one, that hold where `e` is `truth`.
pub fn compared(body: &Body, e: ExprId, truth: bool) -> Vec<(Poly, Poly)> {
    let all = range::conditions(body, e, truth).into_iter();
    all.map(|c| (range::expanded(body, &c.small), range::expanded(body, &c.large))).collect()
}

fn numel(graph: &KernelGraph, t: TensorId) -> Dim {
    graph.tensors.get(t).map(|t| t.ty.numel()).unwrap_or_default()
}

fn array_len(kernel: &Kernel, array: u32) -> Dim {
    match &kernel.family {
        Family::StagedLoop(f) => f.arrays.get(array as usize).map_or(0, |a| i64::from(a.len)).into(),
        _ => Dim::ZERO,
    }
}

/// One access at one place.
pub(super) struct Access<'a> {
    graph: &'a KernelGraph,
    kernel: &'a Kernel,
    place: &'a Place<'a>,
    /// The extents of its variables.
    extents: &'a [Dim],
    /// The ranges found there.
    ranges: &'a range::Known,
    at: &'a Poly,
    guard: Option<ExprId>,
    elements: &'a Dim,
}

/// The most ways of using the guards that are tried.
const WAYS: usize = 64;
/// The most steps of the proofs of a kernel, and the additional steps of a program for each kernel. A step examines one short expression,
/// in about 10 µs. All proofs of resnet50 take 740 steps, those of a cubic Resize of 64 taps 31,122. Failing searches must not take
/// longer than the rest of the compilation.
pub const STEPS: usize = 40_000;
const STEPS_A_KERNEL: usize = 50;

/// The expressions that decide whether an access is inside. Accesses that differ only in what they read, not in its range, have equal
/// ones.
#[derive(PartialEq, Eq, Hash)]
struct Question {
    place: usize,
    elements: Dim,
    at: Poly,
    guard: Option<ExprId>,
    data: Vec<(range::Ends, range::Ends)>,
    vars: BTreeSet<usize>,
}

/// The first renamed number of data in a [`Question`].
const RENAMED: ExprId = 1 << 30;

/// Quotients, remainders and extremes of symbols only, outer ones before those inside them: most proofs need only a lower bound of them.
fn hidden(graph: &KernelGraph, kernel: &Kernel) -> Vec<Atom> {
    let mut found: BTreeMap<usize, Vec<Atom>> = BTreeMap::new();
    let places = kernel.places();
    let extents = places.iter().flat_map(|p| p.extents.iter().flatten());
    let tensors = kernel.tensors().into_iter().filter_map(|t| graph.tensors.get(t));
    let stored = kernel.all_stores().map(|s| &s.offset);
    let exprs = kernel.body.iter().filter_map(|(_, e, _)| e.index());
    for p in tensors.flat_map(|t| &t.ty.shape).chain(extents).chain(stored).chain(exprs) {
        terms::of_symbols(p, &mut found);
    }
    found.into_values().rev().flatten().collect()
}

impl Access<'_> {
    /// The variables that the access depends on. It is evaluated only where these have a value.
    fn vars(&self) -> BTreeSet<usize> {
        let body = &self.kernel.body;
        let roots: Vec<ExprId> = self.at.data().into_iter().chain(self.guard).collect();
        let mut vars = self.at.vars();
        let read = body.reachable(&roots);
        vars.extend(read.iter().flat_map(|e| body.expr(*e).index().into_iter().flat_map(Poly::vars)));
        vars.extend(self.place.outer.iter().copied());
        vars
    }

    /// The comparisons that the guard implies.
    fn compared(&self) -> Vec<range::Compared> {
        self.guard.map_or_else(Vec::new, |g| range::conditions(&self.kernel.body, g, true))
    }

    fn question(&self, place: usize) -> Question {
        let body = &self.kernel.body;
        let at = range::expanded(body, self.at);
        let compared = self.compared();
        let ends = compared.iter().flat_map(|c| [&c.small, &c.large]);
        let guarded: BTreeSet<ExprId> = ends.flat_map(|p| range::expanded(body, p).data()).collect();
        let free: Vec<ExprId> = at.data().into_iter().filter(|e| !guarded.contains(e)).collect();
        let renamed = |a: &Atom| match a {
            Atom::Data(e) => {
                let i = free.iter().position(|f| f == e)?;
                Some(Poly::atom(Atom::Data(RENAMED + i as ExprId)))
            }
            _ => None,
        };
        Question {
            place,
            elements: self.elements.clone(),
            at: at.subst(&renamed, &[]),
            guard: self.guard,
            data: free.iter().map(|e| range::range(body, self.place, *e, self.ranges)).collect(),
            vars: self.vars(),
        }
    }

    /// Whether the variables' extents or one comparison of the guard suffice for the proof, if no divisor could be 0.
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
            let above = |g: &Poly| terms::divides_by_numbers(g) && (p - g).as_const().is_some_and(|d| d >= 0);
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
        let body = &self.kernel.body;
        let vars = self.vars();
        let known = worlds.entry(vars.clone()).or_insert_with(|| {
            let mut world = World::new(self.place, light, left);
            world.hide(hidden);
            let tensors = self.kernel.tensors().into_iter().filter_map(|t| self.graph.tensors.get(t));
            let shapes: Vec<&Dim> = tensors.flat_map(|t| &t.ty.shape).collect();
            world.assume_all(facts, &vars, &shapes);
            world
        });
        let mut world = known.clone();
        let mut terms = vec![self.at.clone(), self.elements.clone()];
        let compared = self.compared();
        terms.extend(compared.iter().flat_map(|c| [c.small.clone(), c.large.clone()]));
        let roots: Vec<Poly> = terms.iter().map(|p| range::expanded(body, p)).collect();
        for e in roots.iter().flat_map(Poly::data) {
            let (mut low, mut high) = range::range(body, self.place, e, self.ranges);
            for ends in [&mut low, &mut high] {
                ends.retain(|p| world.divisors_are_positive(p));
            }
            world.data(e, low, high);
        }
        let (at, elements) = (roots[0].clone(), roots[1].clone());
        let guards = roots[2..].chunks(2).filter(|c| c.iter().all(|p| world.divisors_are_positive(p)));
        let guards: Vec<Poly> = guards.map(|c| &c[1] - &c[0]).collect();
        // A guard over sizes only holds wherever the access is made.
        let (sizes, guards): (Vec<Poly>, Vec<Poly>) =
            guards.into_iter().partition(|g| g.vars().is_empty() && g.data().is_empty());
        sizes.iter().for_each(|g| world.at_least(g, 0));
        if !world.divisors_are_positive(&at) || !world.divisors_are_positive(&elements) {
            return false;
        }
        let all: Vec<Poly> = [&at, &elements].into_iter().chain(&guards).cloned().collect();
        let mut apart = world.clone();
        let first = if apart.take_apart(&all) { &apart } else { &world };
        let (mut ways, mut few) = (if light { WAYS / 4 } else { WAYS }, WAYS / 8);
        first.proves_inside(&at, &elements, &guards, &mut ways)
            || !std::ptr::eq(first, &world) && world.proves_inside(&at, &elements, &guards, &mut few)
    }
}
