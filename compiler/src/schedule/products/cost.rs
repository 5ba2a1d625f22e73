//! The estimated time of a product.
//!
//! The estimate is in [cycles](crate::device::Speeds::cycle), in each of which a core does 128 multiply-adds:
//!
//! ```text
//! busy(workgroup)    = issue cycles of its multiply-adds, workgroup-memory reads and global loads
//! latency(workgroup) = steps · max(a step with only this workgroup's warps, a global load and its barrier) + start and end
//! per_core           = ⌈workgroups / (1.05 · cores)⌉
//! time               = sum over rounds of max(workgroups of the round · busy, latency)
//! ```
//!
//! A round is as many workgroups as are resident on a core; the last one has the rest. So large problems are decided by `busy` (large tiles win) and small ones by `latency` and by how many cores get any
//! work (small tiles and slices of k win). The shares and factors below are fits to times measured on an H100.

use super::problem::Problem;
use super::window::{Window, Work};
use super::{Block, Contiguous, Cooperative, Product, Thin, ThinShape, Tiled};
use crate::cost::Expected;
use crate::device::occupancy::Kind;
use crate::device::{DeviceProfile, Speeds};

/// Latencies of memory that a workgroup takes to start and to store.
const OVERHEAD: f64 = 5.0 / 3.0;
/// Warps of invocations with a single result each that would keep a core's four schedulers busy. With many results the
/// instructions of an invocation are independent of each other, and the root of their number fewer will do; with too few warps
/// each step takes that much longer.
const WARPS: f64 = 36.0;

/// Cycles that a step of a tiled product takes at least for its barrier; two take half as much again.
const BARRIER: f64 = 60.0;
/// How much longer than estimated a block of a thread may take where loads count rather than bytes: it was timed on CPUs only.
const DOUBT: f64 = 4.0;
/// Loads that an invocation has under way which makes a block of vectors.
const BLOCK_LOADS: f64 = 8.0;
/// How long it takes such blocks to read their columns, of the time that a copy takes to: the first time and again.
const BLOCK_STREAM: f64 = 1.5;
const BLOCK_AGAIN: f64 = 0.75;
/// The time of an element of a tile that is read by itself, as a share of the time in which 128 invocations read one each, where bytes count: a fit to
/// convolutions timed on SwiftShader.
const TILE_GATHER: f64 = 1.0 / 20.0;

/// How much longer a step takes whose depth is a loop, where latencies are as long as this or longer.
const ROLLED: f64 = 0.12;
const LONG_LATENCY: f64 = 600.0;

/// Latencies of memory that a step takes at least whose operand is read by one workgroup only.
const STREAM_LATENCY: f64 = 2.3;

/// Latencies of memory that a step of matrix units takes beside its work where nothing else is resident.
const MATRIX_LATENCY: f64 = 0.9;
/// Cycles of the units' own that a product takes.
const MATRIX_SHARE: f64 = 0.755;
/// Cycles of a step's barriers, with what is written between them.
const MATRIX_BARRIERS: f64 = 105.0;
/// Subgroups of a workgroup that would keep a core busy without another; with fewer a step takes longer, by this power.
const MATRIX_SUBGROUPS: f64 = 13.0;
const MATRIX_FEW: f64 = 0.41;
/// Results of matrix units that a core stores in a cycle.
const MATRIX_STORES: f64 = 2.0;
/// Cycles that an element of an operand takes which is read by itself.
const MATRIX_GATHER: f64 = 0.4;
/// Bytes that subgroups read from workgroup memory in a cycle.
const MATRIX_READS: f64 = 116.0;
/// Latencies of memory that workgroups on matrix units take to start and to store.
const MATRIX_OVERHEAD: f64 = 2.65;
/// Registers of an invocation beside its sums, operands and what it fetches.
const MATRIX_REGISTERS: f64 = 50.0;

