//! What commands tell about a model and a run.

use crate::{command, fixture, folder, mlp, ran, wgfc};

#[test]
fn inspect_counts_each_node_once_and_names_what_kernels_do() {
    let d = folder();
    let model = fixture("mobilenetv2.onnx");
    let v = wgfc(d.path(), &format!("inspect|{model}|--json")).exits(0).says("taken as 1").json();
    let families = v["families"].as_array().unwrap();
    let nodes: u64 = families.iter().map(|f| f["nodes"].as_u64().unwrap()).sum();
    assert!(nodes > 0 && nodes <= v["nodes"].as_u64().unwrap(), "{nodes} of {}", v["nodes"]);
    assert_eq!(v["dims_not_given"], serde_json::json!(["batch"]));
    for x in v["dispatch_list"].as_array().unwrap() {
        let operators: Vec<&str> =
            x["operators"].as_array().unwrap().iter().filter_map(|o| o.as_str()).collect();
        assert!(!operators.is_empty(), "{x}");
        if operators.contains(&"Conv") {
            assert_ne!(x["family"], "matmul", "{x}");
        }
        assert!(x["writes"][0].as_str().unwrap().contains("[batch, "), "{x}");
    }
    wgfc(d.path(), &format!("inspect|{model}|--dispatches|--quiet"))
        .exits(0)
        .prints("batch = 1 (not given)")
        .prints("conv")
        .prints("f32[batch, 1000]");
    let given = wgfc(d.path(), &format!("inspect|{model}|--dim|batch=2")).exits(0);
    assert!(!given.out.contains("not given") && !given.err.contains("taken as 1"), "{}", given.err);
}

#[test]
fn pictures_name_operators_and_shapes_and_fold_layers() {
    let d = folder();
    wgfc(d.path(), &format!("inspect|{}|--graph|g.svg", fixture("resnet50.onnx"))).exits(0);
    let svg = std::fs::read_to_string(d.path().join("g.svg")).unwrap();
    assert!(svg.contains(">Conv, Relu<") && svg.contains("→ f32[batch, 64, 56, 56]"), "operators and shapes");
    assert!(svg.contains("5 ×  ") && svg.contains("stands for n such layers"), "layers");
    let height: f64 = svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
    assert!(height < 5000.0, "{height}");
}

#[test]
fn the_log_says_what_stages_made() {
    let d = folder();
    let words = format!("compile|{}|-o|out", mlp());
    let log =
        ran(command(d.path(), &words).env("WGFC_LOG", "wgfc_compiler=debug").env("NO_COLOR", "1")).exits(0);
    for stage in ["import", "rewrite", "fuse", "assemble"] {
        assert!(log.err.contains(&format!("stage=\"{stage}\"")), "{stage}:\n{}", log.err);
    }
    assert!(
        log.err.contains("nodes=") && log.err.contains("kernels=") && log.err.contains("ms="),
        "{}",
        log.err
    );
    ran(command(d.path(), &words).env("WGFC_LOG", "a=b=c")).exits(0).says("WGFC_LOG cannot be understood");
    assert_eq!(wgfc(d.path(), &words).exits(0).err, "");
}

#[test]
fn inputs_of_another_type_are_converted_when_asked() {
    let d = folder();
    let x: Vec<_> =
        (0..26).map(|i| wgfc::ir::Scalar::from_f64(wgfc::DType::F64, f64::from(i) / 7.0)).collect();
    let at = |name: &str| d.path().join(name);
    wgfc::npy::write(&wgfc::Tensor::from_scalars(wgfc::DType::F64, vec![2, 13], &x), &at("d.npy")).unwrap();
    wgfc::npy::write(&wgfc::Tensor::from_i64(vec![2, 13], &[3; 26]), &at("i.npy")).unwrap();
    wgfc::npy::write(&wgfc::Tensor::from_i64(vec![2, 13], &[(1 << 53) + 1; 26]), &at("long.npy")).unwrap();
    let run = |rest: &str| wgfc(d.path(), &format!("run|{}|--cpu|--input|{rest}", mlp()));
    run("d.npy").exits(1).says("is f64, the model wants f32").says("--cast converts it");
    run("d.npy|--cast").exits(0).says("f64 converted to f32, which rounds 2");
    run("i.npy|--cast").exits(0).says("i64 converted to f32, which changes no value");
    run("long.npy|--cast")
        .exits(0)
        .says("which rounds 26 of 26 values, as 9007199254740993 to 9007199254740992");
}

#[test]
fn set_up_and_runs_are_told_apart() {
    let d = folder();
    let v =
        wgfc(d.path(), &format!("run|{}|--cpu|--random-inputs|--dim|batch=1|--json", mlp())).exits(0).json();
    assert!(v["compiling_seconds"].as_f64().unwrap() > 0.0 && v["uploading_seconds"] == 0.0, "{v}");
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    wgfc(d.path(), &format!("run|{}|--random-inputs|--dim|batch=1|--profile", mlp()))
        .exits(0)
        .prints("compiling the model")
        .prints("its kernels on the device")
        .prints("the run on")
        .prints("runs of each kind measured: ");
    wgfc(d.path(), &format!("bench|{}|--random-inputs|--dim|batch=1|--runs|500000|--budget|0.2", mlp()))
        .exits(0)
        .prints("fewer than 500000 runs: --budget is 0.2 s");
}
