//! The back half of the compiler on text: the kernels that fusion makes of a graph, the schedules of kernels,
//! and the WGSL that is emitted.

use crate::run::{Outcome, close, inputs, run, similar};
use crate::witness;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use wgfc_compiler::assemble::assemble;
use wgfc_compiler::kernel::{self, Family, KernelGraph};
use wgfc_compiler::layout;
use wgfc_compiler::options::Precision;
use wgfc_compiler::passes::fuse;
use wgfc_compiler::precision::{for_units, halve};
use wgfc_compiler::schedule::maps::Flat;
use wgfc_compiler::schedule::products::{cost::cycles, problem::problem};
use wgfc_compiler::schedule::steps::Steps;
use wgfc_compiler::schedule::{Context, Schedule, ScheduledGraph, candidates, misfit, schedule};
use wgfc_compiler::{DeviceProfile, Options, Tuning};
use wgfc_ir::program::{Program, Stats};
use wgfc_ir::{Graph, Tensor, eval, text, verify};

/// A part of a file: its header, the text after the header's colon, and its lines.
struct Section {
    name: &'static str,
    options: String,
    text: String,
}

const NAMES: [&str; 6] = ["kernels", "schedule", "wgsl", "kept", "steps", "loops"];

fn sections(text: &str) -> (String, Vec<Section>) {
    let (mut head, mut out) = (String::new(), Vec::<Section>::new());
    for line in text.lines() {
        let open = out.last().is_none_or(|s| s.name != "wgsl");
        let header = line.strip_prefix("// ").filter(|_| open).map(|h| h.split_once(':').unwrap_or((h, "")));
        if let Some((name, options)) = header.and_then(|(n, o)| Some((*NAMES.iter().find(|k| **k == n)?, o)))
        {
            out.push(Section { name, options: options.trim().to_owned(), text: String::new() });
            continue;
        }
        let to = out.last_mut().map_or(&mut head, |s| &mut s.text);
        to.push_str(line);
        to.push('\n');
    }
    (head, out)
}

/// How a case is compiled and run.
#[derive(Clone, Default)]
struct Setup {
    options: Options,
    /// The values of symbols in the run; the others are odd numbers.
    sizes: BTreeMap<String, i64>,
}

impl Setup {
    /// The setup changed by the `NAME=VALUE …` of a file.
    fn with(&self, text: &str) -> Result<Setup, String> {
        let mut out = self.clone();
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no NAME=VALUE"))?;
            let number = || value.parse::<i64>().map_err(|_| format!("`{word}`: no number"));
            let known = |e: serde_json::Error| format!("`{word}`: {e}");
            match name.split_once('.') {
                Some(("size", symbol)) => _ = out.sizes.insert(symbol.into(), number()?),
                Some(("expect", symbol)) => _ = out.options.expect.0.insert(symbol.into(), number()?),
                None if name == "fusion" => {
                    out.options.fusion = serde_json::from_value(value.into()).map_err(known)?;
                }
                None if name == "without" => {
                    _ = out.options.without.insert(serde_json::from_value(value.into()).map_err(known)?);
                }
                None if name == "keep" => out.options.keep_f32.push(value.into()),
                None if name == "device" => {
                    let named =
                        DeviceProfile::named(value).ok_or_else(|| format!("`{word}`: no such device"))?;
                    out.options.profile.speeds = named.speeds;
                }
                _ => {
                    let mut all = serde_json::to_value(&out.options.profile).map_err(known)?;
                    let at = format!("/{}", name.replace('.', "/"));
                    let field = all.pointer_mut(&at).ok_or_else(|| format!("`{name}` is no option"))?;
                    *field = serde_json::from_str(value).map_err(known)?;
                    out.options.profile = serde_json::from_value(all).map_err(known)?;
                }
            }
        }
        Ok(out)
    }
}

