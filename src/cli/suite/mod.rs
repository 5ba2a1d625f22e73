//! `wgfc bench suite`: everything that is measured of a device, in one file.
//!
//! The suite runs each of its tasks in several passes, one behind the other and each in a process of its own, so that what changes in between
//! and from process to process shows: a row whose passes disagree says so. The file is written after each task. A run on a file that is there continues it.

mod chart;
mod doubled;
mod energy;
mod experiments;
mod published;
pub mod report;
mod tasks;

use super::adapter;
use super::args::BenchSuiteArgs;
use super::device_cache::DeviceCache;
use super::own::Program;
use super::signals;
use super::terminal::Terminal;
use std::process::{Command, Stdio};
use std::time::Instant;
use tasks::{Context, Task};
use wgfc::Error;
use wgfc::inspect::{table, time_text};
use wgfc::suite::{Better, Device, Found, Host, Reading, Record, Row, Unit};

/// Runs the suite, or what is left of it: each pass in a process of its own, since processes differ, too.
pub fn main(a: &BenchSuiteArgs, t: &Terminal) -> Result<(), Error> {
    if let Some(pass) = a.pass {
        return run_pass(a, pass, t);
    }
    let started = Instant::now();
    // Errors of the arguments are reported here, and not by the process of the first pass.
    let left: Vec<u32> = {
        let (record, context) = opened(a, t)?;
        let all = tasks::all(&context)?;
        let chosen = chosen(&all, &a.only)?;
        let done = |pass: u32| chosen.iter().filter(|task| record.has(&task.name, pass)).count();
        let parts: usize = (0..a.passes).map(done).sum();
        if parts > 0 {
            let whole = chosen.len() * a.passes as usize;
            t.note(&format!("{} has {parts} of {whole} parts; what is left follows", a.output.display()));
        }
        record.write(&a.output)?;
        (0..a.passes).filter(|pass| done(*pass) < chosen.len()).collect()
    };
    let program = Program::this()?;
    for pass in left {
        let status = of_pass(&program, a, pass, t.is_quiet()).stdin(Stdio::null()).status();
        match status {
            Ok(status) if status.success() => {}
            Ok(_) if signals::pending().is_some() => break,
            failed => {
                let why = failed.map_or_else(|e| e.to_string(), |status| status.to_string());
                return Err(Error::usage(
                    format!("pass {} of the suite failed: {why}", pass + 1),
                    "its message is above; the same command continues with what is left",
                ));
            }
        }
    }
    let record = Record::read(&a.output)?;
    if t.json {
        let record = serde_json::to_value(&record)
            .map_err(|e| Error::Internal(format!("a record is no JSON: {e}")))?;
        t.print_json(&record);
    } else {
        t.print(&text(&record, started.elapsed().as_secs_f64()));
        t.result(&format!(
            "{}: `wgfc bench report {}` makes a page of it\n",
            a.output.display(),
            a.output.display()
        ));
    }
    Ok(())
}

/// The record to write, and what its tasks need.
fn opened(a: &BenchSuiteArgs, t: &Terminal) -> Result<(Record, Context), Error> {
    let gpu = adapter::open(&a.adapter, t)?;
    let cache = DeviceCache::open(&a.cache, &gpu, t);
    let record = begun(a, Device::of(gpu.summary()))?;
    Ok((record, Context::new(gpu, cache, a)?))
}

/// The command line of one pass.
fn of_pass(program: &Program, a: &BenchSuiteArgs, pass: u32, quiet: bool) -> Command {
    let mut c = program.command();
    c.args(["bench", "suite", "--passes", &a.passes.to_string(), "--pass", &pass.to_string(), "--output"]);
    c.arg(&a.output);
    c.args(a.only.iter().flat_map(|word| ["--only", word]));
    c.args(a.adapter.adapter.iter().flat_map(|name| ["--adapter", name]));
    let flags = [
        (a.quick, "--quick"),
        (a.large, "--large"),
        (a.cache.no_tuning, "--no-tuning"),
        (a.cache.no_cache, "--no-cache"),
        (quiet, "--quiet"),
    ];
    c.args(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag));
    c
}

/// Runs what is left of one pass, in this process.
fn run_pass(a: &BenchSuiteArgs, pass: u32, t: &Terminal) -> Result<(), Error> {
    let (mut record, context) = opened(a, t)?;
    let all = tasks::all(&context)?;
    let chosen = chosen(&all, &a.only)?;
    let left: Vec<&Task> = chosen.into_iter().filter(|task| !record.has(&task.name, pass)).collect();
    let bar = t.bar("measuring".into(), left.len() as u64, false);
    for (i, task) in left.iter().enumerate() {
        bar.says(format!("measuring {}, pass {} of {}", task.name, pass + 1, a.passes));
        bar.at(i as u64);
        let started = Instant::now();
        let readings = match task.run(&context) {
            Ok(readings) => readings,
            Err(e) if context.gpu.is_lost() => {
                // The next run continues behind this task.
                let why = format!("the device was lost: {}", first_line(&e));
                let lost = Reading::missing(&task.name, Unit::Seconds, Better::Less, why);
                record.add(&task.name, pass, started.elapsed().as_secs_f64(), vec![lost]);
                record.write(&a.output)?;
                return Err(e);
            }
            // A task that the device cannot run gives a row with the reason.
            Err(e) => {
                vec![Reading::missing(&task.name, Unit::Seconds, Better::Less, first_line(&e))]
            }
        };
        record.add(&task.name, pass, started.elapsed().as_secs_f64(), readings);
        record.write(&a.output)?;
    }
    drop(bar);
    context.cache.save(t);
    Ok(())
}

