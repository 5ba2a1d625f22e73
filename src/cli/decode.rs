//! `wgfc bench decode`.

mod speculated;

use super::adapter;
use super::args::BenchDecodeArgs;
use super::compile::say_random_weights;
use super::device_cache::DeviceCache;
use super::load::without_weights;
use super::profile::{self, estimate_json, estimate_text};
use super::shown;
use super::terminal::Terminal;
use std::time::{Duration, Instant};
use wgfc::generate::recompute::Recompute;
use wgfc::inspect::{bytes_text, known_bytes_text, table, time_text};
use wgfc::model::device_error;
use wgfc::runtime::measure::measure_blocking;
use wgfc::runtime::session::DeviceMemory;
use wgfc::runtime::{Estimate, Gpu, Profile};
use wgfc::{BatchGenerator, Decoder, Error, Fusion, Generator, GeneratorOptions, Request, output};

/// The tokens that are generated before those that are measured, and the time of earlier warm-up runs: clocks rise under
/// load.
const WARM_UP: usize = 8;
const WARM: Duration = Duration::from_millis(500);
/// The number of prompts of a length that count.
const PROMPTED: usize = 10;
/// The number of runs of a profile.
const PROFILED: usize = 10;
/// The number of steps that are compared.
const COMPARED: usize = 8;
/// The prompt of `--prefix-recompute`, and the default number of tokens.
const PROMPT: [i64; 5] = [1, 2, 3, 4, 5];
const RECOMPUTED: u32 = 50;

/// The measurements for one length of the past.
struct Row {
    past: usize,
    dispatches: usize,
    /// The bytes that a step reads and writes. A step generates one token of each sequence.
    bytes: u64,
    /// The time of a step in nanoseconds.
    step: Estimate,
    /// The number of sequences.
    batch: usize,
    profile: Profile,
}

/// The difference between the fused and the unfused program.
struct Check {
    relative_error: f64,
    same_tokens: usize,
}

/// Measures decoding.
pub fn main(a: &BenchDecodeArgs, t: &Terminal) -> Result<(), Error> {
    a.precision.check()?;
    super::speculation::check(&a.speculation)?;
    if a.speculation.proposed() > 0 && a.batch > 1 {
        return Err(Error::usage("several sequences at once are not speculated on", "leave --batch out"));
    }
    let mut decoder = Decoder::open_within(&a.model, a.memory_limit)?;
    if a.random_weights {
        let _progress = t.spinner("making up weights".into());
        decoder = decoder.with_random_weights()?;
    }
    say_random_weights(decoder.model(), t);
    let gpu = adapter::open(&a.adapter, t)?;
    let cache = DeviceCache::open(&a.cache, &gpu, t);
    let (rows, check, memory) = match a.prefix_recompute {
        true => recompute(a, &decoder, (&gpu, &cache), t)?,
        false => cached(a, &decoder, (&gpu, &cache), t)?,
    };
    let first = first_tokens(a, &decoder, (&gpu, &cache), t)?;
    let guessed = speculated::measure(a, &a.speculation, &decoder, (&gpu, &cache), t)?;
    let chosen_for = cache.source.to_string();
    let bandwidth = {
        let _progress = t.spinner("measuring the device's bandwidth".into());
        measure_blocking(&gpu).map_err(device_error)?.copy_bytes_per_second
    };
    if let Some(file) = &a.csv {
        output::write_whole(file, csv(&rows).as_bytes())?;
    }
    let mode = if a.prefix_recompute { "prefix recompute" } else { "cache" };
    let name = &gpu.summary().name;
    if t.json {
        t.print_json(&serde_json::json!({
            "ran_on": name,
            "device_profile": chosen_for,
            "mode": mode,
            "batch": a.batch,
            "random_weights": a.random_weights,
            "bandwidth_bytes_per_second": bandwidth,
            "device_memory_bytes": memory.total(),
            "peak_host_memory_bytes": wgfc::memory::peak(),
            "fused_against_unfused": check.as_ref().map(|c| serde_json::json!({
                "relative_error": c.relative_error, "same_tokens": c.same_tokens, "steps": COMPARED, "tokens": COMPARED * a.batch as usize,
            })),
            "past": rows.iter().map(|r| r.json(bandwidth)).collect::<Vec<_>>(),
            "speculation": guessed.as_ref().map(speculated::Measured::json),
            "prompt": first.iter().map(First::json).collect::<Vec<_>>(),
        }));
        return Ok(());
    }
    let batch = if a.batch > 1 { format!(", {} sequences at once", a.batch) } else { String::new() };
    let mut s =
        format!("{} on {name}, {mode}{batch}, bound at {:.1} GB/s\n", shown(&a.model), bandwidth / 1e9);
    s += &format!("  compiled for the device profile: {chosen_for}\n");
    if let Some(c) = &check {
        s += &format!(
            "  fused and unfused differ by {:.1e} over {COMPARED} steps, {} of {} tokens are the same\n",
            c.relative_error,
            c.same_tokens,
            COMPARED * a.batch as usize
        );
    }
    s += &format!(
        "  {} on the device, {} of them weights; at most {} on the host\n\n{}",
        bytes_text(memory.total()),
        bytes_text(memory.weights),
        known_bytes_text(wgfc::memory::peak()),
        text(&rows, bandwidth)
    );
    if !first.is_empty() {
        s += &format!("\n{}", first_text(&first));
    }
    if let Some(g) = &guessed {
        s += &format!("\n{}", g.text());
    }
    for r in &rows {
        s += &format!("\n  {} past\n", r.past);
        s += &profile::text(&r.profile);
        s += &profile::by_kernel(&r.profile);
    }
    t.print(&s);
    Ok(())
}

