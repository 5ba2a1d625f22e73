//! The product with very few rows, of which every weight is read once: a matter of memory alone.
//!
//! A thread takes a block of `k × cols` weights at a time, `unroll` blocks at once. `across` threads
//! lie side by side over columns, `lanes` threads share out the blocks along k; their sums are added
//! up in workgroup memory, as many of them at a time as fit.
//!
//! The template expects `fn store(batch: i32, row: i32, col: i32, acc0: f32, …)` in the module and two
//! texts that are written for the kernel: `before`, which may use `batch` and `col` (the number of the
//! thread's group of `cols` columns), and `body`, which may also use `step`, its first block of the
//! round, and adds to the variables `sum0, sum1, …`: those of the products by second operand, row and column, then those of the sums
//! beside them by sum and row. Where a [`Stage`]
//! is brought into workgroup memory first, `before` has the loads of the first round, for which `lane` is the first block,
//! and `first` adds its blocks.

use crate::matmul::Extents;
use crate::{Local, RenderError, Template, render};
use serde::Serialize;

/// The sizes of the parts of a product with few rows. All numbers but `rows` and `unroll` are powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// The product's rows, all made by every thread.
    pub rows: u32,
    /// Consecutive k of a block; divides the depth.
    pub k: u32,
    /// Consecutive columns of a block; divides the columns.
    pub cols: u32,
    /// Threads side by side over columns.
    pub across: u32,
    /// Threads that share out k.
    pub lanes: u32,
    /// Blocks whose loads a thread has under way at once.
    pub unroll: u32,
    /// Neighbouring threads take neighbouring k, not columns.
    pub depth_first: bool,
}

/// How the sums of a workgroup's lanes become one.
#[derive(Clone, Copy, Debug)]
pub struct Adding {
    /// Sums of a thread that are added up in workgroup memory at a time.
    pub each: u32,
    /// Lanes whose sums a subgroup adds up by shuffles first; 1 for none.
    pub joined: u32,
    /// Sums in workgroup memory from one lane to the next one.
    pub pitch: u32,
    /// Invocations of a subgroup; 1 where there are none.
    pub subgroup: u32,
}

/// Staging: parts of the rows that all threads of a workgroup share, computed once in workgroup memory. Its text adds to the variables
/// of the sums beside the products, too: each thread what it stages.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The WGSL type of an element of `staged`.
    pub element: String,
    /// Elements of the array.
    pub len: u32,
    /// The array `scales` beside it, where rows are rounded.
    pub scales: Option<Scales>,
    /// Invocations of the subgroups in which neighbours stage together; 1 for none.
    pub subgroup: u32,
    /// Statements that fill the arrays, indented by 4; they may use `t` and `batch`.
    pub text: String,
}

/// The array `scales` of rows that are rounded to integers.
#[derive(Clone, Debug)]
pub struct Scales {
    /// The WGSL type of an element.
    pub element: String,
    /// Elements of the array.
    pub len: u32,
}

/// Parameters of the product with very few rows.
#[derive(Clone, Debug)]
pub struct Thin {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// Extents; `depth` counts blocks of `k`.
    pub extents: Extents,
    /// The sizes of its parts.
    pub blocks: Blocks,
    /// The number of second operands, each multiplied with the same rows.
    pub products: u32,
    /// The number of sums of the first operand's rows beside the products.
    pub sums: u32,
    /// How sums are added up.
    pub adding: Adding,
    /// The contents of workgroup memory before the loop.
    pub stage: Option<Stage>,
    /// Statements before the stage and the loop, indented by 4.
    pub before: String,
    /// Statements between the stage and the loop, indented by 4.
    pub first: String,
    /// Statements of the loop, indented by 8; none where what is before it does all.
    pub body: String,
}

#[derive(Serialize)]
struct Write {
    index: String,
    sum: u32,
}
/// One halving (or quartering, …) of the lanes whose sums are still apart.
#[derive(Serialize)]
struct Fold {
    items: u32,
    at: String,
    target: String,
    terms: Vec<String>,
}
/// Some of the sums on their way through workgroup memory.
#[derive(Serialize)]
struct Round {
    writes: Vec<Write>,
    folds: Vec<Fold>,
}

#[derive(Serialize)]
struct ThinSlots {
    preamble: String,
    setup: String,
    stage: String,
    stage_type: String,
    stage_len: u32,
    scales_type: String,
    scales_len: u32,
    before: String,
    first: String,
    body: String,
    start: String,
    batch: String,
    batch_index: String,
    cols: String,
    depth: String,
    threads: u32,
    local: Local,
    shuffles: Vec<u32>,
    joined_mask: u32,
    rows: u32,
    block_k: u32,
    block_cols: u32,
    tile_cols: u32,
    lanes: u32,
    stride: u32,
    lane: String,
    across_index: String,
    sums: Vec<u32>,
    parts_len: u32,
    totals_len: u32,
    /// Neighbouring totals that are parts of one; 0 if none are.
    spread: u32,
    rounds: Vec<Round>,
    results: Vec<String>,
}

