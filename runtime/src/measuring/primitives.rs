//! Microbenchmarks of a device: arithmetic throughput, latencies, barriers, occupancy and cache bandwidth.
//!
//! Each kernel repeats an operation `n` times. The time of one repetition is the difference between the times of many and of few
//! repetitions, divided by the difference of their numbers, which cancels the overhead of submission and launch. Half as many
//! repetitions must lie on the same line, else more samples are taken. The whole measurement takes about a second on hardware and
//! a few seconds on a software adapter.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::kernel::{Checks, Pipeline, compile_all};
use crate::measure::{group, kernel};
use crate::measuring::slope::slope;
use crate::timestamps::{Timestamps, between};
use std::time::Instant;
use wgfc_program::program::{Access, Kernel};

/// The measurements. Times are in nanoseconds. See the example of [`primitives`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Primitives {
    /// Floating-point operations per second in f32; a multiply-add counts as two.
    pub flops_f32: f64,
    /// Floating-point operations per second in f16; `None` if kernels cannot use f16.
    pub flops_f16: Option<f64>,
    /// The ratio of the arithmetic throughput of many workgroups to that of one workgroup of 256 invocations.
    pub cores: f64,
    /// The largest number of workgroups of 256 invocations whose arithmetic takes about as long as that of one. It is about
    /// [`cores`](Primitives::cores), measured in another way.
    pub side_by_side: f64,
    /// The number of invocations whose memory latencies overlap fully.
    pub resident: f64,
    /// The latency of a load from memory, measured with loads whose addresses are the results of previous loads.
    pub latency_ns: f64,
    /// The latency of a multiply-add, measured with a chain of dependent ones.
    pub operation_ns: f64,
    /// The time of a workgroup barrier of 256 invocations.
    pub barrier_ns: f64,
    /// Bytes per second that one workgroup of 256 invocations reads from caches.
    pub workgroup_bytes_per_second: f64,
    /// Bytes per second that many such workgroups read from caches.
    pub cache_bytes_per_second: f64,
}

/// Dependent multiply-adds, eight per turn.
const CHAIN: &str = include_str!("kernels/chain.wgsl");

/// 16 independent chains of multiply-adds of type `T`.
const ARITHMETIC: &str = include_str!("kernels/arithmetic.wgsl");
/// Floating-point operations of an invocation of [`ARITHMETIC`] per turn.
const OPERATIONS: f64 = 64.0;

const BARRIER: &str = include_str!("kernels/barrier.wgsl");

/// Fills a buffer with a cycle through all of its positions, each far from the one before.
const FILL: &str = include_str!("kernels/fill.wgsl");

/// Pointer chasing: each load gives the position of the next. It begins at the position at which the previous run ended, which is
/// not in a cache yet.
const CHASE: &str = include_str!("kernels/chase.wgsl");

/// Reads 64 KiB per turn, cyclically from a buffer of 1 MiB.
const CACHED: &str = include_str!("kernels/cached.wgsl");

fn arithmetic_in(scalar: &str) -> String {
    ARITHMETIC.replace("T(", &format!("{scalar}("))
}

/// A clock for passes: the device's timestamps, or the host's clock.
struct Clock<'g> {
    gpu: &'g Gpu,
    timestamps: Option<Timestamps>,
}

impl Clock<'_> {
    /// The nanoseconds of `dispatches` dispatches in one pass, by the host's clock and by the device's.
    async fn both(&self, l: &Loop<'_>, workgroups: u32, dispatches: u32) -> Result<(f64, f64), RunError> {
        let start = Instant::now();
        self.gpu
            .scoped("measuring", || {
                let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
                let timestamp_writes = self.timestamps.as_ref().map(|t| t.around(0));
                let mut pass = encoder
                    .begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
                pass.set_pipeline(&l.pipeline.pipeline);
                pass.set_bind_group(0, &l.group, &[]);
                for _ in 0..dispatches {
                    pass.dispatch_workgroups(workgroups, 1, 1);
                }
                drop(pass);
                if let Some(t) = &self.timestamps {
                    t.resolve(&mut encoder);
                }
                self.gpu.queue().submit([encoder.finish()]);
            })
            .await?;
        self.gpu.wait().await?;
        let wall = start.elapsed().as_nanos() as f64;
        match &self.timestamps {
            Some(t) => Ok((wall, between(self.gpu, &t.read(self.gpu).await?))),
            None => Ok((wall, 0.0)),
        }
    }

    async fn ns(&self, l: &Loop<'_>, workgroups: u32, dispatches: u32) -> Result<f64, RunError> {
        let (wall, device) = self.both(l, workgroups, dispatches).await?;
        Ok(if self.timestamps.is_some() { device } else { wall })
    }
}

