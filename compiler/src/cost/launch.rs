//! The work of one dispatch, counted, and the time that it takes on a device.

use crate::device::DeviceProfile;
use crate::device::occupancy::Kind;

/// The instructions of a load: itself, and one for its address.
const LOAD: f64 = 2.0;
/// The instructions of an element that is read by itself for a tile: its address, its guard, and its place in the tile. A fit to products
/// and convolutions timed on an H100.
const GATHERED: f64 = 32.0;
/// The instructions of a turn of a loop, and the others that wait for it: the compiler does not move them across its end. A fit to tiled
/// products timed on an H100 with their loops written out and not.
const TURN: f64 = 32.0;
/// How many times as many bytes invocations read from workgroup memory as from a cache in the same time, as neighbours read the same ones: a
/// fit to tiled products timed on an H100.
const SHARED: f64 = 1.4;
/// The invocations of a core that keep its units busy. A fit to products timed on an H100, whose four schedulers issue an instruction of 32
/// invocations each.
const BUSY: f64 = 192.0;
/// How many times as long a load takes while others are under way: a fit to products with few rows timed on an H100.
const LOADED: f64 = 1.5;
/// The number of measured barriers that a barrier takes between other instructions, all of which wait for the slowest invocation: a fit
/// to products timed on an H100.
const WAITED: f64 = 2.0;
/// The memory latencies of a workgroup's start and end.
const ENDS: f64 = 1.0;
/// The cycles between the starts of two workgroups on a core: 84 ns, by row kernels of up to 270,000 workgroups timed on an H100.
const START: f64 = 140.0;
/// How many times the registers of a core its invocations may need: the rest is spilled to memory. 8 × 4096 × 4096 in f16 takes 24.3 µs on an
/// H100 if they need 3 times as many and 26.2 with 4.9; 1 × 4096 × 4096 in f32 needs twice as many and takes 1.1 times the bound.
const SPILLED: f64 = 2.0;

/// The counts of a dispatch, from which its time follows: all schedules are compared by [`Launch::cycles`].
///
/// ```
/// use wgfc_compiler::{DeviceProfile, cost::Launch};
/// let device = DeviceProfile::named("discrete").unwrap();
/// // A product of 4096 × 4096 × 64 whose operands are in the caches of its workgroups.
/// let product = Launch { workgroups: 1024.0, threads: 256.0, multiply_adds: 1048576.0, ..Launch::default() };
/// let longer = Launch { multiply_adds: 2097152.0, ..product };
/// assert!(product.cycles(&device) < longer.cycles(&device));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    /// The number of workgroups.
    pub workgroups: f64,
    /// The number of invocations of a workgroup.
    pub threads: f64,
    /// The number of registers that an invocation needs.
    pub registers: f64,
    /// The kind of kernel, on which the workgroup memory of a core depends.
    pub kind: Kind,
    /// The bytes of workgroup memory of a workgroup.
    pub workgroup_bytes: f64,
    /// The bytes that all workgroups together read from memory and write to it.
    pub memory: f64,
    /// The multiply-adds of a workgroup; this and all below count those of its invocations together.
    pub multiply_adds: f64,
    /// The other operations of a workgroup.
    pub operations: f64,
    /// The multiply-adds of a workgroup on matrix units.
    pub matrix: f64,
    /// The loads of a workgroup; a vector counts once.
    pub loads: f64,
    /// The loads of a workgroup that read one element for a tile.
    pub gathered: f64,
    /// The turns of loops of a workgroup.
    pub turns: f64,
    /// The bytes that a workgroup reads from workgroup memory and writes to it.
    pub shared: f64,
    /// The bytes that a workgroup reads through the cache of its core.
    pub cached: f64,
    /// The bytes that a workgroup reads through the cache that all cores share.
    pub fetched: f64,
    /// The bytes that a workgroup stores.
    pub stored: f64,
    /// The barriers of a workgroup.
    pub barriers: f64,
    /// The loads of an invocation of which each waits for those before it.
    pub steps: f64,
}

