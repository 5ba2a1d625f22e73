//! Programs for the limits that every browser has, with inputs and expected outputs, for `web/test/browser.mjs`.
//!
//! A case is a file: its header's length in eight bytes, the header in JSON, and bytes to which `[offset, length]` in the header
//! refer.

use crate::backend::{self, Failure, caught};
use crate::caches::NARROW;
use crate::conformance::{Case, passing_node_cases};
use crate::data::Folder;
use crate::states::{self, CAPACITY, Reference, decoder_with, tokens};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::{Fusion, Options, States};
use wgfc_ir::eval::{StateValues, evaluate, evaluate_from};
use wgfc_ir::{Program, Tensor};

type Named = BTreeMap<String, Tensor>;

/// A program and what it must compute, run after run.
struct Job {
    program: Program,
    /// How outputs are compared.
    rule: Value,
    /// Positions that states have room for at first.
    capacity: Option<usize>,
    /// Inputs and outputs.
    runs: Vec<(Named, Named)>,
}

/// A name and what makes the case.
type Maker = (String, Box<dyn Fn() -> Result<Job, Failure> + Send + Sync>);

#[test]
#[ignore = "scripts/web.sh runs it, and then a browser what it writes"]
fn web_cases() {
    let makers = makers().expect("the data are there; scripts/node_cases.py writes them");
    let makers: Vec<Maker> = makers.into_iter().filter(|m| crate::selected(&m.0)).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/web/cases");
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(&root).expect("target can be written");
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, make)) = makers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let made = caught(make).and_then(|job| write(&root, name, &job).map_err(Failure::error));
                    if let Err(e) = made {
                        let failure = format!("{name}: {}", e.message());
                        failures.lock().expect("no holder panics").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no holder panics");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let names: Vec<&String> = makers.iter().map(|m| &m.0).collect();
    let index = serde_json::to_vec(&names).expect("names are JSON");
    std::fs::write(root.join("index.json"), index).expect("target can be written");
    crate::say(format!("{} cases in {}", names.len(), root.display()));
}

fn makers() -> Result<Vec<Maker>, String> {
    let mut out: Vec<Maker> = vec![];
    for case in passing_node_cases()? {
        out.push((format!("node/{}", case.folder.name), Box::new(move || node(&case))));
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for kind in ["small", "simulations"] {
        for folder in Folder::all(&fixtures.join(kind)) {
            out.push((format!("{kind}/{}", folder.name), Box::new(move || model(&folder))));
        }
    }
    out.push(("states/decoder-grows".into(), Box::new(|| decoding(None, Some(6)))));
    out.push(("states/decoder-fixed".into(), Box::new(|| decoding(Some(CAPACITY), None))));
    out.push(("states/caches".into(), Box::new(caches)));
    out.push(("states/narrow".into(), Box::new(narrow)));
    for (name, seqs) in [("static", &[3, 1, 1, 4]), ("window", &[3, 1, 1, 1]), ("where", &[1, 1, 1, 1])] {
        out.push((format!("states/cache-{name}"), Box::new(move || replaced(name, seqs))));
    }
    Ok(out)
}

fn relative() -> Value {
    json!({ "kind": "relative" })
}

/// Outputs by the names that a program has for them.
fn named(program: &Program, outputs: Vec<Tensor>) -> Named {
    program.outputs.iter().map(|o| o.name.clone()).zip(outputs).collect()
}

fn node(case: &Case) -> Result<Job, Failure> {
    let data = case.folder.data_set(0).map_err(Failure::error)?;
    let (program, names, fixed) = backend::program(&case.folder.model_path(), Fusion::Full, &data.inputs)?;
    let inputs = names.into_iter().zip(data.inputs).filter(|(n, _)| !fixed.contains(n)).collect();
    let rule = match case.drawn() {
        true => json!({ "kind": "drawn" }),
        false => json!({ "kind": "equal", "rtol": case.tolerance.rtol, "atol": case.tolerance.atol }),
    };
    let outputs = named(&program, data.outputs);
    Ok(Job { program, rule, capacity: None, runs: vec![(inputs, outputs)] })
}

fn model(folder: &Folder) -> Result<Job, Failure> {
    let (program, names, _) = backend::program(&folder.model_path(), Fusion::Full, &[])?;
    let mut runs = vec![];
    for n in 0..folder.data_sets() {
        let data = folder.data_set(n).map_err(Failure::error)?;
        let inputs = names.iter().cloned().zip(data.inputs).collect();
        runs.push((inputs, named(&program, data.outputs)));
    }
    Ok(Job { program, rule: relative(), capacity: None, runs })
}

/// Tokens after tokens, with a cache of one size or one that grows.
fn decoding(fixed: Option<usize>, capacity: Option<usize>) -> Result<Job, Failure> {
    let program = decoder_with(None, Fusion::Full, fixed);
    let mut reference = Reference::new();
    let (mut runs, mut past) = (vec![], 0);
    for ids in [&[3, 1, 36, 0, 8][..], &[5], &[1], &[30, 30, 2, 9, 4, 11, 2], &[7]] {
        let logits = reference.run(ids);
        let inputs = tokens(ids, past).into_iter().collect();
        past += ids.len();
        let logits = Tensor::from_f32(vec![1, ids.len(), 37], &logits);
        runs.push((inputs, Named::from([("logits".to_owned(), logits)])));
    }
    Ok(Job { program, rule: relative(), capacity, runs })
}

/// States that grow, that are replaced in places, and that are replaced whole.
fn caches() -> Result<Job, Failure> {
    let graph = states::graph();
    let program = states::fused(&graph, &Options::default());
    let mut values = StateValues::default();
    let mut runs = vec![];
    for (step, seq) in [5, 1, 1, 7, 3].into_iter().enumerate() {
        let given = states::inputs(step, seq);
        let want = evaluate_from(&graph, &given, &mut values).map_err(|e| Failure::error(e.to_string()))?;
        runs.push((given, named(&program, want)));
    }
    Ok(Job { program, rule: relative(), capacity: None, runs })
}

/// Positions that do not begin on whole words.
fn narrow() -> Result<Job, Failure> {
    let graph = wgfc_ir::text::parse(NARROW).map_err(|e| Failure::error(e.to_string()))?;
    let program = states::fused(&graph, &Options::default());
    let mut values =
        StateValues { capacities: [("capacity".to_owned(), 64)].into(), ..StateValues::default() };
    let mut runs = vec![];
    for (step, seq) in [5, 1, 2, 5, 1].into_iter().enumerate() {
        let mut given = states::inputs(step, seq);
        given.retain(|name, _| name == "x");
        let want = evaluate_from(&graph, &given, &mut values).map_err(|e| Failure::error(e.to_string()))?;
        runs.push((given, named(&program, want)));
    }
    Ok(Job { program, rule: relative(), capacity: Some(5), runs })
}

/// Caches of one size, of which each run replaces some positions.
fn replaced(name: &str, seqs: &[usize]) -> Result<Job, Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/small/cache-{name}/model.onnx"));
    let bytes = std::fs::read(path).map_err(|e| Failure::error(e.to_string()))?;
    let options = Options { states: States::Auto { capacity: None }, ..Options::default() };
    let program = wgfc_compiler::compile(&bytes, &NoExternalData, &options)?;
    if program.states.is_empty() {
        return Err(Failure::error("there are no states"));
    }
    let graph = import(&bytes, &NoExternalData, &Options::default())?.graph;
    let mut past = Named::new();
    for s in &program.states {
        let extents = s.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok()));
        let shape: Vec<usize> =
            extents.collect::<Option<_>>().ok_or_else(|| Failure::error("no fixed size"))?;
        past.insert(s.name.clone(), Tensor::from_f32(shape.clone(), &vec![0.0; shape.iter().product()]));
    }
    let (mut runs, mut at) = (vec![], 0);
    for (step, seq) in seqs.iter().copied().enumerate() {
        let x: Vec<f32> = (0..seq * 8).map(|i| ((i * 7 + step * 5) % 13) as f32 * 0.25 - 1.0).collect();
        let positions: Vec<i64> = (at..at + seq).map(|p| p as i64).collect();
        at += seq;
        let inputs = Named::from([
            ("x".to_owned(), Tensor::from_f32(vec![1, seq, 8], &x)),
            ("position".to_owned(), Tensor::from_i64(vec![seq], &positions)),
        ]);
        let mut given = past.clone();
        given.extend(inputs.clone());
        let out = evaluate(&graph, &given).map_err(|e| Failure::error(e.to_string()))?;
        let mut outputs: Named = graph.outputs.iter().map(|o| o.name.to_string()).zip(out).collect();
        for (name, tensor) in &mut past {
            let after = outputs.remove(&name.replace("past", "present"));
            *tensor = after.ok_or_else(|| Failure::error("a cache is not returned"))?;
        }
        runs.push((inputs, outputs));
    }
    Ok(Job { program, rule: relative(), capacity: None, runs })
}

