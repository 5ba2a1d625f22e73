//! Joining kernels into one dispatch: elementwise ones of one domain that read the same memory here, products of one operand in [`products`],
//! and small kernels of different domains in [`mod@stack`].
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

/// The program whose kernels are joined, and the limit of its device.
pub struct Joiner<'t> {
    tensors: &'t [KernelTensor],
    read: &'t FxHashSet<usize>,
    computed: &'t [(Arc<str>, TensorId)],
    max_buffers: usize,
    /// The tensors that share their memory with another one.
    shared: FxHashSet<TensorId>,
}

impl<'t> Joiner<'t> {
    /// `read` are the states whose contents are read before they are written, `computed` the tensors of computed symbols; a kernel binds at
    /// most `max_buffers` storage buffers.
    pub fn new(
        tensors: &'t [KernelTensor],
        read: &'t FxHashSet<usize>,
        computed: &'t [(Arc<str>, TensorId)],
        max_buffers: usize,
    ) -> Joiner<'t> {
        let shared = (tensors.iter().enumerate())
            .filter_map(|(i, t)| match t.kind {
                TensorKind::Under(over) => Some([i, over]),
                _ => None,
            })
            .flatten()
            .collect();
        Joiner { tensors, read, computed, max_buffers, shared }
    }

    /// The dependences of kernels.
    fn order(&self, kernels: &[Kernel]) -> Order<'t> {
        Order::of(kernels, self.tensors, self.computed, &|k| self.is_apart(k))
    }

    /// Whether a kernel is not joined: a copy and the kernel that overwrites it depend on each other through the memory they share, and a
    /// kernel that writes a state whose old contents are read must run late, while its partner may have to run early.
    fn is_apart(&self, k: &Kernel) -> bool {
        let overwrites = |w: TensorId| match &self.tensors[w].kind {
            TensorKind::State { state, .. } => self.read.contains(state),
            _ => false,
        };
        k.writes().iter().any(|w| self.shared.contains(w) || overwrites(*w))
    }
}

/// Joins elementwise kernels of one domain; a kernel of at most `little` elements is small.
pub fn elementwise(joiner: &Joiner<'_>, kernels: Vec<Kernel>, little: i64) -> Vec<Kernel> {
    let (computed, max_buffers) = (joiner.computed, joiner.max_buffers);
    let mut order = joiner.order(&kernels);
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
        if reads.is_empty() || joiner.is_apart(&k) || writes.iter().any(|w| reads.contains(w)) {
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
