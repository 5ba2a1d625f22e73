//! The tokenizer that a GGUF file carries in its metadata, as the text of a `tokenizer.json`.
//!
//! A GGUF file has the tokens, their types, and merges or scores; normalizers, pre-tokenizers and decoders are only implied by
//! the kind of the model and the name of the pre-tokenizer. [`tokenizer_json`] writes them out as they are in the
//! `tokenizer.json` from which such a file was converted, so that both make the same token ids of a text.
//!
//! | `tokenizer.ggml.model` | tokenizer |
//! |---|---|
//! | `gpt2` | byte-level BPE: words of the named pre-tokenizer, bytes as characters, the file's merges |
//! | `llama` | SentencePiece's BPE: `▁` for spaces, the file's merges or those that follow from scores, bytes for unknown characters |
//! | `t5` | SentencePiece's unigram model: the words of the highest sum of scores |

mod merges;
pub mod splits;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::HashMap;

/// A tokenizer as the metadata of a GGUF file has it (`tokenizer.ggml.*`). A list that the file lacks is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// The kind of the model: `gpt2`, `llama` or `t5`.
    pub model: String,
    /// The name of the pre-tokenizer, which only `gpt2` has.
    pub pre: Option<String>,
    /// The texts of the tokens; a token's id is its place in this list.
    pub tokens: Vec<String>,
    /// The scores of the tokens, which `t5`, and `llama` without merges, need.
    pub scores: Vec<f32>,
    /// The types of the tokens: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. Others count as normal.
    pub types: Vec<i32>,
    /// Merges of two tokens each, separated by a space, in the order of their ranks.
    pub merges: Vec<String>,
    /// The id of the token that begins a text (`bos_token_id`).
    pub bos: Option<u32>,
    /// The id of the token that ends a text (`eos_token_id`).
    pub eos: Option<u32>,
    /// The id of the token for unknown characters (`unknown_token_id`).
    pub unknown: Option<u32>,
    /// The id of the token that fills batches (`padding_token_id`). One that is out of range is ignored, as texts do not need it.
    pub padding: Option<u32>,
    /// Whether encoded texts begin with `bos`. Without a value, those of `llama` do, and of `gpt2` those of some pre-tokenizers.
    pub add_bos: Option<bool>,
    /// Whether encoded texts end with `eos`. Without a value, those of `t5` do.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text. Without a value, it is for `llama` and `t5`.
    pub add_space_prefix: Option<bool>,
    /// Whether spaces at the ends of a text, and all but one of several, are removed (`remove_extra_whitespaces`; `t5` only).
    pub remove_extra_spaces: Option<bool>,
    /// SentencePiece's table of normalized characters (`precompiled_charsmap`; `t5` only).
    pub charsmap: Vec<u8>,
}

/// The text of a `tokenizer.json` of the same tokenizer.
///
/// # Errors
/// A kind of model or a pre-tokenizer that is not known; lists that the kind needs and the file lacks, or that are shorter than
/// the list of tokens; ids out of range; a token that occurs twice; merges of unknown tokens; scores that are no numbers;
/// `add_bos` or `add_eos` without such a token; merges by scores that would take many times the size of the vocabulary.
pub fn tokenizer_json(v: &Vocabulary) -> Result<Vec<u8>, String> {
    let roles = Roles::of(v)?;
    let file = match v.model.as_str() {
        "gpt2" => byte_level(v, &roles)?,
        "llama" => sentence_piece(v, &roles)?,
        _ => unigram(v, &roles)?,
    };
    serde_json::to_vec(&file).map_err(|e| e.to_string())
}

/// The parts of a `tokenizer.json`.
#[derive(Serialize)]
struct File<'v> {
    version: &'static str,
    added_tokens: Vec<Added<'v>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'v>,
}

