//! Where the time of a run goes.

use crate::error::RunError;
use crate::session::{Plan, Session, Value};
use wgfc_ir::Tensor;

/// The time and the work of one dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchProfile {
    /// Index into the program's dispatches; those that do nothing for these shapes are not listed.
    pub dispatch: usize,
    /// Its kernel's name.
    pub kernel: String,
    /// Its kernel's family.
    pub family: String,
    /// The model's nodes it computes.
    pub nodes: Vec<String>,
    /// Workgroup counts.
    pub workgroups: [u32; 3],
    /// Median nanoseconds on the GPU; `None` where the adapter has no timestamps.
    pub gpu_ns: Option<f64>,
    /// Bytes it must read and write at least.
    pub bytes: u64,
    /// Floating-point operations it does.
    pub flops: u64,
}

/// The time of runs of one program for one set of shapes. All times are medians in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Runs measured, after one that is not.
    pub runs: usize,
    /// In order of execution.
    pub dispatches: Vec<DispatchProfile>,
    /// Sum over the dispatches, measured with timestamps; `None` without them.
    pub gpu_ns: Option<f64>,
    /// Binding the inputs and recording the commands, on the CPU.
    pub record_ns: Option<f64>,
    /// Handing them to the driver, on the CPU.
    pub submit_ns: Option<f64>,
    /// From inputs on the host to the device being done, without timestamps, nothing read back.
    pub wall_ns: Option<f64>,
    /// The same with all outputs read back.
    pub round_trip_ns: Option<f64>,
}

/// The clock; browsers have none that std knows.
fn now() -> Option<std::time::Instant> {
    #[cfg(not(target_arch = "wasm32"))]
    return Some(std::time::Instant::now());
    #[cfg(target_arch = "wasm32")]
    None
}

fn since(t: Option<std::time::Instant>) -> Option<f64> {
    t.map(|t| t.elapsed().as_nanos() as f64)
}

pub(crate) fn median(mut v: Vec<f64>) -> Option<f64> {
    v.sort_by(f64::total_cmp);
    let n = v.len();
    match n {
        0 => None,
        n if n % 2 == 1 => Some(v[n / 2]),
        n => Some((v[n / 2 - 1] + v[n / 2]) / 2.0),
    }
}

impl Session {
    /// Runs `runs` times (at least once) with and without timestamps. States that grow keep their lengths;
    /// others advance with every run.
    pub async fn profile(&mut self, inputs: &[(&str, Tensor)], runs: usize) -> Result<Profile, RunError> {
        let runs = runs.max(1);
        let inputs: Vec<_> = inputs.iter().map(|(n, t)| (*n, Value::Host(t.clone()))).collect();
        let gpu = self.gpu.clone();
        self.run_once(&inputs, None).await?;
        let (mut record, mut submit, mut wall, mut trip) = (vec![], vec![], vec![], vec![]);
        for _ in 0..runs {
            let start = now();
            let ready = self.prepare(&inputs).await?;
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            self.record(&ready.plan, &mut encoder);
            let commands = gpu.scoped("recording", || encoder.finish()).await?;
            record.extend(since(start));
            let submitted = now();
            gpu.scoped("running the plan", || gpu.queue().submit([commands])).await?;
            submit.extend(since(submitted));
            gpu.wait().await?;
            wall.extend(since(start));
        }
        for _ in 0..runs {
            let start = now();
            self.run_once(&inputs, None).await?;
            trip.extend(since(start));
        }
        let ready = self.prepare(&inputs).await?;
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); ready.plan.steps.len()];
        if gpu.profile().timestamps && !times.is_empty() {
            let queries = Queries::new(self, times.len()).await?;
            for _ in 0..runs {
                for (all, t) in times.iter_mut().zip(queries.run(self, &ready.plan).await?) {
                    all.push(t);
                }
            }
        }
        let env = |s: &str| {
            let i = self.program.symbols.iter().position(|n| n == s)?;
            ready.plan.values().get(i).copied()
        };
        let mut dispatches = Vec::new();
        for (step, times) in ready.plan.steps.iter().zip(times) {
            let (d, k) = (&self.program.dispatches[step.dispatch], &self.program.kernels[step.kernel]);
            let count = |p: &wgfc_ir::Dim| p.eval_syms(&env).and_then(|v| u64::try_from(v).ok()).unwrap_or(0);
            dispatches.push(DispatchProfile {
                dispatch: step.dispatch,
                kernel: k.name.clone(),
                family: k.family.clone(),
                nodes: d.nodes.clone(),
                workgroups: step.workgroups,
                gpu_ns: median(times),
                bytes: count(&d.bytes),
                flops: count(&d.flops),
            });
        }
        let gpu_ns = dispatches.iter().map(|d| d.gpu_ns).sum::<Option<f64>>();
        Ok(Profile {
            runs,
            gpu_ns: gpu_ns.filter(|_| !dispatches.is_empty()),
            dispatches,
            record_ns: median(record),
            submit_ns: median(submit),
            wall_ns: median(wall),
            round_trip_ns: median(trip),
        })
    }

    /// [`Session::profile`] for callers without an executor.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn profile_blocking(&mut self, inputs: &[(&str, Tensor)], runs: usize) -> Result<Profile, RunError> {
        pollster::block_on(self.profile(inputs, runs))
    }
}

