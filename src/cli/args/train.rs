//! Arguments of `wgfc train`.

use super::{AdapterArgs, CacheArgs, CompileOptions, parse_pair};
use clap::Args;
use std::path::PathBuf;

/// `wgfc train`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc train step.pt2 --data x.npy --batch 256 --steps 1000
  wgfc train step.pt2 --data x=x.npy --data y=y.npy --input rate=0.001 --steps 1000 --log losses.csv --plot loss.svg
  wgfc train step.pt2 --data x.npy --steps 100000 --checkpoint sae.safetensors --every 1000
  wgfc train step.pt2 --data x.npy --steps 100000 --checkpoint sae.safetensors --every 1000 --resume sae.safetensors
  wgfc train step.pt2 --random-data 16384 --batch 4096 --steps 100 --init encoder=random --init decoder=random

The model is a step: it returns its loss and changes its states, as a program of torch.export whose buffers are the
parameters and the optimizer's moments, or one that takes them and returns them (docs/torch.md). An input that is neither
data nor given with --input is continued by the output that --carry names, else by the one of its name, else, where no names
agree and as many of each are left, of the same types, by the one at its place. All of these stay on the device.

Rows lie along the first axis of the data; files are mapped into memory, not read into it. In each epoch all rows are
shuffled; those that are left over and fill no batch begin the first batch of the next epoch.

A checkpoint has the states by their names, and how far the training is. Resumed, the steps that follow are those that
would have followed, to the last bit on the same device. Ctrl-C ends after the steps under way, and writes it too.")]
pub struct TrainArgs {
    /// A model (a .pt2 of torch.export, or ONNX), or a folder that `wgfc compile` wrote
    pub model: PathBuf,
    /// Rows of an input, as a .npy file; may be repeated
    #[arg(short, long, value_name = "[NAME=]FILE", required_unless_present = "random_data")]
    pub data: Vec<String>,
    /// Make up so many rows of the inputs that have none, to try or measure a step
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub random_data: Option<u64>,
    /// Train until this many steps are done, those before --resume included
    #[arg(long, value_name = "N")]
    pub steps: u64,
    /// Rows of a step, where the model leaves that open
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// How rows are shuffled [default: 0]
    #[arg(long, value_name = "S", conflicts_with = "no_shuffle")]
    pub seed: Option<u64>,
    /// Take rows in the order in which they lie
    #[arg(long)]
    pub no_shuffle: bool,
    /// An input that is the same in each step, as a learning rate; sources as in `wgfc run --help`; may be repeated
    #[arg(short, long = "input", value_name = "NAME=SOURCE")]
    pub inputs: Vec<String>,
    /// An output that is the input of the next step, where names do not say so; may be repeated
    #[arg(long, value_name = "INPUT=OUTPUT", value_parser = parse_pair)]
    pub carry: Vec<(String, String)>,
    /// The output that is the loss, one float; without it the one called `loss`, else the first that can be
    #[arg(long, value_name = "OUTPUT")]
    pub loss: Option<String>,
    /// Initial values of states: tensors by name, or one, with the sources of --input, or all whose names begin alike, as in
    /// `square.*=zeros`; `random` is scaled as weights are. Others begin as the model has them, those that are inputs with
    /// zeros; may be repeated
    #[arg(long, value_name = "FILE.safetensors|NAME=SOURCE")]
    pub init: Vec<String>,
    /// Write a checkpoint at the end
    #[arg(long, value_name = "FILE.safetensors")]
    pub checkpoint: Option<PathBuf>,
    /// And each time that so many more steps are done
    #[arg(long, value_name = "STEPS", requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
    /// Go on where this checkpoint was written
    #[arg(long, value_name = "FILE.safetensors", conflicts_with = "init")]
    pub resume: Option<PathBuf>,
    /// Write each step's loss as it is known: FILE.csv or FILE.jsonl; resumed, behind the steps that are in the file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Draw the losses: FILE.svg
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Go on after a loss that is infinite or not a number
    #[arg(long)]
    pub any_loss: bool,
    /// Steps that are under way at a time: while the device works on one, the next one's rows are copied
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub in_flight: u32,
    /// Convert data and inputs from files to the type that the model wants, and say what that changes
    #[arg(long)]
    pub cast: bool,
    /// Make up the weights that the model's archive lacks
    #[arg(long)]
    pub random_weights: bool,
    #[command(flatten)]
    pub compile: CompileOptions,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}
