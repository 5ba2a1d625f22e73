use super::*;
use crate::generate::{ContinuousGenerator, End, Generated};
use crate::{Generator, GeneratorOptions, Request, Sampling};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use wgfc_runtime::testing::gpus;

/// A decoder of 37 tokens, which spell JSON.
fn decoder(model: &str) -> (tempfile::TempDir, Decoder) {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let model = root.join(format!("small/{model}/model.onnx"));
    std::fs::copy(model, folder.path().join("model.onnx")).unwrap();
    let text = std::fs::read(root.join("tokenizers/bpe.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&text).unwrap();
    let tokens = ["<s>", "</s>", "{", "}", "\"", ":", ",", "[", "]", "Ġ"].into_iter();
    let digits = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"].into_iter();
    let letters =
        ["t", "r", "u", "e", "f", "a", "l", "s", "n", "true", "false", "\":", "{\"", "null", "\\", "-", "Ċ"];
    let vocabulary = tokens.chain(digits).chain(letters).enumerate().map(|(i, t)| (t.to_owned(), json!(i)));
    tokenizer["model"]["vocab"] = Value::Object(vocabulary.collect());
    tokenizer["model"]["merges"] = json!([]);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": 1}"#).unwrap();
    let decoder = Decoder::open(folder.path()).unwrap();
    (folder, decoder)
}

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "a": { "type": "boolean" },
        "e": { "type": "integer", "minimum": 0, "maximum": 99 },
        "s": { "type": "array", "items": { "enum": ["t", "false", null] }, "minItems": 1, "maxItems": 2 }
    },
    "required": ["a", "e", "s"],
    "additionalProperties": false
}"#;

#[track_caller]
fn check_object(text: &str) {
    let made: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text:?}"));
    assert!(made["a"].is_boolean() && made["e"].as_u64().is_some_and(|e| e < 100), "{text}");
    let all = made["s"].as_array().unwrap();
    assert!((1..3).contains(&all.len()) && made.as_object().unwrap().len() == 3, "{text}");
    assert!(all.iter().all(|s| [json!("t"), json!("false"), json!(null)].contains(s)), "{text}");
}

fn drawn(constraint: &Constraint, seed: u64, stop: &[i64]) -> Request {
    // A high temperature and a bias against the end would break every form.
    let logit_bias = vec![(1, -3.0), (9, 2.0)];
    let sampling = Sampling { temperature: 3.0, seed, logit_bias, ..Sampling::default() };
    Request {
        max_new_tokens: 150,
        sampling: Some(sampling),
        stop: stop.to_vec(),
        constraint: Some(constraint.clone()),
        ..Request::default()
    }
}

#[test]
fn output_has_the_form() {
    let (_folder, decoder) = decoder("decoder");
    let forms = decoder.forms().unwrap();
    let schema = forms.json_schema(SCHEMA).unwrap();
    let regex = forms.regex("(true|false|9{2,3}):[etr]{3}").unwrap();
    let grammar = forms.grammar("start: list\nlist: \"[\" (list (\",\" list)?)? \"]\" | /[0-9]/").unwrap();
    // The forms are the host's business, for which one adapter will do.
    for gpu in gpus().iter().take(1) {
        let options = GeneratorOptions { capacity: 400, ..GeneratorOptions::default() };
        let mut g = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
        for seed in 0..6 {
            let mut text = |constraint: &Constraint, stop: &[i64]| {
                g.reset().unwrap();
                let tokens = g.generate(&[20, 3], &drawn(constraint, seed, stop)).unwrap();
                let tokens: Vec<i64> = tokens.collect::<Result<_, _>>().unwrap();
                assert!(tokens.len() < 150, "{tokens:?}");
                decoder.decode(&tokens).unwrap()
            };
            for stop in [&[1][..], &[]] {
                check_object(&text(&schema, stop));
                let match_ = text(&regex, stop);
                let (head, tail) = match_.split_once(':').unwrap();
                assert!(["true", "false", "99", "999"].contains(&head) && tail.len() == 3, "{match_}");
            }
            let list = text(&grammar, &[1]);
            assert!(serde_json::from_str::<Value>(&list).is_ok(), "{list}");
        }
    }
}

