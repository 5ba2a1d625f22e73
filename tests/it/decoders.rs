//! Language models from files without a graph compute the logits that transformers computes.
//!
//! `scripts/language_models.py` writes the models and the logits.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wgfc::compiler::Activations;
use wgfc::compiler::import::gguf;
use wgfc::generate::{Scorer, Windows, compile_decoder};
use wgfc::{
    BatchGenerator, Decoder, Generator, GeneratorOptions, ModelFile, Options, Program, Request, Tensor,
};
use wgfc_compiler::lower::Lowering;
use wgfc_ir::{Border, Graph};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/decoders")
}

/// The names of the models.
fn names() -> Vec<String> {
    let all = std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path());
    let mut names: Vec<String> =
        all.filter(|p| p.is_dir()).map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    assert!(names.len() >= 12, "{names:?}");
    names
}

fn tensor(path: &Path) -> Tensor {
    wgfc::npy::read(path).unwrap()
}

/// The logits of a sequence that is computed in two runs: the first `cut` tokens, and the others.
fn logits(graph: &Graph, ids: &[i64], cut: usize) -> Vec<f32> {
    let mut caches: BTreeMap<String, Tensor> = BTreeMap::new();
    let mut out = vec![];
    for ids in [&ids[..cut], &ids[cut..]] {
        if ids.is_empty() {
            continue;
        }
        let mut given = BTreeMap::from([("input_ids".to_owned(), Tensor::from_i64(vec![1, ids.len()], ids))]);
        for i in graph.inputs.iter().filter(|i| i.name.starts_with("past_key_values")) {
            let ty = graph.ty(i.value);
            let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().unwrap_or(0) as usize).collect();
            let empty = Tensor::from_f32(shape, &[]);
            given.insert(i.name.to_string(), caches.get(&*i.name).cloned().unwrap_or(empty));
        }
        let results = wgfc_ir::eval::evaluate(graph, &given).unwrap();
        for (b, t) in graph.outputs.iter().zip(results) {
            match b.name.strip_prefix("present") {
                None => out.extend(t.to_f32s().unwrap()),
                Some(rest) => drop(caches.insert(format!("past_key_values{rest}"), t)),
            }
        }
    }
    out
}

/// The largest difference, relative to the largest value.
fn difference(got: &[f32], want: &Tensor) -> f32 {
    let want = want.to_f32s().unwrap();
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(0f32, |m, w| m.max(w.abs()));
    got.iter().zip(&want).fold(0f32, |m, (g, w)| m.max((g - w).abs())) / most
}

