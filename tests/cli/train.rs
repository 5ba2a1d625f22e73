//! `wgfc train`: losses equal to torch's, checkpoints that continue exactly, and errors about data that do
//! not fit.

use super::{Ran, command, fixture, folder, ran, tree, wgfc};
use std::path::Path;
use wgfc::{Tensor, npy};

fn step() -> String {
    fixture("torch/train_step.pt2")
}

fn pure() -> String {
    fixture("torch/train_step_pure.pt2")
}

fn rows() -> String {
    fixture("torch/train_step.x.npy")
}

/// `wgfc train` on the first software adapter.
fn train(dir: &Path, words: &str) -> Ran {
    wgfc(dir, &format!("train|{words}|--adapter|software|--quiet"))
}

pub fn is_skipped(test: &str) -> bool {
    let none = wgfc_runtime::testing::gpus().iter().all(|g| !g.summary().is_software);
    if none {
        eprintln!("{test}: skipped, there is no software adapter");
    }
    none
}

fn losses(file: &Path) -> Vec<(u64, String)> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().skip(1).map(|l| l.split_once(',').unwrap());
    lines.map(|(s, l)| (s.parse().unwrap(), l.to_owned())).collect()
}

#[test]
fn a_step_of_torch_has_the_losses_of_torch() {
    if is_skipped("a_step_of_torch") {
        return;
    }
    let d = folder();
    let wanted = npy::read(fixture("torch/train_step.losses.npy").as_ref()).unwrap();
    let wanted: Vec<f64> = wanted.scalars().unwrap().into_iter().map(|s| s.as_f64()).collect();
    assert_eq!(wanted.len(), 50);
    // With the state in buffers, from a compiled folder, and with the state as inputs and outputs.
    wgfc(d.path(), &format!("compile|{}|-o|out", step())).exits(0);
    let begin = "begin.safetensors";
    let rest = format!("--data|{}|--batch|8|--no-shuffle|--input|rate=0.01", rows());
    train(d.path(), &format!("{}|{rest}|--steps|0|--checkpoint|{begin}", step())).exits(0).prints("none");
    let named = wgfc::train::read_tensors(&d.path().join(begin)).unwrap();
    let init: Vec<String> = named
        .iter()
        .map(|(n, t)| {
            npy::write(t, &d.path().join(format!("{n}.npy"))).unwrap();
            format!("--init|state.{n}={n}.npy")
        })
        .collect();
    for model in [step(), "out".to_owned(), format!("{}|{}", pure(), init.join("|"))] {
        let log = d.path().join("l.csv");
        train(d.path(), &format!("{model}|{rest}|--steps|50|--log|l.csv")).exits(0).prints("50: 1 to 50");
        let got = losses(&log);
        assert_eq!(got.len(), 50, "{model}");
        for ((n, l), w) in got.iter().zip(&wanted) {
            let l: f64 = l.parse().unwrap();
            assert!((l - w).abs() <= 1e-4 * w, "{model}, step {n}: {l}, and torch has {w}");
        }
    }
    assert!(wanted[49] < 0.1 * wanted[0]);
}

