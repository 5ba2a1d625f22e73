use super::*;
use crate::generate::{Decoder, GeneratorOptions, Request, Sampling};
use std::path::Path;

fn decoder(name: &str) -> Decoder {
    let file = match name.starts_with("decoder") {
        true => format!("small/{name}/model.onnx"),
        false => format!("decoders/{name}/model.gguf"),
    };
    Decoder::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(file)).unwrap()
}

fn generator(decoder: &Decoder, capacity: usize) -> Generator {
    let options =
        GeneratorOptions { capacity, prompt_chunk: Some(4), speculate: 7, ..GeneratorOptions::default() };
    Generator::new(decoder, &options).unwrap()
}

fn tokens(g: &mut Generator, prompt: &[i64], request: &Request) -> Vec<i64> {
    g.reset().unwrap();
    g.generate(prompt, request).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The tokens of single steps.
fn single(g: &mut Generator, prompt: &[i64], request: &Request) -> Vec<i64> {
    let speculation = g.speculation.take();
    let tokens = tokens(g, prompt, request);
    g.speculation = speculation;
    tokens
}

fn requests(new: usize) -> [Request; 5] {
    let sampled =
        |top_k, top_p, seed| Some(Sampling { temperature: 0.8, top_k, top_p, seed, ..Sampling::default() });
    let ways = [
        None,
        sampled(None, None, 5),
        sampled(Some(4), None, 6),
        sampled(None, Some(0.7), 7),
        sampled(Some(6), Some(0.9), 8),
    ];
    ways.map(|sampling| Request { max_new_tokens: new, sampling, ..Request::default() })
}

/// Proposes what follows, with every `wrong`-th token of the text changed.
struct Known {
    all: Vec<i64>,
    wrong: usize,
}

impl Proposer for Known {
    fn propose(&mut self, tokens: &[i64], most: usize) -> Result<Vec<i64>, Error> {
        assert_eq!(*tokens, self.all[..tokens.len()]);
        let follows = self.all.iter().enumerate().skip(tokens.len()).take(most);
        Ok(follows.map(|(i, t)| if (i + 1) % self.wrong == 0 { 36 - t } else { *t }).collect())
    }
}

#[test]
fn tokens_are_those_of_single_steps() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    // Plain, with its own ends in the cache, windows, experts, and factors that depend on the number of tokens so far.
    for name in ["llama", "decoder-ragged", "gemma3", "mixtral", "phi3-long"] {
        let decoder = decoder(name);
        let (prompt, new) = ([3, 1, 36, 0, 8], 40);
        // The last runs have no room for a whole proposal.
        let mut g = generator(&decoder, prompt.len() + new);
        // All ways of choosing are tried with the first model, two with the others.
        let ways = requests(new).into_iter().step_by(if name == "llama" { 1 } else { 4 });
        for request in ways {
            let want = single(&mut g, &prompt, &request);
            let all = [&prompt[..], &want].concat();
            for wrong in [usize::MAX, 5, 2] {
                g.set_proposer(Box::new(Known { all: all.clone(), wrong })).unwrap();
                let before = g.speculated();
                assert_eq!(tokens(&mut g, &prompt, &request), want, "{name} {wrong}: {request:?}");
                let counts = g.speculated().since(&before);
                assert!(counts.runs > 0 && counts.accepted <= counts.proposed);
                assert_eq!(counts.runs + counts.accepted + counts.steps, new as u64);
                // A proposal of seven tokens gives eight, but near the end of the cache.
                assert!(wrong < usize::MAX || name == "phi3-long" || counts.runs + counts.steps <= 13);
            }
            g.set_proposer(Box::new(Lookup { least: 1 })).unwrap();
            assert_eq!(tokens(&mut g, &prompt, &request), want, "{name}: {request:?}");
        }
    }
}

