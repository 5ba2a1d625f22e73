//! How a product of matrices is cut up.
//!
//! The choice is the least of an [estimated time](cost), a plain function of the extents; ties go to the first of
//! [`candidates`].

pub mod cost;
pub mod integers;
pub mod problem;
mod shapes;
mod steps;
pub mod window;

pub use shapes::{Contiguous, CooperativeShape, EIGHT, Results, Room, ThinShape, TileShape};

use crate::cost::Expected;
use crate::device::DeviceProfile;
use problem::Problem;
use wgfc_ir::Dim;
use window::Window;

/// Loads of 16 bytes that a thread of a thin product has under way.
const UNDER_WAY: [f64; 3] = [4.0, 8.0, 16.0];
/// Rows of a thin product at most; where weights are read one by one, half as many.
const MOST_ROWS: i64 = 16;
/// Sums of products that a thread of a thin product keeps in registers.
const MOST_SUMS: u32 = 64;
/// Multiply-adds that the loop of a thin product spells out: a bound on the text of a kernel.
const MOST_PRODUCTS: u32 = 256;
/// One product and nothing else.
pub const SINGLE: Results = Results { products: 1, sums: 0 };

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// Tiles in workgroup memory.
    Tiled(Tiled),
    /// Tiles in workgroup memory, multiplied by matrix units.
    Cooperative(Cooperative),
    /// Tiles of integers in workgroup memory, of rows that are rounded.
    TiledIntegers(TiledIntegers),
    /// All of a few rows in every thread, k shared out.
    Thin(Thin),
    /// A block of results a thread, their sums written out.
    Window(Window),
    /// A block of results a thread, in registers.
    Block(Block),
    /// One thread a result.
    Serial(Serial),
}

/// Tiles of both operands in workgroup memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiled {
    /// Extents of the tiles.
    pub shape: TileShape,
    /// Buffers of tiles: two save a barrier.
    pub buffers: u32,
    /// Fours of k that a turn of the loop over a tile's depth spells out.
    pub unroll: u32,
    /// Whether neighbouring workgroups take neighbouring rows rather than columns.
    pub rows_first: bool,
}

/// Tiles for matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cooperative {
    /// Extents of the tiles.
    pub shape: CooperativeShape,
    /// Steps whose elements an invocation has read or is reading while it multiplies those of another: 1 or 2.
    pub ahead: u32,
    /// Invocations of a subgroup.
    pub subgroup: u32,
}

impl Cooperative {
    /// Whether a depth has steps for it: an even number, if the elements of two are read ahead.
    pub fn suits(&self, depth: &Dim) -> bool {
        let steps = i64::from(self.ahead * self.shape.k);
        self.ahead == 1 || depth.as_const().is_some_and(|depth| depth > 0 && depth % steps == 0)
    }
}

/// Tiles of both operands in workgroup memory, as integers of 8 bits with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TiledIntegers {
    /// Extents of the tiles: k in whole groups, rows and columns of a thread in fours, one slice.
    pub shape: TileShape,
    /// Buffers of tiles: two save a barrier.
    pub buffers: u32,
    /// Whether neighbouring workgroups take neighbouring rows rather than columns.
    pub rows_first: bool,
}

/// Few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thin {
    /// Extents of the blocks and how threads share them out.
    pub shape: ThinShape,
    /// Whether the rows are computed once for the workgroup, in its memory.
    pub staged: bool,
    /// Whether they are rounded there to 8 bits, and multiplied with weights as integers.
    pub integers: bool,
    /// Bytes of workgroup memory in which sums are added up.
    pub bytes: u32,
    /// Invocations of the subgroups in which sums are added up first; 1 for none.
    pub subgroup: u32,
}

/// A block of results for each thread, which shares nothing with others and so waits for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Rows of the block.
    pub rows: u32,
    /// Columns of the block.
    pub cols: u32,
    /// Neighbouring columns that are read and stored together: 1 or 4.
    pub width: u32,
}

/// A thread for each result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Serial {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Terms that the loop over k spells out.
    pub unrolled: u32,
}

impl Product {
    /// Results whose stores are in the text of an invocation, unless these are in a loop anyway.
    pub fn results_of_invocation(&self) -> u32 {
        match self {
            Product::Tiled(t) => t.shape.thread_rows * t.shape.thread_cols,
            Product::Cooperative(c) => {
                let threads = (c.shape.subgroups() * c.subgroup).max(1);
                c.shape.rows * c.shape.cols / threads
            }
            Product::TiledIntegers(t) => t.shape.thread_rows * t.shape.thread_cols,
            Product::Window(w) => w.rows * w.cols,
            Product::Block(b) => b.rows * b.cols,
            Product::Thin(_) | Product::Serial(_) => 1,
        }
    }
}

