//! Arguments of `wgfc reduce` and `wgfc report`.

use super::{AdapterArgs, CompileOptions, parse_dim, parse_positive};
use clap::Args;
use std::path::PathBuf;

/// `wgfc reduce`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc reduce model.onnx --random-weights
  wgfc reduce model.onnx -- --precision f16 --adapter llvmpipe
  wgfc reduce model.onnx --fails 'wgfc compile {} --force' --message 'kernel 3'
  wgfc reduce model.onnx --fails 'python check.py {}' -o small.onnx

Without --fails the fault is one of wgfc itself: `wgfc compare` finds that outputs of the compiled program differ from the
reference evaluator's, or ends with an internal error, a crash, or not at all. What is behind -- are options for it.
With --fails, CMD is a command of the shell in which {} stands for the candidate's file. It fails when it exits as it does
with the original, or as --exit-code says, and its output has the text of --message.

Each candidate is a part of the model: fewer nodes, tensors inside as inputs and outputs, smaller sizes, other weights.
A model whose weights are missing is reduced without them where CMD needs none.")]
pub struct ReduceArgs {
    /// The model (ONNX)
    pub model: PathBuf,
    /// The command that fails, with {} in place of the model's file
    #[arg(long, value_name = "CMD")]
    pub fails: Option<String>,
    /// The exit code with which CMD fails [default: that with the original]
    #[arg(long, value_name = "N", requires = "fails")]
    pub exit_code: Option<i32>,
    /// Text that CMD prints when it fails; without it another fault with the same exit code may take the place of this one
    #[arg(long, value_name = "TEXT", requires = "fails")]
    pub message: Option<String>,
    /// The file to write [default: MODEL.reduced.onnx in the current folder]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Make a symbolic dimension this number, as in `batch=1`, in the model itself; may be repeated
    #[arg(long = "dim", value_name = "NAME=VALUE", value_parser = parse_dim)]
    pub dims: Vec<(String, i64)>,
    /// Make up the weights that the model keeps in other files
    #[arg(long)]
    pub random_weights: bool,
    /// Outputs differ beyond this relative error
    #[arg(long, value_name = "E", default_value_t = 1e-3, value_parser = parse_positive, conflicts_with = "fails")]
    pub tolerance: f64,
    /// End an attempt after this time [default: 10 s and 10 times as long as the original takes]
    #[arg(long, value_name = "SECONDS", value_parser = parse_positive)]
    pub timeout: Option<f64>,
    /// Begin no attempt after this time, and write the smallest model found until then
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = parse_positive)]
    pub budget: f64,
    /// Options for `wgfc compare`
    #[arg(last = true, value_name = "OPTIONS", conflicts_with = "fails")]
    pub compare: Vec<String>,
}

/// `wgfc report`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc report model.onnx -o report.zip
  wgfc report model.reduced.onnx --log failure.txt
  wgfc report model.onnx --anonymous --no-run --dim batch=1

Packs what an issue needs into one file: versions, the adapter and its limits, the options, the graph without weights, the
plan and its kernels, the time of each kernel on made-up weights and inputs, and what fails. No weight and no input is in
it: the model is compiled without them. Numbers that people write, as 1e-5 or the root of 2, stay, and so do few integers,
as shapes have them.")]
pub struct ReportArgs {
    /// A model (ONNX, or a .pt2 of torch.export, of which only versions and errors are packed)
    pub model: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE.zip", default_value = "report.zip")]
    pub output: PathBuf,
    /// Give nodes, tensors, functions and dimensions other names
    #[arg(long)]
    pub anonymous: bool,
    /// Measure nothing
    #[arg(long)]
    pub no_run: bool,
    /// Add this text file as it is, such as what the command printed that failed; may be repeated
    #[arg(long, value_name = "FILE")]
    pub log: Vec<PathBuf>,
    #[command(flatten)]
    pub compile: CompileOptions,
    #[command(flatten)]
    pub adapter: AdapterArgs,
}
