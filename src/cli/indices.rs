//! `wgfc run --check-indices`.

use super::args::RunArgs;
use super::load::Fixed;
use super::terminal::Terminal;
use super::{is_program, shown};
use std::collections::BTreeMap;
use wgfc::compiler::import::wants_indices_inside;
use wgfc::ir::eval::evaluate_checked;
use wgfc::{Error, ModelFile, Problem, Tensor};

/// Returns an error that lists the indices of gathers and scatters that are out of range.
pub fn check(
    a: &RunArgs,
    fixed: Fixed,
    tensors: &BTreeMap<String, Tensor>,
    t: &Terminal,
) -> Result<(), Error> {
    if is_program(&a.model) {
        return Err(Error::usage(
            "--check-indices has no effect on a compiled folder",
            "give the model it was compiled from, which the evaluator can run",
        ));
    }
    let _progress = t.spinner(format!("evaluating {} on the CPU", shown(&a.model)));
    let mut file = ModelFile::open(&a.model)?;
    if a.data.random_weights {
        file = file.with_random_weights()?;
    }
    let imported = file.import(&fixed.within(a.compile.options()?))?;
    let (_, found) = evaluate_checked(&imported.graph, tensors).map_err(|e| {
        Error::usage(format!("the model cannot be evaluated: {e}"), "leave --check-indices out")
    })?;
    let mut problems = vec![];
    for (node, all) in &found {
        // Other operators define their results for indices that are out of range.
        let Some(operator) = imported.operators.get(node).filter(|o| wants_indices_inside(o)) else {
            continue;
        };
        let first: Vec<String> = all
            .first
            .iter()
            .map(|o| format!("{} at {:?} (the axis has {})", o.value, o.position, o.extent))
            .collect();
        let more = match all.count - all.first.len() {
            0 => String::new(),
            n => format!(", and {n} more"),
        };
        let what =
            if all.writes { "what is written there is dropped" } else { "the nearest element is read" };
        problems.push(Problem::with_help(
            format!("node \"{node}\" ({operator}): indices outside: {}{more}", first.join(", ")),
            format!("without --check-indices {what}"),
        ));
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Usage(problems)) }
}
