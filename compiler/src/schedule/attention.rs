//! How attention is cut up.

use super::Context;
use crate::device::DeviceProfile;
use crate::kernel::window::Window;
use crate::kernel::{self, Kernel};
use wgfc_codegen_templates::attention::Tiles;
use wgfc_ir::Dim;

/// The widest values a thread can hold the sums of, in the registers of any GPU.
pub const MAX_WIDTH: i64 = 256;
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
    /// The blocks and how threads share them out.
    pub tiles: Tiles,
    /// Invocations of the subgroups in which the threads of a query combine; 1 for none.
    pub subgroup: u32,
}

/// A workgroup for each query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decode {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Invocations of the subgroups in which threads combine first; 1 for none.
    pub subgroup: u32,
}

const fn tiles(queries: u32, thread_queries: u32, keys: u32, lanes: u32) -> Tiles {
    Tiles { queries, thread_queries, keys, lanes, depth: 0, kept: true }
}

/// Blocks of queries by blocks of keys, in order of preference; how much of the width is in memory comes on top.
const BLOCKS: &[Tiles] = &[
    tiles(64, 8, 64, 16),
    tiles(64, 8, 64, 8),
    tiles(64, 4, 64, 16),
    tiles(64, 8, 32, 8),
    tiles(64, 4, 32, 8),
    tiles(32, 4, 64, 16),
    tiles(32, 4, 32, 8),
    tiles(32, 2, 32, 8),
    tiles(16, 2, 64, 16),
    tiles(16, 1, 64, 16),
    tiles(16, 2, 32, 8),
    tiles(16, 1, 32, 8),
    tiles(8, 1, 128, 32),
    tiles(8, 1, 64, 16),
    tiles(8, 1, 32, 8),
];

/// Sums and scores that a thread may keep in registers.
const MOST_REGISTERS: u32 = 160;

/// What the choice depends on.
struct Problem {
    d: Option<u32>,
    e: u32,
    bounded: bool,
    again: bool,
}

impl Problem {
    fn of(kernel: &Kernel, k: &kernel::Attention) -> Problem {
        let bounded = Window::of(kernel).is_bounded();
        let width = |d: &Dim| d.as_const().and_then(|d| u32::try_from(d).ok()).filter(|d| *d > 0);
        Problem { d: width(&k.d), e: width(&k.e).unwrap_or(1), bounded, again: bounded && !k.empty_is_zero }
    }
    /// All blocks of queries that a device can run.
    fn tiled(&self, device: &DeviceProfile) -> Vec<Tiled> {
        let mut out = vec![];
        for block in BLOCKS {
            let subgroup =
                device.subgroup.filter(|s| *s >= block.lanes && block.threads().is_multiple_of(*s));
            let subgroup = subgroup.unwrap_or(1);
            let widest = self.d.unwrap_or(MAX_WIDTH as u32).max(self.e).next_power_of_two();
            for depth in [32, 64, 128].into_iter().filter(|depth| *depth == 32 || depth / 2 < widest) {
                let open = self.d.is_none_or(|d| d > depth);
                for kept in [true, false] {
                    let tiles = Tiles { depth, kept, ..*block };
                    let bytes = tiles.workgroup_bytes(self.d, self.e, subgroup, self.again);
                    let columns = self.e.div_ceil(4 * tiles.lanes) * 4;
                    let registers = tiles.thread_queries * (columns + tiles.keys / tiles.lanes);
                    let fits = tiles.is_sound()
                        && tiles.threads() <= device.max_invocations
                        && bytes <= device.max_workgroup_bytes
                        && registers <= MOST_REGISTERS;
                    // Queries can be kept where their width is known; where all of it is there at once they are.
                    let sensible = if open { !kept || self.d.is_some() } else { kept };
                    if fits && sensible {
                        out.push(Tiled { tiles, subgroup });
                    }
                }
            }
        }
        out
    }
}

/// Warps that keep a core's four schedulers busy; with fewer each step takes longer, by [`THIN_POWER`].
const WARPS: f64 = 10.0;
/// How much longer: the missing warps' ratio to this power.
const THIN_POWER: f64 = 0.75;
/// Cycles in which 32 threads read 16 bytes each from workgroup memory.
const READ: f64 = 1.5;
/// Operations that make a probability of a score.
const SOFTMAX: f64 = 14.0;
/// Latencies of memory that a workgroup takes to start and to store.
const OVERHEAD: f64 = 5.0 / 3.0;

