//! `wgfc inspect`.

use super::args::InspectArgs;
use super::drawing::Drawing;
use super::passes::Ran;
use super::terminal::Terminal;
use super::{given_dims, is_program, roofline, shown};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use wgfc::artefact::{ReadOptions, load_bundle_with};
use wgfc::compiler::nest::nest;
use wgfc::compiler::passes::After;
use wgfc::compiler::pipeline;
use wgfc::compiler::pipeline::Fused;
use wgfc::compiler::schedule::table;
use wgfc::inspect::{Report, Roof, Summary};
use wgfc::ir::Program;
use wgfc::output::write_whole;
use wgfc::source::ModelFile;
use wgfc::{Error, Options};

/// Shows the program that a model compiles to.
pub fn main(a: &InspectArgs, t: &Terminal) -> Result<(), Error> {
    for path in a.graph.iter().chain(&a.roofline) {
        check_extension(path, a.roofline.as_ref() == Some(path))?;
    }
    let mut a = a.clone();
    if !a.like.like.is_empty() {
        a.compile.dims = given_dims::dims(&a.model, &options(&a)?, &a.like)?;
    }
    let a = &a;
    if let Some(name) = &a.crossover {
        return super::crossover::main(a, name, &options(a)?, t);
    }
    if a.loops {
        return loops(a, t);
    }
    if a.schedule {
        return schedule(a, t);
    }
    if a.passes {
        return passes(a, t);
    }
    let program = if is_program(&a.model) { chosen(a, t)? } else { plan(a, t)? };
    t.warnings(&program.stats.warnings);
    // The last entry for a symbol wins, so that a given size precedes an expected one.
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
        write_whole(
            path,
            roofline::svg(
                (&name, &wgfc::inspect::profile_text(&a.profile, &instead(a))),
                &program,
                &summary,
                roof,
            )?
            .as_bytes(),
        )?;
        written.push(path.display().to_string());
    }
    let report = Report {
        name: &name,
        program: &program,
        summary: &summary,
        roof,
        profile: &a.profile,
        instead: &instead(a),
        chosen: !is_program(&a.model),
        dispatches: a.dispatches,
    };
    if t.json {
        let mut json = report.json();
        json["files"] = written.into();
        t.print_json(&json);
        return Ok(());
    }
    let mut s = report.text();
    for f in written {
        s += &format!("  wrote {f}\n");
    }
    t.print(&s);
    Ok(())
}

/// The plan of a compiled program that the options select.
fn chosen(a: &InspectArgs, t: &Terminal) -> Result<Program, Error> {
    let options = ReadOptions { verify: false, memory_limit: a.compile.memory_limit };
    let plans = load_bundle_with(&a.model, &options)?.plans;
    let names: Vec<String> = plans.iter().map(|p| format!("`{}`", p.name)).collect();
    let names = names.join(", ");
    if plans.len() > 1 && a.plan.is_none() {
        t.note(&format!("the first of the plans {names}; --plan NAME shows another"));
    }
    let is_wanted = |name: &str| a.plan.as_ref().is_none_or(|n| n == name);
    let found = plans.into_iter().find(|p| is_wanted(&p.name));
    let found = found.ok_or_else(|| {
        let name = a.plan.as_deref().unwrap_or_default();
        Error::usage(format!("there is no plan `{name}`"), format!("its plans are {names}"))
    })?;
    Ok(found.program)
}

/// The options with which the model is compiled.
fn options(a: &InspectArgs) -> Result<Options, Error> {
    Ok(Options { profile: wgfc::cache::read_profile(&a.profile)?, ..a.compile.options()? })
}

/// The options that replace parts of the device profile's peaks.
fn instead(a: &InspectArgs) -> Vec<&'static str> {
    let given = [(a.bandwidth.is_some(), "--bandwidth"), (a.peak.is_some(), "--peak")];
    given.into_iter().filter_map(|(g, name)| g.then_some(name)).collect()
}

