//! Measures which schedules of kernels are fastest on a device.
//!
//! [`tune`] takes the kernels of a fused model one after another, those that move the most bytes first. For each it times
//! the schedules with the best estimates. They run in turns, so that a drift of the clock affects all of them alike, on sets
//! of inputs that together exceed the device's caches. A schedule whose results differ from those of the compiler's choice
//! is dropped. The fastest one is timed again against the compiler's choice, and replaces it if it is clearly faster.

use crate::model::device_error;
use crate::{Error, Options, Tensor, random};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wgfc_compiler::kernel::Family;
use wgfc_compiler::pipeline::Fused;
use wgfc_compiler::schedule::Schedule;
use wgfc_compiler::timings;
use wgfc_compiler::tuning::{Single, Tunable, Values, complete, tunable};
use wgfc_ir::program::Port;
use wgfc_ir::{Class, DType, Scalar};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::{SessionOptions, Value};
use wgfc_runtime::stats::Estimate;
use wgfc_runtime::trial::Trial;
use wgfc_runtime::{DeviceTensor, Gpu, RunError, Session};

/// Limits and inputs of the measurements.
///
/// ```
/// use std::time::Duration;
/// use wgfc::tune::TuneOptions;
/// let options = TuneOptions { budget: Duration::from_secs(10), ..TuneOptions::default() };
/// assert_eq!(options.most, 12);
/// ```
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The time after which no further kernel is measured.
    pub budget: Duration,
    /// The number of schedules of a kernel that are timed, if it has that many. Others within `FACTOR` of the best estimate
    /// are timed too, and two of each form.
    pub most: usize,
    /// The values of symbols during measurements. Missing ones are the compilation's expected values, else 64.
    pub values: Values,
}

impl Default for TuneOptions {
    /// Two minutes and 12 schedules.
    fn default() -> TuneOptions {
        TuneOptions { budget: Duration::from_secs(120), most: 12, values: Values::new() }
    }
}

/// Schedules whose estimate is within this factor of the best one are timed too.
const FACTOR: f64 = 1.15;
/// A schedule replaces the compiler's choice if it takes at most this share of its time.
const CLEARLY: f64 = 0.97;
/// The seconds for which a device is kept busy before measurements, so that its clock rises.
const WARM_UP: f64 = 0.3;
/// The rounds in which all schedules are timed, and those of the fastest one against the compiler's choice.
const ROUNDS: usize = 3;
const FINAL_ROUNDS: usize = 7;
/// The rounds before which only an [`ABSURD`] schedule is given up. An H100 took three times as long in single passes of a few milliseconds.
const TRIALS: usize = 2;
/// The rounds on a software adapter, and those before which only an [`ABSURD`] schedule is given up: other processes disturb its times.
const SOFTWARE_ROUNDS: usize = 8;
const SOFTWARE_TRIALS: usize = 4;
/// A schedule whose shortest time is longer than that of the fastest by this factor is not timed again, and one by the second factor at once.
const HOPELESS: f64 = 1.3;
const ABSURD: f64 = 8.0;

/// A schedule and its time. See the example of [`tune`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Timed {
    /// The schedule.
    pub choice: Schedule,
    /// Nanoseconds per dispatch: the median of several times, on software adapters the shortest, as other processes only
    /// add to it.
    pub ns: f64,
    /// The number of times that were taken.
    pub rounds: u32,
    /// The difference of the longest and the shortest of these, divided by `ns`.
    pub spread: f64,
}

/// A kernel that was measured. See the example of [`tune`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Measured {
    /// The kernel, with its possible schedules.
    pub tunable: Tunable,
    /// The name of one of the model's nodes that it computes.
    pub node: String,
    /// The compiler's choice.
    pub own: Timed,
    /// The fastest schedule; the compiler's choice if none is clearly faster.
    pub best: Timed,
    /// All schedules that were timed, fastest first, most of them only a few times.
    pub tried: Vec<Timed>,
    /// Schedules for which the same kernel text is emitted as for another one, each with the one that was timed.
    pub same: Vec<(Schedule, Schedule)>,
    /// The schedules that are not used, with the reasons.
    pub refused: Vec<Refused>,
}