/// A token that is found in a text before the model sees it.
#[derive(Serialize)]
struct Added<'v> {
    id: u32,
    content: &'v str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Model<'v> {
    #[serde(rename = "BPE")]
    Bpe {
        unk_token: Option<&'v str>,
        fuse_unk: bool,
        byte_fallback: bool,
        ignore_merges: bool,
        #[serde(serialize_with = "with_ids")]
        vocab: &'v [String],
        merges: Vec<(&'v str, &'v str)>,
    },
    Unigram {
        unk_id: u32,
        byte_fallback: bool,
        vocab: Vec<(&'v str, f64)>,
    },
}

/// Writes tokens as an object of ids by text.
fn with_ids<S: Serializer>(tokens: &[String], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(tokens.iter().enumerate().map(|(id, text)| (text, id)))
}

/// The purpose of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Text,
    Unknown,
    Control,
    /// A text that is one token wherever it occurs.
    Fixed,
    Byte,
}

/// The vocabulary after its checks.
struct Roles {
    /// The tokens, all different. In place of empty ones stand names that no text has.
    tokens: Vec<String>,
    roles: Vec<Role>,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    add_bos: bool,
    add_eos: bool,
}

impl Roles {
    fn of(v: &Vocabulary) -> Result<Roles, String> {
        // The ids that tokens of these texts have in models whose file does not say.
        let usual: [(u32, &str); 3] = match v.model.as_str() {
            "gpt2" => [(u32::MAX, ""); 3],
            "llama" => [(1, "<s>"), (2, "</s>"), (0, "<unk>")],
            "t5" => [(u32::MAX, ""), (1, "</s>"), (2, "<unk>")],
            "" => return Err("the kind of its tokenizer (tokenizer.ggml.model) is missing".into()),
            other => {
                let other = shown(other);
                return Err(format!(
                    "its tokenizer is of the kind {other}; gpt2, llama and t5 are supported"
                ));
            }
        };
        if v.tokens.is_empty() {
            return Err("it has no tokens (tokenizer.ggml.tokens)".into());
        }
        let count = u32::try_from(v.tokens.len()).map_err(|_| format!("it has {} tokens", v.tokens.len()))?;
        long_enough("token_type", v.types.len(), v)?;
        let of = |name: &str, given: Option<u32>, usual: (u32, &str)| match given {
            Some(id) if id >= count => {
                Err(format!("tokenizer.ggml.{name}_token_id is {id}, and there are {count} tokens"))
            }
            Some(id) => Ok(Some(id)),
            None => Ok(v.tokens.get(usual.0 as usize).filter(|t| *t == usual.1).map(|_| usual.0)),
        };
        let bos = of("bos", v.bos, usual[0])?;
        let eos = of("eos", v.eos, usual[1])?;
        let unknown = of("unknown", v.unknown, usual[2])?;
        let added = |name: &str, given: Option<bool>, implied: bool, id: Option<u32>| match (given, id) {
            (Some(true), None) => {
                Err(format!("tokenizer.ggml.add_{name}_token is true, and there is no {name}_token_id"))
            }
            (given, id) => Ok(given.unwrap_or(implied) && id.is_some()),
        };
        let begun = match v.model.as_str() {
            "gpt2" => splits::named(v.pre.as_deref())?.add_bos,
            model => model == "llama",
        };
        let add_bos = added("bos", v.add_bos, begun, bos)?;
        let add_eos = added("eos", v.add_eos, v.model == "t5", eos)?;

        let role = |(id, text): (usize, &String)| {
            let is = |named: Option<u32>| named.is_some_and(|n| n as usize == id);
            match v.types.get(id) {
                _ if is(unknown) => Role::Unknown,
                _ if is(bos) || is(eos) => Role::Control,
                Some(2) => Role::Unknown,
                Some(3) => Role::Control,
                Some(4) => Role::Fixed,
                Some(6) => Role::Byte,
                None if is(v.padding) => Role::Control,
                None if v.model != "gpt2" && is_byte(text) => Role::Byte,
                _ => Role::Text,
            }
        };
        let roles = v.tokens.iter().enumerate().map(role).collect();
        let mut tokens = v.tokens.clone();
        // The unigram model finds a token by its place in the list, and texts have no empty words.
        if v.model != "t5" {
            for (id, text) in tokens.iter_mut().enumerate().filter(|(_, t)| t.is_empty()) {
                *text = format!("[EMPTY_{id}]");
            }
        }
        Ok(Roles { tokens, roles, bos, eos, unknown, add_bos, add_eos })
    }

