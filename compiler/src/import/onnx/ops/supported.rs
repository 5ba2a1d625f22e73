//! ONNX's part of `SUPPORTED_OPS.md`, generated from the table.

use super::{REFUSED, all, find};
use std::fmt::Write;

/// The Markdown text.
pub fn markdown() -> String {
    let mut ops: Vec<_> = all().collect();
    ops.sort_by_key(|d| (d.domain, d.name));
    let mut s = String::from(
        "## ONNX\n\nThe versions are those of the operator that are told apart; a model's opset uses the newest that is not above it.\n",
    );
    let mut domain = None;
    for d in ops {
        if domain != Some(d.domain) {
            domain = Some(d.domain);
            let name = if d.domain.is_empty() { "ai.onnx" } else { d.domain };
            let _ = write!(s, "\n### {name}\n\n| operator | versions | limits |\n|---|---|---|\n");
        }
        let versions: Vec<String> = d.since.iter().map(i64::to_string).collect();
        let _ = writeln!(s, "| {} | {} | {} |", d.name, versions.join(", "), d.notes);
    }
    s.push_str("\n### Refused on purpose\n\n| operators | why |\n|---|---|\n");
    for (why, names) in REFUSED {
        let _ = writeln!(s, "| {} | {why} |", names.join(", "));
    }
    s.push_str(
        "\nSo are tensors of text and of complex numbers, sparse constants, and sequences and optionals as inputs of \
         Identity, If and Loop. f64 is computed in f32, with a warning.\n",
    );
    s
}

#[test]
fn what_is_refused_is_not_supported() {
    for name in REFUSED.iter().flat_map(|(_, names)| *names) {
        assert!(find("", name).is_none(), "{name} is supported");
    }
}

#[test]
fn the_table_is_sound() {
    let mut seen = std::collections::BTreeSet::new();
    for d in all() {
        assert!(seen.insert((d.domain, d.name)), "{} stands twice", d.name);
        assert!(!d.since.is_empty() && d.since.is_sorted(), "{}: {:?}", d.name, d.since);
    }
}
