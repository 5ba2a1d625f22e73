//! Bounds on the resources that a `tokenizer.json` can demand.
//!
//! The library that reads the file trusts it: it indexes by names without checking, allocates any number of elements, and
//! multiplies the length of a text in several steps. Therefore the file is checked before the library reads it. The bounds
//! are counts: of characters, of nesting levels, and of how much longer each step can make a text.

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// The most characters of a regular expression, and the deepest nesting of its groups.
const PATTERN: (usize, usize) = (8192, 32);
/// The most bytes of a token.
const TOKEN: usize = 4096;
/// The largest factor by which decoding may lengthen the text of tokens.
const DECODED: f64 = 256.0;
/// The most bytes or tokens that a step may make of a text.
const TEXT: f64 = (1u64 << 26) as f64;

/// The factors by which a text can become longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// The bytes that normalisation can make of each byte of the text.
    pub text: f64,
    /// The tokens that post-processing can make of each token.
    pub tokens: f64,
}

impl Growth {
    /// Refuses a text that could become too long.
    pub fn allow(&self, bytes: usize) -> Result<(), String> {
        let made = (bytes as f64 + 1.0) * self.text * self.tokens;
        if made <= TEXT {
            return Ok(());
        }
        Err(format!("it could make {made:.0} bytes of the text's {bytes}; at most {TEXT:.0} are allowed"))
    }
}

/// The parts of the file that are checked.
#[derive(serde::Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Longest,
    #[serde(default)]
    model: Longest,
}

/// Checks a file. Returns how much longer it can make a text.
pub fn look_through(json: &[u8]) -> Result<Growth, String> {
    let parts: Parts = serde_json::from_slice(json).map_err(|e| wgfc_compiler::json_in_words(&e))?;
    for (what, Longest(n)) in [("added_tokens", parts.added_tokens), ("model", parts.model)] {
        if n > TOKEN {
            return Err(format!("`{what}` has a text of {n} bytes; a token has at most {TOKEN}"));
        }
    }
    let text = in_turn(&parts.normalizer, "normalizers", normalizer)?
        * in_turn(&parts.pre_tokenizer, "pretokenizers", pre_tokenizer)?;
    let tokens = in_turn(&parts.post_processor, "processors", post_processor)?;
    let decoded = in_turn(&parts.decoder, "decoders", decoder)?;
    if decoded > DECODED {
        return Err(format!(
            "its decoder could make the text {decoded:.0} times longer; {DECODED:.0} is the most that is allowed"
        ));
    }
    Ok(Growth { text, tokens })
}

/// The product of the factors of all steps of a `Sequence`, or the factor of a single step.
fn in_turn(v: &Value, list: &str, one: fn(&str, &Value) -> Result<f64, String>) -> Result<f64, String> {
    let kind = v.get("type").and_then(Value::as_str).unwrap_or_default();
    match v.get(list).and_then(Value::as_array) {
        Some(steps) => {
            steps.iter().try_fold(1.0, |n, s| Ok::<f64, String>((n * in_turn(s, list, one)?).min(1e300)))
        }
        None if v.is_null() => Ok(1.0),
        None => one(kind, v).map_err(|e| format!("{}: {e}", if kind.is_empty() { list } else { kind })),
    }
}

fn text_of<'v>(v: &'v Value, key: &str) -> &'v str {
    v.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The factor of a step that replaces matches of `pattern` with `content`.
fn replaced(v: &Value) -> Result<f64, String> {
    let content = text_of(v, "content").len() as f64;
    let pattern = v.get("pattern").unwrap_or(&Value::Null);
    let exact = pattern.get("String").or(Some(pattern)).and_then(Value::as_str);
    Ok(match exact {
        Some(p) if !p.is_empty() => (content / p.len() as f64).ceil().max(1.0),
        // A regular expression may match the empty text.
        _ => {
            patterns(v)?;
            1.0 + content
        }
    })
}

