//! A survey of a model before lowering: it finds all operators that are not supported at once.

use super::messages::{FunctionProto, GraphProto, ModelProto, NodeProto};
use super::names::{Functions, Opsets, domain_key, label, operator, opsets};
use super::walk::MAX_DEPTH;
use super::{ExternalData, ops, run};
use crate::import::shown_inputs;
use crate::{Diagnostic, Location, Options};
use std::collections::{BTreeMap, HashSet};

/// An operator of the model that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Its name, prefixed with the domain unless that is `ai.onnx`.
    pub operator: String,
    /// The opset version in force.
    pub opset: Option<i64>,
    /// The reason: the operator is unknown, or not supported in this version.
    pub reason: String,
    /// The nodes that apply it.
    pub nodes: Vec<String>,
}

impl Unsupported {
    /// One diagnostic for all of its nodes.
    pub fn diagnostic(&self) -> Diagnostic {
        let message = match self.nodes.as_slice() {
            [_] => self.reason.clone(),
            [_, rest @ ..] => format!("{} (and {} more of its nodes)", self.reason, rest.len()),
            [] => self.reason.clone(),
        };
        Diagnostic::unsupported(message)
            .at(Location {
                node: self.nodes.first().map(|n| n.as_str().into()),
                operator: Some(self.operator.as_str().into()),
                opset: self.opset,
                part: None,
                source: None,
            })
            .help(ops::instead(&self.operator).unwrap_or_else(|| {
                "export the model with operators that SUPPORTED_OPS.md lists, or cut it before this one \
                 (onnx.utils.extract_model); docs/adding-an-operator.md says how to add one"
                    .to_owned()
            }))
    }
}

/// The findings of [`check`].
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The version of the file format; ONNX only.
    pub ir_version: i64,
    /// The schema version of an archive of torch.export.
    pub schema: Option<(i64, i64)>,
    /// The domains and versions of operator sets.
    pub opsets: Vec<(String, i64)>,
    /// The exporter of the model.
    pub producer: String,
    /// The number of nodes per operator, including those of subgraphs and functions.
    pub operators: BTreeMap<String, usize>,
    /// Operators that are not supported.
    pub unsupported: Vec<Unsupported>,
    /// All errors of an import, the unsupported operators included.
    pub errors: Vec<Diagnostic>,
    /// The warnings for the user.
    pub warnings: Vec<String>,
    /// The graph's inputs: name and type. Empty when the import fails.
    pub inputs: Vec<(String, String)>,
    /// The name and type of each output of the graph. Empty when the import fails.
    pub outputs: Vec<(String, String)>,
    /// Inputs whose data shapes depend on; their values must be given when compiling.
    pub shape_inputs: Vec<String>,
}

/// Reports which operators a model uses and whether it can be compiled, without reading its weights.
pub fn check(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> CheckReport {
    let model = match super::decode_shared(bytes, external, options.memory_limit) {
        Ok(m) => m,
        Err(e) => return CheckReport { errors: e.0, ..Default::default() },
    };
    let survey = survey(&model);
    let mut report = CheckReport {
        ir_version: model.ir_version,
        opsets: opsets(&model.opset_import).into_iter().collect(),
        producer: format!("{} {}", model.producer_name, model.producer_version).trim().to_owned(),
        operators: survey.operators,
        unsupported: survey.unsupported,
        ..Default::default()
    };
    let options = Options { graph_only: true, ..options.clone() };
    let (result, shape_inputs) = run(&model, external, &options);
    report.shape_inputs = shape_inputs.into_iter().collect();
    match result {
        Ok(imported) => {
            let g = &imported.graph;
            let show = |b: &wgfc_ir::Border| (b.name.to_string(), g.ty(b.value).to_string());
            report.inputs = shown_inputs(g);
            report.outputs = g.outputs.iter().map(show).collect();
            report.warnings = imported.warnings;
        }
        Err(e) => report.errors = e.0,
    }
    report
}

/// The findings of [`survey`].
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub operators: BTreeMap<String, usize>,
    pub unsupported: Vec<Unsupported>,
}

