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
use serde::{Deserialize, Serialize};
use std::fmt;
use wgfc_codegen_templates::cooperative::CooperativeShape;
use wgfc_codegen_templates::matmul::{Contiguous, TileShape};
use wgfc_codegen_templates::thin::{Results, ThinShape};
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

/// Cycles that a step of matrix units takes at least: a load, two barriers, and products one after another.
const MATRIX_LATENCY: f64 = 1400.0;
/// Multiply-adds of f16 that a core's matrix units do in a cycle, fed from workgroup memory.
const MATRIX_PRODUCTS: f64 = 1000.0;

/// Loads of 16 bytes that a thread of a thin product has under way.
const UNDER_WAY: [f64; 3] = [4.0, 8.0, 16.0];
/// Sums that a thread of a thin product keeps.
const MOST_SUMS: u32 = 64;
/// Multiply-adds that the loop of a thin product spells out.
const MOST_PRODUCTS: u32 = 256;
/// One product and nothing else.
pub const SINGLE: Results = Results { products: 1, sums: 0 };

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Geometry {
    /// Tiles in workgroup memory.
    Tiled(TileShape),
    /// Tiles in workgroup memory, multiplied by matrix units.
    Cooperative(CooperativeShape),
    /// All of a few rows in every thread, k shared out.
    Thin(ThinShape),
    /// One thread a result.
    Serial,
}

impl fmt::Display for Geometry {
    /// Tiles as rows x columns x k, those of a thread, slices of k; blocks of a thin product as k x
    /// columns, threads over columns x over k, blocks under way.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Geometry::Tiled(t) => {
                let TileShape { rows, cols, k, thread_rows, thread_cols, split } = t;
                write!(f, "tiles {rows}x{cols}x{k} {thread_rows}x{thread_cols} /{split}")
            }
            Geometry::Cooperative(s) => {
                let CooperativeShape { rows, cols, k, sub_rows, sub_cols } = s;
                write!(f, "matrices {rows}x{cols}x{k} {sub_rows}x{sub_cols}")
            }
            Geometry::Thin(t) => {
                let ThinShape { k, cols, across, lanes, unroll, .. } = t;
                write!(f, "thin {k}x{cols} /{across}x{lanes} u{unroll}")
            }
            Geometry::Serial => f.write_str("serial"),
        }
    }
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
    /// What is summed; only thin geometries make more than one product.
    pub results: Results,
    /// Bits of memory that one k and column of the operands with the columns take.
    pub bits: f64,
    /// Elements of the widest vectors in which they can be read, along their memory order.
    pub vector: u32,
    /// Operations that make an element of the rows which a thin workgroup stages; 0 where nothing is.
    pub staged: f64,
    /// Both operands are f16 and can be read by eights.
    pub half: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { batch, rows, cols, depth, .. } = self;
        write!(f, "[{batch}, {rows}, {cols}, {depth}] x by {:?} y by {:?}", self.x, self.y)?;
        let Results { products, sums } = self.results;
        write!(f, ", {products} products {sums} sums")?;
        write!(f, ", {} bits in {}s, staged {}", self.bits, self.vector, self.staged)?;
        if self.half { f.write_str(", f16 by eights") } else { Ok(()) }
    }
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

const fn blocks(rows: u32, cols: u32, k: u32, sub_rows: u32, sub_cols: u32) -> CooperativeShape {
    CooperativeShape { rows, cols, k, sub_rows, sub_cols }
}

/// Tiles for matrix units in order of preference.
pub const COOPERATIVE: &[CooperativeShape] = &[
    blocks(128, 128, 32, 64, 32),
    blocks(64, 128, 32, 32, 32),
    blocks(128, 64, 32, 32, 32),
    blocks(64, 64, 32, 32, 32),
    blocks(64, 64, 64, 32, 32),
    blocks(64, 64, 128, 32, 32),
    blocks(64, 32, 64, 32, 16),
    blocks(64, 32, 128, 32, 16),
    blocks(32, 64, 64, 16, 32),
    blocks(32, 32, 64, 16, 16),
    blocks(32, 32, 128, 16, 16),
    blocks(16, 64, 64, 16, 16),
];

/// All geometries that a device can run on a problem, tiled ones first.
pub fn candidates(p: &Problem, profile: &DeviceProfile) -> Vec<Geometry> {
    let fits =
        |threads: u32, bytes: u32| threads <= profile.max_invocations && bytes <= profile.max_workgroup_bytes;
    let single = p.results == SINGLE;
    let mut out: Vec<Geometry> = TILES
        .iter()
        .filter(|t| single && fits(t.threads(), t.workgroup_bytes(profile.max_workgroup_bytes)))
        .map(|t| Geometry::Tiled(*t))
        .collect();
    // With fewer rows than that, reading the columns' operand is all there is to do.
    let rows = p.rows.as_const().is_none_or(|r| r > 8);
    let matrices = COOPERATIVE
        .iter()
        .filter(|s| single && rows && p.half && super::cooperative::fits(**s, p.x, p.y, profile));
    out.extend(matrices.map(|s| Geometry::Cooperative(*s)));
    out.extend(thin_shapes(p, profile).into_iter().map(Geometry::Thin));
    if single {
        out.push(Geometry::Serial);
    }
    out
}

