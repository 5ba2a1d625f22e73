//! Small models of `scripts/vision_language.py` against what transformers made of the same pictures.

use super::*;
use crate::generate::{
    BatchGenerator, ChatOptions, ContinuousGenerator, Decoder, Generator, GeneratorOptions, ImageEncoder,
    Message, Request, Sampling,
};
use crate::npy;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/vision-language")
}

/// A model, and the results of transformers.
struct Expected {
    decoder: Decoder,
    folder: PathBuf,
    json: serde_json::Value,
}

impl Expected {
    fn open(name: &str) -> Expected {
        let folder = folder().join(name);
        let json = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
        Expected { decoder: Decoder::open(&folder).unwrap(), folder, json }
    }
    fn ids(&self, name: &str) -> Vec<i64> {
        self.json[name].as_array().unwrap().iter().map(|i| i.as_i64().unwrap()).collect()
    }
    fn tensor(&self, name: &str) -> Vec<f32> {
        npy::read(&self.folder.join(name)).unwrap().to_f32s().unwrap()
    }
}

fn picture(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

/// The largest difference of two lists.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn tokens(g: &mut Generator, prompt: &[i64], request: &Request) -> Vec<i64> {
    g.complete(prompt, request).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn pictures_and_texts_give_the_tokens_of_transformers() {
    let options = GeneratorOptions { capacity: 96, prompt_chunk: Some(7), ..Default::default() };
    for name in ["idefics3", "llava"] {
        let model = Expected::open(name);
        let d = &model.decoder;
        // Drivers on the CPU take their time to compile kernels: one model runs on all adapters.
        let adapters = if name == "llava" { usize::MAX } else { 1 };
        for gpu in wgfc_runtime::testing::gpus().iter().take(adapters) {
            let mut encoder = ImageEncoder::on_device(gpu.clone(), d, &options).unwrap();
            // Both round a resized picture to bytes: they differ by one at most.
            let pixels = encoder.read_pixels(&picture("picture.png")).unwrap();
            let step = if name == "llava" { 1.0 / 255.0 / 0.26 } else { 2.0 / 255.0 };
            let far = distance(&pixels.to_f32s().unwrap(), &model.tensor("pixel_values.npy"));
            assert!(far < 1.1 * step, "{name}: {far}");
            // Equal numbers give equal features.
            let given = npy::read(&model.folder.join("pixel_values.npy")).unwrap();
            let exact = encoder.encode_pixels(&given).unwrap();
            let far = distance(&exact.tensor().to_f32s().unwrap(), &model.tensor("image_features.npy"));
            assert!(far < 2e-5, "{name}: {far}");
            let own = encoder.encode(&picture("picture.png")).unwrap();
            let other = encoder.encode(&picture("other.png")).unwrap();
            assert_ne!(own.tokens().next(), other.tokens().next());
            let far = distance(&own.tensor().to_f32s().unwrap(), &model.tensor("image_features.npy"));
            assert!(far < 0.05, "{name}: {far}");

            let mut g = Generator::on_device(gpu.clone(), d, &options).unwrap();
            let request = Request { max_new_tokens: 10, ..Request::default() };
            let with = |images: &[&ImageFeatures]| Request {
                images: images.iter().map(|i| (*i).clone()).collect(),
                ..request.clone()
            };
            let one = with(&[&exact]);
            let message = Message::user_with_images(1, " what is this ?");
            let prompt = d.chat_prompt_with_images(&[message], &ChatOptions::default(), &one.images).unwrap();
            let image = d.image_token().unwrap().unwrap();
            let plain: Vec<i64> = prompt.iter().map(|t| if *t < 0 { image } else { *t }).collect();
            assert_eq!(plain, model.ids("input_ids"), "{name}");
            assert_eq!(d.place_images(&model.ids("input_ids"), &one.images).unwrap(), prompt);
            assert_eq!(tokens(&mut g, &prompt, &one), model.ids("tokens"), "{name}");
            // The logits of each step.
            let want = model.tensor("logits.npy");
            g.reset().unwrap();
            let mut logits = vec![];
            let mut all = g.begin(&prompt, &one).unwrap();
            let first = all.next(&mut g).unwrap().unwrap();
            g.rewind(prompt.len()).unwrap();
            for t in [vec![first], model.ids("tokens")[1..9].to_vec()].concat() {
                logits.extend(g.logits(&[t]).unwrap().0.to_f32s().unwrap());
            }
            let vocabulary = g.vocabulary();
            let far = distance(&logits, &want[vocabulary..]);
            assert!(far < 1e-4, "{name}: {far}");

            let text = d.encode("<s> the sea is").unwrap();
            assert_eq!(text, model.ids("text_ids"));
            assert_eq!(tokens(&mut g, &text, &request), model.ids("text_tokens"), "{name}");
            // Two pictures, and one twice, of which the beginning stays in the cache.
            let two = with(&[&exact, &other]);
            let prompt = d.encode_with_images("<s> compare <image> and <image> :", &two.images).unwrap();
            assert_eq!(tokens(&mut g, &prompt, &two), model.ids("two_tokens"), "{name}");
            let same = with(&[&exact, &exact]);
            let again = d.encode_with_images("<s> compare <image> and <image> :", &same.images).unwrap();
            assert!(g.in_common(&again) > exact.len() && g.in_common(&again) < again.len() - exact.len());
            assert_eq!(tokens(&mut g, &again, &same), model.ids("same_tokens"), "{name}");
            // Choices that depend on the tokens before take the same runs.
            let sampling = Sampling { repetition_penalty: 1.3, ..Sampling::default() }.without_chance();
            let penalised = Request { sampling, ..two.clone() };
            assert_eq!(tokens(&mut g, &prompt, &penalised), model.ids("penalised_tokens"), "{name}");
        }
    }
}

#[test]
fn sequences_with_pictures_run_side_by_side() {
    for name in ["idefics3"] {
        let model = Expected::open(name);
        let d = &model.decoder;
        for gpu in wgfc_runtime::testing::gpus().iter().take(1) {
            let options = GeneratorOptions { capacity: 64, prompt_chunk: Some(8), ..Default::default() };
            let mut encoder = ImageEncoder::on_device(gpu.clone(), d, &options).unwrap();
            let given = npy::read(&model.folder.join("pixel_values.npy")).unwrap();
            let one = encoder.encode_pixels(&given).unwrap();
            let other = encoder.encode(&picture("other.png")).unwrap();
            let prompt = "<s> compare <image> and <image> :";
            let requests = [
                (prompt, vec![one.clone(), other], "two_tokens"),
                ("<s> the sea is", vec![], "text_tokens"),
                (prompt, vec![one.clone(), one], "same_tokens"),
            ];
            let requests = requests.map(|(text, images, want)| {
                let prompt = d.encode_with_images(text, &images).unwrap();
                (prompt, Request { max_new_tokens: 10, images, ..Request::default() }, model.ids(want))
            });
            let mut all = ContinuousGenerator::on_device(gpu.clone(), d, 2, &options).unwrap();
            let mut got = BTreeMap::new();
            let mut step = |all: &mut ContinuousGenerator| {
                for g in all.step().unwrap() {
                    got.entry(g.sequence).or_insert_with(Vec::new).push(g.token.unwrap());
                }
            };
            let mut ids = vec![];
            for (i, (prompt, request, _)) in requests.iter().enumerate() {
                while all.running() == 2 {
                    step(&mut all);
                }
                ids.push(all.join(prompt, request).unwrap());
                (0..2 * i).for_each(|_| step(&mut all));
            }
            while all.running() > 0 {
                step(&mut all);
            }
            for (id, (_, _, want)) in ids.iter().zip(&requests) {
                assert_eq!(got[id], *want, "{name}");
            }
            let none = Request { images: vec![], ..requests[0].1.clone() };
            assert!(all.join(&requests[0].0, &none).is_err());
            // Prompts of one length, in step.
            let mut batch = BatchGenerator::on_device(gpu.clone(), d, 2, &options).unwrap();
            let request =
                Request { max_new_tokens: 10, images: requests[0].1.images.clone(), ..Request::default() };
            let prompts = [&requests[0].0[..], &requests[2].0];
            let rows: Vec<_> = batch.generate(&prompts, &request).unwrap().collect::<Result<_, _>>().unwrap();
            for (row, want) in [&requests[0].2, &requests[2].2].into_iter().enumerate() {
                let got: Vec<i64> = rows.iter().filter_map(|r| r[row]).collect();
                assert_eq!(got, *want, "{name}");
            }
        }
    }
}

#[test]
fn features_saved_with_a_cache_are_not_processed_again() {
    let model = Expected::open("llava");
    let Some(gpu) = wgfc_runtime::testing::gpus().first().cloned() else { return };
    let options = GeneratorOptions { capacity: 96, speculate: 3, ..Default::default() };
    let mut encoder = ImageEncoder::on_device(gpu.clone(), &model.decoder, &options).unwrap();
    let images = vec![encoder.encode_file(&folder().join("picture.png")).unwrap()];
    // Without a mark pictures come first.
    let prompt = model.decoder.encode_with_images("what is this", &images).unwrap();
    assert!(prompt[..images[0].len()].iter().all(|t| stands_for_feature(*t)));
    let request = Request { max_new_tokens: 8, images, ..Request::default() };
    let make = || Generator::on_device(gpu.clone(), &model.decoder, &options).unwrap();
    let mut g = make();
    let want = tokens(&mut g, &prompt, &request);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cache.safetensors");
    g.rewind(prompt.len()).unwrap();
    g.save_cache(&file).unwrap();
    let mut other = make();
    other.load_cache(&file).unwrap();
    assert_eq!(other.in_common(&prompt), prompt.len() - 1);
    let request = Request { images: vec![], ..request };
    assert_eq!(tokens(&mut other, &prompt, &request), want);
    let mut fork = g.fork().unwrap();
    assert_eq!(tokens(&mut fork, &prompt, &request), want);
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let model = Expected::open("llava");
    let d = &model.decoder;
    let features = |width| ImageFeatures::new(&Tensor::from_f32(vec![16, width], &vec![0.5; 16 * width]));
    let (good, wide) = (features(32).unwrap(), features(33).unwrap());
    let says = |e: Error, text: &str| assert!(e.to_string().contains(text), "{e}");
    let good = [good];
    says(
        d.encode_with_images("a <image> <image>", &good).unwrap_err(),
        "has 2 places for pictures (`<image>`), and one picture is given",
    );
    says(d.encode_with_images("a <image>", &[]).unwrap_err(), "1 place for a picture");
    says(d.place_images(&[1, 4, 4], &good).unwrap_err(), "2 tokens of the prompt stand for parts");
    let text =
        Decoder::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx"))
            .unwrap();
    says(text.place_images(&[1], &good).unwrap_err(), "takes no pictures");
    let Some(gpu) = wgfc_runtime::testing::gpus().first().cloned() else { return };
    let options = GeneratorOptions { capacity: 96, ..Default::default() };
    let none = ImageEncoder::on_device(gpu.clone(), &text, &options).err().unwrap();
    says(none, "has no vision encoder");
    let mut encoder = ImageEncoder::on_device(gpu.clone(), d, &options).unwrap();
    says(encoder.encode(b"GIF89a").unwrap_err(), "is not a picture that can be read");
    says(encoder.encode_pixels(&Tensor::from_f32(vec![4], &[0.0; 4])).unwrap_err(), "f32[4] are not");
    says(
        encoder.encode_pixels(&Tensor::from_f32(vec![3, 2, 2], &[0.0; 12])).unwrap_err(),
        "has the input `pixel_values` f32[batch_size, 3, 32, 32], and the picture is [3, 2, 2]",
    );
    let mut g = Generator::on_device(gpu.clone(), d, &options).unwrap();
    let ask = |images: &[ImageFeatures]| Request {
        max_new_tokens: 1,
        images: images.to_vec(),
        ..Request::default()
    };
    let of = |image: &ImageFeatures| image.tokens().collect::<Vec<i64>>();
    says(g.begin(&of(&good[0]), &ask(&[])).err().unwrap(), "not among the pictures of the request");
    says(g.begin(&of(&wide), &ask(std::slice::from_ref(&wide))).err().unwrap(), "has 33 numbers");
    let mut one =
        Generator::on_device(gpu.clone(), d, &GeneratorOptions { prompt_chunk: Some(1), ..options.clone() })
            .unwrap();
    says(one.begin(&of(&good[0]), &ask(&good)).err().unwrap(), "no program for prompts that takes one");
    // The program for words alone has none either.
    assert!(one.generate(&[1, 17], &ask(&[])).is_ok());
    let compiled = crate::generate::compile_decoder(d, &crate::Options::default()).unwrap();
    assert!(compiled.plans.iter().all(|p| p.program.inputs.iter().all(|i| i.name != FEATURES)));
}
