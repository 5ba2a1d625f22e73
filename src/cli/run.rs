//! `wgfc run`.

use super::adapter;
use super::args::{AdapterArgs, CacheArgs, CompileOptions, DataArgs, PrecisionArg, RunArgs};
use super::compile::{in_shell, say_random_weights};
use super::device_cache::DeviceCache;
use super::inside::{Cost, cost};
use super::terminal::{Progress, Terminal};
use super::{given_dims, indices, inputs, is_program, profile, shown};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use wgfc::artefact::{ReadOptions, load_bundle_with};
use wgfc::compiler::Diagnostic;
use wgfc::compiler::device::Speeds;
use wgfc::compiler::import::fx::is_archive;
use wgfc::compiler::import::shape_inputs;
use wgfc::generate::Setup;
use wgfc::inspect::{Roof, Summary, bytes_text, table, time_text};
use wgfc::model::{Opened, WhyCpu};
use wgfc::overflow::overflow;
use wgfc::runtime::kernel::Checks;
use wgfc::runtime::{Gpu, Profile};
use wgfc::value_info::ValueInfo;
use wgfc::{Error, Model, ModelFile, Options, Place, Tensor, npy};

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

/// The progress of the evaluator as text.
fn evaluated(done: u64, nodes: u64, iterations: u64) -> String {
    let loops = if iterations > 0 { format!(", {iterations} iterations of loops") } else { String::new() };
    format!("node {done} of {nodes}{loops}")
}

/// The most seconds for which `--profile` repeats runs.
const PROFILE_SECONDS: f64 = 20.0;

/// The result of [`load`].
pub struct Loaded {
    /// The model, ready to run.
    pub model: Model,
    /// The sizes and input values for which the model was compiled.
    pub fixed: Fixed,
    /// The origin of the device speeds with which the model was compiled; `None` if nothing was compiled.
    pub profile: Option<String>,
    /// The model and the options with which it was compiled; `None` if nothing was compiled.
    pub source: Option<Box<(ModelFile, Options)>>,
}

/// The sizes and input values for which a model is compiled.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// Dimensions and their sizes.
    pub dims: BTreeMap<String, i64>,
    /// Inputs that are constants of the compiled model.
    pub values: BTreeMap<String, Tensor>,
}

impl Fixed {
    /// The options with these sizes and values.
    pub fn within(self, options: Options) -> Options {
        Options { dims: self.dims, values: self.values, ..options }
    }

    /// A description in words.
    fn text(&self, sizes: bool) -> String {
        let dims: Vec<String> = self.dims.iter().map(|(n, v)| format!("{n} = {v}")).collect();
        let names: Vec<&str> = self.values.keys().map(String::as_str).collect();
        let mut s = vec![];
        if sizes && !dims.is_empty() {
            s.push(format!("the sizes of the inputs, {}", dims.join(", ")));
        }
        if !names.is_empty() {
            s.push(format!("the value of {}", names.join(", ")));
        }
        s.join(" and ")
    }
}

impl Loaded {
    /// The given data, without the inputs that are constants of the compiled model.
    pub fn open(&self, data: &DataArgs) -> DataArgs {
        let is_fixed = |text: &String| {
            let name = |n: &String| text.strip_prefix(n.as_str()).is_some_and(|rest| rest.starts_with('='));
            self.fixed.values.keys().any(name)
        };
        DataArgs { inputs: data.inputs.iter().filter(|i| !is_fixed(i)).cloned().collect(), ..data.clone() }
    }

    /// The work of a run with these inputs; `None` if it runs on the CPU.
    fn work(&self, tensors: &BTreeMap<String, Tensor>) -> Option<Work> {
        let session = self.model.session()?;
        let program = session.program();
        let dims = wgfc::value_info::check_inputs(self.model.inputs(), tensors).ok()?;
        let dims: Vec<(String, i64)> = dims.into_iter().collect();
        let summary = Summary::new(program, &dims, Roof::of(&Speeds::PORTABLE, None, None)).ok()?;
        Some(Work { nodes: program.stats.model_nodes, kernels: program.kernels.len(), summary })
    }

