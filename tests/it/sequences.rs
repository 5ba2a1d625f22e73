//! Kernels that one workgroup runs one after another.

use std::path::Path;
use wgfc::{Decoder, Generator, GeneratorOptions, Request};
use wgfc_compiler::Precision;
use wgfc_compiler::device::Speeds;
use wgfc_runtime::testing::gpus;

/// Where dispatches take long, a token of a small decoder is one, and the tokens are those of kernels in dispatches of their own.
#[test]
fn a_token_of_a_small_decoder_is_one_dispatch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/decoders");
    let models = ["llama/model.gguf", "gemma2/model.gguf", "qwen3/model.gguf", "phi3/model.gguf"];
    let prompt: Vec<i64> = (0..9).map(|i| (i * 5 + 3) % 60).collect();
    for gpu in gpus() {
        for (model, precision) in models.iter().flat_map(|m| [(m, Precision::F32), (m, Precision::F16)]) {
            let decoder = Decoder::open(&folder.join(model)).unwrap();
            let tokens = |speeds| -> (usize, Vec<i64>) {
                let options =
                    GeneratorOptions { capacity: 64, speeds, precision, ..GeneratorOptions::default() };
                let mut g = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
                let dispatches = g.cost(9).0;
                let request = Request { max_new_tokens: 12, ..Request::default() };
                (dispatches, g.generate(&prompt, &request).unwrap().collect::<Result<_, _>>().unwrap())
            };
            let (many, expected) = tokens(Speeds::PORTABLE);
            let (one, found) = tokens(Speeds { dispatch_cost: 1e-3, ..Speeds::DISCRETE });
            println!("{model} {precision:?} on {}: {one} dispatches for {many}", gpu.summary().name);
            assert_eq!(found, expected, "{model} in {precision:?}");
            assert!(
                one == 1 || gpu.profile().storage_buffers < 64 || precision == Precision::F16,
                "{model}: {one} dispatches"
            );
        }
    }
}
