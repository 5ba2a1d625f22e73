//! States that a kernel writes where it reads them.
//!
//! What a state becomes is copied to it when all have read what it was. No copy is needed where the
//! kernel that computes it reads of the old contents only the element that it replaces.

use super::{Computed, Touched};
use crate::fuse::tensors::Tensors;
use crate::kernel::{Expr, Family, Kernel, KernelTensor, Store, TensorId, TensorKind};
use wgfc_ir::Value;

/// Makes the kernel that computes `v` write it to `to`, what state `state` becomes; whether it could.
/// `kernels` are all that read or write either.
pub(super) fn write(
    kernels: &mut [Kernel],
    tensors: &Tensors<'_>,
    v: Value,
    (state, to): (usize, TensorId),
    computed: &Computed,
) -> bool {
    let Some(from) = tensors.of.get(&v).copied() else { return false };
    let under = |t: &KernelTensor| matches!(t.kind, TensorKind::Under(over) if over == from);
    if !matches!(tensors.list[from].kind, TensorKind::Intermediate) || tensors.list.iter().any(under) {
        return false;
    }
    let is_before = |t: &TensorId| matches!(tensors.list[*t].kind, TensorKind::State { state: s, after: false } if s == state);
    let writes = |k: &Kernel| k.all_stores().any(|s| s.tensor == from);
    let Some(writer) = kernels.iter().position(writes) else { return false };
    let k = &kernels[writer];
    let stores: Vec<&Store> = k.all_stores().filter(|s| s.tensor == from).collect();
    let [store] = stores[..] else { return false };
    // Of one element there is nothing else to read.
    let single = k.domain().iter().all(|d| d.is(1));
    let own = |id: u32| match k.body.expr(id) {
        Expr::Load { tensor, offset, guard } if is_before(tensor) => {
            (single || *offset == store.offset) && guard.is_none() && store.guard.is_none()
        }
        _ => true,
    };
    let repeats = matches!(k.family, Family::Loop(_) | Family::StagedLoop(_));
    if repeats || !k.body.reachable(&k.roots()).into_iter().all(own) {
        return false;
    }
    let before: Vec<Kernel> = kernels.to_vec();
    for (i, k) in kernels.iter_mut().enumerate() {
        let here = |t: TensorId| if t == from || i == writer && is_before(&t) { to } else { t };
        if k.reads().iter().chain(&k.writes()).any(|t| here(*t) != *t) {
            *k = k.renumbered(&here);
        }
    }
    // Whoever reads the old contents runs before, which may be too early for what else it reads.
    let touched = |k: &Kernel| Touched { reads: k.reads(), writes: k.writes(), symbols: k.symbols() };
    let parts: Vec<Touched> = kernels.iter().map(touched).collect();
    let order = super::constraints(&parts, &tensors.list, computed);
    if petgraph::algo::is_cyclic_directed(&order) {
        kernels.clone_from_slice(&before);
        return false;
    }
    true
}
