//! Loops, and the constants that only the units of fusion show.

use super::{Context, Scope};
use crate::error::{Diagnostic, Errors};
use crate::fuse::loops::lanes::{self, Executor};
use crate::fuse::loops::{layout, prepare as forms};
use crate::fuse::{grouping, internal, pulling, refused};
use crate::options::Technique;
use wgfc_ir::{Graph, NodeId, Op};

/// Brings loops into the form that kernels are made of.
pub(super) fn prepare(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), Errors> {
    let done = forms::prepare(graph, cx.options, cx.scope == Scope::Step);
    done.map_err(|r| refused(graph, &r).into())
}

/// Maps each loop to lanes, where that is possible and wanted; for the other loops the reason why they are split is noted.
pub(super) fn map(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), Errors> {
    let findings = &mut cx.findings;
    for n in graph.node_ids().filter(|n| matches!(graph.node(*n).op, Op::Scan { .. })) {
        if !cx.options.fuses(Technique::Loops) {
            findings.split.insert(n, "loops as one kernel were not asked for".into());
            continue;
        }
        match lanes::map(graph, n, cx.options) {
            Ok(mapping) => _ = findings.loops.insert(n, mapping),
            Err(why) => _ = findings.split.insert(n, why.join("; ")),
        }
    }
    Ok(())
}

/// Transposes the operands of products in loops that run in workgroups, where that helps.
pub(super) fn lay_out(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), Errors> {
    let findings = &mut cx.findings;
    let in_workgroups = |n: &NodeId| findings.loops.get(n).is_some_and(|p| p.executor == Executor::Workgroup);
    for n in graph.node_ids().filter(in_workgroups).collect::<Vec<_>>() {
        let moved = layout::lay_out(graph, n, &cx.options.profile);
        let Some((new, values)) = moved.map_err(|e| internal(graph, n, &e))? else { continue };
        findings.loops.remove(&n);
        match lanes::map(graph, new, cx.options) {
            Ok(mapping) => _ = findings.loops.insert(new, mapping),
            Err(why) => _ = findings.split.insert(new, why.join("; ")),
        }
        findings.bans.materialise.extend(values);
    }
    Ok(())
}

/// Computes the units whose results are the same in every run.
pub(super) fn fold(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), Errors> {
    let findings = &mut cx.findings;
    findings.settle(graph);
    let order = graph.topo().map_err(|n| internal(graph, n, "the graph has a cycle"))?;
    let grouping = grouping::group(graph, &order, &findings.loops, cx.options, &findings.bans);
    if pulling::constant::fold(graph, &order, &grouping).map_err(Diagnostic::internal)? {
        findings.bans.materialise.retain(|v| graph.contains(v.node));
    }
    Ok(())
}
