//! The work of kernels, and the time that it takes on a device.

use crate::device::Speeds;

/// The work of one kernel, or of several that run one after another.
///
/// Reading and writing memory, what caches deliver and arithmetic go on at once: the longest of them counts. Dispatches, and latencies that
/// nothing hides, come on top.
///
/// ```
/// use wgfc_compiler::cost::Work;
/// use wgfc_compiler::device::Speeds;
/// // A copy of a megabyte waits for memory once.
/// let copy = Work { memory: 2.0 * 1048576.0, waits: 1.0, dispatches: 1.0, ..Work::default() };
/// let [fast, slow] = [Speeds::DISCRETE, Speeds::INTEGRATED].map(|s| copy.cycles(&s) * s.cycle());
/// assert!(fast < slow);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// The bytes that are read from memory and written to it.
    pub memory: f64,
    /// The bytes that all workgroups together read from caches and memory.
    pub cached: f64,
    /// The [cycles](Speeds::cycle) that one core would need for all arithmetic, and for its loads and stores.
    pub core: f64,
    /// The number of memory latencies that follow each other.
    pub waits: f64,
    /// The number of dispatches.
    pub dispatches: f64,
}

impl Work {
    /// The estimated time in [cycles](Speeds::cycle).
    pub fn cycles(&self, speeds: &Speeds) -> f64 {
        let memory = self.memory / speeds.bytes_per_cycle();
        let cached = self.cached / speeds.shared_cache() / speeds.cycle();
        memory.max(cached).max(self.core / speeds.cores)
            + self.dispatches * speeds.dispatch_cycles()
            + self.waits * speeds.memory_latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_part_counts_and_waits_come_on_top() {
        let s = Speeds::DISCRETE;
        let (memory, cached, core) = (1600.0 * 50.0, 1600.0 * 4.0 * 70.0, 128.0 * 60.0);
        let time = |w: Work| w.cycles(&s).round();
        assert_eq!(time(Work { memory, ..Work::default() }), 50.0);
        assert_eq!(time(Work { memory, cached, ..Work::default() }), 70.0);
        assert_eq!(time(Work { memory, core, ..Work::default() }), 60.0);
        let both = Work { memory, cached, core, waits: 2.0, dispatches: 3.0 };
        assert_eq!(time(both), 70.0 + 2.0 * 600.0 + 3.0 * 7000.0);
    }
}
