//! Crates and modules form layers: each uses only those below it, as the pictures in ARCHITECTURE.md say.

mod sources;

use sources::{Source, read};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates of the workspace with their folders.
const CRATES: [(&str, &str); 14] = [
    ("wgfc", "."),
    ("wgfc_c", "bindings/c"),
    ("wgfc_codegen_templates", "codegen-templates"),
    ("wgfc_compiler", "compiler"),
    ("wgfc_cpu", "bindings/cpu"),
    ("wgfc_ir", "ir"),
    ("wgfc_ort", "bindings/ort"),
    ("wgfc_program", "program"),
    ("wgfc_python", "bindings/python"),
    ("wgfc_loops", "loops"),
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
    ("nest", &["device", "cost"]),
    ("fuse", &["import", "emit"]),
    ("emit", &["fuse", "options", "rewrite"]),
];

/// Modules of a module that alone use another one: for the time of products, and for the limits of what can be emitted.
const WITHIN: [(&str, &str, &[&str]); 1] =
    [("rewrite", "schedule", &["rewrite::long_sums", "rewrite::recognise", "rewrite::sorts"])];

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
            let inside = |path: &str, m: &str| is_in(path, &format!("wgfc_compiler::{m}"));
            for (outer, used, users) in WITHIN {
                if inside(&from, outer) && inside(path, used) && !users.iter().any(|u| inside(&from, u)) {
                    why.push(format!("in {outer} only {} use {used}", users.join(" and ")));
                }
            }
            for (_, others) in NEVER.iter().filter(|(m, _)| inside(&from, m)) {
                why.extend(others.iter().filter(|m| inside(path, m)).map(|m| format!("it is without {m}")));
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
    let is_no_module = |m: &str| format!("{m} is no module of a layer below");
    let is_no_crate = |c: &str| format!("{c} is no crate of a layer below");
    for (file, line, text, says) in [
        (
            "compiler/src/schedule/products/cost.rs",
            1,
            "use wgfc_codegen_templates::matmul::Tile;",
            is_no_module("wgfc_codegen_templates"),
        ),
        ("compiler/src/rewrite/winograd.rs", 1, "use crate::schedule::products;", "in rewrite only".into()),
        (
            "compiler/src/kernel/mod.rs",
            2,
            "use crate::{\n    device::Speeds,\n};",
            "it is without device".into(),
        ),
        ("compiler/src/kernel/mod.rs", 1, "use super::emit;", is_no_module("wgfc_compiler::emit")),
        ("compiler/src/device.rs", 1, "fn f(_: &crate::Options) {}", is_no_module("wgfc_compiler::options")),
        (
            "compiler/src/fuse/mod.rs",
            2,
            "\nuse wgfc_codegen_templates::library;",
            "only wgfc_compiler::emit and wgfc_compiler::kernel use".into(),
        ),
        ("ir/src/graph.rs", 1, "use wgfc_compiler::fuse;", is_no_crate("wgfc_compiler")),
        ("runtime/src/session.rs", 1, "use wgfc_ir::Graph;", is_no_crate("wgfc_ir")),
        (
            "codegen-templates/src/thin.rs",
            1,
            "use wgfc_compiler::schedule::products::ThinShape;",
            is_no_crate("wgfc_compiler"),
        ),
        ("src/model.rs", 1, "use wgfc_python::device;", is_no_crate("wgfc_python")),
        ("bindings/python/src/lib.rs", 1, "use wgfc_runtime::Session;", "only wgfc and".into()),
    ] {
        let mut planted = sources.clone();
        let at = planted.iter_mut().find(|s| s.file == file).unwrap();
        at.text = format!("{text}\n{}", at.text);
        let found = violations(&planted, &layers);
        let named = |v: &String| v.starts_with(&format!("{file}:{line}: ")) && v.contains(&says);
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
