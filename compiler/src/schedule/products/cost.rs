//! The estimated time of a product.
//!
//! Each form only counts its work: [`Launch`] makes a time of the counts, the same way for all, so that forms can be compared with each
//! other.

use super::integers::Integers;
use super::problem::Problem;
use super::window::Window;
use super::{Block, Contiguous, Cooperative, Product, Thin, ThinShape, Tiled, TiledIntegers};
use crate::cost::memory::{SECTOR, SUBGROUP};
use crate::cost::{Expected, Launch};
use crate::device::DeviceProfile;
use crate::device::occupancy::Kind;

/// Registers of an invocation beside its sums, the elements that it multiplies and those that it loads ahead.
const OTHER_REGISTERS: u32 = 24;
/// The terms of a result of an invocation of its own whose loads are under way together.
const SERIAL_LOADS: f64 = 16.0;
/// Bytes of a sum.
const SUM: f64 = 4.0;

/// Estimated time in [cycles](crate::device::Speeds::cycle).
pub fn cycles(g: &Product, p: &Problem, device: &DeviceProfile, expect: &Expected) -> f64 {
    launch(g, p, device, expect).map_or(f64::INFINITY, |l| l.cycles(device))
}

/// The counts of a product; `None` for a window that the problem does not have.
pub fn launch(g: &Product, p: &Problem, device: &DeviceProfile, expect: &Expected) -> Option<Launch> {
    let sizes = Sizes::of(p, expect);
    Some(match g {
        Product::Tiled(t) => tiled(t, p, &sizes),
        Product::Cooperative(c) => cooperative(c, p, &sizes, device),
        Product::TiledIntegers(t) => tiled_integers(t, p, &sizes)?,
        Product::Thin(t) => thin(t, p, &sizes),
        Product::Window(w) => window(w, p, &sizes, device)?,
        Product::Block(b) if b.width == 4 => vectors(b, p, &sizes, device),
        Product::Block(b) => block(b, p, &sizes, device),
        Product::Serial(s) => serial(s.threads, p, &sizes, device),
    })
}

/// The extents of a problem as numbers, and the bytes of its elements.
struct Sizes {
    batch: f64,
    rows: f64,
    cols: f64,
    depth: f64,
    /// Bytes of an element of the rows' and the columns' operand.
    bytes: [f64; 2],
    /// Bytes of all columns' operands and of the results.
    columns: f64,
    results: f64,
}

impl Sizes {
    fn of(p: &Problem, expect: &Expected) -> Sizes {
        let [batch, rows, cols, depth] = [&p.batch, &p.rows, &p.cols, &p.depth].map(|d| expect.extent(d));
        let products = f64::from(p.results.products);
        let y = p.bits / 8.0 / products;
        let x = if p.half && y <= 2.0 { 2.0 } else { 4.0 };
        let columns = batch * cols * depth * p.bits / 8.0;
        Sizes {
            batch,
            rows,
            cols,
            depth,
            bytes: [x, y],
            columns,
            results: batch * rows * cols * SUM * products,
        }
    }

    /// Bytes of the results, and of operands that are read once: elements of windows, which several positions share, are no vectors.
    fn memory(&self, p: &Problem) -> f64 {
        let x = if p.fours[0] { self.batch * self.rows * self.depth * self.bytes[0] } else { 0.0 };
        let y = if p.fours[1] || p.vector > 1 { self.columns } else { 0.0 };
        x + y + self.results
    }

    /// The number of blocks of so many rows and columns.
    fn blocks(&self, rows: f64, cols: f64) -> f64 {
        self.batch * (self.rows / rows).ceil() * (self.cols / cols).ceil()
    }
}

