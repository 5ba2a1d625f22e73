//! Products of matrices: the tiled template.
//!
//! It computes `out[batch, row, col] = Σₖ x(batch, row, k) · y(batch, k, col)` in f32 and ends in
//! `store(batch, row, col, sum)`. It expects these functions in the module (`x` shown, `y` likewise
//! over columns); the two structs carry whatever is worth computing once a row, or once a `k`:
//!
//! ```wgsl
//! fn x_line(batch: i32, row: i32) -> XLine
//! fn x_step(batch: i32, k: i32) -> XStep
//! fn x_load(batch: i32, line: XLine, step: XStep) -> f32
//! fn store(batch: i32, row: i32, col: i32, acc0: f32)
//! ```
//!
//! All arguments are always in range, except that with no `k` at all `x_step` may be asked for `k = 0`.
//!
//! The tiled template expects other functions for an operand that is [read in blocks](Access), of which one has a tile's depth:
//!
//! ```wgsl
//! fn x_step(batch: i32, block: i32) -> XStep
//! fn x_block(batch: i32, line: XLine, step: XStep) -> XBlock
//! fn x_load(block: XBlock, k: i32) -> f32      // term k of the block
//! ```
//!
//! An operand that the tiled template [reads in vectors](Access) has an `x_load` that gives four neighbours along its memory
//! order as a `vec4<f32>`; `x_line` or `x_step` then counts fours of them, of which there are a whole number.

use crate::{RenderError, Template, render};
use serde::Serialize;

/// The extents of a product, as WGSL expressions of type `i32`.
#[derive(Clone, Debug)]
pub struct Extents {
    /// Number of independent products.
    pub batch: String,
    /// Rows of the result.
    pub rows: String,
    /// Columns of the result: neighbouring threads store neighbouring columns.
    pub cols: String,
    /// Number of terms of a sum.
    pub depth: String,
}

/// The sizes of a tiled product's parts. All numbers are powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Rows a workgroup makes.
    pub rows: u32,
    /// Columns a workgroup makes.
    pub cols: u32,
    /// How much of `k` one slice has in workgroup memory at once; at least 4.
    pub k: u32,
    /// Rows a thread makes; four or more where `x` is read in vectors.
    pub thread_rows: u32,
    /// Columns a thread makes; a multiple of 4.
    pub thread_cols: u32,
    /// Slices of `k` that run side by side in a workgroup.
    pub split: u32,
}

impl Tile {
    /// Threads of one slice.
    const fn slice_threads(self) -> u32 {
        (self.rows / self.thread_rows) * (self.cols / self.thread_cols)
    }
}

/// How an operand is read.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Neighbouring `k` are neighbours in memory; else neighbouring rows (of `x`) or columns (of `y`) are.
    pub along_depth: bool,
    /// Four neighbours along it at once.
    pub vectors: bool,
    /// In blocks of a tile's depth; only where the depth is a multiple of that, and not in vectors.
    pub blocks: bool,
}

/// Parameters of the tiled product.
#[derive(Clone, Debug)]
pub struct Tiled {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// The extents of the product.
    pub extents: Extents,
    /// The sizes of its parts.
    pub tile: Tile,
    /// How `x` is read.
    pub x: Access,
    /// How `y` is read.
    pub y: Access,
    /// The number of rows is known to be a multiple of the tile's.
    pub whole_rows: bool,
    /// The number of columns is known to be a multiple of the tile's.
    pub whole_cols: bool,
    /// `depth` is known to be a multiple of `k · split` of the shape.
    pub whole_depth: bool,
    /// Neighbouring workgroups make neighbouring rows, which suits the larger number of columns.
    pub rows_first: bool,
    /// Buffers of tiles, 1 or 2.
    pub buffers: u32,
    /// Vectors of four in workgroup memory: enough for all buffers, and for a row of every thread's results.
    pub tile_len: u32,
    /// Fours of k that a turn of the loop over a tile's depth spells out; a divisor of their number.
    pub unroll: u32,
    /// `store` takes a `vec4<f32>` of neighbouring columns, `col` counting fours: only where `y` is read in vectors.
    pub store_vectors: bool,
    /// `store` is called once in the text, in loops, as it is long: only where it takes one result.
    pub rolled: bool,
}

