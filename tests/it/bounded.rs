//! Small models that could take unbounded time or memory to compile are compiled within fixed limits, or
//! refused with a reason.

use prost::Message;
use std::path::Path;
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::import::onnx::*;
use wgfc_compiler::{Fusion, Kind, Options, compile};

#[test]
fn small_models_make_programs_of_bounded_size() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/repro");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let models = files.into_iter().filter(|f| f.extension().is_some_and(|e| e == "onnx"));
    for file in models {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&file).unwrap();
        for fusion in [Fusion::Full, Fusion::Elementwise] {
            match compile(&bytes, &NoExternalData, &Options { fusion, ..Options::default() }) {
                Ok(p) => {
                    let text: usize = p.kernels.iter().map(|k| k.wgsl.len()).sum();
                    assert!(text < 4 << 20, "{name}: {text} bytes of kernels");
                    assert!(p.dispatches.len() < 5000, "{name}: {} dispatches", p.dispatches.len());
                }
                Err(errors) => {
                    let internal = errors.0.iter().find(|e| e.kind == Kind::Internal);
                    assert!(internal.is_none(), "{name}: {internal:?}");
                }
            }
        }
    }
}

fn node(op: &str, input: Vec<String>, output: Vec<String>, axis: bool) -> NodeProto {
    let r#type = attribute_type::INT;
    let axis = axis.then(|| AttributeProto { name: "axis".into(), r#type, ..Default::default() });
    NodeProto {
        op_type: op.into(),
        input,
        output,
        attribute: axis.into_iter().collect(),
        ..Default::default()
    }
}

fn model(node: Vec<NodeProto>, input: Vec<String>, length: i64, output: Vec<String>) -> Vec<u8> {
    let port = |name: String| {
        let extent = DimensionProto { value: Some(DimensionValue::Value(length)) };
        let ty = TensorTypeProto { elem_type: 1, shape: Some(TensorShapeProto { dim: vec![extent] }) };
        ValueInfoProto { name, r#type: Some(TypeProto { value: Some(TypeValue::Tensor(ty)) }) }
    };
    let output = output.into_iter().map(|name| ValueInfoProto { name, r#type: None }).collect();
    let input = input.into_iter().map(port).collect();
    let graph = GraphProto { node, name: "g".into(), input, output, ..Default::default() };
    let sets = vec![OperatorSetIdProto { domain: String::new(), version: 17 }];
    ModelProto { ir_version: 8, graph: Some(graph), opset_import: sets, ..Default::default() }.encode_to_vec()
}

/// Models with `n` nodes, operands or results of one kind, and whether each model has them at a single node
/// or at the inputs and outputs of the graph.
fn of_many(n: usize) -> Vec<(&'static str, bool, Vec<u8>)> {
    let x = || vec!["x".to_owned()];
    let y = || vec!["y".to_owned()];
    let all = |name: &str| (0..n).map(|i| format!("{name}{i}")).collect::<Vec<_>>();
    let split = || node("Split", x(), all("p"), true);
    let join = |from: &str| node("Concat", all(from).into_iter().rev().collect(), y(), true);
    let each = || (0..n).map(|i| node("Exp", vec![format!("p{i}")], vec![format!("q{i}")], false));
    let step = |i: usize| node("Add", vec![format!("s{i}"); 2], vec![format!("s{}", i + 1)], false);
    let last = vec![format!("s{n}")];
    let whole = vec![split()].into_iter().chain(each()).chain([join("q")]).collect();
    let wide = (0..n).map(|i| node("Exp", x(), vec![format!("p{i}")], false)).collect();
    vec![
        ("split", true, model(vec![split()], x(), n as i64, all("p"))),
        ("concat", true, model(vec![node("Concat", vec!["x".into(); n], y(), true)], x(), 2, y())),
        ("split-concat", true, model(vec![split(), join("p")], x(), n as i64, y())),
        ("split-each-concat", true, model(whole, x(), n as i64, y())),
        ("concat-inputs", true, model(vec![join("p")], all("p"), 2, y())),
        ("inputs", true, model(vec![node("Sum", all("p"), y(), false)], all("p"), 4, y())),
        ("outputs", true, model(wide, x(), 4, all("p"))),
        ("chain", false, model((0..n).map(step).collect(), vec!["s0".into()], 4, last)),
    ]
}

/// `scripts/bounded.py` measures the time and memory that these take.
#[test]
fn what_is_many_is_compiled_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bounded");
    std::fs::create_dir_all(&folder).expect("target/ is writable");
    for n in [300, 4096, 100_000] {
        for (name, at_once, bytes) in of_many(n) {
            std::fs::write(folder.join(format!("{name}-{n}.onnx")), &bytes).expect("target/ is writable");
            if n == 4096 || n > 4096 && !at_once {
                continue;
            }
            match compile(&bytes, &NoExternalData, &Options::default()) {
                Ok(_) => assert!(n < 4096, "{name}-{n} compiles"),
                Err(e) => {
                    assert!(n > 4096, "{name}-{n}: {e}");
                    assert!(e.to_string().contains("at most 4096 are supported"), "{name}-{n}: {e}");
                    assert!(e.0.iter().all(|d| d.kind == Kind::Unsupported), "{name}-{n}: {e}");
                }
            }
        }
    }
}
