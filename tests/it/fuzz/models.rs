//! Mutated models are compiled or refused: no panic, no internal error, and bounded time.
//!
//! `scripts/fuzz.sh` runs this for a long time, alone in a process (`WGFC_FUZZ_ALONE`), and continues after a
//! crash of the process. The model under test is in `target/fuzz/` and its seed in `current.seed` there. A
//! case that takes more than 2 GB of memory fails.

use super::{duration, first_seed, structure, wire};
use crate::backend::{Failure, caught};
use crate::data::Folder;
use prost::Message;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wgfc_compiler::import::{NoExternalData, decode, import};
use wgfc_compiler::{Errors, Fusion, Kind, Options, compile};
use wgfc_ir::eval::{Limits, evaluate_within};
use wgfc_ir::testing::Rng;
use wgfc_ir::{Graph, Tensor};

/// The time that a case may take, and the peak memory of the process in megabytes.
const PATIENCE: Duration = Duration::from_secs(20);
const MEMORY: u64 = 2048;
/// Models with more bytes than this are not mutated.
pub const MAX_MODEL_BYTES: u64 = 1 << 20;

/// The first internal error among the errors, which makes a case a failure.
fn internal_error(e: &Errors) -> Option<String> {
    e.0.iter().find(|d| d.kind == Kind::Internal).map(|d| d.to_string())
}

/// Inputs of a graph in which every symbolic extent is `n`.
fn inputs(graph: &Graph, n: i64) -> Option<BTreeMap<String, Tensor>> {
    let of = |b: &wgfc_ir::Border| {
        let ty = graph.ty(b.value);
        let extent = |d: &wgfc_ir::Dim| usize::try_from(d.eval_syms(&|_| Some(n))?).ok();
        let shape: Vec<usize> = ty.shape.iter().map(extent).collect::<Option<_>>()?;
        wgfc_ir::tensor::checked_numel(&shape).filter(|n| *n < 1 << 20)?;
        Some((b.name.to_string(), Tensor::zeros(ty.dtype, shape)))
    };
    graph.inputs.iter().map(of).collect()
}

/// Compiles at one level of fusion and evaluates the graph; returns whether the model was compiled.
fn attempt(bytes: &[u8], fusion: Fusion) -> Result<bool, String> {
    let options = Options { fusion, ..Options::default() };
    let result = caught(|| {
        match compile(bytes, &NoExternalData, &options) {
            Ok(_) => {}
            Err(e) => return Ok((internal_error(&e), false)),
        }
        let Ok(imported) = import(bytes, &NoExternalData, &options) else {
            return Ok((None, true));
        };
        let limits = Limits { bytes: 256 << 20, work: 1 << 24, ..Limits::default() };
        for n in [3, 0] {
            if let Some(given) = inputs(&imported.graph, n) {
                // A refusal is an acceptable outcome.
                let _ = evaluate_within(&imported.graph, &given, limits);
            }
        }
        Ok((None, true))
    });
    match result {
        Ok((None, compiled)) => Ok(compiled),
        Ok((Some(e), _)) => Err(e),
        Err(f @ Failure::Panic(_)) => Err(format!("panic: {}", f.message())),
        Err(f) => Err(f.message().to_owned()),
    }
}

/// The models to mutate: the fixtures, the ONNX cases, and the `.onnx` files in the folder that
/// `WGFC_FUZZ_MODELS` names.
fn models() -> Vec<(String, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = Folder::all(&root.join("fixtures/small"));
    folders.extend(Folder::all(&crate::folder("WGFC_CONFORMANCE", "target/conformance")));
    let mut files: Vec<(String, PathBuf)> =
        folders.iter().map(|f| (f.name.clone(), f.model_path().to_owned())).collect();
    let mut open = vec![root.join("fixtures/repro"), root.join("fixtures/simulations")];
    open.extend(std::env::var_os("WGFC_FUZZ_MODELS").map(PathBuf::from));
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|x| x == "onnx") {
                files.push((path.display().to_string(), path));
            }
        }
    }
    files.sort();
    let small = |p: &PathBuf| std::fs::metadata(p).is_ok_and(|m| m.len() < MAX_MODEL_BYTES);
    files
        .into_iter()
        .filter(|(name, path)| crate::selected(name) && small(path))
        .map(|(name, path)| (name, std::fs::read(path).expect("a readable model")))
        .collect()
}

