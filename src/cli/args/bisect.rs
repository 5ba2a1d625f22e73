//! Arguments of `wgfc bisect`.

use super::{AdapterArgs, CacheArgs, CompileOptions, DataArgs, parse_positive};
use clap::Args;
use std::path::PathBuf;

/// `wgfc bisect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc bisect model.onnx --dim batch=1
  wgfc bisect model.onnx --input x=x.npy --precision f16
  wgfc bisect model.onnx --passes-only --random-weights

The graph is evaluated on the CPU after each pass of the compiler, with the same inputs; those that are not given are random. If all results
agree, each kernel runs alone on the adapter, on inputs that the evaluator computes, and then the whole program. The first pass, or
kernel, whose results differ is named, with what it changed. Then the exit code is 4.")]
pub struct BisectArgs {
    /// A model (ONNX, or a .pt2 of torch.export)
    pub model: PathBuf,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub compile: CompileOptions,
    /// The relative error that is no difference; a hundredth of it absolutely [default: 1e-3, or 5e-2 with --precision or --weights]
    #[arg(long, value_name = "E", value_parser = parse_positive)]
    pub tolerance: Option<f64>,
    /// Evaluate after the passes only, which needs no adapter
    #[arg(long)]
    pub passes_only: bool,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}
