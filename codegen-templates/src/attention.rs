//! Attention: the tiled template and the one for few queries.
//!
//! Both compute `out[batch, s, e] = Σₜ softmaxₜ(scale · Σ_d q·k + mask) · v` in f32 with a running
//! maximum and sum, so no score ever leaves the workgroup. They expect in the preamble, for each of
//! `q` (over `s` and `d`), `k` (over `t` and `d`) and `v` (over `t` and `e`), the functions that
//! [`matmul`](crate::matmul) describes for `x`, and
//!
//! ```wgsl
//! fn load_mask(batch: i32, s: i32, t: i32) -> f32        // where there is a mask
//! fn store(batch: i32, s: i32, e: i32, acc0: f32)        // the one for few queries: (batch, s, e, part, acc0)
//! fn store_part(batch: i32, s: i32, part: i32, acc1: f32, acc2: f32) // where the keys are in parts
//! ```
//!
//! Scores are clamped to the finite range, so a row all of whose scores are the least finite number
//! averages `v`, as softmax does, or gives 0 where `empty_is_zero`.

use crate::{Local, RenderError, Template, render};
use serde::Serialize;

/// What both templates need to know.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// Independent problems, an `i32` expression, as are `s`, `t` and `d`.
    pub batch: String,
    /// Number of queries.
    pub s: String,
    /// Number of keys.
    pub t: String,
    /// Width of queries and keys.
    pub d: String,
    /// Width of a value, in elements.
    pub e: u32,
    /// Whether the preamble has `load_mask`.
    pub mask: bool,
    /// The factor of the scores, an `f32` literal.
    pub scale: String,
    /// A key whose score is not above the least finite number has no weight.
    pub empty_is_zero: bool,
}

/// Parameters of the tiled template.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// Queries of a workgroup, a power of two.
    pub queries: u32,
    /// Queries of a thread, 1 or 2.
    pub thread_queries: u32,
    /// How much of `d` is in workgroup memory at once: 16 or 32.
    pub depth: u32,
    /// `d` is known to be a multiple of it.
    pub whole_depth: bool,
}

/// Keys that are in workgroup memory at once.
const KEYS: u32 = 32;

#[derive(Serialize)]
struct Chunk {
    first: u32,
    columns: Vec<u32>,
}

#[derive(Serialize)]
struct Slots<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    queries: u32,
    keys: u32,
    rows: Vec<u32>,
    row_step: u32,
    threads: u32,
    tile_len: u32,
    depth_quads: u32,
    swizzle_lines: u32,
    whole_depth: bool,
    value_quads: u32,
    columns: Vec<u32>,
    chunks: Vec<Chunk>,
}

impl Template for Slots<'_> {
    const NAME: &'static str = "attention.wgsl";
}

impl Attention {
    /// Invocations of a workgroup.
    pub fn threads(&self) -> u32 {
        self.queries / self.thread_queries * 8
    }
    fn value_quads(&self) -> u32 {
        if self.problem.e <= 32 { 8 } else { 16 }
    }
    fn tile_len(&self) -> u32 {
        let scores = (self.queries + KEYS) * self.depth / 4;
        scores.max(KEYS * self.value_quads()).max(self.queries * 8)
    }
    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> u32 {
        (self.tile_len() + self.queries * 8) * 16
    }
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let quads = self.value_quads();
        let count = self.problem.e.div_ceil(32);
        let per_chunk = quads / 8;
        let chunks = (0..count.div_ceil(per_chunk))
            .map(|c| Chunk {
                first: c * quads * 4,
                columns: (c * per_chunk..((c + 1) * per_chunk).min(count)).collect(),
            })
            .collect();
        render(&Slots {
            problem: &self.problem,
            queries: self.queries,
            keys: KEYS,
            rows: (0..self.thread_queries).collect(),
            row_step: self.queries / self.thread_queries,
            threads: self.threads(),
            tile_len: self.tile_len(),
            depth_quads: self.depth / 4,
            swizzle_lines: 32 / self.depth,
            whole_depth: self.whole_depth,
            value_quads: quads,
            columns: (0..count).collect(),
            chunks,
        })
    }
}

/// Parameters of the template with a workgroup a query.
#[derive(Clone, Debug)]
pub struct Decode {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// Invocations of a workgroup: a power of two, at least 16 and `e`.
    pub threads: u32,
    /// An upper bound of `d`, the size of the array that holds a query.
    pub depth_max: u32,
    /// Parts of the keys, a workgroup each. Of more than one the sums are stored undivided, with the
    /// part's highest score and the sum of its exponentials; readers put them together.
    pub parts: u32,
    /// Threads of a subgroup, a power of two; 1 where there are none.
    pub subgroup: u32,
}

/// A value of all threads made of one of each.
#[derive(Serialize)]
struct Fold {
    name: &'static str,
    subgroup: &'static str,
    of: &'static str,
    all: &'static str,
}

/// Threads that share a score.
const LANES: u32 = 4;
/// Loads that a thread has under way.
const UNROLL: u32 = 16;

#[derive(Serialize)]
struct DecodeSlots<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    threads: u32,
    lanes: u32,
    columns: u32,
    slices: u32,
    depth_max: u32,
    parts: u32,
    unroll: u32,
    unroll_list: Vec<u32>,
    local: Local,
    subgroup: u32,
    folded: u32,
    folds: [Fold; 2],
}

impl Template for DecodeSlots<'_> {
    const NAME: &'static str = "attention_decode.wgsl";
}

impl Decode {
    fn slices(&self) -> u32 {
        self.threads / self.problem.e.next_power_of_two()
    }
    /// Values left when each subgroup, or each of 16 threads, has made one of its own.
    fn folded(&self) -> u32 {
        if self.subgroup > 1 { self.threads / self.subgroup } else { 16 }
    }
    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> u32 {
        (self.depth_max + self.threads * LANES + self.threads + self.slices() * UNROLL + self.folded()) * 4
    }
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        render(&DecodeSlots {
            problem: &self.problem,
            threads: self.threads,
            lanes: LANES,
            columns: self.problem.e.next_power_of_two(),
            slices: self.slices(),
            depth_max: self.depth_max,
            parts: self.parts,
            unroll: UNROLL,
            unroll_list: (0..UNROLL).collect(),
            local: Local::new(self.subgroup),
            subgroup: self.subgroup,
            folded: self.folded(),
            folds: [
                Fold {
                    name: "largest",
                    subgroup: "subgroupMax",
                    of: "max(r, shares[i])",
                    all: "max(r, folded[i])",
                },
                Fold { name: "sum_of", subgroup: "subgroupAdd", of: "r + shares[i]", all: "r + folded[i]" },
            ],
        })
    }
}
