//! Commands that measure: `bench`, `tune`, and the files that they write.

use crate::{fixture, folder, mlp, tree, wgfc};
use serde_json::Value;
use std::path::PathBuf;

#[test]
fn models_are_measured() {
    let d = folder();
    let bench = |rest: &str| wgfc(d.path(), &format!("bench|{rest}"));
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    let run = format!("{}|--random-inputs|--dim|batch=3|--runs|4", mlp());
    bench(&format!("{run}|--check|--csv|sub/m.csv"))
        .exits(0)
        .prints("on the GPU, by timestamps")
        .prints("95% confidence")
        .prints("probabilities: relative error");
    let csv = std::fs::read_to_string(d.path().join("sub/m.csv")).unwrap();
    let v = bench(&format!("{run}|--check|--json")).exits(0).json();
    let dispatches = v["profile"]["dispatches"].as_array().unwrap();
    assert_eq!(csv.lines().count(), dispatches.len() + 1, "{csv}");
    assert!(csv.starts_with("dispatch,kernel,family,"), "{csv}");
    assert!(v["relative_errors"]["probabilities"].as_f64().unwrap() < 1e-5, "{v}");
    let wall = &v["profile"]["wall_ns"];
    let at = |k: &str| wall[k].as_f64().unwrap();
    assert!(0.0 < at("low") && at("low") <= at("median") && at("median") <= at("high"), "{wall}");

    let v = bench(&format!("{run}|--trace|t.json|--json")).exits(0).json();
    let share = |of: &str| v["timeline"][of].as_f64().unwrap();
    assert!(share("both") <= share("device") + 1e-9 && share("device") <= 1.0 + 1e-9, "{v}");
    let trace: Value = serde_json::from_slice(&std::fs::read(d.path().join("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |thread: i64| events.iter().filter(|e| e["ph"] == "X" && e["tid"] == thread).collect::<Vec<_>>();
    assert_eq!(of(1).len(), 5 * 3, "binding, recording and submission of five runs");
    assert_eq!(of(2).len(), 5 * dispatches.len());
    // No dispatch begins before its run is recorded, but for what the two clocks may be apart.
    let number = |e: &Value, key: &str| e[key].as_f64().unwrap();
    let slack = number(&trace["otherData"], "device_uncertainty_us") + 1.0;
    for e in of(2) {
        let mut recorded =
            of(1).into_iter().filter(|p| p["name"] == "record" && p["args"]["run"] == e["args"]["run"]);
        assert!(number(e, "ts") + slack >= recorded.next().map_or(0.0, |r| number(r, "ts")), "{e}");
    }

    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    bench("out|--random-inputs|--dim|batch=1|--runs|2|--warm-up|1").exits(0).prints("where the time goes");
    bench("out|--random-inputs|--dim|batch=1|--check").exits(1).says("--check has no effect");
    bench(&mlp()).exits(1).says("was not given");
    bench("").exits(1);
    bench(&format!("{}|--runs|0", mlp())).exits(1).says("--runs");
}

#[test]
fn a_dispatch_is_measured() {
    let d = folder();
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    wgfc(d.path(), "bench|dispatch|--iterations|3|--csv|d.csv").exits(0).prints("single-op : sequential = ");
    let csv = std::fs::read_to_string(d.path().join("d.csv")).unwrap();
    assert_eq!(csv.lines().count(), 5, "{csv}");
    let v = wgfc(d.path(), "bench|dispatch|--iterations|3|--json").exits(0).json();
    assert_eq!(v["modes"].as_array().unwrap().len(), 4);
    assert!(v["single_op_over_sequential"].as_f64().unwrap() > 0.0, "{v}");
}

#[test]
fn the_adapter_is_tested() {
    let d = folder();
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    let r = wgfc(d.path(), "selftest|--seconds|3|--seed|5|--json").exits(0).json();
    assert!(r["passed"] == true && r["cases"].as_u64() > Some(0), "{r}");
    let one = wgfc(d.path(), "selftest|--case|Relu 7").exits(0);
    one.prints("y0 = Relu(").prints("nothing differs");
    wgfc(d.path(), "selftest|--case|Nonsense 7").exits(1).says("is no case");
    wgfc(d.path(), "selftest|--only|Nonsense").exits(1).says("no operator's name contains");
}

#[test]
fn simulations_are_measured() {
    let d = folder();
    let bench = |rest: &str| wgfc(d.path(), &format!("bench|loops|{rest}"));
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    let run = "mountaincar|montecarlo|nbody|--population|5,37|--steps|3|--runs|2";
    let v = bench(&format!("{run}|--check|--csv|l.csv|--svg|l.svg|--json")).exits(0).json();
    let rows = v["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 18);
    for r in rows {
        assert!(r["agree"] == 1.0 && r["agree_with_evaluator"] == 1.0, "{r}");
        assert!(r["generations_per_second"].as_f64().unwrap() > 0.0, "{r}");
        let (coupled, form) = (r["workload"] == "nbody", r["form"].as_str().unwrap());
        match form {
            "fused" if !coupled => assert_eq!(r["dispatches"], 1, "{r}"),
            "by hand" => assert_eq!(r["dispatches"], if coupled { 3 } else { 1 }, "{r}"),
            "split" => assert!(r["dispatches"].as_u64().unwrap() >= 3, "{r}"),
            // With few bodies there is a single lane.
            _ => {}
        }
    }
    let read = |name: &str| std::fs::read_to_string(d.path().join(name)).unwrap();
    assert_eq!(read("l.csv").lines().count(), 19);
    assert_eq!(read("l.svg").matches("<polyline").count(), 9);
    bench("rastrigin|--population|3|--dims|301|--runs|1|--form|by-hand|--check")
        .exits(0)
        .prints("3 × 301")
        .prints("100.0%");
    bench("tic-tac-toe").exits(1).says("tic-tac-toe").says("portfolio");
    bench("nbody|--steps|0").exits(1).says("--steps");
}

#[test]
fn transfers_are_measured() {
    let d = folder();
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    let v = wgfc(d.path(), "bench|transfers|--samples|1|--json").exits(0).json();
    let sizes = v["sizes"].as_array().unwrap();
    assert!(sizes.len() >= 4 && sizes.iter().all(|s| s["upload_ns"]["median"].as_f64().unwrap() > 0.0));
    wgfc(d.path(), "bench|transfers|--samples|1").exits(0).prints("read back in");
}

#[test]
fn single_operators_are_measured() {
    let d = folder();
    let bench = |rest: &str| wgfc(d.path(), &format!("bench|kernels|{rest}"));
    bench("--list|erf").exits(0).prints("map/erf t=f32 n=67108864: y = Erf(x)");
    bench("nonsense").exits(1).says("no problem has nonsense").says("--list");
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    // Another seed gives other problems; no pattern is repeated before every pattern was used.
    let run = "--drawn|--work|1|--random|24|--seed|3|--sample|1";
    let v = bench(&format!("{run}|--json|--csv|k.csv|--html|k.html")).exits(0).json();
    let rows = v["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 24);
    for r in rows {
        assert!(r["time_ns"]["median"].as_f64().unwrap() > 0.0, "{r}");
        assert!(r["share"].as_f64().unwrap() > 0.0, "{r}");
        assert!(r["error"].as_f64().unwrap() < 0.01, "{r}");
        assert_eq!(r["kernels"].as_array().unwrap().len() as u64, r["dispatches"].as_u64().unwrap(), "{r}");
    }
    let read = |name: &str| std::fs::read_to_string(d.path().join(name)).unwrap();
    assert_eq!(read("k.csv").lines().count(), 25);
    assert!(read("k.html").matches("<circle").count() >= 24);
    let peer = serde_json::json!({ "rows": rows.iter().map(|r| serde_json::json!({ "key": r["key"], "ns": 1e6 })).collect::<Vec<_>>() });
    std::fs::write(d.path().join("peer.json"), peer.to_string()).unwrap();
    bench(&format!("{run}|map/|--peer|peer.json|--tune|2|--no-check"))
        .exits(0)
        .prints("peer / wgfc")
        .prints("tuned gains")
        .prints("map: geometric mean");
    bench(&format!("{run}|map/|--models|models")).exits(0);
    assert!(d.path().join("models").read_dir().unwrap().count() > 0);
    std::fs::write(d.path().join("peer.json"), "[]").unwrap();
    bench(&format!("{run}|--peer|peer.json")).exits(1).says("benches/peers");
}

#[test]
fn decoding_is_measured() {
    let d = folder();
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    let decode =
        |rest: &str| wgfc(d.path(), &format!("bench|decode|{}|{rest}", fixture("small/decoder/model.onnx")));
    decode("--past|3|--past|20|--tokens|5|--check|--csv|d.csv")
        .exits(0)
        .prints("8 of 8 tokens are the same")
        .prints("tokens/s")
        .prints("binding and recording");
    let v = decode("--past|3|--past|20|--tokens|5|--without|key-parts|--json").exits(0).json();
    let rows = v["past"].as_array().unwrap();
    let csv = std::fs::read_to_string(d.path().join("d.csv")).unwrap();
    let all = rows.iter().map(|r| r["dispatches_per_step"].as_u64().unwrap()).sum::<u64>();
    assert_eq!((rows.len(), csv.lines().count() as u64), (2, all + 1), "{csv}");
    assert!(csv.starts_with("past,dispatch,kernel,family,"), "{csv}");
    for key in ["tokens_per_second", "share_of_bound", "bytes_per_step"] {
        assert!(rows[1][key].as_f64().is_some_and(|x| x > 0.0), "{key}: {v}");
    }
    let v = decode("--prefix-recompute|--tokens|4|--json").exits(0).json();
    assert_eq!((&v["mode"], v["past"].as_array().unwrap().len()), (&"prefix recompute".into(), 1));
    decode("--past|30|--capacity|32").exits(1).says("may grow to 32");
    decode("--past|33|--capacity|32").exits(1).says("32");
    decode("--prefix-recompute|--check").exits(1).says("cannot be used with");
    decode("--batch|2").exits(1).says("export it with a symbolic batch size");
    let several =
        format!("bench|decode|{}|--batch|3|--past|5|--tokens|3", fixture("small/decoder-ragged/model.onnx"));
    wgfc(d.path(), &format!("{several}|--check"))
        .exits(0)
        .prints("24 of 24 tokens are the same")
        .prints("of a sequence");
    let v = wgfc(d.path(), &format!("{several}|--json")).exits(0).json();
    let rate = |key: &str| v["past"][0][key].as_f64().unwrap();
    let share = rate("tokens_per_second") / rate("tokens_per_second_of_a_sequence");
    assert!((share - 3.0).abs() < 1e-9, "{v}");
    wgfc(d.path(), &format!("bench|decode|{}", mlp())).exits(2).says("token ids");
}

#[test]
fn tuning_is_stored_for_the_adapter_and_used() {
    if wgfc::runtime::testing::gpus().is_empty() {
        return;
    }
    let d = folder();
    wgfc(d.path(), "tune").exits(1).says("MODEL");
    let v = wgfc(d.path(), "tune|--kernels|2|--seed|5|--most|2|--budget|5|--dry-run|--json").exits(0).json();
    assert!(v["own_over_best"].as_f64().is_none_or(|x| x >= 0.9) && v["stored"].is_null(), "{v}");
    let tune = format!("tune|{}|--dim|batch=1|--most|3|--budget|20|--quiet", mlp());
    let dry = wgfc(d.path(), &format!("{tune}|--dry-run|--json")).exits(0).json();
    assert!(dry["stored"].is_null() && !d.path().join("cache").exists());
    let measured = dry["measured"].as_array().unwrap();
    assert!(!measured.is_empty(), "{dry}");
    for m in measured {
        assert!(m["own"]["ns"].as_f64().is_some_and(|t| t > 0.0), "{m}");
        assert!(
            m["tried"].as_array().is_some_and(|t| t.len() > 1) && m["refused"] == serde_json::json!([]),
            "{m}"
        );
    }
    let stored = wgfc(d.path(), &format!("{tune}|--json")).exits(0).json();
    let file = PathBuf::from(stored["stored"].as_str().unwrap());
    assert!(file.starts_with(d.path().join("cache")), "{}", file.display());
    wgfc(d.path(), &tune).exits(0).prints("kernels measured").prints("stored in");

    // Regardless of the measurements: another choice for every kernel gives the same results.
    let mut table: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let bytes = std::fs::read(mlp()).unwrap();
    let options = wgfc::Options { dims: [("batch".to_owned(), 1)].into(), ..Default::default() };
    let none = wgfc_compiler::import::NoExternalData;
    let fused =
        wgfc_compiler::pipeline::fuse_amended(&bytes, &none, &options, &mut |_| Ok(()), &mut |_, _| {});
    let all = wgfc_compiler::tuning::tunable(&fused.unwrap(), &options, &Default::default(), 3, 1.0).unwrap();
    for t in &all {
        table["choices"][&t.key] = serde_json::to_value(&t.candidates[1].choice).unwrap();
    }
    std::fs::write(&file, table.to_string()).unwrap();
    let run = |more: &str| {
        let run = format!("run|{}|--dim|batch=1|--no-cpu|--input|random:3|--json{more}", mlp());
        let v = wgfc(d.path(), &run).exits(0).json();
        let first = v["outputs"][0]["first"].as_array().unwrap().clone();
        first.iter().map(|x| x.as_f64().unwrap()).collect::<Vec<f64>>()
    };
    for (a, b) in run("").iter().zip(&run("|--no-tuning")) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    // Compiling reads only the table file that it is given.
    let compile = |out: &str, more: &str| {
        wgfc(d.path(), &format!("compile|{}|-o|{out}|--dim|batch=1|--quiet{more}", mlp())).exits(0);
        tree(&d.path().join(out)).into_iter().map(|(_, b)| b).collect::<Vec<_>>()
    };
    let (plain, tuned) = (compile("a", ""), compile("b", &format!("|--tuning|{}", file.display())));
    assert_ne!(plain, tuned);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(compile("c", ""), plain);

    // A damaged table is reported and ignored; if it was given explicitly, it is an error.
    let version = wgfc::compiler::schedule::table::VERSION;
    std::fs::write(&file, format!("{{\"version\": {version}, \"choices\": 3}}")).unwrap();
    let run = format!("run|{}|--dim|batch=1|--no-cpu|--random-inputs", mlp());
    wgfc(d.path(), &run).exits(0).says("warning: ").says("is no table of schedules").says("ignored");
    wgfc(d.path(), &format!("{run}|--no-tuning")).exits(0);
    wgfc(d.path(), &format!("compile|{}|-o|e|--tuning|{}", mlp(), file.display()))
        .exits(1)
        .says("is no table of schedules");
    wgfc(d.path(), &format!("compile|{}|-o|e|--tuning|none.json", mlp())).exits(1).says("no such file");
}

#[test]
fn pipelines_are_kept() {
    let Some(gpu) = wgfc::runtime::testing::gpus().iter().next() else { return };
    let d = folder();
    let run = format!("run|{}|--dim|batch=1|--no-cpu|--random-inputs|--quiet", mlp());
    wgfc(d.path(), &format!("{run}|--no-cache")).exits(0);
    assert!(!d.path().join("cache").exists());
    wgfc(d.path(), &run).exits(0);
    if gpu.pipeline_key().is_none() {
        return;
    }
    let kept = tree(&d.path().join("cache"));
    assert!(kept.len() == 1 && kept[0].0.display().to_string().contains("pipelines-"), "{kept:?}");
    wgfc(d.path(), &run).exits(0);
    std::fs::write(&kept[0].0, &kept[0].1[1..]).unwrap();
    let run = run.replace("|--quiet", "");
    wgfc(d.path(), &run).exits(0).says("warning: ").says("pipelines-");
    let again = wgfc(d.path(), &run).exits(0);
    assert!(!again.err.contains("pipelines-"), "{}", again.err);
}

#[test]
fn choices_are_judged_by_recorded_times() {
    let d = folder();
    let recorded = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/timings/llvmpipe.jsonl");
    let recorded = recorded.display();
    std::fs::write(d.path().join("old.jsonl"), "{\"version\":0}\n").unwrap();
    wgfc(d.path(), &format!("bench|regret|{recorded}|old.jsonl|--vary|0.2"))
        .exits(0)
        .prints("mean regret")
        .prints("product")
        .prints("bandwidth")
        .says("old.jsonl has times of version 0; this wgfc reads version 1; it is ignored");
    let v = wgfc(d.path(), &format!("bench|regret|{recorded}|--json")).exits(0).json();
    let all = &v["devices"][0]["all"];
    assert!(all["problems"].as_u64() > Some(0) && all["mean_regret"].as_f64() >= Some(1.0), "{all}");
    wgfc(d.path(), "bench|regret|old.jsonl").exits(1).says("version 0");
    wgfc(d.path(), "bench|regret|absent.jsonl").exits(1);
    wgfc(d.path(), &format!("bench|regret|{recorded}|--vary|2")).exits(1).says("between 0 and 1");
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    let tune = format!("tune|{}|--at|batch=3|--most|2|--dry-run|--record|mlp.jsonl", mlp());
    wgfc(d.path(), &tune).exits(0);
    let v = wgfc(d.path(), "bench|regret|mlp.jsonl|--json").exits(0).json();
    let problems = v["devices"][0]["problems"].as_array().unwrap();
    assert!(!problems.is_empty() && problems.iter().all(|p| p["regret"].as_f64() >= Some(1.0)), "{v}");
    // Kernels that the file has already are not recorded twice.
    wgfc(d.path(), &tune).exits(0);
    let again = wgfc(d.path(), "bench|regret|mlp.jsonl|--json").exits(0).json();
    assert_eq!(again["devices"][0]["problems"].as_array().unwrap().len(), problems.len());
    let tokens = "bench|kernels|softmax|--work|1|--random|0|--tune|2|--record|mlp.jsonl|--no-check";
    wgfc(d.path(), tokens).exits(0);
    let more = wgfc(d.path(), "bench|regret|mlp.jsonl|--json").exits(0).json();
    assert!(more["devices"][0]["problems"].as_array().unwrap().len() > problems.len());
    wgfc(d.path(), "bench|kernels|--record|x.jsonl").exits(1).says("--tune");
}
