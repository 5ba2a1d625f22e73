//! Programs for the limits that every browser has, with inputs and expected outputs, for `web/test/browser.mjs`.
//!
//! With `WGFC_WEB_PROFILE`, the file of a device's profile, cases of single operators and of small models are compiled for that device,
//! and written to `target/web/cases-NAME`, NAME being the file's without its extension, for `web/engines/cases.mjs`.
//!
//! A case is a file: the length of the header in eight bytes, the header in JSON, and the bytes to which
//! `[offset, length]` pairs in the header refer.

use crate::backend::{self, Backend, Failure, caught};
use crate::bundles::{large_model, two_plans};
use crate::caches::NARROW;
use crate::conformance::{Case, passing_node_cases};
use crate::data::Folder;
use crate::states::{self, CAPACITY, Reference, decoder_with, tokens};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use wgfc::{ModelFile, SaveOptions};
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::{DeviceProfile, Fusion, Options, States};
use wgfc_ir::eval::{StateValues, evaluate, evaluate_from};
use wgfc_ir::{Program, Tensor};

type Named = BTreeMap<String, Tensor>;

/// A program and its expected results, run after run.
struct Job {
    saved: Saved,
    /// How outputs are compared.
    rule: Value,
    /// The initial capacity of the states, in positions.
    capacity: Option<usize>,
    /// The inputs and expected outputs of each run.
    runs: Vec<(Named, Named)>,
    /// The evaluator's results of each run; empty if the expected outputs come from the evaluator.
    evaluated: Vec<Named>,
}

