//! Saves the smallest case of a finding.

use prost::Message;
use std::path::{Path, PathBuf};
use wgfc::output::write_whole;
use wgfc::{Error, SaveOptions, npy};
use wgfc_selftest::{Smallest, Source};

/// Writes the case into its own folder in `dir`: the model (`model.onnx`, or `graph.txt` for a random graph), the compiled
/// program, and inputs, expected and actual outputs as `.npy`. Returns the folder.
pub fn save(s: &Smallest, dir: &Path) -> Result<PathBuf, Error> {
    let at = dir.join(s.case.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-"));
    match &s.source {
        Source::Model(m) => write_whole(&at.join("model.onnx"), &m.encode_to_vec())?,
        Source::Graph(g) => write_whole(&at.join("graph.txt"), wgfc::ir::text::print(g).as_bytes())?,
    }
    for (name, t) in &s.inputs {
        npy::write(t, &at.join(format!("inputs/{name}.npy")))?;
    }
    if let Some(d) = &s.device {
        let options = SaveOptions { force: true, ..SaveOptions::default() };
        wgfc::save(&d.program, &at.join("program"), &options)?;
        for (folder, tensors) in [("expected", &d.want), ("actual", &d.got)] {
            for (port, t) in d.program.outputs.iter().zip(tensors) {
                npy::write(t, &at.join(format!("{folder}/{}.npy", port.name)))?;
            }
        }
    }
    let text = format!("{}\n\n{}\n\n{}\n", s.message, s.text, commands(s, &at).join("\n"));
    write_whole(&at.join("case.txt"), text.as_bytes())?;
    Ok(at)
}

/// The commands that run the case, given the folder `at` in which it was saved.
pub fn commands(s: &Smallest, at: &Path) -> Vec<String> {
    let input = |n: &String| format!(" --input {n}={}", at.join(format!("inputs/{n}.npy")).display());
    let inputs: String = s.inputs.keys().map(input).collect();
    let mut all = vec![];
    if matches!(s.source, Source::Model(_)) {
        all.push(format!("wgfc run {}{}{inputs}", at.join("model.onnx").display(), s.arguments));
    }
    if s.device.is_some() {
        all.push(format!("wgfc run {}{inputs}", at.join("program").display()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc::runtime::AdapterChoice;
    use wgfc::{Tensor, ir};
    use wgfc_selftest::{Plan, run_case};

    fn nothing(_: &ir::Graph, want: &mut [Tensor]) {
        want.iter_mut().for_each(|t| *t = Tensor::zeros(t.dtype, t.shape.clone()));
    }

    #[test]
    fn cases_are_saved_with_their_programs_and_outputs() {
        let Some(gpu) = wgfc::runtime::testing::gpus().first() else { return };
        let adapter = AdapterChoice::Name(gpu.summary().name.clone());
        let plan = Plan { adapter, fault: Some(nothing), ..Plan::default() };
        let folder = tempfile::tempdir().unwrap();
        for (case, model) in [("graph 1", "graph.txt"), ("Sigmoid 1", "model.onnx")] {
            let report = run_case(&plan, case).unwrap();
            let smallest = report.findings[0].smallest.as_ref().unwrap();
            let at = save(smallest, folder.path()).unwrap();
            for part in [model, "program/plan.json", "case.txt", "inputs", "expected", "actual"] {
                assert!(at.join(part).exists(), "{case}: {part}");
            }
            let text = std::fs::read_to_string(at.join("case.txt")).unwrap();
            assert!(commands(smallest, &at).iter().all(|c| text.contains(c)), "{text}");
        }
    }
}
