//! PyTorch's part of `SUPPORTED_OPS.md`, generated from the table.

use super::refused::REFUSED;
use super::{all, find};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The overloads of an operator, and the notes on their limits.
type Said = (BTreeSet<&'static str>, BTreeSet<String>);

/// The Markdown text; `passing` of `cases` of torch's operator database give torch's results.
pub fn markdown(passing: usize, cases: usize) -> String {
    let mut spaces: BTreeMap<&str, BTreeMap<&str, Said>> = BTreeMap::new();
    for d in all() {
        let (space, rest) = d.target.split_once('.').unwrap_or(("", d.target));
        let (name, overload) = rest.split_once('.').unwrap_or((rest, ""));
        let (overloads, notes) = spaces.entry(space).or_default().entry(name).or_default();
        overloads.extend(overload.split('|').filter(|o| !o.is_empty()));
        let note = d.notes.trim_end_matches('.');
        let mut letters = note.chars();
        let note = letters.next().map(|c| c.to_lowercase().chain(letters).collect::<String>());
        notes.extend(note);
    }
    let count = |n: usize| format!("{},{:03}", n / 1000, n % 1000);
    let mut s = format!(
        "## PyTorch\n\n\
         Programs of `torch.export`, in both dialects: its own, which keeps `linear`, `conv2d` or `lstm` as they are, and core \
         ATen, as `run_decompositions()` writes it. A name stands for its variant in place (`add_` for `add`) and for the one \
         that copies (`view_copy` for `view`) too. Of the {} cases of torch's own database of operators (OpInfo, decomposed to \
         core ATen) {} give torch's results; `tests/conformance/aten_failing.tsv` says of each other why not.\n",
        count(cases),
        count(passing)
    );
    for (space, names) in spaces {
        let _ = write!(s, "\n### {space}\n\n| operator | overloads | limits |\n|---|---|---|\n");
        for (name, (overloads, notes)) in names {
            let join = |set: Vec<&str>, by: &str| set.join(by);
            let overloads = join(overloads.into_iter().collect(), ", ");
            let notes = join(notes.iter().map(String::as_str).collect(), "; ");
            let _ = writeln!(s, "| `{name}` | {overloads} | {notes} |");
        }
    }
    s.push_str("\n### Not supported in programs of torch\n\n| operators | why |\n|---|---|\n");
    for (why, names) in REFUSED {
        let _ = writeln!(s, "| `{}` | {why} |", names.join("`, `"));
    }
    s.push_str(
        "\nComplex numbers are pairs of numbers along a last axis, in the operators that say what they mean. `run_decompositions()` \
         replaces tensor subclasses by plain tensors. f64 is computed in f32, with a warning.\n",
    );
    s
}

#[test]
fn what_is_refused_is_not_supported() {
    for name in REFUSED.iter().flat_map(|(_, names)| *names) {
        assert!(find(name).is_none() && find(&format!("{name}.default")).is_none(), "{name} is supported");
    }
}