fn tiled(Tiled { shape: t, buffers, unroll, .. }: &Tiled, p: &Problem, s: &Sizes) -> Launch {
    /// How many times as long instructions take that compute elements of fields of words, between loads that they wait for: a fit to
    /// products of 8 rows with weights of 4 and 6 bits timed on an H100.
    const FIELDS: f64 = 3.0;
    let [rows, cols, k, mr, mc, split] =
        [t.rows, t.cols, t.k, t.thread_rows, t.thread_cols, t.split].map(f64::from);
    let threads = f64::from(t.threads());
    let steps = (s.depth / (k * split)).ceil();
    let terms = steps * k * split;
    let fours = [p.fours[0] && t.x_by_fours(), p.fours[1]];
    let four = |i: usize| p.making[i].four.filter(|_| fours[i]);
    let each = |i: usize| if fours[i] { four(i).map_or(1.0, |r| r.loads) / 4.0 } else { 1.0 };
    let gathered = |fours: bool, lines: f64| if fours { 0.0 } else { lines };
    // The places of elements that are gathered are counted there.
    let made = |i: usize| match four(i) {
        Some(r) => FIELDS * (r.instructions + p.making[i].index) / r.elements,
        None if fours[i] => p.making[i].element(4.0),
        None => p.making[i].value,
    };
    let fetched = terms * (rows * s.bytes[0] + cols * s.bytes[1]);
    // Each row of an invocation's results passes through workgroup memory, where slices are added up or neighbours store neighbours.
    let (passed, rounds) =
        if split > 1.0 || !fours[1] { (2.0 * rows * cols * split, 2.0 * mr) } else { (0.0, 0.0) };
    let barriers = if *buffers == 2 { 1.0 } else { 2.0 };
    let turns = if unroll * 4 < t.k { steps * threads * k / 4.0 / f64::from(*unroll) } else { 0.0 };
    Launch {
        workgroups: s.blocks(rows, cols),
        threads,
        registers: mr * mc + 2.0 * (mr + mc) + f64::from(OTHER_REGISTERS),
        kind: Kind::Tiles,
        workgroup_bytes: f64::from(t.workgroup_bytes(*buffers)),
        memory: s.memory(p),
        multiply_adds: terms * rows * cols,
        operations: terms * (rows * made(0) + cols * made(1)),
        loads: terms * (rows * each(0) + cols * each(1)),
        gathered: terms * (gathered(fours[0], rows) + gathered(fours[1], cols)),
        turns,
        shared: SUM * (steps * k * threads * (mr + mc) + terms * (rows + cols) + passed),
        cached: fetched,
        fetched,
        stored: rows * cols * SUM,
        barriers: steps * barriers + rounds,
        steps,
        ..Launch::default()
    }
}

fn cooperative(
    Cooperative { shape: c, ahead, subgroup }: &Cooperative,
    p: &Problem,
    s: &Sizes,
    device: &DeviceProfile,
) -> Launch {
    /// Bytes of an element in the tiles.
    const HALF: f64 = 2.0;
    /// Elements of a matrix, and its depth.
    const MATRIX: f64 = 256.0;
    const DEPTH: f64 = 16.0;
    /// The time of a multiplication that waits for its operands from workgroup memory and is waited for by the next one, in loads of memory
    /// that wait for each other. A fit to products timed on an H100.
    const MULTIPLIED: f64 = 0.1;
    /// The time that an invocation takes for an element that is computed, in loads that wait for each other: a fit to products of 4 to
    /// 64 rows with weights of 4 and 6 bits timed on an H100.
    const COMPUTING: f64 = 0.02;
    /// How many times as long a step takes whose loads are not under way during the one before, since the registers do not suffice: a fit
    /// to products with weights of 4 and 6 bits timed on an H100.
    const BEHIND: f64 = 2.0;
    /// How many times as long a gathered element takes that is packed with another one: a fit to products in f16 of 20 × 60 × 17 and 119 × 224 × 51 timed on an H100.
    const PACKED: f64 = 3.0;
    let [rows, cols, k, sub_rows, sub_cols] = [c.rows, c.cols, c.k, c.sub_rows, c.sub_cols].map(f64::from);
    let subgroups = f64::from(c.subgroups());
    let threads = subgroups * f64::from(*subgroup);
    let steps = (s.depth / k).ceil();
    let terms = steps * k;
    // Elements that are not in runs are read one by one.
    let run = |i: usize| p.eights[i].then_some(p.making[i].run);
    let each = |i| run(i).map_or(1.0, |r| r.loads / r.elements);
    let gathered = |i, lines: f64| run(i).map_or(PACKED * lines, |_| 0.0);
    let made = |i| run(i).map_or(p.making[i].value, |r| r.instructions / r.elements);
    let held = |i| run(i).map_or(0.5, |r| r.words / r.elements);
    // A register holds each element of a run that is computed.
    let computed = |i| run(i).filter(|r| r.instructions > 0.0).map_or(0.0, |r| r.elements);
    let fetched = terms * (rows * HALF + cols * s.bytes[1]);
    let sums = sub_rows * sub_cols;
    let registers = sums / f64::from(*subgroup)
        + (sub_rows + sub_cols) / 4.0
        + (rows * held(0) + cols * held(1)) * k / threads * f64::from(*ahead)
        + f64::from(OTHER_REGISTERS);
    let unpacked = f64::max(computed(0), computed(1));
    let computing = |i, lines: f64| if computed(i) > 0.0 { COMPUTING * terms * lines / threads } else { 0.0 };
    let behind = registers + unpacked > f64::from(device.invocation_registers);
    let steps = if behind { BEHIND * steps } else { steps } / f64::from(*ahead);
    Launch {
        workgroups: s.blocks(rows, cols),
        threads,
        registers,
        kind: Kind::Matrices,
        workgroup_bytes: f64::from(c.workgroup_bytes(p.x, p.y)),
        memory: s.memory(p),
        operations: terms * (rows * made(0) + cols * made(1)),
        matrix: terms * rows * cols,
        loads: terms * (rows * each(0) + cols * each(1)),
        gathered: terms * (gathered(0, rows) + gathered(1, cols)),
        shared: terms * HALF * (subgroups * (sub_rows + sub_cols) + rows + cols) + 2.0 * rows * cols * SUM,
        cached: fetched,
        fetched,
        stored: rows * cols * SUM,
        barriers: 2.0 * (s.depth / k).ceil() + 2.0 * sums / MATRIX,
        steps: steps + MULTIPLIED * terms / DEPTH + computing(0, rows) + computing(1, cols),
        ..Launch::default()
    }
}

