//! The test cases of ONNX on an adapter, with no CPU fallback, checked against the lists of cases known to
//! pass.

use crate::backend::{Backend, Failure, caught};
use crate::data::Folder;
use crate::dispatches;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use wgfc::npy;
use wgfc_compiler::Fusion;
use wgfc_ir::{DType, Tensor};
use wgfc_selftest::{Tolerance, equal};

/// One line of a suite's index.
pub struct Case {
    pub folder: Folder,
    pub tolerance: Tolerance,
    operators: String,
}

/// Operators that draw random numbers: ONNX specifies their distribution, not their values.
const DRAWN: [&str; 6] =
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

/// Operators that return eigenvectors or singular vectors.
const SIGNLESS: [&str; 5] = [
    "aten._linalg_eigh.default",
    "aten._linalg_svd.default",
    "aten.linalg_eigh.default",
    "aten.linalg_svd.default",
    "aten.svd.default",
];

impl Case {
    /// Whether the expected numbers come from a particular random generator, so that only types and shapes
    /// must agree.
    pub fn drawn(&self) -> bool {
        let name = &self.folder.name;
        let dropout = name.starts_with("test_training_dropout") && !name.contains("zero_ratio");
        dropout || self.operators.split(',').any(|o| DRAWN.contains(&o))
    }
    /// Whether results are eigenvectors or singular vectors, which are unique only up to sign. Tests in
    /// `lower/linalg` check that they reconstruct the matrix.
    fn signs_are_open(&self) -> bool {
        self.operators.split(',').any(|o| SIGNLESS.contains(&o))
    }
}

/// Versions of a tensor in which each column, or each row, of its matrices has the sign of the wanted one.
fn with_signs_of(got: &Tensor, want: &Tensor) -> Vec<Tensor> {
    let ([.., m, n], Some(x), Some(w)) = (&got.shape[..], got.to_f32s(), want.to_f32s()) else {
        return vec![];
    };
    let (m, n) = (*m, *n);
    let by = |line: &dyn Fn(usize, usize) -> usize, lines: usize, length: usize| {
        let mut x = x.clone();
        for (x, w) in x.chunks_mut((m * n).max(1)).zip(w.chunks((m * n).max(1))) {
            for i in 0..lines {
                let dot: f32 = (0..length).map(|k| x[line(i, k)] * w[line(i, k)]).sum();
                (0..length).for_each(|k| x[line(i, k)] *= dot.signum());
            }
        }
        Tensor::from_f32(got.shape.clone(), &x)
    };
    if x.len() != w.len() {
        return vec![];
    }
    if m == n
        && (0..x.len() / (m * n).max(1))
            .all(|b| same_basis(&x[b * m * n..][..m * n], &w[b * m * n..][..m * n], n))
    {
        return vec![want.clone()];
    }
    vec![by(&|i, k| k * n + i, n, m), by(&|i, k| i * n + k, m, n)]
}

/// Whether the columns of two orthogonal matrices agree up to sign in a first part, and span the same
/// subspace in the rest.
fn same_basis(x: &[f32], w: &[f32], n: usize) -> bool {
    let dot = |i: usize, j: usize| (0..n).map(|k| x[k * n + i] * w[k * n + j]).sum::<f32>();
    let dots: Vec<Vec<f32>> = (0..n).map(|i| (0..n).map(|j| dot(i, j)).collect()).collect();
    let known = (0..n).take_while(|i| (dots[*i][*i].abs() - 1.0).abs() < 1e-4).count();
    let apart = (0..known).flat_map(|i| (0..n).map(move |j| (i, j))).filter(|(i, j)| i != j);
    let whole = |i: &usize| ((known..n).map(|j| dots[*i][j].powi(2)).sum::<f32>() - 1.0).abs() < 1e-4;
    known > 0
        && apart.into_iter().all(|(i, j)| dots[i][j].abs() < 1e-4 && dots[j][i].abs() < 1e-4)
        && (known..n).all(|i| whole(&i))
}

struct Outcome {
    result: Result<Size, Failure>,
    seconds: f64,
}

