use serde_json::{Value, json};
use std::path::PathBuf;
use wgfc_compiler::requests::host::HostModel;
use wgfc_ir::remote::Files;
use wgfc_ir::{DType, Tensor};

/// No files.
struct Nothing;

impl Files for Nothing {
    fn read(&self, _: usize, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

fn opened(model: &[u8], request: &Value) -> (Value, Option<HostModel>) {
    let (answer, model) = HostModel::open(model, &request.to_string(), Box::new(Nothing));
    (serde_json::from_str(&answer.json).unwrap(), model)
}

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/small").join(name);
    std::fs::read(path.join("model.onnx")).unwrap()
}

fn ran(model: &HostModel, request: &Value, data: &[f32]) -> (Value, Vec<u8>) {
    let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    let answer = model.run(&request.to_string(), bytes);
    (serde_json::from_str(&answer.json).unwrap(), answer.data)
}

#[test]
fn a_model_is_opened_once_and_run_with_several_sizes() {
    let (answer, model) = opened(&fixture("mlp"), &json!({}));
    let (plan, model) = (&answer["plan"]["plans"][0], model.unwrap());
    assert_eq!(plan["inputs"][0]["shape"], json!(["batch", 13]));
    assert_eq!(plan["symbols"], json!(["batch"]));
    let mut before: Option<Vec<f32>> = None;
    for rows in [1, 3] {
        let data: Vec<f32> = (0..rows * 13).map(|i| (i % 13) as f32 / 13.0).collect();
        let request = json!({ "inputs": [{ "name": "x", "dtype": "f32", "shape": [rows, 13] }] });
        let (answer, data) = ran(&model, &request, &data);
        let outputs = answer["outputs"].as_array().unwrap();
        assert_eq!(outputs[0]["shape"], json!([rows, 5]));
        let bytes = data[..rows * 20].to_vec();
        let shares = Tensor::new(DType::F32, vec![rows, 5], bytes).unwrap().to_f32s().unwrap();
        shares.chunks(5).for_each(|row| assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5));
        // The first row is the same whatever follows it.
        if let Some(before) = before.replace(shares[..5].to_vec()) {
            assert!(before.iter().zip(&shares).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }
}

#[test]
fn runs_that_cannot_be_are_errors() {
    let (_, model) = opened(&fixture("mlp"), &json!({}));
    let model = model.unwrap();
    let input = |shape: Value| json!({ "inputs": [{ "name": "x", "dtype": "f32", "shape": shape }] });
    for (request, part) in [
        (json!({}), "input \"x\" of type f32[batch, 13] is not given"),
        (input(json!([2, 13])), "are outside the data"),
        (input(json!([1, 12])), "`13` is 13 and must be 12"),
        (input(json!([u32::MAX, u32::MAX, u32::MAX])), "overflows"),
        (json!({ "input": [] }), "the request is not what it should be"),
    ] {
        let (answer, data) = ran(&model, &request, &[0.5; 13]);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(part) && data.is_empty(), "{message}");
    }
}

#[test]
fn models_that_are_refused_are_errors() {
    for (model, request, kind, part) in [
        (b"no model".to_vec(), json!({}), "model", "not an ONNX model"),
        (b"PK\x03\x04 an archive".to_vec(), json!({}), "unsupported", "give an .onnx file"),
        (fixture("mlp")[..100].to_vec(), json!({}), "model", ""),
        (fixture("mlp"), json!({ "dims": { "nothing": 3 } }), "model", "nothing"),
        (fixture("mlp"), json!({ "fusion": 1 }), "internal", "the request is not what it should be"),
    ] {
        let (answer, model) = opened(&model, &request);
        assert!(model.is_none());
        assert_eq!(answer["errors"][0]["kind"], kind, "{answer}");
        assert!(answer["text"].as_str().unwrap().contains(part), "{answer}");
    }
}
