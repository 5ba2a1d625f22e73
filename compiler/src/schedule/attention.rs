//! How attention is cut up.

mod shapes;

pub use shapes::{Matrices, Stream, Tiles};

use super::Context;
use crate::device::DeviceProfile;
use crate::device::occupancy::Kind;
use crate::kernel::substitute::substitute;
use crate::kernel::window::Window;
use crate::kernel::{self, Body, ExprId, Family, Kernel};
use crate::schedule::products::problem::{half, neighbours_along};
use wgfc_ir::{Atom, Dim, Poly};

/// The widest values a thread can hold the sums of, in the registers of any GPU.
pub const MAX_WIDTH: i64 = 256;
/// Queries up to which a workgroup for each of them may be worth trying.
const MOST_QUERIES: i64 = 16;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attention {
    /// Blocks of queries.
    Tiled(Tiled),
    /// A workgroup a query, for few queries.
    Decode(Decode),
    /// Workgroups of subgroups that go through keys on their own, for few queries, several heads at a time.
    Streamed(Stream),
    /// Blocks of queries on matrix units.
    Cooperative(Matrices),
}

/// Blocks of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiled {
    /// The blocks and how threads share them out.
    pub tiles: Tiles,
    /// Invocations of the subgroups in which the threads of a query combine; 1 for none.
    pub subgroup: u32,
}

/// A workgroup for each query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decode {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Invocations of the subgroups in which threads combine first; 1 for none.
    pub subgroup: u32,
}

const fn tiles(queries: u32, thread_queries: u32, keys: u32, lanes: u32) -> Tiles {
    Tiles { queries, thread_queries, keys, lanes, depth: 0, kept: true, ahead: false }
}

/// Blocks of queries by blocks of keys, in order of preference; how much of the width is in memory comes on top.
const BLOCKS: &[Tiles] = &[
    tiles(64, 8, 64, 16),
    tiles(64, 8, 64, 8),
    tiles(64, 4, 64, 16),
    tiles(64, 8, 32, 8),
    tiles(64, 4, 32, 8),
    tiles(32, 4, 64, 16),
    tiles(32, 4, 32, 8),
    tiles(32, 2, 32, 8),
    tiles(16, 2, 64, 16),
    tiles(16, 1, 64, 16),
    tiles(16, 2, 32, 8),
    tiles(16, 1, 32, 8),
    tiles(8, 1, 128, 32),
    tiles(8, 1, 64, 16),
    tiles(8, 1, 32, 8),
];

/// The share of a thread's registers that sums and scores may take.
const SUMS: f64 = 5.0 / 8.0;
/// Loads that a thread may have under way while scores are computed.
const MOST_LOADS: u32 = 8;

/// The properties on which the choice depends.
struct Problem {
    d: Option<u32>,
    e: u32,
    bounded: bool,
    again: bool,
}

impl Problem {
    fn of(kernel: &Kernel, k: &kernel::Attention) -> Problem {
        let window = Window::of(kernel);
        let width = |d: &Dim| d.as_const().and_then(|d| u32::try_from(d).ok()).filter(|d| *d > 0);
        Problem {
            d: width(&k.d),
            e: width(&k.e).unwrap_or(1),
            bounded: window.is_bounded(),
            again: window.again(k.empty_is_zero),
        }
    }
    /// All blocks of queries that a device can run.
    fn tiled(&self, device: &DeviceProfile) -> Vec<Tiled> {
        let mut out = vec![];
        for block in BLOCKS {
            let subgroup =
                device.subgroup.filter(|s| *s >= block.lanes && block.threads().is_multiple_of(*s));
            let subgroup = subgroup.unwrap_or(1);
            let widest = self.d.unwrap_or(MAX_WIDTH as u32).max(self.e).next_power_of_two();
            for depth in [32, 64, 128].into_iter().filter(|depth| *depth == 32 || depth / 2 < widest) {
                let open = self.d.is_none_or(|d| d > depth);
                for kept in [true, false] {
                    let tiles = Tiles { depth, kept, ..*block };
                    let bytes = tiles.workgroup_bytes(self.d, self.e, subgroup);
                    let columns = self.e.div_ceil(4 * tiles.lanes) * 4;
                    let registers = tiles.thread_queries * (columns + tiles.keys / tiles.lanes);
                    let fits = tiles.is_sound()
                        && tiles.threads() <= device.max_invocations
                        && bytes <= device.max_workgroup_bytes
                        && registers <= device.registers_for(SUMS);
                    // Queries can be kept where their width is known; where all of it is there at once they are.
                    let sensible = if open { !kept || self.d.is_some() } else { kept };
                    if !fits || !sensible {
                        continue;
                    }
                    out.push(Tiled { tiles, subgroup });
                    if tiles.loads_ahead(self.d, self.e).is_some_and(|loads| loads <= MOST_LOADS) {
                        out.push(Tiled { tiles: Tiles { ahead: true, ..tiles }, subgroup });
                    }
                }
            }
        }
        out
    }
}

