//! `wgfc selftest`.

mod save;

use super::adapter::choice;
use super::args::SelftestArgs;
use super::terminal::Terminal;
use std::path::PathBuf;
use wgfc::Error;
use wgfc::inspect::table;
use wgfc::model::device_error;
use wgfc_selftest::{Family, Finding, NotRun, Plan, Progress, Report, describe_case, run, run_case};

/// Runs the selftest. Returns the exit code.
pub fn main(a: &SelftestArgs, t: &Terminal) -> u8 {
    match tested(a, t) {
        Ok(true) => 0,
        Ok(false) => 4,
        Err(e) => {
            t.error(&e);
            e.class().exit_code()
        }
    }
}

fn tested(a: &SelftestArgs, t: &Terminal) -> Result<bool, Error> {
    let defaults = Plan::default();
    let plan = Plan {
        adapter: choice(&a.adapter),
        seconds: a.seconds,
        seed: a.seed,
        only: a.only.clone(),
        threads: a.threads.map_or(defaults.threads, |n| n as usize),
        ..defaults
    };
    let report = match &a.case {
        Some(case) => {
            let _progress = t.spinner(case.clone());
            run_case(&plan, case).map_err(not_run)?
        }
        None => {
            let bar = t.bar("selftest".into(), (a.seconds.ceil() as u64).max(1), false);
            let mut said = 0.0;
            run(&plan, &mut |p| {
                for f in &p.found {
                    let again = format!("wgfc selftest --case '{}'{}", f.case, on(a));
                    t.print_to_stderr(&format!(
                        "{}: {}: {}\n    again: {again}\n",
                        f.case, f.status, f.message
                    ));
                }
                if !t.shows_progress() && p.seconds >= said + 10.0 {
                    said = p.seconds;
                    let s = p.seconds;
                    let waits = waits(&p, a).map_or(String::new(), |w| format!("; {w}"));
                    t.note(&format!("{} cases, {} failed in {s:.0} s{waits}", p.cases, p.failed));
                }
                let what = match p.shrinking {
                    true => "making it small".into(),
                    false => waits(&p, a).unwrap_or_else(|| "selftest".into()),
                };
                bar.says(format!("{what}: {} cases, {} failed, seconds", p.cases, p.failed));
                bar.at(p.seconds.min(a.seconds) as u64);
            })
            .map_err(not_run)?
        }
    };
    let mut saved: Vec<Option<PathBuf>> = vec![];
    for f in &report.findings {
        let smallest = f.smallest.as_ref().zip(a.save.as_ref());
        saved.push(smallest.map(|(s, dir)| save::save(s, dir)).transpose()?);
    }
    if t.json {
        t.print_json(&json(&report, &saved)?);
    } else {
        if let Some(text) = a.case.as_deref().and_then(describe_case) {
            t.result(&text);
        }
        t.print(&text(&report, a, &saved));
    }
    Ok(report.passed())
}

/// The self-test's error as an error of this crate, with advice.
fn not_run(e: NotRun) -> Error {
    let message = e.to_string();
    match e {
        NotRun::Adapter(e) => device_error(e),
        NotRun::NoName(_) => Error::usage(message, "`wgfc selftest` alone tries all of them"),
        _ => Error::usage(
            message,
            "a case is an operator, `graph` or `loop`, and a number, as in 'Softmax 17'",
        ),
    }
}

/// The cases that are still running after the given time, as text.
fn waits(p: &Progress, a: &SelftestArgs) -> Option<String> {
    let late = p.seconds > a.seconds && !p.running.is_empty();
    late.then(|| format!("waiting for {}", p.running.join(", ")))
}

fn json(report: &Report, saved: &[Option<PathBuf>]) -> Result<serde_json::Value, Error> {
    let mut v = serde_json::to_value(report).map_err(|e| Error::Internal(format!("JSON: {e}")))?;
    v["passed"] = report.passed().into();
    for (f, at) in v["findings"].as_array_mut().into_iter().flatten().zip(saved) {
        f["saved"] = at.as_ref().map(|p| p.display().to_string()).into();
    }
    Ok(v)
}

