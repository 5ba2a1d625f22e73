//! How a product of matrices is cut up.
//!
//! The choice is the least of an estimated time, a plain function of the extents; ties go to the first
//! of [`candidates`]. The estimate is in cycles of a GPU with [`UNITS`] cores of 128 multiply-adds a
//! cycle:
//!
//! ```text
//! busy(workgroup)    = issue cycles of its multiply-adds, workgroup-memory reads and global loads
//! latency(workgroup) = steps · max(a step with only this workgroup's warps, a global load and its barrier) + start and end
//! per_core           = ⌈workgroups / UNITS⌉
//! time               = max(per_core · busy, ⌈per_core / resident⌉ · latency)
//! ```
//!
//! so large problems are decided by `busy` (large tiles win) and small ones by `latency` and by how
//! many cores get any work (small tiles and slices of k win). Symbolic extents count as
//! [`ASSUMED`] a symbol.

use crate::DeviceProfile;
use wgfc_codegen_templates::matmul::{Contiguous, TileShape};
use wgfc_ir::Dim;

/// Cores assumed, each running several workgroups at once.
pub const UNITS: f64 = 128.0;
/// The value a symbolic dimension is taken to have.
pub const ASSUMED: i64 = 64;
/// Cycles from asking for global memory until it is in workgroup memory and everybody knows.
const LATENCY: f64 = 600.0;
/// Cycles that a workgroup takes to start and to store.
const OVERHEAD: f64 = 1000.0;
/// Warps that keep a core's four schedulers busy; with fewer each step takes longer, by [`THIN_POWER`].
const WARPS: f64 = 10.0;
/// How much longer: the missing warps' ratio to this power. Both are fitted to an H100's times.
const THIN_POWER: f64 = 0.75;

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Geometry {
    /// Tiles in workgroup memory.
    Tiled(TileShape),
    /// All of at most `thread_rows` rows in every thread, k shared out.
    Thin {
        /// Rows of the accumulator; at least the product's rows.
        thread_rows: u32,
        /// Columns of a workgroup.
        tile_cols: u32,
        /// Threads that share one column.
        lanes: u32,
    },
    /// One thread a result.
    Serial,
}

/// What the choice depends on.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Independent products.
    pub batch: Dim,
    /// Rows.
    pub rows: Dim,
    /// Columns, along which results are stored.
    pub cols: Dim,
    /// Summed over.
    pub depth: Dim,
    /// Memory order of the operand with the rows.
    pub x: Contiguous,
    /// Memory order of the operand with the columns.
    pub y: Contiguous,
}

const fn tile(rows: u32, cols: u32, k: u32, thread_rows: u32, thread_cols: u32, split: u32) -> TileShape {
    TileShape { rows, cols, k, thread_rows, thread_cols, split }
}

/// Tile shapes in order of preference: for 16 KiB of workgroup memory and 256 invocations, or less.
pub const TILES: &[TileShape] = &[
    tile(128, 128, 8, 8, 8, 1),
    tile(128, 128, 16, 8, 8, 1),
    tile(64, 128, 8, 8, 4, 1),
    tile(128, 64, 8, 8, 4, 1),
    tile(64, 64, 8, 8, 8, 1),
    tile(64, 64, 16, 4, 4, 1),
    tile(64, 64, 32, 4, 4, 1),
    tile(32, 128, 16, 4, 4, 1),
    tile(128, 32, 16, 4, 4, 1),
    tile(32, 64, 16, 4, 4, 2),
    tile(64, 32, 16, 4, 4, 2),
    tile(32, 32, 8, 4, 4, 4),
    tile(32, 32, 16, 4, 4, 4),
    tile(32, 32, 32, 1, 4, 1),
    tile(16, 128, 8, 4, 4, 2),
    tile(16, 64, 8, 4, 4, 4),
    tile(16, 32, 8, 4, 4, 8),
    tile(32, 16, 8, 4, 4, 8),
    tile(16, 16, 8, 2, 4, 8),
    tile(16, 16, 16, 2, 4, 8),
    tile(8, 64, 8, 2, 4, 4),
    tile(8, 32, 8, 2, 4, 8),
];

