//! The search for the orders with the least estimated time of all kernels.

use super::axes::Axes;
use super::{Fitted, Indices, Order, movable, moved_kernel};
use crate::cost::Work;
use crate::cost::memory::SECTOR;
use crate::kernel::{Capacity, Expr, ExprId, Family, Kernel, KernelGraph, TensorId};
use crate::schedule::products::{self, problem};
use crate::schedule::{Context, maps};
use rustc_hash::{FxHashMap, FxHashSet};
use wgfc_ir::{Atom, Dim, Poly};

/// The least share of the estimated time that a change of orders must save, since estimates are not more accurate than this.
pub(super) const LEAST_GAIN: f64 = 0.15;
/// The number of passes over all tensors' orders.
const ROUNDS: usize = 3;
/// The number of accesses beyond which a map is assumed to read most elements several times.
const MANY_READS: usize = 8;

/// The state of the search.
pub(super) struct Search<'a> {
    cx: Context<'a>,
    fitted: Fitted<'a>,
    /// The axes of tensors that can be reordered.
    axes: Vec<Option<Axes>>,
    /// The indices of each kernel.
    indices: Vec<Indices>,
    hashes: Vec<u128>,
    known: &'a mut Known,
}

/// Estimates for kernels on one device, shared by several searches.
#[derive(Default)]
pub(super) struct Known {
    /// The estimated times, by the kernels' hashes and the orders of their tensors.
    times: FxHashMap<(u128, Vec<Order>), f64>,
    /// Sums that were unrolled for the estimate.
    sums: products::window::Known,
}

