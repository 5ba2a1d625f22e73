use prost::Message;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use wgfc_compiler::import::onnx::*;
use wgfc_compiler::import::{ExternalData, NoExternalData, gguf, import};
use wgfc_compiler::requests::compile;
use wgfc_compiler::{Options, compile as native, decoding, pipeline};
use wgfc_ir::Bundle;
use wgfc_ir::recipe::Recipes;
use wgfc_ir::remote::Files;
use wgfc_ir::tensor::ByteOwner;

/// One file.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl Files for Bytes {
    fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> bool {
        let from = offset as usize;
        match self.0.get(from..from + into.len()) {
            Some(bytes) if file == 0 => into.copy_from_slice(bytes),
            _ => return false,
        }
        true
    }
}

/// A fixture as it is, and a version with its tensors of more than 64 bytes in a file.
fn fixture(name: &str) -> (Vec<u8>, Vec<u8>, Bytes) {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/small").join(name).join("model.onnx");
    let whole = std::fs::read(path).unwrap();
    let mut model = ModelProto::decode(&whole[..]).unwrap();
    let mut file = vec![];
    for t in &mut model.graph.as_mut().unwrap().initializer {
        if t.raw_data.len() <= 64 {
            continue;
        }
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        t.external_data = vec![
            entry("location", "weights".into()),
            entry("offset", file.len().to_string()),
            entry("length", t.raw_data.len().to_string()),
        ];
        t.data_location = 1;
        file.extend_from_slice(&std::mem::take(&mut t.raw_data));
    }
    (whole, model.encode_to_vec(), Bytes(file))
}

fn asked(model: &[u8], files: &Bytes, more: Value) -> (Value, Vec<u8>) {
    let mut request = json!({ "files": [{ "name": "weights", "bytes": files.0.len() }] });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = compile(model, &request.to_string(), Box::new(files.clone()));
    (serde_json::from_str(&answer.json).unwrap(), answer.data)
}

#[test]
fn what_is_elsewhere_is_compiled_as_what_is_here() {
    for name in ["mlp", "conv", "decoder", "attention", "recurrent", "half", "integers"] {
        let (whole, model, files) = fixture(name);
        let (answer, data) = asked(&model, &files, json!({}));
        assert!(answer["errors"].is_null(), "{name}: {}", answer["text"]);
        let program = native(&whole, &NoExternalData, &Options::default()).unwrap();
        let want = Bundle::new(vec![(String::new(), program)]);
        for (kernel, k) in want.kernels() {
            assert_eq!(answer["kernels"][kernel], *k.wgsl, "{name}");
        }
        let recipes: Recipes = serde_json::from_value(answer["plan"]["weights"].clone()).unwrap();
        for (weight, tensor) in want.store() {
            let mut bytes = vec![];
            for p in &recipes.tensors[weight].parts {
                let of = if p.file == 0 { &files.0 } else { &data };
                bytes.extend_from_slice(&of[p.offset as usize..(p.offset + p.bytes) as usize]);
            }
            assert_eq!(bytes, tensor.bytes().unwrap(), "{name}: {weight}");
        }
        assert_eq!(recipes.tensors.len(), want.store().len(), "{name}");
    }
}

/// A model in memory, whose bytes all its plans share.
struct Whole(Arc<Vec<u8>>);

impl ExternalData for Whole {
    fn open(&self, _: &str) -> Result<Arc<dyn ByteOwner>, String> {
        Err("there is none".into())
    }
    fn model(&self) -> Option<Arc<dyn ByteOwner>> {
        Some(self.0.clone())
    }
}

/// The plans of a decoder that generates, of a whole model.
fn decoder(whole: &Whole) -> Bundle {
    let model = &whole.0[..];
    let common = Options::default();
    let graph = import(model, whole, &common).unwrap().graph;
    let plans = decoding::plans(&decoding::roles::symbols(&graph).unwrap(), common).into_iter();
    let made = plans.map(|(name, options)| {
        let made = pipeline::compile_amended(
            model,
            whole,
            &options,
            &mut |g| decoding::generate(g, &[]),
            &mut |_, _| {},
        );
        (name, made.unwrap())
    });
    Bundle::new(made.collect())
}

