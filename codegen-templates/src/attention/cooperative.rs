//! Attention on matrix units, with wgpu's extension of WGSL (`coop_mat`) or Chrome's (`subgroup_matrix`).

use super::{Problem, Window, WindowSlots};
use crate::{Local, RenderError, Template, render};
use serde::Serialize;

/// Edge of a matrix.
const EDGE: u32 = 16;

/// Exponentials of at most this are below 2,981, a number that f16 has, and those of scores much below the highest one are not rounded to zero.
const MOST_ABOVE: u32 = 8;

/// The sizes of the parts of the template for matrix units.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// Queries of a workgroup: a multiple of those of a subgroup.
    pub queries: u32,
    /// Queries of a subgroup, a multiple of 16.
    pub sub_queries: u32,
    /// Keys of a step, a multiple of 16.
    pub keys: u32,
    /// Whether keys and values of the next step are loaded during one.
    pub ahead: bool,
    /// Invocations of a subgroup: 32.
    pub subgroup: u32,
    /// Elements of f16 between the lines of a tile, which keep them in different banks; a multiple of 4.
    pub pad: u32,
    /// Quads of f16 in the tile: at least those of 16 elements of each query.
    pub tile_len: u32,
    /// Quads of f32 from one row of the strip to the next. Results of as many columns of values as keys pass through it at once.
    pub strip_pitch: u32,
}

/// Parameters of the template for matrix units. `q`, `k` and `v` are loaded by eights.
#[derive(Clone, Debug)]
pub struct Cooperative {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// The sizes of its parts.
    pub matrices: Matrices,
    /// The width of queries and keys.
    pub depth: u32,
    /// Which keys a block of queries may see.
    pub window: Window,
    /// Neighbouring keys whose mask `load_masks` gives; 0 where `load_mask` gives that of one.
    pub mask_run: u32,
    /// `store` takes a `vec4<f32>` of neighbouring columns, which `e` counts by.
    pub store_vectors: bool,
    /// Matrices are written as in Chrome's extension, not as in wgpu's.
    pub chromium: bool,
}

/// A load of eight elements of keys or values.
#[derive(Serialize)]
struct Eight {
    name: String,
    operand: &'static str,
    line: String,
    eight: String,
    at: String,
    /// `keys + ` for what is loaded for the next step.
    ahead: String,
}

/// Parts of the width of queries that are in the tile at once.
#[derive(Serialize)]
struct Slice {
    /// The eights before it.
    first: u32,
    /// Its blocks of 16.
    blocks: Vec<u32>,
}

/// Columns whose results are in workgroup memory at once.
#[derive(Serialize)]
struct Columns {
    first: u32,
    /// Blocks of 16.
    columns: Vec<u32>,
    /// Quads that an invocation has of them.
    quads: u32,
}

#[derive(Serialize)]
struct CooperativeSlots<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    #[serde(flatten)]
    window: WindowSlots,
    queries: u32,
    keys: u32,
    depth: u32,
    threads: u32,
    ahead: bool,
    blocks: Vec<u32>,
    depth_blocks: Vec<u32>,
    query_slices: Vec<Slice>,
    /// The width of a slice.
    query_depth: u32,
    query_pitch: u32,
    key_blocks: Vec<u32>,
    score_quads: Vec<u32>,
    /// Blocks of 16 columns of values.
    columns: Vec<u32>,
    /// How much a score may be above the number that is subtracted of all of its row: exponentials stay finite in f16.
    most_above: u32,
    chunks: Vec<Columns>,
    loads: Vec<Eight>,
    tile_len: u32,
    values_at: u32,
    key_pitch: u32,
    value_pitch: u32,
    strip_pitch: u32,
    probability_pitch: u32,
    mask_run: u32,
    store_vectors: bool,
    chromium: bool,
    local: Local,
}

impl Template for CooperativeSlots<'_> {
    const NAME: &'static str = "attention_cooperative.wgsl";
}

impl Cooperative {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let Cooperative { problem, matrices, depth, window, mask_run, store_vectors, chromium } = self;
        let Matrices { queries, sub_queries, keys, ahead, subgroup, pad, tile_len, strip_pitch } = *matrices;
        let (d, e, threads) = (*depth, problem.e, queries / sub_queries * subgroup);
        let (key_pitch, value_pitch) = ((d + pad) / 4, (e + pad) / 4);
        let values_at = keys * key_pitch;
        let mut loads = vec![];
        for (operand, width, start, pitch) in [("k", d, 0, key_pitch), ("v", e, values_at, value_pitch)] {
            for i in 0..keys * width / 8 / threads {
                let element = format!("(thread + {})", i * threads);
                let (line, eight) =
                    (format!("{element} / {}", width / 8), format!("{element} % {}", width / 8));
                let at = format!("{start} + {line} * {pitch} + {eight} * 2");
                let ahead = if operand == "k" { format!("{keys} + ") } else { String::new() };
                loads.push(Eight { name: format!("{operand}{i}"), operand, line, eight, at, ahead });
            }
        }
        // The widest slices of queries for which the tile has room.
        let edges = d / EDGE;
        let fits = |n: &u32| edges.is_multiple_of(*n) && queries * (n * EDGE + pad) / 4 <= tile_len;
        let slice = (1..=edges).rev().find(fits).unwrap_or(1);
        let query_slices = (0..edges / slice)
            .map(|i| Slice { first: i * slice * EDGE / 8, blocks: (i * slice..(i + 1) * slice).collect() });
        let (mut chunks, mut first) = (vec![], 0);
        while first < e {
            let columns = keys.min(e - first);
            let blocks = (first / EDGE..(first + columns) / EDGE).collect();
            chunks.push(Columns { first, columns: blocks, quads: columns / 8 });
            first += columns;
        }
        render(&CooperativeSlots {
            problem,
            window: window.slots(),
            queries,
            keys,
            depth: d,
            threads,
            ahead,
            blocks: (0..sub_queries / EDGE).collect(),
            depth_blocks: (0..edges).collect(),
            query_slices: query_slices.collect(),
            query_depth: slice * EDGE,
            query_pitch: (slice * EDGE + pad) / 4,
            key_blocks: (0..keys / EDGE).collect(),
            score_quads: (0..keys / 8).collect(),
            columns: (0..e / EDGE).collect(),
            most_above: MOST_ABOVE,
            chunks,
            loads,
            tile_len,
            values_at,
            key_pitch,
            value_pitch,
            strip_pitch,
            probability_pitch: (keys + pad) / 4,
            mask_run: *mask_run,
            store_vectors: *store_vectors,
            chromium: *chromium,
            local: Local::new(subgroup),
        })
    }
}
