//! The command line, declared.

#[cfg(feature = "api")]
mod api;
mod bench;
mod bisect;
mod compare;
mod precision;
mod reduce;
mod run;
mod selftest;
mod speculation;
mod train;
mod variant;

#[cfg(feature = "api")]
pub use api::{ApiArgs, PoolingArg};
pub use bench::{
    BenchArgs, BenchCommand, BenchDecodeArgs, BenchDispatchArgs, BenchKernelsArgs, BenchLoopsArgs,
    BenchPerplexityArgs, BenchRegretArgs, BenchReportArgs, BenchSuiteArgs, BenchTransfersArgs, LoopForm,
};
pub use bisect::BisectArgs;
pub use compare::{CompareArgs, ReferenceArg};
pub use precision::{PrecisionArg, PrecisionArgs};
pub use reduce::{ReduceArgs, ReportArgs};
pub use run::{ChatArgs, DataArgs, DecoderArgs, FormArgs, GenerateArgs, ImageNorm, RunArgs, SamplingArgs};
pub use selftest::SelftestArgs;
pub use speculation::{Source, SpeculationArgs};
pub use train::TrainArgs;
pub use variant::{FeatureArg, TargetArg, VariantArg, distinct};

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::collections::BTreeMap;
use std::path::PathBuf;
use wgfc::compiler::Technique;
use wgfc::compiler::schedule::cost::Expected;
use wgfc::{Error, Fusion, Options};
use wgfc_compiler::options::States;

/// Compiles ONNX models and programs of torch.export into a few fused WGSL kernels and runs them on any WebGPU device.
#[derive(Parser, Debug)]
#[command(name = "wgfc", version, propagate_version = true, after_long_help = AFTER_HELP)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
}

const AFTER_HELP: &str = "\
Examples:
  wgfc run model.onnx --input x=photo.jpg --labels labels.txt
  wgfc compile model.onnx -o out/ && wgfc run out/ --input x=x.npy --output-dir results/
  wgfc generate qwen2.5-0.5b/ --prompt \"The sea is\"
  wgfc chat qwen2.5-0.5b-instruct/ --system \"Be brief.\"
  wgfc train step.pt2 --data x.npy --batch 256 --steps 1000 --plot loss.svg
  wgfc inspect model.onnx --graph graph.svg
  wgfc reduce model.onnx && wgfc report model.reduced.onnx -o report.zip

Exit codes:
  0  done
  1  the model, a file, an input or the command line is wrong
  2  the model uses something that wgfc does not support
  3  no adapter, or the device cannot do it (limits, memory, lost)
  4  a bug in wgfc

