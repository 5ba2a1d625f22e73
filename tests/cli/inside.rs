//! `--tap`, `--add` and `--replace`.

use super::{folder, mlp, wgfc};

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
