//! The `Row` family: reductions over rows, then stores.
//!
//! The lanes of a row combine in subgroups and in workgroup memory. Where a lane has only a few positions, what several
//! passes need of a position is read once and kept in a private array. A step takes several neighbouring positions
//! ([`Unrolled`]) where its schedule says so.

use super::accumulator::{Accumulator, sum_shows_nan};
use super::handle::Handle;
use super::wgsl::{Module, Scope, reg_type, stored_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::dependence::{acc_bit, var_bit};
use crate::kernel::{Body, ExprId, Family, Kernel, Row, Store};
use crate::schedule::rows::unroll::Unrolled;
use crate::schedule::rows::{self, group, kept, passes};
use wgfc_codegen_templates as templates;
use wgfc_codegen_templates::row::{Pass, Scratch, Shared};
use wgfc_ir::Reg;

/// The work of one pass.
struct PassText<'a> {
    accumulators: Vec<Accumulator<'a>>,
    /// The stores of neighbouring positions together.
    stores: Vec<&'a [Store]>,
}

impl PassText<'_> {
    fn roots(&self) -> Vec<ExprId> {
        let stores = self.stores.iter().copied().flatten().flat_map(Store::reads);
        self.accumulators.iter().flat_map(Accumulator::roots).chain(stores).collect()
    }
}

/// Bytes of workgroup memory that an invocation takes where several share a row.
fn thread_bytes(scratch: &[Scratch]) -> u32 {
    scratch.iter().map(|s| if s.ty == "vec2<u32>" { 8 } else { 4 }).sum()
}

