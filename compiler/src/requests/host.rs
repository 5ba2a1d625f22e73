//! Models that the CPU's evaluator runs, as pages ask for it.
//!
//! Nothing here fuses, schedules or writes kernels, so that a module with this alone is small.

use super::answer::{Answer, failed};
use super::request::{Elsewhere, File};
use crate::assemble;
use crate::import::{Format, onnx};
use crate::kernel::KernelGraph;
use crate::rewrite::{canonical, maps, recognise, region, rules};
use crate::{Diagnostic, Errors, Options, passes};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::eval::{EvalError, Limits, Prepared};
use wgfc_ir::program::{Buffer, BufferKind, Computed, DimConstraint, Port};
use wgfc_ir::remote::{Files, Source};
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Border, Bundle, DType, Graph, Program, Tensor};

/// The memory that tensors of a run may take: the address space of a page's module, less what its code and the model's file need.
const BYTES: u64 = 7 << 29;
/// The loop iterations that a run may take in sum.
const ITERATIONS: u64 = 1 << 24;

/// The options of a model that the CPU runs, and the files with its tensors.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostRequest {
    /// The model's files, to which external data refers by name.
    pub files: Vec<File>,
    /// Values of symbolic dimensions to fix.
    pub dims: BTreeMap<String, i64>,
}

/// The inputs of a run. Their elements are one behind the other in the data beside the request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostRun {
    /// The inputs, in the order of their elements.
    pub inputs: Vec<HostTensor>,
    /// Values of symbols that the shapes of the inputs do not determine.
    pub symbols: BTreeMap<String, i64>,
}

/// A tensor whose elements are elsewhere.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct HostTensor {
    /// The name of the input or output.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

/// A model that the CPU runs.
#[derive(Debug)]
pub struct HostModel {
    prepared: Prepared,
}

impl HostModel {
    /// Reads an ONNX model whose large tensors are in `files`, all of which it reads. The answer is `{"plan"}`: a plan with inputs, outputs, symbols
    /// and constraints in the format of `docs/plan-format.md`, without kernels; after an error `{"errors", "text"}`, as that of
    /// [`compile`](super::compile).
    pub fn open(model: &[u8], request: &str, files: Box<dyn Files>) -> (Answer, Option<HostModel>) {
        let made = serde_json::from_str::<HostRequest>(request)
            .map_err(|e| Diagnostic::internal(format!("the request is not what it should be: {e}")).into())
            .and_then(|r| open(model, r, files));
        let (json, model) = match made {
            Ok(model) => (json!({ "plan": Bundle::new(vec![(String::new(), ports(&model))]) }), Some(model)),
            Err(e) => (failed(&e), None),
        };
        (Answer { json: json.to_string(), data: vec![] }, model)
    }

    /// Runs the model. `request` is a [`HostRun`] as JSON, `data` has the elements of its inputs. The answer is `{"outputs"}`, a list of
    /// [`HostTensor`]s, whose elements are its data; after an error `{"error": {"node", "message"}}`.
    pub fn run(&self, request: &str, data: Vec<u8>) -> Answer {
        match self.outputs(request, data) {
            Ok(outputs) => answer(self.prepared.graph(), &outputs),
            Err(e) => {
                let json = json!({ "error": { "node": e.node, "message": e.message } });
                Answer { json: json.to_string(), data: vec![] }
            }
        }
    }

    fn outputs(&self, request: &str, data: Vec<u8>) -> Result<Vec<Tensor>, EvalError> {
        let run: HostRun = serde_json::from_str(request)
            .map_err(|e| EvalError::new(format!("the request is not what it should be: {e}")))?;
        let data: Arc<dyn ByteOwner> = Arc::new(data);
        let mut inputs = BTreeMap::new();
        let mut at = 0;
        for t in run.inputs {
            let bytes =
                t.shape.iter().try_fold(1, |n: usize, d| n.checked_mul(*d)).map(|n| t.dtype.bytes_for(n));
            let tensor = bytes.ok_or_else(|| "its shape overflows".to_owned());
            let tensor = tensor.and_then(|n| Tensor::shared(t.dtype, t.shape, data.clone(), at, n));
            let tensor = tensor.map_err(|e| EvalError::new(format!("input \"{}\": {e}", t.name)))?;
            at += bytes.unwrap_or(0);
            inputs.insert(t.name, tensor);
        }
        let limits = Limits { bytes: BYTES, iterations: ITERATIONS, ..Limits::default() };
        self.prepared.run(&inputs, &run.symbols, limits)
    }
}