impl<'a> Search<'a> {
    /// A search on the device that `known` is for.
    pub fn new(cx: Context<'a>, fitted: Fitted<'a>, known: &'a mut Known) -> Search<'a> {
        let (axes, indices) = movable(cx.graph);
        let hash = |k: &Kernel| k.structural_hash(&cx.graph.tensors, Capacity::Counts);
        let all = cx.graph.kernels.iter().enumerate();
        let hashes = all.map(|(i, k)| hash(&fitted(i, k.clone())).wrapping_mul(3) ^ hash(k)).collect();
        Search { cx, fitted, axes, indices, hashes, known }
    }

    pub fn choose(&mut self) -> Vec<Order> {
        let none = vec![None; self.axes.len()];
        if self.axes.iter().all(Option::is_none) {
            return none;
        }
        let usual = self.total(&none);
        // If little time is spent on products that gather elements, no order gains enough.
        let gathered = gathering(self.cx.graph);
        let gathered: f64 = gathered.into_iter().map(|k| self.cycles(k, &none)).sum();
        if gathered < usual * LEAST_GAIN {
            return none;
        }
        let mut best = (usual * (1.0 - LEAST_GAIN), none.clone());
        for var in [1, 2] {
            let mut orders = self.along(var);
            self.without_impossible(&mut orders);
            self.improve(&mut orders);
            let total = self.total(&orders);
            tracing::debug!(var, usual, total, "order of axes");
            if total < best.0 {
                best = (total, orders);
            }
        }
        best.1
    }

    /// The order in which all products' results have the axis innermost that the variable `var`, of rows or columns, runs along.
    fn along(&self, var: usize) -> Vec<Order> {
        let mut orders = vec![None; self.axes.len()];
        for (k, indices) in self.cx.graph.kernels.iter().zip(&self.indices) {
            let product = matches!(k.family, Family::Matmul(_));
            for s in k.stores.iter().filter(|_| product) {
                let found = self.axes[s.tensor].as_ref().zip(indices.get(&(s.tensor, s.offset.clone())));
                let Some((axes, indices)) = found else { continue };
                let counts = |i: &usize| (&indices[*i] - &Poly::var(var)).as_const().is_some();
                orders[s.tensor] = axes.candidates().find(counts);
            }
        }
        self.follow(&mut orders);
        orders
    }

    /// Extends an order to further tensors: where a kernel accesses a reordered tensor, the other tensors get the axis innermost that has
    /// the same index.
    fn follow(&self, orders: &mut [Order]) {
        for indices in &self.indices {
            let moved = indices.iter().filter_map(|((t, _), i)| orders[*t].map(|axis| &i[axis]));
            let inner: Vec<Poly> = moved.filter(|p| p.as_const().is_none()).cloned().collect();
            for ((t, _), i) in indices.iter().filter(|_| !inner.is_empty()) {
                let Some(axes) = self.axes[*t].as_ref().filter(|_| orders[*t].is_none()) else { continue };
                let same = |axis: &usize| inner.iter().any(|p| (&i[*axis] - p).as_const().is_some());
                orders[*t] = axes.candidates().find(same);
            }
        }
    }

    /// Resets the orders of tensors for which a kernel would be impossible.
    fn without_impossible(&mut self, orders: &mut [Order]) {
        for k in 0..self.indices.len() {
            if self.cycles(k, orders).is_infinite() {
                self.cx.graph.kernels[k].tensors().into_iter().for_each(|t| orders[t] = None);
            }
        }
        // A kernel may have become impossible by a reset for another one.
        if (0..self.indices.len()).any(|k| self.cycles(k, orders).is_infinite()) {
            orders.fill(None);
        }
    }

    /// Changes the orders of single tensors as long as that saves time.
    fn improve(&mut self, orders: &mut [Order]) {
        let mut users: Vec<Vec<usize>> = vec![vec![]; orders.len()];
        for (i, k) in self.cx.graph.kernels.iter().enumerate() {
            k.tensors().into_iter().for_each(|t| users[t].push(i));
        }
        for _ in 0..ROUNDS {
            let mut changed = false;
            for t in 0..orders.len() {
                let Some(axes) = &self.axes[t] else { continue };
                for order in [None].into_iter().chain(axes.candidates().map(Some)) {
                    let old = orders[t];
                    if order == old {
                        continue;
                    }
                    let before: f64 = users[t].iter().map(|k| self.cycles(*k, orders)).sum();
                    orders[t] = order;
                    // An order that certainly takes longer is not estimated in detail.
                    let least: f64 = users[t].iter().map(|k| self.least(*k, orders)).sum();
                    let mut after = || users[t].iter().map(|k| self.cycles(*k, orders)).sum::<f64>();
                    match least <= before && after() < before {
                        true => changed = true,
                        false => orders[t] = old,
                    }
                }
            }
            if !changed {
                break;
            }
        }
    }

    pub fn total(&mut self, orders: &[Order]) -> f64 {
        (0..self.indices.len()).map(|k| self.cycles(k, orders)).sum()
    }

    /// The total time with all tensors in row-major order.
    pub fn usual(&mut self) -> f64 {
        self.total(&vec![None; self.axes.len()])
    }

    /// The estimated time of a kernel; infinite if it has no good schedule.
    fn cycles(&mut self, k: usize, orders: &[Order]) -> f64 {
        let key = self.key(k, orders);
        if let Some(known) = self.known.times.get(&key) {
            return *known;
        }
        let cycles = match self.moved(k, orders) {
            Some(new) => estimate(&new, &self.cx, &mut self.known.sums),
            None => f64::INFINITY,
        };
        self.known.times.insert(key, cycles);
        cycles
    }

    /// A lower bound of a kernel's time: for a product, whose full estimate is slow, the time of its memory traffic.
    fn least(&self, k: usize, orders: &[Order]) -> f64 {
        let product = matches!(self.cx.graph.kernels[k].family, Family::Matmul(_));
        match self.known.times.get(&self.key(k, orders)) {
            Some(known) => *known,
            None if product => {
                let new = self.moved(k, orders);
                new.map_or(f64::INFINITY, |new| beside_product(&new, &self.cx).unwrap_or(0.0))
            }
            None => 0.0,
        }
    }

    fn key(&self, k: usize, orders: &[Order]) -> (u128, Vec<Order>) {
        let tensors = self.cx.graph.kernels[k].tensors();
        (self.hashes[k], tensors.into_iter().map(|t| orders[t]).collect())
    }

    /// The kernel with its tensors in these orders; `None` if it has no good schedule then.
    fn moved(&self, k: usize, orders: &[Order]) -> Option<Kernel> {
        let kernel = &self.cx.graph.kernels[k];
        let usual = kernel.tensors().into_iter().all(|t| orders[t].is_none());
        let new = (self.fitted)(k, moved_kernel(kernel, &self.axes, &self.indices[k], orders));
        (usual || !along_batch(&new)).then_some(new)
    }
}

/// The products that read an operand's elements one by one. Each kernel hash is examined once, as many layers share one.
pub(super) fn gathering(graph: &KernelGraph) -> Vec<usize> {
    let gathers = |k: &Kernel| problem::operand_fours(k).is_some_and(|fours| !fours.iter().all(|f| *f));
    let mut known: FxHashMap<u128, bool> = FxHashMap::default();
    let products = graph.kernels.iter().enumerate().filter(|(_, k)| matches!(k.family, Family::Matmul(_)));
    products
        .filter(|(_, k)| {
            let hash = k.structural_hash(&graph.tensors, Capacity::Counts);
            *known.entry(hash).or_insert_with(|| gathers(k))
        })
        .map(|(i, _)| i)
        .collect()
}

/// Whether neighbours in memory belong to different products of a batch, which no schedule reads as vectors.
pub(super) fn along_batch(k: &Kernel) -> bool {
    let Family::Matmul(m) = &k.family else { return false };
    let along = |p: &Poly| step(p, 0) == Some(1) && step(p, 1) != Some(1) && step(p, 2) != Some(1);
    !m.batch.is(1) && accesses(k).iter().any(|(_, p)| along(p))
}

/// The difference of an offset between the first two values of a variable.
fn step(p: &Poly, var: usize) -> Option<i64> {
    let at = |i: i64| {
        p.eval(&|a| match a {
            Atom::Var(v) => Some(if *v as usize == var { i } else { 0 }),
            Atom::Sym(_) => Some(crate::cost::ASSUMED),
            Atom::Data(_) => Some(0),
            _ => None,
        })
    };
    Some((at(1)? - at(0)?).abs())
}

/// The accesses of a kernel: the tensor and the offset.
fn accesses(k: &Kernel) -> Vec<(TensorId, &Poly)> {
    let loads = k.body.reachable(&k.roots()).into_iter().filter_map(|e| match k.body.expr(e) {
        Expr::Load { tensor, offset, .. } => Some((*tensor, offset)),
        _ => None,
    });
    loads.chain(k.all_stores().map(|s| (s.tensor, &s.offset))).collect()
}

/// Bytes of traffic per element: a whole sector if neighbours are read one by one.
fn scattered((t, p): &(TensorId, &Poly), along: &[usize], cx: &Context) -> f64 {
    let bytes = cx.graph.tensors.get(*t).map_or(4.0, |t| t.ty.dtype.bits() as f64 / 8.0);
    let near = along.iter().filter_map(|v| step(p, *v)).any(|s| (s as f64) * bytes < SECTOR && s > 0);
    let same = along.iter().all(|v| step(p, *v).is_none_or(|s| s == 0));
    if near || same { bytes } else { SECTOR }
}

/// The cycles for writing a product's results and reading the operands of its epilogue.
fn beside_product(k: &Kernel, cx: &Context) -> Option<f64> {
    let (rows, cols) = problem::sides(k)?;
    let Family::Matmul(m) = &k.family else { return None };
    let [batch, m, n] = [&m.batch, rows.extent, cols.extent].map(|d| cx.expect.extent(d));
    let roots: Vec<ExprId> = k.stores.iter().map(|s| s.value).collect();
    let beside = k.body.reachable(&roots).into_iter().filter_map(|e| match k.body.expr(e) {
        Expr::Load { tensor, offset, .. } => Some((*tensor, offset)),
        _ => None,
    });
    let stored = k.stores.iter().map(|s| (s.tensor, &s.offset));
    let bytes: f64 = beside.chain(stored).map(|a| scattered(&a, &[cols.var], cx)).sum();
    Some(streamed(batch * m * n * bytes, cx))
}

/// The cycles for reading and writing so many bytes.
fn streamed(memory: f64, cx: &Context) -> f64 {
    Work { memory, ..Work::default() }.cycles(&cx.device.speeds)
}

/// The estimated cycles of a kernel whose tensors may be reordered; 0 for other families.
fn estimate(k: &Kernel, cx: &Context, known: &mut products::window::Known) -> f64 {
    let extent = |d: &Dim| cx.expect.extent(d);
    match &k.family {
        Family::Matmul(_) => {
            let Some((p, beside)) = problem::problem_with(k, known).zip(beside_product(k, cx)) else {
                return 0.0;
            };
            let chosen = products::choose(&p, cx.device, cx.expect);
            products::cost::cycles(&chosen, &p, cx.device, cx.expect).max(beside)
        }
        Family::Map(_) if accesses(k).len() > MANY_READS => {
            // Elements that are read repeatedly come from a cache.
            let points: f64 = k.domain().iter().map(extent).product();
            let bits = |t: TensorId| cx.graph.tensors.get(t).map_or(32, |t| t.ty.dtype.bits()) as f64;
            let all = accesses(k);
            let tensors: FxHashSet<TensorId> = all.iter().map(|a| a.0).collect();
            let once: f64 = tensors.into_iter().map(bits).sum();
            let again: f64 = all.iter().map(|a| bits(a.0)).sum();
            let operations = k.body.reachable(&k.roots()).len() as f64 / 2.0;
            let (memory, cached, core) =
                (points * once / 8.0, points * again / 8.0, points * operations / 128.0);
            Work { memory, cached, core, ..Work::default() }.cycles(&cx.device.speeds)
        }
        Family::Map(_) | Family::Row(_) => {
            let domain = k.domain();
            let points: f64 = domain.iter().map(extent).product();
            let along: Vec<usize> = (0..domain.len()).collect();
            // Elements that are read across the order of the map go through workgroup memory.
            if matches!(k.family, Family::Map(_)) && maps::goes_in_tiles(k, cx) {
                let bits = |t: TensorId| cx.graph.tensors.get(t).map_or(32, |t| t.ty.dtype.bits());
                let all: usize = accesses(k).iter().map(|a| bits(a.0)).sum();
                return streamed(points * all as f64 / 8.0, cx);
            }
            let bytes: f64 = accesses(k).iter().map(|a| scattered(a, &along, cx)).sum();
            streamed(points * bytes, cx)
        }
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Expected;
    use crate::device::DeviceProfile;
    use crate::kernel::parse;

    /// A convolution, and a map of its results.
    const TEXT: &str = "t0: f32[8, 4, 5, 6] input 0
t1: f32[2, 4, 1, 3] const [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0]
t2: f32[8, 2, 5, 6] intermediate
t3: f32[8, 2, 5, 6] output 0

kernel 0 matmul [1, 240, 2, 12]
  e0: i32 = index(%1%6 + %3/4 - 1)
  e1: i32 = 0:i32
  e2: bool = ge(e0, e1)
  e3: i32 = index(6)
  e4: bool = lt(e0, e3)
  e5: bool = and(e2, e4)
  e6: f32 = t0[120*(%1/30) + 30*(%3%4) + %1%30 + %3/4 - 1] if e5
  e7: f32 = 0.0:f32
  e8: f32 = select(e5, e6, e7)
  e9: f32 = t1[12*%2 + 3*(%3%4) + %3/4]
  e10: f32 = acc0
  acc0 = sum(e8 * e9)
  t2[30*%2 + 60*(%1/30) + %1%30] = e10

kernel 1 map [480]
  e0: f32 = t2[%0]
  e1: f32 = exp(e0)
  t3[%0] = e1
";

    #[test]
    fn the_sums_of_a_product_are_written_out_once_wherever_its_results_go() {
        let graph = parse(TEXT).unwrap();
        let (device, expect) = (DeviceProfile::default(), Expected::default());
        let cx = || Context { graph: &graph, device: &device, expect: &expect };
        let same = |_: usize, k: Kernel| k;
        let mut known = Known::default();
        let mut search = Search::new(cx(), &same, &mut known);
        let mut orders: Vec<Order> = vec![None; 4];
        search.cycles(0, &orders);
        let written = search.known.sums.count();
        assert!(written > 0);
        let all = search.axes[2].as_ref().map(|axes| axes.candidates()).unwrap();
        assert!(all.len() > 1);
        for order in all {
            orders[2] = Some(order);
            assert!(search.cycles(0, &orders).is_finite());
        }
        // Sums are unrolled for rows, and for columns if results lie along them.
        assert!(search.known.sums.count() <= 2 * written);
        // The next search uses the estimates of the one before.
        search.choose();
        let times = known.times.len();
        Search::new(cx(), &same, &mut known).choose();
        assert_eq!(known.times.len(), times);
    }

    #[test]
    fn orders_that_certainly_take_longer_are_not_looked_at_closely() {
        let graph = parse(TEXT).unwrap();
        let (device, expect) = (DeviceProfile::default(), Expected::default());
        let mut known = Known::default();
        let same = |_: usize, k: Kernel| k;
        let mut search =
            Search::new(Context { graph: &graph, device: &device, expect: &expect }, &same, &mut known);
        for order in [None, Some(0), Some(1), Some(2)] {
            let orders = [None, None, order, None];
            let least = search.least(0, &orders);
            assert!(least > 0.0 && least <= search.cycles(0, &orders), "{order:?}");
        }
    }
}
