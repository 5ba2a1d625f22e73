//! `wgfc inspect`.

use super::args::InspectArgs;
use super::drawing::Drawing;
use super::summary::{Roof, Summary, bytes_text, family, flops_text, nodes_of, operators, table, time_text};
use super::terminal::Terminal;
use super::{is_program, like, roofline, shown};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use wgfc::compiler::schedule::table;
use wgfc::ir::Program;
use wgfc::output::write_whole;
use wgfc::source::ModelFile;
use wgfc::{Error, Options};

/// Shows what a model compiles to.
pub fn main(a: &InspectArgs, t: &Terminal) -> Result<(), Error> {
    for path in a.graph.iter().chain(&a.roofline) {
        check_extension(path, a.roofline.as_ref() == Some(path))?;
    }
    let mut a = a.clone();
    if !a.like.like.is_empty() {
        a.compile.dims = like::dims(&a.model, &options(&a)?, &a.like)?;
    }
    let a = &a;
    if a.schedule {
        return schedule(a, t);
    }
    let program = if is_program(&a.model) { wgfc::load(&a.model)? } else { plan(a, t)? };
    t.warnings(&program.stats.warnings);
    // What is given counts before what is expected.
    let sizes = || a.compile.expect.sizes.iter().chain(&a.compile.dims);
    let given: Vec<(String, i64)> = sizes().filter(|(n, _)| program.symbols.contains(n)).cloned().collect();
    if let Some((n, _)) = sizes().find(|(n, _)| is_program(&a.model) && !program.symbols.contains(n)) {
        let all = if program.symbols.is_empty() { "none".into() } else { program.symbols.join(", ") };
        return Err(Error::usage(
            format!("the program has no dimension `{n}`"),
            format!("its symbolic dimensions: {all}"),
        ));
    }
    let roof = Roof::of(&wgfc::cache::read_profile(&a.profile)?.speeds, a.bandwidth, a.peak);
    let summary = Summary::new(&program, &given, roof)?;
    if !summary.assumed.is_empty() {
        let names = summary.assumed.join(", ");
        t.note(&format!("{names} taken as 1; give other values with --dim NAME=VALUE"));
    }
    let name = shown(&a.model);

    let mut written = Vec::new();
    if !a.graph.is_empty() {
        let drawing = Drawing::new(&name, &program, &summary);
        for path in &a.graph {
            let text = match extension(path).as_str() {
                "dot" => drawing.dot(),
                "html" => drawing.html(),
                _ => drawing.svg(),
            };
            write_whole(path, text.as_bytes())?;
            written.push(path.display().to_string());
        }
    }
    if let Some(path) = &a.roofline {
        write_whole(path, roofline::svg((&name, &profile_text(a)), &program, &summary, roof).as_bytes())?;
        written.push(path.display().to_string());
    }
    if t.json {
        t.print_json(&json(&program, &summary, (a, roof), &written));
        return Ok(());
    }
    let mut s = text(&name, &program, &summary, (a, roof));
    for f in written {
        s += &format!("  wrote {f}\n");
    }
    t.print(&s);
    Ok(())
}

/// What the model is compiled with.
fn options(a: &InspectArgs) -> Result<Options, Error> {
    Ok(Options { profile: wgfc::cache::read_profile(&a.profile)?, ..a.compile.options()? })
}

/// As many digits as say something.
fn number(v: f64) -> f64 {
    format!("{v:.3e}").parse().unwrap_or(v)
}

/// The device profile that bounds are by, and what the options say instead of it.
fn profile_text(a: &InspectArgs) -> String {
    let given = [(a.bandwidth.is_some(), "--bandwidth"), (a.peak.is_some(), "--peak")];
    let given: Vec<&str> = given.into_iter().filter_map(|(g, name)| g.then_some(name)).collect();
    if given.is_empty() { a.profile.clone() } else { format!("{}, but {}", a.profile, given.join(" and ")) }
}

