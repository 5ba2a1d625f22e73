//! The facts known of a device: its limits, which decide whether something can run on it, and its speeds, which decide the choices.
//!
//! This is the only model of a device: fusion, schedules, loops, the bounds that `wgfc inspect` prints and the order in
//! which the tuner tries things follow from it. Its speeds are those of a [named](DeviceProfile::named) profile, of a
//! [`file`](mod@file), or measured on an adapter.

pub mod file;

use serde::{Deserialize, Serialize};

/// The limits and speeds that the target device offers. The default is [named](DeviceProfile::named) `portable`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Storage buffers one kernel may bind.
    pub max_storage_buffers: u32,
    /// Invocations of a workgroup.
    pub max_invocations: u32,
    /// Bytes of workgroup memory.
    pub max_workgroup_bytes: u32,
    /// Bytes one binding may have.
    pub max_binding_bytes: u64,
    /// Workgroups along one dimension of a dispatch.
    pub max_workgroups: u32,
    /// Alignment of a binding's offset, in bytes.
    pub storage_alignment: u32,
    /// Whether kernels may use `f16` (`shader-f16`); without it f16 tensors are unpacked by hand.
    pub f16: bool,
    /// Invocations of every subgroup (`subgroups`), a power of two; `None` where there are none or they differ.
    #[serde(default)]
    pub subgroup: Option<u32>,
    /// Whether subgroups multiply matrices of 16 × 16 f16 into f32 (`wgpu-cooperative-matrix`, not in browsers).
    #[serde(default)]
    pub cooperative_matrix: bool,
    /// Iterations of a loop in a kernel, where the driver ends it after so many.
    #[serde(default)]
    pub loop_iterations: Option<u32>,
    /// Seconds that a dispatch of a loop may take, as far as that can be estimated, after which it continues in another one.
    /// Some drivers end dispatches of more than two seconds, and browsers stand still meanwhile.
    #[serde(default = "DeviceProfile::longest_dispatch")]
    pub longest_dispatch: f64,
    /// How fast it is.
    pub speeds: Speeds,
}

impl Default for DeviceProfile {
    fn default() -> DeviceProfile {
        DeviceProfile {
            max_storage_buffers: 8,
            max_invocations: 256,
            max_workgroup_bytes: 16384,
            max_binding_bytes: 128 << 20,
            max_workgroups: 65535,
            storage_alignment: 256,
            f16: false,
            subgroup: None,
            cooperative_matrix: false,
            loop_iterations: None,
            longest_dispatch: DeviceProfile::longest_dispatch(),
            speeds: Speeds::PORTABLE,
        }
    }
}

impl DeviceProfile {
    fn longest_dispatch() -> f64 {
        2.0
    }

    /// Invocations of a workgroup that runs a lane of a loop, at most: with more than a core has under way together they take turns at
    /// every barrier. A software adapter saves and restores then what each of them keeps.
    pub fn loop_invocations(&self) -> u32 {
        let together = (self.speeds.resident / self.speeds.cores).clamp(64.0, f64::from(1u32 << 31)) as u32;
        self.max_invocations.min(1 << together.ilog2())
    }

    /// Whether its limits are those that every device has, so that it is not known which device takes what is compiled.
    pub fn is_of_any_device(&self) -> bool {
        let own = DeviceProfile {
            speeds: self.speeds,
            longest_dispatch: self.longest_dispatch,
            ..DeviceProfile::default()
        };
        *self == own
    }

    /// The names of the profiles that [`DeviceProfile::named`] knows.
    pub const NAMES: [&'static str; 5] = ["portable", "discrete", "integrated", "software", "swiftshader"];

    /// The limits that every WebGPU device has, with the speeds of a kind of devices.
    pub fn named(name: &str) -> Option<DeviceProfile> {
        let speeds = match name {
            "portable" => Speeds::PORTABLE,
            "discrete" => Speeds::DISCRETE,
            "integrated" => Speeds::INTEGRATED,
            "software" => Speeds::SOFTWARE,
            "swiftshader" => Speeds::SWIFTSHADER,
            _ => return None,
        };
        Some(DeviceProfile { speeds, ..DeviceProfile::default() })
    }
}

/// How fast a device is. Where a figure comes from stands with the constants of this type; `wgfc device --measure` says
/// how it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// Bytes a second that a streaming kernel reads and writes.
    pub bandwidth: f64,
    /// Floating-point operations a second in f32; a multiplication with an addition is two.
    pub flops_f32: f64,
    /// Flops in f16. Kernels compute f16 in f32 where they do not use matrix units, so that no choice follows from it.
    pub flops_f16: f64,
    /// Flops in f16 on matrix units, which sum in f32; without such units, as in f16.
    pub flops_matrix: f64,
    /// Seconds that one more tiny dispatch in a pass costs, which waits for the one before it.
    pub dispatch_cost: f64,
    /// Cores, each of which runs workgroups of its own. A core is what one workgroup of 256 invocations can keep busy.
    pub cores: f64,
    /// Invocations that are under way together.
    pub resident: f64,
    /// [Cycles](Speeds::cycle) from asking for memory until it is in workgroup memory and everybody knows.
    pub memory_latency: f64,
    /// Seconds that an operation takes which waits for the one before it.
    pub operation: f64,
    /// Seconds that the invocations of a workgroup wait for each other at a barrier.
    pub barrier: f64,
    /// Bytes a second that one workgroup reads from a cache.
    pub workgroup_bandwidth: f64,
    /// Bytes a second that all workgroups together read from caches.
    pub cache_bandwidth: f64,
    /// Workgroups that run together whatever they do, so that they can wait for each other; 1 where that is not known.
    pub resident_workgroups: f64,
    /// Seconds until all of such workgroups have what each of them hands on.
    pub exchange: f64,
}

