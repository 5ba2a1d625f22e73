//! Loads at the beginning of a loop's points, and points that load what the last one does.

use super::double::accessed;
use super::guards::{both, conjuncts};
use super::named::read_in;
use super::{domain, find, nests, replace, variable};
use crate::{Expr, For, Kernel, Kind, Space, Stmt, Store, TensorId, visit};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::{Atom, BinaryOp, Poly};

type Done = Result<(), String>;

/// Splits a loop so that the points behind its last one compute what that one does, and store nothing.
pub(super) fn clamp(k: &mut Kernel, name: &str, by: i64) -> Done {
    let var = variable(k, name)?;
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    let size = Poly::constant(by.max(1));
    if l.extent.modulo(&size, &[]).is(0) {
        return nests::split(k, name, &Poly::constant(by));
    }
    if by < 1 || l.condition.is_some() || matches!(l.kind, Kind::Grid | Kind::Invocation) {
        return Err("the loop is no plain one".into());
    }
    let (written, read) = accessed(&l.body);
    if let Some(t) = written.iter().find(|t| !matches!(k.tensors[**t].space, Space::Storage(_))) {
        return Err(format!("it stores to `{}`, which is no buffer", k.tensors[*t].name));
    }
    if let Some(t) = written.intersection(&read).next() {
        return Err(format!("it reads and writes `{}`", k.tensors[*t].name));
    }
    let mut barrier = false;
    visit(&l.body, &mut |s| barrier |= matches!(s, Stmt::Barrier { .. }));
    if barrier {
        return Err("it has a barrier".into());
    }
    let (outer, inner) = (k.add_var(&format!("{name}.0")), k.add_var(&format!("{name}.1")));
    let mut extents = domain(k);
    (extents[outer], extents[inner]) = (l.extent.ceil_div(by), size.clone());
    let at = &(&Poly::var(outer) * &size) + &Poly::var(inner);
    let last = &l.extent - 1;
    let (held, condition) =
        (at.min_of(&last, &extents), Expr::compare(BinaryOp::Lt, at.clone(), l.extent.clone()));
    let index =
        |p: &Poly, to: &Poly| p.subst(&|a| (*a == Atom::Var(var as u32)).then(|| to.clone()), &extents);
    let body = clamped(&l.body, &|p| index(p, &held), &|p| index(p, &at), &condition);
    let kind = if l.kind == Kind::Parallel { l.kind } else { Kind::Serial };
    let inside = For { var: inner, extent: size, body, ..l.clone() };
    let outside =
        For { var: outer, extent: extents[outer].clone(), kind, body: vec![Stmt::For(inside)], ..l };
    k.body = replace(std::mem::take(&mut k.body), var, &mut |_| Ok(vec![Stmt::For(outside.clone())]))?;
    Ok(())
}

/// Statements with `held` applied to all indices but those of elements that are stored, which are `at` under a condition.
fn clamped(
    body: &[Stmt],
    held: &dyn Fn(&Poly) -> Poly,
    at: &dyn Fn(&Poly) -> Poly,
    condition: &Expr,
) -> Vec<Stmt> {
    let expr = |e: &Expr| e.map(held, &|e| e);
    let each = |s: &Stmt| match s {
        Stmt::Store(s) => Stmt::Store(Store {
            at: s.at.iter().map(at).collect(),
            value: expr(&s.value),
            guard: Some(both(s.guard.as_ref().map(expr), condition.clone())),
            ..*s
        }),
        Stmt::For(l) => Stmt::For(For {
            extent: held(&l.extent),
            condition: l.condition.as_ref().map(expr),
            body: clamped(&l.body, held, at, condition),
            ..*l
        }),
        Stmt::If { condition: c, then, otherwise } => Stmt::If {
            condition: expr(c),
            then: clamped(then, held, at, condition),
            otherwise: clamped(otherwise, held, at, condition),
        },
        s => s.map(held, &|e| e),
    };
    body.iter().map(each).collect()
}

