//! Copies of inputs, which cannot be reordered themselves, for products that would read them one element at a time.

use super::axes::Axes;
use super::search::{Known, LEAST_GAIN, Search, gathering};
use super::{Fitted, behind};
use crate::cost::Expected;
use crate::device::DeviceProfile;
use crate::kernel::{
    Body, Expr, Family, Kernel, KernelGraph, KernelTensor, Map, Store, TensorId, TensorKind,
};
use crate::schedule::Context;
use wgfc_ir::Poly;

/// An input, and the products that read it one element at a time.
pub(super) type Read = (TensorId, Vec<usize>);

/// The inputs whose copies in another order save more time than they take.
pub(super) fn worth_copying(
    graph: &KernelGraph,
    device: &DeviceProfile,
    expect: &Expected,
    fitted: Fitted<'_>,
    known: &mut Known,
) -> Vec<Read> {
    let mut reads: Vec<Read> = vec![];
    let gathering = if graph.repeats.is_empty() { gathering(graph) } else { vec![] };
    for i in gathering {
        for t in graph.kernels[i].reads() {
            let shape = &graph.tensors[t].ty.shape;
            let axes = Axes::of(shape).filter(|a| !a.candidates().is_empty());
            if !matches!(graph.tensors[t].kind, TensorKind::Input(_)) || axes.is_none() {
                continue;
            }
            match reads.iter_mut().find(|r| r.0 == t) {
                Some((_, kernels)) => kernels.push(i),
                None => reads.push((t, vec![i])),
            }
        }
    }
    // A copy takes a dispatch.
    let dispatch = device.speeds.dispatch() / device.speeds.cycle();
    reads.retain(|(t, kernels)| {
        let alone = KernelGraph {
            kernels: kernels.iter().map(|k| graph.kernels[*k].clone()).collect(),
            ..KernelGraph { kernels: vec![], ..graph.clone() }
        };
        let own = |i: usize, k| fitted(kernels[i], k);
        let usual = Search::new(Context { graph: &alone, device, expect }, &own, known).usual();
        if dispatch >= usual * (1.0 - LEAST_GAIN) {
            return false;
        }
        let with = with_copies(&alone, &[(*t, (0..kernels.len()).collect())]);
        let mut total = |graph: &KernelGraph, copies: usize| {
            let own = behind(copies, own);
            let mut search = Search::new(Context { graph, device, expect }, &own, known);
            let orders = search.choose();
            (search.total(&orders), orders.last().is_some_and(Option::is_some))
        };
        let (usual, _) = total(&alone, 0);
        let (copied, moved) = total(&with, 1);
        let copied = copied + dispatch;
        tracing::debug!(usual, copied, moved, "copy of an input in another order");
        moved && copied < usual * (1.0 - LEAST_GAIN)
    });
    reads
}

/// The graph with copies of inputs, which the given kernels read instead. The copies have new tensors, and their kernels come before all
/// others.
pub(super) fn with_copies(graph: &KernelGraph, inputs: &[Read]) -> KernelGraph {
    let mut new = graph.clone();
    let mut copies = vec![];
    for (t, readers) in inputs {
        let own = new.tensors.len();
        let ty = graph.tensors[*t].ty.clone();
        let mut body = Body::default();
        let value = body.push(Expr::Load { tensor: *t, offset: Poly::var(0), guard: None }, ty.dtype);
        let store = Store { tensor: own, offset: Poly::var(0), value, guard: None, combine: None };
        let family = Family::Map(Map { elements: ty.numel() });
        let nodes = readers.first().map(|k| graph.kernels[*k].nodes.clone()).unwrap_or_default();
        copies.push(Kernel { family, body, stores: vec![store], nodes });
        new.tensors.push(KernelTensor { ty, kind: TensorKind::Intermediate, name: None });
        for k in readers {
            let moved = |u: TensorId, offset: &Poly| (if u == *t { own } else { u }, offset.clone());
            new.kernels[*k] = new.kernels[*k].moved(&moved);
        }
    }
    copies.append(&mut new.kernels);
    new.kernels = copies;
    new
}