/// Compiles the model; without its weights where they are missing.
fn plan(a: &InspectArgs, t: &Terminal) -> Result<Program, Error> {
    let file = ModelFile::open(&a.model)?;
    let options = options(a)?;
    let _progress = t.spinner(format!("compiling {}", shown(&a.model)));
    match file.compile(&options) {
        Err(_) if !file.missing().is_empty() => {
            t.note(&format!(
                "{} is missing: the weights are absent, the plan is made from the graph alone",
                file.missing().join(", ")
            ));
            file.compile(&Options { graph_only: true, ..options })
        }
        other => other,
    }
}

/// Prints how each kernel is computed.
fn schedule(a: &InspectArgs, t: &Terminal) -> Result<(), Error> {
    if is_program(&a.model) {
        return Err(Error::usage(
            "a compiled program does not keep how its kernels were chosen to be computed",
            "give the model that it was compiled from, with the same options",
        ));
    }
    let file = ModelFile::open(&a.model)?;
    let mut options = options(a)?;
    options.graph_only |= !file.missing().is_empty();
    let fused = file.fuse_amended(&options, &mut |_| Ok(()))?;
    let scheduled = wgfc::compiler::pipeline::schedule(fused.kernels, &options)?;
    let all = table::of(&scheduled);
    if t.json {
        t.print(&all.to_json(None).map_err(Error::Internal)?);
        return Ok(());
    }
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    let keys: Vec<String> = scheduled.graph.kernels.iter().map(|k| table::key(&scheduled.graph, k)).collect();
    for k in &keys {
        *count.entry(k).or_default() += 1;
    }
    let mut text =
        format!("{}: {} kernels, {} of them differ\n", shown(&a.model), keys.len(), all.choices.len());
    let mut said = BTreeSet::new();
    for k in keys.iter().filter(|k| said.insert(k.as_str())) {
        let schedule = all.choices.get(k).map(ToString::to_string).unwrap_or_default();
        text += &format!("  {} x {k}\n      {schedule}\n", count.get(k.as_str()).copied().unwrap_or(0));
    }
    t.print(&text);
    Ok(())
}

fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

fn check_extension(path: &Path, only_svg: bool) -> Result<(), Error> {
    match extension(path).as_str() {
        "svg" => Ok(()),
        "dot" | "html" if !only_svg => Ok(()),
        _ => {
            let kinds = if only_svg { "FILE.svg" } else { "FILE.svg, FILE.dot or FILE.html" };
            Err(Error::usage(
                format!("{}: pictures of this kind are not made", path.display()),
                format!("give {kinds}"),
            ))
        }
    }
}

/// What the dispatches of one family add up to.
#[derive(Default)]
struct Family {
    kernels: BTreeSet<usize>,
    dispatches: usize,
    nodes: usize,
    bytes: u64,
    flops: u64,
    seconds: f64,
    memory_bound: f64,
}

fn families(program: &Program, summary: &Summary) -> Vec<(String, Family)> {
    let mut all: BTreeMap<&str, Family> = BTreeMap::new();
    // A node that several dispatches compute counts with the first of them.
    let mut seen = BTreeSet::new();
    for (i, (d, f)) in program.dispatches.iter().zip(&summary.dispatches).enumerate() {
        let family = all.entry(family(program, i)).or_default();
        family.kernels.insert(d.kernel);
        family.dispatches += f.times as usize;
        family.nodes += d.nodes.iter().filter(|n| seen.insert(*n)).count();
        family.bytes = family.bytes.saturating_add(f.bytes);
        family.flops = family.flops.saturating_add(f.flops);
        family.seconds += f.seconds;
        if f.bound == "memory" {
            family.memory_bound += f.seconds;
        }
    }
    let mut all: Vec<(String, Family)> = all.into_iter().map(|(n, f)| (n.to_owned(), f)).collect();
    all.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    all
}

fn bound_text(f: &Family) -> String {
    let share = if f.seconds > 0.0 { f.memory_bound / f.seconds } else { 1.0 };
    match share {
        s if s > 0.99 => "memory".into(),
        s if s < 0.01 => "arithmetic".into(),
        s => format!("{:.0}% memory", 100.0 * s),
    }
}

fn ratio(a: f64, b: f64) -> String {
    if b > 0.0 { format!("{:.2}", a / b) } else { "1.00".into() }
}

