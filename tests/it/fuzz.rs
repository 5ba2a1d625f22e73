//! Mutated models never make the compiler panic, and random graphs mean the same before and after
//! every stage.
//!
//! A mutation works on the protobuf wire format, without a schema: numbers become extreme, fields are
//! dropped, doubled, moved between messages, strings swapped, bytes cut off. Everything follows from a
//! seed, which a failure prints; `WGFC_FUZZ_SEED` repeats it.

use crate::backend::{Backend, Failure, caught, run_session, session};
use crate::data::Folder;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use wgfc::selftest::{Tolerance, equal};
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::rewrite::rewrite;
use wgfc_compiler::{Fusion, Options, Technique, compile};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::testing::{Config, Rng, random_graph, random_loop};
use wgfc_ir::{Graph, Tensor};
use wgfc_runtime::Gpu;

/// One field of a message, its payload parsed further where it looks like a message.
#[derive(Clone, Debug)]
enum Payload {
    Varint(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

#[derive(Clone, Debug)]
struct Field {
    number: u64,
    payload: Payload,
}

fn read_varint(b: &mut &[u8]) -> Option<u64> {
    let mut v = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = b.split_first()?;
        *b = rest;
        v |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(v);
        }
    }
    None
}

fn parse(mut b: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut fields = vec![];
    while !b.is_empty() {
        let tag = read_varint(&mut b)?;
        let length = match tag & 7 {
            0 => {
                fields.push(Field { number: tag >> 3, payload: Payload::Varint(read_varint(&mut b)?) });
                continue;
            }
            1 => 8,
            5 => 4,
            2 => usize::try_from(read_varint(&mut b)?).ok()?,
            _ => return None,
        };
        if length > b.len() || tag >> 3 == 0 || tag >> 3 > 1000 {
            return None;
        }
        let (bytes, rest) = b.split_at(length);
        b = rest;
        let inner = if tag & 7 == 2 && depth > 0 && length > 1 { parse(bytes, depth - 1) } else { None };
        // Text or numbers may look like a message; only what comes back the same is taken for one.
        let payload = match inner.filter(|fields| write(fields) == bytes) {
            Some(fields) => Payload::Message(fields),
            None if tag & 7 == 2 => Payload::Bytes(bytes.to_vec()),
            None => Payload::Fixed(bytes.to_vec()),
        };
        fields.push(Field { number: tag >> 3, payload });
    }
    Some(fields)
}

fn write_varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut out = vec![];
    for f in fields {
        let (wire, bytes) = match &f.payload {
            Payload::Varint(v) => {
                write_varint(f.number << 3, &mut out);
                write_varint(*v, &mut out);
                continue;
            }
            Payload::Fixed(b) => (if b.len() == 8 { 1 } else { 5 }, b.clone()),
            Payload::Bytes(b) => (2, b.clone()),
            Payload::Message(m) => (2, write(m)),
        };
        write_varint(f.number << 3 | wire, &mut out);
        if wire == 2 {
            write_varint(bytes.len() as u64, &mut out);
        }
        out.extend(bytes);
    }
    out
}

const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    5,
    7,
    13,
    16,
    22,
    127,
    1 << 31,
    1 << 32,
    1 << 62,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
];

/// Changes one place, found by walking down at random.
fn mutate(fields: &mut Vec<Field>, rng: &mut Rng, spare: &[Field]) {
    if fields.is_empty() {
        return;
    }
    let i = rng.below(fields.len());
    if let Payload::Message(inner) = &mut fields[i].payload
        && !inner.is_empty()
        && !rng.one_in(6)
    {
        return mutate(inner, rng, spare);
    }
    match rng.below(7) {
        0 => drop(fields.remove(i)),
        1 => fields.push(fields[i].clone()),
        2 => {
            let j = rng.below(fields.len());
            let payload = fields[j].payload.clone();
            fields[i].payload = payload;
        }
        3 if !spare.is_empty() => {
            let other = spare[rng.below(spare.len())].clone();
            fields[i] = Field { number: fields[i].number, ..other };
        }
        4 => fields[i].number = 1 + rng.below(30) as u64,
        _ => match &mut fields[i].payload {
            Payload::Varint(v) => {
                *v = if rng.one_in(3) {
                    v.wrapping_add(*rng.pick(&[1, u64::MAX]).unwrap_or(&1))
                } else {
                    *rng.pick(&NUMBERS).unwrap_or(&0)
                }
            }
            Payload::Fixed(b) | Payload::Bytes(b) => match rng.below(3) {
                0 => b.truncate(rng.below(b.len() + 1)),
                1 => b.extend((0..rng.below(9)).map(|_| rng.bits() as u8)),
                _ if b.is_empty() => {}
                _ => {
                    let at = rng.below(b.len());
                    b[at] = rng.bits() as u8;
                }
            },
            Payload::Message(m) => m.reverse(),
        },
    }
}

/// Every field of every message, to graft elsewhere.
fn flatten(fields: &[Field], out: &mut Vec<Field>) {
    for f in fields {
        out.push(f.clone());
        if let Payload::Message(m) = &f.payload {
            flatten(m, out);
        }
    }
}

