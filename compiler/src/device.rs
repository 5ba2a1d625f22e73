//! The model of a device: its limits, which decide whether something can run on it, and its speeds, on which choices
//! depend.
//!
//! This is the only model of a device: fusion, schedules, loops, the bounds that `wgfc inspect` prints and the order
//! in which the tuner tries candidates depend on it. Its speeds come from a [named](DeviceProfile::named) profile,
//! from a [`file`](mod@file), or from measurements on an adapter.

pub mod file;
pub mod occupancy;

use serde::{Deserialize, Serialize};
use wgfc_ir::DeviceLimits;

/// The limits and speeds of the target device. The default is the [named](DeviceProfile::named) profile `portable`.
///
/// ```
/// use wgfc_compiler::DeviceProfile;
/// let profile = DeviceProfile { f16: true, subgroup: Some(32), ..DeviceProfile::default() };
/// let text = profile.to_json(Some("my GPU"))?;
/// assert_eq!(DeviceProfile::from_json(text.as_bytes())?, profile);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// The maximum number of storage buffers that one kernel binds.
    pub max_storage_buffers: u32,
    /// The maximum number of invocations of a workgroup.
    pub max_invocations: u32,
    /// The maximum number of bytes of workgroup memory.
    pub max_workgroup_bytes: u32,
    /// The maximum number of bytes of one binding.
    pub max_binding_bytes: u64,
    /// The maximum number of workgroups along one dimension of a dispatch.
    pub max_workgroups: u32,
    /// The required alignment of a binding's offset, in bytes.
    pub storage_alignment: u32,
    /// Whether kernels may use `f16` (`shader-f16`); otherwise they convert packed f16 tensors explicitly.
    pub f16: bool,
    /// The number of invocations of every subgroup (`subgroups`), a power of two; `None` if there are no subgroups or
    /// their sizes differ.
    #[serde(default)]
    pub subgroup: Option<u32>,
    /// Whether subgroups can multiply 16 × 16 matrices of f16 with accumulation in f32 (`wgpu-cooperative-matrix`, not
    /// in browsers).
    #[serde(default)]
    pub cooperative_matrix: bool,
    /// Whether they can with Chrome's extension (`chromium-experimental-subgroup-matrix`). Kernels use wgpu's if there are
    /// both.
    #[serde(default)]
    pub subgroup_matrix: bool,
    /// The number of iterations after which the driver ends a loop in a kernel, if it does.
    #[serde(default)]
    pub loop_iterations: Option<u32>,
    /// The maximum estimated duration of a dispatch of a loop in seconds; longer loops continue in another dispatch.
    /// Some drivers abort dispatches of more than two seconds, and browsers freeze meanwhile.
    #[serde(default = "DeviceProfile::longest_dispatch")]
    pub longest_dispatch: f64,
    /// The number of bytes of workgroup memory that the workgroups which are resident on a core share.
    #[serde(default = "occupancy::workgroup_bytes")]
    pub core_workgroup_bytes: u32,
    /// The number of registers of 32 bits that the invocations which are resident on a core share.
    #[serde(default = "occupancy::registers")]
    pub core_registers: u32,
    /// The maximum number of registers of an invocation.
    #[serde(default = "occupancy::registers_of_invocation")]
    pub invocation_registers: u32,
    /// Its speeds.
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
            subgroup_matrix: false,
            loop_iterations: None,
            longest_dispatch: DeviceProfile::longest_dispatch(),
            core_workgroup_bytes: occupancy::workgroup_bytes(),
            core_registers: occupancy::registers(),
            invocation_registers: occupancy::registers_of_invocation(),
            speeds: Speeds::PORTABLE,
        }
    }
}

impl DeviceProfile {
    fn longest_dispatch() -> f64 {
        2.0
    }

    /// This profile with the limits and features of a device in place of its own.
    ///
    /// ```
    /// use wgfc_compiler::DeviceProfile;
    /// use wgfc_ir::DeviceLimits;
    /// let limits = DeviceLimits { f16: true, ..DeviceLimits::UNLIMITED };
    /// assert!(DeviceProfile::default().with_limits(&limits).f16);
    /// ```
    pub fn with_limits(&self, limits: &DeviceLimits) -> DeviceProfile {
        DeviceProfile {
            max_storage_buffers: limits.storage_buffers,
            max_invocations: limits.invocations,
            max_workgroup_bytes: limits.workgroup_bytes,
            max_binding_bytes: limits.binding_bytes,
            max_workgroups: limits.workgroups,
            f16: limits.f16,
            cooperative_matrix: limits.cooperative_matrix,
            subgroup_matrix: false,
            loop_iterations: limits.loop_iterations,
            subgroup: limits.subgroup.filter(|(least, most)| least == most).map(|s| s.0),
            ..self.clone()
        }
    }

