//! Compares the forms of a workload of one size, then times them.

use super::super::args::{BenchLoopsArgs, LoopForm};
use super::form_name;
use super::workloads::{Size, Steps, Workload};
use super::yardstick::{self, Output};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use wgfc::compiler::DeviceProfile;
use wgfc::compiler::import::{NoExternalData, import};
use wgfc::compiler::options::Technique;
use wgfc::ir::Scalar;
use wgfc::model::device_error;
use wgfc::runtime::kernel::Checks;
use wgfc::runtime::session::{SessionOptions, Value};
use wgfc::runtime::trial::Trial;
use wgfc::runtime::{Estimate, Gpu, Session};
use wgfc::{Error, Options, Tensor};

/// The shortest duration of a sample, and the most dispatches in it.
const SAMPLE: Duration = Duration::from_millis(30);
const MOST_DISPATCHES: usize = 20_000;
/// The duration of warm-up runs, as clocks rise under load.
const WARM: Duration = Duration::from_millis(300);
/// The relative difference up to which individuals agree.
const RELATIVE: f64 = 1e-4;
/// The share of individuals that must agree if a few may diverge.
const AGREE: f64 = 0.97;

/// The measurements of one form of a workload at one size, or the reason why there are none.
pub struct Row {
    pub workload: &'static Workload,
    pub size: Size,
    pub form: LoopForm,
    pub measured: Result<Measured, String>,
}

/// The measured times of one form of a simulation at one size.
pub struct Measured {
    pub dispatches: usize,
    /// The time from the model's bytes to the program; `None` if the program is hand-written.
    pub compiled: Option<Duration>,
    /// The time from the program to pipelines on the device.
    pub loaded: Duration,
    /// Nanoseconds per generation, by the host's clock and by the device's.
    pub wall_ns: Estimate,
    pub gpu_ns: Option<Estimate>,
    /// The share of individuals that agree with the first form.
    pub agree: f64,
    /// The share of individuals that agree with the evaluator.
    pub evaluator: Option<f64>,
    /// The mean of the first output.
    pub mean: f64,
}

impl Measured {
    /// Generations per second.
    pub fn per_second(&self) -> f64 {
        1e9 / self.wall_ns.median
    }
}

/// Compares and measures the forms. A form that is not supported gives a row with the reason.
///
/// # Errors
/// Forms that do not agree, or an error of the device.
pub fn all(
    gpu: &Gpu,
    w: &'static Workload,
    size: Size,
    forms: &[LoopForm],
    a: &BenchLoopsArgs,
) -> Result<Vec<Row>, Error> {
    let near = Size { steps: size.steps.min(w.horizon), ..size };
    let agreement = agreement(gpu, w, near, forms, a)?;
    let inputs = w.inputs(size, a.seed);
    let mut rows = vec![];
    for (form, agree) in forms.iter().zip(agreement) {
        let measured = match agree {
            Ok(agree) => match Ready::new(gpu, w, size, *form, &inputs, a) {
                Ok(ready) => ready.measure(agree, a).map(Ok).or_else(|e| reason(e).map(Err))?,
                Err(e) => Err(reason(e)?),
            },
            Err(reason) => Err(reason),
        };
        rows.push(Row { workload: w, size, form: *form, measured });
    }
    Ok(rows)
}

/// The reason why a form is not supported or too large for the device; other errors are returned.
fn reason(e: Error) -> Result<String, Error> {
    match e.class() {
        wgfc::ErrorClass::Device if crate::cli::kernels::is_too_large(&e) => {
            Ok(format!("too large: {}", e.to_string().lines().next().unwrap_or_default()))
        }
        wgfc::ErrorClass::Unsupported => Ok(e.to_string().lines().next().unwrap_or_default().to_owned()),
        _ => Err(e),
    }
}

/// The shares of individuals that agree with the first form and, if requested, with the evaluator; or the reason why there
/// are none.
type Agreement = Result<(f64, Option<f64>), String>;

