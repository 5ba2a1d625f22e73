//! `wgfc bisect`: names the pass of the compiler, or the kernel, after which results differ from the reference evaluator's.
//!
//! The graph is evaluated on the CPU after each pass ([`wgfc::compiler::passes`]), with the same inputs. If all results agree, each
//! kernel runs alone on the adapter ([`kernels`]), and then the whole program.

mod kernels;

use super::args::BisectArgs;
use super::compare::{DIFFERS, Difference, difference, parts};
use super::compile::{opened_file, say_random_weights};
use super::device_cache::DeviceCache;
use super::load::without_weights;
use super::passes::{Ran, UNCHANGED};
use super::terminal::Terminal;
use super::{adapter, inputs, is_program, shown};
use kernels::{Kernels, WrongKernel};
use serde_json::json;
use std::collections::BTreeMap;
use wgfc::compiler::passes::{After, Section, State};
use wgfc::compiler::pipeline;
use wgfc::ir::eval::{EvalError, Limits, StateValues, evaluate_from_within};
use wgfc::ir::{DType, Graph};
use wgfc::value_info::graph_values;
use wgfc::{Error, Options, Tensor};

/// The iterations of loops that the evaluator runs at most unless --iteration-limit says otherwise.
const ITERATIONS: u64 = 1 << 24;
/// The most lines of a difference of two graphs that are printed.
const LINES: usize = 12;

/// Runs the search. Returns the exit code.
pub fn main(a: &BisectArgs, t: &Terminal) -> u8 {
    match run(a, t) {
        Ok(code) => code,
        Err(e) => {
            t.error(&e);
            e.class().exit_code()
        }
    }
}

/// The results of a graph: its outputs, and the contents of its states after a run.
type Results = Vec<(String, Tensor)>;

/// Evaluates a graph.
struct Evaluator<'a> {
    inputs: &'a BTreeMap<String, Tensor>,
    iterations: u64,
}

impl Evaluator<'_> {
    fn run(&self, graph: &Graph) -> Result<Results, EvalError> {
        let mut states = StateValues::default();
        let limits = Limits { iterations: self.iterations, ..Limits::default() };
        let outputs = evaluate_from_within(graph, self.inputs, &mut states, limits)?;
        let names = graph.outputs.iter().map(|o| o.name.to_string());
        Ok(names.zip(outputs).chain(states.tensors).collect())
    }
}

/// The pass after which results differ.
struct WrongPass {
    name: &'static str,
    about: &'static str,
    body: String,
    /// The result that differs, and how.
    why: String,
    /// Lines of the graph that the pass removed (`-`) and added (`+`).
    changed: Vec<String>,
}

/// The largest difference of results from the expected ones, and whether it is more than rounding; one that is comes before one that is
/// not. The error says that they cannot be compared.
fn largest(want: &Results, got: &Results, tolerance: f64) -> Result<Option<(Difference, bool)>, String> {
    let mut worst: Option<(Difference, bool)> = None;
    for (name, b) in want {
        let (_, a) = got.iter().find(|(n, _)| n == name).ok_or_else(|| format!("\"{name}\" is missing"))?;
        let mut a = a.clone();
        // Passes may leave a view of an output to its reader: the elements are the same.
        if a.shape != b.shape && a.numel() == b.numel() {
            a.shape.clone_from(&b.shape);
        }
        let Some(d) = difference(name, b.dtype, &[], &a, b) else { continue };
        let differs = parts(&d, tolerance);
        let order = |w: &(Difference, bool)| differs.cmp(&w.1).then(d.relative.total_cmp(&w.0.relative));
        if worst.as_ref().is_none_or(|w| order(w).is_gt()) {
            worst = Some((d, differs));
        }
    }
    Ok(worst)
}

