//! Loops whose points the invocations of a workgroup divide among them.

use super::depend::{Change, may_except};
use super::guards::{both, conjuncts};
use super::{domain, find, replace, variable};
use crate::interpret::levels;
use crate::{Expr, For, Kernel, Kind, Space, Stmt, Store, TensorId, Write, visit};
use std::collections::BTreeMap;
use wgfc_ir::{Atom, BinaryOp, Poly, ReduceOp};

/// The condition of what only the first invocation does.
fn first(lane: usize) -> Expr {
    Expr::compare(BinaryOp::Eq, Poly::var(lane), Poly::ZERO)
}

pub(super) fn team(k: &mut Kernel, size: i64) -> Result<(), String> {
    if size < 1 {
        return Err(format!("{size} invocations"));
    }
    let (grid, invocations, _) = levels(k);
    if !invocations.is_empty() {
        return Err("the kernel has invocations already".into());
    }
    let depth = grid.len();
    let mut both_ways = None;
    for (i, t) in k.tensors.iter().enumerate() {
        let mut written = false;
        visit(&k.body, &mut |s| written |= matches!(s, Stmt::Store(s) if s.tensor == i));
        let mut read = false;
        visit(&k.body, &mut |s| {
            s.exprs(&mut |e| {
                e.visit(&mut |e| read |= matches!(e, Expr::Load { tensor, .. } if *tensor == i));
            });
        });
        if written && read && t.space != Space::Register {
            both_ways = Some(t.name.clone());
        }
    }
    if let Some(name) = both_ways {
        return Err(format!(
            "`{name}` is read and written, and one invocation would read what another one wrote"
        ));
    }
    let lane = k.add_var("lane");
    fn one_writes(k: &Kernel, body: Vec<Stmt>, lane: usize) -> Vec<Stmt> {
        let each = |s| match s {
            Stmt::Store(s) if k.tensors[s.tensor].space != Space::Register => {
                Stmt::Store(Store { guard: Some(both(s.guard, first(lane))), ..s })
            }
            Stmt::For(l) => Stmt::For(For { body: one_writes(k, l.body, lane), ..l }),
            Stmt::If { condition, then, otherwise } => Stmt::If {
                condition,
                then: one_writes(k, then, lane),
                otherwise: one_writes(k, otherwise, lane),
            },
            s => s,
        };
        body.into_iter().map(each).collect()
    }
    fn wrap(body: Vec<Stmt>, depth: usize, to: &mut dyn FnMut(Vec<Stmt>) -> Stmt) -> Vec<Stmt> {
        match (depth, body) {
            (0, body) => vec![to(body)],
            (_, body) => body
                .into_iter()
                .map(|s| match s {
                    Stmt::For(l) => Stmt::For(For { body: wrap(l.body, depth - 1, to), ..l }),
                    s => s,
                })
                .collect(),
        }
    }
    let body = std::mem::take(&mut k.body);
    let own = &*k;
    let body = wrap(body, depth, &mut |b| {
        Stmt::For(For::new(lane, size, Kind::Invocation, one_writes(own, b, lane)))
    });
    k.body = body;
    Ok(())
}

