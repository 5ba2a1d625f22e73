//! `wgfc compile`: compiles a model into a folder or a file.

use super::adapter::choice;
use super::args::{CompileArgs, TargetArg, distinct};
use super::terminal::Terminal;
use super::{inside, shown};
use std::path::{Path, PathBuf};
use wgfc::compiler::DeviceProfile;
use wgfc::inspect::{Roof, Summary, bytes_text, fused, fused_text, time_text};
use wgfc::ir::bundle::Plan;
use wgfc::model::device_error;
use wgfc::runtime::Gpu;
use wgfc::source::ModelFile;
use wgfc::{Bundle, Cache, Decoder, Error, Options, Program, SaveOptions};

/// Compiles a model into a folder or a file.
pub fn main(a: &CompileArgs, t: &Terminal) -> Result<(), Error> {
    let started = std::time::Instant::now();
    let output = &output(a)?;
    wgfc::artefact::check_output(output, &SaveOptions { force: a.force, ..SaveOptions::default() })?;
    let decoder = if a.generate { Some(opened_decoder(a, t)?) } else { None };
    let opened;
    let file = match &decoder {
        Some(d) => d.source()?,
        None => {
            opened = opened_file(&a.model, a.random_weights, t)?;
            &opened
        }
    };
    say_random_weights(file, t);
    let mut profiles = vec!["portable".to_owned()];
    let mut options = Options { graph_only: a.graph_only, ..a.compile.options()? };
    if a.for_device || a.adapter.adapter.is_some() {
        let gpu = Gpu::request_blocking(&choice(&a.adapter)).map_err(device_error)?;
        let (source, speeds) = super::device_cache::speeds(Cache::of_user().as_ref(), &gpu, t);
        t.note(&format!("compiling for the limits of {}, device profile: {source}", gpu.summary().name));
        options.profile = DeviceProfile { speeds, ..options.profile.with_limits(gpu.profile()) };
        profiles = vec![source.to_string()];
    } else if let Some(first) = a.profiles.first() {
        options.profile = wgfc::cache::read_profile(first)?;
        profiles.clone_from(&a.profiles);
    }
    if let Some(file) = &a.tuning {
        options.tuning = wgfc::cache::read_tuning(file)?;
    }
    options.profile = as_asked(options.profile, a);
    distinct(&a.variants)?;
    let bundle = {
        let _progress = t.spinner(format!("compiling {}", shown(&a.model)));
        let compile = |options: &Options| match &decoder {
            Some(d) => wgfc::generate::compile_decoder(d, options),
            None => compiled(a, file, options),
        };
        match &a.profiles[..] {
            [] | [_] => compile(&options)?,
            several => for_profiles(several, a, &options, compile)?,
        }
    };
    let profile = profiles.join(", ");
    let Some(Plan { program, .. }) = bundle.plans.first() else {
        return Err(Error::Internal("nothing was compiled".into()));
    };
    let cost = inside::cost(file, &options, program, &a.compile.dims, t);
    let mut warnings: Vec<String> = vec![];
    for w in bundle.plans.iter().flat_map(|p| &p.program.stats.warnings) {
        if !warnings.contains(w) {
            warnings.push(w.clone());
        }
    }
    t.warnings(&warnings);
    if let Some(q) = bundle.plans.iter().find_map(|p| p.program.stats.quantised) {
        t.note(&wgfc::inspect::quantised_text(&q));
    }
    let beside = if a.generate { beside(&a.model)? } else { vec![] };
    {
        let bar = t.bar("writing weights".into(), 0, true);
        let save = SaveOptions {
            force: a.force,
            progress: Some(&|done, all| bar.at_of(done, all)),
            shard_size: a.shard_size,
            model: a.weights_from_model.then_some(file),
            beside: &beside,
        };
        wgfc::save_bundle(&bundle, output, &save)?;
    }
    let weights: usize = bundle.store().into_iter().filter_map(|(_, w)| w.byte_len()).sum();
    let kernels = bundle.kernels().len();
    let seconds = started.elapsed().as_secs_f64();
    let bound = bound(program, a, &options);
    let next = next_commands(program, bound.as_ref(), output, a);
    if t.json {
        let plan = |p: &Plan| {
            serde_json::json!({
                "name": p.name,
                "adapter": p.adapter,
                "needs": p.needs,
                "kernels": p.program.kernels.len(),
                "dispatches": p.program.dispatches.len(),
                "symbols": p.program.symbols,
            })
        };
        t.print_json(&serde_json::json!({
            "output": output.display().to_string(),
            "device_profile": profile,
            "nodes": program.stats.model_nodes,
            "kernels": kernels,
            "dispatches": program.dispatches.len(),
            "symbols": program.symbols,
            "plans": bundle.plans.iter().map(plan).collect::<Vec<_>>(),
            "weight_bytes": weights,
            "weights_absent": program.stats.weights_absent,
            "fused": fused(program),
            "merged_products": program.stats.merged,
            "seconds_bound": bound.as_ref().map(|b| b.seconds),
            "dims": bound.as_ref().map(|b| &b.dims),
            "next": next,
            "random_weights": a.random_weights,
            "warnings": warnings,
            "seconds": seconds,
            "looking_inside": cost.as_ref().map(inside::Cost::json),
        }));
        return Ok(());
    }
    let weights = bytes_text(weights as u64);
    let absent =
        if program.stats.weights_absent { " (others absent: can be inspected, not run)" } else { "" };
    let output = output.display();
    let nodes = program.stats.model_nodes;
    t.result(&match &bundle.plans[..] {
        [one] => format!(
            "{output}: {nodes} nodes in {} dispatches of {kernels} kernels, {weights} of weights{absent}, {seconds:.2} s",
            one.program.dispatches.len(),
        ),
        several => {
            let each: Vec<String> =
                several.iter().map(|p| format!("{} {}", p.name, p.program.dispatches.len())).collect();
            format!(
                "{output}: {nodes} nodes in {} plans of {kernels} kernels, dispatches: {}; {weights} of weights{absent}, {seconds:.2} s",
                several.len(),
                each.join(", "),
            )
        }
    });
    let mut s = format!("\n{}", fused_text(program));
    if let [Plan { name, .. }, _, ..] = &bundle.plans[..] {
        s += &format!("  (of the plan `{name}`)\n");
    }
    if let Some(b) = &bound {
        let (time, at) = (time_text(b.seconds), b.at());
        s += &format!("  a run takes at least {time}{at} by the device profile: {}\n", profiles[0]);
    }
    s += "\nnext:\n";
    next.iter().for_each(|command| s += &format!("  {command}\n"));
    t.result(&s);
    if let Some(c) = cost {
        t.print(&c.text());
    }
    Ok(())
}

