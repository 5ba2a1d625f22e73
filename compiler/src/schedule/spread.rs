//! Lanes of loops that several workgroups share.
//!
//! Each workgroup of a lane computes some elements of every stage. Elements that only their own workgroup reads stay in
//! its memory; others are handed on: written into words of memory that all of them see, and read by those who wait for
//! them. [`plan`] says who computes what, and what is handed on. A workgroup can only wait for one that runs, which
//! nothing promises: who has waited long enough gives up, and [`expand`] puts the ordinary form of the loop behind it,
//! which does nothing unless somebody did.
//!
//! # How values are handed on
//! A value of 32 bits takes two words, each of which has half of it and the number of the step. WGSL promises of an atomic
//! word that who reads it finds one of the values stored there, whole, and never an older one than before; it promises
//! nothing about the order of two words. So each word says itself whether it is the one waited for. Steps take two
//! places in turns. A workgroup writes a place again two steps later, when it has what all others handed on in the step
//! between, which they did after they had read the place.

use super::loop_forms::{Loop, Spread};
use super::sequences::Sequence;
use super::{Schedule, ScheduledGraph, maps};
use crate::Diagnostic;
use crate::kernel::{
    Body, Expr, ExprId, Family, Kernel, KernelGraph, KernelTensor, Map, Part, ReduceKind, Repeat, Stage,
    StagedLoop, Store, TensorId, TensorKind,
};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, ReduceOp, Reg, Scalar, TensorType};

/// Words before those of the first lane: how many workgroups came to the end, and whether one gave up.
pub const HEADER: i64 = 2;
/// Places of elements that are looked up one by one; beyond them anybody may read them.
const LOOKED_UP: usize = 1 << 18;
/// The number of a step that no loop has.
const NEVER: i64 = 1 << 30;

/// Which workgroup of a lane computes an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Each of them.
    All,
    /// Number `e % stride / width` element `e`.
    Blocks {
        /// Neighbours of one workgroup.
        width: u32,
        /// After so many elements it is the first one's turn again.
        stride: u32,
    },
}

impl Share {
    /// The only workgroup that computes an element.
    pub fn owner(self, element: u32) -> Option<u32> {
        match self {
            Share::All => None,
            Share::Blocks { width, stride } => Some(element % stride / width),
        }
    }

    /// How many of `n` elements a workgroup has at most.
    pub fn most(self, n: u32) -> u32 {
        match self {
            Share::All => n,
            Share::Blocks { width, stride } => n.div_ceil(stride) * width,
        }
    }

    /// `n` neighbours each, if all of them have some.
    fn even(n: u32, groups: u32) -> Option<Share> {
        let width = n.div_ceil(groups);
        ((groups - 1) * width < n).then_some(Share::Blocks { width, stride: n })
    }
}

/// The part of an array that is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Its first word among those of a place.
    pub word: u32,
    /// Elements that are written in each step.
    pub elements: u32,
}

/// How the workgroups of a lane share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The invocations that compute the elements of each stage of a step.
    pub each: Vec<Share>,
    /// The part of each array that is handed on.
    pub handed: Vec<Option<Handed>>,
    /// Words of a place: a step's.
    pub place: u32,
    /// The first word of each carried array among the words left in the end, the invocations that have it, and how many
    /// elements it has.
    pub left: Vec<(u32, Share, u32)>,
    /// Words of a lane: two places, and what is left.
    pub words: u32,
}

/// The elements that a stage reads of an array.
enum Read {
    /// Any element.
    Any,
    /// One element for each of its own.
    Of(Vec<u32>),
}

/// The reads and writes of a loop's stages, whatever the number of workgroups.
struct Uses<'k> {
    k: &'k StagedLoop,
    carried: usize,
    /// The reads of each stage of a step.
    reads: Vec<Vec<(u32, Read)>>,
    /// The stage of a step that writes each array.
    writer: Vec<Option<usize>>,
}

/// How `groups` workgroups share a lane; `None` where they cannot or would have nothing to tell each other.
pub fn plan(kernel: &Kernel, graph: &KernelGraph, groups: u32) -> Option<Plan> {
    uses(kernel, graph)?.plan(groups)
}

/// The plans for several numbers of workgroups.
pub fn plans(kernel: &Kernel, graph: &KernelGraph, groups: &[u32]) -> Vec<(u32, Plan)> {
    let Some(uses) = uses(kernel, graph) else { return vec![] };
    groups.iter().filter_map(|g| Some((*g, uses.plan(*g)?))).collect()
}

