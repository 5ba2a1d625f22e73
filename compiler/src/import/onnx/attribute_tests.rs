//! Tests that errors about forbidden attributes name the attribute, the node and the operator.

use super::messages::*;
use super::testing::*;
use wgfc_ir::DType::{F32, I64, U8};

/// The error of a node with these inputs in opset 22.
fn error_of(n: NodeProto, inputs: &[(&str, &str)]) -> String {
    let inputs = inputs
        .iter()
        .map(|(name, dims)| {
            let dtype = match name.as_bytes() {
                [b'i', ..] => I64,
                [b'u', ..] => U8,
                _ => F32,
            };
            value(name, dtype, dims)
        })
        .collect();
    let mut m = model(graph(vec![n.named("here")], inputs, vec![untyped("y")]));
    m.opset_import[0].version = 22;
    errors(&m)
}

#[test]
fn forbidden_attributes_are_named() {
    let image: &[(&str, &str)] = &[("x", "2 3 7 9"), ("w", "3 4 3 3"), ("g", "2 5 6 2"), ("s", "1")];
    let sequence: &[(&str, &str)] =
        &[("x", "5 2 3"), ("w", "1 4 3"), ("r", "1 4 4"), ("w4", "1 16 3"), ("r4", "1 16 4")];
    let cases = [
        (
            "axis",
            node("QuantizeLinear", &["x", "sv"], &["y"]).int("axis", 7),
            &[("x", "2 3"), ("sv", "3")][..],
        ),
        (
            "block_size",
            node("DequantizeLinear", &["u", "s"], &["y"]).int("block_size", -1),
            &[("u", "2 3"), ("s", "1")],
        ),
        ("output_dtype", node("QuantizeLinear", &["x", "s"], &["y"]).int("output_dtype", 1), image),
        ("mode", node("Resize", &["x", "", "sc"], &["y"]).text("mode", "best"), &[("x", "2 3"), ("sc", "2")]),
        (
            "coordinate_transformation_mode",
            node("Resize", &["x", "", "sc"], &["y"])
                .text("coordinate_transformation_mode", "tf_half_pixel_for_nn"),
            &[("x", "2 3"), ("sc", "2")],
        ),
        (
            "antialias",
            node("Resize", &["x", "", "sc"], &["y"]).int("antialias", 1),
            &[("x", "2 3"), ("sc", "2")],
        ),
        ("mode", node("GridSample", &["x", "g"], &["y"]).text("mode", "bilinear"), image),
        ("padding_mode", node("GridSample", &["x", "g"], &["y"]).text("padding_mode", "wrap"), image),
        ("group", node("ConvTranspose", &["x", "w"], &["y"]).int("group", 0), image),
        ("strides", node("ConvTranspose", &["x", "w"], &["y"]).ints("strides", &[0, 1]), image),
        ("auto_pad", node("ConvTranspose", &["x", "w"], &["y"]).text("auto_pad", "FULL"), image),
        ("output_padding", node("ConvTranspose", &["x", "w"], &["y"]).ints("output_padding", &[1]), image),
        ("kernel_shape", node("MaxUnpool", &["x", "i"], &["y"]), &[("x", "1 1 2 2"), ("i", "1 1 2 2")]),
        ("onesided", node("DFT", &["x"], &["y"]).int("onesided", 1), &[("x", "2 5 2")]),
        ("direction", node("RNN", &["x", "w", "r"], &["y"]).text("direction", "sideways"), sequence),
        ("hidden_size", node("RNN", &["x", "w", "r"], &["y"]).int("hidden_size", 9), sequence),
        ("clip", node("LSTM", &["x", "w4", "r4"], &["y"]).float("clip", -1.0), sequence),
        (
            "sampling_ratio",
            node("RoiAlign", &["x", "b", "i"], &["y"]).int("sampling_ratio", -2),
            &[("x", "1 2 7 7"), ("b", "3 4"), ("i", "3")],
        ),
    ];
    for (attribute, n, inputs) in cases {
        let operator = n.op_type.clone();
        let text = error_of(n, inputs);
        for part in [format!("`{attribute}`"), operator, "here".into()] {
            assert!(text.contains(&part), "{part} is not in: {text}");
        }
    }
}

/// Errors about a parameter of the lowering name the attribute or the input that sets it.
#[test]
fn parameters_are_decoded_under_their_names() {
    let read = |dir: &str| -> String {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
        let files = std::fs::read_dir(&dir).unwrap().flatten();
        files.filter_map(|f| std::fs::read_to_string(f.path()).ok()).collect()
    };
    // Some functions are called only by the importer of one format.
    let (lower, ops) = (read("src/lower"), read("src/import/onnx/ops") + &read("src/import/fx/ops"));
    let mut parameters: Vec<&str> =
        lower.split(".param(\"").skip(1).filter_map(|s| s.split('"').next()).collect();
    parameters.dedup();
    assert!(parameters.len() > 20, "{parameters:?}");
    for p in parameters {
        let attribute = super::cx::ATTRIBUTES.iter().find(|(name, _)| *name == p).map_or(p, |(_, a)| a);
        assert!(
            ops.contains(&format!("\"{attribute}\"")),
            "no operator has an attribute or a parameter {attribute}"
        );
    }
}
