//! The tasks of the suite, in the order in which they run. A task gives the rows of one group.

use super::energy::{Drawn, Meter};
use super::experiments::{self, Evolution, FUNCTIONS, POLICIES, RANKED};
use crate::cli::args::{AdapterArgs, BenchLoopsArgs, BenchSuiteArgs, LoopForm};
use crate::cli::bench::WARM_UP;
use crate::cli::device_cache::DeviceCache;
use crate::cli::inputs::random_inputs;
use crate::cli::kernels::list::{self, Problem};
use crate::cli::kernels::measure::{How, Model as Kernel, measure};
use crate::cli::loops::measure as loops;
use crate::cli::loops::workloads::{Size, WORKLOADS, Workload};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use wgfc::compiler::DeviceProfile;
use wgfc::compiler::options::Precision;
use wgfc::generate::{Generator, GeneratorOptions, Request};
use wgfc::model::device_error;
use wgfc::runtime::profile::Pace;
use wgfc::runtime::stats::Estimate;
use wgfc::runtime::{Gpu, measure as device, overhead, transfers};
use wgfc::suite::{Better, Reading, Unit};
use wgfc::{Decoder, Error, Model, ModelFile, Options, Tensor, Trainer, Training, random, speeds};

/// The time in nanoseconds of a sample of a kernel.
const SAMPLE: f64 = 3e6;
/// The first tokens, which come with the prompt and fill what runs ahead.
pub const FILLING: usize = 4;
/// The most work of a kernel: operations plus bytes. Sizes are halved until it is not more.
const WORK: u64 = 20_000_000_000;
const LITTLE_WORK: u64 = 20_000_000;
/// The seconds in which a model is measured in one pass, and those of the short suite.
const SECONDS: f64 = 6.0;
const FEW_SECONDS: f64 = 1.0;
/// Values of symbolic dimensions.
type Dims = &'static [(&'static str, i64)];
/// The models, with the values of their symbolic dimensions.
const MODELS: [(&str, &[u8], Dims); 3] = [
    ("mobilenetv2", include_bytes!("../../../fixtures/mobilenetv2.onnx"), &[]),
    ("resnet50", include_bytes!("../../../fixtures/resnet50.onnx"), &[]),
    (
        "bert-base 1 x 128",
        include_bytes!("../../../fixtures/bert-base.onnx"),
        &[("seq", 128), ("sequence", 128), ("sequence_length", 128)],
    ),
];
/// Decoders: one of two narrow layers for software adapters, one of two layers for the short suite, and whole ones.
const SMALL_DECODER: &[u8] = include_bytes!("../../../fixtures/small/decoder/model.onnx");
const SHORT_DECODER: &[u8] = include_bytes!("../../../fixtures/qwen2-2l.onnx");
const DECODER: &[u8] = include_bytes!("../../../fixtures/qwen2.5-0.5b.onnx");
const DECODER_4_BITS: &[u8] = include_bytes!("../../../fixtures/qwen2.5-0.5b-q4f16.onnx");
/// Large decoders by their configurations, and whether they are measured with the levels of fusion alone.
const LARGE: [(&str, &[u8], bool); 2] = [
    ("qwen2.5-1.5b", include_bytes!("../../../fixtures/configs/qwen2.5-1.5b.json"), false),
    ("phi-3-mini", include_bytes!("../../../fixtures/configs/phi-3-mini.json"), true),
];
/// A training step with Adam.
pub struct Step {
    name: &'static str,
    program: &'static [u8],
    /// The numbers of a row of data.
    width: usize,
    /// The rows of a step, and those where models are small.
    batch: [usize; 2],
}
/// A sparse autoencoder, and a renderer whose Gaussians learn a picture of 256 by 256 pixels.
const STEPS: [Step; 2] = [
    Step {
        name: "autoencoder 768 x 12288",
        program: include_bytes!("../../../fixtures/torch/sae_step.pt2"),
        width: 768,
        batch: [4096, 16],
    },
    Step {
        name: "256 Gaussians",
        program: include_bytes!("../../../fixtures/torch/gaussians_step.pt2"),
        width: 5,
        batch: [65_536, 256],
    },
];

