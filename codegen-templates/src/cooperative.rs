//! The product of matrices on matrix units, with wgpu's extension of WGSL (`coop_mat`) or Chrome's (`subgroup_matrix`).
//!
//! Factors are f16 and sums f32: every block of 16 × 16 results is a matrix that a subgroup holds
//! together. A step brings `k` of the tile's rows and columns into workgroup memory, a run of neighbours a
//! fetch. They are read while the step before is multiplied. The template expects in the module
//!
//! ```wgsl
//! fn x_fetch(batch: i32, row: i32, k: i32) -> T           // and y_fetch(batch, col, k)
//! fn x_values(read: T, batch: i32, row: i32, k: i32) -> Run8   // or Run16 or Run32; and y_values
//! fn store(batch: i32, row: i32, col: i32, acc0: f32)     // or of four neighbouring columns, which `col` counts by
//! ```
//!
//! where of `row` and `k` (`col` and `k`) the one along which neighbours lie in memory counts runs. `RunN` has `N / 4` fields `q0, q1, …`
//! of `vec4<f16>`.

use crate::matmul::{Common, Extents};
use crate::{Local, RenderError, Template, render};
use serde::Serialize;
use std::collections::BTreeSet;

/// Edge of a matrix.
const EDGE: u32 = 16;
/// Elements of one fetch, at least.
pub const FETCH: u32 = 8;

/// The type of eight neighbours in f16 as they are in memory: `run_of_words` makes a run of them.
pub const WORDS: &str = "vec4<u32>";

/// The sizes of the parts of a product on matrix units. All numbers are powers of two, but the pad.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// Rows a workgroup makes.
    pub rows: u32,
    /// Columns a workgroup makes.
    pub cols: u32,
    /// How much of k is in workgroup memory at once; a multiple of 16.
    pub k: u32,
    /// Rows a subgroup makes, a multiple of 16.
    pub sub_rows: u32,
    /// Columns a subgroup makes, a multiple of 16.
    pub sub_cols: u32,
    /// Columns that each subgroup stores at once, of 16 rows; a multiple of 16 that divides `sub_cols`.
    pub strip_cols: u32,
    /// Elements between the lines of a tile, which keep them in different banks; a multiple of 4.
    pub pad: u32,
}

impl Blocks {
    /// Subgroups of a workgroup.
    const fn subgroups(self) -> u32 {
        (self.rows / self.sub_rows) * (self.cols / self.sub_cols)
    }
    /// f32 elements that each subgroup stores at once.
    const fn patch(self) -> u32 {
        EDGE * self.strip_cols
    }
}

/// Parameters of the product on matrix units.
#[derive(Clone, Debug)]
pub struct Cooperative {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// The extents of the product.
    pub extents: Extents,
    /// The sizes of its parts.
    pub blocks: Blocks,
    /// Whether neighbouring `k` of `x` and of `y` are neighbours in memory; else neighbouring rows and columns are.
    pub along_depth: [bool; 2],
    /// Elements in the tiles of `x` and of `y`, pads included.
    pub tile_len: [u32; 2],
    /// Steps whose elements are held while others are multiplied; more than 1 only where their number is a multiple of it.
    pub ahead: u32,
    /// Each invocation of a subgroup stores equally many vectors of each strip, all in one column.
    pub shares_strips: bool,
    /// `depth` is known to be a multiple of the shape's `k`.
    pub whole_depth: bool,
    /// Rows and columns are known to be multiples of the tile's.
    pub whole_tiles: bool,
    /// How `x` and `y` are read.
    pub operands: [Operand; 2],
    /// `store` takes a `vec4<f32>` of neighbouring columns, `col` counting fours.
    pub store_vectors: bool,
    /// The values that stores of vectors read, read before any of them, if they read anything.
    pub beside: Beside,
    /// Invocations of a subgroup.
    pub subgroup: u32,
    /// Matrices are written as in Chrome's extension, not as in wgpu's.
    pub chromium: bool,
}

/// How an operand is read.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The neighbours of one fetch.
    pub run: u32,
    /// The elements along its memory order are whole runs.
    pub whole: bool,
    /// The type of what is read.
    pub read: String,
    /// Whether something is computed of what is read, which need not be zero where zeros are.
    pub computed: bool,
}

/// The values that stores read beside their result: `beside(batch, row, col) -> Beside` and `across(batch, col) -> Across`, both of which `store`
/// takes behind the result. Only where invocations [share strips](Cooperative::shares_strips).
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// There is a `beside`.
    pub rows: bool,
    /// There is an `across`.
    pub cols: bool,
}