#[test]
fn sequences_have_their_own_forms() {
    let Some(gpu) = gpus().first() else { return };
    let (_folder, decoder) = decoder("decoder-batch");
    let forms = decoder.forms().unwrap();
    let schema = forms.json_schema(SCHEMA).unwrap();
    let options = GeneratorOptions { capacity: 300, ..GeneratorOptions::default() };
    let mut one = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
    let mut all = ContinuousGenerator::on_device(gpu.clone(), &decoder, 3, &options).unwrap();
    let free = Request { max_new_tokens: 60, ..Request::default() };
    let requests = [drawn(&schema, 3, &[1]), free, drawn(&schema, 4, &[])];
    let ids: Vec<_> = requests.iter().map(|r| all.join(&[20, 3, 7], r).unwrap()).collect();
    let mut got = [(); 3].map(|()| vec![]);
    let mut ends = [None; 3];
    while all.running() > 0 {
        for Generated { sequence, token, end, .. } in all.step().unwrap() {
            let i = ids.iter().position(|id| *id == sequence).unwrap();
            got[i].push(token.unwrap());
            ends[i] = end;
        }
    }
    assert_eq!(ends[1..], [Some(End::Length), Some(End::Complete)]);
    for (request, got) in requests.iter().zip(&got) {
        one.reset().unwrap();
        let want: Vec<i64> = one.generate(&[20, 3, 7], request).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(*got, want);
    }
    check_object(&decoder.decode(&got[0]).unwrap());
    check_object(&decoder.decode(&got[2]).unwrap());
}