fn run(a: &BisectArgs, t: &Terminal) -> Result<u8, Error> {
    if is_program(&a.model) {
        return Err(Error::usage(
            "a compiled program does not keep the passes of its compilation",
            "give the model that it was compiled from, with the same options",
        ));
    }
    let file = opened_file(&a.model, a.data.random_weights, t)?;
    say_random_weights(&file, t);
    let data = super::args::DataArgs { random_inputs: true, ..a.data.clone() };
    let mut options = a.compile.options()?;
    let gpu = if a.passes_only { None } else { Some(adapter::open(&a.adapter, t)?) };
    if let Some(gpu) = &gpu {
        let mut cache = DeviceCache::open(&a.cache, gpu, t);
        options.tuning = std::mem::take(&mut cache.tuning);
        options.profile.speeds = cache.speeds;
        options.profile = options.profile.with_limits(gpu.profile());
    }
    let changed = options.changes_values();
    let tolerance = a.tolerance.unwrap_or(if changed { 5e-2 } else { 1e-3 });
    let (graph, stats) = file.imported(&options).map_err(|e| without_weights(e, &file))?;
    let open = |d: &wgfc::ir::Dim| d.as_const().is_none();
    if graph.states.iter().any(|s| s.growth.is_some() && graph.ty(s.before).shape.iter().any(open)) {
        return Err(Error::usage(
            "a state whose room is symbolic has no contents to compute with",
            "give it a fixed room with --state-capacity N",
        ));
    }
    let given = inputs::make_free(
        &graph_values(&graph, &graph.inputs),
        &a.compile.dims,
        &data,
        a.compile.memory_limit,
        t,
    )?;
    let evaluator = Evaluator { inputs: &given, iterations: options.iteration_limit.unwrap_or(ITERATIONS) };
    let name = shown(&a.model);
    let progress = t.spinner(format!("evaluating {name}"));
    let want = evaluator.run(&graph).map_err(|e| {
        Error::usage(
            format!("the model cannot be evaluated: {e}"),
            "try other inputs, or for loops that are long --iteration-limit N",
        )
    })?;

    let fault = fault();
    let (mut ran, mut wrong) = (Ran::default(), None);
    let mut last = wgfc::ir::text::print(&graph);
    let watch = &mut |mut after: After<'_>| {
        progress.says(format!("evaluating {name} after {}", after.pass.name));
        plant(&fault, &mut after);
        let State::Graph(graph) = &after.state else {
            ran.add(&after);
            return;
        };
        if wrong.is_some() {
            ran.add(&after);
            return;
        }
        let text = wgfc::ir::text::print(graph);
        if text == last {
            ran.say(&after, UNCHANGED.into());
            return;
        }
        let found = evaluator.run(graph).map_err(|e| format!("it cannot be evaluated: {e}"));
        let (why, says) = match found.and_then(|got| largest(&want, &got, tolerance)) {
            Err(e) => (Some(e), "fails".to_owned()),
            Ok(None) => (None, String::new()),
            Ok(Some((d, differs))) => {
                let why = differs.then(|| format!("\"{}\" has {}", d.name, d.why()));
                (why, format!("{:.1e}", d.relative))
            }
        };
        ran.say(&after, says);
        if let Some(why) = why {
            let (name, about, body) = (after.pass.name, after.pass.about, after.body.to_owned());
            wrong = Some(WrongPass { name, about, body, why, changed: changes(&last, &text) });
        }
        last = text;
    };
    let fused = pipeline::fuse_watched(graph, stats, &options, &mut |_, _| {}, watch);
    // An error of a pass behind a wrong one is a consequence of it.
    let mut fused = match (fused, &wrong) {
        (Ok(fused), _) => Some(fused),
        (Err(_), Some(_)) => None,
        (Err(e), None) => {
            if !t.json {
                t.print(&ran.differences(&options));
            }
            return Err(e.into());
        }
    };
    let mut kernels = Kernels::default();
    if let (None, Some(gpu), Some(fused)) = (&wrong, &gpu, &mut fused) {
        if let Fault::Kernel(i) = fault {
            kernels::spoil(fused, i);
        }
        progress.says(format!("running the kernels of {name}"));
        kernels = kernels::compare(gpu, fused, &options, &evaluator, tolerance, &mut |i, n| {
            progress.says(format!("running kernel {} of {n} of {name}", i + 1));
        })?;
        kernels.whole(gpu, fused, &options, &given, &want, tolerance)?;
    }
    drop(progress);
    let found = wrong.is_some() || kernels.wrong.is_some() || kernels.outputs_differ.is_some();
    let report = Report {
        name: &name,
        ran: &ran,
        wrong: wrong.as_ref(),
        kernels: &kernels,
        ran_kernels: gpu.is_some(),
    };
    match t.json {
        true => t.print_json(&report.json(&options, tolerance)),
        false => t.print(&report.text(&options)),
    }
    Ok(if found { DIFFERS } else { 0 })
}

/// The lines in which two graphs differ, without the numbers of values.
fn changes(before: &str, after: &str) -> Vec<String> {
    let plain = |line: &str| {
        let mut out = String::new();
        let mut chars = line.trim().chars().peekable();
        while let Some(c) = chars.next() {
            out.push(c);
            while c == '%' && chars.peek().is_some_and(char::is_ascii_digit) {
                chars.next();
            }
        }
        out
    };
    let mut count: BTreeMap<String, i64> = BTreeMap::new();
    for (text, step) in [(before, -1), (after, 1)] {
        text.lines().for_each(|l| *count.entry(plain(l)).or_default() += step);
    }
    let mut out = vec![];
    for (text, mark, sign) in [(before, '-', -1), (after, '+', 1)] {
        for line in text.lines() {
            let left = count.entry(plain(line)).or_default();
            if *left * sign > 0 {
                *left -= sign;
                let short: String = line.trim().chars().take(160).collect();
                out.push(format!("{mark} {short}"));
            }
        }
    }
    out
}

/// The findings of a run.
struct Report<'a> {
    name: &'a str,
    ran: &'a Ran,
    wrong: Option<&'a WrongPass>,
    kernels: &'a Kernels,
    ran_kernels: bool,
}

