//! The `Row` family: reductions over rows, then stores.
//!
//! A power of two of invocations (*lanes*) shares a row: 1 for short rows and for reductions over an
//! outer axis (then neighbouring invocations read neighbouring elements), more for long ones, which
//! combine in workgroup memory. Reductions that do not need one another share a loop; a store joins
//! the first loop before which all it needs is known. Where a lane has only a few positions, what
//! several loops need of a position is read once and kept in a private array.
//!
//! Where all that lies along the row can be read and written as vectors, a step takes the positions of
//! one (`unroll.rs`).

use super::accumulator::Accumulator;
use super::unroll::Unrolled;
use super::wgsl::{Deps, Module, Scope, acc_bit, reg_type, stored_type, var_bit};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Reduction, Row, Store};
use crate::{DeviceProfile, Diagnostic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use wgfc_codegen_templates as templates;
use wgfc_codegen_templates::row::{Pass, Scratch, Shared};
use wgfc_ir::Reg;

/// Positions of a lane up to which they are kept in registers.
const KEPT_STEPS: i64 = 16;
/// Values kept, over all positions of a lane.
const KEPT_VALUES: i64 = 48;
/// Invocations that a device has under way.
const BUSY: i64 = 1 << 18;

/// What one loop does.
#[derive(Default)]
struct Plan<'a> {
    accumulators: Vec<Accumulator<'a>>,
    /// Those of neighbouring positions together.
    stores: Vec<&'a [Store]>,
}

impl Plan<'_> {
    fn roots(&self) -> Vec<ExprId> {
        let stores = self.stores.iter().copied().flatten().flat_map(store_roots);
        self.accumulators.iter().flat_map(Accumulator::roots).chain(stores).collect()
    }
}

fn store_roots(s: &Store) -> Vec<ExprId> {
    s.offset.data().into_iter().chain(s.guard).chain([s.value]).collect()
}

/// Which loops there are: each reduction and each store as early as it can be. Both are `width`
/// neighbours each.
fn plan<'a>(m: &Module, reductions: &'a [Reduction], stores: &'a [Store], width: usize) -> Vec<Plan<'a>> {
    let mut plans: Vec<Plan> = vec![Plan::default()];
    // The loop whose end gives result i.
    let mut known_after: Vec<usize> = vec![];
    let first_loop = |deps: Deps, known_after: &[usize]| {
        let needed = known_after.iter().enumerate().filter(|(i, _)| deps & acc_bit(*i as u32) != 0);
        needed.map(|(_, p)| p + 1).max().unwrap_or(0)
    };
    for (i, (r, others)) in reductions.chunks(width).filter_map(<[_]>::split_first).enumerate() {
        let acc = Accumulator::new(i, r, others);
        let deps = acc.roots().into_iter().chain(acc.init()).fold(0, |d, e| d | m.deps(e));
        let at = first_loop(deps, &known_after);
        known_after.push(at);
        plans.resize_with(plans.len().max(at + 1), Plan::default);
        plans[at].accumulators.push(acc);
    }
    for s in stores.chunks(width) {
        let offsets = s.iter().fold(0, |d, s| d | m.poly_deps(&s.offset));
        let deps = s.iter().flat_map(store_roots).fold(offsets, |d, e| d | m.deps(e));
        let at = first_loop(deps, &known_after);
        plans.resize_with(plans.len().max(at + 1), Plan::default);
        plans[at].stores.push(s);
    }
    plans
}

/// How rows are shared out. Both numbers are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Invocations that share a row; divides `threads`.
    pub lanes: u32,
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} threads a row", self.lanes, self.threads)
    }
}

/// The widest workgroup that rows are given.
fn most_threads(profile: &DeviceProfile) -> u32 {
    1u32 << profile.max_invocations.clamp(1, 256).ilog2()
}

/// All geometries that a device can run on a row kernel, the preferred one first, then by how little
/// they differ from it.
///
/// # Errors
/// As [`emit`](super::emit).
pub fn candidates(kernel: &Kernel, cx: &EmitContext) -> Result<Vec<Geometry>, Diagnostic> {
    let Family::Row(Row { reductions, .. }) = &kernel.family else { return Ok(vec![]) };
    let m = Module::new(kernel, cx, false)?;
    let plans = plan(&m, reductions, &kernel.stores, 1);
    let (scratch, _) = allocate(&plans, &kernel.body);
    let steps = Unrolled::new(kernel, cx)?;
    let first = choose(&m, &steps, plans.len(), thread_bytes(&scratch));
    let most = most_threads(cx.profile);
    let longest = steps.len.as_const().map_or(most, |n| n.clamp(1, 256) as u32).next_power_of_two();
    let mut out = vec![first];
    for lanes in (0..9).map(|i| 1u32 << i).filter(|l| *l <= longest.min(most)) {
        for threads in [64, 128, 256].map(|t: u32| t.max(lanes).min(most)) {
            let g = Geometry { threads, lanes };
            let fits = lanes == 1 || threads * thread_bytes(&scratch) <= cx.profile.max_workgroup_bytes;
            if fits && !out.contains(&g) {
                out.push(g);
            }
        }
    }
    let apart = |a: u32, b: u32| a.ilog2().abs_diff(b.ilog2());
    out.sort_by_key(|g| (apart(g.lanes, first.lanes) + apart(g.threads, first.threads), g.lanes, g.threads));
    Ok(out)
}