/// A schedule that the device refused, or with which a kernel computed something else.
///
/// ```
/// fn print(all: &[wgfc::tune::Refused]) {
///     for r in all {
///         println!("{} {}: {}", r.choice, if r.differs { "differs" } else { "is refused" }, r.why);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refused {
    /// The schedule.
    pub choice: Schedule,
    /// Whether the kernel ran, and its results differed.
    pub differs: bool,
    /// The device's message, or the first element that differs.
    pub why: String,
}

impl Measured {
    /// Whether another schedule than the compiler's choice is clearly faster.
    pub fn gains(&self) -> bool {
        self.best.choice != self.own.choice
    }
    /// All schedules whose time is known, fastest first, for a record of [`timings`].
    pub fn times(&self) -> Vec<timings::Timed> {
        let time = |schedule: Schedule, t: &Timed| timings::Timed {
            schedule,
            ns: t.ns,
            rounds: t.rounds,
            spread: t.spread,
        };
        let of = |t: &Timed| {
            let same = self.same.iter().filter(|s| s.1 == t.choice).map(|s| s.0.clone());
            std::iter::once(t.choice.clone()).chain(same).map(|s| time(s, t)).collect::<Vec<_>>()
        };
        self.tried.iter().flat_map(of).collect()
    }
    /// Its entry for a [`Cache`](crate::cache::Cache).
    pub fn entry(&self) -> (String, Option<Schedule>) {
        (self.tunable.key.clone(), self.gains().then(|| self.best.choice.clone()))
    }
}

/// The result of [`tune`]. See the example of [`tune`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Tuned {
    /// The kernels that were measured.
    pub measured: Vec<Measured>,
    /// The kernels that were not measured for lack of time or memory.
    pub left_out: Vec<Tunable>,
}

/// Measures the kernels of a model that was fused with `options` for this device. `known` says whether a key needs no
/// measurement; `progress` is called with the number of kernels done and of all.
///
/// # Errors
/// An error of the compiler or the device. A kernel for which the device lacks memory is left out instead.
///
/// ```no_run
/// use wgfc::tune::{TuneOptions, tune};
/// use wgfc::{Cache, ModelFile, Options};
/// # fn main() -> Result<(), wgfc::Error> {
/// # let gpu = wgfc::runtime::testing::gpus()[0].clone();
/// # let cache = Cache::at("cache".as_ref());
/// let options = Options::default();
/// let fused = ModelFile::open("model.onnx".as_ref())?.fuse_amended(&options, &mut |_| Ok(()))?;
/// let tuned = tune(&gpu, &fused, &options, &TuneOptions::default(), &|_| false, &|done, all| {
///     eprintln!("{done} of {all} kernels");
/// })?;
/// let entries = tuned.measured.iter().map(|m| m.entry()).collect();
/// cache.add_tuning(gpu.summary(), &entries)?;
/// # Ok(()) }
/// ```
pub fn tune(
    gpu: &Gpu,
    fused: &Fused,
    options: &Options,
    how: &TuneOptions,
    known: &dyn Fn(&str) -> bool,
    progress: &dyn Fn(usize, usize),
) -> Result<Tuned, Error> {
    let started = Instant::now();
    let how = &TuneOptions { values: complete(fused, &how.values, &options.expect)?, ..how.clone() };
    let all = tunable(fused, options, &how.values, how.most, FACTOR)?;
    let all: Vec<Tunable> = all.into_iter().filter(|t| !known(&t.key)).collect();
    let mut out = Tuned::default();
    let count = all.len();
    for (i, t) in all.into_iter().enumerate() {
        progress(i, count);
        if started.elapsed() >= how.budget {
            out.left_out.push(t);
            continue;
        }
        match measure(gpu, fused, options, how, &t)? {
            Some(m) => out.measured.push(m),
            None => out.left_out.push(t),
        }
    }
    progress(count, count);
    Ok(out)
}

/// A schedule that is ready to run on the device.
struct Runner {
    choice: Schedule,
    trial: Trial,
    times: Vec<f64>,
    /// Whether the shortest time counts instead of the median.
    shortest: bool,
}