/// One fetch of a thread.
#[derive(Serialize)]
struct Vector {
    line: String,
    /// Its first k within the step.
    k: String,
    /// Where the k of each of the first steps is, that of the step from `k0`, and that of step `step`.
    first: Vec<String>,
    next: String,
    own: String,
    at: String,
}
#[derive(Serialize)]
struct Tile<'a> {
    name: &'static str,
    read: &'a str,
    run: u32,
    computed: bool,
    tile_len: u32,
    vectors: Vec<Vector>,
}
/// A load of a matrix from a tile.
#[derive(Serialize)]
struct Load {
    name: String,
    /// Its columns lie one after another, not its rows.
    by_columns: bool,
    at: String,
    pitch: u32,
}
/// Loads and multiplications for 16 values of k.
#[derive(Serialize)]
struct Quarter {
    x: Vec<Load>,
    y: Vec<Load>,
}
#[derive(Clone, Serialize)]
struct Matrix {
    row: u32,
    col: u32,
}
#[derive(Serialize)]
struct Strip {
    row: u32,
    /// Its first column.
    col: u32,
    matrices: Vec<Matrix>,
    elements: Vec<Element>,
}
/// A vector of four results that an invocation stores.
#[derive(Clone, Serialize)]
struct Element {
    name: String,
    /// Where it is in the subgroup's part of `strip`.
    at: String,
    row: String,
    col: String,
    /// The name of its column's `across`, and whether it is the first in that column.
    across: String,
    first: bool,
    /// The arguments of `store` behind the result.
    beside: String,
}

#[derive(Serialize)]
struct Slots<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    tile_rows: u32,
    tile_cols: u32,
    tile_k: u32,
    sub_rows: u32,
    sub_cols: u32,
    subs_across: u32,
    subgroups: u32,
    subgroup: u32,
    chromium: bool,
    threads: u32,
    local: Local,
    guard_k: bool,
    guard_tiles: bool,
    store_vectors: bool,
    /// Elements are written out.
    spelled: bool,
    beside_rows: bool,
    beside_cols: bool,
    strip_cols: u32,
    patch_len: u32,
    /// The steps of a turn of the loop.
    ahead: u32,
    /// The sizes of runs.
    runs: BTreeSet<u32>,
    /// Whether the words of a run are read.
    words: bool,
    operands: Vec<Tile<'a>>,
    matrices: Vec<Matrix>,
    quarters: Vec<Quarter>,
    strips: Vec<Strip>,
}

impl Template for Slots<'_> {
    const NAME: &'static str = "matmul_cooperative.wgsl";
}

/// One operand's tile.
struct Side<'a> {
    name: &'static str,
    operand: &'a Operand,
    lines: u32,
    /// Neighbouring `k` are neighbours in memory.
    by_depth: bool,
    /// Elements of its tile.
    tile_len: u32,
    origin: &'static str,
    end: &'static str,
    /// The first line of the subgroup.
    sub: &'static str,
    /// Lines of a subgroup.
    sub_lines: u32,
}

/// The place so far behind another one.
fn after(by: u32, place: &str) -> String {
    if by == 0 { place.to_owned() } else { format!("{by} + {place}") }
}

impl<'a> Side<'a> {
    /// From one line of the tile to the next, in vectors of four.
    fn pitch(&self, s: Blocks) -> u32 {
        (if self.by_depth { s.k } else { self.lines } + s.pad) / 4
    }
    fn tile(&self, shape: Blocks, threads: u32, ahead: u32) -> Tile<'a> {
        let Operand { run, whole, .. } = *self.operand;
        let fast = if self.by_depth { shape.k } else { self.lines } / run;
        let count = self.lines * shape.k / run / threads;
        let vectors = (0..count).map(|i| {
            let e = if i == 0 { "t".to_owned() } else { format!("(t + {})", i * threads) };
            let (f, s) = if fast == 1 {
                ("0".to_owned(), e)
            } else if i > 0 && threads.is_multiple_of(fast) {
                // So that a thread's vectors share what depends on the first.
                (format!("t % {fast}"), format!("(t / {fast} + {})", i * threads / fast))
            } else {
                (format!("{e} % {fast}"), format!("{e} / {fast}"))
            };
            let at = format!("{s} * {} + {f} * {}", self.pitch(shape), run / 4);
            let Side { origin, end, .. } = self;
            if self.by_depth {
                Vector {
                    line: format!("min({origin} + {s}, {end} - 1)"),
                    k: format!("{f} * {run}"),
                    next: format!("k0 / {run} + {f}"),
                    own: format!("step * {} + {f}", shape.k / run),
                    first: (0..ahead).map(|a| after(a * shape.k / run, &f)).collect(),
                    at,
                }
            } else {
                let runs = match whole {
                    true => format!("{end} / {run}"),
                    false => format!("({end} + {}) / {run}", run - 1),
                };
                Vector {
                    line: format!("min({origin} / {run} + {f}, {runs} - 1)"),
                    next: format!("k0 + {s}"),
                    own: format!("step * {} + {s}", shape.k),
                    first: (0..ahead).map(|a| after(a * shape.k, &s)).collect(),
                    k: s,
                    at,
                }
            }
        });
        Tile {
            name: self.name,
            read: &self.operand.read,
            run,
            computed: self.operand.computed,
            tile_len: self.tile_len / 4,
            vectors: vectors.collect(),
        }
    }
    /// Loads of the subgroup's matrices at `k` of the tile. Lines are their columns or their rows.
    fn loads(&self, shape: Blocks, k: u32, lines_are_columns: bool) -> Vec<Load> {
        let pitch = self.pitch(shape);
        let of = |i: u32| {
            let line = format!("({} + {})", self.sub, i * EDGE);
            let at = match self.by_depth {
                true => format!("{line} * {pitch} + {}", k / 4),
                false => format!("{} + {line} / 4", k * pitch),
            };
            let by_columns = self.by_depth == lines_are_columns;
            Load { name: format!("{}{i}", self.name), by_columns, at, pitch }
        };
        (0..self.sub_lines / EDGE).map(of).collect()
    }
}

