//! Crates and modules form layers: each uses only those below it, as the pictures in ARCHITECTURE.md say.

mod sources;

use sources::{Source, read};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates of the workspace with their folders.
const CRATES: [(&str, &str); 12] = [
    ("wgfc", "."),
    ("wgfc_c", "bindings/c"),
    ("wgfc_codegen_templates", "codegen-templates"),
    ("wgfc_compiler", "compiler"),
    ("wgfc_ir", "ir"),
    ("wgfc_ort", "bindings/ort"),
    ("wgfc_program", "program"),
    ("wgfc_python", "bindings/python"),
    ("wgfc_runtime", "runtime"),
    ("wgfc_selftest", "selftest"),
    ("wgfc_validator", "bindings/validator"),
    ("wgfc_wasm", "bindings/wasm"),
];

/// Modules that only some of those above them use: the users, all else being excluded.
const ONLY: [(&str, &[&str]); 3] = [
    // Templates are rendered where kernels are written. Library functions are counted where kernels are measured.
    ("wgfc_codegen_templates", &["wgfc_compiler::emit"]),
    ("wgfc_codegen_templates::library", &["wgfc_compiler::emit", "wgfc_compiler::kernel"]),
    ("wgfc_runtime", &["wgfc", "wgfc_c", "wgfc_ort", "wgfc_selftest"]),
];

/// Modules that do not use others, which lie below them.
const NEVER: [(&str, &[&str]); 4] = [
    ("kernel", &["device"]),
    ("rewrite::winograd", &["schedule"]),
    ("fuse", &["import", "emit"]),
    ("emit", &["fuse", "options", "rewrite"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn workspace() -> Vec<Source> {
    CRATES.iter().flat_map(|(name, folder)| read(&root(), folder, name)).collect()
}

/// The lines of a picture in ARCHITECTURE.md, the top layer first.
fn picture(title: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, rest) = text.split_once(title).unwrap();
    let picture = rest.split("```").nth(1).unwrap();
    picture.trim().lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect()
}

fn layers() -> Layers {
    let krate = |name: &str| CRATES.iter().any(|c| Some(c.0) == name.split("::").next());
    let modules = picture("## Layers of the compiler").into_iter();
    let inside = modules.map(|line| {
        line.into_iter().map(|m| if krate(&m) { m } else { format!("wgfc_compiler::{m}") }).collect()
    });
    Layers { crates: picture("## Layers of crates"), inside: inside.collect() }
}

/// The declared order.
struct Layers {
    /// Lines of crates, the top layer first.
    crates: Vec<Vec<String>>,
    /// Lines of modules of the compiler and of crates that it uses, the top layer first.
    inside: Vec<Vec<String>>,
}

/// Whether a path is this one or inside it.
fn is_in(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The entry of the picture that a path is in, and its line.
fn find<'a>(lines: &'a [Vec<String>], path: &str) -> Option<(usize, &'a str)> {
    let all = lines.iter().enumerate().flat_map(|(i, line)| line.iter().map(move |m| (i, m.as_str())));
    all.filter(|(_, m)| is_in(path, m)).max_by_key(|(_, m)| m.len())
}

/// The names that a crate's root exports of its modules: `Options` is `options::Options`.
fn exports(sources: &[Source]) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for s in sources.iter().filter(|s| s.module.is_empty()) {
        for item in s.text.split("pub use ").skip(1) {
            let item = item.split(';').next().unwrap_or_default();
            let Some((module, names)) = item.split_once("::") else { continue };
            for name in names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|n| !n.is_empty()) {
                out.insert(format!("{}::{name}", s.krate), format!("{}::{module}::{name}", s.krate));
            }
        }
    }
    out
}

/// All uses that go against the declared order, as `file:line: who uses what`.
fn violations(sources: &[Source], layers: &Layers) -> Vec<String> {
    let exports = exports(sources);
    let mut out = vec![];
    for s in sources {
        let from = [&[s.krate.clone()][..], &s.module].concat().join("::");
        for u in s.uses() {
            let path = u.path.join("::");
            let path = exports.get(&path).unwrap_or(&path);
            let (own, other) = (find(&layers.crates, &s.krate), find(&layers.crates, path));
            let mut why = vec![];
            if let (Some((own, _)), Some((other, name))) = (own, other)
                && name != s.krate
                && other <= own
            {
                why.push(format!("{name} is no crate of a layer below"));
            }
            // The root declares all modules.
            if let (Some((own, module)), Some((other, name))) =
                (find(&layers.inside, &from), find(&layers.inside, path))
                && !s.module.is_empty()
                && name != module
                && other <= own
            {
                why.push(format!("{name} is no module of a layer below"));
            }
            let only = ONLY.iter().filter(|(m, _)| is_in(path, m)).max_by_key(|(m, _)| m.len());
            if let Some((name, users)) = only
                && !is_in(path, &s.krate)
                && !users.iter().any(|u| is_in(&from, u))
            {
                why.push(format!("only {} use {name}", users.join(" and ")));
            }
            let compiler = |m: &&str| format!("wgfc_compiler::{m}");
            for (_, others) in NEVER.iter().filter(|(m, _)| is_in(&from, &compiler(m))) {
                why.extend(
                    others.iter().filter(|m| is_in(path, &compiler(m))).map(|m| format!("it is without {m}")),
                );
            }
            out.extend(
                why.first().map(|why| format!("{}:{}: {from} uses {path}, but {why}", s.file, u.line)),
            );
        }
    }
    out
}