/// The device of the tasks, and their settings.
pub struct Context {
    pub gpu: Gpu,
    pub cache: DeviceCache,
    pub args: BenchSuiteArgs,
    meter: Result<Meter, String>,
    /// A folder for models that are opened by their path, and for records of other processes.
    pub folder: tempfile::TempDir,
}

/// A part of the suite.
pub struct Task {
    /// Its name, which begins with the group of its rows.
    pub name: String,
    what: What,
}

enum What {
    Device,
    Dispatch,
    Transfers,
    Kernels(Vec<Problem>),
    Model(&'static str, &'static [u8], Dims),
    Decode(&'static str, &'static [u8], Precision),
    Loop(&'static Workload),
    Fusion(&'static str, &'static [u8], bool),
    Narrow,
    Steering,
    Evolution(&'static Evolution),
    Diffusion(&'static str, Precision),
    Crossover,
    Processes,
    Ranks(&'static Workload),
    Training(&'static Step),
    Rest,
}

impl Context {
    /// A context with its temporary folder.
    pub fn new(gpu: Gpu, cache: DeviceCache, a: &BenchSuiteArgs) -> Result<Context, Error> {
        let folder = tempfile::tempdir().map_err(|e| {
            Error::usage(format!("no temporary folder can be made: {e}"), "free some space there")
        })?;
        let meter = Meter::of(&gpu.summary().name, gpu.summary().is_software);
        Ok(Context { gpu, cache, args: a.clone(), meter, folder })
    }

    fn software(&self) -> bool {
        self.gpu.summary().is_software
    }
    /// Whether models are small and repetitions few.
    pub fn small(&self) -> bool {
        self.args.quick || self.software()
    }
    /// Options for this device with what was measured of it.
    pub fn options(&self) -> Options {
        let profile = DeviceProfile { speeds: self.cache.speeds, ..DeviceProfile::default() };
        Options {
            profile: profile.with_limits(self.gpu.profile()),
            tuning: self.cache.tuning.clone(),
            ..Options::default()
        }
    }
    /// Options of decoders for this device with what was measured of it.
    pub fn generator_options(&self) -> GeneratorOptions {
        GeneratorOptions {
            tuning: self.cache.tuning.clone(),
            speeds: self.cache.speeds,
            ..GeneratorOptions::default()
        }
    }
    /// A decoder with random weights, of an ONNX model or a `config.json`.
    pub fn decoder(&self, bytes: &[u8]) -> Result<Decoder, Error> {
        // A file's format follows from its contents.
        let path: PathBuf = self.folder.path().join("model");
        wgfc::output::write_whole(&path, bytes)?;
        Decoder::open(&path)?.with_random_weights()
    }
    fn seconds(&self) -> f64 {
        if self.args.quick { FEW_SECONDS } else { SECONDS }
    }
}

/// All tasks, in their order.
pub fn all(cx: &Context) -> Result<Vec<Task>, Error> {
    let task = |name: &str, what| Task { name: name.to_owned(), what };
    let mut all = vec![
        task("device", What::Device),
        task("dispatch", What::Dispatch),
        task("transfers", What::Transfers),
    ];
    let most = if cx.small() { LITTLE_WORK } else { WORK };
    let mut families: BTreeMap<String, Vec<Problem>> = BTreeMap::new();
    for problem in list::listed(most)? {
        families.entry(problem.family.clone()).or_default().push(problem);
    }
    for (family, mut problems) in families {
        // The short suite has the first problem of each family.
        problems.truncate(if cx.args.quick { 1 } else { usize::MAX });
        all.push(task(&format!("kernels/{family}"), What::Kernels(problems)));
    }
    for (name, bytes, dims) in MODELS.iter().take(if cx.args.quick { 1 } else { MODELS.len() }) {
        all.push(task(&format!("models/{name}"), What::Model(name, bytes, dims)));
    }
    let decoders: &[(&str, &'static [u8], Precision)] = match (cx.software(), cx.args.quick) {
        (true, _) => &[("2 layers of 24 f32", SMALL_DECODER, Precision::F32)],
        (false, true) => &[("qwen2 2 layers f32", SHORT_DECODER, Precision::F32)],
        (false, false) => &[
            ("qwen2.5-0.5b f32", DECODER, Precision::F32),
            ("qwen2.5-0.5b f16", DECODER, Precision::F16),
            ("qwen2.5-0.5b 4 bits", DECODER_4_BITS, Precision::F32),
        ],
    };
    for (name, bytes, precision) in decoders {
        all.push(task(&format!("decode/{name}"), What::Decode(name, bytes, *precision)));
    }
    for w in WORKLOADS.iter().filter(|w| !cx.args.quick || w.name == "cartpole") {
        all.push(task(&format!("loops/{}", w.name), What::Loop(w)));
    }
    let (name, bytes) = match (cx.software(), cx.args.quick) {
        (true, _) => ("2 layers of 24", SMALL_DECODER),
        (false, true) => ("qwen2 2 layers", SHORT_DECODER),
        (false, false) => ("qwen2.5-0.5b", DECODER),
    };
    all.push(task(&format!("fusion/{name}"), What::Fusion(name, bytes, false)));
    for (name, config, levels_alone) in LARGE.iter().filter(|_| cx.args.large) {
        all.push(task(&format!("fusion/{name}"), What::Fusion(name, config, *levels_alone)));
    }
    all.push(task("narrow", What::Narrow));
    all.push(task("steering", What::Steering));
    let evolutions = POLICIES.iter().chain(FUNCTIONS.iter().flatten());
    for e in evolutions.take(if cx.args.quick { 1 } else { usize::MAX }) {
        all.push(task(&format!("evolution/{}", e.name), What::Evolution(e)));
    }
    let unets: &[(&str, Precision)] = match cx.small() {
        true => &[("narrow f32", Precision::F32)],
        false => &[("860 M parameters f32", Precision::F32), ("860 M parameters f16", Precision::F16)],
    };
    for (name, precision) in unets.iter().filter(|_| !cx.args.quick) {
        all.push(task(&format!("diffusion/{name}"), What::Diffusion(name, *precision)));
    }
    all.push(task("crossover", What::Crossover));
    all.push(task("processes", What::Processes));
    for w in WORKLOADS.iter().filter(|w| RANKED.contains(&w.name) && (!cx.args.quick || w.name == "cartpole"))
    {
        all.push(task(&format!("ranks/{}", w.name), What::Ranks(w)));
    }
    for step in &STEPS {
        all.push(task(&format!("training/{}", step.name), What::Training(step)));
    }
    all.push(task("energy", What::Rest));
    Ok(all)
}

impl Task {
    /// Measures.
    ///
    /// # Errors
    /// A task that the device cannot run, or an error of the device.
    pub fn run(&self, cx: &Context) -> Result<Vec<Reading>, Error> {
        match &self.what {
            What::Device => speeds_of(cx),
            What::Dispatch => dispatch(cx),
            What::Transfers => transfer(cx),
            What::Kernels(problems) => kernels(cx, problems),
            What::Model(name, bytes, dims) => model(cx, name, bytes, dims),
            What::Decode(name, bytes, precision) => decode(cx, name, bytes, *precision),
            What::Loop(w) => simulation(cx, w),
            What::Fusion(name, bytes, levels_alone) => {
                experiments::fusion(cx, name, &cx.decoder(bytes)?, *levels_alone)
            }
            What::Narrow => experiments::narrow(cx),
            What::Steering => experiments::steering(cx),
            What::Evolution(e) => experiments::evolution(cx, e),
            What::Diffusion(name, precision) => experiments::diffusion(cx, name, *precision),
            What::Crossover => experiments::crossover(cx),
            What::Processes => experiments::processes(cx),
            What::Ranks(w) => experiments::ranks(cx, w),
            What::Training(step) => training(cx, step),
            What::Rest => Ok(vec![match &cx.meter {
                Ok(meter) => energy("energy/at rest", Unit::Watts, meter.at_rest().map(|w| vec![w])),
                Err(why) => energy("energy/at rest", Unit::Watts, Err(why.clone())),
            }]),
        }
    }
}

/// Times in nanoseconds, as seconds.
fn time(id: impl Into<String>, ns: &Estimate) -> Reading {
    let seconds = ns.samples.iter().map(|ns| ns * 1e-9).collect();
    Reading::new(id, Unit::Seconds, Better::Less, seconds)
}

fn energy(id: impl Into<String>, unit: Unit, samples: Result<Vec<f64>, String>) -> Reading {
    match samples {
        Ok(samples) => Reading::new(id, unit, Better::Less, samples),
        Err(why) => Reading::missing(id, unit, Better::Less, why),
    }
}

/// The speeds that `wgfc device --measure` finds; in the short suite the bandwidth of a copy alone.
fn speeds_of(cx: &Context) -> Result<Vec<Reading>, Error> {
    let row = |name: &str, unit, better, v: Vec<f64>| Reading::new(format!("device/{name}"), unit, better, v);
    let copy = || device::measure_blocking(&cx.gpu).map(|m| m.copy_bytes_per_second).map_err(device_error);
    let copies = (0..if cx.small() { 2 } else { 5 }).map(|_| copy()).collect::<Result<Vec<f64>, Error>>()?;
    let mut out = vec![row("copy", Unit::BytesPerSecond, Better::More, copies)];
    if !cx.args.quick {
        let m = speeds::measure(&cx.gpu, &|_| ())?;
        let of = |f: fn(&wgfc::compiler::device::Speeds) -> f64| m.passes.iter().map(f).collect::<Vec<f64>>();
        out.extend([
            row("f32", Unit::FlopsPerSecond, Better::More, of(|s| s.flops_f32)),
            row("f16", Unit::FlopsPerSecond, Better::More, of(|s| s.flops_f16)),
            row("matrix units", Unit::FlopsPerSecond, Better::More, of(|s| s.flops_matrix)),
            row("barrier", Unit::Seconds, Better::Less, of(|s| s.barrier)),
        ]);
    }
    Ok(out)
}

/// The cost of a dispatch by how it is recorded, and the parts of it that the processor does.
fn dispatch(cx: &Context) -> Result<Vec<Reading>, Error> {
    let iterations = if cx.small() { 10 } else { 50 };
    let cost = overhead::measure_blocking(&cx.gpu, iterations).map_err(device_error)?;
    let mut out = vec![];
    for c in &cost.modes {
        let row = |part: &str, e: &Estimate| time(format!("dispatch/{}/{part}", c.mode.name()), e);
        out.extend([row("wall", &c.wall_ns), row("record", &c.record_ns), row("submit", &c.submit_ns)]);
        out.extend(c.gpu_ns.as_ref().map(|e| row("on the device", e)));
    }
    Ok(out)
}

fn transfer(cx: &Context) -> Result<Vec<Reading>, Error> {
    let samples = if cx.small() { 5 } else { 20 };
    let mut out = vec![];
    for m in transfers::measure_blocking(&cx.gpu, samples).map_err(device_error)? {
        let size = wgfc::inspect::bytes_text(m.bytes);
        out.extend([
            time(format!("transfers/to the device, {size}"), &m.upload_ns),
            time(format!("transfers/to the device, {size}, of the processor"), &m.host_ns),
            time(format!("transfers/back, {size}"), &m.read_ns),
        ]);
    }
    Ok(out)
}

fn kernels(cx: &Context, problems: &[Problem]) -> Result<Vec<Reading>, Error> {
    let options = cx.options();
    let how = How { gpu: &cx.gpu, options: &options, sample: SAMPLE, tune: None };
    let mut out = vec![];
    for p in problems {
        let id = format!("kernels/{}", p.key());
        let measured = Kernel::of(p).and_then(|k| measure(p, &k, &how, &mut || None));
        out.push(match measured {
            Ok(m) => time(id, &m.time),
            Err(e) if cx.gpu.is_lost() => return Err(e),
            Err(e) => Reading::missing(id, Unit::Seconds, Better::Less, super::first_line(&e)),
        });
    }
    Ok(out)
}

/// A model with random weights and inputs: its runs one by one, in a row, and what the device does of them.
fn model(
    cx: &Context,
    name: &str,
    bytes: &'static [u8],
    dims: &[(&str, i64)],
) -> Result<Vec<Reading>, Error> {
    let file = ModelFile::of_bytes(Arc::new(bytes)).with_random_weights()?;
    let given = |name: &str| dims.iter().find(|d| d.0 == name).map_or(1, |d| d.1);
    let mut options = cx.options();
    let shapes = Model::on_cpu(&file, &Options { graph_only: true, ..Options::default() })?;
    let symbols = shapes.inputs().iter().flat_map(|p| &p.shape).flat_map(|d| d.symbols());
    options.dims.extend(symbols.map(|s| (s.to_string(), given(s.as_ref()))));
    let mut model = Model::compile_for(cx.gpu.clone(), &file, &options)?;
    let all = random_inputs(&model, &|_| None);
    let named: Vec<(&str, Tensor)> = all.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let warm = Instant::now();
    loop {
        model.run(&all)?;
        if cx.software() || warm.elapsed().as_secs_f64() > WARM_UP {
            break;
        }
    }
    let session = model.session_mut().ok_or_else(|| Error::Internal("a model without a session".into()))?;
    let pace = Pace { seconds: Some(cx.seconds()), ..Pace::default() };
    let profile = session.profile_paced_blocking(&named, 30, pace).map_err(device_error)?;
    let dispatches = session.program().dispatches.len() as f64;
    let mut out = vec![];
    for (part, e) in [
        ("a run, to its outputs", &profile.round_trip_ns),
        ("a run, waited for", &profile.wall_ns),
        ("record", &profile.record_ns),
        ("submit", &profile.submit_ns),
        ("on the device", &profile.gpu_ns),
    ] {
        out.extend(e.as_ref().map(|e| time(format!("models/{name}/{part}"), e)));
    }
    let row =
        |part: &str, unit, v| Reading::new(format!("models/{name}/{part}"), unit, Better::Less, vec![v]);
    out.extend(profile.back_to_back_ns.map(|ns| row("a run, in a row", Unit::Seconds, ns * 1e-9)));
    out.push(row("dispatches", Unit::One, dispatches));
    Ok(out)
}

/// A decoder with random weights: tokens, prompts, and the energy of a token.
fn decode(cx: &Context, name: &str, bytes: &[u8], precision: Precision) -> Result<Vec<Reading>, Error> {
    let decoder = cx.decoder(bytes)?;
    let (tokens, prompts): (usize, &[usize]) = if cx.small() { (16, &[16]) } else { (512, &[64, 512]) };
    let options = GeneratorOptions {
        capacity: if cx.small() { 128 } else { 1024 },
        precision,
        ..cx.generator_options()
    };
    let mut g = Generator::on_device(cx.gpu.clone(), &decoder, &options)?;
    let ids =
        |n: usize, g: &Generator| (0..n).map(|i| (i % g.vocabulary().max(1)) as i64).collect::<Vec<i64>>();
    let request = |n: usize| Request { max_new_tokens: n, ..Request::default() };
    let mut out = vec![];
    for n in prompts {
        let prompt = ids(*n, &g);
        let mut first = || {
            g.reset()?;
            let started = Instant::now();
            for token in g.generate(&prompt, &request(1))? {
                token?;
            }
            Ok::<f64, Error>(started.elapsed().as_secs_f64())
        };
        // Runs become faster until the device's clock is up and memory for them is there.
        let warm = Instant::now();
        loop {
            first()?;
            if cx.software() || warm.elapsed().as_secs_f64() > WARM_UP {
                break;
            }
        }
        let times =
            (0..if cx.small() { 3 } else { 10 }).map(|_| first()).collect::<Result<Vec<f64>, Error>>()?;
        let speed = times.iter().map(|s| *n as f64 / s).collect();
        out.push(Reading::new(
            format!("decode/{name}/first token after {n}"),
            Unit::Seconds,
            Better::Less,
            times,
        ));
        out.push(Reading::new(
            format!("decode/{name}/prompt of {n}, tokens"),
            Unit::PerSecond,
            Better::More,
            speed,
        ));
    }
    let prompt = ids(prompts[0], &g);
    let mut times = vec![];
    g.reset()?;
    let mut generate = || {
        let mut before = Instant::now();
        for token in g.generate(&prompt, &request(tokens + FILLING))? {
            token?;
            let now = Instant::now();
            times.push((now - before).as_secs_f64());
            before = now;
        }
        Ok::<(), Error>(())
    };
    let (done, drawn) = match &cx.meter {
        Ok(meter) => meter.during(generate),
        Err(why) => (generate(), Err(why.clone())),
    };
    done?;
    let all = times.len().max(1) as f64;
    let times = times.split_off(times.len().min(FILLING));
    let speed = times.iter().map(|s| 1.0 / s.max(1e-9)).collect();
    let row = |part: &str, unit, samples: Result<Vec<f64>, String>| {
        energy(format!("decode/{name}/{part}"), unit, samples)
    };
    out.push(row("a token", Unit::Seconds, Ok(times)));
    out.push(Reading::new(format!("decode/{name}/tokens"), Unit::PerSecond, Better::More, speed));
    let of = |f: fn(&Drawn) -> f64| drawn.as_ref().map(f).map_err(String::clone);
    out.push(row("energy of a token", Unit::Joules, of(|d| d.joules).map(|j| vec![j / all])));
    out.push(row("power", Unit::Watts, of(|d| d.joules / d.seconds).map(|w| vec![w])));
    Ok(out)
}

/// A simulation with its loop in a kernel, and with a dispatch for each step.
fn simulation(cx: &Context, w: &'static Workload) -> Result<Vec<Reading>, Error> {
    let size = match cx.small() {
        true => Size {
            population: w.usual.population.min(256),
            steps: w.usual.steps.min(100),
            dims: w.usual.dims.min(100),
        },
        false => w.usual,
    };
    let forms = [LoopForm::Fused, LoopForm::Split];
    let a = BenchLoopsArgs {
        workloads: vec![],
        population: vec![],
        steps: vec![],
        dims: vec![],
        form: vec![],
        symbolic: false,
        check: false,
        runs: if cx.small() { 5 } else { 20 },
        seed: 1,
        adapter: AdapterArgs::default(),
        csv: None,
        svg: None,
    };
    let mut out = vec![];
    for row in loops::all(&cx.gpu, w, size, &forms, &a)? {
        let form = if row.form == LoopForm::Fused { "one kernel" } else { "by steps" };
        let id = format!("loops/{}, {} x {}/{form}", w.name, size.population, size.steps);
        out.push(match &row.measured {
            Ok(m) => time(id, &m.wall_ns),
            Err(why) => Reading::missing(id, Unit::Seconds, Better::Less, why),
        });
    }
    Ok(out)
}

fn training(cx: &Context, step: &'static Step) -> Result<Vec<Reading>, Error> {
    let [whole, little] = step.batch;
    let (batch, steps) = if cx.small() { (little, 4) } else { (whole, 40) };
    let file = ModelFile::of_bytes(Arc::new(step.program));
    let rows = random::tensor(wgfc::DType::F32, vec![2 * batch, step.width], "x", 1);
    let training = Training {
        data: [("x".to_owned(), rows)].into(),
        inputs: [("rate".to_owned(), Tensor::from_f32(vec![], &[1e-4]))].into(),
        batch: Some(batch),
        seed: Some(1),
        any_loss: true,
        ..Training::default()
    };
    let mut trainer = Trainer::compile(&cx.gpu, &file, training, &cx.options())?;
    let mut ends = vec![];
    trainer.run(steps + 2, |_| {
        ends.push(Instant::now());
        ControlFlow::Continue(())
    })?;
    // Two steps are in flight, and may be seen to end together.
    let pairs = ends[ends.len().min(1)..].iter().step_by(2).collect::<Vec<_>>();
    let times = pairs.windows(2).map(|p| (*p[1] - *p[0]).as_secs_f64() / 2.0).collect();
    Ok(vec![Reading::new(
        format!("training/{}, batch {batch}, a step", step.name),
        Unit::Seconds,
        Better::Less,
        times,
    )])
}
