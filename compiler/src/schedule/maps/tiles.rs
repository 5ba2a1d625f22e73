//! Maps some of whose loads run along another axis than their stores.
//!
//! A workgroup makes a tile of two axes. What runs along the other axis is read along it, put into workgroup memory, and read
//! from there along the stores.

use super::axes::{axes, strides_of};
use super::neighbours::{copied, read, stored, written};
use crate::kernel::bindings::{Bindings, Encoding};
use crate::kernel::dependence::{Dependence, var_bit};
use crate::kernel::substitute::substitute;
use crate::kernel::{Body, Expr, ExprId, Kernel, KernelGraph, Store, TensorId};
use wgfc_ir::program::Access;
use wgfc_ir::{Dim, Poly};

/// A map kernel in tiles.
pub(super) struct Tiles {
    /// Whether all that is staged is read as vectors.
    pub lined: bool,
    /// Bytes of workgroup memory that an element takes.
    pub bytes: u32,
}

/// Loads that go through workgroup memory.
struct Staged {
    /// The loads of neighbours along the other axis.
    loads: Vec<ExprId>,
    /// The uses, of neighbours along the stores.
    uses: Vec<ExprId>,
}

/// A map kernel over its axes.
pub(super) struct Along {
    kernel: Kernel,
    pub(super) axes: Vec<Dim>,
    /// The axis along which results are stored.
    pub(super) along: usize,
    /// Axes along which something else is read, what is read along most first, with the loads.
    pub(super) across: Vec<(usize, Vec<ExprId>)>,
}

impl Along {
    /// The kernel over its axes, where something is read along another one than what is stored.
    pub(super) fn new(from: &Kernel) -> Option<Along> {
        let axes = axes(from);
        if axes.len() < 2 {
            return None;
        }
        let flat: Poly = strides_of(&axes).iter().enumerate().map(|(k, s)| &Poly::var(k) * s).sum();
        let roots = from.roots();
        let mut body = Body::default();
        let vars = [flat];
        let ids = substitute(&from.body, &mut body, &roots, &vars, &axes);
        let stores: Vec<Store> =
            from.stores.iter().map(|s| stored(s, &ids, &vars, &axes)).collect::<Option<_>>()?;
        let kernel = Kernel { family: from.family.clone(), body, stores, nodes: from.nodes.clone() };
        let deps = Dependence::of(&kernel);
        let written = |k: &usize| kernel.stores.iter().filter(|s| deps.is_unit_stride(&s.offset, *k)).count();
        let along = (0..axes.len()).max_by_key(written)?;
        let mut across: Vec<(usize, Vec<ExprId>)> = vec![];
        for id in kernel.body.reachable(&kernel.roots()) {
            let Expr::Load { offset, .. } = kernel.body.expr(id) else { continue };
            if deps.poly(offset) & var_bit(along) == 0 || deps.is_unit_stride(offset, along) {
                continue;
            }
            let unit = (0..axes.len()).rev().find(|k| *k != along && deps.is_unit_stride(offset, *k));
            let Some(k) = unit else { continue };
            match across.iter_mut().find(|a| a.0 == k) {
                Some(a) => a.1.push(id),
                None => across.push((k, vec![id])),
            }
        }
        across.sort_by_key(|(k, loads)| (std::cmp::Reverse(loads.len()), std::cmp::Reverse(*k)));
        Some(Along { kernel, axes, along, across })
    }
}

