//! Steps that rearrange loops.

use super::depend::{Change, may};
use super::guards::is_fixed;
use super::{domain, find, named, replace, tensor, variable};
use crate::kernel::numbered;
use crate::{Expr, For, Kernel, Kind, Space, Stmt, TensorId, visit};
use std::collections::BTreeMap;
use wgfc_ir::{Atom, BinaryOp, Poly};

type Done = Result<(), String>;

/// Statements with a variable replaced by an index expression.
pub(super) fn assign(body: &[Stmt], var: usize, value: &Poly, extents: &[Poly]) -> Vec<Stmt> {
    let atom = |a: &Atom| (*a == Atom::Var(var as u32)).then(|| value.clone());
    body.iter().map(|s| s.map(&|p| p.subst(&atom, extents), &|e| e)).collect()
}

/// Statements whose loops have variables, and whose named values names, that no others have.
pub(super) fn own(k: &mut Kernel, body: &[Stmt]) -> Vec<Stmt> {
    let (mut vars, mut values) = (BTreeMap::new(), BTreeMap::new());
    visit(body, &mut |s| match s {
        Stmt::For(l) => {
            let name = k.vars[l.var].clone();
            vars.insert(l.var, k.add_var(&name));
        }
        Stmt::Let { value, .. } => {
            let named = k.values[*value as usize].clone();
            values.insert(*value, k.add_value(&named.name, named.dtype));
        }
        _ => {}
    });
    let var = |v: usize| vars.get(&v).copied().unwrap_or(v);
    let value = |v: u32| values.get(&v).copied().unwrap_or(v);
    body.iter().map(|s| numbered(s, &var, &value)).collect()
}

pub(super) fn split(k: &mut Kernel, name: &str, by: &Poly) -> Done {
    let var = variable(k, name)?;
    if by.as_const().is_some_and(|n| n < 1) || !by.vars().is_empty() || !by.data().is_empty() {
        return Err(format!("{by} points"));
    }
    let l = find(&k.body, var).ok_or("no such loop")?;
    if l.condition.is_some() {
        return Err("the loop ends by a condition".into());
    }
    let (extent, size) = (l.extent.clone(), by.clone());
    if matches!(l.kind, Kind::Grid | Kind::Invocation) {
        return Err(format!("the loop is of kind {} already", l.kind.name()));
    }
    let whole = extent.modulo(&size, &[]).is(0);
    let blocks = match size.as_const() {
        _ if whole => extent.div(&size, &[]),
        Some(n) => extent.ceil_div(n),
        None => return Err(format!("{size} does not divide the extent {extent}")),
    };
    let (outer, inner) = (k.add_var(&format!("{name}.0")), k.add_var(&format!("{name}.1")));
    let mut extents = domain(k);
    extents[outer] = blocks;
    extents[inner] = size.clone();
    let value = &(&Poly::var(outer) * &size) + &Poly::var(inner);
    k.body = replace(std::mem::take(&mut k.body), var, &mut |l| {
        let mut body = assign(&l.body, var, &value, &extents);
        if !whole {
            let condition = Expr::compare(BinaryOp::Lt, value.clone(), extent.clone());
            body = vec![Stmt::If { condition, then: body, otherwise: vec![] }];
        }
        let inside = For { var: inner, extent: size.clone(), body, ..l.clone() };
        let outside =
            For { var: outer, extent: extents[outer].clone(), kind: both(l.kind, l.kind), body: vec![], ..l };
        Ok(vec![Stmt::For(For { body: vec![Stmt::For(inside)], ..outside })])
    })?;
    Ok(())
}

/// The kind of a loop over the points of two loops.
fn both(a: Kind, b: Kind) -> Kind {
    if a == Kind::Parallel && b == Kind::Parallel { a } else { Kind::Serial }
}

