//! Sums whose conditions become those of what they add.

use super::guards::{both, conjuncts, is_fixed};
use super::tensor;
use crate::interpret::levels;
use crate::{Expr, For, Kernel, Space, Stmt, Store, TensorId, Write};
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::{Atom, BinaryOp, Poly, ReduceOp, Scalar};

/// An access of the register.
struct Access<'k> {
    at: &'k [Poly],
    /// The conditions under which it happens.
    conditions: Vec<&'k Expr>,
    /// The store, if it is one.
    store: Option<&'k Store>,
}

/// Moves the conditions of sums into register `name` to what they add:
///
/// - A condition under which alone an element is read, and that says nothing but which element it is, is dropped: other elements may have
///   any value. Loads that depend on its variables are guarded by it.
/// - Where another condition is false, all factors of what is added are 0 instead.
pub(super) fn fill(k: &mut Kernel, name: &str) -> Result<(), String> {
    let t = tensor(k, name)?;
    if k.tensors[t].space != Space::Register {
        return Err(format!("`{name}` is no register"));
    }
    let mut all = vec![];
    accesses(&k.body, t, &mut vec![], &mut all);
    let (grid, invocations, _) = levels(k);
    let outer: BTreeSet<usize> = grid.iter().chain(&invocations).map(|l| l.var).collect();
    let places = |a: &Access, c: &Expr| of_element(c, a.at, k.vars.len(), &outer);
    // The conditions, by the element's position, of all that reads it.
    let mut known: Option<Vec<Expr>> = None;
    for a in all.iter().filter(|a| a.store.is_none()) {
        let own: Vec<Expr> = a.conditions.iter().filter_map(|c| places(a, c)).collect();
        known = Some(match known {
            Some(known) => known.into_iter().filter(|c| own.contains(c)).collect(),
            None => own,
        });
    }
    let known = known.unwrap_or_default();
    let unread = |a: &Access, c: &Expr| places(a, c).is_some_and(|c| known.contains(&c));
    let mut sums: Vec<Store> = vec![];
    let mut dropped = false;
    for a in &all {
        let Some(s) = a.store else { continue };
        let own = conjuncts(s.guard.as_ref());
        dropped |= !own.is_empty();
        match s.write {
            Write::Replace if own.iter().all(|c| unread(a, c)) && is_zero(&s.value) => {
                sums.push(Store { guard: None, ..s.clone() });
            }
            Write::Combine(ReduceOp::Sum) => {
                let (of_elements, others): (Vec<&Expr>, Vec<&Expr>) =
                    own.into_iter().partition(|c| unread(a, c));
                let value = added(k, &s.value, &of_elements, &others).ok_or_else(|| {
                    format!("what is added to `{name}` is no product of elements of tensors")
                })?;
                sums.push(Store { guard: None, value, ..s.clone() });
            }
            _ => return Err(format!("`{name}` is no sum that begins with 0")),
        }
    }
    if !dropped {
        return Err(format!("sums into `{name}` have no conditions"));
    }
    let mut sums = sums.into_iter();
    k.body = stored(std::mem::take(&mut k.body), t, &mut sums);
    Ok(())
}

/// The accesses of a register, stores in the order of the text.
fn accesses<'k>(body: &'k [Stmt], t: TensorId, around: &mut Vec<&'k Expr>, out: &mut Vec<Access<'k>>) {
    for s in body {
        let guard = match s {
            Stmt::Store(s) => conjuncts(s.guard.as_ref()),
            _ => vec![],
        };
        let conditions = [around.as_slice(), &guard].concat();
        s.exprs(&mut |e| {
            e.visit(&mut |e| {
                if let Expr::Load { tensor, at, .. } = e
                    && *tensor == t
                {
                    out.push(Access { at, conditions: conditions.clone(), store: None });
                }
            });
        });
        match s {
            Stmt::Store(s) if s.tensor == t => out.push(Access { at: &s.at, conditions, store: Some(s) }),
            Stmt::For(l) => accesses(&l.body, t, around, out),
            Stmt::If { condition, then, otherwise } => {
                let before = around.len();
                around.extend(conjuncts(Some(condition)));
                accesses(then, t, around, out);
                around.truncate(before);
                accesses(otherwise, t, around, out);
            }
            _ => {}
        }
    }
}