/// The factor of a normalizer. The library infers the kind of a step from its fields if it is not named, so the fields are
/// tested first.
fn normalizer(kind: &str, v: &Value) -> Result<f64, String> {
    let has = |key: &str| v.get(key).is_some();
    Ok(match kind {
        _ if has("pattern") => replaced(v)?,
        _ if has("prepend") => 1.0 + text_of(v, "prepend").len() as f64,
        _ if has("precompiled_charsmap") => charsmap(text_of(v, "precompiled_charsmap"))?,
        "NFKC" | "NFKD" => 11.0,
        "NFC" | "NFD" | "Lowercase" => 3.0,
        "ByteLevel" => 2.0,
        "Strip" | "StripAccents" | "Nmt" => 1.0,
        _ => 9.0,
    })
}

fn pre_tokenizer(kind: &str, v: &Value) -> Result<f64, String> {
    patterns(v)?;
    match kind {
        "FixedLength" if v.get("length").and_then(Value::as_u64) == Some(0) => {
            Err("pieces of no characters".into())
        }
        "Metaspace" => Ok(4.0),
        "ByteLevel" => Ok(3.0),
        _ => Ok(1.0),
    }
}

fn post_processor(kind: &str, v: &Value) -> Result<f64, String> {
    if v.get("single").is_none() && kind != "TemplateProcessing" {
        return Ok(5.0);
    }
    let special = v.get("special_tokens").and_then(Value::as_object);
    let mut made = 1.0;
    for template in ["single", "pair"] {
        let pieces = v.get(template).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut here = 0.0;
        for piece in pieces {
            if let Some(id) = piece.get("SpecialToken").map(|s| text_of(s, "id")) {
                let token = special.and_then(|s| s.get(id));
                let token = token.ok_or_else(|| format!("its template names the absent token {id:?}"))?;
                let count = |key: &str| token.get(key).and_then(Value::as_array).map_or(0, Vec::len);
                if count("ids") != count("tokens") {
                    return Err(format!("its token {id:?} has {} ids", count("ids")));
                }
                here += count("ids") as f64;
            } else {
                here += 1.0;
                let other = piece.get("Sequence").is_some_and(|s| text_of(s, "id") == "B");
                if other && template == "single" {
                    return Err("its template for one text uses a second one".into());
                }
            }
        }
        made = here.max(made);
    }
    Ok(made)
}

fn decoder(_: &str, v: &Value) -> Result<f64, String> {
    match v.get("pattern") {
        Some(p) if p.get("Regex").is_some() => {
            Err("a regular expression; decoders replace plain texts only".into())
        }
        Some(_) => replaced(v),
        None => Ok(1.0),
    }
}

/// Checks the regular expressions of a step.
fn patterns(v: &Value) -> Result<(), String> {
    let Some(p) = v.get("pattern").and_then(|p| p.get("Regex")).and_then(Value::as_str) else {
        return Ok(());
    };
    let (mut depth, mut deepest) = (0usize, 0usize);
    for c in p.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    // Each quantifier that follows another one nests too.
    let stacked = p.as_bytes().chunk_by(|a, b| is_quantifier(*a) && is_quantifier(*b)).map(<[u8]>::len).max();
    if p.len() > PATTERN.0 || deepest > PATTERN.1 || stacked.is_some_and(|n| n > PATTERN.1) {
        return Err(format!(
            "a regular expression of {} bytes, nested {deepest} deep; {} and {} are the most",
            p.len(),
            PATTERN.0,
            PATTERN.1
        ));
    }
    Ok(())
}

fn is_quantifier(c: u8) -> bool {
    matches!(c, b'*' | b'+' | b'?' | b'{' | b'}' | b',' | b'0'..=b'9')
}

/// One more than the longest text that a SentencePiece table has for a character. The table is its length in bytes, 32-bit
/// words of that length, and texts that end with 0.
fn charsmap(base64: &str) -> Result<f64, String> {
    let bytes = decode_base64(base64).ok_or("its table is not base64")?;
    let (size, rest) = bytes.split_at_checked(4).ok_or("its table is cut short")?;
    let size = size.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let texts = rest.get(size / 4 * 4..).filter(|_| size >= 4).ok_or("its table is cut short")?;
    Ok(1.0 + texts.split(|b| *b == 0).map(<[u8]>::len).max().unwrap_or(0) as f64)
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    for four in text.chunks(4) {
        let mut word = 0u32;
        for c in four {
            let v = match c {
                b'A'..=b'Z' => c - b'A',
                b'a'..=b'z' => c - b'a' + 26,
                b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            word = word << 6 | u32::from(v);
        }
        word <<= 6 * (4 - four.len());
        out.extend(&word.to_be_bytes()[1..four.len().max(1)]);
    }
    Some(out)
}

/// The length in bytes of the longest text anywhere in a value, keys included. The value itself is not kept.
#[derive(Clone, Copy, Default)]
struct Longest(usize);

impl<'de> serde::Deserialize<'de> for Longest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Longest, D::Error> {
        Longest(0).deserialize(d)
    }
}