impl Speeds {
    /// An H100, as wgpu reaches it through Vulkan.
    pub const DISCRETE: Speeds = Speeds {
        // Measured: a copy in WGSL moves 2.69 to 2.86 TB/s.
        bandwidth: 2.8e12,
        // 128 of its 132 cores, each 128 multiply-adds in a cycle of 1.75 GHz. cuBLAS reaches 52 TFLOP/s.
        flops_f32: 57.344e12,
        // Twice that, by the vendor's figures.
        flops_f16: 114.688e12,
        // A fit to products timed on it: 1000 multiply-adds a cycle and core, fed from workgroup memory.
        flops_matrix: 448e12,
        // Measured: 1000 dispatches in one pass.
        dispatch_cost: 4e-6,
        // It has 132; a power of two makes the same choices.
        cores: 128.0,
        // 2048 a core.
        resident: 262_144.0,
        // A fit to tiled products timed on it.
        memory_latency: 600.0,
        // Fits to loops timed on it, of an invocation, of workgroups with many stages, and of workgroups that read much.
        operation: 1.5e-9,
        barrier: 40e-9,
        workgroup_bandwidth: 60e9,
        // A fit: four times its memory.
        cache_bandwidth: 11.2e12,
        // Other discrete GPUs have fewer.
        resident_workgroups: 1.0,
        // Measured: a barrier across 32 to 132 workgroups by way of atomics.
        exchange: 1.5e-6,
    };

    /// No device: the balance of [`Speeds::DISCRETE`], scaled to the memory of a small GPU. Choices that compare
    /// arithmetic with traffic are those of a GPU then, and loops that move much are not taken for cheap.
    pub const PORTABLE: Speeds = Speeds {
        bandwidth: 100e9,
        flops_f32: 2.048e12,
        flops_f16: 4.096e12,
        flops_matrix: 16e12,
        cache_bandwidth: 400e9,
        ..Speeds::DISCRETE
    };

    /// A GPU that shares its memory with the CPU. Not measured: from the published figures of such GPUs, two channels
    /// of LPDDR5 and 8 cores of 128 multiply-adds at 1.2 GHz.
    pub const INTEGRATED: Speeds = Speeds {
        bandwidth: 70e9,
        flops_f32: 2.4e12,
        flops_f16: 4.8e12,
        flops_matrix: 4.8e12,
        dispatch_cost: 8e-6,
        cores: 8.0,
        resident: 16_384.0,
        memory_latency: 400.0,
        operation: 3e-9,
        barrier: 80e-9,
        workgroup_bandwidth: 30e9,
        cache_bandwidth: 280e9,
        resident_workgroups: 1.0,
        exchange: 3e-6,
    };

    /// A software adapter of Mesa's kind: measured by `wgfc device --measure` on llvmpipe (Mesa 22.3, LLVM 15) with two hardware threads
    /// of one core of an EPYC, the best of six times.
    pub const SOFTWARE: Speeds = Speeds {
        bandwidth: 1.1e9,
        flops_f32: 66e9,
        // Each operation converts to f32 and back.
        flops_f16: 13e9,
        flops_matrix: 13e9,
        dispatch_cost: 17e-6,
        // The second hardware thread adds no arithmetic.
        cores: 1.0,
        resident: 64.0,
        memory_latency: 30.0,
        // The time of an operation of a workgroup of 64, whose invocations are computed eight at a time.
        operation: 9e-9,
        barrier: 1.6e-6,
        workgroup_bandwidth: 6.1e9,
        cache_bandwidth: 6.2e9,
        // Which of them run is up to the system.
        resident_workgroups: 1.0,
        exchange: 5e-6,
    };

    /// SwiftShader, the software adapter of Chromium: measured likewise on the same cores. What waits for others changes places with
    /// them four invocations at a time, so that barriers are dear.
    pub const SWIFTSHADER: Speeds = Speeds {
        bandwidth: 2.1e9,
        flops_f32: 12.5e9,
        // It has no f16.
        flops_f16: 12.5e9,
        flops_matrix: 12.5e9,
        dispatch_cost: 17e-6,
        cores: 1.0,
        resident: 64.0,
        memory_latency: 17.0,
        operation: 21e-9,
        barrier: 10.3e-6,
        workgroup_bandwidth: 1.8e9,
        cache_bandwidth: 2.1e9,
        resident_workgroups: 1.0,
        exchange: 20e-6,
    };

