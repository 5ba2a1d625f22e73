//! `wgfc bench loops`: simulations as a loop inside kernels, step by step, and as hand-written kernels.

mod chart;
pub mod measure;
pub mod workloads;
mod yardstick;

use super::adapter;
use super::args::{BenchLoopsArgs, LoopForm};
use super::profile::{estimate_json, estimate_text, ns_text};
use super::terminal::Terminal;
use measure::{Measured, Row};
use wgfc::inspect::table;
use wgfc::{Error, output};
use workloads::{Size, Steps, WORKLOADS, Workload};

/// Measures the selected simulations.
pub fn main(a: &BenchLoopsArgs, t: &Terminal) -> Result<(), Error> {
    let chosen = chosen(&a.workloads)?;
    let gpu = adapter::open(&a.adapter, t)?;
    let forms = match a.form.as_slice() {
        [] => vec![LoopForm::Fused, LoopForm::Split, LoopForm::ByHand],
        some => {
            let mut forms = some.to_vec();
            forms.sort_unstable();
            forms.dedup();
            forms
        }
    };
    let mut rows = vec![];
    for w in chosen {
        for size in sizes(w, a) {
            let _progress = t.spinner(format!("measuring {}, {}", w.name, size_text(w, size)));
            for row in measure::all(&gpu, w, size, &forms, a)? {
                t.note(&line(&row));
                rows.push(row);
            }
            // The file is written after each row, so that rows are kept if a later one fails.
            if let Some(file) = &a.csv {
                output::write_whole(file, csv(&rows).as_bytes())?;
            }
        }
    }
    if let Some(file) = &a.svg {
        output::write_whole(file, chart::svg(&gpu.summary().name, &rows)?.as_bytes())?;
    }
    if t.json {
        t.print_json(&serde_json::json!({
            "ran_on": gpu.summary().name,
            "seed": a.seed,
            "rows": rows.iter().map(|r| json(r, &rows)).collect::<Vec<_>>(),
        }));
    } else {
        t.print(&format!("{}: medians of {} samples\n\n{}", gpu.summary().name, a.runs, text(&rows)));
    }
    match rows.iter().find_map(|r| r.measured.as_ref().err()) {
        Some(reason) if rows.iter().all(|r| r.measured.is_err()) => {
            Err(Error::usage(format!("nothing could be measured: {reason}"), "try other sizes or forms"))
        }
        _ => Ok(()),
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Workload>, Error> {
    if names.is_empty() {
        return Ok(WORKLOADS.iter().collect());
    }
    let all = || WORKLOADS.map(|w| w.name).join(", ");
    let one = |n: &String| {
        Workload::named(n).ok_or_else(|| {
            Error::usage(format!("there is no workload `{n}`"), format!("give some of {}", all()))
        })
    };
    names.iter().map(one).collect()
}

/// All combinations of the given sizes. A size that the workload does not have keeps its default.
fn sizes(w: &Workload, a: &BenchLoopsArgs) -> Vec<Size> {
    let list = |given: &[u32], usual: usize, has: bool| match given {
        some @ [_, ..] if has => some.iter().map(|n| *n as usize).collect(),
        _ => vec![usual],
    };
    let mut all = vec![];
    for population in list(&a.population, w.usual.population, true) {
        for steps in list(&a.steps, w.usual.steps, w.steps != Steps::None) {
            for dims in list(&a.dims, w.usual.dims, w.steps == Steps::None) {
                all.push(Size { population, steps, dims });
            }
        }
    }
    all
}

/// A size as text, `4096 × 500`: individuals, then steps or dimensions.
fn size_text(w: &Workload, s: Size) -> String {
    format!("{} × {}", s.population, if w.steps == Steps::None { s.dims } else { s.steps })
}

fn form_name(f: LoopForm) -> &'static str {
    match f {
        LoopForm::Fused => "fused",
        LoopForm::Split => "split",
        LoopForm::ByHand => "by hand",
    }
}

/// The speed relative to the hand-written kernel of the same size.
fn ratio(row: &Row, rows: &[Row]) -> Option<f64> {
    let same =
        |r: &&Row| r.workload.name == row.workload.name && r.size == row.size && r.form == LoopForm::ByHand;
    let by_hand = rows.iter().find(same)?.measured.as_ref().ok()?;
    Some(by_hand.wall_ns.median / row.measured.as_ref().ok()?.wall_ns.median)
}

/// One line for a row, printed as soon as it is measured.
fn line(r: &Row) -> String {
    let what = format!("{}, {}, {}", r.workload.name, size_text(r.workload, r.size), form_name(r.form));
    match &r.measured {
        Ok(m) => format!("{what}: {} a generation", ns_text(m.wall_ns.median)),
        Err(why) => format!("{what}: {why}"),
    }
}

/// A rate to at least three digits.
fn rate(v: f64) -> String {
    let decimals = (2.0 - v.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{v:.decimals$}")
}

fn text(rows: &[Row]) -> String {
    let heading = [
        "workload",
        "size",
        "form",
        "dispatches",
        "compiled in",
        "loaded in",
        "a generation",
        "95% confidence",
        "on the GPU",
        "generations/s",
        "of by hand",
        "agree",
    ];
    let mut lines = vec![heading.map(String::from).to_vec()];
    let mut refused = String::new();
    for r in rows {
        let mut line =
            vec![r.workload.name.to_owned(), size_text(r.workload, r.size), form_name(r.form).to_owned()];
        match &r.measured {
            Ok(m) => {
                let [wall, interval] = estimate_text(Some(&m.wall_ns));
                line.extend([
                    m.dispatches.to_string(),
                    m.compiled.map_or("-".into(), |c| ns_text(c.as_nanos() as f64)),
                    ns_text(m.loaded.as_nanos() as f64),
                    wall,
                    interval,
                    m.gpu_ns.as_ref().map_or("-".into(), |e| ns_text(e.median)),
                    rate(m.per_second()),
                    ratio(r, rows).map_or("-".into(), |x| format!("{x:.2}")),
                    format!("{:.1}%", 100.0 * m.agree.min(m.evaluator.unwrap_or(1.0))),
                ]);
            }
            Err(reason) => {
                line.extend(std::iter::repeat_n("-".to_owned(), heading.len() - 3));
                refused += &format!("  {}, {}: {reason}\n", r.workload.name, form_name(r.form));
            }
        }
        lines.push(line);
    }
    let right: Vec<bool> = (0..heading.len()).map(|c| c > 2 || c == 1).collect();
    let table = table(&lines, &right);
    if refused.is_empty() { table } else { format!("{table}\n{refused}") }
}

fn json(r: &Row, rows: &[Row]) -> serde_json::Value {
    let mut v = serde_json::json!({
        "workload": r.workload.name, "form": form_name(r.form), "population": r.size.population,
        "steps": r.size.steps, "dims": r.size.dims,
    });
    let more = match &r.measured {
        Ok(m) => serde_json::json!({
            "dispatches": m.dispatches,
            "compile_ns": m.compiled.map(|c| c.as_nanos() as u64),
            "load_ns": m.loaded.as_nanos() as u64,
            "generation_ns": estimate_json(&m.wall_ns),
            "gpu_ns": m.gpu_ns.as_ref().map(estimate_json),
            "generations_per_second": m.per_second(),
            "of_by_hand": ratio(r, rows),
            "agree": m.agree,
            "agree_with_evaluator": m.evaluator,
            "mean": m.mean,
        }),
        Err(reason) => serde_json::json!({ "refused": reason }),
    };
    if let (Some(v), serde_json::Value::Object(more)) = (v.as_object_mut(), more) {
        v.extend(more);
    }
    v
}

fn csv(rows: &[Row]) -> String {
    let mut s = "workload,form,population,steps,dims,dispatches,compile_ns,load_ns,generation_ns,generation_ns_low,generation_ns_high,gpu_ns,generations_per_second,of_by_hand\n".to_owned();
    for r in rows {
        let Ok(m) = &r.measured else { continue };
        let Measured { wall_ns: w, .. } = m;
        let or_none = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
        s += &format!(
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
            r.workload.name,
            form_name(r.form),
            r.size.population,
            r.size.steps,
            r.size.dims,
            m.dispatches,
            or_none(m.compiled.map(|c| c.as_nanos() as f64)),
            m.loaded.as_nanos(),
            w.median,
            w.low,
            w.high,
            or_none(m.gpu_ns.as_ref().map(|e| e.median)),
            m.per_second(),
            or_none(ratio(r, rows)),
        );
    }
    s
}