/// Query sets and the buffers their results go through.
struct Queries {
    sets: Vec<wgpu::QuerySet>,
    resolved: wgpu::Buffer,
    mapped: wgpu::Buffer,
    count: u32,
    /// Whether timestamps are written between dispatches, or else around a pass for each.
    inside: bool,
}

const PER_SET: u32 = wgpu::QUERY_SET_MAX_QUERIES;

impl Queries {
    async fn new(session: &Session, steps: usize) -> Result<Queries, RunError> {
        let gpu = &session.gpu;
        let inside = gpu.profile().timestamps_in_pass;
        let count = if inside { steps + 1 } else { 2 * steps } as u32;
        let sets = gpu
            .scoped("making timestamps", || {
                (0..count.div_ceil(PER_SET))
                    .map(|i| {
                        gpu.device().create_query_set(&wgpu::QuerySetDescriptor {
                            label: None,
                            ty: wgpu::QueryType::Timestamp,
                            count: PER_SET.min(count - i * PER_SET),
                        })
                    })
                    .collect()
            })
            .await?;
        let bytes = u64::from(count) * 8;
        use wgpu::BufferUsages as U;
        let resolved = gpu.buffer("timestamps", bytes, U::QUERY_RESOLVE | U::COPY_SRC).await?;
        let mapped = gpu.buffer("timestamps", bytes, U::MAP_READ | U::COPY_DST).await?;
        Ok(Queries { sets, resolved, mapped, count, inside })
    }

    fn at(&self, query: u32) -> (&wgpu::QuerySet, u32) {
        (&self.sets[(query / PER_SET) as usize], query % PER_SET)
    }

    /// Nanoseconds of each step in one run.
    async fn run(&self, session: &Session, plan: &Plan) -> Result<Vec<f64>, RunError> {
        let gpu = &session.gpu;
        gpu.scoped("running the plan with timestamps", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            if self.inside {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                let mut current = None;
                for (i, step) in plan.steps.iter().enumerate() {
                    let (set, index) = self.at(i as u32);
                    pass.write_timestamp(set, index);
                    session.record_step(step, &mut current, &mut pass);
                }
                let (set, index) = self.at(plan.steps.len() as u32);
                pass.write_timestamp(set, index);
            } else {
                for (i, step) in plan.steps.iter().enumerate() {
                    // Two queries a step: PER_SET is even, so that both are in one set.
                    let (query_set, index) = self.at(2 * i as u32);
                    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                        label: None,
                        timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                            query_set,
                            beginning_of_pass_write_index: Some(index),
                            end_of_pass_write_index: Some(index + 1),
                        }),
                    });
                    session.record_step(step, &mut None, &mut pass);
                }
            }
            for (i, set) in self.sets.iter().enumerate() {
                let n = set.count();
                encoder.resolve_query_set(set, 0..n, &self.resolved, i as u64 * u64::from(PER_SET) * 8);
            }
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.mapped, 0, u64::from(self.count) * 8);
            gpu.queue().submit([encoder.finish()]);
        })
        .await?;
        let ticks: Vec<u64> = gpu
            .map_read(&self.mapped, u64::from(self.count) * 8, |b| {
                b.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default())).collect()
            })
            .await?;
        let period = f64::from(gpu.queue().get_timestamp_period());
        let ns = |w: &[u64]| w[1].saturating_sub(w[0]) as f64 * period;
        Ok(if self.inside {
            ticks.windows(2).map(ns).collect()
        } else {
            ticks.chunks_exact(2).map(ns).collect()
        })
    }
}
