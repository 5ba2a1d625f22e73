//! The `PrefixScan` family: running combinations along rows, an invocation or a workgroup for each row.

use super::accumulator::{Accumulator, identity};
use super::wgsl::{Module, Scope, reg_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::dependence::var_bit;
use crate::kernel::{Kernel, PrefixScan, ReduceKind};
use crate::schedule::prefix_scans;
use wgfc_codegen_templates as templates;
use wgfc_ir::Reg;

pub(super) fn emit(
    kernel: &Kernel,
    k: &PrefixScan,
    schedule: &prefix_scans::PrefixScan,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let PrefixScan { rows, len, reduction, exclusive, reverse } = k;
    let prefix_scans::PrefixScan { threads, shared } = *schedule;
    if matches!(reduction.kind, ReduceKind::Arg { .. } | ReduceKind::Last { .. }) {
        return Err(Diagnostic::internal("a scan of this kind of reduction"));
    }
    let mut m = Module::new(kernel, cx, false)?;
    let mut outer = Scope::new(4);
    let rows_text = m.extent(&mut outer, rows)?;
    let len_text = m.extent(&mut outer, len)?;
    let extents = std::mem::take(&mut outer.text);
    m.hoist(&mut outer, &kernel.roots(), var_bit(0))?;
    let first = identity(&mut m, reduction.kind, reduction.dtype)?;
    outer.line(&format!("var acc0 = {first};"));
    let mut body = outer.inner(8);
    let acc = Accumulator::new(0, reduction, &[]).running();
    let mut total = outer.inner(8);
    if shared {
        acc.update(&mut m, &mut total)?;
    }
    if !exclusive {
        acc.update(&mut m, &mut body)?;
    }
    for store in &kernel.stores {
        m.store(&mut body, store)?;
    }
    if *exclusive {
        acc.update(&mut m, &mut body)?;
    }
    let combine = acc.combine(&mut m, "acc0", "next")?;
    let scan = templates::prefix_scan::PrefixScan {
        preamble: m.preamble(),
        extents,
        threads,
        rows: rows_text,
        len: len_text,
        reverse: *reverse,
        setup: outer.text,
        body: body.text,
    };
    if !shared {
        let wgsl = templates::render(&scan).map_err(template_error)?;
        let groups = fold_workgroups(&rows.ceil_div(i64::from(threads)), cx.target.max_workgroups);
        return Ok(m.finish("prefix_scan", wgsl, [threads, 1, 1], 0, groups));
    }
    let reg = reduction.dtype.reg();
    let ty = reg_type(reg).to_owned();
    let bytes = threads * if matches!(reg, Reg::I64 | Reg::U64) { 8 } else { 4 };
    let scan = templates::prefix_scan::PrefixScanShared { scan, ty, first, combine, total: total.text };
    let wgsl = templates::render(&scan).map_err(template_error)?;
    let groups = fold_workgroups(rows, cx.target.max_workgroups);
    Ok(m.finish("prefix_scan", wgsl, [threads, 1, 1], bytes, groups))
}
