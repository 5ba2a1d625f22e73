//! Reports of commands about a model and a run.

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
        assert!(x["writes"][0].as_str().unwrap().contains("batch, "), "{x}");
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
fn proofs_are_told_and_a_folder_is_trusted_on_demand_only() {
    let d = folder();
    let none = serde_json::json!({});
    let v = wgfc(d.path(), &format!("inspect|{}|--json", mlp())).exits(0).json();
    assert_eq!(v["kernels_proven_in_bounds"], v["kernels"]);
    assert_eq!(v["accesses_not_proven_in_bounds"], none);
    wgfc(d.path(), &format!("inspect|{}", mlp())).exits(0).prints("are proven to stay inside their buffers");
    let open = fixture("repro/reshape-sym.onnx");
    wgfc(d.path(), &format!("inspect|{open}")).exits(0).prints("runs with checks: ");
    let v = wgfc(d.path(), &format!("inspect|{open}|--json")).exits(0).json();
    let all = v["accesses_not_proven_in_bounds"].as_object().unwrap();
    assert!(!all.is_empty() && all.values().flat_map(|a| a.as_array().unwrap()).all(|a| a.is_string()));

    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    wgfc(d.path(), "inspect|out").exits(0).prints("a compiled folder carries no proofs");
    let v = wgfc(d.path(), "inspect|out|--json").exits(0).json();
    assert_eq!(v["kernels_proven_in_bounds"], 0);
    assert!(v["accesses_not_proven_in_bounds"].is_null());
    let run = |words: &str| wgfc(d.path(), &format!("{words}|--random-inputs|--dim|batch=3"));
    run(&format!("run|{}|--trust", mlp())).exits(1).says("--trust has no effect on a model");
    if wgfc::runtime::Gpu::adapters_blocking().is_empty() {
        return;
    }
    run("run|out|--output-dir|checked").exits(0);
    run("run|out|--output-dir|trusted|--trust").exits(0);
    run("bench|out|--runs|2|--trust").exits(0);
    assert_eq!(
        std::fs::read(d.path().join("checked/probabilities.npy")).unwrap(),
        std::fs::read(d.path().join("trusted/probabilities.npy")).unwrap()
    );
}

