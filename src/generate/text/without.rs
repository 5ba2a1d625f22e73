//! The substitute for a tokenizer in a build without the feature `tokenizers`: there is none.

/// A tokenizer; no value of this type exists.
pub enum Guarded {}

/// The state of a tokenizer between tokens.
#[derive(Default)]
pub struct Stream;

impl Guarded {
    /// Always fails.
    pub fn read(_: Vec<u8>) -> Result<Guarded, String> {
        Err("wgfc was built without the feature `tokenizers`".into())
    }
    /// The ids of a text's tokens.
    pub fn encode(&self, _: &str, _: bool) -> Result<Vec<u32>, String> {
        match *self {}
    }
    /// The bytes of each token.
    pub fn pieces(&self) -> Result<Vec<Vec<u8>>, String> {
        match *self {}
    }
    /// The id of a token.
    pub fn id(&self, _: &str) -> Option<u32> {
        match *self {}
    }
    /// The text of a token in the vocabulary.
    pub fn token(&self, _: u32) -> Option<String> {
        match *self {}
    }
    /// The text of tokens.
    pub fn decode(&self, _: &[u32]) -> Result<String, String> {
        match *self {}
    }
    /// The text that one more token adds.
    pub fn push(&self, _: &mut Stream, _: u32) -> Result<Option<String>, String> {
        match *self {}
    }
}