/// The record to continue, or a new one.
fn begun(a: &BenchSuiteArgs, device: Device) -> Result<Record, Error> {
    let new = Record::new(device, Host::this(), a.quick);
    if a.force || !a.output.exists() {
        return Ok(new);
    }
    let old = Record::read(&a.output)?;
    let same = |a: &Record| (a.device.clone(), a.host.clone(), a.producer.clone(), a.quick);
    match same(&old) == same(&new) {
        true => Ok(old),
        false => Err(Error::file_help(
            &a.output,
            "is of another device, version or length of the suite, and is not continued",
            "name another file with -o, or replace this one with --force",
        )),
    }
}

/// The tasks whose names contain one of the words.
fn chosen<'t>(all: &'t [Task], words: &[String]) -> Result<Vec<&'t Task>, Error> {
    let named = |task: &&Task| words.is_empty() || words.iter().any(|w| task.name.contains(w.as_str()));
    let chosen: Vec<&Task> = all.iter().filter(named).collect();
    let names = || all.iter().map(|task| task.name.as_str()).collect::<Vec<_>>().join(", ");
    match chosen.is_empty() {
        true => Err(Error::usage(
            format!("no task has {} in its name", words.join(" or ")),
            format!("there are {}", names()),
        )),
        false => Ok(chosen),
    }
}

fn first_line(e: &Error) -> String {
    e.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// A value with its unit.
pub fn value_text(unit: Unit, v: f64) -> String {
    let scaled = |v: f64| {
        let (v, prefix) = match v.abs() {
            a if a >= 1e12 => (v / 1e12, "T"),
            a if a >= 1e9 => (v / 1e9, "G"),
            a if a >= 1e6 => (v / 1e6, "M"),
            a if a >= 1e3 => (v / 1e3, "k"),
            a if a < 1.0 && a > 0.0 => (v * 1e3, "m"),
            _ => (v, ""),
        };
        (
            if v.abs() >= 99.5 {
                format!("{v:.0}")
            } else {
                format!("{v:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
            },
            prefix,
        )
    };
    match unit {
        Unit::Seconds => seconds_text(v),
        Unit::One if v.fract() != 0.0 && v.abs() < 0.01 => format!("{v:.1e}"),
        Unit::One if v.fract() != 0.0 && v.abs() < 10.0 => format!("{v:.2}"),
        Unit::PerSecond | Unit::One if v.abs() < 1e6 => {
            let unit = if unit == Unit::PerSecond { " /s" } else { "" };
            if v.abs() >= 99.5 || v.fract() == 0.0 {
                format!("{v:.0}{unit}")
            } else {
                format!("{v:.1}{unit}")
            }
        }
        _ => {
            let (number, prefix) = scaled(v);
            let name = match unit {
                Unit::BytesPerSecond => "B/s",
                Unit::FlopsPerSecond => "FLOP/s",
                Unit::Joules => "J",
                Unit::Watts => "W",
                _ => "",
            };
            format!("{number} {prefix}{name}").trim_end().to_owned()
        }
    }
}

/// A time with three significant digits.
fn seconds_text(v: f64) -> String {
    let (scaled, unit) = match v.abs() {
        a if a >= 1.0 || a == 0.0 => (v, "s"),
        a if a >= 1e-3 => (v * 1e3, "ms"),
        a if a >= 1e-6 => (v * 1e6, "µs"),
        _ => (v * 1e9, "ns"),
    };
    let decimals = match scaled.abs() {
        a if a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.decimals$} {unit}")
}

/// A row's median and interval, or the reason why there are none.
pub fn cells(row: &Row) -> [String; 3] {
    match &row.found {
        Found::Measured(m) => [
            value_text(row.unit, m.median),
            format!("{} to {}", value_text(row.unit, m.low), value_text(row.unit, m.high)),
            match m {
                _ if row.unit == Unit::One => String::new(),
                _ if m.unstable => format!("{:.1} %, passes differ", 100.0 * m.variation),
                _ if m.is_scarce() => "few samples".into(),
                _ => format!("{:.1} %", 100.0 * m.variation),
            },
        ],
        Found::Missing { missing } => ["-".into(), missing.clone(), String::new()],
    }
}

fn text(record: &Record, seconds: f64) -> String {
    let d = &record.device;
    let mut s = format!(
        "{} ({}, {}), {} passes of tasks, {} now\n",
        d.name,
        d.driver,
        d.backend,
        record.tasks.len(),
        time_text(seconds)
    );
    let mut rows = vec![["", "median", "95 % interval", "variation"].map(String::from).to_vec()];
    for row in &record.rows {
        let [median, interval, variation] = cells(row);
        rows.push(vec![row.id.clone(), median, interval, variation]);
    }
    s += &format!("\n{}", table(&rows, &[false, true, true, true]));
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        for (unit, v, text) in [
            (Unit::Seconds, 4e-6, "4.00 µs"),
            (Unit::Seconds, 0.000_460_2, "460 µs"),
            (Unit::Seconds, 0.014_588, "14.6 ms"),
            (Unit::BytesPerSecond, 3.9e12, "3.9 TB/s"),
            (Unit::FlopsPerSecond, 59.25e12, "59.25 TFLOP/s"),
            (Unit::PerSecond, 1274.4, "1274 /s"),
            (Unit::PerSecond, 12.34, "12.3 /s"),
            (Unit::Joules, 0.25, "250 mJ"),
            (Unit::Watts, 312.0, "312 W"),
            (Unit::One, 121.0, "121"),
        ] {
            assert_eq!(value_text(unit, v), text);
        }
    }
}
