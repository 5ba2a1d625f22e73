//! The placement of short-lived buffers: the assignment to arenas, and the packing of each arena.
//!
//! Both steps are deterministic: the compiler chooses the arenas ([`assign_arenas`]), the runtime packs them with the sizes
//! of the actual shapes ([`plan`]), and reports use the same numbers.
//!
//! A buffer is live from dispatch `first` to dispatch `last`, both included. Buffers whose live ranges overlap get
//! disjoint bytes. As WebGPU does not allow one buffer to be bound read-only and writable in the same dispatch, a
//! buffer that a dispatch reads and one that it writes belong to different arenas.

use crate::program::{Buffer, BufferKind, Program};
use std::collections::BTreeSet;

/// The alignment of every offset in an arena: the largest alignment that WebGPU may require of a storage binding.
pub const ALIGNMENT: u64 = 256;

/// A buffer to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Size in bytes.
    pub size: u64,
    /// The dispatch that writes it first.
    pub first: usize,
    /// The last dispatch that uses it, not before `first`.
    pub last: usize,
}

impl Item {
    fn aligned(&self) -> u64 {
        self.size.max(1).div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
    }
    fn overlaps(&self, o: &Item) -> bool {
        self.first <= o.last && o.first <= self.last
    }
}

/// The offsets of the buffers in an arena. See the example of [`pack`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// The offset of each item in bytes, in the order given.
    pub offsets: Vec<u64>,
    /// The size of the arena in bytes.
    pub total: u64,
    /// The maximum number of bytes that are live at one time, which is a lower bound for any layout.
    pub live: u64,
}

/// The maximum over all dispatches of the live bytes, items rounded up to [`ALIGNMENT`]: a lower bound for any layout.
fn largest_live_set<'a>(items: impl Iterator<Item = &'a Item>) -> u64 {
    let mut events: Vec<(usize, bool, u64)> = Vec::new();
    for i in items {
        events.push((i.first, true, i.aligned()));
        // A live range that ends at `last` is over before `last + 1` starts.
        events.push((i.last.saturating_add(1), false, i.aligned()));
    }
    events.sort_unstable();
    let (mut now, mut most) = (0u64, 0u64);
    for (_, begins, size) in events {
        if begins {
            now = now.saturating_add(size);
            most = most.max(now);
        } else {
            now = now.saturating_sub(size);
        }
    }
    most
}

/// Lays items out so that items with overlapping live ranges have disjoint bytes.
///
/// Several greedy orders are tried until one reaches the lower bound; else the smallest result is kept. Each order is
/// tried a few times, with the item that ends highest moved to the front after each attempt.
///
/// ```
/// use wgfc_program::memory::{Item, pack};
/// // The first buffer is dead when the last one is written, and gives it its memory.
/// let items = [(0, 1), (1, 2), (2, 3)].map(|(first, last)| Item { size: 1024, first, last });
/// let packing = pack(&items);
/// assert_eq!(packing.total, 2048);
/// assert_eq!(packing.offsets[0], packing.offsets[2]);
/// ```
pub fn pack(items: &[Item]) -> Packing {
    let live = largest_live_set(items.iter());
    let mut best = Packing { offsets: vec![0; items.len()], total: u64::MAX, live };
    if items.is_empty() {
        best.total = 0;
        return best;
    }
    let span = |i: usize| (items[i].last - items[i].first.min(items[i].last)) as u64 + 1;
    let size = |i: usize| items[i].aligned();
    let key: [&dyn Fn(usize) -> (u64, u64); 4] = [
        &|i| (u64::MAX - size(i), items[i].first as u64),
        &|i| (items[i].first as u64, u64::MAX - size(i)),
        &|i| (u64::MAX - size(i).saturating_mul(span(i)), items[i].first as u64),
        &|i| (u64::MAX - span(i), u64::MAX - size(i)),
    ];
    for key in key {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|i| (key(*i), *i));
        for best_fit in [true, false] {
            let mut order = order.clone();
            for _ in 0..12 {
                let (offsets, total) = place(items, &order, best_fit);
                if total < best.total {
                    best = Packing { offsets: offsets.clone(), total, live };
                }
                if best.total <= live {
                    return best;
                }
                let top = order.iter().position(|i| offsets[*i] + size(*i) == total);
                let Some(top @ 1..) = top else { break };
                order[..=top].rotate_right(1);
            }
        }
    }
    best
}