fn tiled_integers(t: &TiledIntegers, p: &Problem, s: &Sizes) -> Option<Launch> {
    /// Multiply-adds that take as long as the dot product of two words: they are executed at half the rate on NVIDIA's devices.
    const DOT: f64 = 2.0;
    /// Operations that round an element of a row: its magnitude, a share of the greatest, a multiply-add, and shares of a word of four and
    /// of their sum.
    const ROUNDED: f64 = 4.0;
    let integers = p.integers?;
    let shape = t.shape;
    let [rows, cols, k, mr, mc] =
        [shape.rows, shape.cols, shape.k, shape.thread_rows, shape.thread_cols].map(f64::from);
    let (threads, unit) = (f64::from(shape.threads()), f64::from(integers.unit));
    let steps = (s.depth / k).ceil();
    let terms = steps * k;
    // A unit's dot product is made a float and scaled, and the sum of its row is added.
    let scaled = if integers.offsets { 4.0 } else { 3.0 };
    let gathered = if p.fours[0] { 0.0 } else { rows };
    let read = if p.fours[0] { rows / 4.0 } else { rows };
    let row = if p.fours[0] { p.making[0].element(4.0) } else { p.making[0].value };
    let fetched = terms * (rows * s.bytes[0] + cols * p.bits / 8.0);
    Some(Launch {
        workgroups: s.blocks(rows, cols),
        threads,
        registers: 2.0 * mr * mc + mr + mc + f64::from(OTHER_REGISTERS),
        kind: Kind::Tiles,
        workgroup_bytes: f64::from(t.workgroup_bytes(integers.unit, integers.offsets)),
        memory: s.memory(p),
        multiply_adds: DOT * terms * rows * cols / 4.0,
        operations: terms
            * (rows * (row + ROUNDED)
                + cols * (unpacked(integers) + p.making[1].value / unit)
                + rows * cols * scaled / unit),
        loads: terms * (read + cols * p.bits / 128.0),
        gathered: terms * gathered,
        shared: terms * (threads * (mr + mc) + rows + cols),
        cached: fetched,
        fetched,
        stored: rows * cols * SUM,
        barriers: if t.buffers == 2 { steps } else { 2.0 * steps },
        steps,
        ..Launch::default()
    })
}

fn window(w: &Window, p: &Problem, s: &Sizes, device: &DeviceProfile) -> Option<Launch> {
    let work = p.windows.iter().find(|o| o.rows == w.rows && o.cols == w.cols)?;
    let blocks = s.blocks(f64::from(w.rows), f64::from(w.cols));
    Some(
        Launch {
            registers: 64.0,
            memory: s.memory(p),
            operations: work.operations,
            loads: work.loads,
            cached: work.loads * SUM,
            stored: f64::from(w.rows * w.cols) * SUM,
            steps: 1.0,
            ..Launch::default()
        }
        .of_invocations(blocks, w.threads, device),
    )
}

fn block(b: &Block, p: &Problem, s: &Sizes, device: &DeviceProfile) -> Launch {
    let [r, c] = [b.rows, b.cols].map(f64::from);
    Launch {
        registers: r * c + 2.0 * (r + c) + f64::from(OTHER_REGISTERS),
        memory: s.memory(p),
        multiply_adds: r * c * s.depth,
        operations: (r * p.making[0].term() + c * p.making[1].term()) * s.depth,
        loads: (r + c) * s.depth,
        turns: s.depth,
        cached: (r * SUM + c * column(p, s, device)) * s.depth,
        stored: r * c * SUM,
        steps: s.depth,
        ..Launch::default()
    }
    .of_invocations(s.blocks(r, c), b.threads, device)
}

