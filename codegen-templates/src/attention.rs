//! Attention: the tiled template and two for few queries.
//!
//! All compute `out[batch, s, e] = Σₜ softmaxₜ(scale · Σ_d q·k + mask) · v` in f32 with a running
//! maximum and sum, so no score ever leaves the workgroup. They expect in the preamble, for each of
//! `q` (over `s` and `d`), `k` (over `t` and `d`) and `v` (over `t` and `e`), the functions that
//! [`matmul`](crate::matmul) describes for `x`, and
//!
//! ```wgsl
//! fn load_mask(batch: i32, s: i32, t: i32) -> f32        // where there is a mask
//! fn store(batch: i32, s: i32, e: i32, acc0: f32)        // those for few queries: (batch, s, e, part, acc0)
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

/// How the tiled template is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Whether the first values of a step are loaded while its scores are computed.
    pub ahead: bool,
}

/// Quads from one line of a tile to the next.
const fn pitch(quads: u32) -> u32 {
    if quads <= 4 { 4 } else { quads.next_multiple_of(8) }
}

/// What the quads of a line lie apart, that neighbouring lines are in other banks.
fn swizzle(pitch: u32, line: &str) -> String {
    if pitch == 4 { format!("(({line} / 2) & 3)") } else { format!("({line} & 7)") }
}

impl Tiles {
    /// Invocations of a workgroup.
    pub const fn threads(self) -> u32 {
        self.queries / self.thread_queries * self.lanes
    }
    /// Whether its numbers fit together.
    pub const fn is_sound(self) -> bool {
        let Tiles { queries, thread_queries, keys, lanes, depth, kept: _, ahead: _ } = self;
        matches!(lanes, 8 | 16 | 32)
            && matches!(thread_queries, 1..=8)
            && queries > 0
            && queries.is_multiple_of(8 * thread_queries)
            && keys >= 32
            && keys.is_multiple_of(4 * lanes)
            && depth > 0
            && depth.is_multiple_of(4 * lanes)
    }
    /// Quads of a line of queries.
    const fn query_pitch(self, d: Option<u32>) -> u32 {
        match d {
            Some(d) if self.kept => pitch(d.div_ceil(4)),
            _ => self.key_pitch(d),
        }
    }
    /// Quads of a line of keys.
    const fn key_pitch(self, d: Option<u32>) -> u32 {
        match d {
            Some(d) if d < self.depth => pitch(d.div_ceil(4)),
            _ => pitch(self.depth / 4),
        }
    }
    /// Quads of columns of values that a thread has of those in workgroup memory, from quad `first` on.
    fn value_columns(self, e: u32, first: u32) -> u32 {
        (e.div_ceil(4) - first).min(self.depth / 4).div_ceil(self.lanes)
    }
    /// Quads of values that a thread loads ahead, where that can be: all threads as many, while all of a key is there.
    pub fn loads_ahead(self, d: Option<u32>, e: u32) -> Option<u32> {
        let quads = self.keys * self.value_columns(e, 0) * self.lanes;
        let can = d.is_some_and(|d| d <= self.depth) && quads.is_multiple_of(self.threads());
        can.then(|| quads / self.threads())
    }
    /// Quads in the tile of keys or values.
    fn tile_len(self, d: Option<u32>, e: u32) -> u32 {
        let lines = self.keys * self.key_pitch(d).max(self.value_columns(e, 0) * self.lanes);
        lines.max(self.queries + 1)
    }
    /// Bytes of workgroup memory for queries and keys of width `d`, where it is known, and values of width `e`.
    pub fn workgroup_bytes(self, d: Option<u32>, e: u32, subgroup: u32) -> u32 {
        let shares = if subgroup > 1 { 0 } else { self.queries * self.lanes * 4 };
        let quads = self.queries * (self.query_pitch(d) + self.keys / 4) + self.tile_len(d, e);
        quads * 16 + shares
    }
}

/// Parameters of the tiled template.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// How it is cut up.
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

/// Which keys the queries from `first` to `last` may see: statements over those, `batch` and `keys`.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Statements, indented by 4, that the others need.
    pub setup: String,
    /// The first key that is seen, where the mask says it.
    pub from: Vec<String>,
    /// The last keys that are seen, likewise: none is seen behind one of them.
    pub to: Vec<String>,
    /// The first key from which on, and the last up to which, the mask is 0, where that is known.
    pub free: Option<(Vec<String>, Vec<String>)>,
    /// Keys are hidden by the least finite number of f16.
    pub half: bool,
}

