//! `wgfc bench suite` and `wgfc bench report`, whole: the short suite on the first adapter.

use crate::schema::breaks_schema;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use wgfc::runtime::testing::gpus;
use wgfc::suite::Record;

/// Runs `wgfc` in a folder, and gives what it says.
fn wgfc(folder: &Path, words: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_wgfc"))
        .current_dir(folder)
        .env("WGFC_CACHE_DIR", folder.join("cache"))
        .args(words)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_suite_runs_continues_and_is_reported() {
    let Some(gpu) = gpus().first() else { return };
    let dir = tempfile::tempdir().unwrap();
    let suite = |rest: &[&str]| {
        let fixed = ["bench", "suite", "--quick", "--adapter", &gpu.summary().name, "--quiet", "-o"];
        wgfc(dir.path(), &[&fixed, rest].concat())
    };
    let (done, text) = suite(&["a.json", "--passes", "1"]);
    assert!(done, "{text}");
    let path = dir.path().join("a.json");
    let value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    breaks_schema("suite.schema.json", &value).unwrap();
    let record = Record::read(&path).unwrap();
    for group in [
        "device",
        "dispatch",
        "transfers",
        "kernels",
        "models",
        "decode",
        "loops",
        "fusion",
        "evolution",
        "crossover",
        "training",
    ] {
        let mut rows = record.rows.iter().filter(|r| r.group() == group);
        assert!(rows.any(|r| r.measured().is_some()), "nothing of {group} was measured");
    }
    for row in record.rows.iter().filter(|r| r.measured().is_none()) {
        let may_lack = ["energy", "power", "the device is faster", "until then"];
        assert!(may_lack.iter().any(|part| row.id.contains(part)), "{row:?}");
    }

    // A second pass joins the first; what is done is not done again.
    let (done, text) = suite(&["a.json", "--passes", "2", "--only", "dispatch"]);
    assert!(done, "{text}");
    let more = Record::read(&path).unwrap();
    assert_eq!(more.tasks.len(), record.tasks.len() + 1);
    assert_eq!(more.row("dispatch/sequential/wall").unwrap().measured().unwrap().passes.len(), 2);
    let (done, text) = suite(&["a.json", "--only", "gone"]);
    assert!(!done && text.contains("no task has gone in its name") && text.contains("transfers"), "{text}");

    // Another device is another record.
    let mut other = more.clone();
    other.device.name = "another".into();
    other.rows.retain(|r| r.group() != "loops");
    other.write(&dir.path().join("b.json")).unwrap();
    let (done, text) = suite(&["b.json"]);
    assert!(!done && text.contains("of another device"), "{text}");

    let (done, text) = wgfc(
        dir.path(),
        &["bench", "report", "a.json", "b.json", "-o", "r.html", "--markdown", "r.md", "--json"],
    );
    assert!(done, "{text}");
    let compared: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(compared["compared"][0]["agree"], json!(1.0));
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let (page, tables) = (read("r.html"), read("r.md"));
    for part in ["<svg", "another", "not part of this record", "arXiv 2604.02344", "sequential/wall"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(tables.contains("## Dispatch") && tables.contains("| sequential/wall |"), "{tables}");
    let (done, text) = wgfc(dir.path(), &["bench", "report", "r.md"]);
    assert!(!done && text.contains("is no record of the suite"), "{text}");
}

/// `docs/devices.md` is made from the files in `measurements`; `wgfc bench report measurements/*.json --markdown docs/devices.md` writes it.
#[test]
fn the_tables_of_devices_are_those_of_their_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> =
        std::fs::read_dir(root.join("measurements")).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "json"));
    files.sort();
    assert!(!files.is_empty());
    for file in &files {
        let value: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        breaks_schema("suite.schema.json", &value).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<&str> = files.iter().map(|f| f.to_str().unwrap()).collect();
    let words = [&["bench", "report"], &names[..], &["-o", "r.html", "--markdown", "r.md"]].concat();
    let (done, text) = wgfc(dir.path(), &words);
    assert!(done, "{text}");
    let made = std::fs::read_to_string(dir.path().join("r.md")).unwrap();
    let kept = std::fs::read_to_string(root.join("docs/devices.md")).unwrap();
    assert!(
        made == kept,
        "docs/devices.md is not what `wgfc bench report measurements/*.json --markdown docs/devices.md` writes"
    );
}

/// The number of a text such as `1,234.5 ms`, its last digit's worth, both in base units.
fn number(text: &str) -> (f64, f64) {
    let (digits, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = match unit {
        "ms" | "mJ" => 1e-3,
        "µs" => 1e-6,
        "" | "s" | "W" | "tokens/s" => 1.0,
        unit => panic!("`{text}`: the unit `{unit}` is not known"),
    };
    let decimals = digits.split_once('.').map_or(0, |(_, d)| d.len() as i32);
    let value: f64 = digits.replace(',', "").parse().unwrap_or_else(|e| panic!("`{text}`: {e}"));
    (value * factor, factor * 10f64.powi(-decimals))
}

/// The tables of `docs/report.md` have numbers only as links to the measurements, which they repeat.
#[test]
fn figures_of_the_report_are_measured() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let text = std::fs::read_to_string(docs.join("report.md")).unwrap();
    let (mut records, mut count) = (BTreeMap::new(), 0);
    let mut link = |text: &str, target: &str| {
        let (file, row) = target.split_once(" \"").unwrap_or_else(|| panic!("`{target}` names no row"));
        let record = records
            .entry(file.to_owned())
            .or_insert_with(|| Record::read(&docs.join(file)).unwrap_or_else(|e| panic!("{file}: {e}")));
        let row = row.trim_end_matches('"');
        let found = record.row(row).and_then(|r| r.measured()).map(|m| m.median);
        let median = found.unwrap_or_else(|| panic!("{file} has no row `{row}`"));
        let (value, last) = number(text);
        assert!((value - median).abs() <= 0.501 * last, "`{text}` for {row}, which is {median}");
        count += 1;
    };
    for line in text.lines() {
        // A link is the text between `[` and `](`, and what the parentheses have.
        for part in line.split('[').skip(1).filter(|p| p.contains(".json ")) {
            let (text, rest) = part.split_once("](").unwrap();
            link(text, rest.split_once(')').unwrap().0);
        }
        let mut cells = line.strip_prefix('|').into_iter().flat_map(|l| l.split('|').skip(1)).map(str::trim);
        let alone = cells.find(|c| c.starts_with(|d: char| d.is_ascii_digit()));
        assert_eq!(alone, None, "a number without a source in `{line}`");
    }
    assert!(count > 60, "{count} links");
}

#[test]
fn records_that_break_the_schema_are_found() {
    for (value, says) in [(json!({}), "is missing"), (json!({"version": 1, "rows": [{}]}), "is missing")] {
        assert!(breaks_schema("suite.schema.json", &value).unwrap_err().contains(says));
    }
}