fn vectors(b: &Block, p: &Problem, s: &Sizes, device: &DeviceProfile) -> Launch {
    let [r, c] = [b.rows, b.cols].map(f64::from);
    let [x, y] = s.bytes;
    // A turn takes four terms where the rows' operand is read by fours along them.
    let terms = if p.fours[0] && p.x == Contiguous::Depth { 4.0 } else { 1.0 };
    let held = if terms > 1.0 { terms * r } else { 2.0 * r };
    let rows_loads = if p.fours[0] { r / 4.0 } else { r };
    let row = if terms > 1.0 { p.making[0].element(terms) } else { p.making[0].term() };
    let spread = if p.x == Contiguous::Depth { (SECTOR / (4.0 * x)).max(1.0) } else { 1.0 };
    // Invocations side by side read each row once together, and those below each other each column: an invocation's share of both.
    let threads = f64::from(b.threads);
    let across = threads.min(s.cols / c);
    let fetched = (across * c * y + threads / across * r * x * spread) / threads;
    Launch {
        registers: r * c + held + c + f64::from(OTHER_REGISTERS),
        memory: s.memory(p),
        multiply_adds: r * c * s.depth,
        operations: (r * row + c * p.making[1].element(4.0)) * s.depth,
        loads: (rows_loads + c / 4.0) * s.depth,
        turns: s.depth / terms,
        cached: (r + c) * SUM * s.depth,
        fetched: fetched * s.depth,
        stored: r * c * SUM,
        steps: s.depth / terms,
        ..Launch::default()
    }
    .of_invocations(s.blocks(r, c), b.threads, device)
}

fn serial(threads: u32, p: &Problem, s: &Sizes, device: &DeviceProfile) -> Launch {
    Launch {
        memory: s.memory(p),
        multiply_adds: s.depth,
        operations: (p.making[0].term() + p.making[1].term()) * s.depth,
        loads: 2.0 * s.depth,
        cached: (SUM + column(p, s, device)) * s.depth,
        stored: SUM,
        steps: (s.depth / SERIAL_LOADS).ceil(),
        ..Launch::default()
    }
    .of_invocations(s.batch * s.rows * s.cols, threads, device)
}

/// The bytes that an element of the columns takes of what the cache delivers: a sector if its neighbours' elements lie elsewhere. A device
/// whose units do not overlap reads elements one by one wherever they lie.
fn column(p: &Problem, s: &Sizes, device: &DeviceProfile) -> f64 {
    let apart = p.y == Contiguous::Depth && s.cols > 1.0 && device.speeds.overlaps();
    if apart { SECTOR } else { SUM }
}

impl Launch {
    /// The dispatch of as many invocations as there are blocks, whose counts are those of one invocation. Invocations without a block end at
    /// once, if a whole subgroup has none.
    fn of_invocations(self, blocks: f64, threads: u32, device: &DeviceProfile) -> Launch {
        let subgroup = f64::from(device.subgroup.unwrap_or(SUBGROUP));
        let threads = f64::from(threads);
        let workgroups = (blocks / threads).ceil();
        let active = (blocks / subgroup).ceil() * subgroup / workgroups;
        Launch {
            workgroups,
            threads,
            multiply_adds: active * self.multiply_adds,
            operations: active * self.operations,
            loads: active * self.loads,
            turns: active * self.turns,
            cached: active * self.cached,
            fetched: threads * self.fetched,
            stored: active * self.stored,
            ..self
        }
    }
}

/// Whether an invocation's sums and a block of each operand fit its registers, and those of all threads of a workgroup the registers of a
/// core: what does not goes through memory, which takes ten times as long. Elements of a single row are each used once, and not kept.
pub fn in_registers(t: ThinShape, p: &Problem, integers: bool, device: &DeviceProfile) -> bool {
    let least = t.accumulators(p.results) + t.rows + t.cols * p.results.products + OTHER_REGISTERS;
    let row = if integers { 0.25 } else { 1.0 };
    let block = f64::from(t.unroll * t.k) * (f64::from(t.cols) * p.bits / 32.0 + f64::from(t.rows) * row);
    let fits = t.rows == 1 || f64::from(least) + block <= f64::from(device.invocation_registers);
    fits && least * t.threads() <= device.core_registers
}

