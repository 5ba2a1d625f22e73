//! Profiles: the time of each dispatch, of recording, of submission and of whole runs.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::platform::now;
use crate::session::{Prepared, Session, Value};
use crate::stats::Estimate;
use crate::timestamps::{Timestamps, between};
use wgfc_program::Tensor;

/// The time and the work of one dispatch. See the example of [`Profile`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DispatchProfile {
    /// Index into the program's dispatches. Dispatches with no workgroups for these shapes are not listed.
    pub dispatch: usize,
    /// The kernel's name.
    pub kernel: String,
    /// The kernel's family.
    pub family: String,
    /// The model's nodes that it computes.
    pub nodes: Vec<String>,
    /// Workgroup counts.
    pub workgroups: [u32; 3],
    /// Nanoseconds on the GPU; `None` if the adapter has no timestamps.
    pub gpu_ns: Option<Estimate>,
    /// A lower bound of the bytes that it reads and writes.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// The time of runs of one program for one set of shapes. All times are in nanoseconds.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// use wgfc_program::Tensor;
/// let profile = session.profile_blocking(&[("x", Tensor::from_f32(vec![64], &[1.0; 64]))], 3)?;
/// for d in &profile.dispatches {
///     println!("{}: {} bytes, {:?} ns", d.kernel, d.bytes, d.gpu_ns.as_ref().map(|e| e.median));
/// }
/// assert_eq!(profile.dispatches.len(), 1);
/// assert!(profile.round_trip_ns.is_some_and(|e| e.median > 0.0));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// The least number of measured runs of any part of the measurement. One warm-up run precedes them and is not measured.
    pub runs: usize,
    /// In order of execution.
    pub dispatches: Vec<DispatchProfile>,
    /// The sum over the dispatches of a run, measured with timestamps; `None` without timestamps.
    pub gpu_ns: Option<Estimate>,
    /// Binding the inputs and recording the commands, on the CPU.
    pub record_ns: Option<Estimate>,
    /// Submitting the commands to the driver, on the CPU.
    pub submit_ns: Option<Estimate>,
    /// Wall-clock time from inputs on the host until the device has finished. No timestamps are taken and nothing is read back.
    pub wall_ns: Option<Estimate>,
    /// The time per run of several runs that are submitted one after another without waiting in between.
    pub back_to_back_ns: Option<f64>,
    /// `wall_ns` plus the time of reading all outputs back.
    pub round_trip_ns: Option<Estimate>,
}

/// A time limit and a progress callback for a measurement.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// # let inputs = [("x", wgfc_program::Tensor::from_f32(vec![1], &[1.0]))];
/// use wgfc_runtime::profile::Pace;
/// let told = |done: usize, most: usize| eprintln!("{done} of at most {most} runs");
/// let pace = Pace { seconds: Some(0.1), progress: Some(&told) };
/// let profile = session.profile_paced_blocking(&inputs, 5, pace)?;
/// assert!(profile.runs <= 5);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Default)]
pub struct Pace<'a> {
    /// The time limit in seconds, divided evenly among the parts. Each part runs at least once.
    pub seconds: Option<f64>,
    /// Called after each run with the number of runs so far and the largest number of runs possible.
    pub progress: Option<&'a dyn Fn(usize, usize)>,
}

/// The count of runs of a measurement.
struct Runs<'a> {
    pace: Pace<'a>,
    /// The largest number of runs of each part.
    most: usize,
    done: usize,
    /// Runs of the current part so far.
    here: usize,
    least: usize,
    /// The start of the current part.
    since: Option<std::time::Instant>,
}

/// The number of parts whose runs are repeated.
const PARTS: usize = 4;

