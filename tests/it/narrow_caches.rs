//! Caches in fewer bits than the activations.

use crate::states::roomy;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wgfc::generate::ContinuousGenerator;
use wgfc::{BatchGenerator, Decoder, Generator, GeneratorOptions, Request};
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::{CacheType, Options, States, states};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::{DType, Tensor};
use wgfc_runtime::testing::gpus;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// The relative difference of norms.
fn difference(got: &[f32], want: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(want).map(|(a, b)| f64::from(a - b)));
    error / norm(&mut want.iter().map(|v| f64::from(*v)))
}

/// Growing caches, those whose sequences have ends of their own, those of one size and windows: the device computes what the evaluator does,
/// and both nearly what the model does with its own cache. The steps are numbers of new positions.
#[test]
fn every_kind_of_cache_can_be_narrow() {
    let kinds: [(&str, i64, &[usize]); 5] = [
        ("decoder-ragged", 3, &[5, 1, 1]),
        ("cache-static", 1, &[3, 1, 1, 4]),
        ("cache-window", 1, &[3, 1, 7, 2]),
        ("cache-sliding", 1, &[3, 1, 7, 2, 1]),
        ("decoder", 1, &[5, 1, 2]),
    ];
    for (kind, batch, steps) in kinds {
        let bytes = std::fs::read(fixture("small").join(kind).join("model.onnx")).unwrap();
        let mut own: Vec<Vec<f32>> = vec![];
        for cache in [CacheType::Own, CacheType::F16, CacheType::Q8] {
            let mut options =
                Options { cache, states: States::Auto { capacity: None }, ..Options::default() };
            if batch > 1 {
                options.dims.insert("batch".into(), batch);
            }
            let mut graph = import(&bytes, &NoExternalData, &options).unwrap().graph;
            states::introduce(&mut graph, &options.states).unwrap();
            let left = states::narrow(&mut graph, cache).unwrap();
            // Six elements of 8 bits are no whole words. A window of one size is made anew in every run. The values of a static cache are written
            // element by element here, its keys by rows.
            let words = kind == "decoder" && cache == CacheType::Q8;
            let kept = words || cache == CacheType::Own || kind == "cache-window";
            let partly = kind == "cache-static" && cache != CacheType::Own;
            assert_eq!(!left.is_empty(), words || partly, "{kind}: {left:?}");
            let program = wgfc_compiler::compile(&bytes, &NoExternalData, &options).unwrap();
            let narrow = |d: DType| d == DType::I8 || d == DType::F16;
            assert_eq!(program.states.iter().any(|s| narrow(s.dtype)), !kept, "{kind}");
            let mut wanted = vec![];
            for (number, gpu) in gpus().iter().enumerate() {
                let mut session = roomy(gpu, &program, 40).unwrap();
                let capacities = [("capacity".to_owned(), 40)].into();
                let mut values = StateValues { capacities, ..StateValues::default() };
                let mut at = 0;
                for (step, n) in steps.iter().copied().enumerate() {
                    let given = inputs(&program, batch as usize, at, n, step);
                    at += n;
                    let want = evaluate_from(&graph, &given, &mut values).unwrap()[0].to_f32s().unwrap();
                    let named: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
                    let got = session.run_blocking(&named).unwrap()[0].1.to_f32s().unwrap();
                    let d = difference(&got, &want);
                    // An element between two integers can become either.
                    assert!(d < 1e-3, "{kind}, {cache}, step {step} on {}: {d:e}", gpu.summary().name);
                    if number == 0 {
                        wanted.push(want);
                    }
                }
            }
            // New positions of a sliding window are read as they are.
            let mut rounded = false;
            for (got, want) in wanted.iter().zip(&own) {
                let d = difference(got, want);
                let most = if cache == CacheType::F16 { 1e-3 } else { 1e-2 };
                assert!(d < most, "{kind}, {cache}: {d:e}");
                rounded |= d > 0.0;
            }
            assert_eq!(rounded, !kept, "{kind}, {cache}");
            if cache == CacheType::Own {
                own = wanted;
            }
        }
    }
}

/// The inputs of a run of `n` positions behind `at` others.
fn inputs(
    program: &wgfc::Program,
    batch: usize,
    at: usize,
    n: usize,
    step: usize,
) -> BTreeMap<String, Tensor> {
    let of = |name: &str| match name {
        "input_ids" => {
            let ids: Vec<i64> = (0..batch * n).map(|i| ((i * 7 + step * 5) % 13) as i64).collect();
            Tensor::from_i64(vec![batch, n], &ids)
        }
        "attention_mask" => Tensor::from_i64(vec![batch, at + n], &vec![1; batch * (at + n)]),
        "position_ids" => {
            let all: Vec<i64> = (0..batch).flat_map(|_| (at..at + n).map(|p| p as i64)).collect();
            Tensor::from_i64(vec![batch, n], &all)
        }
        "position" => Tensor::from_i64(vec![n], &(at..at + n).map(|p| p as i64).collect::<Vec<_>>()),
        _ => {
            let x: Vec<f32> = (0..n * 8).map(|i| ((i * 7 + step * 5) % 13) as f32 * 0.3 - 1.8).collect();
            Tensor::from_f32(vec![1, n, 8], &x)
        }
    };
    program.inputs.iter().map(|i| (i.name.clone(), of(&i.name))).collect()
}