/// Bytes of workgroup memory that an invocation takes where several share a row.
fn thread_bytes(scratch: &[Scratch]) -> u32 {
    scratch.iter().map(|s| if s.ty == "vec2<u32>" { 8 } else { 4 }).sum()
}

/// The preferred geometry of the kernel of `m`, which walks its rows in `loops` loops of `steps`.
fn choose(m: &Module, steps: &Unrolled, loops: usize, thread_bytes: u32) -> Geometry {
    let Family::Row(Row { rows, len, .. }) = &m.kernel.family else {
        return Geometry { threads: 1, lanes: 1 };
    };
    let most = most_threads(m.cx.profile);
    let base = most.min(64);
    let (mut along, mut across) = (0, 0);
    for id in m.kernel.body.reachable(&m.kernel.roots()) {
        if let Expr::Load { offset, .. } = m.kernel.body.expr(id) {
            along += u32::from(m.is_unit_stride(offset, 1));
            across += u32::from(m.is_unit_stride(offset, 0));
        }
    }
    let many_rows = rows.as_const().is_none_or(|r| r >= 4096);
    let lanes = match len.as_const() {
        Some(n) if n <= 16 => 1,
        Some(n) if across > along && (many_rows || n < 256) => 1,
        _ if across > along && many_rows => 1,
        Some(n) => shared_by(n, 4).min(256),
        None => 64,
    };
    // With rows enough to keep the device busy a lane takes several vectors, as many as it can keep.
    let lanes = match (rows.as_const(), len.as_const()) {
        (Some(rows), Some(n)) if steps.width > 1 && rows > 0 => {
            let busy = 1u32 << (BUSY / rows).max(1).ilog2().min(8);
            let kept = if loops > 1 { shared_by(n, KEPT_STEPS) } else { 1 };
            lanes.min(busy.max(kept).max(32))
        }
        _ => lanes,
    };
    let mut lanes = lanes.clamp(1, most);
    let mut threads = lanes.max(base);
    while lanes > 1 && threads * thread_bytes > m.cx.profile.max_workgroup_bytes {
        threads /= 2;
        lanes = lanes.min(threads);
    }
    Geometry { threads, lanes }
}

/// Lanes of which none has more than `each` of `n` positions.
fn shared_by(n: i64, each: i64) -> u32 {
    (n.max(1) as u64).div_ceil(each as u64).next_power_of_two().min(1 << 16) as u32
}

