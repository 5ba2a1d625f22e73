//! Device profiles: named, measured, and from files; expected sizes.

use super::{fixture, folder, mlp, wgfc};

#[test]
fn profiles_are_named_or_files() {
    let d = folder();
    let model = mlp();
    let compile = |rest: &str| wgfc(d.path(), &format!("compile|{model}|-o|out|--force{rest}"));
    assert_eq!(compile("|--json").exits(0).json()["device_profile"], "portable");
    for name in ["portable", "discrete", "integrated", "software", "swiftshader"] {
        assert_eq!(compile(&format!("|--json|--profile|{name}")).exits(0).json()["device_profile"], name);
    }
    std::fs::write(d.path().join("p.json"), r#"{"version":1,"speeds":{"cores":7}}"#).unwrap();
    compile("|--profile|p.json").exits(0);
    compile("|--profile|fast").exits(1).says("no profile of this name").says("portable, discrete");
    for (text, says) in [
        (r#"{"version":2}"#, "this wgfc reads version 1"),
        (r#"{"version":1,"speeds":{"core":7}}"#, "`speeds.core`"),
        (r#"{"version":1,"speeds":{"cores":0}}"#, "must be a positive number"),
        (r#"{"version":1,"limits":{"f16":"yes"}}"#, "must be true or false"),
    ] {
        std::fs::write(d.path().join("bad.json"), text).unwrap();
        compile("|--profile|bad.json").exits(1).says("bad.json").says(says);
    }
    let inspect = |rest: &str| wgfc(d.path(), &format!("inspect|{model}|--json{rest}")).exits(0).json();
    let (small, large) = (inspect(""), inspect("|--profile|discrete"));
    assert_eq!(
        (small["device_profile"].as_str(), large["device_profile"].as_str()),
        (Some("portable"), Some("discrete"))
    );
    assert!(small["seconds_bound"].as_f64() > large["seconds_bound"].as_f64());
    assert_eq!(inspect("|--expect|batch=9")["dims"]["batch"], 9);
    assert_eq!(inspect("|--expect|batch=9|--dim|batch=4")["dims"].get("batch"), None);
}

#[test]
fn several_profiles_are_plans_for_kinds_of_adapters() {
    let d = folder();
    let model = mlp();
    let compile =
        |rest: &str| wgfc(d.path(), &format!("compile|{model}|-o|out.wgfc|--force|--target|web{rest}"));
    let plans = |rest: &str| {
        let json = compile(&format!("|--json{rest}")).exits(0).json();
        let plans = json["plans"].as_array().unwrap().iter();
        let pair = |p: &serde_json::Value| {
            (p["name"].as_str().unwrap().to_owned(), p["adapter"].as_str().map(str::to_owned))
        };
        (json["device_profile"].as_str().unwrap().to_owned(), plans.map(pair).collect::<Vec<_>>())
    };
    let plan = |name: &str, kind: Option<&str>| (name.to_owned(), kind.map(str::to_owned));
    let (profiles, made) = plans("|--profile|portable,software");
    assert_eq!(profiles, "portable, software");
    assert_eq!(made, [plan("portable", None), plan("software", Some("software"))]);
    assert_eq!(plans("|--profile|software").1, [plan("", None)]);
    let with_variants =
        plans("|--variant|one:batch=1|--variant|any|--profile|discrete|--profile|swiftshader").1;
    let names: Vec<&str> = with_variants.iter().map(|p| p.0.as_str()).collect();
    assert_eq!(names, ["one-discrete", "any-discrete", "one-swiftshader", "any-swiftshader"]);
    compile("|--profile|software,portable,swiftshader").exits(1).says("both for software adapters");
    std::fs::write(d.path().join("p.json"), r#"{"version":1,"speeds":{"cores":7}}"#).unwrap();
    compile("|--profile|portable,p.json").exits(1).says("both for adapters of any kind");
    assert_eq!(
        plans("|--profile|p.json,integrated").1,
        [plan("p", None), plan("integrated", Some("integrated"))]
    );
    let run = wgfc(d.path(), "run|out.wgfc|--random-inputs|--dim|batch=2|--adapter|software");
    assert!(run.code == 0 || wgfc(d.path(), "device").code != 0, "{}", run.err);
}

/// A product with many rows uses larger tiles than one with 64 rows; both programs work for all sizes.
#[test]
fn expected_sizes_change_what_is_chosen() {
    let d = folder();
    let model = fixture("small/mlp/model.onnx");
    let schedule = |rest: &str| wgfc(d.path(), &format!("inspect|{model}|--schedule{rest}")).exits(0).out;
    assert_eq!(schedule("|--expect|batch=64"), schedule(""));
    assert_ne!(schedule("|--expect|batch=100000"), schedule(""));
    let compile = |out: &str, expect: &str| {
        wgfc(d.path(), &format!("compile|{model}|-o|{out}|--expect|batch={expect}")).exits(0);
        std::fs::read(d.path().join(out).join("plan.json")).unwrap()
    };
    assert_eq!(compile("a", "100000"), compile("b", "100000"));
    wgfc(d.path(), &format!("compile|{model}|-o|c|--expect|batch=0")).exits(1).says("not positive");
}

#[test]
fn what_is_not_there_cannot_be_expected() {
    let d = folder();
    let refused = |command: String, symbols: &str| {
        wgfc(d.path(), &command).exits(1).says("no symbolic dimension `bach`").says(symbols);
    };
    let model = mlp();
    refused(format!("compile|{model}|-o|out|--expect|bach=9"), "it has: batch");
    refused(format!("inspect|{model}|--expect|bach=9"), "it has: batch");
    refused(format!("inspect|{model}|--schedule|--expect|bach=9|--expect|batch=2"), "it has: batch");
    refused(format!("compile|{model}|-o|out|--expect|bach=9|--dim|batch=2"), "constants");
    wgfc(d.path(), &format!("compile|{model}|-o|out|--expect|batch=9|--dim|batch=2")).exits(0);
    wgfc(d.path(), "inspect|out|--expect|batch=9").exits(1).says("the program has no dimension `batch`");
    wgfc(d.path(), "run|out|--random-inputs|--expect|batch=9").exits(1).says("--expect has no effect");
    if wgfc(d.path(), "device").code == 0 {
        let decoder = fixture("small/decoder/model.onnx");
        let generate = format!("generate|{decoder}|--tokens|1|--max-new-tokens|2");
        refused(format!("{generate}|--expect|bach=9"), "it has: ");
        let stats = wgfc(d.path(), &format!("{generate}|--json|--expect|past=30")).exits(0).json();
        assert!(stats["stats"]["device_profile"].is_string(), "{stats}");
    }
}

#[test]
fn later_commands_use_measured_speeds() {
    let d = folder();
    if wgfc(d.path(), "device").code != 0 {
        return;
    }
    let before = wgfc(d.path(), "device|--json").exits(0).json();
    let v = wgfc(d.path(), "device|--measure|--json").exits(0).json();
    assert_eq!(v["device_profile"], before["device_profile"]);
    let stored = v["measured"]["stored"].as_str().unwrap();
    let after = wgfc(d.path(), "device|--json").exits(0).json();
    assert_eq!(after["speeds"], v["measured"]["speeds"]);
    let measured = &v["measured"];
    let passes = measured["passes"].as_array().unwrap();
    assert!((2..=5).contains(&passes.len()), "{measured}");
    assert_eq!(measured["side_by_side"].as_array().unwrap().len(), passes.len());
    assert!(
        measured["doubts"].is_array() && passes.iter().all(|p| p["cores"].as_f64() >= Some(1.0)),
        "{measured}"
    );
    let bench = format!("bench|{}|--random-inputs|--dim|batch=1|--runs|2|--warm-up|1|--json", mlp());
    let with =
        |rest: &str| wgfc(d.path(), &format!("{bench}{rest}")).exits(0).json()["device_profile"].clone();
    assert!(with("").as_str().unwrap().starts_with("measured on"), "{v}");
    assert_eq!(with("|--no-tuning"), before["device_profile"]);
    wgfc(d.path(), &format!("compile|{}|-o|out|--profile|{stored}", mlp())).exits(0);
}
