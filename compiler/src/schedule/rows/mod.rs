//! How rows are shared out.
//!
//! A power of two of invocations (*lanes*) shares a row: 1 for short rows and for reductions over an outer axis (then
//! neighbouring invocations read neighbouring elements), more for long ones. Reductions that do not need one another
//! share a [pass](passes); a store joins the first pass before which all it needs is known.

pub mod unroll;

use super::Context;
use crate::Diagnostic;
use crate::device::DeviceProfile;
use crate::kernel::dependence::{Dependence, Deps, acc_bit, var_bit};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, ReduceKind, Reduction, Store};
use crate::schedule::cost::Expected;
use std::collections::BTreeSet;
use unroll::Unrolled;
use wgfc_ir::{Dim, Reg};

/// This share of the invocations under way together are rows enough, an invocation each: 4096 on an H100, a fit.
const MANY: f64 = 64.0;
/// Rows of so many positions are not shared out: combining what lanes have takes as long.
const SHORT: i64 = 16;
/// Positions of a lane up to which they are kept in registers.
const KEPT_STEPS: i64 = 16;
/// Values kept, over all positions of a lane.
const KEPT_VALUES: i64 = 48;

/// How a row kernel is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Invocations of a workgroup, a power of two.
    pub threads: u32,
    /// Invocations that share a row, a power of two; divides `threads`.
    pub lanes: u32,
    /// Neighbouring positions that a lane takes in a step: 1, 2 or 4.
    pub width: u32,
    /// Steps of a lane, where they are few and known; 0 for a loop of any length.
    pub steps: u32,
    /// Whether a lane keeps in registers what several passes read of a position.
    pub kept: bool,
    /// Invocations of the subgroups in which lanes combine first; 1 for none.
    pub subgroup: u32,
}

/// One pass over the row: the reductions and the stores (groups of `width` neighbours, by number) that it makes.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Reductions whose results are known behind it.
    pub reductions: Vec<usize>,
    /// Stores.
    pub stores: Vec<usize>,
}

impl Pass {
    /// The expressions that it evaluates at each position.
    pub fn roots(&self, reductions: &[Reduction], stores: &[Store], width: usize) -> Vec<ExprId> {
        let combined =
            self.reductions.iter().flat_map(|i| group(reductions, *i, width)).flat_map(each_position);
        let stored = self.stores.iter().flat_map(|i| group(stores, *i, width)).flat_map(Store::reads);
        combined.chain(stored).collect()
    }
}

/// What a reduction evaluates at each position.
fn each_position(r: &Reduction) -> Vec<ExprId> {
    match r.kind {
        ReduceKind::Last { when, .. } => vec![when, r.value],
        _ => vec![r.value],
    }
}

/// Group `i` of `width` neighbours.
pub fn group<T>(all: &[T], i: usize, width: usize) -> &[T] {
    all.get(i * width..(i + 1) * width).unwrap_or_default()
}

/// Which passes there are: each reduction and each store as early as it can be. Both are `width` neighbours each.
pub fn passes(deps: &Dependence, reductions: &[Reduction], stores: &[Store], width: usize) -> Vec<Pass> {
    let mut passes = vec![Pass::default()];
    // The pass whose end gives result i.
    let mut known_after: Vec<usize> = vec![];
    let first_pass = |needs: Deps, known_after: &[usize]| {
        let needed = known_after.iter().enumerate().filter(|(i, _)| needs & acc_bit(*i as u32) != 0);
        needed.map(|(_, p)| p + 1).max().unwrap_or(0)
    };
    for (i, r) in reductions.chunks(width).enumerate() {
        let roots = r.iter().flat_map(Reduction::roots);
        let at = first_pass(roots.fold(0, |d, e| d | deps.expr(e)), &known_after);
        known_after.push(at);
        passes.resize_with(passes.len().max(at + 1), Pass::default);
        passes[at].reductions.push(i);
    }
    for (i, s) in stores.chunks(width).enumerate() {
        let offsets = s.iter().fold(0, |d, s| d | deps.poly(&s.offset));
        let at =
            first_pass(s.iter().flat_map(Store::reads).fold(offsets, |d, e| d | deps.expr(e)), &known_after);
        passes.resize_with(passes.len().max(at + 1), Pass::default);
        passes[at].stores.push(i);
    }
    passes
}

