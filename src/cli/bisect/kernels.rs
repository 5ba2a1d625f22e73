//! Kernels that run alone, each on the operands that the evaluator computes.

use super::{Evaluator, Results, largest};
use crate::cli::compare::{difference, parts};
use std::collections::{BTreeMap, BTreeSet};
use wgfc::compiler::kernel::{Expr, KernelGraph, TensorId, TensorKind};
use wgfc::compiler::pipeline::{self, Fused};
use wgfc::compiler::tuning::Single;
use wgfc::inspect::nodes_of;
use wgfc::ir::eval::{EvalError, cast_scalar};
use wgfc::ir::{BinaryOp, Border, DType, Scalar, Value};
use wgfc::model::device_error;
use wgfc::runtime::{Gpu, Session};
use wgfc::value_info::{ValueInfo, bind, graph_values};
use wgfc::{Error, Options, Tensor};

/// The kernel whose results differ.
pub struct WrongKernel {
    /// Its number.
    pub kernel: usize,
    /// The tensor that differs, and how.
    pub why: String,
    /// The nodes of the model that it computes.
    pub nodes: String,
    /// Its text.
    pub text: String,
    /// Its schedule.
    pub schedule: String,
}

/// The findings about kernels.
#[derive(Default)]
pub struct Kernels {
    /// The number of kernels.
    pub all: usize,
    /// The number of those that were compared.
    pub compared: usize,
    /// The largest relative error.
    pub largest: Option<f64>,
    /// The first kernel that differs.
    pub wrong: Option<WrongKernel>,
    /// The number of others that differ.
    pub also_wrong: usize,
    /// The kernels that were not compared, by reason.
    pub skipped: BTreeMap<&'static str, Vec<usize>>,
    /// How the outputs of the whole program differ.
    pub outputs_differ: Option<String>,
}

/// The values of tensors, as kernels have them in memory.
struct Known<'a> {
    fused: &'a Fused,
    symbols: BTreeMap<String, i64>,
    values: BTreeMap<TensorId, Tensor>,
}

impl Known<'_> {
    /// The elements of a tensor in memory.
    fn get(&self, t: TensorId) -> Option<Tensor> {
        let tensor = &self.fused.kernels.tensors[t];
        if let TensorKind::Const(c) = &tensor.kind {
            let n = c.numel();
            return c.is_present().then(|| Tensor { shape: vec![n], ..(**c).clone() });
        }
        let copies = &self.fused.arranged.copies;
        let of = copies.iter().find(|c| c.0 == t).map_or(t, |c| c.1);
        let value = in_type(self.values.get(&of)?, tensor.ty.dtype)?;
        let symbol = |s: &str| self.symbols.get(s).copied();
        let elements = tensor.ty.numel().eval_syms(&symbol);
        let value = match self.fused.arranged.moved.get(&t) {
            Some(m) => m.applied(&value, &symbol)?,
            None => value,
        };
        let n = value.numel();
        (elements == i64::try_from(n).ok()).then(|| Tensor { shape: vec![n], ..value })
    }
}

/// A tensor in another element type.
fn in_type(t: &Tensor, dtype: DType) -> Option<Tensor> {
    if t.dtype == dtype {
        return Some(t.clone());
    }
    let cast: Option<Vec<Scalar>> = t.scalars()?.into_iter().map(|s| cast_scalar(dtype, s)).collect();
    Some(Tensor::from_scalars(dtype, t.shape.clone(), &cast?))
}

/// The values that tensors hold, and those of symbols.
fn known<'a>(fused: &'a Fused, evaluator: &Evaluator<'_>) -> Result<Known<'a>, EvalError> {
    let mut graph = fused.lowered.clone();
    let held: Vec<(&TensorId, &Value)> = fused.values.iter().collect();
    let border = |i: usize, value: Value| Border { name: format!("{i}").into(), value };
    let computed: Vec<_> = graph.computed.iter().map(|c| (c.symbol.to_string(), c.value)).collect();
    let all = held.iter().map(|h| *h.1).chain(computed.iter().map(|c| c.1));
    graph.outputs = all.enumerate().map(|(i, v)| border(i, v)).collect();
    let mut results = evaluator.run(&graph)?.into_iter().map(|(_, t)| t);
    let values = held.iter().map(|h| *h.0).zip(results.by_ref()).collect();
    let mut symbols = BTreeMap::new();
    let ports = graph_values(&fused.graph, &fused.graph.inputs);
    let given: Vec<(&ValueInfo, &[usize])> =
        ports.iter().filter_map(|p| Some((p, evaluator.inputs.get(&p.name)?.shape.as_slice()))).collect();
    bind(&given, &mut symbols);
    let number = |t: Tensor| t.to_i64s().and_then(|v| v.first().copied());
    symbols.extend(computed.into_iter().zip(results).filter_map(|((s, _), t)| Some((s, number(t)?))));
    Ok(Known { fused, symbols, values })
}

/// Why a kernel cannot run alone.
fn excluded(graph: &KernelGraph, k: usize) -> Option<&'static str> {
    let kernel = &graph.kernels[k];
    let (reads, writes) = (kernel.reads(), kernel.writes());
    let kind = |t: &TensorId| &graph.tensors[*t].kind;
    let all = || reads.iter().chain(&writes);
    // A scatter writes some elements only; the others are those of the tensor below it.
    let above =
        |t: &TensorId| graph.tensors.iter().any(|u| matches!(u.kind, TensorKind::Under(over) if over == *t));
    let writers = |t: &TensorId| graph.kernels.iter().filter(|k| k.writes().contains(t)).count();
    if graph.repeats.iter().any(|r| r.kernels.contains(&k)) {
        return Some("they are the steps of a loop");
    }
    if all().any(|t| matches!(kind(t), TensorKind::State { .. } | TensorKind::Under(_)))
        || writes.iter().any(|t| above(t) || reads.contains(t))
    {
        return Some("they change memory that others read");
    }
    if writes.iter().any(|t| writers(t) > 1) {
        return Some("several write one tensor");
    }
    None
}

