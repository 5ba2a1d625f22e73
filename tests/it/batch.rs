//! Generation for several sequences at once: each gets the tokens that it gets alone.

use std::path::Path;
use wgfc::generate::{BatchGenerator, Decoder, Generator, GeneratorOptions, Request, Sampling};
use wgfc::runtime::AdapterChoice;
use wgfc::runtime::testing::gpus;
use wgfc::{Fusion, ModelFile};

fn decoder(name: &str) -> Decoder {
    let path = format!("{}/fixtures/small/{name}/model.onnx", env!("CARGO_MANIFEST_DIR"));
    Decoder::open(Path::new(&path)).unwrap()
}

/// Options for one adapter only, because the kernels are those of a single sequence.
fn options() -> Vec<GeneratorOptions> {
    let adapter = |n: &str| n.parse::<AdapterChoice>().unwrap();
    let options = |n: &str| GeneratorOptions {
        capacity: 60,
        prompt_chunk: Some(4),
        adapter: adapter(n),
        fusion: Fusion::Full,
        ..GeneratorOptions::default()
    };
    gpus().iter().take(1).map(|g| options(&g.summary().name)).collect()
}

fn ask(n: usize) -> Request {
    Request { max_new_tokens: n, ..Request::default() }
}

/// The tokens of each sequence, without the steps at which it had ended.
fn tokens(g: &mut BatchGenerator, prompts: &[&[i64]], request: &Request) -> Vec<Vec<i64>> {
    let steps: Vec<Vec<Option<i64>>> =
        g.generate(prompts, request).unwrap().collect::<Result<_, _>>().unwrap();
    let row = |i: usize| steps.iter().filter_map(|s| s[i]).collect();
    (0..prompts.len()).map(row).collect()
}

fn alone(g: &mut Generator, prompt: &[i64], request: &Request) -> Vec<i64> {
    g.generate(prompt, request).unwrap().collect::<Result<_, _>>().unwrap()
}

const PROMPTS: [&[i64]; 3] = [&[3, 1, 36, 0, 8, 5, 22, 17, 4], &[7], &[30, 30, 2]];

#[test]
fn each_sequence_gets_its_own_tokens() {
    for model in ["decoder-batch", "decoder-ragged"] {
        for options in options() {
            let mut one = Generator::new(&decoder(model), &options).unwrap();
            let mut all = BatchGenerator::new(&decoder(model), 3, &options).unwrap();
            assert_eq!((all.batch(), all.capacity(), all.vocabulary()), (3, 60, 37));
            let mut check = |all: &mut BatchGenerator, rounds: &[([&[i64]; 3], Request)]| {
                all.reset().unwrap();
                let got: Vec<_> = rounds.iter().map(|(p, r)| tokens(all, p, r)).collect();
                for i in 0..3 {
                    one.reset().unwrap();
                    for ((prompts, request), got) in rounds.iter().zip(&got) {
                        assert_eq!(got[i], alone(&mut one, prompts[i], request), "{model} {i}");
                    }
                }
                got
            };
            // Further prompts, one of them empty.
            let more: [&[i64]; 3] = [&[9], &[11, 12, 13, 14, 15, 16], &[]];
            let free = check(&mut all, &[(PROMPTS, ask(8)), (more, ask(3))]);
            assert_eq!(all.lengths(), [21, 18, 14]);
            // Sequences end at different steps and are continued afterwards.
            let stop = vec![free[0][1][1], free[0][0][4]];
            let ended = check(&mut all, &[(PROMPTS, Request { stop, ..ask(8) }), (more, ask(3))]);
            assert!(ended[0][1].len() < 8, "{ended:?}");
            // Prompts of equal length, all of which end in one run.
            check(&mut all, &[([&[1, 2, 3, 4, 5, 6], &[6, 5, 4, 3, 2, 1], &[0, 0, 1, 1, 2, 2]], ask(4))]);
        }
    }
}

#[test]
fn each_sequence_draws_for_itself() {
    for options in options() {
        let mut all = BatchGenerator::new(&decoder("decoder-batch"), 2, &options).unwrap();
        let prompts: [&[i64]; 2] = [&[3, 1], &[3, 1]];
        let mut draw = |how: Sampling| {
            all.reset().unwrap();
            tokens(&mut all, &prompts, &Request { sampling: Some(how), ..ask(7) })
        };
        for top_k in [None, Some(9)] {
            let sampled = |seed| Sampling { temperature: 3.0, top_k, seed, ..Sampling::default() };
            let got = draw(sampled(5));
            assert_ne!(got[0], got[1]);
            assert_eq!(got, draw(sampled(5)));
            assert_ne!(got, draw(sampled(6)));
        }
        // At a very low temperature, sampling from the top 3 is greedy.
        let cold = Sampling { temperature: 1e-6, top_k: Some(3), ..Sampling::default() };
        let greedy = draw(Sampling { top_k: Some(1), ..Sampling::default() });
        assert_eq!(draw(cold), greedy);
    }
}