/// The registers in which a lane combines a reduction.
pub fn variables(r: &Reduction, body: &Body) -> Vec<Reg> {
    match r.kind {
        ReduceKind::Arg { .. } | ReduceKind::Last { .. } => vec![body.dtype(r.value).reg(), Reg::I32],
        _ => vec![r.dtype.reg()],
    }
}

/// Bytes of workgroup memory that an invocation takes where several share a row: passes use the arrays one after
/// another, those of one type of register again.
fn thread_bytes(passes: &[Pass], reductions: &[Reduction], width: usize, body: &Body) -> u32 {
    // Bools are kept as words.
    const KINDS: [(&[Reg], u32); 4] =
        [(&[Reg::F32], 4), (&[Reg::I32], 4), (&[Reg::U32, Reg::Bool], 4), (&[Reg::I64, Reg::U64], 8)];
    let count = |p: &Pass, regs: &[Reg]| {
        let own = p.reductions.iter().filter_map(|i| group(reductions, *i, width).first());
        own.flat_map(|r| variables(r, body)).filter(|r| regs.contains(r)).count() as u32
    };
    let most = |regs: &[Reg]| passes.iter().map(|p| count(p, regs)).max().unwrap_or(0);
    KINDS.iter().map(|(regs, bytes)| most(regs) * bytes).sum()
}

/// The widest workgroup that rows are given.
fn most_threads(device: &DeviceProfile) -> u32 {
    1u32 << device.max_invocations.clamp(1, 256).ilog2()
}

/// A row kernel as it is seen by the choice.
struct Problem<'a> {
    kernel: &'a Kernel,
    device: &'a DeviceProfile,
    expect: &'a Expected,
    unrolled: Unrolled,
    /// Passes over the row.
    loops: usize,
    /// Values of a position that several of them need.
    kept: i64,
    thread_bytes: u32,
}

impl<'a> Problem<'a> {
    fn new(kernel: &'a Kernel, cx: &Context<'a>) -> Result<Problem<'a>, Diagnostic> {
        let unrolled = Unrolled::widest(kernel, cx)?;
        let Family::Row(row) = &unrolled.kernel.family else {
            return Err(Diagnostic::internal("not a row kernel"));
        };
        let width = unrolled.width as usize;
        let deps = Dependence::of(&unrolled.kernel);
        let passes = passes(&deps, &row.reductions, &unrolled.kernel.stores, width);
        let thread_bytes = thread_bytes(&passes, &row.reductions, width, &unrolled.kernel.body);
        let kept = if passes.len() > 1 { kept(&unrolled.kernel, width).len() as i64 } else { 0 };
        let (device, expect, loops) = (cx.device, cx.expect, passes.len());
        Ok(Problem { kernel, device, expect, loops, kept, thread_bytes, unrolled })
    }

    /// The schedule with rows shared out so.
    fn schedule(&self, threads: u32, lanes: u32) -> Row {
        let subgroup =
            self.device.subgroup.filter(|s| lanes > 1 && threads.is_multiple_of(*s) && (*s).min(lanes) > 1);
        let steps = self.unrolled.len.as_const().map(|n| (n + i64::from(lanes) - 1) / i64::from(lanes));
        let steps = steps.filter(|s| self.loops > 1 && (1..=KEPT_STEPS).contains(s)).unwrap_or(0);
        let kept = (1..=KEPT_VALUES).contains(&(self.kept * steps));
        let (width, subgroup) = (self.unrolled.width, subgroup.unwrap_or(1));
        Row { threads, lanes, width, steps: steps as u32, kept, subgroup }
    }

    fn fits(&self, threads: u32, lanes: u32) -> bool {
        lanes == 1 || threads * self.thread_bytes <= self.device.max_workgroup_bytes
    }

    /// The preferred numbers of threads and lanes.
    fn choose(&self) -> (u32, u32) {
        let Family::Row(crate::kernel::Row { rows, len, .. }) = &self.kernel.family else { return (1, 1) };
        let most = most_threads(self.device);
        let base = most.min(64);
        let deps = Dependence::of(self.kernel);
        let (mut along, mut across) = (0, 0);
        for id in self.kernel.body.reachable(&self.kernel.roots()) {
            if let Expr::Load { offset, .. } = self.kernel.body.expr(id) {
                along += u32::from(deps.is_unit_stride(offset, 1));
                across += u32::from(deps.is_unit_stride(offset, 0));
            }
        }
        let known = |d: &Dim| self.expect.known(d);
        let many_rows = known(rows).is_none_or(|r| r >= self.device.speeds.share_of_resident(MANY));
        let lanes = match known(len) {
            Some(n) if n <= SHORT => 1,
            Some(n) if across > along && (many_rows || n < 256) => 1,
            _ if across > along && many_rows => 1,
            Some(n) => shared_by(n, 4).min(256),
            None => 64,
        };
        // With rows enough to keep the device busy a lane takes several vectors, as many as it can keep.
        let lanes = match (known(rows), known(len)) {
            (Some(rows), Some(n)) if self.unrolled.width > 1 && rows > 0 => {
                let busy = 1u32 << (self.device.speeds.share_of_resident(1.0) / rows).max(1).ilog2().min(8);
                let kept = if self.loops > 1 { shared_by(n, KEPT_STEPS) } else { 1 };
                lanes.min(busy.max(kept).max(32))
            }
            _ => lanes,
        };
        let mut lanes = lanes.clamp(1, most);
        let mut threads = lanes.max(base);
        while !self.fits(threads, lanes) {
            threads /= 2;
            lanes = lanes.min(threads);
        }
        (threads, lanes)
    }
}

