//! Conditions on positions, moved inwards.

use crate::{Expr, For, Stmt, Store};
use wgfc_ir::BinaryOp;

/// Whether a condition reads positions only: then it has the same value wherever it is computed.
pub(super) fn is_fixed(e: &Expr) -> bool {
    let mut fixed = true;
    e.visit(&mut |e| fixed &= !matches!(e, Expr::Load { .. } | Expr::Subgroup(..) | Expr::Value(_)));
    e.visit(&mut |e| fixed &= e.indices().iter().all(|p| p.data().is_empty()));
    fixed
}

/// `a && b`.
pub(super) fn both(a: Option<Expr>, b: Expr) -> Expr {
    match a {
        Some(a) if a == b => a,
        Some(a) => Expr::binary(BinaryOp::And, a, b),
        None => b,
    }
}

/// The conditions of which all must be true for this one.
pub(super) fn conjuncts(e: Option<&Expr>) -> Vec<&Expr> {
    match e {
        None => vec![],
        Some(Expr::Binary(BinaryOp::And, a, b)) => [conjuncts(Some(a)), conjuncts(Some(b))].concat(),
        Some(e) => vec![e],
    }
}

/// The statements with the conditions of [`Stmt::If`] that are [fixed](is_fixed) and have no other branch moved into loops and stores.
pub(super) fn sink(body: Vec<Stmt>) -> Vec<Stmt> {
    body.into_iter().flat_map(one).collect()
}

fn one(s: Stmt) -> Vec<Stmt> {
    match s {
        Stmt::If { condition, then, otherwise } => {
            let (then, otherwise) = (sink(then), sink(otherwise));
            let named = then.iter().any(|s| matches!(s, Stmt::Let { .. } | Stmt::Barrier { .. }));
            if !otherwise.is_empty() || named || !is_fixed(&condition) {
                return vec![Stmt::If { condition, then, otherwise }];
            }
            then.into_iter().flat_map(|s| guarded(&condition, s)).collect()
        }
        Stmt::For(l) => vec![Stmt::For(For { body: sink(l.body), ..l })],
        s => vec![s],
    }
}

/// A statement that is executed under a condition.
fn guarded(condition: &Expr, s: Stmt) -> Vec<Stmt> {
    match s {
        Stmt::For(l) if l.condition.is_none() => {
            let inside = Stmt::If { condition: condition.clone(), then: l.body, otherwise: vec![] };
            vec![Stmt::For(For { body: one(inside), ..l })]
        }
        Stmt::Store(s) => vec![Stmt::Store(Store { guard: Some(both(s.guard, condition.clone())), ..s })],
        s => vec![Stmt::If { condition: condition.clone(), then: vec![s], otherwise: vec![] }],
    }
}
