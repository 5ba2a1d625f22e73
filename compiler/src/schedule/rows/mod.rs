//! How rows are shared out.
//!
//! A power of two of invocations (*lanes*) shares a row: 1 for short rows, more for long ones and where there are few, as the estimated times say.
//! Neighbours in a workgroup are the lanes of a row, or of neighbouring rows where those lie side by side in memory, as in
//! reductions over an outer axis. Reductions that do not need one another
//! share a [pass](passes); a store joins the first pass before which all it needs is known.

mod cost;
pub mod unroll;

pub use crate::kernel::passes::{Pass, group, passes};
pub(super) use cost::Access;

use super::Context;
use crate::Diagnostic;
use crate::cost::Launch;
use crate::device::DeviceProfile;
use crate::kernel::dependence::{Dependence, lie_side_by_side, var_bit};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, ReduceKind, Reduction};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use unroll::Unrolled;
use wgfc_ir::Reg;

/// Neighbouring rows that a workgroup takes at least where they lie side by side: of 4 bytes, a sector of memory.
const SIDE_BY_SIDE: u32 = 8;
/// Invocations of a workgroup.
const SIZES: [u32; 3] = [64, 128, 256];
/// The estimated time, as a multiple of the least one, up to which a schedule counts as being as good.
const SAME: f64 = 1.02;
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
    /// Whether neighbouring invocations take neighbouring rows rather than the lanes of one.
    pub rows_first: bool,
    /// Neighbouring positions that a lane takes in a step: 1, 2 or 4.
    pub width: u32,
    /// Steps of a lane, where they are few and known; 0 for a loop of any length.
    pub steps: u32,
    /// Whether a lane keeps in registers what several passes read of a position.
    pub kept: bool,
    /// Invocations of the subgroups in which lanes combine first; 1 for none.
    pub subgroup: u32,
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

/// How rows are shared out.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shares {
    threads: u32,
    lanes: u32,
    rows_first: bool,
}

/// A row kernel as it is seen by the choice.
struct Problem<'a> {
    kernel: &'a Kernel,
    device: &'a DeviceProfile,
    unrolled: Unrolled,
    /// Passes over the row.
    loops: usize,
    /// Values of a position that several of them need.
    kept: i64,
    thread_bytes: u32,
    work: cost::Work,
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
        let (device, loops) = (cx.device, passes.len());
        let work = cost::Work::new(kernel, cx.graph, cx.expect, kept, thread_bytes)
            .ok_or_else(|| Diagnostic::internal("not a row kernel"))?;
        Ok(Problem { kernel, device, loops, kept, thread_bytes, unrolled, work })
    }

    /// The schedule with rows shared out so.
    fn schedule(&self, Shares { threads, lanes, rows_first }: Shares) -> Row {
        let subgroup = self
            .device
            .subgroup
            .filter(|s| !rows_first && lanes > 1 && threads.is_multiple_of(*s) && (*s).min(lanes) > 1);
        let steps = self.unrolled.len.as_const().map(|n| (n + i64::from(lanes) - 1) / i64::from(lanes));
        let steps = steps.filter(|s| self.loops > 1 && (1..=KEPT_STEPS).contains(s)).unwrap_or(0);
        let kept = (1..=KEPT_VALUES).contains(&(self.kept * steps));
        let (width, subgroup) = (self.unrolled.width, subgroup.unwrap_or(1));
        Row { threads, lanes, rows_first, width, steps: steps as u32, kept, subgroup }
    }

    fn fits(&self, threads: u32, lanes: u32) -> bool {
        lanes == 1 || threads * self.thread_bytes <= self.device.max_workgroup_bytes
    }

    /// Whether rows lie side by side in memory more than their positions do.
    fn lies_across(&self) -> bool {
        let deps = Dependence::of(self.kernel);
        let domain = self.kernel.domain();
        let (mut along, mut across) = (0, 0);
        for id in self.kernel.body.reachable(&self.kernel.roots()) {
            if let Expr::Load { offset, .. } = self.kernel.body.expr(id) {
                along += u32::from(deps.is_unit_stride(offset, 1));
                across += u32::from(lie_side_by_side(offset, 0, SIDE_BY_SIDE.into(), &domain));
            }
        }
        across > along
    }

    /// All schedules that the device can run, those with the fewest lanes and invocations first.
    fn all(&self) -> Vec<Row> {
        let most = most_threads(self.device);
        let longest =
            self.unrolled.len.greatest().map_or(most, |n| n.clamp(1, 256) as u32).next_power_of_two();
        let orders: &[bool] = if self.lies_across() { &[false, true] } else { &[false] };
        let mut out = vec![];
        for lanes in (0..9).map(|i| 1u32 << i).filter(|l| *l <= longest.min(most)) {
            let mut sizes = SIZES.map(|t| t.max(lanes).min(most));
            while !self.fits(sizes[0], lanes) && sizes[0] > lanes {
                sizes[0] /= 2;
            }
            for threads in sizes.into_iter().filter(|t| self.fits(*t, lanes)) {
                for rows_first in orders.iter().copied().filter(|r| !r || (lanes > 1 && threads > lanes)) {
                    let s = self.schedule(Shares { threads, lanes, rows_first });
                    if !out.contains(&s) {
                        out.push(s);
                    }
                }
            }
        }
        out
    }
}

/// The preferred schedule of a row kernel.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn choose(kernel: &Kernel, cx: &Context) -> Result<Row, Diagnostic> {
    let first = candidates(kernel, cx)?.into_iter().next();
    first.ok_or_else(|| Diagnostic::internal("a row kernel without a schedule"))
}

/// All schedules of a row kernel that a device can run, by their estimated times.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn candidates(kernel: &Kernel, cx: &Context) -> Result<Vec<Row>, Diagnostic> {
    let p = Problem::new(kernel, cx)?;
    Ok(in_order(p.all(), |s| p.work.cycles(s, cx.device)))
}

/// Schedules by their estimated times. Of those that are [as good](SAME) as the first, the one with most lanes comes before the others:
/// they wait for fewer loads after one another.
fn in_order(all: Vec<Row>, cycles: impl Fn(&Row) -> f64) -> Vec<Row> {
    let mut all: Vec<(f64, Row)> = all.into_iter().map(|s| (cycles(&s), s)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let least = all.first().map_or(0.0, |s| s.0);
    let same = all.partition_point(|s| s.0 <= SAME * least);
    if let Some(same) = all.get_mut(..same) {
        same.sort_by_key(|(_, s)| (Reverse(s.lanes), s.threads, s.rows_first));
    }
    all.into_iter().map(|(_, s)| s).collect()
}

/// The estimated time of each schedule of a row kernel, in [cycles](crate::device::Speeds::cycle).
///
/// # Errors
/// As [`choose`](super::choose).
pub fn cycles(
    kernel: &Kernel,
    cx: &Context,
) -> Result<impl Fn(&Row, &DeviceProfile) -> f64 + use<>, Diagnostic> {
    let work = Problem::new(kernel, cx)?.work;
    Ok(move |s: &Row, device: &DeviceProfile| work.cycles(s, device))
}

/// All schedules of a row kernel that a device can run, with their counts.
///
/// # Errors
/// As [`choose`](super::choose).
pub(super) fn launches(kernel: &Kernel, cx: &Context) -> Result<Vec<(Row, Launch)>, Diagnostic> {
    let p = Problem::new(kernel, cx)?;
    Ok(p.all().into_iter().map(|s| (s, p.work.launch(&s, cx.device))).collect())
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