    /// The cost of taps and extra inputs, at the dimensions of these inputs.
    pub fn cost(&self, tensors: &BTreeMap<String, Tensor>, t: &Terminal) -> Option<Cost> {
        let (file, options) = &**self.source.as_ref()?;
        let session = self.model.session()?;
        let dims = wgfc::value_info::check_inputs(self.model.inputs(), tensors).ok()?;
        let profile = options.profile.with_limits(session.gpu().profile());
        let dims: Vec<(String, i64)> = dims.into_iter().collect();
        cost(file, &Options { profile, ..options.clone() }, session.program(), &dims, t)
    }
}

/// Loads a model or a compiled program, and notes what is fixed. A model that cannot be compiled for all sizes is compiled
/// for the sizes of the inputs, and for the values of inputs that decide shapes or branches.
pub fn load(
    path: &Path,
    data: &DataArgs,
    compile: &CompileOptions,
    place: Place,
    adapter: &AdapterArgs,
    cache_args: &CacheArgs,
    t: &Terminal,
) -> Result<Loaded, Error> {
    let random_weights = data.random_weights;
    if is_program(path) {
        refuse_compile_options(compile, random_weights)?;
        let bundle = {
            let _progress = t.spinner(format!("loading {}", shown(path)));
            let read = ReadOptions { memory_limit: compile.memory_limit, ..ReadOptions::default() };
            load_bundle_with(path, &read)?
        };
        let gpu = place.open_for_program(path)?;
        adapter::say_software(&gpu, adapter, t);
        let cache = DeviceCache::open(cache_args, &gpu, t);
        let _progress = compiling(&gpu, path, t);
        let checks = if data.trust { Checks::Trusted } else { Checks::default() };
        let model = Model::of_bundle(gpu, &bundle, path, checks)?;
        for p in model.plans().into_iter().flat_map(|p| p.left_out()) {
            t.note(&format!("not run: {p}"));
        }
        cache.save(t);
        return Ok(Loaded { model, fixed: Fixed::default(), profile: None, source: None });
    }
    if data.trust {
        return Err(Error::usage(
            "--trust has no effect on a model: its kernels are proven to need no checks, or checked",
            "give it with a folder that `wgfc compile` wrote",
        ));
    }
    let mut file = ModelFile::open(path)?;
    if random_weights {
        let _progress = t.spinner("making up weights".into());
        file = file.with_random_weights()?;
    }
    say_random_weights(&file, t);
    let mut options = compile.options()?;
    let opened = place.open()?;
    match &opened {
        Opened::Gpu(gpu) => adapter::say_software(gpu, adapter, t),
        Opened::Cpu(why) => say_cpu(why, t),
    }
    let mut profile = None;
    let mut make = |options: &mut Options| match &opened {
        Opened::Cpu(_) => {
            let _progress = t.spinner(format!("reading {}", shown(path)));
            Model::on_cpu(&file, options)
        }
        Opened::Gpu(gpu) => {
            let _progress = compiling(gpu, path, t);
            let mut cache = DeviceCache::open(cache_args, gpu, t);
            options.tuning = std::mem::take(&mut cache.tuning);
            options.profile.speeds = cache.speeds;
            profile = Some(cache.source.to_string());
            Model::compile_for(gpu.clone(), &file, options).inspect(|_| cache.save(t))
        }
    };
    let mut made = make(&mut options);
    if let Err(Error::Compile { errors, .. }) = &made
        && let Some((dims, tensors)) = given_dims::of_inputs(&file, &options, &compile.dims, data)
    {
        let why = errors.0.first().map(|d| d.message.clone()).unwrap_or_default();
        let sizes = dims != options.dims;
        if sizes {
            options.dims = dims;
            made = make(&mut options);
        }
        while let Err(Error::Compile { .. }) = &made {
            let more: Vec<(String, Tensor)> = shape_inputs(file.bytes(), &file, &options)
                .into_iter()
                .filter(|n| !options.values.contains_key(n))
                .filter_map(|n| tensors.get_key_value(&n).map(|(n, v)| (n.clone(), v.clone())))
                .collect();
            if more.is_empty() {
                break;
            }
            options.values.extend(more);
            made = make(&mut options);
        }
        if made.is_ok() {
            let mut new = Fixed { dims: options.dims.clone(), values: options.values.clone() };
            new.values.retain(|n, _| tensors.contains_key(n));
            t.note_always(&format!("compiled for {}: {why}", new.text(sizes)));
        }
    }
    let model = made.map_err(|e| without_weights(e, &file))?;
    let fixed = Fixed { dims: options.dims.clone(), values: options.values.clone() };
    Ok(Loaded { model, fixed, profile, source: Some(Box::new((file, options))) })
}

