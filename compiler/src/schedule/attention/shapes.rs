//! The sizes by which attention is cut up, and the workgroup memory and registers that they take.

/// Edge of a matrix of matrix units.
const EDGE: u32 = 16;
/// Elements between the lines of a tile for matrix units, which keep them in different banks: of f16, and of f32.
const PAD: u32 = 8;
const STRIP_PAD: u32 = 4;

/// Blocks of queries, keys and values in workgroup memory.
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
    pub const fn query_pitch(self, d: Option<u32>) -> u32 {
        match d {
            Some(d) if self.kept => pitch(d.div_ceil(4)),
            _ => self.key_pitch(d),
        }
    }
    /// Quads of a line of keys.
    pub const fn key_pitch(self, d: Option<u32>) -> u32 {
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
    /// Quads of columns of values that a thread has, for each part of the width that is in workgroup memory at once.
    pub fn columns(self, e: u32) -> Vec<u32> {
        let parts = (0..e.div_ceil(4)).step_by((self.depth / 4).max(1) as usize);
        parts.map(|first| self.value_columns(e, first)).collect()
    }
    /// Quads in the tile of keys or values.
    pub fn tile_len(self, d: Option<u32>, e: u32) -> u32 {
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

/// Blocks of queries and keys for matrix units.
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
    /// Elements of f16 between the lines of a tile.
    pub const PAD: u32 = PAD;

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
    /// Quads of f16 in the tile, which has all keys and values of a step, and parts of the width of queries before.
    pub const fn tile_len(self, d: u32, e: u32) -> u32 {
        let (queries, both) = (self.queries * (EDGE + PAD), self.keys * (d + e + 2 * PAD));
        if queries > both { queries / 4 } else { both / 4 }
    }
    /// Quads of f32 from one row of the strip to the next. Results of as many columns of values as keys pass through it at once.
    pub const fn strip_pitch(self) -> u32 {
        (self.keys + STRIP_PAD) / 4
    }
    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(self, d: u32, e: u32) -> u32 {
        self.tile_len(d, e) * 8 + self.queries * (self.strip_pitch() * 16 + (self.keys + PAD) * 2) + 16
    }
}

/// Keys and values that are streamed through registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Invocations of a workgroup, a multiple of `subgroup`.
    pub threads: u32,
    /// Threads that share a key, a power of two, at most `subgroup`.
    pub lanes: u32,
    /// Keys that they take at a time.
    pub unroll: u32,
    /// Heads of a workgroup, which share keys and values; no more than `lanes`, as each thread has the scores of one.
    pub heads: u32,
    /// Elements of a load of keys and values: 4, 8 of f16, or 16 of 8 bits.
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
            && heads.next_power_of_two() <= lanes
            && matches!(run, 4 | 8 | 16)
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
    /// The count with keys and values as they are loaded: two of f16 in a register.
    pub const fn loaded(self, d: u32, e: u32) -> u32 {
        (self.heads * self.run + self.unroll * 4) * (d + e) / (self.lanes * self.run)
    }
}
