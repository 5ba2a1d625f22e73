//! More fusion is never estimated to take longer than less fusion.

use crate::data::Folder;
use std::path::Path;
use wgfc_compiler::{DeviceProfile, Fusion, Options};
use wgfc_ir::Program;

/// The factor by which the estimate for more fusion may exceed the other.
const SLACK: f64 = 1.05;

/// A lower bound in seconds for all dispatches, with every symbol equal to `extent`.
fn seconds(program: &Program, profile: &DeviceProfile, extent: i64) -> f64 {
    let speeds = &profile.speeds;
    let size = |d: &wgfc_ir::Dim| d.eval_syms(&|_| Some(extent)).unwrap_or(0).max(0) as f64;
    (program.dispatches.iter().enumerate())
        .map(|(i, d)| {
            let work = (size(&d.bytes) / speeds.bandwidth).max(size(&d.flops) / speeds.flops_f32);
            size(&program.times(i)) * (work + speeds.dispatch())
        })
        .sum()
}

#[test]
fn full_fusion_is_estimated_no_slower_than_elementwise() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut files: Vec<_> = (["small", "simulations"].iter())
        .flat_map(|f| Folder::all(&fixtures.join(f)))
        .map(|f| f.model_path())
        .collect();
    files.extend(["mobilenetv2", "qwen2-2l"].map(|f| fixtures.join(f).with_extension("onnx")));
    let repro = std::fs::read_dir(fixtures.join("repro")).expect("fixtures/repro is part of the repository");
    let repro = repro.flatten().map(|f| f.path());
    files.extend(repro.filter(|f| f.extension().is_some_and(|e| e == "onnx")));
    files.sort();
    let mut worse = vec![];
    for file in files {
        let Ok(model) = wgfc::source::ModelFile::open(&file) else { continue };
        let compile = |fusion| model.compile(&Options { fusion, graph_only: true, ..Options::default() });
        let (full, parts) = (compile(Fusion::Full), compile(Fusion::Elementwise));
        for e in [&full, &parts].into_iter().filter_map(|p| p.as_ref().err()) {
            assert_ne!(e.class(), wgfc::ErrorClass::Internal, "{}: {e}", file.display());
        }
        let (Ok(full), Ok(parts)) = (full, parts) else { continue };
        // No estimate knows the number of iterations of a loop that ends by a condition.
        if [&full, &parts].iter().any(|p| p.repeats.iter().any(|r| r.until.is_some())) {
            continue;
        }
        let profile = Options::default().profile;
        for extent in [1, 5, 64, 1000] {
            let [full, parts] = [&full, &parts].map(|p| seconds(p, &profile, extent));
            crate::say(format!(
                "{:<36} {extent:5}: {:9.1} µs, {:9.1} µs elementwise, {:5.2}",
                file.strip_prefix(&fixtures).unwrap_or(&file).display(),
                full * 1e6,
                parts * 1e6,
                full / parts
            ));
            if full > parts * SLACK {
                worse.push(format!("{} at {extent}: {:.2}", file.display(), full / parts));
            }
        }
    }
    assert!(worse.is_empty(), "longer at full than at elementwise:\n{}", worse.join("\n"));
}
