//! How elements are shared out.
//!
//! Where elements are many, an invocation makes neighbours that are read and written as vectors, or several
//! elements or groups of neighbours, a workgroup's width apart, whose loads are under way together. What is read along another
//! axis than it is stored along goes through workgroup memory in tiles ([`Tiled`]).

mod axes;
mod neighbours;
mod steps;
mod tiles;

pub use axes::grouped;
pub use neighbours::{declare, is_long, read, written};

use super::Context;
use super::nested::Nest;
use crate::Diagnostic;
use crate::cost::Launch;
use crate::kernel::bindings::{Binding, Bindings, Encoding, per_word};
use crate::kernel::length::{self, MOST_INSTRUCTIONS};
use crate::kernel::{Expr, Family, Kernel};
use crate::nest::structural;
use neighbours::{MOST_EXPRESSIONS, Neighbours};
use std::collections::BTreeSet;
use tiles::{Along, Tiles};
use wgfc_ir::program::Access;
use wgfc_loops::MOST_POINTS;

/// How a map kernel is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Map {
    /// Elements in the order in which they are numbered.
    Flat(Flat),
    /// Tiles of two axes.
    Tiled(Tiled),
}

/// Elements in the order in which they are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flat {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Neighbouring elements of a group: of a vector, or where results are packed, of a word.
    pub elements: u32,
    /// Groups of an invocation, a workgroup's width apart.
    pub unroll: u32,
}

/// Tiles of two axes, in workgroup memory where they are read along one and stored along the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiled {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// The axis along which a tile is read, of those that the kernel's index expressions tell apart, the outermost 0.
    pub axis: u32,
    /// Elements of a tile along that axis.
    pub rows: u32,
    /// Elements of a tile along the axis of the stores.
    pub cols: u32,
    /// Neighbouring elements that an invocation stores at once.
    pub elements: u32,
    /// Neighbouring elements that it reads at once along the axis.
    pub lines: u32,
    /// Elements between rows of a tile in workgroup memory.
    pub pitch: u32,
}

/// Groups of an invocation.
const UNROLLS: [u32; 4] = [1, 2, 4, 8];
/// Rows and columns of a tile, the invocations that make it, and how long it takes. Timed on an H100, transposing
/// 8192 x 8192 elements of 32 bits, the best of them at 2.76 TB/s; those of 8 and 16 rows or columns where the axis has no more.
const TILES: [(u32, u32, u32, f64); 9] = [
    (32, 32, 128, 1.0),
    (32, 32, 64, 1.01),
    (32, 32, 256, 1.02),
    (16, 64, 128, 1.05),
    (64, 16, 128, 1.05),
    (8, 64, 128, 1.06),
    (32, 64, 256, 1.08),
    (64, 32, 256, 1.17),
    (64, 64, 256, 1.18),
];
/// Bytes along an axis of a tile below which memory is not read in whole sectors. Of bytes, whole rows of a wider tile meet
/// in the banks of workgroup memory: 32 x 32 take 73 µs of 8192 x 8192, 64 x 64 98.
const SECTORS: u32 = 32;
/// A result axis shorter than this is not worth a tile: what is read across it is in the cache when it is needed again.
const SHORT: i64 = 16;
/// The extent up to which the axis of reads is flat.
const FLAT: i64 = 8;
/// Fewer elements are not worth the text of vectors.
const LITTLE: i64 = 1 << 12;
/// Invocations of a full workgroup.
const FULL: i64 = 256;
/// Fewer elements are not worth a tile.
const FEW: i64 = 1 << 14;
/// Bytes that an invocation has under way at once where there are invocations enough.
const UNDER_WAY: u32 = 16;
/// Loads of an invocation beyond which it takes no further group: enough are under way. A kernel of 44 loads, several of them at
/// positions that others load, gave wrong results on an H100 (driver 580.159), with run-time checks too; one of 22 gave right ones.
const MOST_LOADS: usize = 16;
/// Quotients and remainders by sizes of an invocation beyond which it takes no further group: groups share none of them, so that a
/// further one saves nothing. Kernels of 14 to 22 of them lost stores on an H100 (driver 580.159), by comparisons of positions
/// that were taken for others.
const MOST_DIVISIONS: usize = 8;