/// The form in which a program is saved.
enum Saved {
    /// As `wgfc compile` writes it without further options.
    Plainly(Box<Program>),
    /// Under this name in a folder, which may hold further files.
    As(&'static str, tempfile::TempDir),
}

/// A name, and a function that makes the case.
type Maker = (String, Box<dyn Fn() -> Result<Job, Failure> + Send + Sync>);

#[test]
#[ignore = "scripts/web.sh runs it, and then a browser what it writes"]
fn web_cases() {
    let profile = std::env::var_os("WGFC_WEB_PROFILE").map(PathBuf::from);
    let makers = makers(profile.as_deref()).expect("the data are there; scripts/node_cases.py writes them");
    let makers: Vec<Maker> = makers.into_iter().filter(|m| crate::selected(&m.0)).collect();
    let name = profile.as_deref().and_then(Path::file_stem).and_then(|n| n.to_str());
    let folder = name.map_or("cases".to_owned(), |n| format!("cases-{n}"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/web").join(folder);
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

fn makers(profile: Option<&Path>) -> Result<Vec<Maker>, String> {
    let mut out: Vec<Maker> = vec![];
    let device = match profile {
        Some(file) => DeviceProfile::from_json(&std::fs::read(file).map_err(|e| e.to_string())?)?,
        None => DeviceProfile::default(),
    };
    for case in passing_node_cases()? {
        let device = device.clone();
        out.push((format!("node/{}", case.folder.name), Box::new(move || node(&case, &device))));
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for kind in ["small", "simulations"] {
        for folder in Folder::all(&fixtures.join(kind)) {
            let device = device.clone();
            out.push((format!("{kind}/{}", folder.name), Box::new(move || model(&folder, &device))));
        }
    }
    if profile.is_some() {
        return Ok(out);
    }
    out.push(("states/decoder-grows".into(), Box::new(|| decoding(None, Some(6)))));
    out.push(("states/decoder-fixed".into(), Box::new(|| decoding(Some(CAPACITY), None))));
    out.push(("states/caches".into(), Box::new(caches)));
    out.push(("states/narrow".into(), Box::new(narrow)));
    for (name, seqs) in [("static", &[3, 1, 1, 4]), ("window", &[3, 1, 1, 1]), ("where", &[1, 1, 1, 1])] {
        out.push((format!("states/cache-{name}"), Box::new(move || replaced(name, seqs))));
    }
    out.push(("plans/folder".into(), Box::new(|| bundled("program", None))));
    out.push(("plans/file".into(), Box::new(|| bundled("program.wgfc", None))));
    out.push(("weights/shards".into(), Box::new(|| bundled("program", Some(2000)))));
    out.push(("weights/from-model".into(), Box::new(from_model)));
    out.push(("generate/decoder".into(), Box::new(generating)));
    Ok(out)
}

fn plainly(program: Program) -> Saved {
    Saved::Plainly(Box::new(program))
}

fn relative() -> Value {
    json!({ "kind": "relative" })
}

/// Outputs with the program's names for them.
fn named(program: &Program, outputs: Vec<Tensor>) -> Named {
    program.outputs.iter().map(|o| o.name.clone()).zip(outputs).collect()
}

fn node(case: &Case, device: &DeviceProfile) -> Result<Job, Failure> {
    let data = case.folder.data_set(0).map_err(Failure::error)?;
    let path = case.folder.model_path();
    let (program, names, fixed) = backend::program(&path, &data.inputs, device)?;
    let made = Backend::Evaluator.compile(&path, Fusion::Full, &data.inputs)?.run(&data.inputs)?;
    let evaluated = vec![named(&program, made)];
    let inputs = names.into_iter().zip(data.inputs).filter(|(n, _)| !fixed.contains(n)).collect();
    let rule = match case.drawn() {
        true => json!({ "kind": "drawn" }),
        false => json!({ "kind": "equal", "rtol": case.tolerance.rtol, "atol": case.tolerance.atol }),
    };
    let outputs = named(&program, data.outputs);
    Ok(Job { saved: plainly(program), rule, capacity: None, runs: vec![(inputs, outputs)], evaluated })
}

fn model(folder: &Folder, device: &DeviceProfile) -> Result<Job, Failure> {
    let (program, names, _) = backend::program(&folder.model_path(), &[], device)?;
    let mut evaluator = Backend::Evaluator.compile(&folder.model_path(), Fusion::Full, &[])?;
    let (mut runs, mut evaluated) = (vec![], vec![]);
    for n in 0..folder.data_sets() {
        let data = folder.data_set(n).map_err(Failure::error)?;
        evaluated.push(named(&program, evaluator.run(&data.inputs)?));
        let inputs = names.iter().cloned().zip(data.inputs).collect();
        runs.push((inputs, named(&program, data.outputs)));
    }
    Ok(Job { saved: plainly(program), rule: relative(), capacity: None, runs, evaluated })
}

/// Successive tokens, with a cache of a fixed size or a growing one.
fn decoding(fixed: Option<usize>, capacity: Option<usize>) -> Result<Job, Failure> {
    let program = decoder_with(None, Fusion::Full, fixed);
    Ok(Job { saved: plainly(program), rule: relative(), capacity, runs: decoded(), evaluated: vec![] })
}

/// Successive tokens and their logits.
fn decoded() -> Vec<(Named, Named)> {
    let mut reference = Reference::new();
    let (mut runs, mut past) = (vec![], 0);
    for ids in [&[3, 1, 36, 0, 8][..], &[5], &[1], &[30, 30, 2, 9, 4, 11, 2], &[7]] {
        let logits = reference.run(ids);
        let inputs = tokens(ids, past).into_iter().collect();
        past += ids.len();
        let logits = Tensor::from_f32(vec![1, ids.len(), 37], &logits);
        runs.push((inputs, Named::from([("logits".to_owned(), logits)])));
    }
    runs
}

/// Two plans with one weight store and the same states, or one plan with its weights in several files.
fn bundled(name: &'static str, shard_size: Option<u64>) -> Result<Job, Failure> {
    let (_, any, bundle) = two_plans();
    let folder = temporary()?;
    let options = SaveOptions { shard_size, ..SaveOptions::default() };
    let path = folder.path().join(name);
    let saved = match shard_size {
        Some(_) => wgfc::save(&any, &path, &options),
        None => wgfc::save_bundle(&bundle, &path, &options),
    };
    saved.map_err(|e| Failure::error(e.to_string()))?;
    Ok(Job {
        saved: Saved::As(name, folder),
        rule: relative(),
        capacity: None,
        runs: decoded(),
        evaluated: vec![],
    })
}

/// A program whose weights are in the model's own file.
fn from_model() -> Result<Job, Failure> {
    let failed = |e: wgfc::Error| Failure::error(e.to_string());
    let folder = temporary()?;
    let file = ModelFile::open(&large_model(folder.path())).map_err(failed)?;
    let options = SaveOptions { model: Some(&file), ..SaveOptions::default() };
    let program = file.compile(&Options::default()).map_err(failed)?;
    let graph = file.import(&Options::default()).map_err(failed)?.graph;
    wgfc::save(&program, &folder.path().join("program"), &options).map_err(failed)?;
    let x: Vec<f32> = (0..3 * 64).map(|i| ((i * 7) % 13) as f32 * 0.25 - 1.0).collect();
    let given = Named::from([("x".to_owned(), Tensor::from_f32(vec![3, 64], &x))]);
    let want = evaluate(&graph, &given).map_err(|e| Failure::error(e.to_string()))?;
    let runs = vec![(given, named(&program, want))];
    Ok(Job { saved: Saved::As("program", folder), rule: relative(), capacity: None, runs, evaluated: vec![] })
}

/// A decoder that chooses tokens, and a tokenizer. `web/test/generate.json` holds the expected texts.
fn generating() -> Result<Job, Failure> {
    let failed = |e: wgfc::Error| Failure::error(e.to_string());
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let decoder = wgfc::Decoder::open(&fixtures.join("small/decoder/model.onnx")).map_err(failed)?;
    let bundle = wgfc::generate::compile_decoder(&decoder, &Options::default()).map_err(failed)?;
    let folder = temporary()?;
    let program = folder.path().join("program");
    wgfc::save_bundle(&bundle, &program, &SaveOptions::default()).map_err(failed)?;
    let copied = std::fs::copy(fixtures.join("tokenizers/bpe.json"), program.join("tokenizer.json"));
    copied.map_err(|e| Failure::error(e.to_string()))?;
    Ok(Job {
        saved: Saved::As("program", folder),
        rule: relative(),
        capacity: None,
        runs: vec![],
        evaluated: vec![],
    })
}

fn temporary() -> Result<tempfile::TempDir, Failure> {
    tempfile::tempdir().map_err(|e| Failure::error(e.to_string()))
}

/// States that grow, states updated in places, and states replaced as a whole.
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
    Ok(Job { saved: plainly(program), rule: relative(), capacity: None, runs, evaluated: vec![] })
}

/// Positions that do not begin at word boundaries.
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
    Ok(Job { saved: plainly(program), rule: relative(), capacity: Some(5), runs, evaluated: vec![] })
}

/// Caches of a fixed size, of which each run replaces some positions.
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
    Ok(Job { saved: plainly(program), rule: relative(), capacity: None, runs, evaluated: vec![] })
}

/// Appends bytes, and returns their `[offset, length]`.
fn put(payload: &mut Vec<u8>, bytes: &[u8]) -> Value {
    payload.resize(payload.len().next_multiple_of(8), 0);
    let at = payload.len();
    payload.extend(bytes);
    json!([at, bytes.len()])
}

/// The bytes at `[offset, length]`.
pub fn piece<'p>(at: &Value, payload: &'p [u8]) -> Option<&'p [u8]> {
    let [offset, length] = [0, 1].map(|i| at[i].as_u64().and_then(|n| usize::try_from(n).ok()));
    payload.get(offset?..)?.get(..length?)
}