#[test]
fn resumed_training_goes_on_to_the_last_bit() {
    if is_skipped("resumed_training") {
        return;
    }
    let d = folder();
    let at = |f: &str| d.path().join(f);
    // The 44 rows are not a multiple of the batch, so epochs end within batches.
    let rest = format!("{}|--data|{}|--batch|8|--input|rate=0.01", step(), rows());
    train(d.path(), &format!("{rest}|--steps|40|--log|whole.csv|--checkpoint|whole.safetensors")).exits(0);
    let parts = "--log|parts.csv|--checkpoint|parts.safetensors|--every|7";
    train(d.path(), &format!("{rest}|--steps|17|{parts}")).exits(0);
    // This simulates a crash between two checkpoints, with losses in the log that no checkpoint includes.
    let log = std::fs::read_to_string(at("parts.csv")).unwrap();
    std::fs::write(at("parts.csv"), log + "18,0.5\n19,0.2").unwrap();
    let resumed =
        train(d.path(), &format!("{rest}|--steps|40|{parts}|--resume|parts.safetensors|--plot|l.svg|--json"));
    let v = resumed.exits(0).json();
    assert_eq!((&v["resumed_after"], &v["steps"], &v["step"]), (&17.into(), &23.into(), &40.into()));
    assert_eq!(losses(&at("parts.csv")), losses(&at("whole.csv")));
    let bytes = |f: &str| std::fs::read(at(f)).unwrap();
    assert_eq!(bytes("parts.safetensors"), bytes("whole.safetensors"));
    assert!(String::from_utf8(bytes("l.svg")).unwrap().contains("loss over 40 steps"));
    // No other files remain.
    let names: Vec<_> =
        tree(d.path()).into_iter().map(|(p, _)| p).filter(|p| !p.starts_with(at("cache"))).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    // Resuming with another order is refused, and another order gives other losses.
    train(d.path(), &format!("{rest}|--steps|50|--resume|parts.safetensors|--seed|9"))
        .exits(1)
        .says("with --seed 0");
    train(d.path(), &format!("{rest}|--steps|40|--seed|9|--log|other.jsonl")).exits(0);
    let other = std::fs::read_to_string(at("other.jsonl")).unwrap();
    assert!(other.starts_with("{\"step\":1,\"loss\":") && other.lines().count() == 40, "{other}");
    train(d.path(), &format!("{rest}|--steps|40|--resume|parts.safetensors"))
        .exits(0)
        .prints("none, 40 before");
}

/// In f16 the scale of the loss is part of the checkpoint.
#[test]
fn training_in_f16_resumes_to_the_last_bit() {
    if is_skipped("training_in_f16") {
        return;
    }
    let d = folder();
    let bytes = |f: &str| std::fs::read(d.path().join(f)).unwrap();
    let rest = format!("{}|--data|{}|--batch|8|--input|rate=0.01|--precision|f16", step(), rows());
    train(d.path(), &format!("{rest}|--steps|20|--log|whole.csv|--checkpoint|whole.safetensors"))
        .exits(0)
        .prints("loss scale")
        .prints("65536");
    let parts = "--log|parts.csv|--checkpoint|parts.safetensors";
    train(d.path(), &format!("{rest}|--steps|9|{parts}")).exits(0);
    let v = train(d.path(), &format!("{rest}|--steps|20|{parts}|--resume|parts.safetensors|--json"))
        .exits(0)
        .json();
    assert_eq!((&v["resumed_after"], &v["loss_scale"]), (&9.into(), &65536.0.into()));
    assert_eq!(losses(&d.path().join("parts.csv")), losses(&d.path().join("whole.csv")));
    assert_eq!(bytes("parts.safetensors"), bytes("whole.safetensors"));
    let kept = wgfc::train::read_tensors(&d.path().join("whole.safetensors")).unwrap();
    assert_eq!(kept["loss_scale.steps"].to_i64s(), Some(vec![20]));
    // A folder that was compiled with a scaled loss trains, too; without f16 there is no scale.
    wgfc(d.path(), &format!("compile|{}|-o|half|--precision|f16|--loss-scale", step())).exits(0);
    let given = format!("--data|{}|--batch|8|--input|rate=0.01|--steps|3|--json", rows());
    let v = train(d.path(), &format!("half|{given}")).exits(0).json();
    assert_eq!(v["loss_scale"], 65536.0);
    let v = train(d.path(), &format!("{}|{given}", step())).exits(0).json();
    assert!(v["loss_scale"].is_null());
    // A checkpoint of f32 has no scale, but its states begin a training in f16.
    train(d.path(), &format!("{}|{given}|--checkpoint|f32.safetensors", step())).exits(0);
    train(d.path(), &format!("{rest}|--steps|9|--resume|f32.safetensors"))
        .exits(1)
        .says("it has no states `loss_scale`");
    train(d.path(), &format!("{rest}|--steps|9|--init|f32.safetensors")).exits(0);
}

