//! Kernels that write memory that they also read.
//!
//! Points of a kernel are computed in any order, so an element that one point writes must not be read by another point. The point itself
//! may read it, but only before it writes it. This module defines the order within a kernel, for the verifier and for fusion, which makes
//! kernels write in place; code generation guarantees it:
//!
//! - At a point, all loads of its stores come before the first of these stores: [`Place`]s are evaluated one after another, and in a
//!   place, stores come last.
//! - A position of a `prefix_scan` is combined before it is stored, also if the scan is exclusive.
//! - A `row` has [`passes`]. Within a pass, each position is combined before it is stored. Other positions of the row may be stored by
//!   then, so a position may be read again only in the pass of its store or in earlier ones. Stores once per row come last, but there is
//!   no barrier after the last pass.
//! - A lane of a `loop` is one invocation. A `staged_loop` has a barrier after each stage.
//! - In other families no point waits for another.

use super::dependence::Dependence;
use super::passes::passes;
use super::places::Place;
use super::{Expr, ExprId, Family, Kernel, KernelTensor, Row, Store, TensorId, TensorKind};
use wgfc_ir::Poly;

/// The memory of a tensor, which several tensors may share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Tensor(TensorId),
    State(usize),
}

/// The memory of a tensor: a state's tensors before and after a run share it, and so do a copy and the tensor written over it.
fn memory(mut t: TensorId, tensors: &[KernelTensor]) -> Memory {
    // A chain of such tensors is no longer than the list.
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

/// The loads that some expressions need and that read memory which the kernel writes.
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

/// Descriptions of the loads that may find a value which the kernel itself has written.
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
        // Nothing is stored where workgroups synchronise, so that store has no place.
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
        // Stores write distinct elements, so that only the store of the read element itself matters.
        let concern = match stores.iter().find(|(_, s)| own(s)) {
            Some(s) => vec![*s],
            // A kernel of one point has no other points.
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

/// The order of loads and stores within a point, or between points that wait for each other.
struct Order<'k> {
    kernel: &'k Kernel,
    places: usize,
    /// Whether the kernel has only one point.
    single: bool,
    /// In a row kernel, the pass of each reduction and of each store of positions.
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

    /// Whether the loads of `root` in a place come before a store.
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
                    // In the place of a reduction, the results of earlier reductions are available.
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

#[cfg(test)]
mod tests {
    use crate::kernel::{parse, verify};

    /// The verifier's errors for a kernel that writes t1, a state of 3 rows of 7 elements, and the output t2.
    fn refused(kernel: &str) -> String {
        let tensors = "t0: f32[3, 7] state 0\nt1: f32[3, 7] state 0 updated\nt2: f32[3, 7] output 0\n\
                       t3: i32[21] input 0\nt4: f32[3] state 1\nt5: f32[3] state 1 updated\n\nkernel 0 ";
        match verify(&parse(&format!("{tensors}{kernel}\n")).unwrap_or_else(|e| panic!("{e}\n{kernel}"))) {
            Ok(()) => String::new(),
            Err(errors) => errors.join("; "),
        }
    }

    #[test]
    fn another_points_element_is_not_read() {
        let map = |offset: &str, store: &str| {
            refused(&format!("map [21]\n  e0: i32 = t3[%0]\n  e1: f32 = t0[{offset}]\n  t1[{store}] = e1"))
        };
        assert_eq!(map("%0", "%0"), "");
        assert_eq!(map("20 - %0", "20 - %0"), "");
        assert_eq!(
            map("20 - %0", "%0"),
            "kernel 0: e1 reads t0[-%0 + 20], which another point may have written at [%0]"
        );
        // Two points may store to the same element given by data.
        assert!(map("@0", "@0").contains("another point"));
        assert!(map("@0", "%0").contains("another point"));
        // A written element is read through the tensor of the new or the old contents.
        assert!(
            refused("map [20]\n  e0: f32 = t1[%0 + 1]\n  t1[%0] = e0").contains("another point"),
            "the same tensor"
        );
        // Only the guard of the store guarantees that no other point writes the element.
        let guarded = |guard: &str| {
            refused(&format!(
                "map [21]\n  e0: i32 = index(%0)\n  e1: i32 = 7:i32\n  e2: bool = lt(e0, e1)\n  \
                 e3: f32 = t0[%0]{guard}\n  t1[%0] = e3 if e2"
            ))
        };
        assert_eq!(guarded(" if e2"), "");
        assert!(guarded("").contains("another point"));
    }

    #[test]
    fn one_point_may_read_anything_before_it_writes() {
        assert_eq!(refused("map [1]\n  e0: f32 = t0[5]\n  t1[3] = e0"), "");
    }

    #[test]
    fn a_position_is_not_combined_after_it_is_stored() {
        // The second reduction reads elements again that the first pass has stored.
        let row = |value: &str| {
            refused(&format!(
                "row [3, 7]\n  e0: f32 = t0[7*%0 + %1]\n  e1: f32 = acc0\n  e2: f32 = sub(e0, e1)\n  e3: f32 = acc1\n  \
                 e4: f32 = 2.0:f32\n  e5: f32 = mul(e0, e4)\n  acc0 = sum(e0): f32\n  acc1 = sum(e2): f32\n  \
                 t1[7*%0 + %1] = {value}\n  t2[7*%0 + %1] = e3"
            ))
        };
        assert_eq!(row("e3"), "");
        assert_eq!(
            row("e5"),
            "kernel 0: e0 reads t0[7*%0 + %1] in a position after it may have been written"
        );
        // Stores of positions are not ordered between passes either.
        let later = refused(
            "row [3, 7]\n  e0: f32 = t0[7*%0 + %1]\n  e1: f32 = 1.0:f32\n  e2: f32 = acc0\n  e3: f32 = add(e0, e2)\n  \
             acc0 = sum(e1): f32\n  t1[7*%0 + %1] = e1\n  t2[7*%0 + %1] = e3",
        );
        assert!(later.contains("after it may have been written"), "{later}");
    }

    #[test]
    fn what_a_row_stores_once_its_positions_do_not_read() {
        let row = |store: &str| {
            refused(&format!(
                "row [3, 7]\n  e0: f32 = t4[%0]\n  e1: f32 = t0[7*%0 + %1]\n  e2: f32 = max(e0, e1)\n  e3: f32 = acc0\n  \
                 e4: f32 = sub(e1, e0)\n  acc0 = max(e2): f32\n  row t5[%0] = e3\n{store}"
            ))
        };
        assert_eq!(row(""), "");
        assert_eq!(row("  t2[7*%0 + %1] = e3"), "");
        assert!(row("  t2[7*%0 + %1] = e4").contains("e0 reads t4[%0] in a position after"));
    }

    #[test]
    fn the_order_in_loops() {
        let looped = |init: &str, last: &str| {
            refused(&format!(
                "loop [3] steps [7]\n  e0: f32 = t0[7*%0 + %1]\n  e1: f32 = t4[%0]\n  e2: f32 = acc0\n  \
                 e3: f32 = add(e0, e2)\n  e4: f32 = 0.0:f32\n  e5: f32 = add(e1, e2)\n  acc0 = {init} then e3\n  step t1[7*%0 + %1] = e3\n  t5[%0] = {last}"
            ))
        };
        assert_eq!(looped("e1", "e2"), "");
        assert_eq!(looped("e4", "e5"), "");
        // A read after the last step of the same lane.
        let after = refused(
            "loop [3] steps [1]\n  e0: f32 = t4[%0]\n  e1: f32 = acc0\n  e2: f32 = 1.0:f32\n  acc0 = e2 then e1\n  \
             step t5[%0] = e1\n  t2[%0] = e0",
        );
        assert!(after.contains("e0 reads t4[%0] in a lane after"), "{after}");
        // A read in a later stage.
        let staged = |each: &str| {
            refused(&format!(
                "staged_loop [3] steps [1] as \"x\"\n  e0: f32 = t0[7*%0 + %2]\n  e1: f32 = s0[%2]\n  \
                 s0: f32[7]\n  first [7] {{\n    s0 = e0\n  }}\n{each}"
            ))
        };
        assert_eq!(staged("  each [7] {\n    s0 = e1\n  }\n  last [7] {\n    t1[7*%0 + %2] = e1\n  }"), "");
        let late =
            staged("  each [7] {\n    t1[7*%0 + %2] = e1\n  }\n  last [7] {\n    t2[7*%0 + %2] = e0\n  }");
        assert!(late.contains("in an element after"), "{late}");
    }

    #[test]
    fn operands_of_products_are_not_written() {
        let product = |store: &str| {
            refused(&format!(
                "matmul [1, 3, 7, 3]\n  e0: f32 = t4[%3]\n  e1: f32 = t0[7*%3 + %2]\n  e2: f32 = acc0\n  \
                 e3: f32 = t0[7*%1 + %2]\n  e4: f32 = add(e2, e3)\n  acc0 = sum(e0 * {store}"
            ))
        };
        assert!(product("e1)\n  t1[7*%1 + %2] = e2").contains("another point"));
        assert_eq!(product("e0)\n  t1[7*%1 + %2] = e4"), "");
    }
}
