//! Compiled programs as files: single files and folders, weights that stay in the model's file, and bundles
//! of several plans.

use crate::examples::engine;
use crate::schema::follows_the_schema;
use crate::states::{Reference, close, decoder_with, tokens};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wgfc::artefact::{ReadOptions, load_bundle_with};
use wgfc::{Bundle, ModelFile, Options, Program, SaveOptions, Tensor};
use wgfc_compiler::{Fusion, pipeline::compile_graph};
use wgfc_ir::program::Stats;
use wgfc_ir::recipe::PART_BYTES;
use wgfc_runtime::gpu::AdapterSummary;
use wgfc_runtime::session::{DeviceMemory, SessionOptions};
use wgfc_runtime::testing::gpus;
use wgfc_runtime::{Plans, RunError, Session};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A program with weights of several types and sizes: one does not fill its last byte, one has several
/// kilobytes.
fn program() -> Program {
    let numbers: Vec<String> = (0..900).map(|i| (i % 13).to_string()).collect();
    let text = format!(
        "graph (x: %0, w: %9, v: %10) -> (y: %6, z: %8) {{
  %9 = input : f32[5]
  %10 = input : f32[3]
  %0 = input : f32[30, 30]
  %1 = const [{}] : f32[30, 30]
  %2 = const [1, 2, 3, 4, 5] : u4[5]
  %3 = const [1, 2, 3] : i8[3]
  %4 = contract [ab, bc -> ac] (%0, %1) : f32[30, 30]
  %5 = map [5] {{ mul(cast(f32, a0), a1) }} (%2, %9) : f32[5]
  %6 = map [30, 30] {{ add(a0, 1:f32) }} (%4) : f32[30, 30]
  %7 = map [3] {{ mul(cast(f32, a0), a1) }} (%3, %10) : f32[3]
  %8 = concat axis 0 (%5, %7) : f32[8]
}}",
        numbers.join(", ")
    );
    let graph = wgfc_ir::text::parse(&text).unwrap();
    let options = Options { fusion: Fusion::None, ..Options::default() };
    compile_graph(graph, Stats::default(), &options, &mut |_, _| {}).unwrap()
}

/// A program as JSON, and its weights.
fn said(p: &Program) -> (Value, BTreeMap<String, (String, Vec<u8>)>) {
    let weight =
        |(n, t): (&String, &Tensor)| (n.clone(), (format!("{t:?}"), t.bytes().unwrap_or_default().to_vec()));
    (serde_json::to_value(p).unwrap(), p.weights.iter().map(weight).collect())
}

fn run(session: &mut Session, inputs: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    let named: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    session.run_blocking(&named).unwrap()
}

