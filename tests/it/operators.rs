//! Single operators with random shapes, types and attributes, compiled with full fusion and run on the
//! adapter, give the results of the reference evaluator for the imported graph.
//!
//! [`wgfc_selftest`] describes how cases are drawn; `WGFC_FUZZ_CASE='NAME SEED'` repeats one.

use crate::backend::Backend;
use crate::fuzz::{duration, first_seed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use wgfc_compiler::Options;
use wgfc_runtime::Gpu;
use wgfc_selftest::{Failure, Ran, caught, describe, operators, run_hollow, run_operator};

fn run(name: &str, seed: u64, gpu: &Gpu) -> Result<Ran, Failure> {
    run_operator(name, seed, gpu, &Options::default())
}

/// The numbers of cases of an operator that ran as drawn, ran without symbolic extents, were refused, and failed.
type Counts = BTreeMap<&'static str, [usize; 4]>;

#[test]
fn operators_mean_the_same() {
    let test = "operators_mean_the_same";
    let mut gpus = Backend::adapters();
    if gpus.is_empty() {
        return crate::skip(test, "there is no adapter");
    }
    let gpu = gpus.swap_remove(0);
    if let Ok(wanted) = std::env::var("WGFC_FUZZ_CASE") {
        let parts = wanted.rsplit_once(' ').and_then(|(name, seed)| Some((name, seed.parse().ok()?)));
        let known = parts.and_then(|(name, seed)| Some((name, seed, describe(name, seed)?)));
        let (name, seed, text) = known.unwrap_or_else(|| {
            panic!("WGFC_FUZZ_CASE is `{wanted}`, not an operator of selftest/src/operators and a seed, as in `Softmax 17`")
        });
        crate::say(text);
        match run(name, seed, &gpu) {
            Ok(Ran::Refused) => return crate::say("refused as unsupported"),
            Ok(_) => return,
            Err(f) => panic!("{}: {}", f.status(), f.message()),
        }
    }
    let names: Vec<&'static str> = operators().filter(|n| crate::selected(n)).collect();
    if names.is_empty() {
        return crate::say(format!("{test}: no operator's name contains WGFC_CASES; nothing was tested"));
    }
    let end = Instant::now() + duration();
    let next = AtomicUsize::new(0);
    let found = Mutex::<(Counts, Vec<String>)>::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let (name, seed) = (names[i % names.len()], first_seed() + (i / names.len()) as u64);
                    let result = caught(|| run(name, seed, &gpu));
                    let mut found = found.lock().expect("no holder panics");
                    let counts = found.0.entry(name).or_default();
                    counts[result.as_ref().map_or(3, |r| *r as usize)] += 1;
                    if let Err(f) = result {
                        found.1.push(format!(
                            "WGFC_FUZZ_CASE='{name} {seed}' cargo test --test it -- {test}   # {}: {}",
                            f.status(),
                            f.message()
                        ));
                    }
                }
            });
        }
    });
    let (counts, failures) = found.into_inner().expect("no holder panics");
    let sum = |i: usize| counts.values().map(|c| c[i]).sum::<usize>();
    crate::say(format!(
        "{test}: {} cases of {} operators on {}, {} of them with every extent known, {} refused, {} failed",
        (0..4).map(sum).sum::<usize>(),
        counts.len(),
        gpu.summary().name,
        sum(1),
        sum(2),
        sum(3)
    ));
    // If every case of a line is refused, the line draws the wrong cases.
    for (name, [whole, unnamed, refused, _]) in &counts {
        assert!(*refused < 4 || whole + unnamed > 0, "no case of {name} is supported");
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn operators_without_elements_mean_the_same() {
    let test = "operators_without_elements_mean_the_same";
    let mut gpus = Backend::adapters();
    if gpus.is_empty() {
        return crate::skip(test, "there is no adapter");
    }
    let gpu = gpus.swap_remove(0);
    let names: Vec<&'static str> = operators().filter(|n| crate::selected(n)).collect();
    let end = Instant::now() + duration();
    let (mut counts, mut failures) = ([0usize; 3], vec![]);
    'all: for seed in first_seed().. {
        for name in &names {
            if Instant::now() >= end || failures.len() >= 20 {
                break 'all;
            }
            match caught(|| run_hollow(name, seed, &gpu, &Options::default())) {
                Ok(ran) => counts[ran as usize] += 1,
                Err(f) => failures.push(format!("{name} {seed}: {}: {}", f.status(), f.message())),
            }
        }
    }
    let [whole, unnamed, refused] = counts;
    crate::say(format!("{test}: {} cases, {refused} of them refused", whole + unnamed + refused));
    assert!(names.is_empty() || whole + unnamed > 0, "every case is refused");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Operators for which no line draws cases. Random graphs and the ONNX cases cover operators with subgraphs.
const NOT_DRAWN: &[&str] = &["Constant", "If", "Loop", "Scan"];

#[test]
fn every_operator_has_a_line() {
    let drawn: BTreeSet<&str> = operators().collect();
    let missing: Vec<String> = wgfc_compiler::import::onnx::ops::all()
        .map(|d| if d.domain.is_empty() { d.name.to_owned() } else { format!("{}.{}", d.domain, d.name) })
        .filter(|n| !drawn.contains(n.as_str()) && !NOT_DRAWN.contains(&n.as_str()))
        .collect();
    assert!(missing.is_empty(), "no line draws cases of {missing:?}");
}