/// The measurements, the comparison, and the memory held on the device.
type Measured = (Vec<Row>, Option<Check>, DeviceMemory);

fn cached(
    a: &BenchDecodeArgs,
    decoder: &Decoder,
    (gpu, cache): (&Gpu, &DeviceCache),
    t: &Terminal,
) -> Result<Measured, Error> {
    let tokens = a.tokens.unwrap_or(64) as usize;
    let pasts = if a.past.is_empty() { vec![64] } else { a.past.clone() };
    let longest = pasts.iter().copied().max().unwrap_or(0);
    let need = [longest, WARM_UP, tokens, 1].into_iter().fold(0, usize::saturating_add);
    let options = GeneratorOptions {
        capacity: a.capacity.unwrap_or_else(|| need.checked_next_multiple_of(256).unwrap_or(need)),
        prompt_chunk: Some(1),
        ..options(a, cache)
    };
    let make = |options: &GeneratorOptions| {
        let _progress = t.spinner(format!("compiling {}", shown(&a.model)));
        let batch = a.batch as usize;
        BatchGenerator::on_device(gpu.clone(), decoder, batch, options)
            .map_err(|e| without_weights(e, decoder.model()))
    };
    let mut generator = make(&options)?;
    cache.save(t);
    t.warnings(generator.warnings());
    let check = if a.check {
        let mut unfused = make(&GeneratorOptions { fusion: Fusion::None, ..options.clone() })?;
        let _progress = t.spinner("comparing with the unfused program".into());
        Some(compare(&mut generator, &mut unfused)?)
    } else {
        None
    };
    let batch = generator.batch();
    let prompts = vec![[0].as_slice(); batch];
    let mut rows = vec![];
    for past in pasts {
        let _progress = t.spinner(format!("measuring {} with {past} past", shown(&a.model)));
        let request = |n: usize| Request { max_new_tokens: n, ..Request::default() };
        let warm = Instant::now();
        while warm.elapsed() < WARM {
            generator.pretend(past)?;
            for token in generator.generate(&prompts, &request(WARM_UP))? {
                token?;
            }
        }
        generator.pretend(past)?;
        let mut times = vec![];
        let mut before = Instant::now();
        for token in generator.generate(&prompts, &request(WARM_UP + tokens))? {
            token?;
            let now = Instant::now();
            times.push((now - before).as_nanos() as f64);
            before = now;
        }
        generator.pretend(past)?;
        let (dispatches, bytes) = generator.cost(past + WARM_UP + tokens / 2);
        rows.push(Row {
            past,
            dispatches,
            bytes,
            step: estimate(times.split_off(WARM_UP))?,
            batch,
            profile: generator.profile(PROFILED)?,
        });
    }
    Ok((rows, check, generator.device_memory()))
}

/// The time from a prompt to its first token.
struct First {
    tokens: usize,
    /// In nanoseconds.
    time: Estimate,
}

impl First {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "tokens": self.tokens,
            "first_token_ns": estimate_json(&self.time),
            "tokens_per_second": self.tokens as f64 * 1e9 / self.time.median,
        })
    }
}

