//! How prefix scans are shared out: an invocation for each row, or where rows are long and may be few a workgroup.

use super::cost::estimate;
use crate::device::DeviceProfile;
use crate::kernel;
use wgfc_ir::Reg;

/// So many rows keep a device busy, an invocation each; a workgroup gains on rows of such a length.
const FEW: i64 = 2048;
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
pub fn candidates(k: &kernel::PrefixScan, device: &DeviceProfile) -> Vec<PrefixScan> {
    let most = device.max_invocations.max(1);
    let own = PrefixScan { threads: most.min(64), shared: false };
    let together = PrefixScan { threads: most.min(256), shared: true };
    let long = k.len.as_const().is_none_or(|n| n >= LONG);
    match (k.reduction.dtype.reg(), long && estimate(&k.rows) < FEW) {
        (Reg::Bool, _) => vec![own],
        (_, true) => vec![together, own],
        (_, false) => vec![own, together],
    }
}