impl Window {
    fn is_bounded(&self) -> bool {
        !self.from.is_empty() || !self.to.is_empty()
    }
    /// Whether a query without keys must go through all of them.
    fn again(&self, empty_is_zero: bool) -> bool {
        self.is_bounded() && (self.half || !empty_is_zero)
    }
    /// What the highest score of a query is not above that has seen no key.
    fn unseen(&self) -> &'static str {
        if self.half { "-32752.0" } else { "LOWEST" }
    }
    fn text(&self, again: bool) -> String {
        let extreme = |of: &str, all: &[String], start: &str| {
            all.iter().fold(start.to_owned(), |r, next| format!("{of}({r}, {next})"))
        };
        let after = |all: &[String]| all.iter().map(|k| format!("{k} + 1")).collect::<Vec<_>>();
        let var = if again { "var" } else { "let" };
        let mut out = self.setup.clone();
        out += &format!("    {var} from_key = {};\n", extreme("max", &self.from, "0"));
        out += &format!("    {var} to_key = {};\n", extreme("min", &after(&self.to), "keys"));
        if let Some((from, to)) = &self.free {
            out += &format!("    let free_from = {};\n", extreme("max", from, "0"));
            out += &format!("    let free_to = {};\n", extreme("min", &after(to), "keys"));
        }
        out
    }
}

#[derive(Serialize)]
struct Chunk {
    /// Its first quad of columns, and how many it has.
    first: u32,
    quads: u32,
    /// Those of a thread, by their numbers in all of them.
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
    bounded: bool,
    free: bool,
    again: bool,
    unseen: &'static str,
    window: String,
}

impl Template for Slots<'_> {
    const NAME: &'static str = "attention.wgsl";
}

impl Attention {
    /// Whether it may go through the keys a second time, for queries that see none of those that the mask leaves.
    fn again(&self) -> bool {
        self.window.again(self.problem.empty_is_zero)
    }
    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> u32 {
        self.tiles.workgroup_bytes(self.depth, self.problem.e, self.subgroup)
    }
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let Attention { problem, tiles, subgroup, depth, fours, window } = self;
        let Tiles { queries, thread_queries, keys, lanes, depth: chunk, kept, ahead } = *tiles;
        let loads = tiles.loads_ahead(*depth, problem.e).filter(|_| ahead).unwrap_or(0);
        let e = problem.e;
        let (mut chunks, mut count, mut first) = (vec![], 0, 0);
        while first < e.div_ceil(4) {
            let columns = tiles.value_columns(e, first);
            chunks.push(Chunk { first, quads: columns * lanes, columns: (count..count + columns).collect() });
            count += columns;
            first += chunk / 4;
        }
        let chunked = depth.is_none_or(|d| d > chunk);
        let whole_depth = depth.is_some_and(|d| d % 4 == 0);
        let side = |i: usize, name, upper, inside| Side { name, upper, fours: fours[i], inside };
        let (query_pitch, key_pitch) = (tiles.query_pitch(*depth), tiles.key_pitch(*depth));
        render(&Slots {
            problem,
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
            threads: tiles.threads(),
            tile_len: tiles.tile_len(*depth, e),
            columns: (0..count).collect(),
            chunks,
            subgroup: *subgroup,
            shuffles: (0..lanes.trailing_zeros()).map(|i| 1 << i).collect(),
            local: Local::new(*subgroup),
            bounded: window.is_bounded(),
            free: window.free.is_some(),
            again: self.again(),
            unseen: window.unseen(),
            window: window.text(self.again()),
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

/// How the template that streams keys is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Invocations of a workgroup, a multiple of `subgroup`.
    pub threads: u32,
    /// Threads that share a key, a power of two, at most `subgroup`.
    pub lanes: u32,
    /// Keys that they take at a time.
    pub unroll: u32,
    /// Heads of a workgroup, which share keys and values.
    pub heads: u32,
    /// Elements of a load of keys and values: 4, or 8 of f16.
    pub run: u32,
    /// Invocations of a subgroup.
    pub subgroup: u32,
}

impl Stream {
    /// Whether its numbers fit together, and those of keys and values.
    pub const fn fits(self, d: u32, e: u32) -> bool {
        let Stream { threads, lanes, unroll, heads, run, subgroup } = self;
        let line = run * lanes;
        lanes.is_power_of_two()
            && subgroup.is_power_of_two()
            && lanes <= subgroup
            && threads > 0
            && threads.is_multiple_of(subgroup)
            && matches!(unroll, 1..=8)
            && matches!(heads, 1..=16)
            && matches!(run, 4 | 8)
            && d > 0
            && e > 0
            && d.is_multiple_of(line)
            && e.is_multiple_of(line)
    }
    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(self, e: u32) -> u32 {
        self.threads / self.subgroup * self.heads * (e + 2) * 4
    }
    /// Registers of a thread that hold queries, sums, keys and values.
    pub const fn registers(self, d: u32, e: u32) -> u32 {
        (self.heads + self.unroll) * (d + e) / self.lanes
    }
}

/// Parameters of the template that streams keys.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// How it is cut up.
    pub stream: Stream,
    /// The width of queries and keys.
    pub depth: u32,
    /// Whether queries are loaded by fours; keys and values are loaded by runs.
    pub query_fours: bool,
    /// Parts of the keys, as in [`Decode::parts`].
    pub parts: u32,
}

/// Four elements of a line that a thread has.
#[derive(Serialize)]
struct Quad {
    number: u32,
    /// The load that brings it, and which of its quads it is.
    run: u32,
    quad: u32,
    half: &'static str,
}

#[derive(Serialize)]
struct StreamedSlots<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    threads: u32,
    lanes: u32,
    slots: u32,
    step: u32,
    heads: Vec<u32>,
    unroll: Vec<u32>,
    key_runs: Vec<u32>,
    value_runs: Vec<u32>,
    key_quads: Vec<Quad>,
    own_quads: Vec<Quad>,
    run_quads: u32,
    value_quads: u32,
    query_fours: bool,
    parts: u32,
    subgroups: u32,
    lane_shuffles: Vec<u32>,
    slot_shuffles: Vec<u32>,
    local: Local,
}

