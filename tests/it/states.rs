//! States on devices: the same numbers as the evaluator's, run after run.

use std::collections::BTreeMap;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::{Fusion, Options, States};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::program::Stats;
use wgfc_ir::{Graph, Program, Tensor};
use wgfc_runtime::session::SessionOptions;
use wgfc_runtime::testing::gpus;
use wgfc_runtime::{Gpu, RunError, Session};

const CACHES: &str = r#"
graph (x: %2, at: %3) -> (y: %9, z: %14) {
  state k: %0 -> %5 axis 1 from past by seq
  state v: %1 -> %8
  state h: %10 -> %12
  %0 = input : f32[2, 17, 3] as "k"
  %1 = input : f16[2, 7, 3] as "v"
  %2 = input : f32[2, seq, 3] as "x"
  %3 = input : i64[seq] as "at"
  %4 = map [2, seq, 3] { mul(a0, a0) } (%2) : f32[2, seq, 3] @ "square"
  %5 = scatter set writes [%0, past + %1, %2] (%0, %4) : f32[2, 17, 3] @ "append"
  %6 = view [2, past + seq, 3] reads [%0, %1, %2] (%5) : f32[2, past + seq, 3] @ "present"
  %7 = map [2, seq, 3] { cast(f16, a0) } (%2) : f16[2, seq, 3] @ "half"
  %8 = scatter set writes [%0, $2[%1], %2] (%1, %7, %3) : f16[2, 7, 3] @ "replace"
  %9 = reduce sum axes [1] (%6) : f32[2, 1, 3] as "y" @ "total"
  %10 = input : f32[2, 1, 3] as "h"
  %11 = reduce sum axes [1] (%2) : f32[2, 1, 3] @ "now"
  %12 = map [2, 1, 3] { add(mul(a0, 0.5:f32), a1) } (%10, %11) : f32[2, 1, 3] @ "decay"
  %13 = map [2, 7, 3] { cast(f32, a0) } (%8) : f32[2, 7, 3] @ "wide"
  %14 = map [2, 7, 3] { add(a0, add(a1, a2)) } (%13, %12, %10) : f32[2, 7, 3] as "z" @ "sum"
}
"#;

fn graph() -> Graph {
    let g = wgfc_ir::text::parse(CACHES).unwrap();
    wgfc_ir::verify::verify(&g).unwrap();
    g
}

fn inputs(step: usize, seq: usize) -> BTreeMap<String, Tensor> {
    let x: Vec<f32> = (0..2 * seq * 3).map(|i| ((i * 7 + step * 5) % 13) as f32 * 0.25 - 1.0).collect();
    // All different; 7 is outside, the even ones count from the end.
    let at = (0..seq).map(|i| ((i * 3 + step) % 8) as i64);
    let at: Vec<i64> = at.map(|i| if i % 2 == 0 { i - 7 } else { i }).collect();
    [("x", Tensor::from_f32(vec![2, seq, 3], &x)), ("at", Tensor::from_i64(vec![seq], &at))]
        .map(|(n, t)| (n.to_owned(), t))
        .into()
}

#[test]
fn several_runs_agree_with_the_evaluator() {
    for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
        let options = Options { fusion, ..Options::default() };
        let graph = graph();
        let kernels = wgfc_compiler::fuse::fuse(&graph, &options).unwrap();
        let program =
            wgfc_compiler::assemble::assemble(&graph, &kernels, &options, Stats::default()).unwrap();
        assert_eq!(program.states.len(), 3);
        for gpu in gpus() {
            let mut session = Session::new_blocking(gpu, &program).unwrap();
            let mut states = StateValues::default();
            for (step, seq) in [5, 1, 1, 7, 3].into_iter().enumerate() {
                let given = inputs(step, seq);
                let want = evaluate_from(&graph, &given, &mut states).unwrap();
                let named: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
                let got = session.run_blocking(&named).unwrap();
                for ((name, got), want) in got.iter().zip(&want) {
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4;
                    let (g, w) = (got.to_f32s().unwrap(), want.to_f32s().unwrap());
                    assert!(g.iter().zip(&w).all(close), "{fusion:?} step {step} {name}: {g:?} for {w:?}");
                }
            }
        }
    }
}

