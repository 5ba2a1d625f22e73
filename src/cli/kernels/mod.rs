//! `wgfc bench kernels`: single operators of many shapes and types, compared with what the device can do.

pub mod list;
pub mod measure;
mod onnx;
mod picture;
mod report;

use super::adapter;
use super::args::BenchKernelsArgs;
use super::device_cache::DeviceCache;
use super::terminal::Terminal;
use super::timings::Record;
use list::Problem;
use measure::{How, Measured, Model};
use report::{Row, Run};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;
use wgfc::compiler::DeviceProfile;
use wgfc::compiler::Technique;
use wgfc::compiler::pipeline::Fused;
use wgfc::files::map_file;
use wgfc::runtime::Gpu;
use wgfc::speeds::{self, Source};
use wgfc::{DType, Error, Options, output};

/// Measures the selected problems. Returns the exit code. With --json, errors of problems are in their rows.
pub fn main(a: &BenchKernelsArgs, t: &Terminal) -> u8 {
    match run(a, t) {
        Ok(None) => 0,
        Ok(Some(failed)) if t.json => failed.class().exit_code(),
        Ok(Some(e)) | Err(e) => {
            t.error(&e);
            e.class().exit_code()
        }
    }
}

/// The fused kernels of `count` problems with random sizes, which are small on a software adapter, with their names.
pub fn fused(count: usize, seed: u64, gpu: &Gpu, options: &Options) -> Result<Vec<(String, Fused)>, Error> {
    let most = if gpu.summary().is_software { 1_000_000 } else { u64::MAX };
    let problems = list::drawn(count, seed, most)?;
    let fused = |p: &Problem| Model::of(p)?.file.fuse_amended(options, &mut |_| Ok(()));
    problems.iter().map(|p| Ok((p.key(), fused(p)?))).collect()
}

/// Returns an error if a problem failed.
fn run(a: &BenchKernelsArgs, t: &Terminal) -> Result<Option<Error>, Error> {
    let problems = chosen(a)?;
    if let Some(folder) = &a.models {
        return models(&problems, folder, t).map(|()| None);
    }
    if a.list {
        listed(&problems, t);
        return Ok(None);
    }
    let peer = a.peer.as_deref().map(peer).transpose()?;
    let gpu = adapter::open(&a.adapter, t)?;
    let cache = DeviceCache::open(&a.cache, &gpu, t);
    let speeds = match cache.source {
        Source::Named(_) if !gpu.summary().is_software => {
            let progress = t.spinner(format!("measuring {}", gpu.summary().name));
            let m = speeds::measure(&gpu, &|what| progress.says(format!("measuring {what}")))?;
            t.warnings(&m.doubts);
            m.speeds
        }
        _ => cache.speeds,
    };
    let base = DeviceProfile { speeds: cache.speeds, ..DeviceProfile::default() };
    let options = Options {
        profile: base.with_limits(gpu.profile()),
        tuning: cache.tuning.clone(),
        // Each kernel is measured by itself.
        without: [Technique::Sequences].into(),
        ..Options::default()
    };
    let mut run = Run { device: gpu.summary().name.clone(), speeds, seed: a.seed, rows: vec![] };
    let began = Instant::now();
    let mut unwritten = None;
    let mut record = a.record.as_deref().map(|f| Record::open(f, &gpu, cache.speeds)).transpose()?;
    rows(&problems, &gpu, &options, a, t, &mut |p, mut measured| {
        // The file is written after each problem, so that times are kept if a later one fails.
        if let (Some(record), Ok(m)) = (&mut record, &mut measured)
            && let Err(e) = record.add(std::mem::take(&mut m.recorded))
        {
            unwritten = Some(e);
            return false;
        }
        let peer_ns = peer.as_ref().and_then(|p2| p2.get(&p.key()).copied());
        run.rows.push(Row { problem: p.clone(), measured, peer_ns });
        if let Some(row) = run.rows.last() {
            t.note(&format!("{} of {}: {}", run.rows.len(), problems.len(), report::line(&run, row)));
        }
        // The file is written after each row, so that rows are kept if a later one fails.
        if let Some(file) = &a.csv
            && let Err(e) = output::write_whole(file, report::csv(&run).as_bytes())
        {
            unwritten = Some(e);
            return false;
        }
        began.elapsed().as_secs_f64() < a.budget
    })?;
    if let Some(e) = unwritten {
        return Err(e);
    }
    if let Some(file) = &a.html {
        output::write_whole(file, report::html(&run)?.as_bytes())?;
    }
    if t.json {
        t.print_json(&report::json(&run));
    } else {
        let left = problems.len() - run.rows.len();
        t.print(&report::text(&run, a.tune.is_some(), left));
    }
    let failed: Vec<String> = run.failures().map(|(p, e)| format!("{}: {e}", p.key())).collect();
    Ok(failed.first().map(|first| {
        let (failed, all) = (failed.len(), run.rows.len());
        Error::Internal(format!("{failed} of {all} problems failed or computed something else: {first}"))
    }))
}