/// How a value is kept in a word.
fn fits(dtype: DType) -> bool {
    matches!(dtype.reg(), Reg::F32 | Reg::I32 | Reg::U32 | Reg::Bool)
}

fn uses<'k>(kernel: &'k Kernel, graph: &KernelGraph) -> Option<Uses<'k>> {
    let Family::StagedLoop(k) = &kernel.family else { return None };
    let mut stored = kernel.all_stores().filter(|s| k.meet.as_ref() != Some(*s));
    if !kernel.stores.is_empty() || stored.any(|s| s.combine.is_some()) {
        return None;
    }
    // The ordinary form, which may come behind, reads what there was before.
    let memory = |mut t: TensorId| {
        while let Some(TensorKind::Under(over)) = graph.tensors.get(t).map(|t| &t.kind) {
            t = *over;
        }
        match graph.tensors.get(t).map(|t| &t.kind) {
            Some(TensorKind::State { state, .. }) => (true, *state),
            _ => (false, t),
        }
    };
    let read: Vec<_> = kernel.reads().into_iter().map(memory).collect();
    if k.each.iter().flat_map(|s| &s.stores).any(|s| read.contains(&memory(s.tensor))) {
        return None;
    }
    let carried = k.first.iter().flat_map(|s| &s.writes).map(|w| w.array as usize + 1).max()?;
    let mut writer = vec![None; k.arrays.len()];
    for (i, s) in k.each.iter().enumerate() {
        for w in &s.writes {
            if writer.get_mut(w.array as usize)?.replace(i).is_some() {
                return None;
            }
        }
    }
    let carries = |c: usize| k.first.iter().flat_map(|s| &s.writes).any(|w| w.array as usize == c);
    if !(0..carried).all(carries) || !k.arrays[..carried].iter().all(|a| fits(a.dtype)) {
        return None;
    }
    let reads = k.each.iter().map(|s| reads(&kernel.body, k, s)).collect();
    Some(Uses { k, carried, reads, writer })
}

/// The reads of a stage from arrays.
fn reads(body: &Body, k: &StagedLoop, stage: &Stage) -> Vec<(u32, Read)> {
    let element = k.lanes.len() + 1;
    let mut out: FxHashMap<u32, Vec<&Poly>> = FxHashMap::default();
    let mut any = vec![];
    for e in body.reachable(&stage.roots()) {
        let Expr::Shared { array, at, guard } = body.expr(e) else { continue };
        let simple = guard.is_none() && at.data().is_empty() && at.symbols().is_empty();
        if simple && at.vars().into_iter().eq([element]) {
            out.entry(*array).or_default().push(at);
        } else if !any.contains(array) {
            any.push(*array);
        }
    }
    let mut all: Vec<(u32, Read)> = any.iter().map(|a| (*a, Read::Any)).collect();
    for (array, places) in out.into_iter().filter(|(a, _)| !any.contains(a)) {
        if places.len() * stage.elements as usize > LOOKED_UP {
            all.push((array, Read::Any));
            continue;
        }
        for at in places {
            let value = |e: u32| {
                let of = |a: &Atom| matches!(a, Atom::Var(_)).then_some(i64::from(e));
                at.eval(&of).and_then(|v| u32::try_from(v).ok())
            };
            let found: Option<Vec<u32>> = (0..stage.elements).map(value).collect();
            all.push((array, found.map_or(Read::Any, Read::Of)));
        }
    }
    all.sort_by_key(|r| r.0);
    all
}