fn text(r: &Report, a: &SelftestArgs, saved: &[Option<PathBuf>]) -> String {
    let mut s = format!("{} ({}, {})\n", r.device, r.backend, r.driver);
    if !r.features.is_empty() {
        s += &format!("  {}\n", r.features.join(", "));
    }
    for (f, at) in r.findings.iter().zip(saved) {
        s.push('\n');
        s += &finding(f, a, at.as_ref());
    }
    if a.case.is_none() {
        s.push('\n');
        s += &families(&r.families);
    }
    if r.lost_with_others > 0 {
        let n = r.lost_with_others;
        s += &format!("\n  {n} cases were lost with the device while another ran, and are fine alone\n");
    }
    if r.stopped {
        s += "\n  the device was lost and could not be opened again: the run ended there\n";
    }
    let failed: usize = r.findings.iter().map(|f| f.cases).sum();
    let verdict = match (failed, a.case.is_some()) {
        (0, true) => "nothing differs".into(),
        (0, false) => format!("nothing differs in {} cases (seed {}, {:.0} s)", r.cases, r.seed, r.seconds),
        (_, true) => "it differs".into(),
        (n, false) => {
            format!("{n} of {} cases differ or fail (seed {}, {:.0} s)", r.cases, r.seed, r.seconds)
        }
    };
    s + &format!("\n{verdict}\n")
}

fn indented(text: &str) -> String {
    text.lines().map(|l| format!("      {l}\n")).collect()
}

/// The option that selects the adapter, for a command line.
fn on(a: &SelftestArgs) -> String {
    a.adapter.adapter.as_ref().map_or(String::new(), |n| format!(" --adapter '{n}'"))
}

fn finding(f: &Finding, a: &SelftestArgs, at: Option<&PathBuf>) -> String {
    let mut s = format!("{}: {}, {} cases", f.name, f.status, f.cases);
    if !f.repeats {
        s += ", not when repeated alone";
    } else if let Some(why) = &f.cut_short {
        let left_out = if f.smallest.is_some() { "could be smaller" } else { "not repeated or made smaller" };
        s += &format!(", {left_out}: {why}");
    }
    let message = f.smallest.as_ref().map_or(&f.message, |m| &m.message);
    s += &format!("\n    {}\n", message.lines().collect::<Vec<_>>().join("\n    "));
    if let Some(m) = &f.smallest {
        s += &format!("    the smallest, from {}:\n{}", m.case, indented(&m.text));
    }
    let repeated = f.smallest.as_ref().map(|m| &m.case).or(f.cases_named.first());
    let adapter = on(a);
    if let Some(case) = repeated.filter(|_| a.case.is_none()) {
        s += &format!("    again: wgfc selftest --case '{case}'{adapter}");
        s += if at.is_some() { "\n" } else { " --save DIR   # keeps the model and its inputs\n" };
    }
    if let (Some(at), Some(m)) = (at, &f.smallest) {
        s += &format!("    kept in {}\n", at.display());
        s.extend(save::commands(m, at).iter().map(|c| format!("    {c}\n")));
    } else if a.case.is_some() {
        s += "    --save DIR keeps the model and its inputs\n";
    }
    s
}

fn families(all: &[Family]) -> String {
    let heading = ["family", "cases", "failed", "skipped", "error", "skipped because"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for f in all.iter().chain([&sum(all)]) {
        let mut reasons: Vec<(&String, &u64)> = f.reasons.iter().collect();
        reasons.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        let why = reasons.first().map_or(String::new(), |(why, n)| {
            let short: String = why.chars().take(70).collect();
            let others = if reasons.len() > 1 {
                format!(", {} other reasons", reasons.len() - 1)
            } else {
                String::new()
            };
            format!("{short} ({n}){others}")
        });
        rows.push(vec![
            f.name.into(),
            f.cases.to_string(),
            f.failed.to_string(),
            f.skipped.to_string(),
            if f.error > 0.0 { format!("{:.1e}", f.error) } else { "0".into() },
            why,
        ]);
    }
    let text = table(&rows, &[false, true, true, true, true, false]);
    text + "  error: the largest relative error of an output in f32 that does not differ\n"
}

fn sum(all: &[Family]) -> Family {
    let mut total = Family { name: "all", ..Family::default() };
    for f in all {
        total.cases += f.cases;
        total.failed += f.failed;
        total.skipped += f.skipped;
        total.error = total.error.max(f.error);
    }
    total
}
