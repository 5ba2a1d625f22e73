//! The overhead of a dispatch beyond its kernel's time, by the way in which dispatches are recorded and submitted (the method of
//! arXiv 2604.02344).

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::kernel::{Checks, Pipeline, compile_all};
use crate::measure::{group, kernel};
use crate::stats::Estimate;
use crate::timestamps::{Timestamps, between};
use std::time::Instant;
use wgfc_program::program::Access;

/// How dispatches are recorded and submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Each dispatch is encoded, submitted and waited for before the next.
    SingleOp,
    /// Each dispatch has its own encoder, pass and submission; one wait for all.
    Sequential,
    /// Each dispatch has its own pass, in one encoder and one submission.
    PassEach,
    /// All dispatches are in one pass.
    OnePass,
}

impl Mode {
    /// All modes, the slowest first.
    pub const ALL: [Mode; 4] = [Mode::SingleOp, Mode::Sequential, Mode::PassEach, Mode::OnePass];

    /// The name in tables and messages.
    pub fn name(self) -> &'static str {
        match self {
            Mode::SingleOp => "single-op",
            Mode::Sequential => "sequential",
            Mode::PassEach => "one encoder, a pass each",
            Mode::OnePass => "one encoder, one pass",
        }
    }

    /// The division of [`DISPATCHES`]: submissions, passes per submission, dispatches per pass.
    fn division(self) -> [u32; 3] {
        match self {
            Mode::SingleOp | Mode::Sequential => [DISPATCHES, 1, 1],
            Mode::PassEach => [1, DISPATCHES, 1],
            Mode::OnePass => [1, 1, DISPATCHES],
        }
    }
}

/// Dispatches in one iteration of a mode.
pub const DISPATCHES: u32 = 100;
/// Iterations of each mode that are not measured, before those that are.
pub const WARM_UPS: usize = 5;

/// The cost of one dispatch in one mode, in nanoseconds. See the example of [`measure`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DispatchCost {
    /// How dispatches were recorded and submitted.
    pub mode: Mode,
    /// Wall-clock time of an iteration divided by its dispatches.
    pub wall_ns: Estimate,
    /// Making the encoder, recording and finishing it, on the CPU.
    pub record_ns: Estimate,
    /// Submitting the commands to the driver, on the CPU.
    pub submit_ns: Estimate,
    /// Time inside compute passes, measured with timestamps around each pass in separate iterations; `None` without timestamps.
    pub gpu_ns: Option<Estimate>,
}

/// The cost of a dispatch in all modes. See the example of [`measure`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Overhead {
    /// The number of iterations of each mode; each iteration has [`DISPATCHES`] dispatches.
    pub iterations: usize,
    /// In the order of [`Mode::ALL`].
    pub modes: Vec<DispatchCost>,
}

impl Overhead {
    /// The cost in one mode.
    pub fn of(&self, mode: Mode) -> Option<&DispatchCost> {
        self.modes.iter().find(|c| c.mode == mode)
    }

    /// The factor by which waiting for each dispatch increases its apparent cost: single-op over sequential.
    pub fn overstatement(&self) -> Option<f64> {
        let wall = |m| Some(self.of(m)?.wall_ns.median);
        Some(wall(Mode::SingleOp)? / wall(Mode::Sequential)?.max(1.0))
    }
}

/// The number of elements of `data`, in workgroups of 64.
const ELEMENTS: u32 = 256;
const INCREMENT: &str = include_str!("kernels/increment.wgsl");

/// The times of one iteration, in nanoseconds.
struct Sample {
    record: f64,
    submit: f64,
    wall: f64,
}

struct Bench<'g> {
    gpu: &'g Gpu,
    pipeline: &'g Pipeline,
    group: wgpu::BindGroup,
}