/// Lanes of which none has more than `each` of `n` positions.
fn shared_by(n: i64, each: i64) -> u32 {
    (n.max(1) as u64).div_ceil(each as u64).next_power_of_two().min(1 << 16) as u32
}

/// The preferred schedule of a row kernel.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn choose(kernel: &Kernel, cx: &Context) -> Result<Row, Diagnostic> {
    let p = Problem::new(kernel, cx)?;
    let (threads, lanes) = p.choose();
    Ok(p.schedule(threads, lanes))
}

/// All schedules of a row kernel that a device can run, the preferred one first, then by how little they differ from it.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn candidates(kernel: &Kernel, cx: &Context) -> Result<Vec<Row>, Diagnostic> {
    let p = Problem::new(kernel, cx)?;
    let first = p.choose();
    let most = most_threads(cx.device);
    let longest = p.unrolled.len.as_const().map_or(most, |n| n.clamp(1, 256) as u32).next_power_of_two();
    let mut out = vec![first];
    for lanes in (0..9).map(|i| 1u32 << i).filter(|l| *l <= longest.min(most)) {
        for threads in [64, 128, 256].map(|t: u32| t.max(lanes).min(most)) {
            if p.fits(threads, lanes) && !out.contains(&(threads, lanes)) {
                out.push((threads, lanes));
            }
        }
    }
    let apart = |a: u32, b: u32| a.ilog2().abs_diff(b.ilog2());
    out.sort_by_key(|(t, l)| (apart(*l, first.1) + apart(*t, first.0), *l, *t));
    Ok(out.into_iter().map(|(threads, lanes)| p.schedule(threads, lanes)).collect())
}

/// The values of a position that several passes of an unrolled kernel need: each with the pass that computes it first.
pub fn kept(kernel: &Kernel, width: usize) -> Vec<(ExprId, usize)> {
    let Family::Row(row) = &kernel.family else { return vec![] };
    let (body, deps) = (&kernel.body, Dependence::of(kernel));
    let roots: Vec<Vec<ExprId>> = passes(&deps, &row.reductions, &kernel.stores, width)
        .iter()
        .map(|p| p.roots(&row.reductions, &kernel.stores, width))
        .collect();
    let mut loads = vec![false; body.len()];
    for (id, e, _) in body.iter() {
        let own = matches!(e, Expr::Load { .. });
        loads[id as usize] = own || body.operands(id).iter().any(|o| loads[*o as usize]);
    }
    let fixed = |id: ExprId| {
        let needs = deps.expr(id);
        needs & !(var_bit(0) | var_bit(1)) == 0 && needs & var_bit(1) != 0
    };
    let reach: Vec<BTreeSet<ExprId>> =
        roots.iter().map(|r| body.reachable(r).into_iter().collect()).collect();
    let mut out: Vec<(ExprId, usize)> = vec![];
    for (p, roots) in roots.into_iter().enumerate() {
        let mut stack = roots;
        let mut seen = BTreeSet::new();
        while let Some(id) = stack.pop() {
            if !seen.insert(id) {
                continue;
            }
            let first = (0..p).find(|q| reach[*q].contains(&id));
            match first {
                Some(first) if fixed(id) && loads[id as usize] => {
                    if !out.iter().any(|(e, _)| *e == id) {
                        out.push((id, first));
                    }
                }
                _ => stack.extend(body.operands(id)),
            }
        }
    }
    out.sort_unstable();
    out
}