/// Each with its estimated time, the least first.
fn timed<T>(all: Vec<T>, time: impl Fn(&T) -> f64) -> Vec<(f64, T)> {
    let mut timed: Vec<(f64, T)> = all.into_iter().map(|x| (time(&x), x)).collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    timed
}

/// Warps on a core that hide each other's latencies; with fewer each step takes longer, by [`FEW_POWER`].
const WARPS: f64 = 16.0;
/// How much longer: the missing warps' ratio to this power.
const FEW_POWER: f64 = 0.4;
/// Cycles in which 32 threads read 16 bytes each from workgroup memory.
const READ: f64 = 2.0;
/// Operations that make a probability of a score.
const SOFTMAX: f64 = 14.0;
/// Operations of a thread beside the products of each quad.
const QUAD: f64 = 12.0;
/// Cycles of a step for its barriers.
const BARRIERS: f64 = 600.0;
/// Latencies of memory that a workgroup takes to start and to store.
const OVERHEAD: f64 = 5.0 / 3.0;

/// Estimated time in cycles, as for [products](super::products::cost): a fit to times measured on an H100.
fn cycles(g: &Tiled, k: &kernel::Attention, p: &Problem, cx: &Context) -> f64 {
    let Tiles { queries, thread_queries, keys, lanes, depth, kept, ahead } = g.tiles;
    let speeds = &cx.device.speeds;
    let [batch, s, t] = [&k.batch, &k.s, &k.t].map(|d| cx.expect.extent(d));
    let (d, e) = (p.d.map_or(64.0, f64::from), f64::from(p.e));
    let columns = f64::from(p.e.div_ceil(4 * lanes));
    let chunks = (d / f64::from(depth)).ceil() + (e / f64::from(depth)).ceil();
    let threads = f64::from(g.tiles.threads());
    let [queries, rows, keys, lanes] = [queries, thread_queries, keys, lanes].map(f64::from);
    // Half of a triangle is seen.
    let seen = if p.bounded { (t / 2.0 + queries / 2.0).min(t) } else { t };
    let steps = (seen / keys).ceil();
    let workgroups = batch * (s / queries).ceil();
    let quads = (d / 4.0).ceil();
    let products = queries * keys * 4.0 * (quads + lanes * columns) / 128.0;
    let each = keys / lanes;
    let reads = quads * (rows + each) + keys / 4.0 * (rows + 4.0 * columns);
    let folding = if g.subgroup > 1 { 2.0 * lanes.log2() } else { lanes + 16.0 } * rows * threads / 128.0;
    let softmax = queries * keys * SOFTMAX / 128.0 + folding;
    let around = (quads + keys / 4.0) * QUAD * threads / 128.0;
    let loads = keys * (d + e) * 0.06 + if kept { 0.0 } else { queries * d * 0.06 };
    // A part of the latency of loads is seen, or registers hold what comes.
    let waiting = match g.tiles.loads_ahead(p.d, p.e).filter(|_| ahead) {
        Some(loads) => f64::from(loads) * threads / 32.0,
        None => 0.5 * speeds.memory_latency,
    };
    let step = products + reads * READ * threads / 32.0 + softmax + around + loads + waiting;
    let step = step + BARRIERS * chunks / 2.0;
    let end = queries * (d + e) / 32.0;
    let per_core = speeds.per_core(workgroups);
    let registers = 40.0 + rows * (4.0 * columns + each) + 4.0 * (rows + each);
    let bytes = g.tiles.workgroup_bytes(p.d, p.e, g.subgroup);
    let device = cx.device;
    let resident = device.resident_by_registers(threads, registers);
    let resident = resident.min(device.resident_by_bytes(Kind::Attention, f64::from(bytes))).floor().max(1.0);
    let warps = per_core.min(resident) * threads / 32.0;
    let busy = steps * step * (WARPS / warps).max(1.0).powf(FEW_POWER) + end;
    let latency = steps * chunks * speeds.memory_latency + end;
    (per_core * busy).max((per_core / resident).ceil() * latency) + OVERHEAD * speeds.memory_latency
}

