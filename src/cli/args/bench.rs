//! Arguments of `wgfc bench`.

use super::{
    AdapterArgs, CacheArgs, CompileOptions, DataArgs, DecoderArgs, ExpectArgs, FusionArg, PrecisionArgs,
    SpeculationArgs, TechniqueArg, parse_bytes,
};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `wgfc bench`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  wgfc bench resnet50.onnx --random-weights --random-inputs --dim batch=1
  wgfc bench out/ --input x=random:7 --dim batch=32 --runs 100 --csv dispatches.csv --trace trace.json
  wgfc bench decode qwen2.5-0.5b.onnx --random-weights --past 64 --past 2048
  wgfc bench perplexity qwen2.5-0.5b/ --text wiki.txt --weights q4
  wgfc bench loops portfolio --steps 500,1500,5000
  wgfc bench kernels transpose softmax --html kernels.html
  wgfc bench dispatch --adapter llvmpipe --json
  wgfc bench regret benches/timings/*.jsonl --vary 0.2
  wgfc bench suite --quick

Inputs are as in `wgfc run --help`. Times are medians with their 95% confidence intervals, of wall-clock
time; on the GPU, of timestamps. A model called `dispatch`, `decode`, `kernels`, `loops`, `perplexity`,
`regret`, `report`, `suite` or `transfers` is ./dispatch, and so on."
)]
pub struct BenchArgs {
    /// Something else to measure
    #[command(subcommand)]
    pub what: Option<BenchCommand>,
    /// A model (ONNX, or a .pt2 of torch.export), or a folder that `wgfc compile` wrote
    #[arg(required = true)]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub compile: CompileOptions,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Runs before those that count; on a GPU at least so many as take 0.3 s, unless it is 0 or 1
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub warm_up: u32,
    /// Runs that count
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub runs: u32,
    /// After this time, do not repeat what has been measured once: slow models are measured less often
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = super::parse_positive)]
    pub budget: f64,
    /// Compare the outputs with those of the reference evaluator first
    #[arg(long)]
    pub check: bool,
    /// Write a row for each dispatch
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a timeline of some runs, of the processor and of the device, to this file, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// The other measurements of `wgfc bench`.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// The cost of a dispatch beside its kernel, by how it is recorded and submitted
    Dispatch(BenchDispatchArgs),
    /// How fast tensors go to the device and back, and what that takes of the CPU
    Transfers(BenchTransfersArgs),
    /// How fast a decoder generates tokens
    Decode(BenchDecodeArgs),
    /// How well a decoder predicts a text: what a precision or a type of weights costs
    Perplexity(BenchPerplexityArgs),
    /// How near the device's limits kernels are: one operator at a time, many shapes and types
    Kernels(BenchKernelsArgs),
    /// How fast simulations run with their loop in a kernel, and with a dispatch for each step
    Loops(BenchLoopsArgs),
    /// How much time the compiler's choices lose, by recorded times and without a GPU
    Regret(BenchRegretArgs),
    /// Everything that is measured of a device, in one file
    Suite(BenchSuiteArgs),
    /// A page of what `wgfc bench suite` found on one or several devices
    Report(BenchReportArgs),
}

/// `wgfc bench report`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc bench report suite.json
  wgfc bench report h100.json m2.json -o devices.html --markdown devices.md
  wgfc bench report wgfc.json torch.json --brief --title Benchmarks

The first file is what the others are compared with. A difference has the probability of samples that differ as much if both
devices were the same (Mann-Whitney, corrected for the number of rows by Holm).")]
pub struct BenchReportArgs {
    /// Files that `wgfc bench suite` wrote
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The page to write
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    pub output: PathBuf,
    /// Write the tables as Markdown, too
    #[arg(long, value_name = "FILE.md")]
    pub markdown: Option<PathBuf>,
    /// Only rows that the first file and another have, as medians, and how many times as good the others are
    #[arg(long)]
    pub brief: bool,
    /// The title
    #[arg(long, value_name = "TEXT", default_value = "Devices")]
    pub title: String,
}

/// `wgfc bench suite`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  wgfc bench suite
  wgfc bench suite --quick --adapter llvmpipe -o quick.json
  wgfc bench suite --only dispatch --only decode
  wgfc bench report suite.json other.json

The tasks run one behind the other, several times, each time in a process of its own, and the file is written after each task:
what is interrupted continues when it is run again. All samples are kept. A row whose passes disagree says so.")]
pub struct BenchSuiteArgs {
    /// The file to write, or to continue
    #[arg(short, long, value_name = "FILE", default_value = "suite.json")]
    pub output: PathBuf,
    /// Small models and few repetitions, for a minute
    #[arg(long)]
    pub quick: bool,
    /// Decoders of 1.5 and 3.8 billion parameters, too, which take 15 GB of the device's memory and 30 GB of the host's
    #[arg(long, conflicts_with = "quick")]
    pub large: bool,
    /// Only tasks with this in their name; may be repeated
    #[arg(long, value_name = "TASK")]
    pub only: Vec<String>,
    /// How often each task runs
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub passes: u32,
    /// Replace the file
    #[arg(long)]
    pub force: bool,
    /// Run the pass of this number alone, in this process, and print no table
    #[arg(long, value_name = "N", hide = true)]
    pub pass: Option<u32>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// A form of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum LoopForm {
    /// The graph, its loop in one kernel where its individuals do not depend on each other
    Fused,
    /// The graph, kernels for each step
    Split,
    /// WGSL written by hand, to compare with
    ByHand,
}

/// `wgfc bench loops`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc bench loops
  wgfc bench loops portfolio --steps 500,1500,5000 --form fused --form by-hand --svg steps.svg
  wgfc bench loops cartpole acrobot --population 256,1024,4096,16384 --csv population.csv --json

Workloads: rastrigin, cartpole, acrobot, acrobot-rk4, mountaincar, mountaincar-51, montecarlo, nbody, portfolio; all without
a name. The graphs are those of fixtures/simulations, inputs are drawn from the seed and stay on the device. Before they
are timed, all forms of a workload must agree; where the dynamics are chaotic, after the first hundred or so
steps and for all but a few individuals. Generations a second are by the clock, of several submitted
together. Times are medians with their 95% confidence intervals.")]
pub struct BenchLoopsArgs {
    /// The workloads to run; all without one
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<String>,
    /// Individuals, or bodies; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub population: Vec<u32>,
    /// Steps; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub steps: Vec<u32>,
    /// Dimensions of rastrigin; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub dims: Vec<u32>,
    /// Measure only this form; may be repeated
    #[arg(long, value_enum, value_name = "FORM")]
    pub form: Vec<LoopForm>,
    /// Leave the population symbolic, as a program for any number of individuals has it
    #[arg(long)]
    pub symbolic: bool,
    /// Compare with the reference evaluator too, which takes long for large sizes
    #[arg(long)]
    pub check: bool,
    /// Samples of each form
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Seed of the random inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Write a row for each form of each size
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw generations a second over what is given several times: FILE.svg
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// `wgfc bench decode`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc bench decode qwen2.5-0.5b.onnx --random-weights --past 64 --past 2048 --check
  wgfc bench decode qwen2.5-0.5b/ --tokens 200 --csv dispatches.csv
  wgfc bench decode qwen2.5-0.5b/ --batch 32 --precision f16
  wgfc bench decode qwen2.5-0.5b/ --prefix-recompute

Greedy, one token of each sequence a run: the cache, the choice and the token stay on the device, and the host reads
it while the next is made. --prefix-recompute has no cache: after a prompt of 5 tokens each of 50
takes a run on all before it, and the host waits for it. Times are medians with their 95% confidence intervals.")]
pub struct BenchDecodeArgs {
    /// A folder with model.onnx, or a model's file
    #[arg(value_name = "MODEL|DIR")]
    pub model: PathBuf,
    /// Also the time to the first token behind a prompt of so many tokens; may be repeated
    #[arg(long, value_name = "N", conflicts_with = "prefix_recompute")]
    pub prompt: Vec<u32>,
    /// The most tokens of a prompt that one run takes [default: 512, or up to 4096 where the device's memory and speed allow it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub prompt_chunk: Option<u32>,
    /// Positions in the cache before the tokens that count; may be repeated [default: 64]
    #[arg(long, value_name = "N", conflicts_with = "prefix_recompute")]
    pub past: Vec<usize>,
    /// Sequences at once, each with a cache of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65535), conflicts_with = "prefix_recompute")]
    pub batch: u32,
    /// Tokens of each sequence that count [default: 64; with --prefix-recompute 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tokens: Option<u32>,
    /// Room in the cache, in positions; without it the longest past and the tokens fit
    #[arg(long, value_name = "N", conflicts_with = "prefix_recompute")]
    pub capacity: Option<usize>,
    /// Compute all positions anew for each token, without a cache
    #[arg(long)]
    pub prefix_recompute: bool,
    /// Compare eight tokens and their logits with those of the unfused program first
    #[arg(long, conflicts_with = "prefix_recompute")]
    pub check: bool,
    /// Memory that reading the model and the files beside it may take, as in `4GB`, for files that are to be trusted [default: 256 MiB
    /// and 16 times the files]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory_limit: Option<u64>,
    /// Use random numbers for the weights that the model keeps in other files (see `wgfc run --help`)
    #[arg(long)]
    pub random_weights: bool,
    /// How much to fuse
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
    pub fusion: FusionArg,
    /// Leave a part out of full fusion; may be repeated
    #[arg(long, value_enum, value_name = "PART")]
    pub without: Vec<TechniqueArg>,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    #[command(flatten)]
    pub expect: ExpectArgs,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Write a row for each dispatch
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// `wgfc bench perplexity`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc bench perplexity qwen2.5-0.5b/ --text wiki.txt
  wgfc bench perplexity qwen2.5-0.5b/ --text wiki.txt --precision f16 --weights q4 --json
  wgfc bench perplexity qwen2.5-0.5b-q4_k_m.gguf --text wiki.txt --window 2048 --stride 1024 --limit 100000

The text becomes tokens by the model's own tokenizer. They are processed in windows, each with an empty cache; of a window the
tokens count that no earlier window had. The perplexity is the exponential of the mean negative log-likelihood
of the tokens, in f64 from the logits that the device computes. Models with the same tokenizer can be compared, by
the same text and windows.")]
pub struct BenchPerplexityArgs {
    /// A folder with a model, a model's file, or what `wgfc compile --generate` wrote
    #[arg(value_name = "MODEL|DIR")]
    pub model: PathBuf,
    /// The text, in UTF-8
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub window: u32,
    /// Tokens from the beginning of a window to that of the next [default: half a window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub stride: Option<u32>,
    /// Take only so many tokens of the text
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub limit: Option<u32>,
    /// The most tokens that one run takes
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_chunk: u32,
    #[command(flatten)]
    pub decoder: DecoderArgs,
}

/// `wgfc bench kernels`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc bench kernels --html kernels.html
  wgfc bench kernels transpose softmax --tune 20
  wgfc bench kernels --list --json --seed 7 > problems.json
  python3 benches/peers/torch_kernels.py problems.json --out torch.json
  wgfc bench kernels --seed 7 --peer torch.json
  wgfc bench kernels --adapter SwiftShader --work 50

The problems are those of benches/kernels.json, and ten whose sizes are drawn from the seed. Each is compared
with the reference evaluator, then timed by the device's clock with its inputs on the device, the same in each
run: what the caches hold is read from them. The bound is the time that the bytes of inputs and outputs take
at the speed of a copy, or the arithmetic at the peak, whichever is more. Both are those of the adapter's
profile (`wgfc device --measure`); of a GPU that has none they are measured first.")]
pub struct BenchKernelsArgs {
    /// Only problems with one of these in their name, such as `softmax`, `move/` or `t=f16`
    #[arg(value_name = "WORD")]
    pub problems: Vec<String>,
    /// Problems with sizes drawn at random, beside those listed
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub random: u32,
    /// Only problems drawn at random
    #[arg(long)]
    pub drawn: bool,
    /// Halve sizes until a problem takes at most so many million operations and bytes: for slow devices
    #[arg(long, value_name = "MILLIONS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub work: Option<u64>,
    /// Seed of the sizes that are drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Do not compare with the reference evaluator
    #[arg(long)]
    pub no_check: bool,
    /// Also time other schedules of each kernel, this many at least
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub tune: Option<u32>,
    /// With --tune, write the times of all schedules to a file, by which `wgfc bench regret` judges choices
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub record: Option<PathBuf>,
    /// Length of a sample, of which there are seven
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub sample: u32,
    /// Begin no problem after this time
    #[arg(long, value_name = "SECONDS", default_value_t = 1800.0, value_parser = super::parse_positive)]
    pub budget: f64,
    /// Times of a peer on the same problems, to compare with
    #[arg(long, value_name = "FILE")]
    pub peer: Option<PathBuf>,
    /// List the problems and measure nothing; with --json as a peer reads them
    #[arg(long)]
    pub list: bool,
    /// Write the problems as ONNX models into this folder and measure nothing
    #[arg(long, value_name = "DIR", conflicts_with = "list")]
    pub models: Option<PathBuf>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Write a row for each problem
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with a roofline and a table
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `wgfc bench regret`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc tune --kernels 100 --dry-run --record gpu.jsonl
  wgfc bench regret gpu.jsonl
  wgfc bench regret benches/timings/*.jsonl --vary 0.2 --json

Reads files that `wgfc tune --record` and `wgfc bench kernels --tune N --record` wrote, and chooses a schedule for each
kernel by the limits and speeds of the device in the file. The regret of a choice is its recorded time divided by
the least one; a choice that was not timed has none. Means are geometric. The correlation is that of the
order of the estimates with the order of the times (Spearman): 1 where they agree. A file of another
version, or with a kernel that can no longer be read, is ignored with a note.")]
pub struct BenchRegretArgs {
    /// Files of recorded times
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Also change each speed of the device by this share, up and down, and print the worst regrets
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub vary: Option<f64>,
    /// List so many problems with the largest regrets
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub worst: u32,
}

/// A number between 0 and 1.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|x| *x > 0.0 && *x < 1.0);
    share.ok_or_else(|| "it must be a number between 0 and 1, such as 0.2".to_owned())
}

/// `wgfc bench transfers`.
#[derive(Args, Debug)]
pub struct BenchTransfersArgs {
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Samples of each size
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
}

/// `wgfc bench dispatch`.
#[derive(Args, Debug)]
#[command(after_help = "\
The kernel adds 1 to 256 numbers in 4 workgroups; an iteration is 100 dispatches of it:
  single-op                 each encoded, submitted and waited for before the next
  sequential                an encoder, a pass and a submission each; one wait for all
  one encoder, a pass each  one submission
  one encoder, one pass     one submission, as wgfc runs a program")]
pub struct BenchDispatchArgs {
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Iterations of each mode
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub iterations: u32,
    /// Write a row for each mode
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}
