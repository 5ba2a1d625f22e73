//! Named values of a loop whose statements get loops of their own.

use crate::{Expr, For, Kernel, Space, Stmt, Store, TensorId, visit};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::{Atom, Poly};

/// The statements of a loop, each with the named values that it reads: copies of them, or what a register has kept of them.
///
/// # Errors
/// A value that cannot be copied, since a statement between writes what it reads, and that no register can keep.
pub(super) fn groups(k: &mut Kernel, l: &For) -> Result<Vec<Vec<Stmt>>, String> {
    let lets: BTreeMap<u32, (usize, &Expr)> = l
        .body
        .iter()
        .enumerate()
        .filter_map(|(i, s)| match s {
            Stmt::Let { value, expr } => Some((*value, (i, expr))),
            _ => None,
        })
        .collect();
    // The values that a statement reads, with those that these are computed from.
    let needs = |s: &Stmt| {
        let (mut out, mut open) = (BTreeSet::new(), read_by(s));
        while let Some(v) = open.pop_first() {
            if let Some((_, e)) = lets.get(&v)
                && out.insert(v)
            {
                open.extend(read_in(e));
            }
        }
        out
    };
    let users: Vec<(usize, BTreeSet<u32>)> = l
        .body
        .iter()
        .enumerate()
        .filter(|(_, s)| !matches!(s, Stmt::Let { .. }))
        .map(|(i, s)| (i, needs(s)))
        .collect();
    let mut kept: BTreeMap<u32, TensorId> = BTreeMap::new();
    for (v, (at, e)) in &lets {
        let last = users.iter().filter(|(_, needed)| needed.contains(v)).map(|(i, _)| *i).max();
        let Some(last) = last.filter(|last| !may_move(e, &l.body[*at..*last])) else { continue };
        let named = &k.values[*v as usize];
        let (name, dtype) = (named.name.clone(), named.dtype);
        if l.extent.as_const().is_none() {
            let user = crate::text::statement(k, &l.body[last]);
            return Err(format!(
                "a statement between `{name}` and `{user}` writes what `{name}` reads, and the loop has no constant number of points"
            ));
        }
        let register = k.add_tensor(&format!("{name}.kept"), dtype, vec![l.extent.clone()], Space::Register);
        kept.insert(*v, register);
    }

    let mut out = vec![];
    let mut taken = BTreeSet::new();
    for s in &l.body {
        let statement = match s {
            Stmt::Let { value, expr } => match kept.get(value) {
                Some(register) => Stmt::Store(Store::new(*register, vec![Poly::var(l.var)], expr.clone())),
                None => continue,
            },
            s => s.clone(),
        };
        let mut group = vec![];
        let mut open = read_by(&statement);
        let mut own: BTreeMap<usize, (u32, Expr)> = BTreeMap::new();
        while let Some(v) = open.pop_first() {
            let Some((at, e)) = lets.get(&v) else { continue };
            let expr = match kept.get(&v) {
                Some(register) => Expr::load(*register, vec![Poly::var(l.var)]),
                None => (*e).clone(),
            };
            open.extend(read_in(&expr));
            own.insert(*at, (v, expr));
        }
        let mut new: BTreeMap<u32, u32> = BTreeMap::new();
        for (v, expr) in own.into_values() {
            let to = if taken.insert(v) {
                v
            } else {
                let named = k.values[v as usize].clone();
                k.add_value(&named.name, named.dtype)
            };
            group.push(renamed(&Stmt::Let { value: v, expr }, &new));
            new.insert(v, to);
            if let Some(Stmt::Let { value, .. }) = group.last_mut() {
                *value = to;
            }
        }
        group.push(renamed(&statement, &new));
        out.push(group);
    }
    Ok(out)
}

/// Whether a value is the same when it is computed after these statements, its own first.
fn may_move(e: &Expr, after: &[Stmt]) -> bool {
    let mut written = BTreeSet::new();
    visit(after, &mut |s| {
        if let Stmt::Store(s) = s {
            written.insert(s.tensor);
        }
    });
    let mut fixed = true;
    e.visit(&mut |e| match e {
        Expr::Load { tensor, .. } => fixed &= !written.contains(tensor),
        Expr::Subgroup(..) => fixed = false,
        _ => {}
    });
    fixed
}

/// The named values that an expression reads.
pub(super) fn read_in(e: &Expr) -> BTreeSet<u32> {
    let mut out = BTreeSet::new();
    e.visit(&mut |e| {
        out.extend(e.indices().iter().flat_map(Poly::data));
        if let Expr::Value(v) = e {
            out.insert(*v);
        }
    });
    out
}

/// The named values that a statement and those inside of it read.
fn read_by(s: &Stmt) -> BTreeSet<u32> {
    let mut out = BTreeSet::new();
    visit(std::slice::from_ref(s), &mut |s| {
        match s {
            Stmt::For(l) => out.extend(l.extent.data()),
            Stmt::Store(s) => out.extend(s.at.iter().flat_map(Poly::data)),
            _ => {}
        }
        s.exprs(&mut |e| out.extend(read_in(e)));
    });
    out
}

/// A statement that reads other named values in place of some.
fn renamed(s: &Stmt, new: &BTreeMap<u32, u32>) -> Stmt {
    let atom = |a: &Atom| match a {
        Atom::Data(v) => new.get(v).map(|v| Poly::atom(Atom::Data(*v))),
        _ => None,
    };
    s.map(&|p| p.subst(&atom, &[]), &|e| match e {
        Expr::Value(v) => Expr::Value(new.get(&v).copied().unwrap_or(v)),
        e => e,
    })
}