#[test]
fn folders_files_and_shards_hold_the_same() {
    let program = program();
    let want = said(&program);
    assert!(want.1.values().any(|(ty, _)| ty.starts_with("u4")), "{:?}", want.1.keys());
    let dir = tempfile::tempdir().unwrap();
    let save = |name: &str, shard_size| {
        let path = dir.path().join(name);
        wgfc::save(&program, &path, &SaveOptions { shard_size, ..SaveOptions::default() }).unwrap();
        path
    };
    for (name, size) in [("plain", None), ("one.wgfc", None), ("shards", Some(1000)), ("tiny", Some(3))] {
        let path = save(name, size);
        follows_the_schema(&path);
        let read = wgfc::load(&path).unwrap();
        assert_eq!(said(&read), want, "{name}");
        assert_eq!(read.kernels[0].wgsl, program.kernels[0].wgsl);
        let bytes =
            |path: &Path| std::fs::read(if path.is_dir() { path.join("plan.json") } else { path.into() });
        let first = bytes(&path).unwrap();
        save(name, size);
        assert_eq!(bytes(&path).unwrap(), first, "{name}: other bytes");
        if let Some(size) = size {
            let files = std::fs::read_dir(&path).unwrap().filter_map(|e| {
                let e = e.unwrap();
                e.file_name().to_string_lossy().starts_with("weights-").then(|| e.path())
            });
            let files: Vec<PathBuf> = files.collect();
            assert!(files.len() > 1);
            for f in &files {
                let bytes = std::fs::read(f).unwrap();
                let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
                let sum: usize = file.tensors().iter().map(|(_, t)| t.data().len()).sum();
                assert!(sum as u64 <= size && sum > 0, "{}: {sum} bytes", f.display());
            }
        }
        for gpu in gpus().iter().take(1) {
            let x = vec![
                ("x".to_owned(), Tensor::from_f32(vec![30, 30], &[0.5; 900])),
                ("w".to_owned(), Tensor::from_f32(vec![5], &[2.0; 5])),
                ("v".to_owned(), Tensor::from_f32(vec![3], &[3.0; 3])),
            ];
            let mut session = Session::new_blocking(gpu, &read).unwrap();
            let mut own = Session::new_blocking(gpu, &program).unwrap();
            assert_eq!(run(&mut session, &x), run(&mut own, &x));
            let want = run(&mut own, &x);
            assert_eq!(want[1].1.to_f32s().unwrap(), [2.0, 4.0, 6.0, 8.0, 10.0, 3.0, 6.0, 9.0]);
            let bytes = x.iter().map(|(n, t)| (n.clone(), t.bytes().unwrap().to_vec()));
            let other = engine::run(&path, &BTreeMap::new(), &bytes.collect()).unwrap();
            for (name, t) in &want {
                assert_eq!(other[name], t.bytes().unwrap());
            }
        }
    }
    // The bundle is a safetensors file whose header holds everything except the weights.
    let bytes = std::fs::read(dir.path().join("one.wgfc")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let texts = header.metadata().as_ref().unwrap();
    let plan: Value = serde_json::from_str(&texts["plan.json"]).unwrap();
    assert_eq!(plan["version"], 1);
    assert_eq!(plan["weights"]["files"][0]["bytes"], bytes.len());
    let kernel = format!("kernels/{}.wgsl", program.kernels[0].name);
    assert_eq!(texts[&kernel], program.kernels[0].wgsl);
    let e = wgfc::save(
        &program,
        &dir.path().join("one.wgfc"),
        &SaveOptions { shard_size: Some(1), ..SaveOptions::default() },
    );
    assert!(e.unwrap_err().to_string().contains("one file"));
}

/// A model with large constants stored in its protobuf messages, written to `dir`.
pub fn large_model(dir: &Path) -> PathBuf {
    use prost::Message;
    use wgfc_compiler::import::onnx::*;
    let tensor = |name: &str, n: i64, seed: u32| TensorProto {
        name: name.into(),
        dims: vec![n, n],
        data_type: 1,
        raw_data: (0..(n * n) as u32)
            .flat_map(|i| ((i.wrapping_mul(seed) % 1000) as f32 * 1e-3 - 0.5).to_le_bytes())
            .collect::<Vec<u8>>()
            .into(),
        ..Default::default()
    };
    let node = |op: &str, input: &[&str], output: &str| NodeProto {
        op_type: op.into(),
        name: output.into(),
        input: input.iter().map(|s| (*s).into()).collect(),
        output: vec![output.into()],
        ..Default::default()
    };
    let port = |name: &str| {
        let dim = |v| DimensionProto { value: Some(v) };
        let dims = vec![dim(DimensionValue::Param("rows".into())), dim(DimensionValue::Value(64))];
        let ty = TensorTypeProto { elem_type: 1, shape: Some(TensorShapeProto { dim: dims }) };
        let ty = TypeProto { value: Some(TypeValue::Tensor(ty)) };
        ValueInfoProto { name: name.into(), r#type: Some(ty) }
    };
    let graph = GraphProto {
        name: "g".into(),
        node: vec![
            node("MatMul", &["x", "a"], "h"),
            node("Relu", &["h"], "r"),
            node("MatMul", &["r", "b"], "y"),
        ],
        initializer: vec![tensor("a", 64, 7919), tensor("b", 64, 104_729)],
        input: vec![port("x")],
        output: vec![port("y")],
        ..Default::default()
    };
    let model = ModelProto {
        ir_version: 10,
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 21 }],
        ..Default::default()
    };
    let path = dir.join("the model #1.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    path
}

#[test]
fn weights_stay_in_the_models_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = large_model(dir.path());
    let file = ModelFile::open(&path).unwrap();
    let program = file.compile(&Options::default()).unwrap();
    let options = SaveOptions { model: Some(&file), ..SaveOptions::default() };
    for name in ["out", "out.wgfc"] {
        let out = dir.path().join(name);
        wgfc::save(&program, &out, &options).unwrap();
        let size = |p: PathBuf| std::fs::metadata(p).unwrap().len();
        let copied = size(if out.is_dir() { out.join("weights.safetensors") } else { out.clone() });
        // Only the plan and its kernels are copied; each weight would add 16,384 bytes.
        assert!(copied < 20_000, "{name}: {copied} bytes are copied");
        let read = wgfc::load(&out).unwrap();
        assert_eq!(said(&read), said(&program), "{name}");

        // A changed, truncated or missing model file is detected, even without `verify`.
        let good = std::fs::read(&path).unwrap();
        let says = |what: &str| {
            // Hashes of files in the plan's folder are compared only when `verify` is set.
            let hash = what.contains("hash") && !out.is_dir();
            for verify in [true, hash] {
                let e =
                    load_bundle_with(&out, &ReadOptions { verify, ..ReadOptions::default() }).unwrap_err();
                assert_eq!(e.class(), wgfc::ErrorClass::Model);
                assert!(e.to_string().contains(what) && e.to_string().contains("the model #1.onnx"), "{e}");
            }
        };
        let mut other = good.clone();
        let middle = other.len() / 2;
        other[middle] ^= 1;
        std::fs::write(&path, &other).unwrap();
        says("their hash differs");
        std::fs::write(&path, &good[..good.len() - 1]).unwrap();
        says("when it was compiled");
        std::fs::remove_file(&path).unwrap();
        says("no such file");
        std::fs::write(&path, &good).unwrap();
        wgfc::load(&out).unwrap();
    }

    // A plan cannot refer to a file that saving it would replace.
    let inside = dir.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let moved = inside.join("m.onnx");
    std::fs::copy(&path, &moved).unwrap();
    let file = ModelFile::open(&moved).unwrap();
    let program = file.compile(&Options::default()).unwrap();
    let options = SaveOptions { model: Some(&file), force: true, ..SaveOptions::default() };
    let e = wgfc::save(&program, &inside, &options).unwrap_err().to_string();
    assert!(e.contains("the plan would refer to") && moved.exists(), "{e}");
    let e = wgfc::save(&program, &moved.with_extension("wgfc"), &options);
    e.unwrap();
}

