//! The subjects of a selftest: a model or a graph with its inputs.

use super::compare::{Tolerance, equal};
use super::failure::{Failure, run_session, session};
use prost::Message;
use std::collections::BTreeMap;
use wgfc_compiler::Tuning;
use wgfc_compiler::assemble::assemble;
use wgfc_compiler::import::onnx::ModelProto;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::pipeline::schedule;
use wgfc_compiler::pipeline::{Fused, fuse_graph};
use wgfc_compiler::tuning::{Values, complete, tunable};
use wgfc_compiler::{Diagnostic, Errors, Options};
use wgfc_ir::eval::{EvalError, Limits, evaluate_within};
use wgfc_ir::program::Stats;
use wgfc_ir::special::Error;
use wgfc_ir::testing::{Rng, Wide, bounded, towards};
use wgfc_ir::verify::verify;
use wgfc_ir::{DType, Graph, Program, Scalar, Tensor};
use wgfc_runtime::Gpu;

/// The model or graph that is compiled.
#[derive(Clone, Debug)]
pub enum Source {
    /// An ONNX model.
    Model(Box<ModelProto>),
    /// A graph of the core operators.
    Graph(Box<Graph>),
}

/// How results are compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rule {
    /// Integers may differ by one, and floats have a larger tolerance, because the operator rounds intermediate values.
    pub loose: bool,
    /// Elements are only moved, so that signs of zeros and subnormals must agree.
    pub moved: bool,
    /// Also requires ‖a − b‖ ≤ ‖b‖ / 1000, as all elements may be smaller than the absolute tolerance.
    pub tiny: bool,
    /// The bound of the error of floats, in place of the usual tolerance of their type.
    pub error: Option<Error>,
    /// Outputs are compared with results in real arithmetic, within bounds of the rounding errors.
    pub bounded: bool,
}

/// A model or a graph, with its inputs and the rule of comparison.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub source: Source,
    pub inputs: BTreeMap<String, Tensor>,
    pub rule: Rule,
}

/// The compiled program, and the results that it should give.
pub(crate) struct Prepared {
    pub program: Program,
    pub want: Vec<Tensor>,
}

/// The phase that a case is in, which is reported if it hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Compiler,
    Evaluator,
    Device,
}

/// Changes the evaluator's results, so that tests can check that differences are found.
pub type Fault = fn(&Graph, &mut [Tensor]);

/// The options of one attempt.
pub(crate) struct Attempt<'a> {
    pub options: &'a Options,
    /// The seed by which schedules are chosen at random; `None` for the compiler's own choice.
    pub cut: Option<u64>,
    pub fault: Option<Fault>,
    pub phase: &'a dyn Fn(Phase),
}

impl<'a> Attempt<'a> {
    /// An attempt with these compiler options and nothing else.
    pub fn new(options: &'a Options) -> Attempt<'a> {
        Attempt { options, cut: None, fault: None, phase: &|_| {} }
    }
}

/// The outcome of a subject that did not fail.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The largest relative error of an output in f32.
    Same(f64),
    /// The subject is refused as unsupported, for this reason.
    Refused(String),
}

/// The most work that a case may cost the evaluator, counted in elements computed and products summed.
pub(crate) const WORK: u64 = 1 << 24;

