//! Joining elementwise kernels of one domain that read the same memory into one dispatch.
//!
//! Neither can depend on the other: what one writes it would have to read itself.

use crate::kernel::{Expr, ExprId, Family, Kernel, Store, TensorId};
use rustc_hash::FxHashMap;
use wgfc_ir::{Atom, Dim, Poly};

/// Joins what binds no more than `max_buffers` storage buffers.
pub fn join(kernels: Vec<Kernel>, max_buffers: usize) -> Vec<Kernel> {
    let mut out: Vec<Kernel> = vec![];
    let mut known: FxHashMap<(Dim, Vec<TensorId>), usize> = FxHashMap::default();
    for k in kernels {
        let Family::Map { elements } = &k.family else {
            out.push(k);
            continue;
        };
        let mut reads = k.reads();
        reads.sort_unstable();
        let writes = k.writes();
        if reads.is_empty() || writes.iter().any(|w| reads.contains(w)) {
            out.push(k);
            continue;
        }
        let key = (elements.clone(), reads);
        match known.get(&key) {
            Some(i) if key.1.len() + out[*i].writes().len() + writes.len() <= max_buffers => {
                absorb(&mut out[*i], &k);
            }
            _ => {
                known.insert(key, out.len());
                out.push(k);
            }
        }
    }
    out
}

/// Adds the stores of `other`, whose domain is the same.
fn absorb(kernel: &mut Kernel, other: &Kernel) {
    let domain = kernel.domain();
    let mut ids: Vec<ExprId> = vec![];
    for (_, e, dtype) in other.body.iter() {
        let e = renamed(e, &ids, &domain);
        ids.push(kernel.body.push(e, dtype));
    }
    for s in &other.stores {
        kernel.stores.push(Store {
            tensor: s.tensor,
            offset: poly(&s.offset, &ids, &domain),
            value: ids[s.value as usize],
            guard: s.guard.map(|g| ids[g as usize]),
        });
    }
    for n in &other.nodes {
        if !kernel.nodes.contains(n) {
            kernel.nodes.push(n.clone());
        }
    }
}

fn poly(p: &Poly, ids: &[ExprId], domain: &[Dim]) -> Poly {
    if p.data().is_empty() {
        return p.clone();
    }
    let rename = |a: &Atom| match a {
        Atom::Data(d) => Some(Poly::atom(Atom::Data(ids[*d as usize]))),
        _ => None,
    };
    p.subst(&rename, domain)
}

/// An expression whose operands `i` are expressions `ids[i]`.
fn renamed(e: &Expr, ids: &[ExprId], domain: &[Dim]) -> Expr {
    let of = |i: &ExprId| ids[*i as usize];
    match e {
        Expr::Const(_) | Expr::Acc(_) => e.clone(),
        Expr::Index(p) => Expr::Index(poly(p, ids, domain)),
        Expr::Load { tensor, offset, guard } => {
            Expr::Load { tensor: *tensor, offset: poly(offset, ids, domain), guard: guard.as_ref().map(of) }
        }
        Expr::Unary(op, a) => Expr::Unary(*op, of(a)),
        Expr::Binary(op, a, b) => Expr::Binary(*op, of(a), of(b)),
        Expr::Select(c, a, b) => Expr::Select(of(c), of(a), of(b)),
        Expr::Cast(t, a) => Expr::Cast(*t, of(a)),
        Expr::Bitcast(t, a) => Expr::Bitcast(*t, of(a)),
    }
}
