//! Archives of torch.export: complete ones compared with torch's results, archives without weights compiled
//! as far as possible.

use crate::backend::Backend;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wgfc::npy;
use wgfc::source::ModelFile;
use wgfc::train::{Ports, Training};
use wgfc_compiler::{Fusion, Options, States};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::{DType, Tensor};
use wgfc_runtime::Gpu;
use wgfc_selftest::{Tolerance, equal};

/// Archives that are refused, with the text of the error.
const REFUSED: &[(&str, &str)] =
    &[("torchao_int8.pt2", "run_decompositions()"), ("torchao_int4.pt2", "run_decompositions()")];

/// Archives whose numbers of dispatches differ between the dialects, with the reason.
const UNLIKE: &[(&str, &str)] = &[
    ("gru.pt2", "its steps are written out in core ATen"),
    ("lstm.pt2", "its steps are written out in core ATen"),
    ("input_mutation.pt2", "writes through views are scatters in torch.export's own dialect"),
];

fn archives(kind: &str) -> Vec<PathBuf> {
    archives_in(&crate::folder("WGFC_FX", "target/fx").join(kind))
}

fn archives_in(root: &Path) -> Vec<PathBuf> {
    let Ok(dir) = std::fs::read_dir(root) else { return vec![] };
    let mut files: Vec<PathBuf> = dir.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "pt2") && crate::selected(&f.to_string_lossy()));
    files.sort();
    files
}

/// The text of the error with which an archive is refused, if it is.
pub fn refused(file: &Path) -> Option<&'static str> {
    let name = file.file_name()?.to_str()?;
    REFUSED.iter().find(|(n, _)| *n == name).map(|(_, why)| *why)
}

/// The arrays `KIND_0.npy`, `KIND_1.npy`, ….
fn arrays(folder: &Path, kind: &str) -> Vec<Tensor> {
    let files = (0..).map(|i| folder.join(format!("{kind}_{i}.npy"))).take_while(|f| f.exists());
    files.map(|f| npy::read(&f).unwrap()).collect()
}

/// The arrays `KIND_NAME.npy`, by name.
fn named(folder: &Path, kind: &str) -> BTreeMap<String, Tensor> {
    let files = std::fs::read_dir(folder).unwrap().filter_map(|e| Some(e.ok()?.path()));
    let name = |f: &Path| Some(f.file_name()?.to_str()?.strip_prefix(kind)?.strip_suffix(".npy")?.to_owned());
    files.filter_map(|f| Some((name(&f)?, npy::read(&f).unwrap()))).collect()
}

/// The results of a run: outputs and states by name.
struct Given {
    outputs: Vec<(String, Tensor)>,
    states: BTreeMap<String, Tensor>,
}

fn compare(name: &str, folder: &Path, given: &Given) -> Result<(), String> {
    let close = Tolerance { rtol: 1e-4, atol: 1e-5 };
    let wanted = arrays(folder, "out");
    for (i, w) in wanted.iter().enumerate() {
        let (n, got) = given.outputs.get(i).ok_or_else(|| format!("{name}: output {i} is missing"))?;
        let narrow = npy::cast(got, w.dtype).filter(|_| got.dtype != w.dtype);
        equal(narrow.as_ref().unwrap_or(got), w, close).map_err(|e| format!("{name}: output {n}: {e}"))?;
    }
    let by_name = |n: &str| given.outputs.iter().skip(wanted.len()).find(|(o, _)| o == n).map(|(_, t)| t);
    for (kind, prefix) in [("mut_", ""), ("grad_", "grad.")] {
        for (n, w) in named(folder, kind) {
            let key = format!("{prefix}{n}");
            let got = given.states.get(&key).or_else(|| by_name(&key));
            let got = got.ok_or_else(|| format!("{name}: `{key}` is neither a state nor an output"))?;
            equal(got, &w, close).map_err(|e| format!("{name}: {key}: {e}"))?;
        }
    }
    Ok(())
}