impl Template for ThinSlots {
    const NAME: &'static str = "matmul_thin.wgsl";
}

impl Thin {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let s = self.blocks;
        let Adding { each, joined, pitch, subgroup } = self.adding;
        let (across, lanes, each) = (s.across, s.lanes, each.max(1));
        let sums = s.rows * (self.products * s.cols + self.sums);
        let apart_lanes = lanes / joined;
        // From one lane to the next, in threads.
        let apart = if s.depth_first { 1 } else { across };
        let rounds = (0..sums).step_by(each as usize).map(|first| self.round(first, each.min(sums - first)));
        let (lane, across_index) = if s.depth_first {
            (format!("t % {lanes}"), format!("t / {lanes}"))
        } else {
            (format!("t / {across}"), format!("t % {across}"))
        };
        let product = |i: u32| {
            let group = format!("({} + row) * {} + at % {}", i * s.rows, s.cols, s.cols);
            format!("totals[({group}) * {across} + at / {}]", s.cols)
        };
        // All threads have a part of a stage.
        let spread = self.stage.is_some() && self.sums > 0 && across > 1;
        let sum = |i: u32| {
            let first = format!("({} + row) * {across}", self.products * s.rows * s.cols + i * s.rows);
            if spread { format!("total_of({first})") } else { format!("totals[{first}]") }
        };
        let scales = self.stage.as_ref().and_then(|s| s.scales.as_ref());
        let staging = self.stage.as_ref().map_or(1, |s| s.subgroup);
        let slots = ThinSlots {
            preamble: self.preamble.clone(),
            setup: self.setup.clone(),
            stage: self.stage.as_ref().map(|s| s.text.clone()).unwrap_or_default(),
            stage_type: self.stage.as_ref().map(|s| s.element.clone()).unwrap_or_default(),
            stage_len: self.stage.as_ref().map_or(0, |s| s.len),
            scales_type: scales.map(|s| s.element.clone()).unwrap_or_default(),
            scales_len: scales.map_or(0, |s| s.len),
            before: self.before.clone(),
            first: self.first.clone(),
            body: self.body.clone(),
            start: if self.stage.is_some() {
                format!("lane + {}", lanes * s.unroll)
            } else {
                "lane".to_owned()
            },
            batch: self.extents.batch.clone(),
            batch_index: self.extents.batch_index("block", "col_tiles"),
            cols: self.extents.cols.clone(),
            depth: self.extents.depth.clone(),
            threads: across * lanes,
            local: Local::new(if joined > 1 { subgroup } else { staging }),
            shuffles: (0..joined.ilog2()).map(|i| apart << i).collect(),
            joined_mask: (joined - 1) * apart,
            rows: s.rows,
            block_k: s.k,
            block_cols: s.cols,
            tile_cols: across * s.cols,
            lanes,
            stride: lanes * s.unroll,
            lane,
            across_index,
            sums: (0..sums).collect(),
            parts_len: if apart_lanes == 1 { 0 } else { each * apart_lanes * pitch },
            totals_len: sums * across,
            spread: if spread { across } else { 0 },
            rounds: rounds.collect(),
            results: (0..self.products).map(product).chain((0..self.sums).map(sum)).collect(),
        };
        render(&slots)
    }

    /// Adds up sums `first..first + count` of all lanes.
    fn round(&self, first: u32, count: u32) -> Round {
        let Adding { joined, pitch, .. } = self.adding;
        let (across, lanes) = (self.blocks.across, self.blocks.lanes / joined);
        let lane = if joined == 1 { "lane".to_owned() } else { format!("lane / {joined}") };
        let part = |sum: u32| match (lanes, sum * lanes * pitch) {
            (1, _) => format!("totals[{} + c]", (first + sum) * across),
            (_, at) => format!("parts[{lane} * {pitch} + {at} + c]"),
        };
        let writes = (0..count).map(|i| Write { index: part(i), sum: first + i }).collect();
        let mut folds = vec![];
        let mut left = lanes;
        while left > 1 {
            let by = match left {
                2..=8 => left,
                16 => 4,
                _ => 8,
            };
            left /= by;
            let at = format!(
                "(e / {} * {} + e / {across} % {left}) * {pitch} + e % {across}",
                left * across,
                lanes
            );
            folds.push(Fold {
                items: count * left * across,
                at,
                target: if left == 1 {
                    format!("totals[{} + e]", first * across)
                } else {
                    "parts[at]".into()
                },
                terms: (0..by).map(|q| format!("parts[at + {}]", q * left * pitch)).collect(),
            });
        }
        Round { writes, folds }
    }
}
