//! Arguments of `wgfc run` and `wgfc generate`.

use super::{
    AdapterArgs, CacheArgs, CompileOptions, ExpectArgs, FusionArg, PrecisionArgs, SpeculationArgs,
    parse_bias, parse_bytes,
};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// How the pixels of a picture become numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ImageNorm {
    /// To 0..1, minus the mean and over the deviation of ImageNet (what torchvision's classifiers want)
    #[default]
    Imagenet,
    /// To 0..1
    Unit,
    /// Left as 0..255
    None,
}

/// Where the numbers of a run come from.
#[derive(Args, Clone, Debug)]
pub struct DataArgs {
    /// An input; may be repeated
    #[arg(short, long = "input", value_name = "[NAME=]SOURCE")]
    pub inputs: Vec<String>,
    /// Fill every input that is not given with random numbers
    #[arg(long)]
    pub random_inputs: bool,
    /// Convert inputs from files to the type that the model wants, and say what that changes
    #[arg(long)]
    pub cast: bool,
    /// Use random numbers for the weights that the model keeps in other files, or that its archive lacks, scaled so that
    /// activations stay finite
    #[arg(long)]
    pub random_weights: bool,
    /// How the pixels of pictures become numbers
    #[arg(long, value_enum, default_value_t)]
    pub image_norm: ImageNorm,
    /// Run the kernels of a compiled folder without checks of bounds, as those that are compiled from a model and proven
    /// to need none; only for folders that nobody else can have changed
    #[arg(long)]
    pub trust: bool,
}

/// `wgfc run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Inputs, as --input NAME=SOURCE:
  x.npy                 a NumPy array
  x.pb                  an ONNX TensorProto, as in ONNX's own test data
  x.png, x.jpg          a picture: scaled to cover the input's height and width, cut to its centre,
                        RGB, channels first or last as the input has them, normalised by --image-norm
  random, random:SEED   floats with mean 0 and variance 1; integers and booleans 0 or 1
  zeros, ones, NUMBER   every element the same
  iota                  0, 1, 2, ... (position ids)
A model with one input takes --input SOURCE alone.

Examples:
  wgfc run mobilenetv2.onnx --random-weights --random-inputs --dim batch=1
  wgfc run resnet50.onnx --input photo.jpg --labels imagenet.txt
  wgfc run bert.onnx --input input_ids=ids.npy --random-inputs --output-dir results/
  wgfc run out/ --input x=random:7 --dim batch=32 --repeat 20 --profile

Symbolic dimensions take their values from the inputs that are files; --dim gives the others.
Without a GPU, and where the only adapter is a software one that was not named with --adapter or WGFC_ADAPTER, the
model runs on the CPU with the reference evaluator, and says so.")]
pub struct RunArgs {
    /// A model (ONNX, or a .pt2 of torch.export), or a folder or file that `wgfc compile` wrote
    pub model: PathBuf,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub compile: CompileOptions,
    /// Write each output as NAME.npy in this folder
    #[arg(short, long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// The classes' names, one a line, for an output [N, classes] or [N, classes, 1, 1]
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// How many of the best classes to print
    #[arg(long, value_name = "K", default_value_t = 5)]
    pub top: usize,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Run on the CPU with the reference evaluator
    #[arg(long, conflicts_with_all = ["adapter", "profile", "no_cpu"])]
    pub cpu: bool,
    /// Evaluate the model on the CPU first, and fail where an index of a gather or scatter is outside its axis
    #[arg(long)]
    pub check_indices: bool,
    /// Fail instead of running on the CPU when there is no adapter
    #[arg(long)]
    pub no_cpu: bool,
    /// Print the time of each kernel, measured on the device
    #[arg(long)]
    pub profile: bool,
    /// Run this often and print the times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub repeat: u32,
}

/// `wgfc generate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc generate qwen2.5-0.5b/ --prompt \"The sea is\" --max-new-tokens 100
  wgfc generate qwen2.5-0.5b/ --prompt \"The sea is\" --temperature 0.8 --top-p 0.9 --seed 7
  wgfc generate qwen2.5-0.5b/ --prompt \"A person as JSON: \" --json-schema person.schema.json
  wgfc generate model.onnx --tokens 785,9396,374 --stats
  wgfc generate qwen2.5-0.5b/ --prompt \"The sea is\" --expect past_sequence_length=2000
  wgfc generate decoder.onnx --random-weights --tokens 1 --max-new-tokens 200 --stats --quiet
  wgfc generate qwen2.5-7b/ --prompt \"Repeat: the sea is blue.\" --speculate lookup
  wgfc generate qwen2.5-7b/ --prompt \"The sea is\" --draft qwen2.5-0.5b/
  wgfc generate qwen2.5-7b/ --prompt \"$(cat book.txt)\" --max-new-tokens 1 --save-cache book.cache
  wgfc generate qwen2.5-7b/ --prompt \"$(cat book.txt) In short:\" --load-cache book.cache
  wgfc generate smolvlm-256m/ --prompt \"<image> The picture shows\" --image cat.png

