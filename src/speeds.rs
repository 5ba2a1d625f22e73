//! The speeds of a device: measured and kept in the [`Cache`], or assumed from the kind of the device.

use crate::cache::Cache;
use crate::model::device_error;
use crate::random;
use crate::{Error, Options};
use std::fmt;
use std::time::Instant;
use wgfc_compiler::device::Speeds;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{DeviceProfile, Diagnostic, Errors};
use wgfc_ir::build::Builder;
use wgfc_ir::graph::Border;
use wgfc_ir::program::Stats;
use wgfc_ir::{DType, Dim, Graph, TensorType};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::measure::{Measured, measure_blocking};
use wgfc_runtime::primitives::primitives_blocking;
use wgfc_runtime::session::{SessionOptions, Value};
use wgfc_runtime::stats::{Estimate, Majority};
use wgfc_runtime::together::together_blocking;
use wgfc_runtime::trial::Trial;
use wgfc_runtime::{AdapterSummary, Gpu, Session};

/// The origin of a device's speeds.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
/// use wgfc::speeds::{known, named};
/// // Without a cache, the speeds of a device of this kind are assumed.
/// let (source, speeds) = known(None, gpu.summary())?;
/// assert_eq!((source, speeds), named(gpu.summary()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The profile of this name, which describes a kind of device.
    Named(&'static str),
    /// Measured on the adapter of this name.
    Measured(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Named(name) => f.write_str(name),
            Source::Measured(adapter) => write!(f, "measured on {adapter}"),
        }
    }
}

/// The assumed speeds of an adapter, by its kind.
pub fn named(adapter: &AdapterSummary) -> (Source, Speeds) {
    let (name, speeds) = match adapter.kind.as_str() {
        _ if adapter.is_software && adapter.name.contains("SwiftShader") => {
            ("swiftshader", Speeds::SWIFTSHADER)
        }
        _ if adapter.is_software => ("software", Speeds::SOFTWARE),
        "discrete" => ("discrete", Speeds::DISCRETE),
        "integrated" => ("integrated", Speeds::INTEGRATED),
        _ => ("portable", Speeds::PORTABLE),
    };
    (Source::Named(name), speeds)
}

/// The measured speeds of an adapter, else the assumed ones of its kind ([`named`]).
///
/// # Errors
/// [`Error::File`] if the cached file cannot be read or is damaged. The caller may ignore it.
pub fn known(cache: Option<&Cache>, adapter: &AdapterSummary) -> Result<(Source, Speeds), Error> {
    let kept = cache.map(|c| c.speeds(adapter)).transpose()?.flatten();
    Ok(match kept {
        Some(speeds) => (Source::Measured(adapter.name.clone()), speeds),
        None => named(adapter),
    })
}

/// The share of the matrix units' rate that large products reach, by which the measured rate is divided: 233 of 448 TFLOP/s
/// on an H100.
const MATRIX_REACHED: f64 = 0.52;
/// The extents of the square f16 products that are timed for this rate, until one takes long.
const PRODUCTS: [usize; 3] = [1024, 2048, 4096];
/// The average time of a loop's operation as a share of the latency of a dependent multiply-add, as some operations do not
/// wait: 1.5 ns on an H100.
const WAITING: f64 = 0.65;

/// The speeds of a device as [`measure`] found them. See the example of [`measure`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Measurement {
    /// Each speed on which most of the passes agree, or their median.
    pub speeds: Speeds,
    /// Other results of the last pass.
    pub beside: Measured,
    /// The speeds of each pass.
    pub passes: Vec<Speeds>,
    /// The number of workgroups that ran side by side in each pass, which is about `cores`.
    pub side_by_side: Vec<f64>,
    /// The speeds that may be wrong, and why.
    pub doubts: Vec<String>,
}

/// The number of passes after which speeds that still disagree are left as they are.
const PASSES: usize = 5;
/// The seconds after which no third pass begins, on slow software adapters.
const ENOUGH: f64 = 10.0;
/// The largest ratio of the two measurements of the number of cores. They differ if the device's clock rate depends on its load.
const CORES_APART: f64 = 1.3;