    /// Whether kernels may multiply matrices of f16 on matrix units, with either extension.
    ///
    /// ```
    /// use wgfc_compiler::DeviceProfile;
    /// let chrome = DeviceProfile { f16: true, subgroup_matrix: true, ..DeviceProfile::default() };
    /// assert!(chrome.has_matrix_units() && !DeviceProfile::default().has_matrix_units());
    /// ```
    pub fn has_matrix_units(&self) -> bool {
        self.f16 && (self.cooperative_matrix || self.subgroup_matrix)
    }

    /// The maximum number of invocations of a workgroup that runs a lane of a loop: if there are more than a core
    /// executes concurrently, they take turns at every barrier, and a software adapter saves and restores the state of
    /// each.
    pub fn loop_invocations(&self) -> u32 {
        let together = (self.speeds.resident / self.speeds.cores).clamp(64.0, f64::from(1u32 << 31)) as u32;
        self.max_invocations.min(1 << together.ilog2())
    }

    /// Whether its limits are those that every WebGPU device has, so that compiled programs may run on any device.
    pub fn is_of_any_device(&self) -> bool {
        let own = DeviceProfile {
            speeds: self.speeds,
            longest_dispatch: self.longest_dispatch,
            core_workgroup_bytes: self.core_workgroup_bytes,
            core_registers: self.core_registers,
            invocation_registers: self.invocation_registers,
            ..DeviceProfile::default()
        };
        *self == own
    }

    /// The names that [`DeviceProfile::named`] accepts.
    pub const NAMES: [&'static str; 5] = ["portable", "discrete", "integrated", "software", "swiftshader"];

    /// A profile with the limits that every WebGPU device has and the speeds of a kind of device.
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

    /// The kind of adapter that the profile of a name is for: `discrete`, `integrated` or `software`. `None` for `portable`,
    /// which is for any, and for other names.
    ///
    /// ```
    /// use wgfc_compiler::DeviceProfile;
    /// assert_eq!(DeviceProfile::adapter("swiftshader"), Some("software"));
    /// assert_eq!(DeviceProfile::adapter("portable"), None);
    /// ```
    pub fn adapter(name: &str) -> Option<&'static str> {
        match name {
            "discrete" => Some("discrete"),
            "integrated" => Some("integrated"),
            "software" | "swiftshader" => Some("software"),
            _ => None,
        }
    }
}

/// The speeds of a device. The constants of this type state the source of each figure; `wgfc device --measure`
/// documents how it is measured.
///
/// ```
/// use wgfc_compiler::device::Speeds;
/// let [fast, slow] = [Speeds::DISCRETE, Speeds::SOFTWARE];
/// assert_ne!(fast, slow);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// The bytes per second that a streaming kernel reads and writes.
    pub bandwidth: f64,
    /// The floating-point operations per second in f32; a multiply-add counts as two.
    pub flops_f32: f64,
    /// The floating-point operations per second in f16. Kernels without matrix units compute f16 in f32, so no choice
    /// depends on it.
    pub flops_f16: f64,
    /// The floating-point operations per second in f16 on matrix units with accumulation in f32; without such units,
    /// those in f16.
    pub flops_matrix: f64,
    /// The cost in seconds of one more tiny dispatch in a pass, which depends on the previous one.
    pub dispatch_cost: f64,
    /// The number of cores, which execute workgroups independently. A core is a unit that one workgroup of 256
    /// invocations can keep busy.
    pub cores: f64,
    /// The number of invocations that are resident at the same time.
    pub resident: f64,
    /// The [cycles](Speeds::cycle) from a memory request until the data is visible to all in workgroup memory.
    pub memory_latency: f64,
    /// The latency in seconds of an operation that depends on the previous one.
    pub operation: f64,
    /// The duration in seconds of a barrier in a workgroup.
    pub barrier: f64,
    /// The bytes per second that one workgroup reads from a cache.
    pub workgroup_bandwidth: f64,
    /// The bytes per second that all workgroups together read from the caches of their cores. See also
    /// [`Speeds::shared_cache`].
    pub cache_bandwidth: f64,
    /// The number of workgroups that are guaranteed to run concurrently, so that they can wait for each other; 1 if
    /// unknown.
    pub resident_workgroups: f64,
    /// The seconds until all such workgroups have received data from each other.
    pub exchange: f64,
}

