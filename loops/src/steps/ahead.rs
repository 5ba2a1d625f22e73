//! Loads of all points of a loop before the statements around it.

use super::double::accessed;
use super::named::read_in;
use super::{domain, find, variable};
use crate::{Expr, For, Kernel, Kind, Space, Stmt, Store, TensorId};
use std::collections::BTreeMap;
use wgfc_ir::{Atom, Poly};

/// Loads with which the points of a loop begin, kept in registers.
struct Kept {
    /// The loop that loads them.
    loads: For,
    /// The loop, which reads the registers.
    rest: For,
}

pub(super) fn ahead(k: &mut Kernel, name: &str) -> Result<(), String> {
    let var = variable(k, name)?;
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    let points = l.extent.as_const().filter(|n| *n > 0);
    if points.is_none() || l.condition.is_some() || matches!(l.kind, Kind::Grid | Kind::Invocation) {
        return Err("the loop has no constant number of points".into());
    }
    let mut kept = Some(keep(k, name, &l)?);
    let body = std::mem::take(&mut k.body);
    k.body = moved(k, body, var, &mut kept)?;
    Ok(())
}

fn keep(k: &mut Kernel, name: &str, l: &For) -> Result<Kept, String> {
    let is_load = |s: &&Stmt| match s {
        Stmt::Let { expr: Expr::Load { tensor, .. }, .. } => {
            matches!(k.tensors[*tensor].space, Space::Storage(_))
        }
        _ => false,
    };
    let count = l.body.iter().take_while(is_load).count();
    if count == 0 {
        return Err("a point does not begin with loads".into());
    }
    let (first, rest) = l.body.split_at(count);
    let own = k.add_var(name);
    let mut extents = domain(k);
    extents[own] = l.extent.clone();
    let (mut loads, mut values, mut registers) = (vec![], BTreeMap::new(), BTreeMap::new());
    for s in first {
        let Stmt::Let { value, expr } = s else { continue };
        let named = k.values[*value as usize].clone();
        let new = k.add_value(&named.name, named.dtype);
        let atom = |a: &Atom| match a {
            Atom::Var(v) if *v as usize == l.var => Some(Poly::var(own)),
            Atom::Data(d) => values.get(d).map(|v| Poly::atom(Atom::Data(*v))),
            _ => None,
        };
        let expr = expr.map(&|p| p.subst(&atom, &extents), &|e| match e {
            Expr::Value(v) => Expr::Value(values.get(&v).copied().unwrap_or(v)),
            e => e,
        });
        let at = format!("{}.kept", named.name);
        let register = k.add_tensor(&at, named.dtype, vec![l.extent.clone()], Space::Register);
        loads.push(Stmt::Let { value: new, expr });
        loads.push(Stmt::Store(Store::new(register, vec![Poly::var(own)], Expr::Value(new))));
        values.insert(*value, new);
        registers.insert(*value, register);
    }
    let element = |register: TensorId| Expr::load(register, vec![Poly::var(l.var)]);
    let read = |s: &Stmt| {
        s.map(&Poly::clone, &|e| match e {
            Expr::Value(v) => registers.get(&v).map_or(Expr::Value(v), |r| element(*r)),
            e => e,
        })
    };
    // Positions read names only.
    let mut indices = vec![];
    crate::visit(rest, &mut |s| {
        if let Stmt::Store(s) = s {
            indices.extend(s.at.iter().flat_map(Poly::data));
        }
        s.exprs(&mut |e| e.visit(&mut |e| indices.extend(e.indices().iter().flat_map(Poly::data))));
    });
    let names = registers.iter().filter(|(v, _)| indices.contains(v));
    let mut body: Vec<Stmt> = names.map(|(v, r)| Stmt::Let { value: *v, expr: element(*r) }).collect();
    body.extend(rest.iter().map(read));
    Ok(Kept { loads: For { var: own, body: loads, ..l.clone() }, rest: For { body, ..l.clone() } })
}

/// Statements with the loop that loads at the beginning of the list in which the other one is.
fn moved(k: &Kernel, body: Vec<Stmt>, var: usize, kept: &mut Option<Kept>) -> Result<Vec<Stmt>, String> {
    let here = body.iter().position(|s| matches!(s, Stmt::For(l) if l.var == var));
    if let Some(at) = here {
        let Some(Kept { loads, rest }) = kept.take() else { return Ok(body) };
        let (_, read) = accessed(&loads.body);
        let (written, _) = accessed(&body);
        if let Some(t) =
            read.intersection(&written).find(|t| matches!(k.tensors[**t].space, Space::Storage(_)))
        {
            return Err(format!("`{}` is written around the loop", k.tensors[*t].name));
        }
        let names = |s: &Stmt| match s {
            Stmt::Let { value, .. } => Some(*value),
            _ => None,
        };
        let before: Vec<u32> = body[..at].iter().filter_map(names).collect();
        let mut needs = std::collections::BTreeSet::new();
        crate::visit(&loads.body, &mut |s| s.exprs(&mut |e| needs.extend(read_in(e))));
        if before.iter().any(|v| needs.contains(v)) {
            return Err("the loads need names that the statements before the loop give".into());
        }
        let mut out = vec![Stmt::For(loads)];
        let mut rest = Some(rest);
        out.extend(body.into_iter().enumerate().map(|(i, s)| match rest.take_if(|_| i == at) {
            Some(rest) => Stmt::For(rest),
            None => s,
        }));
        return Ok(out);
    }
    let each = |s| match s {
        Stmt::For(l) => Ok(Stmt::For(For { body: moved(k, l.body, var, kept)?, ..l })),
        Stmt::If { condition, then, otherwise } => Ok(Stmt::If {
            condition,
            then: moved(k, then, var, kept)?,
            otherwise: moved(k, otherwise, var, kept)?,
        }),
        s => Ok(s),
    };
    body.into_iter().map(each).collect()
}