/// Estimated time in cycles.
pub fn cycles(g: &Product, p: &Problem, device: &DeviceProfile, expect: &Expected) -> f64 {
    let speeds = &device.speeds;
    let memory_latency = speeds.memory_latency;
    let matrix_products = 128.0 * speeds.flops_matrix / speeds.flops_f32;
    let [batch, rows, cols, depth] = [&p.batch, &p.rows, &p.cols, &p.depth].map(|d| expect.extent(d));
    let (workgroups, threads, busy, latency) = match *g {
        Product::Tiled(Tiled { shape: t, buffers, unroll, .. }) => {
            let [tr, tc, tk, mr, mc, split] =
                [t.rows, t.cols, t.k, t.thread_rows, t.thread_cols, t.split].map(f64::from);
            let threads = f64::from(t.threads());
            let workgroups = batch * (rows / tr).ceil() * (cols / tc).ceil();
            let steps = (depth / (tk * split)).ceil();
            let products = tr * tc * tk * split / 128.0;
            let element = speeds.element_cycles().map_or(1.5, |e| e.max(1.5));
            let reads = threads / 128.0 * tk * (mr + mc) * element;
            let single = speeds.element_cycles().map_or(0.2, |e| e * TILE_GATHER);
            let each = |fours: bool| if fours { 0.06 } else { single };
            let loads = (tr * each(p.fours[0] && t.x_by_fours()) + tc * each(p.fours[1])) * tk * split;
            let barrier = speeds.barrier_cycles(threads);
            let barriers =
                if buffers == 2 { barrier.max(BARRIER) } else { (2.0 * barrier).max(1.5 * BARRIER) };
            // Turns of a loop keep the instructions of one from those of the next.
            let rolled = if unroll * 4 < t.k {
                ROLLED * (memory_latency / LONG_LATENCY).min(1.0).powi(2)
            } else {
                0.0
            };
            let step = (products + reads + loads) * (1.0 + rolled) + barriers;
            // Slices are added up in workgroup memory, some rows at a time.
            let added = if split > 1.0 { tr * tc * split / 8.0 } else { 0.0 };
            let sums = if split > 1.0 { 2.0 * barrier } else { 0.0 };
            let end = tr * tc / 32.0 + added.max(sums) + mr * mc * f64::from(unroll);
            let alone = step * (WARPS / (mr * mc).sqrt() * 32.0 / threads).max(1.0);
            // Elements that no other workgroup reads come from memory, with all the others waiting for theirs.
            let once = rows <= tr || cols <= tc;
            let latency = if once { STREAM_LATENCY * memory_latency } else { memory_latency };
            (workgroups, threads, steps * step + end, steps * alone.max(latency) + end)
        }
        Product::Cooperative(Cooperative { shape: s, .. }) => {
            let [tr, tc, tk] = [s.rows, s.cols, s.k].map(f64::from);
            let threads = f64::from(s.subgroups() * 32);
            let workgroups = batch * (rows / tr).ceil() * (cols / tc).ceil();
            let steps = (depth / tk).ceil();
            let [sr, sc] = [s.sub_rows, s.sub_cols].map(f64::from);
            let read = f64::from(s.subgroups()) * (sr + sc) * tk * 2.0;
            let each = |vectors: bool| if vectors { 0.0 } else { MATRIX_GATHER };
            let gathered = (tr * each(p.eights[0]) + tc * each(p.eights[1])) * tk;
            let step = MATRIX_SHARE * tr * tc * tk / matrix_products
                + read / MATRIX_READS
                + gathered
                + MATRIX_BARRIERS;
            let end = tr * tc / MATRIX_STORES;
            // The next step's operands are loaded during one.
            let few = (MATRIX_SUBGROUPS / f64::from(s.subgroups())).max(1.0).powf(MATRIX_FEW);
            let alone = step * few + MATRIX_LATENCY * memory_latency;
            let alone = alone.max(memory_latency);
            (workgroups, threads, steps * step + end, steps * alone + end)
        }
        Product::Thin(t) => return thin_cycles(t, p, device, expect),
        Product::Window(Window { threads, rows: block_rows, cols: block_cols }) => {
            let threads = f64::from(threads);
            let of = |w: &&Work| w.rows == block_rows && w.cols == block_cols;
            let Some(work) = p.windows.iter().find(of) else { return f64::INFINITY };
            let blocks = batch * (rows / f64::from(block_rows)) * (cols / f64::from(block_cols));
            let busy = threads / 128.0 * (3.0 * work.loads + work.operations + 20.0);
            let latency = (1.0 + work.loads / 32.0) * memory_latency;
            ((blocks / threads).ceil(), threads, busy, latency.max(busy))
        }
        Product::Block(Block { threads, rows: block_rows, cols: block_cols, width: 4 }) => {
            let [threads, r, c] = [threads, block_rows, block_cols].map(f64::from);
            let x = if p.fours[0] { r / 4.0 } else { r };
            // Neighbours read the same element of `x`, and 16 bytes each of `y`.
            let bytes = p.bits / 8.0 * c / 4.0;
            let loads = speeds.element_cycles().map_or(Speeds::LOAD_CYCLES * x + bytes, |e| e * (r + c));
            let loads = if p.bits < 32.0 { loads + r + c } else { loads };
            // Each invocation computes what it reads of `x`.
            let step = r * c + loads + p.staged * r + 2.0;
            let busy = threads / 128.0 * (depth * step + 2.0 * r * c + 20.0);
            let latency = (depth * (x + c / 4.0) / BLOCK_LOADS).ceil() * memory_latency * 0.8;
            let blocks = batch * (rows / r).ceil() * (cols / c).ceil();
            ((blocks / threads).ceil(), threads, busy, latency.max(busy))
        }
        Product::Block(Block { threads, rows: block_rows, cols: block_cols, .. }) => {
            let [threads, r, c] = [threads, block_rows, block_cols].map(f64::from);
            let scatter = scatter(p, cols, depth, speeds);
            let (element, doubt) = speeds.element_cycles().map_or((0.0, DOUBT), |e| (e, 1.0));
            let loads = element.max(5.0) * r + element.max(6.0 + 8.0 * scatter) * c;
            let busy = doubt * threads / 128.0 * (depth * (r * c + loads) + 20.0);
            let latency = doubt * (depth * (r + c) / 16.0).ceil() * memory_latency * 0.8;
            let blocks = batch * (rows / r).ceil() * (cols / c).ceil();
            ((blocks / threads).ceil(), threads, busy, latency.max(busy))
        }
        Product::Serial(_) => {
            let threads = 128.0;
            let scatter = scatter(p, cols, depth, speeds);
            let element = speeds.element_cycles().unwrap_or(0.0);
            let busy = threads / 128.0 * depth * (12.0 + 8.0 * scatter).max(2.0 * element + 1.0);
            let latency = (depth / 8.0).ceil() * memory_latency * 0.8;
            ((batch * rows * cols / threads).ceil(), threads, busy, latency.max(busy))
        }
    };
    let per_core = speeds.per_core(workgroups);
    // Elements that no other workgroup reads come from memory, of which a core takes in no more than its share.
    let least = match *g {
        Product::Cooperative(Cooperative { shape: s, .. }) if rows <= f64::from(s.rows) => {
            let core_reads = CORE_READS * speeds.bytes_per_cycle() / speeds.cores;
            per_core * f64::from(s.cols) * depth * p.bits / 8.0 / core_reads
        }
        // Each block of rows reads all columns, the first one from memory.
        Product::Block(Block { rows: r, width: 4, .. }) => {
            let again = BLOCK_AGAIN * ((rows / f64::from(r)).ceil() - 1.0);
            (BLOCK_STREAM + again) * batch * cols * depth * p.bits / 8.0 / speeds.bytes_per_cycle()
        }
        _ => 0.0,
    };
    // Registers bound how many are resident: about 512 threads of large micro-tiles, else 1024.
    let resident = match *g {
        Product::Tiled(Tiled { shape: t, buffers, .. }) => {
            let most = if t.thread_rows * t.thread_cols >= 32 { 512.0 } else { 1024.0 };
            let bytes = f64::from(t.workgroup_bytes(buffers));
            (most / threads).min(device.resident_by_bytes(Kind::Tiles, bytes)).floor().max(1.0)
        }
        Product::Cooperative(Cooperative { shape: s, .. }) => {
            let [r, c, k, sr, sc] = [s.rows, s.cols, s.k, s.sub_rows, s.sub_cols].map(f64::from);
            let registers = MATRIX_REGISTERS + sr * sc / 32.0 + (r + c) * k / 2.0 / threads + (sr + sc) / 4.0;
            let bytes = f64::from(s.workgroup_bytes(p.x, p.y));
            let registers = registers.min(f64::from(device.invocation_registers));
            let most = device.resident_by_registers(threads, registers);
            most.min(device.resident_by_bytes(Kind::Matrices, bytes)).floor().max(1.0)
        }
        Product::Block(Block { rows, cols, width: 4, .. }) => {
            let registers =
                f64::from(rows * cols) + 2.0 * f64::from(rows + cols) + f64::from(OTHER_REGISTERS);
            let registers = registers.min(f64::from(device.invocation_registers));
            device.resident_by_registers(threads, registers).floor().max(1.0)
        }
        _ => (1024.0 / threads).floor().max(1.0),
    };
    let overhead = if matches!(g, Product::Cooperative(_)) { MATRIX_OVERHEAD } else { OVERHEAD };
    let round = |workgroups: f64| match workgroups {
        0.0 => 0.0,
        n => (n * busy).max(latency + overhead * memory_latency),
    };
    let rounds = (per_core / resident).floor();
    (rounds * round(resident) + round(per_core - rounds * resident)).max(least)
}

