//! From which size of an axis on the device is faster than the processor.

use super::adapter;
use super::args::{CacheArgs, InspectArgs};
use super::device_cache::DeviceCache;
use super::inputs::random_inputs;
use super::terminal::Terminal;
use super::{is_program, shown, some_of};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use wgfc::compiler::DeviceProfile;
use wgfc::inspect::{table, time_text};
use wgfc::runtime::stats::Estimate;
use wgfc::{Error, Model, ModelFile, Options};

/// The sizes that are tried, until it is clear which is faster.
const SIZES: [usize; 9] = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536];
/// A run of the processor that takes longer ends the series.
const LONG: Duration = Duration::from_secs(2);
/// The runs of each size. The first ones wait for memory.
const RUNS: usize = 20;
const FIRST: usize = 2;

/// The times of runs of one size that are waited for, in seconds.
pub struct Point {
    pub size: usize,
    pub device: Vec<f64>,
    pub processor: Vec<f64>,
}

impl Point {
    /// Whether the device's median is the smaller one.
    pub fn device_is_faster(&self) -> bool {
        let median = |v: &[f64]| Estimate::of(v.to_vec()).map_or(f64::INFINITY, |e| e.median);
        median(&self.device) < median(&self.processor)
    }
}

/// The first size from which on the device is faster at all that were measured.
pub fn from(points: &[Point]) -> Option<usize> {
    let slower = points.iter().rposition(|p| !p.device_is_faster()).map_or(0, |at| at + 1);
    points.get(slower).map(|p| p.size)
}

/// Measures a model whose sizes depend on one name.
pub fn points(
    models: &mut [Model; 2],
    name: &str,
    sizes: &[usize],
    runs: usize,
    mut more: impl FnMut(&[Point]) -> bool,
) -> Result<Vec<Point>, Error> {
    let mut out = vec![];
    for size in sizes {
        let value = |symbol: &str| (symbol == name).then_some(*size as i64);
        let inputs = random_inputs(&models[0], &value);
        let time = |model: &mut Model| {
            let mut times = vec![];
            while times.len() < runs + FIRST {
                let started = Instant::now();
                model.run(&inputs)?;
                times.push(started.elapsed().as_secs_f64());
                if times.len() > FIRST && started.elapsed() > LONG {
                    break;
                }
            }
            Ok::<_, Error>(times.split_off(FIRST))
        };
        let [device, processor] = models;
        out.push(Point { size: *size, device: time(device)?, processor: time(processor)? });
        if !more(&out) {
            break;
        }
    }
    Ok(out)
}

/// Whether larger sizes are worth a measurement: until the device was faster at two, or a run takes long.
fn undecided(points: &[Point]) -> bool {
    let long = points.last().is_some_and(|p| p.processor.iter().any(|s| *s > LONG.as_secs_f64()));
    let faster = points.iter().rev().take_while(|p| p.device_is_faster()).count();
    !long && faster < 2
}