fn evaluated(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Tensor>, EvalError> {
    evaluate_within(graph, inputs, Limits { work: WORK, ..Limits::default() })
}

impl Subject {
    /// The graph, imported if the source is a model.
    pub fn graph(&self, options: &Options) -> Result<Graph, Failure> {
        Ok(match &self.source {
            Source::Model(m) => import(&m.encode_to_vec(), &NoExternalData, options)?.graph,
            Source::Graph(g) => (**g).clone(),
        })
    }

    /// Compiles and evaluates the subject.
    pub fn prepare(&self, a: &Attempt<'_>) -> Result<Prepared, Failure> {
        (a.phase)(Phase::Compiler);
        let graph = self.graph(a.options)?;
        (a.phase)(Phase::Evaluator);
        let mut want =
            evaluated(&graph, &self.inputs).map_err(|e| Failure::error(format!("evaluator: {e}")))?;
        if let Some(fault) = a.fault {
            fault(&graph, &mut want);
        }
        (a.phase)(Phase::Compiler);
        let program = program(graph, a.options, a.cut)?;
        Ok(Prepared { program, want })
    }

    /// Compares the device's results with the evaluator's.
    ///
    /// # Errors
    /// The difference or error.
    pub fn try_on(&self, gpu: &Gpu, a: &Attempt<'_>) -> Result<Outcome, Failure> {
        let prepared = match self.prepare(a) {
            Err(Failure::Unsupported(_, why)) => return Ok(Outcome::Refused(why)),
            other => other?,
        };
        (a.phase)(Phase::Device);
        let got = run_session(&mut session(gpu, &prepared.program)?, &self.inputs)?;
        if self.rule.bounded {
            (a.phase)(Phase::Evaluator);
            return within_bounds(&self.graph(a.options)?, &self.inputs, &got);
        }
        let compared = compare(&got, &prepared.want, self.rule);
        if let Err(Failure::Wrong(_)) = &compared {
            (a.phase)(Phase::Evaluator);
            if let Some(want) = self.unrounded(a, &prepared.want, &got) {
                return compare(&got, &want, self.rule).or(compared).map(Outcome::Same);
            }
        }
        compared.map(Outcome::Same)
    }

    /// The expected results, moved towards those of the device by at most the difference that rounding of f16 or bf16 nodes
    /// makes.
    fn unrounded(&self, a: &Attempt<'_>, want: &[Tensor], got: &[Tensor]) -> Option<Vec<Tensor>> {
        let graph = self.graph(a.options).ok()?;
        let wide = Wide::F32.graph(&graph)?;
        verify(&wide).ok()?;
        let given = self.inputs.iter().map(|(n, t)| Some((n.clone(), Wide::F32.tensor(t)?)));
        let mut other = evaluated(&wide, &given.collect::<Option<_>>()?).ok()?;
        if let Some(fault) = a.fault {
            fault(&graph, &mut other);
        }
        want.iter().zip(&other).zip(got).map(|((w, x), g)| towards(w, x, g)).collect()
    }
}

/// Compares outputs with bounds that are computed in real arithmetic.
fn within_bounds(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    got: &[Tensor],
) -> Result<Outcome, Failure> {
    let bounds = bounded(graph, inputs).map_err(Failure::error)?;
    for (i, (b, g)) in bounds.iter().zip(got).enumerate() {
        b.check(g).map_err(|e| Failure::Wrong(format!("output {i}: {e}")))?;
    }
    Ok(Outcome::Same(0.0))
}

/// Compiles a graph. With `cut`, schedules are chosen at random.
fn program(graph: Graph, options: &Options, cut: Option<u64>) -> Result<Program, Errors> {
    verify(&graph).map_err(|problems| {
        Errors(problems.into_iter().map(|p| Diagnostic::internal(format!("after import: {p}"))).collect())
    })?;
    let fused = fuse_graph(graph, Stats::default(), options, &mut |_, _| {})?;
    let options = match cut {
        Some(seed) => &Options { tuning: choices(&fused, options, seed)?, ..options.clone() },
        None => options,
    };
    let scheduled = schedule(fused.kernels, options)?;
    assemble(&fused.graph, &scheduled, options, fused.stats)
}

/// A random schedule for each kernel that has several.
fn choices(fused: &Fused, options: &Options, seed: u64) -> Result<Tuning, Errors> {
    let mut rng = Rng::new(seed);
    let mut tuning = Tuning::default();
    let values = complete(fused, &Values::new(), &Default::default())?;
    for t in tunable(fused, options, &values, 32, 1e6)? {
        if let Some(c) = rng.pick(&t.candidates) {
            tuning.choices.insert(t.key, c.choice.clone());
        }
    }
    Ok(tuning)
}

/// The largest relative error of an f32 output; an error if outputs differ.
fn compare(got: &[Tensor], want: &[Tensor], rule: Rule) -> Result<f64, Failure> {
    if got.len() != want.len() {
        return Err(Failure::Wrong(format!("{} outputs instead of {}", got.len(), want.len())));
    }
    let mut largest = 0f64;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = if rule.loose && w.dtype.is_int() {
            near(g, w)
        } else {
            // A device may flush a subnormal number to 0.
            let stated = rule
                .error
                .map(|e| Tolerance { rtol: e.relative, atol: e.absolute + f64::from(f32::MIN_POSITIVE) });
            equal(g, w, stated.unwrap_or_else(|| tolerance(w.dtype, rule.loose)))
        };
        let same = same.and_then(|()| if rule.moved { same_bits(g, w) } else { Ok(()) });
        same.map_err(|e| Failure::Wrong(format!("output {i}: {e}")))?;
        if w.dtype == DType::F32 {
            let e = finite_error(g, w);
            if rule.tiny && e > 1e-3 {
                return Err(Failure::Wrong(format!("output {i}: a relative error of {e:.1e}")));
            }
            largest = largest.max(e);
        }
    }
    Ok(largest)
}