fn agreement(
    gpu: &Gpu,
    w: &'static Workload,
    size: Size,
    forms: &[LoopForm],
    a: &BenchLoopsArgs,
) -> Result<Vec<Agreement>, Error> {
    let inputs = w.inputs(size, a.seed);
    let evaluated = if a.check { Some(evaluate(w, size, &inputs)?) } else { None };
    let mut first: Option<Tensor> = None;
    let mut out = vec![];
    for form in forms {
        let got = match Ready::new(gpu, w, size, *form, &inputs, a) {
            Ok(ready) => ready.first_output()?,
            Err(e) => {
                out.push(Err(reason(e)?));
                continue;
            }
        };
        let share = first.as_ref().map_or(1.0, |f| same(&got, f, RELATIVE));
        let evaluator = evaluated.as_ref().and_then(|e| Some(same(&got, e.first()?, RELATIVE)));
        let least = if w.horizon == usize::MAX { 1.0 } else { AGREE };
        if share.min(evaluator.unwrap_or(1.0)) < least {
            return Err(Error::Internal(format!(
                "{} ({}): after {} steps only {:.1}% of the individuals agree",
                w.name,
                form_name(*form),
                size.steps,
                100.0 * share.min(evaluator.unwrap_or(1.0))
            )));
        }
        first.get_or_insert(got);
        out.push(Ok((share, evaluator)));
    }
    Ok(out)
}

fn evaluate(w: &Workload, size: Size, inputs: &[(&str, Tensor)]) -> Result<Vec<Tensor>, Error> {
    let (dims, values) = w.fixed(size);
    let graph = import(w.model, &NoExternalData, &Options { dims, values, ..Options::default() })?.graph;
    let inputs: BTreeMap<String, Tensor> = inputs.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    wgfc::ir::eval::evaluate(&graph, &inputs)
        .map_err(|e| Error::usage(format!("{} cannot be evaluated: {e}", w.name), "leave --check out"))
}

/// The share of rows in which all elements differ by at most `relative` times the row's largest magnitude, or 1e-3 if that
/// is larger.
fn same(a: &Tensor, b: &Tensor, relative: f64) -> f64 {
    let numbers = |t: &Tensor| -> Vec<f64> {
        t.scalars().unwrap_or_default().into_iter().map(Scalar::as_f64).collect()
    };
    let (x, y) = (numbers(a), numbers(b));
    let rows = b.shape.first().copied().unwrap_or(0).max(1);
    let columns = (y.len() / rows).max(1);
    if a.shape != b.shape {
        return 0.0;
    }
    let alike = |(x, y): &(&[f64], &[f64])| {
        let largest = y.iter().fold(1e-3, |most: f64, v| most.max(v.abs()));
        x.iter().zip(*y).all(|(x, y)| (x - y).abs() <= relative * largest)
    };
    x.chunks(columns).zip(y.chunks(columns)).filter(alike).count() as f64 / rows as f64
}

/// A form that is ready to run on the device.
struct Ready {
    trial: Trial,
    /// The dispatches of a generation, including repetitions.
    dispatches: usize,
    compiled: Option<Duration>,
    loaded: Duration,
}

impl Ready {
    fn new(
        gpu: &Gpu,
        w: &Workload,
        size: Size,
        form: LoopForm,
        inputs: &[(&str, Tensor)],
        a: &BenchLoopsArgs,
    ) -> Result<Ready, Error> {
        let start = Instant::now();
        let program = match form {
            LoopForm::ByHand => yardstick::program(w, size, inputs, &outputs(w, size)?),
            form => wgfc::compile(w.model, &options(gpu, w, size, form, a.symbolic))?,
        };
        let compiled = (form != LoopForm::ByHand).then(|| start.elapsed());
        let start = Instant::now();
        // Both kinds of programs come from wgfc itself.
        let how = SessionOptions { checks: Checks::Trusted, ..SessionOptions::default() };
        let session = Session::with_options_blocking(gpu, &program, how).map_err(device_error)?;
        let loaded = start.elapsed();
        let inputs = inputs.iter().map(|(n, t)| (*n, Value::Host(t.clone()))).collect();
        let trial = Trial::new_blocking(session, &[inputs]).map_err(device_error)?;
        let extents = w.fixed(size).0;
        let times = |i: usize| program.times(i).eval_syms(&|s| extents.get(s).copied()).unwrap_or(1);
        let dispatches = (0..program.dispatches.len()).map(times).sum::<i64>() as usize;
        Ok(Ready { trial, dispatches, compiled, loaded })
    }

