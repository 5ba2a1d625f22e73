//! How parts of rows are put in order: keys in workgroup memory, or parts that are merged.

use super::Context;
use crate::device::DeviceProfile;
use crate::kernel;

/// Bytes of a key.
const KEY: u32 = 8;
/// Keys that an invocation has in registers.
const EACH: [u32; 4] = [8, 4, 2, 16];
/// A workgroup has so many invocations at least, where several parts are as many.
const THREADS: u32 = 64;

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

/// All schedules of a sort that a device can run, the preferred one first.
pub fn candidates(k: &kernel::Sort, cx: &Context) -> Vec<Sort> {
    let most = 1u32 << cx.device.max_invocations.max(1).ilog2();
    if k.sorted > 1 {
        return merges(k, cx.device, most);
    }
    let selects = selects(k, cx.device, most);
    if span(k) as i64 > most_keys(cx.device) {
        return selects;
    }
    let span = span(k);
    let mut out: Vec<Block> = vec![];
    for each in EACH {
        for threads in [32, 64, 128, 256, 512, 1024].map(|t: u32| t.min(most)) {
            let (keys, s) = (each * threads, Block { threads, each });
            if keys >= span && keys * KEY <= cx.device.max_workgroup_bytes && !out.contains(&s) {
                out.push(s);
            }
        }
    }
    // Eight keys of an invocation, unless that leaves a workgroup small.
    let rank = |s: &Block| {
        let keys = s.each * s.threads;
        (s.threads < THREADS.min(most), s.each != 8 && span >= 512, s.each != 4 && span < 512, keys)
    };
    out.sort_by_key(rank);
    let blocks = out.into_iter().map(Sort::Block);
    // To go through a part pays where most of it is left behind.
    let long = selects.iter().any(|s| matches!(s, Sort::Select(s) if s.each * s.threads < span));
    if long { selects.into_iter().chain(blocks).collect() } else { blocks.chain(selects).collect() }
}

/// Whether the keys of a workgroup fit its memory.
fn fits(s: &Block, device: &DeviceProfile) -> bool {
    // Counters lie beside them.
    s.each * s.threads * KEY + s.threads * 4 + 64 <= device.max_workgroup_bytes
}

/// The selections that go through a part, by four times as many keys as are kept.
fn selects(k: &kernel::Sort, device: &DeviceProfile, most: u32) -> Vec<Sort> {
    let mut out = vec![];
    for each in [4, 8, 2, 16] {
        for threads in [128, 256, 64, 32, 512].map(|t: u32| t.min(most)) {
            let s = Block { threads, each };
            let enough = i64::from(each * threads) >= k.keep.saturating_mul(2);
            if enough && k.keep < k.part && fits(&s, device) && !out.contains(&s) {
                out.push(s);
            }
        }
    }
    let roomy = |s: &Block| i64::from(s.each * s.threads) < k.keep.saturating_mul(4);
    out.sort_by_key(|s| (roomy(s), s.threads < 128.min(most)));
    out.into_iter().map(Sort::Select).collect()
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
    let threads = [256, 128, 64, 512].map(|t: u32| t.min(most));
    for s in threads.map(|threads| Sort::Merge(Merge { threads })) {
        if !out.contains(&s) {
            out.push(s);
        }
    }
    out
}
