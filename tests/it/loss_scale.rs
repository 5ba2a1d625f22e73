//! Training steps whose loss is scaled: gradients that f16 does not hold, steps that overflow, and losses as in f32.

use crate::backend::Backend;
use crate::programs::{quick_adapters, torch};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use wgfc::compiler::loss_scale::{INVERSE, Ones, SCALE, STEPS, apply, mark};
use wgfc::compiler::pipeline::compile_graph;
use wgfc::compiler::{LossScale, Options, Precision};
use wgfc::source::ModelFile;
use wgfc::{Trainer, Training, npy};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::program::Stats;
use wgfc_ir::{DType, Graph, Program, Tensor};
use wgfc_runtime::{Gpu, Session};

/// A step of gradient descent on `k` times the squared error of two layers. Its largest gradients are about `4 · k`.
const STEP: &str = r#"
graph (x: %0, t: %1, k: %2, rate: %3) -> (loss: %12) {
  state u: %4 -> %21
  state w: %5 -> %20
  %0 = input : f32[64, 72] as "x"
  %1 = input : f32[64, 80] as "t"
  %2 = input : f32[] as "k"
  %3 = input : f32[] as "rate"
  %4 = input : f32[72, 96] as "u"
  %5 = input : f32[96, 80] as "w"
  %6 = contract [ac, cb -> ab] (%0, %4) : f32[64, 96] @ "first"
  %7 = map [64, 96] { max(a0, 0.0:f32) } (%6) : f32[64, 96] @ "relu"
  %8 = contract [ac, cb -> ab] (%7, %5) : f32[64, 80] @ "second"
  %9 = map [64, 80] { sub(a0, a1) } (%8, %1) : f32[64, 80] @ "error"
  %10 = map [64, 80] { mul(a0, mul(a0, a1)) } (%9, %2) : f32[64, 80] @ "square"
  %11 = reduce sum axes [0, 1] (%10) : f32[1, 1] @ "sum"
  %12 = view [] reads [0, 0] (%11) : f32[] as "loss" @ "loss"
  %13 = map [] { 1.0:f32 } () : f32[] @ "ones"
  %14 = map [] { mul(a0, a1) } (%13, %2) : f32[] @ "by"
  %15 = map [64, 80] { mul(a0, mul(a1, 2.0:f32)) } (%9, %14) : f32[64, 80] @ "down"
  %16 = contract [ca, cb -> ab] (%7, %15) : f32[96, 80] @ "of_w"
  %17 = contract [ac, bc -> ab] (%15, %5) : f32[64, 96] @ "back"
  %18 = map [64, 96] { select(gt(a1, 0.0:f32), a0, 0.0:f32) } (%17, %7) : f32[64, 96] @ "masked"
  %19 = contract [ca, cb -> ab] (%0, %18) : f32[72, 96] @ "of_u"
  %20 = map [96, 80] { sub(a0, mul(a1, a2)) } (%5, %16, %3) : f32[96, 80] @ "new_w"
  %21 = map [72, 96] { sub(a0, mul(a1, a2)) } (%4, %19, %3) : f32[72, 96] @ "new_u"
}
"#;

/// Numbers between `-most` and `most`.
fn numbers(shape: &[usize], most: f32, seed: u32) -> Tensor {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let all: Vec<f32> = (0..shape.iter().product()).map(|_| most * next()).collect();
    Tensor::from_f32(shape.to_vec(), &all)
}

fn scalar(v: f32) -> Tensor {
    Tensor::from_f32(vec![], &[v])
}

/// The step with initial weights, and its seed.
fn step() -> (Graph, Ones) {
    let mut g = wgfc_ir::text::parse(STEP).unwrap();
    for (s, seed) in g.states.iter_mut().zip(1..) {
        let shape = if *s.name == *"u" { [72, 96] } else { [96, 80] };
        s.initial = Some(Arc::new(numbers(&shape, 0.25, seed)));
    }
    let ones = g.node_ids().find(|n| g.node(*n).label() == "ones").unwrap().into();
    let like = g.outputs[0].value;
    (g, Ones { ones, like })
}