impl<'de> DeserializeSeed<'de> for Longest {
    type Value = Longest;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Longest, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Longest {
    type Value = Longest;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<Longest, E> {
        Ok(self)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Longest, E> {
        Ok(self)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Longest, E> {
        Ok(self)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Longest, E> {
        Ok(self)
    }
    fn visit_unit<E>(self) -> Result<Longest, E> {
        Ok(self)
    }
    fn visit_str<E>(self, s: &str) -> Result<Longest, E> {
        Ok(Longest(self.0.max(s.len())))
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut a: A) -> Result<Longest, A::Error> {
        while let Some(inner) = a.next_element_seed(self)? {
            self = inner;
        }
        Ok(self)
    }
    fn visit_map<A: MapAccess<'de>>(mut self, mut a: A) -> Result<Longest, A::Error> {
        while let Some(key) = a.next_key_seed(self)? {
            self = a.next_value_seed(key)?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Growth, String> {
        look_through(json.as_bytes())
    }

    #[test]
    fn what_makes_a_text_longer_is_multiplied() {
        let replace = r#"{"type":"Replace","pattern":{"String":"a"},"content":"aa"}"#;
        let steps = |n: usize| vec![replace; n].join(",");
        let file = |n| format!(r#"{{"normalizer":{{"type":"Sequence","normalizers":[{}]}}}}"#, steps(n));
        let few = of(&file(3)).unwrap();
        assert_eq!(few, Growth { text: 8.0, tokens: 1.0 });
        assert!(few.allow(1000).is_ok());
        let many = of(&file(2000)).unwrap();
        assert!(many.allow(1).unwrap_err().contains("at most"));
        let decoder = format!(r#"{{"decoder":{{"type":"Sequence","decoders":[{}]}}}}"#, steps(40));
        assert!(of(&decoder).unwrap_err().contains("decoder"));
    }

    #[test]
    fn what_the_library_would_not_survive_is_refused() {
        let show = |json: &str| of(json).unwrap_err();
        let template = r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[X]","type_id":0}}],"pair":[],"special_tokens":{}}"#;
        assert_eq!(
            show(&format!(r#"{{"post_processor":{template}}}"#)),
            "TemplateProcessing: its template names the absent token \"[X]\""
        );
        let table = |t: &str| {
            show(&format!(r#"{{"normalizer":{{"type":"Precompiled","precompiled_charsmap":"{t}"}}}}"#))
        };
        assert_eq!(table("!"), "Precompiled: its table is not base64");
        assert_eq!(table("/////w=="), "Precompiled: its table is cut short");
        assert_eq!(table("AA=="), "Precompiled: its table is cut short");
        let deep = "(".repeat(50_000);
        let split = format!(r#"{{"pre_tokenizer":{{"type":"Split","pattern":{{"Regex":"{deep}"}}}}}}"#);
        assert!(show(&split).contains("nested 50000 deep"));
        let long = "x".repeat(5000);
        assert!(show(&format!(r#"{{"model":{{"vocab":{{"{long}":1}}}}}}"#)).contains("5000 bytes"));
        assert!(show(&"[".repeat(100_000)).contains("recursion limit"));
    }

    #[test]
    fn base64_is_read() {
        let show = |t| decode_base64(t).map(|b| String::from_utf8(b).unwrap());
        assert_eq!(show("aGVsbG8="), Some("hello".into()));
        assert_eq!(show("aGVsbG8h"), Some("hello!".into()));
        assert_eq!(show("aA=="), Some("h".into()));
        assert_eq!(show("a-"), None);
    }
}
