//! Compiles a problem, compares its results with the evaluator's, and times it.

use super::list::{Operand, Problem};
use super::onnx;
use crate::cli::bench::WARM_UP;
use crate::cli::timings::recorded;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc::Problem as Trouble;
use wgfc::compiler::pipeline::{Fused, schedule};
use wgfc::compiler::timings::Problem as Recorded;
use wgfc::compiler::tuning::Values;
use wgfc::ir::eval::{Limits, evaluate_within};
use wgfc::model::device_error;
use wgfc::runtime::session::Value;
use wgfc::runtime::stats::Estimate;
use wgfc::runtime::trial::Trial;
use wgfc::runtime::{Gpu, Session};
use wgfc::tune::{Measured as TunedKernel, TuneOptions, tune};
use wgfc::{DType, Error, ModelFile, Options, Program, Tensor};
use wgfc::{memory, random};

/// The period of random values in large operands.
const PERIOD: usize = 1_000_003;
/// The number of samples of a time.
const SAMPLES: usize = 7;

/// A problem as a model with its inputs.
pub struct Model {
    pub file: ModelFile,
    pub bytes: Vec<u8>,
    pub inputs: Vec<(String, Tensor)>,
}

/// A kernel of a problem's program.
pub struct Kernel {
    pub family: String,
    pub schedule: String,
    /// Whether it is proven to stay inside its buffers and therefore runs without checks.
    pub proven: bool,
}

/// The measurements of a problem.
pub struct Measured {
    /// The time of all dispatches on the device, in nanoseconds.
    pub time: Estimate,
    pub dispatches: usize,
    pub kernels: Vec<Kernel>,
    /// The bytes that must be moved.
    pub bytes: u64,
    /// ‖a − b‖ / ‖b‖ against the evaluator, the larger one of the first and the last run; `None` if not requested.
    pub error: Option<f64>,
    /// The kernels for which other schedules were timed.
    pub tuned: Vec<TunedKernel>,
    /// These kernels with the times of all their schedules.
    pub recorded: Vec<Recorded>,
}

/// The evaluator's results; `None` if not requested.
pub type Expected = Option<Result<Vec<Tensor>, String>>;

impl Model {
    /// The model of a problem.
    pub fn of(p: &Problem) -> Result<Model, Error> {
        let operands = p.inputs.iter().chain(&p.weights);
        // The host, the evaluator and the device each hold a copy of the operands.
        let need =
            operands.fold(0u64, |n, o| n.saturating_add(random::cost(o.dtype, &o.shape).saturating_mul(2)));
        memory::afford(need).map_err(|e| Error::Device(Trouble::new(format!("its operands: it {e}"))))?;
        let made = onnx::model(p, &|o| tensor(o, scale(o)));
        let made = made.map_err(|e| Error::Internal(format!("the list of kernels, {}: {e}", p.title())))?;
        let bytes = made.encode_to_vec();
        let inputs = p.inputs.iter().map(|o| (o.name.clone(), tensor(o, 1.0))).collect();
        Ok(Model { file: ModelFile::of_bytes(Arc::new(bytes.clone())), bytes, inputs })
    }

    /// The evaluator's results.
    pub fn evaluate(&self) -> Result<Vec<Tensor>, String> {
        let graph = self.file.import(&Options::default()).map_err(|e| e.to_string())?.graph;
        let inputs: BTreeMap<String, Tensor> = self.inputs.iter().cloned().collect();
        let limits = Limits { bytes: memory::available(), ..Limits::default() };
        evaluate_within(&graph, &inputs, limits).map_err(|e| e.to_string())
    }
}

/// The scale of random weights with which results keep the order of magnitude of the inputs.
fn scale(o: &Operand) -> f32 {
    match o.shape.len() {
        0 | 1 => 1.0,
        _ => (o.shape[1..].iter().product::<usize>().max(1) as f32).sqrt().recip(),
    }
}