impl Speeds {
    /// An H100, used through wgpu and Vulkan.
    pub const DISCRETE: Speeds = Speeds {
        // Measured: a copy in WGSL moves 2.69 to 2.86 TB/s.
        bandwidth: 2.8e12,
        // 128 of its 132 cores, each with 128 multiply-adds per cycle of 1.75 GHz. cuBLAS reaches 52 TFLOP/s.
        flops_f32: 57.344e12,
        // Twice the f32 rate, by the vendor's figures.
        flops_f16: 114.688e12,
        // Fitted to products timed on it: 1000 multiply-adds per cycle and core, with operands from workgroup memory.
        flops_matrix: 448e12,
        // Measured: 1000 dispatches in one pass.
        dispatch_cost: 4e-6,
        // It has 132; a power of two leads to the same choices.
        cores: 128.0,
        // 2048 per core.
        resident: 262_144.0,
        // Fitted to tiled products timed on it.
        memory_latency: 600.0,
        // Fitted to loops timed on it: of single invocations, of workgroups with many stages, and of workgroups that
        // read much.
        operation: 1.5e-9,
        barrier: 40e-9,
        workgroup_bandwidth: 60e9,
        // Measured: 130 bytes per cycle and core.
        cache_bandwidth: 30e12,
        // Other discrete GPUs have fewer.
        resident_workgroups: 1.0,
        // Measured: a barrier across 32 to 132 workgroups by way of atomics.
        exchange: 1.5e-6,
    };

    /// Not a device: the ratios of [`Speeds::DISCRETE`], scaled to the memory bandwidth of a small GPU. Choices that
    /// compare arithmetic with traffic are then those of a GPU, and loops that move much data do not count as cheap.
    pub const PORTABLE: Speeds = Speeds {
        bandwidth: 100e9,
        flops_f32: 2.048e12,
        flops_f16: 4.096e12,
        flops_matrix: 16e12,
        cache_bandwidth: 1.07e12,
        ..Speeds::DISCRETE
    };

