//! The declarations of a kernel's tensors in storage.

use super::listing::Item;
use super::words::Search;
use crate::Diagnostic;
use crate::emit::EmitContext;
use crate::emit::wgsl::Module;
use crate::kernel::bindings::{Bindings, Encoding, component, per_word};
use crate::kernel::{Body, Expr, ExprId, Store, TensorId};
use crate::schedule::maps::{declare, read, written};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::program::Access;
use wgfc_ir::{DType, Dim, Poly};
use wgfc_loops::{Space, Tensor};

/// The most elements of 8 bits that one access reads or writes.
const WIDEST: u32 = 16;

/// The bindings of a kernel.
pub(super) struct Declared {
    pub bindings: Bindings,
    /// The loops, by their variables, in which the words of a binding are put together.
    pub words: Vec<(usize, usize)>,
}

impl Declared {
    /// The bindings of the tensors that the roots read and `stores` write, those that are read first: arrays of vectors where all accesses
    /// allow it.
    pub fn new(
        items: &[Item],
        body: &Body,
        vars: &[(String, Dim)],
        roots: &[ExprId],
        stores: &[&Store],
        cx: &EmitContext,
    ) -> Result<Declared, Diagnostic> {
        let loads = body.reachable(roots).into_iter().filter_map(|id| match body.expr(id) {
            Expr::Load { tensor, offset, .. } => Some((*tensor, offset)),
            _ => None,
        });
        let loads: Vec<(TensorId, &Poly)> = loads.collect();
        let mut order: Vec<TensorId> = vec![];
        for t in loads.iter().map(|l| l.0).chain(stores.iter().map(|s| s.tensor)) {
            if !order.contains(&t) {
                order.push(t);
            }
        }
        let mut bindings = Bindings::declare(&order, stores, cx.graph, cx.target.f16, &|_, _| false)?;
        let mut words = vec![];
        for i in 0..bindings.list.len() {
            let b = bindings.list[i].clone();
            let mut own = loads.iter().filter(|l| l.0 == b.tensor).map(|l| l.1.clone());
            if b.access == Access::Read {
                // An element at any position is read from its word, but from no wider vector.
                let per = per_word(b.dtype);
                let (known, others): (Vec<Poly>, Vec<Poly>) = own.partition(|o| component(o, per).is_some());
                let most = if others.is_empty() { WIDEST } else { per };
                if let Some(n) = read(b.tensor, &known, most, cx.graph, &bindings) {
                    declare(&mut bindings, cx.graph, b.tensor, n);
                }
                continue;
            }
            if own.next().is_some() {
                continue;
            }
            let groups = groups(items, b.tensor);
            let loops = Search::new(body, vars, &b, cx.graph).map_or(vec![], |s| s.loops(items));
            if loops.is_empty() {
                declare_written(&mut bindings, &groups, b.tensor, 8 * WIDEST / b.dtype.bits() as u32, cx);
                continue;
            }
            bindings.list[i].encoding = Encoding::Packed;
            let whole: Vec<&[Store]> = groups.into_iter().filter(|g| g.len() > 1).collect();
            if whole.is_empty() || declare_written(&mut bindings, &whole, b.tensor, per_word(b.dtype), cx) {
                words.extend(loops.into_iter().map(|var| (var, i)));
            } else {
                bindings.list[i] = b;
            }
        }
        Ok(Declared { bindings, words })
    }
}

/// The stores of neighbours of a tensor.
fn groups(items: &[Item], tensor: TensorId) -> Vec<&[Store]> {
    let mut out: Vec<&[Store]> = vec![];
    items.iter().for_each(|i| {
        i.visit(&mut |i| {
            if let Item::Store(all) = i
                && all.iter().any(|s| s.tensor == tensor)
            {
                out.push(all);
            }
        });
    });
    out
}

/// Declares a tensor that is only written as an array of vectors of at most so many elements, where all stores are of that many neighbours.
/// False where it is not.
fn declare_written(
    bindings: &mut Bindings,
    groups: &[&[Store]],
    tensor: TensorId,
    most: u32,
    cx: &EmitContext,
) -> bool {
    let Some(n) = groups.iter().map(|g| g.len()).min().filter(|n| *n > 1) else { return false };
    let Ok((_, b)) = bindings.find(tensor) else { return false };
    // f16 has vectors of four.
    let most = if b.encoding == Encoding::Half { 4 } else { most };
    for n in (2..=most.min(n as u32)).rev().filter(|n| n.is_power_of_two()) {
        let fits = groups
            .iter()
            .all(|g| g.len().is_multiple_of(n as usize) && written(g, &[], n, cx.graph, bindings).is_some());
        let mut tried = bindings.clone();
        if fits && declare(&mut tried, cx.graph, tensor, n) {
            *bindings = tried;
            return true;
        }
    }
    false
}

/// The elements of the vectors as an array of which a tensor in workgroup memory is declared: all stores are of whole vectors, and at
/// least half of some vector is read together. Single elements may be read too. 1 where it is an array of elements.
pub(super) fn shared_width(
    number: usize,
    tensor: &Tensor,
    items: &[Item],
    m: &Module,
    arrays: &[usize],
) -> u32 {
    let plain = tensor.space == Space::Workgroup && tensor.dtype.bits() <= 32 && tensor.dtype != DType::Bool;
    let Some(len) = tensor.elements().as_const().filter(|_| plain) else { return 1 };
    let (mut stored, mut roots) = (vec![], super::roots(items, true));
    items.iter().for_each(|i| {
        i.visit(&mut |i| {
            if let Item::Write { tensor, at, values } = i
                && *tensor == number
            {
                stored.push((at, values.len()));
            }
        });
    });
    let body = &m.kernel.body;
    roots.extend(stored.iter().flat_map(|s| s.0.data()));
    let roots: Vec<ExprId> = roots.into_iter().collect();
    let mut read: Vec<&Poly> = vec![];
    for id in body.reachable(&roots) {
        if let Expr::Shared { array, at, guard: None } = body.expr(id)
            && arrays.get(*array as usize) == Some(&number)
        {
            read.push(at);
        }
    }
    let fits = |n: &u32| {
        let whole = |(at, count): &(&Poly, usize)| {
            count.is_multiple_of(*n as usize) && component(at, *n).is_some_and(|(_, lane)| lane == 0)
        };
        let mut used: BTreeMap<Poly, BTreeSet<u32>> = BTreeMap::new();
        for (at, lane) in read.iter().filter_map(|at| component(at, *n)) {
            used.entry(at).or_default().insert(lane);
        }
        len % i64::from(*n) == 0
            && stored.iter().all(whole)
            && used.values().any(|lanes| 2 * lanes.len() >= *n as usize)
    };
    [4, 2].into_iter().find(fits).unwrap_or(1)
}