/// Measures a device in two passes, which take some seconds, and in up to five until most of them agree. Passes the name of
/// each measurement to `progress`.
///
/// # Errors
/// An error of the device.
///
/// ```no_run
/// # fn main() -> Result<(), wgfc::Error> {
/// # let gpu = wgfc::runtime::testing::gpus()[0].clone();
/// let m = wgfc::speeds::measure(&gpu, &|what| eprintln!("{what} …"))?;
/// println!("{:.0} ns a dispatch", m.beside.dispatch_ns);
/// if let Some(cache) = wgfc::Cache::of_user() {
///     cache.keep_speeds(&gpu, m.speeds)?;
/// }
/// # Ok(()) }
/// ```
pub fn measure(gpu: &Gpu, progress: &dyn Fn(&str)) -> Result<Measurement, Error> {
    let begin = Instant::now();
    let (mut passes, mut side_by_side) = (vec![], vec![]);
    let mut products = Products { gpu, dtype: DType::F16, trials: vec![] };
    loop {
        let pass = pass(gpu, &mut products, passes.len() + 1, progress)?;
        passes.push(pass.speeds);
        side_by_side.push(pass.side_by_side);
        let (speeds, doubts) = agreement(&passes, &side_by_side);
        let slow = gpu.summary().is_software && begin.elapsed().as_secs_f64() > ENOUGH;
        if passes.len() >= PASSES || passes.len() >= 2 && (slow || doubts.is_empty()) {
            return Ok(Measurement { speeds, beside: pass.beside, passes, side_by_side, doubts });
        }
    }
}

/// The speeds on which most passes agree, and the speeds in doubt.
fn agreement(passes: &[Speeds], side_by_side: &[f64]) -> (Speeds, Vec<String>) {
    let mut speeds = passes.last().copied().unwrap_or(Speeds::PORTABLE);
    let mut doubts = vec![];
    for (i, (name, unit, value)) in fields(&mut speeds).into_iter().enumerate() {
        let samples: Vec<f64> = passes.iter().map(|p| *fields(&mut p.clone())[i].2).collect();
        let Some(m) = Majority::of(&samples) else { continue };
        *value = rounded(m.value);
        if !m.agree {
            let all: Vec<String> = samples.iter().map(|v| format!("{v:.3e}")).collect();
            let space = if unit.is_empty() { "" } else { " " };
            doubts.push(format!("{name} came out as {}{space}{unit}", all.join(", ")));
        }
    }
    // A core is that which executes workgroups of 256 invocations one after the other. So as many workgroups take as long as one,
    // and all cores together have so many times the rate of one.
    if let Some(beside) = Majority::of(side_by_side) {
        let apart = (beside.value / speeds.cores).max(speeds.cores / beside.value);
        if apart > CORES_APART {
            doubts.push(format!(
                "cores is {:.1} by the rates of one workgroup and of many, but {:.0} workgroups took as long as one",
                speeds.cores, beside.value
            ));
        }
    }
    (speeds, doubts)
}

/// The results of one pass.
struct Pass {
    speeds: Speeds,
    beside: Measured,
    side_by_side: f64,
}

