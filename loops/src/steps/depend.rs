//! Dependences between the points of a loop.

use super::domain;
use super::guards::conjuncts;
use crate::{Expr, For, Kernel, Kind, Space, Stmt, TensorId, Write, visit};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::{Atom, BinaryOp, Poly};

/// An access to an element.
struct Access<'k> {
    at: &'k [Poly],
    write: Option<Write>,
    /// The conditions under which it happens.
    guards: Vec<&'k Expr>,
}

/// How the points of a loop may be rearranged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Their order: sums and the like may be formed in any.
    Order,
    /// They are executed at the same time, each by an invocation or workgroup with registers of its own.
    Parallel,
    /// Each statement is executed for all points before the next one is.
    Distribute,
}

/// A visitor of accesses: the tensor, the position, the way of writing, and the conditions around.
type Visit<'v, 'k> = &'v mut dyn FnMut(TensorId, &'k [Poly], Option<Write>, &[&'k Expr]);

/// Visits the accesses of statements.
fn each_access<'k>(body: &'k [Stmt], around: &[&'k Expr], f: Visit<'_, 'k>) {
    for s in body {
        let mut own = around.to_vec();
        let reads = |e: &'k Expr, around: &[&'k Expr], f: Visit<'_, 'k>| {
            e.visit(&mut |e| {
                if let Expr::Load { tensor, at, .. } = e {
                    f(*tensor, at, None, around);
                }
            });
        };
        match s {
            Stmt::For(l) => {
                l.condition.iter().for_each(|c| reads(c, around, f));
                each_access(&l.body, around, f);
            }
            Stmt::If { condition, then, otherwise } => {
                reads(condition, around, f);
                own.extend(conjuncts(Some(condition)));
                each_access(then, &own, f);
                each_access(otherwise, around, f);
            }
            Stmt::Let { expr, .. } => reads(expr, around, f),
            Stmt::Store(store) => {
                if let Some(g) = &store.guard {
                    reads(g, around, f);
                    own.extend(conjuncts(Some(g)));
                }
                reads(&store.value, &own, f);
                f(store.tensor, &store.at, Some(store.write), &own);
            }
            Stmt::Barrier { .. } => {}
        }
    }
}

fn accesses(body: &[Stmt]) -> BTreeMap<TensorId, Vec<Access<'_>>> {
    let mut out: BTreeMap<TensorId, Vec<Access>> = BTreeMap::new();
    each_access(body, &[], &mut |tensor, at, write, around| {
        out.entry(tensor).or_default().push(Access { at, write, guards: around.to_vec() });
    });
    out
}

fn count(body: &[Stmt], tensor: TensorId) -> usize {
    let mut n = 0;
    each_access(body, &[], &mut |t, _, _, _| n += usize::from(t == tensor));
    n
}

/// Whether all accesses to a tensor are inside of a loop, and each point stores what it reads before it reads it.
fn is_private(kernel: &Kernel, l: &For, tensor: TensorId) -> bool {
    count(&l.body, tensor) == count(&kernel.body, tensor) && stores_first(kernel, &l.body, tensor)
}

/// Whether statements read of a tensor only what they have stored: the first that accesses it replaces it whole, under no condition that
/// others do not have, or each that accesses it does so by itself.
fn stores_first(kernel: &Kernel, body: &[Stmt], tensor: TensorId) -> bool {
    let all: Vec<&Stmt> = body.iter().filter(|s| count(std::slice::from_ref(*s), tensor) > 0).collect();
    let reads = |e: &Expr| {
        let mut found = false;
        e.visit(&mut |e| found |= matches!(e, Expr::Load { tensor: t, .. } if *t == tensor));
        found
    };
    let alone = |s: &&Stmt| match s {
        Stmt::For(l) => !l.condition.as_ref().is_some_and(reads) && stores_first(kernel, &l.body, tensor),
        Stmt::If { condition, then, otherwise } => {
            !reads(condition) && [then, otherwise].into_iter().all(|b| stores_first(kernel, b, tensor))
        }
        _ => false,
    };
    if all.iter().all(alone) {
        return true;
    }
    let mut guards = vec![];
    if !all.first().is_some_and(|first| replaces_whole(kernel, first, tensor, &mut vec![], &mut guards)) {
        return false;
    }
    let mut covered = true;
    each_access(body, &[], &mut |t, _, _, around| {
        covered &= t != tensor || guards.iter().all(|g| around.contains(g));
    });
    covered
}