fn decoder_bytes() -> Vec<u8> {
    let path = format!("{}/fixtures/small/decoder/model.onnx", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap()
}

const CAPACITY: usize = 23;

/// The decoder with its cache as states, for `seq` tokens a run or any number.
fn decoder(seq: Option<i64>, fusion: Fusion) -> Program {
    decoder_with(seq, fusion, Some(CAPACITY))
}

fn decoder_with(seq: Option<i64>, fusion: Fusion, capacity: Option<usize>) -> Program {
    let options = Options {
        fusion,
        states: States::Auto { capacity },
        dims: seq.map(|s| ("seq".to_owned(), s)).into_iter().collect(),
        ..Options::default()
    };
    wgfc_compiler::compile(&decoder_bytes(), &NoExternalData, &options).unwrap()
}

/// The model as it is, on the evaluator, with its past in hand.
struct Reference {
    graph: Graph,
    past: BTreeMap<String, Tensor>,
    length: usize,
}

fn tokens(ids: &[i64], past: usize) -> Vec<(String, Tensor)> {
    let n = ids.len();
    let positions: Vec<i64> = (past..past + n).map(|p| p as i64).collect();
    [
        ("input_ids", Tensor::from_i64(vec![1, n], ids)),
        ("attention_mask", Tensor::from_i64(vec![1, past + n], &vec![1; past + n])),
        ("position_ids", Tensor::from_i64(vec![1, n], &positions)),
    ]
    .map(|(n, t)| (n.to_owned(), t))
    .to_vec()
}

impl Reference {
    fn new() -> Reference {
        let graph = import(&decoder_bytes(), &NoExternalData, &Options::default()).unwrap().graph;
        let caches = graph.inputs.iter().filter(|b| b.name.starts_with("past"));
        let past = caches.map(|b| (b.name.to_string(), Tensor::from_f32(vec![1, 2, 0, 6], &[]))).collect();
        Reference { graph, past, length: 0 }
    }

    fn run(&mut self, ids: &[i64]) -> Vec<f32> {
        let mut given = self.past.clone();
        given.extend(tokens(ids, self.length));
        let out = wgfc_ir::eval::evaluate(&self.graph, &given).unwrap();
        for (b, t) in self.graph.outputs.iter().zip(&out).skip(1) {
            self.past.insert(b.name.replace("present", "past_key_values"), t.clone());
        }
        self.length += ids.len();
        out[0].to_f32s().unwrap()
    }
}

fn run(session: &mut Session, ids: &[i64]) -> Result<Vec<f32>, RunError> {
    let given = tokens(ids, session.state_len());
    let named: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    Ok(session.run_blocking(&named)?[0].1.to_f32s().unwrap())
}

#[track_caller]
fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 2e-4 * (1.0 + w.abs()), "{g} for {w}");
    }
}

#[test]
fn a_decoder_continues_where_it_was() {
    for fusion in [Fusion::None, Fusion::Full] {
        let program = decoder(None, fusion);
        assert_eq!(program.inputs.len(), 3);
        assert_eq!(program.outputs.len(), 1);
        for gpu in gpus() {
            let mut session = Session::new_blocking(gpu, &program).unwrap();
            let mut reference = Reference::new();
            for ids in [vec![3, 1, 36, 0, 8], vec![5], vec![30], vec![2], vec![9, 11, 4]] {
                close(&run(&mut session, &ids).unwrap(), &reference.run(&ids));
                assert_eq!(session.state_len(), reference.length);
            }
        }
    }
}

#[test]
fn rewinding_forking_and_resetting() {
    let program = decoder(None, Fusion::Full);
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        assert_eq!((session.state_len(), session.capacity()), (0, Some(CAPACITY)));
        let start = [3, 1, 36, 0, 8];
        let first = run(&mut session, &start).unwrap();
        run(&mut session, &[7, 7]).unwrap();
        let mut fork = session.fork_blocking().unwrap();
        let seven = run(&mut session, &[12]).unwrap();

        // Another way on from the fifth token, then from the third.
        session.rewind(5).unwrap();
        let mut reference = Reference::new();
        reference.run(&start);
        close(&run(&mut session, &[22, 1]).unwrap(), &reference.run(&[22, 1]));
        session.rewind(3).unwrap();
        let mut reference = Reference::new();
        reference.run(&start[..3]);
        close(&run(&mut session, &[30]).unwrap(), &reference.run(&[30]));

        // The fork saw nothing of that.
        assert_eq!(fork.state_len(), 7);
        close(&run(&mut fork, &[12]).unwrap(), &seven);

        let e = session.rewind(5).unwrap_err().to_string();
        assert!(e.contains("past_key_values.0.key") && e.contains("holds 4 positions"), "{e}");
        session.reset_blocking().unwrap();
        assert_eq!(session.state_len(), 0);
        close(&run(&mut session, &start).unwrap(), &first);
    }
}

