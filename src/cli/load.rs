//! Loading of a model or a compiled program onto a device.

use super::adapter;
use super::args::{AdapterArgs, CacheArgs, CompileOptions, DataArgs, PrecisionArg};
use super::compile::say_random_weights;
use super::device_cache::DeviceCache;
use super::inside::{Cost, cost};
use super::terminal::{Progress, Terminal};
use super::{given_dims, is_program, shown};
use std::collections::BTreeMap;
use std::path::Path;
use wgfc::artefact::{ReadOptions, load_bundle_with};
use wgfc::compiler::Diagnostic;
use wgfc::compiler::import::Format;
use wgfc::compiler::import::shape_inputs;
use wgfc::inspect::bytes_text;
use wgfc::model::{Opened, WhyCpu};
use wgfc::runtime::Gpu;
use wgfc::runtime::kernel::Checks;
use wgfc::{Error, Model, ModelFile, Options, Place, Tensor};

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
pub fn refuse_compile_options(compile: &CompileOptions, random_weights: bool) -> Result<(), Error> {
    let mut unused = Vec::new();
    unused.extend(random_weights.then_some("--random-weights"));
    unused.extend((!compile.taps.is_empty()).then_some("--tap"));
    unused.extend((!compile.added.is_empty()).then_some("--add"));
    unused.extend((!compile.replaced.is_empty()).then_some("--replace"));
    unused.extend((!compile.fixed.is_empty()).then_some("--fix"));
    unused.extend((!compile.expect.sizes.is_empty()).then_some("--expect"));
    unused.extend((compile.precision.precision != PrecisionArg::F32).then_some("--precision"));
    unused.extend(compile.precision.weights.is_some().then_some("--weights"));
    unused.extend(compile.precision.activations.is_some().then_some("--activations"));
    unused.extend(compile.precision.cache.is_some().then_some("--cache"));
    unused.extend((!compile.precision.keep_f32.is_empty()).then_some("--keep-f32"));
    unused.extend(compile.loss_scale.then_some("--loss-scale"));
    if unused.is_empty() {
        return Ok(());
    }
    Err(Error::usage(
        format!("{} has no effect on a compiled folder", unused.join(" and ")),
        "give it to `wgfc compile`, or give the model itself",
    ))
}

/// Shows progress while a model's kernels are compiled on the device and its weights are copied to it.
pub fn compiling(gpu: &Gpu, path: &Path, t: &Terminal) -> Progress {
    compiling_as(gpu, format!("compiling {}", shown(path)), t)
}

/// [`compiling`] with another text.
pub fn compiling_as(gpu: &Gpu, what: String, t: &Terminal) -> Progress {
    let (gpu, before) = (gpu.clone(), gpu.uploads());
    t.watch_text(what, move || {
        let (done, all) = gpu.compiled();
        let kernels = (all > 0).then(|| format!("kernel {done} of {all} on the device"));
        let (uploads, of) =
            (gpu.uploads(), |bytes: u64, before: u64| bytes_text(bytes.saturating_sub(before)));
        let weights = (uploads.wanted > before.wanted).then(|| {
            let (bytes, wanted) = (of(uploads.bytes, before.bytes), of(uploads.wanted, before.wanted));
            format!("{bytes} of {wanted} of weights")
        });
        let both: Vec<String> = kernels.into_iter().chain(weights).collect();
        (!both.is_empty()).then(|| both.join(", "))
    })
}

/// Adds advice to an error about missing weights.
pub fn without_weights(e: Error, file: &ModelFile) -> Error {
    let Error::Compile { path, mut errors } = e else { return e };
    let missing = file.missing();
    let about = |d: &&mut Diagnostic| missing.iter().any(|m| d.message.contains(&format!("`{m}`")));
    if let Some(first) = errors.0.iter_mut().find(about) {
        let missing = super::some_of(&missing);
        first.help = Some(if file.format() == Format::Archive {
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
