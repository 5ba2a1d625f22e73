//! Snapshots of kernels and of the plans that dispatch them, kept by `insta` in `snapshots/`.
//!
//! A program is executed and compared with the evaluator before its text is compared with the snapshot, so
//! that `cargo insta review` shows each change of a kernel as a diff, model by model. Library functions are
//! named but not written out, and repeated lines that differ only in numbers are counted.

mod blocks;
mod families;

use crate::backend::{Backend, Failure, caught};
use crate::data::Folder;
use crate::models;
use crate::programs::quick_adapters;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use wgfc::ModelFile;
use wgfc_codegen_templates::library;
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::program::BufferKind;
use wgfc_ir::{Program, Tensor};
use wgfc_runtime::Gpu;

/// A text without the library items in it, and their names.
fn without_library(wgsl: &str) -> (String, Vec<&str>) {
    let (mut kept, mut names) = (Vec::<&str>::new(), vec![]);
    let mut lines = wgsl.lines();
    while let Some(line) = lines.next() {
        let item = line.strip_prefix("fn ").or(line.strip_prefix("var<private> "));
        let name = item.and_then(|i| i.split(['(', ':']).next()).filter(|n| library::find(n).is_some());
        let Some(name) = name else {
            kept.push(line);
            continue;
        };
        names.push(name);
        if line.starts_with("fn ") {
            lines.by_ref().find(|l| *l == "}");
        }
        while kept.last().is_some_and(|l| l.starts_with("//") || l.is_empty()) {
            kept.pop();
        }
    }
    (kept.join("\n"), names)
}

/// A text in which consecutive groups of up to eight lines that differ only in numbers and vector components
/// are written once, followed by the number of repetitions and a hash of them.
fn folded(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let shapes: Vec<String> = lines.iter().map(|l| shape(l)).collect();
    let mut out = String::new();
    let mut at = 0;
    while at < lines.len() {
        let times = |n: usize| {
            let group = shapes.get(at..at + n)?;
            let more = shapes[at + n..].chunks_exact(n).take_while(|g| *g == group).count();
            Some((n, more)).filter(|(n, more)| *more > 1 && n * more > 3)
        };
        let (n, more) = (1..=8).filter_map(times).max_by_key(|(n, more)| n * more).unwrap_or((1, 0));
        let (group, rest) = lines[at..at + n + n * more].split_at(n);
        group.iter().for_each(|l| _ = writeln!(out, "{l}"));
        if more > 0 {
            let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
            let hash = rest.iter().flat_map(|l| l.bytes()).fold(0xcbf2_9ce4_8422_2325, step);
            let what = if n == 1 { "lines".to_owned() } else { format!("times {n} lines") };
            _ = writeln!(out, "// {more} {what} more: {:08x}", hash >> 32);
        }
        at += n + n * more;
    }
    out
}

/// A line without its numbers and vector components.
fn shape(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            '.' if chars.peek().is_some_and(|c| "xyzw".contains(*c)) => {
                chars.next();
                out.push('.');
            }
            c => out.push(c),
        }
    }
    out
}

