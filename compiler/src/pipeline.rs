//! The stages, in order.

use crate::import::ExternalData;
use crate::{Errors, Options};
use wgfc_ir::Program;

/// Compiles a model.
pub fn compile(model: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Program, Errors> {
    let mut imported = crate::import::import(model, external, options)?;
    crate::rewrite::rewrite(&mut imported.graph)?;
    Err(crate::Diagnostic::internal("fusion and emission are not there yet").into())
}
