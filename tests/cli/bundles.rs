//! Bundles of several plans, programs in one file, and weights that are not copied.

use crate::{fixture, folder, mlp, wgfc};
use serde_json::Value;
use std::path::Path;

fn plan(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("plan.json")).unwrap()).unwrap()
}

#[test]
fn variants_are_plans_over_one_store() {
    let d = folder();
    let model = mlp();
    let compile = format!("compile|{model}|--variant|one:batch=1|--variant|any|-o");
    wgfc(d.path(), &format!("{compile}|out")).exits(0).prints("2 plans").prints("one 3, any 3");
    let v = wgfc(d.path(), &format!("{compile}|out.wgfc|--json")).exits(0).json();
    assert_eq!(v["plans"][0]["name"], "one");
    assert_eq!(v["plans"][1]["symbols"][0], "batch");
    let one = wgfc(d.path(), &format!("compile|{model}|-o|lone|--json")).exits(0).json();
    assert_eq!(v["weight_bytes"], one["weight_bytes"], "weights are there once");
    let written = plan(&d.path().join("out"));
    assert_eq!(written["version"], 1);
    assert_eq!(written["plans"][0]["inputs"][0]["shape"][0], 1);
    let kernels = std::fs::read_dir(d.path().join("out/kernels")).unwrap().count();
    assert_eq!(v["kernels"], kernels);

    for out in ["out", "out.wgfc"] {
        wgfc(d.path(), &format!("inspect|{out}")).exits(0).says("the first of the plans `one`, `any`");
        let any = wgfc(d.path(), &format!("inspect|{out}|--plan|any|--json|--dim|batch=7")).exits(0).json();
        assert_eq!(any["dispatches"], 3);
        wgfc(d.path(), &format!("inspect|{out}|--plan|gone")).exits(1).says("there is no plan `gone`");
    }
    // Starting a software adapter takes seconds while other tests compile too; `it` has more such runs.
    let run = |out: &str, batch| {
        wgfc(d.path(), &format!("run|{out}|--input|x=ones|--dim|batch={batch}|--json|--adapter|software"))
    };
    let one = run("out.wgfc", 1);
    if one.code == 0 {
        let (one, five) = (one.json(), run("out", 5).exits(0).json());
        assert_eq!((&one["outputs"][0]["shape"][0], &five["outputs"][0]["shape"][0]), (&1.into(), &5.into()));
        let first = |v: &Value| v["outputs"][0]["first"].as_array().unwrap()[..5].to_vec();
        assert_eq!(first(&one), first(&five));
    }
    wgfc(d.path(), &format!("{compile}|x|--variant|any:batch=2")).exits(1).says("two plans are called `any`");
    wgfc(d.path(), &format!("compile|{model}|-o|x|--variant|a:batch=x")).exits(1).says("not a whole number");
    wgfc(d.path(), &format!("compile|{model}|-o|x|--variant|a:f64")).exits(1).says("f64` is not a feature");
    wgfc(d.path(), &format!("inspect|{model}|--plan|a")).exits(1).says("--plan has no effect on a model");
    assert!(!d.path().join("x").exists());
}

#[test]
fn features_and_targets_need_no_such_device() {
    let d = folder();
    let half = fixture("small/half/model.onnx");
    let needs = |words: &str| {
        let out = wgfc(d.path(), &format!("compile|{half}|-o|out|--json{words}")).exits(0).json();
        out["plans"].as_array().unwrap().iter().map(|p| p["needs"]["features"].clone()).collect::<Vec<_>>()
    };
    let none = Value::Array(vec![]);
    let f16: Value = vec!["shader-f16"].into();
    assert_eq!(needs("|--target|web"), vec![none.clone()]);
    assert_eq!(needs("|--target|web|--features|f16"), vec![f16.clone()]);
    assert_eq!(needs("|--variant|half:f16|--variant|any"), [f16, none.clone()]);
    // A profile may have larger limits than every browser has.
    let profile = r#"{"version": 1, "limits": {"f16": true, "max_storage_buffers": 20}, "speeds": {}}"#;
    std::fs::write(d.path().join("p.json"), profile).unwrap();
    assert_ne!(needs("|--profile|p.json"), vec![none.clone()]);
    assert_eq!(needs("|--profile|p.json|--target|web"), [none]);
    let refused = format!("compile|{half}|-o|x|--features|f16,warp");
    wgfc(d.path(), &refused).exits(1).says("`warp` is not a feature");
    wgfc(d.path(), &format!("compile|{half}|-o|x|--for-device|--target|web"))
        .exits(1)
        .says("cannot be used with");
}

#[test]
fn one_file_is_replaced_only_where_it_is_ours() {
    let d = folder();
    let compile = format!("compile|{}|-o|m.wgfc", mlp());
    std::fs::write(d.path().join("m.wgfc"), "years of work").unwrap();
    // The name suggests a compiled program, so the file is replaced only if it can be read as one.
    wgfc(d.path(), &compile).exits(1).says("is not a compiled program").says("--force");
    wgfc(d.path(), &format!("{compile}|--force")).exits(0);
    wgfc(d.path(), &compile).exits(0);
    wgfc(d.path(), &format!("{compile}|--shard-size|1MB")).exits(1).says("one file");
    for size in ["0", "x", "12 parsecs"] {
        wgfc(d.path(), &format!("compile|{}|-o|o|--shard-size|{size}", mlp())).exits(1);
    }
    let good = std::fs::read(d.path().join("m.wgfc")).unwrap();
    // A program is recognised by its first bytes, whatever its name.
    std::fs::write(d.path().join("other.bin"), &good).unwrap();
    wgfc(d.path(), "inspect|other.bin").exits(0);
    std::fs::write(d.path().join("m.wgfc"), &good[..good.len() - 5]).unwrap();
    wgfc(d.path(), "inspect|m.wgfc").exits(1).says("not a safetensors file").says("cut short or damaged");
    std::fs::write(d.path().join("m.wgfc"), &good[..5]).unwrap();
    wgfc(d.path(), "run|m.wgfc|--random-inputs").exits(1).says("cut short or damaged");
    std::fs::write(d.path().join("w.wgfc"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    wgfc(d.path(), "inspect|w.wgfc").exits(1).says("has no entry `plan.json`");
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    std::fs::write(d.path().join("m.wgfc"), &bad).unwrap();
    wgfc(d.path(), "run|m.wgfc|--random-inputs|--dim|batch=1").exits(1).says("their hash differs");
}

#[test]
fn shards_and_weights_of_the_model_run() {
    let d = folder();
    for words in ["--shard-size|200", "--weights-from-model"] {
        wgfc(d.path(), &format!("compile|{}|-o|out|{words}", mlp())).exits(0);
        wgfc(d.path(), "inspect|out").exits(0).prints("weights: 552 B");
    }
    let refused = format!("compile|{}|-o|x|--weights-from-model|--random-weights", mlp());
    wgfc(d.path(), &refused).exits(1).says("cannot be used with");
}