/// A kernel with its bind group and the buffer that holds the number of turns.
struct Loop<'g> {
    gpu: &'g Gpu,
    clock: &'g Clock<'g>,
    pipeline: &'g Pipeline,
    group: wgpu::BindGroup,
    turns: &'g wgpu::Buffer,
}

/// The largest number of turns, which is below every driver's limit on loop iterations.
const MOST: u32 = 1 << 15;
/// The largest number of dispatches that are timed together.
const MOST_DISPATCHES: u32 = 16;
/// The nanoseconds that the timed turns take, if these numbers of turns and dispatches suffice.
const LONG: f64 = 3e6;
/// The number of timed runs of each kernel and number of turns.
const RUNS: usize = 6;
/// The number of times that so many runs are made until they lie on a straight line.
const ATTEMPTS: usize = 4;
/// The seconds after which no more samples of one loop are taken.
const ENOUGH: f64 = 0.5;

impl<'g> Loop<'g> {
    async fn new(
        clock: &'g Clock<'g>,
        pipeline: &'g Pipeline,
        turns: &'g wgpu::Buffer,
        buffers: &[&wgpu::Buffer],
    ) -> Result<Loop<'g>, RunError> {
        let gpu = clock.gpu;
        let buffers: Vec<_> = [turns].into_iter().chain(buffers.iter().copied()).collect();
        let group = gpu.scoped("measuring", || group(gpu, pipeline, &buffers)).await?;
        Ok(Loop { gpu, clock, pipeline, group, turns })
    }

    /// The nanoseconds of `n` turns.
    async fn once(&self, n: u32, workgroups: u32, dispatches: u32) -> Result<f64, RunError> {
        self.gpu.queue().write_buffer(self.turns, 0, &n.to_le_bytes());
        self.clock.ns(self, workgroups, dispatches).await
    }

    /// Keeps the device busy until it is no longer becoming faster, as an idle device lowers its clock rate and takes some tenths of
    /// a second to raise it again. Returns whether the device's timestamps can be used: the time by them is within that by
    /// the host's clock.
    async fn warm_up(&self, workgroups: u32) -> Result<bool, RunError> {
        let begin = Instant::now();
        let mut trusted = self.clock.timestamps.is_some();
        let (n, _) = self.enough(workgroups).await?;
        self.gpu.queue().write_buffer(self.turns, 0, &n.to_le_bytes());
        let (mut steady, mut before) = (0, f64::INFINITY);
        while begin.elapsed().as_secs_f64() < 1.0 && steady < 8 {
            let mut least = f64::INFINITY;
            for _ in 0..4 {
                let (wall, device) = self.clock.both(self, workgroups, 1).await?;
                trusted &= device > 0.0 && device < 1.01 * wall;
                least = least.min(if device > 0.0 { device } else { wall });
            }
            steady = if least > 0.99 * before { steady + 1 } else { 0 };
            before = before.min(least);
        }
        tracing::debug!(ns = before, n, trusted, seconds = begin.elapsed().as_secs_f64(), "warm");
        Ok(trusted)
    }

    /// The number of turns that take long enough in one workgroup or several, and the number of dispatches.
    async fn enough(&self, workgroups: u32) -> Result<(u32, u32), RunError> {
        let mut n = 16;
        loop {
            // The first run may have to wait for the device, and a disturbed run seems long.
            let mut least = f64::INFINITY;
            for _ in 0..3 {
                least = least.min(self.once(n, workgroups, 1).await?);
            }
            if least >= LONG {
                return Ok((n, 1));
            }
            if n >= MOST / 2 {
                let dispatches = (LONG / least.max(1.0)).ceil().min(f64::from(MOST_DISPATCHES));
                return Ok((n, dispatches as u32));
            }
            n *= 4;
        }
    }

    /// The nanoseconds of one turn in `workgroups` workgroups.
    async fn turn(&self, what: &str, workgroups: u32) -> Result<f64, RunError> {
        let begin = Instant::now();
        let (n, dispatches) = self.enough(workgroups).await?;
        let turns = [n / 4, n / 2, n];
        let mut rounds = vec![];
        let mut each = 0.0;
        for attempt in 0..ATTEMPTS {
            for _ in 0..RUNS {
                if rounds.len() >= 2 && begin.elapsed().as_secs_f64() > ENOUGH {
                    break;
                }
                let mut round = [0.0; 3];
                for (ns, n) in round.iter_mut().zip(turns) {
                    *ns = self.once(n, workgroups, dispatches).await?;
                }
                rounds.push(round);
            }
            let counts = turns.map(|n| f64::from(n) * f64::from(dispatches));
            if let Some(s) = slope(counts, &rounds) {
                tracing::debug!(what, workgroups, ?counts, ?rounds, attempt, each = s.each, s.straight);
                each = s.each;
                if s.straight || begin.elapsed().as_secs_f64() > ENOUGH {
                    break;
                }
            }
        }
        Ok(each)
    }

    /// The largest number of workgroups, up to `most`, in which `n` turns take less than 1.5 times as long as in one.
    async fn as_fast_as_one(&self, n: u32, dispatches: u32, most: u32) -> Result<u32, RunError> {
        let fast = async |workgroups: u32| -> Result<bool, RunError> {
            let (mut one, mut several) = (f64::INFINITY, f64::INFINITY);
            for _ in 0..RUNS {
                one = one.min(self.once(n, 1, dispatches).await?);
                several = several.min(self.once(n, workgroups, dispatches).await?);
            }
            Ok(several < 1.5 * one)
        };
        let mut low = 1;
        while low < most && fast(low * 2).await? {
            low *= 2;
        }
        if low >= most {
            return Ok(low);
        }
        let mut high = low * 2;
        while high - low > (low / 16).max(1) {
            let middle = low + (high - low) / 2;
            if fast(middle).await? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

/// Measures the device.
///
/// # Errors
/// An error of the device.
///
/// ```no_run
/// use wgfc_runtime::{AdapterChoice, Gpu, primitives::primitives_blocking};
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// let gpu = Gpu::request_blocking(&AdapterChoice::Best)?;
/// let p = primitives_blocking(&gpu)?;
/// println!("{:.1} TFLOPS in f32, {:.0} ns to memory", p.flops_f32 / 1e12, p.latency_ns);
/// # Ok(()) }
/// ```
pub async fn primitives(gpu: &Gpu) -> Result<Primitives, RunError> {
    let software = gpu.summary().is_software;
    let limits = gpu.profile();
    let two = || vec![Access::Read, Access::ReadWrite];
    let three = || vec![Access::Read, Access::Read, Access::ReadWrite];
    let half = Kernel {
        features: vec!["shader-f16".into()],
        ..kernel("arithmetic in f16", &format!("enable f16;\n{}", arithmetic_in("f16")), 256, two())
    };
    let mut kernels = vec![
        kernel("chain", CHAIN, 64, two()),
        kernel("arithmetic", &arithmetic_in("f32"), 256, two()),
        kernel("barrier", BARRIER, 256, two()),
        kernel("fill", FILL, 256, two()),
        kernel("chase", CHASE, 64, three()),
        kernel("cached", CACHED, 256, three()),
    ];
    kernels.extend(limits.f16.then_some(half));
    // Trusted, as these kernels stay inside their buffers.
    let pipelines =
        compile_all(gpu, kernels.iter().map(|k| (k, false)), Checks::Trusted, [].into_iter()).await?;
    let [chain, arithmetic, barrier, fill, chase, cached, half @ ..] = pipelines.as_slice() else {
        let message = "a kernel is missing".to_owned();
        return Err(RunError::Gpu { what: "measuring".to_owned(), message });
    };
    let turns = gpu.storage("number of turns", 256).await?;
    let out = gpu.storage("result of nothing", 256).await?;
    let place = gpu.storage("position of the chase", 256).await?;
    let most = limits.binding_bytes.min(limits.buffer_bytes).max(1 << 20);
    let large = most.min(if software { 8 << 20 } else { 128 << 20 });
    let large = 1u64 << large.ilog2();
    let far = gpu.storage("positions far apart", large).await?;
    let near = gpu.storage("positions nearby", 4096).await?;
    let small = gpu.storage("what caches hold", 1 << 20).await?;
    let timestamps = if limits.timestamps { Some(Timestamps::new(gpu, 2).await?) } else { None };
    let mut clock = Clock { gpu, timestamps };
    let set = |values: [u32; 4]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        gpu.queue().write_buffer(&turns, 0, &bytes);
    };
    // The step is a little over 16 KiB. It is odd in elements and the size is a power of two, so the cycle visits all elements.
    for (buffer, bytes) in [(&far, large), (&near, 4096)] {
        let elements = (bytes / 4) as u32;
        set([1, 1, elements, (4127 % elements) | 1]);
        Loop::new(&clock, fill, &turns, &[buffer]).await?.once(1, if software { 8 } else { 1024 }, 1).await?;
    }
    set([1, 1, u32::MAX, 0]);

    let many = if software { 64 } else { 4096 };
    let trusted = {
        let l = Loop::new(&clock, arithmetic, &turns, &[&out]).await?;
        l.warm_up(many).await?
    };
    if !trusted {
        clock.timestamps = None;
    }
    let clock = &clock;
    let bind = async |pipeline, buffers: &[&wgpu::Buffer]| Loop::new(clock, pipeline, &turns, buffers).await;

    let operation_ns = bind(chain, &[&out]).await?.turn("chain", 1).await? / 8.0;
    let barrier_ns = bind(barrier, &[&out]).await?.turn("barrier", 1).await?;
    let latency_ns = bind(chase, &[&far, &place]).await?.turn("chase", 1).await?;

    let arithmetic = bind(arithmetic, &[&out]).await?;
    let (one, all) = (arithmetic.turn("f32", 1).await?, arithmetic.turn("f32", many).await?);
    let cores = (f64::from(many) * one / all).max(1.0);
    let (n, dispatches) = arithmetic.enough(1).await?;
    let side_by_side = f64::from(arithmetic.as_fast_as_one(n, dispatches, many).await?);
    let operations = f64::from(many) * 256.0 * OPERATIONS * 1e9;
    let flops_f32 = operations / all;
    let flops_f16 = match half.first() {
        Some(p) => Some(operations / bind(p, &[&out]).await?.turn("f16", many).await?),
        None => None,
    };

    // Starts at position 0: the position at which the chase through the large buffer ended is outside of this one.
    set([1, 1, 0, 0]);
    let near = bind(chase, &[&near, &place]).await?;
    let (n, dispatches) = near.enough(1).await?;
    let resident = 64.0 * f64::from(near.as_fast_as_one(n, dispatches, 1 << 14).await?);

    let cached = bind(cached, &[&small, &out]).await?;
    let bytes = f64::from(1 << 16) * 1e9;
    let workgroup_bytes_per_second = bytes / cached.turn("cached", 1).await?;
    let many = if software { 16 } else { 2048 };
    let cache_bytes_per_second = f64::from(many) * bytes / cached.turn("cached", many).await?;
    Ok(Primitives {
        flops_f32,
        flops_f16,
        cores,
        side_by_side,
        resident,
        latency_ns,
        operation_ns,
        barrier_ns,
        workgroup_bytes_per_second,
        cache_bytes_per_second,
    })
}

/// [`primitives`] for callers without an executor.
///
/// # Errors
/// As [`primitives`].
pub fn primitives_blocking(gpu: &Gpu) -> Result<Primitives, RunError> {
    pollster::block_on(primitives(gpu))
}
