//! How rows are shared out.
//!
//! A power of two of invocations (*lanes*) shares a row: 1 for short rows, more for long ones and where there are few.
//! Neighbours in a workgroup are the lanes of a row, or of neighbouring rows where those lie side by side in memory, as in
//! reductions over an outer axis. Reductions that do not need one another
//! share a [pass](passes); a store joins the first pass before which all it needs is known.

pub mod unroll;

pub use crate::kernel::passes::{Pass, group, passes};

use super::Context;
use crate::Diagnostic;
use crate::cost::Expected;
use crate::device::DeviceProfile;
use crate::kernel::dependence::{Dependence, lie_side_by_side, var_bit};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, ReduceKind, Reduction};
use std::collections::BTreeSet;
use unroll::Unrolled;
use wgfc_ir::{Dim, Reg};

/// Neighbouring rows that a workgroup takes at least where they lie side by side: of 4 bytes, a sector of memory.
const SIDE_BY_SIDE: u32 = 8;
/// Rows that are taken for an unknown number.
const MANY_ROWS: i64 = 1024;
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

    /// Fewer lanes, where a core waits longer at their barriers than it reads their rows, and there are rows enough to keep the device
    /// busy: subgroups combine without barriers, and a single lane has nothing to combine. While a workgroup waits, the core's other
    /// workgroups go on. A core that reads elements one after another has no latencies to hide: a subgroup with a row for each of its
    /// invocations keeps it busy.
    fn without_barriers(&self, mut lanes: u32, threads: u32, rows: i64, len: i64) -> u32 {
        let speeds = &self.device.speeds;
        let alone = self.device.subgroup.unwrap_or(1);
        let others = (speeds.resident / speeds.cores / f64::from(threads.max(lanes))).max(1.0);
        let row = (len * 4) as f64 / speeds.workgroup_bandwidth;
        let fills = speeds.element_cycles().is_some() && rows as f64 >= speeds.cores * f64::from(alone);
        let busy =
            |lanes: u32| fills || rows.saturating_mul(i64::from(lanes)) >= speeds.share_of_resident(1.0);
        while lanes > alone && busy(lanes / 2) {
            let barriers = f64::from(1 + (lanes / alone).ilog2()) * speeds.barrier / others;
            if barriers < row * f64::from(threads.max(lanes) / lanes) {
                break;
            }
            lanes /= 2;
        }
        lanes
    }

    /// The preferred way.
    fn choose(&self) -> Shares {
        let Family::Row(crate::kernel::Row { rows, len, .. }) = &self.kernel.family else {
            return Shares { threads: 1, lanes: 1, rows_first: false };
        };
        let most = most_threads(self.device);
        let base = most.min(64);
        let known = |d: &Dim| self.expect.known(d);
        let across = self.lies_across() && known(rows).is_none_or(|r| r >= i64::from(SIDE_BY_SIDE));
        if across && known(len).is_none_or(|n| n > SHORT) {
            // Lanes enough to keep the device busy, each with some positions; rows enough for whole sectors of memory.
            let busy = self.device.speeds.share_of_resident(1.0) / known(rows).unwrap_or(MANY_ROWS).max(1);
            let busy = 1u32 << busy.max(1).ilog2().min(8);
            let positions = known(len).map_or(SIDE_BY_SIDE, |n| shared_by(n, 8));
            let mut threads = most;
            let mut lanes = busy.min(positions).min(most / SIDE_BY_SIDE).max(1);
            while !self.fits(threads, lanes) {
                threads /= 2;
                lanes = lanes.min((threads / SIDE_BY_SIDE).max(1));
            }
            return if lanes == 1 {
                Shares { threads: base, lanes, rows_first: false }
            } else {
                Shares { threads, lanes, rows_first: true }
            };
        }
        let lanes = match known(len) {
            Some(n) if n <= SHORT => 1,
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
        let lanes = lanes.clamp(1, most);
        let mut lanes = match (known(rows), known(len)) {
            (Some(rows), Some(n)) => self.without_barriers(lanes, base, rows, n),
            _ => lanes,
        };
        let mut threads = lanes.max(base);
        while !self.fits(threads, lanes) {
            threads /= 2;
            lanes = lanes.min(threads);
        }
        Shares { threads, lanes, rows_first: false }
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
    Ok(p.schedule(p.choose()))
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
    let orders: &[bool] = if p.lies_across() { &[false, true] } else { &[false] };
    for lanes in (0..9).map(|i| 1u32 << i).filter(|l| *l <= longest.min(most)) {
        for threads in [64, 128, 256].map(|t: u32| t.max(lanes).min(most)) {
            for rows_first in orders.iter().copied().filter(|r| !r || (lanes > 1 && threads > lanes)) {
                let s = Shares { threads, lanes, rows_first };
                if p.fits(threads, lanes) && !out.contains(&s) {
                    out.push(s);
                }
            }
        }
    }
    let apart = |a: u32, b: u32| a.ilog2().abs_diff(b.ilog2());
    let far = |s: &Shares| {
        let order = u32::from(s.rows_first != first.rows_first);
        order + apart(s.lanes, first.lanes) + apart(s.threads, first.threads)
    };
    out.sort_by_key(|s| (far(s), s.lanes, s.threads));
    Ok(out.into_iter().map(|s| p.schedule(s)).collect())
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