#[derive(Serialize)]
struct Element {
    line: usize,
    step: usize,
}

/// Four elements that one thread brings into the tile.
#[derive(Serialize)]
struct Vector {
    /// Four, or one that is a vector.
    elements: Vec<Element>,
    /// Where it is written, and which lane of it: all, or one after another.
    writes: Vec<TileWrite>,
    /// When there are more threads than vectors: which threads write.
    only_if: Option<String>,
}

#[derive(Serialize)]
struct TileWrite {
    index: String,
    /// The lane of the place in the tile, and of the vector fetched; none for all.
    lanes: Option<(String, &'static str)>,
}

#[derive(Serialize)]
struct Operand {
    name: &'static str,
    /// The value that is fetched where there is no more `k`.
    zero: &'static str,
    /// The first and the number of the `k` of a step, in what `<name>_step` counts.
    first: &'static str,
    depth: &'static str,
    blocks: bool,
    lines: Vec<String>,
    steps: Vec<String>,
    vectors: Vec<Vector>,
}

#[derive(Serialize)]
struct Named {
    name: String,
    value: String,
}
#[derive(Serialize)]
struct TileLoad {
    name: String,
    index: String,
}
#[derive(Serialize)]
struct Product {
    acc: String,
    x: String,
    y: String,
}
#[derive(Serialize)]
struct OneK {
    columns: Vec<Named>,
    products: Vec<Product>,
}
/// Four consecutive `k` of the tile.
#[derive(Serialize)]
struct Quad {
    loads: Vec<TileLoad>,
    ks: Vec<OneK>,
}

#[derive(Serialize)]
struct Write {
    index: String,
    acc: String,
}
/// Four neighbouring columns of a row that a thread stores.
#[derive(Serialize)]
struct Quadruple {
    row: String,
    col: String,
    acc: String,
}
/// Some of each thread's rows on their way through workgroup memory.
#[derive(Serialize)]
struct Round {
    writes: Vec<Write>,
    /// The writes of each turn of a loop over rounds; else none.
    turns: Vec<Vec<Write>>,
    row: String,
}
/// A turn of the loop over a tile's depth.
#[derive(Serialize)]
struct Turn {
    /// How many there are; 1 for no loop.
    count: u32,
    /// Vectors of each operand's tile from one turn to the next.
    strides: Vec<Named>,
    /// The changes of addresses in this turn.
    moves: Vec<Named>,
    quads: Vec<Quad>,
}

#[derive(Serialize)]
struct TiledSlots<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    tile_rows: u32,
    tile_cols: u32,
    tile_k: u32,
    thread_rows: u32,
    thread_cols: u32,
    split: u32,
    slice_threads: u32,
    threads: u32,
    tile_len: u32,
    buffers: u32,
    buffer_len: u32,
    slice_len: u32,
    guard_k: bool,
    rows_first: bool,
    tx: String,
    ty: String,
    operands: Vec<Operand>,
    accs: Vec<String>,
    unroll: u32,
    turn: Turn,
    /// Stored from registers; else `rounds`.
    quadruples: Vec<Quadruple>,
    guard_rows: bool,
    guard_cols: bool,
    rounds: Vec<Round>,
    /// Rounds store vectors.
    round_vectors: bool,
    round_cols: u32,
    round_elements: u32,
    round_slice: u32,
    read_at: String,
    read_lane: String,
    read_col: String,
}

impl Template for TiledSlots<'_> {
    const NAME: &'static str = "matmul.wgsl";
}

/// How the vectors of a tile's row of `k` are moved, so that a fetch is spread over the banks.
#[derive(Clone, Copy, PartialEq)]
enum Moved {
    Not,
    /// By `k`.
    Each,
    /// By `k / 4` times this.
    Quads(u32),
}