/// A workgroup for each query, as the device has them.
pub fn decode(device: &DeviceProfile) -> Attention {
    let threads = device.max_invocations.min(256);
    let subgroup = device.subgroup.filter(|s| threads.is_multiple_of(*s)).unwrap_or(1);
    Attention::Decode(Decode { threads, subgroup })
}

/// An operand at `run` neighbours of its width `%along`, which are one load and which the variable then counts: in another arena.
pub fn run_of(kernel: &Kernel, root: ExprId, along: usize, run: u32, to: &mut Body) -> Option<Vec<ExprId>> {
    let width = kernel.domain().into_iter().nth(along)?;
    let whole = run > 1 && width.modulo(&i64::from(run).into(), &[]).is(0);
    whole.then(|| neighbours_along(kernel, root, along, run, to)).flatten()
}

/// How many neighbouring problems have the same keys and values: heads of queries that share one.
pub fn shared_heads(kernel: &Kernel) -> u32 {
    let Family::Attention(k) = &kernel.family else { return 1 };
    // All of them, where there is one head of keys.
    let mut divisors: Vec<u32> = k.batch.as_const().and_then(|b| u32::try_from(b).ok()).into_iter().collect();
    for id in kernel.body.reachable(&[k.k, k.v]) {
        if let Some(p) = kernel.body.expr(id).index() {
            for a in p.terms().into_iter().flat_map(|(m, _)| m) {
                if let Atom::Div(x, d) = &a
                    && x.vars().contains(&0)
                {
                    divisors.extend(d.as_const().and_then(|d| u32::try_from(d).ok()));
                }
            }
        }
    }
    divisors.sort_unstable();
    divisors.into_iter().rev().find(|heads| are_shared(kernel, k, *heads)).unwrap_or(1)
}

/// Whether each `heads` neighbouring problems have the same keys and values.
fn are_shared(kernel: &Kernel, k: &kernel::Attention, heads: u32) -> bool {
    const MOST: u32 = 256;
    let count = i64::from(heads);
    if !(2..=MOST).contains(&heads) || !k.batch.modulo(&count.into(), &[]).is(0) {
        return false;
    }
    let mut domain = kernel.domain();
    domain[0] = domain[0].div(&count.into(), &[]);
    let mut body = Body::default();
    let mut of = |head: i64| {
        let mut vars: Vec<Poly> = (0..domain.len()).map(Poly::var).collect();
        vars[0] = &(&vars[0] * count) + &head.into();
        let ids = substitute(&kernel.body, &mut body, &[k.k, k.v], &vars, &domain);
        [k.k, k.v].map(|e| ids.get(e as usize).copied().flatten())
    };
    let first = of(0);
    (1..count).all(|head| of(head) == first)
}

/// Heads of a workgroup at most.
const MOST_HEADS: u32 = 8;
/// The share of a thread's registers that may hold what it reads and adds up.
const STREAMED: f64 = 13.0 / 16.0;
/// The share with keys and values of f16 as they are loaded. On an H100 four heads of 128 f32 take 51 µs with 128 registers and 64 with 192.
const LOADED: f64 = 23.0 / 32.0;

/// All ways to stream the keys, the preferred one first.
fn streamed(kernel: &Kernel, k: &kernel::Attention, p: &Problem, cx: &Context) -> Vec<Stream> {
    let device = cx.device;
    let (Some(subgroup), Some(d), e) = (device.subgroup, p.d, p.e) else { return vec![] };
    let fits = |run: &u32| {
        let mut body = Body::default();
        [(k.k, 3), (k.v, 4)]
            .into_iter()
            .all(|(root, along)| run_of(kernel, root, along, *run, &mut body).is_some())
    };
    let Some(run) = [8, 4].into_iter().find(fits) else { return vec![] };
    let shared = shared_heads(kernel);
    let most = (1..=MOST_HEADS.min(shared)).rev().find(|h| shared.is_multiple_of(*h)).unwrap_or(1);
    let mut out = vec![];
    for heads in if most > 1 { vec![most, 1] } else { vec![1] } {
        for threads in [256, 128, 512] {
            for lanes in [2, 4, 8, 16, 32] {
                for unroll in [8, 4, 2] {
                    let s = Stream { threads, lanes, unroll, heads, run, subgroup };
                    let fits = s.fits(d, e)
                        && threads <= device.max_invocations
                        && s.workgroup_bytes(e) <= device.max_workgroup_bytes
                        && s.registers(d, e) <= device.registers_for(STREAMED)
                        && s.loaded(d, e) <= device.registers_for(LOADED)
                        && (s.registers(d, e) + 40) * threads <= device.core_registers;
                    out.extend(fits.then_some(s));
                }
            }
        }
    }
    let timed = timed(out, |s| streaming(s, k, p, shared, cx));
    timed.into_iter().map(|(_, s)| s).collect()
}

