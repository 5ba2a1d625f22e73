//! Models that scripts generate at random with inputs, compared with ONNX Runtime at every level of fusion.
//!
//! `scripts/nnsmith.sh` makes the models of NNSmith, `scripts/flow_models.py` models with loops, branches,
//! recurrent and quantised operators, and `scripts/ml_models.py` models of classical machine learning.

use crate::backend::{Backend, Failure, caught, graph};
use crate::data::{DataSet, Folder};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;
use wgfc_compiler::Fusion;
use wgfc_ir::eval::evaluate;
use wgfc_ir::testing::{Bounded, bounded};
use wgfc_ir::{Graph, Tensor};
use wgfc_selftest::{Tolerance, equal};

/// The reason for which a result that differs from ONNX Runtime's is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// The result is within the error bound that rounding in the model's steps implies.
    Rounding,
    /// The value of an integer depends on how a float was rounded.
    RoundedInteger,
    /// The torch module that the model was exported from gives the same result.
    Torch,
}

const CLOSE: Tolerance = Tolerance { rtol: 1e-3, atol: 1e-4 };

fn compared(got: &[Tensor], want: &[Tensor]) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} outputs instead of {}", got.len(), want.len()));
    }
    let mut all = got.iter().zip(want).enumerate();
    all.try_for_each(|(i, (g, w))| equal(g, w, CLOSE).map_err(|e| format!("output {i}: {e}")))
}

/// A model and the results to compare with.
struct Subject {
    graph: Graph,
    inputs: BTreeMap<String, Tensor>,
    runtime: DataSet,
    torch: Option<DataSet>,
    real: Option<Result<Vec<Bounded>, String>>,
    evaluated: Option<Result<Vec<Tensor>, String>>,
}

impl Subject {
    fn read(folder: &Folder) -> Result<Subject, Failure> {
        let runtime = folder.data_set(0).map_err(Failure::error)?;
        let torch =
            (folder.data_sets() > 1).then(|| folder.data_set(1)).transpose().map_err(Failure::error)?;
        let (graph, names) = graph(&folder.model_path(), &runtime.inputs)?;
        let given: BTreeMap<_, _> = names.into_iter().zip(runtime.inputs.iter().cloned()).collect();
        let inputs =
            graph.inputs.iter().filter_map(|i| Some((i.name.to_string(), given.get(&*i.name)?.clone())));
        let inputs = inputs.collect();
        Ok(Subject { graph, inputs, runtime, torch, real: None, evaluated: None })
    }

    /// Checks the outputs; returns a reason if they are right but differ from ONNX Runtime's.
    fn judge(&mut self, got: &[Tensor]) -> Result<Option<Reason>, String> {
        let Err(differs) = compared(got, &self.runtime.outputs) else { return Ok(None) };
        let (graph, inputs) = (&self.graph, &self.inputs);
        let evaluated =
            self.evaluated.get_or_insert_with(|| evaluate(graph, inputs).map_err(|e| e.to_string()));
        let own = match evaluated {
            Ok(own) => match (compared(got, own), compared(own, &self.runtime.outputs)) {
                (Ok(()), _) => "the same".into(),
                (Err(_), Ok(())) => "the same as ONNX Runtime".into(),
                (Err(_), Err(e)) => e,
            },
            Err(e) => e.clone(),
        };
        if self.torch.as_ref().is_some_and(|t| compared(got, &t.outputs).is_ok()) {
            return Ok(Some(Reason::Torch));
        }
        let real = match self.real.get_or_insert_with(|| bounded(graph, inputs)) {
            Ok(real) => match real.iter().zip(got).try_for_each(|(r, g)| r.check(g)) {
                Ok(()) => return Ok(Some(Reason::Rounding)),
                Err(e) => e,
            },
            Err(e) if e.contains("depends on rounding") => return Ok(Some(Reason::RoundedInteger)),
            Err(e) => e.clone(),
        };
        Err(format!("{differs}; the evaluator: {own}; real numbers: {real}"))
    }
}