/// Weights in the model's file that are f16 on the device are rounded when they are read.
#[test]
fn weights_in_the_models_file_are_rounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = large_model(dir.path());
    let file = ModelFile::open(&path).unwrap();
    let half = Options { precision: wgfc::compiler::Precision::F16, ..Options::default() };
    let program = file.compile(&half).unwrap();
    let options = SaveOptions { model: Some(&file), ..SaveOptions::default() };
    let out = dir.path().join("out");
    wgfc::save(&program, &out, &options).unwrap();
    let plan: Value = serde_json::from_slice(&std::fs::read(out.join("plan.json")).unwrap()).unwrap();
    let rounded = plan["weights"]["tensors"].as_object().unwrap().values();
    assert_eq!(rounded.filter(|r| r["from"] == "f32" && r["dtype"] == "f16").count(), 2, "{plan}");
    assert!(std::fs::metadata(out.join("weights.safetensors")).unwrap().len() < 1000);
    for (name, tensor) in &wgfc::load(&out).unwrap().weights {
        assert_eq!(tensor, &program.weights[name], "{name}");
        assert_eq!(tensor.bytes(), program.weights[name].bytes(), "{name}");
    }
    // Saving a loaded program again stores the weights in the program's own files.
    wgfc::save(&wgfc::load(&out).unwrap(), &dir.path().join("again"), &SaveOptions::default()).unwrap();
    assert_eq!(said(&wgfc::load(&dir.path().join("again")).unwrap()), said(&program));
    // A value beyond the range of f16 is detected in a file whose hash is not recorded.
    let beside = out.join("w.bin");
    let mut bytes = std::fs::read(&path).unwrap();
    let mut plan = plan;
    let files = plan["weights"]["files"].as_array_mut().unwrap();
    let at = files.iter().position(|f| f["name"].as_str().unwrap().contains("model")).unwrap();
    files[at]["name"] = "w.bin".into();
    let recipes = plan["weights"]["tensors"].as_object_mut().unwrap();
    for part in recipes.values_mut().flat_map(|r| r["parts"].as_array_mut().unwrap()) {
        part.as_object_mut().unwrap().remove("sha256");
        if part["file"] == at {
            let offset = part["offset"].as_u64().unwrap() as usize;
            bytes[offset..offset + 4].copy_from_slice(&1e6f32.to_le_bytes());
        }
    }
    std::fs::write(&beside, bytes).unwrap();
    std::fs::write(out.join("plan.json"), plan.to_string()).unwrap();
    let e = wgfc::load(&out).unwrap_err().to_string();
    assert!(e.contains("a value is beyond f16"), "{e}");
}

