//! Small kernels of different domains that do not depend on each other become one dispatch: the rows (or elements) of one lie behind those
//! of the other. Each invocation evaluates the expressions of both; what it reads and writes is that of its own row. Elementwise kernels of
//! equally many elements lie side by side instead.
//!
//! ```text
//! row [32, 128]: q's norm      row [40, 128]: %0 < 32: q's norm, of row %0
//! row [8, 128]: k's norm   →                  %0 ≥ 32: k's norm, of row %0 − 32
//! ```

use super::{Joiner, absorb};
use crate::kernel::{
    Body, Expr, ExprId, Family, Kernel, KernelTensor, Map, ReduceKind, Reduction, Row, TensorId, renumbered,
};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, Scalar};

/// The most kernels that are tried as partners for one.
const MOST_CANDIDATES: usize = 8;
/// The most expressions of a joined kernel, as each invocation evaluates all of them.
const MOST_EXPRESSIONS: usize = 128;

/// Joins kernels of at most `little` points.
pub fn stack(joiner: &Joiner<'_>, kernels: Vec<Kernel>, little: i64) -> Vec<Kernel> {
    let (tensors, computed, max_buffers) = (joiner.tensors, joiner.computed, joiner.max_buffers);
    let mut order = joiner.order(&kernels);
    let mut out: Vec<Kernel> = vec![];
    let mut candidates: Vec<usize> = vec![];
    for (number, k) in kernels.into_iter().enumerate() {
        order.begin(number, out.len());
        let (reads, writes) = (sorted(k.reads()), k.writes());
        let symbols = if computed.is_empty() { BTreeSet::new() } else { k.symbols() };
        let fixed = computed.iter().all(|(s, _)| !symbols.contains(s));
        let in_place = writes.iter().any(|w| reads.contains(w));
        if reads.is_empty() || !fixed || joiner.is_apart(&k) || in_place || !is_small(&k, little) {
            out.push(k);
            continue;
        }
        let joined = candidates.iter().rev().take(MOST_CANDIDATES).find_map(|i| {
            let (others, made) = (order.reads_at(*i), out[*i].writes());
            let reads_result = |reads: &[TensorId], of: &[TensorId]| reads.iter().any(|t| of.contains(t));
            if reads_result(&reads, &made) || reads_result(&others, &writes) {
                return None;
            }
            order.bound_together(number, [&reads, &writes], *i, &made).filter(|n| *n <= max_buffers)?;
            Some((*i, stacked(&out[*i], &k, tensors)?))
        });
        match joined {
            Some((i, kernel)) => {
                out[i] = kernel;
                order.put(number, i);
            }
            None => {
                candidates.push(out.len());
                out.push(k);
            }
        }
    }
    out
}

fn sorted(mut tensors: Vec<TensorId>) -> Vec<TensorId> {
    tensors.sort_unstable();
    tensors.dedup();
    tensors
}

/// Whether a kernel has the form that can be joined, and a known number of points that is at most `little`.
fn is_small(k: &Kernel, little: i64) -> bool {
    matches!(k.family, Family::Map(_) | Family::Row(_))
        && k.domain().iter().product::<Dim>().as_const().is_some_and(|n| n <= little)
        && k.body.len() <= MOST_EXPRESSIONS
        && !k.body.iter().any(|(_, e, _)| matches!(e, Expr::Shared { .. }))
        && k.all_stores().all(|s| s.combine.is_none())
}