/// One operand's place in a slice's tile.
///
/// Vectors of four lie along `k` or along lines, whichever lets a thread fetch its four elements
/// while its neighbours fetch the memory beside them:
///
/// - along `k`: vector `(k/4, line)` at `k/4 · lines + line`;
/// - along lines (`along_lines`): vector `(k, line/4)` at `k · lines/4 + (line/4 xor k)`; the xor
///   spreads a fetch over the banks.
///
/// Vectors that are read lie along lines. Where memory does too, nothing is moved. Where memory lies along `k`, a thread
/// writes its four elements to four rows of `k`, and the xor is with `k/4`, spread over the eight vectors of a row of
/// banks.
struct Place {
    name: &'static str,
    lines: u32,
    base: u32,
    along_lines: bool,
    /// Neighbouring threads fetch neighbouring `k`.
    depth_first: bool,
    /// Memory is read in vectors.
    vectors: bool,
    /// Memory is read in blocks of the tile's depth.
    blocks: bool,
    /// Whether a line may lie outside.
    guard: bool,
    origin: &'static str,
    end: &'static str,
}

impl Place {
    fn new(
        name: &'static str,
        lines: u32,
        base: u32,
        access: Access,
        along_lines: bool,
        guard: bool,
    ) -> Place {
        let [origin, end] = if name == "x" { ["row0", "rows"] } else { ["col0", "cols"] };
        let Access { along_depth: depth_first, vectors, blocks } = access;
        Place { name, lines, base, along_lines, depth_first, vectors, blocks, guard, origin, end }
    }

    fn swizzle(&self) -> u32 {
        (self.lines / 4 - 1).min(7)
    }

    /// How the vectors of its rows of `k` are moved, in a tile of `depth`.
    fn moved_by(&self, depth: u32) -> Moved {
        match (self.along_lines, self.vectors, self.depth_first) {
            (true, true, true) => Moved::Quads((32 / depth).max(1)),
            (true, false, _) => Moved::Each,
            _ => Moved::Not,
        }
    }

    /// The loads of each thread: `threads` threads bring `lines · depth` elements in.
    fn operand(&self, depth: u32, threads: u32) -> Operand {
        // Vectors form a grid of a fast and a slow axis, the fast one across neighbouring threads.
        let along_lines = if self.vectors { !self.depth_first } else { self.along_lines };
        let (line_vectors, k_vectors) =
            if along_lines { (self.lines / 4, depth) } else { (self.lines, depth / 4) };
        let (fast, slow) =
            if self.depth_first { (k_vectors, line_vectors) } else { (line_vectors, k_vectors) };
        let count = (fast * slow).div_ceil(threads);
        let only_if = (fast * slow < threads).then(|| format!("t < {}", fast * slow));
        let fours = self.vectors && self.depth_first;
        let mut o = Operand {
            name: self.name,
            zero: if self.vectors { "vec4<f32>()" } else { "0.0" },
            first: if fours { "k0 / 4" } else { "k0" },
            depth: if fours { "depth / 4" } else { "depth" },
            blocks: self.blocks,
            lines: vec![],
            steps: vec![],
            vectors: vec![],
        };
        let find = |list: &mut Vec<String>, s: String| {
            list.iter().position(|x| *x == s).unwrap_or_else(|| {
                list.push(s);
                list.len() - 1
            })
        };
        for i in 0..count {
            let (f, s) = if fast <= threads {
                let step = i * (threads / fast);
                (format!("t % {fast}"), plus(&format!("t / {fast}"), step))
            } else {
                let per = fast / threads;
                (plus("t", i % per * threads), (i / per).to_string())
            };
            // More threads than vectors: the others fetch the same again and do not write.
            let s = if only_if.is_some() { format!("(({s}) % {slow})") } else { format!("({s})") };
            let f = format!("({f})");
            let (k, line) = if self.depth_first { (f, s) } else { (s, f) };
            let mut elements = vec![];
            for j in 0..if self.vectors { 1 } else { 4 } {
                let (line, k) = match (self.vectors, along_lines) {
                    (true, _) => (line.clone(), k.clone()),
                    (false, true) => (format!("{line} * 4 + {j}"), k.clone()),
                    (false, false) => (line.clone(), format!("{k} * 4 + {j}")),
                };
                let (origin, end) = if self.vectors && along_lines {
                    (format!("{} / 4", self.origin), format!("{} / 4", self.end))
                } else {
                    (self.origin.to_owned(), self.end.to_owned())
                };
                let line = format!("{origin} + {line}");
                let line = if self.guard { format!("min({line}, {end} - 1)") } else { line };
                elements.push(Element { line: find(&mut o.lines, line), step: find(&mut o.steps, k) });
            }
            let (base, row, swizzle) = (self.base, self.lines / 4, self.swizzle());
            let whole = |index: String| vec![TileWrite { index, lanes: None }];
            let writes = match self.moved_by(depth) {
                Moved::Quads(by) => (0..4)
                    .map(|j: u32| TileWrite {
                        index: format!(
                            "{base} + ({k} * 4 + {j}) * {row} + (({line} / 4) ^ (({k} * {by}) & {swizzle}))"
                        ),
                        lanes: Some((format!("{line} % 4"), LANES[j as usize])),
                    })
                    .collect(),
                Moved::Each => whole(format!("{base} + {k} * {row} + ({line} ^ ({k} & {swizzle}))")),
                Moved::Not if self.along_lines => whole(format!("{base} + {k} * {row} + {line}")),
                Moved::Not => whole(format!("{base} + {k} * {} + {line}", self.lines)),
            };
            o.vectors.push(Vector { elements, writes, only_if: only_if.clone() });
        }
        o
    }

