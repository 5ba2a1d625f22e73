//! `wgfc run`.

use super::args::RunArgs;
use super::compile::in_shell;
use super::inside::Cost;
use super::load::{Loaded, load};
use super::results::{
    best_classes, classes_text, digest, first_values, outputs_text, read_labels, unused_labels, write_outputs,
};
use super::terminal::Terminal;
use super::{adapter, indices, inputs, is_program, profile};
use std::collections::BTreeMap;
use std::time::Instant;
use wgfc::compiler::device::Speeds;
use wgfc::generate::Setup;
use wgfc::inspect::{Roof, Summary, bytes_text, time_text};
use wgfc::overflow::overflow;
use wgfc::runtime::Profile;
use wgfc::value_info::ValueInfo;
use wgfc::{Error, Model, Place, Tensor};

/// Runs a model or a compiled program.
pub fn main(a: &RunArgs, t: &Terminal) -> Result<(), Error> {
    let labels = a.labels.as_deref().map(read_labels).transpose()?;
    let place = match a.cpu {
        true => Place::Cpu,
        // The evaluator has no kernels to profile, and no states except the model's own.
        false if a.no_cpu || a.profile || a.compile.state_capacity.is_some() => {
            Place::Device(adapter::choice(&a.adapter))
        }
        false => adapter::place(&a.adapter),
    };
    let loaded = load(&a.model, &a.data, &a.compile, place, &a.adapter, &a.cache, t)?;
    t.warnings(loaded.model.warnings());
    let tensors = inputs::make(
        loaded.model.inputs(),
        &a.compile.dims,
        &loaded.open(&a.data),
        a.compile.memory_limit,
        t,
    )?;
    let cost = loaded.cost(&tensors, t);
    let work = loaded.work(&tensors);
    let Loaded { mut model, fixed, profile: chosen_for, .. } = loaded;
    let place = where_it_runs(&model);
    if a.data.inputs.is_empty() && a.data.random_inputs && !model.inputs().is_empty() {
        t.note("the inputs are random");
    }

    if a.check_indices {
        indices::check(a, fixed, &tensors, t)?;
    }

    let mut times = Vec::new();
    let mut outputs = BTreeMap::new();
    {
        let what = format!("running on {place}");
        let evaluator = model.progress();
        let progress = match &evaluator {
            Some(p) => {
                let p = p.clone();
                t.watch_text(what, move || Some(evaluated(p.done(), p.nodes(), p.iterations())))
            }
            None => t.bar(what, u64::from(a.repeat), false),
        };
        for i in 0..a.repeat {
            let start = Instant::now();
            outputs = model.run(&tensors)?;
            times.push(start.elapsed().as_secs_f64());
            if evaluator.is_none() {
                progress.at(u64::from(i) + 1);
            }
        }
    }
    let profile = match a.profile {
        true => Some(profile::take(&mut model, &tensors, a.repeat.max(5), PROFILE_SECONDS, false, t)?),
        false => None,
    };
    let setup = model.setup();

    if let Some(s) = model.session()
        && let Some(words) = overflow(s.program(), outputs.iter().map(|(n, o)| (n.as_str(), o)))
    {
        t.note_always(&words);
    }
    if let Some(words) = labels.as_deref().and_then(|l| unused_labels(l, &outputs)) {
        t.note_always(&words);
    }
    let files = write_outputs(a.output_dir.as_deref(), model.outputs(), &outputs)?;
    if t.json {
        t.print_json(&json(
            &place,
            chosen_for.as_deref(),
            model.outputs(),
            &outputs,
            &files,
            &times,
            setup,
            profile.as_ref(),
            cost.as_ref(),
            work.as_ref(),
            a,
            labels.as_deref(),
        ));
        return Ok(());
    }
    let mut s = outputs_text(model.outputs(), &outputs);
    for port in model.outputs() {
        if let Some(out) = outputs.get(&port.name) {
            s += &classes_text(&port.name, out, labels.as_deref(), a.top);
        }
    }
    for f in &files {
        s += &format!("  wrote {f}\n");
    }
    s += &work.as_ref().map(Work::text).unwrap_or_default();
    s += &times_text(&place, &times, setup);
    s += &cost.map(|c| c.text()).unwrap_or_default();
    if let (Some(_), Some(p)) = (&profile, &chosen_for) {
        s += &format!("  compiled for the device profile: {p}\n");
    }
    if let Some(p) = &profile {
        s += &profile::runs_text(p, a.repeat.max(5), PROFILE_SECONDS);
        s += &profile::text(p);
        s += &profile::by_dispatch(p);
    }
    if work.is_some() && !is_program(&a.model) {
        let model = in_shell(&a.model.display().to_string());
        s += "\nnext:\n";
        s += &format!(
            "  wgfc inspect {model} --graph graph.svg    the kernels, and which nodes each computes\n"
        );
        s += &format!("  wgfc compile {model}    the same program for a page or an engine\n");
    }
    t.print(&s);
    Ok(())
}

/// The work of a run.
struct Work {
    /// Nodes of the model.
    nodes: usize,
    /// Kernels of the program.
    kernels: usize,
    /// The figures of the run's dispatches.
    summary: Summary,
}

