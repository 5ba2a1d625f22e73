//! Choices are judged by recorded times: the regrets of `benches/timings` must not become worse.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use wgfc_compiler::timings::Timings;
use wgfc_compiler::timings::regret::{Judged, Summary, judge_all};

/// Regrets are written with three digits after the point.
const UNIT: f64 = 1e-3;

const HEAD: &str = "\
# The regrets of the compiler's choices by the recorded times beside this file, which `cargo test -p wgfc-compiler --test it timings`
# compares and `UPDATE_EXPECT=1` writes. `wgfc bench regret` says more.
# file, family, problems, choices that were not timed, mean regret, worst regret
";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/timings")
}

/// The summaries by file and family.
type Regrets = BTreeMap<(String, String), Summary>;

fn regrets() -> Regrets {
    let mut files: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "jsonl"));
    files.sort();
    let judge = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let read = Timings::from_text(&fs::read_to_string(file).unwrap());
        let timings = read.unwrap_or_else(|why| panic!("{name} {why}; it must be recorded again"));
        let judged = judge_all(&timings.problems, &timings.profile).unwrap();
        let mut families: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
        for j in &judged {
            families.entry(j.family()).or_default().push(j);
        }
        let summary =
            |(family, all): (&str, Vec<&Judged>)| ((name.clone(), family.to_owned()), Summary::of(all));
        families.into_iter().map(summary).collect::<Vec<_>>()
    };
    std::thread::scope(|s| {
        let all: Vec<_> = files.iter().map(|f| s.spawn(move || judge(f))).collect();
        all.into_iter().flat_map(|t| t.join().unwrap()).collect()
    })
}

fn text(all: &Regrets) -> String {
    let line = |((file, family), s): (&(String, String), &Summary)| {
        format!("{file} {family} {} {} {:.3} {:.3}\n", s.problems, s.not_timed, s.mean, s.worst)
    };
    HEAD.to_owned() + &all.iter().map(line).collect::<String>()
}

fn parse(text: &str) -> Regrets {
    let line = |l: &str| {
        let w: Vec<&str> = l.split_whitespace().collect();
        let [file, family, problems, not_timed, mean, worst] = w[..] else {
            panic!("`{l}` has no six words")
        };
        let (problems, not_timed) = (problems.parse().unwrap(), not_timed.parse().unwrap());
        let (mean, worst) = (mean.parse().unwrap(), worst.parse().unwrap());
        let summary = Summary { problems, not_timed, mean, worst, rank: None };
        ((file.to_owned(), family.to_owned()), summary)
    };
    text.lines().filter(|l| !l.starts_with('#')).map(line).collect()
}

/// The differences that a change must not make.
fn worse(expected: &Regrets, now: &Regrets) -> Vec<String> {
    let mut out = vec![];
    for (key, n) in now {
        let of = format!("{} {}", key.0, key.1);
        let Some(e) = expected.get(key) else {
            out.push(format!("{of}: no regrets are written"));
            continue;
        };
        if n.problems != e.problems {
            out.push(format!("{of}: {} problems instead of {}", n.problems, e.problems));
        }
        if n.not_timed > e.not_timed {
            let more = n.not_timed - e.not_timed;
            out.push(format!("{of}: {more} more choices were not timed: record the times again"));
        }
        for (what, n, e) in [("mean", n.mean, e.mean), ("worst", n.worst, e.worst)] {
            if n > e + UNIT {
                out.push(format!("{of}: the {what} regret is {n:.3} instead of {e:.3}"));
            }
        }
    }
    let gone = expected.keys().filter(|k| !now.contains_key(*k));
    out.extend(gone.map(|k| format!("{} {}: there are no such problems", k.0, k.1)));
    out
}

#[test]
fn choices_are_no_slower() {
    let now = regrets();
    assert!(!now.is_empty());
    let file = folder().join("regrets.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&file, text(&now)).unwrap();
        return;
    }
    let worse = worse(&parse(&fs::read_to_string(&file).unwrap()), &now);
    let help = "`wgfc bench regret benches/timings/*.jsonl` lists the choices; UPDATE_EXPECT=1 accepts them";
    assert!(worse.is_empty(), "{}\n{help}", worse.join("\n"));
}

#[test]
fn slower_choices_are_noticed() {
    let own = parse("# comment\ngpu.jsonl map 7 1 1.020 1.250\ngpu.jsonl row 3 0 1.000 1.000\n");
    assert_eq!(parse(&text(&own)), own);
    assert!(worse(&own, &own).is_empty());
    for (from, to, says) in [
        ("1.020", "1.030", "mean regret is 1.030 instead of 1.020"),
        ("1.250", "1.300", "worst regret is 1.300 instead of 1.250"),
        (" 7 1", " 7 3", "2 more choices were not timed"),
        (" 7 1", " 6 1", "6 problems instead of 7"),
        ("jsonl row", "jsonl sort", "sort: no regrets are written"),
    ] {
        let worse = worse(&own, &parse(&text(&own).replace(from, to)));
        assert!(worse.iter().any(|w| w.contains(says)), "{worse:?}");
    }
    let better = text(&own).replace("1.250", "1.100").replace(" 7 1", " 7 0");
    assert!(worse(&own, &parse(&better)).is_empty());
}
