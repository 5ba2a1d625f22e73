//! Programs of PyTorch: what `torch.export.save` writes.
//!
//! `archive` is the container, `messages` what the program in it holds, `weights` its tensors. `model` reads inputs and outputs,
//! `symbols` their sizes, `walk` goes through the nodes, `scope` knows which names are the same memory. [`op`] is the contract of
//! an operator, [`ops`] decodes each of them, [`cx`] is what a decoder sees of its node.

mod archive;
pub mod cx;
mod expr;
mod guards;
mod header;
mod messages;
mod model;
mod names;
pub mod op;
pub mod ops;
mod pickle;
pub mod promote;
mod schema;
mod scope;
mod symbols;
mod tree;
mod walk;
mod weights;

pub use archive::is_archive;
pub use cx::Cx;

/// What every decoder uses.
mod prelude {
    pub use super::cx::{Cx, Number};
    pub use super::op::{Lowered, OpDef, OpError};
    pub use crate::lower::{Lowering, Result};
    pub use wgfc_ir::{BinaryOp, DType, Dim, UnaryOp, Value};
}

use super::{ExternalData, Imported};
use crate::{Errors, Options};
use archive::{Archive, Part};
use std::sync::Arc;
use walk::Importer;
use weights::Weights;

/// Imports an archive of `torch.export.save`, or the `model.json` of one. All errors are collected.
///
/// # Errors
/// What is wrong with it, or not supported.
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    let owner = external
        .model()
        .filter(|o| std::ptr::eq((**o).as_ref(), bytes))
        .unwrap_or_else(|| Arc::new(bytes.to_vec()));
    let archive = Archive::open(Part::whole(owner), external)?;
    let program = header::read(&archive)?;
    let mut importer = Importer {
        weights: Weights::new(archive, options.graph_only)?,
        errors: vec![],
        symbols: Default::default(),
        taken: Default::default(),
        ranges: Default::default(),
        bytes_unfused: wgfc_ir::Dim::ZERO,
        operators: Default::default(),
        depth: 0,
        modules: vec![],
        graph: &program.graph_module.graph,
    };
    model::import(&mut importer, &program, options)
}