/// Compares the logits of every model with those in a file; `model` and `logits` are names in the model's folder.
fn have_the_logits_of_transformers(model: &str, logits_of: &str) {
    let ids = tensor(&folder().join("ids.npy")).to_i64s().unwrap();
    let mut wrong = vec![];
    for name in names() {
        let at = folder().join(&name);
        let file = ModelFile::open(&at.join(model)).unwrap();
        let options = Options { dims: [("batch".to_owned(), 1)].into(), ..Options::default() };
        let graph = file.import(&options).unwrap().graph;
        let want = tensor(&at.join(logits_of));
        // The factors of a long context depend on the number of tokens of each run.
        let cuts: &[usize] = if name == "phi3-long" { &[12] } else { &[12, 7] };
        for cut in cuts {
            let d = difference(&logits(&graph, &ids, *cut), &want);
            if d > 2e-5 {
                wrong.push(format!("{name}, cut at {cut}: {d:e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn gguf_files_have_the_logits_of_transformers() {
    have_the_logits_of_transformers("model.gguf", "gguf_logits.npy");
}

#[test]
fn checkpoints_have_the_logits_of_transformers() {
    have_the_logits_of_transformers("config.json", "logits.npy");
}

/// Fused programs on devices, one model for each way in which decoders differ: blocks, norms of queries, windows and caps, experts.
#[test]
fn devices_compute_the_logits_of_transformers() {
    let ids = tensor(&folder().join("ids.npy"));
    for (name, model, logits_of) in [
        ("llama", "model.gguf", "gguf_logits.npy"),
        ("qwen3", "model.gguf", "gguf_logits.npy"),
        ("gemma2", "config.json", "logits.npy"),
        ("mixtral", "model.gguf", "gguf_logits.npy"),
    ] {
        let at = folder().join(name);
        let dims = [("batch", 1), ("past", 0), ("seq", 12)].map(|(k, v)| (k.to_owned(), v)).into();
        let mut options = Options { dims, ..Options::default() };
        let file = ModelFile::open(&at.join(model)).unwrap();
        let mut programs = vec![file.compile(&options).unwrap()];
        // Where a binding is smaller than the largest weight, its parts are bound, and its rows are cut where these are too many.
        let largest = |p: &Program| p.weights.values().filter_map(Tensor::byte_len).max().unwrap();
        for parts in [1.5, 5.0] {
            options.profile.max_binding_bytes = (largest(&programs[0]) as f64 / parts) as u64;
            let cut = file.compile(&options).unwrap();
            assert!(largest(&cut) < largest(&programs[0]) && cut.weights.len() > programs[0].weights.len());
            programs.push(cut);
        }
        let given = programs[0].inputs.iter().map(|i| match &*i.name {
            "input_ids" => (i.name.clone(), ids.clone()),
            name => {
                let shape = i.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
                (name.to_owned(), Tensor::from_f32(shape, &[]))
            }
        });
        let given: BTreeMap<String, Tensor> = given.collect();
        for (gpu, program) in
            Backend::adapters().into_iter().flat_map(|gpu| programs.iter().map(move |p| (gpu.clone(), p)))
        {
            let got = run_session(&mut session(&gpu, program).unwrap(), &given).unwrap();
            let d = difference(&got[0].to_f32s().unwrap(), &tensor(&at.join(logits_of)));
            assert!(d < 5e-5, "{name} on {}: {d:e}", gpu.summary().name);
        }
    }
}

/// The inputs of a program for the first token alone, with an empty cache, and the logits behind it that a model's folder has.
fn first_token(program: &Program, at: &Path) -> (BTreeMap<String, Tensor>, Tensor) {
    let ids = tensor(&folder().join("ids.npy")).to_i64s().unwrap();
    let given = program.inputs.iter().map(|i| match &*i.name {
        "input_ids" => (i.name.clone(), Tensor::from_i64(vec![1, 1], &ids[..1])),
        name => {
            let shape = i.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
            (name.to_owned(), Tensor::from_f32(shape, &[]))
        }
    });
    let want = tensor(&at.join("gguf_logits.npy"));
    let vocabulary = *want.shape.last().unwrap();
    (given.collect(), Tensor::from_f32(vec![vocabulary], &want.to_f32s().unwrap()[..vocabulary]))
}

/// A step of one token: norms, rotary embeddings and the cache's update of all heads are one dispatch, as are a mixture's gates and ups where
/// a kernel may bind so much.
#[test]
fn steps_of_one_token_are_few_dispatches() {
    for (name, buffers, most) in [("qwen3", 8, 13), ("qwen3moe", 8, 22), ("qwen3moe", 16, 20)] {
        let at = folder().join(name);
        let dims = [("batch", 1), ("past", 0), ("seq", 1)].map(|(k, v)| (k.to_owned(), v)).into();
        let mut options = Options { dims, ..Options::default() };
        options.profile.max_storage_buffers = buffers;
        let program = ModelFile::open(&at.join("model.gguf")).unwrap().compile(&options).unwrap();
        assert!(program.dispatches.len() <= most, "{name}: {} dispatches", program.dispatches.len());
        let (given, want) = first_token(&program, &at);
        for gpu in Backend::adapters() {
            let got = run_session(&mut session(&gpu, &program).unwrap(), &given).unwrap();
            let d = difference(&got[0].to_f32s().unwrap(), &want);
            assert!(d < 5e-5, "{name} on {}: {d:e}", gpu.summary().name);
        }
    }
}

/// Products of one token with quantised weights, in integers: within what rounding the rows to 8 bits does.
#[test]
fn rounded_activations_compute_nearly_the_same_logits() {
    // Its matrices have blocks of Q2_K to Q6_K: scales with factors, minima, elements in two fields.
    let at = folder().join("llama-tied");
    let dims = [("batch", 1), ("past", 0), ("seq", 1)].map(|(k, v)| (k.to_owned(), v)).into();
    let options = Options { dims, activations: Activations::Q8, ..Options::default() };
    let program = ModelFile::open(&at.join("model.gguf")).unwrap().compile(&options).unwrap();
    let integers = program.kernels.iter().filter(|k| k.wgsl.contains("dot4I8Packed")).count();
    assert_eq!(integers, 8, "of {} kernels", program.kernels.len());
    let (given, want) = first_token(&program, &at);
    for gpu in Backend::adapters() {
        let got = run_session(&mut session(&gpu, &program).unwrap(), &given).unwrap();
        let d = difference(&got[0].to_f32s().unwrap(), &want);
        assert!((1e-4..2e-2).contains(&d), "on {}: {d:e}", gpu.summary().name);
    }
}

/// The cache of a generator and the program for prompts, cut into chunks, predict what transformers predicts.
#[test]
fn likelihoods_are_those_of_transformers() {
    let ids = tensor(&folder().join("ids.npy")).to_i64s().unwrap();
    for (name, model, logits_of) in
        [("llama", "model.gguf", "gguf_logits.npy"), ("qwen2", "config.json", "logits.npy")]
    {
        let at = folder().join(name);
        let want = tensor(&at.join(logits_of));
        let vocabulary = *want.shape.last().unwrap();
        let want: Vec<f64> = want
            .to_f32s()
            .unwrap()
            .chunks(vocabulary)
            .zip(&ids[1..])
            .map(|(row, id)| {
                let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
                f64::from(row[*id as usize]) - sum.ln()
            })
            .collect();
        let decoder = Decoder::open(&at.join(model)).unwrap();
        for gpu in Backend::adapters() {
            for prompt_chunk in [1, 5, 512] {
                let options = GeneratorOptions {
                    capacity: 11,
                    prompt_chunk: Some(prompt_chunk),
                    ..GeneratorOptions::default()
                };
                let mut scorer = Scorer::on_device(gpu.clone(), &decoder, &options).unwrap();
                let near = |got: &[f64], want: &[f64]| {
                    let d = got.iter().zip(want).fold(0f64, |m, (g, w)| m.max((g - w).abs()));
                    assert!(got.len() == want.len() && d < 2e-4, "{name}, {prompt_chunk}: {d:e}");
                };
                near(&scorer.log_likelihoods(&ids, 1).unwrap(), &want);
                near(&scorer.log_likelihoods(&ids, 8).unwrap(), &want[7..]);
                // A window that holds the text, and two of which the second begins anew.
                let whole = Windows { length: 12, stride: 6 };
                let all = scorer.perplexity(&ids, whole, &mut |_| {}).unwrap();
                near(&[all.mean_nll], &[-want.iter().sum::<f64>() / 11.0]);
                let halves = scorer.perplexity(&ids, Windows { length: 6, stride: 6 }, &mut |_| {}).unwrap();
                let second = scorer.log_likelihoods(&ids[6..], 1).unwrap();
                let sum = want[..5].iter().chain(&second).sum::<f64>();
                assert_eq!((halves.tokens, halves.windows), (10, 2));
                near(&[halves.mean_nll], &[-sum / 10.0]);

                assert!(scorer.log_likelihoods(&ids, 0).is_err());
                assert!(scorer.log_likelihoods(&[3, 96], 1).is_err(), "outside the vocabulary");
                assert!(scorer.log_likelihoods(&[3; 13], 1).is_err(), "more than the cache holds");
                for (length, stride) in [(1, 1), (4, 0), (4, 5)] {
                    assert!(scorer.perplexity(&ids, Windows { length, stride }, &mut |_| {}).is_err());
                }
                assert!(scorer.perplexity(&ids[..1], whole, &mut |_| {}).is_err());
            }
        }
    }
}

/// Exports of torch with transformers' static cache, which `scripts/static_cache.py` writes.
#[test]
fn static_caches_generate_what_transformers_does() {
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/static-cache");
    let ids = tensor(&at.join("ids.npy")).to_i64s().unwrap();
    let greedy = |n| Request { max_new_tokens: n, ..Request::default() };
    for name in ["llama", "qwen2"] {
        let want = tensor(&at.join(format!("{name}.logits.npy"))).to_f32s().unwrap();
        let tokens = tensor(&at.join(format!("{name}.tokens.npy"))).to_i64s().unwrap();
        let decoder = Decoder::open(&at.join(format!("{name}.pt2"))).unwrap();
        let row = |i: usize| Tensor::from_f32(vec![96], &want[96 * i..96 * (i + 1)]);
        for gpu in Backend::adapters() {
            for prompt_chunk in [3, 512] {
                let options =
                    GeneratorOptions { prompt_chunk: Some(prompt_chunk), ..GeneratorOptions::default() };
                let mut g = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
                assert_eq!((g.capacity(), g.is_empty()), (24, true));
                let all: Vec<i64> = g.generate(&ids, &greedy(8)).unwrap().map(|t| t.unwrap()).collect();
                assert_eq!((&all, g.len()), (&tokens, 20), "{name}");
                // Positions that were written by later tokens are hidden from queries, and written again.
                for keep in [11, 5, 0] {
                    g.rewind(keep).unwrap();
                    let (logits, _) = g.logits(&ids[keep..12.min(keep + 4)]).unwrap();
                    let d = difference(&logits.to_f32s().unwrap(), &row(g.len() - 1));
                    assert!(d < 5e-5, "{name}, {keep}: {d:e}");
                }
                let again = g.complete(&ids, &greedy(8)).unwrap().map(|t| t.unwrap());
                assert_eq!(again.collect::<Vec<_>>(), tokens);
                g.reset().unwrap();
                let full = g.generate(&ids, &greedy(13)).err().unwrap().to_string();
                assert!(full.contains("max_cache_len"), "{full}");
                assert_eq!(g.generate(&ids, &greedy(12)).unwrap().filter(Result::is_ok).count(), 12);

                let mut one = BatchGenerator::on_device(gpu.clone(), &decoder, 1, &options).unwrap();
                let all = one.generate(&[&ids], &greedy(8)).unwrap();
                assert_eq!(all.map(|t| t.unwrap()[0].unwrap()).collect::<Vec<_>>(), tokens);
                assert!(BatchGenerator::on_device(gpu.clone(), &decoder, 2, &options).is_err());
                let mut scorer = Scorer::on_device(gpu.clone(), &decoder, &options).unwrap();
                for (found, i) in scorer.log_likelihoods(&ids, 1).unwrap().into_iter().zip(0..) {
                    let row = row(i).to_f32s().unwrap();
                    let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
                    let want = f64::from(row[ids[i + 1] as usize]) - sum.ln();
                    assert!((found - want).abs() < 2e-4, "{name}, {i}: {found} and {want}");
                }
                assert!(scorer.log_likelihoods(&[3; 26], 1).is_err());
            }
        }
        let compiled = compile_decoder(&decoder, &Options::default()).err().unwrap().to_string();
        assert!(compiled.contains("fixed size"), "{compiled}");
    }
}

/// A decoder shaped as Whisper's and what its encoder made, which `scripts/encoder_decoder.py` writes.
#[test]
fn decoders_generate_from_what_an_encoder_made() {
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/whisper");
    let features = tensor(&at.join("input_features.npy"));
    let want = tensor(&at.join("tokens.npy")).to_i64s().unwrap();
    let encoder = ModelFile::open(&at.join("encoder.onnx")).unwrap().import(&Options::default()).unwrap();
    let given = BTreeMap::from([("input_features".to_owned(), features)]);
    let encoded = wgfc_ir::eval::evaluate(&encoder.graph, &given).unwrap().remove(0);
    let decoder = Decoder::open(&at.join("decoder.onnx")).unwrap();
    let with = |name: &str, t: &Tensor| GeneratorOptions {
        context: BTreeMap::from([(name.to_owned(), t.clone())]),
        capacity: 24,
        ..GeneratorOptions::default()
    };
    let greedy = Request { max_new_tokens: want.len(), ..Request::default() };
    for gpu in Backend::adapters() {
        let new = |options| Generator::on_device(gpu.clone(), &decoder, &options);
        let mut g = new(with("encoder_hidden_states", &encoded)).unwrap();
        for _ in 0..2 {
            let tokens = g.complete(&[1], &greedy).unwrap().map(|t| t.unwrap());
            assert_eq!(tokens.collect::<Vec<_>>(), want);
        }
        assert!(g.profile(2).is_ok());
        let refused = |options, words: &str| {
            let error = new(options).err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(GeneratorOptions::default(), "--context");
        refused(with("encoded", &encoded), "no input `encoded`");
        let narrow = Tensor::from_f32(vec![1, 20, 16], &[0.0; 320]);
        refused(with("encoder_hidden_states", &narrow), "cannot be");
    }
}

#[test]
fn blocks_have_the_values_of_the_package_gguf() {
    let bytes = std::fs::read(folder().join("kinds.gguf")).unwrap();
    let want = std::fs::read(folder().join("kinds.safetensors")).unwrap();
    let want = safetensors::SafeTensors::deserialize(&want).unwrap();
    let header = gguf::open(&bytes).unwrap();
    assert_eq!(header.tensors.len(), 15);
    for name in header.tensors.keys() {
        let mut graph = Graph::new();
        let value = gguf::tensor(&mut Lowering::new(&mut graph), &bytes, &header, name).unwrap();
        graph.outputs.push(Border { name: (*name).into(), value });
        let got = wgfc_ir::eval::evaluate(&graph, &BTreeMap::new()).unwrap()[0].to_f32s().unwrap();
        let want = want.tensor(name).unwrap();
        let bits: Vec<u32> = got.iter().map(|v| v.to_bits()).collect();
        let want: Vec<u32> =
            want.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert!(bits == want, "{name}");
        for gpu in Backend::adapters() {
            let program = crate::states::fused(&graph, &Options::default());
            let on_device = run_session(&mut session(&gpu, &program).unwrap(), &BTreeMap::new()).unwrap();
            let on_device = on_device[0].to_f32s().unwrap();
            // A device may add without rounding the product first.
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * (a.abs() + 1.0);
            assert!(on_device.iter().zip(&got).all(near), "{name} on {}", gpu.summary().name);
        }
    }
}
