//! `wgfc tune`.

use super::adapter;
use super::args::TuneArgs;
use super::device_cache::{speeds, warn};
use super::shown;
use super::terminal::Terminal;
use super::timings::{Record, recorded};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wgfc::compiler::DeviceProfile;
use wgfc::compiler::device::Speeds;
use wgfc::compiler::pipeline::Fused;
use wgfc::inspect::table;
use wgfc::model::device_error;
use wgfc::runtime::Gpu;
use wgfc::runtime::measure::measure_blocking;
use wgfc::tune::{Measured, Refused, TuneOptions, Tuned, tune};
use wgfc::{Cache, Decoder, Error, GeneratorOptions, ModelFile, Options};

/// Measures a model's kernels, or those of single operators, on a device.
pub fn main(a: &TuneArgs, t: &Terminal) -> Result<(), Error> {
    let started = Instant::now();
    let gpu = adapter::open(&a.adapter, t)?;
    let cache = match (Cache::of_user(), a.dry_run) {
        (Some(c), false) => Some(c),
        (_, true) => None,
        (None, false) => {
            return Err(Error::usage(
                "there is no folder to store measurements in",
                "name a folder in WGFC_CACHE_DIR, or give --dry-run",
            ));
        }
    };
    let (_, speeds) = speeds(Cache::of_user().as_ref(), &gpu, t);
    let programs = {
        let _progress = t.spinner(format!("compiling {}", title(a)));
        programs(a, &gpu, speeds)?
    };
    let bandwidth = match gpu.summary().is_software {
        true => None,
        false => Some(measure_blocking(&gpu).map_err(device_error)?.copy_bytes_per_second),
    };
    let mut all = Tuned::default();
    let mut record = a.record.as_deref().map(|f| Record::open(f, &gpu, speeds)).transpose()?;
    let mut seen = BTreeSet::new();
    for (i, Part { name, fused, options }) in programs.iter().enumerate() {
        // Time that a program does not use is available for the following ones.
        let rest = Duration::from_secs_f64(a.budget).saturating_sub(started.elapsed());
        let how = TuneOptions {
            budget: rest / (programs.len() - i) as u32,
            most: a.most as usize,
            values: a.at.iter().cloned().collect(),
        };
        let bar = t.bar(format!("measuring {}", title(a)), 0, false);
        let progress = |done: usize, of: usize| bar.at_of(done as u64, of as u64);
        let found = tune(&gpu, fused, options, &how, &|key| seen.contains(key), &progress)?;
        seen.extend(found.measured.iter().map(|m| m.tunable.key.clone()));
        if let Some(record) = &mut record {
            record.add(recorded(fused, options, &how.values, &found.measured, name.as_deref())?)?;
        }
        all.measured.extend(found.measured);
        all.left_out.extend(found.left_out);
    }
    let mut stored = None;
    if let Some(cache) = cache {
        if let Err(e) = cache.tuning(gpu.summary()) {
            warn(&e, t);
        }
        let entries: BTreeMap<_, _> = all.measured.iter().map(Measured::entry).collect();
        cache.add_tuning(gpu.summary(), &entries)?;
        stored = Some(cache.tuning_file(gpu.summary()));
    }
    if t.json {
        t.print_json(&json(&gpu, &all, bandwidth, stored.as_ref()));
    } else {
        t.print(&text(&gpu, &all, bandwidth, stored.as_ref()));
    }
    Ok(())
}

/// The name of the tuned model, for messages.
fn title(a: &TuneArgs) -> String {
    a.model.as_deref().map_or_else(|| "single operators".to_owned(), shown)
}

/// Kernels that were fused together.
struct Part {
    /// The name of the problem that they compute, if they are not a model's.
    name: Option<String>,
    fused: Fused,
    options: Options,
}

fn programs(a: &TuneArgs, gpu: &Gpu, speeds: Speeds) -> Result<Vec<Part>, Error> {
    let of_model = |(fused, options)| Part { name: None, fused, options };
    if let Some(n) = a.kernels {
        let options = a.compile.options()?;
        let base = DeviceProfile { speeds, ..options.profile.clone() };
        let options = Options { profile: base.with_limits(gpu.profile()), ..options };
        let fused = super::kernels::fused(n as usize, a.seed, gpu, &options)?;
        let part = |(name, fused)| Part { name: Some(name), fused, options: options.clone() };
        return Ok(fused.into_iter().map(part).collect());
    }
    let model =
        a.model.as_deref().ok_or_else(|| Error::usage("nothing to tune", "give a model, or --kernels"))?;
    if a.generate {
        let common = a.compile.options()?;
        let Options { fusion, without, expect, precision, keep_f32, weights, activations, cache, .. } =
            common;
        let options = GeneratorOptions {
            fusion,
            without,
            expect,
            precision,
            keep_f32,
            weights,
            activations,
            cache,
            speeds,
            ..GeneratorOptions::default()
        };
        let decoder = Decoder::open_within(model, a.compile.memory_limit)?;
        let mut made = wgfc::generate::fused(gpu, &decoder, &options);
        if made.is_err() && !decoder.model().missing().is_empty() {
            made = wgfc::generate::fused(gpu, &decoder.with_random_weights()?, &options);
        }
        return Ok(made?.into_iter().map(of_model).collect());
    }
    let options = a.compile.options()?;
    let base = DeviceProfile { speeds, ..options.profile.clone() };
    let options = Options { profile: base.with_limits(gpu.profile()), ..options };
    let file = ModelFile::open(model)?;
    let fuse = |f: &ModelFile| f.fuse_amended(&options, &mut |_| Ok(()));
    let made = match fuse(&file) {
        Err(_) if !file.missing().is_empty() => fuse(&file.with_random_weights()?),
        made => made,
    };
    Ok(vec![of_model((made?, options))])
}

