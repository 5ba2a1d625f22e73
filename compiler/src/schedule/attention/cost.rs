//! The estimated time of attention: each form counts what its template does.
//!
//! The constants are operations of an invocation: those of the template's text and the arithmetic behind it (addresses, conversions,
//! `exp`), rounded to what fits times on an H100.

use super::{Decode, Matrices, OPEN_KEYS, Problem, Stream, Tiled};
use crate::cost::{Launch, Stage};
use crate::kernel;
use crate::schedule::Context;

/// Operations of a load of up to 16 bytes: its line and column, its address, the bound, and a write to workgroup memory.
const LOAD: f64 = 24.0;
/// Registers for addresses, bounds and intermediate values.
const OTHER_REGISTERS: f64 = 40.0;
/// Operations that make a probability of a score: scale, bounds, maximum, `exp` and sum.
const SCORE: f64 = 16.0;
/// Operations of an iteration beside its multiply-adds and reads: addresses, their swizzle, and the wait for what is read.
const ITERATION: f64 = 16.0;
/// Loads of an invocation that are under way together in a loop of a variable length; of others all are.
const LOADS: f64 = 2.0;
/// More operations of a load where the number of quads of a line is a variable, by which positions are divided twice.
const DIVISION: f64 = 48.0;
/// Operations of a subgroup that load, store or multiply a matrix: 8 elements an invocation, each at an address of its own.
const MATRIX: f64 = 32.0;

/// The extents of attention as numbers.
struct Extents {
    batch: f64,
    s: f64,
    t: f64,
    d: f64,
    e: f64,
    parts: f64,
}

impl Extents {
    fn of(k: &kernel::Attention, p: &Problem, cx: &Context) -> Extents {
        let [batch, s] = [&k.batch, &k.s].map(|d| cx.expect.extent(d));
        // Keys are split where there may be many.
        let least = if k.part_stores.is_empty() { 1.0 } else { OPEN_KEYS as f64 };
        let [t, parts] = [&k.t, &k.parts].map(|d| cx.expect.extent_or(d, least));
        let parts = parts.min(k.parts.greatest().map_or(t, |n| n as f64));
        let (d, e) = (p.d.map_or(64.0, f64::from), f64::from(p.e));
        Extents { batch, s, t, d, e, parts }
    }
    /// Steps of so many keys of a workgroup with so many queries: on average, and at most. Half of a triangle is seen.
    fn steps(&self, p: &Problem, queries: f64, keys: f64) -> (f64, f64) {
        let mean = if p.bounded { f64::midpoint(self.t, queries).min(self.t) } else { self.t };
        ((mean / keys).ceil(), (self.t / keys).ceil())
    }
}

/// Loads of a mask for so many scores of a step; within bounds it is read in one of the steps only.
fn mask_loads(k: &kernel::Attention, p: &Problem, scores: f64, steps: f64) -> f64 {
    match k.mask {
        Some(_) if p.bounded => scores / steps.max(1.0),
        Some(_) => scores,
        None => 0.0,
    }
}

