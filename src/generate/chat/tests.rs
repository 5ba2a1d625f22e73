//! Templates give what transformers gives (`scripts/chat_templates.py`), and hostile ones give errors.

use super::*;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

fn chat(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/chat").join(name);
    std::fs::read_to_string(path).expect("a fixture")
}

fn template(text: &str) -> ChatTemplate {
    ChatTemplate::parse(text, [("bos_token", "<s>"), ("eos_token", "</s>")]).unwrap()
}

fn rendered(text: &str, messages: &[Message]) -> Result<String, String> {
    template(text).render(messages, &ChatOptions::default()).map_err(|e| e.to_string())
}

fn list(json: &Json) -> &[Json] {
    match json {
        Json::List(list) => list,
        _ => panic!("{json} is no list"),
    }
}

#[test]
fn conversations_are_written_as_transformers_writes_them() {
    let all: Json = chat("cases.json").parse().unwrap();
    let Some(Json::Number(now)) = all.get("now") else { panic!("no time") };
    let now = UNIX_EPOCH + Duration::from_secs(now.as_u64().unwrap());
    let Some(Json::Object(special)) = all.get("special") else { panic!("no special tokens") };
    let special: Vec<(&str, &str)> = special.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap())).collect();
    let mut wrong = vec![];
    for (i, case) in list(all.get("cases").unwrap()).iter().enumerate() {
        let name = case.get("template").and_then(Json::as_str).unwrap();
        let messages: Vec<Message> = list(case.get("messages").unwrap())
            .iter()
            .map(|m| serde_json::from_str(&m.to_string()).unwrap())
            .collect();
        let Some(Json::Object(given)) = case.get("options") else { panic!("no options") };
        let mut options = ChatOptions { now: Some(now), ..ChatOptions::default() };
        for (key, value) in given.clone() {
            match (key.as_str(), value) {
                ("add_generation_prompt", Json::Bool(b)) => options.add_generation_prompt = b,
                ("tools", tools) => options.tools = Some(tools),
                (_, value) => options.extra.push((key, value)),
            }
        }
        let text = chat(&format!("{name}.jinja"));
        let made = ChatTemplate::parse(&text, special.clone()).unwrap().render(&messages, &options);
        let made = made.map_err(|e| e.to_string());
        let same = match (&made, case.get("text"), case.get("error").and_then(Json::as_str)) {
            (Ok(made), Some(want), _) => want.as_str() == Some(made),
            (Err(e), None, Some(want)) => e.contains(&format!("refuses the messages: {want}")),
            _ => false,
        };
        if !same {
            let want = case.get("text").or(case.get("error")).unwrap();
            let want = want.as_str().unwrap();
            match made {
                Ok(made) => {
                    for (got, want) in made.lines().zip(want.lines()).filter(|(a, b)| a != b) {
                        wrong.push(format!("case {i}, {name}:\n got {got}\nwant {want}"));
                    }
                    if made.lines().count() != want.lines().count() {
                        wrong.push(format!("case {i}, {name}: got\n{made}\nwant\n{want}"));
                    }
                }
                Err(e) => wrong.push(format!("case {i}, {name}: {e}, want {want}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn content_takes_the_form_that_the_template_knows() {
    let part = |text: &str| format!(r#"{{"type": "text", "text": "{text}"}}"#).parse::<Json>().unwrap();
    let parts = Message { content: Some(Content::Parts(vec![part("a"), part("b")])), ..Message::user("") };
    let texts_alone = "{% for m in messages %}{{ m.content }};{% endfor %}";
    let parts_alone =
        "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %};{% endfor %}";
    let all = [Message::user("x"), parts];
    assert_eq!(rendered(texts_alone, &all).unwrap(), "x;a\nb;");
    assert_eq!(rendered(parts_alone, &all).unwrap(), "<x>;<a><b>;");
    let image = r#"{"type": "image_url", "image_url": {"url": "x"}}"#.parse().unwrap();
    let image = Message { content: Some(Content::Parts(vec![image])), ..Message::user("") };
    let e = rendered(texts_alone, &[image]).unwrap_err();
    assert!(e.contains("message 1 has a part of type `image_url`"), "{e}");
}

#[test]
fn arguments_in_a_text_are_values() {
    let text = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}";
    let of = |arguments: &str| {
        let call =
            format!(r#"{{"type": "function", "function": {{"name": "f", "arguments": {arguments}}}}}"#);
        rendered(text, &[Message { tool_calls: vec![call.parse().unwrap()], ..Message::assistant("") }])
            .unwrap()
    };
    assert_eq!(of(r#""{\"b\": 1, \"a\": [2.0]}""#), r#"{"b": 1, "a": [2.0]}"#);
    assert_eq!(of(r#"{"b":1}"#), r#"{"b": 1}"#);
    assert_eq!(of(r#""no {json""#), r#""no {json""#);
}

#[test]
fn marks_for_training_keep_the_white_space() {
    for (with, without) in [
        ("a {% generation %} b {% endgeneration %} c", "a  b  c"),
        ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
        ("a\n  {% generation %}\nb\n{%endgeneration%}\nc", "a\nb\nc"),
        ("{% if generation %}x{% endif %}{{ '{% generation' }}", "{% generation"),
    ] {
        assert_eq!(rendered(with, &[]).unwrap(), without, "{with}");
    }
}

#[test]
fn faults_of_templates_are_said_with_their_lines() {
    for (text, says) in [
        ("\n{{ messages[0].nothing.more }}", "line 2"),
        ("{{ nothing_here() }}", "nothing_here"),
        ("{{ messages | nothing }}", "nothing"),
        (
            "{{ raise_exception('No: ' ~ messages[0].role) }}",
            "the chat template refuses the messages: No: user",
        ),
        (
            "{% macro m() %}{{ raise_exception('inside') }}{% endmacro %}{{ m() }}",
            "refuses the messages: inside",
        ),
        ("{{ nothing | tojson }}", "which JSON has not"),
        ("{{ messages[0].__class__.__mro__ }}", "undefined value"),
        ("{{ strftime_now('%!') }}", "`%!` in the format of a time"),
        ("{{ messages[0].content.replace() }}", "missing argument"),
    ] {
        let e = rendered(text, &[Message::user("x")]).unwrap_err();
        assert!(e.contains(says), "{text}: {e}");
    }
    for (text, says) in [
        ("\n\n{% if %}", "line 3"),
        ("{% for m in messages %}", "endfor"),
        ("{% include 'other' %}", "include"),
        (&"x".repeat(1 << 20), "at most 262144 are allowed"),
        (&"(".repeat(50_000), ""),
    ] {
        let e = match ChatTemplate::parse(text, [("", ""); 0]) {
            Err(e) => e.to_string(),
            Ok(_) if says.is_empty() => continue,
            Ok(_) => panic!("{text} is accepted"),
        };
        assert!(e.contains(says), "{e}");
    }
}

/// Templates that take endless time, memory or stack.
#[test]
fn work_without_end_is_an_error() {
    let doubled = |start: &str, step: &str, end: &str| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range(100) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
        )
    };
    let nested = |end: &str| {
        format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(1000) %}}{{% for j in range(1000) %}}\
             {{% set ns.x = [ns.x] %}}{{% endfor %}}{{% endfor %}}{end}"
        )
    };
    let all = [
        "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(10000) %}{% for b in range(10000) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}"
            .into(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(),
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}".into(),
        doubled("'ab'", "ns.x ~ ns.x", ""),
        doubled("'ab'", "ns.x + ns.x", ""),
        doubled("'ab'", "ns.x * 10", ""),
        doubled("'ab'", "ns.x.replace('b', 'abab')", ""),
        doubled("'ab'", "ns.x | replace('b', 'abab')", ""),
        doubled("'ab'", "[ns.x, ns.x] | join", ""),
        doubled("'ab'", "ns.x.join([ns.x, ns.x])", ""),
        doubled("'ab'", "'{}{}'.format(ns.x, ns.x)", ""),
        doubled("'ab'", "'%s%s' | format(ns.x, ns.x)", ""),
        doubled("[1]", "ns.x + ns.x", "{{ ns.x | length }}{{ ns.x | list }}"),
        doubled("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
        doubled("[1]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
        doubled("[1]", "[ns.x, ns.x]", "{{ ns.x | string }}"),
        doubled("[1]", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson(indent=2) }}"),
        doubled("1", "ns.x", "{{ 'x' | center(10000000000) }}{{ '%10000000000d' | format(1) }}"),
        doubled("1", "ns.x", "{{ '{:10000000000}'.format(1) }}"),
        doubled("1", "ns.x", "{{ '%10000000000d' | format(1) }}"),
        doubled("1", "ns.x", "{{ '7'.zfill(10000000000) }}"),
        doubled("1", "ns.x", "{{ 'x' | indent(10000000000) }}{{ 'x\\nx' | indent(10000000000) }}"),
        doubled("1", "ns.x", "{{ 10 ** 10000000000 }}"),
        doubled("1", "ns.x", "{{ range(10000000000) | list }}"),
        doubled("1", "ns.x", "{{ 'x' | tojson(indent=10000000000) }}"),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}".into(),
        nested("{{ ns.x }}"),
        nested("{{ ns.x | tojson }}"),
        nested(""),
    ];
    for text in all {
        let start = Instant::now();
        let e = rendered(&text, &[Message::user("x")]).expect_err(&text);
        assert!(e.contains("the chat template"), "{text}: {e}");
        assert!(start.elapsed() < Duration::from_secs(15), "{text}: {:?}", start.elapsed());
    }
    // A value that contains itself, and comparisons of values that share their parts, end in some way.
    let shared = "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}{% for i in range(60) %}\
                  {% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}";
    for text in [
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned(),
        format!("{shared}{{{{ a.x == b.x }}}}"),
    ] {
        let start = Instant::now();
        let made = rendered(&text, &[Message::user("x")]);
        println!("{text}: {made:?} in {:?}", start.elapsed());
    }
}
