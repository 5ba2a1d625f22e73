//! The arguments of `wgfc api`.

use super::{DecoderArgs, parse_bytes};
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use wgfc::generate::Pooling;

/// How the hidden states of a text become its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PoolingArg {
    /// Their mean
    Mean,
    /// The one of the last token
    Last,
    /// The one of the first token
    Cls,
}

impl PoolingArg {
    /// The library's name for it.
    pub fn of_library(self) -> Pooling {
        match self {
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::Last => Pooling::Last,
            PoolingArg::Cls => Pooling::Cls,
        }
    }
}

/// `wgfc api`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc api qwen2.5-0.5b/
  wgfc api qwen2.5-0.5b/ --port 8000 --batch 16 --queue 64 --capacity 8192
  wgfc api qwen3-embedding/ --embeddings --pooling last
  wgfc api qwen2.5-0.5b/ --host 0.0.0.0 --port 8000 --api-key keys.txt
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"qwen2.5-0.5b\", \"prompt\": \"The sea is\", \"max_tokens\": 100, \"stream\": true}'

Answers POST /v1/completions and /v1/chat/completions as OpenAI's servers do, streamed or whole, and GET /v1/models,
/health and /metrics (for Prometheus). Sequences of several requests are generated together; a further request waits in
the queue, and beyond that is answered with status 429. With --embeddings it answers POST /v1/embeddings instead: the model
is a decoder, or an encoder with an output last_hidden_state.")]
pub struct ApiArgs {
    /// A folder with model.onnx and tokenizer.json, a model's file, or what `wgfc compile --generate` wrote
    #[arg(value_name = "MODEL|DIR")]
    pub model: PathBuf,
    /// The address to listen to; 127.0.0.1 is reached from this machine only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// The port to listen to; without it one that is free
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// The name of the model in requests; without it that of the folder or file
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// A file with the keys that requests may have, one a line; without it the key in the variable WGFC_API_KEY, or none
    #[arg(long, value_name = "FILE")]
    pub api_key: Option<PathBuf>,
    /// How many sequences are generated at a time; without it 8, or 1 if the model takes one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: Option<u16>,
    /// How many sequences may wait
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(0..=8192))]
    pub queue: u16,
    /// The most bytes of a request, as in `4MB`
    #[arg(long, value_name = "SIZE", default_value = "1MB", value_parser = parse_bytes)]
    pub max_body: u64,
    /// The most tokens of a sequence, prompt and new ones, for which the cache has room
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub capacity: usize,
    /// How many tokens of a prompt are processed at a time, without it 512 for GGUF files and checkpoints and 128 for others; with --embeddings how
    /// many tokens of texts, without it 1024
    #[arg(long, value_name = "N")]
    pub prompt_chunk: Option<usize>,
    /// Make embeddings of texts instead of generating
    #[arg(long, conflicts_with = "batch")]
    pub embeddings: bool,
    /// How the hidden states of a text become its embedding; without it as the model's files say, or mean
    #[arg(long, value_enum, value_name = "KIND", requires = "embeddings")]
    pub pooling: Option<PoolingArg>,
    #[command(flatten)]
    pub decoder: DecoderArgs,
}