fn text(name: &str, program: &Program, s: &Summary, (a, roof): (&InspectArgs, Roof)) -> String {
    let bandwidth = roof.bandwidth;
    let time = |bytes: u64| time_text(bytes as f64 / bandwidth);
    let mut out = format!("{name}{}\n\n", s.at());
    let heading = ["family", "kernels", "dispatches", "nodes", "bytes", "flops", "at least", "bound by"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for (name, f) in families(program, s) {
        rows.push(vec![
            name,
            f.kernels.len().to_string(),
            f.dispatches.to_string(),
            f.nodes.to_string(),
            bytes_text(f.bytes),
            flops_text(f.flops),
            time_text(f.seconds),
            bound_text(&f),
        ]);
    }
    out += &table(&rows, &[false, true, true, true, true, true, true, false]);
    if a.dispatches {
        out.push('\n');
        let heading = [
            "dispatch",
            "kernel",
            "family",
            "bytes",
            "flops",
            "at least",
            "bound by",
            "writes",
            "operators",
            "nodes",
        ];
        let mut rows = vec![heading.map(String::from).to_vec()];
        for (i, (d, f)) in program.dispatches.iter().zip(&s.dispatches).enumerate() {
            let k = program.kernels.get(d.kernel);
            rows.push(vec![
                i.to_string(),
                k.map(|k| k.name.clone()).unwrap_or_default(),
                family(program, i).to_owned(),
                bytes_text(f.bytes),
                flops_text(f.flops),
                time_text(f.seconds),
                f.bound.into(),
                nodes_of(&d.writes, 2),
                operators(program, i).join(", "),
                nodes_of(&d.nodes, 4),
            ]);
        }
        out += &table(&rows, &[true, false, false, true, true, true, false, false, false, false]);
    }
    out += &format!(
        "\n  {} nodes in {} dispatches of {} kernels\n",
        program.stats.model_nodes,
        grouped(s.runs()),
        program.kernels.len()
    );
    let computed: BTreeSet<&String> = program.dispatches.iter().flat_map(|d| &d.nodes).collect();
    if let Some(rest) = program.stats.model_nodes.checked_sub(computed.len()).filter(|n| *n > 0) {
        out += &format!("  {rest} of the nodes need no dispatch: constants, shapes, what is read in place\n");
    }
    let mut said = "";
    for r in &program.repeats {
        let of = program.dispatches.get(r.first).map(|d| nodes_of(&d.nodes, 1)).unwrap_or_default();
        let why = if r.why == said { "as before" } else { &r.why };
        let times = match &r.until {
            Some(u) => format!("rounds, up to {}, of", grouped(u.rounds)),
            None => format!("{} ×", r.times),
        };
        out += &format!("  {times} {} of them are the loop of {of}: {why}\n", r.count);
        said = &r.why;
    }
    if program.repeats.iter().any(|r| r.until.is_some()) {
        out += "  of loops in rounds one round counts\n";
    }
    out += &format!(
        "  bytes moved: {} fused, {} unfused ({} and {} bytes)\n",
        bytes_text(s.bytes),
        bytes_text(s.bytes_unfused),
        grouped(s.bytes),
        grouped(s.bytes_unfused)
    );
    out += &format!(
        "  time bound by memory at {} GB/s: {} fused, {} unfused; with arithmetic at {} TFLOP/s: {} fused\n",
        number(roof.bandwidth / (1u64 << 30) as f64),
        time(s.bytes),
        time(s.bytes_unfused),
        number(roof.peak / 1e12),
        time_text(s.seconds)
    );
    let chosen = if is_program(&a.model) { "time bounds" } else { "time bounds and choices" };
    out += &format!("  {chosen} by the device profile: {}\n", profile_text(a));
    out += &format!(
        "  peak activation memory: {}, {} × the largest live set ({})\n",
        bytes_text(s.activations),
        ratio(s.activations as f64, s.live as f64),
        bytes_text(s.live)
    );
    if !program.computed.is_empty() {
        let sizes: Vec<String> =
            program.computed.iter().map(|c| format!("{} up to {}", c.symbol, c.bound)).collect();
        out += &format!("  sizes that a run computes, counted at their most: {}\n", sizes.join(", "));
    }
    out += &proofs(program);
    let absent = if program.stats.weights_absent { ", absent: this can be inspected, not run" } else { "" };
    out += &format!("  weights: {}{absent}\n", bytes_text(s.weights));
    out += "  (MB is 2^20, GB 2^30 bytes; every operand of a dispatch counts once)\n";
    out
}

/// Kernels of which it is known that they stay inside their buffers, and what is not known of the others.
fn proofs(program: &Program) -> String {
    let all = program.kernels.len();
    if (0..all).any(|k| program.proof.unproven(k).is_none()) {
        return "  a compiled folder carries no proofs: its kernels run with checks of bounds (run --trust: without)\n"
            .into();
    }
    let mut out =
        format!("  {} of {all} kernels are proven to stay inside their buffers\n", program.proof.count());
    for (i, k) in program.kernels.iter().enumerate() {
        for access in program.proof.unproven(i).unwrap_or_default() {
            out += &format!("    not {}, which runs with checks: {access}\n", k.name);
        }
    }
    out
}

/// `536,870,912`.
fn grouped(v: u64) -> String {
    let digits = v.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

fn json(
    program: &Program,
    s: &Summary,
    (a, roof): (&InspectArgs, Roof),
    written: &[String],
) -> serde_json::Value {
    let bandwidth = roof.bandwidth;
    let families: Vec<serde_json::Value> = families(program, s)
        .iter()
        .map(|(name, f)| {
            serde_json::json!({
                "family": name, "kernels": f.kernels.len(), "dispatches": f.dispatches, "nodes": f.nodes,
                "bytes": f.bytes, "flops": f.flops, "seconds": f.seconds, "bound": bound_text(f),
            })
        })
        .collect();
    let dispatches: Vec<serde_json::Value> = program
        .dispatches
        .iter()
        .zip(&s.dispatches)
        .enumerate()
        .map(|(i, (d, f))| {
            let k = program.kernels.get(d.kernel);
            serde_json::json!({
                "kernel": k.map(|k| &k.name), "family": family(program, i), "nodes": d.nodes,
                "operators": operators(program, i), "writes": d.writes,
                "bytes": f.bytes, "flops": f.flops, "seconds": f.seconds, "bound": f.bound,
            })
        })
        .collect();
    let unproven: Option<BTreeMap<&String, &[String]>> = program
        .kernels
        .iter()
        .enumerate()
        .map(|(i, k)| Some((&k.name, program.proof.unproven(i)?)))
        .filter(|of| of.is_none_or(|(_, accesses)| !accesses.is_empty()))
        .collect();
    serde_json::json!({
        "nodes": program.stats.model_nodes,
        "kernels": program.kernels.len(),
        "kernels_proven_in_bounds": program.proof.count(),
        "accesses_not_proven_in_bounds": unproven,
        "dispatches": s.runs(),
        "repeats": program.repeats,
        "dims": s.dims,
        "dims_not_given": s.assumed,
        "bytes_moved": s.bytes,
        "bytes_moved_unfused": s.bytes_unfused,
        "flops": s.flops,
        "device_profile": a.profile,
        "bandwidth_bytes_per_second": bandwidth,
        "flops_per_second": roof.peak,
        "seconds_memory_bound": s.bytes as f64 / bandwidth,
        "seconds_memory_bound_unfused": s.bytes_unfused as f64 / bandwidth,
        "seconds_bound": s.seconds,
        "peak_activation_bytes": s.activations,
        "largest_live_bytes": s.live,
        "weight_bytes": s.weights,
        "weights_absent": program.stats.weights_absent,
        "computed": program.computed.iter().map(|c| (c.symbol.clone(), c.bound.to_string())).collect::<BTreeMap<_, _>>(),
        "warnings": program.stats.warnings,
        "families": families,
        "dispatch_list": dispatches,
        "files": written,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        for (v, s) in [(0, "0"), (999, "999"), (1000, "1,000"), (536_870_912, "536,870,912")] {
            assert_eq!(grouped(v), s);
        }
    }
}
