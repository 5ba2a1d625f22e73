//! Kernels that write memory which they read.
//!
//! Points of a kernel are computed in any order, so an element that one point writes must be read by no other point. Its own
//! point may read it, but only before it writes it. This module says which order that is, for the verifier and for whoever
//! wants to make a kernel write in place; code generation keeps it:
//!
//! - At a point, all that its stores read is read before the first of them writes: [`Place`]s are evaluated one after
//!   another, and in a place, stores come last.
//! - The position of a `prefix_scan` is combined before it is stored, also where its own value is left out.
//! - A `row` has [`passes`]. Within a pass, each position is combined before it is stored. Other positions of the row may be
//!   stored by then, so a position may be read again only in the pass of its store or in earlier ones. Stores once a row
//!   come last, but no invocation waits for the others after the last pass.
//! - A lane of a `loop` is one invocation. In a `staged_loop` all invocations wait for each other after each stage.
//! - In other families no point waits for another one.

use super::dependence::Dependence;
use super::passes::passes;
use super::places::Place;
use super::{Expr, ExprId, Family, Kernel, KernelTensor, Row, Store, TensorId, TensorKind};
use wgfc_ir::Poly;

/// Memory that tensors share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Tensor(TensorId),
    State(usize),
}

/// The memory of a tensor: a state is one before and after, and a copy lies under what is written over it.
fn memory(mut t: TensorId, tensors: &[KernelTensor]) -> Memory {
    // A chain of tensors that lie under each other is no longer than the list.
    for _ in 0..tensors.len() {
        match tensors.get(t).map(|t| &t.kind) {
            Some(TensorKind::Under(over)) => t = *over,
            Some(TensorKind::State { state, .. }) => return Memory::State(*state),
            _ => break,
        }
    }
    Memory::Tensor(t)
}

/// A load of memory that the kernel writes.
struct Read<'k> {
    id: ExprId,
    tensor: TensorId,
    offset: &'k Poly,
    guard: Option<ExprId>,
}

/// The loads of a kernel, among those that some expressions need, of the memory that it writes.
pub fn reads_of_written(kernel: &Kernel, roots: &[ExprId], tensors: &[KernelTensor]) -> Vec<ExprId> {
    reads(kernel, roots, tensors).into_iter().map(|r| r.id).collect()
}

fn reads<'k>(kernel: &'k Kernel, roots: &[ExprId], tensors: &[KernelTensor]) -> Vec<Read<'k>> {
    let written: Vec<Memory> = kernel.writes().into_iter().map(|t| memory(t, tensors)).collect();
    let body = &kernel.body;
    let read = |id: ExprId| match body.expr(id) {
        Expr::Load { tensor, offset, guard } if written.contains(&memory(*tensor, tensors)) => {
            Some(Read { id, tensor: *tensor, offset, guard: *guard })
        }
        _ => None,
    };
    body.reachable(roots).into_iter().filter_map(read).collect()
}

/// Loads that may find what the kernel itself has written, each in words.
pub fn conflicts(kernel: &Kernel, tensors: &[KernelTensor]) -> Vec<String> {
    let found = reads(kernel, &kernel.roots(), tensors);
    if found.is_empty() {
        return vec![];
    }
    let places = kernel.places();
    let order = Order::of(kernel, places.len());
    let mut out = vec![];
    for read in &found {
        let place_of = |s: &Store| places.iter().position(|p| p.stores.iter().any(|x| std::ptr::eq(*x, s)));
        let same = |s: &&Store| memory(s.tensor, tensors) == memory(read.tensor, tensors);
        // Nothing is stored where workgroups meet, so that has no place.
        let stores: Vec<(usize, &Store)> = places
            .iter()
            .flat_map(|p| &p.stores)
            .copied()
            .filter(same)
            .filter_map(|s| Some((place_of(s)?, s)))
            .collect();
        let own = |s: &Store| {
            let whenever = s.guard.is_none() || s.guard == read.guard;
            s.offset == *read.offset && s.offset.data().is_empty() && whenever
        };
        // Stores write different elements, so that of a read element only its own store is of concern.
        let concern = match stores.iter().find(|(_, s)| own(s)) {
            Some(s) => vec![*s],
            // With one point there is no other.
            None if order.single => stores,
            None => {
                let at = stores.first().map_or(String::new(), |(_, s)| format!(" at [{}]", s.offset));
                out.push(format!(
                    "e{} reads t{}[{}], which another point may have written{at}",
                    read.id, read.tensor, read.offset
                ));
                continue;
            }
        };
        for (i, place) in places.iter().enumerate() {
            let late = |root: ExprId| {
                kernel.body.reachable(&[root]).binary_search(&read.id).is_ok()
                    && !concern.iter().all(|(j, s)| order.is_before((i, place, root), (*j, s)))
            };
            if place.roots().into_iter().any(late) {
                out.push(format!(
                    "e{} reads t{}[{}] in {} after it may have been written",
                    read.id, read.tensor, read.offset, place.name
                ));
            }
        }
    }
    out
}

/// What is read before what is written, of the same point or of points that wait for each other.
struct Order<'k> {
    kernel: &'k Kernel,
    places: usize,
    /// Whether there is one point only.
    single: bool,
    /// Of a row, the pass of each reduction and of each store of positions.
    reductions: Vec<usize>,
    stores: Vec<usize>,
}

impl<'k> Order<'k> {
    fn of(kernel: &'k Kernel, places: usize) -> Order<'k> {
        let single = kernel.domain().iter().all(|d| d.is(1));
        let mut order = Order { kernel, places, single, reductions: vec![], stores: vec![] };
        if let Family::Row(Row { reductions, .. }) = &kernel.family {
            order.reductions = vec![0; reductions.len()];
            order.stores = vec![0; kernel.stores.len()];
            let all = passes(&Dependence::of(kernel), reductions, &kernel.stores, 1);
            for (n, pass) in all.iter().enumerate() {
                pass.reductions.iter().for_each(|i| order.reductions[*i] = n);
                pass.stores.iter().for_each(|i| order.stores[*i] = n);
            }
        }
        order
    }

    /// Whether what `root` reads in a place is read before a store writes it.
    fn is_before(&self, (i, place, root): (usize, &Place<'_>, ExprId), (j, store): (usize, &Store)) -> bool {
        match &self.kernel.family {
            Family::Row(_) => {
                let (once, last) = (self.places - 2, self.places - 1);
                let pass = |s: &Store| {
                    self.kernel
                        .stores
                        .iter()
                        .position(|x| std::ptr::eq(x, s))
                        .and_then(|n| self.stores.get(n))
                };
                match (i, j) {
                    (i, j) if i < once && j == once => true,
                    // Results of earlier reductions are at hand in the place of one.
                    (i, j) if i < once && j == last => {
                        self.reductions.get(place.results.len()) <= pass(store)
                    }
                    (i, j) if i == last && j == last => {
                        let of_root = |s: &&&Store| s.reads().any(|e| e == root);
                        place.stores.iter().filter(of_root).all(|s| pass(s) <= pass(store))
                    }
                    (i, j) => i == j,
                }
            }
            Family::Matmul(_) | Family::Attention(_) | Family::Sort(_) => i == j || self.single && i <= j,
            Family::Map(_) | Family::PrefixScan(_) | Family::Loop(_) | Family::StagedLoop(_) => i <= j,
        }
    }
}
