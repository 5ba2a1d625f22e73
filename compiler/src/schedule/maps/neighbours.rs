//! Maps of several neighbouring elements at a time.
//!
//! Element `%0` becomes `width · %0 + i`: each store is then `width` neighbours, and what they read and write in a row is
//! vectors.

use super::axes::{grouped, strides_of};
use crate::kernel::bindings::{Binding, Bindings, Encoding, component, neighbours, per_word};
use crate::kernel::length::{self, MOST_INSTRUCTIONS};
use crate::kernel::substitute::{moved, substitute};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, KernelGraph, Map, Store, TensorId};
use wgfc_ir::program::Access;
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar};

/// Bytes that one access reads or writes at most.
const WIDEST: u32 = 16;
/// Expressions of an invocation, over all its elements, beyond which text and registers are scarce.
pub(super) const MOST_EXPRESSIONS: usize = 512;

/// A map kernel in groups of neighbours that are stored as vectors.
pub(super) struct Neighbours {
    /// Whether something is read along the neighbours one element at a time.
    pub scattered: bool,
}

impl Neighbours {
    /// The kernel in groups of `width`, where every store is whole vectors then.
    pub fn new(from: &Kernel, width: u32, graph: &KernelGraph, f16: bool) -> Option<Neighbours> {
        let Family::Map(Map { elements }) = &from.family else { return None };
        let by = Poly::from(i64::from(width));
        let roots = from.roots();
        if width < 2 || !elements.modulo(&by, &[]).is(0) || is_long(from, width) {
            return None;
        }
        let groups = elements.div(&by, &[]);
        let axes = grouped(from, &by)?;
        let last = axes.len().checked_sub(1)?;
        // Over the axes, where quotients and remainders of neighbours are told to be equal, then over the group.
        let strides = strides_of(&axes);
        let mut along = axes.clone();
        along[last] = axes[last].div(&by, &[]);
        let outer: Poly = (0..last).map(|k| &Poly::var(k) * &strides[k]).sum();
        let mut body = Body::default();
        let mut copies = vec![];
        for i in 0..i64::from(width) {
            let at = &(&outer + &(&Poly::var(last) * &by)) + i;
            let ids = copied(from, &mut body, &roots, std::slice::from_ref(&at), &along, width);
            copies.push(([at], ids));
        }
        let flat = |k: usize| {
            let v = Poly::var(0).div(&strides[k].div(&by, &[]), std::slice::from_ref(&groups));
            if k == 0 { v } else { v.modulo(&axes[k], std::slice::from_ref(&groups)) }
        };
        let mut vars: Vec<Poly> = (0..last).map(flat).collect();
        vars.push(if last == 0 {
            Poly::var(0)
        } else {
            Poly::var(0).modulo(&along[last], std::slice::from_ref(&groups))
        });

        let stores = from.stores.iter().flat_map(|s| copies.iter().map(move |(at, ids)| (s, at, ids)));
        let stores: Vec<Store> =
            stores.map(|(s, at, ids)| stored(s, ids, at, &along)).collect::<Option<_>>()?;
        let over = Kernel { family: from.family.clone(), body, stores, nodes: from.nodes.clone() };
        let kernel = flattened(&over, &vars, groups)?;
        let bindings = Bindings::of(from, graph, f16, true).ok()?;
        let reads = kernel.reads();
        let mut vectors = written(&kernel.stores, &reads, width, graph, &bindings)?;
        for t in reads {
            vectors.extend(read(t, &loads(&kernel, t), width, graph, &bindings).map(|n| (t, n)));
        }
        let scattered = scattered(&kernel, from, &vectors, width);
        Some(Neighbours { scattered })
    }
}

/// Whether the expressions of `width` elements are too many to be written out, or take too many instructions: an element that is long
/// computes for so long that nothing is gained by wider accesses.
pub fn is_long(kernel: &Kernel, width: u32) -> bool {
    let (roots, width) = (kernel.roots(), width as usize);
    kernel.body.reachable(&roots).len() * width > MOST_EXPRESSIONS
        || length::of(&kernel.body, &roots).saturating_mul(width) > MOST_INSTRUCTIONS
}