/// Operators for which ONNX requires indices within bounds.
const INDEXING: [&str; 10] = [
    "Gather",
    "GatherElements",
    "GatherND",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "TensorScatter",
    "com.microsoft.EmbedLayerNormalization",
    "com.microsoft.GatherBlockQuantized",
    "com.microsoft.GatherND",
];

/// Whether ONNX requires an operator's indices to be within bounds. Names outside of the domain `ai.onnx` are prefixed with their domain.
pub fn wants_indices_inside(operator: &str) -> bool {
    INDEXING.contains(&operator)
}

pub(super) fn functions(model: &ModelProto) -> Functions<'_> {
    model
        .functions
        .iter()
        .map(|f| ((domain_key(&f.domain), f.name.as_str(), f.overload.as_str()), f))
        .collect()
}

/// Surveys every node, including those of subgraphs and of called functions.
pub(super) fn survey(model: &ModelProto) -> Survey {
    let (functions, found) = (functions(model), Survey::default());
    let mut s = Surveyor { functions, called: HashSet::new(), depth: 0, found };
    if let Some(g) = &model.graph {
        s.graph(g, &opsets(&model.opset_import), "");
    }
    s.found.unsupported.sort_by(|a, b| a.operator.cmp(&b.operator));
    s.found
}

struct Surveyor<'m> {
    functions: Functions<'m>,
    called: HashSet<*const FunctionProto>,
    /// The number of enclosing graphs and functions. The importer refuses deeper nesting.
    depth: usize,
    found: Survey,
}

impl<'m> Surveyor<'m> {
    fn graph(&mut self, g: &'m GraphProto, opsets: &Opsets, prefix: &str) {
        self.nodes(&g.node, opsets, prefix);
    }

    fn nodes(&mut self, nodes: &'m [NodeProto], opsets: &Opsets, prefix: &str) {
        if self.depth >= MAX_DEPTH {
            return;
        }
        self.depth += 1;
        for (i, n) in nodes.iter().enumerate() {
            self.node(n, i, opsets, prefix);
        }
        self.depth -= 1;
    }

    fn node(&mut self, n: &'m NodeProto, index: usize, sets: &Opsets, prefix: &str) {
        let name = operator(n);
        *self.found.operators.entry(name.clone()).or_default() += 1;
        let domain = domain_key(&n.domain);
        let opset = sets.get(domain).copied();
        let def = ops::find(domain, &n.op_type);
        let lowered = def.is_some_and(|d| opset.is_none_or(|o| d.version(o).is_some()));
        let here = label(n, index, prefix);
        if !lowered {
            match self.functions.get(&(domain, n.op_type.as_str(), n.overload.as_str())).copied() {
                Some(f) => {
                    if self.called.insert(f) {
                        self.nodes(&f.node, &opsets(&f.opset_import), &format!("{here}/"));
                    }
                }
                // The importer reports a domain without a version.
                None if opset.is_none() => {}
                None => {
                    let reason = match def {
                        None => match ops::why(&name) {
                            Some(why) => format!("operator {name} is not supported: {why}"),
                            None => format!("operator {name} is not supported"),
                        },
                        Some(d) => format!(
                            "operator {name} is supported from opset {} on",
                            d.since.iter().min().unwrap_or(&1)
                        ),
                    };
                    let list = &mut self.found.unsupported;
                    match list.iter_mut().find(|u| u.operator == name && u.opset == opset) {
                        Some(u) => u.nodes.push(here.clone()),
                        None => list.push(Unsupported {
                            operator: name,
                            opset,
                            reason,
                            nodes: vec![here.clone()],
                        }),
                    }
                }
            }
        }
        for g in n.attribute.iter().filter_map(|a| a.g.as_ref()) {
            self.graph(g, sets, &format!("{here}/"));
        }
    }
}