impl Uses<'_> {
    fn plan(&self, groups: u32) -> Option<Plan> {
        let k = self.k;
        if groups < 2 {
            return None;
        }
        // Whoever reads an element computes it, if nobody else reads it.
        let mut shares = vec![Share::All; k.each.len()];
        for i in (0..k.each.len()).rev() {
            let later = (i + 1..k.each.len()).flat_map(|j| self.reads[j].iter().map(move |r| (j, r)));
            let mut own = later.filter(|(_, (a, _))| self.writer[*a as usize] == Some(i));
            let wanted = own.find_map(|(j, (_, read))| match (shares[j], read) {
                (Share::Blocks { width, stride }, Read::Of(of)) => fitted(of, width, stride),
                _ => None,
            });
            shares[i] = wanted.or_else(|| Share::even(k.each[i].elements, groups)).unwrap_or(Share::All);
        }
        let mut handed: Vec<Option<Handed>> = vec![None; k.arrays.len()];
        for (j, reads) in self.reads.iter().enumerate() {
            for (array, read) in reads {
                let a = *array as usize;
                let Some(writer) = self.writer[a] else { continue };
                let from = shares[writer];
                let apart = match read {
                    _ if from == Share::All => false,
                    Read::Any => true,
                    Read::Of(of) => (0..)
                        .zip(of)
                        .any(|(e, at)| shares[j].owner(e).is_none_or(|o| from.owner(*at) != Some(o))),
                };
                if apart {
                    handed[a] = Some(Handed { word: 0, elements: k.each[writer].elements });
                }
            }
        }
        let mut place = 0u32;
        for (h, a) in handed.iter_mut().zip(&k.arrays) {
            if let Some(h) = h {
                if !fits(a.dtype) {
                    return None;
                }
                h.word = place;
                place = place.checked_add(h.elements.checked_mul(2)?)?;
            }
        }
        if place == 0 {
            return None;
        }
        let mut words = place.checked_mul(2)?;
        let mut left = vec![];
        for c in 0..self.carried {
            let share = self.writer[c].map_or(Share::All, |w| shares[w]);
            left.push((words, share, k.arrays[c].len));
            words = words.checked_add(k.arrays[c].len)?;
        }
        (words < 1 << 24).then_some(Plan { each: shares, handed, place, left, words })
    }
}

/// The share of each invocation, if element `of[e]` is computed where `e % stride / width` is.
fn fitted(of: &[u32], width: u32, stride: u32) -> Option<Share> {
    (1..=64).find_map(|times| {
        let share = Share::Blocks { width: width.checked_mul(times)?, stride: stride.checked_mul(times)? };
        let same = |(e, at): (u32, &u32)| share.owner(*at) == Some(e % stride / width);
        (0..).zip(of).all(same).then_some(share)
    })
}

/// How many invocations share the terms of an element of a stage, where `lanes` may.
pub fn lanes(stage: &Stage, own: u32, s: &Spread) -> u32 {
    let Some(c) = &stage.combined else { return 1 };
    if matches!(c.reduction.kind, ReduceKind::Arg { .. } | ReduceKind::Last { .. }) {
        return 1;
    }
    (1..=s.lanes).rev().find(|l| c.terms.is_multiple_of(*l) && own * l <= s.threads).unwrap_or(1)
}

/// The kernels of loops that workgroups share: what fills the words in which they meet, the loop, and its ordinary form for
/// when one gave up. All others are as they were.
///
/// # Errors
/// `Internal` where a schedule does not fit its kernel.
pub fn expand(all: &ScheduledGraph) -> Result<Cow<'_, ScheduledGraph>, Diagnostic> {
    let is_spread = |s: &Schedule| matches!(s, Schedule::SpreadLoop(_));
    if !all.schedules.iter().any(is_spread) {
        return Ok(Cow::Borrowed(all));
    }
    let mut graph = KernelGraph { kernels: vec![], repeats: vec![], ..all.graph.clone() };
    let mut schedules = vec![];
    // Where each kernel has gone.
    let mut moved = vec![];
    for (k, s) in all.graph.kernels.iter().zip(&all.schedules) {
        moved.push(graph.kernels.len());
        let Schedule::SpreadLoop(spread) = s else {
            graph.kernels.push(k.clone());
            schedules.push(s.clone());
            continue;
        };
        let [fill, shared, ordinary] = kernels(k, spread, &mut graph)?;
        let threads = spread.threads;
        schedules.push(Schedule::Map(maps::Map::Flat(maps::Flat { threads, elements: 1, unroll: 1 })));
        schedules.push(s.clone());
        schedules.push(Schedule::StagedLoop(Loop { threads }));
        graph.kernels.extend([fill, shared, ordinary]);
    }
    moved.push(graph.kernels.len());
    for r in &all.graph.repeats {
        let kernels = moved[r.kernels.start]..moved[r.kernels.end];
        graph.repeats.push(Repeat { kernels, ..r.clone() });
    }
    let sequences = all.sequences.iter().map(|s| {
        let kernels = moved[s.kernels.start]..moved[s.kernels.end];
        Sequence { kernels, schedules: s.schedules.clone() }
    });
    let sequences = sequences.collect();
    Ok(Cow::Owned(ScheduledGraph { graph, schedules, sequences }))
}

