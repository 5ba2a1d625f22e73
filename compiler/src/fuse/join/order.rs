//! The dependences among kernels, some of which were joined.

use crate::kernel::{Kernel, KernelTensor, TensorId, TensorKind};
use petgraph::visit::{Dfs, GraphBase, IntoNeighbors};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most kernels that a search for a dependence visits; beyond that a dependence is assumed.
const MOST_LOOKED_AT: usize = 64;

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
pub(super) struct Order<'a> {
    tensors: &'a [KernelTensor],
    kernels: Vec<Before>,
    writers: FxHashMap<TensorId, Vec<usize>>,
    /// The current position of each kernel visited so far, and the kernels joined at each position.
    place: Vec<usize>,
    together: Vec<Vec<usize>>,
}

impl<'a> Order<'a> {
    pub(super) fn of(
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
    pub(super) fn begin(&mut self, kernel: usize, place: usize) {
        self.place.push(place);
        self.together.truncate(place);
        self.together.push(vec![kernel]);
    }

    /// Moves a kernel to an earlier position.
    pub(super) fn put(&mut self, kernel: usize, place: usize) {
        self.place[kernel] = place;
        self.together[place].push(kernel);
    }

    /// The current position of a kernel.
    pub(super) fn place_of(&self, kernel: usize) -> usize {
        self.place[kernel]
    }

    /// The tensors that the kernels at one position read.
    pub(super) fn reads_at(&self, place: usize) -> Vec<TensorId> {
        let mut reads: Vec<TensorId> =
            self.together[place].iter().flat_map(|k| &self.kernels[*k].reads).copied().collect();
        reads.sort_unstable();
        reads.dedup();
        reads
    }

    /// The number of tensors that the last kernel and those at `place` bind together, where it reads and writes the first two lists and they
    /// write `made`. `None` if either may depend on the other, through anything but what one reads of the other's results.
    pub(super) fn bound_together(
        &self,
        kernel: usize,
        [reads, writes]: [&[TensorId]; 2],
        place: usize,
        made: &[TensorId],
    ) -> Option<usize> {
        let others = self.reads_at(place);
        let beyond = |of: &[TensorId], known: &[TensorId], made: &[TensorId]| -> Vec<TensorId> {
            of.iter().copied().filter(|t| !known.contains(t) && !made.contains(t)).collect()
        };
        let (own, other) = (beyond(reads, &others, made), beyond(&others, reads, writes));
        let apart = self.may_depend(&own, place) || self.may_depend(&other, self.place_of(kernel));
        (!apart).then_some(own.len() + others.len() + made.len() + writes.len())
    }

    /// Whether one of these tensors may depend on the kernels at a position.
    pub(super) fn may_depend(&self, on: &[TensorId], place: usize) -> bool {
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
