//! Recording of runs, and loops whose condition the host reads after each round.

use super::prepared::{ConditionRead, Prepared, Segment};
use super::{Dispatch, Session};
use crate::bind;
use crate::error::RunError;

impl Session {
    /// Records a run, with one round of each loop that runs in rounds.
    pub(crate) fn record(&self, prepared: &Prepared, encoder: &mut wgpu::CommandEncoder) {
        prepared.segments().iter().for_each(|segment| self.record_segment(prepared, segment, encoder));
    }

    /// Records a segment: one compute pass, then copies of computed sizes.
    fn record_segment(&self, prepared: &Prepared, segment: &Segment, encoder: &mut wgpu::CommandEncoder) {
        if !segment.dispatches.is_empty() || segment.condition.is_none() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            let mut current = None;
            for dispatch in &prepared.dispatches[segment.dispatches.clone()] {
                self.record_dispatch(dispatch, &mut current, &mut pass);
            }
        }
        self.record_sizes(segment, encoder);
    }

    /// Records one dispatch; `current` is the pipeline that the pass has set.
    pub(crate) fn record_dispatch(
        &self,
        dispatch: &Dispatch,
        current: &mut Option<wgpu::ComputePipeline>,
        pass: &mut wgpu::ComputePass<'_>,
    ) {
        if current.as_ref() != Some(&dispatch.pipeline) {
            pass.set_pipeline(&dispatch.pipeline);
            *current = Some(dispatch.pipeline.clone());
        }
        let [x, y, z] = dispatch.workgroups;
        pass.set_bind_group(0, &dispatch.group, &[]);
        pass.dispatch_workgroups(x, y, z);
    }

    /// Submits everything up to the end of the last round, and returns an encoder with the rest recorded but not submitted.
    /// Without rounds that is the whole run.
    pub(super) async fn play(&self, prepared: &Prepared) -> Result<wgpu::CommandEncoder, RunError> {
        if self.canaries {
            self.lay_canaries(prepared).await?;
        }
        let new = || self.gpu.device().create_command_encoder(&Default::default());
        let (mut encoder, mut word) = (new(), None);
        let mut rounds = vec![0u64; prepared.segments().len()];
        let mut at = 0;
        while let Some(segment) = prepared.segments().get(at) {
            self.record_segment(prepared, segment, &mut encoder);
            if let Some(condition) = &segment.condition {
                let recorded = std::mem::replace(&mut encoder, new());
                rounds[at] += 1;
                if self.wants_another_round(condition, recorded, &mut word).await? {
                    self.check_round_limit(prepared, at, condition, rounds[at])?;
                    at = condition.first;
                    continue;
                }
                // A loop inside another one starts counting again in the next round of the outer loop.
                rounds[at] = 0;
            }
            at += 1;
        }
        Ok(encoder)
    }

    /// Submits the commands up to the end of a round, waits for them and returns whether there must be another round.
    async fn wants_another_round(
        &self,
        condition: &ConditionRead,
        mut recorded: wgpu::CommandEncoder,
        word: &mut Option<wgpu::Buffer>,
    ) -> Result<bool, RunError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let to = match word {
            Some(b) => b,
            None => word.insert(self.gpu.buffer("whether a loop goes on", 4, usage).await?),
        };
        recorded.copy_buffer_to_buffer(&condition.word.0, condition.word.1, to, 0, 4);
        let submit = || self.gpu.queue().submit([recorded.finish()]);
        let sent = self.gpu.scoped("running a loop", submit).await?;
        self.gpu.map_read(to, 4, Some(sent), |b| b.iter().any(|b| *b != 0)).await
    }

    /// Checks that the loop has not exceeded its largest number of rounds.
    fn check_round_limit(
        &self,
        prepared: &Prepared,
        segment: usize,
        condition: &ConditionRead,
        rounds: u64,
    ) -> Result<(), RunError> {
        let repeat = &self.program.repeats[condition.repeat];
        let most = repeat.until.as_ref().map_or(0, |u| u.rounds);
        if rounds < most {
            return Ok(());
        }
        let segments = &prepared.segments()[condition.first..=segment];
        Err(RunError::Endless {
            of: bind::origin(&self.program.dispatches[repeat.first].nodes),
            rounds,
            dispatches: segments.iter().map(|p| p.dispatches.len()).sum(),
            why: repeat.why.clone(),
        })
    }
}
