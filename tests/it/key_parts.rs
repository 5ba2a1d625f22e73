//! Attention whose keys are split into parts by their number.

use std::path::Path;
use wgfc::generate::fused;
use wgfc::{Decoder, Generator, GeneratorOptions, Request};
use wgfc_compiler::Technique;
use wgfc_compiler::device::Speeds;
use wgfc_compiler::kernel::Family;
use wgfc_runtime::testing::gpus;

/// Where dispatches cost little and reading much, keys are split into up to 64 parts of at least 64, which a kernel of their own combines:
/// behind one, two and more parts the tokens are those of keys that are not split.
#[test]
fn parts_grow_with_the_cache() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/decoders/llama/model.gguf");
    let decoder = Decoder::open(&model).unwrap();
    let prompt: Vec<i64> = (0..57).map(|i| (i * 5 + 3) % 90).collect();
    let slow = Speeds { cores: 64.0, workgroup_bandwidth: 1e6, dispatch_cost: 1e-9, ..Speeds::DISCRETE };
    let options = |split| {
        let without = if split { [].into() } else { [Technique::KeyParts].into() };
        GeneratorOptions { capacity: 200, speeds: slow, without, ..GeneratorOptions::default() }
    };
    for gpu in gpus() {
        let parts = |split| -> Vec<String> {
            let all = fused(gpu, &decoder, &options(split)).unwrap();
            let of = |f: &Family| match f {
                Family::Attention(a) => Some(a.parts.to_string()),
                _ => None,
            };
            all[0].0.kernels.kernels.iter().filter_map(|k| of(&k.family)).collect()
        };
        assert!(!parts(true).is_empty());
        assert!(parts(true).iter().all(|p| p.contains("min(64, ")), "{:?}", parts(true));
        assert!(parts(false).iter().all(|p| p == "1"), "{:?}", parts(false));
        let tokens = |split| -> Vec<i64> {
            let mut g = Generator::on_device(gpu.clone(), &decoder, &options(split)).unwrap();
            let request = Request { max_new_tokens: 90, ..Request::default() };
            g.generate(&prompt, &request).unwrap().collect::<Result<_, _>>().unwrap()
        };
        assert_eq!(tokens(true), tokens(false));
    }
}
