//! Kernels with random schedules, on every adapter, compared with the evaluator.

use crate::run::{Outcome, close, run_on};
use std::collections::BTreeMap;
use wgfc_compiler::assemble::assemble;
use wgfc_compiler::kernel::KernelGraph;
use wgfc_compiler::schedule::{Context, Schedule, candidates, schedule};
use wgfc_compiler::{Options, Tuning};
use wgfc_ir::program::Stats;
use wgfc_ir::{Graph, Tensor};
use wgfc_runtime::Gpu;
use wgfc_runtime::testing::gpus;

/// A computation with its inputs and expected results.
pub struct Case<'a> {
    pub graph: &'a Graph,
    pub options: &'a Options,
    pub given: BTreeMap<String, Tensor>,
    pub want: Vec<Tensor>,
    /// Selects the adapters that it runs on.
    pub on: fn(&Gpu) -> bool,
}

/// The seeds to test: more of them with `WGFC_THOROUGH`, starting from `WGFC_SEED`.
pub fn seeds() -> std::ops::Range<u64> {
    let count = if std::env::var_os("WGFC_THOROUGH").is_some() { 2000 } else { 20 };
    let first = std::env::var("WGFC_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    first..first + count
}

/// Every adapter.
pub fn every(_: &Gpu) -> bool {
    true
}

/// Every adapter, except that SwiftShader, which takes seconds to compile a product, is used for one seed in
/// seven only, or for all with `WGFC_THOROUGH`.
pub fn slow(seed: u64) -> fn(&Gpu) -> bool {
    let all = seed.is_multiple_of(7) || std::env::var_os("WGFC_THOROUGH").is_some();
    if all { every } else { |g| !g.summary().name.contains("SwiftShader") }
}

/// Runs the kernels in `rounds` rounds, in each of which `pick` chooses a candidate for each kernel; counts
/// the kinds of schedules.
pub fn run(
    case: &Case,
    kernels: KernelGraph,
    rounds: usize,
    mut pick: impl FnMut(usize, &[Schedule]) -> Schedule,
    kinds: &mut BTreeMap<String, usize>,
) -> Result<(), String> {
    let Case { graph, options, given, want, on } = case;
    let none = Tuning::default();
    let scheduled = schedule(kernels, &options.profile, &options.expect, &none, &none);
    let mut all = scheduled.map_err(|e| format!("{e:?}"))?;
    for round in 0..rounds {
        for (k, s) in all.graph.kernels.iter().zip(&mut all.schedules) {
            let cx = Context { graph: &all.graph, device: &options.profile, expect: &options.expect };
            *s = pick(round, &candidates(k, &cx).map_err(|e| e.message)?);
            *kinds.entry(s.fields().0.into()).or_default() += 1;
        }
        let chosen: Vec<String> = all.schedules.iter().map(Schedule::to_string).collect();
        let program = assemble(graph, &all, options, Stats::default());
        let program = program.map_err(|e| format!("{chosen:?}: {e:?}"))?;
        for gpu in gpus().iter().filter(|g| on(g)) {
            let ran = run_on(gpu, &program, &options.profile, given);
            if let Outcome::Ran(got) = ran.map_err(|e| format!("{chosen:?}: {e}"))? {
                for (want, got) in want.iter().zip(&got) {
                    close(want, got).map_err(|e| format!("{chosen:?}: {e}"))?;
                }
            }
        }
    }
    Ok(())
}