/// Runs each kernel alone and compares what it writes.
pub fn compare(
    gpu: &Gpu,
    fused: &Fused,
    options: &Options,
    evaluator: &Evaluator<'_>,
    tolerance: f64,
    told: &mut dyn FnMut(usize, usize),
) -> Result<Kernels, Error> {
    let wgfc::compiler::schedule::ScheduledGraph { graph, schedules, .. } =
        &pipeline::schedule(fused.kernels.clone(), options)?;
    let mut known = known(fused, evaluator).map_err(|e| {
        Error::Internal(format!("the graph that the kernels compute cannot be evaluated: {e}"))
    })?;
    let mut out = Kernels { all: graph.kernels.len(), ..Kernels::default() };
    // Results of kernels that no value of the graph tells, such as parts of attention.
    let mut own: BTreeMap<TensorId, Tensor> = BTreeMap::new();
    let mut behind: BTreeSet<TensorId> = BTreeSet::new();
    for (i, (kernel, schedule)) in graph.kernels.iter().zip(schedules).enumerate() {
        told(i, graph.kernels.len());
        let (reads, writes) = (kernel.reads(), kernel.writes());
        let mut skip = |why| out.skipped.entry(why).or_default().push(i);
        if let Some(why) = excluded(graph, i) {
            skip(why);
            continue;
        }
        let operands: Option<Vec<Tensor>> =
            reads.iter().map(|t| known.get(*t).or_else(|| own.get(t).cloned())).collect();
        let Some(operands) = operands else {
            skip("the values that they read are in no graph");
            continue;
        };
        let single = Single::new(fused, options, i, schedule.clone(), &known.symbols)?;
        let results = alone(gpu, &single, &operands)?;
        let mut compared = false;
        for (t, got) in writes.iter().zip(results) {
            let Some(want) = known.get(*t) else {
                own.insert(*t, got);
                behind.insert(*t);
                continue;
            };
            compared = true;
            let name =
                graph.tensors[*t].name.as_deref().map_or_else(|| format!("t{t}"), |n| format!("\"{n}\""));
            let Some(d) = difference(&name, got.dtype, &[], &got, &want) else { continue };
            if out.largest.is_none_or(|l| d.relative.total_cmp(&l).is_gt()) {
                out.largest = Some(d.relative);
            }
            if !parts(&d, tolerance) {
                continue;
            }
            if out.wrong.is_some() {
                out.also_wrong += 1;
                break;
            }
            let mut why = format!("{name} has {}", d.why());
            if reads.iter().any(|t| behind.contains(t)) {
                why += ", of operands that another kernel computed";
            }
            let nodes: Vec<String> = kernel.nodes.iter().map(ToString::to_string).collect();
            out.wrong = Some(WrongKernel {
                kernel: i,
                why,
                nodes: nodes_of(&nodes, 3),
                text: kernel.to_string(),
                schedule: schedule.to_string(),
            });
            break;
        }
        if compared {
            out.compared += 1;
        } else {
            out.skipped.entry("no value of the graph is what they write").or_default().push(i);
        }
    }
    known.values.clear();
    Ok(out)
}

/// The results of a program of one kernel.
fn alone(gpu: &Gpu, single: &Single, operands: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let mut session = Session::new_blocking(gpu, &single.program).map_err(device_error)?;
    for (name, value) in &single.values {
        session.set_symbol(name, *value).map_err(device_error)?;
    }
    let names = single.program.inputs.iter().map(|p| p.name.as_str());
    let inputs: Vec<(&str, Tensor)> = names.zip(operands.iter().cloned()).collect();
    let outputs = session.run_blocking(&inputs).map_err(device_error)?;
    Ok(outputs.into_iter().map(|(_, t)| t).collect())
}

impl Kernels {
    /// Runs the whole program and compares its outputs.
    pub fn whole(
        &mut self,
        gpu: &Gpu,
        fused: &Fused,
        options: &Options,
        given: &BTreeMap<String, Tensor>,
        want: &Results,
        tolerance: f64,
    ) -> Result<(), Error> {
        let program = pipeline::assemble(fused.clone(), options, &mut |_, _| {})?;
        let mut session = Session::new_blocking(gpu, &program).map_err(device_error)?;
        let inputs: Vec<(&str, Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let got: Results = session.run_blocking(&inputs).map_err(device_error)?;
        let outputs: Results = want.iter().filter(|(n, _)| got.iter().any(|g| g.0 == *n)).cloned().collect();
        let worst = largest(&outputs, &got, tolerance).map_err(Error::Internal)?;
        self.outputs_differ = worst.filter(|w| w.1).map(|(d, _)| format!("\"{}\" has {}", d.name, d.why()));
        Ok(())
    }
}

/// Adds 1 to the first float that a kernel stores, for a test.
pub fn spoil(fused: &mut Fused, kernel: usize) {
    let Some(k) = fused.kernels.kernels.get_mut(kernel) else { return };
    let Some(i) = k.stores.iter().position(|s| k.body.dtype(s.value) == DType::F32) else { return };
    let one = k.body.push(Expr::Const(Scalar::from_f64(DType::F32, 1.0)), DType::F32);
    k.stores[i].value = k.body.push(Expr::Binary(BinaryOp::Add, k.stores[i].value, one), DType::F32);
}
