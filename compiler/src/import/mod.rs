//! From a model's bytes to a [`Graph`].
//!
//! A module for each format decodes: it reads the messages, walks the graph, and for each operator says with
//! which operands and parameters which function of [`lower`](crate::lower) is meant. There are [`onnx`] and [`fx`].

pub mod fx;
pub mod onnx;

pub use onnx::{
    CheckReport, Unsupported, check, declared_inputs, decode, import_model, shape_inputs,
    wants_indices_inside,
};

pub use crate::error::close_names;
use crate::{Errors, Options};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Dim, Graph};

/// Where the bytes of external tensors come from.
pub trait ExternalData {
    /// The whole file at `location`, a path relative to the model that the importer has already
    /// checked not to leave the model's folder.
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String>;

    /// The bytes of the model itself, where tensors may share them: those of an archive are in it.
    fn model(&self) -> Option<Arc<dyn ByteOwner>> {
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