fn tokens(g: &mut Generator, prompt: &[i64], n: usize) -> Vec<i64> {
    let request = Request { max_new_tokens: n, ..Request::default() };
    g.generate(prompt, &request).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Whatever is done with a cache works with one of 8 bits, and makes the same tokens.
#[test]
fn generators_have_caches_of_8_bits() {
    let prompt: Vec<i64> = (0..19).map(|i| (i * 5 + 3) % 90).collect();
    let model = fixture("decoders/llama/model.gguf");
    let decoder = Decoder::open(&model).unwrap();
    for gpu in gpus() {
        let options = GeneratorOptions {
            capacity: 160,
            prompt_chunk: Some(8),
            cache: CacheType::Q8,
            ..GeneratorOptions::default()
        };
        let mut g = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
        let own = GeneratorOptions { cache: CacheType::Own, ..options.clone() };
        let mut exact = Generator::on_device(gpu.clone(), &decoder, &own).unwrap();
        let (bytes, of_f32) = (g.device_memory().states, exact.device_memory().states);
        // Heads of 8 elements have a scale each.
        assert_eq!(bytes * 32, of_f32 * 12);
        let logits = |g: &mut Generator| g.logits(&prompt).unwrap().0.to_f32s().unwrap();
        let d = difference(&logits(&mut g), &logits(&mut exact));
        assert!((1e-6..1e-2).contains(&d), "{d:e}");
        g.reset().unwrap();
        exact.reset().unwrap();
        let want = tokens(&mut g, &prompt, 40);
        assert_eq!(tokens(&mut exact, &prompt, 40), want);

        // A fork, and a cache in a file.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cache.safetensors");
        g.reset().unwrap();
        g.logits(&prompt).unwrap();
        let mut fork = g.fork().unwrap();
        g.save_cache(&file).unwrap();
        let next = tokens(&mut g, &[7], 10);
        assert_eq!(tokens(&mut fork, &[7], 10), next);
        g.load_cache(&file).unwrap();
        assert_eq!(g.len(), prompt.len());
        assert_eq!(tokens(&mut g, &[7], 10), next);
        let e = exact.load_cache(&file).unwrap_err().to_string();
        assert!(e.contains("is i8[1, 2, 19, 8], and f32[1, 2, capacity, 8] in the model"), "{e}");

        // Positions of rejected guesses leave the cache.
        let guessing = GeneratorOptions { speculate: 3, ..options.clone() };
        let mut guessing = Generator::on_device(gpu.clone(), &decoder, &guessing).unwrap();
        assert_eq!(tokens(&mut guessing, &prompt, 40), want);
    }
}

/// Several sequences at once, of which one begins with the cached positions of another.
#[test]
fn sequences_share_positions_of_8_bits() {
    let decoder = Decoder::open(&fixture("decoders/llama/model.gguf")).unwrap();
    let prompt: Vec<i64> = (0..27).map(|i| (i * 5 + 3) % 90).collect();
    let request = Request { max_new_tokens: 8, ..Request::default() };
    for gpu in gpus().iter().take(1) {
        let options = GeneratorOptions { cache: CacheType::Q8, ..GeneratorOptions::default() };
        let mut one = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
        let other: Vec<i64> = prompt[..20].iter().copied().chain([1, 2]).collect();
        let mut want = |prompt: &[i64]| {
            one.reset().unwrap();
            tokens(&mut one, prompt, 8)
        };
        let (first, second) = (want(&prompt), want(&other));
        let mut both = BatchGenerator::on_device(gpu.clone(), &decoder, 2, &options).unwrap();
        let made = both.generate(&[&prompt, &other], &request).unwrap();
        let mut rows = vec![vec![]; 2];
        for step in made {
            for (row, token) in step.unwrap().into_iter().enumerate() {
                rows[row].extend(token);
            }
        }
        assert_eq!(rows, [first.clone(), second.clone()]);
        let mut all = ContinuousGenerator::on_device(gpu.clone(), &decoder, 2, &options).unwrap();
        for (prompt, want) in [(&prompt, &first), (&other, &second)] {
            all.join(prompt, &request).unwrap();
            let mut made = vec![];
            while all.running() > 0 {
                made.extend(all.step().unwrap().into_iter().map(|g| g.token.unwrap()));
            }
            assert_eq!(&made, want);
        }
        // A whole page of the prefix.
        assert_eq!(all.reused(), 16);
    }
}
