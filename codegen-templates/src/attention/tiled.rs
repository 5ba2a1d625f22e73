//! Attention of many queries: a workgroup takes tiles of queries, keys and values.

use super::{Problem, Window, WindowSlots};
use crate::{Local, RenderError, Template, render};
use serde::Serialize;

/// The sizes of the tiled template's parts.
#[derive(Clone, Debug)]
pub struct Tiles {
    /// Queries of a workgroup: a multiple of eight times those of a thread.
    pub queries: u32,
    /// Queries of a thread.
    pub thread_queries: u32,
    /// Keys that are in workgroup memory at once: a multiple of four times `lanes`, at least 32.
    pub keys: u32,
    /// Threads that share a query: 8, 16 or 32.
    pub lanes: u32,
    /// Elements along the width of keys, and along that of values, that are in workgroup memory at once: a multiple of
    /// four times `lanes`.
    pub depth: u32,
    /// Whether the queries stay in workgroup memory, all of their width.
    pub kept: bool,
    /// Quads of values that each thread loads while the scores of a step are computed: all that it has of the first ones, or 0.
    pub loads: u32,
    /// Quads from one line of queries to the next; 4, or a multiple of 8.
    pub query_pitch: u32,
    /// Quads from one line of keys to the next; 4, or a multiple of 8.
    pub key_pitch: u32,
    /// Quads in the tile of keys or values.
    pub tile_len: u32,
    /// Quads of columns of values that a thread has in each part of their width that is in workgroup memory at once.
    pub columns: Vec<u32>,
}

/// The distance between quads of a line that puts neighbouring lines into other banks.
fn swizzle(pitch: u32, line: &str) -> String {
    if pitch == 4 { format!("(({line} / 2) & 3)") } else { format!("({line} & 7)") }
}

/// Parameters of the tiled template.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// The sizes of its parts.
    pub tiles: Tiles,
    /// Invocations of a subgroup, at least `lanes`; 1 where there are none.
    pub subgroup: u32,
    /// The width of queries and keys, where it is known; queries can only be kept where it is.
    pub depth: Option<u32>,
    /// Which of queries, keys and values are loaded by fours: their steps count fours then.
    pub fours: [bool; 3],
    /// Which keys a block of queries may see.
    pub window: Window,
}

#[derive(Serialize)]
struct Chunk {
    /// Its first quad of columns, and how many it has.
    first: u32,
    quads: u32,
    /// The columns of a thread, by their numbers in all of them.
    columns: Vec<u32>,
}

#[derive(Serialize)]
struct Side {
    name: &'static str,
    upper: &'static str,
    fours: bool,
    /// No quad is read beyond the last element.
    inside: bool,
}

#[derive(Serialize)]
struct Slots<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    #[serde(flatten)]
    window: WindowSlots,
    operands: [Side; 3],
    queries: u32,
    keys: u32,
    lanes: u32,
    kept: bool,
    loads: Vec<u32>,
    chunked: bool,
    chunk_quads: u32,
    depth_quads: u32,
    query_pitch: u32,
    key_pitch: u32,
    query_swizzle: String,
    query_swizzle_y: String,
    key_swizzle: String,
    key_swizzle_x: String,
    rows: Vec<u32>,
    row_step: u32,
    key_columns: Vec<u32>,
    key_groups: Vec<u32>,
    threads: u32,
    tile_len: u32,
    columns: Vec<u32>,
    chunks: Vec<Chunk>,
    subgroup: u32,
    shuffles: Vec<u32>,
    local: Local,
}

impl Template for Slots<'_> {
    const NAME: &'static str = "attention.wgsl";
}

impl Attention {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let Attention { problem, tiles, subgroup, depth, fours, window } = self;
        let Tiles { queries, thread_queries, keys, lanes, depth: chunk, kept, loads, .. } = *tiles;
        let Tiles { query_pitch, key_pitch, tile_len, .. } = *tiles;
        let e = problem.e;
        let (mut chunks, mut count, mut first) = (vec![], 0, 0);
        for columns in tiles.columns.iter().copied() {
            chunks.push(Chunk { first, quads: columns * lanes, columns: (count..count + columns).collect() });
            count += columns;
            first += chunk / 4;
        }
        let chunked = depth.is_none_or(|d| d > chunk);
        let whole_depth = depth.is_some_and(|d| d % 4 == 0);
        let side = |i: usize, name, upper, inside| Side { name, upper, fours: fours[i], inside };
        render(&Slots {
            problem,
            window: window.slots(),
            operands: [
                side(0, "q", "Q", whole_depth),
                side(1, "k", "K", whole_depth),
                side(2, "v", "V", e.is_multiple_of(4 * lanes)),
            ],
            queries,
            keys,
            lanes,
            kept,
            loads: (0..loads).collect(),
            chunked,
            chunk_quads: chunk / 4,
            depth_quads: depth.map_or(0, |d| d.div_ceil(4)),
            query_pitch,
            key_pitch,
            query_swizzle: swizzle(query_pitch, "line"),
            query_swizzle_y: swizzle(query_pitch, "y"),
            key_swizzle: swizzle(key_pitch, "line"),
            key_swizzle_x: swizzle(key_pitch, "x"),
            rows: (0..thread_queries).collect(),
            row_step: queries / thread_queries,
            key_columns: (0..keys / lanes).collect(),
            key_groups: (0..keys / lanes / 4).collect(),
            threads: queries / thread_queries * lanes,
            tile_len,
            columns: (0..count).collect(),
            chunks,
            subgroup: *subgroup,
            shuffles: (0..lanes.trailing_zeros()).map(|i| 1 << i).collect(),
            local: Local::new(*subgroup),
        })
    }
}