fn pass(gpu: &Gpu, products: &mut Products, number: usize, progress: &dyn Fn(&str)) -> Result<Pass, Error> {
    let says = |what: &str| progress(&format!("{what} (pass {number})"));
    says("arithmetic, latencies, caches");
    let p = primitives_blocking(gpu).map_err(device_error)?;
    says("memory and dispatches");
    let m = measure_blocking(gpu).map_err(device_error)?;
    says("workgroups that wait for each other");
    let t = together_blocking(gpu).map_err(device_error)?;
    let f16 = p.flops_f16.unwrap_or(p.flops_f32);
    let limits = gpu.profile();
    let matrix = match limits.f16 && limits.cooperative_matrix {
        true => {
            says("matrix units");
            products.rate(&PRODUCTS)? / MATRIX_REACHED
        }
        false => f16,
    };
    let mut speeds = Speeds {
        bandwidth: m.copy_bytes_per_second,
        flops_f32: p.flops_f32,
        flops_f16: f16,
        flops_matrix: matrix,
        dispatch_cost: m.dispatch_ns * 1e-9,
        cores: p.cores,
        resident: p.resident,
        memory_latency: 1.0,
        operation: WAITING * p.operation_ns * 1e-9,
        barrier: p.barrier_ns * 1e-9,
        workgroup_bandwidth: p.workgroup_bytes_per_second,
        cache_bandwidth: p
            .cache_bytes_per_second
            .max(p.workgroup_bytes_per_second)
            .max(m.copy_bytes_per_second),
        resident_workgroups: f64::from(t.workgroups.max(1)),
        exchange: t.exchange_ns * 1e-9,
    };
    speeds.memory_latency = p.latency_ns * 1e-9 / speeds.cycle();
    for (_, _, v) in fields(&mut speeds) {
        *v = rounded(*v);
    }
    Ok(Pass { speeds, beside: m, side_by_side: p.side_by_side })
}

/// A measured value with four digits, as measurements are no more precise.
fn rounded(v: f64) -> f64 {
    format!("{:.3e}", v.clamp(1e-12, 1e18)).parse().unwrap_or(v)
}

/// The fields of speeds: name, unit and value.
///
/// ```
/// let mut speeds = wgfc::compiler::device::Speeds::PORTABLE;
/// for (name, unit, value) in wgfc::speeds::fields(&mut speeds) {
///     println!("{name}: {value} {unit}");
/// }
/// ```
pub fn fields(s: &mut Speeds) -> [(&'static str, &'static str, &mut f64); 14] {
    let Speeds {
        bandwidth,
        flops_f32,
        flops_f16,
        flops_matrix,
        dispatch_cost,
        cores,
        resident,
        memory_latency,
        operation,
        barrier,
        workgroup_bandwidth,
        cache_bandwidth,
        resident_workgroups,
        exchange,
    } = s;
    [
        ("bandwidth", "B/s", bandwidth),
        ("flops_f32", "FLOP/s", flops_f32),
        ("flops_f16", "FLOP/s", flops_f16),
        ("flops_matrix", "FLOP/s", flops_matrix),
        ("dispatch_cost", "s", dispatch_cost),
        ("cores", "", cores),
        ("resident", "", resident),
        ("memory_latency", "cycles", memory_latency),
        ("operation", "s", operation),
        ("barrier", "s", barrier),
        ("workgroup_bandwidth", "B/s", workgroup_bandwidth),
        ("cache_bandwidth", "B/s", cache_bandwidth),
        ("resident_workgroups", "", resident_workgroups),
        ("exchange", "s", exchange),
    ]
}

/// Square products of growing extents, which are compiled once.
struct Products<'g> {
    gpu: &'g Gpu,
    dtype: DType,
    trials: Vec<Trial>,
}

impl Products<'_> {
    /// The floating-point operations per second of the fastest of these products, with the kernels that the compiler generates.
    fn rate(&mut self, sizes: &[usize]) -> Result<f64, Error> {
        let mut best = 0.0f64;
        for (i, n) in sizes.iter().copied().enumerate() {
            if self.trials.len() <= i {
                self.trials.push(trial(self.gpu, self.dtype, n)?);
            }
            let mut times = vec![];
            for _ in 0..4 {
                times.push(self.trials[i].time_blocking(1).map_err(device_error)?);
            }
            times.remove(0);
            let ns = Estimate::of(times).map_or(0.0, |e| e.median).max(1.0);
            best = best.max(2.0 * (n as f64).powi(3) / (ns * 1e-9));
            // The next product takes eight times as long.
            if ns > 5e6 {
                break;
            }
        }
        Ok(best)
    }
}

