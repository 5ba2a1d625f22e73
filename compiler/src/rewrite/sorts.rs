//! Sorting of long rows: a workgroup sorts a part of a row, and sorted parts are merged.
//!
//! Keys have 64 bits, `order(x) · 2³² + position`, where `order` maps elements to unsigned integers of the same order. No two keys are
//! equal, the first of equal elements comes first, and a sorted key gives the position, at which the value is then read.
//!
//! - Few elements of a row: the first few of each part are kept, and these are sorted in turn.
//! - All elements: sorted parts are merged to longer ones until one is left.
//! - 64-bit elements: sorted by their low words first, then stably by their high words.

use super::canonical::topo;
use crate::device::DeviceProfile;
use crate::schedule::sorts::most_keys;
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::computed::Bounds;
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, GatherAxis, Graph, NodeId, Op, Poly, Reg, Value};

/// The longest row that is sorted by counting, for each element, those before it.
pub const SHORT: i64 = 32;
/// The longest row that is sorted by counting in the body of a loop, where a workgroup that runs a lane needs no dispatch for it.
pub const SHORT_IN_LOOPS: i64 = 1 << 10;
/// The runs that one pass merges, for rows of constant length and for others: more runs are searched one after another, fewer take more
/// passes.
const RUNS: i64 = 2;
const RUNS_OF_ANY: i64 = 128;
/// Keys are dropped early if at most this fraction (one in [`FEW`]) of a workgroup's keys is kept.
const FEW: i64 = 4;
/// The most blocks that a workgroup goes through, and the workgroups per core that are aimed at otherwise.
const THROUGH: i64 = 16;
const BUSY: f64 = 4.0;

/// Replaces the sorts of rows longer than `short`. Returns how many were replaced.
pub fn expand(graph: &mut Graph, device: &DeviceProfile, short: i64) -> Result<usize, String> {
    let mut count = 0;
    for n in topo(graph)? {
        let node = graph.node(n);
        let Op::TopK { axis, ref k, largest } = node.op else { continue };
        let (k, x) = (k.clone(), node.inputs[0]);
        if graph.ty(x).shape[axis].as_const().is_some_and(|n| n <= short) {
            continue;
        }
        let new = sorted(graph, n, x, axis, &k, largest, device)?;
        for (port, new) in new.into_iter().enumerate() {
            let old = Value { node: n, port: port as u32 };
            let name = graph.node(n).names.get(port).cloned().flatten();
            if let (Some(slot), Some(name)) = (graph.node_mut(new.node).names.get_mut(0), name) {
                slot.get_or_insert(name);
            }
            graph.replace_uses(old, new);
        }
        count += 1;
    }
    graph.remove_dead();
    Ok(count)
}

/// The sort of a tensor's rows.
struct Sorter<'g> {
    b: Builder<'g>,
    axis: usize,
    /// Keys that a workgroup sorts.
    block: i64,
    /// The most elements of a row.
    most: i64,
    /// Keys of all rows for each workgroup, if it drops most of them.
    share: i64,
}

fn sorted(
    graph: &mut Graph,
    n: NodeId,
    x: Value,
    axis: usize,
    k: &Dim,
    largest: bool,
    device: &DeviceProfile,
) -> Result<[Value; 2], String> {
    let origin = graph.node(n).origin.first().map(|o| o.to_string()).unwrap_or_default();
    let len = graph.ty(x).shape[axis].clone();
    let most = Bounds::of(&graph.computed).most(&len).as_const().unwrap_or(i64::from(i32::MAX));
    let b = Builder::new(graph, &origin);
    let rows: Dim =
        b.shape(x).iter().enumerate().filter(|(d, _)| *d != axis).map(|(_, d)| d.clone()).product();
    let all = rows.as_const().unwrap_or(1).max(1) as f64 * len.as_const().unwrap_or(1) as f64;
    let share = (all / (BUSY * device.speeds.cores)) as i64;
    let mut s = Sorter { b, axis, block: most_keys(device), most, share };
    let positions = match s.b.dtype(x).reg() {
        Reg::I64 | Reg::U64 => {
            let low = s.keys(x, Word::Low, largest)?;
            let by_low = s.order(low, &len)?;
            let again = s.at(x, by_low)?;
            let high = s.keys(again, Word::High, largest)?;
            let by_high = s.order(high, k)?;
            s.at(by_low, by_high)?
        }
        _ => {
            let keys = s.keys(x, Word::Only, largest)?;
            s.order(keys, k)?
        }
    };
    let values = s.at(x, positions)?;
    Ok([values, s.b.cast(positions, DType::I64)?])
}