#[test]
fn gguf_files_are_compiled_from_their_headers() {
    // Blocks of all K types, and factors of positions, which the compiler reads.
    for (name, planes) in [("llama-tied", 20), ("phi3-long", 0)] {
        let made = from_header(name);
        assert!(made >= planes, "{name}: {made}");
    }
}

/// Compiles a fixture from its header, compares the result with that of the whole file, and returns the number of weights that are
/// planes of blocks in the file.
fn from_header(name: &str) -> usize {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/decoders");
    let whole = std::fs::read(path.join(name).join("model.gguf")).unwrap();
    let header = gguf::open(&whole).unwrap();
    let end = header.tensors.values().map(|t| t.offset).min().unwrap();
    let ask = |bytes: usize| {
        let file = json!({ "name": "m.gguf", "bytes": bytes });
        let request = json!({ "files": [file], "begins": "m.gguf", "generate": true }).to_string();
        let answer = compile(&whole[..end as usize], &request, Box::new(Bytes(whole.clone())));
        (serde_json::from_str::<Value>(&answer.json).unwrap(), answer.data)
    };
    let (answer, data) = ask(whole.len());
    assert!(answer["errors"].is_null(), "{}", answer["text"]);
    assert_eq!(answer["beside"], json!({}));
    let want = decoder(&Whole(Arc::new(whole.clone())));
    for (kernel, k) in want.kernels() {
        assert_eq!(answer["kernels"][kernel], *k.wgsl, "{kernel}");
    }
    let recipes: Recipes = serde_json::from_value(answer["plan"]["weights"].clone()).unwrap();
    assert_eq!(recipes.tensors.len(), want.store().len());
    let mut derived = 0;
    for (weight, tensor) in want.store() {
        let recipe = &recipes.tensors[weight];
        recipe.columns(&recipes.files).unwrap();
        let of = |file| if file == 0 { &whole } else { &data };
        let parts =
            recipe.parts.iter().map(|p| &of(p.file)[p.offset as usize..(p.offset + p.bytes) as usize]);
        let mut bytes: Vec<u8> = parts.flatten().copied().collect();
        if let Some(blocks) = &recipe.derived {
            let how = blocks.derivation().unwrap();
            let mut made = vec![0; bytes.len() / how.block * how.makes];
            (how.make)(&bytes, &mut made);
            (bytes, derived) = (made, derived + 1);
        }
        assert_eq!(bytes, tensor.bytes().unwrap(), "{weight}");
    }
    let (cut, _) = ask(whole.len() - 100);
    assert!(cut["text"].as_str().unwrap().contains("the file ends before its last byte"), "{cut}");
    derived
}

/// A matrix product with a weight in a file, followed by a sine.
fn product(k: i64, n: i64) -> (Vec<u8>, Bytes) {
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
    let weight = TensorProto {
        name: "w".into(),
        dims: vec![k, n],
        data_type: 1,
        external_data: vec![
            entry("location", "weights".into()),
            entry("offset", "8".into()),
            entry("length", (4 * k * n).to_string()),
        ],
        data_location: 1,
        ..Default::default()
    };
    let node = |op: &str, inputs: &[&str], output: &str| NodeProto {
        name: op.to_lowercase(),
        op_type: op.into(),
        input: inputs.iter().map(|i| (*i).to_owned()).collect(),
        output: vec![output.into()],
        ..Default::default()
    };
    let port = |name: &str, n: i64| {
        let dim = |v| DimensionProto { value: Some(v) };
        let dims = vec![dim(DimensionValue::Param("rows".into())), dim(DimensionValue::Value(n))];
        let ty = TensorTypeProto { elem_type: 1, shape: Some(TensorShapeProto { dim: dims }) };
        let ty = TypeProto { value: Some(TypeValue::Tensor(ty)) };
        ValueInfoProto { name: name.into(), r#type: Some(ty) }
    };
    let graph = GraphProto {
        name: "g".into(),
        node: vec![node("MatMul", &["x", "w"], "p"), node("Sin", &["p"], "y")],
        initializer: vec![weight],
        input: vec![port("x", k)],
        output: vec![port("y", n)],
        ..Default::default()
    };
    let model = ModelProto {
        ir_version: 10,
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 21 }],
        ..Default::default()
    };
    let values = (0..2 + k * n).flat_map(|i| (i as f32 / 9000.0).to_le_bytes()).collect();
    (model.encode_to_vec(), Bytes(values))
}