/// The size of a program that ran; empty for the evaluator.
#[derive(Clone, Copy, Default)]
struct Size {
    dispatches: Option<usize>,
    kernels: Option<usize>,
}

impl Outcome {
    fn status(&self) -> &'static str {
        self.result.as_ref().map_or_else(Failure::status, |_| "pass")
    }
    fn reason(&self) -> &str {
        self.result.as_ref().map_or_else(Failure::first_line, |_| "")
    }
}

/// A source of cases.
struct Suite {
    /// The name of its lists in `tests/conformance`.
    name: &'static str,
    /// The name of its index in the data folder, without `.tsv`.
    index: &'static str,
    /// The script that makes the data.
    script: &'static str,
}

fn cases(root: &Path, suite: &Suite) -> Result<Vec<Case>, String> {
    let index = root.join(format!("{}.tsv", suite.index));
    let text = std::fs::read_to_string(&index)
        .map_err(|e| format!("{}: {e}; run scripts/{}", index.display(), suite.script))?;
    let mut cases = vec![];
    for line in text.lines() {
        let [name, rtol, atol, operators] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("{}: not a case: {line}", index.display()));
        };
        let number = |s: &str| s.parse::<f64>().map_err(|e| format!("{name}: {s}: {e}"));
        cases.push(Case {
            folder: Folder::new(root, name),
            tolerance: Tolerance { rtol: number(rtol)?.max(1e-3), atol: number(atol)?.max(1e-5) },
            operators: operators.to_owned(),
        });
    }
    Ok(cases)
}

fn check(case: &Case, backend: &Backend) -> Result<Size, Failure> {
    let model = case.folder.model_path();
    let data = match case.folder.data_set(0) {
        Ok(d) => d,
        Err(e) => {
            // The compiler's error for such a model says more.
            backend.compile(&model, Fusion::Full, &[])?;
            return Err(Failure::Unsupported(None, e));
        }
    };
    let mut model = backend.compile(&model, Fusion::Full, &data.inputs)?;
    let got = model.run(&data.inputs)?;
    // The torch data hold no results of random operators.
    let random = data.outputs.is_empty() && case.folder.model_path().ends_with("model.json");
    // The outputs of a torch program that mutates its inputs continue with these inputs.
    let written = got.len() > data.outputs.len() && case.folder.model_path().ends_with("model.json");
    if got.len() != data.outputs.len() && !random && !written {
        return Err(Failure::Wrong(format!("{} outputs instead of {}", got.len(), data.outputs.len())));
    }
    for (i, (g, w)) in got.iter().zip(&data.outputs).enumerate() {
        if case.drawn() {
            if (g.dtype, &g.shape) != (w.dtype, &w.shape) {
                return Err(Failure::Wrong(format!(
                    "output {i}: {} {:?} instead of {} {:?}",
                    g.dtype, g.shape, w.dtype, w.shape
                )));
            }
            continue;
        }
        // numpy has no bf16, so bf16 results are cast to the type of the expected data.
        let narrow = (g.dtype == DType::BF16).then(|| npy::cast(g, w.dtype)).flatten();
        let g = narrow.as_ref().unwrap_or(g);
        equal(g, w, case.tolerance)
            .or_else(|e| {
                let turned = if case.signs_are_open() { with_signs_of(g, w) } else { vec![] };
                if turned.iter().any(|t| equal(t, w, case.tolerance).is_ok()) { Ok(()) } else { Err(e) }
            })
            .map_err(|e| Failure::Wrong(format!("output {i}: {e}")))?;
    }
    Ok(Size { dispatches: model.dispatches(), kernels: model.kernels() })
}

/// Runs every case, on two threads.
fn run_all(cases: &[Case], backend: &Backend) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Option<Outcome>>> = cases.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(i) else { break };
                    let start = Instant::now();
                    let result = caught(|| check(case, backend));
                    let outcome = Outcome { result, seconds: start.elapsed().as_secs_f64() };
                    *outcomes[i].lock().expect("no holder panics") = Some(outcome);
                }
            });
        }
    });
    outcomes.into_iter().map(|o| o.into_inner().expect("no holder panics").expect("every case ran")).collect()
}