/// The part of an element that a key contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Only,
    Low,
    High,
}

impl Sorter<'_> {
    /// The keys `order(x) · 2³² + position`, to be sorted in ascending order.
    fn keys(&mut self, x: Value, word: Word, largest: bool) -> Built {
        let t = self.b.dtype(x);
        let mut f = Body::default();
        let x0 = f.arg(0);
        let order = match t.reg() {
            Reg::F32 => {
                let x0 = if t == DType::F32 { x0 } else { f.cast(DType::F32, x0) };
                f.float_order(x0)
            }
            Reg::U32 | Reg::Bool => f.cast(DType::U32, x0),
            Reg::I32 => {
                let x0 = f.cast(DType::I32, x0);
                let bits = f.bitcast(DType::U32, x0);
                f.flipped(bits, 1 << 31)
            }
            Reg::I64 | Reg::U64 => {
                let bits = if t.reg() == Reg::I64 { f.bitcast(DType::U64, x0) } else { x0 };
                let by = f.u64(32);
                let bits = if word == Word::High { f.binary(B::Shr, bits, by) } else { bits };
                let bits = f.cast(DType::U32, bits);
                if word == Word::High && t.reg() == Reg::I64 { f.flipped(bits, 1 << 31) } else { bits }
            }
        };
        let order = if largest { f.flipped(order, u32::MAX) } else { order };
        let high = f.cast(DType::U64, order);
        let by = f.u64(32);
        let high = f.binary(B::Shl, high, by);
        let at = f.index(Poly::var(self.axis));
        let at = f.cast(DType::U32, at);
        let low = f.cast(DType::U64, at);
        f.binary(B::Or, high, low);
        self.b.map(f.0, &[x])
    }

    /// The positions (i32) in the `k` least keys, in order.
    fn order(&mut self, keys: Value, k: &Dim) -> Built {
        let (axis, block) = (self.axis, self.block);
        let (mut keys, mut most) = (keys, self.most);
        let len = self.b.shape(keys)[axis].clone();
        let few = k.as_const().filter(|k| *k <= block / FEW);
        let push = |s: &mut Self, keys: Value, sorted: i64, part: i64, keep: i64| {
            s.b.push(Op::Sort { axis, sorted, part, keep }, &[keys])
        };
        let open = len.as_const().is_none();
        // The numbers of parts must fit 31 bits.
        let few = few.filter(|_| !open || most < 1 << 26);
        if let Some(k) = few {
            let k = k.max(1);
            while most > block {
                let through = if open { THROUGH * block } else { self.share.clamp(block, THROUGH * block) };
                let part = span(through.min(most));
                keys = push(self, keys, 1, part, k)?;
                most = (most as u64).div_ceil(part as u64) as i64 * k;
            }
            let part = span(most);
            keys = push(self, keys, 1, part, k.clamp(1, part))?;
        } else {
            let whole = span(most);
            let mut run = block.min(whole);
            keys = push(self, keys, 1, run, run)?;
            while run < most {
                let by = if open { RUNS_OF_ANY } else { RUNS };
                let part = run.saturating_mul(by).min(whole);
                keys = push(self, keys, run, part, part)?;
                run = part;
            }
        }
        if self.b.shape(keys)[axis] != *k {
            keys = self.b.slice(keys, axis, &Poly::ZERO, 1, k)?;
        }
        let mut f = Body::default();
        let key = f.arg(0);
        let low = f.cast(DType::U32, key);
        f.cast(DType::I32, low);
        self.b.map(f.0, &[keys])
    }

    /// The elements at `positions` along the axis.
    fn at(&mut self, x: Value, positions: Value) -> Built {
        let shape = self.b.shape(positions);
        let here: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
        let axis = |d: usize| match d == self.axis {
            true => GatherAxis::Data { input: 1, at: here.clone() },
            false => GatherAxis::Affine(Poly::var(d)),
        };
        let index = (0..shape.len()).map(axis).collect();
        self.b.push(Op::Gather { shape, index }, &[x, positions])
    }
}

/// The size of a part that holds `n` keys.
fn span(n: i64) -> i64 {
    (n.max(16) as u64).next_power_of_two() as i64
}

#[cfg(test)]
mod tests;