/// The rest of the first line of the head that begins with `start`.
fn line<'t>(head: &'t str, start: &str) -> Option<&'t str> {
    head.lines().find_map(|l| l.strip_prefix(start)).map(str::trim)
}

fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Runs a compiled program and compares its results with the evaluator's.
fn execute(graph: &Graph, program: &Program, setup: &Setup, head: &str) -> Result<(), String> {
    let given = inputs(graph, &setup.sizes);
    let want = eval::evaluate(graph, &given).map_err(|e| format!("evaluator: {e}"))?;
    let why = line(head, "// validated only:");
    match run(program, &setup.options.profile, &given)? {
        Outcome::NoAdapter => Ok(()),
        Outcome::Cannot(needs) if why.is_none() => {
            let what = format!("this adapter has no {needs}");
            eprintln!("SKIPPED: {what}");
            let ci = std::env::var("CI").is_ok_and(|v| !v.is_empty());
            if ci {
                Err(format!("{what}: where no software adapter has, a line `// validated only: WHY` says so"))
            } else {
                Ok(())
            }
        }
        Outcome::Cannot(_) => Ok(()),
        Outcome::Ran(got) => compare(graph, &want, &got, setup),
    }
}

/// Executes kernels as loops and compares the results with the evaluator's.
fn interpret(
    graph: &Graph,
    kernels: &KernelGraph,
    loops: &[wgfc_loops::Kernel],
    setup: &Setup,
) -> Result<(), String> {
    let given = inputs(graph, &setup.sizes);
    let want = eval::evaluate(graph, &given).map_err(|e| format!("evaluator: {e}"))?;
    let got = witness::outputs(graph, kernels, loops, &given).map_err(|e| format!("as loops: {e}"))?;
    let Some(got) = got else {
        println!("too many statements for the interpreter");
        return Ok(());
    };
    compare(graph, &want, &got, setup).map_err(|e| format!("as loops: {e}"))
}

/// The steps after which the points of a kernel's outermost loop are invocations where they are independent; without, it is a
/// single invocation's.
fn invocations(k: &kernel::Kernel, kernels: &KernelGraph) -> Result<(Steps, wgfc_loops::Kernel), String> {
    let nest = wgfc_compiler::nest::nest(k, kernels)?;
    let (mut steps, mut body) = (vec![], &nest.body[..]);
    while let [wgfc_loops::Stmt::For(l)] = body
        && l.kind == wgfc_loops::Kind::Parallel
    {
        let name = &nest.vars[l.var];
        if l.extent.is(1) {
            steps.push(format!("grid:{name}"));
            body = &l.body;
            continue;
        }
        steps.push(format!("split:{name}:32,grid:{name}.0,invocation:{name}.1"));
        break;
    }
    let steps: Steps = steps.join(",").parse()?;
    match steps.scheduled(k, kernels) {
        Ok(loops) => Ok((steps, loops)),
        // Its arrays are those of a workgroup.
        Err(_) if matches!(k.family, Family::StagedLoop(_)) => Ok((Steps::new([]), nest)),
        Err(why) => Err(format!("written from loops: {why}")),
    }
}

/// Groups of elements of a map: vectors of several at once, vectors, and elements.
const GROUPS: [Flat; 4] = [
    Flat { threads: 32, elements: 4, unroll: 2 },
    Flat { threads: 16, elements: 2, unroll: 3 },
    Flat { threads: 64, elements: 8, unroll: 1 },
    Flat { threads: 32, elements: 1, unroll: 4 },
];

/// The steps of the groups of a map's elements that apply and come first.
fn in_groups(k: &kernel::Kernel, kernels: &KernelGraph, first: usize) -> Option<(Steps, wgfc_loops::Kernel)> {
    let Family::Map(_) = k.family else { return None };
    (0..GROUPS.len()).find_map(|i| {
        let steps = Steps::flat(k, kernels, &GROUPS[(first + i) % GROUPS.len()]).ok()?;
        let loops = steps.scheduled(k, kernels).ok()?;
        Some((steps, loops))
    })
}