#[test]
fn damaged_weights_are_found_by_their_hashes() {
    let dir = tempfile::tempdir().unwrap();
    let program = program();
    let options = SaveOptions { shard_size: Some(2000), ..SaveOptions::default() };
    let (folder, file) = (dir.path().join("out"), dir.path().join("out.wgfc"));
    wgfc::save(&program, &folder, &options).unwrap();
    wgfc::save(&program, &file, &SaveOptions::default()).unwrap();
    let first = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
    let shard = first.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).min().unwrap();
    for (plan, at) in [(&folder, &shard), (&file, &file)] {
        let good = std::fs::read(at).unwrap();
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 0x40;
        std::fs::write(at, &bad).unwrap();
        let e = wgfc::load_bundle(plan).unwrap_err().to_string();
        assert!(e.contains("tensor `") && e.contains("their hash differs") && e.contains("again"), "{e}");
        // A plan can be opened without reading its weights.
        load_bundle_with(plan, &ReadOptions { verify: false, ..ReadOptions::default() }).unwrap();
        for cut in [1, 9, good.len() / 2, good.len() - 20] {
            std::fs::write(at, &good[..good.len() - cut]).unwrap();
            let e = wgfc::load_bundle(plan).unwrap_err();
            assert_eq!(e.class(), wgfc::ErrorClass::Model, "{e}");
        }
        std::fs::write(at, &good).unwrap();
        wgfc::load_bundle(plan).unwrap();
    }
}