/// Names all that a point of a loop loads from buffers, before anything else: what an address depends on comes before it.
pub(super) fn fetch(k: &mut Kernel, name: &str) -> Done {
    let var = variable(k, name)?;
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    // Conditions of all statements stay around them.
    let (mut conditions, mut body) = (vec![], &l.body);
    while let [Stmt::If { condition, then, otherwise }] = &body[..]
        && otherwise.is_empty()
    {
        conditions.push(condition.clone());
        body = then;
    }
    let mut new = fetched(k, body)?;
    for condition in conditions.into_iter().rev() {
        new = vec![Stmt::If { condition, then: new, otherwise: vec![] }];
    }
    k.body = replace(std::mem::take(&mut k.body), var, &mut |l| {
        Ok(vec![Stmt::For(For { body: std::mem::take(&mut new), ..l })])
    })?;
    Ok(())
}

/// A store whose conditions are those of its loads too, where these need them to stay inside of their tensors.
fn loading(k: &Kernel, s: &Stmt, extents: &[Poly]) -> Stmt {
    let Stmt::Store(store) = s else { return s.clone() };
    let all = conjuncts(store.guard.as_ref());
    let value = store.value.map(&Poly::clone, &|e| match e {
        Expr::Load { tensor, at, guard } if !all.is_empty() && !is_inside(k, tensor, &at, extents) => {
            let own = guard.map(|g| (*g).clone());
            let needed = all.iter().filter(|c| !is_clamped(&at, c)).copied().cloned();
            let guard = needed.fold(own, |all, c| Some(both(all, c)));
            Expr::Load { tensor, at, guard: guard.map(Into::into) }
        }
        e => e,
    });
    Stmt::Store(Store { value, ..store.clone() })
}

/// Whether positions are the same wherever a condition is false: those of the last point at which it is true.
fn is_clamped(at: &[Poly], condition: &Expr) -> bool {
    let Expr::Binary(BinaryOp::Lt, a, b) = condition else { return false };
    let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b) else { return false };
    let (last, vars) = (b - 1, a.vars());
    // The remainder of a variable of which the condition reads the quotient alone is another variable.
    let apart = |v: usize, d: &Poly| {
        let quotient = Atom::Div(Poly::var(v), d.clone());
        !a.subst(&|m| (*m == quotient).then_some(Poly::ZERO), &[]).vars().contains(&v)
    };
    let atom = |m: &Atom| match m {
        Atom::Min(x, y) if x == a && *y == last || y == a && *x == last => Some(Poly::ZERO),
        Atom::Mod(x, d) if x.as_var().is_some_and(|v| apart(v, d)) => Some(Poly::ZERO),
        _ => None,
    };
    at.iter().all(|p| p.subst(&atom, &[]).vars().is_disjoint(&vars))
}

/// Whether positions are shown to be inside of a tensor whatever the conditions, where loops have points: a clamped position is any.
fn is_inside(k: &Kernel, tensor: TensorId, at: &[Poly], extents: &[Poly]) -> bool {
    let all = RefCell::new(extents.to_vec());
    let clamped = |m: &Atom| {
        let Atom::Min(x, y) = m else { return None };
        let (x, last) = if x.vars().is_empty() { (y, x) } else { (x, y) };
        let known = last.vars().is_empty() && last.data().is_empty() && x.proves_nonneg(extents);
        let mut all = all.borrow_mut();
        known.then(|| {
            all.push(last + 1);
            Poly::var(all.len() - 1)
        })
    };
    at.iter().zip(&k.tensors[tensor].shape).all(|(p, d)| {
        let p = p.subst(&clamped, &[]);
        p.in_range(d, &all.borrow())
    })
}

