//! The tokenizer and the settings in the metadata of a GGUF file.

use super::vocabulary::{Vocabulary, tokenizer_json};
use crate::generate::{Defaults, Pooling};
use wgfc_compiler::import::gguf::{Header, Item};

/// The text of the `tokenizer.json` that a file's metadata describes; `None` if it has no tokenizer.
///
/// # Errors
/// The fault of the metadata, as a predicate.
pub fn tokenizer(header: &Header<'_>) -> Result<Option<Vec<u8>>, String> {
    let key = |k: &str| format!("tokenizer.ggml.{k}");
    let Some(tokens) = header.list(&key("tokens")) else { return Ok(None) };
    let text = |k: &str| header.text(&key(k)).map(str::to_owned);
    let id = |k: &str| header.int(&key(k)).and_then(|n| u32::try_from(n).ok());
    let truth = |k: &str| header.truth(&key(k));
    let items = |k: &str| header.list(&key(k)).into_iter().flat_map(|l| l.items());
    let texts = |all: &mut dyn Iterator<Item = Item<'_>>| {
        all.map(|i| i.as_text().map(str::to_owned))
            .collect::<Option<Vec<String>>>()
            .ok_or("has lists without texts")
    };
    let vocabulary = Vocabulary {
        model: text("model").ok_or("names no `tokenizer.ggml.model`")?,
        pre: text("pre"),
        tokens: texts(&mut tokens.items())?,
        scores: items("scores").map(|i| i.as_f64().unwrap_or(f64::NAN) as f32).collect(),
        types: items("token_type")
            .map(|i| i.as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(1))
            .collect(),
        merges: texts(&mut items("merges"))?,
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        unknown: id("unknown_token_id"),
        padding: id("padding_token_id"),
        add_bos: truth("add_bos_token"),
        add_eos: truth("add_eos_token"),
        add_space_prefix: truth("add_space_prefix"),
        remove_extra_spaces: truth("remove_extra_whitespaces"),
        charsmap: items("precompiled_charsmap").filter_map(|i| i.as_i64().map(|n| n as u8)).collect(),
    };
    tokenizer_json(&vocabulary).map(Some)
}

/// The settings that the metadata recommends: the tokens that end a text or a turn.
pub fn defaults(header: &Header<'_>) -> Defaults {
    let ends = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let mut stop: Vec<i64> = ends.iter().filter_map(|k| header.int(&format!("tokenizer.ggml.{k}"))).collect();
    stop.dedup();
    Defaults { stop, ..Defaults::default() }
}

/// How the metadata makes embeddings of hidden states, by llama.cpp's numbers.
pub fn pooling(header: &Header<'_>) -> Option<Pooling> {
    let architecture = header.text("general.architecture")?;
    match header.int(&format!("{architecture}.pooling_type"))? {
        1 => Some(Pooling::Mean),
        2 => Some(Pooling::Cls),
        3 => Some(Pooling::Last),
        _ => None,
    }
}