/// Declares a tensor as vectors of `n` elements. False where that is not possible.
pub fn declare(bindings: &mut Bindings, graph: &KernelGraph, tensor: TensorId, n: u32) -> bool {
    let pairs = bindings.find(tensor).is_ok_and(|(_, b)| b.dtype.bits() == 64);
    if pairs {
        n == 2 && bindings.declare_pairs(graph, tensor)
    } else {
        bindings.declare_vectors(graph, tensor, n)
    }
}

/// A store over what its expressions have become.
pub(super) fn stored(s: &Store, ids: &[Option<ExprId>], vars: &[Poly], domain: &[Dim]) -> Option<Store> {
    let of = |id: ExprId| ids.get(id as usize).copied().flatten();
    let guard = match s.guard {
        Some(g) => Some(of(g)?),
        None => None,
    };
    let offset = moved(&s.offset, ids, vars, domain);
    Some(Store { offset, value: of(s.value)?, guard, ..s.clone() })
}

/// The kernel with variable `%i` replaced by `vars[i]`, over `groups`.
fn flattened(from: &Kernel, vars: &[Poly], groups: Dim) -> Option<Kernel> {
    let domain = [groups.clone()];
    let mut body = Body::default();
    let ids = substitute(&from.body, &mut body, &from.roots(), vars, &domain);
    let stores = from.stores.iter().map(|s| stored(s, &ids, vars, &domain)).collect::<Option<_>>()?;
    Some(Kernel { family: Family::Map(Map { elements: groups }), body, stores, nodes: from.nodes.clone() })
}

/// [`substitute`] where comparisons that hold for all of `width` neighbours or for none of them become equal.
pub(super) fn copied(
    from: &Kernel,
    to: &mut Body,
    roots: &[ExprId],
    vars: &[Poly],
    domain: &[Dim],
    width: u32,
) -> Vec<Option<ExprId>> {
    let mut ids = vec![None; from.body.len()];
    for id in from.body.reachable(roots) {
        let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
        let mut new = from.body.expr(id).mapped(of, |p| moved(p, &ids, vars, domain));
        new = match new {
            Expr::Binary(op @ (BinaryOp::Lt | BinaryOp::Ge), a, b) => {
                let (a, b) = aligned(to, a, b, width);
                Expr::Binary(op, a, b)
            }
            Expr::Binary(op @ (BinaryOp::Gt | BinaryOp::Le), a, b) => {
                let (b, a) = aligned(to, b, a, width);
                Expr::Binary(op, a, b)
            }
            new => new,
        };
        ids[id as usize] = Some(to.push(new, from.body.dtype(id)));
    }
    ids
}

/// The operands of `a < b` or `a >= b` without what makes no difference: of `4·x + 3 < 4·y` they are `4·x` and `4·y`.
fn aligned(to: &mut Body, a: ExprId, b: ExprId, width: u32) -> (ExprId, ExprId) {
    let index = |e: ExprId| match to.expr(e) {
        Expr::Index(p) => Some(p.clone()),
        Expr::Const(Scalar { dtype: DType::I32, bits }) => Some(Poly::from(i64::from(*bits as u32 as i32))),
        _ => None,
    };
    let (Some(x), Some(y)) = (index(a), index(b)) else { return (a, b) };
    let rest = match component(&(&x - &y), width) {
        Some((_, rest)) if rest > 0 => Poly::from(i64::from(rest)),
        _ => return (a, b),
    };
    if x.as_const().is_none() {
        (to.push(Expr::Index(&x - &rest), DType::I32), b)
    } else {
        (a, to.push(Expr::Index(&y + &rest), DType::I32))
    }
}

