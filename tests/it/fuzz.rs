//! Fuzz tests. Mutated models ([`models`]), archives of torch.export ([`archives`]), tokenizers ([`tokenizers`])
//! chat templates ([`templates`]) and constraints ([`constraints`]) are compiled or refused, mutated plans ([`plans`]) are read or refused, and random graphs
//! mean the same before and after every stage. All randomness follows from a seed, which a failure prints;
//! `WGFC_FUZZ_SEED` repeats it.

mod archives;
mod constraints;
mod decoders;
mod models;
mod plans;
mod structure;
mod templates;
mod tokenizers;
mod wire;

use crate::backend::{Backend, Failure, caught, run_session, session};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use wgfc_compiler::passes::rewrite;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{Fusion, Options, Technique};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::testing::{
    Bounded, Config, Rng, bounded, random_chain, random_graph, random_loop, random_packed,
};
use wgfc_ir::{Graph, Tensor};
use wgfc_runtime::Gpu;
use wgfc_selftest::{Tolerance, equal};

/// The replacements of numbers: small ones, values near the limits of types, and values that overflow when
/// multiplied.
const NUMBERS: [i64; 23] = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    5,
    7,
    16,
    63,
    64,
    255,
    1000,
    65_535,
    65_536,
    i32::MAX as i64,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

/// The failures of `many` texts that are read or refused: `attempt` draws one and says why it was refused. A text fails with a panic, also
/// one that a library's border caught, if its reader ends at the limit of its time, or takes more than 8 seconds.
pub fn texts(what: &str, many: u64, mut attempt: impl FnMut(&mut Rng) -> Attempt) -> Vec<String> {
    let (mut used, mut failures) = (0, vec![]);
    for seed in first_seed()..first_seed() + many {
        let start = Instant::now();
        match attempt(&mut Rng::new(seed)) {
            Ok(Ok(())) => used += 1,
            Ok(Err(e)) if !e.contains("contradicts itself") && !e.contains("come to an end") => {}
            Ok(Err(e)) => failures.push(format!("seed {seed}: {e}")),
            Err(e) => failures.push(format!("seed {seed}: {}", e.message())),
        }
        if start.elapsed().as_secs() > 8 {
            failures.push(format!("seed {seed}: took {:?}", start.elapsed()));
        }
    }
    crate::say(format!("{many} mutated {what}, {used} of them used"));
    failures
}

/// Whether a text was read, or the text of the error that refused it; or the failure of the attempt.
type Attempt = Result<Result<(), String>, Failure>;

