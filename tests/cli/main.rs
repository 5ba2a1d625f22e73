//! The command line from outside: exit codes, the contents of stdout and stderr, and no files left behind by
//! bad input.

mod adapter;
#[cfg(feature = "api")]
mod api;
mod archives;
mod bisect;
mod bundles;
mod chat;
mod compile;
mod hostile;
#[cfg(feature = "hub")]
mod hub;
mod inside;
mod measure;
mod output;
mod pictures;
mod precision;
mod profiles;
mod report;
mod serve;
mod sizes;
mod speculation;
mod train;
mod wrong;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).display().to_string()
}

fn mlp() -> String {
    fixture("small/mlp/model.onnx")
}

/// The result of a run of the program.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    #[track_caller]
    fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
    #[track_caller]
    fn says(self, text: &str) -> Ran {
        assert!(self.err.contains(text), "`{text}` is not in stderr:\n{}", self.err);
        self
    }
    #[track_caller]
    fn omits(self, text: &str) -> Ran {
        assert!(!self.err.contains(text), "`{text}` is in stderr:\n{}", self.err);
        self
    }
    #[track_caller]
    fn prints(self, text: &str) -> Ran {
        assert!(self.out.contains(text), "`{text}` is not in stdout:\n{}", self.out);
        self
    }
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}:\n{}", self.out))
    }
}

/// Runs `wgfc` in `dir`; arguments are separated by `|`, because paths may contain spaces.
fn wgfc(dir: &Path, words: &str) -> Ran {
    ran(&mut command(dir, words))
}

/// The command `wgfc` in `dir`, not started yet.
fn command(dir: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wgfc"));
    command
        .args(words.split('|').map(str::trim))
        .current_dir(dir)
        .env_remove("WGFC_LOG")
        .env("WGFC_CACHE_DIR", dir.join("cache"));
    command
}