/// Compiles the model, without its weights if they are missing.
fn plan(a: &InspectArgs, t: &Terminal) -> Result<Program, Error> {
    if a.plan.is_some() {
        return Err(Error::usage("--plan has no effect on a model", "give what `wgfc compile` wrote"));
    }
    let file = ModelFile::open(&a.model)?;
    let options = options(a)?;
    let _progress = t.spinner(format!("compiling {}", shown(&a.model)));
    match file.compile(&options) {
        Err(_) if !file.missing().is_empty() => {
            t.note(&format!(
                "{} is missing: the weights are absent, the plan is made from the graph alone",
                super::some_of(&file.missing())
            ));
            file.compile(&Options { graph_only: true, ..options })
        }
        other => other,
    }
}

/// The kernels of the model before they are scheduled, without its weights if they are missing, and the options.
fn fused(a: &InspectArgs) -> Result<(Fused, Options), Error> {
    if is_program(&a.model) {
        return Err(Error::usage(
            "a compiled program does not keep how its kernels were chosen to be computed",
            "give the model that it was compiled from, with the same options",
        ));
    }
    let file = ModelFile::open(&a.model)?;
    let mut options = options(a)?;
    let mut fuse = || match file.fuse_amended(&options, &mut |_| Ok(())) {
        // A missing file is known only after it has been looked up.
        Err(_) if !file.missing().is_empty() && !options.graph_only => {
            options.graph_only = true;
            file.fuse_amended(&options, &mut |_| Ok(()))
        }
        other => other,
    };
    let fused = fuse()?;
    Ok((fused, options))
}

/// Prints each kernel as loops, those of equal kernels once.
fn loops(a: &InspectArgs, t: &Terminal) -> Result<(), Error> {
    let (Fused { kernels, .. }, _) = fused(a)?;
    let mut all: Vec<(usize, String)> = vec![];
    let mut place: BTreeMap<String, usize> = BTreeMap::new();
    for k in &kernels.kernels {
        let at = *place.entry(table::key(&kernels, k)).or_insert(all.len());
        match all.get_mut(at) {
            Some((count, _)) => *count += 1,
            None => all.push((1, nest(k, &kernels).map_err(Error::Internal)?.to_string())),
        }
    }
    if t.json {
        let each = |(count, loops): &(usize, String)| serde_json::json!({ "count": count, "loops": loops });
        t.print_json(&all.iter().map(each).collect());
        return Ok(());
    }
    let differ = all.len();
    let mut text =
        format!("{}: {} kernels, {differ} of them differ\n", shown(&a.model), kernels.kernels.len());
    for (count, loops) in all {
        let times = if count == 1 { String::new() } else { format!("// {count} times\n") };
        text += &format!("\n{times}{loops}");
    }
    t.print(&text);
    Ok(())
}

/// Prints the schedule of each kernel.
fn schedule(a: &InspectArgs, t: &Terminal) -> Result<(), Error> {
    let (fused, options) = fused(a)?;
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

/// Prints the passes of the compilation.
fn passes(a: &InspectArgs, t: &Terminal) -> Result<(), Error> {
    if is_program(&a.model) {
        return Err(Error::usage(
            "a compiled program does not keep the passes of its compilation",
            "give the model that it was compiled from, with the same options",
        ));
    }
    let file = ModelFile::open(&a.model)?;
    let mut options = options(a)?;
    let found = match file.imported(&options) {
        // A missing file is known only after it has been looked up.
        Err(_) if !file.missing().is_empty() && !options.graph_only => {
            options.graph_only = true;
            file.imported(&options)
        }
        other => other,
    };
    let (graph, stats) = found?;
    let mut ran = Ran::default();
    let watch = &mut |after: After<'_>| ran.add(&after);
    pipeline::fuse_watched(graph, stats, &options, &mut |_, _| {}, watch)?;
    match t.json {
        true => t.print_json(&ran.json(&options)),
        false => t.print(&format!("{}\n\n{}", shown(&a.model), ran.text(&options))),
    }
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