    fn first_output(&self) -> Result<Tensor, Error> {
        let outputs = self.trial.outputs_blocking().map_err(device_error)?;
        outputs.into_iter().next().ok_or_else(|| Error::Internal("a workload without outputs".into()))
    }

    /// The nanoseconds per generation by the host's clock and by the device's, for `n` generations in one submission.
    fn sample(&self, n: u32) -> Result<(f64, f64), Error> {
        let start = Instant::now();
        let gpu = self.trial.time_blocking(n).map_err(device_error)?;
        Ok((start.elapsed().as_nanos() as f64 / f64::from(n), gpu))
    }

    fn measure(&self, (agree, evaluator): (f64, Option<f64>), a: &BenchLoopsArgs) -> Result<Measured, Error> {
        let output = self.first_output()?.scalars().unwrap_or_default();
        let mean = output.iter().map(|s| s.as_f64()).sum::<f64>() / output.len().max(1) as f64;
        let warm = Instant::now();
        let mut one = self.sample(1)?.0;
        while warm.elapsed() < WARM {
            one = one.min(self.sample(1)?.0);
        }
        let most = (MOST_DISPATCHES / self.dispatches.max(1)).max(1) as f64;
        let n = (SAMPLE.as_nanos() as f64 / one).ceil().clamp(1.0, most.min(1000.0)) as u32;
        let samples: Vec<(f64, f64)> = (0..a.runs).map(|_| self.sample(n)).collect::<Result<_, _>>()?;
        let estimate =
            |v: Vec<f64>| Estimate::of(v).ok_or_else(|| Error::Internal("a workload without samples".into()));
        Ok(Measured {
            dispatches: self.dispatches,
            compiled: self.compiled,
            loaded: self.loaded,
            wall_ns: estimate(samples.iter().map(|s| s.0).collect())?,
            gpu_ns: if self.trial.has_clock() {
                Some(estimate(samples.iter().map(|s| s.1).collect())?)
            } else {
                None
            },
            agree,
            evaluator,
            mean,
        })
    }
}

fn options(gpu: &Gpu, w: &Workload, size: Size, form: LoopForm, symbolic: bool) -> Options {
    let (mut dims, values) = w.fixed(size);
    if symbolic {
        dims.retain(|n, _| w.steps == Steps::Extent && n == "steps");
    }
    let without = match form {
        LoopForm::Split => BTreeSet::from([Technique::Loops]),
        _ => BTreeSet::new(),
    };
    let profile = DeviceProfile::default().with_limits(gpu.profile());
    Options { dims, values, without, profile, ..Options::default() }
}

/// The names, types and shapes of the outputs.
fn outputs(w: &Workload, size: Size) -> Result<Vec<Output>, Error> {
    let (dims, values) = w.fixed(size);
    let graph = import(w.model, &NoExternalData, &Options { dims, values, ..Options::default() })?.graph;
    let extent = |d: &wgfc::ir::Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
    let one = |o: &wgfc::ir::graph::Border| {
        let ty = graph.ty(o.value);
        let shape = ty.shape.iter().map(extent).collect::<Option<Vec<_>>>();
        let shape = shape.ok_or_else(|| Error::Internal(format!("{}: an output of unknown size", w.name)))?;
        Ok(Output { name: o.name.to_string(), dtype: ty.dtype, shape })
    };
    graph.outputs.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workloads::WORKLOADS;
    use super::*;

    #[test]
    fn yardsticks_are_the_graphs() {
        for w in &WORKLOADS {
            for gpu in wgfc::runtime::testing::gpus() {
                for (population, steps) in [(37, 1), (5, 8), (3, 13)] {
                    let size = Size { population, steps, dims: 301 };
                    let inputs = w.inputs(size, 3);
                    let p = yardstick::program(w, size, &inputs, &outputs(w, size).unwrap());
                    let mut session = Session::new_blocking(gpu, &p).unwrap();
                    let got = session.run_blocking(&inputs).unwrap();
                    for ((name, got), want) in got.iter().zip(&evaluate(w, size, &inputs).unwrap()) {
                        let at = format!("{} of {size:?}, {name}, on {}", w.name, gpu.summary().name);
                        // WGSL allows an error of 2^-11 for a sine.
                        assert_eq!(same(got, want, 1e-3), 1.0, "{at}");
                    }
                }
            }
        }
    }
}
