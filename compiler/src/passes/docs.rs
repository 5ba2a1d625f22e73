//! `docs/passes.md`, generated from the list of passes.

use super::{PASSES, Pass, Scope, Section};
use crate::options::{Fusion, Technique};
use std::fmt::Write;

/// The options with which a pass runs.
fn with(p: &Pass) -> String {
    let fusion = match p.fusion {
        Fusion::None => "any",
        Fusion::Elementwise => "`elementwise`, `full`",
        Fusion::Full => "`full`",
    };
    let technique = |t: Technique| serde_json::to_value(t).ok().and_then(|v| Some(v.as_str()?.to_owned()));
    match p.technique.and_then(technique) {
        Some(t) => format!("{fusion}, not `--without {t}`"),
        None => fusion.to_owned(),
    }
}

fn graphs(p: &Pass) -> String {
    let name = |s: &Scope| match s {
        Scope::Model => "model",
        Scope::Body => "bodies",
        Scope::Step => "steps",
    };
    p.on.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn markdown() -> String {
    let mut s = String::from(
        "# Passes\n\n<!-- Generated from compiler/src/passes/list.rs by its test; UPDATE_EXPECT=1 rewrites it. -->\n\n\
The compiler changes a model in passes, in this order. A pass can be left out with `--without-pass NAME` unless the last column says why not; one that\n\
stands in several places is then left out in all of them. `wgfc bisect MODEL` evaluates the graph after each pass and names the first after which\n\
results differ ([when-it-goes-wrong.md](when-it-goes-wrong.md)). With `WGFC_DUMP=DIR` the graph after each pass that changes it is a file in `DIR/passes`.\n\n\
*Graphs*: the model; the bodies of its branches and loops, after the model; or the steps of loops that are split, each as a graph of its own, which have\n\
no dumps.\n",
    );
    for section in Section::ALL {
        let (title, says) = match section {
            Section::Import => ("On the imported graph", "These run once."),
            Section::Rewrite => ("Rewrites", "All of them run on the model, then all of them on each body."),
            Section::Lower => (
                "Towards kernels",
                "These run on a copy of the rewritten graph. Then fusion makes kernels of it.",
            ),
            Section::Kernels => ("On kernels", "Schedules are chosen after these."),
        };
        let _ = write!(
            s,
            "\n## {title}\n\n{says}\n\n| pass | what it does | graphs | `--fusion` | why it cannot be left out |\n|---|---|---|---|---|\n"
        );
        for p in PASSES.iter().filter(|p| p.section == section) {
            let needed = p.needed.unwrap_or_default();
            let _ = writeln!(s, "| `{}` | {} | {} | {} | {needed} |", p.name, p.about, graphs(p), with(p));
        }
    }
    s
}

#[test]
fn pass_docs() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/passes.md");
    let want = markdown();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == want, "docs/passes.md is stale; UPDATE_EXPECT=1 rewrites it");
}