/// Whether a statement stores all elements of a tensor: a store for each point of loops over its axes. `guards` get the conditions of
/// the store.
fn replaces_whole<'k>(
    kernel: &Kernel,
    s: &'k Stmt,
    tensor: TensorId,
    around: &mut Vec<(usize, Poly)>,
    guards: &mut Vec<&'k Expr>,
) -> bool {
    match s {
        Stmt::For(l) if l.condition.is_none() && l.body.len() == 1 => {
            around.push((l.var, l.extent.clone()));
            replaces_whole(kernel, &l.body[0], tensor, around, guards)
        }
        Stmt::Store(s) => {
            let mut reads = 0;
            s.value.visit(&mut |e| {
                reads += usize::from(matches!(e, Expr::Load { tensor: t, .. } if *t == tensor))
            });
            guards.extend(conjuncts(s.guard.as_ref()));
            // Conditions are the same for all elements, and wherever they are computed.
            let fixed = guards.iter().all(|g| {
                let mut own = false;
                g.visit(&mut |e| {
                    own |=
                        e.indices().iter().flat_map(Poly::vars).any(|v| around.iter().any(|(a, _)| *a == v));
                });
                super::guards::is_fixed(g) && !own
            });
            let shape = &kernel.tensors[tensor].shape;
            let whole = |(p, d): (&Poly, &Poly)| around.iter().any(|(v, e)| p.as_var() == Some(*v) && e == d);
            s.tensor == tensor
                && reads == 0
                && fixed
                && s.write == Write::Replace
                && s.at.len() == around.len()
                && s.at.iter().zip(shape).all(whole)
        }
        _ => false,
    }
}

/// Whether the points of a loop may be rearranged. Those are compared that differ in the loop's variable, in those of loops inside
/// and in `others`.
///
/// # Errors
/// The tensor through which one point depends on another one.
pub(super) fn may(kernel: &Kernel, l: &For, others: &[usize], change: Change) -> Result<(), String> {
    may_except(kernel, l, others, change, &[]).map(|_| ())
}

/// [`may`] where the points of the loop may combine values in some registers. Gives the registers that are each point's own.
///
/// # Errors
/// As [`may`]; and the register of these that is used otherwise in the loop.
pub(super) fn may_except(
    kernel: &Kernel,
    l: &For,
    others: &[usize],
    change: Change,
    except: &[TensorId],
) -> Result<Vec<TensorId>, String> {
    let mut private = vec![];
    if l.condition.is_some() {
        return Err("the loop ends by a condition".into());
    }
    let mut barrier = false;
    visit(&l.body, &mut |s| barrier |= matches!(s, Stmt::Barrier { .. }));
    if barrier {
        return Err("the loop has a barrier".into());
    }
    let parallel = |var: usize| super::find(&kernel.body, var).is_some_and(|l| l.kind == Kind::Parallel);
    let independent =
        change != Change::Distribute && l.kind == Kind::Parallel && others.iter().all(|v| parallel(*v));
    let extents = domain(kernel);
    let mut inner: BTreeSet<usize> = others.iter().copied().collect();
    visit(&l.body, &mut |s| {
        if let Stmt::For(l) = s {
            inner.insert(l.var);
        }
    });
    for (tensor, all) in accesses(&l.body) {
        let t = &kernel.tensors[tensor];
        if all.iter().all(|a| a.write.is_none()) || independent && matches!(t.space, Space::Storage(_)) {
            continue;
        }
        let combined =
            all.first().and_then(|a| a.write).filter(|w| matches!(w, Write::Combine(_) | Write::Any));
        let alike = combined.is_some() && all.iter().all(|a| a.write == combined);
        let registers = t.space == Space::Register;
        if alike && (change == Change::Order || !registers && change == Change::Parallel) {
            continue;
        }
        if registers && change != Change::Distribute && is_private(kernel, l, tensor) {
            private.push(tensor);
            continue;
        }
        if alike && except.contains(&tensor) {
            continue;
        }
        if registers && change == Change::Parallel {
            return Err(format!(
                "`{}` is handed from one point of the loop to another or to a statement after it",
                t.name
            ));
        }
        let writes = || all.iter().filter(|a| a.write.is_some());
        let parts = Divided::of(l.var, all.iter().flat_map(|a| a.at), &extents);
        let apart = |a: &Access, b: &Access| {
            // Positions along several axes may be parts of one number.
            let offset = |a: &Access| t.offset(a.at).subst(&|_| None, &extents);
            let (p, q) = (offset(a), offset(b));
            let free: BTreeSet<usize> = inner.iter().copied().chain([l.var]).collect();
            let both = a.guards.iter().filter(|g| b.guards.contains(g)).copied();
            let known = bounds(both);
            let one = |p: &Poly, q: &Poly| {
                p == q && tells(p, l.var, &free, &known, &extents) || apart(p, q, l.var, &inner, &extents)
            };
            a.at.iter().zip(b.at).any(|(p, q)| one(p, q))
                || one(&p, &q)
                || a.at == b.at && parts.as_ref().is_some_and(|d| d.are_told(a.at, &free))
        };
        if !writes().all(|w| all.iter().all(|a| apart(w, a))) {
            return Err(format!("points of the loop may access the same elements of `{}`", t.name));
        }
    }
    Ok(private)
}

