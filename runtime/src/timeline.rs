//! Timelines: when the processor records and submits runs, and when the device runs their dispatches.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::platform::now;
use crate::profile::Queries;
use crate::session::{Session, Value};
use crate::timestamps::Timestamps;
use std::time::Instant;
use wgfc_program::Tensor;

/// The part of a machine that a span is of. See the example of [`Timeline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The processor.
    Processor,
    /// The device.
    Device,
}

/// A part of a run with its time. See the example of [`Timeline`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Span {
    /// Where it is.
    pub lane: Lane,
    /// The kernel's name on the device; `bind`, `record` or `submit` on the processor.
    pub name: String,
    /// The number of the run, from 0 on.
    pub run: usize,
    /// Nanoseconds from the beginning of the timeline to that of the span.
    pub begin_ns: f64,
    /// Nanoseconds from the beginning of the timeline to the span's end.
    pub end_ns: f64,
    /// The model's nodes that a dispatch computes.
    pub nodes: Vec<String>,
}

/// When the parts of runs happen, each of which is submitted without waiting for the one before.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// use wgfc_program::Tensor;
/// use wgfc_runtime::timeline::Lane;
/// let timeline = session.timeline_blocking(&[("x", Tensor::from_f32(vec![64], &[1.0; 64]))], 3)?;
/// for s in timeline.spans.iter().filter(|s| s.lane == Lane::Device) {
///     println!("run {}: {} for {} ns", s.run, s.name, s.end_ns - s.begin_ns);
/// }
/// assert_eq!(timeline.spans.iter().filter(|s| s.name == "record").count(), 3);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Timeline {
    /// The spans, run after run.
    pub spans: Vec<Span>,
    /// The largest number of nanoseconds by which all spans of the device may be too early or too late beside those of the processor: half of
    /// the time in which a timestamp of the device was taken by the processor's clock.
    pub uncertainty_ns: f64,
}

impl Session {
    /// Runs `runs` times (at least once) after a run that does not count, and gives the times of all parts. Without timestamps on the
    /// device there are those of the processor alone, and in a page none. Programs with loops that end on a condition do one iteration. Growing
    /// states keep their lengths; other states advance with every run.
    ///
    /// # Errors
    /// The errors of a run.
    pub async fn timeline(&mut self, inputs: &[(&str, Tensor)], runs: usize) -> Result<Timeline, RunError> {
        let inputs: Vec<_> = inputs.iter().map(|(n, t)| (*n, Value::Host(t.clone()))).collect();
        let gpu = self.gpu.clone();
        self.run_once(&inputs, None).await?;
        let Some(start) = now() else { return Ok(Timeline::default()) };
        let ready = self.prepare(&inputs).await?;
        let count = ready.prepared.dispatches.len();
        let stamped = gpu.profile().timestamps && count > 0;
        let mut queries = vec![];
        for _ in 0..if stamped { runs.max(1) } else { 0 } {
            queries.push(Queries::new(self, count).await?);
        }
        let mut spans = vec![];
        let at = || start.elapsed().as_nanos() as f64;
        for run in 0..runs.max(1) {
            let begin = at();
            let ready = self.prepare(&inputs).await?;
            let bound = at();
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            gpu.scoped("recording a run with timestamps", || match queries.get(run) {
                Some(q) => q.record(self, &ready.prepared, &mut encoder),
                None => self.record(&ready.prepared, &mut encoder),
            })
            .await?;
            let commands = gpu.scoped("recording", || encoder.finish()).await?;
            let recorded = at();
            gpu.scoped("running the plan", || gpu.queue().submit([commands])).await?;
            let parts = [("bind", begin, bound), ("record", bound, recorded), ("submit", recorded, at())];
            spans.extend(parts.map(|(name, begin_ns, end_ns)| Span {
                lane: Lane::Processor,
                name: name.to_owned(),
                run,
                begin_ns,
                end_ns,
                nodes: vec![],
            }));
        }
        gpu.wait().await?;
        let mut uncertainty_ns = 0.0;
        if stamped {
            let clock = Clock::of(&gpu, start).await?;
            uncertainty_ns = clock.uncertainty;
            for (run, q) in queries.iter().enumerate() {
                for (dispatch, [begin, end]) in ready.prepared.dispatches.iter().zip(q.ticks(&gpu).await?) {
                    spans.push(Span {
                        lane: Lane::Device,
                        name: self.program.kernels[dispatch.kernel].name.clone(),
                        run,
                        begin_ns: clock.ns(begin),
                        end_ns: clock.ns(end),
                        nodes: self.program.dispatches[dispatch.number].nodes.clone(),
                    });
                }
            }
        }
        Ok(Timeline { spans, uncertainty_ns })
    }
}

/// A tick of the device with its time by the processor's clock.
struct Clock {
    tick: u64,
    at: f64,
    uncertainty: f64,
    /// Nanoseconds of a tick.
    period: f64,
}

impl Clock {
    /// Takes a timestamp several times, and keeps the one that was taken soonest.
    async fn of(gpu: &Gpu, start: Instant) -> Result<Clock, RunError> {
        let stamps = Timestamps::new(gpu, 2).await?;
        let period = f64::from(gpu.queue().get_timestamp_period());
        let mut best = Clock { tick: 0, at: 0.0, uncertainty: f64::INFINITY, period };
        for _ in 0..5 {
            let before = start.elapsed().as_nanos() as f64;
            gpu.scoped("taking a timestamp", || {
                let mut encoder = gpu.device().create_command_encoder(&Default::default());
                drop(encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                    label: None,
                    timestamp_writes: Some(stamps.around(0)),
                }));
                stamps.resolve(&mut encoder);
                gpu.queue().submit([encoder.finish()]);
            })
            .await?;
            gpu.wait().await?;
            let after = start.elapsed().as_nanos() as f64;
            let ticks = stamps.read(gpu).await?;
            let uncertainty = (after - before) / 2.0;
            if uncertainty < best.uncertainty {
                best = Clock {
                    tick: ticks.first().copied().unwrap_or(0),
                    at: before + uncertainty,
                    uncertainty,
                    period,
                };
            }
        }
        Ok(best)
    }

    /// The time of a tick by the processor's clock.
    fn ns(&self, tick: u64) -> f64 {
        self.at + (i128::from(tick) - i128::from(self.tick)) as f64 * self.period
    }
}