/// One row per case: name, status, operators; if `measured`, also seconds, dispatches and kernels; then the
/// reason.
fn table(cases: &[Case], outcomes: &[Outcome], include: impl Fn(&Outcome) -> bool, measured: bool) -> String {
    let mut text = String::new();
    for (c, o) in cases.iter().zip(outcomes).filter(|(_, o)| include(o)) {
        let _ = write!(text, "{}\t{}\t{}\t", c.folder.name, o.status(), c.operators);
        if measured {
            let size = o.result.as_ref().copied().unwrap_or_default();
            let count = |n: Option<usize>| n.map_or(String::new(), |n| n.to_string());
            let _ = write!(text, "{:.3}\t{}\t{}\t", o.seconds, count(size.dispatches), count(size.kernels));
        }
        let _ = writeln!(text, "{}", o.reason());
    }
    text
}

/// The failures grouped by operator, the most frequent first, with the first reason for each status.
fn by_operator(cases: &[Case], outcomes: &[Outcome]) -> String {
    type Group<'a> = BTreeMap<&'a str, Vec<(&'a str, &'a str)>>;
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    for (c, o) in cases.iter().zip(outcomes) {
        if let Err(f) = &o.result {
            let operator = f.operator().unwrap_or(&c.operators);
            groups
                .entry(operator)
                .or_default()
                .entry(o.status())
                .or_default()
                .push((&c.folder.name, o.reason()));
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, g)| std::cmp::Reverse(g.values().map(Vec::len).sum::<usize>()));
    let mut text = String::new();
    for (operator, group) in groups {
        let counts: Vec<String> =
            group.iter().map(|(status, all)| format!("{} {status}", all.len())).collect();
        let _ = writeln!(text, "\n## {operator}: {}", counts.join(", "));
        for (status, all) in group {
            let mut seen = BTreeSet::new();
            for (name, reason) in all.iter().filter(|(_, reason)| seen.insert(*reason)).take(4) {
                let _ = writeln!(text, "- {status} `{name}`: {reason}");
            }
        }
    }
    text
}

/// Compares the outcomes with the list of cases known to pass, or extends the list under `UPDATE_EXPECT`.
/// Returns the listed cases that fail.
fn expectations(suite: &Suite, cases: &[Case], outcomes: &[Outcome], may_grow: bool) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let file = folder.join(format!("{}_passing.txt", suite.name));
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let known: BTreeSet<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    let all = std::env::var_os("WGFC_CASES").is_none();
    let passing: BTreeSet<&str> = cases
        .iter()
        .zip(outcomes)
        .filter(|(_, o)| o.result.is_ok())
        .map(|(c, _)| c.folder.name.as_str())
        .collect();
    if may_grow && std::env::var_os("UPDATE_EXPECT").is_some() {
        let union: String = known.union(&passing).map(|n| format!("{n}\n")).collect();
        std::fs::write(&file, union).expect("the list can be written");
        if all {
            let failing = table(cases, outcomes, |o| o.result.is_err(), false);
            std::fs::write(folder.join(format!("{}_failing.tsv", suite.name)), failing)
                .expect("the list can be written");
        }
    } else if may_grow && all {
        let new: Vec<&&str> = passing.difference(&known).collect();
        if !new.is_empty() {
            crate::say(format!(
                "{} cases pass that are not on the list; UPDATE_EXPECT=1 adds them: {new:?}",
                new.len()
            ));
        }
    }
    let mut lost = vec![];
    for name in known.difference(&passing) {
        match cases.iter().position(|c| c.folder.name == *name) {
            Some(i) => lost.push(format!("{name}: {}: {}", outcomes[i].status(), outcomes[i].reason())),
            None if all => lost.push(format!("{name}: there is no such case")),
            None => {}
        }
    }
    lost
}

const NODE: Suite = Suite { name: "onnx_node", index: "node", script: "node_cases.py" };

