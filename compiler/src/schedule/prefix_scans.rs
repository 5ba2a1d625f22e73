//! How prefix scans are shared out: an invocation for each row, or several where rows are long or lie one behind the other.

use super::Context;
use crate::kernel;
use crate::kernel::dependence::{Dependence, lie_side_by_side};
use wgfc_ir::Reg;

/// This share of the invocations under way together are rows enough, an invocation each, where they lie side by side: 2048 on
/// an H100, a fit.
const FEW: f64 = 128.0;
/// Up to this length an invocation has a row of its own.
const SHORT: i64 = 16;
/// Rows that are neighbours in memory at least, where rows lie side by side.
const SIDE_BY_SIDE: i64 = 8;
/// Neighbouring positions of an invocation.
const EACH: [u32; 3] = [8, 4, 16];

/// How a prefix scan is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixScan {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Invocations that share a row, a power of two that divides `threads`; 1 where each has one of its own.
    pub lanes: u32,
    /// Neighbouring positions that a lane takes at a time, a power of two; 1 where each invocation has a row of its own.
    pub each: u32,
}

/// Bytes of workgroup memory.
pub fn workgroup_bytes(k: &kernel::PrefixScan, s: &PrefixScan) -> u32 {
    let word = if matches!(k.reduction.dtype.reg(), Reg::I64 | Reg::U64) { 8 } else { 4 };
    if s.lanes > 1 { s.threads * (s.each + 1) * word } else { 0 }
}

/// Whether what a row reads lies beside what its neighbours do.
fn lies_across(kernel: &kernel::Kernel) -> bool {
    let deps = Dependence::of(kernel);
    let domain = kernel.domain();
    let stored = kernel.stores.iter().map(|s| &s.offset);
    let (mut along, mut across) = (0, 0);
    for offset in stored {
        along += u32::from(deps.is_unit_stride(offset, 1));
        across += u32::from(lie_side_by_side(offset, 0, SIDE_BY_SIDE, &domain));
    }
    across > along
}

/// All schedules of a prefix scan that a device can run, the preferred one first.
pub fn candidates(kernel: &kernel::Kernel, k: &kernel::PrefixScan, cx: &Context) -> Vec<PrefixScan> {
    let most = 1u32 << cx.device.max_invocations.clamp(1, 256).ilog2();
    let own = PrefixScan { threads: most.min(64), lanes: 1, each: 1 };
    if k.reduction.dtype.reg() == Reg::Bool || most < 2 {
        return vec![own];
    }
    let len = cx.expect.known(&k.len);
    let mut out: Vec<PrefixScan> = vec![];
    for each in EACH {
        let lanes = len.map_or(most, |n| {
            let n = (n.max(1) as u64).div_ceil(u64::from(each)).next_power_of_two();
            n.clamp(2, u64::from(most)) as u32
        });
        for s in [lanes, most].map(|lanes| PrefixScan { threads: most, lanes, each }) {
            if workgroup_bytes(k, &s) <= cx.device.max_workgroup_bytes && !out.contains(&s) {
                out.push(s);
            }
        }
    }
    let few = cx.device.speeds.share_of_resident(FEW);
    let short = len.is_some_and(|n| n <= SHORT);
    let many = lies_across(kernel) && cx.expect.estimate(&k.rows) >= few;
    // Nothing is gained from neighbours by a device that has few invocations under way.
    let alone = cx.device.speeds.resident < 1024.0;
    let at = if short || many || alone { 0 } else { 1.min(out.len()) };
    out.insert(at, own);
    out
}
