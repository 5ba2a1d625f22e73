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
use crate::{Errors, Options};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Dim, Graph, TensorType};

/// Where the bytes of external tensors come from.
pub trait ExternalData {
    /// The whole file at `location`, a path relative to the model that the importer has already
    /// checked not to leave the model's folder.
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String>;

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
/// What is wrong with it, or not supported.
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
/// What is wrong with the model, as far as it concerns them.
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
    /// What the user should know.
    pub warnings: Vec<String>,
    /// The operators of the nodes that were lowered, by the node's name; those of subgraphs and functions too.
    pub operators: BTreeMap<String, String>,
}