/// The stores that write vectors, in groups of `width` stores of neighbours. `None` where some are no vectors.
pub fn written(
    stores: &[Store],
    reads: &[TensorId],
    width: u32,
    graph: &KernelGraph,
    bindings: &Bindings,
) -> Option<Vec<(TensorId, u32)>> {
    let mut out: Vec<(TensorId, u32)> = vec![];
    for s in stores.chunks(width as usize) {
        let (_, b) = bindings.find(s.first()?.tensor).ok()?;
        // f16 has vectors of four.
        let most = if b.encoding == Encoding::Half { 4 } else { 8 * WIDEST / b.dtype.bits() as u32 };
        let n = width.min(most);
        // Vectors of some types are only read or only written.
        if matches!(b.encoding, Encoding::Half | Encoding::Pair) && reads.contains(&b.tensor) {
            return None;
        }
        let whole = |v: &[Store]| {
            let alike = |e: &Store| e.guard == v[0].guard && e.combine.is_none();
            v.iter().all(alike) && neighbours(v.iter().map(|e| &e.offset))
        };
        if !s.chunks(n as usize).all(whole) || !declare(&mut bindings.clone(), graph, b.tensor, n) {
            return None;
        }
        if !out.contains(&(b.tensor, n)) {
            out.push((b.tensor, n));
        }
    }
    Some(out)
}

/// The elements of the vectors as which a tensor can be read at all of these offsets, where at least half of some vector
/// of at most `width` is read.
pub fn read(
    tensor: TensorId,
    offsets: &[Poly],
    width: u32,
    graph: &KernelGraph,
    bindings: &Bindings,
) -> Option<u32> {
    let (_, b) = bindings.find(tensor).ok()?;
    if b.access != Access::Read {
        return None;
    }
    let most = width.min(8 * WIDEST / b.dtype.bits() as u32);
    let least = per_word(b.dtype).max(2);
    let fits = |n: &u32| {
        let mut used: Vec<(Poly, u32)> = vec![];
        for o in offsets {
            let Some((at, _)) = component(o, *n) else { return false };
            match used.iter_mut().find(|u| u.0 == at) {
                Some(u) => u.1 += 1,
                None => used.push((at, 1)),
            }
        }
        used.iter().any(|u| 2 * u.1 >= *n) && declare(&mut bindings.clone(), graph, tensor, *n)
    };
    let sizes = (0..5).map(|i| most >> i).filter(|n| *n >= least && n.is_power_of_two());
    sizes.into_iter().find(fits)
}

/// The distinct offsets at which a kernel reads a tensor.
fn loads(kernel: &Kernel, tensor: TensorId) -> Vec<Poly> {
    let body = &kernel.body;
    let mut out = vec![];
    for id in body.reachable(&kernel.roots()) {
        if let Expr::Load { tensor: t, offset, .. } = body.expr(id)
            && *t == tensor
            && !out.contains(offset)
        {
            out.push(offset.clone());
        }
    }
    out
}

/// Whether something is read in a row, but not as vectors: neighbouring invocations would read with gaps.
fn scattered(kernel: &Kernel, from: &Kernel, vectors: &[(TensorId, u32)], width: u32) -> bool {
    let single = |t: &TensorId| !vectors.iter().any(|(v, _)| v == t);
    from.reads().into_iter().filter(single).any(|t| {
        let offsets = loads(kernel, t);
        let next = |o: &&Poly| offsets.contains(&(*o + &Poly::ONE));
        offsets.len() >= width as usize && offsets.iter().filter(next).count() * 2 >= offsets.len()
    })
}

/// The widths that a kernel may have, the preferred first: accesses of 16 bytes to the widest of what is read or written
/// once an element.
pub(super) fn widths(kernel: &Kernel, graph: &KernelGraph, bindings: &Bindings) -> Vec<u32> {
    let Family::Map(Map { elements }) = &kernel.family else { return vec![] };
    let each = |b: &&Binding| graph.tensors.get(b.tensor).is_some_and(|t| t.ty.numel() == *elements);
    let written = |b: &&Binding| b.access == Access::ReadWrite;
    let least = bindings.list.iter().filter(written).map(|b| per_word(b.dtype)).max().unwrap_or(1);
    let widest = bindings.list.iter().filter(|b| written(b) || each(b)).map(|b| b.dtype.bits() as u32).max();
    // f16 is written four at a time: two such stores a group leave gaps between neighbouring invocations.
    let halves = bindings.list.iter().any(|b| written(&b) && b.encoding == Encoding::Half);
    let first = (8 * WIDEST / widest.unwrap_or(32).max(8)).max(least).max(2).min(if halves { 4 } else { 32 });
    let mut out = vec![first];
    out.extend([2, 4, 8, 16].into_iter().filter(|w| *w != first && *w >= least && *w <= 2 * first));
    out
}
