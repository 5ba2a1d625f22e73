//! The counts of a dispatch, and the time that they take on a device.
//!
//! The families whose forms are compared by it only count, as their templates say; the speeds are the device's. The constants fit 250
//! times of attention on an H100 within 15 % on average, and those of sorts, on which they were not fitted, within a third.

use crate::device::DeviceProfile;
use crate::device::occupancy::Kind;

/// Operations of a load of up to 16 bytes: its line and column, its address, the bound, and a write to workgroup memory.
pub const LOAD: f64 = 24.0;
/// Registers for addresses, bounds and intermediate values.
pub const OTHER_REGISTERS: f64 = 40.0;
/// Elements that 32 invocations read from workgroup memory in a cycle, if they read 16 bytes each: twice as many as there are banks, as
/// neighbours read the same.
const ELEMENTS: f64 = 64.0;
/// The share of the latency of an operation that an invocation sees: of two operations, one does not depend on the other.
const DEPENDENT: f64 = 0.5;
/// Durations of a barrier that one takes among other operations: the last of them are under way before it, the first behind it.
const BARRIER: f64 = 2.0;

/// The work of a workgroup in a step, or beside its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Operations of an invocation; a multiply-add is one.
    pub operations: f64,
    /// Elements of 32 bits that an invocation reads from workgroup memory.
    pub shared: f64,
    /// Elements that an invocation loads from buffers.
    pub loaded: f64,
    /// Multiply-adds of matrix units.
    pub matrix: f64,
    /// Barriers.
    pub barriers: f64,
    /// Latencies of memory that follow each other.
    pub waits: f64,
}

/// The counts of a dispatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stepped {
    /// Workgroups.
    pub workgroups: f64,
    /// Invocations of a workgroup.
    pub threads: f64,
    /// Registers of an invocation.
    pub registers: f64,
    /// Bytes of workgroup memory.
    pub bytes: f64,
    /// Steps of a workgroup on average.
    pub steps: f64,
    /// Steps of the workgroup that has the most.
    pub longest: f64,
    /// The work of a step.
    pub step: Stage,
    /// The work before the first step and after the last.
    pub ends: Stage,
    /// Bytes that are read from memory.
    pub memory: f64,
}

