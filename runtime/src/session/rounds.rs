//! Recording a plan, and running what is repeated until a word on the device says that it is done.

use super::plan::{Look, Part, Plan};
use super::{Session, Step};
use crate::bind;
use crate::error::RunError;

impl Session {
    /// Records a plan, of what runs in rounds one round.
    pub(crate) fn record(&self, plan: &Plan, encoder: &mut wgpu::CommandEncoder) {
        plan.parts().iter().for_each(|part| self.record_part(plan, part, encoder));
    }

    /// Records a part: one compute pass, then copies of computed sizes.
    fn record_part(&self, plan: &Plan, part: &Part, encoder: &mut wgpu::CommandEncoder) {
        if !part.steps.is_empty() || part.look.is_none() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            let mut current = None;
            for step in &plan.steps[part.steps.clone()] {
                self.record_step(step, &mut current, &mut pass);
            }
        }
        self.record_sizes(part, encoder);
    }

    /// Records one dispatch; `current` is the pipeline that is set.
    pub(crate) fn record_step(
        &self,
        step: &Step,
        current: &mut Option<wgpu::ComputePipeline>,
        pass: &mut wgpu::ComputePass<'_>,
    ) {
        if current.as_ref() != Some(&step.pipeline) {
            pass.set_pipeline(&step.pipeline);
            *current = Some(step.pipeline.clone());
        }
        let [x, y, z] = step.workgroups;
        pass.set_bind_group(0, &step.group, &[]);
        pass.dispatch_workgroups(x, y, z);
    }

    /// Runs a plan to the end of its last round and returns, recorded, what comes behind: all of a plan
    /// without rounds.
    pub(super) async fn play(&self, plan: &Plan) -> Result<wgpu::CommandEncoder, RunError> {
        let new = || self.gpu.device().create_command_encoder(&Default::default());
        let (mut encoder, mut word) = (new(), None);
        let mut rounds = vec![0u64; plan.parts().len()];
        let mut at = 0;
        while let Some(part) = plan.parts().get(at) {
            self.record_part(plan, part, &mut encoder);
            if let Some(look) = &part.look {
                let recorded = std::mem::replace(&mut encoder, new());
                rounds[at] += 1;
                if self.goes_on(look, recorded, &mut word).await? {
                    self.may_go_on(plan, at, look, rounds[at])?;
                    at = look.first;
                    continue;
                }
                // Inside of another round it begins again.
                rounds[at] = 0;
            }
            at += 1;
        }
        Ok(encoder)
    }

    /// Submits what is recorded up to the end of a round, and whether there must be another.
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

    /// Refuses a round too many.
    fn may_go_on(&self, plan: &Plan, part: usize, look: &Look, rounds: u64) -> Result<(), RunError> {
        let repeat = &self.program.repeats[look.repeat];
        let most = repeat.until.as_ref().map_or(0, |u| u.rounds);
        if rounds < most {
            return Ok(());
        }
        let parts = &plan.parts()[look.first..=part];
        Err(RunError::Endless {
            of: bind::origin(&self.program.dispatches[repeat.first].nodes),
            rounds,
            dispatches: parts.iter().map(|p| p.steps.len()).sum(),
            why: repeat.why.clone(),
        })
    }
}