impl<'a> Runs<'a> {
    fn new(pace: Pace<'a>, most: usize) -> Runs<'a> {
        Runs { pace, most, done: 0, here: 0, least: most, since: now() }
    }
    /// Begins the next part.
    fn part(&mut self) {
        (self.here, self.since) = (0, now());
    }
    /// Whether the current part has another run.
    fn more(&mut self) -> bool {
        let share = self.pace.seconds.map(|s| s * 1e9 / PARTS as f64);
        let late = share.zip(since(self.since)).is_some_and(|(share, t)| t > share);
        let more = self.here == 0 || self.here < self.most && !late;
        if !more {
            self.least = self.least.min(self.here);
        }
        more
    }
    fn ran(&mut self) {
        (self.here, self.done) = (self.here + 1, self.done + 1);
        if let Some(f) = self.pace.progress {
            f(self.done, PARTS * self.most + 1);
        }
    }
}

fn since(t: Option<std::time::Instant>) -> Option<f64> {
    t.map(|t| t.elapsed().as_nanos() as f64)
}

impl Session {
    /// Runs `runs` times (at least once) with and without timestamps. For programs with loops that end on a condition, only
    /// `back_to_back_ns` and `round_trip_ns` include all iterations; the other times include one. Growing states keep their
    /// lengths; other states advance with every run.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::doubling()).await?;
    /// use wgfc_program::Tensor;
    /// let profile = session.profile(&[("x", Tensor::from_f32(vec![1], &[1.0]))], 2).await?;
    /// println!("{:?} ns a run", profile.back_to_back_ns);
    /// # Ok(()) }) }
    /// ```
    pub async fn profile(&mut self, inputs: &[(&str, Tensor)], runs: usize) -> Result<Profile, RunError> {
        self.profile_paced(inputs, runs, Pace::default()).await
    }

    /// [`Session::profile`] with a time limit and a progress callback, and so possibly fewer runs.
    pub async fn profile_paced(
        &mut self,
        inputs: &[(&str, Tensor)],
        runs: usize,
        pace: Pace<'_>,
    ) -> Result<Profile, RunError> {
        let mut runs = Runs::new(pace, runs.max(1));
        let inputs: Vec<_> = inputs.iter().map(|(n, t)| (*n, Value::Host(t.clone()))).collect();
        let gpu = self.gpu.clone();
        self.run_once(&inputs, None).await?;
        runs.ran();
        let (mut record, mut submit, mut wall, mut trip) = (vec![], vec![], vec![], vec![]);
        runs.part();
        while runs.more() {
            let start = now();
            let ready = self.prepare(&inputs).await?;
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            self.record(&ready.prepared, &mut encoder);
            let commands = gpu.scoped("recording", || encoder.finish()).await?;
            record.extend(since(start));
            let submitted = now();
            gpu.scoped("running the plan", || gpu.queue().submit([commands])).await?;
            submit.extend(since(submitted));
            gpu.wait().await?;
            wall.extend(since(start));
            runs.ran();
        }
        runs.part();
        while runs.more() {
            let start = now();
            self.run_once(&inputs, None).await?;
            trip.extend(since(start));
            runs.ran();
        }
        // The host waits only after the last of these runs, so only their total time is known.
        let together = runs.least;
        let start = now();
        for _ in 0..together {
            let ready = self.prepare(&inputs).await?;
            self.submit(&ready).await?;
        }
        gpu.wait().await?;
        let back_to_back_ns = since(start).map(|t| t / together as f64);
        (0..together).for_each(|_| runs.ran());
        let ready = self.prepare(&inputs).await?;
        let (mut times, mut totals) = (vec![Vec::new(); ready.prepared.dispatches.len()], vec![]);
        if gpu.profile().timestamps && !times.is_empty() {
            let queries = Queries::new(self, times.len()).await?;
            runs.part();
            while runs.more() {
                let run = queries.run(self, &ready.prepared).await?;
                totals.push(run.iter().sum());
                for (all, t) in times.iter_mut().zip(run) {
                    all.push(t);
                }
                runs.ran();
            }
        }
        let env = |s: &str| {
            let i = self.program.symbols.iter().position(|n| n == s)?;
            ready.prepared.values().get(i).copied()
        };
        let mut dispatches = Vec::new();
        for (dispatch, times) in ready.prepared.dispatches.iter().zip(times) {
            let (d, k) = (&self.program.dispatches[dispatch.number], &self.program.kernels[dispatch.kernel]);
            let count =
                |p: &wgfc_program::Dim| p.eval_syms(&env).and_then(|v| u64::try_from(v).ok()).unwrap_or(0);
            dispatches.push(DispatchProfile {
                dispatch: dispatch.number,
                kernel: k.name.clone(),
                family: k.family.clone(),
                nodes: d.nodes.clone(),
                workgroups: dispatch.workgroups,
                gpu_ns: Estimate::of(times),
                bytes: count(&d.bytes),
                flops: count(&d.flops),
            });
        }
        Ok(Profile {
            runs: runs.least,
            gpu_ns: Estimate::of(totals),
            dispatches,
            record_ns: Estimate::of(record),
            submit_ns: Estimate::of(submit),
            wall_ns: Estimate::of(wall),
            back_to_back_ns,
            round_trip_ns: Estimate::of(trip),
        })
    }
}

/// The timestamps of a run's dispatches.
pub(crate) struct Queries {
    timestamps: Timestamps,
    /// Whether timestamps are written between the dispatches of one pass; otherwise each dispatch has a pass with timestamps
    /// around it.
    inside: bool,
}

impl Queries {
    pub(crate) async fn new(session: &Session, dispatches: usize) -> Result<Queries, RunError> {
        let inside = session.gpu.profile().timestamps_in_pass;
        let count = if inside { dispatches + 1 } else { 2 * dispatches } as u32;
        Ok(Queries { timestamps: Timestamps::new(&session.gpu, count).await?, inside })
    }

