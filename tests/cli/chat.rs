//! `wgfc chat` over its pipes.

use crate::{Ran, command, fixture, folder, wgfc};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// A folder `model` with the small decoder, a tokenizer and a chat template.
fn prepare(dir: &Path) {
    let model = dir.join("model");
    std::fs::create_dir(&model).unwrap();
    std::fs::copy(fixture("small/decoder/model.onnx"), model.join("model.onnx")).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture(&format!("chat/decoder/{name}")), model.join(name)).unwrap();
    }
}

/// Runs `wgfc chat` with these lines as its input.
fn chat(dir: &Path, words: &str, input: &[u8]) -> Ran {
    let mut child = command(dir, &format!("chat|{words}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // The program may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let done = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    Ran { code: done.status.code().unwrap_or(-1), out: text(done.stdout), err: text(done.stderr) }
}

#[test]
fn lines_are_answered_and_the_cache_is_kept() {
    if crate::train::is_skipped("lines_are_answered") {
        return;
    }
    let d = folder();
    prepare(d.path());
    let words = "model|--adapter|software|--max-new-tokens|5|--system|you";
    let lines = b"why is the sky blue ?\n\n  and the sea ?\n/reset\nwhy is the sky blue ?\n/exit\nno\n";
    let all = chat(d.path(), &format!("{words}|--json"), lines).exits(0).json();
    let (turns, messages) = (all["turns"].as_array().unwrap(), all["messages"].as_array().unwrap());
    assert_eq!((turns.len(), messages.len()), (3, 3), "{all:#}");
    assert_eq!((&messages[0]["role"], &messages[0]["content"]), (&"system".into(), &"you".into()));
    assert_eq!(messages[1]["content"], "why is the sky blue ?");
    let number = |turn: usize, key: &str| turns[turn][key].as_u64().unwrap();
    assert_eq!((number(0, "cached_tokens"), number(2, "cached_tokens")), (0, 0));
    assert_eq!(number(0, "prompt_tokens"), number(2, "prompt_tokens"));
    // Only the second message is new, and what the template writes around it.
    assert!(number(1, "cached_tokens") >= number(0, "prompt_tokens"), "{all:#}");
    assert!(number(1, "prompt_tokens") - number(1, "cached_tokens") < 9, "{all:#}");

    // As text, each answer is a line; the same question has the same answer in a conversation of its own.
    let plain = chat(d.path(), words, lines).exits(0);
    let answers: Vec<&str> = plain.out.lines().collect();
    assert_eq!(answers.len(), 3, "{}", plain.out);
    assert_eq!((answers[0], answers[0]), (answers[2], messages[2]["content"].as_str().unwrap()));
    // Sampling and weights are set as for `generate`; a last line needs no end.
    let drawn = format!("{words}|--temperature|0.8|--top-k|5|--seed|3|--fusion|none");
    chat(d.path(), &drawn, b"why ?").exits(0);
    // A compiled folder takes the template along.
    wgfc(d.path(), "compile|model|-o|out|--generate").exits(0);
    let compiled = chat(d.path(), &words.replace("model|", "out|"), b"why is the sky blue ?").exits(0);
    assert_eq!(compiled.out.lines().next(), Some(answers[0]));
}

#[test]
fn conversations_that_cannot_be_are_explained() {
    let d = folder();
    prepare(d.path());
    let at = |name: &str| d.path().join("model").join(name);
    let model = fixture("small/decoder/model.onnx");
    chat(d.path(), &model, b"x\n").exits(1).says("without a tokenizer");
    let config = std::fs::read(at("tokenizer_config.json")).unwrap();
    std::fs::remove_file(at("tokenizer_config.json")).unwrap();
    chat(d.path(), "model", b"x\n").exits(1).says("has no chat template").says("wgfc generate --prompt");
    for (text, says) in [
        ("\n{% for %}", "line 2"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "steps that are allowed",
        ),
        ("{{ raise_exception('Nobody may speak') }}", "refuses the messages: Nobody may speak"),
    ] {
        std::fs::write(at("chat_template.jinja"), text).unwrap();
        chat(d.path(), "model", b"x\n").exits(1).says(says);
    }
    std::fs::remove_file(at("chat_template.jinja")).unwrap();
    std::fs::write(at("tokenizer_config.json"), "{").unwrap();
    chat(d.path(), "model", b"x\n").exits(1).says("tokenizer_config.json").says("correct or remove the file");
    std::fs::write(at("tokenizer_config.json"), config).unwrap();
    if crate::train::is_skipped("conversations_that_cannot_be") {
        return;
    }
    let words = "model|--adapter|software|--max-new-tokens|2|--capacity|6";
    chat(d.path(), words, b"\xff\xfe\n").exits(1).says("not text in UTF-8");
    chat(d.path(), words, &vec![b'x'; 2 << 20]).exits(1).says("more than 1048576 bytes");
    chat(d.path(), words, b"the the the the the the\n")
        .exits(1)
        .says("the cache may grow to 6 positions")
        .says("/reset");
    let e = chat(d.path(), &format!("{words}|--json"), b"the the the the the the\n").exits(1).json();
    assert_eq!(e["errors"][0]["kind"], "model");
    chat(d.path(), words, b"").exits(0);
    chat(d.path(), "model|--temperature=-1|--adapter|software", b"x\n").exits(1).says("temperature");
}

#[test]
fn the_perplexity_of_a_text() {
    if crate::train::is_skipped("the_perplexity") {
        return;
    }
    let d = folder();
    prepare(d.path());
    let write = |name: &str, text: &[u8]| std::fs::write(d.path().join(name), text).unwrap();
    write("text.txt", "why is the sky blue ? and the sea ? the sky is the sea .".as_bytes());
    let words = "bench|perplexity|model|--text|text.txt|--adapter|software|--window|6";
    let all = wgfc(d.path(), &format!("{words}|--json")).exits(0).json();
    let perplexity = all["perplexity"].as_f64().unwrap();
    let mean = all["mean_negative_log_likelihood"].as_f64().unwrap();
    assert!((perplexity - mean.exp()).abs() < 1e-9 * perplexity && mean > 0.0, "{all:#}");
    assert_eq!((&all["window"], &all["stride"]), (&6.into(), &3.into()));
    let tokens = all["tokens"].as_u64().unwrap();
    assert_eq!(all["windows"].as_u64().unwrap(), 1 + (tokens + 1 - 6).div_ceil(3), "{all:#}");
    // A run of a token each, and the compiled folder, give the same.
    wgfc(d.path(), "compile|model|-o|out|--generate").exits(0);
    for other in [format!("{words}|--prompt-chunk|1"), words.replace("|model|", "|out|")] {
        let other = wgfc(d.path(), &format!("{other}|--json")).exits(0).json();
        let other = other["perplexity"].as_f64().unwrap();
        assert!((other / perplexity - 1.0).abs() < 1e-4, "{other} and {perplexity}");
    }
    for more in ["--precision|f16", "--weights|q8", "--weights|q4", "--limit|4"] {
        wgfc(d.path(), &format!("{words}|{more}")).exits(0).prints("mean negative log-likelihood");
    }

    wgfc(d.path(), &format!("{words}|--stride|7")).exits(1).says("--stride 7");
    write("text.txt", b"");
    wgfc(d.path(), words).exits(1).says("has no perplexity");
    write("text.txt", b"\xff");
    wgfc(d.path(), words).exits(1).says("UTF-8");
    let model = fixture("small/decoder/model.onnx");
    write("text.txt", b"why ?");
    wgfc(d.path(), &words.replace("|model|", &format!("|{model}|"))).exits(1).says("without a tokenizer");
    wgfc(d.path(), &words.replace("text.txt", "none.txt")).exits(1).says("none.txt");
}

#[test]
fn an_encoder_and_a_decoder_of_two_files() {
    if crate::train::is_skipped("an_encoder") {
        return;
    }
    let d = folder();
    let at = |name: &str| fixture(&format!("torch/whisper/{name}"));
    let features = at("input_features.npy");
    let run = format!(
        "run|{}|--input|input_features={features}|--output-dir|out|--adapter|software",
        at("encoder.onnx")
    );
    wgfc(d.path(), &run).exits(0);
    let words =
        format!("generate|{}|--tokens|1|--max-new-tokens|10|--adapter|software|--json", at("decoder.onnx"));
    let context = "--context|encoder_hidden_states=out/last_hidden_state.npy";
    let made = wgfc(d.path(), &format!("{words}|{context}")).exits(0).json();
    let want = wgfc::npy::read(at("tokens.npy").as_ref()).unwrap().to_i64s().unwrap();
    assert_eq!(made["tokens"], serde_json::json!(want));
    wgfc(d.path(), &words).exits(2).prints("--context");
    wgfc(d.path(), &format!("{words}|--context|encoder_hidden_states")).exits(1).prints("has no value");
    wgfc(d.path(), &format!("{words}|--context|encoder_hidden_states=none.npy")).exits(1).prints("none.npy");
}