/// Writes a row kernel as its schedule says.
pub(super) fn emit(
    kernel: &Kernel,
    schedule: &rows::Row,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let rows::Row { threads, lanes, rows_first, width, steps, subgroup, .. } = *schedule;
    let unrolled = Unrolled::new(kernel, width)?;
    let Unrolled { kernel, len, vectors, .. } = &unrolled;
    let Family::Row(row) = &kernel.family else {
        return Err(Diagnostic::internal("not a row kernel"));
    };
    let Row { rows, reductions, row_stores, .. } = row;
    let mut m = Module::new(kernel, cx)?;
    if !vectors.iter().all(|t| m.bindings.declare_vectors(cx.graph, *t, width)) {
        return Err(Diagnostic::internal(format!("a row kernel does not go in vectors of {width}")));
    }
    let n = width as usize;
    let accumulator = |i: &usize| {
        let (first, others) = group(reductions, *i, n).split_first()?;
        let a = Accumulator::new(*i, first, others);
        Some(if sum_shows_nan(kernel, row, m.dependence(), *i, n) { a.without_nan() } else { a })
    };
    let texts: Vec<PassText> = passes(m.dependence(), reductions, &kernel.stores, n)
        .iter()
        .map(|p| PassText {
            accumulators: p.reductions.iter().filter_map(accumulator).collect(),
            stores: p.stores.iter().map(|i| group(&kernel.stores, *i, n)).collect(),
        })
        .collect();
    let (scratch, slots) = allocate(&texts, &kernel.body);
    let per_thread = thread_bytes(&scratch);
    let joined = if rows_first { 1 } else { subgroup.min(lanes) };
    m.subgroup = (joined > 1).then_some(subgroup);
    let steps = i64::from(steps);
    let per_group = i64::from(threads / lanes);
    let full = rows
        .as_const()
        .is_some_and(|r| r % per_group == 0 && r / per_group <= i64::from(cx.target.max_workgroups));
    let ragged = steps > 0 && !(full && len.is(steps * i64::from(lanes)));
    let keep = if schedule.kept { kept(kernel, n) } else { vec![] };

    let mut outer = Scope::new(4);
    let rows_text = m.extent(&mut outer, rows)?;
    let len_text = m.extent(&mut outer, len)?;
    let extents = std::mem::take(&mut outer.text);
    for (n, (id, _)) in keep.iter().enumerate() {
        let t = reg_type(kernel.body.dtype(*id).reg());
        match steps {
            1 => outer.line(&format!("var kept{n}: {t};")),
            _ => outer.line(&format!("var kept{n}: array<{t}, {steps}>;")),
        }
    }
    let setup = std::mem::take(&mut outer.text);
    let kept_name = |n: usize| if steps == 1 { format!("kept{n}") } else { format!("kept{n}[step]") };

    let mut ready = var_bit(0);
    let mut passes = vec![];
    for (p, text) in texts.iter().enumerate() {
        for a in &text.accumulators {
            a.declare(&mut m, &mut outer)?;
        }
        m.hoist(&mut outer, &text.roots(), ready)?;
        for s in text.stores.iter().filter_map(|s| s.first()) {
            let at = m.address(s.tensor, &s.offset)?;
            m.hoist_index(&mut outer, &at, ready)?;
        }
        let before = std::mem::take(&mut outer.text);

        let mut body = outer.inner(if ragged { 12 } else { 8 });
        for (n, (id, first)) in keep.iter().enumerate() {
            if *first < p {
                body.bind(*id, Handle::inline(kept_name(n)));
            }
        }
        for a in &text.accumulators {
            a.update(&mut m, &mut body)?;
        }
        m.read_ahead(&mut body, text.stores.iter().copied().flatten().flat_map(Store::reads))?;
        for s in &text.stores {
            m.store_neighbours(&mut body, s)?;
        }
        if !body.text.is_empty() {
            for (n, (id, _)) in keep.iter().enumerate().filter(|(_, k)| k.1 == p) {
                let v = m.value(&mut body, *id)?;
                body.line(&format!("{} = {v};", kept_name(n)));
            }
        }

        let mut settle = outer.inner(4);
        for a in &text.accumulators {
            a.settle(&mut settle);
        }
        let mut combine = Scope::new(12);
        let mut shared = vec![];
        for (n, a) in text.accumulators.iter().enumerate() {
            a.merge(&mut m, &mut combine)?;
            for (v, (name, reg)) in a.variables(&kernel.body).into_iter().enumerate() {
                let array = scratch[slots[p][n][v]].name.clone();
                shared.push(Shared::new(name, array, reg == Reg::Bool));
            }
        }
        for a in &text.accumulators {
            a.finish(&mut m, &mut outer)?;
            ready |= acc_bit(a.index as u32);
        }
        let after = std::mem::take(&mut outer.text);
        passes.push(Pass {
            before,
            body: body.text,
            settle: settle.text,
            shared,
            combine: combine.text,
            after,
            once: String::new(),
        });
    }
    let mut once = outer.inner(8);
    m.stores(&mut once, row_stores)?;
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
        rows_first,
        joined,
        local: templates::Local::new(m.subgroup.unwrap_or(1)),
        rows: rows_text,
        open: cx.graph.computed.iter().any(|c| rows.symbols().contains(&c.0)),
        len: len_text,
        width,
        steps: steps as u32,
        ragged,
        scratch,
        setup,
        passes,
    })
    .map_err(template_error)?;
    let groups = rows.ceil_div(per_group);
    Ok(m.finish("row", wgsl, [threads, 1, 1], bytes, fold_workgroups(&groups, cx.target.max_workgroups)))
}

/// Slots of workgroup memory: `[loop][accumulator][variable]`.
type Slots = Vec<Vec<Vec<usize>>>;

/// Gives each variable that lanes combine an array; loops use the arrays one after another.
fn allocate(texts: &[PassText], body: &Body) -> (Vec<Scratch>, Slots) {
    let mut scratch: Vec<Scratch> = vec![];
    let mut slots = vec![];
    for text in texts {
        let mut used = vec![false; scratch.len()];
        let mut pass = vec![];
        for a in &text.accumulators {
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
