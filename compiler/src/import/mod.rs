//! From a model's bytes to a [`Graph`].
//!
//! A module for each format decodes: it reads the messages, walks the graph, and for each operator says with
//! which operands and parameters which function of [`lower`](crate::lower) is meant. There are [`onnx`] and [`fx`].

pub mod fx;
pub mod onnx;
#[cfg(test)]
mod supported;

pub use onnx::{CheckReport, Unsupported, decode, import_model, shape_inputs};

pub use crate::error::close_names;
use crate::lower::{OpError, Part};
use crate::{Diagnostic, Errors, Kind, Location, Options};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::computed::Bounds;
use wgfc_ir::remote::Remote;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Border, DType, Dim, Graph, TensorType};

/// Where the bytes of external tensors come from.
pub trait ExternalData {
    /// The whole file at `location`, a path relative to the model that the importer has already
    /// checked not to leave the model's folder.
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String>;

    /// Bytes of such a file that are read when they are asked for, by who does not hold whole files; `None` by who does.
    fn remote(&self, _location: &str, _offset: u64, _bytes: u64) -> Option<Result<Remote, String>> {
        None
    }

    /// The bytes of the model itself, where tensors may share them: those of an archive are in it.
    fn model(&self) -> Option<Arc<dyn ByteOwner>> {
        None
    }

    /// Bytes in place of a record that an archive does not have.
    fn made_up(&self, _record: &str) -> Option<Arc<dyn ByteOwner>> {
        None
    }
}

/// No external data: a model that refers to some is refused.
pub struct NoExternalData;

impl ExternalData for NoExternalData {
    fn open(&self, _: &str) -> Result<Arc<dyn ByteOwner>, String> {
        Err("the model was given as bytes alone, without its folder".into())
    }
}

/// Imports a model of any format; its first bytes say which. All errors are collected.
///
/// # Errors
/// The faults of the model, or the parts that are not supported.
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    if fx::is_archive(bytes) {
        fx::import(bytes, external, options)
    } else {
        onnx::import(bytes, external, options)
    }
}

/// Says what a model of any format uses and whether it can be compiled, without reading its weights.
pub fn check(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> CheckReport {
    if fx::is_archive(bytes) {
        fx::check(bytes, external, options)
    } else {
        onnx::check(bytes, external, options)
    }
}

/// The inputs of a model of any format whose values must be given in each run, with their types as it declares them.
///
/// # Errors
/// The faults of the model, as far as they concern them.
pub fn declared_inputs(
    bytes: &[u8],
    external: &dyn ExternalData,
    options: &Options,
) -> Result<Vec<(String, TensorType)>, Errors> {
    if fx::is_archive(bytes) {
        fx::declared_inputs(bytes, external, options)
    } else {
        onnx::declared_inputs(bytes, options)
    }
}

/// A graph's inputs: name and type, of those that a run may leave out what they are broadcast to.
fn shown_inputs(g: &Graph) -> Vec<(String, String)> {
    let show = |b: &Border| {
        let own = g.ty(b.value);
        let ty = match g.optional.get(&b.name) {
            Some(full) => format!("{}, broadcast, optional", TensorType::new(own.dtype, full.clone())),
            None => own.to_string(),
        };
        (b.name.to_string(), ty)
    };
    g.inputs.iter().map(show).collect()
}

/// Whether an operator wants its indices inside their axes. Those of other domains than `ai.onnx` have it before their name.
pub fn wants_indices_inside(operator: &str) -> bool {
    onnx::wants_indices_inside(operator) || fx::ops::wants_indices_inside(operator)
}

/// An imported model.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Its graph in core operators, shapes inferred, shape arithmetic evaluated.
    pub graph: Graph,
    /// Nodes of the model (constants not counted).
    pub model_nodes: usize,
    /// Bytes moved if every node of the model were a kernel of its own.
    pub bytes_unfused: Dim,
    /// The warnings for the user.
    pub warnings: Vec<String>,
    /// The operators of the nodes that were lowered, by the node's name; those of subgraphs and functions too.
    pub operators: BTreeMap<String, String>,
}

impl Imported {
    /// A model whose graph is whole: what nothing reads goes, and the user is told what to know of the rest. `bytes` are those
    /// moved without fusion, `nan` how many constants hold numbers that are none, and how many such.
    fn of(
        mut graph: Graph,
        model_nodes: usize,
        bytes: &Dim,
        mut warnings: Vec<String>,
        (tensors, nan): (usize, usize),
        operators: BTreeMap<String, String>,
    ) -> Imported {
        let bytes_unfused = Bounds::of(&graph.computed).most(bytes);
        let bytes_unfused = if bytes_unfused.is_too_large() { Dim::ZERO } else { bytes_unfused };
        graph.remove_dead();
        // Inputs that a run may leave out and nothing needs, such as the seed of numbers that nobody reads.
        let (optional, all) = (std::mem::take(&mut graph.optional), std::mem::take(&mut graph.inputs));
        let needed = |b: &Border| {
            !optional.contains_key(&b.name) || !graph.uses(b.value).is_empty() || graph.is_output(b.value)
        };
        graph.inputs = all.into_iter().filter(needed).collect();
        graph.optional =
            optional.into_iter().filter(|(n, _)| graph.inputs.iter().any(|b| b.name == *n)).collect();
        graph.remove_dead();
        if nan > 0 {
            warnings.push(format!("{nan} elements of {tensors} constants are not numbers (NaN)"));
        }
        if graph.node_ids().any(|n| graph.node(n).outputs.iter().any(|ty| ty.dtype == DType::F64)) {
            warnings.push("f64 values are computed in f32".into());
        }
        Imported { graph, model_nodes, bytes_unfused, warnings, operators }
    }
}

/// An error, of which the part is said in the words of the model, at a node; `advice` says what to do where the error does not.
fn diagnostic(e: OpError, mut at: Location, advice: impl FnOnce(&Location) -> String) -> Diagnostic {
    let d = match e.kind {
        Kind::Model => Diagnostic::model(e.message),
        Kind::Unsupported => Diagnostic::unsupported(e.message),
        Kind::Internal => Diagnostic::internal(e.message),
    };
    at.part = match e.part {
        Some(Part::Source(text)) => Some(text),
        _ => None,
    };
    let help = e.help.or(d.help.clone()).unwrap_or_else(|| advice(&at));
    d.at(at).help(help)
}