/// A map kernel as it is seen by the choice.
struct Problem<'a> {
    kernel: &'a Kernel,
    cx: &'a Context<'a>,
    bindings: Bindings,
    /// Expressions of an element.
    expressions: usize,
    /// Instructions of these.
    instructions: usize,
    /// Loads among them.
    loads: usize,
    /// Quotients and remainders by sizes in their positions and those of stores.
    divisions: usize,
}

impl<'a> Problem<'a> {
    fn new(kernel: &'a Kernel, cx: &'a Context<'a>) -> Result<Problem<'a>, Diagnostic> {
        let bindings = Bindings::of(kernel, cx.graph, cx.device.f16, true)?;
        let reached = kernel.body.reachable(&kernel.roots());
        let loads = reached.iter().filter(|id| matches!(kernel.body.expr(**id), Expr::Load { .. })).count();
        let instructions = length::of(&kernel.body, &kernel.roots());
        let mut divisions = BTreeSet::new();
        let read = reached.iter().filter_map(|id| kernel.body.expr(*id).index());
        read.chain(kernel.stores.iter().map(|s| &s.offset))
            .for_each(|p| p.divisions_by_sizes(&mut divisions));
        let (expressions, divisions) = (reached.len(), divisions.len());
        Ok(Problem { kernel, cx, bindings, expressions, instructions, loads, divisions })
    }

    /// Elements of a word where results are packed, else 1.
    fn least(&self) -> u32 {
        let whole = |b: &&Binding| b.access == Access::ReadWrite && b.encoding == Encoding::Packed;
        self.bindings.list.iter().filter(whole).map(|b| per_word(b.dtype)).max().unwrap_or(1)
    }

    fn fits(&self, elements: u32, unroll: u32) -> bool {
        let times = (elements * unroll) as usize;
        (unroll == 1 || i64::from(elements * unroll) <= MOST_POINTS)
            && self.expressions * times <= MOST_EXPRESSIONS
            && (times == 1 || self.instructions.saturating_mul(times) <= MOST_INSTRUCTIONS)
            && (unroll == 1 || self.loads * unroll as usize <= MOST_LOADS)
            && (unroll == 1 || self.divisions * unroll as usize <= MOST_DIVISIONS)
    }

    /// The groups of so many elements, if there are any.
    fn neighbours(&self, elements: u32) -> Option<Neighbours> {
        Neighbours::new(self.kernel, elements, self.cx.graph, self.cx.device.f16)
    }

    fn widths(&self) -> Vec<u32> {
        neighbours::widths(self.kernel, self.cx.graph, &self.bindings)
    }

    fn elements(&self) -> i64 {
        let Family::Map(map) = &self.kernel.family else { return 0 };
        self.cx.expect.estimate(&map.elements)
    }

    fn most_threads(&self) -> u32 {
        self.cx.device.max_invocations.max(1)
    }

    /// Bytes of the widest element that is stored.
    fn widest(&self) -> u32 {
        let written = self.bindings.list.iter().filter(|b| b.access == Access::ReadWrite);
        (written.map(|b| b.dtype.bits() as u32).max().unwrap_or(32) / 8).max(1)
    }

    /// Bytes of the widest element of what is stored, or is read once an element.
    fn widest_of_each(&self) -> u32 {
        let Family::Map(map) = &self.kernel.family else { return self.widest() };
        let tensor = |b: &Binding| self.cx.graph.tensors.get(b.tensor);
        let each = |b: &&Binding| tensor(b).is_some_and(|t| t.ty.numel() == map.elements);
        let read = self.bindings.list.iter().filter(each).map(|b| b.dtype.bits() as u32 / 8).max();
        self.widest().max(read.unwrap_or(1))
    }

    /// The preferred way.
    fn choose(&self) -> Map {
        let tiled = self.tile().into_iter().find(|t| self.is_nest(t));
        tiled.map_or_else(|| Map::Flat(self.flat()), Map::Tiled)
    }

    /// The preferred way without tiles: accesses of 16 bytes, or as many smaller ones, where there are elements enough to keep
    /// the device busy with a part of its invocations.
    fn flat(&self) -> Flat {
        let speeds = &self.cx.device.speeds;
        let busy = speeds.share_of_resident(1.0);
        let (work, least) = (self.elements(), self.least());
        let small = Flat { threads: self.most_threads().min(64), elements: least, unroll: 1 };
        if work < (busy / 2).max(LITTLE) {
            // A core that runs one invocation after another has less to do with fewer of them, if they fill a workgroup.
            let few =
                |w: &u32| work / i64::from(*w) < FULL || self.neighbours(*w).is_none_or(|n| n.scattered);
            let mut widths = if speeds.overlaps() { vec![] } else { self.widths() };
            widths.retain(|w| !few(w));
            let elements = widths.into_iter().max().unwrap_or(least);
            // Such a core also executes the invocations without an element.
            let half = !speeds.overlaps() && work <= i64::from(small.threads / 2 * elements);
            return Flat {
                elements,
                threads: if half { small.threads.div_ceil(2) } else { small.threads },
                ..small
            };
        }
        let mut widths = self.widths();
        if !speeds.overlaps() {
            // The widest first: an invocation has its index expressions to itself.
            widths.sort_by_key(|w| std::cmp::Reverse(*w));
        }
        let found = widths.into_iter().find_map(|w| {
            let n = self.neighbours(w)?;
            (w == least || !n.scattered).then_some(w)
        });
        let elements = found.unwrap_or(least);
        let groups = work / i64::from(elements);
        let most = (UNDER_WAY / (elements * self.widest_of_each())).clamp(1, 4);
        let fits = |u: &&u32| **u <= most && groups / i64::from(**u) >= busy / 2 && self.fits(elements, **u);
        let rolled = found.is_none() && least > 1;
        let unroll = if rolled { 1 } else { UNROLLS.iter().rev().find(fits).copied().unwrap_or(1) };
        let threads = if groups / i64::from(unroll) >= busy / 4 { 256 } else { 64 };
        Flat { threads: self.most_threads().min(threads), elements, unroll }
    }

    /// Tiles, the preferred first, where there is something to gain.
    fn tile(&self) -> Vec<Tiled> {
        if self.cx.device.speeds.share_of_resident(1.0) < 4096 || self.elements() < FEW {
            return vec![];
        }
        let Some(along) = Along::new(self.kernel) else { return vec![] };
        let extent = |k: usize| self.cx.expect.estimate(&along.axes[k]);
        match along.across.iter().find(|(k, _)| extent(*k) >= FLAT) {
            Some((axis, _)) if extent(along.along) >= SHORT => self.tiles(&along, *axis),
            _ => vec![],
        }
    }

    /// Whether the kernel's loops can be brought into these tiles.
    fn is_nest(&self, tiles: &Tiled) -> bool {
        structural(self.kernel, self.cx.graph).is_ok_and(|k| Nest::new(k).tiled(self.kernel, tiles).is_ok())
    }

    /// All tiles of an axis, the preferred first.
    fn tiles(&self, along: &Along, axis: usize) -> Vec<Tiled> {
        let mut out: Vec<(f64, Tiled)> = vec![];
        let most = self.cx.device.max_workgroup_bytes;
        let extent = |k: usize| self.cx.expect.extent(&along.axes[k]);
        let over = |n: u32, of: f64| f64::from(n) * (of / f64::from(n)).ceil() / of;
        let widest = self.widths().into_iter().next().unwrap_or(4);
        let mut sizes = vec![];
        for elements in [widest, 4, 2, 1] {
            for lines in [elements, 4, 1] {
                if lines <= elements.max(4) && !sizes.contains(&(elements, lines)) {
                    sizes.push((elements, lines));
                }
            }
        }
        // Wider accesses first.
        for (rank, size @ (elements, lines)) in sizes.into_iter().enumerate() {
            if !self.fits(elements.max(lines), 1) {
                continue;
            }
            let Some(t) = Tiles::of(along, axis, size, self.cx.graph, self.cx.device.f16) else { continue };
            if lines > 1 && !t.lined {
                continue;
            }
            for (rows, cols, threads, time) in TILES {
                let s = Tiled { threads, axis: axis as u32, rows, cols, elements, lines, pitch: cols + 1 };
                let bytes = t.bytes * rows * s.pitch;
                let each = (rows * cols).div_ceil(threads) as usize;
                let whole = rows.is_multiple_of(lines) && cols.is_multiple_of(elements);
                if threads > self.most_threads() || bytes > most || !whole {
                    continue;
                }
                let instructions = self.instructions.saturating_mul(each);
                if self.expressions * each > 8 * MOST_EXPRESSIONS
                    || (each > 1 && instructions > MOST_INSTRUCTIONS)
                {
                    continue;
                }
                let waste = over(rows, extent(axis)) * over(cols, extent(along.along));
                let sectors = |n: u32, k: usize| {
                    (f64::from(SECTORS.div_ceil(self.widest())).min(extent(k)) / f64::from(n)).max(1.0)
                };
                let idle = f64::from(threads * elements.max(lines)) / f64::from(rows * cols);
                let time = time * waste * sectors(rows, axis).max(sectors(cols, along.along)) * idle.max(1.0);
                out.push((rank as f64 * 0.05 + time, s));
            }
        }
        out.sort_by(|a, b| a.0.total_cmp(&b.0));
        out.into_iter().map(|(_, s)| s).collect()
    }
}

/// Whether a map kernel is worth tiles.
pub fn goes_in_tiles(kernel: &Kernel, cx: &Context) -> bool {
    Problem::new(kernel, cx).is_ok_and(|p| !p.tile().is_empty())
}

/// The preferred schedule of a map kernel.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn choose(kernel: &Kernel, cx: &Context) -> Result<Map, Diagnostic> {
    Ok(Problem::new(kernel, cx)?.choose())
}

