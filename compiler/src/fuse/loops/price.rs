//! The estimated costs of the forms of a loop, for the choice between them.
//!
//! The time of a step is the largest of three bounds: the chain of dependent operations of one invocation, all operations of all lanes at
//! the device's rate, and the memory read anew in every step. A loop in one kernel saves the dispatches of its steps; but where a single
//! invocation or workgroup does the work of a whole lane, most of the device may be idle, so that splitting the loop can be faster.

use crate::device::Speeds;
use crate::fuse::loops::lanes::{Executor, Mapping, Steps};
use crate::fuse::loops::stages::Staged;
use crate::fuse::unit::is_anchor;
use crate::kernel::{Body, Expr, ExprId, length};
use crate::options::Options;
use crate::schedule::loops::stage_threads as threads;
use wgfc_ir::{Contract, Dim, Graph, Op, Poly, TensorType};

/// The share of an invocation's registers that holds the values which it carries; values beyond them spill to memory.
const CARRIED: f64 = 5.0 / 8.0;
/// An executor is chosen over a simpler one, and splitting over one kernel, only if it takes less than this fraction of the other's time,
/// since the estimates are no more accurate.
const BETTER: f64 = 0.75;
/// The number of workgroups beyond which a step hardly gets shorter.
const MOST_GROUPS: f64 = 32.0;

/// The work of one step of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Dependent operations of an invocation, including those of its loops.
    pub chain: f64,
    /// Operations of all invocations of the lane.
    pub all: f64,
    /// Bytes that all invocations read anew in every step.
    pub bytes: f64,
    /// Iterations of the loops within a step, plus the step itself.
    pub iterations: f64,
    /// Barriers of a step.
    pub stages: f64,
    /// Values that an invocation carries.
    pub carried: f64,
    /// Instructions that a step has in the kernel's text.
    pub instructions: usize,
}

/// The number of operations that evaluate the roots.
fn count(body: &Body, roots: &[ExprId]) -> f64 {
    let plain = |e: &ExprId| !matches!(body.expr(*e), Expr::Const(_) | Expr::Index(_) | Expr::Acc(_));
    body.reachable(roots).iter().filter(|e| plain(e)).count() as f64
}

impl Work {
    pub(in crate::fuse) fn of_invocation(body: &Body, steps: &Steps) -> Work {
        let mut roots: Vec<ExprId> = steps.carries.iter().map(|c| c.next).collect();
        roots.extend(steps.stacked.iter().flatten().map(|s| s.1));
        let chain = count(body, &roots);
        let (carried, instructions) = (steps.carries.len() as f64, length::of(body, &roots));
        Work { chain, all: chain, iterations: 1.0, carried, instructions, ..Work::default() }
    }

    pub(in crate::fuse) fn of_workgroup(mapping: &Mapping, staged: &Staged, body: &Body) -> Work {
        let threads = threads(staged.widest(), mapping.profile.loop_invocations());
        let mut w = Work { stages: staged.each.len() as f64, iterations: 1.0, ..Work::default() };
        let fixed = |p: &Poly, single: bool| {
            p.data().is_empty()
                && p.vars().into_iter().all(|v| v < mapping.lanes.len() || single && v == mapping.element())
        };
        for (i, s) in staged.each.iter().enumerate() {
            let single = s.elements <= threads;
            let rounds = f64::from(s.elements.div_ceil(threads));
            let mut once: Vec<ExprId> = s.writes.iter().map(|w| w.value).collect();
            once.extend(staged.stacked.iter().filter(|x| x.0 == i).map(|x| x.2));
            let terms = s.combined.as_ref().map_or(0.0, |c| f64::from(c.terms));
            let term = s.combined.as_ref().map_or(0.0, |c| count(body, &[c.reduction.value]) + 1.0);
            let operations = rounds * (terms * term + count(body, &once));
            w.chain += operations;
            w.iterations += rounds * (1.0 + terms);
            w.all += operations * f64::from(threads);
            let reduced = s.combined.iter().map(|c| c.reduction.value);
            let roots: Vec<ExprId> = once.iter().copied().chain(reduced).collect();
            w.instructions = w.instructions.saturating_add(length::of(body, &roots));
            for e in body.reachable(&roots) {
                if let Expr::Load { offset, .. } = body.expr(e)
                    && !fixed(offset, single)
                {
                    let again = if offset.vars().contains(&mapping.term()) { terms } else { 1.0 };
                    w.bytes += f64::from(s.elements) * again * (body.dtype(e).bits() as f64 / 8.0);
                }
            }
        }
        w
    }
}