/// Kernels as loops whose outermost points are [`invocations`], then with the elements of maps [`in_groups`]: the interpreter
/// executes them, which finds points that are not independent, and a device runs what is written from them. All results are compared
/// with the evaluator's.
fn from_loops(graph: &Graph, kernels: &KernelGraph, setup: &Setup, head: &str) -> Result<(), String> {
    let plain: Vec<_> =
        kernels.kernels.iter().map(|k| invocations(k, kernels)).collect::<Result<_, String>>()?;
    let ways = if std::env::var_os("WGFC_THOROUGH").is_some() { GROUPS.len() } else { 1 };
    for first in 0..ways {
        let grouped: Vec<_> = kernels.kernels.iter().map(|k| in_groups(k, kernels, first)).collect();
        if grouped.iter().any(Option::is_some) {
            let all = grouped.into_iter().zip(&plain).map(|(g, plain)| g.unwrap_or_else(|| plain.clone()));
            as_steps(graph, kernels, all.collect(), setup, head)?;
        }
    }
    as_steps(graph, kernels, plain, setup, head)
}

/// Kernels as the loops that their schedules make of them, or before they are scheduled where these are no steps; none where all are not.
fn as_scheduled(all: &ScheduledGraph) -> Result<Option<Vec<wgfc_loops::Kernel>>, String> {
    let pairs = all.graph.kernels.iter().zip(&all.schedules);
    let made: Vec<_> = pairs.clone().map(|(k, s)| s.scheduled(k, &all.graph)).collect();
    if made.iter().all(Option::is_none) {
        return Ok(None);
    }
    let nest = |k| wgfc_compiler::nest::nest(k, &all.graph);
    pairs.zip(made).map(|((k, _), made)| made.unwrap_or_else(|| nest(k))).collect::<Result<_, _>>().map(Some)
}

/// Executes and runs kernels after steps.
fn as_steps(
    graph: &Graph,
    kernels: &KernelGraph,
    all: Vec<(Steps, wgfc_loops::Kernel)>,
    setup: &Setup,
    head: &str,
) -> Result<(), String> {
    let (steps, loops): (Vec<Steps>, Vec<_>) = all.into_iter().unzip();
    interpret(graph, kernels, &loops, setup)?;
    let schedules = steps.into_iter().map(Schedule::Steps).collect();
    let all = ScheduledGraph { graph: kernels.clone(), schedules, sequences: vec![] };
    let program = compiled(graph, &all, setup).map_err(|e| format!("written from loops: {e}"))?;
    match execute(graph, &program, setup, head) {
        // A single invocation has many iterations where many could share them.
        Err(e) if e.contains("may take more iterations of its loops than") => {
            println!("too many iterations for the adapter");
            Ok(())
        }
        other => other.map_err(|e| format!("written from loops: {e}\n{}", written(&program))),
    }
}

/// Whether results agree with the evaluator's.
fn compare(graph: &Graph, want: &[Tensor], got: &[Tensor], setup: &Setup) -> Result<(), String> {
    for ((border, want), got) in graph.outputs.iter().zip(want).zip(got) {
        let near = match setup.options.precision {
            Precision::F32 => close(want, got),
            Precision::F16 => similar(want, got),
        };
        near.map_err(|e| format!("output {}: {e}", border.name))?;
    }
    Ok(())
}

fn compiled(graph: &Graph, all: &ScheduledGraph, setup: &Setup) -> Result<Program, String> {
    assemble(graph, all, &setup.options, Stats::default()).map_err(words)
}

fn scheduled(kernels: &KernelGraph, setup: &Setup) -> Result<ScheduledGraph, String> {
    let (o, none) = (&setup.options, Tuning::default());
    schedule(kernels.clone(), &o.profile, &o.expect, &none, &none).map_err(words)
}

