//! How the lanes of loops are shared out.

mod cost;

pub use super::loop_forms::{Blocked, Loop, Spread};

use super::spread::{self, Plan};
use super::{Context, Schedule};
use crate::device::{DeviceProfile, Speeds};
use crate::kernel::{self, Array, Body, Expr, ExprId, Kernel, ReduceKind, Stage, StagedLoop};
use wgfc_ir::{DType, Dim, Poly};

/// This share of the invocations under way together keeps a device busy with workgroups of [`THREADS`]: 32768 on an
/// H100, a fit.
const MANY: f64 = 8.0;
const THREADS: u32 = 64;

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
    let work = cost::Work { kernel, k, cx };
    let alone = |s: Loop| (work.alone(s), Schedule::StagedLoop(s));
    let ordinary = ordinary_candidates(k, cx.device).into_iter().map(alone);
    let blocked = blocked_candidates(&work).into_iter().map(|(t, s)| (t, Schedule::BlockedLoop(s)));
    let spread = spread_candidates(&work).into_iter().map(|(t, s)| (t, Schedule::SpreadLoop(s)));
    let (mut best, mut rest) = (vec![], vec![]);
    for form in [ordinary.collect::<Vec<_>>(), blocked.collect(), spread.collect()] {
        let mut form = form.into_iter();
        best.extend(form.next());
        rest.extend(form);
    }
    best.sort_by(|a, b| a.0.total_cmp(&b.0));
    best.into_iter().chain(rest).map(|s| s.1).collect()
}

fn ordinary_candidates(k: &StagedLoop, device: &DeviceProfile) -> Vec<Loop> {
    let widest = k.stages().map(|s| s.elements).max().unwrap_or(1);
    let first = stage_threads(widest, device.loop_invocations());
    let most = stage_threads(widest, device.max_invocations);
    let others = [32, 64, 128, 256].into_iter().filter(|t| *t != first && *t <= most);
    [first].into_iter().chain(others).map(|threads| Loop { threads }).collect()
}

/// The share of an invocation's registers that holds what it combines, and the share that holds the blocks that it keeps.
const COMBINED: f64 = 1.0 / 2.0;
const BLOCKS: f64 = 3.0 / 4.0;
/// Registers that an invocation needs beside the blocks that it keeps.
const BESIDE: u32 = 40;
/// Seconds after which a value is given up: much longer than it takes, and not longer than a user waits.
const GIVEN_UP: f64 = 0.05;

/// How often a device looks for a value before it is given up: a look takes a third of the time in which values are handed on.
fn polls(speeds: &Speeds) -> u32 {
    let looks = 3.0 * GIVEN_UP / speeds.exchange;
    1 << (looks.clamp(1024.0, f64::from(1u32 << 20)) as u32).ilog2()
}

/// Whether a workgroup of so many invocations can keep so many words in each.
pub fn keeps_blocks(threads: u32, words: u32, device: &DeviceProfile) -> bool {
    let room = threads.saturating_mul(words.saturating_add(BESIDE)) <= device.core_registers;
    threads <= device.loop_invocations() && words <= device.registers_for(BLOCKS) && room
}

/// Whether a stage's sum is computed in blocks.
pub fn is_in_blocks(stage: &Stage, s: &Blocked) -> bool {
    let fits = |c: &kernel::Combined| {
        c.reduction.kind == ReduceKind::Sum && c.reduction.dtype == DType::F32 && c.terms >= s.block
    };
    stage.elements <= s.threads && stage.combined.as_ref().is_some_and(fits)
}

/// Schedules of a loop whose workgroups keep all that they sum up in registers, with their times, best first.
fn blocked_candidates(work: &cost::Work) -> Vec<(f64, Blocked)> {
    let (kernel, k, device) = (work.kernel, work.k, work.cx.device);
    let Some(subgroup) = device.subgroup else { return vec![] };
    let widest = k.stages().map(|s| s.elements).max().unwrap_or(1);
    let threads = stage_threads(widest, u32::MAX).next_multiple_of(subgroup);
    let mut out = vec![];
    for block in [4, 8, 2].into_iter().filter(|b| *b <= subgroup) {
        let s = Blocked { threads, block, subgroup };
        let words = |stage: &Stage| {
            let c = stage.combined.as_ref().filter(|_| is_in_blocks(stage, &s))?;
            let (fixed, _) = loads(&kernel.body, &[c.reduction.value], k.lanes.len());
            Some(fixed.saturating_mul(c.terms.next_multiple_of(block)))
        };
        let words: Vec<u32> = k.each.iter().filter_map(words).collect();
        let any = !words.is_empty() && words.iter().all(|w| *w > 0);
        if any && keeps_blocks(threads, words.iter().fold(0, |sum, w| sum.saturating_add(*w)), device) {
            out.push((work.blocked(&s), s));
        }
    }
    out.sort_by(|a, b| a.0.total_cmp(&b.0));
    out
}

/// Schedules of a loop whose lanes several workgroups share, with their times, best first: all of them run together.
fn spread_candidates(work: &cost::Work) -> Vec<(f64, Spread)> {
    let (kernel, k, cx) = (work.kernel, work.k, work.cx);
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
                    && (!kept || keeps_all(kernel, k, &plan, &s, device.registers_for(COMBINED)))
                {
                    out.push((work.spread(&plan, &s), s));
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

/// Whether an expression is known before the loop; the others are read anew in each step.
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

/// Whether what the stages combine fits so many registers of each invocation.
fn keeps_all(kernel: &Kernel, k: &StagedLoop, plan: &Plan, s: &Spread, registers: u32) -> bool {
    let mut any = false;
    let fits = |(stage, share): (&Stage, &spread::Share)| {
        let Some(c) = &stage.combined else { return true };
        let own = share.most(stage.elements);
        let each = c.terms.div_ceil(spread::lanes(stage, own, s));
        let (fixed, _) = loads(&kernel.body, &[c.reduction.value], k.lanes.len());
        any = true;
        own <= s.threads && fixed * each <= registers && each <= registers
    };
    k.each.iter().zip(&plan.each).all(fits) && any
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