#[test]
fn forms_that_cannot_be_made_are_errors() {
    let (_folder, decoder) = decoder("decoder");
    let forms = decoder.forms().unwrap();
    let refs = |n: usize| {
        let one = |i: usize| {
            let other = format!(r##"{{ "$ref": "#/$defs/d{}" }}"##, i + 1);
            format!(r#""d{i}": {{ "anyOf": [{other}, {other}], "type": ["object", "null"] }}"#)
        };
        let all: Vec<String> = (0..n).map(one).collect();
        format!(
            r##"{{ "$ref": "#/$defs/d0", "$defs": {{ {}, "d{n}": {{ "type": "null" }} }} }}"##,
            all.join(", ")
        )
    };
    let all_of = |n: usize| {
        let one =
            |i: usize| format!(r#"{{ "anyOf": [{{ "minimum": {i} }}, {{ "multipleOf": {} }}] }}"#, i + 2);
        format!(r#"{{ "type": "integer", "allOf": [{}] }}"#, (0..n).map(one).collect::<Vec<_>>().join(", "))
    };
    let wide: Vec<String> = (0..2000)
        .map(|i| format!(r#""k{i}": {{ "type": "string", "pattern": "(a|e){{1,{i}}}[0-9]{{50}}" }}"#))
        .collect();
    let hostile = [
        ("json", r#"{ "type": "strange" }"#.to_owned()),
        ("json", "{".into()),
        ("json", "[1, 2]".into()),
        ("json", r##"{ "$ref": "#" }"##.into()),
        ("json", r##"{ "allOf": [{ "$ref": "#" }, { "type": "object" }] }"##.into()),
        ("json", r#"{ "$ref": "http://example.com/schema.json" }"#.into()),
        ("json", r#"{ "$ref": "file:///etc/passwd" }"#.into()),
        ("json", r#"{ "type": "string", "pattern": "(((a{1,1000}){1,1000}){1,1000}){1,1000}e" }"#.into()),
        ("json", r#"{ "type": "array", "minItems": 1000000000, "items": { "type": "array", "minItems": 1000000000 } }"#.into()),
        ("json", r#"{ "type": "string", "minLength": 1000000000000 }"#.into()),
        ("json", r#"{ "type": "integer", "multipleOf": 999999999999999989 }"#.into()),
        ("json", r#"{ "type": "number", "minimum": 1e308, "maximum": 1e309 }"#.into()),
        ("json", refs(24)),
        ("json", refs(1500)),
        ("json", all_of(60)),
        ("json", format!(r#"{{ "type": "object", "properties": {{ {} }}, "required": ["k1"] }}"#, wide.join(", "))),
        ("json", format!(r#"{{ "enum": [{}] }}"#, vec!["\"a\""; 60_000].join(", "))),
        ("json", "{\"not\":".repeat(100) + "{}" + &"}".repeat(100)),
        ("json", "[".repeat(100_000)),
        ("regex", "(".into()),
        ("regex", "(a|aa)*(a|aa)*(a|aa)*(a|aa)*e{1,100000}(a|e){1000}".into()),
        ("regex", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}".into()),
        ("regex", "(.*a.*e){200}&~(.*1{50}.*)".into()),
        ("regex", "a?".repeat(50_000) + &"a".repeat(50_000)),
        ("regex", "a?".repeat(1_000) + &"a".repeat(2_000)),
        ("regex", "(a|e?)".repeat(600)),
        ("json", format!(r#"{{ "type": "string", "pattern": "{}" }}"#, "(a|e?)".repeat(600))),
        ("json", format!(r#"{{ "type": "string", "pattern": "{}" }}"#, "a?".repeat(50_000))),
        ("lark", format!("start: A B C D\n{}", ["A", "B", "C", "D"].map(|n| format!("{n}: /{}/\n", "(a|e?)".repeat(600))).concat())),
        ("regex", "(".repeat(100_000)),
        ("regex", "[^a]|".repeat(50_000)),
        ("lark", "".into()),
        ("lark", "start: start start | start".into()),
        ("lark", "start: a a a\na: a a | b |\nb: b a | \"t\" |".into()),
        ("lark", "start: (\"t\"? \"t\"?){200}".into()),
        ("lark", "start: A\nA: B B B\nB: A".into()),
        ("lark", "start: %json { \"type\": \"strange\" }".into()),
        ("lark", "%import common.NUMBER\nstart: NUMBER".into()),
        ("lark", (0..6000).map(|i| format!("A{i}: A{} \"e\"\n", i + 1)).collect::<String>() + "A6000: \"e\"\nstart: A0"),
        ("lark", (0..9000).map(|i| format!("a{i}: \"t\" a{}\n", i + 1)).collect::<String>() + "a9000: \"e\"\nstart: a0"),
        ("lark", "\u{0}\u{ffff}start: /(?i)é/ <[99999999999]> <[5]>".into()),
    ];
    let before = crate::memory::peak();
    for (i, (kind, text)) in hostile.iter().enumerate() {
        let start = Instant::now();
        let made = match *kind {
            "json" => forms.json_schema(text),
            "regex" => forms.regex(text),
            _ => forms.grammar(text),
        };
        let shown: String = text.chars().take(60).collect();
        match made {
            Err(e) => assert!(matches!(e, Error::Usage(_)) && e.to_string().len() < 1500, "{shown}: {e}"),
            // A constraint that can be made can be followed, or is an error then.
            Ok(made) => {
                let mut state = made.begin(&[1], 37).unwrap();
                for _ in 0..40 {
                    if state.prepare().is_err() {
                        break;
                    }
                    let token = (2..37).rev().find(|t| state.mask()[t / 32] >> (t % 32) & 1 == 1);
                    let Some(token) = token else { break };
                    if state.add(token as i64).unwrap_or(true) {
                        break;
                    }
                }
            }
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(60), "{i} {shown}: {took:?}");
        println!("{took:?} {kind} {shown}");
    }
    if let (Some(before), Some(after)) = (before, crate::memory::peak()) {
        println!("{} MiB", (after - before) >> 20);
        assert!(after - before < 2 << 30);
    }
}

#[test]
fn tokenizers_without_pieces_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    std::fs::copy(root.join("small/decoder/model.onnx"), folder.path().join("model.onnx")).unwrap();
    assert!(Decoder::open(folder.path()).unwrap().forms().is_err());
    for (tokenizer, works) in [("wordpiece", false), ("wordlevel", false), ("bpe", true), ("unigram", true)] {
        std::fs::copy(
            root.join(format!("tokenizers/{tokenizer}.json")),
            folder.path().join("tokenizer.json"),
        )
        .unwrap();
        let decoder = Decoder::open(folder.path()).unwrap();
        assert_eq!(decoder.forms().is_ok(), works, "{tokenizer}");
        if works {
            let text = " the and";
            let pieces = decoder.pieces().unwrap();
            let ids = decoder.encode(text).unwrap();
            let bytes: Vec<u8> = ids.iter().flat_map(|id| pieces[*id as usize].clone()).collect();
            let bytes: Vec<u8> = bytes.into_iter().filter(|b| b.is_ascii()).collect();
            let made = String::from_utf8(bytes).unwrap();
            assert!(made.contains(" the and"), "{made:?}");
        }
    }
}