/// The step with a scaled loss.
fn scaled(scale: &LossScale) -> Graph {
    let (mut g, ones) = step();
    mark(&mut g, &[ones], scale).unwrap();
    apply(&mut g, scale).unwrap();
    wgfc_ir::verify::verify(&g).unwrap();
    g
}

fn inputs(k: f32, rate: f32) -> BTreeMap<String, Tensor> {
    let (x, t) = (numbers(&[64, 72], 1.0, 7), numbers(&[64, 80], 1.0, 8));
    [("x", x), ("t", t), ("k", scalar(k)), ("rate", scalar(rate))].map(|(n, t)| (n.to_owned(), t)).into()
}

fn compiled(g: &Graph, gpu: &Gpu, precision: Precision, loss_scale: Option<LossScale>) -> Program {
    let options = Options { precision, loss_scale, ..Options::default() };
    let options = Options { profile: options.profile.with_limits(gpu.profile()), ..options };
    compile_graph(g.clone(), Stats::default(), &options, &mut |_, _| {}).unwrap()
}

fn run(session: &mut Session, inputs: &BTreeMap<String, Tensor>) -> f64 {
    let given: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    number(&session.run_blocking(&given).unwrap()[0].1)
}

fn number(t: &Tensor) -> f64 {
    t.scalars().unwrap()[0].as_f64()
}

fn losses(session: &mut Session, inputs: &BTreeMap<String, Tensor>, steps: usize) -> Vec<f64> {
    (0..steps).map(|_| run(session, inputs)).collect()
}

fn assert_near(what: &str, got: &[f64], want: &[f64], most: f64) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= most * w.abs(), "{what}, step {}: {g} for {w}", i + 1);
    }
}

/// Gradients of 4e-9 are 0 in f16: parameters stay as they are, but with a scaled loss learn as in f32.
#[test]
fn gradients_below_f16_are_kept_by_the_scale() {
    let inputs = inputs(1e-9, 1e6);
    let plain = step().0;
    let scale = LossScale::default();
    for gpu in Backend::adapters().iter().filter(|g| g.profile().f16) {
        let name = &gpu.summary().name;
        let losses = |g: &Graph, precision, scale| {
            let program = compiled(g, gpu, precision, scale);
            losses(&mut wgfc_selftest::session(gpu, &program).unwrap(), &inputs, 20)
        };
        let wanted = losses(&plain, Precision::F32, None);
        assert!(wanted[19] < 0.7 * wanted[0], "{wanted:?}");
        let lost = losses(&plain, Precision::F16, None);
        assert!(lost[19] > 0.99 * lost[0], "{name}: {lost:?}");
        let kept = losses(&scaled(&scale), Precision::F16, Some(scale));
        assert_near(name, &kept, &wanted, 0.02);
    }
}

/// With the first scale gradients are beyond 65,504: steps change nothing until the scale is small enough, and then go as in f32.
#[test]
fn steps_that_overflow_are_skipped() {
    let inputs = inputs(1.0, 1e-3);
    let plain = step().0;
    let scale = LossScale::default();
    for gpu in Backend::adapters().iter().filter(|g| g.profile().f16) {
        let name = &gpu.summary().name;
        let program = compiled(&plain, gpu, Precision::F32, None);
        let wanted = losses(&mut wgfc_selftest::session(gpu, &program).unwrap(), &inputs, 10);
        let program = compiled(&scaled(&scale), gpu, Precision::F16, Some(scale));
        let mut session = wgfc_selftest::session(gpu, &program).unwrap();
        let begin = session.states_blocking().unwrap();
        let mut skipped = 0;
        loop {
            run(&mut session, &inputs);
            let now = session.states_blocking().unwrap();
            let (s, inverse) = (number(&now[SCALE]), number(&now[INVERSE]));
            assert_eq!(s * inverse, 1.0);
            if number(&now[STEPS]) > 0.0 {
                assert_eq!(s, 65536.0 / 2f64.powi(skipped), "{name}");
                break;
            }
            skipped += 1;
            assert_eq!(s, 65536.0 / 2f64.powi(skipped), "{name}");
            for n in ["u", "w"] {
                assert_eq!(now[n].bytes(), begin[n].bytes(), "{name}: {n} after {skipped} skipped steps");
            }
        }
        assert!((1..=12).contains(&skipped), "{name}: {skipped}");
        assert_near(name, &losses(&mut session, &inputs, 9), &wanted[1..], 0.02);
    }
}

