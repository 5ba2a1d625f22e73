//! `wgfc bench`: measures models and, by subcommand, kernels, loops, decoding, perplexity, dispatches,
//! transfers and the compiler's choices.

use super::adapter;
use super::args::{BenchArgs, BenchCommand, BenchDispatchArgs, BenchTransfersArgs};
use super::inside::Cost;
use super::load::{Fixed, Loaded, load};
use super::profile::{self, estimate_json, estimate_text, ns_text};
use super::terminal::Terminal;
use super::trace::{self, Shares};
use super::{inputs, is_program, shown};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use wgfc::inspect::table;
use wgfc::model::device_error;
use wgfc::runtime::overhead::{self, DISPATCHES, DispatchCost, Overhead, WARM_UPS};
use wgfc::runtime::transfers::{self, Transfer};
use wgfc::{Error, Model, ModelFile, Place, Tensor, output};

/// The seconds for which a device is kept busy before measurements, so that its clock rises.
pub const WARM_UP: f64 = 1.0;

/// Measures a model, or runs the benchmark of a subcommand. Returns the exit code.
pub fn main(a: &BenchArgs, t: &Terminal) -> u8 {
    let done = match (&a.what, &a.model) {
        (Some(BenchCommand::Kernels(k)), _) => return super::kernels::main(k, t),
        (Some(BenchCommand::Dispatch(d)), _) => dispatch(d, t),
        (Some(BenchCommand::Transfers(a)), _) => transfers(a, t),
        (Some(BenchCommand::Decode(d)), _) => super::decode::main(d, t),
        (Some(BenchCommand::Perplexity(p)), _) => super::perplexity::main(p, t),
        (Some(BenchCommand::Loops(l)), _) => super::loops::main(l, t),
        (Some(BenchCommand::Regret(r)), _) => super::regret::main(r, t),
        (Some(BenchCommand::Suite(s)), _) => super::suite::main(s, t),
        (Some(BenchCommand::Report(r)), _) => super::suite::report::main(r, t),
        (None, Some(path)) => model(path, a, t),
        (None, None) => Err(Error::usage(
            "nothing to measure",
            "give a model, `decode` or `perplexity` with one, `kernels`, `loops`, `regret` with files, `transfers` or `dispatch`",
        )),
    };
    done.map_or_else(
        |e| {
            t.error(&e);
            e.class().exit_code()
        },
        |()| 0,
    )
}

