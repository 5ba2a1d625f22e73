//! Copies in workgroup memory with two buffers in turn.

use super::nests::{assign, own};
use super::stage::copies_end;
use super::{domain, find, replace, variable};
use crate::{Expr, For, Kernel, Kind, Space, Stmt, Store, TensorId, races, visit};
use std::collections::BTreeSet;
use wgfc_ir::{BinaryOp, Poly};

/// The tensors that statements store to, and those that they read.
pub(super) fn accessed(body: &[Stmt]) -> (BTreeSet<TensorId>, BTreeSet<TensorId>) {
    let (mut stored, mut read) = (BTreeSet::new(), BTreeSet::new());
    visit(body, &mut |s| {
        if let Stmt::Store(s) = s {
            stored.insert(s.tensor);
        }
        s.exprs(&mut |e| {
            e.visit(&mut |e| {
                if let Expr::Load { tensor, .. } = e {
                    read.insert(*tensor);
                }
            });
        });
    });
    (stored, read)
}

/// The number of statements in which a tensor occurs.
fn uses(body: &[Stmt], t: TensorId) -> usize {
    let mut n = 0;
    visit(body, &mut |s| {
        n += usize::from(matches!(s, Stmt::Store(s) if s.tensor == t));
        s.exprs(&mut |e| {
            e.visit(&mut |e| n += usize::from(matches!(e, Expr::Load { tensor, .. } if *tensor == t)));
        });
    });
    n
}

/// Statements in which tensors have a first axis, at this position.
fn buffered(body: Vec<Stmt>, tensors: &BTreeSet<TensorId>, buffer: &Poly) -> Vec<Stmt> {
    fn stores(body: Vec<Stmt>, tensors: &BTreeSet<TensorId>, buffer: &Poly) -> Vec<Stmt> {
        let all = |b| stores(b, tensors, buffer);
        let each = |s| match s {
            Stmt::Store(mut s) if tensors.contains(&s.tensor) => {
                s.at.insert(0, buffer.clone());
                Stmt::Store(s)
            }
            Stmt::For(l) => Stmt::For(For { body: all(l.body), ..l }),
            Stmt::If { condition, then, otherwise } => {
                Stmt::If { condition, then: all(then), otherwise: all(otherwise) }
            }
            s => s,
        };
        body.into_iter().map(each).collect()
    }
    let reads = |s: Stmt| {
        s.map(&Poly::clone, &|e| match e {
            Expr::Load { tensor, mut at, guard } if tensors.contains(&tensor) => {
                at.insert(0, buffer.clone());
                Expr::Load { tensor, at, guard }
            }
            e => e,
        })
    };
    stores(body.into_iter().map(reads).collect(), tensors, buffer)
}

/// The statements of a point of a loop that begins with copies in workgroup memory, which the loop alone uses.
pub(super) struct Copies<'l> {
    /// The copies, between two barriers.
    pub copies: &'l [Stmt],
    /// The statements behind them.
    pub rest: &'l [Stmt],
    /// The tensors in workgroup memory.
    pub copied: BTreeSet<TensorId>,
}

/// The copies with which the points of a loop begin, if the copies of a point can be made during the point before.
pub(super) fn copies<'l>(k: &Kernel, l: &'l For) -> Result<Copies<'l>, String> {
    if l.kind != Kind::Serial || l.down || l.condition.is_some() {
        return Err("the loop is no plain one".into());
    }
    let end = copies_end(&l.body).ok_or("no copies in workgroup memory are at the beginning of the loop")?;
    let (copies, rest) = (&l.body[1..end], &l.body[end + 1..]);
    let (copied, read) = accessed(copies);
    let (written, _) = accessed(rest);
    for t in &copied {
        let tensor = &k.tensors[*t];
        if tensor.space != Space::Workgroup || uses(&l.body, *t) != uses(&k.body, *t) || written.contains(t) {
            return Err(format!("`{}` is no copy that the loop alone uses", tensor.name));
        }
    }
    for t in &read {
        if !matches!(k.tensors[*t].space, Space::Storage(_)) || written.contains(t) || copied.contains(t) {
            return Err(format!("`{}`, of which there is a copy, changes in the loop", k.tensors[*t].name));
        }
    }
    let mut plain = true;
    visit(copies, &mut |s| plain &= matches!(s, Stmt::For(_) | Stmt::If { .. } | Stmt::Store(Store { .. })));
    if !plain {
        return Err("copies have named values".into());
    }
    Ok(Copies { copies, rest, copied })
}

pub(super) fn double(k: &mut Kernel, name: &str) -> Result<(), String> {
    let var = variable(k, name)?;
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    let Copies { copies, rest, copied } = copies(k, &l)?;
    // Where the first copies run without a barrier before them, another one may still read the first buffer.
    let mut without = k.clone();
    build(&mut without, var, &l, copies, rest, &copied, false)?;
    if races(&without).is_empty() {
        *k = without;
        return Ok(());
    }
    build(k, var, &l, copies, rest, &copied, true)?;
    match races(k).first() {
        None => Ok(()),
        Some(why) => Err(why.clone()),
    }
}

fn build(
    k: &mut Kernel,
    var: usize,
    l: &For,
    copies: &[Stmt],
    rest: &[Stmt],
    copied: &BTreeSet<TensorId>,
    barrier: bool,
) -> Result<(), String> {
    let (point, two) = (Poly::var(var), Poly::constant(2));
    let next = &point + &Poly::ONE;
    for t in copied {
        k.tensors[*t].shape.insert(0, two.clone());
    }
    let first = own(k, &assign(copies, var, &Poly::ZERO, &domain(k)));
    let first = where_any(&l.extent, buffered(first, copied, &Poly::ZERO));
    let extents = domain(k);
    let following = buffered(assign(copies, var, &next, &extents), copied, &next.modulo(&two, &[]));
    let condition = Expr::compare(BinaryOp::Lt, next.clone(), l.extent.clone());
    let meet = Stmt::Barrier { storage: false };
    let mut body = vec![meet.clone(), Stmt::If { condition, then: following, otherwise: vec![] }];
    body.extend(buffered(rest.to_vec(), copied, &point.modulo(&two, &[])));
    let whole = Stmt::For(For { body, ..l.clone() });
    let mut out = vec![];
    out.extend(barrier.then_some(meet));
    out.extend(first);
    out.push(whole);
    k.body = replace(std::mem::take(&mut k.body), var, &mut |_| Ok(std::mem::take(&mut out)))?;
    Ok(())
}

/// The statements before a loop that its first point needs, where there is such a point.
pub(super) fn where_any(extent: &Poly, first: Vec<Stmt>) -> Vec<Stmt> {
    if extent.as_const().is_some_and(|n| n > 0) {
        return first;
    }
    let condition = Expr::compare(BinaryOp::Lt, Poly::ZERO, extent.clone());
    vec![Stmt::If { condition, then: first, otherwise: vec![] }]
}
