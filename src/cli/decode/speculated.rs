//! Speculation measured: the time of runs that verify, and what is accepted.

use super::{BenchDecodeArgs, PROFILED, WARM_UP, options};
use crate::cli::args::SpeculationArgs;
use crate::cli::device_cache::DeviceCache;
use crate::cli::load::without_weights;
use crate::cli::terminal::Terminal;
use crate::cli::{shown, speculation};
use std::time::Instant;
use wgfc::generate::{Proposer, Speculated};
use wgfc::inspect::{table, time_text};
use wgfc::runtime::{Gpu, Profile};
use wgfc::{Decoder, Error, Generator, GeneratorOptions, Request};

/// The time of a run of one token, and of one that verifies a proposal, behind `past` others, in nanoseconds.
struct Verified {
    past: usize,
    single: f64,
    verifying: f64,
}

impl Verified {
    /// The time of a verifying run in single runs.
    fn ratio(&self) -> f64 {
        self.verifying / self.single
    }
}

/// The measurements.
pub struct Measured {
    /// The number of tokens that a verifying run takes.
    positions: usize,
    verified: Vec<Verified>,
    /// The counts of generating `tokens` tokens, and its seconds without and with speculation.
    counts: Speculated,
    tokens: usize,
    seconds: [f64; 2],
}

/// No proposals.
struct Never;

impl Proposer for Never {
    fn propose(&mut self, _: &[i64], _: usize) -> Result<Vec<i64>, Error> {
        Ok(vec![])
    }
    fn expects(&self, _: &[i64]) -> bool {
        false
    }
}

/// Measures what `--speculate` asks for, if it does.
pub fn measure(
    a: &BenchDecodeArgs,
    s: &SpeculationArgs,
    decoder: &Decoder,
    (gpu, cache): (&Gpu, &DeviceCache),
    t: &Terminal,
) -> Result<Option<Measured>, Error> {
    if s.proposed() == 0 {
        return Ok(None);
    }
    let pasts = if a.past.is_empty() { vec![64] } else { a.past.clone() };
    let (longest, tokens) = (pasts.iter().copied().max().unwrap_or(0), a.tokens.unwrap_or(64) as usize);
    let positions = s.proposed() + 1;
    let options = GeneratorOptions {
        capacity: a.capacity.unwrap_or(longest.max(tokens + WARM_UP).saturating_add(positions + 1)),
        prompt_chunk: Some(1),
        speculate: s.proposed(),
        ..options(a, cache)
    };
    let mut generator = {
        let _progress = t.spinner(format!("compiling {} for speculation", shown(&a.model)));
        let made = Generator::on_device(gpu.clone(), decoder, &options);
        made.map_err(|e| without_weights(e, decoder.model()))?
    };
    let _progress = t.spinner("measuring speculation".into());
    let time = |p: &Profile| p.back_to_back_ns.or(p.wall_ns.as_ref().map(|e| e.median)).unwrap_or(f64::NAN);
    let mut verified = vec![];
    for past in pasts {
        generator.pretend(past)?;
        let single = time(&generator.profile(PROFILED)?);
        let verifying = time(&generator.profile_verification(PROFILED)?);
        verified.push(Verified { past, single, verifying });
    }
    let timed = |generator: &mut Generator| {
        let mut last = 0.0;
        let mut before = generator.speculated();
        // The first time warms up.
        for n in [WARM_UP, tokens] {
            generator.reset()?;
            before = generator.speculated();
            let start = Instant::now();
            let request = Request { max_new_tokens: n, ..Request::default() };
            for token in generator.generate(&[0], &request)? {
                token?;
            }
            last = start.elapsed().as_secs_f64();
        }
        Ok::<_, Error>((last, generator.speculated().since(&before)))
    };
    generator.set_proposer(Box::new(Never))?;
    let (without, _) = timed(&mut generator)?;
    match &s.draft {
        Some(_) => speculation::set_up(&mut generator, decoder, s, a.memory_limit, &options)?,
        None => generator.set_proposer(Box::new(wgfc::generate::Lookup::default()))?,
    }
    let (with, counts) = timed(&mut generator)?;
    Ok(Some(Measured { positions, verified, counts, tokens, seconds: [without, with] }))
}

impl Measured {
    /// Tables for people.
    pub fn text(&self) -> String {
        let heading = ["past", "one token", &format!("{} tokens", self.positions), "ratio"];
        let mut lines = vec![heading.map(str::to_owned).to_vec()];
        for v in &self.verified {
            let times = [v.single, v.verifying].map(|ns| time_text(ns / 1e9));
            lines
                .push([vec![v.past.to_string()], times.to_vec(), vec![format!("{:.2}", v.ratio())]].concat());
        }
        let [without, with] = self.seconds.map(|s| self.tokens as f64 / s);
        format!(
            "{}  {} tokens after one: {with:.1} tokens/s, {without:.1} without speculation; {}\n",
            table(&lines, &[true; 4]),
            self.tokens,
            speculation::text(&self.counts)
        )
    }

    /// The measurements for `--json`.
    pub fn json(&self) -> serde_json::Value {
        let row = |v: &Verified| {
            serde_json::json!({
                "past": v.past, "single_ns": v.single, "verifying_ns": v.verifying, "ratio": v.ratio(),
            })
        };
        let [without, with] = self.seconds.map(|s| self.tokens as f64 / s);
        serde_json::json!({
            "positions": self.positions,
            "runs": self.verified.iter().map(row).collect::<Vec<_>>(),
            "generated": speculation::json(&self.counts),
            "tokens_per_second": with,
            "tokens_per_second_without": without,
        })
    }
}
