//! Generated tokens equal those of the evaluator, which computes the whole sequence anew for each token.

use std::collections::BTreeMap;
use std::path::Path;
use wgfc::generate::{Decoder, Generator, GeneratorOptions, Request, Sampling};
use wgfc::runtime::testing::gpus;
use wgfc::runtime::{AdapterChoice, Gpu};
use wgfc::{Fusion, ModelFile, Options, Tensor};
use wgfc_ir::Graph;

fn decoder() -> Decoder {
    Decoder::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx")).unwrap()
}

fn options(fusion: Fusion, adapter: &str) -> GeneratorOptions {
    let adapter = adapter.parse::<AdapterChoice>().unwrap();
    GeneratorOptions { capacity: 40, prompt_chunk: Some(4), fusion, adapter, ..Default::default() }
}

/// A generator on the first adapter, for tests of what the host does: kernels are the business of the others.
fn generator(capacity: usize) -> Option<Generator> {
    let gpu = gpus().first()?;
    let options = GeneratorOptions { capacity, ..options(Fusion::Full, &gpu.summary().name) };
    Some(Generator::on_device(gpu.clone(), &decoder(), &options).unwrap())
}

/// A generator on each available adapter, with room for `capacity` tokens.
pub fn generators(fusion: Fusion, capacity: usize) -> Vec<Generator> {
    let options = |gpu: &Gpu| GeneratorOptions { capacity, ..options(fusion, &gpu.summary().name) };
    gpus().iter().map(|gpu| Generator::on_device(gpu.clone(), &decoder(), &options(gpu)).unwrap()).collect()
}

