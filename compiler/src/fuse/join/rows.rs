//! Joining small kernels with reductions over rows.
//!
//! A map over the elements of rows that reads a result of each row follows in the kernel that reduces them: it loads no result then, and
//! an element that both read is loaded by the same invocation. Reductions over equally many rows of one length become one kernel.

use super::Order;
use crate::kernel::in_place::conflicts;
use crate::kernel::substitute::{moved, substitute_results};
use crate::kernel::{Expr, ExprId, Family, Kernel, KernelTensor, Map, Row, Store, TensorId, TensorKind};
use rustc_hash::FxHashSet;
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
    let small = |k: &Kernel| {
        let elements = match &k.family {
            Family::Map(Map { elements }) => elements.clone(),
            Family::Row(Row { rows, len, .. }) => rows * len,
            _ => return false,
        };
        elements.as_const().is_some_and(|n| n <= little) && !apart(k)
    };
    let candidates: Vec<usize> = (0..kernels.len()).filter(|i| small(&kernels[*i])).collect();
    let is_row = |k: &Kernel| matches!(k.family, Family::Row(_));
    if !candidates.iter().any(|i| is_row(&kernels[*i])) {
        return kernels;
    }
    let mut order = Order::of(&kernels, tensors, computed, apart);
    (0..kernels.len()).for_each(|i| order.begin(i, i));
    let mut kernels: Vec<Option<Kernel>> = kernels.into_iter().map(Some).collect();
    let fits =
        |k: &Kernel| super::super::count_bindings(k) <= max_buffers && conflicts(k, tensors).is_empty();
    for b in &candidates {
        let Some(map) = kernels[*b].clone().filter(|k| matches!(k.family, Family::Map(_))) else { continue };
        let found = candidates.iter().copied().find_map(|a| {
            let row = kernels[a].as_ref().filter(|k| is_row(k))?;
            let (joined, read) = behind(row, &map)?;
            let others: Vec<TensorId> = map.reads().into_iter().filter(|t| !read.contains(t)).collect();
            (fits(&joined) && !order.may_depend(&others, a)).then_some((a, joined))
        });
        if let Some((a, joined)) = found {
            (kernels[a], kernels[*b]) = (Some(joined), None);
            order.put(*b, a);
        }
    }
    unread(&mut kernels, tensors, kept);
    for (i, b) in candidates.iter().enumerate() {
        let found = candidates[..i].iter().copied().find_map(|a| {
            let joined = beside(kernels[a].as_ref()?, kernels[*b].as_ref()?).filter(&fits)?;
            let (first, second) = (order.reads_at(a), order.reads_at(*b));
            (!order.may_depend(&second, a) && !order.may_depend(&first, *b)).then_some((a, joined))
        });
        if let Some((a, joined)) = found {
            (kernels[a], kernels[*b]) = (Some(joined), None);
            order.put(*b, a);
        }
    }
    kernels.into_iter().flatten().collect()
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
