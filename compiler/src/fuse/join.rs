//! Joining elementwise kernels of one domain that read the same memory into one dispatch.
//!
//! Neither can depend on the other: what one writes it would have to read itself, and what computes a symbol
//! that the other uses comes before both.

use crate::kernel::{ExprId, Family, Kernel, KernelTensor, Map, TensorId, TensorKind, renumbered};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::Dim;

/// Joins what binds no more than `max_buffers` storage buffers. What writes one of the states of which what they were is
/// `read` runs late and alone: what it would be joined with may have to run early.
pub fn join(
    kernels: Vec<Kernel>,
    tensors: &[KernelTensor],
    read: &FxHashSet<usize>,
    computed: &[(Arc<str>, TensorId)],
    max_buffers: usize,
) -> Vec<Kernel> {
    // A copy and what writes over it depend on each other by the memory they share.
    let shared: FxHashSet<TensorId> = (tensors.iter().enumerate())
        .filter_map(|(i, t)| match t.kind {
            TensorKind::Under(over) => Some([i, over]),
            _ => None,
        })
        .flatten()
        .collect();
    let mut out: Vec<Kernel> = vec![];
    let mut known: FxHashMap<(Dim, Vec<TensorId>, Vec<usize>), usize> = FxHashMap::default();
    for k in kernels {
        let Family::Map(Map { elements }) = &k.family else {
            out.push(k);
            continue;
        };
        let mut reads = k.reads();
        reads.sort_unstable();
        let writes = k.writes();
        let overwrites =
            |w: TensorId| matches!(&tensors[w].kind, TensorKind::State { state, .. } if read.contains(state));
        if reads.is_empty()
            || writes.iter().any(|w| reads.contains(w) || shared.contains(w) || overwrites(*w))
        {
            out.push(k);
            continue;
        }
        let symbols = if computed.is_empty() { BTreeSet::new() } else { k.symbols() };
        let symbols = (0..computed.len()).filter(|i| symbols.contains(&computed[*i].0)).collect();
        let key = (elements.clone(), reads, symbols);
        match known.get(&key) {
            Some(i) if key.1.len() + out[*i].writes().len() + writes.len() <= max_buffers => {
                absorb(&mut out[*i], &k);
            }
            _ => {
                known.insert(key, out.len());
                out.push(k);
            }
        }
    }
    out
}

/// Adds the stores of `other`, whose domain is the same.
fn absorb(kernel: &mut Kernel, other: &Kernel) {
    let domain = kernel.domain();
    let mut ids: Vec<ExprId> = vec![];
    for (_, e, dtype) in other.body.iter() {
        let of = |i: ExprId| ids[i as usize];
        let e = e.mapped(of, |p| renumbered(p, of, &domain));
        ids.push(kernel.body.push(e, dtype));
    }
    let of = |i: ExprId| ids[i as usize];
    for s in &other.stores {
        kernel.stores.push(s.mapped(of, |p| renumbered(p, of, &domain)));
    }
    for n in &other.nodes {
        if !kernel.nodes.contains(n) {
            kernel.nodes.push(n.clone());
        }
    }
}