#[test]
fn pictures_name_operators_and_shapes_and_fold_layers() {
    let d = folder();
    wgfc(d.path(), &format!("inspect|{}|--graph|g.svg", fixture("resnet50.onnx"))).exits(0);
    let svg = std::fs::read_to_string(d.path().join("g.svg")).unwrap();
    assert!(svg.contains(">Conv, Relu<") && svg.contains("→ f32[batch, 64, 56, 56]"), "operators and shapes");
    // Twelve layers of attention, and a decoder's twenty-four layers. Each layer has its own inputs and
    // outputs, whose order changes after one of the layers.
    for (model, times, most) in
        [("bert-base.onnx", "12 ×  ", 2000.0), ("qwen2.5-0.5b.onnx", "19 ×  input ", 8000.0)]
    {
        wgfc(d.path(), &format!("inspect|{}|--graph|g.svg", fixture(model))).exits(0);
        let svg = std::fs::read_to_string(d.path().join("g.svg")).unwrap();
        assert!(svg.contains(times), "{model}");
        assert!(svg.contains("stands for n such layers"), "{model}");
        let size = |what: &str| -> f64 {
            svg.split(what).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        let (width, height) = (size("width=\""), size("height=\""));
        assert!(width < 3000.0 && height < most, "{model}: {width} × {height}");
    }
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

/// No error is constructed without advice on what to do.
#[test]
fn refusals_say_what_to_do() {
    // Constructors without a help text, which only their definitions may use.
    let bare = ["Problem::new(", "Error::file(", "help: None"];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = vec![];
    for (path, text) in crate::tree(&root) {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        let Ok(text) = String::from_utf8(text) else { continue };
        if !name.ends_with(".rs") || name == "error.rs" {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (n, line) in code.lines().enumerate().filter(|(_, l)| bare.iter().any(|b| l.contains(b))) {
            found.push(format!("src/{name}:{}: {}", n + 1, line.trim()));
        }
    }
    assert!(found.is_empty(), "these refusals say nothing of what to do:\n{}", found.join("\n"));

    let d = folder();
    let at = |name: &str| d.path().join(name);
    std::fs::write(at("noise.onnx"), [0xa7u8; 99]).unwrap();
    std::fs::write(at("empty.onnx"), []).unwrap();
    std::fs::write(at("bad.npy"), "no").unwrap();
    std::fs::write(at("bad.pb"), [0xffu8; 40]).unwrap();
    std::fs::write(at("bad.png"), "no").unwrap();
    std::fs::write(at("binary.txt"), [0xffu8; 4]).unwrap();
    std::fs::write(at("file"), "x").unwrap();
    wgfc::npy::write(&wgfc::Tensor::from_f32(vec![2, 14], &[0.1; 28]), &at("wide.npy")).unwrap();
    wgfc::npy::write(&wgfc::Tensor::from_f32(vec![2], &[0.1; 2]), &at("flat.npy")).unwrap();
    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    let run = format!("run|{}|--cpu", mlp());
    let decoder = fixture("small/decoder/model.onnx");
    for words in [
        "check|absent.onnx".to_owned(),
        "check|noise.onnx".into(),
        "check|empty.onnx".into(),
        "check|.".into(),
        "inspect|noise.onnx".into(),
        format!("compile|{}|-o|file", mlp()),
        format!("compile|{}|-o|file/below", mlp()),
        format!("compile|{}|-o|o|--dim|nobody=3", mlp()),
        format!("compile|{}|-o|o|--tap|nobody", mlp()),
        format!("compile|{}|-o|o|--fix|nobody=3", mlp()),
        format!("compile|{}|-o|o|--fix|x=y", mlp()),
        format!("compile|{}|-o|o|--state-capacity|8", mlp()),
        format!("compile|{decoder}|-o|o|--state-capacity|8|--state|input_ids=logits"),
        format!("compile|{}|-o|o|--tuning|file", mlp()),
        format!("compile|{}|-o|o", fixture("mobilenetv2.onnx")),
        run.clone(),
        format!("{run}|--input|x=random"),
        format!("{run}|--input|x=random:x"),
        format!("{run}|--input|x=bad.npy"),
        format!("{run}|--input|x=bad.pb"),
        format!("{run}|--input|x=bad.png"),
        format!("{run}|--input|x=wide.npy"),
        format!("{run}|--input|x=flat.npy"),
        format!("{run}|--input|x=gone.npy"),
        format!("{run}|--input|x=nonsense"),
        format!("{run}|--input|nobody=random"),
        format!("{run}|--input|x=random|--input|x=ones|--dim|batch=1"),
        format!("{run}|--random-inputs|--dim|batch=4000000000000"),
        format!("{run}|--random-inputs|--dim|batch=1|--labels|gone.txt"),
        format!("{run}|--random-inputs|--dim|batch=1|--labels|binary.txt"),
        format!("{run}|--random-inputs|--dim|batch=1|--output-dir|file"),
        "run|out|--cpu|--random-inputs".into(),
        "run|out|--tap|x|--random-inputs".into(),
        "inspect|out|--dim|nobody=3".into(),
        "inspect|out|--graph|g.gif".into(),
        "inspect|out|--graph|file/g.svg".into(),
        "generate|.|--tokens|1".into(),
        format!("generate|{decoder}|--tokens|99"),
        format!("generate|{decoder}|--tokens|1|--top-k|0"),
        format!("generate|{decoder}|--tokens|1|--top-p|2"),
        format!("generate|{decoder}|--tokens|1|--adapter|nobody"),
        format!("generate|{}|--tokens|1", mlp()),
        "bench|loops|tic-tac-toe".into(),
    ] {
        let ran = wgfc(d.path(), &words);
        assert!((1..=3).contains(&ran.code), "{words}: {} {}", ran.code, ran.err);
        let (errors, helps) = (ran.err.matches("error").count(), ran.err.matches("  help: ").count());
        let beginnings = ran.err.lines().filter(|l| l.starts_with("error")).count();
        assert!(errors > 0 && helps >= beginnings.max(1), "`{words}` does not say what to do:\n{}", ran.err);
    }
}