fn open(model: &[u8], request: HostRequest, files: Box<dyn Files>) -> Result<HostModel, Errors> {
    if Format::of(model) != Format::Onnx {
        return Err(Diagnostic::unsupported("the CPU runs ONNX models, and this is none")
            .help("give an .onnx file, or run the model on a GPU")
            .into());
    }
    let source = Source::new(files);
    let elsewhere = Elsewhere { files: request.files, own: None, source: source.clone() };
    let options = Options { dims: request.dims.into_iter().collect(), ..Options::default() };
    let graph = onnx::import(model, &elsewhere, &options)?.graph;
    let prepared = optimised(graph)
        .and_then(|g| Prepared::new(g).map_err(|e| Diagnostic::internal(e.to_string()).into()));
    match source.failed() {
        Some((file, offset)) => Err(elsewhere.unreadable(file, offset).into()),
        None => Ok(HostModel { prepared: prepared? }),
    }
}

/// The graph with the rewrites of a compilation that save work on a CPU as well.
fn optimised(mut graph: Graph) -> Result<Graph, Errors> {
    passes::verify(&graph, "import")?;
    let graph = &mut graph;
    let mut rewrite = || -> Result<(), String> {
        canonical::clean(graph)?;
        recognise::nan_guard::remove(graph)?;
        recognise::attention::recognise(graph)?;
        recognise::attention::scales(graph)?;
        canonical::clean(graph)?;
        region::saturate(graph, rules::of(true), &Default::default())?;
        canonical::clean(graph)?;
        maps::compose(graph)?;
        Ok(())
    };
    rewrite().map_err(Diagnostic::internal)?;
    passes::verify(graph, "rewrite")?;
    Ok(std::mem::take(graph))
}

/// The model as a program without kernels.
fn ports(model: &HostModel) -> Program {
    let graph = model.prepared.graph();
    let mut symbols = assemble::symbols(graph, &KernelGraph::default());
    symbols.extend(graph.computed.iter().map(|c| c.symbol.clone()));
    let port = |b: &Border, buffer| {
        let (ty, broadcast) = (graph.ty(b.value), graph.optional.get(&b.name).cloned());
        Port { name: b.name.to_string(), dtype: ty.dtype, shape: ty.shape.clone(), buffer, broadcast }
    };
    let n = graph.inputs.len();
    let inputs: Vec<Port> = graph.inputs.iter().enumerate().map(|(i, b)| port(b, i)).collect();
    let outputs: Vec<Port> = graph.outputs.iter().enumerate().map(|(i, b)| port(b, n + i)).collect();
    let buffer =
        |p: &Port, kind| Buffer { kind, dtype: p.dtype, elements: p.shape.iter().cloned().product() };
    let read = inputs.iter().enumerate().map(|(index, p)| buffer(p, BufferKind::Input { index }));
    let written = outputs.iter().enumerate().map(|(index, p)| buffer(p, BufferKind::Output { index }));
    let computed = |c: &wgfc_ir::graph::Computed| Computed {
        symbol: c.symbol.to_string(),
        bound: c.bound.clone(),
        buffer: 0,
        after: 0,
    };
    let constraint = |c: &wgfc_ir::graph::Constraint| DimConstraint {
        a: c.a.clone(),
        b: c.b.clone(),
        node: c.origin.to_string(),
    };
    Program {
        buffers: read.chain(written).collect(),
        inputs,
        outputs,
        symbols: symbols.iter().map(|s| s.to_string()).collect(),
        computed: graph.computed.iter().map(computed).collect(),
        constraints: graph.constraints.iter().map(constraint).collect(),
        ..Program::default()
    }
}

fn answer(graph: &Graph, outputs: &[Tensor]) -> Answer {
    let mut data = Vec::with_capacity(outputs.iter().filter_map(Tensor::byte_len).sum());
    let described = graph.outputs.iter().zip(outputs).map(|(b, t)| {
        data.extend_from_slice(t.bytes().unwrap_or_default());
        HostTensor { name: b.name.to_string(), dtype: t.dtype, shape: t.shape.clone() }
    });
    Answer { json: json!({ "outputs": described.collect::<Vec<_>>() }).to_string(), data }
}