/// A variable of which positions read the quotient and the remainder by a constant only: two variables.
struct Divided {
    /// The extents of all variables, those of the two last.
    extents: Vec<Poly>,
    var: usize,
    by: Poly,
}

impl Divided {
    fn of<'p>(var: usize, at: impl Iterator<Item = &'p Poly>, extents: &[Poly]) -> Option<Divided> {
        let mut by = None;
        let mut look = |p: &Poly| {
            let atom = |a: &Atom| match a {
                Atom::Div(x, d) | Atom::Mod(x, d) if x.as_var() == Some(var) => Some(d.clone()),
                _ => None,
            };
            by = by.take().or_else(|| p.terms().iter().flat_map(|(m, _)| m).find_map(atom));
        };
        at.for_each(&mut look);
        let by = by.filter(|d| d.as_const().is_some_and(|n| n > 1))?;
        let outer = extents[var].div(&by, &[]);
        (&outer * &by == extents[var]).then(|| Divided {
            extents: [extents, &[outer, by.clone()]].concat(),
            var,
            by,
        })
    }

    /// Whether positions tell both of the two variables.
    fn are_told(&self, at: &[Poly], free: &BTreeSet<usize>) -> bool {
        let n = self.extents.len();
        let (outer, inner) = (Poly::var(n - 2), Poly::var(n - 1));
        let value = &(&outer * &self.by) + &inner;
        let atom = |a: &Atom| (*a == Atom::Var(self.var as u32)).then(|| value.clone());
        let at: Vec<Poly> = at.iter().map(|p| p.subst(&atom, &self.extents)).collect();
        let mut free = free.clone();
        free.remove(&self.var);
        free.extend([n - 2, n - 1]);
        [n - 2, n - 1].iter().all(|v| at.iter().any(|p| tells(p, *v, &free, &[], &self.extents)))
    }
}

