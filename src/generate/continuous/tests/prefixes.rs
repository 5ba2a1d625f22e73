use crate::Sampling;
use crate::generate::{ContinuousGenerator, Decoder, Generator, GeneratorOptions, Request, SequenceId};
use crate::random::Rng;
use std::collections::HashMap;
use std::path::Path;

fn decoder(name: &str) -> Decoder {
    let file = match name.starts_with("decoder") {
        true => format!("small/{name}/model.onnx"),
        false => format!("decoders/{name}/model.gguf"),
    };
    Decoder::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(file)).unwrap()
}

fn below(rng: &mut Rng, n: usize) -> usize {
    (rng.bits() >> 33) as usize % n
}

/// Conversations that share beginnings, in turns at any time, have the tokens of single runs.
#[test]
fn reused_prefixes_change_no_token() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    for (model, batch, capacity) in [
        ("decoder-batch", 3, 64),
        // Each sequence has its own end.
        ("decoder-ragged", 3, 64),
        // Neither an attention mask nor positions are given.
        ("llama", 1, 64),
        ("decoder-ragged", 1, 64),
        // Attention within a window of a few positions; pages.
        ("gemma3", 2, 300),
    ] {
        let options = GeneratorOptions { capacity, prompt_chunk: Some(8), ..GeneratorOptions::default() };
        let decoder = decoder(model);
        let mut one = Generator::new(&decoder, &options).unwrap();
        let mut all = ContinuousGenerator::new(&decoder, batch, &options).unwrap();
        let mut rng = Rng::new(11, model);
        let system: Vec<i64> = (0..12).map(|i| (i * 7 + 3) % 37).collect();
        // Tokens so far of each conversation.
        let mut talks: Vec<Vec<i64>> = vec![system.clone(); batch + 2];
        let mut running: HashMap<SequenceId, (usize, Vec<i64>, Request)> = HashMap::new();
        let mut turns = 0;
        for step in 0.. {
            assert!(step < 3000);
            let free = (0..talks.len()).find(|i| !running.values().any(|(t, ..)| t == i));
            // Sometimes the generator becomes idle.
            let joins = below(&mut rng, 3) == 0 && step % 60 < 40 && turns < 24;
            if let (true, Some(_)) = (joins && all.running() < batch, free) {
                let talk = loop {
                    let i = below(&mut rng, talks.len());
                    if !running.values().any(|(t, ..)| *t == i) {
                        break i;
                    }
                };
                if talks[talk].len() > 44 {
                    talks[talk] = system.clone();
                }
                for _ in 0..1 + below(&mut rng, 6) {
                    talks[talk].push(below(&mut rng, 37) as i64);
                }
                let sampling = (turns % 2 == 1).then(|| Sampling { seed: turns, ..Sampling::default() });
                let max_new_tokens = 1 + below(&mut rng, 9);
                let request = Request { max_new_tokens, sampling, stop: vec![5, 9], ..Request::default() };
                let id = all.join(&talks[talk], &request).unwrap();
                running.insert(id, (talk, vec![], request));
                turns += 1;
            }
            for g in all.step().unwrap() {
                let (talk, tokens, request) = running.get_mut(&g.sequence).unwrap();
                tokens.push(g.token.unwrap());
                let left = g.end.is_none() && tokens.len() == 4 && *talk == 0;
                if left {
                    all.leave(g.sequence);
                }
                if left || g.end.is_some() {
                    one.reset().unwrap();
                    let want = one.generate(&talks[*talk], request).unwrap().take(tokens.len());
                    let want: Vec<i64> = want.collect::<Result<_, _>>().unwrap();
                    assert_eq!(*tokens, want, "{model}, batch {batch}, turn {turns}");
                    let (talk, tokens) = (*talk, tokens.clone());
                    talks[talk].extend(tokens);
                    running.remove(&g.sequence);
                }
            }
            if turns == 24 && running.is_empty() {
                break;
            }
        }
        let reused = all.reused();
        assert!(reused > 100, "{model}, batch {batch}: {reused} tokens were reused");
    }
}