/// How many times as many loads neighbouring columns take whose elements do not lie side by side. Where bytes count rather than loads,
/// neighbours share none, and it is all the same where their elements lie.
fn scatter(p: &Problem, cols: f64, depth: f64, speeds: &Speeds) -> f64 {
    let apart = p.y == Contiguous::Depth && cols > 1.0 && speeds.element_cycles().is_none();
    if apart { depth.min(8.0) } else { 1.0 }
}

/// Shares of the memory's bandwidth that one core takes in.
const CORE_READS: f64 = 3.2;
/// Latencies of memory that a load takes while many others wait for theirs.
const BUSY_LATENCY: f64 = 1.5;

/// Invocations under way on a core that keep it issuing instructions.
const ISSUING: f64 = 256.0;
/// Invocations under way on a core that hide each other's waits between rounds, and the part of a latency that is seen all the same.
const HIDING: f64 = 512.0;
const BETWEEN_ROUNDS: f64 = 0.45;

/// Registers of a thread of a thin product beside its sums and what they are made of.
const OTHER_REGISTERS: u32 = 24;
/// How many times the registers of a core the invocations of a thin product may want: what is more goes through memory. 8 × 4096 × 4096 in f16 takes 24.3 µs on
/// an H100 where they want 3 times as many and 26.2 with 4.9; 1 × 4096 × 4096 in f32 wants twice as many and is at nine tenths of the bound.
const SPILLED: f64 = 2.0;
/// Turns in which workgroups of a thin product follow each other on a core, from which on nothing hides what is around their loops: fewer
/// were timed in decoders.
const MANY_TURNS: f64 = 12.0;
/// Sums that a workgroup of a thin product adds up in a cycle at its end.
const FOLDED: f64 = 8.0;