/// `wgfc inspect MODEL --crossover DIM`: measures, and advises.
pub fn main(a: &InspectArgs, name: &str, options: &Options, t: &Terminal) -> Result<(), Error> {
    if is_program(&a.model) {
        return Err(Error::usage(
            "the processor runs models, not compiled programs",
            "give the model that it was compiled from",
        ));
    }
    let mut file = ModelFile::open(&a.model)?;
    // The shapes are known without weights, and which files are missing only after they have been looked up.
    let shapes = Model::on_cpu(&file, &Options { graph_only: true, ..options.clone() })?;
    let symbols: BTreeSet<String> = shapes
        .inputs()
        .iter()
        .flat_map(|p| &p.shape)
        .flat_map(|d| d.symbols())
        .map(|s| s.to_string())
        .collect();
    if !symbols.contains(name) {
        let all: Vec<String> = symbols.into_iter().collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        return Err(Error::usage(
            format!("no input of the model has a dimension `{name}`"),
            format!("its symbolic dimensions: {all}"),
        ));
    }
    for other in symbols.iter().filter(|s| *s != name) {
        t.note(&format!("{other} is taken as 1; give another value with --dim {other}=VALUE"));
    }
    let gpu = adapter::open(&a.adapter, t)?;
    let cache = DeviceCache::open(&CacheArgs::default(), &gpu, t);
    let profile = DeviceProfile { speeds: cache.speeds, ..DeviceProfile::default() };
    let mut options = Options {
        profile: profile.with_limits(gpu.profile()),
        tuning: cache.tuning.clone(),
        ..options.clone()
    };
    options.dims.extend(symbols.into_iter().filter(|s| s != name).map(|s| (s, 1)));
    let bar = t.spinner(format!("compiling {}", shown(&a.model)));
    let device = match Model::compile_for(gpu.clone(), &file, &options) {
        Err(_) if !file.missing().is_empty() => {
            t.note(&format!("{} is missing: the weights are random", some_of(&file.missing())));
            file = file.with_random_weights()?;
            Model::compile_for(gpu.clone(), &file, &options)?
        }
        other => other?,
    };
    let mut models = [device, Model::on_cpu(&file, &options)?];
    drop(bar);
    let bar = t.bar("measuring".into(), SIZES.len() as u64, false);
    let points = points(&mut models, name, &SIZES, RUNS, |points| {
        bar.at(points.len() as u64);
        undecided(points)
    })?;
    drop(bar);
    cache.save(t);
    let from = from(&points);
    let advice = advice(&points, from, name, &gpu.summary().name);
    if t.json {
        let point = |p: &Point| serde_json::json!({ "size": p.size, "device_s": p.device, "processor_s": p.processor });
        t.print_json(&serde_json::json!({
            "adapter": gpu.summary().name, "dimension": name, "points": points.iter().map(point).collect::<Vec<_>>(),
            "device_is_faster_from": from, "advice": advice,
        }));
        return Ok(());
    }
    let mut rows = vec![[name, "device", "processor", "device is faster by"].map(String::from).to_vec()];
    for p in &points {
        let median = |v: &[f64]| Estimate::of(v.to_vec()).map_or(0.0, |e| e.median);
        let (device, processor) = (median(&p.device), median(&p.processor));
        let factor = format!("{:.2}", processor / device.max(1e-12));
        rows.push(vec![p.size.to_string(), time_text(device), time_text(processor), factor]);
    }
    t.print(&format!("{}\n\n{}\n{advice}\n", shown(&a.model), table(&rows, &[true, true, true, true])));
    Ok(())
}

/// A sentence for people.
fn advice(points: &[Point], from: Option<usize>, name: &str, adapter: &str) -> String {
    let last = points.last().map_or(0, |p| p.size);
    match from {
        Some(1) => format!("On {adapter} the device is faster at every {name} from 1 to {last}."),
        Some(size) => format!(
            "On {adapter} the processor is faster below a {name} of {size}: `wgfc run --cpu`, or `Model::on_cpu` of the library, \
             the reference evaluator, which uses one core for most operators."
        ),
        None => format!("On {adapter} the processor is faster at every {name} up to {last}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_the_first_of_an_unbroken_series() {
        let point =
            |size, device, processor| Point { size, device: vec![device], processor: vec![processor] };
        let mixed = [
            point(1, 2.0, 1.0),
            point(4, 1.0, 2.0),
            point(16, 2.0, 1.0),
            point(64, 1.0, 2.0),
            point(256, 1.0, 9.0),
        ];
        assert_eq!(from(&mixed), Some(64));
        assert_eq!(from(&mixed[..1]), None);
        assert_eq!(from(&mixed[3..]), Some(64));
        assert!(undecided(&mixed[..4]) && !undecided(&mixed) && !undecided(&[point(1, 9.0, 3.0)]));
        assert!(advice(&mixed, Some(64), "batch", "a device").contains("below a batch of 64"));
        assert!(advice(&mixed[..1], None, "batch", "a device").contains("up to 1."));
    }
}
