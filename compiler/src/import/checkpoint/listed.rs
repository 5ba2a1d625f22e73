//! The tensors that a checkpoint has by its configuration alone, for weights that are made up.

use super::config::Family;
use super::tensors::Names;
use super::{HELP, config, object, text_config};
use crate::import::decoder::{Description, LayerPart as P, Part};
use crate::{Diagnostic, Errors};
use serde_json::{Map, Value as Json};
use wgfc_ir::DType;

/// The maximum number of tensors.
const MOST_TENSORS: usize = 1 << 20;

/// A tensor of a checkpoint: its name, type and shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The name, as transformers writes it.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<usize>,
}

/// The tensors of a checkpoint of which `bytes` is the `config.json`.
///
/// # Errors
/// The configuration is not valid, not supported, or has no `vocab_size`.
pub fn tensors(bytes: &[u8]) -> Result<Vec<Listed>, Errors> {
    let all = object(bytes)?;
    let text = text_config(&all);
    let (d, family) = config::describe(text)?;
    let count = |key: &str| text.get(key).and_then(Json::as_u64).and_then(|n| usize::try_from(n).ok());
    let Some(vocabulary) = count("vocab_size").filter(|n| (1..1 << 24).contains(n)) else {
        let d = Diagnostic::model("the configuration has no `vocab_size`");
        return Err(d.help("add the number of tokens to the configuration").into());
    };
    let dtype = match text.get("dtype").or(text.get("torch_dtype")).and_then(Json::as_str) {
        Some("bfloat16") => DType::BF16,
        Some("float16") => DType::F16,
        _ => DType::F32,
    };
    let experts = d.experts.as_ref().map_or(0, |e| e.count);
    if d.layers.saturating_mul(experts) > MOST_TENSORS {
        let message =
            format!("{} layers of {experts} experts are more tensors than any checkpoint has", d.layers);
        return Err(Diagnostic::model(message).help(HELP).into());
    }
    let names = Names { family, prefix: "model.".into() };
    let mut parts = vec![(Part::Embedding, vec![vocabulary, d.width]), (Part::FinalNorm, vec![d.width])];
    let tied = text.get("tie_word_embeddings").and_then(Json::as_bool);
    if !tied.unwrap_or(family == Family::Sandwiched) {
        parts.push((Part::Head, vec![vocabulary, d.width]));
    }
    for i in 0..d.layers {
        parts.extend(layer(&d, family, text).into_iter().map(|(p, shape)| (Part::Layer(i, p), shape)));
    }
    let each = parts.into_iter().flat_map(|(part, shape)| {
        names.of(part, &|i, _| i < experts).into_iter().map(move |name| Listed {
            name,
            dtype,
            shape: shape.clone(),
        })
    });
    Ok(each.collect())
}

/// The parts of a layer, with the shape of one tensor.
fn layer(d: &Description, family: Family, all: &Map<String, Json>) -> Vec<(P, Vec<usize>)> {
    let kind = all.get("model_type").and_then(Json::as_str).unwrap_or_default();
    let (q, kv) = (d.heads.0 * d.head, d.heads.1 * d.head);
    let width = || vec![d.width];
    let mut out = vec![(P::AttentionNorm, width()), (P::FeedForwardNorm, width())];
    if family == Family::Sandwiched {
        out.extend([(P::AttentionOutputNorm, width()), (P::FeedForwardOutputNorm, width())]);
    }
    let merged = kind == "phi3";
    if merged {
        out.push((P::QueryKeyValue, vec![q + 2 * kv, d.width]));
    } else {
        out.extend([P::Query, P::Key, P::Value].into_iter().zip([q, kv, kv].map(|n| vec![n, d.width])));
    }
    if kind == "qwen2" || all.get("attention_bias").and_then(Json::as_bool) == Some(true) {
        out.extend([P::QueryBias, P::KeyBias, P::ValueBias].into_iter().zip([q, kv, kv].map(|n| vec![n])));
    }
    if matches!(kind, "qwen3" | "qwen3_moe" | "gemma3_text") {
        out.extend([(P::QueryNorm, vec![d.head]), (P::KeyNorm, vec![d.head])]);
    }
    out.push((P::Output, vec![d.width, q]));
    match &d.experts {
        Some(e) => out.extend([
            (P::Router, vec![e.count, d.width]),
            (P::ExpertGates, vec![e.hidden, d.width]),
            (P::ExpertUps, vec![e.hidden, d.width]),
            (P::ExpertDowns, vec![d.width, e.hidden]),
        ]),
        None if merged => out.push((P::GateUp, vec![2 * d.hidden, d.width])),
        None => out.extend([(P::Gate, vec![d.hidden, d.width]), (P::Up, vec![d.hidden, d.width])]),
    }
    if d.experts.is_none() {
        out.push((P::Down, vec![d.width, d.hidden]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    /// The names and shapes in the header of a file of safetensors.
    fn in_file(path: &Path) -> BTreeMap<String, Vec<usize>> {
        let bytes = std::fs::read(path).unwrap();
        let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        all.iter().map(|(name, t)| (name.to_owned(), t.shape().to_vec())).collect()
    }

    #[test]
    fn tensors_are_those_that_transformers_saves() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/decoders");
        let mut compared = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let model = entry.unwrap().path();
            let Ok(config) = std::fs::read(model.join("config.json")) else { continue };
            let listed = tensors(&config).unwrap_or_else(|e| panic!("{}: {e}", model.display()));
            let listed: BTreeMap<_, _> = listed.into_iter().map(|t| (t.name, t.shape)).collect();
            assert_eq!(listed, in_file(&model.join("model.safetensors")), "{}", model.display());
            compared += 1;
        }
        assert!(compared > 8, "{compared} models");
    }

    #[test]
    fn configurations_of_no_checkpoint_are_refused() {
        let said = |more: &str| {
            let config = format!(
                r#"{{"model_type": "mixtral", "num_hidden_layers": 1000, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1{more}}}"#
            );
            tensors(config.as_bytes()).unwrap_err().to_string()
        };
        assert!(said("").contains("no `vocab_size`"));
        let many = r#", "vocab_size": 9, "num_local_experts": 9000000, "num_experts_per_tok": 2"#;
        assert!(said(many).contains("9000000 experts"));
    }
}
