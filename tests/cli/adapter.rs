//! Which adapter is used, and when the CPU's evaluator runs instead.

use crate::{command, fixture, folder, mlp, ran, wgfc};
use wgfc::runtime::Gpu;

/// Software adapters compute on the same cores as the evaluator, and compile kernels first.
#[test]
fn a_software_adapter_is_used_when_it_is_named() {
    let adapters = Gpu::adapters_blocking();
    if adapters.is_empty() || adapters.iter().any(|a| !a.is_software) {
        return;
    }
    let d = folder();
    let unnamed = |words: &str| ran(command(d.path(), words).env_remove("WGFC_ADAPTER"));
    let run = format!("run|{}|--random-inputs|--dim|batch=1", mlp());
    let plain = unnamed(&run)
        .exits(0)
        .says("is a software adapter")
        .says("--adapter")
        .prints("on the CPU (reference evaluator)");
    assert_eq!(plain.err.lines().filter(|l| l.contains("evaluator")).count(), 1, "{}", plain.err);
    unnamed(&format!("{run}|--cpu")).exits(0).says("as --cpu asks");
    for words in [format!("{run}|--adapter|software"), format!("{run}|--adapter|best")] {
        let ran = unnamed(&words).exits(0);
        assert!(!ran.err.contains("software adapter") && !ran.out.contains("evaluator"), "{}", ran.err);
    }
    let named = ran(command(d.path(), &run).env("WGFC_ADAPTER", "software")).exits(0);
    assert!(!named.err.contains("software adapter") && !named.out.contains("evaluator"), "{}", named.err);

    // What only an adapter can do runs on it, and says so.
    let said = "a software adapter, computes on the CPU";
    unnamed(&format!("{run}|--no-cpu")).exits(0).says(said);
    unnamed(&format!("{run}|--profile")).exits(0).says(said);
    unnamed(&format!("bench|{}|--random-inputs|--dim|batch=1|--runs|2", mlp())).exits(0).says(said);
    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    unnamed("run|out|--random-inputs|--dim|batch=1").exits(0).says(said);
    let decoder = fixture("small/decoder/model.onnx");
    unnamed(&format!("generate|{decoder}|--tokens|1|--max-new-tokens|2")).exits(0).says(said);
    let quiet = unnamed(&format!("generate|{decoder}|--tokens|1|--max-new-tokens|2|--quiet")).exits(0);
    assert_eq!(quiet.err, "");
}

#[test]
fn drivers_do_not_talk() {
    let d = folder();
    let device = ran(command(d.path(), "device").env_remove("XDG_RUNTIME_DIR"));
    assert!(!device.err.contains("XDG_RUNTIME_DIR"), "{}", device.err);
}
