//! The `Map` family: every element on its own, words of packed results.

use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::bindings::{Encoding, per_word};
use crate::kernel::{Expr, ExprId, Kernel, Map, Store};
use crate::schedule::maps::{Flat, Words, declare};
use wgfc_codegen_templates as templates;
use wgfc_ir::Poly;

/// Maps whose groups are not all whole, or too long to be written out; others are written [from loops](super::loops).
pub(super) fn emit(
    kernel: &Kernel,
    map: &Map,
    schedule: &Flat,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    match Words::new(kernel, schedule.elements, cx.graph, cx.target.f16) {
        Some(words) => whole_words(&words, map, schedule, cx),
        None => words(kernel, map, schedule, cx),
    }
}

/// Words of packed results, and the elements of the last one, which is not whole.
fn whole_words(
    words: &Words,
    map: &Map,
    schedule: &Flat,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let Flat { threads, elements, unroll } = *schedule;
    let mut m = Module::new(&words.kernel, cx, true)?;
    m.domain = vec![map.elements.div(&Poly::from(i64::from(elements)), &[]), map.elements.clone()];
    let declared = words.vectors.iter().all(|(t, n)| declare(&mut m.bindings, cx.graph, *t, *n));
    if unroll != 1 || !declared {
        return Err(Diagnostic::internal("an invocation writes other than a word"));
    }
    let packed = |m: &Module, s: &Store| {
        let (i, b) = m.binding(s.tensor)?;
        Ok::<_, Diagnostic>((b.encoding == Encoding::Vector(1) && per_word(b.dtype) > 1).then_some(i))
    };
    let (whole, single) = words.kernel.stores.split_at(words.whole);
    let mut outer = Scope::new(4);
    let count = m.extent(&mut outer, &map.elements)?;
    let extents = extents(&m, &mut outer, &map.elements, &count);
    m.hoist(&mut outer, &words.kernel.roots(), 0)?;
    let mut body = outer.inner(8);
    m.read_ahead(&mut body, whole.iter().flat_map(Store::reads))?;
    for s in whole.chunks(elements as usize) {
        store_group(&mut m, &mut body, s)?;
    }
    let (mut rest, mut variables) = (outer.inner(12), Scope::new(8));
    for s in single {
        if let Some(i) = packed(&m, s)? {
            variables.line(&format!("var w{i} = 0u;"));
        }
    }
    m.stores(&mut rest, single)?;
    let wgsl = templates::render(&templates::map::Words {
        preamble: m.preamble(),
        extents,
        threads,
        elements,
        count,
        setup: outer.text,
        body: body.text,
        variables: variables.text,
        rest: rest.text,
    })
    .map_err(template_error)?;
    let groups = map.elements.ceil_div(i64::from(threads * elements));
    Ok(m.finish("map", wgsl, [threads, 1, 1], 0, fold_workgroups(&groups, cx.target.max_workgroups)))
}

/// Neighbours of whom only what is packed into a word is known to exist, one after another.
fn words(kernel: &Kernel, map: &Map, schedule: &Flat, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let Flat { threads, elements: per_thread, unroll } = *schedule;
    let mut m = Module::new(kernel, cx, true)?;
    let packed = m.packed_stores();
    if packed.iter().any(|p| p.1 > per_thread) || unroll != 1 {
        return Err(Diagnostic::internal("an invocation writes other than a word"));
    }
    let mut outer = Scope::new(4);
    let count = m.extent(&mut outer, &map.elements)?;
    let extents = extents(&m, &mut outer, &map.elements, &count);
    m.hoist(&mut outer, &kernel.roots(), 0)?;
    let mut body = outer.inner(8);
    m.stores(&mut body, &kernel.stores)?;
    for (i, _) in packed {
        outer.line(&format!("var w{i} = 0u;"));
    }
    let wgsl = templates::render(&templates::map::Map {
        preamble: m.preamble(),
        extents,
        threads,
        per_thread,
        count,
        setup: outer.text,
        body: body.text,
    })
    .map_err(template_error)?;
    let groups = map.elements.ceil_div(i64::from(threads * per_thread));
    Ok(m.finish("map", wgsl, [threads, 1, 1], 0, fold_workgroups(&groups, cx.target.max_workgroups)))
}

/// The statements that extents need. There may be no elements at all where a run computes how many there are, since workgroups are
/// dispatched for the most there can be.
fn extents(m: &Module, s: &mut Scope, size: &Poly, count: &str) -> String {
    if m.cx.graph.bounds.concern(size) {
        s.line(&format!("if ({count} < 1) {{"));
        s.line("    return;");
        s.line("}");
    }
    std::mem::take(&mut s.text)
}

/// Stores neighbours, as the vectors as which their tensor is declared.
pub(super) fn store_group(m: &mut Module, s: &mut Scope, stores: &[Store]) -> Result<(), Diagnostic> {
    let Some(first) = stores.first() else { return Ok(()) };
    let elements = m.binding(first.tensor)?.1.vector().unwrap_or(1) as usize;
    stores.chunks(elements).try_for_each(|v| m.store_neighbours(s, v))
}

/// The loads of expressions in order that depend on the position, in waves: loads that the address of one depends on are in an earlier wave.
pub(super) fn waves(m: &Module, exprs: &[ExprId]) -> Vec<Vec<ExprId>> {
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
