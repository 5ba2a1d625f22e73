//! Importer of checkpoints of the package transformers: `config.json`, and weights in safetensors beside it.
//!
//! `config` reads the parameters of the architecture, from which [`decoder`] makes the graph, and `tensors` the
//! weights, which keep the type that they have in the files.

mod config;
mod listed;
mod tensors;
#[cfg(test)]
mod tests;

pub use listed::{Listed, tensors};

use super::decoder;
use super::{ExternalData, Imported};
use crate::budget::Budget;
use crate::{Diagnostic, Errors, Options};
use serde_json::{Map, Value as Json};

/// Advice on checkpoints that cannot be read.
const HELP: &str = "download the checkpoint again, or save the model again with save_pretrained";
/// The maximum size of `config.json` in bytes.
const MOST_BYTES: usize = 1 << 20;

/// Whether these bytes are those of a `config.json` of transformers.
pub fn is_config(bytes: &[u8]) -> bool {
    let key = b"\"model_type\"";
    let json = bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    json && bytes.len() <= MOST_BYTES && bytes.windows(key.len()).any(|w| w == key)
}

/// Imports a checkpoint, of which `bytes` is the `config.json`. All errors are collected.
///
/// # Errors
/// The faults of the checkpoint, or the parts that are not supported.
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    let budget = Budget::new(bytes.len() as u64, options.memory_limit);
    budget.take_json(bytes)?;
    let all = object(bytes)?;
    let (description, family) = config::describe(text_config(&all))?;
    let mut weights = tensors::Tensors::open(family, external, &budget, options.graph_only)?;
    decoder::build(&description, &mut weights, options, HELP)
}

/// The keys of a `config.json`.
fn object(bytes: &[u8]) -> Result<Map<String, Json>, Errors> {
    let json: Json = serde_json::from_slice(bytes)
        .map_err(|e| Diagnostic::model(format!("the configuration is not JSON: {e}")).help(HELP))?;
    match json {
        Json::Object(all) => Ok(all),
        _ => Err(Diagnostic::model("the configuration is no JSON object").help(HELP).into()),
    }
}

/// The configuration of the language model of a model of several.
fn text_config(all: &Map<String, Json>) -> &Map<String, Json> {
    match all.get("text_config") {
        Some(Json::Object(text)) => text,
        _ => all,
    }
}