impl Tiles {
    /// The kernel in tiles of the axis along which it stores and another one, in groups of `width` and `line` neighbours.
    pub(super) fn of(
        from: &Along,
        axis: usize,
        (width, line): (u32, u32),
        graph: &KernelGraph,
        f16: bool,
    ) -> Option<Tiles> {
        let Along { kernel, axes, along, across } = from;
        let (_, loads) = across.iter().find(|a| a.0 == axis)?;
        let by = |n: u32| Poly::from(i64::from(n.max(1)));
        let (wide, high) = (by(width), by(line));
        if !axes[*along].modulo(&wide, &[]).is(0) || !axes[axis].modulo(&high, &[]).is(0) {
            return None;
        }
        let (groups, lines) = (axes.len(), axes.len() + 1);
        let mut domain = axes.clone();
        domain.extend([axes[*along].div(&wide, &[]), axes[axis].div(&high, &[])]);
        let vars = |changed: usize, to: &Poly| {
            (0..axes.len()).map(|k| if k == changed { to.clone() } else { Poly::var(k) }).collect::<Vec<_>>()
        };
        let mut body = Body::default();
        let mut staged: Vec<Staged> = loads.iter().map(|_| Staged { loads: vec![], uses: vec![] }).collect();
        for i in 0..i64::from(line.max(1)) {
            let vars = vars(axis, &(&(&Poly::var(lines) * &high) + i));
            let ids = copied(kernel, &mut body, loads, &vars, &domain, line);
            for (s, id) in staged.iter_mut().zip(loads) {
                s.loads.push(ids.get(*id as usize).copied().flatten()?);
            }
        }
        let roots = kernel.roots();
        let mut copies = vec![];
        for i in 0..i64::from(width.max(1)) {
            let vars = vars(*along, &(&(&Poly::var(groups) * &wide) + i));
            let ids = copied(kernel, &mut body, &roots, &vars, &domain, width);
            for (s, id) in staged.iter_mut().zip(loads) {
                s.uses.push(ids.get(*id as usize).copied().flatten()?);
            }
            copies.push((vars, ids));
        }
        let stores = kernel.stores.iter().flat_map(|s| copies.iter().map(move |(vars, ids)| (s, vars, ids)));
        let stores: Vec<Store> =
            stores.map(|(s, vars, ids)| stored(s, ids, vars, &domain)).collect::<Option<_>>()?;
        let kernel =
            Kernel { family: from.kernel.family.clone(), body, stores, nodes: from.kernel.nodes.clone() };
        let bindings = Bindings::of(&kernel, graph, f16, true).ok()?;
        let reads = kernel.reads();
        let mut vectors = vec![];
        if width > 1 {
            vectors = written(&kernel.stores, &reads, width, graph, &bindings)?;
        } else if bindings.list.iter().any(|b| b.access == Access::ReadWrite && shares_words(b.encoding)) {
            return None;
        }
        // Loads of the staged expressions, and of the others.
        let stages: Vec<ExprId> = staged.iter().flat_map(|s| s.loads.iter().copied()).collect();
        let computed = without(&kernel.body, &kernel.roots(), &staged);
        let read_at = |t: TensorId| {
            let all = kernel.body.reachable(&stages).into_iter().chain(computed.iter().copied());
            let mut offsets: Vec<Poly> = vec![];
            for id in all {
                if let Expr::Load { tensor, offset, .. } = kernel.body.expr(id)
                    && *tensor == t
                    && !offsets.contains(offset)
                {
                    offsets.push(offset.clone());
                }
            }
            offsets
        };
        for t in reads {
            vectors.extend(read(t, &read_at(t), width.max(line), graph, &bindings).map(|n| (t, n)));
        }
        let vector = |id: &ExprId| match kernel.body.expr(*id) {
            Expr::Load { tensor, .. } => vectors.iter().any(|(t, _)| t == tensor),
            _ => false,
        };
        let lined = stages.iter().all(vector);
        let wide = |s: &Staged| s.uses.first().is_some_and(|id| kernel.body.dtype(*id).bits() == 64);
        let bytes = staged.iter().map(|s| if wide(s) { 8 } else { 4 }).sum();
        Some(Tiles { lined, bytes })
    }
}

/// Whether elements are written to words that they share.
fn shares_words(e: Encoding) -> bool {
    matches!(e, Encoding::Packed | Encoding::Atomic)
}

/// All that the roots need, in order, but what is only needed for what is staged.
fn without(body: &Body, roots: &[ExprId], staged: &[Staged]) -> Vec<ExprId> {
    let mut seen = vec![false; body.len()];
    let mut stack = roots.to_vec();
    while let Some(id) = stack.pop() {
        if staged.iter().any(|s| s.uses.contains(&id)) || std::mem::replace(&mut seen[id as usize], true) {
            continue;
        }
        stack.extend(body.operands(id));
    }
    (0..body.len() as ExprId).filter(|i| seen[*i as usize]).collect()
}
