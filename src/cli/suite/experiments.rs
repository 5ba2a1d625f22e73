//! The experiments of papers that are repeated: what each technique of fusion gains a decoder, evolutions that run whole on the device, a diffusion model
//! with its sampler, from which batch on the device is faster than the processor, and processes that share the device.

use super::doubled::{doubled, doubled_tensor};
use super::of_pass;
use super::tasks::{Context, FILLING};
use crate::cli::args::BenchSuiteArgs;
use crate::cli::bench::WARM_UP;
use crate::cli::crossover;
use crate::cli::inputs::random_inputs;
use crate::cli::loops::workloads::{Size, Workload};
use crate::cli::own::Program;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Instant;
use wgfc::compiler::options::{Fusion, Precision, Technique};
use wgfc::generate::{Generator, GeneratorOptions, Request};
use wgfc::ir::Scalar;
use wgfc::random::Rng;
use wgfc::runtime::stats::Estimate;
use wgfc::suite::{Better, Reading, Record, Unit};
use wgfc::{DType, Decoder, Error, Model, ModelFile, Options, Tensor};

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

/// The gain of the techniques of fusion: a decoder without one at a time, or with the levels of fusion alone, and one whose logits come to
/// the host for the choice of a token.
pub fn fusion(
    cx: &Context,
    name: &str,
    decoder: &Decoder,
    levels_alone: bool,
) -> Result<Vec<Reading>, Error> {
    let (capacity, prompt, tokens) = if cx.small() { (128, 16, 12) } else { (1024, 64, 200) };
    let variants = if cx.small() { &VARIANTS[..2] } else { &VARIANTS[..] };
    let mut out = vec![];
    for (variant, fusion, technique) in variants.iter().filter(|v| !levels_alone || v.2.is_none()) {
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

/// A decoder of the shape of Qwen2.5-0.5B as it is, and steered: a vector is added to the results of the layer in the middle for each token.
pub fn steering(cx: &Context) -> Result<Vec<Reading>, Error> {
    let [layers, hidden, inner, tokens] =
        if cx.small() { [2, 64, 128, 256] } else { [24, 896, 4864, 151_936] };
    let config = serde_json::json!({
        "model_type": "qwen2", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden / 64,
        "num_key_value_heads": (hidden / 448).max(1), "intermediate_size": inner, "vocab_size": tokens,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true,
    });
    let decoder = cx.decoder(config.to_string().as_bytes())?;
    let middle = format!("model.layers.{}.mlp.down_proj", layers / 2);
    let vector: Vec<f32> = (0..hidden).map(|i| (i % 13) as f32 / 60.0 - 0.1).collect();
    let mut out = vec![];
    for steered in [false, true] {
        let (added, context) = match steered {
            true => (
                vec![middle.clone()],
                [(format!("{middle}.add"), Tensor::from_f32(vec![1, 1, hidden], &vector))].into(),
            ),
            false => Default::default(),
        };
        let capacity = if cx.small() { 128 } else { 1024 };
        let options = GeneratorOptions { capacity, added, context, ..cx.generator_options() };
        let mut g = Generator::on_device(cx.gpu.clone(), &decoder, &options)?;
        let id = |part: &str| format!("steering/0.5 B/{part}{}", if steered { ", steered" } else { "" });
        out.push(Reading::new(id("dispatches"), Unit::One, Better::Less, vec![g.cost(128).0 as f64]));
        let warm = Instant::now();
        while !cx.small() && warm.elapsed().as_secs_f64() < WARM_UP {
            times(&mut g, 64, 20, false)?;
        }
        let mut all = times(&mut g, 64, if cx.small() { 12 } else { 200 }, false)?;
        out.push(Reading::new(
            id("a token"),
            Unit::Seconds,
            Better::Less,
            all.split_off(all.len().min(FILLING)),
        ));
    }
    Ok(out)
}

/// The widths of narrow decoders.
const WIDTHS: [usize; 4] = [32, 64, 128, 256];

/// Decoders of four narrow layers and 256 tokens, whose dispatches cost more than their work: a token, its dispatches, and how long the
/// device works on it, as one workgroup runs several kernels (or all) in a dispatch, and with a dispatch for each kernel.
pub fn narrow(cx: &Context) -> Result<Vec<Reading>, Error> {
    const FORMS: [(&str, &[Technique]); 2] = [("", &[]), (", kernels apart", &[Technique::Sequences])];
    const PROFILES: usize = 7;
    let mut out = vec![];
    for width in WIDTHS.iter().take(if cx.small() { 1 } else { WIDTHS.len() }) {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": width, "num_hidden_layers": 4, "num_attention_heads": width / 16,
            "num_key_value_heads": width / 16, "intermediate_size": 4 * width, "vocab_size": 256, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true,
        });
        let decoder = cx.decoder(config.to_string().as_bytes())?;
        for (form, without) in FORMS {
            let without = without.iter().copied().collect();
            let options = GeneratorOptions { capacity: 512, without, ..cx.generator_options() };
            let mut g = Generator::on_device(cx.gpu.clone(), &decoder, &options)?;
            let id = |part: &str| format!("narrow/4 layers of {width}/{part}{form}");
            let (dispatches, _) = g.cost(64);
            out.push(Reading::new(id("dispatches"), Unit::One, Better::Less, vec![dispatches as f64]));
            let warm = Instant::now();
            while !cx.small() && warm.elapsed().as_secs_f64() < WARM_UP {
                times(&mut g, 16, 100, false)?;
            }
            let mut all = times(&mut g, 16, if cx.small() { 12 } else { 400 }, false)?;
            let each = all.split_off(all.len().min(FILLING));
            out.push(Reading::new(id("a token"), Unit::Seconds, Better::Less, each));
            g.pretend(64)?;
            let mut on_device = vec![];
            for _ in 0..PROFILES {
                on_device.extend(g.profile(PROFILES)?.gpu_ns.map(|e| e.median * 1e-9));
            }
            if !on_device.is_empty() {
                out.push(Reading::new(id("on the device"), Unit::Seconds, Better::Less, on_device));
            }
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

/// Policies of CartPole.
const fn cartpole(name: &'static str, population: usize, generations: usize) -> Evolution {
    let model = include_bytes!("../../../fixtures/evolution/cartpole/model.onnx");
    Evolution { name, model, reach: 1.0, population, genes: 58, generations, solved: Some(-500.0) }
}

/// Four evolutions on a function: the usual one of 4,096 individuals with 10 genes, one of few, one of many, and one with 100 genes.
macro_rules! function {
    ($name:literal, $reach:literal) => {{
        const MODEL: &[u8] = include_bytes!(concat!("../../../fixtures/evolution/", $name, "/model.onnx"));
        const USUAL: Evolution = Evolution {
            name: $name,
            model: MODEL,
            reach: $reach,
            population: 4096,
            genes: 10,
            generations: 200,
            solved: None,
        };
        [
            USUAL,
            Evolution { name: concat!($name, " of few"), population: 256, ..USUAL },
            Evolution { name: concat!($name, " of many"), population: 65_536, ..USUAL },
            Evolution { name: concat!($name, " of 100 genes"), genes: 100, ..USUAL },
        ]
    }};
}

/// The policies. Of many random ones one solves CartPole already; a small population has to evolve.
pub const POLICIES: [Evolution; 2] = [cartpole("cartpole", 4096, 20), cartpole("cartpole of few", 32, 40)];
/// The functions.
pub const FUNCTIONS: [[Evolution; 4]; 5] = [
    function!("sphere", 5.12),
    function!("ackley", 32.768),
    function!("schwefel", 500.0),
    function!("griewank", 600.0),
    function!("rastrigin", 5.12),
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
    let count = ("generations".to_owned(), Tensor::from_i64(vec![], &[generations as i64]));
    let inputs = |seed: u64| -> BTreeMap<String, Tensor> {
        let mut rng = Rng::new(seed, "genomes");
        let mut gene = || ((rng.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0) * e.reach;
        let genomes: Vec<f32> = (0..population * e.genes).map(|_| gene()).collect();
        let genomes = Tensor::from_f32(vec![population, e.genes], &genomes);
        let seed = Tensor::scalar(Scalar::from_i64(DType::U32, seed as i64));
        [("genomes".to_owned(), genomes), ("seed".to_owned(), seed)].into()
    };
    let mut model = Model::compile_for(cx.gpu.clone(), &file, &options)?;
    let (mut seconds, mut best, mut needed) = (vec![], vec![], vec![]);
    // The first run waits for memory.
    for seed in 0..=seeds {
        let mut inputs = inputs(seed);
        inputs.extend([count.clone()]);
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
    // Where the number of generations is known, the host need not read whether there is another one.
    options.values.extend([count]);
    let mut model = Model::compile_for(cx.gpu.clone(), &file, &options)?;
    let mut fixed = vec![];
    for seed in 0..=seeds {
        let inputs = inputs(seed);
        let started = Instant::now();
        model.run(&inputs)?;
        if seed > 0 {
            fixed.push(started.elapsed().as_secs_f64());
        }
    }
    let id = |part: &str| format!("evolution/{}, {population} x {generations}/{part}", e.name);
    let time = |part: &str, samples| Reading::new(id(part), Unit::Seconds, Better::Less, samples);
    let mut out =
        vec![time("a whole evolution", seconds), time("a whole evolution, generations fixed", fixed)];
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
    let mut inputs = random_inputs(&model, &|_| None);
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
    let (batches, runs) = if cx.small() { (&BATCHES[..3], 3) } else { (&BATCHES[..], 28) };
    let file = ModelFile::of_bytes(std::sync::Arc::new(SMALL_NETWORK));
    let mut models = [
        Model::compile_for(cx.gpu.clone(), &file, &cx.options())?,
        Model::on_cpu(&file, &Options::default())?,
    ];
    let points = crossover::points(&mut models, "batch", batches, runs, |_| true)?;
    let id = "crossover/network 13 x 7 x 5/batch from which the device is faster";
    let from = match crossover::from(&points) {
        Some(batch) => Reading::new(id, Unit::One, Better::Less, vec![batch as f64]),
        None => Reading::missing(id, Unit::One, Better::Less, "the processor is faster at all of these"),
    };
    let rows = points.into_iter().flat_map(|p| {
        let row = |place: &str, times| {
            let id = format!("crossover/network 13 x 7 x 5, batch {}/{place}", p.size);
            Reading::new(id, Unit::Seconds, Better::Less, times)
        };
        [row("device", p.device), row("processor", p.processor)]
    });
    Ok(rows.chain([from]).collect())
}

/// The simulations whose individuals are ranked by their first output.
pub const RANKED: [&str; 7] =
    ["rastrigin", "cartpole", "acrobot", "acrobot-rk4", "mountaincar", "mountaincar-51", "portfolio"];
/// The most individuals of them.
const MOST_RANKED: usize = 512;

/// Spearman's rank correlation of individuals in f32 on the device, and of the same ones in f64 by the reference evaluator: an evolution
/// chooses by ranks.
pub fn ranks(cx: &Context, w: &Workload) -> Result<Vec<Reading>, Error> {
    let usual = w.usual;
    let size = match cx.small() {
        true => Size { population: 64, steps: usual.steps.min(200), dims: usual.dims.min(50) },
        false => Size { population: usual.population.min(MOST_RANKED), ..usual },
    };
    let (dims, values) = w.fixed(size);
    let file = |bytes: Vec<u8>| ModelFile::of_bytes(std::sync::Arc::new(bytes));
    let options = Options { dims, values, ..cx.options() };
    let mut on_device = Model::compile_for(cx.gpu.clone(), &file(w.model.to_vec()), &options)?;
    let mut in_f64 = Model::on_cpu(&file(doubled(w.model)?), &options)?;
    let mut found = vec![];
    for seed in 1..=3 {
        let of = |doubled: fn(Tensor) -> Tensor| {
            let inputs = w.inputs(size, seed).into_iter();
            inputs.map(|(name, t)| (name.to_owned(), doubled(t))).collect::<BTreeMap<String, Tensor>>()
        };
        let name = on_device.outputs().first().map(|o| o.name.to_string()).unwrap_or_default();
        let first = |all: BTreeMap<String, Tensor>| {
            let scalars = all.get(&name).and_then(Tensor::scalars).unwrap_or_default();
            scalars.into_iter().map(Scalar::as_f64).collect::<Vec<f64>>()
        };
        let (ours, exact) = (first(on_device.run(&of(|t| t))?), first(in_f64.run(&of(doubled_tensor))?));
        found.extend(rank_correlation(&ours, &exact));
    }
    let id = format!("ranks/{}, {} steps/Spearman's correlation with f64", w.name, size.steps);
    Ok(vec![match found.is_empty() {
        true => Reading::missing(id, Unit::One, Better::More, "all individuals are equal"),
        false => Reading::new(id, Unit::One, Better::More, found),
    }])
}

/// Spearman's rank correlation of two lists of one length; `None` if all values of one are equal. Equal values have the mean of their ranks.
fn rank_correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let ranks = |v: &[f64]| -> Vec<f64> {
        let mut sorted = v.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = |x: &f64| (sorted.partition_point(|y| y < x) + sorted.partition_point(|y| y <= x)) as f64;
        v.iter().map(rank).collect()
    };
    let (a, b) = (ranks(a), ranks(b));
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mean_a, mean_b) = (mean(&a), mean(&b));
    let product =
        |f: fn(f64, f64) -> f64| -> f64 { a.iter().zip(&b).map(|(x, y)| f(x - mean_a, y - mean_b)).sum() };
    let both = (product(|x, _| x * x) * product(|_, y| y * y)).sqrt();
    (both > 0.0).then(|| product(|x, y| x * y) / both)
}

/// Processes that use the device at once: the time of a run in each, and the runs of all in a second.
pub fn processes(cx: &Context) -> Result<Vec<Reading>, Error> {
    let counts: &[usize] = if cx.small() { &[1, 2] } else { &[1, 2, 4] };
    let measured: &[(&str, &str)] = match cx.small() {
        true => &[("loops/cartpole", "one kernel")],
        false => &[("models/mobilenetv2", "a run, waited for"), ("loops/cartpole", "one kernel")],
    };
    let mut out = vec![];
    for (task, part) in measured {
        for count in counts {
            let each = at_once(cx, task, part, *count)?;
            let all: f64 = each.iter().flat_map(|s| Estimate::of(s.clone())).map(|e| 1.0 / e.median).sum();
            let name = task.split('/').next_back().unwrap_or(task);
            let id = |part: &str| format!("processes/{name}, {count} at once/{part}");
            out.push(Reading::new(id(part), Unit::Seconds, Better::Less, each.concat()));
            out.push(Reading::new(id("runs of all"), Unit::PerSecond, Better::More, vec![all]));
        }
    }
    Ok(out)
}

/// The samples of a row of a task by each of several processes of this program that begin together.
fn at_once(cx: &Context, task: &str, part: &str, count: usize) -> Result<Vec<Vec<f64>>, Error> {
    let program = Program::this()?;
    let failed =
        |why: String| Error::usage(format!("a process of the suite failed: {why}"), "run the suite again");
    let folder = cx.folder.path();
    let name = task.replace('/', " ");
    let files: Vec<_> = (0..count).map(|i| folder.join(format!("{name}, {i} of {count}.json"))).collect();
    let started = files.iter().map(|file| {
        let args = BenchSuiteArgs { output: file.clone(), only: vec![task.to_owned()], ..cx.args.clone() };
        let mut c = of_pass(&program, &args, 0, true);
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    });
    // All of them run before the first is waited for.
    let started: Vec<_> = started.collect();
    let mut each = vec![];
    for (child, file) in started.into_iter().zip(&files) {
        let done = child.and_then(|c| c.wait_with_output()).map_err(|e| failed(e.to_string()))?;
        if !done.status.success() {
            return Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
        }
        let record = Record::read(file)?;
        let row = record.rows.iter().find(|r| r.id.starts_with(task) && r.id.ends_with(part));
        let samples = row.and_then(|r| r.measured()).map(|m| m.samples().collect());
        each.push(samples.ok_or_else(|| failed(format!("{task} has no row of {part}")))?);
    }
    Ok(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate_by_their_order_alone() {
        assert_eq!(rank_correlation(&[1.0, 2.0, 30.0], &[0.1, 5.0, 6.0]), Some(1.0));
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[9.0, 8.0, 1.0]), Some(-1.0));
        assert_eq!(
            rank_correlation(&[1.0, 1.0, 3.0, 4.0], &[1.0, 2.0, 3.0, 4.0]),
            Some(4.5 / (4.5f64 * 5.0).sqrt())
        );
        assert_eq!(rank_correlation(&[1.0, 1.0], &[1.0, 2.0]), None);
    }
}
