//! Pictures of `wgfc generate` and `wgfc chat`.

use crate::{fixture, folder, wgfc};

#[test]
fn a_picture_is_continued_as_transformers_does() {
    if crate::train::is_skipped("a_picture_is_continued") {
        return;
    }
    let d = folder();
    let at = |name: &str| fixture(&format!("torch/vision-language/{name}"));
    let (one, other) = (at("picture.png"), at("other.png"));
    for name in ["idefics3", "llava"] {
        let model = at(name);
        let expected = std::fs::read(at(&format!("{name}/expected.json"))).unwrap();
        let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        let common = "--adapter|software|--max-new-tokens|10|--ignore-end";
        let run = |words: &str| wgfc(d.path(), &format!("generate|{model}|{common}|{words}"));
        let prompt = "--prompt|<s> compare <image> and <image> :";
        let got = run(&format!("--json|{prompt}|--image|{one}|--image|{other}")).exits(0).json();
        assert_eq!((&got["tokens"], &got["prompt"]), (&expected["two_tokens"], &expected["two_ids"]));
        let text = "--json|--prompt|<s> the sea is";
        let got = run(text).exits(0).json();
        assert_eq!(got["tokens"], expected["text_tokens"]);
        // The decoder's file stands for the folder above.
        let decoder = format!("{model}/onnx/decoder_model_merged.onnx");
        let same = wgfc(d.path(), &format!("generate|{decoder}|{common}|{text}"));
        assert_eq!(same.exits(0).json()["tokens"], expected["text_tokens"]);
        run(&format!("{prompt}|--image|{one}")).exits(1).says("has 2 places for pictures");
        run("--prompt|<image>").exits(1).says("no picture is given");
        run(&format!("--prompt|x|--image|{model}/config.json")).exits(1).says("is not a picture");
    }
    let text = fixture("small/decoder/model.onnx");
    wgfc(d.path(), &format!("generate|{text}|--adapter|software|--tokens|1|--image|{one}"))
        .exits(1)
        .says("has no vision encoder");
}

#[test]
fn parts_are_chosen_by_the_decoder_that_is_given() {
    let d = folder();
    let at = |name: &str| d.path().join("onnx").join(name);
    std::fs::create_dir(d.path().join("onnx")).unwrap();
    let from = |name: &str| fixture(&format!("torch/vision-language/llava/onnx/{name}.onnx"));
    std::fs::copy(from("decoder_model_merged"), at("decoder_model_merged_fp16.onnx")).unwrap();
    let run = |model: &str| {
        let words = "--adapter|software|--tokens|1,17|--max-new-tokens|2|--quiet";
        wgfc(d.path(), &format!("generate|{model}|{words}"))
    };
    run("onnx/decoder_model_merged_fp16.onnx").exits(2).says("put embed_tokens.onnx");
    // The only embedding is taken, and the only decoder of the folder.
    std::fs::copy(from("embed_tokens"), at("embed_tokens_q4.onnx")).unwrap();
    if crate::train::is_skipped("parts_are_chosen") {
        return;
    }
    run(".").exits(0);
    std::fs::copy(from("decoder_model_merged"), at("decoder_model_merged_q4.onnx")).unwrap();
    run(".").exits(1).says("holds 2 models and none is called model.onnx");
    run("onnx/decoder_model_merged_q4.onnx").exits(0);
    // A part of another model does not fit.
    std::fs::copy(from("vision_encoder"), at("embed_tokens_q4.onnx")).unwrap();
    run("onnx/decoder_model_merged_q4.onnx").exits(2).says("put embed_tokens.onnx");
}
