//! How prefix scans are shared out: an invocation for each row, or several where rows are long or lie one behind the other.

use super::rows::Access;
use super::{Context, by_time};
use crate::cost::memory::{APART, LINE, SUBGROUP};
use crate::cost::{Launch, Stage, barrier_between_few};
use crate::kernel::dependence::Dependence;
use crate::kernel::{self, Expr, length};
use wgfc_ir::{Poly, Reg};

/// Neighbouring positions of an invocation.
const EACH: [u32; 3] = [8, 4, 16];

/// The least number of positions that counts for a number that nobody knows.
const MANY: f64 = 4096.0;
/// The instructions of a position in workgroup memory (four loops), and of a round in which lanes combine what others have. Fits to prefix
/// scans timed on an H100.
const POSITION: f64 = 24.0;
const ROUND: f64 = 24.0;
/// The time that a position waits for its load and for two reads of workgroup memory, in loads of memory that wait for each other. A fit to
/// prefix scans timed on an H100.
const WAITS: f64 = 0.25;
/// The time of a load of a position whose neighbour was loaded before it, in loads of memory that wait for each other. A fit to prefix scans
/// timed on an H100.
const NEAR: f64 = 0.08;

/// How a prefix scan is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixScan {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Invocations that share a row, a power of two that divides `threads`; 1 where each has one of its own.
    pub lanes: u32,
    /// Neighbouring positions that a lane takes at a time, a power of two; 1 where each invocation has a row of its own.
    pub each: u32,
}

/// Bytes of workgroup memory.
pub fn workgroup_bytes(k: &kernel::PrefixScan, s: &PrefixScan) -> u32 {
    let word = if matches!(k.reduction.dtype.reg(), Reg::I64 | Reg::U64) { 8 } else { 4 };
    if s.lanes > 1 { s.threads * (s.each + 1) * word } else { 0 }
}

/// All schedules of a prefix scan that a device can run, by their estimated times.
pub fn candidates(kernel: &kernel::Kernel, k: &kernel::PrefixScan, cx: &Context) -> Vec<PrefixScan> {
    let most = 1u32 << cx.device.max_invocations.clamp(1, 256).ilog2();
    let mut out = vec![PrefixScan { threads: most.min(64), lanes: 1, each: 1 }];
    if k.reduction.dtype.reg() == Reg::Bool || most < 2 {
        return out;
    }
    let len = cx.expect.known(&k.len);
    for each in EACH {
        let lanes = len.map_or(most, |n| {
            let n = (n.max(1) as u64).div_ceil(u64::from(each)).next_power_of_two();
            n.clamp(2, u64::from(most)) as u32
        });
        for s in [lanes, most].map(|lanes| PrefixScan { threads: most, lanes, each }) {
            if workgroup_bytes(k, &s) <= cx.device.max_workgroup_bytes && !out.contains(&s) {
                out.push(s);
            }
        }
    }
    let work = Work::new(kernel, k, cx);
    by_time(out.into_iter().map(|s| (s, work.launch(&s, k, cx))).collect(), cx.device)
}

/// The work of a prefix scan, whatever its schedule.
struct Work {
    rows: f64,
    /// Positions of a row.
    positions: f64,
    /// Instructions of a position.
    operations: f64,
    accesses: Vec<Access>,
}

impl Work {
    fn new(kernel: &kernel::Kernel, k: &kernel::PrefixScan, cx: &Context) -> Work {
        let (deps, domain) = (Dependence::of(kernel), kernel.domain());
        let access = |t: kernel::TensorId, p: &Poly| Access::of(&deps, &domain, cx.graph, t, p);
        let all = kernel.body.reachable(&kernel.roots());
        let loads = all.iter().filter_map(|id| match kernel.body.expr(*id) {
            Expr::Load { tensor, offset, .. } => Some(access(*tensor, offset)),
            _ => None,
        });
        let stores = kernel.stores.iter().map(|s| access(s.tensor, &s.offset));
        Work {
            rows: cx.expect.extent(&k.rows),
            positions: cx.expect.extent_or(&k.len, MANY),
            operations: length::of(&kernel.body, &kernel.roots()) as f64,
            accesses: loads.chain(stores).collect(),
        }
    }

