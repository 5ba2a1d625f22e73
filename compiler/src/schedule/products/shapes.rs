//! The sizes by which products of matrices are cut up, and the workgroup memory that they take.

/// Elements of an operand of matrix units that are read at once, at least.
pub const EIGHT: u32 = 8;
/// Edge of a matrix of matrix units.
const EDGE: u32 = 16;
/// Elements between the lines of a tile for matrix units, which keep them in different banks.
const PAD: u32 = 8;
/// Columns that a subgroup stores at once, at most: workgroup memory decides how many workgroups a core runs together.
const STRIP: u32 = 16;

/// The memory order of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contiguous {
    /// Neighbouring rows (of `x`) or columns (of `y`) are neighbours in memory.
    Line,
    /// Neighbouring `k` are neighbours in memory.
    Depth,
}

/// How a tiled product is cut up. All numbers are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileShape {
    /// Rows a workgroup makes.
    pub rows: u32,
    /// Columns a workgroup makes.
    pub cols: u32,
    /// How much of `k` one slice has in workgroup memory at once; at least 4.
    pub k: u32,
    /// Rows a thread makes.
    pub thread_rows: u32,
    /// Columns a thread makes; a multiple of 4.
    pub thread_cols: u32,
    /// Slices of `k` that run side by side in a workgroup.
    pub split: u32,
}

impl TileShape {
    /// Threads of a workgroup.
    pub const fn threads(self) -> u32 {
        (self.rows / self.thread_rows) * (self.cols / self.thread_cols) * self.split
    }
    /// Whether a thread makes four rows or more, so that the rows' operand may be read in vectors.
    pub const fn x_by_fours(self) -> bool {
        self.thread_rows >= 4
    }
    /// Bytes of workgroup memory that one buffer of tiles takes.
    const fn buffer_bytes(self) -> u32 {
        (self.rows + self.cols) * self.k * self.split * 4
    }
    /// How many buffers of tiles are kept: two where they fit `limit` bytes, which saves a barrier.
    pub const fn buffers(self, limit: u32) -> u32 {
        if 2 * self.buffer_bytes() <= limit { 2 } else { 1 }
    }
    /// Bytes of workgroup memory it takes with so many buffers of tiles.
    pub const fn workgroup_bytes(self, buffers: u32) -> u32 {
        let tiles = buffers * self.buffer_bytes();
        let round = self.threads() * self.thread_cols * 4;
        if tiles > round { tiles } else { round }
    }
}

/// How a product is cut up for matrix units. All numbers are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CooperativeShape {
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
}

impl CooperativeShape {
    /// Elements between the lines of a tile.
    pub const PAD: u32 = PAD;

    /// Subgroups of a workgroup.
    pub const fn subgroups(self) -> u32 {
        (self.rows / self.sub_rows) * (self.cols / self.sub_cols)
    }
    /// Columns that each subgroup stores at once, of 16 rows.
    pub const fn strip_cols(self) -> u32 {
        if self.sub_cols < STRIP { self.sub_cols } else { STRIP }
    }
    /// f32 elements that each subgroup stores at once.
    const fn patch(self) -> u32 {
        EDGE * self.strip_cols()
    }
    /// Elements of the tile of an operand with so many rows or columns.
    pub const fn tile(self, lines: u32, order: Contiguous) -> u32 {
        match order {
            Contiguous::Depth => lines * (self.k + PAD),
            Contiguous::Line => self.k * (lines + PAD),
        }
    }
    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(self, x: Contiguous, y: Contiguous) -> u32 {
        (self.tile(self.rows, x) + self.tile(self.cols, y)) * 2 + self.patch() * self.subgroups() * 4
    }
    /// Whether every invocation of a subgroup stores equally many vectors of each strip, all in one column.
    pub const fn shares_strips(self, subgroup: u32) -> bool {
        (self.patch() / 4).is_multiple_of(subgroup) && subgroup.is_multiple_of(self.strip_cols() / 4)
    }
    /// Whether every invocation fetches equally many vectors.
    pub fn divides(self, subgroup: u32) -> bool {
        [self.rows, self.cols].into_iter().all(|lines| self.shares(lines, EIGHT, subgroup))
    }
    /// The neighbours that an invocation fetches at once of an operand with so many rows or columns, at most `most`.
    pub fn run(self, lines: u32, order: Contiguous, most: u32, subgroup: u32) -> u32 {
        let along = if order == Contiguous::Depth { self.k } else { lines };
        let fits = |run: &u32| along.is_multiple_of(*run) && self.shares(lines, *run, subgroup);
        [32, 16].into_iter().filter(|run| *run <= most).find(fits).unwrap_or(EIGHT)
    }
    /// Whether every invocation fetches equally many runs of neighbours.
    fn shares(self, lines: u32, run: u32, subgroup: u32) -> bool {
        (lines * self.k / run).is_multiple_of(self.subgroups() * subgroup)
    }
}

