//! The `Map` family: every element on its own.

use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::{Family, Kernel, Map};
use wgfc_codegen_templates as templates;

pub(super) fn emit(kernel: &Kernel, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let Family::Map(Map { elements }) = &kernel.family else {
        return Err(Diagnostic::internal("not a map kernel"));
    };
    let mut m = Module::new(kernel, cx, true)?;
    let packed = m.packed_stores();
    let per_thread = packed.iter().map(|p| p.1).max().unwrap_or(1);
    let threads = cx.profile.max_invocations.clamp(1, 64);

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
    Ok(m.finish("map", wgsl, [threads, 1, 1], 0, fold_workgroups(&groups, cx.profile.max_workgroups)))
}