#[test]
fn a_sibling_continues_on_the_same_states() {
    let (prefill, mut decode) = (decoder(None, Fusion::Full), decoder(Some(1), Fusion::Full));
    // The weights of one are the other's, as a loader of both would have them.
    for (name, w) in &mut decode.weights {
        if let Some(other) = prefill.weights.get(name).filter(|o| o.bytes() == w.bytes()) {
            *w = other.clone();
        }
    }
    for gpu in gpus() {
        let mut long = Session::new_blocking(gpu, &prefill).unwrap();
        let mut one = long.sibling_blocking(&decode).unwrap();
        let mut reference = Reference::new();
        close(&run(&mut long, &[3, 1, 36, 0, 8]).unwrap(), &reference.run(&[3, 1, 36, 0, 8]));
        close(&run(&mut one, &[5]).unwrap(), &reference.run(&[5]));
        close(&run(&mut one, &[30]).unwrap(), &reference.run(&[30]));
        close(&run(&mut long, &[2, 9]).unwrap(), &reference.run(&[2, 9]));
        assert_eq!((long.state_len(), one.state_len()), (9, 9));

        // A fork of the one with the other on it.
        let mut apart = one.fork_blocking().unwrap();
        let mut long_apart = long.on_states_of_blocking(&apart).unwrap();
        run(&mut one, &[1]).unwrap();
        close(&run(&mut apart, &[4]).unwrap(), &reference.run(&[4]));
        close(&run(&mut long_apart, &[6, 6]).unwrap(), &reference.run(&[6, 6]));
        assert_eq!((long.state_len(), long_apart.state_len()), (10, 12));

        let other = Options { states: States::Auto { capacity: Some(5) }, ..Options::default() };
        let other = wgfc_compiler::compile(&decoder_bytes(), &NoExternalData, &other).unwrap();
        let e = long.sibling_blocking(&other).unwrap_err().to_string();
        assert!(e.contains("f32[1, 2, 5, 6] here and f32[1, 2, 23, 6] in the other"), "{e}");
    }
}

/// A session on a program of any capacity.
fn roomy(gpu: &Gpu, program: &Program, capacity: usize) -> Result<Session, RunError> {
    Session::with_options_blocking(gpu, program, SessionOptions { capacity, ..SessionOptions::default() })
}

#[test]
fn a_cache_grows_on_the_device() {
    for fusion in [Fusion::None, Fusion::Full] {
        let (prefill, decode) = (decoder_with(None, fusion, None), decoder_with(Some(1), fusion, None));
        for gpu in gpus() {
            let mut long = roomy(gpu, &prefill, 6).unwrap();
            let mut one = long.sibling_blocking(&decode).unwrap();
            let mut reference = Reference::new();
            close(&run(&mut long, &[3, 1, 36, 0, 8]).unwrap(), &reference.run(&[3, 1, 36, 0, 8]));
            close(&run(&mut one, &[5]).unwrap(), &reference.run(&[5]));
            assert!(matches!(run(&mut one, &[1]), Err(RunError::StateFull { length: 6, capacity: 6, .. })));
            let mut fork = one.fork_blocking().unwrap();
            one.grow_blocking(7).unwrap();
            assert_eq!((one.capacity(), long.capacity(), fork.capacity()), (Some(7), Some(7), Some(6)));
            close(&run(&mut one, &[30]).unwrap(), &reference.run(&[30]));
            long.grow_blocking(19).unwrap();
            long.grow_blocking(3).unwrap();
            close(&run(&mut long, &[2, 9, 4]).unwrap(), &reference.run(&[2, 9, 4]));
            close(&run(&mut one, &[11]).unwrap(), &reference.run(&[11]));
            assert_eq!((one.state_len(), one.capacity()), (11, Some(19)));

            // A fork has a cache of its own.
            let mut reference = Reference::new();
            reference.run(&[3, 1, 36, 0, 8, 5]);
            fork.grow_blocking(8).unwrap();
            close(&run(&mut fork, &[7]).unwrap(), &reference.run(&[7]));
            assert_eq!((fork.capacity(), one.capacity()), (Some(8), Some(19)));
        }
    }
}

