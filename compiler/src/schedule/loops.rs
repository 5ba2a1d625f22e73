//! How the lanes of loops are shared out.

use super::spread::{self, Plan};
use super::{Context, Schedule};
use crate::device::{DeviceProfile, Speeds};
use crate::kernel::{self, Array, Body, Expr, ExprId, Kernel, Stage, StagedLoop};
use wgfc_ir::{Dim, Poly};

/// This share of the invocations under way together keeps a device busy with workgroups of [`THREADS`]: 32768 on an
/// H100, a fit.
const MANY: f64 = 8.0;
const THREADS: u32 = 64;

/// How a loop is computed, whether its lanes are invocations or workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// Invocations of a workgroup.
    pub threads: u32,
}

/// How a staged loop is computed by several workgroups a lane, which wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Workgroups that share a lane.
    pub groups: u32,
    /// Invocations that share the terms of an element, where there are so many.
    pub lanes: u32,
    /// What is combined is written out, so that what no step changes stays in registers.
    pub kept: bool,
    /// How often a value is looked for before it is given up.
    pub polls: u32,
}

/// All schedules of a loop that a device can run, the preferred one first.
pub fn candidates(k: &kernel::Loop, cx: &Context) -> Vec<Loop> {
    let most = cx.device.max_invocations.max(1);
    let count: Dim = k.lanes.iter().product();
    // Few lanes are spread over more workgroups.
    let many = cx.device.speeds.share_of_resident(MANY);
    let preferred = if cx.expect.estimate(&count) < many { THREADS / 2 } else { THREADS };
    let mut out = vec![preferred.min(most)];
    for t in [32, 64, 128, 256] {
        if t <= most && !out.contains(&t) {
            out.push(t);
        }
    }
    out.into_iter().map(|threads| Loop { threads }).collect()
}

/// All schedules of a staged loop that a device can run, the preferred one first.
pub fn staged_candidates(kernel: &Kernel, k: &StagedLoop, cx: &Context) -> Vec<Schedule> {
    let ordinary = ordinary_candidates(k, cx.device).into_iter().map(Schedule::StagedLoop);
    let mut all: Vec<Schedule> = ordinary.collect();
    let spread = spread_candidates(kernel, k, cx);
    let speeds = &cx.device.speeds;
    let one = step_alone(kernel, k, all.first(), cx);
    // Words are filled before a loop, and its ordinary form looked into behind.
    let steps = cx.expect.extent(&k.steps);
    let better = spread.first().is_some_and(|(s, _)| s + 2.0 * speeds.dispatch_cost / steps < one);
    let at = usize::from(!better).min(all.len());
    let mut spread = spread.into_iter().map(|(_, s)| Schedule::SpreadLoop(s));
    all.splice(at..at, spread.next());
    all.extend(spread);
    all
}

fn ordinary_candidates(k: &StagedLoop, device: &DeviceProfile) -> Vec<Loop> {
    let widest = k.stages().map(|s| s.elements).max().unwrap_or(1);
    let first = stage_threads(widest, device.max_invocations);
    let others = [32, 64, 128, 256].into_iter().filter(|t| *t < first);
    [first].into_iter().chain(others).map(|threads| Loop { threads }).collect()
}

/// Words that an invocation keeps of what it combines: half of the registers that today's GPUs have for one.
const KEPT: u32 = 128;
/// Words that a workgroup keeps in registers: three eighths of the 64 Ki that a core of today's GPUs has, as the rest
/// is needed for other values. Nothing that is measured tells it.
pub const RESIDENT: i64 = 24 << 10;
/// Seconds after which a value is given up: much longer than it takes, and not longer than a user waits.
const GIVEN_UP: f64 = 0.05;

/// How often a device looks for a value before it is given up: a look takes a third of the time in which values are handed on.
fn polls(speeds: &Speeds) -> u32 {
    let looks = 3.0 * GIVEN_UP / speeds.exchange;
    1 << (looks.clamp(1024.0, f64::from(1u32 << 20)) as u32).ilog2()
}