/// Edits of the plan's JSON, each with the text of the expected error.
#[test]
fn recipes_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let shards = SaveOptions { shard_size: Some(2000), ..SaveOptions::default() };
    wgfc::save(&program(), &out, &shards).unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, vec![7u8; 10_000]).unwrap();
    let plan = out.join("plan.json");
    let good: Value = serde_json::from_slice(&std::fs::read(&plan).unwrap()).unwrap();
    let name = good["weights"]["tensors"].as_object().unwrap().keys().next().unwrap().clone();
    type Edit<'e> = &'e dyn Fn(&mut Value);
    let part = |v: &mut Value, key: &str, to: Value| v["tensors"][&name]["parts"][0][key] = to;
    let cases: &[(&str, Edit<'_>)] = &[
        ("not between 1 and", &|v| part(v, "bytes", 0.into())),
        ("not between 1 and", &|v| part(v, "bytes", (PART_BYTES + 1).into())),
        ("are outside of file", &|v| part(v, "offset", u64::MAX.into())),
        ("there is no file 99", &|v| part(v, "file", 99.into())),
        ("their hash differs", &|v| part(v, "offset", 0.into())),
        ("is not a plan", &|v| part(v, "offset", (-1).into())),
        ("bytes when", &|v| v["files"][0]["bytes"] = 1_000_000_000_000_u64.into()),
        ("is not a path relative", &|v| v["files"][0]["name"] = "/etc/passwd".into()),
        ("is on the web", &|v| v["files"][0]["name"] = "https://a.example/w".into()),
        ("only that of a bundle", &|v| v["files"][0]["name"] = "".into()),
        ("its parts have", &|v| {
            let parts = v["tensors"][&name]["parts"].as_array_mut().unwrap();
            parts.push(parts[0].clone());
        }),
        ("and all files together", &|v| v["tensors"][&name]["shape"] = vec![1u64 << 40].into()),
        ("overflows", &|v| v["tensors"][&name]["shape"] = vec![1u64 << 40; 4].into()),
        // A file outside the folder can be read only if its hash is known.
        ("has no hash", &|v| {
            v["files"][0] = serde_json::json!({ "name": "../secret", "bytes": 10_000 });
            for t in v["tensors"].as_object_mut().unwrap().values_mut() {
                for p in t["parts"].as_array_mut().unwrap() {
                    p.as_object_mut().unwrap().remove("sha256");
                }
            }
        }),
    ];
    for (says, edit) in cases {
        let mut v = good.clone();
        edit(&mut v["weights"]);
        std::fs::write(&plan, v.to_string()).unwrap();
        let e = wgfc::load_bundle(&out).unwrap_err();
        assert_eq!(e.class(), wgfc::ErrorClass::Model, "{e}");
        let text = e.to_string();
        // The sizes of files are compared when they are opened.
        let says = if *says == "bytes when" { "when it was compiled" } else { says };
        assert!(text.contains(says), "`{says}` is not in: {text}");
    }
    for (says, edit) in [
        ("has no plan", (&|v: &mut Value| v["plans"] = Value::Array(vec![])) as Edit<'_>),
        ("is not a plan", &|v| v["plans"] = Value::Null),
        ("help: update wgfc, or compile", &|v| v["version"] = 2.into()),
        ("help: compile the model again", &|v| v["version"] = 0.into()),
        ("is not a plan", &|v| _ = v.as_object_mut().unwrap().remove("version")),
        ("is not a plan", &|v| v["plans"][0]["needs"] = 3.into()),
    ] {
        let mut v = good.clone();
        edit(&mut v);
        std::fs::write(&plan, v.to_string()).unwrap();
        let e = wgfc::load_bundle(&out).unwrap_err().to_string();
        assert!(e.contains(says) && e.contains("plan.json"), "`{says}` is not in: {e}");
    }
}

pub fn two_plans() -> (Program, Program, Bundle) {
    let plan = |seq| decoder_with(seq, Fusion::Full, Some(23));
    let (one, any) = (plan(Some(1)), plan(None));
    let named = vec![("decode".to_owned(), one.clone()), ("prefill".to_owned(), any.clone())];
    (one, any, Bundle::new(named))
}

#[test]
fn plans_share_weights_states_and_kernels() {
    let (one, any, bundle) = two_plans();
    let bytes = |p: &Program| p.weights.values().filter_map(Tensor::byte_len).sum::<usize>();
    let store: usize = bundle.store().iter().filter_map(|(_, t)| t.byte_len()).sum();
    assert!(store < bytes(&one) + bytes(&any) && store >= bytes(&one).max(bytes(&any)));
    assert!(bundle.kernels().len() <= one.kernels.len() + any.kernels.len());
    // Nothing is stored twice, and each plan reads the same bytes as before.
    for (plan, before) in bundle.plans.iter().zip([&one, &any]) {
        for (b, old) in plan.program.buffers.iter().zip(&before.buffers) {
            use wgfc_ir::program::BufferKind::Weight;
            if let (Weight { name }, Weight { name: old }) = (&b.kind, &old.kind) {
                assert_eq!(plan.program.weights[name].bytes(), before.weights[old].bytes());
            }
        }
        for (k, old) in plan.program.kernels.iter().zip(&before.kernels) {
            assert_eq!(k.wgsl, old.wgsl);
        }
    }
    let store = bundle.store();
    for (i, (_, a)) in store.iter().enumerate() {
        assert!(store[..i].iter().all(|(_, b)| a.dtype != b.dtype || a.bytes() != b.bytes()));
    }

    let dir = tempfile::tempdir().unwrap();
    for name in ["out", "out.wgfc"] {
        let out = dir.path().join(name);
        wgfc::save_bundle(&bundle, &out, &SaveOptions::default()).unwrap();
        follows_the_schema(&out);
        let read = wgfc::load_bundle(&out).unwrap();
        let names: Vec<&str> = read.plans.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["decode", "prefill"]);
        for (a, b) in read.plans.iter().zip(&bundle.plans) {
            assert_eq!((said(&a.program), &a.needs), (said(&b.program), &b.needs));
        }
        for gpu in gpus().iter().filter(|_| name == "out.wgfc") {
            let mut plans = Plans::new_blocking(gpu, &read, SessionOptions::default()).unwrap();
            assert!(plans.left_out().is_empty());
            let memory = DeviceMemory::of(plans.sessions());
            let lone = DeviceMemory::of([&Session::new_blocking(gpu, &any).unwrap()]);
            assert_eq!(memory.states, lone.states);
            assert!(memory.weights < 2 * lone.weights, "{memory:?} {lone:?}");
            let mut reference = Reference::new();
            let mut past = 0;
            for ids in [&[3, 1, 36, 0, 8][..], &[5], &[7], &[2, 9]] {
                let given = tokens(ids, past);
                let named: Vec<(&str, Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
                let values: Vec<_> = named.iter().map(|(n, t)| (*n, t.clone().into())).collect();
                assert_eq!(plans.select(&values).unwrap(), usize::from(ids.len() > 1));
                let got = plans.run_blocking(&named).unwrap();
                close(&got[0].1.to_f32s().unwrap(), &reference.run(ids));
                past += ids.len();
            }
            // Inputs whose shapes fit no plan.
            let wrong = [("input_ids", Tensor::from_i64(vec![2, 2], &[1; 4]))];
            let e = plans.run_blocking(&wrong).unwrap_err();
            assert!(matches!(&e, RunError::NoFit(plans) if plans.len() == 2), "{e}");
            assert!(e.to_string().contains("plan \"prefill\": "), "{e}");
        }
    }
}

#[test]
fn plans_that_a_device_cannot_run_are_left_out() {
    let (_, _, mut bundle) = two_plans();
    let Some(gpu) = gpus().first() else { return };
    bundle.plans[0].needs.limits.insert("maxStorageBuffersPerShaderStage".into(), 100_000);
    bundle.plans[0].needs.features.push("time-travel".into());
    let plans = Plans::new_blocking(gpu, &bundle, SessionOptions::default()).unwrap();
    assert_eq!(plans.names().collect::<Vec<_>>(), ["prefill"]);
    let why = &plans.left_out()[0].why;
    assert!(why.contains("`time-travel`") && why.contains("of 100000, which is"), "{why}");
    bundle.plans[1].needs.limits.insert("maxHats".into(), 1);
    bundle.plans[1].needs.subgroup_sizes = Some(vec![3]);
    let e = Plans::new_blocking(gpu, &bundle, SessionOptions::default()).unwrap_err();
    let text = e.to_string();
    assert!(matches!(e, RunError::NoPlan(_)), "{text}");
    for part in
        ["plan \"decode\"", "plan \"prefill\"", "`maxHats` of 1, a limit that is not known", "subgroups of 3"]
    {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }

    // Plans of another model cannot share states with the plans of this one.
    let other = decoder_with(Some(1), Fusion::Full, Some(24));
    let (one, ..) = two_plans();
    let both = Bundle::new(vec![("a".into(), one), ("b".into(), other), ("c".into(), program())]);
    let plans = Plans::new_blocking(gpu, &both, SessionOptions::default()).unwrap();
    assert_eq!(plans.names().collect::<Vec<_>>(), ["a"]);
    let why: Vec<&str> = plans.left_out().iter().map(|l| l.why.as_str()).collect();
    assert_eq!(
        why,
        [
            "its states are not those of the first plan",
            "its inputs or outputs are not those of the first plan"
        ]
    );
}

#[test]
fn plans_for_an_adapters_kind_come_first() {
    let kinds = [Some("discrete"), None, Some("software"), Some("quantum")];
    let program = wgfc::runtime::testing::doubling();
    let mut bundle = Bundle::new(kinds.map(|k| (k.unwrap_or("any").to_owned(), program.clone())).to_vec());
    for (plan, kind) in bundle.plans.iter_mut().zip(kinds) {
        plan.adapter = kind.map(str::to_owned);
    }
    for gpu in gpus() {
        let chosen = |bundle: &Bundle, kind: &str| {
            let summary = AdapterSummary { kind: kind.to_owned(), ..gpu.summary().clone() };
            let (taken, _) = wgfc::runtime::plans::choose(bundle, &summary).unwrap();
            taken.iter().map(|p| p.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&bundle, "discrete"), ["discrete", "any"]);
        assert_eq!(chosen(&bundle, "software"), ["software", "any"]);
        assert_eq!(chosen(&bundle, "virtual"), ["any"]);
        let mut others = bundle.clone();
        others.plans.retain(|p| p.adapter.is_some());
        assert_eq!(chosen(&others, "integrated"), ["discrete", "software", "quantum"]);
        // A plan whose needs the adapter lacks is left out, also one for its kind.
        others.plans[1].needs.features.push("time-travel".into());
        assert_eq!(chosen(&others, "software"), ["discrete", "quantum"]);
        let plans = Plans::new_blocking(gpu, &bundle, SessionOptions::default()).unwrap();
        assert_eq!(plans.names().collect::<Vec<_>>()[0], gpu.summary().kind);
        assert!(plans.left_out().iter().any(|l| l.why == "it is for discrete adapters"));
    }
}

#[test]
fn weights_of_one_name_and_other_bytes_stay_apart() {
    let weights = |v: [f32; 5]| {
        let text = format!(
            "graph (x: %0) -> (y: %2) {{
  %0 = input : f32[5]
  %1 = const [{}] : f32[5]
  %2 = map [5] {{ mul(a0, a1) }} (%0, %1) : f32[5]
}}",
            v.map(|f| f.to_string()).join(", ")
        );
        let graph = wgfc_ir::text::parse(&text).unwrap();
        compile_graph(graph, Stats::default(), &Options::default(), &mut |_, _| {}).unwrap()
    };
    let (a, b) = (weights([1.0, 2.0, 3.0, 4.0, 5.0]), weights([5.0, 4.0, 3.0, 2.0, 1.0]));
    let names: Vec<&String> = a.weights.keys().chain(b.weights.keys()).collect();
    assert_eq!(names[0], names[1]);
    let bundle = Bundle::new(vec![("a".into(), a.clone()), ("b".into(), b), ("c".into(), a)]);
    assert_eq!(bundle.store().len(), 2);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    wgfc::save_bundle(&bundle, &out, &SaveOptions::default()).unwrap();
    let read = wgfc::load_bundle(&out).unwrap();
    let first = |i: usize| read.plans[i].program.weights.values().next().unwrap().to_f32s().unwrap()[0];
    assert_eq!([first(0), first(1), first(2)], [1.0, 5.0, 1.0]);
    assert_eq!(std::fs::read_dir(out.join("kernels")).unwrap().count(), 1);
}