/// Positions of three numbers of 16 bits do not begin on whole words.
const NARROW: &str = r#"
graph (x: %1) -> (y: %5) {
  state k: %0 -> %3 axis 1 from past by seq
  %0 = input : f16[2, capacity, 3] as "k"
  %1 = input : f32[2, seq, 3] as "x"
  %2 = map [2, seq, 3] { cast(f16, a0) } (%1) : f16[2, seq, 3] @ "half"
  %3 = scatter set writes [%0, past + %1, %2] (%0, %2) : f16[2, capacity, 3] @ "append"
  %4 = view [2, past + seq, 3] reads [%0, %1, %2] (%3) : f16[2, past + seq, 3] @ "present"
  %5 = map [2, past + seq, 3] { cast(f32, a0) } (%4) : f32[2, past + seq, 3] as "y" @ "wide"
}
"#;

#[test]
fn positions_smaller_than_a_word_keep_their_rows() {
    let graph = wgfc_ir::text::parse(NARROW).unwrap();
    wgfc_ir::verify::verify(&graph).unwrap();
    let options = Options::default();
    let kernels = wgfc_compiler::fuse::fuse(&graph, &options).unwrap();
    let program = wgfc_compiler::assemble::assemble(&graph, &kernels, &options, Stats::default()).unwrap();
    assert_eq!(program.symbols, ["seq", "past", "capacity"]);
    for gpu in gpus() {
        let mut session = roomy(gpu, &program, 5).unwrap();
        assert_eq!(session.capacity(), Some(6));
        let capacities = [("capacity".to_owned(), 31)].into();
        let mut states = StateValues { capacities, ..StateValues::default() };
        for (step, (seq, room)) in [(5, 5), (1, 6), (2, 9), (5, 13), (1, 14)].into_iter().enumerate() {
            session.grow_blocking(room).unwrap();
            let given = BTreeMap::from([("x".to_owned(), inputs(step, seq).remove("x").unwrap())]);
            let want = evaluate_from(&graph, &given, &mut states).unwrap();
            let got = session.run_blocking(&[("x", given["x"].clone())]).unwrap();
            assert_eq!(got[0].1.to_f32s(), want[0].to_f32s(), "step {step}");
        }
        assert_eq!(session.capacity(), Some(14));
    }
}

#[test]
fn room_that_cannot_be_had_changes_nothing() {
    let (open, fixed) = (decoder_with(None, Fusion::Full, None), decoder(None, Fusion::Full));
    for gpu in gpus() {
        for capacity in [0, 1 << 31, usize::MAX] {
            let e = roomy(gpu, &open, capacity).unwrap_err().to_string();
            assert!(e.contains(&format!("cannot have room for {capacity} positions")), "{e}");
        }
        let mut session = roomy(gpu, &open, 6).unwrap();
        let mut reference = Reference::new();
        close(&run(&mut session, &[3, 1, 36]).unwrap(), &reference.run(&[3, 1, 36]));
        // 12 numbers a position.
        for (capacity, say) in [
            (usize::MAX, "cannot have room"),
            ((1 << 31) / 12 + 1, "larger than 2147483647 elements"),
            ((gpu.profile().binding_bytes / 48) as usize + 1, "(one binding, bytes) needs"),
        ] {
            if capacity > 1 << 27 && say.starts_with('(') {
                continue;
            }
            let e = session.grow_blocking(capacity).unwrap_err().to_string();
            assert!(e.contains(say), "{capacity}: {e}");
        }
        let e = session.set_symbol("capacity", 9).unwrap_err().to_string();
        assert!(e.contains("Session::grow"), "{e}");
        assert_eq!(session.capacity(), Some(6));
        close(&run(&mut session, &[5]).unwrap(), &reference.run(&[5]));
        // One whose capacity is its own, and one with the states of the other.
        let mut closed = Session::new_blocking(gpu, &fixed).unwrap();
        closed.grow_blocking(CAPACITY).unwrap();
        let e = closed.grow_blocking(CAPACITY + 1).unwrap_err().to_string();
        assert!(e.contains("has room for 23 positions, which was fixed"), "{e}");
        let e = session.sibling_blocking(&fixed).unwrap_err().to_string();
        assert!(e.contains("f32[1, 2, 23, 6] here and f32[1, 2, capacity, 6] in the other"), "{e}");
        let e = session.on_states_of_blocking(&closed).unwrap_err().to_string();
        assert!(e.contains("f32[1, 2, capacity, 6] here and f32[1, 2, 23, 6] in the other"), "{e}");
    }
}

