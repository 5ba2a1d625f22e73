//! The distribution of a run's time, as text, CSV and JSON.

use super::results::number;
use super::terminal::Terminal;
use std::collections::BTreeMap;
use std::time::Instant;
use wgfc::inspect::{bytes_text, family, flops_text, nodes_of, table, time_text};
use wgfc::model::device_error;
use wgfc::runtime::profile::{DispatchProfile, Pace};
use wgfc::runtime::{Estimate, Profile};
use wgfc::{Error, Model, Tensor};

/// Measures `runs` runs of a model on a device, or fewer if they take longer than `seconds`. `warm` says whether it has run
/// before.
pub fn take(
    model: &mut Model,
    tensors: &BTreeMap<String, Tensor>,
    runs: u32,
    seconds: f64,
    warm: bool,
    t: &Terminal,
) -> Result<Profile, Error> {
    let named: Vec<(&str, Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let session =
        model.session_for(tensors)?.ok_or_else(|| Error::Internal("a profile without a device".into()))?;
    let bar = t.bar("measuring".into(), 0, false);
    let started = Instant::now();
    let progress = |done: usize, most: usize| {
        bar.at_of(done as u64, most as u64);
        if done == 1 && !warm {
            say_slow(started, t);
        }
    };
    let pace = Pace { seconds: Some(seconds), progress: Some(&progress) };
    let mut profile = session.profile_paced_blocking(&named, runs as usize, pace).map_err(device_error)?;
    let program = session.program();
    for d in &mut profile.dispatches {
        d.family = family(program, d.dispatch).to_owned();
    }
    Ok(profile)
}

/// Notes how long the first of several runs has taken, if it was long.
pub fn say_slow(started: Instant, t: &Terminal) {
    let once = started.elapsed().as_secs_f64();
    if once > SLOW_SECONDS {
        t.note(&format!("a run takes {}; several follow", time_text(once)));
    }
}

const SLOW_SECONDS: f64 = 3.0;

/// The number of runs, with the reason if it is less than requested.
pub fn runs_text(p: &Profile, asked: u32, seconds: f64) -> String {
    match p.runs < asked as usize {
        true => format!("\n  runs of each kind measured: {}, as many as {seconds} s allow\n", p.runs),
        false => format!("\n  runs of each kind measured: {}\n", p.runs),
    }
}

/// A time in nanoseconds as text, such as `1.2 ms`.
pub fn ns_text(ns: f64) -> String {
    time_text(ns * 1e-9)
}

/// An estimate as two texts, such as `1.2 ms` and `1.1 to 1.4 ms`; a dash if it is unknown.
pub fn estimate_text(e: Option<&Estimate>) -> [String; 2] {
    let Some(e) = e else { return ["-".into(), String::new()] };
    let (low, high) = (ns_text(e.low), ns_text(e.high));
    let interval = match (low.split_once(' '), high.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number} to {high}"),
        _ => format!("{low} to {high}"),
    };
    [ns_text(e.median), interval]
}

/// A table of the times of whole runs.
pub fn text(p: &Profile) -> String {
    let mut rows =
        vec![vec!["  where the time goes".to_owned(), "median".to_owned(), "95% confidence".to_owned()]];
    for (what, e) in [
        ("from the inputs to the outputs, on the host", &p.round_trip_ns),
        ("until the device is done, nothing read back", &p.wall_ns),
        ("binding and recording, on the CPU", &p.record_ns),
        ("submission, on the CPU", &p.submit_ns),
        ("on the GPU, by timestamps", &p.gpu_ns),
    ] {
        let [median, interval] = estimate_text(e.as_ref());
        rows.push(vec![format!("  {what}"), median, interval]);
    }
    if let Some(t) = p.back_to_back_ns {
        let what = "  one of many that do not wait for each other".to_owned();
        rows.push(vec![what, ns_text(t), "(their mean)".to_owned()]);
    }
    let mut s = format!("\n{}", table(&rows, &[false, true, true]));
    match (&p.gpu_ns, &p.wall_ns) {
        (Some(gpu), Some(wall)) if wall.median > 0.0 => {
            let share = 100.0 * gpu.median / wall.median;
            s += &format!("  the GPU's time is {share:.0}% of that until the device is done\n");
        }
        (None, _) => s += "  this adapter has no timestamps: times of single kernels are not known\n",
        _ => {}
    }
    s
}

/// Work per nanosecond as text.
fn rate(work: u64, ns: Option<f64>) -> String {
    ns.filter(|t| *t > 0.0).map_or("-".into(), |t| number((work as f64 / t * 10.0).round() / 10.0))
}

fn share(ns: Option<f64>, p: &Profile) -> String {
    let all = p.gpu_ns.as_ref().map(|e| e.median).filter(|t| *t > 0.0);
    ns.zip(all).map_or("-".into(), |(t, all)| format!("{:.1}%", 100.0 * t / all))
}

