//! Arguments of `wgfc compare`.

use super::{AdapterArgs, CacheArgs, CompileOptions, DataArgs, parse_positive};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// The reference that a model is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReferenceArg {
    /// The model compiled without --precision, which keeps the types that it declares
    F32,
    /// A kernel for each operator, with the types that the model declares
    Unfused,
    /// The reference evaluator on the CPU
    Evaluator,
}

/// `wgfc compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc compare model.onnx --precision f16
  wgfc compare model.onnx --precision f16 --keep-f32 /layer3/Mul --input x=x.npy
  wgfc compare model.onnx --reference evaluator --dim batch=1
  wgfc compare model.onnx --expected saved/ --input x=x.npy

With --expected the results are compared with tensors that ONNX Runtime, PyTorch or another program saved: NAME.npy or
NAME.pb for outputs and for tensors inside. Characters of a name other than letters and digits may be _ in the file's name.
Files named as inputs are given to the model. The first tensor that differs is named.
Otherwise both run on the same inputs; those that are not given are random. The tensors between the kernels and the outputs are compared in
the order in which they are computed. The relative error is that of norms: |a - b| / |b|.")]
pub struct CompareArgs {
    /// A model (ONNX, or a .pt2 of torch.export)
    pub model: PathBuf,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub compile: CompileOptions,
    /// The reference to compare with; default: f32 if --precision is given, else evaluator
    #[arg(long, value_enum, value_name = "WHAT")]
    pub reference: Option<ReferenceArg>,
    /// Compare with saved tensors: a folder of them, or a file, as NAME=FILE or alone; may be repeated
    #[arg(long, value_name = "DIR|[NAME=]FILE", conflicts_with = "reference")]
    pub expected: Vec<String>,
    /// Compare the outputs only
    #[arg(long)]
    pub outputs_only: bool,
    /// Exit with 4 if a tensor differs by more than this relative error, and by more than a hundredth of it absolutely
    #[arg(long, value_name = "E", value_parser = parse_positive)]
    pub tolerance: Option<f64>,
    /// Tensors compared per run; more need more memory
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub at_once: u32,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}
