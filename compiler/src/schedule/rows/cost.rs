//! The estimated time of a row kernel: each schedule only counts its work, of which [`Launch`] makes a time.

use super::{Row, variables};
use crate::cost::memory::{APART, LINE, SECTOR, SUBGROUP};
use crate::cost::{Expected, Launch, barrier_between_few};
use crate::device::DeviceProfile;
use crate::kernel::dependence::{Dependence, lie_side_by_side, var_bit};
use crate::kernel::passes::{Pass, passes};
use crate::kernel::{Expr, ExprId, Family, Kernel, KernelGraph, TensorId, length};
use std::collections::BTreeSet;
use wgfc_ir::{Dim, Poly, Reg};

/// The least number of positions that counts for a number that nobody knows. More lanes than a short row needs cost little, but too few make a
/// long one slow.
const MANY: f64 = 1024.0;
/// The turns of a lane over its positions whose loads are under way together: a fit to rows timed on an H100.
const TOGETHER: f64 = 12.0;
/// The time of an exchange in a subgroup, or of a read of workgroup memory, in loads of memory that wait for each other. A fit to rows timed
/// on an H100.
const EXCHANGE: f64 = 0.025;
/// The instructions of an exchange of a variable, or of reading it from workgroup memory: itself, and one for its place.
const EXCHANGED: f64 = 2.0;
/// The instructions of an invocation beside those that its kernel names: its row and its lane. A fit to rows timed on an H100.
const SETUP: f64 = 32.0;
/// The instructions that put two positions in order.
const ORDER: f64 = 6.0;

/// A load or a store of each position of a row, in kernels whose variables are a row and a position in it.
#[derive(Clone, Copy, Debug)]
pub(in crate::schedule) struct Access {
    /// Bytes of an element.
    pub bytes: f64,
    /// Whether each row has elements of its own.
    pub own: bool,
    /// Whether the elements of neighbouring positions are neighbours.
    pub along: bool,
    /// Whether the elements of neighbouring rows are neighbours.
    pub across: bool,
}

impl Access {
    /// The access of a tensor at an offset.
    pub fn of(deps: &Dependence, domain: &[Dim], graph: &KernelGraph, tensor: TensorId, p: &Poly) -> Access {
        Access {
            bytes: graph.tensors.get(tensor).map_or(4.0, |t| t.ty.dtype.bits() as f64 / 8.0),
            own: deps.poly(p) & var_bit(0) != 0,
            along: deps.is_unit_stride(p, 1),
            across: lie_side_by_side(p, 0, super::SIDE_BY_SIDE.into(), domain),
        }
    }
}

/// The work of one pass over a row.
#[derive(Clone, Debug, Default)]
struct Counted {
    /// Instructions of a position.
    operations: f64,
    loads: Vec<Access>,
    stores: Vec<Access>,
    /// The instructions that combine what two lanes have, and its bytes; 0 if the pass combines nothing.
    combination: f64,
    bytes: f64,
}

/// The work of a row kernel, whatever its schedule.
pub(super) struct Work {
    rows: f64,
    /// Positions of a row.
    positions: f64,
    /// The passes where each reads all that it needs, and where values are kept between them.
    passes: [Vec<Counted>; 2],
    /// Instructions of each row.
    once: f64,
    /// Values of a step that are kept.
    kept: f64,
    /// Bytes of workgroup memory of an invocation.
    thread_bytes: f64,
}

impl Work {
    /// Counts the work of a kernel in steps of which `kept` values are kept, and whose lanes need `thread_bytes` of workgroup memory.
    pub(super) fn new(
        kernel: &Kernel,
        graph: &KernelGraph,
        expect: &Expected,
        kept: i64,
        thread_bytes: u32,
    ) -> Option<Work> {
        let Family::Row(row) = &kernel.family else { return None };
        let deps = Dependence::of(kernel);
        let all = passes(&deps, &row.reductions, &kernel.stores, 1);
        let values: BTreeSet<ExprId> = if all.len() > 1 {
            super::kept(kernel, 1).into_iter().map(|k| k.0).collect()
        } else {
            BTreeSet::new()
        };
        let none = BTreeSet::new();
        let read = [count(kernel, graph, &deps, &all, &none)?, count(kernel, graph, &deps, &all, &values)?];
        let fixed = |id: &ExprId| deps.expr(*id) & var_bit(1) == 0;
        let once = kernel.body.reachable(&kernel.roots()).into_iter().filter(fixed);
        Some(Work {
            rows: expect.extent(&row.rows),
            positions: expect.extent_or(&row.len, row.len.greatest().map_or(MANY, |n| MANY.min(n as f64))),
            passes: read,
            once: once.map(|id| length::of_expr(&kernel.body, id) as f64).sum(),
            kept: kept as f64,
            thread_bytes: f64::from(thread_bytes),
        })
    }