#[test]
fn weights_in_half_are_not_read() {
    let (model, files) = product(13, 700);
    let half = json!({ "precision": "f16" });
    let (answer, data) = asked(&model, &files, half);
    assert!(answer["errors"].is_null(), "{}", answer["text"]);
    assert_eq!((&answer["read"], data.len()), (&json!(0), 0));
    let recipes: Recipes = serde_json::from_value(answer["plan"]["weights"].clone()).unwrap();
    let recipe = recipes.tensors.values().next().unwrap();
    assert_eq!((recipe.dtype, recipe.from), (wgfc_ir::DType::F16, Some(wgfc_ir::DType::F32)));
    assert_eq!((recipe.parts[0].offset, recipe.parts[0].bytes), (8, 36400));
    recipe.columns(&recipes.files).unwrap();

    let (kept, _) = asked(&model, &files, json!({ "precision": "f16", "keep_f32": ["matmul"] }));
    let recipes: Recipes = serde_json::from_value(kept["plan"]["weights"].clone()).unwrap();
    assert!(recipes.tensors.values().all(|r| r.from.is_none()), "{}", kept["text"]);
    let (unknown, _) = asked(&model, &files, json!({ "precision": "f16", "keep_f32": ["mat"] }));
    assert!(unknown["text"].as_str().unwrap().contains("no node \"mat\""), "{unknown}");
    let (bad, _) = asked(&model, &files, json!({ "precision": "f8" }));
    assert!(bad["text"].as_str().unwrap().contains("unknown variant `f8`"), "{bad}");
}

#[test]
fn weights_of_few_bits_are_data() {
    let (model, files) = product(70, 131);
    for (bits, bytes) in [("q8", 70 * 131 + 131 * 3 * 2), ("q4", 70 * 131 / 2 + 131 * 3 * 2)] {
        let (answer, data) = asked(&model, &files, json!({ "weights": bits }));
        assert!(answer["errors"].is_null(), "{}", answer["text"]);
        assert_eq!(data.len(), bytes, "{bits}");
    }
}

#[test]
fn plans_share_weights() {
    let (_, model, files) = fixture("decoder");
    let plans = json!({ "plans": [{ "name": "decode", "dims": { "seq": 1 } }, { "name": "prefill" }] });
    let (answer, _) = asked(&model, &files, plans);
    let names: Vec<&str> =
        answer["plan"]["plans"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["decode", "prefill"], "{}", answer["text"]);
}

#[test]
fn errors_are_data_and_text() {
    let (_, model, files) = fixture("mlp");
    let first = |answer: &Value| answer["errors"][0]["message"].as_str().unwrap().to_owned();
    let (answer, data) = asked(&model, &Bytes(files.0[..10].to_vec()), json!({}));
    assert!(first(&answer).contains("outside the file (10 bytes)") && data.is_empty(), "{answer}");
    assert!(answer["text"].as_str().unwrap().starts_with("error"), "{answer}");
    for (more, said) in [
        (json!({ "profile": { "version": 7 } }), "the device profile"),
        (json!({ "colour": 1 }), "unknown field `colour`"),
        (json!({ "dims": { "batch": 0 } }), ""),
        (json!({ "expect": { "nobody": 3 } }), "nobody is expected to be 3"),
    ] {
        let (answer, _) = asked(&model, &files, more);
        assert!(answer["errors"].is_null() || first(&answer).contains(said), "{answer}");
        assert!(said.is_empty() || !answer["errors"].is_null(), "{said}");
    }
    let answer = compile(&model[..20], "{}", Box::new(files));
    assert!(answer.json.contains("\"errors\""), "{}", answer.json);
}