/// Seconds per step of a loop that is one kernel.
pub(in crate::fuse) fn fused(w: &Work, mapping: &Mapping) -> f64 {
    let lanes = mapping.expect.estimate(&mapping.lanes.iter().product::<Dim>()).max(1) as f64;
    let speeds: &Speeds = &mapping.profile.speeds;
    let registers = f64::from(mapping.profile.registers_for(CARRIED).max(1));
    let spilled = (w.carried / registers - 1.0).max(0.0);
    let one = w.chain * speeds.operation * (1.0 + 4.0 * spilled);
    let one = match mapping.executor {
        Executor::Invocation => one,
        Executor::Workgroup => {
            let alone = (one + w.stages * speeds.barrier).max(w.bytes / speeds.workgroup_bandwidth);
            // Several workgroups can keep what they read in registers if there are enough of them, and exchange their results.
            let groups = mapping.room().clamp(1.0, MOST_GROUPS);
            let kept = mapping.profile.kept_words() as f64 * 4.0;
            let again = (w.bytes - groups * kept).max(0.0) / groups;
            let shared = (one / groups).max(again / speeds.workgroup_bandwidth)
                + w.stages * 2.0 * speeds.barrier
                + speeds.exchange;
            if groups < 2.0 { alone } else { alone.min(shared) }
        }
    };
    one.max(lanes * w.all / speeds.flops_f32).max(lanes * w.bytes / speeds.shared_cache())
}

/// Seconds per step of a split loop in which each combining operator is a dispatch, and the number of dispatches.
pub(in crate::fuse) fn split(body: &Graph, options: &Options) -> (f64, usize) {
    let speeds = &options.profile.speeds;
    let estimate = |d: &Dim| options.expect.estimate(d);
    let mut dispatches = 1;
    let mut work = 0.0;
    for n in body.node_ids() {
        let node = body.node(n);
        let out: f64 = node.outputs.iter().map(|t| estimate(&t.numel()) as f64).sum();
        let terms = |axes: &[usize]| {
            axes.iter().map(|a| estimate(&body.ty(node.inputs[0]).shape[*a]) as f64).product::<f64>()
        };
        dispatches += usize::from(is_anchor(body, n));
        work += match &node.op {
            Op::Map { body, .. } => out * body.nodes.len() as f64,
            Op::Reduce { axes, .. } => out * terms(axes),
            Op::Contract(c) => out * 2.0 * terms(&summed(c)),
            _ => out,
        };
    }
    // Carried values go through memory.
    let moved: f64 = body.outputs.iter().map(|o| bytes(body.ty(o.value), options)).sum();
    let busy = (work / speeds.flops_f32).max(2.0 * moved / speeds.bandwidth);
    (dispatches as f64 * speeds.dispatch() + busy, dispatches)
}

fn bytes(ty: &TensorType, options: &Options) -> f64 {
    ty.dtype.bits() as f64 / 8.0 * options.expect.estimate(&ty.numel()) as f64
}

/// The axes of a product's first operand that are summed.
pub(in crate::fuse) fn summed(c: &Contract) -> Vec<usize> {
    c.k().iter().filter_map(|l| c.a.iter().position(|x| x == l)).collect()
}

/// The best of the mappings, each given with its seconds per step, simpler executors first. `refused` gives the reasons against other
/// mappings. The error gives the reasons for splitting the loop.
pub(in crate::fuse) fn choose(
    found: Vec<(f64, Mapping)>,
    split: (f64, usize),
    refused: Vec<String>,
) -> Result<Mapping, Vec<String>> {
    let micro = |s: f64| format!("{:.1} µs", s * 1e6);
    let mut best: Option<(f64, Mapping)> = None;
    for (seconds, mut mapping) in found {
        mapping.why = match &best {
            None => refused.join("; "),
            Some(b) if seconds < b.0 * BETTER => {
                format!(
                    "a step is estimated to take an invocation {}, a workgroup {}",
                    micro(b.0),
                    micro(seconds)
                )
            }
            Some(_) => continue,
        };
        best = Some((seconds, mapping));
    }
    let Some((seconds, mapping)) = best else { return Err(refused) };
    if split.0 < seconds * BETTER {
        let lane = match mapping.executor {
            Executor::Invocation => "an invocation for each lane",
            Executor::Workgroup => "a workgroup for each lane",
        };
        let (one, dispatches, many) = (micro(seconds), split.1, micro(split.0));
        return Err(vec![format!(
            "a step is estimated to take {lane} {one}, and {dispatches} dispatches {many}"
        )]);
    }
    Ok(mapping)
}