/// One kernel of two, `b` behind `a`; `None` if their domains do not fit or it would be large.
fn stacked(a: &Kernel, b: &Kernel, tensors: &[KernelTensor]) -> Option<Kernel> {
    if let (Family::Map(m), Family::Map(n)) = (&a.family, &b.family)
        && m == n
    {
        let mut both = a.clone();
        absorb(&mut both, b);
        return (both.body.len() <= MOST_EXPRESSIONS).then_some(both);
    }
    let len = match (&a.family, &b.family) {
        (Family::Map(_), Family::Map(_)) => None,
        (Family::Row(r), Family::Row(s)) => (r.len == s.len).then(|| Some(r.len.clone()))?,
        (Family::Row(r), Family::Map(_)) | (Family::Map(_), Family::Row(r)) => Some(r.len.clone()),
        _ => return None,
    };
    let count = |k: &Kernel| match (&k.family, &len) {
        (Family::Map(m), Some(len)) => {
            let (elements, len) = (m.elements.as_const()?, len.as_const().filter(|n| *n > 0)?);
            (elements % len == 0).then_some(elements / len)
        }
        (Family::Map(m), None) => m.elements.as_const(),
        (Family::Row(r), _) => r.rows.as_const(),
        _ => None,
    };
    let (first, second) = (count(a)?, count(b)?);
    let all = Dim::from(first + second);
    let domain: Vec<Dim> = std::iter::once(all.clone()).chain(len.clone()).collect();
    let mut joined = Joined { body: Body::default(), domain, tensors };
    let behind = &Poly::var(0) - &Poly::constant(first);
    let (below, from) = joined.conditions(first, &behind);
    let parts = [(a, Poly::var(0), below), (b, behind, from)].map(|(kernel, row, own)| {
        let vars = match (&kernel.family, &len) {
            (Family::Map(_), Some(len)) => vec![&(&row * len) + &Poly::var(1)],
            _ => vec![row, Poly::var(1)],
        };
        Part { kernel, vars, own }
    });
    if !parts.iter().all(|p| p.is_plain(&joined.domain)) {
        return None;
    }
    let both = joined.shared_loads(&parts);
    let [first, second] = parts.each_ref().map(|p| joined.add(p, &both));
    let stores = [first.stores, second.stores].concat();
    let family = match len {
        None => Family::Map(Map { elements: all }),
        Some(len) => {
            let mut row_stores = vec![];
            let reductions = [first.family, second.family].map(|f| match f {
                Family::Row(r) => {
                    row_stores.extend(r.row_stores);
                    r.reductions
                }
                _ => vec![],
            });
            let reductions = joined.reductions(reductions, below)?;
            Family::Row(Row { rows: all, len, reductions, row_stores })
        }
    };
    let mut nodes = a.nodes.clone();
    nodes.extend(b.nodes.iter().filter(|n| !a.nodes.contains(n)).cloned());
    (joined.body.len() <= MOST_EXPRESSIONS).then_some(Kernel { family, body: joined.body, stores, nodes })
}

/// A kernel that becomes a part of another one.
struct Part<'k> {
    kernel: &'k Kernel,
    /// Its variables over those of the joined kernel.
    vars: Vec<Poly>,
    /// The condition under which a row is its own.
    own: ExprId,
}

impl Part<'_> {
    fn moved(&self, p: &Poly, of: impl Fn(ExprId) -> ExprId, domain: &[Dim]) -> Poly {
        // Until its variables are replaced it is over the kernel's own domain.
        renumbered(p, of, &self.kernel.domain()).subst_vars(&self.vars, domain)
    }

    /// Whether its positions need no division behind others, so that accesses are as simple as they were, and proven as easily to stay
    /// inside their tensors.
    fn is_plain(&self, domain: &[Dim]) -> bool {
        if self.vars.iter().enumerate().all(|(i, v)| v.as_var() == Some(i)) {
            return true;
        }
        let body = self.kernel.body.iter().filter_map(|(_, e, _)| e.index());
        let plain = |a: &Atom| matches!(a, Atom::Sym(_) | Atom::Var(_) | Atom::Data(_));
        body.chain(self.kernel.all_stores().map(|s| &s.offset))
            .all(|p| self.moved(p, |i| i, domain).terms().iter().all(|(atoms, _)| atoms.iter().all(plain)))
    }
}

/// The kernel that is being made.
struct Joined<'t> {
    body: Body,
    domain: Vec<Dim>,
    tensors: &'t [KernelTensor],
}

