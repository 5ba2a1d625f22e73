//! A survey of a program before lowering: it finds all operators that are not supported at once.

use super::messages::{Argument, Graph};
use super::op::{self, label, location};
use super::walk::MAX_DEPTH;
use super::{header, importer, model, open, ops};
use crate::import::{CheckReport, ExternalData, Unsupported, shown_inputs};
use crate::{Diagnostic, Errors, Location, Options};
use std::collections::BTreeMap;

/// The findings of [`survey`].
#[derive(Debug, Default)]
pub struct Survey {
    /// The number of nodes per operator, inner graphs included.
    pub operators: BTreeMap<String, usize>,
    /// Operators that are not supported.
    pub unsupported: Vec<Unsupported>,
    /// An error for each of `unsupported`.
    pub errors: Vec<Diagnostic>,
}

/// Surveys every node.
pub fn survey(graph: &Graph) -> Survey {
    let mut s = Survey::default();
    let mut found: BTreeMap<&str, (Location, Vec<String>)> = BTreeMap::new();
    let mut todo = vec![(graph, 0)];
    while let Some((g, depth)) = todo.pop() {
        for (i, node) in g.nodes.iter().enumerate() {
            let target = op::target(node);
            *s.operators.entry(target.to_owned()).or_default() += 1;
            // The importer refuses deeper nesting.
            todo.extend(node.inputs.iter().filter_map(|i| match &i.arg {
                Argument::Graph(g) if depth < MAX_DEPTH => Some((&*g.graph, depth + 1)),
                _ => None,
            }));
            if ops::find(target).is_none() && !op::makes_sizes(node) {
                let here = found.entry(target).or_insert_with(|| (location(node, i), vec![]));
                here.1.push(label(node, i));
            }
        }
    }
    for (target, (at, nodes)) in found {
        let why = ops::why(target).map(|w| format!(": {w}")).unwrap_or_default();
        let more = if nodes.len() > 1 { format!(" ({} nodes)", nodes.len()) } else { String::new() };
        let reason = format!("operator {target} is not supported{why}");
        let d = Diagnostic::unsupported(format!("operator {target} is not supported{more}{why}"));
        let known = |space: &str| target.starts_with(space);
        let help = if known("aten.") || known("prims.") {
            "call run_decompositions() on the exported program, which writes many operators in others, or cut this part out of the module"
        } else {
            "register a decomposition of it before run_decompositions(), or cut this part out of the module"
        };
        s.errors.push(d.at(at).help(help));
        s.unsupported.push(Unsupported { operator: target.to_owned(), opset: None, reason, nodes });
    }
    s
}

/// Reports which operators a program uses and whether it can be compiled, without reading its weights.
pub fn check(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> CheckReport {
    let mut report = CheckReport::default();
    if let Err(e) = fill(&mut report, bytes, external, options) {
        report.errors = e.0;
    }
    report
}

fn fill(
    report: &mut CheckReport,
    bytes: &[u8],
    external: &dyn ExternalData,
    options: &Options,
) -> Result<(), Errors> {
    let archive = open(bytes, external, options.memory_limit)?;
    let about = header::about(&archive)?;
    report.schema = Some((about.schema_version.major, about.schema_version.minor));
    report.producer = about.torch_version.map(|v| format!("torch {v}")).unwrap_or_default();
    let program = header::read(&archive)?;
    let survey = survey(&program.graph_module.graph);
    report.operators = survey.operators;
    report.unsupported = survey.unsupported;
    report.shape_inputs = model::integers(&program);
    let options = Options { graph_only: true, ..options.clone() };
    let mut im = importer(archive, &program, &options)?;
    let imported = model::import(&mut im, &program, &options)?;
    let g = &imported.graph;
    let show = |b: &wgfc_ir::Border| (b.name.to_string(), g.ty(b.value).to_string());
    report.inputs = shown_inputs(g);
    report.outputs = g.outputs.iter().map(show).collect();
    report.warnings = imported.warnings;
    Ok(())
}