#[test]
fn only_returned_tokens_are_generated() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let mut g = generator(&decoder("llama"), 64);
    for request in requests(20) {
        let prompt = [3, 1, 36, 0, 8];
        let want = single(&mut g, &prompt, &request);
        let all = [&prompt[..], &want].concat();
        g.set_proposer(Box::new(Known { all: all.clone(), wrong: usize::MAX })).unwrap();
        g.reset().unwrap();
        let some: Vec<i64> = g.generate(&prompt, &request).unwrap().take(4).map(Result::unwrap).collect();
        assert_eq!((some.as_slice(), g.len()), (&want[..4], 9));
        if request.sampling.is_none() {
            let rest: Vec<i64> = g.generate(&[], &request).unwrap().take(16).map(Result::unwrap).collect();
            assert_eq!(rest, want[4..]);
        }
        // A stop token in the middle of a proposal is the last token.
        let end = want.iter().position(|t| *t == want[6]).unwrap() + 1;
        let stopped = tokens(&mut g, &prompt, &Request { stop: vec![want[6]], ..request.clone() });
        assert_eq!((stopped.as_slice(), g.len()), (&want[..end], prompt.len() + end));
        let few = tokens(&mut g, &prompt, &Request { max_new_tokens: 3, ..request });
        assert_eq!((few.as_slice(), g.len()), (&want[..3], 8));
    }
    assert!(g.profile_verification(2).is_ok());
    assert_eq!(g.len(), 8);
}

#[test]
fn a_smaller_model_proposes() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let (own, other) = (decoder("llama"), decoder("mistral"));
    let mut g = generator(&own, 64);
    let options = GeneratorOptions { prompt_chunk: Some(4), ..GeneratorOptions::default() };
    for request in [&requests(24)[0], &requests(24)[2]] {
        let want = single(&mut g, &[3, 1, 36, 0, 8], request);
        // The model itself, whose greedy proposals are all right, and another one.
        for draft in [&own, &other] {
            g.set_draft(&own, draft, &options).unwrap();
            let before = g.speculated();
            assert_eq!(tokens(&mut g, &[3, 1, 36, 0, 8], request), want);
            let counts = g.speculated().since(&before);
            assert!(counts.runs > 0);
            if std::ptr::eq(draft, &own) && request.sampling.is_none() {
                assert_eq!(counts.accepted, counts.proposed);
            }
        }
    }
    let e = g.set_draft(&own, &decoder("decoder"), &options).unwrap_err().to_string();
    assert!(e.contains("the model has 96 tokens and the one that proposes 37"), "{e}");
}

#[test]
fn speculation_that_cannot_be_is_refused() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let decoder = decoder("decoder");
    let options = GeneratorOptions { capacity: 32, ..GeneratorOptions::default() };
    let mut none = Generator::new(&decoder, &options).unwrap();
    assert!(none.set_proposer(Box::new(Lookup::default())).is_err());
    assert!(none.profile_verification(1).is_err());
    assert_eq!(none.speculated(), Speculated::default());
    for speculate in [64, usize::MAX] {
        let e = Generator::new(&decoder, &GeneratorOptions { speculate, ..options.clone() });
        assert!(e.err().unwrap().to_string().contains("from 1 to 63"));
    }
}

#[test]
fn attempts_become_rare_where_proposals_are_rejected() {
    let attempts = |accepted: fn(usize) -> usize| {
        let mut pace = Pace::default();
        let mut attempts = 0;
        for step in 0..1000 {
            if pace.wait == 0 {
                attempts += 1;
                pace.verified(accepted(step));
            } else {
                pace.stepped();
            }
        }
        attempts
    };
    assert_eq!(attempts(|_| 1), 1000);
    assert!(attempts(|_| 0) < 40);
    // After text that repeats begins, the pause ends at the next attempt.
    assert!(attempts(|step| usize::from(step > 500)) > 460);
}

#[test]
fn attempts_become_rare_where_verifying_takes_longer_than_it_saves() {
    let attempts = |accepted: usize, ratio: u64| {
        let mut pace = Pace::default();
        let mut attempts = 0;
        for step in 0..1000 {
            if pace.wait == 0 && step > 5 {
                attempts += 1;
                pace.verifying.add(Duration::from_millis(ratio));
                pace.verified(accepted);
            } else {
                pace.single.add(Duration::from_millis(1));
                pace.stepped();
            }
        }
        attempts
    };
    assert!(attempts(1, 3) < 40 && attempts(3, 5) < 40);
    assert!(attempts(1, 2) > 900 && attempts(7, 5) > 900);
    // A single run that is slow by chance is not taken for the rule.
    let mut timing = Timing::default();
    [900, 3, 4].iter().for_each(|ms| timing.add(Duration::from_millis(*ms)));
    assert_eq!(timing.known(), Some(0.003 * 1.1));
}
