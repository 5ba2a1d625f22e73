//! From a model's bytes to a [`Graph`].

use crate::{Errors, Options};
use std::sync::Arc;
use wgfc_ir::Graph;
use wgfc_ir::tensor::ByteOwner;

/// Where the bytes of external tensors come from.
pub trait ExternalData {
    /// The whole file at `location`, a path relative to the model that the importer has already
    /// checked not to leave the model's folder.
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String>;
}

/// No external data: a model that refers to some is refused.
pub struct NoExternalData;

impl ExternalData for NoExternalData {
    fn open(&self, _: &str) -> Result<Arc<dyn ByteOwner>, String> {
        Err("the model was given as bytes alone, without its folder".into())
    }
}

/// An imported model.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Its graph in core operators, shapes inferred, shape arithmetic evaluated.
    pub graph: Graph,
    /// Nodes of the model (constants not counted).
    pub model_nodes: usize,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Imports an ONNX model. All errors are collected.
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    let _ = (bytes, external, options);
    Err(crate::Diagnostic::internal("import is not there yet").into())
}