impl Runner {
    fn time(&mut self, runs: u32) -> Result<(), Error> {
        self.times.push(self.trial.time_blocking(runs).map_err(device_error)?);
        Ok(())
    }
    /// The shortest time: what disturbs a device only adds to it.
    fn least(&self) -> f64 {
        self.times.iter().copied().fold(f64::INFINITY, f64::min)
    }
    fn ns(&self) -> f64 {
        match self.shortest {
            true => self.least(),
            false => Estimate::of(self.times.clone()).map_or(f64::INFINITY, |e| e.median),
        }
    }
    fn timed(&self) -> Timed {
        let ends = |f: fn(f64, f64) -> f64| self.times.iter().copied().reduce(f).unwrap_or(0.0);
        let (ns, rounds) = (self.ns(), self.times.len() as u32);
        Timed { choice: self.choice.clone(), ns, rounds, spread: (ends(f64::max) - ends(f64::min)) / ns }
    }
}

/// Measures one kernel; `None` if the device lacks the memory.
fn measure(
    gpu: &Gpu,
    fused: &Fused,
    options: &Options,
    how: &TuneOptions,
    t: &Tunable,
) -> Result<Option<Measured>, Error> {
    let mut singles: Vec<(Schedule, Single)> = vec![];
    let mut same = vec![];
    for c in &t.candidates {
        let single = Single::new(fused, options, t.kernel, c.choice.clone(), &how.values)?;
        let text = |s: &Single| -> Vec<_> {
            let of = |d: &wgfc_ir::program::Dispatch| {
                (s.program.kernels.get(d.kernel).map(|k| k.wgsl.clone()), d.workgroups.clone())
            };
            s.program.dispatches.iter().map(of).collect()
        };
        match singles.iter().find(|(_, s)| text(s) == text(&single)) {
            Some((other, _)) => same.push((c.choice.clone(), other.clone())),
            None => singles.push((c.choice.clone(), single)),
        }
    }
    let Some((own, first)) = singles.first() else { return Ok(None) };
    let own = own.clone();
    let kernel = fused.kernels.kernels.get(t.kernel);
    let rounded = kernel.is_some_and(|k| matches!(&k.family, Family::Matmul(m) if m.rounded));
    let sets = match sets(gpu, first) {
        Ok(sets) => sets,
        Err(e) if lacks_memory(&e) => return Ok(None),
        Err(e) => return Err(device_error(e)),
    };
    let software = gpu.summary().is_software;
    let mut refused = vec![];
    let mut runners: Vec<Runner> = vec![];
    let mut expected: Vec<Tensor> = vec![];
    for ((choice, _), made) in singles.iter().zip(trials(gpu, &singles, &sets)) {
        let trial = match made {
            Ok(t) => t,
            Err(e) if lacks_memory(&e) && runners.is_empty() => return Ok(None),
            Err(e @ RunError::DeviceLost(_)) => return Err(device_error(e)),
            Err(e) if runners.is_empty() => return Err(device_error(e)),
            Err(e) => {
                tracing::debug!("{}: {choice} is refused: {e}", t.title);
                refused.push(Refused { choice: choice.clone(), differs: false, why: e.to_string() });
                continue;
            }
        };
        let outputs = trial.outputs_blocking().map_err(device_error)?;
        if runners.is_empty() {
            expected = outputs;
        } else if let Some(why) = outputs.iter().zip(&expected).find_map(|(a, b)| difference(a, b, rounded)) {
            tracing::warn!("{}: {choice} computes something else than {own}: {why}", t.title);
            refused.push(Refused { choice: choice.clone(), differs: true, why });
            continue;
        }
        runners.push(Runner { choice: choice.clone(), trial, times: vec![], shortest: software });
    }
    // One pass is long enough for the clock's resolution and short enough not to freeze a screen.
    let pass_ns = if software { 3e6 } else { 4e6 };
    if !software {
        runners[0].trial.warm_up_blocking(WARM_UP).map_err(device_error)?;
    }
    let once = runners[0].trial.time_blocking(2).map_err(device_error)?;
    let runs = (pass_ns / once.max(1.0)).clamp(2.0, 400.0) as u32;
    let mut tried: HashMap<Schedule, Timed> = HashMap::new();
    let (rounds, trials) = if software { (SOFTWARE_ROUNDS, SOFTWARE_TRIALS) } else { (ROUNDS, TRIALS) };
    for round in 0..rounds {
        for r in &mut runners {
            if round == 0 {
                // The first run includes one-time costs.
                r.trial.time_blocking(2).map_err(device_error)?;
            }
            r.time(runs)?;
        }
        tried.extend(runners.iter().map(|r| (r.choice.clone(), r.timed())));
        let best = runners.iter().map(Runner::least).fold(f64::INFINITY, f64::min);
        let hopeless = if round + 1 >= trials { HOPELESS } else { ABSURD };
        runners.retain(|r| r.choice == own || r.least() <= best * hopeless);
    }
    let fastest = runners
        .iter()
        .min_by(|a, b| a.ns().total_cmp(&b.ns()))
        .map_or_else(|| own.clone(), |r| r.choice.clone());
    runners.retain(|r| r.choice == own || r.choice == fastest);
    // Shortest times would gain nothing by it.
    if fastest != own && !software {
        // The schedule is timed again, as the minimum of many noisy medians is biased.
        runners.iter_mut().for_each(|r| r.times.clear());
        for _ in 0..FINAL_ROUNDS {
            for r in &mut runners {
                r.time(runs)?;
            }
        }
        tried.extend(runners.iter().map(|r| (r.choice.clone(), r.timed())));
    }
    let timed = |c: &Schedule| runners.iter().find(|r| r.choice == *c).map(Runner::timed);
    let (Some(own), Some(fastest)) = (timed(&own), timed(&fastest)) else { return Ok(None) };
    let mut tried: Vec<Timed> = tried.into_values().collect();
    tried.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    let best = if fastest.ns <= own.ns * CLEARLY { fastest } else { own.clone() };
    let node = first.program.dispatches[0].nodes.first().cloned().unwrap_or_default();
    Ok(Some(Measured { tunable: t.clone(), node, own, best, tried, same, refused }))
}

