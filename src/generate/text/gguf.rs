//! The settings in the metadata of a GGUF file.

#[cfg(test)]
mod tests;

use crate::generate::{Defaults, Pooling};
pub use wgfc_compiler::import::gguf::tokenizer;
use wgfc_compiler::import::gguf::{Header, end_tokens};

/// The settings that the metadata recommends: the tokens that end a text or a turn.
pub fn defaults(header: &Header<'_>) -> Defaults {
    Defaults { stop: end_tokens(header), ..Defaults::default() }
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
