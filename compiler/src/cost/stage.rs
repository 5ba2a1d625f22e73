//! The work of one invocation in a step of a kernel that repeats steps.

use super::Launch;
use crate::device::Speeds;

/// Bytes of an element in workgroup memory and in caches.
const ELEMENT: f64 = 4.0;

/// How much of a barrier among many instructions one takes that stands between few, if a core executes other workgroups meanwhile. A fit to
/// rows timed on an H100.
const BETWEEN_FEW: f64 = 0.5;

/// The barriers for which one counts that stands between few instructions, such as those that combine what lanes have.
pub fn barrier_between_few(speeds: &Speeds) -> f64 {
    if speeds.overlaps() { BETWEEN_FEW } else { 1.0 }
}

/// The work of an invocation in a step, or beside its steps. Barriers and multiply-adds of matrix units are those of its workgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Operations; a multiply-add is one.
    pub operations: f64,
    /// Elements of 32 bits that are read from workgroup memory.
    pub shared: f64,
    /// Elements of 32 bits that are loaded from buffers.
    pub loaded: f64,
    /// Multiply-adds of the workgroup on matrix units.
    pub matrix: f64,
    /// Barriers.
    pub barriers: f64,
    /// Latencies of memory that follow each other.
    pub waits: f64,
}

impl Launch {
    /// This dispatch with a stage that each of its invocations executes so many times.
    #[must_use]
    pub fn with(self, stage: &Stage, times: f64) -> Launch {
        let all = self.threads * times;
        Launch {
            operations: self.operations + all * stage.operations,
            shared: self.shared + all * ELEMENT * stage.shared,
            cached: self.cached + all * ELEMENT * stage.loaded,
            matrix: self.matrix + times * stage.matrix,
            barriers: self.barriers + times * stage.barriers,
            steps: self.steps + times * stage.waits,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_counts_for_each_invocation_and_each_time() {
        let stage =
            Stage { operations: 3.0, shared: 5.0, loaded: 7.0, matrix: 4096.0, barriers: 2.0, waits: 1.0 };
        let l = Launch { threads: 64.0, ..Launch::default() };
        let l = l.with(&stage, 10.0).with(&Stage { waits: 2.0, ..Stage::default() }, 1.0);
        assert_eq!((l.operations, l.shared, l.cached), (1920.0, 12_800.0, 17_920.0));
        assert_eq!((l.matrix, l.barriers, l.steps), (40_960.0, 20.0, 12.0));
    }
}
