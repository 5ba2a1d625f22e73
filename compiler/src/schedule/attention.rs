//! How attention is cut up.

mod cost;
mod shapes;

pub use shapes::{Matrices, Stream, Tiles};

use super::{Context, by_time};
use crate::cost::Launch;
use crate::device::DeviceProfile;
use crate::kernel::substitute::substitute;
use crate::kernel::window::Window;
use crate::kernel::{self, Body, ExprId, Family, Kernel};
use crate::schedule::products::problem::{half, neighbours_along};
use wgfc_ir::{Atom, Dim, Poly};

/// The widest values a thread can hold the sums of, in the registers of any GPU.
pub const MAX_WIDTH: i64 = 256;
/// The number of keys for which attention with few queries is optimised where it is known only at run time, and nothing is expected.
pub const OPEN_KEYS: i64 = 2048;
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
}

impl Problem {
    fn of(kernel: &Kernel, k: &kernel::Attention) -> Problem {
        let window = Window::of(kernel, &|_| true);
        let width = |d: &Dim| d.as_const().and_then(|d| u32::try_from(d).ok()).filter(|d| *d > 0);
        Problem { d: width(&k.d), e: width(&k.e).unwrap_or(1), bounded: window.is_bounded() }
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

/// A workgroup for each query, as the device has them.
pub fn decode(device: &DeviceProfile) -> Attention {
    Attention::Decode(workgroup_for_each(device))
}

fn workgroup_for_each(device: &DeviceProfile) -> Decode {
    let threads = device.max_invocations.min(256);
    let subgroup = device.subgroup.filter(|s| threads.is_multiple_of(*s)).unwrap_or(1);
    Decode { threads, subgroup }
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

/// All ways to stream the keys, which so many heads share.
fn streamed(
    kernel: &Kernel,
    k: &kernel::Attention,
    p: &Problem,
    shared: u32,
    device: &DeviceProfile,
) -> Vec<Stream> {
    let (Some(subgroup), Some(d), e) = (device.subgroup, p.d, p.e) else { return vec![] };
    let fits = |run: &u32| {
        let mut body = Body::default();
        [(k.k, 3), (k.v, 4)]
            .into_iter()
            .all(|(root, along)| run_of(kernel, root, along, *run, &mut body).is_some())
    };
    let Some(run) = [16, 8, 4].into_iter().find(fits) else { return vec![] };
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
    out
}

/// Queries of a workgroup and of a subgroup, and keys of a step, on matrix units.
const MATRICES: &[(u32, u32, u32)] =
    &[(64, 16, 64), (64, 32, 64), (64, 16, 32), (64, 32, 32), (128, 16, 32), (32, 16, 64), (32, 16, 32)];
/// Loads that an invocation may have under way for the next step.
const MOST_AHEAD: u32 = 16;

/// All ways to use matrix units.
fn cooperative(kernel: &Kernel, k: &kernel::Attention, p: &Problem, device: &DeviceProfile) -> Vec<Matrices> {
    let (Some(d), e, Some(subgroup)) = (p.d, p.e, device.subgroup) else { return vec![] };
    let eights = [(k.q, 3), (k.k, 3), (k.v, 4)].into_iter().all(|(root, along)| {
        half(&kernel.body, root) && run_of(kernel, root, along, 8, &mut Body::default()).is_some()
    });
    if !device.has_matrix_units() || !eights || i64::from(e.max(d)) > MAX_WIDTH {
        return vec![];
    }
    let mut out = vec![];
    for (queries, sub_queries, keys) in MATRICES {
        for ahead in [true, false] {
            let m = Matrices { queries: *queries, sub_queries: *sub_queries, keys: *keys, ahead, subgroup };
            let fits = m.fits(d, e)
                && m.threads() <= device.max_invocations
                && m.workgroup_bytes(d, e) <= device.max_workgroup_bytes
                && !(ahead && m.loads(d, e) > MOST_AHEAD);
            out.extend(fits.then_some(m));
        }
    }
    out
}

/// All ways that a device can run on an attention kernel, by their estimated times.
pub fn candidates(kernel: &Kernel, k: &kernel::Attention, cx: &Context) -> Vec<Attention> {
    by_time(launches(kernel, k, cx), cx.device)
}

/// All ways that a device can run on an attention kernel, with their counts.
pub(super) fn launches(kernel: &Kernel, k: &kernel::Attention, cx: &Context) -> Vec<(Attention, Launch)> {
    let device = cx.device;
    let p = Problem::of(kernel, k);
    let mut out = vec![];
    let few = k.s.as_const().is_some_and(|s| s <= MOST_QUERIES);
    if few {
        let shared = shared_heads(kernel);
        let all = streamed(kernel, k, &p, shared, device).into_iter();
        out.extend(all.map(|g| (Attention::Streamed(g), cost::streamed(&g, k, &p, shared, cx))));
    }
    if few && takes_decode(&k.d, device) || !k.part_stores.is_empty() {
        let g = workgroup_for_each(device);
        out.push((Attention::Decode(g), cost::decode(&g, k, &p, cx)));
    }
    if k.part_stores.is_empty() {
        let all = cooperative(kernel, k, &p, device).into_iter();
        out.extend(all.map(|g| (Attention::Cooperative(g), cost::matrices(&g, k, &p, cx))));
        let all = p.tiled(device).into_iter();
        out.extend(all.map(|g| (Attention::Tiled(g), cost::tiled(&g, k, &p, cx))));
    }
    out
}

/// Whether a workgroup for each query can be had.
fn takes_decode(d: &Dim, device: &DeviceProfile) -> bool {
    d.as_const().is_some_and(|d| d <= MAX_WIDTH) && device.max_invocations >= 256
}
