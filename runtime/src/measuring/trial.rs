//! Timing of programs on inputs that stay on the device, for comparisons.

use crate::error::RunError;
use crate::session::{Prepared, Session, Value};
use crate::tensor::DeviceTensor;
use crate::timestamps::{Timestamps, between};
use std::sync::Arc;
use std::time::Instant;
use wgfc_program::Tensor;

/// A program bound to one or several sets of inputs, ready to be run in a row.
///
/// If all sets together are larger than the device's caches, each run reads its inputs from memory, as in a model whose other
/// kernels run in between. All runs write the same outputs, so each waits for the one before it.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// use wgfc_program::Tensor;
/// use wgfc_runtime::trial::Trial;
/// let inputs = vec![("x", Tensor::from_f32(vec![2], &[1.0, 2.0]).into())];
/// let trial = Trial::new_blocking(session, &[inputs])?;
/// assert_eq!(trial.outputs_blocking()?[0].to_f32s(), Some(vec![2.0, 4.0]));
/// println!("{} ns a run", trial.time_blocking(10)?);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Trial {
    session: Session,
    prepared: Vec<Arc<Prepared>>,
    outputs: Vec<DeviceTensor>,
    timestamps: Option<Timestamps>,
}

impl Trial {
    /// Binds a session without states to sets of inputs, of which there must be at least one.
    pub async fn new(mut session: Session, sets: &[Vec<(&str, Value)>]) -> Result<Trial, RunError> {
        let mut prepared = Vec::with_capacity(sets.len());
        let mut outputs = vec![];
        for set in sets {
            // Returns the outputs to the pool, which gives the same buffers to the next set.
            outputs.clear();
            let ready = session.prepare(set).await?;
            prepared.push(ready.prepared);
            outputs = ready.outputs;
        }
        let timestamps = match session.gpu.profile().timestamps {
            true => Some(Timestamps::new(&session.gpu, 2).await?),
            false => None,
        };
        Ok(Trial { session, prepared, outputs, timestamps })
    }

    /// Runs with the first set of inputs and returns the outputs, in the program's order.
    pub async fn outputs(&self) -> Result<Vec<Tensor>, RunError> {
        self.submit(1, false).await?;
        let mut out = vec![];
        for o in &self.outputs {
            out.push(o.read().await?);
        }
        Ok(out)
    }

    /// The nanoseconds per run of `runs` runs in one compute pass, which cycle through the sets of inputs. They are measured with
    /// the device's timestamps, or from submission to completion if it has none.
    pub async fn time(&self, runs: u32) -> Result<f64, RunError> {
        let runs = runs.max(1);
        let start = Instant::now();
        self.submit(runs, true).await?;
        self.session.gpu.wait().await?;
        let wall = start.elapsed().as_nanos() as f64;
        let ticks = match &self.timestamps {
            Some(t) => between(&self.session.gpu, &t.read(&self.session.gpu).await?),
            None => 0.0,
        };
        Ok(if ticks > 0.0 { ticks } else { wall } / f64::from(runs))
    }

    /// Keeps the device busy for this many seconds: an idle device lowers its clock rate and takes some tenths of a second to
    /// raise it again.
    pub async fn warm_up(&self, seconds: f64) -> Result<(), RunError> {
        let start = Instant::now();
        let mut runs = 1;
        while start.elapsed().as_secs_f64() < seconds {
            let once = self.time(runs).await?;
            // Each submission takes about 10 ms.
            runs = (1e7 / once.max(1.0)).clamp(1.0, 10_000.0) as u32;
        }
        Ok(())
    }

    /// Whether times are measured with the device's timestamps.
    pub fn has_clock(&self) -> bool {
        self.timestamps.is_some()
    }

    async fn submit(&self, runs: u32, timed: bool) -> Result<(), RunError> {
        let gpu = &self.session.gpu;
        gpu.scoped("timing", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            let timestamps = self.timestamps.as_ref().filter(|_| timed);
            let timestamp_writes = timestamps.map(|t| t.around(0));
            let mut pass =
                encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
            let mut current = None;
            for prepared in self.prepared.iter().cycle().take(runs as usize) {
                for dispatch in &prepared.dispatches {
                    self.session.record_dispatch(dispatch, &mut current, &mut pass);
                }
            }
            drop(pass);
            if let Some(t) = timestamps {
                t.resolve(&mut encoder);
            }
            gpu.queue().submit([encoder.finish()]);
        })
        .await
    }

    /// [`Trial::new`] for callers without an executor.
    pub fn new_blocking(session: Session, sets: &[Vec<(&str, Value)>]) -> Result<Trial, RunError> {
        pollster::block_on(Trial::new(session, sets))
    }
    /// [`Trial::outputs`] for callers without an executor.
    pub fn outputs_blocking(&self) -> Result<Vec<Tensor>, RunError> {
        pollster::block_on(self.outputs())
    }
    /// [`Trial::warm_up`] for callers without an executor.
    pub fn warm_up_blocking(&self, seconds: f64) -> Result<(), RunError> {
        pollster::block_on(self.warm_up(seconds))
    }
    /// [`Trial::time`] for callers without an executor.
    pub fn time_blocking(&self, runs: u32) -> Result<f64, RunError> {
        pollster::block_on(self.time(runs))
    }
}