impl Work {
    fn text(&self) -> String {
        let dispatches: u64 = self.summary.dispatches.iter().map(|d| d.times).sum();
        format!(
            "  {} nodes in {dispatches} dispatches of {} kernels; they move {}, a dispatch for each node would move {}\n",
            self.nodes,
            self.kernels,
            bytes_text(self.summary.bytes),
            bytes_text(self.summary.bytes_unfused)
        )
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "nodes": self.nodes,
            "kernels": self.kernels,
            "dispatches": self.summary.dispatches.iter().map(|d| d.times).sum::<u64>(),
            "bytes_moved": self.summary.bytes,
            "bytes_moved_unfused": self.summary.bytes_unfused,
        })
    }
}

impl Loaded {
    /// The work of a run with these inputs; `None` if it runs on the CPU.
    fn work(&self, tensors: &BTreeMap<String, Tensor>) -> Option<Work> {
        let session = self.model.session()?;
        let program = session.program();
        let dims = wgfc::value_info::check_inputs(self.model.inputs(), tensors).ok()?;
        let dims: Vec<(String, i64)> = dims.into_iter().collect();
        let summary = Summary::new(program, &dims, Roof::of(&Speeds::PORTABLE, None, None)).ok()?;
        Some(Work { nodes: program.stats.model_nodes, kernels: program.kernels.len(), summary })
    }
}

/// The progress of the evaluator as text.
fn evaluated(done: u64, nodes: u64, iterations: u64) -> String {
    let loops = if iterations > 0 { format!(", {iterations} iterations of loops") } else { String::new() };
    format!("node {done} of {nodes}{loops}")
}

/// The most seconds for which `--profile` repeats runs.
const PROFILE_SECONDS: f64 = 20.0;

/// The name of the device or the CPU that runs the model.
fn where_it_runs(model: &Model) -> String {
    model.session().map_or_else(|| "the CPU (reference evaluator)".into(), |s| s.gpu().summary().name.clone())
}

/// The median and the minimum of times, in seconds.
fn median_and_best(times: &[f64]) -> (f64, f64) {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
    (at(sorted.len() / 2), at(0))
}

fn times_text(place: &str, times: &[f64], setup: Setup) -> String {
    let compiling = time_text(setup.compiling.as_secs_f64());
    let set_up = match setup.uploading.as_secs_f64() {
        0.0 => format!("  {compiling} reading the model\n"),
        s => format!(
            "  {compiling} compiling the model, {} its kernels on the device and copying weights\n",
            time_text(s)
        ),
    };
    set_up
        + &match times {
            [once] => {
                let first = "with the copies and what only a first run does (--repeat leaves that out)";
                format!("  {} the run on {place}, {first}\n", time_text(*once))
            }
            [first, rest @ ..] => {
                let (median, best) = median_and_best(rest);
                format!(
                    "  {} median, {} best of {} runs on {place}, copies included; {} the first\n",
                    time_text(median),
                    time_text(best),
                    rest.len(),
                    time_text(*first)
                )
            }
            [] => String::new(),
        }
}

#[expect(clippy::too_many_arguments, reason = "one object of everything a run produced")]
fn json(
    place: &str,
    chosen_for: Option<&str>,
    ports: &[ValueInfo],
    outputs: &BTreeMap<String, Tensor>,
    files: &[String],
    times: &[f64],
    setup: Setup,
    profile: Option<&Profile>,
    cost: Option<&Cost>,
    work: Option<&Work>,
    a: &RunArgs,
    labels: Option<&[String]>,
) -> serde_json::Value {
    let outputs: Vec<serde_json::Value> = ports
        .iter()
        .filter_map(|p| Some((p, outputs.get(&p.name)?)))
        .enumerate()
        .map(|(i, (p, t))| {
            let d = digest(t);
            let top: Vec<Vec<serde_json::Value>> = best_classes(t, labels, a.top)
                .into_iter()
                .map(|row| {
                    let one = |(i, v, l)| serde_json::json!({ "class": i, "value": v, "label": l });
                    row.into_iter().map(one).collect()
                })
                .collect();
            serde_json::json!({
                "name": p.name,
                "dtype": t.dtype.name(),
                "shape": t.shape,
                "min": d.as_ref().map(|d| d.min),
                "mean": d.as_ref().map(|d| d.mean),
                "max": d.as_ref().map(|d| d.max),
                "not_finite": d.as_ref().map_or(0, |d| d.not_finite),
                "first": first_values(t, 8),
                "top": top,
                "file": files.get(i),
            })
        })
        .collect();
    serde_json::json!({
        "ran_on": place,
        "device_profile": chosen_for,
        "random_weights": a.data.random_weights,
        "outputs": outputs,
        "seconds": times,
        "compiling_seconds": setup.compiling.as_secs_f64(),
        "uploading_seconds": setup.uploading.as_secs_f64(),
        "work": work.map(Work::json),
        "profile": profile.map(profile::json),
        "looking_inside": cost.map(Cost::json),
    })
}