/// Schedules of a loop whose lanes several workgroups share, with their seconds a step, best first: all of them run together.
fn spread_candidates(kernel: &Kernel, k: &StagedLoop, cx: &Context) -> Vec<(f64, Spread)> {
    let device = cx.device;
    let lanes = cx.expect.extent(&k.lanes.iter().product());
    let room = (device.speeds.resident_workgroups / lanes).clamp(1.0, 1024.0) as u32;
    let bindings = kernel.tensors().len() + 1;
    // Where drivers end long loops, too few looks are left to each step.
    if room < 2 || device.loop_iterations.is_some() || bindings > device.max_storage_buffers as usize {
        return vec![];
    }
    let powers: Vec<u32> = (1..=10).map(|p| 1u32 << p).filter(|g| *g <= room).collect();
    let mut out = vec![];
    for (groups, plan) in spread::plans(kernel, cx.graph, &powers) {
        for lanes in [1u32, 2, 3, 4, 5, 8, 16] {
            let own = k.each.iter().zip(&plan.each).map(|(s, share)| share.most(s.elements));
            let most = own.max().unwrap_or(1).saturating_mul(lanes);
            let threads = most.next_multiple_of(32).clamp(1, device.max_invocations.clamp(1, 256));
            if most > threads && lanes > 1 {
                continue;
            }
            for kept in [true, false] {
                let polls = polls(&device.speeds);
                let s = Spread { threads, groups, lanes, kept, polls };
                let mut stages = k.each.iter().zip(&plan.each);
                if !stages.any(|(x, share)| spread::lanes(x, share.most(x.elements), &s) == lanes) {
                    continue;
                }
                if bytes(k, &plan, &s) <= device.max_workgroup_bytes
                    && (!kept || keeps_all(kernel, k, &plan, &s))
                {
                    out.push((step_spread(kernel, k, &plan, &s, &device.speeds), s));
                }
            }
        }
    }
    out.sort_by(|a, b| a.0.total_cmp(&b.0));
    out
}

/// Bytes of workgroup memory.
pub fn bytes(k: &StagedLoop, plan: &Plan, s: &Spread) -> u32 {
    let arrays = k.arrays.iter().map(array_bytes);
    let partial = k.each.iter().zip(&plan.each).map(|(stage, share)| {
        let own = share.most(stage.elements);
        let lanes = spread::lanes(stage, own, s);
        let word = stage.combined.as_ref().map_or(4, |c| if c.reduction.dtype.bits() == 64 { 8 } else { 4 });
        if lanes > 1 { own * lanes * word } else { 0 }
    });
    arrays.chain(partial).fold(8, u32::saturating_add)
}

/// What an expression reads anew in each step: of the others it is known before the loop.
fn is_fixed(offset: &Poly, lanes: usize) -> bool {
    offset.data().is_empty() && !offset.vars().contains(&lanes)
}

/// Loads of a stage's terms that no step changes, and of those that one does.
fn loads(body: &Body, roots: &[ExprId], lanes: usize) -> (u32, u32) {
    let (mut fixed, mut others) = (0, 0);
    for e in body.reachable(roots) {
        if let Expr::Load { offset, .. } = body.expr(e) {
            *(if is_fixed(offset, lanes) { &mut fixed } else { &mut others }) += 1;
        }
    }
    (fixed, others)
}

/// Whether invocations have the registers for what the stages combine.
fn keeps_all(kernel: &Kernel, k: &StagedLoop, plan: &Plan, s: &Spread) -> bool {
    let mut any = false;
    let fits = |(stage, share): (&Stage, &spread::Share)| {
        let Some(c) = &stage.combined else { return true };
        let own = share.most(stage.elements);
        let each = c.terms.div_ceil(spread::lanes(stage, own, s));
        let (fixed, _) = loads(&kernel.body, &[c.reduction.value], k.lanes.len());
        any = true;
        own <= s.threads && fixed * each <= KEPT && each <= KEPT
    };
    k.each.iter().zip(&plan.each).all(fits) && any
}