/// Refuses compile options, which have no effect on a compiled folder.
pub(super) fn refuse_compile_options(compile: &CompileOptions, random_weights: bool) -> Result<(), Error> {
    let mut unused = Vec::new();
    unused.extend(random_weights.then_some("--random-weights"));
    unused.extend((!compile.taps.is_empty()).then_some("--tap"));
    unused.extend((!compile.added.is_empty()).then_some("--add"));
    unused.extend((!compile.replaced.is_empty()).then_some("--replace"));
    unused.extend((!compile.fixed.is_empty()).then_some("--fix"));
    unused.extend((!compile.expect.sizes.is_empty()).then_some("--expect"));
    unused.extend((compile.precision.precision != PrecisionArg::F32).then_some("--precision"));
    unused.extend(compile.precision.weights.is_some().then_some("--weights"));
    unused.extend((!compile.precision.keep_f32.is_empty()).then_some("--keep-f32"));
    if unused.is_empty() {
        return Ok(());
    }
    Err(Error::usage(
        format!("{} has no effect on a compiled folder", unused.join(" and ")),
        "give it to `wgfc compile`, or give the model itself",
    ))
}

/// Shows progress while a model's kernels are compiled on the device.
pub(super) fn compiling(gpu: &Gpu, path: &Path, t: &Terminal) -> Progress {
    compiling_as(gpu, format!("compiling {}", shown(path)), t)
}

/// [`compiling`] with another text.
pub(super) fn compiling_as(gpu: &Gpu, what: String, t: &Terminal) -> Progress {
    let gpu = gpu.clone();
    t.watch(what, move || gpu.compiled())
}

/// Adds advice to an error about missing weights.
pub(super) fn without_weights(e: Error, file: &ModelFile) -> Error {
    let Error::Compile { path, mut errors } = e else { return e };
    let missing = file.missing();
    let about = |d: &&mut Diagnostic| missing.iter().any(|m| d.message.contains(&format!("`{m}`")));
    if let Some(first) = errors.0.iter_mut().find(about) {
        let missing = super::some_of(&missing);
        first.help = Some(if is_archive(file.bytes()) {
            format!(
                "save it again with {missing}; to run it all the same with made-up weights, give --random-weights"
            )
        } else {
            format!(
                "put {missing} beside the model; to run it all the same with made-up weights, give --random-weights"
            )
        });
    }
    Error::Compile { path, errors }
}

/// Notes that the CPU's evaluator runs the model, and why.
fn say_cpu(why: &WhyCpu, t: &Terminal) {
    let (why, other) = match why {
        WhyCpu::Asked => ("as --cpu asks".to_owned(), ""),
        WhyCpu::NoAdapter => ("no GPU adapter was found".to_owned(), ""),
        WhyCpu::Software { adapter } => (
            format!("{adapter} is a software adapter, on which models mostly take longer"),
            "; --adapter software uses it",
        ),
    };
    t.note_always(&format!(
        "{why}: running on the CPU with the reference evaluator, no kernel is used{other}"
    ));
}

/// The name of the device or the CPU that runs the model.
fn where_it_runs(model: &Model) -> String {
    model.session().map_or_else(|| "the CPU (reference evaluator)".into(), |s| s.gpu().summary().name.clone())
}

fn read_labels(path: &Path) -> Result<Vec<String>, Error> {
    let bytes = wgfc::files::map_file(path)?;
    let text = std::str::from_utf8((*bytes).as_ref())
        .map_err(|_| Error::file_help(path, "is not text", "give a UTF-8 file with one name a line"))?;
    Ok(text.trim_end().lines().map(|l| l.trim().to_owned()).collect())
}