impl Cooperative {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let s = self.blocks;
        let threads = s.subgroups() * self.subgroup;
        let x = Side {
            name: "x",
            operand: &self.operands[0],
            lines: s.rows,
            by_depth: self.along_depth[0],
            tile_len: self.tile_len[0],
            origin: "row0",
            end: "rows",
            sub: "sub_row",
            sub_lines: s.sub_rows,
        };
        let y = Side {
            name: "y",
            operand: &self.operands[1],
            lines: s.cols,
            by_depth: self.along_depth[1],
            tile_len: self.tile_len[1],
            origin: "col0",
            end: "cols",
            sub: "sub_col",
            sub_lines: s.sub_cols,
        };
        let quarter = |k: u32| Quarter { x: x.loads(s, k, false), y: y.loads(s, k, true) };
        let wide = s.strip_cols / EDGE;
        let across = s.sub_cols / s.strip_cols;
        let quads = s.strip_cols / 4;
        let spelled = self.shares_strips;
        let each = s.patch() / 4 / self.subgroup;
        let element = |i: u32, e: u32| {
            let row = format!(
                "row0 + sub_row + {} + i32(invocation) / {quads}",
                i / across * EDGE + e * (self.subgroup / quads)
            );
            let col =
                format!("(col0 + sub_col + {}) / 4 + i32(invocation) % {quads}", i % across * s.strip_cols);
            let by_row = if self.beside.rows { format!(", beside{i}_{e}") } else { String::new() };
            let by_col = if self.beside.cols { format!(", across{}", i % across) } else { String::new() };
            Element {
                name: format!("{i}_{e}"),
                beside: by_row + &by_col,
                at: format!("i32(invocation) + {}", e * self.subgroup),
                row,
                col,
                across: format!("{}", i % across),
                first: i < across && e == 0,
            }
        };
        let strip = |i: u32| Strip {
            row: i / across * EDGE,
            col: i % across * s.strip_cols,
            matrices: (0..wide).map(|c| Matrix { row: i / across, col: i % across * wide + c }).collect(),
            elements: (0..if spelled { each } else { 0 }).map(|e| element(i, e)).collect(),
        };
        let strips: Vec<Strip> = (0..s.sub_rows / EDGE * across).map(strip).collect();
        render(&Slots {
            common: self.extents.common(&self.preamble, &self.setup, "block", "row_tiles * col_tiles"),
            tile_rows: s.rows,
            tile_cols: s.cols,
            tile_k: s.k,
            sub_rows: s.sub_rows,
            sub_cols: s.sub_cols,
            subs_across: s.cols / s.sub_cols,
            subgroups: s.subgroups(),
            subgroup: self.subgroup,
            chromium: self.chromium,
            threads,
            local: Local::new(self.subgroup),
            guard_k: !self.whole_depth,
            guard_tiles: !self.whole_tiles,
            store_vectors: self.store_vectors,
            spelled,
            beside_rows: self.beside.rows,
            beside_cols: self.beside.cols,
            strip_cols: s.strip_cols,
            patch_len: s.patch(),
            ahead: self.ahead,
            runs: self.operands.iter().map(|o| o.run).collect(),
            words: self.operands.iter().any(|o| o.read == WORDS),
            operands: vec![x.tile(s, threads, self.ahead), y.tile(s, threads, self.ahead)],
            matrices: strips.iter().flat_map(|s| s.matrices.clone()).collect(),
            quarters: (0..s.k / EDGE).map(|q| quarter(q * EDGE)).collect(),
            strips,
        })
    }
}