    /// Reads of a thread's `count` lines at four `k`, the `q`th four of a turn, and the name of each line's value at each.
    /// Without a loop all turns are one.
    ///
    /// Thread `t` of `across` owns, along `k`, lines `t + i·across`; along lines, whole vectors
    /// `t + i·across`.
    fn reads(&self, q: u32, turns: u32, depth: u32, thread: &str, across: u32, count: u32) -> Reads {
        let mut reads =
            Reads { loads: vec![], moves: vec![], values: vec![vec![String::new(); count as usize]; 4] };
        let base = if turns == 1 { "base".to_owned() } else { format!("{}_at", self.name) };
        // The distance by which `k = 4q + j` moves a vector: a number, or in a loop a variable.
        let mut moved = |j: u32| {
            let (by, rest) = match self.moved_by(depth) {
                Moved::Not => return None,
                Moved::Each => (4, j),
                Moved::Quads(by) => (by, 0),
            };
            if turns == 1 {
                let by = (q * by + rest) & self.swizzle();
                return (by != 0).then(|| by.to_string());
            }
            let name = format!("{}_move{q}_{rest}", self.name);
            let value =
                format!("({}) & {}", plus(&format!("({}) * {by}", plus("q", q)), rest), self.swizzle());
            if reads.moves.last().is_none_or(|m: &Named| m.name != name) {
                reads.moves.push(Named { name: name.clone(), value });
            }
            Some(name)
        };
        for j in 0..if self.along_lines { 4 } else { 0 } {
            let by = moved(j);
            for h in 0..count / 4 {
                let name = format!("{}{h}_{j}", self.name);
                let at = self.base + q * self.lines + j * (self.lines / 4);
                let vector = plus(thread, h * across);
                let index = match &by {
                    Some(by) => format!("{} + (({vector}) ^ {by})", plus(&base, at)),
                    None => format!("{} + {vector}", plus(&base, at)),
                };
                reads.loads.push(TileLoad { name: name.clone(), index });
                for (c, lane) in LANES.iter().enumerate() {
                    reads.values[j as usize][h as usize * 4 + c] = format!("{name}.{lane}");
                }
            }
        }
        for i in 0..if self.along_lines { 0 } else { count } {
            let name = format!("{}{i}", self.name);
            let index = format!("{} + {thread}", plus(&base, self.base + q * self.lines + i * across));
            reads.loads.push(TileLoad { name: name.clone(), index });
            for (j, lane) in LANES.iter().enumerate() {
                reads.values[j][i as usize] = format!("{name}.{lane}");
            }
        }
        reads
    }
}

/// A thread's reads of an operand's tile for four `k`.
struct Reads {
    loads: Vec<TileLoad>,
    moves: Vec<Named>,
    /// The name of each line's value at each `k`.
    values: Vec<Vec<String>>,
}

const LANES: [&str; 4] = ["x", "y", "z", "w"];