/// Two loops of which the second is the only statement in the first.
fn pair(k: &Kernel, a: &str, b: &str) -> Result<(usize, For), String> {
    let (outer, inner) = (variable(k, a)?, variable(k, b)?);
    let l = find(&k.body, outer).ok_or("no such loop")?;
    match &l.body[..] {
        [Stmt::For(i)] if i.var == inner => {
            if i.extent.vars().contains(&outer) || !i.extent.data().is_empty() {
                return Err(format!("the extent of `{b}` depends on `{a}`"));
            }
            Ok((outer, i.clone()))
        }
        _ => Err(format!("`{b}` is not the only statement in `{a}`")),
    }
}

pub(super) fn swap(k: &mut Kernel, a: &str, b: &str) -> Done {
    let (outer, inner) = pair(k, a, b)?;
    // Points of one of the loops must not depend on each other, wherever the other loop is.
    let first = find(&k.body, outer).ok_or("no such loop")?;
    may(k, first, &[], Change::Order).or_else(|e| may(k, &inner, &[outer], Change::Order).map_err(|_| e))?;
    k.body = replace(std::mem::take(&mut k.body), outer, &mut |l| {
        // The points of the inner loop were independent at each point of the outer one; only if those are too, all are.
        let kind = if inner.kind == Kind::Parallel { both(l.kind, inner.kind) } else { inner.kind };
        let inside = Stmt::For(For { body: inner.body.clone(), ..l });
        Ok(vec![Stmt::For(For { kind, body: vec![inside], ..inner.clone() })])
    })?;
    Ok(())
}

pub(super) fn fuse(k: &mut Kernel, a: &str, b: &str) -> Done {
    let (outer, inner) = pair(k, a, b)?;
    let l = find(&k.body, outer).ok_or("no such loop")?;
    if l.down || inner.down || l.condition.is_some() || inner.condition.is_some() {
        return Err("one of the loops is no plain one".into());
    }
    // Copies that the invocations of a workgroup share need all of them.
    let kind = match (l.kind, inner.kind) {
        (a, b) if a == b && matches!(a, Kind::Grid | Kind::Invocation) => a,
        (a, b) if [a, b].iter().any(|k| matches!(k, Kind::Grid | Kind::Invocation)) => {
            return Err(format!("one of the loops is of kind {}, the other of kind {}", a.name(), b.name()));
        }
        (a, b) => both(a, b),
    };
    let extent = &l.extent * &inner.extent;
    let mut extents = domain(k);
    extents[outer] = extent.clone();
    let (high, low) =
        (Poly::var(outer).div(&inner.extent, &extents), Poly::var(outer).modulo(&inner.extent, &extents));
    let body: Vec<Stmt> = inner
        .body
        .iter()
        .map(|s| {
            let atom = |a: &Atom| match a {
                Atom::Var(v) if *v as usize == outer => Some(high.clone()),
                Atom::Var(v) if *v as usize == inner.var => Some(low.clone()),
                _ => None,
            };
            s.map(&|p| p.subst(&atom, &extents), &|e| e)
        })
        .collect();
    k.body = replace(std::mem::take(&mut k.body), outer, &mut |_| {
        Ok(vec![Stmt::For(For::new(outer, extent.clone(), kind, body.clone()))])
    })?;
    Ok(())
}

pub(super) fn distribute(k: &mut Kernel, name: &str) -> Done {
    let var = variable(k, name)?;
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    may(k, &l, &[], Change::Distribute)?;
    // Conditions of all statements stay around each of them.
    let (mut conditions, mut inside) = (vec![], l.clone());
    while let [Stmt::If { condition, then, otherwise }] = &inside.body[..]
        && otherwise.is_empty()
        && is_fixed(condition)
    {
        conditions.push(condition.clone());
        inside.body = then.clone();
    }
    let mut loops = vec![];
    for (i, mut group) in named::groups(k, &inside)?.into_iter().enumerate() {
        for condition in conditions.iter().rev().cloned() {
            group = vec![Stmt::If { condition, then: group, otherwise: vec![] }];
        }
        let own = if i == 0 { var } else { k.add_var(name) };
        let mut extents = domain(k);
        extents[own] = l.extent.clone();
        // Loops inside keep their variables, which no other statement has.
        let body = assign(&group, var, &Poly::var(own), &extents);
        loops.push(Stmt::For(For { var: own, body, ..l.clone() }));
    }
    k.body = replace(std::mem::take(&mut k.body), var, &mut |_| Ok(std::mem::take(&mut loops)))?;
    Ok(())
}

