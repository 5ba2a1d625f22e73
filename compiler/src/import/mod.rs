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

/// Up to five names that resemble `wanted`: those that contain it, and those a few edits away.
pub fn close_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let low = wanted.to_lowercase();
    let mut scored: Vec<(usize, &str)> = names
        .filter_map(|n| {
            let m = n.to_lowercase();
            let d = if m.contains(&low) || (m.len() > 2 && low.contains(&m)) { 1 } else { edits(&low, &m) };
            (d <= 2 + wanted.len() / 4).then_some((d, n))
        })
        .collect();
    scored.sort_unstable();
    scored.into_iter().take(5).map(|(_, n)| n).collect()
}

fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(200).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(200).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row.last().copied().unwrap_or(0)
}