fn write_outputs(
    dir: Option<&Path>,
    ports: &[ValueInfo],
    outputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<String>, Error> {
    let Some(dir) = dir else { return Ok(vec![]) };
    let mut written: Vec<String> = Vec::new();
    for port in ports {
        let Some(tensor) = outputs.get(&port.name) else { continue };
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
        let stem: String = port.name.chars().map(plain).collect();
        let stem = stem.trim_start_matches('.');
        let mut path = dir.join(format!("{stem}.npy"));
        let mut n = 1;
        while written.contains(&path.display().to_string()) {
            n += 1;
            path = dir.join(format!("{stem}_{n}.npy"));
        }
        npy::write(tensor, &path)?;
        written.push(path.display().to_string());
    }
    Ok(written)
}

/// Statistics of a tensor's values; each of them is NaN if one of the values is.
struct Digest {
    min: f64,
    mean: f64,
    max: f64,
    not_finite: usize,
}

fn digest(t: &Tensor) -> Option<Digest> {
    let values: Vec<f64> = match t.dtype {
        wgfc::DType::F32 => t.to_f32s()?.into_iter().map(f64::from).collect(),
        _ => t.scalars()?.into_iter().map(wgfc::ir::Scalar::as_f64).collect(),
    };
    let not_finite = values.iter().filter(|v| !v.is_finite()).count();
    let unless_nan = |v: f64| if values.iter().any(|v| v.is_nan()) { f64::NAN } else { v };
    (!values.is_empty()).then(|| Digest {
        min: unless_nan(values.iter().copied().fold(f64::INFINITY, f64::min)),
        mean: unless_nan(values.iter().sum::<f64>() / values.len() as f64),
        max: unless_nan(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        not_finite,
    })
}

/// A number with up to six significant digits.
pub fn number(v: f64) -> String {
    if v == v.trunc() && v.abs() < 1e6 {
        return format!("{v}");
    }
    match v.abs() {
        _ if !v.is_finite() => v.to_string(),
        a if (1e-3..1e6).contains(&a) => {
            let digits = (5 - a.log10().floor() as i32).max(0) as usize;
            let s = format!("{v:.digits$}");
            if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s }
        }
        _ => format!("{v:.4e}"),
    }
}

fn first_values(t: &Tensor, n: usize) -> Vec<f64> {
    let head = t.numel().min(n);
    let few = Tensor { shape: vec![head], ..t.clone() };
    wgfc::ir::storage::decode(few.dtype, t.bytes().unwrap_or_default(), head)
        .into_iter()
        .map(|s| s.as_f64())
        .collect()
}

fn outputs_text(ports: &[ValueInfo], outputs: &BTreeMap<String, Tensor>) -> String {
    let mut rows = vec![["output", "type", "min", "mean", "max", "first values"].map(String::from).to_vec()];
    let mut remarks = String::new();
    for port in ports {
        let Some(t) = outputs.get(&port.name) else { continue };
        let shape: Vec<String> = t.shape.iter().map(ToString::to_string).collect();
        let mut row = vec![port.name.clone(), format!("{}[{}]", t.dtype, shape.join(", "))];
        match digest(t) {
            Some(d) => {
                row.extend([number(d.min), number(d.mean), number(d.max)]);
                if d.not_finite > 0 {
                    remarks += &format!("  {}: {} values are NaN or infinite\n", port.name, d.not_finite);
                }
            }
            None => row.extend(["-", "-", "-"].map(String::from)),
        }
        let first: Vec<String> = first_values(t, 4).into_iter().map(number).collect();
        row.push(first.join(", ") + if t.numel() > 4 { ", …" } else { "" });
        rows.push(row);
    }
    table(&rows, &[false, false, true, true, true, false]) + &remarks
}

/// The rows and classes of an output [N, classes]. Further axes of extent 1 may follow, as after pooling.
fn rows_of_classes(t: &Tensor) -> Option<(usize, usize)> {
    match t.shape[..] {
        [rows, classes, ref rest @ ..] if t.dtype.is_float() && rest.iter().all(|n| *n == 1) => {
            Some((rows, classes))
        }
        _ => None,
    }
}

/// A note if no output has as many classes as there are labels, so that the labels are not used.
fn unused_labels(labels: &[String], outputs: &BTreeMap<String, Tensor>) -> Option<String> {
    let has = |t: &Tensor| rows_of_classes(t).is_some_and(|(_, classes)| classes == labels.len());
    if outputs.values().any(has) {
        return None;
    }
    let shapes: Vec<String> = outputs.iter().map(|(name, t)| format!("`{name}` is {:?}", t.shape)).collect();
    Some(format!(
        "--labels names {} classes, and no output is [N, {0}] of a float type: {}",
        labels.len(),
        shapes.join(", ")
    ))
}

/// The best classes of each row of a float output [N, classes]. Labels are used only if their number is that of the classes.
fn best_classes(t: &Tensor, labels: Option<&[String]>, top: usize) -> Vec<Vec<(usize, f32, Option<String>)>> {
    let Some((rows, classes)) = rows_of_classes(t) else { return vec![] };
    let labels = labels.filter(|l| l.len() == classes);
    let enough = classes >= 10 || labels.is_some();
    if !enough || classes == 0 || rows == 0 || rows > 64 || top == 0 {
        return vec![];
    }
    let values = t.to_f32s().unwrap_or_default();
    values
        .chunks_exact(classes)
        .map(|row| {
            let mut order: Vec<usize> = (0..classes).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            let label = |i: usize| labels.and_then(|l| l.get(i).cloned());
            order.into_iter().take(top).map(|i| (i, row[i], label(i))).collect()
        })
        .collect()
}

/// Whether the values of a row are probabilities, as a softmax makes them.
fn are_shares(row: &[f32]) -> bool {
    row.iter().all(|v| (0.0..=1.0).contains(v)) && (row.iter().sum::<f32>() - 1.0).abs() < 1e-3
}

fn classes_text(name: &str, t: &Tensor, labels: Option<&[String]>, top: usize) -> String {
    let classes = rows_of_classes(t).map_or(1, |(_, classes)| classes.max(1));
    let shares = t.to_f32s().is_some_and(|v| v.chunks_exact(classes).all(are_shares));
    let value = |v: f32| match shares {
        true => format!("{:.2} %", 100.0 * v),
        false => number(f64::from(v)),
    };
    let best = best_classes(t, labels, top);
    let several = best.len() > 1;
    let mut s = String::new();
    for (n, row) in best.iter().enumerate() {
        let of = if several { format!("{name}[{n}]") } else { name.to_owned() };
        s += &format!("\n  top {} of {of}\n", row.len());
        let rows: Vec<Vec<String>> = row
            .iter()
            .map(|(i, v, label)| {
                vec![String::new(), i.to_string(), value(*v), label.clone().unwrap_or_default()]
            })
            .collect();
        s += &table(&rows, &[false, true, true, false]);
    }
    if best.is_empty() { s } else { s + "\n" }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (v, s) in [
            (0.0, "0"),
            (3.0, "3"),
            (0.1, "0.1"),
            (-1.5, "-1.5"),
            (12.345678, "12.3457"),
            (1.23e-7, "1.2300e-7"),
            (187_520.4, "187520"),
            (999_999.9, "1000000"),
        ] {
            assert_eq!(number(v), s);
        }
    }

    #[test]
    fn statistics_over_nan_are_nan() {
        let of = |v: &[f32]| {
            let d = digest(&Tensor::from_f32(vec![v.len()], v)).unwrap();
            ([d.min, d.mean, d.max].map(number), d.not_finite)
        };
        assert_eq!(of(&[1.0, f32::NAN, 3.0]), (["NaN", "NaN", "NaN"].map(String::from), 1));
        assert_eq!(of(&[1.0, f32::INFINITY]), (["1", "inf", "inf"].map(String::from), 1));
        assert_eq!(of(&[1.0, 3.0]), (["1", "2", "3"].map(String::from), 0));
        assert!(digest(&Tensor::from_f32(vec![0], &[])).is_none());
    }

    #[test]
    fn the_best_classes_come_first() {
        let mut v = vec![0.0; 12];
        (v[7], v[3]) = (2.0, 1.0);
        let t = Tensor::from_f32(vec![1, 12], &v);
        let labels: Vec<String> = (0..12).map(|i| format!("class {i}")).collect();
        let best = best_classes(&t, Some(&labels), 2);
        assert_eq!(best, [[(7, 2.0, Some("class 7".to_owned())), (3, 1.0, Some("class 3".to_owned()))]]);
        assert!(best_classes(&Tensor::from_f32(vec![12], &v), None, 5).is_empty());
        let pooled = Tensor::from_f32(vec![1, 12, 1, 1], &v);
        assert_eq!(best_classes(&pooled, Some(&labels), 2), best);
        // Labels of another model are not used, as they would name wrong classes.
        assert_eq!(best_classes(&t, Some(&labels[1..]), 1), [[(7, 2.0, None)]]);
        let outputs = BTreeMap::from([("scores".to_owned(), pooled)]);
        assert_eq!(unused_labels(&labels, &outputs), None);
        let words = unused_labels(&labels[1..], &outputs).unwrap();
        assert!(words.contains("11 classes") && words.contains("`scores` is [1, 12, 1, 1]"), "{words}");
    }
}