/// The time of blocks of queries.
pub(super) fn tiled(g: &Tiled, k: &kernel::Attention, p: &Problem, cx: &Context) -> Launch {
    let x = Extents::of(k, p, cx);
    let tiles = g.tiles;
    let [queries, rows, keys, lanes, depth, threads] =
        [tiles.queries, tiles.thread_queries, tiles.keys, tiles.lanes, tiles.depth, tiles.threads()]
            .map(f64::from);
    let columns: f64 = tiles.columns(p.e).into_iter().map(f64::from).sum();
    let key_parts = (x.d / depth).ceil();
    let value_parts = (x.e / depth).ceil();
    let (steps, longest) = x.steps(p, queries, keys);
    let (each, quads) = (keys / lanes, (x.d / 4.0).ceil());
    let scores = rows * each;
    let reads = quads * (rows + each) + keys / 4.0 * (rows + 4.0 * columns);
    // Threads of a query combine their scores by shuffles, or each reads those of all others.
    let combining = if g.subgroup > 1 { 2.0 * lanes.log2() } else { lanes + 2.0 } * rows;
    let query_loads = queries * quads / threads;
    let again = if tiles.kept { 0.0 } else { query_loads };
    let key_loads = keys * quads / threads + again;
    // Parts of the width are loaded in loops of a variable length.
    let in_parts = p.d.is_none_or(|d| d > tiles.depth);
    let key_waits = if in_parts { key_parts * (key_loads / key_parts / LOADS).ceil() } else { 1.0 };
    let divisions = if in_parts { key_loads } else { 0.0 };
    let loads = key_loads + keys * columns * lanes / threads;
    let mask = mask_loads(k, p, scores, steps);
    let sums = rows * 4.0 * columns;
    let ahead = tiles.loads_ahead(p.d, p.e).filter(|_| tiles.ahead);
    let operations = scores * 4.0 * quads
        + sums * keys
        + reads
        + (quads + keys / 4.0) * ITERATION
        + scores * SCORE
        + combining
        + sums
        + (loads + mask) * LOAD
        + divisions * DIVISION;
    let step = Stage {
        operations,
        shared: 4.0 * reads,
        loaded: 4.0 * loads,
        matrix: 0.0,
        barriers: 2.0 * (key_parts + value_parts) + if g.subgroup > 1 { 0.0 } else { 1.0 },
        waits: key_waits + value_parts - if ahead.is_some() { 1.0 } else { 0.0 },
    };
    let ends = Stage {
        operations: sums + if tiles.kept { query_loads * LOAD } else { 0.0 },
        waits: if tiles.kept { 3.0 } else { 2.0 },
        ..Stage::default()
    };
    let held = rows * (4.0 * (x.e / (4.0 * lanes)).ceil() + each) + 4.0 * (rows + each);
    Launch {
        workgroups: x.batch * (x.s / queries).ceil(),
        threads,
        registers: OTHER_REGISTERS + held + 4.0 * f64::from(ahead.unwrap_or(0)),
        workgroup_bytes: f64::from(tiles.workgroup_bytes(p.d, p.e, g.subgroup)),
        longest: longest / steps,
        ..Launch::default()
    }
    .with(&step, steps)
    .with(&ends, 1.0)
}

/// The time of blocks of queries on matrix units.
pub(super) fn matrices(g: &Matrices, k: &kernel::Attention, p: &Problem, cx: &Context) -> Launch {
    let x = Extents::of(k, p, cx);
    let [queries, sub_queries, keys, threads] =
        [g.queries, g.sub_queries, g.keys, g.threads()].map(f64::from);
    let (steps, longest) = x.steps(p, queries, keys);
    let value_parts = (x.e / keys).ceil();
    let width = x.d + x.e;
    // An invocation has a 32nd of the scores and of the results of its subgroup.
    let (scores, sums) = (sub_queries * keys / 32.0, sub_queries * x.e / 32.0);
    let [blocks, key_blocks, widths] = [sub_queries, keys, width].map(|n| n / 16.0);
    let moved = key_blocks * widths + 2.0 * blocks * key_blocks;
    let loads = keys * width / 8.0 / threads;
    let mask = mask_loads(k, p, scores, steps);
    let step = Stage {
        operations: scores * SCORE + 4.0 * blocks + (loads + mask) * LOAD + moved * MATRIX,
        shared: 0.0,
        loaded: 8.0 * loads,
        matrix: queries * keys * width,
        barriers: 2.0,
        waits: if g.ahead { 0.0 } else { 1.0 },
    };
    let query_loads = queries * x.d / 8.0 / threads;
    let ends = Stage {
        operations: query_loads * LOAD + sums + blocks * x.e / 16.0 * MATRIX,
        barriers: 2.0 * (1.0 + value_parts),
        waits: 2.0,
        ..Stage::default()
    };
    Launch {
        workgroups: x.batch * (x.s / queries).ceil(),
        threads,
        // A matrix of f16 takes 4 registers, which are held with their address.
        registers: OTHER_REGISTERS + 24.0 + blocks * x.d / 2.0 + sums,
        workgroup_bytes: f64::from(g.workgroup_bytes(p.d.unwrap_or(0), p.e)),
        longest: longest / steps,
        ..Launch::default()
    }
    .with(&step, steps)
    .with(&ends, 1.0)
}