#[test]
fn a_full_state_refuses_and_stays_as_it_is() {
    let program = decoder(None, Fusion::Full);
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let mut reference = Reference::new();
        let ids: Vec<i64> = (0..20).collect();
        run(&mut session, &ids).unwrap();
        reference.run(&ids);
        let e = run(&mut session, &[1, 2, 3, 4]).unwrap_err();
        let text = "state \"past_key_values.0.key\" holds 20 of at most 23 positions: 4 more do not fit";
        assert_eq!(e.to_string(), text);
        assert_eq!(session.state_len(), 20);
        close(&run(&mut session, &[1, 2, 3]).unwrap(), &reference.run(&[1, 2, 3]));
        assert!(matches!(run(&mut session, &[1]), Err(RunError::StateFull { length: 23, .. })));
        let e = session.run_blocking(&[("input_ids", Tensor::from_i64(vec![1, 1], &[1]))]).unwrap_err();
        assert!(e.to_string().contains("attention_mask"), "{e}");
        // A mask of another length contradicts the states.
        session.rewind(4).unwrap();
        let mut given = tokens(&[1], 4);
        given[1].1 = Tensor::from_i64(vec![1, 9], &[1; 9]);
        let named: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let e = session.run_blocking(&named).unwrap_err().to_string();
        assert!(e.contains("past = 4 the length of the states"), "{e}");
    }
}