/// The shapes for few rows that a device can run.
fn thin_shapes(p: &Problem, profile: &DeviceProfile) -> Vec<ThinShape> {
    let Some(rows) = p.rows.as_const().filter(|r| (1..=8).contains(r)).map(|r| r as u32) else {
        return vec![];
    };
    let divides = |d: &Dim, by: u32| d.modulo(&Dim::constant(i64::from(by)), &[]).is(0);
    let depth_first = p.y == Contiguous::Depth;
    let mut blocks = vec![];
    for v in [p.vector, p.vector / 2].into_iter().filter(|v| *v > 1 || *v == p.vector) {
        for other in [1, 2, 4, 8] {
            let (k, cols) = if depth_first { (v, other) } else { (other, v) };
            if divides(&p.depth, k) && divides(&p.cols, cols) {
                blocks.push((k, cols));
            }
        }
    }
    let mut out = vec![];
    for (k, cols) in blocks {
        // Vectors of 16 bytes that a block takes.
        let loads = (f64::from(k * cols) * p.bits / 128.0).ceil();
        for threads in [32, 64, 128, 256, 512, 1024].into_iter().filter(|t| *t <= profile.max_invocations) {
            for across in (0..7).map(|a| 1 << a).filter(|a| *a <= threads) {
                let lanes = threads / across;
                let blocks = p.depth.as_const().map(|d| (d as u64).div_ceil(u64::from(k * lanes)).max(1));
                let mut last = 0;
                for under_way in UNDER_WAY {
                    let most = ((under_way / loads) as u64).clamp(1, 8);
                    let unroll = blocks.map_or(most, |b| b.div_ceil(b.div_ceil(most))) as u32;
                    let shape = ThinShape { rows, k, cols, across, lanes, unroll, depth_first };
                    let products = k * cols * unroll * rows * p.results.products;
                    if unroll != last
                        && shape.accumulators(p.results) <= MOST_SUMS
                        && (products <= MOST_PRODUCTS || (unroll == 1 && cols * rows <= 8))
                        && shape.round(p.results, super::thin::room(profile)) > 0
                    {
                        out.push(shape);
                    }
                    last = unroll;
                }
            }
        }
    }
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
        Geometry::Cooperative(s) => {
            let [tr, tc, tk] = [s.rows, s.cols, s.k].map(f64::from);
            let threads = f64::from(s.subgroups() * 32);
            let workgroups = batch * (rows / tr).ceil() * (cols / tc).ceil();
            let steps = (depth / tk).ceil();
            let step = tr * tc * tk / MATRIX_PRODUCTS + (tr + tc) * tk * 0.05 + 60.0;
            let end = tr * tc / 16.0;
            (workgroups, threads, steps * step + end, steps * step.max(MATRIX_LATENCY) + end)
        }
        Geometry::Thin(t) => return thin_cycles(t, p),
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

/// Bytes a cycle that all cores together read from memory.
const MEMORY: f64 = 1600.0;
/// Bytes a cycle that one core takes in.
const CORE_READS: f64 = 40.0;
/// Cycles of a load from memory that many others are waiting for too.
const MEMORY_LATENCY: f64 = 900.0;

/// Estimated time of a thin product in cycles: the longest of reading all weights, of the loads that
/// one workgroup waits for one after another, and of its instructions; a part of the others.
fn thin_cycles(t: ThinShape, p: &Problem) -> f64 {
    let (batch, cols, depth) = (size(&p.batch), size(&p.cols), size(&p.depth));
    let [rows, k, block_cols, across, lanes, unroll] =
        [t.rows, t.k, t.cols, t.across, t.lanes, t.unroll].map(f64::from);
    let threads = f64::from(t.threads());
    let workgroups = batch * (cols / f64::from(t.tile_cols())).ceil();
    let rounds = (depth / (k * lanes * unroll)).ceil();
    let products = f64::from(p.results.products);
    let one = p.bits / products;
    // Bytes side by side that neighbouring threads read: whole sectors of 32, better two of them.
    let run = if t.depth_first { lanes * k } else { across * block_cols } * one / 8.0;
    let spread = if run < 32.0 { 32.0 / run } else { 1.0 + 4.0 / run };
    let per_core = (workgroups / UNITS).ceil();
    let tile_bytes = f64::from(t.tile_cols()) * depth * p.bits / 8.0;
    let reading = (batch * cols * depth * p.bits / 8.0 * spread / MEMORY)
        .max(per_core * tile_bytes * spread / CORE_READS);

    let sums = f64::from(t.accumulators(p.results));
    let registers = 32.0 + sums + unroll * k * (block_cols * p.bits / 32.0 + rows);
    let resident = ((65536.0 / registers).min(2048.0) / threads).floor().max(1.0);
    let folding = 300.0 + 60.0 * lanes.log2() / 2.0 + sums * threads / 32.0;
    let alone = rounds * MEMORY_LATENCY + folding;

    let unpack = if one >= 32.0 {
        0.0
    } else if one >= 16.0 {
        1.0
    } else {
        4.0
    };
    let narrow = if t.k * t.cols == 1 { 6.0 } else { 0.0 };
    // A load brings 16 bytes at most: of neighbouring weights, or of `x`.
    let width = (if t.depth_first { k } else { block_cols } * one / 8.0).min(16.0);
    let loads = k * block_cols * p.bits / 8.0 / width + rows * (k / 4.0).ceil();
    let block = k * block_cols * products * (unpack + rows) + 4.0 * loads + narrow;
    let instructions = rounds * unroll * block * threads / 128.0 + folding / 4.0;

    let parts = [reading, (per_core / resident).ceil() * alone, per_core * instructions];
    let longest = parts.iter().fold(0.0, |a: f64, b| a.max(*b));
    // A few threads stage for long.
    let stage = match p.staged {
        0.0 => 0.0,
        ops => MEMORY_LATENCY + 2.0 * ops * rows * depth / threads,
    };
    OVERHEAD + stage + longest + 0.2 * (parts.iter().sum::<f64>() - longest)
}