pub(super) fn expand(k: &mut Kernel, register: &str, name: &str) -> Done {
    let (t, var) = (tensor(k, register)?, variable(k, name)?);
    if k.tensors[t].space != Space::Register {
        return Err(format!("`{register}` is no register"));
    }
    let l = find(&k.body, var).ok_or("no such loop")?;
    let extent = l.extent.clone();
    if extent.as_const().is_none() {
        return Err(format!("the extent {extent} of `{name}` is no constant"));
    }
    let uses = |body: &[Stmt]| {
        let mut n = 0;
        visit(body, &mut |s| {
            s.exprs(&mut |e| e.visit(&mut |e| n += usize::from(reads(e, t))));
            n += usize::from(matches!(s, Stmt::Store(s) if s.tensor == t));
        });
        n
    };
    if uses(&l.body) != uses(&k.body) {
        return Err(format!("`{register}` is used outside of `{name}`"));
    }
    k.tensors[t].shape.push(extent);
    let wider = |s: &Stmt| {
        s.map(&Poly::clone, &|e| match e {
            Expr::Load { tensor, mut at, guard } if tensor == t => {
                at.push(Poly::var(var));
                Expr::Load { tensor, at, guard }
            }
            e => e,
        })
    };
    fn stores(body: Vec<Stmt>, t: TensorId, var: usize) -> Vec<Stmt> {
        let each = |s| match s {
            Stmt::Store(mut s) if s.tensor == t => {
                s.at.push(Poly::var(var));
                Stmt::Store(s)
            }
            Stmt::For(l) => Stmt::For(For { body: stores(l.body, t, var), ..l }),
            Stmt::If { condition, then, otherwise } => {
                Stmt::If { condition, then: stores(then, t, var), otherwise: stores(otherwise, t, var) }
            }
            s => s,
        };
        body.into_iter().map(each).collect()
    }
    k.body = stores(k.body.iter().map(wider).collect(), t, var);
    Ok(())
}

fn reads(e: &Expr, t: TensorId) -> bool {
    matches!(e, Expr::Load { tensor, .. } if *tensor == t)
}

pub(super) fn place(k: &mut Kernel, name: &str, kind: Kind) -> Done {
    let var = variable(k, name)?;
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    if matches!(l.kind, Kind::Grid | Kind::Invocation) {
        return Err(format!("the loop is of kind {} already", l.kind.name()));
    }
    match kind {
        Kind::Grid | Kind::Invocation => {
            may(k, &l, &[], Change::Parallel)?;
            // Only loops of workgroups are around workgroups, and of both around invocations.
            let mut body = &k.body;
            loop {
                match &body[..] {
                    [Stmt::For(l)] if l.var == var => break,
                    [Stmt::For(l)] if l.kind == Kind::Grid || l.kind == kind => body = &l.body,
                    [Stmt::For(l)] => return Err(format!("`{}` is around it", k.vars[l.var])),
                    _ => return Err("it is not the only statement of the kernel".into()),
                }
            }
        }
        Kind::Parallel => may(k, &l, &[], Change::Parallel)?,
        Kind::Vector => may(k, &l, &[], Change::Order)?,
        Kind::Serial | Kind::Unroll => {}
    }
    k.body = replace(std::mem::take(&mut k.body), var, &mut |l| Ok(vec![Stmt::For(For { kind, ..l })]))?;
    Ok(())
}