/// `‖a − b‖ / ‖b‖` over the elements that are finite in both.
fn finite_error(got: &Tensor, want: &Tensor) -> f64 {
    let (Some(a), Some(b)) = (got.to_f32s(), want.to_f32s()) else { return 0.0 };
    let (mut difference, mut size) = (0f64, 0f64);
    for (x, y) in a.iter().zip(&b).filter(|(x, y)| x.is_finite() && y.is_finite()) {
        difference += (f64::from(*x) - f64::from(*y)).powi(2);
        size += f64::from(*y).powi(2);
    }
    if difference == 0.0 || size == 0.0 { 0.0 } else { (difference / size).sqrt() }
}

/// Checks integers that may differ by one, because a float between two of them was rounded.
fn near(got: &Tensor, want: &Tensor) -> Result<(), String> {
    let (Some(a), Some(b)) = (got.to_i64s(), want.to_i64s()) else { return Err("values are absent".into()) };
    let same = got.dtype == want.dtype && got.shape == want.shape;
    match a.iter().zip(&b).position(|(x, y)| x.abs_diff(*y) > 1) {
        None if same => Ok(()),
        None => Err(format!("{} {:?} instead of {} {:?}", got.dtype, got.shape, want.dtype, want.shape)),
        Some(i) => Err(format!("element {i} is {} instead of {}", a[i], b[i])),
    }
}

/// The usual tolerance for a type. The evaluator rounds between steps that a kernel computes as one.
fn tolerance(dtype: DType, loose: bool) -> Tolerance {
    let e = match dtype {
        DType::BF16 => 5e-2,
        _ if loose => 2e-2,
        DType::F16 => 4e-3,
        _ => return Tolerance { rtol: 1e-3, atol: 1e-4 },
    };
    Tolerance { rtol: e, atol: e }
}

/// Checks that elements agree in every bit, including signs of zeros and subnormals. NaN and f64, which is rounded to f32,
/// are exempt.
fn same_bits(got: &Tensor, want: &Tensor) -> Result<(), String> {
    let (Some(a), Some(b)) = (got.scalars(), want.scalars()) else { return Err("values are absent".into()) };
    let differs = |(x, y): (&Scalar, &Scalar)| x.bits != y.bits && !x.as_f64().is_nan();
    match a.iter().zip(&b).position(differs) {
        Some(i) if want.dtype.is_float() && want.dtype != DType::F64 => {
            Err(format!("element {i} is {} instead of {}", a[i], b[i]))
        }
        _ => Ok(()),
    }
}
