//! Joining small kernels with reductions over rows.
//!
//! A map over the elements of rows that reads a result of each row follows in the kernel that reduces them: it loads no result then, and
//! an element that both read is loaded by the same invocation. Reductions over equally many rows of one length become one kernel.

use crate::kernel::in_place::conflicts;
use crate::kernel::substitute::{moved, substitute_results};
use crate::kernel::{Expr, ExprId, Family, Kernel, KernelTensor, Map, Row, Store, TensorId, TensorKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::{Dim, Poly};

/// Joins small kernels as long as the result binds no more than `max_buffers` storage buffers. Small ones have at most `little` elements.
/// Kernels that are `apart` stay alone. Tensors that are `kept` are read elsewhere.
pub fn join(
    kernels: Vec<Kernel>,
    tensors: &[KernelTensor],
    (computed, kept): (&[(Arc<str>, TensorId)], &FxHashSet<TensorId>),
    apart: &dyn Fn(&Kernel) -> bool,
    (max_buffers, little): (usize, i64),
) -> Vec<Kernel> {
    // A kernel that reads the old contents of a state must run before another one that overwrites them.
    let old = |t: &TensorId| matches!(tensors[*t].kind, TensorKind::State { after: false, .. });
    let small = |k: &Kernel| {
        let elements = match &k.family {
            Family::Map(Map { elements }) => elements.clone(),
            Family::Row(Row { rows, len, .. }) => rows * len,
            _ => return false,
        };
        elements.as_const().is_some_and(|n| n <= little) && !apart(k) && !k.reads().iter().any(old)
    };
    let candidates: Vec<usize> = (0..kernels.len()).filter(|i| small(&kernels[*i])).collect();
    let is_row = |k: &Kernel| matches!(k.family, Family::Row(_));
    if !candidates.iter().any(|i| is_row(&kernels[*i])) {
        return kernels;
    }
    let depths = Depths::of(&kernels, tensors, computed);
    let mut kernels: Vec<Option<Kernel>> = kernels.into_iter().map(Some).collect();
    let fits =
        |k: &Kernel| super::super::count_bindings(k) <= max_buffers && conflicts(k, tensors).is_empty();
    for b in &candidates {
        let Some(map) = kernels[*b].clone().filter(|k| matches!(k.family, Family::Map(_))) else { continue };
        let found = candidates.iter().copied().find_map(|a| {
            let row = kernels[a].as_ref().filter(|k| is_row(k))?;
            let (joined, read) = behind(row, &map)?;
            let others = depths.needed(&map, &|t| !read.contains(&t));
            (fits(&joined) && others < depths.kernels[a]).then_some((a, joined))
        });
        if let Some((a, joined)) = found {
            (kernels[a], kernels[*b]) = (Some(joined), None);
        }
    }
    unread(&mut kernels, tensors, kept);
    for (i, b) in candidates.iter().enumerate() {
        let found = candidates[..i].iter().copied().find_map(|a| {
            let same = depths.kernels[a] == depths.kernels[*b] && depths.kernels[a] < usize::MAX;
            let joined = beside(kernels[a].as_ref()?, kernels[*b].as_ref()?).filter(&fits)?;
            same.then_some((a, joined))
        });
        if let Some((a, joined)) = found {
            (kernels[a], kernels[*b]) = (Some(joined), None);
        }
    }
    kernels.into_iter().flatten().collect()
}

/// The depths of kernels: each is deeper than those whose results it reads. A kernel that joins one of less depth, and needs nothing that is
/// as deep, leaves this true.
struct Depths<'a> {
    kernels: Vec<usize>,
    /// Those of the deepest writer of each tensor.
    writers: FxHashMap<TensorId, usize>,
    tensors: &'a [KernelTensor],
    computed: &'a [(Arc<str>, TensorId)],
}

impl<'a> Depths<'a> {
    fn of(
        kernels: &[Kernel],
        tensors: &'a [KernelTensor],
        computed: &'a [(Arc<str>, TensorId)],
    ) -> Depths<'a> {
        let writers = kernels.iter().flat_map(Kernel::writes).map(|t| (t, 1)).collect();
        let mut depths = Depths { kernels: vec![1; kernels.len()], writers, tensors, computed };
        // Kernels are nearly in order.
        for _ in 0..kernels.len() {
            let mut changed = false;
            for (i, k) in kernels.iter().enumerate() {
                let depth = depths.needed(k, &|_| true).saturating_add(1);
                if depth > depths.kernels[i] {
                    depths.kernels[i] = depth;
                    changed = true;
                }
                for t in k.writes() {
                    let of = depths.writers.entry(t).or_default();
                    *of = depth.max(*of);
                }
            }
            if !changed {
                break;
            }
        }
        depths
    }

    /// The depth of the deepest kernel whose results a kernel needs, of tensors that count; 0 if it needs none.
    fn needed(&self, kernel: &Kernel, counts: &dyn Fn(TensorId) -> bool) -> usize {
        let used = if self.computed.is_empty() { BTreeSet::new() } else { kernel.symbols() };
        let symbols = self.computed.iter().filter(|(s, _)| used.contains(s)).map(|(_, t)| *t);
        let depth = |t: TensorId| match self.tensors[t].kind {
            _ if self.writers.contains_key(&t) => self.writers[&t],
            TensorKind::Input(_) | TensorKind::Const(_) | TensorKind::Withheld(_) => 0,
            TensorKind::State { after: false, .. } => 0,
            // Results of a split loop.
            _ => usize::MAX,
        };
        kernel.reads().into_iter().chain(symbols).filter(|t| counts(*t)).map(depth).max().unwrap_or(0)
    }
}