fn ran(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Every file below `dir` with its bytes, sorted.
fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(tree(&path));
        } else {
            all.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn help_has_examples_and_exit_codes() {
    let d = folder();
    wgfc(d.path(), "--help").exits(0).prints("Exit codes:").prints("wgfc run model.onnx");
    for command in [
        "compile",
        "run",
        "generate",
        "chat",
        #[cfg(feature = "api")]
        "api",
        "train",
        "inspect",
        "check",
        "device",
        "tune",
        "selftest",
        "compare",
        "reduce",
        "report",
        "completions",
    ] {
        wgfc(d.path(), &format!("{command}|--help")).exits(0).prints("Example");
    }
    wgfc(d.path(), "completions|bash").exits(0).prints("_wgfc");
    wgfc(d.path(), "--version").exits(0).prints("wgfc ");
    wgfc(d.path(), "no-such-command").exits(1);
    wgfc(d.path(), "run").exits(1);
    wgfc(d.path(), "compile|m.onnx|-o|out|--dim|batch=x").exits(1).says("not a whole number");
}

#[test]
fn compiling_twice_gives_the_same_bytes() {
    let d = folder();
    for out in ["a", "b"] {
        wgfc(d.path(), &format!("compile|{}|-o|{out}", mlp())).exits(0).prints("dispatches of");
    }
    let strip = |name: &str| -> Vec<(PathBuf, Vec<u8>)> {
        let root = d.path().join(name);
        tree(&root).into_iter().map(|(p, b)| (p.strip_prefix(&root).unwrap().to_owned(), b)).collect()
    };
    let (a, b) = (strip("a"), strip("b"));
    assert!(a.iter().any(|f| f.0 == Path::new("plan.json")) && a == b);
    // Compiling into the same folder again replaces the program without --force and leaves nothing else.
    wgfc(d.path(), &format!("compile|{}|-o|a|--quiet", mlp())).exits(0);
    assert_eq!(strip("a"), a);
    let left: Vec<_> = std::fs::read_dir(d.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn only_our_own_output_is_replaced() {
    let d = folder();
    let out = d.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("thesis.txt"), "years of work").unwrap();
    let compile = format!("compile|{}|-o|out", mlp());
    wgfc(d.path(), &compile).exits(1).says("holds more than a compiled program").says("--force");
    assert_eq!(tree(&out).len(), 1);
    wgfc(d.path(), &format!("{compile}|--force")).exits(0);
    assert!(!out.join("thesis.txt").exists() && out.join("plan.json").exists());
    std::fs::write(d.path().join("file"), "x").unwrap();
    wgfc(d.path(), &format!("compile|{}|-o|file", mlp())).exits(1).says("not a folder");
    wgfc(&out, &format!("compile|{}|-o|.|--force", mlp())).exits(1).says("current folder");
}

#[test]
fn broken_models_leave_nothing_behind() {
    let d = folder();
    let whole = std::fs::read(mlp()).unwrap();
    std::fs::write(d.path().join("short.onnx"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(d.path().join("empty.onnx"), []).unwrap();
    std::fs::write(d.path().join("noise.onnx"), [0xa7u8; 999]).unwrap();
    for model in ["short.onnx", "empty.onnx", "noise.onnx", "absent.onnx"] {
        wgfc(d.path(), &format!("compile|{model}|-o|out")).exits(1).says("error").says(model);
        wgfc(d.path(), &format!("run|{model}|--random-inputs")).exits(1).says("error");
        wgfc(d.path(), &format!("inspect|{model}")).exits(1).says("error");
        wgfc(d.path(), &format!("check|{model}")).exits(1).says("error");
        let v = wgfc(d.path(), &format!("check|{model}|--json")).exits(1).json();
        assert!(v["errors"].as_array().is_some_and(|e| !e.is_empty()), "{v}");
    }
    assert!(!d.path().join("out").exists());
    assert_eq!(std::fs::read_dir(d.path()).unwrap().count(), 3);
    wgfc(d.path(), "check|.").exits(1).says("holds 3 models and none is called model.onnx");
}

#[test]
fn missing_weights_are_explained_and_can_be_made_up() {
    let d = folder();
    let model = d.path().join("m.onnx");
    std::fs::copy(fixture("mobilenetv2.onnx"), &model).unwrap();
    wgfc(d.path(), "compile|m.onnx|-o|out").exits(1).says("external data").says("help:");
    wgfc(d.path(), "run|m.onnx|--random-inputs|--dim|batch=1").exits(1).says("--random-weights");
    assert!(!d.path().join("out").exists());
    wgfc(d.path(), "check|m.onnx").exits(0).prints("everything in it is supported");
    let planned = wgfc(d.path(), "inspect|m.onnx|--json").exits(0).says("absent").json();
    assert_eq!(planned["weights_absent"], true);
    wgfc(d.path(), "compile|m.onnx|-o|out|--graph-only").exits(0);
    wgfc(d.path(), "inspect|out").exits(0).prints("absent");
    wgfc(d.path(), "compile|m.onnx|-o|made|--random-weights|--quiet").exits(0).says("are random");
    assert!(d.path().join("made/weights.safetensors").metadata().unwrap().len() > 13 << 20);
    let made = wgfc(d.path(), "inspect|made|--json").exits(0).json();
    for key in ["nodes", "dispatches", "kernels", "bytes_moved"] {
        assert_eq!(made[key], planned[key], "{key}");
    }
}

#[cfg(unix)]
#[test]
fn external_data_outside_the_folder_is_refused() {
    let d = folder();
    let inner = d.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::copy(fixture("mobilenetv2.onnx"), inner.join("mobilenetv2.onnx")).unwrap();
    std::fs::write(d.path().join("outside"), vec![0u8; 20 << 20]).unwrap();
    std::os::unix::fs::symlink("../outside", inner.join("mobilenetv2.onnx.data")).unwrap();
    wgfc(&inner, "compile|mobilenetv2.onnx|-o|out").exits(1).says("leaves the model's folder");
}

#[test]
fn running_on_the_cpu_is_said_and_gives_the_expected_output() {
    let d = folder();
    let data = fixture("small/mlp/test_data_set_1");
    wgfc(d.path(), &format!("run|{}|--cpu|--input|x={data}/input_0.pb|--output-dir|results", mlp()))
        .exits(0)
        .says("running on the CPU with the reference evaluator")
        .prints("probabilities")
        .prints("f32[3, 5]");
    let got = wgfc::npy::read(&d.path().join("results/probabilities.npy")).unwrap();
    let want = wgfc::pb::read(Path::new(&format!("{data}/output_0.pb"))).unwrap();
    assert_eq!(got.shape, want.shape);
    for (a, b) in got.to_f32s().unwrap().iter().zip(want.to_f32s().unwrap()) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    // The .npy output can be used as an input; wrong names, types, shapes and files are refused.
    wgfc::npy::write(&wgfc::Tensor::from_f32(vec![2, 13], &[0.1; 26]), &d.path().join("x.npy")).unwrap();
    wgfc::npy::write(&wgfc::Tensor::from_i64(vec![2, 13], &[1; 26]), &d.path().join("i.npy")).unwrap();
    wgfc::npy::write(&wgfc::Tensor::from_f32(vec![2, 14], &[0.1; 28]), &d.path().join("wide.npy")).unwrap();
    std::fs::write(d.path().join("bad.npy"), "no").unwrap();
    std::fs::write(d.path().join("bad.pb"), [0xffu8; 40]).unwrap();
    let run = |inputs: &str| wgfc(d.path(), &format!("run|{}|--cpu|{inputs}", mlp()));
    run("--input|x.npy").exits(0);
    run("--input|x=random:3|--dim|batch=4|--repeat|3").exits(0).prints("f32[4, 5]");
    run("--input|x=0.5|--dim|batch=1").exits(0);
    run("--json|--random-inputs|--dim|batch=1").exits(0);
    run("--quiet").exits(1).says("input `x` is f32[batch, 13] and was not given").says("--random-inputs");
    run("--input|y=random").exits(1).says("no input `y`").says("its inputs are `x`");
    run("--input|x=i.npy").exits(1).says("is i64, the model wants f32");
    run("--input|x=wide.npy").exits(1).says("f32[batch, 13]").says("[2, 14]");
    run("--input|x=bad.npy").exits(1).says("not a .npy file");
    run("--input|x=bad.pb").exits(1).says("bad.pb");
    run("--input|x=gone.npy").exits(1).says("no such file");
    run("--input|x=nonsense").exits(1).says("not a source for an input");
    run("--input|x=random").exits(1).says("`batch`").says("--dim batch=1");
    run("--input|x=x.npy|--dim|batch=3").exits(1);
    run("--input|x=x.npy|--labels|gone.txt").exits(1).says("no such file");
    let v = run("--json|--input|y=ones").exits(1).json();
    assert_eq!(v["errors"][0]["kind"], "model");
}

#[test]
fn an_edited_program_is_refused() {
    let d = folder();
    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    let plan = d.path().join("out/plan.json");
    let good = std::fs::read_to_string(&plan).unwrap();
    let refused = |what: &str, text: &str| {
        std::fs::write(&plan, text).unwrap();
        wgfc(d.path(), "inspect|out").exits(1).says(what);
        wgfc(d.path(), "run|out|--random-inputs|--dim|batch=1").exits(1).says(what);
    };
    refused("is not a plan", &good[..good.len() / 2]);
    refused("is of format version 99", &good.replacen("\"version\": 1", "\"version\": 99", 1));
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut v: Value = serde_json::from_str(&good).unwrap();
        edit(&mut v);
        v.to_string()
    };
    refused("plan.json", &edited(&|v| v["plans"][0]["dispatches"][0]["kernel"] = 999.into()));
    refused("plan.json", &edited(&|v| v["plans"][0]["dispatches"][0]["bindings"][0] = 12345.into()));
    refused("plan.json", &edited(&|v| v["plans"][0]["dispatches"][0]["workgroups"][0] = "nobody + 1".into()));
    refused(
        "cannot be a file's name",
        &edited(&|v| v["plans"][0]["kernels"][0]["name"] = "../../secret".into()),
    );
    std::fs::write(&plan, &good).unwrap();
    let weights = d.path().join("out/weights.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 3]).unwrap();
    wgfc(d.path(), "inspect|out").exits(1).says("bytes, and had");
    std::fs::remove_file(&weights).unwrap();
    wgfc(d.path(), "inspect|out").exits(1).says("no such file");
    std::fs::write(&weights, &bytes).unwrap();
    std::fs::remove_dir_all(d.path().join("out/kernels")).unwrap();
    wgfc(d.path(), "inspect|out").exits(1).says(".wgsl");
    wgfc(d.path(), "inspect|.").exits(1).says("plan.json");
}

#[test]
fn inspect_prints_the_bandwidth_exercise() {
    let d = folder();
    let model = fixture("bandwidth.onnx");
    wgfc(d.path(), &format!("inspect|{model}|--bandwidth|320"))
        .exits(0)
        .prints("128 MB fused, 512 MB unfused")
        .prints("0.4 ms fused, 1.6 ms unfused");
    let v = wgfc(d.path(), &format!("inspect|{model}|--json")).exits(0).json();
    for key in
        ["nodes", "kernels", "dispatches", "bytes_moved", "bytes_moved_unfused", "peak_activation_bytes"]
    {
        assert!(v[key].is_u64(), "{key}: {v}");
    }
}

#[test]
fn schedules_are_printed_changed_and_refused() {
    let d = folder();
    let model = fixture("small/attention/model.onnx");
    wgfc(d.path(), &format!("inspect|{model}|--schedule")).exits(0).prints("product ");
    let file = d.path().join("schedule.json");
    let loops = wgfc(d.path(), &format!("inspect|{model}|--loops")).exits(0);
    loops.prints("kernel \"").prints("sum= ").prints("storage write");
    let loops = wgfc(d.path(), &format!("inspect|{model}|--loops|--json")).exits(0).json();
    assert!(loops[0]["count"].as_u64() > Some(0) && loops[0]["loops"].is_string(), "{loops:#}");
    let all = wgfc(d.path(), &format!("inspect|{model}|--schedule|--json")).exits(0).json();
    let product = |v: &Value| {
        let choices = v["choices"].as_object().unwrap();
        let found = choices.iter().find(|(_, s)| s.as_str().unwrap().starts_with("product "));
        found.map(|(k, s)| (k.clone(), s.as_str().unwrap().to_owned())).unwrap()
    };
    let (kernel, chosen) = product(&all);
    let write = |schedule: &str, key: &str| {
        let mut v = all.clone();
        v["choices"][key] = schedule.into();
        std::fs::write(&file, v.to_string()).unwrap();
    };
    let with = format!("|--schedule-from|{}", file.display());
    let text = |rest: &str| {
        wgfc(d.path(), &format!("compile|{model}|-o|out|--force{rest}")).exits(0);
        tree(&d.path().join("out"))
    };
    // The printed schedule leaves the program unchanged; another schedule gives other kernels.
    let own = text("");
    write(&chosen, &kernel);
    assert!(text(&with) == own);
    write("steps list=", &kernel);
    assert!(text(&with) != own);

    let refused = |what: &[&str]| {
        let mut e = wgfc(d.path(), &format!("compile|{model}|-o|new{with}")).exits(1);
        for w in what {
            e = e.says(w);
        }
        assert!(!d.path().join("new").exists());
    };
    write("product serial threads=7 unrolled=8", &kernel);
    refused(&["`threads` is 7", "128", kernel.split(" #").next().unwrap()]);
    write("map threads=64 elements=1 unroll=1", &kernel);
    refused(&["`map` does not fit", "product tiled"]);
    write("row lanes=2", &kernel);
    refused(&["`threads` is missing", "kernel `"]);
    write(&chosen, "nobody");
    refused(&["`nobody`", "no kernel of this model"]);
    std::fs::write(&file, r#"{"version": 1, "choices": {}}"#).unwrap();
    refused(&["version 1", "version 3"]);
    wgfc(d.path(), "inspect|out|--schedule").exits(1).says("give the model");
}

/// A decoding step with its cache on the device: five dispatches per layer, and no cache among inputs and
/// outputs.
#[test]
fn caches_stay_on_the_device() {
    let d = folder();
    let model = fixture("small/decoder/model.onnx");
    let compile = |rest: &str| wgfc(d.path(), &format!("compile|{model}|-o|out|--dim|seq=1|{rest}"));
    compile("--state-capacity|32").exits(0);
    let plan: Value =
        serde_json::from_slice(&std::fs::read(d.path().join("out/plan.json")).unwrap()).unwrap();
    let plan = &plan["plans"][0];
    let len = |key: &str| plan[key].as_array().map_or(0, Vec::len);
    assert_eq!([len("inputs"), len("outputs"), len("states")], [3, 1, 4], "{plan}");
    assert!(len("dispatches") <= 2 * 5 + 2, "{}", len("dispatches"));
    wgfc(d.path(), "inspect|out").exits(0).prints("states: 4 (").prints("grows along axis 2 by 1 a run");
    compile("--state-capacity|any").exits(0);
    let plan = std::fs::read_to_string(d.path().join("out/plan.json")).unwrap();
    assert!(plan.contains("\"capacity\"") && plan.contains("12*capacity"), "{plan}");
    compile("--state-capacity|0").exits(1).says("or any");
    let pair = "past_key_values.0.key=present.0.key";
    compile(&format!("--state|{pair}")).exits(1).says("--state-capacity");
    compile("--state-capacity|32|--state|nobody=present.0.key").exits(1).says("nobody");
}

#[test]
fn inspect_draws() {
    let d = folder();
    let pictures = "--graph|g.svg|--graph|g.dot|--graph|sub/g.html|--roofline|r.svg";
    wgfc(d.path(), &format!("inspect|{}|--dim|batch=1|{pictures}", fixture("resnet50.onnx")))
        .exits(0)
        .prints("wrote g.svg");
    let read = |p: &str| std::fs::read_to_string(d.path().join(p)).unwrap();
    assert!(read("g.svg").starts_with("<svg") && read("g.svg").contains("</svg>"));
    assert!(read("g.dot").starts_with("digraph"));
    assert!(read("sub/g.html").contains("<svg") && read("r.svg").contains("attainable"));
    wgfc(d.path(), &format!("inspect|{}|--graph|g.gif", mlp())).exits(1).says("FILE.svg");
    wgfc(d.path(), &format!("inspect|{}|--dim|nobody=3", mlp())).exits(1).says("nobody");
}

#[test]
fn a_missing_adapter_is_a_device_error() {
    let d = folder();
    wgfc(d.path(), &format!("run|{}|--random-inputs|--dim|batch=1|--adapter|no-such-adapter", mlp()))
        .exits(3)
        .says("error[device]");
}

#[test]
fn generate_continues_tokens_and_text() {
    if wgfc::runtime::testing::gpus().is_empty() {
        return;
    }
    let d = folder();
    let generate =
        |words: &str| wgfc(d.path(), &format!("generate|{}|{words}", fixture("small/decoder/model.onnx")));
    let plain = generate("--tokens|3,1,36|--max-new-tokens|6").exits(0);
    let ids: Vec<i64> = plain.out.trim().split(',').map(|t| t.parse().unwrap()).collect();
    assert_eq!(ids.len(), 6);
    let v = generate("--tokens|3,1,36|--max-new-tokens|6|--json|--stats|--fusion|none").exits(0).json();
    assert_eq!(v["tokens"], serde_json::json!(ids));
    assert_eq!((&v["ended"], &v["text"]), (&Value::Bool(false), &Value::Null));
    for key in [
        "tokens_per_second",
        "first_token_seconds",
        "compiling_seconds",
        "uploading_seconds",
        "weights_bytes",
        "cache_bytes",
        "bytes_per_token",
        "share_of_bound",
    ] {
        assert!(v["stats"][key].as_f64().is_some_and(|x| x > 0.0), "{key}: {v}");
    }
    let drawn = "--tokens|3|--max-new-tokens|8|--temperature|9|--top-k|30|--top-p|0.99";
    let seeds = [1, 2].map(|s| generate(&format!("{drawn}|--seed|{s}")).exits(0).out);
    assert_ne!(seeds[0], seeds[1]);

    std::fs::copy(fixture("small/decoder/model.onnx"), d.path().join("model.onnx")).unwrap();
    let words: std::collections::BTreeMap<String, usize> = (0..37).map(|i| (format!("w{i}"), i)).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" },
    });
    std::fs::write(d.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let end = format!(r#"{{ "eos_token_id": {} }}"#, ids[4]);
    std::fs::write(d.path().join("generation_config.json"), end).unwrap();
    let stop = ids.iter().position(|t| *t == ids[4]).unwrap();
    let spoken: Vec<String> = ids[..=stop].iter().map(|t| format!("w{t}")).collect();
    let text = wgfc(d.path(), "generate|.|--prompt|w3 w1 w36|--max-new-tokens|6|--stats|--quiet").exits(0);
    assert_eq!(text.out.trim(), spoken.join(" "));
    for part in
        ["dispatches a token", "tokens/s at the", "share of the bound", "pipelines and upload", "host memory"]
    {
        assert!(text.err.contains(part), "{part}: {}", text.err);
    }

    wgfc(d.path(), "compile|.|-o|out|--generate|--target|web").exits(0).prints("decode ");
    let compiled = "generate|out|--prompt|w3 w1 w36|--max-new-tokens|6|--quiet";
    assert_eq!(wgfc(d.path(), compiled).exits(0).out, text.out);
    let again = "compile|out|-o|x|--generate";
    wgfc(d.path(), again).exits(1).says("is a compiled program");
    wgfc(d.path(), "compile|.|-o|x|--generate|--dim|a=1").exits(1).says("cannot be used with");

    let nothing = folder();
    generate("--tokens|37").exits(1).says("token 37 is outside the model's vocabulary, which is 0 to 36");
    generate("--tokens|1,x").exits(1).says("invalid value");
    generate("--max-new-tokens|3").exits(1).says("--prompt");
    generate("--tokens|1,2,3|--max-new-tokens|8|--capacity|10")
        .exits(1)
        .says("may grow to 10")
        .says("--capacity");
    generate("--tokens|1|--capacity|0|--max-new-tokens|0").exits(1).says("room for 0 positions");
    generate("--prompt|hello").exits(1).says("without a tokenizer").says("--tokens");
    generate("--tokens|1|--adapter|no-such-adapter").exits(3);
    wgfc(d.path(), &format!("generate|{}|--tokens|1", mlp())).exits(2).says("token ids").says("`x` f32");
    wgfc(nothing.path(), "generate|.|--tokens|1").exits(1).says("holds no model: neither .onnx nor .gguf");
    let v = generate("--tokens|99|--json").exits(1).json();
    assert_eq!(v["errors"][0]["kind"], "model");
}

#[test]
fn loops_run_until_their_condition_ends_them() {
    let d = folder();
    let model = fixture("small/while/model.onnx");
    wgfc(d.path(), &format!("compile|{model}|-o|out")).exits(0);
    wgfc(d.path(), "inspect|out|--dim|rows=3")
        .exits(0)
        .prints("rounds, up to")
        .prints("until its condition is false");
    wgfc(d.path(), "run|out|--random-inputs|--input|limit=0.5|--dim|rows=3|-o|y").exits(0);
}

#[test]
fn outputs_have_the_sizes_that_a_run_computes() {
    let d = folder();
    let model = fixture("small/chosen/model.onnx");
    wgfc(d.path(), &format!("compile|{model}|-o|out")).exits(0);
    wgfc(d.path(), "inspect|out").exits(0).prints("n_places up to 13*rows");
    let mut of_cpu = vec![];
    for (how, out) in [(format!("run|{model}|--cpu"), "cpu"), ("run|out".to_owned(), "gpu")] {
        let v =
            wgfc(d.path(), &format!("{how}|--random-inputs|--dim|rows=7|--json|-o|{out}")).exits(0).json();
        let shapes: Vec<Value> =
            v["outputs"].as_array().unwrap().iter().map(|o| o["shape"].clone()).collect();
        let places = wgfc::npy::read(&d.path().join(out).join("places.npy")).unwrap();
        assert_eq!(serde_json::json!(places.shape), shapes[0]);
        assert!(places.shape[0] == 2 && (1..91).contains(&places.shape[1]), "{places:?}");
        if of_cpu.is_empty() {
            of_cpu = shapes;
        } else {
            assert_eq!(shapes, of_cpu);
        }
    }
}