impl Report<'_> {
    fn text(&self, options: &Options) -> String {
        let mut s = format!("{}\n\n{}\n", self.name, self.ran.differences(options));
        if let Some(w) = self.wrong {
            let inside =
                if w.body.is_empty() { String::new() } else { format!(" in the body of \"{}\"", w.body) };
            s += &format!("  results differ first after the pass `{}`{inside}: {}\n", w.name, w.why);
            s += &format!("    {}\n", w.about);
            for line in w.changed.iter().take(LINES) {
                s += &format!("    {line}\n");
            }
            if w.changed.len() > LINES {
                s += &format!("    and {} lines more\n", w.changed.len() - LINES);
            }
            s += &format!(
                "next:\n  wgfc run … --without-pass {}     # whether the rest is right without it\n",
                w.name
            );
            return s;
        }
        s += "  results agree after every pass\n";
        if !self.ran_kernels {
            return s;
        }
        let k = self.kernels;
        s += &format!("  {} of {} kernels ran alone", k.compared, k.all);
        s += &match k.largest {
            Some(d) => format!(", the largest relative error is {d:.1e}\n"),
            None => "\n".to_owned(),
        };
        for (why, which) in &k.skipped {
            s += &format!("    not compared, as {why}: {}\n", numbers(which));
        }
        match (&k.wrong, &k.outputs_differ) {
            (Some(WrongKernel { kernel, why, nodes, text, schedule }), _) => {
                s += &format!("  results differ first at kernel {kernel} ({nodes}): {why}\n");
                if k.also_wrong > 0 {
                    s += &format!("    {} kernels more differ\n", k.also_wrong);
                }
                s += &format!("    it is computed so: {schedule}\n");
                for line in text.lines().take(2 * LINES) {
                    s += &format!("    {line}\n");
                }
            }
            (None, Some(why)) => {
                s += &format!(
                    "  the whole program differs: {why}; each kernel that was compared agrees, so it is one of the others, where tensors lie in memory, or \
                     an element that random indices write several times, in any order\n"
                );
            }
            (None, None) => s += "  the whole program agrees\n",
        }
        s
    }

    fn json(&self, options: &Options, tolerance: f64) -> serde_json::Value {
        let mut v = self.ran.json(options);
        let differs: Vec<&str> = self.ran.lines.iter().map(|l| l.says.as_str()).collect();
        if let Some(passes) = v["passes"].as_array_mut() {
            for (p, says) in passes.iter_mut().zip(differs) {
                p["difference"] = match says.parse::<f64>() {
                    Ok(d) => json!(d),
                    Err(_) if says.is_empty() => serde_json::Value::Null,
                    Err(_) => json!(says),
                };
            }
        }
        let k = self.kernels;
        v["tolerance"] = json!(tolerance);
        v["pass"] = self.wrong.map_or(
            serde_json::Value::Null,
            |w| json!({ "name": w.name, "body": w.body, "because": w.why, "changed": w.changed }),
        );
        v["kernels"] = match self.ran_kernels && self.wrong.is_none() {
            false => serde_json::Value::Null,
            true => json!({
                "all": k.all,
                "compared": k.compared,
                "largest": k.largest,
                "skipped": k.skipped.iter().map(|(why, which)| json!({ "because": why, "kernels": which }))
                    .collect::<Vec<_>>(),
                "outputs": k.outputs_differ,
            }),
        };
        v["kernel"] = k.wrong.as_ref().map_or(serde_json::Value::Null, |w| {
            json!({
                "index": w.kernel,
                "nodes": w.nodes,
                "because": w.why,
                "text": w.text,
                "schedule": w.schedule,
            })
        });
        v
    }
}

/// Numbers of kernels as text.
fn numbers(all: &[usize]) -> String {
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    super::some_of(&names)
}

/// A fault that a test plants.
enum Fault {
    None,
    /// In the graph, after the pass of this name.
    Pass(String),
    /// In this kernel.
    Kernel(usize),
}

/// The fault that `WGFC_TEST_FAULT` plants in debug builds: `pass:NAME` or `kernel:NUMBER`.
fn fault() -> Fault {
    let text = std::env::var("WGFC_TEST_FAULT").ok().filter(|_| cfg!(debug_assertions)).unwrap_or_default();
    match text.split_once(':') {
        Some(("pass", name)) => Fault::Pass(name.to_owned()),
        Some(("kernel", n)) => n.parse().map_or(Fault::None, Fault::Kernel),
        _ => Fault::None,
    }
}

/// Adds 1 to the first output of floats after the pass that the fault names.
fn plant(fault: &Fault, after: &mut After<'_>) {
    let Fault::Pass(name) = fault else { return };
    let State::Graph(graph) = &mut after.state else { return };
    if name != after.pass.name || !after.body.is_empty() || after.pass.section > Section::Lower {
        return;
    }
    let Some(i) = graph.outputs.iter().position(|o| graph.ty(o.value).dtype == DType::F32) else { return };
    let v = graph.outputs[i].value;
    let mut b = wgfc::ir::Builder::new(graph, "planted");
    let one = b.constant(Tensor::scalar(wgfc::ir::Scalar::from_f64(DType::F32, 1.0)));
    if let Ok(v) = b.binary(wgfc::ir::BinaryOp::Add, v, one) {
        graph.outputs[i].value = v;
    }
}