Environment:
  WGFC_LOG      what to log on stderr, as in `WGFC_LOG=wgfc_compiler=debug`
  WGFC_ADAPTER  the adapter to use where --adapter is not given
  WGFC_DUMP     a folder for the graph after each stage and pass of the compiler
  WGFC_CACHE_DIR  what is kept between runs; without it ~/.cache/wgfc or what XDG_CACHE_HOME says
  NO_COLOR      no colours";

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Print nothing but results and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print one JSON object on stdout instead of text; errors too
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Compile a model into a folder with plan.json, kernels/*.wgsl and weights.safetensors, or into one file
    Compile(CompileArgs),
    /// Run a model or a compiled folder
    Run(RunArgs),
    /// Measure a model, kernel by kernel, or what a dispatch costs
    Bench(BenchArgs),
    /// Compare a model's tensors with those of another precision, of no fusion, of the reference evaluator, or saved ones
    Compare(CompareArgs),
    /// Name the first pass of the compiler, or the kernel, after which results differ from the reference evaluator's
    Bisect(BisectArgs),
    /// Make a model that fails as small as it can be while it fails, without its weights, to show it
    Reduce(ReduceArgs),
    /// Pack versions, adapter, graph, plan, kernels and times, without weights and inputs, into one file for an issue
    Report(ReportArgs),
    /// Generate text or tokens with a decoder model
    Generate(GenerateArgs),
    /// Talk with a decoder model that has a chat template
    Chat(ChatArgs),
    /// Serve a decoder model by OpenAI's protocol: /v1/completions and /v1/chat/completions
    #[cfg(feature = "api")]
    Api(ApiArgs),
    /// Run a training step again and again on batches of rows, with its state on the device
    Train(TrainArgs),
    /// Time several schedules of each kernel of a model on this machine's adapter, and keep the best
    Tune(TuneArgs),
    /// Show what a model compiles to: kernels, traffic, time bounds, memory
    Inspect(InspectArgs),
    /// List everything in a model that is wrong or not supported
    Check(CheckArgs),
    /// List the adapters, their limits and features; measure how fast one is, and keep that
    Device(DeviceArgs),
    /// Compare random operators, graphs and loops on this machine's adapter with the reference evaluator
    Selftest(SelftestArgs),
    /// Open the playground in a browser: a model's graph, its kernels and their WGSL, times, changes
    Serve(ServeArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

/// How much is fused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FusionArg {
    /// Every operator is a kernel of its own
    None,
    /// Chains and graphs of elementwise operators and views
    Elementwise,
    /// Also into products, convolutions, reductions, softmax and norms
    #[default]
    Full,
}

impl FusionArg {
    /// As the compiler takes it.
    pub fn level(self) -> Fusion {
        match self {
            FusionArg::None => Fusion::None,
            FusionArg::Elementwise => Fusion::Elementwise,
            FusionArg::Full => Fusion::Full,
        }
    }
}

/// A part of full fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TechniqueArg {
    /// Rewrites that change the last bits: raised norms, softmax and attention among them
    Approximate,
    /// Merging of products that share an operand: Q, K and V; gate and up
    Merge,
    /// Epilogues: what follows a product or a reduction, in its kernel (activations, residuals, rotary embeddings)
    Epilogues,
    /// Norms in the product behind them: their scale is applied to its results
    WaitingScales,
    /// Attention over parts of the keys, in several workgroups; the reader combines the results
    KeyParts,
    /// Loops as one kernel where their steps are independent along some axes
    Loops,
    /// Loops of these in which an invocation computes each position along the axes
    LoopsInInvocations,
    /// And loops in which a workgroup does
    LoopsInWorkgroups,
    /// Other orders of the axes of tensors between kernels, and of weights, where the kernels take less time so
    Layouts,
    /// Convolutions of 3 × 3 by fewer multiplications, where that takes less time
    Winograd,
    /// Several small kernels in one dispatch, in which one workgroup runs them one after another
    Sequences,
}

impl TechniqueArg {
    /// As the compiler takes it.
    pub fn technique(self) -> Technique {
        match self {
            TechniqueArg::Approximate => Technique::Approximate,
            TechniqueArg::Merge => Technique::Merge,
            TechniqueArg::Epilogues => Technique::Epilogues,
            TechniqueArg::WaitingScales => Technique::WaitingScales,
            TechniqueArg::KeyParts => Technique::KeyParts,
            TechniqueArg::Loops => Technique::Loops,
            TechniqueArg::LoopsInInvocations => Technique::LoopsInInvocations,
            TechniqueArg::LoopsInWorkgroups => Technique::LoopsInWorkgroups,
            TechniqueArg::Layouts => Technique::Layouts,
            TechniqueArg::Winograd => Technique::Winograd,
            TechniqueArg::Sequences => Technique::Sequences,
        }
    }
}

/// The sizes to expect.
#[derive(Args, Clone, Debug, Default)]
pub struct ExpectArgs {
    /// Choose for this value of a symbolic dimension, which stays symbolic, as in `seq=512`; without it 64; may be
    /// repeated
    #[arg(long = "expect", value_name = "NAME=VALUE", value_parser = parse_expected)]
    pub sizes: Vec<(String, i64)>,
}

impl ExpectArgs {
    /// As the compiler takes them.
    pub fn expected(&self) -> Expected {
        Expected(self.sizes.iter().cloned().collect())
    }
}

/// The options of a compilation.
#[derive(Args, Clone, Debug)]
pub struct CompileOptions {
    /// How much to fuse
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
    pub fusion: FusionArg,
    /// Leave a part out of full fusion; may be repeated
    #[arg(long, value_enum, value_name = "PART")]
    pub without: Vec<TechniqueArg>,
    /// Leave a pass of the compiler out, as in `long-rows`; `wgfc inspect MODEL --passes` lists them; may be repeated
    #[arg(long = "without-pass", value_name = "NAME")]
    pub without_passes: Vec<String>,
    /// Fix a symbolic dimension, as in `batch=8`; may be repeated
    #[arg(long = "dim", value_name = "NAME=VALUE", value_parser = parse_dim)]
    pub dims: Vec<(String, i64)>,
    #[command(flatten)]
    pub expect: ExpectArgs,
    /// Make an input a constant, as the model's shapes depend on it: `axes=1,2`, `shape=s.npy`, `k=k.pb`;
    /// integers alone are i64; may be repeated
    #[arg(long = "fix", value_name = "NAME=VALUE")]
    pub fixed: Vec<String>,
    /// Return this tensor of the model as an extra output; may be repeated
    #[arg(long = "tap", value_name = "TENSOR")]
    pub taps: Vec<String>,
    /// Add to this tensor of the model: an extra input `TENSOR.add`, of the tensor's shape or broadcast to it, which a run
    /// may leave out; may be repeated
    #[arg(long = "add", value_name = "TENSOR")]
    pub added: Vec<String>,
    /// Replace this tensor of the model: an extra input `TENSOR.replace`, likewise, and `TENSOR.where` (bool) if only in
    /// places; may be repeated
    #[arg(long = "replace", value_name = "TENSOR")]
    pub replaced: Vec<String>,
    /// Keep caches on the device from run to run, with room for this many positions; `any` leaves that to
    /// each session, in which they can grow
    #[arg(long = "state-capacity", value_name = "N|any", value_parser = parse_capacity)]
    pub state_capacity: Option<CapacityArg>,
    /// An input and the output that continues it, as in `past_key=present_key`, instead of those found by
    /// structure; may be repeated
    #[arg(long = "state", value_name = "INPUT=OUTPUT", requires = "state_capacity", value_parser = parse_pair)]
    pub states: Vec<(String, String)>,
    /// Keep the caches of a GGUF file or of a checkpoint in pages of this many positions, which sequences share: the input `block_table`
    /// names those of each
    #[arg(long, value_name = "POSITIONS", value_parser = clap::value_parser!(i64).range(1..=65536))]
    pub page: Option<i64>,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// The model is a step of training: scale its loss, so that f16 holds the gradients (`wgfc train --precision f16` does)
    #[arg(long)]
    pub loss_scale: bool,
    /// Compute kernels as this file says: an edited copy of what `wgfc inspect --schedule --json` prints
    #[arg(long, value_name = "FILE")]
    pub schedule_from: Option<PathBuf>,
    /// Memory that reading the model may take beside its files, and as much again for its inputs and other data, as in `4GB`, for files
    /// that are to be trusted [default: 256 MiB and 16 times the files]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory_limit: Option<u64>,
    /// Iterations of loops that the reference evaluator runs at most, those of nested loops multiplied, with 65,536 elements of work each on
    /// average [default: 16777216]
    #[arg(long, value_name = "N")]
    pub iteration_limit: Option<u64>,
}

impl CompileOptions {
    /// As the compiler takes them. Reads the files of `--fix` and `--schedule-from`.
    pub fn options(&self) -> Result<Options, Error> {
        let values = values(&self.fixed, self.memory_limit)?;
        let states = match self.state_capacity {
            None => States::None,
            Some(CapacityArg(capacity)) if self.states.is_empty() => States::Auto { capacity },
            Some(CapacityArg(capacity)) => States::Named { pairs: self.states.clone(), capacity },
        };
        let schedules = match &self.schedule_from {
            Some(file) => wgfc::cache::read_schedules(file)?,
            None => wgfc::Tuning::default(),
        };
        self.precision.check()?;
        Ok(Options {
            states,
            schedules,
            fusion: self.fusion.level(),
            without: self.without.iter().map(|t| t.technique()).collect(),
            without_passes: self.without_passes.iter().cloned().collect(),
            dims: self.dims.iter().cloned().collect(),
            expect: self.expect.expected(),
            taps: self.taps.clone(),
            added: self.added.clone(),
            replaced: self.replaced.clone(),
            values,
            precision: self.precision.precision.of_compiler(),
            keep_f32: self.precision.keep_f32.clone(),
            weights: self.precision.weight_bits(),
            activations: self.precision.activations(),
            cache: self.precision.cache_type(),
            page: self.page,
            loss_scale: self.loss_scale.then(wgfc::LossScale::default),
            memory_limit: self.memory_limit,
            iteration_limit: self.iteration_limit,
            ..Options::default()
        })
    }
}

/// The values that `--fix` gives. Reads their files.
pub fn values(fixed: &[String], memory_limit: Option<u64>) -> Result<BTreeMap<String, wgfc::Tensor>, Error> {
    let budget = wgfc::compiler::budget::Budget::of_data(memory_limit);
    fixed.iter().map(|text| super::inputs::fixed(text, &budget)).collect()
}

/// The adapter to run on.
#[derive(Args, Clone, Debug, Default)]
pub struct AdapterArgs {
    /// The adapter: part of its name (`llvmpipe`, `H100`), its number in `wgfc device`, `best` or `software`
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,
}

/// The files that are kept from run to run.
#[derive(Args, Clone, Debug, Default)]
pub struct CacheArgs {
    /// Do not use what `wgfc tune` and `wgfc device --measure` found on the adapter
    #[arg(long)]
    pub no_tuning: bool,
    /// Compile every pipeline again and keep none
    #[arg(long)]
    pub no_cache: bool,
}

/// `wgfc compile`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc compile resnet50.onnx
  wgfc compile resnet50.onnx -o out/
  wgfc compile bert.onnx -o out/ --dim batch=1 --dim seq=128
  wgfc compile model.onnx -o out/ --tap /layer3/relu_output --fusion none
  wgfc compile model.pt2 -o out/
  wgfc compile model.onnx -o model.wgfc --target web
  wgfc compile model.onnx -o model.wgfc --target web --profile portable,integrated,software
  wgfc compile decoder.onnx -o out/ --state-capacity 2048 --variant decode:seq=1 --variant prefill
  wgfc compile qwen2.5-0.5b/ -o out/ --generate && wgfc generate out/ --prompt \"The sea is\"

Dimensions that are not fixed stay symbolic: one compiled program serves every batch and length. With --variant the model
is compiled several times over one store of weights, and on the same states; each run takes the first plan that the
device can run and that the inputs fit.")]
pub struct CompileArgs {
    /// The model: ONNX, or an archive of torch.export (.pt2); with --generate also a folder with model.onnx
    pub model: PathBuf,
    /// The folder to write, or NAME.wgfc for all in one file; an earlier program there is replaced [default: a folder in the
    /// current one, named as the model is without its extension]
    #[arg(short, long, value_name = "DIR|FILE.wgfc")]
    pub output: Option<PathBuf>,
    /// Share the weights in a folder out to files of at most this size, as in `100MB`
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub shard_size: Option<u64>,
    /// Do not copy weights that are in the model's files as they are needed; the plan says where they are, relative to itself,
    /// and has their hashes
    #[arg(long, conflicts_with_all = ["graph_only", "random_weights"])]
    pub weights_from_model: bool,
    #[command(flatten)]
    pub compile: CompileOptions,
    /// Compile a plan that fixes these dimensions or may use these features, as in `decode:seq=1` and `half:f16`, with the
    /// weights of the others; may be repeated, the preferred ones first
    #[arg(long = "variant", value_name = "NAME[:WHAT,...]", value_parser = variant::parse_variant)]
    pub variants: Vec<VariantArg>,
    /// Compile a decoder for `wgfc generate`: plans for prompts of any length and for a single token, which share a cache; a
    /// tokenizer beside the model is copied to the folder
    #[arg(long, conflicts_with_all = ["variants", "dims", "fixed", "state_capacity", "states", "graph_only"])]
    pub generate: bool,
    /// Compile for such a device, with the speeds of --profile
    #[arg(long, value_enum, value_name = "KIND", conflicts_with_all = ["for_device", "adapter"])]
    pub target: Option<TargetArg>,
    /// Let kernels use these features: f16, subgroups (of 32 invocations), subgroups=SIZE, subgroup-matrix (matrix
    /// units with Chrome's experimental extension, and the other two)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = variant::parse_feature,
        conflicts_with_all = ["for_device", "adapter"])]
    pub features: Vec<FeatureArg>,
    /// Let no dispatch of a loop take longer than this, as far as that can be estimated for the device profile and --expect: it
    /// continues in another dispatch [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub longest_dispatch: Option<f64>,
    /// Compile for the limits of this machine's adapter instead of those every WebGPU device has, and for its speeds as
    /// `wgfc device --measure` found them, or as adapters of its kind have them
    #[arg(long)]
    pub for_device: bool,
    /// Compile for this device profile: portable, discrete, integrated, software, swiftshader, or a file like those that
    /// `wgfc device --measure` stores; with several, as in `portable,integrated`, each plan for each of them, and an adapter
    /// runs the plans for its kind [default: portable]
    #[arg(long = "profile", value_name = "NAME|FILE", value_delimiter = ',', conflicts_with_all = ["for_device", "adapter"])]
    pub profiles: Vec<String>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Cut kernels up as this table says, which `wgfc tune` stored
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Do not read weights: the result can be inspected, not run
    #[arg(long)]
    pub graph_only: bool,
    /// Use random external weights (see `wgfc run --help`)
    #[arg(long, conflicts_with = "graph_only")]
    pub random_weights: bool,
    /// Replace the output folder even when it holds other files
    #[arg(long)]
    pub force: bool,
}

/// `wgfc tune`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc tune resnet50.onnx --dim batch=1
  wgfc tune bert.onnx --at batch=1 --at seq=128
  wgfc tune qwen2.5-0.5b/ --generate --at sequence_length=128
  wgfc tune model.onnx --dry-run --json
  wgfc tune --kernels 40 --seed 3 --dry-run
  wgfc tune --kernels 40 --dry-run --record gpu.jsonl && wgfc bench regret gpu.jsonl

Each kernel that can be cut up in several ways is timed with the most promising of them; one that is
clearly faster than the compiler's own choice, and computes the same, is stored for the adapter. `wgfc
run`, `bench` and `generate` then use it; `wgfc compile --tuning FILE` does with the file that is printed.
Weights may be missing: their values do not matter. Kernels are known by what they compute, not by the
model: equal ones of other models gain too. Dimensions that --dim fixes give other kernels than those
left symbolic: tune as you run.")]
pub struct TuneArgs {
    /// A model (ONNX, or a .pt2 of torch.export); with --generate also a folder with model.onnx
    #[arg(value_name = "MODEL|DIR", required_unless_present = "kernels")]
    pub model: Option<PathBuf>,
    /// Instead of a model's, tune the kernels of N problems of `wgfc bench kernels` with sizes drawn at random, to see what the compiler's choice misses
    #[arg(long, value_name = "N", conflicts_with_all = ["model", "generate"], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub kernels: Option<u32>,
    /// Seed of the sizes that are drawn for --kernels
    #[arg(long, value_name = "N", default_value_t = 1, requires = "kernels")]
    pub seed: u64,
    #[command(flatten)]
    pub compile: CompileOptions,
    /// Take the model as a decoder, as `wgfc generate` does: prompts of any length, and single tokens
    #[arg(long, conflicts_with_all = ["dims", "fixed", "taps", "added", "replaced", "state_capacity", "states"])]
    pub generate: bool,
    /// The value of a symbolic dimension while measuring, as in `seq=128`; without it 64, for capacities more; may be repeated
    #[arg(long = "at", value_name = "NAME=VALUE", value_parser = parse_dim)]
    pub at: Vec<(String, i64)>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Begin to measure no kernel after this time; those that move or compute most come first
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = parse_positive)]
    pub budget: f64,
    /// Time at least this many schedules of each kernel
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub most: u32,
    /// Also write the times of all schedules to a file, by which `wgfc bench regret` judges choices without a GPU
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Store nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `wgfc inspect`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  wgfc inspect resnet50.onnx --dim batch=1
  wgfc inspect out/ --bandwidth 320 --json
  wgfc inspect model.onnx --graph graph.svg --roofline roofline.svg
  wgfc inspect model.onnx --schedule --json > schedule.json   # change it, then --schedule-from schedule.json

MB is 2^20 and GB 2^30 bytes. A model whose weights are missing is planned all the same.")]
pub struct InspectArgs {
    /// A model (ONNX, or a .pt2 of torch.export), or what `wgfc compile` wrote
    pub model: PathBuf,
    /// The plan of this name, among several that were compiled; without it the first
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    #[command(flatten)]
    pub compile: CompileOptions,
    #[command(flatten)]
    pub like: DimArgs,
    /// Plan for this device profile, whose speeds time bounds are for: portable, discrete, integrated, software, swiftshader, or a
    /// file like those that `wgfc device --measure` stores
    #[arg(long, value_name = "NAME|FILE", default_value = "portable")]
    pub profile: String,
    /// The memory bandwidth that time bounds are for, instead of the profile's
    #[arg(long, value_name = "GB/s", value_parser = parse_positive)]
    pub bandwidth: Option<f64>,
    /// The arithmetic peak that time bounds are for, instead of the profile's
    #[arg(long, value_name = "TFLOP/s", value_parser = parse_positive)]
    pub peak: Option<f64>,
    /// Print every dispatch, not only every kernel family
    #[arg(long)]
    pub dispatches: bool,
    /// Print how each kernel is computed; with --json, as a file for --schedule-from
    #[arg(long)]
    pub schedule: bool,
    /// Print each kernel as loops over its tensors, as it is before it is scheduled
    #[arg(long, conflicts_with = "schedule")]
    pub loops: bool,
    /// Print the passes of the compiler: the nodes before and after each, and its time
    #[arg(long, conflicts_with = "schedule")]
    pub passes: bool,
    /// Draw the dispatches: FILE.svg, FILE.dot or FILE.html; may be repeated
    #[arg(long, value_name = "FILE")]
    pub graph: Vec<PathBuf>,
    /// Draw a roofline: each dispatch's arithmetic intensity and the device's bounds: FILE.svg
    #[arg(long, value_name = "FILE")]
    pub roofline: Option<PathBuf>,
    /// Measure, on this machine, from which size of this dimension on the device is faster than the processor
    #[arg(long, value_name = "DIM", conflicts_with_all = ["schedule", "loops", "passes", "graph", "roofline"])]
    pub crossover: Option<String>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
}

/// Sizes taken from tensors.
#[derive(Args, Clone, Debug)]
pub struct DimArgs {
    /// Fix symbolic dimensions to those of a tensor that the input could be given: `x.npy`, `NAME=x.npy`, `x.pb`;
    /// may be repeated
    #[arg(long = "like", value_name = "[NAME=]FILE")]
    pub like: Vec<String>,
}

/// `wgfc check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc check model.onnx
  wgfc check model.onnx --dim batch=1
  wgfc check model.onnx --like x.npy
  wgfc check model.pt2
  wgfc check model.onnx --json | jq '.unsupported[].operator'

Reads no weights. Exits with 1 when the model is wrong, 2 when something in it is not supported.")]
pub struct CheckArgs {
    /// The model: ONNX, or an archive of torch.export (.pt2)
    pub model: PathBuf,
    /// Fix a symbolic dimension, as in `batch=8`; may be repeated
    #[arg(long = "dim", value_name = "NAME=VALUE", value_parser = parse_dim)]
    pub dims: Vec<(String, i64)>,
    /// Make an input a constant, as the model's shapes depend on it: `axes=1,2`, `shape=s.npy`, `k=k.pb`;
    /// integers alone are i64; may be repeated
    #[arg(long = "fix", value_name = "NAME=VALUE")]
    pub fixed: Vec<String>,
    #[command(flatten)]
    pub like: DimArgs,
    /// Memory that reading the model may take beside its files, as in `4GB`, for files that are to be trusted [default: 256 MiB
    /// and 16 times the model's file]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory_limit: Option<u64>,
}

/// `wgfc device`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc device
  wgfc device --adapter llvmpipe --measure
  wgfc device --json")]
pub struct DeviceArgs {
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Measure how fast it is, within some seconds, and keep that: `run`, `bench`, `generate`, `tune` and `compile
    /// --for-device` choose for it
    #[arg(long)]
    pub measure: bool,
}

/// `wgfc serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc serve
  wgfc serve model.onnx
  wgfc serve out/ --port 8000 --no-open

wgfc compiles the model for the browser's device, and the page runs it on this machine's GPU by WebGPU. The page and the
files of the model are served to this machine only, until Ctrl-C.")]
pub struct ServeArgs {
    /// A model to look at (.onnx, .pt2), or what `wgfc compile` wrote
    pub model: Option<PathBuf>,
    /// The port to listen to; without it one that is free
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Start no browser
    #[arg(long)]
    pub no_open: bool,
    /// The playground's files, instead of those that are built in
    #[arg(long, value_name = "DIR")]
    pub playground: Option<PathBuf>,
}

/// `wgfc completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  wgfc completions bash > ~/.local/share/bash-completion/completions/wgfc")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

fn parse_pair(s: &str) -> Result<(String, String), String> {
    match s.split_once('=') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() => Ok((a.to_owned(), b.to_owned())),
        _ => Err("expected INPUT=OUTPUT".into()),
    }
}

/// Positions that states have room for; none where the session says.
#[derive(Clone, Copy, Debug)]
pub struct CapacityArg(pub Option<usize>);

fn parse_capacity(s: &str) -> Result<CapacityArg, String> {
    if s == "any" {
        return Ok(CapacityArg(None));
    }
    let n = s.parse().ok().filter(|n| (1..=i32::MAX as usize).contains(n));
    n.map(|n| CapacityArg(Some(n))).ok_or_else(|| "expected a number between 1 and 2147483647, or any".into())
}

fn parse_seconds(s: &str) -> Result<f64, String> {
    let n = s.parse().ok().filter(|n| (1e-6..=1e6).contains(n));
    n.ok_or_else(|| "expected seconds between 0.000001 and 1000000".into())
}

fn parse_dim(s: &str) -> Result<(String, i64), String> {
    let (name, value) = s.split_once('=').ok_or("expected NAME=VALUE, as in batch=8")?;
    let value: i64 = value.trim().parse().map_err(|_| format!("`{value}` is not a whole number"))?;
    if value < 0 {
        return Err(format!("`{value}` is negative"));
    }
    if name.trim().is_empty() {
        return Err("the name is missing".into());
    }
    Ok((name.trim().to_owned(), value))
}

fn parse_expected(s: &str) -> Result<(String, i64), String> {
    match parse_dim(s)? {
        (_, 0) => Err("`0` is not positive".into()),
        found => Ok(found),
    }
}

/// Bytes: a number with a unit, of which `MB` is 10^6 and `MiB` 2^20 bytes.
/// A token id and a number, separated by a colon.
fn parse_bias(s: &str) -> Result<(i64, f32), String> {
    let parts =
        s.split_once(':').and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parts.ok_or_else(|| format!("`{s}` is no token id and number, as in 11:-2.5"))
}

fn parse_bytes(s: &str) -> Result<u64, String> {
    let end = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    let (number, unit) = (&s[..end], s[end..].trim());
    let scale: u64 = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        _ => return Err(format!("`{unit}` is not a unit of bytes: write kB, MB, GB, KiB, MiB or GiB")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).filter(|n| *n > 0);
    bytes.ok_or_else(|| "expected a size, as in 100MB".into())
}

fn parse_positive(s: &str) -> Result<f64, String> {
    s.parse::<f64>()
        .ok()
        .filter(|v| v.is_finite() && *v > 0.0)
        .ok_or_else(|| format!("`{s}` is not a positive number"))
}