/// A condition on the element at a position, as one on variables behind the `vars` that there are; `None` if it depends on anything else
/// but variables of workgroups and invocations.
fn of_element(condition: &Expr, at: &[Poly], vars: usize, outer: &BTreeSet<usize>) -> Option<Expr> {
    let axes: Vec<usize> = at.iter().map(Poly::as_var).collect::<Option<_>>()?;
    let distinct: BTreeSet<usize> = axes.iter().copied().collect();
    if !is_fixed(condition) || distinct.len() != axes.len() {
        return None;
    }
    let axis = |a: &Atom| match a {
        Atom::Var(v) => axes.iter().position(|x| *x == *v as usize).map(|i| Poly::var(vars + i)),
        _ => None,
    };
    let moved = condition.map(&|p| p.subst(&axis, &[]), &|e| e);
    variables(&moved).iter().all(|v| *v >= vars || outer.contains(v)).then_some(moved)
}

/// The variables of the index expressions of an expression.
fn variables(e: &Expr) -> BTreeSet<usize> {
    let mut out = BTreeSet::new();
    e.visit(&mut |e| out.extend(e.indices().iter().flat_map(Poly::vars)));
    out
}

fn is_zero(e: &Expr) -> bool {
    matches!(e, Expr::Const(c) if c.bits == 0)
}

/// A product that may be any where one of the conditions `of_elements` is false, and else is 0 where one of `others` is, without loads
/// that need them. `None` if it has other factors than elements of tensors, where these would matter.
fn added(k: &Kernel, value: &Expr, of_elements: &[&Expr], others: &[&Expr]) -> Option<Expr> {
    if let Expr::Binary(BinaryOp::Mul, a, b) = value {
        let (a, b) = (added(k, a, of_elements, others)?, added(k, b, of_elements, others)?);
        return Some(Expr::binary(BinaryOp::Mul, a, b));
    }
    let depend =
        |vars: BTreeSet<usize>| of_elements.iter().copied().filter(move |c| !variables(c).is_disjoint(&vars));
    match value {
        Expr::Cast(to, a) => added(k, a, of_elements, others).map(|a| Expr::cast(*to, a)),
        Expr::Load { tensor, at, guard } if at.iter().all(|p| p.data().is_empty()) => {
            let vars = at.iter().flat_map(Poly::vars).collect();
            let all = depend(vars).chain(others.iter().copied());
            let Some(condition) = all.fold(None, |all, c| Some(both(all, c.clone()))) else {
                return Some(value.clone());
            };
            let own = both(guard.as_deref().cloned(), condition.clone());
            let load = Expr::Load { tensor: *tensor, at: at.clone(), guard: Some(Arc::new(own)) };
            let zero = Expr::Const(Scalar { dtype: k.tensors[*tensor].dtype, bits: 0 });
            Some(Expr::select(condition, load, zero))
        }
        other => (others.is_empty() && depend(variables(other)).next().is_none()).then(|| other.clone()),
    }
}

/// Statements whose stores to a register are these.
fn stored(body: Vec<Stmt>, t: TensorId, to: &mut dyn Iterator<Item = Store>) -> Vec<Stmt> {
    let mut out = vec![];
    for s in body {
        out.push(match s {
            Stmt::Store(s) if s.tensor == t => Stmt::Store(to.next().unwrap_or(s)),
            Stmt::For(l) => Stmt::For(For { body: stored(l.body, t, to), ..l }),
            Stmt::If { condition, then, otherwise } => {
                let then = stored(then, t, to);
                Stmt::If { condition, then, otherwise: stored(otherwise, t, to) }
            }
            s => s,
        });
    }
    out
}