/// The logits of the last position, computed without a cache.
fn recomputed(graph: &Graph, ids: &[i64]) -> Vec<f32> {
    let n = ids.len();
    let positions: Vec<i64> = (0..n as i64).collect();
    let mut given: BTreeMap<String, Tensor> = [
        ("input_ids", Tensor::from_i64(vec![1, n], ids)),
        ("attention_mask", Tensor::from_i64(vec![1, n], &vec![1; n])),
        ("position_ids", Tensor::from_i64(vec![1, n], &positions)),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into();
    for p in graph.inputs.iter().filter(|b| b.name.starts_with("past")) {
        given.insert(p.name.to_string(), Tensor::from_f32(vec![1, 2, 0, 6], &[]));
    }
    let all = wgfc_ir::eval::evaluate(graph, &given).unwrap()[0].to_f32s().unwrap();
    all[all.len() - 37..].to_vec()
}

fn greedy(prompt: &[i64], n: usize) -> Vec<i64> {
    let file = ModelFile::open(decoder().model().path()).unwrap();
    let graph = file.import(&Options::default()).unwrap().graph;
    let mut ids = prompt.to_vec();
    for _ in 0..n {
        let logits = recomputed(&graph, &ids);
        let mut best = 0;
        for (i, l) in logits.iter().enumerate() {
            if *l > logits[best] {
                best = i;
            }
        }
        ids.push(best as i64);
    }
    ids.split_off(prompt.len())
}

fn ask(n: usize) -> Request {
    Request { max_new_tokens: n, ..Request::default() }
}

#[track_caller]
pub fn tokens(g: &mut Generator, prompt: &[i64], request: &Request) -> Vec<i64> {
    g.generate(prompt, request).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn greedy_tokens_are_those_of_a_full_recompute() {
    for fusion in [Fusion::None, Fusion::Full] {
        for mut g in generators(fusion, 40) {
            for prompt in [&[3, 1, 36, 0, 8][..], &[5], &[30, 30, 2]] {
                g.reset().unwrap();
                assert_eq!(tokens(&mut g, prompt, &ask(11)), greedy(prompt, 11), "{fusion:?}");
                assert_eq!(g.len(), prompt.len() + 11);
            }
        }
    }
}

#[test]
fn long_prompts_take_runs_of_any_length() {
    let prompt: Vec<i64> = (0..1300).map(|i| i * 11 % 37).collect();
    for gpu in gpus().iter().take(1) {
        let adapter = gpu.summary().name.parse().unwrap();
        let options = GeneratorOptions { capacity: 2100, adapter, ..GeneratorOptions::default() };
        let fixed = GeneratorOptions { prompt_chunk: Some(512), ..options.clone() };
        let [mut a, mut b] = [options, fixed].map(|o| Generator::new(&decoder(), &o).unwrap());
        // The second prompt takes as many tokens a run as the first one has shown to be possible.
        for n in [1300, 700] {
            assert_eq!(tokens(&mut a, &prompt[..n], &ask(7)), tokens(&mut b, &prompt[..n], &ask(7)));
        }
    }
}

#[test]
fn the_cache_grows_as_it_is_needed() {
    let prompt: Vec<i64> = (0..61).map(|i| i * 11 % 37).collect();
    for gpu in gpus() {
        let options = GeneratorOptions { capacity: 150, ..options(Fusion::Full, &gpu.summary().name) };
        let mut g = Generator::on_device(gpu.clone(), &decoder(), &options).unwrap();
        let room = |g: &Generator| g.session().capacity();
        assert_eq!((g.capacity(), room(&g)), (150, Some(64)));
        assert_eq!(tokens(&mut g, &prompt, &ask(7)), greedy(&prompt, 7));
        assert_eq!(room(&g), Some(128));
        tokens(&mut g, &[], &ask(82));
        assert_eq!((g.len(), room(&g)), (150, Some(150)));
        assert!(g.generate(&[], &ask(1)).err().unwrap().to_string().contains("may grow to 150"));
    }
}

#[test]
fn a_prompt_continues_what_was_generated() {
    if let Some(mut g) = generator(40) {
        let first = tokens(&mut g, &[3, 1, 36], &ask(4));
        let mut so_far = vec![3, 1, 36];
        so_far.extend(&first);
        // An iterator that is dropped early has generated only the tokens it returned.
        so_far.extend([9, 11]);
        let part: Vec<i64> = g.generate(&[9, 11], &ask(5)).unwrap().take(2).map(Result::unwrap).collect();
        assert_eq!(part, greedy(&so_far, 2));
        so_far.extend(&part);
        assert_eq!(g.len(), so_far.len());
        assert_eq!(tokens(&mut g, &[], &ask(3)), greedy(&so_far, 3));
        // Generation ends with a stop token.
        g.reset().unwrap();
        let all = greedy(&[3, 1, 36], 8);
        let stop = all[3];
        let end = all.iter().position(|t| *t == stop).unwrap() + 1;
        assert_eq!(tokens(&mut g, &[3, 1, 36], &Request { stop: vec![stop], ..ask(8) }), all[..end]);
        // The run already started after the stop token leaves nothing in the cache, and neither does one that
        // is never awaited.
        assert_eq!(g.len(), 3 + end);
        assert_eq!(tokens(&mut g, &[], &ask(2)), greedy(&[&[3, 1, 36], &all[..end]].concat(), 2));
        g.reset().unwrap();
        let mut left = g.generate(&[3, 1, 36], &ask(8)).unwrap();
        assert_eq!(left.next().unwrap().unwrap(), all[0]);
        std::mem::forget(left);
        assert_eq!(g.len(), 4);
        assert_eq!(tokens(&mut g, &[], &ask(3)), all[1..4]);
    }
}

#[test]
fn sampling_follows_its_seed_and_its_limits() {
    let prompt = [3, 1, 36, 0, 8];
    let want = greedy(&prompt, 8);
    if let Some(mut g) = generator(40) {
        let mut draw = |sampling: Sampling| {
            g.reset().unwrap();
            tokens(&mut g, &prompt, &Request { sampling: Some(sampling), ..ask(8) })
        };
        let hot = Sampling { temperature: 5.0, seed: 1, ..Sampling::default() };
        assert_eq!(draw(Sampling { top_k: Some(1), ..hot.clone() }), want);
        assert_eq!(draw(Sampling { temperature: 1e-6, ..hot.clone() }), want);
        assert_eq!(draw(hot.clone()), draw(hot.clone()));
        assert_ne!(draw(hot.clone()), draw(Sampling { seed: 2, ..hot.clone() }));
        // Sampling with `top_k` or `top_p` uses other kernels on the device.
        assert_eq!(draw(Sampling { top_p: Some(1e-6), ..hot.clone() }), want);
        let limited = Sampling { top_k: Some(9), top_p: Some(0.9), ..hot };
        assert_eq!(draw(limited.clone()), draw(limited.clone()));
        assert_ne!(draw(limited.clone()), draw(Sampling { seed: 2, ..limited }));
    }
}

#[test]
fn logits_come_without_a_choice_and_prefixes_can_be_computed_again() {
    use wgfc::generate::recompute::Recompute;
    let file = ModelFile::open(decoder().model().path()).unwrap();
    let graph = file.import(&Options::default()).unwrap().graph;
    let mut ids = vec![3, 1, 36, 0, 8];
    if let Some(mut g) = generator(40) {
        ids.truncate(5);
        let options = options(Fusion::Full, &g.session().gpu().summary().name);
        let mut again = Recompute::new(&decoder(), &options).unwrap();
        let (mut logits, mut token) = g.logits(&ids).unwrap();
        for _ in 0..4 {
            let want = recomputed(&graph, &ids);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4 * b.abs().max(1.0);
            assert!(logits.to_f32s().unwrap().iter().zip(&want).all(close));
            assert_eq!([token, again.next(&ids).unwrap()], [greedy(&ids, 1)[0]; 2]);
            assert_eq!(g.len(), ids.len());
            ids.push(token);
            (logits, token) = g.logits(&[token]).unwrap();
        }
        // Before the given tokens, the model reads the generated token that it has not read yet.
        let next = tokens(&mut g, &[7], &ask(1));
        let so_far = [&ids[..], &[7], &next, &[2]].concat();
        assert_eq!(g.logits(&[2]).unwrap().1, greedy(&so_far, 1)[0]);
        assert!(g.logits(&[]).is_err());
        assert_eq!(g.len(), so_far.len());
    }
}

/// Penalties and biases, by their definitions on the logits of each step.
#[test]
fn penalties_and_biases_are_those_of_their_definitions() {
    let how = Sampling {
        top_k: Some(1),
        repetition_penalty: 1.7,
        presence_penalty: 0.3,
        frequency_penalty: 0.6,
        logit_bias: vec![(4, 1.5), (20, -100.0)],
        ..Sampling::default()
    };
    if let Some(mut g) = generator(64) {
        let said = tokens(&mut g, &[8, 2], &ask(2));
        let before = [&[8, 2], &said[..], &[3, 1, 36, 3]].concat();
        let request = Request { sampling: Some(how.clone()), ..ask(14) };
        let got = tokens(&mut g, &[3, 1, 36, 3], &request);
        let mut made: Vec<i64> = vec![];
        for _ in 0..14 {
            g.reset().unwrap();
            let logits = g.logits(&[&before[..], &made].concat()).unwrap().0.to_f32s().unwrap();
            let changed = logits.iter().enumerate().map(|(token, x)| {
                let token = token as i64;
                let times = made.iter().filter(|t| **t == token).count() as f32;
                let seen = before.contains(&token) || times > 0.0;
                let factor = if seen { how.repetition_penalty } else { 1.0 };
                let x = if *x < 0.0 { x * factor } else { x / factor };
                let bias: f32 = how.logit_bias.iter().filter(|(t, _)| *t == token).map(|(_, b)| b).sum();
                x - how.presence_penalty * times.min(1.0) - how.frequency_penalty * times + bias
            });
            let best = changed.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            made.push(best.0 as i64);
        }
        assert_eq!(got, made);
        assert_ne!(got, greedy(&before, 14), "the penalties change nothing");
        // The run that was started ahead leaves nothing.
        g.reset().unwrap();
        let some: Vec<i64> = g.generate(&[3, 1], &request).unwrap().take(3).map(Result::unwrap).collect();
        assert_eq!(g.len(), 5);
        g.reset().unwrap();
        assert_eq!(tokens(&mut g, &[3, 1], &Request { max_new_tokens: 3, ..request }), some);
    }
}

#[test]
fn what_cannot_be_generated_is_refused_and_changes_nothing() {
    if let Some(mut g) = generator(40) {
        assert_eq!((g.vocabulary(), g.capacity()), (37, 40));
        let first = tokens(&mut g, &[3, 1, 36], &ask(4));
        let bad = Sampling { temperature: 0.0, top_k: Some(0), top_p: Some(0.0), ..Sampling::default() };
        let biased = Sampling { logit_bias: vec![(37, 1.0)], ..Sampling::default() };
        for (prompt, request, say) in [
            (&[37][..], ask(1), "token 37 is outside the model's vocabulary, which is 0 to 36"),
            (&[1, -1, 99], ask(1), "token -1 (and 1 more)"),
            (
                &[1, 2],
                ask(32),
                "7 tokens so far, 2 of the prompt and 32 new ones are 41 positions, and the cache may grow to 40",
            ),
            (&[1], ask(usize::MAX), "may grow to 40"),
            (&[1], Request { sampling: Some(bad), ..ask(1) }, "top-k is 0"),
            (&[1], Request { sampling: Some(biased), ..ask(1) }, "the logit bias of token 37 is 1"),
        ] {
            let e = g.generate(prompt, &request).err().unwrap().to_string();
            assert!(e.contains(say), "{e}");
            assert_eq!(g.len(), 7);
        }
        let so_far: Vec<i64> = [3, 1, 36].into_iter().chain(first).collect();
        assert_eq!(tokens(&mut g, &[], &ask(33)), greedy(&so_far, 33));
        assert!(g.generate(&[], &ask(1)).is_err());
        g.reset().unwrap();
        assert!(g.generate(&[], &ask(1)).err().unwrap().to_string().contains("no tokens"));
    }
}

/// A folder with an edited copy of the decoder.
fn edited(edit: impl FnOnce(&mut wgfc_compiler::import::onnx::ModelProto)) -> tempfile::TempDir {
    use prost::Message;
    let mut model = wgfc_compiler::import::decode(decoder().model().bytes()).unwrap();
    edit(&mut model);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.onnx"), model.encode_to_vec()).unwrap();
    dir
}

#[test]
fn nan_logits_leave_the_cache_as_it_was() {
    // The embedding of one token is NaN.
    let dir = edited(|m| {
        let g = m.graph.as_mut().unwrap();
        let table =
            g.initializer.iter_mut().find(|t| t.dims.first() == Some(&37) && t.dims.len() == 2).unwrap();
        let width = usize::try_from(table.dims[1]).unwrap() * 4;
        let mut bytes = table.raw_data.to_vec();
        bytes[7 * width..8 * width].copy_from_slice(&f32::NAN.to_le_bytes().repeat(width / 4));
        table.raw_data = bytes.into();
    });
    let decoder = Decoder::open(dir.path()).unwrap();
    let how = |top_k| Request { sampling: Some(Sampling { top_k, ..Sampling::default() }), ..ask(3) };
    for gpu in gpus().iter().take(1) {
        let mut g =
            Generator::on_device(gpu.clone(), &decoder, &options(Fusion::Full, &gpu.summary().name)).unwrap();
        for request in [ask(3), how(None), how(Some(5))] {
            g.reset().unwrap();
            let start: Vec<i64> =
                g.generate(&[3, 1], &request).unwrap().take(1).map(Result::unwrap).collect();
            let e = g.generate(&[4, 7, 5], &request).unwrap().next().unwrap().unwrap_err().to_string();
            assert!(e.contains("not numbers (NaN)"), "{e}");
            assert_eq!(g.len(), 3);
            let so_far: Vec<i64> = [3, 1].into_iter().chain(start).collect();
            assert!(!so_far.contains(&7));
            let want: Vec<i64> = greedy(&so_far, 3).into_iter().take_while(|t| *t != 7).collect();
            let got: Vec<i64> =
                g.generate(&[], &ask(3)).unwrap().map_while(Result::ok).take(want.len()).collect();
            assert_eq!(got, want);
        }
    }
}

#[test]
fn a_model_for_one_token_a_run_takes_prompts_too() {
    use wgfc_compiler::import::onnx::{DimensionValue, TypeValue};
    let dir = edited(|m| {
        for v in &mut m.graph.as_mut().unwrap().input {
            let Some(TypeValue::Tensor(t)) = v.r#type.as_mut().and_then(|t| t.value.as_mut()) else {
                continue;
            };
            for d in &mut t.shape.as_mut().unwrap().dim {
                match &d.value {
                    Some(DimensionValue::Param(p)) if p == "seq" => d.value = Some(DimensionValue::Value(1)),
                    Some(DimensionValue::Param(p)) if p == "past + seq" => {
                        d.value = Some(DimensionValue::Param("past + 1".into()));
                    }
                    _ => {}
                }
            }
        }
    });
    let Some(gpu) = gpus().first() else { return };
    let decoder = Decoder::open(dir.path()).unwrap();
    let mut g =
        Generator::on_device(gpu.clone(), &decoder, &options(Fusion::Full, &gpu.summary().name)).unwrap();
    assert!(g.prompt_session().is_none());
    assert_eq!(tokens(&mut g, &[3, 1, 36, 0, 8], &ask(6)), greedy(&[3, 1, 36, 0, 8], 6));
}

#[test]
fn models_that_are_no_decoders_are_explained() {
    let Some(gpu) = gpus().first() else { return };
    let options = options(Fusion::Full, &gpu.summary().name);
    let refused = |dir: &Path, say: &[&str]| {
        let e = Generator::new(&Decoder::open(dir).unwrap(), &options).err().unwrap();
        for s in say {
            assert!(e.to_string().contains(s), "`{s}` is not in {e}");
        }
    };
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small");
    refused(&small.join("mlp"), &["none of its inputs holds token ids", "input `x` f32[batch, 13]"]);
    // An input whose name is not known.
    let renamed = |from: &'static str, to: &'static str| {
        edited(move |m| {
            let g = m.graph.as_mut().unwrap();
            g.input.iter_mut().filter(|i| i.name == from).for_each(|i| i.name = to.into());
            for n in g.node.iter_mut().flat_map(|n| &mut n.input).filter(|n| *n == from) {
                *n = to.into();
            }
        })
    };
    let d = renamed("position_ids", "whence");
    refused(d.path(), &["what input `whence` i64[1, seq] is for is not known", "position ids"]);
    // No cache is returned.
    let d = edited(|m| m.graph.as_mut().unwrap().output.truncate(1));
    refused(d.path(), &["past_key_values.0.key", "(and 3 more) is for is not known", "no state was found"]);
    // No logits are returned.
    let d = edited(|m| drop(m.graph.as_mut().unwrap().output.remove(0)));
    refused(d.path(), &["no output holds the logits"]);
}

#[test]
fn text_comes_in_and_goes_out_with_a_tokenizer() {
    let dir = edited(|_| {});
    let words: BTreeMap<String, usize> = (0..37).map(|i| (format!("w{i}"), i)).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" },
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(
        dir.path().join("generation_config.json"),
        r#"{"eos_token_id": [36, 35], "do_sample": true, "top_k": 7}"#,
    )
    .unwrap();
    let decoder = Decoder::open(dir.path()).unwrap();
    assert_eq!(decoder.defaults().stop, [36, 35]);
    assert_eq!((decoder.defaults().sample, decoder.defaults().top_k), (true, Some(7)));
    assert_eq!(decoder.encode("w3 w1 nonsense w8").unwrap(), [3, 1, 0, 8]);
    assert_eq!(decoder.decode(&[3, 1, 36]).unwrap(), "w3 w1 w36");
    let mut stream = decoder.stream().unwrap();
    let pieces: String = [3, 1, 36].iter().map(|t| stream.push(*t).unwrap()).collect();
    assert_eq!(pieces, "w3 w1 w36");
    let plain = self::decoder();
    assert!(plain.encode("w3").unwrap_err().to_string().contains("without a tokenizer"));
    for (file, text, say) in [
        ("generation_config.json", r#"{"eos_token_id": "x"}"#, "`eos_token_id` is \"x\", not a token id"),
        ("generation_config.json", "[", "is not JSON"),
        ("tokenizer.json", "{}", "is not a tokenizer"),
    ] {
        let whole = std::fs::read(dir.path().join(file)).unwrap();
        std::fs::write(dir.path().join(file), text).unwrap();
        let e = Decoder::open(dir.path()).err().unwrap().to_string();
        assert!(e.contains(say) && e.contains(file), "{e}");
        std::fs::write(dir.path().join(file), whole).unwrap();
    }
}

#[test]
fn a_compiled_decoder_generates_what_the_model_does() {
    let dir = edited(|_| {});
    let config = r#"{"eos_token_id": 36}"#;
    std::fs::write(dir.path().join("generation_config.json"), config).unwrap();
    let decoder = Decoder::open(dir.path()).unwrap();
    let bundle = wgfc::generate::compile_decoder(&decoder, &Options::default()).unwrap();
    let names: Vec<&str> = bundle.plans.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["decode", "prefill"]);
    let out = tempfile::tempdir().unwrap();
    let (folder, file) = (out.path().join("out"), out.path().join("out.wgfc"));
    let beside = [("generation_config.json".to_owned(), config.as_bytes().to_vec())];
    let save = wgfc::SaveOptions { beside: &beside, ..Default::default() };
    wgfc::save_bundle(&bundle, &folder, &save).unwrap();
    // Saving again replaces the plan together with the files beside it.
    wgfc::save_bundle(&bundle, &folder, &save).unwrap();
    wgfc::save_bundle(&bundle, &file, &save).unwrap();

    let prompt = [3, 1, 36, 0, 8];
    let want = greedy(&prompt, 6);
    for path in [&folder, &file] {
        let compiled = Decoder::open(path).unwrap();
        assert_eq!(compiled.defaults().stop, if path == &folder { vec![36] } else { vec![] });
        assert!(compiled.source().is_err() && compiled.compiled().is_some());
        for gpu in gpus().iter().take(1) {
            let options = options(Fusion::Full, &gpu.summary().name);
            let mut g = Generator::on_device(gpu.clone(), &compiled, &options).unwrap();
            let request = Request { max_new_tokens: 6, ..Default::default() };
            let tokens: Vec<i64> = g.generate(&prompt, &request).unwrap().collect::<Result<_, _>>().unwrap();
            assert_eq!(tokens, want);
            // This also holds for sampling, whose kernels are compiled here.
            let sampling = Some(Sampling { top_k: Some(1), ..Sampling::default() });
            g.reset().unwrap();
            let request = Request { sampling, ..request };
            let tokens: Vec<i64> = g.generate(&prompt, &request).unwrap().collect::<Result<_, _>>().unwrap();
            assert_eq!(tokens, want);
            let none = GeneratorOptions { capacity: 0, ..options.clone() };
            let e = Generator::on_device(gpu.clone(), &compiled, &none).err().unwrap().to_string();
            assert!(e.contains("room for 0 positions"), "{e}");
            let e = wgfc::BatchGenerator::new(&compiled, 2, &options).err().unwrap().to_string();
            assert!(e.contains("one sequence at a time"), "{e}");
            let half = GeneratorOptions { precision: wgfc::compiler::Precision::F16, ..options };
            let e = Generator::on_device(gpu.clone(), &compiled, &half).err().unwrap().to_string();
            assert!(e.contains("the decoder is compiled: its precision"), "{e}");
        }
    }
    // A plan of another kind of model is refused.
    let mlp = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    let program = wgfc::compile_file(&mlp, &Options::default()).unwrap();
    let mlp = out.path().join("mlp");
    wgfc::save(&program, &mlp, &Default::default()).unwrap();
    if let Some(gpu) = gpus().first() {
        let other = Decoder::open(&mlp).unwrap();
        let e = Generator::on_device(gpu.clone(), &other, &GeneratorOptions::default()).err().unwrap();
        assert!(e.to_string().contains("no plan that generates tokens"), "{e}");
    }
}