fn tensor(o: &Operand, scale: f32) -> Tensor {
    let n: usize = o.shape.iter().product();
    let few = vec![n.min(PERIOD)];
    let pattern = match o.below {
        Some(limit) => {
            let mut rng = random::Rng::new(1, &o.name);
            Tensor::generate(o.dtype, few, |_| {
                wgfc::ir::Scalar::from_i64(o.dtype, (rng.bits() % limit.max(1)) as i64)
            })
        }
        // Packed weights of fewer bits, for which every bit pattern is valid.
        None if o.dtype == DType::U8 => {
            let mut rng = random::Rng::new(1, &o.name);
            Tensor::generate(o.dtype, few, |_| wgfc::ir::Scalar::from_i64(o.dtype, (rng.bits() & 255) as i64))
        }
        None => scaled(random::tensor(o.dtype, few, &o.name, 1), scale),
    };
    let (bytes, once) = (o.dtype.bytes_for(n), pattern.bytes().unwrap_or_default());
    let mut all = once.repeat(bytes / once.len().max(1) + 1);
    all.truncate(bytes);
    Tensor::new(o.dtype, o.shape.clone(), all).unwrap_or(pattern)
}

fn scaled(t: Tensor, by: f32) -> Tensor {
    if by == 1.0 || !t.dtype.is_float() {
        return t;
    }
    let values = t.scalars().unwrap_or_default();
    Tensor::generate(t.dtype, t.shape.clone(), |i| {
        let v = values.get(i).map_or(0.0, |v| v.as_f64());
        wgfc::ir::Scalar::from_f64(t.dtype, v * f64::from(by))
    })
}

/// Options of the measurement.
pub struct How<'a> {
    pub gpu: &'a Gpu,
    pub options: &'a Options,
    /// The approximate duration of a sample in nanoseconds.
    pub sample: f64,
    /// The number of further schedules that are timed for each kernel; `None` for none.
    pub tune: Option<usize>,
}

/// Compiles, runs and times a problem, and compares its results.
pub fn measure(
    p: &Problem,
    m: &Model,
    how: &How<'_>,
    expected: &mut dyn FnMut() -> Expected,
) -> Result<Measured, Error> {
    let fused = m.file.fuse_amended(how.options, &mut |_| Ok(()))?;
    let program = m.file.compile(how.options)?;
    let kernels = kernels(&fused, &program, how.options)?;
    let mut session = Session::new_blocking(how.gpu, &program).map_err(device_error)?;
    let mut set = vec![];
    for (name, t) in &m.inputs {
        // Inputs that the program does not read are not bound.
        if program.inputs.iter().any(|i| i.name == *name) {
            let on_device = how.gpu.upload_blocking(t).map_err(device_error)?;
            set.push((name.as_str(), Value::Device(on_device)));
        }
    }
    // An output whose size is computed has its actual length here, not that of its buffer.
    let outputs: Vec<Tensor> =
        session.run_values_blocking(&set, None).map_err(device_error)?.into_iter().map(|(_, t)| t).collect();
    let trial = Trial::new_blocking(session, &[set]).map_err(device_error)?;
    let moved = |all: &[(String, Tensor)]| -> u64 {
        all.iter().map(|(_, t)| t.bytes().map_or(0, |b| b.len() as u64)).sum()
    };
    let weights: u64 = p.weights.iter().map(|o| o.dtype.bytes_for(o.shape.iter().product()) as u64).sum();
    let results: u64 = outputs.iter().map(|t| t.bytes().map_or(0, |b| b.len() as u64)).sum();
    let bytes = p.bytes.unwrap_or(moved(&m.inputs) + weights + results);
    if !how.gpu.summary().is_software {
        trial.warm_up_blocking(WARM_UP).map_err(device_error)?;
    }
    let once = trial.time_blocking(1).map_err(device_error)?;
    let once = trial.time_blocking(2).map_err(device_error)?.min(once);
    let runs = (how.sample / once.max(1.0)).clamp(1.0, 200.0) as u32;
    let samples = if once > 10.0 * how.sample { 2 } else { SAMPLES };
    let times = (0..samples).map(|_| trial.time_blocking(runs)).collect::<Result<Vec<_>, _>>();
    let time = Estimate::of(times.map_err(device_error)?)
        .ok_or_else(|| Error::Internal("no time was taken".into()))?;
    let error = match expected() {
        None => None,
        Some(want) => {
            let want = want.map_err(|e| {
                match e.contains("the evaluator may use") || e.contains("there is no memory") {
                    true => Error::Device(Trouble::new(format!("the evaluator: {e}"))),
                    false => Error::usage(format!("{}: the evaluator: {e}", p.title()), "leave it out"),
                }
            })?;
            let first = compared(p, &outputs, &want)?;
            // A kernel that reads memory that it has not written may be correct in only one of the runs.
            let last = trial.outputs_blocking().map_err(device_error)?;
            let whole = last.iter().zip(&want).all(|(a, b)| a.shape == b.shape);
            Some(if whole { first.max(compared(p, &last, &want)?) } else { first })
        }
    };
    drop(trial);
    let tuned = match how.tune {
        None => vec![],
        Some(most) => {
            let options = TuneOptions { most, ..TuneOptions::default() };
            tune(how.gpu, &fused, how.options, &options, &|_| false, &|_, _| ())?.measured
        }
    };
    let recorded = recorded(&fused, how.options, &Values::new(), &tuned, Some(&p.key()))?;
    Ok(Measured { time, dispatches: program.dispatches.len(), kernels, bytes, error, tuned, recorded })
}

