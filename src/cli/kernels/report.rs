//! Measurements as a table, CSV, JSON and an HTML page.

use super::list::Problem;
use super::measure::Measured;
use super::picture;
use crate::cli::drawing::escape;
use crate::cli::profile::{estimate_json, ns_text};
use std::fmt::Write as _;
use wgfc::Error;
use wgfc::compiler::device::Speeds;
use wgfc::inspect::{flops_text, table};

/// A problem and its measurements, or its error.
pub struct Row {
    pub problem: Problem,
    pub measured: Result<Measured, Error>,
    /// The nanoseconds that a peer takes.
    pub peer_ns: Option<f64>,
}

/// The measurements on one device.
pub struct Run {
    pub device: String,
    pub speeds: Speeds,
    pub seed: u64,
    pub rows: Vec<Row>,
}

/// The lower bound of a problem's time on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    pub ns: f64,
    /// Whether arithmetic rather than memory determines it.
    pub arithmetic: bool,
}

impl Run {
    /// The problems that failed, without those that are too large for the device.
    pub fn failures(&self) -> impl Iterator<Item = (&Problem, &Error)> {
        let failed = self.rows.iter().filter_map(|r| Some((&r.problem, r.measured.as_ref().err()?)));
        failed.filter(|(_, e)| !super::is_too_large(e))
    }

    /// The peak rate of arithmetic for a problem, in operations per second.
    pub fn peak(&self, p: &Problem) -> f64 {
        match p.on_matrix_units() {
            true => self.speeds.flops_matrix.max(self.speeds.flops_f32),
            false => self.speeds.flops_f32,
        }
    }

    /// The lower bound of the time of a problem that moves this many bytes.
    pub fn bound(&self, p: &Problem, bytes: u64) -> Bound {
        let moved = bytes as f64 / self.speeds.bandwidth * 1e9;
        let computed = p.flops as f64 / self.peak(p) * 1e9;
        Bound { ns: moved.max(computed), arithmetic: computed > moved }
    }

    /// The lower bound relative to the measured time.
    pub fn share(&self, p: &Problem, m: &Measured) -> f64 {
        self.bound(p, m.bytes).ns / m.time.median
    }
}

/// The time with the fastest schedules that were found; the measured time if none was faster.
fn best(m: &Measured) -> f64 {
    let gain: f64 = m.tuned.iter().map(|k| k.tunable.dispatches as f64 * (k.own.ns - k.best.ns)).sum();
    (m.time.median - gain).max(0.0)
}

/// Bytes per second, in powers of ten as memory is specified.
pub fn speed(bytes_per_second: f64) -> String {
    match bytes_per_second {
        b if b >= 1e12 => format!("{:.2} TB/s", b * 1e-12),
        b if b >= 1e9 => format!("{:.1} GB/s", b * 1e-9),
        b => format!("{:.1} MB/s", b * 1e-6),
    }
}

