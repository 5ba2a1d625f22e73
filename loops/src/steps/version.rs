//! Loops whose points are all executed, or else those before an end.

use super::guards::{both, conjuncts, is_fixed, without};
use super::nests::own;
use super::{domain, find, replace, variable};
use crate::{Expr, For, Kernel, Kind, Stmt, visit};
use std::collections::BTreeSet;
use wgfc_ir::{Atom, BinaryOp, Poly};

/// Whether a condition on positions that holds at a point of a loop holds at all points before it. `inside` are the variables of loops
/// inside.
fn is_end(e: &Expr, var: usize, inside: &BTreeSet<usize>) -> bool {
    let Expr::Binary(BinaryOp::Lt, a, b) = e else { return false };
    let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b) else { return false };
    let position = a - b;
    let own = |m: &[Atom]| *m == [Atom::Var(var as u32)];
    let step = position.terms().into_iter().find(|(m, _)| own(m)).map_or(0, |(_, c)| c);
    let rest = &position - &(&Poly::var(var) * step);
    let fixed = |v: &usize| *v != var && !inside.contains(v);
    is_fixed(e) && step > 0 && rest.vars().iter().all(fixed)
}

pub(super) fn version(k: &mut Kernel, name: &str) -> Result<(), String> {
    let var = variable(k, name)?;
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    let points = l.extent.as_const().filter(|n| *n > 0);
    let last = points.ok_or_else(|| format!("the extent {} of `{name}` is no constant", l.extent))? - 1;
    if l.condition.is_some() || matches!(l.kind, Kind::Grid | Kind::Invocation) {
        return Err("the loop is no plain one".into());
    }
    let (mut inside, mut stores, mut barrier) = (BTreeSet::new(), vec![], false);
    visit(&l.body, &mut |s| match s {
        Stmt::For(l) => _ = inside.insert(l.var),
        Stmt::Barrier { .. } => barrier = true,
        _ => {}
    });
    guards(&l.body, &[], &mut stores);
    if barrier {
        return Err("it has a barrier".into());
    }
    let first = stores.first().cloned().unwrap_or_default();
    let common = |c: &&Expr| is_end(c, var, &inside) && stores.iter().all(|s| s.contains(c));
    let ends: Vec<Expr> = first.into_iter().filter(common).cloned().collect();
    let extents = domain(k);
    let at_last = |e: &Expr| {
        let atom = |a: &Atom| (*a == Atom::Var(var as u32)).then(|| Poly::constant(last));
        e.map(&|p| p.subst(&atom, &extents), &|e| e)
    };
    let condition = ends.iter().fold(None, |all, e| Some(both(all, at_last(e))));
    let condition = condition.ok_or("no condition of all its stores holds up to one of its points")?;
    let body = l.body.iter().flat_map(|s| without(s.clone(), &ends)).collect();
    let whole = Stmt::For(For { body, ..l.clone() });
    let rest = own(k, &[Stmt::For(l)]);
    k.body = replace(std::mem::take(&mut k.body), var, &mut |_| {
        let (then, otherwise) = (vec![whole.clone()], rest.clone());
        Ok(vec![Stmt::If { condition: condition.clone(), then, otherwise }])
    })?;
    Ok(())
}

/// The conditions inside of a loop under which each of its stores is executed.
fn guards<'k>(body: &'k [Stmt], around: &[&'k Expr], out: &mut Vec<Vec<&'k Expr>>) {
    for s in body {
        match s {
            Stmt::Store(s) => out.push([around, &conjuncts(s.guard.as_ref())].concat()),
            Stmt::For(l) => guards(&l.body, around, out),
            Stmt::If { condition, then, otherwise } => {
                guards(then, &[around, &conjuncts(Some(condition))].concat(), out);
                guards(otherwise, around, out);
            }
            _ => {}
        }
    }
}
