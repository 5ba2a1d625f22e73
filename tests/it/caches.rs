//! Kinds of caches: growing caches, caches of a fixed size, sliding windows, and caches of sequences of
//! different lengths.

use crate::states::{CAPACITY, Reference, close, decoder, decoder_with, fused, inputs, roomy, run};
use std::collections::BTreeMap;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::{Fusion, Options, States};
use wgfc_ir::Tensor;
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_runtime::session::Place;
use wgfc_runtime::testing::gpus;
use wgfc_runtime::{Gpu, RunError, Session};

/// All adapters with full fusion; one adapter otherwise.
fn adapters(fusion: Fusion) -> &'static [Gpu] {
    if fusion == Fusion::Full { gpus() } else { &gpus()[..gpus().len().min(1)] }
}

#[test]
fn a_cache_grows_on_the_device() {
    for fusion in [Fusion::None, Fusion::Full] {
        let (prefill, decode) = (decoder_with(None, fusion, None), decoder_with(Some(1), fusion, None));
        for gpu in adapters(fusion) {
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

/// A position has three 16-bit numbers and so does not always begin at a word boundary.
pub const NARROW: &str = r#"
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
    let program = fused(&graph, &options);
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
fn positions_are_copied_between_rows() {
    let graph = wgfc_ir::text::parse(NARROW).unwrap();
    let program = fused(&graph, &Options::default());
    let at = |row, position| Place { row, position };
    for gpu in gpus() {
        let mut session = roomy(gpu, &program, 6).unwrap();
        session.run_blocking(&[("x", inputs(0, 5).remove("x").unwrap())]).unwrap();
        let held = |s: &Session| s.states_blocking().unwrap()["k"].to_f32s().unwrap();
        let mut want = held(&session);
        assert_eq!(want.len(), 30);
        // A position has three numbers, and a row five positions in use.
        session.copy_positions_blocking(2, at(0, 0), at(1, 2), 2).unwrap();
        want.copy_within(0..6, 15 + 6);
        assert_eq!(held(&session), want);
        // Within a row, and the places overlap.
        session.copy_positions_blocking(2, at(1, 0), at(1, 2), 4).unwrap();
        want.copy_within(15..15 + 9, 15 + 6);
        assert_eq!(held(&session), want);
        for (rows, from, to, count, say) in [
            (2, at(0, 1), at(1, 0), 2, "whole words"),
            (2, at(0, 0), at(1, 0), 1, "whole words"),
            (2, at(0, 0), at(2, 0), 2, "there are no 2 positions"),
            (2, at(0, 4), at(1, 0), 4, "there are no 4 positions"),
            (2, at(0, usize::MAX), at(1, 0), 2, "there are no 2 positions"),
            (3, at(0, 0), at(1, 0), 2, "in 3 rows of 6"),
        ] {
            let e = session.copy_positions_blocking(rows, from, to, count).unwrap_err().to_string();
            assert!(e.contains(say), "{e}");
        }
        assert_eq!(held(&session), want);
        let mut fixed =
            Session::new_blocking(gpu, &fused(&crate::states::graph(), &Options::default())).unwrap();
        let e = fixed.copy_positions_blocking(2, at(0, 0), at(1, 0), 2).unwrap_err().to_string();
        assert!(e.contains("only grows"), "{e}");
    }
}

#[test]
fn room_that_cannot_be_had_changes_nothing() {
    let (open, fixed) = (decoder_with(None, Fusion::Full, None), decoder(None, Fusion::Full));
    for gpu in gpus().iter().take(1) {
        for capacity in [0, 1 << 31, usize::MAX] {
            let e = roomy(gpu, &open, capacity).unwrap_err().to_string();
            assert!(e.contains(&format!("cannot have room for {capacity} positions")), "{e}");
        }
        let mut session = roomy(gpu, &open, 6).unwrap();
        let mut reference = Reference::new();
        close(&run(&mut session, &[3, 1, 36]).unwrap(), &reference.run(&[3, 1, 36]));
        // A position takes 12 numbers.
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
        // A session with a fixed capacity, and attempts to share states between the two.
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

/// Sequences of different lengths share a cache; each sequence's tokens are written at the end of that
/// sequence.
#[test]
fn sequences_have_lengths_of_their_own() {
    let path = format!("{}/fixtures/small/decoder-ragged/model.onnx", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let dims = |batch| Options { dims: [("batch".to_owned(), batch)].into(), ..Options::default() };
    let graph = import(&bytes, &NoExternalData, &dims(3)).unwrap().graph;
    // The tokens of each run, and a mask of the valid positions of each sequence.
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
        for gpu in adapters(fusion) {
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

/// Caches of a fixed size and sliding windows, run beyond their ends, compared with the model that is given
/// its past explicitly.
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
        for fusion in [Fusion::None, Fusion::Full] {
            let states = States::Auto { capacity: None };
            let options = Options { fusion, states, ..Options::default() };
            let program = wgfc_compiler::compile(&bytes, &NoExternalData, &options).unwrap();
            let names: Vec<&str> = program.states.iter().map(|s| s.name.as_str()).collect();
            assert_eq!(names, ["past_key", "past_value"], "{kind}");
            assert!(program.states.iter().all(|s| s.is_window() == grows && s.growth.is_some() == grows));
            assert_eq!(program.outputs.len(), 1);
            for gpu in adapters(fusion) {
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
                // These caches cannot be rewound, except for a window that was never full.
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

/// A cache whose elements move within the state; no element is read after it was overwritten.
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
        let program = fused(&graph, &options);
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
