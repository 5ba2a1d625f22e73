//! Mutated chat templates write a prompt or are refused. `WGFC_FUZZ_TEMPLATES` sets their number, which is 160 by default.

use super::texts;
use crate::backend::caught;
use std::path::Path;
use wgfc::generate::{ChatOptions, ChatTemplate, Json, Message};
use wgfc_ir::testing::Rng;

/// Pieces that are put into templates.
const PIECES: [&str; 32] = [
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- endfor %}",
    "{%- endif %}",
    "{% for x in range(100000) %}",
    "{% for m in messages %}",
    "{% set ns.x = [ns.x, ns.x] %}",
    "{% set messages = messages + messages %}",
    "{% set messages = messages * 1000 %}",
    "{% macro m(x) %}{{ m(x + x) }}{% endmacro %}{{ m(messages) }}",
    "{{ messages | tojson(indent=4) }}",
    "{{ ns }}",
    "{% set ns.ns = ns %}",
    " + ",
    " * 100000 ",
    " ~ messages",
    " | join",
    " | map('default', ns)",
    ".items()",
    "[::-1]",
    "[0]",
    "(",
    ")",
    "'",
    "{#",
    "{% generation %}",
    "{% raw %}",
    "loop.previtem",
    " == messages",
    "é\u{1f98a}\u{0}",
];

fn mutate(text: &mut String, other: &str, rng: &mut Rng) {
    let place = |text: &str, rng: &mut Rng| {
        let at = rng.below(text.len() + 1);
        (0..=at).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
    };
    let (a, b) = (place(text, rng), place(text, rng));
    let (from, to) = (a.min(b), a.max(b).min(a.min(b) + 60));
    let to = (to..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
    match rng.below(6) {
        0 => text.replace_range(from..to, ""),
        1 => {
            let twice = text[from..to].to_owned();
            text.insert_str(from, &twice);
        }
        2 => {
            let (c, d) = (place(other, rng), place(other, rng));
            text.insert_str(from, &other[c.min(d)..c.max(d)]);
        }
        3 => text.insert_str(from, rng.pick(&PIECES).unwrap_or(&"")),
        _ => {
            // Between two tags, a statement is valid in most cases.
            let at = text[from..].find("{%").map_or(0, |i| from + i);
            text.insert_str(at, rng.pick(&PIECES[6..14]).unwrap_or(&""));
        }
    }
}

#[test]
fn mutated_chat_templates_are_applied_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/chat");
    let names = ["llama3", "qwen2", "qwen3", "phi3", "gemma3", "mistral", "trained", "python"];
    let read = |name: &str| std::fs::read_to_string(folder.join(format!("{name}.jinja"))).expect("a fixture");
    let kinds = names.map(read);
    let json = |text: &str| text.parse::<Json>().expect("JSON");
    let call =
        json(r#"{"id": "abcdefghi", "function": {"name": "f", "arguments": {"b": [1, "x"], "a": null}}}"#);
    let messages = [
        Message::system("a"),
        Message::user(" one {{ x }} "),
        Message { tool_calls: vec![call], ..Message::assistant("b") },
        Message::tool("abcdefghi", "c"),
    ];
    let tools =
        json(r#"[{"type": "function", "function": {"name": "f", "parameters": {"z": {}, "a": []}}}]"#);
    let extra = vec![("extra_value".to_owned(), json(r#"{"b": 1.5, "a": [true, "x"]}"#))];
    let options = ChatOptions { tools: Some(tools), extra, ..ChatOptions::default() };
    let many = std::env::var("WGFC_FUZZ_TEMPLATES").ok().and_then(|n| n.parse().ok()).unwrap_or(160);
    let failures = texts("chat templates", many, |rng| {
        let mut text = kinds[rng.below(kinds.len())].clone();
        let other = kinds[rng.below(kinds.len())].clone();
        (0..1 + rng.below(3)).for_each(|_| mutate(&mut text, &other, rng));
        caught(|| {
            let template = ChatTemplate::parse(&text, [("bos_token", "<s>"), ("eos_token", "</s>")]);
            Ok(template.and_then(|t| t.render(&messages, &options)).map(|_| ()).map_err(|e| e.to_string()))
        })
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
