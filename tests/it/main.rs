//! Tests that need data, an adapter, or time.
//!
//! | environment | meaning |
//! |---|---|
//! | `WGFC_BACKEND=eval` | the reference evaluator instead of an adapter |
//! | `WGFC_CASES=text` | only the conformance cases, models and operators whose name contains it |
//! | `WGFC_FUSION=none,full` | the levels that the models run at (all three; on SwiftShader `full`) |
//! | `WGFC_CONFORMANCE`, `WGFC_MODELS` | folders of the data (`target/conformance`, `target/models`) |
//! | `WGFC_FUZZ_SECONDS`, `WGFC_FUZZ_SEED` | how long each fuzz test runs (10), where it starts |
//! | `WGFC_FUZZ_MODELS` | a folder of more models to mutate |
//! | `WGFC_FUZZ_CONSTRAINTS` | how many mutated schemas, regular expressions and grammars are tried (400) |
//! | `WGFC_FUZZ_TEMPLATES` | how many mutated chat templates are tried (160) |
//! | `WGFC_FUZZ_TOKENIZERS` | how many mutated tokenizers are tried (160) |
//! | `WGFC_FUZZ_CASE='NAME SEED'` | that case of `operators_mean_the_same` alone |
//! | `WGFC_CARRIED_SEEDS=FROM..TO` | the seeds of `carried` (1..40) |
//! | `WGFC_GENERATED`, `WGFC_GENERATED_SEEDS=FROM..TO` | the folder of generated models, and those of them whose names are such numbers |
//! | `WGFC_PARITY_EVERY` | of ONNX's node cases one in so many is run on every engine to compare them (8) |
//! | `WGFC_WRITTEN` | a folder in which kernels stay in WGSL, MSL, HLSL and SPIR-V (`writers`) |
//! | `UPDATE_EXPECT=1` | write the expectations in `tests/conformance/` |
//! | `CI` | what is missing fails instead of being skipped |

mod algebra;
mod aliases;
mod backend;
mod batch;
mod blocks;
mod bounded;
mod bundles;
mod caches;
mod carried;
mod conformance;
mod data;
mod decoders;
mod dispatches;
mod draws;
mod embeddings;
mod exact;
mod examples;
mod extremes;
mod folded;
mod forbidden;
mod fuzz;
mod generate;
mod generate_web;
mod generated;
mod hostile;
mod inside;
mod kernels;
mod key_parts;
mod levels;
mod long;
mod loops;
mod loss_scale;
mod models;
mod mutations;
mod narrow_caches;
mod operators;
mod parity;
mod parts;
mod precision;
mod programs;
mod scatters;
mod schema;
mod sequences;
mod sized;
mod snapshots;
mod sorts;
mod spread;
mod states;
mod suite;
mod web;
mod writers;

use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a line that the test harness does not capture.
fn say(line: impl std::fmt::Display) {
    // A closed stderr must not fail a test.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Skips a test, loudly; in CI this is a failure.
fn skip(test: &str, why: impl std::fmt::Display) {
    if std::env::var_os("CI").is_some() {
        panic!("{test} cannot run: {why}");
    }
    say(format!("SKIPPED {test}: {why}"));
}

/// The folder named by `variable`, or `default` under the repository's root.
fn folder(variable: &str, default: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os(variable).map_or_else(|| root.join(default), |v| root.join(v))
}

/// Whether `WGFC_CASES` selects this name.
fn selected(name: &str) -> bool {
    std::env::var("WGFC_CASES").map_or(true, |f| name.contains(&f))
}
