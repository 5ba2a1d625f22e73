//! Embeddings are the pooled hidden states that transformers computes, of sequences that run together as of each alone.
//!
//! `scripts/embeddings.py` writes the encoder and the hidden states.

use std::path::{Path, PathBuf};
use wgfc::generate::{Embedder, Pooling, normalised};
use wgfc::{Decoder, GeneratorOptions, Tensor};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn tensor(name: &str) -> Tensor {
    wgfc::npy::read(&fixture(name)).unwrap()
}

fn embedder(model: &str, pooling: Pooling, capacity: usize, chunk: usize) -> Option<Embedder> {
    let gpu = wgfc::runtime::testing::gpus().first()?;
    let options = GeneratorOptions { capacity, prompt_chunk: Some(chunk), ..GeneratorOptions::default() };
    Some(Embedder::on_device(gpu, &Decoder::open(&fixture(model)).unwrap(), pooling, &options).unwrap())
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    let most = got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs()));
    assert!(most < 2e-5, "{most}: {got:?} is not {want:?}");
}

#[test]
fn decoders_give_the_hidden_states_of_transformers() {
    let ids = tensor("decoders/ids.npy").to_i64s().unwrap();
    let lengths = [12, 1, 5, 9, 9];
    let sequences: Vec<Vec<i64>> = lengths.iter().map(|n| ids[..*n].to_vec()).collect();
    for (name, pooling) in [
        ("gemma2", Pooling::Mean),
        ("qwen3", Pooling::Last),
        ("gemma2", Pooling::Last),
        ("qwen3", Pooling::Cls),
    ] {
        let Some(mut embedder) = embedder(&format!("decoders/{name}/config.json"), pooling, 12, 64) else {
            return;
        };
        let hidden = tensor(&format!("decoders/{name}/hidden.npy")).to_f32s().unwrap();
        let width = embedder.width();
        let vectors = embedder.embed(&sequences).unwrap();
        for (n, v) in lengths.iter().zip(&vectors) {
            let states: Vec<&[f32]> = hidden.chunks(width).take(*n).collect();
            let want = match pooling {
                Pooling::Mean => (0..width).map(|i| states.iter().map(|s| s[i]).sum()).collect(),
                Pooling::Last => states[n - 1].to_vec(),
                Pooling::Cls => states[0].to_vec(),
            };
            assert_close(v, &normalised(&want).unwrap());
        }
        let wrong = [vec![], vec![96], vec![-1], vec![0; 13]];
        assert!(wrong.into_iter().all(|w| embedder.embed(&[vec![1], w]).is_err()));
        assert_eq!(embedder.accepts().vocabulary, Some(96));
    }
}

#[test]
fn encoders_do_not_see_padding() {
    let ids = tensor("encoder/ids.npy").to_i64s().unwrap();
    let sequences: Vec<Vec<i64>> =
        ids.chunks(9).zip([2, 5, 9, 9]).map(|(row, n)| row[..n].to_vec()).collect();
    let want = tensor("encoder/embeddings.npy").to_f32s().unwrap();
    for chunk in [100, 18] {
        let Some(mut embedder) = embedder("encoder/model.onnx", Pooling::Mean, 100, chunk) else { return };
        assert_eq!((embedder.width(), embedder.capacity()), (24, 16));
        let vectors = embedder.embed(&sequences).unwrap();
        for (v, w) in vectors.iter().zip(want.chunks(24)) {
            assert_close(v, &normalised(w).unwrap());
        }
    }
}

/// The logits of the ONNX decoder are found behind its cache, whose past is empty.
#[test]
fn decoders_with_caches_give_the_same_vectors_together_and_alone() {
    let Some(mut embedder) = embedder("small/decoder-batch/model.onnx", Pooling::Mean, 64, 64) else {
        return;
    };
    let sequences = [vec![3, 1, 36], vec![5], vec![7, 7, 2, 30, 12, 9]];
    let together = embedder.embed(&sequences).unwrap();
    for (s, v) in sequences.into_iter().zip(&together) {
        assert_close(v, &embedder.embed(&[s]).unwrap()[0]);
    }
}
