//! Programs timed against one another on inputs that stay on the device.

use crate::error::RunError;
use crate::session::{Prepared, Session, Value};
use crate::tensor::DeviceTensor;
use crate::timestamps::{Timestamps, between};
use std::sync::Arc;
use std::time::Instant;
use wgfc_program::Tensor;

/// A program bound to one or several sets of inputs, ready to be run in a row.
///
/// Where the sets are larger together than the device's caches, each run finds its inputs in memory, as
/// it would in a model whose other kernels ran meanwhile. All runs write the same outputs, so that each
/// waits for the one before it.
#[derive(Debug)]
pub struct Trial {
    session: Session,
    prepared: Vec<Arc<Prepared>>,
    outputs: Vec<DeviceTensor>,
    timestamps: Option<Timestamps>,
}

impl Trial {
    /// Binds a session without states to sets of inputs, of which there must be one at least.
    pub async fn new(mut session: Session, sets: &[Vec<(&str, Value)>]) -> Result<Trial, RunError> {
        let mut prepared = Vec::with_capacity(sets.len());
        let mut outputs = vec![];
        for set in sets {
            // Given back to the pool, which hands them out again.
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

    /// Nanoseconds that one run takes when `runs` of them, which go around the sets of inputs, are one
    /// compute pass: by the device's clock where it has one, else from submission to the end.
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

    /// Whether times are by the device's clock.
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
    /// [`Trial::time`] for callers without an executor.
    pub fn time_blocking(&self, runs: u32) -> Result<f64, RunError> {
        pollster::block_on(self.time(runs))
    }
}
