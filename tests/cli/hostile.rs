//! Small files that require large resources: each is read or refused within a bound of memory and time, and
//! the error names the flag that raises the limit.

use crate::archives::{archive, records};
use crate::{command, fixture, folder, wgfc};
use prost::Message;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use wgfc_compiler::import::onnx::*;

/// The limits of a command's resident bytes and processor time; builds without optimisations take longer.
const MOST_BYTES: u64 = 1 << 30;
const MOST_TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 10 });

struct Cost {
    code: Option<i32>,
    bytes: u64,
    time: Duration,
    text: String,
}

/// Runs a command and measures its memory while it runs.
fn cost(dir: &Path, words: &str) -> Cost {
    let start = Instant::now();
    let mut time = Duration::ZERO;
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
        time = processor_time(child.id()).unwrap_or(time);
        let peak = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = peak
            .lines()
            .find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        bytes = bytes.max(peak.unwrap_or(0) << 10);
        if time > MOST_TIME || start.elapsed() > 20 * MOST_TIME || bytes > MOST_BYTES {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(4));
    };
    Cost { code, bytes, time, text: text.join().unwrap() }
}

/// The processor time of a process, which does not depend on other processes; a tick is 10 ms on Linux.
fn processor_time(id: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The process name, which ends at the bracket, may contain blanks.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
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

/// A model of `count` nodes whose fields are all empty.
fn empty_nodes(count: usize) -> Vec<u8> {
    let graph = GraphProto { node: vec![NodeProto::default(); count], ..Default::default() };
    let opset_import = vec![OperatorSetIdProto { version: 21, ..Default::default() }];
    ModelProto { ir_version: 10, opset_import, graph: Some(graph), ..Default::default() }.encode_to_vec()
}

/// A chain of `count` products of 32 × 32 matrices.
fn chain(count: usize) -> Vec<u8> {
    products(count, 32)
}

/// A chain of `count` products of square matrices.
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

/// A loop of `trips` products of a square matrix with itself.
fn squarings(trips: i64, size: usize) -> Vec<u8> {
    let port = |name: &str, dtype, shape: &[usize]| ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto::of(dtype, shape)),
    };
    let node = |op: &str, input: &[&str], output: &[&str]| NodeProto {
        op_type: op.into(),
        input: input.iter().map(|s| (*s).into()).collect(),
        output: output.iter().map(|s| (*s).into()).collect(),
        ..Default::default()
    };
    use wgfc::DType::{Bool, F32, I64};
    let body = GraphProto {
        name: "body".into(),
        node: vec![node("Identity", &["go"], &["still"]), node("MatMul", &["s", "s"], &["t"])],
        input: vec![port("i", I64, &[]), port("go", Bool, &[]), port("s", F32, &[size, size])],
        output: vec![port("still", Bool, &[]), port("t", F32, &[size, size])],
        ..Default::default()
    };
    let body = AttributeProto { name: "body".into(), r#type: 5, g: Some(body), ..Default::default() };
    let mut repeat = node("Loop", &["trips", "", "x"], &["y"]);
    repeat.attribute.push(body);
    let graph = GraphProto {
        name: "g".into(),
        node: vec![repeat],
        initializer: vec![TensorProto::of("trips", &wgfc::Tensor::from_i64(vec![], &[trips]))],
        input: vec![port("x", F32, &[size, size])],
        output: vec![port("y", F32, &[size, size])],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { version: 21, ..Default::default() }];
    ModelProto { ir_version: 10, opset_import, graph: Some(graph), ..Default::default() }.encode_to_vec()
}

#[test]
fn work_in_loops_is_refused_before_it_is_done() {
    let d = folder();
    std::fs::write(d.path().join("long.onnx"), squarings(1_000_000, 256)).unwrap();
    let c = cost(d.path(), "run|long.onnx|--cpu|--random-inputs");
    assert_eq!(c.code, Some(1), "{}", c.text);
    assert!(c.text.contains("1000000 iterations of loops that make 1"), "{}", c.text);
    assert!(c.text.contains("--iteration-limit"), "{}", c.text);
    assert!(c.time < Duration::from_secs(5), "{:?}", c.time);
    std::fs::write(d.path().join("short.onnx"), squarings(3, 256)).unwrap();
    wgfc(d.path(), "run|short.onnx|--cpu|--random-inputs").exits(0);
    wgfc(d.path(), "run|short.onnx|--cpu|--random-inputs|--iteration-limit|100").exits(1);
}

