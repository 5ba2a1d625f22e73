//! How prefix scans are shared out: an invocation for each row, or where rows are long and may be few a workgroup.

use super::Context;
use crate::kernel;
use wgfc_ir::Reg;

/// This share of the invocations under way together are rows enough, an invocation each: 2048 on an H100, a fit.
const FEW: f64 = 128.0;
/// From this length on a row gains from a workgroup: less than one element of each invocation are left over.
const LONG: i64 = 128;

/// How a prefix scan is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixScan {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Whether the invocations of a workgroup share a row; otherwise each has one of its own.
    pub shared: bool,
}

/// All schedules of a prefix scan that a device can run, the preferred one first.
pub fn candidates(k: &kernel::PrefixScan, cx: &Context) -> Vec<PrefixScan> {
    let most = cx.device.max_invocations.max(1);
    let own = PrefixScan { threads: most.min(64), shared: false };
    let together = PrefixScan { threads: most.min(256), shared: true };
    let few = cx.device.speeds.share_of_resident(FEW);
    let long = cx.expect.known(&k.len).is_none_or(|n| n >= LONG);
    match (k.reduction.dtype.reg(), long && cx.expect.estimate(&k.rows) < few) {
        (Reg::Bool, _) => vec![own],
        (_, true) => vec![together, own],
        (_, false) => vec![own, together],
    }
}