#[test]
fn crates_and_modules_use_those_below_them() {
    let (sources, layers) = (workspace(), layers());
    let found = violations(&sources, &layers);
    assert!(found.is_empty(), "against the order in ARCHITECTURE.md:\n{}", found.join("\n"));
}

/// The pictures name every crate, and every module of the compiler.
#[test]
fn the_pictures_are_complete() {
    let layers = layers();
    let drawn: BTreeSet<&str> = layers.crates.iter().flatten().map(String::as_str).collect();
    assert_eq!(drawn, CRATES.iter().map(|c| c.0).collect());
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, rest) = manifest.split_once("members = [").unwrap();
    let members: BTreeSet<&str> =
        rest.split(']').next().unwrap().split(',').map(|m| m.trim().trim_matches('"')).collect();
    let ours = members.into_iter().filter(|m| !m.starts_with("vendor/"));
    assert_eq!(ours.collect::<BTreeSet<_>>(), CRATES.iter().map(|c| c.1).collect());
    let modules: BTreeSet<String> = read(&root(), "compiler", "wgfc_compiler")
        .iter()
        .filter_map(|s| Some(format!("wgfc_compiler::{}", s.module.first()?)))
        .collect();
    let drawn = layers.inside.iter().flatten().filter(|m| is_in(m, "wgfc_compiler"));
    assert_eq!(drawn.cloned().collect::<BTreeSet<_>>(), modules);
}

/// A use against the order is found in every form in which it can be written.
#[test]
fn planted_uses_are_found() {
    let (sources, layers) = (workspace(), layers());
    for (file, text, says) in [
        (
            "compiler/src/schedule/products/cost.rs",
            "use wgfc_codegen_templates::matmul::Tile;",
            "wgfc_codegen_templates is no module",
        ),
        ("compiler/src/rewrite/winograd.rs", "use crate::schedule::products;", "it is without schedule"),
        ("compiler/src/kernel/mod.rs", "use crate::{\n    device::Speeds,\n};", "it is without device"),
        ("compiler/src/kernel/mod.rs", "use super::emit;", "wgfc_compiler::emit is no module"),
        ("compiler/src/device.rs", "fn f(_: &crate::Options) {}", "wgfc_compiler::options is no module"),
        (
            "compiler/src/fuse/mod.rs",
            "use wgfc_codegen_templates::library;",
            "only wgfc_compiler::emit and wgfc_compiler::kernel use",
        ),
        ("ir/src/graph.rs", "use wgfc_compiler::fuse;", "wgfc_compiler is no crate"),
        ("runtime/src/session.rs", "use wgfc_ir::Graph;", "wgfc_ir is no crate"),
        (
            "codegen-templates/src/thin.rs",
            "use wgfc_compiler::schedule::products::ThinShape;",
            "wgfc_compiler is no crate",
        ),
        ("bindings/python/src/lib.rs", "use wgfc_runtime::Session;", "only wgfc and"),
    ] {
        let mut planted = sources.clone();
        let at = planted.iter_mut().find(|s| s.file.trim_start_matches("./") == file).unwrap();
        at.text = format!("{text}\n{}", at.text);
        let found = violations(&planted, &layers);
        let line = text.lines().position(|l| l.contains("::")).map_or(1, |i| i + 1);
        // A group's line is that of the name.
        let line = if text.contains('\n') { line.max(2) } else { line };
        let start = format!("{file}:{line}: ");
        let named = |v: &String| v.trim_start_matches("./").starts_with(&start) && v.contains(says);
        assert!(found.len() == 1 && named(&found[0]), "{file}: {found:?}");
    }
}

type Uses = BTreeMap<String, BTreeSet<String>>;

/// The modules in dependency cycles and their users: modules that use no others are removed repeatedly.
fn cyclic(mut uses: Uses) -> Uses {
    while let Some(done) = uses.iter().find(|(_, used)| used.is_empty()).map(|(m, _)| m.clone()) {
        uses.remove(&done);
        uses.values_mut().for_each(|used| _ = used.remove(&done));
    }
    uses
}

/// The modules in a module of the compiler, each with the others that it uses.
fn inside(sources: &[Source], module: &str) -> Uses {
    let mut out = Uses::new();
    for s in sources.iter().filter(|s| s.module.len() > 1 && s.module[0] == module) {
        let own = &s.module[1];
        let used = out.entry(own.clone()).or_default();
        for u in s.uses().into_iter().filter(|u| u.path.len() > 2 && u.path[1] == module) {
            used.extend(Some(&u.path[2]).filter(|m| *m != own).cloned());
        }
    }
    let modules: BTreeSet<String> = out.keys().cloned().collect();
    out.values_mut().for_each(|used| used.retain(|u| modules.contains(u)));
    out
}

#[test]
fn large_modules_have_no_cycles() {
    let sources = read(&root(), "compiler", "wgfc_compiler");
    for module in ["fuse", "schedule"] {
        let uses = inside(&sources, module);
        assert!(uses.len() > 4, "{module}: {uses:?}");
        let left = cyclic(uses);
        assert!(left.is_empty(), "cycles in {module}: {left:?}");
    }
    let of = |m: &str, u: &[&str]| (m.to_owned(), u.iter().map(|u| u.to_string()).collect());
    let left = cyclic([of("a", &["b"]), of("b", &["a"]), of("c", &["a"]), of("d", &[])].into());
    assert_eq!(left.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
}
