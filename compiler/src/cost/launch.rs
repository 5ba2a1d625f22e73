//! The work of one dispatch, counted, and the time that it takes on a device.

use crate::device::DeviceProfile;
use crate::device::occupancy::Kind;

/// The instructions of a load: itself, and one for its address.
const LOAD: f64 = 2.0;
/// The instructions of an element that is read by itself for a tile: its address, its guard, and its place in the tile. A fit to products
/// and convolutions timed on an H100.
const GATHERED: f64 = 32.0;
/// The instructions of a turn of a loop: its count, its comparison and its jump, and the others that wait for it. A fit to tiled products
/// timed on an H100 with their loops written out and not.
const TURN: f64 = 8.0;
/// The share of the latency of an operation that an invocation sees: of two operations, about one does not depend on the other. A fit to
/// products and attention timed on an H100.
const DEPENDENT: f64 = 0.45;
/// How many times as long a load takes while others are under way: a fit to products with few rows timed on an H100.
const LOADED: f64 = 1.75;
/// Durations of a barrier that one takes among other instructions: the last of them are under way before it, the first behind it.
const WAITED: f64 = 2.0;
/// The memory latencies of a workgroup's start and end.
const ENDS: f64 = 1.0;
/// The barriers of a full workgroup that a core needs from the start of a workgroup to that of the next, which meets its invocations as a
/// barrier does, and so does its end: 80 ns on an H100, where row kernels of up to 270,000 workgroups take 84 ns for each.
const START: f64 = 2.0;
/// How many times the registers of a core its invocations may need: counts of registers are upper bounds, and more are spilled to memory.
/// 1 × 4096 × 4096 in f16 takes 7.4 µs on an H200 with 1.3 times as many and 10.5 with 1.9 times.
const SPILLED: f64 = 1.5;

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
    /// The work of the workgroup that has most, relative to the mean of all, whose counts these are.
    pub longest: f64,
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
            longest: 1.0,
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

    /// The instructions of a workgroup but those of matrix units.
    fn instructions(&self) -> f64 {
        self.multiply_adds
            + self.operations
            + LOAD * self.loads
            + GATHERED * self.gathered
            + TURN * self.turns
    }

    /// The [cycles](crate::device::Speeds::cycle) for which a workgroup occupies a core that has others to run while it waits.
    ///
    /// Arithmetic, the first cache with workgroup memory, the second cache and matrix units are units of a core. They overlap if it holds more
    /// invocations than it executes; else an invocation uses one after the other.
    fn busy(&self, device: &DeviceProfile) -> f64 {
        let speeds = &device.speeds;
        let core = speeds.cycle() / speeds.cores;
        let (first, second) = (speeds.cache_bandwidth * core, speeds.shared_cache() * core);
        let instructions = self.instructions() / 128.0;
        let matrix = self.matrix * speeds.flops_f32 / speeds.flops_matrix / 128.0;
        let work = if speeds.overlaps() {
            let near = (self.cached + self.shared) / first;
            let far = (self.fetched + self.stored) / second;
            overlapped([instructions, near, far, matrix])
        } else {
            instructions + (self.cached + self.shared + self.stored) / first + matrix
        };
        let needed = self.registers * self.threads / f64::from(device.core_registers);
        work * (needed / SPILLED).max(1.0) + self.barriers * speeds.barrier_cycles(self.threads)
    }

    /// The [cycles](crate::device::Speeds::cycle) for which a workgroup waits that is alone on its core. A core that does not overlap runs
    /// one workgroup after another: it never waits for an instruction.
    fn waits(&self, device: &DeviceProfile) -> f64 {
        let speeds = &device.speeds;
        let chain = DEPENDENT * speeds.operation_cycles() * self.instructions() / self.threads;
        (LOADED * self.steps + ENDS) * speeds.memory_latency
            + WAITED * self.barriers * speeds.barrier_alone(self.threads)
            + if speeds.overlaps() { chain } else { 0.0 }
    }

    /// The estimated time in [cycles](crate::device::Speeds::cycle).
    ///
    /// ```text
    /// waits  = latencies of loads, barriers and instructions that follow each other + start and end
    /// round  = overlapped(busy · workgroups of the round, waits)
    /// time   = overlapped(sum of the rounds of the core that has most workgroups, starts after the first one, bytes / bandwidth)
    /// ```
    ///
    /// A round is as many workgroups as are resident on a core; the last one has the rest. So the units of a core decide over large problems,
    /// and latencies and the number of cores with any work over small ones. Where some workgroups are longer than others, cores that are done
    /// with short ones take others, and the longest takes at least its own time.
    pub fn cycles(&self, device: &DeviceProfile) -> f64 {
        let speeds = &device.speeds;
        let (busy, waits) = (self.busy(device), self.waits(device));
        let round = |workgroups: f64| match workgroups {
            0.0 => 0.0,
            n => overlapped([n * busy, waits]),
        };
        let (all, resident) = (speeds.per_core(self.workgroups), self.resident(device));
        let cores = if self.longest > 1.0 {
            let mean = speeds.mean_per_core(self.workgroups).max(1.0);
            let rounds = (mean / resident).max(1.0) * round(mean.min(resident));
            rounds.max(self.longest * round(1.0))
        } else {
            let rounds = (all / resident).floor();
            rounds * round(resident) + round(all - rounds * resident)
        };
        let start = if speeds.overlaps() { START * speeds.barrier_alone(1.0) } else { 0.0 };
        let memory = self.memory / speeds.bytes_per_cycle();
        overlapped([cores, start * (all - 1.0).max(0.0), memory])
    }

    /// The estimated time in [cycles](crate::device::Speeds::cycle) if one workgroup does the work of all, one after another.
    pub fn in_turn(&self, device: &DeviceProfile) -> f64 {
        let speeds = &device.speeds;
        let read = self.memory / (speeds.workgroup_bandwidth.min(speeds.bandwidth) * speeds.cycle());
        overlapped([self.workgroups * overlapped([self.busy(device), self.waits(device)]), read])
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
            longest: 1.0,
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
            // Cores are taken to be more than measured.
            let all = s.mean_per_core(l.workgroups) * s.cores;
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
        let one = Launch { workgroup_bytes: 40e3, memory: 0.0, workgroups: 131.0, ..tiles() };
        let time = |workgroups: f64| Launch { workgroups, ..one }.cycles(&device);
        assert_eq!(time(1.0), time(131.0));
        // Its start is short beside it.
        assert!((2.0..2.001).contains(&(time(132.0) / time(131.0))));
    }

    #[test]
    fn resident_workgroups_hide_latencies() {
        let device = DeviceProfile::named("discrete").unwrap();
        let wait = Launch { threads: 64.0, workgroups: 131.0, steps: 100.0, ..Launch::default() };
        let time = |l: Launch| l.cycles(&device);
        // A latency under load for each step, and one for the start and the end.
        assert_eq!(time(wait), 176.0 * 600.0);
        // Their starts are short beside it.
        let near = |a: f64, b: f64| assert!((1.0..1.001).contains(&(a / b)), "{a} {b}");
        near(time(Launch { workgroups: 8.0 * 131.0, ..wait }), time(wait));
        let alone = Launch { registers: 255.0, workgroups: 8.0 * 131.0, ..wait };
        near(time(alone), 2.0 * time(wait));
    }

    #[test]
    fn cores_are_busy_until_the_longest_workgroup_ends() {
        let device = DeviceProfile::named("discrete").unwrap();
        let even =
            Launch { threads: 256.0, operations: 12_800.0 * 256.0, workgroups: 128.0, ..Launch::default() };
        let uneven = |workgroups: f64| Launch { longest: 4.0, workgroups, ..even }.cycles(&device);
        // With few workgroups the longest decides, with many the sum of all.
        assert!((1.0..1.001).contains(&(uneven(256.0) / uneven(1.0))));
        assert_eq!(uneven(1.0), 4.0 * even.cycles(&device));
        assert!(uneven(64.0 * 128.0) > 4.0 * uneven(1.0));
    }

    #[test]
    fn latencies_of_the_portable_speeds_are_those_of_an_h100() {
        let waits =
            Launch { threads: 128.0, operations: 1000.0, barriers: 500.0, steps: 300.0, ..Launch::default() };
        let [a, b] = ["portable", "discrete"].map(|name| waits.cycles(&DeviceProfile::named(name).unwrap()));
        assert!((a / b - 1.0).abs() < 0.01, "{a} {b}");
    }

    #[test]
    fn barriers_count_by_the_device() {
        let share = |name: &str| {
            let device = DeviceProfile::named(name).unwrap();
            let time = |barriers: f64| Launch { barriers, memory: 0.0, ..tiles() }.cycles(&device);
            time(256.0) / time(0.0)
        };
        assert!(share("swiftshader") > share("discrete"), "{} {}", share("swiftshader"), share("discrete"));
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
