//! A tokenizer that neither panics nor runs for ever, whatever its file says.

use super::bounds::{Growth, look_through};
use crate::generate::apart::{apart, caught};
use std::sync::Arc;
use std::time::Duration;
use tokenizers::Tokenizer;
use tokenizers::tokenizer::step_decode_stream;

/// The time limit for reading a tokenizer or encoding a text: this duration, and as much again for each block of this many
/// bytes. No count bounds the time of regular expressions that backtrack; one that exceeds the limit is assumed not to end.
const PATIENCE: (Duration, usize) = (Duration::from_secs(60), 1 << 16);

/// A tokenizer whose file has been checked.
pub struct Guarded {
    inner: Arc<Tokenizer>,
    growth: Growth,
}

/// The state of [`Guarded::push`] between tokens.
#[derive(Default)]
pub struct Stream {
    ids: Vec<u32>,
    prefix: String,
    at: usize,
}

impl Guarded {
    /// Reads a `tokenizer.json`. Its padding and truncation, which concern batches, are ignored.
    pub fn read(json: Vec<u8>) -> Result<Guarded, String> {
        let growth = look_through(&json)?;
        let patience = patience(json.len() / 64);
        let mut inner =
            apart("tokenizer", patience, move || Tokenizer::from_bytes(json).map_err(|e| e.to_string()))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        Ok(Guarded { inner: Arc::new(inner), growth })
    }

    /// The ids of a text's tokens, with the special ones that the tokenizer adds if `special` says so.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        self.growth.allow(text.len())?;
        let (inner, text) = (self.inner.clone(), text.to_owned());
        apart("tokenizer", patience(text.len()), move || {
            inner.encode(text, special).map(|e| e.get_ids().to_vec()).map_err(|e| e.to_string())
        })
    }

    /// Without constraints nobody needs the bytes of tokens.
    #[cfg(not(feature = "constraints"))]
    pub fn pieces(&self) -> Result<Vec<Vec<u8>>, String> {
        Err("wgfc was built without the feature `constraints`".into())
    }

    /// The tokenizer itself, whose functions may panic.
    #[cfg(feature = "constraints")]
    pub(super) fn inner(&self) -> &Tokenizer {
        &self.inner
    }

    /// The id of a token, if the vocabulary has it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of a token in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The text of tokens, without special ones.
    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        caught(|| self.inner.decode(ids, true).map_err(|e| e.to_string()))
    }

    /// The text that one more token adds.
    pub fn push(&self, s: &mut Stream, id: u32) -> Result<Option<String>, String> {
        caught(|| {
            let (ids, prefix, at) = (&mut s.ids, &mut s.prefix, &mut s.at);
            step_decode_stream(&self.inner, vec![id], true, ids, prefix, at).map_err(|e| e.to_string())
        })
    }
}

fn patience(bytes: usize) -> Duration {
    PATIENCE.0 * u32::try_from(1 + bytes / PATIENCE.1).unwrap_or(u32::MAX)
}