/// How many operations evaluating the roots takes.
fn operations(body: &Body, roots: &[ExprId]) -> f64 {
    let plain = |e: &ExprId| !matches!(body.expr(*e), Expr::Const(_) | Expr::Index(_) | Expr::Acc(_));
    body.reachable(roots).iter().filter(|e| plain(e)).count() as f64
}

/// Estimated seconds of a step that a workgroup does alone.
fn step_alone(kernel: &Kernel, k: &StagedLoop, s: Option<&Schedule>, cx: &Context) -> f64 {
    let Some(Schedule::StagedLoop(s)) = s else { return f64::INFINITY };
    let own = k.each.iter().map(|s| (s.elements, 1));
    step(kernel, k, own.collect(), (s.threads, false), &cx.device.speeds)
}

/// Estimated seconds of a step that workgroups share.
fn step_spread(kernel: &Kernel, k: &StagedLoop, plan: &Plan, s: &Spread, speeds: &Speeds) -> f64 {
    let own = k.each.iter().zip(&plan.each).map(|(stage, share)| {
        let own = share.most(stage.elements);
        (own, spread::lanes(stage, own, s))
    });
    let own: Vec<(u32, u32)> = own.collect();
    let more = own.iter().filter(|o| o.1 > 1).count() as f64;
    let mut handing = vec![];
    for (array, h) in plan.handed.iter().enumerate().filter(|h| h.1.is_some()) {
        let stage = k.each.iter().position(|s| s.writes.iter().any(|w| w.array as usize == array));
        let looks = h.map_or(0, |h| h.elements.div_ceil(s.threads));
        handing.extend(stage.filter(|s| !handing.iter().any(|(x, _)| x == s)).map(|s| (s, looks)));
    }
    let exchanges: f64 = handing.iter().map(|h| f64::from(h.1.max(1)).sqrt()).sum();
    let rest = (more + handing.len() as f64) * speeds.barrier + exchanges * speeds.exchange;
    step(kernel, k, own, (s.threads, s.kept), speeds) + rest
}

/// Estimated seconds of a step of which a workgroup computes so many elements of each stage, by so many invocations each.
fn step(
    kernel: &Kernel,
    k: &StagedLoop,
    own: Vec<(u32, u32)>,
    (threads, kept): (u32, bool),
    speeds: &Speeds,
) -> f64 {
    let (mut chain, mut bytes) = (0.0, 0.0);
    for (stage, (own, lanes)) in k.each.iter().zip(own) {
        let rounds = f64::from((own * lanes).div_ceil(threads));
        let once: Vec<ExprId> =
            stage.writes.iter().map(|w| w.value).chain(stage.stores.iter().map(|s| s.value)).collect();
        chain += rounds * operations(&kernel.body, &once);
        let (fixed, others) = loads(&kernel.body, &once, k.lanes.len());
        let single = own <= threads;
        bytes += f64::from(own) * 4.0 * f64::from(others + if single { 0 } else { fixed });
        if let Some(c) = &stage.combined {
            let each = f64::from(c.terms.div_ceil(lanes));
            chain += rounds * each * (operations(&kernel.body, &[c.reduction.value]) + 1.0);
            let (fixed, others) = loads(&kernel.body, &[c.reduction.value], k.lanes.len());
            let again = f64::from(others + if kept && single { 0 } else { fixed });
            bytes += f64::from(own) * f64::from(c.terms) * 4.0 * again;
        }
    }
    let stages = k.each.len() as f64;
    (chain * speeds.operation + stages * speeds.barrier).max(bytes / speeds.workgroup_bandwidth)
}

/// Invocations of a workgroup whose largest stage has so many elements.
pub fn stage_threads(elements: u32, most: u32) -> u32 {
    elements.next_multiple_of(32).clamp(1, most.max(1))
}

/// Bytes of an array in workgroup memory.
pub fn array_bytes(a: &Array) -> u32 {
    let word = if a.dtype.bits() == 64 { 8 } else { 4 };
    a.len.saturating_mul(word)
}