impl Default for Launch {
    fn default() -> Launch {
        Launch {
            workgroups: 1.0,
            threads: 1.0,
            registers: 32.0,
            kind: Kind::Matrices,
            workgroup_bytes: 0.0,
            memory: 0.0,
            multiply_adds: 0.0,
            operations: 0.0,
            matrix: 0.0,
            loads: 0.0,
            gathered: 0.0,
            turns: 0.0,
            shared: 0.0,
            cached: 0.0,
            fetched: 0.0,
            stored: 0.0,
            barriers: 0.0,
            steps: 0.0,
        }
    }
}

/// The time of things that overlap in part: at least the longest of them, at most their sum. The root of the sum of squares is nearly the
/// longest if that is much longer, and 1.4 times one of two that are equally long.
fn overlapped<const N: usize>(times: [f64; N]) -> f64 {
    times.iter().map(|t| t * t).sum::<f64>().sqrt()
}

impl Launch {
    /// The number of workgroups that are resident on a core together.
    fn resident(&self, device: &DeviceProfile) -> f64 {
        let registers = self.registers.min(f64::from(device.invocation_registers));
        let resident = device.resident_by_registers(self.threads, registers);
        resident.min(device.resident_by_bytes(self.kind, self.workgroup_bytes)).floor().max(1.0)
    }

    /// The [cycles](crate::device::Speeds::cycle) for which a workgroup occupies a core that has others to run while it waits.
    ///
    /// Arithmetic, the first cache with workgroup memory, the second cache and matrix units are units of a core. They overlap if it holds more
    /// invocations than it executes; else an invocation uses one after the other.
    fn busy(&self, device: &DeviceProfile) -> f64 {
        let speeds = &device.speeds;
        let instructions = self.multiply_adds
            + self.operations
            + LOAD * self.loads
            + GATHERED * self.gathered
            + TURN * self.turns;
        let core = speeds.cycle() / speeds.cores;
        let (first, second) = (speeds.cache_bandwidth * core, speeds.shared_cache() * core);
        let matrix = self.matrix * speeds.flops_f32 / speeds.flops_matrix / 128.0;
        let work = if speeds.overlaps() {
            let near = (self.cached + self.shared / SHARED) / first;
            let far = (self.fetched + self.stored) / second;
            overlapped([instructions / 128.0, near, far, matrix])
        } else {
            instructions / 128.0 + (self.cached + self.shared + self.stored) / first + matrix
        };
        let needed = self.registers * self.threads / f64::from(device.core_registers);
        work * (needed / SPILLED).max(1.0) + self.barriers * speeds.barrier_cycles(self.threads)
    }