#[test]
fn what_does_not_fit_is_said_all_at_once() {
    if is_skipped("what_does_not_fit") {
        return;
    }
    let d = folder();
    let f32s = |shape: &[usize]| Tensor::from_f32(shape.to_vec(), &vec![0.5; shape.iter().product()]);
    for (name, t) in
        [("wide", f32s(&[9, 7])), ("few", f32s(&[1, 6])), ("flat", f32s(&[3])), ("one", f32s(&[]))]
    {
        npy::write(&t, &d.path().join(format!("{name}.npy"))).unwrap();
    }
    npy::write(&Tensor::from_i64(vec![9, 6], &[1; 54]), &d.path().join("ints.npy")).unwrap();
    let step = step();
    let bad = |words: &str| train(d.path(), &format!("{words}|--steps|4")).exits(1);
    bad(&format!("{step}|--data|x={0}|--data|y={0}|--data|gone", rows()))
        .says("no input `y`")
        .says("does not say which");
    bad(&format!("{step}|--data|{}", rows()))
        .says("`rate` is f32[] and was not given")
        .says("how many rows a step takes is open");
    bad(&format!("{step}|--data|wide.npy|--batch|4|--input|rate=1")).says("not of shape [4, 7]");
    bad(&format!("{step}|--data|few.npy|--batch|4|--input|rate=1|--loss|lost"))
        .says("has 1 row, fewer than the 4")
        .says("no output `lost`");
    bad(&format!("{step}|--data|flat.npy|--batch|4|--input|rate=1"))
        .says("not of shape [4]")
        .omits("fewer than");
    bad(&format!("{step}|--data|one.npy|--batch|4|--input|rate=1")).says("there are no rows");
    bad(&format!("{step}|--data|ints.npy|--batch|4|--input|rate=1"))
        .says("is i64, the model wants f32")
        .says("--cast");
    bad(&format!("{step}|--data|x.npy|--batch|4|--input|rate=1")).says("no such file");
    bad(&format!("{}|--data|{}|--batch|4|--input|rate=1|--loss|state.encoder", pure(), rows()))
        .says("is not one float");
    bad(&format!("{}|--data|x={}|--batch|4|--carry|rate=loss|--carry|x=loss", pure(), rows()))
        .says("input `x` is given, and cannot be continued")
        .says("of another pair");
    let known = format!("{step}|--data|{}|--batch|4|--input|rate=1", rows());
    bad(&format!("{known}|--init|nothing=1|--init|what"))
        .says("no state `nothing`")
        .says("neither a file nor a state");
    bad(&format!("{known}|--log|l.txt")).says("FILE.csv or FILE.jsonl");
    bad(&format!("{known}|--plot|l.png")).says("FILE.svg");
    bad(&format!("{known}|--every|2")).says("--checkpoint");
    // A compiled folder cannot turn further inputs into states.
    wgfc(d.path(), &format!("compile|{}|-o|out", pure())).exits(0);
    bad(&format!("out|--data|{}|--batch|4|--input|rate=1", rows()))
        .says("state.encoder")
        .says("give the model itself");
    // Gradients may be too small for f16 where no loss is scaled.
    wgfc(d.path(), &format!("compile|{step}|-o|half|--precision|f16")).exits(0);
    bad(&format!("half|--data|{}|--batch|4|--input|rate=1", rows()))
        .says("does not scale its loss")
        .says("compile the step with --loss-scale");
    wgfc(d.path(), &format!("compile|{}|-o|out2|--loss-scale", fixture("torch/residual.pt2")))
        .exits(2)
        .says("no seed of a backward pass")
        .says("train in f32");
    // A program without a loss.
    bad(&format!("{}|--random-data|8|--batch|4|--dim|s27=3", fixture("torch/residual.pt2")))
        .says("no output is a loss");
}