#[test]
fn schedules_and_taps_are_as_asked() {
    let (_, model, files) = fixture("mlp");
    let (answer, _) = asked(&model, &files, json!({ "list_schedules": true }));
    let text = answer["schedules"].as_str().unwrap();
    let (again, _) = asked(&model, &files, json!({ "schedules": text }));
    assert_eq!(again["kernels"], answer["kernels"], "{}", again["text"]);
    assert!(again["schedules"].is_null());
    let (bad, _) = asked(&model, &files, json!({ "schedules": "[]" }));
    assert!(bad["errors"][0]["message"].as_str().unwrap().starts_with("the schedules: "), "{bad}");

    let graph = ModelProto::decode(&model[..]).unwrap().graph.unwrap();
    let inner = graph.node[0].output[0].as_str();
    let (tapped, _) = asked(&model, &files, json!({ "taps": [inner] }));
    let outputs: Vec<&str> = tapped["plan"]["plans"][0]["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["name"].as_str().unwrap())
        .collect();
    assert!(outputs.contains(&inner), "{outputs:?}");
    let (bad, _) = asked(&model, &files, json!({ "taps": ["nothing of this name"] }));
    assert!(!bad["errors"].is_null());
}

/// Kernels come with several schedules of their own, the first of which is the one that is chosen, and a table with another one is obeyed.
#[test]
fn kernels_are_given_to_be_timed() {
    let (_, model, files) = fixture("mlp");
    let (answer, _) = asked(&model, &files, json!({ "trials": { "most": 3, "values": { "batch": 5 } } }));
    let trials = answer["trials"].as_array().unwrap();
    assert!(!trials.is_empty(), "{answer}");
    let chosen = |more: Value| {
        let mut request = json!({ "list_schedules": true });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (answer, _) = asked(&model, &files, request);
        serde_json::from_str::<Value>(answer["schedules"].as_str().unwrap()).unwrap()["choices"].clone()
    };
    let own = chosen(json!({}));
    let all = |t: &Value| t["buffers"].as_array().unwrap().clone();
    assert!(trials.iter().flat_map(all).any(|b| b["cold"] == true), "{answer}");
    let has = |all: &Value, schedule: &Value| all.as_object().unwrap().values().any(|s| s == schedule);
    for trial in trials {
        let candidates = trial["candidates"].as_array().unwrap();
        assert!(candidates.len() > 1, "{trial}");
        assert!(has(&own, &candidates[0]["schedule"]), "{} is not among {own}", candidates[0]["schedule"]);
        let buffers = trial["buffers"].as_array().unwrap();
        assert!(buffers.iter().any(|b| b["output"] == true), "{trial}");
        for c in candidates {
            let inside = c["inside"].as_array().unwrap().len();
            for step in c["steps"].as_array().unwrap() {
                assert!(step["wgsl"].as_str().unwrap().contains("fn main"), "{step}");
                assert!(
                    step["workgroups"].as_array().unwrap().iter().all(|n| n.as_u64().unwrap() > 0),
                    "{step}"
                );
                let numbers = step["bindings"].as_array().unwrap().iter().map(|b| b[0].as_u64().unwrap());
                assert!(numbers.clone().all(|n| (n as usize) < buffers.len() + inside), "{step}");
            }
        }
        let other = &candidates.last().unwrap()["schedule"];
        let key = trial["key"].as_str().unwrap();
        let table = json!({ "version": answer["version"], "choices": { key: other } }).to_string();
        assert!(has(&chosen(json!({ "tuning": table })), other), "{other} is not obeyed");
        let (rest, _) = asked(&model, &files, json!({ "trials": { "most": 3, "known": [key] } }));
        assert_eq!(rest["trials"].as_array().unwrap().len(), trials.len() - 1);
    }
    assert_eq!(chosen(json!({ "tuning": "{\"version\": 1}" })), own);
}