/// The schedules of all kernels, each with the number of candidates and, for products, its estimate.
fn described(all: &ScheduledGraph, setup: &Setup) -> Result<String, String> {
    let cx = Context { graph: &all.graph, device: &setup.options.profile, expect: &setup.options.expect };
    let mut out = String::new();
    for (k, s) in all.graph.kernels.iter().zip(&all.schedules) {
        let list = candidates(k, &cx).map_err(words)?;
        if let Some(why) = misfit(s, k, &cx).map_err(words)? {
            return Err(format!("`{s}` is none of the schedules that the device can run: {why}"));
        }
        let _ = write!(out, "{s}\n  first of {}", list.len());
        if let (Schedule::Product(g), Some(p)) = (s, problem(k)) {
            let _ = write!(out, ", estimated {:.2e} cycles", cycles(g, &p, cx.device, cx.expect));
        }
        out.push('\n');
        // Short lists of candidates are printed in full.
        if list.len() <= 6 {
            list.iter().filter(|c| *c != s).for_each(|c| _ = writeln!(out, "  or {c}"));
        }
    }
    Ok(out)
}

/// The text of each dispatch, after a line with its workgroup counts, workgroup size, memory and features.
fn written(program: &Program) -> String {
    let mut out = String::new();
    for d in &program.dispatches {
        let k = &program.kernels[d.kernel];
        let [x, y, z] = &d.workgroups;
        let _ = write!(out, "// {} workgroups [{x}, {y}, {z}] of {:?}", k.family, k.workgroup_size);
        if k.workgroup_bytes > 0 {
            let _ = write!(out, ", {} bytes", k.workgroup_bytes);
        }
        if !k.features.is_empty() {
            let _ = write!(out, ", {}", k.features.join(", "));
        }
        let _ = write!(out, "\n{}\n", k.wgsl.trim_end());
    }
    out
}