    /// The ids of the tokens by their texts.
    fn ids(&self) -> Result<HashMap<&str, u32>, String> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (text, id) in self.tokens.iter().zip(0u32..).filter(|(t, _)| !t.is_empty()) {
            if let Some(other) = ids.insert(text.as_str(), id) {
                return Err(format!("its tokens {other} and {id} are both {}", shown(text)));
            }
        }
        Ok(ids)
    }

    /// The tokens that are found in a text before the model sees it.
    fn added(&self, rstrip: &[&str]) -> Vec<Added<'_>> {
        let each = self.tokens.iter().zip(&self.roles).zip(0u32..);
        each.filter(|((_, role), _)| matches!(role, Role::Unknown | Role::Control | Role::Fixed))
            .map(|((text, role), id)| Added {
                id,
                content: text,
                single_word: false,
                lstrip: false,
                rstrip: rstrip.contains(&text.as_str()),
                normalized: false,
                special: *role != Role::Fixed,
            })
            .collect()
    }

    fn text(&self, id: u32) -> &str {
        &self.tokens[id as usize]
    }

    /// The step that puts the tokens of the beginning and the end around a text.
    fn ends(&self) -> Value {
        let bos = self.bos.filter(|_| self.add_bos);
        let eos = self.eos.filter(|_| self.add_eos);
        if bos.is_none() && eos.is_none() {
            return Value::Null;
        }
        let around = |sequence: &str, kind: u32| {
            let token = |id: u32| json!({"SpecialToken": {"id": self.text(id), "type_id": kind}});
            let text = json!({"Sequence": {"id": sequence, "type_id": kind}});
            bos.map(token).into_iter().chain([text]).chain(eos.map(token)).collect::<Vec<Value>>()
        };
        let pair = [around("A", 0), around("B", 1)].concat();
        let named = |id: u32| {
            (self.text(id).to_owned(), json!({"id": self.text(id), "ids": [id], "tokens": [self.text(id)]}))
        };
        json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": bos.into_iter().chain(eos).map(named).collect::<serde_json::Map<_, _>>(),
        })
    }
}

fn byte_level<'v>(v: &'v Vocabulary, roles: &'v Roles) -> Result<File<'v>, String> {
    if v.merges.is_empty() {
        return Err("it has no merges (tokenizer.ggml.merges)".into());
    }
    let splits = splits::named(v.pre.as_deref())?;
    let bytes = |prefix: bool, words: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": false, "use_regex": words});
    let pre_tokenizer = if splits.regexes == [splits::GPT2] {
        bytes(v.add_space_prefix == Some(true), true)
    } else {
        let split = |r: &String| json!({"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": false});
        let steps: Vec<Value> = splits.regexes.iter().map(split).chain([bytes(false, false)]).collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    };
    Ok(File {
        version: VERSION,
        added_tokens: roles.added(&[]),
        normalizer: if splits.nfc { json!({"type": "NFC"}) } else { Value::Null },
        pre_tokenizer,
        post_processor: roles.ends(),
        decoder: bytes(false, false),
        model: Model::Bpe {
            unk_token: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: splits.whole_words,
            merges: merges::listed(&v.merges, &roles.ids()?)?,
            vocab: &roles.tokens,
        },
    })
}

fn sentence_piece<'v>(v: &'v Vocabulary, roles: &'v Roles) -> Result<File<'v>, String> {
    let ids = roles.ids()?;
    let merges = if v.merges.is_empty() {
        numbers(v)?;
        // SentencePiece neither makes nor divides other tokens.
        let merged = merges::derived(&roles.tokens, &v.scores, |id| roles.roles[id] == Role::Text)?;
        merged.into_iter().map(|(left, right)| (roles.text(left), roles.text(right))).collect()
    } else {
        merges::listed(&v.merges, &ids)?
    };
    let prefix = v.add_space_prefix.unwrap_or(true);
    let rstrip = if PHI3[..2].iter().all(|t| ids.contains_key(t)) { &PHI3[..] } else { &[] };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(File {
        version: VERSION,
        added_tokens: roles.added(rstrip),
        normalizer: json!({"type": "Sequence", "normalizers": spaces(prefix)}),
        pre_tokenizer: Value::Null,
        post_processor: roles.ends(),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: Model::Bpe {
            unk_token: roles.unknown.map(|id| roles.text(id)),
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            merges,
            vocab: &roles.tokens,
        },
    })
}

