//! The bytes that each token of a tokenizer stands for.

use super::guarded::Guarded;
use crate::generate::apart::caught;
use std::collections::HashMap;

/// The byte before the text of a special token. It occurs in no UTF-8.
pub const SPECIAL: u8 = 0xff;

impl Guarded {
    /// The bytes of each token, by its id; none for ids without a token. Those of special tokens begin with [`SPECIAL`].
    ///
    /// # Errors
    /// A tokenizer whose tokens do not stand for bytes of their own, such as WordPiece's; ids with large gaps.
    pub fn pieces(&self) -> Result<Vec<Vec<u8>>, String> {
        caught(|| {
            let tokenizer = self.inner();
            let decoder = tokenizer.get_decoder().map(serde_json::to_string).transpose();
            let decoder = decoder.map_err(|e| e.to_string())?.unwrap_or_default();
            let named = |name: &str| decoder.contains(&format!("\"{name}\""));
            let bytes = if named("ByteLevel") {
                Bytes::Level(characters())
            } else if named("ByteFallback") || named("Metaspace") || decoder.contains('\u{2581}') {
                Bytes::Pieces
            } else {
                return Err(
                    "its tokens are no pieces of a text, as those of byte-level BPE and of SentencePiece are"
                        .into(),
                );
            };
            let vocabulary = tokenizer.get_vocab(true);
            let count = vocabulary.values().max().map_or(0, |id| *id as usize + 1);
            if count > 4 * vocabulary.len() + (1 << 16) {
                return Err(format!("it has {} tokens with ids up to {count}", vocabulary.len()));
            }
            let mut pieces = vec![vec![]; count];
            for (text, id) in &vocabulary {
                pieces[*id as usize] = bytes.of(text);
            }
            for (id, added) in tokenizer.get_added_tokens_decoder() {
                if let Some(piece) = pieces.get_mut(id as usize) {
                    let mark = added.special.then_some(SPECIAL);
                    *piece = mark.into_iter().chain(added.content.bytes()).collect();
                }
            }
            Ok(pieces)
        })
    }
}

/// How tokens are written.
enum Bytes {
    /// A character for each byte.
    Level(HashMap<char, u8>),
    /// Text with `▁` for spaces, and tokens `<0x0A>` for single bytes.
    Pieces,
}

impl Bytes {
    fn of(&self, token: &str) -> Vec<u8> {
        match self {
            Bytes::Level(all) => {
                let bytes: Option<Vec<u8>> = token.chars().map(|c| all.get(&c).copied()).collect();
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Bytes::Pieces => {
                let byte =
                    token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).filter(|t| t.len() == 2);
                match byte.and_then(|t| u8::from_str_radix(t, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => token.replace('\u{2581}', " ").into_bytes(),
                }
            }
        }
    }
}

/// The bytes by the characters that stand for them in byte-level BPE: printable characters of Latin-1 stand for themselves, and the
/// characters from 256 on for the other bytes in their order.
fn characters() -> HashMap<char, u8> {
    let is_own = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = (256u32..).filter_map(char::from_u32);
    let one = |b: u8| if is_own(b) { Some((char::from(b), b)) } else { Some((others.next()?, b)) };
    (0..=255).filter_map(one).collect()
}