/// Operations that put the integer of a weight into a byte.
fn unpacked(integers: Integers) -> f64 {
    match integers {
        // Eight floats of 4 bits take 17 operations, as each becomes two bytes.
        Integers { floats: true, .. } => 17.0 / 8.0,
        // A mask and half a shift for four fields of less than 8 bits.
        Integers { pairs: true, .. } => 0.375,
        _ => 0.0,
    }
}

fn thin(g: &Thin, p: &Problem, s: &Sizes) -> Launch {
    /// Lanes whose sums are added up at once.
    const FOLD: f64 = 8.0;
    /// Operations around a block of a single element.
    const NARROW: f64 = 6.0;
    /// Operations that scale the dot product of a unit.
    const SCALED: f64 = 4.0;
    /// Operations that round an element of a row, and those that wait for it: a fit to products with few rows timed on an H100.
    const ROUNDED: f64 = 8.0;
    let t = g.shape;
    let [rows, k, cols, across, lanes, unroll] =
        [t.rows, t.k, t.cols, t.across, t.lanes, t.unroll].map(f64::from);
    let (threads, products, y) = (f64::from(t.threads()), f64::from(p.results.products), s.bytes[1]);
    let steps = (s.depth / (k * lanes * unroll)).ceil();
    let blocks = steps * unroll * threads;
    // Bytes side by side that neighbouring threads read: whole sectors, better two of them.
    let run = if t.depth_first { lanes * k } else { across * cols } * y;
    let spread = if run < SECTOR { SECTOR / run } else { 1.0 + 4.0 / run };
    let narrow = if t.k * t.cols == 1 { NARROW } else { 0.0 };
    // A load brings 16 bytes at most: of neighbouring weights, or of `x`.
    let wide = if t.depth_first { k } else { cols };
    let width = (wide * y).min(16.0);
    // Elements of `x` with no neighbour beside them in memory take a load, and a sector of the cache, each.
    let strided = p.x == Contiguous::Line && !p.fours[0];
    let (row_loads, element) = if strided { (rows * k, SECTOR) } else { (rows * (k / 4.0).ceil(), SUM) };
    let stage = |staged: f64, own: f64| if g.staged { staged } else { own };
    let sums = f64::from(t.accumulators(p.results));
    let joined = f64::from(t.joined(p.results, g.subgroup));
    // Sums are written, and added up in turns; many of them one part after another.
    let parts = (sums / f64::from(t.round(p.results, g.room())).max(1.0)).ceil();
    let folds = if lanes > 1.0 { parts * (1.0 + (lanes / joined).log(FOLD).ceil()) } else { 1.0 };
    let integers = p.integers.filter(|_| g.integers).map(|i| i.in_blocks(t.k));
    let staged_bytes = match integers {
        Some(i) => f64::from(i.bytes(t.rows, s.depth as u32)),
        None => stage(SUM * rows * s.depth, 0.0),
    };
    // A dot product is one instruction for four terms, two for floats; of a unit, a conversion, the scales, and what makes them.
    let (packed, unit) = match integers {
        Some(i) => (4.0, f64::from(i.unit)),
        None => (1.0, 1.0),
    };
    let words = if integers.is_some_and(|i| i.floats) { 2.0 } else { 1.0 };
    let made = match integers {
        Some(i) => unpacked(i) + (p.making[1].value + rows * SCALED) / unit,
        None => p.making[1].element(wide),
    };
    let rounding = if integers.is_some() { ROUNDED } else { 0.0 };
    Launch {
        workgroups: s.batch * (s.cols / f64::from(t.tile_cols())).ceil(),
        threads,
        registers: 32.0 + sums + unroll * k * (cols * p.bits / 32.0 + rows),
        kind: Kind::Matrices,
        workgroup_bytes: f64::from(t.workgroup_bytes(p.results, g.room())) + staged_bytes,
        memory: s.columns * spread + s.results,
        multiply_adds: blocks * k * cols * products * rows * words / packed,
        operations: blocks * (k * cols * products * made + narrow)
            + stage(
                rows * s.depth * (p.making[0].element(1.0) + rounding),
                blocks * rows * k * p.making[0].term(),
            ),
        loads: blocks * (k * cols * products * y / width + stage(0.0, row_loads)),
        turns: steps * threads,
        shared: SUM * (blocks * stage(rows * k, 0.0) / packed + 2.0 * sums * threads / joined),
        cached: blocks * (k * cols * p.bits / 8.0 + stage(0.0, rows * k * SUM)),
        fetched: f64::from(t.tile_cols()) * s.depth * p.bits / 8.0 * spread + rows * s.depth * element,
        stored: rows * f64::from(t.tile_cols()) * SUM,
        barriers: folds + stage(1.0, 0.0),
        steps,
        ..Launch::default()
    }
}
