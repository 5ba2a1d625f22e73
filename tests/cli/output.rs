//! Output files: stdout, folders, paths that are not files, and names with terminal control characters.

use crate::{command, fixture, folder, mlp, ran, tree, wgfc};
use prost::Message;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use wgfc_compiler::import::onnx::ModelProto;

/// The names in `dir` that begin like those of unfinished folders.
fn unfinished(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.starts_with(".wgfc-")).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_stdout_fails_the_command_and_a_closed_one_ends_it() {
    let d = folder();
    let run = format!("run|{}|--cpu|--random-inputs|--dim|batch=1", mlp());
    for words in [
        "--help",
        "--version",
        "check|--help",
        "completions|bash",
        &format!("check|{}", mlp()),
        &format!("check|{}|--json", mlp()),
        &format!("inspect|{}", mlp()),
        &format!("inspect|{}|--json", mlp()),
        &format!("compile|{}|-o|out", mlp()),
        &run,
        &format!("{run}|--json"),
        &format!("{run}|--quiet"),
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let full = command(d.path(), words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(full.stderr).unwrap();
        assert_eq!(full.status.code(), Some(1), "{words}: {said}");
        assert!(said.contains("cannot be written to stdout") && said.contains("help: "), "{words}: {said}");

        let mut child =
            command(d.path(), words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let closed = child.wait_with_output().unwrap();
        let said = String::from_utf8(closed.stderr).unwrap();
        assert_eq!(closed.status.code(), Some(0), "{words}: {said}");
        assert!(!said.contains("error"), "{words}: {said}");
    }
    // An error that cannot be written as JSON is written as text.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let full = command(d.path(), "check|absent.onnx|--json").stdout(full).output().unwrap();
    assert_eq!(full.status.code(), Some(1));
    assert!(String::from_utf8(full.stderr).unwrap().contains("no such file"));
}

#[test]
fn a_program_can_be_read_while_it_is_replaced() {
    let d = folder();
    let out = d.path().join("out");
    let programs: Vec<wgfc::Program> = (1..=2)
        .map(|n| {
            let options = wgfc::Options { dims: [("batch".to_owned(), n)].into(), ..Default::default() };
            wgfc::compile_file(mlp().as_ref(), &options).unwrap()
        })
        .collect();
    wgfc::save(&programs[0], &out, &Default::default()).unwrap();
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..4)
            .map(|i| {
                let (program, out) = (&programs[i % 2], &out);
                s.spawn(move || {
                    for _ in 0..25 {
                        wgfc::save(program, out, &Default::default()).unwrap();
                    }
                })
            })
            .collect();
        let text = |p: &wgfc::Program| serde_json::to_string(p).unwrap();
        let known = [text(&programs[0]), text(&programs[1])];
        let mut reads = 0;
        while reads == 0 || writers.iter().any(|w| !w.is_finished()) {
            let read = wgfc::load(&out).unwrap();
            assert!(known.contains(&text(&read)));
            reads += 1;
        }
    });
    assert!(unfinished(d.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn signals_leave_nothing_unfinished() {
    use std::os::unix::process::ExitStatusExt;
    let d = folder();
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        let words = format!("compile|{}|-o|out|--random-weights|--quiet", fixture("mobilenetv2.onnx"));
        let mut child =
            command(d.path(), &words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while unfinished(d.path()).is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut kill = std::process::Command::new("kill");
        let _ = kill.args([&format!("-{name}"), &child.id().to_string()]).stderr(Stdio::null()).status();
        let status = child.wait().unwrap();
        assert!(status.success() || status.signal() == Some(number), "{status}");
        assert!(unfinished(d.path()).is_empty());
        assert!(!d.path().join("out").exists() || d.path().join("out/weights.safetensors").exists());
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_files() {
    let d = folder();
    let mut mkfifo = std::process::Command::new("mkfifo");
    mkfifo.args(["p.onnx", "p.npy", "p.pb", "p.png", "p"]).current_dir(d.path());
    assert!(mkfifo.status().unwrap().success());
    for words in ["check|p.onnx", "compile|p.onnx|-o|out", "inspect|p.onnx", "generate|p.onnx|--tokens|1"] {
        wgfc(d.path(), words).exits(1).says("is a pipe, not a regular file").says("help: ");
    }
    let run = |rest: &str| wgfc(d.path(), &format!("run|{}|--cpu|{rest}", mlp()));
    for file in ["p.npy", "p.pb"] {
        run(&format!("--input|x={file}")).exits(1).says("is a pipe").says(file);
        run(&format!("--random-inputs|--fix|x={file}")).exits(1).says("is a pipe").says(file);
    }
    run("--random-inputs|--dim|batch=1|--labels|p").exits(1).says("is a pipe");
    let picture =
        format!("run|{}|--cpu|--random-weights|--input|p.png|--dim|batch=1", fixture("mobilenetv2.onnx"));
    wgfc(d.path(), &picture).exits(1).says("p.png").says("is a pipe");
    wgfc(d.path(), "check|/dev/zero").exits(1).says("is a device, not a regular file");

    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    for inside in ["plan.json", "weights.safetensors"] {
        let (path, aside) = (d.path().join("out").join(inside), d.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        std::fs::hard_link(d.path().join("p"), &path).unwrap();
        wgfc(d.path(), "inspect|out").exits(1).says(inside).says("is a pipe");
        std::fs::rename(&aside, &path).unwrap();
    }

    // An already open pipe is read to its end.
    let mut child = command(d.path(), "check|/dev/stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&std::fs::read(mlp()).unwrap()).unwrap();
    let piped = child.wait_with_output().unwrap();
    assert!(piped.status.success(), "{}", String::from_utf8_lossy(&piped.stderr));
}

#[test]
fn names_are_shown_and_not_obeyed() {
    let evil = "a\u{1b}[2J\u{1b}]0;b\u{7}\u{9b}31m\rc\u{202e}d";
    let d = folder();
    let mut model = ModelProto::decode(&std::fs::read(mlp()).unwrap()[..]).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let output = graph.output[0].name.clone();
    for (i, node) in graph.node.iter_mut().enumerate() {
        node.name = format!("{evil}{i}");
        node.output.iter_mut().filter(|o| **o == output).for_each(|o| *o = evil.to_owned());
    }
    graph.output[0].name = evil.to_owned();
    let file = "m\u{1b}[31m.onnx";
    std::fs::write(d.path().join(file), model.encode_to_vec()).unwrap();
    let graph = model.graph.as_mut().unwrap();
    graph.node[0].op_type = format!("{evil}Relu");
    std::fs::write(d.path().join("broken.onnx"), model.encode_to_vec()).unwrap();
    for (words, code) in [
        (format!("check|{file}"), 0),
        ("check|broken.onnx".into(), 2),
        ("check|broken.onnx|--json".into(), 2),
        ("compile|broken.onnx|-o|out".into(), 2),
        (format!("compile|{file}|-o|out\u{1b}[31m"), 0),
        (format!("inspect|{file}|--dispatches"), 0),
        (format!("inspect|{file}|--json"), 0),
        (format!("run|{file}|--cpu|--random-inputs|--dim|batch=1"), 0),
        (format!("run|{file}|--cpu|--json|--random-inputs|--dim|batch=1"), 0),
        (format!("run|{file}|--cpu|--input|{evil}=random"), 1),
        (format!("inspect|{file}|--dim|{evil}=1"), 1),
        (format!("check|{evil}"), 1),
        (evil.to_string(), 1),
    ] {
        let ran = ran(&mut command(d.path(), &words)).exits(code);
        for text in [&ran.out, &ran.err] {
            let obeyed = |c: &char| c.is_control() && *c != '\n' || *c == '\u{202e}';
            assert_eq!(text.chars().find(obeyed), None, "{words:?}: {text:?}");
        }
    }
    assert!(tree(d.path()).len() > 3);
}