fn model(path: &Path, a: &BenchArgs, t: &Terminal) -> Result<(), Error> {
    if a.check && is_program(path) {
        return Err(Error::usage(
            "--check has no effect on a compiled folder",
            "give the model it was compiled from, which the evaluator can run",
        ));
    }
    let place = Place::Device(adapter::choice(&a.adapter));
    let loaded = load(path, &a.data, &a.compile, place, &a.adapter, &a.cache, t)?;
    t.warnings(loaded.model.warnings());
    let tensors = inputs::make_free(
        loaded.model.inputs(),
        &a.compile.dims,
        &loaded.open(&a.data),
        a.compile.memory_limit,
        t,
    )?;
    let cost = loaded.cost(&tensors, t);
    let Loaded { mut model, fixed, profile: chosen_for, .. } = loaded;
    let mut warm_up = 1;
    {
        // The profile adds one more run.
        let bar = t.bar(format!("warming up {}", shown(path)), u64::from(a.warm_up), false);
        let started = Instant::now();
        // A device that was idle during compilation has a low clock at first.
        let cold = |model: &Model, seconds: f64| {
            seconds < WARM_UP && model.session().is_some_and(|s| !s.gpu().summary().is_software)
        };
        loop {
            let seconds = started.elapsed().as_secs_f64();
            let more = warm_up < a.warm_up || a.warm_up > 1 && cold(&model, seconds);
            if !more || seconds >= a.budget / 4.0 {
                break;
            }
            model.run(&tensors)?;
            bar.at(u64::from(warm_up));
            if warm_up == 1 {
                profile::say_slow(started, t);
            }
            warm_up += 1;
        }
    }
    let profile = profile::take(&mut model, &tensors, a.runs, a.budget, warm_up > 1, t)?;
    let errors = if a.check {
        let _progress = t.spinner("evaluating on the CPU".into());
        let outputs = model.run(&tensors)?;
        Some(compare(path, a, fixed, &tensors, &outputs)?)
    } else {
        None
    };
    if let Some(file) = &a.csv {
        output::write_whole(file, profile::csv(&profile).as_bytes())?;
    }
    let traced = match &a.trace {
        Some(file) => Some(write_trace(file, path, &mut model, &tensors)?),
        None => None,
    };
    let session = model.session().ok_or_else(|| Error::Internal("a profile without a device".into()))?;
    let (place, program) = (&session.gpu().summary().name, session.program());
    if t.json {
        t.print_json(&serde_json::json!({
            "ran_on": place,
            "device_profile": chosen_for,
            "random_weights": a.data.random_weights,
            "dispatches": program.dispatches.len(),
            "kernels": program.kernels.len(),
            "warm_up": warm_up,
            "relative_errors": errors,
            "profile": profile::json(&profile),
            "timeline": traced.as_ref().map(|s| serde_json::json!({
                "runs": TRACED, "ns": s.ns, "processor": s.processor, "device": s.device, "both": s.both,
            })),
            "looking_inside": cost.as_ref().map(Cost::json),
        }));
        return Ok(());
    }
    let mut s = format!(
        "{} on {place}: {} dispatches of {} kernels; {} runs after {} that do not count\n",
        shown(path),
        program.dispatches.len(),
        program.kernels.len(),
        profile.runs,
        warm_up
    );
    if let Some(p) = chosen_for {
        s += &format!("  compiled for the device profile: {p}\n");
    }
    if profile.runs < a.runs as usize {
        s += &format!("  fewer than {} runs: --budget is {} s\n", a.runs, a.budget);
    }
    s += &profile::text(&profile);
    if let (Some(of), Some(file)) = (&traced, &a.trace) {
        s += &format!(
            "\n  {}: {TRACED} runs in {}, submitted without waiting: the processor is at work for {:.0} % of it, the device for {:.0} %, both for {:.0} %\n",
            file.display(),
            ns_text(of.ns),
            100.0 * of.processor,
            100.0 * of.device,
            100.0 * of.both
        );
    }
    s += &cost.map(|c| c.text()).unwrap_or_default();
    for (name, e) in errors.iter().flatten() {
        s += &format!("  {name}: relative error {e:.1e} against the reference evaluator\n");
    }
    s += &profile::by_kernel(&profile);
    t.print(&s);
    Ok(())
}

/// The runs of a timeline.
const TRACED: usize = 5;

