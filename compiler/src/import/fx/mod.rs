//! Importer of PyTorch programs, which `torch.export.save` writes.
//!
//! `archive` reads the container, `messages` the program in it and `weights` its tensors. `model` imports inputs and outputs, `lists`
//! rewrites operators on lists as operators on tensors, `symbols` resolves symbolic sizes, `threshold` turns comparisons of floats into
//! comparisons of sizes, `walk` lowers the nodes, `scope` tracks which names share memory, and `aliases` decides which results do. [`op`]
//! is the contract of an operator, [`ops`] decodes each operator, and [`cx`] is a decoder's access to its node.

mod aliases;
mod archive;
pub mod cx;
mod expr;
mod guards;
mod header;
mod lists;
mod messages;
mod model;
mod names;
pub mod op;
pub mod ops;
mod pickle;
pub mod promote;
mod schema;
mod scope;
mod shared;
mod survey;
mod symbols;
#[cfg(test)]
mod tests;
mod threshold;
mod tree;
mod walk;
mod weights;

pub use archive::is_archive;
pub use cx::Cx;
pub use survey::check;
pub use weights::{Storage, StoredTensor};

/// The items that every decoder uses.
mod prelude {
    pub use super::cx::{Cx, Number};
    pub use super::op::{Lowered, OpDef, OpError};
    pub use crate::lower::{Lowering, Result};
    pub use wgfc_ir::{BinaryOp, DType, Dim, UnaryOp, Value};
}

use super::{ExternalData, Imported};
use crate::budget::Budget;
use crate::{Errors, Options};
use archive::{Archive, Part};
use std::sync::Arc;
use walk::Importer;
use weights::Weights;

/// Imports an archive of `torch.export.save`, or the `model.json` of one. All errors are collected.
///
/// # Errors
/// The faults of the program, or the parts that are not supported.
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    let archive = open(bytes, external, options.memory_limit)?;
    let program = header::read(&archive)?;
    let mut importer = importer(archive, &program, options)?;
    model::import(&mut importer, &program, options)
}

/// The inputs of a program that each run must pass, with their declared types.
///
/// # Errors
/// The part of the archive or of the types that cannot be read.
pub fn declared_inputs(
    bytes: &[u8],
    external: &dyn ExternalData,
    options: &Options,
) -> Result<Vec<(String, wgfc_ir::TensorType)>, Errors> {
    let archive = open(bytes, external, options.memory_limit)?;
    let program = header::read(&archive)?;
    let options = Options { graph_only: true, ..options.clone() };
    let mut importer = importer(archive, &program, &options)?;
    model::declared_inputs(&mut importer, &program, &options)
}

/// The storages that an archive refers to and does not contain.
///
/// # Errors
/// The fault of the archive or of its tensor tables.
pub fn missing_storages(
    bytes: &[u8],
    external: &dyn ExternalData,
    memory_limit: Option<u64>,
) -> Result<Vec<Storage>, Errors> {
    Ok(Weights::new(open(bytes, external, memory_limit)?, true)?.missing()?)
}

fn open<'m>(
    bytes: &[u8],
    external: &'m dyn ExternalData,
    memory_limit: Option<u64>,
) -> Result<Archive<'m>, Errors> {
    let owner = external
        .model()
        .filter(|o| std::ptr::eq((**o).as_ref(), bytes))
        .unwrap_or_else(|| Arc::new(bytes.to_vec()));
    let budget = Budget::new(bytes.len() as u64, memory_limit);
    Archive::open(Part::whole(owner), external, budget)
}

fn importer<'m>(
    archive: Archive<'m>,
    program: &'m messages::ExportedProgram,
    options: &Options,
) -> Result<Importer<'m>, Errors> {
    Ok(Importer {
        weights: Weights::new(archive, options.graph_only)?,
        errors: vec![],
        symbols: Default::default(),
        rounded: Default::default(),
        decided: Default::default(),
        taken: Default::default(),
        ranges: Default::default(),
        least: Default::default(),
        bytes_unfused: wgfc_ir::Dim::ZERO,
        operators: Default::default(),
        depth: 0,
        also: vec![],
        graph: &program.graph_module.graph,
    })
}
