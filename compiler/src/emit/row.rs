//! The `Row` family: reductions over rows, then stores.
//!
//! A power of two of invocations (*lanes*) shares a row: 1 for short rows and for reductions over an
//! outer axis (then neighbouring invocations read neighbouring elements), more for long ones, which
//! combine in workgroup memory. Reductions that do not need one another share a loop; a store joins
//! the first loop before which all it needs is known. Where a lane has only a few positions, what
//! several loops need of a position is read once and kept in a private array.

use super::wgsl::{Deps, Module, Scope, acc_bit, reg_type, var_bit};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, ReduceKind, Reduction, Store};
use crate::{DeviceProfile, Diagnostic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use wgfc_codegen_templates as templates;
use wgfc_codegen_templates::row::{Pass, Scratch, Shared};
use wgfc_ir::{BinaryOp, Class, DType, Dim, Reg, Scalar};

/// Positions of a lane up to which they are kept in registers.
const KEPT_STEPS: i64 = 16;
/// Values kept, over all positions of a lane.
const KEPT_VALUES: i64 = 48;

/// The value that a reduction starts from.
pub(super) fn identity(m: &mut Module, kind: ReduceKind, t: DType) -> Result<String, Diagnostic> {
    let float = |v: f64| Scalar::from_f64(t, v);
    let int = |v: i64| Scalar::from_i64(t, v);
    let bits = t.bits() as u32;
    let c = match (kind, t.class()) {
        (ReduceKind::Sum, _) => int(0),
        (ReduceKind::Prod, _) => int(1),
        (ReduceKind::Max, Class::Float) => float(f64::NEG_INFINITY),
        (ReduceKind::Max, Class::Int) => int(i64::MIN >> (64 - bits)),
        (ReduceKind::Max, _) => int(0),
        (ReduceKind::Min, Class::Float) => float(f64::INFINITY),
        (ReduceKind::Min, Class::Int) => int(i64::MAX >> (64 - bits)),
        (ReduceKind::Min, Class::Uint) => Scalar { dtype: t, bits: u64::MAX >> (64 - bits) },
        (ReduceKind::Min, Class::Bool) => int(1),
        _ => int(0),
    };
    m.literal(c)
}

/// The variables of one reduction.
pub(super) struct Accumulator<'a> {
    index: usize,
    reduction: &'a Reduction,
}