fn unigram<'v>(v: &'v Vocabulary, roles: &'v Roles) -> Result<File<'v>, String> {
    numbers(v)?;
    roles.ids()?;
    let unk_id =
        roles.unknown.ok_or("it has no token for unknown characters (tokenizer.ggml.unknown_token_id)")?;
    let prefix = v.add_space_prefix.unwrap_or(true);
    let mut normalizers = vec![];
    if !v.charsmap.is_empty() {
        normalizers.push(json!({"type": "Precompiled", "precompiled_charsmap": base64(&v.charsmap)}));
    }
    if v.remove_extra_spaces == Some(true) {
        for (regex, content) in [("^ +| +$", ""), (" {2,}", " ")] {
            normalizers.push(json!({"type": "Replace", "pattern": {"Regex": regex}, "content": content}));
        }
    }
    normalizers.extend(spaces(prefix));
    let scheme = if prefix { "always" } else { "never" };
    let words = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    Ok(File {
        version: VERSION,
        added_tokens: roles.added(&[]),
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: words.clone(),
        post_processor: roles.ends(),
        decoder: words,
        model: Model::Unigram {
            unk_id,
            byte_fallback: roles.roles.contains(&Role::Byte),
            vocab: roles
                .tokens
                .iter()
                .map(String::as_str)
                .zip(v.scores.iter().map(|s| f64::from(*s)))
                .collect(),
        },
    })
}

/// The version of the format of `tokenizer.json`.
const VERSION: &str = "1.0";

/// The tokens of Phi-3 that take the white space behind them along, which a GGUF file cannot say. No other model has the first
/// two.
const PHI3: [&str; 11] = [
    "<|placeholder1|>",
    "<|assistant|>",
    "<|placeholder2|>",
    "<|placeholder3|>",
    "<|placeholder4|>",
    "<|placeholder5|>",
    "<|placeholder6|>",
    "<|system|>",
    "<|user|>",
    "<|end|>",
    "</s>",
];

/// The steps that write `▁` for spaces.
fn spaces(prefix: bool) -> Vec<Value> {
    let prepend = prefix.then(|| json!({"type": "Prepend", "prepend": "▁"}));
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    prepend.into_iter().chain([replace]).collect()
}

/// Checks that each token has a score that is a number.
fn numbers(v: &Vocabulary) -> Result<(), String> {
    if v.scores.is_empty() {
        return Err("it has no scores (tokenizer.ggml.scores)".into());
    }
    long_enough("scores", v.scores.len(), v)?;
    match v.scores.iter().zip(&v.tokens).position(|(s, _)| !s.is_finite()) {
        Some(id) => {
            Err(format!("the score of its token {id}, {}, is {}", shown(&v.tokens[id]), v.scores[id]))
        }
        None => Ok(()),
    }
}

/// Checks that a list, if there is one, says something of each token.
fn long_enough(list: &str, length: usize, v: &Vocabulary) -> Result<(), String> {
    match v.tokens.len() {
        count if length != 0 && length < count => {
            Err(format!("tokenizer.ggml.{list} has {length} elements, and there are {count} tokens"))
        }
        _ => Ok(()),
    }
}

/// Whether a token is of the form that a token of a single byte has: `<0xE2>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// A text of a file as it is shown in messages, cut after some characters.
fn shown(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Bytes in base64.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = (0..3).fold(0usize, |w, i| w << 8 | usize::from(three.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            out.push(if i <= three.len() { char::from(DIGITS[word >> (18 - 6 * i) & 63]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_written() {
        for (bytes, text) in [("", ""), ("h", "aA=="), ("hi", "aGk="), ("hi!", "aGkh"), ("hi!?", "aGkhPw==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[255, 255, 254]), "///+");
    }
}
