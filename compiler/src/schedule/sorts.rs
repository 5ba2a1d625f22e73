//! How parts of rows are put in order: keys in workgroup memory, or parts that are merged.

use super::{Context, by_time};
use crate::cost::{Launch, Stage, barrier_between_few};
use crate::device::DeviceProfile;
use crate::kernel;

/// Bytes of a key.
const KEY: u32 = 8;
/// Keys that an invocation has in registers.
const EACH: [u32; 4] = [8, 4, 2, 16];

/// How a sort is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sort {
    /// Each workgroup sorts parts of their own.
    Block(Block),
    /// Each workgroup goes through a part and keeps the least keys.
    Select(Block),
    /// Each workgroup makes neighbouring places of two runs.
    Path(Block),
    /// Each key finds its place among those of the other runs.
    Merge(Merge),
}

/// A workgroup that has keys in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Invocations of a workgroup, a power of two.
    pub threads: u32,
    /// Keys of an invocation, a power of two.
    pub each: u32,
}

/// An invocation for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Merge {
    /// Invocations of a workgroup.
    pub threads: u32,
}

/// The most keys that a workgroup can sort, a power of two.
pub fn most_keys(device: &DeviceProfile) -> i64 {
    const MOST: u32 = 2048;
    let fit = (device.max_workgroup_bytes / KEY).min(device.max_invocations.saturating_mul(16));
    1 << fit.clamp(16, MOST).ilog2()
}

/// Keys that a part takes up: a power of two, and as many as an invocation can have.
pub fn span(k: &kernel::Sort) -> u32 {
    let most = k.len.as_const().map_or(k.part, |n| n.min(k.part));
    u32::try_from(most.max(16)).unwrap_or(1 << 31).checked_next_power_of_two().unwrap_or(1 << 31)
}

/// All schedules of a sort that a device can run, by their estimated times.
pub fn candidates(k: &kernel::Sort, cx: &Context) -> Vec<Sort> {
    by_time(launches(k, cx), cx.device)
}

/// All schedules of a sort that a device can run, with their counts.
fn launches(k: &kernel::Sort, cx: &Context) -> Vec<(Sort, Launch)> {
    let most = 1u32 << cx.device.max_invocations.max(1).ilog2();
    let mut all = if k.sorted > 1 { merges(k, cx.device, most) } else { selects(k, cx.device, most) };
    if k.sorted <= 1 {
        all.extend(blocks(k, cx.device, most));
    }
    all.into_iter().map(|s| (s, launch(&s, k, cx))).collect()
}

/// Whether the keys of a workgroup fit its memory.
fn fits(s: &Block, device: &DeviceProfile) -> bool {
    // Counters lie beside them.
    s.each * s.threads * KEY + s.threads * 4 + 64 <= device.max_workgroup_bytes
}

/// The sorts of whole parts.
fn blocks(k: &kernel::Sort, device: &DeviceProfile, most: u32) -> Vec<Sort> {
    let span = span(k);
    if i64::from(span) > most_keys(device) {
        return vec![];
    }
    let mut out = vec![];
    for each in EACH {
        for threads in [32, 64, 128, 256, 512, 1024].map(|t: u32| t.min(most)) {
            let (keys, s) = (each * threads, Sort::Block(Block { threads, each }));
            if keys >= span && keys * KEY <= device.max_workgroup_bytes && !out.contains(&s) {
                out.push(s);
            }
        }
    }
    out
}

/// The selections that go through a part.
fn selects(k: &kernel::Sort, device: &DeviceProfile, most: u32) -> Vec<Sort> {
    let mut out = vec![];
    for each in [4, 8, 2, 16] {
        for threads in [128, 256, 64, 32, 512].map(|t: u32| t.min(most)) {
            let s = Block { threads, each };
            let enough = i64::from(each * threads) >= k.keep.saturating_mul(2);
            if enough && k.keep < k.part && fits(&s, device) && !out.contains(&Sort::Select(s)) {
                out.push(Sort::Select(s));
            }
        }
    }
    out
}

fn merges(k: &kernel::Sort, device: &DeviceProfile, most: u32) -> Vec<Sort> {
    let mut out = vec![];
    for each in [8, 4] {
        for threads in [128, 256, 64].map(|t: u32| t.min(most)) {
            let s = Block { threads, each };
            let whole = k.sorted % i64::from(each * threads) == 0 && k.part == 2 * k.sorted;
            if whole && threads > 1 && fits(&s, device) && !out.contains(&Sort::Path(s)) {
                out.push(Sort::Path(s));
            }
        }
    }
    for s in [256, 128, 64, 512].map(|t: u32| Sort::Merge(Merge { threads: t.min(most) })) {
        if !out.contains(&s) {
            out.push(s);
        }
    }
    out
}

/// The number of rounds in which a workgroup with this many invocations finds a place in a run: each leaves the part at which one of half
/// of them looked.
pub fn search_rounds(run: i64, threads: u32) -> u32 {
    let (mut rounds, mut left) = (0, run.max(0) as u64);
    while left > 0 {
        left = left.div_ceil(u64::from((threads / 2).max(1))) - 1;
        rounds += 1;
    }
    rounds
}