    /// The estimated time in [cycles](crate::device::Speeds::cycle). Equal work takes equally long, whatever the order in which it is added up.
    pub(super) fn cycles(&self, s: &Row, device: &DeviceProfile) -> f64 {
        f64::from(self.launch(s, device).cycles(device) as f32)
    }

    pub(super) fn launch(&self, s: &Row, device: &DeviceProfile) -> Launch {
        let overlaps = device.speeds.overlaps();
        let [threads, lanes, width] = [s.threads, s.lanes, s.width].map(f64::from);
        let subgroup = f64::from(device.subgroup.unwrap_or(SUBGROUP).min(s.threads));
        // The rows of a workgroup, and the rows and lanes of a subgroup.
        let each = threads / lanes;
        let beside = if s.rows_first { each.min(subgroup) } else { (subgroup / lanes).clamp(1.0, each) };
        let among = (subgroup / beside).min(lanes);
        let workgroups = (self.rows / each).ceil();
        let (live, full) = (self.rows / workgroups, (self.rows / each).floor());
        // A subgroup takes as long for one of its invocations as for all.
        let last = ((self.rows - full * each) / beside).ceil() * beside;
        let steps = self.positions / width;
        let busy = (full * each + last) / workgroups * (steps / among).ceil() * among;
        // Invocations without a row take part in steps of a fixed number, where no branch is skipped.
        let turns = if s.steps > 0 && !overlaps { threads * f64::from(s.steps) } else { busy };
        let joined = if s.rows_first { 1.0 } else { f64::from(s.subgroup.min(s.lanes)) };
        let own = Launch::default();
        let mut out = Launch {
            workgroups,
            threads,
            registers: own.registers + if s.kept { self.kept * f64::from(s.steps) } else { 0.0 },
            workgroup_bytes: if lanes > joined { self.thread_bytes * threads / joined } else { 0.0 },
            operations: threads * (SETUP + self.once),
            ..own
        };
        let passes = &self.passes[usize::from(s.kept)];
        for p in passes {
            out.operations += turns * width * p.operations;
            out.turns += turns;
            out.steps += (steps / lanes).ceil() / TOGETHER;
            let loads = p.loads.iter().map(|a| (a, true));
            for (a, load) in loads.chain(p.stores.iter().map(|a| (a, false))) {
                let elements = a.bytes * width;
                let row = self.positions * a.bytes;
                let bytes = |least: f64| {
                    let least = if overlaps { least } else { APART };
                    match (a.along, a.across, a.own) {
                        (true, _, true) => (among * elements).max(least.min(row)) / among,
                        (true, _, false) => (among * elements).max(least) / (among * beside),
                        (false, true, _) => (beside * elements).max(least) / beside,
                        (false, false, true) => least * width,
                        (false, false, false) => least * width / beside,
                    }
                };
                out.loads += turns * if a.along { 1.0 } else { width };
                out.memory += row * if a.own { self.rows } else { 1.0 };
                if !load {
                    out.stored += turns * bytes(SECTOR);
                    continue;
                }
                out.cached += turns * bytes(LINE);
                // Rows that lie side by side share sectors. What all rows read, each core reads once.
                let apart = if a.across && !a.along { (SECTOR / (each * a.bytes)).max(1.0) } else { 1.0 };
                let fetched = if a.own { live * apart } else { (device.speeds.cores / workgroups).min(1.0) };
                out.fetched += row * fetched;
            }
            if lanes == 1.0 || p.bytes == 0.0 {
                continue;
            }
            let mut exchange = |times: f64, barriers: f64, bytes: f64| {
                out.operations += threads * times * p.combination;
                out.steps += EXCHANGE * times;
                out.barriers += barrier_between_few(&device.speeds) * barriers;
                out.shared += threads * bytes * p.bytes;
            };
            if joined > 1.0 {
                exchange(joined.log2(), 0.0, 0.0);
                if lanes > joined {
                    let others = lanes / joined;
                    exchange(others, 2.0, others + 1.0 / joined);
                }
            } else {
                // Half of the lanes, a quarter, … read what another one has and their own, and write.
                exchange(lanes.log2(), lanes.log2() + 2.0, 4.0);
            }
        }
        out
    }
}

