//! `wgfc bisect`, `--without-pass` and `wgfc inspect --passes`.

use super::{Ran, command, fixture, folder, mlp, ran, wgfc};
use std::path::Path;

/// Runs `wgfc bisect` with a planted fault.
fn bisect(dir: &Path, fault: &str, words: &str) -> Ran {
    ran(command(dir, &format!("bisect|{words}")).env("WGFC_TEST_FAULT", fault))
}

#[test]
fn the_pass_with_a_planted_fault_is_named() {
    let d = folder();
    // Passes of each section that works on graphs; those of loops find none in the first model.
    for (model, pass) in [
        (mlp(), "quotients"),
        (mlp(), "rules"),
        (mlp(), "long-sums"),
        (mlp(), "reshaped-outputs"),
        (fixture("small/attention/model.onnx"), "attention"),
        (fixture("small/scan-batched/model.onnx"), "loop-lanes"),
    ] {
        let fault = format!("pass:{pass}");
        let v = bisect(d.path(), &fault, &format!("{model}|--passes-only|--json")).exits(4).json();
        assert_eq!(v["pass"]["name"], pass, "{model}: {v:#}");
        let changed = v["pass"]["changed"].as_array().unwrap();
        assert!(changed.iter().any(|l| l.as_str().unwrap().contains("planted")), "{v:#}");
        assert!(v["kernels"].is_null() && v["kernel"].is_null());
    }
    bisect(d.path(), "pass:merge", &format!("{}|--passes-only", mlp()))
        .exits(4)
        .prints("results differ first after the pass `merge`: \"probabilities\" has")
        .prints("planted")
        .prints("--without-pass merge");
}

#[test]
fn results_that_agree_are_said_to() {
    let d = folder();
    for model in ["mlp", "attention", "conv", "recurrent", "decoder"] {
        let path = fixture(&format!("small/{model}/model.onnx"));
        let v = wgfc(d.path(), &format!("bisect|{path}|--passes-only|--json")).exits(0).json();
        assert!(v["pass"].is_null(), "{model}: {v:#}");
        let passes = v["passes"].as_array().unwrap();
        assert!(passes.len() > 20 && passes.iter().any(|p| p["difference"].is_number()), "{v:#}");
    }
}

#[test]
fn the_kernel_with_a_planted_fault_is_named() {
    if wgfc::runtime::Gpu::adapters_blocking().is_empty() {
        return;
    }
    let d = folder();
    let whole = wgfc(d.path(), &format!("bisect|{}|--json", mlp())).exits(0).json();
    let all = whole["kernels"]["all"].as_u64().unwrap();
    assert!(all > 1 && whole["kernels"]["compared"].as_u64() == Some(all), "{whole:#}");
    for k in 0..all {
        let v = bisect(d.path(), &format!("kernel:{k}"), &format!("{}|--json", mlp())).exits(4).json();
        assert_eq!(v["kernel"]["index"].as_u64(), Some(k), "{v:#}");
        assert!(v["pass"].is_null() && v["kernel"]["text"].as_str().unwrap().contains(" = t"));
    }
    bisect(d.path(), "kernel:1", &mlp())
        .exits(4)
        .prints("results agree after every pass")
        .prints("results differ first at kernel 1");
    // Tensors in f16, and in another order of their axes.
    for (model, more) in [("small/conv", ""), ("small/attention", ""), ("small/decoder", "|--precision|f16")]
    {
        let v = wgfc(d.path(), &format!("bisect|{}|--json{more}", fixture(&format!("{model}/model.onnx"))))
            .json();
        assert!(v["kernel"].is_null() && v["kernels"]["outputs"].is_null(), "{model}: {v:#}");
    }
}

#[test]
fn passes_are_listed_and_left_out() {
    let d = folder();
    wgfc(d.path(), &format!("inspect|{}|--passes", mlp()))
        .exits(0)
        .prints("attention-scales")
        .prints("kernels:");
    let words = format!("inspect|{}|--passes|--json|--without-pass|rules", mlp());
    let v = wgfc(d.path(), &words).exits(0).json();
    assert_eq!(v["left_out"], serde_json::json!([{ "name": "rules", "because": "--without-pass" }]));
    assert!(v["passes"].as_array().unwrap().iter().all(|p| p["name"] != "rules"));
    wgfc(d.path(), &format!("check|{}", mlp())).exits(0);
    wgfc(d.path(), &format!("inspect|{}|--without-pass|clean", mlp()))
        .exits(1)
        .says("the pass `clean` cannot be left out");
    wgfc(d.path(), &format!("inspect|{}|--without-pass|cleen", mlp()))
        .exits(1)
        .says("there is no pass `cleen`");
    ran(command(d.path(), &format!("inspect|{}", mlp())).env("WGFC_DUMP", "dump")).exits(0);
    let dumped = std::fs::read_dir(d.path().join("dump/passes")).unwrap().count();
    assert!(dumped > 2 && d.path().join("dump/2-rewrite.txt").is_file(), "{dumped}");
}
