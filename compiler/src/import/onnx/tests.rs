//! Tests of whole models: inferred shapes and evaluated shape arithmetic.

use super::*;
use std::collections::BTreeMap;
use std::path::Path;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn graph_only(name: &str) -> Imported {
    let options = Options { graph_only: true, ..Default::default() };
    let imported =
        import(&fixture(name), &NoExternalData, &options).unwrap_or_else(|e| panic!("{name}:\n{e}"));
    if let Err(e) = wgfc_ir::verify::verify(&imported.graph) {
        panic!("{name}: {e:?}");
    }
    imported
}

fn types(m: &Imported) -> BTreeMap<String, String> {
    m.graph.outputs.iter().map(|o| (o.name.to_string(), m.graph.ty(o.value).to_string())).collect()
}

/// Small integer tensors that remain to be computed: neither inputs, nor constants, nor expressions of dimensions.
fn shape_arithmetic(m: &Imported) -> Vec<String> {
    let g = &m.graph;
    g.node_ids()
        .filter(|n| {
            let node = g.node(*n);
            let small = node.outputs.iter().all(|t| {
                t.dtype.is_int() && t.static_shape().is_some_and(|s| s.iter().product::<usize>() <= 1024)
            });
            small && !node.inputs.is_empty()
        })
        .map(|n| format!("{} {} {}", g.node(n).label(), g.node(n).op.name(), g.node(n).outputs[0]))
        .collect()
}

#[test]
fn convolutional_models() {
    for name in ["resnet50.onnx", "mobilenetv2.onnx"] {
        let m = graph_only(name);
        assert_eq!(types(&m)["logits"], "f32[batch, 1000]", "{name}");
        assert_eq!(shape_arithmetic(&m), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn bert() {
    let m = graph_only("bert-base.onnx");
    assert_eq!(types(&m)["last_hidden_state"], "f32[batch, seq, 768]");
    assert_eq!(shape_arithmetic(&m), Vec::<String>::new());
    assert_eq!(m.model_nodes, 588);
}

#[test]
fn qwen() {
    let m = graph_only("qwen2-2l.onnx");
    let t = types(&m);
    assert_eq!(t["logits"], "f32[1, seq, 151936]");
    for name in ["present.0.key", "present.0.value", "present.1.key", "present.1.value"] {
        assert_eq!(t[name], "f32[1, 2, past + seq, 64]", "{name}");
    }
    assert_eq!(shape_arithmetic(&m), Vec::<String>::new());
    assert_eq!(m.graph.constraints, vec![]);
}