fn lacks_memory(e: &RunError) -> bool {
    matches!(e, RunError::OutOfMemory { .. } | RunError::DoesNotFit { .. } | RunError::Limits { .. })
}

type Set = Vec<(String, DeviceTensor)>;

/// Inputs for a kernel, in enough sets to exceed the device's caches. Sets share the inputs that the previous kernel would
/// have just written, as these would be in the cache.
fn sets(gpu: &Gpu, single: &Single) -> Result<Vec<Set>, RunError> {
    let wanted: u64 = if gpu.summary().is_software { 16 << 20 } else { 256 << 20 };
    let tensors: Vec<Tensor> = single.program.inputs.iter().map(values).collect();
    let size = |t: &Tensor| t.bytes().map_or(0, |b| b.len() as u64);
    let cold: u64 = tensors.iter().zip(&single.cold).filter(|(_, c)| **c).map(|(t, _)| size(t)).sum();
    let copies = wanted.div_ceil(cold.max(1)).clamp(1, 32);
    let mut sets: Vec<Set> = vec![];
    for _ in 0..copies {
        let mut set = vec![];
        for (i, port) in single.program.inputs.iter().enumerate() {
            let tensor = match sets.first() {
                Some(first) if !single.cold[i] => first[i].1.clone(),
                _ => gpu.upload_blocking(&tensors[i])?,
            };
            set.push((port.name.clone(), tensor));
        }
        gpu.queue().submit([]);
        gpu.wait_blocking()?;
        sets.push(set);
        if cold == 0 {
            break;
        }
    }
    Ok(sets)
}

/// Random values that repeat with a fixed period. Integers that may be indices are 0, which is valid for every axis.
fn values(port: &Port) -> Tensor {
    const PERIOD: usize = 262_140;
    let n = port.shape.first().and_then(wgfc_ir::Dim::as_const).unwrap_or(0) as usize;
    let position = matches!(port.dtype.class(), Class::Int | Class::Uint) && port.dtype.bits() >= 32;
    let bytes = port.dtype.bytes_for(n);
    let pattern = match position {
        true => Tensor::zeros(port.dtype, vec![PERIOD.min(n)]),
        false => random::tensor(port.dtype, vec![PERIOD.min(n)], &port.name, 1),
    };
    let all = pattern.bytes().unwrap_or_default().iter().copied().cycle().take(bytes).collect();
    Tensor::new(port.dtype, vec![n], all).unwrap_or(pattern)
}