#[test]
fn whole_programs_give_the_results_of_torch() {
    let files = archives("whole");
    if files.is_empty() {
        return crate::skip("whole_programs", "target/fx is empty: run scripts/aten_cases.py");
    }
    give_the_results_of_torch(&files, &Backend::adapters());
}

fn give_the_results_of_torch(files: &[PathBuf], gpus: &[Gpu]) {
    let mut wrong = vec![];
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let stem = name.trim_end_matches(".pt2").trim_end_matches(".core");
        let stem = if stem.starts_with("legacy") { "legacy" } else { stem };
        let folder = file.with_file_name(stem);
        let model = ModelFile::open(file).unwrap();
        let graph = match (model.import(&Options::default()), refused(file)) {
            (Ok(i), None) => i.graph,
            (Ok(_), Some(_)) => panic!("{name} is no longer refused"),
            (Err(e), Some(why)) if e.to_string().contains(why) => continue,
            (Err(e), _) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
        };
        let inputs: BTreeMap<String, Tensor> =
            graph.inputs.iter().map(|i| i.name.to_string()).zip(arrays(&folder, "in")).collect();
        let names: Vec<String> = graph.outputs.iter().map(|o| o.name.to_string()).collect();
        let mut states = StateValues::default();
        match evaluate_from(&graph, &inputs, &mut states) {
            Ok(outputs) => {
                let given =
                    Given { outputs: names.into_iter().zip(outputs).collect(), states: states.tensors };
                wrong.extend(compare(&format!("{name}, evaluated"), &folder, &given).err());
            }
            Err(e) => wrong.push(format!("{name}: {e}")),
        }
        for gpu in gpus {
            let run = || -> Result<Given, String> {
                let program = model.compile(&Options::default()).map_err(|e| e.to_string())?;
                let mut session =
                    wgfc_selftest::session(gpu, &program).map_err(|e| e.first_line().to_owned())?;
                let given: Vec<(&str, Tensor)> =
                    inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
                let outputs = session.run_blocking(&given).map_err(|e| e.to_string())?;
                let outputs = outputs.into_iter().collect();
                Ok(Given { outputs, states: session.states_blocking().map_err(|e| e.to_string())? })
            };
            let on = format!("{name} on {}", gpu.summary().name);
            match run() {
                Ok(given) => wrong.extend(compare(&on, &folder, &given).err()),
                Err(e) => wrong.push(format!("{on}: {e}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn programs_without_weights_compile_in_both_dialects() {
    let files = archives("graphs");
    if files.is_empty() {
        return crate::skip("programs_without_weights", "target/fx is empty: run scripts/aten_cases.py");
    }
    let mut wrong = vec![];
    let mut table = String::new();
    let mut dispatches = BTreeMap::new();
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let options = Options { graph_only: true, fusion: Fusion::Full, ..Options::default() };
        let start = std::time::Instant::now();
        let model = ModelFile::open(file).unwrap();
        let imported = model.import(&options).map(|_| start.elapsed());
        match (model.compile(&options), refused(file)) {
            (Ok(p), None) => {
                dispatches.insert(name.to_owned(), p.dispatches.len());
                let ms = imported.map_or(0.0, |t| t.as_secs_f64() * 1e3);
                table += &format!(
                    "{name:34} {:5} nodes {:4} dispatches, imported in {ms:.0} ms\n",
                    p.stats.model_nodes,
                    p.dispatches.len()
                );
            }
            (Ok(_), Some(_)) => wrong.push(format!("{name} is no longer refused")),
            (Err(e), Some(why)) if e.to_string().contains(why) => table += &format!("{name:34} refused\n"),
            (Err(e), _) => wrong.push(format!("{name}: {e}")),
        }
    }
    crate::say(table);
    wrong.extend(unlike(&dispatches));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A training step of a sparse autoencoder of 768 × 12,288 with Adam, whose state is an input and an output.
/// The state stays on the device, and the moments are computed in the epilogues of the products that compute
/// gradients.
#[test]
fn a_training_step_takes_few_dispatches() {
    let model = ModelFile::open(&torch("sae_step.pt2")).unwrap();
    let training = Training {
        data: [("x".to_owned(), Tensor::zeros(DType::F32, vec![4096, 768]))].into(),
        inputs: [("rate".to_owned(), Tensor::from_f32(vec![], &[1e-3]))].into(),
        batch: Some(4096),
        ..Training::default()
    };
    let roles = Ports::of_file(&model, &Options::default()).unwrap().roles(&training).unwrap();
    assert_eq!((roles.loss.as_str(), roles.states.len(), roles.by_order), ("loss", 13, 0));
    let states = States::Named { pairs: roles.states, capacity: None };
    let program = model.compile(&Options { dims: roles.dims, states, ..Options::default() }).unwrap();
    assert_eq!((program.inputs.len(), program.outputs.len(), program.states.len()), (2, 1, 13));
    assert!(program.weights.is_empty());
    // Two of the dispatches add up the parts of long sums.
    assert!(program.dispatches.len() <= 22, "{} dispatches", program.dispatches.len());
}

/// The models compiled in both dialects whose numbers of dispatches differ by more than 5 % although [`UNLIKE`] does
/// not list them, or do not although it does.
fn unlike(dispatches: &BTreeMap<String, usize>) -> Vec<String> {
    let both = dispatches.iter().filter_map(|(name, own)| {
        let core = dispatches.get(&name.replace(".pt2", ".core.pt2")).filter(|_| !name.contains(".core."))?;
        Some((name, *own, *core))
    });
    let apart = both.filter(|(name, own, core)| {
        let close = own.max(core) * 20 <= own.min(core) * 21;
        close == UNLIKE.iter().any(|(n, _)| n == name)
    });
    apart.map(|(name, own, core)| format!("{name}: {own} dispatches, in core ATen {core}")).collect()
}

pub fn torch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch").join(name)
}

fn blocks() -> Vec<PathBuf> {
    archives_in(&torch("blocks"))
}

/// All adapters but SwiftShader, which takes a second to compile a kernel.
pub fn quick_adapters() -> Vec<Gpu> {
    let mut gpus = Backend::adapters();
    gpus.retain(|g| std::env::var_os("WGFC_THOROUGH").is_some() || !g.summary().name.contains("SwiftShader"));
    gpus
}

/// A decoder, an encoder, a block of a U-Net and branches of convolutions (`fixtures/torch/blocks.py`). The mask hides all tokens of the
/// last text.
#[test]
fn blocks_give_the_results_of_torch() {
    let files = blocks();
    assert!(files.len() == 8 || std::env::var_os("WGFC_CASES").is_some());
    give_the_results_of_torch(&files, &quick_adapters());
}

/// Programs that use torch's device kernels and their gradients (`fixtures/torch/kernels.py`).
#[test]
fn kernels_of_torch_give_its_results() {
    let files = archives_in(&torch("kernels"));
    assert!(!files.is_empty() || std::env::var_os("WGFC_CASES").is_some());
    give_the_results_of_torch(&files, &quick_adapters());
}

/// Three training steps of a small transformer, as autograd runs it and in core ATen.
#[test]
fn training_steps_with_attention_go_as_in_torch() {
    let tokens = |n: &[f64], shape| Tensor::from_i64(shape, &n.iter().map(|t| *t as i64).collect::<Vec<_>>());
    steps_go_as_in_torch("attention_step", &["attention_step.pt2", "attention_step.core.pt2"], &tokens);
}

/// Three training steps of a renderer of Gaussians.
#[test]
fn training_steps_of_gaussians_go_as_in_torch() {
    let pixels = |n: &[f64], shape| Tensor::from_f32(shape, &n.iter().map(|t| *t as f32).collect::<Vec<_>>());
    steps_go_as_in_torch("gaussians_step", &["gaussians_step.pt2"], &pixels);
}

/// Runs the training steps that `fixtures/torch/NAME.py` wrote, each from the states of the one before, on the evaluator and on adapters. The batches
/// are in `NAME.x.npy`.
fn steps_go_as_in_torch(name: &str, programs: &[&str], batch: &dyn Fn(&[f64], Vec<usize>) -> Tensor) {
    let array = |part: &str| npy::read(&torch(&format!("{name}.{part}.npy"))).unwrap();
    let numbers = |t: &Tensor| -> Vec<f64> { t.scalars().unwrap().into_iter().map(|s| s.as_f64()).collect() };
    let (x, losses, wanted) = (array("x"), array("losses"), array("states"));
    let shape = x.shape[1..].to_vec();
    let batches: Vec<BTreeMap<String, Tensor>> = numbers(&x)
        .chunks(shape.iter().product())
        .map(|b| {
            let x = batch(b, shape.clone());
            [("x".to_owned(), x), ("rate".to_owned(), Tensor::from_f32(vec![], &[1e-2]))].into()
        })
        .collect();
    let close = Tolerance { rtol: 1e-4, atol: 1e-5 };
    let check = |what: &str, found: &[f64], states: &BTreeMap<String, Tensor>| {
        let found: Vec<f32> = found.iter().map(|l| *l as f32).collect();
        let found = Tensor::from_f32(vec![batches.len()], &found);
        equal(&found, &losses, close).unwrap_or_else(|e| panic!("{what}: losses: {e}"));
        let all: Vec<f32> = states.values().flat_map(&numbers).map(|n| n as f32).collect();
        let all = Tensor::from_f32(vec![all.len()], &all);
        equal(&all, &wanted, close).unwrap_or_else(|e| panic!("{what}: states: {e}"));
    };
    for name in programs {
        let model = ModelFile::open(&torch(name)).unwrap();
        let graph = model.import(&Options::default()).unwrap().graph;
        let (mut states, mut found) = (StateValues::default(), vec![]);
        for inputs in &batches {
            found.extend(numbers(&evaluate_from(&graph, inputs, &mut states).unwrap()[0]));
        }
        check(&format!("{name}, evaluated"), &found, &states.tensors);
        let program = model.compile(&Options::default()).unwrap();
        for gpu in quick_adapters() {
            let (mut session, mut found) = (wgfc_selftest::session(&gpu, &program).unwrap(), vec![]);
            for inputs in &batches {
                let given: Vec<(&str, Tensor)> =
                    inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
                let outputs = session.run_blocking(&given).unwrap();
                found.extend(outputs.into_iter().next().iter().flat_map(|(_, t)| numbers(t)));
            }
            let states = session.states_blocking().unwrap();
            check(&format!("{name} on {}", gpu.summary().name), &found, &states.into_iter().collect());
        }
    }
}

/// Blocks decomposed to core ATen compile to as many dispatches as blocks in `torch.export`'s own dialect.
#[test]
fn blocks_have_as_many_dispatches_in_both_dialects() {
    // Symbolic sizes, and one, few or many queries or rows; the chosen kernels depend on them.
    let sizes = [None, Some((1, 2)), Some((1, 7)), Some((3, 32))];
    let mut all: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for file in blocks() {
        let model = ModelFile::open(&file).unwrap();
        let graph = model.import(&Options::default()).unwrap().graph;
        let batch = graph.ty(graph.inputs[0].value).shape[0].to_string();
        let program = model.compile(&Options::default()).unwrap();
        assert!(program.states.is_empty(), "{}: nothing is written", file.display());
        let symbols = program.symbols;
        for size in sizes {
            let mut options = Options::default();
            if let Some((one, other)) = size {
                let value = |s: &String| if *s == batch { one } else { other };
                options.dims = symbols.iter().map(|s| (s.clone(), value(s))).collect();
            }
            let name = file.file_name().unwrap().to_str().unwrap().replace(".core", "");
            all.entry(format!("{name} at {size:?}"))
                .or_default()
                .push(model.compile(&options).unwrap().dispatches.len());
        }
    }
    let unequal: Vec<String> =
        all.iter().filter(|(_, n)| n.iter().any(|x| *x != n[0])).map(|a| format!("{a:?}")).collect();
    assert!(unequal.is_empty(), "{}", unequal.join("\n"));
}
