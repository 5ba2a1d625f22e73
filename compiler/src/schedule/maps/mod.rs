//! How elements are shared out.
//!
//! Where elements are many, an invocation makes neighbours that are read and written as vectors ([`Neighbours`]), and several
//! groups of them, a workgroup's width apart, whose loads are under way together.

mod axes;
mod neighbours;

pub use neighbours::Neighbours;

use super::Context;
use crate::Diagnostic;
use crate::kernel::bindings::{Bindings, Encoding, per_word};
use crate::kernel::{Family, Kernel};
use wgfc_ir::program::Access;

/// How a map kernel is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Map {
    /// Every element on its own.
    Flat(Flat),
}

/// Elements as they are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flat {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Neighbouring elements of a group: of a vector, or where results are packed, of a word.
    pub elements: u32,
    /// Groups of an invocation, a workgroup's width apart.
    pub unroll: u32,
}

/// Expressions of an invocation, over all its elements, beyond which text and registers are scarce.
const MOST_EXPRESSIONS: usize = 512;
/// Groups of an invocation.
const UNROLLS: [u32; 4] = [1, 2, 4, 8];

/// A map kernel as it is seen by the choice.
struct Problem<'a> {
    kernel: &'a Kernel,
    cx: &'a Context<'a>,
    bindings: Bindings,
    /// Expressions of an element.
    expressions: usize,
}

impl<'a> Problem<'a> {
    fn new(kernel: &'a Kernel, cx: &'a Context<'a>) -> Result<Problem<'a>, Diagnostic> {
        let bindings = Bindings::of(kernel, cx.graph, cx.device.f16, true)?;
        let expressions = kernel.body.reachable(&kernel.roots()).len();
        Ok(Problem { kernel, cx, bindings, expressions })
    }

    /// Elements of a word where results are packed, else 1.
    fn least(&self) -> u32 {
        let whole =
            |b: &&crate::kernel::bindings::Binding| b.access == Access::ReadWrite && b.encoding == Encoding::Packed;
        self.bindings.list.iter().filter(whole).map(|b| per_word(b.dtype)).max().unwrap_or(1)
    }

    fn fits(&self, elements: u32, unroll: u32) -> bool {
        self.expressions * (elements * unroll) as usize <= MOST_EXPRESSIONS
    }

    /// The groups of so many elements, if there are any.
    fn neighbours(&self, elements: u32) -> Option<Neighbours> {
        let fits = self.fits(elements, 1) || elements == self.least();
        if fits { Neighbours::new(self.kernel, elements, self.cx.graph, self.cx.device.f16) } else { None }
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

    /// The preferred way.
    fn choose(&self) -> Flat {
        let busy = self.cx.device.speeds.share_of_resident(1.0);
        let (work, least) = (self.elements(), self.least());
        let small = Flat { threads: self.most_threads().min(64), elements: least, unroll: 1 };
        if work < busy / 8 {
            return small;
        }
        let found = self.widths().into_iter().find_map(|w| {
            let n = self.neighbours(w)?;
            (w == least || !n.scattered).then_some(w)
        });
        let elements = found.unwrap_or(least);
        let groups = work / i64::from(elements);
        let fits = |u: &&u32| groups / i64::from(**u) >= busy && self.fits(elements, **u);
        let unrolls = if found.is_some() || least == 1 { &UNROLLS[..3] } else { &UNROLLS[..1] };
        let unroll = unrolls.iter().rev().find(fits).copied().unwrap_or(1);
        let threads = if groups / i64::from(unroll) >= busy { 256 } else { 64 };
        Flat { threads: self.most_threads().min(threads), elements, unroll }
    }
}

/// The preferred schedule of a map kernel.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn choose(kernel: &Kernel, cx: &Context) -> Result<Map, Diagnostic> {
    Ok(Map::Flat(Problem::new(kernel, cx)?.choose()))
}

/// All schedules of a map kernel that a device can run, the preferred one first, then by how little they differ from it.
///
/// # Errors
/// As [`choose`](super::choose).
pub fn candidates(kernel: &Kernel, cx: &Context) -> Result<Vec<Map>, Diagnostic> {
    let p = Problem::new(kernel, cx)?;
    let first = p.choose();
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
    Ok(out.into_iter().map(Map::Flat).collect())
}
