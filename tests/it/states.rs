//! States on devices equal the evaluator's, run after run.

use std::collections::BTreeMap;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::pipeline::schedule;
use wgfc_compiler::{Fusion, Options, States, Technique};
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

pub fn graph() -> Graph {
    let g = wgfc_ir::text::parse(CACHES).unwrap();
    wgfc_ir::verify::verify(&g).unwrap();
    g
}

pub fn inputs(step: usize, seq: usize) -> BTreeMap<String, Tensor> {
    let x: Vec<f32> = (0..2 * seq * 3).map(|i| ((i * 7 + step * 5) % 13) as f32 * 0.25 - 1.0).collect();
    // Indices are distinct; 7 is out of bounds, and even ones are made negative so that they count from the
    // end.
    let at = (0..seq).map(|i| ((i * 3 + step) % 8) as i64);
    let at: Vec<i64> = at.map(|i| if i % 2 == 0 { i - 7 } else { i }).collect();
    [("x", Tensor::from_f32(vec![2, seq, 3], &x)), ("at", Tensor::from_i64(vec![seq], &at))]
        .map(|(n, t)| (n.to_owned(), t))
        .into()
}

/// The program of a graph, without rewriting it first.
pub fn fused(graph: &Graph, options: &Options) -> Program {
    let kernels = wgfc_compiler::passes::fuse(graph, options).unwrap();
    let scheduled = schedule(kernels, options).unwrap();
    wgfc_compiler::assemble::assemble(graph, &scheduled, options, Stats::default()).unwrap()
}

