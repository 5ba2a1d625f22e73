//! Emission: a [`Kernel`] to WGSL.
//!
//! [`emit`] renders the family's template around statements that [`wgsl`] writes for the kernel's
//! expressions, then [`check`] parses and validates the text. The text depends only on the kernel's
//! structure, never on names or numbers of tensors, so that equal layers share one pipeline.

mod accumulator;
pub mod attention;
pub mod check;
pub mod cooperative;
pub mod geometry;
pub mod index;
pub mod looped;
pub mod map;
pub mod matmul;
pub mod memory;
pub mod ops;
pub mod row;
pub mod scan;
pub mod stages;
pub mod thin;
mod unroll;
pub mod wgsl;

use crate::kernel::{Family, Kernel, KernelGraph, TensorId};
use crate::tuning::{self, Choice, Tuning};
use crate::{DeviceProfile, Diagnostic, Location};
use std::sync::Arc;
use wgfc_ir::program::Access;
use wgfc_ir::{Dim, Poly};

/// What emission needs to know beside the kernel.
#[derive(Clone, Copy)]
pub struct EmitContext<'a> {
    /// Where the kernel's tensors are described.
    pub graph: &'a KernelGraph,
    /// The program's symbols, in the order of the `Dims` uniform.
    pub symbols: &'a [Arc<str>],
    /// The target.
    pub profile: &'a DeviceProfile,
    /// Measured choices, which come before those of the models.
    pub tuning: &'a Tuning,
}

/// A kernel's text and what must be known to dispatch it.
#[derive(Clone, Debug)]
pub struct EmittedKernel {
    /// Which family made it.
    pub family: &'static str,
    /// The module, with one entry point `main`.
    pub wgsl: String,
    /// Invocations of a workgroup.
    pub workgroup_size: [u32; 3],
    /// The tensor at each binding of group 0, and how it is used.
    pub bindings: Vec<(TensorId, Access)>,
    /// Whether the binding after those is the `Dims` uniform.
    pub uses_dims: bool,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// WebGPU features it needs.
    pub features: Vec<String>,
    /// The size its subgroups must have.
    pub subgroup_size: Option<u32>,
    /// Workgroup counts.
    pub workgroups: [Dim; 3],
}

/// Writes one kernel.
///
/// # Errors
/// `Unsupported` where a static offset does not fit 31 bits; `Internal` where the kernel contradicts
/// itself or the text does not validate (the text is part of the message).
pub fn emit(kernel: &Kernel, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    emit_as(kernel, cx, tuning::find(kernel, cx))
}

/// [`emit`] with a choice from [`tuning::candidates`], or without one as the models of the families prefer.
///
/// # Errors
/// As [`emit`]; `Internal` for a choice of another family.
pub fn emit_as(
    kernel: &Kernel,
    cx: &EmitContext,
    choice: Option<Choice>,
) -> Result<EmittedKernel, Diagnostic> {
    let emitted = match (&kernel.family, choice) {
        (Family::Map(_), None) => map::emit(kernel, cx),
        (Family::PrefixScan(_), None) => scan::emit(kernel, cx),
        (Family::Loop(_), None) => looped::emit(kernel, cx),
        (Family::StagedLoop(_), None) => stages::emit(kernel, cx),
        (Family::Row(_), None) => row::emit_as(kernel, cx, None),
        (Family::Row(_), Some(Choice::Row(g))) => row::emit_as(kernel, cx, Some(g)),
        (Family::Matmul(_), None) => matmul::emit_as(kernel, cx, None),
        (Family::Matmul(_), Some(Choice::Product(g))) => matmul::emit_as(kernel, cx, Some(g)),
        (Family::Attention(_), None) => attention::emit_as(kernel, cx, None),
        (Family::Attention(_), Some(Choice::Attention(g))) => attention::emit_as(kernel, cx, Some(g)),
        (_, Some(c)) => Err(Diagnostic::internal(format!("{c} is not a choice of {}", kernel.family))),
    };
    emitted.and_then(|k| check::check(&k).map(|()| k)).map_err(|d| locate(d, kernel))
}

/// Says which nodes the kernel computes.
fn locate(d: Diagnostic, kernel: &Kernel) -> Diagnostic {
    if d.location != Location::default() {
        return d;
    }
    let node = kernel.nodes.first().cloned();
    d.at(Location { node, ..Location::default() })
}

/// Workgroups that cover `groups` in the x-then-y order in which templates number them.
pub fn fold_workgroups(groups: &Dim, max: u32) -> [Dim; 3] {
    let max = i64::from(max.max(1));
    match groups.as_const() {
        Some(g) if g <= max => [groups.clone(), Poly::ONE, Poly::ONE],
        Some(g) => {
            let y = (g + max - 1) / max;
            [Poly::constant((g + y - 1) / y), Poly::constant(y), Poly::ONE]
        }
        None => [groups.min_of(&Poly::constant(max), &[]), groups.ceil_div(max), Poly::ONE],
    }
}

/// A template that does not render.
pub(crate) fn template_error(e: wgfc_codegen_templates::RenderError) -> Diagnostic {
    Diagnostic::internal(e.to_string())
}
