//! Small files that ask for much: each is read or refused within a bound of memory and time, and says which flag raises it.

use crate::archives::{archive, records};
use crate::{command, fixture, folder, wgfc};
use prost::Message;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use wgfc_compiler::import::onnx::*;

/// Resident bytes that a command may take, and how long; builds without optimisations take longer.
const MOST_BYTES: u64 = 1 << 30;
const MOST_TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 10 });

struct Cost {
    code: Option<i32>,
    bytes: u64,
    time: Duration,
    text: String,
}

/// Runs a command, and looks at its memory as long as it runs.
fn cost(dir: &Path, words: &str) -> Cost {
    let start = Instant::now();
    let mut child = command(dir, words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let text = std::thread::spawn(move || {
        let mut text = vec![];
        stderr.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut bytes = 0;
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        let peak = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = peak
            .lines()
            .find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        bytes = bytes.max(peak.unwrap_or(0) << 10);
        if start.elapsed() > MOST_TIME || bytes > MOST_BYTES {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(4));
    };
    Cost { code, bytes, time: start.elapsed(), text: text.join().unwrap() }
}

fn files(folder: &str) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(fixture(folder)).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

/// The archive of a fixture with some of its records replaced.
fn edited(to: &Path, edit: impl Fn(&str, Vec<u8>) -> Vec<u8>) {
    let all = records(Path::new(&fixture("hostile/stride-0-consistent.pt2")));
    let all: Vec<(String, Vec<u8>)> = all.into_iter().map(|(n, b)| (n.clone(), edit(&n, b))).collect();
    archive(to, &all);
}

/// A model of so many nodes without a word in them.
fn empty_nodes(count: usize) -> Vec<u8> {
    let graph = GraphProto { node: vec![NodeProto::default(); count], ..Default::default() };
    let opset_import = vec![OperatorSetIdProto { version: 21, ..Default::default() }];
    ModelProto { ir_version: 10, opset_import, graph: Some(graph), ..Default::default() }.encode_to_vec()
}

/// Products of 32 × 32, one after another.
fn chain(count: usize) -> Vec<u8> {
    products(count, 32)
}

/// Products of square matrices, one after another.
pub fn products(count: usize, size: usize) -> Vec<u8> {
    let name = |i: usize| format!("x{i}");
    let node = |i: usize| NodeProto {
        op_type: "MatMul".into(),
        input: vec![name(i), "w".into()],
        output: vec![name(i + 1)],
        ..Default::default()
    };
    let values = wgfc::Tensor::from_f32(vec![size, size], &vec![0.01; size * size]);
    let port =
        |name: String| ValueInfoProto { name, r#type: Some(TypeProto::of(wgfc::DType::F32, &[3, size])) };
    let graph = GraphProto {
        name: "g".into(),
        node: (0..count).map(node).collect(),
        initializer: vec![TensorProto::of("w", &values)],
        input: vec![port(name(0))],
        output: vec![port(name(count))],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { version: 21, ..Default::default() }];
    ModelProto { ir_version: 10, opset_import, graph: Some(graph), ..Default::default() }.encode_to_vec()
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_small_file_costs_is_bounded() {
    let d = folder();
    let mut all = files("repro");
    all.extend(files("hostile"));
    let made = |name: &str| d.path().join(name);
    edited(&made("storages.pt2"), |name, bytes| match name.contains("/weight_") {
        true => vec![0; 96 << 20],
        false => bytes,
    });
    edited(&made("json.pt2"), |name, bytes| match name.ends_with("models/model.json") {
        true => {
            let node = r#"{"target":"x","inputs":[],"outputs":[],"metadata":{}},"#;
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.contains("\"nodes\": ["));
            text.replacen("\"nodes\": [", &format!("\"nodes\": [{}", node.repeat(1_000_000)), 1).into_bytes()
        }
        false => bytes,
    });
    std::fs::write(made("nodes.onnx"), empty_nodes(3_000_000)).unwrap();
    std::fs::write(made("chain.onnx"), chain(2000)).unwrap();
    all.extend(["storages.pt2", "json.pt2", "nodes.onnx", "chain.onnx"].map(made));
    let mut wrong = vec![];
    for file in all {
        for words in ["check", "inspect", "run|--cpu|--random-inputs"] {
            let c = cost(d.path(), &format!("{words}|{}", file.display()));
            let said = c.code.is_some_and(|code| code == 0 || code < 4 && c.text.contains("error"));
            if !said || c.bytes > MOST_BYTES || c.time > MOST_TIME {
                let (mb, shown) = (c.bytes >> 20, file.file_name().unwrap().display());
                wrong.push(format!("{words} {shown}: {:?}, {mb} MB, {:?}: {}", c.code, c.time, c.text));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn limits_are_said_and_can_be_raised() {
    let d = folder();
    let strides = fixture("hostile/stride-0-consistent.pt2");
    wgfc(d.path(), &format!("inspect|{strides}"))
        .exits(1)
        .says("in order would take 1074 MB of memory")
        .says("reading this model of 9 kB may take 269 MB")
        .says("--memory-limit 1344MB");
    let pickle = fixture("hostile/pickle-1M-x-300.pt2");
    wgfc(d.path(), &format!("check|{pickle}")).exits(1).says("more than 64 axes");
    let mlp = crate::mlp();
    wgfc(d.path(), &format!("check|{mlp}|--memory-limit|1kB")).exits(1).says("decoding the model's messages");
    wgfc(d.path(), &format!("check|{mlp}|--memory-limit|1MB")).exits(0);
    let loops = fixture("repro/loops6x64.onnx");
    wgfc(d.path(), &format!("run|{loops}|--cpu|--random-inputs"))
        .exits(1)
        .says("iterations of nested loops are asked for")
        .says("--iteration-limit");
}

#[test]
fn missing_weights_are_one_error_a_file() {
    let d = folder();
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
    let tensor = |i: usize| TensorProto {
        name: format!("w{i}"),
        dims: vec![1024],
        data_type: 1,
        data_location: 1,
        external_data: vec![entry("location", format!("part{}.bin", i % 2))],
        ..Default::default()
    };
    let mut model = ModelProto::decode(&*chain(1)).unwrap();
    model.graph.as_mut().unwrap().initializer.extend((0..100).map(tensor));
    let node = |i: usize| NodeProto {
        op_type: "Relu".into(),
        input: vec![format!("w{i}")],
        output: vec![format!("r{i}")],
        ..Default::default()
    };
    let graph = model.graph.as_mut().unwrap();
    graph.node.extend((0..100).map(node));
    graph.output.extend((0..100).map(|i| ValueInfoProto { name: format!("r{i}"), r#type: None }));
    std::fs::write(d.path().join("m.onnx"), model.encode_to_vec()).unwrap();
    for words in ["compile|m.onnx|-o|out", "run|m.onnx|--cpu|--random-inputs"] {
        let ran = wgfc(d.path(), words).exits(1);
        assert_eq!(ran.err.matches("error").count(), 2, "{}", ran.err);
        let folder = d.path().canonicalize().unwrap();
        let said = |i: u32| {
            format!("external data is missing: `part{i}.bin`, of 50 tensors, is not in {}", folder.display())
        };
        ran.says(&said(0)).says(&said(1)).omits("w37");
    }
    wgfc(d.path(), "check|m.onnx")
        .exits(0)
        .says("weights are missing, of 100 tensors: part0.bin, part1.bin (looked for in .)");
    wgfc(d.path(), "run|m.onnx|--cpu|--random-inputs|--random-weights").exits(0);
}

#[test]
fn operators_of_classical_machine_learning_say_what_to_do() {
    let d = folder();
    for (op, says) in [
        ("TreeEnsembleRegressor", "hummingbird-ml"),
        ("SVMClassifier", "hummingbird-ml"),
        ("ZipMap", "zipmap=False"),
        ("OneHotEncoder", "encode categories as numbers"),
    ] {
        let mut model = ModelProto::decode(&*chain(1)).unwrap();
        let graph = model.graph.as_mut().unwrap();
        (graph.node[0].op_type, graph.node[0].domain) = (op.into(), "ai.onnx.ml".into());
        model.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".into(), version: 3 });
        std::fs::write(d.path().join("m.onnx"), model.encode_to_vec()).unwrap();
        wgfc(d.path(), "check|m.onnx").exits(2).says(&format!("ai.onnx.ml.{op} is not supported")).says(says);
    }
}