pub fn read_tensors(tensors: &Value, payload: &[u8]) -> Result<Named, String> {
    let one = |(name, t): (&String, &Value)| {
        let dtype =
            t["dtype"].as_str().unwrap_or_default().parse().map_err(|_| format!("{name} has no type"))?;
        let shape = serde_json::from_value(t["shape"].clone()).map_err(|e| e.to_string())?;
        let bytes = piece(&t["at"], payload).ok_or("a tensor is cut off")?;
        Ok((name.clone(), Tensor::new(dtype, shape, bytes.to_vec())?))
    };
    tensors.as_object().ok_or("there are no tensors")?.iter().map(one).collect()
}

/// The header of a file, and the bytes after it.
pub fn sections(file: &[u8]) -> Result<(Value, Vec<u8>), String> {
    let (length, rest) = file.split_first_chunk().ok_or("it is empty")?;
    let (header, payload) =
        rest.split_at_checked(u64::from_le_bytes(*length) as usize).ok_or("its header is cut off")?;
    Ok((serde_json::from_slice(header).map_err(|e| e.to_string())?, payload.to_vec()))
}

pub fn write_sections(path: &Path, header: &Value, mut payload: Vec<u8>) -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| e.to_string();
    let mut header = serde_json::to_vec(header).map_err(|e| failed(&e))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.append(&mut header);
    file.append(&mut payload);
    let beside = path.parent().ok_or("a case has no folder")?;
    std::fs::create_dir_all(beside).map_err(|e| failed(&e))?;
    std::fs::write(path, file).map_err(|e| failed(&e))
}