fn first_text(all: &[First]) -> String {
    let heading = ["prompt", "first token", "95% confidence", "tokens/s"];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    for f in all {
        let [median, interval] = estimate_text(Some(&f.time));
        let speed = f.tokens as f64 * 1e9 / f.time.median;
        lines.push(vec![f.tokens.to_string(), median, interval, format!("{speed:.0}")]);
    }
    table(&lines, &[true; 4])
}

/// The time to the first token behind each length of prompt that was asked for.
fn first_tokens(
    a: &BenchDecodeArgs,
    decoder: &Decoder,
    (gpu, cache): (&Gpu, &DeviceCache),
    t: &Terminal,
) -> Result<Vec<First>, Error> {
    let Some(longest) = a.prompt.iter().copied().max() else { return Ok(vec![]) };
    let options = GeneratorOptions {
        capacity: (longest as usize).saturating_add(1).next_multiple_of(256),
        prompt_chunk: a.prompt_chunk.map(|n| n as usize),
        ..options(a, cache)
    };
    let mut generator = {
        let _progress = t.spinner(format!("compiling {} for prompts", shown(&a.model)));
        let made = Generator::on_device(gpu.clone(), decoder, &options);
        made.map_err(|e| without_weights(e, decoder.model()))?
    };
    let request = Request { max_new_tokens: 1, ..Request::default() };
    let mut out = vec![];
    for tokens in a.prompt.iter().map(|n| (*n).max(1) as usize) {
        let _progress = t.spinner(format!("measuring a prompt of {tokens}"));
        let ids: Vec<i64> = (0..tokens).map(|i| (i % generator.vocabulary().max(1)) as i64).collect();
        let mut once = || {
            generator.reset()?;
            let start = Instant::now();
            for token in generator.generate(&ids, &request)? {
                token?;
            }
            Ok::<f64, Error>(start.elapsed().as_nanos() as f64)
        };
        let warm = Instant::now();
        while warm.elapsed() < WARM {
            once()?;
        }
        let times = (0..PROMPTED).map(|_| once()).collect::<Result<Vec<f64>, Error>>()?;
        out.push(First { tokens, time: estimate(times)? });
    }
    Ok(out)
}

fn options(a: &BenchDecodeArgs, cache: &DeviceCache) -> GeneratorOptions {
    GeneratorOptions {
        fusion: a.fusion.level(),
        without: a.without.iter().map(|t| t.technique()).collect(),
        adapter: adapter::choice(&a.adapter),
        tuning: cache.tuning.clone(),
        speeds: cache.speeds,
        expect: a.expect.expected(),
        precision: a.precision.precision.of_compiler(),
        keep_f32: a.precision.keep_f32.clone(),
        weights: a.precision.weight_bits(),
        activations: a.precision.activations(),
        cache: a.precision.cache_type(),
        ..GeneratorOptions::default()
    }
}

/// Runs both programs on the tokens that the first one chooses. If the model supports it, the sequences differ in length.
fn compare(fused: &mut BatchGenerator, unfused: &mut BatchGenerator) -> Result<Check, Error> {
    let mut check = Check { relative_error: 0.0, same_tokens: 0 };
    let vocabulary = fused.vocabulary().max(1);
    let length = |i: usize| if fused.ragged() { 1 + i % 3 } else { 1 };
    let prompt = |i: usize| (i..i + length(i)).map(|t| (t % vocabulary) as i64).collect();
    let mut feeds: Vec<Vec<i64>> = (0..fused.batch()).map(prompt).collect();
    for _ in 0..COMPARED {
        let given: Vec<&[i64]> = feeds.iter().map(Vec::as_slice).collect();
        let ((a, next), (b, other)) = (fused.logits(&given)?, unfused.logits(&given)?);
        let (a, b) = (a.to_f32s().unwrap_or_default(), b.to_f32s().unwrap_or_default());
        let square = |v: f32| f64::from(v).powi(2);
        for (a, b) in a.chunks(vocabulary).zip(b.chunks(vocabulary)) {
            let difference: f64 = a.iter().zip(b).map(|(x, y)| square(x - y)).sum();
            let size: f64 = b.iter().copied().map(square).sum();
            let error = (difference / size.max(f64::MIN_POSITIVE)).sqrt();
            check.relative_error = check.relative_error.max(error);
        }
        check.same_tokens += next.iter().zip(&other).filter(|(a, b)| a == b).count();
        feeds = next.into_iter().map(|t| vec![t]).collect();
    }
    Ok(check)
}