/// Gradients that overflow in f32, too, and a scale that doubles after two steps, on the evaluator and on devices, fused or not.
#[test]
fn scales_change_as_on_the_evaluator() {
    let scale = LossScale { interval: 2, ..LossScale::default() };
    let g = scaled(&scale);
    let ks = [1e34f32, 1e34, 1e-4, 1e-4, 1e-4, 1e34, 1e-4];
    let wanted: [(f64, f64); 7] = [
        (32768.0, 0.0),
        (16384.0, 0.0),
        (16384.0, 1.0),
        (32768.0, 0.0),
        (32768.0, 1.0),
        (16384.0, 0.0),
        (16384.0, 1.0),
    ];
    let mut after: Vec<BTreeMap<String, Tensor>> = vec![];
    let mut states = StateValues::default();
    for (k, (s, n)) in ks.iter().zip(wanted) {
        evaluate_from(&g, &inputs(*k, 1.0), &mut states).unwrap();
        let now = states.tensors.clone();
        assert_eq!((number(&now[SCALE]), number(&now[INVERSE]), number(&now[STEPS])), (s, 1.0 / s, n));
        after.push(now);
    }
    assert_eq!(after[0]["w"].bytes(), after[1]["w"].bytes());
    assert_ne!(after[1]["w"].bytes(), after[2]["w"].bytes());
    assert_eq!(after[4]["w"].bytes(), after[5]["w"].bytes());
    for gpu in Backend::adapters() {
        for precision in [Precision::F32, Precision::F16] {
            let program = compiled(&g, &gpu, precision, Some(scale));
            let mut session = wgfc_selftest::session(&gpu, &program).unwrap();
            for (i, (k, want)) in ks.iter().zip(&after).enumerate() {
                run(&mut session, &inputs(*k, 1.0));
                let now = session.states_blocking().unwrap();
                let what = format!("step {} on {} in {precision:?}", i + 1, gpu.summary().name);
                for n in [SCALE, INVERSE, STEPS] {
                    assert_eq!(now[n].bytes(), want[n].bytes(), "{what}: {n}");
                }
                for n in ["u", "w"] {
                    let (got, want) = (now[n].to_f32s().unwrap(), want[n].to_f32s().unwrap());
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3;
                    assert!(got.iter().zip(&want).all(close), "{what}: {n}");
                }
            }
        }
    }
}

/// Three steps of a small transformer with scaled losses, all of whose tensors are too small to be worth f16.
#[test]
fn steps_with_attention_have_the_losses_of_torch() {
    let array = |name: &str| npy::read(&torch(&format!("attention_step.{name}.npy"))).unwrap();
    let (x, wanted) = (array("x"), array("losses"));
    let wanted: Vec<f64> = wanted.scalars().unwrap().iter().map(|s| s.as_f64()).collect();
    let ids = x.to_i64s().unwrap();
    let size = ids.len() / wanted.len();
    for name in ["attention_step.pt2", "attention_step.core.pt2"] {
        let model = ModelFile::open(&torch(name)).unwrap();
        for gpu in quick_adapters() {
            let options = Options {
                precision: Precision::F16,
                loss_scale: Some(LossScale::default()),
                ..Options::default()
            };
            let options = Options { profile: options.profile.with_limits(gpu.profile()), ..options };
            let program = model.compile(&options).unwrap();
            let mut session = wgfc_selftest::session(&gpu, &program).unwrap();
            let got: Vec<f64> = ids
                .chunks(size)
                .map(|ids| {
                    let x = Tensor::from_i64(x.shape[1..].to_vec(), ids);
                    run(&mut session, &[("x".to_owned(), x), ("rate".to_owned(), scalar(1e-2))].into())
                })
                .collect();
            assert_near(&format!("{name} on {}", gpu.summary().name), &got, &wanted, 0.02);
        }
    }
}

