//! `wgfc generate`.

use super::adapter;
use super::args::{DecoderArgs, FormArgs, GenerateArgs, SamplingArgs, SpeculationArgs};
use super::compile::say_random_weights;
use super::device_cache::DeviceCache;
use super::pictures::Pictures;
use super::terminal::Terminal;
use super::{shown, speculation};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use wgfc::compiler::budget::Budget;
use wgfc::generate::{Choices, Constraint, ImageFeatures, Setup, Speculated, cached_tokens};
use wgfc::inspect::{bytes_text, known_bytes_text, table, time_text};
use wgfc::model::device_error;
use wgfc::runtime::Gpu;
use wgfc::runtime::measure::measure_blocking;
use wgfc::runtime::session::DeviceMemory;
use wgfc::{Decoder, Error, Generator, GeneratorOptions, Request, Sampling, Tensor};

/// A default capacity is a multiple of this, so that similar prompts result in the same program.
const STEP: usize = 256;

/// Generates text or tokens.
pub fn main(a: &GenerateArgs, t: &Terminal) -> Result<(), Error> {
    a.decoder.precision.check()?;
    speculation::check(&a.speculation)?;
    let started = Instant::now();
    let mut decoder = open(&a.model, &a.decoder, t)?;
    let text = a.prompt.is_some();
    let encoded = |decoder: &Decoder, images: &[ImageFeatures]| match (&a.prompt, &a.tokens) {
        (Some(text), _) => decoder.encode_with_images(text, images),
        (None, Some(ids)) => decoder.place_images(ids, images),
        (None, None) => Ok(vec![]),
    };
    // Without pictures, faults of the prompt are errors before a device is opened.
    let words = if a.image.is_empty() { Some(encoded(&decoder, &[])?) } else { None };
    decoder = weighted(decoder, &a.decoder, t)?;
    let mut request = request(a, &decoder)?;
    let mut gpu = None;
    let prompt = match words {
        Some(prompt) => prompt,
        None => {
            let mut pictures = Pictures::new(gpu.insert(adapter::open(&a.decoder.adapter, t)?), &a.decoder);
            let images = a.image.iter().map(|path| pictures.read(path, &decoder, t));
            request.images = images.collect::<Result<_, _>>()?;
            encoded(&decoder, &request.images)?
        }
    };
    let saved = a.load_cache.as_deref().map(cached_tokens).transpose()?;
    let need = prompt.len().saturating_add(a.max_new_tokens).max(saved.map_or(0, |s| s.len()));
    let capacity = a.capacity.unwrap_or_else(|| need.checked_next_multiple_of(STEP).unwrap_or(need));
    let gpu = gpu.map_or_else(|| adapter::open(&a.decoder.adapter, t), Ok)?;
    let read = started.elapsed().as_secs_f64();
    let budget = Budget::of_data(a.decoder.memory_limit);
    let context = a.context.iter().map(|c| super::inputs::given(c, "--context", &budget));
    let context = context.collect::<Result<BTreeMap<_, _>, _>>()?;
    let further = Further { context, added: &a.added, replaced: &a.replaced };
    let (mut generator, cache) =
        set_up(&gpu, &decoder, (capacity, further), (&a.decoder, &a.speculation), &a.model, t)?;

    let ready = Instant::now();
    if let Some(file) = &a.load_cache {
        generator.load_cache(file)?;
    }
    let cached = generator.in_common(&prompt);
    let mut stream = if text { Some(decoder.stream()?) } else { None };
    let mut tokens = vec![];
    let mut times = vec![];
    let mut likely = vec![];
    let mut generated = generator.complete(&prompt, &request)?;
    while let Some(token) = generated.next() {
        let token = token.inspect_err(|_| {
            if !t.json && !tokens.is_empty() {
                t.print_piece("\n");
            }
        })?;
        times.push(ready.elapsed().as_secs_f64());
        let piece = match &mut stream {
            Some(s) => s.push(token)?,
            None if tokens.is_empty() => token.to_string(),
            None => format!(",{token}"),
        };
        tokens.push(token);
        likely.extend(generated.logprobs().map(|p| {
            let top = p.top.iter().map(|(token, p)| serde_json::json!({ "token": token, "logprob": p }));
            serde_json::json!({ "logprob": p.chosen, "top": top.collect::<Vec<_>>() })
        }));
        if !t.json && !t.print_piece(&piece) {
            break;
        }
    }
    drop(generated);
    cache.save(t);
    if let Some(file) = &a.save_cache {
        generator.save_cache(file)?;
        t.note(&format!("{} tokens are saved in {}", generator.len(), shown(file)));
    }
    let ended = tokens.last().is_some_and(|t| request.stop.contains(t));
    let stats = Stats {
        prompt: prompt.len(),
        cached,
        setup: (ready - started).as_secs_f64(),
        read,
        parts: generator.setup(),
        memory: generator.device_memory(),
        peak: wgfc::memory::peak(),
        times,
        speculated: (a.speculation.proposed() > 0).then(|| generator.speculated()),
        place: generator.session().gpu().summary().name.clone(),
        chosen_for: cache.source.to_string(),
        program: if a.stats {
            Some(ProgramStats::new(&generator, prompt.len(), tokens.len(), t)?)
        } else {
            None
        },
    };
    if t.json {
        let text = if text { Some(decoder.decode(&tokens)?) } else { None };
        let image = if a.image.is_empty() { None } else { decoder.image_token()? };
        let token = |t: &i64| image.filter(|_| *t < 0).unwrap_or(*t);
        let prompt: Vec<i64> = prompt.iter().map(token).collect();
        let mut printed = serde_json::json!({
            "ran_on": stats.place,
            "random_weights": a.decoder.random_weights,
            "prompt": prompt,
            "tokens": tokens,
            "text": text,
            "ended": ended,
            "stats": stats.json(),
        });
        if a.logprobs.is_some() {
            printed["logprobs"] = likely.into();
        }
        t.print_json(&printed);
        return Ok(());
    }
    t.print_piece("\n");
    if a.stats {
        t.print_to_stderr(&stats.text());
    }
    Ok(())
}