/// All geometries that a device can run on a problem, tiled ones first.
pub fn candidates(p: &Problem, profile: &DeviceProfile) -> Vec<Geometry> {
    let fits =
        |threads: u32, bytes: u32| threads <= profile.max_invocations && bytes <= profile.max_workgroup_bytes;
    let mut out: Vec<Geometry> = TILES
        .iter()
        .filter(|t| fits(t.threads(), t.workgroup_bytes(profile.max_workgroup_bytes)))
        .map(|t| Geometry::Tiled(*t))
        .collect();
    if let Some(rows) = p.rows.as_const().filter(|r| (1..=8).contains(r)) {
        let thread_rows = rows as u32;
        for (tile_cols, lanes) in [(64, 4), (32, 8), (16, 16), (8, 32), (4, 64), (2, 128)] {
            if fits(tile_cols * lanes, tile_cols * lanes * thread_rows * 4) {
                out.push(Geometry::Thin { thread_rows, tile_cols, lanes });
            }
        }
    }
    out.push(Geometry::Serial);
    out
}

/// The geometry of least estimated time.
pub fn choose(p: &Problem, profile: &DeviceProfile) -> Geometry {
    let mut best = (f64::INFINITY, Geometry::Serial);
    for g in candidates(p, profile) {
        let t = cycles(g, p);
        if t < best.0 {
            best = (t, g);
        }
    }
    best.1
}

/// An extent, with symbols at their assumed value; at least 1.
pub fn size(d: &Dim) -> f64 {
    d.eval_syms(&|_| Some(ASSUMED)).unwrap_or(i64::MAX).max(1) as f64
}

/// Estimated time in cycles.
pub fn cycles(g: Geometry, p: &Problem) -> f64 {
    let (batch, rows, cols, depth) = (size(&p.batch), size(&p.rows), size(&p.cols), size(&p.depth));
    let (workgroups, threads, busy, latency) = match g {
        Geometry::Tiled(t) => {
            let [tr, tc, tk, mr, mc, split] =
                [t.rows, t.cols, t.k, t.thread_rows, t.thread_cols, t.split].map(f64::from);
            let threads = f64::from(t.threads());
            let workgroups = batch * (rows / tr).ceil() * (cols / tc).ceil();
            let steps = (depth / (tk * split)).ceil();
            let products = tr * tc * tk * split / 128.0;
            let reads = threads / 32.0 * tk * (mr + mc) / 4.0 * 1.5;
            let loads = (tr + tc) * tk * split * 0.2;
            let step = products + reads + loads + 30.0;
            let end = tr * tc * split / 32.0;
            let alone = step * (WARPS * 32.0 / threads).max(1.0).powf(THIN_POWER);
            (workgroups, threads, steps * step + end, steps * alone.max(LATENCY) + end)
        }
        Geometry::Thin { thread_rows, tile_cols, lanes } => {
            let [mr, tc, lanes] = [thread_rows, tile_cols, lanes].map(f64::from);
            let threads = tc * lanes;
            let steps = (depth / lanes).ceil();
            // Sectors of 32 bytes that a warp touches, compared with the 4 it uses.
            let scatter = match p.y {
                Contiguous::Line => (8.0 / tc).max(1.0),
                Contiguous::Depth => (8.0 / lanes).max(1.0),
            };
            let busy = threads / 32.0 * steps * (8.0 * scatter + 4.0 * mr) / 4.0;
            let latency = (steps / 8.0).ceil() * LATENCY * 0.8 + lanes.log2() * 60.0;
            (batch * (cols / tc).ceil(), threads, busy, latency.max(busy))
        }
        Geometry::Serial => {
            let threads = 128.0;
            let scatter = if p.y == Contiguous::Depth && cols > 1.0 { depth.min(8.0) } else { 1.0 };
            let busy = threads / 32.0 * depth * (12.0 + 8.0 * scatter) / 4.0;
            let latency = (depth / 8.0).ceil() * LATENCY * 0.8;
            ((batch * rows * cols / threads).ceil(), threads, busy, latency.max(busy))
        }
    };
    let per_core = (workgroups / UNITS).ceil();
    // Registers bound how many are resident: about 512 threads of large micro-tiles, else 1024.
    let resident = match g {
        Geometry::Tiled(t) if t.thread_rows * t.thread_cols >= 32 => (512.0 / threads).max(1.0),
        _ => (1024.0 / threads).max(1.0),
    };
    (per_core * busy).max((per_core / resident).ceil() * (latency + OVERHEAD))
}