A folder holds model.onnx and, for text, tokenizer.json; where it has a generation_config.json, its end
tokens and its sampling apply unless options say otherwise. The model takes token ids and past keys and
values, as exported for text generation; the cache stays on the device. A vision-language model is a folder with
onnx/decoder_model_merged.onnx, embed_tokens.onnx and vision_encoder.onnx.
With --prompt text comes out, with --tokens token ids.")]
pub struct GenerateArgs {
    /// A folder with model.onnx and tokenizer.json, a model's file, or what `wgfc compile --generate` wrote
    #[arg(value_name = "MODEL|DIR")]
    pub model: PathBuf,
    /// The text to continue
    #[arg(long, value_name = "TEXT", required_unless_present = "tokens", conflicts_with = "tokens")]
    pub prompt: Option<String>,
    /// The token ids to continue, as in `1,2,3`
    #[arg(long, value_name = "IDS", value_delimiter = ',', allow_negative_numbers = true)]
    pub tokens: Option<Vec<i64>>,
    /// A picture (PNG, JPEG) for a vision-language model, where `<image>` stands in the prompt, or in front of it; may be repeated
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// Generate at most this many tokens
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_new_tokens: usize,
    /// How many positions the cache may grow to; without it the prompt and the new tokens fit
    #[arg(long, value_name = "N")]
    pub capacity: Option<usize>,
    /// Begin with the cache of this file: tokens of the prompt that it begins with, too, are not processed again
    #[arg(long, value_name = "FILE")]
    pub load_cache: Option<PathBuf>,
    /// Write the cache of the prompt and the new tokens to this file (safetensors)
    #[arg(long, value_name = "FILE")]
    pub save_cache: Option<PathBuf>,
    /// The value of a further input of the model, the same in all runs, such as what an encoder made:
    /// `encoder_hidden_states=encoded.npy`; may be repeated
    #[arg(long, value_name = "NAME=FILE")]
    pub context: Vec<String>,
    /// Add to this tensor of the model in all runs what `--context TENSOR.add=FILE` gives, of the tensor's shape or broadcast to
    /// it; may be repeated
    #[arg(long = "add", value_name = "TENSOR")]
    pub added: Vec<String>,
    /// Replace this tensor of the model by what `--context TENSOR.replace=FILE` gives, and with `TENSOR.where=FILE` (bool) only
    /// in places; may be repeated
    #[arg(long = "replace", value_name = "TENSOR")]
    pub replaced: Vec<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub form: FormArgs,
    /// With --json, print the log-probability of each token, and of the N most likely ones
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Do not end at the end token
    #[arg(long)]
    pub ignore_end: bool,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub decoder: DecoderArgs,
    /// Print speed, set-up times, memory, dispatches and traffic a token, and the bound that the device's measured
    /// bandwidth sets
    #[arg(long)]
    pub stats: bool,
}

/// How the tokens of `wgfc generate` and `wgfc chat` are chosen.
#[derive(Args, Clone, Debug)]
pub struct SamplingArgs {
    /// Draw tokens at this temperature; 0 takes the most likely one each time
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Draw from the K most likely tokens
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Draw from the most likely tokens that make up this share of the probability
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Draw from the tokens of at least this share of the largest probability
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divide positive logits of tokens that occur already, in the prompt too, by R, and multiply others by it
    #[arg(long, value_name = "R")]
    pub repetition_penalty: Option<f32>,
    /// Subtract A from the logits of tokens that have been generated
    #[arg(long, value_name = "A", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtract A from the logit of a token as often as it has been generated
    #[arg(long, value_name = "A", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Add numbers to the logits of tokens, as in `15496:-100,11:2.5`
    #[arg(long, value_name = "ID:A,…", value_delimiter = ',', value_parser = parse_bias)]
    pub logit_bias: Vec<(i64, f32)>,
    /// Where the random numbers begin: the same seed draws the same tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// The form of the output of `wgfc generate`, and of answers of `wgfc chat`.
#[derive(Args, Clone, Debug)]
pub struct FormArgs {
    /// Hold the output to the JSON schema in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["regex", "grammar"])]
    pub json_schema: Option<PathBuf>,
    /// Hold the output to a regular expression
    #[arg(long, value_name = "REGEX", conflicts_with = "grammar")]
    pub regex: Option<String>,
    /// Hold the output to the grammar in this file, in Lark's language
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,
}

/// How `wgfc generate`, `wgfc chat` and `wgfc api` set up a decoder.
#[derive(Args, Clone, Debug)]
pub struct DecoderArgs {
    /// The model is one of the Hugging Face Hub, as ORG/NAME, ORG/NAME@REVISION or ORG/NAME:FILE.gguf: fetch the files that are not in
    /// the cache folder. HF_TOKEN is the user's token, HF_ENDPOINT another server
    #[cfg(feature = "hub")]
    #[arg(long)]
    pub from_hub: bool,
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
    #[command(flatten)]
    pub precision: PrecisionArgs,
    #[command(flatten)]
    pub expect: ExpectArgs,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// `wgfc chat`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wgfc chat qwen2.5-0.5b-instruct/
  wgfc chat qwen2.5-0.5b-instruct/ --system \"Answer in one sentence.\" --temperature 0.7
  echo \"Why is the sky blue?\" | wgfc chat qwen2.5-0.5b-instruct/ --quiet
  wgfc chat qwen2.5-0.5b-instruct/ --json < questions.txt

Each line is a message; /image FILE adds a picture in front of the next one, for models that take pictures,
/reset begins a new conversation, and /exit ends, as the end of the input does.
The prompt is made by the chat template of the model: `chat_template` of tokenizer_config.json, or
chat_template.jinja. The cache stays on the device, and of each turn only the new tokens are processed.
An answer ends at the end tokens of generation_config.json and tokenizer_config.json.")]
pub struct ChatArgs {
    /// A folder with model.onnx, tokenizer.json and a chat template, or what `wgfc compile --generate` wrote of one
    #[arg(value_name = "DIR")]
    pub model: PathBuf,
    /// Instructions to the model, before the first message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// A picture (PNG, JPEG) for a vision-language model, in front of the first message; may be repeated
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// Generate at most this many tokens for an answer
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_new_tokens: usize,
    /// How many positions the cache may grow to: the tokens of the whole conversation
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub capacity: usize,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub form: FormArgs,
    #[command(flatten)]
    pub decoder: DecoderArgs,
}