/// A decoder in training, whose activations and gradients are f16 in memory.
#[test]
fn a_decoder_learns_in_f16_as_in_f32() {
    let file = ModelFile::open(&torch("decoder_step.pt2")).unwrap();
    // Each token follows from the one before by one of three steps.
    let ids: Vec<i64> = (0..128i64)
        .flat_map(|r| (0..25).map(move |i| (r * 37 + i * [1, 5, 7][r as usize % 3]) % 96))
        .collect();
    let training = || Training {
        data: [("x".to_owned(), Tensor::from_i64(vec![128, 25], &ids))].into(),
        inputs: [("rate".to_owned(), scalar(3e-3))].into(),
        batch: Some(16),
        seed: Some(0),
        ..Training::default()
    };
    for gpu in quick_adapters() {
        let run = |precision| {
            let options = Options { precision, ..Options::default() };
            let mut trainer = Trainer::compile(&gpu, &file, training(), &options).unwrap();
            let program = trainer.session().program();
            let between = program.stats.halved.as_ref().map_or(0, |h| h.between);
            let own = program.states.iter().filter(|s| s.name.starts_with("state."));
            let begin = own.zip(1..).filter_map(|(s, seed)| {
                let shape: Vec<usize> = s.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
                let moment =
                    ["mean", "square", "count"].iter().any(|m| s.name.starts_with(&format!("state.{m}")));
                let tensor = match shape.len() {
                    _ if moment => return None,
                    2 => numbers(&shape, (3.0 / shape[1] as f32).sqrt(), seed),
                    _ if s.name.ends_with("bias") => return None,
                    _ => Tensor::from_f32(shape.clone(), &vec![1.0; shape[0]]),
                };
                Some((s.name.clone(), tensor))
            });
            let begin = begin.collect();
            trainer.begin_with(&begin).unwrap();
            let mut losses = vec![];
            trainer
                .run(16, |s| {
                    losses.push(s.loss);
                    ControlFlow::Continue(())
                })
                .unwrap();
            let kept = trainer.session().states_named_blocking(&["state.embed.weight"]).unwrap();
            assert_eq!(kept["state.embed.weight"].dtype, DType::F32);
            (losses, between)
        };
        let (wanted, none) = run(Precision::F32);
        let (got, between) = run(Precision::F16);
        assert!(none == 0 && (between > 20 || !gpu.profile().f16), "{between} tensors are f16");
        assert!(wanted[15] < 0.9 * wanted[0], "{wanted:?}");
        assert_near(&gpu.summary().name, &got, &wanted, 0.02);
    }
}

/// Steps whose loss cannot be scaled, and why.
#[test]
fn other_steps_are_refused() {
    let scale = LossScale::default();
    let refused = |g: &mut Graph, ones: &[Ones], scale: &LossScale| {
        let e = mark(g, ones, scale).and_then(|()| apply(g, scale)).unwrap_err();
        e.to_string()
    };
    let (mut g, ones) = step();
    let text = refused(&mut g, &[], &scale);
    assert!(
        text.contains("no seed of a backward pass") && text.contains("train in f32, or export"),
        "{text}"
    );
    let text = refused(&mut g, &[ones], &LossScale { initial: 1000, ..scale });
    assert!(text.contains("no power of two"), "{text}");
    let text = refused(&mut g, &[ones], &LossScale { interval: 0, ..scale });
    assert!(text.contains("after 0 steps"), "{text}");
    let text = refused(&mut step_without_states(), &[ones], &scale);
    assert!(text.contains("no state that could keep its value"), "{text}");
}

/// The step whose parameters are inputs.
fn step_without_states() -> Graph {
    let mut g = step().0;
    for s in std::mem::take(&mut g.states) {
        g.inputs.push(wgfc_ir::Border { name: s.name.clone(), value: s.before });
        g.outputs.push(wgfc_ir::Border { name: format!("new_{}", s.name).into(), value: s.after });
    }
    g
}