#[test]
fn named_states_and_what_cannot_be_one() {
    let named = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let options = Options { states: States::Named { pairs, capacity: Some(9) }, ..Options::default() };
        wgfc_compiler::compile(&decoder_bytes(), &NoExternalData, &options)
    };
    let (k, v) = (("past_key_values.0.key", "present.0.key"), ("past_key_values.0.value", "present.0.value"));
    let p = named(&[v, k]).unwrap();
    assert_eq!(p.states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), [v.0, k.0]);
    assert_eq!(p.outputs.len(), 3);
    for (pairs, say) in [
        (vec![("past.0", "present.0.key")], "no input \"past.0\""),
        (vec![(k.0, "logit")], "no output \"logit\""),
        (vec![(k.0, v.1)], "do not form a state"),
        (vec![k, k], "named twice"),
    ] {
        let e = named(&pairs).unwrap_err().to_string();
        assert!(e.contains(say), "{e}");
    }
    let mlp = std::fs::read(format!("{}/fixtures/small/mlp/model.onnx", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let options = Options { states: States::Auto { capacity: Some(9) }, ..Options::default() };
    let e = wgfc_compiler::compile(&mlp, &NoExternalData, &options).unwrap_err().to_string();
    assert!(e.contains("no state was found"), "{e}");
}

/// Sequences of different lengths share a cache whose writer puts each one's tokens at its own end.
#[test]
fn sequences_have_lengths_of_their_own() {
    let path = format!("{}/fixtures/small/decoder-ragged/model.onnx", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let dims = |batch| Options { dims: [("batch".to_owned(), batch)].into(), ..Options::default() };
    let graph = import(&bytes, &NoExternalData, &dims(3)).unwrap().graph;
    // Tokens, and which positions of each sequence count.
    let steps = [
        (vec![3, 1, 36, 0, 8, 5, 9, 0, 0, 0, 7, 7, 30, 2, 0], vec!["11111", "11111", "11111"]),
        (vec![4, 2, 11], vec!["111111", "110001", "111101"]),
        (vec![5, 6, 12], vec!["1111111", "1100011", "1111011"]),
        (vec![1, 2, 3], vec!["11111111", "11000111", "11110111"]),
    ];
    for fusion in [Fusion::None, Fusion::Full] {
        let options = Options { fusion, states: States::Auto { capacity: None }, ..dims(3) };
        let program = wgfc_compiler::compile(&bytes, &NoExternalData, &options).unwrap();
        let names: Vec<&str> = program.states.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["past_key_values.0.key", "past_key_values.0.value"]);
        assert_eq!(program.outputs.len(), 1);
        for gpu in gpus() {
            let mut session = roomy(gpu, &program, 5).unwrap();
            let mut past: BTreeMap<String, Tensor> =
                names.iter().map(|n| ((*n).to_owned(), Tensor::from_f32(vec![3, 2, 0, 16], &[]))).collect();
            for (ids, mask) in &steps {
                let ids = Tensor::from_i64(vec![3, ids.len() / 3], ids);
                let ones: Vec<i64> =
                    mask.iter().flat_map(|m| m.bytes()).map(|b| i64::from(b == b'1')).collect();
                let mask = Tensor::from_i64(vec![3, ones.len() / 3], &ones);
                let mut given = past.clone();
                given.insert("input_ids".into(), ids.clone());
                given.insert("attention_mask".into(), mask.clone());
                let want = wgfc_ir::eval::evaluate(&graph, &given).unwrap();
                for (b, t) in graph.outputs.iter().zip(&want).skip(1) {
                    past.insert(b.name.replace("present", "past_key_values"), t.clone());
                }
                session.grow_blocking(ones.len() / 3).unwrap();
                let got = session.run_blocking(&[("input_ids", ids), ("attention_mask", mask)]).unwrap();
                close(&got[0].1.to_f32s().unwrap(), &want[0].to_f32s().unwrap());
            }
            assert_eq!((session.state_len(), session.capacity()), (8, Some(8)));
        }
    }
}

/// Caches of one size and windows, run after run beyond their ends, against the model with its past in hand.
#[test]
fn caches_of_one_size_and_windows() {
    let lengths: [(&str, &[usize], bool); 4] = [
        ("static", &[3, 1, 1, 4, 1, 1], false),
        ("where", &[1; 9], false),
        ("window", &[3, 1, 1, 1, 1, 7, 1, 2, 1], false),
        ("sliding", &[3, 1, 1, 1, 1, 7, 1, 2, 1], true),
    ];
    for (kind, steps, grows) in lengths {
        let path = format!("{}/fixtures/small/cache-{kind}/model.onnx", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).unwrap();
        let graph = import(&bytes, &NoExternalData, &Options::default()).unwrap().graph;
        for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
            let states = States::Auto { capacity: None };
            let options = Options { fusion, states, ..Options::default() };
            let program = wgfc_compiler::compile(&bytes, &NoExternalData, &options).unwrap();
            let names: Vec<&str> = program.states.iter().map(|s| s.name.as_str()).collect();
            assert_eq!(names, ["past_key", "past_value"], "{kind}");
            assert!(program.states.iter().all(|s| s.is_window() == grows && s.growth.is_some() == grows));
            assert_eq!(program.outputs.len(), 1);
            for gpu in gpus() {
                let mut session = Session::new_blocking(gpu, &program).unwrap();
                let held = |b: &wgfc_ir::Border| {
                    let shape = graph.ty(b.value).shape.iter().map(|d| d.as_const().unwrap_or(0) as usize);
                    (b.name.to_string(), Tensor::zeros(wgfc_ir::DType::F32, shape.collect()))
                };
                let caches = graph.inputs.iter().filter(|b| b.name.starts_with("past"));
                let mut past: BTreeMap<String, Tensor> = caches.map(held).collect();
                let mut at = 0;
                for (step, n) in steps.iter().copied().enumerate() {
                    let x: Vec<f32> =
                        (0..n * 8).map(|i| ((i * 7 + step * 5) % 13) as f32 * 0.3 - 1.8).collect();
                    let positions: Vec<i64> = (at..at + n).map(|p| p as i64).collect();
                    let new = [
                        ("x", Tensor::from_f32(vec![1, n, 8], &x)),
                        ("position", Tensor::from_i64(vec![n], &positions)),
                    ];
                    at += n;
                    let mut given = past.clone();
                    given.extend(new.iter().map(|(n, t)| ((*n).to_owned(), t.clone())));
                    let want = wgfc_ir::eval::evaluate(&graph, &given).unwrap();
                    for (b, t) in graph.outputs.iter().zip(&want).skip(1) {
                        past.insert(b.name.replace("present", "past"), t.clone());
                    }
                    let got = session.run_blocking(&new).unwrap();
                    close(&got[0].1.to_f32s().unwrap(), &want[0].to_f32s().unwrap());
                    assert_eq!(session.state_len(), if grows { at.min(5) } else { 0 });
                }
                // Nothing of them can be taken back, except from a window that was never full.
                let e = session.rewind(2).unwrap_err().to_string();
                assert!(e.contains("fork the session"), "{e}");
                session.grow_blocking(100).unwrap();
                assert_eq!(session.capacity(), None);
                session.reset_blocking().unwrap();
                let run = |s: &mut Session, x: f32, at: usize| {
                    let given = [
                        ("x", Tensor::from_f32(vec![1, 1, 8], &[x, 0.5, -x, 1.0, 2.0, x, 0.25, -1.0])),
                        ("position", Tensor::from_i64(vec![1], &[at as i64])),
                    ];
                    s.run_blocking(&given).unwrap()[0].1.to_f32s().unwrap()
                };
                let first = run(&mut session, 0.5, 0);
                let mut fork = session.fork_blocking().unwrap();
                let second = run(&mut session, -1.5, 1);
                close(&run(&mut fork, -1.5, 1), &second);
                if grows {
                    session.rewind(1).unwrap();
                    close(&run(&mut session, -1.5, 1), &second);
                }
                session.reset_blocking().unwrap();
                close(&run(&mut session, 0.5, 0), &first);
            }
        }
    }
}