    /// How much longer a dispatch takes that does something: beside its work it ramps up and drains. On an H100 that
    /// is 10 µs, where a tiny dispatch costs 4 µs.
    const RAMP: f64 = 2.5;

    /// Seconds that one more kernel costs beside its work.
    pub fn dispatch(&self) -> f64 {
        Self::RAMP * self.dispatch_cost
    }

    /// [Cycles](Speeds::cycle) that one more tiny dispatch costs. No device has the cores of [`Speeds::PORTABLE`] and its rate: there they
    /// are cycles of [`Speeds::DISCRETE`], from which it has its balance.
    pub fn dispatch_cycles(&self) -> f64 {
        let of_no_device = Speeds { dispatch_cost: self.dispatch_cost, ..Speeds::PORTABLE } == *self;
        self.dispatch_cost / if of_no_device { Speeds::DISCRETE.cycle() } else { self.cycle() }
    }

    /// Seconds in which a core does 128 multiply-adds in f32. Models in cycles count these, whatever the clock is.
    pub fn cycle(&self) -> f64 {
        256.0 * self.cores / self.flops_f32
    }

    /// The most workgroups that a core gets where so many are shared out. A twentieth more cores are assumed than were measured: one core
    /// too few counts a round of workgroups too many.
    pub fn per_core(&self, workgroups: f64) -> f64 {
        (workgroups / (1.05 * self.cores)).ceil()
    }

    /// Bytes that all cores together read from memory in a [cycle](Speeds::cycle).
    pub fn bytes_per_cycle(&self) -> f64 {
        self.bandwidth * 256.0 * self.cores / self.flops_f32
    }

    /// Bytes that even a single workgroup reads in an eighth of the time of a [dispatch](Speeds::dispatch), rounded
    /// down to a power of two: what has no more is read sooner than another kernel could have written it. The eighth is
    /// a fit, to 64 KiB on an H100.
    pub fn little_bytes(&self) -> i64 {
        let bytes = self.workgroup_bandwidth.min(self.bandwidth) * self.dispatch() / 8.0;
        1 << (bytes.clamp(1.0, (1u64 << 40) as f64) as u64).ilog2()
    }

    /// Scalar operations in the time that it takes to write an element of 32 bits and to read it again. That a fifth
    /// of the peak is reached is a fit, to 16 operations on an H100. More than 32 are never worth their text, and up to
    /// 4 always.
    pub fn pass_operations(&self) -> i64 {
        (self.flops_f32 / 2.0 * (8.0 / self.bandwidth) / 5.0).clamp(4.0, 32.0) as i64
    }

    /// Operations one after another that a dispatch of so many seconds may take, rounded down to a power of two.
    pub fn longest_chain(&self, seconds: f64) -> u32 {
        1 << ((seconds / self.operation).clamp(1.0, f64::from(1u32 << 31)) as u32).ilog2()
    }

    /// This share of the invocations that are under way together, at least 1.
    pub fn share_of_resident(&self, part: f64) -> i64 {
        (self.resident / part).clamp(1.0, (1u64 << 40) as f64) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thresholds that were fitted on an H100 follow from its figures.
    #[test]
    fn thresholds_follow() {
        for s in [Speeds::DISCRETE, Speeds::PORTABLE] {
            assert!((s.dispatch() - 10e-6).abs() < 1e-12);
            assert_eq!((s.little_bytes(), s.pass_operations()), (64 << 10, 16));
            assert_eq!((s.bytes_per_cycle(), s.dispatch_cycles()), (1600.0, 7000.0));
            assert_eq!(s.longest_chain(2.0), 1 << 30);
            assert_eq!([1.0, 8.0, 128.0].map(|p| s.share_of_resident(p)), [1 << 18, 1 << 15, 2048]);
        }
        assert!((Speeds::DISCRETE.cycle() - 1.0 / 1.75e9).abs() < 1e-15);
        // Whatever a file says they are.
        for v in [1e-30, 1e30] {
            let s = Speeds {
                bandwidth: v,
                flops_f32: v,
                dispatch_cost: v,
                cores: v,
                resident: v,
                operation: v,
                ..Speeds::PORTABLE
            };
            assert!(s.little_bytes() > 0 && s.pass_operations() > 0 && s.share_of_resident(64.0) > 0);
            assert!(s.longest_chain(2.0) > 0);
        }
    }

    #[test]
    fn workgroups_of_loops_have_no_more_invocations_than_a_core_runs_together() {
        let of = |name: &str| {
            let profile = DeviceProfile { max_invocations: 1024, ..DeviceProfile::named(name).unwrap() };
            profile.loop_invocations()
        };
        assert_eq!(["portable", "discrete", "integrated"].map(of), [1024; 3]);
        assert_eq!(["software", "swiftshader"].map(of), [64; 2]);
    }
}