/// Opens the decoder of a path, or of the Hub.
pub fn open(model: &Path, a: &DecoderArgs, t: &Terminal) -> Result<Decoder, Error> {
    Decoder::open_within(&fetched(model, a, t)?, a.memory_limit)
}

/// Where the model is, after it has been fetched from the Hub if that is asked for.
#[cfg(feature = "hub")]
fn fetched(model: &Path, a: &DecoderArgs, t: &Terminal) -> Result<PathBuf, Error> {
    if !a.from_hub {
        return Ok(model.to_owned());
    }
    let name = model.to_string_lossy();
    let bar = t.bar(format!("fetching {name}"), 0, true);
    wgfc::hub::Hub::of_user()?.fetch(&name, &mut |_, done, all| bar.at_of(done, all))
}

/// Where the model is.
#[cfg(not(feature = "hub"))]
fn fetched(model: &Path, _: &DecoderArgs, _: &Terminal) -> Result<PathBuf, Error> {
    Ok(model.to_owned())
}

/// The decoder with random weights if they are asked for.
pub fn weighted(mut decoder: Decoder, a: &DecoderArgs, t: &Terminal) -> Result<Decoder, Error> {
    if a.random_weights {
        let _progress = t.spinner("making up weights".into());
        decoder = decoder.with_random_weights()?;
    }
    say_random_weights(decoder.model(), t);
    Ok(decoder)
}

/// The options of a generator; takes the schedules of the cache.
pub fn options(a: &DecoderArgs, cache: &mut DeviceCache, capacity: usize) -> GeneratorOptions {
    GeneratorOptions {
        capacity,
        fusion: a.fusion.level(),
        expect: a.expect.expected(),
        precision: a.precision.precision.of_compiler(),
        keep_f32: a.precision.keep_f32.clone(),
        weights: a.precision.weight_bits(),
        activations: a.precision.activations(),
        cache: a.precision.cache_type(),
        tuning: std::mem::take(&mut cache.tuning),
        speeds: cache.speeds,
        ..GeneratorOptions::default()
    }
}

/// Values of further inputs of a decoder, and the tensors of the model of which some are added or take the place.
#[derive(Default)]
pub struct Further<'a> {
    pub context: BTreeMap<String, Tensor>,
    pub added: &'a [String],
    pub replaced: &'a [String],
}