/// A copy of an archive with uncompressed records, as torch writes them; the records of fixtures are
/// compressed.
fn unpacked(from: &Path, to: PathBuf) -> PathBuf {
    use std::io::{Read, Write};
    let mut zip = zip::ZipArchive::new(std::fs::File::open(from).unwrap()).unwrap();
    let mut out = zip::ZipWriter::new(std::fs::File::create(&to).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for i in 0..zip.len() {
        let mut record = zip.by_index(i).unwrap();
        let mut data = vec![];
        record.read_to_end(&mut data).unwrap();
        out.start_file(record.name().unwrap(), stored).unwrap();
        out.write_all(&data).unwrap();
    }
    out.finish().unwrap();
    to
}

#[test]
fn weights_stay_in_archives_and_in_external_data() {
    use prost::Message;
    use wgfc_compiler::import::onnx::*;
    let dir = tempfile::tempdir().unwrap();
    let archive = unpacked(&fixture("torch/blocks/encoder.pt2"), dir.path().join("encoder.pt2"));
    // The large model, with its constants moved to a file beside it.
    let inline = large_model(dir.path());
    let mut model = ModelProto::decode(&std::fs::read(&inline).unwrap()[..]).unwrap();
    let mut data = vec![0u8; 4096];
    for t in &mut model.graph.as_mut().unwrap().initializer {
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        t.external_data = vec![
            entry("location", "weights.bin".into()),
            entry("offset", data.len().to_string()),
            entry("length", t.raw_data.len().to_string()),
        ];
        t.data_location = 1;
        data.extend_from_slice(&std::mem::take(&mut t.raw_data));
    }
    let external = dir.path().join("external.onnx");
    std::fs::write(&external, model.encode_to_vec()).unwrap();
    std::fs::write(dir.path().join("weights.bin"), data).unwrap();
    for (path, holds) in [(archive, "../encoder.pt2"), (external, "../weights.bin")] {
        let file = ModelFile::open(&path).unwrap();
        let program = file.compile(&Options::default()).unwrap();
        let out = dir.path().join("out");
        let options = SaveOptions { model: Some(&file), ..SaveOptions::default() };
        wgfc::save(&program, &out, &options).unwrap();
        let plan = follows_the_schema(&out);
        let files = plan["weights"]["files"].as_array().unwrap();
        let number = files.iter().position(|f| f["name"] == holds);
        let number = number.unwrap_or_else(|| panic!("{holds} is not among {files:?}"));
        let parts = plan["weights"]["tensors"].as_object().unwrap().values();
        let parts = parts.flat_map(|t| t["parts"].as_array().unwrap());
        let bytes: u64 = parts.filter(|p| p["file"] == number).map(|p| p["bytes"].as_u64().unwrap()).sum();
        assert!(bytes > 1000, "{holds}: {bytes} bytes");
        let copied = std::fs::metadata(out.join("weights.safetensors")).unwrap().len();
        let all: usize = program.weights.values().filter_map(Tensor::byte_len).sum();
        assert!(copied < all as u64, "{copied} of {all} bytes are copied");
        assert_eq!(said(&wgfc::load(&out).unwrap()), said(&program));
    }
}
