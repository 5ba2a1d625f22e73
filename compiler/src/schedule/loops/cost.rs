//! The time of a staged loop: each schedule only counts its work, of which [`Launch`] makes a time.

use super::{Blocked, Loop, Spread, is_in_blocks, loads};
use crate::cost::{Launch, Stage};
use crate::kernel::{Body, Expr, ExprId, Kernel, StagedLoop, length};
use crate::schedule::Context;
use crate::schedule::spread::{self, Plan};

/// The loads of memory that wait for each other for which a stage waits beside them: for what other invocations wrote into workgroup memory,
/// and for its own sums. A fit to recurrences timed on an H100.
const HANDED: f64 = 0.05;
/// The terms of a sum whose loads are under way together. A fit to recurrences timed on an H100.
const TOGETHER: f64 = 16.0;

/// A staged loop whose schedules are compared.
pub(super) struct Work<'a> {
    pub kernel: &'a Kernel,
    pub k: &'a StagedLoop,
    pub cx: &'a Context<'a>,
}

/// The elements of a stage that a workgroup computes, each by so many invocations, in blocks of so many.
struct Own {
    elements: u32,
    lanes: u32,
    block: u32,
}

/// Reads from workgroup memory.
fn shared_reads(body: &Body, roots: &[ExprId]) -> f64 {
    let reads = |e: &ExprId| matches!(body.expr(*e), Expr::Shared { .. });
    body.reachable(roots).iter().filter(|e| reads(e)).count() as f64
}

impl Work<'_> {
    /// The estimated time in [cycles](crate::device::Speeds::cycle) where each lane has a workgroup.
    pub(super) fn alone(&self, s: Loop) -> f64 {
        let own = self.k.each.iter().map(|s| Own { elements: s.elements, lanes: 1, block: 1 });
        self.launch(own.collect(), (s.threads, 1, false)).cycles(self.cx.device)
    }

    /// The estimated time in [cycles](crate::device::Speeds::cycle) where sums are computed in blocks.
    pub(super) fn blocked(&self, s: &Blocked) -> f64 {
        let own = self.k.each.iter().map(|stage| {
            let block = if is_in_blocks(stage, s) { s.block } else { 1 };
            Own { elements: stage.elements, lanes: 1, block }
        });
        self.launch(own.collect(), (s.threads, 1, true)).cycles(self.cx.device)
    }

    /// The estimated time in [cycles](crate::device::Speeds::cycle) where workgroups share a lane.
    pub(super) fn spread(&self, plan: &Plan, s: &Spread) -> f64 {
        let speeds = &self.cx.device.speeds;
        let own = self.k.each.iter().zip(&plan.each).map(|(stage, share)| {
            let elements = share.most(stage.elements);
            Own { elements, lanes: spread::lanes(stage, elements, s), block: 1 }
        });
        let own: Vec<Own> = own.collect();
        let more = own.iter().filter(|o| o.lanes > 1).count() as f64;
        let mut handing = vec![];
        for (array, h) in plan.handed.iter().enumerate().filter(|h| h.1.is_some()) {
            let stage = self.k.each.iter().position(|s| s.writes.iter().any(|w| w.array as usize == array));
            let looks = h.map_or(0, |h| h.elements.div_ceil(s.threads));
            handing.extend(stage.filter(|s| !handing.iter().any(|(x, _)| x == s)).map(|s| (s, looks)));
        }
        let steps = self.cx.expect.extent(&self.k.steps);
        let barriers = steps * (more + handing.len() as f64);
        let exchanges: f64 = handing.iter().map(|h| f64::from(h.1.max(1)).sqrt()).sum();
        let launch = self.launch(own, (s.threads, s.groups, s.kept));
        let launch = Launch { barriers: launch.barriers + barriers, ..launch };
        // A dispatch before the loop fills the words by which workgroups meet, and one behind it runs the ordinary form if they did not.
        launch.cycles(self.cx.device)
            + steps * exchanges * speeds.exchange / speeds.cycle()
            + 2.0 * speeds.dispatch_cycles()
    }

    /// The counts of all steps of a loop of whose stages a workgroup computes so much.
    fn launch(&self, own: Vec<Own>, (threads, groups, kept): (u32, u32, bool)) -> Launch {
        let (k, body) = (self.k, &self.kernel.body);
        let lanes = self.cx.expect.extent(&k.lanes.iter().product());
        let steps = self.cx.expect.extent(&k.steps);
        let each = f64::from(threads);
        let mut out = Launch { workgroups: lanes * f64::from(groups), threads: each, ..Launch::default() };
        let mut bytes = 0.0;
        for (stage, Own { elements, lanes, block }) in k.each.iter().zip(own) {
            // Invocations without an element wait for the others.
            let rounds = f64::from((elements * lanes).div_ceil(threads));
            let single = elements <= threads;
            let once: Vec<ExprId> =
                stage.writes.iter().map(|w| w.value).chain(stage.stores.iter().map(|s| s.value)).collect();
            let (fixed, others) = loads(body, &once, k.lanes.len());
            let read = f64::from(others + if single { 0 } else { fixed });
            let mut step = Stage {
                operations: rounds * length::of(body, &once) as f64,
                shared: rounds * shared_reads(body, &once),
                loaded: rounds * read,
                barriers: 1.0,
                waits: HANDED + rounds * read.min(1.0) / TOGETHER,
                ..Stage::default()
            };
            if let Some(c) = &stage.combined {
                let value = [c.reduction.value];
                let terms = rounds * f64::from(c.terms.div_ceil(lanes * block));
                let (fixed, others) = loads(body, &value, k.lanes.len());
                let again = f64::from(others + if kept && single { 0 } else { fixed });
                step.operations += terms * f64::from(block) * (length::of(body, &value) + 1) as f64;
                step.shared += terms * shared_reads(body, &value);
                step.loaded += terms * f64::from(block) * again;
                step.waits += terms * again.min(1.0) / TOGETHER;
            }
            // A stage with few elements occupies few subgroups.
            let live = (f64::from(elements * lanes) / (rounds * each)).min(1.0);
            let step = Stage { shared: live * step.shared, loaded: live * step.loaded, ..step };
            bytes += 4.0 * each * step.loaded;
            out = out.with(&step, steps);
        }
        // A core's first cache holds as much as its workgroup memory: they are one memory, or lie side by side.
        let fetched =
            if bytes > f64::from(self.cx.device.core_workgroup_bytes) { steps * bytes } else { 0.0 };
        Launch { fetched, ..out }
    }
}
