//! Speculation, and caches in files.

use crate::{fixture, folder, wgfc};

fn decoder(name: &str) -> String {
    fixture(&format!("decoders/{name}/model.gguf"))
}

#[test]
fn guessed_tokens_change_nothing_but_the_number_of_runs() {
    if crate::train::is_skipped("guessed_tokens") {
        return;
    }
    let (d, llama) = (folder(), decoder("llama"));
    let words = format!(
        "generate|{llama}|--tokens|3,1,36,0,8|--max-new-tokens|60|--adapter|software|--json|--ignore-end"
    );
    let plain = wgfc(d.path(), &words).exits(0).json();
    assert!(plain["stats"]["speculation"].is_null());
    for how in ["--speculate|lookup".to_owned(), format!("--draft|{llama}|--speculate|draft:3")] {
        let all = wgfc(d.path(), &format!("{words}|{how}")).exits(0).json();
        assert_eq!(all["tokens"], plain["tokens"]);
        let counts = &all["stats"]["speculation"];
        assert!(counts["accepted_tokens"].as_u64() > Some(0), "{counts:#}");
        assert!(counts["tokens_per_run"].as_f64() > Some(1.0), "{counts:#}");
    }
    let words = words.replace("|--json", "");
    wgfc(d.path(), &format!("{words}|--speculate|lookup:0")).exits(1).says("1 to 63");
    wgfc(d.path(), &format!("{words}|--speculate|draft")).exits(1).says("--draft");
    wgfc(d.path(), &format!("{words}|--speculate|lookup|--draft|{llama}")).exits(1).says("leave one");
    let other = fixture("small/decoder/model.onnx");
    wgfc(d.path(), &format!("{words}|--draft|{other}")).exits(1).says("same family");
    wgfc(d.path(), &format!("compile|{llama}|-o|out|--generate|--page|16")).exits(1).says("--page");
    wgfc(d.path(), &format!("compile|{llama}|-o|out|--generate")).exits(0);
    let compiled = words.replace(&llama, "out");
    wgfc(d.path(), &format!("{compiled}|--speculate|lookup")).exits(1).says("no program that verifies");
}

#[test]
fn speculation_is_measured() {
    if crate::train::is_skipped("speculation_is_measured") {
        return;
    }
    let words = format!(
        "bench|decode|{}|--adapter|software|--speculate|lookup:4|--past|16|--tokens|30|--json",
        decoder("llama")
    );
    let all = wgfc(folder().path(), &words).exits(0).json();
    let s = &all["speculation"];
    assert_eq!(s["positions"], 5);
    assert!(s["runs"][0]["ratio"].as_f64() > Some(0.0), "{s:#}");
    let words = words.replace("|--json", "|--batch|2");
    wgfc(folder().path(), &words).exits(1).says("several sequences");
}

#[test]
fn caches_are_saved_and_loaded() {
    if crate::train::is_skipped("caches_are_saved") {
        return;
    }
    let (d, llama) = (folder(), decoder("llama"));
    let generate = |tokens: &str, more: &str| {
        let words = format!("generate|{llama}|--tokens|{tokens}|--adapter|software|--max-new-tokens|9");
        wgfc(d.path(), &format!("{words}|--ignore-end{more}"))
    };
    generate("3,1,36,0,8", "|--save-cache|book.cache").exits(0).says("14 tokens are saved in book.cache");
    let want = generate("3,1,36,0,8,7", "|--json").exits(0).json();
    let got = generate("3,1,36,0,8,7", "|--load-cache|book.cache|--json").exits(0).json();
    assert_eq!(got["tokens"], want["tokens"]);
    assert_eq!((&got["stats"]["cached_tokens"], &want["stats"]["cached_tokens"]), (&5.into(), &0.into()));
    generate("3", "|--load-cache|absent").exits(1).says("no such file");
    generate("3", "|--load-cache|book.cache|--capacity|10").exits(1).says("--capacity");
    generate("3", "|--load-cache|book.cache|--precision|f16").exits(1).says("f16");
    std::fs::write(d.path().join("bad"), b"no cache").unwrap();
    generate("3", "|--load-cache|bad").exits(1).says("safetensors");
    generate("3", "|--save-cache|book.cache/x").exits(1).says("book.cache");
}