/// Compiles the decoder for the device, and loads its weights.
pub fn set_up(
    gpu: &Gpu,
    decoder: &Decoder,
    (capacity, further): (usize, Further<'_>),
    (a, s): (&DecoderArgs, &SpeculationArgs),
    model: &Path,
    t: &Terminal,
) -> Result<(Generator, DeviceCache), Error> {
    let mut cache = DeviceCache::open(&a.cache, gpu, t);
    let own = options(a, &mut cache, capacity);
    let options = GeneratorOptions {
        speculate: s.proposed(),
        context: further.context,
        added: further.added.to_vec(),
        replaced: further.replaced.to_vec(),
        ..own
    };
    let mut generator = {
        let what = match options.weights.bits() {
            0 => format!("compiling {} and loading its weights", shown(model)),
            bits => format!("compiling {}, its weights in {bits} bits, and loading them", shown(model)),
        };
        let _progress = super::load::compiling_as(gpu, what, t);
        let made = Generator::on_device(gpu.clone(), decoder, &options);
        made.map_err(|e| super::load::without_weights(e, decoder.model()))?
    };
    t.warnings(generator.warnings());
    if let Some(draft) = &s.draft {
        let _progress = super::load::compiling_as(gpu, format!("compiling {}", shown(draft)), t);
        speculation::set_up(&mut generator, decoder, s, a.memory_limit, &options)?;
    }
    Ok((generator, cache))
}

/// The request that the options specify; otherwise the publisher's recommendation, else greedy decoding.
fn request(a: &GenerateArgs, decoder: &Decoder) -> Result<Request, Error> {
    Ok(Request {
        max_new_tokens: a.max_new_tokens,
        sampling: sampling(&a.sampling, decoder),
        stop: if a.ignore_end { vec![] } else { decoder.stop_tokens() },
        logprobs: a.logprobs,
        constraint: constraint(&a.form, decoder)?,
        images: vec![],
    })
}

/// The form to which the options hold the output.
pub fn constraint(a: &FormArgs, decoder: &Decoder) -> Result<Option<Constraint>, Error> {
    let text = |path: &Path| {
        let help = "give a text file in UTF-8";
        std::fs::read_to_string(path)
            .map_err(|e| Error::file_help(path, format!("cannot be read: {e}"), help))
    };
    match (&a.json_schema, &a.regex, &a.grammar) {
        (Some(file), _, _) => decoder.forms()?.json_schema(&text(file)?).map(Some),
        (_, Some(expression), _) => decoder.forms()?.regex(expression).map(Some),
        (_, _, Some(file)) => decoder.forms()?.grammar(&text(file)?).map(Some),
        _ => Ok(None),
    }
}

/// How tokens are chosen: as the options specify, otherwise as the publisher recommends, else greedily (`None`).
pub fn sampling(a: &SamplingArgs, decoder: &Decoder) -> Option<Sampling> {
    decoder.defaults().sampling(&Choices {
        temperature: a.temperature,
        top_k: a.top_k,
        top_p: a.top_p,
        min_p: a.min_p,
        repetition_penalty: a.repetition_penalty,
        presence_penalty: a.presence_penalty,
        frequency_penalty: a.frequency_penalty,
        logit_bias: a.logit_bias.clone(),
        seed: a.seed,
    })
}

/// The speed of generation. Times are in seconds.
struct Stats {
    place: String,
    /// The device profile that the programs were compiled for.
    chosen_for: String,
    prompt: usize,
    /// The tokens of the prompt that a loaded cache held.
    cached: usize,
    /// The time before the first run.
    setup: f64,
    /// The part of the set-up that opens files, encodes the prompt and generates random weights.
    read: f64,
    /// The other parts of the set-up.
    parts: Setup,
    memory: DeviceMemory,
    /// The peak memory of the process in bytes, if the system reports it.
    peak: Option<u64>,
    /// The time of each token, counted from the end of the set-up.
    times: Vec<f64>,
    program: Option<ProgramStats>,
    /// The counts of speculation, if it was asked for.
    speculated: Option<Speculated>,
}

/// The estimated cost of one token.
struct ProgramStats {
    dispatches: usize,
    /// The bytes of a token in the middle of the generated ones.
    bytes: u64,
    /// The measured bandwidth in bytes per second.
    bandwidth: f64,
}

impl ProgramStats {
    fn new(g: &Generator, prompt: usize, tokens: usize, t: &Terminal) -> Result<ProgramStats, Error> {
        let _progress = t.spinner("measuring the device's bandwidth".into());
        let measured = measure_blocking(g.session().gpu()).map_err(device_error)?;
        let (dispatches, bytes) = g.cost(prompt + tokens / 2);
        Ok(ProgramStats { dispatches, bytes, bandwidth: measured.copy_bytes_per_second })
    }
    /// The lower bound of a token's time at the measured bandwidth, in seconds.
    fn bound(&self) -> f64 {
        self.bytes as f64 / self.bandwidth
    }
}

impl Stats {
    /// The mean time of a token after the first one, in seconds.
    fn per_token(&self) -> Option<f64> {
        let (first, last) = (self.times.first()?, self.times.last()?);
        (self.times.len() > 1).then(|| (last - first) / (self.times.len() - 1) as f64)
    }

    fn text(&self) -> String {
        let mut rows = vec![["ran on".to_owned(), self.place.clone()]];
        let mut row = |k: &str, v: String| rows.push([k.to_owned(), v]);
        row("device profile", self.chosen_for.clone());
        row(
            "set-up",
            format!(
                "{}: reading {}, compiling {}, pipelines and upload {}",
                time_text(self.setup),
                time_text(self.read),
                time_text(self.parts.compiling.as_secs_f64()),
                time_text(self.parts.uploading.as_secs_f64())
            ),
        );
        let copying = self.parts.copying.as_secs_f64();
        if copying > 0.0 {
            let speed = self.parts.copied as f64 / (1u64 << 30) as f64 / copying;
            row(
                "weights",
                format!("{} in {}, {speed:.2} GB/s", bytes_text(self.parts.copied), time_text(copying)),
            );
        }
        if let Some(first) = self.times.first() {
            let cached = match self.cached {
                0 => String::new(),
                n => format!(", {n} of them in the loaded cache"),
            };
            let prompt = self.prompt;
            row("first token", format!("{} after it, {prompt} tokens of prompt{cached}", time_text(*first)));
        }
        if let Some(s) = self.per_token() {
            row("speed", format!("{:.1} tokens/s, {} a token", 1.0 / s, time_text(s)));
        }
        if let Some(s) = &self.speculated {
            row("speculation", speculation::text(s));
        }
        if let Some(p) = &self.program {
            row("dispatches a token", p.dispatches.to_string());
            row("bytes a token", bytes_text(p.bytes));
            let bandwidth = format!("{:.1} GB/s", p.bandwidth / (1u64 << 30) as f64);
            row("bound", format!("{:.1} tokens/s at the {bandwidth} measured", 1.0 / p.bound()));
            if let Some(s) = self.per_token() {
                row("share of the bound", format!("{:.1}%", 100.0 * p.bound() / s));
            }
        }
        let m = &self.memory;
        let parts = [("weights", m.weights), ("cache", m.states), ("activations", m.activations)];
        let parts = parts.map(|(k, v)| format!("{k} {}", bytes_text(v))).join(", ");
        row("device memory", format!("{}: {parts}", bytes_text(m.total())));
        row("host memory", format!("{} at the most", known_bytes_text(self.peak)));
        let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
        format!("\n{}", table(&rows, &[]))
    }

    fn json(&self) -> serde_json::Value {
        let p = self.program.as_ref();
        serde_json::json!({
            "device_profile": self.chosen_for,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "setup_seconds": self.setup,
            "reading_seconds": self.read,
            "compiling_seconds": self.parts.compiling.as_secs_f64(),
            "uploading_seconds": self.parts.uploading.as_secs_f64(),
            "copying_weights_seconds": self.parts.copying.as_secs_f64(),
            "copied_weights_bytes": self.parts.copied,
            "device_memory_bytes": self.memory.total(),
            "weights_bytes": self.memory.weights,
            "cache_bytes": self.memory.states,
            "peak_host_memory_bytes": self.peak,
            "first_token_seconds": self.times.first(),
            "tokens_per_second": self.per_token().map(|s| 1.0 / s),
            "speculation": self.speculated.as_ref().map(speculation::json),
            "dispatches_per_token": p.map(|p| p.dispatches),
            "bytes_per_token": p.map(|p| p.bytes),
            "bandwidth_bytes_per_second": p.map(|p| p.bandwidth),
            "bound_tokens_per_second": p.map(|p| 1.0 / p.bound()),
            "share_of_bound": p.zip(self.per_token()).map(|(p, s)| p.bound() / s),
        })
    }
}