/// Latencies of memory that a load takes while many others wait for theirs.
const BUSY_LATENCY: f64 = 1.5;

/// Estimated time in cycles.
fn streaming(g: &Stream, k: &kernel::Attention, p: &Problem, shared: u32, cx: &Context) -> f64 {
    let speeds = &cx.device.speeds;
    let [batch, s, t] = [&k.batch, &k.s, &k.t].map(|d| cx.expect.extent(d));
    let [threads, lanes, unroll, heads, run, subgroup] =
        [g.threads, g.lanes, g.unroll, g.heads, g.run, g.subgroup].map(f64::from);
    let (d, e, parts) = (p.d.map_or(64.0, f64::from), f64::from(p.e), f64::from(k.parts));
    let own = (d + e) / lanes;
    let steps = (t / parts / (threads / lanes * unroll)).ceil();
    // Threads exchange scores until each has those of one head, and hand on what becomes of them.
    let turned = f64::from(g.heads.next_power_of_two());
    let alone = 2.0 * (lanes / turned).log2() + 14.0;
    let scores =
        unroll * (4.0 * (turned - 1.0) + alone) + if heads > 1.0 { heads * (unroll + 1.0) } else { 0.0 };
    let unpacked = if run > 4.0 { unroll * own } else { 0.0 };
    let step = heads * unroll * own + scores + heads * e / lanes + unpacked + 4.0 * unroll * own / run + 20.0;
    let end = heads * e / lanes * 2.0 * (1.0 + (subgroup / lanes).log2()) + 100.0;
    let busy = (steps * step + end) * threads / 128.0;
    let latency = BUSY_LATENCY * speeds.memory_latency;
    let workgroups = batch / heads * s * parts;
    let per_core = speeds.per_core(workgroups);
    let registers = 40.0 + heads * own + unroll * own;
    let resident = cx.device.resident_by_registers(threads, registers).floor().max(1.0);
    let bytes = batch / f64::from(shared) * s * t * (d + e) * 16.0 / run;
    // Heads of other workgroups find in caches what the first one read.
    let again = 1.0 + (f64::from(shared) / heads - 1.0) / 4.0;
    let reading = bytes * again / speeds.bytes_per_cycle();
    let warps = per_core.min(resident) * threads / 32.0;
    let few = (WARPS / warps).max(1.0).powf(FEW_POWER);
    let waiting =
        (per_core / resident).ceil() * (steps * (step * few * threads / 128.0).max(latency) + 2.0 * end);
    OVERHEAD * speeds.memory_latency + (per_core * busy).max(reading).max(waiting) + 0.2 * reading
}

/// Queries of a workgroup and of a subgroup, and keys of a step, on matrix units.
const MATRICES: &[(u32, u32, u32)] =
    &[(64, 16, 64), (64, 32, 64), (64, 16, 32), (64, 32, 32), (128, 16, 32), (32, 16, 64), (32, 16, 32)];
/// Loads that an invocation may have under way for the next step.
const MOST_AHEAD: u32 = 16;

/// All ways to use matrix units with their times, the preferred one first.
fn cooperative(kernel: &Kernel, k: &kernel::Attention, p: &Problem, cx: &Context) -> Vec<(f64, Matrices)> {
    let device = cx.device;
    let (Some(d), e, Some(subgroup)) = (p.d, p.e, device.subgroup) else { return vec![] };
    let eights = [(k.q, 3), (k.k, 3), (k.v, 4)].into_iter().all(|(root, along)| {
        half(&kernel.body, root) && run_of(kernel, root, along, 8, &mut Body::default()).is_some()
    });
    if !device.cooperative_matrix || !device.f16 || !eights || i64::from(e.max(d)) > MAX_WIDTH {
        return vec![];
    }
    let mut out = vec![];
    for (queries, sub_queries, keys) in MATRICES {
        for ahead in [true, false] {
            let m = Matrices { queries: *queries, sub_queries: *sub_queries, keys: *keys, ahead, subgroup };
            let fits = m.fits(d, e)
                && m.threads() <= device.max_invocations
                && m.workgroup_bytes(d, e, p.again) <= device.max_workgroup_bytes
                && !(ahead && m.loads(d, e) > MOST_AHEAD);
            out.extend(fits.then_some(m));
        }
    }
    timed(out, |m| on_matrix_units(m, k, p, cx))
}