/// The plan and the kernels of a program as text.
fn text(program: &Program) -> String {
    let mut out = String::new();
    for (what, ports) in [("input", &program.inputs), ("output", &program.outputs)] {
        for p in ports {
            _ = writeln!(out, "{what} {}: {}{} in {}", p.name, p.dtype, list(&p.shape), p.buffer);
        }
    }
    for s in &program.states {
        let (growth, initial) = (s.growth.as_ref(), s.initial.as_ref());
        let growth = growth
            .map_or(String::new(), |g| format!(", axis {} grows by {} from {}", g.axis, g.by, g.length));
        let initial = initial.map_or(String::new(), |i| format!(", at first {i}"));
        _ = writeln!(out, "state {}: {}{} in {}{growth}{initial}", s.name, s.dtype, list(&s.shape), s.buffer);
    }
    if !program.symbols.is_empty() {
        _ = writeln!(out, "symbols {}", program.symbols.join(", "));
    }
    for c in &program.computed {
        _ = writeln!(
            out,
            "computed {} up to {}: buffer {} after {} dispatches",
            c.symbol, c.bound, c.buffer, c.after
        );
    }
    for c in &program.constraints {
        _ = writeln!(out, "constraint {} = {} of {}", c.a, c.b, c.node);
    }
    for (i, b) in program.buffers.iter().enumerate() {
        let kind = match &b.kind {
            BufferKind::Input { .. } | BufferKind::Output { .. } | BufferKind::State { .. } => continue,
            BufferKind::Weight { name } => format!("weight {name}"),
            BufferKind::Arena { arena, first, last } => {
                format!("arena {arena}, dispatches {first} to {last}")
            }
        };
        _ = writeln!(out, "buffer {i}: {} of {}, {kind}", b.elements, b.dtype);
    }
    for r in &program.repeats {
        let until = r.until.as_ref().map_or(String::new(), |u| format!(" until buffer {}", u.buffer));
        _ = writeln!(
            out,
            "repeat {} dispatches from {}, {} times{until}: {}",
            r.count, r.first, r.times, r.why
        );
    }
    for (i, d) in program.dispatches.iter().enumerate() {
        let (k, on, [x, y, z]) = (d.kernel, list(&d.bindings), &d.workgroups);
        _ = writeln!(out, "dispatch {i}: kernel {k} {on}, workgroups [{x}, {y}, {z}], {}", d.nodes.join(" "));
    }
    for (i, k) in program.kernels.iter().enumerate() {
        let (wgsl, names) = without_library(&k.wgsl);
        _ = write!(out, "\n// kernel {i}: {}, {} of {:?}", k.name, k.family, k.workgroup_size);
        if k.workgroup_bytes > 0 {
            _ = write!(out, ", {} bytes", k.workgroup_bytes);
        }
        for f in &k.features {
            _ = write!(out, ", {f}");
        }
        if !names.is_empty() {
            _ = write!(out, ", with {}", names.join(" "));
        }
        _ = write!(out, "\n{}", folded(wgsl.trim_end()));
    }
    out
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    format!("[{}]", items.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}

/// Compares the text of an already executed program with `snapshots/FOLDER/NAME.snap`.
fn compare(folder: &str, name: &str, program: &Program) -> Result<(), Failure> {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(format!("snapshots/{folder}"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    caught(|| {
        settings.bind(|| insta::assert_snapshot!(name, text(program)));
        Ok(())
    })
}

/// Checks the outputs of a device against the evaluator's.
fn agree(got: &[Tensor], want: &[Tensor], gpu: &Gpu) -> Result<(), Failure> {
    let (worst, share) = models::error(got, want).map_err(Failure::Wrong)?;
    if share <= 1.0 {
        return Ok(());
    }
    Err(Failure::Wrong(format!("relative error {worst:e} on {}", gpu.summary().name)))
}

/// The adapters on which programs are executed; the test is skipped if there is none.
fn adapters(test: &str) -> Option<Vec<Gpu>> {
    let gpus = quick_adapters();
    if gpus.is_empty() {
        crate::skip(test, "there is no adapter");
        return None;
    }
    Some(gpus)
}

/// Executes programs, compares their texts, and reports all failures.
fn check_all<'n>(test: &str, cases: impl Iterator<Item = (&'n str, Case<'n>)>) {
    let Some(gpus) = adapters(test) else { return };
    let mut failures = vec![];
    for (name, case) in cases.filter(|(n, _)| crate::selected(n)) {
        let start = std::time::Instant::now();
        if let Err(f) = caught(|| case(&gpus)) {
            failures.push(format!("{name}: {}: {}", f.status(), f.message()));
        }
        println!("{:.2} s {name}", start.elapsed().as_secs_f64());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Executes a program on adapters and compares its text.
type Case<'n> = Box<dyn FnOnce(&[Gpu]) -> Result<(), Failure> + 'n>;

/// The program of the model of a folder, which is run on its first data set on each adapter.
fn model(folder: &Folder, gpus: &[Gpu]) -> Result<Program, Failure> {
    if gpus.is_empty() {
        let file = ModelFile::open(&folder.model_path()).map_err(|e| Failure::error(e.to_string()))?;
        return file.compile(&Options::default()).map_err(|e| Failure::error(e.to_string()));
    }
    let data = folder.data_set(0).map_err(Failure::error)?;
    let want = Backend::Evaluator.compile(&folder.model_path(), Fusion::Full, &[])?.run(&data.inputs)?;
    let mut program = None;
    for gpu in gpus {
        let mut compiled = Backend::Adapter(gpu.clone()).compile(&folder.model_path(), Fusion::Full, &[])?;
        agree(&compiled.run(&data.inputs)?, &want, gpu)?;
        program = compiled.program().cloned();
    }
    program.ok_or_else(|| Failure::error("no adapter"))
}

fn small() -> Vec<Folder> {
    Folder::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small"))
}

/// Compiles a program without executing it.
type Maker = Box<dyn Fn() -> Result<Program, Failure> + Sync>;

/// Functions that make the programs of all snapshots, by name.
pub fn makers() -> Vec<(String, Maker)> {
    let mut out: Vec<(String, Maker)> = vec![];
    for folder in small() {
        out.push((format!("small/{}", folder.name), Box::new(move || model(&folder, &[]))));
    }
    for (name, case) in blocks::CASES {
        out.push((format!("blocks/{name}"), Box::new(move || case(&[]))));
    }
    for case in families::CASES {
        out.push((format!("families/{}", case.name), Box::new(move || families::program(case, &[]))));
    }
    out
}

#[test]
fn small_models_get_these_kernels() {
    let folders = small();
    let cases = folders.iter().map(|f| {
        let case: Case<'_> = Box::new(move |gpus| compare("small", &f.name, &model(f, gpus)?));
        (f.name.as_str(), case)
    });
    check_all("small_models_get_these_kernels", cases);
}

#[test]
fn blocks_of_models_get_these_kernels() {
    let cases = blocks::CASES.iter().map(|(name, case)| {
        let case: Case<'_> = Box::new(move |gpus| compare("blocks", name, &case(gpus)?));
        (*name, case)
    });
    check_all("blocks_of_models_get_these_kernels", cases);
}

#[test]
fn templates_are_filled_with_this() {
    let cases = families::CASES.iter().map(|c| {
        let case: Case<'_> = Box::new(move |gpus| compare("families", c.name, &families::program(c, gpus)?));
        (c.name, case)
    });
    check_all("templates_are_filled_with_this", cases);
}

/// Every snapshot must be read by a test, and every template must occur in a snapshot.
#[test]
fn every_snapshot_has_a_test_and_every_template_a_snapshot() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/snapshots");
    let small = small();
    let names: [(&str, BTreeSet<&str>); 3] = [
        ("small", small.iter().map(|f| f.name.as_str()).collect()),
        ("blocks", blocks::CASES.iter().map(|c| c.0).collect()),
        ("families", families::CASES.iter().map(|c| c.name).collect()),
    ];
    let templates = wgfc_codegen_templates::SOURCES.iter().map(|(name, _)| name.trim_end_matches(".wgsl"));
    let lacking: Vec<&str> =
        templates.filter(|t| !t.starts_with("parts/") && !names[2].1.contains(t)).collect();
    assert!(lacking.is_empty(), "templates without a case: {lacking:?}");
    for (folder, names) in names {
        let files = std::fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap().file_name());
        let files: Vec<String> = files.map(|f| f.into_string().unwrap()).collect();
        let kept: BTreeSet<&str> = files.iter().filter_map(|f| f.strip_suffix(".snap")).collect();
        assert_eq!(kept, names, "{folder}");
    }
}