/// Operations of a load of a key: its place, the bound, and a write to workgroup memory.
const LOAD: f64 = 24.0;
/// Registers for addresses, bounds and intermediate values.
const OTHER_REGISTERS: f64 = 40.0;
/// Operations of a step of a search among sorted keys, by a comparison of two keys of 64 bits.
const SEARCH: f64 = 16.0;
/// Operations that merge a key.
const MERGE: f64 = 16.0;
/// Operations that put two keys in order.
const PAIR: f64 = 10.0;
/// Operations that write a key to workgroup memory.
const WRITE: f64 = 6.0;
/// Elements of a key.
const ELEMENTS: f64 = 2.0;
/// The time of a read of a key in workgroup memory on which the next one depends, in loads of memory that wait for each other. A fit to sorts
/// timed on an H100.
const READ: f64 = 0.1;

/// The work of an invocation that sorts its keys, until runs of `run` keys are in order: a network, then rounds of merges.
fn sorting(each: f64, run: f64) -> Stage {
    let bits = each.log2();
    let rounds = (run / each).log2().max(0.0);
    // Batcher's network has this many pairs. A search among 2ⁿ keys takes n + 1 steps.
    let pairs = (bits * bits - bits + 4.0) * each / 4.0 - 1.0;
    let steps = rounds * (bits + (rounds + 1.0) / 2.0);
    Stage {
        operations: pairs * PAIR + steps * SEARCH + rounds * each * MERGE + (rounds + 1.0) * each * WRITE,
        shared: ELEMENTS * (2.0 * steps + rounds * (each + 2.0)),
        barriers: 2.0 * (rounds + 1.0),
        waits: READ * (steps + rounds * each),
        ..Stage::default()
    }
}

/// The counts of a sort.
fn launch(s: &Sort, k: &kernel::Sort, cx: &Context) -> Launch {
    let [rows, len] = [&k.rows, &k.len].map(|d| cx.expect.extent(d));
    let (part, keep) = (k.part as f64, k.keep as f64);
    let (threads, each) = match s {
        Sort::Block(b) | Sort::Select(b) | Sort::Path(b) => (f64::from(b.threads), f64::from(b.each)),
        Sort::Merge(m) => (f64::from(m.threads), 0.0),
    };
    let count = threads * each;
    let parts = rows * (len / part).ceil();
    let (workgroups, steps, step, ends) = match s {
        Sort::Block(_) => {
            let span = f64::from(span(k));
            let ends = Stage {
                operations: 2.0 * each * LOAD,
                loaded: ELEMENTS * each,
                waits: 2.0,
                ..Stage::default()
            };
            ((parts * span / count).ceil(), 1.0, sorting(each, span), ends)
        }
        Sort::Select(_) => {
            let steps = (len.min(part) / (count / 2.0)).ceil();
            // The first keys are sorted when they are as many as fit. Of those behind, fewer and fewer are less than the last that is kept.
            let gathered = keep * (steps / 2.0).ln() / (count / 2.0 - keep).max(1.0);
            let sorts = if steps > 2.0 { 1.0 + gathered.ceil() } else { 1.0 }.min(steps);
            let whole = sorting(each, count);
            let share = sorts / steps;
            let step = Stage {
                operations: each / 2.0 * (LOAD + PAIR) + share * whole.operations,
                shared: share * (whole.shared + ELEMENTS * each),
                loaded: ELEMENTS * each / 2.0,
                barriers: 2.0 + share * (whole.barriers + 1.0),
                waits: 1.0 + share * whole.waits,
                ..Stage::default()
            };
            let ends = Stage { operations: keep / threads * LOAD, waits: 1.0, ..Stage::default() };
            (parts, steps, step, ends)
        }
        Sort::Path(_) => {
            let rounds = f64::from(search_rounds(k.sorted, threads as u32));
            let searched = count.log2() + 1.0;
            let step = Stage {
                operations: rounds * (2.0 * LOAD + SEARCH)
                    + searched * SEARCH
                    + each * (2.0 * LOAD + MERGE + 2.0 * WRITE),
                shared: ELEMENTS * (2.0 * searched + 2.0 * each),
                loaded: ELEMENTS * (2.0 * rounds + each),
                barriers: 2.0 * rounds + 4.0,
                waits: rounds + 2.0 + READ * (searched + each),
                ..Stage::default()
            };
            (rows * (len / count).ceil(), 1.0, step, Stage::default())
        }
        Sort::Merge(_) => {
            // In each of the other runs a search, of which half of the steps find their keys in a cache nearby.
            let runs = (part / k.sorted as f64).max(2.0) - 1.0;
            let searched = ((k.sorted as f64).log2() + 1.0) * runs;
            let step = Stage {
                operations: searched * (LOAD + SEARCH / 2.0) + 2.0 * LOAD,
                loaded: ELEMENTS * (searched + 1.0),
                waits: searched / 2.0 + 2.0,
                ..Stage::default()
            };
            ((rows * len / threads).ceil(), 1.0, step, Stage::default())
        }
    };
    let step = Stage { barriers: barrier_between_few(&cx.device.speeds) * step.barriers, ..step };
    Launch {
        workgroups,
        threads,
        registers: OTHER_REGISTERS + 3.0 * ELEMENTS * each,
        workgroup_bytes: count * f64::from(KEY),
        ..Launch::default()
    }
    .with(&step, steps)
    .with(&ends, 1.0)
}