#[cfg(unix)]
#[test]
fn the_evaluator_ends_at_once_when_it_is_told_to() {
    let d = folder();
    std::fs::write(d.path().join("m.onnx"), squarings(50_000, 256)).unwrap();
    let mut child =
        command(d.path(), "run|m.onnx|--cpu|--random-inputs").stderr(Stdio::piped()).spawn().unwrap();
    // The command prints where it runs before it begins.
    let mut first = [0; 8];
    child.stderr.as_mut().unwrap().read_exact(&mut first).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it has ended by itself");
    let start = Instant::now();
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    let status = child.wait().unwrap();
    assert!(!status.success() && start.elapsed() < Duration::from_secs(2), "{status} {:?}", start.elapsed());
}

#[test]
fn compiled_programs_draw_from_the_budget() {
    let d = folder();
    wgfc(d.path(), &format!("compile|{}|-o|out", crate::mlp())).exits(0);
    wgfc(d.path(), &format!("compile|{}|-o|one.wgfc", crate::mlp())).exits(0);
    for program in ["out", "one.wgfc"] {
        wgfc(d.path(), &format!("inspect|{program}|--memory-limit|1MB")).exits(0);
        wgfc(d.path(), &format!("inspect|{program}|--memory-limit|1kB"))
            .exits(1)
            .says("bytes of JSON would take")
            .says("--memory-limit");
    }
    // Weights that all refer to the same range of a file.
    wgfc(d.path(), &format!("compile|{}|-o|from.wgfc|--weights-from-model", crate::mlp())).exits(0);
    wgfc(d.path(), &format!("compile|{}|-o|from|--weights-from-model", crate::mlp())).exits(0);
    let plan = d.path().join("from/plan.json");
    let text = std::fs::read_to_string(&plan).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tensors = json["weights"]["tensors"].as_object().unwrap().clone();
    let (name, _) = tensors.iter().next().unwrap();
    let part = serde_json::json!({ "file": 1, "offset": 0, "bytes": 16 << 20 });
    let parts = vec![part; 100];
    json["weights"]["files"]
        .as_array_mut()
        .unwrap()
        .push(serde_json::json!({ "name": "zeros", "bytes": 16 << 20 }));
    json["weights"]["files"]
        .as_array_mut()
        .unwrap()
        .push(serde_json::json!({ "name": "more", "bytes": 1600u64 << 20 }));
    json["weights"]["tensors"][name] =
        serde_json::json!({ "dtype": "f32", "shape": [400 << 20], "parts": parts });
    std::fs::write(&plan, json.to_string()).unwrap();
    std::fs::File::create(d.path().join("from/zeros")).unwrap().set_len(16 << 20).unwrap();
    wgfc(d.path(), "inspect|from").exits(1).says("would take 1678 MB of memory").says("--memory-limit");
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
        .says("the weights of 100 tensors are missing: part0.bin, part1.bin (looked for in .)");
    wgfc(d.path(), "run|m.onnx|--cpu|--random-inputs|--random-weights").exits(0);
}

#[test]
fn operators_of_classical_machine_learning_say_what_to_do() {
    let d = folder();
    for (op, says) in [
        ("DictVectorizer", "SVMClassifier, SVMRegressor, Scaler, TreeEnsemble"),
        ("CastMap", "extract_model"),
        ("ZipMap", "zipmap=False"),
        ("CategoryMapper", "encode categories as numbers"),
    ] {
        let mut model = ModelProto::decode(&*chain(1)).unwrap();
        let graph = model.graph.as_mut().unwrap();
        (graph.node[0].op_type, graph.node[0].domain) = (op.into(), "ai.onnx.ml".into());
        model.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".into(), version: 3 });
        std::fs::write(d.path().join("m.onnx"), model.encode_to_vec()).unwrap();
        wgfc(d.path(), "check|m.onnx").exits(2).says(&format!("ai.onnx.ml.{op} is not supported")).says(says);
    }
}