/// The three kernels of a loop.
fn kernels(k: &Kernel, s: &Spread, graph: &mut KernelGraph) -> Result<[Kernel; 3], Diagnostic> {
    let refused = || Diagnostic::internal(format!("workgroups cannot share {} as in `{s:?}`", k.family));
    let plan = plan(k, graph, s.groups).ok_or_else(refused)?;
    let Family::StagedLoop(f) = &k.family else { return Err(refused()) };
    let lanes: Dim = f.lanes.iter().product();
    let words = &(&lanes * i64::from(plan.words)) + &Poly::constant(HEADER);
    let meet = graph.tensors.len();
    let ty = TensorType::new(DType::U32, vec![words.clone()]);
    graph.tensors.push(KernelTensor { ty, kind: TensorKind::Intermediate, name: None });

    let mut body = Body::default();
    let value = body.push(Expr::Const(Scalar { dtype: DType::U32, bits: 0 }), DType::U32);
    let zero = Store { tensor: meet, offset: Poly::var(0), value, guard: None, combine: None };
    let fill = Kernel {
        family: Family::Map(Map { elements: words }),
        body,
        stores: vec![zero],
        nodes: k.nodes.clone(),
    };

    let mut shared = k.clone();
    let own = first_word(f, &plan);
    if let Family::StagedLoop(f) = &mut shared.family {
        let value = shared.body.push(Expr::Const(Scalar { dtype: DType::U32, bits: 0 }), DType::U32);
        let combine = Some(ReduceOp::Max);
        f.meet = Some(Store { tensor: meet, offset: own.clone(), value, guard: None, combine });
        f.last = vec![];
    }

    let mut ordinary = k.clone();
    if let Family::StagedLoop(f) = &mut ordinary.family {
        let b = &mut ordinary.body;
        let ended = b.push(Expr::Load { tensor: meet, offset: Poly::ZERO, guard: None }, DType::U32);
        let ended = b.push(Expr::Cast(DType::I32, ended), DType::I32);
        let all = b.push(Expr::Index(&lanes * i64::from(s.groups)), DType::I32);
        let done = b.push(Expr::Binary(BinaryOp::Eq, ended, all), DType::Bool);
        // A loop that is done begins behind its end, with its final values.
        let constant =
            |b: &mut Body, n: i64| b.push(Expr::Const(Scalar::from_i64(DType::I32, n)), DType::I32);
        let never = constant(b, NEVER);
        let (first, most) = match f.part {
            Some(p) => (p.first, p.most),
            None => (constant(b, 0), (NEVER - 1) as u32),
        };
        let first = b.push(Expr::Select(done, never, first), DType::I32);
        f.part = Some(Part { first, most });
        let element = Poly::var(f.lanes.len() + 1);
        for w in f.first.iter_mut().flat_map(|s| &mut s.writes) {
            let word = i64::from(plan.left[w.array as usize].0);
            let offset = &(&own + &Poly::constant(word)) + &element;
            let left = b.push(Expr::Load { tensor: meet, offset, guard: None }, DType::U32);
            let dtype = f.arrays[w.array as usize].dtype;
            let left = from_word(b, left, dtype);
            w.value = b.push(Expr::Select(done, left, w.value), dtype);
        }
    }
    Ok([fill, shared, ordinary])
}

/// The first word of a lane.
fn first_word(f: &StagedLoop, plan: &Plan) -> Poly {
    let lane = f.lanes.iter().enumerate().fold(Poly::ZERO, |at, (i, d)| &(&at * d) + &Poly::var(i));
    &(&lane * i64::from(plan.words)) + &Poly::constant(HEADER)
}

/// The value in a word.
fn from_word(b: &mut Body, word: ExprId, dtype: DType) -> ExprId {
    let kept = match dtype.reg() {
        Reg::F32 => DType::F32,
        Reg::I32 => DType::I32,
        Reg::Bool => {
            let zero = b.push(Expr::Const(Scalar { dtype: DType::U32, bits: 0 }), DType::U32);
            return b.push(Expr::Binary(BinaryOp::Ne, word, zero), DType::Bool);
        }
        _ => DType::U32,
    };
    let value = if kept == DType::U32 { word } else { b.push(Expr::Bitcast(kept, word), kept) };
    if kept == dtype { value } else { b.push(Expr::Cast(dtype, value), dtype) }
}