/// The values of a position that several loops need: each with the loop that computes it first.
fn kept(m: &Module, plans: &[Plan]) -> Vec<(ExprId, usize)> {
    let body = &m.kernel.body;
    let mut loads = vec![false; body.len()];
    for (id, e, _) in body.iter() {
        let own = matches!(e, Expr::Load { .. });
        loads[id as usize] = own || body.operands(id).iter().any(|o| loads[*o as usize]);
    }
    let fixed = |id: ExprId| m.deps(id) & !(var_bit(0) | var_bit(1)) == 0 && m.deps(id) & var_bit(1) != 0;
    let reach: Vec<BTreeSet<ExprId>> =
        plans.iter().map(|p| body.reachable(&p.roots()).into_iter().collect()).collect();
    let mut out: Vec<(ExprId, usize)> = vec![];
    for (p, plan) in plans.iter().enumerate() {
        let mut stack = plan.roots();
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

/// Emits with the given geometry, or a suitable one.
pub(super) fn emit_as(
    kernel: &Kernel,
    cx: &EmitContext,
    forced: Option<Geometry>,
) -> Result<EmittedKernel, Diagnostic> {
    let scalar = Module::new(kernel, cx, false)?;
    let unrolled = Unrolled::new(kernel, cx)?;
    let Unrolled { kernel, width, len, .. } = &unrolled;
    let Family::Row(Row { rows, reductions, row_stores, .. }) = &kernel.family else {
        return Err(Diagnostic::internal("not a row kernel"));
    };
    let mut m = Module::new(kernel, cx, false)?;
    unrolled.declare(&mut m);
    let plans = plan(&m, reductions, &kernel.stores, *width as usize);
    let (scratch, slots) = allocate(&plans, &kernel.body);
    let per_thread = thread_bytes(&scratch);
    let Geometry { threads, lanes } =
        forced.unwrap_or_else(|| choose(&scalar, &unrolled, plans.len(), per_thread));
    let subgroup = cx.profile.subgroup.filter(|s| lanes > 1 && threads.is_multiple_of(*s));
    let joined = subgroup.map_or(1, |s| s.min(lanes));
    m.subgroup = subgroup.filter(|_| joined > 1);
    let steps = len
        .as_const()
        .map(|n| (n + i64::from(lanes) - 1) / i64::from(lanes))
        .filter(|s| plans.len() > 1 && (1..=KEPT_STEPS).contains(s))
        .unwrap_or(0);
    let per_group = i64::from(threads / lanes);
    let full = rows
        .as_const()
        .is_some_and(|r| r % per_group == 0 && r / per_group <= i64::from(cx.profile.max_workgroups));
    let ragged = steps > 0 && !(full && len.is(steps * i64::from(lanes)));
    let mut keep = if steps > 0 { kept(&m, &plans) } else { vec![] };
    if keep.len() as i64 * steps > KEPT_VALUES {
        keep.clear();
    }

    let mut outer = Scope::new(4);
    let rows_text = m.extent(&mut outer, rows)?;
    let len_text = m.extent(&mut outer, len)?;
    let extents = std::mem::take(&mut outer.text);
    for (n, (id, _)) in keep.iter().enumerate() {
        let t = reg_type(kernel.body.dtype(*id).reg());
        outer.line(&format!("var kept{n}: array<{t}, {steps}>;"));
    }
    let setup = std::mem::take(&mut outer.text);

    let mut ready = var_bit(0);
    let mut passes = vec![];
    for (p, plan) in plans.iter().enumerate() {
        for a in &plan.accumulators {
            a.declare(&mut m, &mut outer)?;
        }
        m.hoist(&mut outer, &plan.roots(), ready)?;
        for s in plan.stores.iter().filter_map(|s| s.first()) {
            let at = m.address(s.tensor, &s.offset)?;
            m.hoist_index(&mut outer, &at, ready)?;
        }
        let before = std::mem::take(&mut outer.text);

        let mut body = outer.inner(if ragged { 12 } else { 8 });
        for (n, (id, first)) in keep.iter().enumerate() {
            if *first < p {
                body.bind(*id, &format!("kept{n}[step]"));
            }
        }
        for a in &plan.accumulators {
            a.update(&mut m, &mut body)?;
        }
        for s in &plan.stores {
            m.store_neighbours(&mut body, s)?;
        }
        if !body.text.is_empty() {
            for (n, (id, _)) in keep.iter().enumerate().filter(|(_, k)| k.1 == p) {
                let v = m.value(&mut body, *id)?;
                body.line(&format!("kept{n}[step] = {v};"));
            }
        }

        let mut combine = Scope::new(12);
        let mut shared = vec![];
        for (n, a) in plan.accumulators.iter().enumerate() {
            a.merge(&mut m, &mut combine)?;
            for (v, (name, reg)) in a.variables(&kernel.body).into_iter().enumerate() {
                let array = scratch[slots[p][n][v]].name.clone();
                shared.push(Shared::new(name, array, reg == Reg::Bool));
            }
        }
        for a in &plan.accumulators {
            a.finish(&mut m, &mut outer)?;
            ready |= acc_bit(a.index as u32);
        }
        let after = std::mem::take(&mut outer.text);
        passes.push(Pass {
            before,
            body: body.text,
            shared,
            combine: combine.text,
            after,
            once: String::new(),
        });
    }
    let mut once = outer.inner(8);
    for s in row_stores {
        m.store(&mut once, s)?;
    }
    if let Some(last) = passes.last_mut() {
        last.once = once.text;
    }

    let scratch = if lanes > joined { scratch } else { vec![] };
    let bytes = if lanes > joined { threads / joined * per_thread } else { 0 };
    let wgsl = templates::render(&templates::row::Row {
        preamble: m.preamble(),
        extents,
        threads,
        lanes,
        joined,
        local: templates::Local::new(m.subgroup.unwrap_or(1)),
        rows: rows_text,
        open: cx.graph.computed.iter().any(|c| rows.symbols().contains(&c.0)),
        len: len_text,
        width: *width,
        steps: steps as u32,
        ragged,
        scratch,
        setup,
        passes,
    })
    .map_err(template_error)?;
    let groups = rows.ceil_div(per_group);
    Ok(m.finish("row", wgsl, [threads, 1, 1], bytes, fold_workgroups(&groups, cx.profile.max_workgroups)))
}

/// Slots of workgroup memory: `[loop][accumulator][variable]`.
type Slots = Vec<Vec<Vec<usize>>>;

/// Gives each variable that lanes combine an array; loops use the arrays one after another.
fn allocate(plans: &[Plan], body: &Body) -> (Vec<Scratch>, Slots) {
    let mut scratch: Vec<Scratch> = vec![];
    let mut slots = vec![];
    for plan in plans {
        let mut used = vec![false; scratch.len()];
        let mut pass = vec![];
        for a in &plan.accumulators {
            let mut mine = vec![];
            for (_, reg) in a.variables(body) {
                let ty = stored_type(reg);
                let free = (0..scratch.len()).find(|i| !used[*i] && scratch[*i].ty == ty);
                let slot = free.unwrap_or_else(|| {
                    scratch.push(Scratch { name: format!("part{}", scratch.len()), ty: ty.into() });
                    used.push(false);
                    scratch.len() - 1
                });
                used[slot] = true;
                mine.push(slot);
            }
            pass.push(mine);
        }
        slots.push(pass);
    }
    (scratch, slots)
}
