//! The experiments of papers that are repeated: what each technique of fusion gains a decoder, evolutions that run whole on the device, a diffusion model
//! with its sampler, and from which batch on the device is faster than the processor.

use super::tasks::{Context, FILLING, random_inputs};
use crate::cli::bench::WARM_UP;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use wgfc::compiler::options::{Fusion, Precision, Technique};
use wgfc::generate::{Generator, GeneratorOptions, Request};
use wgfc::ir::Scalar;
use wgfc::random::Rng;
use wgfc::runtime::stats::Estimate;
use wgfc::suite::{Better, Reading, Unit};
use wgfc::{DType, Decoder, Error, Model, ModelFile, Options, Tensor, random};

/// A variant of compiling a decoder: its name, the level of fusion, and a technique that is left out.
type Variant = (&'static str, Fusion, Option<Technique>);
const VARIANTS: [Variant; 8] = [
    ("all", Fusion::Full, None),
    ("without attention in a kernel and raised norms", Fusion::Full, Some(Technique::Approximate)),
    ("without merged products", Fusion::Full, Some(Technique::Merge)),
    ("without epilogues", Fusion::Full, Some(Technique::Epilogues)),
    ("without norms in products", Fusion::Full, Some(Technique::WaitingScales)),
    ("without attention over parts of the keys", Fusion::Full, Some(Technique::KeyParts)),
    ("elementwise fusion alone", Fusion::Elementwise, None),
    ("no fusion", Fusion::None, None),
];

/// The gain of the techniques of fusion: a decoder without one at a time, and one whose logits come to the host for the choice of a token.
pub fn fusion(cx: &Context, name: &str, decoder: &Decoder) -> Result<Vec<Reading>, Error> {
    let (capacity, prompt, tokens) = if cx.small() { (128, 16, 12) } else { (1024, 64, 200) };
    let variants = if cx.small() { &VARIANTS[..2] } else { &VARIANTS[..] };
    let mut out = vec![];
    for (variant, fusion, technique) in variants {
        let options = GeneratorOptions {
            capacity,
            fusion: *fusion,
            without: technique.iter().copied().collect::<BTreeSet<_>>(),
            ..cx.generator_options()
        };
        let mut g = Generator::on_device(cx.gpu.clone(), decoder, &options)?;
        let id = |part: &str| format!("fusion/{name}/{variant}/{part}");
        let (dispatches, _) = g.cost(prompt + tokens / 2);
        out.push(Reading::new(id("dispatches"), Unit::One, Better::Less, vec![dispatches as f64]));
        // Prompts become faster until the device's clock is up and memory for them is there.
        let warm = Instant::now();
        while !cx.small() && warm.elapsed().as_secs_f64() < WARM_UP {
            times(&mut g, prompt, 1, false)?;
        }
        let mut first = vec![];
        for _ in 0..if cx.small() { 3 } else { 10 } {
            first.extend(times(&mut g, prompt, 1, false)?);
        }
        out.push(Reading::new(id("first token"), Unit::Seconds, Better::Less, first));
        let mut row = |part: &str, on_host: bool| {
            let mut all = times(&mut g, prompt, tokens, on_host)?;
            let each = all.split_off(all.len().min(FILLING));
            out.push(Reading::new(id(part), Unit::Seconds, Better::Less, each));
            Ok::<(), Error>(())
        };
        row("a token", false)?;
        if *variant == "all" {
            row("a token, chosen by the host", true)?;
        }
    }
    Ok(out)
}

/// The seconds between tokens behind a prompt of so many; the first is that to the first token. The host chooses them, or the device.
fn times(g: &mut Generator, prompt: usize, tokens: usize, on_host: bool) -> Result<Vec<f64>, Error> {
    g.reset()?;
    let vocabulary = g.vocabulary().max(1);
    let ids: Vec<i64> = (0..prompt).map(|i| (i % vocabulary) as i64).collect();
    let more = if tokens > 1 { FILLING } else { 0 };
    let request = Request { max_new_tokens: tokens + more, ..Request::default() };
    let mut before = Instant::now();
    let mut stream = g.generate(&ids, &request)?;
    if on_host {
        stream = stream.with_logits(|_, _| ());
    }
    let mut all = vec![];
    for token in stream {
        token?;
        let now = Instant::now();
        all.push((now - before).as_secs_f64());
        before = now;
    }
    Ok(all)
}

/// A genetic algorithm in fixtures/evolution.
pub struct Evolution {
    /// The problem.
    pub name: &'static str,
    model: &'static [u8],
    /// The genes of an individual are drawn from minus this number to it.
    reach: f32,
    population: usize,
    genes: usize,
    generations: usize,
    /// The fitness at which the problem is solved, if one says so.
    solved: Option<f32>,
}

const fn function(name: &'static str, model: &'static [u8], reach: f32) -> Evolution {
    Evolution { name, model, reach, population: 4096, genes: 10, generations: 200, solved: None }
}

/// Policies of CartPole.
const fn cartpole(name: &'static str, population: usize, generations: usize) -> Evolution {
    let model = include_bytes!("../../../fixtures/evolution/cartpole/model.onnx");
    Evolution { name, model, reach: 1.0, population, genes: 58, generations, solved: Some(-500.0) }
}

/// The evolutions. Of many random policies for CartPole one solves it already; a small population has to evolve.
pub const EVOLUTIONS: [Evolution; 7] = [
    cartpole("cartpole", 4096, 20),
    cartpole("cartpole of few", 32, 40),
    function("sphere", include_bytes!("../../../fixtures/evolution/sphere/model.onnx"), 5.12),
    function("ackley", include_bytes!("../../../fixtures/evolution/ackley/model.onnx"), 32.768),
    function("schwefel", include_bytes!("../../../fixtures/evolution/schwefel/model.onnx"), 500.0),
    function("griewank", include_bytes!("../../../fixtures/evolution/griewank/model.onnx"), 600.0),
    function("rastrigin", include_bytes!("../../../fixtures/evolution/rastrigin/model.onnx"), 5.12),
];

/// A whole evolution in one run: its time, and how good the best individuals of several seeds are.
pub fn evolution(cx: &Context, e: &Evolution) -> Result<Vec<Reading>, Error> {
    let (population, generations, seeds) = match cx.small() {
        true => (e.population.min(64), 3, 3),
        false => (e.population, e.generations, 32),
    };
    let file = ModelFile::of_bytes(std::sync::Arc::new(e.model));
    let mut options = cx.options();
    options.dims.insert("population".to_owned(), population as i64);
    if e.solved.is_none() {
        options.dims.insert("genes".to_owned(), e.genes as i64);
    }
    let mut model = Model::compile_for(cx.gpu.clone(), &file, &options)?;
    let (mut seconds, mut best, mut needed) = (vec![], vec![], vec![]);
    // The first run waits for memory.
    for seed in 0..=seeds {
        let mut rng = Rng::new(seed, "genomes");
        let mut gene = || ((rng.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0) * e.reach;
        let genomes: Vec<f32> = (0..population * e.genes).map(|_| gene()).collect();
        let inputs: BTreeMap<String, Tensor> = [
            ("genomes".to_owned(), Tensor::from_f32(vec![population, e.genes], &genomes)),
            ("seed".to_owned(), Tensor::scalar(Scalar::from_i64(DType::U32, seed as i64))),
            ("generations".to_owned(), Tensor::from_i64(vec![], &[generations as i64])),
        ]
        .into();
        let started = Instant::now();
        let outputs = model.run(&inputs)?;
        if seed > 0 {
            seconds.push(started.elapsed().as_secs_f64());
        }
        let values = |name: &str| -> Vec<f64> {
            let all = outputs.get(name).and_then(Tensor::to_f32s).unwrap_or_default();
            all.into_iter().map(f64::from).collect()
        };
        best.extend(values("fitness"));
        let solved = e.solved.and_then(|s| values("history").iter().position(|f| *f <= f64::from(s)));
        needed.extend(solved.map(|g| g as f64 + 1.0));
    }
    let id = |part: &str| format!("evolution/{}, {population} x {generations}/{part}", e.name);
    let mut out = vec![Reading::new(id("a whole evolution"), Unit::Seconds, Better::Less, seconds)];
    if e.solved.is_none() {
        out.push(Reading::new(id("best fitness"), Unit::One, Better::Less, best));
        return Ok(out);
    }
    let share = needed.len() as f64 / (seeds + 1) as f64;
    out.push(Reading::new(id("share of seeds that solve it"), Unit::One, Better::More, vec![share]));
    out.push(match needed.is_empty() {
        true => Reading::missing(id("generations until then"), Unit::One, Better::Less, "no seed solved it"),
        false => Reading::new(id("generations until then"), Unit::One, Better::Less, needed),
    });
    Ok(out)
}

/// A U-Net of Stable Diffusion 1.5's size with its sampler, and a narrow one.
const UNET: &[u8] = include_bytes!("../../../fixtures/unet.onnx");
const NARROW_UNET: &[u8] = include_bytes!("../../../fixtures/diffusion/narrow/model.onnx");
/// The steps of the sampler.
const SAMPLED: usize = 4;

/// A picture of a diffusion model: all steps of the sampler in one run.
pub fn diffusion(cx: &Context, name: &str, precision: Precision) -> Result<Vec<Reading>, Error> {
    let bytes = if cx.small() { NARROW_UNET } else { UNET };
    let file = ModelFile::of_bytes(std::sync::Arc::new(bytes)).with_random_weights()?;
    let mut options = Options { precision, ..cx.options() };
    options.dims.insert("steps".to_owned(), SAMPLED as i64);
    let mut model = Model::compile_for(cx.gpu.clone(), &file, &options)?;
    let mut inputs = random_inputs(&model);
    // The time of each step, and the shares of the picture before and after it.
    let row = |i: usize| {
        let share = |i: usize| (0.1 + 0.8 * i as f32 / SAMPLED as f32).min(0.99);
        [(1000 * (SAMPLED - i) / SAMPLED) as f32, share(i), share(i + 1)]
    };
    let schedule: Vec<f32> = (0..SAMPLED).flat_map(row).collect();
    inputs.insert("schedule".to_owned(), Tensor::from_f32(vec![SAMPLED, 3], &schedule));
    let mut times = vec![];
    for _ in 0..if cx.small() { 3 } else { 12 } {
        let started = Instant::now();
        model.run(&inputs)?;
        times.push(started.elapsed().as_secs_f64());
    }
    // The first runs wait for memory, and for the device's clock.
    let times = times.split_off(if cx.small() { 1 } else { 3 });
    let id = format!("diffusion/{name}/{SAMPLED} steps with guidance");
    Ok(vec![Reading::new(id, Unit::Seconds, Better::Less, times)])
}

/// A network of two layers, 13 by 7 by 5.
const SMALL_NETWORK: &[u8] = include_bytes!("../../../fixtures/small/mlp/model.onnx");
const BATCHES: [usize; 9] = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536];

/// A small network by batch: a run that is waited for on the device, and on the processor.
pub fn crossover(cx: &Context) -> Result<Vec<Reading>, Error> {
    let batches = if cx.small() { &BATCHES[..3] } else { &BATCHES[..] };
    let file = ModelFile::of_bytes(std::sync::Arc::new(SMALL_NETWORK));
    let mut models = [
        ("device", Model::compile_for(cx.gpu.clone(), &file, &cx.options())?),
        ("processor", Model::on_cpu(&file, &Options::default())?),
    ];
    let (mut out, mut faster) = (vec![], None);
    for batch in batches {
        let inputs: BTreeMap<String, Tensor> =
            [("x".to_owned(), random::tensor(DType::F32, vec![*batch, 13], "x", 1))].into();
        let mut medians = vec![];
        for (place, model) in &mut models {
            let mut times = vec![];
            for _ in 0..if cx.small() { 5 } else { 30 } {
                let started = Instant::now();
                model.run(&inputs)?;
                times.push(started.elapsed().as_secs_f64());
            }
            // The first runs wait for memory.
            let times = times.split_off(2);
            medians.extend(Estimate::of(times.clone()).map(|e| e.median));
            let id = format!("crossover/network 13 x 7 x 5, batch {batch}/{place}");
            out.push(Reading::new(id, Unit::Seconds, Better::Less, times));
        }
        if let [device, processor] = medians[..]
            && device < processor
            && faster.is_none()
        {
            faster = Some(*batch as f64);
        }
    }
    let id = "crossover/network 13 x 7 x 5/batch from which the device is faster";
    out.push(match faster {
        Some(batch) => Reading::new(id, Unit::One, Better::Less, vec![batch]),
        None => Reading::missing(id, Unit::One, Better::Less, "the processor is faster at all of these"),
    });
    Ok(out)
}