/// A product of two square matrices, ready to be timed.
fn trial(gpu: &Gpu, dtype: DType, n: usize) -> Result<Trial, Error> {
    let internal = |m: String| Error::from(Errors::from(Diagnostic::internal(m)));
    let profile = DeviceProfile::default().with_limits(gpu.profile());
    let mut graph = Graph::new();
    let ty = TensorType::new(dtype, vec![Dim::from(n), Dim::from(n)]);
    let [a, b] = ["a", "b"].map(|name| graph.add_input(name, ty.clone()));
    let y = Builder::new(&mut graph, "product").matmul(a, b).map_err(internal)?;
    graph.outputs.push(Border { name: "y".into(), value: y });
    let options = Options { profile, ..Options::default() };
    let program = compile_graph(graph, Stats::default(), &options, &mut |_, _| {})?;
    let how = SessionOptions { checks: Checks::Trusted, ..SessionOptions::default() };
    let session = Session::with_options_blocking(gpu, &program, how).map_err(device_error)?;
    let tensor = |name| {
        let t = random::tensor(dtype, vec![n, n], name, 1);
        gpu.upload_blocking(&t).map(Value::Device).map_err(device_error)
    };
    let set = vec![("a", tensor("a")?), ("b", tensor("b")?)];
    Trial::new_blocking(session, &[set]).map_err(device_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_with_half_of_the_cores_is_outvoted() {
        let mut good =
            Speeds { cores: 128.6, flops_f32: 5.946e13, memory_latency: 598.2, ..Speeds::DISCRETE };
        // Measured speeds have four digits.
        fields(&mut good).into_iter().for_each(|(_, _, v)| *v = rounded(*v));
        let bad = Speeds { cores: 59.15, flops_f32: 5.768e13, memory_latency: 951.3, ..good };
        let (_, doubts) = agreement(&[bad, good], &[132.0, 132.0]);
        assert!(doubts[0].starts_with("cores came out as 5.915e1, 1.286e2"), "{doubts:?}");
        assert!(doubts[1].starts_with("memory_latency") && doubts.len() == 3, "{doubts:?}");
        let (speeds, doubts) = agreement(&[bad, good, good], &[132.0, 132.0, 132.0]);
        assert_eq!((speeds, doubts), (good, vec![]));
        // Passes that agree on the rate of one workgroup and not on how many run side by side.
        let (speeds, doubts) = agreement(&[bad, bad], &[132.0, 132.0]);
        assert_eq!((speeds, doubts.len()), (bad, 1));
        assert!(
            doubts[0].contains("59.1 by the rates") && doubts[0].contains("132 workgroups"),
            "{doubts:?}"
        );
    }

    #[test]
    fn what_is_measured_is_positive_and_found_again() {
        for gpu in wgfc_runtime::testing::gpus() {
            let dir = tempfile::tempdir().unwrap();
            let cache = Cache::at(dir.path());
            let adapter = gpu.summary();
            assert_eq!(known(Some(&cache), adapter).unwrap(), named(adapter));
            let m = measure(gpu, &|_| ()).unwrap();
            assert!(m.passes.len() >= 2 && m.passes.len() <= PASSES);
            let mut speeds = m.speeds;
            let mut products = Products { gpu, dtype: DType::F32, trials: vec![] };
            assert!(products.rate(&[33, 64]).unwrap() > 0.0);
            for (name, _, v) in fields(&mut speeds) {
                assert!(v.is_finite() && *v > 0.0, "{name} = {v} on {}", adapter.name);
            }
            cache.keep_speeds(gpu, speeds).unwrap();
            let (source, again) = known(Some(&cache), adapter).unwrap();
            assert_eq!((source.to_string(), again), (format!("measured on {}", adapter.name), speeds));
            let other = AdapterSummary { driver: "another".into(), ..adapter.clone() };
            assert_eq!(known(Some(&cache), &other).unwrap(), named(&other));
            assert_eq!(known(None, adapter).unwrap(), named(adapter));
            std::fs::write(cache.speeds_file(adapter), r#"{"version":1,"speeds":{"cores":0}}"#).unwrap();
            let e = known(Some(&cache), adapter).unwrap_err().to_string();
            assert!(e.contains("speeds.cores") && e.contains("ignored"), "{e}");
        }
    }
}
