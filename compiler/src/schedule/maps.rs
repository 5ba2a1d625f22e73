//! How elements are shared out.

use super::Context;
use crate::Diagnostic;
use crate::kernel::Kernel;
use crate::kernel::bindings::{Bindings, Encoding, per_word};
use wgfc_ir::program::Access;

/// How a map kernel is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Neighbouring elements of an invocation: where results are packed, those of a word.
    pub elements: u32,
}

/// All schedules of a map kernel that a device can run, the preferred one first.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn candidates(kernel: &Kernel, cx: &Context) -> Result<Vec<Map>, Diagnostic> {
    let bindings = Bindings::of(kernel, cx.graph, cx.device.f16, true)?;
    let whole =
        bindings.list.iter().filter(|b| b.access == Access::ReadWrite && b.encoding == Encoding::Packed);
    let elements = whole.map(|b| per_word(b.dtype)).max().unwrap_or(1);
    let most = cx.device.max_invocations.max(1);
    let mut threads: Vec<u32> = [64, 32, 128, 256].into_iter().filter(|t| *t <= most).collect();
    if threads.is_empty() || most < 64 {
        threads.insert(0, most);
        threads.dedup();
    }
    Ok(threads.into_iter().map(|threads| Map { threads, elements }).collect())
}
