//! Joining elementwise kernels of one domain that read the same memory into one dispatch.
//!
//! Two kernels are joined only if neither depends on the other, through tensors or through computed symbols. Small kernels, whose time is
//! mostly that of the dispatch, are also joined if one reads more than the other, provided that these further reads do not depend on the
//! other.

mod order;
pub mod products;
pub mod stack;

use crate::kernel::{ExprId, Family, Kernel, KernelTensor, Map, TensorId, TensorKind, renumbered};
use order::Order;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::Dim;

/// The most small kernels that are tried as partners for one.
const MOST_CANDIDATES: usize = 8;

/// Joins kernels as long as the result binds no more than `max_buffers` storage buffers; a kernel of at most `little` elements is small.
/// A kernel that writes a state whose old contents are `read` is not joined: it must run late, and its partner may have to run early.
pub fn join(
    kernels: Vec<Kernel>,
    tensors: &[KernelTensor],
    read: &FxHashSet<usize>,
    computed: &[(Arc<str>, TensorId)],
    max_buffers: usize,
    little: i64,
) -> Vec<Kernel> {
    let apart = apart(tensors, read);
    let mut order = Order::of(&kernels, tensors, computed, &apart);
    let mut out: Vec<Kernel> = vec![];
    let mut known: FxHashMap<(Dim, Vec<TensorId>, Vec<usize>), usize> = FxHashMap::default();
    let mut small: FxHashMap<(Dim, Vec<usize>), Vec<usize>> = FxHashMap::default();
    for (number, k) in kernels.into_iter().enumerate() {
        order.begin(number, out.len());
        let Family::Map(Map { elements }) = &k.family else {
            out.push(k);
            continue;
        };
        let mut reads = k.reads();
        reads.sort_unstable();
        reads.dedup();
        let writes = k.writes();
        if reads.is_empty() || apart(&k) || writes.iter().any(|w| reads.contains(w)) {
            out.push(k);
            continue;
        }
        let symbols = if computed.is_empty() { BTreeSet::new() } else { k.symbols() };
        let symbols = (0..computed.len()).filter(|i| symbols.contains(&computed[*i].0)).collect();
        let key = (elements.clone(), reads, symbols);
        let fits = |i: usize, reads: usize| reads + out[i].writes().len() + writes.len() <= max_buffers;
        // A kernel that was joined since may read more.
        let same = known.get(&key).copied();
        let same = same.filter(|i| fits(*i, key.1.len()) && order.reads_at(*i).len() == key.1.len());
        let is_small = elements.as_const().is_some_and(|n| n <= little);
        let candidates = is_small.then(|| small.entry((key.0.clone(), key.2.clone())).or_default());
        let joined = same.or_else(|| {
            let mut all = candidates.iter().flat_map(|c| c.iter().rev().take(MOST_CANDIDATES)).copied();
            all.find(|i| {
                let (own, other) = (&key.1, &order.reads_at(*i));
                let (more, less, from) = match own.len() > other.len() {
                    true => (own, other, *i),
                    false => (other, own, order.place_of(number)),
                };
                let beyond: Vec<TensorId> = more.iter().copied().filter(|t| !less.contains(t)).collect();
                beyond.len() + less.len() == more.len()
                    && fits(*i, more.len())
                    && !order.may_depend(&beyond, from)
            })
        });
        match joined {
            Some(i) => {
                absorb(&mut out[i], &k);
                order.put(number, i);
            }
            None => {
                candidates.into_iter().for_each(|c| c.push(out.len()));
                known.insert(key, out.len());
                out.push(k);
            }
        }
    }
    out
}

/// Whether a kernel must stay as it is: a copy and the kernel that overwrites it depend on each other through the memory they share, and
/// the contents of a state are `read` before it is written.
fn apart<'t>(tensors: &'t [KernelTensor], read: &'t FxHashSet<usize>) -> impl Fn(&Kernel) -> bool + 't {
    let shared: FxHashSet<TensorId> = (tensors.iter().enumerate())
        .filter_map(|(i, t)| match t.kind {
            TensorKind::Under(over) => Some([i, over]),
            _ => None,
        })
        .flatten()
        .collect();
    let overwrites =
        |w: TensorId| matches!(&tensors[w].kind, TensorKind::State { state, .. } if read.contains(state));
    move |k| k.writes().iter().any(|w| shared.contains(w) || overwrites(*w))
}

/// Adds the stores of `other`, which must have the same domain.
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