/// Places items in `order`, each in a gap between the placed items whose live ranges overlap its own: the tightest gap
/// if `best_fit`, else the lowest.
fn place(items: &[Item], order: &[usize], best_fit: bool) -> (Vec<u64>, u64) {
    let mut offsets = vec![0u64; items.len()];
    // (offset, end, item), sorted by offset
    let mut placed: Vec<(u64, u64, usize)> = Vec::with_capacity(items.len());
    let mut total = 0u64;
    for &i in order {
        let need = items[i].aligned();
        let (mut at, mut tightest, mut cursor) = (None, u64::MAX, 0u64);
        for &(from, to, j) in &placed {
            if !items[i].overlaps(&items[j]) {
                continue;
            }
            let gap = from.saturating_sub(cursor);
            if gap >= need && gap < tightest {
                at = Some(cursor);
                tightest = gap;
                if !best_fit {
                    break;
                }
            }
            cursor = cursor.max(to);
        }
        let at = at.unwrap_or(cursor);
        let end = at.saturating_add(need);
        offsets[i] = at;
        total = total.max(end);
        let k = placed.partition_point(|p| *p < (at, end, i));
        placed.insert(k, (at, end, i));
    }
    (offsets, total)
}

/// The items (by index) that one dispatch uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touch {
    /// The items that the dispatch only reads.
    pub reads: Vec<usize>,
    /// The items that are bound writable. An item in both lists counts as written.
    pub writes: Vec<usize>,
}

/// The result of [`assign_arenas`]. See the example of [`assign_arenas`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arenas {
    /// The arena of each item, numbered from 0 without gaps in the order of first use.
    pub arena: Vec<usize>,
    /// The size in bytes of each packed arena.
    pub packed: Vec<u64>,
    /// The maximum number of bytes that are live at one time, over all arenas.
    pub live: u64,
}

impl Arenas {
    /// The total size of all arenas in bytes.
    pub fn total(&self) -> u64 {
        self.packed.iter().sum()
    }
}

/// Distributes items over arenas so that no dispatch reads and writes the same arena, and the sum of the packed arenas
/// is small.
///
/// Several greedy orders are tried, each choosing the arena whose peak grows least; the result is improved by swapping
/// two arenas along chains of conflicts. On a tie, fewer arenas win. Indices in `dispatches` that are out of range are
/// ignored. Sizes of symbolic buffers may be estimates: the result is valid for any sizes.
///
/// ```
/// use wgfc_program::memory::{Item, Touch, assign_arenas};
/// // Dispatch 0 writes the first buffer, and dispatch 1 computes the second from it.
/// let items = [Item { size: 1024, first: 0, last: 1 }, Item { size: 1024, first: 1, last: 1 }];
/// let dispatches = [
///     Touch { reads: vec![], writes: vec![0] },
///     Touch { reads: vec![0], writes: vec![1] },
/// ];
/// let arenas = assign_arenas(&items, &dispatches);
/// assert_eq!(arenas.total(), 2048);
/// ```
pub fn assign_arenas(items: &[Item], dispatches: &[Touch]) -> Arenas {
    let live = largest_live_set(items.iter());
    if items.is_empty() {
        return Arenas::default();
    }
    let conflicts = conflicts(items.len(), dispatches);
    let size = |i: usize| items[i].aligned();
    let by: [&dyn Fn(usize) -> (u64, u64); 4] = [
        &|i| (u64::MAX - size(i), items[i].first as u64),
        &|i| (items[i].first as u64, u64::MAX - size(i)),
        &|i| (u64::MAX - conflicts[i].len() as u64, u64::MAX - size(i)),
        &|i| (u64::MAX - items[i].last as u64, u64::MAX - size(i)),
    ];
    let mut best: Option<(u64, usize, Vec<usize>)> = None;
    for by in by {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|i| (by(*i), *i));
        let mut colouring = Colouring::greedy(items, &conflicts, &order);
        colouring.improve(items, &conflicts);
        let arena = renumber(&colouring.colour);
        let packed: u64 = pack_each(items, &arena).iter().fold(0, |s, p| s.saturating_add(*p));
        let score = (packed, colouring.profile.len());
        if best.as_ref().is_none_or(|(t, n, _)| score < (*t, *n)) {
            best = Some((score.0, score.1, arena));
        }
    }
    let arena = best.map(|(_, _, a)| a).unwrap_or_default();
    let packed = pack_each(items, &arena);
    Arenas { arena, packed, live }
}

