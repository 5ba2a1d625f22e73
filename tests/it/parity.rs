//! Results of each engine for the cases of `web.rs`: the evaluator and every adapter here, and Chromium in
//! `web/test/browser.mjs`. `web/test/parity.mjs` compares them.
//!
//! `target/parity/ENGINE/CASE.out` has the format of a case; its header lists the outputs of each run.
//! `target/parity/cases.json` lists the cases that each engine has run. SwiftShader runs one case in eight,
//! or all if `WGFC_THOROUGH` is set.

use crate::backend::{Failure, caught};
use crate::web::{put_tensors, read_tensors, sections};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use wgfc_ir::Tensor;
use wgfc_runtime::session::SessionOptions;
use wgfc_runtime::{Gpu, Plans};

type Runs = Vec<BTreeMap<String, Tensor>>;

/// One in this many ONNX node cases is compared, unless `WGFC_PARITY_EVERY` is set; all other cases always
/// are.
const EVERY: usize = 8;

#[test]
#[ignore = "scripts/web.sh runs it, with the cases that `web_cases` has written"]
fn parity_cases() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let (cases, parity) = (root.join("web/cases"), root.join("parity"));
    let every = std::env::var("WGFC_PARITY_EVERY").ok().and_then(|n| n.parse().ok()).unwrap_or(EVERY).max(1);
    let index = std::fs::read(cases.join("index.json")).expect("web_cases has written the cases");
    let names: Vec<String> = serde_json::from_slice(&index).expect("it is a list of names");
    let (nodes, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|n| n.starts_with("node/"));
    let chosen = |n: &String| crate::selected(n);
    let names: Vec<String> =
        others.into_iter().chain(nodes.into_iter().step_by(every)).filter(chosen).collect();
    let _ = std::fs::remove_dir_all(&parity);
    std::fs::create_dir_all(&parity).expect("target can be written");
    for name in &names {
        let outputs = evaluated(&cases, name).expect("web_cases has written what the evaluator makes of it");
        write(&parity.join("evaluator"), name, &outputs);
    }
    let mut engines = json!({ "evaluator": names });
    for gpu in wgfc_runtime::testing::gpus() {
        let engine = match &gpu.summary().name {
            n if n.contains("SwiftShader") => "swiftshader",
            n if n.contains("llvmpipe") => "lavapipe",
            _ => "adapter",
        };
        // SwiftShader compiles kernels slowly, and Chromium uses it too.
        let few = engine == "swiftshader" && std::env::var_os("WGFC_THOROUGH").is_none();
        let names: Vec<&String> = names.iter().step_by(if few { 8 } else { 1 }).collect();
        engines[engine] = json!(names);
        let (next, failures) = (AtomicUsize::new(0), Mutex::new(Map::new()));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match caught(|| run(gpu, &cases, name)) {
                            Ok(outputs) => write(&parity.join(engine), name, &outputs),
                            Err(e) => {
                                let mut failures = failures.lock().expect("no holder panics");
                                failures.insert(name.to_string(), json!(e.message()));
                            }
                        }
                    }
                });
            }
        });
        let failures = failures.into_inner().expect("no holder panics");
        save(&parity.join(format!("{engine}-failed.json")), &Value::from(failures));
    }
    save(&parity.join("cases.json"), &json!({ "cases": names, "engines": engines }));
    crate::say(format!("{} cases in {}", names.len(), parity.display()));
}

fn save(path: &Path, value: &Value) {
    std::fs::write(path, value.to_string()).expect("target can be written");
}

fn read(cases: &Path, name: &str) -> Result<(Value, Vec<u8>), String> {
    sections(&std::fs::read(cases.join(format!("{name}.case"))).map_err(|e| e.to_string())?)
}

/// The evaluator's outputs for each run.
fn evaluated(cases: &Path, name: &str) -> Result<Runs, String> {
    let (header, payload) = read(cases, name)?;
    let runs = header["runs"].as_array().ok_or("there are no runs")?;
    let one = |r: &Value| {
        read_tensors(&r[if r["evaluated"].is_null() { "outputs" } else { "evaluated" }], &payload)
    };
    runs.iter().map(one).collect()
}

/// An adapter's outputs for each run.
fn run(gpu: &Gpu, cases: &Path, name: &str) -> Result<Runs, Failure> {
    let (header, payload) = read(cases, name).map_err(Failure::error)?;
    let temporary = tempfile::tempdir().map_err(|e| Failure::error(e.to_string()))?;
    let folder = unpack(temporary.path(), &header["files"], &payload).map_err(Failure::error)?;
    let bundle = wgfc::load_bundle(&folder).map_err(|e| Failure::error(e.to_string()))?;
    let failed = |e: wgfc_runtime::RunError| Failure::error(e.to_string());
    // States get room for the whole sequence at the start.
    let mut plans = Plans::new_blocking(gpu, &bundle, SessionOptions::default()).map_err(failed)?;
    let mut outputs = vec![];
    for r in header["runs"].as_array().into_iter().flatten() {
        let inputs = read_tensors(&r["inputs"], &payload).map_err(Failure::error)?;
        let given: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        outputs.push(plans.run_blocking(&given).map_err(failed)?.into_iter().collect());
    }
    Ok(outputs)
}

/// Writes the files of a program, and returns the path to open.
fn unpack(root: &Path, files: &Value, payload: &[u8]) -> Result<PathBuf, String> {
    let folder = root.join("program");
    for (name, at) in files.as_object().ok_or("there are no files")? {
        let path = folder.join(name);
        let beside = path.parent().ok_or("a file has no folder")?;
        std::fs::create_dir_all(beside).map_err(|e| e.to_string())?;
        let bytes = crate::web::piece(at, payload).ok_or("a file is cut off")?;
        std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
    }
    let bundle = files.as_object().and_then(|f| f.keys().find(|n| n.ends_with(".wgfc")));
    Ok(bundle.map_or(folder.clone(), |n| folder.join(n)))
}

fn write(engine: &Path, name: &str, outputs: &Runs) {
    let mut payload = vec![];
    let runs: Vec<Value> = outputs.iter().map(|o| put_tensors(&mut payload, o)).collect();
    let path = engine.join(format!("{name}.out"));
    crate::web::write_sections(&path, &json!({ "runs": runs }), payload).expect("target can be written");
}