impl Stepped {
    /// The estimated time in [cycles](crate::device::Speeds::cycle).
    ///
    /// A core is busy with the operations of all its workgroups, and each workgroup has a time of its own, by latencies, which those
    /// that are resident together share. Neither hides the other completely where they are alike: the root of the sum of their
    /// squares, and of memory's, counts.
    pub fn cycles(&self, device: &DeviceProfile) -> f64 {
        let speeds = &device.speeds;
        let threads = self.threads;
        // For speeds of no device these are the cycles of that whose latencies they have.
        let cycles_of = |seconds: f64| seconds / speeds.dispatch_cost * speeds.dispatch_cycles();
        let latency = DEPENDENT * cycles_of(speeds.operation);
        // The operations of a core are limited by its arithmetic and by the invocations that it has at once.
        let operation = (1.0 / 128.0_f64).max(latency * speeds.cores / speeds.resident);
        let busy = |w: &Stage| {
            let reads = match speeds.element_cycles() {
                Some(cycles) => (w.shared + w.loaded) * cycles * threads / 128.0,
                None => w.shared / ELEMENTS * threads,
            };
            let matrix = w.matrix * speeds.flops_f32 / speeds.flops_matrix / 128.0;
            w.operations * threads * operation + reads + matrix + w.barriers * speeds.barrier_cycles(threads)
        };
        let alone = |w: &Stage| {
            w.operations * latency
                + w.barriers * BARRIER * cycles_of(speeds.barrier)
                + w.waits * speeds.memory_latency
        };
        let of = |time: &dyn Fn(&Stage) -> f64, steps: f64| steps * time(&self.step) + time(&self.ends);
        let resident = device
            .resident_by_registers(threads, self.registers)
            .min(device.resident_by_bytes(Kind::Matrices, self.bytes.max(1.0)))
            .floor()
            .max(1.0);
        // Workgroups of as many steps run in rounds; where some have fewer, cores that are done with these take others. The number of
        // cores is as in `Speeds::per_core`.
        let (per_core, rounds) = if self.longest > self.steps {
            let per_core = (self.workgroups / (1.05 * speeds.cores)).max(1.0);
            (per_core, (per_core / resident).max(1.0))
        } else {
            let per_core = speeds.per_core(self.workgroups);
            (per_core, (per_core / resident).ceil())
        };
        let busy = (per_core * of(&busy, self.steps)).max(of(&busy, self.longest));
        let alone = (rounds * of(&alone, self.steps)).max(of(&alone, self.longest));
        let memory = self.memory / speeds.bytes_per_cycle();
        (busy * busy + alone * alone + memory * memory).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Speeds;

    fn device(name: &str) -> DeviceProfile {
        DeviceProfile::named(name).unwrap()
    }

    /// A dispatch that keeps every core of an H100 busy with two rounds of workgroups.
    fn dispatch() -> Stepped {
        let step =
            Stage { operations: 700.0, shared: 300.0, loaded: 40.0, matrix: 1e5, barriers: 4.0, waits: 1.0 };
        let ends = Stage { operations: 90.0, waits: 2.0, ..Stage::default() };
        Stepped {
            workgroups: 900.0,
            threads: 128.0,
            registers: 120.0,
            bytes: 16_384.0,
            steps: 9.0,
            longest: 9.0,
            step,
            ends,
            memory: 1e6,
        }
    }

    #[test]
    fn the_time_grows_with_every_count() {
        for device in DeviceProfile::NAMES.map(device) {
            let more: [fn(&mut Stepped); 10] = [
                |l| l.workgroups *= 3.0,
                |l| l.registers *= 3.0,
                |l| l.bytes *= 3.0,
                |l| (l.steps, l.longest) = (3.0 * l.steps, 3.0 * l.longest),
                |l| l.memory *= 30.0,
                |l| l.step.operations *= 3.0,
                |l| l.step.shared *= 3.0,
                |l| l.step.barriers *= 3.0,
                |l| l.step.waits *= 3.0,
                |l| l.ends.operations *= 3.0,
            ];
            let least = dispatch().cycles(&device);
            for (i, more) in more.iter().enumerate() {
                let mut l = dispatch();
                more(&mut l);
                let time = l.cycles(&device);
                assert!(time >= least && time.is_finite(), "{i}: {time} {least}");
                assert!(time > least || [1, 2].contains(&i), "{i}: {time}");
            }
        }
    }

    #[test]
    fn no_part_takes_longer_than_all() {
        let device = device("discrete");
        let all = dispatch();
        let step = |step: Stage| Stepped { step, ends: Stage::default(), memory: 0.0, ..all };
        let parts = [
            step(Stage { operations: all.step.operations, ..Stage::default() }),
            step(Stage { shared: all.step.shared, ..Stage::default() }),
            step(Stage { matrix: all.step.matrix, ..Stage::default() }),
            step(Stage { waits: all.step.waits, ..Stage::default() }),
            Stepped { memory: all.memory, ..step(Stage::default()) },
        ];
        let parts = parts.map(|l| l.cycles(&device));
        let whole = all.cycles(&device);
        assert!(
            parts.iter().all(|part| *part > 0.0 && *part < whole) && whole < parts.iter().sum(),
            "{parts:?} {whole}"
        );
    }

    #[test]
    fn cores_do_their_arithmetic_at_its_rate_and_in_rounds() {
        let device = device("discrete");
        let Speeds { cores, .. } = device.speeds;
        // 128 operations of 2048 invocations a core are 16 cycles each; latencies are hidden.
        let step = Stage { operations: 12_800.0, ..Stage::default() };
        let l =
            Stepped { threads: 256.0, registers: 32.0, steps: 1.0, longest: 1.0, step, ..Stepped::default() };
        let time = |workgroups: f64| Stepped { workgroups, ..l }.cycles(&device);
        let full = time(8.0 * cores) / (8.0 * 12_800.0 * 256.0 / 128.0);
        assert!((1.0..1.1).contains(&full), "{full}");
        // The last round takes as long with one workgroup a core as with a single one.
        assert_eq!(time(1.0), time(cores));
        assert!(time(1.06 * cores) > time(cores));
        // Workgroups of different lengths have no rounds, but the longest takes its time.
        let uneven = |workgroups: f64| Stepped { longest: 4.0, workgroups, ..l }.cycles(&device);
        assert_eq!(uneven(1.0), uneven(2.0 * cores));
        assert!(uneven(1.0) > time(cores) && uneven(64.0 * cores) > uneven(2.0 * cores));
    }

    #[test]
    fn latencies_of_the_portable_speeds_are_those_of_an_h100() {
        let waits = Stepped {
            step: Stage { waits: 3.0, barriers: 5.0, ..Stage::default() },
            memory: 0.0,
            ..dispatch()
        };
        let [a, b] = ["portable", "discrete"].map(|name| waits.cycles(&device(name)));
        assert!((a / b - 1.0).abs() < 0.1, "{a} {b}");
    }

    #[test]
    fn barriers_count_by_the_device() {
        let share = |name: &str| {
            let device = device(name);
            let step = |barriers: f64| Stage { operations: 1000.0, barriers, ..Stage::default() };
            let l =
                |barriers: f64| Stepped { step: step(barriers), memory: 0.0, ..dispatch() }.cycles(&device);
            l(4.0) / l(0.0)
        };
        assert!(share("swiftshader") > share("discrete"), "{} {}", share("swiftshader"), share("discrete"));
    }
}