pub(super) fn spread(k: &mut Kernel, name: &str) -> Result<(), String> {
    let var = variable(k, name)?;
    let (_, invocations, _) = levels(k);
    let [team] = invocations[..] else { return Err("the kernel has no single loop of invocations".into()) };
    let (lane, size) = (team.var, team.extent.as_const().ok_or("a team of no constant size")?);
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    if !matches!(l.kind, Kind::Serial | Kind::Parallel) || l.down {
        return Err("the loop is no plain one".into());
    }
    // Registers that combine values of all points.
    let mut sums: BTreeMap<TensorId, ReduceOp> = BTreeMap::new();
    let mut local = true;
    visit(&l.body, &mut |s| {
        if let Stmt::Store(s) = s {
            let register = k.tensors[s.tensor].space == Space::Register;
            match s.write {
                Write::Combine(op) if register && s.at.is_empty() => _ = sums.insert(s.tensor, op),
                _ if register => {}
                _ => local &= conjuncts(s.guard.as_ref()).contains(&&first(lane)),
            }
        }
    });
    if !local {
        return Err("invocations write in the loop already what is their own".into());
    }
    if differs(&l.body, lane) || l.extent.vars().contains(&lane) {
        return Err(format!("the invocations compute different things in `{name}` already"));
    }
    let own: Vec<TensorId> = sums.keys().copied().collect();
    let private = may_except(k, &l, &[], Change::Parallel, &own)?;
    sums.retain(|t, _| !private.contains(t));

    let mut before = vec![];
    let mut after = vec![];
    let mut part_of: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    let meet = Stmt::Barrier { storage: false };
    for (t, op) in &sums {
        let (label, dtype) = (k.tensors[*t].name.clone(), k.tensors[*t].dtype);
        let part = k.add_tensor(&format!("{label}.part"), dtype, vec![], Space::Register);
        let parts =
            k.add_tensor(&format!("{label}.parts"), dtype, vec![Poly::constant(size)], Space::Workgroup);
        part_of.insert(*t, part);
        before.push(Stmt::Store(Store::new(part, vec![], Expr::Const(op.identity(dtype)))));
        let at = |p: Poly| Expr::load(parts, vec![p]);
        let store = |value: Expr| Stmt::Store(Store::new(parts, vec![Poly::var(lane)], value));
        after.extend([meet.clone(), store(Expr::load(part, vec![])), meet.clone()]);
        let mut left = size;
        while left > 1 {
            let half = (left + 1) / 2;
            let other = &Poly::var(lane) + &Poly::constant(half);
            let condition = Expr::compare(BinaryOp::Lt, other.clone(), Poly::constant(left));
            let value = Expr::binary(op.operator(), at(Poly::var(lane)), at(other));
            after.push(Stmt::If { condition, then: vec![store(value)], otherwise: vec![] });
            after.push(meet.clone());
            left = half;
        }
        let whole = Store { write: Write::Combine(*op), ..Store::new(*t, vec![], at(Poly::ZERO)) };
        after.push(Stmt::Store(whole));
    }

    let turn = k.add_var(&format!("{name}.turn"));
    let mut extents = domain(k);
    extents[turn] = l.extent.ceil_div(size);
    let value = &(&Poly::var(turn) * &Poly::constant(size)) + &Poly::var(lane);
    let atom = |a: &Atom| (*a == Atom::Var(var as u32)).then(|| value.clone());
    let body: Vec<Stmt> = l.body.iter().map(|s| s.map(&|p| p.subst(&atom, &extents), &|e| e)).collect();
    let body = redirected(k, body, lane, &part_of);
    let whole = l.extent.modulo(&Poly::constant(size), &[]).is(0);
    let body = match whole {
        true => body,
        false => {
            let condition = Expr::compare(BinaryOp::Lt, value.clone(), l.extent.clone());
            vec![Stmt::If { condition, then: body, otherwise: vec![] }]
        }
    };
    let repeated = Stmt::For(For::new(turn, extents[turn].clone(), Kind::Serial, body));
    k.body = replace(std::mem::take(&mut k.body), var, &mut |_| {
        Ok(before.iter().chain([&repeated]).chain(&after).cloned().collect())
    })?;
    Ok(())
}

/// Whether invocations compute different things: index expressions read the number of the invocation, but for conditions under which
/// the first one writes.
fn differs(body: &[Stmt], lane: usize) -> bool {
    let mut found = false;
    let mine = first(lane);
    visit(body, &mut |s| {
        let mut look = |e: &Expr| {
            e.visit(&mut |e| found |= e.indices().iter().any(|p| p.vars().contains(&lane)));
        };
        match s {
            Stmt::Store(s) => {
                conjuncts(s.guard.as_ref()).into_iter().filter(|c| **c != mine).for_each(&mut look);
                look(&s.value);
                found |= s.at.iter().any(|p| p.vars().contains(&lane));
            }
            Stmt::For(l) => {
                l.condition.iter().for_each(look);
                found |= l.extent.vars().contains(&lane);
            }
            Stmt::If { condition, .. } => look(condition),
            Stmt::Let { expr, .. } => look(expr),
            Stmt::Barrier { .. } => {}
        }
    });
    found
}

/// Statements of which each invocation executes its own: sums go to its part, and it writes what is at its points.
fn redirected(k: &Kernel, body: Vec<Stmt>, lane: usize, parts: &BTreeMap<TensorId, TensorId>) -> Vec<Stmt> {
    let each = |s| match s {
        Stmt::Store(mut s) => {
            if let Some(part) = parts.get(&s.tensor) {
                s.tensor = *part;
            }
            if k.tensors[s.tensor].space != Space::Register {
                let mine = first(lane);
                let kept = conjuncts(s.guard.as_ref()).into_iter().filter(|c| **c != mine).cloned();
                s.guard = kept.fold(None, |all, c| Some(both(all, c)));
            }
            Stmt::Store(s)
        }
        Stmt::For(l) => Stmt::For(For { body: redirected(k, l.body, lane, parts), ..l }),
        Stmt::If { condition, then, otherwise } => Stmt::If {
            condition,
            then: redirected(k, then, lane, parts),
            otherwise: redirected(k, otherwise, lane, parts),
        },
        s => s,
    };
    body.into_iter().map(each).collect()
}