impl Joined<'_> {
    /// The conditions of the first rows, and of those from `first` on, which are at `behind`.
    fn conditions(&mut self, first: i64, behind: &Poly) -> (ExprId, ExprId) {
        let mut index = |p: Poly| self.body.push(Expr::Index(p), DType::I32);
        let (row, end, behind) = (index(Poly::var(0)), index(Poly::constant(first)), index(behind.clone()));
        let below = self.body.push(Expr::Binary(BinaryOp::Lt, row, end), DType::Bool);
        let zero = self.body.push(Expr::Const(Scalar::from_i64(DType::I32, 0)), DType::I32);
        (below, self.body.push(Expr::Binary(BinaryOp::Ge, behind, zero), DType::Bool))
    }

    /// The loads that both parts make at one offset, inside of the tensor for all rows: they need no condition.
    fn shared_loads(&self, parts: &[Part<'_>; 2]) -> FxHashSet<(TensorId, Poly)> {
        let [a, b] = parts.each_ref().map(|part| {
            let loads = part.kernel.body.iter().filter_map(|(_, e, _)| match e {
                Expr::Load { tensor, offset, guard: None } if offset.data().is_empty() => {
                    Some((*tensor, part.moved(offset, |i| i, &self.domain)))
                }
                _ => None,
            });
            loads.collect::<FxHashSet<_>>()
        });
        let inside = |(t, p): &(TensorId, Poly)| p.in_range(&self.tensors[*t].ty.numel(), &self.domain);
        a.into_iter().filter(|l| b.contains(l) && inside(l)).collect()
    }

    /// Adds the expressions of a part; returns it over the joined body, with its stores where a row is its own.
    fn add(&mut self, part: &Part<'_>, both: &FxHashSet<(TensorId, Poly)>) -> Kernel {
        let domain = self.domain.clone();
        let mut ids: Vec<ExprId> = vec![];
        for (_, e, dtype) in part.kernel.body.iter() {
            let of = |i: ExprId| ids[i as usize];
            let mut e = e.mapped(of, |p| part.moved(p, of, &domain));
            if let Expr::Load { tensor, offset, guard } = &mut e
                && !(guard.is_none() && both.contains(&(*tensor, offset.clone())))
            {
                *guard = Some(self.and(*guard, part.own));
            }
            ids.push(self.body.push(e, dtype));
        }
        let of = |i: ExprId| ids[i as usize];
        let mut kernel = part.kernel.over(Body::default(), &of, &mut |p| part.moved(p, of, &domain));
        for s in kernel.all_stores_mut() {
            s.guard = Some(self.and(s.guard, part.own));
        }
        kernel
    }

    fn and(&mut self, guard: Option<ExprId>, own: ExprId) -> ExprId {
        match guard {
            Some(g) => self.body.push(Expr::Binary(BinaryOp::And, own, g), DType::Bool),
            None => own,
        }
    }

    /// The reductions of all rows: those of one part if the other has none, else of both, which must be alike.
    fn reductions(&mut self, [a, b]: [Vec<Reduction>; 2], below: ExprId) -> Option<Vec<Reduction>> {
        if a.is_empty() || b.is_empty() {
            return Some([a, b].concat());
        }
        // A maximum over rows of both would hide that a softmax is at most 1.
        let alike = |(x, y): (&Reduction, &Reduction)| {
            x.kind == y.kind && x.dtype == y.dtype && (x.value == y.value || x.kind == ReduceKind::Sum)
        };
        if a.len() != b.len() || !a.iter().zip(&b).all(alike) {
            return None;
        }
        let each = a.into_iter().zip(b).map(|(x, y)| {
            let (value, ty) = (x.value, self.body.dtype(x.value));
            if value == y.value {
                return Some(x);
            }
            let same = self.body.dtype(y.value) == ty;
            let value = same.then(|| self.body.push(Expr::Select(below, value, y.value), ty))?;
            Some(Reduction { value, ..x })
        });
        each.collect()
    }
}
