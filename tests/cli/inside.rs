//! `--tap`, `--add` and `--replace`.

use super::{folder, mlp, wgfc};
use wgfc::{Tensor, npy};

#[test]
fn a_tensor_is_added_to_and_replaced() {
    let d = folder();
    let compile = format!("compile|{}|-o|out|--add|a|--replace|logits|--tap|h", mlp());
    wgfc(d.path(), &compile)
        .exits(0)
        .prints("with, nothing given")
        .prints("with, whole tensors given")
        .prints("input `a.add`: f32[batch, ")
        .prints("input `logits.where`: bool[batch, 5], broadcast, optional");
    let json = wgfc(d.path(), &format!("{compile}|--force|--json")).exits(0).json();
    let cost = &json["looking_inside"];
    assert_eq!(cost["inputs"], serde_json::json!(["a.add", "logits.replace", "logits.where"]));
    // Writing the tap adds bytes.
    assert!(cost["nothing_given"]["bytes"].as_u64() > cost["without"]["bytes"].as_u64(), "{cost}");
    assert!(
        cost["whole_tensors_given"]["bytes"].as_u64() > cost["nothing_given"]["bytes"].as_u64(),
        "{cost}"
    );

    let run = format!("run|{}|--cpu|--json|--dim|batch=2|--input|x=0.5", mlp());
    let mean = |more: &str, output: usize| {
        let json = wgfc(d.path(), &format!("{run}|{more}")).exits(0).json();
        json["outputs"][output]["mean"].as_f64().unwrap()
    };
    let plain = mean("--tap|logits", 1);
    assert_eq!(mean("--add|logits|--tap|logits", 1), plain);
    assert!((mean("--add|logits|--tap|logits|--input|logits.add=2", 1) - plain - 2.0).abs() < 1e-5);
    assert_eq!(mean("--replace|logits|--tap|logits|--input|logits.replace=3", 1), 3.0);
    let nowhere = "--replace|logits|--tap|logits|--input|logits.replace=3|--input|logits.where=0";
    assert_eq!(mean(nowhere, 1), plain);

    wgfc(d.path(), &format!("compile|{}|-o|o|--add|logitz|--replace|aa", mlp()))
        .exits(1)
        .says("the model has no tensor \"logitz\" (--add logitz)")
        .says("close names: logits")
        .says("the model has no tensor \"aa\" (--replace aa)");
    wgfc(d.path(), "run|out|--add|a|--random-inputs")
        .exits(1)
        .says("--add has no effect on a compiled folder");
}

/// A direction is added to the residual stream of a decoder in each run: by the model itself, and by what `compile --generate` made of it.
#[test]
fn texts_are_steered() {
    if super::train::is_skipped("texts_are_steered") {
        return;
    }
    let d = folder();
    let stories = format!("{}/web/playground/models/stories", env!("CARGO_MANIFEST_DIR"));
    for (name, value) in [("none", 0.0), ("much", 3.0)] {
        let values: Vec<f32> = (0..64).map(|i| if i % 3 == 0 { value } else { -value }).collect();
        npy::write(&Tensor::from_f32(vec![64], &values), &d.path().join(format!("{name}.npy"))).unwrap();
    }
    let text = |model: &str, rest: &str| {
        let words =
            "--prompt|Once upon a time|--max-new-tokens|24|--temperature|0|--adapter|software|--quiet";
        wgfc(d.path(), &format!("generate|{model}|{words}{rest}")).exits(0).out
    };
    let plain = text(&stories, "");
    let add = "|--add|Add_13|--context|Add_13.add=";
    assert_eq!(text(&stories, "|--add|Add_13"), plain, "a run may leave it out");
    assert_eq!(text(&stories, &format!("{add}none.npy")), plain);
    let steered = text(&stories, &format!("{add}much.npy"));
    assert_ne!(steered, plain);
    wgfc(d.path(), &format!("compile|{stories}|-o|out|--generate|--add|Add_13|--tap|Add_19")).exits(0);
    assert_eq!(text("out", ""), plain);
    assert_eq!(text("out", "|--context|Add_13.add=much.npy"), steered);
    let wrong = "generate|out|--prompt|Once|--context|Add_7.add=much.npy|--adapter|software";
    wgfc(d.path(), wrong).exits(1).says("the model has no input `Add_7.add` to be given");
}
