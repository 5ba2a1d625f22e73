//! How attention is cut up.

use super::Context;
use crate::device::DeviceProfile;
use crate::kernel;
use wgfc_ir::Dim;

/// The widest values a thread can hold the sums of, in the registers of any GPU.
pub const MAX_WIDTH: i64 = 256;
/// Workgroups a core that keep a GPU busy; more than so many are not worth smaller ones. A fit, to 160 on an H100.
const ENOUGH: f64 = 1.25;
/// Queries up to which a workgroup for each of them may be worth trying.
const MOST_QUERIES: i64 = 16;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attention {
    /// Blocks of queries.
    Tiled(Tiled),
    /// A workgroup a query, for few queries.
    Decode(Decode),
}

/// Blocks of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiled {
    /// Queries of a workgroup.
    pub queries: u32,
    /// Queries of a thread, 1 or 2.
    pub thread_queries: u32,
    /// Elements along the width of queries and keys that are in workgroup memory at a time.
    pub depth: u32,
}

/// A workgroup for each query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decode {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Invocations of the subgroups in which threads combine first; 1 for none.
    pub subgroup: u32,
}

const fn tiled(queries: u32, thread_queries: u32, depth: u32) -> Tiled {
    Tiled { queries, thread_queries, depth }
}

/// Blocks of queries, largest first.
pub const TILED: &[Tiled] = &[tiled(64, 2, 16), tiled(32, 2, 32), tiled(16, 1, 32), tiled(8, 1, 32)];

impl Tiled {
    fn fits(self, device: &DeviceProfile) -> bool {
        self.queries / self.thread_queries * 8 <= device.max_invocations
    }
}

/// A workgroup for each query, as the device has them.
pub fn decode(device: &DeviceProfile) -> Attention {
    let threads = device.max_invocations.min(256);
    let subgroup = device.subgroup.filter(|s| threads.is_multiple_of(*s)).unwrap_or(1);
    Attention::Decode(Decode { threads, subgroup })
}

/// All ways that a device can run on an attention kernel, the preferred one first.
pub fn candidates(k: &kernel::Attention, cx: &Context) -> Vec<Attention> {
    let device = cx.device;
    if k.parts > 1 {
        return vec![decode(device)];
    }
    let first = preferred(k, cx);
    let few = k.s.as_const().is_some_and(|s| s <= MOST_QUERIES) && takes_decode(&k.d, device);
    let tiled = TILED.iter().filter(|g| g.fits(device)).map(|g| Attention::Tiled(*g));
    let others = tiled.chain(few.then(|| decode(device))).filter(|g| *g != first);
    [first].into_iter().chain(others).collect()
}

/// The largest blocks of queries that still make enough workgroups.
fn preferred(k: &kernel::Attention, cx: &Context) -> Attention {
    let device = cx.device;
    let enough = (ENOUGH * device.speeds.cores) as i64;
    let size = |d: &Dim| cx.expect.estimate(d).max(1);
    let few = k.s.as_const().is_some_and(|s| s <= 4) && size(&k.t) >= size(&k.s).saturating_mul(16);
    if few && takes_decode(&k.d, device) {
        return decode(device);
    }
    let busy = |g: &&Tiled| {
        let blocks = size(&k.s).saturating_add(i64::from(g.queries) - 1) / i64::from(g.queries);
        g.fits(device) && size(&k.batch).saturating_mul(blocks) >= enough
    };
    Attention::Tiled(*TILED.iter().find(busy).unwrap_or(&TILED[TILED.len() - 1]))
}

/// Whether a workgroup for each query can be had.
fn takes_decode(d: &Dim, device: &DeviceProfile) -> bool {
    d.as_const().is_some_and(|d| d <= MAX_WIDTH) && device.max_invocations >= 256
}