impl Bench<'_> {
    async fn iteration(&self, mode: Mode, timestamps: Option<&Timestamps>) -> Result<Sample, RunError> {
        let [submissions, passes, dispatches] = mode.division();
        let (mut record, mut submit) = (0.0, 0.0);
        let start = Instant::now();
        for s in 0..submissions {
            let recorded = Instant::now();
            let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
            for p in 0..passes {
                let timestamp_writes = timestamps.map(|t| t.around(s * passes + p));
                let mut pass = encoder
                    .begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
                pass.set_pipeline(&self.pipeline.pipeline);
                pass.set_bind_group(0, &self.group, &[]);
                for _ in 0..dispatches {
                    pass.dispatch_workgroups(ELEMENTS / 64, 1, 1);
                }
            }
            let commands = encoder.finish();
            record += recorded.elapsed().as_nanos() as f64;
            let submitted = Instant::now();
            self.gpu.queue().submit([commands]);
            submit += submitted.elapsed().as_nanos() as f64;
            if mode == Mode::SingleOp {
                self.gpu.wait().await?;
            }
        }
        if mode != Mode::SingleOp {
            self.gpu.wait().await?;
        }
        Ok(Sample { record, submit, wall: start.elapsed().as_nanos() as f64 })
    }

    /// Nanoseconds inside the passes of one iteration.
    async fn on_gpu(&self, mode: Mode, timestamps: &Timestamps) -> Result<f64, RunError> {
        self.iteration(mode, Some(timestamps)).await?;
        let fetch = || {
            let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
            timestamps.resolve(&mut encoder);
            self.gpu.queue().submit([encoder.finish()]);
        };
        self.gpu.scoped("reading timestamps", fetch).await?;
        let ticks = timestamps.read(self.gpu).await?;
        Ok(ticks.chunks_exact(2).map(|t| between(self.gpu, t)).sum())
    }

    async fn mode(&self, mode: Mode, iterations: usize) -> Result<DispatchCost, RunError> {
        for _ in 0..WARM_UPS {
            self.iteration(mode, None).await?;
        }
        let (mut record, mut submit, mut wall, mut gpu) = (vec![], vec![], vec![], vec![]);
        for _ in 0..iterations {
            let s = self.iteration(mode, None).await?;
            record.push(s.record);
            submit.push(s.submit);
            wall.push(s.wall);
        }
        if self.gpu.profile().timestamps {
            let [submissions, passes, _] = mode.division();
            let timestamps = Timestamps::new(self.gpu, 2 * submissions * passes).await?;
            for _ in 0..iterations {
                gpu.push(self.on_gpu(mode, &timestamps).await?);
            }
        }
        let each = |samples| Some(Estimate::of(samples)?.scaled(1.0 / f64::from(DISPATCHES)));
        let known = |samples| each(samples).ok_or_else(|| broken("no iteration was asked for".to_owned()));
        Ok(DispatchCost {
            mode,
            wall_ns: known(wall)?,
            record_ns: known(record)?,
            submit_ns: known(submit)?,
            gpu_ns: each(gpu),
        })
    }
}

fn broken(message: String) -> RunError {
    RunError::Gpu { what: "measuring dispatches".to_owned(), message }
}

/// Measures every mode with `iterations` (at least one) iterations of a kernel that adds 1 to 256 numbers.
///
/// ```no_run
/// use wgfc_runtime::{AdapterChoice, Gpu, overhead::{Mode, measure_blocking}};
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// let gpu = Gpu::request_blocking(&AdapterChoice::Best)?;
/// let overhead = measure_blocking(&gpu, 50)?;
/// for mode in Mode::ALL {
///     println!("{}: {:?} ns", mode.name(), overhead.of(mode).map(|c| c.wall_ns.median));
/// }
/// println!("waiting for each dispatch overstates its cost {:?} times", overhead.overstatement());
/// # Ok(()) }
/// ```
pub async fn measure(gpu: &Gpu, iterations: usize) -> Result<Overhead, RunError> {
    let iterations = iterations.clamp(1, 10_000);
    let kernels = [kernel("increment", INCREMENT, 64, vec![Access::ReadWrite])];
    let pipelines = compile_all(gpu, kernels.iter().map(|k| (k, false)), Checks::All, [].into_iter()).await?;
    let Some(pipeline) = pipelines.first() else { return Err(broken("the kernel is missing".to_owned())) };
    let bytes = u64::from(ELEMENTS) * 4;
    let data = gpu.storage("data", bytes).await?;
    let bound = gpu.scoped("measuring", || group(gpu, pipeline, &[&data])).await?;
    let bench = Bench { gpu, pipeline, group: bound };
    let mut modes = Vec::new();
    for mode in Mode::ALL {
        modes.push(bench.mode(mode, iterations).await?);
    }

    // The sums show that all dispatches were executed.
    let rounds = WARM_UPS + iterations * if gpu.profile().timestamps { 2 } else { 1 };
    let expected = (rounds * Mode::ALL.len()) as f32 * DISPATCHES as f32;
    use wgpu::BufferUsages as U;
    let mapped = gpu.buffer("data", bytes, U::MAP_READ | U::COPY_DST).await?;
    gpu.scoped("reading data", || {
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&data, 0, &mapped, 0, bytes);
        gpu.queue().submit([encoder.finish()]);
    })
    .await?;
    let numbers: Vec<f32> = gpu
        .map_read(&mapped, bytes, None, |b| {
            b.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap_or_default())).collect()
        })
        .await?;
    match numbers.iter().find(|n| **n != expected) {
        None => Ok(Overhead { iterations, modes }),
        Some(n) => Err(broken(format!("{expected} dispatches added 1 each and made {n}"))),
    }
}

/// [`measure`] for callers without an executor.
pub fn measure_blocking(gpu: &Gpu, iterations: usize) -> Result<Overhead, RunError> {
    pollster::block_on(measure(gpu, iterations))
}