/// The time of streamed keys.
pub(super) fn streamed(g: &Stream, k: &kernel::Attention, p: &Problem, shared: u32, cx: &Context) -> Launch {
    let x = Extents::of(k, p, cx);
    let [threads, lanes, unroll, heads, run, subgroup] =
        [g.threads, g.lanes, g.unroll, g.heads, g.run, g.subgroup].map(f64::from);
    let own = (x.d + x.e) / lanes;
    let sums = heads * x.e / lanes;
    let steps = ((x.t / x.parts).ceil() / (threads / lanes * unroll)).ceil();
    // Threads exchange scores until each has those of one head, and hand on what becomes of them.
    let turned = f64::from(g.heads.next_power_of_two());
    let shuffles = unroll * (turned - 1.0 + (lanes / turned).log2())
        + if heads > 1.0 { heads * (unroll + 1.0) } else { 0.0 };
    let unpacked = if run > 4.0 { unroll * own } else { 0.0 };
    let mask = mask_loads(k, p, unroll, steps);
    let operations = heads * unroll * own
        + unroll * SCORE
        + 2.0 * shuffles
        + sums
        + unpacked
        + (unroll * own / run + mask) * LOAD;
    let step = Stage { operations, loaded: unroll * own, waits: 1.0, ..Stage::default() };
    // Each place of the result is combined of what all subgroups have.
    let places = (heads * x.e / 4.0 / threads).max(1.0);
    let ends = Stage {
        operations: heads * x.d / lanes / 4.0 * LOAD
            + sums * (1.0 + 2.0 * (subgroup / lanes).log2())
            + threads / subgroup * places * SCORE,
        barriers: 1.0,
        waits: 2.0,
        ..Stage::default()
    };
    Launch {
        workgroups: x.batch / heads * x.s * x.parts,
        threads,
        registers: OTHER_REGISTERS + (heads + unroll) * own,
        workgroup_bytes: f64::from(g.workgroup_bytes(p.e)),
        memory: x.batch / f64::from(shared) * x.s * x.t * (x.d + x.e) * 16.0 / run,
        ..Launch::default()
    }
    .with(&step, steps)
    .with(&ends, 1.0)
}

/// The time of a workgroup for each query. The template has a score's keys shared by 4 threads and 16 loads of values under way.
pub(super) fn decode(g: &Decode, k: &kernel::Attention, p: &Problem, cx: &Context) -> Launch {
    const LANES: f64 = 4.0;
    const UNDER_WAY: f64 = 16.0;
    let x = Extents::of(k, p, cx);
    let threads = f64::from(g.threads);
    let part = (x.t / x.parts).ceil();
    let keys = part.min(threads);
    let slices = (threads / f64::from(p.e.next_power_of_two())).max(1.0);
    let turns = (keys / (threads / LANES)).ceil();
    let rounds = (keys / (slices * UNDER_WAY)).ceil();
    let loads = turns * x.d / LANES + rounds * UNDER_WAY;
    let combined = if g.subgroup > 1 { threads / f64::from(g.subgroup) } else { UNDER_WAY };
    let steps = (part / threads).ceil();
    let reads = loads + LANES + combined;
    let mask = mask_loads(k, p, 1.0, steps);
    let step = Stage {
        operations: loads + reads + SCORE + (loads + mask) * LOAD,
        shared: reads,
        loaded: loads,
        matrix: 0.0,
        barriers: if g.subgroup > 1 { 5.0 } else { 6.0 },
        waits: turns + rounds,
    };
    let ends =
        Stage { operations: LOAD + slices + 2.0 * combined, barriers: 4.0, waits: 2.0, ..Stage::default() };
    Launch {
        workgroups: x.batch * x.s * x.parts,
        threads,
        registers: OTHER_REGISTERS + UNDER_WAY,
        workgroup_bytes: 4.0 * (x.d + threads * (LANES + 1.0) + slices * UNDER_WAY + combined),
        ..Launch::default()
    }
    .with(&step, steps)
    .with(&ends, 1.0)
}