    /// Records a run with its timestamps.
    pub(crate) fn record(&self, session: &Session, prepared: &Prepared, encoder: &mut wgpu::CommandEncoder) {
        if let (true, Some(last)) = (self.inside, prepared.segments().last()) {
            for segment in prepared.segments() {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                let mut current = None;
                for i in segment.dispatches.clone() {
                    let (set, index) = self.timestamps.at(i as u32);
                    pass.write_timestamp(set, index);
                    session.record_dispatch(&prepared.dispatches[i], &mut current, &mut pass);
                }
                if std::ptr::eq(segment, last) {
                    let (set, index) = self.timestamps.at(prepared.dispatches.len() as u32);
                    pass.write_timestamp(set, index);
                }
                drop(pass);
                session.record_sizes(segment, encoder);
            }
        } else {
            for segment in prepared.segments() {
                for i in segment.dispatches.clone() {
                    let timestamp_writes = Some(self.timestamps.around(i as u32));
                    let mut pass = encoder
                        .begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
                    session.record_dispatch(&prepared.dispatches[i], &mut None, &mut pass);
                }
                session.record_sizes(segment, encoder);
            }
        }
        self.timestamps.resolve(encoder);
    }

    /// The ticks with which each dispatch of the run began and ended.
    pub(crate) async fn ticks(&self, gpu: &Gpu) -> Result<Vec<[u64; 2]>, RunError> {
        let ticks = self.timestamps.read(gpu).await?;
        let pair = |w: &[u64]| [w[0], w[1]];
        Ok(if self.inside {
            ticks.windows(2).map(pair).collect()
        } else {
            ticks.chunks_exact(2).map(pair).collect()
        })
    }

    /// Nanoseconds of each dispatch in one run.
    async fn run(&self, session: &Session, prepared: &Prepared) -> Result<Vec<f64>, RunError> {
        let gpu = &session.gpu;
        gpu.scoped("running the plan with timestamps", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            self.record(session, prepared, &mut encoder);
            gpu.queue().submit([encoder.finish()]);
        })
        .await?;
        Ok(self.ticks(gpu).await?.iter().map(|w| between(gpu, w)).collect())
    }
}