impl Thin {
    /// The memory in which sums are added up.
    pub fn room(&self) -> Room {
        Room { bytes: self.bytes, subgroup: self.subgroup }
    }
}

const fn tile(rows: u32, cols: u32, k: u32, thread_rows: u32, thread_cols: u32, split: u32) -> TileShape {
    TileShape { rows, cols, k, thread_rows, thread_cols, split }
}

/// Tile shapes in order of preference: for 16 KiB of workgroup memory and 256 invocations, or less.
pub const TILES: &[TileShape] = &[
    tile(128, 128, 8, 8, 8, 1),
    tile(128, 128, 16, 8, 8, 1),
    tile(128, 128, 32, 8, 8, 1),
    tile(64, 128, 16, 8, 8, 1),
    tile(128, 64, 16, 8, 8, 1),
    tile(64, 128, 16, 8, 8, 2),
    tile(128, 64, 16, 8, 8, 2),
    tile(64, 64, 16, 8, 8, 1),
    tile(64, 64, 16, 8, 8, 2),
    tile(64, 64, 16, 8, 8, 4),
    tile(32, 64, 16, 8, 4, 4),
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
    tile(16, 64, 16, 8, 4, 8),
    tile(16, 32, 16, 4, 4, 8),
    tile(16, 32, 32, 4, 4, 8),
    tile(32, 64, 16, 8, 8, 8),
    tile(32, 64, 8, 8, 4, 4),
    tile(32, 32, 16, 8, 4, 8),
    tile(64, 32, 16, 8, 4, 4),
    tile(64, 32, 16, 8, 8, 8),
    tile(32, 128, 16, 8, 8, 4),
    tile(16, 16, 8, 2, 4, 8),
    tile(16, 16, 16, 2, 4, 8),
    tile(8, 64, 8, 2, 4, 4),
    tile(8, 32, 8, 2, 4, 8),
];

/// Tiles of integers in order of preference.
pub const INTEGER_TILES: &[TileShape] = &[
    tile(128, 128, 32, 8, 8, 1),
    tile(128, 64, 32, 8, 8, 1),
    tile(128, 64, 64, 8, 8, 1),
    tile(64, 128, 32, 8, 8, 1),
    tile(64, 64, 32, 8, 8, 1),
    tile(128, 64, 32, 8, 4, 1),
    tile(64, 128, 32, 8, 4, 1),
    tile(64, 64, 64, 8, 4, 1),
    tile(64, 64, 32, 8, 4, 1),
    tile(64, 64, 32, 4, 4, 1),
    tile(32, 128, 32, 8, 4, 1),
    tile(32, 64, 64, 4, 4, 1),
    tile(32, 64, 32, 4, 4, 1),
    tile(64, 32, 64, 4, 4, 1),
    tile(32, 32, 128, 4, 4, 1),
    tile(32, 32, 64, 4, 4, 1),
    tile(16, 64, 128, 4, 4, 1),
    tile(16, 64, 64, 4, 4, 1),
    tile(16, 32, 128, 4, 4, 1),
    tile(16, 32, 32, 4, 4, 1),
];

/// Rows and columns of a thread's block in order of preference.
pub const BLOCKS: &[(u32, u32)] =
    &[(8, 4), (4, 4), (8, 2), (4, 2), (2, 4), (8, 1), (1, 8), (4, 1), (1, 4), (2, 2), (2, 1), (1, 2)];

/// Rows and columns of a thread's block of vectors in order of preference.
pub const VECTOR_BLOCKS: &[(u32, u32)] = &[(16, 4), (8, 8), (8, 4), (12, 4), (4, 8), (4, 4), (16, 8)];

const fn blocks(rows: u32, cols: u32, k: u32, sub_rows: u32, sub_cols: u32) -> CooperativeShape {
    CooperativeShape { rows, cols, k, sub_rows, sub_cols }
}

/// Rows of a product up to which reading the columns' operand is all there is to do: matrix units gain nothing.
pub const FEW_ROWS: i64 = 8;

/// Rows up to which a product's threads each make all of them, whatever else a device has. Taking quantised weights apart for the tiles of
/// matrix units takes as long as multiplying them with four rows without: a step of an 8B decoder in Q4_K_M with 4, 8 and 16 rows takes
/// 12, 21 and 14 ms on an H100.
pub fn few_rows(quantised: bool, device: &DeviceProfile) -> i64 {
    if quantised && device.has_matrix_units() { FEW_ROWS / 2 } else { FEW_ROWS }
}