fn pack_each(items: &[Item], arena: &[usize]) -> Vec<u64> {
    let n = arena.iter().max().map_or(0, |m| m + 1);
    (0..n)
        .map(|a| {
            let mine: Vec<Item> =
                items.iter().zip(arena).filter(|(_, b)| **b == a).map(|(i, _)| *i).collect();
            pack(&mine).total
        })
        .collect()
}

fn conflicts(n: usize, dispatches: &[Touch]) -> Vec<BTreeSet<usize>> {
    let mut out = vec![BTreeSet::new(); n];
    for d in dispatches {
        for &w in d.writes.iter().filter(|w| **w < n) {
            for &r in d.reads.iter().filter(|r| **r < n && !d.writes.contains(r)) {
                out[w].insert(r);
                out[r].insert(w);
            }
        }
    }
    out
}

fn renumber(colour: &[usize]) -> Vec<usize> {
    let mut seen: Vec<usize> = Vec::new();
    colour
        .iter()
        .map(|c| {
            seen.iter().position(|s| s == c).unwrap_or_else(|| {
                seen.push(*c);
                seen.len() - 1
            })
        })
        .collect()
}

struct Colouring {
    colour: Vec<usize>,
    /// For each colour (arena), the live bytes at each dispatch.
    profile: Vec<Vec<u64>>,
}

const NONE: usize = usize::MAX;

impl Colouring {
    fn greedy(items: &[Item], conflicts: &[BTreeSet<usize>], order: &[usize]) -> Colouring {
        let steps = items.iter().map(|i| i.last.max(i.first) + 1).max().unwrap_or(0);
        let mut c = Colouring { colour: vec![NONE; items.len()], profile: Vec::new() };
        // The maximum of each profile; it can only grow here.
        let mut peaks: Vec<u64> = vec![];
        for &i in order {
            let taken: BTreeSet<usize> = conflicts[i].iter().map(|j| c.colour[*j]).collect();
            let growth = |k: usize| {
                let p = &c.profile[k];
                let here = p[items[i].first..=items[i].last.max(items[i].first)].iter().max();
                here.map_or(0, |h| (h + items[i].aligned()).saturating_sub(peaks[k]))
            };
            let k = (0..c.profile.len()).filter(|k| !taken.contains(k)).min_by_key(|k| growth(*k));
            let k = k.unwrap_or_else(|| {
                c.profile.push(vec![0; steps]);
                peaks.push(0);
                c.profile.len() - 1
            });
            c.set(items, i, k);
            let alive = c.profile[k][items[i].first..=items[i].last.max(items[i].first)].iter().max();
            peaks[k] = peaks[k].max(alive.copied().unwrap_or(0));
        }
        c
    }

    fn set(&mut self, items: &[Item], i: usize, k: usize) {
        let it = &items[i];
        let range = it.first..=it.last.max(it.first);
        if let Some(p) = self.profile.get_mut(self.colour[i]) {
            p[range.clone()].iter_mut().for_each(|b| *b -= it.aligned());
        }
        self.profile[k][range].iter_mut().for_each(|b| *b += it.aligned());
        self.colour[i] = k;
    }

    fn cost(&self) -> u64 {
        self.profile.iter().map(|p| p.iter().max().copied().unwrap_or(0)).sum()
    }