#[test]
fn several_runs_agree_with_the_evaluator() {
    for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
        let options = Options { fusion, ..Options::default() };
        let graph = graph();
        let program = fused(&graph, &options);
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

pub const CAPACITY: usize = 23;

/// The decoder with its cache as states, for `seq` tokens per run or a symbolic number.
pub fn decoder(seq: Option<i64>, fusion: Fusion) -> Program {
    decoder_with(seq, fusion, Some(CAPACITY))
}

pub fn decoder_with(seq: Option<i64>, fusion: Fusion, capacity: Option<usize>) -> Program {
    let options = Options {
        fusion,
        states: States::Auto { capacity },
        dims: seq.map(|s| ("seq".to_owned(), s)).into_iter().collect(),
        ..Options::default()
    };
    wgfc_compiler::compile(&decoder_bytes(), &NoExternalData, &options).unwrap()
}

/// The unmodified model on the evaluator, which is given its past as inputs.
pub struct Reference {
    graph: Graph,
    pub past: BTreeMap<String, Tensor>,
    length: usize,
}

pub fn tokens(ids: &[i64], past: usize) -> Vec<(String, Tensor)> {
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
    pub fn new() -> Reference {
        let graph = import(&decoder_bytes(), &NoExternalData, &Options::default()).unwrap().graph;
        let caches = graph.inputs.iter().filter(|b| b.name.starts_with("past"));
        let past = caches.map(|b| (b.name.to_string(), Tensor::from_f32(vec![1, 2, 0, 6], &[]))).collect();
        Reference { graph, past, length: 0 }
    }

    pub fn run(&mut self, ids: &[i64]) -> Vec<f32> {
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

pub fn run(session: &mut Session, ids: &[i64]) -> Result<Vec<f32>, RunError> {
    let given = tokens(ids, session.state_len());
    let named: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    Ok(session.run_blocking(&named)?[0].1.to_f32s().unwrap())
}

#[track_caller]
pub fn close(got: &[f32], want: &[f32]) {
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

        // The sequence is continued differently from the fifth token, then from the third.
        session.rewind(5).unwrap();
        let mut reference = Reference::new();
        reference.run(&start);
        close(&run(&mut session, &[22, 1]).unwrap(), &reference.run(&[22, 1]));
        session.rewind(3).unwrap();
        let mut reference = Reference::new();
        reference.run(&start[..3]);
        close(&run(&mut session, &[30]).unwrap(), &reference.run(&[30]));

        // The fork is not affected.
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
    // Equal weights are shared, as a loader of both programs would do.
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

        // A fork of one session, with the other program on the fork's states.
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

/// A session with a given capacity.
pub fn roomy(gpu: &Gpu, program: &Program, capacity: usize) -> Result<Session, RunError> {
    Session::with_options_blocking(gpu, program, SessionOptions { capacity, ..SessionOptions::default() })
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
        // A mask whose length contradicts the states.
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

#[test]
fn what_states_hold_can_be_kept_and_given_back() {
    let (open, fixed) = (decoder_with(None, Fusion::Full, None), decoder(None, Fusion::Full));
    for gpu in gpus().iter().take(1) {
        let mut session = roomy(gpu, &open, 9).unwrap();
        let mut reference = Reference::new();
        close(&run(&mut session, &[3, 1, 36, 0, 8]).unwrap(), &reference.run(&[3, 1, 36, 0, 8]));
        let kept = session.states_blocking().unwrap();
        for (name, t) in &kept {
            close(&t.to_f32s().unwrap(), &reference.past[name].to_f32s().unwrap());
            assert_eq!(t.shape, [1, 2, 5, 6]);
        }
        let next = run(&mut session, &[5, 30]).unwrap();

        // The states are restored in the same session, in a session with less room, and in one with another
        // capacity.
        session.set_states_blocking(&kept).unwrap();
        assert_eq!(session.state_len(), 5);
        close(&run(&mut session, &[5, 30]).unwrap(), &next);
        let mut small = roomy(gpu, &open, 3).unwrap();
        small.set_states_blocking(&kept).unwrap();
        assert_eq!((small.state_len(), small.capacity()), (5, Some(5)));
        small.grow_blocking(7).unwrap();
        close(&run(&mut small, &[5, 30]).unwrap(), &next);
        let mut closed = Session::new_blocking(gpu, &fixed).unwrap();
        closed.set_states_blocking(&kept).unwrap();
        close(&run(&mut closed, &[5, 30]).unwrap(), &next);

        let edited = |edit: &dyn Fn(&mut BTreeMap<String, Tensor>)| {
            let mut states = kept.clone();
            edit(&mut states);
            states
        };
        let key = "past_key_values.0.key";
        let zeros = |shape: &[usize]| Tensor::zeros(wgfc_ir::DType::F32, shape.to_vec());
        for (states, say) in [
            (edited(&|s| drop(s.remove(key))), "its contents are missing"),
            (edited(&|s| drop(s.insert("k".into(), zeros(&[1])))), "there is no state \"k\""),
            (edited(&|s| drop(s.insert(key.into(), zeros(&[1, 2, 5, 7])))), "cannot become f32[1, 2, 5, 7]"),
            (edited(&|s| drop(s.insert(key.into(), zeros(&[1, 2, 4, 6])))), "which must be as many (`past`)"),
            (
                kept.keys().map(|k| (k.clone(), zeros(&[1, 2, 24, 6]))).collect(),
                "has room for 23 positions, which was fixed",
            ),
        ] {
            let e = closed.set_states_blocking(&states).unwrap_err().to_string();
            assert!(e.contains(say), "{e}");
            assert_eq!(closed.state_len(), 7);
        }
        // If only some states are replaced, they must have as many positions as the others.
        let one = |t: &Tensor| BTreeMap::from([(key.to_owned(), t.clone())]);
        let e = closed.update_states_blocking(&one(&kept[key])).unwrap_err().to_string();
        assert!(e.contains("has 7 positions and others would have 5, which must be as many (`past`)"), "{e}");
        closed.rewind(5).unwrap();
        let [zero, before] = [&zeros(&kept[key].shape), &kept[key]];
        for t in [zero, before] {
            closed.update_states_blocking(&one(t)).unwrap();
            assert_eq!(closed.states_named_blocking(&[key]).unwrap(), one(t));
            let others: Vec<&str> = kept.keys().map(String::as_str).filter(|k| *k != key).collect();
            for (name, t) in closed.states_named_blocking(&others).unwrap() {
                assert_eq!(t, kept[&name]);
            }
        }
        let e = closed.states_named_blocking(&["k"]).unwrap_err().to_string();
        assert!(e.contains("there is no state \"k\""), "{e}");
        close(&run(&mut closed, &[5, 30]).unwrap(), &next);
    }
}

#[test]
fn states_of_others_and_misuse_are_refused_and_harm_nothing() {
    let program = decoder(None, Fusion::Full);
    let other = |name: &str, batch: Option<i64>| {
        let path = format!("{}/fixtures/small/{name}/model.onnx", env!("CARGO_MANIFEST_DIR"));
        let dims = batch.map(|b| ("batch".to_owned(), b)).into_iter().collect();
        let options =
            Options { states: States::Auto { capacity: Some(CAPACITY) }, dims, ..Options::default() };
        wgfc_compiler::compile(&std::fs::read(path).unwrap(), &NoExternalData, &options).unwrap()
    };
    let (window, batch) = (other("cache-window", None), other("decoder-batch", Some(2)));
    let edited = |edit: &dyn Fn(&mut Program)| {
        let mut p = program.clone();
        edit(&mut p);
        p
    };
    let elsewhere = edited(&|p| {
        let growth = p.states.iter_mut().filter_map(|s| s.growth.as_mut());
        growth.for_each(|g| g.length = "seq".into());
    });
    let demanding = edited(&|p| p.kernels[0].features.push("shader-f64".into()));
    for gpu in gpus().iter().take(1) {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let mut reference = Reference::new();
        let start = [3, 1, 36, 0];
        close(&run(&mut session, &start).unwrap(), &reference.run(&start));

        for (program, say) in [
            (&window, "state \"past_key\": the other session has no such state"),
            (&batch, "it is f32[2, 2, 23, 6] here and f32[1, 2, 23, 6] in the other session"),
            (&elsewhere, "it grows differently in the other session"),
            (&demanding, "feature `shader-f64`, which this device lacks"),
        ] {
            let e = session.sibling_blocking(program).unwrap_err().to_string();
            assert!(e.contains(say), "{e}");
        }
        let strange = Session::new_blocking(gpu, &window).unwrap();
        let e = session.on_states_of_blocking(&strange).unwrap_err().to_string();
        assert!(e.contains("the other session has no such state"), "{e}");
        let name = gpu.summary().name.parse().unwrap();
        let again = Gpu::request_blocking(&name).unwrap();
        let abroad = Session::new_blocking(&again, &program).unwrap();
        let e = session.on_states_of_blocking(&abroad).unwrap_err().to_string();
        assert!(e.contains("the other session is on another device"), "{e}");

        let reset = pollster::block_on(session.reset_state("past"));
        let misuse = [
            (reset, "there is no state \"past\"; there is: \"past_key_values.0.key\""),
            (session.rewind(5), "it holds 4 positions, which are fewer than 5"),
            (session.rewind(usize::MAX), "which are fewer than"),
            (session.set_symbol("past", -1), "its length cannot be -1"),
            (session.set_symbol("past", 24), "it has room for 23 positions"),
            (session.set_symbol("present", 1), "there is no symbol \"present\""),
        ];
        for (done, say) in misuse {
            let e = done.unwrap_err().to_string();
            assert!(e.contains(say), "{e}");
        }
        let mut given = tokens(&[1], 4);
        given[0].1 = Tensor::from_f32(vec![1, 1], &[1.0]);
        let named: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        assert!(session.run_blocking(&named).is_err());
        let named: Vec<_> =
            named[1..].iter().chain([&("past_key_values.0.key", named[1].1.clone())]).cloned().collect();
        let e = session.run_blocking(&named).unwrap_err().to_string();
        assert!(e.contains("no such input"), "{e}");
        assert_eq!(session.state_len(), 4);
        close(&run(&mut session, &[5]).unwrap(), &reference.run(&[5]));
    }
}

/// A program compiled for devices with f16 is refused with a clear error on a device without it.
#[test]
fn a_device_without_f16_is_named() {
    let path = format!("{}/fixtures/small/half/model.onnx", env!("CARGO_MANIFEST_DIR"));
    let mut options = Options::default();
    options.profile.f16 = true;
    let program = wgfc_compiler::compile(&std::fs::read(path).unwrap(), &NoExternalData, &options).unwrap();
    assert!(program.kernels.iter().any(|k| k.features.iter().any(|f| f == "shader-f16")));
    for gpu in gpus() {
        match Session::new_blocking(gpu, &program) {
            Ok(_) => assert!(gpu.profile().f16),
            Err(e) => {
                assert!(!gpu.profile().f16);
                let e = wgfc::model::device_error(e).to_string();
                assert!(e.contains("`shader-f16`") && e.contains("another adapter"), "{e}");
            }
        }
    }
}

/// A decoder that takes one token at a time gives the same results without any one part of fusion.
#[test]
fn each_part_of_fusion_left_out() {
    let all = [
        Technique::Approximate,
        Technique::Merge,
        Technique::Epilogues,
        Technique::WaitingScales,
        Technique::KeyParts,
    ];
    let sets = all.iter().map(|t| vec![*t]).chain([all.to_vec()]);
    for without in sets {
        let options = Options {
            states: States::Auto { capacity: Some(CAPACITY) },
            dims: [("seq".to_owned(), 1)].into(),
            without: without.iter().copied().collect(),
            ..Options::default()
        };
        let program = wgfc_compiler::compile(&decoder_bytes(), &NoExternalData, &options).unwrap();
        let gpu = &gpus()[0];
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let mut reference = Reference::new();
        for id in [3, 1, 36, 0, 8] {
            let (got, want) = (run(&mut session, &[id]).unwrap(), reference.run(&[id]));
            assert!(
                got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 2e-4 * (1.0 + w.abs())),
                "{without:?}"
            );
        }
    }
}
