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
//! The search for the proofs is [`wgfc_ir::bounds`].

mod computed;
mod counted;
mod range;
#[cfg(test)]
mod tests;

use super::places::Place;
use super::{Body, Capacity, Expr, ExprId, Family, Kernel, KernelGraph, TensorId};
use range::At;
use rustc_hash::FxHashMap;
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::Arc;
pub use wgfc_ir::bounds::STEPS;
use wgfc_ir::bounds::{self, Access, Prover, Worlds};
use wgfc_ir::{Atom, Dim, Graph, Poly};

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
    /// Facts about sizes.
    pub sizes: bounds::Facts,
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
            f.sizes.equal.push((c.a.clone(), c.b.clone()));
            f.sizes.nonneg.extend(c.nonneg());
        }
        for s in &graph.states {
            let Some(g) = &s.growth else { continue };
            let Some(room) = graph.ty(s.before).shape.get(g.axis) else { continue };
            let length = Dim::sym(&g.length);
            f.sizes.nonneg.push(room - &length);
            f.sizes.nonneg.push(&(room - &length) - &g.by);
            f.sizes.nonneg.push(g.by.clone());
        }
        f.sizes.nonneg.retain(known);
        f.sizes.nonneg.extend(Facts::checked(kernels));
        f.computed =
            kernels.computed.iter().filter(|c| computed::is_kept(kernels, c)).map(|c| c.0.clone()).collect();
        // Sizes that occur in no tensor's shape would only lengthen the search.
        let used: BTreeSet<Arc<str>> =
            kernels.tensors.iter().flat_map(|t| &t.ty.shape).flat_map(Poly::symbols).collect();
        for s in f.computed.iter().filter(|s| used.contains(*s)) {
            let (size, bound) = (Dim::sym(s), kernels.bounds.get(s).cloned().unwrap_or_default());
            f.sizes.nonneg.extend([&bound - &size, size]);
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

/// The additional steps of a program for each kernel.
const STEPS_A_KERNEL: usize = 50;

/// Whether a verified kernel stays inside its tensors, and how many of its accesses are proven, using at most `steps` steps.
pub fn prove(graph: &KernelGraph, kernel: &Kernel, facts: &Facts, steps: usize) -> (Proof, Count) {
    let (mut unproven, mut count) = (vec![], Count::default());
    // Most kernels need none of these.
    let hidden = LazyCell::new(|| hidden(graph, kernel));
    unproven.extend(computed::unknown(graph, kernel, facts));
    if counted::counted(graph, kernel).is_none_or(|all| all.iter().any(|d| d.as_const().is_some())) {
        unproven.push("its indices are not known to fit 32 bits".to_owned());
    }
    let steps = steps.min(STEPS);
    let mut prover = Prover::new(&facts.sizes, steps);
    let tensors = kernel.tensors().into_iter().filter_map(|t| graph.tensors.get(t));
    let shapes: Vec<&Dim> = tensors.flat_map(|t| &t.ty.shape).collect();
    for (i, place) in kernel.places().iter().enumerate() {
        let mut worlds = Worlds::default();
        let (extents, ranges) = (place.domain(), bounds::Known::default());
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
            let conditions: Vec<(ExprId, bool)> = guard.map(|g| (g, true)).into_iter().collect();
            let access = Access {
                values: &At { body: &kernel.body, place },
                ranges: &ranges,
                extents: &extents,
                vars: vars(kernel, place, &at, guard),
                shapes: &shapes,
                at: &at,
                conditions: &conditions,
                nonneg: &[],
                elements: &elements,
            };
            let before = prover.left();
            let proven = prover.proves(&access, i, &mut worlds, &|| hidden.clone());
            tracing::trace!(access = what, steps = before - prover.left(), proven);
            count.proven += usize::from(proven);
            if !proven {
                let when = guard.map_or(String::new(), |g| format!(" if e{g}"));
                unproven.push(format!("{what}{when} of {elements} elements, at {}", place.name));
            }
        }
    }
    count.steps = steps - prover.left();
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
    let all = bounds::conditions(body, e, truth).into_iter();
    all.map(|c| (bounds::expanded(body, &c.small), bounds::expanded(body, &c.large))).collect()
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

/// The variables that an access depends on. It is evaluated only where these have a value.
fn vars(kernel: &Kernel, place: &Place<'_>, at: &Poly, guard: Option<ExprId>) -> BTreeSet<usize> {
    let body = &kernel.body;
    let roots: Vec<ExprId> = at.data().into_iter().chain(guard).collect();
    let mut vars = at.vars();
    let read = body.reachable(&roots);
    vars.extend(read.iter().flat_map(|e| body.expr(*e).index().into_iter().flat_map(Poly::vars)));
    vars.extend(place.outer.iter().copied());
    vars
}

/// Quotients, remainders and extremes of symbols in a kernel.
fn hidden(graph: &KernelGraph, kernel: &Kernel) -> Vec<Atom> {
    let places = kernel.places();
    let extents = places.iter().flat_map(|p| p.extents.iter().flatten());
    let tensors = kernel.tensors().into_iter().filter_map(|t| graph.tensors.get(t));
    let stored = kernel.all_stores().map(|s| &s.offset);
    let exprs = kernel.body.iter().filter_map(|(_, e, _)| e.index());
    bounds::hidden(tensors.flat_map(|t| &t.ty.shape).chain(extents).chain(stored).chain(exprs))
}