impl Template for StreamedSlots<'_> {
    const NAME: &'static str = "attention_streamed.wgsl";
}

impl Streamed {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let Stream { threads, lanes, unroll, heads, run, subgroup } = self.stream;
        let runs = |width: u32| width / run / lanes;
        let quads = |width: u32| -> Vec<Quad> {
            let per = run / 4;
            let half = |i: u32| match (per, i % per) {
                (1, _) => "",
                (_, 0) => ".low",
                _ => ".high",
            };
            (0..runs(width) * per)
                .map(|i| Quad { number: i, run: i / per, quad: i % per, half: half(i) })
                .collect()
        };
        let masks =
            |from: u32, to: u32| (from.trailing_zeros()..to.trailing_zeros()).map(|i| 1 << i).collect();
        let slots = threads / lanes;
        render(&StreamedSlots {
            problem: &self.problem,
            threads,
            lanes,
            slots,
            step: slots * unroll,
            heads: (0..heads).collect(),
            unroll: (0..unroll).collect(),
            key_runs: (0..runs(self.depth)).collect(),
            value_runs: (0..runs(self.problem.e)).collect(),
            key_quads: quads(self.depth),
            own_quads: quads(self.problem.e),
            run_quads: run / 4,
            value_quads: self.problem.e / 4,
            query_fours: self.query_fours,
            parts: self.parts,
            subgroups: threads / subgroup,
            lane_shuffles: masks(1, lanes),
            slot_shuffles: masks(lanes, subgroup),
            local: Local::new(subgroup),
        })
    }
}

/// Edge of a matrix.
const EDGE: u32 = 16;
/// Columns of values of which the results of a step are in workgroup memory at once.
const COLUMNS: u32 = 64;
/// Elements between the lines of a tile, which keep them in different banks: of f16, and of f32.
const PAD: u32 = 8;
const STRIP_PAD: u32 = 4;

/// How the template for matrix units is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
}

impl Matrices {
    /// Invocations of a workgroup.
    pub const fn threads(self) -> u32 {
        self.queries / self.sub_queries * self.subgroup
    }
    /// Whether its numbers fit together, and to keys and values of these widths.
    pub const fn fits(self, d: u32, e: u32) -> bool {
        let Matrices { queries, sub_queries, keys, ahead: _, subgroup } = self;
        subgroup == 2 * EDGE
            && sub_queries > 0
            && queries > 0
            && queries.is_multiple_of(sub_queries)
            && sub_queries.is_multiple_of(EDGE)
            && keys > 0
            && keys.is_multiple_of(2 * EDGE)
            && d > 0
            && e > 0
            && d.is_multiple_of(EDGE)
            && e.is_multiple_of(EDGE)
            && (keys * d / 8).is_multiple_of(self.threads())
            && (keys * e / 8).is_multiple_of(self.threads())
    }
    /// Loads of keys and values of an invocation in a step.
    pub const fn loads(self, d: u32, e: u32) -> u32 {
        self.keys * (d + e) / 8 / self.threads()
    }
    /// Quads of f16 in the tile.
    const fn tile_len(self, d: u32, e: u32) -> u32 {
        let (queries, both) = (self.queries * (d + PAD), self.keys * (d + e + 2 * PAD));
        if queries > both { queries / 4 } else { both / 4 }
    }
    /// Quads of f32 from one row of the strip to the next.
    const fn strip_pitch(self, e: u32) -> u32 {
        let columns = if e < COLUMNS { e } else { COLUMNS };
        (if self.keys > columns { self.keys } else { columns } + STRIP_PAD) / 4
    }
    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(self, d: u32, e: u32, again: bool) -> u32 {
        self.tile_len(d, e) * 8
            + self.queries * (self.strip_pitch(e) * 16 + (self.keys + PAD) * 2)
            + if again { 8 } else { 0 }
    }
}