/// The schedules of a map kernel without tiles in workgroups of so many invocations, with their counts.
///
/// # Errors
/// As [`choose`](super::choose).
pub(super) fn launches(
    kernel: &Kernel,
    threads: u32,
    cx: &Context,
) -> Result<Vec<(Flat, Launch)>, Diagnostic> {
    let p = Problem::new(kernel, cx)?;
    let (least, all) = (p.least(), p.elements() as f64);
    let mut widths: Vec<u32> = p.widths().into_iter().filter(|w| p.neighbours(*w).is_some()).collect();
    if !widths.contains(&least) {
        widths.push(least);
    }
    let bytes = f64::from(p.widest_of_each());
    Ok(widths
        .into_iter()
        .map(|elements| {
            let width = f64::from(elements);
            let each = f64::from(threads) * width;
            // Neighbours are loaded together.
            let loads = (p.loads as f64 + 1.0) * f64::from(threads);
            let launch = Launch {
                workgroups: (all / each).ceil().max(1.0),
                threads: f64::from(threads),
                operations: p.instructions as f64 * each,
                loads,
                cached: p.loads as f64 * bytes * each,
                fetched: p.loads as f64 * bytes * each,
                stored: bytes * each,
                steps: 1.0,
                ..Launch::default()
            };
            (Flat { threads, elements, unroll: 1 }, launch)
        })
        .collect())
}