/// A `.npy` file with this header and `data` bytes of data, as a sparse file.
fn array(to: &Path, header: &str, data: u64) {
    let mut bytes = b"\x93NUMPY\x02\x00".to_vec();
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(header.as_bytes());
    std::fs::write(to, &bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(to).unwrap();
    file.set_len(bytes.len() as u64 + data).unwrap();
}

/// A safetensors file with this header and no data.
fn tensors(to: &Path, header: &str) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    std::fs::write(to, bytes).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn files_beside_a_model_draw_from_a_budget() {
    let d = folder();
    let at = |name: &str| d.path().join(name);
    let port = |shape: &str| format!("{{'descr': '<f4', 'fortran_order': True, 'shape': ({shape}), }}");
    array(&at("axes.npy"), &port(&"1,".repeat(16 << 20)), 4);
    array(&at("noise.npy"), &"{".repeat(16 << 20), 4);
    array(&at("large.npy"), &port("1024, 1073741824"), 1 << 42);
    array(&at("fine.npy"), &port("3, 13"), 156);
    // A tensor whose file has two bytes per extent, and one whose file has two bytes per string.
    std::fs::write(at("axes.pb"), [8, 1].repeat(16 << 20)).unwrap();
    std::fs::write(at("texts.pb"), [0x32, 0].repeat(16 << 20)).unwrap();
    let mut wrong = vec![];
    let mut costs = |words: String, says: &str| {
        let c = cost(d.path(), &words);
        if c.code != Some(1) || c.bytes > MOST_BYTES || c.time > MOST_TIME || !c.text.contains(says) {
            let text: String = c.text.chars().take(400).collect();
            wrong.push(format!("{words}: {:?}, {} MB, {:?}: {text}", c.code, c.bytes >> 20, c.time));
        }
        if c.text.len() > 4000 {
            wrong.push(format!("{words}: {} bytes of text", c.text.len()));
        }
    };
    let mlp = crate::mlp();
    for (file, says) in [
        ("axes.npy", "has more than 64 axes"),
        ("noise.npy", "is not a .npy file"),
        ("large.npy", "MB are there"),
        ("axes.pb", "axes"),
        ("texts.pb", "would take"),
    ] {
        costs(format!("run|{mlp}|--cpu|--input|x={file}"), says);
        costs(format!("check|{mlp}|--like|x={file}"), says);
        costs(format!("check|{mlp}|--fix|x={file}"), says);
    }
    // The limit given by the user applies to all inputs together.
    wgfc(d.path(), &format!("run|{mlp}|--cpu|--input|x=fine.npy|--memory-limit|100kB")).exits(0);
    wgfc(d.path(), &format!("check|{mlp}|--like|x=fine.npy|--memory-limit|200"))
        .exits(1)
        .says("--memory-limit");

    // A checkpoint, and the tokenizer and the recommended settings of a decoder.
    let entry = r#""NAME":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"#;
    let many: String = (0..400_000).map(|i| entry.replace("NAME", &i.to_string())).collect();
    tensors(&at("many.safetensors"), &format!("{{{}}}", many.trim_end_matches(',')));
    tensors(&at("list.safetensors"), &format!("{{\"a\":[{}0]}}", "[],".repeat(8 << 20)));
    if !crate::train::is_skipped("files_beside_a_model") {
        let train = format!(
            "train|{}|--random-data|8|--batch|8|--input|rate=0.01|--steps|1|--adapter|software",
            fixture("torch/train_step.pt2")
        );
        for file in ["many", "list"] {
            for how in ["--resume", "--init"] {
                costs(format!("{train}|{how}|{file}.safetensors"), "");
            }
        }
        let limited = format!("{train}|--memory-limit|2MB|--init|many.safetensors");
        wgfc(d.path(), &limited).exits(1).says("bytes of JSON would take").says("--memory-limit");
    }
    let decoder = d.path().join("decoder");
    std::fs::create_dir(&decoder).unwrap();
    std::fs::copy(fixture("small/decoder/model.onnx"), decoder.join("model.onnx")).unwrap();
    let generate = "generate|decoder|--tokens|1|--max-new-tokens|1";
    for (name, text) in [
        ("tokenizer.json", format!("{{\"normalizer\":[{}0]}}", "[],".repeat(8 << 20))),
        ("tokenizer.json", format!("{{\"added_tokens\":[{}0]}}", "{},".repeat(8 << 20))),
        ("generation_config.json", format!("{{\"a\":[{}0]}}", "[],".repeat(8 << 20))),
    ] {
        std::fs::write(decoder.join(name), text).unwrap();
        costs(generate.into(), "bytes of JSON would take");
        std::fs::remove_file(decoder.join(name)).unwrap();
    }
    std::fs::write(decoder.join("generation_config.json"), "{}").unwrap();
    wgfc(d.path(), &format!("{generate}|--memory-limit|10kB")).exits(1).says("--memory-limit");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
