//! The `Map` family in tiles, where something is read along another axis than results are stored.

use super::wgsl::{Module, Scope, stored_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::Store;
use crate::kernel::bindings::component;
use crate::kernel::{Expr, ExprId, Kernel};
use crate::schedule::maps::{Tiled, Tiles, declare};
use wgfc_codegen_templates as templates;
use wgfc_codegen_templates::map::{Axis, Step, Tile};
use wgfc_ir::{Poly, Reg};

/// The work that the invocations of a workgroup do in turn: each has unit `local`, then the one `threads` behind it, ….
struct Turns {
    /// All units.
    units: u32,
    threads: u32,
}

impl Turns {
    fn count(&self) -> u32 {
        self.units.div_ceil(self.threads)
    }
    /// Whether turn `j` has a unit for each invocation.
    fn whole(&self, j: u32) -> bool {
        (j + 1) * self.threads <= self.units
    }
}

pub(super) fn emit(kernel: &Kernel, schedule: &Tiled, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let Tiled { threads, axis, rows, cols, elements, lines, pitch } = *schedule;
    let refused = || Diagnostic::internal(format!("a map kernel does not go in tiles as `{schedule:?}`"));
    let tiles = Tiles::new(kernel, axis as usize, (elements, lines), cx.graph, cx.target.f16);
    let tiles = tiles.ok_or_else(refused)?;
    if threads == 0
        || elements == 0
        || lines == 0
        || cols % elements != 0
        || rows % lines != 0
        || pitch < cols
    {
        return Err(refused());
    }
    let mut m = Module::new(&tiles.kernel, cx, true)?;
    m.domain = tiles.domain.clone();
    if !tiles.vectors.iter().all(|(t, n)| declare(&mut m.bindings, cx.graph, *t, *n)) {
        return Err(refused());
    }
    let body = &tiles.kernel.body;
    let mut outer = Scope::new(4);
    let extent = |m: &mut Module, outer: &mut Scope, k: usize| m.extent(outer, &tiles.domain[k]);
    let (height, groups, depth) = (
        extent(&mut m, &mut outer, tiles.across)?,
        extent(&mut m, &mut outer, tiles.groups)?,
        extent(&mut m, &mut outer, tiles.lines)?,
    );
    let width = extent(&mut m, &mut outer, tiles.along)?;
    let mut axes = vec![];
    let inner = [tiles.along, tiles.across];
    let others: Vec<usize> = (0..tiles.groups).filter(|k| !inner.contains(k)).collect();
    for (i, k) in others.iter().rev().enumerate() {
        let extent = if i + 1 < others.len() { Some(extent(&mut m, &mut outer, *k)?) } else { None };
        axes.push(Axis { name: format!("v{k}"), extent });
    }
    let blocks = others.iter().fold(Poly::ONE, |n, k| &n * &tiles.domain[*k]);
    let blocks = &(&blocks * &tiles.domain[tiles.along].ceil_div(i64::from(cols)))
        * &tiles.domain[tiles.across].ceil_div(i64::from(rows));
    let count = m.extent(&mut outer, &blocks)?;
    let extents = std::mem::take(&mut outer.text);
    m.hoist(&mut outer, &tiles.kernel.roots(), 0)?;
    let divides = |k: usize, n: u32| component(&tiles.domain[k], n.max(1)).is_some_and(|(_, rest)| rest == 0);
    let (full_rows, full_cols) = (divides(tiles.across, rows), divides(tiles.along, cols));
    let at_most = |at: String, end: &str, full: bool| if full { at } else { format!("min({at}, {end} - 1)") };

    // Elements that run along the other axis are taken along it.
    let turns = Turns { units: cols * (rows / lines), threads };
    let mut scopes = vec![];
    for j in 0..turns.count() {
        let mut s = outer.inner(4);
        s.line(&format!("let unit{j} = {};", unit(&turns, j)));
        s.line(&format!("let line{j} = unit{j} % {};", rows / lines));
        s.line(&format!("let col{j} = unit{j} / {};", rows / lines));
        let (z, c) = (format!("top / {lines} + line{j}"), format!("left + col{j}"));
        s.line(&format!("let z{j} = {};", at_most(z, &depth, full_rows)));
        s.line(&format!("let x{j} = {};", at_most(c, &width, full_cols)));
        s.bind_var(tiles.lines, &format!("z{j}"));
        s.bind_var(tiles.along, &format!("x{j}"));
        scopes.push(s);
    }
    let loads: Vec<ExprId> = tiles.staged.iter().flat_map(|s| s.loads.iter().copied()).collect();
    let mut staging = String::new();
    fetched(&mut m, &mut scopes, &body.reachable(&loads), &mut staging)?;
    // Values that are read where they are used.
    let turns_out = Turns { units: rows * (cols / elements), threads };
    let mut users = vec![];
    for j in 0..turns_out.count() {
        let mut s = outer.inner(4);
        scopes.iter().for_each(|o| s.number_after(o));
        s.line(&format!("let place{j} = {};", unit(&turns_out, j)));
        s.line(&format!("let row{j} = place{j} / {};", cols / elements));
        s.line(&format!("let group{j} = place{j} % {};", cols / elements));
        let (r, g) = (format!("top + row{j}"), format!("left / {elements} + group{j}"));
        s.line(&format!("let r{j} = {};", at_most(r, &height, full_rows)));
        s.line(&format!("let g{j} = {};", at_most(g, &groups, full_cols)));
        s.bind_var(tiles.across, &format!("r{j}"));
        s.bind_var(tiles.groups, &format!("g{j}"));
        users.push(s);
    }
    fetched(&mut m, &mut users, &tiles.direct, &mut staging)?;

    let mut arrays = vec![];
    for (n, staged) in tiles.staged.iter().enumerate() {
        let first = staged.loads.first().copied().ok_or_else(refused)?;
        arrays.push(Tile { name: format!("tile{n}"), ty: stored_type(body.dtype(first).reg()).into() });
    }
    let mut steps = vec![];
    // Names that are given in the function's own block.
    let mut given = Scope::new(4);
    scopes.iter().chain(&users).for_each(|s| given.number_after(s));
    for (j, s) in scopes.iter_mut().enumerate() {
        let mut inner = s.inner(if turns.whole(j as u32) { 4 } else { 8 });
        inner.number_after(&given);
        for (n, staged) in tiles.staged.iter().enumerate() {
            for (i, id) in staged.loads.iter().enumerate() {
                let v = m.value(&mut inner, *id)?;
                let v = if body.dtype(*id).reg() == Reg::Bool {
                    format!("select(0u, 1u, {v})")
                } else {
                    v.to_string()
                };
                inner.line(&format!("tile{n}[(line{j} * {lines} + {i}) * {pitch} + col{j}] = {v};"));
            }
        }
        let when = (!turns.whole(j as u32))
            .then(|| format!("i32(local) + {} < {}", j as u32 * threads, turns.units));
        given.number_after(&inner);
        steps.push(Step { when, body: inner.text });
    }
    let all: Vec<&[Store]> = tiles.kernel.stores.chunks(elements as usize).collect();
    let mut results = vec![];
    for (j, s) in users.iter_mut().enumerate() {
        let mut when = vec![];
        if !turns_out.whole(j as u32) {
            when.push(format!("i32(local) + {} < {}", j as u32 * threads, turns_out.units));
        }
        if !full_rows {
            when.push(format!("top + row{j} < {height}"));
        }
        if !full_cols {
            when.push(format!("left / {elements} + group{j} < {groups}"));
        }
        let mut inner = s.inner(if when.is_empty() { 4 } else { 8 });
        inner.number_after(&given);
        for (n, staged) in tiles.staged.iter().enumerate() {
            for (i, id) in staged.uses.iter().enumerate() {
                let element = format!("tile{n}[row{j} * {pitch} + group{j} * {elements} + {i}]");
                let element =
                    if body.dtype(*id).reg() == Reg::Bool { format!("{element} != 0u") } else { element };
                let v = inner.let_value(&element);
                inner.bind(*id, v);
            }
        }
        for group in &all {
            store_group(&mut m, &mut inner, group)?;
        }
        let when = (!when.is_empty()).then(|| when.join(" && "));
        given.number_after(&inner);
        results.push(Step { when, body: inner.text });
    }
    let bytes = arrays.iter().map(|a| if a.ty == "vec2<u32>" { 8 } else { 4 }).sum::<u32>() * rows * pitch;
    let wgsl = templates::render(&templates::map::Tiled {
        preamble: m.preamble(),
        tiles: arrays,
        len: rows * pitch,
        extents,
        threads,
        rows,
        cols,
        row_tiles: format!("({height} + {}) / {rows}", rows - 1),
        col_tiles: format!("({width} + {}) / {cols}", cols - 1),
        count,
        axes,
        setup: outer.text,
        staging,
        steps,
        results,
    })
    .map_err(template_error)?;
    let workgroups = fold_workgroups(&blocks, cx.target.max_workgroups);
    Ok(m.finish("map", wgsl, [threads, 1, 1], bytes, workgroups))
}

/// The unit of an invocation in a turn, the last one where there are no more.
fn unit(turns: &Turns, j: u32) -> String {
    let at = format!("i32(local) + {}", j * turns.threads);
    if turns.whole(j) { at } else { format!("min({at}, {})", turns.units - 1) }
}

/// Writes what the loads among some expressions read, of all scopes, and what the scopes have beside.
fn fetched(
    m: &mut Module,
    scopes: &mut [Scope],
    exprs: &[ExprId],
    out: &mut String,
) -> Result<(), Diagnostic> {
    for wave in waves(m, exprs) {
        for j in 0..scopes.len() {
            let mut s = std::mem::take(&mut scopes[j]);
            scopes.iter().for_each(|o| s.number_after(o));
            for id in &wave {
                m.fetch(&mut s, *id)?;
            }
            out.push_str(&std::mem::take(&mut s.text));
            scopes[j] = s;
        }
    }
    for s in scopes {
        out.push_str(&std::mem::take(&mut s.text));
    }
    Ok(())
}

/// Stores neighbours, as the vectors as which their tensor is declared.
fn store_group(m: &mut Module, s: &mut Scope, stores: &[Store]) -> Result<(), Diagnostic> {
    let Some(first) = stores.first() else { return Ok(()) };
    let elements = m.binding(first.tensor)?.1.vector().unwrap_or(1) as usize;
    stores.chunks(elements).try_for_each(|v| m.store_neighbours(s, v))
}

/// The loads of expressions in order that depend on the position, in waves: loads that the address of one depends on are in an earlier wave.
fn waves(m: &Module, exprs: &[ExprId]) -> Vec<Vec<ExprId>> {
    let body = &m.kernel.body;
    let mut level = vec![0usize; body.len()];
    let mut out: Vec<Vec<ExprId>> = vec![];
    for id in exprs.iter().copied() {
        let before = body.operands(id).into_iter().map(|o| level[o as usize]).max().unwrap_or(0);
        level[id as usize] = before;
        if matches!(body.expr(id), Expr::Load { .. }) && m.deps(id) != 0 {
            out.resize_with(out.len().max(before + 1), Vec::new);
            out[before].push(id);
            level[id as usize] = before + 1;
        }
    }
    out
}