#[test]
fn checkpoints_of_something_else_are_refused() {
    if is_skipped("checkpoints_of_something_else") {
        return;
    }
    let d = folder();
    let rest = format!("{}|--batch|8|--input|rate=0.01", step());
    train(d.path(), &format!("{rest}|--data|{}|--steps|3|--checkpoint|c.safetensors", rows())).exits(0);
    let kept = std::fs::read(d.path().join("c.safetensors")).unwrap();
    let resume = |words: &str, file: &str| {
        train(d.path(), &format!("{words}|--steps|9|--resume|{file}|--checkpoint|{file}"))
    };
    resume(&format!("{rest}|--random-data|40"), "c.safetensors")
        .exits(1)
        .says("had 44 rows, and there are 40");
    let other = format!("{}|--batch|8|--input|rate=0.01|--data|{}", pure(), rows());
    resume(&other, "c.safetensors")
        .exits(1)
        .says("it has no states `state.")
        .says("and 9 more")
        .says("of another model");
    let rest = format!("{rest}|--data|{}", rows());
    std::fs::write(d.path().join("cut.safetensors"), &kept[..kept.len() - 9]).unwrap();
    resume(&rest, "cut.safetensors").exits(1).says("not a safetensors file");
    resume(&rest, "gone.safetensors").exits(1).says("no such file");
    // The tensors without metadata, as another program would write them.
    let tensors = wgfc::train::read_tensors(&d.path().join("c.safetensors")).unwrap();
    assert_eq!(tensors.len(), 13);
    let views: Vec<(String, safetensors::tensor::TensorView<'_>)> = tensors
        .iter()
        .map(|(n, t)| {
            let bytes = t.bytes().unwrap();
            (
                n.clone(),
                safetensors::tensor::TensorView::new(safetensors::Dtype::F32, t.shape.clone(), bytes)
                    .unwrap(),
            )
        })
        .collect();
    let plain = safetensors::serialize(views, None).unwrap();
    std::fs::write(d.path().join("plain.safetensors"), &plain).unwrap();
    resume(&rest, "plain.safetensors").exits(1).says("is not a checkpoint").says("--init");
    // Invalid metadata: numbers of steps that no training reaches, and another format.
    let views = || {
        tensors.iter().map(|(n, t)| {
            let bytes = t.bytes().unwrap();
            (
                n.clone(),
                safetensors::tensor::TensorView::new(safetensors::Dtype::F32, t.shape.clone(), bytes)
                    .unwrap(),
            )
        })
    };
    for (note, says) in [
        (r#"{"step":3,"samples":18446744073709551600,"seed":0,"rows":44}"#, "more than a training can reach"),
        (
            r#"{"step":18446744073709551615,"samples":24,"seed":0,"rows":44}"#,
            "more than a training can reach",
        ),
        (r#"{"state.a":7}"#, "invalid type: integer `7`, expected an object at"),
    ] {
        let metadata = [("wgfc".to_owned(), note.to_owned())].into();
        let bytes = safetensors::serialize(views(), Some(metadata)).unwrap();
        std::fs::write(d.path().join("changed.safetensors"), bytes).unwrap();
        resume(&rest, "changed.safetensors").exits(1).says(says).omits("TrueType");
    }
    assert_eq!(std::fs::read(d.path().join("plain.safetensors")).unwrap(), plain);
    train(d.path(), &format!("{rest}|--steps|1|--init|plain.safetensors|--init|square.*=zeros")).exits(0);
    train(d.path(), &format!("{rest}|--steps|0|--init|plain.safetensors|--checkpoint|again.safetensors"))
        .exits(0);
    let again = wgfc::train::read_tensors(&d.path().join("again.safetensors")).unwrap();
    assert!(again.iter().all(|(n, t)| t.bytes() == tensors[n].bytes()));
}

#[test]
fn a_loss_that_is_not_finite_ends_the_training_before_the_checkpoint() {
    if is_skipped("a_loss_that_is_not_finite") {
        return;
    }
    let d = folder();
    let rest =
        format!("{}|--data|{}|--batch|8|--no-shuffle|--checkpoint|c.safetensors|--every|2", step(), rows());
    train(d.path(), &format!("{rest}|--input|rate=0.01|--steps|4")).exits(0);
    let good = std::fs::read(d.path().join("c.safetensors")).unwrap();
    let wild = format!("{rest}|--input|rate=3e38|--resume|c.safetensors|--log|l.csv");
    let ran = train(d.path(), &format!("{wild}|--steps|9")).exits(1);
    let ran = ran.says("the loss of step 6 is").says("--any-loss");
    assert!(!ran.err.contains("step 7"), "{}", ran.err);
    assert_eq!(losses(&d.path().join("l.csv")).len(), 2, "what is known is in the log");
    assert_eq!(std::fs::read(d.path().join("c.safetensors")).unwrap(), good);
    train(d.path(), &format!("{wild}|--steps|9|--any-loss|--plot|l.svg")).exits(0).prints("5: 5 to 9");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_after_the_steps_under_way_and_keeps_them() {
    use std::os::unix::process::ExitStatusExt;
    if is_skipped("an_interrupt") {
        return;
    }
    let d = folder();
    let rest = format!("{}|--data|{}|--batch|8|--input|rate=0.01|--adapter|software", step(), rows());
    let words = format!("train|{rest}|--steps|100000000|--checkpoint|c.safetensors|--log|l.csv|--every|50");
    let child = command(d.path(), &words)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let file = d.path().join("c.safetensors");
    let begun = std::time::Instant::now();
    while !file.exists() && begun.elapsed().as_secs() < 120 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let sent = ran(std::process::Command::new("kill").args(["-INT", &child.id().to_string()])).code;
    assert_eq!(sent, 0);
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.signal(), Some(2), "{said}");
    assert!(said.contains("stopped by a signal") && said.contains("c.safetensors"), "{said}");
    let steps = losses(&d.path().join("l.csv")).len() as u64;
    let v = wgfc(d.path(), &format!("train|{rest}|--steps|{steps}|--resume|c.safetensors|--json"))
        .exits(0)
        .json();
    assert_eq!(v["step"], steps, "the checkpoint has all steps of the log");
    assert_eq!(v["steps"], 0);
}

#[test]
fn each_step_draws_its_own_numbers_also_after_a_break() {
    if is_skipped("each_step_draws_its_own_numbers") {
        return;
    }
    let d = folder();
    let model = format!("{}|--carry|total=next", fixture("repro/draws-in-training.onnx"));
    let run = |more: &str, log: &str| {
        let words = format!("{model}|--random-data|64|--batch|16|{more}|--log|{log}");
        train(d.path(), &words).exits(0);
        losses(&d.path().join(log)).into_iter().map(|(_, l)| l).collect::<Vec<_>>()
    };
    let whole = run("--seed|5|--steps|8", "whole.csv");
    let mut different = whole.clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 8, "{whole:?}");
    run("--seed|5|--steps|3|--checkpoint|c.safetensors", "first.csv");
    let rest = run("--steps|8|--resume|c.safetensors", "rest.csv");
    assert_eq!(rest[rest.len() - 5..], whole[3..], "{rest:?}");
    assert_ne!(run("--seed|6|--steps|8", "other.csv"), whole);
    // A given input has the same value in each step.
    let same = run("--seed|5|--input|offset=4|--steps|3", "same.csv");
    assert!(same[0] == whole[4] && same[1..] == [same[0].clone(), same[0].clone()], "{same:?}");
}
