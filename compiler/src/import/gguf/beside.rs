//! The files that would lie beside a language model, from the metadata of its GGUF file.

use super::header::{Header, Item};
use super::vocabulary::{Vocabulary, tokenizer_json};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The texts of `tokenizer.json`, `tokenizer_config.json` (special tokens and chat template) and `generation_config.json` (tokens that end
/// a text), by name, as far as the metadata describes them. A tokenizer that cannot be used is left out.
pub fn beside(header: &Header<'_>) -> BTreeMap<&'static str, String> {
    let tokenizer = tokenizer(header).ok().flatten().and_then(|json| String::from_utf8(json).ok());
    let mut config: Map<String, Value> =
        special_tokens(header).into_iter().map(|(k, v)| (k, v.into())).collect();
    config.extend(header.text("tokenizer.chat_template").map(|t| ("chat_template".to_owned(), t.into())));
    let ends = end_tokens(header);
    let config = (!config.is_empty()).then(|| Value::Object(config).to_string());
    let generation = (!ends.is_empty()).then(|| json!({ "eos_token_id": ends }).to_string());
    let files = [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config),
        ("generation_config.json", generation),
    ];
    files.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
}

/// The special tokens by the names of their variables, such as `bos_token`.
pub fn special_tokens(header: &Header<'_>) -> Vec<(String, String)> {
    let tokens = header.list("tokenizer.ggml.tokens");
    let special = ["bos", "eos", "unk", "pad"].into_iter().filter_map(|name| {
        let key = match name {
            "unk" => "unknown",
            "pad" => "padding",
            name => name,
        };
        let id = usize::try_from(header.int(&format!("tokenizer.ggml.{key}_token_id"))?).ok()?;
        let text = tokens?.items().nth(id)?.as_text()?.to_owned();
        Some((format!("{name}_token"), text))
    });
    special.collect()
}

/// The tokens that end a text or a turn.
pub fn end_tokens(header: &Header<'_>) -> Vec<i64> {
    let ends = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let mut stop: Vec<i64> = ends.iter().filter_map(|k| header.int(&format!("tokenizer.ggml.{k}"))).collect();
    stop.dedup();
    stop
}

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
