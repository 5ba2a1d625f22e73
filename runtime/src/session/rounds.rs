//! Recording of runs, and loops whose condition the host reads after each round.

use super::prepared::{Look, Prepared, Segment};
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
        if !segment.dispatches.is_empty() || segment.look.is_none() {
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
            if let Some(look) = &segment.look {
                let recorded = std::mem::replace(&mut encoder, new());
                rounds[at] += 1;
                if self.goes_on(look, recorded, &mut word).await? {
                    self.may_go_on(prepared, at, look, rounds[at])?;
                    at = look.first;
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
    async fn goes_on(
        &self,
        look: &Look,
        mut recorded: wgpu::CommandEncoder,
        word: &mut Option<wgpu::Buffer>,
    ) -> Result<bool, RunError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let to = match word {
            Some(b) => b,
            None => word.insert(self.gpu.buffer("whether a loop goes on", 4, usage).await?),
        };
        recorded.copy_buffer_to_buffer(&look.word.0, look.word.1, to, 0, 4);
        let submit = || self.gpu.queue().submit([recorded.finish()]);
        let sent = self.gpu.scoped("running a loop", submit).await?;
        self.gpu.map_read(to, 4, Some(sent), |b| b.iter().any(|b| *b != 0)).await
    }

    /// Checks that the loop has not exceeded its largest number of rounds.
    fn may_go_on(
        &self,
        prepared: &Prepared,
        segment: usize,
        look: &Look,
        rounds: u64,
    ) -> Result<(), RunError> {
        let repeat = &self.program.repeats[look.repeat];
        let most = repeat.until.as_ref().map_or(0, |u| u.rounds);
        if rounds < most {
            return Ok(());
        }
        let segments = &prepared.segments()[look.first..=segment];
        Err(RunError::Endless {
            of: bind::origin(&self.program.dispatches[repeat.first].nodes),
            rounds,
            dispatches: segments.iter().map(|p| p.dispatches.len()).sum(),
            why: repeat.why.clone(),
        })
    }
}