/// Tiles for matrix units in order of preference.
pub const COOPERATIVE: &[CooperativeShape] = &[
    blocks(128, 128, 32, 64, 64),
    blocks(128, 256, 32, 64, 64),
    blocks(256, 128, 32, 64, 64),
    blocks(128, 128, 64, 64, 32),
    blocks(128, 128, 32, 64, 32),
    blocks(64, 128, 32, 32, 64),
    blocks(128, 64, 32, 64, 32),
    blocks(64, 128, 64, 32, 64),
    blocks(128, 64, 64, 64, 32),
    blocks(64, 128, 64, 32, 32),
    blocks(64, 64, 32, 32, 32),
    blocks(64, 64, 64, 32, 32),
    blocks(64, 64, 128, 32, 32),
    blocks(64, 32, 64, 32, 16),
    blocks(64, 32, 128, 32, 16),
    blocks(32, 128, 32, 32, 32),
    blocks(32, 128, 64, 32, 32),
    blocks(32, 64, 64, 16, 32),
    blocks(32, 32, 64, 16, 16),
    blocks(32, 32, 128, 16, 16),
    blocks(16, 64, 64, 16, 16),
    blocks(16, 128, 128, 16, 32),
];

/// All ways that a device can run on a problem, tiled ones first.
pub fn candidates(p: &Problem, device: &DeviceProfile, expect: &Expected) -> Vec<Product> {
    let limit = device.max_workgroup_bytes;
    let fits = |threads: u32, bytes: u32| threads <= device.max_invocations && bytes <= limit;
    let single = p.results == SINGLE;
    let rows_first = expect.extent(&p.cols) > expect.extent(&p.rows);
    let mut out: Vec<Product> = vec![];
    for shape in TILES.iter().filter(|_| single).copied() {
        for buffers in [2, 1].into_iter().filter(|b| fits(shape.threads(), shape.workgroup_bytes(*b))) {
            for unroll in [shape.k / 4, 1] {
                out.push(Product::Tiled(Tiled { shape, buffers, unroll, rows_first }));
            }
        }
    }
    let quantised = p.making[1].run.instructions > 0.0;
    let rows = p.rows.as_const().is_none_or(|r| r > few_rows(quantised, device));
    if let Some(subgroup) = device.subgroup.filter(|_| single && rows && p.half) {
        let matrices = COOPERATIVE.iter().filter(|s| fits_matrix_units(**s, p, device));
        // Words of quantised weights take few registers.
        let ahead = if quantised { 1..=2 } else { 1..=1 };
        let forms = matrices.flat_map(|shape| ahead.clone().map(|ahead| (*shape, ahead)));
        let forms = forms.map(|(shape, ahead)| Cooperative { shape, ahead, subgroup });
        out.extend(forms.filter(|c| c.suits(&p.depth)).map(Product::Cooperative));
    }
    if let Some(integers) = p.integers {
        for shape in INTEGER_TILES.iter().filter(|_| single).copied() {
            for buffers in [2, 1] {
                let tiled = TiledIntegers { shape, buffers, rows_first };
                let bytes = tiled.workgroup_bytes(integers.unit, integers.offsets);
                if tiled.suits(&p.depth) && fits(shape.threads(), bytes) {
                    out.push(Product::TiledIntegers(tiled));
                }
            }
        }
        let shapes = thin_shapes(p, device, true).into_iter();
        out.extend(shapes.filter_map(|shape| integers::thin(shape, p, device)).map(Product::Thin));
    }
    out.extend(thin_shapes(p, device, false).into_iter().map(|shape| Product::Thin(thin(shape, p, device))));
    for w in p.windows.iter().filter(|_| single) {
        let threads = device.max_invocations.clamp(1, 128);
        out.push(Product::Window(Window { threads, rows: w.rows, cols: w.cols }));
    }
    if single {
        out.push(Product::Serial(serial(p, device)));
        out.extend(blocks_of_threads(p, device).map(Product::Block));
    }
    out
}