/// Checks one file of a stage; returns the expected content of the file if it differs.
pub fn check(stage: &str, file: &Path, update: bool) -> Result<Option<String>, String> {
    let whole = std::fs::read_to_string(file).map_err(words)?;
    let (head, mut parts) = sections(&whole);
    let graph = text::parse(&head).map_err(words)?;
    verify::verify(&graph).map_err(|e| e.join("\n"))?;
    let mut setup = Setup::default().with(line(&head, "// options:").unwrap_or_default())?;
    if stage == "precision" {
        setup.options.precision = Precision::F16;
    }
    let mut find = |name: &'static str, at: usize| {
        if !parts.iter().any(|s| s.name == name) {
            parts.insert(at, Section { name, options: String::new(), text: String::new() });
        }
    };
    find("kernels", 0);
    match stage {
        "fuse" => {}
        "precision" => find("kept", 1),
        "loops" => {
            find("steps", 1);
            find("loops", 2);
        }
        _ => find("schedule", 1),
    }
    if stage == "emit" {
        find("wgsl", 2);
    }

    let fused = || fuse(&graph, &setup.options).map_err(words);
    let (first, rest) = parts.split_first_mut().ok_or("empty")?;
    if stage == "fuse" || stage == "precision" {
        let mut kernels = fused()?;
        if let Some(kept) = rest.first_mut() {
            let (halved, rounds) =
                halve(&mut kernels, &setup.options, &BTreeMap::new(), usize::MAX).map_err(words)?;
            let all = kernels.kernels.into_iter().zip(rounds);
            kernels.kernels = all
                .map(|(k, rounds)| if rounds { for_units(k, &setup.options.profile) } else { k })
                .collect();
            kernel::verify(&kernels).map_err(|e| format!("{}\n{kernels}", e.join("\n")))?;
            kept.text = halved.kept.iter().fold(String::new(), |mut out, k| {
                let _ = writeln!(out, "{} of {}: {}", k.tensor, k.nodes.join(", "), k.why);
                out
            });
        }
        from_loops(&graph, &kernels, &setup, &head)?;
        let all = scheduled(&kernels, &setup)?;
        execute(&graph, &compiled(&graph, &all, &setup)?, &setup, &head)?;
        // Tensors between kernels may have their axes in any order.
        for axis in 0..3 {
            let mut other = kernels.clone();
            if layout::apply(&mut other, &vec![Some(axis); kernels.tensors.len()]) > 0 {
                other.kernels = other.kernels.into_iter().map(layout::flattened).collect();
                kernel::verify(&other).map_err(|e| format!("{}\n{other}", e.join("\n")))?;
                let all = scheduled(&other, &setup)?;
                execute(&graph, &compiled(&graph, &all, &setup)?, &setup, &head)
                    .map_err(|e| format!("axis {axis} innermost: {e}\n{other}"))?;
            }
        }
        first.text = kernels.to_string();
    } else if first.text.trim().is_empty() {
        if !update {
            return Err("has no kernels yet: UPDATE_EXPECT=1 writes those that fusion makes".into());
        }
        first.text = fused()?.to_string();
    }
    let kernels = kernel::parse(&first.text).map_err(|e| format!("kernels: {e}"))?;
    if kernels.to_string().trim() != first.text.trim() {
        first.text = kernels.to_string();
    }
    if matches!(stage, "schedule" | "emit") {
        from_loops(&graph, &kernels, &setup, &head)?;
    }
    match (stage, rest) {
        ("fuse", []) | ("precision", [_]) => {}
        ("loops", [steps, loops]) => {
            let all = witness::nests(&kernels, &steps.text)?;
            interpret(&graph, &kernels, &all, &setup)?;
            loops.text = all.iter().map(ToString::to_string).collect();
        }
        ("schedule", rest) => {
            let thorough = std::env::var_os("WGFC_THOROUGH").is_some();
            let mut ran: Vec<Vec<Schedule>> = vec![];
            for (i, s) in rest.iter_mut().enumerate() {
                let setup = setup.with(&s.options)?;
                let all = scheduled(&kernels, &setup)?;
                let made = described(&all, &setup)?;
                // The text in the file was executed when it was written.
                let known = i > 0 && s.text.trim() == made.trim() && !thorough;
                if !known && !ran.contains(&all.schedules) {
                    execute(&graph, &compiled(&graph, &all, &setup)?, &setup, &head)?;
                    ran.push(all.schedules.clone());
                }
                s.text = made;
            }
        }
        ("emit", [given, expected]) => {
            if given.text.trim().is_empty() && update {
                let all = scheduled(&kernels, &setup)?;
                given.text = all.schedules.iter().map(|s| format!("{s}\n")).collect();
            }
            let schedules: Vec<Schedule> =
                given.text.lines().map(str::parse).collect::<Result<_, _>>().map_err(words)?;
            if schedules.len() != kernels.kernels.len() {
                return Err(format!("{} schedules for {} kernels", schedules.len(), kernels.kernels.len()));
            }
            let all = ScheduledGraph { graph: kernels, schedules, sequences: vec![] };
            described(&all, &setup)?;
            if let Some(loops) = as_scheduled(&all)? {
                interpret(&graph, &all.graph, &loops, &setup)?;
            }
            let program = compiled(&graph, &all, &setup)?;
            execute(&graph, &program, &setup, &head)?;
            expected.text = written(&program);
        }
        (stage, _) => return Err(format!("sections that a file of {stage} does not have")),
    }
    let mut got = head.trim_end().to_owned() + "\n";
    for s in &parts {
        let _ = write!(got, "// {}", s.name);
        if !s.options.is_empty() {
            let _ = write!(got, ": {}", s.options);
        }
        let _ = write!(got, "\n{}\n", s.text.trim_end());
    }
    Ok((got.trim() != whole.trim()).then_some(got))
}
