//! The `Map` family: every element on its own.

use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::{Kernel, Map};
use crate::schedule::maps;
use wgfc_codegen_templates as templates;

pub(super) fn emit(
    kernel: &Kernel,
    Map { elements }: &Map,
    schedule: &maps::Map,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let maps::Map { threads, elements: per_thread } = *schedule;
    let mut m = Module::new(kernel, cx, true)?;
    let packed = m.packed_stores();
    if packed.iter().any(|p| p.1 > per_thread) {
        return Err(Diagnostic::internal("an invocation writes less than a word"));
    }

    let mut outer = Scope::new(4);
    let count = m.extent(&mut outer, elements)?;
    let extents = std::mem::take(&mut outer.text);
    m.hoist(&mut outer, &kernel.roots(), 0)?;
    let mut body = outer.inner(if per_thread > 1 { 8 } else { 4 });
    for store in &kernel.stores {
        m.store(&mut body, store)?;
    }
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
    let groups = elements.ceil_div(i64::from(threads * per_thread));
    Ok(m.finish("map", wgsl, [threads, 1, 1], 0, fold_workgroups(&groups, cx.target.max_workgroups)))
}
