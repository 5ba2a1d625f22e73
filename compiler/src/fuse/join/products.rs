//! Products of one operand over one domain become one dispatch, also where the second reads what the first makes at the same point, as
//! a gated activation does.
//!
//! ```text
//! matmul [b, m, n, k]: acc0 = Σ a·w₁; t[p] = silu(acc0)         matmul [b, m, n, k]: acc0 = Σ a·w₂, acc1 = Σ a·w₁;
//! matmul [b, m, n, k]: acc0 = Σ a·w₂; y[p] = acc0 · t[p]    →     y[p] = acc0 · silu(acc1)
//! ```
//!
//! Products whose weights are alike were merged into one with wider weights before; these are lookups, or of different types.

use super::Joiner;
use crate::kernel::{
    Body, Expr, ExprId, Family, Kernel, Matmul, Store, TensorId, TensorKind, renumbered, thin,
};
use rustc_hash::FxHashMap;
use wgfc_ir::{DType, Dim, Poly};

/// The most second operands of a product.
const MOST_OPERANDS: usize = 2;
/// The most products that are tried as partners for one.
const MOST_CANDIDATES: usize = 8;

/// Joins products with few rows.
pub fn join(joiner: &Joiner<'_>, kernels: Vec<Kernel>) -> Vec<Kernel> {
    let (tensors, max_buffers) = (joiner.tensors, joiner.max_buffers);
    let mut order = joiner.order(&kernels);
    let mut readers: FxHashMap<TensorId, usize> = FxHashMap::default();
    for k in &kernels {
        k.reads().into_iter().for_each(|t| *readers.entry(t).or_default() += 1);
    }
    let mut out: Vec<Kernel> = vec![];
    let mut candidates: FxHashMap<Vec<Dim>, Vec<usize>> = FxHashMap::default();
    for (number, k) in kernels.into_iter().enumerate() {
        order.begin(number, out.len());
        let domain = k.domain();
        let alone = !matches!(&k.family, Family::Matmul(m) if thin(&m.batch, &m.m));
        if alone || joiner.is_apart(&k) || !joiner.computed.is_empty() {
            out.push(k);
            continue;
        }
        let reads = k.reads();
        let found = candidates.get(&domain).and_then(|all| {
            all.iter().rev().take(MOST_CANDIDATES).copied().find_map(|i| {
                let (made, makes) = (out[i].writes(), k.writes());
                order.bound_together(number, [&reads, &makes], i, &made).filter(|n| *n <= max_buffers)?;
                let is_first = order.reads_at(i).iter().any(|t| makes.contains(t));
                let (a, b) = if is_first { (&k, &out[i]) } else { (&out[i], &k) };
                let reads = b.reads();
                // Nothing else reads it.
                let inner = |t: TensorId| {
                    matches!(tensors[t].kind, TensorKind::Intermediate)
                        && reads.contains(&t)
                        && readers.get(&t) == Some(&1)
                };
                Some((i, joined(a, b, &inner)?))
            })
        });
        match found {
            Some((i, kernel)) => {
                out[i] = kernel;
                order.put(number, i);
            }
            None => {
                candidates.entry(domain).or_default().push(out.len());
                out.push(k);
            }
        }
    }
    out
}

/// `b` with the products of `a`; `None` if their operands are not the same, or if `b` reads a result of `a` elsewhere than where `a` makes
/// it. Results that `inner` names are not stored.
fn joined(a: &Kernel, b: &Kernel, inner: &dyn Fn(TensorId) -> bool) -> Option<Kernel> {
    let (Family::Matmul(first), Family::Matmul(second)) = (&a.family, &b.family) else { return None };
    let alike = first.rounded == second.rounded && first.sums.len() == second.sums.len();
    let count = first.b.len() + second.b.len();
    if !alike || count > MOST_OPERANDS {
        return None;
    }
    let domain = b.domain();
    // Results of the second kernel come first, then those of the first one, then the sums.
    let number = |own: usize, before: usize, i: u32| match (i as usize).checked_sub(own) {
        None => (before + i as usize) as u32,
        Some(sum) => (count + sum) as u32,
    };
    let mut body = Body::default();
    let mut ids_a: Vec<ExprId> = vec![];
    for (_, e, dtype) in a.body.iter() {
        let of = |i: ExprId| ids_a[i as usize];
        let mut e = e.mapped(of, |p| renumbered(p, of, &domain));
        if let Expr::Acc(i) = &mut e {
            *i = number(first.b.len(), second.b.len(), *i);
        }
        ids_a.push(body.push(e, dtype));
    }
    let of_a = |i: ExprId| ids_a[i as usize];
    let stores_a: Vec<Store> =
        a.stores.iter().map(|s| s.mapped(of_a, |p| renumbered(p, of_a, &domain))).collect();
    let made: FxHashMap<TensorId, Vec<&Store>> = stores_a.iter().fold(FxHashMap::default(), |mut all, s| {
        let entry: &mut Vec<&Store> = all.entry(s.tensor).or_default();
        entry.push(s);
        all
    });
    let mut ids_b: Vec<ExprId> = vec![];
    for (_, e, dtype) in b.body.iter() {
        let of = |i: ExprId| ids_b[i as usize];
        let mut e = e.mapped(of, |p| renumbered(p, of, &domain));
        if let Expr::Acc(i) = &mut e {
            *i = number(second.b.len(), 0, *i);
        }
        if let Expr::Load { tensor, offset, .. } = &e
            && let Some(stores) = made.get(tensor)
        {
            ids_b.push(value_at(stores, offset, &mut body, dtype)?);
            continue;
        }
        ids_b.push(body.push(e, dtype));
    }
    let of_b = |i: ExprId| ids_b[i as usize];
    let same = of_a(first.a) == of_b(second.a)
        && first.sums.iter().zip(&second.sums).all(|(x, y)| of_a(*x) == of_b(*y));
    if !same {
        return None;
    }
    let b_operands: Vec<ExprId> =
        second.b.iter().map(|e| of_b(*e)).chain(first.b.iter().map(|e| of_a(*e))).collect();
    let sums: Vec<ExprId> = second.sums.iter().map(|e| of_b(*e)).collect();
    // The operands of the second product may not be made of results of the first one.
    let operands = [&[of_b(second.a)], &b_operands[..], &sums[..]].concat();
    if body.reachable(&operands).into_iter().any(|e| matches!(body.expr(e), Expr::Acc(_))) {
        return None;
    }
    let family = Family::Matmul(Matmul { a: of_b(second.a), b: b_operands, sums, ..second.clone() });
    let mut stores: Vec<Store> = stores_a.into_iter().filter(|s| !inner(s.tensor)).collect();
    stores.extend(b.stores.iter().map(|s| s.mapped(of_b, |p| renumbered(p, of_b, &domain))));
    let mut nodes = a.nodes.clone();
    nodes.extend(b.nodes.iter().filter(|n| !a.nodes.contains(n)).cloned());
    Some(Kernel { family, body, stores, nodes })
}

/// The value that one of the stores writes at `offset`, as a load of type `dtype` gives it.
fn value_at(stores: &[&Store], offset: &Poly, body: &mut Body, dtype: DType) -> Option<ExprId> {
    let [store] = stores else { return None };
    let there = store.offset == *offset && store.guard.is_none() && store.combine.is_none();
    let narrowed = body.dtype(store.value) != dtype;
    there.then(|| if narrowed { body.push(Expr::Cast(dtype, store.value), dtype) } else { store.value })
}
