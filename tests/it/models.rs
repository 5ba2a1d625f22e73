//! Whole models at every fusion level, compared with reference outputs.
//!
//! Each model is compiled once per level and then run on all its data sets, whose symbolic dimensions differ.

use crate::backend::{Backend, Failure, caught};
use crate::data::Folder;
use std::path::Path;
use std::time::Instant;
use wgfc_compiler::Fusion;
use wgfc_ir::{DType, Tensor};
use wgfc_selftest::relative_error;

/// The largest `‖a − b‖ / ‖b‖` allowed for an output of this type.
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 | DType::F64 => 1e-4,
        DType::F16 => 5e-3,
        DType::BF16 => 4e-2,
        _ => 0.0,
    }
}

/// The largest relative error among the outputs, and the largest error as a fraction of the limit.
pub fn error(got: &[Tensor], want: &[Tensor]) -> Result<(f64, f64), String> {
    if got.len() != want.len() {
        return Err(format!("{} outputs instead of {}", got.len(), want.len()));
    }
    let (mut worst, mut share) = (0f64, 0f64);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let e = relative_error(g, w).map_err(|e| format!("output {i}: {e}"))?;
        // NaN counts as an infinite error.
        let e = if e.is_nan() { f64::INFINITY } else { e };
        worst = worst.max(e);
        share = share.max(if e == 0.0 { 0.0 } else { e / limit(w.dtype) });
    }
    Ok((worst, share))
}

fn levels(backend: &Backend) -> Vec<Fusion> {
    let all = [Fusion::None, Fusion::Elementwise, Fusion::Full];
    if !backend.is_adapter() {
        return vec![Fusion::Full];
    }
    match std::env::var("WGFC_FUSION") {
        Ok(names) => all.into_iter().filter(|l| names.split(',').any(|n| n == name(*l))).collect(),
        // SwiftShader takes a second to compile a kernel, and less fusion makes many kernels.
        Err(_) if backend.to_string().contains("SwiftShader") => vec![Fusion::Full],
        Err(_) => all.to_vec(),
    }
}

fn name(level: Fusion) -> &'static str {
    match level {
        Fusion::None => "none",
        Fusion::Elementwise => "elementwise",
        Fusion::Full => "full",
    }
}

/// Compiles and runs one model, and prints a line for each data set.
fn check(folder: &Folder, level: Fusion, backend: &Backend) -> Result<(), Failure> {
    let mut model = backend.compile(&folder.model_path(), level, &[])?;
    let [compiled, loaded] = model.took.map(|t| t.as_secs_f64());
    let mut bad = vec![];
    for n in 0..folder.data_sets() {
        let data = folder.data_set(n).map_err(Failure::error)?;
        let start = Instant::now();
        let got = model.run(&data.inputs)?;
        let ran = start.elapsed().as_secs_f64();
        let (worst, share) = error(&got, &data.outputs).map_err(Failure::Wrong)?;
        let verdict = if share <= 1.0 { "ok" } else { "WRONG" };
        let what = model.dispatches().map_or(String::new(), |d| format!("{d} dispatches"));
        crate::say(format!(
            "{:<22} {:<12} set {n}  error {worst:9.2e}  compile {compiled:6.2} s  load {loaded:6.2} s  run {ran:7.2} s  {what}  {verdict}",
            folder.name,
            name(level),
        ));
        if share > 1.0 {
            bad.push(format!("data set {n}: relative error {worst:e}"));
        }
    }
    if bad.is_empty() { Ok(()) } else { Err(Failure::Wrong(bad.join("; "))) }
}

fn check_all(test: &str, folders: &[Folder]) {
    check_at(test, folders, levels);
}

/// Checks models at the levels of fusion that `of` gives for a backend.
fn check_at(test: &str, folders: &[Folder], of: fn(&Backend) -> Vec<Fusion>) {
    let backends = Backend::all();
    if backends.is_empty() {
        return crate::skip(test, "there is no adapter");
    }
    let mut failures = vec![];
    for backend in &backends {
        crate::say(format!("{test} on {backend}"));
        for folder in folders.iter().filter(|f| crate::selected(&f.name)) {
            for level in of(backend) {
                if let Err(f) = caught(|| check(folder, level, backend)) {
                    let line = format!("{} {}: {}: {}", folder.name, name(level), f.status(), f.message());
                    crate::say(&line);
                    failures.push(format!("{backend}: {line}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn small_models() {
    let folders = Folder::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small"));
    assert!(!folders.is_empty(), "fixtures/small is part of the repository");
    check_all("small_models", &folders);
}

/// Loops as one kernel and as a kernel for each part of a step, compared with the numpy reference.
#[test]
fn simulations() {
    let folders = Folder::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/simulations"));
    assert!(!folders.is_empty(), "fixtures/simulations is part of the repository");
    check_all("simulations", &folders);
}

/// Genetic algorithms: a loop over generations, each of several dispatches. They run at full fusion alone, without which CartPole's steps are thousands of dispatches.
#[test]
fn evolutions() {
    let folders = Folder::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/evolution"));
    assert!(!folders.is_empty(), "fixtures/evolution is part of the repository");
    check_at("evolutions", &folders, |_| vec![Fusion::Full]);
}

/// A diffusion model: a U-Net in the loop of a sampler.
#[test]
fn diffusion() {
    let folders = Folder::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/diffusion"));
    assert!(!folders.is_empty(), "fixtures/diffusion is part of the repository");
    check_at("diffusion", &folders, |_| vec![Fusion::Full]);
}

#[test]
fn real_models() {
    let root = crate::folder("WGFC_MODELS", "target/models");
    let folders = Folder::all(&root);
    if folders.is_empty() {
        return crate::skip(
            "real_models",
            format!("no models in {}; run scripts/reference.py", root.display()),
        );
    }
    check_all("real_models", &folders);
}
