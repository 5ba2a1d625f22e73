//! The passes on kernels.

use super::{Context, verify_kernels};
use crate::device::DeviceProfile;
use crate::error::Errors;
use crate::kernel::{Kernel, KernelGraph, KernelTensor, TensorKind};
use crate::layout::{behind, flattened};
use crate::options::Precision;
use crate::precision::for_units;

/// Stores f32 values as f16, if the options say so.
pub(super) fn halve(kernels: &mut KernelGraph, cx: &mut Context<'_>) -> Result<(), Errors> {
    if cx.options.precision != Precision::F16 {
        return Ok(());
    }
    let (halved, rounds) = crate::precision::halve(kernels, cx.options, &cx.stats.operators, cx.outputs)?;
    cx.rounds = rounds;
    let (weights, between, kept) = (halved.weights, halved.between, halved.kept.len());
    tracing::debug!(stage = "precision", weights, between, kept, "done");
    let state = |t: &KernelTensor| matches!(t.kind, TensorKind::State { grows: false, .. });
    let scaled = cx.options.loss_scale.is_some();
    if !scaled && halved.weights + halved.between > 0 && kernels.tensors.iter().any(state) {
        cx.stats.warnings.push(
            "the model updates states from values stored as f16; if it is a training step, gradients may be too small for f16"
                .into(),
        );
    }
    cx.stats.halved = Some(halved);
    verify_kernels(kernels, "precision")
}

/// The form of the kernel with this number, of those that fusion made.
fn fitted(rounds: &[bool], i: usize, k: Kernel, device: &DeviceProfile) -> Kernel {
    match rounds.get(i) {
        Some(true) => flattened(for_units(k, device)),
        _ => flattened(k),
    }
}

/// Chooses the order in memory of the axes of tensors.
pub(super) fn arrange(kernels: &mut KernelGraph, cx: &mut Context<'_>) -> Result<(), Errors> {
    let fits = !cx.options.without_passes.contains("forms");
    let device = &cx.options.profile;
    let own = |i: usize, k: Kernel| if fits { fitted(&cx.rounds, i, k, device) } else { k };
    cx.arranged = crate::layout::arrange(kernels, device, &cx.options.expect, &own);
    let (moved, copies) = (cx.arranged.moved.len(), cx.arranged.copies.len());
    tracing::debug!(stage = "layout", moved, copies, "done");
    match moved {
        0 => Ok(()),
        _ => verify_kernels(kernels, "layout"),
    }
}

/// Gives each kernel its form.
pub(super) fn fit(kernels: &mut KernelGraph, cx: &mut Context<'_>) -> Result<(), Errors> {
    let own = behind(cx.arranged.copies.len(), |i, k| fitted(&cx.rounds, i, k, &cx.options.profile));
    let all = std::mem::take(&mut kernels.kernels);
    kernels.kernels = all.into_iter().enumerate().map(|(i, k)| own(i, k)).collect();
    Ok(())
}