/// What moves within a state is not read while it is overwritten.
const SHIFTED: &str = r#"
graph (x: %1) -> (y: %5, z: %8) {
  state k: %0 -> %3
  state h: %4 -> %7
  %0 = input : f32[2, 7, 3] as "k"
  %1 = input : f32[2, seq, 3] as "x"
  %2 = concat axis 1 (%0, %1) : f32[2, seq + 7, 3] @ "join"
  %3 = view [2, 7, 3] reads [%0, seq + %1, %2] (%2) : f32[2, 7, 3] @ "latest"
  %4 = input : f32[5, 301] as "h"
  %5 = reduce sum axes [1] (%0) : f32[2, 1, 3] as "y" @ "sum"
  %6 = view [5, 301] reads [4 - %0, 300 - %1] (%4) : f32[5, 301] @ "turned"
  %7 = map [5, 301] { add(mul(a0, 0.5:f32), cast(f32, index(301*%0 + %1))) } (%6) : f32[5, 301] @ "shifted"
  %8 = map [5, 301] { add(a0, 1:f32) } (%4) : f32[5, 301] as "z" @ "before"
}
"#;

#[test]
fn states_that_move_within_themselves() {
    let graph = wgfc_ir::text::parse(SHIFTED).unwrap();
    wgfc_ir::verify::verify(&graph).unwrap();
    for fusion in [Fusion::None, Fusion::Full] {
        let options = Options { fusion, ..Options::default() };
        let kernels = wgfc_compiler::fuse::fuse(&graph, &options).unwrap();
        let program =
            wgfc_compiler::assemble::assemble(&graph, &kernels, &options, Stats::default()).unwrap();
        for gpu in gpus() {
            let mut session = Session::new_blocking(gpu, &program).unwrap();
            let mut states = StateValues::default();
            for (step, seq) in [5, 1, 9, 2, 1].into_iter().enumerate() {
                let given = BTreeMap::from([("x".to_owned(), inputs(step, seq).remove("x").unwrap())]);
                let want = evaluate_from(&graph, &given, &mut states).unwrap();
                let got = session.run_blocking(&[("x", given["x"].clone())]).unwrap();
                for (got, want) in got.iter().zip(&want) {
                    close(&got.1.to_f32s().unwrap(), &want.to_f32s().unwrap());
                }
            }
        }
    }
}