#[test]
fn what_several_sequences_cannot_do_is_refused_and_changes_nothing() {
    for options in options() {
        let mut all = BatchGenerator::new(&decoder("decoder-batch"), 2, &options).unwrap();
        let first = tokens(&mut all, &[&[3, 1, 36], &[7]], &ask(4));
        let refused: [(&[&[i64]], usize, &str); 4] = [
            (&[&[1]], 1, "there are 1 prompts for 2 sequences"),
            (&[&[1], &[5, 37]], 1, "prompt 1: token 37 is outside"),
            (&[&[1], &[5, 6]], 60, "3 of the longest prompt and 60 new ones are 69 positions"),
            (&[&[-1], &[99]], 1, "prompt 0: token -1"),
        ];
        for (prompts, n, say) in refused {
            let e = all.generate(prompts, &ask(n)).err().unwrap().to_string();
            assert!(e.contains(say), "{e}");
            assert_eq!(all.lengths(), [7, 5]);
        }
        let mut whole = BatchGenerator::new(&decoder("decoder-batch"), 2, &options).unwrap();
        let want = tokens(&mut whole, &[&[3, 1, 36], &[7]], &ask(6));
        let more = tokens(&mut all, &[&[], &[]], &ask(2));
        for i in 0..2 {
            assert_eq!([first[i].as_slice(), &more[i]].concat(), want[i]);
        }
        all.reset().unwrap();
        let e = all.generate(&[&[1], &[]], &ask(1)).err().unwrap().to_string();
        assert!(e.contains("prompt 1: the prompt has no tokens"), "{e}");

        let e = BatchGenerator::new(&decoder("decoder"), 2, &options).err().unwrap().to_string();
        assert!(e.contains("takes one sequence at a time, not 2"), "{e}");
        let e = BatchGenerator::new(&decoder("decoder"), 0, &options).err().unwrap().to_string();
        assert!(e.contains("0 sequences at a time"), "{e}");
        // A batch of one sequence also works.
        let mut single = BatchGenerator::new(&decoder("decoder"), 1, &options).unwrap();
        let mut one = Generator::new(&decoder("decoder"), &options).unwrap();
        assert_eq!(tokens(&mut single, &[&[3, 1]], &ask(5))[0], alone(&mut one, &[3, 1], &ask(5)));
    }
}

#[test]
fn sequences_that_the_model_cannot_tell_apart_must_be_of_one_length() {
    // The model's positions input is shared by all sequences.
    use prost::Message;
    use wgfc_compiler::import::onnx::TypeValue;
    let file = ModelFile::open(decoder("decoder-batch").model().path()).unwrap();
    let mut model = wgfc_compiler::import::decode(file.bytes()).unwrap();
    for v in &mut model.graph.as_mut().unwrap().input {
        if let (true, Some(TypeValue::Tensor(t))) =
            (v.name == "position_ids", v.r#type.as_mut().and_then(|t| t.value.as_mut()))
        {
            t.shape.as_mut().unwrap().dim.remove(0);
        }
    }
    for n in &mut model.graph.as_mut().unwrap().node {
        // The shape [seq] becomes [seq, 1], which broadcasts.
        if n.output == ["positions3"] {
            n.input[1] = "axis1".into();
        }
        if n.output == ["angles"] {
            n.input[1] = "both".into();
        }
    }
    let mut both =
        model.graph.as_ref().unwrap().initializer.iter().find(|t| t.name == "axes12").unwrap().clone();
    both.name = "both".into();
    both.raw_data = [0i64, 1].map(i64::to_le_bytes).concat().into();
    model.graph.as_mut().unwrap().initializer.push(both);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.onnx"), model.encode_to_vec()).unwrap();
    for options in options() {
        let mut all = BatchGenerator::new(&Decoder::open(dir.path()).unwrap(), 2, &options).unwrap();
        let e = all.generate(&[&[1, 2], &[3]], &ask(2)).err().unwrap().to_string();
        assert!(e.contains("the sequences differ in length"), "{e}");
        let mut one = Generator::new(&decoder("decoder-batch"), &options).unwrap();
        let got = tokens(&mut all, &[&[1, 2], &[3, 4]], &ask(5));
        for (got, prompt) in got.iter().zip([[1, 2], [3, 4]]) {
            one.reset().unwrap();
            assert_eq!(*got, alone(&mut one, &prompt, &ask(5)));
        }
    }
}