/// The ONNX node cases that pass on adapters.
pub fn passing_node_cases() -> Result<Vec<Case>, String> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/onnx_node_passing.txt");
    let list = std::fs::read_to_string(list).map_err(|e| e.to_string())?;
    let passing: BTreeSet<&str> = list.lines().collect();
    let mut all = cases(&crate::folder("WGFC_CONFORMANCE", "target/conformance"), &NODE)?;
    all.retain(|c| passing.contains(c.folder.name.as_str()));
    Ok(all)
}

#[test]
fn onnx_node_cases() {
    run_suite(&NODE);
}

#[test]
fn onnx_exported_cases() {
    run_suite(&Suite { name: "onnx_exported", index: "exported", script: "node_cases.py" });
}

/// Operators used by exporters of language models, compared with ONNX Runtime.
#[test]
fn contrib_cases() {
    run_suite(&Suite { name: "contrib", index: "contrib", script: "contrib_cases.py" });
}

/// Operators of torch, compared with torch.
#[test]
fn aten_cases() {
    run_suite(&Suite { name: "aten", index: "aten", script: "aten_cases.py" });
}

/// Graphs of random torch programs, compared with torch.
#[test]
fn program_cases() {
    run_suite(&Suite { name: "program", index: "programs", script: "aten_cases.py" });
}

fn run_suite(suite: &Suite) {
    let test = format!("{}_cases", suite.name);
    let root = match suite.name {
        "aten" | "program" => crate::folder("WGFC_ATEN", "target/aten"),
        _ => crate::folder("WGFC_CONFORMANCE", "target/conformance"),
    };
    let cases = match cases(&root, suite) {
        Ok(all) => all.into_iter().filter(|c| crate::selected(&c.folder.name)).collect::<Vec<_>>(),
        Err(e) => return crate::skip(&test, e),
    };
    let mut backends = Backend::all();
    if backends.is_empty() {
        return crate::skip(&test, "there is no adapter");
    }
    // One adapter is enough.
    let backend = backends.swap_remove(0);
    let start = Instant::now();
    let outcomes = run_all(&cases, &backend);

    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for o in &outcomes {
        *counts.entry(o.status()).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(status, n)| format!("{n} {status}")).collect();
    let summary = format!(
        "{} {} cases on {backend} in {:.0} s: {}",
        cases.len(),
        suite.name,
        start.elapsed().as_secs_f64(),
        counts.join(", ")
    );
    crate::say(&summary);
    for (c, o) in cases.iter().zip(&outcomes) {
        if matches!(o.result, Err(Failure::Panic(_))) {
            crate::say(format!("PANIC {}: {}", c.folder.name, o.reason()));
        }
        if o.seconds > 10.0 {
            crate::say(format!("SLOW {}: {:.1} s", c.folder.name, o.seconds));
        }
    }
    let stem = root.join(format!("report-{}-{}", suite.index, backend.short()));
    let report = format!("# {summary}\n{}", by_operator(&cases, &outcomes));
    std::fs::write(stem.with_extension("md"), report).expect("the report can be written");
    std::fs::write(stem.with_extension("tsv"), table(&cases, &outcomes, |_| true, true))
        .expect("the report can be written");
    crate::say(format!("by operator: {0}.md, by case: {0}.tsv", stem.display()));

    let sizes: Vec<_> = cases.iter().zip(&outcomes).map(|(c, o)| (c.operators.as_str(), o)).collect();
    let sizes = sizes.into_iter().filter_map(|(operators, o)| {
        let size = o.result.as_ref().ok()?;
        Some((operators, size.dispatches?, size.kernels?))
    });
    let long = dispatches::check(suite.name, sizes);
    assert!(long.is_empty(), "operators of too many dispatches: {}", long.join(", "));
    let lost = expectations(suite, &cases, &outcomes, backend.is_adapter());
    assert!(lost.is_empty(), "cases that passed before:\n{}", lost.join("\n"));
    assert!(
        !outcomes.iter().any(|o| matches!(o.result, Err(Failure::Panic(_)))),
        "some cases made the compiler or the runtime panic, see above"
    );
}
