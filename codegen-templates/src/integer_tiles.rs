//! Products of matrices in integers: the template with tiles of bytes.
//!
//! It expects what [`matmul`](crate::matmul) describes of `store`, and for the operands functions that read a group of 32 neighbouring k of a
//! row or a column:
//!
//! ```wgsl
//! fn x_group(batch: i32, row: i32, group: i32) -> XGroup   // words0, words1: vec4<u32>; scale, sum0, sum1: f32
//! fn y_group(batch: i32, col: i32, group: i32) -> YGroup   // words0, words1: vec4<u32>; scale0, scale1, offset0, offset1: f32
//! ```
//!
//! A row's element is `scale` times its integer, and `sum` is `scale` times the sum of the integers of a unit; a column's element is
//! `scale` times its integer and `offset` added to it. Columns have scales for units of 32 or 16 neighbouring k.

use crate::matmul::{Common, Extents, Tile, patch};
use crate::{RenderError, Template, render};
use serde::Serialize;

/// Neighbouring k that are read together.
pub const GROUP: u32 = 32;

/// Parameters of the tiled product in integers.
#[derive(Clone, Debug)]
pub struct IntegerTiles {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// The extents of the product; the depth counts groups, of which there are whole steps.
    pub extents: Extents,
    /// The sizes of its parts: k is a multiple of [`GROUP`], rows and columns of a thread are multiples of 4, and all of k is one slice.
    pub tile: Tile,
    /// Buffers of tiles, 1 or 2: two save a barrier a step.
    pub buffers: u32,
    /// Neighbouring k of a column with a scale of their own: 32 or 16.
    pub unit: u32,
    /// Columns have offsets.
    pub offsets: bool,
    /// Neighbouring workgroups make neighbouring rows, which suits the larger number of columns.
    pub rows_first: bool,
    /// `store` takes a `vec4<f32>` of neighbouring columns, `col` counting fours, of which there are a whole number.
    pub store_vectors: bool,
    /// `store` is called once in the text, in a loop, as it is long: only where it takes one result.
    pub rolled: bool,
}

/// The groups of an operand that the threads read in a turn, one each.
#[derive(Serialize)]
struct Fetch {
    name: &'static str,
    /// The number of a thread's group: lines of the first k, then of the next.
    at: String,
    lines: u32,
    vectors: u32,
    /// The row or column, and its place among those of the tile.
    line: String,
    slot: String,
    only_if: Option<String>,
}

#[derive(Serialize)]
struct IntegerTilesSlots<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    tile_rows: u32,
    tile_cols: u32,
    thread_rows: u32,
    thread_cols: u32,
    thread_row_vectors: u32,
    thread_vectors: u32,
    row_vectors: u32,
    col_vectors: u32,
    across_rows: u32,
    across_cols: u32,
    threads: u32,
    buffers: u32,
    groups: u32,
    units: u32,
    words: u32,
    offsets: bool,
    rows_first: bool,
    tx: String,
    ty: String,
    fetches: Vec<Fetch>,
    store_vectors: bool,
    rolled: bool,
}

impl Template for IntegerTilesSlots<'_> {
    const NAME: &'static str = "matmul_integers.wgsl";
}

impl IntegerTiles {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let s = self.tile;
        let (across_rows, across_cols) = (s.rows / s.thread_rows, s.cols / s.thread_cols);
        let (tx, ty) = patch(across_cols, across_rows);
        let slots = IntegerTilesSlots {
            common: self.extents.common(&self.preamble, &self.setup, "block", "row_tiles * col_tiles"),
            tile_rows: s.rows,
            tile_cols: s.cols,
            thread_rows: s.thread_rows,
            thread_cols: s.thread_cols,
            thread_row_vectors: s.thread_rows / 4,
            thread_vectors: s.thread_cols / 4,
            row_vectors: s.rows / 4,
            col_vectors: s.cols / 4,
            across_rows,
            across_cols,
            threads: across_rows * across_cols,
            buffers: self.buffers,
            groups: s.k / GROUP,
            units: GROUP / self.unit,
            words: self.unit / 4,
            offsets: self.offsets,
            rows_first: self.rows_first,
            tx,
            ty,
            fetches: self.fetches(across_rows * across_cols, across_cols),
            store_vectors: self.store_vectors,
            rolled: self.rolled,
        };
        render(&slots)
    }

    /// Reads all groups of a step: the threads go through those of the rows, then through those of the columns.
    fn fetches(&self, threads: u32, across_cols: u32) -> Vec<Fetch> {
        let s = self.tile;
        let groups = s.k / GROUP;
        let mut out = vec![];
        let mut before = 0;
        // Threads store results of columns side by side, one by one: then a thread's columns lie `across_cols` apart.
        let apart = format!("(line / {0} / 4 * {0} + line % {0}) * 4 + line / {0} % 4", across_cols);
        for (name, lines, origin, end) in [("x", s.rows, "row0", "rows"), ("y", s.cols, "col0", "cols")] {
            let count = lines * groups;
            let slot = if name == "x" || self.store_vectors { "line".to_owned() } else { apart.clone() };
            let turns = before / threads..(before + count).div_ceil(threads);
            for turn in turns {
                let first = i64::from(turn * threads) - i64::from(before);
                let at = match first {
                    0 => "t".to_owned(),
                    1.. => format!("t + {first}"),
                    _ => format!("t - {}", -first),
                };
                let mut conditions = vec![];
                if first < 0 {
                    conditions.push(format!("t >= {}", -first));
                }
                if first + i64::from(threads) > i64::from(count) {
                    conditions.push(format!("t < {}", i64::from(count) - first));
                }
                let only_if = (!conditions.is_empty()).then(|| conditions.join(" && "));
                let line = format!("min({origin} + line, {end} - 1)");
                out.push(Fetch { name, at, lines, vectors: lines / 4, line, slot: slot.clone(), only_if });
            }
            before += count;
        }
        out
    }
}
