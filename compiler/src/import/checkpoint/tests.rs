//! Faults of checkpoints are said, all at once.

use super::*;
use crate::import::Format;
use serde_json::json;
use std::sync::Arc;
use wgfc_ir::tensor::ByteOwner;

/// Files in memory.
struct Files(Vec<(&'static str, Vec<u8>)>);

impl ExternalData for Files {
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
        let found = self.0.iter().find(|(name, _)| *name == location);
        found
            .map(|(_, b)| -> Arc<dyn ByteOwner> { Arc::new(b.clone()) })
            .ok_or_else(|| "no such file".to_owned())
    }
}

fn config() -> Json {
    json!({
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 12,
        "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
    })
}

/// The bytes of a safetensors file of zeros in f32.
fn weights(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let (mut header, mut at) = (Map::new(), 0);
    for (name, shape) in tensors {
        let n = 4 * shape.iter().product::<usize>();
        header.insert((*name).into(), json!({"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}));
        at += n;
    }
    let header = Json::Object(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + at, 0);
    out
}

const TENSORS: &[(&str, &[usize])] = &[
    ("model.embed_tokens.weight", &[5, 8]),
    ("model.norm.weight", &[8]),
    ("model.layers.0.input_layernorm.weight", &[8]),
    ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
    ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
    ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
    ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
    ("model.layers.0.post_attention_layernorm.weight", &[8]),
    ("model.layers.0.mlp.gate_proj.weight", &[12, 8]),
    ("model.layers.0.mlp.up_proj.weight", &[12, 8]),
    ("model.layers.0.mlp.down_proj.weight", &[8, 12]),
];

fn said(config: &Json, files: Vec<(&'static str, Vec<u8>)>) -> Vec<String> {
    let errors = import(config.to_string().as_bytes(), &Files(files), &Options::default()).err();
    errors.map(|e| e.0).unwrap_or_default().into_iter().map(|d| d.message).collect()
}

#[test]
fn checkpoints_in_one_part_and_in_several_are_imported() {
    assert_eq!(Format::of(config().to_string().as_bytes()), Format::Checkpoint);
    assert_eq!(said(&config(), vec![("model.safetensors", weights(TENSORS))]), [""; 0]);
    let (a, b) = TENSORS.split_at(4);
    let place = |all: &[(&str, &[usize])], file: &str| {
        all.iter().map(|(n, _)| ((*n).to_owned(), file.into())).collect::<Vec<(String, Json)>>()
    };
    let map: Map<String, Json> =
        [place(a, "a.safetensors"), place(b, "b.safetensors")].concat().into_iter().collect();
    let index = json!({ "weight_map": map }).to_string().into_bytes();
    let parts = || {
        vec![
            ("model.safetensors.index.json", index.clone()),
            ("a.safetensors", weights(a)),
            ("b.safetensors", weights(b)),
        ]
    };
    assert_eq!(said(&config(), parts()), [""; 0]);
    let mut missing = parts();
    missing.remove(2);
    assert_eq!(said(&config(), missing), ["the file `b.safetensors` cannot be opened: no such file"]);
}

#[test]
fn faults_of_configurations_are_said_together() {
    let whole = || vec![("model.safetensors", weights(TENSORS))];
    let mut c = config();
    c["hidden_size"] = json!("wide");
    c["hidden_act"] = json!("relu6");
    c["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0});
    c["quantization_config"] = json!({"quant_method": "gptq"});
    assert_eq!(
        said(&c, whole()),
        [
            "the checkpoint's weights are quantised (`quantization_config`)",
            "`hidden_size` is \"wide\", not a number between 1 and 16777216",
            "the activation `relu6` is not supported",
            "rotary embeddings of the type `yarn` are not supported",
        ]
    );
    c["model_type"] = json!("bert");
    assert_eq!(said(&c, whole()), ["models of the type `bert` are not supported"]);
    assert!(said(&json!([1, {"model_type": 1}]), whole())[0].contains("no JSON object"));
}

#[test]
fn faults_of_weights_are_said_together() {
    let mut tensors = TENSORS.to_vec();
    tensors[3].1 = &[6, 8];
    tensors.remove(9);
    let faults = said(&config(), vec![("model.safetensors", weights(&tensors))]);
    assert!(faults[0].contains("`model.layers.0.self_attn.q_proj.weight` is [6, 8]"), "{faults:?}");
    let mut cut = weights(TENSORS);
    cut.truncate(200);
    let faults = said(&config(), vec![("model.safetensors", cut)]);
    assert!(faults[0].contains("the file `model.safetensors` is no valid safetensors"), "{faults:?}");
    let faults = said(&config(), vec![("model.safetensors", weights(&TENSORS[1..]))]);
    assert!(faults[0].contains("no tensor whose name ends with `embed_tokens.weight`"), "{faults:?}");
}
