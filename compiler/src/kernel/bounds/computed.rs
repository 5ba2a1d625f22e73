//! Sizes that are computed during a run.

use super::range::At;
use super::{Facts, bounds};
use crate::kernel::{Family, Kernel, KernelGraph, Map, Store, TensorId};
use std::sync::Arc;
use wgfc_ir::{DType, Dim, Poly};

/// Whether exactly one kernel computes a symbol, and always writes a value between 0 and the symbol's bound.
pub(super) fn is_kept(graph: &KernelGraph, (symbol, tensor): &(Arc<str>, TensorId)) -> bool {
    let Some(bound) = graph.bounds.get(symbol) else { return false };
    let mut writers = graph.kernels.iter().filter(|k| k.all_stores().any(|s| s.tensor == *tensor));
    let (Some(kernel), None) = (writers.next(), writers.next()) else { return false };
    let all: Vec<&Store> = kernel.all_stores().collect();
    let [store] = all[..] else { return false };
    let one = match &kernel.family {
        Family::Map(Map { elements }) => elements.is(1),
        Family::Row(row) => row.rows.is(1) && row.row_stores.len() == 1,
        _ => false,
    };
    let first = store.offset.is(0) || store.offset.as_var() == Some(0);
    let always = first && store.guard.is_none() && store.combine.is_none();
    if !one || !always || !matches!(kernel.body.dtype(store.value), DType::I32 | DType::I64) {
        return false;
    }
    kernel.places().iter().filter(|p| !p.stores.is_empty()).all(|place| {
        let (low, high) =
            bounds::range(&At { body: &kernel.body, place }, store.value, &bounds::Known::default());
        low.iter().any(|l| l.proves_nonneg(&[])) && high.iter().any(|h| (bound - h).proves_nonneg(&[]))
    })
}

/// A computed symbol that a kernel's sizes depend on.
pub(super) fn symbol(graph: &KernelGraph, kernel: &Kernel) -> Option<Arc<str>> {
    let tensors = kernel.tensors().into_iter().filter_map(|t| graph.tensors.get(t));
    let mut symbols = kernel.symbols();
    symbols.extend(tensors.flat_map(|t| &t.ty.shape).flat_map(Poly::symbols));
    symbols.into_iter().find(|s| graph.bounds.get(s).is_some())
}

/// Why a kernel's sizes are not known well enough, if they depend on a size computed during the run.
///
/// Such a kernel is dispatched for the bound, and also runs if a size is 0: a map then returns before it reads.
pub(super) fn unknown(graph: &KernelGraph, kernel: &Kernel, facts: &Facts) -> Option<String> {
    let tensors = kernel.tensors().into_iter().filter_map(|t| graph.tensors.get(t));
    let mut sizes: Vec<Dim> = tensors.flat_map(|t| t.ty.shape.iter().cloned()).collect();
    let mut symbols = kernel.symbols();
    symbols.extend(sizes.iter().flat_map(Poly::symbols));
    let of_run = |s: &&Arc<str>| graph.bounds.get(s).is_some();
    if let Some(s) = symbols.iter().find(|s| of_run(s) && !facts.computed.contains(*s)) {
        return Some(format!("its sizes depend on `{s}`, which a run computes"));
    }
    let domain = kernel.domain();
    let runs_without = domain.iter().any(|d| graph.bounds.concern(d));
    if runs_without && !matches!(kernel.family, Family::Map(_)) {
        let family = kernel.family.name();
        return Some(format!("an extent of a {family} kernel may be 0, which a run computes"));
    }
    sizes.extend(domain);
    let negative = |d: &&Dim| graph.bounds.concern(d) && !d.proves_nonneg(&[]);
    sizes.iter().find(negative).map(|d| format!("the extent {d}, which a run computes, may be negative"))
}