fn mutated(model: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = match parse(model, 12) {
        Some(mut fields) if !rng.one_in(8) => {
            let mut spare = vec![];
            flatten(&fields, &mut spare);
            for _ in 0..1 + rng.below(4) {
                mutate(&mut fields, rng, &spare);
            }
            write(&fields)
        }
        _ => model.to_vec(),
    };
    if rng.one_in(8) && !bytes.is_empty() {
        match rng.below(2) {
            0 => bytes.truncate(rng.below(bytes.len())),
            _ => {
                for _ in 0..1 + rng.below(8) {
                    let at = rng.below(bytes.len());
                    bytes[at] = rng.bits() as u8;
                }
            }
        }
    }
    bytes
}

/// How long each test runs.
pub fn duration() -> Duration {
    let seconds = std::env::var("WGFC_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10.0);
    Duration::from_secs_f64(seconds)
}

/// The first seed.
pub fn first_seed() -> u64 {
    std::env::var("WGFC_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

#[test]
fn wire_format_round_trips() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small");
    for folder in Folder::all(&root) {
        let bytes = std::fs::read(folder.model_path()).expect("a fixture");
        assert_eq!(write(&parse(&bytes, 12).expect("protobuf")), bytes, "{}", folder.name);
    }
}

#[test]
fn mutated_models_do_not_panic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Folder::all(&root.join("fixtures/small"));
    seeds.extend(Folder::all(&crate::folder("WGFC_CONFORMANCE", "target/conformance")));
    let models: Vec<(String, Vec<u8>)> = seeds
        .iter()
        .filter(|f| crate::selected(&f.name))
        .map(|f| (f.name.clone(), std::fs::read(f.model_path()).expect("a readable model")))
        .filter(|(_, bytes)| bytes.len() < 100_000)
        .collect();
    if models.is_empty() {
        return crate::say(
            "mutated_models_do_not_panic: WGFC_CASES is in the name of no model; none is tried",
        );
    }
    let scratch = root.join("target/fuzz");
    std::fs::create_dir_all(&scratch).expect("target/ is writable");
    let end = Instant::now() + duration();
    let (mut tried, mut accepted, mut failures) = (0u64, 0u64, vec![]);
    for seed in first_seed().. {
        if Instant::now() >= end || failures.len() >= 20 {
            break;
        }
        let mut rng = Rng::new(seed);
        let (name, model) = &models[rng.below(models.len())];
        let bytes = mutated(model, &mut rng);
        // What a crash that cannot be caught leaves behind.
        let file = scratch.join("current.onnx");
        std::fs::write(&file, &bytes).expect("target/ is writable");
        let start = Instant::now();
        let result = caught(|| Ok(compile(&bytes, &NoExternalData, &Options::default())?));
        tried += 1;
        accepted += u64::from(result.is_ok());
        let seconds = start.elapsed().as_secs_f64();
        let trouble = match result {
            Err(Failure::Panic(message)) => message,
            _ if seconds > 20.0 => format!("took {seconds:.0} s"),
            _ => continue,
        };
        let kept = scratch.join(format!("{seed}.onnx"));
        std::fs::rename(&file, &kept).expect("target/ is writable");
        failures.push(format!("seed {seed}, {name}: {trouble} ({})", kept.display()));
    }
    crate::say(format!("{tried} mutated models, {accepted} of them compiled"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn size(seed: u64) -> Config {
    Config { operators: 2 + (seed % 19) as usize, ..Config::default() }
}

fn on_random_graphs(
    test: &str,
    check: impl Fn(&Graph, &BTreeMap<String, Tensor>, &[Tensor]) -> Result<(), Failure>,
) {
    on_random(test, |seed| random_graph(seed, &size(seed)), check);
}

/// Runs `check` on random graphs until time is up; what fails is printed with its seed and its text.
fn on_random(
    test: &str,
    make: impl Fn(u64) -> (Graph, BTreeMap<String, Tensor>),
    check: impl Fn(&Graph, &BTreeMap<String, Tensor>, &[Tensor]) -> Result<(), Failure>,
) {
    let end = Instant::now() + duration();
    let (mut tried, mut failures) = (0, vec![]);
    for seed in first_seed().. {
        if Instant::now() >= end || failures.len() >= 3 {
            break;
        }
        let (graph, inputs) = make(seed);
        let result = caught(|| {
            let want = evaluate(&graph, &inputs).map_err(|e| Failure::error(e.to_string()))?;
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
    let tolerance = Tolerance { rtol: 1e-3, atol: 1e-4 };
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
    want: &[Tensor],
) -> Result<(), Failure> {
    let program = compile_graph(graph.clone(), Stats::default(), options, &mut |_, _| {})?;
    for gpu in gpus {
        let what = format!("{:?} without {:?} on {}", options.fusion, options.without, gpu.summary().name);
        let mut session = session(gpu, &program)?;
        same(&what, &run_session(&mut session, inputs)?, want)?;
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
            compiled(graph, &Options { fusion, ..Options::default() }, &gpus, inputs, want)?;
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
    on_random(test, make, |graph, inputs, want| {
        let split = [Technique::Loops].into();
        let full = Options::default();
        let mut parts = full.clone();
        parts.profile.loop_iterations = Some(2);
        let workgroups = Options { without: [Technique::LoopsInInvocations].into(), ..full.clone() };
        let both = Options { without: workgroups.without.clone(), ..parts.clone() };
        for options in [full.clone(), parts, workgroups, both, Options { without: split, ..full }] {
            compiled(graph, &options, &gpus, inputs, want)?;
        }
        Ok(())
    });
}