fn kernels(fused: &Fused, program: &Program, options: &Options) -> Result<Vec<Kernel>, Error> {
    let scheduled = schedule(fused.kernels.clone(), options)?;
    let one = |(i, d): (usize, &wgfc::ir::program::Dispatch)| Kernel {
        family: wgfc::inspect::family(program, i).to_owned(),
        schedule: scheduled.schedules.get(i).map_or(String::new(), |s| s.to_string()),
        proven: program.proof.is_in_bounds(d.kernel),
    };
    Ok(program.dispatches.iter().enumerate().map(one).collect())
}

/// The largest ‖a − b‖ / ‖b‖ of all outputs; an error if one exceeds the tolerance.
fn compared(p: &Problem, got: &[Tensor], want: &[Tensor]) -> Result<f64, Error> {
    let allowed = p.tolerance.unwrap_or(match p.dtype() {
        DType::F32 | DType::F64 => 1e-4,
        t if t.is_float() => 5e-3,
        _ => 0.0,
    });
    let mut most = 0f64;
    for (a, b) in got.iter().zip(want) {
        let e = difference(a, b);
        // Integers and booleans must be equal, even if they result from comparing floats.
        let limit = if b.dtype.is_float() { allowed } else { 0.0 };
        if a.shape != b.shape || e.is_nan() || e > limit {
            return Err(Error::Internal(format!(
                "{}: ‖a − b‖ / ‖b‖ = {e:.1e} against the reference evaluator, where {limit:.0e} is allowed",
                p.title()
            )));
        }
        most = most.max(e);
    }
    Ok(most)
}

/// ‖a − b‖ / ‖b‖ over finite elements; NaN if lengths differ or not the same elements are finite.
fn difference(a: &Tensor, b: &Tensor) -> f64 {
    let numbers = |t: &Tensor| -> Vec<f64> {
        match t.dtype {
            DType::F32 => t.to_f32s().unwrap_or_default().into_iter().map(f64::from).collect(),
            _ => t.scalars().unwrap_or_default().into_iter().map(wgfc::ir::Scalar::as_f64).collect(),
        }
    };
    let (mut off, mut size) = (0.0, 0.0);
    let (a, b) = (numbers(a), numbers(b));
    if a.len() != b.len() {
        return f64::NAN;
    }
    for (x, y) in a.into_iter().zip(b) {
        if x.is_finite() != y.is_finite() {
            return f64::NAN;
        }
        if y.is_finite() {
            off += (x - y) * (x - y);
            size += y * y;
        }
    }
    if off == 0.0 { 0.0 } else { (off / f64::max(size, f64::MIN_POSITIVE)).sqrt() }
}
