//! The choice of the adapter, and when the evaluator runs on the CPU instead.

use crate::{command, fixture, folder, mlp, ran, wgfc};
use wgfc::runtime::Gpu;

/// Software adapters use the same cores as the evaluator and must compile kernels first, so they are not
/// chosen by default.
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

    // A command that needs an adapter runs on it, and reports which one it is.
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

/// The exit code of drivers is never run, because that of NVIDIA's 580 may not terminate. Here a driver
/// wrapped around another one ends the process in its destructor.
#[cfg(target_os = "linux")]
#[test]
fn the_end_of_a_driver_is_not_waited_for() {
    let d = folder();
    let named = std::env::var("VK_DRIVER_FILES").unwrap_or_default();
    let read = |file: &str| serde_json::from_slice::<serde_json::Value>(&std::fs::read(file).ok()?).ok();
    let around = named.split(':').filter_map(read).find_map(|mut v| {
        let library = v["ICD"]["library_path"].as_str().filter(|p| p.contains("lvp"))?.to_owned();
        v["ICD"]["library_path"] = d.path().join("libends.so").display().to_string().into();
        Some((v, library))
    });
    let Some((driver, library)) = around else { return };
    let source = "#include <unistd.h>\n__attribute__((destructor)) static void ends(void) { _exit(97); }\n";
    std::fs::write(d.path().join("ends.c"), source).unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.args(["-shared", "-fPIC", "ends.c", "-o", "libends.so", "-Wl,--no-as-needed", &library]);
    if !cc.current_dir(d.path()).status().is_ok_and(|s| s.success()) {
        return;
    }
    let file = d.path().join("ends.json");
    std::fs::write(&file, driver.to_string()).unwrap();
    let on_it = |words: &str| {
        let mut c = command(d.path(), words);
        c.env("VK_DRIVER_FILES", &file).env("VK_ICD_FILENAMES", &file).env_remove("WGFC_ADAPTER");
        ran(&mut c)
    };
    on_it("device").exits(0).prints("llvmpipe");
    on_it("selftest|--case|Relu 7").exits(0).prints("nothing differs");
    on_it("selftest|--seconds|0.1").exits(0).prints("nothing differs");
    on_it(&format!("run|{}|--random-inputs|--dim|batch=1|--adapter|software", mlp())).exits(0);
    on_it("run|absent.onnx|--adapter|software").exits(1);
}