/// The time that each test runs.
pub fn duration() -> Duration {
    let seconds = std::env::var("WGFC_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10.0);
    Duration::from_secs_f64(seconds)
}

/// The first seed.
pub fn first_seed() -> u64 {
    std::env::var("WGFC_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn size(seed: u64) -> Config {
    Config { operators: 2 + (seed % 19) as usize, ..Config::default() }
}

fn on_random_graphs(
    test: &str,
    check: impl Fn(&Graph, &BTreeMap<String, Tensor>, &[Tensor]) -> Result<(), Failure>,
) {
    on_random(test, |seed| random_graph(seed, &size(seed)), evaluated, check);
}

fn evaluated(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Tensor>, String> {
    evaluate(graph, inputs).map_err(|e| e.to_string())
}

/// Runs `check` on random graphs until time is up. A failing graph is printed with its seed and its text.
fn on_random<T>(
    test: &str,
    make: impl Fn(u64) -> (Graph, BTreeMap<String, Tensor>),
    want: impl Fn(&Graph, &BTreeMap<String, Tensor>) -> Result<Vec<T>, String>,
    check: impl Fn(&Graph, &BTreeMap<String, Tensor>, &[T]) -> Result<(), Failure>,
) {
    let end = Instant::now() + duration();
    let (mut tried, mut failures) = (0, vec![]);
    for seed in first_seed().. {
        if Instant::now() >= end || failures.len() >= 3 {
            break;
        }
        let (graph, inputs) = make(seed);
        let result = caught(|| {
            let want = want(&graph, &inputs).map_err(Failure::error)?;
            check(&graph, &inputs, &want)
        });
        tried += 1;
        if let Err(f) = result {
            failures.push(format!(
                "seed {seed}: {}: {}\ninputs: {inputs:?}\n{}",
                f.status(),
                f.message(),
                wgfc_ir::text::print(&graph)
            ));
        }
    }
    crate::say(format!("{test}: {tried} random graphs"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn same(what: &str, got: &[Tensor], want: &[Tensor]) -> Result<(), Failure> {
    within(what, got, want, Tolerance { rtol: 1e-3, atol: 1e-4 })
}

fn within(what: &str, got: &[Tensor], want: &[Tensor], tolerance: Tolerance) -> Result<(), Failure> {
    if got.len() != want.len() {
        return Err(Failure::Wrong(format!("{what}: {} outputs instead of {}", got.len(), want.len())));
    }
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        equal(g, w, tolerance).map_err(|e| Failure::Wrong(format!("{what}: output {i}: {e}")))?;
    }
    Ok(())
}

#[test]
fn rewritten_graphs_mean_the_same() {
    on_random_graphs("rewritten_graphs_mean_the_same", |graph, inputs, want| {
        let mut graph = graph.clone();
        rewrite(&mut graph, &wgfc_compiler::Options::default())?;
        let got = evaluate(&graph, inputs).map_err(|e| Failure::error(format!("rewritten: {e}")))?;
        same("rewritten", &got, want)
    });
}

fn compiled(
    graph: &Graph,
    options: &Options,
    gpus: &[Gpu],
    inputs: &BTreeMap<String, Tensor>,
    check: impl Fn(&str, &[Tensor]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let program = compile_graph(graph.clone(), Stats::default(), options, &mut |_, _| {})?;
    for gpu in gpus {
        let what = format!("{:?} without {:?} on {}", options.fusion, options.without, gpu.summary().name);
        let mut session = session(gpu, &program)?;
        check(&what, &run_session(&mut session, inputs)?)?;
    }
    Ok(())
}

#[test]
fn compiled_graphs_mean_the_same() {
    let test = "compiled_graphs_mean_the_same";
    let gpus = Backend::adapters();
    if gpus.is_empty() {
        return crate::skip(test, "there is no adapter");
    }
    on_random_graphs(test, |graph, inputs, want| {
        for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
            compiled(graph, &Options { fusion, ..Options::default() }, &gpus, inputs, |w, got| {
                same(w, got, want)
            })?;
        }
        Ok(())
    });
}

/// 8-bit and 16-bit elements, several of which share a word, keep every bit when windows of symbolic extents
/// are moved and overwritten.
#[test]
fn compiled_moves_of_packed_elements_are_exact() {
    let test = "compiled_moves_of_packed_elements_are_exact";
    let gpus = Backend::adapters();
    if gpus.is_empty() {
        return crate::skip(test, "there is no adapter");
    }
    let exact = Tolerance { rtol: 0.0, atol: 0.0 };
    on_random(test, random_packed, evaluated, |graph, inputs, want| {
        for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
            compiled(graph, &Options { fusion, ..Options::default() }, &gpus, inputs, |w, got| {
                within(w, got, want, exact)
            })?;
        }
        Ok(())
    });
}

fn near(what: &str, got: &[Tensor], want: &[Bounded]) -> Result<(), Failure> {
    want.iter().zip(got).try_for_each(|(w, g)| w.check(g).map_err(|e| Failure::Wrong(format!("{what}: {e}"))))
}

/// Chains with constants that cancel give the results of real arithmetic, within rounding errors.
#[test]
fn rewritten_chains_mean_what_real_numbers_do() {
    on_random("rewritten_chains_mean_what_real_numbers_do", random_chain, bounded, |graph, inputs, want| {
        let mut graph = graph.clone();
        rewrite(&mut graph, &Options::default())?;
        near("rewritten", &evaluated(&graph, inputs).map_err(Failure::error)?, want)
    });
}

#[test]
fn compiled_chains_mean_what_real_numbers_do() {
    let test = "compiled_chains_mean_what_real_numbers_do";
    let gpus = Backend::adapters();
    if gpus.is_empty() {
        return crate::skip(test, "there is no adapter");
    }
    on_random(test, random_chain, bounded, |graph, inputs, want| {
        for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
            let options = Options { fusion, ..Options::default() };
            compiled(graph, &options, &gpus, inputs, |w, got| near(w, got, want))?;
        }
        Ok(())
    });
}

#[test]
fn compiled_loops_mean_the_same() {
    let test = "compiled_loops_mean_the_same";
    let gpus = Backend::adapters();
    if gpus.is_empty() {
        return crate::skip(test, "there is no adapter");
    }
    let config = |seed: u64| Config { max_elements: 1 << (3 + seed % 8), ..size(seed) };
    let make = |seed: u64| random_loop(seed, &config(seed)).expect("a random graph is a body");
    on_random(test, make, evaluated, |graph, inputs, want| {
        let split = [Technique::Loops].into();
        let full = Options::default();
        let mut parts = full.clone();
        parts.profile.loop_iterations = Some(2);
        let workgroups = Options { without: [Technique::LoopsInInvocations].into(), ..full.clone() };
        let both = Options { without: workgroups.without.clone(), ..parts.clone() };
        for options in [full.clone(), parts, workgroups, both, Options { without: split, ..full }] {
            compiled(graph, &options, &gpus, inputs, |w, got| same(w, got, want))?;
        }
        Ok(())
    });
}