/// Estimated time in cycles, as for [products](super::products::cost).
fn cycles(g: &Tiled, k: &kernel::Attention, p: &Problem, cx: &Context) -> f64 {
    let Tiles { queries, thread_queries, keys, lanes, depth, kept } = g.tiles;
    let speeds = &cx.device.speeds;
    let [batch, s, t] = [&k.batch, &k.s, &k.t].map(|d| cx.expect.extent(d));
    let (d, e) = (p.d.map_or(64.0, f64::from), f64::from(p.e));
    let columns = f64::from(p.e.div_ceil(4 * lanes));
    let chunks = (d / f64::from(depth)).ceil() + (e / f64::from(depth)).ceil();
    let threads = f64::from(g.tiles.threads());
    let [queries, rows, keys, lanes] = [queries, thread_queries, keys, lanes].map(f64::from);
    // Of a triangle half is seen.
    let seen = if p.bounded { (t / 2.0 + queries / 2.0).min(t) } else { t };
    let steps = (seen / keys).ceil();
    let workgroups = batch * (s / queries).ceil();
    let quads = (d / 4.0).ceil();
    let products = queries * keys * 4.0 * (quads + lanes * columns) / 128.0;
    let each = keys / lanes;
    let reads = quads * (rows + each) + keys / 4.0 * (rows + 4.0 * columns);
    let folding = if g.subgroup > 1 { 2.0 * lanes.log2() } else { lanes + 16.0 } * rows * threads / 128.0;
    let softmax = queries * keys * SOFTMAX / 128.0 + folding;
    let loads = keys * (d + e) * 0.06 + if kept { 0.0 } else { queries * d * 0.06 };
    let step = products + reads * READ * threads / 32.0 + softmax + loads + 30.0 * chunks;
    let alone = step * (WARPS * 32.0 / threads).max(1.0).powf(THIN_POWER);
    let end = queries * (d + e) / 32.0;
    let (busy, latency) = (steps * step + end, steps * alone.max(chunks * speeds.memory_latency) + end);
    let per_core = (workgroups / speeds.cores).ceil();
    let registers = 40.0 + rows * (4.0 * columns + each) + 4.0 * (rows + each);
    let resident = (65536.0 / registers / threads).floor().max(1.0);
    (per_core * busy).max((per_core / resident).ceil() * (latency + OVERHEAD * speeds.memory_latency))
}

/// A workgroup for each query, as the device has them.
pub fn decode(device: &DeviceProfile) -> Attention {
    let threads = device.max_invocations.min(256);
    let subgroup = device.subgroup.filter(|s| threads.is_multiple_of(*s)).unwrap_or(1);
    Attention::Decode(Decode { threads, subgroup })
}

/// All ways that a device can run on an attention kernel, the preferred one first.
pub fn candidates(kernel: &Kernel, k: &kernel::Attention, cx: &Context) -> Vec<Attention> {
    let device = cx.device;
    if k.parts > 1 {
        return vec![decode(device)];
    }
    let p = Problem::of(kernel, k);
    let mut all = p.tiled(device);
    let time = |g: &Tiled| cycles(g, k, &p, cx);
    all.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let tiled = all.into_iter().map(Attention::Tiled);
    let can = takes_decode(&k.d, device);
    let size = |d: &Dim| cx.expect.estimate(d).max(1);
    let few = k.s.as_const().is_some_and(|s| s <= 4) && size(&k.t) >= size(&k.s).saturating_mul(16);
    let some = k.s.as_const().is_some_and(|s| s <= MOST_QUERIES);
    let one = |there: bool| there.then(|| decode(device));
    one(can && few).into_iter().chain(tiled).chain(one(can && some && !few)).collect()
}

/// Whether a workgroup for each query can be had.
fn takes_decode(d: &Dim, device: &DeviceProfile) -> bool {
    d.as_const().is_some_and(|d| d <= MAX_WIDTH) && device.max_invocations >= 256
}