pub fn put_tensors(payload: &mut Vec<u8>, tensors: &Named) -> Value {
    let mut one = |t: &Tensor| {
        let at = put(payload, t.bytes().unwrap_or_default());
        json!({ "dtype": t.dtype.name(), "shape": t.shape, "at": at })
    };
    tensors.iter().map(|(name, t)| (name.clone(), one(t))).collect::<serde_json::Map<_, _>>().into()
}

/// The files of a saved program by their names relative to its plan.
fn files(saved: &Saved) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let failed = |e: std::io::Error| e.to_string();
    let own = tempfile::tempdir().map_err(failed)?;
    let (name, folder) = match saved {
        Saved::Plainly(program) => {
            let path = own.path().join("program");
            wgfc::save(program, &path, &SaveOptions::default()).map_err(|e| e.to_string())?;
            ("program", own.path())
        }
        Saved::As(name, folder) => (*name, folder.path()),
    };
    let mut files = BTreeMap::new();
    let places = match folder.join(name).is_dir() {
        true => vec![
            ("", folder.join(name)),
            ("kernels/", folder.join(name).join("kernels")),
            ("../", folder.to_owned()),
        ],
        false => vec![("", folder.to_owned())],
    };
    for (at, place) in places {
        for entry in std::fs::read_dir(place).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let file = path.file_name().and_then(|n| n.to_str()).ok_or("a file has no name")?;
            if path.is_file() {
                files.insert(format!("{at}{file}"), std::fs::read(&path).map_err(failed)?);
            }
        }
    }
    Ok(files)
}

fn write(root: &Path, name: &str, job: &Job) -> Result<(), String> {
    let mut payload = vec![];
    let files: serde_json::Map<_, _> =
        files(&job.saved)?.into_iter().map(|(name, bytes)| (name, put(&mut payload, &bytes))).collect();
    let mut runs: Vec<Value> = vec![];
    for (i, (inputs, outputs)) in job.runs.iter().enumerate() {
        runs.push(json!({
            "inputs": put_tensors(&mut payload, inputs),
            "outputs": put_tensors(&mut payload, outputs),
            "evaluated": job.evaluated.get(i).map(|e| put_tensors(&mut payload, e)),
        }));
    }
    let header = json!({ "files": files, "rule": job.rule, "capacity": job.capacity, "runs": runs });
    write_sections(&root.join(format!("{name}.case")), &header, payload)
}
