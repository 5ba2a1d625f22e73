//! The `Map` family: every element on its own.

use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::bindings::{Encoding, per_word};
use crate::kernel::{Expr, ExprId, Kernel, Map, Store};
use crate::schedule::maps::{Flat, Neighbours, Words, declare};
use wgfc_codegen_templates as templates;
use wgfc_ir::Poly;

pub(super) fn emit(
    kernel: &Kernel,
    map: &Map,
    schedule: &Flat,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    match Neighbours::new(kernel, schedule.elements, cx.graph, cx.target.f16) {
        None if schedule.elements > 1 => {
            match Words::new(kernel, schedule.elements, cx.graph, cx.target.f16) {
                Some(words) => whole_words(&words, map, schedule, cx),
                None => words(kernel, map, schedule, cx),
            }
        }
        None => groups(kernel, None, schedule, cx),
        Some(n) => groups(&n.kernel, Some(&n), schedule, cx),
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
        group: 1,
        count,
        setup: outer.text,
        body: body.text,
    })
    .map_err(template_error)?;
    let groups = map.elements.ceil_div(i64::from(threads * per_thread));
    Ok(m.finish("map", wgsl, [threads, 1, 1], 0, fold_workgroups(&groups, cx.target.max_workgroups)))
}

/// Groups of elements: one, or neighbours.
fn groups(
    kernel: &Kernel,
    neighbours: Option<&Neighbours>,
    schedule: &Flat,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let Flat { threads, unroll, .. } = *schedule;
    let width = neighbours.map_or(1, |n| n.width);
    let vectors = neighbours.map_or(&[][..], |n| &n.vectors);
    let mut m = Module::new(kernel, cx, true)?;
    if !vectors.iter().all(|(t, n)| declare(&mut m.bindings, cx.graph, *t, *n))
        || !m.packed_stores().is_empty()
    {
        return Err(Diagnostic::internal(format!("a map kernel does not go in groups of {width}")));
    }
    if neighbours.is_none() {
        // Elements that each invocation reads side by side, such as the parts of attention.
        m.vectorise(&kernel.roots());
    }
    let per_group = i64::from(threads * unroll);
    let [size] = &kernel.domain()[..] else { return Err(Diagnostic::internal("not a map kernel")) };
    let workgroups = fold_workgroups(&size.ceil_div(per_group), cx.target.max_workgroups);
    let covered = workgroups.iter().fold(Poly::from(per_group), |n, d| &n * d);
    // Workgroups are dispatched for the bound of a size that a run computes.
    let whole = covered == *size && !cx.graph.bounds.concern(size);

    let mut outer = Scope::new(4);
    let count = m.extent(&mut outer, size)?;
    let extents = match unroll {
        1 => std::mem::take(&mut outer.text),
        _ => extents(&m, &mut outer, size, &count),
    };
    m.hoist(&mut outer, &kernel.roots(), 0)?;
    let stores: Vec<&[Store]> = kernel.stores.chunks(width as usize).collect();
    let setup = std::mem::take(&mut outer.text);
    let body = if unroll == 1 {
        let mut body = outer.inner(4);
        m.read_ahead(&mut body, kernel.roots())?;
        for s in stores {
            store_group(&mut m, &mut body, s)?;
        }
        body.text
    } else {
        let mut scopes = vec![];
        let mut text = String::new();
        let waves = waves(&m, &kernel.body.reachable(&kernel.roots()));
        for j in 0..unroll {
            let mut s = outer.inner(4);
            if !whole {
                s.line(&format!("let v{j} = min(at{j}, count - 1);"));
            }
            s.bind_var(0, &format!("v{j}"));
            scopes.push(s);
        }
        for wave in waves {
            for j in 0..scopes.len() {
                let mut s = std::mem::take(&mut scopes[j]);
                scopes.iter().for_each(|o| s.number_after(o));
                for id in &wave {
                    m.fetch(&mut s, *id)?;
                }
                text.push_str(&std::mem::take(&mut s.text));
                scopes[j] = s;
            }
        }
        for j in 0..scopes.len() {
            let mut s = scopes[j].inner(if whole { 4 } else { 8 });
            s.text = std::mem::take(&mut scopes[j].text);
            scopes.iter().for_each(|o| s.number_after(o));
            for all in &stores {
                store_group(&mut m, &mut s, all)?;
            }
            if whole {
                text.push_str(&s.text);
            } else {
                text.push_str(&format!("    if (at{j} < count) {{\n{}    }}\n", s.text));
            }
            scopes[j].number_after(&s);
        }
        text
    };
    let wgsl = if unroll == 1 {
        templates::render(&templates::map::Map {
            preamble: m.preamble(),
            extents,
            threads,
            per_thread: 1,
            group: width,
            count,
            setup,
            body,
        })
    } else {
        templates::render(&templates::map::Unrolled {
            preamble: m.preamble(),
            extents,
            threads,
            positions: (0..unroll).map(|j| format!("{}{j}", if whole { "v" } else { "at" })).collect(),
            group: width,
            count,
            setup,
            body,
        })
    };
    Ok(m.finish("map", wgsl.map_err(template_error)?, [threads, 1, 1], 0, workgroups))
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
