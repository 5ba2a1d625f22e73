//! The modules of the compiler form layers: there are no cyclic dependencies between them, at the top level
//! or inside the large modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

type Uses = BTreeMap<String, BTreeSet<String>>;

/// The text without comments and without unit tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let own = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
    own.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The modules named after `prefix`, as in `prefix::a::b` and `prefix::{a::b, c}`.
fn named(text: &str, prefix: &str) -> BTreeSet<String> {
    let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut out = BTreeSet::new();
    for rest in text.split(&format!("{prefix}::")).skip(1) {
        match rest.strip_prefix('{') {
            None => _ = out.insert(word(rest)),
            Some(list) => {
                // Names at the first level of braces.
                let (mut depth, mut item) = (0, true);
                for (i, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => item = true,
                        c if item && c.is_alphabetic() => {
                            out.insert(word(&list[i..]));
                            item = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    out
}

/// The modules of a folder, each with the other modules that it uses.
fn uses(folder: &Path, prefix: &str) -> Uses {
    fn add(out: &mut Uses, module: &str, path: &Path, prefix: &str) {
        if path.is_dir() {
            for e in fs::read_dir(path).unwrap() {
                add(out, module, &e.unwrap().path(), prefix);
            }
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            out.entry(module.to_owned()).or_default().extend(named(&code(path), prefix));
        }
    }
    let mut out = Uses::new();
    for e in fs::read_dir(folder).unwrap() {
        let path = e.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !["mod", "lib"].contains(&module.as_str()) {
            add(&mut out, &module, &path, prefix);
        }
    }
    let modules: BTreeSet<String> = out.keys().cloned().collect();
    for (module, used) in &mut out {
        used.retain(|u| modules.contains(u) && u != module);
    }
    out
}

/// The modules in dependency cycles and their users: modules that use no others are removed repeatedly.
fn cyclic(mut uses: Uses) -> Uses {
    while let Some(done) = uses.iter().find(|(_, used)| used.is_empty()).map(|(m, _)| m.clone()) {
        uses.remove(&done);
        uses.values_mut().for_each(|used| _ = used.remove(&done));
    }
    uses
}

#[test]
fn modules_form_layers() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (folder, prefix) in [("", "crate"), ("fuse", "crate::fuse"), ("schedule", "crate::schedule")] {
        let uses = uses(&src.join(folder), prefix);
        assert!(uses.len() > 4, "{prefix}: {uses:?}");
        let left = cyclic(uses);
        assert!(left.is_empty(), "cycles in {prefix}: {left:?}");
    }
}

/// The diagram in ARCHITECTURE.md has lines of modules with the top layer first.
#[test]
fn the_picture_agrees_with_the_imports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("../ARCHITECTURE.md")).unwrap();
    let (_, rest) = text.split_once("## Layers of the compiler").unwrap();
    let picture = rest.split("```").nth(1).unwrap();
    let lines: Vec<BTreeSet<String>> =
        picture.lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect();
    let uses = uses(&root.join("src"), "crate");
    let drawn: BTreeSet<String> = lines.iter().flatten().cloned().collect();
    assert_eq!(drawn, uses.keys().cloned().collect::<BTreeSet<_>>(), "modules in the picture");
    let mut above: BTreeSet<&String> = BTreeSet::new();
    let mut wrong = vec![];
    for line in &lines {
        above.extend(line);
        for m in line {
            wrong.extend(uses[m].iter().filter(|u| above.contains(u)).map(|u| format!("{m} uses {u}")));
        }
    }
    assert!(wrong.is_empty(), "against the picture: {wrong:?}");
}

#[test]
fn the_back_half_goes_one_way() {
    let uses = uses(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "crate");
    for (module, others) in [
        ("kernel", &["device", "schedule", "fuse", "emit", "tuning", "options"][..]),
        ("nest", &["device", "schedule", "fuse", "emit", "tuning", "options"]),
        ("schedule", &["fuse", "emit", "tuning", "options", "assemble"]),
        ("fuse", &["emit", "tuning", "assemble", "import"]),
        ("emit", &["fuse", "tuning", "options", "assemble", "import", "rewrite"]),
    ] {
        let upward: Vec<_> = others.iter().filter(|o| uses[module].contains(**o)).collect();
        assert!(upward.is_empty(), "{module} uses {upward:?}");
    }
}

#[test]
fn uses_are_found() {
    let text = "use crate::{a::b, c::{d, e}, f};\nlet x = crate::g::h(); use crate::i;";
    let all: Vec<String> = named(text, "crate").into_iter().collect();
    assert_eq!(all, ["a", "c", "f", "g", "i"]);
    let of = |m: &str, u: &[&str]| (m.to_owned(), u.iter().map(|u| u.to_string()).collect());
    let left = cyclic([of("a", &["b"]), of("b", &["a"]), of("c", &["a"]), of("d", &[])].into());
    assert_eq!(left.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
}
