//! `wgfc compile`.

use super::adapter::choice;
use super::args::CompileArgs;
use super::terminal::Terminal;
use super::{inside, shown};
use wgfc::compiler::DeviceProfile;
use wgfc::inspect::bytes_text;
use wgfc::model::{device_error, device_profile};
use wgfc::runtime::Gpu;
use wgfc::source::ModelFile;
use wgfc::{Cache, Error, Options, SaveOptions};

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
    let program = {
        let _progress = t.spinner(format!("compiling {}", shown(&a.model)));
        file.compile(&options)?
    };
    t.warnings(&program.stats.warnings);
    {
        let bar = t.bar("writing weights".into(), 0, true);
        let save = SaveOptions { force: a.force, progress: Some(&|done, all| bar.at_of(done, all)) };
        wgfc::save(&program, &a.output, &save)?;
    }
    let cost = inside::cost(&file, &options, &program, &a.compile.dims, t);
    let weights: usize = program.weights.values().filter_map(|w| w.bytes()).map(<[u8]>::len).sum();
    if t.json {
        t.print_json(&serde_json::json!({
            "output": a.output.display().to_string(),
            "device_profile": profile,
            "nodes": program.stats.model_nodes,
            "kernels": program.kernels.len(),
            "dispatches": program.dispatches.len(),
            "symbols": program.symbols,
            "weight_bytes": weights,
            "weights_absent": program.stats.weights_absent,
            "random_weights": a.random_weights,
            "warnings": program.stats.warnings,
            "seconds": started.elapsed().as_secs_f64(),
            "looking_inside": cost.as_ref().map(inside::Cost::json),
        }));
        return Ok(());
    }
    t.result(&format!(
        "{}: {} nodes in {} dispatches of {} kernels, {} of weights{}, {:.2} s",
        a.output.display(),
        program.stats.model_nodes,
        program.dispatches.len(),
        program.kernels.len(),
        bytes_text(weights as u64),
        if program.stats.weights_absent { " (others absent: can be inspected, not run)" } else { "" },
        started.elapsed().as_secs_f64()
    ));
    if let Some(c) = cost {
        t.print(&c.text());
    }
    Ok(())
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