/// The blocks of a thread that a problem has rows and columns for.
fn blocks_of_threads(p: &Problem, device: &DeviceProfile) -> impl Iterator<Item = Block> {
    let threads = device.max_invocations.clamp(1, 128);
    let (rows, cols) = (p.rows.as_const(), p.cols.as_const());
    let has = |extent: Option<i64>, n: u32| n == 1 || extent.is_none_or(|e| e > i64::from(n / 2));
    let vectors = p.y == Contiguous::Line && p.fours[1];
    let wide = VECTOR_BLOCKS.iter().filter(move |_| vectors).map(|b| (b, 4));
    let all = BLOCKS.iter().map(|b| (b, 1)).chain(wide);
    let fits = move |((r, c), _): &(&(u32, u32), u32)| has(rows, *r) && has(cols, *c);
    all.filter(fits).map(move |((rows, cols), width)| Block { threads, rows: *rows, cols: *cols, width })
}

/// A thread for each result, as the device has them.
pub fn serial(p: &Problem, device: &DeviceProfile) -> Serial {
    let unrolled = p.depth.as_const().unwrap_or(0).clamp(0, 32) as u32;
    Serial { threads: device.max_invocations.clamp(1, 128), unrolled }
}

/// Blocks for few rows with what the device has for adding up sums.
pub fn thin(shape: ThinShape, p: &Problem, device: &DeviceProfile) -> Thin {
    let all = Room { bytes: device.max_workgroup_bytes, subgroup: device.subgroup.unwrap_or(1) };
    let beside = |stage: u32| Room { bytes: all.bytes.saturating_sub(stage), ..all };
    let stage = stage_bytes(shape, p)
        .filter(|b| shape.round(p.results, beside(*b)) >= shape.accumulators(p.results).min(8));
    let Room { bytes, subgroup } = beside(stage.unwrap_or(0));
    Thin { shape, staged: stage.is_some(), integers: false, bytes, subgroup }
}

/// Bytes that staging the rows takes, where it is worth it.
pub fn stage_bytes(shape: ThinShape, p: &Problem) -> Option<u32> {
    let depth = p.depth.as_const().and_then(|k| u32::try_from(k).ok()).filter(|k| *k <= 1 << 16)?;
    (p.staged > 0.0).then_some(depth * shape.rows * 4)
}

/// Whether the device's matrix units can run it.
fn fits_matrix_units(shape: CooperativeShape, p: &Problem, device: &DeviceProfile) -> bool {
    let Some(subgroup) = device.subgroup.filter(|_| device.has_matrix_units()) else {
        return false;
    };
    shape.subgroups() * subgroup <= device.max_invocations
        && shape.divides(subgroup)
        && shape.workgroup_bytes(p.x, p.y) <= device.max_workgroup_bytes
}

/// The shapes for few rows that a device can run, in integers or in floats.
fn thin_shapes(p: &Problem, profile: &DeviceProfile, integers: bool) -> Vec<ThinShape> {
    let most = if p.vector > 1 { MOST_ROWS } else { MOST_ROWS / 2 };
    let Some(rows) = p.rows.as_const().filter(|r| (1..=most).contains(r)).map(|r| r as u32) else {
        return vec![];
    };
    // The widest loads, those of half the width, and narrower ones only where sums of all columns of these do not fit.
    let of = |vectors: &[u32]| thin_shapes_of(p, profile, rows, vectors, integers);
    let mut wide = of(&[p.vector, p.vector / 2]);
    let mut v = p.vector / 4;
    while wide.is_empty() && v > 0 {
        wide = of(&[v]);
        v /= 2;
    }
    wide
}

/// The shapes that read vectors of so many elements.
fn thin_shapes_of(
    p: &Problem,
    profile: &DeviceProfile,
    rows: u32,
    vectors: &[u32],
    integers: bool,
) -> Vec<ThinShape> {
    let divides = |d: &Dim, by: u32| d.modulo(&Dim::constant(i64::from(by)), &[]).is(0);
    let depth_first = p.y == Contiguous::Depth;
    let mut blocks = vec![];
    for v in vectors.iter().copied().filter(|v| *v > 1 || vectors == [1] || *v == p.vector) {
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
                        && rows * cols * p.results.products <= MOST_SUMS
                        && cost::in_registers(shape, p, integers, profile)
                        && (products <= MOST_PRODUCTS || (unroll == 1 && cols * rows <= 8))
                        && shape.round(
                            p.results,
                            Room {
                                bytes: profile.max_workgroup_bytes,
                                subgroup: profile.subgroup.unwrap_or(1),
                            },
                        ) > 0
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

/// The way of least estimated time.
pub fn choose(p: &Problem, device: &DeviceProfile, expect: &Expected) -> Product {
    let mut best = (f64::INFINITY, Product::Serial(serial(p, device)));
    for g in candidates(p, device, expect) {
        let t = cost::cycles(&g, p, device, expect);
        if t < best.0 {
            best = (t, g);
        }
    }
    best.1
}