/// The nanoseconds of all measured dispatches, with the compiler's schedules and with the best ones.
fn sums(all: &Tuned) -> [f64; 2] {
    let sum = |f: fn(&Measured) -> f64| {
        all.measured.iter().map(|m| m.tunable.dispatches as f64 * f(m)).sum::<f64>()
    };
    [sum(|m| m.own.ns), sum(|m| m.best.ns)]
}

/// The geometric mean, over kernels, of the time with the compiler's schedule divided by that with the best one.
fn missed(all: &Tuned) -> Option<f64> {
    let logs: Vec<f64> = all.measured.iter().map(|m| (m.own.ns / m.best.ns).ln()).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

fn text(gpu: &Gpu, all: &Tuned, bandwidth: Option<f64>, stored: Option<&PathBuf>) -> String {
    let heading = ["kernel", "×", "problem", "own choice", "time", "best choice", "time", "gain", "of bound"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for m in &all.measured {
        let best = match m.gains() {
            true => [m.best.choice.to_string(), us(m.best.ns), percent(1.0 - m.best.ns / m.own.ns)],
            false => ["-".into(), "-".into(), "-".into()],
        };
        let [choice, time, gain] = best;
        let node: String = m.node.chars().rev().take(28).collect::<Vec<_>>().into_iter().rev().collect();
        rows.push(vec![
            node,
            m.tunable.dispatches.to_string(),
            m.tunable.title.clone(),
            m.own.choice.to_string(),
            us(m.own.ns),
            choice,
            time,
            gain,
            bound(m, bandwidth).map_or("-".into(), percent),
        ]);
    }
    let right = [false, true, false, false, true, false, true, true, true];
    let [own, best] = sums(all);
    let gains = all.measured.iter().filter(|m| m.gains()).count();
    let mut s = format!("{}: {} kernels measured\n\n", gpu.summary().name, all.measured.len());
    if !all.measured.is_empty() {
        s += &table(&rows, &right);
        s +=
            &format!("\n  {gains} of them gain: their dispatches take {} instead of {}\n", us(best), us(own));
    }
    if let Some(mean) = missed(all) {
        s += &format!(
            "  the compiler's choices take {mean:.3} times as long as the best, in the geometric mean\n"
        );
    }
    let refused: Vec<(&Measured, &Refused)> =
        all.measured.iter().flat_map(|m| m.refused.iter().map(move |r| (m, r))).collect();
    for (differs, what) in [(false, "refused by the device"), (true, "not used, as results differed")] {
        let own: Vec<_> = refused.iter().filter(|(_, r)| r.differs == differs).collect();
        if !own.is_empty() {
            let ways = if own.len() == 1 { "schedule was" } else { "schedules were" };
            s += &format!("  {} {ways} {what}:\n", own.len());
        }
        for (m, r) in own {
            let why = r.why.lines().next().unwrap_or_default();
            s += &format!("    {}: `{}`: {why}\n", m.tunable.title, r.choice);
        }
    }
    if !all.left_out.is_empty() {
        s += &format!(
            "  {} kernels were left out for lack of time (--budget) or memory\n",
            all.left_out.len()
        );
    }
    match stored {
        Some(p) => s += &format!("  stored in {}\n", p.display()),
        None => s += "  nothing was stored\n",
    }
    s
}

/// The lower bound of the time by memory, relative to the time with the best schedule.
fn bound(m: &Measured, bandwidth: Option<f64>) -> Option<f64> {
    Some(m.tunable.bytes as f64 / bandwidth? / (m.best.ns * 1e-9))
}

/// A schedule that was not used, as JSON.
pub fn refused_json(r: &Refused) -> serde_json::Value {
    serde_json::json!({
        "choice": r.choice,
        "text": r.choice.to_string(),
        "differs": r.differs,
        "why": r.why,
    })
}

fn us(ns: f64) -> String {
    super::profile::ns_text(ns)
}

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

fn json(gpu: &Gpu, all: &Tuned, bandwidth: Option<f64>, stored: Option<&PathBuf>) -> serde_json::Value {
    let one = |m: &Measured| {
        let estimate = |c: &_| m.tunable.candidates.iter().find(|x| x.choice == *c).and_then(|x| x.cycles);
        let tried: Vec<serde_json::Value> = (m.tried.iter())
            .map(|x| {
                serde_json::json!({
                    "choice": x.choice,
                    "text": x.choice.to_string(),
                    "ns": x.ns,
                    "estimated_cycles": estimate(&x.choice),
                })
            })
            .collect();
        serde_json::json!({
            "key": m.tunable.key,
            "kernel": m.node,
            "problem": m.tunable.title,
            "dispatches": m.tunable.dispatches,
            "bytes": m.tunable.bytes,
            "flops": m.tunable.flops,
            "own": { "choice": m.own.choice, "text": m.own.choice.to_string(), "ns": m.own.ns },
            "best": { "choice": m.best.choice, "text": m.best.choice.to_string(), "ns": m.best.ns },
            "gains": m.gains(),
            "tried": tried,
            "refused": m.refused.iter().map(refused_json).collect::<Vec<_>>(),
            "share_of_bound": bound(m, bandwidth),
        })
    };
    let [own, best] = sums(all);
    serde_json::json!({
        "ran_on": gpu.summary().name,
        "bandwidth_bytes_per_second": bandwidth,
        "measured": all.measured.iter().map(one).collect::<Vec<_>>(),
        "left_out": all.left_out.iter().map(|t| &t.key).collect::<Vec<_>>(),
        "own_ns": own,
        "best_ns": best,
        "own_over_best": missed(all),
        "stored": stored.map(|p| p.display().to_string()),
    })
}