/// Counts the work of the passes of a kernel if a pass has the values that one before it has computed, of these.
fn count(
    kernel: &Kernel,
    graph: &KernelGraph,
    deps: &Dependence,
    all: &[Pass],
    values: &BTreeSet<ExprId>,
) -> Option<Vec<Counted>> {
    let Family::Row(row) = &kernel.family else { return None };
    let (body, domain) = (&kernel.body, kernel.domain());
    let access = |t: TensorId, p: &Poly| Access::of(deps, &domain, graph, t, p);
    let mut known: BTreeSet<ExprId> = BTreeSet::new();
    let count = |p: &Pass| {
        let mut out = Counted::default();
        let mut stack = p.roots(&row.reductions, &kernel.stores, 1);
        let mut seen = BTreeSet::new();
        while let Some(id) = stack.pop() {
            let each = deps.expr(id) & var_bit(1) != 0;
            if !each || known.contains(&id) || !seen.insert(id) {
                continue;
            }
            out.operations += length::of_expr(body, id) as f64;
            if let Expr::Load { tensor, offset, .. } = body.expr(id) {
                out.loads.push(access(*tensor, offset));
            }
            stack.extend(body.operands(id));
        }
        known.extend(seen.intersection(values));
        let stores = p.stores.iter().filter_map(|i| kernel.stores.get(*i));
        out.stores = stores.map(|s| access(s.tensor, &s.offset)).collect();
        for r in p.reductions.iter().filter_map(|i| row.reductions.get(*i)) {
            let all = variables(r, body);
            let combine = if all.len() > 1 { ORDER } else { 1.0 };
            out.operations += combine;
            out.combination += combine + EXCHANGED * all.len() as f64;
            let bytes = |r: &Reg| if matches!(r, Reg::I64 | Reg::U64) { 8.0 } else { 4.0 };
            out.bytes += all.iter().map(bytes).sum::<f64>();
        }
        out
    };
    Some(all.iter().map(count).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse;
    use crate::schedule::Context;
    use crate::schedule::rows::choose;

    /// The lanes that share a row of a sum, and the invocations of a workgroup.
    fn chosen(device: &str, subgroup: Option<u32>, [rows, len]: [i64; 2]) -> (u32, u32) {
        let text = format!(
            "t0: f32[{rows}, {len}] input 0\nt1: f32[{rows}] output 0\n\nkernel 0 row [{rows}, {len}]\n  e0: f32 = t0[{len}*%0 + %1]\n  \
             e1: f32 = acc0\n  acc0 = sum(e0): f32\n  row t1[%0] = e1\n"
        );
        let graph = parse(&text).unwrap();
        let device = DeviceProfile { subgroup, ..DeviceProfile::named(device).unwrap() };
        let expect = Expected::default();
        let row =
            choose(&graph.kernels[0], &Context { graph: &graph, device: &device, expect: &expect }).unwrap();
        (row.lanes, row.threads)
    }

    #[test]
    fn long_rows_are_shared_out_and_short_ones_are_not() {
        let on = |sizes| chosen("discrete", Some(32), sizes).0;
        assert_eq!(on([1, 100_003]), 256);
        assert!(on([1, 100_003]) > on([1, 67]));
        assert_eq!(on([1_000_000, 3]), 1);
        assert!(on([1_000_000, 67]) < on([10, 67]));
    }

    #[test]
    fn lanes_of_a_software_adapter_need_no_barriers() {
        for (device, subgroup) in [("software", 8), ("swiftshader", 4)] {
            for sizes in [[1000, 301], [9, 1142], [117, 81]] {
                assert!(chosen(device, Some(subgroup), sizes).0 <= subgroup, "{device} {sizes:?}");
            }
        }
    }

    #[test]
    fn work_is_the_same_however_it_is_shared_out() {
        let text = "t0: f32[64, 4096] input 0\nt1: f32[64] output 0\n\nkernel 0 row [64, 4096]\n  e0: f32 = t0[4096*%0 + %1]\n  \
                    e1: f32 = acc0\n  acc0 = sum(e0): f32\n  row t1[%0] = e1\n";
        let graph = parse(text).unwrap();
        let kernel = &graph.kernels[0];
        let device = DeviceProfile { subgroup: Some(32), ..DeviceProfile::named("discrete").unwrap() };
        let work = Work::new(kernel, &graph, &Expected::default(), 0, 4).unwrap();
        for (threads, lanes) in [(64, 1), (64, 32), (128, 64), (256, 256)] {
            let row = Row {
                threads,
                lanes,
                rows_first: false,
                width: 4,
                steps: 0,
                kept: false,
                subgroup: 32.min(lanes),
            };
            let l = work.launch(&row, &device);
            assert_eq!(l.workgroups * l.turns, 65536.0, "{threads} {lanes}");
            assert_eq!(l.workgroups * l.loads, 65536.0, "{threads} {lanes}");
            assert_eq!(l.memory, 4.0 * 64.0 * 4096.0);
            assert_eq!(l.barriers > 0.0, lanes > 32);
            // A single lane touches a line for each of its vectors.
            assert_eq!(l.cached / l.fetched, if lanes == 1 { 8.0 } else { 1.0 });
        }
    }
}
