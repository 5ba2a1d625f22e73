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
        "narrow",
        "steering",
        "crossover",
        "processes",
        "ranks",
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

/// The records in a folder of `measurements`, which keep to the schema.
fn records(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> =
        std::fs::read_dir(root.join(folder)).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "json"));
    files.sort();
    assert!(!files.is_empty());
    for file in &files {
        let value: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        breaks_schema("suite.schema.json", &value).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    files.iter().map(|f| f.to_str().unwrap().to_owned()).collect()
}

/// Checks that a document is what `wgfc bench report` makes of records, or writes it with `UPDATE_EXPECT`.
fn is_made_of(document: &str, files: &[String], options: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let words = [&["bench", "report"], &names[..], &["-o", "r.html", "--markdown", "r.md"], options].concat();
    let (done, text) = wgfc(dir.path(), &words);
    assert!(done, "{text}");
    let made = std::fs::read_to_string(dir.path().join("r.md")).unwrap();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&kept, &made).unwrap();
    }
    let same = made == std::fs::read_to_string(&kept).unwrap_or_default();
    assert!(
        same,
        "{document} is not made of the records: UPDATE_EXPECT=1 cargo test --test it -- suite:: writes it"
    );
}

/// `docs/devices.md` has the files in `measurements`, `docs/benchmarks.md` those rows that others have, too.
#[test]
fn tables_are_those_of_their_files() {
    let devices = records("measurements");
    is_made_of("docs/devices.md", &devices, &[]);
    let first: Vec<String> =
        devices.iter().filter(|f| f.ends_with("nvidia-h200-vulkan.json")).cloned().collect();
    assert_eq!(first.len(), 1);
    let files = [first, records("measurements/peers")].concat();
    is_made_of("docs/benchmarks.md", &files, &["--brief", "--title", "Benchmarks"]);
}

/// The number of a text such as `1,234.5 ms`, its last digit's worth, both in base units.
fn number(text: &str) -> (f64, f64) {
    let (digits, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = match unit {
        "ms" | "mJ" => 1e-3,
        "µs" => 1e-6,
        "" | "s" | "W" | "tokens/s" | "runs/s" => 1.0,
        unit => panic!("`{text}`: the unit `{unit}` is not known"),
    };
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((digits, "0"));
    let decimals = mantissa.split_once('.').map_or(0, |(_, d)| d.len() as i32);
    let exponent: i32 = exponent.parse().unwrap_or_else(|e| panic!("`{text}`: {e}"));
    let value: f64 = digits.replace(',', "").parse().unwrap_or_else(|e| panic!("`{text}`: {e}"));
    (value * factor, factor * 10f64.powi(exponent - decimals))
}

/// Tables have numbers only as links to the measurements, which they repeat: all of `docs/report.md`, and parts of other documents from one heading to the
/// next of its rank.
#[test]
fn figures_of_documents_are_measured() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let part = |file: &str, heading: &str| {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let rank = heading.split(' ').next().unwrap_or_default();
        let from = text.find(heading).unwrap_or_else(|| panic!("{file} has no `{heading}`")) + heading.len();
        let end = text[from..].find(&format!("\n{rank} ")).map_or(text.len(), |at| from + at);
        text[from..end].to_owned()
    };
    let documents = [
        ("docs", part("docs/report.md", "# What fusion gains on WebGPU"), 200),
        ("docs", part("docs/benchmarks-web.md", "## On a GPU"), 20),
        (".", part("README.md", "## How fast it is"), 10),
    ];
    for (folder, text, least) in documents {
        let count = figures(&root.join(folder), &text);
        assert!(count >= least, "{count} links in {folder}");
    }
}

/// Compares the figures of a text with the rows to which they are linked, and counts them.
fn figures(folder: &Path, text: &str) -> usize {
    let (mut records, mut count) = (BTreeMap::new(), 0);
    let mut link = |text: &str, target: &str| {
        let (file, row) = target.split_once(" \"").unwrap_or_else(|| panic!("`{target}` names no row"));
        let record = records
            .entry(file.to_owned())
            .or_insert_with(|| Record::read(&folder.join(file)).unwrap_or_else(|e| panic!("{file}: {e}")));
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
    count
}