fn levels() -> Vec<(&'static str, Fusion)> {
    let all = [("full", Fusion::Full), ("elementwise", Fusion::Elementwise), ("none", Fusion::None)];
    let names = std::env::var("WGFC_FUSION").unwrap_or("full,none".into());
    all.into_iter().filter(|(name, _)| names.split(',').any(|n| n == *name)).collect()
}

/// One line of the report.
struct Row {
    case: String,
    adapter: String,
    level: &'static str,
    status: &'static str,
    why: String,
    seconds: f64,
}

fn check(folder: &Folder, backend: &Backend, rows: &mut dyn FnMut(Row)) {
    let adapter = backend.to_string();
    let row = |level, status, why: &str, start: Instant| Row {
        case: folder.name.clone(),
        adapter: adapter.clone(),
        level,
        status,
        why: why.replace(['\n', '\t'], " "),
        seconds: start.elapsed().as_secs_f64(),
    };
    let start = Instant::now();
    let mut subject = match caught(|| Subject::read(folder)) {
        Ok(s) => s,
        Err(e) => return rows(row("read", e.status(), e.message(), start)),
    };
    for (level, fusion) in levels() {
        let start = Instant::now();
        let result = caught(|| {
            let mut model = backend.compile(&folder.model_path(), fusion, &subject.runtime.inputs)?;
            let got = model.run(&subject.runtime.inputs)?;
            subject.judge(&got).map_err(Failure::Wrong)
        });
        rows(match result {
            Ok(None) => row(level, "pass", "", start),
            Ok(Some(reason)) => row(level, "explained", &format!("{reason:?}"), start),
            Err(e) => row(level, e.status(), e.message(), start),
        });
    }
}

/// Checks all models in a folder. Rows are appended to its `report.tsv` during the run; the failures are
/// returned.
fn check_all(test: &str, root: &Path) -> Vec<String> {
    let folders = Folder::all(root);
    let seeds = std::env::var("WGFC_GENERATED_SEEDS").ok();
    let seeds = seeds.and_then(|s| {
        let (from, to) = s.split_once("..")?;
        Some(from.parse::<u64>().ok()?..to.parse().ok()?)
    });
    let inside = |f: &&Folder| match (&seeds, f.name.parse()) {
        (Some(range), Ok(seed)) => range.contains(&seed),
        _ => true,
    };
    let mut report =
        std::fs::File::options().create(true).append(true).open(root.join("report.tsv")).unwrap();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = vec![];
    let mut models = 0;
    for folder in folders.iter().filter(inside).filter(|f| crate::selected(&f.name)) {
        models += 1;
        for backend in Backend::all() {
            check(folder, &backend, &mut |r| {
                let Row { case, adapter, level, status, why, seconds } = &r;
                // Several processes append to the file, so each line is written with a single call.
                let line = format!("{case}\t{adapter}\t{level}\t{status}\t{seconds:.2}\t{why}\n");
                report.write_all(line.as_bytes()).unwrap();
                let what = if *status == "explained" { format!("{status}: {why}") } else { (*status).into() };
                *counts.entry(what).or_default() += 1;
                if !matches!(*status, "pass" | "explained") {
                    failures.push(format!("{case}, {level} on {adapter}: {status}: {why}"));
                }
            });
        }
    }
    let mut line = format!("{test}: {models} models");
    for (what, n) in counts {
        let _ = write!(line, ", {n} {what}");
    }
    crate::say(line);
    failures
}

/// The models with control flow made by `scripts/data.sh`, or those in the folder that `WGFC_GENERATED`
/// names. `WGFC_GENERATED_SEEDS=FROM..TO` selects models whose names are numbers in this range.
#[test]
fn generated_models() {
    of_folder("generated_models", "WGFC_GENERATED", "target/flow");
}

/// The models of classical machine learning made by `scripts/data.sh`, or those in the folder that
/// `WGFC_GENERATED_ML` names.
#[test]
fn generated_machine_learning() {
    of_folder("generated_machine_learning", "WGFC_GENERATED_ML", "target/ml");
}

fn of_folder(test: &str, variable: &str, folder: &str) {
    let root = crate::folder(variable, folder);
    if !root.is_dir() {
        return crate::skip(test, format!("no models in {folder}: run scripts/data.sh"));
    }
    let failures = check_all(test, &root);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