    /// Exchanges two colours along the chain of conflicts that starts at an item, if this lowers the sum of the peaks.
    fn improve(&mut self, items: &[Item], conflicts: &[BTreeSet<usize>]) {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|i| (u64::MAX - items[*i].aligned(), *i));
        // The search is bounded by work rather than by time, so that the result is deterministic.
        let mut work = 20_000_000usize;
        let mut cost = self.cost();
        loop {
            let before = cost;
            for &i in &order {
                for k in 0..self.profile.len() {
                    let from = self.colour[i];
                    if k == from {
                        continue;
                    }
                    let chain = self.chain(conflicts, i, k);
                    let span: usize =
                        chain.iter().map(|j| items[*j].last - items[*j].first.min(items[*j].last) + 2).sum();
                    let steps = self.profile.first().map_or(0, Vec::len) * self.profile.len();
                    work = match work.checked_sub(2 * span + steps) {
                        Some(w) => w,
                        None => return,
                    };
                    for &j in &chain {
                        self.set(items, j, if self.colour[j] == from { k } else { from });
                    }
                    let now = self.cost();
                    if now < cost {
                        cost = now;
                        continue;
                    }
                    for &j in &chain {
                        self.set(items, j, if self.colour[j] == from { k } else { from });
                    }
                }
            }
            if cost >= before {
                return;
            }
        }
    }

    /// The items with the colour of `i` or colour `k` that are reachable from `i` through conflicts.
    fn chain(&self, conflicts: &[BTreeSet<usize>], i: usize, k: usize) -> Vec<usize> {
        let from = self.colour[i];
        let mut seen = BTreeSet::from([i]);
        let mut todo = vec![i];
        while let Some(j) = todo.pop() {
            for &n in &conflicts[j] {
                if (self.colour[n] == from || self.colour[n] == k) && seen.insert(n) {
                    todo.push(n);
                }
            }
        }
        seen.into_iter().collect()
    }
}

/// The memory of a program for one binding of its symbols. See the example of [`plan`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The number of elements of each buffer.
    pub elements: Vec<usize>,
    /// The size of each buffer in bytes ([`Buffer::byte_size`]).
    pub bytes: Vec<u64>,
    /// For each buffer of an arena, the arena and the offset in it.
    pub slots: Vec<Option<(usize, u64)>>,
    /// The size of each arena in bytes.
    pub arenas: Vec<u64>,
    /// The maximum number of arena bytes that are live at one time.
    pub live: u64,
}

impl MemoryPlan {
    /// The total size of all arenas in bytes.
    pub fn packed(&self) -> u64 {
        self.arenas.iter().fold(0, |s, a| s.saturating_add(*a))
    }
}