fn plus(s: &str, n: u32) -> String {
    if n == 0 { s.to_owned() } else { format!("{s} + {n}") }
}

/// The slots that templates of products share.
#[derive(Serialize)]
pub(crate) struct Common<'a> {
    preamble: &'a str,
    setup: &'a str,
    batch: &'a str,
    batch_index: String,
    rows: &'a str,
    cols: &'a str,
    depth: &'a str,
}

impl Extents {
    /// The batch a `block` of `per` blocks a batch lies in.
    pub(crate) fn batch_index(&self, block: &str, per: &str) -> String {
        if self.batch == "1" { "0".into() } else { format!("{block} / ({per})") }
    }
    /// The slots of a template that numbers its blocks so.
    pub(crate) fn common<'a>(
        &'a self,
        preamble: &'a str,
        setup: &'a str,
        block: &str,
        per: &str,
    ) -> Common<'a> {
        let Extents { batch, rows, cols, depth } = self;
        Common { preamble, setup, batch, batch_index: self.batch_index(block, per), rows, cols, depth }
    }
}

/// The column and the row of a thread `t` among so many across and down. A subgroup of 32 that covers 4 × 8 threads reads fewer distinct
/// vectors than one of 2 × 16.
pub(crate) fn patch(across: u32, down: u32) -> (String, String) {
    if across > 8 && down.is_multiple_of(4) {
        let wide = across / 8;
        return (format!("t % 8 + t / 32 % {wide} * 8"), format!("t / 8 % 4 + t / {} * 4", 32 * wide));
    }
    (format!("t % {across}"), format!("t / {across}"))
}

impl Tiled {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let s = self.tile;
        let (across_y, across_x) = (s.rows / s.thread_rows, s.cols / s.thread_cols);
        let x_lines = self.x.vectors || (self.x.along_depth && s.thread_rows >= 4);
        let y_lines = self.y.vectors || self.y.along_depth;
        let x = Place::new("x", s.rows, 0, self.x, x_lines, !self.whole_rows);
        let y = Place::new("y", s.cols, s.rows * s.k / 4, self.y, y_lines, !self.whole_cols);
        let (tx, ty) = patch(across_x, across_y);

        let col_vectors = s.thread_cols / 4;
        let turns = s.k / 4 / self.unroll;
        let (mut quads, mut moves) = (vec![], vec![]);
        for q in 0..self.unroll {
            let of_x = x.reads(q, turns, s.k, "ty", across_y, s.thread_rows);
            let of_y = y.reads(q, turns, s.k, "tx", across_x, s.thread_cols);
            let (xs, ys) = (of_x.values, of_y.values);
            let loads = of_x.loads.into_iter().chain(of_y.loads).collect();
            moves.extend(of_x.moves.into_iter().chain(of_y.moves));
            let mut ks = vec![];
            for j in 0..4 {
                let mut columns = vec![];
                let mut products = vec![];
                for h in 0..col_vectors {
                    let name = if y.along_lines {
                        format!("y{h}_{j}")
                    } else {
                        let name = format!("column{h}_{j}");
                        let parts = &ys[j][h as usize * 4..h as usize * 4 + 4];
                        columns.push(Named {
                            name: name.clone(),
                            value: format!("vec4<f32>({})", parts.join(", ")),
                        });
                        name
                    };
                    for (i, xv) in xs[j].iter().enumerate() {
                        products.push(Product { acc: format!("{i}_{h}"), x: xv.clone(), y: name.clone() });
                    }
                }
                ks.push(OneK { columns, products });
            }
            quads.push(Quad { loads, ks });
        }

        let stride = |p: &Place| Named { name: p.name.to_owned(), value: p.lines.to_string() };
        let turn = Turn { count: turns, strides: vec![stride(&x), stride(&y)], moves, quads };