fn fetched(k: &mut Kernel, body: &[Stmt]) -> Result<Vec<Stmt>, String> {
    let extents = domain(k);
    let body: Vec<Stmt> = body.iter().map(|s| loading(k, s, &extents)).collect();
    let body = &body[..];
    let (mut loads, mut rest): (Vec<(Expr, u32)>, Vec<Stmt>) = (vec![], vec![]);
    let mut before: BTreeSet<TensorId> = BTreeSet::new();
    let mut named = vec![];
    for s in body {
        if !matches!(s, Stmt::Let { .. } | Stmt::Store(_)) {
            return Err("a point has loops, conditions or barriers".into());
        }
        // A load that already has a name keeps it.
        if let Stmt::Let { value, expr: e @ Expr::Load { .. } } = s
            && is_fetched(k, e)
            && !loads.iter().any(|(known, _)| known == e)
        {
            loads.push((e.clone(), *value));
        }
        let first = named.len();
        s.exprs(&mut |e| e.visit(&mut |e| named.extend(is_fetched(k, e).then(|| e.clone()))));
        let late = |e: &&Expr| matches!(e, Expr::Load { tensor, .. } if before.contains(tensor));
        if let Some(Expr::Load { tensor, .. }) = named[first..].iter().find(late) {
            return Err(format!("`{}` is read after it is written", k.tensors[*tensor].name));
        }
        if let Stmt::Let { expr, .. } = s {
            let mut late = None;
            expr.visit(&mut |e| match e {
                Expr::Load { tensor, .. } if before.contains(tensor) => late = Some(*tensor),
                _ => {}
            });
            if let Some(t) = late {
                return Err(format!("`{}` is read after it is written", k.tensors[t].name));
            }
        }
        if let Stmt::Store(s) = s {
            if k.tensors[s.tensor].space == Space::Register {
                return Err(format!("it stores to `{}`, which is no buffer", k.tensors[s.tensor].name));
            }
            before.insert(s.tensor);
        }
    }
    // Operands come first, so that guards of loads are over names too.
    for e in named {
        let e = renamed(&e, &loads, true);
        if !loads.iter().any(|(known, _)| *known == e) {
            let Expr::Load { tensor, .. } = &e else { continue };
            let (of, dtype) = (k.tensors[*tensor].name.clone(), k.tensors[*tensor].dtype);
            let value = k.add_value(&format!("{of}.at"), dtype);
            loads.push((e, value));
        }
    }
    let own: BTreeMap<u32, Expr> = loads.iter().map(|(e, v)| (*v, e.clone())).collect();
    let mut lets: Vec<(u32, Expr)> = own.iter().map(|(v, e)| (*v, e.clone())).collect();
    for s in body {
        match s {
            Stmt::Let { value, .. } if own.contains_key(value) => {}
            Stmt::Let { value, expr } => lets.push((*value, renamed(expr, &loads, false))),
            s => rest.push(s.map(&Poly::clone, &|e| named_load(e, &loads))),
        }
    }
    let waves = waves(&lets, &own)?;
    // Names of a wave need those before them, and loads of a wave only those of waves before.
    lets.sort_by_key(|(v, _)| (waves.get(v).copied().unwrap_or(0), !own.contains_key(v)));
    let lets = lets.into_iter().map(|(value, expr)| Stmt::Let { value, expr });
    Ok(lets.chain(rest).collect())
}

fn is_fetched(k: &Kernel, e: &Expr) -> bool {
    matches!(e, Expr::Load { tensor, .. } if matches!(k.tensors[*tensor].space, Space::Storage(_)))
}

fn named_load(e: Expr, loads: &[(Expr, u32)]) -> Expr {
    loads.iter().find(|(known, _)| *known == e).map_or(e, |(_, v)| Expr::Value(*v))
}

/// An expression over the names of loads; `below` leaves its own.
fn renamed(e: &Expr, loads: &[(Expr, u32)], below: bool) -> Expr {
    match e {
        Expr::Load { tensor, at, guard } if below => Expr::Load {
            tensor: *tensor,
            at: at.clone(),
            guard: guard.as_ref().map(|g| renamed(g, loads, false).into()),
        },
        e => e.map(&Poly::clone, &|e| named_load(e, loads)),
    }
}

/// The number of loads that follow each other until a name is known.
fn waves(lets: &[(u32, Expr)], loads: &BTreeMap<u32, Expr>) -> Result<BTreeMap<u32, usize>, String> {
    let mut out: BTreeMap<u32, usize> = BTreeMap::new();
    for _ in 0..=lets.len() {
        let mut changed = false;
        for (v, e) in lets {
            let needs = read_in(e).iter().filter_map(|n| out.get(n)).max().copied().unwrap_or(0);
            let own = needs + usize::from(loads.contains_key(v));
            changed |= out.insert(*v, own) != Some(own);
        }
        if !changed {
            return Ok(out);
        }
    }
    Err("names that need each other".into())
}