/// Evaluates the sizes of all buffers, where `symbol` returns the values of the program's symbols, and packs the
/// arenas. The error names a buffer whose size cannot be evaluated.
///
/// ```
/// use wgfc_program::memory::plan;
/// use wgfc_program::program::{Buffer, BufferKind, Program};
/// use wgfc_program::{DType, Dim};
/// let kind = BufferKind::Arena { arena: 0, first: 0, last: 0 };
/// let buffers = vec![Buffer { kind, dtype: DType::F32, elements: Dim::sym("batch") * 100 }];
/// let program = Program { symbols: vec!["batch".to_owned()], buffers, ..Program::default() };
/// let memory = plan(&program, &|_| Some(32))?;
/// // 12,800 bytes; offsets and sizes are multiples of 256.
/// assert_eq!(memory.packed(), 12_800);
/// # Ok::<(), String>(())
/// ```
pub fn plan(program: &Program, symbol: &dyn Fn(&str) -> Option<i64>) -> Result<MemoryPlan, String> {
    let mut out = MemoryPlan { slots: vec![None; program.buffers.len()], ..MemoryPlan::default() };
    let mut members: Vec<Vec<(usize, Item)>> = Vec::new();
    for (i, b) in program.buffers.iter().enumerate() {
        let n = b.elements.eval_syms(symbol);
        let n = n.ok_or_else(|| format!("buffer {i}: the size `{}` cannot be evaluated", b.elements))?;
        let n = usize::try_from(n).map_err(|_| format!("buffer {i}: the size `{}` is {n}", b.elements))?;
        let size = Buffer::byte_size(b.dtype, n);
        out.elements.push(n);
        out.bytes.push(size);
        if let BufferKind::Arena { arena, first, last } = b.kind {
            if arena >= program.buffers.len() || last < first {
                return Err(format!("buffer {i}: arena {arena}, alive {first}..={last}, is invalid"));
            }
            if members.len() <= arena {
                members.resize(arena + 1, Vec::new());
            }
            members[arena].push((i, Item { size, first, last }));
        }
    }
    out.live = largest_live_set(members.iter().flatten().map(|(_, i)| i));
    for (arena, members) in members.iter().enumerate() {
        let items: Vec<Item> = members.iter().map(|m| m.1).collect();
        let packing = pack(&items);
        for ((i, _), offset) in members.iter().zip(packing.offsets) {
            out.slots[*i] = Some((arena, offset));
        }
        out.arenas.push(packing.total);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(size: u64, first: usize, last: usize) -> Item {
        Item { size, first, last }
    }

    fn check(items: &[Item]) -> Packing {
        let p = pack(items);
        for (i, a) in items.iter().enumerate() {
            assert_eq!(p.offsets[i] % ALIGNMENT, 0);
            assert!(p.offsets[i] + a.size <= p.total);
            for (j, b) in items.iter().enumerate().skip(i + 1) {
                let apart = p.offsets[i] + a.size <= p.offsets[j] || p.offsets[j] + b.size <= p.offsets[i];
                assert!(apart || !a.overlaps(b), "{i} and {j} of {items:?}: {p:?}");
            }
        }
        assert!(p.live <= p.total);
        p
    }

    #[test]
    fn a_chain_needs_two_at_a_time() {
        let items: Vec<Item> = (0..9).map(|i| item(1000, i, i + 1)).collect();
        let p = check(&items);
        assert_eq!((p.live, p.total), (2048, 2048));
    }

    #[test]
    fn nothing_and_empty_buffers_pack() {
        assert_eq!(pack(&[]).total, 0);
        assert_eq!(check(&[item(0, 3, 3), item(0, 3, 4)]).total, 512);
    }

    #[test]
    fn a_gap_left_by_the_dead_is_reused() {
        let p = check(&[item(4096, 0, 1), item(256, 0, 5), item(2048, 2, 5), item(2048, 2, 3)]);
        assert_eq!(p.total, p.live);
    }

    #[test]
    fn a_chain_gets_two_arenas_and_a_skip_connection_three() {
        let items: Vec<Item> = (0..5).map(|i| item(512, i, i + 1)).collect();
        let mut touch: Vec<Touch> = vec![Touch { reads: vec![], writes: vec![0] }];
        touch.extend((1..5).map(|i| Touch { reads: vec![i - 1], writes: vec![i] }));
        let a = assign_arenas(&items, &touch);
        assert_eq!(a.arena, [0, 1, 0, 1, 0]);
        assert_eq!((a.total(), a.live), (1024, 1024));
        touch[2].reads.push(0);
        assert_eq!(assign_arenas(&items, &touch).packed.len(), 3);
    }

    #[test]
    fn two_large_buffers_of_different_parity_share() {
        // 0 → 1 → … → 7; the buffers 1 and 6 are large, and their live ranges do not overlap.
        let items: Vec<Item> =
            (0..8).map(|i| item(if i == 1 || i == 6 { 1 << 20 } else { 256 }, i, i + 1)).collect();
        let touch: Vec<Touch> = (0..8)
            .map(|i| Touch { reads: if i == 0 { vec![] } else { vec![i - 1] }, writes: vec![i] })
            .collect();
        let a = assign_arenas(&items, &touch);
        assert!(a.total() * 4 <= a.live * 5, "{a:?}");
    }

    fn items() -> impl Strategy<Value = Vec<Item>> {
        prop::collection::vec((0u64..20_000, 0usize..40, 0usize..8), 0..60)
            .prop_map(|v| v.into_iter().map(|(s, f, l)| item(s, f, f + l)).collect())
    }

    proptest! {
        #[test]
        fn lives_that_overlap_never_share_bytes(items in items()) {
            let p = check(&items);
            prop_assert!(p.total as f64 <= 1.25 * p.live as f64 + 1.0, "{} of {}", p.total, p.live);
        }

        #[test]
        fn no_dispatch_reads_and_writes_one_arena(
            sizes in prop::collection::vec(0u64..50_000, 1..40),
            reads in prop::collection::vec(prop::collection::vec(1usize..6, 0..3), 40),
        ) {
            let n = sizes.len();
            let mut touch: Vec<Touch> = (0..n).map(|i| Touch { reads: vec![], writes: vec![i] }).collect();
            let mut items: Vec<Item> = sizes.iter().enumerate().map(|(i, s)| item(*s, i, i)).collect();
            for i in 0..n {
                for back in &reads[i] {
                    if let Some(r) = i.checked_sub(*back) {
                        touch[i].reads.push(r);
                        items[r].last = items[r].last.max(i);
                    }
                }
            }
            let a = assign_arenas(&items, &touch);
            for t in &touch {
                for r in &t.reads {
                    prop_assert!(t.writes.iter().all(|w| a.arena[*w] != a.arena[*r]));
                }
            }
            prop_assert_eq!(&a, &assign_arenas(&items, &touch));
            prop_assert!(a.total() >= a.live);
        }
    }
}