/// Appends bytes, and says where.
fn put(payload: &mut Vec<u8>, bytes: &[u8]) -> Value {
    payload.resize(payload.len().next_multiple_of(8), 0);
    let at = payload.len();
    payload.extend(bytes);
    json!([at, bytes.len()])
}

fn put_tensors(payload: &mut Vec<u8>, tensors: &Named) -> Value {
    let mut one = |t: &Tensor| {
        let at = put(payload, t.bytes().unwrap_or_default());
        json!({ "dtype": t.dtype.name(), "shape": t.shape, "at": at })
    };
    tensors.iter().map(|(name, t)| (name.clone(), one(t))).collect::<serde_json::Map<_, _>>().into()
}

fn write(root: &Path, name: &str, job: &Job) -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| e.to_string();
    let folder = tempfile::tempdir().map_err(|e| failed(&e))?;
    let saved = folder.path().join("program");
    wgfc::save(&job.program, &saved, &wgfc::SaveOptions::default()).map_err(|e| failed(&e))?;
    let mut payload = vec![];
    let mut files = serde_json::Map::new();
    for at in ["", "kernels/"] {
        let mut entries: Vec<_> = std::fs::read_dir(saved.join(at))
            .map_err(|e| failed(&e))?
            .collect::<Result<_, _>>()
            .map_err(|e| failed(&e))?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for file in entries.into_iter().filter(|e| e.path().is_file()) {
            let bytes = std::fs::read(file.path()).map_err(|e| failed(&e))?;
            files.insert(format!("{at}{}", file.file_name().to_string_lossy()), put(&mut payload, &bytes));
        }
    }
    let runs: Vec<Value> = job
        .runs
        .iter()
        .map(|(inputs, outputs)| {
            json!({ "inputs": put_tensors(&mut payload, inputs), "outputs": put_tensors(&mut payload, outputs) })
        })
        .collect();
    let header = json!({ "files": files, "rule": job.rule, "capacity": job.capacity, "runs": runs });
    let mut header = serde_json::to_vec(&header).map_err(|e| failed(&e))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.append(&mut header);
    file.append(&mut payload);
    let path = root.join(format!("{name}.case"));
    let beside = path.parent().ok_or("a case has no folder")?;
    std::fs::create_dir_all(beside).map_err(|e| failed(&e))?;
    std::fs::write(path, file).map_err(|e| failed(&e))
}