fn median(d: &DispatchProfile) -> Option<f64> {
    d.gpu_ns.as_ref().map(|e| e.median)
}

const FOOTNOTE: &str = "  GB/s here counts 10^9 bytes\n";

/// A table of the dispatches, the slowest first.
pub fn by_dispatch(p: &Profile) -> String {
    let mut slowest: Vec<&DispatchProfile> = p.dispatches.iter().collect();
    slowest.sort_by(|a, b| median(b).unwrap_or(0.0).total_cmp(&median(a).unwrap_or(0.0)));
    let heading =
        ["time", "share", "GB/s", "GFLOP/s", "traffic", "arithmetic", "dispatch", "kernel", "nodes"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for d in slowest {
        let time = median(d);
        rows.push(vec![
            time.map_or("-".into(), ns_text),
            share(time, p),
            rate(d.bytes, time),
            rate(d.flops, time),
            bytes_text(d.bytes),
            flops_text(d.flops),
            d.dispatch.to_string(),
            d.kernel.clone(),
            nodes_of(&d.nodes, 2),
        ]);
    }
    format!("\n{}{FOOTNOTE}", table(&rows, &[true, true, true, true, true, true, true, false, false]))
}

/// The totals of all dispatches of one kernel.
struct Kernel<'p> {
    family: &'p str,
    dispatches: usize,
    ns: Option<f64>,
    bytes: u64,
    flops: u64,
}

/// A table of the kernels, the slowest first.
pub fn by_kernel(p: &Profile) -> String {
    let mut kernels: BTreeMap<&str, Kernel> = BTreeMap::new();
    for d in &p.dispatches {
        let none = Kernel { family: &d.family, dispatches: 0, ns: Some(0.0), bytes: 0, flops: 0 };
        let k = kernels.entry(&d.kernel).or_insert(none);
        k.dispatches += 1;
        k.ns = k.ns.zip(median(d)).map(|(a, b)| a + b);
        k.bytes += d.bytes;
        k.flops += d.flops;
    }
    let mut slowest: Vec<(&str, Kernel)> = kernels.into_iter().collect();
    slowest.sort_by(|a, b| b.1.ns.unwrap_or(0.0).total_cmp(&a.1.ns.unwrap_or(0.0)));
    let heading =
        ["time", "share", "GB/s", "GFLOP/s", "traffic", "arithmetic", "dispatches", "family", "kernel"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for (name, k) in slowest {
        rows.push(vec![
            k.ns.map_or("-".into(), ns_text),
            share(k.ns, p),
            rate(k.bytes, k.ns),
            rate(k.flops, k.ns),
            bytes_text(k.bytes),
            flops_text(k.flops),
            k.dispatches.to_string(),
            k.family.to_owned(),
            name.to_owned(),
        ]);
    }
    format!("\n{}{FOOTNOTE}", table(&rows, &[true, true, true, true, true, true, true, false, false]))
}

/// A row for each dispatch, in order of execution.
pub fn csv(p: &Profile) -> String {
    let mut s =
        "dispatch,kernel,family,workgroups,gpu_ns,gpu_ns_low,gpu_ns_high,bytes,flops,nodes\n".to_owned();
    for d in &p.dispatches {
        let [x, y, z] = d.workgroups;
        let times = d.gpu_ns.as_ref().map_or(",,".into(), |e| format!("{},{},{}", e.median, e.low, e.high));
        let nodes = d.nodes.join(" ").replace('"', "\"\"");
        s += &format!(
            "{},{},{},{x}x{y}x{z},{times},{},{},\"{nodes}\"\n",
            d.dispatch, d.kernel, d.family, d.bytes, d.flops
        );
    }
    s
}

/// An estimate as JSON, in its own unit.
pub fn estimate_json(e: &Estimate) -> serde_json::Value {
    serde_json::json!({ "median": e.median, "low": e.low, "high": e.high })
}

/// The whole profile as JSON.
pub fn json(p: &Profile) -> serde_json::Value {
    let one = |e: &Option<Estimate>| e.as_ref().map(estimate_json);
    let dispatches: Vec<serde_json::Value> = p
        .dispatches
        .iter()
        .map(|d| {
            serde_json::json!({
                "dispatch": d.dispatch, "kernel": d.kernel, "family": d.family, "nodes": d.nodes,
                "gpu_ns": one(&d.gpu_ns), "bytes": d.bytes, "flops": d.flops, "workgroups": d.workgroups,
            })
        })
        .collect();
    serde_json::json!({
        "runs": p.runs, "gpu_ns": one(&p.gpu_ns), "record_ns": one(&p.record_ns), "submit_ns": one(&p.submit_ns),
        "wall_ns": one(&p.wall_ns), "round_trip_ns": one(&p.round_trip_ns), "back_to_back_ns": p.back_to_back_ns,
        "dispatches": dispatches,
    })
}
