//! Arguments of `wgfc selftest`.

use super::AdapterArgs;
use clap::Args;
use std::path::PathBuf;

/// `wgfc selftest`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc selftest
  wgfc selftest --seconds 600 --seed 7 --save differs/
  wgfc selftest --only Softmax --adapter llvmpipe
  wgfc selftest --case 'Softmax 17' --save differs/

Each case is an operator with random shapes, types and attributes, a random graph or a random loop. It is
compiled for the adapter, with random fusion, parts of it left out, features of the device and ways to cut
kernels up, and compared with the reference evaluator. The same seed gives the same cases in the same order.
A case that differs is made as small as it can be while it differs; --save keeps that as a model, its
inputs, and the program as it was compiled.

Exits with 4 where something differs.")]
pub struct SelftestArgs {
    /// Begin no case after so many seconds
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Which cases; another seed has others
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Only operators whose name contains this, or `graph`, or `loop`
    #[arg(long, value_name = "NAME", conflicts_with = "case")]
    pub only: Option<String>,
    /// This case alone, as in 'Softmax 17'
    #[arg(long, value_name = "CASE", conflicts_with = "seconds")]
    pub case: Option<String>,
    /// Write the smallest model of each finding, with inputs and outputs, into a folder of its own in this one
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Cases at once; without it one a core, at most 16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(v) if (0.0..=1e6).contains(&v) => Ok(v),
        _ => Err("it is a number of seconds, at most a million".into()),
    }
}