/// Whether the sums of all threads of a workgroup, and an element of each operand, fit the registers of a core: what does not
/// goes through memory, which takes ten times as long.
pub fn in_registers(t: ThinShape, p: &Problem, device: &DeviceProfile) -> bool {
    let least = t.accumulators(p.results) + t.rows + t.cols * p.results.products + OTHER_REGISTERS;
    least * t.threads() <= device.core_registers
}

/// Estimated time of a thin product in cycles: the longest of reading all weights from memory, of reading
/// them and each workgroup's rows through the cache, of the loads that one workgroup waits for one after another, and of its
/// instructions; a part of the others; and the sums at the end.
fn thin_cycles(g: Thin, p: &Problem, device: &DeviceProfile, expect: &Expected) -> f64 {
    let (t, speeds) = (g.shape, &device.speeds);
    let (memory, latency) = (speeds.bytes_per_cycle(), BUSY_LATENCY * speeds.memory_latency);
    let core_reads = CORE_READS * memory / speeds.cores;
    let [batch, cols, depth] = [&p.batch, &p.cols, &p.depth].map(|d| expect.extent(d));
    let [rows, k, block_cols, across, lanes, unroll] =
        [t.rows, t.k, t.cols, t.across, t.lanes, t.unroll].map(f64::from);
    let threads = f64::from(t.threads());
    let workgroups = batch * (cols / f64::from(t.tile_cols())).ceil();
    let rounds = (depth / (k * lanes * unroll)).ceil();
    let products = f64::from(p.results.products);
    let one = p.bits / products;
    // Bytes side by side that neighbouring threads read: whole sectors of 32, better two of them.
    let run = if t.depth_first { lanes * k } else { across * block_cols } * one / 8.0;
    let spread = if run < 32.0 { 32.0 / run } else { 1.0 + 4.0 / run };
    let per_core = (workgroups / speeds.cores).ceil();
    let tile_bytes = f64::from(t.tile_cols()) * depth * p.bits / 8.0;
    let reading = (batch * cols * depth * p.bits / 8.0 * spread / memory)
        .max(per_core * tile_bytes * spread / core_reads);

    let sums = f64::from(t.accumulators(p.results));
    let registers = 32.0 + sums + unroll * k * (block_cols * p.bits / 32.0 + rows);
    let resident = device.resident_by_registers(threads, registers).floor().max(1.0);
    let barriers = if lanes > 1.0 { 2.0 } else { 0.0 };
    let waiting = barriers * speeds.barrier_cycles(threads);
    let folding = (300.0 + 60.0 * lanes.log2() / 2.0).max(waiting) + sums * threads / 32.0;
    // Many that fill the workgroup memory stage and add up their sums one after another.
    let bytes = f64::from(t.workgroup_bytes(p.results, g.room()));
    let staged = if g.staged { 4.0 * rows * depth } else { 0.0 };
    let beside = resident.min(device.resident_by_bytes(Kind::Matrices, bytes + staged)).floor().max(1.0);
    let stage = 2.0 * p.staged * rows * depth / threads;
    let end = sums * threads / FOLDED;
    let alone = rounds * latency + folding;
    let turns = (per_core / beside).ceil();
    let one_by_one = if turns >= MANY_TURNS { (turns - 1.0) * (stage + end) } else { 0.0 };

    let unpack = if one >= 32.0 {
        0.0
    } else if one >= 16.0 {
        1.0
    } else {
        4.0
    };
    let narrow = if t.k * t.cols == 1 { 6.0 } else { 0.0 };
    // Elements of `x` with no neighbour beside them in memory take a load, and a sector of the cache, each.
    let strided = p.x == Contiguous::Line && !p.fours[0];
    let element = if strided { 32.0 } else { 4.0 };
    // A load brings 16 bytes at most: of neighbouring weights, or of `x`.
    let width = (if t.depth_first { k } else { block_cols } * one / 8.0).min(16.0);
    let loads =
        k * block_cols * p.bits / 8.0 / width + if strided { rows * k } else { rows * (k / 4.0).ceil() };
    let elements = k * block_cols * p.bits / 32.0 + rows * k;
    let loads = speeds.element_cycles().map_or(Speeds::LOAD_CYCLES * loads, |e| e * elements);
    let block = k * block_cols * products * (unpack + rows) + loads + narrow;
    let instructions = rounds * unroll * block * threads / 128.0 + folding / 4.0;

    let cached = (batch * cols * depth * p.bits / 8.0 * spread + workgroups * rows * depth * element)
        / (memory * speeds.cache_bandwidth / speeds.bandwidth);

    // Loads under way on a core together, and how much longer they take with too few of them.
    let together = threads * per_core.min(resident);
    let few = |most: f64| (most / together).max(1.0);
    let instructions = per_core * instructions * few(ISSUING);
    let instructions =
        instructions * (registers * threads / f64::from(device.core_registers) / SPILLED).max(1.0);
    let parts = [reading, cached, (per_core / resident).ceil() * alone, instructions];
    let longest = parts.iter().fold(0.0, |a: f64, b| a.max(*b));
    // Where one workgroup waits between rounds, others hardly fill the time.
    let between = BETWEEN_ROUNDS * (rounds - 1.0) * latency * few(HIDING);
    // A few threads stage for long. What they stage is on its way with the first round.
    let overlapped = end + stage + between + longest + 0.2 * (parts.iter().sum::<f64>() - longest);
    OVERHEAD * speeds.memory_latency + overlapped + one_by_one
}