/// The comparisons `a < b` of positions among conditions.
fn bounds<'e>(guards: impl Iterator<Item = &'e Expr>) -> Vec<(Poly, Poly)> {
    guards
        .filter_map(|g| match g {
            Expr::Binary(BinaryOp::Lt, a, b) => match (&**a, &**b) {
                (Expr::Index(a), Expr::Index(b)) => Some((a.clone(), b.clone())),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

/// Whether the value of an index expression tells that of variable `var`, all variables of `free` being unknown and all others known.
///
/// The variable with the largest step is known if all smaller ones together stay below its step, and so on with the rest. Where
/// `a < b` is known, `a` can stand for one number from 0 to below `b`, which tells the variables in it by itself.
fn tells(p: &Poly, var: usize, free: &BTreeSet<usize>, bounds: &[(Poly, Poly)], extents: &[Poly]) -> bool {
    if radix(p, var, free, extents) {
        return true;
    }
    for (i, (a, b)) in bounds.iter().enumerate() {
        let unknown = |p: &Poly| p.vars().iter().any(|v| free.contains(v));
        let parts: Vec<usize> = a.vars().into_iter().filter(|v| free.contains(v)).collect();
        let single = parts.iter().find(|v| {
            let own = [Atom::Var(**v as u32)];
            a.terms().iter().any(|(m, c)| *m == own && *c == 1)
        });
        let Some(single) = single.filter(|_| !unknown(b) && a.proves_nonneg(extents)) else { continue };
        // A new variable for the number, in place of the one that has the step 1 in it.
        let number = extents.len();
        let mut wider = extents.to_vec();
        wider.push(b.clone());
        let rest = a - &Poly::var(*single);
        let value = &Poly::var(number) - &rest;
        let atom = |a: &Atom| (*a == Atom::Var(*single as u32)).then(|| value.clone());
        let mut rest_bounds = bounds.to_vec();
        rest_bounds.remove(i);
        let moved = |p: &Poly| p.subst(&atom, &[]);
        let new = moved(p);
        if new.vars().iter().any(|v| parts.contains(v)) {
            continue;
        }
        let mut others: BTreeSet<usize> = free.iter().copied().filter(|v| !parts.contains(v)).collect();
        others.insert(number);
        let rest_bounds: Vec<(Poly, Poly)> = rest_bounds.iter().map(|(a, b)| (moved(a), moved(b))).collect();
        let wanted = if parts.contains(&var) { number } else { var };
        let inside = wanted == var || radix(a, var, free, extents);
        if inside && tells(&new, wanted, &others, &rest_bounds, &wider) {
            return true;
        }
    }
    false
}

/// [`tells`] by steps alone.
fn radix(p: &Poly, var: usize, free: &BTreeSet<usize>, extents: &[Poly]) -> bool {
    /// The value of a size where steps are put in order.
    const ORDER: i64 = 1009;
    let mut left = Vec::new();
    let all: Vec<usize> = p.vars().into_iter().filter(|v| free.contains(v)).collect();
    for v in &all {
        let others: BTreeSet<usize> = all.iter().copied().filter(|o| o != v).collect();
        let Some(parts) = Parts::of(p, *v, &others) else { return false };
        let Some(size) = parts.step.eval(&|a| matches!(a, Atom::Sym(_)).then_some(ORDER)) else {
            return false;
        };
        left.push((size, parts.step, *v));
    }
    left.sort_by_key(|(size, _, v)| (std::cmp::Reverse(*size), *v));
    for (i, (_, step, v)) in left.iter().enumerate() {
        let rest: Poly = left[i + 1..].iter().map(|(_, s, v)| s * &(&extents[*v] - &Poly::ONE)).sum();
        let smaller = left[i + 1..].iter().all(|(_, s, _)| s.proves_nonneg(extents));
        if !smaller || !(&(step - &rest) - &Poly::ONE).proves_nonneg(extents) {
            return false;
        }
        if *v == var {
            return true;
        }
    }
    false
}

/// Whether two index expressions differ wherever a variable has different values in them. `inner` are the variables that may have
/// different values in them too.
fn apart(p: &Poly, q: &Poly, var: usize, inner: &BTreeSet<usize>, extents: &[Poly]) -> bool {
    let (Some(p), Some(q)) = (Parts::of(p, var, inner), Parts::of(q, var, inner)) else { return false };
    if p.step != q.step || p.fixed != q.fixed {
        return false;
    }
    // The rests are in a range that is smaller than a step.
    let range = |p: &Poly| Some((p.lower_bound(extents)?, p.upper_bound(extents)?));
    let (Some((a, b)), Some((c, d))) = (range(&p.rest), range(&q.rest)) else { return false };
    let below = |x: &Poly| (&(&p.step - x) - &Poly::ONE).proves_nonneg(extents);
    below(&(&b - &c)) && below(&(&d - &a))
}

/// An index expression as `step·var + rest + fixed`.
struct Parts {
    step: Poly,
    /// The terms with variables that may differ.
    rest: Poly,
    fixed: Poly,
}

impl Parts {
    fn of(p: &Poly, var: usize, inner: &BTreeSet<usize>) -> Option<Parts> {
        let mut out = Parts { step: Poly::ZERO, rest: Poly::ZERO, fixed: Poly::ZERO };
        for (m, c) in p.terms() {
            let factor = |skip: Option<usize>| {
                let kept = m.iter().enumerate().filter(|(i, _)| Some(*i) != skip);
                kept.fold(Poly::constant(c), |t, (_, a)| &t * &Poly::atom(a.clone()))
            };
            let whole = factor(None);
            let vars = whole.vars();
            // Values that statements in the loop compute may be any.
            if !whole.data().is_empty() {
                return None;
            }
            if vars.contains(&var) {
                let at = m.iter().position(|a| *a == Atom::Var(var as u32))?;
                let step = factor(Some(at));
                let fixed = step.vars().iter().all(|v| *v != var && !inner.contains(v));
                if !fixed {
                    return None;
                }
                out.step = &out.step + &step;
            } else if vars.iter().any(|v| inner.contains(v)) {
                out.rest = &out.rest + &whole;
            } else {
                out.fixed = &out.fixed + &whole;
            }
        }
        Some(out)
    }
}
