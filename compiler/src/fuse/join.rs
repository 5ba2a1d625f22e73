//! Joining elementwise kernels of one domain that read the same memory into one dispatch.
//!
//! Two kernels are joined only if neither depends on the other, through tensors or through computed symbols. Small kernels, whose time is
//! mostly that of the dispatch, are also joined if one reads more than the other, provided that these further reads do not depend on the
//! other.

use crate::kernel::{ExprId, Family, Kernel, KernelTensor, Map, TensorId, TensorKind, renumbered};
use petgraph::visit::{Dfs, GraphBase, IntoNeighbors};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::Dim;

/// The most kernels that a search for a dependence visits; beyond that a dependence is assumed.
const MOST_LOOKED_AT: usize = 64;
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
    // A copy and the kernel that overwrites it depend on each other through the memory they share.
    let shared: FxHashSet<TensorId> = (tensors.iter().enumerate())
        .filter_map(|(i, t)| match t.kind {
            TensorKind::Under(over) => Some([i, over]),
            _ => None,
        })
        .flatten()
        .collect();
    let overwrites =
        |w: TensorId| matches!(&tensors[w].kind, TensorKind::State { state, .. } if read.contains(state));
    let apart = |k: &Kernel| k.writes().iter().any(|w| shared.contains(w) || overwrites(*w));
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
                    false => (other, own, order.place[number]),
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

/// The dependences of a kernel.
struct Before {
    /// The tensors that it reads, in order.
    reads: Vec<TensorId>,
    /// The tensors from which the symbols that it uses are computed.
    symbols: Vec<TensorId>,
    /// For more than that.
    more: bool,
}

/// The dependences of all kernels.
struct Order<'a> {
    tensors: &'a [KernelTensor],
    kernels: Vec<Before>,
    writers: FxHashMap<TensorId, Vec<usize>>,
    /// The current position of each kernel visited so far, and the kernels joined at each position.
    place: Vec<usize>,
    together: Vec<Vec<usize>>,
}

impl<'a> Order<'a> {
    fn of(
        kernels: &[Kernel],
        tensors: &'a [KernelTensor],
        computed: &[(Arc<str>, TensorId)],
        apart: &dyn Fn(&Kernel) -> bool,
    ) -> Order<'a> {
        let mut writers: FxHashMap<TensorId, Vec<usize>> = FxHashMap::default();
        let mut all = vec![];
        for (i, k) in kernels.iter().enumerate() {
            k.writes().into_iter().for_each(|t| writers.entry(t).or_default().push(i));
            let mut reads = k.reads();
            reads.sort_unstable();
            reads.dedup();
            let used = if computed.is_empty() { BTreeSet::new() } else { k.symbols() };
            let symbols = computed.iter().filter(|(s, _)| used.contains(s)).map(|(_, t)| *t).collect();
            all.push(Before { reads, symbols, more: apart(k) });
        }
        Order { tensors, kernels: all, writers, place: vec![], together: vec![] }
    }

    /// Starts the next kernel, alone at the last position.
    fn begin(&mut self, kernel: usize, place: usize) {
        self.place.push(place);
        self.together.truncate(place);
        self.together.push(vec![kernel]);
    }

    /// Moves a kernel to an earlier position.
    fn put(&mut self, kernel: usize, place: usize) {
        self.place[kernel] = place;
        self.together[place].push(kernel);
    }

    /// The tensors that the kernels at one position read.
    fn reads_at(&self, place: usize) -> Vec<TensorId> {
        let mut reads: Vec<TensorId> =
            self.together[place].iter().flat_map(|k| &self.kernels[*k].reads).copied().collect();
        reads.sort_unstable();
        reads.dedup();
        reads
    }

    /// Whether one of these tensors may depend on the kernels at a position.
    fn may_depend(&self, on: &[TensorId], place: usize) -> bool {
        let unknown = |t: &TensorId| match self.tensors[*t].kind {
            _ if self.writers.contains_key(t) => false,
            TensorKind::Input(_) | TensorKind::Const(_) | TensorKind::Withheld(_) => false,
            TensorKind::State { after: false, .. } => false,
            // Results of a split loop.
            _ => true,
        };
        let start = self.writers_of(on).collect();
        let mut search = Dfs::from_parts(start, FxHashSet::default());
        let mut looked_at = std::iter::from_fn(|| search.next(self)).zip(1..);
        on.iter().any(unknown)
            || looked_at.any(|(k, count)| {
                let before = &self.kernels[k];
                let mut reads = before.reads.iter().chain(&before.symbols);
                let there = self.place.get(k) == Some(&place);
                there || before.more || count > MOST_LOOKED_AT || reads.any(unknown)
            })
    }

    /// The kernels that write one of these tensors, and the kernels joined with them, whose dependences they share.
    fn writers_of<'t>(
        &'t self,
        tensors: impl IntoIterator<Item = &'t TensorId>,
    ) -> impl Iterator<Item = usize> {
        let writers = tensors.into_iter().filter_map(|t| self.writers.get(t)).flatten();
        let joined = |w: &'t usize| match self.place.get(*w) {
            Some(at) => &self.together[*at],
            None => std::slice::from_ref(w),
        };
        writers.flat_map(joined).copied()
    }
}

impl GraphBase for Order<'_> {
    type NodeId = usize;
    type EdgeId = ();
}

/// Edges lead from a kernel to those that write what it reads.
impl<'o> IntoNeighbors for &'o Order<'_> {
    type Neighbors = Box<dyn Iterator<Item = usize> + 'o>;
    fn neighbors(self, kernel: usize) -> Self::Neighbors {
        let Before { reads, symbols, .. } = &self.kernels[kernel];
        Box::new(self.writers_of(reads.iter().chain(symbols)))
    }
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