/// The folder or file to write: the given one, else a folder in the current one with the model's name.
fn output(a: &CompileArgs) -> Result<PathBuf, Error> {
    if let Some(given) = &a.output {
        return Ok(given.clone());
    }
    let absolute = std::path::absolute(&a.model).ok();
    let name = absolute.as_deref().and_then(|m| if m.is_dir() { m.file_name() } else { m.file_stem() });
    let name = name.ok_or_else(|| Error::usage("the model has no name for a folder", "give one: -o DIR"))?;
    // If the model is a folder, it may lie in the current one, and the program must not replace it.
    match a.model.is_dir() {
        true => Ok(format!("{}-compiled", name.to_string_lossy()).into()),
        false => Ok(name.into()),
    }
}

/// The figures of the first plan. A size that is neither given nor expected is 1. `None` if a size of the program is not
/// valid then.
fn bound(program: &Program, a: &CompileArgs, options: &Options) -> Option<Summary> {
    let expected = a.compile.expect.sizes.iter().chain(&a.compile.dims);
    let given: Vec<(String, i64)> = expected.filter(|(n, _)| program.symbols.contains(n)).cloned().collect();
    Summary::new(program, &given, Roof::of(&options.profile.speeds, None, None)).ok()
}

/// Commands that the user may run next, ready to be copied.
fn next_commands(program: &Program, bound: Option<&Summary>, output: &Path, a: &CompileArgs) -> [String; 2] {
    let path = in_shell(&output.display().to_string());
    if program.stats.weights_absent {
        return [
            format!("wgfc inspect {path} --dispatches"),
            format!("wgfc compile {} --random-weights", in_shell(&a.model.display().to_string())),
        ];
    }
    if a.generate {
        return [
            format!("wgfc generate {path} --prompt \"The sea is\""),
            format!("wgfc bench decode {path}"),
        ];
    }
    let dims =
        bound.iter().flat_map(|b| &b.dims).map(|(n, v)| format!(" --dim {}", in_shell(&format!("{n}={v}"))));
    let dims: String = dims.collect();
    [format!("wgfc run {path} --random-inputs{dims}"), format!("wgfc bench {path} --random-inputs{dims}")]
}

