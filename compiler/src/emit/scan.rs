//! The `Scan` family: running combinations along rows.

use super::row::{Accumulator, identity};
use super::wgsl::{Module, Scope, var_bit};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::{Family, Kernel, ReduceKind};
use wgfc_codegen_templates as templates;

pub(super) fn emit(kernel: &Kernel, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let Family::Scan { rows, len, reduction, exclusive, reverse } = &kernel.family else {
        return Err(Diagnostic::internal("not a scan kernel"));
    };
    if matches!(reduction.kind, ReduceKind::Arg { .. } | ReduceKind::Last { .. }) {
        return Err(Diagnostic::internal("a scan of this kind of reduction"));
    }
    let mut m = Module::new(kernel, cx, false)?;
    let threads = cx.profile.max_invocations.clamp(1, 64);
    let mut outer = Scope::new(4);
    let rows_text = m.extent(&mut outer, rows)?;
    let len_text = m.extent(&mut outer, len)?;
    let extents = std::mem::take(&mut outer.text);
    m.hoist(&mut outer, &kernel.roots(), var_bit(0))?;
    let first = identity(&mut m, reduction.kind, reduction.dtype)?;
    outer.line(&format!("var acc0 = {first};"));
    let mut body = outer.inner(8);
    let acc = Accumulator::new(0, reduction);
    if !exclusive {
        acc.update(&mut m, &mut body)?;
    }
    for store in &kernel.stores {
        m.store(&mut body, store)?;
    }
    if *exclusive {
        acc.update(&mut m, &mut body)?;
    }
    let wgsl = templates::render(&templates::scan::Scan {
        preamble: m.preamble(),
        extents,
        threads,
        rows: rows_text,
        len: len_text,
        reverse: *reverse,
        setup: outer.text,
        body: body.text,
    })
    .map_err(template_error)?;
    let groups = rows.ceil_div(i64::from(threads));
    Ok(m.finish("scan", wgsl, [threads, 1, 1], 0, fold_workgroups(&groups, cx.profile.max_workgroups)))
}
