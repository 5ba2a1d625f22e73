//! `wgfc compile`.

use super::adapter::choice;
use super::args::{CompileArgs, TargetArg, VariantArg, distinct};
use super::terminal::Terminal;
use super::{inside, shown};
use std::collections::BTreeSet;
use wgfc::compiler::DeviceProfile;
use wgfc::inspect::bytes_text;
use wgfc::ir::bundle::Plan;
use wgfc::model::{device_error, device_profile};
use wgfc::runtime::Gpu;
use wgfc::source::ModelFile;
use wgfc::{Bundle, Cache, Error, Options, Program, SaveOptions};

/// Compiles a model into a folder.
pub fn main(a: &CompileArgs, t: &Terminal) -> Result<(), Error> {
    let started = std::time::Instant::now();
    let mut file = ModelFile::open(&a.model)?;
    if a.random_weights {
        let _progress = t.spinner("making up weights".into());
        file = file.with_random_weights()?;
    }
    say_random_weights(&file, t);
    let mut profile = "portable".to_owned();
    let mut options = Options { graph_only: a.graph_only, ..a.compile.options()? };
    if a.for_device || a.adapter.adapter.is_some() {
        let gpu = Gpu::request_blocking(&choice(&a.adapter)).map_err(device_error)?;
        let (source, speeds) = super::kept::speeds(Cache::of_user().as_ref(), &gpu, t);
        t.note(&format!("compiling for the limits of {}, device profile: {source}", gpu.summary().name));
        options.profile = DeviceProfile { speeds, ..device_profile(gpu.profile(), &options.profile) };
        profile = source.to_string();
    } else if let Some(name) = &a.profile {
        options.profile = wgfc::cache::read_profile(name)?;
        profile.clone_from(name);
    }
    if let Some(file) = &a.tuning {
        options.tuning = wgfc::cache::read_tuning(file)?;
    }
    if let Some(TargetArg::Web) = a.target {
        options.profile = DeviceProfile { speeds: options.profile.speeds, ..DeviceProfile::default() };
    }
    a.features.iter().for_each(|f| f.add(&mut options.profile));
    distinct(&a.variants)?;
    let programs = {
        let _progress = t.spinner(format!("compiling {}", shown(&a.model)));
        compiled(a, &file, &options)?
    };
    let Some((_, program)) = programs.first() else {
        return Err(Error::Internal("nothing was compiled".into()));
    };
    let (program, cost) = (program.clone(), inside::cost(&file, &options, program, &a.compile.dims, t));
    let bundle = Bundle::new(program.producer.clone(), programs);
    let warnings: BTreeSet<&String> = bundle.plans.iter().flat_map(|p| &p.program.stats.warnings).collect();
    t.warnings(&warnings.into_iter().cloned().collect::<Vec<_>>());
    {
        let bar = t.bar("writing weights".into(), 0, true);
        let save = SaveOptions {
            force: a.force,
            progress: Some(&|done, all| bar.at_of(done, all)),
            shard_size: a.shard_size,
            model: a.weights_from_model.then_some(&file),
        };
        match a.variants.is_empty() {
            true => wgfc::save(&program, &a.output, &save)?,
            false => wgfc::save_bundle(&bundle, &a.output, &save)?,
        }
    }
    let weights: usize = bundle.store().into_iter().filter_map(|(_, w)| w.byte_len()).sum();
    let kernels = bundle.kernels().len();
    let seconds = started.elapsed().as_secs_f64();
    if t.json {
        let plan = |p: &Plan| {
            serde_json::json!({
                "name": p.name,
                "needs": p.needs,
                "kernels": p.program.kernels.len(),
                "dispatches": p.program.dispatches.len(),
                "symbols": p.program.symbols,
            })
        };
        t.print_json(&serde_json::json!({
            "output": a.output.display().to_string(),
            "device_profile": profile,
            "nodes": program.stats.model_nodes,
            "kernels": kernels,
            "dispatches": program.dispatches.len(),
            "symbols": program.symbols,
            "plans": bundle.plans.iter().map(plan).collect::<Vec<_>>(),
            "weight_bytes": weights,
            "weights_absent": program.stats.weights_absent,
            "random_weights": a.random_weights,
            "warnings": program.stats.warnings,
            "seconds": seconds,
            "looking_inside": cost.as_ref().map(inside::Cost::json),
        }));
        return Ok(());
    }
    let weights = bytes_text(weights as u64);
    let absent =
        if program.stats.weights_absent { " (others absent: can be inspected, not run)" } else { "" };
    let output = a.output.display();
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
    if let Some(c) = cost {
        t.print(&c.text());
    }
    Ok(())
}

/// The model compiled once for each variant, or once.
fn compiled(a: &CompileArgs, file: &ModelFile, options: &Options) -> Result<Vec<(String, Program)>, Error> {
    if a.variants.is_empty() {
        return Ok(vec![(String::new(), file.compile(options)?)]);
    }
    let one = |v: &VariantArg| {
        let mut options = options.clone();
        options.dims.extend(v.dims.iter().cloned());
        v.features.iter().for_each(|f| f.add(&mut options.profile));
        Ok((v.name.clone(), file.compile(&options)?))
    };
    a.variants.iter().map(one).collect()
}

/// Warns that weights are random.
pub fn say_random_weights(file: &ModelFile, t: &Terminal) {
    if let Some(r) = file.random_weights() {
        let (tensors, bytes) = r.size();
        if tensors > 0 {
            t.note_always(&format!(
                "{tensors} weights ({}) are made up: the outputs mean nothing",
                bytes_text(bytes)
            ));
        } else {
            t.note("the model has no external weights; --random-weights changes nothing");
        }
    }
}
