//! The `Scan` family: running combinations along rows, an invocation for each row, or where rows are long
//! and may be few a workgroup.

use super::accumulator::{Accumulator, identity};
use super::wgsl::{Module, Scope, reg_type, var_bit};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::fuse::group::estimate;
use crate::kernel::{Family, Kernel, PrefixScan, ReduceKind};
use wgfc_codegen_templates as templates;
use wgfc_ir::Reg;

/// So many rows keep a device busy, an invocation each; a workgroup gains on rows of such a length.
const FEW: i64 = 2048;
const LONG: i64 = 128;

pub(super) fn emit(kernel: &Kernel, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let Family::PrefixScan(PrefixScan { rows, len, reduction, exclusive, reverse }) = &kernel.family else {
        return Err(Diagnostic::internal("not a scan kernel"));
    };
    if matches!(reduction.kind, ReduceKind::Arg { .. } | ReduceKind::Last { .. }) {
        return Err(Diagnostic::internal("a scan of this kind of reduction"));
    }
    let mut m = Module::new(kernel, cx, false)?;
    let long = len.as_const().is_none_or(|n| n >= LONG);
    let shared = estimate(rows) < FEW && long && reduction.dtype.reg() != Reg::Bool;
    let threads = cx.profile.max_invocations.clamp(1, if shared { 256 } else { 64 });
    let mut outer = Scope::new(4);
    let rows_text = m.extent(&mut outer, rows)?;
    let len_text = m.extent(&mut outer, len)?;
    let extents = std::mem::take(&mut outer.text);
    m.hoist(&mut outer, &kernel.roots(), var_bit(0))?;
    let first = identity(&mut m, reduction.kind, reduction.dtype)?;
    outer.line(&format!("var acc0 = {first};"));
    let mut body = outer.inner(8);
    let acc = Accumulator::new(0, reduction, &[]);
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
    let scan = templates::scan::Scan {
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
        let groups = fold_workgroups(&rows.ceil_div(i64::from(threads)), cx.profile.max_workgroups);
        return Ok(m.finish("scan", wgsl, [threads, 1, 1], 0, groups));
    }
    let reg = reduction.dtype.reg();
    let ty = reg_type(reg).to_owned();
    let bytes = threads * if matches!(reg, Reg::I64 | Reg::U64) { 8 } else { 4 };
    let scan = templates::scan::ScanShared { scan, ty, first, combine, total: total.text };
    let wgsl = templates::render(&scan).map_err(template_error)?;
    let groups = fold_workgroups(rows, cx.profile.max_workgroups);
    Ok(m.finish("scan", wgsl, [threads, 1, 1], bytes, groups))
}
