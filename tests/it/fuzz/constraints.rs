//! Mutated JSON schemas, regular expressions and grammars become constraints or are refused. `WGFC_FUZZ_CONSTRAINTS` sets their number,
//! which is 400 by default.

use super::texts;
use crate::backend::caught;
use std::path::Path;
use wgfc::Decoder;
use wgfc_ir::testing::Rng;

/// Descriptions, and pieces that are put into them.
const SCHEMAS: [&str; 4] = [
    r##"{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"$ref": "#/$defs/x"}}, "required": ["a"],
        "additionalProperties": false, "$defs": {"x": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}]}}}"##,
    r#"{"type": "array", "items": {"enum": ["x", 1, null]}, "minItems": 2, "maxItems": 40}"#,
    r#"{"allOf": [{"type": "string", "pattern": "^[0-9T:.Z-]{9,40}$"}, {"minLength": 3}], "format": "date-time"}"#,
    r#"{"oneOf": [{"const": "x"}, {"type": "number", "multipleOf": 0.5}], "patternProperties": {"^a": {"type": "boolean"}}}"#,
];
const EXPRESSIONS: [&str; 3] =
    ["(a|b)*c{1,30}[^x-z]+", r"\d{3}-[\w.]{1,9}(\.[a-z]{2,4})?", "((a?b)+|[[:alpha:]]&~(the))*"];
const GRAMMARS: [&str; 3] = [
    "start: item (\",\" item)*\nitem: WORD | \"[\" start \"]\"\nWORD: /[a-z]+/",
    "start: a\na: \"x\" a b | b\nb: /[0-9]{1,3}/ | a \"y\"\n%ignore / +/",
    "start: %json { \"type\": \"object\" } TAIL?\nTAIL: \"!\"{1,5}",
];
const PIECES: [&str; 36] = [
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "*",
    "+",
    "?",
    "|",
    "{1,1000000}",
    "{0}",
    "{100}",
    "999999999999999999999",
    "-1",
    "1e999",
    "\"$ref\": \"#\",",
    "\"$ref\": \"#/properties/a\",",
    "\"anyOf\": [",
    "\"not\": {}",
    "\"type\": [\"object\", \"array\"],",
    "\\",
    "\\u",
    "\\p{L}",
    "\"",
    "/",
    ":",
    "\n",
    "start: start start\n",
    "%ignore",
    "<[3]>",
    "&",
    "~",
    "(?i)",
    "(?=a)",
    "é\u{1f98a}\u{0}",
];

fn mutate(text: &mut String, rng: &mut Rng) {
    let place = |text: &str, rng: &mut Rng| {
        let at = rng.below(text.len() + 1);
        (0..=at).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
    };
    let (a, b) = (place(text, rng), place(text, rng));
    let (from, to) = (a.min(b), a.max(b).min(a.min(b) + 30));
    let to = (to..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
    match rng.below(4) {
        0 => text.replace_range(from..to, ""),
        1 => {
            let again = text[from..to].repeat(1 + rng.below(40));
            text.insert_str(from, &again);
        }
        _ => text.insert_str(from, rng.pick(&PIECES).unwrap_or(&"")),
    }
}

#[test]
fn mutated_constraints_are_made_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    std::fs::copy(root.join("small/decoder/model.onnx"), folder.path().join("model.onnx"))
        .expect("a fixture");
    // Tokens of one character that is printable, or a space or a line's end.
    let text = std::fs::read(root.join("tokenizers/bpe.json")).expect("a fixture");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let tokens = ('!'..='~').map(String::from).chain(["Ġ", "Ċ", "<s>", "</s>", "true"].map(String::from));
    let vocabulary = tokens.enumerate().map(|(i, token)| (token, i.into()));
    tokenizer["model"]["vocab"] = serde_json::Value::Object(vocabulary.collect());
    tokenizer["model"]["merges"] = serde_json::json!([]);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("a file");
    let forms = Decoder::open(folder.path()).and_then(|d| d.forms()).expect("a decoder");
    let many = std::env::var("WGFC_FUZZ_CONSTRAINTS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let mut failures = vec![];
    let make = |kind, text: &str| match kind {
        0 => forms.json_schema(text),
        1 => forms.regex(text),
        _ => forms.grammar(text),
    };
    for (kind, all) in [&SCHEMAS[..], &EXPRESSIONS, &GRAMMARS].into_iter().enumerate() {
        failures.extend(all.iter().filter_map(|text| Some(format!("{text}: {}", make(kind, text).err()?))));
    }
    failures.extend(texts("constraints", many, |rng| {
        let kind = rng.below(3);
        let all: &[&str] = [&SCHEMAS[..], &EXPRESSIONS, &GRAMMARS][kind];
        let mut text = all[rng.below(all.len())].to_owned();
        (0..1 + rng.below(3)).for_each(|_| mutate(&mut text, rng));
        caught(|| Ok(make(kind, &text).map(|_| ()).map_err(|e| e.to_string())))
    }));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