/// A word as it is written in a shell: quoted if it contains other characters than those of plain names.
pub(super) fn in_shell(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-=+:".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Opens a model's file, with random weights if they are asked for.
pub fn opened_file(model: &Path, random_weights: bool, t: &Terminal) -> Result<ModelFile, Error> {
    let file = ModelFile::open(model)?;
    if !random_weights {
        return Ok(file);
    }
    let _progress = t.spinner("making up weights".into());
    file.with_random_weights()
}

/// Opens the decoder's files, with random weights if the options ask for them.
fn opened_decoder(a: &CompileArgs, t: &Terminal) -> Result<Decoder, Error> {
    let decoder = Decoder::open_within(&a.model, a.compile.memory_limit)?;
    if !a.random_weights {
        return Ok(decoder);
    }
    let _progress = t.spinner("making up weights".into());
    decoder.with_random_weights()
}

/// The files beside a decoder's model that are needed to generate text.
fn beside(model: &Path) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let there = |name: &&str| model.is_dir() && model.join(name).is_file();
    let one = |name: &str| {
        let path = model.join(name);
        let read = wgfc::files::read(&path);
        let read = read.map_err(|m| Error::file_help(&path, m, "make it readable, or move it away"));
        Ok((name.to_owned(), read?))
    };
    wgfc::artefact::BESIDE.into_iter().filter(there).map(one).collect()
}

/// The model compiled for each variant, or a single time if there are no variants.
fn compiled(a: &CompileArgs, file: &ModelFile, options: &Options) -> Result<Bundle, Error> {
    let mut plans = vec![];
    for v in &a.variants {
        let mut options = options.clone();
        options.dims.extend(v.dims.iter().cloned());
        v.features.iter().for_each(|f| f.add(&mut options.profile));
        plans.push((v.name.clone(), file.compile(&options)?));
    }
    if plans.is_empty() {
        plans.push((String::new(), file.compile(options)?));
    }
    Ok(Bundle::new(plans))
}

/// The profile with the target, the features and the bound that the options give.
fn as_asked(profile: DeviceProfile, a: &CompileArgs) -> DeviceProfile {
    let mut profile = match a.target {
        Some(TargetArg::Web) => {
            let DeviceProfile { speeds, longest_dispatch, .. } = profile;
            DeviceProfile { speeds, longest_dispatch, ..DeviceProfile::default() }
        }
        None => profile,
    };
    a.features.iter().for_each(|f| f.add(&mut profile));
    profile.longest_dispatch = a.longest_dispatch.unwrap_or(profile.longest_dispatch);
    profile
}

/// The model compiled for each of several profiles, with the names of plans that `compile` gives and those of the profiles.
fn for_profiles(
    names: &[String],
    a: &CompileArgs,
    options: &Options,
    compile: impl Fn(&Options) -> Result<Bundle, Error>,
) -> Result<Bundle, Error> {
    for (i, name) in names.iter().enumerate() {
        let kind = DeviceProfile::adapter(name);
        if let Some(other) = names[..i].iter().find(|other| DeviceProfile::adapter(other) == kind) {
            let of = kind.map_or("adapters of any kind".to_owned(), |kind| format!("{kind} adapters"));
            return Err(Error::usage(
                format!("the profiles `{other}` and `{name}` are both for {of}"),
                "name one of them, and one of each other kind: portable, discrete, integrated, software",
            ));
        }
    }
    let (mut plans, mut adapters) = (vec![], vec![]);
    for name in names {
        let profile = as_asked(wgfc::cache::read_profile(name)?, a);
        let stem = Path::new(name).file_stem().map_or(name.as_str().into(), |stem| stem.to_string_lossy());
        for Plan { name: plan, program, .. } in compile(&Options { profile, ..options.clone() })?.plans {
            plans.push(match plan.is_empty() {
                true => (stem.to_string(), program),
                false => (format!("{plan}-{stem}"), program),
            });
            adapters.push(DeviceProfile::adapter(name).map(str::to_owned));
        }
    }
    let mut bundle = Bundle::new(plans);
    for (plan, adapter) in bundle.plans.iter_mut().zip(adapters) {
        plan.adapter = adapter;
    }
    Ok(bundle)
}

/// Notes that weights are random, or that there are none to generate.
pub fn say_random_weights(file: &ModelFile, t: &Terminal) {
    if let Some(r) = file.random_weights() {
        let (tensors, bytes) = r.size();
        if tensors > 0 {
            t.note_always(&format!(
                "{tensors} weights ({}) are random: the outputs mean nothing",
                bytes_text(bytes)
            ));
        } else {
            t.note("the model has no external weights; --random-weights changes nothing");
        }
    }
}