/// Estimated time in cycles: a fit to times measured on an H100.
fn on_matrix_units(g: &Matrices, k: &kernel::Attention, p: &Problem, cx: &Context) -> f64 {
    let speeds = &cx.device.speeds;
    let [batch, s, t] = [&k.batch, &k.s, &k.t].map(|d| cx.expect.extent(d));
    let (d, e) = (p.d.map_or(64.0, f64::from), f64::from(p.e));
    let [queries, sub_queries, keys, threads] =
        [g.queries, g.sub_queries, g.keys, g.threads()].map(f64::from);
    let seen = if p.bounded { (t / 2.0 + queries / 2.0).min(t) } else { t };
    let steps = (seen / keys).ceil();
    let workgroups = batch * (s / queries).ceil();
    let matrix_products = 128.0 * speeds.flops_matrix / speeds.flops_f32;
    let products = queries * keys * (d + e) / matrix_products;
    // Each subgroup reads all keys and values; scores and results go to workgroup memory and back.
    let reads =
        queries / sub_queries * keys * (d + e) * 2.0 / 128.0 + queries * (2.0 * keys + 2.0 * e) * 4.0 / 128.0;
    let softmax = queries * keys * SOFTMAX / 128.0;
    let loads = keys * (d + e) * if g.ahead { 0.05 } else { 0.1 };
    let step = products + reads + softmax + loads + BARRIERS;
    let per_core = speeds.per_core(workgroups);
    let bytes = g.workgroup_bytes(p.d.unwrap_or(0), p.e, p.again);
    let resident = cx.device.resident_by_bytes(Kind::Matrices, f64::from(bytes)).floor().max(1.0);
    let warps = per_core.min(resident) * threads / 32.0;
    let busy = steps * step * (WARPS / 2.0 / warps).max(1.0).powf(FEW_POWER) + queries * (d + e) / 16.0;
    let latency = steps * speeds.memory_latency * if g.ahead { 1.0 } else { 2.0 };
    (per_core * busy).max((per_core / resident).ceil() * latency) + 2.0 * OVERHEAD * speeds.memory_latency
}

/// All ways that a device can run on an attention kernel, the preferred one first.
pub fn candidates(kernel: &Kernel, k: &kernel::Attention, cx: &Context) -> Vec<Attention> {
    let device = cx.device;
    let p = Problem::of(kernel, k);
    let some = k.s.as_const().is_some_and(|s| s <= MOST_QUERIES);
    let streams = if some { streamed(kernel, k, &p, cx) } else { vec![] };
    let streams = streams.into_iter().map(Attention::Streamed);
    // Small subgroups, of processors without many of them, have no use for it.
    let preferred = device.subgroup.is_some_and(|s| s >= 16);
    let can = some && takes_decode(&k.d, device);
    let plain = (can || k.parts > 1).then(|| decode(device));
    let mut few: Vec<Attention> = streams.collect();
    if preferred {
        few.extend(plain);
    } else {
        few.splice(0..0, plain);
    }
    if k.parts > 1 {
        return few;
    }
    let all = timed(p.tiled(device), |g| cycles(g, k, &p, cx));
    let least = all.first().map_or(f64::INFINITY, |(time, _)| *time);
    let (sooner, later): (Vec<_>, Vec<_>) =
        cooperative(kernel, k, &p, cx).into_iter().partition(|(time, _)| *time < least);
    let tiled = sooner.into_iter().map(|(_, m)| Attention::Cooperative(m));
    let tiled = tiled.chain(all.into_iter().map(|(_, g)| Attention::Tiled(g)));
    let tiled = tiled.chain(later.into_iter().map(|(_, m)| Attention::Cooperative(m)));
    let size = |d: &Dim| cx.expect.estimate(d).max(1);
    if k.s.as_const().is_some_and(|s| s <= 4) && size(&k.t) >= size(&k.s).saturating_mul(16) {
        few.into_iter().chain(tiled).collect()
    } else {
        tiled.chain(few).collect()
    }
}

/// Whether a workgroup for each query can be had.
fn takes_decode(d: &Dim, device: &DeviceProfile) -> bool {
    d.as_const().is_some_and(|d| d <= MAX_WIDTH) && device.max_invocations >= 256
}