        // As many rows of each thread a round as the tile has room for.
        let (buffers, tile_len) = (self.buffers, self.tile_len);
        let row_len = s.slice_threads() * col_vectors;
        let mut group = (tile_len / (row_len * s.split)).clamp(1, s.thread_rows);
        group = 1 << group.ilog2();
        let round_slice = group * row_len;
        let mut rounds = vec![];
        let from_registers = self.store_vectors && s.split == 1;
        let count = if from_registers { 0 } else { s.thread_rows / group };
        for r in 0..count {
            let mut writes = vec![];
            for g in 0..group {
                for h in 0..col_vectors {
                    writes.push(Write {
                        index: format!(
                            "slice * {round_slice} + {} + ty * {across_x} + tx",
                            g * row_len + h * s.slice_threads()
                        ),
                        acc: format!("{}_{h}", r * group + g),
                    });
                }
            }
            // `line` is g · across_y + ty.
            let i = match (self.rolled && count > 1, group) {
                (true, 1) => "round".to_owned(),
                (true, _) => format!("(round * {group} + line / {across_y})"),
                (false, 1) => format!("{r}"),
                (false, _) => format!("({} + line / {across_y})", r * group),
            };
            let thread = if group == 1 { "line".to_owned() } else { format!("line % {across_y}") };
            let row = if x.along_lines {
                format!("({thread} + {i} / 4 * {across_y}) * 4 + {i} % 4")
            } else {
                format!("{thread} + {i} * {across_y}")
            };
            rounds.push(Round { writes, turns: vec![], row });
        }
        if self.rolled && count > 1 {
            let row = rounds.first().map(|r| r.row.clone()).unwrap_or_default();
            let turns = rounds.drain(..).map(|r| r.writes).collect();
            rounds.push(Round { writes: vec![], turns, row });
        }
        // A vector `c` of a row is vector `h` of thread column `tx`; else
        // column c of the tile is lane `lane` of vector `h` of thread column `tx`.
        let (h, thread, lane) = if self.store_vectors {
            (format!("c / {across_x}"), format!("c % {across_x}"), String::new())
        } else if y.along_lines {
            (format!("c / {}", 4 * across_x), format!("c / 4 % {across_x}"), "c % 4".to_owned())
        } else {
            (format!("c / {}", 4 * across_x), format!("c % {across_x}"), format!("c / {across_x} % 4"))
        };
        let read_at = format!(
            "line / {across_y} * {row_len} + {h} * {} + line % {across_y} * {across_x} + {thread}",
            s.slice_threads()
        );

        let mut quadruples = vec![];
        for i in 0..if from_registers { s.thread_rows } else { 0 } {
            let row = if x.along_lines {
                format!("(ty + {}) * 4 + {}", i / 4 * across_y, i % 4)
            } else {
                format!("ty + {}", i * across_y)
            };
            for h in 0..col_vectors {
                let (row, col) = (row.clone(), format!("tx + {}", h * across_x));
                quadruples.push(Quadruple { row, col, acc: format!("{i}_{h}") });
            }
        }

        let slots = TiledSlots {
            common: self.extents.common(&self.preamble, &self.setup, "block", "row_tiles * col_tiles"),
            tile_rows: s.rows,
            tile_cols: s.cols,
            tile_k: s.k,
            thread_rows: s.thread_rows,
            thread_cols: s.thread_cols,
            split: s.split,
            slice_threads: s.slice_threads(),
            threads: s.slice_threads() * s.split,
            tile_len,
            buffers,
            buffer_len: (s.rows + s.cols) * s.k * s.split / 4,
            slice_len: (s.rows + s.cols) * s.k / 4,
            guard_k: !self.whole_depth,
            rows_first: self.rows_first,
            tx,
            ty,
            operands: vec![x.operand(s.k, s.slice_threads()), y.operand(s.k, s.slice_threads())],
            accs: (0..s.thread_rows)
                .flat_map(|i| (0..col_vectors).map(move |h| format!("{i}_{h}")))
                .collect(),
            unroll: self.unroll,
            turn,
            quadruples,
            guard_rows: !self.whole_rows,
            guard_cols: !self.whole_cols,
            rounds,
            round_vectors: self.store_vectors,
            round_cols: if self.store_vectors { s.cols / 4 } else { s.cols },
            round_elements: group * across_y * if self.store_vectors { s.cols / 4 } else { s.cols },
            round_slice,
            read_at,
            read_lane: lane,
            read_col: if self.store_vectors { "col0 / 4".into() } else { "col0".into() },
        };
        render(&slots)
    }
}