/// The rate of arithmetic, or of memory if there is no arithmetic.
fn rate(p: &Problem, m: &Measured) -> String {
    let per_second = |n: u64| (n as f64 / (m.time.median * 1e-9)) as u64;
    match p.flops {
        0 => speed(m.bytes as f64 / (m.time.median * 1e-9)),
        n => format!("{}/s", flops_text(per_second(n))),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// The geometric mean; `None` if there are no values.
fn geometric_mean(of: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = of.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

fn schedules(m: &Measured) -> String {
    let mut all: Vec<String> = vec![];
    for k in &m.kernels {
        let checks = if k.proven { "" } else { ", with run-time checks" };
        all.push(format!("{}{checks}", k.schedule));
    }
    all.dedup();
    all.join("; ")
}

/// The measurements as text.
pub fn text(run: &Run, tuned: bool, left: usize) -> String {
    let with_peer = run.rows.iter().any(|r| r.peer_ns.is_some());
    let mut heading = vec!["problem", "time", "rate", "of bound", "dispatches", "error", "schedules"];
    if with_peer {
        heading.insert(2, "peer / wgfc");
    }
    if tuned {
        heading.push("tuned gains");
    }
    let mut lines = vec![heading.iter().map(|h| h.to_string()).collect::<Vec<_>>()];
    let mut failed = String::new();
    for r in &run.rows {
        let p = &r.problem;
        let mut line = vec![p.key()];
        match &r.measured {
            Ok(m) => {
                line.push(ns_text(m.time.median));
                if with_peer {
                    line.push(r.peer_ns.map_or("-".into(), |ns| format!("{:.2}", ns / m.time.median)));
                }
                line.extend([
                    rate(p, m),
                    percent(run.share(p, m)),
                    m.dispatches.to_string(),
                    m.error.map_or("-".into(), |e| format!("{e:.0e}")),
                    schedules(m),
                ]);
                if tuned {
                    line.push(gains(m));
                }
            }
            Err(e) => {
                line.push(if super::is_too_large(e) { "too large".into() } else { "failed".into() });
                line.resize(heading.len(), "-".into());
                let _ = writeln!(failed, "  {}: {}", p.key(), e.to_string().trim_start_matches("error: "));
            }
        }
        lines.push(line);
    }
    let right: Vec<bool> =
        heading.iter().map(|h| !["problem", "schedules", "tuned gains"].contains(h)).collect();
    let mut s = format!(
        "{}: {} problems; copying {}, arithmetic in f32 {}/s; seed {}\n\n{}\n",
        run.device,
        run.rows.len(),
        speed(run.speeds.bandwidth),
        flops_text(run.speeds.flops_f32 as u64),
        run.seed,
        table(&lines, &right)
    );
    s += &families(run);
    if left > 0 {
        let _ = writeln!(s, "  {left} problems were left out for lack of time (--budget)");
    }
    if !failed.is_empty() {
        s += &format!("\nnot measured:\n{failed}");
    }
    s
}

/// One line for a problem, printed as soon as it is measured.
pub fn line(run: &Run, r: &Row) -> String {
    let key = r.problem.key();
    match &r.measured {
        Ok(m) => {
            let share = percent(run.share(&r.problem, m));
            format!("{key}: {}, {}, {share} of the bound", ns_text(m.time.median), rate(&r.problem, m))
        }
        Err(e) if super::is_too_large(e) => format!("{key}: too large"),
        Err(_) => format!("{key}: failed"),
    }
}

/// The time saved by the fastest schedules.
fn gains(m: &Measured) -> String {
    let one =
        |k: &wgfc::tune::Measured| format!("{} ({})", percent(1.0 - k.best.ns / k.own.ns), k.best.choice);
    let all: Vec<String> = m.tuned.iter().filter(|k| k.gains()).map(one).collect();
    if all.is_empty() { "-".into() } else { all.join("; ") }
}

/// The geometric means of each family and of all problems.
fn families(run: &Run) -> String {
    let mut names: Vec<&str> = vec![];
    for r in &run.rows {
        if !names.contains(&r.problem.family.as_str()) {
            names.push(&r.problem.family);
        }
    }
    let mut s = String::new();
    for name in names.iter().copied().map(Some).chain([None]) {
        let of = || run.rows.iter().filter(move |r| name.is_none_or(|n| r.problem.family == n));
        let shares = of().filter_map(|r| Some(run.share(&r.problem, r.measured.as_ref().ok()?)));
        let ratios = || of().filter_map(|r| Some(r.peer_ns? / r.measured.as_ref().ok()?.time.median));
        let Some(share) = geometric_mean(shares) else { continue };
        let _ = write!(s, "  {}: geometric mean {} of the bound", name.unwrap_or("all"), percent(share));
        if let Some(mean) = geometric_mean(ratios()) {
            let least = ratios().fold(f64::INFINITY, f64::min);
            let _ = write!(s, "; peer / wgfc {mean:.2}, least {least:.2}");
        }
        s.push('\n');
    }
    s
}

pub fn csv(run: &Run) -> String {
    let mut s = "family,name,sizes,drawn,ns,ns_low,ns_high,bound_ns,share,flops,bytes,dispatches,error,best_ns,peer_ns,schedules\n".to_owned();
    for r in &run.rows {
        let Ok(m) = &r.measured else { continue };
        let p = &r.problem;
        let or_none = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
        let tuned = (!m.tuned.is_empty()).then(|| best(m));
        let _ = writeln!(
            s,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},\"{}\"",
            p.family,
            p.name,
            p.sizes,
            p.drawn,
            m.time.median,
            m.time.low,
            m.time.high,
            run.bound(p, m.bytes).ns,
            run.share(p, m),
            p.flops,
            m.bytes,
            m.dispatches,
            or_none(m.error),
            or_none(tuned),
            or_none(r.peer_ns),
            schedules(m)
        );
    }
    s
}

pub fn json(run: &Run) -> serde_json::Value {
    let row = |r: &Row| {
        let mut v = r.problem.json();
        let more = match &r.measured {
            Err(e) if super::is_too_large(e) => serde_json::json!({ "too_large": e.to_string() }),
            Err(e) => serde_json::json!({ "failed": e.to_string() }),
            Ok(m) => {
                let bound = run.bound(&r.problem, m.bytes);
                let kernel = |k: &super::measure::Kernel| serde_json::json!({ "family": k.family, "schedule": k.schedule, "proven": k.proven });
                let tuned = |k: &wgfc::tune::Measured| {
                    let timed = |t: &wgfc::tune::Timed| serde_json::json!({ "schedule": t.choice.to_string(), "ns": t.ns });
                    serde_json::json!({
                        "problem": k.tunable.title,
                        "own": timed(&k.own),
                        "best": timed(&k.best),
                        "tried": k.tried.iter().map(timed).collect::<Vec<_>>(),
                        "refused": k.refused.iter().map(super::super::tune::refused_json).collect::<Vec<_>>(),
                    })
                };
                serde_json::json!({
                    "time_ns": estimate_json(&m.time),
                    "bound_ns": bound.ns,
                    "bound_by": if bound.arithmetic { "arithmetic" } else { "memory" },
                    "share": run.share(&r.problem, m),
                    "moved": m.bytes,
                    "dispatches": m.dispatches,
                    "kernels": m.kernels.iter().map(kernel).collect::<Vec<_>>(),
                    "error": m.error,
                    "tuned": m.tuned.iter().map(tuned).collect::<Vec<_>>(),
                    "peer_ns": r.peer_ns,
                })
            }
        };
        if let (Some(v), serde_json::Value::Object(more)) = (v.as_object_mut(), more) {
            v.extend(more);
        }
        v
    };
    serde_json::json!({
        "ran_on": run.device,
        "seed": run.seed,
        "bytes_per_second": run.speeds.bandwidth,
        "flops_f32": run.speeds.flops_f32,
        "flops_matrix": run.speeds.flops_matrix,
        "rows": run.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// An HTML page with the roofline and the table.
pub fn html(run: &Run) -> Result<String, Error> {
    let mut s = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>wgfc kernels on {0}</title>\n<style>\n\
         body {{ font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: #343a48; max-width: 1200px }}\n\
         table {{ border-collapse: collapse; width: 100% }}\n\
         td, th {{ padding: 3px 8px; border-bottom: 1px solid #eceff3; text-align: left; font-weight: normal }}\n\
         th {{ color: #6b7385 }} td.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }}\n\
         td.s {{ color: #6b7385; font-size: 12px }} .bar {{ background: #eceff3; width: 120px; height: 10px; display: inline-block }}\n\
         .bar i {{ display: block; height: 10px }} tr.f td {{ padding-top: 18px; font-weight: 600 }}\n\
         </style></head><body>\n<h1>Kernels on {0}</h1>\n<p>{1} problems; copying {2}, arithmetic in f32 {3}/s; seed {4}. The bound is the time that \
         memory or arithmetic takes at least; what the caches hold can be faster.</p>\n",
        escape(&run.device),
        run.rows.len(),
        speed(run.speeds.bandwidth),
        flops_text(run.speeds.flops_f32 as u64),
        run.seed,
    );
    s += &picture::svg(run)?;
    s += "<table>\n<tr><th>problem</th><th>time</th><th>rate</th><th>of bound</th><th></th><th>peer / wgfc</th><th>schedules</th></tr>\n";
    let mut family = "";
    for r in &run.rows {
        let p = &r.problem;
        if p.family != family {
            family = &p.family;
            let _ = writeln!(s, "<tr class=\"f\"><td colspan=\"7\">{}</td></tr>", escape(family));
        }
        let title = escape(&p.title());
        match &r.measured {
            Err(e) => {
                let _ =
                    writeln!(s, "<tr><td>{title}</td><td colspan=\"6\">{}</td></tr>", escape(&e.to_string()));
            }
            Ok(m) => {
                let share = run.share(p, m);
                let colour = picture::colour(&p.family);
                let _ = writeln!(
                    s,
                    "<tr><td>{title}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                     <td><span class=\"bar\"><i style=\"width:{:.0}%;background:{colour}\"></i></span></td>\
                     <td class=\"n\">{}</td><td class=\"s\">{}</td></tr>",
                    ns_text(m.time.median),
                    rate(p, m),
                    percent(share),
                    100.0 * share.min(1.0),
                    r.peer_ns.map_or(String::new(), |ns| format!("{:.2}", ns / m.time.median)),
                    escape(&schedules(m)),
                );
            }
        }
    }
    let _ = writeln!(s, "</table>\n<pre>{}</pre>\n</body></html>", escape(&families(run)));
    Ok(s)
}
