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
fn values_are_those_of_python() {
    for (text, want) in [
        (
            "{{ [1] + [2, 'x'] }} {{ 'a' + 'b' }} {{ 1 + 2 }} {{ 1.5 + 2 }} {{ true + 1 }} {{ (1,) + (2,) }}",
            "[1, 2, 'x'] ab 3 3.5 2 (1, 2)",
        ),
        (
            "{{ [1, [2]] * 2 }} {{ 'ab' * 3 }} {{ 2 * 'ab' }} {{ 3 * 4 }} {{ 1.5 * 2 }} {{ 'a' * -1 }}",
            "[1, [2], 1, [2]] ababab abab 12 3.0 ",
        ),
        (
            "{% set ns = namespace(a=1, b=[]) %}{% for i in [1, 2] %}{% set ns.b = ns.b + [i] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }} {{ ns.b }} {{ ns.c is defined }}",
            "4 [1, 2] False",
        ),
        (
            "{% set ns = namespace({'x': 1}) %}{% set ns.x, ns.y = 2, 3 %}{{ ns.x }} {{ ns.y }}{% set ns.z %}block{% endset %} {{ ns.z }}",
            "2 3 block",
        ),
        (
            "{% set ns = namespace(x=0) %}{% set ns.x = 1 if messages else 2 %}{{ ns.x }} {% set ns.x = messages and 'yes' or 'no' %}{{ ns.x }}",
            "1 yes",
        ),
        (
            "{{ dict(a=1, b=2) }} {{ dict({'z': 1}, a=2) }} {{ {'b': 1, 'a': {'c': 2}} }} {{ {} }} {{ [] }} {{ () }}",
            "{'a': 1, 'b': 2} {'z': 1, 'a': 2} {'b': 1, 'a': {'c': 2}} {} [] ()",
        ),
        (
            "{% macro m(x) %}{% set ns = namespace(y=x) %}{% set ns.y = ns.y * 2 %}<{{ ns.y }}>{% endmacro %}{{ m(2) }}{{ m([1]) }}",
            "<4><[1, 1]>",
        ),
        (
            "{% for k, v in {'a': 1}.items() %}{{ [k, v] }}{% endfor %} {{ [[1, 2], [3, 4]] | map('first') | list }}",
            "['a', 1] [1, 3]",
        ),
        (
            "{% set l = [0, 1, 2, 3, 4] %}{{ l[1:3] }} {{ l[:-1] }} {{ l[-2:] }} {{ l[::-1] }} {{ l[::2] }} {{ l[3:0:-2] }} {{ l[9:] }}",
            "[1, 2] [0, 1, 2, 3] [3, 4] [4, 3, 2, 1, 0] [0, 2, 4] [3, 1] []",
        ),
        (
            "{{ 'héllo'[1:3] }} {{ 'héllo'[::-1] }} {{ (1, 2, 3)[1:] }} {{ 'abc'[-99:99] }} {{ 'abc'[-1::-1] }}|{{ 'abc'[5:1] }}",
            "él olléh (2, 3) abc cba|",
        ),
        ("{{ 1e-07 }} {{ 1.0 }} {{ 1e22 }}", "1e-07 1.0 1e+22"),
    ] {
        assert_eq!(rendered(text, &[Message::user("x")]).as_deref(), Ok(want), "{text}");
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
        ("\n\n{% if %}\n", "line 3"),
        ("{% for m in messages %}", "end of"),
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
    let shared = "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}{% for i in range(60) %}\
                  {% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}";
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
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".into(),
        "{% set a = namespace() %}{% set b = namespace(x=a) %}{% set a.x = b %}{{ a }}".into(),
        "{% set a = namespace() %}{% set a.x = [a] %}{{ a == a }}".into(),
        "{% set a = namespace() %}{% set a.x = {'a': a}.items() %}{{ a }}".into(),
        "{% set a = namespace() %}{% set a.x = [nothing] | map('default', a) | list %}{{ a }}".into(),
        "{% set a = namespace() %}{% set a.x = dict(a=a) %}{{ a }}".into(),
        "{% set a = namespace() %}{% set a.x = (a, 1) %}{{ a }}".into(),
        format!("{shared}{{{{ a.x == b.x }}}}"),
        format!("{shared}{{{{ a.x in [b.x] }}}}"),
        format!("{shared}{{{{ {{a.x: 1}} }}}}"),
        format!("{shared}{{{{ [a.x, b.x] | sort | length }}}}"),
        doubled("[1]", "{'a': ns.x, 'b': ns.x}", ""),
        doubled("[1]", "dict(a=ns.x, b=ns.x)", ""),
        doubled("[1]", "(ns.x, ns.x)", ""),
        doubled("[1]", "[ns.x] * 1000", ""),
        doubled("[1]", "ns.x * 1000000000000", ""),
        doubled("[1]", "[none] * 1000 | map('default', ns.x, true) | list", "{{ ns.x == [] }}"),
        doubled("[1]", "[{}] * 1000 | map(attribute='x', default=ns.x) | list", "{{ ns.x == [] }}"),
        doubled("(1, 2)", "ns.x + ns.x", ""),
        doubled("'ab'", "ns.x * 1000000000000", ""),
        format!("{{% set x = [1] %}}{}", "{% set x = x + x %}".repeat(64)),
        format!("{{% set x = [1] %}}{}", "{% set x = [x, x] %}".repeat(64)),
        format!(
            "{{% set ns = namespace(x=[1] * 9000) %}}{}",
            "{% for i in range(100000) %}{% set ns.x = ns.x[0:] %}{% endfor %}"
        ),
        format!("{{% set x = [1] * 90000 %}}{}{{{{ [x, x, x] * 100 }}}}", "{% set x = x[0:] %}".repeat(9000)),
        format!("{{% set x = [1] %}}{}", "{% set x = [x[0:], x[0:]] %}".repeat(64)),
        format!("{{% set x = [1] %}}{}", "{% set x = [x | reverse, x | reverse] %}".repeat(64)),
        format!("{{% set x = {{'a': 1}} %}}{}", "{% set x = {'a': x.items(), 'b': x.values()} %}".repeat(64)),
        nested("{{ ns.x }}"),
        nested("{{ ns.x | tojson }}"),
        nested(""),
    ];
    let mut wrong = vec![];
    for text in all {
        let start = Instant::now();
        let shown: String = text.chars().take(200).collect();
        match rendered(&text, &[Message::user("x")]) {
            Err(e) if e.contains("the chat template") => {}
            made => wrong.push(format!("{shown}: {made:?}")),
        }
        // None exceeds the time limit: the steps bound them all.
        if start.elapsed() > Duration::from_secs(8) {
            wrong.push(format!("{shown}: {:?}", start.elapsed()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