fn chosen(a: &BenchKernelsArgs) -> Result<Vec<Problem>, Error> {
    let most = a.work.map_or(u64::MAX, |millions| millions * 1_000_000);
    let mut all = if a.drawn { vec![] } else { list::listed(most)? };
    all.extend(list::drawn(a.random as usize, a.seed, most)?);
    all.retain(|p| a.problems.is_empty() || a.problems.iter().any(|w| p.key().contains(w.as_str())));
    // Problems of the same family are listed together.
    let families = list::families()?;
    all.sort_by_key(|p| families.iter().position(|f| *f == p.family));
    match all.is_empty() {
        true => Err(Error::usage(
            format!("no problem has {} in its name", a.problems.join(" or ")),
            "`wgfc bench kernels --list` prints them",
        )),
        false => Ok(all),
    }
}

/// Measures one problem after another while another thread evaluates the next ones. Ends when `each` returns false.
fn rows(
    problems: &[Problem],
    gpu: &Gpu,
    options: &Options,
    a: &BenchKernelsArgs,
    t: &Terminal,
    each: &mut dyn FnMut(&Problem, Result<Measured, Error>) -> bool,
) -> Result<(), Error> {
    let sample = f64::from(a.sample) * 1e6;
    let how = How { gpu, options, sample, tune: a.tune.map(|n| n as usize) };
    let bar = t.bar("measuring kernels".into(), problems.len() as u64, false);
    std::thread::scope(|s| {
        // At most two evaluated problems wait, as they take memory.
        let (send, ready) = mpsc::sync_channel(1);
        s.spawn(move || {
            for p in problems {
                let made = Model::of(p);
                let expected = made.as_ref().ok().filter(|_| !a.no_check).map(Model::evaluate);
                if send.send((made, expected)).is_err() {
                    return;
                }
            }
        });
        for (i, p) in problems.iter().enumerate() {
            bar.at(i as u64);
            let Ok((made, mut expected)) = ready.recv() else {
                return Err(Error::Internal("the thread of the evaluator ended".into()));
            };
            let measured = made.and_then(|m| measure::measure(p, &m, &how, &mut || expected.take()));
            if let Err(e @ Error::Device(_)) = &measured
                && !is_too_large(e)
            {
                return Err(e.clone());
            }
            if !each(p, measured) {
                break;
            }
        }
        Ok(())
    })
}

/// Whether the problem does not fit the device or the memory, as opposed to a lost device.
pub fn is_too_large(e: &Error) -> bool {
    matches!(e, Error::Device(p) if !p.message.contains("lost"))
}

fn listed(problems: &[Problem], t: &Terminal) {
    if t.json {
        t.print_json(&serde_json::json!({ "rows": problems.iter().map(Problem::json).collect::<Vec<_>>() }));
    } else {
        t.print(&problems.iter().map(|p| format!("{}: {}\n", p.key(), p.onnx)).collect::<String>());
    }
}

/// Writes each problem as an ONNX model.
fn models(problems: &[Problem], folder: &Path, t: &Terminal) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|e| {
        Error::file_help(folder, format!("cannot be made: {e}"), "give a folder that you may write in")
    })?;
    for p in problems {
        let file = folder.join(format!("{}.onnx", p.key().replace([' ', '/'], "_")));
        output::write_whole(&file, &Model::of(p)?.bytes)?;
    }
    t.note(&format!("{} models in {}", problems.len(), folder.display()));
    Ok(())
}

/// The nanoseconds that a peer takes for each problem, from `{"rows": [{"key": …, "ns": …}]}`.
fn peer(file: &Path) -> Result<BTreeMap<String, f64>, Error> {
    #[derive(serde::Deserialize)]
    struct PeerRow {
        key: String,
        ns: Option<f64>,
    }
    #[derive(serde::Deserialize)]
    struct Peer {
        rows: Vec<PeerRow>,
    }
    let text = map_file(file)?;
    let read: Peer = serde_json::from_slice((*text).as_ref())
        .map_err(|e| Error::file_help(file, e.to_string(), "give what a script of benches/peers wrote"))?;
    Ok(read.rows.into_iter().filter_map(|r| Some((r.key, r.ns?))).collect())
}

impl Problem {
    /// The key of the problem on the command line and in a peer's file.
    pub fn key(&self) -> String {
        format!("{}/{}", self.family, self.title())
    }
    fn json(&self) -> serde_json::Value {
        let mut v = serde_json::to_value(self).unwrap_or_default();
        if let Some(o) = v.as_object_mut() {
            o.insert("key".into(), self.key().into());
        }
        v
    }
    /// Whether matrix units can do its arithmetic.
    fn on_matrix_units(&self) -> bool {
        let product = ["product", "conv", "attention"].contains(&self.family.as_str());
        product && self.dtype() == DType::F16
    }
}
