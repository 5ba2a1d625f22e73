//! Rewrites of the graph.
//!
//! 0. [`branches`] and [`unroll`] expand conditions and short scans.
//! 1. [`canonical`] cleans up, so that equal computations look equal.
//! 2. [`recognise`] finds the raised operators that no pattern describes.
//! 3. [`flattened`] moves reshapes behind products.
//! 4. [`region`] saturates the graph with the [`rules`], a region at a time; [`recognise`] comes again.
//! 5. [`region`] saturates the products that share an operand with the rule that merges them ([`products`]).
//! 6. [`long_rows`] and [`parts`] split long rows into parts, [`sorts`] sorts rows.
//! 7. [`winograd`] replaces convolutions by products with fewer multiplications, [`long_sums`] splits the sums of products.
//!
//! The rules are bounded by rounds and terms, never by time, and everything here visits nodes in
//! an order that the graph determines: the same graph always gives the same result.

pub mod branches;
pub mod canonical;
pub mod empty;
pub mod extract;
pub mod flattened;
pub mod fold;
pub mod guards;
pub mod long_rows;
pub mod long_sums;
pub mod number;
pub mod parts;
pub mod products;
pub mod recognise;
pub mod region;
pub mod rules;
pub mod sorts;
pub mod term;
pub mod unroll;
pub mod views;
pub mod winograd;

use crate::options::{Fusion, Precision, Technique};
use crate::{Diagnostic, Errors, Options};
use wgfc_ir::{Graph, NodeId, Op};

/// Figures about a [`rewrite`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteReport {
    /// Nodes before, inputs and constants included.
    pub nodes_before: usize,
    /// Nodes of the graph after the rewrites.
    pub nodes_after: usize,
    /// Conditions (`If`) that were replaced by both branches and a selection.
    pub branches: usize,
    /// Scans that were unrolled.
    pub unrolled: usize,
    /// Figures about saturation with the rules.
    pub rules: region::Outcome,
    /// Guards against NaN removed.
    pub nan_guards: usize,
    /// Attentions recognised.
    pub attentions: usize,
    /// The number of products in each group that was merged.
    pub merged: Vec<usize>,
    /// Reductions whose rows were split into parts.
    pub rows_cut: usize,
    /// Convolutions replaced by Winograd's form.
    pub transformed: usize,
    /// Products whose sums were split into slices.
    pub sums_cut: usize,
    /// TopKs that were replaced by sorts.
    pub sorted: usize,
}

/// Rewrites `graph` in place; its inputs and outputs keep their names, order and types.
///
/// With [`Fusion::None`] only the clean-ups are done, with [`Fusion::Elementwise`] also the exact
/// rules, with [`Fusion::Full`] everything that `options.without` leaves. Fails only
/// if the graph is malformed or a rule is wrong.
pub fn rewrite(graph: &mut Graph, options: &Options) -> Result<RewriteReport, Errors> {
    let mut report = RewriteReport { nodes_before: graph.len(), ..RewriteReport::default() };
    stages(graph, options, false, &mut report).map_err(Diagnostic::internal)?;
    if options.fusion == Fusion::Full {
        if options.fuses(Technique::Winograd) && options.precision == Precision::F32 {
            let transformed = winograd::transform(graph, &options.profile, &options.expect);
            report.transformed = transformed.map_err(Diagnostic::internal)?;
        }
        let units = options.profile.cooperative_matrix && options.profile.f16;
        let rounded = units && options.precision == Precision::F16;
        let cut = long_sums::cut(graph, &options.profile, &options.expect, rounded);
        report.sums_cut = cut.map_err(Diagnostic::internal)?;
    }
    subgraphs_of(graph, options)?;
    report.nodes_after = graph.len();
    Ok(report)
}

fn subgraphs_of(graph: &mut Graph, options: &Options) -> Result<(), Errors> {
    for n in graph.node_ids().collect::<Vec<_>>() {
        for body in subgraphs(graph, n) {
            stages(body, options, true, &mut RewriteReport::default()).map_err(Diagnostic::internal)?;
            subgraphs_of(body, options)?;
        }
    }
    Ok(())
}

/// Runs the stages on a graph; `inside` says that it is the body of another graph's node.
fn stages(
    graph: &mut Graph,
    options: &Options,
    inside: bool,
    report: &mut RewriteReport,
) -> Result<(), String> {
    let (iterations, short) = match inside {
        true => (unroll::ITERATIONS, sorts::SHORT_IN_LOOPS),
        false => (1, sorts::SHORT),
    };
    // An unrolled loop may hold branches, and a flattened branch may hold loops, so both passes repeat until nothing changes.
    loop {
        let (branches, unrolled) = (branches::flatten(graph)?, unroll::unroll(graph, iterations)?);
        report.branches += branches;
        report.unrolled += unrolled;
        if unrolled == 0 {
            break;
        }
    }
    canonical::clean(graph)?;
    let approximate = options.fuses(Technique::Approximate);
    if options.fusion == Fusion::None {
        return Ok(());
    }
    // This comes before scales move into weights, which then differ.
    if approximate {
        recognised(graph, report)?;
    }
    if flattened::unflatten(graph)? > 0 {
        canonical::clean(graph)?;
    }
    report.rules = region::saturate(graph, rules::of(approximate), &options.expect)?;
    canonical::clean(graph)?;
    if approximate {
        recognised(graph, report)?;
    }
    if options.fuses(Technique::Merge) {
        let rules = rules::share(options.profile.max_binding_bytes);
        report.merged = region::saturate_products(graph, &rules, &options.expect)?.merged;
        canonical::clean(graph)?;
    }
    if options.fusion == Fusion::Full {
        report.rows_cut = long_rows::cut(graph, &options.profile.speeds)?;
        report.rows_cut += parts::cut(graph, &options.profile.speeds)?;
        report.sorted = sorts::expand(graph, &options.profile, short)?;
        canonical::clean(graph)?;
    }
    Ok(())
}

/// Recognises the raised operators that no rule finds.
fn recognised(graph: &mut Graph, report: &mut RewriteReport) -> Result<(), String> {
    report.nan_guards += recognise::nan_guard::remove(graph)?;
    report.attentions += recognise::attention::recognise(graph)?;
    recognise::attention::scales(graph)?;
    canonical::clean(graph)
}

fn subgraphs(graph: &mut Graph, n: NodeId) -> Vec<&mut Graph> {
    match &mut graph.node_mut(n).op {
        Op::If { then_branch, else_branch } => vec![then_branch, else_branch],
        Op::While { body, .. } | Op::Scan { body, .. } => vec![body],
        _ => vec![],
    }
}