    /// The counts of a schedule.
    fn launch(&self, s: &PrefixScan, k: &kernel::PrefixScan, cx: &Context) -> Launch {
        let [threads, lanes, each] = [s.threads, s.lanes, s.each].map(f64::from);
        let workgroups = (self.rows * lanes / threads).ceil();
        let accesses = self.accesses.len() as f64;
        let memory = self.rows * self.positions * self.accesses.iter().map(|a| a.bytes).sum::<f64>();
        let own = Launch { workgroups, threads, memory, ..Launch::default() };
        let least = if cx.device.speeds.overlaps() { LINE } else { APART };
        if s.lanes == 1 {
            // Neighbours are other rows: each touches a line of its own unless rows lie side by side.
            let bytes = |a: &Access| if a.across { a.bytes } else { least.min(self.positions * a.bytes) };
            // Subgroups without a row end at once.
            let subgroup = f64::from(cx.device.subgroup.unwrap_or(SUBGROUP));
            let live = ((self.rows.min(threads) / subgroup).ceil() * subgroup / threads).min(1.0);
            let step = Stage {
                operations: live * (self.operations + accesses),
                loaded: live * self.accesses.iter().map(bytes).sum::<f64>() / 4.0,
                waits: NEAR,
                ..Stage::default()
            };
            let turns = live * threads * self.positions;
            return Launch { turns, ..own.with(&step, self.positions) };
        }
        // Lanes read rows that lie side by side across: each touches a line of its own.
        let bytes = |a: &Access| if a.along { a.bytes } else { least };
        let word = if workgroup_bytes(k, s) > s.threads * (s.each + 1) * 4 { 2.0 } else { 1.0 };
        let rounds = lanes.log2();
        let step = Stage {
            operations: each * (self.operations + POSITION) + rounds * ROUND,
            shared: word * (each * 5.0 + 2.0 * rounds + 3.0),
            loaded: each * self.accesses.iter().map(bytes).sum::<f64>() / 4.0,
            barriers: barrier_between_few(&cx.device.speeds) * (5.0 + 2.0 * rounds),
            waits: 1.0 + WAITS * each,
            ..Stage::default()
        };
        let own = Launch { workgroup_bytes: f64::from(workgroup_bytes(k, s)), ..own };
        own.with(&step, (self.positions / (lanes * each)).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceProfile;
    use crate::kernel::{Family, parse};

    /// The lanes and positions of the schedule that is chosen for sums along rows.
    fn chosen(device: &str, subgroup: u32, [rows, len]: [i64; 2]) -> (u32, u32) {
        let text = format!(
            "t0: f32[{rows}, {len}] input 0\nt1: f32[{rows}, {len}] output 0\n\nkernel 0 prefix_scan [{rows}, {len}]\n  \
             e0: f32 = t0[{len}*%0 + %1]\n  e1: f32 = acc0\n  acc0 = running sum(e0): f32\n  t1[{len}*%0 + %1] = e1\n"
        );
        let graph = parse(&text).unwrap();
        let device = DeviceProfile { subgroup: Some(subgroup), ..DeviceProfile::named(device).unwrap() };
        let (kernel, expect) = (&graph.kernels[0], Default::default());
        let Family::PrefixScan(k) = &kernel.family else { panic!("{kernel:?}") };
        let all = candidates(kernel, k, &Context { graph: &graph, device: &device, expect: &expect });
        (all[0].lanes, all[0].each)
    }

    #[test]
    fn many_workgroups_leave_room_for_each_other() {
        // With 16 positions each, 65,536 rows of 256 take 1.53 times as long on an H100: fewer workgroups fit a core.
        assert_eq!(chosen("discrete", 32, [65_536, 256]), (32, 8));
        assert_eq!(chosen("discrete", 32, [16_384, 4096]), (256, 8));
    }

    #[test]
    fn short_rows_and_rows_of_software_adapters_are_not_shared() {
        assert_eq!(chosen("discrete", 32, [1000, 3]), (1, 1));
        assert_eq!(chosen("swiftshader", 4, [1, 59_554]), (1, 1));
    }
}
