//! Tests that lowering is independent of the source format and works without a model.

use super::conv::{Conv, conv};
use super::window::{Padding, Window};
use super::*;
use std::path::{Path, PathBuf};
use wgfc_ir::{DType, Dim, Graph, Poly, TensorType, Value};

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("lower/tests.rs") {
            out.push(path);
        }
    }
}

/// A source format only adds decoding: no file here reads a message, an attribute or an operator version.
#[test]
fn lowering_knows_no_format() {
    let mut files = vec![];
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lower"), &mut files);
    assert!(files.len() > 30, "{} files", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (i, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for word in ["onnx", "prost", "proto", "import::", "opset", "attribute"] {
                assert!(!lower.contains(word), "{}:{}: `{word}` in: {line}", file.display(), i + 1);
            }
        }
    }
}

fn input(g: &mut Graph, name: &str, dtype: DType, dims: &[&str]) -> Value {
    let dims: Vec<Dim> = dims.iter().map(|d| Poly::parse(d).unwrap()).collect();
    g.add_input(name, TensorType::new(dtype, dims))
}

/// A source format sets the place of an operator and calls its function with values and parameters.
#[test]
fn operators_are_lowered_without_a_model() {
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &["n", "6", "9", "h"]);
    let w = input(&mut g, "w", DType::F32, &["4", "3", "3", "2"]);
    let bias = input(&mut g, "bias", DType::F32, &["4"]);
    let mut cx = Lowering::new(&mut g);
    cx.at(Place::new("layer1/conv", "features"));
    let p = Conv { window: Window { padding: Padding::around(2, 1), ..Window::plain(2) }, groups: 2 };
    let y = conv(&mut cx, x, w, Some(bias), &p).unwrap();
    assert_eq!(cx.ty(y).to_string(), "f32[n, 4, 9, h + 1]");
    assert_eq!(cx.graph.node(y.node).origin, ["layer1/conv".into()]);

    // A size computed at run time is named after the result.
    cx.at(Place::new("layer2/nonzero", "places"));
    let places = chosen::non_zero(&mut cx, y).unwrap();
    assert_eq!(cx.ty(places).to_string(), "i64[4, n_places]");
    assert!(cx.finish().warnings.is_empty());
    wgfc_ir::verify::verify(&g).unwrap();
}

/// An error says which operand or parameter it is about; the source format translates that.
#[test]
fn errors_say_what_they_are_about() {
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &["2", "3", "8"]);
    let w = input(&mut g, "w", DType::F32, &["4", "3", "3"]);
    let mut cx = Lowering::body(&mut g);
    let part = |r: Result| r.unwrap_err().part;
    let p = Conv { window: Window::plain(1), groups: 0 };
    assert_eq!(part(conv(&mut cx, x, w, None, &p)), Some(Part::Param("groups")));
    let p = Conv { window: Window::plain(2), groups: 1 };
    assert_eq!(part(conv(&mut cx, x, w, None, &p)), Some(Part::Param("strides")));
    assert_eq!(part(gather::gather(&mut cx, x, w, 0)), Some(Part::Operand(w)));
    // Branches and bodies compute no sizes; the inputs whose values would be needed are recorded.
    assert_eq!(part(chosen::non_zero(&mut cx, x)), Some(Part::Operand(x)));
    assert_eq!(Vec::from_iter(cx.finish().data_inputs), ["x"]);
}

/// The attention kernel holds values of at most 256 elements; wider ones are lowered to products and a softmax.
#[test]
fn attention_of_wide_values_is_products() {
    for (width, raised) in [("256", 1), ("257", 0)] {
        let mut g = Graph::new();
        let [q, k] = ["q", "k"].map(|n| input(&mut g, n, DType::F32, &["n", "2", "t", "8"]));
        let v = input(&mut g, "v", DType::F32, &["n", "2", "t", width]);
        let mut cx = Lowering::new(&mut g);
        cx.at(Place::new("attention", "y"));
        let o = attention::Operands { qkv: [q, k, v], past: None, lengths: None, mask: None };
        let p =
            attention::Attention { heads: None, left: None, right: None, scale: None, cap: 0.0, show: None };
        let y = attention::attention(&mut cx, &o, &p).unwrap().y;
        assert_eq!(cx.ty(y).to_string(), format!("f32[n, 2, t, {width}]"));
        let made = g.node_ids().filter(|n| matches!(g.node(*n).op, wgfc_ir::Op::Attention { .. })).count();
        assert_eq!(made, raised);
    }
}
