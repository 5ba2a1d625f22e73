//! `wgfc compile` without `-o`: the output path, the printed text, and the printed commands, which must run.

use crate::{fixture, folder, tree, wgfc};

fn attention() -> String {
    fixture("small/attention/model.onnx")
}

/// The arguments of a printed command, for [`wgfc`].
fn words(command: &str) -> String {
    command.strip_prefix("wgfc ").unwrap().replace(' ', "|")
}

#[test]
fn a_model_alone_is_compiled_to_a_folder_of_its_name() {
    let d = folder();
    let compile = format!("compile|{}", attention());
    wgfc(d.path(), &compile)
        .exits(0)
        .prints("model: ")
        .prints("Softmax × 1")
        .prints("merged, since they share an operand: 1 × 3 products")
        .prints("a run takes at least")
        .prints("by the device profile: portable")
        .prints("\n  wgfc run model --random-inputs");
    assert!(d.path().join("model/plan.json").is_file());
    // A program's own files are replaced.
    let json = wgfc(d.path(), &format!("{compile}|--json")).exits(0).json();
    assert_eq!(json["output"], "model");
    assert_eq!(json["merged_products"], serde_json::json!([3]));
    assert!(json["seconds_bound"].as_f64().unwrap() > 0.0);
    for command in json["next"].as_array().unwrap() {
        let command = words(command.as_str().unwrap());
        match command.starts_with("run|") {
            true => wgfc(d.path(), &format!("{command}|--adapter|software")).exits(0),
            // A benchmark takes seconds, so it only has to fail on a missing adapter.
            false => wgfc(d.path(), &format!("{command}|--adapter|no such")).exits(3).says("no such"),
        };
    }
}

#[test]
fn what_is_not_a_program_is_not_replaced() {
    let d = folder();
    std::fs::create_dir(d.path().join("model")).unwrap();
    std::fs::write(d.path().join("model/thesis.txt"), "years").unwrap();
    let before = tree(d.path());
    wgfc(d.path(), &format!("compile|{}", attention())).exits(1).says("model").says("--force");
    assert_eq!(tree(d.path()), before);
    // A folder with a model is not replaced; its program gets another name.
    let models = d.path().join("qwen");
    std::fs::create_dir(&models).unwrap();
    std::fs::copy(fixture("small/decoder/model.onnx"), models.join("model.onnx")).unwrap();
    wgfc(d.path(), "compile|qwen|--generate").exits(0).prints("wgfc generate qwen-compiled --prompt");
    assert!(d.path().join("qwen-compiled").is_dir() && models.join("model.onnx").is_file());
    wgfc(d.path(), "compile|qwen/model.onnx|-o|it is")
        .exits(0)
        .prints("\n  wgfc run 'it is' --random-inputs");
    // A program without weights cannot be run.
    wgfc(d.path(), &format!("compile|{}|--graph-only", fixture("mobilenetv2.onnx")))
        .exits(0)
        .prints("\n  wgfc inspect mobilenetv2 --dispatches");
}
