//! Loads at the beginning of a loop's points, and points that load what the last one does.

use super::guards::both;
use super::named::{read_by, read_in};
use super::{domain, find, nests, replace, variable};
use crate::{Expr, For, Kernel, Kind, Space, Stmt, Store, TensorId, visit};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::{Atom, BinaryOp, Poly};

type Done = Result<(), String>;

/// The tensors that statements store to.
fn stored(body: &[Stmt]) -> BTreeSet<TensorId> {
    let mut out = BTreeSet::new();
    visit(body, &mut |s| {
        if let Stmt::Store(s) = s {
            out.insert(s.tensor);
        }
    });
    out
}

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
    let written = stored(&l.body);
    let local = written.iter().find(|t| !matches!(k.tensors[**t].space, Space::Storage(_)));
    if let Some(t) = local {
        return Err(format!("it stores to `{}`, which is no buffer", k.tensors[*t].name));
    }
    let mut bad = None;
    visit(&l.body, &mut |s| {
        if let Stmt::Barrier { .. } = s {
            bad = Some("it has a barrier".to_owned());
        }
        s.exprs(&mut |e| {
            e.visit(&mut |e| match e {
                Expr::Load { tensor, .. } if written.contains(tensor) => {
                    bad = Some(format!("it reads and writes `{}`", k.tensors[*tensor].name));
                }
                _ => {}
            });
        });
    });
    if let Some(why) = bad {
        return Err(why);
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

fn fetched(k: &mut Kernel, body: &[Stmt]) -> Result<Vec<Stmt>, String> {
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
        let missing: RefCell<Vec<Expr>> = RefCell::default();
        s.exprs(&mut |e| {
            e.visit(&mut |e| {
                if is_fetched(k, e) {
                    missing.borrow_mut().push(e.clone());
                }
            });
        });
        for e in missing.into_inner() {
            let Expr::Load { tensor, .. } = &e else { continue };
            if before.contains(tensor) {
                return Err(format!("`{}` is read after it is written", k.tensors[*tensor].name));
            }
            named.push(e);
        }
        if let Stmt::Store(s) = s {
            if !matches!(k.tensors[s.tensor].space, Space::Storage(_)) {
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
    lets.sort_by_key(|(v, _)| (waves.get(v).copied().unwrap_or(0), !own.contains_key(v)));
    let mut out = vec![];
    // Names of one wave may need each other.
    let mut known: BTreeSet<u32> = BTreeSet::new();
    let all: BTreeSet<u32> = lets.iter().map(|(v, _)| *v).collect();
    while !lets.is_empty() {
        let ready = |e: &Expr| read_in(e).iter().all(|v| known.contains(v) || !all.contains(v));
        let i = lets.iter().position(|(_, e)| ready(e)).ok_or("names that need each other")?;
        let (value, expr) = lets.remove(i);
        known.insert(value);
        out.push(Stmt::Let { value, expr });
    }
    let missing = rest.iter().flat_map(read_by).find(|v| all.contains(v) && !known.contains(v));
    if missing.is_some() {
        return Err("a name is read before it is computed".into());
    }
    out.extend(rest);
    Ok(out)
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