fn recompute(
    a: &BenchDecodeArgs,
    decoder: &Decoder,
    (gpu, cache): (&Gpu, &DeviceCache),
    t: &Terminal,
) -> Result<Measured, Error> {
    let tokens = a.tokens.unwrap_or(RECOMPUTED) as usize;
    let mut model = {
        let _progress = t.spinner(format!("compiling {}", shown(&a.model)));
        let made = Recompute::on_device(gpu.clone(), decoder, &options(a, cache));
        made.map_err(|e| without_weights(e, decoder.model()))?
    };
    let _progress = t.spinner(format!("measuring {}", shown(&a.model)));
    let prompt: Vec<i64> = PROMPT.iter().map(|p| p % model.vocabulary() as i64).collect();
    // The first pass over all lengths warms up, as some resources are created once for each shape.
    for counts in [false, true] {
        let mut ids = prompt.clone();
        let mut times = vec![];
        for _ in 0..tokens {
            let start = Instant::now();
            ids.push(model.next(&ids)?);
            times.push(start.elapsed().as_nanos() as f64);
        }
        if counts {
            let middle = PROMPT.len() + tokens / 2;
            let row = Row {
                past: PROMPT.len(),
                dispatches: model.session().program().dispatches.len(),
                bytes: model.bytes(middle),
                step: estimate(times)?,
                batch: 1,
                profile: model.profile(&ids[..middle], PROFILED)?,
            };
            let memory = DeviceMemory::of([model.session()]);
            return Ok((vec![row], None, memory));
        }
    }
    Err(Error::Internal("nothing was measured".into()))
}

fn estimate(times: Vec<f64>) -> Result<Estimate, Error> {
    Estimate::of(times).ok_or_else(|| Error::Internal("no token was measured".into()))
}

impl Row {
    /// Tokens per second, of all sequences together.
    fn tokens(&self, step_ns: f64) -> f64 {
        self.batch as f64 * 1e9 / step_ns
    }
    /// The lower bound of a step's time at this bandwidth, in seconds.
    fn bound(&self, bandwidth: f64) -> f64 {
        self.bytes as f64 / bandwidth
    }
    fn json(&self, bandwidth: f64) -> serde_json::Value {
        serde_json::json!({
            "past": self.past,
            "dispatches_per_step": self.dispatches,
            "step_ns": estimate_json(&self.step),
            "tokens_per_second": self.tokens(self.step.median),
            "tokens_per_second_of_a_sequence": 1e9 / self.step.median,
            "bytes_per_step": self.bytes,
            "bound_tokens_per_second": self.tokens(self.bound(bandwidth) * 1e9),
            "share_of_bound": self.bound(bandwidth) * 1e9 / self.step.median,
            "profile": profile::json(&self.profile),
        })
    }
}

fn text(rows: &[Row], bandwidth: f64) -> String {
    let several = rows.iter().any(|r| r.batch > 1);
    let time = if several { "a step" } else { "a token" };
    let mut heading = vec!["past", "dispatches", time, "95% confidence", "tokens/s"];
    heading.extend(several.then_some("of a sequence"));
    heading.extend(["traffic", "bound", "share of it"]);
    let mut lines = vec![heading.iter().map(|h| (*h).to_owned()).collect::<Vec<String>>()];
    for r in rows {
        let [median, interval] = estimate_text(Some(&r.step));
        let bound = r.bound(bandwidth);
        let mut line = vec![r.past.to_string(), r.dispatches.to_string(), median, interval];
        line.push(format!("{:.1}", r.tokens(r.step.median)));
        line.extend(several.then(|| format!("{:.1}", 1e9 / r.step.median)));
        line.extend([bytes_text(r.bytes), time_text(bound)]);
        line.push(format!("{:.1}%", 100.0 * bound * 1e9 / r.step.median));
        lines.push(line);
    }
    table(&lines, &vec![true; heading.len()])
}

/// A row for each dispatch, with the length of the past in the first column.
fn csv(rows: &[Row]) -> String {
    let mut s = String::new();
    for r in rows {
        let table = profile::csv(&r.profile);
        let mut lines = table.lines();
        let heading = lines.next().unwrap_or_default();
        if s.is_empty() {
            s = format!("past,{heading}\n");
        }
        lines.for_each(|l| s += &format!("{},{l}\n", r.past));
    }
    s
}