/// Compiles the schedules on all cores and binds them to the inputs.
fn trials(gpu: &Gpu, singles: &[(Schedule, Single)], sets: &[Set]) -> Vec<Result<Trial, RunError>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let worker = || {
        while let Some((i, (_, single))) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, singles.get(i)?)))
        {
            let made = trial(gpu, single, sets);
            if let Ok(mut d) = done.lock() {
                d.insert(i, made);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(singles.len());
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(worker);
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    let lost = || {
        let message = "a thread that compiles kernels panicked".to_owned();
        Err(RunError::Gpu { what: "compiling".to_owned(), message })
    };
    (0..singles.len()).map(|i| done.remove(&i).unwrap_or_else(lost)).collect()
}

fn trial(gpu: &Gpu, single: &Single, sets: &[Set]) -> Result<Trial, RunError> {
    // The kernels have just been compiled in this process, and all indices in the inputs are 0.
    let options = SessionOptions { checks: Checks::Trusted, ..SessionOptions::default() };
    let mut session = Session::with_options_blocking(gpu, &single.program, options)?;
    for (name, value) in &single.values {
        session.set_symbol(name, *value)?;
    }
    let sets: Vec<Vec<(&str, Value)>> = sets
        .iter()
        .map(|s| s.iter().map(|(n, t)| (n.as_str(), Value::Device(t.clone()))).collect())
        .collect();
    Trial::new_blocking(session, &sets)
}

/// How two outputs differ by more than the order of summation. They agree if the same elements are finite, and over these
/// ‖a − b‖ ≤ ε‖b‖. This holds for integers too, which may result from sums. Schedules of a product that may be `rounded` differ by
/// that rounding.
fn difference(a: &Tensor, b: &Tensor, rounded: bool) -> Option<String> {
    let narrow = a.dtype.is_float() && !matches!(a.dtype, DType::F32 | DType::F64);
    let epsilon = match (rounded, narrow) {
        (true, _) => 2e-2,
        (false, true) => 5e-3,
        (false, false) => 1e-4,
    };
    let numbers = |t: &Tensor| -> Option<Vec<f64>> {
        Some(match t.dtype {
            DType::F32 => t.to_f32s()?.into_iter().map(f64::from).collect(),
            _ => t.scalars()?.into_iter().map(Scalar::as_f64).collect(),
        })
    };
    let (Some(a), Some(b)) = (numbers(a), numbers(b)) else {
        return Some("an output has no numbers".to_owned());
    };
    if a.len() != b.len() {
        return Some(format!("an output has {} elements instead of {}", a.len(), b.len()));
    }
    let (mut distance, mut size, mut most) = (0.0, 0.0, (0.0, 0));
    for (i, (x, y)) in a.iter().copied().zip(b.iter().copied()).enumerate() {
        if x.is_finite() != y.is_finite() {
            return Some(format!("element {i} is {x} instead of {y}"));
        }
        if x.is_finite() {
            let apart = (x - y).abs();
            distance += apart * apart;
            size += y * y;
            if apart > most.0 {
                most = (apart, i);
            }
        }
    }
    let (distance, size) = (f64::sqrt(distance), f64::sqrt(size));
    (distance > epsilon * size).then(|| {
        let i = most.1;
        let relative = distance / size;
        format!("element {i} is {} instead of {}, and the relative error is {relative:.1e}", a[i], b[i])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_agree_up_to_rounding() {
        let differ = |a: &Tensor, b: &Tensor| difference(a, b, false).is_some();
        let t = |v: &[f32]| Tensor::from_f32(vec![v.len()], v);
        let b = t(&[1.0, -2.0, 3.0, 0.0]);
        assert!(!differ(&t(&[1.00001, -2.0, 3.0, 1e-5]), &b));
        assert!(differ(&t(&[1.01, -2.0, 3.0, 0.0]), &b));
        assert!(differ(&t(&[f32::NAN, -2.0, 3.0, 0.0]), &b));
        assert!(!differ(&t(&[f32::NAN, 1.0]), &t(&[f32::NAN, 1.0])));
        assert!(differ(&t(&[0.1]), &t(&[0.0])));
        assert!(!differ(&Tensor::from_i64(vec![1], &[3]), &Tensor::from_i64(vec![1], &[3])));
        assert!(differ(&Tensor::from_i64(vec![1], &[3]), &Tensor::from_i64(vec![1], &[4])));
        let key = |n: i64| Tensor::from_i64(vec![1], &[n << 32]);
        assert!(!differ(&key(1_000_000_001), &key(1_000_000_002)));
    }
}