/// Writes a timeline to a file.
fn write_trace(
    file: &Path,
    path: &Path,
    model: &mut Model,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<Shares, Error> {
    let named: Vec<(&str, Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let session =
        model.session_for(tensors)?.ok_or_else(|| Error::Internal("a timeline without a device".into()))?;
    let timeline = session.timeline_blocking(&named, TRACED).map_err(device_error)?;
    let text = trace::events(&timeline, &shown(path).to_string(), &session.gpu().summary().name);
    output::write_whole(file, text.as_bytes())?;
    Ok(Shares::of(&timeline))
}

/// ‖a − b‖ / ‖b‖ for each output a and the evaluator's result b.
fn compare(
    path: &Path,
    a: &BenchArgs,
    fixed: Fixed,
    tensors: &BTreeMap<String, Tensor>,
    outputs: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, f64>, Error> {
    let mut file = ModelFile::open(path)?;
    if a.data.random_weights {
        file = file.with_random_weights()?;
    }
    let options = fixed.within(a.compile.options()?);
    let graph = file.import(&options)?.graph;
    let expected = wgfc::ir::eval::evaluate(&graph, tensors)
        .map_err(|e| Error::usage(format!("the model cannot be evaluated: {e}"), "leave --check out"))?;
    let numbers = |t: &Tensor| -> Vec<f64> {
        t.scalars().unwrap_or_default().into_iter().map(wgfc::ir::Scalar::as_f64).collect()
    };
    let mut errors = BTreeMap::new();
    for (port, want) in wgfc::value_info::graph_values(&graph, &graph.outputs).iter().zip(&expected) {
        let Some(got) = outputs.get(&port.name) else { continue };
        let (got, want) = (numbers(got), numbers(want));
        let norm = |v: f64| v * v;
        let difference: f64 = got.iter().zip(&want).map(|(x, y)| norm(x - y)).sum();
        let size: f64 = want.iter().copied().map(norm).sum();
        errors.insert(port.name.clone(), (difference / size.max(f64::MIN_POSITIVE)).sqrt());
    }
    Ok(errors)
}

fn dispatch(a: &BenchDispatchArgs, t: &Terminal) -> Result<(), Error> {
    let gpu = adapter::open(&a.adapter, t)?;
    let name = &gpu.summary().name;
    let cost = {
        let _progress = t.spinner(format!("measuring {name}"));
        overhead::measure_blocking(&gpu, a.iterations as usize).map_err(device_error)?
    };
    if let Some(file) = &a.csv {
        output::write_whole(file, csv(&cost).as_bytes())?;
    }
    if t.json {
        let mode = |c: &DispatchCost| {
            serde_json::json!({
                "mode": c.mode.name(),
                "wall_ns": estimate_json(&c.wall_ns),
                "record_ns": estimate_json(&c.record_ns),
                "submit_ns": estimate_json(&c.submit_ns),
                "gpu_ns": c.gpu_ns.as_ref().map(estimate_json),
            })
        };
        t.print_json(&serde_json::json!({
            "ran_on": name,
            "iterations": cost.iterations,
            "dispatches": DISPATCHES,
            "warm_ups": WARM_UPS,
            "modes": cost.modes.iter().map(mode).collect::<Vec<_>>(),
            "single_op_over_sequential": cost.overstatement(),
        }));
        return Ok(());
    }
    let heading = ["one dispatch", "wall time", "95% confidence", "recording", "submission", "on the GPU"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for c in &cost.modes {
        let [wall, interval] = estimate_text(Some(&c.wall_ns));
        rows.push(vec![
            c.mode.name().to_owned(),
            wall,
            interval,
            ns_text(c.record_ns.median),
            ns_text(c.submit_ns.median),
            c.gpu_ns.as_ref().map_or("-".into(), |e| ns_text(e.median)),
        ]);
    }
    let mut s = format!(
        "{name}: medians of {} iterations of {DISPATCHES} dispatches, after {WARM_UPS} that do not count\n\n{}",
        cost.iterations,
        table(&rows, &[false, true, true, true, true, true])
    );
    if let Some(times) = cost.overstatement() {
        s += &format!(
            "\n  single-op : sequential = {times:.1} : 1; if each dispatch is waited for, it appears to take that much longer than it does\n"
        );
    }
    t.print(&s);
    Ok(())
}

fn transfers(a: &BenchTransfersArgs, t: &Terminal) -> Result<(), Error> {
    let gpu = adapter::open(&a.adapter, t)?;
    let name = &gpu.summary().name;
    let all = {
        let _progress = t.spinner(format!("measuring {name}"));
        transfers::measure_blocking(&gpu, a.samples as usize).map_err(device_error)?
    };
    if t.json {
        let one = |m: &Transfer| {
            serde_json::json!({
                "bytes": m.bytes,
                "host_ns": estimate_json(&m.host_ns),
                "upload_ns": estimate_json(&m.upload_ns),
                "read_ns": estimate_json(&m.read_ns),
            })
        };
        t.print_json(
            &serde_json::json!({ "ran_on": name, "sizes": all.iter().map(one).collect::<Vec<_>>() }),
        );
        return Ok(());
    }
    let heading = ["tensor", "host busy", "uploaded in", "", "read back in", ""];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for m in &all {
        let rate = |ns: f64| format!("{:.2} GB/s", m.bytes as f64 / ns);
        rows.push(vec![
            wgfc::inspect::bytes_text(m.bytes),
            ns_text(m.host_ns.median),
            ns_text(m.upload_ns.median),
            rate(m.upload_ns.median),
            ns_text(m.read_ns.median),
            rate(m.read_ns.median),
        ]);
    }
    let table = table(&rows, &[true; 6]);
    t.print(&format!("{name}: medians of {} samples\n\n{table}", a.samples));
    Ok(())
}

fn csv(cost: &Overhead) -> String {
    let mut s = "mode,wall_ns,wall_ns_low,wall_ns_high,record_ns,submit_ns,gpu_ns\n".to_owned();
    for c in &cost.modes {
        let w = &c.wall_ns;
        let gpu = c.gpu_ns.as_ref().map_or(String::new(), |e| e.median.to_string());
        s += &format!(
            "\"{}\",{},{},{},{},{},{gpu}\n",
            c.mode.name(),
            w.median,
            w.low,
            w.high,
            c.record_ns.median,
            c.submit_ns.median
        );
    }
    s
}