    /// A GPU that shares its memory with the CPU. Not measured: derived from the published figures of such GPUs, with
    /// two channels of LPDDR5 and 8 cores of 128 multiply-adds at 1.2 GHz.
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
        // 64 bytes per cycle and core.
        cache_bandwidth: 600e9,
        resident_workgroups: 1.0,
        exchange: 3e-6,
    };

    /// A software adapter like Mesa's: measured by `wgfc device --measure` on llvmpipe (Mesa 22.3, LLVM 15) with two
    /// hardware threads of one core of an EPYC, the best of six runs.
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
        // The time of an operation of a workgroup of 64 invocations, which are computed eight at a time.
        operation: 9e-9,
        barrier: 1.6e-6,
        workgroup_bandwidth: 6.1e9,
        cache_bandwidth: 6.2e9,
        // The operating system decides which of them run.
        resident_workgroups: 1.0,
        exchange: 5e-6,
    };

    /// SwiftShader, the software adapter of Chromium, measured in the same way on the same cores. Waiting invocations
    /// are switched four at a time, so barriers are expensive.
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

    /// The cost of a dispatch with work, relative to a tiny dispatch: it also ramps up and drains. On an H100 it costs
    /// 10 µs, a tiny dispatch 4 µs.
    const RAMP: f64 = 2.5;

    /// The cost in seconds of one more kernel, in addition to its work.
    pub fn dispatch(&self) -> f64 {
        Self::RAMP * self.dispatch_cost
    }

    /// The cost of one more tiny dispatch in [cycles](Speeds::cycle).
    pub fn dispatch_cycles(&self) -> f64 {
        self.dispatch_cost / self.clock()
    }

    /// The seconds of a [cycle](Speeds::cycle), for speeds that are times. No device combines the cores and the rate of
    /// [`Speeds::PORTABLE`]: for it, the cycles are those of [`Speeds::DISCRETE`], from which its ratios come.
    fn clock(&self) -> f64 {
        if self.are_of_no_device() { Speeds::DISCRETE.cycle() } else { self.cycle() }
    }

    /// Whether they are [`Speeds::PORTABLE`], at any cost of a dispatch.
    pub(crate) fn are_of_no_device(&self) -> bool {
        Speeds { dispatch_cost: self.dispatch_cost, ..Speeds::PORTABLE } == *self
    }

    /// The seconds in which a core executes 128 multiply-adds in f32. Cost models in cycles count these, whatever the
    /// clock rate.
    pub fn cycle(&self) -> f64 {
        256.0 * self.cores / self.flops_f32
    }

    /// The [cycles](Speeds::cycle) of a load of 128 invocations, of up to 16 bytes each, on a device where loads count rather than bytes:
    /// a fit to products timed on an H100.
    pub const LOAD_CYCLES: f64 = 4.0;

    /// The number of invocations of the workgroup whose barrier and reads a profile contains.
    const MEASURED: f64 = 256.0;

    /// The [cycles](Speeds::cycle) of a core in which 128 invocations read an element of 32 bits each, if the device reads so little at a
    /// time that bytes count rather than [loads](Speeds::LOAD_CYCLES).
    pub fn element_cycles(&self) -> Option<f64> {
        let others = (self.resident / self.cores / Self::MEASURED).max(1.0);
        let cycles = 512.0 / (self.workgroup_bandwidth * others * self.cycle());
        (cycles > Self::LOAD_CYCLES).then_some(cycles)
    }

    /// The number of invocations that a core holds.
    pub fn held(&self) -> f64 {
        self.resident / self.cores
    }

    /// Whether a core holds more invocations than one workgroup that keeps it busy, so that some use one of its units while others use
    /// another.
    pub fn overlaps(&self) -> bool {
        self.held() > Self::MEASURED
    }

    /// The bytes per second that all workgroups together read from the cache that cores share, behind their own ones. Nothing measures it:
    /// it is four times the memory bandwidth, a fit to times on an H100, but no more than what they read from their own caches. A device
    /// whose cores do not [overlap](Speeds::overlaps) has the speed that was measured for all of its caches.
    pub fn shared_cache(&self) -> f64 {
        if self.overlaps() { self.cache_bandwidth.min(4.0 * self.bandwidth) } else { self.cache_bandwidth }
    }

    /// The [cycles](Speeds::cycle) of a barrier of a workgroup with this many invocations that is alone on its core.
    pub fn barrier_alone(&self, threads: f64) -> f64 {
        self.barrier * threads.max(self.held().min(Self::MEASURED)) / Self::MEASURED / self.clock()
    }

    /// The [cycles](Speeds::cycle) of a core that a barrier of a workgroup with this many invocations takes: while a workgroup waits, the
    /// others on the core continue.
    pub fn barrier_cycles(&self, threads: f64) -> f64 {
        self.barrier * threads / self.held().max(Self::MEASURED) / self.clock()
    }

    /// The mean number of workgroups per core if this many are distributed. The number of cores is taken to be 3 % larger than
    /// measured, as 128 are measured of an H100's 132: an estimate of one core too few would count one round of workgroups too
    /// many.
    pub fn mean_per_core(&self, workgroups: f64) -> f64 {
        workgroups / (1.03 * self.cores)
    }

    /// The maximum number of workgroups per core if this many are distributed.
    pub fn per_core(&self, workgroups: f64) -> f64 {
        self.mean_per_core(workgroups).ceil()
    }

    /// The [cycles](Speeds::cycle) from an operation to another one that depends on it.
    pub fn operation_cycles(&self) -> f64 {
        self.operation / self.clock()
    }

    /// The bytes that all cores together read from memory per [cycle](Speeds::cycle).
    pub fn bytes_per_cycle(&self) -> f64 {
        self.bandwidth * 256.0 * self.cores / self.flops_f32
    }

    /// The bytes that even a single workgroup reads in an eighth of the time of a [dispatch](Speeds::dispatch),
    /// rounded down to a power of two: an operand of at most this size is read sooner than another kernel could have
    /// written it. The eighth is fitted to 64 KiB on an H100.
    pub fn little_bytes(&self) -> i64 {
        let bytes = self.workgroup_bandwidth.min(self.bandwidth) * self.dispatch() / 8.0;
        1 << (bytes.clamp(1.0, (1u64 << 40) as f64) as u64).ilog2()
    }

    /// The number of scalar operations in the time that it takes to write an element of 32 bits and to read it again.
    /// The assumption that a fifth of the peak rate is reached is fitted to 16 operations on an H100. The result is
    /// limited to 4..=32.
    pub fn pass_operations(&self) -> i64 {
        (self.flops_f32 / 2.0 * (8.0 / self.bandwidth) / 5.0).clamp(4.0, 32.0) as i64
    }

    /// The number of dependent operations that fit in a dispatch of this many seconds, rounded down to a power of two.
    pub fn longest_chain(&self, seconds: f64) -> u32 {
        1 << ((seconds / self.operation).clamp(1.0, f64::from(1u32 << 31)) as u32).ilog2()
    }

    /// The number of resident invocations divided by `part`, at least 1.
    pub fn share_of_resident(&self, part: f64) -> i64 {
        (self.resident / part).clamp(1.0, (1u64 << 40) as f64) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thresholds fitted on an H100 follow from its figures.
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
        // They are in range whatever speeds a file contains.
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