/// Aborts the process when a case has run for three times [`PATIENCE`].
fn watch(started: &'static AtomicU64, begin: Instant) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let at = started.load(Ordering::Relaxed);
            let now = begin.elapsed().as_millis() as u64;
            if at > 0 && now.saturating_sub(at) > 3 * PATIENCE.as_millis() as u64 {
                crate::say("a case takes too long; it is in target/fuzz");
                std::process::abort();
            }
        }
    });
}

/// Processor time of this thread, which does not depend on the load of the machine; on systems other than
/// Linux, the time since `start`.
fn spent(start: Instant) -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let first = text.and_then(|t| t.split(' ').next()?.parse().ok());
    first.map_or(start.elapsed(), Duration::from_nanos)
}

/// Resets the measurement of [`peak`].
fn reset_peak() {
    _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The peak memory of the process in megabytes since the last reset; 0 on systems other than Linux.
fn peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Mutates models until time is up. `extension` is the file extension of kept failures.
pub fn fuzz(
    test: &str,
    extension: &str,
    models: &[(String, Vec<u8>)],
    mutate: impl Fn(&[u8], &mut Rng) -> Option<Vec<u8>>,
) {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    if models.is_empty() {
        return crate::say(format!("{test}: no model's name contains WGFC_CASES; nothing was tested"));
    }
    let scratch = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fuzz");
    std::fs::create_dir_all(&scratch).expect("target/ is writable");
    let begin = Instant::now();
    let alone = std::env::var_os("WGFC_FUZZ_ALONE").is_some();
    if alone {
        watch(&STARTED, begin);
    }
    let end = begin + duration();
    let (mut tried, mut accepted, mut failures) = (0u64, 0u64, vec![]);
    let (mut longest, mut largest) = ((Duration::ZERO, 0), (0, 0));
    for seed in first_seed().. {
        if Instant::now() >= end || failures.len() >= 20 {
            break;
        }
        let mut rng = Rng::new(seed);
        let (name, model) = &models[rng.below(models.len())];
        let fusion = *rng.pick(&[Fusion::None, Fusion::Elementwise, Fusion::Full]).unwrap_or(&Fusion::Full);
        let Some(bytes) = mutate(model, &mut rng) else { continue };
        // The file that remains after a crash which cannot be caught.
        let file = scratch.join(format!("{test}.{extension}"));
        std::fs::write(&file, &bytes).expect("target/ is writable");
        if alone {
            std::fs::write(scratch.join("current.seed"), seed.to_string()).expect("target/ is writable");
            reset_peak();
        }
        let start = spent(begin);
        STARTED.store(1 + begin.elapsed().as_millis() as u64, Ordering::Relaxed);
        let result = attempt(&bytes, fusion);
        STARTED.store(0, Ordering::Relaxed);
        tried += 1;
        accepted += u64::from(result == Ok(true));
        let took = spent(begin).saturating_sub(start);
        // If the process is not alone, its memory includes that of other tests.
        let had = if alone { peak() } else { 0 };
        longest = longest.max((took, seed));
        largest = largest.max((had, seed));
        let trouble = match result {
            Err(message) => message,
            Ok(_) if took > PATIENCE => format!("took {:.0} s", took.as_secs_f64()),
            Ok(_) if had > MEMORY => format!("took {had} MB"),
            Ok(_) => continue,
        };
        let kept = scratch.join(format!("{test}-{seed}.{extension}"));
        std::fs::rename(&file, &kept).expect("target/ is writable");
        failures.push(format!("seed {seed}, {name}, {fusion:?}: {trouble} ({})", kept.display()));
    }
    let most = format!(
        "{:.1} s (seed {}), {} MB (seed {})",
        longest.0.as_secs_f64(),
        longest.1,
        largest.0,
        largest.1
    );
    crate::say(format!("{test}: {tried} mutated models, {accepted} of them compiled, at most {most}"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn models_of_mutated_bytes_are_compiled_or_refused() {
    fuzz("bytes", "onnx", &models(), |model, rng| Some(wire::mutated(model, rng)));
}

#[test]
fn models_of_mutated_structure_are_compiled_or_refused() {
    fuzz("structure", "onnx", &models(), |model, rng| {
        let model = decode(model).ok()?;
        Some(structure::mutated(&model, rng).encode_to_vec())
    });
}