/// A map behind the reduction whose results it reads, as one kernel, and the tensors that it then does not load. The loads of each must be of
/// the row of the element.
fn behind(a: &Kernel, b: &Kernel) -> Option<(Kernel, Vec<TensorId>)> {
    let (Family::Row(row), Family::Map(map)) = (&a.family, &b.family) else { return None };
    let (rows, len) = (row.rows.clone(), row.len.clone());
    let results: Vec<&Store> = row.row_stores.iter().filter(|s| b.reads().contains(&s.tensor)).collect();
    let plain = |s: &&Store| s.guard.is_none() && s.combine.is_none();
    let elsewhere = |s: &&Store| a.stores.iter().any(|own| own.tensor == s.tensor);
    if results.is_empty()
        || !results.iter().all(plain)
        || results.iter().any(elsewhere)
        || &rows * &len != map.elements
    {
        return None;
    }
    let domain: [Dim; 2] = [rows, len];
    let vars = [&(&Poly::var(0) * &domain[1]) + &Poly::var(1)];
    let mut joined = a.clone();
    let mut ids: Vec<Option<ExprId>> = vec![None; b.body.len()];
    for id in b.body.reachable(&b.roots()) {
        let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
        let new = b.body.expr(id).mapped(of, |p| moved(p, &ids, &vars, &domain));
        let result = match &new {
            Expr::Load { tensor, offset, .. } => match results.iter().find(|s| s.tensor == *tensor) {
                Some(s) if s.offset == *offset => Some(s.value),
                Some(_) => return None,
                None => None,
            },
            _ => None,
        };
        ids[id as usize] = Some(result.unwrap_or_else(|| joined.body.push(new, b.body.dtype(id))));
    }
    let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
    for s in &b.stores {
        joined.stores.push(s.mapped(of, |p| moved(p, &ids, &vars, &domain)));
    }
    nodes(&mut joined, b);
    Some((joined, results.iter().map(|s| s.tensor).collect()))
}

/// Two reductions over equally many rows of one length, as one kernel.
fn beside(a: &Kernel, b: &Kernel) -> Option<Kernel> {
    let (Family::Row(first), Family::Row(second)) = (&a.family, &b.family) else { return None };
    if (&first.rows, &first.len) != (&second.rows, &second.len) {
        return None;
    }
    let domain = a.domain();
    let vars: Vec<Poly> = (0..domain.len()).map(Poly::var).collect();
    let behind = first.reductions.len() as u32;
    let mut joined = a.clone();
    let ids = substitute_results(&b.body, &mut joined.body, &b.roots(), &vars, &domain, &|i| i + behind);
    let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
    let other = b.over(joined.body.clone(), &of, &mut |p| moved(p, &ids, &vars, &domain));
    let (Family::Row(own), Family::Row(second)) = (&mut joined.family, other.family) else { return None };
    own.reductions.extend(second.reductions);
    own.row_stores.extend(second.row_stores);
    joined.stores.extend(other.stores);
    nodes(&mut joined, b);
    Some(joined)
}

/// Adds the nodes of a kernel.
fn nodes(to: &mut Kernel, from: &Kernel) {
    for n in &from.nodes {
        if !to.nodes.contains(n) {
            to.nodes.push(n.clone());
        }
    }
}

/// Removes stores of rows' results that nothing reads.
fn unread(kernels: &mut [Option<Kernel>], tensors: &[KernelTensor], kept: &FxHashSet<TensorId>) {
    let mut read: FxHashSet<TensorId> = kernels.iter().flatten().flat_map(Kernel::reads).collect();
    read.extend(kept);
    read.extend(tensors.iter().filter_map(|t| match t.kind {
        TensorKind::Under(over) => Some(over),
        _ => None,
    }));
    for k in kernels.iter_mut().flatten() {
        let stores = k.stores.len();
        let Family::Row(row) = &mut k.family else { continue };
        let needed = |s: &Store| {
            read.contains(&s.tensor) || !matches!(tensors[s.tensor].kind, TensorKind::Intermediate)
        };
        if stores > 0 || row.row_stores.iter().any(&needed) {
            row.row_stores.retain(needed);
        }
    }
}