/// How a product with few rows is cut up. All numbers but `rows` and `unroll` are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThinShape {
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

/// The sums: products with second operands, and sums along k beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Results {
    /// Number of second operands, each multiplied with the same rows.
    pub products: u32,
    /// Sums of the first operand's rows.
    pub sums: u32,
}

/// The memory in which a workgroup adds up its threads' sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// Bytes of workgroup memory that may be taken.
    pub bytes: u32,
    /// Threads of a subgroup, a power of two; 1 where there are none.
    pub subgroup: u32,
}

/// Shuffles after which sums are better added up in workgroup memory.
const MOST_SHUFFLES: u32 = 16;

impl ThinShape {
    /// Invocations of a workgroup.
    pub const fn threads(self) -> u32 {
        self.across * self.lanes
    }
    /// Columns that a workgroup makes.
    pub const fn tile_cols(self) -> u32 {
        self.across * self.cols
    }
    /// Sums that a thread makes.
    pub const fn accumulators(self, r: Results) -> u32 {
        self.rows * (r.products * self.cols + r.sums)
    }
    /// The number of a thread's sum: `result` counts products, then sums, for which `col` is 0.
    pub const fn sum_of(self, r: Results, result: u32, row: u32, col: u32) -> u32 {
        if result < r.products {
            (result * self.rows + row) * self.cols + col
        } else {
            r.products * self.rows * self.cols + (result - r.products) * self.rows + row
        }
    }
    /// From one lane's sums to the next one's in workgroup memory: odd where lanes write side by side.
    pub const fn pitch(self) -> u32 {
        if self.depth_first && self.across > 1 { self.across + 1 } else { self.across }
    }
    /// From one lane to the next, in threads.
    const fn apart(self) -> u32 {
        if self.depth_first { 1 } else { self.across }
    }
    /// Lanes whose sums a subgroup of `subgroup` threads adds up by shuffles; 1 where that is not worth it.
    pub const fn joined(self, r: Results, subgroup: u32) -> u32 {
        let reach = subgroup / self.apart();
        let lanes = if reach < self.lanes { reach } else { self.lanes };
        let whole = subgroup > 1 && self.threads().is_multiple_of(subgroup) && lanes > 1;
        if whole && self.accumulators(r) * lanes.ilog2() <= MOST_SHUFFLES { lanes } else { 1 }
    }
    /// Sums added up at a time; 0 if none fit.
    pub const fn round(self, r: Results, room: Room) -> u32 {
        let all = self.accumulators(r);
        let lanes = self.lanes / self.joined(r, room.subgroup);
        let rest = (room.bytes / 4).saturating_sub(all * self.across);
        let fit = if lanes == 1 { rest * all } else { rest / (lanes * self.pitch()) };
        if fit > all { all } else { fit }
    }
    /// Bytes of workgroup memory taken.
    pub const fn workgroup_bytes(self, r: Results, room: Room) -> u32 {
        let lanes = self.lanes / self.joined(r, room.subgroup);
        let parts = if lanes == 1 { 1 } else { self.round(r, room) * lanes * self.pitch() };
        (self.accumulators(r) * self.across + parts) * 4
    }
}