/// Parameters of the template for matrix units. `q`, `k` and `v` are loaded by eights.
#[derive(Clone, Debug)]
pub struct Cooperative {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// How it is cut up.
    pub matrices: Matrices,
    /// The width of queries and keys.
    pub depth: u32,
    /// Which keys a block of queries may see.
    pub window: Window,
}

/// A load of eight elements of keys or values.
#[derive(Serialize)]
struct Eight {
    name: String,
    operand: &'static str,
    line: String,
    eight: String,
    at: String,
}

/// Columns whose results are in workgroup memory at once.
#[derive(Serialize)]
struct Columns {
    first: u32,
    /// Blocks of 16.
    columns: Vec<u32>,
    /// Quads that an invocation has of them.
    quads: Vec<u32>,
}

#[derive(Serialize)]
struct CooperativeSlots<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    queries: u32,
    keys: u32,
    depth: u32,
    threads: u32,
    ahead: bool,
    blocks: Vec<u32>,
    depth_blocks: Vec<u32>,
    key_blocks: Vec<u32>,
    score_quads: Vec<u32>,
    own_quads: Vec<u32>,
    chunks: Vec<Columns>,
    loads: Vec<Eight>,
    tile_len: u32,
    values_at: u32,
    key_pitch: u32,
    value_pitch: u32,
    strip_pitch: u32,
    probability_pitch: u32,
    local: Local,
    bounded: bool,
    free: bool,
    again: bool,
    unseen: &'static str,
    window: String,
}

impl Template for CooperativeSlots<'_> {
    const NAME: &'static str = "attention_cooperative.wgsl";
}

impl Cooperative {
    fn again(&self) -> bool {
        self.window.again(self.problem.empty_is_zero)
    }
    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> u32 {
        self.matrices.workgroup_bytes(self.depth, self.problem.e, self.again())
    }
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let Cooperative { problem, matrices, depth, window } = self;
        let Matrices { queries, sub_queries, keys, ahead, subgroup } = *matrices;
        let (d, e, threads) = (*depth, problem.e, matrices.threads());
        let (key_pitch, value_pitch) = ((d + PAD) / 4, (e + PAD) / 4);
        let values_at = keys * key_pitch;
        let mut loads = vec![];
        for (operand, width, start, pitch) in [("k", d, 0, key_pitch), ("v", e, values_at, value_pitch)] {
            for i in 0..keys * width / 8 / threads {
                let element = format!("(thread + {})", i * threads);
                let (line, eight) =
                    (format!("{element} / {}", width / 8), format!("{element} % {}", width / 8));
                let at = format!("{start} + {line} * {pitch} + {eight} * 2");
                loads.push(Eight { name: format!("{operand}{i}"), operand, line, eight, at });
            }
        }
        let (mut chunks, mut first, mut count) = (vec![], 0, 0);
        while first < e {
            let columns = COLUMNS.min(e - first);
            let quads = (count..count + columns / 8).collect();
            count += columns / 8;
            chunks.push(Columns {
                first,
                columns: (first / EDGE..(first + columns) / EDGE).collect(),
                quads,
            });
            first += columns;
        }
        render(&CooperativeSlots {
            problem,
            queries,
            keys,
            depth: d,
            threads,
            ahead,
            blocks: (0..sub_queries / EDGE).collect(),
            depth_blocks: (0..d / EDGE).collect(),
            key_blocks: (0..keys / EDGE).collect(),
            score_quads: (0..keys / 8).collect(),
            own_quads: (0..count).collect(),
            chunks,
            loads,
            tile_len: matrices.tile_len(d, e),
            values_at,
            key_pitch,
            value_pitch,
            strip_pitch: matrices.strip_pitch(e),
            probability_pitch: (keys + PAD) / 4,
            local: Local::new(subgroup),
            bounded: window.is_bounded(),
            free: window.free.is_some(),
            again: self.again(),
            unseen: window.unseen(),
            window: window.text(self.again()),
        })
    }
}
