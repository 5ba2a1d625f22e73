//! The `PrefixScan` family where several invocations share a row.

use super::accumulator::{Accumulator, identity};
use super::wgsl::{Module, Scope, reg_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::{Kernel, PrefixScan, ReduceKind};
use crate::schedule::prefix_scans;
use wgfc_codegen_templates as templates;

pub(super) fn emit(
    kernel: &Kernel,
    k: &PrefixScan,
    schedule: &prefix_scans::PrefixScan,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    if matches!(k.reduction.kind, ReduceKind::Arg { .. } | ReduceKind::Last { .. }) {
        return Err(Diagnostic::internal("a scan of this kind of reduction"));
    }
    shared(Module::new(kernel, cx)?, k, schedule)
}

/// Several invocations for each row.
fn shared(mut m: Module, k: &PrefixScan, s: &prefix_scans::PrefixScan) -> Result<EmittedKernel, Diagnostic> {
    let PrefixScan { rows, len, reduction, exclusive, reverse } = k;
    let prefix_scans::PrefixScan { threads, lanes, each } = *s;
    if !lanes.is_power_of_two() || threads % lanes != 0 || !each.is_power_of_two() {
        return Err(Diagnostic::internal(format!("{lanes} lanes of {threads} invocations with {each} each")));
    }
    let mut outer = Scope::new(4);
    let rows_text = m.extent(&mut outer, rows)?;
    let len_text = m.extent(&mut outer, len)?;
    let extents = std::mem::take(&mut outer.text);
    let first = identity(&mut m, reduction.kind, reduction.dtype)?;
    let acc = Accumulator::new(0, reduction, &[]).running();
    let combine = acc.combine(&mut m, "acc0", "next")?;
    let mut value = outer.inner(16);
    let next = m.value(&mut value, reduction.value)?;
    value.line(&format!("next = {next};"));
    let mut body = outer.inner(16);
    m.stores(&mut body, &m.kernel.stores)?;
    let (span, beside) = (lanes * each, threads / lanes);
    let scan = templates::prefix_scan::PrefixScanShared {
        preamble: m.preamble(),
        extents,
        threads,
        lanes,
        doublings: (0..lanes.ilog2()).map(|i| 1 << i).collect(),
        beside,
        each,
        span,
        spread: (span * beside).min(32) - 1,
        rows: rows_text,
        len: len_text,
        reverse: *reverse,
        exclusive: *exclusive,
        ty: reg_type(reduction.dtype.reg()).to_owned(),
        first,
        combine,
        value: value.text,
        body: body.text,
    };
    let wgsl = templates::render(&scan).map_err(template_error)?;
    let groups = fold_workgroups(&rows.ceil_div(i64::from(beside)), m.cx.target.max_workgroups);
    let bytes = prefix_scans::workgroup_bytes(k, s);
    Ok(m.finish("prefix_scan", wgsl, [threads, 1, 1], bytes, groups))
}
