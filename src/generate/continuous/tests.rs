//! Sequences in step with others have the tokens that they have alone.

mod prefixes;

use super::*;
use crate::{Generator, Sampling};
use std::collections::BTreeMap;
use std::path::Path;

fn decoder(name: &str) -> Decoder {
    let file =
        if name.ends_with(".gguf") { format!("decoders/{name}") } else { format!("small/{name}/model.onnx") };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(file);
    Decoder::open(&path).unwrap()
}

/// Requests of several lengths, drawn in several ways.
fn requests() -> Vec<(Vec<i64>, Request)> {
    let base = Sampling { temperature: 0.9, ..Sampling::default() };
    let sampled = |top_k, top_p, seed| Some(Sampling { top_k, top_p, seed, ..base.clone() });
    let adjusted = |top_k, seed| {
        let logit_bias = vec![(5, 2.0), (9, -100.0)];
        let base = Sampling { top_k, seed, logit_bias, min_p: Some(0.1), ..base.clone() };
        Some(Sampling { repetition_penalty: 1.3, presence_penalty: 0.5, frequency_penalty: 0.2, ..base })
    };
    let ways = [
        None,
        sampled(None, None, 5),
        adjusted(Some(1), 0),
        sampled(Some(4), None, 6),
        sampled(None, Some(0.7), 7),
        adjusted(None, 8),
    ];
    let prompt = |i: i64| (0..1 + (i * 5) % 12).map(|j| (i * 11 + j * 7) % 37).collect();
    let request = |i: usize| Request {
        max_new_tokens: 1 + (i * 4) % 11,
        sampling: ways[i % ways.len()].clone(),
        stop: if i.is_multiple_of(3) { vec![] } else { vec![2, 9, 30] },
        logprobs: (i % 4 == 3).then_some(i % 3),
        ..Request::default()
    };
    (0..10).map(|i| (prompt(i as i64), request(i))).collect()
}

/// Sequences that join and leave at any time have the tokens that each has alone, also when the cache is full again and
/// again.
#[test]
fn sequences_equal_single_runs() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    for (model, batch, capacity, prompt_chunk) in [
        ("decoder-batch", 3, 26, 4),
        ("decoder-ragged", 2, 26, 4),
        ("decoder-batch", 1, 26, 1),
        // Attention within windows of a few positions.
        ("phi3/model.gguf", 3, 26, 4),
        ("gemma3/model.gguf", 2, 60, 4),
    ] {
        let options =
            GeneratorOptions { capacity, prompt_chunk: Some(prompt_chunk), ..GeneratorOptions::default() };
        let decoder = decoder(model);
        let mut one = Generator::new(&decoder, &options).unwrap();
        let mut all = ContinuousGenerator::new(&decoder, batch, &options).unwrap();
        let requests = requests();
        let mut waiting: std::collections::VecDeque<usize> = (0..requests.len()).collect();
        let mut running = BTreeMap::new();
        let mut got: Vec<Vec<i64>> = vec![vec![]; requests.len()];
        let mut ends = vec![None; requests.len()];
        for step in 0.. {
            // Sequences join now and then.
            if step % 2 == 0 && all.running() < batch {
                if let Some(i) = waiting.pop_front() {
                    running.insert(all.join(&requests[i].0, &requests[i].1).unwrap(), i);
                } else if all.running() == 0 {
                    break;
                }
            }
            for g in all.step().unwrap() {
                let i = running[&g.sequence];
                got[i].push(g.token.unwrap());
                ends[i] = g.end;
                // One sequence is given up in the middle.
                if i == 4 && got[i].len() == 2 {
                    all.leave(g.sequence);
                }
            }
            assert!(step < 1000);
        }
        for (i, (prompt, request)) in requests.iter().enumerate() {
            one.reset().unwrap();
            let mut want: Vec<i64> =
                one.generate(prompt, request).unwrap().collect::<Result<_, _>>().unwrap();
            if i == 4 {
                want.truncate(2);
            } else {
                let stopped = want.last().is_some_and(|t| request.stop.contains(t));
                assert_eq!(ends[i], Some(if stopped { End::Stop } else { End::Length }), "{model} {i}");
            }
            assert_eq!(got[i], want, "{model} {i}: {request:?}");
        }
        let paged = model.ends_with(".gguf");
        assert!(paged || batch == 1 || all.recomputed() > 0, "{model}");
    }
}

#[test]
fn requests_that_cannot_be_met_are_refused() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let options = GeneratorOptions { capacity: 16, ..GeneratorOptions::default() };
    let mut all = ContinuousGenerator::new(&decoder("decoder-batch"), 2, &options).unwrap();
    let request = Request { max_new_tokens: 4, ..Request::default() };
    let longer = Request { max_new_tokens: 14, ..Request::default() };
    for (prompt, request) in [
        (&[][..], &request),
        (&[37], &request),
        (&[-1], &request),
        (&[1, 2, 3], &longer),
        (&[1], &Request::default()),
    ] {
        assert!(matches!(all.join(prompt, request), Err(Error::Usage(_))), "{prompt:?}");
    }
    let first = all.join(&[1], &request).unwrap();
    all.join(&[2], &request).unwrap();
    assert!(all.join(&[3], &request).is_err());
    all.leave(first);
    all.leave(first);
    all.join(&[3], &request).unwrap();
    assert_eq!(all.running(), 2);
    all.reset().unwrap();
    assert_eq!((all.running(), all.positions()), (0, 0));
    assert!(all.step().unwrap().is_empty());
}
