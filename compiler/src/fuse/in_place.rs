//! States that a kernel updates in place.
//!
//! The new contents of a state are copied to it after all readers have read the old contents. No copy is needed where the kernel that
//! computes the new contents reads only the old element that it replaces, before it writes it ([`conflicts`]). A second copy is needed
//! where the new contents of a state are the old contents of another one, as when two states are swapped.

use super::split::Block;
use super::{Computed, Touched};
use crate::fuse::tensors::Tensors;
use crate::kernel::in_place::conflicts;
use crate::kernel::{Family, Kernel, KernelTensor, TensorId, TensorKind};
use petgraph::algo::toposort;
use rustc_hash::FxHashSet;
use wgfc_ir::Value;

/// Orders the values to copy and their destinations, and marks the values that the kernel which computes them may [write](write) directly
/// to the destination. The marked ones come last, since the copies before them read what those kernels write. Of several states that
/// become one value, only the first is marked.
pub(super) fn ordered(copies: Vec<(Value, TensorId)>, tensors: &Tensors<'_>) -> Vec<(Value, TensorId, bool)> {
    let mut seen: FxHashSet<Value> = FxHashSet::default();
    let (mut others, mut states, mut written) = (vec![], vec![], vec![]);
    for (v, t) in copies {
        let own = tensors.of.get(&v).map(|from| &tensors.list[*from].kind);
        let intermediate = matches!(own, Some(TensorKind::Intermediate));
        let to = match tensors.list[t].kind {
            TensorKind::State { .. } if intermediate && seen.insert(v) => {
                written.push((v, t, true));
                continue;
            }
            TensorKind::State { .. } => &mut states,
            _ => &mut others,
        };
        to.push((v, t, false));
    }
    others.extend(states.into_iter().chain(written));
    others
}

/// The states whose old contents are among these tensors.
fn olds(reads: impl Iterator<Item = TensorId>, tensors: &[KernelTensor]) -> FxHashSet<usize> {
    let old = |t: TensorId| match tensors[t].kind {
        TensorKind::State { state, after: false, .. } => Some(state),
        _ => None,
    };
    reads.filter_map(old).collect()
}

/// The states whose old contents any kernel reads.
pub(super) fn read_before(
    kernels: &[Kernel],
    blocks: &[Block],
    tensors: &[KernelTensor],
) -> FxHashSet<usize> {
    olds(kernels.iter().flat_map(Kernel::reads).chain(blocks.iter().flat_map(Block::reads)), tensors)
}

/// Whether a copy to a state fits no order: it reads old contents of the state that it writes, or of a state that is written by a kernel
/// which in turn reads what the copy overwrites. The copy must then read from an intermediate tensor.
pub(super) fn needs_intermediate(
    copy: &Kernel,
    kernels: &[Kernel],
    blocks: &[Block],
    tensors: &Tensors<'_>,
    computed: &Computed,
) -> bool {
    let reads = olds(copy.reads().into_iter(), &tensors.list);
    let states = copy.writes().into_iter().filter_map(|t| match tensors.list[t].kind {
        TensorKind::State { state, .. } => Some(state),
        _ => None,
    });
    let states: Vec<usize> = states.collect();
    if reads.is_empty() || states.is_empty() {
        return false;
    }
    let kernel = |k: &Kernel| Touched { reads: k.reads(), writes: k.writes(), symbols: k.symbols() };
    let block = |b: &Block| Touched {
        reads: b.reads().collect(),
        writes: b.writes().collect(),
        symbols: b.symbols(),
    };
    let all = kernels.iter().chain([copy]).map(kernel).chain(blocks.iter().map(block));
    let parts: Vec<Touched> = all.collect();
    let order = super::constraints(&parts, &tensors.list, computed);
    states.iter().any(|s| reads.contains(s)) || toposort(&order, None).is_err()
}

/// Makes the kernel that computes `v` write it to `to`, the new contents of state `state`. Returns whether that is possible. `kernels`
/// are all kernels that read or write either tensor.
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
    let is_before = |t: &TensorId| matches!(tensors.list[*t].kind, TensorKind::State { state: s, after: false, .. } if s == state);
    let writes = |k: &Kernel| k.all_stores().any(|s| s.tensor == from);
    let Some(writer) = kernels.iter().position(writes) else { return false };
    let k = &kernels[writer];
    if matches!(k.family, Family::Loop(_) | Family::StagedLoop(_)) {
        return false;
    }
    let own = |t: TensorId| if t == from || is_before(&t) { to } else { t };
    if !conflicts(&k.renumbered(&own), &tensors.list).is_empty() {
        return false;
    }
    let before: Vec<Kernel> = kernels.to_vec();
    for (i, k) in kernels.iter_mut().enumerate() {
        let here = |t: TensorId| {
            if i == writer {
                own(t)
            } else if t == from {
                to
            } else {
                t
            }
        };
        if k.reads().iter().chain(&k.writes()).any(|t| here(*t) != *t) {
            *k = k.renumbered(&here);
        }
    }
    // Readers of the old contents must run before the writer, which can contradict their other dependences.
    let touched = |k: &Kernel| Touched { reads: k.reads(), writes: k.writes(), symbols: k.symbols() };
    let parts: Vec<Touched> = kernels.iter().map(touched).collect();
    let order = super::constraints(&parts, &tensors.list, computed);
    if toposort(&order, None).is_err() {
        kernels.clone_from_slice(&before);
        return false;
    }
    true
}