impl<'a> Accumulator<'a> {
    pub(super) fn new(index: usize, reduction: &'a Reduction) -> Accumulator<'a> {
        Accumulator { index, reduction }
    }
    fn operator(&self) -> Option<BinaryOp> {
        match self.reduction.kind {
            ReduceKind::Sum => Some(BinaryOp::Add),
            ReduceKind::Prod => Some(BinaryOp::Mul),
            ReduceKind::Max => Some(BinaryOp::Max),
            ReduceKind::Min => Some(BinaryOp::Min),
            _ => None,
        }
    }
    /// Names and types of the variables that lanes combine.
    fn variables(&self, body: &Body) -> Vec<(String, Reg)> {
        let i = self.index;
        if self.operator().is_some() {
            return vec![(format!("acc{i}"), self.reduction.dtype.reg())];
        }
        vec![(format!("best{i}"), body.dtype(self.reduction.value).reg()), (format!("at{i}"), Reg::I32)]
    }
    /// Declares the variables.
    fn declare(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let i = self.index;
        if self.operator().is_some() {
            let first = identity(m, self.reduction.kind, self.reduction.dtype)?;
            s.line(&format!("var acc{i} = {first};"));
        } else {
            let t = reg_type(m.kernel.body.dtype(self.reduction.value).reg());
            s.line(&format!("var best{i}: {t};"));
            s.line(&format!("var at{i} = -1;"));
        }
        Ok(())
    }
    pub(super) fn combine(&self, m: &mut Module, a: &str, b: &str) -> Result<String, Diagnostic> {
        let op = self.operator().unwrap_or(BinaryOp::Add);
        Ok(m.binary(op, self.reduction.dtype, a, b, &Expr::Acc(0))?.into_string())
    }
    /// Whether value `a` comes before `b` by value alone, and whether they are equal.
    fn order(&self, m: &mut Module, a: &str, b: &str) -> Result<(String, String), Diagnostic> {
        let t = m.kernel.body.dtype(self.reduction.value);
        let largest = matches!(self.reduction.kind, ReduceKind::Arg { largest: true, .. });
        let op = if largest { BinaryOp::Gt } else { BinaryOp::Lt };
        let better = m.binary(op, t, a, b, &Expr::Acc(0))?.into_string();
        let equal = m.binary(BinaryOp::Eq, t, a, b, &Expr::Acc(0))?.into_string();
        Ok((better, equal))
    }
    /// Takes in position `v1`.
    pub(super) fn update(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let i = self.index;
        match self.reduction.kind {
            ReduceKind::Arg { last, .. } => {
                let e = m.value(s, self.reduction.value)?;
                let (better, equal) = self.order(m, &e, &format!("best{i}"))?;
                let equal = if last { format!(" || ({equal})") } else { String::new() };
                s.line(&format!("if (at{i} < 0 || ({better}){equal}) {{"));
                s.line(&format!("    best{i} = {e};"));
                s.line(&format!("    at{i} = v1;"));
                s.line("}");
            }
            ReduceKind::Last { when, .. } => {
                let when = m.value(s, when)?;
                let e = m.value(s, self.reduction.value)?;
                s.line(&format!("if ({when}) {{"));
                s.line(&format!("    best{i} = {e};"));
                s.line(&format!("    at{i} = v1;"));
                s.line("}");
            }
            _ => {
                let e = m.value(s, self.reduction.value)?;
                let next = self.combine(m, &format!("acc{i}"), &e)?;
                s.line(&format!("acc{i} = {next};"));
            }
        }
        Ok(())
    }
    /// Combines the variables of two lanes, `a_…` and `b_…`, into the `a_…`.
    fn merge(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let i = self.index;
        let take = match self.reduction.kind {
            ReduceKind::Arg { last, .. } => {
                let (better, equal) = self.order(m, &format!("b_best{i}"), &format!("a_best{i}"))?;
                let side = if last { ">" } else { "<" };
                format!(
                    "b_at{i} >= 0 && (a_at{i} < 0 || ({better}) || (({equal}) && b_at{i} {side} a_at{i}))"
                )
            }
            ReduceKind::Last { .. } => format!("b_at{i} > a_at{i}"),
            _ => {
                let v = self.combine(m, &format!("a_acc{i}"), &format!("b_acc{i}"))?;
                s.line(&format!("a_acc{i} = {v};"));
                return Ok(());
            }
        };
        s.line(&format!("if ({take}) {{"));
        s.line(&format!("    a_best{i} = b_best{i};"));
        s.line(&format!("    a_at{i} = b_at{i};"));
        s.line("}");
        Ok(())
    }
    /// Declares the result where it is not a variable already.
    fn finish(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        let i = self.index;
        match self.reduction.kind {
            ReduceKind::Arg { .. } => {
                let at = m.cast(DType::I32, self.reduction.dtype, &format!("max(at{i}, 0)"))?.into_string();
                s.line(&format!("let acc{i} = {at};"));
            }
            ReduceKind::Last { init, .. } => {
                let init = m.value(s, init)?;
                s.line(&format!("let acc{i} = select({init}, best{i}, at{i} >= 0);"));
            }
            _ => {}
        }
        Ok(())
    }
    /// The expressions it evaluates at every position.
    fn roots(&self) -> Vec<ExprId> {
        match self.reduction.kind {
            ReduceKind::Last { when, .. } => vec![when, self.reduction.value],
            _ => vec![self.reduction.value],
        }
    }
}

/// What one loop does.
#[derive(Default)]
struct Plan<'a> {
    accumulators: Vec<Accumulator<'a>>,
    stores: Vec<&'a Store>,
}