/// All schedules of a map kernel that a device can run, the preferred one first, then by how little they differ from it.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn candidates(kernel: &Kernel, cx: &Context) -> Result<Vec<Map>, Diagnostic> {
    let p = Problem::new(kernel, cx)?;
    let preferred = p.choose();
    let first = p.flat();
    let (least, most) = (p.least(), p.most_threads());
    let mut widths: Vec<u32> = p.widths().into_iter().filter(|w| p.neighbours(*w).is_some()).collect();
    let whole = widths.contains(&least);
    if !whole {
        widths.push(least);
    }
    let mut threads: Vec<u32> = [32, 64, 128, 256].into_iter().filter(|t| *t <= most).collect();
    if threads.is_empty() || most < 64 {
        threads.push(most);
        threads.dedup();
    }
    let mut out = vec![first];
    for elements in widths {
        for unroll in UNROLLS {
            let rolled = elements == least && least > 1 && !whole;
            if unroll > 1 && (rolled || !p.fits(elements, unroll)) {
                continue;
            }
            let own = threads.iter().map(|threads| Flat { threads: *threads, elements, unroll });
            out.extend(own.filter(|s| *s != first));
        }
    }
    let apart = |a: u32, b: u32| a.max(1).ilog2().abs_diff(b.max(1).ilog2());
    let far = |s: &Flat| {
        apart(s.threads, first.threads) + apart(s.elements, first.elements) + apart(s.unroll, first.unroll)
    };
    out.sort_by_key(far);
    let mut all = vec![preferred];
    all.extend(out.into_iter().map(Map::Flat));
    if let Some(along) = Along::new(kernel) {
        let tiles = along.across.iter().take(2).flat_map(|(axis, _)| p.tiles(&along, *axis));
        all.extend(tiles.filter(|t| p.is_nest(t)).map(Map::Tiled));
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|s| seen.insert(*s));
    Ok(all)
}
