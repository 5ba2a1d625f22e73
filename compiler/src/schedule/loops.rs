//! How the lanes of loops are shared out.

use super::Context;
use crate::device::DeviceProfile;
use crate::kernel::{self, Array};
use wgfc_ir::Dim;

/// This share of the invocations under way together keeps a device busy with workgroups of [`THREADS`]: 32768 on an
/// H100, a fit.
const MANY: f64 = 8.0;
const THREADS: u32 = 64;

/// How a loop is computed, whether its lanes are invocations or workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// Invocations of a workgroup.
    pub threads: u32,
}

/// All schedules of a loop that a device can run, the preferred one first.
pub fn candidates(k: &kernel::Loop, cx: &Context) -> Vec<Loop> {
    let most = cx.device.max_invocations.max(1);
    let count: Dim = k.lanes.iter().product();
    // Few lanes are spread over more workgroups.
    let many = cx.device.speeds.share_of_resident(MANY);
    let preferred = if cx.expect.estimate(&count) < many { THREADS / 2 } else { THREADS };
    let mut out = vec![preferred.min(most)];
    for t in [32, 64, 128, 256] {
        if t <= most && !out.contains(&t) {
            out.push(t);
        }
    }
    out.into_iter().map(|threads| Loop { threads }).collect()
}

/// All schedules of a staged loop that a device can run, the preferred one first.
pub fn staged_candidates(k: &kernel::StagedLoop, device: &DeviceProfile) -> Vec<Loop> {
    let widest = k.stages().map(|s| s.elements).max().unwrap_or(1);
    let first = stage_threads(widest, device.max_invocations);
    let others = [32, 64, 128, 256].into_iter().filter(|t| *t < first);
    [first].into_iter().chain(others).map(|threads| Loop { threads }).collect()
}

/// Invocations of a workgroup whose largest stage has so many elements.
pub fn stage_threads(elements: u32, most: u32) -> u32 {
    elements.next_multiple_of(32).clamp(1, most.max(1))
}

/// Bytes of an array in workgroup memory.
pub fn array_bytes(a: &Array) -> u32 {
    let word = if a.dtype.bits() == 64 { 8 } else { 4 };
    a.len.saturating_mul(word)
}