impl Plan<'_> {
    fn roots(&self) -> Vec<ExprId> {
        let stores = self.stores.iter().flat_map(|s| store_roots(s));
        self.accumulators.iter().flat_map(Accumulator::roots).chain(stores).collect()
    }
}

fn store_roots(s: &Store) -> Vec<ExprId> {
    s.offset.data().into_iter().chain(s.guard).chain([s.value]).collect()
}

/// Which loops there are: each reduction and each store as early as it can be.
fn plan<'a>(m: &Module, reductions: &'a [Reduction], stores: &'a [Store]) -> Vec<Plan<'a>> {
    let mut plans: Vec<Plan> = vec![Plan::default()];
    // The loop whose end gives result i.
    let mut known_after: Vec<usize> = vec![];
    let first_loop = |deps: Deps, known_after: &[usize]| {
        let needed = known_after.iter().enumerate().filter(|(i, _)| deps & acc_bit(*i as u32) != 0);
        needed.map(|(_, p)| p + 1).max().unwrap_or(0)
    };
    for (i, r) in reductions.iter().enumerate() {
        let acc = Accumulator::new(i, r);
        let mut deps = acc.roots().into_iter().fold(0, |d, e| d | m.deps(e));
        if let ReduceKind::Last { init, .. } = r.kind {
            deps |= m.deps(init);
        }
        let at = first_loop(deps, &known_after);
        known_after.push(at);
        plans.resize_with(plans.len().max(at + 1), Plan::default);
        plans[at].accumulators.push(acc);
    }
    for s in stores {
        let deps = store_roots(s).into_iter().fold(m.poly_deps(&s.offset), |d, e| d | m.deps(e));
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
    let Family::Row { rows, len, reductions, .. } = &kernel.family else { return Ok(vec![]) };
    let m = Module::new(kernel, cx, false)?;
    let (scratch, _) = allocate(&plan(&m, reductions, &kernel.stores), &kernel.body);
    let first = choose(&m, rows, len, thread_bytes(&scratch));
    let most = most_threads(cx.profile);
    let longest = len.as_const().map_or(most, |n| n.clamp(1, 256) as u32).next_power_of_two();
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

fn choose(m: &Module, rows: &Dim, len: &Dim, thread_bytes: u32) -> Geometry {
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
        Some(n) => ((n as u64).div_ceil(4).next_power_of_two().min(256) as u32).max(1),
        None => 64,
    };
    let mut lanes = lanes.clamp(1, most);
    let mut threads = lanes.max(base);
    while lanes > 1 && threads * thread_bytes > m.cx.profile.max_workgroup_bytes {
        threads /= 2;
        lanes = lanes.min(threads);
    }
    Geometry { threads, lanes }
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
    let Family::Row { rows, len, reductions, row_stores } = &kernel.family else {
        return Err(Diagnostic::internal("not a row kernel"));
    };
    let mut m = Module::new(kernel, cx, false)?;
    let plans = plan(&m, reductions, &kernel.stores);
    let (scratch, slots) = allocate(&plans, &kernel.body);
    let per_thread = thread_bytes(&scratch);
    let Geometry { threads, lanes } = forced.unwrap_or_else(|| choose(&m, rows, len, per_thread));
    let shuffled = scratch.iter().all(|s| s.ty != "bool");
    let subgroup = cx.profile.subgroup.filter(|s| shuffled && lanes > 1 && threads.is_multiple_of(*s));
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
        for s in &plan.stores {
            m.hoist_index(&mut outer, &s.offset, ready)?;
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
            m.store(&mut body, s)?;
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
            for (v, (name, _)) in a.variables(&kernel.body).into_iter().enumerate() {
                shared.push(Shared { name, scratch: scratch[slots[p][n][v]].name.clone() });
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
                let ty = reg_type(reg);
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
