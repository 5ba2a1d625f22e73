//! `--precision f16`, `--keep-f32` and `wgfc compare`.

use super::{folder, mlp, wgfc};
use crate::train::is_skipped;
use wgfc::runtime::Gpu;

#[test]
fn a_model_is_compiled_in_half_and_compared() {
    let d = folder();
    let json = wgfc(d.path(), &format!("inspect|{}|--precision|f16|--json", mlp())).exits(0).json();
    assert!(json["f16_in_memory"]["small"].as_u64() > Some(0), "{}", json["f16_in_memory"]);
    wgfc(d.path(), &format!("inspect|{}|--precision|f16", mlp())).exits(0).prints("  f16 in memory: ");
    let plain = wgfc(d.path(), &format!("inspect|{}|--json", mlp())).exits(0).json();
    assert!(plain["f16_in_memory"].is_null());

    wgfc(d.path(), &format!("compile|{}|-o|out|--precision|f16", mlp())).exits(0);
    wgfc(d.path(), "run|out|--random-inputs|--precision|f16")
        .exits(1)
        .says("--precision has no effect on a compiled folder");
    wgfc(d.path(), &format!("inspect|{}|--precision|f16|--keep-f32|nothing_like_it", mlp()))
        .exits(1)
        .says("the model has no node \"nothing_like_it\" (--keep-f32 nothing_like_it)");
    wgfc(d.path(), "compare|out").exits(1).says("a compiled program has no names of its tensors");
}

#[test]
fn tensors_are_compared_in_order() {
    if Gpu::adapters_blocking().iter().all(|a| !a.is_software) {
        return;
    }
    let d = folder();
    let run = format!("compare|{}|--dim|batch=700|--adapter|software", mlp());
    let text = wgfc(d.path(), &format!("{run}|--precision|f16")).exits(0);
    let text = text.prints("compared with the program in f32").prints("relative error");
    let text = text.prints("probabilities");
    assert!(text.out.contains("f16") || text.out.contains("f32"), "{}", text.out);
    let json = wgfc(d.path(), &format!("{run}|--json")).exits(0).json();
    assert_eq!(json["reference"], "the reference evaluator");
    let all = json["tensors"].as_array().unwrap();
    assert!(all.iter().all(|t| t["relative_error"].as_f64().is_some_and(|e| e < 1e-3)), "{json}");
    assert_eq!(all.last().unwrap()["name"], "probabilities");
}

#[test]
fn comparing_says_which_weights_are_quantised() {
    if is_skipped("comparing_says_which") {
        return;
    }
    let d = folder();
    let compare = format!("compare|{}|--adapter|software|--weights|q8", mlp());
    wgfc(d.path(), &compare).exits(1).says("no weight is quantised: 2 are left as they are: w0, w1");
    let model = d.path().join("chain.onnx");
    std::fs::write(&model, crate::hostile::products(1, 64)).unwrap();
    wgfc(d.path(), "compare|chain.onnx|--adapter|software|--weights|q8")
        .exits(0)
        .says("1 weights in 8 bits")
        .says("no other is left as it is");
}

#[test]
fn free_dimensions_are_small_and_said() {
    if is_skipped("free_dimensions") {
        return;
    }
    let d = folder();
    let bench = format!("bench|{}|--random-inputs|--adapter|software|--runs|2", mlp());
    wgfc(d.path(), &bench).exits(0).says("using --dim batch=1");
    let compare = format!("compare|{}|--adapter|software", mlp());
    wgfc(d.path(), &compare).exits(0).says("using --dim batch=1");
    wgfc(d.path(), &format!("{bench}|--dim|batch=3")).exits(0).omits("using --dim");
}

#[test]
fn rows_of_kernels_are_written_as_they_come() {
    if is_skipped("rows_of_kernels") {
        return;
    }
    let d = folder();
    wgfc(d.path(), "bench|kernels|product/matmul|--work|1|--adapter|software|--csv|k.csv")
        .exits(0)
        .says("note: 1 of ")
        .says("of the bound");
    assert!(std::fs::read_to_string(d.path().join("k.csv")).unwrap().lines().count() > 1);
}