    /// The estimated time in [cycles](crate::device::Speeds::cycle).
    ///
    /// ```text
    /// waits  = steps · latency under load + barriers + start and end
    /// round  = overlapped(busy · max(workgroups of the round, those that would keep the core busy), waits)
    /// time   = overlapped(sum of the rounds of the core that has most workgroups, starts after the first one, bytes / bandwidth)
    /// ```
    ///
    /// A round is as many workgroups as are resident on a core; the last one has the rest. So the units of a core decide over large problems,
    /// and latencies and the number of cores with any work over small ones.
    pub fn cycles(&self, device: &DeviceProfile) -> f64 {
        let speeds = &device.speeds;
        let busy = self.busy(device);
        let waits = (LOADED * self.steps + ENDS) * speeds.memory_latency
            + WAITED * self.barriers * speeds.barrier_alone(self.threads);
        let least = BUSY.min(speeds.held()) / self.threads;
        let round = |workgroups: f64| match workgroups {
            0.0 => 0.0,
            n => overlapped([n.max(least) * busy, waits]),
        };
        let (all, resident) = (speeds.per_core(self.workgroups), self.resident(device));
        let memory = self.memory / speeds.bytes_per_cycle();
        let starts = if speeds.overlaps() { START * (all - 1.0).max(0.0) } else { 0.0 };
        let rounds = (all / resident).floor();
        let cores = rounds * round(resident) + round(all - rounds * resident);
        overlapped([cores, starts, memory])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Speeds;

    fn devices() -> Vec<DeviceProfile> {
        DeviceProfile::NAMES.iter().map(|n| DeviceProfile::named(n).unwrap()).collect()
    }

    /// The tiles of a product of 4096 × 4096 × 4096.
    fn tiles() -> Launch {
        Launch {
            workgroups: 1024.0,
            threads: 256.0,
            registers: 150.0,
            kind: Kind::Tiles,
            workgroup_bytes: 32768.0,
            memory: 2e8,
            multiply_adds: 6.7e7,
            operations: 1e5,
            matrix: 1e3,
            loads: 2.6e5,
            gathered: 1e5,
            turns: 1e4,
            shared: 7.1e7,
            cached: 4.2e6,
            fetched: 4.2e6,
            stored: 65536.0,
            barriers: 256.0,
            steps: 128.0,
        }
    }

    #[test]
    fn more_of_anything_takes_no_less_time() {
        let counts: [fn(&mut Launch) -> &mut f64; 15] = [
            |l| &mut l.workgroups,
            |l| &mut l.registers,
            |l| &mut l.workgroup_bytes,
            |l| &mut l.memory,
            |l| &mut l.multiply_adds,
            |l| &mut l.operations,
            |l| &mut l.matrix,
            |l| &mut l.loads,
            |l| &mut l.gathered,
            |l| &mut l.turns,
            |l| &mut l.shared,
            |l| &mut l.cached,
            |l| &mut l.stored,
            |l| &mut l.barriers,
            |l| &mut l.steps,
        ];
        for device in devices() {
            let time = tiles().cycles(&device);
            for (i, count) in counts.iter().enumerate() {
                let mut more = tiles();
                *count(&mut more) *= 4.0;
                assert!(more.cycles(&device) >= time, "count {i}: {} {time}", more.cycles(&device));
            }
        }
    }

    #[test]
    fn no_estimate_is_below_a_bound_of_the_device() {
        for device in devices() {
            let (s, l) = (&device.speeds, tiles());
            let seconds = l.cycles(&device) * s.cycle();
            // Cores are taken to be a twentieth more than measured.
            let all = l.workgroups / 1.05;
            assert!(seconds >= l.memory / s.bandwidth);
            assert!(seconds >= all * l.multiply_adds * 2.0 / s.flops_f32);
            assert!(seconds >= all * l.cached / s.cache_bandwidth);
            assert!(seconds >= l.steps * s.memory_latency * s.cycle());
        }
    }

    #[test]
    fn a_workgroup_more_than_cores_takes_a_round_more() {
        let device = DeviceProfile::named("discrete").unwrap();
        // One workgroup is resident.
        let one = Launch { workgroup_bytes: 40e3, memory: 0.0, workgroups: 134.0, ..tiles() };
        let time = |workgroups: f64| Launch { workgroups, ..one }.cycles(&device);
        assert_eq!(time(1.0), time(134.0));
        // Its start is short beside it.
        assert!((2.0..2.001).contains(&(time(135.0) / time(134.0))));
    }

    #[test]
    fn resident_workgroups_hide_latencies() {
        let device = DeviceProfile::named("discrete").unwrap();
        let wait = Launch { threads: 64.0, workgroups: 134.0, steps: 100.0, ..Launch::default() };
        let time = |l: Launch| l.cycles(&device);
        // A latency under load for each step, and one for the start and the end.
        assert_eq!(time(wait), 151.0 * 600.0);
        // Their starts are short beside it.
        let near = |a: f64, b: f64| assert!((1.0..1.001).contains(&(a / b)), "{a} {b}");
        near(time(Launch { workgroups: 8.0 * 134.0, ..wait }), time(wait));
        let alone = Launch { registers: 255.0, workgroups: 8.0 * 134.0, ..wait };
        near(time(alone), 2.0 * time(wait));
    }

    #[test]
    fn units_overlap_where_a_core_holds_many_invocations() {
        let l = Launch { threads: 256.0, multiply_adds: 1e9, cached: 1e9, ..Launch::default() };
        let parts = [Launch { cached: 0.0, ..l }, Launch { multiply_adds: 0.0, ..l }];
        for (speeds, sum) in [(Speeds::DISCRETE, false), (Speeds::SOFTWARE, true)] {
            let device = DeviceProfile { speeds, ..DeviceProfile::default() };
            let [a, b] = parts.map(|p| p.cycles(&device));
            let both = l.cycles(&device);
            assert!(both > a.max(b) && both < 1.001 * (a + b));
            assert_eq!(both > 0.99 * (a + b), sum);
        }
    }
}
